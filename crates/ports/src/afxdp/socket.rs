//! One AF_XDP socket: bound to one queue of one interface, with its four rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use packet::Pool;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpStatistics, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, sockopt};

use super::metadata;
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::Held;

/// How long a queue may be taken by a socket that was closed a moment ago: the kernel lets go of a
/// closed socket's queue only after a grace period.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);

/// What to ask of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Zero-copy where the driver can, else copies.
    Auto,
    /// Zero-copy or failure.
    Never,
    /// Copies in any case.
    Always,
}

/// How to set a socket up.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Zero-copy or not.
    pub copying: Copying,
    /// Have the kernel say when it needs a system call, instead of one for each burst.
    pub need_wakeup: bool,
    /// Descriptors of the receive and fill rings: a power of two.
    pub rx_descriptors: u32,
    /// Descriptors of the transmit and completion rings: a power of two.
    pub tx_descriptors: u32,
}

/// The rings of one direction of travel, and what the kernel holds for them.
pub struct RxRings {
    /// Chunks that the kernel may put frames into.
    pub fill: Producer<u64>,
    /// Frames that have arrived.
    pub rx: Consumer<Descriptor>,
    /// Chunks in either ring, or on their way through the kernel.
    pub held: Held,
}

/// The rings of the other direction.
pub struct TxRings {
    /// Frames to be sent.
    pub tx: Producer<Descriptor>,
    /// Frames that were sent.
    pub completion: Consumer<u64>,
    /// Chunks in either ring, or on their way through the kernel.
    pub held: Held,
    /// Bytes in front of each frame that are the kernel's to read.
    pub metadata: usize,
}

/// A bound socket.
pub struct Socket {
    fd: OwnedFd,
    /// The driver's own buffers are the UMEM's.
    pub zero_copy: bool,
    /// Frames can be sent with requests (see [`super::metadata`]).
    pub has_metadata: bool,
}

/// What failed, and why.
pub type Failure = (&'static str, io::Error);

impl Socket {
    /// Opens a socket on queue `queue` of an interface, with `pool` as its UMEM.
    pub fn open(
        ifindex: u32,
        queue: u32,
        pool: &'static Pool,
        config: &SocketConfig,
    ) -> Result<(Socket, RxRings, TxRings), Failure> {
        let failed = |what| move |e: Errno| (what, io::Error::from(e));
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(failed("open an AF_XDP socket"))?;
        // Unknown before Linux 6.8.
        let has_metadata = register_umem(&fd, pool, true).is_ok();
        if !has_metadata {
            register_umem(&fd, pool, false).map_err(failed("register the pool as UMEM"))?;
        }

        let (rx_size, tx_size) = (config.rx_descriptors, config.tx_descriptors);
        sockopt::set_xdp_umem_fill_ring_size(&fd, rx_size).map_err(failed("set up the fill ring"))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, tx_size).map_err(failed("set up the completion ring"))?;
        sockopt::set_xdp_rx_ring_size(&fd, rx_size).map_err(failed("set up the receive ring"))?;
        sockopt::set_xdp_tx_ring_size(&fd, tx_size).map_err(failed("set up the transmit ring"))?;
        let at = sockopt::xdp_mmap_offsets(&fd).map_err(failed("ask for the layout of rings"))?;

        let unmapped = |e| ("map the rings", e);
        let socket = fd.as_fd();
        let rx = RxRings {
            fill: Producer::map(socket, XDP_UMEM_PGOFF_FILL_RING, &at.fr, rx_size).map_err(unmapped)?,
            rx: Consumer::map(socket, XDP_PGOFF_RX_RING, &at.rx, rx_size).map_err(unmapped)?,
            held: Held::new(pool),
        };
        let tx = TxRings {
            tx: Producer::map(socket, XDP_PGOFF_TX_RING, &at.tx, tx_size).map_err(unmapped)?,
            completion: Consumer::map(socket, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, tx_size).map_err(unmapped)?,
            held: Held::new(pool),
            metadata: if has_metadata { metadata::LEN } else { 0 },
        };
        bind_patiently(&fd, ifindex, queue, config).map_err(failed("bind an AF_XDP socket to a queue"))?;
        let options = sockopt::xdp_options(&fd).map_err(failed("ask for the socket's mode"))?;
        let zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        Ok((Socket { fd, zero_copy, has_metadata }, rx, tx))
    }

    /// The kernel's counters.
    pub fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.fd).ok()
    }

    /// Has the kernel look at the fill ring.
    #[cold]
    pub fn wake_rx(&self) {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        // Nothing to be done about an error: the next burst tries again.
        let _ = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    }

    /// Has the kernel look at the transmit ring. Without zero-copy, this call sends the frames.
    pub fn wake_tx(&self) -> Result<(), Errno> {
        rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT).map(|_| ())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn register_umem(fd: &OwnedFd, pool: &'static Pool, has_metadata: bool) -> Result<(), Errno> {
    let umem = XdpUmemReg {
        addr: pool.base().as_ptr().expose_provenance() as u64,
        len: pool.size() as u64,
        chunk_size: pool.chunk_size() as u32,
        // On top of the kernel's own XDP_PACKET_HEADROOM of 256 bytes.
        headroom: 0,
        flags: XdpUmemRegFlags::from_bits_retain(if has_metadata { metadata::UMEM_FLAG } else { 0 }),
        tx_metadata_len: if has_metadata { metadata::LEN as u32 } else { 0 },
    };
    sockopt::set_xdp_umem_reg(fd, umem)
}

fn bind_patiently(fd: &OwnedFd, ifindex: u32, queue: u32, config: &SocketConfig) -> Result<(), Errno> {
    let mut flags = match config.copying {
        Copying::Auto => SocketAddrXdpFlags::empty(),
        Copying::Never => SocketAddrXdpFlags::XDP_ZEROCOPY,
        Copying::Always => SocketAddrXdpFlags::XDP_COPY,
    };
    flags.set(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, config.need_wakeup);
    let address = SocketAddrXdp::new(flags, ifindex, queue);
    let start = Instant::now();
    loop {
        match bind(fd, &address) {
            Err(Errno::BUSY) if start.elapsed() < BUSY_PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}
