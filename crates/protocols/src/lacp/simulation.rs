//! Two bonds over links that lose, delay and duplicate frames, with a clock that jumps from event to event.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use weir_time::Time;

use super::tests::{P0, P1, at, bond};
use super::*;
use crate::network::{Faults, Network};
use crate::registry::Session;

/// Both bonds and what is on its way between them. A frame is addressed by bond and member.
struct World {
    bonds: [Aggregator; 2],
    network: Network<(usize, MemberId)>,
    now: Time,
    /// How often each member's `may_enable` became false.
    losses: BTreeMap<(usize, MemberId), u32>,
}

impl World {
    fn new(seed: u64, fast: [bool; 2], active: [bool; 2]) -> World {
        let bonds = [bond(0x55, 0, 2, fast[0], active[0]), bond(0x66, 2, 2, fast[1], active[1])];
        World { bonds, network: Network::new(seed), now: at(0), losses: BTreeMap::new() }
    }

    /// Goes from event to event until the time `end`.
    fn run(&mut self, end: Time, faults: &Faults) {
        loop {
            let wakeups = self.bonds.iter().filter_map(Session::next_wakeup);
            let next = wakeups.chain(self.network.next_arrival()).min().unwrap_or(end).max(self.now);
            if next >= end {
                self.now = end;
                return;
            }
            self.now = next;
            while let Some(((side, id), frame)) = self.network.arrive(self.now) {
                let _ = self.bonds[side].receive(self.now, id, &frame);
            }
            for side in 0..2 {
                let outcome = self.bonds[side].run(self.now);
                for (id, frame) in outcome.frames {
                    self.network.send(self.now, (1 - side, id), &frame, faults);
                }
                for event in outcome.events {
                    if let Event::MayEnable(id, false) = event {
                        *self.losses.entry((side, id)).or_default() += 1;
                    }
                }
            }
        }
    }

    fn may_enable(&self) -> [[bool; 2]; 2] {
        [0, 1].map(|side| [P0, P1].map(|id| self.bonds[side].may_enable(id)))
    }
}

const UP: [[bool; 2]; 2] = [[true; 2]; 2];

fn modes() -> impl Strategy<Value = ([bool; 2], [bool; 2])> {
    // At least one end is active: otherwise neither speaks.
    (any::<[bool; 2]>(), prop_oneof![Just([true, true]), Just([true, false]), Just([false, true])])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happened before: both come up when frames pass, both go down when none does, and agree in the end.
    #[test]
    fn both_ends_agree_once_frames_pass(seed: u64, (fast, active) in modes(), loss in 0.0..0.9) {
        let mut world = World::new(seed, fast, active);
        world.run(at(200_000), &Faults { loss, delay: Duration::from_millis(900), duplicate: 0.3 });
        // A slow partner may be told last before the links are good: it hears again a slow period later.
        world.run(at(300_000), &Faults::NONE);
        prop_assert_eq!(world.may_enable(), UP);

        // The detection time: three of the periods that an end asks for, from the last frame that can have arrived.
        world.run(at(302_000), &Faults::ALL_LOST);
        let slowest = if fast == [true, true] { 3_000 } else { 90_000 };
        world.run(at(302_000 + slowest), &Faults::ALL_LOST);
        prop_assert_eq!(world.may_enable(), [[false; 2]; 2]);
    }

    /// A PDU may be lost, and others may be late and come twice: three periods have to pass without one.
    #[test]
    fn what_the_protocol_stands_makes_no_flap(seed: u64, (fast, active) in modes()) {
        let mut world = World::new(seed, fast, active);
        world.run(at(60_000), &Faults::NONE);
        prop_assert_eq!(world.may_enable(), UP);
        let before = world.losses.clone();
        for _ in 0..10 {
            let period = if fast == [true, true] { 1_000 } else { 30_000 };
            // Nothing arrives for less than a period, then all does for longer than one.
            let (lost, passed) = (Duration::from_millis(period - 100), Duration::from_millis(period + 100));
            world.run(world.now + lost, &Faults { loss: 1.0, ..Faults::NONE });
            world.run(world.now + passed, &Faults { duplicate: 0.5, delay: Duration::from_millis(50), ..Faults::NONE });
        }
        if fast[0] == fast[1] {
            prop_assert_eq!(&world.losses, &before);
        }
        prop_assert_eq!(world.may_enable(), UP);
    }

    /// Garbage and lies at any rate cost no more than three frames in a second, and never the sanity of the bond.
    #[test]
    fn hostile_frames_are_bounded(frames in prop::collection::vec((0u32..3, super::pdu::tests::any_info(),
            super::pdu::tests::any_info(), 0u64..400), 0..200)) {
        let mut bond = bond(0x55, 0, 2, true, true);
        let (mut millis, mut sent) = (0, 0);
        for (member, actor, partner, pause) in frames {
            millis += pause;
            let _ = bond.receive(at(millis), MemberId(member), &pdu::Lacpdu { actor, partner }.emit([6; 6]));
            sent += bond.run(at(millis)).frames.len() as u64;
            prop_assert!(bond.next_wakeup().is_some_and(|wakeup| wakeup > at(millis)));
            prop_assert!(sent <= 2 * 3 * (millis / 1000 + 1));
        }
    }
}
