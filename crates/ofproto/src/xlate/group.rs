//! Groups (OpenFlow 1.3.5 section 5.6): which of a group's buckets a packet gets, and what they do.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use datapath::Action as DpAction;
use foldhash::quality::FixedState;
use hashbrown::HashSet;
use openflow::action::{Action, HashFields};
use openflow::group::{Bucket, GroupType};
use openflow::{GroupId, OfPort};
use packet::Field;

use super::choose::{hash_fields, match_hashed, second_hash};
use super::steps::{PipelineStep, of_action_set};
use super::trace::Event;
use super::{Ctx, limits};
use crate::model::group::Group;
use crate::model::selector::{DpHash, Selector};

impl<'a> Ctx<'a, '_> {
    /// The group action.
    pub(super) fn group(&mut self, id: GroupId) {
        if !self.check_resources() {
            return;
        }
        let Some(group) = self.group_at(id) else {
            return self.event(|| Event::Error("output to nonexistent group"));
        };
        self.event(|| Event::Group(&group.spec, id));
        // Groups that go to groups can multiply, as tables do.
        self.usage.resubmits += 1;
        let outer = std::mem::replace(&mut self.in_group, true);
        match group.spec.kind {
            GroupType::All | GroupType::Indirect => {
                group.spec.buckets.iter().for_each(|bucket| self.bucket(bucket));
                self.record.groups.push(group.stats.clone());
                self.record.groups.extend(group.buckets.iter().cloned());
            }
            GroupType::Select | GroupType::FastFailover => match self.choose_bucket(group) {
                Some(n) => {
                    let bucket = &group.spec.buckets[n];
                    self.detail(|| format!("using bucket {}", bucket.id));
                    self.bucket(bucket);
                    self.record.groups.extend([group.stats.clone(), group.buckets[n].clone()]);
                }
                None => self.detail(|| "no live bucket".into()),
            },
        }
        self.in_group = outer;
    }

    /// The group with this number, on which the outcome depends, whether it is there or not.
    fn group_at(&mut self, id: GroupId) -> Option<&'a Arc<Group>> {
        self.record.depends_on_group(self.bridge, id);
        self.bridge.groups.get(&id)
    }

    /// Whether a step chooses by headers that may not be known yet.
    pub(super) fn selects(&mut self, step: &PipelineStep<'_>) -> bool {
        let PipelineStep::Act(Action::Group(id)) = step else { return false };
        self.group_at(*id).is_some_and(|group| group.spec.kind == GroupType::Select)
    }

    /// What the datapath has to hash before a step can choose.
    pub(super) fn wants_hash(&mut self, step: &PipelineStep<'_>) -> Option<DpAction> {
        let PipelineStep::Act(Action::Group(id)) = step else { return None };
        let Selector::DpHash(places) = &self.group_at(*id)?.selector else { return None };
        if self.flow.common().dp_hash.get() != 0 {
            return None;
        }
        // A packet has no hash when it comes in. Later it may have one, from another way to the same pipeline. All that have come by way of
        // a bond have the bond's.
        if self.flow.common().recirc_id.get() != 0 && !self.bond_hash {
            self.wc.set_exact(Field::DpHash);
        }
        Some(DpAction::Hash { algorithm: places.algorithm, basis: places.basis })
    }

    /// Executes a bucket on a copy of the packet.
    fn bucket(&mut self, bucket: &Bucket) {
        // An empty one has its copy, too.
        if !self.charge(limits::BUCKET + limits::size(&bucket.actions)) {
            return;
        }
        let (flow, was_mpls) = (Box::new(self.flow.clone()), self.was_mpls);
        let actions = of_action_set(&bucket.actions);
        self.usage.depth += 1;
        self.event(|| Event::Bucket(bucket.id));
        self.on_copy(|ctx| {
            ctx.steps(actions.iter().map(PipelineStep::Act));
            if ctx.freezing {
                // The action set is the packet's, not that of the copy which comes round.
                let set = std::mem::take(&mut ctx.action_set);
                ctx.finish_freezing();
                ctx.action_set = set;
            }
        });
        self.leave();
        self.usage.depth -= 1;
        (self.flow, self.was_mpls) = (*flow, was_mpls);
        // What ends a bucket does not end the actions after it, unless a limit was reached.
        self.exit = false;
        if self.error.is_some_and(|error| !error.is_limit()) {
            self.error = None;
        }
    }

    fn choose_bucket(&mut self, group: &'a Group) -> Option<usize> {
        let mut dead = HashSet::new();
        if group.spec.kind == GroupType::FastFailover {
            return group.spec.buckets.iter().position(|bucket| self.is_live_bucket(group, bucket, &mut dead));
        }
        if let Selector::DpHash(places) = &group.selector {
            return self.choose_by_dp_hash(group, places);
        }
        let hash = self.select_hash(group);
        let candidates = group.spec.buckets.iter().enumerate();
        let candidates = candidates.filter(|(_, bucket)| self.is_live_bucket(group, bucket, &mut dead));
        candidates.max_by(|(_, a), (_, b)| score(hash, a).total_cmp(&score(hash, b))).map(|(n, _)| n)
    }

    fn choose_by_dp_hash(&mut self, group: &Group, places: &DpHash) -> Option<usize> {
        let common = self.wc.0.common_mut();
        common.dp_hash = (common.dp_hash.get() | places.mask()).into();
        let (mut dead, mut dead_buckets) = (HashSet::new(), HashSet::new());
        for n in places.buckets(self.flow.common().dp_hash.get()) {
            if dead_buckets.contains(&n) {
                continue;
            }
            if self.is_live_bucket(group, &group.spec.buckets[n], &mut dead) {
                return Some(n);
            }
            dead_buckets.insert(n);
        }
        None
    }

    /// The hash that decides, over the fields that the group names or those of connections.
    fn select_hash(&mut self, group: &Group) -> u64 {
        let selection = &group.spec.selection;
        if !matches!(group.selector, Selector::Fields) {
            match_hashed(&self.flow, HashFields::SymmetricL4, &mut self.wc);
            return hash_fields(&self.flow, HashFields::SymmetricL4, 0);
        }
        let mut hasher = FixedState::with_seed(selection.param).build_hasher();
        for &(field, mask) in &selection.fields {
            let prereq = field.info().prereq;
            prereq.required_mask(&self.flow, &mut self.wc);
            if prereq.satisfied(&self.flow) {
                self.wc.add(field, mask);
                hasher.write_u128(self.flow.get(field) & mask);
            }
        }
        hasher.finish()
    }

    /// Whether packets may go to a bucket: what it watches, if anything, is live. A group is live if one of its buckets
    /// is; those that are known not to be are in `dead`.
    fn is_live_bucket(&mut self, group: &Group, bucket: &Bucket, dead: &mut HashSet<GroupId>) -> bool {
        match self.look_at(group, bucket) {
            Liveness::Live => true,
            Liveness::Dead => false,
            Liveness::OfGroup(id) => self.reaches_live_bucket(id, dead),
        }
    }

    /// Follows what groups watch. Each group is looked at once, in whatever way they watch each other.
    fn reaches_live_bucket(&mut self, from: GroupId, dead: &mut HashSet<GroupId>) -> bool {
        let (mut seen, mut waiting) = (HashSet::new(), vec![from]);
        while let Some(id) = waiting.pop() {
            if dead.contains(&id) || !seen.insert(id) {
                continue;
            }
            let group = self.group_at(id);
            for (group, bucket) in group.into_iter().flat_map(|g| g.spec.buckets.iter().map(move |b| (g, b))) {
                match self.look_at(group, bucket) {
                    Liveness::Live => return true,
                    Liveness::Dead => {}
                    Liveness::OfGroup(id) => waiting.push(id),
                }
                if self.error.is_some() {
                    return false;
                }
            }
        }
        // All that can be reached from these has been looked at.
        dead.extend(seen);
        false
    }

    fn look_at(&mut self, group: &Group, bucket: &Bucket) -> Liveness {
        self.charge(1);
        let watches = bucket.watch_port != OfPort::ANY || bucket.watch_group != GroupId::ANY;
        if group.spec.kind == GroupType::Select && bucket.weight == 0 {
            Liveness::Dead
        } else if !watches || bucket.watch_port != OfPort::ANY && self.is_live(bucket.watch_port) {
            Liveness::Live
        } else if bucket.watch_group != GroupId::ANY {
            Liveness::OfGroup(bucket.watch_group)
        } else {
            Liveness::Dead
        }
    }
}

/// Highest random weight: the live bucket with the highest score gets the packet. When a bucket is removed, only its own packets
/// get another one.
pub(crate) fn score(hash: u64, bucket: &Bucket) -> f64 {
    let uniform = (second_hash(hash, bucket.id.into()) >> 11) as f64 / (1u64 << 53) as f64;
    uniform.max(f64::MIN_POSITIVE).ln() / f64::from(bucket.weight)
}

/// Whether a bucket is live.
enum Liveness {
    Live,
    Dead,
    /// As the group that it watches.
    OfGroup(GroupId),
}
