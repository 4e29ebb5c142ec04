//! Which table and rule a translation ends at whose packets are dropped.

use datapath::{Action as DpAction, DropReason};

use super::{Ctx, XlateError, goes_nowhere};
use crate::model::forwarding::BridgeState;
use crate::model::hidden::shown_priority;
use crate::slowpath::drop_sites::{Dropped, DroppingRule};
use crate::table::Rule;

/// The last look-up of a table.
#[derive(Clone, Copy)]
pub(super) struct LastLookup<'a> {
    pub bridge: &'a BridgeState,
    pub table: u8,
    /// The rule that was found, and whether it is a hidden one.
    pub rule: Option<(&'a Rule, bool)>,
}

impl<'a> LastLookup<'a> {
    /// No table was looked up yet.
    pub fn none(bridge: &'a BridgeState) -> LastLookup<'a> {
        LastLookup { bridge, table: 0, rule: None }
    }

    fn dropped(self, reason: DropReason) -> Dropped {
        let rule = self.rule.map(|(rule, hidden)| DroppingRule {
            cookie: rule.cookie,
            priority: if hidden { shown_priority(rule) } else { rule.priority.into() },
            pattern: rule.pattern.clone(),
            tlv: self.bridge.tlv.clone(),
            stats: rule.stats.clone(),
        });
        Dropped { bridge: self.bridge.id, table: self.table, rule, reason }
    }
}

impl Ctx<'_, '_> {
    /// Where the packets of this translation are dropped, if they are. Not where a meter stands before the drop: then some are dropped
    /// by it.
    pub(super) fn dropped(&self) -> Option<Box<Dropped>> {
        if let Some(error) = self.error {
            let is_of_tables = !matches!(error, XlateError::NoBridge | XlateError::NoContext);
            return is_of_tables.then(|| Box::new(self.last_lookup.dropped(error.drop_reason())));
        }
        if self.out.iter().any(|action| matches!(action, DpAction::Meter(_))) {
            return None;
        }
        let (reason, at) = self.unsent.unwrap_or((DropReason::Rule, self.last_lookup));
        // A packet that only a controller gets is not dropped.
        goes_nowhere(&self.out, reason).then(|| Box::new(at.dropped(reason)))
    }
}
