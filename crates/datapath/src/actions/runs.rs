//! Stage 4, act, for runs: each step of a program is executed on all packets of a run before the next step.
//!
//! No flow tells the packets of a run apart, so they have the same headers at the same offsets, and what a program
//! needs to know of them is found out once. Packets of a run leave each output in order.

use packet::flow::extract::Layers;
use packet::{BATCH_SIZE, Batch, Key, Packet};

use crate::action::PortNo;
use crate::actions::compact::{CompactRewrite, RewriteTable};
use crate::actions::compact_form::CompactPush;
use crate::actions::execute::{Executor, KeyView, Stepped, follow};
use crate::actions::program::{Disposition, Needs, Program, Step};
use crate::actions::sample::Sampler;
use crate::classify::cache::headers::Found;
use crate::classify::table::megaflow::Table;
use crate::classify::{CompiledAction, FastAction, bits};
use crate::drop::DropReason;
use crate::pipeline::batch::{BatchMeta, all};
use crate::pipeline::recirculation::{Pass, RecircStage};
use crate::pipeline::tx::Outputs;
use crate::sync::rcu::Guard;

/// Executes those programs that only rewrite packets and then send them, except for the sending. The packets stay
/// where they are, so a batch can still be sent as a whole. Returns whether all runs have the same action left.
#[inline(never)]
pub fn rewrite_runs(
    table: &Table,
    rewrites: &RewriteTable,
    guard: Guard<'_>,
    packets: &mut Batch,
    meta: &mut BatchMeta,
    outputs: &Outputs,
    sampler: &mut Sampler,
) -> bool {
    let (starts, count) = (meta.starts(), packets.len());
    let (mut rest, mut grown, mut prefetched, mut left) = (starts, 0, false, None);
    let rewrites = rewrites.rewrites();
    if starts == all(count) {
        let each = rewrite_each(rewrites, packets, &mut meta.found);
        if each.rest == 0 {
            meta.headers.longest += each.grown;
            return each.uniform;
        }
        (rest, grown) = (each.rest, each.grown);
    }
    let mut pushed = 0;
    for at in bits(rest) {
        if pushed >> at & 1 != 0 {
            continue;
        }
        let found = meta.found[at];
        let run = at..meta.end_of_run(at, count);
        let port = if let Some(rewrite) = compact(found.action, rewrites) {
            rewrite_compactly(rewrite, &mut packets[run], meta, at, &mut grown, outputs)
        } else if found.is_program() && left != Some(found.flow) {
            if !prefetched {
                prefetched = true;
                prefetch_programs(table, meta, starts);
                let longer;
                (pushed, longer) = push_headers(table, guard, packets, meta, rest);
                grown = longer.max(grown);
                if pushed >> at & 1 != 0 {
                    continue;
                }
            }
            let port = match table.arena.action(found.flow, guard) {
                CompiledAction::Program(program) => {
                    rewrite_run(program, &mut packets[run], meta, at, &mut grown, (outputs, sampler))
                }
                CompiledAction::Output(_) | CompiledAction::Drop(_) => None,
            };
            // What is not done for one run is hardly ever done for the next one of the same flow.
            left = port.is_none().then_some(found.flow);
            port
        } else {
            None
        };
        if let Some(port) = port {
            meta.found[at].action = FastAction::of(CompiledAction::Output(port));
        }
    }
    meta.headers.longest += grown;
    bits(starts).fold(0, |differ, at| differ | meta.found[at].action.differs(meta.found[0].action)) == 0
}

/// The compact rewrite that an action is, if it is one.
#[inline(always)]
fn compact(action: FastAction, rewrites: &[CompactRewrite]) -> Option<&CompactRewrite> {
    action.rewrite().and_then(|number| rewrites.get(number as usize))
}

/// What [`rewrite_each`] has done.
struct Each {
    /// The packets with another action than a compact rewrite, and those that it is not enough for.
    rest: u32,
    /// By how many bytes a packet has grown at most.
    grown: u32,
    /// Whether all packets have the same action left.
    uniform: bool,
}

/// Executes compact rewrites where each packet is a run of its own and has usual headers, with as little as can be from
/// packet to packet.
#[inline(always)]
fn rewrite_each(rewrites: &[CompactRewrite], packets: &mut [Packet], found: &mut [Found; BATCH_SIZE]) -> Each {
    let (mut rest, mut grown, mut differ, mut first) = (0, 0, 0, None);
    for (at, (packet, found)) in packets.iter_mut().zip(found).enumerate() {
        match compact(found.action, rewrites) {
            Some(rewrite) if rewrite.copies().is_empty() && rewrite.apply_to_usual(packet) => {
                found.action = FastAction::of(CompiledAction::Output(rewrite.port()));
                grown |= rewrite.growth();
            }
            _ => rest |= 1 << at,
        }
        differ |= found.action.differs(*first.get_or_insert(found.action));
    }
    Each { rest, grown, uniform: differ == 0 }
}

/// Prefetches programs, which are two dependent loads away.
#[inline(never)]
fn prefetch_programs(table: &Table, meta: &BatchMeta, starts: u32) {
    let is_program = |at: &usize| meta.found[*at].action == FastAction::PROGRAM;
    bits(starts).filter(is_program).for_each(|at| table.arena.prefetch_header(meta.found[at].flow));
    bits(starts).filter(is_program).for_each(|at| table.arena.prefetch_program(meta.found[at].flow));
}

/// Executes the programs of those of the runs `rest` that put headers of tunnels before packets and have a compact form, except for the sending. Returns
/// the runs for which it is done, and by how many bytes a packet has grown at most.
#[inline(never)]
fn push_headers(
    table: &Table,
    guard: Guard<'_>,
    packets: &mut [Packet],
    meta: &mut BatchMeta,
    rest: u32,
) -> (u32, u32) {
    let mut pushes = [None; BATCH_SIZE];
    for at in bits(rest).filter(|at| meta.found[*at].action == FastAction::PROGRAM) {
        if let CompiledAction::Program(program) = table.arena.action(meta.found[at].flow, guard) {
            pushes[at] = program.compact_push();
            pushes[at].iter().for_each(CompactPush::prefetch);
        }
    }
    let (mut done, mut grown, vlan_limit) = (0, 0, meta.vlan_limit);
    for at in bits(rest) {
        let run = at..meta.end_of_run(at, packets.len());
        let Some(push) = pushes[at].filter(|push| packets[run.clone()].iter().all(|packet| push.takes(packet))) else {
            continue;
        };
        push.apply(&mut packets[run], &mut meta.keys[at], vlan_limit);
        meta.found[at].action = FastAction::of(CompiledAction::Output(push.push.port()));
        grown = push.growth().max(grown);
        done |= 1 << at;
    }
    (done, grown)
}

/// Executes a compact rewrite on the packets of the run that starts at `at`. Returns the port that they are to be sent
/// to, or `None` where nothing was done. Copies are not sent here, where they would overtake packets of other runs: they
/// are left to [`send_copies`], unless all of them are for ports that are down. `grown` becomes the most bytes by which a
/// packet has grown.
#[inline(always)]
fn rewrite_compactly(
    rewrite: &CompactRewrite,
    packets: &mut [Packet],
    meta: &mut BatchMeta,
    at: usize,
    grown: &mut u32,
    outputs: &Outputs,
) -> Option<PortNo> {
    let copies = rewrite.copies();
    if !copies.is_empty() {
        if !outputs.are_down(copies, packets) {
            return None;
        }
        copies.iter().for_each(|&port| outputs.count_copies_for_down(packets.len() as u64, port));
        return Some(rewrite.port());
    }
    make_headroom(packets, rewrite.growth(), grown)?;
    let (key, vlan_limit) = (&mut meta.keys[at], meta.vlan_limit);
    // A copy: the compiler would take each packet that is written for one that changes the rewrite.
    let rewrite = *rewrite;
    for packet in packets {
        rewrite.apply(packet, key, vlan_limit);
    }
    Some(rewrite.port())
}

/// As [`rewrite_compactly`], for a program, if it only rewrites and then sends, apart from samples that are not due.
#[inline(always)]
fn rewrite_run(
    program: &Program,
    packets: &mut [Packet],
    meta: &mut BatchMeta,
    at: usize,
    grown: &mut u32,
    (outputs, sampler): (&Outputs, &mut Sampler),
) -> Option<PortNo> {
    if let Some(rewrite) = program.compact() {
        return rewrite_compactly(rewrite, packets, meta, at, grown, outputs);
    }
    if let Some((sampling, rewrite)) = program.unsampled() {
        let count = packets.len();
        if !sampler.takes_none(sampling, count) {
            return None;
        }
        let port = rewrite_compactly(rewrite, packets, meta, at, grown, outputs)?;
        sampler.pass(sampling, count);
        return Some(port);
    }
    let port = program.rewrites_to()?;
    if program.pushes_tunnel() && !program.takes(packets, outputs) {
        return None;
    }
    make_headroom(packets, program.growth(), grown)?;
    if program.needs() == Needs::Headers {
        meta.extract(at, &packets[0]);
    }
    rewrite(&program.steps, packets, &mut meta.keys[at], meta.layers[at]);
    Some(port)
}

/// Makes room for the headers to be pushed. `None`: not every packet has a buffer for them. Then the program is run packet
/// by packet, and drops those without.
#[inline(always)]
fn make_headroom(packets: &mut [Packet], growth: u32, grown: &mut u32) -> Option<()> {
    if growth > 0 && !packets.iter_mut().all(|packet| packet.make_headroom(growth as usize)) {
        return None;
    }
    *grown = growth.max(*grown);
    Some(())
}

/// Executes steps that only rewrite, on packets that have the headroom for them.
#[inline(always)]
fn rewrite(steps: &[Step], packets: &mut [Packet], key: &mut Key, mut layers: Layers) {
    for step in steps {
        for packet in packets.iter_mut() {
            let done = step.rewrite(packet, key, &layers);
            debug_assert!(done, "there is headroom");
        }
        follow(step, &mut layers);
    }
}

/// The flood that an action is, if it is one.
#[inline(always)]
pub fn flood_of(rewrites: &RewriteTable, action: FastAction) -> Option<&CompactRewrite> {
    compact(action, rewrites.rewrites()).filter(|rewrite| !rewrite.copies().is_empty())
}

/// Sends copies of packets to these ports, such as those of a flood but for the last one, which gets the packets themselves.
#[inline(always)]
pub fn send_copies(executor: &mut Executor, ports: impl Iterator<Item = PortNo>, packets: &[Packet], in_port: PortNo) {
    for port in ports {
        if executor.outputs.are_down(&[port], packets) {
            executor.outputs.count_copies_for_down(packets.len() as u64, port);
            continue;
        }
        for packet in packets {
            if let Some(copy) = executor.copy(packet, in_port) {
                executor.outputs.push(port, copy, in_port, executor.now);
            }
        }
    }
}

/// Executes the actions of a flow on the packets of a run, the first of which has index `first` in its batch. The
/// flow has counted them, so its actions are executed even if it has been removed since.
#[inline(never)]
pub fn act_on_run(
    executor: &mut Executor,
    work: CompiledAction<'_>,
    meta: &mut BatchMeta,
    packets: impl Iterator<Item = Packet>,
    first: usize,
    pass: Pass,
) {
    let in_port = meta.in_port();
    match work {
        CompiledAction::Program(program) if program.needs() == Needs::Key => {
            for (packet, i) in packets.zip(first..) {
                meta.extract(i, &packet);
                let view = &mut KeyView::new(&mut meta.keys[i], meta.layers[i]);
                executor.run(program, packet, view, pass.of(program));
            }
        }
        CompiledAction::Program(program) => {
            let mut packets: Batch = packets.collect();
            let view = &mut meta.view_of_run(first, &packets[0], program);
            executor.run_all(program, &mut packets, view, pass.of(program));
        }
        CompiledAction::Output(port) => {
            packets.for_each(|packet| executor.outputs.push(port, packet, in_port, executor.now))
        }
        CompiledAction::Drop(reason) => executor.outputs.retire(packets, reason, in_port),
    }
}

impl BatchMeta {
    /// The view of a run that starts with `packet`, the one of number `at`, for a program that needs less than the
    /// packets' own keys.
    #[inline(always)]
    pub fn view_of_run(&mut self, at: usize, packet: &Packet, program: &Program) -> KeyView<'_> {
        if program.needs() != Needs::Nothing {
            self.extract(at, packet);
        } else if !self.is_extracted(at) {
            self.start_key(at);
        }
        KeyView::of_run(&mut self.keys[at], self.layers[at])
    }
}

impl Executor {
    /// Runs a program that needs less than the packets' own keys on the packets of a run. What it recirculates comes to
    /// the pass `next`.
    pub fn run_all(&mut self, program: &Program, packets: &mut Batch, view: &mut KeyView<'_>, next: Pass) {
        debug_assert!(program.needs() != Needs::Key);
        if program.pushes_tunnel() && !program.takes(packets, &self.outputs) {
            // In their order, each with the packets that it becomes.
            return packets.drain(..).for_each(|packet| self.run(program, packet, &mut view.for_next(), next));
        }
        for step in &program.steps {
            if let Step::Meter(meter) = step {
                self.meter_all(meter, packets, view);
                if packets.is_empty() {
                    return;
                }
                view.follow(step);
                continue;
            }
            if let Step::Sample(sample) = step {
                self.sample_all(sample, packets, view, next);
                continue;
            }
            let mut lost = 0u32;
            for (at, packet) in packets.iter_mut().enumerate() {
                lost |= u32::from(self.step(step, packet, view, next) != Stepped::Done) << at;
            }
            if lost != 0 {
                // Work that is left to do is done for all packets, or for none.
                let reason =
                    if let Step::TunnelPush(..) = step { DropReason::TunnelPush } else { DropReason::NoBuffer };
                self.drop_those(lost, packets, reason, view.in_port());
                if packets.is_empty() {
                    return;
                }
            }
            view.follow(step);
        }
        match &program.end {
            Disposition::Output { port, max_len: u32::MAX } => {
                self.outputs.push_all(*port, packets.drain(..), view.in_port(), self.now);
            }
            Disposition::TunnelPop(pop) => {
                self.pop_batch(pop, packets, view.in_port(), next);
            }
            Disposition::Run(program) => self.run_all(program, packets, view, next),
            Disposition::Recirc(id)
                if next.refusal(self.max_depth, self.recirculation.waiting() + packets.len()).is_none() =>
            {
                let stage = RecircStage { in_port: view.in_port(), recirc_id: *id };
                self.recirculation.push_run(stage, next, packets.drain(..), view.key);
            }
            end => packets.drain(..).for_each(|packet| self.finish(end, packet, &mut view.for_next(), next)),
        }
    }

    /// Drops the packets whose bits are set in `which`.
    #[cold]
    pub(super) fn drop_those(&mut self, which: u32, packets: &mut Batch, reason: DropReason, in_port: PortNo) {
        let (mut lost, mut left) = (Batch::new(), Batch::new());
        for (at, packet) in packets.drain(..).enumerate() {
            if which >> at & 1 == 0 { left.push(packet) } else { lost.push(packet) }
        }
        *packets = left;
        self.outputs.retire_batch(&mut lost, reason, in_port);
    }
}
