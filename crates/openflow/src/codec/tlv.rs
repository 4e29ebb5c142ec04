//! NXT_TLV_TABLE_MOD and NXT_TLV_TABLE_REPLY.

use super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::tlv::*;
use crate::tun_metadata::{FIELDS, MAX_LEN};

fn pull_maps(r: &mut Reader, checked: bool) -> Result<Vec<TlvMap>, OfError> {
    let mut maps = Vec::new();
    while !r.is_empty() {
        let map = TlvMap { class: r.u16()?, kind: r.u8()?, len: r.u8()?, index: r.u16()? };
        r.skip(2)?;
        if checked && (!map.len.is_multiple_of(4) || usize::from(map.len) > MAX_LEN) {
            return Err(NXTTMFC_BAD_OPT_LEN);
        }
        if checked && map.index >= FIELDS.into() {
            return Err(NXTTMFC_BAD_FIELD_IDX);
        }
        maps.push(map);
    }
    Ok(maps)
}

fn put_maps(out: &mut Vec<u8>, maps: &[TlvMap]) {
    for map in maps {
        out.u16(map.class);
        out.put(&[map.kind, map.len]);
        out.u16(map.index);
        out.u16(0);
    }
}

/// Reads the body of a table-mod.
pub(super) fn pull_mod(r: &mut Reader) -> Result<TlvTableMod, OfError> {
    use TlvCommand::*;
    let number = r.u16()?;
    r.skip(6)?;
    let command = [Add, Delete, Clear].into_iter().find(|&c| c as u16 == number).ok_or(NXTTMFC_BAD_COMMAND)?;
    Ok(TlvTableMod { command, maps: pull_maps(r, true)? })
}

/// Writes the body of a table-mod.
pub(super) fn put_mod(out: &mut Vec<u8>, t: &TlvTableMod) {
    out.u16(t.command as u16);
    out.zeros(6);
    put_maps(out, &t.maps);
}

/// Reads the body of a reply.
pub(super) fn pull_reply(r: &mut Reader) -> Result<TlvTable, OfError> {
    let (max_option_space, max_fields) = (r.u32()?, r.u16()?);
    r.skip(10)?;
    Ok(TlvTable { max_option_space, max_fields, maps: pull_maps(r, false)? })
}

/// Writes the body of a reply.
pub(super) fn put_reply(out: &mut Vec<u8>, t: &TlvTable) {
    out.u32(t.max_option_space);
    out.u16(t.max_fields);
    out.zeros(10);
    put_maps(out, &t.maps);
}
