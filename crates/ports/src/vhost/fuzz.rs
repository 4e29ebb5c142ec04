//! Entry for fuzzing: what a guest can have librte_vhost say of a frame, and what the library is told of it on
//! the way to another guest.

#![allow(unsafe_code)]

use dpdk_sys::mbuf::{self as bits, rte_mbuf};

use crate::dpdk::mbuf::received_offload;
use crate::offload::fuzz::{finish, offloads};

use super::tx::{describe, empty, expressible};

/// Flags that the library sets for what is in a guest's header.
const FLAGS: [u64; 6] = [
    bits::RX_L4_CKSUM_NONE,
    bits::RX_L4_CKSUM_NONE | bits::RX_LRO,
    bits::RX_L4_CKSUM_GOOD,
    bits::RX_L4_CKSUM_BAD,
    bits::RX_L4_CKSUM_GOOD | bits::RX_LRO,
    0,
];

/// Reads what the guest says of a frame (a byte), the size of its segments (two), what the receiving guest can
/// do (a byte), how much longer than written the frame is (two), and the frame.
pub fn run(bytes: &[u8]) {
    let Some((&[flags, size_low, size_high, can, low, high], frame)) = bytes.split_first_chunk() else { return };
    let mut frame = frame.to_vec();
    frame.resize(frame.len() + usize::from(u16::from_le_bytes([low, high])), low);
    let size = u16::from_le_bytes([size_low, size_high]);
    let flags = FLAGS[usize::from(flags) % FLAGS.len()];
    let offload = received_offload(flags, bits::tx_offload(0, 0, 0, size), &frame);
    let (mut mbufs, mut rests) = (empty(), empty());
    for mut packet in finish(&frame, offload, offloads(can)) {
        if expressible(&packet) && packet.len() >= 14 {
            describe(&mut packet, &mut mbufs[0], &mut rests[0]);
            check(&mbufs[0], packet.len());
        }
    }
}

/// Everything that the library is told lies within the frame: it writes checksums where it is told to.
fn check(mbuf: &rte_mbuf, len: usize) {
    // SAFETY: `describe` leaves a null pointer, or one to the second mbuf, which is there as long as this one.
    let rest = unsafe { mbuf.next.as_ref() }.map_or(0, |rest| usize::from(rest.data_len));
    assert_eq!((mbuf.pkt_len as usize, usize::from(mbuf.data_len) + rest), (len, len));
    let field = |at: u32, width: u32| (mbuf.tx_offload >> at & ((1 << width) - 1)) as usize;
    let (l2, l3, l4, size) = (field(0, 7), field(7, 9), field(16, 8), field(24, 16));
    match mbuf.ol_flags & bits::TX_L4_MASK {
        bits::TX_TCP_CKSUM => assert!(l2 + l3 + 18 <= len, "a checksum behind the frame"),
        bits::TX_UDP_CKSUM => assert!(l2 + l3 + 8 <= len, "a checksum behind the frame"),
        _ => assert_eq!((mbuf.ol_flags, mbuf.tx_offload), (0, 0)),
    }
    if mbuf.ol_flags & (bits::TX_TCP_SEG | bits::TX_UDP_SEG) != 0 {
        assert!(size > 0 && l4 >= 8 && l2 + l3 + l4 <= len, "segments of {size} behind {l2}, {l3} and {l4} bytes");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_a_guest_says_of_a_frame_ends_well(
            head in prop::array::uniform4(any::<u8>()),
            more in 0u8..3,
            tcp: bool, ipv6: bool, options in 0u8..8, length: u16,
            rest in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut frame = vec![2; 12];
            let proto = if tcp { 6 } else { 17 };
            frame.extend(if ipv6 { [0x86, 0xdd] } else { [8, 0] });
            let at = frame.len();
            frame.resize(at + if ipv6 { 40 } else { 20 }, 1);
            let length = length.to_be_bytes();
            if ipv6 {
                frame[at] = 0x60;
                frame[at + 4..at + 7].copy_from_slice(&[length[0], length[1], proto]);
            } else {
                frame[at..at + 4].copy_from_slice(&[0x40 | (5 + options % 3), 0, length[0], length[1]]);
                frame[at + 6..at + 8].fill(0);
                frame[at + 9] = proto;
            }
            frame.extend(rest);
            super::run(&[&head[..], &[9, more], &frame].concat());
        }
    }
}
