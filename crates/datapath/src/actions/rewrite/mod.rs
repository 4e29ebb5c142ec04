//! Set-field: rewrites header fields of a frame, and keeps its checksums correct.
//!
//! A [`Rewriter`] is a [`Rewrite`](crate::Rewrite), reduced to the blocks and groups of fields that it writes. The
//! packet decides which header a field is in: the addresses of the common block are IPv4's or ARP's, its ports those
//! of TCP, UDP or SCTP or the type and code of ICMP. A field of a protocol that the packet does not have is ignored.
//! So is a field of a truncated header: the packet goes on unchanged, as in OVS.

mod checksum;
mod ip;
mod l2;
mod l4;
mod neighbour;
mod nsh;
#[cfg(test)]
mod tests;

pub use ip::{ip_ttl, ip_ttl_word};
pub use l2::{pop_mpls, pop_vlan, push_mpls, push_vlan, shift_offload};

use packet::flow::block::{Common, Encap, L3, Tunnel};
use packet::flow::extract::Layers;
use packet::flow::{Block, BlockId, frag};
use packet::{Key, Packet};
use zerocopy::FromZeros;

use crate::action::Rewrite;
use checksum::Delta;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;

/// Values and mask of one block. Values are zero where the mask is.
struct Pair<T> {
    value: T,
    mask: T,
}

/// A compiled rewrite.
pub struct Rewriter {
    common: Pair<Common>,
    l3: Option<Box<Pair<L3>>>,
    encap: Option<Box<Pair<Encap>>>,
    tunnel: Option<Box<Pair<Tunnel>>>,
    groups: Groups,
}

/// Values or masks of the Ethernet addresses, destination first, and of the TTL.
pub struct AddressesAndTtl {
    pub addresses: ([u8; 6], [u8; 6]),
    pub ttl: u8,
}

/// Which groups of fields a rewrite writes.
#[derive(Clone, Copy, Default, Debug)]
struct Groups {
    ethernet: bool,
    vlan: bool,
    mpls: bool,
    /// TOS, TTL, IPv4 and IPv6 addresses, flow label.
    ip: bool,
    /// ARP operation and addresses.
    arp: bool,
    /// Ports, ICMP type and code.
    l4: bool,
    /// Neighbour discovery.
    nd: bool,
    /// Network service header.
    nsh: bool,
    metadata: bool,
}

impl Rewriter {
    /// Compiles a rewrite.
    pub fn new(rewrite: &Rewrite) -> Rewriter {
        let key = rewrite.key.masked(&rewrite.mask);
        let mask = &rewrite.mask.0;
        let has = |id| !mask.block(id).is_zero();
        let m = mask.common();
        let (m3, addresses) = (mask.l3(), m.nw_src.get() | m.nw_dst.get() != 0);
        let any = |bytes: &[u8]| bytes.iter().any(|&b| b != 0);
        let groups = Groups {
            ethernet: any(&m.dl_dst) || any(&m.dl_src),
            vlan: m.vlan[0].tci.get() != 0,
            mpls: mask.encap().mpls_lse[0].get() != 0,
            ip: m.nw_tos | m.nw_ttl != 0
                || addresses
                || any(&m3.ipv6_src)
                || any(&m3.ipv6_dst)
                || m3.ipv6_label.get() != 0,
            arp: m.nw_proto != 0 || addresses || any(&m3.arp_sha) || any(&m3.arp_tha),
            l4: m.tp_src.get() | m.tp_dst.get() != 0,
            nd: any(&m3.nd_target)
                || any(&m3.arp_sha)
                || any(&m3.arp_tha)
                || mask.encap().nd_reserved.get() != 0
                || mask.encap().nd_options_type != 0,
            nsh: nsh::is_written(mask.encap()),
            metadata: m.pkt_mark.get() | m.skb_priority.get() != 0 || has(BlockId::Tunnel),
        };
        Rewriter {
            common: Pair { value: *key.common(), mask: *mask.common() },
            l3: has(BlockId::L3).then(|| Box::new(Pair { value: *key.l3(), mask: *mask.l3() })),
            encap: has(BlockId::Encap).then(|| Box::new(Pair { value: *key.encap(), mask: *mask.encap() })),
            tunnel: has(BlockId::Tunnel).then(|| Box::new(Pair { value: *key.tunnel(), mask: *mask.tunnel() })),
            groups,
        }
    }

    /// Whether it writes metadata only, which lies in the key.
    pub fn only_metadata(&self) -> bool {
        let Groups { ethernet, vlan, mpls, ip, arp, l4, nd, nsh, metadata: _ } = self.groups;
        !(ethernet | vlan | mpls | ip | arp | l4 | nd | nsh)
    }

    /// Whether it writes metadata.
    pub fn is_of_key(&self) -> bool {
        self.groups.metadata
    }

    /// Whether it writes the Ethernet addresses and the outermost tag only, which are found without parsing.
    pub fn is_of_front(&self) -> bool {
        let Groups { ethernet: _, vlan: _, mpls, ip, arp, l4, nd, nsh, metadata } = self.groups;
        !(mpls | ip | arp | l4 | nd | nsh | metadata)
    }

    /// Values and mask of the Ethernet addresses and the TTL, if it writes nothing else.
    pub fn addresses_and_ttl(&self) -> Option<(AddressesAndTtl, AddressesAndTtl)> {
        let of = |c: &Common| AddressesAndTtl { addresses: (c.dl_dst, c.dl_src), ttl: c.nw_ttl };
        let (value, mask) = (of(&self.common.value), of(&self.common.mask));
        let mut rest = Block::ZERO;
        let common: &mut Common = zerocopy::transmute_mut!(&mut rest);
        *common = self.common.mask;
        (common.dl_dst, common.dl_src, common.nw_ttl) = ([0; 6], [0; 6], 0);
        let is_all = rest.is_zero() && self.l3.is_none() && self.encap.is_none() && self.tunnel.is_none();
        is_all.then_some((value, mask))
    }

    /// Rewrites a frame. Reads from `key` the fields that tell the packet's headers (dl_type, nw_proto, nw_frag),
    /// whose offsets are in `layers`, and writes its metadata. A rewrite never writes those fields.
    pub fn apply(&self, packet: &mut Packet, key: &mut Key, layers: &Layers) {
        let groups = self.groups;
        if groups.ethernet {
            l2::set_ethernet(packet.data_mut(), &self.common);
        }
        if groups.vlan && l2::is_tagged(packet.data()) {
            l2::set_vlan(packet.data_mut(), &self.common);
        }
        if groups.mpls && layers.l2_5 != Layers::NONE {
            let encap = self.encap.as_deref().expect("the group has its block");
            l2::set_mpls(packet.data_mut(), encap, layers.l2_5);
        }
        if groups.nsh && key.common().dl_type.get() == nsh::ETHERTYPE && layers.l3 != Layers::NONE {
            nsh::set_nsh(self, packet.data_mut(), layers);
        }
        if groups.ip | groups.arp | groups.l4 | groups.nd {
            self.apply_l3(packet, key, layers);
        }
        if groups.metadata {
            self.apply_metadata(key);
            packet.set_queue(key.common().skb_priority.get());
        }
    }

    fn apply_l3(&self, packet: &mut Packet, key: &Key, layers: &Layers) {
        let (groups, common) = (self.groups, key.common());
        let dl_type = common.dl_type.get();
        if layers.l2_5 != Layers::NONE || layers.l3 == Layers::NONE {
            return;
        }
        match dl_type {
            IPV4 | IPV6 => {}
            ARP | RARP if groups.arp => return neighbour::set_arp(self, packet.data_mut(), layers),
            _ => return,
        }
        let proto = common.nw_proto;
        if groups.ip {
            let mut l4 = Delta::default();
            match dl_type {
                IPV4 => ip::set_ipv4(self, packet.data_mut(), layers, &mut l4),
                _ => ip::set_ipv6(self, packet.data_mut(), layers, &mut l4),
            }
            l4::fix_checksum(packet, dl_type, proto, layers, l4, true);
        }
        if common.nw_frag & frag::LATER != 0 || layers.l4 == Layers::NONE {
            return;
        }
        if groups.l4 {
            l4::set_ports(self, packet, dl_type, common, layers);
        }
        if groups.nd && dl_type == IPV6 && proto == ICMPV6 {
            neighbour::set_nd(self, packet, layers);
        }
    }

    fn apply_metadata(&self, key: &mut Key) {
        let merge = |to: &mut zerocopy::byteorder::network_endian::U32, value: u32, mask: u32| {
            to.set(to.get() & !mask | value);
        };
        let (value, mask, common) = (&self.common.value, &self.common.mask, key.common_mut());
        merge(&mut common.pkt_mark, value.pkt_mark.get(), mask.pkt_mark.get());
        merge(&mut common.skb_priority, value.skb_priority.get(), mask.skb_priority.get());
        if let Some(tunnel) = self.tunnel.as_deref() {
            let to = zerocopy::IntoBytes::as_mut_bytes(key.tunnel_mut());
            let (value, mask) =
                (zerocopy::IntoBytes::as_bytes(&tunnel.value), zerocopy::IntoBytes::as_bytes(&tunnel.mask));
            for ((to, value), mask) in to.iter_mut().zip(value).zip(mask) {
                *to = *to & !mask | value;
            }
        }
    }

    fn l3_or_wild(&self) -> Pair<L3> {
        self.l3.as_deref().map_or_else(
            || Pair { value: L3::new_zeroed(), mask: L3::new_zeroed() },
            |p| Pair { value: p.value, mask: p.mask },
        )
    }
}

impl std::fmt::Debug for Rewriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rewriter").field("groups", &self.groups).finish_non_exhaustive()
    }
}

const _: () = assert!(size_of::<Common>() == size_of::<Block>() && size_of::<Rewriter>() == 192);
