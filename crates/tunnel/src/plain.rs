//! Packets like most: IPv4 without options or marks of congestion, UDP, and VXLAN or Geneve that carries a frame and says nothing else.
//!
//! All headers have fixed places then, so one check of bounds is enough, and nothing has to be remembered between them. Any other packet is
//! [`metadata::receive`](crate::metadata::receive)'s.
//!
//! [`receive_more`] is for those that are a little less like most: over IPv6, with a checksum of UDP that is to be verified, or of Geneve with
//! options. It is a function of its own, so that the first one stays short.

use std::ops::Range;

use packet::flow::{block, tun_flags};
use packet::wire::checksum::{Sum, pseudo_v4};
use packet::wire::{ethertype, ip_proto, ipv4, ipv6, udp};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, KnownLayout, Unaligned};

use crate::header::{GENEVE_LEN, Protocol, VXLAN_LEN};
use crate::outer::sums_up;
use crate::{ecn, options};

/// Flags and reserved bits of VXLAN (RFC 7348 section 5): there is a network identifier.
const VXLAN: [u8; 4] = [0x08, 0, 0, 0];

/// What precedes the network identifier of Geneve (RFC 8926 section 3.4): version 0, no options, no flags, Ethernet.
const GENEVE: [u8; 4] = {
    let [a, b] = ethertype::TEB.to_be_bytes();
    [0, 0, a, b]
};

/// The shortest frame that is carried.
const SHORTEST: usize = 14;

/// All headers of a frame.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Headers {
    addresses: [u8; 12],
    ethertype: U16,
    ip: ipv4::Header,
    udp: udp::Header,
    first: [u8; 4],
    vni: [u8; 3],
    reserved: u8,
}

const _: () = assert!(VXLAN_LEN == 8 && GENEVE_LEN == 8, "the headers of both are as long");

/// Where the carried frame lies in a frame that is for a tunnel's end, and what its headers say, as
/// [`metadata::receive`](crate::metadata::receive) would. `verify`: whether a checksum of UDP has to be looked at. `None` says nothing of
/// the frame but that it is not like most; then the block has no meaning.
#[inline(always)]
pub fn receive(frame: &[u8], protocol: Protocol, verify: bool, block: &mut block::Tunnel) -> Option<Range<usize>> {
    let (first, reserved) = match protocol {
        Protocol::Vxlan { .. } => (VXLAN, 0xff),
        Protocol::Geneve => (GENEVE, 0),
        _ => return None,
    };
    let (headers, _) = Headers::ref_from_prefix(frame).ok()?;
    let Headers { ip, udp, .. } = headers;
    let (total, len) = (usize::from(ip.total_len.get()), usize::from(udp.len.get()));
    let checksum = udp.checksum.get();
    // Together, without a branch for each.
    let is_plain = (headers.ethertype.get() == ethertype::IPV4)
        & (ip.version_ihl == 0x45)
        & (ip.tos & ecn::MASK == 0)
        & (ip.flags_offset.get() & !ipv4::DONT_FRAGMENT == 0)
        & (ip.proto == ip_proto::UDP)
        & (headers.first == first)
        & (headers.reserved & reserved == 0)
        & (checksum == 0 || !verify)
        & (len >= size_of_val(udp) + size_of_val(&first) + 4 + SHORTEST)
        & (size_of_val(ip) + len <= total)
        & (14 + total <= frame.len())
        & sums_up(ip);
    if !is_plain {
        return None;
    }
    let [a, b, c] = headers.vni;
    let is_summed = if checksum == 0 { 0 } else { tun_flags::CSUM };
    *block = block::Tunnel {
        tun_id: u64::from(u32::from_be_bytes([0, a, b, c])).into(),
        tun_src: ip.src.into(),
        tun_dst: ip.dst.into(),
        tun_flags: (tun_flags::KEY | is_summed).into(),
        tun_tos: ip.tos,
        tun_ttl: ip.ttl,
        ..FromZeros::new_zeroed()
    };
    Some(size_of_val(headers)..14 + size_of_val(ip) + len)
}

/// What follows an IP header without options.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Above {
    udp: udp::Header,
    first: [u8; 4],
    vni: [u8; 3],
    reserved: u8,
}

/// The header of IPv4, in a frame.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Below4 {
    addresses: [u8; 12],
    ethertype: U16,
    ip: ipv4::Header,
}

/// The header of IPv6, in a frame.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Below6 {
    addresses: [u8; 12],
    ethertype: U16,
    ip: ipv6::Header,
}

/// As [`receive`], for frames that are a little less like most. Also returns the options of Geneve.
#[inline(never)]
pub fn receive_more<'a>(
    frame: &'a [u8],
    protocol: Protocol,
    verify: bool,
    block: &mut block::Tunnel,
) -> Option<(Range<usize>, &'a [u8])> {
    let (above, is_plain, total, pseudo) = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let ip = &Below4::ref_from_prefix(frame).ok()?.0.ip;
            let is_plain = (ip.version_ihl == 0x45)
                & (ip.tos & ecn::MASK == 0)
                & (ip.flags_offset.get() & !ipv4::DONT_FRAGMENT == 0)
                & (ip.proto == ip_proto::UDP)
                & sums_up(ip);
            *block = block::Tunnel {
                tun_src: ip.src.into(),
                tun_dst: ip.dst.into(),
                tun_tos: ip.tos,
                tun_ttl: ip.ttl,
                ..FromZeros::new_zeroed()
            };
            let total = usize::from(ip.total_len.get()).checked_sub(size_of_val(ip))?;
            (size_of::<Below4>(), is_plain, total, pseudo_v4(ip.src.into(), ip.dst.into(), ip_proto::UDP, 0))
        }
        [0x86, 0xdd] => {
            let ip = &Below6::ref_from_prefix(frame).ok()?.0.ip;
            let class = ip.traffic_class();
            let is_plain =
                (ip.version_class_label.get() >> 28 == 6) & (class & ecn::MASK == 0) & (ip.next == ip_proto::UDP);
            *block = block::Tunnel {
                tun_ipv6_src: ip.src,
                tun_ipv6_dst: ip.dst,
                tun_tos: class,
                tun_ttl: ip.hop_limit,
                ..FromZeros::new_zeroed()
            };
            let pseudo = Sum::ZERO.add_bytes(&ip.src).add_bytes(&ip.dst).add_u16(ip_proto::UDP.into());
            (size_of::<Below6>(), is_plain, usize::from(ip.payload_len.get()), pseudo)
        }
        _ => return None,
    };
    let (Above { udp, first, vni: [a, b, c], reserved }, _) = Above::ref_from_prefix(frame.get(above..)?).ok()?;
    let start = above + size_of::<Above>();
    let [version_len, flags, ..] = *first;
    let (is_known, options_len) = match protocol {
        Protocol::Vxlan { .. } => ((*first == VXLAN) & (*reserved == 0), 0),
        // The bit for critical options is of no use to who looks at the options.
        Protocol::Geneve => {
            let is_known = (version_len >> 6 == 0) & (flags & 0x80 == 0) & (first[2..] == GENEVE[2..]);
            (is_known, usize::from(version_len) * 4)
        }
        _ => return None,
    };
    let (len, checksum) = (usize::from(udp.len.get()), udp.checksum.get());
    let carried = start + options_len;
    let is_plain = is_plain & is_known & (len <= total) & (above + len >= carried + SHORTEST);
    if !is_plain || above + total > frame.len() {
        return None;
    }
    let options = frame.get(start..carried)?;
    if !options.is_empty() && options::check(options).is_err() {
        return None;
    }
    let datagram = frame.get(above..above + len)?;
    if checksum != 0 && verify && pseudo.add_u16(udp.len.get()).add_bytes(datagram).finish() != 0 {
        return None;
    }
    let is_summed = if checksum == 0 { 0 } else { tun_flags::CSUM };
    block.tun_id.set(u32::from_be_bytes([0, *a, *b, *c]).into());
    block.tun_flags.set(tun_flags::KEY | is_summed);
    Some((carried..above + len, options))
}
