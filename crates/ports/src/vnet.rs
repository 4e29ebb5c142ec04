//! `struct virtio_net_hdr` (virtio 1.2 section 5.1.6), which tap devices and packet sockets put in
//! front of each frame, in its form of 10 bytes.
//!
//! Its 16-bit fields are little endian in virtio 1.0 and later, but in the byte order of the machine
//! on taps and packet sockets: the kernel reads them as "legacy virtio" unless TUNSETVNETLE or
//! TUNSETVNETBE say otherwise (drivers/net/tun.c), and packet sockets know nothing else
//! (net/packet/af_packet.c, `vio_le`).

use packet::Offload;

use crate::offload;

/// Bytes of the header.
pub const LEN: usize = 10;

/// The header that says `offload`, in the byte order of the machine.
#[inline]
pub fn encode(offload: &Offload) -> [u8; LEN] {
    let mut header = [0; LEN];
    header[0] = offload.flags & Offload::NEEDS_CSUM;
    header[1] = offload.gso_type;
    header[2..4].copy_from_slice(&offload.hdr_len.to_ne_bytes());
    header[4..6].copy_from_slice(&offload.gso_size.to_ne_bytes());
    header[6..8].copy_from_slice(&offload.csum_start.to_ne_bytes());
    header[8..10].copy_from_slice(&offload.csum_offset.to_ne_bytes());
    header
}

/// What a header that was received says, in the byte order of the machine.
#[inline]
pub fn decode(header: &[u8; LEN]) -> Offload {
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let mut offload = Offload::NONE;
    offload.flags = header[0] & (Offload::NEEDS_CSUM | Offload::DATA_VALID);
    if offload.needs_csum() {
        offload.csum_start = field(6);
        offload.csum_offset = field(8);
    }
    offload.gso_type = header[1];
    if offload.is_gso() {
        offload.hdr_len = field(2);
        offload.gso_size = field(4);
        offload::note_received(&offload);
    }
    offload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip() {
        let offload = Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: Offload::GSO_TCPV6 | Offload::GSO_ECN,
            hdr_len: 74,
            gso_size: 1440,
            csum_start: 54,
            csum_offset: 16,
        };
        assert_eq!(decode(&encode(&offload)), offload);
        assert_eq!(encode(&offload)[4..6], 1440u16.to_ne_bytes());
        let verified = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        assert_eq!(decode(&[2, 0, 9, 9, 9, 9, 9, 9, 9, 9]), verified, "fields without meaning are cleared");
        assert_eq!(encode(&verified), [0; LEN], "DATA_VALID is for receivers only");
    }
}
