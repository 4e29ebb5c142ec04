//! Tier 2: all flows, shared by the workers.
//!
//! Each input port has its own list of subtables, so that traffic of one port never lengthens the
//! look-ups of another. The list is replaced as a whole when a subtable comes or goes or when they are
//! ranked anew.
//!
//! Who touches what: everything is changed under one mutex, which no worker ever takes. Workers follow
//! protected pointers with a [`Guard`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use packet::flow::hash::Hasher;
use packet::{BATCH_SIZE, Field, Key, Mask, Time};
use parking_lot::Mutex;

use super::arena::{Arena, FlowRef, Free};
use super::bits;
use super::shape::Shape;
use super::subtable::Subtable;
use crate::action::{Action, PortNo};
use crate::error::Error;
use crate::program::Program;
use crate::rcu::{Domain, Guard, Protected};
use crate::stats::RemovedFlow;
use crate::upcall::{FlowDump, FlowId, FlowStats, FlowTag};

/// Port numbers are below this. Keys with an input port that is not (a controller's, none) share the list
/// of port zero, which does not exist.
pub const MAX_PORTS: usize = 1 << 15;

/// Flows that there is room for at least, whatever the limit is at first: it can be raised.
const CAPACITY: usize = 1 << 22;

/// All flows.
pub struct Table {
    /// The flows.
    pub arena: Arena,
    /// The keyed hash of everything here.
    pub hasher: Hasher,
    lists: Box<[Protected<PortList>]>,
    domain: Arc<Domain>,
    writer: Mutex<Writer>,
    limits: Limits,
}

struct Limits {
    /// Can be changed.
    flows: AtomicUsize,
    masks: usize,
    workers: usize,
}

/// The subtables that can hold flows of one input port.
pub struct PortList {
    /// Most useful first.
    pub subtables: Box<[Arc<Subtable>]>,
    /// All bits that any of them matches.
    pub union: Shape,
}

#[derive(Default)]
struct Writer {
    free: Free,
    subtables: HashMap<Arc<Mask>, Arc<Subtable>>,
    /// Of each input port, its subtables and how many of its flows are in each.
    ports: HashMap<usize, Vec<(Arc<Subtable>, usize)>>,
    records: Records,
    count: usize,
}

/// What only dumps and removals need to know of a flow.
struct Record {
    tag: FlowTag,
    actions: Arc<[Action]>,
    created: Time,
    subtable: Arc<Subtable>,
    list: usize,
}

/// Records by flow number.
#[derive(Default)]
struct Records(HashMap<FlowRef, Record>);

/// A flow that [`Table::install`] has made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Its identity.
    pub id: FlowId,
    /// Whether it existed before.
    pub existed: bool,
}

impl Table {
    /// A table without flows, for at most this many workers.
    pub fn new(max_flows: usize, max_masks: usize, workers: usize, seed: [u64; 2], domain: Arc<Domain>) -> Table {
        let (arena, free) = Arena::new(max_flows.max(CAPACITY), workers);
        Table {
            arena,
            hasher: Hasher::new(seed),
            lists: (0..MAX_PORTS).map(|_| Protected::new(None)).collect(),
            domain,
            writer: Mutex::new(Writer { free, ..Writer::default() }),
            limits: Limits { flows: AtomicUsize::new(max_flows), masks: max_masks, workers },
        }
    }

    /// Changes the limit of flows. Flows above it stay until they are removed.
    pub fn set_max_flows(&self, max_flows: usize) {
        self.limits.flows.store(max_flows, Ordering::Relaxed);
    }

    /// Makes room for a worker's counters, before it comes into being.
    pub fn enlist(&self, worker: usize) {
        self.arena.enlist(&self.writer.lock().free, worker);
    }

    /// The subtables for packets from a port; `None` where no flow is for them.
    #[inline(always)]
    pub fn list<'a>(&self, in_port: PortNo, guard: Guard<'a>) -> Option<&'a PortList> {
        self.lists[list_index(in_port)].load(guard)
    }

    /// Looks for the flows of those `keys` whose bit in `want` is set, and writes them to `found`.
    /// Returns the bits of those found, and how many subtables were visited, summed over the packets.
    #[inline(always)]
    pub fn lookup(
        &self,
        list: &PortList,
        keys: &[Key],
        mut want: u32,
        found: &mut [FlowRef; BATCH_SIZE],
        worker: usize,
        guard: Guard<'_>,
    ) -> (u32, u32) {
        let (wanted, mut visited) = (want, 0);
        let mut hashes = [0; BATCH_SIZE];
        for subtable in &list.subtables {
            let Some(buckets) = subtable.buckets(guard) else { continue };
            visited += want.count_ones();
            for i in bits(want) {
                hashes[i] = subtable.shape.hash(&self.hasher, &keys[i]);
                buckets.prefetch(hashes[i]);
            }
            for i in bits(want) {
                self.arena.prefetch(buckets.hint(hashes[i]));
            }
            let before = want;
            for i in bits(want) {
                if let Some((flow, _)) = buckets.find(&keys[i], hashes[i], &self.arena, guard) {
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

    /// Looks for the flow of one key.
    pub fn find(&self, key: &Key, guard: Guard<'_>) -> Option<FlowId> {
        let list = self.list(crate::upcall::in_port(key), guard)?;
        let in_subtable = |subtable: &Arc<Subtable>| {
            let hash = subtable.shape.hash(&self.hasher, key);
            let (flow, _) = subtable.buckets(guard)?.find(key, hash, &self.arena, guard)?;
            Some(self.arena.id(flow))
        };
        list.subtables.iter().find_map(in_subtable)
    }

    /// Adds a flow, or gives the one with equal key and mask these actions and tag.
    pub fn install(
        &self,
        key: &Key,
        mut mask: Box<Mask>,
        actions: Arc<[Action]>,
        tag: FlowTag,
        now: Time,
    ) -> Result<Installed, Error> {
        for field in [Field::InPortOxm, Field::RecircId, Field::PacketType] {
            mask.set_exact(field);
        }
        let program = Program::compile(&actions);
        let in_port = crate::upcall::in_port(key);

        let mut writer = self.writer.lock();
        let known = writer.subtables.get(&*mask).cloned();
        let hash = self.hasher.hash_masked(key, &mask);
        if let Some(flow) = known.as_ref().and_then(|s| s.find_for_writer(key, hash, &self.arena)) {
            self.arena.set_program(flow, program, &self.domain);
            let id = self.arena.id(flow);
            let record = writer.records.get(flow).expect("every live flow has a record");
            (record.actions, record.tag) = (actions, tag);
            return Ok(Installed { id, existed: true });
        }

        let list = list_index(in_port);
        let listed = writer.ports.get(&list).map_or(0, Vec::len);
        let limit = self.limits.flows.load(Ordering::Relaxed);
        if writer.count >= limit {
            return Err(Error::TooManyFlows(limit));
        }
        let new_here =
            |s: &Arc<Subtable>| !writer.ports.get(&list).is_some_and(|p| p.iter().any(|(o, _)| Arc::ptr_eq(o, s)));
        if listed >= self.limits.masks && known.as_ref().is_none_or(new_here) {
            return Err(Error::TooManyMasks { port: in_port, limit: self.limits.masks });
        }
        let subtable = known.unwrap_or_else(|| {
            let mask: Arc<Mask> = Arc::from(mask);
            let subtable = Arc::new(Subtable::new(mask.clone(), self.limits.workers));
            writer.subtables.insert(mask, subtable.clone());
            subtable
        });
        let flow = self.arena.allocate(&mut writer.free, subtable.shape.count());
        let Some(flow) = flow else {
            self.forget_if_empty(&mut writer, &subtable);
            return Err(Error::TooManyFlows(limit));
        };
        // SAFETY: the entry is fresh and of this many blocks, and the mutex makes this the only writer.
        // The subtable is retired when it is dropped, which is after the flow was killed.
        unsafe { self.arena.revive(flow, &subtable.shape, key, hash, program) };
        subtable.insert(flow, hash, &self.arena, &self.domain);
        let id = self.arena.id(flow);
        let record = Record { tag, actions, created: now, subtable: subtable.clone(), list };
        writer.records.insert(flow, record);
        writer.count += 1;
        self.join_list(&mut writer, list, subtable);
        Ok(Installed { id, existed: false })
    }

    /// Replaces a flow's actions.
    pub fn modify(&self, id: FlowId, actions: Vec<Action>) -> Result<(), Error> {
        let program = Program::compile(&actions);
        let mut writer = self.writer.lock();
        let flow = self.arena.find(id).ok_or(Error::NoSuchFlow(id))?;
        self.arena.set_program(flow, program, &self.domain);
        writer.records.get(flow).expect("every live flow has a record").actions = actions.into();
        Ok(())
    }

    /// Replaces the upper layer's record of a flow.
    pub fn set_tag(&self, id: FlowId, tag: FlowTag) -> Result<(), Error> {
        let mut writer = self.writer.lock();
        let flow = self.arena.find(id).ok_or(Error::NoSuchFlow(id))?;
        writer.records.get(flow).expect("every live flow has a record").tag = tag;
        Ok(())
    }

    /// Removes flows and waits until no worker uses them. Must not be called by an online reader.
    pub fn remove(&self, ids: &[FlowId]) -> Vec<RemovedFlow> {
        // 1. Out of sight.
        let mut dying = Vec::with_capacity(ids.len());
        for ids in ids.chunks(LOCKED) {
            let mut writer = self.writer.lock();
            for &id in ids {
                if let Some(flow) = self.arena.find(id) {
                    let record = self.unlink(&mut writer, flow);
                    dying.push((flow, id, record.tag));
                }
            }
        }
        if dying.is_empty() {
            return Vec::new();
        }
        // 2. Out of use.
        self.domain.synchronize();
        // 3. Gone.
        let mut writer = self.writer.lock();
        let gone = dying.into_iter().map(|(flow, id, tag)| {
            let stats = self.arena.stats(flow);
            self.arena.free(&mut writer.free, flow, &self.domain);
            RemovedFlow { id, stats, tag }
        });
        gone.collect()
    }

    fn unlink(&self, writer: &mut Writer, flow: FlowRef) -> Record {
        let hash = self.arena.hash(flow);
        self.arena.kill(flow);
        let record = writer.records.remove(flow).expect("every live flow has a record");
        record.subtable.remove(flow, hash);
        writer.count -= 1;
        self.leave_list(writer, record.list, &record.subtable);
        self.forget_if_empty(writer, &record.subtable);
        record
    }

    fn forget_if_empty(&self, writer: &mut Writer, subtable: &Arc<Subtable>) {
        if subtable.count() == 0 {
            let last = writer.subtables.remove(&*subtable.mask);
            // Readers may be comparing with its mask.
            self.domain.retire(Box::new(last));
        }
    }

    fn join_list(&self, writer: &mut Writer, list: usize, subtable: Arc<Subtable>) {
        let subtables = writer.ports.entry(list).or_default();
        match subtables.iter_mut().find(|(s, _)| Arc::ptr_eq(s, &subtable)) {
            Some((_, flows)) => *flows += 1,
            None => {
                subtables.push((subtable, 1));
                self.publish(list, subtables);
            }
        }
    }

    fn leave_list(&self, writer: &mut Writer, list: usize, subtable: &Arc<Subtable>) {
        let Some(subtables) = writer.ports.get_mut(&list) else { return };
        let Some(at) = subtables.iter().position(|(s, _)| Arc::ptr_eq(s, subtable)) else { return };
        subtables[at].1 -= 1;
        if subtables[at].1 == 0 {
            subtables.remove(at);
            self.publish(list, subtables);
            if subtables.is_empty() {
                writer.ports.remove(&list);
            }
        }
    }

    fn publish(&self, list: usize, subtables: &[(Arc<Subtable>, usize)]) {
        let object = (!subtables.is_empty()).then(|| {
            let mut union = Mask::wildcard();
            subtables.iter().for_each(|(s, _)| union.union(&s.mask));
            let subtables = subtables.iter().map(|(s, _)| s.clone()).collect();
            Box::new(PortList { subtables, union: Shape::new(&union) })
        });
        self.lists[list].replace(object, &self.domain);
    }

    /// Puts the subtables with the most hits since the last ranking first in each list.
    pub fn rank(&self) {
        let mut writer = self.writer.lock();
        let hits: HashMap<*const Subtable, u64> =
            writer.subtables.values().map(|s| (Arc::as_ptr(s), s.take_hits())).collect();
        for (&list, subtables) in &mut writer.ports {
            let rank = |(s, _): &(Arc<Subtable>, usize)| std::cmp::Reverse(hits.get(&Arc::as_ptr(s)).copied());
            if !subtables.is_sorted_by_key(rank) {
                subtables.sort_by_key(rank);
                self.publish(list, subtables);
            }
        }
    }

    /// Number of flows.
    pub fn count(&self) -> usize {
        self.writer.lock().count
    }

    /// Most flows.
    pub fn max_flows(&self) -> usize {
        self.limits.flows.load(Ordering::Relaxed)
    }

    /// Number of different masks.
    pub fn masks(&self) -> usize {
        self.writer.lock().subtables.len()
    }

    /// A flow's statistics so far.
    pub fn stats(&self, id: FlowId) -> Option<FlowStats> {
        let _writer = self.writer.lock();
        self.arena.find(id).map(|flow| self.arena.stats(flow))
    }

    /// A flow.
    pub fn dump(&self, id: FlowId) -> Option<FlowDump> {
        let mut writer = self.writer.lock();
        self.dump_locked(&mut writer, id)
    }

    /// The flows among `ids` that still exist.
    pub fn dump_some(&self, ids: &[FlowId]) -> Vec<FlowDump> {
        let mut writer = self.writer.lock();
        ids.iter().filter_map(|&id| self.dump_locked(&mut writer, id)).collect()
    }

    fn dump_locked(&self, writer: &mut Writer, id: FlowId) -> Option<FlowDump> {
        let flow = self.arena.find(id)?;
        let record = writer.records.get(flow)?;
        Some(FlowDump {
            id,
            key: Box::new(self.arena.key_for_writer(flow)?),
            mask: record.subtable.mask.clone(),
            actions: record.actions.clone(),
            stats: self.arena.stats(flow),
            created: record.created,
            tag: record.tag.clone(),
        })
    }

    /// Identities of all flows, or of those for packets from one port.
    pub fn ids(&self, in_port: Option<PortNo>) -> Vec<FlowId> {
        let list = in_port.map(list_index);
        let writer = self.writer.lock();
        let of_port = writer.records.0.iter().filter(|(_, r)| list.is_none_or(|list| r.list == list));
        of_port.map(|(&flow, _)| self.arena.id(flow)).collect()
    }
}

/// Flows that one hold of the mutex removes.
const LOCKED: usize = 256;

impl Records {
    fn get(&mut self, flow: FlowRef) -> Option<&mut Record> {
        self.0.get_mut(&flow)
    }

    fn insert(&mut self, flow: FlowRef, record: Record) {
        self.0.insert(flow, record);
    }

    fn remove(&mut self, flow: FlowRef) -> Option<Record> {
        self.0.remove(&flow)
    }
}

fn list_index(in_port: PortNo) -> usize {
    let index = in_port.0 as usize;
    if index < MAX_PORTS { index } else { 0 }
}
