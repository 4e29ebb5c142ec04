//! Stage 6 for runs: a program's steps are each done with all packets of a run before the next.
//!
//! No flow of the port tells the packets of a run apart, so they have the same headers in the same places: what
//! a program needs to know of them is found out once. Packets of a run leave each output in their order.

use packet::flow::extract::Layers;
use packet::{Batch, Key, Packet};

use crate::act::{Actor, View, follow};
use crate::action::PortNo;
use crate::classify::batch::{Notes, end_of_run, start_key};
use crate::classify::megaflow::Table;
use crate::classify::{Deed, Work, bits};
use crate::drop::DropReason;
use crate::program::{Needs, Program, Step, Use};
use crate::rcu::Guard;
use crate::rewrite::Malformed;

/// Does what the programs do that only rewrite packets and then send them, and leaves of them the sending: the
/// packets stay where they are, and a batch may still leave as a whole: returns whether the same is left to do with
/// all.
#[inline(never)]
pub fn rewrite_runs(table: &Table, guard: Guard<'_>, packets: &mut Batch, notes: &mut Notes, in_port: PortNo) -> bool {
    let (starts, count) = (notes.starts, packets.len());
    let mut grown = 0;
    // What a flow does lies two loads away: ask for it ahead.
    for at in bits(starts) {
        table.arena.prefetch_header(notes.found[at].flow);
    }
    for at in bits(starts) {
        table.arena.prefetch_program(notes.found[at].flow);
    }
    for at in bits(starts) {
        let found = notes.found[at];
        if found.deed != Deed::PROGRAM {
            continue;
        }
        let Work::Program(program) = table.arena.work(found.flow, guard) else { continue };
        let Some(port) = program.rewrites_to() else { continue };
        if program.needs() == Needs::Headers {
            notes.extract(at, &packets[at], in_port);
        }
        let run = at..end_of_run(starts, at, count);
        let (key, layers) = (&mut notes.keys[at], notes.layers[at]);
        let malformed = rewrite(&program.steps, &mut packets[run.clone()], key, layers);
        notes.found[at].deed = Deed::of(Work::Output(port));
        if malformed != 0 {
            part(notes, run, malformed);
        }
        grown = grown.max(program.growth());
    }
    notes.heads.longest += grown;
    bits(notes.starts).all(|at| notes.found[at].deed == notes.found[0].deed)
}

/// Does steps that only rewrite. Returns which packets cannot be rewritten.
#[inline(always)]
fn rewrite(steps: &[Step], packets: &mut [Packet], key: &mut Key, mut layers: Layers) -> u32 {
    let mut malformed = 0;
    for step in steps {
        for (i, packet) in packets.iter_mut().enumerate() {
            if let Err(Malformed) = step.rewrite(packet, key, &layers) {
                malformed |= 1 << i;
            }
        }
        follow(step, &mut layers);
    }
    malformed
}

/// Makes the packets of a run that was rewritten runs of their own, those that could not be to be dropped.
#[cold]
fn part(notes: &mut Notes, run: std::ops::Range<usize>, malformed: u32) {
    let found = notes.found[run.start];
    for (n, i) in run.enumerate() {
        notes.starts |= 1 << i;
        notes.found[i] = found;
        if malformed >> n & 1 != 0 {
            notes.found[i].deed = Deed::of(Work::Drop(DropReason::Malformed));
        }
    }
}

/// Does what their flow says with the packets of a run, the first of which has number `first` in its batch. They have
/// been counted for it, so that is done even if it has been removed since.
#[inline(never)]
pub fn act_on_run(
    actor: &mut Actor,
    work: Work<'_>,
    notes: &mut Notes,
    packets: impl Iterator<Item = Packet>,
    first: usize,
    depth: u8,
    in_port: PortNo,
) {
    match work {
        Work::Program(program) if program.needs() == Needs::Key => {
            for (packet, i) in packets.zip(first..) {
                notes.extract(i, &packet, in_port);
                let view = &mut View::new(&mut notes.keys[i], notes.layers[i]);
                actor.run(program, packet, view, depth);
            }
        }
        Work::Program(program) => {
            let mut packets: Batch = packets.collect();
            let view = &mut notes.view_of_run(first, &packets[0], in_port, program.needs());
            actor.run_all(program, &mut packets, view, depth);
        }
        Work::Output(port) => packets.for_each(|packet| actor.outputs.push(port, packet, in_port, actor.now)),
        Work::Drop(reason) => packets.for_each(|packet| actor.outputs.drop(packet, reason, in_port)),
    }
}

impl Notes {
    /// The view of a run that starts with `packet`, the one of number `at`, for a program that needs less than the
    /// packets' own keys.
    #[inline(always)]
    pub fn view_of_run(&mut self, at: usize, packet: &Packet, in_port: PortNo, needs: Needs) -> View<'_> {
        if needs != Needs::Nothing {
            self.extract(at, packet, in_port);
        } else if self.extracted >> at & 1 == 0 {
            start_key(&mut self.keys[at], in_port);
        }
        View::of_run(&mut self.keys[at], self.layers[at])
    }
}

impl Actor {
    /// Runs a program that needs less than the packets' own keys on the packets of a run, which have been
    /// recirculated `depth` times.
    pub fn run_all(&mut self, program: &Program, packets: &mut Batch, view: &mut View<'_>, depth: u8) {
        debug_assert!(program.needs() != Needs::Key);
        for step in &program.steps {
            let mut malformed = 0u32;
            for (i, packet) in packets.iter_mut().enumerate() {
                if let Err(Malformed) = self.step(step, packet, view, depth) {
                    malformed |= 1 << i;
                }
            }
            view.follow(step);
            // From behind, so that the numbers of those before stay right.
            while malformed != 0 {
                let last = malformed.ilog2();
                malformed ^= 1 << last;
                let packet = packets.remove(last as usize);
                self.outputs.drop(packet, DropReason::Malformed, view.in_port());
            }
        }
        match &program.end {
            Use::Output { port, max_len: u32::MAX } => {
                self.outputs.push_all(*port, packets.drain(..), view.in_port(), self.now);
            }
            Use::Run(program) if depth < self.max_depth => self.run_all(program, packets, view, depth + 1),
            end => packets.drain(..).for_each(|packet| self.finish(end, packet, &mut view.again(), depth)),
        }
    }
}
