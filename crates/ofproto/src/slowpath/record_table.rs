//! Flows with equal records share one: a million flows of one rule have one record. So it is with masks and actions.
//!
//! A small hash table holds the latest records. One of them is used again as long as nothing that it depends on has
//! changed.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use datapath::Action;
use packet::Mask;
use parking_lot::Mutex;

use crate::model::forwarding::Forwarding;
use crate::slowpath::record::FlowRecord;
use crate::slowpath::ways::{Outcome, Ways};

/// Slots of the table: enough for the pipelines that many new flows pass at a time, between as many ports.
const SLOTS: usize = 1024;

/// The latest records, and what goes with them.
pub(crate) struct SharedRecords {
    slots: Mutex<Box<[Slot]>>,
    /// The outcomes of the latest translations.
    pub ways: Ways,
}

/// The latest record of some pipelines, and the latest mask and actions of a flow with one of them.
#[derive(Clone, Default)]
struct Slot {
    record: Option<Arc<FlowRecord>>,
    mask: Option<Arc<Mask>>,
    actions: Option<Arc<[Action]>>,
}

impl Default for SharedRecords {
    fn default() -> SharedRecords {
        SharedRecords { slots: Mutex::new(vec![Slot::default(); SLOTS].into()), ways: Ways::default() }
    }
}

impl SharedRecords {
    /// A record that is equivalent to `record`: one that is there already, or this one. Every record of a flow comes from
    /// here.
    pub fn share(&self, forwarding: &Forwarding, record: FlowRecord) -> Arc<FlowRecord> {
        let slot = slot_of(&record);
        self.slots.lock()[slot].share_record(forwarding, record)
    }

    /// The same for a record and what goes with it.
    pub fn share_outcome(
        &self,
        forwarding: &Forwarding,
        record: FlowRecord,
        mask: &Mask,
        actions: Vec<Action>,
    ) -> Outcome {
        let slot = slot_of(&record);
        let slot = &mut self.slots.lock()[slot];
        let record = slot.share_record(forwarding, record);
        if slot.mask.as_deref() != Some(mask) {
            slot.mask = Some(Arc::new(mask.clone()));
        }
        if slot.actions.as_deref() != Some(&actions[..]) {
            slot.actions = Some(actions.into());
        }
        let Slot { mask, actions, .. } = slot.clone();
        Outcome { record, mask: mask.unwrap_or_default(), actions: actions.unwrap_or_default() }
    }

    /// Removes all, so that what the records hold can be freed.
    pub fn clear(&self) {
        self.slots.lock().fill(Slot::default());
        self.ways.clear();
    }
}

impl Slot {
    fn share_record(&mut self, forwarding: &Forwarding, mut record: FlowRecord) -> Arc<FlowRecord> {
        let valid_at = forwarding.affecting.load(SeqCst);
        *record.valid_at.get_mut() = valid_at;
        record.tell_overwritten(forwarding);
        if record.is_for_one_flow() {
            return Arc::new(record.compact());
        }
        if let Some(known) = &self.record
            && known.is_equivalent(&record)
            && (known.generation == record.generation || !known.is_stale(forwarding))
        {
            known.valid_at.fetch_max(valid_at, SeqCst);
            return known.clone();
        }
        self.record.insert(Arc::new(record.compact())).clone()
    }
}

/// The slot of the records that pass the same rules, look at the same ports, and are dropped at the same place if they are.
fn slot_of(record: &FlowRecord) -> usize {
    // Nobody outside chooses addresses of rules.
    let mix = |hash: u64, value: usize| (hash.rotate_left(5) ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash =
        record.drop_site.iter().fold(record.tables.len() as u64, |hash, site| mix(hash, Arc::as_ptr(site).addr()));
    let hash = record.rules.iter().fold(hash, |hash, rule| mix(hash, Arc::as_ptr(rule).addr()));
    let ports = record.deps.iter().flat_map(|deps| deps.ports());
    let hash = ports.fold(hash, |hash, port| mix(hash, usize::from(*port)));
    (hash >> 32) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use std::any::Any;

    use datapath::FlowDump;
    use openflow::{Action, Match, OfPort, Subfield};
    use packet::Field;
    use packet::wire::build;

    use super::*;
    use crate::reference::tests::Bed;

    fn frame(source: u32) -> Vec<u8> {
        let header = build::Ipv4 { src: source.into(), proto: 17, ..build::Ipv4::default() };
        build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, 2, b"")))
    }

    #[test]
    fn flows_of_one_rule_share_a_record_until_something_changes() {
        let bed = Bed::new(3);
        // Each source has a flow of its own.
        let copy = Action::RegMove {
            src: Subfield::new(Field::NwSrc, 0, 32).unwrap(),
            dst: Subfield::new(Field::Reg0, 0, 32).unwrap(),
        };
        let mut ip = Match::any();
        ip.set(Field::DlType, 0x0800);
        bed.add_flow(0, 5, ip.clone(), vec![copy.clone(), Action::output(OfPort(2))]);
        let receive = |source| bed.receive(OfPort(1), &frame(source));
        let flow =
            |source: u128| -> FlowDump { bed.datapath.flows().find(|f| f.key.get(Field::NwSrc) == source).unwrap() };
        (1..4).for_each(|source| drop(receive(source)));
        let record = |source| flow(source).tag as Arc<dyn Any + Send + Sync>;
        assert!(std::ptr::addr_eq(Arc::as_ptr(&record(1)), Arc::as_ptr(&record(3))), "one record for all");
        assert!(Arc::ptr_eq(&flow(1).actions, &flow(2).actions), "and one list of actions");
        // A rule of a higher priority: from now on, the same rules are found at another table's state.
        let mut narrower = ip;
        narrower.set(Field::NwSrc, 9);
        bed.add_flow(0, 6, narrower, vec![copy, Action::output(OfPort(3))]);
        assert_eq!(receive(4)[0].0, OfPort(2));
        assert_eq!(receive(9)[0].0, OfPort(3));
        assert!(!std::ptr::addr_eq(Arc::as_ptr(&record(4)), Arc::as_ptr(&record(9))));
        let forwarding = bed.switch.forwarding.read();
        let stale = [4, 9].map(|source| flow(source).tag.downcast::<FlowRecord>().unwrap().is_stale(&forwarding));
        assert_eq!(stale, [false; 2], "a record from before the change is not used again");
    }

    #[test]
    fn flows_of_one_rule_that_come_in_by_several_ports_in_turn_share_a_record_for_each() {
        let bed = Bed::new(4);
        let src = Subfield::new(Field::NwSrc, 0, 32).unwrap();
        let copy = Action::RegMove { src, dst: Subfield::new(Field::Reg0, 0, 32).unwrap() };
        let mut ip = Match::any();
        ip.set(Field::DlType, 0x0800);
        bed.add_flow(0, 5, ip, vec![copy, Action::output(OfPort(4))]);
        for source in 0..30 {
            assert_eq!(bed.receive(OfPort(1 + source % 3), &frame(source))[0].0, OfPort(4));
        }
        let records: std::collections::BTreeSet<_> =
            bed.datapath.flows().map(|flow| Arc::as_ptr(&flow.tag).cast::<()>()).collect();
        assert_eq!((bed.datapath.flow_count(), records.len()), (30, 3));
    }
}
