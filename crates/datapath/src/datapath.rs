//! The datapath as the rest of the switch sees it.

use std::sync::Arc;
use std::time::Duration;

use packet::{Clock, Key, Packet, Time};
use ports::Port;

use crate::action::{Action, PortNo};
use crate::config::Config;
use crate::error::Error;
use crate::stats::{RemovedFlow, RxAssignment, Stats};
use crate::upcall::{FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Upcall};

/// Ports, flows and the workers that forward between them.
///
/// Every method may be called from any thread, also from [`Upcall`]s, except where it says otherwise.
pub struct Datapath {
    clock: Arc<dyn Clock>,
}

impl Datapath {
    /// A datapath without ports and flows. Its workers do not run until [`start`](Datapath::start);
    /// until then [`poll`](Datapath::poll) drives them.
    pub fn new(config: Config, clock: Arc<dyn Clock>) -> Arc<Datapath> {
        let _ = config;
        Arc::new(Datapath { clock })
    }

    /// Connects the slow path. Until then every miss is dropped as an upcall error. Can be done once;
    /// later calls have no effect.
    pub fn set_upcall(&self, upcall: Arc<dyn Upcall>) {
        let _ = upcall;
        todo!()
    }

    /// Starts the worker and handler threads. Without effect where they run.
    pub fn start(&self) -> Result<(), Error> {
        todo!()
    }

    /// Stops the threads, after which [`poll`](Datapath::poll) drives the datapath again. Packets that
    /// wait for the slow path stay queued. Not to be called from an upcall.
    pub fn stop(&self) {
        todo!()
    }

    /// Runs one turn of each worker in the calling thread, with the upcalls that it causes and what
    /// they send back, and returns how many packets were received. Deterministic. Without effect while
    /// threads run. Not to be called from an upcall.
    pub fn poll(&self) -> usize {
        todo!()
    }

    /// Work that is due now and then: ranks subtables, frees memory, notices changes of the ports' MTU
    /// and state. The handler threads do it every 100 ms; without threads, [`poll`](Datapath::poll)
    /// does.
    pub fn maintain(&self) {
        todo!()
    }

    /// The present time, by the datapath's clock.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Changes how long a packet may wait for others to the same port.
    pub fn set_tx_flush_interval(&self, interval: Duration) {
        let _ = interval;
        todo!()
    }

    /// Adds a port and spreads its receive queues over the workers. Numbers start at 1, ascend, and are
    /// not reused before all others were used once. Not to be called from an upcall.
    pub fn add_port(&self, port: Arc<dyn Port>) -> Result<PortNo, Error> {
        let _ = port;
        todo!()
    }

    /// Takes a port away. When this returns, no worker uses it: its queues are closed, packets that
    /// waited for transmission are sent, and flows for packets from it are removed and returned. Flows
    /// that send to it drop with `NoSuchPort` until the caller changes them. No packet of another port
    /// is lost. Not to be called from an upcall.
    pub fn remove_port(&self, port: PortNo) -> Result<Vec<RemovedFlow>, Error> {
        let _ = port;
        todo!()
    }

    /// The port with this number.
    pub fn port(&self, port: PortNo) -> Option<Arc<dyn Port>> {
        let _ = port;
        todo!()
    }

    /// All ports, in the order of their numbers.
    pub fn ports(&self) -> Vec<(PortNo, Arc<dyn Port>)> {
        todo!()
    }

    /// Takes over changes of the port's MTU and administrative state at once, rather than within the
    /// next [`maintain`](Datapath::maintain).
    pub fn refresh_port(&self, port: PortNo) -> Result<(), Error> {
        let _ = port;
        todo!()
    }

    /// Which worker polls which receive queue.
    pub fn rx_assignments(&self) -> Vec<RxAssignment> {
        todo!()
    }

    /// Installs a flow, or returns the one with equal key and mask, whose actions and tag become these.
    /// in_port, recirc_id and packet_type are matched exactly, whatever the mask says. Flows must not
    /// contradict each other: of those that match a packet, any may be taken.
    pub fn install(&self, spec: FlowSpec) -> Result<FlowId, Error> {
        let _ = spec;
        todo!()
    }

    /// Replaces a flow's actions. Packets of the turn that a worker is in may still see the old ones:
    /// [`barrier`](Datapath::barrier).
    pub fn modify(&self, id: FlowId, actions: Vec<Action>) -> Result<(), Error> {
        let _ = (id, actions);
        todo!()
    }

    /// Replaces the upper layer's record of a flow.
    pub fn set_tag(&self, id: FlowId, tag: FlowTag) -> Result<(), Error> {
        let _ = (id, tag);
        todo!()
    }

    /// Removes a flow; `None` when it has gone already. When this returns, no packet uses it and the
    /// statistics are final.
    pub fn remove(&self, id: FlowId) -> Option<RemovedFlow> {
        self.remove_all(&[id]).pop()
    }

    /// Removes flows, as [`remove`](Datapath::remove), waiting for the workers once. Flows that have
    /// gone already are left out of the answer.
    pub fn remove_all(&self, ids: &[FlowId]) -> Vec<RemovedFlow> {
        let _ = ids;
        todo!()
    }

    /// Removes every flow.
    pub fn flush(&self) -> Vec<RemovedFlow> {
        todo!()
    }

    /// A flow.
    pub fn flow(&self, id: FlowId) -> Option<FlowDump> {
        let _ = id;
        todo!()
    }

    /// A flow's statistics so far.
    pub fn flow_stats(&self, id: FlowId) -> Option<FlowStats> {
        let _ = id;
        todo!()
    }

    /// All flows, in no particular order, while workers and others go on: a flow that is installed or
    /// removed meanwhile may be seen or not; none is seen twice.
    pub fn flows(&self) -> impl Iterator<Item = FlowDump> + '_ {
        std::iter::empty()
    }

    /// Flows installed now.
    pub fn flow_count(&self) -> usize {
        todo!()
    }

    /// Runs actions on a packet. Of `metadata`, in_port, packet_type, packet mark, priority, tunnel and
    /// connection fields count; the others are extracted from the frame. Done by a worker in its next
    /// turn, in the order of the calls; with [`poll`](Datapath::poll), in the next poll.
    pub fn execute(&self, packet: Packet, metadata: &Key, actions: &[Action]) {
        let _ = (packet, metadata, actions);
        todo!()
    }

    /// Counters of the workers and ports.
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// Starts the counters of workers and ports from zero.
    pub fn reset_stats(&self) {
        todo!()
    }

    /// Returns when every worker has finished the turn that it is in. After [`modify`](Datapath::modify)
    /// and a barrier, no packet is treated by the old actions any more.
    pub fn barrier(&self) {
        todo!()
    }
}
