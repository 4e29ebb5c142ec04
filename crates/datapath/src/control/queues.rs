//! How queues move between workers: a new worker gets a transmit queue of each port, an ended one leaves its own to
//! others, and receive queues move.

use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};

use ports::TxQueue;

use crate::action::PortNo;
use crate::control::pool::WorkerPool;
use crate::control::ports::{ManagedPort, PortTable, RxMove};
use crate::control::runtime::Runtime;
use crate::pipeline::port::{Queue, SharedQueue};
use crate::pipeline::steering::Steered;
use crate::worker::Worker;
use crate::worker::mailbox::{Command, Mailbox};
use crate::worker::rx_queue::Rx;

/// Gives a new worker, which no thread drives yet, a transmit queue of each port.
pub fn connect(ports: &mut PortTable, pool: &WorkerPool, runtime: &mut dyn Runtime, worker: &mut Worker) {
    for port in ports.iter_mut() {
        let queue = match port.tx.own(&*port.dp_port.port) {
            Some(queue) => Some(Queue::Own(queue)),
            None => borrow(port, pool, runtime, worker.number),
        };
        if let Some(queue) = queue {
            worker.executor.outputs.add(port.dp_port.clone(), queue);
        }
    }
}

/// Makes another worker's queue to a port a shared one.
fn borrow(port: &mut ManagedPort, pool: &WorkerPool, runtime: &mut dyn Runtime, worker: usize) -> Option<Queue> {
    let numbers = pool.numbers();
    let lender = *numbers.get(worker % numbers.len().max(1))?;
    let (reply, answer) = mpsc::channel();
    pool.get(lender)?.mailbox.post(Command::ShareTx { port: port.dp_port.no, reply });
    runtime.serve();
    let queue = answer.recv().ok().flatten()?;
    port.tx.share([lender, worker]);
    Some(Queue::Shared(queue))
}

/// Has all workers send by all queues of a port, or each by one of them.
pub fn steer(port: &mut ManagedPort, pool: &WorkerPool, runtime: &mut dyn Runtime, by_hash: bool) {
    if port.tx.are_steered() == by_hash {
        return;
    }
    let (number, numbers) = (port.dp_port.no, pool.numbers());
    let mailboxes: Vec<_> = numbers.iter().filter_map(|&worker| Some(&pool.get(worker)?.mailbox)).collect();
    let queues: Vec<Box<dyn TxQueue>> = if by_hash {
        let (reply, answer) = mpsc::channel();
        for mailbox in &mailboxes {
            mailbox.post(Command::ShareTx { port: number, reply: reply.clone() });
        }
        drop(reply);
        runtime.serve();
        let mut shared: Vec<SharedQueue> = Vec::new();
        for queue in answer.iter().flatten() {
            if !shared.iter().any(|known| Arc::ptr_eq(known, &queue)) {
                shared.push(queue);
            }
        }
        // Where no worker has one, the port is a tunnel's, to which nothing is sent.
        if shared.is_empty() {
            return;
        }
        let all = port.tx.steer(&*port.dp_port.port, shared);
        mailboxes.iter().map(|_| Box::new(Steered::new(all.clone())) as Box<dyn TxQueue>).collect()
    } else {
        port.tx.unsteer(mailboxes.len())
    };
    for (mailbox, queue) in mailboxes.iter().zip(queues) {
        mailbox.post(Command::ReplaceTx { port: number, tx: Queue::Own(queue) });
    }
    runtime.serve();
}

/// Takes the transmit queues back that an ended worker sent by, and gives them to workers that share theirs.
pub fn disconnect(
    ports: &mut PortTable,
    pool: &WorkerPool,
    runtime: &mut dyn Runtime,
    worker: usize,
    queues: Vec<(PortNo, Queue)>,
) {
    for (number, queue) in queues {
        let Some(port) = ports.get_mut(number) else { continue };
        if let Some((heir, queue)) = port.tx.take_back(worker, queue)
            && let Some(heir) = pool.get(heir)
        {
            heir.mailbox.post(Command::ReplaceTx { port: number, tx: Queue::Own(queue) });
        }
    }
    pool.tell(|| Command::ReclaimTx);
    runtime.serve();
}

/// Moves receive queues between the workers that have these mailboxes. When this returns, each queue is polled by its new
/// worker, or will be in that one's next turn.
///
/// An old worker gives a queue away only when the slow path has answered for what came from there. So this may wait for
/// upcalls, and its caller must not hold what these may lock.
pub fn hand_over(moves: Vec<RxMove>, workers: &BTreeMap<usize, Arc<Mailbox>>, runtime: &mut dyn Runtime) {
    for RxMove { port, from, to } in moves {
        let Some(mailbox) = workers.get(&from) else { continue };
        let (reply, given) = mpsc::channel();
        mailbox.post(Command::GiveRx { port, queues: to.keys().copied().collect(), reply });
        runtime.settle();
        let mut taken: BTreeMap<usize, Vec<Rx>> = BTreeMap::new();
        for rx in given.recv().unwrap_or_default() {
            if let Some(&worker) = to.get(&rx.index) {
                taken.entry(worker).or_default().push(rx);
            }
        }
        for (worker, rx) in taken {
            if let Some(mailbox) = workers.get(&worker) {
                mailbox.post(Command::TakeRx { rx });
            }
        }
    }
    runtime.serve();
}
