//! Who uses a bridge's groups, meters and tun_metadata fields: an index beside the flow tables and the group table.
//!
//! When a group is removed, so are the flows that use it, and its statistics count them. Without an index, each of many
//! groups would need a search of all tables. With it, a flow costs as much as its own lists of actions name. A tun_metadata field keeps
//! its place among the options as long as a flow matches, reads or writes it; that of a bucket is looked up when packets come.
//!
//! The index changes with the tables, under the same lock. [`Transaction`](crate::model::transaction::Transaction) is
//! the only code that adds and removes flows and groups. Where all are removed at once, the index is cleared.

use std::sync::Arc;

use hashbrown::HashMap;
use openflow::{Action, GroupId};

use crate::model::group::Group;
use crate::table::Rule;

/// Flows by their addresses in memory. The index holds each flow, so no other one can get its address.
type Rules = HashMap<usize, Arc<Rule>>;

/// What a flow or a group can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Used {
    Group(GroupId),
    Meter(u32),
    /// A meter of packets that go to controllers. It need not be there: then, nothing limits them.
    PacketInMeter(u32),
    /// tun_metadataN.
    TunMetadata(u8),
}

/// The index.
#[derive(Default)]
pub(crate) struct Users {
    rules: HashMap<Used, Rules>,
    /// How many groups have buckets that use a group.
    groups: HashMap<Used, u32>,
}

impl Users {
    /// Adds a flow.
    pub fn add_rule(&mut self, rule: &Arc<Rule>) {
        for used in used_by(rule) {
            self.rules.entry(used).or_default().insert(address(rule), rule.clone());
        }
    }

    /// Removes a flow.
    pub fn remove_rule(&mut self, rule: &Arc<Rule>) {
        for used in used_by(rule) {
            if let Some(rules) = self.rules.get_mut(&used) {
                rules.remove(&address(rule));
                if rules.is_empty() {
                    self.rules.remove(&used);
                }
            }
        }
    }

    /// Adds a group.
    pub fn add_group(&mut self, group: &Group) {
        for used in used_by_group(group) {
            *self.groups.entry(used).or_insert(0) += 1;
        }
    }

    /// Removes a group.
    pub fn remove_group(&mut self, group: &Group) {
        for used in used_by_group(group) {
            if let Some(count) = self.groups.get_mut(&used) {
                *count -= 1;
                if *count == 0 {
                    self.groups.remove(&used);
                }
            }
        }
    }

    /// The flows that use this.
    pub fn rules(&self, used: Used) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.get(&used).into_iter().flat_map(Rules::values)
    }

    /// How many flows use this.
    pub fn rule_count(&self, used: Used) -> u32 {
        self.rules.get(&used).map_or(0, |rules| rules.len() as u32)
    }

    /// How many flows and groups use this.
    pub fn count(&self, used: Used) -> u32 {
        self.rule_count(used) + self.groups.get(&used).copied().unwrap_or(0)
    }

    /// Removes all.
    pub fn clear(&mut self) {
        *self = Users::default();
    }
}

fn address(rule: &Arc<Rule>) -> usize {
    Arc::as_ptr(rule) as usize
}

fn used_by(rule: &Rule) -> Vec<Used> {
    let instructions = &rule.instructions;
    let mut used: Vec<Used> = instructions.meter.map(Used::Meter).into_iter().collect();
    collect(&instructions.apply, &mut used);
    collect(&instructions.write, &mut used);
    let mut fields = rule.tun_fields();
    while fields != 0 {
        used.push(Used::TunMetadata(fields.trailing_zeros() as u8));
        fields &= fields - 1;
    }
    distinct(used)
}

fn used_by_group(group: &Group) -> Vec<Used> {
    let mut used = Vec::new();
    group.spec.buckets.iter().for_each(|bucket| collect(&bucket.actions, &mut used));
    distinct(used)
}

fn distinct(mut used: Vec<Used>) -> Vec<Used> {
    used.sort_unstable();
    used.dedup();
    used
}

fn collect(actions: &[Action], used: &mut Vec<Used>) {
    for action in actions {
        match action {
            Action::Group(id) => used.push(Used::Group(*id)),
            Action::Meter(id) => used.push(Used::Meter(*id)),
            Action::Controller(controller) => used.extend(controller.meter.map(Used::PacketInMeter)),
            Action::Clone(inner) => collect(inner, used),
            _ => {}
        }
    }
}
