//! What is read of the flows of a packet's way, when a trail begins, goes on and ends, and when the way is gone again.

use packet::BATCH_SIZE;

use super::trail::Trail;
use crate::actions::compact_form::CompactPush;
use crate::actions::program::{Course, Program};
use crate::actions::sample::Sampling;
use crate::classify::cache::fused::{FlowAt, Fused};
use crate::classify::plan::Origin;
use crate::classify::table::arena::{CompiledAction, FastAction};
use crate::classify::table::flow_counters::FlowCounters;
use crate::classify::table::flow_ref::FlowRef;
use crate::classify::{Table, bits};
use crate::pipeline::batch::BatchMeta;
use crate::pipeline::recirculation::RecircStage;
use crate::sync::rcu::Guard;

/// What it takes to read the flows of a way, and to end a trail.
pub struct Ends<'a> {
    /// The flows.
    pub table: &'a Table,
    /// The worker's counters.
    pub counters: FlowCounters<'a>,
    /// Keeps flows from being freed.
    pub guard: Guard<'a>,
}

impl<'a> Ends<'a> {
    /// A flow with its epoch, if it is live. What is read of the flow afterwards holds as long as the epoch is the same.
    pub fn flow_at(&self, flow: FlowRef) -> Option<FlowAt> {
        let epoch = self.counters.of(flow).epoch();
        self.table.arena.live(flow, self.guard)?;
        Some(FlowAt { flow, epoch })
    }

    /// What the last flow of a connection's way does, if it puts packets into a tunnel. `None` where it is no more what it was.
    #[inline(always)]
    pub fn push_of(&self, connection: &Fused) -> Option<CompactPush<'a>> {
        match self.last_action(connection)? {
            CompiledAction::Program(program) if connection.action == FastAction::REST => program.tracked_push(),
            CompiledAction::Program(program) => program.compact_push(),
            CompiledAction::Output(_) | CompiledAction::Drop(_) => None,
        }
    }

    /// What the last flow of a connection's way does. `None` where it is gone.
    #[inline(always)]
    pub fn last_action(&self, connection: &Fused) -> Option<CompiledAction<'a>> {
        Some(self.table.arena.live(connection.later[0].flow, self.guard)?.action())
    }

    /// Which of these packets are samples, if all of them have the same flow, which takes samples before it tracks them.
    pub fn sampling_of(&self, those: u32, meta: &BatchMeta) -> Option<Sampling> {
        let flow = meta.found[bits(those).next()?].flow;
        match self.table.arena.live(flow, self.guard)?.action() {
            CompiledAction::Program(program) if bits(those).all(|i| meta.found[i].flow == flow) => program.sampling(),
            _ => None,
        }
    }

    /// The program of these packets, if all of them have the same flow, which sends copies before it tracks them; and the flow.
    pub fn copying_of(&self, those: u32, meta: &BatchMeta) -> Option<(FlowRef, &'a Program)> {
        let flow = meta.found[bits(those).next()?].flow;
        let CompiledAction::Program(program) = self.table.arena.live(flow, self.guard)?.action() else { return None };
        let is_same = bits(those).all(|i| meta.found[i].flow == flow) && program.course() == Course::TracksCopied;
        is_same.then_some((flow, program))
    }

    /// Prefetches what these connections put before packets, three dependent loads away.
    #[inline(never)]
    pub fn prefetch_pushes(&self, those: u32, connections: &[&Fused; BATCH_SIZE]) {
        let arena = &self.table.arena;
        bits(those).for_each(|i| arena.prefetch_header(connections[i].later[0].flow));
        bits(those).for_each(|i| arena.prefetch_program(connections[i].later[0].flow));
        bits(those).filter_map(|i| self.push_of(connections[i])).for_each(|push| push.prefetch());
    }

    /// The beginning of a trail, for packet `i` of a batch, which some flow has and a port has received.
    pub fn begins(&self, meta: &BatchMeta, i: usize) -> Option<(FlowAt, u64)> {
        if !meta.is_tracked() || !meta.has_line(i) {
            return None;
        }
        let list = self.table.list(meta.stage(), self.guard)?;
        let pattern = list.plan.pattern_of(Origin::of(&meta.headers.lines[i].0))?;
        let first = self.flow_at(meta.found[i].flow)?;
        pattern.tells_connections.then_some((first, list.plan.serial))
    }

    /// The trail of a packet that has come to another flow, which matches nothing that differs between packets of one
    /// line.
    pub fn goes_on(&self, mut trail: Trail, stage: RecircStage, flow: FlowAt) -> Option<Trail> {
        let list = self.table.list(RecircStage { recirc_id: 0, ..stage }, self.guard)?;
        let tracked = list.plan.tracked.as_deref().filter(|_| list.plan.serial == trail.serial)?;
        let live = self.table.arena.live(flow.flow, self.guard)?;
        (live.is_within(tracked) && trail.add(flow)).then_some(trail)
    }
}
