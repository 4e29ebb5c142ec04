//! BFD and CFM: the columns of table Interface that configure them, and those that tell of them (ovs-vswitchd.conf.db(5)).

use std::collections::BTreeMap;

use ofproto::Bridge;
use openflow::OfPort;
use ovsdb::{Datum, Row};

use crate::config::desired::Cfm;

/// The options of BFD.
pub fn bfd(interface: &Row) -> BTreeMap<String, String> {
    interface.string_pairs("bfd").map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The maintenance point.
pub fn cfm(interface: &Row) -> Cfm {
    let options = interface.string_pairs("other_config").filter(|(key, _)| key.starts_with("cfm_"));
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    Cfm { mpid: interface.integer("cfm_mpid"), options }
}

/// The columns that tell of an interface: empty where it has neither.
pub fn columns(bridge: &Bridge, port: OfPort) -> Vec<(&'static str, Datum)> {
    let bfd = bridge.bfd_status(port).into_iter().flatten();
    let cfm = bridge.cfm_columns(port);
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let of_cfm = cfm.as_ref();
    // Identifiers of 64 bits are signed numbers in the database.
    let mpids = of_cfm.iter().flat_map(|cfm| cfm.remote_mpids.iter().map(|mpid| *mpid as i64));
    vec![
        ("bfd_status", Datum::map(bfd)),
        ("cfm_fault", Datum::set(of_cfm.map(|cfm| cfm.fault))),
        ("cfm_fault_status", Datum::set(of_cfm.iter().flat_map(|cfm| cfm.fault_status.clone()))),
        ("cfm_flap_count", Datum::set(of_cfm.map(|cfm| number(cfm.flap_count)))),
        ("cfm_health", Datum::set(of_cfm.and_then(|cfm| cfm.health).map(i64::from))),
        ("cfm_remote_mpids", Datum::set(mpids)),
        ("cfm_remote_opstate", Datum::set(of_cfm.and_then(|cfm| cfm.remote_opstate))),
    ]
}

/// These columns of an interface whose port is not there.
pub fn no_columns() -> Vec<(&'static str, Datum)> {
    let sets =
        ["cfm_fault", "cfm_fault_status", "cfm_flap_count", "cfm_health", "cfm_remote_mpids", "cfm_remote_opstate"];
    let nothing = ("bfd_status", Datum::map::<String, String>([]));
    sets.map(|column| (column, Datum::default())).into_iter().chain([nothing]).collect()
}
