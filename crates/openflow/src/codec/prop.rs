//! Properties: type, length without padding, value; padded to a multiple of 8 bytes.

use super::wire::{Put, Reader};
use crate::error::OfError::{self, *};

/// Reads a property: its type and its value. A number of 32 bits or less follows its header directly, one
/// of 64 bits after four bytes of padding.
pub(crate) fn pull<'a>(r: &mut Reader<'a>) -> Result<(u16, Reader<'a>), OfError> {
    let mut rest = r.with(OFPBPC_BAD_LEN);
    let (kind, len) = (rest.u16()?, usize::from(rest.u16()?));
    let value = rest.sub(len.checked_sub(4).ok_or(OFPBPC_BAD_LEN)?)?;
    let padded = len.next_multiple_of(8);
    rest.skip(padded - len)?;
    r.skip(padded)?;
    Ok((kind, value))
}

/// A number of 16 bits, which is all that matters of a property's value: OpenFlow has two bytes of padding within its length, and OVS
/// takes any length that has room.
pub(crate) fn short(value: &mut Reader) -> Result<u16, OfError> {
    let number = value.u16()?;
    value.rest();
    Ok(number)
}

/// A number of 8 bits, likewise.
pub(crate) fn byte(value: &mut Reader) -> Result<u8, OfError> {
    let number = value.u8()?;
    value.rest();
    Ok(number)
}

/// Writes a property.
pub(crate) fn put(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let start = out.here();
    out.u16(kind);
    out.u16(0);
    out.put(value);
    out.close(start, 2);
    out.pad8(start);
}

/// Writes a property whose value is a 64-bit number.
pub(crate) fn put_u64(out: &mut Vec<u8>, kind: u16, value: u64) {
    let start = out.here();
    out.u16(kind);
    out.u16(16);
    out.zeros(4);
    out.u64(value);
    debug_assert_eq!(out.here() - start, 16);
}
