//! Ports of type `dpdk`: options, state and statistics of a device.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use dpdk_sys as sys;
use parking_lot::Mutex;

use super::device::{self, Device, FlowControl, Wanted};
use super::queue::{Receiver, Sender};
use super::{eal, state, version};
use crate::kind::Env;
use crate::options::Options;
use crate::spec::PortSpec;
use crate::stats::{RxCounters, TxCounters};
use crate::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue};

/// Descriptors of a queue by default.
const DESCRIPTORS: u16 = 2048;

/// A port of type `dpdk`.
struct Dpdk {
    name: String,
    device: Arc<Device>,
    rx: Vec<Arc<RxCounters>>,
    tx: Vec<Arc<TxCounters>>,
    /// Set when the queues are taken.
    taken: AtomicBool,
    admin_up: AtomicBool,
    was_up: AtomicBool,
    resets: AtomicU64,
    /// The device's counters when it was opened.
    baseline: Stats,
    /// The device's own counters that are shown, by number and name.
    extended: Vec<(u64, &'static str)>,
}

/// Opens a port.
pub fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<dyn Port>, Error> {
    let failed = |problem: String| Error::Dpdk { port: spec.name.clone(), problem };
    if let Some(problem) = state().problem() {
        return Err(failed(problem));
    }
    let devargs = options.text("dpdk-devargs").filter(|devargs| !devargs.is_empty());
    let devargs = devargs.ok_or_else(|| {
        let name = &spec.name;
        failed(format!("'{name}' is missing 'options:dpdk-devargs'. The old 'dpdk<port_id>' names are not supported"))
    })?;
    let device = Device::open(&spec.name, devargs, &wanted(spec, options), env.large).map_err(failed)?;
    let port = Dpdk {
        name: spec.name.clone(),
        rx: (0..device.rx_queues).map(|_| Arc::default()).collect(),
        tx: (0..device.tx_queues).map(|_| Arc::default()).collect(),
        taken: AtomicBool::new(false),
        admin_up: AtomicBool::new(true),
        was_up: AtomicBool::new(false),
        resets: AtomicU64::new(0),
        baseline: device_stats(device.id),
        extended: extended_counters(device.id),
        device: Arc::new(device),
    };
    port.was_up.store(port.device_link().0, Relaxed);
    if let Some(mac) = spec.mac {
        port.set_mac(mac)?;
    }
    Ok(Arc::new(port))
}

fn wanted(spec: &PortSpec, options: &Options) -> Wanted {
    let descriptors = |name| options.number(name).map_or(DESCRIPTORS, |n| n as u16);
    let flag = |name| options.text(name).map(|value| value == "true");
    let pause = [flag("rx-flow-ctrl"), flag("tx-flow-ctrl"), flag("flow-ctrl-autoneg")];
    // One for each worker there can be, and one for other threads.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Wanted {
        rx_queues: options.number("n_rxq").map_or(1, |n| n as u16),
        tx_queues: (cores + 1) as u16,
        rx_descriptors: descriptors("n_rxq_desc"),
        tx_descriptors: descriptors("n_txq_desc"),
        mtu: spec.mtu.unwrap_or(1500),
        link_interrupt: options.flag("dpdk-lsc-interrupt", false),
        flow_control: pause.iter().any(Option::is_some).then(|| FlowControl {
            rx: pause[0] == Some(true),
            tx: pause[1] == Some(true),
            autonegotiate: pause[2] == Some(true),
        }),
    }
}

impl Dpdk {
    fn error(&self, what: &str, code: i32) -> Error {
        Error::Dpdk { port: self.name.clone(), problem: format!("cannot {what}: {}", eal::error_text(code)) }
    }

    /// Whether the link is up, its speed in Mbit/s, full duplex, autonegotiated.
    fn device_link(&self) -> (bool, u32, bool, bool) {
        if self.device.is_gone() {
            return (false, 0, false, false);
        }
        // SAFETY: all zero is a value of this structure, which DPDK fills for a device that is there.
        let link = unsafe {
            let mut link: sys::rte_eth_link = std::mem::zeroed();
            sys::rte_eth_link_get_nowait(self.device.id, &mut link);
            link
        };
        let full = u32::from(link.link_duplex()) == sys::RTE_ETH_LINK_FULL_DUPLEX;
        let up = u32::from(link.link_status()) == sys::RTE_ETH_LINK_UP;
        (up, link.link_speed, full, link.link_autoneg() != 0)
    }
}

impl Port for Dpdk {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "dpdk"
    }

    fn mac(&self) -> Mac {
        let mut address = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: the device is there.
        unsafe { sys::rte_eth_macaddr_get(self.device.id, &mut address) };
        address.addr_bytes
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        let mut address = sys::rte_ether_addr { addr_bytes: mac };
        // SAFETY: the device is there.
        match unsafe { sys::rte_eth_dev_default_mac_addr_set(self.device.id, &mut address) } {
            code @ ..0 => Err(self.error("change the Ethernet address", code)),
            _ => Ok(()),
        }
    }

    fn mtu(&self) -> u32 {
        self.device.mtu
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        // A device has to be stopped for that, and may need other buffers: it is opened anew.
        match mtu == self.device.mtu {
            true => Ok(()),
            false => Err(Error::Unsupported { port: self.name.clone(), what: "changing the MTU of an open port" }),
        }
    }

    fn link(&self) -> Link {
        let admin_up = self.admin_up.load(Relaxed);
        let up = self.device_link().0;
        if self.was_up.swap(up, Relaxed) != up {
            self.resets.fetch_add(1, Relaxed);
        }
        Link { up, admin_up, resets: self.resets.load(Relaxed) }
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        // SAFETY: the device is there. Drivers allow this while queues are in use.
        let code = unsafe {
            match up {
                true => sys::rte_eth_dev_set_link_up(self.device.id),
                false => sys::rte_eth_dev_set_link_down(self.device.id),
            }
        };
        // Software devices have no link to set; that the port is down then counts for the switch alone.
        if code < 0 && code != -libc::ENOTSUP {
            return Err(self.error(if up { "set the link up" } else { "set the link down" }, code));
        }
        self.admin_up.store(up, Relaxed);
        Ok(())
    }

    fn stats(&self) -> Stats {
        let (now, then) = (device_stats(self.device.id), self.baseline);
        let dropped: u64 = self.rx.iter().map(|c| c.dropped.get()).sum();
        Stats {
            rx_packets: now.rx_packets.saturating_sub(then.rx_packets),
            rx_bytes: now.rx_bytes.saturating_sub(then.rx_bytes),
            rx_dropped: now.rx_dropped.saturating_sub(then.rx_dropped) + dropped,
            rx_errors: now.rx_errors.saturating_sub(then.rx_errors),
            rx_over_err: now.rx_over_err.saturating_sub(then.rx_over_err),
            tx_packets: now.tx_packets.saturating_sub(then.tx_packets),
            tx_bytes: now.tx_bytes.saturating_sub(then.tx_bytes),
            // As in OVS, also where something is wrong with the packet: errors are the device's.
            tx_dropped: self.tx_drops().total(),
            tx_errors: now.tx_errors.saturating_sub(then.tx_errors),
            ..Stats::default()
        }
    }

    fn tx_drops(&self) -> TxDrops {
        let mut sum = TxDrops::default();
        self.tx_queue_drops().into_iter().for_each(|drops| sum += drops);
        sum
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.tx.iter().map(|counters| counters.drops()).collect()
    }

    fn features(&self) -> Features {
        let (_, speed, full_duplex, autonegotiation) = self.device_link();
        let speed_mbps = if speed == sys::RTE_ETH_SPEED_NUM_UNKNOWN { 0 } else { speed };
        Features { speed_mbps, full_duplex, autonegotiation, ..Features::default() }
    }

    fn offloads(&self) -> Offloads {
        self.device.offloads
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        let info = self.device.info();
        // SAFETY: the device is there, and DPDK's strings are static or the device's.
        let (driver, bus, details, numa) = unsafe {
            let bus = sys::rte_bus_name(sys::rte_dev_bus(info.device));
            let details = device::text(sys::rte_dev_bus_info(info.device));
            let numa = sys::rte_eth_dev_socket_id(self.device.id);
            (device::text(info.driver_name).unwrap_or_default(), device::text(bus).unwrap_or_default(), details, numa)
        };
        let details = details.filter(|details| !details.is_empty());
        // IF_TYPE_ETHERNETCSMACD (RFC 3635 section 3.2.4).
        const ETHERNET: u32 = 6;
        vec![
            ("port_no", self.device.id.to_string()),
            ("numa_id", numa.to_string()),
            ("if_type", ETHERNET.to_string()),
            ("if_descr", format!("{} {driver}", version().unwrap_or_default())),
            ("driver_name", driver),
            ("min_rx_bufsize", info.min_rx_bufsize.to_string()),
            // Ethernet header and checksum.
            ("max_rx_pktlen", (self.device.mtu + 18).to_string()),
            ("max_rx_queues", info.max_rx_queues.to_string()),
            ("max_tx_queues", info.max_tx_queues.to_string()),
            ("max_mac_addrs", info.max_mac_addrs.to_string()),
            ("max_hash_mac_addrs", info.max_hash_mac_addrs.to_string()),
            ("max_vfs", info.max_vfs.to_string()),
            ("max_vmdq_pools", info.max_vmdq_pools.to_string()),
            ("bus_info", format!("bus_name={bus}{}", details.map_or(String::new(), |d| format!(", {d}")))),
            ("link_speed", speed_text(self.device_link().1).into()),
            ("n_rxq", self.device.rx_queues.to_string()),
            ("n_txq", self.device.tx_queues.to_string()),
            ("n_rxq_desc", self.device.rx_descriptors.to_string()),
            ("n_txq_desc", self.device.tx_descriptors.to_string()),
        ]
    }

    fn custom_stats(&self) -> Vec<(&'static str, u64)> {
        let drops = self.tx_drops();
        let always = [TxDrop::QueueFull, TxDrop::Malformed];
        let mut all: Vec<_> = always.map(|reason| (reason.name(), drops.get(reason))).into();
        all.extend(drops.iter().filter(|(reason, _)| !always.contains(reason)).map(|(reason, n)| (reason.name(), n)));
        let ids: Vec<u64> = self.extended.iter().map(|(id, _)| *id).collect();
        let mut values = vec![0; ids.len()];
        // SAFETY: the device is there, and both arrays are as long as is said.
        let count = unsafe {
            sys::rte_eth_xstats_get_by_id(self.device.id, ids.as_ptr(), values.as_mut_ptr(), ids.len() as u32)
        };
        if usize::try_from(count) == Ok(ids.len()) {
            all.extend(self.extended.iter().zip(values).map(|((_, name), value)| (*name, value)));
        }
        all
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        if self.taken.swap(true, Relaxed) {
            return Vec::new();
        }
        let queues = self.rx.iter().cloned().enumerate();
        let receiver = |(index, counters)| Box::new(Receiver::new(self.device.clone(), index, counters)) as _;
        queues.map(receiver).collect()
    }

    fn max_tx_queues(&self) -> usize {
        self.tx.len()
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        let Some(counters) = self.tx.get(index) else {
            return Err(Error::Unsupported { port: self.name.clone(), what: "a transmit queue beyond max_tx_queues" });
        };
        Ok(Box::new(Sender::new(self.device.clone(), index, counters.clone())))
    }
}

/// The device's counters, all of them zero where it has been pulled out.
fn device_stats(id: u16) -> Stats {
    // SAFETY: all zero is a value of this structure, which DPDK fills for a device that is there.
    let stats = unsafe {
        let mut stats: sys::rte_eth_stats = std::mem::zeroed();
        sys::rte_eth_stats_get(id, &mut stats);
        stats
    };
    Stats {
        rx_packets: stats.ipackets,
        rx_bytes: stats.ibytes,
        rx_dropped: stats.imissed + stats.rx_nombuf,
        rx_errors: stats.ierrors,
        rx_over_err: stats.imissed,
        tx_packets: stats.opackets,
        tx_bytes: stats.obytes,
        tx_errors: stats.oerrors,
        ..Stats::default()
    }
}

/// The device's own counters, but for those that everybody has.
fn extended_counters(id: u16) -> Vec<(u64, &'static str)> {
    // SAFETY: the device is there; without room, it says how much is wanted. All zero is a value of both
    // structures.
    let (names, values) = unsafe {
        let count = sys::rte_eth_xstats_get_names(id, std::ptr::null_mut(), 0).max(0);
        let mut names = vec![std::mem::zeroed::<sys::rte_eth_xstat_name>(); count as usize];
        let mut values = vec![std::mem::zeroed::<sys::rte_eth_xstat>(); count as usize];
        let named = sys::rte_eth_xstats_get_names(id, names.as_mut_ptr(), count as u32);
        let valued = sys::rte_eth_xstats_get(id, values.as_mut_ptr(), count as u32);
        if named != count || valued != count {
            return Vec::new();
        }
        (names, values)
    };
    let name = |value: &sys::rte_eth_xstat| {
        let name = names.get(usize::try_from(value.id).ok()?)?;
        // SAFETY: an array of 64 characters, of which DPDK makes a string.
        let bytes = unsafe { &*(&raw const name.name).cast::<[u8; 64]>() };
        let name = CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()?;
        is_shown(name).then(|| (value.id, intern(name)))
    };
    values.iter().filter_map(name).collect()
}

/// The counters that OVS shows: packets and bytes of each queue, errors, drops, and management.
fn is_shown(name: &str) -> bool {
    let of_queue = name.strip_prefix("rx_q").or(name.strip_prefix("tx_q")).is_some_and(|rest| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        matches!(rest, "_packets" | "_bytes")
    });
    of_queue || name.ends_with("_errors") || name.ends_with("_dropped") || name.contains("_management_")
}

/// A name that lives as long as the process. Drivers have a bounded number of them.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    names.get(name).copied().unwrap_or_else(|| {
        let name: &'static str = Box::leak(name.into());
        names.insert(name);
        name
    })
}

fn speed_text(mbps: u32) -> &'static str {
    match mbps {
        10 => "10Mbps",
        100 => "100Mbps",
        1000 => "1Gbps",
        2500 => "2.5Gbps",
        5000 => "5Gbps",
        10_000 => "10Gbps",
        20_000 => "20Gbps",
        25_000 => "25Gbps",
        40_000 => "40Gbps",
        50_000 => "50Gbps",
        56_000 => "56Gbps",
        100_000 => "100Gbps",
        200_000 => "200Gbps",
        _ => "Not Defined",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_counters_are_those_of_ovs() {
        let shown = ["rx_q0_packets", "tx_q12_bytes", "rx_errors", "tx_good_dropped", "rx_management_packets"];
        let hidden = ["rx_good_packets", "rx_q0_errorsx", "rx_qx_packet", "rx_q0_", "mac_local"];
        assert!(shown.into_iter().all(is_shown));
        assert!(!hidden.into_iter().any(is_shown));
        assert!(std::ptr::eq(intern("rx_errors"), intern("rx_errors")));
    }
}
