//! The examples of IEEE 802.1D-2004 section 17, and what else is known to come out in a certain way. What the tests of Open vSwitch
//! for these expect is expected here, too.

use std::time::Duration;

use packet::Time;
use protocols::{rstp, stp};

use crate::network::{Faults, Network, Switch};

const SETTLED: Duration = Duration::from_secs(100);

fn rapid(id: u16) -> Box<dyn Switch> {
    let [high, low] = id.to_be_bytes();
    Box::new(rstp::Bridge::new(rstp::Settings::new([0, 0, 0, 0, high, low]), Time(0)))
}

fn plain(id: u16) -> Box<dyn Switch> {
    let [high, low] = id.to_be_bytes();
    Box::new(stp::Bridge::new(stp::Settings::new([0, 0, 0, 0, high, low]), Time(0)))
}

/// Bridges with these identifiers, whose ports are on these networks: a letter each, or a digit for a network of the port's own.
fn network(bridges: &[(u16, &str)], make: fn(u16) -> Box<dyn Switch>) -> Network {
    let mut network = Network::new(1, Faults::default());
    for (id, _) in bridges {
        network.add(make(*id));
    }
    for (bridge, (_, networks)) in bridges.iter().enumerate() {
        for (index, name) in networks.bytes().enumerate() {
            let number = if name.is_ascii_digit() { 1000 + 100 * bridge + index } else { usize::from(name) };
            network.connect(bridge, number);
        }
    }
    network.run(SETTLED);
    network
}

#[track_caller]
fn check(network: &Network, wanted: &[&str]) {
    let found: Vec<String> = (0..wanted.len()).map(|bridge| network.summary(bridge)).collect();
    assert_eq!(found, wanted);
    assert!(network.is_connected());
}

#[test]
fn a_single_bridge_is_the_root() {
    check(&network(&[(0x111, "ab")], rapid), &["root"]);
}

#[test]
fn links_that_fail_are_replaced() {
    let bridges = [(0x111, "ab"), (0x222, "acd"), (0x333, "bce"), (0x444, "df"), (0x555, "ef")];
    let mut network = network(&bridges, rapid);
    check(&network, &["root", "F:200000 F F", "F:200000 Di F", "F:400000 F", "F:400000 Di"]);
    network.set_up(network.port(2, 0), false);
    network.run(SETTLED);
    check(&network, &["root", "F:200000 F F", "D F:400000 F", "F:400000 F", "F:600000 Di"]);
    network.set_up(network.port(4, 0), false);
    network.run(SETTLED);
    check(&network, &["root", "F:200000 F F", "D F:400000 F", "F:400000 F", "D F:600000"]);
}

#[test]
fn figures_17_4_and_17_5() {
    let mut network = network(
        &[
            (0x111, "abec"),
            (0x222, "abdf"),
            (0x333, "cdljhg"),
            (0x444, "efnmki"),
            (0x555, "gi00"),
            (0x666, "hk00"),
            (0x777, "jm00"),
            (0x888, "ln00"),
        ],
        rapid,
    );
    let mut wanted = [
        "root",
        "F:200000 Di F F",
        "F:200000 Di F F F F",
        "F:200000 Di F F F F",
        "F:400000 Di F F",
        "F:400000 Di F F",
        "F:400000 Di F F",
        "F:400000 Di F F",
    ];
    check(&network, &wanted);
    // Two ports of one bridge on the same network.
    for index in [2, 3] {
        network.move_to(network.port(7, index), usize::from(b'o'));
    }
    network.run(SETTLED);
    wanted[7] = "F:400000 Di F Di";
    check(&network, &wanted);
}

#[test]
fn figure_17_6() {
    let network = network(
        &[(0x111, "abl"), (0x222, "bcd"), (0x333, "def"), (0x444, "fgh"), (0x555, "jhi"), (0x666, "ljk")],
        rapid,
    );
    check(&network, &["root", "F:200000 F F", "F:400000 F F", "F:600000 F Di", "F:400000 F F", "F:200000 F F"]);
}

#[test]
fn figure_17_7() {
    let network = network(&[(0, "b"), (0x111, "abdfhgec"), (0x222, "ghjlnmki")], rapid);
    check(&network, &["root", "F F:200000 F F F F F F", "Di F:400000 F F F F F F"]);
}

#[test]
fn a_ring_heals_within_a_second() {
    let bridges = [(0x111, "ab"), (0x222, "bc"), (0x333, "cd"), (0x444, "de"), (0x555, "ea")];
    let mut network = network(&bridges, rapid);
    for (bridge, index) in [(0, 0), (1, 1), (3, 0)] {
        let ends = [network.port(bridge, index), network.port((bridge + 2 * index + 4) % 5, 1 - index)];
        ends.iter().for_each(|end| network.set_up(*end, false));
        network.run(Duration::from_secs(1));
        assert!(network.is_connected());
        ends.iter().for_each(|end| network.set_up(*end, true));
        network.run(Duration::from_secs(1));
        assert!(network.is_connected());
        network.run(SETTLED);
    }
}

#[test]
fn figures_17_4_and_17_5_with_stp() {
    let mut network = network(
        &[
            (0x111, "abec"),
            (0x222, "abdf"),
            (0x333, "cdljhg"),
            (0x444, "efnmki"),
            (0x555, "gi00"),
            (0x666, "hk00"),
            (0x777, "jm00"),
            (0x888, "ln00"),
        ],
        plain,
    );
    let mut wanted = [
        "root",
        "F:10 B F F",
        "F:10 B F F F F",
        "F:10 B F F F F",
        "F:20 B F F",
        "F:20 B F F",
        "F:20 B F F",
        "F:20 B F F",
    ];
    check(&network, &wanted);
    for index in [2, 3] {
        network.move_to(network.port(7, index), usize::from(b'o'));
    }
    network.run(SETTLED);
    wanted[7] = "F:20 B F B";
    check(&network, &wanted);
}

#[test]
fn figure_17_6_with_stp() {
    let network = network(
        &[(0x111, "abl"), (0x222, "bcd"), (0x333, "def"), (0x444, "fgh"), (0x555, "jhi"), (0x666, "ljk")],
        plain,
    );
    check(&network, &["root", "F:10 F F", "F:20 F F", "F:30 F B", "F:20 F F", "F:10 F F"]);
}

/// STP.io.1.1 of the interoperability tests of the Bridge Functions Consortium.
#[test]
fn links_that_fail_are_replaced_with_stp() {
    let mut network = network(&[(0x111, "abc"), (0x222, "abc")], plain);
    check(&network, &["root", "F:10 B B"]);
    network.move_to(network.port(1, 0), 500);
    network.run(SETTLED);
    check(&network, &["root", "F F:10 B"]);
    network.set_up(network.port(1, 0), false);
    network.run(SETTLED);
    check(&network, &["root", "D F:10 B"]);
    network.move_to(network.port(1, 1), 501);
    network.run(SETTLED);
    check(&network, &["root", "D F F:10"]);
}

/// STP.io.1.4.
#[test]
fn four_bridges_with_stp() {
    let network = network(&[(0x111, "abc"), (0x222, "bde"), (0x333, "adf"), (0x444, "cef")], plain);
    check(&network, &["root", "F:10 F F", "F:10 B F", "F:10 B B"]);
}

/// STP.op.1.4: ports are designated ones at first, and listen.
#[test]
fn ports_listen_at_first_with_stp() {
    let mut network = Network::new(1, Faults::default());
    let bridge = network.add(plain(0x123));
    network.with(bridge, |switch| {
        let port = switch.add_port(Time(0), "p");
        switch.set_up(port, true);
        switch.run(Time(0));
        assert_eq!(switch.show(), SHOWN_AT_FIRST);
    });
}

const SHOWN_AT_FIRST: &str = "\
---- br0 ----
Root ID:
  stp-priority  32768
  stp-system-id   00:00:00:00:01:23
  stp-hello-time  2s
  stp-max-age     20s
  stp-fwd-delay   15s
  This bridge is the root

Bridge ID:
  stp-priority  32768
  stp-system-id   00:00:00:00:01:23
  stp-hello-time  2s
  stp-max-age     20s
  stp-fwd-delay   15s

  Interface  Role       State      Cost  Pri.Nbr\x20
  ---------- ---------- ---------- ----- -------
  p          designated listening  10    128.1

";

#[test]
fn what_rstp_shows() {
    let network = network(&[(0x111, "ab"), (0x222, "ab")], rapid);
    assert_eq!(network.show(1), SHOWN_BY_RSTP);
}

const SHOWN_BY_RSTP: &str = "\
---- br0 ----
Root ID:
  stp-priority    32768
  stp-system-id   00:00:00:00:01:11
  stp-hello-time  2s
  stp-max-age     20s
  stp-fwd-delay   15s
  root-port       p0
  root-path-cost  200000

Bridge ID:
  stp-priority    32768
  stp-system-id   00:00:00:00:02:22
  stp-hello-time  2s
  stp-max-age     20s
  stp-fwd-delay   15s

  Interface  Role       State      Cost     Pri.Nbr\x20
  ---------- ---------- ---------- -------- -------
  p0         Root       Forwarding 200000   128.1
  p1         Alternate  Discarding 200000   128.2

";
