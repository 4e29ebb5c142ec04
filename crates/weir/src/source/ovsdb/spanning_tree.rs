//! STP and RSTP: the options of tables Bridge and Port, and the columns that tell of them (ovs-vswitchd.conf.db(5)).

use std::collections::BTreeMap;

use ofproto::{Bridge, TreePortStatus, TreeStatus};
use openflow::OfPort;
use ovsdb::{Datum, Row};

/// The pairs of `other_config` that are about spanning trees.
pub fn options(row: &Row) -> BTreeMap<String, String> {
    let pairs = row.string_pairs("other_config");
    let pairs = pairs.filter(|(key, _)| key.starts_with("stp-") || key.starts_with("rstp-"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The columns of a bridge: empty where it has no spanning tree.
pub fn bridge_columns(bridge: Option<&Bridge>) -> [(&'static str, Datum); 2] {
    let (stp, rstp) = match bridge.and_then(Bridge::tree_status) {
        Some(TreeStatus::Stp(status)) => (Some(status.columns()), None),
        Some(TreeStatus::Rstp(status)) => (None, Some(status.columns())),
        None => (None, None),
    };
    [("status", Datum::map(stp.into_iter().flatten())), ("rstp_status", Datum::map(rstp.into_iter().flatten()))]
}

/// The columns of a port, whose only interface has this number: empty where it takes no part. Counters are given `with_counters`.
pub fn port_columns(bridge: Option<&Bridge>, port: Option<OfPort>, with_counters: bool) -> Vec<(&'static str, Datum)> {
    let status = bridge.zip(port).and_then(|(bridge, port)| bridge.tree_port_status(port));
    let (stp, rstp) = match status {
        Some(TreePortStatus::Stp(status)) => (Some(status), None),
        Some(TreePortStatus::Rstp(status)) => (None, Some(status)),
        None => (None, None),
    };
    let mut columns = vec![
        ("status", Datum::map(stp.iter().flat_map(|status| status.columns()))),
        ("rstp_status", Datum::map(rstp.iter().flat_map(|status| status.columns()))),
    ];
    if with_counters || status.is_none() {
        let number = |(name, n): (&'static str, u64)| (name, i64::try_from(n).unwrap_or(i64::MAX));
        columns.extend([
            ("statistics", Datum::map(stp.iter().flat_map(|status| status.statistics()).map(number))),
            ("rstp_statistics", Datum::map(rstp.iter().flat_map(|status| status.statistics()).map(number))),
        ]);
    }
    columns
}
