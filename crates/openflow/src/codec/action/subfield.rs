//! Subfields on the wire: an NXM or OXM header and a range of bits.
//!
//! For two fields the wire counts bits that the field does not have: NXM_OF_IP_TOS is the whole byte of
//! which nw_tos is the upper six bits, NXM_OF_ARP_OP has 16 bits of which arp_op is the lower eight.

use packet::Field;
use packet::flow::field::Oxm;

use super::super::oxm::{self, FieldUse};
use super::super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::matching::{AnyField, Subfield};
use crate::tun_metadata::TunField;
use crate::types::Version;

/// Reads a header, without a mask.
pub(super) fn pull_field(r: &mut Reader) -> Result<AnyField, OfError> {
    let header = oxm::pull_header(r).map_err(|e| if e == OFPBMC_BAD_LEN { OFPBAC_BAD_SET_LEN } else { e })?;
    if header.masked {
        return Err(OFPBAC_BAD_SET_TYPE);
    }
    match TunField::from_oxm(header.oxm) {
        // Any length will do: the bridge's table says how long it is.
        Some(tun) => Ok(AnyField::Tun(TunField { len: header.payload.min(tun.len.into()) as u8, ..tun })),
        None => oxm::header_field(header, FieldUse::Action).map(AnyField::Key),
    }
}

/// The subfield that `ofs` and `n_bits` name in the wire's terms.
pub(super) fn from_wire(field: AnyField, ofs: u16, n_bits: u16) -> Result<Subfield, OfError> {
    let (ofs, n_bits) = match field {
        AnyField::Key(Field::ArpOp) if ofs == 0 && n_bits <= 16 => (0, n_bits.min(8)),
        AnyField::Key(Field::NwTos) if ofs == 0 && n_bits == 8 => (0, 6),
        AnyField::Key(Field::NwTos) => (ofs.checked_sub(2).ok_or(OFPBAC_BAD_SET_LEN)?, n_bits),
        _ => (ofs, n_bits),
    };
    plain(field, ofs, n_bits)
}

/// The subfield, if the field can have so many bits.
pub(super) fn plain(field: AnyField, ofs: u16, n_bits: u16) -> Result<Subfield, OfError> {
    let longest = match field {
        AnyField::Tun(tun) => TunField::new(tun.index).map_or(field, AnyField::Tun),
        AnyField::Key(_) => field,
    };
    let part = Subfield::new(longest, ofs, n_bits).ok_or(OFPBAC_BAD_SET_LEN)?;
    Ok(Subfield { field, ..part })
}

/// Range of a subfield in the wire's terms: offset, bits.
pub(super) fn to_wire(sf: &Subfield) -> (u16, u16) {
    match sf.field {
        AnyField::Key(Field::ArpOp) if sf.is_whole() => (0, 16),
        AnyField::Key(Field::NwTos) => (sf.ofs + 2, sf.n_bits),
        _ => (sf.ofs, sf.n_bits),
    }
}

/// As [`to_wire`], with the width unchanged: where a second range must be as wide.
pub(super) fn to_wire_same_width(sf: &Subfield) -> (u16, u16) {
    (if sf.field == Field::NwTos { sf.ofs + 2 } else { sf.ofs }, sf.n_bits)
}

/// A constant that is written to `sf`, from the wire's form. `None`: it does not fit.
pub(super) fn value_from_wire(sf: &Subfield, wire_bits: u16, value: u64) -> Option<u64> {
    let value = match sf.field {
        AnyField::Key(Field::NwTos) if wire_bits == 8 && value & 3 == 0 => value >> 2,
        AnyField::Key(Field::NwTos) if wire_bits == 8 => return None,
        _ => value,
    };
    (u128::from(value) <= sf.max()).then_some(value)
}

/// A subfield that an action writes.
pub(super) fn writable(sf: Subfield) -> Result<Subfield, OfError> {
    if sf.field.is_writable() { Ok(sf) } else { Err(OFPBAC_BAD_SET_ARGUMENT) }
}

/// `ofs << 6 | n_bits - 1`, as most Nicira actions write a range.
pub(super) fn unpack(ofs_nbits: u16) -> (u16, u16) {
    (ofs_nbits >> 6, (ofs_nbits & 0x3f) + 1)
}

/// The inverse of [`unpack`]; more than 64 bits cannot be said.
pub(super) fn pack((ofs, n_bits): (u16, u16)) -> u16 {
    ofs << 6 | (n_bits - 1).min(0x3f)
}

/// The number of a field in Nicira's actions, and the length of its value: NXM's number where there is one, whatever the version.
fn number(version: Version, field: AnyField) -> Option<(Oxm, u8)> {
    match field {
        AnyField::Tun(tun) => Some((tun.oxm(), tun.len)),
        AnyField::Key(field) => {
            let field = oxm::wire_field(field);
            let number = oxm::number(field, if version < Version::V1_5 { Version::V1_0 } else { version })?;
            Some((number, field.info().wire))
        }
    }
}

/// Writes the header of a field.
pub(super) fn put_field(out: &mut Vec<u8>, version: Version, field: impl Into<AnyField>) {
    match number(version, field.into()) {
        Some((number, len)) => oxm::put_header(out, number, false, len),
        None => out.u32(0),
    }
}

/// Whether a header of this field takes 4 bytes, as most Nicira actions need it.
pub(super) fn is_short(version: Version, field: impl Into<AnyField>) -> bool {
    number(version, field.into()).is_none_or(|(number, _)| number.class != 0xffff)
}
