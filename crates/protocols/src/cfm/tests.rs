//! Maintenance points in pairs; what they show is what OVS shows in its own tests (tests/cfm.at). Then the same over
//! links that lose, delay and duplicate frames.

use std::time::Duration;

use proptest::prelude::*;
use weir_time::Time;

use super::ccm::tests::any_ccm;
use super::ccm::{GROUP, GROUP_EXTENDED, MAID};
use super::point::MAX_REMOTES;
use super::show::{Columns, Show};
use super::*;
use crate::ethernet::Untagged;
use crate::network::{Faults as LinkFaults, Network};
use crate::options::Options;
use crate::registry::{Registry, Session};

fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

fn settings(mpid: i64, pairs: &[(&str, &str)]) -> Settings {
    let options: Options = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Settings::from_row(Some(mpid), &options, false).0.unwrap()
}

/// Options of extended mode with an interval.
fn extended<'a>(interval: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("cfm_extended", "true"), ("cfm_interval", interval)][..], more].concat()
}

fn point(now: Time, mpid: i64, pairs: &[(&str, &str)]) -> MaintenancePoint {
    let name = format!("p{}", mpid - 1);
    MaintenancePoint::new(now, &name, [2, 0, 0, 0, 0, mpid as u8], settings(mpid, pairs), 0, mpid as u64)
}

/// Points 1 and 2 with a link between them.
struct Pair {
    points: [Option<MaintenancePoint>; 2],
    rx_packets: [u64; 2],
    millis: u64,
}

impl Pair {
    fn new(options: &[(&str, &str)]) -> Pair {
        let points = [1, 2].map(|mpid| Some(point(at(0), mpid, options)));
        Pair { points, rx_packets: [0; 2], millis: 0 }
    }

    /// Lets time pass in steps of 10 ms; with data, an interface receives a packet in each of them.
    fn pass(&mut self, millis: u64, data: bool) {
        for _ in 0..millis / 10 {
            self.millis += 10;
            for near in [0, 1] {
                self.rx_packets[near] += u64::from(data);
                let Some(point) = &mut self.points[near] else { continue };
                let frame = point.run(at(self.millis), self.rx_packets[near]).frame;
                if let (Some(frame), Some(far)) = (frame, &mut self.points[1 - near]) {
                    self.rx_packets[1 - near] += 1;
                    far.receive(at(self.millis), &frame).unwrap();
                }
            }
        }
    }

    fn point(&mut self, n: usize) -> &mut MaintenancePoint {
        self.points[n].as_mut().unwrap()
    }

    /// `cfm/show` without what cfm.at leaves out.
    fn show(&mut self, n: usize) -> String {
        let now = at(self.millis);
        let left_out = ["next CCM tx:", "next fault check:", "recv since check:"];
        let text = Show(self.point(n), now).to_string();
        text.lines()
            .filter(|line| !left_out.iter().any(|word| line.contains(word)))
            .map(|line| format!("{line}\n"))
            .collect()
    }
}

/// `CFM_CHECK_EXTENDED` of cfm.at.
fn shown(n: u8, health: u8, interval: &str) -> String {
    format!(
        "---- p{n} ----\nMPID {}: extended\n  average health: {health}\n  opstate: up\n  remote_opstate: up\n  \
         interval: {interval}\nRemote MPID {}\n  opstate: up\n",
        n + 1,
        2 - n
    )
}

/// `CFM_CHECK_EXTENDED_FAULT` of cfm.at, with fault `recv`.
fn shown_silent(interval: &str) -> String {
    format!(
        "---- p0 ----\nMPID 1: extended\n  fault: recv\n  average health: 0\n  opstate: up\n  remote_opstate: up\n  \
         interval: {interval}\n"
    )
}

fn columns(fault: &str, flap_count: u64, health: Option<u8>, remote_mpids: &[u64]) -> Columns {
    let fault_status = if fault.is_empty() { vec![] } else { vec![fault.to_string()] };
    let remote_opstate = Some("up");
    Columns {
        fault: !fault.is_empty(),
        fault_status,
        flap_count,
        health,
        remote_mpids: remote_mpids.into(),
        remote_opstate,
    }
}

#[test]
fn the_columns_follow_who_is_heard() {
    let options = extended("300", &[]);
    let mut pair = Pair::new(&options);
    pair.points[1] = None;
    // Nothing is wrong before the first fault interval is over.
    pair.pass(500, false);
    assert_eq!(Columns::of(pair.point(0)), columns("", 0, None, &[]));
    pair.pass(1_500, false);
    assert_eq!(Columns::of(pair.point(0)), columns("recv", 1, None, &[]));
    pair.points[1] = Some(point(at(pair.millis), 2, &options));
    pair.pass(1_500, false);
    assert_eq!(Columns::of(pair.point(0)), columns("", 2, None, &[2]));
    assert_eq!(Columns::of(pair.point(1)).remote_mpids, [1]);
    pair.points[1] = None;
    pair.pass(2_100, false);
    assert_eq!(Columns::of(pair.point(0)), columns("recv", 3, None, &[]));
}

#[test]
fn two_points_are_shown_as_by_ovs() {
    let mut pair = Pair::new(&extended("100", &[]));
    pair.pass(10_100, false);
    assert_eq!((pair.show(0), pair.show(1)), (shown(0, 100, "100ms"), shown(1, 100, "100ms")));
    let text = Show(pair.point(0), at(10_100)).to_string();
    assert!(text.contains("\n  next CCM tx: ") && text.contains("\n  next fault check: "));
    assert!(text.contains("\n  recv since check: "));
    pair.points[1] = None;
    pair.pass(1_100, false);
    assert_eq!(pair.point(0).flap_count(), 1);
    pair.points[1] = Some(point(at(pair.millis), 2, &extended("100", &[])));
    pair.pass(1_100, false);
    assert_eq!(pair.point(0).flap_count(), 2);
}

#[test]
fn in_demand_mode_data_count_for_as_long_as_a_message_came_lately() {
    let mut pair = Pair::new(&extended("300", &[("cfm_demand", "true")]));
    pair.pass(20_100, false);
    assert_eq!((pair.show(0), pair.show(1)), (shown(0, 100, "300ms"), shown(1, 100, "300ms")));
    pair.points[1] = None;
    pair.pass(20_100, true);
    assert_eq!(pair.show(0), shown(0, 0, "300ms"));
    pair.pass(20_100, true);
    assert_eq!(pair.show(0), shown_silent("300ms"));
    pair.points[1] = Some(point(at(pair.millis), 2, &extended("300", &[("cfm_demand", "true")])));
    pair.pass(25_100, false);
    assert_eq!(pair.show(0), shown(0, 100, "300ms"));
    // Without data there is a fault at once.
    pair.points[1] = None;
    pair.pass(4_000, false);
    assert!(pair.show(0).contains("  fault: recv\n"));
}

#[test]
fn demand_mode_may_be_turned_on_and_the_interval_changed() {
    let mut pair = Pair::new(&extended("300", &[]));
    pair.pass(10_100, false);
    let (now, rx_packets) = (at(pair.millis), pair.rx_packets[0]);
    pair.point(0).configure(now, rx_packets, settings(1, &extended("300", &[("cfm_demand", "true")])));
    pair.pass(10_100, false);
    assert_eq!((pair.show(0), pair.show(1)), (shown(0, 100, "300ms"), shown(1, 100, "300ms")));
    for (n, mpid) in [(0, 1), (1, 2)] {
        let (now, rx_packets) = (at(pair.millis), pair.rx_packets[n]);
        pair.point(n).configure(now, rx_packets, settings(mpid, &extended("50", &[])));
    }
    pair.pass(3_000, false);
    assert_eq!((pair.show(0), pair.point(0).flap_count()), (shown(0, 100, "50ms"), 0));
}

#[test]
fn an_operator_may_say_that_there_is_a_fault() {
    let mut pair = Pair::new(&extended("100", &[]));
    pair.pass(10_100, false);
    pair.point(1).set_fault(Some(true));
    assert!(pair.point(1).run(at(10_100), 0).status_changed);
    assert!(pair.show(1).starts_with("---- p1 ----\nMPID 2: extended fault_override\n  fault: override\n"));
    assert_eq!(Columns::of(pair.point(1)).fault_status, ["override"]);
    pair.point(1).set_fault(Some(false));
    pair.points[0] = None;
    pair.pass(1_000, false);
    assert!(!Columns::of(pair.point(1)).fault);
    pair.point(1).set_fault(None);
    assert_eq!(Columns::of(pair.point(1)).fault_status, ["recv"]);
}

#[test]
fn the_operational_state_is_told() {
    let mut pair = Pair::new(&extended("100", &[]));
    let (now, down) = (at(0), settings(1, &extended("100", &[("cfm_opstate", "down")])));
    pair.point(0).configure(now, 0, down);
    pair.pass(2_000, false);
    assert_eq!((pair.point(1).remote_opstate(), pair.point(0).remote_opstate()), (Some(false), Some(true)));
    assert!(pair.show(0).contains("\n  opstate: down\n  remote_opstate: up\n"));
    assert!(pair.show(1).contains("\n  opstate: up\n  remote_opstate: down\n"));
    assert!(pair.point(1).faults().is_empty());
    assert_eq!(point(now, 1, &[]).remote_opstate(), None);
}

#[test]
fn standard_messages_have_standard_fields() {
    let frame = |pairs: &[(&str, &str)]| point(at(0), 77, pairs).run(at(0), 0).frame.unwrap();
    let bytes = frame(&[("cfm_interval", "150")]);
    let ccm = Ccm::new_checked(&bytes).unwrap();
    let expected = Ccm {
        rdi: false,
        interval: 3,
        sequence: 1,
        mpid: 77,
        maid: MAID,
        interval_ms: 0,
        extended_mpid: 0,
        opdown: false,
    };
    assert_eq!((ccm, &bytes[..6]), (expected, &GROUP[..]));
    let bytes = frame(&[("cfm_interval", "150"), ("cfm_extended", "true"), ("cfm_opstate", "down")]);
    let ccm = Ccm::new_checked(&bytes).unwrap();
    assert_eq!((ccm.interval, ccm.interval_ms, ccm.extended_mpid, ccm.opdown), (0, 150, 77, true));
    assert_eq!((&bytes[..6], (1..=8191).contains(&ccm.mpid)), (&GROUP_EXTENDED[..], true));
    let tci = |pairs: &[(&str, &str)]| Untagged::new_checked(&frame(pairs)).unwrap().tci;
    assert_eq!([tci(&[]), tci(&[("cfm_ccm_vlan", "5")]), tci(&[("cfm_ccm_pcp", "3")])], [None, Some(5), Some(0x6000)]);
    assert!(tci(&[("cfm_ccm_vlan", "random"), ("cfm_ccm_pcp", "7")]).is_some_and(|tci| tci > 0xe000));
}

#[test]
fn what_messages_show_is_a_fault_for_one_interval() {
    let good = Ccm {
        rdi: false,
        interval: 4,
        sequence: 1,
        mpid: 2,
        maid: MAID,
        interval_ms: 0,
        extended_mpid: 0,
        opdown: false,
    };
    let faults = |ccm: Ccm| {
        let mut point = point(at(0), 1, &[]);
        point.receive(at(1), &good.emit(GROUP, [2; 6], 0)).unwrap();
        let received = point.receive(at(2), &ccm.emit(GROUP, [2; 6], 0)).unwrap();
        point.run(at(3_500), 0);
        let first = point.faults().to_string();
        point.receive(at(3_600), &good.emit(GROUP, [2; 6], 0)).unwrap();
        point.run(at(7_000), 0);
        assert_eq!(point.faults(), Faults::empty());
        (first, received.other_interval, received.out_of_sequence)
    };
    let next = Ccm { sequence: 2, ..good };
    assert_eq!(faults(next), ("".into(), false, false));
    assert_eq!(faults(Ccm { rdi: true, ..next }), ("rdi".into(), false, false));
    assert_eq!(faults(Ccm { maid: [1; 48], ..next }), ("maid".into(), false, false));
    assert_eq!(faults(Ccm { mpid: 1, rdi: true, ..good }), ("rdi loopback".into(), false, false));
    assert_eq!(faults(Ccm { interval: 3, sequence: 9, ..good }), ("".into(), true, true));
    // Of another kind: no message, no fault.
    let mut point = point(at(0), 1, &[]);
    assert!(point.receive(at(1), &[0; 60]).is_err());
    assert!(point.settings().accepts(GROUP, 5) && !point.settings().accepts(GROUP_EXTENDED, 0));
}

#[test]
fn more_points_than_are_known_are_an_overflow() {
    let mut crowded = point(at(0), 9_000_000_000, &extended("1000", &[]));
    for mpid in 1..=10_000u64 {
        let ccm = Ccm {
            rdi: false,
            interval: 4,
            sequence: 1,
            mpid: 1,
            maid: MAID,
            interval_ms: 0,
            extended_mpid: mpid,
            opdown: false,
        };
        let received = crowded.receive(at(1), &ccm.emit(GROUP_EXTENDED, [2; 6], 0)).unwrap();
        assert_eq!(received.faults.contains(Faults::OVERFLOW), mpid > MAX_REMOTES as u64);
    }
    crowded.run(at(3_500), 0);
    assert_eq!(
        (crowded.faults(), crowded.remote_mpids().len(), crowded.health()),
        (Faults::OVERFLOW, MAX_REMOTES, None)
    );
    crowded.run(at(7_000), 0);
    assert_eq!((crowded.faults(), crowded.remote_mpids().len()), (Faults::RECV, 0));
}

#[test]
fn a_thousand_points_are_served_by_what_is_due() {
    let mut registry = Registry::new();
    for n in 0..1000u32 {
        registry.insert(n, point(at(u64::from(n)), 1 + i64::from(n % 2), &[]));
    }
    let (mut runs, mut sent) = (0u64, 0u64);
    for millis in 0..20_000 {
        let mut frames = Vec::new();
        registry.run(at(millis), |n, point| {
            runs += 1;
            frames.extend(point.run(at(millis), 0).frame.map(|frame| (n ^ 1, frame)));
        });
        sent += frames.len() as u64;
        for (to, frame) in frames {
            registry.update(to, |point| point.receive(at(millis), &frame)).unwrap().unwrap();
        }
    }
    assert!(registry.iter().all(|(_, point)| point.faults().is_empty() && point.remote_mpids().len() == 1));
    assert!(sent >= 19_000 && runs <= 2 * sent, "{runs} runs for {sent} frames");
}

struct World {
    points: [MaintenancePoint; 2],
    network: Network<usize>,
    now: Time,
}

impl World {
    fn run(&mut self, end: Time, faults: &LinkFaults) {
        loop {
            let wakeups = self.points.iter().filter_map(Session::next_wakeup);
            let next = wakeups.chain(self.network.next_arrival()).min().unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            while let Some((to, frame)) = self.network.arrive(self.now) {
                self.points[to].receive(self.now, &frame).unwrap();
            }
            for near in [0, 1] {
                if let Some(frame) = self.points[near].run(self.now, 0).frame {
                    self.network.send(self.now, 1 - near, &frame, faults);
                }
            }
        }
    }

    fn are_faulty(&self) -> [bool; 2] {
        [0, 1].map(|n| !self.points[n].faults().is_empty())
    }
}

fn world(seed: u64, millis: u64) -> World {
    let interval = millis.to_string();
    let points = [1, 2].map(|mpid| point(at(mpid as u64), mpid, &extended(&interval, &[])));
    World { points, network: Network::new(seed), now: at(0) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_are_well_when_frames_pass_and_faulty_after_they_stop(seed: u64, millis in 10u64..2_000, loss in 0.0..0.95) {
        let mut world = world(seed, millis);
        let delay = Duration::from_millis(3 * millis);
        world.run(at(100 * millis), &LinkFaults { loss, delay, duplicate: 0.3 });
        world.run(at(130 * millis), &LinkFaults::NONE);
        prop_assert_eq!(world.are_faulty(), [false; 2]);
        // Two fault intervals, and the rounding of the clock that a check is late by.
        world.run(at(137 * millis + 2), &LinkFaults::ALL_LOST);
        prop_assert_eq!(world.are_faulty(), [true; 2]);
    }

    /// Two messages in a row may be lost, and others may come twice and late.
    #[test]
    fn what_the_protocol_stands_makes_no_flap(seed: u64, millis in 10u64..2_000) {
        let mut world = world(seed, millis);
        world.run(at(100 * millis), &LinkFaults::NONE);
        for _ in 0..20 {
            world.run(world.now + Duration::from_millis(2 * millis), &LinkFaults::ALL_LOST);
            let delay = Duration::from_millis(millis / 3);
            world.run(world.now + Duration::from_millis(5 * millis), &LinkFaults { loss: 0.0, delay, duplicate: 0.5 });
        }
        let flaps = [0, 1].map(|n| world.points[n].flap_count());
        prop_assert_eq!((world.are_faulty(), flaps), ([false; 2], [0; 2]));
    }

    /// Hostile messages cost neither a panic nor memory, and make a point send no more than it would.
    #[test]
    fn hostile_messages_are_bounded(messages in prop::collection::vec((any_ccm(), 0u64..200), 0..400)) {
        let mut point = point(at(0), 1, &extended("100", &[("cfm_demand", "true")]));
        let (mut millis, mut sent) = (0, 0);
        for (ccm, pause) in messages {
            millis += pause;
            point.receive(at(millis), &ccm.emit(GROUP_EXTENDED, [2; 6], 0)).unwrap();
            sent += u64::from(point.run(at(millis), millis).frame.is_some());
            prop_assert!(point.next_wakeup().is_some_and(|wakeup| wakeup > at(millis)));
            prop_assert!(sent <= millis / 100 + 1);
        }
        prop_assert!(point.remote_mpids().len() <= MAX_REMOTES);
    }
}
