//! Who sends and receives by which queue of a port, and how queues change hands between workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;

use ports::{Port, TxQueue};

use crate::action::PortNo;
use crate::control::assignment::{self, Candidate, Load, Place};
use crate::control::pool::{Crew, Management};
use crate::datapath::{Entry, Ports, Shared};
use crate::error::Error;
use crate::pipeline::port::Queue;
use crate::worker::Worker;
use crate::worker::mailbox::Command;
use crate::worker::rx_queue::Rx;

/// The transmit queues of a port: each worker has its own while there are enough, otherwise some share.
pub struct TxQueues {
    /// Queues that were made.
    made: usize,
    /// Those of workers that have ended.
    spare: Vec<Box<dyn TxQueue>>,
    /// Workers without a queue of their own.
    sharers: BTreeSet<usize>,
}

impl TxQueues {
    /// Makes the queues of a port, one for each of `workers`.
    pub fn make(port: &dyn Port, workers: &[usize]) -> Result<(TxQueues, Vec<Queue>), Error> {
        let made = port.max_tx_queues().clamp(1, workers.len());
        let queues = (0..made).map(|index| port.tx_queue(index)).collect::<Result<Vec<_>, _>>()?;
        let mut state = TxQueues { made, spare: Vec::new(), sharers: BTreeSet::new() };
        if made == workers.len() {
            return Ok((state, queues.into_iter().map(Queue::Own).collect()));
        }
        state.sharers.extend(workers);
        let shared: Vec<_> = queues.into_iter().map(|queue| Queue::Own(queue).share().1).collect();
        Ok((state, (0..workers.len()).map(|nth| Queue::Shared(shared[nth % made].clone())).collect()))
    }

    /// A queue that no other worker uses, if there is one.
    fn own(&mut self, port: &dyn Port) -> Option<Box<dyn TxQueue>> {
        if let Some(spare) = self.spare.pop() {
            return Some(spare);
        }
        if self.made >= port.max_tx_queues() {
            return None;
        }
        let queue = port.tx_queue(self.made).inspect_err(|error| tracing::warn!("{error}; sharing a queue")).ok()?;
        self.made += 1;
        Some(queue)
    }
}

impl Management {
    /// Gives a new worker, which does not run yet, a queue to each port.
    pub(crate) fn connect(&mut self, shared: &Shared, worker: &mut Worker) {
        let mut ports = shared.ports.lock();
        for entry in ports.by_number.values_mut() {
            let queue = match entry.tx.own(&*entry.shared.port) {
                Some(queue) => Some(Queue::Own(queue)),
                None => self.borrow(&shared.crew.read(), entry, worker.number),
            };
            if let Some(queue) = queue {
                worker.executor.outputs.add(entry.shared.clone(), queue);
            }
        }
    }

    /// Has another worker share its queue to a port.
    fn borrow(&mut self, crew: &Crew, entry: &mut Entry, worker: usize) -> Option<Queue> {
        let port = entry.shared.no;
        let (&lender, member) = crew.members.iter().nth(worker % crew.members.len().max(1))?;
        let (reply, answer) = mpsc::channel();
        member.mailbox.post(Command::ShareTx { port, reply });
        self.obey_if_parked();
        let queue = answer.recv().ok().flatten()?;
        entry.tx.sharers.extend([lender, worker]);
        Some(Queue::Shared(queue))
    }

    /// Takes the queues back that an ended worker sent by, and gives them to workers that share.
    pub(crate) fn disconnect(&mut self, shared: &Shared, worker: usize, queues: Vec<(PortNo, Queue)>) {
        {
            let mut ports = shared.ports.lock();
            let crew = shared.crew.read();
            for (port, queue) in queues {
                let Some(entry) = ports.by_number.get_mut(&port) else { continue };
                entry.tx.sharers.remove(&worker);
                let Queue::Own(queue) = queue.reclaim() else { continue };
                let heir = entry.tx.sharers.pop_first();
                match heir.and_then(|heir| crew.members.get(&heir)) {
                    Some(heir) => heir.mailbox.post(Command::ReplaceTx { port, tx: Queue::Own(queue) }),
                    None => entry.tx.spare.push(queue),
                }
            }
        }
        self.tell(shared, || Command::ReclaimTx);
    }

    /// Spreads the receive queues over the workers by the policy in force. When this returns, every
    /// queue is polled by its new worker.
    pub fn spread(&mut self, shared: &Shared) {
        let moves = {
            let mut ports = shared.ports.lock();
            self.plan(&mut ports, &shared.crew.read())
        };
        for (port, from, queues) in moves {
            let (reply, given) = mpsc::channel();
            let indexes = queues.keys().copied().collect();
            let Some(mailbox) = shared.crew.read().members.get(&from).map(|member| member.mailbox.clone()) else {
                continue;
            };
            mailbox.post(Command::GiveRx { port, queues: indexes, reply });
            self.settle_if_parked();
            let mut taken: BTreeMap<usize, Vec<Rx>> = BTreeMap::new();
            for rx in given.recv().unwrap_or_default() {
                if let Some(&to) = queues.get(&rx.index) {
                    taken.entry(to).or_default().push(rx);
                }
            }
            let crew = shared.crew.read();
            for (to, rx) in taken {
                if let Some(member) = crew.members.get(&to) {
                    member.mailbox.post(Command::TakeRx { rx });
                }
            }
        }
        self.obey_if_parked();
    }

    /// What has to change hands: port, old worker, and new worker of each queue. Noted as done.
    fn plan(&self, ports: &mut Ports, crew: &Crew) -> Vec<(PortNo, usize, BTreeMap<usize, usize>)> {
        let workers = candidates(crew);
        let loads: Vec<Load> = ports.by_number.values().flat_map(loads).collect();
        let (policy, isolate) = self.policy();
        let mut places = assignment::assign(policy, isolate, &loads, &workers).into_iter();
        let mut moves: BTreeMap<(PortNo, usize), BTreeMap<usize, usize>> = BTreeMap::new();
        for (&port, entry) in &mut ports.by_number {
            for (index, (rx, place)) in entry.rx.iter_mut().zip(places.by_ref()).enumerate() {
                let Place { worker, .. } = std::mem::replace(&mut rx.place, place);
                if worker != place.worker {
                    moves.entry((port, worker)).or_default().insert(index, place.worker);
                }
            }
        }
        moves.into_iter().map(|((port, from), queues)| (port, from, queues)).collect()
    }
}

/// The workers that queues can be given to.
pub(crate) fn candidates(crew: &Crew) -> Vec<Candidate> {
    let staying = crew.members.iter().filter(|(_, member)| !member.ending);
    staying.map(|(&number, member)| Candidate { number, core: member.core }).collect()
}

/// What the queues of a port have cost lately, and where they are wanted.
pub(crate) fn loads(entry: &Entry) -> impl Iterator<Item = Load> + '_ {
    let load = |(index, rx): (usize, &crate::datapath::RxState)| Load {
        cycles: rx.history.sum(),
        core: entry.affinity.get(&index).copied(),
    };
    entry.rx.iter().enumerate().map(load)
}
