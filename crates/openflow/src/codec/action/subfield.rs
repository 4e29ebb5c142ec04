//! Subfields on the wire: an NXM or OXM header and a range of bits.
//!
//! For two fields the wire counts bits that the field does not have: NXM_OF_IP_TOS is the whole byte of
//! which nw_tos is the upper six bits, NXM_OF_ARP_OP has 16 bits of which arp_op is the lower eight.

use packet::Field;

use super::super::oxm::{self, FieldUse};
use super::super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::matching::Subfield;
use crate::types::Version;

/// Reads a header, without a mask.
pub(super) fn pull_field(r: &mut Reader) -> Result<Field, OfError> {
    let header = oxm::pull_header(r).map_err(|e| if e == OFPBMC_BAD_LEN { OFPBAC_BAD_SET_LEN } else { e })?;
    if header.masked {
        return Err(OFPBAC_BAD_SET_TYPE);
    }
    oxm::header_field(header, FieldUse::Action)
}

/// The subfield that `ofs` and `n_bits` name in the wire's terms.
pub(super) fn from_wire(field: Field, ofs: u16, n_bits: u16) -> Result<Subfield, OfError> {
    let (ofs, n_bits) = match field {
        Field::ArpOp if ofs == 0 && n_bits <= 16 => (0, n_bits.min(8)),
        Field::NwTos if ofs == 0 && n_bits == 8 => (0, 6),
        Field::NwTos => (ofs.checked_sub(2).ok_or(OFPBAC_BAD_SET_LEN)?, n_bits),
        _ => (ofs, n_bits),
    };
    Subfield::new(field, ofs, n_bits).ok_or(OFPBAC_BAD_SET_LEN)
}

/// Range of a subfield in the wire's terms: offset, bits.
pub(super) fn to_wire(sf: &Subfield) -> (u16, u16) {
    match sf.field {
        Field::ArpOp if sf.is_whole() => (0, 16),
        Field::NwTos => (sf.ofs + 2, sf.n_bits),
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
        Field::NwTos if wire_bits == 8 && value & 3 == 0 => value >> 2,
        Field::NwTos if wire_bits == 8 => return None,
        _ => value,
    };
    (u128::from(value) <= sf.max()).then_some(value)
}

/// A subfield that an action writes.
pub(super) fn writable(sf: Subfield) -> Result<Subfield, OfError> {
    if sf.info().writable { Ok(sf) } else { Err(OFPBAC_BAD_SET_ARGUMENT) }
}

/// `ofs << 6 | n_bits - 1`, as most Nicira actions write a range.
pub(super) fn unpack(ofs_nbits: u16) -> (u16, u16) {
    (ofs_nbits >> 6, (ofs_nbits & 0x3f) + 1)
}

/// The inverse of [`unpack`]; more than 64 bits cannot be said.
pub(super) fn pack((ofs, n_bits): (u16, u16)) -> u16 {
    ofs << 6 | (n_bits - 1).min(0x3f)
}

/// The number of a field in Nicira's actions: NXM's where there is one, whatever the version.
fn number(version: Version, field: Field) -> Option<packet::flow::field::Oxm> {
    oxm::number(oxm::wire_field(field), if version < Version::V1_5 { Version::V1_0 } else { version })
}

/// Writes the header of a field.
pub(super) fn put_field(out: &mut Vec<u8>, version: Version, field: Field) {
    match number(version, field) {
        Some(number) => oxm::put_header(out, number, false, oxm::wire_field(field).info().wire),
        None => out.u32(0),
    }
}

/// Whether a header of this field takes 4 bytes, as most Nicira actions need it.
pub(super) fn is_short(version: Version, field: Field) -> bool {
    number(version, field).is_none_or(|n| n.class != 0xffff)
}
