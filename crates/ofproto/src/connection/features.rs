//! What the tables can do (OFPMP_TABLE_FEATURES).

use openflow::stats::{TableAbilities, TableFeatures, TableFeaturesSet};
use openflow::{MultipartReply, TableId, TableMiss, TunField, Version, tun_metadata};
use packet::flow::field::{FIELDS, FieldInfo, Maskable, Oxm};

use super::reply::{Pieces, Step};
use crate::bridge::Bridge;
use crate::model::config::N_TABLES;

/// Tables of a piece.
const PIECE: usize = 8;

/// OFPIT_*: goto-table, write-metadata, write-, apply- and clear-actions, meter (numbers 1 to 6).
const INSTRUCTIONS: u32 = 0b111_1110;

/// Meter.
const METER: u32 = 1 << 6;
/// Goto-table, which the last table does not have.
const GOTO: u32 = 1 << 1;

/// OFPAT_* of OpenFlow 1.2 and later: output, set and decrement TTLs, push and pop tags, set-queue, group,
/// set-field (section 7.2.5 of 1.3: 0, 15 to 25).
const ACTIONS: u32 = 1 | 0x7ff << 15;

/// OFPAT11_*: output, set-actions for single fields, MPLS, tags, set-queue, group, TTL (numbers 0 to 10 and 13 to 24).
const ACTIONS11: u32 = 0x7ff | 0xfff << 13;

/// OFPFMF11_*: every field but the type of the match (number 10).
const FIELDS11: u64 = 0xffff & !(1 << 10);

/// Largest number of a field in OpenFlow 1.2: OFPXMT12_OFB_MPLS_TC is 35.
const LAST_FIELD12: u8 = 35;

/// OFPAT10_*: every action of OpenFlow 1.0.
pub(super) const ACTIONS10: u32 = (1 << 12) - 1;

/// The actions of a version, one bit for each OFPAT_*.
pub(super) fn actions(version: Version) -> u32 {
    match version {
        Version::V1_0 => ACTIONS10,
        Version::V1_1 => ACTIONS11,
        _ => ACTIONS,
    }
}

/// The instructions of a version, one bit for each OFPIT_*. A meter is one in OpenFlow 1.3 and 1.4; from 1.5 on it is an action. No table
/// comes after the last one.
fn instructions(version: Version, is_last: bool) -> u32 {
    let meter = if matches!(version, Version::V1_3 | Version::V1_4) { 0 } else { METER };
    INSTRUCTIONS & !(meter | if is_last { GOTO } else { 0 })
}

/// What table statistics of OpenFlow 1.1 and 1.2 say that a table can do.
pub(super) fn abilities(version: Version, table: TableId, miss: TableMiss) -> TableAbilities {
    let last = table.0 + 1 == N_TABLES;
    let mut out = TableAbilities { miss, ..TableAbilities::default() };
    (out.write_actions, out.apply_actions) = (actions(version), actions(version));
    out.instructions = instructions(version, last);
    if version == Version::V1_1 {
        (out.matches, out.wildcards) = (FIELDS11, FIELDS11);
        return out;
    }
    let bit = |field: &FieldInfo| {
        let number = field.oxm.filter(|oxm| oxm.class == 0x8000 && oxm.field <= LAST_FIELD12)?;
        Some((1 << number.field, field.writable))
    };
    let fields = FIELDS.iter().filter_map(bit);
    let (all, writable) =
        fields.fold((0, 0), |(all, some), (bit, writable)| (all | bit, some | if writable { bit } else { 0 }));
    (out.matches, out.wildcards) = (all, all);
    (out.write_setfields, out.apply_setfields) = (writable, writable);
    (out.metadata_match, out.metadata_write) = (u64::MAX, u64::MAX);
    out
}

/// The number of a field from OpenFlow 1.3 on: OXM's, or NXM's where there is no other.
fn number(info: &FieldInfo, version: Version) -> Option<Oxm> {
    let number = info.oxm.or(info.nxm);
    if version >= Version::V1_5 { number.map(Oxm::since_1_5) } else { number }
}

/// All tables, which are alike but for the tables that come after. What there is to say of them takes a message for a dozen, so they
/// come in pieces.
pub(super) fn tables(bridge: &Bridge, version: Version) -> Pieces {
    let number = |info: &FieldInfo| number(info, version);
    let tun = || (0..tun_metadata::FIELDS).filter_map(TunField::new).map(TunField::oxm);
    let settable: Vec<Oxm> = FIELDS.iter().filter(|f| f.writable).filter_map(number).chain(tun()).collect();
    let matches = FIELDS.iter().filter_map(|f| Some((number(f)?, f.maskable == Maskable::Bitwise)));
    let matches: Vec<_> = matches.chain(tun().map(|number| (number, true))).collect();
    let wildcards: Vec<Oxm> = FIELDS.iter().filter_map(number).chain(tun()).collect();
    let mut stats = bridge.table_stats().into_iter();
    let one = move |stats: openflow::stats::TableStats| {
        let next = stats.table.0 + 1..N_TABLES;
        TableFeatures {
            table: stats.table,
            name: stats.name,
            metadata_match: u64::MAX,
            metadata_write: u64::MAX,
            config: 0,
            max_entries: stats.max_entries,
            normal: TableFeaturesSet {
                instructions: instructions(version, next.is_empty()),
                next_tables: next.map(TableId).collect(),
                write_actions: ACTIONS,
                apply_actions: ACTIONS,
                write_setfield: settable.clone(),
                apply_setfield: settable.clone(),
            },
            miss: None,
            matches: matches.clone(),
            wildcards: wildcards.clone(),
        }
    };
    let mut ended = false;
    Box::new(move || {
        if std::mem::replace(&mut ended, stats.len() <= PIECE) {
            return None;
        }
        let piece = stats.by_ref().take(PIECE).map(&one).collect();
        Some(Step::Piece(MultipartReply::TableFeatures(piece), !ended))
    })
}
