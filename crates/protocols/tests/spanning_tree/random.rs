//! Random networks and faults: at no time does a loop forward, and in the time that the standard gives, what is connected is
//! connected by ports that forward. Links keep the order of frames. Where they lose some, RSTP may take a neighbour that was not heard
//! for one that is not there, and a loop forwards until the next frame is heard (docs/spanning_tree.md).

use std::time::Duration;

use packet::Time;
use proptest::prelude::*;
use protocols::{rstp, stp};

use crate::network::{Faults, Network, Switch};

/// How each bridge speaks.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Rapid,
    /// RSTP that is held to STP.
    Forced,
    /// STP.
    Plain,
}

/// What happens to a network.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A link goes down or comes back.
    Flip(usize),
    /// A bridge dies, and the links of its neighbours go down or not.
    Kill(usize, bool),
    /// Time passes, in milliseconds.
    Wait(u64),
}

/// The longest wait for information to age (max age, and as many hops), then both forward delays.
const RECONVERGED: Duration = Duration::from_secs(20 + 20 + 2 * 15 + 5);

/// The longest loop where frames are lost: three hello times until what is no longer heard is given up, and the time in which the
/// old information of a lost root passes as many bridges as its greatest age allows, 20, by links that take 0.4 s.
const LOOP_OF_LOST_FRAMES: Duration = Duration::from_secs(3 * 2 + 20 * 4 / 10);

fn make(protocol: Protocol, id: u8) -> Box<dyn Switch> {
    let settings = rstp::Settings::new([0, 0, 0, 0, 0, id]);
    match protocol {
        Protocol::Rapid => Box::new(rstp::Bridge::new(settings, Time(0))),
        Protocol::Plain => Box::new(stp::Bridge::new(stp::Settings::new([0, 0, 0, 0, 0, id]), Time(0))),
        Protocol::Forced => Box::new(rstp::Bridge::new(rstp::Settings { force_stp: true, ..settings }, Time(0))),
    }
}

fn survive(protocols: &[Protocol], links: &[(usize, usize)], faults: &[Fault], frames: Faults, seed: u64) {
    let mut network = Network::new(seed, frames);
    let rapid = protocols.iter().any(|protocol| !matches!(protocol, Protocol::Plain));
    if frames.lost > 0 && rapid {
        network.longest_loop = LOOP_OF_LOST_FRAMES;
    }
    let bridges = protocols.len();
    for (number, protocol) in protocols.iter().enumerate() {
        // Identifiers in an order that has nothing to do with links.
        network.add(make(*protocol, (number * 7 % 13) as u8));
    }
    let mut ends = Vec::new();
    for (number, (from, to)) in links.iter().enumerate() {
        ends.push([network.connect(from % bridges, number), network.connect(to % bridges, number)]);
        let pause = network.below(300);
        network.run(Duration::from_millis(pause));
    }
    let mut up = vec![true; links.len()];
    network.run(RECONVERGED);
    settle(&mut network, "at first");
    for fault in faults {
        match *fault {
            Fault::Flip(link) if !links.is_empty() => {
                let link = link % links.len();
                up[link] = !up[link];
                for end in ends[link] {
                    network.set_up(end, up[link]);
                }
            }
            Fault::Flip(_) => {}
            Fault::Kill(bridge, links_go_down) => network.kill(bridge % bridges, links_go_down),
            Fault::Wait(millis) => network.run(Duration::from_millis(millis)),
        }
    }
    settle(&mut network, "after what happened");
    // Nothing is left to be told.
    network.faults.lost = 0;
    network.sent = 0;
    network.run(Duration::from_secs(20));
    let ports = 2 * links.len() as u64;
    assert!(network.sent <= 11 * ports, "{} frames in 20 s from {ports} ports", network.sent);
}

/// What is connected has to be so by ports that forward in the time that the standard gives, if frames are not lost then: a hello that
/// STP passes on from bridge to bridge may be lost more often than a bridge of RSTP waits for it.
fn settle(network: &mut Network, when: &str) {
    let frames = network.faults;
    network.faults.lost = 0;
    network.run(RECONVERGED);
    assert!(network.is_connected(), "not connected {when}");
    network.faults = frames;
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        4 => any::<usize>().prop_map(Fault::Flip),
        1 => any::<(usize, bool)>().prop_map(|(bridge, down)| Fault::Kill(bridge, down)),
        3 => (0u64..30_000).prop_map(Fault::Wait),
        3 => (0u64..50).prop_map(Fault::Wait),
    ];
    prop::collection::vec(fault, 0..16)
}

fn protocols() -> impl Strategy<Value = Vec<Protocol>> {
    let protocol = prop::sample::select(vec![Protocol::Rapid, Protocol::Forced, Protocol::Plain]);
    prop::collection::vec(protocol, 2..=12)
}

fn links() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0usize..12, 0usize..12), 1..24)
}

fn late_frames() -> impl Strategy<Value = Faults> {
    (0u8..64, 1u64..400).prop_map(|(doubled, delay)| Faults { lost: 0, doubled, delay })
}

fn bad_frames() -> impl Strategy<Value = Faults> {
    (1u8..64, late_frames()).prop_map(|(lost, late)| Faults { lost, ..late })
}

/// A case is minutes of simulated time; `PROPTEST_CASES` asks for more of them.
fn few_cases() -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases: 48, ..config } }
}

proptest! {
    #![proptest_config(few_cases())]

    #[test]
    fn rapid_bridges(bridges in 2usize..=12, links in links(), faults in faults(), seed: u64) {
        survive(&vec![Protocol::Rapid; bridges], &links, &faults, Faults::default(), seed);
    }

    #[test]
    fn rapid_bridges_and_late_frames(
        bridges in 2usize..=12, links in links(), faults in faults(), frames in late_frames(), seed: u64
    ) {
        survive(&vec![Protocol::Rapid; bridges], &links, &faults, frames, seed);
    }

    #[test]
    fn rapid_bridges_and_bad_frames(
        bridges in 2usize..=12, links in links(), faults in faults(), frames in bad_frames(), seed: u64
    ) {
        survive(&vec![Protocol::Rapid; bridges], &links, &faults, frames, seed);
    }

    #[test]
    fn plain_bridges_and_bad_frames(
        bridges in 2usize..=12, links in links(), faults in faults(), frames in bad_frames(), seed: u64
    ) {
        survive(&vec![Protocol::Plain; bridges], &links, &faults, frames, seed);
    }

    #[test]
    fn bridges_of_all_kinds_and_late_frames(
        protocols in protocols(), links in links(), faults in faults(), frames in late_frames(), seed: u64
    ) {
        survive(&protocols, &links, &faults, frames, seed);
    }

    #[test]
    fn bridges_of_all_kinds_and_bad_frames(
        protocols in protocols(), links in links(), faults in faults(), frames in bad_frames(), seed: u64
    ) {
        survive(&protocols, &links, &faults, frames, seed);
    }
}
