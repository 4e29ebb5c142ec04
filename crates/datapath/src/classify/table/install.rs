//! New flows: installed one by one, or those of a batch of misses together.

use std::sync::Arc;

use packet::flow::hash::Hasher;
use packet::{BATCH_SIZE, Key, Mask, Time};
use smallvec::SmallVec;

use super::flow_ref::FlowRef;
use super::masks::MaskChoice;
use super::megaflow::{Table, Writer, bytes_of, set_always_exact, stage_of};
use super::record::Record;
use super::subtable::Subtable;
use crate::action::{Action, PortNo};
use crate::actions::program::Program;
use crate::error::Error;
use crate::pipeline::recirculation::RecircStage;
use crate::upcall::{FlowId, FlowTag};

/// A flow to be installed, for a key that goes with it.
pub struct NewFlow {
    mask: Arc<Mask>,
    /// Hash of the key under the mask.
    hash: u64,
    actions: Arc<[Action]>,
    program: Arc<Program>,
    tag: FlowTag,
}

impl NewFlow {
    /// A flow for the packets that equal `key` under `mask`, with these actions, and what they are compiled to.
    pub fn new(
        hasher: &Hasher,
        key: &Key,
        mut mask: Arc<Mask>,
        (actions, program): (Arc<[Action]>, Arc<Program>),
        tag: FlowTag,
    ) -> NewFlow {
        make_always_exact(&mut mask);
        NewFlow { hash: hasher.hash_masked(key, &mask), mask, actions, program, tag }
    }

    /// Its mask.
    pub fn mask(&self) -> &Arc<Mask> {
        &self.mask
    }

    /// Hash of its key under its mask.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The upper layer's record.
    pub fn tag(&self) -> &FlowTag {
        &self.tag
    }
}

/// What a flow is installed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A missed packet: where the table is full, another flow is evicted; where there are too many masks, the flow
    /// gets a wider one.
    Miss,
    /// The management: it gets the flow that it asks for or an error, and the flow stays until it is removed.
    Management,
}

/// The mask that a new flow gets.
struct ChosenMask {
    mask: Arc<Mask>,
    /// The number of the mask that it asked for, if that is another one; otherwise zero.
    requested: u32,
    /// The subtable with the mask, if it is at hand.
    subtable: Option<Arc<Subtable>>,
}

/// A flow that was made or found.
pub struct Installed {
    /// Its identity.
    pub id: FlowId,
    /// Whether it existed before.
    pub existed: bool,
}

impl Table {
    /// Adds a flow. If one with equal key and mask exists, it gets these actions and this tag.
    pub fn install(
        &self,
        key: &Key,
        mask: impl Into<Arc<Mask>>,
        actions: Arc<[Action]>,
        tag: FlowTag,
        now: Time,
        requester: Requester,
    ) -> Result<Installed, Error> {
        let program = Arc::new(Program::compile(&actions));
        let flow = NewFlow::new(&self.hasher, key, mask.into(), (actions, program), tag);
        let mut result = Err(Error::OutOfDate);
        self.install_all(&[(key, flow)], now, requester, |_| true, |_, installed| result = installed);
        result
    }

    /// As [`install`](Table::install), for several flows in turn, each with its key, under one lock. Their evictions are
    /// made together.
    ///
    /// Asks `is_current` for each flow with the mutex held whether it is not out of date. So whoever makes it out of date
    /// and then walks over the flows meets it. Tells `done` of each flow, still with the mutex held.
    pub fn install_all(
        &self,
        flows: &[(&Key, NewFlow)],
        now: Time,
        requester: Requester,
        is_current: impl Fn(usize) -> bool,
        mut done: impl FnMut(usize, Result<Installed, Error>),
    ) {
        let writer = &mut *self.writer.lock();
        let is_current: SmallVec<[bool; BATCH_SIZE]> = (0..flows.len()).map(is_current).collect();
        let current = || flows.iter().zip(&is_current).filter(|(_, is_current)| **is_current).map(|(flow, _)| flow);
        // Memory that is needed later is on its way before something waits for it.
        current().enumerate().for_each(|(number, (key, flow))| self.prefetch_for(writer, key, flow, number));
        self.reap(writer);
        if requester == Requester::Miss {
            self.make_room_for(writer, current().map(|(key, _)| stage_of(key)));
        }
        for (number, ((key, flow), is_current)) in flows.iter().zip(&is_current).enumerate() {
            let installed =
                if *is_current { self.install_new(writer, key, flow, now, requester) } else { Err(Error::OutOfDate) };
            done(number, installed);
        }
    }

    /// Prefetches what the installation of a flow writes to, after `number` others.
    fn prefetch_for(&self, writer: &Writer, key: &Key, flow: &NewFlow, number: usize) {
        let list = writer.lists.get(&self.list_now(writer, stage_of(key)));
        let Some(member) = list.and_then(|list| list.members.iter().find(|m| m.has_mask(&flow.mask))) else { return };
        member.subtable.prefetch_for_writer(flow.hash);
        let blocks = member.subtable.shape.count();
        if let Some(entry) = writer.free.nth(blocks, number) {
            self.arena.prefetch_dead(entry, blocks);
            writer.records.prefetch_slot(entry);
        }
    }

    fn install_new(
        &self,
        writer: &mut Writer,
        key: &Key,
        flow: &NewFlow,
        now: Time,
        requester: Requester,
    ) -> Result<Installed, Error> {
        let stage = stage_of(key);
        let list = self.list_for(writer, stage);
        let installed = self.install_in(writer, (list, stage), key, flow, now, requester);
        if installed.is_err() {
            self.release_if_unused(writer, stage);
        }
        installed
    }

    fn install_in(
        &self,
        writer: &mut Writer,
        (list, stage): (u16, RecircStage),
        key: &Key,
        flow: &NewFlow,
        now: Time,
        requester: Requester,
    ) -> Result<Installed, Error> {
        let NewFlow { actions, program, tag, .. } = flow;
        // 1. Choose the mask. If a flow with this key and mask exists, it is changed.
        let ChosenMask { mask, requested, subtable } =
            self.choose_mask(writer, list, &flow.mask, stage.in_port, requester, now)?;
        let known = subtable.or_else(|| writer.subtables.get(&*mask).cloned());
        let hash = if requested == 0 { flow.hash } else { self.hasher.hash_masked(key, &mask) };
        if let Some(subtable) = &known
            && let Some(flow) = subtable.find_for_writer(key, hash, &self.arena)
        {
            self.arena.set_program(flow, program, &self.domain);
            let id = self.arena.id(flow);
            let record = writer.records.get_mut(flow).expect("every live flow has a record");
            (record.actions, record.tag) = (actions.clone(), tag.clone());
            if program.course().tracks() {
                self.track_port(writer, stage.in_port);
            }
            return Ok(Installed { id, existed: true });
        }
        // 2. Otherwise a flow is added, for which another may have to be evicted.
        if self.is_full(writer) && (requester == Requester::Management || !self.make_room(writer, list, stage)) {
            return Err(Error::TooManyFlows(self.max_flows()));
        }
        // The list's last flow may have been evicted, and the list released with it.
        let list = self.list_for(writer, stage);
        let subtable = known.filter(|s| s.count() > 0).unwrap_or_else(|| {
            let subtable = Arc::new(Subtable::new(mask.clone(), self.limits.workers));
            writer.subtables.insert(mask, subtable.clone());
            subtable
        });
        let flow = self.arena.allocate(&mut writer.free, subtable.shape.count());
        let Some(flow) = flow else {
            self.forget_if_empty(writer, &subtable);
            return Err(Error::TooManyFlows(self.max_flows()));
        };
        // SAFETY: the entry was just allocated for this many blocks, and the mutex makes this the only writer. The
        // subtable, which owns the shape, is retired only after its last flow is dead.
        unsafe { self.arena.make_live(flow, &subtable.shape, key, hash, program) };
        subtable.insert(flow, hash, &self.arena, &self.domain);
        let record = Record {
            tag: tag.clone(),
            actions: actions.clone(),
            created: now,
            subtable: subtable.clone(),
            slow_path_stats: None,
            newer: FlowRef::NONE,
            older: FlowRef::NONE,
            seen: 0,
            requested,
            list,
            managed: requester == Requester::Management,
            is_bare: key.common().packet_type.get() != 0,
        };
        writer.records.insert(flow, record);
        writer.indexes.insert(flow, &subtable, key, &self.hasher);
        writer.count += 1;
        writer.bytes += bytes_of(subtable.shape.count(), self.arena.workers());
        self.insert_in_list(writer, (list, stage), &subtable, flow);
        if program.course().tracks() {
            self.track_port(writer, stage.in_port);
        }
        Ok(Installed { id: self.arena.id(flow), existed: false })
    }

    /// The mask that a new flow gets.
    fn choose_mask(
        &self,
        writer: &mut Writer,
        list: u16,
        mask: &Arc<Mask>,
        in_port: PortNo,
        requester: Requester,
        now: Time,
    ) -> Result<ChosenMask, Error> {
        let limit = self.max_masks();
        let own = |mask: &Arc<Mask>, subtable| Ok(ChosenMask { mask: mask.clone(), requested: 0, subtable });
        let Some(port) = writer.lists.get_mut(&list) else { return own(mask, None) };
        let refused = Err(Error::TooManyMasks { port: in_port, limit });
        if requester == Requester::Management {
            let listed = port.members.iter().any(|m| m.has_mask(mask));
            return if listed || port.members.len() < limit { own(mask, None) } else { refused };
        }
        let number = || self.hasher.hash_key(&mask.0) as u32 | 1;
        let choice = port.choose_mask(mask, number, limit, now);
        if port.members.iter().any(|m| m.phased_out) {
            writer.phased_out.insert(list);
        }
        match choice {
            MaskChoice::Listed(subtable) => own(mask, Some(subtable)),
            MaskChoice::Own => own(mask, None),
            MaskChoice::Wide(mask, requested) => Ok(ChosenMask { mask: mask.into(), requested, subtable: None }),
            MaskChoice::None => refused,
        }
    }
}

/// The same, for a mask that others share, if it does not do so yet.
fn make_always_exact(mask: &mut Arc<Mask>) {
    let common = mask.0.common();
    let exact = [common.in_port, common.recirc_id, common.packet_type].iter().all(|bits| bits.get() == u32::MAX);
    if !exact {
        set_always_exact(Arc::make_mut(mask));
    }
}
