//! How a table is configured: by the operator, and by controllers.

use openflow::Subfield;
use openflow::table::{TableMiss, Vacancy};
use packet::Field;

use super::Table;

/// Most flows of a table that has no limit of its own, as table statistics tell it.
const UNLIMITED: u32 = 1_000_000;

/// The same, for flows that are learnt.
const MOST_LEARNT: usize = if cfg!(test) { 20_000 } else { UNLIMITED as usize };

/// What the operator says of a table (the database's table Flow_Table).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TableSettings {
    /// Name; wins over a name that a controller gives.
    pub name: Option<String>,
    /// Most flows; `None` for no limit.
    pub max_flows: Option<u32>,
    /// In a full table a flow is evicted for a new one (`overflow_policy`). Otherwise the new one is refused.
    pub evict: bool,
    /// With `evict`: flows that agree in these subfields form a group, and the largest group loses one. Empty
    /// takes all flows as one group.
    pub groups: Vec<Subfield>,
    /// Fields whose prefixes are told apart by few bits (`prefixes`); `None` for nw_dst and nw_src, the only ones
    /// that can be.
    pub prefixes: Option<Vec<Field>>,
}

/// What controllers say of a table.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TableState {
    /// Name.
    pub name: Option<String>,
    /// What becomes of packets that miss.
    pub miss: TableMiss,
    /// In a full table a flow is evicted for a new one, by importance and then by lifetime.
    pub evict: bool,
    /// When to send an event that the table is full or no longer is.
    pub vacancy: Option<Vacancy>,
}

impl Table {
    /// Name; empty for none.
    pub fn name(&self) -> &str {
        self.settings.name.as_deref().or(self.state.name.as_deref()).unwrap_or_default()
    }

    /// Most flows, as controllers are told.
    pub fn max_entries(&self) -> u32 {
        self.settings.max_flows.unwrap_or(UNLIMITED)
    }

    /// Whether flows may be learnt that are not there. Packets teach them, so whoever sends these decides how many there are: a table
    /// that the operator has not limited takes no more than it says it takes. Controllers may add more.
    pub fn takes_learnt(&self) -> bool {
        self.settings.max_flows.is_some() || self.rules.len() < MOST_LEARNT
    }

    /// Percent of the table that is free.
    pub fn free_percent(&self) -> u8 {
        let max = u64::from(self.max_entries()).max(1);
        let free = max.saturating_sub(self.rules.len() as u64);
        (free * 100 / max) as u8
    }
}
