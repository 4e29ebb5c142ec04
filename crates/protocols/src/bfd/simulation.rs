//! Two sessions over a link that loses, delays and duplicates frames, with a clock that jumps from event to event.

use std::time::Duration;

use proptest::prelude::*;
use weir_time::Time;

use super::control::tests::any_control;
use super::control::{Addresses, Control, TTL};
use super::tests::{at, session};
use super::*;
use crate::network::{Faults, Network};
use crate::registry::Session as _;

struct World {
    sessions: [Session; 2],
    network: Network<usize>,
    now: Time,
}

impl World {
    fn new(seed: u64, millis: [u64; 2], mult: [u8; 2]) -> World {
        let sessions = [0, 1].map(|n| {
            let (interval, mult) = (millis[n].to_string(), mult[n].to_string());
            session(n as u8, &[("min_rx", &interval), ("min_tx", &interval), ("mult", &mult)], seed ^ n as u64)
        });
        World { sessions, network: Network::new(seed), now: at(0) }
    }

    /// Goes from event to event until the time `end`.
    fn run(&mut self, end: Time, faults: &Faults) {
        loop {
            let wakeups = self.sessions.iter().filter_map(|session| session.next_wakeup());
            let next = wakeups.chain(self.network.next_arrival()).min().unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            while let Some((to, frame)) = self.network.arrive(self.now) {
                // A peer that has lost its session is told by a discriminator that is not its own.
                let _ = self.sessions[to].receive(self.now, &frame);
            }
            for near in [0, 1] {
                if let Some(frame) = self.sessions[near].run(self.now, 0).frame {
                    self.network.send(self.now, 1 - near, &frame, faults);
                }
            }
        }
    }

    fn states(&self) -> [State; 2] {
        [0, 1].map(|n| self.sessions[n].state())
    }

    fn flaps(&self) -> [u64; 2] {
        [0, 1].map(|n| self.sessions[n].flap_count())
    }
}

const UP: [State; 2] = [State::Up; 2];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happened before, both come up when frames pass, and both are down the detection time after they stop.
    #[test]
    fn both_come_up_and_go_down_within_the_detection_time(
        seed: u64, first in 10u64..1_000, second in 10u64..1_000, mult in any::<[u8; 2]>(), loss in 0.0..0.9,
    ) {
        let mult = mult.map(|mult| mult % 10 + 2);
        let mut world = World::new(seed, [first, second], mult);
        world.run(at(10_000), &Faults { loss, delay: Duration::from_millis(300), duplicate: 0.3 });
        world.run(at(30_000), &Faults::NONE);
        prop_assert_eq!(world.states(), UP);
        // The slower interval counts in both directions, times the multiplier of the sender.
        let detection = first.max(second) * u64::from(mult[0].max(mult[1]));
        world.run(at(30_000 + detection), &Faults::ALL_LOST);
        world.run(at(30_001 + detection), &Faults::ALL_LOST);
        prop_assert!(world.states().iter().all(|state| *state != State::Up));
    }

    /// Packets may be lost as long as surely fewer than the multiplier are missing, and others may be late and twice
    /// there.
    #[test]
    fn what_the_protocol_stands_makes_no_flap(seed: u64, millis in 50u64..500, mult in 4u8..9) {
        let mut world = World::new(seed, [millis; 2], [mult; 2]);
        world.run(at(10_000), &Faults::NONE);
        prop_assert_eq!(world.states(), UP);
        let flaps = world.flaps();
        for _ in 0..20 {
            // An interval may be over when the silence begins, and another one passes, with half of one on the way,
            // before a packet comes after it.
            let silence = Duration::from_millis(millis * (u64::from(mult) - 3));
            world.run(world.now + silence, &Faults::ALL_LOST);
            let delay = Duration::from_millis(millis / 2);
            world.run(world.now + Duration::from_millis(3 * millis), &Faults { loss: 0.0, delay, duplicate: 0.3 });
        }
        prop_assert_eq!((world.states(), world.flaps()), (UP, flaps));
    }

    /// One peer begins anew while the other believes it to be up.
    #[test]
    fn a_peer_that_restarts_is_taken_again(seed: u64, millis in 50u64..500) {
        let mut world = World::new(seed, [millis; 2], [3; 2]);
        world.run(at(10_000), &Faults::NONE);
        let interval = millis.to_string();
        let options = super::tests::settings(&[("min_rx", &interval), ("min_tx", &interval)]);
        world.sessions[1] = Session::new("p1", [2; 6], options, 99, source_port(9), seed);
        world.run(at(20_000), &Faults::NONE);
        prop_assert_eq!((world.states(), world.flaps()), (UP, [3, 1]));
    }

    /// Hostile packets make a session neither busy without end nor silent, and cost no panic.
    #[test]
    fn hostile_packets_are_bounded(
        packets in prop::collection::vec((any_control(), any::<bool>(), 0u64..3_000), 0..200),
    ) {
        let mut session = session(0, &[("decay_min_rx", "2000"), ("forwarding_if_rx", "true")], 1);
        let (mut micros, mut sent) = (0, 0);
        for (control, means_this, pause) in packets {
            micros += pause;
            let now = Time(micros * 1_000);
            let your_discriminator = if means_this { session.discriminator() } else { 0 };
            let ip = (std::net::Ipv4Addr::LOCALHOST, std::net::Ipv4Addr::LOCALHOST);
            let addresses = Addresses { eth: ([2; 6], [4; 6]), ip, port: 1, ttl: TTL };
            let _ = session.receive(now, &addresses.emit(&Control { your_discriminator, ..control }));
            // A second run may begin the poll that an answer held back; there is no third one.
            for _ in 0..2 {
                sent += u64::from(session.run(now, 0).frame.is_some());
            }
            prop_assert!(session.next_wakeup().is_none_or(|wakeup| wakeup > now));
            prop_assert!(sent <= micros / 1_000 + 1);
        }
    }
}
