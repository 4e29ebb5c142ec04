//! Matches: `in_port=1,ip,nw_src=10.0.0.0/8`.

use packet::flow::field::{FIELDS, Format, Prereq};
use packet::flow::prereq::ct_valid;
use packet::flow::text::{self, Item, Items, PortNames, flags, number, port};
use packet::flow::{VLAN_PRESENT, frag};
use packet::{Field, put};

use super::{Error, subfield};
use crate::flow_mod::FlowMod;
use crate::matching::{AnyField, KeyPart, Match};
use crate::tun_metadata::{Bits, TunField, TunMatch, TunValue, parse_bits};
use crate::types::OfPort;

/// Shorthands: name, Ethernet type, IP protocol (zero for any) (ovs-fields(7)).
pub const PROTOCOLS: &[(&str, u16, u8)] = &[
    ("ip", ETH_IPV4, 0),
    ("ipv4", ETH_IPV4, 0),
    ("ip4", ETH_IPV4, 0),
    ("icmp", ETH_IPV4, 1),
    ("tcp", ETH_IPV4, 6),
    ("udp", ETH_IPV4, 17),
    ("sctp", ETH_IPV4, 132),
    ("ipv6", ETH_IPV6, 0),
    ("ip6", ETH_IPV6, 0),
    ("icmp6", ETH_IPV6, 58),
    ("tcp6", ETH_IPV6, 6),
    ("udp6", ETH_IPV6, 17),
    ("sctp6", ETH_IPV6, 132),
    ("arp", ETH_ARP, 0),
    ("rarp", ETH_RARP, 0),
    ("mpls", ETH_MPLS, 0),
    ("mplsm", ETH_MPLS_MCAST, 0),
];

const ETH_IPV4: u16 = 0x0800;
const ETH_ARP: u16 = 0x0806;
const ETH_RARP: u16 = 0x8035;
const ETH_IPV6: u16 = 0x86dd;
const ETH_MPLS: u16 = 0x8847;
const ETH_MPLS_MCAST: u16 = 0x8848;
const ETH_PBB: u16 = 0x88e7;
const ETH_NSH: u16 = 0x894f;
/// Bytes of all tun_metadata fields of a match.
const MAX_TUN_METADATA: usize = 256;
/// `dl_vlan` of frames without a VLAN tag in OpenFlow 1.0.
const VLAN_NONE: u128 = 0xffff;

/// Parses a match.
pub fn parse_match(text: &str, ports: &dyn PortNames) -> Result<Match, Error> {
    let mut parser = Parser::default();
    for item in Items::new(text) {
        let item = item?;
        if !parser.item(&item, ports)? {
            let expected = "a field of ovs-fields(7), or a protocol as ip, tcp or arp";
            return Err(Error::Keyword { name: item.key.into(), expected });
        }
    }
    parser.finish()
}

/// Collects the items of a match. Prerequisites are checked at the end, so that their order is free.
#[derive(Default)]
pub(super) struct Parser {
    matching: Match,
    fields: Vec<(Field, String)>,
}

impl Parser {
    /// Takes an item; false if it is none of a match.
    pub(super) fn item(&mut self, item: &Item<'_>, ports: &dyn PortNames) -> Result<bool, Error> {
        if let Some(&(_, dl_type, proto)) = PROTOCOLS.iter().find(|row| row.0 == item.key) {
            self.matching.set(Field::DlType, dl_type.into());
            if proto != 0 {
                self.matching.set(Field::NwProto, proto.into());
            }
        } else if item.key == "eth" {
            // Ethernet is what every flow without a packet type matches.
        } else if let Some(field) = Field::from_name(item.key) {
            self.field(field, item, ports)?;
        } else if let Some(tun) = TunField::from_name(item.key) {
            self.tun_metadata(tun.index, item)?;
        } else if item.key.contains('[') {
            self.subfield(item)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn field(&mut self, field: Field, item: &Item<'_>, ports: &dyn PortNames) -> Result<(), Error> {
        // A name without a value matches nothing, as ovs-ofctl has it.
        if item.value.is_empty() {
            return Ok(());
        }
        let m = &mut self.matching;
        if item.value == "*" {
            m.clear(if field == Field::InPort { Field::InPortOxm } else { field });
            return Ok(());
        }
        self.fields.push((field, item.key.into()));
        match field {
            Field::InPort | Field::InPortOxm => m.set_in_port(OfPort(port::parse(item.key, item.value, ports)?)),
            Field::DlVlan if number::parse_int(item.value) == Some(VLAN_NONE) => m.set(Field::VlanTci, 0),
            Field::DlVlan => {
                let vid = text::parse_value(field, item.value, ports)?;
                m.set(Field::VlanVid, vid | u128::from(VLAN_PRESENT));
            }
            Field::DlVlanPcp | Field::VlanPcp => {
                m.set(field, text::parse_value(field, item.value, ports)?);
                let (tci, mask) = m.get(Field::VlanTci);
                let present = u128::from(VLAN_PRESENT);
                m.set_masked(Field::VlanTci, tci | present, mask | present);
            }
            // Ethernet is the default, which needs no match.
            Field::PacketType if text::parse_value(field, item.value, ports)? == 0 => m.clear(field),
            _ => {
                let (value, mask) = text::parse(field, item.value, ports)?;
                if mask == 0 { m.clear(field) } else { m.set_masked(field, value, mask) }
            }
        }
        Ok(())
    }

    /// `tun_metadata0`, `tun_metadata0=5/0xf`.
    fn tun_metadata(&mut self, index: u8, item: &Item<'_>) -> Result<(), Error> {
        if self.matching.tun(index).is_some() {
            return Err(Error::argument(item.key, "the field is given more than once"));
        }
        let value = match item.value {
            "*" => return Ok(()),
            // That the option is there.
            "" => Some(TunValue::masked(index, &Bits::Few(0), &Bits::Few(0))),
            text => TunValue::parse(index, text),
        };
        let value = value.ok_or_else(|| {
            let expected = "a number, decimal or with 0x, of at most 992 bits, and maybe a mask behind a slash";
            text::Error::value(item.key, item.value, expected)
        })?;
        self.matching.set_tun(TunMatch::Value(value));
        let all = self.matching.tun_metadata.iter();
        let used: usize = all.map(|m| if let TunMatch::Value(value) = m { value.value.len() } else { 0 }).sum();
        if used > MAX_TUN_METADATA {
            let problem = format!("exceeds the space for tunnel metadata ({used} bytes of {MAX_TUN_METADATA})");
            return Err(Error::argument(item.key, problem));
        }
        Ok(())
    }

    /// `reg0[0..3]=5`.
    fn subfield(&mut self, item: &Item<'_>) -> Result<(), Error> {
        let part = subfield::parse(item.key)?;
        let value = parse_bits(item.value).filter(|value| *value == value.part(0, part.n_bits));
        let value = value.ok_or_else(|| {
            Error::argument(item.key, format!("{:?} is not a number of at most {} bits", item.value, part.n_bits))
        })?;
        let part = match part.field {
            AnyField::Tun(tun) => {
                self.matching.add_tun(TunValue::part(tun.index, part.ofs, part.n_bits, &value));
                return Ok(());
            }
            AnyField::Key(field) => KeyPart { field, ofs: part.ofs, n_bits: part.n_bits },
        };
        let value = value.low();
        self.fields.push((part.field, item.key.into()));
        let (old, mask) = self.matching.get(part.field);
        let value = old & !part.mask() | part.place(value);
        self.matching.set_masked(part.field, value, mask | part.mask());
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Match, Error> {
        for (field, name) in &self.fields {
            if let Some(needs) = missing_prerequisite(&self.matching, *field, name) {
                return Err(Error::Prerequisite { field: name.clone(), needs });
            }
        }
        Ok(self.matching)
    }
}

/// The Ethernet type that a match fixes, be it by the packet type.
fn dl_type(m: &Match) -> Option<u16> {
    match m.exact(Field::PacketType) {
        Some(kind) if kind >> 16 == 1 => Some(kind as u16),
        Some(kind) if kind != 0 => None,
        _ => m.exact(Field::DlType).map(|kind| kind as u16),
    }
}

/// What a match lacks to match `field`, which was written as `name`.
fn missing_prerequisite(m: &Match, field: Field, name: &str) -> Option<&'static str> {
    let kind = dl_type(m);
    let ip = matches!(kind, Some(ETH_IPV4 | ETH_IPV6));
    let proto = m.exact(Field::NwProto);
    let later = m.key.common().nw_frag & frag::LATER != 0;
    let transport = |number: u128| ip && proto == Some(number) && !later;
    let icmpv6 = kind == Some(ETH_IPV6) && transport(58);
    let icmp_type = m.mask.is_exact(Field::Icmpv6Type).then(|| m.key.get(Field::Icmpv6Type));
    let nd =
        |types: &[u128]| icmpv6 && icmp_type.is_some_and(|t| types.contains(&t)) && m.key.get(Field::Icmpv6Code) == 0;
    let tracked = ip && ct_valid(&m.key, &m.mask);
    let (ok, needs) = match field.info().prereq {
        Prereq::None => return None,
        Prereq::Ethernet => (m.exact(Field::PacketType).is_none_or(|kind| kind == 0), "an Ethernet packet type"),
        Prereq::VlanVid => (m.key.common().vlan[0].tci.get() & VLAN_PRESENT != 0, "a VLAN (vlan_vid or dl_vlan)"),
        Prereq::Mpls => (matches!(kind, Some(ETH_MPLS | ETH_MPLS_MCAST)), "mpls or mplsm"),
        // OpenFlow 1.0 has one pair of names for IPv4 and ARP addresses.
        Prereq::Ipv4 if name.starts_with("nw_") => (kind == Some(ETH_IPV4) || is_arp(kind), "ip, arp or rarp"),
        Prereq::Ipv4 => (kind == Some(ETH_IPV4), "ip (dl_type=0x0800)"),
        Prereq::Ipv6 => (kind == Some(ETH_IPV6), "ipv6 (dl_type=0x86dd)"),
        Prereq::Ip if name == "nw_proto" => (ip || is_arp(kind), "ip, ipv6, arp or rarp"),
        Prereq::Ip => (ip, "ip or ipv6"),
        Prereq::Arp => (is_arp(kind), "arp or rarp"),
        // The legacy names fit every transport protocol.
        Prereq::Tcp if name.starts_with("tp_") => (
            transport(6) || transport(17) || transport(132) || transport(1) || icmpv6,
            "tcp, udp, sctp or their IPv6 forms",
        ),
        Prereq::Tcp => (transport(6), "tcp or tcp6"),
        Prereq::Udp => (transport(17), "udp or udp6"),
        Prereq::Sctp => (transport(132), "sctp or sctp6"),
        Prereq::Icmp => (kind == Some(ETH_IPV4) && transport(1) || icmpv6, "icmp or icmp6"),
        Prereq::Icmpv6 => (icmpv6, "icmp6"),
        Prereq::Nd => (nd(&[135, 136]), "icmp6,icmp_type=135 or icmp6,icmp_type=136"),
        Prereq::NdSolicit => (nd(&[135]), "icmp6,icmp_type=135"),
        Prereq::NdAdvert => (nd(&[136]), "icmp6,icmp_type=136"),
        Prereq::Nsh => (kind == Some(ETH_NSH), "dl_type=0x894f or packet_type=(1,0x894f)"),
        Prereq::Pbb => (kind == Some(ETH_PBB), "dl_type=0x88e7"),
        Prereq::Ct | Prereq::CtPorts => (tracked, "ip or ipv6, and a ct_state such as +trk+est or +trk-inv"),
        Prereq::CtIpv4 => (tracked && kind == Some(ETH_IPV4), "ip and a ct_state such as +trk+est or +trk-inv"),
        Prereq::CtIpv6 => (tracked && kind == Some(ETH_IPV6), "ipv6 and a ct_state such as +trk+est or +trk-inv"),
    };
    (!ok).then_some(needs)
}

fn is_arp(kind: Option<u16>) -> bool {
    matches!(kind, Some(ETH_ARP | ETH_RARP))
}

/// Formats a match in OVS's order and spelling, after `priority=N` unless that is the default.
pub fn format_match(out: &mut String, m: &Match, priority: u16, ports: &dyn PortNames) {
    let start = out.len();
    if priority != FlowMod::DEFAULT_PRIORITY {
        put!(out, "priority={priority},");
    }
    let mut writer = Writer { out, m, ports };
    writer.metadata();
    let kind = writer.protocol();
    writer.registers();
    writer.link(kind);
    writer.network(kind);
    writer.transport(kind);
    if out.len() > start {
        out.truncate(out.len() - 1);
    }
}

/// The protocol that a shorthand named, so that its fields need not be shown.
#[derive(Clone, Copy)]
struct Protocol {
    dl_type: u16,
    /// Whether the Ethernet type was shown by a name.
    named_type: bool,
    /// Whether the IP protocol was shown by a name.
    named_proto: bool,
}

/// Each item ends in a comma.
struct Writer<'a> {
    out: &'a mut String,
    m: &'a Match,
    ports: &'a dyn PortNames,
}

impl Writer<'_> {
    /// `name=value` in the form of the field; nothing for a wildcard.
    fn field(&mut self, name: &str, field: Field) {
        let (value, mask) = self.m.get(field);
        if mask != 0 {
            put!(self.out, "{name}=");
            text::format(self.out, field, value, mask, self.ports);
            self.out.push(',');
        }
    }

    /// A number that is shown in decimal where it is matched whole, with value and mask in hexadecimal
    /// otherwise, each with at least `digits` digits.
    fn number(&mut self, name: &str, field: Field, digits: usize) {
        let (value, mask) = self.m.get(field);
        if mask == field.info().max() {
            put!(self.out, "{name}={value},");
        } else if mask != 0 {
            put!(self.out, "{name}=0x{value:0digits$x}/0x{mask:0digits$x},");
        }
    }

    fn metadata(&mut self) {
        self.field("pkt_mark", Field::PktMark);
        let (value, mask) = self.m.get(Field::RecircId);
        if mask != 0 {
            self.out.push_str("recirc_id=");
            number::hex_masked(self.out, value, mask, Field::RecircId.info().max());
            self.out.push(',');
        }
        self.field("dp_hash", Field::DpHash);
        self.field("conj_id", Field::ConjId);
        self.field("skb_priority", Field::SkbPriority);
        self.field("actset_output", Field::ActsetOutput);
        self.field("ct_state", Field::CtState);
        self.number("ct_zone", Field::CtZone, 1);
        self.field("ct_mark", Field::CtMark);
        self.field("ct_label", Field::CtLabel);
        // Both families share their place; an IPv6 flow says which it is.
        let ipv6 = dl_type(self.m) == Some(ETH_IPV6);
        if ipv6 {
            self.field("ct_ipv6_src", Field::CtIpv6Src);
            self.field("ct_ipv6_dst", Field::CtIpv6Dst);
        } else {
            self.field("ct_nw_src", Field::CtNwSrc);
            self.field("ct_nw_dst", Field::CtNwDst);
        }
        self.field("ct_nw_proto", Field::CtNwProto);
        self.number("ct_tp_src", Field::CtTpSrc, 1);
        self.number("ct_tp_dst", Field::CtTpDst, 1);
        let Some(kind) = self.m.exact(Field::PacketType) else { return };
        if kind != 0 {
            self.out.push_str("packet_type=(");
            number::small_hex(self.out, kind >> 16);
            self.out.push(',');
            number::small_hex(self.out, kind & 0xffff);
            self.out.push_str("),");
        } else if mask != 0 {
            // A match on the recirculation id is that of a datapath flow, which OVS shows so.
            self.out.push_str("eth,");
        }
    }

    /// The shorthand for Ethernet type and IP protocol.
    fn protocol(&mut self) -> Protocol {
        let dl_type = dl_type(self.m).unwrap_or_default();
        let mut protocol = Protocol { dl_type, named_type: false, named_proto: false };
        if self.m.mask.is_wild(Field::DlType) {
            return protocol;
        }
        let proto = self.m.exact(Field::NwProto).filter(|_| matches!(dl_type, ETH_IPV4 | ETH_IPV6));
        let both = PROTOCOLS.iter().find(|row| row.1 == dl_type && row.2 != 0 && Some(u128::from(row.2)) == proto);
        let row = both.or_else(|| PROTOCOLS.iter().find(|row| row.1 == dl_type && row.2 == 0));
        if let Some((name, ..)) = row {
            put!(self.out, "{name},");
            protocol.named_type = true;
            protocol.named_proto = both.is_some();
        }
        protocol
    }

    fn registers(&mut self) {
        for info in FIELDS.iter().filter(|info| info.field >= Field::Reg0 && info.field <= Field::Reg15) {
            self.field(info.name, info.field);
        }
        self.field("tun_id", Field::TunId);
        self.field("tun_src", Field::TunSrc);
        self.field("tun_dst", Field::TunDst);
        self.field("tun_ipv6_src", Field::TunIpv6Src);
        self.field("tun_ipv6_dst", Field::TunIpv6Dst);
        self.number("tun_gbp_id", Field::TunGbpId, 1);
        for field in [
            Field::TunGbpFlags,
            Field::TunTos,
            Field::TunTtl,
            Field::TunErspanVer,
            Field::TunErspanIdx,
            Field::TunErspanDir,
            Field::TunErspanHwid,
            Field::TunGtpuFlags,
            Field::TunGtpuMsgtype,
        ] {
            self.field(field.info().name, field);
        }
        if let (value, 1..) = self.m.get(Field::TunFlags) {
            self.out.push_str(if value == 0 { "tun_flags=-oam," } else { "tun_flags=+oam," });
        }
        for matching in &self.m.tun_metadata {
            matching.format(self.out);
            self.out.push(',');
        }
        self.field("metadata", Field::Metadata);
        if let Some(port) = self.m.in_port() {
            self.out.push_str("in_port=");
            port::format(self.out, port.0, self.ports);
            self.out.push(',');
        }
    }

    fn link(&mut self, protocol: Protocol) {
        self.vlan();
        self.field("dl_src", Field::DlSrc);
        self.field("dl_dst", Field::DlDst);
        if !protocol.named_type && !self.m.mask.is_wild(Field::DlType) {
            put!(self.out, "dl_type=0x{:04x},", self.m.key.get(Field::DlType));
        }
    }

    /// `dl_vlan` and `dl_vlan_pcp` where each is matched as a whole or not at all, else `vlan_tci`.
    fn vlan(&mut self) {
        let (tci, mask) = self.m.get(Field::VlanTci);
        let (vid, pcp, present) = (mask & 0xfff, mask & 0xe000, u128::from(VLAN_PRESENT));
        let whole = matches!(vid, 0 | 0xfff) && matches!(pcp, 0 | 0xe000) && vid | pcp != 0;
        if mask == 0 {
        } else if mask & tci & present != 0 && whole {
            if vid != 0 {
                put!(self.out, "dl_vlan={},", tci & 0xfff);
            }
            if pcp != 0 {
                put!(self.out, "dl_vlan_pcp={},", tci >> 13);
            }
        } else if mask == 0xffff {
            put!(self.out, "vlan_tci=0x{tci:04x},");
        } else {
            put!(self.out, "vlan_tci=0x{tci:04x}/0x{mask:04x},");
        }
    }

    fn network(&mut self, protocol: Protocol) {
        let arp = is_arp(Some(protocol.dl_type));
        match protocol.dl_type {
            ETH_IPV6 => {
                self.field("ipv6_src", Field::Ipv6Src);
                self.field("ipv6_dst", Field::Ipv6Dst);
                match self.m.get(Field::Ipv6Label) {
                    (_, 0) => {}
                    (label, 0xf_ffff) => put!(self.out, "ipv6_label=0x{label:05x},"),
                    (label, mask) => put!(self.out, "ipv6_label=0x{label:05x}/0x{mask:05x},"),
                }
            }
            ETH_NSH => self.nsh(),
            _ => {
                self.field(if arp { "arp_spa" } else { "nw_src" }, Field::NwSrc);
                self.field(if arp { "arp_tpa" } else { "nw_dst" }, Field::NwDst);
            }
        }
        if !protocol.named_proto {
            self.field(if arp { "arp_op" } else { "nw_proto" }, Field::NwProto);
        }
        if arp {
            self.field("arp_sha", Field::ArpSha);
            self.field("arp_tha", Field::ArpTha);
        }
        self.field("nw_tos", Field::NwTos);
        self.field("nw_ecn", Field::NwEcn);
        self.field("nw_ttl", Field::NwTtl);
        self.field("mpls_label", Field::MplsLabel);
        self.field("mpls_tc", Field::MplsTc);
        self.field("mpls_ttl", Field::MplsTtl);
        self.field("mpls_bos", Field::MplsBos);
        self.field("nw_frag", Field::NwFrag);
        self.field("ipv6_exthdr", Field::Ipv6Exthdr);
        self.field("pbb_isid", Field::PbbIsid);
        self.field("pbb_uca", Field::PbbUca);
    }

    fn nsh(&mut self) {
        for info in FIELDS.iter().filter(|info| info.prereq == Prereq::Nsh) {
            if matches!(info.field, Field::NshC1 | Field::NshC2 | Field::NshC3 | Field::NshC4) {
                self.context(info.name, info.field);
            } else if info.format == Format::Hex {
                self.field(info.name, info.field);
            } else {
                self.number(info.name, info.field, 2);
            }
        }
    }

    /// A context word, with `0x` also where it is zero.
    fn context(&mut self, name: &str, field: Field) {
        let (value, mask) = self.m.get(field);
        if mask != 0 {
            put!(self.out, "{name}={value:#x}");
            if mask != u128::from(u32::MAX) {
                put!(self.out, "/{mask:#x}");
            }
            self.out.push(',');
        }
    }

    fn transport(&mut self, protocol: Protocol) {
        let proto = self.m.exact(Field::NwProto);
        let icmpv6 = protocol.dl_type == ETH_IPV6 && proto == Some(58);
        if icmpv6 || protocol.dl_type == ETH_IPV4 && proto == Some(1) {
            self.number("icmp_type", Field::IcmpType, 1);
            self.number("icmp_code", Field::IcmpCode, 1);
        } else {
            self.number("tp_src", Field::TcpSrc, 1);
            self.number("tp_dst", Field::TcpDst, 1);
        }
        if icmpv6 {
            self.field("nd_target", Field::NdTarget);
            self.field("nd_sll", Field::NdSll);
            self.field("nd_tll", Field::NdTll);
            self.field("nd_reserved", Field::NdReserved);
            self.field("nd_options_type", Field::NdOptionsType);
        }
        if let (value, 1..) = self.m.get(Field::TcpFlags) {
            self.out.push_str("tcp_flags=");
            flags::TCP.format_masked(self.out, value, self.m.mask.get(Field::TcpFlags));
            self.out.push(',');
        }
    }
}
