//! Bonds: the keys of `[[bridge.port]]` that say how several interfaces share its traffic, and how LACP is spoken.

use std::collections::BTreeMap;
use std::time::Duration;

use ofproto::{BondMode, BondSettings};

use super::reader::Section;
use crate::config::desired::{Lacp, MII_INTERVAL, format_mac};

/// How the interfaces share traffic. The keys have an effect where there are several.
pub fn read(s: &mut Section) -> BondSettings {
    let default = BondSettings::default();
    let mode = s.choice("bond-mode", &BondMode::NAMES).unwrap_or_default();
    BondSettings {
        mode,
        primary: s.text("bond-primary"),
        updelay: s.millis("bond-updelay-ms", 0..=3_600_000).unwrap_or(default.updelay),
        downdelay: s.millis("bond-downdelay-ms", 0..=3_600_000).unwrap_or(default.downdelay),
        hash_basis: s.integer("bond-hash-basis", 0..=u32::MAX.into(), "a number").map_or(0, |basis| basis as u32),
        rebalance_interval: s.millis("bond-rebalance-interval-ms", 0..=3_600_000).unwrap_or(default.rebalance_interval),
        all_members_active: s.bool("all-members-active").unwrap_or(false),
        lb_output: true,
        lacp_fallback_ab: s.bool("lacp-fallback-ab").unwrap_or(false),
    }
}

/// How often drivers are asked for links, where they are.
pub fn read_mii_interval(s: &mut Section) -> Option<Duration> {
    let is_asked = s.choice("bond-detect-mode", &[("carrier", false), ("miimon", true)]).unwrap_or(false);
    let interval = s.millis("bond-miimon-interval-ms", 1..=3_600_000).unwrap_or(MII_INTERVAL);
    is_asked.then_some(interval)
}

/// How LACP is spoken.
pub fn read_lacp(s: &mut Section) -> Lacp {
    let mut options = BTreeMap::new();
    let mut set = |key: &str, value: Option<String>| drop(value.map(|value| options.insert(key.to_owned(), value)));
    let mode = s.choice("lacp", &[("off", None), ("active", Some("active")), ("passive", Some("passive"))]);
    set("lacp-time", s.choice("lacp-time", &[("slow", "slow"), ("fast", "fast")]).map(str::to_owned));
    set("lacp-system-id", s.mac("lacp-system-id").map(|mac| format_mac(&mac)));
    let priority = s.integer("lacp-system-priority", 1..=65535, "a priority");
    set("lacp-system-priority", priority.map(|priority| priority.to_string()));
    Lacp { mode: mode.flatten().map(str::to_owned), options }
}

/// What an interface says of itself by LACP.
pub fn read_member_lacp(s: &mut Section) -> BTreeMap<String, String> {
    let mut options = BTreeMap::new();
    for (key, what) in
        [("lacp-port-id", "a port id"), ("lacp-port-priority", "a priority"), ("lacp-aggregation-key", "a key")]
    {
        let least = i64::from(key != "lacp-aggregation-key");
        if let Some(number) = s.integer(key, least..=65535, what) {
            options.insert(key.to_owned(), number.to_string());
        }
    }
    options
}
