//! Verification in production: some packets are judged twice, by the caches and by the tables.
//!
//! Workers copy one of very many packets that have a datapath flow ([`datapath::verify`]). Whoever calls [`Switch::verify`], which is a thread of
//! low priority, has the tables walked anew for each of them, and compares.
//!
//! The check is a translation of the packet's own key, with rules found by looking at each one (`LookUp::Scan`). It shares nothing with what is
//! checked: not the header cache, the key cache, the megaflows or their masks (it never asks for a mask), not the translations that are used
//! again (`slowpath::ways`), nor the classifier of the tables. It shares with it how actions are executed, so a wrong action is not found:
//! that is what the reference interpreter of the tests is for, which knows a part of the actions, panics at others, and has state of its own; in
//! a switch that runs it would have to be told of ports, tunnels, learnt addresses and connections, and would be wrong whenever it is a step
//! behind. What goes wrong in production and nowhere else is the caching: a mask too wide, an entry that outlives its flow, a change that did not
//! find a flow. That depends on the traffic and on the order of changes, and is what is checked here.
//!
//! A packet is compared in three ways:
//!
//! 1. The flow that was found matches the packet, whose key was extracted anew.
//! 2. What the cache said is to be done is what the flow says.
//! 3. The flow's actions are those that the tables give to this packet.
//!
//! Tables and flows change while a sample waits, and a flow follows the tables with a delay that is allowed. So the flow as it is *now* is
//! compared with the tables as they are *now*. If they differ, they are compared again in a later round, when the revalidators have brought the
//! changes so far into force: a flow that differs twice, the second time from tables whose changes were all in force before the flow was read,
//! is wrong. The check does not bring changes into force itself: whoever waits for them would wait for a thread of low priority. Everything else
//! cannot be compared, and is counted apart, by its cause.
//!
//! Actions differ in the bits that they write and that do not change: see [`effect`].
//!
//! Meters, groups that select, and connections need no exception: what is compared is actions. A meter is one; a choice by a hash depends on
//! bits that the flow matches; the state of a connection came with the packet as metadata.
//!
//! What a check costs is bounded: the rules that are looked at ([`MOST_SCANNED`]), how many samples wait, how many the caller takes at a time,
//! how many are compared again and how often ([`MOST_DOUBTS`], [`MOST_COMPARED`]). The lock of the tables is held for reading, for a translation.
//!
//! - [`report`]: what was found, and what is remembered between rounds
//! - `effect`: what actions do to one packet
//! - `describe`: a disagreement in words

mod describe;
mod effect;
pub mod report;

use std::sync::atomic::Ordering;

use datapath::verify::{Decided, VerifySample};
use datapath::{Datapath, FlowDump};

use crate::model::forwarding::Forwarding;
use crate::slowpath::record::FlowRecord;
use crate::slowpath::upcall::slow_path;
use crate::switch::{DatapathInput, Switch};
use crate::xlate::{LookUp, Translation, XlateError};
use describe::describe;
use effect::do_the_same;
use report::{Disagreement, Doubt, NotComparable, VerifyCounts, VerifyReport, Wrong};

/// How many rules are looked at one by one for a packet: as many as take some hundred microseconds, since a change of the tables may wait for
/// that. Where tables have more, their classifiers find the rule: they are independent of the datapath, too.
const MOST_SCANNED: usize = 4096;

/// How many samples wait to be compared again. More cannot be compared.
const MOST_DOUBTS: usize = 64;

/// How often a sample is compared at most, while changes are not in force.
const MOST_COMPARED: usize = 20;

/// How a comparison ended.
enum Compared {
    Equal,
    Not(NotComparable),
    /// With the generation of the tables.
    Differs(Box<Disagreement>, u64),
}

/// What is certain of a sample.
enum Checked {
    Equal,
    Not(NotComparable),
    Differs(Box<Disagreement>),
    /// Nothing yet.
    Doubtful,
}

impl Switch {
    /// Checks at most so many packets that workers have sampled, and again what was doubtful in the last call. Returns how many there were.
    /// Removes flows that are wrong. Not to be called in an upcall.
    pub fn verify(&self, most: usize) -> usize {
        let verification = &self.verification;
        let (Some(datapath), Some(reader)) = (self.datapath.get(), verification.reader.get()) else { return 0 };
        let doubts = std::mem::take(&mut *verification.doubts.lock());
        let new = reader.take(most).into_iter().map(|sample| Doubt { sample, compared: 0 });
        let mut count = 0;
        for Doubt { sample, compared } in doubts.into_iter().chain(new) {
            count += 1;
            match self.check(datapath, &sample, compared) {
                Checked::Equal => verification.note_equal(),
                Checked::Not(cause) => verification.note(cause),
                Checked::Differs(found) => {
                    tracing::error!("{found}");
                    verification.note_disagreement(*found);
                    self.credit_last(datapath.remove_all(&[sample.flow]));
                }
                Checked::Doubtful => {
                    let mut doubts = verification.doubts.lock();
                    if compared + 1 < MOST_COMPARED && doubts.len() < MOST_DOUBTS {
                        doubts.push_back(Doubt { sample, compared: compared + 1 });
                    } else {
                        verification.note(NotComparable::Tables);
                    }
                }
            }
        }
        count
    }

    /// How many packets verification has checked so far, by outcome.
    pub fn verify_counts(&self) -> VerifyCounts {
        self.verification.counts()
    }

    /// What verification has found so far.
    pub fn verify_report(&self) -> VerifyReport {
        self.verification.report()
    }

    /// Checks a sample that was compared some times before, each time with a difference.
    fn check(&self, datapath: &Datapath, sample: &VerifySample, compared: usize) -> Checked {
        // Flows that are read from now on are up to date with the tables of this generation.
        let in_force = self.in_force.load(Ordering::SeqCst);
        match self.compare(datapath, sample, compared > 0) {
            // What differed before has been brought up to date since.
            Compared::Equal if compared > 0 => Checked::Not(NotComparable::Tables),
            Compared::Equal => Checked::Equal,
            Compared::Not(cause) => Checked::Not(cause),
            Compared::Differs(found, generation)
                if found.wrong != Wrong::Actions || compared > 0 && generation <= in_force =>
            {
                Checked::Differs(found)
            }
            Compared::Differs(..) => Checked::Doubtful,
        }
    }

    /// Compares a sample, maybe again: what the cache said is known then to be what the flow said.
    fn compare(&self, datapath: &Datapath, sample: &VerifySample, again: bool) -> Compared {
        // Before the tables are locked: the lock of the flows comes first.
        let Some(flow) = datapath.flow(sample.flow) else { return Compared::Not(NotComparable::FlowGone) };
        let forwarding = self.forwarding.read();
        let differs = |wrong, expected: Option<&Translation>| {
            let found = describe(&forwarding, wrong, sample, &flow, expected);
            Compared::Differs(Box::new(found), forwarding.generation())
        };
        // 1. The flow is the packet's.
        if !sample.key.matches(&flow.key, &flow.mask) {
            return differs(Wrong::Match, None);
        }
        // 2. The cache is the flow's.
        let now = self.clock.now();
        if !again && sample.decided != Decided::of(&flow.actions) {
            return match self.verification.is_cache_wrong(sample, &flow, now) {
                true => differs(Wrong::Cache, None),
                false => Compared::Not(NotComparable::Modified),
            };
        }
        // 3. The flow is the tables'.
        let look_up = LookUp::scan(MOST_SCANNED);
        let input = DatapathInput { interners: &self.interners, look_up, learning: None, now, bytes: None };
        let Some(expected) = self.translate_as(&forwarding, &sample.key, &input) else {
            return Compared::Not(NotComparable::Context);
        };
        if matches!(expected.error, Some(XlateError::NoBridge | XlateError::NoContext)) {
            return Compared::Not(NotComparable::Context);
        }
        if expected.record.volatile {
            return Compared::Not(NotComparable::Learns);
        }
        let slow = expected.slow.then(|| [slow_path(&forwarding, &flow.key)]);
        let actions = slow.as_ref().map_or(&expected.actions[..], |punt| &punt[..]);
        if do_the_same(actions, &flow.actions, &sample.key) {
            return Compared::Equal;
        }
        if expected.is_ambiguous {
            return Compared::Not(NotComparable::Ambiguous);
        }
        // Addresses move, and neighbours are found, while the tables are locked for reading.
        match moved(&flow, &forwarding) {
            Some(cause) => Compared::Not(cause),
            None => differs(Wrong::Actions, Some(&expected)),
        }
    }
}

/// Why a flow is out of date though the tables have not changed, if it is: it will be brought up to date.
fn moved(flow: &FlowDump, forwarding: &Forwarding) -> Option<NotComparable> {
    // What an operator has added has no record, and stays as it is.
    let record = flow.tag.downcast_ref::<FlowRecord>()?;
    if record.has_stale_hop() {
        return Some(NotComparable::Neighbours);
    }
    record.macs.is_stale(forwarding).then_some(NotComparable::Macs)
}

#[cfg(test)]
mod tests {
    use datapath::{Action as DpAction, FlowSpec};
    use openflow::{Action, Match, OfPort};
    use packet::Field;
    use packet::wire::build;

    use super::*;
    use crate::reference::tests::Bed;

    fn udp(port: u16) -> Vec<u8> {
        let header = build::Ipv4 { proto: 17, ..build::Ipv4::default() };
        build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, port, b"")))
    }

    /// A bed all of whose packets are verified. UDP to port 80 goes to port 2, everything else to port 3.
    fn bed() -> Bed {
        let bed = Bed::new(4);
        bed.datapath.set_verify_sampling(1);
        bed.add_flow(0, 1, Match::any(), vec![Action::output(OfPort(3))]);
        let mut http = Match::any();
        for (field, value) in [(Field::DlType, 0x0800), (Field::NwProto, 17), (Field::UdpDst, 80)] {
            http.set(field, value);
        }
        bed.add_flow(0, 2, http, vec![Action::output(OfPort(2))]);
        bed
    }

    fn ports(bed: &Bed, frame: &[u8]) -> Vec<u32> {
        bed.receive(OfPort(1), frame).iter().map(|(port, _)| port.0).collect()
    }

    /// What was found since the last call: equal, disagreements.
    fn found(bed: &Bed) -> (u64, u64) {
        let before = bed.switch.verify_counts();
        while bed.switch.verify(8) > 0 {
            bed.bridge.barrier();
        }
        let after = bed.switch.verify_counts();
        (after.equal - before.equal, after.disagreements - before.disagreements)
    }

    #[test]
    fn what_has_a_flow_is_verified_and_equal() {
        let bed = bed();
        assert_eq!(ports(&bed, &udp(80)), [2]);
        assert_eq!((found(&bed), bed.switch.verify_counts().checked()), ((0, 0), 0), "the tables decided");
        for _ in 0..3 {
            assert_eq!((ports(&bed, &udp(80)), ports(&bed, &udp(81))), (vec![2], vec![3]));
        }
        assert_eq!(found(&bed), (5, 0));
        bed.datapath.set_verify_sampling(0);
        assert_eq!((ports(&bed, &udp(80)), found(&bed)), (vec![2], (0, 0)));
        assert_eq!(bed.datapath.verify_sampling(), 0);
    }

    #[test]
    fn wrong_actions_are_found_and_the_flow_is_removed() {
        let bed = bed();
        ports(&bed, &udp(80));
        let id = bed.datapath.flows().next().unwrap().id;
        let to_four = bed.datapath.ports().into_iter().find(|(_, port)| port.name() == "p4").unwrap().0;
        bed.datapath.modify(id, vec![DpAction::Output(to_four)]).unwrap();
        assert_eq!(ports(&bed, &udp(80)), [4], "the fault");
        assert_eq!(found(&bed), (0, 1));
        assert!(bed.datapath.flow(id).is_none());
        let report = bed.switch.verify_report();
        let shown = report.latest.back().unwrap();
        assert_eq!(shown.wrong, Wrong::Actions);
        assert_eq!(shown.actions, to_four.0.to_string());
        let (actions, rules) = shown.expected.as_ref().unwrap();
        assert!(rules.contains("br0 table=0 priority=2"), "{rules}");
        assert_ne!(*actions, shown.actions);
        assert!(shown.place.contains("port 1 of br0") && shown.packet.contains("dst=80"), "{shown}");
        assert!(shown.frame.starts_with("020202020202"), "{shown}");
        // It is right from then on.
        assert_eq!((ports(&bed, &udp(80)), ports(&bed, &udp(80))), (vec![2], vec![2]));
        assert_eq!(found(&bed), (1, 0));
    }

    /// As if a translation had not said what it had looked at.
    #[test]
    fn a_mask_too_wide_is_found() {
        let bed = bed();
        ports(&bed, &udp(81));
        let flow = bed.datapath.flows().next().unwrap();
        bed.switch.credit_last(bed.datapath.remove_all(&[flow.id]));
        let mut mask = Box::new((*flow.mask).clone());
        mask.clear(Field::UdpDst);
        let wide = FlowSpec { key: flow.key.clone(), mask, actions: flow.actions.to_vec(), tag: flow.tag.clone() };
        bed.datapath.install(wide).unwrap();
        assert_eq!((ports(&bed, &udp(81)), found(&bed)), (vec![3], (1, 0)), "right for this packet");
        assert_eq!(ports(&bed, &udp(80)), [3], "the fault");
        assert_eq!((found(&bed), bed.datapath.flow_count()), ((0, 1), 0));
    }

    #[test]
    fn what_changes_meanwhile_is_not_a_disagreement() {
        let bed = bed();
        ports(&bed, &udp(80));
        ports(&bed, &udp(80));
        // The flow has gone when its sample is looked at.
        bed.switch.purge();
        assert_eq!(found(&bed), (0, 0));
        let count = |cause| bed.switch.verify_counts().not_comparable(cause);
        assert_eq!(count(NotComparable::FlowGone), 1);
        // The tables have changed, and the flow has not followed.
        ports(&bed, &udp(81));
        ports(&bed, &udp(81));
        bed.add_flow(0, 9, Match::any(), vec![Action::output(OfPort(4))]);
        assert_eq!((found(&bed), count(NotComparable::Tables)), ((0, 0), 1));
        assert_eq!((ports(&bed, &udp(81)), found(&bed)), (vec![4], (1, 0)));
        // It follows before its sample is looked at.
        bed.add_flow(0, 10, Match::any(), vec![Action::output(OfPort(2))]);
        assert_eq!(ports(&bed, &udp(81)), [4]);
        bed.bridge.barrier();
        assert_eq!((found(&bed), count(NotComparable::Modified)), ((0, 0), 1));
        assert_eq!((ports(&bed, &udp(81)), found(&bed)), (vec![2], (1, 0)));
        // It never follows: nothing is known after some time, and what waits is bounded.
        (0..3 * MOST_DOUBTS).for_each(|_| drop(ports(&bed, &udp(81))));
        bed.add_flow(0, 11, Match::any(), vec![Action::output(OfPort(3))]);
        assert_eq!(bed.switch.verify(4 * MOST_DOUBTS), 3 * MOST_DOUBTS);
        assert_eq!(bed.switch.verification.doubts.lock().len(), MOST_DOUBTS);
        let rounds = (0..).take_while(|_| bed.switch.verify(1) > 0).count();
        assert_eq!(rounds, MOST_COMPARED - 1);
        assert_eq!(count(NotComparable::Tables), 1 + 3 * MOST_DOUBTS as u64);
    }
}
