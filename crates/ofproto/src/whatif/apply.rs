//! Flow-mods, applied to a shadow, with the checks that the tables make.
//!
//! What concerns one rule is found by its match; a loose modify or delete walks over the tables in pieces, between which others
//! have their turn.

use std::sync::Arc;

use openflow::{Action, FlowMod, FlowModCommand, FlowModFlags, FlowStatsRequest, OfError, TableId};
use packet::Time;

use super::Problem;
use crate::bridge::check::{Known, check_instructions};
use crate::bridge::flows::{added_rule, modified_rule, modify_adds};
use crate::bridge::{Bridge, Filter};
use crate::model::config::N_TABLES;
use crate::model::forwarding::BridgeState;
use crate::model::shadow::Shadow;
use crate::model::tlv;
use crate::table::{Rule, RuleInstructions};

/// Most rules that are taken over for one piece.
const PIECE: usize = 1024;

/// Why a change cannot be applied.
pub(crate) enum Refusal {
    Error(OfError),
    DeleteLearned,
    NoBridge,
    Interrupted,
}

impl Refusal {
    pub fn at(self, at: usize) -> Problem {
        match self {
            Refusal::Error(error) => Problem::Refused { at, error },
            Refusal::DeleteLearned => Problem::DeleteLearned(at),
            Refusal::NoBridge => Problem::NoBridge,
            Refusal::Interrupted => Problem::Interrupted,
        }
    }
}

impl From<OfError> for Refusal {
    fn from(error: OfError) -> Refusal {
        Refusal::Error(error)
    }
}

impl Shadow {
    /// Applies a change.
    pub(crate) fn apply(
        &mut self,
        bridge: &Bridge,
        change: &FlowMod,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<(), Refusal> {
        if change.table == Some(TableId(N_TABLES)) {
            return Err(OfError::OFPBRC_EPERM.into());
        }
        let change = &with_state(bridge, |state| Ok(tlv::placed_flow_mod(change, &state.tlv)?.into_owned()))?;
        let table = change.table.filter(|table| *table != TableId::ALL);
        match change.command {
            FlowModCommand::Add => self.add(bridge, change),
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => {
                with_state(bridge, |state| {
                    let known = Known::leniently(state, change.lenient);
                    Ok(check_instructions(&change.instructions, &change.matching, table, &known)?)
                })?;
                let mut found = self.wanted(bridge, change, interrupted)?;
                found.retain(|rule| change.cookie.accepts(rule.cookie));
                if found.is_empty() {
                    return if modify_adds(change) { self.add(bridge, change) } else { Ok(()) };
                }
                let instructions = Arc::new(RuleInstructions::from(change.instructions.clone()));
                for rule in found {
                    let new = modified_rule(change, &rule, instructions.clone(), bridge.now());
                    self.remove(&rule)?;
                    self.table(rule.table).added.insert(Arc::new(new));
                }
                Ok(())
            }
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => {
                let filter = Filter { out_port: change.out_port, out_group: change.out_group };
                let found = self.wanted(bridge, change, interrupted)?.into_iter();
                let mut found = found.filter(|rule| change.cookie.accepts(rule.cookie) && filter.accepts(rule));
                found.try_for_each(|rule| self.remove(&rule))
            }
        }
    }

    fn add(&mut self, bridge: &Bridge, change: &FlowMod) -> Result<(), Refusal> {
        let table = change.table.unwrap_or(TableId(0));
        if table == TableId::ALL {
            return Err(OfError::OFPFMFC_BAD_TABLE_ID.into());
        }
        let now = bridge.now();
        let (old, rule) = with_state(bridge, |state| self.checked(state, table, change, now))?;
        if let Some(old) = old {
            self.remove(&old)?;
        }
        self.table(table).added.insert(Arc::new(rule));
        Ok(())
    }

    /// The rule that a change adds, and the one whose place it takes.
    fn checked(
        &mut self,
        state: &BridgeState,
        id: TableId,
        change: &FlowMod,
        now: Time,
    ) -> Result<(Option<Arc<Rule>>, Rule), Refusal> {
        check_instructions(&change.instructions, &change.matching, Some(id), &Known::leniently(state, change.lenient))?;
        let (table, shadow) = (&state.tables[usize::from(id.0)], self.table(id));
        let (key, mask) = (&change.matching.key, &change.matching.mask);
        let search = shadow.search(&table.rules);
        let pattern = table.rules.pattern(key, mask);
        let old = search.find(&pattern, change.priority).cloned();
        if old.is_none() {
            if change.flags.contains(FlowModFlags::CHECK_OVERLAP) && search.overlaps(key, mask, change.priority) {
                return Err(OfError::OFPFMFC_OVERLAP.into());
            }
            // Which flow a full table would evict is not foreseen. Some that would go may have expired meanwhile.
            let flows = (table.rules.len() + shadow.added.len()).saturating_sub(shadow.removed.len());
            if table.settings.max_flows.is_some_and(|most| flows >= most as usize) {
                return Err(OfError::OFPFMFC_TABLE_FULL.into());
            }
        }
        let instructions = Arc::new(RuleInstructions::from(change.instructions.clone()));
        Ok((old, added_rule(change, id, (pattern, instructions), now)))
    }

    /// The rules that a modify or a delete is about, cookie and filters apart: those of the tables that are still there, and
    /// those that have come.
    fn wanted(
        &self,
        bridge: &Bridge,
        change: &FlowMod,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<Arc<Rule>>, Refusal> {
        let (key, mask) = (&change.matching.key, &change.matching.mask);
        let is_strict = matches!(change.command, FlowModCommand::ModifyStrict | FlowModCommand::DeleteStrict);
        let wanted = change.table.filter(|table| *table != TableId::ALL);
        let mut found = Vec::new();
        if is_strict {
            with_state(bridge, |state| {
                let tables = state.tables.iter().enumerate();
                for (n, table) in tables.filter(|(n, _)| wanted.is_none_or(|table| usize::from(table.0) == *n)) {
                    let pattern = table.rules.pattern(key, mask);
                    found.extend(match self.tables.get(&(n as u8)) {
                        Some(shadow) => shadow.search(&table.rules).find(&pattern, change.priority).cloned(),
                        None => table.rules.find(&pattern, change.priority).cloned(),
                    });
                }
                Ok(())
            })?;
            return Ok(found);
        }
        let mut walk = bridge.walk_rules(FlowStatsRequest {
            matching: change.matching.clone(),
            table: wanted.unwrap_or(TableId::ALL),
            out_port: change.out_port,
            out_group: change.out_group,
            cookie: change.cookie,
        });
        while let Some((rules, _)) = walk.next_rules(PIECE) {
            if interrupted() {
                return Err(Refusal::Interrupted);
            }
            found.extend(rules.into_iter().filter(|rule| !self.has_removed(rule)));
        }
        let tables = self.tables.iter().filter(|(n, _)| wanted.is_none_or(|table| table.0 == **n));
        found.extend(tables.flat_map(|(_, shadow)| shadow.added.iter_within(key, mask).cloned()));
        Ok(found)
    }

    fn has_removed(&self, rule: &Rule) -> bool {
        self.tables.get(&rule.table.0).is_some_and(|shadow| shadow.has_removed(rule))
    }

    /// Removes a rule of the tables, or one that has come.
    fn remove(&mut self, rule: &Arc<Rule>) -> Result<(), Refusal> {
        if deletes_learned(&rule.instructions.apply) || deletes_learned(&rule.instructions.write) {
            return Err(Refusal::DeleteLearned);
        }
        let shadow = self.table(rule.table);
        let has_come = shadow.added.find(&rule.pattern, rule.priority).is_some_and(|found| Arc::ptr_eq(found, rule));
        match has_come {
            true => drop(shadow.added.remove(&rule.pattern, rule.priority)),
            false => shadow.removed.insert(rule.clone()),
        }
        Ok(())
    }
}

fn deletes_learned(actions: &[Action]) -> bool {
    actions.iter().any(|action| match action {
        Action::Learn(learn) => learn.delete_learned,
        Action::Clone(inner) => deletes_learned(inner),
        _ => false,
    })
}

fn with_state<T>(bridge: &Bridge, read: impl FnOnce(&BridgeState) -> Result<T, Refusal>) -> Result<T, Refusal> {
    let forwarding = bridge.switch.forwarding.read();
    read(forwarding.bridges.get(&bridge.id()).ok_or(Refusal::NoBridge)?)
}
