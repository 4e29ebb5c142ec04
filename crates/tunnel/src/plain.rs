//! Packets like most: IPv4 without options or marks of congestion, UDP, and VXLAN or Geneve that carries a frame and says nothing else.
//!
//! All headers have fixed places then, so one check of bounds is enough, and nothing has to be remembered between them. Any other packet is
//! [`metadata::receive`](crate::metadata::receive)'s.

use std::ops::Range;

use packet::flow::{block, tun_flags};
use packet::wire::{ethertype, ip_proto, ipv4, udp};
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, KnownLayout, Unaligned};

use crate::ecn;
use crate::header::{GENEVE_LEN, Protocol, VXLAN_LEN};
use crate::outer::sums_up;

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
