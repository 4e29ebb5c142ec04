//! The rings that a socket shares with the kernel (Documentation/networking/af_xdp.rst).
//!
//! A ring has one producer and one consumer. The producer writes descriptors and then publishes its
//! index with release; the consumer reads that with acquire before it reads descriptors, and publishes
//! its own index with release when it has read them, which the producer reads with acquire before it
//! writes these places again. Indexes run freely and are masked on use. Both sides keep the other's
//! index as last seen and look again only when that doesn't suffice, so that the shared cache line
//! moves once for a burst.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

const XDP_RING_NEED_WAKEUP: u32 = 1;

/// A receive or transmit descriptor, `struct xdp_desc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Where the frame begins in the UMEM.
    pub address: u64,
    /// Bytes of frame.
    pub len: u32,
    /// XDP_PKT_CONTD and the like; zero for a frame in one piece.
    pub options: u32,
}

/// What both ends of a ring need.
struct Ring<T> {
    /// The mapping, or nothing where a test supplies the memory.
    mapping: Option<(NonNull<u8>, usize)>,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    /// Absent before Linux 5.4.
    flags: Option<NonNull<AtomicU32>>,
    descriptors: NonNull<T>,
    size: u32,
}

// SAFETY: a ring end is used by its owner alone; what the other end touches meanwhile is accessed by
// atomics or ordered by them. The mapping belongs to the process, not to a thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    fn map(socket: BorrowedFd, page_offset: u64, offsets: &XdpRingOffset, size: u32) -> io::Result<Ring<T>> {
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, flags, socket, page_offset)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
        // SAFETY: the kernel says where in the mapping, whose length is computed from the same
        // offsets, these fields lie; it aligns them.
        unsafe {
            Ok(Ring {
                mapping: Some((base, len)),
                producer: base.add(offsets.producer as usize).cast(),
                consumer: base.add(offsets.consumer as usize).cast(),
                flags: offsets.flags.map(|flags| base.add(flags as usize).cast()),
                descriptors: base.add(offsets.desc as usize).cast(),
                size,
            })
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the index lies in the mapping, which lives as long as the ring, and is only accessed as an
        // atomic.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: the index lies in the mapping, which lives as long as the ring, and is only accessed as an
        // atomic.
        unsafe { self.consumer.as_ref() }
    }

    fn slot(&self, index: u32) -> *mut T {
        // SAFETY: the masked index is below the number of descriptors.
        unsafe { self.descriptors.as_ptr().add((index & (self.size - 1)) as usize) }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: the flags lie in the mapping, which lives as long as the ring, and are only accessed as an
        // atomic.
        self.flags.is_none_or(|flags| unsafe { flags.as_ref() }.load(Ordering::Relaxed) & XDP_RING_NEED_WAKEUP != 0)
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        if let Some((base, len)) = self.mapping {
            // SAFETY: this is the mapping that `map` made, and nobody uses it any more.
            let _ = unsafe { munmap(base.as_ptr().cast(), len) };
        }
    }
}

/// The end of a ring that writes: fill and transmit.
pub struct Producer<T> {
    ring: Ring<T>,
    /// Our index, of which the kernel knows what was submitted.
    next: u32,
    /// The kernel's index as last seen.
    consumed: u32,
    _owner: PhantomData<T>,
}

impl<T: Copy> Producer<T> {
    /// Maps the ring at `page_offset` of a socket; `size` is a power of two.
    pub fn map(socket: BorrowedFd, page_offset: u64, offsets: &XdpRingOffset, size: u32) -> io::Result<Producer<T>> {
        Ok(Producer::new(Ring::map(socket, page_offset, offsets, size)?))
    }

    fn new(ring: Ring<T>) -> Producer<T> {
        let (next, consumed) = (ring.producer().load(Ordering::Relaxed), ring.consumer().load(Ordering::Acquire));
        Producer { ring, next, consumed, _owner: PhantomData }
    }

    /// Number of descriptors.
    pub fn size(&self) -> u32 {
        self.ring.size
    }

    /// How many descriptors can be written; looks at the kernel's index when these seem fewer than
    /// `want`.
    #[inline]
    pub fn free(&mut self, want: u32) -> u32 {
        let free = self.ring.size - self.next.wrapping_sub(self.consumed);
        if free >= want {
            return free;
        }
        self.pending();
        self.ring.size - self.next.wrapping_sub(self.consumed)
    }

    /// Writes the next descriptor; `false`, and nothing is written, when the ring is full.
    #[inline]
    pub fn push(&mut self, descriptor: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        // SAFETY: the place is free, so the kernel doesn't read it before `submit`.
        unsafe { self.ring.slot(self.next).write(descriptor) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Shows the kernel all that was written.
    #[inline]
    pub fn submit(&mut self) {
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// How many descriptors the kernel has not taken yet.
    #[inline]
    pub fn pending(&mut self) -> u32 {
        let consumed = self.ring.consumer().load(Ordering::Acquire);
        // An index out of bounds can only be a kernel's error: keep what we knew.
        if self.next.wrapping_sub(consumed) <= self.ring.size {
            self.consumed = consumed;
        }
        self.next.wrapping_sub(self.consumed)
    }

    /// Whether the kernel wants a system call before it goes on with this ring.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The end of a ring that reads: receive and completion.
pub struct Consumer<T> {
    ring: Ring<T>,
    /// Our index, of which the kernel knows what was released.
    next: u32,
    /// The kernel's index as last seen.
    produced: u32,
    _owner: PhantomData<T>,
}

impl<T: Copy> Consumer<T> {
    /// Maps the ring at `page_offset` of a socket; `size` is a power of two.
    pub fn map(socket: BorrowedFd, page_offset: u64, offsets: &XdpRingOffset, size: u32) -> io::Result<Consumer<T>> {
        Ok(Consumer::new(Ring::map(socket, page_offset, offsets, size)?))
    }

    fn new(ring: Ring<T>) -> Consumer<T> {
        let (next, produced) = (ring.consumer().load(Ordering::Relaxed), ring.producer().load(Ordering::Acquire));
        Consumer { ring, next, produced, _owner: PhantomData }
    }

    /// Looks at the kernel's index where all that it was seen to have written has been read.
    #[inline]
    pub fn look(&mut self) {
        if self.next == self.produced {
            let produced = self.ring.producer().load(Ordering::Acquire);
            if produced.wrapping_sub(self.next) <= self.ring.size {
                self.produced = produced;
            }
        }
    }

    /// Reads the next descriptor.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.look();
        if self.next == self.produced {
            return None;
        }
        // SAFETY: the kernel has written this place before it published `produced`, and leaves it alone
        // until `release`.
        let descriptor = unsafe { self.ring.slot(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(descriptor)
    }

    /// The descriptor that is read after `count` others, as far as the kernel was seen to have written it.
    #[inline]
    pub fn peek(&self, count: u32) -> Option<T> {
        if self.produced.wrapping_sub(self.next) <= count {
            return None;
        }
        // SAFETY: the kernel has written this place before it published `produced`, and leaves it alone until `release`.
        Some(unsafe { self.ring.slot(self.next.wrapping_add(count)).read() })
    }

    /// Gives the kernel the places of all that was read.
    #[inline]
    pub fn release(&mut self) {
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Memory of a ring whose both ends are in this process.
    struct RingMemory {
        indexes: [AtomicU32; 2],
        flags: AtomicU32,
        descriptors: std::cell::UnsafeCell<[u64; 8]>,
    }

    // SAFETY: the ring's protocol says who may access the descriptors.
    unsafe impl Sync for RingMemory {}

    fn ends(start: u32) -> (Producer<u64>, Consumer<u64>, Arc<RingMemory>) {
        let shared = Arc::new(RingMemory {
            indexes: [AtomicU32::new(start), AtomicU32::new(start)],
            flags: AtomicU32::new(0),
            descriptors: [0; 8].into(),
        });
        let ring = || Ring {
            mapping: None,
            producer: NonNull::from(&shared.indexes[0]),
            consumer: NonNull::from(&shared.indexes[1]),
            flags: Some(NonNull::from(&shared.flags)),
            descriptors: NonNull::new(shared.descriptors.get().cast()).unwrap(),
            size: 8,
        };
        (Producer::new(ring()), Consumer::new(ring()), shared)
    }

    #[test]
    fn full_and_empty_across_the_wrap() {
        let (mut producer, mut consumer, _shared) = ends(u32::MAX - 3);
        assert_eq!(consumer.pop(), None);
        assert!((0..8).all(|i| producer.push(i)));
        assert!(!producer.push(8), "full");
        assert_eq!(consumer.pop(), None, "not submitted");
        producer.submit();
        assert_eq!(producer.pending(), 8);
        assert_eq!(consumer.peek(0), None, "not seen yet");
        consumer.look();
        assert_eq!((consumer.peek(0), consumer.pop()), (Some(0), Some(0)));
        assert_eq!([0, 6, 7].map(|ahead| consumer.peek(ahead)), [Some(1), Some(7), None]);
        assert_eq!((1..5).map(|_| consumer.pop().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(!producer.push(8), "not released");
        consumer.release();
        assert_eq!((producer.free(8), producer.pending()), (5, 3));
        assert!(producer.push(8));
        producer.submit();
        assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<Vec<_>>(), [5, 6, 7, 8]);
    }

    #[test]
    fn wakeup_is_what_the_kernel_says() {
        let (producer, _consumer, shared) = ends(0);
        assert!(!producer.needs_wakeup());
        shared.flags.store(XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    #[test]
    fn order_holds_between_threads() {
        const N: u64 = 50_000;
        let (mut producer, mut consumer, _shared) = ends(u32::MAX - 100);
        let writer = std::thread::spawn(move || {
            let mut next = 0;
            while next < N {
                if producer.push(next) {
                    next += 1;
                } else {
                    std::thread::yield_now();
                }
                producer.submit();
            }
        });
        let mut expected = 0;
        while expected < N {
            match consumer.pop() {
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                None => {
                    consumer.release();
                    std::thread::yield_now();
                }
            }
        }
        writer.join().unwrap();
    }
}
