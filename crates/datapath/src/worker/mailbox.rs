//! What others want of a worker: commands, which they leave in its mailbox.
//!
//! A worker reads its mail between its turns, and in long turns between batches. To see that there is none costs one load.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use packet::Packet;
use packet::flow::VlanLimit;
use parking_lot::Mutex;

use crate::action::PortNo;
use crate::actions::program::Program;
use crate::pipeline::ingress::Ingress;
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::port::{DpPort, Queue, SharedQueue};
use crate::slowpath::queue::Notifier;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::worker::rx_queue::Rx;
use crate::worker::waker::Waker;

/// Something that a worker is asked to do.
pub enum Command {
    /// Forward from and to a port.
    AddPort { port: Arc<DpPort>, tx: Queue, rx: Vec<Rx> },
    /// Receive from these queues, of a port that it sends to already.
    TakeRx { rx: Vec<Rx> },
    /// Give these receive queues of a port away, once none of its packets is up.
    GiveRx { port: PortNo, queues: Vec<usize>, reply: Sender<Vec<Rx>> },
    /// Share the transmit queue of a port with another worker.
    ShareTx { port: PortNo, reply: Sender<Option<SharedQueue>> },
    /// Send to a port by another queue.
    ReplaceTx { port: PortNo, tx: Queue },
    /// Forget the locks of transmit queues that nobody shares any more.
    ReclaimTx,
    /// Say when no packet is up.
    Drain { reply: Sender<()> },
    /// Give the queues of ports back.
    RemovePorts { ports: Arc<[PortNo]>, reply: Sender<GivenBack> },
    /// Put optional stages before classification in a receive queue of a port, or take them away.
    SetIngress { port: PortNo, queue: usize, ingress: Option<Box<Ingress>> },
    /// Wake this handler from now on, and at once: its channel has moved there.
    SetNotifier(Arc<Notifier>),
    /// Run a program on a packet.
    Execute { packet: Packet, metadata: OwnMetadata, program: Box<Program> },
    /// Change the flush interval.
    SetFlushInterval(Duration),
    /// Say whether a turn since the last report has found nothing to do, in any queue, nor any turn after it, and
    /// no packet is up in the slow path.
    Report(Sender<bool>),
    /// Change the longest sleep.
    SetMaxSleep(Duration),
    /// Change how many flows the exact-match cache remembers.
    SetExactOneIn(u32),
    /// Change how many VLAN tags are parsed.
    SetVlanLimit(VlanLimit),
    /// Change how many flows it can remember at most. What it remembered is forgotten.
    SetExactEntries(usize),
}

/// The queues of ports that a worker has stopped using, to be dropped.
#[derive(Default)]
pub struct GivenBack {
    /// To receive from.
    pub rx: Vec<Rx>,
    /// To send to.
    pub tx: Vec<Queue>,
}

/// What others leave for a worker.
pub struct Mailbox {
    pending: AtomicBool,
    commands: Mutex<Vec<Command>>,
    /// Wakes the worker.
    pub waker: Arc<Waker>,
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new(waker: Arc<Waker>) -> Mailbox {
        Mailbox { pending: AtomicBool::new(false), commands: Mutex::new(Vec::new()), waker }
    }

    /// Leaves a command, in order, and wakes the worker.
    pub fn post(&self, command: Command) {
        self.commands.lock().push(command);
        self.pending.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Whether something was left.
    #[inline(always)]
    pub fn has_mail(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes what was left, in order.
    pub fn take(&self) -> Vec<Command> {
        // Cleared first: a command that is posted meanwhile is taken now or seen in the next turn.
        self.pending.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.commands.lock())
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A command that is left while the worker empties its mailbox is taken, or seen in the next turn.
    #[test]
    fn no_command_is_forgotten() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new(Arc::default()));
            let other = mailbox.clone();
            let poster = loom::thread::spawn(move || {
                other.post(Command::ReclaimTx);
                other.post(Command::ReclaimTx);
            });
            let mut taken = 0;
            if mailbox.has_mail() {
                taken += mailbox.take().len();
            }
            poster.join().unwrap();
            if mailbox.has_mail() {
                taken += mailbox.take().len();
            }
            assert_eq!(taken, 2);
            assert!(!mailbox.has_mail());
        });
    }
}
