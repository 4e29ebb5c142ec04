//! The workers and handlers: who drives them, and how they come and go.
//!
//! Workers have numbers, which are places in the arrays that are kept for each worker: a place in the RCU
//! domain, counters of each flow, drops of each port. The next worker of a number goes on with what the
//! one before has counted there, so nothing is lost when a worker ends.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use packet::Time;

use crate::actions::execute::Executor;
use crate::classify::batch::Caches;
use crate::config::Config;
use crate::control::assignment::Policy;
use crate::control::balance;
use crate::control::usage::History;
use crate::datapath::Shared;
use crate::error::Error;
use crate::pipeline::forward::Frames;
use crate::pipeline::tx::Outputs;
use crate::slowpath::queue::{Channel, ChannelList, Handler, MissQueue, Notifier, ProgramCache};
use crate::stats::WorkerStats;
use crate::sync::counters::{WorkerCounters, add_to, since};
use crate::sync::rcu::Reader;
use crate::worker::Worker;
use crate::worker::fairness::Fairness;
use crate::worker::idle_policy::IdlePolicy;
use crate::worker::idle_queues::IdleQueues;
use crate::worker::mailbox::{Command, Mailbox};
use crate::worker::time_cache::TimeCache;
use crate::worker::waker::Waker;

pub use crate::control::queues::TxQueues;

/// How often a handler thread looks after the datapath.
const MAINTAIN: Duration = Duration::from_millis(100);

/// The workers, as everybody may know them.
#[derive(Default)]
pub struct Crew {
    /// By number.
    pub members: BTreeMap<usize, Member>,
    /// What those have counted that have ended.
    pub ended: WorkerStats,
    /// The same since the start, whatever has been reset.
    pub ended_ever: WorkerStats,
}

/// A worker, as everybody may know it.
pub struct Member {
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// What it is to do.
    pub mailbox: Arc<Mailbox>,
    /// What it counts.
    pub counters: Arc<WorkerCounters>,
    /// Its counters when they were reset.
    pub base: WorkerStats,
    /// When this was, or when it came into being.
    pub since: Time,
    /// Its busy cycles in the last minute.
    pub busy: History,
    /// It gets nothing new to do.
    pub ending: bool,
}

impl Member {
    /// Its statistics.
    pub fn stats(&self, number: usize, now: Time) -> WorkerStats {
        let counted_for = now.since(self.since);
        WorkerStats { number, core: self.core, counted_for, ..since(self.counters.read(), &self.base) }
    }
}

/// What only who changes the workers or ports knows: one at a time.
pub struct Management {
    /// Settings as they are now.
    pub config: Config,
    policy: Policy,
    isolate: bool,
    /// Of the automatic balance.
    pub(crate) balance: balance::State,
    drivers: Drivers,
    /// Places of workers that do not exist.
    free: BTreeMap<usize, Reader>,
    /// Of each handler.
    desks: Vec<(Arc<ChannelList>, Arc<Notifier>)>,
}

/// Who drives the workers and handlers.
enum Drivers {
    /// Whoever calls [`Datapath::poll`](crate::Datapath::poll).
    Caller(Parked),
    /// Threads.
    Threads(Running),
}

#[derive(Default)]
struct Parked {
    workers: BTreeMap<usize, Worker>,
    handlers: Vec<Handler>,
}

struct Running {
    workers: BTreeMap<usize, Thread<Worker>>,
    handlers: Vec<JoinHandle<Option<Handler>>>,
    /// Ends the handlers.
    stop: Arc<AtomicBool>,
}

/// A thread and who works there. It returns `None` where nobody has taken the seat.
struct Thread<T> {
    stop: Arc<AtomicBool>,
    handle: JoinHandle<Option<T>>,
}

/// A thread that waits for who is to work there. Where there is none to be had, nothing is lost by that; one that
/// nobody takes ends.
struct Seat<T> {
    thread: Thread<T>,
    place: mpsc::SyncSender<T>,
}

/// Set up and shut down.
impl Management {
    /// No workers yet, with places for as many as there are readers, and a handler for each of its.
    pub fn new(config: Config, workers: Vec<Reader>, handlers: Vec<Reader>, shared: &Shared) -> Management {
        let desks: Vec<_> =
            handlers.iter().map(|_| (Arc::new(ChannelList::default()), Arc::new(Notifier::default()))).collect();
        let handler = |(reader, (roster, _)): (Reader, &(Arc<ChannelList>, _))| Handler {
            roster: roster.clone(),
            channels: Vec::new(),
            reader,
            table: shared.table.clone(),
            upcall: shared.upcall.clone(),
            clock: shared.clock.clone(),
            recent: ProgramCache::default(),
        };
        let handlers = handlers.into_iter().zip(&desks).map(handler).collect();
        Management {
            config,
            policy: Policy::default(),
            isolate: true,
            balance: balance::State::default(),
            drivers: Drivers::Caller(Parked { workers: BTreeMap::new(), handlers }),
            free: workers.into_iter().enumerate().collect(),
            desks,
        }
    }

    /// How many handlers there are.
    pub fn handlers(&self) -> usize {
        self.desks.len()
    }

    /// See [`Datapath::start`](crate::Datapath::start).
    pub fn start(&mut self, shared: &Arc<Shared>) -> Result<(), Error> {
        let Drivers::Caller(parked) = &mut self.drivers else { return Ok(()) };
        // What can fail comes before anything is given to a thread, so that a failure changes nothing.
        for member in shared.crew.read().members.values() {
            prepare(&member.mailbox.waker)?;
            member.core.map_or(Ok(()), try_core)?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let mut seats = Vec::new();
        for (&number, member) in &shared.crew.read().members {
            seats.push((number, Seat::worker(number, member.core)?));
        }
        let mut desks = Vec::new();
        for (number, (_, notifier)) in self.desks.iter().enumerate() {
            desks.push(Seat::handler(number, notifier.clone(), &stop, shared)?);
        }
        let Parked { mut workers, handlers } = std::mem::take(parked);
        let threads =
            seats.into_iter().filter_map(|(number, seat)| Some((number, seat.take(workers.remove(&number)?))));
        let workers = threads.collect();
        let handlers = desks.into_iter().zip(handlers).map(|(desk, handler)| desk.take(handler).handle).collect();
        self.drivers = Drivers::Threads(Running { workers, handlers, stop });
        Ok(())
    }

    /// See [`Datapath::stop`](crate::Datapath::stop).
    pub fn stop(&mut self, shared: &Shared) {
        let Drivers::Threads(running) = &mut self.drivers else { return };
        running.stop.store(true, Ordering::SeqCst);
        running.workers.values().for_each(|thread| thread.stop.store(true, Ordering::SeqCst));
        shared.crew.read().members.values().for_each(|member| member.mailbox.waker.wake());
        self.desks.iter().for_each(|(_, notifier)| notifier.notify());
        // A thread that panicked is gone with what it had; the others go on.
        let workers = std::mem::take(&mut running.workers).into_iter();
        let workers = workers.filter_map(|(number, thread)| Some((number, thread.handle.join().ok()??))).collect();
        let handlers = std::mem::take(&mut running.handlers).into_iter().filter_map(|t| t.join().ok()?).collect();
        self.drivers = Drivers::Caller(Parked { workers, handlers });
    }

    /// See [`Datapath::poll`](crate::Datapath::poll). `None` while threads run.
    pub fn poll(&mut self) -> Option<usize> {
        let Drivers::Caller(Parked { workers, handlers }) = &mut self.drivers else { return None };
        let mut received = 0;
        for worker in workers.values_mut() {
            received += worker.turn();
            worker.reader.offline();
        }
        // Answers can cause further misses, by recirculation, but only so often.
        while handlers.iter_mut().map(Handler::serve).sum::<usize>() > 0 {
            workers.values_mut().for_each(take_returned);
        }
        Some(received)
    }

    /// Leaves a command for every worker, and has it obeyed where no thread drives them.
    pub fn tell(&mut self, shared: &Shared, command: impl Fn() -> Command) {
        shared.crew.read().members.values().for_each(|member| member.mailbox.post(command()));
        self.obey_if_parked();
    }

    /// Lets workers that no thread drives do what they were asked to.
    pub fn obey_if_parked(&mut self) {
        let Drivers::Caller(parked) = &mut self.drivers else { return };
        for worker in parked.workers.values_mut() {
            worker.reader.quiescent();
            worker.executor.now = worker.clock.now();
            worker.obey();
            worker.executor.outputs.end_of_batch(worker.executor.now);
            worker.reader.offline();
        }
    }

    /// As [`obey_if_parked`](Management::obey_if_parked), until nothing is up any more.
    pub(crate) fn settle_if_parked(&mut self) {
        self.obey_if_parked();
        let Drivers::Caller(Parked { workers, handlers }) = &mut self.drivers else { return };
        loop {
            let answered = handlers.iter_mut().map(Handler::serve).sum::<usize>();
            workers.values_mut().for_each(|worker| {
                take_returned(worker);
                worker.let_go();
            });
            if answered == 0 {
                break;
            }
        }
    }
}

/// Workers come and go.
impl Management {
    /// See [`Datapath::set_workers`](crate::Datapath::set_workers).
    pub fn set_workers(&mut self, shared: &Arc<Shared>, cores: &[usize]) -> Result<(), Error> {
        let mut wanted: Vec<Option<usize>> = cores.iter().map(|&core| Some(core)).collect();
        if wanted.is_empty() {
            wanted.push(None);
        }
        let mut leaving = Vec::new();
        for (&number, member) in &shared.crew.read().members {
            match wanted.iter().position(|core| *core == member.core) {
                Some(at) => drop(wanted.swap_remove(at)),
                None => leaving.push(number),
            }
        }
        wanted.sort();
        let mut hired = Vec::new();
        for core in wanted {
            match self.hire(shared, core) {
                Ok(number) => hired.push(number),
                Err(error) => {
                    hired.into_iter().for_each(|number| self.dismiss(shared, number));
                    return Err(error);
                }
            }
        }
        for (number, member) in &mut shared.crew.write().members {
            member.ending = leaving.contains(number);
        }
        self.spread(shared);
        leaving.into_iter().for_each(|number| self.dismiss(shared, number));
        self.config.workers = cores.to_vec();
        Ok(())
    }

    /// See [`Datapath::set_rx_policy`](crate::Datapath::set_rx_policy).
    pub fn set_policy(&mut self, shared: &Shared, policy: Policy, isolate: bool) {
        if (policy, isolate) != (self.policy, self.isolate) {
            (self.policy, self.isolate) = (policy, isolate);
            self.spread(shared);
        }
    }

    /// How receive queues are spread, and whether workers are left to the queues that are pinned to them.
    pub(crate) fn policy(&self) -> (Policy, bool) {
        (self.policy, self.isolate)
    }

    /// Adds a worker without receive queues, and returns its number.
    pub fn hire(&mut self, shared: &Shared, core: Option<usize>) -> Result<usize, Error> {
        let threads = matches!(self.drivers, Drivers::Threads(_));
        let waker = Arc::new(Waker::default());
        let number = *self.free.keys().next().ok_or(Error::TooManyWorkers(shared.max_workers))?;
        // What can fail comes before anything changes.
        let seat = if threads {
            prepare(&waker)?;
            core.map_or(Ok(()), try_core)?;
            Some(Seat::worker(number, core)?)
        } else {
            None
        };
        let reader = self.free.remove(&number).ok_or(Error::TooManyWorkers(shared.max_workers))?;
        shared.table.enlist(number);
        let mut worker = self.make_worker(shared, number, reader, waker, core.is_some());
        self.connect(shared, &mut worker);
        let member = Member {
            core,
            mailbox: worker.mailbox.clone(),
            counters: worker.executor.counters.clone(),
            base: WorkerStats::default(),
            since: shared.clock.now(),
            busy: History::default(),
            ending: false,
        };
        shared.crew.write().members.insert(number, member);
        match (&mut self.drivers, seat) {
            (Drivers::Threads(running), Some(seat)) => drop(running.workers.insert(number, seat.take(worker))),
            (Drivers::Caller(parked), _) => drop(parked.workers.insert(number, worker)),
            (Drivers::Threads(_), None) => unreachable!("threads have seats"),
        }
        Ok(number)
    }

    fn make_worker(
        &self,
        shared: &Shared,
        number: usize,
        reader: Reader,
        waker: Arc<Waker>,
        dedicated: bool,
    ) -> Worker {
        let channel = Arc::new(Channel::new(self.config.upcall_queue, waker.clone()));
        let (roster, notifier) = &self.desks[number % self.desks.len()];
        roster.add(channel.clone());
        let counters = Arc::new(WorkerCounters::default());
        let executor = Executor {
            outputs: Outputs::new(number, self.config.tx_flush_interval, counters.clone()),
            recirculated: Default::default(),
            misses: MissQueue::new(channel.clone(), notifier.clone()),
            counters,
            now: shared.clock.now(),
            max_depth: self.config.max_depth,
            vlan_limit: self.config.vlan_limit,
            scratch: Vec::new(),
            hasher: shared.table.hasher.clone(),
        };
        let mut caches = Caches::new(self.config.exact_entries, self.config.seed);
        caches.set_one_in(self.config.exact_one_in);
        let mut frames = Frames::new();
        frames.meta.vlan_limit = self.config.vlan_limit;
        Worker {
            number,
            reader,
            table: shared.table.clone(),
            caches,
            frames,
            executor,
            parked: Vec::new(),
            storms: 0,
            rx: Vec::new(),
            idle_queues: IdleQueues::default(),
            fairness: Fairness::default(),
            leaving: Vec::new(),
            draining: Vec::new(),
            mailbox: Arc::new(Mailbox::new(waker)),
            channel,
            clock: shared.clock.clone(),
            max_sleep: self.config.max_sleep,
            empty_turns: 0,
            idle: false,
            idle_policy: IdlePolicy::new(dedicated),
            housekept: Time(0),
            time_cache: TimeCache::default(),
        }
    }

    /// Ends a worker that has no receive queues.
    fn dismiss(&mut self, shared: &Shared, number: usize) {
        let (done, drained) = mpsc::channel();
        let mailbox = {
            let mut crew = shared.crew.write();
            let Some(member) = crew.members.get_mut(&number) else { return };
            member.ending = true;
            member.mailbox.clone()
        };
        // Whatever it was given before comes before this.
        mailbox.post(Command::Drain { reply: done });
        self.settle_if_parked();
        let _ = drained.recv();
        let worker = match &mut self.drivers {
            Drivers::Caller(parked) => parked.workers.remove(&number),
            Drivers::Threads(running) => running.workers.remove(&number).and_then(|thread| {
                thread.stop.store(true, Ordering::SeqCst);
                mailbox.waker.wake();
                thread.handle.join().ok()?
            }),
        };
        // What waits is sent, and counted, before the counters are read for the last time.
        let dismantled = worker.map(|mut worker| (worker.executor.outputs.dismantle(worker.executor.now), worker));
        {
            let mut crew = shared.crew.write();
            if let Some(member) = crew.members.remove(&number) {
                let counted = member.counters.read();
                add_to(&mut crew.ended_ever, &counted);
                add_to(&mut crew.ended, &since(counted, &member.base));
            }
        }
        // A worker that has panicked keeps what it had; the process is about to end.
        let Some((queues, worker)) = dismantled else { return };
        self.desks[number % self.desks.len()].0.remove(&worker.channel);
        self.free.insert(number, worker.reader);
        self.disconnect(shared, number, queues);
    }
}

fn take_returned(worker: &mut Worker) {
    worker.reader.quiescent();
    worker.take_returned();
    worker.executor.outputs.end_of_batch(worker.executor.now);
    worker.reader.offline();
}

fn prepare(waker: &Waker) -> Result<(), Error> {
    waker.prepare().map_err(|source| Error::Thread { what: "a worker that can sleep".to_owned(), source })
}

impl Seat<Worker> {
    /// A thread for the worker of this number.
    fn worker(number: usize, core: Option<usize>) -> Result<Seat<Worker>, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        Seat::new(format!("worker{number}"), stop.clone(), move |mut worker: Worker| {
            pin(core);
            worker.run(&stop);
            worker
        })
    }
}

impl Seat<Handler> {
    /// A thread for the handler of this number.
    fn handler(
        number: usize,
        notifier: Arc<Notifier>,
        stop: &Arc<AtomicBool>,
        shared: &Arc<Shared>,
    ) -> Result<Self, Error> {
        let (stopped, shared) = (stop.clone(), shared.clone());
        Seat::new(format!("handler{number}"), stop.clone(), move |mut handler: Handler| {
            let mut maintained = Time(0);
            while !stopped.load(Ordering::Relaxed) {
                let now = shared.clock.now();
                if number == 0 && now.since(maintained) >= MAINTAIN {
                    maintained = now;
                    shared.maintain();
                }
                if handler.serve() == 0 {
                    notifier.wait(MAINTAIN, || handler.has_work() || stopped.load(Ordering::SeqCst));
                }
            }
            handler
        })
    }
}

impl<T: Send + 'static> Seat<T> {
    fn new(name: String, stop: Arc<AtomicBool>, work: impl FnOnce(T) -> T + Send + 'static) -> Result<Seat<T>, Error> {
        let (place, taken) = mpsc::sync_channel(1);
        let error = |source| Error::Thread { what: name.clone(), source };
        may_start().map_err(error)?;
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || taken.recv().ok().map(work));
        Ok(Seat { thread: Thread { stop, handle: thread.map_err(error)? }, place })
    }

    /// Has somebody work there.
    fn take(self, who: T) -> Thread<T> {
        // The thread waits for nothing else, and there is room for one.
        let _ = self.place.send(who);
        self.thread
    }
}

/// Where a test says that the system has no more threads.
#[cfg(not(test))]
fn may_start() -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
use tests::may_start;

fn cpu_set(core: usize) -> Option<rustix::thread::CpuSet> {
    (core < rustix::thread::CpuSet::MAX_CPU).then(|| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        set
    })
}

/// Whether a thread can be pinned to this core, tried by one that ends at once.
fn try_core(core: usize) -> Result<(), Error> {
    let error = |source| Error::Thread { what: format!("a worker on core {core}"), source };
    let Some(set) = cpu_set(core) else { return Err(error(std::io::ErrorKind::InvalidInput.into())) };
    let tried = std::thread::Builder::new().spawn(move || rustix::thread::sched_setaffinity(None, &set));
    let result = tried.map_err(error)?.join().expect("pinning does not panic");
    result.map_err(|errno| error(errno.into()))
}

/// Prepares a worker's thread.
fn pin(core: Option<usize>) {
    if let Some(set) = core.and_then(cpu_set)
        && let Err(error) = rustix::thread::sched_setaffinity(None, &set)
    {
        tracing::warn!("a worker cannot be pinned to its core: {error}");
    }
    // Without this, the system may prolong short sleeps by 50 µs.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
}

#[cfg(test)]
mod tests {
    use packet::BATCH_SIZE;
    use ports::registry::{Env, PortSpec, open};

    use std::cell::Cell;

    use super::*;
    use crate::datapath::Datapath;
    use crate::sync::clock::ManualClock;

    thread_local! {
        /// How many more threads the system lets this one start.
        static ALLOWED: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Takes one of the threads that are allowed.
    pub(super) fn may_start() -> std::io::Result<()> {
        let left = ALLOWED.get().checked_sub(1).ok_or(std::io::ErrorKind::WouldBlock)?;
        ALLOWED.set(left);
        Ok(())
    }

    fn cores(dp: &Datapath) -> Vec<Option<usize>> {
        dp.shared.crew.read().members.values().map(|member| member.core).collect()
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_an_error_and_the_others_go_on() {
        let core = rustix::thread::sched_getcpu();
        let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
        let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
        dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
        // Neither worker nor handler; then the worker alone.
        for allowed in [0, 1] {
            ALLOWED.set(allowed);
            assert!(matches!(dp.start(), Err(Error::Thread { .. })));
            assert_eq!((cores(&dp).len(), dp.poll()), (1, BATCH_SIZE), "whoever calls still drives them");
        }
        ALLOWED.set(usize::MAX);
        dp.start().unwrap();
        let received = || dp.stats().workers.iter().map(|stats| stats.received).sum::<u64>();
        let goes_on = || {
            let before = received();
            while received() == before {
                std::thread::yield_now();
            }
        };
        goes_on();
        ALLOWED.set(0);
        assert!(matches!(dp.set_workers(&[core]), Err(Error::Thread { .. })));
        assert_eq!(cores(&dp), [None], "the one that there was");
        goes_on();
        ALLOWED.set(1);
        dp.set_workers(&[core]).unwrap();
        assert_eq!(cores(&dp), [Some(core)], "tried again");
        goes_on();
        dp.stop();
    }

    #[test]
    fn what_is_done_with_returned_packets_is_charged_to_their_port() {
        let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
        let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
        dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
        let mut management = dp.management.lock();
        let Drivers::Caller(Parked { workers, handlers }) = &mut management.drivers else { panic!("no thread runs") };
        let worker = workers.values_mut().next().unwrap();
        assert_eq!(worker.turn(), BATCH_SIZE);
        let spent = worker.rx[0].cycles.get();
        // Nobody has connected a slow path.
        assert_eq!(handlers.iter_mut().map(Handler::serve).sum::<usize>(), BATCH_SIZE);
        assert_eq!(worker.take_returned(), BATCH_SIZE);
        assert!(spent > 0 && worker.rx[0].cycles.get() > spent);
        worker.reader.offline();
    }

    /// A flow that drops what comes from a port.
    fn dropping(port: crate::action::PortNo) -> crate::upcall::FlowSpec {
        use packet::{Field, Key, Mask};
        let mut key = Key::new();
        key.common_mut().in_port = port.0.into();
        let mut mask = Box::new(Mask::wildcard());
        [Field::InPortOxm, Field::RecircId].into_iter().for_each(|field| mask.set_exact(field));
        crate::upcall::FlowSpec { key: Box::new(key), mask, actions: Vec::new(), tag: Arc::new(()) }
    }

    #[test]
    fn ports_that_are_removed_together_wait_for_the_workers_once_and_not_each() {
        let (dp, env) = (Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1)))), Env::default());
        let ports: Vec<_> = (1..=101)
            .map(|n| {
                let device = open(&PortSpec::new(&format!("p{n}"), "dummy"), &env).unwrap();
                let port = dp.add_port(device).unwrap();
                dp.install(dropping(port)).unwrap();
                port
            })
            .collect();
        // Each port's list of flows is retired, which begins a grace period that nobody waits for.
        let waits = |removed: &[crate::action::PortNo]| {
            let before = dp.shared.domain.begin();
            assert_eq!(dp.remove_ports(removed).unwrap().len(), removed.len(), "the flow of each");
            dp.shared.domain.begin() - before - 1 - removed.len() as u64
        };
        assert_eq!((waits(&ports[..1]), waits(&ports[1..100])), (1, 1));
        assert!(dp.remove_ports(&[ports[100], ports[0]]).is_err());
        assert_eq!(dp.ports().len(), 1, "all stay where one does not exist");
    }

    #[test]
    fn ports_that_are_removed_together_are_one_message_to_each_worker() {
        let (dp, env) = (Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1)))), Env::default());
        let device = |n: u32| open(&PortSpec::new(&format!("p{n}"), "dummy"), &env).unwrap();
        let ports: Vec<_> = (1..=100).map(|n| dp.add_port(device(n)).unwrap()).collect();
        // A worker that dies of each message, which ends the wait for its answer.
        let mailbox = Arc::new(Mailbox::new(Arc::default()));
        dp.shared.crew.write().members.values_mut().for_each(|member| member.mailbox = mailbox.clone());
        let messages = std::thread::scope(|scope| {
            let removal = scope.spawn(|| dp.remove_ports(&ports).map(drop));
            let mut messages = 0;
            while !removal.is_finished() {
                messages += mailbox.take().len();
                std::thread::yield_now();
            }
            removal.join().unwrap().unwrap();
            messages
        });
        assert_eq!(messages, 1);
    }

    /// A queue with a frame in each turn, which does something else beside.
    struct Queue<F>(F);

    impl<F: FnMut() + Send> ports::RxQueue for Queue<F> {
        fn receive(&mut self, batch: &mut packet::Batch, _: Time) -> usize {
            self.0();
            batch.push(packet::Packet::from_slice(&[0; 60]));
            1
        }
    }

    #[test]
    fn who_waits_for_a_worker_waits_for_a_batch_and_not_for_a_turn_of_a_thousand_queues() {
        let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
        let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
        let port = dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
        dp.install(dropping(port)).unwrap();
        let mut management = dp.management.lock();
        let Drivers::Caller(Parked { workers, .. }) = &mut management.drivers else { panic!("no thread runs") };
        let worker = workers.values_mut().next().unwrap();
        let (asked, answers) = mpsc::channel();
        let (mailbox, domain) = (worker.mailbox.clone(), dp.shared.domain.clone());
        let epoch = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let begun = epoch.clone();
        let asks = move || {
            mailbox.post(Command::Report(asked.clone()));
            begun.store(domain.begin(), Ordering::SeqCst);
        };
        let (domain, seen) = (dp.shared.domain.clone(), Arc::new(AtomicBool::new(false)));
        let noted = seen.clone();
        let looks = move || {
            let passed = domain.passed(epoch.load(Ordering::SeqCst));
            noted.store(answers.try_iter().count() == 1 && passed, Ordering::SeqCst);
        };
        let shared = worker.rx[0].port.clone();
        let rx = |index, queue: Box<dyn ports::RxQueue>| {
            crate::worker::rx_queue::Rx::new(&shared, index, queue, Arc::default())
        };
        let queues = [rx(1, Box::new(Queue(asks))), rx(2, Box::new(Queue(looks)))];
        worker.rx.extend(queues);
        worker.turn();
        assert!(seen.load(Ordering::SeqCst), "the queue after the one during whose batch it was left");
        worker.reader.offline();
    }

    #[test]
    fn who_waits_for_a_worker_waits_for_a_packet_from_the_slow_path_and_not_for_all() {
        let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
        let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
        dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
        let mut management = dp.management.lock();
        let Drivers::Caller(Parked { workers, handlers }) = &mut management.drivers else { panic!("no thread runs") };
        let worker = workers.values_mut().next().unwrap();
        assert_eq!(worker.turn(), BATCH_SIZE);
        assert_eq!(handlers.iter_mut().map(Handler::serve).sum::<usize>(), BATCH_SIZE);
        let (asked, answers) = mpsc::channel();
        worker.mailbox.post(Command::Report(asked));
        let epoch = dp.shared.domain.begin();
        worker.take_returned();
        assert!(answers.try_recv().is_ok() && dp.shared.domain.passed(epoch));
        worker.reader.offline();
    }

    /// A super-frame of TCP, to be cut into segments of this size.
    fn super_frame(gso_size: u16) -> packet::Packet {
        let mut frame = vec![0; 54 + 60_000];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&60_040u16.to_be_bytes());
        (frame[22], frame[23], frame[46]) = (64, 6, 0x50);
        let mut packet = packet::Packet::from_slice(&frame);
        *packet.offload_mut() = packet::Offload {
            flags: packet::Offload::NEEDS_CSUM,
            gso_type: packet::Offload::GSO_TCPV4,
            hdr_len: 54,
            gso_size,
            csum_start: 34,
            csum_offset: 16,
        };
        packet
    }

    /// Whether a port whose super-frames become segments of this size is passed over in the turn after them.
    fn is_charged_for_segments(gso_size: u16) -> bool {
        let (dp, env) = (Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1)))), Env::default());
        let add = |name| {
            let port = dp.add_port(open(&PortSpec::new(name, "dummy"), &env).unwrap()).unwrap();
            (port, env.dummies.find(name).unwrap())
        };
        let [(out, _), (victim, quiet), (attacker, loud)] = ["out", "victim", "attacker"].map(add);
        for port in [victim, attacker] {
            let output = crate::action::Action::Output(out);
            dp.install(crate::upcall::FlowSpec { actions: vec![output], ..dropping(port) }).unwrap();
        }
        let mut management = dp.management.lock();
        let Drivers::Caller(Parked { workers, .. }) = &mut management.drivers else { panic!("no thread runs") };
        let worker = workers.values_mut().next().unwrap();
        let mut turn = |loud_frames: usize| {
            assert!(quiet.inject(&[0; 60]));
            for _ in 0..loud_frames {
                assert!(loud.inject_packet(0, super_frame(gso_size)));
            }
            worker.turn()
        };
        // The first shows what is cheap.
        assert_eq!((turn(0), turn(4)), (1, 5));
        let polled = turn(4);
        worker.reader.offline();
        assert!(matches!(polled, 1 | 5), "the victim is served: {polled}");
        polled == 1
    }

    #[test]
    fn tiny_segments_are_charged_to_the_port_of_their_frame() {
        // Who is charged is told by cycles, of which a machine that is busy takes some for itself.
        let mostly = |gso_size| (0..9).filter(|_| is_charged_for_segments(gso_size)).count() > 4;
        assert!(mostly(48) && !mostly(1448));
    }

    #[test]
    fn recirculation_storms_are_charged_to_their_port() {
        use crate::action::Action;
        use crate::upcall::FlowSpec;
        use packet::{Field, Key, Mask};
        for copies in [1, 7] {
            let dp = Datapath::new(Config::default(), Arc::new(ManualClock::new(Time(1))));
            let spec = PortSpec::new("source", "null").with(&[("n_rxq", "1"), ("size", "64")]);
            let port = dp.add_port(open(&spec, &Env::default()).unwrap()).unwrap();
            for id in 0..7 {
                let mut key = Key::new();
                (key.common_mut().in_port, key.common_mut().recirc_id) = (port.0.into(), id.into());
                let mut mask = Box::new(Mask::wildcard());
                [Field::InPortOxm, Field::RecircId].into_iter().for_each(|field| mask.set_exact(field));
                let actions = vec![Action::Recirc(id + 1); if id == 0 { copies } else { 1 }];
                dp.install(FlowSpec { key: Box::new(key), mask, actions, tag: Arc::new(()) }).unwrap();
            }
            let mut management = dp.management.lock();
            let Drivers::Caller(Parked { workers, .. }) = &mut management.drivers else { panic!("no thread runs") };
            let worker = workers.values_mut().next().unwrap();
            assert_eq!(worker.turn(), BATCH_SIZE);
            assert_eq!(worker.storms, u64::from(copies > 6), "{copies} copies");
            // The rest waits, and the port is not polled before it is through.
            assert_eq!((worker.parked.len(), worker.turn()), if copies > 6 { (1, 0) } else { (0, BATCH_SIZE) });
            worker.reader.offline();
        }
    }
}
