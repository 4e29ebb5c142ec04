//! Bonds and LACP: what columns of the tables Port and Interface say of them (ovs-vswitchd.conf.db(5)).

use std::collections::BTreeMap;
use std::time::Duration;

use ofproto::{BondMode, BondSettings};
use ovsdb::Row;

use crate::config::desired::{Interface, Lacp, LastActive, MII_INTERVAL, parse_mac};

/// The shortest interval of rebalancing, but for none at all. As in OVS.
const SHORTEST_REBALANCE: i64 = 1000;

/// How the interfaces of a port share traffic, and what is wrong with that: there the default counts.
pub fn settings(port: &Row, name: &str) -> (BondSettings, Vec<String>) {
    let default = BondSettings::default();
    let mut problems = Vec::new();
    let mode = port.string("bond_mode").map(|text| {
        let known = BondMode::NAMES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode);
        known.unwrap_or_else(|| {
            problems.push(format!("port {name}: unknown bond_mode {text}, defaulting to {}", default.mode.name()));
            default.mode
        })
    });
    let mode = mode.unwrap_or(default.mode);
    let other = |key| port.map_string("other_config", key);
    let is_true = |key| other(key) == Some("true");
    if let Some(detect) = other("bond-detect-mode").filter(|detect| !["carrier", "miimon"].contains(detect)) {
        problems.push(format!("port {name}: unsupported bond-detect-mode {detect}, defaulting to carrier"));
    }
    let mut number = |key: &'static str| {
        let text = other(key)?;
        let number = text.parse::<i64>().ok();
        if number.is_none() {
            problems.push(format!("port {name}: {key}: {text:?} is not a number; the default is used"));
        }
        number
    };
    let (basis, interval) = (number("bond-hash-basis"), number("bond-rebalance-interval"));
    let interval = interval.map(|millis| match millis {
        0 => Duration::ZERO,
        millis => Duration::from_millis(millis.max(SHORTEST_REBALANCE) as u64),
    });
    let millis = |column| port.integer(column).and_then(|n| u64::try_from(n).ok()).map(Duration::from_millis);
    let lacp_fallback_ab = is_true("lacp-fallback-ab");
    let has_primary = mode == BondMode::ActiveBackup || lacp_fallback_ab;
    let settings = BondSettings {
        mode,
        primary: other("bond-primary").filter(|_| has_primary).map(str::to_owned),
        updelay: millis("bond_updelay").unwrap_or_default(),
        downdelay: millis("bond_downdelay").unwrap_or_default(),
        hash_basis: basis.unwrap_or(0) as u32,
        rebalance_interval: interval.unwrap_or(default.rebalance_interval),
        all_members_active: is_true("all-members-active"),
        lb_output: mode == BondMode::BalanceTcp && is_true("lb-output-action"),
        lacp_fallback_ab,
    };
    (settings, problems)
}

/// How often drivers are asked for links, where the bond wants them to be. As in OVS, what is no such time is the default.
pub fn mii_interval(port: &Row) -> Option<Duration> {
    let other = |key| port.map_string("other_config", key);
    let interval = other("bond-miimon-interval").and_then(|text| text.parse::<u64>().ok()).filter(|&millis| millis > 0);
    (other("bond-detect-mode") == Some("miimon")).then(|| interval.map_or(MII_INTERVAL, Duration::from_millis))
}

/// The device of the bond's name that `bond_fake_iface` asks for, where the port is a bond of these members. A member of that name takes
/// precedence.
pub fn fake_interface(port: &Row, members: &BTreeMap<String, Interface>, dummies: bool) -> Option<Interface> {
    let kind = if dummies { "dummy-internal" } else { "internal" };
    let is_wanted = members.len() > 1 && port.boolean("bond_fake_iface") == Some(true);
    is_wanted.then(|| Interface { kind: kind.to_owned(), fake: true, ingress_offload: true, ..Interface::default() })
}

/// The member that was active when the daemon ended (`bond_active_slave`).
pub fn last_active(port: &Row) -> LastActive {
    LastActive(port.string("bond_active_slave").and_then(parse_mac))
}

/// How LACP is spoken by the interfaces of a port.
pub fn lacp(port: &Row) -> Lacp {
    Lacp { mode: port.string("lacp").map(str::to_owned), options: lacp_options(port) }
}

/// The pairs of `other_config` that begin with `lacp-`.
pub fn lacp_options(row: &Row) -> BTreeMap<String, String> {
    let pairs = row.string_pairs("other_config").filter(|(key, _)| key.starts_with("lacp-"));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}
