//! OXM and NXM: headers, entries, matches (OpenFlow 1.3.5 section 7.2.3; nicira-ext.h).
//!
//! An entry is a header (class 16 bits, field 7, has-mask 1, length 8; an experimenter class adds 32
//! bits that the length includes), a value, and a mask of the same size.

use std::sync::LazyLock;

use packet::flow::VLAN_PRESENT;
use packet::flow::field::{FIELDS, Maskable, Oxm, Prereq};
use packet::flow::prereq::ct_valid;
use packet::{Field, flow::FieldInfo};

use super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::matching::Match;
use crate::tun_metadata::{self, TunField, TunMatch, TunValue};
use crate::types::{CookieFilter, OfPort, Version};

/// Whether an entry is in a match or in an action: the same faults have different errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FieldUse {
    Match,
    Action,
}

/// A header as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub oxm: Oxm,
    pub masked: bool,
    /// Bytes of value and mask.
    pub payload: usize,
}

/// `NXM_NX_COOKIE`, which shares its number with mpls_ttl and differs from it by its length.
const NXM_NX_COOKIE: Oxm = Oxm { class: 1, field: 30, experimenter: 0 };

static BY_NUMBER: LazyLock<Vec<(u64, Field)>> = LazyLock::new(|| {
    let numbers = |f: &'static FieldInfo| {
        let all = [f.nxm, f.oxm, f.oxm.map(Oxm::since_1_5)];
        all.into_iter().flatten().map(|o| (sort_key(o), f.field))
    };
    let mut all: Vec<_> = FIELDS.iter().flat_map(numbers).collect();
    all.sort_unstable();
    all.dedup();
    all
});

fn sort_key(oxm: Oxm) -> u64 {
    u64::from(oxm.class) << 48 | u64::from(oxm.field) << 32 | u64::from(oxm.experimenter)
}

pub(super) fn field_by_number(oxm: Oxm) -> Option<Field> {
    let at = BY_NUMBER.binary_search_by_key(&sort_key(oxm), |e| e.0).ok()?;
    Some(BY_NUMBER[at].1)
}

/// Reads a header.
pub(crate) fn pull_header(r: &mut Reader) -> Result<Header, OfError> {
    let class = r.u16()?;
    let [field, length] = r.array()?;
    let mut oxm = Oxm { class, field: field >> 1, experimenter: 0 };
    let mut payload = usize::from(length);
    if class == 0xffff {
        oxm.experimenter = r.u32()?;
        payload = payload.checked_sub(4).ok_or(OFPBMC_BAD_LEN)?;
    }
    Ok(Header { oxm, masked: field & 1 != 0, payload })
}

/// Writes a header for a field of `wire` bytes.
pub(crate) fn put_header(out: &mut Vec<u8>, oxm: Oxm, masked: bool, wire: u8) {
    out.u16(oxm.class);
    let experimenter = if oxm.class == 0xffff { 4 } else { 0 };
    out.put(&[oxm.field << 1 | u8::from(masked), experimenter + wire * if masked { 2 } else { 1 }]);
    if oxm.class == 0xffff {
        out.u32(oxm.experimenter);
    }
}

/// The number that `version` gives to `field`: OXM from OpenFlow 1.2, NXM before, the other where there
/// is only one. Fields that have none stand for another that has: see [`wire_field`].
pub(crate) fn number(field: Field, version: Version) -> Option<Oxm> {
    let info = field.info();
    let number = if version >= Version::V1_2 { info.oxm.or(info.nxm) } else { info.nxm.or(info.oxm) };
    if version >= Version::V1_5 { number.map(Oxm::since_1_5) } else { number }
}

/// The field as which `field` goes over the wire: dl_vlan and dl_vlan_pcp are names for parts of vlan_tci.
pub(crate) fn wire_field(field: Field) -> Field {
    match field {
        Field::DlVlan => Field::VlanVid,
        Field::DlVlanPcp => Field::VlanPcp,
        other => other,
    }
}

/// The field that a header is for, if its length fits.
pub(crate) fn header_field(header: Header, place: FieldUse) -> Result<Field, OfError> {
    let unknown = if place == FieldUse::Match { OFPBMC_BAD_FIELD } else { OFPBAC_BAD_SET_TYPE };
    let field = field_by_number(header.oxm).ok_or(unknown)?;
    let wire = usize::from(field.info().wire) * if header.masked { 2 } else { 1 };
    if header.payload == wire {
        Ok(field)
    } else if place == FieldUse::Match {
        Err(OFPBMC_BAD_LEN)
    } else {
        Err(OFPBAC_BAD_SET_LEN)
    }
}

/// A decoded entry: a field with its value and mask as [`Match`] holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodedField {
    pub field: Field,
    pub value: u128,
    pub mask: u128,
    pub masked: bool,
}

/// Fields of tunnels of which clients of OVS send the value where the mask belongs. OVS takes the value for the mask, too: of these fields,
/// just the bits that are set can be matched under a mask.
pub(crate) const HAS_VALUE_AS_MASK: [Field; 5] =
    [Field::TunErspanVer, Field::TunErspanDir, Field::TunErspanHwid, Field::TunGtpuFlags, Field::TunGtpuMsgtype];

/// Reads the payload of a known field.
pub(crate) fn pull_payload(
    r: &mut Reader,
    header: Header,
    field: Field,
    place: FieldUse,
) -> Result<DecodedField, OfError> {
    let info = field.info();
    let wire = usize::from(info.wire);
    let all = u128::MAX >> (128 - 8 * wire);
    let value = r.uint(wire)?;
    let mask = if header.masked { r.uint(wire)? } else { all };
    let (bad_wildcards, bad_value) = match place {
        FieldUse::Match => (OFPBMC_BAD_WILDCARDS, OFPBMC_BAD_VALUE),
        FieldUse::Action => (OFPBAC_BAD_SET_ARGUMENT, OFPBAC_BAD_SET_ARGUMENT),
    };
    if value & !mask != 0 {
        return Err(bad_wildcards);
    }
    let (field, value, mut bits) = match (field, place) {
        // Actions tell NXM's port, which they may write, from OXM's.
        (Field::InPort, FieldUse::Action) => (field, value, mask),
        _ => from_wire(field, value, mask).ok_or(bad_value)?,
    };
    if header.masked && place == FieldUse::Match && HAS_VALUE_AS_MASK.contains(&field) {
        bits &= value;
    }
    let max = field.info().max();
    // As in OVS, an action may write some bits of a field of which matches need all.
    if place == FieldUse::Match && info.maskable == Maskable::No && bits != 0 && bits != max {
        return Err(OFPBMC_BAD_MASK);
    }
    Ok(DecodedField { field, value, mask: bits, masked: header.masked })
}

/// From the wire's form of a value to the key's. `None`: not a value of the field.
fn from_wire(field: Field, value: u128, mask: u128) -> Option<(Field, u128, u128)> {
    let max = field.info().max();
    match field {
        // The whole TOS byte, of which the low two bits are zero (NXM_OF_IP_TOS).
        Field::NwTos if value & 3 == 0 => Some((field, value >> 2, mask >> 2 & max)),
        Field::NwTos => None,
        Field::InPort => {
            Some((Field::InPortOxm, OfPort::from_u16(value as u16).0.into(), if mask == 0 { 0 } else { 0xffff_ffff }))
        }
        Field::InPortOxm | Field::ActsetOutput if OfPort(value as u32).to_u16().is_none() => None,
        Field::CtState if value > 0xff => None,
        _ if value > max => None,
        _ => Some((field, value, mask & max)),
    }
}

/// From the key's form of a value or mask to the wire's.
fn to_wire(field: Field, value: u128) -> u128 {
    if field == Field::NwTos { value << 2 } else { value }
}

/// Writes an entry; without a mask where `mask` is all of the field. `field` has a number.
pub(crate) fn put_entry(out: &mut Vec<u8>, version: Version, field: Field, value: u128, mask: u128) {
    let field = wire_field(field);
    let Some(oxm) = number(field, version) else { return };
    let info = field.info();
    // Of tun_flags only one bit is the controllers' business: OVS always says so.
    let masked = mask & info.max() != info.max() || field == Field::TunFlags;
    put_header(out, oxm, masked, info.wire);
    out.uint(to_wire(field, value), info.wire.into());
    if masked {
        out.uint(to_wire(field, mask & info.max()), info.wire.into());
    }
}

/// Reads the payload of a tun_metadata field, which may have any length that such a field can have.
pub(crate) fn pull_tun(r: &mut Reader, header: Header, index: u8, place: FieldUse) -> Result<TunValue, OfError> {
    let (bad_len, bad_wildcards) = match place {
        FieldUse::Match => (OFPBMC_BAD_LEN, OFPBMC_BAD_WILDCARDS),
        FieldUse::Action => (OFPBAC_BAD_SET_LEN, OFPBAC_BAD_SET_ARGUMENT),
    };
    let parts = if header.masked { 2 } else { 1 };
    let len = header.payload / parts;
    if len > tun_metadata::MAX_LEN || !header.payload.is_multiple_of(parts) {
        return Err(bad_len);
    }
    let value = r.bytes(len)?.to_vec();
    let mask = if header.masked { Some(r.bytes(len)?.to_vec()) } else { None };
    if mask.iter().flatten().zip(&value).any(|(mask, value)| value & !mask != 0) {
        return Err(bad_wildcards);
    }
    Ok(TunValue { index, value, mask })
}

/// Writes an entry for a tun_metadata field.
pub(crate) fn put_tun(out: &mut Vec<u8>, value: &TunValue) {
    let Some(field) = TunField::new(value.index) else { return };
    put_header(out, field.oxm(), value.mask.is_some(), value.value.len() as u8);
    out.put(&value.value);
    out.put(value.mask.as_deref().unwrap_or_default());
}

/// Whether the prerequisites of a field hold in a match (OpenFlow 1.3.5 section 7.2.3.6, ovs-fields(7)).
pub(crate) fn prereq_met(m: &Match, prereq: Prereq) -> bool {
    // A packet that does not begin with Ethernet can be told by its packet type: namespace 1 is EtherTypes.
    let dl_type = || {
        let by_type = || m.exact(Field::PacketType).filter(|kind| kind >> 16 == 1).map(|kind| kind & 0xffff);
        m.exact(Field::DlType).or_else(by_type)
    };
    let ip = || matches!(dl_type(), Some(0x0800 | 0x86dd));
    let not_later = || {
        let (value, mask) = m.get(Field::NwFrag);
        let later = u128::from(packet::flow::frag::LATER);
        mask & later == 0 || value & later == 0
    };
    let of = |proto: u128| ip() && m.exact(Field::NwProto) == Some(proto);
    let l4 = |proto: u128| of(proto) && not_later();
    // As in OVS, the code need not be said to be zero; it must not be said to be something else.
    let nd = |kind: u128| m.exact(Field::Icmpv6Type) == Some(kind) && m.get(Field::Icmpv6Code).0 == 0;
    // As in OVS, of ICMP a later fragment's may be asked for: they are zero.
    let icmpv6 = || dl_type() == Some(0x86dd) && of(58);
    let tracked = || ct_valid(&m.key.masked(&m.mask), &m.mask);
    match prereq {
        Prereq::None => true,
        Prereq::Ethernet => matches!(m.get(Field::PacketType), (0, _)),
        Prereq::VlanVid => {
            let (value, mask) = m.get(Field::VlanTci);
            value & mask & u128::from(VLAN_PRESENT) != 0
        }
        Prereq::Mpls => matches!(dl_type(), Some(0x8847 | 0x8848)),
        Prereq::Ipv4 => dl_type() == Some(0x0800),
        Prereq::Ipv6 => dl_type() == Some(0x86dd),
        Prereq::Ip => ip(),
        Prereq::Arp => matches!(dl_type(), Some(0x0806 | 0x8035)),
        Prereq::Tcp => l4(6),
        Prereq::Udp => l4(17),
        Prereq::Sctp => l4(132),
        Prereq::Icmp => dl_type() == Some(0x0800) && of(1),
        Prereq::Icmpv6 => icmpv6(),
        Prereq::Nd => icmpv6() && (nd(135) || nd(136)),
        Prereq::NdSolicit => icmpv6() && nd(135),
        Prereq::NdAdvert => icmpv6() && nd(136),
        Prereq::Nsh => dl_type() == Some(0x894f) || m.exact(Field::PacketType) == Some(0x1_894f),
        Prereq::Pbb => dl_type() == Some(0x88e7),
        Prereq::Ct => tracked() && ip(),
        Prereq::CtIpv4 => tracked() && dl_type() == Some(0x0800),
        Prereq::CtIpv6 => tracked() && dl_type() == Some(0x86dd),
        Prereq::CtPorts => tracked() && ip() && matches!(m.exact(Field::CtNwProto), Some(1 | 6 | 17 | 58 | 132)),
    }
}

/// Reads entries until there are no more.
///
/// A loose reading is for metadata that a switch sends: unknown fields are skipped, prerequisites not
/// checked. The cookie is an NXM pseudo-field of requests; `None` where it may not be there.
pub(crate) fn pull_entries(
    mut r: Reader,
    loose: bool,
    mut cookie: Option<&mut CookieFilter>,
) -> Result<Match, OfError> {
    let mut out = Match::any();
    r = r.with(OFPBMC_BAD_LEN);
    while !r.is_empty() {
        let header = pull_header(&mut r)?;
        if header.oxm == NXM_NX_COOKIE
            && header.payload == if header.masked { 16 } else { 8 }
            && let Some(filter) = cookie.as_deref_mut()
        {
            pull_cookie(&mut r, header.masked, filter)?;
            continue;
        }
        if let Some(tun) = TunField::from_oxm(header.oxm) {
            let value = pull_tun(&mut r, header, tun.index, FieldUse::Match)?;
            if out.tun(tun.index).is_some() {
                return Err(OFPBMC_DUP_FIELD);
            }
            out.set_tun(TunMatch::Value(value));
            continue;
        }
        let field = match header_field(header, FieldUse::Match) {
            Err(OFPBMC_BAD_FIELD) if loose => {
                r.skip(header.payload)?;
                continue;
            }
            other => other?,
        };
        let entry = pull_payload(&mut r, header, field, FieldUse::Match)?;
        if !loose && !prereq_met(&out, field.info().prereq) {
            return Err(OFPBMC_BAD_PREREQ);
        }
        if !out.mask.is_wild(entry.field) {
            return Err(OFPBMC_DUP_FIELD);
        }
        if entry.mask != 0 {
            out.set_masked(entry.field, entry.value, entry.mask);
        }
    }
    Ok(out)
}

fn pull_cookie(r: &mut Reader, masked: bool, filter: &mut CookieFilter) -> Result<(), OfError> {
    if filter.mask != 0 {
        return Err(OFPBMC_DUP_FIELD);
    }
    let value = r.u64()?;
    let mask = if masked { r.u64()? } else { u64::MAX };
    if value & !mask != 0 {
        return Err(OFPBMC_BAD_WILDCARDS);
    }
    *filter = CookieFilter { value, mask };
    Ok(())
}

/// Reads an nx_match: `len` bytes of entries, padded to a multiple of 8.
pub(crate) fn pull_nxm(
    r: &mut Reader,
    len: usize,
    loose: bool,
    cookie: Option<&mut CookieFilter>,
) -> Result<Match, OfError> {
    let mut padded = r.with(OFPBMC_BAD_LEN);
    let entries = padded.sub(len)?;
    padded.skip(len.next_multiple_of(8) - len)?;
    r.skip(len.next_multiple_of(8))?;
    pull_entries(entries, loose, cookie)
}

/// Reads a struct ofp_match of OpenFlow 1.2 and later, with its padding.
pub(crate) fn pull_oxm_match(r: &mut Reader, loose: bool) -> Result<Match, OfError> {
    let mut head = r.with(OFPBMC_BAD_LEN);
    let (kind, len) = (head.u16()?, usize::from(head.u16()?));
    if kind != 1 {
        return Err(OFPBMC_BAD_TYPE);
    }
    let entries = head.sub(len.checked_sub(4).ok_or(OFPBMC_BAD_LEN)?)?;
    let padded = len.next_multiple_of(8);
    head.skip(padded - len)?;
    r.skip(padded)?;
    pull_entries(entries, loose, None)
}

/// Writes a struct ofp_match of OpenFlow 1.2 and later, with its padding.
pub(crate) fn put_oxm_match(out: &mut Vec<u8>, version: Version, m: &Match) {
    let start = out.here();
    out.u16(1);
    out.u16(0);
    put_entries(out, version, m);
    out.close(start, 2);
    out.pad8(start);
}

/// Writes an nx_match with its padding; its length without padding goes into the 16-bit member at
/// `len_at`.
pub(crate) fn put_nxm(out: &mut Vec<u8>, version: Version, m: &Match, cookie: CookieFilter, len_at: usize) {
    let start = out.here();
    put_entries(out, version, m);
    if cookie.mask != 0 {
        let masked = cookie.mask != u64::MAX;
        put_header(out, NXM_NX_COOKIE, masked, 8);
        out.u64(cookie.value & cookie.mask);
        if masked {
            out.u64(cookie.mask);
        }
    }
    let len = (out.here() - start).min(0xffff) as u16;
    out.set_u16(len_at, len);
    out.pad8(start);
}

/// The fields of a match in the order in which they are written: prerequisites before what needs
/// them. Of fields that share storage one is written, which the version or the prerequisites choose;
/// VLAN fields are written by [`put_vlan`].
static WRITE_ORDER: LazyLock<Vec<Field>> = LazyLock::new(|| {
    let (ct, other): (Vec<_>, Vec<_>) = FIELDS
        .iter()
        .map(|f| f.field)
        .filter(|&f| is_written(f))
        .partition(|f| matches!(f.info().prereq, Prereq::Ct | Prereq::CtIpv4 | Prereq::CtIpv6 | Prereq::CtPorts));
    other.into_iter().chain(ct).collect()
});

fn is_written(field: Field) -> bool {
    let wide_register = (Field::Xreg0..=Field::Xxreg3).contains(&field);
    let vlan = matches!(field, Field::VlanTci | Field::VlanVid | Field::VlanPcp | Field::DlVlan | Field::DlVlanPcp);
    !wide_register && !vlan && field.info().nxm.or(field.info().oxm).is_some() && field != Field::NwFrag
}

/// Writes the entries of a match.
pub(crate) fn put_entries(out: &mut Vec<u8>, version: Version, m: &Match) {
    let new = version >= Version::V1_2;
    for &field in WRITE_ORDER.iter() {
        if field == Field::NwProto {
            put_one(out, version, m, Field::NwFrag);
        }
        match field {
            Field::InPort => put_in_port(out, m, new),
            Field::InPortOxm => {}
            Field::NwTos if new => {}
            Field::IpDscp if !new => {}
            _ if version >= Version::V1_5 && (Field::Reg0..=Field::Reg15).contains(&field) => {
                if let Some(pair) = packet_register(field) {
                    put_one(out, version, m, pair);
                }
            }
            _ => put_one(out, version, m, field),
        }
        if field == Field::DlType {
            put_vlan(out, version, m);
        }
    }
    for matching in &m.tun_metadata {
        if let TunMatch::Value(value) = matching {
            put_tun(out, value);
        }
    }
}

/// The packet register that begins with this register: OpenFlow 1.5 section 7.2.3.10 has registers of 64 bits, of which each is
/// two of Nicira's. OVS says what registers hold by these from that version on, and its clients look for them there.
fn packet_register(register: Field) -> Option<Field> {
    use Field::*;
    let pairs = [
        (Reg0, Xreg0),
        (Reg2, Xreg1),
        (Reg4, Xreg2),
        (Reg6, Xreg3),
        (Reg8, Xreg4),
        (Reg10, Xreg5),
        (Reg12, Xreg6),
        (Reg14, Xreg7),
    ];
    pairs.iter().find(|(first, _)| *first == register).map(|&(_, pair)| pair)
}

fn put_one(out: &mut Vec<u8>, version: Version, m: &Match, field: Field) {
    let (value, mask) = m.get(field);
    if mask != 0 && prereq_met(m, field.info().prereq) {
        put_entry(out, version, field, value, mask);
    }
}

fn put_in_port(out: &mut Vec<u8>, m: &Match, new: bool) {
    let Some(port) = m.in_port() else { return };
    if new {
        put_entry(out, Version::V1_3, Field::InPortOxm, port.0.into(), u128::MAX);
    } else if let Some(port) = port.to_u16() {
        put_entry(out, Version::V1_0, Field::InPort, port.into(), u128::MAX);
    }
}

/// Writes what is matched of the outer tag: as vlan_vid and vlan_pcp where these can say it and the
/// version knows them, else as vlan_tci.
fn put_vlan(out: &mut Vec<u8>, version: Version, m: &Match) {
    let (tci, mask) = m.get(Field::VlanTci);
    let present = u128::from(VLAN_PRESENT);
    let (vid_mask, pcp_mask) = (mask & 0x1fff, mask >> 13);
    if mask == 0 {
        return;
    }
    // "No tag" has all of TCI zero: matching priority zero as well says no more.
    let untagged = mask & present != 0 && tci & present == 0 && tci == 0 && mask & 0xfff == 0xfff;
    let pcp_fits = untagged || pcp_mask == 0 || pcp_mask == 7 && tci & mask & present != 0;
    if version < Version::V1_2 || !pcp_fits {
        return put_entry(out, Version::V1_0, Field::VlanTci, tci, mask);
    }
    put_entry(out, version, Field::VlanVid, tci & 0x1fff, vid_mask);
    if pcp_mask == 7 && !untagged {
        put_entry(out, version, Field::VlanPcp, tci >> 13, u128::MAX);
    }
}
