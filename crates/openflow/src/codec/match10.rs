//! struct ofp_match of OpenFlow 1.0 (section 5.2.3): fixed members and wildcard bits.

use packet::Field;
use packet::flow::VLAN_PRESENT;

use super::oxm::prereq_met;
use super::wire::{Put, Reader};
use crate::error::OfError;
use crate::matching::Match;
use crate::types::OfPort;

/// OFPFW_*: bits of the wildcards.
mod fw {
    pub const IN_PORT: u32 = 1;
    pub const DL_VLAN: u32 = 1 << 1;
    pub const DL_SRC: u32 = 1 << 2;
    pub const DL_DST: u32 = 1 << 3;
    pub const DL_TYPE: u32 = 1 << 4;
    pub const NW_PROTO: u32 = 1 << 5;
    pub const TP_SRC: u32 = 1 << 6;
    pub const TP_DST: u32 = 1 << 7;
    pub const NW_SRC_SHIFT: u32 = 8;
    pub const NW_DST_SHIFT: u32 = 14;
    pub const DL_VLAN_PCP: u32 = 1 << 20;
    pub const NW_TOS: u32 = 1 << 21;
}

/// All wildcards that OpenFlow 1.0 knows, as table statistics report them.
pub const OFPFW_ALL: u32 = (1 << 22) - 1;

/// dl_vlan of a match on packets without a tag.
const VLAN_NONE: u16 = 0xffff;

/// Reads a match. Fields whose prerequisites are not matched become wildcards (section 3.4 of OpenFlow
/// 1.0.1: "fields that are not applicable are ignored").
pub(crate) fn pull(r: &mut Reader) -> Result<Match, OfError> {
    let wildcards = r.u32()?;
    let exact = |bit: u32| wildcards & bit == 0;
    let mut m = Match::any();

    let in_port = r.u16()?;
    if exact(fw::IN_PORT) {
        m.set_in_port(OfPort::from_u16(in_port));
    }
    for (bit, field) in [(fw::DL_SRC, Field::DlSrc), (fw::DL_DST, Field::DlDst)] {
        let value = r.uint(6)?;
        if exact(bit) {
            m.set(field, value);
        }
    }
    let (dl_vlan, pcp) = (r.u16()?, r.u8()?);
    set_vlan(&mut m, exact(fw::DL_VLAN).then_some(dl_vlan), exact(fw::DL_VLAN_PCP).then_some(pcp));
    r.skip(1)?;
    let dl_type = r.u16()?;
    if exact(fw::DL_TYPE) {
        m.set(Field::DlType, dl_type.into());
    }
    let (tos, proto) = (r.u8()?, r.u8()?);
    r.skip(2)?;
    let (nw_src, nw_dst, tp_src, tp_dst) = (r.u32()?, r.u32()?, r.u16()?, r.u16()?);

    let ip = prereq_met(&m, Field::NwProto.info().prereq);
    if ip && exact(fw::NW_TOS) {
        m.set(Field::NwTos, (tos >> 2).into());
    }
    if exact(fw::NW_PROTO) && (ip || prereq_met(&m, Field::ArpOp.info().prereq)) {
        m.set(Field::NwProto, proto.into());
    }
    for (shift, value, fields) in [
        (fw::NW_SRC_SHIFT, nw_src, [Field::NwSrc, Field::ArpSpa]),
        (fw::NW_DST_SHIFT, nw_dst, [Field::NwDst, Field::ArpTpa]),
    ] {
        let mask = u32::MAX.checked_shl(wildcards >> shift & 0x3f).unwrap_or(0);
        if mask != 0
            && let Some(field) = applicable(&m, &fields)
        {
            m.set_masked(field, value.into(), mask.into());
        }
    }
    for (bit, value, fields) in [(fw::TP_SRC, tp_src, L4_SRC), (fw::TP_DST, tp_dst, L4_DST)] {
        if exact(bit)
            && let Some(field) = applicable(&m, &fields)
        {
            m.set(field, value.into());
        }
    }
    Ok(m)
}

/// What tp_src and tp_dst stand for, by protocol.
const L4_SRC: [Field; 4] = [Field::TcpSrc, Field::UdpSrc, Field::SctpSrc, Field::IcmpType];
const L4_DST: [Field; 4] = [Field::TcpDst, Field::UdpDst, Field::SctpDst, Field::IcmpCode];

fn applicable(m: &Match, fields: &[Field]) -> Option<Field> {
    fields.iter().copied().find(|f| prereq_met(m, f.info().prereq))
}

fn set_vlan(m: &mut Match, vlan: Option<u16>, pcp: Option<u8>) {
    if vlan == Some(VLAN_NONE) {
        return m.set(Field::VlanTci, 0);
    }
    let (mut tci, mut mask) = (0, 0);
    if let Some(vid) = vlan {
        (tci, mask) = (VLAN_PRESENT | vid & 0xfff, VLAN_PRESENT | 0xfff);
    }
    if let Some(pcp) = pcp {
        tci |= VLAN_PRESENT | u16::from(pcp) << 13;
        mask |= VLAN_PRESENT | 0xe000;
    }
    if mask != 0 {
        m.set_masked(Field::VlanTci, tci.into(), mask.into());
    }
}

/// Writes a match. What OpenFlow 1.0 cannot say is left out: such a flow has to be written as NXM.
pub(crate) fn put(out: &mut Vec<u8>, m: &Match) {
    let mut wildcards = 0;
    let mut exact = |field: Field, bit: u32| {
        let value = m.exact(field);
        if value.is_none() {
            wildcards |= bit;
        }
        value.unwrap_or(0)
    };
    let in_port = m.in_port().and_then(OfPort::to_u16);
    let dl_src = exact(Field::DlSrc, fw::DL_SRC);
    let dl_dst = exact(Field::DlDst, fw::DL_DST);
    let dl_type = exact(Field::DlType, fw::DL_TYPE);
    let tos = exact(Field::NwTos, fw::NW_TOS);
    let proto = exact(Field::NwProto, fw::NW_PROTO);
    // ICMP types have 8 bits of the 16 that ports have.
    let l4 = |fields: &[Field], whole: Field| m.exact(whole).or_else(|| applicable(m, fields).and_then(|f| m.exact(f)));
    let tp_src = l4(&L4_SRC, Field::TcpSrc);
    let tp_dst = l4(&L4_DST, Field::TcpDst);
    let (vlan, pcp) = get_vlan(m);

    for (absent, bit) in [
        (in_port.is_none(), fw::IN_PORT),
        (tp_src.is_none(), fw::TP_SRC),
        (tp_dst.is_none(), fw::TP_DST),
        (vlan.is_none(), fw::DL_VLAN),
        (pcp.is_none(), fw::DL_VLAN_PCP),
    ] {
        wildcards |= if absent { bit } else { 0 };
    }
    let prefix = |field: Field, shift: u32| (m.mask.get(field) as u32).leading_ones().abs_diff(32) << shift;
    wildcards |= prefix(Field::NwSrc, fw::NW_SRC_SHIFT) | prefix(Field::NwDst, fw::NW_DST_SHIFT);

    out.u32(wildcards);
    out.u16(in_port.unwrap_or(0));
    out.uint(dl_src, 6);
    out.uint(dl_dst, 6);
    out.u16(vlan.unwrap_or(0));
    out.put(&[pcp.unwrap_or(0), 0]);
    out.u16(dl_type as u16);
    out.put(&[(tos << 2) as u8, proto as u8, 0, 0]);
    out.u32(m.key.get(Field::NwSrc) as u32);
    out.u32(m.key.get(Field::NwDst) as u32);
    out.u16(tp_src.unwrap_or(0) as u16);
    out.u16(tp_dst.unwrap_or(0) as u16);
}

fn get_vlan(m: &Match) -> (Option<u16>, Option<u8>) {
    let (tci, mask) = m.get(Field::VlanTci);
    let (tci, mask) = (tci as u16, mask as u16);
    if mask & VLAN_PRESENT != 0 && tci & VLAN_PRESENT == 0 {
        // Tagged packets have another priority only if they have a tag: the wildcard says the same.
        return (Some(VLAN_NONE), (mask & 0xe000 == 0xe000).then_some(0));
    }
    let part = |bits: u16| (mask & bits == bits).then_some(tci & bits);
    (part(0xfff), part(0xe000).map(|pcp| (pcp >> 13) as u8))
}
