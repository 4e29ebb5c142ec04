//! ARP (RFC 826) and IPv6 neighbour discovery (RFC 4861).

use packet::Packet;
use packet::flow::extract::Layers;

use super::checksum::{Delta, store};
use super::l4::{fix_checksum, l3_end};
use super::{ICMPV6, IPV6, Rewriter};

const SOLICITATION: u16 = 135;
const ADVERTISEMENT: u16 = 136;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;

pub(super) fn set_arp(r: &Rewriter, frame: &mut [u8], layers: &Layers) {
    let at = layers.l3 as usize;
    let Some(arp) = frame.get_mut(at..at + 28) else { return };
    let (value, mask, l3) = (&r.common.value, &r.common.mask, r.l3_or_wild());
    store(&mut arp[6..8], &[0, value.nw_proto], &[mask.nw_proto, mask.nw_proto], &mut []);
    store(&mut arp[8..14], &l3.value.arp_sha, &l3.mask.arp_sha, &mut []);
    store(&mut arp[14..18], &value.nw_src.to_bytes(), &mask.nw_src.to_bytes(), &mut []);
    store(&mut arp[18..24], &l3.value.arp_tha, &l3.mask.arp_tha, &mut []);
    store(&mut arp[24..28], &value.nw_dst.to_bytes(), &mask.nw_dst.to_bytes(), &mut []);
}

/// Writes target, reserved field and link-layer address options of a solicitation or advertisement.
pub(super) fn set_nd(r: &Rewriter, packet: &mut Packet, layers: &Layers) {
    let Some(end) = l3_end(packet.data(), IPV6, layers.l3 as usize) else { return };
    let message = packet.data_mut().get_mut(layers.l4 as usize..end);
    let Some(message) = message.filter(|message| message.len() >= 24) else { return };
    // The packet's present type counts: an earlier part of this rewrite may have changed it.
    let kind = u16::from(message[0]);
    if !matches!(kind, SOLICITATION | ADVERTISEMENT) || message[1] != 0 {
        return;
    }
    let l3 = r.l3_or_wild();
    let mut delta = Delta::default();
    let (header, options) = message.split_at_mut(24);
    if let Some(encap) = r.encap.as_deref() {
        let (value, mask) = (encap.value.nd_reserved.to_bytes(), encap.mask.nd_reserved.to_bytes());
        store(&mut header[4..8], &value, &mask, &mut [&mut delta]);
    }
    store(&mut header[8..24], &l3.value.nd_target, &l3.mask.nd_target, &mut [&mut delta]);
    set_options(r, kind, options, &mut delta);
    fix_checksum(packet, IPV6, ICMPV6, layers, delta, false);
}

/// The first link-layer address option of the type that the message can have.
fn set_options(r: &Rewriter, kind: u16, mut options: &mut [u8], delta: &mut Delta) {
    let l3 = r.l3_or_wild();
    let (wanted, value, mask) = match kind {
        SOLICITATION => (SOURCE_ADDRESS, l3.value.arp_sha, l3.mask.arp_sha),
        _ => (TARGET_ADDRESS, l3.value.arp_tha, l3.mask.arp_tha),
    };
    while options.len() >= 8 && options[1] != 0 {
        let len = 8 * options[1] as usize;
        if len > options.len() {
            return;
        }
        let (option, rest) = options.split_at_mut(len);
        if option[0] == wanted && len == 8 {
            store(&mut option[2..8], &value, &mask, &mut [delta]);
            if let Some(encap) = r.encap.as_deref() {
                let (value, mask) = (encap.value.nd_options_type, encap.mask.nd_options_type);
                store(&mut option[..2], &[value, 0], &[mask, 0], &mut [delta]);
            }
            return;
        }
        options = rest;
    }
}
