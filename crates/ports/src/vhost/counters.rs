//! What a vhost-user port counts, by the names that OVS has for it.
//!
//! librte_vhost counts in each ring, and forgets with the guest: what a guest has come to is kept here
//! when it goes, so that a port's counters never decrease.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};

use dpdk_sys::{rte_vhost_stat, rte_vhost_stat_name};
use parking_lot::Mutex;

use std::sync::Arc;

use crate::TxDrop;
use crate::stats::{Counter, PortCounters};

/// Everything that a port counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets and bytes.
    pub port: PortCounters,
    /// Bursts tried again, by the number of the queue to send by.
    retries: Mutex<Vec<Arc<Counter>>>,
    /// By the library's name, of guests that have gone.
    kept: Mutex<BTreeMap<String, u64>>,
}

/// The library's counters that are summed up over all queues, and OVS's names for the sums.
const SUMS: &[(&str, &str)] = &[
    ("broadcast_packets", "broadcast_packets"),
    ("multicast_packets", "multicast_packets"),
    ("undersize_packets", "1_to_64_packets"),
    ("size_64_packets", "1_to_64_packets"),
    ("size_65_127_packets", "65_to_127_packets"),
    ("size_128_255_packets", "128_to_255_packets"),
    ("size_256_511_packets", "256_to_511_packets"),
    ("size_512_1023_packets", "512_to_1023_packets"),
    ("size_1024_1518_packets", "1024_to_1522_packets"),
    ("size_1519_max_packets", "1523_to_max_packets"),
];

impl Counts {
    /// Where queue `index` to send by counts bursts tried again. It outlives the queue.
    pub fn retries(&self, index: usize) -> Arc<Counter> {
        let mut all = self.retries.lock();
        if all.len() <= index {
            all.resize_with(index + 1, Arc::default);
        }
        all[index].clone()
    }

    /// Keeps what the rings of a guest that goes have counted.
    pub fn keep(&self, vid: c_int, pairs: u16) {
        let mut kept = self.kept.lock();
        for (name, n) in read(vid, pairs) {
            *kept.entry(name).or_default() += n;
        }
    }

    /// Every counter but the usual ones. `live`: the guest there is, and its pairs of queues.
    pub fn all(&self, live: Option<(c_int, u16)>) -> Vec<(String, u64)> {
        let mut rings = self.kept.lock().clone();
        for (name, n) in live.into_iter().flat_map(|(vid, pairs)| read(vid, pairs)) {
            *rings.entry(name).or_default() += n;
        }
        let mut all = self.own();
        all.extend(sums(&rings));
        all.extend(rings);
        all
    }

    /// Those that OVS always shows, and the other reasons to drop that have occurred.
    fn own(&self) -> Vec<(String, u64)> {
        let drops = self.port.tx_drops();
        let always = [TxDrop::QueueFull, TxDrop::TooLong, TxDrop::Malformed];
        let mut all = vec![("ovs_tx_retries", self.retries.lock().iter().map(|retries| retries.get()).sum())];
        all.extend(always.map(|reason| (reason.name(), drops.get(reason))));
        all.extend([("ovs_tx_qos_drops", 0), ("ovs_rx_qos_drops", 0)]);
        all.extend(drops.iter().filter(|(reason, _)| !always.contains(reason)).map(|(reason, n)| (reason.name(), n)));
        all.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

/// Sums over the queues, from "rx_q3_size_64_packets" to "rx_1_to_64_packets".
fn sums(rings: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, n) in rings {
        let (direction, rest) = name.split_at(name.len().min(2));
        let counter = rest.strip_prefix("_q").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
        let Some(counter) = counter.and_then(|rest| rest.strip_prefix('_')) else { continue };
        if let Some((_, sum)) = SUMS.iter().find(|(of, _)| *of == counter) {
            *sums.entry(format!("{direction}_{sum}")).or_default() += n;
        }
    }
    sums
}

/// What the rings of a guest have counted.
fn read(vid: c_int, pairs: u16) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for ring in 0..pairs * 2 {
        // SAFETY: the guest is there; without an array the library only says how many there are.
        let count = unsafe { dpdk_sys::rte_vhost_vring_stats_get_names(vid, ring, std::ptr::null_mut(), 0) };
        let Ok(count) = usize::try_from(count) else { continue };
        let mut names = vec![rte_vhost_stat_name { name: [0 as c_char; 64] }; count];
        let mut values = vec![rte_vhost_stat { id: 0, value: 0 }; count];
        // SAFETY: the caller keeps the guest from going, and both arrays have as many elements as the library
        // is told.
        let read = unsafe {
            let named = dpdk_sys::rte_vhost_vring_stats_get_names(vid, ring, names.as_mut_ptr(), count as u32);
            named.min(dpdk_sys::rte_vhost_vring_stats_get(vid, ring, values.as_mut_ptr(), count as u32))
        };
        if usize::try_from(read) != Ok(count) {
            continue;
        }
        for (name, value) in names.iter().zip(&values) {
            // SAFETY: the library ends each name with a zero.
            let name = unsafe { CStr::from_ptr(name.name.as_ptr()) };
            all.push((name.to_string_lossy().into_owned(), value.value));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_to_drop_have_the_names_of_ovs() {
        let counts = Counts::default();
        counts.retries(1).add(5);
        counts.port.tx(0).dropped(TxDrop::QueueFull, 2);
        counts.port.tx(1).dropped(TxDrop::NotConnected, 3);
        counts.port.tx(1).dropped(TxDrop::Malformed, 4);
        let own: Vec<_> = counts.own().into_iter().filter(|(_, n)| *n > 0).collect();
        let wanted = [
            ("ovs_tx_retries", 5),
            ("ovs_tx_failure_drops", 2),
            ("ovs_tx_invalid_hwol_drops", 4),
            ("tx_not_connected_drops", 3),
        ];
        assert_eq!(own, wanted.map(|(name, n)| (name.to_owned(), n)));
        assert!(counts.own().iter().any(|(name, n)| name == "ovs_tx_mtu_exceeded_drops" && *n == 0));
        let stats = counts.port.sum();
        assert_eq!((stats.tx_dropped, stats.tx_errors), (5, 4));
    }

    #[test]
    fn sums_have_the_names_of_ovs() {
        let rings = [
            ("rx_q0_size_64_packets", 3),
            ("rx_q12_undersize_packets", 4),
            ("tx_q0_size_1519_max_packets", 5),
            ("rx_q1_good_packets", 9),
            ("rx_q0_multicast_packets", 1),
        ];
        let rings = rings.map(|(name, n)| (name.to_owned(), n)).into();
        let sums: Vec<_> = sums(&rings).into_iter().collect();
        let wanted = [("rx_1_to_64_packets", 7), ("rx_multicast_packets", 1), ("tx_1523_to_max_packets", 5)];
        assert_eq!(sums, wanted.map(|(name, n)| (name.to_owned(), n)));
    }
}
