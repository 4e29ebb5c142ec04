//! Commands for a worker, which other threads leave in its mailbox.
//!
//! A worker reads its mailbox between turns, and between the batches of long turns. To find it empty costs one load.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use packet::Packet;
use packet::flow::VlanLimit;
use parking_lot::Mutex;

use crate::action::PortNo;
use crate::actions::program::Program;
use crate::actions::sample::Sampling;
use crate::classify::CacheTier;
use crate::conntrack::fragments::Held;
use crate::drop::DropReason;
use crate::perf::worker::WorkerPerf;
use crate::pipeline::ingress::Ingress;
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::port::{DpPort, Policers, Queue, SharedQueue};
use crate::slowpath::channel::ServingHandlers;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::tap::{Ports, WorkerTap};
use crate::verify::worker::VerifyRing;
use crate::worker::rx_queue::Rx;
use crate::worker::waker::Waker;

/// A command for a worker.
pub enum Command {
    /// Add a port, its transmit queue and receive queues, and reply.
    AddPort { port: Arc<DpPort>, tx: Queue, rx: Vec<Rx>, reply: Sender<()> },
    /// Add receive queues of a port that the worker has already.
    TakeRx { rx: Vec<Rx> },
    /// Give these receive queues of a port away, when none of its packets is outstanding in the slow path.
    GiveRx { port: PortNo, queues: Vec<usize>, reply: Sender<Vec<Rx>> },
    /// Share the transmit queue of a port with another worker.
    ShareTx { port: PortNo, reply: Sender<Option<SharedQueue>> },
    /// Send to a port by another queue.
    ReplaceTx { port: PortNo, tx: Queue },
    /// Remove the locks of transmit queues that no other worker shares any more.
    ReclaimTx,
    /// Reply when no packet is outstanding in the slow path.
    Drain { reply: Sender<()> },
    /// Remove ports, and return their queues.
    RemovePorts { ports: Arc<[PortNo]>, reply: Sender<GivenBack> },
    /// Set or remove the optional ingress stages of a receive queue of a port.
    SetIngress { port: PortNo, queue: usize, ingress: Option<Box<Ingress>> },
    /// Change the policers of a port.
    SetPolicers { port: PortNo, policers: Policers },
    /// Notify these handlers from now on, and at once: they serve the worker's channels now.
    SetHandlers(ServingHandlers),
    /// Run a program on a packet.
    Execute { packet: Packet, metadata: OwnMetadata, program: Box<Program>, injection: Injection },
    /// Drop fragments that were held to be tracked.
    Retire { fragments: Vec<Held>, reason: DropReason },
    /// Show packets to a tap.
    AddTap(Box<WorkerTap>),
    /// Change the ports that a tap is about, by its number.
    SetTapPorts { number: u64, ports: Ports },
    /// Show nothing more to a tap.
    RemoveTap(u64),
    /// Change which packets are sampled for verification, and where samples go.
    SetVerifying(Box<(Sampling, Option<Box<VerifyRing>>)>),
    /// Measure performance from now on, or no longer.
    SetPerf(Option<Box<WorkerPerf>>),
    /// Change the flush interval.
    SetFlushInterval(Duration),
    /// Reply whether the worker is idle: some turn since the last report has found nothing to do in any queue, no
    /// turn since then has, and no packet is outstanding in the slow path.
    Report(Sender<bool>),
    /// Reply by which tier it would find the flow of a frame that came in at a port, with its number.
    Probe { port: PortNo, frame: Packet, reply: Sender<(usize, Option<CacheTier>)> },
    /// Change the longest sleep.
    SetMaxSleep(Duration),
    /// Change the insertion policy of the exact-match caches.
    SetExactOneIn(u32),
    /// Change how many VLAN tags are parsed.
    SetVlanLimit(VlanLimit),
    /// Change the size of the exact-match cache, which is emptied.
    SetExactEntries(usize),
}

/// What the injected packets take that no worker has run yet, in bytes.
#[derive(Default)]
pub struct Injections(AtomicUsize);

impl Injections {
    /// Counts so many bytes until the part that this returns is dropped.
    pub fn add(self: &Arc<Injections>, bytes: usize) -> Injection {
        // Says nothing about other memory, so no access needs an order.
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Injection { of: self.clone(), bytes }
    }

    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One packet's part of [`Injections`].
pub struct Injection {
    of: Arc<Injections>,
    bytes: usize,
}

impl Drop for Injection {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The queues of removed ports, which the requester drops.
#[derive(Default)]
pub struct GivenBack {
    /// Receive queues.
    pub rx: Vec<Rx>,
    /// Transmit queues.
    pub tx: Vec<Queue>,
}

/// A worker's mailbox.
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

    /// Appends a command, and wakes the worker.
    pub fn post(&self, command: Command) {
        self.commands.lock().push(command);
        self.pending.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// Whether there are commands.
    #[inline(always)]
    pub fn has_mail(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Takes all commands, in order.
    pub fn take(&self) -> Vec<Command> {
        // The flag is cleared first: a command that is posted meanwhile is taken now, or seen in the next turn.
        self.pending.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.commands.lock())
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// A command that is posted while the worker empties its mailbox is taken now, or seen in the next turn.
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
