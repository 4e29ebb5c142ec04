//! A second extractor, to test the first by.
//!
//! It is written for being obviously right: on top of the checked views of [`crate::wire`], header by
//! header, into a key that is cleared first. [`check`] is the entry for fuzzing and property tests.

use super::block::Vlan;
use super::extract::{self, Layers, MAX_EXTENSION_HEADERS, MAX_LABEL_STACK, MAX_LABELS, SimpleMark, VlanLimit};
use super::key::{Blocks, Key};
use super::{DL_TYPE_NONE, VLAN_PRESENT, exthdr, frag};
use crate::wire::{
    arp, ethernet, ethertype, icmp, icmpv6, igmp, ip_proto, ipv4, ipv6, mpls, nd, nsh, pbb, sctp, tcp, udp, vlan,
};

/// The key of a frame, with all metadata zero, and where its headers are.
pub fn extract(frame: &[u8], vlan_limit: VlanLimit) -> (Key, Layers) {
    let mut out = Extraction { frame, vlan_limit, key: Key::new(), layers: Layers::EMPTY };
    if let Ok(ethernet) = ethernet::Frame::new_checked(frame) {
        out.ethernet(&ethernet);
    }
    (out.key, out.layers)
}

/// Compares the fast extractor and [`simple_mark`](extract::simple_mark) with this one on a frame of any
/// content, under each limit of VLAN tags.
///
/// # Panics
/// Where they differ, or where the fast extractor touches what is not the packet's.
pub fn check(frame: &[u8]) {
    VlanLimit::ALL.iter().for_each(|&vlan_limit| check_with(frame, vlan_limit));
}

fn check_with(frame: &[u8], vlan_limit: VlanLimit) {
    let (want, layers) = extract(frame, vlan_limit);
    for extract in [extract::extract, extract::extract_unusual] {
        // The caller's key is full of another packet's data, and of metadata that has to stay.
        let mut key = dirty();
        key.reset();
        key.regs_mut().reg[3] = 7.into();
        let metadata: [u64; 3] = key.common_words()[5..].try_into().expect("three words");
        assert_eq!(extract(frame, &mut key, vlan_limit), layers, "layers of {frame:02x?}");
        assert_eq!(key.common_words()[5..], metadata, "metadata of {frame:02x?}");
        key.common_words_mut()[5..].fill(0);
        assert_eq!(key.regs().reg[3].get(), 7);
        key.regs_mut().reg[3] = 0.into();
        assert_eq!(key, want, "key of {frame:02x?}");
        assert_eq!(key.present().0 & !Blocks::COMMON.0 & !(1 << super::BlockId::Regs as u16), want.present().0 & !1);
    }

    let mark = SimpleMark {
        dl_type: want.common().dl_type.get(),
        vlan_tci: want.common().vlan[0].tci.get(),
        nw_frag: want.common().nw_frag,
    };
    assert_eq!(extract::simple_mark(frame, vlan_limit), mark, "mark of {frame:02x?}");
}

/// A key with every bit of every block set.
fn dirty() -> Key {
    let mut key = Key::new();
    for id in Blocks::ALL.iter() {
        key.block_mut(id).0.fill(0xff);
    }
    key
}

struct Extraction<'a> {
    frame: &'a [u8],
    vlan_limit: VlanLimit,
    key: Key,
    layers: Layers,
}

impl<'a> Extraction<'a> {
    /// Where `part`, a piece of the frame, starts.
    fn offset(&self, part: &[u8]) -> u16 {
        (part.as_ptr().addr() - self.frame.as_ptr().addr()) as u16
    }

    fn ethernet(&mut self, ethernet: &ethernet::Frame<'a>) {
        let common = self.key.common_mut();
        common.dl_dst = ethernet.dst();
        common.dl_src = ethernet.src();
        let (mut kind, mut rest) = (ethernet.ethertype(), ethernet.payload());
        for i in 0..self.vlan_limit.tags() {
            if kind != ethertype::VLAN && kind != ethertype::SVLAN {
                break;
            }
            let Ok(tag) = vlan::Tag::new_checked(rest) else { break };
            common.vlan[i] = Vlan { tpid: kind.into(), tci: (tag.tci() | VLAN_PRESENT).into() };
            self.layers.vlans += 1;
            (kind, rest) = (tag.ethertype(), tag.payload());
        }
        if kind < ethertype::MIN {
            kind = DL_TYPE_NONE;
            if let Ok((snap, payload)) = ethernet::Snap::new_checked(rest) {
                rest = payload;
                if snap.ethertype.get() >= ethertype::MIN {
                    kind = snap.ethertype.get();
                }
            }
        }
        common.dl_type = kind.into();
        self.network(kind, rest);
    }

    fn network(&mut self, kind: u16, bytes: &'a [u8]) {
        let at = self.offset(bytes);
        let found = match kind {
            ethertype::IPV4 => self.ipv4(bytes),
            ethertype::IPV6 => self.ipv6(bytes),
            ethertype::ARP | ethertype::RARP => self.arp(bytes),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => return self.mpls(bytes),
            ethertype::NSH => self.nsh(bytes),
            ethertype::PBB => self.pbb(bytes),
            _ => true,
        };
        if found {
            self.layers.l3 = at;
        }
    }

    fn ipv4(&mut self, bytes: &'a [u8]) -> bool {
        let Ok(ip) = ipv4::Packet::new_checked(bytes) else { return false };
        if bytes.len() - ip.total_len() > 65535 {
            return false;
        }
        let common = self.key.common_mut();
        common.nw_src = ip.src().to_bits().into();
        common.nw_dst = ip.dst().to_bits().into();
        common.nw_tos = ip.tos();
        common.nw_ttl = ip.ttl();
        common.nw_proto = ip.proto();
        if ip.fragment_offset() != 0 {
            common.nw_frag = frag::ANY | frag::LATER;
        } else {
            common.nw_frag = if ip.more_fragments() { frag::ANY } else { 0 };
            self.upper(ip.proto(), ip.payload());
        }
        true
    }

    fn ipv6(&mut self, bytes: &'a [u8]) -> bool {
        let Ok(ip) = ipv6::Packet::new_checked(bytes) else { return false };
        if bytes.len() - 40 - ip.payload().len() > 65535 {
            return false;
        }
        let l3 = self.key.l3_mut();
        l3.ipv6_src = ip.src().octets();
        l3.ipv6_dst = ip.dst().octets();
        let Ok(steps) = ip.headers().collect::<Result<Vec<_>, _>>() else { return true };
        let extension = |step: &&ipv6::ChainedHeader| !matches!(step, ipv6::ChainedHeader::Upper(..));
        if steps.iter().filter(extension).count() > MAX_EXTENSION_HEADERS {
            return true;
        }
        l3.ipv6_label = ip.flow_label().into();
        let common = self.key.common_mut();
        common.nw_tos = ip.traffic_class();
        common.nw_ttl = ip.hop_limit();
        for step in &steps {
            if let ipv6::ChainedHeader::Fragment(fragment) = step
                && fragment.offset_flags.get() != 0
            {
                common.nw_frag |= frag::ANY;
                if fragment.offset() != 0 {
                    common.nw_frag |= frag::LATER;
                }
            }
        }
        match steps.last() {
            Some(&ipv6::ChainedHeader::Upper(proto, payload)) => {
                common.nw_proto = proto;
                self.upper(proto, payload);
            }
            _ => common.nw_proto = ip_proto::FRAGMENT,
        }
        let bits = extension_header_bits(&steps);
        if bits != 0 {
            self.key.encap_mut().ipv6_exthdr = bits.into();
        }
        true
    }

    fn upper(&mut self, proto: u8, bytes: &'a [u8]) {
        let at = self.offset(bytes);
        let common = self.key.common_mut();
        let ports = match proto {
            ip_proto::TCP => tcp::Segment::new_checked(bytes).map(|tcp| {
                common.tcp_flags = tcp.flags().into();
                (tcp.src(), tcp.dst())
            }),
            ip_proto::UDP => udp::Datagram::new_checked(bytes).map(|udp| (udp.src(), udp.dst())),
            ip_proto::SCTP => sctp::Packet::new_checked(bytes).map(|sctp| (sctp.src(), sctp.dst())),
            ip_proto::ICMP => icmp::Packet::new_checked(bytes).map(|icmp| (icmp.kind().into(), icmp.code().into())),
            ip_proto::IGMP => igmp::Packet::new_checked(bytes).map(|igmp| (igmp.kind().into(), igmp.code().into())),
            ip_proto::ICMPV6 => icmpv6::Packet::new_checked(bytes).map(|i| (i.kind().into(), i.code().into())),
            _ => Ok((0, 0)),
        };
        let Ok((src, dst)) = ports else { return };
        common.tp_src = src.into();
        common.tp_dst = dst.into();
        self.layers.l4 = at;
        if let (ethertype::IPV6, ip_proto::ICMPV6, Ok(icmp)) =
            (common.dl_type.get(), proto, icmpv6::Packet::new_checked(bytes))
        {
            self.neighbor(&icmp);
        }
    }

    fn neighbor(&mut self, icmp: &icmpv6::Packet<'a>) {
        let kind = icmp.kind();
        if icmp.code() != 0 || kind != icmpv6::NEIGHBOR_SOLICIT && kind != icmpv6::NEIGHBOR_ADVERT {
            return;
        }
        if icmp.rest() != [0; 4] {
            self.key.encap_mut().nd_reserved = u32::from_be_bytes(icmp.rest()).into();
        }
        let Ok(message) = nd::Message::new_checked(icmp) else { return };
        let (mut sll, mut tll, mut first) = ([0; 6], [0; 6], 0);
        let mut repeated = false;
        for (kind, bytes) in message.options().map_while(Result::ok) {
            let [_, 1, mac @ ..] = bytes else { continue };
            let Ok(mac) = <[u8; 6]>::try_from(mac) else { continue };
            let slot = match kind {
                nd::SOURCE_LINK_LAYER => &mut sll,
                nd::TARGET_LINK_LAYER => &mut tll,
                _ => continue,
            };
            if *slot != [0; 6] {
                repeated = true;
                break;
            }
            *slot = mac;
            first = if first == 0 { kind } else { first };
        }
        if first != 0 {
            self.key.encap_mut().nd_options_type = first;
        }
        if !repeated {
            let l3 = self.key.l3_mut();
            l3.nd_target = message.target().octets();
            l3.arp_sha = sll;
            l3.arp_tha = tll;
        }
    }

    fn arp(&mut self, bytes: &[u8]) -> bool {
        let Ok(arp) = arp::Packet::new_checked(bytes) else { return false };
        let common = self.key.common_mut();
        if arp.opcode() < 256 {
            common.nw_proto = arp.opcode() as u8;
        }
        common.nw_src = arp.spa().to_bits().into();
        common.nw_dst = arp.tpa().to_bits().into();
        let l3 = self.key.l3_mut();
        l3.arp_sha = arp.sha();
        l3.arp_tha = arp.tha();
        true
    }

    fn mpls(&mut self, bytes: &'a [u8]) {
        let mut rest = bytes;
        for i in 0..MAX_LABEL_STACK {
            let Ok((entry, behind)) = mpls::LabelStackEntry::new_checked(rest) else { break };
            rest = behind;
            self.layers.l2_5 = self.offset(bytes);
            if i < MAX_LABELS {
                self.key.encap_mut().mpls_lse[i] = entry.0.into();
            }
            if entry.bottom() {
                break;
            }
            if i == MAX_LABEL_STACK - 1 {
                return; // the stack goes on: where L3 starts is not known
            }
        }
        self.layers.l3 = self.offset(rest);
    }

    fn nsh(&mut self, bytes: &[u8]) -> bool {
        if let Ok(nsh) = nsh::Packet::new_checked(bytes) {
            let encap = self.key.encap_mut();
            encap.nsh_flags = nsh.flags();
            encap.nsh_ttl = nsh.ttl();
            encap.nsh_mdtype = nsh.md_type();
            encap.nsh_np = nsh.next();
            encap.nsh_path = nsh.path().into();
            encap.nsh_c = nsh.context().unwrap_or_default().map(Into::into);
        }
        true
    }

    fn pbb(&mut self, bytes: &[u8]) -> bool {
        if let Ok((tag, _)) = pbb::ITag::new_checked(bytes) {
            let encap = self.key.encap_mut();
            encap.pbb_isid = tag.isid().into();
            encap.pbb_uca = tag.uca().into();
        }
        true
    }
}

/// The pseudo-field of OpenFlow 1.3 section 7.2.3.8: which headers came, whether one came too often, and
/// whether they came in another order than RFC 8200 section 4.1 has.
fn extension_header_bits(steps: &[ipv6::ChainedHeader]) -> u16 {
    use ip_proto::{AUTH, DEST_OPTIONS, ESP, FRAGMENT, HOP_BY_HOP, NO_NEXT, ROUTING};
    const ORDER: [u8; 8] = [HOP_BY_HOP, DEST_OPTIONS, ROUTING, FRAGMENT, AUTH, ESP, DEST_OPTIONS, NO_NEXT];

    let protos: Vec<u8> = steps
        .iter()
        .map(|step| match *step {
            ipv6::ChainedHeader::Extension(proto, _) | ipv6::ChainedHeader::Upper(proto, _) => proto,
            ipv6::ChainedHeader::Fragment(_) => FRAGMENT,
        })
        .filter(|proto| ORDER.contains(proto))
        .collect();
    let bit = |proto: u8| match proto {
        HOP_BY_HOP => exthdr::HOP,
        DEST_OPTIONS => exthdr::DEST,
        ROUTING => exthdr::ROUTER,
        FRAGMENT => exthdr::FRAG,
        AUTH => exthdr::AUTH,
        ESP => exthdr::ESP,
        _ => exthdr::NO_NEXT,
    };
    let mut bits = protos.iter().fold(0, |bits, &proto| bits | bit(proto));
    let count = |proto: u8| protos.iter().filter(|&&p| p == proto).count();
    if ORDER.iter().any(|&proto| count(proto) > if proto == DEST_OPTIONS { 2 } else { 1 }) {
        bits |= exthdr::UNREP;
    }
    // In order, with or without repetition, if each header can be given a place that is not before that
    // of the header in front of it. Taking the first possible place for each is best, but the second
    // destination options header never takes the first place.
    let (mut place, mut dests) = (0, 0);
    for &proto in &protos {
        let from = if proto == DEST_OPTIONS && dests > 0 { place.max(2) } else { place };
        dests += usize::from(proto == DEST_OPTIONS);
        match ORDER[from..].iter().position(|&p| p == proto) {
            Some(steps) => place = from + steps,
            None => bits |= exthdr::UNSEQ,
        }
    }
    bits
}
