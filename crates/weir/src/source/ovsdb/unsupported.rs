//! What the database asks for and Weir does not do: docs/deviations/configuration.md has the reasons.

use std::collections::BTreeSet;

use ovsdb::{Replica, Row};

use super::columns::TABLES;

/// What has no effect, in words.
pub fn notes(replica: &Replica) -> BTreeSet<String> {
    let mut notes = BTreeSet::new();
    for table in TABLES {
        for row in replica.rows(table.name) {
            let name = describe(table.name, row);
            let keys = row.string_pairs("other_config").map(|(key, _)| key);
            let others = keys.filter(|key| !table.keys.contains(key) && !is_of_ovn(key));
            notes.extend(others.map(|key| format!("{name}: other_config:{key} has no effect")));
        }
    }
    notes
}

/// Keys in which ovn-controller keeps what it has to know again (`ovn-chassis-idx-...`): they ask nothing of a switch.
fn is_of_ovn(key: &str) -> bool {
    key.starts_with("ovn-")
}

fn describe(table: &str, row: &Row) -> String {
    let name = row.string("name").or(row.string("target")).unwrap_or(".");
    format!("{} {name}", table.to_lowercase())
}
