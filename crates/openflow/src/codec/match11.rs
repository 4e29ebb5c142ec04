//! struct ofp_match of OpenFlow 1.1 (section A.2.3.2): fixed members with masks for addresses and metadata, and
//! wildcard bits for the rest. From here on, a mask's one bits are those that are *not* matched.

use packet::Field;
use packet::flow::VLAN_PRESENT;

use super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::matching::Match;
use crate::types::OfPort;

/// OFPFW11_*: bits of the wildcards.
mod fw {
    pub const IN_PORT: u32 = 1;
    pub const DL_VLAN: u32 = 1 << 1;
    pub const DL_VLAN_PCP: u32 = 1 << 2;
    pub const DL_TYPE: u32 = 1 << 3;
    pub const NW_TOS: u32 = 1 << 4;
    pub const NW_PROTO: u32 = 1 << 5;
    pub const TP_SRC: u32 = 1 << 6;
    pub const TP_DST: u32 = 1 << 7;
    pub const MPLS_LABEL: u32 = 1 << 8;
    pub const MPLS_TC: u32 = 1 << 9;
}

/// OFPMT_STANDARD.
const STANDARD: u16 = 0;
/// Bytes of the structure.
const LEN: u16 = 88;

/// OFPVID_ANY and OFPVID_NONE.
const VID_ANY: u16 = 0xfffe;
const VID_NONE: u16 = 0xffff;

/// Fields of one kind whose place is shared, by what the match says before: EtherType, then protocol.
const NW_SRC: [Field; 2] = [Field::NwSrc, Field::ArpSpa];
const NW_DST: [Field; 2] = [Field::NwDst, Field::ArpTpa];
const TP_SRC: [Field; 4] = [Field::TcpSrc, Field::UdpSrc, Field::SctpSrc, Field::IcmpType];
const TP_DST: [Field; 4] = [Field::TcpDst, Field::UdpDst, Field::SctpDst, Field::IcmpCode];

fn applicable(m: &Match, fields: &[Field]) -> Option<Field> {
    let ipv6 = m.exact(Field::DlType) == Some(0x86dd);
    fields.iter().copied().find(|f| !ipv6 && super::oxm::prereq_met(m, f.info().prereq))
}

/// Reads a match.
pub(super) fn pull(r: &mut Reader) -> Result<Match, OfError> {
    let (kind, len) = (r.u16()?, r.u16()?);
    if kind != STANDARD {
        return Err(OFPBMC_BAD_TYPE);
    }
    if len != LEN {
        return Err(OFPBMC_BAD_LEN);
    }
    let mut m = Match::any();
    let (in_port, wildcards) = (OfPort(r.u32()?), r.u32()?);
    let exact = |bit: u32| wildcards & bit == 0;
    if exact(fw::IN_PORT) {
        in_port.to_u16().ok_or(OFPBMC_BAD_VALUE)?;
        m.set_in_port(in_port);
    }
    for field in [Field::DlSrc, Field::DlDst] {
        let (value, mask) = (r.uint(6)?, r.uint(6)?);
        set_masked(&mut m, field, value, !mask);
    }
    let (vid, pcp) = (r.u16()?, r.u8()?);
    r.skip(1)?;
    if exact(fw::DL_VLAN) {
        set_vlan(&mut m, vid, exact(fw::DL_VLAN_PCP).then_some(pcp))?;
    }
    let (dl_type, tos, proto) = (r.u16()?, r.u8()?, r.u8()?);
    if exact(fw::DL_TYPE) {
        m.set(Field::DlType, dl_type.into());
    }
    let ipv4 = m.exact(Field::DlType) == Some(0x0800);
    let network = applicable(&m, &NW_SRC).is_some();
    if ipv4 && exact(fw::NW_TOS) {
        if tos & 3 != 0 {
            return Err(OFPBMC_BAD_VALUE);
        }
        m.set(Field::NwTos, (tos >> 2).into());
    }
    if network && exact(fw::NW_PROTO) {
        m.set(Field::NwProto, proto.into());
    }
    for fields in [&NW_SRC, &NW_DST] {
        let (value, mask) = (r.u32()?, r.u32()?);
        if let Some(field) = applicable(&m, fields) {
            set_masked(&mut m, field, value.into(), (!mask).into());
        }
    }
    for (bit, fields) in [(fw::TP_SRC, &TP_SRC), (fw::TP_DST, &TP_DST)] {
        let value = r.u16()?;
        if let Some(field) = applicable(&m, fields).filter(|_| exact(bit)) {
            if u128::from(value) > field.info().max() {
                return Err(OFPBMC_BAD_FIELD);
            }
            m.set(field, value.into());
        }
    }
    let (label, tc) = (r.u32()?, r.u8()?);
    r.skip(3)?;
    let mpls = super::oxm::prereq_met(&m, Field::MplsLabel.info().prereq);
    for (bit, field, value) in [(fw::MPLS_LABEL, Field::MplsLabel, label), (fw::MPLS_TC, Field::MplsTc, tc.into())] {
        if mpls && exact(bit) {
            m.set(field, u128::from(value) & field.info().max());
        }
    }
    let (metadata, mask) = (r.u64()?, r.u64()?);
    set_masked(&mut m, Field::Metadata, metadata.into(), (!mask).into());
    Ok(m)
}

fn set_masked(m: &mut Match, field: Field, value: u128, mask: u128) {
    if mask & field.info().max() != 0 {
        m.set_masked(field, value, mask);
    }
}

fn set_vlan(m: &mut Match, vid: u16, pcp: Option<u8>) -> Result<(), OfError> {
    if vid == VID_NONE {
        m.set(Field::VlanTci, 0);
        return Ok(());
    }
    let (mut tci, mut mask) = match vid {
        VID_ANY => (VLAN_PRESENT, VLAN_PRESENT),
        0..=0xfff => (VLAN_PRESENT | vid, VLAN_PRESENT | 0xfff),
        _ => return Err(OFPBMC_BAD_VALUE),
    };
    match pcp {
        Some(pcp @ 0..=7) => (tci, mask) = (tci | u16::from(pcp) << 13, mask | 0xe000),
        Some(_) => return Err(OFPBMC_BAD_VALUE),
        None => {}
    }
    m.set_masked(Field::VlanTci, tci.into(), mask.into());
    Ok(())
}

/// Writes a match. What OpenFlow 1.1 cannot say is left out.
pub(super) fn put(out: &mut Vec<u8>, m: &Match) {
    let mut wildcards = 0;
    let mut exact = |value: Option<u128>, bit: u32| {
        wildcards |= if value.is_none() { bit } else { 0 };
        value.unwrap_or(0)
    };
    let in_port = exact(m.in_port().map(|port| port.0.into()), fw::IN_PORT);
    let (vid, pcp) = get_vlan(m);
    let vid = exact(vid.map(u128::from), fw::DL_VLAN);
    let pcp = exact(pcp.map(u128::from), fw::DL_VLAN_PCP);
    let dl_type = exact(m.exact(Field::DlType), fw::DL_TYPE);
    let ipv4 = m.exact(Field::DlType) == Some(0x0800);
    let (nw_src, nw_dst) = (applicable(m, &NW_SRC), applicable(m, &NW_DST));
    let tos = exact(m.exact(Field::NwTos).filter(|_| ipv4), fw::NW_TOS) << 2;
    let proto = exact(m.exact(Field::NwProto).filter(|_| nw_src.is_some()), fw::NW_PROTO);
    let tp_src = exact(applicable(m, &TP_SRC).and_then(|f| m.exact(f)), fw::TP_SRC);
    let tp_dst = exact(applicable(m, &TP_DST).and_then(|f| m.exact(f)), fw::TP_DST);
    let mpls = super::oxm::prereq_met(m, Field::MplsLabel.info().prereq);
    let label = exact(m.exact(Field::MplsLabel).filter(|_| mpls), fw::MPLS_LABEL);
    let tc = exact(m.exact(Field::MplsTc).filter(|_| mpls), fw::MPLS_TC);

    let masked = |out: &mut Vec<u8>, field: Option<Field>, len: usize| {
        let (value, mask) = field.map_or((0, 0), |field| m.get(field));
        out.uint(value, len);
        out.uint(!mask & u128::MAX >> (128 - 8 * len), len);
    };
    out.u16(STANDARD);
    out.u16(LEN);
    out.u32(in_port as u32);
    out.u32(wildcards);
    masked(out, Some(Field::DlSrc), 6);
    masked(out, Some(Field::DlDst), 6);
    out.u16(vid as u16);
    out.put(&[pcp as u8, 0]);
    out.u16(dl_type as u16);
    out.put(&[tos as u8, proto as u8]);
    masked(out, nw_src, 4);
    masked(out, nw_dst, 4);
    out.u16(tp_src as u16);
    out.u16(tp_dst as u16);
    out.u32(label as u32);
    out.put(&[tc as u8, 0, 0, 0]);
    masked(out, Some(Field::Metadata), 8);
}

/// VLAN id, as the wire has it, and priority.
fn get_vlan(m: &Match) -> (Option<u16>, Option<u8>) {
    let (tci, mask) = m.get(Field::VlanTci);
    let (tci, mask) = (tci as u16, mask as u16);
    match mask {
        0 => (None, None),
        _ if mask & VLAN_PRESENT != 0 && tci & VLAN_PRESENT == 0 => (Some(VID_NONE), None),
        _ => {
            let vid = if mask & 0xfff == 0 { VID_ANY } else { tci & 0xfff };
            (Some(vid), (mask & 0xe000 != 0).then_some((tci >> 13) as u8))
        }
    }
}
