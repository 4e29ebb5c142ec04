//! A receive queue, with the state that its worker keeps for it.

use std::sync::Arc;
use std::time::Duration;

use packet::Time;
use ports::RxQueue;

use crate::classify::mixed::RunHistory;
use crate::pipeline::ingress::Ingress;
use crate::pipeline::port::DpPort;
use crate::sync::counters::Counter;
use crate::worker::fairness::Deficit;

/// A busy worker polls an empty queue that is costly to poll after this fraction of the time for which it has been empty.
const POLL_FRACTION: u32 = 16;

/// The longest interval between such polls.
const LONGEST_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// How long a busy worker waits before it polls a costly queue again that has been empty for this long.
pub fn poll_interval(empty_for: Duration) -> Duration {
    (empty_for / POLL_FRACTION).min(LONGEST_POLL_INTERVAL)
}

/// The state of a queue in its worker's [`IdleQueues`](super::idle_queues::IdleQueues).
#[derive(Clone, Copy, Debug, Default)]
pub struct Registration {
    /// Its slot, while its descriptor is in the epoll instance.
    pub slot: Option<usize>,
    /// When it was found to have frames.
    pub found: Time,
}

impl Registration {
    /// Whether its descriptor is in the epoll instance.
    pub fn is_known(&self) -> bool {
        self.slot.is_some()
    }
}

/// A receive queue and its port.
pub struct Rx {
    /// The port.
    pub port: Arc<DpPort>,
    /// The queue's number.
    pub index: usize,
    /// The queue.
    pub queue: Box<dyn RxQueue>,
    /// Cycles spent on its packets. Written by the worker that has the queue.
    pub cycles: Arc<Counter>,
    /// How far its use of the worker's time exceeds its share.
    pub deficit: Deficit,
    /// Whether its last batches had runs.
    pub recent: RunHistory,
    /// Optional stages for the packets that it receives.
    pub ingress: Option<Box<Ingress>>,
    /// Whether it was empty at the last poll.
    empty: bool,
    /// Whether a poll of the empty queue may cost a system call, as for queues with a descriptor to wait for.
    costly: bool,
    /// When it last had frames.
    received: Time,
    /// When to poll it again, while it is empty and costly to poll.
    next_poll: Time,
    /// Its state in the worker's idle queues.
    pub registration: Registration,
}

impl Rx {
    /// A queue of a port that was not polled yet.
    pub fn new(port: &Arc<DpPort>, index: usize, queue: Box<dyn RxQueue>, cycles: Arc<Counter>) -> Rx {
        let costly = queue.wait_fd().is_some();
        let (received, next_poll) = (Time(0), Time(0));
        let (deficit, recent, empty) = (Deficit::default(), RunHistory::default(), false);
        let registration = Registration::default();
        Rx {
            port: port.clone(),
            index,
            queue,
            cycles,
            deficit,
            recent,
            ingress: None,
            empty,
            costly,
            received,
            next_poll,
            registration,
        }
    }

    /// Has the queue polled in the next turn, since frames are expected.
    pub fn awaits_frames(&mut self) {
        self.empty = false;
    }

    /// Whether it was empty at the last poll.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// When it last had frames.
    pub fn empty_since(&self) -> Time {
        self.received
    }

    /// Whether a poll of the empty queue may cost a system call.
    pub fn is_costly_to_poll(&self) -> bool {
        self.costly
    }

    /// Whether to poll the queue in this turn. A queue that had packets is always polled. An empty one is polled in
    /// turns that read the clock (`look`), and in idle ones unless that is costly. While other queues keep the worker
    /// `busy`, the interval of a costly queue grows with the time for which it has been empty.
    #[inline(always)]
    pub fn is_due(&self, look: bool, busy: bool, now: Time) -> bool {
        if !self.empty {
            return true;
        }
        if self.costly { look && (!busy || now >= self.next_poll) } else { look || !busy }
    }

    /// Records how many packets a poll has found.
    #[inline(always)]
    pub fn looked(&mut self, count: usize, now: Time) {
        self.empty = count == 0;
        if !self.empty {
            self.received = now;
        } else if self.costly {
            self.next_poll = now + poll_interval(now.since(self.received));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use packet::Batch;
    use ports::{Env, PortSpec};
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::action::PortNo;

    struct Source(Option<OwnedFd>);

    impl RxQueue for Source {
        fn receive(&mut self, _: &mut Batch, _: Time) -> usize {
            0
        }

        fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
            self.0.as_ref().map(AsFd::as_fd)
        }
    }

    fn rx(fd: Option<OwnedFd>) -> Rx {
        let port = ports::registry::open(&PortSpec::new("null", "null"), &Env::default()).unwrap();
        Rx::new(&DpPort::new(PortNo(1), port, 1), 0, Box::new(Source(fd)), Arc::default())
    }

    #[test]
    fn an_empty_queue_waits_for_a_look_at_the_clock_beside_busy_ones() {
        let mut rx = rx(None);
        let due = |rx: &Rx, look, busy| rx.is_due(look, busy, Time(0));
        assert!(due(&rx, false, true), "it was not polled yet");
        rx.looked(0, Time(0));
        assert_eq!([(false, true), (true, true), (false, false)].map(|(l, b)| due(&rx, l, b)), [false, true, true]);
        rx.looked(1, Time(0));
        assert!(due(&rx, false, true));
    }

    #[test]
    fn the_poll_interval_of_a_costly_queue_grows_while_it_is_empty() {
        let mut rx = rx(Some(eventfd(0, EventfdFlags::empty()).unwrap()));
        let at = |micros: u64| Time(micros * 1000);
        rx.looked(1, at(1000));
        rx.looked(0, at(1160));
        assert!(!rx.is_due(true, true, at(1169)) && rx.is_due(true, true, at(1170)), "a sixteenth of 160 µs");
        assert!(rx.is_due(true, false, at(1161)), "nothing else to do");
        assert!(!rx.is_due(false, false, at(1170)), "not in every turn");
        rx.looked(0, at(1_001_000));
        assert!(!rx.is_due(true, true, at(1_001_099)) && rx.is_due(true, true, at(1_001_100)), "100 µs at most");
    }
}
