//! Packet sockets and their rings (packet(7), Documentation/networking/packet_mmap.rst).
#![allow(unsafe_code)]

use std::io;
use std::mem::{ManuallyDrop, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void};

use super::background;
use crate::Error;
use crate::sys::system;
use crate::vnet;

/// Bytes that a slot needs beside the frame: `struct tpacket2_hdr`, `struct sockaddr_ll`, the vnet
/// header and alignment (`tpacket_rcv` in net/packet/af_packet.c).
const SLOT_OVERHEAD: usize = 128;

/// Largest slot. Longer frames come by recvmsg.
const MAX_SLOT: usize = 16 * 1024;

/// The unit in which a ring is allocated.
const BLOCK: usize = 65536;

/// What frames that don't fit their slot may take up while they wait.
const RECEIVE_BUFFER: c_int = 16 << 20;

/// What frames may take up while they wait at a socket without a ring: a few thousand of them, so that those of a busy
/// port do not grow old before it has a ring.
const PLAIN_BUFFER: c_int = 4 << 20;

/// What sent frames may take up until they are consumed.
const SEND_BUFFER: c_int = 4 << 20;

/// Bytes of a slot for frames up to `mtu`, and blocks that so many of them take.
fn dimensions(slots: usize, mtu: u32) -> (usize, usize) {
    let slot = (mtu as usize + 14 + 8 + SLOT_OVERHEAD).next_power_of_two().clamp(2048, MAX_SLOT);
    (slot, (slots * slot).div_ceil(BLOCK))
}

/// Bytes of memory that a ring takes.
pub fn ring_size(slots: usize, mtu: u32) -> usize {
    dimensions(slots, mtu).1 * BLOCK
}

/// A packet socket. It is closed in the background.
pub struct Socket(ManuallyDrop<OwnedFd>);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> c_int {
        self.0.as_raw_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // SAFETY: nobody uses the field after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Err(job) = background::submit(Box::new(move || drop(fd))) {
            job();
        }
    }
}

/// A receiving socket and its ring.
pub struct RxSocket {
    socket: Arc<Socket>,
    map: NonNull<u8>,
    map_len: usize,
    slot: usize,
    slots: usize,
}

// SAFETY: the mapping lives as long as this value. Its bytes are only touched through `slot`, whose
// caller is the one owner of the queue.
unsafe impl Send for RxSocket {}
// SAFETY: the bytes of the mapping are only touched through `slot`, by the one owner of the queue; everything
// else is system calls on the descriptor, which any thread may make.
unsafe impl Sync for RxSocket {}

/// A frame in a slot of the ring, which it occupies until [`Slot::release`].
pub struct Slot<'a> {
    status: &'a AtomicU32,
    flags: u32,
    header: libc::tpacket2_hdr,
    bytes: &'a [u8],
}

/// Which of an interface's sockets gets a frame, where several receive from it as one.
#[derive(Clone, Copy)]
pub enum Share {
    /// Each gets some of the flows.
    ByFlow,
    /// One gets all: the first, until [`Socket::direct_to_second`].
    ToOne,
}

/// Receiving.
impl Socket {
    /// Opens a socket in this thread's network namespace that receives nothing yet.
    pub fn new(port: &str) -> Result<Socket, Error> {
        let socket = Socket(ManuallyDrop::new(socket(port)?));
        set_option(port, &socket, libc::PACKET_VNET_HDR, "PACKET_VNET_HDR", &1)?;
        Ok(socket)
    }

    /// Prepares for reception without a ring.
    pub fn prepare_plain(&self, port: &str) -> Result<(), Error> {
        set_option(port, self, libc::PACKET_AUXDATA, "PACKET_AUXDATA", &1)?;
        set_option(port, self, libc::PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING", &1)?;
        set_buffer(self, libc::SO_RCVBUFFORCE, PLAIN_BUFFER);
        Ok(())
    }

    /// Receives everything that arrives at the interface from now on.
    pub fn listen(&self, port: &str, ifindex: u32) -> Result<(), Error> {
        bind(port, self, libc::ETH_P_ALL as u16, ifindex)?;
        let membership = libc::packet_mreq {
            mr_ifindex: ifindex as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(port, self, libc::PACKET_ADD_MEMBERSHIP, "PACKET_ADD_MEMBERSHIP", &membership)
    }

    /// Has the frames of an interface shared with others that join the group that is returned: a new one, or `group`.
    pub fn join(&self, port: &str, share: Share, group: Option<u16>) -> Result<u16, Error> {
        // Outgoing frames are to be ignored by the group, too: the sockets' own flag does not count
        // once they are in one.
        let mode = libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING
            | match share {
                Share::ByFlow => libc::PACKET_FANOUT_HASH,
                Share::ToOne => libc::PACKET_FANOUT_CBPF,
            };
        let value = match group {
            Some(group) => mode << 16 | u32::from(group),
            None => (mode | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
        };
        set_option(port, self, libc::PACKET_FANOUT, "PACKET_FANOUT", &value)?;
        let value: u32 = get_option(self, libc::SOL_PACKET, libc::PACKET_FANOUT)
            .map_err(|e| system(port, "ask for the PACKET_FANOUT group", e))?;
        Ok(value as u16)
    }

    /// From the next frame on, the second socket of a group [to one](Share::ToOne) gets them; when there is but
    /// one left, that one.
    pub fn direct_to_second(&self) -> io::Result<()> {
        // The program's answer is a place in the group, modulo the number of sockets in it.
        self.set_program(libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, 1)
    }

    /// Lets no frame in.
    pub fn mute(&self) -> io::Result<()> {
        self.set_program(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, 0)
    }

    /// Lets frames in again.
    pub fn unmute(&self) -> io::Result<()> {
        set_raw(self, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// Sets a program for packets that always returns `answer`.
    fn set_program(&self, level: c_int, option: c_int, answer: u32) -> io::Result<()> {
        let mut program = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: answer }];
        let program = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
        // The kernel copies what the pointer leads to, which outlives the call.
        set_raw(self, level, option, &program)
    }

    /// Whether the other one was opened in the same network namespace. Kernels before 5.14 can't say.
    pub fn shares_namespace(&self, other: &Socket) -> bool {
        const SO_NETNS_COOKIE: c_int = 71;
        let cookie = |socket| get_option::<u64>(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE).ok();
        cookie(self) == cookie(other)
    }

    /// Receives a frame: the vnet header, and as much of the frame as there is room for in the parts. `None`: there
    /// is none.
    pub fn receive(&self, header: &mut [u8; vnet::LEN], frame: [&mut [u8]; 2]) -> io::Result<Option<Received>> {
        let [first, second] = frame;
        let mut parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
            libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: first.len() },
            libc::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: second.len() },
        ];
        let mut control = Control([0; CONTROL]);
        // SAFETY: all zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL;
        // SAFETY: the message points to exclusive buffers of the lengths it says.
        let n = unsafe { libc::recvmsg(self.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        };
        let cut = message.msg_flags & libc::MSG_TRUNC != 0;
        Ok(Some(Received { len: n.saturating_sub(vnet::LEN), cut, vlan: auxiliary_vlan(&message) }))
    }

    /// Frames that found no room since the last call.
    pub fn take_drops(&self) -> u32 {
        get_option(self, libc::SOL_PACKET, libc::PACKET_STATISTICS).map_or(0, |s: libc::tpacket_stats| s.tp_drops)
    }

    /// The error that waits at the socket, if any. Taking it lets the descriptor sleep again.
    pub fn take_error(&self) -> Option<io::Error> {
        let code: c_int = get_option(self, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        (code != 0).then(|| io::Error::from_raw_os_error(code))
    }
}

#[cfg(test)]
impl Socket {
    /// Something to hold in place of a socket.
    pub fn unconnected() -> Socket {
        Socket(ManuallyDrop::new(std::fs::File::open("/dev/null").unwrap().into()))
    }
}

/// What [`Socket::receive`] has found.
pub struct Received {
    /// Bytes of frame.
    pub len: usize,
    /// There was not room for all of it.
    pub cut: bool,
    /// The VLAN tag that the kernel has taken out of the frame: TPID and TCI.
    pub vlan: Option<(u16, u16)>,
}

/// Room for `struct tpacket_auxdata` as a control message (cmsg(3)).
// SAFETY: an arithmetic expression, without any condition.
const CONTROL: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::tpacket_auxdata>() as u32) } as usize;

#[repr(align(8))]
struct Control([u8; CONTROL]);

/// The tag that the control message of a received frame tells.
fn auxiliary_vlan(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled the control buffer, which is aligned and which the message still points to, and
    // has set its length; the data of this type is a `tpacket_auxdata`, of integers only, as long as the message says.
    let auxiliary = unsafe {
        let control = libc::CMSG_FIRSTHDR(message).as_ref()?;
        let known = control.cmsg_level == libc::SOL_PACKET && control.cmsg_type == libc::PACKET_AUXDATA;
        if !known || control.cmsg_len < libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) as usize {
            return None;
        }
        libc::CMSG_DATA(control).cast::<libc::tpacket_auxdata>().read_unaligned()
    };
    vlan(auxiliary.tp_status, auxiliary.tp_vlan_tpid, auxiliary.tp_vlan_tci)
}

/// A VLAN tag by the status of a frame, and what stands beside it.
fn vlan(status: u32, tpid: u16, tci: u16) -> Option<(u16, u16)> {
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let has_tpid = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
    Some((if has_tpid { tpid } else { 0x8100 }, tci))
}

impl RxSocket {
    /// Gives a socket a ring of `slots` slots for frames up to `mtu`. It receives nothing yet.
    pub fn make(port: &str, socket: Arc<Socket>, slots: usize, mtu: u32) -> Result<RxSocket, Error> {
        let fd = &*socket;
        // The order matters: the ring fixes version and header, and binding starts reception.
        set_option(port, fd, libc::PACKET_VERSION, "PACKET_VERSION", &(libc::tpacket_versions::TPACKET_V2 as c_int))?;
        set_option(port, fd, libc::PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING", &1)?;
        set_option(port, fd, libc::PACKET_COPY_THRESH, "PACKET_COPY_THRESH", &1)?;
        set_buffer(fd, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER);

        let (slot, blocks) = dimensions(slots, mtu);
        let slots = blocks * BLOCK / slot;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: slots as u32,
        };
        set_option(port, fd, libc::PACKET_RX_RING, "PACKET_RX_RING", &request)?;
        let map_len = blocks * BLOCK;
        // SAFETY: a new mapping, of the length that was just requested.
        let map = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            libc::mmap(std::ptr::null_mut(), map_len, protection, flags, fd.as_raw_fd(), 0)
        };
        if map == libc::MAP_FAILED {
            return Err(system(port, "map the receive ring", io::Error::last_os_error()));
        }
        let map = NonNull::new(map.cast()).expect("a successful mapping is not at zero");
        Ok(RxSocket { socket, map, map_len, slot, slots })
    }

    /// Its socket.
    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The frame in slot `index`, if the kernel has filled it. Only the owner of the queue may call
    /// this, once for each time that a slot is filled.
    #[inline]
    pub fn slot(&self, index: usize) -> Option<Slot<'_>> {
        assert!(index < self.slots);
        // SAFETY: the slot lies within the mapping, which the borrow keeps alive. A filled slot is not
        // written by the kernel until its status is reset, which `Slot::release` does at the end of
        // the borrow; the Acquire load makes its content visible. The header is plain integers.
        unsafe {
            let base = self.map.as_ptr().add(index * self.slot);
            let status = &*base.cast::<AtomicU32>();
            let flags = status.load(Ordering::Acquire);
            if flags & libc::TP_STATUS_USER == 0 {
                return None;
            }
            let header = base.cast::<libc::tpacket2_hdr>().read();
            Some(Slot { status, flags, header, bytes: std::slice::from_raw_parts(base, self.slot) })
        }
    }
}

impl Drop for RxSocket {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `open`, and every borrow of it has ended.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

impl<'a> Slot<'a> {
    /// The vnet header and the part of the frame that is in the slot; `None` for a slot that makes no
    /// sense.
    #[inline]
    pub fn frame(&self) -> Option<(&'a [u8; vnet::LEN], &'a [u8])> {
        let start = usize::from(self.header.tp_mac);
        let frame = self.bytes.get(start..start + self.header.tp_snaplen as usize)?;
        let header = self.bytes.get(start.checked_sub(vnet::LEN)?..start)?;
        Some((header.try_into().ok()?, frame))
    }

    /// Bytes of frame on the wire.
    #[inline]
    pub fn len(&self) -> usize {
        self.header.tp_len as usize
    }

    /// The whole frame waits at the socket, because it did not fit.
    #[inline]
    pub fn is_copied(&self) -> bool {
        self.flags & libc::TP_STATUS_COPY != 0
    }

    /// Whether the frame was sent by this host: with PACKET_IGNORE_OUTGOING that is never.
    #[inline]
    pub fn is_outgoing(&self) -> bool {
        // `struct sockaddr_ll` lies behind the header, which is aligned to 16 bytes.
        const PKTTYPE: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16) + 10;
        self.bytes[PKTTYPE] == libc::PACKET_OUTGOING
    }

    /// The VLAN tag that the kernel has taken out of the frame: TPID and TCI.
    #[inline]
    pub fn vlan(&self) -> Option<(u16, u16)> {
        vlan(self.flags, self.header.tp_vlan_tpid, self.header.tp_vlan_tci)
    }

    /// Gives the slot back to the kernel.
    #[inline]
    pub fn release(self) {
        self.status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// Opens a socket for sending, which receives nothing.
pub fn open_tx(port: &str, ifindex: u32, qdisc_bypass: bool) -> Result<Socket, Error> {
    let fd = Socket::new(port)?;
    if qdisc_bypass {
        set_option(port, &fd, libc::PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS", &1)?;
    }
    set_buffer(&fd, libc::SO_SNDBUFFORCE, SEND_BUFFER);
    bind(port, &fd, 0, ifindex)?;
    Ok(fd)
}

/// Sets the priority that the interface's queueing discipline knows packets of a socket by.
pub fn set_priority(fd: &Socket, priority: u32) -> io::Result<()> {
    set_raw(fd, libc::SOL_SOCKET, libc::SO_PRIORITY, &priority)
}

/// Sends messages, each of a vnet header and a frame. Returns how many were sent; an error is that of
/// the first.
pub fn send(fd: &Socket, messages: &[(&[u8; vnet::LEN], &[u8])]) -> io::Result<usize> {
    const MAX: usize = packet::BATCH_SIZE;
    let count = messages.len().min(MAX);
    let mut parts = [[libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 2]; MAX];
    // SAFETY: all zero is a valid `mmsghdr`.
    let mut headers: [libc::mmsghdr; MAX] = unsafe { std::mem::zeroed() };
    for ((parts, message), (header, frame)) in parts.iter_mut().zip(&mut headers).zip(messages) {
        parts[0] = libc::iovec { iov_base: header.as_ptr() as *mut c_void, iov_len: header.len() };
        parts[1] = libc::iovec { iov_base: frame.as_ptr() as *mut c_void, iov_len: frame.len() };
        message.msg_hdr.msg_iov = parts.as_mut_ptr();
        message.msg_hdr.msg_iovlen = 2;
    }
    // SAFETY: the first `count` messages point to buffers that outlive the call, which only reads them.
    let n = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

fn socket(port: &str) -> Result<OwnedFd, Error> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a new descriptor, which is owned here.
    unsafe {
        match libc::socket(libc::AF_PACKET, kind, 0) {
            -1 => Err(system(port, "open a packet socket", io::Error::last_os_error())),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

fn bind(port: &str, fd: &Socket, protocol: u16, ifindex: u32) -> Result<(), Error> {
    // SAFETY: all zero is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as c_int;
    // SAFETY: the address is a `sockaddr_ll` of this size.
    let result = unsafe {
        let address = std::ptr::from_ref(&address).cast();
        libc::bind(fd.as_raw_fd(), address, size_of::<libc::sockaddr_ll>() as u32)
    };
    match result {
        0 => Ok(()),
        _ => Err(system(port, "bind a packet socket", io::Error::last_os_error())),
    }
}

fn set_option<T: Copy>(port: &str, fd: &Socket, option: c_int, name: &str, value: &T) -> Result<(), Error> {
    match set_raw(fd, libc::SOL_PACKET, option, value) {
        Ok(()) => Ok(()),
        Err(e) => Err(system(port, format!("set {name}"), e)),
    }
}

/// Sets the size of a buffer, as far as the kernel lets us: a smaller one works, too.
fn set_buffer(fd: &Socket, option: c_int, bytes: c_int) {
    if let Err(error) = set_raw(fd, libc::SOL_SOCKET, option, &bytes) {
        tracing::debug!("socket buffer of {bytes} bytes: {error}");
    }
}

fn set_raw<T: Copy>(fd: &Socket, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: reads `size_of::<T>()` bytes from a valid reference to plain data.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, size_of::<T>() as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option into `T`, which is plain integers here.
fn get_option<T: Copy>(fd: &Socket, level: c_int, option: c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as u32;
    // SAFETY: writes at most `len` bytes into the value, which is zero before, and of integers only.
    unsafe {
        match libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &mut len) {
            0 => Ok(value.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
