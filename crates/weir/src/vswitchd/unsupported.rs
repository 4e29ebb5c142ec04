//! What the database asks for and Weir does not do: docs/deviations/configuration.md has the reasons.

use std::collections::BTreeSet;

use ovsdb::{Replica, Row};

/// Columns without effect, by table. Columns that only other programs read are left out.
const COLUMNS: &[(&str, &[&str])] = &[
    ("Open_vSwitch", &["datapaths", "ssl"]),
    (
        "Bridge",
        &[
            "auto_attach",
            "flood_vlans",
            "ipfix",
            "mcast_snooping_enable",
            "netflow",
            "rstp_enable",
            "sflow",
            "stp_enable",
        ],
    ),
    ("Port", &["bond_mode", "lacp", "protected", "qos"]),
    (
        "Interface",
        &["bfd", "cfm_mpid", "ingress_policing_burst", "ingress_policing_kpkts_rate", "ingress_policing_rate", "lldp"],
    ),
    ("Controller", &["controller_rate_limit", "controller_burst_limit", "controller_queue_size"]),
];

/// Keys of `other_config` without effect, by table.
const KEYS: &[(&str, &[&str])] = &[
    (
        "Open_vSwitch",
        &[
            "bundle-idle-timeout",
            "enable-statistics",
            "hw-offload",
            "min-revalidate-pps",
            "n-handler-threads",
            "n-offload-threads",
            "n-revalidator-threads",
            "offload-rebalance",
            "pmd-perf-metrics",
            "smc-enable",
            "tc-policy",
            "userspace-tso-enable",
        ],
    ),
    ("Bridge", &["controller-queue-size", "disable-in-band", "dp-desc", "dp-sn", "forward-bpdu", "in-band-queue"]),
    ("Interface", &["emc-enable", "tx-steering"]),
];

/// What has no effect, in words.
pub fn notes(replica: &Replica) -> BTreeSet<String> {
    let mut notes = BTreeSet::new();
    for (table, columns) in COLUMNS {
        for row in replica.rows(table) {
            let set = columns.iter().filter(|column| is_set(row, column));
            notes.extend(set.map(|column| format!("{}: {column} has no effect", describe(table, row))));
        }
    }
    for (table, keys) in KEYS {
        for row in replica.rows(table) {
            let set = keys.iter().filter(|key| row.map_string("other_config", key).is_some());
            notes.extend(set.map(|key| format!("{}: other_config:{key} has no effect", describe(table, row))));
        }
    }
    notes
}

/// Whether a column has a value other than the one that it has by default.
fn is_set(row: &Row, column: &str) -> bool {
    let Some(value) = row.get(column) else { return false };
    match (row.boolean(column), row.integer(column)) {
        (Some(on), _) => on,
        (_, Some(number)) => number != 0,
        _ => !value.is_empty() && row.string(column) != Some(""),
    }
}

fn describe(table: &str, row: &Row) -> String {
    let name = row.string("name").or(row.string("target")).unwrap_or(".");
    format!("{} {name}", table.to_lowercase())
}
