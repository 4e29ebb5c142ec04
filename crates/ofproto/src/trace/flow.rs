//! Keys and masks in words.

use openflow::FlowMod;
use openflow::text::{PortNames, format_match};
use packet::flow::text::flags;
use packet::flow::{VLAN_PRESENT, frag, tun_flags};
use packet::{Field, Key, Mask};
use tunnel::fields::FieldTable;

use crate::model::tlv;

/// A packet: all fields that it has, and those of its metadata that are not zero.
pub fn describe(key: &Key, tlv: &FieldTable, ports: &dyn PortNames) -> String {
    text(key, packet_mask(key, tlv), tlv, ports)
}

/// The packets that are treated like `key`. `looked_at_vlan` says whether the translation looked at its VLAN tag.
pub fn describe_megaflow(
    key: &Key,
    mask: &Mask,
    looked_at_vlan: bool,
    tlv: &FieldTable,
    ports: &dyn PortNames,
) -> String {
    let mut mask = mask.clone();
    // OVS shows no match on a tag for packets that have none.
    if !looked_at_vlan || key.common().vlan[0].tci.get() & VLAN_PRESENT == 0 {
        mask.clear(Field::VlanTci);
    }
    let flags = (key.tunnel().tun_flags.get(), mask.0.tunnel().tun_flags.get());
    // What a version of ERSPAN does not have is not shown.
    if key.tunnel().tun_erspan_ver != 1 {
        mask.clear(Field::TunErspanIdx);
    }
    if key.tunnel().tun_erspan_ver != 2 {
        mask.clear(Field::TunErspanDir);
        mask.clear(Field::TunErspanHwid);
    }
    with_tunnel_flags(with_icmp_masks(text(key, mask, tlv, ports), key), flags)
}

/// All flags of a tunnel, where some are matched: OpenFlow knows just one of them. OVS shows numbers of tunnels without masks.
fn with_tunnel_flags(text: String, (value, mask): (u16, u16)) -> String {
    let mut mask = u128::from(mask) & flags::TUN.exact;
    if value & tun_flags::OAM == 0 && mask != u128::from(tun_flags::OAM) {
        // OVS does not look at it where packets go from tunnel to tunnel.
        mask &= !u128::from(tun_flags::OAM);
    }
    if mask == 0 {
        return text;
    }
    let mut out: Vec<String> = Vec::new();
    for item in text.split(',').filter(|item| !item.starts_with("tun_flags=")) {
        let is_number = NUMBERS.iter().any(|name| item.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')));
        let item = if is_number { item.split('/').next().unwrap_or(item) } else { item };
        out.push(item.strip_prefix("tun_gtpu").map_or_else(|| item.to_owned(), |rest| format!("gtpu{rest}")));
    }
    let is_before =
        |item: &String| item.starts_with("gtpu_") || item.starts_with("tun_") && !item.starts_with("tun_metadata");
    let at = out.iter().rposition(is_before).map_or(0, |last| last + 1);
    let mut shown = "tun_flags=".to_owned();
    flags::TUN.format_masked(&mut shown, u128::from(value) & mask, mask);
    out.insert(at, shown);
    out.join(",")
}

/// Fields of tunnels that are numbers of a few bits.
const NUMBERS: &[&str] = &[
    "tun_gbp_flags",
    "tun_erspan_ver",
    "tun_erspan_idx",
    "tun_erspan_dir",
    "tun_erspan_hwid",
    "tun_gtpu_flags",
    "tun_gtpu_msgtype",
];

fn text(key: &Key, mask: Mask, tlv: &FieldTable, ports: &dyn PortNames) -> String {
    let matching = tlv::describe(key.masked(&mask), mask, tlv);
    let mut out = String::new();
    format_match(&mut out, &matching, FlowMod::DEFAULT_PRIORITY, ports);
    out
}

/// OVS keeps type and code of ICMP in 16 bits each, and megaflows match the low 8 of them.
fn with_icmp_masks(text: String, key: &Key) -> String {
    if !matches!((key.common().dl_type.get(), key.common().nw_proto), (0x0800, 1) | (0x86dd, 58)) {
        return text;
    }
    let item = |item: &str| match item.split_once('=') {
        Some((name @ ("icmp_type" | "icmp_code"), value)) => match value.parse::<u16>() {
            Ok(value) => format!("{name}={value:#x}/0xff"),
            Err(_) => item.to_owned(),
        },
        _ => item.to_owned(),
    };
    text.split(',').map(item).collect::<Vec<_>>().join(",")
}

/// Metadata that is shown where it is not zero.
const METADATA: &[Field] = &[
    Field::PktMark,
    Field::RecircId,
    Field::DpHash,
    Field::SkbPriority,
    Field::CtState,
    Field::CtZone,
    Field::CtMark,
    Field::CtLabel,
    Field::Metadata,
    Field::InPortOxm,
    Field::TunId,
];

/// The original direction of a packet's connection.
const IPV4_TUPLE: &[Field] = &[Field::CtNwSrc, Field::CtNwDst, Field::CtNwProto, Field::CtTpSrc, Field::CtTpDst];
/// The same for IPv6.
const IPV6_TUPLE: &[Field] = &[Field::CtIpv6Src, Field::CtIpv6Dst, Field::CtNwProto, Field::CtTpSrc, Field::CtTpDst];

/// What packets from a tunnel have.
const TUNNEL: &[Field] = &[
    Field::TunSrc,
    Field::TunDst,
    Field::TunIpv6Src,
    Field::TunIpv6Dst,
    Field::TunGbpId,
    Field::TunGbpFlags,
    Field::TunTos,
    Field::TunTtl,
    Field::TunErspanVer,
    Field::TunErspanIdx,
    Field::TunErspanDir,
    Field::TunErspanHwid,
    Field::TunGtpuFlags,
    Field::TunGtpuMsgtype,
    Field::TunFlags,
];

/// The fields that a packet with this key has.
fn packet_mask(key: &Key, tlv: &FieldTable) -> Mask {
    let mut mask = Mask::wildcard();
    if tlv::present(key) != 0 {
        tlv::set_values(&mut mask.0, &tlv::exact(tlv, tlv::present(key)));
    }
    let mut show = |fields: &[Field]| fields.iter().for_each(|&field| mask.set_exact(field));
    let registers = packet::flow::field::FIELDS.iter().map(|info| info.field);
    let registers = registers.filter(|field| (Field::Reg0..=Field::Reg15).contains(field));
    for field in METADATA.iter().copied().chain(registers).filter(|&field| key.get(field) != 0) {
        show(&[field]);
    }
    if key.get(Field::TunDst) != 0 || key.get(Field::TunIpv6Dst) != 0 {
        show(TUNNEL);
    }
    show(&[Field::PacketType]);
    let common = key.common();
    let addresses = if common.dl_type.get() == 0x86dd { IPV6_TUPLE } else { IPV4_TUPLE };
    if key.ct().ct_nw_proto != 0 && addresses[0].info().prereq.satisfied(key) {
        show(addresses);
    }
    let dl_type = match common.packet_type.get() {
        0 => {
            show(&[Field::DlSrc, Field::DlDst, Field::DlType, Field::VlanTci]);
            common.dl_type.get()
        }
        kind => kind as u16,
    };
    match dl_type {
        0x0800 => show(&[Field::NwSrc, Field::NwDst]),
        0x86dd => show(&[Field::Ipv6Src, Field::Ipv6Dst, Field::Ipv6Label]),
        0x0806 | 0x8035 => {
            show(&[Field::NwSrc, Field::NwDst, Field::NwProto, Field::ArpSha, Field::ArpTha]);
            return mask;
        }
        0x894f => {
            show(&[Field::NshFlags, Field::NshTtl, Field::NshMdtype, Field::NshNp, Field::NshSpi, Field::NshSi]);
            if key.encap().nsh_mdtype == 1 {
                show(&[Field::NshC1, Field::NshC2, Field::NshC3, Field::NshC4]);
            }
            // OVS takes them for those of any L3 header.
            show(&[Field::NwProto, Field::NwTos, Field::NwEcn, Field::NwTtl, Field::NwFrag]);
            return mask;
        }
        0x8847 | 0x8848 => {
            show(&[Field::MplsLabel, Field::MplsTc, Field::MplsTtl, Field::MplsBos]);
            return mask;
        }
        _ => return mask,
    }
    show(&[Field::NwFrag, Field::NwTos, Field::NwEcn, Field::NwTtl, Field::NwProto]);
    if common.nw_frag & frag::LATER == 0 {
        match (dl_type, common.nw_proto) {
            (0x0800, 1) => show(&[Field::IcmpType, Field::IcmpCode]),
            (0x86dd, 58) => {
                show(&[Field::IcmpType, Field::IcmpCode]);
                if matches!(common.tp_src.get(), 135 | 136) && common.tp_dst.get() == 0 {
                    show(&[Field::NdTarget, Field::NdSll, Field::NdTll]);
                }
            }
            (_, 6) => show(&[Field::TcpSrc, Field::TcpDst, Field::TcpFlags]),
            (_, 17 | 132 | 2) => show(&[Field::TcpSrc, Field::TcpDst]),
            _ => {}
        }
    }
    mask
}
