//! Requests that travel in front of a frame to be sent, `struct xsk_tx_metadata` of linux/if_xdp.h
//! (Documentation/networking/xsk-tx-metadata.rst): here, to have its checksum completed.
//!
//! A socket without zero-copy then sends the frame with its checksum left to the interface, as a stack
//! would. Over a veth nobody ever computes it.

use packet::Packet;

/// Bytes in front of the frame: flags, and a request of 16 bytes.
pub const LEN: usize = 24;

/// XDP_UMEM_TX_METADATA_LEN: the registration says how long metadata is.
pub const UMEM_FLAG: u32 = 1 << 2;

/// XDP_TX_METADATA: this descriptor's frame has metadata.
const DESCRIPTOR_FLAG: u32 = 1 << 1;

/// XDP_TXMD_FLAGS_CHECKSUM.
const CHECKSUM: u64 = 1 << 1;

/// Writes the request for what the packet's checksum needs, and returns the options of its descriptor.
/// The packet has [`LEN`] bytes of headroom.
#[inline]
pub fn write(packet: &mut Packet) -> u32 {
    let offload = *packet.offload();
    let Some(metadata) = packet.push_front(LEN) else { return 0 };
    metadata.fill(0);
    metadata[..8].copy_from_slice(&CHECKSUM.to_ne_bytes());
    metadata[8..10].copy_from_slice(&offload.csum_start.to_ne_bytes());
    metadata[10..12].copy_from_slice(&offload.csum_offset.to_ne_bytes());
    packet.pull_front(LEN);
    DESCRIPTOR_FLAG
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Offload;

    #[test]
    fn the_request_lies_in_front_of_the_frame() {
        let mut packet = Packet::from_slice(b"frame");
        *packet.offload_mut() =
            Offload { flags: Offload::NEEDS_CSUM, csum_start: 34, csum_offset: 16, ..Offload::NONE };
        assert_eq!(write(&mut packet), 2);
        assert_eq!(packet.data(), b"frame");
        let metadata = packet.push_front(LEN).unwrap();
        assert_eq!((metadata[0], metadata[8], metadata[10]), (2, 34, 16));
        assert!(metadata[11..].iter().all(|&b| b == 0));
    }
}
