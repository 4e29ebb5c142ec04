//! The table Flow_Table (ovs-vswitchd.conf.db(5)): limits and names of OpenFlow tables.

use std::collections::BTreeMap;

use ofproto::TableSettings;
use openflow::{Subfield, TableId, text};
use ovsdb::{Atom, Replica, Row};
use packet::Field;

/// The tables of a bridge that are configured, and what is wrong with them in words.
pub fn read(replica: &Replica, bridge: &Row) -> (BTreeMap<TableId, TableSettings>, Vec<String>) {
    let (mut tables, mut problems) = (BTreeMap::new(), Vec::new());
    for (key, value) in bridge.pairs("flow_tables") {
        let (&Atom::Integer(number), &Atom::Uuid(uuid)) = (key, value) else { continue };
        let Some(row) = replica.row("Flow_Table", uuid) else { continue };
        match u8::try_from(number).map(TableId).ok().filter(|id| *id <= TableId::MAX) {
            Some(id) => drop(tables.insert(id, settings(row, &mut problems))),
            None => problems.push(format!("flow_tables: there is no table {number}")),
        }
    }
    (tables, problems)
}

fn settings(row: &Row, problems: &mut Vec<String>) -> TableSettings {
    let groups = row.strings("groups").filter_map(|text| {
        let subfield: Result<Subfield, _> = text::subfield::parse(text);
        subfield.map_err(|e| problems.push(format!("Flow_Table: groups: {text:?}: {e}"))).ok()
    });
    TableSettings {
        name: row.string("name").filter(|name| !name.is_empty()).map(str::to_owned),
        max_flows: row.integer("flow_limit").and_then(|n| u32::try_from(n).ok()),
        groups: groups.collect(),
        evict: row.string("overflow_policy") == Some("evict"),
        prefixes: prefixes(row),
    }
}

/// Empty is the default; `none`, and fields that cannot be used so, are no field.
fn prefixes(row: &Row) -> Option<Vec<Field>> {
    let names: Vec<_> = row.strings("prefixes").collect();
    let field = |name: &&str| match *name {
        "nw_dst" | "ip_dst" => Some(Field::NwDst),
        "nw_src" | "ip_src" => Some(Field::NwSrc),
        "ipv6_dst" => Some(Field::Ipv6Dst),
        "ipv6_src" => Some(Field::Ipv6Src),
        _ => None,
    };
    (!names.is_empty()).then(|| names.iter().filter_map(field).collect())
}
