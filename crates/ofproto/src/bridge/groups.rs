//! Changes of groups, and what they hold.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use openflow::codec;
use openflow::group::{Bucket, GroupCommand, GroupSpec, GroupStats, bucket_id};
use openflow::stats::GroupFeatures;
use openflow::{FlowRemovedReason, GroupDesc, GroupId, GroupMod, OfError};

use super::Bridge;
use super::check::{Known, check_bucket};
use crate::model::forwarding::BridgeState;
use crate::model::group::Group;
use crate::model::transaction::Transaction;
use crate::model::users::Used;

/// OFPGFC_*: weights, liveness and chaining.
const CAPABILITIES: u32 = 0b111;

/// What it costs to keep a bucket while others of its group come and go, in rules that are looked at.
const BUCKET: usize = 8;

impl Bridge {
    /// Changes the groups. Packets may see the old ones until a [`barrier`](Bridge::barrier).
    pub fn group_mod(&self, change: &GroupMod) -> Result<(), OfError> {
        self.transact(|transaction| apply(transaction, change))
    }

    /// Descriptions of a group, or of all for ALL, by number.
    pub fn group_descs(&self, wanted: GroupId) -> Vec<GroupDesc> {
        self.describe_groups(&self.group_ids(wanted, GroupId(0), usize::MAX))
    }

    /// Counters of a group, or of all for ALL, by number, as up to date as [`macs`](Bridge::macs).
    pub fn group_stats(&self, wanted: GroupId) -> Vec<GroupStats> {
        self.credit_groups();
        self.count_groups(&self.group_ids(wanted, GroupId(0), usize::MAX))
    }

    /// Has the counters of the groups as up to date as [`macs`](Bridge::macs).
    pub(crate) fn credit_groups(&self) {
        self.switch.refresh_statistics();
    }

    /// Numbers of the groups that `wanted` means, in their order: from a number on, and so many at most.
    pub(crate) fn group_ids(&self, wanted: GroupId, from: GroupId, most: usize) -> Vec<GroupId> {
        let ids = |bridge: &BridgeState| match wanted {
            GroupId::ALL => bridge.groups.range(from..).map(|(&id, _)| id).take(most).collect(),
            id => bridge.groups.get(&id).map(|group| group.id).into_iter().collect(),
        };
        self.read(ids).unwrap_or_default()
    }

    /// Descriptions of those of the groups that there are.
    pub(crate) fn describe_groups(&self, ids: &[GroupId]) -> Vec<GroupDesc> {
        self.each_group(ids, |_, group| GroupDesc { group: group.id, spec: group.spec.clone() })
    }

    /// Counters of those of the groups that there are, as they stand.
    pub(crate) fn count_groups(&self, ids: &[GroupId]) -> Vec<GroupStats> {
        let now = self.switch.clock.now();
        self.each_group(ids, |bridge, group| {
            let (packet_count, byte_count) = group.stats.get();
            GroupStats {
                group: group.id,
                ref_count: bridge.users.count(Used::Group(group.id)),
                packet_count,
                byte_count,
                duration: Some(now.since(group.created)),
                buckets: group.buckets.iter().map(|counters| counters.get()).collect(),
            }
        })
    }

    /// What groups can do; `actions` are those that a version has.
    pub fn group_features(&self, actions: u32) -> GroupFeatures {
        GroupFeatures {
            types: 0b1111,
            capabilities: CAPABILITIES,
            max_groups: [GroupId::MAX.0; 4],
            actions: [actions; 4],
        }
    }

    fn each_group<T>(&self, ids: &[GroupId], shown: impl Fn(&BridgeState, &Group) -> T) -> Vec<T> {
        let forwarding = self.switch.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Vec::new() };
        ids.iter().filter_map(|id| bridge.groups.get(id)).map(|group| shown(bridge, group)).collect()
    }
}

/// Applies a group-mod.
pub(super) fn apply(transaction: &mut Transaction, change: &GroupMod) -> Result<(), OfError> {
    use GroupCommand::*;
    let exists = transaction.bridge.groups.contains_key(&change.group);
    if change.group > GroupId::MAX && !(change.command == Delete && change.group == GroupId::ALL) {
        return Err(OfError::OFPGMFC_INVALID_GROUP);
    }
    let known = Known::of(transaction.bridge);
    change.spec.buckets.iter().try_for_each(|bucket| check_bucket(&bucket.actions, &known))?;
    match change.command {
        Add if exists => Err(OfError::OFPGMFC_GROUP_EXISTS),
        Modify | InsertBucket | RemoveBucket if !exists => Err(OfError::OFPGMFC_UNKNOWN_GROUP),
        Add | Modify | AddOrModify => {
            put(transaction, change.group, change.spec.clone());
            Ok(())
        }
        InsertBucket => insert_buckets(transaction, change),
        RemoveBucket => remove_buckets(transaction, change),
        Delete => {
            delete(transaction, change.group);
            Ok(())
        }
    }
}

/// Adds a group, or replaces the one with its number, whose age it gets.
fn put(transaction: &mut Transaction, id: GroupId, spec: GroupSpec) {
    let old = transaction.bridge.groups.get(&id);
    let created = old.map_or(transaction.now, |group| group.created);
    transaction.set_group(id, Some(Arc::new(Group::new(id, spec, created))));
}

/// How far a group can grow bucket by bucket, in bytes of its description: sixteen times as far as one message can describe. OVN's load
/// balancers have groups with thousands of buckets.
const MOST_GROUP: usize = 1 << 20;

/// Replaces the buckets of a group. Those that stay keep their counters.
fn replace_buckets(transaction: &mut Transaction, old: &Group, spec: GroupSpec) {
    transaction.effort += BUCKET * spec.buckets.len();
    let mut new = Group::new(old.id, spec, old.created);
    new.stats = old.stats.clone();
    let kept: HashMap<u32, _> = old.spec.buckets.iter().map(|bucket| bucket.id).zip(&old.buckets).collect();
    for (bucket, counters) in new.spec.buckets.iter().zip(&mut new.buckets) {
        if let Some(&known) = kept.get(&bucket.id) {
            *counters = known.clone();
        }
    }
    transaction.set_group(old.id, Some(Arc::new(new)));
}

fn insert_buckets(transaction: &mut Transaction, change: &GroupMod) -> Result<(), OfError> {
    let Some(old) = transaction.bridge.groups.get(&change.group).cloned() else { return Ok(()) };
    let mut buckets = old.spec.buckets.clone();
    let added: HashSet<u32> = change.spec.buckets.iter().map(|bucket| bucket.id).collect();
    if buckets.iter().any(|bucket| added.contains(&bucket.id)) {
        return Err(OfError::OFPGMFC_BUCKET_EXISTS);
    }
    let at = match change.command_bucket {
        bucket_id::FIRST => 0,
        bucket_id::LAST => buckets.len(),
        after => position(&buckets, after)? + 1,
    };
    buckets.splice(at..at, change.spec.buckets.iter().cloned());
    let spec = with_buckets(&old.spec, buckets);
    // Each change costs as much as there is in it.
    if codec::group_len(&spec) > MOST_GROUP {
        return Err(OfError::OFPGMFC_OUT_OF_BUCKETS);
    }
    replace_buckets(transaction, &old, spec);
    Ok(())
}

/// The same group with other buckets.
fn with_buckets(spec: &GroupSpec, buckets: Vec<Bucket>) -> GroupSpec {
    GroupSpec { kind: spec.kind, buckets, selection: spec.selection.clone() }
}

fn remove_buckets(transaction: &mut Transaction, change: &GroupMod) -> Result<(), OfError> {
    let Some(old) = transaction.bridge.groups.get(&change.group).cloned() else { return Ok(()) };
    let mut buckets = old.spec.buckets.clone();
    match change.command_bucket {
        bucket_id::ALL => buckets.clear(),
        bucket_id::FIRST => drop(buckets.drain(..buckets.len().min(1))),
        bucket_id::LAST => drop(buckets.pop()),
        which => drop(buckets.remove(position(&buckets, which)?)),
    }
    replace_buckets(transaction, &old, with_buckets(&old.spec, buckets));
    Ok(())
}

fn position(buckets: &[Bucket], id: u32) -> Result<usize, OfError> {
    buckets.iter().position(|bucket| bucket.id == id).ok_or(OfError::OFPGMFC_UNKNOWN_BUCKET)
}

/// The groups that a delete means: one, or all.
pub(super) fn wanted(bridge: &BridgeState, wanted: GroupId) -> impl Iterator<Item = GroupId> {
    let range = if wanted == GroupId::ALL { GroupId(0)..=GroupId::MAX } else { wanted..=wanted };
    bridge.groups.range(range).map(|(&id, _)| id)
}

/// Removes a group, or all, and the flows that use it (OpenFlow 1.3.5 section 6.5).
pub(super) fn delete(transaction: &mut Transaction, group: GroupId) {
    let gone: Vec<GroupId> = wanted(transaction.bridge, group).collect();
    for id in gone {
        let users: Vec<_> = transaction.bridge.users.rules(Used::Group(id)).cloned().collect();
        users.iter().for_each(|rule| transaction.remove(rule, FlowRemovedReason::GroupDelete));
        transaction.set_group(id, None);
    }
}
