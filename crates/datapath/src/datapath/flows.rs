//! Flows of the datapath, and packets that the layer above injects.

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use packet::{Key, Mask, Packet, Time};

use crate::action::{Action, PortNo};
use crate::actions::program::Program;
use crate::classify::{CacheTier, Requester};
use crate::datapath::Datapath;
use crate::error::Error;
use crate::pipeline::metadata::OwnMetadata;
use crate::slowpath::flow_log;
use crate::upcall::{FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, FlowUses, RemovedFlow};
use crate::worker::mailbox::Command;

/// Bytes of injected packets and their actions that wait for workers before nobody should inject more.
const MAX_INJECTED: usize = 16 << 20;

/// What an injected packet takes at least.
const INJECTION_BYTES: usize = 1024;

impl Datapath {
    /// Installs a flow. If one with equal key and mask exists, it gets these actions and this tag, and is returned.
    /// in_port, recirc_id and packet_type are matched exactly, regardless of the mask. Flows must not contradict each
    /// other: if several match a packet, any of them may be used.
    pub fn install(&self, spec: FlowSpec) -> Result<FlowId, Error> {
        let FlowSpec { key, mask, actions, tag } = spec;
        let installed =
            self.resources.table.install(&key, mask, actions.into(), tag, self.now(), Requester::Management)?;
        if !installed.existed
            && flow_log::is_on()
            && let Some(flow) = self.flow(installed.id)
        {
            flow_log::flow_added(flow.id, &key, &flow.mask, &flow.actions);
        }
        Ok(installed.id)
    }

    /// Replaces a flow's actions. Packets of the batch that a worker is processing may still get the old ones; see
    /// [`barrier`](Datapath::barrier). So may packets that the slow path has answered already, and that are on their
    /// way back.
    pub fn modify(&self, id: FlowId, actions: Vec<Action>) -> Result<(), Error> {
        if flow_log::is_on()
            && let Some(flow) = self.flow(id)
        {
            flow_log::flow_modified(id, (&flow.key, &flow.mask), &flow.actions, &actions);
        }
        self.resources.table.modify(id, actions)
    }

    /// Replaces the upper layer's record of a flow.
    pub fn set_tag(&self, id: FlowId, tag: FlowTag) -> Result<(), Error> {
        self.resources.table.set_tag(id, tag)
    }

    /// Removes a flow; `None` when it has gone already. When this returns, no packet uses it and the
    /// statistics are final.
    pub fn remove(&self, id: FlowId) -> Option<RemovedFlow> {
        self.remove_all(&[id]).pop()
    }

    /// Removes flows, as [`remove`](Datapath::remove), waiting for the workers once. Flows that have
    /// gone already are left out of the answer.
    pub fn remove_all(&self, ids: &[FlowId]) -> Vec<RemovedFlow> {
        self.resources.table.remove(ids)
    }

    /// Removes every flow.
    pub fn flush(&self) -> Vec<RemovedFlow> {
        self.remove_all(&self.resources.table.ids(None))
    }

    /// A flow.
    pub fn flow(&self, id: FlowId) -> Option<FlowDump> {
        self.resources.table.dump(id)
    }

    /// The flow of this key and mask: the one that [`install`](Datapath::install) would change.
    pub fn find_flow(&self, key: &Key, mask: Mask) -> Option<FlowId> {
        self.resources.table.find_same(key, mask)
    }

    /// The flow of packets with this key, of which `in_port` is a port of the datapath.
    pub fn find_matching(&self, key: &Key) -> Option<FlowDump> {
        self.flow(self.resources.table.find_locked(key)?)
    }

    /// By which tier of its caches each worker would find the flow of a frame that came in at a port, by the worker's
    /// number. Each worker looks once, in its next turn; those that have not looked after `timeout` are left out. The
    /// frame changes nothing, and is not forwarded.
    pub fn probe(&self, port: PortNo, frame: &[u8], timeout: Duration) -> Vec<(usize, CacheTier)> {
        let (reply, answers) = mpsc::channel();
        let frame = || Packet::from_slice(frame);
        self.control.lock().tell(|| Command::Probe { port, frame: frame(), reply: reply.clone() });
        drop(reply);
        let deadline = Instant::now() + timeout;
        let next = || answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
        let mut found: Vec<_> = std::iter::from_fn(next).filter_map(|(n, tier)| Some((n, tier?))).collect();
        found.sort_unstable_by_key(|(worker, _)| *worker);
        found
    }

    /// A flow's statistics so far.
    pub fn flow_stats(&self, id: FlowId) -> Option<FlowStats> {
        self.resources.table.stats(id)
    }

    /// What of them the worker with this number has counted, and those that had the number before it.
    pub fn flow_stats_by(&self, id: FlowId, worker: usize) -> Option<FlowStats> {
        self.resources.table.stats_by(id, worker)
    }

    /// All flows, in no particular order, while workers and others go on: a flow that is installed or
    /// removed meanwhile may be seen or not; none is seen twice.
    pub fn flows(&self) -> impl Iterator<Item = FlowDump> + '_ {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let (flows, from) = self.resources.table.dump_some(next?);
            next = from;
            Some(flows)
        })
        .flatten()
    }

    /// As [`flows`](Datapath::flows), in chunks: some flows from a place on, maybe none, and the place after them, or
    /// `None` at the end. The first place is zero. A place stays good while flows come and go; no flow is in two chunks
    /// of one walk.
    pub fn flows_from(&self, from: usize) -> (Vec<FlowDump>, Option<usize>) {
        self.resources.table.dump_some(from)
    }

    /// The numbers of all flows that are installed now are below this one. Walks go over numbers, in chunks of
    /// [`FLOW_CHUNK`](Datapath::FLOW_CHUNK), and several threads can share one.
    pub fn flow_numbers(&self) -> usize {
        self.resources.table.flow_numbers()
    }

    /// How many numbers a chunk has.
    pub const FLOW_CHUNK: usize = crate::classify::FLOW_CHUNK;

    /// Takes what the flows of a chunk have counted: each packet is taken once. Also tells which of them no packet has
    /// used since `idle_since`. Replaces what is in `uses`.
    pub fn take_uses(&self, from: usize, idle_since: Option<Time>, uses: &mut FlowUses) {
        self.resources.table.take_uses(from, idle_since, uses);
    }

    /// Calls `visit` for the flows of a chunk, with their input port, what they have counted in all, and their tag, for who only looks: nothing is
    /// taken of it. The flows' lock is held meanwhile, for a few hundred of them at a time.
    pub fn visit_flows(&self, from: usize, visit: impl FnMut(FlowId, PortNo, &FlowStats, &FlowTag)) {
        self.resources.table.visit_flows(from, visit);
    }

    /// The input ports whose flows ask for more masks than they may have ([`set_max_masks`](Datapath::set_max_masks)): some of these flows match
    /// more than they would, so there are more of them.
    pub fn ports_under_mask_pressure(&self) -> BTreeSet<PortNo> {
        self.resources.table.ports_under_mask_pressure()
    }

    /// As [`take_uses`](Datapath::take_uses), for one flow. `None` where it has been removed.
    pub fn take_use(&self, id: FlowId) -> Option<FlowStats> {
        self.resources.table.take_use(id)
    }

    /// Finds flows of a chunk by tag, mask and key, and appends them to `found`, with their tags. `is_wanted` is called with the flows'
    /// lock held, and can have the masked key written to a key of its own. Returns how many flows it was asked about.
    pub fn find_flows(
        &self,
        from: usize,
        is_wanted: impl FnMut(&FlowTag, &Arc<Mask>, &dyn Fn(&mut Key) -> bool) -> bool,
        found: &mut Vec<(FlowId, FlowTag)>,
    ) -> usize {
        self.resources.table.find_flows(from, is_wanted, found)
    }

    /// As [`find_flows`](Datapath::find_flows), of all flows those that agree with one of `values` in all bits that both
    /// `mask` and their own mask have. Finds them by an index, and maybe some others. False where a walk over all flows is
    /// no dearer: then none are found. Flows that are installed meanwhile may be missed.
    pub fn find_agreeing(
        &self,
        mask: &Mask,
        values: &[Key],
        is_wanted: impl FnMut(&FlowTag, &Arc<Mask>, &dyn Fn(&mut Key) -> bool) -> bool,
        found: &mut Vec<(FlowId, FlowTag)>,
    ) -> bool {
        self.resources.table.find_agreeing(mask, values, self.now(), is_wanted, found)
    }

    /// Sets how many flows there have to be for [`find_agreeing`](Datapath::find_agreeing) to use an index.
    pub fn set_indexed_from(&self, flows: usize) {
        self.resources.table.set_indexed_from(flows);
    }

    /// Hands the flows that were evicted before this call to [`Upcall::evicted`](crate::Upcall::evicted), those included that workers
    /// were still using. Not to be called from an upcall.
    pub fn hand_over_evicted(&self) {
        self.resources.hand_over(self.resources.table.take_all_evicted());
    }

    /// Flows installed now.
    pub fn flow_count(&self) -> usize {
        self.resources.table.count()
    }

    /// Most flows that there may be.
    pub fn max_flows(&self) -> usize {
        self.resources.table.max_flows()
    }

    /// Most memory that they may take, in bytes.
    pub fn max_flow_memory(&self) -> usize {
        self.resources.table.max_memory()
    }

    /// Runs actions on a packet. Of `metadata`, in_port, packet_type, packet mark, priority, tunnel and
    /// connection fields count; the others are extracted from the frame. Done by a worker in its next
    /// turn, in the order of the calls; with [`poll`](Datapath::poll), in the next poll.
    pub fn execute(&self, packet: Packet, metadata: &Key, actions: &[Action]) {
        let injection = self.injections.add(INJECTION_BYTES + packet.len() + size_of_val(actions));
        let program = Box::new(Program::compile(actions));
        let (metadata, in_port) = (OwnMetadata::of(metadata, &mut Vec::new()), crate::upcall::in_port(metadata));
        // By the worker that has the input port's first queue, so that the packet stays in order with
        // what comes in there; by another where that one is about to end.
        let assigned = self.ports.lock().first_worker(in_port);
        if let Some(worker) = self.pool.read().staying(assigned) {
            worker.mailbox.post(Command::Execute { packet, metadata, program, injection });
        }
    }

    /// Whether packets that were injected and have not been run yet take so much memory that no more should be. Whoever
    /// injects for a peer asks before, and has the peer wait.
    pub fn has_injected_enough(&self) -> bool {
        self.injections.bytes() > MAX_INJECTED
    }
}
