//! Tier 2: the megaflow table, which the workers share.
//!
//! Each recirculation stage, which is an input port and a recirculation id, has its own list of subtables (see
//! [`stages`](super::stages)), so that traffic of one port or stage does not lengthen the look-ups of another. A list
//! is replaced as a whole when a subtable is added or removed, and when the subtables are ranked.
//!
//! Shared memory: everything is changed under one mutex, which no worker takes. Workers follow protected pointers
//! with a [`Guard`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use packet::flow::BLOCK_SIZE;
use packet::flow::hash::Hasher;
use packet::{BATCH_SIZE, Key, Mask, Time};
use parking_lot::Mutex;

use super::arena::{Arena, Free};
use super::flow_ref::FlowRef;
use super::index::Indexes;
use super::record::{Record, Records, Taken};
use super::shape::Shape;
use super::subtable::Subtable;
use crate::action::{Action, PortNo};
use crate::actions::program::Program;
use crate::classify::bits;
use crate::classify::plan::{Plan, covers_received, of_received};
use crate::classify::table::flow_counters::COUNTERS_BYTES;
use crate::classify::table::masks::{ListFlows, Member, PortFlows};
use crate::classify::table::stages::{FreeLists, LISTS, MAX_PORTS, Stages, list_index};
use crate::error::Error;
use crate::pipeline::recirculation::RecircStage;
use crate::sync::rcu::{Domain, Guard, Protected};
use crate::upcall::{FlowDump, FlowId, FlowStats, FlowTag, RemovedFlow};

/// The capacity for flows, whatever the limit is at the start, since the limit can be raised. Small in Miri, as chunks
/// are.
const CAPACITY: usize = if cfg!(miri) { 1 << 8 } else { 1 << 22 };

/// A walk over fewer flows takes less than a millisecond.
const INDEXED_FROM: usize = 1 << 14;

/// All flows.
pub struct Table {
    /// The flows.
    pub arena: Arena,
    /// The keyed hash function of the table.
    pub hasher: Hasher,
    lists: Box<[Protected<FlowList>]>,
    stages: Stages,
    pub(in crate::classify) domain: Arc<Domain>,
    pub(in crate::classify) writer: Mutex<Writer>,
    pub(super) limits: Limits,
}

/// Limits. All but the last can be changed.
pub(super) struct Limits {
    flows: AtomicUsize,
    /// Bytes of all flows.
    memory: AtomicUsize,
    /// Subtables of one list.
    masks: AtomicUsize,
    /// With fewer flows there is no index.
    indexed_from: AtomicUsize,
    pub workers: usize,
}

/// The subtables that can hold flows of one stage.
pub struct FlowList {
    /// Those with the most hits first.
    pub subtables: Box<[Arc<Subtable>]>,
    /// All bits that any of them matches.
    pub union: Shape,
    /// The same in terms of raw frames.
    pub plan: Plan,
    /// Whether the list is under mask pressure.
    pub under_pressure: bool,
    /// Whether the list belongs to one later stage. A port's list also has flows of those later stages that have no
    /// list of their own.
    pub is_of_later_stage: bool,
}

/// What the mutex guards.
#[derive(Default)]
pub(in crate::classify) struct Writer {
    pub free: Free,
    pub subtables: HashMap<Arc<Mask>, Arc<Subtable>>,
    /// The flows of each list.
    pub lists: BTreeMap<u16, ListFlows>,
    /// The lists of each input port, by the number of the port's own.
    pub ports: BTreeMap<u16, PortFlows>,
    free_lists: FreeLists,
    /// The number of flows of each later stage that are in their port's list, since the stage has no list of its own.
    unlisted: HashMap<RecircStage, usize>,
    pub records: Records,
    pub indexes: Indexes,
    /// Live flows, and the bytes that they take.
    pub count: usize,
    pub bytes: usize,
    /// Lists that may have subtables to be phased out.
    pub phased_out: BTreeSet<u16>,
    /// Unlinked flows whose entries a worker may still be using, oldest first.
    pub unlinked: VecDeque<UnlinkedFlow>,
    /// Evicted flows that were not taken yet.
    pub evicted: Vec<RemovedFlow>,
    /// How many flows have been evicted since the start.
    pub evictions: u64,
    /// The port that was looked at last for a flow to evict (as the hand of a clock algorithm).
    pub clock_hand: u16,
}

/// An evicted flow that waits for a grace period.
pub(in crate::classify) struct UnlinkedFlow {
    /// The RCU epoch that every worker has to reach first.
    pub epoch: u64,
    pub flow: FlowRef,
    pub id: FlowId,
    pub record: Record,
    pub taken: Taken,
}

/// A flow that is in no list any more, and not dead yet.
pub(in crate::classify) struct Detached {
    pub flow: FlowRef,
    /// Hash of its masked key.
    pub hash: u64,
    pub record: Record,
    pub taken: Taken,
}

/// The bytes of a flow with this many blocks: entry, record, and slot in its subtable; counters of each worker; and,
/// by measurement, actions and upper layer's record where no other flow shares them.
pub(super) const fn bytes_of(blocks: usize, workers: usize) -> usize {
    BLOCK_SIZE * (1 + blocks) + size_of::<Record>() + 16 + workers * COUNTERS_BYTES + 600
}

/// The context of a look-up of packets of one stage.
#[derive(Clone, Copy)]
pub struct LookupContext<'a> {
    /// The subtables of their stage.
    pub list: &'a FlowList,
    /// All flows.
    pub table: &'a Table,
    /// The worker's number.
    pub worker: usize,
    /// The worker's RCU guard.
    pub guard: Guard<'a>,
    /// The time, if packets may be counted as soon as their flow is found.
    pub count_at: Option<Time>,
}

impl Table {
    /// A table without flows, for at most this many workers.
    pub fn new(max_flows: usize, max_masks: usize, workers: usize, seed: [u64; 2], domain: Arc<Domain>) -> Table {
        let limits = Limits {
            flows: AtomicUsize::new(max_flows),
            memory: AtomicUsize::new(usize::MAX),
            masks: AtomicUsize::new(max_masks.max(1)),
            indexed_from: AtomicUsize::new(INDEXED_FROM),
            workers,
        };
        let (arena, free) = Arena::new(max_flows.max(CAPACITY), workers);
        Table {
            arena,
            hasher: Hasher::new(seed),
            lists: (0..LISTS).map(|_| Protected::new(None)).collect(),
            stages: Stages::default(),
            domain,
            writer: Mutex::new(Writer { free, ..Writer::default() }),
            limits,
        }
    }

    /// Changes the limit of flows. Flows above it are evicted soon ([`enforce_limits`](Table::enforce_limits)).
    pub fn set_max_flows(&self, max_flows: usize) {
        self.limits.flows.store(max_flows, Ordering::Relaxed);
    }

    /// Changes the limit of the memory of all flows, in bytes, as [`bytes`](Table::bytes) counts it. Flows above it
    /// are evicted soon.
    pub fn set_max_memory(&self, bytes: usize) {
        self.limits.memory.store(bytes, Ordering::Relaxed);
    }

    /// Changes the limit of subtables of one list. A list with more keeps them until another mask is asked for.
    pub fn set_max_masks(&self, max_masks: usize) {
        self.limits.masks.store(max_masks.max(1), Ordering::Relaxed);
    }

    /// Changes from how many flows on those that a rule can be about are found by an index.
    pub fn set_indexed_from(&self, flows: usize) {
        self.limits.indexed_from.store(flows, Ordering::Relaxed);
    }

    /// With fewer flows there is no index.
    pub fn indexed_from(&self) -> usize {
        self.limits.indexed_from.load(Ordering::Relaxed)
    }

    /// Makes counters for a worker, before the worker is created.
    pub fn add_worker(&self, worker: usize) {
        let mut writer = self.writer.lock();
        let before = self.arena.workers();
        self.arena.add_worker(worker);
        writer.bytes += writer.count * (self.arena.workers() - before) * COUNTERS_BYTES;
    }

    /// The subtables for packets that a port has received; `None` where there is no flow for them.
    #[inline(always)]
    pub fn list_of_port<'a>(&self, in_port: PortNo, guard: Guard<'a>) -> Option<&'a FlowList> {
        self.lists[usize::from(list_index(in_port))].load(guard)
    }

    /// The subtables for packets of a stage; `None` where there is no flow for them.
    #[inline(always)]
    pub fn list<'a>(&self, stage: RecircStage, guard: Guard<'a>) -> Option<&'a FlowList> {
        let own = self.stages.is_later(stage).then(|| self.stages.find(stage)).flatten();
        self.lists[usize::from(own.unwrap_or_else(|| list_index(stage.in_port)))].load(guard)
    }

    /// Says whether packets of a port come out of a tunnel.
    pub fn set_tunnel(&self, port: PortNo, is_tunnel: bool) {
        self.stages.set_tunnel(port, is_tunnel);
    }

    /// Looks up those `keys` whose bit in `want` is set, and writes their flows to `found`. Returns the set of hits,
    /// and the number of visited subtables, summed over the packets.
    #[inline(always)]
    pub fn lookup(at: LookupContext<'_>, keys: &[Key], mut want: u32, found: &mut [FlowRef; BATCH_SIZE]) -> (u32, u32) {
        let LookupContext { list, table, worker, guard, .. } = at;
        let (wanted, mut visited) = (want, 0);
        let mut hashes = [0; BATCH_SIZE];
        for subtable in &list.subtables {
            let Some(buckets) = subtable.buckets(guard) else { continue };
            visited += want.count_ones();
            for i in bits(want) {
                hashes[i] = subtable.shape.hash(&table.hasher, &keys[i]);
                buckets.prefetch(hashes[i]);
            }
            for i in bits(want) {
                table.arena.prefetch(buckets.hint(hashes[i]));
            }
            let before = want;
            for i in bits(want) {
                if let Some((flow, _)) = buckets.find(&keys[i], hashes[i], &table.arena, guard) {
                    found[i] = flow;
                    want &= !(1 << i);
                }
            }
            if want != before {
                subtable.count_hits(worker, (before ^ want).count_ones());
                if want == 0 {
                    break;
                }
            }
        }
        (wanted & !want, visited)
    }

    /// Prefetches what a look-up of this key reads first.
    pub fn prefetch(&self, key: &Key, guard: Guard<'_>) {
        let first = self.list(stage_of(key), guard).and_then(|list| list.subtables.first());
        if let Some(subtable) = first
            && let Some(buckets) = subtable.buckets(guard)
        {
            buckets.prefetch(subtable.shape.hash(&self.hasher, key));
        }
    }

    /// Looks up one key.
    pub fn find(&self, key: &Key, guard: Guard<'_>) -> Option<FlowId> {
        let list = self.list(stage_of(key), guard)?;
        let in_subtable = |subtable: &Arc<Subtable>| {
            let hash = subtable.shape.hash(&self.hasher, key);
            let (flow, _) = subtable.buckets(guard)?.find(key, hash, &self.arena, guard)?;
            Some(self.arena.id(flow))
        };
        list.subtables.iter().find_map(in_subtable)
    }

    /// As [`find`](Table::find), for who has no guard. Looks at each mask, with the lock held that no worker takes.
    pub fn find_locked(&self, key: &Key) -> Option<FlowId> {
        let writer = self.writer.lock();
        let in_subtable = |subtable: &Arc<Subtable>| {
            subtable.find_for_writer(key, subtable.shape.hash(&self.hasher, key), &self.arena)
        };
        writer.subtables.values().find_map(in_subtable).map(|flow| self.arena.id(flow))
    }

    /// Counts for a flow what the slow path has answered by it, and returns the flow's actions. `None` where the flow is
    /// gone.
    pub fn count_answered(&self, id: FlowId, stats: FlowStats) -> Option<Arc<[Action]>> {
        let mut writer = self.writer.lock();
        let flow = self.arena.find(id)?;
        let record = writer.records.get_mut(flow)?;
        record.slow_path_stats.get_or_insert_default().add(&stats);
        Some(record.actions.clone())
    }

    /// The flow of this key and mask, with the fields matched exactly that all flows match exactly. Found by hash.
    pub fn find_same(&self, key: &Key, mut mask: Mask) -> Option<FlowId> {
        set_always_exact(&mut mask);
        let writer = self.writer.lock();
        let hash = self.hasher.hash_masked(key, &mask);
        let flow = writer.subtables.get(&mask)?.find_for_writer(key, hash, &self.arena)?;
        Some(self.arena.id(flow))
    }

    /// The list that flows of a stage are in at present, or the port's.
    pub(in crate::classify) fn list_now(&self, writer: &Writer, stage: RecircStage) -> u16 {
        let own = (self.stages.is_later(stage) && !writer.unlisted.contains_key(&stage))
            .then(|| self.stages.find(stage))
            .flatten();
        own.unwrap_or_else(|| list_index(stage.in_port))
    }

    /// The list for flows of a stage. The stage gets a list of its own, if there is one left.
    pub(super) fn list_for(&self, writer: &mut Writer, stage: RecircStage) -> u16 {
        if !self.stages.is_later(stage) || writer.unlisted.contains_key(&stage) {
            return list_index(stage.in_port);
        }
        let own = self.stages.find(stage);
        let own = own.or_else(|| self.stages.assign(stage, &mut writer.free_lists, &self.domain));
        own.unwrap_or_else(|| list_index(stage.in_port))
    }

    /// Gives the list of a later stage back if no flow is in it.
    pub(super) fn release_if_unused(&self, writer: &mut Writer, stage: RecircStage) {
        if self.stages.is_later(stage) && self.stages.find(stage).is_some_and(|own| !writer.lists.contains_key(&own)) {
            self.stages.release(stage, &mut writer.free_lists, &self.domain);
        }
    }

    pub(super) fn is_full(&self, writer: &Writer) -> bool {
        self.is_full_with(writer, 0)
    }

    /// Whether there is no room for another flow, once there are so many more flows of the smallest size.
    pub(in crate::classify) fn is_full_with(&self, writer: &Writer, more: usize) -> bool {
        writer.count + more >= self.max_flows()
            || writer.bytes + more * bytes_of(1, self.arena.workers()) >= self.limits.memory.load(Ordering::Relaxed)
    }

    /// Whether a limit is exceeded.
    pub(in crate::classify) fn is_over(&self, writer: &Writer) -> bool {
        writer.count > self.max_flows() || writer.bytes > self.limits.memory.load(Ordering::Relaxed)
    }

    /// Replaces a flow's actions.
    pub fn modify(&self, id: FlowId, actions: Vec<Action>) -> Result<(), Error> {
        let program = Arc::new(Program::compile(&actions));
        let mut writer = self.writer.lock();
        let flow = self.arena.find(id).ok_or(Error::NoSuchFlow(id))?;
        self.arena.set_program(flow, &program, &self.domain);
        writer.records.get_mut(flow).expect("every live flow has a record").actions = actions.into();
        if program.course().tracks() {
            let list = writer.records.get(flow).and_then(|record| writer.lists.get(&record.list));
            if let Some(in_port) = list.map(|list| list.stage.in_port) {
                self.track_port(&mut writer, in_port);
            }
        }
        Ok(())
    }

    /// Replaces the upper layer's record of a flow.
    pub fn set_tag(&self, id: FlowId, tag: FlowTag) -> Result<(), Error> {
        let mut writer = self.writer.lock();
        let flow = self.arena.find(id).ok_or(Error::NoSuchFlow(id))?;
        writer.records.get_mut(flow).expect("every live flow has a record").tag = tag;
        Ok(())
    }

    /// Removes flows and waits until no worker uses them. Must not be called by an online reader.
    pub fn remove(&self, ids: &[FlowId]) -> Vec<RemovedFlow> {
        // 1. Unlink the flows.
        let mut unlinked = Vec::with_capacity(ids.len());
        for ids in ids.chunks(LOCKED) {
            let mut writer = self.writer.lock();
            for &id in ids {
                if let Some(flow) = self.arena.find(id) {
                    let (record, taken) = self.unlink(&mut writer, flow);
                    unlinked.push((flow, id, record, taken));
                }
            }
        }
        if unlinked.is_empty() {
            return Vec::new();
        }
        // 2. Wait until no worker uses them.
        self.domain.synchronize();
        // 3. Free their entries.
        let mut writer = self.writer.lock();
        let gone = unlinked.into_iter().map(|(flow, id, record, mut taken)| {
            let stats = self.stats_of(flow, &record);
            self.arena.free(&mut writer.free, flow);
            RemovedFlow { id, rest: taken.take(&stats), stats, tag: record.tag }
        });
        gone.collect()
    }

    /// Unlinks a live flow.
    pub(in crate::classify) fn unlink(&self, writer: &mut Writer, flow: FlowRef) -> (Record, Taken) {
        let detached = self.detach(writer, flow);
        self.make_dead(writer, &detached);
        (detached.record, detached.taken)
    }

    /// Takes a live flow out of the lists. Nothing but [`make_dead`](Table::make_dead) is to be done with it.
    pub(in crate::classify) fn detach(&self, writer: &mut Writer, flow: FlowRef) -> Detached {
        self.remove_from_list(writer, flow);
        let (record, taken) = writer.records.remove(flow).expect("every live flow has a record");
        writer.indexes.remove(flow);
        writer.count -= 1;
        writer.bytes = writer.bytes.saturating_sub(bytes_of(record.subtable.shape.count(), self.arena.workers()));
        Detached { flow, hash: self.arena.hash(flow), record, taken }
    }

    /// Unlinks a flow that is out of the lists.
    pub(in crate::classify) fn make_dead(&self, writer: &mut Writer, detached: &Detached) {
        let Detached { flow, hash, record, .. } = detached;
        self.arena.make_dead(*flow);
        record.subtable.remove(*flow, *hash);
        self.forget_if_empty(writer, &record.subtable);
    }

    pub(super) fn forget_if_empty(&self, writer: &mut Writer, subtable: &Arc<Subtable>) {
        if subtable.count() == 0 {
            let last = writer.subtables.remove(&*subtable.mask);
            writer.indexes.forget(subtable);
            // Readers may still compare with its mask.
            self.domain.retire(Box::new(last));
        }
    }

    pub(super) fn insert_in_list(
        &self,
        writer: &mut Writer,
        (list, stage): (u16, RecircStage),
        subtable: &Arc<Subtable>,
        flow: FlowRef,
    ) {
        let Writer { lists, ports, records, unlisted, .. } = writer;
        if self.stages.is_later(stage) && usize::from(list) < MAX_PORTS {
            *unlisted.entry(stage).or_default() += 1;
        }
        let of_list = lists.entry(list).or_insert_with(|| ListFlows::new(stage));
        let of_port = ports.entry(list_index(stage.in_port)).or_default();
        of_port.lists.insert(list);
        let before = of_list.evictable;
        let is_new = of_list.insert(subtable, flow, records);
        of_port.evictable += of_list.evictable - before;
        if !is_new {
            return;
        }
        self.publish(list, of_list, of_port.tracked.as_deref());
        // Lines of the list for what the port receives tell what flows of later stages match.
        let is_recirculated = stage.recirc_id != 0 && self.stages.is_later(stage);
        if let Some(tracked) = of_port.tracked.as_deref_mut().filter(|_| is_recirculated)
            && !subtable.mask.blocks().iter().all(|id| covers_received(tracked, id, subtable.mask.0.block(id)))
        {
            tracked.union(&of_received(&subtable.mask));
            let own = self.receiving_list(stage.in_port);
            if let Some(of_list) = lists.get(&own) {
                self.publish(own, of_list, Some(tracked));
            }
        }
    }

    /// Notes that packets of a port are tracked.
    pub(super) fn track_port(&self, writer: &mut Writer, in_port: PortNo) {
        let Writer { lists, ports, .. } = writer;
        let own = self.receiving_list(in_port);
        let Some(of_port) = ports.get_mut(&list_index(in_port)).filter(|port| port.tracked.is_none()) else { return };
        let mut tracked = Mask::wildcard();
        let later = of_port.lists.iter().filter(|&&list| list != own).filter_map(|list| lists.get(list));
        later.flat_map(|list| &list.members).for_each(|member| tracked.union(&of_received(&member.subtable.mask)));
        if let Some(of_list) = lists.get(&own) {
            self.publish(own, of_list, Some(&tracked));
        }
        of_port.tracked = Some(Box::new(tracked));
    }

    /// The list of the flows for packets as a port has received them.
    fn receiving_list(&self, in_port: PortNo) -> u16 {
        let stage = RecircStage { in_port, recirc_id: 0 };
        let own = self.stages.is_later(stage).then(|| self.stages.find(stage)).flatten();
        own.unwrap_or_else(|| list_index(in_port))
    }

    fn remove_from_list(&self, writer: &mut Writer, flow: FlowRef) {
        let Writer { lists, ports, records, unlisted, free_lists, .. } = writer;
        let Some(list) = records.get(flow).map(|record| record.list) else { return };
        if !unlisted.is_empty() && usize::from(list) < MAX_PORTS {
            self.forget_unlisted(unlisted, flow);
        }
        let Some(of_list) = lists.get_mut(&list) else { return };
        let (before, port) = (of_list.evictable, list_index(of_list.stage.in_port));
        let is_subtable_empty = of_list.remove(flow, records);
        let evicted = before - of_list.evictable;
        if is_subtable_empty {
            let tracked = ports.get(&port).and_then(|of_port| of_port.tracked.as_deref());
            self.publish(list, of_list, tracked);
        }
        let is_empty = of_list.members.is_empty();
        if is_empty {
            if usize::from(list) >= MAX_PORTS {
                self.stages.release(of_list.stage, free_lists, &self.domain);
            }
            lists.remove(&list);
        }
        let Some(of_port) = ports.get_mut(&port) else { return };
        of_port.evictable -= evicted;
        if is_empty {
            of_port.lists.remove(&list);
            if of_port.lists.is_empty() {
                ports.remove(&port);
            }
        }
    }

    /// Records that a flow of a port's list is removed, which may be of a later stage.
    fn forget_unlisted(&self, unlisted: &mut HashMap<RecircStage, usize>, flow: FlowRef) {
        let Some(stage) = self.arena.key_for_writer(flow).map(|key| stage_of(&key)) else { return };
        if let Some(count) = unlisted.get_mut(&stage) {
            *count -= 1;
            if *count == 0 {
                unlisted.remove(&stage);
            }
        }
    }

    /// Publishes a list. `tracked`: what its port has of this name.
    fn publish(&self, list: u16, of_list: &ListFlows, tracked: Option<&Mask>) {
        let object = (!of_list.members.is_empty()).then(|| {
            let mut union = Mask::wildcard();
            of_list.members.iter().for_each(|m| union.union(&m.subtable.mask));
            let subtables = of_list.members.iter().map(|m| m.subtable.clone()).collect();
            let is_of_later_stage = usize::from(list) >= MAX_PORTS;
            // Packets with an input port that does not exist are never received from a port.
            let plan = match list {
                0 => Plan::none(),
                _ if is_of_later_stage && of_list.stage.recirc_id == 0 => Plan::of_tunnel(list, &union, tracked),
                _ if is_of_later_stage => Plan::of_later_stage(list, &union),
                _ => match tracked {
                    Some(later) => Plan::of_tracked(list, &union, later),
                    None => Plan::new(list, &union),
                },
            };
            let under_pressure = of_list.pressure.is_some();
            Box::new(FlowList { subtables, union: Shape::new(&union), plan, under_pressure, is_of_later_stage })
        });
        self.lists[usize::from(list)].replace(object, &self.domain);
    }

    /// Sorts the subtables of each list by their hits since the last ranking, ends the pressure of lists for which few
    /// masks are asked, and drops indexes that nobody uses.
    pub fn rank(&self, now: Time) {
        // Dropped without the mutex.
        let _unused = self.writer.lock().indexes.take_unused(now);
        let mut writer = self.writer.lock();
        let Writer { subtables, lists, ports, phased_out, .. } = &mut *writer;
        let hits: HashMap<*const Subtable, u64> = subtables.values().map(|s| (Arc::as_ptr(s), s.take_hits())).collect();
        let limit = self.max_masks();
        for (&list, of_list) in lists {
            let rank = |m: &Member| std::cmp::Reverse(hits.get(&Arc::as_ptr(&m.subtable)).copied());
            let port = ports.get(&list_index(of_list.stage.in_port));
            let tracked = port.and_then(|port| port.tracked.as_deref());
            if !of_list.members.is_sorted_by_key(rank) {
                of_list.members.sort_by_key(rank);
                self.publish(list, of_list, tracked);
            }
            if of_list.end_pressure(limit, now) {
                phased_out.insert(list);
                self.publish(list, of_list, tracked);
            }
        }
    }

    /// Number of flows.
    pub fn count(&self) -> usize {
        self.writer.lock().count
    }

    /// The memory of all flows, in bytes, by the size of their parts.
    pub fn bytes(&self) -> usize {
        self.writer.lock().bytes
    }

    /// How many flows have been evicted since the start, for others or because of their mask.
    pub fn evictions(&self) -> u64 {
        self.writer.lock().evictions
    }

    /// The limit of subtables of one list, which may be exceeded by a few while they are replaced.
    pub fn max_masks(&self) -> usize {
        self.limits.masks.load(Ordering::Relaxed)
    }

    /// The limit of flows.
    pub fn max_flows(&self) -> usize {
        self.limits.flows.load(Ordering::Relaxed)
    }

    /// The limit of the memory of all flows, in bytes.
    pub fn max_memory(&self) -> usize {
        self.limits.memory.load(Ordering::Relaxed)
    }

    /// Number of different masks.
    pub fn masks(&self) -> usize {
        self.writer.lock().subtables.len()
    }

    /// A flow's statistics so far.
    pub fn stats(&self, id: FlowId) -> Option<FlowStats> {
        let writer = self.writer.lock();
        let flow = self.arena.find(id)?;
        Some(self.stats_of(flow, writer.records.get(flow)?))
    }

    /// What one worker has counted of it.
    pub fn stats_by(&self, id: FlowId, worker: usize) -> Option<FlowStats> {
        let writer = self.writer.lock();
        let flow = self.arena.find(id)?;
        let is_bare = writer.records.get(flow)?.is_bare;
        let counters = (worker < self.arena.workers()).then(|| self.arena.flow_counters(worker))?;
        Some(counters.stats(flow).without_made_up(is_bare))
    }

    pub(super) fn stats_of(&self, flow: FlowRef, record: &Record) -> FlowStats {
        let mut stats = self.arena.stats(flow);
        if let Some(slow_path_stats) = &record.slow_path_stats {
            stats.add(slow_path_stats);
        }
        stats.without_made_up(record.is_bare)
    }

    /// A flow.
    pub fn dump(&self, id: FlowId) -> Option<FlowDump> {
        let writer = self.writer.lock();
        self.dump_locked(&writer, self.arena.find(id)?)
    }

    /// Some flows, from number `from` on, and the number to continue from; `None` at the end.
    pub fn dump_some(&self, from: usize) -> (Vec<FlowDump>, Option<usize>) {
        let writer = self.writer.lock();
        let (flows, next) = writer.records.some(from, LOCKED);
        (flows.into_iter().filter_map(|flow| self.dump_locked(&writer, flow)).collect(), next)
    }

    fn dump_locked(&self, writer: &Writer, flow: FlowRef) -> Option<FlowDump> {
        let record = writer.records.get(flow)?;
        Some(FlowDump {
            id: self.arena.id(flow),
            key: Box::new(self.arena.packet_key_for_writer(flow)?),
            mask: record.subtable.mask.clone(),
            actions: record.actions.clone(),
            stats: self.stats_of(flow, record),
            created: record.created,
            tag: record.tag.clone(),
        })
    }

    /// Identities of all flows, or of those for packets from one port.
    pub fn ids(&self, in_port: Option<PortNo>) -> Vec<FlowId> {
        self.ids_where(|port| in_port.is_none_or(|wanted| port == wanted))
    }

    /// Identities of the flows for packets from these ports, by one walk over all flows.
    pub fn ids_of(&self, in_ports: &[PortNo]) -> Vec<FlowId> {
        let wanted: BTreeSet<_> = in_ports.iter().copied().collect();
        self.ids_where(|port| wanted.contains(&port))
    }

    fn ids_where(&self, wanted: impl Fn(PortNo) -> bool) -> Vec<FlowId> {
        let writer = self.writer.lock();
        let (mut ids, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let (flows, next) = writer.records.some(at, LOCKED);
            let of_port = |flow: &FlowRef| {
                let list = writer.records.get(*flow).and_then(|record| writer.lists.get(&record.list));
                list.is_some_and(|list| wanted(list.stage.in_port))
            };
            ids.extend(flows.into_iter().filter(of_port).map(|flow| self.arena.id(flow)));
            from = next;
        }
        ids
    }
}

/// Has a mask match exactly what all flows match exactly.
pub(super) fn set_always_exact(mask: &mut Mask) {
    let common = mask.0.common_mut();
    (common.in_port, common.recirc_id, common.packet_type) = (u32::MAX.into(), u32::MAX.into(), u32::MAX.into());
}

/// How many flows are removed, evicted or listed while the mutex is held once.
pub(in crate::classify) const LOCKED: usize = 256;

/// The recirculation stage of packets with this key.
pub fn stage_of(key: &Key) -> RecircStage {
    RecircStage { in_port: crate::upcall::in_port(key), recirc_id: key.common().recirc_id.get() }
}
