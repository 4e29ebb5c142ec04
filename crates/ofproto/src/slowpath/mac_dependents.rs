//! Which datapath flows depend on which address of which MAC table, and on which multicast group.
//!
//! A flow depends on the addresses that its translation looked up, whether they were known or not, and on those that it
//! learnt from; one of multicast, on the members of its group, and on the ports that lead to routers. Its record
//! ([`MacDependencies`]) says so, and is entered in the index ([`MacDependents`]) under the
//! number of its flow. So a change of an address marks it, its flows are found when marks are collected, and no others are looked at.
//! However often an address changes until then, and however many flows depend on it, to mark it costs the same.
//!
//! No change is missed, and none is seen too late:
//!
//! - A record keeps what the tables answered. Whether it is up to date is a comparison with what they answer now.
//! - It is entered before it is compared the first time ([`Switch::adopt`](crate::Switch)). A table changes before its
//!   flows are marked. So either the comparison sees the change, or the change finds the record in the index.
//!
//! A record leaves the index when it is dropped: with its flow, or when the flow gets another record. So the index holds
//! no more than the records of the flows that exist, whoever removes them.
//!
//! The locks in here are leaves: nothing is called with one of them held.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use datapath::FlowId;
use hashbrown::{HashMap, HashSet, HashTable, hash_table};
use openflow::OfPort;
use packet::Time;
use parking_lot::Mutex;
use protocols::mcast::{Changes, Destination, Group};

use crate::model::forwarding::{BridgeId, Forwarding};
use crate::model::mac::{MacChange, MacChanges, MacKey, MacUse, REFRESH};

/// Parts of the index, each with a lock of its own, so that handlers seldom wait for each other.
const SHARDS: usize = 64;

/// As many addresses and flows are marked one by one, even if fewer flows are in the index.
const MARKS: usize = 4096;

/// What a flow looked up, or learnt from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MacDependency {
    pub bridge: BridgeId,
    pub key: MacKey,
    pub answer: MacAnswer,
}

/// What the MAC table had to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MacAnswer {
    /// Where the destination is.
    Destination(Option<OfPort>),
    /// The source has nothing new to tell: packets from it come in here.
    Source(OfPort),
}

impl MacDependency {
    /// Whether the table has something else to say now.
    fn is_stale(&self, forwarding: &Forwarding) -> bool {
        let Some(bridge) = forwarding.bridges.get(&self.bridge) else { return true };
        let table = bridge.macs.read();
        match self.answer {
            MacAnswer::Destination(port) => table.lookup(self.key) != port,
            MacAnswer::Source(port) => table.would_change(self.key, port),
        }
    }

    fn subject(&self) -> Subject {
        let source = matches!(self.answer, MacAnswer::Source(_));
        Subject { bridge: self.bridge, what: What::Mac { key: self.key, source } }
    }
}

/// A multicast group that a flow looked up, and where it went.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupDependency {
    bridge: BridgeId,
    group: Group,
    answer: Destination,
}

impl GroupDependency {
    fn is_stale(&self, forwarding: &Forwarding) -> bool {
        let Some(bridge) = forwarding.bridges.get(&self.bridge) else { return true };
        bridge.multicast.destination(self.group.vlan, self.group.address) != self.answer
    }

    fn subjects(&self) -> [Subject; 2] {
        [What::Group(self.group), What::Routers(self.group.vlan)].map(|what| Subject { bridge: self.bridge, what })
    }
}

/// All addresses and multicast groups that a flow depends on.
#[derive(Default)]
pub(crate) struct MacDependencies {
    all: Vec<MacDependency>,
    groups: Vec<GroupDependency>,
    registration: Mutex<Registration>,
    /// When the tables were last told of packets from the sources, in nanoseconds.
    noted: AtomicU64,
}

/// Under which flows a record is in the index. It is seldom more than one.
#[derive(Default)]
struct Registration {
    index: Option<Arc<MacDependents>>,
    first: Option<FlowId>,
    others: Vec<FlowId>,
}

impl Registration {
    fn flows(&self) -> impl Iterator<Item = FlowId> + '_ {
        self.first.into_iter().chain(self.others.iter().copied())
    }
}

impl MacDependencies {
    /// Notes that a destination was looked up.
    pub fn add_destination(&mut self, bridge: BridgeId, key: MacKey, found: Option<OfPort>) {
        self.add(MacDependency { bridge, key, answer: MacAnswer::Destination(found) });
    }

    /// Notes that packets are learnt from.
    pub fn add_source(&mut self, bridge: BridgeId, key: MacKey, port: OfPort) {
        self.add(MacDependency { bridge, key, answer: MacAnswer::Source(port) });
    }

    /// A dependency that is there twice does no harm, so only the last ones are compared.
    fn add(&mut self, dependency: MacDependency) {
        if !self.all.iter().rev().take(4).any(|known| *known == dependency) {
            self.all.push(dependency);
        }
    }

    /// Notes that a multicast group was looked up.
    pub fn add_group(&mut self, bridge: BridgeId, group: Group, answer: &Destination) {
        let dependency = GroupDependency { bridge, group, answer: answer.clone() };
        if !self.groups.iter().rev().take(4).any(|known| *known == dependency) {
            self.groups.push(dependency);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.groups.is_empty()
    }

    /// How many entries there are in the index.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.subjects().count()
    }

    fn subjects(&self) -> impl Iterator<Item = Subject> + '_ {
        let groups = self.groups.iter().flat_map(GroupDependency::subjects);
        self.all.iter().map(MacDependency::subject).chain(groups)
    }

    /// Whether both are about the same addresses.
    pub fn is_equivalent(&self, other: &MacDependencies) -> bool {
        self.all == other.all && self.groups == other.groups
    }

    /// Takes no more memory than needed.
    pub fn shrink_to_fit(&mut self) {
        self.all.shrink_to_fit();
        self.groups.shrink_to_fit();
    }

    /// Whether a table has something else to say now than it had to the translation.
    pub fn is_stale(&self, forwarding: &Forwarding) -> bool {
        self.all.iter().any(|dependency| dependency.is_stale(forwarding))
            || self.groups.iter().any(|dependency| dependency.is_stale(forwarding))
    }

    /// Enters the record in the index, as that of this flow.
    pub fn register(&self, index: &Arc<MacDependents>, flow: FlowId) {
        if self.is_empty() {
            return;
        }
        let mut registration = self.registration.lock();
        if registration.flows().any(|known| known == flow) {
            return;
        }
        match registration.first {
            None => registration.first = Some(flow),
            Some(_) => registration.others.push(flow),
        }
        registration.index.get_or_insert_with(|| index.clone());
        drop(registration);
        index.flows.fetch_add(1, Ordering::Relaxed);
        self.subjects().for_each(|subject| index.insert(subject, flow));
    }

    /// Tells the tables that packets have come from the sources, but not too often. `learn` says that an address that
    /// was evicted may be learnt again. The tables learn of it with [`Switch::apply_mac_uses`](crate::Switch).
    pub fn note_use(&self, forwarding: &Forwarding, used: Time, learn: bool) {
        let noted = Time(self.noted.load(Ordering::Relaxed));
        if used.since(noted) < REFRESH && noted != Time(0) {
            return;
        }
        let mut sources = self.all.iter().filter_map(|dependency| match dependency.answer {
            MacAnswer::Source(port) => Some((dependency.bridge, MacUse { key: dependency.key, port, used, learn })),
            MacAnswer::Destination(_) => None,
        });
        if let Some(first) = sources.next() {
            self.noted.store(used.0, Ordering::Relaxed);
            forwarding.mac_uses.lock().extend(std::iter::once(first).chain(sources));
        }
    }
}

impl Drop for MacDependencies {
    fn drop(&mut self) {
        let registration = std::mem::take(self.registration.get_mut());
        let Some(index) = registration.index.as_deref() else { return };
        for flow in registration.flows() {
            self.subjects().for_each(|subject| index.remove(subject, flow));
            index.flows.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What flows are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Subject {
    bridge: BridgeId,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum What {
    /// An address; `source`: not as a destination.
    Mac { key: MacKey, source: bool },
    /// A multicast group's members.
    Group(Group),
    /// A VLAN's ports that lead to routers.
    Routers(u16),
}

/// The flows of one subject. One is the usual number of a source.
enum FlowSet {
    One(FlowId),
    /// How many records of each flow there are: for a moment, a flow has its old and its new one.
    Many(Box<HashMap<FlowId, u32, foldhash::fast::RandomState>>),
}

impl FlowSet {
    fn insert(&mut self, flow: FlowId) {
        if let FlowSet::One(other) = *self {
            *self = FlowSet::Many(Box::new([(other, 1)].into_iter().collect()));
        }
        if let FlowSet::Many(flows) = self {
            *flows.entry(flow).or_default() += 1;
        }
    }

    /// Whether nothing is left.
    fn remove(&mut self, flow: FlowId) -> bool {
        let flows = match self {
            FlowSet::One(other) => return *other == flow,
            FlowSet::Many(flows) => flows,
        };
        if let Some(count) = flows.get_mut(&flow) {
            *count -= 1;
            if *count == 0 {
                flows.remove(&flow);
            }
        }
        if flows.len() < flows.capacity() / 8 {
            flows.shrink_to(2 * flows.len());
        }
        flows.is_empty()
    }

    fn list(&self, to: &mut Vec<FlowId>) {
        match self {
            FlowSet::One(flow) => to.push(*flow),
            FlowSet::Many(flows) => to.extend(flows.keys()),
        }
    }
}

type Shard = HashTable<(Subject, FlowSet)>;

/// The index.
pub(crate) struct MacDependents {
    shards: Box<[Mutex<Shard>]>,
    hasher: foldhash::fast::RandomState,
    /// Records in the index.
    flows: AtomicUsize,
    marked: Mutex<Marked>,
    /// How many flows were looked at because of an address or a group.
    looked_at: AtomicU64,
}

/// Of which flows are to be looked at.
#[derive(Default)]
struct Marked {
    subjects: HashSet<Subject, foldhash::fast::RandomState>,
    flows: HashSet<FlowId, foldhash::fast::RandomState>,
    /// All that are in the index: there were more marks than flows, of which many have gone.
    all: bool,
}

impl Marked {
    fn is_empty(&self) -> bool {
        !self.all && self.subjects.is_empty() && self.flows.is_empty()
    }
}

impl Default for MacDependents {
    fn default() -> MacDependents {
        MacDependents {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
            flows: AtomicUsize::new(0),
            marked: Mutex::default(),
            looked_at: AtomicU64::new(0),
        }
    }
}

impl MacDependents {
    fn shard(&self, subject: &Subject) -> (&Mutex<Shard>, u64) {
        let hash = self.hasher.hash_one(subject);
        // The table uses the highest and the lowest bits.
        (&self.shards[(hash >> 32) as usize % SHARDS], hash)
    }

    fn insert(&self, subject: Subject, flow: FlowId) {
        let (shard, hash) = self.shard(&subject);
        let mut shard = shard.lock();
        match shard.entry(hash, |(known, _)| *known == subject, |(known, _)| self.hasher.hash_one(known)) {
            hash_table::Entry::Occupied(mut entry) => entry.get_mut().1.insert(flow),
            hash_table::Entry::Vacant(entry) => drop(entry.insert((subject, FlowSet::One(flow)))),
        }
    }

    fn remove(&self, subject: Subject, flow: FlowId) {
        let (shard, hash) = self.shard(&subject);
        let mut shard = shard.lock();
        if let Ok(mut entry) = shard.find_entry(hash, |(known, _)| *known == subject)
            && entry.get_mut().1.remove(flow)
        {
            entry.remove();
            if shard.len() < shard.capacity() / 8 {
                let wanted = 2 * shard.len();
                shard.shrink_to(wanted, |(known, _)| self.hasher.hash_one(known));
            }
        }
    }

    /// Whether flows depend on a subject.
    fn has(&self, subject: &Subject) -> bool {
        let (shard, hash) = self.shard(subject);
        shard.lock().find(hash, |(known, _)| known == subject).is_some()
    }

    fn list(&self, subject: Subject, to: &mut Vec<FlowId>) {
        let (shard, hash) = self.shard(&subject);
        if let Some((_, flows)) = shard.lock().find(hash, |(known, _)| *known == subject) {
            flows.list(to);
        }
    }

    /// Marks the flows that depend on what has changed. Returns whether they are the first ones since marks were collected.
    pub fn mark(&self, bridge: BridgeId, changes: &MacChanges) -> bool {
        let sources = |concerned: bool| std::iter::once(false).chain(concerned.then_some(true));
        let of_change = |MacChange { key, concerns_sources }: MacChange| {
            sources(concerns_sources).map(move |source| What::Mac { key, source })
        };
        self.mark_all(changes.iter().flat_map(of_change).map(|what| Subject { bridge, what }))
    }

    /// The same for multicast groups and routers.
    pub fn mark_groups(&self, bridge: BridgeId, changes: &Changes) -> bool {
        let groups = changes.groups.iter().map(|group| What::Group(*group));
        let routers = changes.routers.iter().map(|vlan| What::Routers(*vlan));
        self.mark_all(groups.chain(routers).map(|what| Subject { bridge, what }))
    }

    fn mark_all(&self, subjects: impl Iterator<Item = Subject>) -> bool {
        let subjects: Vec<Subject> = subjects.filter(|subject| self.has(subject)).collect();
        self.add_marks(|marked| marked.subjects.extend(subjects))
    }

    /// Marks a flow. Returns what [`mark`](MacDependents::mark) does.
    pub fn mark_flow(&self, flow: FlowId) -> bool {
        self.add_marks(|marked| marked.flows.extend([flow]))
    }

    fn add_marks(&self, add: impl FnOnce(&mut Marked)) -> bool {
        let limit = MARKS.max(self.flows.load(Ordering::Relaxed));
        let mut marked = self.marked.lock();
        let were_none = marked.is_empty();
        if !marked.all {
            add(&mut marked);
            if marked.subjects.len() + marked.flows.len() > limit {
                *marked = Marked { all: true, ..Marked::default() };
            }
        }
        were_none && !marked.is_empty()
    }

    /// Whether flows are marked.
    pub fn has_marks(&self) -> bool {
        !self.marked.lock().is_empty()
    }

    /// The marked flows, each once, which are marked no longer: they are to be looked at now.
    pub fn collect(&self) -> Vec<FlowId> {
        let Marked { subjects, flows, all } = std::mem::take(&mut *self.marked.lock());
        let mut flows: Vec<FlowId> = flows.into_iter().collect();
        if all {
            for shard in &self.shards {
                shard.lock().iter().for_each(|(_, set)| set.list(&mut flows));
            }
        } else {
            subjects.into_iter().for_each(|subject| self.list(subject, &mut flows));
        }
        flows.sort_unstable();
        flows.dedup();
        self.looked_at.fetch_add(flows.len() as u64, Ordering::Relaxed);
        flows
    }

    /// How many flows were looked at because of an address, in all.
    pub fn looked_at(&self) -> u64 {
        self.looked_at.load(Ordering::Relaxed)
    }

    /// Entries: one for each flow and each of its addresses.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let mut flows = Vec::new();
        for shard in &self.shards {
            shard.lock().iter().for_each(|(_, set)| set.list(&mut flows));
        }
        flows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::mac::{MacLearning, MacSettings};

    const BRIDGE: BridgeId = BridgeId(1);

    fn key(n: u16) -> MacKey {
        MacKey { vlan: n, mac: [2; 6] }
    }

    /// A record of a flow from one address to another.
    fn record(index: &Arc<MacDependents>, flow: u64, src: u16, dst: u16) -> MacDependencies {
        let mut record = MacDependencies::default();
        record.add_source(BRIDGE, key(src), OfPort(1));
        record.add_destination(BRIDGE, key(dst), None);
        record.register(index, FlowId(flow));
        record
    }

    fn learnt(n: u16) -> MacChanges {
        MacLearning::new(MacSettings::default()).change(|table| table.learn(key(n), OfPort(1), Time(1))).1
    }

    fn taken(index: &MacDependents) -> Vec<u64> {
        index.collect().into_iter().map(|flow| flow.0).collect()
    }

    #[test]
    fn flows_are_found_by_both_addresses() {
        let index = Arc::default();
        let records: Vec<_> = (1..=3).map(|flow| record(&index, flow, flow as u16, 9)).collect();
        assert!(index.mark(BRIDGE, &learnt(2)));
        assert_eq!(taken(&index), [2]);
        assert!(index.mark(BRIDGE, &learnt(9)) && !index.mark(BRIDGE, &learnt(1)), "who marked first has told");
        assert_eq!(taken(&index), [1, 2, 3], "each once");
        assert!(!index.mark(BRIDGE, &learnt(4)) && !index.mark(BridgeId(2), &learnt(9)));
        assert!(!index.has_marks());
        drop(records);
        assert!(!index.mark(BRIDGE, &learnt(9)));
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn a_new_record_of_a_flow_outlives_the_old_one() {
        let index = Arc::default();
        let old = record(&index, 1, 1, 9);
        let new = record(&index, 1, 1, 9);
        old.register(&index, FlowId(1));
        drop(old);
        assert!(index.mark(BRIDGE, &learnt(9)));
        drop(new);
        assert!(!index.mark(BRIDGE, &learnt(9)));
        assert_eq!((index.len(), index.flows.load(Ordering::Relaxed)), (0, 0));
        // Two flows of one record.
        let shared = record(&index, 1, 1, 9);
        shared.register(&index, FlowId(2));
        taken(&index);
        assert!(index.mark(BRIDGE, &learnt(1)));
        assert_eq!(taken(&index), [1, 2]);
        drop(shared);
        assert_eq!(index.len(), 0);
    }

    /// Nobody looks at the marked flows, and they come and go: the marks stay bounded, and none is lost.
    #[test]
    fn marks_are_bounded() {
        let index = Arc::default();
        for flow in 0..3 * MARKS as u64 {
            drop(record(&index, 100 + flow, 1, 9));
            index.mark_flow(FlowId(100 + flow));
            assert!(index.marked.lock().flows.len() <= MARKS);
        }
        assert!(index.marked.lock().all);
        let _records: Vec<_> = (1..=3).map(|flow| record(&index, flow, 1, 9)).collect();
        index.mark(BRIDGE, &learnt(9));
        assert_eq!(taken(&index), [1, 2, 3]);
        assert!(!index.has_marks());
    }

    /// A handler that learns an address waits for nothing that grows with the flows to it.
    #[test]
    fn an_address_that_moves_over_and_over_is_marked_once() {
        let index = Arc::default();
        let records: Vec<_> = (0..1000).map(|flow| record(&index, flow, 1, 9)).collect();
        for _ in 0..1000 {
            index.mark(BRIDGE, &learnt(9));
        }
        let marked = index.marked.lock();
        assert_eq!((marked.subjects.len(), marked.flows.len(), marked.all), (1, 0, false));
        drop(marked);
        assert_eq!(taken(&index).len(), records.len());
    }

    #[test]
    fn the_index_gives_memory_back() {
        let index = Arc::<MacDependents>::default();
        let records: Vec<_> = (0..20_000).map(|flow| record(&index, flow, flow as u16, 9)).collect();
        let capacity = || index.shards.iter().map(|shard| shard.lock().capacity()).sum::<usize>();
        assert!(capacity() >= 20_000);
        drop(records);
        assert!(capacity() < 20_000 / 8, "{}", capacity());
    }
}
