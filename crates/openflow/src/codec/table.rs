//! Tables: changes of their configuration, descriptions, counters (OpenFlow 1.1 section A.3.4.3, 1.4 section
//! 7.3.4.3 and 7.3.5.8).

use super::prop;
use super::wire::{Put, Reader};
use crate::error::OfError::{self, *};
use crate::stats::{TableAbilities, TableStats};
use crate::table::*;
use crate::types::{TableId, Version};

/// OFPTC14_*: bits of a table's configuration.
const EVICTION: u32 = 1 << 2;
const VACANCY_EVENTS: u32 = 1 << 3;

/// OFPTMPT14_*: properties of a table's configuration.
mod kind {
    pub const EVICTION: u16 = 2;
    pub const VACANCY: u16 = 3;
}

/// OFPTC11_TABLE_MISS_*: only OpenFlow 1.1 and 1.2 have them.
fn miss_from_wire(version: Version, config: u32) -> Result<TableMiss, OfError> {
    match config & 3 {
        _ if version >= Version::V1_3 => Ok(TableMiss::Default),
        0 => Ok(TableMiss::Controller),
        1 => Ok(TableMiss::Continue),
        2 => Ok(TableMiss::Drop),
        _ => Err(OFPTMFC_BAD_CONFIG),
    }
}

fn miss_to_wire(version: Version, miss: TableMiss) -> u32 {
    match miss {
        TableMiss::Continue if version < Version::V1_3 => 1,
        TableMiss::Drop if version < Version::V1_3 => 2,
        _ => 0,
    }
}

/// The eviction flags and the vacancy that properties say.
fn pull_properties(r: &mut Reader) -> Result<(Option<EvictionFlags>, Option<Vacancy>), OfError> {
    let (mut eviction, mut vacancy) = (None, None);
    while !r.is_empty() {
        let (kind, v) = prop::pull(r)?;
        let mut v = v.with(OFPBPC_BAD_LEN);
        match kind {
            kind::EVICTION => {
                eviction = Some(EvictionFlags::from_bits(v.u32()?).ok_or(OFPBPC_BAD_VALUE)?);
            }
            kind::VACANCY => {
                let [down, up, now] = v.array()?;
                if down > 100 || up > 100 || down > up {
                    return Err(OFPBPC_BAD_VALUE);
                }
                vacancy = Some(Vacancy { down, up, now });
            }
            0xffff => return Err(OFPBPC_BAD_EXPERIMENTER),
            _ => return Err(OFPBPC_BAD_TYPE),
        }
    }
    Ok((eviction, vacancy))
}

fn put_properties(out: &mut Vec<u8>, eviction: Option<EvictionFlags>, vacancy: Option<Vacancy>) {
    if let Some(flags) = eviction {
        prop::put(out, kind::EVICTION, &flags.bits().to_be_bytes());
    }
    if let Some(v) = vacancy {
        prop::put(out, kind::VACANCY, &[v.down, v.up, v.now, 0]);
    }
}

/// Reads the body of a table-mod.
pub(super) fn pull_mod(r: &mut Reader, version: Version) -> Result<TableMod, OfError> {
    let mut change = TableMod::new(TableId(r.u8()?));
    r.skip(3)?;
    let config = r.u32()?;
    change.miss = miss_from_wire(version, config)?;
    if version >= Version::V1_4 {
        change.eviction = Some(config & EVICTION != 0);
        change.vacancy = Some(config & VACANCY_EVENTS != 0);
        (change.eviction_flags, change.vacancy_at) = pull_properties(r)?;
        if change.vacancy_at.is_some_and(|vacancy| vacancy.now != 0) {
            return Err(OFPBPC_BAD_VALUE);
        }
    }
    Ok(change)
}

/// Writes the body of a table-mod.
pub(super) fn put_mod(out: &mut Vec<u8>, version: Version, t: &TableMod) {
    out.put(&[t.table.0, 0, 0, 0]);
    let mut config = miss_to_wire(version, t.miss);
    if version >= Version::V1_4 {
        config |= if t.eviction == Some(true) { EVICTION } else { 0 };
        config |= if t.vacancy == Some(true) { VACANCY_EVENTS } else { 0 };
    }
    out.u32(config);
    if version >= Version::V1_4 {
        put_properties(out, t.eviction_flags, t.vacancy_at);
    }
}

/// Reads an entry of OFPMP_TABLE_DESC.
pub(super) fn pull_desc(r: &mut Reader) -> Result<TableDesc, OfError> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(2)?;
    let table = TableId(r.u8()?);
    r.skip(1)?;
    let config = r.u32()?;
    let (flags, vacancy) = pull_properties(&mut r)?;
    Ok(TableDesc {
        table,
        eviction: config & EVICTION != 0,
        eviction_flags: flags,
        vacancy: (config & VACANCY_EVENTS != 0).then(|| vacancy.unwrap_or_default()),
    })
}

/// Writes an entry of OFPMP_TABLE_DESC.
pub(super) fn put_desc(out: &mut Vec<u8>, t: &TableDesc) {
    let start = out.here();
    out.u16(0);
    out.put(&[t.table.0, 0]);
    let bit = |on: bool, bit: u32| if on { bit } else { 0 };
    out.u32(bit(t.eviction, EVICTION) | bit(t.vacancy.is_some(), VACANCY_EVENTS));
    put_properties(out, t.eviction_flags, t.vacancy);
    out.close(start, 0);
}

/// Reads the body of a table status.
pub(super) fn pull_status(r: &mut Reader) -> Result<TableStatus, OfError> {
    let reason = match r.u8()? {
        3 => TableReason::VacancyDown,
        4 => TableReason::VacancyUp,
        _ => return Err(NXBRC_BAD_REASON),
    };
    r.skip(7)?;
    Ok(TableStatus { reason, desc: pull_desc(r)? })
}

/// Writes the body of a table status.
pub(super) fn put_status(out: &mut Vec<u8>, s: &TableStatus) {
    out.u8(s.reason as u8);
    out.zeros(7);
    put_desc(out, &s.desc);
}

/// Reads an entry of OFPMP_TABLE.
pub(super) fn pull_stats(r: &mut Reader, version: Version) -> Result<TableStats, OfError> {
    let table = TableId(r.u8()?);
    let (mut name, mut wildcards, mut max_entries, mut early) = (String::new(), 0, 0, None);
    match version {
        Version::V1_0 => {
            r.skip(3)?;
            name = r.name(32)?;
            (wildcards, max_entries) = (r.u32()?, r.u32()?);
        }
        Version::V1_1 | Version::V1_2 => {
            r.skip(7)?;
            name = r.name(32)?;
            early = Some(Box::new(pull_abilities(r, version)?));
            max_entries = r.u32()?;
        }
        _ => r.skip(3)?,
    }
    let (active_count, lookup_count, matched_count) = (r.u32()?, r.u64()?, r.u64()?);
    Ok(TableStats { table, name, wildcards, max_entries, active_count, lookup_count, matched_count, early })
}

fn pull_abilities(r: &mut Reader, version: Version) -> Result<TableAbilities, OfError> {
    let mut a = TableAbilities::default();
    if version == Version::V1_1 {
        (a.wildcards, a.matches) = (r.u32()?.into(), r.u32()?.into());
        (a.instructions, a.write_actions, a.apply_actions) = (r.u32()?, r.u32()?, r.u32()?);
    } else {
        (a.matches, a.wildcards) = (r.u64()?, r.u64()?);
        (a.write_actions, a.apply_actions) = (r.u32()?, r.u32()?);
        (a.write_setfields, a.apply_setfields) = (r.u64()?, r.u64()?);
        (a.metadata_match, a.metadata_write) = (r.u64()?, r.u64()?);
        a.instructions = r.u32()?;
    }
    a.miss = miss_from_wire(version, r.u32()?)?;
    Ok(a)
}

/// Writes an entry of OFPMP_TABLE.
pub(super) fn put_stats(out: &mut Vec<u8>, version: Version, t: &TableStats) {
    out.u8(t.table.0);
    match version {
        Version::V1_0 => {
            out.zeros(3);
            out.name(&t.name, 32);
            out.u32(t.wildcards);
            out.u32(t.max_entries);
        }
        Version::V1_1 | Version::V1_2 => {
            out.zeros(7);
            out.name(&t.name, 32);
            put_abilities(out, version, t.early.as_deref().unwrap_or(&TableAbilities::default()));
            out.u32(t.max_entries);
        }
        _ => out.zeros(3),
    }
    out.u32(t.active_count);
    out.u64(t.lookup_count);
    out.u64(t.matched_count);
}

fn put_abilities(out: &mut Vec<u8>, version: Version, a: &TableAbilities) {
    if version == Version::V1_1 {
        [a.wildcards as u32, a.matches as u32].into_iter().for_each(|n| out.u32(n));
        [a.instructions, a.write_actions, a.apply_actions].into_iter().for_each(|n| out.u32(n));
    } else {
        [a.matches, a.wildcards].into_iter().for_each(|n| out.u64(n));
        [a.write_actions, a.apply_actions].into_iter().for_each(|n| out.u32(n));
        let rest = [a.write_setfields, a.apply_setfields, a.metadata_match, a.metadata_write];
        rest.into_iter().for_each(|n| out.u64(n));
        out.u32(a.instructions);
    }
    out.u32(miss_to_wire(version, a.miss));
}
