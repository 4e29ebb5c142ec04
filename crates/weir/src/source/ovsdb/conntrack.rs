//! The tables Datapath, CT_Zone and CT_Timeout_Policy (ovs-vswitchd.conf.db(5)): limits and timeouts of tracked
//! connections.
//!
//! In Weir, bridges of all types share one datapath. So the rows of all types count; where two of them have the same zone, the
//! first in the order of the names of their types.

use std::collections::BTreeMap;

use ovsdb::{Atom, Replica, Row};

use crate::config::conntrack::{CtZone, timeout_names};

/// The types of datapaths.
pub const TYPES: [&str; 3] = ["dummy", "netdev", "system"];

/// What the rows say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Zones with settings of their own.
    pub zones: BTreeMap<u16, CtZone>,
    /// The limit of other zones.
    pub default_limit: Option<u32>,
    /// Types of datapaths that are none.
    pub unknown: Vec<String>,
}

/// The rows of the table Datapath that count, with their types.
pub fn datapaths<'a>(replica: &'a Replica, root: &'a Row) -> impl Iterator<Item = (&'a str, &'a Row)> {
    let mut pairs: Vec<_> = root
        .pairs("datapaths")
        .iter()
        .filter_map(|(name, uuid)| match (name, uuid) {
            (Atom::String(name), Atom::Uuid(uuid)) => Some((&**name, &**replica.row("Datapath", *uuid)?)),
            _ => None,
        })
        .collect();
    pairs.sort_by_key(|(name, _)| *name);
    pairs.into_iter()
}

/// Reads the rows.
pub fn read(replica: &Replica, root: &Row) -> Rows {
    let mut rows = Rows::default();
    for (name, datapath) in datapaths(replica, root) {
        if !TYPES.contains(&name) {
            rows.unknown.push(name.to_owned());
            continue;
        }
        rows.default_limit = rows.default_limit.or_else(|| limit(datapath, "ct_zone_default_limit"));
        for (key, value) in datapath.pairs("ct_zones") {
            let (&Atom::Integer(number), &Atom::Uuid(uuid)) = (key, value) else { continue };
            let (Ok(number), Some(row)) = (u16::try_from(number), replica.row("CT_Zone", uuid)) else { continue };
            let policy = row.reference("timeout_policy").and_then(|uuid| replica.row("CT_Timeout_Policy", uuid));
            let timeouts = policy.map(|row| timeouts(row)).unwrap_or_default();
            rows.zones.entry(number).or_insert(CtZone { limit: limit(row, "limit"), timeouts });
        }
    }
    rows
}

/// A limit of connections. The column is there from OVS 3.3 on.
fn limit(row: &Row, column: &str) -> Option<u32> {
    row.integer(column).and_then(|limit| u32::try_from(limit).ok())
}

/// The timeouts of a policy that mean something to a userspace datapath.
fn timeouts(policy: &Row) -> BTreeMap<String, u32> {
    let timeout = |(name, seconds): &(Atom, Atom)| match (name, seconds) {
        (Atom::String(name), Atom::Integer(seconds)) if timeout_names().any(|known| known == &**name) => {
            Some((name.to_string(), u32::try_from(*seconds).ok()?))
        }
        _ => None,
    };
    policy.pairs("timeouts").iter().filter_map(timeout).collect()
}
