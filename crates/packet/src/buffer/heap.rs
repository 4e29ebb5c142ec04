//! Packets on the heap: for tests, for packets from controllers, and where no pool has room.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::{Memory, Offload, Packet, RawPacket};

/// Free bytes before the frame of a new packet: enough for an outer Ethernet, IPv6, UDP and Geneve
/// header.
pub const HEADROOM: usize = 192;

/// Free bytes behind the frame of a new packet.
pub const TAILROOM: usize = 64;

/// The heap.
pub static HEAP: Memory = Memory { name: "heap", release, release_all, allocate };

/// In front of each allocation, so that it can be freed. 64 bytes, which keeps frames aligned.
#[repr(C, align(64))]
struct Header {
    layout: Layout,
}

/// A packet with a copy of `frame`.
pub fn packet(frame: &[u8], headroom: usize, tailroom: usize) -> Packet {
    let mut packet = allocate(&HEAP, headroom, frame.len() + tailroom).expect("the heap always has room");
    packet.push_back(frame.len()).expect("sized for the frame").copy_from_slice(frame);
    packet
}

fn allocate(memory: &'static Memory, headroom: usize, size: usize) -> Option<Packet> {
    let headroom = u16::try_from(headroom).ok()?;
    let tailroom = u32::try_from(size).ok()?;
    let total = size_of::<Header>() + headroom as usize + size;
    let layout = Layout::from_size_align(total, align_of::<Header>()).ok()?;
    // SAFETY: `layout` has a size that is not zero. `Header` fits at its start, and the frame lies
    // behind the header within the same, zeroed allocation.
    unsafe {
        let base = NonNull::new(alloc_zeroed(layout)).unwrap_or_else(|| handle_alloc_error(layout));
        base.cast::<Header>().write(Header { layout });
        let data = base.add(size_of::<Header>() + headroom as usize);
        let handle = base.as_ptr() as usize;
        let offload = Offload::NONE;
        Some(Packet::from_raw(RawPacket { data, handle, memory, len: 0, tailroom, rss_hash: 0, headroom, offload }))
    }
}

unsafe fn release(raw: RawPacket) {
    let base = raw.handle as *mut u8;
    // SAFETY: `handle` is the address that `allocate` got for this packet (contract of
    // `Memory::release`), where it wrote the header.
    unsafe {
        let layout = base.cast::<Header>().read().layout;
        dealloc(base, layout);
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
        p.make_headroom(1000);
        assert_eq!((p.data(), p.headroom() >= 1000), (&b"frame"[..], true));
        assert_eq!(p.duplicate().data(), b"frame");
    }
}
