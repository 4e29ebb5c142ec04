//! Packet sockets and their rings (packet(7), Documentation/networking/packet_mmap.rst).
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void};

use crate::Error;
use crate::sys::system;
use crate::vnet;

/// Bytes that a slot needs beside the frame: `struct tpacket2_hdr`, `struct sockaddr_ll`, the vnet
/// header and alignment (`tpacket_rcv` in net/packet/af_packet.c).
const SLOT_OVERHEAD: usize = 128;

/// Largest slot. Longer frames come by recvmsg.
const MAX_SLOT: usize = 16 * 1024;

/// What frames that don't fit their slot may take up while they wait.
const RECEIVE_BUFFER: c_int = 16 << 20;

/// What sent frames may take up until they are consumed.
const SEND_BUFFER: c_int = 4 << 20;

/// A receiving socket and its ring.
pub struct RxSocket {
    fd: OwnedFd,
    map: NonNull<u8>,
    map_len: usize,
    slot: usize,
    slots: usize,
}

// SAFETY: the mapping lives as long as this value. Its bytes are only touched through `slot`, whose
// caller is the one owner of the queue.
unsafe impl Send for RxSocket {}
// SAFETY: as above; everything else is system calls on the descriptor.
unsafe impl Sync for RxSocket {}

/// A frame in a slot of the ring, which it occupies until [`Slot::release`].
pub struct Slot<'a> {
    status: &'a AtomicU32,
    flags: u32,
    header: libc::tpacket2_hdr,
    bytes: &'a [u8],
}

impl RxSocket {
    /// Opens a socket with a ring of `slots` slots for frames up to `mtu`, in this thread's network
    /// namespace. It receives everything that arrives at the interface from now on.
    pub fn open(port: &str, ifindex: u32, slots: usize, mtu: u32) -> Result<RxSocket, Error> {
        let fd = socket(port)?;
        // The order matters: the ring fixes version and header, and binding starts reception.
        set_option(port, &fd, libc::PACKET_VERSION, "PACKET_VERSION", &(libc::tpacket_versions::TPACKET_V2 as c_int))?;
        set_option(port, &fd, libc::PACKET_VNET_HDR, "PACKET_VNET_HDR", &1)?;
        set_option(port, &fd, libc::PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING", &1)?;
        set_option(port, &fd, libc::PACKET_COPY_THRESH, "PACKET_COPY_THRESH", &1)?;
        set_buffer(&fd, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER);

        let slot = (mtu as usize + 14 + 8 + SLOT_OVERHEAD).next_power_of_two().clamp(2048, MAX_SLOT);
        let block = 65536;
        let blocks = (slots * slot).div_ceil(block);
        let slots = blocks * block / slot;
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: slots as u32,
        };
        set_option(port, &fd, libc::PACKET_RX_RING, "PACKET_RX_RING", &request)?;
        let map_len = blocks * block;
        // SAFETY: a new mapping, of the length that was just requested.
        let map = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            libc::mmap(std::ptr::null_mut(), map_len, protection, flags, fd.as_raw_fd(), 0)
        };
        if map == libc::MAP_FAILED {
            return Err(system(port, "map the receive ring", io::Error::last_os_error()));
        }
        let map = NonNull::new(map.cast()).expect("a successful mapping is not at zero");
        let socket = RxSocket { fd, map, map_len, slot, slots };
        bind(port, &socket.fd, libc::ETH_P_ALL as u16, ifindex)?;
        let membership = libc::packet_mreq {
            mr_ifindex: ifindex as c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(port, &socket.fd, libc::PACKET_ADD_MEMBERSHIP, "PACKET_ADD_MEMBERSHIP", &membership)?;
        Ok(socket)
    }

    /// Spreads the frames of one interface over several sockets by flow.
    pub fn fan_out(port: &str, sockets: &[Arc<RxSocket>]) -> Result<(), Error> {
        // Outgoing frames are to be ignored by the group, too: the sockets' own flag does not count
        // once they are in one.
        let mode = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let unique = mode | libc::PACKET_FANOUT_FLAG_UNIQUEID;
        let mut group = 0;
        for (index, socket) in sockets.iter().enumerate() {
            let value = if index == 0 { unique << 16 } else { mode << 16 | group };
            set_option(port, &socket.fd, libc::PACKET_FANOUT, "PACKET_FANOUT", &value)?;
            if index == 0 {
                let value: u32 = get_option(&socket.fd, libc::SOL_PACKET, libc::PACKET_FANOUT)
                    .map_err(|e| system(port, "ask for the PACKET_FANOUT group", e))?;
                group = value & 0xffff;
            }
        }
        Ok(())
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

    /// Receives a frame that did not fit its slot: the vnet header and as much of the frame as there is
    /// room for. Returns the bytes of frame and whether it was cut.
    pub fn receive(&self, header: &mut [u8; vnet::LEN], frame: &mut [u8]) -> io::Result<(usize, bool)> {
        let mut parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
            libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() },
        ];
        // SAFETY: all zero is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        // SAFETY: the message points to two exclusive buffers of the lengths it says.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        match usize::try_from(n) {
            Ok(n) => Ok((n.saturating_sub(vnet::LEN), message.msg_flags & libc::MSG_TRUNC != 0)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    /// Frames that found no slot since the last call.
    pub fn take_drops(&self) -> u32 {
        get_option(&self.fd, libc::SOL_PACKET, libc::PACKET_STATISTICS).map_or(0, |s: libc::tpacket_stats| s.tp_drops)
    }

    /// The error that waits at the socket, if any. Taking it lets the descriptor sleep again.
    pub fn take_error(&self) -> Option<io::Error> {
        let code: c_int = get_option(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        (code != 0).then(|| io::Error::from_raw_os_error(code))
    }
}

impl AsFd for RxSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
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
        if self.flags & libc::TP_STATUS_VLAN_VALID == 0 {
            return None;
        }
        let has_tpid = self.flags & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        Some((if has_tpid { self.header.tp_vlan_tpid } else { 0x8100 }, self.header.tp_vlan_tci))
    }

    /// Gives the slot back to the kernel.
    #[inline]
    pub fn release(self) {
        self.status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

/// Opens a socket for sending, which receives nothing.
pub fn open_tx(port: &str, ifindex: u32, qdisc_bypass: bool) -> Result<OwnedFd, Error> {
    let fd = socket(port)?;
    set_option(port, &fd, libc::PACKET_VNET_HDR, "PACKET_VNET_HDR", &1)?;
    if qdisc_bypass {
        set_option(port, &fd, libc::PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS", &1)?;
    }
    set_buffer(&fd, libc::SO_SNDBUFFORCE, SEND_BUFFER);
    bind(port, &fd, 0, ifindex)?;
    Ok(fd)
}

/// Sends messages, each of a vnet header and a frame. Returns how many were sent; an error is that of
/// the first.
pub fn send(fd: &OwnedFd, messages: &[(&[u8; vnet::LEN], &[u8])]) -> io::Result<usize> {
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

fn bind(port: &str, fd: &OwnedFd, protocol: u16, ifindex: u32) -> Result<(), Error> {
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

fn set_option<T: Copy>(port: &str, fd: &OwnedFd, option: c_int, name: &str, value: &T) -> Result<(), Error> {
    match set_raw(fd, libc::SOL_PACKET, option, value) {
        Ok(()) => Ok(()),
        Err(e) => Err(system(port, format!("set {name}"), e)),
    }
}

/// Sets the size of a buffer, as far as the kernel lets us: a smaller one works, too.
fn set_buffer(fd: &OwnedFd, option: c_int, bytes: c_int) {
    if let Err(error) = set_raw(fd, libc::SOL_SOCKET, option, &bytes) {
        tracing::debug!("socket buffer of {bytes} bytes: {error}");
    }
}

fn set_raw<T: Copy>(fd: &OwnedFd, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: reads `size_of::<T>()` bytes from a valid reference to plain data.
    match unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, size_of::<T>() as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option into `T`, which is plain integers here.
fn get_option<T: Copy>(fd: &OwnedFd, level: c_int, option: c_int) -> io::Result<T> {
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
