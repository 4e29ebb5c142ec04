//! What one translation may take, so that no packet costs much more than others, whatever the tables say.
//!
//! The first four limits are OVS's, and so are their messages. OVS bounds the rest by the stack and the memory of the
//! process only. Here each has a limit, and a packet that exceeds one is dropped for a reason with a name.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapath::{Action as DpAction, DropReason};
use openflow::Action;
use packet::Time;
use packet::flow::text::NoNames;

use super::known_length::KnownLength;
use super::steps::PipelineStep;
use super::trace::Event;
use super::{Ctx, XlateError};
use crate::table::classifier::search;

/// Nested table lookups that do not advance to a later table, buckets and patch ports. Lookups that advance are not
/// counted: there are no more than 255 tables.
const MAX_DEPTH: u32 = 64;
/// Table lookups and groups in all.
const MAX_RESUBMITS: u32 = 64 * 64;
/// Datapath actions after which no more tables are looked up.
const MAX_ACTIONS: usize = 8192;
/// Values on the stack.
const MAX_STACK: usize = 4096;

/// Lists of actions inside each other: of rules, clones, buckets, and the actions after `check_pkt_larger`. Leaves room
/// for all lookups that there can be, each inside the one before.
const MAX_NESTING: u32 = 2 * MAX_RESUBMITS;
/// Choices by length inside each other, which stay nested in the datapath.
const MAX_BRANCHES: u32 = datapath::MAX_NESTING as u32;
/// Steps in all, and what takes as long as so many of them. A translation with all of them takes some tens of
/// milliseconds.
const MAX_WORK: usize = 1 << 18;
/// Datapath actions in all.
const MAX_PRODUCED: usize = 4 * MAX_ACTIONS;

/// What a learnt flow, a rewrite for the datapath, state that waits for a packet, and a bucket cost, for the memory that they
/// take.
pub(super) const LEARN: usize = 32;
pub(super) const BUCKET: usize = 4;
pub(super) const REWRITE: usize = 8;
pub(super) const STATE: usize = 16;

/// Parts of conjunctive matches that are looked at while a step is taken.
const LOOKED_AT: usize = 8;

/// A nested list continues on more stack where less than this is left. That is much more than one takes, with all that
/// lies between it and the list inside it. So the bounds hold on every thread, however small its stack.
const STACK_LEFT: usize = 384 << 10;
const MORE_STACK: usize = 4 << 20;

/// What a translation has taken so far.
#[derive(Default)]
pub(super) struct Usage {
    /// See [`MAX_DEPTH`].
    pub depth: u32,
    /// See [`MAX_RESUBMITS`].
    pub resubmits: u32,
    /// See [`MAX_BRANCHES`].
    pub branches: u32,
    /// Tunnels that the packet is in.
    pub tunnels: u8,
    /// Datapath actions outside of the list that is being made.
    pub set_aside: usize,
    /// Copies inside each other, among what was executed since [`Ctx::on_copy`].
    pub copies: u32,
    nesting: u32,
    work: usize,
}

impl Usage {
    /// Steps in all, and what takes as long.
    pub fn work(&self) -> usize {
        self.work
    }
}

impl XlateError {
    /// Whether it says that the translation takes too long or too much room, wherever it happens.
    pub(super) fn is_limit(self) -> bool {
        use XlateError::*;
        matches!(self, TooDeep | TooManyResubmits | StackTooDeep | TooMuchWork)
    }

    /// Why the packets are dropped.
    pub(super) fn drop_reason(self) -> DropReason {
        match self {
            XlateError::TooManyResubmits => DropReason::TooManyResubmits,
            XlateError::StackTooDeep => DropReason::StackTooDeep,
            XlateError::TooMuchWork => DropReason::TooMuchWork,
            XlateError::TooManyLabels | XlateError::TooManyTags => DropReason::TooManyLabels,
            XlateError::UnsupportedPacketType => DropReason::UnsupportedPacketType,
            XlateError::TunnelMetadata => DropReason::TunnelOption,
            XlateError::TooDeep | XlateError::NoBridge | XlateError::NoContext => DropReason::PipelineDepth,
        }
    }
}

impl Ctx<'_, '_> {
    /// Whether another table may be looked up, or another group executed.
    pub(super) fn check_resources(&mut self) -> bool {
        if self.error.is_some() {
            return false;
        }
        if self.usage.depth >= MAX_DEPTH {
            self.fail(XlateError::TooDeep, "over max translation depth 64");
        } else if self.usage.resubmits >= MAX_RESUBMITS {
            self.fail(XlateError::TooManyResubmits, "over 4096 resubmit actions");
        } else if self.stack.len() >= MAX_STACK {
            self.fail(XlateError::StackTooDeep, "resubmits yielded over 64 kB of stack");
        } else if self.produced() >= MAX_ACTIONS {
            // No flow may be that long, but its packets may be handled one by one.
            self.report("resubmits yielded over 64 kB of actions");
            (self.exit, self.slow, self.too_long) = (true, true, true);
        } else {
            return true;
        }
        false
    }

    /// Executes a list inside of others.
    pub(super) fn nested(&mut self, list: impl FnOnce(&mut Self)) {
        if self.usage.nesting >= MAX_NESTING {
            return self.fail(XlateError::TooDeep, &format!("over {MAX_NESTING} nested lists of actions"));
        }
        self.usage.nesting += 1;
        stacker::maybe_grow(STACK_LEFT, MORE_STACK, || list(self));
        self.usage.nesting -= 1;
    }

    /// Whether a choice by length may be nested in the others.
    pub(super) fn may_branch(&mut self) -> bool {
        let may = self.usage.branches < MAX_BRANCHES;
        if !may {
            self.fail(XlateError::TooDeep, &format!("over {MAX_BRANCHES} nested check_pkt_larger actions"));
        }
        may
    }

    /// Bounds how deeply copies are nested in the datapath.
    pub(super) fn check_copies(&mut self) {
        if self.usage.copies + self.usage.branches > MAX_BRANCHES {
            self.fail(XlateError::TooDeep, &format!("over {MAX_BRANCHES} nested copies"));
        }
    }

    /// Counts work. False where it is too much, or the translation has failed before.
    pub(super) fn charge(&mut self, work: usize) -> bool {
        if self.error.is_some() {
            return false;
        }
        self.usage.work = self.usage.work.saturating_add(work);
        if self.usage.work > MAX_WORK {
            self.fail(XlateError::TooMuchWork, &format!("over {MAX_WORK} steps"));
        } else if self.produced() > MAX_PRODUCED {
            self.fail(XlateError::TooMuchWork, &format!("over {MAX_PRODUCED} datapath actions"));
        }
        self.error.is_none()
    }

    /// Counts what conjunctive matches have taken, in rules that were looked at. Where it was too much for one look-up, nothing was
    /// found, and the translation fails.
    pub(super) fn charge_conjunctions(&mut self, effort: usize) {
        let too_much = effort > search::MAX_EFFORT;
        self.charge(if too_much { MAX_WORK + 1 } else { effort / LOOKED_AT });
    }

    /// Counts the header changes that were appended at `before`.
    pub(super) fn committed(&mut self, before: usize) {
        let new = &self.out[before..];
        let resizes = |action: &DpAction| {
            use DpAction::*;
            let labels = matches!(action, PushMpls { .. } | PopMpls { .. } | AddMpls { .. });
            labels
                || matches!(action, PushVlan { .. } | PopVlan | PushEthernet { .. } | PopEthernet | PushNsh(_) | PopNsh)
        };
        if new.iter().any(resizes) {
            self.length = KnownLength::UNKNOWN;
        }
        self.charge(REWRITE * new.len());
    }

    fn produced(&self) -> usize {
        self.usage.set_aside + self.out.len()
    }

    /// Ends the translation.
    pub(super) fn fail(&mut self, error: XlateError, text: &str) {
        self.report(text);
        self.error = Some(error);
    }

    /// Reports an error: to the sink, or else to the log, where the rate is limited.
    pub(super) fn report(&mut self, text: &str) {
        if self.sink.is_some() {
            return self.event(|| Event::Error(text));
        }
        if self.real && LOGGED.admits(self.now) {
            let packet = crate::trace::flow::describe(&self.base, &self.bridge.tlv, &NoNames);
            tracing::warn!("{text} on bridge {} while processing {packet}", self.bridge.config.name);
        }
    }
}

/// What a step costs beside what it executes.
pub(super) fn cost(step: &PipelineStep<'_>) -> usize {
    match step {
        PipelineStep::Act(Action::Clone(_)) => 1,
        PipelineStep::Act(action) => size_of_action(action),
        _ => 1,
    }
}

/// How much memory copies of the actions take, in actions.
pub(super) fn size(actions: &[Action]) -> usize {
    actions.iter().map(size_of_action).sum()
}

/// How much memory copies of the steps take, in actions.
pub(super) fn size_of_step(step: &PipelineStep<'_>) -> usize {
    match step {
        PipelineStep::Act(action) => size_of_action(action),
        PipelineStep::Write(actions) => 1 + size(actions),
        _ => 1,
    }
}

fn size_of_action(action: &Action) -> usize {
    1 + match action {
        Action::Clone(inner) => size(inner),
        Action::Ct(ct) => size(&ct.actions),
        Action::Note(bytes) => bytes.len() / 64,
        Action::Controller(controller) => controller.userdata.len() / 64,
        Action::Bundle(bundle) => bundle.members.len() / 8,
        Action::Learn(learn) => learn.specs.len(),
        Action::Encap(encap) => encap.props.len(),
        _ => 0,
    }
}

/// Limits messages to one a second, with a burst of a few, as in OVS.
struct LogLimit {
    /// When the last message of those that were let through would have been due, in nanoseconds.
    due: AtomicU64,
}

static LOGGED: LogLimit = LogLimit { due: AtomicU64::new(0) };

impl LogLimit {
    const EVERY: u64 = 1_000_000_000;
    const BURST: u64 = 5;

    fn admits(&self, now: Time) -> bool {
        let earliest = now.0.saturating_sub(Self::BURST * Self::EVERY);
        let admit = |due: u64| {
            let due = due.max(earliest) + Self::EVERY;
            (due <= now.0.max(Self::BURST * Self::EVERY)).then_some(due)
        };
        self.due.fetch_update(Relaxed, Relaxed, admit).is_ok()
    }
}
