//! Parts of fields: `reg0[0..15]`, and the NXM and OXM names that actions show fields by.

use packet::flow::text::number;
use packet::{Field, put};

use super::Error;
use crate::matching::{AnyField, Subfield};
use crate::tun_metadata::TunField;

macro_rules! names {
    ($($field:ident $name:literal $($other:literal)?;)*) => {
        /// NXM and OXM names; the first is the one printed.
        static NAMES: &[(Field, &str, &str)] = &[$((Field::$field, $name, concat!($($other)?)),)*];
    };
}

#[rustfmt::skip]
names! {
    DpHash "NXM_NX_DP_HASH" "NXOXM_ET_DP_HASH"; RecircId "NXM_NX_RECIRC_ID"; PacketType "OXM_OF_PACKET_TYPE";
    ConjId "NXM_NX_CONJ_ID"; TunId "NXM_NX_TUN_ID" "OXM_OF_TUNNEL_ID"; TunSrc "NXM_NX_TUN_IPV4_SRC";
    TunDst "NXM_NX_TUN_IPV4_DST"; TunIpv6Src "NXM_NX_TUN_IPV6_SRC"; TunIpv6Dst "NXM_NX_TUN_IPV6_DST";
    TunFlags "NXM_NX_TUN_FLAGS"; TunGbpId "NXM_NX_TUN_GBP_ID"; TunGbpFlags "NXM_NX_TUN_GBP_FLAGS";
    TunErspanIdx "NXOXM_ET_ERSPAN_IDX"; TunErspanVer "NXOXM_ET_ERSPAN_VER"; TunErspanDir "NXOXM_ET_ERSPAN_DIR";
    TunErspanHwid "NXOXM_ET_ERSPAN_HWID"; TunGtpuFlags "NXOXM_ET_GTPU_FLAGS"; TunGtpuMsgtype "NXOXM_ET_GTPU_MSGTYPE";
    Metadata "OXM_OF_METADATA"; InPort "NXM_OF_IN_PORT"; InPortOxm "OXM_OF_IN_PORT";
    ActsetOutput "ONFOXM_ET_ACTSET_OUTPUT"; PktMark "NXM_NX_PKT_MARK"; CtState "NXM_NX_CT_STATE";
    CtZone "NXM_NX_CT_ZONE"; CtMark "NXM_NX_CT_MARK"; CtLabel "NXM_NX_CT_LABEL"; CtNwProto "NXM_NX_CT_NW_PROTO";
    CtNwSrc "NXM_NX_CT_NW_SRC"; CtNwDst "NXM_NX_CT_NW_DST"; CtIpv6Src "NXM_NX_CT_IPV6_SRC";
    CtIpv6Dst "NXM_NX_CT_IPV6_DST"; CtTpSrc "NXM_NX_CT_TP_SRC"; CtTpDst "NXM_NX_CT_TP_DST";
    Reg0 "NXM_NX_REG0"; Reg1 "NXM_NX_REG1"; Reg2 "NXM_NX_REG2"; Reg3 "NXM_NX_REG3"; Reg4 "NXM_NX_REG4";
    Reg5 "NXM_NX_REG5"; Reg6 "NXM_NX_REG6"; Reg7 "NXM_NX_REG7"; Reg8 "NXM_NX_REG8"; Reg9 "NXM_NX_REG9";
    Reg10 "NXM_NX_REG10"; Reg11 "NXM_NX_REG11"; Reg12 "NXM_NX_REG12"; Reg13 "NXM_NX_REG13"; Reg14 "NXM_NX_REG14";
    Reg15 "NXM_NX_REG15"; Xreg0 "OXM_OF_PKT_REG0"; Xreg1 "OXM_OF_PKT_REG1"; Xreg2 "OXM_OF_PKT_REG2";
    Xreg3 "OXM_OF_PKT_REG3"; Xreg4 "OXM_OF_PKT_REG4"; Xreg5 "OXM_OF_PKT_REG5"; Xreg6 "OXM_OF_PKT_REG6";
    Xreg7 "OXM_OF_PKT_REG7"; Xxreg0 "NXM_NX_XXREG0"; Xxreg1 "NXM_NX_XXREG1"; Xxreg2 "NXM_NX_XXREG2";
    Xxreg3 "NXM_NX_XXREG3"; DlSrc "NXM_OF_ETH_SRC" "OXM_OF_ETH_SRC"; DlDst "NXM_OF_ETH_DST" "OXM_OF_ETH_DST";
    DlType "NXM_OF_ETH_TYPE" "OXM_OF_ETH_TYPE"; VlanTci "NXM_OF_VLAN_TCI"; VlanVid "OXM_OF_VLAN_VID";
    VlanPcp "OXM_OF_VLAN_PCP"; MplsLabel "OXM_OF_MPLS_LABEL"; MplsTc "OXM_OF_MPLS_TC"; MplsBos "OXM_OF_MPLS_BOS";
    MplsTtl "NXM_NX_MPLS_TTL"; NwSrc "NXM_OF_IP_SRC" "OXM_OF_IPV4_SRC"; NwDst "NXM_OF_IP_DST" "OXM_OF_IPV4_DST";
    Ipv6Src "NXM_NX_IPV6_SRC" "OXM_OF_IPV6_SRC"; Ipv6Dst "NXM_NX_IPV6_DST" "OXM_OF_IPV6_DST";
    Ipv6Label "NXM_NX_IPV6_LABEL" "OXM_OF_IPV6_FLABEL"; Ipv6Exthdr "OXM_OF_IPV6_EXTHDR";
    NwProto "NXM_OF_IP_PROTO" "OXM_OF_IP_PROTO"; NwTos "NXM_OF_IP_TOS"; IpDscp "OXM_OF_IP_DSCP";
    NwEcn "NXM_NX_IP_ECN" "OXM_OF_IP_ECN"; NwTtl "NXM_NX_IP_TTL"; NwFrag "NXM_NX_IP_FRAG";
    ArpOp "NXM_OF_ARP_OP" "OXM_OF_ARP_OP"; ArpSpa "NXM_OF_ARP_SPA" "OXM_OF_ARP_SPA";
    ArpTpa "NXM_OF_ARP_TPA" "OXM_OF_ARP_TPA"; ArpSha "NXM_NX_ARP_SHA" "OXM_OF_ARP_SHA";
    ArpTha "NXM_NX_ARP_THA" "OXM_OF_ARP_THA"; TcpSrc "NXM_OF_TCP_SRC" "OXM_OF_TCP_SRC";
    TcpDst "NXM_OF_TCP_DST" "OXM_OF_TCP_DST"; TcpFlags "NXM_NX_TCP_FLAGS" "ONFOXM_ET_TCP_FLAGS";
    UdpSrc "NXM_OF_UDP_SRC" "OXM_OF_UDP_SRC"; UdpDst "NXM_OF_UDP_DST" "OXM_OF_UDP_DST"; SctpSrc "OXM_OF_SCTP_SRC";
    SctpDst "OXM_OF_SCTP_DST"; IcmpType "NXM_OF_ICMP_TYPE" "OXM_OF_ICMPV4_TYPE";
    IcmpCode "NXM_OF_ICMP_CODE" "OXM_OF_ICMPV4_CODE"; Icmpv6Type "NXM_NX_ICMPV6_TYPE" "OXM_OF_ICMPV6_TYPE";
    Icmpv6Code "NXM_NX_ICMPV6_CODE" "OXM_OF_ICMPV6_CODE"; NdTarget "NXM_NX_ND_TARGET" "OXM_OF_IPV6_ND_TARGET";
    NdSll "NXM_NX_ND_SLL" "OXM_OF_IPV6_ND_SLL"; NdTll "NXM_NX_ND_TLL" "OXM_OF_IPV6_ND_TLL";
    NdReserved "ERICOXM_OF_ICMPV6_ND_RESERVED"; NdOptionsType "ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE";
    PbbIsid "OXM_OF_PBB_ISID"; PbbUca "OXM_OF_PBB_UCA"; NshFlags "NXOXM_NSH_FLAGS"; NshTtl "NXOXM_NSH_TTL";
    NshMdtype "NXOXM_NSH_MDTYPE"; NshNp "NXOXM_NSH_NP"; NshSpi "NXOXM_NSH_SPI"; NshSi "NXOXM_NSH_SI";
    NshC1 "NXOXM_NSH_C1"; NshC2 "NXOXM_NSH_C2"; NshC3 "NXOXM_NSH_C3"; NshC4 "NXOXM_NSH_C4";
}

/// The field with this name: that of ovs-fields(7), or of NXM or OXM.
pub fn field(name: &str) -> Option<Field> {
    let nxm = NAMES.iter().find(|row| row.1 == name || !name.is_empty() && row.2 == name);
    nxm.map(|row| row.0).or_else(|| Field::from_name(name))
}

/// Parses `field`, `field[]`, `field[BIT]` or `field[FIRST..LAST]`.
pub fn parse(text: &str) -> Result<Subfield, Error> {
    let wrong = |problem: String| Error::Subfield { text: text.into(), problem };
    let (name, bits) = match text.split_once('[') {
        Some((name, rest)) => {
            let bits = rest.strip_suffix(']').ok_or_else(|| wrong("missing ']'".into()))?;
            (name, (!bits.is_empty()).then_some(bits))
        }
        None => (text, None),
    };
    let key_field = || field(name).map(AnyField::Key);
    let field = TunField::from_name(name).map(AnyField::Tun).or_else(key_field);
    let field = field.ok_or_else(|| wrong(format!("unknown field {name:?}")))?;
    let Some(bits) = bits else {
        return Ok(Subfield::whole(field));
    };
    let (first, last) = bits.split_once("..").unwrap_or((bits, bits));
    let bit = |text: &str| number::parse_int(text).filter(|&bit| bit < 0x1000).map(|bit| bit as u16);
    let (first, last) = bit(first).zip(bit(last)).ok_or_else(|| wrong(format!("bad bits {bits:?}")))?;
    if first > last {
        return Err(wrong(format!("bit {first} is after bit {last}")));
    }
    let width = field.bits();
    Subfield::new(field, first, last - first + 1)
        .ok_or_else(|| wrong(format!("bit {last} is beyond the field, which has {width} bits")))
}

/// Parses a subfield that an action writes.
pub fn parse_writable(text: &str) -> Result<Subfield, Error> {
    let subfield = parse(text)?;
    if !subfield.field.is_writable() {
        return Err(Error::argument(&subfield.field.name(), "this field is read-only"));
    }
    Ok(subfield)
}

/// Formats a subfield by its NXM or OXM name: `NXM_NX_REG0[0..15]`.
pub fn format(out: &mut String, subfield: &Subfield) {
    match subfield.field {
        AnyField::Key(field) => {
            out.push_str(NAMES.iter().find(|row| row.0 == field).map_or(field.info().name, |row| row.1));
        }
        AnyField::Tun(field) => put!(out, "NXM_NX_TUN_METADATA{}", field.index),
    }
    let last = u32::from(subfield.ofs) + u32::from(subfield.n_bits) - 1;
    if subfield.is_whole() {
        out.push_str("[]");
    } else if subfield.n_bits == 1 {
        put!(out, "[{}]", subfield.ofs);
    } else {
        put!(out, "[{}..{last}]", subfield.ofs);
    }
}
