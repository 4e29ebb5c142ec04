//! Network ports: where frames come from and go to.
//!
//! A [`Port`] is shared and answers questions; its queues are separate objects, each owned by one
//! worker at a time, so that the fast path takes no lock. This crate knows nothing of flows.
//!
//! [`registry::open`] makes a port of any kind from its declaration; each backend is one module.
//!
//! | module | what it is |
//! |---|---|
//! | [`afpacket`] | Type `afpacket`: an interface of the kernel, by packet sockets |
//! | [`afxdp`] | Type `afxdp`: an interface of the kernel, by AF_XDP |
//! | [`dpdk`] | Type `dpdk`: a device that a driver of DPDK polls |
//! | [`dummy`] | Type `dummy`: frames from and to tests |
//! | [`null`] | Type `null`: a source of identical frames, and a sink |
//! | [`pcap`] | Type `pcap`: replay and recording of capture files |
//! | [`system`] | Type `system`: `afpacket` or `afxdp`, as suits the interface |
//! | [`closed`] | What is left of a port that was closed |
//! | [`tap`] | Types `tap` and `internal`: an interface that is made here |
//! | [`tunnel`] | Tunnel types, which are there and carry nothing yet |
//! | [`vhost`] | Types `dpdkvhostuser` and `dpdkvhostuserclient`: a virtual machine |
//! | [`registry`] | All kinds of ports, and how one is opened |
//! | [`kind`] | What a kind of port is |
//! | [`spec`] | The declaration of a port |
//! | [`options`] | Options of ports |
//! | [`mod@drop`] | Why a frame was not sent |
//! | [`early_drop`] | What a port drops for an ingress filter before its receive queues see it |
//! | [`link`] | Interfaces of the kernel: facts, changes, settings |
//! | [`qos`] | What a port is told of rates and queues |
//! | [`offload`] | Checksums and segmentation that a port leaves to software |
//! | [`vnet`] | The virtio header beside a frame |
//! | [`files`] | Files and sockets with names from outside |
//! | [`pools`] | The packet memory of this process |
//! | [`stats`] | Counters of a port |
//! | `sys` | Small wrappers of system calls |
//! | `virtual_port` | What ports without an interface keep by themselves |

pub mod afpacket;
pub mod afxdp;
pub mod closed;
pub mod dpdk;
pub mod drop;
pub mod dummy;
pub mod early_drop;
pub mod files;
pub mod kind;
pub mod null;
pub mod offload;
pub mod options;
pub mod pcap;
pub mod qos;
pub mod registry;
pub mod spec;
pub mod stats;
pub mod system;
pub mod tap;
pub mod tunnel;
pub mod vhost;
pub mod vnet;

mod sys;
mod virtual_port;

pub mod link;
pub mod merge;
pub mod pools;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use link::Ipv4Config;
use packet::{Batch, Time};

pub use closed::Closed;
pub use drop::{TxDrop, TxDrops};
pub use early_drop::EarlyDrop;
pub use kind::Env;
pub use qos::{Qos, QosState};
pub use spec::PortSpec;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A port of any kind.
///
/// Methods are called from the management thread, while workers use the queues. Dropping the port and
/// its queues releases every resource that opening it took.
pub trait Port: Send + Sync {
    /// Name of the port, as the configuration has it.
    fn name(&self) -> &str;

    /// Type of the port, as `Interface type` has it: "afxdp", "tap", "dummy", ...
    fn kind(&self) -> &'static str;

    /// Ethernet address.
    fn mac(&self) -> Mac;

    /// Changes the Ethernet address.
    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        let _ = mac;
        Err(Error::Unsupported { port: self.name().into(), what: "changing the Ethernet address" })
    }

    /// Gives the device an address of IPv4, in the place of `old`, if that is another one.
    fn set_ipv4(&self, config: &Ipv4Config, old: Option<&Ipv4Config>) -> Result<(), Error> {
        let _ = (config, old);
        Err(Error::Unsupported { port: self.name().into(), what: "an IP address" })
    }

    /// Largest L3 packet, in bytes, without the Ethernet header and VLAN tags.
    fn mtu(&self) -> u32;

    /// Changes the MTU.
    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        let _ = mtu;
        Err(Error::Unsupported { port: self.name().into(), what: "changing the MTU" })
    }

    /// Takes other options than it was opened with, if that needs no new device. Returns whether it has: otherwise nothing has changed.
    fn set_options(&self, options: &options::Options) -> Result<bool, Error> {
        let _ = options;
        Ok(false)
    }

    /// Link and administrative state.
    fn link(&self) -> Link;

    /// Has the driver asked whether there is a link (MII, or else ethtool), and goes by its answer until [`forget_mii`](Port::forget_mii).
    /// `None` where it cannot be asked.
    fn poll_mii(&self) -> Option<bool> {
        None
    }

    /// Goes by what the kernel says of the link again.
    fn forget_mii(&self) {}

    /// Whether the device has gone for good: deleted, or moved where it cannot be reached. The port does nothing
    /// any more then; one that is opened anew uses the device that has its name by then.
    fn is_gone(&self) -> bool {
        false
    }

    /// Whether it receives what comes out of tunnels, and nothing else.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Sets the administrative state.
    fn set_admin_up(&self, up: bool) -> Result<(), Error>;

    /// Counters since the port was opened.
    fn stats(&self) -> Stats;

    /// What the transmit queues did not take since the port was opened, by reason: together `tx_dropped` and `tx_errors`,
    /// but for what a device or the kernel counts in them by itself.
    fn tx_drops(&self) -> TxDrops;

    /// The same for each transmit queue, in their order; nothing where queues are not told apart.
    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        Vec::new()
    }

    /// Speed and duplex.
    fn features(&self) -> Features;

    /// What the port can take over from software on transmission.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    /// Whether a frame costs the port, or the stack or the guest behind it, about as much as a super-frame does. It gets segments joined then,
    /// if it takes super-frames. A device cuts them at once.
    fn pays_by_frame(&self) -> bool {
        false
    }

    /// Kernel interface index, where there is one.
    fn ifindex(&self) -> Option<u32> {
        None
    }

    /// Facts about the port in words, for `status` in the database and `weir show`:
    /// ("xdp-mode", "native-with-zerocopy"), ("driver_name", "veth"), ...
    fn status(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The port's further counters by name: by default, the reasons for which packets were not sent, those that have
    /// occurred.
    fn custom_stats(&self) -> Vec<(&'static str, u64)> {
        self.tx_drops().named()
    }

    /// The means to drop frames for an ingress filter before they come to a receive queue, where the port has them. What
    /// is dropped so counts as received.
    fn early_drop(&self) -> Option<Arc<dyn EarlyDrop>> {
        None
    }

    /// The NUMA node at which the device is, where that is known: workers there have the shortest way to it.
    fn numa_node(&self) -> Option<usize> {
        None
    }

    /// Whether its receive queues are scheduled and shown as those of OVS's poll mode ports are. Others are polled, too, but
    /// change nothing for these.
    fn is_pmd(&self) -> bool {
        true
    }

    /// The settings in force, as `dpif/show` has them.
    fn shown_options(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Transmission queues by number, as controllers can choose them.
    fn queues(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The types of QoS that the port itself can have.
    fn qos_types(&self) -> &'static [&'static str] {
        &[]
    }

    /// Has what is sent queued and limited as a QoS says, which is of one of the [types](Port::qos_types); `None`: as without
    /// any. Where a part of it cannot be had, the error is that of the first one, and the others are in force.
    fn set_qos(&self, qos: Option<&Qos>) -> Result<(), Error> {
        match qos {
            Some(_) => Err(Error::Unsupported { port: self.name().into(), what: "this QoS" }),
            None => Ok(()),
        }
    }

    /// The QoS that is in force, with counters.
    fn qos(&self) -> Option<QosState> {
        None
    }

    /// The receive queues, each to be given to one worker. Called again now and then: those that have
    /// come into being since, whose numbers follow the others'.
    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>>;

    /// Whether anything can come in by receive queue `index`: the other side may have it disabled.
    fn rx_enabled(&self, index: usize) -> bool {
        let _ = index;
        true
    }

    /// How many transmit queues [`tx_queue`](Port::tx_queue) can make that need no lock between them;
    /// `usize::MAX` where there is no limit.
    fn max_tx_queues(&self) -> usize;

    /// How many transmit queues there are to spread packets over by their hash, where that is wanted: those that the device
    /// itself has. One, where one is as good as several.
    fn steered_tx_queues(&self) -> usize {
        match self.max_tx_queues() {
            usize::MAX => 1,
            count => count,
        }
    }

    /// Makes transmit queue `index`, which is below [`max_tx_queues`](Port::max_tx_queues). Each is
    /// made at most once at a time: drop one before making it again.
    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error>;
}

/// A receive queue. Owned by one worker at a time.
pub trait RxQueue: Send {
    /// Appends frames to `batch` until it is full or the queue is empty, and returns how many. Never
    /// blocks. `now` is the time of this polling turn.
    fn receive(&mut self, batch: &mut Batch, now: Time) -> usize;

    /// A descriptor that becomes readable when frames arrive, for workers that sleep. `None`: the
    /// queue has to be polled.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether [`wait_fd`](RxQueue::wait_fd) says all: no frame comes without it, and it stays the same until
    /// [`renew`](RxQueue::renew) or [`receive`](RxQueue::receive) is called. A worker leaves such a queue alone while it
    /// is idle, and waits for the descriptors of all of them at once.
    fn can_park(&self) -> bool {
        false
    }

    /// Takes over what the port has prepared for a busy queue, such as a ring. Called now and then while nobody waits for
    /// [`wait_fd`](RxQueue::wait_fd), which may be another afterwards.
    fn renew(&mut self, now: Time) {
        let _ = now;
    }

    /// When the next frame is due, for queues that know (replay at a rate).
    fn next_due(&self) -> Option<Time> {
        None
    }

    /// How many frames a guest has sent by this queue that wait to be received. `None`: it is no queue of a guest, or that
    /// is not known. Asked where performance is measured in detail.
    fn guest_waiting(&self) -> Option<usize> {
        None
    }
}

/// A transmit queue. Owned by one worker at a time.
pub trait TxQueue: Send {
    /// Sends every packet of `batch`, which is empty afterwards: what the port could not take is
    /// dropped and counted for its reason ([`TxDrop`]). Returns how many were taken. Never blocks.
    /// Completes checksums and cuts segments that the port cannot take over ([`Port::offloads`]).
    fn transmit(&mut self, batch: &mut Batch, now: Time) -> usize;

    /// Called between bursts when the worker has nothing else to do, and at least once a millisecond:
    /// reaps completed buffers.
    fn housekeep(&mut self, now: Time) {
        let _ = now;
    }

    /// Whether [`housekeep`](TxQueue::housekeep) does anything.
    fn needs_housekeeping(&self) -> bool {
        true
    }
}

/// Link and administrative state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// The link has a carrier.
    pub up: bool,
    /// The administrator has enabled the port.
    pub admin_up: bool,
    /// Times that `up` has changed.
    pub resets: u64,
}

/// Counters of a port, named as in the `statistics` column of the Open_vSwitch schema. Never decrease.
/// What a port does not count is [`UNKNOWN`](Stats::UNKNOWN), as OpenFlow has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Stats {
    pub rx_packets: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub rx_errors: u64,
    pub rx_frame_err: u64,
    pub rx_over_err: u64,
    pub rx_crc_err: u64,
    pub tx_packets: u64,
    pub tx_bytes: u64,
    pub tx_dropped: u64,
    pub tx_errors: u64,
    pub collisions: u64,
}

impl Stats {
    /// In place of a counter that a port does not keep.
    pub const UNKNOWN: u64 = u64::MAX;

    /// Counts packets that were for the port and were not even given to it, where it keeps that counter.
    pub fn count_unsent(&mut self, packets: u64) {
        if self.tx_dropped != Stats::UNKNOWN {
            self.tx_dropped = self.tx_dropped.saturating_add(packets);
        }
    }
}

/// Speed and duplex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Current speed in Mbit/s; zero where unknown.
    pub speed_mbps: u32,
    /// Highest speed in Mbit/s; zero where unknown.
    pub max_speed_mbps: u32,
    /// Full duplex.
    pub full_duplex: bool,
    /// Copper rather than fibre.
    pub copper: bool,
    /// Autonegotiation is on.
    pub autonegotiation: bool,
}

/// What a port can take over on transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Offloads {
    /// Completes L4 checksums.
    pub csum: bool,
    /// Cuts TCP over IPv4.
    pub tso4: bool,
    /// Cuts TCP over IPv6.
    pub tso6: bool,
    /// Cuts UDP.
    pub uso: bool,
    /// Cuts all of these also where they are in a tunnel over UDP without a checksum.
    pub tunnels: bool,
    /// Cuts UDP at no greater cost than that of sending one frame, so that what is in a tunnel over UDP had better be given to it so.
    pub datagrams: bool,
}

/// How a port takes super-frames in tunnels: what its [`Offloads`] say of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TakesTunnels {
    /// As they are.
    pub whole: bool,
    /// As super-frames of UDP, which have a checksum.
    pub datagrams: bool,
}

/// What went wrong with a port: what, where, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("{port}: cannot {what}: {source}{}", hint_text(.hint))]
    System {
        /// Port name.
        port: String,
        /// What was tried: "bind the AF_XDP socket of queue 0".
        what: String,
        /// The system's answer.
        source: std::io::Error,
        /// What would help, where known.
        hint: Option<&'static str>,
    },
    /// No such interface, in the system's words.
    #[error("{port}: No such device")]
    NoInterface {
        /// Port name.
        port: String,
    },
    /// The kind of port cannot do this.
    #[error("{port}: {what} is not supported by this type of port")]
    Unsupported {
        /// Port name.
        port: String,
        /// What was asked for.
        what: &'static str,
    },
    /// What the port needs is not there.
    #[error("{port}: {problem}")]
    Unavailable {
        /// Port name.
        port: String,
        /// What is missing and what would help.
        problem: String,
    },
    /// An option is wrong.
    #[error("{port}: option {option}: {problem}")]
    Option {
        /// Port name.
        port: String,
        /// Name of the option.
        option: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// No such kind of port.
    #[error("{port}: unknown type {kind:?}; known types: {known}")]
    UnknownKind {
        /// Port name.
        port: String,
        /// What was asked for.
        kind: String,
        /// The kinds there are.
        known: String,
    },
    /// A port of DPDK cannot be had, or changed.
    #[error("{port}: {problem}")]
    Dpdk {
        /// Port name.
        port: String,
        /// What is wrong, and what would help.
        problem: String,
    },
    /// A file's content is wrong.
    #[error("{port}: {path}: {problem}")]
    File {
        /// Port name.
        port: String,
        /// Path of the file.
        path: String,
        /// What is wrong, where in the file, and what would be right.
        problem: String,
    },
}

fn hint_text(hint: &Option<&'static str>) -> String {
    hint.map_or(String::new(), |h| format!("; {h}"))
}

impl fmt::Debug for dyn Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} {})", self.kind(), self.name())
    }
}
