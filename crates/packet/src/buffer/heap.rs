//! Packets on the heap: for tests, for packets from controllers, and for ports where there is no pool.
//!
//! As a [`Memory`], the heap is bounded like a pool: [`LIMIT`] is what all its packets may take together. Only
//! [`packet`], which is for callers that answer for the number of their packets, goes beyond it.
//!
//! Sharing between threads: any thread allocates and releases; what is in use is one counter, which says nothing about
//! other memory, so its accesses need no order.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Memory, Offload, Owner, Packet, RawPacket};

/// Free bytes before the frame of a new packet: enough for an outer Ethernet, IPv6, UDP and Geneve
/// header.
pub const HEADROOM: usize = 192;

/// Free bytes behind the frame of a new packet.
pub const TAILROOM: usize = 64;

/// Bytes of heap that packets may take before [`HEAP`] has no buffer for another: as much as the pools of ports have by
/// default.
pub const LIMIT: usize = 192 << 20;

/// Bytes of heap that packets take.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The heap, up to [`LIMIT`].
pub static HEAP: Memory = Memory { name: "heap", release, release_all, allocate, owner: Owner::NONE };

/// In front of each allocation, so that it can be freed. 64 bytes, which keeps frames aligned.
#[repr(C, align(64))]
struct Header {
    layout: Layout,
}

/// A packet with a copy of `frame`, whatever the heap's packets take already.
pub fn packet(frame: &[u8], headroom: usize, tailroom: usize) -> Packet {
    let layout = layout(headroom, frame.len() + tailroom).expect("a frame is shorter than the address space");
    let mut packet = empty(layout, headroom, frame.len() + tailroom);
    packet.push_back(frame.len()).expect("sized for the frame").copy_from_slice(frame);
    packet
}

/// [`Memory::allocate`] of the heap.
fn allocate(_: &'static Memory, headroom: usize, size: usize) -> Option<Packet> {
    let headroom = headroom.max(HEADROOM);
    let layout = layout(headroom, size)?;
    // Threads that ask at once may together exceed the limit by a packet each.
    (IN_USE.load(Relaxed) + layout.size() <= LIMIT).then(|| empty(layout, headroom, size))
}

/// What a packet takes. `None`: more than a packet can have.
fn layout(headroom: usize, size: usize) -> Option<Layout> {
    u16::try_from(headroom).ok()?;
    u32::try_from(size).ok()?;
    Layout::from_size_align(size_of::<Header>() + headroom + size, align_of::<Header>()).ok()
}

/// A packet of length zero with the layout that [`layout`] says for it.
fn empty(layout: Layout, headroom: usize, size: usize) -> Packet {
    IN_USE.fetch_add(layout.size(), Relaxed);
    // SAFETY: `layout` has a size that is not zero. `Header` fits at its start, and the frame lies
    // behind the header within the same, zeroed allocation.
    unsafe {
        let base = NonNull::new(alloc_zeroed(layout)).unwrap_or_else(|| handle_alloc_error(layout));
        base.cast::<Header>().write(Header { layout });
        Packet::from_raw(RawPacket {
            data: base.add(size_of::<Header>() + headroom),
            handle: base.as_ptr() as usize,
            memory: &HEAP,
            len: 0,
            tailroom: size as u32,
            queue: 0,
            headroom: headroom as u16,
            offload: Offload::NONE,
        })
    }
}

unsafe fn release(raw: RawPacket) {
    let base = raw.handle as *mut u8;
    // SAFETY: `handle` is the address that `empty` got for this packet (contract of
    // `Memory::release`), where it wrote the header.
    unsafe {
        let layout = base.cast::<Header>().read().layout;
        dealloc(base, layout);
        IN_USE.fetch_sub(layout.size(), Relaxed);
    }
}

/// [`Memory::release_all`] of the heap.
unsafe fn release_all(raw: &[RawPacket]) {
    // SAFETY: the caller gives up each of these packets of the heap, as `release` asks for.
    raw.iter().for_each(|&raw| unsafe { release(raw) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_and_pull() {
        let mut p = Packet::from_slice(b"frame");
        p.push_front(2).unwrap().copy_from_slice(b"> ");
        p.push_back(1).unwrap().copy_from_slice(b"!");
        assert_eq!(p.data(), b"> frame!");
        p.pull_front(2);
        p.truncate(5);
        assert_eq!(p.data(), b"frame");
        assert!(p.push_front(HEADROOM + 1).is_none());
        assert!(p.make_headroom(1000) && !p.make_headroom(usize::MAX));
        assert_eq!((p.data(), p.headroom() >= 1000), (&b"frame"[..], true));
        assert_eq!(p.duplicate().unwrap().data(), b"frame");
    }

    #[test]
    fn headroom_is_made_of_tailroom_where_there_is_any() {
        let mut p = packet(b"frame", 2, 10);
        let handle = p.handle();
        assert!(p.make_headroom(6));
        assert_eq!((p.data(), p.headroom(), p.tailroom(), p.handle()), (&b"frame"[..], 6, 6, handle));
        p.push_front(6).unwrap().copy_from_slice(b"------");
        p.push_back(6).unwrap().copy_from_slice(b"++++++");
        assert_eq!(p.data(), b"------frame++++++");
        assert!(p.make_headroom(1), "by a move to another buffer");
        assert_eq!((p.data(), p.handle() != handle), (&b"------frame++++++"[..], true));
    }

    /// In one test, since all tests of this process share the heap's account.
    #[test]
    #[cfg_attr(miri, ignore = "Miri writes zeros to all of it")]
    fn the_heap_has_an_end_and_takes_back() {
        const SIZE: usize = 8 << 20;
        let all: Vec<Packet> = std::iter::from_fn(|| (HEAP.allocate)(&HEAP, 0, SIZE)).collect();
        assert_eq!(all.len(), LIMIT / (SIZE + 1));
        let frame = packet(&[0; SIZE], 0, 0);
        assert!(frame.duplicate().is_none(), "no copy beyond the limit");
        drop((all, frame));
        assert!(packet(&[0; SIZE], 0, 0).duplicate().is_some());
    }
}
