//! `struct virtio_net_hdr` (virtio 1.2 section 5.1.6), which tap devices and packet sockets put in
//! front of each frame, in its form of 10 bytes, and in that of 24 bytes, which has a place for tunnels (`struct
//! virtio_net_hdr_v1_hash_tunnel`, virtio 1.4; taps of Linux since 6.17).
//!
//! Its 16-bit fields are little endian in virtio 1.0 and later, but in the byte order of the machine
//! on taps and packet sockets: the kernel reads them as "legacy virtio" unless TUNSETVNETLE or
//! TUNSETVNETBE say otherwise (drivers/net/tun.c), and packet sockets know nothing else
//! (net/packet/af_packet.c, `vio_le`).

use packet::Offload;

use crate::offload::{self, TunnelPlace};

/// Bytes of the header.
pub const LEN: usize = 10;

/// Bytes of the form that knows tunnels.
pub const TUNNEL_LEN: usize = 24;

/// Segments are in a tunnel over UDP over IPv4; over IPv6.
const GSO_TUNNEL_IPV4: u8 = 0x20;
const GSO_TUNNEL_IPV6: u8 = 0x40;

/// The header that says `offload` of a frame in a tunnel, or in none.
#[inline]
pub fn encode_tunnelled(offload: &Offload, tunnel: Option<TunnelPlace>) -> [u8; TUNNEL_LEN] {
    let mut header = [0; TUNNEL_LEN];
    header[..LEN].copy_from_slice(&encode(offload));
    if let Some(TunnelPlace { outer_l4, inner_l3, outer_ipv6 }) = tunnel {
        header[1] |= if outer_ipv6 { GSO_TUNNEL_IPV6 } else { GSO_TUNNEL_IPV4 };
        // Little endian on every machine (include/linux/virtio_net.h, virtio_net_hdr_tnl_to_skb).
        header[20..22].copy_from_slice(&outer_l4.to_le_bytes());
        header[22..24].copy_from_slice(&inner_l3.to_le_bytes());
    }
    header
}

/// What a header says that the kernel has made, and that may know of a tunnel. Where the tunnel's headers are need not be remembered: the
/// place of the checksum tells.
#[inline]
pub fn decode_tunnelled(header: &[u8; TUNNEL_LEN]) -> Offload {
    let Some(mut first) = header.first_chunk().copied() else { return Offload::NONE };
    first[1] &= !(GSO_TUNNEL_IPV4 | GSO_TUNNEL_IPV6);
    decode(&first)
}

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
    fn tunnels_are_told_in_the_long_form() {
        let offload = Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: Offload::GSO_TCPV4,
            hdr_len: 104,
            gso_size: 1398,
            csum_start: 84,
            csum_offset: 16,
        };
        assert_eq!(encode_tunnelled(&offload, None)[..LEN], encode(&offload));
        for outer_ipv6 in [false, true] {
            let header = encode_tunnelled(&offload, Some(TunnelPlace { outer_l4: 34, inner_l3: 64, outer_ipv6 }));
            assert_eq!(header[1], 1 | if outer_ipv6 { 0x40 } else { 0x20 });
            assert_eq!((&header[20..22], &header[22..]), (&[34, 0][..], &[64, 0][..]));
            assert_eq!(decode_tunnelled(&header), offload);
        }
    }

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
