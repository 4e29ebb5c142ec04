//! How a worker executes commands, and gives receive queues to other workers.

use std::sync::mpsc::Sender;

use packet::Packet;
use packet::flow::extract::extract;

use crate::action::PortNo;
use crate::actions::execute::KeyView;
use crate::actions::program::Program;
use crate::classify::table::megaflow::LookupContext;
use crate::classify::{CacheTier, probe};
use crate::perf::worker::WorkerPerf;
use crate::pipeline::ingress::with_policer;
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::recirculation::Pass;
use crate::worker::Worker;
use crate::worker::mailbox::{Command, GivenBack};
use crate::worker::rx_queue::Rx;

/// Receive queues of a port that are moving to other workers. They leave when no packet of the port is outstanding in
/// the slow path. Until then none of the port's queues is polled here, since otherwise that might never be the case.
pub struct Leaving {
    port: PortNo,
    /// The queues that leave.
    rx: Vec<Rx>,
    /// The queues of the port that stay.
    kept: Vec<Rx>,
    reply: Sender<Vec<Rx>>,
}

impl Worker {
    /// Executes the waiting commands. Returns how many packets that processed.
    pub fn handle_commands(&mut self) -> usize {
        if !self.mailbox.has_mail() {
            return 0;
        }
        // Packets that came before the commands are processed before them.
        self.recirculate();
        let commands = self.mailbox.take();
        let mut count = commands.len();
        for command in commands {
            match command {
                Command::AddPort { port, tx, rx, reply } => {
                    self.receive_from(rx);
                    self.executor.outputs.add(port, tx);
                    let _ = reply.send(());
                }
                Command::TakeRx { rx } => self.receive_from(rx),
                Command::GiveRx { port, queues, reply } => {
                    let of_port = self.take_rx(port);
                    let (rx, kept) = of_port.into_iter().partition(|rx| queues.contains(&rx.index));
                    self.leaving.push(Leaving { port, rx, kept, reply });
                }
                Command::ShareTx { port, reply } => {
                    let _ = reply.send(self.executor.outputs.share(port));
                }
                Command::ReplaceTx { port, tx } => self.executor.outputs.replace(port, tx, self.executor.now),
                Command::ReclaimTx => self.executor.outputs.reclaim(),
                Command::Drain { reply } => self.draining.push(reply),
                Command::RemovePorts { ports, reply } => {
                    let mut given_back = GivenBack::default();
                    for &port in &*ports {
                        given_back.rx.extend(self.take_rx(port));
                        given_back.tx.extend(self.executor.outputs.remove(port, self.executor.now));
                    }
                    // The requester drops the queues, since closing them takes time.
                    let _ = reply.send(given_back);
                }
                Command::SetIngress { port, queue, ingress } => {
                    self.idle_queues.recall(port, &mut self.rx, self.executor.now);
                    if let Some(rx) = self.rx.iter_mut().find(|rx| rx.port.no == port && rx.index == queue) {
                        let policer = rx.ingress.take().and_then(|stages| stages.policer);
                        rx.ingress = with_policer(ingress, policer);
                    }
                }
                Command::SetPolicers { port, policers } => {
                    self.idle_queues.recall(port, &mut self.rx, self.executor.now);
                    for rx in self.rx.iter_mut().filter(|rx| rx.port.no == port) {
                        rx.ingress = with_policer(rx.ingress.take(), policers.ingress.clone());
                    }
                    self.executor.outputs.set_policer(port, policers.egress, self.executor.now);
                }
                Command::SetHandlers(serving) => self.executor.misses.set_handlers(serving),
                Command::Execute { packet, metadata, program, injection } => {
                    self.execute(packet, metadata, &program);
                    drop(injection);
                }
                Command::Retire { fragments, reason } => {
                    fragments.into_iter().for_each(|held| self.executor.retire_held(held, reason));
                }
                Command::AddTap(tap) => self.executor.outputs.add_tap(*tap, &self.table, self.executor.now),
                Command::SetTapPorts { number, ports } => self.executor.outputs.set_tap_ports(number, &ports),
                Command::RemoveTap(number) => self.executor.outputs.remove_tap(number),
                Command::SetVerifying(verifying) => self.executor.verify.set(*verifying),
                Command::SetPerf(perf) => self.set_perf(perf),
                Command::SetFlushInterval(interval) => self.executor.outputs.set_interval(interval, self.executor.now),
                Command::Report(reply) => {
                    // A report does not count as work, or a worker that is asked for reports would never be idle.
                    count -= 1;
                    let _ = reply.send(std::mem::take(&mut self.idle) && self.executor.misses.is_empty());
                }
                Command::Probe { port, frame, reply } => {
                    count -= 1;
                    let _ = reply.send((self.number, self.probe(port, &frame)));
                }
                Command::SetMaxSleep(max_sleep) => self.max_sleep = max_sleep,
                Command::SetExactOneIn(one_in) => self.caches.set_one_in(one_in),
                Command::SetVlanLimit(limit) => {
                    (self.in_flight.meta.vlan_limit, self.executor.vlan_limit) = (limit, limit);
                }
                Command::SetExactEntries(entries) => self.caches.resize(entries),
            }
        }
        self.recirculate();
        count
    }

    /// Measures performance from now on, or no longer.
    pub fn set_perf(&mut self, perf: Option<Box<WorkerPerf>>) {
        self.executor.misses.measures = perf.is_some();
        self.executor.outputs.perf = perf.as_ref().map(|perf| perf.metrics().clone());
        self.perf = perf;
    }

    /// By which tier it would find the flow of a frame that came in at a port.
    fn probe(&self, port: PortNo, frame: &Packet) -> Option<CacheTier> {
        let guard = self.reader.pin();
        let list = self.table.list_of_port(port, guard)?;
        let at = LookupContext { list, table: &self.table, worker: self.number, guard, count_at: None };
        probe::tier(at, frame, &self.caches, port, self.in_flight.meta.vlan_limit)
    }

    /// Adds receive queues.
    fn receive_from(&mut self, queues: Vec<Rx>) {
        for rx in queues {
            // A queue can be parked at once: it is found as soon as it has frames.
            if let Err(rx) = self.idle_queues.park(rx) {
                self.rx.push(rx);
            }
        }
    }

    /// Removes the receive queues of a port, and returns them.
    fn take_rx(&mut self, port: PortNo) -> Vec<Rx> {
        let mut taken: Vec<Rx> = self.rx.extract_if(.., |rx| rx.port.no == port).collect();
        taken.iter_mut().for_each(|rx| self.idle_queues.forget(rx));
        taken.extend(self.idle_queues.take(port));
        taken
    }

    /// Gives those queues away that may leave now. Their packets are transmitted first, so that packets that the next
    /// worker receives come after them.
    #[cold]
    pub fn hand_over(&mut self) {
        self.executor.outputs.flush(self.executor.now);
        for leaving in std::mem::take(&mut self.leaving) {
            if self.executor.misses.has_outstanding(leaving.port) {
                self.leaving.push(leaving);
                continue;
            }
            self.rx.extend(leaving.kept);
            // The requester waits for this reply.
            let _ = leaving.reply.send(leaving.rx);
        }
        if self.executor.misses.is_empty() && self.deferred.is_empty() {
            for waiting in self.draining.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    fn execute(&mut self, mut packet: Packet, metadata: OwnMetadata, program: &Program) {
        self.executor.counters.injected.add(1);
        let mut key = self.executor.misses.spare_keys().pop().unwrap_or_default();
        metadata.start(&mut key);
        packet.set_queue(key.common().skb_priority.get());
        let layers = extract(packet.data(), &mut key, self.executor.vlan_limit);
        self.executor.run(program, packet, &mut KeyView::new(&mut key, layers), Pass::FIRST.of(program));
        self.executor.misses.reuse(key);
        self.executor.misses.notify();
    }
}
