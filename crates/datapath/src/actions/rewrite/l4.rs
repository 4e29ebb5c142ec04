//! TCP (RFC 9293), UDP (RFC 768), SCTP (RFC 9260), ICMP (RFC 792) and ICMPv6 (RFC 4443).

use packet::Packet;
use packet::flow::block::Common;
use packet::flow::extract::Layers;
use packet::wire::sctp;

use super::checksum::{Delta, store};
use super::{ICMP, ICMPV6, IPV4, IPV6, Rewriter, SCTP, TCP, UDP};

/// Offset of the checksum in the L4 header, for protocols with an Internet checksum.
fn checksum_at(proto: u8) -> Option<usize> {
    match proto {
        TCP => Some(16),
        UDP => Some(6),
        ICMP | ICMPV6 => Some(2),
        _ => None,
    }
}

/// Updates the L4 checksum for a change of the pseudo header (`pseudo`) or of the L4 packet. Later fragments have no
/// L4 header and no checksum.
pub(super) fn fix_checksum(packet: &mut Packet, dl_type: u16, proto: u8, layers: &Layers, delta: Delta, pseudo: bool) {
    let Some(offset) = checksum_at(proto).filter(|_| layers.l4 != Layers::NONE && !delta.is_zero()) else { return };
    if pseudo && proto == ICMP || proto == ICMPV6 && dl_type == IPV4 {
        return;
    }
    let offload = *packet.offload();
    let at = layers.l4 as usize + offset;
    let Some(field) = packet.data_mut().get_mut(at..at + 2) else { return };
    let old = u16::from_be_bytes([field[0], field[1]]);
    // Checksum offload: the field holds the sum of the pseudo header only.
    let new = if offload.needs_csum() && offload.csum_start == layers.l4 {
        if pseudo { delta.apply_to_sum(old) } else { old }
    } else if proto == UDP && old == 0 {
        // RFC 768: no checksum.
        0
    } else {
        match delta.apply(old) {
            0 if proto == UDP => 0xffff,
            new => new,
        }
    };
    field.copy_from_slice(&new.to_be_bytes());
}

/// Writes ports, or type and code.
pub(super) fn set_ports(r: &Rewriter, packet: &mut Packet, dl_type: u16, common: &Common, layers: &Layers) {
    let proto = common.nw_proto;
    let ports = matches!(proto, TCP | UDP | SCTP);
    let icmp = (dl_type, proto) == (IPV4, ICMP) || (dl_type, proto) == (IPV6, ICMPV6);
    if !ports && !icmp {
        return;
    }
    let (value, mask) = (&r.common.value, &r.common.mask);
    let (src, dst) = (value.tp_src.to_bytes(), value.tp_dst.to_bytes());
    let (src_mask, dst_mask) = (mask.tp_src.to_bytes(), mask.tp_dst.to_bytes());
    let at = layers.l4 as usize;
    if proto == SCTP {
        let value = [src[0], src[1], dst[0], dst[1]];
        return set_sctp(packet, common, layers, value, [src_mask[0], src_mask[1], dst_mask[0], dst_mask[1]]);
    }
    let Some(header) = packet.data_mut().get_mut(at..at + 4) else { return };
    let mut delta = Delta::default();
    if ports {
        store(&mut header[..2], &src, &src_mask, &mut [&mut delta]);
        store(&mut header[2..], &dst, &dst_mask, &mut [&mut delta]);
    } else {
        // Type and code are the low bytes.
        store(&mut header[..2], &[src[1], dst[1]], &[src_mask[1], dst_mask[1]], &mut [&mut delta]);
    }
    fix_checksum(packet, dl_type, proto, layers, delta, false);
}

/// SCTP's CRC covers the whole message. It is updated incrementally, since a CRC is linear, so a CRC that was wrong
/// before stays wrong. The CRC of a fragmented message cannot be computed from one fragment, and is wrong afterwards.
fn set_sctp(packet: &mut Packet, common: &Common, layers: &Layers, value: [u8; 4], mask: [u8; 4]) {
    let offload = *packet.offload();
    let at = layers.l4 as usize;
    let Some(end) = l3_end(packet.data(), common.dl_type.get(), layers.l3 as usize) else { return };
    let Some(message) = packet.data_mut().get_mut(at..end).filter(|m| m.len() >= 12) else { return };
    let crc = |m: &[u8]| sctp::Packet::new_checked(m).map_or(0, |m| u32::from_le_bytes(m.compute_checksum()));
    let complete = !(offload.needs_csum() && offload.csum_start == layers.l4);
    let before = if complete { crc(message) } else { 0 };
    store(&mut message[..4], &value, &mask, &mut []);
    if complete {
        let field = u32::from_le_bytes([message[8], message[9], message[10], message[11]]);
        let new = field ^ before ^ crc(message);
        message[8..12].copy_from_slice(&new.to_le_bytes());
    }
}

/// Where the L3 packet ends, by its own length: an Ethernet frame may be padded.
pub(super) fn l3_end(frame: &[u8], dl_type: u16, l3: usize) -> Option<usize> {
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    let end = if dl_type == IPV4 { l3 + word(l3 + 2)? } else { l3 + 40 + word(l3 + 4)? };
    (end <= frame.len()).then_some(end)
}
