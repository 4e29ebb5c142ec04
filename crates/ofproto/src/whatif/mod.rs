//! What changes of flows would do to the traffic that there is, before they are made.
//!
//! The changes are applied to a [`Shadow`]: rules that would go are passed over in look-ups, and those that would come stand
//! beside the tables. No table is copied, so what a shadow takes depends on the changes alone. Flows of the datapath are
//! translated as the tables are and as they would be ([`WhatIf::compare`]), each with the tables locked for some milliseconds at
//! most; nothing is learnt, counted or sent for that, and no number of a pipeline or a packet-in is taken.
//!
//! | module | what it is |
//! |---|---|
//! | [`apply`] | Flow-mods, applied to a shadow |
//! | [`compare`] | A flow of the datapath, as the tables are and as they would be |
//! | [`regions`] | Parts of a flow's packets |
//! | [`replace`] | The flow-mods that make a bridge's flows those of a list |

mod apply;
mod compare;
mod regions;
mod replace;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use openflow::{FlowMod, OfError};
use packet::Key;
use packet::flow::text::PortNames;

pub use compare::{Difference, FlowVerdict, Treatment};
pub use replace::replacing;

use crate::bridge::{Bridge, Bundled};
use crate::explain::{Pass, Request, explain};
use crate::model::forwarding::{BridgeId, Forwarding};
pub use crate::model::shadow::RuleCounts;
use crate::model::shadow::Shadow;
use crate::switch::Switch;

/// Most flow-mods of one question.
pub const MOST_CHANGES: usize = 100_000;

/// Why it cannot be said what changes would do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bridge would refuse a change.
    #[error("change {}: {error}", at + 1)]
    Refused {
        /// Which one, from zero.
        at: usize,
        /// Why.
        error: OfError,
    },
    /// A flow goes that deletes others with it.
    #[error("change {}: it ends a flow with learn(delete_learned), and which flows go with that is not foreseen", .0 + 1)]
    DeleteLearned(usize),
    /// There are too many changes.
    #[error("{0} changes; at most {MOST_CHANGES} can be looked at together")]
    TooMany(usize),
    /// The bridge was removed.
    #[error("the bridge is not there any more")]
    NoBridge,
    /// Whoever asked does not want to know any more.
    #[error("interrupted")]
    Interrupted,
    /// Somebody has changed the tables.
    #[error("flows, groups, ports or settings have changed meanwhile: nothing was done")]
    Outdated,
}

/// The state of a bridge's tables and of what else decides: another one means that something has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablesVersion(u64);

impl TablesVersion {
    /// That of a bridge now.
    ///
    /// # Errors
    /// The bridge was removed.
    pub fn now(bridge: &Bridge) -> Result<TablesVersion, Problem> {
        TablesVersion::of(&bridge.switch.forwarding.read(), bridge.id()).ok_or(Problem::NoBridge)
    }

    fn of(forwarding: &Forwarding, bridge: BridgeId) -> Option<TablesVersion> {
        let state = forwarding.bridges.get(&bridge)?;
        let tables = state.tables.iter().map(|table| table.changed).max().unwrap_or(0);
        Some(TablesVersion(tables.max(state.group_changes.last()).max(forwarding.changed)))
    }
}

/// The question what some changes of flows would do.
pub struct WhatIf {
    switch: Arc<Switch>,
    bridge: Bridge,
    shadow: Shadow,
    /// That of the tables that the changes were applied to.
    version: TablesVersion,
}

impl WhatIf {
    /// Applies changes to a shadow of a bridge's tables, in their order. `version` is that of the tables before anything was
    /// read of them.
    ///
    /// # Errors
    /// A change would be refused, or what it would do is not foreseen.
    pub fn new(bridge: &Bridge, changes: &[FlowMod], version: TablesVersion) -> Result<WhatIf, Problem> {
        WhatIf::unless(&|| false, bridge, changes, version)
    }

    /// The same, unless it is interrupted: each loose modify or delete walks over the rules.
    ///
    /// # Errors
    /// As of [`new`](WhatIf::new), or it is interrupted.
    pub fn unless(
        interrupted: &dyn Fn() -> bool,
        bridge: &Bridge,
        changes: &[FlowMod],
        version: TablesVersion,
    ) -> Result<WhatIf, Problem> {
        if changes.len() > MOST_CHANGES {
            return Err(Problem::TooMany(changes.len()));
        }
        let switch = bridge.switch.clone();
        let mut shadow = Shadow::new(bridge.id());
        for (at, change) in changes.iter().enumerate() {
            shadow.apply(bridge, change, interrupted).map_err(|refusal| refusal.at(at))?;
        }
        shadow.finish();
        Ok(WhatIf { switch, bridge: bridge.clone(), shadow, version })
    }

    /// How many rules would go, come, and be replaced by others with the same match and priority.
    pub fn counts(&self) -> RuleCounts {
        self.shadow.counts()
    }

    /// Whether nothing else has changed since then.
    pub fn is_current(&self) -> bool {
        TablesVersion::now(&self.bridge) == Ok(self.version)
    }

    /// Explains what would become of a packet in the bridge, pass by pass, as [`explain`](crate::explain::explain) does for the
    /// tables as they are. Nothing, where the bridge was removed.
    pub fn explain(&self, key: &Key, ports: &dyn PortNames) -> Vec<Pass> {
        let (bridge, shadow) = (self.bridge.name(), Some(&self.shadow));
        let request = Request { bridge, key, ct_next: &[], ports, shadow };
        explain(&self.switch, &request).unwrap_or_default()
    }

    /// Makes the changes, all at once, if nothing else has changed since they were applied to the shadow.
    ///
    /// # Errors
    /// Something has changed, or a change is refused; then nothing is changed.
    pub fn commit(&self, changes: &[FlowMod]) -> Result<(), Problem> {
        let forwarding = self.switch.forwarding.write();
        if TablesVersion::of(&forwarding, self.bridge.id()) != Some(self.version) {
            return Err(Problem::Outdated);
        }
        let read = |change: &FlowMod| Ok(Bundled::Flow(Box::new(change.clone())));
        let outcome = self.bridge.commit_in(forwarding, changes, read);
        outcome.map_err(|(at, error)| Problem::Refused { at, error })
    }
}
