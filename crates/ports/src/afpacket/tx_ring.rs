//! The transmit ring of a packet socket (PACKET_TX_RING, TPACKET_V2).
//!
//! Slots go round: we fill those that are available and mark them, one send(2) makes the kernel take
//! all that are marked, in order, and it makes them available again when the packets have left. The
//! kernel looks at the ring only during send(2) on this socket, which only the owner calls.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::{Mapping, Message};
use crate::vnet;

/// Bytes of a slot.
pub const SLOT: usize = 2048;
/// Slots of a ring: eight full bursts.
pub const SLOTS: usize = 256;
/// Where the vnet header is in a slot: behind `struct tpacket2_hdr` (`tpacket_parse_header` in
/// net/packet/af_packet.c).
const DATA: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);
/// The longest frame that fits a slot.
pub const MAX_FRAME: usize = SLOT - DATA - vnet::LEN;

/// A sending socket with a ring.
pub struct TxRing {
    fd: OwnedFd,
    map: Mapping,
    /// The slot that is filled next, which is also the kernel's next.
    next: usize,
}

impl TxRing {
    /// A socket whose ring of [`SLOTS`] slots of [`SLOT`] bytes is mapped at `map`.
    pub fn new(fd: OwnedFd, map: Mapping) -> TxRing {
        assert_eq!(map.len(), SLOT * SLOTS);
        TxRing { fd, map, next: 0 }
    }

    /// Sends messages, none longer than [`MAX_FRAME`]. Returns how many were sent; an error is that of
    /// the first.
    pub fn send(&mut self, messages: &[Message]) -> io::Result<usize> {
        let first = self.next;
        let mut filled = 0;
        while filled < messages.len() && self.fill(messages[filled]) {
            filled += 1;
        }
        if filled == 0 {
            // All slots are on their way: as with a full socket buffer.
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        // SAFETY: sends no bytes but the marked slots.
        let result = unsafe { libc::send(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        let error = io::Error::last_os_error();
        // The kernel stops at the first slot that it can't send, and leaves it as it was or marks it.
        // It and those behind are taken back.
        let is_sent = |status| !matches!(status, libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT);
        let sent =
            (0..filled).take_while(|i| is_sent(self.status((first + i) % SLOTS).load(Ordering::Acquire))).count();
        for i in sent..filled {
            self.status((first + i) % SLOTS).store(libc::TP_STATUS_AVAILABLE, Ordering::Relaxed);
        }
        self.next = (first + sent) % SLOTS;
        match (sent, result) {
            (0, -1) => Err(error),
            (0, _) => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            _ => Ok(sent),
        }
    }

    /// Fills the next slot, if it is available.
    #[inline]
    fn fill(&mut self, (header, frame): Message) -> bool {
        assert!(frame.len() <= MAX_FRAME);
        if self.status(self.next).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return false;
        }
        // SAFETY: an available slot is ours alone; header and frame fit it, by the assertion above.
        unsafe {
            let base = self.slot(self.next).as_ptr();
            (*base.cast::<libc::tpacket2_hdr>()).tp_len = (vnet::LEN + frame.len()) as u32;
            let data = base.add(DATA);
            data.copy_from_nonoverlapping(header.as_ptr(), vnet::LEN);
            data.add(vnet::LEN).copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        }
        self.status(self.next).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }

    fn slot(&self, index: usize) -> NonNull<u8> {
        debug_assert!(index < SLOTS);
        // SAFETY: within the mapping, whose length was checked by `new`.
        unsafe { self.map.start().add(index * SLOT) }
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the status is the first field of the slot's header, is aligned, and is only ever
        // accessed atomically.
        unsafe { self.slot(index).cast().as_ref() }
    }
}
