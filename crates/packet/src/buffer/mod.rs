//! Packets: owned frames in one of several memories.
//!
//! A [`Packet`] is a descriptor that owns one contiguous frame. The frame lies in a [`Memory`]: Weir's
//! own pool, a DPDK mempool, or the heap. Whoever makes the memory supplies the functions that take a
//! frame back and that copy one, so this crate links no driver. Descriptors move by value between
//! batches and output queues; the frame itself is never moved.
//!
//! ```text
//!   |<- headroom ->|<---- len ---->|<- tailroom ->|
//!                  ^ data
//! ```
//!
//! Sharing between threads: a packet has one owner at any time and may be sent to another thread. A
//! memory's functions may be called from any thread.

#![allow(unsafe_code)]

pub mod heap;
pub mod pool;
pub mod split;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use arrayvec::ArrayVec;

/// The most packets that one receive burst returns.
pub const BATCH_SIZE: usize = 32;

/// A batch of packets.
pub type Batch = ArrayVec<Packet, BATCH_SIZE>;

/// Asks the processor for a cache line. Harmless for any address.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Ends the lives of all packets of a batch, those of one memory together.
#[inline]
pub fn release(batch: &mut Batch) {
    let count = batch.len();
    // SAFETY: nothing is left in the batch, so the packets are given up here, once. They were initialised, and a
    // packet is its parts.
    let raw = unsafe {
        batch.set_len(0);
        std::slice::from_raw_parts(batch.as_ptr().cast::<RawPacket>(), count)
    };
    let mut rest = raw;
    while let Some(first) = rest.first() {
        let memory = first.memory;
        let alike = rest.iter().take_while(|raw| std::ptr::eq(raw.memory, memory)).count();
        let (these, others) = rest.split_at(alike);
        // SAFETY: they are of this memory, and are not used again.
        unsafe { (memory.release_all)(these) };
        rest = others;
    }
}

/// What a memory does with its frames.
///
/// A memory lives as long as the process (`&'static`), so that no packet can outlive it.
pub struct Memory {
    /// Name for logs and statistics: "pool", "dpdk", "heap".
    pub name: &'static str,
    /// Takes a frame back.
    ///
    /// # Safety
    /// `raw` was made by this memory, or by [`Packet::into_raw`] of one of its packets, and is not
    /// used again.
    pub release: unsafe fn(raw: RawPacket),
    /// Takes several frames back, for less work than one by one.
    ///
    /// # Safety
    /// As for `release`, for each of them.
    pub release_all: unsafe fn(raw: &[RawPacket]),
    /// A new packet of this memory with at least `headroom` bytes before and `size` bytes of frame,
    /// length zero, or `None` when the memory is exhausted.
    pub allocate: fn(memory: &'static Memory, headroom: usize, size: usize) -> Option<Packet>,
    /// What the memory is part of, for the functions above.
    pub owner: Owner,
}

/// A pointer from a memory to what it is part of.
///
/// A reference to the memory gives no right to what is around it, and an address that is computed from it none either: the compiler may take
/// for granted that nothing else is changed by way of it.
#[derive(Clone, Copy)]
pub struct Owner(*const ());

// SAFETY: it is only carried about; whoever follows it answers for that.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Owner {
    /// Of a memory whose functions need nothing.
    pub const NONE: Owner = Owner(std::ptr::null());

    /// What the memory is part of.
    pub const fn new<T>(owner: *const T) -> Owner {
        Owner(owner.cast())
    }

    /// What was given to [`new`](Owner::new).
    pub const fn get<T>(self) -> *const T {
        self.0.cast()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({})", self.name)
    }
}

/// Checksum and segmentation work left to do, in the terms of `struct virtio_net_hdr` (virtio 1.2
/// section 5.1.6). Offsets count from the first byte of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Offload {
    /// See [`Offload::NEEDS_CSUM`] and [`Offload::DATA_VALID`].
    pub flags: u8,
    /// `GSO_*`, with [`Offload::GSO_ECN`] or-ed in.
    pub gso_type: u8,
    /// Length of all headers in front of the payload that is cut; zero where unknown.
    pub hdr_len: u16,
    /// Payload bytes for each segment; zero without GSO.
    pub gso_size: u16,
    /// Where the checksum starts to cover.
    pub csum_start: u16,
    /// Where the checksum is stored, from `csum_start`.
    pub csum_offset: u16,
}

impl Offload {
    /// Nothing left to do, nothing known.
    pub const NONE: Offload = Offload { flags: 0, gso_type: 0, hdr_len: 0, gso_size: 0, csum_start: 0, csum_offset: 0 };
    /// The L4 checksum field holds the pseudo header's sum; the sender has to complete it.
    pub const NEEDS_CSUM: u8 = 1;
    /// The receiver has verified the L4 checksum.
    pub const DATA_VALID: u8 = 2;
    /// Not segmented.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// UDP over IPv4 by IP fragmentation.
    pub const GSO_UDP: u8 = 3;
    /// TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// UDP segmentation.
    pub const GSO_UDP_L4: u8 = 5;
    /// TCP with ECN.
    pub const GSO_ECN: u8 = 0x80;

    /// Whether the checksum is still to be completed.
    pub fn needs_csum(&self) -> bool {
        self.flags & Offload::NEEDS_CSUM != 0
    }

    /// Whether the frame is to be cut into segments.
    pub fn is_gso(&self) -> bool {
        self.gso_type & !Offload::GSO_ECN != Offload::GSO_NONE
    }
}

/// The parts of a [`Packet`], without ownership: what drivers exchange.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RawPacket {
    /// First byte of the frame.
    pub data: NonNull<u8>,
    /// The memory's own name for the buffer (mbuf address, chunk number, box address).
    pub handle: usize,
    /// Where the frame lies.
    pub memory: &'static Memory,
    /// Bytes of frame.
    pub len: u32,
    /// Writable bytes behind the frame.
    pub tailroom: u32,
    /// Number of the transmit queue that was chosen for it, which is the priority in its key; zero where none was.
    pub queue: u32,
    /// Writable bytes before the frame.
    pub headroom: u16,
    /// Checksum and segmentation work left to do.
    pub offload: Offload,
}

/// A frame and its ownership. Dropping it gives the frame back to its memory.
#[repr(transparent)]
pub struct Packet(RawPacket);

const _: () = assert!(size_of::<Packet>() == 48);

// SAFETY: a packet has exclusive ownership of its frame, and a memory's functions may be called from
// any thread (contract of `Memory`).
unsafe impl Send for Packet {}
// SAFETY: a shared reference only reads the frame.
unsafe impl Sync for Packet {}

impl Packet {
    /// Takes ownership of a frame.
    ///
    /// # Safety
    /// `headroom` bytes before `data`, and `len + tailroom` bytes from it, are initialised memory that
    /// nobody else touches until the packet is released, and `memory.release` accepts it.
    #[inline(always)]
    pub unsafe fn from_raw(raw: RawPacket) -> Packet {
        Packet(raw)
    }

    /// Gives up ownership without releasing the frame.
    #[inline(always)]
    pub fn into_raw(self) -> RawPacket {
        ManuallyDrop::new(self).0
    }

    /// A packet on the heap with a copy of `frame`, room for headers before and some space behind.
    pub fn from_slice(frame: &[u8]) -> Packet {
        heap::packet(frame, heap::HEADROOM, heap::TAILROOM)
    }

    /// The frame.
    #[inline(always)]
    pub fn data(&self) -> &[u8] {
        // SAFETY: `len` bytes from `data` are initialised and owned (contract of `from_raw`).
        unsafe { std::slice::from_raw_parts(self.0.data.as_ptr(), self.0.len as usize) }
    }

    /// The 64 bytes from byte `at` of the frame on, where there are as many with the space behind the frame.
    /// Those behind the frame hold anything.
    #[inline(always)]
    pub fn line(&self, at: usize) -> Option<&[u8; 64]> {
        if at + 64 > self.0.len as usize + self.0.tailroom as usize {
            return None;
        }
        // SAFETY: `len + tailroom` bytes from `data` are initialised and owned (contract of `from_raw`).
        Some(unsafe { &*self.0.data.as_ptr().add(at).cast() })
    }

    /// The frame for writing.
    #[inline(always)]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes from `data` are initialised and owned (contract of `from_raw`), and `&mut self`
        // makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.data.as_ptr(), self.0.len as usize) }
    }

    /// Bytes of frame.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.0.len as usize
    }

    /// Whether the frame is empty.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Free bytes before the frame.
    pub fn headroom(&self) -> usize {
        self.0.headroom as usize
    }

    /// Free bytes behind the frame.
    pub fn tailroom(&self) -> usize {
        self.0.tailroom as usize
    }

    /// The memory that the frame lies in.
    #[inline(always)]
    pub fn memory(&self) -> &'static Memory {
        self.0.memory
    }

    /// The memory's own name for the buffer.
    #[inline(always)]
    pub fn handle(&self) -> usize {
        self.0.handle
    }

    /// Number of the transmit queue that was chosen for it; zero where none was.
    #[inline(always)]
    pub fn queue(&self) -> u32 {
        self.0.queue
    }

    /// Chooses the transmit queue, of whatever port the packet is sent to.
    #[inline(always)]
    pub fn set_queue(&mut self, queue: u32) {
        self.0.queue = queue;
    }

    /// Checksum and segmentation work left to do.
    #[inline(always)]
    pub fn offload(&self) -> &Offload {
        &self.0.offload
    }

    /// Checksum and segmentation work left to do, for writing.
    #[inline(always)]
    pub fn offload_mut(&mut self) -> &mut Offload {
        &mut self.0.offload
    }

    /// Makes the frame `n` bytes longer at its front. The new bytes hold anything. `None`, and no
    /// change, without the headroom: see [`Packet::make_headroom`].
    #[must_use]
    pub fn push_front(&mut self, n: usize) -> Option<&mut [u8]> {
        let n16 = u16::try_from(n).ok().filter(|&n| n <= self.0.headroom)?;
        // SAFETY: `headroom` bytes before `data` belong to the packet.
        self.0.data = unsafe { self.0.data.sub(n) };
        self.0.headroom -= n16;
        self.0.len += u32::from(n16);
        Some(&mut self.data_mut()[..n])
    }

    /// Removes `n` bytes from the front. Panics when the frame is shorter.
    pub fn pull_front(&mut self, n: usize) {
        assert!(n <= self.len(), "pull {n} of {}", self.len());
        // SAFETY: `n` is within the frame.
        self.0.data = unsafe { self.0.data.add(n) };
        // A pull past 64 KiB of headroom only hides bytes that could be pushed again.
        self.0.headroom = self.0.headroom.saturating_add(n.min(u16::MAX as usize) as u16);
        self.0.len -= n as u32;
    }

    /// Moves the front of the frame by so many bytes: towards its end, or into the headroom where the number is
    /// negative; what is there then holds anything. `None`, and no change, where there is no room. Without a branch for
    /// the direction.
    #[must_use]
    #[inline(always)]
    pub fn move_front(&mut self, by: i16) -> Option<()> {
        let headroom = u16::try_from(i32::from(self.0.headroom) + i32::from(by)).ok()?;
        let len = self.0.len.checked_add_signed(-i32::from(by))?;
        // SAFETY: `headroom` bytes before `data` and `len` from it belong to the packet, and neither has become negative.
        self.0.data = unsafe { self.0.data.offset(by.into()) };
        (self.0.headroom, self.0.len) = (headroom, len);
        Some(())
    }

    /// Makes the frame `n` bytes longer at its end. The new bytes hold anything. `None`, and no change,
    /// without the tailroom.
    #[must_use]
    pub fn push_back(&mut self, n: usize) -> Option<&mut [u8]> {
        let n32 = u32::try_from(n).ok().filter(|&n| n <= self.0.tailroom)?;
        let old = self.len();
        self.0.tailroom -= n32;
        self.0.len += n32;
        Some(&mut self.data_mut()[old..])
    }

    /// Cuts the frame to its first `len` bytes; no change where it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.0.tailroom += self.0.len - len as u32;
            self.0.len = len as u32;
        }
    }

    /// A copy in the same memory, or `None` when that has no buffer left. The caller counts a copy that could not be
    /// made: nothing on the way of packets takes memory that nobody has set aside for them.
    #[must_use]
    pub fn duplicate(&self) -> Option<Packet> {
        self.duplicate_in(self.0.memory)
    }

    /// A copy in `memory`, or `None` when it has no buffer or none that is large enough.
    #[must_use]
    pub fn duplicate_in(&self, memory: &'static Memory) -> Option<Packet> {
        let mut copy = (memory.allocate)(memory, self.headroom().min(heap::HEADROOM), self.len())?;
        copy.push_back(self.len())?.copy_from_slice(self.data());
        copy.copy_metadata(self);
        Some(copy)
    }

    /// Makes sure of `n` bytes of headroom: within the buffer where there is room behind the frame, else by a move to
    /// another buffer of the same memory. `false`, and no change, when neither is possible.
    #[must_use]
    #[inline(always)]
    pub fn make_headroom(&mut self, n: usize) -> bool {
        self.headroom() >= n || self.move_back(n)
    }

    #[cold]
    fn move_back(&mut self, n: usize) -> bool {
        let by = n - self.headroom();
        if by <= self.tailroom() && n <= usize::from(u16::MAX) {
            // SAFETY: `len` bytes from `data` and the `tailroom` behind them, of which `by` are a part, belong to the
            // packet (contract of `from_raw`). `copy` allows that source and destination overlap.
            unsafe {
                let to = self.0.data.add(by);
                self.0.data.copy_to(to, self.0.len as usize);
                self.0.data = to;
            }
            self.0.headroom += by as u16;
            self.0.tailroom -= by as u32;
            return true;
        }
        let memory = self.0.memory;
        let Some(mut moved) = (memory.allocate)(memory, n, self.len()) else { return false };
        let Some(frame) = moved.push_back(self.len()) else { return false };
        frame.copy_from_slice(self.data());
        moved.copy_metadata(self);
        *self = moved;
        true
    }

    fn copy_metadata(&mut self, from: &Packet) {
        self.0.queue = from.0.queue;
        self.0.offload = from.0.offload;
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the packet owned its frame and gives it up here, once.
        unsafe { (self.0.memory.release)(self.0) }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes in {})", self.len(), self.0.memory.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_moves_within_the_buffer() {
        let mut packet = heap::packet(&[1, 2, 3, 4, 5, 6], 8, 4);
        assert_eq!((packet.move_front(-9), packet.move_front(7)), (None, None));
        assert_eq!((packet.data(), packet.headroom(), packet.tailroom()), (&[1, 2, 3, 4, 5, 6][..], 8, 4));
        packet.move_front(4).unwrap();
        assert_eq!((packet.data(), packet.headroom()), (&[5, 6][..], 12));
        packet.move_front(-12).unwrap();
        assert_eq!((packet.len(), packet.headroom(), &packet.data()[8..]), (14, 0, &[1, 2, 3, 4, 5, 6][..]));
        packet.move_front(14).unwrap();
        assert_eq!((packet.len(), packet.headroom(), packet.tailroom()), (0, 14, 4));
    }
}
