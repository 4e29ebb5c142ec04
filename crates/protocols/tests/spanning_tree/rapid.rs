//! One bridge that speaks RSTP, and what neighbours may do to it.

use std::time::Duration;

use packet::Time;
use protocols::rstp::{Bridge, Link, Output, PointToPoint, PortSettings, Role, Settings, State};
use protocols::stp::bpdu::{Bpdu, Config, RapidFlags, WireRole, WireTimes};
use protocols::stp::identifier::{BridgeId, PortId, Priority};

use crate::network::MAC;

/// A bridge with ports whose links are up, and its time.
struct Alone {
    bridge: Bridge,
    now: Time,
}

impl Alone {
    fn new(settings: Settings, ports: u16) -> Alone {
        let mut bridge = Bridge::new(settings, Time(0));
        for number in 1..=ports {
            assert_eq!(bridge.add_port(PortSettings::new(&format!("p{number}"), MAC)), Ok(number));
            bridge.set_link(number, Link::up(1000));
        }
        let mut alone = Alone { bridge, now: Time(0) };
        alone.wait(0);
        alone
    }

    /// Lets time pass, second by second.
    fn wait(&mut self, seconds: u64) -> Output<State> {
        let mut output = Output::default();
        self.bridge.run(self.now, &mut output);
        for _ in 0..seconds {
            self.now = self.now + Duration::from_secs(1);
            self.bridge.run(self.now, &mut output);
        }
        output
    }

    fn hear(&mut self, port: u16, bpdu: Bpdu) -> Output<State> {
        self.bridge.receive(port, &bpdu.emit([4; 6]));
        self.wait(0)
    }

    fn is(&self, port: u16) -> (Role, State) {
        let status = self.bridge.port_status(port).unwrap();
        (status.role, status.state)
    }
}

fn config(bridge: u64, cost: u32) -> Config {
    Config {
        priority: Priority { root: BridgeId(1), cost, bridge: BridgeId(bridge), port: PortId(0x8001) },
        times: WireTimes::from_seconds(0, 20, 2, 15),
        topology_change: false,
        acknowledgement: false,
    }
}

const FLAGS: RapidFlags =
    RapidFlags { role: WireRole::Designated, proposal: false, agreement: false, learning: false, forwarding: false };

fn frames_of(output: &Output<State>, port: u16) -> Vec<Bpdu> {
    let frames = output.frames.iter().filter(|(number, _)| *number == port);
    frames.map(|(_, frame)| Bpdu::new_checked(frame).unwrap()).collect()
}

#[test]
fn a_port_without_a_neighbour_is_an_edge_until_it_hears_one() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1);
    alone.wait(2);
    assert_eq!(alone.is(1), (Role::Designated, State::Discarding));
    let output = alone.wait(1);
    assert_eq!(alone.is(1), (Role::Designated, State::Forwarding));
    assert!(alone.bridge.port_status(1).unwrap().edge && output.changes.len() == 1);
    alone.hear(1, Bpdu::Rapid(config(5, 7), FLAGS));
    assert!(!alone.bridge.port_status(1).unwrap().edge);
    assert_eq!(alone.is(1).0, Role::Root);
}

#[test]
fn a_proposal_is_answered_at_once_when_others_have_stopped() {
    let mut alone = Alone::new(Settings::new([2; 6]), 2);
    // A neighbour that speaks STP, and never agrees.
    alone.wait(4);
    let worse = Priority { root: BridgeId(u64::MAX), ..config(u64::MAX, 0).priority };
    alone.hear(2, Bpdu::Config(Config { priority: worse, ..config(0, 0) }));
    alone.wait(60);
    assert_eq!(alone.is(2), (Role::Designated, State::Forwarding));
    let output = alone.hear(1, Bpdu::Rapid(config(5, 0), RapidFlags { proposal: true, ..FLAGS }));
    assert_eq!((alone.is(1), alone.is(2)), ((Role::Root, State::Forwarding), (Role::Designated, State::Discarding)));
    // What stops forwarding comes first.
    assert_eq!(output.changes[0].port, 2);
    let [Bpdu::Rapid(said, flags)] = frames_of(&output, 1)[..] else { panic!("no answer") };
    assert!(flags.agreement && flags.role == WireRole::Root);
    assert_eq!((said.priority.root, said.priority.cost), (BridgeId(1), 20_000));
}

#[test]
fn a_neighbour_that_does_not_hear_us_is_not_forwarded_to() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1);
    alone.wait(60);
    assert_eq!(alone.is(1), (Role::Designated, State::Forwarding));
    let worse = Config {
        priority: Priority { root: BridgeId(u64::MAX), cost: 0, bridge: BridgeId(u64::MAX), port: PortId(1) },
        ..config(0, 0)
    };
    alone.hear(1, Bpdu::Rapid(worse, RapidFlags { learning: true, ..FLAGS }));
    assert_eq!(alone.is(1), (Role::Designated, State::Discarding));
}

#[test]
fn a_neighbour_that_speaks_stp_is_spoken_stp_with_until_asked_again() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1);
    alone.wait(4);
    let heard = Bpdu::Config(Config {
        priority: Priority { root: BridgeId(u64::MAX), ..config(u64::MAX, 0).priority },
        ..config(0, 0)
    });
    alone.hear(1, heard);
    let output = alone.wait(4);
    assert!(frames_of(&output, 1).iter().all(|bpdu| matches!(bpdu, Bpdu::Config(_))));
    assert!(!alone.bridge.port_status(1).unwrap().rapid);
    let mut port = PortSettings::new("p1", MAC);
    port.mcheck = true;
    alone.bridge.configure_port(1, port);
    let output = alone.wait(4);
    assert!(matches!(frames_of(&output, 1)[..], [.., Bpdu::Rapid(..)]));
    assert!(alone.bridge.port_status(1).unwrap().rapid);
}

#[test]
fn time_in_which_nobody_listened_does_not_count() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1);
    alone.hear(1, Bpdu::Rapid(config(5, 0), FLAGS));
    alone.now = alone.now + Duration::from_secs(3600);
    alone.wait(0);
    assert_eq!(alone.is(1).0, Role::Root);
    alone.wait(2);
    assert_eq!(alone.is(1).0, Role::Root);
    alone.wait(1);
    assert_eq!(alone.is(1).0, Role::Designated);
}

#[test]
fn what_is_no_bpdu_or_too_old_is_counted() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1);
    alone.bridge.receive(1, &[0; 60]);
    let old = Config { times: WireTimes::from_seconds(20, 20, 2, 15), ..config(5, 0) };
    alone.hear(1, Bpdu::Config(old));
    let own = Priority { root: BridgeId(1), cost: 0, bridge: alone.bridge.status().bridge_id, port: PortId(0x8001) };
    alone.hear(1, Bpdu::Rapid(Config { priority: own, ..config(0, 0) }, FLAGS));
    let counters = alone.bridge.port_status(1).unwrap().counters;
    assert_eq!((counters.errors, counters.received), (3, 0));
    assert_eq!(alone.is(1).0, Role::Designated);
    // To a port that is not there, or whose link is down.
    alone.bridge.receive(0, &[0; 60]);
    alone.bridge.receive(9, &[0; 60]);
    alone.bridge.set_link(1, Link::default());
    alone.bridge.receive(1, &[0; 60]);
    assert_eq!(alone.bridge.port_status(1).unwrap().counters.errors, 3);
}

#[test]
fn times_that_no_root_may_have_are_not_taken() {
    let mut alone = Alone::new(Settings::new([2; 6]), 2);
    let hostile =
        Config { times: WireTimes { message_age: 0, max_age: 65535, hello_time: 0, forward_delay: 0 }, ..config(5, 0) };
    let output = alone.hear(1, Bpdu::Config(hostile));
    let [.., Bpdu::Rapid(said, _)] = frames_of(&output, 2)[..] else { panic!("nothing said") };
    assert_eq!((said.times.max_age, said.times.forward_delay), (40 * 256, 4 * 256));
}

#[test]
fn a_neighbour_that_always_says_something_new_gets_few_answers() {
    let mut alone = Alone::new(Settings::new([2; 6]), 2);
    alone.wait(60);
    let mut frames = 0;
    for cost in 0..1000 {
        frames += alone.hear(1, Bpdu::Rapid(config(5, cost % 2), RapidFlags { proposal: true, ..FLAGS })).frames.len();
    }
    // Each port sends as many as the transmit hold count in a second.
    assert!(frames <= 2 * 6, "{frames} frames");
}

#[test]
fn a_shared_link_is_not_agreed_on() {
    for (point_to_point, full_duplex, expected) in [
        (PointToPoint::ForceTrue, false, true),
        (PointToPoint::ForceFalse, true, false),
        (PointToPoint::Auto, true, true),
        (PointToPoint::Auto, false, false),
    ] {
        let mut alone = Alone::new(Settings::new([2; 6]), 1);
        let port = PortSettings { point_to_point, auto_edge: false, ..PortSettings::new("p1", MAC) };
        alone.bridge.configure_port(1, port);
        alone.bridge.set_link(1, Link { full_duplex, ..Link::up(1000) });
        alone.wait(1);
        // Its root is this bridge.
        let root = alone.bridge.status().bridge_id;
        let answer = Config { priority: Priority { root, ..config(u64::MAX, 7).priority }, ..config(0, 0) };
        let agreement = RapidFlags { role: WireRole::Root, agreement: true, ..FLAGS };
        alone.hear(1, Bpdu::Rapid(answer, agreement));
        assert_eq!(alone.is(1).1 == State::Forwarding, expected, "{point_to_point:?}");
    }
}

/// What a port says changes from its own root to a better one and back while the answer to the first is on its way.
#[test]
fn an_answer_to_earlier_information_is_no_agreement() {
    let mut alone = Alone::new(Settings::new([2; 6]), 2);
    for port in 1..=2 {
        let settings = PortSettings { auto_edge: false, ..PortSettings::new("p", MAC) };
        alone.bridge.configure_port(port, settings);
    }
    let root = alone.bridge.status().bridge_id;
    let answer = Config { priority: Priority { root, ..config(u64::MAX, 7).priority }, ..config(0, 0) };
    let agreement = Bpdu::Rapid(answer, RapidFlags { role: WireRole::Root, agreement: true, ..FLAGS });
    alone.hear(1, Bpdu::Rapid(config(5, 0), FLAGS));
    alone.hear(2, agreement);
    assert_eq!(alone.is(2), (Role::Designated, State::Discarding), "the answer has another root");
    alone.bridge.set_link(1, Link::default());
    alone.wait(0);
    assert_eq!(alone.bridge.status().root_id, root);
    alone.hear(2, agreement);
    assert_eq!(alone.is(2), (Role::Designated, State::Discarding), "the information was another one just now");
    alone.wait(2);
    alone.hear(2, agreement);
    assert_eq!(alone.is(2), (Role::Designated, State::Forwarding));
}

#[test]
fn a_thousand_ports() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1000);
    let output = alone.wait(4);
    assert_eq!(output.changes.iter().filter(|change| change.to == State::Forwarding).count(), 1000);
    // All of them lead to the root.
    for port in 1..=1000 {
        alone.bridge.receive(port, &Bpdu::Rapid(config(5, 0), RapidFlags { proposal: true, ..FLAGS }).emit([4; 6]));
    }
    let output = alone.wait(0);
    assert_eq!(alone.is(1), (Role::Root, State::Forwarding));
    assert!((2..=1000).all(|port| alone.is(port) == (Role::Alternate, State::Discarding)));
    assert_eq!(output.frames.len(), 1000);
    alone.bridge.remove_port(1);
    alone.wait(0);
    assert_eq!(alone.is(2), (Role::Root, State::Forwarding));
}

#[test]
fn numbers_of_ports() {
    let mut bridge = Bridge::new(Settings::new([2; 6]), Time(0));
    let with = |number| PortSettings { number, ..PortSettings::new("p", MAC) };
    assert_eq!(bridge.add_port(with(Some(2))), Ok(2));
    assert_eq!((bridge.add_port(with(None)), bridge.add_port(with(None))), (Ok(1), Ok(3)));
    let error = |result: Result<u16, _>| result.map_err(|error: protocols::stp::output::PortError| error.to_string());
    assert_eq!(error(bridge.add_port(with(Some(2)))), Err("number 2 of a spanning tree is another port's".to_owned()));
    let range = "4096 is no number of a port of a spanning tree: 1 to 4095";
    assert_eq!(error(bridge.add_port(with(Some(4096)))), Err(range.to_owned()));
    assert!(error(bridge.add_port(with(Some(0)))).is_err());
    assert!(bridge.remove_port(2) && !bridge.remove_port(2));
    assert_eq!(bridge.add_port(with(None)), Ok(2));
}

#[test]
fn a_change_of_the_topology_by_hand_is_told() {
    let mut alone = Alone::new(Settings::new([2; 6]), 1);
    let port = PortSettings { auto_edge: false, ..PortSettings::new("p1", MAC) };
    alone.bridge.configure_port(1, port);
    alone.wait(60);
    alone.bridge.change_topology();
    let output = alone.wait(0);
    assert_eq!(output.flush, [1]);
    assert!(matches!(frames_of(&output, 1)[..], [Bpdu::Rapid(Config { topology_change: true, .. }, _)]));
}
