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

use crate::stats::{Counter, PortCounters};

/// Counters of a queue to send by that the usual ones leave out.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Sent {
    /// Bursts tried again.
    pub retries: Counter,
    /// Packets that the guest's ring had no room for.
    pub failure: Counter,
    /// Packets longer than the MTU.
    pub mtu_exceeded: Counter,
    /// Packets whose checksums and segments could not be made.
    pub invalid_offload: Counter,
}

/// Everything that a port counts.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets and bytes.
    pub port: PortCounters,
    sent: Mutex<Vec<Arc<Sent>>>,
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
    /// The further counters of queue `index` to send by, which outlive the queue.
    pub fn sent(&self, index: usize) -> Arc<Sent> {
        let mut all = self.sent.lock();
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

    fn own(&self) -> Vec<(String, u64)> {
        let sent = self.sent.lock();
        let sum = |counter: fn(&Sent) -> &Counter| sent.iter().map(|sent| counter(sent).get()).sum();
        let counters: [(&str, u64); 6] = [
            ("ovs_tx_retries", sum(|sent| &sent.retries)),
            ("ovs_tx_failure_drops", sum(|sent| &sent.failure)),
            ("ovs_tx_mtu_exceeded_drops", sum(|sent| &sent.mtu_exceeded)),
            ("ovs_tx_qos_drops", 0),
            ("ovs_rx_qos_drops", 0),
            ("ovs_tx_invalid_hwol_drops", sum(|sent| &sent.invalid_offload)),
        ];
        counters.map(|(name, n)| (name.to_owned(), n)).into()
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
