//! AF_XDP: frames of any Linux interface, taken in the driver before the kernel's stack sees them.
//!
//! One file per kernel object: [`program`] leads frames to sockets, [`early_drop`] has it drop others, [`socket`] is bound to one queue of
//! the interface, [`ring`] is what a socket exchanges descriptors by, [`umem`] tells whose the frames'
//! memory is. [`queue`] is what workers call; this file opens a port and answers questions about it.
//!
//! # Modes
//!
//! `options:xdp-mode`, as in OVS:
//!
//! | mode | program runs | frames |
//! |---|---|---|
//! | `native-with-zerocopy` | in the driver | written to the pool by the NIC |
//! | `native` | in the driver | copied once by the kernel |
//! | `generic` | behind the driver | copied once by the kernel, out of a socket buffer; any driver |
//!
//! `best-effort`, the default, takes the first that the interface can do.
//!
//! # Queues
//!
//! One socket for each receive channel of the interface, or for the first `n_rxq`; what arrives on
//! others goes to the kernel's stack. There are as many transmit queues as sockets.
//!
//! # What AF_XDP doesn't carry
//!
//! A socket receives frames and nothing beside them. On hardware that is all there is. Between the ends of
//! a veth pair, though, the kernel passes socket buffers whose checksum may be unfinished, whose VLAN
//! tag may be outside the frame, and which may be far longer than the MTU, and says so in places that
//! AF_XDP does not show.
//!
//! - Unfinished checksums are recognised (`unfinished.rs`), and on transmission left to the receiver where
//!   the kernel can say so (`metadata.rs`), else completed.
//! - In native mode the kernel has the other end of a veth cut its frames itself, as long as the program
//!   is there. What it has cut is put together again ([`crate::merge`]). In generic mode it does not, and longer
//!   frames are lost: `ethtool -K PEER tso off gso off`.
//! - Super-frames are sent by a packet socket, as type `afpacket` sends, since AF_XDP cannot say that a frame
//!   is to be cut. Both send within the system call, so the order stays.
//! - A tag outside of the frame is lost: `ethtool -K PEER txvlan off`.
//!
//! The type `system` takes `afpacket` for veth, which carries all that. Native mode on veth also wants as
//! many receive queues here as the peer has transmit queues.
//!
//! Frames longer than a chunk of the pool less 256 bytes (1792 by default) are dropped and counted, in
//! both directions.
//!
//! # Teardown
//!
//! When the port and its queues are dropped, the last of them takes the program off the interface,
//! closes the sockets and gives the kernel's chunks back to the pool. That takes some milliseconds, so
//! it should happen on a thread that may block. A process that dies, however, leaves nothing behind.

#![allow(unsafe_code)]

mod early_drop;
#[cfg(test)]
#[path = "../../tests/lab/mod.rs"]
mod lab;
mod metadata;
mod program;
mod queue;
mod ring;
mod socket;
mod syscall;
mod umem;
pub(crate) mod unfinished;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet::Pool;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::afpacket::{self, kernel_knows_uso};
use crate::kind::Kind;
use crate::link::Interface;
use crate::options::{Form, OptionDef, Options};
use crate::stats::PortCounters;
use crate::{EarlyDrop, Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrops, TxQueue, pools};
use early_drop::XdpDrop;
pub use program::trial;
use program::{Hook, Program};
use queue::{Receiver, Sender};
use socket::{Copying, RxRings, Socket, SocketConfig, TxRings};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["afxdp"],
    doc: "AF_XDP sockets on a kernel interface, which the kernel's stack then no longer sees frames of.",
    options: OPTIONS,
    open: |spec, options, _| {
        let port = open_with(&spec.name, &Settings::new(options)?, pools::frames()?)?;
        if let Some(mtu) = spec.mtu {
            port.set_mtu(mtu)?;
        }
        if let Some(mac) = spec.mac {
            port.set_mac(mac)?;
        }
        Ok(port)
    },
};

const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "xdp-mode",
        form: Form::Word(&["best-effort", "native-with-zerocopy", "native", "generic"]),
        doc: "Where frames are taken, the best that the interface can do by default.",
    },
    OptionDef {
        name: "n_rxq",
        form: Form::Number(1, 1024),
        doc: "Receive queues to take frames from, all by default.",
    },
    OptionDef {
        name: "n_rxq_desc",
        form: Form::Number(64, 32768),
        doc: "Descriptors of each receive queue, a power of two, 2048 by default.",
    },
    OptionDef {
        name: "n_txq_desc",
        form: Form::Number(64, 32768),
        doc: "Descriptors of each transmit queue, a power of two, 1024 by default.",
    },
    OptionDef {
        name: "use-need-wakeup",
        form: Form::Bool,
        doc: "Make system calls only when the kernel asks for them, true by default.",
    },
];

/// In front of each received frame, the kernel keeps this free (XDP_PACKET_HEADROOM).
const KERNEL_HEADROOM: usize = 256;

/// Ethernet header and one VLAN tag: what a frame has on top of the MTU.
const FRAME_OVERHEAD: usize = 18;

/// How long a closing port waits for frames that the kernel is still sending.
const DRAIN_PATIENCE: Duration = Duration::from_millis(20);

/// After this time, a device that has been told so no longer uses a closed socket's memory.
const GRACE: Duration = Duration::from_secs(1);

/// `options:xdp-mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The first of the following that works.
    #[default]
    BestEffort,
    /// In the driver, without a copy.
    NativeZeroCopy,
    /// In the driver, with a copy.
    Native,
    /// Behind the driver, with a copy.
    Generic,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::BestEffort => "best-effort",
            Mode::NativeZeroCopy => "native-with-zerocopy",
            Mode::Native => "native",
            Mode::Generic => "generic",
        }
    }

    /// What to try, in this order.
    fn attempts(self) -> &'static [(Hook, Copying)] {
        match self {
            // Native without a wish as to copies: the kernel takes zero-copy where it can.
            Mode::BestEffort => &[(Hook::Native, Copying::Auto), (Hook::Generic, Copying::Always)],
            Mode::NativeZeroCopy => &[(Hook::Native, Copying::Never)],
            Mode::Native => &[(Hook::Native, Copying::Always)],
            Mode::Generic => &[(Hook::Generic, Copying::Always)],
        }
    }
}

/// How to open a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where frames are taken.
    pub mode: Mode,
    /// How many receive queues; all without.
    pub rx_queues: Option<u32>,
    /// Descriptors of each receive queue: a power of two.
    pub rx_descriptors: u32,
    /// Descriptors of each transmit queue: a power of two.
    pub tx_descriptors: u32,
    /// Make system calls only when the kernel asks for them.
    pub need_wakeup: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::default(),
            rx_queues: None,
            rx_descriptors: 2048,
            tx_descriptors: 1024,
            need_wakeup: true,
        }
    }
}

impl Settings {
    /// Reads checked options.
    pub fn new(options: &Options) -> Result<Settings, Error> {
        let default = Settings::default();
        let descriptors = |name: &str, default: u32| match options.number(name) {
            None => Ok(default),
            Some(n) if n.is_power_of_two() => Ok(n as u32),
            Some(n) => {
                Err(options.error(name, format!("{n} should be a power of two, like {}", n.next_power_of_two())))
            }
        };
        let mode = match options.text("xdp-mode") {
            Some("native-with-zerocopy") => Mode::NativeZeroCopy,
            Some("native") => Mode::Native,
            Some("generic") => Mode::Generic,
            _ => Mode::BestEffort,
        };
        Ok(Settings {
            mode,
            rx_queues: options.number("n_rxq").map(|n| n as u32),
            rx_descriptors: descriptors("n_rxq_desc", default.rx_descriptors)?,
            tx_descriptors: descriptors("n_txq_desc", default.tx_descriptors)?,
            need_wakeup: options.flag("use-need-wakeup", default.need_wakeup),
        })
    }
}

/// Opens AF_XDP sockets on the interface `name`, with the pool of all frames.
pub fn open(name: &str, settings: &Settings) -> Result<Arc<dyn Port>, Error> {
    open_with(name, settings, pools::frames()?)
}

/// Opens AF_XDP sockets on the interface `name`, with `pool` as their UMEM. Its chunks have 2048 bytes,
/// or as many as a page.
pub fn open_with(name: &str, settings: &Settings, pool: &'static Pool) -> Result<Arc<dyn Port>, Error> {
    let interface = Arc::new(Interface::open(name)?);
    let channels = interface.channels();
    let count = settings.rx_queues.unwrap_or(channels.rx);
    if count > channels.rx {
        let problem = format!("{count} queues, but the interface has {}; see \"ethtool -L\"", channels.rx);
        return Err(Error::Option { port: name.into(), option: "n_rxq".into(), problem });
    }
    program::clear(&interface)?;
    if !interface.link().admin_up {
        // Drivers have no queues to bind to while they are down.
        interface.set_admin_up(true)?;
    }
    let promiscuous = promiscuous(&interface).map_err(|e| failure(name, ("make the interface promiscuous", e)))?;
    let (shared, mode) = open_best(&interface, count, settings, pool)?;
    let baseline = interface.facts().map(|facts| facts.stats).unwrap_or_default();
    let port = Afxdp {
        interface,
        tx_queues: count.min(channels.tx) as usize,
        shared,
        mode,
        counters: PortCounters::default(),
        baseline,
        _promiscuous: promiscuous,
    };
    if port.mtu() as usize + FRAME_OVERHEAD > port.shared.max_frame {
        tracing::warn!(
            port = name,
            mtu = port.mtu(),
            max = port.max_mtu(),
            "frames longer than a chunk will be dropped"
        );
    }
    Ok(Arc::new(port))
}

/// Tries the modes that are allowed, in order.
fn open_best(
    interface: &Arc<Interface>,
    count: u32,
    settings: &Settings,
    pool: &'static Pool,
) -> Result<(Arc<Binding>, Mode), Error> {
    let attempts = settings.mode.attempts();
    for (index, &(hook, copying)) in attempts.iter().enumerate() {
        match Binding::open(interface, count, settings, hook, copying, pool) {
            Ok(shared) => {
                let mode = match hook {
                    Hook::Generic => Mode::Generic,
                    Hook::Native if shared.queues.iter().all(|queue| queue.socket.zero_copy) => Mode::NativeZeroCopy,
                    Hook::Native => Mode::Native,
                };
                return Ok((Arc::new(shared), mode));
            }
            // Another mode needs the same permissions and the same queues.
            Err((what, e)) if index + 1 == attempts.len() || is_final(&e) => {
                return Err(failure(interface.name(), (what, e)));
            }
            Err((what, error)) => {
                tracing::info!(port = interface.name(), what, %error, "no native XDP, trying generic")
            }
        }
    }
    unreachable!("every mode has an attempt")
}

fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::EBUSY | libc::EAFNOSUPPORT | libc::ENODEV | libc::ENOBUFS)
    )
}

/// An AF_XDP port.
struct Afxdp {
    interface: Arc<Interface>,
    tx_queues: usize,
    shared: Arc<Binding>,
    mode: Mode,
    counters: PortCounters,
    /// The interface's counters when it was opened.
    baseline: Stats,
    /// Keeps the interface promiscuous.
    _promiscuous: OwnedFd,
}

/// What port and queues share, and release when the last of them is dropped. Nothing in it changes
/// but the rings, which are here while no queue object has them.
struct Binding {
    pool: &'static Pool,
    /// Longest frame in bytes that can be sent, which is the longest that can be received.
    max_frame: usize,
    /// At the other end is a stack that leaves checksums to its device.
    from_stack: bool,
    queues: Vec<Queue>,
    /// The program that is attached.
    dropping: Arc<XdpDrop>,
}

/// One socket and, while nobody uses them, its rings.
struct Queue {
    socket: Socket,
    rx: Mutex<Option<RxRings>>,
    tx: Mutex<Option<TxRings>>,
}

impl Binding {
    /// Attaches the program and opens `count` sockets.
    fn open(
        interface: &Arc<Interface>,
        count: u32,
        settings: &Settings,
        hook: Hook,
        copying: Copying,
        pool: &'static Pool,
    ) -> Result<Binding, socket::Failure> {
        let config = SocketConfig {
            copying,
            need_wakeup: settings.need_wakeup,
            rx_descriptors: settings.rx_descriptors,
            tx_descriptors: settings.tx_descriptors,
        };
        let program = Program::load(program::NAME, count).map_err(|e| ("load an XDP program", e))?;
        // Some drivers let zero-copy sockets be bound only when a program is there.
        let attachment = program.attach(interface, hook).map_err(|e| ("attach an XDP program", e))?;
        let max_frame = pool.chunk_size() - KERNEL_HEADROOM;
        let from_stack = interface.leads_to_stack();
        let dropping = Arc::new(XdpDrop::new(interface.name(), program, attachment));
        let mut shared = Binding { pool, max_frame, from_stack, queues: Vec::new(), dropping };
        for index in 0..count {
            let (socket, mut rx, tx) = Socket::open(interface.index(), index, pool, &config)?;
            rx.refill(pool);
            let queue = Queue { socket, rx: Mutex::new(Some(rx)), tx: Mutex::new(Some(tx)) };
            shared.queues.push(queue);
            let socket = shared.queues[index as usize].socket.as_fd();
            shared.dropping.redirect(index, socket).map_err(|e| ("lead frames to an AF_XDP socket", e))?;
        }
        Ok(shared)
    }

    /// What the kernel takes over. Sockets that copy can have a socket buffer's checksum left to whoever
    /// gets it; what a driver makes of such a request for its own buffers is not known here.
    fn offloads(&self) -> Offloads {
        let csum = self.queues.iter().all(|queue| queue.socket.has_metadata && !queue.socket.zero_copy);
        let tso = csum && self.from_stack;
        let uso = tso && kernel_knows_uso();
        Offloads { csum, tso4: tso, tso6: tso, uso, tunnels: false, datagrams: uso }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // 1. No more frames come in.
        self.dropping.detach();
        let mut later = Vec::new();
        for Queue { socket, rx, tx } in self.queues.drain(..) {
            let (Some(mut rx), Some(mut tx)) = (rx.into_inner(), tx.into_inner()) else { continue };
            // 2. What was accepted for transmission leaves, or stays in a ring that nobody reads.
            let start = Instant::now();
            tx.reap(self.pool);
            while tx.held.len() > tx.tx.pending() as usize && start.elapsed() < DRAIN_PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
                tx.reap(self.pool);
            }
            let sending = tx.held.len() > tx.tx.pending() as usize;
            let (mut chunks, sent) = (rx.held.take(), tx.held.take());
            chunks.extend(sent);
            // 3. The rings are mappings of the socket: it is closed only with the last of them.
            let zero_copy = socket.zero_copy;
            drop((rx, tx, socket));
            // 4. Without zero-copy, only code that holds the socket touches its memory: closing has
            //    waited for that. A device, or a socket buffer that refers to the pool, may be later.
            if zero_copy || sending {
                later.extend(chunks);
            } else {
                // SAFETY: the kernel held the chunks, and has let go of them with the socket.
                unsafe { self.pool.give_bulk(&chunks) };
            }
        }
        if !later.is_empty() {
            give_back_later(self.pool, later);
        }
    }
}

/// Gives chunks back when nothing can touch them any more. Where there is no thread for it, they are
/// lost to the pool, which is the safe way.
fn give_back_later(pool: &'static Pool, chunks: Vec<u32>) {
    let give_back = move || {
        std::thread::sleep(GRACE);
        // SAFETY: the kernel held the chunks for a socket that was closed a grace period ago.
        unsafe { pool.give_bulk(&chunks) };
    };
    if let Err(error) = std::thread::Builder::new().name("afxdp-reaper".into()).spawn(give_back) {
        tracing::warn!(%error, "no thread to give back the frames of a closed port");
    }
}

impl Afxdp {
    fn max_mtu(&self) -> usize {
        self.shared.max_frame - FRAME_OVERHEAD
    }
}

impl Port for Afxdp {
    fn name(&self) -> &str {
        self.interface.name()
    }

    fn kind(&self) -> &'static str {
        "afxdp"
    }

    fn mac(&self) -> Mac {
        self.interface.known().mac
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.interface.set_mac(mac)
    }

    fn mtu(&self) -> u32 {
        self.interface.known().mtu
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        if mtu as usize > self.max_mtu() {
            let problem =
                format!("{mtu} should be at most {}, so that a frame fits a chunk of the pool", self.max_mtu());
            return Err(Error::Option { port: self.name().into(), option: "mtu".into(), problem });
        }
        self.interface.set_mtu(mtu)
    }

    fn link(&self) -> Link {
        self.interface.link()
    }

    fn poll_mii(&self) -> Option<bool> {
        self.interface.poll_mii()
    }

    fn forget_mii(&self) {
        self.interface.forget_mii();
    }

    fn is_gone(&self) -> bool {
        self.interface.is_gone()
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.interface.set_admin_up(up)
    }

    fn stats(&self) -> Stats {
        let mut stats = self.counters.sum();
        for queue in &self.shared.queues {
            let Some(kernel) = queue.socket.statistics() else { continue };
            let full = kernel.rx_ring_full.unwrap_or(0);
            stats.rx_dropped += kernel.rx_dropped + full;
            stats.rx_over_err += full;
            stats.rx_errors += kernel.rx_invalid_descs;
            stats.tx_errors += kernel.tx_invalid_descs;
        }
        let dropped = self.shared.dropping.total();
        stats.rx_packets += dropped.packets;
        stats.rx_bytes += dropped.bytes;
        // What only the hardware can know.
        if let Ok(facts) = self.interface.facts() {
            let (now, then) = (facts.stats, self.baseline);
            stats.rx_crc_err += now.rx_crc_err.saturating_sub(then.rx_crc_err);
            stats.rx_frame_err += now.rx_frame_err.saturating_sub(then.rx_frame_err);
            stats.collisions += now.collisions.saturating_sub(then.collisions);
        }
        stats
    }

    fn tx_drops(&self) -> TxDrops {
        self.counters.tx_drops()
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.counters.tx_queue_drops()
    }

    fn features(&self) -> Features {
        self.interface.features()
    }

    fn offloads(&self) -> Offloads {
        self.shared.offloads()
    }

    fn pays_by_frame(&self) -> bool {
        self.shared.from_stack
    }

    fn ifindex(&self) -> Option<u32> {
        (!self.is_gone()).then(|| self.interface.index())
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        let mut status = vec![
            ("xdp-mode", self.mode.name().to_string()),
            ("n_rxq", self.shared.queues.len().to_string()),
            ("n_txq", self.tx_queues.to_string()),
        ];
        status.extend(self.interface.driver().status());
        status.extend(self.shared.dropping.rules().map(|rules| ("ingress-offloaded-rules", rules.to_string())));
        status
    }

    fn early_drop(&self) -> Option<Arc<dyn EarlyDrop>> {
        Some(self.shared.dropping.clone())
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        let queues = 0..self.shared.queues.len();
        let receiver = |index| Receiver::new(&self.shared, index, self.counters.rx(index));
        queues.filter_map(receiver).map(|receiver| Box::new(receiver) as Box<dyn RxQueue>).collect()
    }

    fn max_tx_queues(&self) -> usize {
        self.tx_queues
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        let unsupported = |what| Error::Unsupported { port: self.name().into(), what };
        if index >= self.tx_queues {
            return Err(unsupported("a transmit queue beyond max_tx_queues"));
        }
        let large = match self.shared.offloads().tso4 {
            true => {
                let (memory, counters) = (self.shared.pool.memory(), self.counters.tx(index));
                Some(afpacket::super_frames(&self.interface, self.shared.offloads(), memory, counters)?)
            }
            false => None,
        };
        match Sender::new(&self.shared, index, self.counters.tx(index), large) {
            Some(sender) => Ok(Box::new(sender)),
            None => Err(unsupported("a second owner of a transmit queue")),
        }
    }
}

/// Has the interface receive frames for any address, for as long as the descriptor is open.
fn promiscuous(interface: &Interface) -> io::Result<OwnedFd> {
    // Protocol 0 receives nothing.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let request = libc::packet_mreq {
        mr_ifindex: interface.index() as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the option takes a `packet_mreq`, of which this is address and length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            std::ptr::from_ref(&request).cast(),
            size_of_val(&request) as u32,
        )
    };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

fn failure(port: &str, (what, source): socket::Failure) -> Error {
    let hint = source.raw_os_error().and_then(hint);
    Error::System { port: port.into(), what: what.into(), source, hint }
}

/// What would help, by the system's error number.
fn hint(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EPERM | libc::EACCES => {
            "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (CAP_SYS_ADMIN before Linux 5.8); run as root"
        }
        libc::EAFNOSUPPORT | libc::ENOSYS => "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use type=afpacket",
        libc::EBUSY => "another process has an AF_XDP socket on this queue or an XDP program on this interface",
        libc::ENOBUFS | libc::ENOMEM => "raise the limit of locked memory (ulimit -l, LimitMEMLOCK= in systemd)",
        libc::EOPNOTSUPP => "the driver doesn't support this mode; use xdp-mode=best-effort or generic",
        libc::ERANGE => "the MTU is too large for XDP in the driver; lower it, or use xdp-mode=generic",
        libc::ENOSPC => "the interface has fewer receive queues than XDP in its driver needs; see \"ethtool -L\"",
        libc::ENODEV => "the interface has been deleted",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::lab::Lab;
    use super::*;

    #[test]
    fn stale_program_of_a_crashed_run_is_taken_off() {
        let lab = Lab::new("stale", "");
        for hook in [Hook::Native, Hook::Generic] {
            let interface = Arc::new(Interface::open("a").unwrap());
            let program = Program::load(program::NAME, 1).unwrap();
            let attachment = program.attach_by_rtnetlink(&interface, hook).unwrap();
            std::mem::forget(attachment);
            assert_ne!(interface.facts().unwrap().xdp.program, 0);
            drop(open_with("a", &Settings::default(), lab.pool(1024)).unwrap());
            assert_eq!(interface.facts().unwrap().xdp.program, 0);
        }
    }

    #[test]
    fn attachment_by_rtnetlink_comes_off_with_its_owner() {
        let _lab = Lab::new("rtnl", "");
        let interface = Arc::new(Interface::open("a").unwrap());
        for hook in [Hook::Native, Hook::Generic] {
            let program = Program::load(program::NAME, 1).unwrap();
            let attachment = program.attach_by_rtnetlink(&interface, hook).unwrap();
            assert_ne!(interface.facts().unwrap().xdp.program, 0);
            drop(attachment);
            assert_eq!(interface.facts().unwrap().xdp.program, 0);
        }
    }

    #[test]
    fn somebody_elses_program_is_left_alone() {
        let lab = Lab::new("other", "");
        let interface = Arc::new(Interface::open("a").unwrap());
        let other = Program::load("firewall", 1).unwrap();
        let _attachment = other.attach_by_rtnetlink(&interface, Hook::Generic).unwrap();
        let before = interface.facts().unwrap().xdp;
        let error = open_with("a", &Settings::default(), lab.pool(1024)).unwrap_err().to_string();
        assert!(error.contains("\"firewall\" is attached already") && error.contains("xdp off"), "{error}");
        assert_eq!(interface.facts().unwrap().xdp, before);
    }
}
