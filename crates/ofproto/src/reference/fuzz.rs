//! Entry for fuzzing: a program of flows, frames, bursts and changes, which the switch and the reference run
//! side by side.
//!
//! A program is a list of instructions: what to do (a byte), the number of the bytes that it is done with (a
//! byte), and these. Flows and changes are made by the strategies of the tests, from a generator of random
//! numbers that begins with the bytes; whoever inserts, removes, swaps or changes instructions thus gets
//! another sensible program.

use std::sync::LazyLock;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config as RunnerConfig, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use super::tests::{PORTS, Pair, change, frame, groups, mirrors, rule, tiny, vlan};
use crate::model::vlan::PortVlan;
use datapath::Config;

/// What bounds a program's time.
const MAX_INSTRUCTIONS: usize = 96;
const MAX_RULES: usize = 24;
const MAX_PACKETS: usize = 400;
/// A batch, and what does not fit into it.
const BURST: usize = 40;

/// Frames of every protocol that the switch knows, made by scapy.
static FRAMES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let lines = include_str!("../../../../tests/scapy/frames.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| hex(line.split('|').nth(1).expect("a frame in each line").trim())).collect()
});

fn hex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("hexadecimal") as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Runs a program.
///
/// # Panics
/// Where the switch sends something else than the reference, or counts something else.
pub fn run(program: &[u8]) {
    let Some((&first, mut rest)) = program.split_first() else { return };
    let vlans = vec![PortVlan::default(); PORTS as usize];
    let limited = first & 1 != 0;
    let config = if limited { tiny() } else { Config::default() };
    let mut machine = Machine { pair: Pair::new(&vlans, config), frames: FRAMES[..1].to_vec(), rules: 0, packets: 0 };
    for _ in 0..MAX_INSTRUCTIONS {
        let [what, len, ..] = *rest else { break };
        let (bytes, after) = rest[2..].split_at(usize::from(len).min(rest.len() - 2));
        rest = after;
        machine.step(what, bytes);
    }
    check(machine.pair.check_counters());
}

/// The value of a strategy that has the first bytes for a number. That the bytes were its choices themselves
/// would be nicer, but where they end, such a generator gives zeros, which some choices wait out for ever.
fn make<S: Strategy>(strategy: S, bytes: &[u8]) -> S::Value {
    let mut seed = [0; 32];
    let len = bytes.len().min(seed.len());
    seed[..len].copy_from_slice(&bytes[..len]);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(RunnerConfig::default(), rng);
    strategy.new_tree(&mut runner).expect("no choice is rejected").current()
}

fn check(result: Result<(), TestCaseError>) {
    if let Err(error) = result {
        panic!("{error}");
    }
}

struct Machine {
    pair: Pair,
    /// Frames to send, of which there is always one.
    frames: Vec<Vec<u8>>,
    rules: usize,
    packets: usize,
}

impl Machine {
    fn step(&mut self, what: u8, bytes: &[u8]) {
        let (what, at) = (what % 16, |n: usize| bytes.get(n).copied().unwrap_or(0));
        match what {
            0..=2 if self.rules < MAX_RULES => {
                self.rules += 1;
                self.pair.add(&make(rule(), bytes));
            }
            3 => self.pair.change(&make(change(), bytes)),
            4 => self.pair.vlan(1 + u32::from(at(0)) % PORTS, make(vlan(), bytes)),
            5 => self.pair.mirrors(&make(mirrors(), bytes)),
            6 => self.pair.groups(&make(groups(), bytes)),
            7 | 8 => self.add(make(frame(), bytes)),
            9 => self.add(FRAMES[usize::from(at(0)) % FRAMES.len()].clone()),
            10 | 11 => {
                let index = self.index(at(0));
                self.add(mutate(&self.frames[index], &bytes[bytes.len().min(1)..]));
            }
            12 => self.burst(at(0), bytes[bytes.len().min(1)..].iter().copied()),
            13 => self.burst(at(0), (0..BURST as u8).map(|n| at(2).wrapping_add(n % (1 + at(1) % 4)))),
            _ => {
                for two in bytes.chunks(2).take(BURST) {
                    let (index, port) = (self.index(two[0]), 1 + u32::from(*two.get(1).unwrap_or(&0)) % PORTS);
                    self.packets += 1;
                    if self.packets < MAX_PACKETS {
                        check(self.pair.packet(port, &self.frames[index]));
                    }
                }
            }
        }
        if what < 7 {
            // A change is in force once it is confirmed.
            self.pair.bed.bridge.barrier();
        }
    }

    fn add(&mut self, mut frame: Vec<u8>) {
        clear_drop_eligible(&mut frame);
        self.frames.push(frame);
        if self.frames.len() > 32 {
            self.frames.remove(0);
        }
    }

    /// The last frames have the first numbers.
    fn index(&self, number: u8) -> usize {
        self.frames.len() - 1 - usize::from(number) % self.frames.len()
    }

    /// Frames, by their numbers, that come in by one port together.
    fn burst(&mut self, port: u8, numbers: impl Iterator<Item = u8>) {
        let port = 1 + u32::from(port) % PORTS;
        let packets: Vec<_> =
            numbers.take(BURST).map(|number| (port, self.frames[self.index(number)].clone())).collect();
        self.packets += packets.len();
        if self.packets < MAX_PACKETS {
            check(self.pair.packets(&packets));
        }
    }
}

/// A frame with changes of three bytes each: what, where, and a value.
fn mutate(frame: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(change[1]).min(frame.len() - 1);
        match change[0] % 8 {
            // Cut short, but not within the Ethernet header.
            0 => frame.truncate(at.max(14)),
            1 => frame.resize((frame.len() + at).min(1514), change[2]),
            2 => drop(frame.splice(12..12, [0x81, 0, change[1], change[2]])),
            3 => drop(frame.splice(12..12, [0x88, 0xa8, change[1], change[2]])),
            4 => frame[at] ^= 1 << (change[2] % 8),
            _ => frame[at] = change[2],
        }
    }
    frame
}

/// The bit of a tag that says whether the frame may be dropped is lost where the tag is pushed anew, and the
/// reference does not tell when that is.
fn clear_drop_eligible(frame: &mut [u8]) {
    let mut at = 12;
    while matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8])) {
        frame.get_mut(at + 2).into_iter().for_each(|byte| *byte &= !0x10);
        at += 4;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn instruction() -> impl Strategy<Value = Vec<u8>> {
        (0u8..16, prop::collection::vec(any::<u8>(), 0..30)).prop_map(|(what, bytes)| {
            let mut instruction = vec![what, bytes.len() as u8];
            instruction.extend(bytes);
            instruction
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

        #[test]
        fn arbitrary_programs_run_as_in_the_reference(
            first: u8,
            instructions in prop::collection::vec(instruction(), 4..60),
        ) {
            super::run(&[&[first], &instructions.concat()[..]].concat());
        }
    }

    #[test]
    fn every_frame_is_read() {
        assert!(super::FRAMES.len() > 50 && super::FRAMES.iter().all(|frame| frame.len() >= 14));
    }
}
