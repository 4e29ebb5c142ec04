//! TAP ports: a network interface that this process makes and whose other end it is. Each bridge has
//! one of its own name, its LOCAL port.
//!
//! Frames pass with the header of [`crate::vnet`] (IFF_VNET_HDR), so that the host's stack leaves
//! checksums unfinished and sends up to 64 KiB at once (TUNSETOFFLOAD), and takes the same from us.
//! The device is not persistent: it disappears with its last descriptor.
//!
//! A frame is read into two buffers by one readv(2): its beginning into a usual buffer, which is all
//! of it for most, and the rest into a spare one of 64 KiB. Only a frame that reaches the spare buffer
//! costs it, and the copy of its beginning.
//!
//! The device may be moved to another network namespace and be renamed, as who gives it to a container
//! does: the descriptor stays good, and the interface is found again by it.
//!
//! Sharing between threads: a descriptor for each receive queue. All transmit queues write to the
//! first, which the kernel allows without a lock.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use libc::{c_int, c_uint};
use packet::buffer::heap::HEADROOM;
use packet::{Batch, Memory, Packet, Time};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::kind::{Env, Kind};
use crate::link::{Facts, Interface, Ipv4Config};
use crate::options::{Form, OptionDef, Options};
use crate::spec::PortSpec;
use crate::stats::{PortCounters, RxCounters, TxCounters};
use crate::sys::system;
use crate::virtual_port::{MAX_FRAME, fits};
use crate::{Error, Features, Link, Mac, Offloads, Port, RxQueue, Stats, TxDrop, TxDrops, TxQueue, offload, vnet};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["tap", "internal"],
    doc: "A network interface of the host, made and removed with the port.",
    options: &[OptionDef { name: "n_rxq", form: Form::Number(1, 64), doc: "Receive queues, 1 by default." }],
    open: |spec, options, env| Ok(Tap::open(spec, options, env)?),
};

/// Bytes of a frame that go to its first buffer: with the headroom they fit a chunk of 2 KiB.
const FIRST: usize = 1664;

struct Tap {
    name: String,
    kind: &'static str,
    /// As it was found last.
    interface: Mutex<Arc<Interface>>,
    counters: PortCounters,
    /// The MTU, refreshed whenever the management thread asks for the state of the port.
    mtu: Arc<AtomicU32>,
    fds: Vec<Arc<OwnedFd>>,
    rx: Mutex<Vec<Rx>>,
    offloads: Offloads,

    memory: &'static Memory,
}

impl Tap {
    fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<Tap>, Error> {
        let port = spec.name.as_str();
        let queues = options.number("n_rxq").unwrap_or(1) as usize;
        let fds = (0..queues).map(|_| attach(port, queues > 1).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let offloads = set_offloads(port, &fds[0])?;
        let interface = Interface::open(port)?;
        interface.set_as_asked(port, spec.mac, spec.mtu);
        // It stays down until an administrator sets it up, as in OVS: until then the host has no part in what
        // the bridge floods, and no address on it.
        let mtu = Arc::new(AtomicU32::new(interface.known().mtu));
        let counters = PortCounters::default();
        let rx = fds.iter().enumerate();
        let header = header_len(offloads);
        let rx = rx.map(|(i, fd)| Rx::new(fd.clone(), header, counters.rx(i), env)).collect();
        Ok(Arc::new(Tap {
            name: port.into(),
            kind: KIND.names.iter().find(|k| **k == spec.kind).unwrap_or(&"tap"),
            interface: Mutex::new(Arc::new(interface)),
            counters,
            mtu,
            fds,
            rx: Mutex::new(rx),
            offloads,
            memory: env.memory,
        }))
    }

    /// What is known of the interface now.
    fn facts(&self) -> Arc<Facts> {
        let facts = self.interface().known();
        self.mtu.store(facts.mtu, Relaxed);
        facts
    }

    /// The interface, wherever it is now.
    fn interface(&self) -> Arc<Interface> {
        let mut interface = self.interface.lock();
        if interface.is_gone()
            && let Some(found) = find(&self.fds[0])
        {
            tracing::info!("{}: is {} in another network namespace now", self.name, found.name());
            *interface = Arc::new(found);
        }
        interface.clone()
    }
}

/// The device of a descriptor, by its present name in its present namespace.
fn find(fd: &OwnedFd) -> Option<Interface> {
    /// `_IO('T', 227)`, since Linux 5.2.
    const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
    // SAFETY: all zero is a valid `ifreq`, which the ioctl fills.
    let (result, request) = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        (libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF as libc::Ioctl, &mut request), request)
    };
    // SAFETY: the ioctl takes no argument, and its answer is a new descriptor.
    let namespace = unsafe {
        match libc::ioctl(fd.as_raw_fd(), TUNGETDEVNETNS) {
            namespace if namespace >= 0 && result == 0 => OwnedFd::from_raw_fd(namespace),
            _ => return None,
        }
    };
    let name: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    let name = String::from_utf8(name).ok()?;
    // What an interface is asked by belongs to the namespace of the thread that makes it.
    let open = move || {
        // SAFETY: the call has no memory arguments.
        let moved = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } == 0;
        moved.then(|| Interface::open(&name).ok()).flatten()
    };
    std::thread::Builder::new().name("netns".into()).spawn(open).ok()?.join().ok()?
}

/// Makes the device, or adds a queue to it.
fn attach(port: &str, multi_queue: bool) -> Result<OwnedFd, Error> {
    let invalid = io::Error::from_raw_os_error(libc::EINVAL);
    if port.is_empty() || port.len() >= libc::IFNAMSIZ || port.bytes().any(|b| b == 0 || b == b'/' || b == b'%') {
        let hint = Some("a name of an interface has 1 to 15 bytes, without / and %");
        return Err(Error::System { port: port.into(), what: "name a tap device so".into(), source: invalid, hint });
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|e| Error::System {
        port: port.into(),
        what: "open /dev/net/tun".into(),
        source: e.into(),
        hint: Some("run as root or with CAP_NET_ADMIN, and load the module tun"),
    })?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    // SAFETY: all zero is a valid `ifreq`; the name was checked to fit with its terminating zero. The
    // ioctl reads and writes one `ifreq`.
    let result = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(port.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &mut request)
    };
    if result == 0 {
        return Ok(fd);
    }
    let source = io::Error::last_os_error();
    let hint = match source.raw_os_error() {
        Some(libc::EBUSY) => Some("another process holds a tap device of this name"),
        Some(libc::EINVAL) => Some("there is an interface of this name already that is no tap device"),
        Some(libc::EPERM) => Some("run as root or with CAP_NET_ADMIN"),
        _ => None,
    };
    Err(Error::System { port: port.into(), what: "make the tap device".into(), source, hint })
}

/// Bytes of the vnet header.
fn header_len(offloads: Offloads) -> usize {
    if offloads.tunnels { vnet::TUNNEL_LEN } else { vnet::LEN }
}

/// Segments in a tunnel over UDP may be handed over.
const TUN_F_UDP_TUNNEL_GSO: c_uint = 0x80;

/// Tells the kernel which unfinished frames it may hand us, and takes as many from us. UDP segmentation is among them since Linux
/// 6.2, and that of what is in a tunnel since 6.17.
fn set_offloads(port: &str, fd: &OwnedFd) -> Result<Offloads, Error> {
    let set = |offloads: c_uint| {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        match unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let set_header = |len: usize| {
        let len = len as c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int.
        match unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &len) } {
            0 => Ok(()),
            _ => Err(system(port, "set the size of the vnet header", io::Error::last_os_error())),
        }
    };
    let basic = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let uso = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let all = Offloads { csum: true, tso4: true, tso6: true, uso: true, tunnels: true, datagrams: false };
    set_header(vnet::TUNNEL_LEN)?;
    if set(basic | uso | TUN_F_UDP_TUNNEL_GSO).is_ok() {
        return Ok(all);
    }
    // The vnet header has 10 bytes unless told otherwise.
    set_header(vnet::LEN)?;
    if set(basic | uso).is_ok() {
        return Ok(Offloads { tunnels: false, ..all });
    }
    let offloads = Offloads { uso: false, tunnels: false, ..all };
    set(basic).map(|()| offloads).map_err(|e| system(port, "set the offloads of the tap device", e))
}

impl Port for Tap {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn mac(&self) -> Mac {
        self.facts().mac
    }

    fn set_ipv4(&self, config: &Ipv4Config, old: Option<&Ipv4Config>) -> Result<(), Error> {
        self.interface().set_ipv4(config, old)
    }

    fn set_mac(&self, mac: Mac) -> Result<(), Error> {
        self.interface().set_mac(mac)
    }

    fn mtu(&self) -> u32 {
        self.facts();
        self.mtu.load(Relaxed)
    }

    fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.interface().set_mtu(mtu)?;
        self.facts();
        Ok(())
    }

    fn link(&self) -> Link {
        self.interface().link()
    }

    fn poll_mii(&self) -> Option<bool> {
        self.interface().poll_mii()
    }

    fn forget_mii(&self) {
        self.interface().forget_mii();
    }

    /// Deleted: one that was moved to another namespace is still at the other end of the descriptors.
    fn is_gone(&self) -> bool {
        self.interface().is_gone()
    }

    fn set_admin_up(&self, up: bool) -> Result<(), Error> {
        self.interface().set_admin_up(up)
    }

    fn stats(&self) -> Stats {
        self.counters.sum()
    }

    fn tx_drops(&self) -> TxDrops {
        self.counters.tx_drops()
    }

    fn tx_queue_drops(&self) -> Vec<TxDrops> {
        self.counters.tx_queue_drops()
    }

    fn features(&self) -> Features {
        self.interface().features()
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn pays_by_frame(&self) -> bool {
        true
    }

    fn ifindex(&self) -> Option<u32> {
        let interface = self.interface();
        (!interface.is_gone()).then(|| interface.index())
    }

    fn status(&self) -> Vec<(&'static str, String)> {
        self.interface().driver().status().collect()
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        self.rx.lock().drain(..).map(|rx| Box::new(rx) as Box<dyn RxQueue>).collect()
    }

    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }

    fn tx_queue(&self, index: usize) -> Result<Box<dyn TxQueue>, Error> {
        let (fd, mtu, counters) = (self.fds[0].clone(), self.mtu.clone(), self.counters.tx(index));
        Ok(Box::new(Tx { fd, mtu, offloads: self.offloads, memory: self.memory, counters }))
    }
}

struct Rx {
    fd: Arc<OwnedFd>,
    /// Bytes of the vnet header.
    header_len: usize,
    counters: Arc<RxCounters>,
    memory: &'static Memory,
    large: &'static Memory,
    /// An empty packet of `memory`, and one of `large` with room for a whole frame: what the next
    /// frame is read into.
    first: Option<Packet>,
    spare: Option<Packet>,
    /// The device has been deleted; its descriptor would report an error for ever.
    gone: bool,
}

impl Rx {
    fn new(fd: Arc<OwnedFd>, header_len: usize, counters: Arc<RxCounters>, env: &Env) -> Rx {
        Rx { fd, header_len, counters, memory: env.memory, large: env.large, first: None, spare: None, gone: false }
    }

    /// Reads one frame. `None`: there is none, or it can't be taken now.
    fn read(&mut self) -> io::Result<Packet> {
        let no_buffer = || io::Error::from_raw_os_error(libc::ENOBUFS);
        let mut first = match self.first.take() {
            Some(packet) => packet,
            None => (self.memory.allocate)(self.memory, HEADROOM, FIRST).ok_or_else(no_buffer)?,
        };
        let mut spare = match self.spare.take() {
            Some(packet) => packet,
            None => (self.large.allocate)(self.large, HEADROOM + FIRST, MAX_FRAME).ok_or_else(no_buffer)?,
        };
        let mut header = [0; vnet::TUNNEL_LEN];
        let result = {
            let mut parts = [
                IoSliceMut::new(&mut header[..self.header_len]),
                IoSliceMut::new(first.push_back(FIRST).ok_or_else(no_buffer)?),
                IoSliceMut::new(spare.push_back(MAX_FRAME).ok_or_else(no_buffer)?),
            ];
            rustix::io::readv(&self.fd, &mut parts)
        };
        let len = match result {
            Ok(n) => n.saturating_sub(self.header_len),
            Err(error) => {
                (self.first, self.spare) = (emptied(first), emptied(spare));
                return Err(error.into());
            }
        };
        let mut packet = if len <= FIRST {
            self.spare = emptied(spare);
            first.truncate(len);
            first
        } else {
            spare.truncate(len - FIRST);
            spare.push_front(FIRST).ok_or_else(no_buffer)?.copy_from_slice(first.data());
            self.first = emptied(first);
            spare
        };
        *packet.offload_mut() = vnet::decode_tunnelled(&header);
        Ok(packet)
    }
}

fn emptied(mut packet: Packet) -> Option<Packet> {
    packet.truncate(0);
    Some(packet)
}

impl RxQueue for Rx {
    fn receive(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let (mut count, mut bytes) = (0, 0);
        while !batch.is_full() && !self.gone {
            match self.read() {
                Ok(packet) if packet.len() >= 14 => {
                    count += 1;
                    bytes += packet.len();
                    batch.push(packet);
                }
                Ok(_) => {
                    self.counters.errors.add(1);
                    self.counters.frame_err.add(1);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    // EBADFD: deleted under our hands. Without a buffer, the frame waits in the kernel.
                    self.gone = e.raw_os_error() == Some(libc::EBADFD);
                    self.counters.errors.add(1);
                    break;
                }
            }
        }
        self.counters.passed(count, bytes);
        count
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.gone).then(|| self.fd.as_fd())
    }

    fn can_park(&self) -> bool {
        !self.gone
    }
}

struct Tx {
    fd: Arc<OwnedFd>,
    mtu: Arc<AtomicU32>,
    offloads: Offloads,
    /// Where segments are made.
    memory: &'static Memory,
    counters: Arc<TxCounters>,
}

impl Tx {
    fn send(&self, packet: &Packet, mtu: usize) -> bool {
        if !packet.offload().is_gso() && !fits(packet.data(), mtu) {
            self.counters.dropped(TxDrop::of_length(packet.data()), 1);
            return false;
        }
        let tunnel = if self.offloads.tunnels { offload::tunnel_of(packet) } else { None };
        let header = vnet::encode_tunnelled(packet.offload(), tunnel);
        let header = &header[..header_len(self.offloads)];
        loop {
            match rustix::io::writev(&self.fd, &[IoSlice::new(header), IoSlice::new(packet.data())]) {
                Ok(_) => {
                    self.counters.passed(1, packet.len());
                    return true;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    self.counters.dropped(why(errno), 1);
                    return false;
                }
            }
        }
    }
}

/// Why the kernel does not take a frame.
fn why(errno: rustix::io::Errno) -> TxDrop {
    use rustix::io::Errno;
    match errno {
        Errno::AGAIN => TxDrop::QueueFull,
        // The interface is down; it was deleted.
        Errno::IO | Errno::BADFD => TxDrop::Down,
        _ => TxDrop::Refused,
    }
}

impl TxQueue for Tx {
    fn transmit(&mut self, batch: &mut Batch, _now: Time) -> usize {
        let mtu = self.mtu.load(Relaxed) as usize;
        let mut taken = 0;
        for packet in batch.drain(..) {
            let mut all = true;
            match offload::complete(packet, self.offloads, self.memory, &mut |p| all &= self.send(&p, mtu)) {
                Ok(()) => taken += usize::from(all),
                Err(error) => self.counters.dropped(error.into(), 1),
            }
        }
        taken
    }

    fn needs_housekeeping(&self) -> bool {
        false
    }
}
