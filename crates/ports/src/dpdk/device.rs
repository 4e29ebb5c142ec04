//! A device of DPDK that a port has: configured, started, and closed when port and queues are gone.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;
use packet::Memory;
use parking_lot::{Mutex, MutexGuard};

use super::mempool::{self, PoolRef};
use super::probe::{self, Found};
use super::{eal, log};
use crate::Offloads;

/// What a port wants of its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Receive queues, at least one.
    pub rx_queues: u16,
    /// Transmit queues, at least one; fewer where the device has fewer.
    pub tx_queues: u16,
    /// Descriptors of a receive queue.
    pub rx_descriptors: u16,
    /// Descriptors of a transmit queue.
    pub tx_descriptors: u16,
    /// Bytes of L3 packet.
    pub mtu: u32,
    /// The device interrupts when its link changes, rather than being asked.
    pub link_interrupt: bool,
    /// Receive, send and negotiate pause frames, where that was asked for.
    pub flow_control: Option<FlowControl>,
}

/// Pause frames (IEEE 802.3 annex 31B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct FlowControl {
    pub rx: bool,
    pub tx: bool,
    pub autonegotiate: bool,
}

/// A started device. Port and queues share it; the last of them closes it.
pub struct Device {
    /// DPDK's number.
    pub id: u16,
    /// Where frames are received.
    pub pool: PoolRef,
    /// Where frames in several segments are put together.
    pub large: &'static Memory,
    /// Receive queues.
    pub rx_queues: u16,
    /// Transmit queues.
    pub tx_queues: u16,
    /// Descriptors of a receive queue.
    pub rx_descriptors: u16,
    /// Descriptors of a transmit queue.
    pub tx_descriptors: u16,
    /// What it does on transmission.
    pub offloads: Offloads,
    /// Whether it takes frames in several segments.
    pub chains: bool,
    /// MTU in bytes.
    pub mtu: u32,
    attached: bool,
    gone: &'static AtomicBool,
}

/// Which port has which device. Locked while devices come and go.
static DEVICES: Mutex<Vec<User>> = Mutex::new(Vec::new());

struct User {
    id: u16,
    port: String,
    pool: PoolRef,
}

/// The mempool of a port.
pub fn pool_of(port: &str) -> Option<PoolRef> {
    DEVICES.lock().iter().find(|user| user.port == port).map(|user| user.pool.clone())
}

/// Whether the device of this number was pulled out.
static GONE: [AtomicBool; sys::RTE_MAX_ETHPORTS as usize] =
    [const { AtomicBool::new(false) }; sys::RTE_MAX_ETHPORTS as usize];

impl Device {
    /// Finds the device that `devargs` names, configures and starts it for the port `port`.
    ///
    /// # Errors
    /// What is wrong, and what would help.
    pub fn open(port: &str, devargs: &str, wanted: &Wanted, large: &'static Memory) -> Result<Device, String> {
        let mut devices = DEVICES.lock();
        let found = probe::find_or_attach(devargs)
            .map_err(|why| format!("Error attaching device '{devargs}' to DPDK: {why}"))?;
        if let Some(user) = devices.iter().find(|user| user.id == found.id) {
            return Err(format!(
                "'{port}' is trying to use device '{devargs}' which is already in use by '{}'",
                user.port
            ));
        }
        let device = start(port, found, wanted, large).inspect_err(|_| close(found, &devices))?;
        devices.push(User { id: found.id, port: port.to_owned(), pool: device.pool.clone() });
        Ok(device)
    }

    /// What DPDK knows of it.
    pub fn info(&self) -> sys::rte_eth_dev_info {
        info(self.id)
    }

    /// Whether it was pulled out.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut devices = DEVICES.lock();
        devices.retain(|user| user.id != self.id);
        close(Found { id: self.id, attached: self.attached }, &devices);
    }
}

/// Has DPDK, which is initialised, forget the device that `devargs` names, which no port may use.
///
/// # Errors
/// In the words of OVS.
pub fn detach(devargs: &str) -> Result<String, String> {
    let devices = DEVICES.lock();
    let text = std::ffi::CString::new(devargs).unwrap_or_default();
    let id = probe::find(&text).ok_or_else(|| format!("Device '{devargs}' not found in DPDK"))?;
    let users: Vec<_> = siblings(id).into_iter().filter_map(|id| devices.iter().find(|user| user.id == id)).collect();
    if !users.is_empty() {
        let names: Vec<_> = users.iter().map(|user| user.port.as_str()).collect();
        return Err(format!(
            "Device '{devargs}' is being used by the following interfaces: {}. Remove them before detaching.",
            names.join(" ")
        ));
    }
    let device = info(id).device;
    // SAFETY: the device is there and nobody uses it, since the lock of devices is held.
    let removed = unsafe {
        sys::rte_eth_dev_close(id);
        sys::rte_dev_remove(device)
    };
    match removed {
        ..0 => Err(format!("Device '{devargs}' can not be detached")),
        _ => Ok(format!("All devices shared with device '{devargs}' have been detached")),
    }
}

fn info(id: u16) -> sys::rte_eth_dev_info {
    // SAFETY: all zero is a value of this structure, which DPDK fills for a device that is there.
    unsafe {
        let mut info = std::mem::zeroed();
        sys::rte_eth_dev_info_get(id, &mut info);
        info
    }
}

/// The devices that are one for the bus, with this one.
fn siblings(id: u16) -> Vec<u16> {
    let device = info(id).device;
    probe::all().filter(|&other| other == id || info(other).device == device).collect()
}

/// Stops a device, and has DPDK forget it if it came for the port and no other port has a part of it.
fn close(found: Found, devices: &MutexGuard<'_, Vec<User>>) {
    let Found { id, attached } = found;
    // SAFETY: the device is there; its queues are gone, or were never given out.
    unsafe { sys::rte_eth_dev_stop(id) };
    let shared = siblings(id).iter().any(|&other| devices.iter().any(|user| user.id == other));
    if !attached || shared {
        return;
    }
    let device = info(id).device;
    // SAFETY: nobody has it any more.
    let code = unsafe {
        sys::rte_eth_dev_close(id);
        sys::rte_dev_remove(device)
    };
    if code < 0 {
        tracing::warn!(target: "dpdk", "device {id} can not be detached: {}", eal::error_text(code));
    } else {
        tracing::info!(target: "dpdk", "device {id} has been removed and detached");
    }
}

/// What was tried, and DPDK's answer.
type Attempt = Result<(), (String, i32)>;

fn attempt(what: &str, code: i32) -> Attempt {
    if code < 0 { Err((what.to_owned(), code)) } else { Ok(()) }
}

fn start(port: &str, found: Found, wanted: &Wanted, large: &'static Memory) -> Result<Device, String> {
    let id = found.id;
    let info = info(id);
    // SAFETY: the device is there.
    let socket = unsafe { sys::rte_eth_dev_socket_id(id) };
    let pool = mempool::get(wanted.mtu, socket)?;
    let gone = &GONE[usize::from(id)];
    gone.store(false, Ordering::Relaxed);
    let rx_queues = wanted.rx_queues.min(info.max_rx_queues.max(1));
    // SAFETY: the driver's name is a string, or null.
    let driver = unsafe { text(info.driver_name) }.unwrap_or_default();
    // Whether the other end has as many queues shows only when it connects.
    let tx_queues = if driver == "net_memif" { rx_queues } else { wanted.tx_queues };
    let granted = Wanted { rx_queues, tx_queues: tx_queues.min(info.max_tx_queues.max(1)), ..wanted.clone() };
    if granted.rx_queues < wanted.rx_queues {
        tracing::warn!(
            target: "dpdk", "{port}: the device has {} receive queues, not {}", granted.rx_queues, wanted.rx_queues
        );
    }
    let mut opening = Opening { port, id, pool: &pool, socket, granted, tx: offloads_tx(&info) };
    let (mut outcome, mut complaints) = log::listen(|| opening.configure_and_start(&info));
    if outcome.is_err() && opening.granted.tx_queues > opening.granted.rx_queues {
        // Some drivers want as many of the one as of the other.
        opening.granted.tx_queues = opening.granted.rx_queues;
        (outcome, complaints) = log::listen(|| opening.configure_and_start(&info));
    }
    let Opening { granted, tx, .. } = opening;
    outcome.map_err(|(what, code)| {
        let said = log::cause(&complaints).map_or(String::new(), |line| format!(" ({line})"));
        format!("cannot {what}: {}{said}", eal::error_text(code))
    })?;
    let chains = tx & sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS != 0;
    let checksums = sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM | sys::RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
    let tso = chains && tx & sys::RTE_ETH_TX_OFFLOAD_TCP_TSO != 0;
    let uso = chains && tx & sys::RTE_ETH_TX_OFFLOAD_UDP_TSO != 0;
    Ok(Device {
        id,
        pool,
        large,
        rx_queues: granted.rx_queues,
        tx_queues: granted.tx_queues,
        rx_descriptors: granted.rx_descriptors,
        tx_descriptors: granted.tx_descriptors,
        offloads: Offloads {
            csum: tx & checksums == checksums,
            tso4: tso,
            tso6: tso,
            uso,
            tunnels: false,
            datagrams: false,
        },
        chains,
        mtu: granted.mtu,
        attached: found.attached,
        gone,
    })
}

/// A device on its way to being one of a port.
struct Opening<'a> {
    port: &'a str,
    id: u16,
    pool: &'a PoolRef,
    /// NUMA node; negative where unknown.
    socket: i32,
    granted: Wanted,
    /// Offloads on transmission.
    tx: u64,
}

impl Opening<'_> {
    fn configure_and_start(&mut self, info: &sys::rte_eth_dev_info) -> Attempt {
        let Opening { id, ref mut granted, .. } = *self;
        // SAFETY: all zero is a value of this structure, and the default of each field.
        let mut conf: sys::rte_eth_conf = unsafe { std::mem::zeroed() };
        conf.rxmode.offloads = offloads_rx(info, granted.mtu);
        conf.txmode.offloads = self.tx;
        let hash = sys::RTE_ETH_RSS_IP | sys::RTE_ETH_RSS_UDP | sys::RTE_ETH_RSS_TCP;
        conf.rx_adv_conf.rss_conf.rss_hf = hash & info.flow_type_rss_offloads;
        if conf.rx_adv_conf.rss_conf.rss_hf != 0 {
            conf.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
        }
        conf.intr_conf.set_lsc(u32::from(granted.link_interrupt));
        // SAFETY: the device is there and stopped, and the lock of devices is held.
        unsafe {
            let code = sys::rte_eth_dev_configure(id, granted.rx_queues, granted.tx_queues, &conf);
            attempt("configure the device", code)?;
            set_mtu(self.port, id, granted.mtu)?;
            let (rx, tx) = (&mut granted.rx_descriptors, &mut granted.tx_descriptors);
            attempt("choose the numbers of descriptors", sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, rx, tx))?;
        }
        self.set_up_queues()?;
        // SAFETY: the device is there and configured, and the lock of devices is held.
        unsafe {
            attempt("start the device", sys::rte_eth_dev_start(id))?;
            // A device that cannot do these receives everything anyway, or says so in the log.
            sys::rte_eth_promiscuous_enable(id);
            sys::rte_eth_allmulticast_enable(id);
            sys::rte_eth_dev_callback_register(id, sys::RTE_ETH_EVENT_INTR_RMV, Some(removed), std::ptr::null_mut());
        }
        set_flow_control(self.port, id, self.granted.flow_control);
        Ok(())
    }

    fn set_up_queues(&self) -> Attempt {
        let (id, granted, socket) = (self.id, &self.granted, self.socket.max(0) as u32);
        for queue in 0..granted.tx_queues {
            // SAFETY: the device is there and configured for so many queues.
            let code =
                unsafe { sys::rte_eth_tx_queue_setup(id, queue, granted.tx_descriptors, socket, std::ptr::null()) };
            attempt(&format!("set up transmit queue {queue}"), code)?;
        }
        for queue in 0..granted.rx_queues {
            let (descriptors, pool) = (granted.rx_descriptors, self.pool.raw());
            // SAFETY: the device is there and configured for so many queues, and it keeps its reference to the
            // pool as long as the queue is set up.
            let code = unsafe { sys::rte_eth_rx_queue_setup(id, queue, descriptors, socket, std::ptr::null(), pool) };
            attempt(&format!("set up receive queue {queue}"), code)?;
        }
        Ok(())
    }
}

fn set_mtu(port: &str, id: u16, mtu: u32) -> Attempt {
    // SAFETY: the device is there.
    let code = unsafe { sys::rte_eth_dev_set_mtu(id, mtu as u16) };
    if code != -libc::ENOTSUP {
        return attempt(&format!("set the MTU to {mtu}"), code);
    }
    if mtu != 1500 {
        tracing::warn!(target: "dpdk", "Interface {port} does not support MTU configuration");
    }
    Ok(())
}

fn set_flow_control(port: &str, id: u16, wanted: Option<FlowControl>) {
    // SAFETY: all zero is a value of this structure, which DPDK fills for a device that is there.
    let (code, mut conf) = unsafe {
        let mut conf: sys::rte_eth_fc_conf = std::mem::zeroed();
        (sys::rte_eth_dev_flow_ctrl_get(id, &mut conf), conf)
    };
    let Some(wanted) = wanted else { return };
    if code < 0 {
        tracing::warn!(target: "dpdk", "{port}: Flow control is not supported: {}", eal::error_text(code));
        return;
    }
    conf.mode = match (wanted.rx, wanted.tx) {
        (false, false) => sys::RTE_ETH_FC_NONE,
        (true, false) => sys::RTE_ETH_FC_RX_PAUSE,
        (false, true) => sys::RTE_ETH_FC_TX_PAUSE,
        (true, true) => sys::RTE_ETH_FC_FULL,
    };
    conf.autoneg = wanted.autonegotiate.into();
    // SAFETY: the device is there, and `conf` filled.
    let code = unsafe { sys::rte_eth_dev_flow_ctrl_set(id, &mut conf) };
    if code < 0 {
        tracing::warn!(target: "dpdk", "{port}: cannot set flow control: {}", eal::error_text(code));
    }
}

/// The offloads on receiving that the device has, and a switch makes use of.
fn offloads_rx(info: &sys::rte_eth_dev_info, mtu: u32) -> u64 {
    let checksums =
        sys::RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | sys::RTE_ETH_RX_OFFLOAD_UDP_CKSUM | sys::RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
    let mut wanted = sys::RTE_ETH_RX_OFFLOAD_RSS_HASH;
    if info.rx_offload_capa & checksums == checksums {
        wanted |= checksums;
    }
    // Some drivers want this for frames that are longer than usual.
    if mtu > 1500 {
        wanted |= sys::RTE_ETH_RX_OFFLOAD_SCATTER;
    }
    wanted & info.rx_offload_capa
}

/// The same on transmission.
fn offloads_tx(info: &sys::rte_eth_dev_info) -> u64 {
    let wanted = sys::RTE_ETH_TX_OFFLOAD_IPV4_CKSUM
        | sys::RTE_ETH_TX_OFFLOAD_UDP_CKSUM
        | sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM
        | sys::RTE_ETH_TX_OFFLOAD_TCP_TSO
        | sys::RTE_ETH_TX_OFFLOAD_UDP_TSO
        | sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    // The driver takes the length of a segment's frame for that of its packet, and drops those that fill
    // the MTU.
    // SAFETY: the driver's name is a string, or null.
    let cuts_wrong = unsafe { text(info.driver_name) }.as_deref() == Some("net_tap");
    let wrong = if cuts_wrong { sys::RTE_ETH_TX_OFFLOAD_TCP_TSO | sys::RTE_ETH_TX_OFFLOAD_UDP_TSO } else { 0 };
    wanted & info.tx_offload_capa & !wrong
}

/// Called by DPDK when a device is pulled out.
unsafe extern "C" fn removed(
    id: u16,
    _event: sys::rte_eth_event_type,
    _argument: *mut std::ffi::c_void,
    _result: *mut std::ffi::c_void,
) -> i32 {
    if let Some(gone) = GONE.get(usize::from(id)) {
        gone.store(true, Ordering::Relaxed);
        tracing::warn!(target: "dpdk", "device {id} was removed from the machine");
    }
    0
}

/// A string of DPDK's that may be null.
///
/// # Safety
/// `text` is null, or a string that lives long enough.
pub unsafe fn text(text: *const std::ffi::c_char) -> Option<String> {
    // SAFETY: a `text` that is not null is a string that lives long enough (contract of this function).
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
