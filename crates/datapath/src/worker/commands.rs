//! What others have asked a worker to do, and queues that it gives away.

use std::sync::mpsc::Sender;

use packet::Packet;
use packet::flow::extract::extract;

use crate::action::PortNo;
use crate::actions::execute::KeyView;
use crate::actions::program::Program;
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::recirculation::Pass;
use crate::worker::Worker;
use crate::worker::mailbox::{Command, GivenBack};
use crate::worker::rx_queue::Rx;

/// Receive queues of a port that are on their way to other workers. While they wait for packets that are
/// up, none of the port's is polled: otherwise the wait might never end.
pub struct Leaving {
    port: PortNo,
    /// What leaves.
    rx: Vec<Rx>,
    /// What stays.
    kept: Vec<Rx>,
    reply: Sender<Vec<Rx>>,
}

impl Worker {
    /// Does what others have asked for. Returns how many packets that handled.
    pub fn handle_commands(&mut self) -> usize {
        if !self.mailbox.has_mail() {
            return 0;
        }
        // What came before the commands goes before them.
        self.recirculate();
        let commands = self.mailbox.take();
        let mut count = commands.len();
        for command in commands {
            match command {
                Command::AddPort { port, tx, rx } => {
                    self.receive_from(rx);
                    self.executor.outputs.add(port, tx);
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
                    // Closed by whoever asked: tearing down takes time.
                    let _ = reply.send(given_back);
                }
                Command::SetIngress { port, queue, ingress } => {
                    self.idle_queues.recall(port, &mut self.rx, self.executor.now);
                    if let Some(rx) = self.rx.iter_mut().find(|rx| rx.port.no == port && rx.index == queue) {
                        rx.ingress = ingress;
                    }
                }
                Command::SetNotifier(notifier) => self.executor.misses.set_notifier(notifier),
                Command::Execute { packet, metadata, program } => self.execute(packet, metadata, &program),
                Command::SetFlushInterval(interval) => self.executor.outputs.set_interval(interval, self.executor.now),
                Command::Report(reply) => {
                    // To be asked is no work, or a worker that is asked would never be idle.
                    count -= 1;
                    let _ = reply.send(std::mem::take(&mut self.idle) && self.executor.misses.is_empty());
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

    /// Receives from these queues from now on.
    fn receive_from(&mut self, queues: Vec<Rx>) {
        for rx in queues {
            // Parked, it is found as soon as it has frames.
            if let Err(rx) = self.idle_queues.park(rx) {
                self.rx.push(rx);
            }
        }
    }

    /// The receive queues of a port, no longer polled.
    fn take_rx(&mut self, port: PortNo) -> Vec<Rx> {
        let mut taken: Vec<Rx> = self.rx.extract_if(.., |rx| rx.port.no == port).collect();
        taken.iter_mut().for_each(|rx| self.idle_queues.forget(rx));
        taken.extend(self.idle_queues.take(port));
        taken
    }

    /// Gives away what may go now. What the queues' packets have come to is sent before, so that the next
    /// worker's come after them.
    #[cold]
    pub fn hand_over(&mut self) {
        self.executor.outputs.flush(self.executor.now);
        for leaving in std::mem::take(&mut self.leaving) {
            if self.executor.misses.has_outstanding(leaving.port) {
                self.leaving.push(leaving);
                continue;
            }
            self.rx.extend(leaving.kept);
            // Whoever asked waits for it.
            let _ = leaving.reply.send(leaving.rx);
        }
        if self.executor.misses.is_empty() && self.deferred.is_empty() {
            for waiting in self.draining.drain(..) {
                let _ = waiting.send(());
            }
        }
    }

    fn execute(&mut self, packet: Packet, metadata: OwnMetadata, program: &Program) {
        self.executor.counters.injected.add(1);
        let mut key = self.executor.misses.spare_keys().pop().unwrap_or_default();
        metadata.start(&mut key);
        let layers = extract(packet.data(), &mut key, self.executor.vlan_limit);
        self.executor.run(program, packet, &mut KeyView::new(&mut key, layers), Pass::FIRST.of(program));
        self.executor.misses.reuse(key);
        self.executor.misses.notify();
    }
}
