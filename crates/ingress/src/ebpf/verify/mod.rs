//! From operations to a program, or why not.
//!
//! A program is accepted when it cannot do harm, whatever the frame and the maps hold: it reads the frame only where it has
//! compared with its end, its stack only where it has written, values of maps only within their size and not through null;
//! it writes to its stack and to values of maps only; it calls helpers with what they expect; and it ends after a bounded
//! number of instructions. To find out, all its ways are walked with what is known of each register there, as the kernel's
//! verifier does it. A way that reaches a place with a state that was found to be good there is not walked again. Loops are
//! walked round by round.
//!
//! | module | what it is |
//! |---|---|
//! | [`scalar`] | What is known of a number |
//! | [`state`] | What is known of all registers and the stack |
//! | [`liveness`] | Which registers a program may still read |
//! | [`step`] | What an instruction does to what is known |

mod liveness;
mod scalar;
mod state;
mod step;

use super::instruction::Operation;
use super::map::Definition;
use super::program::{Access, Program};
use liveness::live_registers;
use state::{State, covers};
use step::{Next, Step};

/// The most instructions that a program executes for a frame.
pub const MAX_PATH: u32 = 32_768;

/// The most instructions that are looked at, on all ways together.
const MAX_STEPS: u32 = 1_000_000;

/// The most branches on a way whose other side is still to be walked.
const MAX_BRANCHES: usize = 4096;

/// The most states that are remembered, for a place and in all.
const MAX_REMEMBERED: (usize, usize) = (32, 20_000);

/// Why a program is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {at}: {reason}")]
pub struct VerifyError {
    /// Which instruction, as `llvm-objdump -d` counts them.
    pub at: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// Verifies a program that uses these maps.
///
/// # Errors
/// An instruction that cannot be accepted, and why.
pub fn verify(operations: Vec<Operation>, maps: &[Definition]) -> Result<Program, VerifyError> {
    if operations.is_empty() {
        return Err(VerifyError { at: 0, reason: "the program has no instructions".into() });
    }
    let walk = Walk {
        live: live_registers(&operations),
        is_target: targets(&operations),
        remembered: operations.iter().map(|_| Vec::new()).collect(),
        remembered_in_all: 0,
        steps: 0,
        step: Step::new(&operations, maps),
    };
    let (accesses, longest, stack) = walk.walk()?;
    Ok(Program::new(operations, accesses, longest, stack))
}

/// The places to which a jump or a branch leads.
fn targets(operations: &[Operation]) -> Vec<bool> {
    let mut is_target = vec![false; operations.len()];
    for operation in operations {
        if let Operation::Jump(target) | Operation::Branch { target, .. } = operation {
            is_target[usize::from(*target)] = true;
        }
    }
    is_target
}

struct Walk<'a> {
    step: Step<'a>,
    live: Vec<u16>,
    is_target: Vec<bool>,
    /// By place, the states in which it was reached.
    remembered: Vec<Vec<Remembered>>,
    remembered_in_all: usize,
    steps: u32,
}

/// A state in which a place was reached.
struct Remembered {
    state: State,
    /// The most instructions from there to the end, once all ways from there were found to be good.
    longest: Option<u32>,
}

/// A part of a way, up to a branch both of whose sides are possible.
#[derive(Default)]
struct Part {
    /// How many instructions it has.
    steps: u32,
    /// Where it has remembered states: place, number there, and instructions before.
    remembered: Vec<(usize, usize, u32)>,
    /// The other side of the branch at its end, when it is still to be walked.
    other: Option<Box<(usize, State)>>,
    /// The most instructions behind it, on the sides that were walked.
    longest: u32,
}

impl Walk<'_> {
    /// Walks all ways. Returns what each instruction accesses, the most instructions of a way, and the bytes of stack.
    fn walk(mut self) -> Result<(Vec<Access>, u32, usize), VerifyError> {
        let mut parts = vec![Part::default()];
        let (mut at, mut state) = (0, State::new());
        // Instructions of all parts.
        let mut path = 0;
        loop {
            let part = parts.last_mut().expect("there is a part until the first one ends");
            let mut ended = None;
            if self.is_target.get(at).copied().unwrap_or(false) {
                let live = self.live[at];
                state.registers.iter_mut().enumerate().filter(|(i, _)| live >> i & 1 == 0).for_each(|(_, value)| {
                    *value = state::Value::Nothing;
                });
                ended = self.known(at, &state);
                if ended.is_some_and(|behind| path + behind > MAX_PATH) {
                    let reason = format!("a way of more than {MAX_PATH} instructions leads through here");
                    return Err(VerifyError { at, reason });
                }
                if ended.is_none() {
                    self.remember(at, &state, part);
                }
            }
            if ended.is_none() {
                self.steps += 1;
                part.steps += 1;
                path += 1;
                if path > MAX_PATH {
                    let reason =
                        format!("a way of more than {MAX_PATH} instructions leads here: a loop that may not end?");
                    return Err(VerifyError { at, reason });
                }
                if self.steps > MAX_STEPS || parts.len() > MAX_BRANCHES {
                    let reason = "the program has too many ways for the verifier: make it shorter".into();
                    return Err(VerifyError { at, reason });
                }
                match self.step.step(at, &mut state).map_err(|reason| VerifyError { at, reason })? {
                    Next::At(next) => at = next,
                    Next::Either(next, other) => {
                        let part = parts.last_mut().expect("it was there above");
                        part.other = Some(other);
                        at = next;
                        parts.push(Part::default());
                    }
                    Next::End => ended = Some(0),
                }
            }
            let Some(mut behind) = ended else { continue };
            // The part has ended: so have those before it, up to one with a side that is still to be walked.
            loop {
                let part = parts.last_mut().expect("a part has ended");
                part.longest = part.longest.max(behind);
                if let Some(other) = part.other.take() {
                    (at, state) = *other;
                    parts.push(Part::default());
                    break;
                }
                let part = parts.pop().expect("it was there above");
                behind = part.steps + part.longest;
                path -= part.steps;
                for (place, number, before) in part.remembered {
                    self.remembered[place][number].longest = Some(behind - before);
                }
                if parts.is_empty() {
                    let stack = self.step.stack;
                    return Ok((self.step.accesses, behind, stack));
                }
            }
        }
    }

    /// The most instructions from here to the end, where that is known of a state that covers this one.
    fn known(&self, at: usize, state: &State) -> Option<u32> {
        let good = self.remembered[at].iter().filter_map(|known| Some((&known.state, known.longest?)));
        good.into_iter().find(|(known, _)| covers(known, state)).map(|(_, longest)| longest)
    }

    fn remember(&mut self, at: usize, state: &State, part: &mut Part) {
        let here = &mut self.remembered[at];
        if here.len() < MAX_REMEMBERED.0 && self.remembered_in_all < MAX_REMEMBERED.1 {
            part.remembered.push((at, here.len(), part.steps));
            here.push(Remembered { state: state.clone(), longest: None });
            self.remembered_in_all += 1;
        }
    }
}
