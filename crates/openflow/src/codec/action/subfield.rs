//! Subfields on the wire: an NXM or OXM header and a range of bits.

use packet::flow::field::Oxm;

use super::super::oxm::{self, FieldUse, Header};
use super::super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::matching::{AnyField, Subfield};
use crate::tun_metadata::TunField;
use crate::types::Version;

/// Reads a header, without a mask.
pub(super) fn pull_field(r: &mut Reader) -> Result<AnyField, OfError> {
    let header = pull_header(r)?;
    if header.masked {
        return Err(OFPBMC_BAD_MASK);
    }
    field_of(header)
}

/// Reads a header where OVS takes one of a field with a mask for the same: in the actions that have had four bytes for it since before
/// there were longer ones. Clients send such headers (Antrea in `learn`).
pub(super) fn pull_short_field(r: &mut Reader) -> Result<AnyField, OfError> {
    let header = pull_header(&mut r.sub(4)?)?;
    let parts = if header.masked { 2 } else { 1 };
    if !header.payload.is_multiple_of(parts) {
        return Err(OFPBAC_BAD_SET_LEN);
    }
    field_of(Header { masked: false, payload: header.payload / parts, ..header })
}

fn pull_header(r: &mut Reader) -> Result<Header, OfError> {
    oxm::pull_header(r).map_err(|e| if e == OFPBMC_BAD_LEN { OFPBAC_BAD_SET_LEN } else { e })
}

fn field_of(header: Header) -> Result<AnyField, OfError> {
    match TunField::from_oxm(header.oxm) {
        // Any length will do: the bridge's table says how long it is.
        Some(tun) => Ok(AnyField::Tun(TunField { len: header.payload.min(tun.len.into()) as u8, ..tun })),
        None => oxm::header_field(header, FieldUse::Action).map(AnyField::Key),
    }
}

/// The subfield, if the field can have so many bits.
pub(super) fn part(field: AnyField, ofs: u16, n_bits: u16) -> Result<Subfield, OfError> {
    let longest = match field {
        AnyField::Tun(tun) => TunField::new(tun.index).map_or(field, AnyField::Tun),
        AnyField::Key(_) => field,
    };
    let part = Subfield::new(longest, ofs, n_bits).ok_or(OFPBAC_BAD_SET_LEN)?;
    Ok(Subfield { field, ..part })
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
pub(super) fn pack(sf: &Subfield) -> u16 {
    sf.ofs << 6 | (sf.n_bits - 1).min(0x3f)
}

/// The number of a field, and the length of its value: NXM's number where there is one.
fn number(version: Version, field: AnyField) -> Option<(Oxm, u8)> {
    match field {
        AnyField::Tun(tun) => Some((tun.oxm(), tun.len)),
        AnyField::Key(field) => {
            let field = oxm::wire_field(field);
            Some((oxm::number(field, version)?, field.info().wire))
        }
    }
}

/// Writes the header of a field in one of Nicira's actions, which have NXM's numbers in all versions.
pub(super) fn put_field(out: &mut Vec<u8>, field: impl Into<AnyField>) {
    put_field_of(out, Version::V1_0, field.into());
}

/// Writes the header of a field by its number in a version.
pub(super) fn put_field_of(out: &mut Vec<u8>, version: Version, field: AnyField) {
    match number(version, field) {
        Some((number, len)) => oxm::put_header(out, number, false, len),
        None => out.u32(0),
    }
}

/// Whether a header of this field takes 4 bytes, as most Nicira actions need it.
pub(super) fn is_short(field: impl Into<AnyField>) -> bool {
    number(Version::V1_0, field.into()).is_none_or(|(number, _)| number.class != 0xffff)
}
