//! The datapath as the rest of the switch sees it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packet::{Clock, Key, Packet, Time};
use parking_lot::Mutex;
use ports::Port;

use crate::act::{Actor, Metadata};
use crate::action::{Action, PortNo};
use crate::classify::megaflow::MAX_PORTS;
use crate::classify::{ExactCache, Table};
use crate::config::Config;
use crate::counters::{WorkerCounters, drops_since, since};
use crate::error::Error;
use crate::forward::Frames;
use crate::miss::{Bell, Channel, Handler, MissQueue};
use crate::output::Outputs;
use crate::port::{PortShared, Queue};
use crate::program::Program;
use crate::rcu::Domain;
use crate::sleep::Waker;
use crate::stats::{Drops, RemovedFlow, RxAssignment, Stats, WorkerStats};
use crate::tsc;
use crate::upcall::{FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Upcall};
use crate::worker::{Command, GivenBack, Mailbox, Worker};

/// How often a handler thread calls [`Datapath::maintain`].
const MAINTAIN: Duration = Duration::from_millis(100);
/// How often subtables are ranked and ports are looked at.
const RANK: Duration = Duration::from_secs(1);
/// Flows that a dump reads at once.
const DUMPED: usize = 256;

/// Ports, flows and the workers that forward between them.
///
/// Every method may be called from any thread, also from [`Upcall`]s, except where it says otherwise.
pub struct Datapath {
    shared: Arc<Shared>,
    drivers: Mutex<Drivers>,
    config: Config,
}

/// What threads and callers share.
struct Shared {
    clock: Arc<dyn Clock>,
    table: Arc<Table>,
    domain: Arc<Domain>,
    upcall: Arc<OnceLock<Arc<dyn Upcall>>>,
    /// Of each worker.
    mailboxes: Vec<Arc<Mailbox>>,
    /// Of each worker.
    counters: Vec<Arc<WorkerCounters>>,
    ports: Mutex<Ports>,
    /// When subtables were ranked and ports looked at last.
    ranked: Mutex<Time>,
}

#[derive(Default)]
struct Ports {
    by_number: BTreeMap<PortNo, Arc<PortShared>>,
    assignments: Vec<RxAssignment>,
    /// The number given last.
    last: u32,
    /// Counters when they were reset.
    worker_base: Vec<WorkerStats>,
    drops_base: BTreeMap<PortNo, Drops>,
}

/// Who drives the workers and handlers.
enum Drivers {
    /// Whoever calls [`Datapath::poll`].
    Caller(Parked),
    /// Threads.
    Threads(Running),
}

#[derive(Default)]
struct Parked {
    workers: Vec<Worker>,
    handlers: Vec<(Handler, Arc<Bell>)>,
}

struct Running {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Worker>>,
    handlers: Vec<JoinHandle<(Handler, Arc<Bell>)>>,
    bells: Vec<Arc<Bell>>,
}

/// Set up and shut down.
impl Datapath {
    /// A datapath without ports and flows. Its workers do not run until [`start`](Datapath::start);
    /// until then [`poll`](Datapath::poll) drives them.
    pub fn new(config: Config, clock: Arc<dyn Clock>) -> Arc<Datapath> {
        let workers = config.workers.len().max(1);
        let handlers = config.handlers.clamp(1, workers);
        let domain = Arc::new(Domain::new(workers + handlers));
        let mut readers = domain.readers();
        let table = Arc::new(Table::new(config.max_flows, config.max_masks, workers, config.seed, domain.clone()));
        let upcall = Arc::new(OnceLock::new());

        let served = readers.split_off(workers).into_iter().map(|reader| {
            let (table, upcall, clock) = (table.clone(), upcall.clone(), clock.clone());
            (Handler { channels: Vec::new(), reader, table, upcall, clock }, Arc::new(Bell::default()))
        });
        let mut parked = Parked { workers: Vec::new(), handlers: served.collect() };
        for (number, reader) in readers.into_iter().enumerate() {
            let waker = Arc::new(Waker::default());
            let channel = Arc::new(Channel::new(config.upcall_queue, waker.clone()));
            let (handler, bell) = &mut parked.handlers[number % handlers];
            handler.channels.push(channel.clone());
            let counters = Arc::new(WorkerCounters::default());
            let actor = Actor {
                outputs: Outputs::new(number, config.tx_flush_interval, counters.clone()),
                recirculated: Default::default(),
                misses: MissQueue::new(channel.clone(), bell.clone()),
                counters,
                now: clock.now(),
                max_depth: config.max_depth,
                hasher: table.hasher.clone(),
            };
            parked.workers.push(Worker {
                number,
                reader,
                table: table.clone(),
                exact: ExactCache::new(config.exact_entries),
                frames: Frames::new(),
                actor,
                rx: Vec::new(),
                mailbox: Arc::new(Mailbox::new(waker)),
                channel,
                clock: clock.clone(),
                max_sleep: config.max_sleep,
                empty_turns: 0,
                housekept: Time(0),
            });
        }
        let mailboxes = parked.workers.iter().map(|w| w.mailbox.clone()).collect();
        let counters = parked.workers.iter().map(|w| w.actor.counters.clone()).collect();
        let ports = Ports { worker_base: vec![WorkerStats::default(); workers], ..Ports::default() };
        let ranked = Mutex::new(clock.now());
        let ports = Mutex::new(ports);
        let shared = Arc::new(Shared { clock, table, domain, upcall, mailboxes, counters, ports, ranked });
        Arc::new(Datapath { shared, drivers: Mutex::new(Drivers::Caller(parked)), config })
    }

    /// Connects the slow path. Until then every miss is dropped as an upcall error. Can be done once;
    /// later calls have no effect.
    pub fn set_upcall(&self, upcall: Arc<dyn Upcall>) {
        let _ = self.shared.upcall.set(upcall);
    }

    /// Starts the worker and handler threads. Without effect where they run.
    pub fn start(&self) -> Result<(), Error> {
        let mut drivers = self.drivers.lock();
        let Drivers::Caller(parked) = &mut *drivers else { return Ok(()) };
        // What can fail comes before anything is given to a thread, so that a failure changes nothing.
        for mailbox in &self.shared.mailboxes {
            let what = "a worker that can sleep".to_owned();
            mailbox.waker.prepare().map_err(|source| Error::Thread { what, source })?;
        }
        for &core in &self.config.workers {
            try_core(core)?;
        }
        let Parked { workers, handlers } = std::mem::take(parked);
        let stop = Arc::new(AtomicBool::new(false));
        let bells = handlers.iter().map(|(_, bell)| bell.clone()).collect();
        let workers = workers.into_iter().map(|mut worker| {
            let (stop, core) = (stop.clone(), self.config.workers.get(worker.number).copied());
            spawn(format!("worker{}", worker.number), move || {
                pin(core);
                worker.run(&stop);
                worker
            })
        });
        let workers = workers.collect();
        let handlers = handlers.into_iter().enumerate().map(|(number, (mut handler, bell))| {
            let (stop, shared) = (stop.clone(), self.shared.clone());
            spawn(format!("handler{number}"), move || {
                let mut maintained = Time(0);
                while !stop.load(Ordering::Relaxed) {
                    let now = shared.clock.now();
                    if number == 0 && now.since(maintained) >= MAINTAIN {
                        maintained = now;
                        shared.maintain();
                    }
                    if handler.serve() == 0 {
                        bell.wait(MAINTAIN, || handler.has_work() || stop.load(Ordering::SeqCst));
                    }
                }
                (handler, bell)
            })
        });
        let handlers = handlers.collect();
        *drivers = Drivers::Threads(Running { stop, workers, handlers, bells });
        Ok(())
    }

    /// Stops the threads, after which [`poll`](Datapath::poll) drives the datapath again. Packets that
    /// wait for the slow path stay queued. Not to be called from an upcall.
    pub fn stop(&self) {
        let mut drivers = self.drivers.lock();
        let Drivers::Threads(running) = &mut *drivers else { return };
        running.stop.store(true, Ordering::SeqCst);
        self.shared.mailboxes.iter().for_each(|m| m.waker.wake());
        running.bells.iter().for_each(|b| b.ring());
        // A thread that panicked is gone with what it had; the others go on.
        let workers = std::mem::take(&mut running.workers).into_iter().filter_map(|t| t.join().ok()).collect();
        let handlers = std::mem::take(&mut running.handlers).into_iter().filter_map(|t| t.join().ok()).collect();
        *drivers = Drivers::Caller(Parked { workers, handlers });
    }

    /// Runs one turn of each worker in the calling thread, with the upcalls that it causes and what
    /// they send back, and returns how many packets were received. Deterministic. Without effect while
    /// threads run. Not to be called from an upcall.
    pub fn poll(&self) -> usize {
        let mut drivers = self.drivers.lock();
        let Drivers::Caller(Parked { workers, handlers }) = &mut *drivers else { return 0 };
        let mut received = 0;
        for worker in workers.iter_mut() {
            received += worker.turn();
            worker.reader.offline();
        }
        // Answers can cause further misses, by recirculation, but only so often.
        while handlers.iter_mut().map(|(handler, _)| handler.serve()).sum::<usize>() > 0 {
            for worker in workers.iter_mut() {
                worker.reader.quiescent();
                worker.take_returned();
                worker.actor.outputs.end_of_batch(worker.actor.now);
                worker.reader.offline();
            }
        }
        drop(drivers);
        self.shared.maintain();
        received
    }

    /// Work that is due now and then: ranks subtables, frees memory, notices changes of the ports' MTU
    /// and state. A handler thread does it every 100 ms; without threads, [`poll`](Datapath::poll) does.
    pub fn maintain(&self) {
        self.shared.maintain();
    }

    /// The present time, by the datapath's clock.
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Changes how long a packet may wait for others to the same port. Zero: until the end of its batch.
    pub fn set_tx_flush_interval(&self, interval: Duration) {
        self.shared.mailboxes.iter().for_each(|m| m.post(Command::SetFlushInterval(interval)));
    }

    /// Returns when every worker has finished the turn that it is in. After [`modify`](Datapath::modify)
    /// and a barrier, no packet is treated by the old actions any more.
    pub fn barrier(&self) {
        self.shared.domain.synchronize();
    }

    /// Returns when all packets that came in before the call have gone their way, through the slow path
    /// too: a worker has had a turn without work since then, and no packet of it is up. `false` where
    /// traffic goes on for longer than `patience`. Not to be called from an upcall.
    pub fn settle(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        // The first answers say that a turn has begun that sees what came in; its end comes later.
        let mut idle = self.reports(deadline).map(|_| false);
        while idle == Some(false) && Instant::now() < deadline {
            std::thread::yield_now();
            idle = self.reports(deadline);
        }
        idle == Some(true)
    }

    /// Whether all workers report that they are idle; `None` where one does not answer in time.
    fn reports(&self, deadline: Instant) -> Option<bool> {
        if matches!(*self.drivers.lock(), Drivers::Caller(_)) {
            self.poll();
        }
        let (reply, answers) = mpsc::channel();
        for mailbox in &self.shared.mailboxes {
            mailbox.post(Command::Report(reply.clone()));
        }
        drop(reply);
        Self::obey_if_parked(&mut self.drivers.lock());
        let mut idle = true;
        for _ in &self.shared.mailboxes {
            idle &= answers.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()?;
        }
        Some(idle)
    }

    /// Lets workers that no thread drives do what they were asked to.
    fn obey_if_parked(drivers: &mut Drivers) {
        if let Drivers::Caller(parked) = drivers {
            for worker in &mut parked.workers {
                worker.reader.quiescent();
                worker.actor.now = worker.clock.now();
                worker.obey();
                worker.reader.offline();
            }
        }
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Ports.
impl Datapath {
    /// Adds a port and spreads its receive queues over the workers. Numbers start at 1, ascend, and are
    /// not reused before all others were used once. Not to be called from an upcall.
    pub fn add_port(&self, port: Arc<dyn Port>) -> Result<PortNo, Error> {
        let mut drivers = self.drivers.lock();
        let workers = self.shared.mailboxes.len();
        let mut ports = self.shared.ports.lock();
        if ports.by_number.values().any(|p| p.port.name() == port.name()) {
            return Err(Error::PortExists(port.name().to_owned()));
        }
        let number = ports.number_for(&*port).ok_or(Error::TooManyPorts(MAX_PORTS - 1))?;
        let tx = Queue::make(&*port, workers)?;
        let mut rx: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
        for (queue, object) in port.take_rx_queues().into_iter().enumerate() {
            let worker = ports.least_loaded(workers);
            ports.assignments.push(RxAssignment { port: number, queue, worker });
            rx[worker].push(object);
        }
        let shared = PortShared::new(number, port, workers);
        ports.by_number.insert(number, shared.clone());
        ports.last = number.0;
        drop(ports);
        for ((mailbox, tx), rx) in self.shared.mailboxes.iter().zip(tx).zip(rx) {
            mailbox.post(Command::AddPort { port: shared.clone(), tx, rx });
        }
        Self::obey_if_parked(&mut drivers);
        Ok(number)
    }

    /// Takes a port away. When this returns, no worker uses it: its queues are closed, packets that
    /// waited for transmission are sent, and flows for packets from it are removed and returned. Flows
    /// that send to it drop with `NoSuchPort` until the caller changes them. No packet of another port
    /// is lost. Not to be called from an upcall.
    pub fn remove_port(&self, port: PortNo) -> Result<Vec<RemovedFlow>, Error> {
        let mut drivers = self.drivers.lock();
        let mut ports = self.shared.ports.lock();
        let shared = ports.by_number.remove(&port).ok_or(Error::NoSuchPort(port))?;
        ports.assignments.retain(|a| a.port != port);
        ports.drops_base.remove(&port);
        drop(ports);
        let (reply, given_back) = mpsc::channel::<GivenBack>();
        for mailbox in &self.shared.mailboxes {
            mailbox.post(Command::RemovePort { port, reply: reply.clone() });
        }
        drop(reply);
        Self::obey_if_parked(&mut drivers);
        // Ends when each worker has answered (or died). The queues are closed here, not on a worker.
        given_back.iter().for_each(drop);
        drop(drivers);
        let removed = self.shared.table.remove(&self.shared.table.ids(Some(port)));
        drop(shared);
        Ok(removed)
    }

    /// The port with this number.
    pub fn port(&self, port: PortNo) -> Option<Arc<dyn Port>> {
        self.shared.ports.lock().by_number.get(&port).map(|p| p.port.clone())
    }

    /// All ports, in the order of their numbers.
    pub fn ports(&self) -> Vec<(PortNo, Arc<dyn Port>)> {
        self.shared.ports.lock().by_number.values().map(|p| (p.no, p.port.clone())).collect()
    }

    /// Takes over changes of the port's MTU and administrative state at once, rather than within a
    /// second.
    pub fn refresh_port(&self, port: PortNo) -> Result<(), Error> {
        let shared = self.shared.ports.lock().by_number.get(&port).cloned();
        shared.ok_or(Error::NoSuchPort(port))?.refresh();
        Ok(())
    }

    /// Which worker polls which receive queue.
    pub fn rx_assignments(&self) -> Vec<RxAssignment> {
        self.shared.ports.lock().assignments.clone()
    }
}

impl Ports {
    /// Dummy ports are numbered by their name where they can be, so that tests can name datapath ports:
    /// `p7` is 7, and bridges count from 100, `br0` is 100. This is how OVS numbers them.
    fn number_for(&self, port: &dyn Port) -> Option<PortNo> {
        if !port.kind().starts_with("dummy") {
            return self.free_number();
        }
        let base = if port.name().starts_with("br") { 100 } else { 0 };
        let digits = port.name().trim_start_matches(|c: char| !c.is_ascii_digit());
        let digits = &digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())];
        let named = digits.parse::<u32>().ok().and_then(|n| n.checked_add(base)).map(PortNo);
        let free = |no: &PortNo| (1..MAX_PORTS as u32).contains(&no.0) && !self.by_number.contains_key(no);
        named.filter(free).or_else(|| (1..MAX_PORTS as u32).map(PortNo).find(free))
    }

    fn free_number(&self) -> Option<PortNo> {
        let max = MAX_PORTS as u32 - 1;
        let candidates = (self.last + 1..=max).chain(1..=self.last);
        candidates.map(PortNo).find(|no| !self.by_number.contains_key(no))
    }

    /// The worker with the fewest receive queues; the first of them.
    fn least_loaded(&self, workers: usize) -> usize {
        let queues = |worker: &usize| self.assignments.iter().filter(|a| a.worker == *worker).count();
        (0..workers).min_by_key(queues).unwrap_or(0)
    }
}

/// Flows.
impl Datapath {
    /// Installs a flow, or returns the one with equal key and mask, whose actions and tag become these.
    /// in_port, recirc_id and packet_type are matched exactly, whatever the mask says. Flows must not
    /// contradict each other: of those that match a packet, any may be taken.
    pub fn install(&self, spec: FlowSpec) -> Result<FlowId, Error> {
        let FlowSpec { key, mask, actions, tag } = spec;
        let installed = self.shared.table.install(&key, mask, actions.into(), tag, self.now())?;
        Ok(installed.id)
    }

    /// Replaces a flow's actions. Packets of the turn that a worker is in may still see the old ones:
    /// [`barrier`](Datapath::barrier).
    pub fn modify(&self, id: FlowId, actions: Vec<Action>) -> Result<(), Error> {
        self.shared.table.modify(id, actions)
    }

    /// Replaces the upper layer's record of a flow.
    pub fn set_tag(&self, id: FlowId, tag: FlowTag) -> Result<(), Error> {
        self.shared.table.set_tag(id, tag)
    }

    /// Removes a flow; `None` when it has gone already. When this returns, no packet uses it and the
    /// statistics are final.
    pub fn remove(&self, id: FlowId) -> Option<RemovedFlow> {
        self.remove_all(&[id]).pop()
    }

    /// Removes flows, as [`remove`](Datapath::remove), waiting for the workers once. Flows that have
    /// gone already are left out of the answer.
    pub fn remove_all(&self, ids: &[FlowId]) -> Vec<RemovedFlow> {
        self.shared.table.remove(ids)
    }

    /// Removes every flow.
    pub fn flush(&self) -> Vec<RemovedFlow> {
        self.remove_all(&self.shared.table.ids(None))
    }

    /// A flow.
    pub fn flow(&self, id: FlowId) -> Option<FlowDump> {
        self.shared.table.dump(id)
    }

    /// A flow's statistics so far.
    pub fn flow_stats(&self, id: FlowId) -> Option<FlowStats> {
        self.shared.table.stats(id)
    }

    /// All flows, in no particular order, while workers and others go on: a flow that is installed or
    /// removed meanwhile may be seen or not; none is seen twice.
    pub fn flows(&self) -> impl Iterator<Item = FlowDump> + '_ {
        let mut ids = self.shared.table.ids(None);
        std::iter::from_fn(move || {
            (!ids.is_empty()).then(|| self.shared.table.dump_some(&ids.split_off(ids.len().saturating_sub(DUMPED))))
        })
        .flatten()
    }

    /// Flows installed now.
    pub fn flow_count(&self) -> usize {
        self.shared.table.count()
    }

    /// Runs actions on a packet. Of `metadata`, in_port, packet_type, packet mark, priority, tunnel and
    /// connection fields count; the others are extracted from the frame. Done by a worker in its next
    /// turn, in the order of the calls; with [`poll`](Datapath::poll), in the next poll.
    pub fn execute(&self, packet: Packet, metadata: &Key, actions: &[Action]) {
        let program = Box::new(Program::compile(actions));
        let (metadata, in_port) = (Metadata::of(metadata), crate::upcall::in_port(metadata));
        // By the worker that has the input port's first queue, so that the packet stays in order with
        // what comes in there.
        let assigned = self.shared.ports.lock().assignments.iter().find(|a| a.port == in_port).map(|a| a.worker);
        self.shared.mailboxes[assigned.unwrap_or(0)].post(Command::Execute { packet, metadata, program });
    }
}

/// Statistics.
impl Datapath {
    /// Counters of the workers and ports.
    pub fn stats(&self) -> Stats {
        let ports = self.shared.ports.lock();
        let workers = self.shared.read_workers().into_iter().enumerate().map(|(number, now)| {
            let core = self.config.workers.get(number).copied();
            WorkerStats { core, ..since(now, &ports.worker_base[number]) }
        });
        let workers = workers.collect();
        let drops = ports.by_number.values().map(|p| {
            let now = read_drops(p);
            (p.no, ports.drops_base.get(&p.no).map_or(now.clone(), |base| drops_since(now, base)))
        });
        Stats {
            workers,
            ports: drops.collect(),
            flows: self.shared.table.count(),
            masks: self.shared.table.masks(),
            cycles_per_second: tsc::frequency(),
        }
    }

    /// Starts the counters of workers and ports from zero.
    pub fn reset_stats(&self) {
        let mut ports = self.shared.ports.lock();
        ports.worker_base = self.shared.read_workers();
        ports.drops_base = ports.by_number.values().map(|p| (p.no, read_drops(p))).collect();
    }
}

/// Drops of all workers.
fn read_drops(port: &PortShared) -> Drops {
    port.drops.iter().fold(Drops::default(), |mut sum, worker| {
        sum.0.iter_mut().zip(worker.read().0).for_each(|(sum, n)| *sum += n);
        sum
    })
}

impl Shared {
    fn read_workers(&self) -> Vec<WorkerStats> {
        self.counters.iter().map(|c| c.read()).collect()
    }

    fn maintain(&self) {
        self.domain.collect();
        let now = self.clock.now();
        let mut ranked = self.ranked.lock();
        if now.since(*ranked) < RANK {
            return;
        }
        *ranked = now;
        drop(ranked);
        self.table.rank();
        let ports: Vec<_> = self.ports.lock().by_number.values().cloned().collect();
        ports.iter().for_each(|p| p.refresh());
    }
}

fn spawn<T: Send + 'static>(name: String, body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::Builder::new().name(name).spawn(body).expect("the system can start a thread")
}

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
