//! OFPMP_TABLE_FEATURES (OpenFlow 1.3.5 section 7.3.5.5).

use packet::flow::field::Oxm;

use super::wire::{Put, Reader};
use super::{oxm, prop};
use crate::error::OfError::{self, *};
use crate::stats::{TableFeatures, TableFeaturesSet};
use crate::tun_metadata::TunField;
use crate::types::TableId;

/// OFPTFPT_*. Of all but `MATCH` and `WILDCARDS` the number plus one is the variant for the table-miss flow.
mod kind {
    pub const INSTRUCTIONS: u16 = 0;
    pub const NEXT_TABLES: u16 = 2;
    pub const WRITE_ACTIONS: u16 = 4;
    pub const APPLY_ACTIONS: u16 = 6;
    pub const MATCH: u16 = 8;
    pub const WILDCARDS: u16 = 10;
    pub const WRITE_SETFIELD: u16 = 12;
    pub const APPLY_SETFIELD: u16 = 14;
}

/// Reads all of `r`: tables, one after the other.
pub(super) fn pull(r: &mut Reader) -> Result<Vec<TableFeatures>, OfError> {
    let mut tables = Vec::new();
    while !r.is_empty() {
        *r = r.with(OFPBPC_BAD_LEN);
        let mut head = *r;
        let len = usize::from(head.u16()?);
        if len < FIXED || len % 8 != 0 {
            return Err(OFPBPC_BAD_LEN);
        }
        tables.push(pull_table(&mut r.sub(len)?)?);
    }
    Ok(tables)
}

/// Bytes of a table before its properties.
const FIXED: usize = 64;

fn pull_table(r: &mut Reader) -> Result<TableFeatures, OfError> {
    r.skip(2)?;
    let table = TableId(r.u8()?);
    r.skip(5)?;
    if table > TableId::MAX {
        return Err(OFPTFFC_BAD_TABLE);
    }
    let mut t = TableFeatures {
        table,
        name: r.name(32)?,
        metadata_match: r.u64()?,
        metadata_write: r.u64()?,
        config: r.u32()?,
        max_entries: r.u32()?,
        normal: TableFeaturesSet::default(),
        miss: None,
        matches: Vec::new(),
        wildcards: Vec::new(),
    };
    let mut misses = Vec::new();
    *r = r.with(OFPBPC_BAD_LEN);
    while !r.is_empty() {
        let (kind, mut v) = prop::pull(r)?;
        match kind {
            kind::MATCH => t.matches = pull_oxms(&mut v)?,
            kind::WILDCARDS => t.wildcards = pull_oxms(&mut v)?.into_iter().map(|(oxm, _)| oxm).collect(),
            0xfffe | 0xffff => return Err(OFPBPC_BAD_EXPERIMENTER),
            _ if kind % 2 == 1 => misses.push((kind - 1, v)),
            _ => pull_member(&mut t.normal, kind, &mut v)?,
        }
    }
    // What is not said of the table-miss flow is as for others.
    if !misses.is_empty() {
        let mut miss = t.normal.clone();
        for (kind, mut v) in misses {
            pull_member(&mut miss, kind, &mut v)?;
        }
        t.miss = (miss != t.normal).then_some(miss);
    }
    Ok(t)
}

fn pull_member(set: &mut TableFeaturesSet, kind: u16, v: &mut Reader) -> Result<(), OfError> {
    match kind {
        kind::INSTRUCTIONS => set.instructions = pull_ids(v)?,
        kind::NEXT_TABLES => set.next_tables = v.rest().iter().map(|&n| TableId(n)).collect(),
        kind::WRITE_ACTIONS => set.write_actions = pull_ids(v)?,
        kind::APPLY_ACTIONS => set.apply_actions = pull_ids(v)?,
        kind::WRITE_SETFIELD => set.write_setfield = pull_oxms(v)?.into_iter().map(|(oxm, _)| oxm).collect(),
        kind::APPLY_SETFIELD => set.apply_setfield = pull_oxms(v)?.into_iter().map(|(oxm, _)| oxm).collect(),
        _ => return Err(OFPBPC_BAD_TYPE),
    }
    Ok(())
}

/// Headers of instructions or actions as a set of numbers. Those of experimenters are passed over.
fn pull_ids(v: &mut Reader) -> Result<u32, OfError> {
    let mut bits = 0;
    while !v.is_empty() {
        let (id, len) = (v.u16()?, usize::from(v.u16()?));
        match len {
            4.. => v.skip(len - 4)?,
            _ => return Err(OFPBPC_BAD_LEN),
        }
        if id < 32 {
            bits |= 1 << id;
        }
    }
    Ok(bits)
}

fn pull_oxms(v: &mut Reader) -> Result<Vec<(Oxm, bool)>, OfError> {
    let mut out = Vec::new();
    while !v.is_empty() {
        let header = oxm::pull_header(v).map_err(|_| OFPBPC_BAD_LEN)?;
        out.push((header.oxm, header.masked));
    }
    Ok(out)
}

/// Writes a table.
pub(super) fn put(out: &mut Vec<u8>, t: &TableFeatures) {
    let start = out.here();
    out.u16(0);
    out.put(&[t.table.0, 0, 0, 0, 0, 0]);
    out.name(&t.name, 32);
    out.u64(t.metadata_match);
    out.u64(t.metadata_write);
    out.u32(t.config);
    out.u32(t.max_entries);
    put_set(out, 0, &t.normal);
    if let Some(miss) = &t.miss {
        put_set(out, 1, miss);
    }
    put_oxms(out, kind::MATCH, t.matches.iter().copied());
    put_oxms(out, kind::WILDCARDS, t.wildcards.iter().map(|&oxm| (oxm, false)));
    out.close(start, 0);
}

/// Writes the members of a set; `variant` is one for the table-miss flow.
fn put_set(out: &mut Vec<u8>, variant: u16, s: &TableFeaturesSet) {
    let ids =
        |bits: u32| -> Vec<u8> { (0..32u16).filter(|n| bits >> n & 1 != 0).flat_map(|n| [0, n as u8, 0, 4]).collect() };
    let tables: Vec<u8> = s.next_tables.iter().map(|t| t.0).collect();
    prop::put(out, kind::INSTRUCTIONS + variant, &ids(s.instructions));
    prop::put(out, kind::NEXT_TABLES + variant, &tables);
    prop::put(out, kind::WRITE_ACTIONS + variant, &ids(s.write_actions));
    prop::put(out, kind::APPLY_ACTIONS + variant, &ids(s.apply_actions));
    put_oxms(out, kind::WRITE_SETFIELD + variant, s.write_setfield.iter().map(|&oxm| (oxm, false)));
    put_oxms(out, kind::APPLY_SETFIELD + variant, s.apply_setfield.iter().map(|&oxm| (oxm, false)));
}

/// Writes headers of fields, with the length that the field's value has.
fn put_oxms(out: &mut Vec<u8>, kind: u16, oxms: impl Iterator<Item = (Oxm, bool)>) {
    let mut value = Vec::new();
    for (number, masked) in oxms {
        let tun = || TunField::from_oxm(number).map(|tun| tun.len);
        let wire = oxm::field_by_number(number).map(|f| f.info().wire).or_else(tun).unwrap_or(0);
        oxm::put_header(&mut value, number, masked, wire);
    }
    prop::put(out, kind, &value);
}
