//! The general path: any frame, read front to back, each header checked before it is used.

use super::load::{be16, be32, chunk, copy};
use super::{Layers, MAX_LABEL_STACK, MAX_LABELS, MAX_VLANS, SimpleMark, VlanLimit};
use super::{ipv6, l4};
use crate::flow::block::Vlan;
use crate::flow::{DL_TYPE_NONE, Key, VLAN_PRESENT, frag};

/// The smallest value of the type/length word that is an Ethernet type (IEEE 802.3 3.2.6).
const ETHERTYPE_MIN: u16 = 0x0600;

/// [`extract`](super::extract) for everything that is not plain.
#[inline(never)]
pub fn ethernet(frame: &[u8], key: &mut Key, vlan_limit: VlanLimit) -> Layers {
    clear(key);
    let Some(header) = chunk::<14>(frame, 0) else { return Layers::EMPTY };
    let common = key.common_mut();
    common.dl_dst = copy(header, 0);
    common.dl_src = copy(header, 6);
    let l2 = vlans_and_type(frame, vlan_limit);
    common.vlan = l2.vlan;
    let layers = Layers { vlans: l2.vlans, ..Layers::EMPTY };
    layer3(frame, l2.end, l2.dl_type, layers, key)
}

/// [`extract_l3`](super::extract_l3).
pub fn without_ethernet(packet: &[u8], ethertype: u16, key: &mut Key) -> Layers {
    clear(key);
    layer3(packet, 0, ethertype, Layers::EMPTY, key)
}

/// [`simple_mark`](super::simple_mark) for everything that is not plain.
#[inline(never)]
pub fn simple_mark(frame: &[u8], vlan_limit: VlanLimit) -> SimpleMark {
    if frame.len() < 14 {
        return SimpleMark::default();
    }
    let l2 = vlans_and_type(frame, vlan_limit);
    let nw_frag = match l2.dl_type {
        0x0800 => Ipv4::parse(frame, l2.end).map_or(0, |ip| ip.nw_frag),
        0x86dd => ipv6::parse(frame, l2.end).and_then(|ip| ip.upper).map_or(0, |upper| upper.nw_frag),
        _ => 0,
    };
    SimpleMark { dl_type: l2.dl_type, vlan_tci: l2.vlan[0].tci.get(), nw_frag }
}

/// Zeroes the packet's part of the common block.
#[inline(always)]
fn clear(key: &mut Key) {
    key.common_words_mut()[..5].fill(0);
}

struct L2 {
    vlan: [Vlan; MAX_VLANS],
    vlans: u8,
    dl_type: u16,
    /// First byte behind the L2 headers.
    end: usize,
}

/// Reads VLAN tags and the Ethernet type of a frame of at least 14 bytes.
///
/// A tag counts only if the type behind it is there too. The CFI bit is set for every tag, so that a tag
/// with VLAN id and priority zero differs from no tag (ovs-fields(7), "VLAN Fields").
#[inline(always)]
fn vlans_and_type(frame: &[u8], vlan_limit: VlanLimit) -> L2 {
    let mut vlan = [Vlan { tpid: 0.into(), tci: 0.into() }; MAX_VLANS];
    let (mut vlans, mut end) = (0, 12);
    while vlans < vlan_limit.tags()
        && let Some(tag) = chunk::<6>(frame, end)
        && matches!(be16(tag, 0), 0x8100 | 0x88a8)
    {
        vlan[vlans] = Vlan { tpid: be16(tag, 0).into(), tci: (be16(tag, 2) | VLAN_PRESENT).into() };
        vlans += 1;
        end += 4;
    }
    let (dl_type, end) = ethertype(frame, end);
    L2 { vlan, vlans: vlans as u8, dl_type, end }
}

/// The Ethernet type at `at`, and where the payload starts. An 802.3 length instead of a type is followed
/// by LLC; with the SNAP header of RFC 1042 and organisation zero that has the type.
#[inline(always)]
fn ethertype(frame: &[u8], at: usize) -> (u16, usize) {
    let value = chunk::<2>(frame, at).map_or(0, |&b| u16::from_be_bytes(b));
    if value >= ETHERTYPE_MIN {
        return (value, at + 2);
    }
    match chunk::<8>(frame, at + 2) {
        Some([0xaa, 0xaa, 0x03, 0, 0, 0, ty @ ..]) => {
            let value = u16::from_be_bytes(*ty);
            (if value >= ETHERTYPE_MIN { value } else { DL_TYPE_NONE }, at + 10)
        }
        _ => (DL_TYPE_NONE, at + 2),
    }
}

/// From the first byte behind the L2 headers on.
#[inline(always)]
fn layer3(frame: &[u8], at: usize, dl_type: u16, mut layers: Layers, key: &mut Key) -> Layers {
    key.common_mut().dl_type = dl_type.into();
    match dl_type {
        0x0800 => ipv4(frame, at, &mut layers, key),
        0x86dd => ipv6(frame, at, &mut layers, key),
        0x0806 | 0x8035 => arp(frame, at, &mut layers, key),
        0x8847 | 0x8848 => mpls(frame, at, &mut layers, key),
        0x894f => nsh(frame, at, &mut layers, key),
        0x88e7 => pbb(frame, at, &mut layers, key),
        _ => layers.l3 = at as u16,
    }
    layers
}

struct Ipv4<'a> {
    header: &'a [u8; 20],
    nw_frag: u8,
    /// First byte behind the header with its options.
    l4: usize,
    /// First byte behind the packet: what follows in the frame is padding.
    end: usize,
}

impl Ipv4<'_> {
    /// Reads the header at `at`; `None` unless its lengths are consistent with each other and with the
    /// frame (RFC 791 section 3.1). The version is not looked at: dl_type has said it.
    #[inline(always)]
    fn parse(frame: &[u8], at: usize) -> Option<Ipv4<'_>> {
        let header = chunk::<20>(frame, at)?;
        let size = frame.len() - at;
        let header_len = usize::from(header[0] & 0xf) * 4;
        let total = usize::from(be16(header, 2));
        if header_len < 20 || header_len > total || total > size || size - total > usize::from(u16::MAX) {
            return None;
        }
        let word = be16(header, 6);
        // Without a branch: fragments may alternate with whole packets.
        let (is_any, is_later) = (word & 0x3fff != 0, word & 0x1fff != 0);
        let nw_frag = (u8::from(is_any) * frag::ANY) | (u8::from(is_later) * frag::LATER);
        Some(Ipv4 { header, nw_frag, l4: at + header_len, end: at + total })
    }
}

fn ipv4(frame: &[u8], at: usize, layers: &mut Layers, key: &mut Key) {
    let Some(Ipv4 { header, nw_frag, l4, end }) = Ipv4::parse(frame, at) else { return };
    layers.l3 = at as u16;
    let common = key.common_mut();
    common.nw_tos = header[1];
    common.nw_ttl = header[8];
    common.nw_proto = header[9];
    common.nw_frag = nw_frag;
    common.nw_src = be32(header, 12).into();
    common.nw_dst = be32(header, 16).into();
    if nw_frag & frag::LATER == 0 && l4::ports(&frame[l4..end], header[9], common) {
        layers.l4 = l4 as u16;
    }
}

fn ipv6(frame: &[u8], at: usize, layers: &mut Layers, key: &mut Key) {
    let Some(ip) = ipv6::parse(frame, at) else { return };
    layers.l3 = at as u16;
    let l3 = key.l3_mut();
    l3.ipv6_src = copy(ip.header, 8);
    l3.ipv6_dst = copy(ip.header, 24);
    // With a broken chain of extension headers the addresses are all that is known.
    let Some(upper) = ip.upper else { return };
    let word = be32(ip.header, 0);
    l3.ipv6_label = (word & 0xf_ffff).into();
    let common = key.common_mut();
    common.nw_tos = (word >> 20) as u8;
    common.nw_ttl = ip.header[7];
    common.nw_proto = upper.proto;
    common.nw_frag = upper.nw_frag;
    if upper.nw_frag & frag::LATER == 0 {
        let payload = &frame[upper.at..ip.end];
        if l4::ports(payload, upper.proto, common) {
            layers.l4 = upper.at as u16;
            if upper.proto == 58 {
                l4::neighbour_discovery(payload, key);
            }
        }
    }
    if upper.exthdr != 0 {
        key.encap_mut().ipv6_exthdr = upper.exthdr.into();
    }
}

/// ARP and RARP, for Ethernet and IPv4 only (RFC 826). Only opcodes that fit nw_proto are put there.
fn arp(frame: &[u8], at: usize, layers: &mut Layers, key: &mut Key) {
    let Some(header) = chunk::<28>(frame, at) else { return };
    let [0, 1, 0x08, 0x00, 6, 4, ..] = header else { return };
    layers.l3 = at as u16;
    let common = key.common_mut();
    common.nw_proto = u8::try_from(be16(header, 6)).unwrap_or(0);
    common.nw_src = be32(header, 14).into();
    common.nw_dst = be32(header, 24).into();
    let l3 = key.l3_mut();
    l3.arp_sha = copy(header, 8);
    l3.arp_tha = copy(header, 18);
}

/// MPLS (RFC 3032): the stack ends with the bottom-of-stack bit.
fn mpls(frame: &[u8], at: usize, layers: &mut Layers, key: &mut Key) {
    let stack = &frame[at..];
    let entries = || stack.as_chunks::<4>().0.iter().take(MAX_LABEL_STACK);
    let bottom = entries().position(|lse| lse[2] & 1 != 0);
    let depth = bottom.map_or(entries().len(), |bottom| bottom + 1);
    if bottom.is_some() || depth < MAX_LABEL_STACK {
        layers.l3 = (at + 4 * depth) as u16;
    }
    if depth > 0 {
        layers.l2_5 = at as u16;
        let to = &mut key.encap_mut().mpls_lse;
        for (to, lse) in to.iter_mut().zip(entries().take(depth.min(MAX_LABELS))) {
            *to = u32::from_be_bytes(*lse).into();
        }
    }
}

/// NSH version 0 (RFC 8300 section 2); context headers of metadata type 1 only.
fn nsh(frame: &[u8], at: usize, layers: &mut Layers, key: &mut Key) {
    layers.l3 = at as u16;
    let Some(header) = chunk::<8>(frame, at) else { return };
    let word = be16(header, 0);
    let length = usize::from(word & 0x3f) * 4;
    if word >> 14 != 0 || length < 8 || length > frame.len() - at {
        return;
    }
    let mut context = [[0; 4]; 4];
    if header[2] == 1 {
        match chunk::<16>(frame, at + 8) {
            Some(bytes) if length == 24 => context.copy_from_slice(bytes.as_chunks().0),
            _ => return,
        }
    }
    let encap = key.encap_mut();
    encap.nsh_flags = (word >> 12 & 3) as u8;
    encap.nsh_ttl = (word >> 6 & 0x3f) as u8;
    encap.nsh_mdtype = header[2];
    encap.nsh_np = header[3];
    encap.nsh_path = be32(header, 4).into();
    encap.nsh_c = context.map(|c| u32::from_be_bytes(c).into());
}

/// The I-TAG of IEEE 802.1Q section 9.7: priority (3 bits), DEI, UCA, reserved (3 bits), I-SID (24 bits).
fn pbb(frame: &[u8], at: usize, layers: &mut Layers, key: &mut Key) {
    layers.l3 = at as u16;
    let Some(tag) = chunk::<4>(frame, at) else { return };
    let tag = u32::from_be_bytes(*tag);
    let encap = key.encap_mut();
    encap.pbb_isid = (tag & 0xff_ffff).into();
    encap.pbb_uca = (tag >> 27 & 1) as u8;
}
