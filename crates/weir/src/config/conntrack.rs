//! Settings of connection tracking.

use std::collections::BTreeMap;

use conntrack::table::limits::DEFAULT_LIMIT;
use conntrack::timeout::{NAMES, Timeouts};
use serde::Serialize;

/// Connection tracking. The default is what a datapath begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conntrack {
    /// Most connections (`conntrack-limit`).
    pub limit: u32,
    /// Most connections of a zone without a limit of its own (`ct_zone_default_limit`); zero is for no limit.
    pub zone_limit: Option<u32>,
    /// Whether TCP segments outside of the windows are invalid.
    pub tcp_sequence_check: bool,
    /// Whether the limit makes room by ending unanswered connections (`conntrack-early-drop`).
    pub early_drop: bool,
    /// Zones with settings of their own.
    pub zones: BTreeMap<u16, CtZone>,
}

impl Default for Conntrack {
    fn default() -> Conntrack {
        Conntrack {
            limit: DEFAULT_LIMIT,
            zone_limit: None,
            tcp_sequence_check: true,
            early_drop: false,
            zones: BTreeMap::new(),
        }
    }
}

/// A zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CtZone {
    /// Most connections; zero is for no limit.
    pub limit: Option<u32>,
    /// Timeouts in seconds, by their names in CT_Timeout_Policy: those that differ from the default.
    pub timeouts: BTreeMap<String, u32>,
}

impl Conntrack {
    /// Whether there is a limit for a zone, or for those that have none of their own.
    pub fn limits_zones(&self) -> bool {
        self.zone_limit.is_some() || self.zones.values().any(|zone| zone.limit.is_some())
    }

    /// The timeouts of the zones that have some.
    pub fn policies(&self) -> BTreeMap<u16, Timeouts> {
        let with_some = self.zones.iter().filter(|(_, zone)| !zone.timeouts.is_empty());
        with_some.map(|(number, zone)| (*number, zone.policy())).collect()
    }
}

impl CtZone {
    fn policy(&self) -> Timeouts {
        let mut policy = Timeouts::default();
        self.timeouts.iter().for_each(|(name, seconds)| {
            policy.set_named(name, *seconds);
        });
        policy
    }
}

/// The names of timeouts that mean something to this datapath.
pub fn timeout_names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().filter(|(_, timeout, _)| timeout.is_some()).map(|(name, ..)| *name)
}
