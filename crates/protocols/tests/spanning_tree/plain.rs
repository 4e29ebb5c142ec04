//! One bridge that speaks STP, and what neighbours may do to it.

use std::time::Duration;

use packet::Time;
use protocols::stp::bpdu::{Bpdu, Config, RapidFlags, WireRole, WireTimes};
use protocols::stp::identifier::{BridgeId, PortId, Priority};
use protocols::stp::{Bridge, Output, PortSettings, Role, Settings, State};

use crate::network::MAC;

const LAST: u64 = u64::MAX;

/// A bridge with two ports whose links are up.
fn bridge() -> Bridge {
    let mut bridge = Bridge::new(Settings::new([2; 6]), Time(0));
    for number in 1..=2 {
        assert_eq!(bridge.add_port(Time(0), PortSettings::new(&format!("p{number}"), MAC)), Ok(number));
        bridge.set_link(number, true, 1000);
    }
    run(&mut bridge, 0);
    bridge
}

fn run(bridge: &mut Bridge, seconds: u64) -> Output<State> {
    let mut output = Output::default();
    bridge.run(Time(0) + Duration::from_secs(seconds), &mut output);
    output
}

fn hear(bridge: &mut Bridge, seconds: u64, port: u16, bpdu: Bpdu) -> Output<State> {
    bridge.receive(Time(0) + Duration::from_secs(seconds), port, &bpdu.emit([4; 6]));
    run(bridge, seconds)
}

fn is(bridge: &Bridge, port: u16) -> (Role, State) {
    let status = bridge.port_status(Time(0), port).unwrap();
    (status.role, status.state)
}

fn config(root: u64, cost: u32) -> Config {
    Config {
        priority: Priority { root: BridgeId(root), cost, bridge: BridgeId(5), port: PortId(0x8001) },
        times: WireTimes::from_seconds(0, 20, 2, 15),
        topology_change: false,
        acknowledgement: false,
    }
}

fn configs_of(output: &Output<State>, port: u16) -> Vec<Config> {
    let frames = output.frames.iter().filter(|(number, _)| *number == port);
    let configs = frames.filter_map(|(_, frame)| match Bpdu::new_checked(frame) {
        Ok(Bpdu::Config(config)) => Some(config),
        _ => None,
    });
    configs.collect()
}

#[test]
fn a_port_listens_and_learns_for_a_forward_delay_each() {
    let mut bridge = bridge();
    let states = [0, 14, 15, 29, 30].map(|seconds| {
        run(&mut bridge, seconds);
        is(&bridge, 1).1
    });
    assert_eq!(states, [State::Listening, State::Listening, State::Learning, State::Learning, State::Forwarding]);
}

#[test]
fn what_was_heard_is_forgotten_after_the_greatest_age() {
    let mut bridge = bridge();
    let old = Config { times: WireTimes::from_seconds(5, 20, 2, 15), ..config(1, 0) };
    hear(&mut bridge, 1, 1, Bpdu::Config(old));
    assert_eq!(is(&bridge, 1).0, Role::Root);
    run(&mut bridge, 15);
    assert_eq!(is(&bridge, 1).0, Role::Root, "14 s and 5 s of age are less than 20 s");
    run(&mut bridge, 16);
    assert_eq!((is(&bridge, 1).0, bridge.root_port()), (Role::Designated, None));
}

#[test]
fn a_neighbour_with_worse_information_gets_one_answer_a_second() {
    let mut bridge = bridge();
    let answers: usize =
        (0..1000).map(|cost| configs_of(&hear(&mut bridge, 1, 1, Bpdu::Config(config(LAST, cost))), 1).len()).sum();
    assert_eq!(answers, 1);
    assert_eq!(configs_of(&run(&mut bridge, 2), 1).len(), 1, "one answer was put off");
    assert_eq!(is(&bridge, 1).0, Role::Designated);
}

#[test]
fn notifications_are_acknowledged_and_addresses_forgotten() {
    let mut bridge = bridge();
    run(&mut bridge, 30);
    let output = hear(&mut bridge, 33, 1, Bpdu::Notification);
    assert_eq!(output.flush, [1, 2]);
    assert!(matches!(configs_of(&output, 1)[..], [Config { acknowledgement: true, topology_change: true, .. }, ..]));
}

#[test]
fn times_that_no_root_may_have_are_not_taken() {
    let mut bridge = bridge();
    let times = WireTimes { message_age: 0, max_age: 65535, hello_time: 0, forward_delay: 0 };
    let output = hear(&mut bridge, 3, 1, Bpdu::Config(Config { times, ..config(1, 0) }));
    let [said, ..] = configs_of(&output, 2)[..] else { panic!("nothing said") };
    assert_eq!((said.times.max_age, said.times.hello_time, said.times.forward_delay), (40 * 256, 256, 4 * 256));
    assert_eq!(is(&bridge, 2), (Role::Designated, State::Listening));
}

#[test]
fn what_is_not_for_stp_is_counted() {
    let mut bridge = bridge();
    bridge.receive(Time(0), 1, &[0; 60]);
    let flags =
        RapidFlags { role: WireRole::Designated, proposal: true, agreement: false, learning: true, forwarding: true };
    hear(&mut bridge, 1, 1, Bpdu::Rapid(config(1, 0), flags));
    let too_old = Config { times: WireTimes::from_seconds(20, 20, 2, 15), ..config(1, 0) };
    hear(&mut bridge, 1, 1, Bpdu::Config(too_old));
    let counters = bridge.port_status(Time(0), 1).unwrap().counters;
    assert_eq!((counters.errors, counters.received, is(&bridge, 1).0), (3, 0, Role::Designated));
    // To ports that are not there, or whose link is down.
    bridge.receive(Time(0), 0, &[0; 60]);
    bridge.receive(Time(0), 9, &[0; 60]);
    bridge.set_link(1, false, 0);
    hear(&mut bridge, 2, 2, Bpdu::Config(config(1, 0)));
    hear(&mut bridge, 2, 1, Bpdu::Config(config(1, 0)));
    assert_eq!((is(&bridge, 1).0, bridge.root_port()), (Role::Disabled, Some(2)));
}
