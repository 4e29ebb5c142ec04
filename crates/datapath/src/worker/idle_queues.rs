//! Idle receive queues, which a worker does not poll until they have frames.
//!
//! To poll one empty queue costs little; to poll a thousand costs too much. So a queue is *parked* when it has been
//! empty for a while and its descriptor is readable whenever it has frames ([`ports::RxQueue::can_park`]): the worker
//! stops polling it. It asks the kernel about all parked queues at once (epoll(7)), as often as it would have polled
//! one of them. A queue that has frames is polled again. A worker with a few queues just polls them.
//!
//! A sender to a parked queue pays for the notification, as with a worker that sleeps. A sender to a busy queue does
//! not:
//! - a descriptor is armed for one event (EPOLLONESHOT), and armed again when its queue is parked again;
//! - the descriptor of a queue that stays busy is taken out of the epoll instance.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use packet::Time;
use rustix::event::{Timespec, epoll};

use crate::action::PortNo;
use crate::worker::rx_queue::{Rx, poll_interval};

/// How long a queue is empty before it is parked, or busy before its descriptor is taken out.
const PARK_AFTER: Duration = Duration::from_millis(10);

/// So few queues are polled rather than parked, though a poll costs a system call: to ask which of them have frames, and
/// to arm their descriptors again, costs more and delays each first frame.
const FEW: usize = 4;

/// Most queues that one system call returns.
const FOUND: usize = 64;

/// One worker's parked queues.
#[derive(Default)]
pub struct IdleQueues {
    /// The epoll instance, created at the first parked queue.
    epoll: Option<OwnedFd>,
    /// The parked queues, by the number that their events carry. A queue keeps its slot until its descriptor is
    /// removed.
    slots: Vec<Option<Rx>>,
    free: Vec<usize>,
    parked: usize,
    /// When a queue with frames was found last, and when to ask again while other queues are busy.
    found: Time,
    next_look: Time,
}

impl IdleQueues {
    /// Parks a queue, or returns it if it cannot be parked.
    #[expect(clippy::result_large_err, reason = "it is given back where it cannot be parked")]
    pub fn park(&mut self, mut rx: Rx) -> Result<(), Rx> {
        if !rx.queue.can_park() {
            return Err(rx);
        }
        let slot = match rx.registration.slot {
            Some(slot) => slot,
            None => self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() - 1
            }),
        };
        if !self.arm(&rx, slot) {
            if rx.registration.slot.take().is_none() {
                self.free.push(slot);
            }
            return Err(rx);
        }
        rx.registration.slot = Some(slot);
        self.slots[slot] = Some(rx);
        self.parked += 1;
        Ok(())
    }

    /// Arms the descriptor for the queue's next frames, or for those that it has already.
    fn arm(&mut self, rx: &Rx, slot: usize) -> bool {
        if self.epoll.is_none() {
            self.epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        }
        let (Some(epoll), Some(fd)) = (&self.epoll, rx.queue.wait_fd()) else { return false };
        let (data, flags) =
            (epoll::EventData::new_u64(slot as u64), epoll::EventFlags::IN | epoll::EventFlags::ONESHOT);
        match rx.registration.slot {
            Some(_) => epoll::modify(epoll, fd, data, flags).is_ok(),
            None => epoll::add(epoll, fd, data, flags).is_ok(),
        }
    }

    /// Whether no queue is parked.
    pub fn is_empty(&self) -> bool {
        self.parked == 0
    }

    /// Whether to ask the kernel now. `busy`: other queues keep the worker busy.
    #[inline(always)]
    pub fn is_due(&self, busy: bool, now: Time) -> bool {
        self.parked > 0 && (!busy || now >= self.next_look)
    }

    /// Moves queues that have frames to `into`. Returns whether these are all such queues.
    pub fn find_ready(&mut self, into: &mut Vec<Rx>, now: Time) -> bool {
        let Some(epoll) = &self.epoll else { return true };
        let mut events = [const { MaybeUninit::uninit() }; FOUND];
        let events =
            epoll::wait(epoll, &mut events, Some(&Timespec::default())).map_or(&mut [][..], |(events, _)| events);
        for event in &*events {
            let slot = event.data.u64() as usize;
            if let Some(mut rx) = self.slots.get_mut(slot).and_then(Option::take) {
                self.parked -= 1;
                rx.registration.found = now;
                rx.awaits_frames();
                into.push(rx);
            }
        }
        if !events.is_empty() {
            self.found = now;
        }
        self.next_look = now + poll_interval(now.since(self.found));
        events.len() < FOUND
    }

    /// Parks those polled queues that have been empty for a while, unless they are few. Removes the descriptors of queues
    /// that have been busy for a while, and renews these queues ([`ports::RxQueue::renew`]).
    pub fn tidy(&mut self, polled: &mut Vec<Rx>, now: Time) {
        let are_few = self.parked + polled.iter().filter(|rx| rx.is_costly_to_poll()).count() <= FEW;
        let mut at = 0;
        while at < polled.len() {
            let rx = &mut polled[at];
            if !rx.is_costly_to_poll() {
                at += 1;
                continue;
            }
            if now.since(rx.registration.found.max(rx.empty_since())) >= PARK_AFTER
                && rx.is_empty()
                && rx.queue.can_park()
                && !are_few
            {
                match self.park(polled.remove(at)) {
                    Ok(()) => continue,
                    Err(rx) => polled.insert(at, rx),
                }
            } else if rx.registration.is_known() {
                if now.since(rx.registration.found) >= PARK_AFTER {
                    self.forget(rx);
                }
            } else {
                rx.queue.renew(now);
            }
            at += 1;
        }
    }

    /// Removes a queue's descriptor from the epoll instance.
    pub fn forget(&mut self, rx: &mut Rx) {
        let Some(slot) = rx.registration.slot.take() else { return };
        self.free.push(slot);
        // A queue without a descriptor has lost its device, and gets no events any more.
        if let (Some(epoll), Some(fd)) = (&self.epoll, rx.queue.wait_fd()) {
            let _ = epoll::delete(epoll, fd);
        }
    }

    /// Moves the parked queues of a port to `into`, whether they have frames or not.
    pub fn recall(&mut self, port: PortNo, into: &mut Vec<Rx>, now: Time) {
        for slot in &mut self.slots {
            if let Some(mut rx) = slot.take_if(|rx| rx.port.no == port) {
                self.parked -= 1;
                rx.registration.found = now;
                into.push(rx);
            }
        }
    }

    /// Removes the parked queues of a port, and returns them.
    pub fn take(&mut self, port: PortNo) -> Vec<Rx> {
        let of_port = |slot: &mut Option<Rx>| slot.take_if(|rx| rx.port.no == port);
        let mut taken: Vec<Rx> = self.slots.iter_mut().filter_map(of_port).collect();
        self.parked -= taken.len();
        taken.iter_mut().for_each(|rx| self.forget(rx));
        taken
    }

    /// A descriptor that is readable while a parked queue has frames.
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().filter(|_| self.parked > 0).map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use packet::Batch;
    use ports::{Env, PortSpec, RxQueue};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    use super::*;
    use crate::pipeline::port::DpPort;

    struct Source(Arc<OwnedFd>);

    impl RxQueue for Source {
        fn receive(&mut self, _: &mut Batch, _: Time) -> usize {
            usize::from(read(&*self.0, &mut [0; 8]).is_ok())
        }

        fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }

        fn can_park(&self) -> bool {
            true
        }
    }

    fn sources(count: u32) -> (Vec<Arc<OwnedFd>>, Vec<Rx>) {
        let make = |n| {
            let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
            let port = ports::registry::open(&PortSpec::new("null", "null"), &Env::default()).unwrap();
            let port = DpPort::new(PortNo(n), port, 1);
            (fd.clone(), Rx::new(&port, 0, Box::new(Source(fd)), Arc::default()))
        };
        (1..=count).map(make).unzip()
    }

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    fn ports(queues: &[Rx]) -> Vec<u32> {
        let mut ports: Vec<u32> = queues.iter().map(|rx| rx.port.no.0).collect();
        ports.sort();
        ports
    }

    fn poll(rx: &mut Rx, now: Time) -> usize {
        let count = rx.queue.receive(&mut Batch::new(), now);
        rx.record_poll(count, now);
        count
    }

    #[test]
    fn idle_queues_are_found_when_they_have_frames_however_many_they_are() {
        let (fds, queues) = sources(200);
        let mut idle_queues = IdleQueues::default();
        assert!(queues.into_iter().all(|rx| idle_queues.park(rx).is_ok()));
        let mut polled = Vec::new();
        assert!(idle_queues.find_ready(&mut polled, at(1)) && polled.is_empty());
        for fd in &fds {
            write(&**fd, &1u64.to_ne_bytes()).unwrap();
        }
        while !idle_queues.find_ready(&mut polled, at(2)) {}
        assert_eq!(ports(&polled), (1..=200).collect::<Vec<_>>());
        assert!(idle_queues.is_empty() && idle_queues.wait_fd().is_none());
        assert_eq!(polled.iter_mut().map(|rx| poll(rx, at(2))).sum::<usize>(), 200);
        assert_eq!(polled.iter_mut().map(|rx| poll(rx, at(3))).sum::<usize>(), 0);
        idle_queues.tidy(&mut polled, at(11));
        assert_eq!(polled.len(), 200, "not yet");
        idle_queues.tidy(&mut polled, at(12));
        assert!(polled.is_empty());
        write(&*fds[7], &1u64.to_ne_bytes()).unwrap();
        assert!(idle_queues.find_ready(&mut polled, at(13)));
        assert_eq!(ports(&polled), [8], "it is armed again");
    }

    #[test]
    fn few_queues_are_polled_and_not_parked() {
        let (_fds, mut polled) = sources(FEW as u32 + 1);
        polled.iter_mut().for_each(|rx| assert_eq!(poll(rx, at(1)), 0));
        let mut idle_queues = IdleQueues::default();
        let last = polled.pop().unwrap();
        idle_queues.tidy(&mut polled, at(1000));
        assert_eq!((polled.len(), idle_queues.parked), (FEW, 0));
        polled.push(last);
        idle_queues.tidy(&mut polled, at(1000));
        assert_eq!((polled.len(), idle_queues.parked), (0, FEW + 1));
    }

    #[test]
    fn a_busy_queue_is_taken_out_and_one_that_moves_away_as_well() {
        let (fds, mut polled) = sources(2);
        let mut idle_queues = IdleQueues::default();
        polled.drain(..).for_each(|rx| assert!(idle_queues.park(rx).is_ok()));
        write(&*fds[0], &1u64.to_ne_bytes()).unwrap();
        idle_queues.find_ready(&mut polled, at(1));
        for millis in 1..=11 {
            write(&*fds[0], &1u64.to_ne_bytes()).unwrap();
            assert!(polled[0].registration.is_known() && poll(&mut polled[0], at(millis)) == 1);
            idle_queues.tidy(&mut polled, at(millis));
        }
        assert!(!polled[0].registration.is_known(), "busy for 10 ms");
        idle_queues.recall(PortNo(2), &mut polled, at(12));
        assert!(ports(&polled) == [1, 2] && idle_queues.is_empty());
        assert!(idle_queues.park(polled.pop().unwrap()).is_ok());
        let moved = idle_queues.take(PortNo(2));
        assert!(ports(&moved) == [2] && !moved[0].registration.is_known() && idle_queues.is_empty());
        // Their slots can be reused.
        assert!(polled.into_iter().chain(moved).all(|rx| idle_queues.park(rx).is_ok()));
        assert_eq!(idle_queues.slots.len(), 2);
    }

    #[test]
    fn beside_busy_queues_a_look_comes_within_a_tenth_of_a_millisecond() {
        let (_, queues) = sources(1);
        let mut idle_queues = IdleQueues::default();
        assert!(!idle_queues.is_due(false, at(0)), "no queue is parked");
        queues.into_iter().for_each(|rx| assert!(idle_queues.park(rx).is_ok()));
        idle_queues.find_ready(&mut Vec::new(), at(1000));
        assert!(idle_queues.is_due(false, at(1000)));
        let after = |micros: u64| at(1000) + Duration::from_micros(micros);
        assert!(!idle_queues.is_due(true, after(99)) && idle_queues.is_due(true, after(100)));
    }
}
