//! The flows of one list by mask, and the limit of masks.
//!
//! A packet visits the subtables of its stage until one has its flow, so their number bounds the work of a look-up.
//! It is limited for each list ([`Limits::masks`](super::megaflow::Limits)). When a translation asks for one more
//! mask, the list comes under *pressure*:
//!
//! - Subtables with the most hits stay, up to a quarter of the limit. The others are *phased out*: their flows are
//!   evicted in the background.
//! - From then on, a flow whose mask is not one of those that stay gets the *wide* mask instead: the union of all
//!   masks that the translations have asked for, in whole fields. To match more bits is always correct: the flow is
//!   for fewer packets. All such flows share one subtable.
//! - When few masks are asked for, the pressure ends. The wide subtable is phased out, and its packets get the flows
//!   that they had before.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use packet::flow::BlockId;
use packet::flow::field::FIELDS;
use packet::{Field, Mask, Time};

use super::flow_ref::FlowRef;
use super::record::Records;
use super::subtable::Subtable;
use crate::pipeline::recirculation::RecircStage;

/// How long a list is under pressure at least.
const MIN_PRESSURE_TIME: Duration = Duration::from_secs(10);

/// How many subtables a list may have above the limit for a while: the wide one, and those that it replaces.
pub(in crate::classify) const SPARE: usize = 8;

/// The flows of a list.
pub(in crate::classify) struct ListFlows {
    /// Their stage; for a port's list, that of received packets.
    pub stage: RecircStage,
    /// The subtables with the most hits first.
    pub members: Vec<Member>,
    /// How many flows may be evicted.
    pub evictable: usize,
    pub pressure: Option<Pressure>,
    /// The masks that flows with the wide mask have asked for, as numbers: how many flows ask for each.
    requested: HashMap<u32, u32>,
}

/// What an input port has in all of its lists.
#[derive(Default)]
pub(in crate::classify) struct PortFlows {
    /// How many flows may be evicted.
    pub evictable: usize,
    /// The port's own list and those of its recirculation stages, as far as they have flows.
    pub lists: BTreeSet<u16>,
    /// The list that an eviction looked at last.
    pub clock_hand: u16,
    /// The bits of headers that flows of later stages match, if packets of the port are tracked. Bits stay until all flows
    /// are gone.
    pub tracked: Option<Box<Mask>>,
}

/// The flows of one mask.
pub(in crate::classify) struct Member {
    pub subtable: Arc<Subtable>,
    pub flows: usize,
    /// How many flows may be evicted.
    pub evictable: usize,
    /// Of the flows that may be evicted, the one that was installed or spared last, and the one that is evicted next.
    pub newest: FlowRef,
    pub oldest: FlowRef,
    /// Whether its flows are being evicted in the background.
    pub phased_out: bool,
}

/// The state of a list under pressure.
pub(in crate::classify) struct Pressure {
    pub wide: Box<Mask>,
    since: Time,
}

/// Which mask a flow gets.
pub(in crate::classify) enum MaskChoice {
    /// The mask that it asks for, which is that of a subtable of the list.
    Listed(Arc<Subtable>),
    /// The mask that it asks for, which is new in the list.
    Own,
    /// The wide mask, instead of the one with this number.
    Wide(Box<Mask>, u32),
    /// None, since there are too many subtables at the moment.
    None,
}

impl ListFlows {
    /// A list without flows, for this stage.
    pub fn new(stage: RecircStage) -> ListFlows {
        let (members, requested) = (Vec::new(), HashMap::new());
        ListFlows { stage, members, evictable: 0, pressure: None, requested }
    }

    pub fn member(&mut self, subtable: &Arc<Subtable>) -> Option<&mut Member> {
        self.members.iter_mut().find(|m| Arc::ptr_eq(&m.subtable, subtable))
    }

    /// Chooses the mask for a flow whose translation asks for `mask`, which has the number that `number` computes.
    pub fn choose_mask(&mut self, mask: &Mask, number: impl FnOnce() -> u32, limit: usize, now: Time) -> MaskChoice {
        if let Some(member) = self.members.iter().find(|m| !m.phased_out && m.has_mask(mask)) {
            return MaskChoice::Listed(member.subtable.clone());
        }
        if self.pressure.is_none() && self.members.len() < limit {
            return MaskChoice::Own;
        }
        if self.pressure.is_none() {
            self.start_pressure(limit, now);
        }
        let Some(pressure) = &mut self.pressure else { return MaskChoice::None };
        let wider = widened(&pressure.wide, mask);
        if wider != *pressure.wide {
            let old = std::mem::replace(&mut *pressure.wide, wider);
            self.members.iter_mut().filter(|m| *m.subtable.mask == old).for_each(|m| m.phased_out = true);
        }
        let wide = &pressure.wide;
        if self.members.len() >= limit + SPARE && !self.members.iter().any(|m| *m.subtable.mask == **wide) {
            return MaskChoice::None;
        }
        MaskChoice::Wide(wide.clone(), number())
    }

    fn start_pressure(&mut self, limit: usize, now: Time) {
        let mut wide = Mask::wildcard();
        for (rank, member) in self.members.iter_mut().enumerate() {
            wide = widened(&wide, &member.subtable.mask);
            member.phased_out |= rank >= limit / 4;
        }
        self.pressure = Some(Pressure { wide: Box::new(wide), since: now });
    }

    /// Ends the pressure if few masks are asked for. Returns whether it has ended.
    pub fn end_pressure(&mut self, limit: usize, now: Time) -> bool {
        let Some(pressure) = &self.pressure else { return false };
        let wide = |m: &Member| *m.subtable.mask == *pressure.wide;
        let own = self.members.iter().filter(|m| !m.phased_out && !wide(m)).count();
        if now.since(pressure.since) < MIN_PRESSURE_TIME || own + self.requested.len() > limit / 2 {
            return false;
        }
        for at in 0..self.members.len() {
            self.members[at].phased_out |= wide(&self.members[at]);
        }
        self.pressure = None;
        true
    }

    /// Adds a flow as the newest one. Returns whether its subtable is new in this list.
    pub fn insert(&mut self, subtable: &Arc<Subtable>, flow: FlowRef, records: &mut Records) -> bool {
        let new = self.member(subtable).is_none();
        if new {
            let (newest, oldest) = (FlowRef::NONE, FlowRef::NONE);
            let member =
                Member { subtable: subtable.clone(), flows: 0, evictable: 0, newest, oldest, phased_out: false };
            self.members.push(member);
        }
        if let Some(requested) = records.get(flow).map(|r| r.requested).filter(|&requested| requested != 0) {
            *self.requested.entry(requested).or_default() += 1;
        }
        let evictable = records.get(flow).is_some_and(|r| !r.managed);
        self.evictable += usize::from(evictable);
        let member = self.member(subtable).expect("it is there now");
        member.flows += 1;
        if evictable {
            member.evictable += 1;
            member.push(flow, records);
        }
        new
    }

    /// Removes a flow, whose record must still exist. Returns whether its subtable is no longer in this list.
    pub fn remove(&mut self, flow: FlowRef, records: &mut Records) -> bool {
        let Some(record) = records.get(flow) else { return false };
        let (subtable, requested, managed) = (record.subtable.clone(), record.requested, record.managed);
        if let Some(count) = self.requested.get_mut(&requested) {
            *count -= 1;
            if *count == 0 {
                self.requested.remove(&requested);
            }
        }
        let Some(at) = self.members.iter().position(|m| Arc::ptr_eq(&m.subtable, &subtable)) else { return false };
        if !managed {
            self.members[at].take(flow, records);
            self.members[at].evictable -= 1;
            self.evictable -= 1;
        }
        self.members[at].flows -= 1;
        let empty = self.members[at].flows == 0;
        if empty {
            self.members.remove(at);
        }
        empty
    }
}

impl Member {
    /// Whether this is the mask of its flows.
    pub fn has_mask(&self, mask: &Mask) -> bool {
        std::ptr::eq(&*self.subtable.mask, mask) || *self.subtable.mask == *mask
    }

    fn push(&mut self, flow: FlowRef, records: &mut Records) {
        let before = std::mem::replace(&mut self.newest, flow);
        if let Some(record) = records.get_mut(flow) {
            (record.newer, record.older) = (FlowRef::NONE, before);
        }
        match records.get_mut(before) {
            Some(record) => record.newer = flow,
            None => self.oldest = flow,
        }
    }

    fn take(&mut self, flow: FlowRef, records: &mut Records) {
        let Some((newer, older)) = records.get(flow).map(|r| (r.newer, r.older)) else { return };
        match records.get_mut(newer) {
            Some(record) => record.older = older,
            None => self.newest = older,
        }
        match records.get_mut(older) {
            Some(record) => record.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Makes the oldest flow the newest.
    pub fn spare_oldest(&mut self, records: &mut Records) {
        let flow = self.oldest;
        self.take(flow, records);
        self.push(flow, records);
    }
}

/// `wide`, extended to the whole of each field that `mask` or `wide` matches.
fn widened(wide: &Mask, mask: &Mask) -> Mask {
    let mut sum = wide.clone();
    sum.union(mask);
    let mut whole = sum.clone();
    for info in FIELDS {
        // Fields that only OpenFlow tables use are not part of a packet. A field that is written in several ways is
        // covered by its plain form.
        let own = matches!(info.block(), BlockId::Pipeline | BlockId::Regs) || info.field == Field::ConjId;
        if !own && !sum.is_wild(info.field) {
            whole.set_exact(info.field);
        }
    }
    whole
}
