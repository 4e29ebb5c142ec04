//! What the tables can do (OFPMP_TABLE_FEATURES).

use openflow::TableId;
use openflow::stats::{TableFeatures, TableFeaturesSet};
use packet::flow::field::{FIELDS, FieldInfo, Maskable, Oxm};

use crate::bridge::{Bridge, N_TABLES};

/// OFPIT_* that are done: goto-table, write-metadata, write-, apply- and clear-actions.
const INSTRUCTIONS: u32 = 0b11_1110;

/// OFPAT_* that are done: output, push and pop VLAN, set-field, decrement TTL. (Section 7.2.5: 0, 17, 18, 24, 25.)
const ACTIONS: u32 = 1 | 1 << 17 | 1 << 18 | 1 << 24 | 1 << 25;

/// The number of a field in OpenFlow 1.3: OXM's, or NXM's where there is no other.
fn number(info: &FieldInfo) -> Option<Oxm> {
    info.oxm.or(info.nxm)
}

/// All tables, which are alike but for the tables that come after.
pub(super) fn tables(bridge: &Bridge) -> Vec<TableFeatures> {
    let settable: Vec<Oxm> = FIELDS.iter().filter(|f| f.writable).filter_map(number).collect();
    let matches = FIELDS.iter().filter_map(|f| Some((number(f)?, f.maskable == Maskable::Bitwise))).collect::<Vec<_>>();
    let wildcards: Vec<Oxm> = FIELDS.iter().filter_map(number).collect();
    let stats = bridge.table_stats();
    let one = |stats: openflow::stats::TableStats| {
        let next = stats.table.0 + 1..N_TABLES;
        TableFeatures {
            table: stats.table,
            name: stats.name,
            metadata_match: u64::MAX,
            metadata_write: u64::MAX,
            config: 0,
            max_entries: stats.max_entries,
            normal: TableFeaturesSet {
                instructions: if next.is_empty() { INSTRUCTIONS & !2 } else { INSTRUCTIONS },
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
    stats.into_iter().map(one).collect()
}
