//! `struct rte_mbuf`, as far as a switch reads and writes it: the fast path does so in place, where a
//! call for each packet would cost more than the work. `shim/mbuf.c` checks the places of the fields
//! against DPDK's headers, and this file against the same numbers.

use std::ffi::c_void;
use std::mem::offset_of;

use crate::rte_mempool;

/// Free bytes in front of a received frame (`RTE_PKTMBUF_HEADROOM`).
pub const HEADROOM: u16 = 128;

/// A message buffer: the descriptor of a frame, which lies behind it.
#[allow(non_camel_case_types)]
#[repr(C, align(64))]
pub struct rte_mbuf {
    /// First byte of the buffer, of which the frame takes up a part.
    pub buf_addr: *mut c_void,
    /// The same, as devices address it.
    pub buf_iova: u64,
    /// Where the frame begins in the buffer.
    pub data_off: u16,
    /// Owners; 1 while it is a packet.
    pub refcnt: u16,
    /// Segments of the frame, with this one.
    pub nb_segs: u16,
    /// Where it was received.
    pub port: u16,
    /// `RX_*` and `TX_*`.
    pub ol_flags: u64,
    /// What the NIC recognised.
    pub packet_type: u32,
    /// Bytes of frame in all segments.
    pub pkt_len: u32,
    /// Bytes of frame in this segment.
    pub data_len: u16,
    /// A VLAN tag that the NIC took off.
    pub vlan_tci: u16,
    /// Hash of the flow, with [`RX_RSS_HASH`].
    pub rss_hash: u32,
    _reserved: u32,
    /// An outer VLAN tag that the NIC took off.
    pub vlan_tci_outer: u16,
    /// Bytes of buffer.
    pub buf_len: u16,
    /// Where it goes back to.
    pub pool: *mut rte_mempool,
    /// The next segment.
    pub next: *mut rte_mbuf,
    /// Made by [`tx_offload`].
    pub tx_offload: u64,
    /// Of a buffer that lies elsewhere.
    pub shinfo: *mut c_void,
    /// Bytes between descriptor and buffer.
    pub priv_size: u16,
    _unused: [u8; 38],
}

impl rte_mbuf {
    /// Whether it has one owner, and no further segment.
    #[inline(always)]
    pub fn is_single(&self) -> bool {
        // SAFETY: both numbers lie within the mbuf, one behind the other; one comparison serves for both.
        let both = unsafe { (&raw const self.refcnt).cast::<u32>().read_unaligned() };
        both == 1 << 16 | 1
    }
}

/// [`rte_mbuf::rss_hash`] holds a hash.
pub const RX_RSS_HASH: u64 = 1 << 1;
/// Both bits of what the NIC found out about the L4 checksum.
pub const RX_L4_CKSUM_MASK: u64 = 1 << 3 | 1 << 8;
/// It is wrong.
pub const RX_L4_CKSUM_BAD: u64 = 1 << 3;
/// It is right.
pub const RX_L4_CKSUM_GOOD: u64 = 1 << 8;
/// The data is right, and the checksum's field holds the pseudo header's sum.
pub const RX_L4_CKSUM_NONE: u64 = 1 << 3 | 1 << 8;
/// Several segments were made one; [`tx_offload`] has their size.
pub const RX_LRO: u64 = 1 << 16;
/// The device cuts UDP.
pub const TX_UDP_SEG: u64 = 1 << 42;
/// The device cuts TCP.
pub const TX_TCP_SEG: u64 = 1 << 50;
/// The device completes the checksum of TCP.
pub const TX_TCP_CKSUM: u64 = 1 << 52;
/// The device completes the checksum of SCTP.
pub const TX_SCTP_CKSUM: u64 = 2 << 52;
/// The device completes the checksum of UDP.
pub const TX_UDP_CKSUM: u64 = 3 << 52;
/// Which of these three.
pub const TX_L4_MASK: u64 = 3 << 52;
/// The device completes the checksum of the IPv4 header.
pub const TX_IP_CKSUM: u64 = 1 << 54;
/// The packet is IPv4.
pub const TX_IPV4: u64 = 1 << 55;
/// The packet is IPv6.
pub const TX_IPV6: u64 = 1 << 56;
/// The buffer is another mbuf's, or outside: such a one is no packet of Weir's.
pub const NOT_DIRECT: u64 = 1 << 61 | 1 << 62;

/// The value of [`rte_mbuf::tx_offload`]: lengths of the headers in bytes, and payload of a segment.
pub const fn tx_offload(l2: u16, l3: u16, l4: u16, segment: u16) -> u64 {
    (l2 as u64 & 0x7f) | (l3 as u64 & 0x1ff) << 7 | (l4 as u64 & 0xff) << 16 | (segment as u64) << 24
}

/// The payload of a segment that [`rte_mbuf::tx_offload`] holds.
pub const fn segment_size(tx_offload: u64) -> u16 {
    (tx_offload >> 24) as u16
}

macro_rules! check {
    ($($field:ident: $at:literal,)*) => { $(const _: () = assert!(offset_of!(rte_mbuf, $field) == $at);)* };
}

check! {
    buf_addr: 0, buf_iova: 8, data_off: 16, refcnt: 18, nb_segs: 20, port: 22, ol_flags: 24, packet_type: 32,
    pkt_len: 36, data_len: 40, vlan_tci: 42, rss_hash: 44, vlan_tci_outer: 52, buf_len: 54, pool: 56, next: 64,
    tx_offload: 72, shinfo: 80, priv_size: 88,
}
const _: () = assert!(size_of::<rte_mbuf>() == 128);
// As `is_single` reads them.
const _: () = assert!(offset_of!(rte_mbuf, nb_segs) == offset_of!(rte_mbuf, refcnt) + 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_their_places() {
        assert_eq!(tx_offload(14, 20, 32, 1448), 14 | 20 << 7 | 32 << 16 | 1448 << 24);
        assert_eq!(segment_size(tx_offload(127, 511, 255, 1448)), 1448);
    }
}
