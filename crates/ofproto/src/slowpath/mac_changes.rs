//! Changes of MAC tables, and what they mean for the datapath's flows.
//!
//! Whoever changes a table marks the flows that depend on the address (`mac_dependents`) and makes
//! [`Switch::run`] due. The marked flows are then looked at, without a round over all flows: each is translated again if
//! a table has something else to say now than when it was translated.

use std::time::Duration;

use datapath::{Datapath, FlowId};
use packet::Time;
use parking_lot::MutexGuard;

use crate::model::forwarding::{BridgeState, Forwarding};
use crate::model::mac::{MacTable, MacUse};
use crate::model::mac_batch::MacBatch;
use crate::slowpath::control::Revalidation;
use crate::slowpath::record::FlowRecord;
use crate::switch::Switch;

/// So many flows are looked at before others get the lock of revalidation.
const CHUNK: usize = 512;

/// Between two looks at marked flows are so many times as long as the first one took, but no longer than [`LONGEST_REST`], unless that was
/// longer itself: addresses that move without end have their flows looked at without end.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_secs(1);

impl Switch {
    /// Changes a MAC table, and marks the flows that depend on what has changed.
    pub(crate) fn change_macs<T>(&self, bridge: &BridgeState, change: impl FnOnce(&mut MacTable) -> T) -> T {
        let (result, changes) = bridge.macs.change(change);
        if !changes.is_empty() && self.mac_dependents.mark(bridge.id, &changes) {
            self.notify();
        }
        result
    }

    /// Tells the MAC tables what a batch of packets has learnt.
    pub(crate) fn learn_macs(&self, forwarding: &Forwarding, batch: MacBatch) {
        let announced = batch.take_announced();
        for learnt in batch.into_learnt().chunk_by(|a, b| a.bridge == b.bridge) {
            if let Some(bridge) = forwarding.bridges.get(&learnt[0].bridge) {
                self.change_macs(bridge, |table| {
                    for learnt in learnt {
                        table.learn(learnt.key, learnt.port, learnt.at);
                    }
                });
            }
        }
        for (bridge, key, at) in announced {
            if let Some(bridge) = forwarding.bridges.get(&bridge) {
                self.change_macs(bridge, |table| table.lock(key, at));
            }
        }
    }

    /// Tells the MAC tables which addresses are in use, as far as statistics have told since the last call.
    pub(crate) fn apply_mac_uses(&self, forwarding: &Forwarding) {
        let mut uses = std::mem::take(&mut *forwarding.mac_uses.lock());
        uses.sort_unstable_by_key(|(bridge, MacUse { used, key, port, .. })| (*bridge, *used, *key, *port));
        for uses in uses.chunk_by(|a, b| a.0 == b.0) {
            if let Some(bridge) = forwarding.bridges.get(&uses[0].0) {
                // A flow that is being removed may be of a port that has gone.
                let known = uses.iter().filter(|(_, seen)| bridge.ports.contains_key(&seen.port));
                self.change_macs(bridge, |table| known.for_each(|&(_, seen)| table.note(seen)));
            }
        }
    }

    /// A datapath flow has this record from now on.
    pub(crate) fn adopt(&self, flow: FlowId, record: &FlowRecord, forwarding: &Forwarding) {
        if record.macs.is_empty() {
            return;
        }
        record.macs.register(&self.mac_dependents, flow);
        if record.macs.is_stale(forwarding) && self.mac_dependents.mark_flow(flow) {
            self.notify();
        }
    }

    /// Looks at the flows that are marked so far. Lets others revalidate in between.
    pub(super) fn follow_macs(&self, now: Time) {
        let Some(datapath) = self.datapath.get() else { return };
        let began = self.clock.now();
        let mut state = self.revalidation.lock();
        state.marked.extend(self.mac_dependents.collect());
        let are_many = state.marked.len() > CHUNK;
        while !state.marked.is_empty() {
            self.look_at_marked(datapath, &mut state, now);
            MutexGuard::bump(&mut state);
        }
        state.macs_ended = self.clock.now();
        // Few take no time that others would miss, however long the thread had to wait for a processor.
        state.macs_took = if are_many { state.macs_ended.since(began) } else { Duration::ZERO };
    }

    /// Looks at the flows that are marked so far, in one go.
    pub(super) fn follow_macs_now(&self, datapath: &Datapath, state: &mut Revalidation, now: Time) {
        state.marked.extend(self.mac_dependents.collect());
        while !state.marked.is_empty() {
            self.look_at_marked(datapath, state, now);
        }
    }

    /// When marked flows are to be looked at; `None` where there are none.
    pub(super) fn next_for_macs(&self, now: Time) -> Option<Time> {
        let state = self.revalidation.lock();
        let has_some = self.mac_dependents.has_marks() || !state.marked.is_empty();
        let rest = (state.macs_took * REST).min(LONGEST_REST).max(state.macs_took);
        has_some.then(|| now.max(state.macs_ended + rest))
    }

    /// Looks at some of the flows whose marks have been collected. The lock of revalidation is held, so that no round for changes gives one
    /// of these flows an older record.
    fn look_at_marked(&self, datapath: &Datapath, state: &mut Revalidation, now: Time) {
        let marked = state.marked.split_off(state.marked.len().saturating_sub(CHUNK));
        let flows: Vec<_> = marked.into_iter().filter_map(|id| Some((id, datapath.flow(id)?.tag))).collect();
        let findings = self.bring_up_to_date(datapath, &flows, now);
        self.finish(datapath, &[findings]);
    }

    /// How many datapath flows were looked at because an address was learnt, moved or forgotten.
    pub fn mac_revalidations(&self) -> u64 {
        self.mac_dependents.looked_at()
    }
}

#[cfg(test)]
mod tests {
    use datapath::FlowDump;
    use openflow::{Action, FlowMod, FlowModCommand, Instructions, Match, OfPort, TableId};
    use packet::Clock;
    use packet::wire::build;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::bridge::Bridge;
    use crate::model::config::{BridgeConfig, FailMode};
    use crate::model::mac::{MacKey, MacSettings};
    use crate::model::port::{Device, PortSpec};
    use crate::model::vlan::{PortVlan, VlanMode};
    use crate::reference::tests::Bed;

    fn mac(n: u8) -> [u8; 6] {
        if n == 0 { [0xff; 6] } else { [2, 0, 0, 0, 0, n] }
    }

    fn key(n: u8) -> MacKey {
        MacKey { vlan: 0, mac: mac(n) }
    }

    fn frame(src: u8, dst: u8, vlan: Option<u16>) -> Vec<u8> {
        let tags: Vec<(u16, u16)> = vlan.map(|vlan| (0x8100, vlan)).into_iter().collect();
        build::ethernet(mac(dst), mac(src), &tags, 0x1234, &[0; 46])
    }

    fn normal(bridge: &Bridge) {
        let change =
            FlowMod::new(FlowModCommand::Add, Match::any(), Instructions::apply(vec![Action::output(OfPort::NORMAL)]));
        bridge.flow_mod(&FlowMod { table: Some(TableId(0)), ..change }).unwrap();
    }

    fn set_macs(bridge: &Bridge, max_entries: usize) {
        let mut config = bridge.config();
        config.mac = MacSettings { ageing: Duration::from_secs(15), max_entries };
        bridge.set_config(config);
    }

    /// Two bridges of NORMAL, joined by patch ports. The first has four ports: a trunk, two of VLAN 5 and 6, and one
    /// whose native VLAN is 5. The second has a port that is not one of the bed's.
    fn bed(max_entries: usize) -> (Bed, Bridge) {
        let bed = Bed::new(4);
        let other = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br1", 2) };
        let other = bed.switch.add_bridge(other).unwrap();
        let patch = |name: &str, peer: &str| PortSpec {
            request: Some(OfPort(9)),
            ..PortSpec::of(name, Device::Patch { peer: peer.into(), mac: [2, 0, 0, 0, 1, 0] })
        };
        bed.bridge.add_port(patch("a", "b")).unwrap();
        other.add_port(patch("b", "a")).unwrap();
        for (port, mode, tag) in [(2, VlanMode::Access, 5), (3, VlanMode::Access, 6), (4, VlanMode::NativeTagged, 5)] {
            bed.bridge.set_port_vlan(OfPort(port), PortVlan { mode, tag, ..PortVlan::default() }).unwrap();
        }
        for bridge in [&bed.bridge, &other] {
            normal(bridge);
            set_macs(bridge, max_entries);
        }
        bed.switch.revalidate();
        (bed, other)
    }

    fn record(flow: &FlowDump) -> &FlowRecord {
        flow.tag.downcast_ref().unwrap()
    }

    /// Translates every flow again, whatever it depends on, and compares.
    fn check(bed: &Bed, strict: bool) -> Result<(), TestCaseError> {
        let forwarding = bed.switch.forwarding.read();
        let mut entries = 0;
        for flow in bed.datapath.flows() {
            let new = bed.switch.translate_dp(&forwarding, &flow.key, None, bed.clock.now()).unwrap();
            // Where the table was full, the source is left to statistics. They may come after there is room again.
            prop_assert!(!strict || !new.record.volatile, "its packets have to be learnt from: {:?}", flow.key);
            prop_assert!(new.actions[..] == flow.actions[..], "{:?} {:?}", flow.key, new.actions);
            prop_assert!(record(&flow).macs.is_equivalent(&new.record.macs));
            entries += record(&flow).macs.len();
        }
        prop_assert_eq!(bed.switch.mac_dependents.len(), entries, "the index holds the flows that exist");
        Ok(())
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// Frames that miss or hit together: port, source, destination, VLAN.
        Receive(Vec<(u32, u8, u8, Option<u16>)>),
        Wait(u64),
        Flush(bool),
        Static(bool, u8, u32),
        Remove(bool, u8),
        RemoveFlow(usize),
        Limit(usize),
        Purge,
        Round,
        PortVlan(u32, u16),
    }

    fn event(limits: Vec<usize>) -> impl Strategy<Value = Event> {
        let frame = (1u32..5, 1u8..7, 0u8..7, select(vec![None, None, Some(5u16), Some(6)]));
        let n = 1u8..7;
        prop_oneof![
            12 => prop::collection::vec(frame, 1..12).prop_map(Event::Receive),
            3 => (100u64..9_000).prop_map(Event::Wait),
            1 => any::<bool>().prop_map(Event::Flush),
            1 => (any::<bool>(), n.clone(), select(vec![1u32, 2, 4, 9])).prop_map(|(b, n, port)| Event::Static(b, n, port)),
            1 => (any::<bool>(), n).prop_map(|(b, n)| Event::Remove(b, n)),
            1 => (0usize..20).prop_map(Event::RemoveFlow),
            1 => select(limits).prop_map(Event::Limit),
            1 => Just(Event::Purge),
            1 => Just(Event::Round),
            1 => (2u32..5, 5u16..7).prop_map(|(port, vlan)| Event::PortVlan(port, vlan)),
        ]
    }

    fn happen(bed: &Bed, other: &Bridge, event: &Event) {
        let of = |first: bool| if first { &bed.bridge } else { other };
        match *event {
            Event::Receive(ref frames) => {
                for &(port, src, dst, vlan) in frames {
                    bed.devices[port as usize - 1].inject(&frame(src, dst, vlan));
                }
                bed.poll();
                bed.sent();
            }
            Event::Wait(millis) => bed.clock.advance(Duration::from_millis(millis)),
            Event::Flush(first) => of(first).flush_macs(),
            Event::Static(first, n, port) => drop(of(first).add_static_mac(key(n), OfPort(port))),
            Event::Remove(first, n) => drop(of(first).remove_mac(key(n))),
            Event::RemoveFlow(n) => {
                let flow = bed.datapath.flows().nth(n).map(|flow| flow.id);
                flow.map(|flow| bed.switch.remove_datapath_flow(flow));
            }
            Event::Limit(limit) => set_macs(&bed.bridge, limit),
            Event::Purge => bed.switch.purge(),
            Event::Round => bed.switch.revalidate(),
            Event::PortVlan(port, tag) => {
                let vlan = PortVlan { mode: VlanMode::Access, tag, ..PortVlan::default() };
                bed.bridge.set_port_vlan(OfPort(port), vlan).unwrap();
            }
        }
        bed.switch.run(bed.clock.now());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 400, ..ProptestConfig::default() })]
        #[test]
        fn flows_are_what_a_translation_of_all_of_them_gives(
            events in prop::collection::vec(event(vec![100]), 1..25),
        ) {
            let (bed, other) = bed(100);
            for event in &events {
                happen(&bed, &other, event);
                check(&bed, true)?;
            }
        }

        #[test]
        fn flows_are_right_where_the_table_is_too_small(
            events in prop::collection::vec(event(vec![0, 1, 3, 5]), 1..25),
        ) {
            let (bed, other) = bed(3);
            for event in &events {
                happen(&bed, &other, event);
                check(&bed, false)?;
            }
        }
    }

    /// A bed of one bridge without VLANs, and what has been looked at since the last call: rounds, and flows because of
    /// an address.
    fn plain_bed() -> (Bed, impl FnMut(&Bed) -> (u64, u64)) {
        let bed = Bed::new(4);
        normal(&bed.bridge);
        bed.switch.revalidate();
        let mut last = (0, 0);
        let mut looked_at = move |bed: &Bed| {
            bed.switch.run(bed.clock.now());
            let now = (bed.switch.revalidation_stats().count, bed.switch.mac_revalidations());
            let since = (now.0 - last.0, now.1 - last.1);
            last = now;
            since
        };
        looked_at(&bed);
        (bed, looked_at)
    }

    #[test]
    fn addresses_that_move_without_end_leave_time_for_others() {
        let (bed, mut looked_at) = plain_bed();
        sent_to(&bed, 1, 1, 50);
        let seconds = Duration::from_secs;
        // What was marked before is looked at whenever it is found.
        for (took, rest) in [(Duration::from_millis(20), Duration::from_millis(60)), (seconds(3), seconds(3))] {
            looked_at(&bed);
            let mut state = bed.switch.revalidation.lock();
            (state.macs_ended, state.macs_took) = (bed.clock.now(), took);
            drop(state);
            bed.bridge.flush_macs();
            sent_to(&bed, 2, 1, 50);
            assert_eq!(looked_at(&bed).1, 0, "after {took:?}");
            bed.clock.advance(rest);
            assert!(looked_at(&bed).1 > 0, "after {took:?}");
        }
    }

    fn sent_to(bed: &Bed, port: u32, src: u8, dst: u8) -> Vec<u32> {
        bed.receive(OfPort(port), &frame(src, dst, None)).iter().map(|(port, _)| port.0).collect()
    }

    #[test]
    fn a_change_of_an_address_touches_its_own_flows_only() {
        let (bed, mut looked_at) = plain_bed();
        // Two stations, which know each other, and sixteen that send to one that nobody knows.
        assert_eq!(sent_to(&bed, 1, 1, 2), [2, 3, 4]);
        assert_eq!(sent_to(&bed, 2, 2, 1), [1]);
        assert_eq!(looked_at(&bed), (0, 1), "the first one flooded; no other is concerned by what was learnt");
        assert_eq!(sent_to(&bed, 1, 1, 2), [2]);
        (20..36).for_each(|n| drop(sent_to(&bed, 3, n, 99)));
        assert_eq!(looked_at(&bed), (0, 0), "what a translation has learnt itself");

        // 1. A move: of the flow from the address, of that to it, and of the one that has taught it.
        assert_eq!(sent_to(&bed, 4, 1, 50), [1, 2, 3]);
        assert_eq!(looked_at(&bed), (0, 3));
        assert_eq!(sent_to(&bed, 2, 2, 1), [4]);
        // 2. An address becomes known that sixteen flows were flooded for.
        assert_eq!(sent_to(&bed, 4, 99, 50), [1, 2, 3]);
        assert_eq!(looked_at(&bed), (0, 16));
        assert_eq!(sent_to(&bed, 3, 20, 99), [4]);
        // 3. One that nobody asks for.
        bed.bridge.add_static_mac(key(77), OfPort(3)).unwrap();
        assert!(bed.bridge.remove_mac(key(77)));
        assert_eq!(looked_at(&bed), (0, 0));
        // 4. All are forgotten. The packets after it teach again.
        bed.bridge.flush_macs();
        let flows = bed.datapath.flow_count() as u64;
        assert_eq!(looked_at(&bed), (0, flows));
        assert_eq!((bed.datapath.flow_count(), bed.switch.mac_dependents.len()), (0, 0));
        assert_eq!(sent_to(&bed, 2, 2, 1), [1, 3, 4]);
        // 5. Ageing is noticed by a round at its interval, and has none of its own.
        bed.clock.advance(Duration::from_secs(301));
        assert_eq!(looked_at(&bed), (1, 0), "the flow was idle for longer");
        assert!(bed.bridge.macs().is_empty());
    }

    #[test]
    fn a_barrier_brings_changes_of_addresses_into_force() {
        let (bed, _) = plain_bed();
        assert_eq!(sent_to(&bed, 1, 1, 2), [2, 3, 4]);
        bed.bridge.add_static_mac(key(2), OfPort(3)).unwrap();
        bed.bridge.barrier();
        assert_eq!(sent_to(&bed, 1, 1, 2), [3]);
    }

    #[test]
    fn the_index_forgets_flows_that_go() {
        let (bed, _) = plain_bed();
        let entries = || bed.switch.mac_dependents.len();
        let learn = || (20..30).for_each(|n| drop(sent_to(&bed, 1, n, 99)));
        learn();
        assert_eq!(entries(), 20, "two for each flow: its source and its destination");
        bed.switch.revalidate();
        assert_eq!(entries(), 20);
        bed.datapath.set_max_flows(4);
        (30..40).for_each(|n| drop(sent_to(&bed, 1, n, 99)));
        bed.switch.revalidate();
        assert_eq!((bed.datapath.flow_count(), entries()), (4, 8), "evicted");
        let flow = bed.datapath.flows().next().unwrap().id;
        bed.switch.remove_datapath_flow(flow);
        assert_eq!(entries(), 6, "removed by a command");
        bed.datapath.set_max_flows(1000);
        bed.clock.advance(Duration::from_secs(11));
        bed.switch.run(bed.clock.now());
        assert_eq!(entries(), 0, "idle");
        learn();
        bed.bridge.remove_port(OfPort(1)).unwrap();
        assert_eq!(entries(), 0, "removed with their port");
    }

    /// A port that sends from more addresses than there is room for keeps its flows, and those of others are not even
    /// looked at. The addresses that are in use keep their entries.
    #[test]
    fn more_addresses_than_the_table_holds_cost_nothing_once_they_have_flows() {
        let (bed, mut looked_at) = plain_bed();
        let mut config = bed.bridge.config();
        config.mac.max_entries = 8;
        bed.bridge.set_config(config);
        assert_eq!(sent_to(&bed, 1, 1, 2), [2, 3, 4]);
        assert_eq!(sent_to(&bed, 2, 2, 1), [1]);
        (20..40).for_each(|n| drop(sent_to(&bed, 3, n, 99)));
        looked_at(&bed);
        let evicted = bed.bridge.mac_stats().evicted;
        assert!(evicted >= 14);
        for _ in 0..20 {
            bed.clock.advance(Duration::from_secs(1));
            assert_eq!((sent_to(&bed, 1, 1, 2), sent_to(&bed, 2, 2, 1)), (vec![2], vec![1]));
            (20..40).for_each(|n| drop(sent_to(&bed, 3, n, 99)));
            assert_eq!(looked_at(&bed), (1, 0));
        }
        assert_eq!(bed.bridge.mac_stats().evicted, evicted);
        assert_eq!(bed.datapath.flow_count(), 22);
        // An entry becomes free: one of those without takes it.
        let known = bed.bridge.macs();
        let gone = known.iter().find(|entry| entry.port == OfPort(3)).unwrap().key;
        bed.bridge.remove_mac(gone);
        bed.clock.advance(Duration::from_secs(2));
        (20..40).filter(|&n| key(n) != gone).for_each(|n| drop(sent_to(&bed, 3, n, 99)));
        bed.switch.revalidate();
        assert_eq!(bed.bridge.macs().len(), 8);
    }

    /// Addresses change while flows that depend on them are being installed and looked at.
    #[test]
    fn changes_are_not_missed_while_flows_are_installed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (bed, _) = plain_bed();
        let done = AtomicBool::new(false);
        let (bridge, switch, clock) = (&bed.bridge, &bed.switch, &bed.clock);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0u32.. {
                    let n = (i % 8) as u8;
                    match i % 5 {
                        0 => drop(bridge.add_static_mac(key(n), OfPort(1 + i % 4))),
                        4 if i % 15 == 4 => bridge.flush_macs(),
                        _ => drop(bridge.remove_mac(key(n))),
                    }
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    switch.run(clock.now());
                }
            });
            for i in 0..4000u32 {
                bed.devices[i as usize % 4].inject(&frame((i % 7) as u8 + 1, (i / 7 % 8) as u8, None));
                if i % 3 == 0 {
                    bed.poll();
                }
            }
            bed.poll();
            done.store(true, Ordering::Relaxed);
        });
        bed.switch.run(bed.clock.now());
        assert!(bed.switch.mac_revalidations() > 0);
        check(&bed, true).unwrap();
    }
}
