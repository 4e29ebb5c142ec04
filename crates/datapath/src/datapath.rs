//! The datapath as the rest of the switch sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use packet::flow::VlanLimit;
use packet::{Clock, Key, Packet, Time};
use parking_lot::{Mutex, RwLock};
use ports::{Port, RxQueue};

use crate::account::Account;
use crate::action::{Action, PortNo};
use crate::actions::execute::Metadata;
use crate::actions::program::Program;
use crate::classify::table::megaflow::MAX_PORTS;
use crate::classify::{By, Table};
use crate::config::Config;
use crate::control::assignment::{Place, Policy};
use crate::control::pool::{Crew, Management, Member, TxQueues};
use crate::control::usage::{self, History};
use crate::error::Error;
use crate::pipeline::port::PortShared;
use crate::slowpath::flow_log;
use crate::stats::{Drops, RemovedFlow, RxAssignment, Stats, Usage, WorkerStats};
use crate::sync::counters::{Counter, drops_since};
use crate::sync::rcu::Domain;
use crate::sync::tsc;
use crate::upcall::{FlowBrief, FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, Upcall};
use crate::worker::mailbox::{Command, GivenBack};
use crate::worker::rx_queue::Rx;

/// How often subtables are ranked and ports are looked at.
const RANK: Duration = Duration::from_secs(1);

/// Ports, flows and the workers that forward between them.
///
/// Every method may be called from any thread, also from [`Upcall`]s, except where it says otherwise.
pub struct Datapath {
    pub(crate) shared: Arc<Shared>,
    /// Taken before any other lock.
    pub(crate) management: Mutex<Management>,
}

/// What threads and callers share. Locks, in the order in which they are taken: `ports`, `crew`.
pub(crate) struct Shared {
    pub clock: Arc<dyn Clock>,
    pub table: Arc<Table>,
    pub domain: Arc<Domain>,
    pub upcall: Arc<OnceLock<Arc<dyn Upcall>>>,
    pub ports: Mutex<Ports>,
    pub crew: RwLock<Crew>,
    /// Workers that there can be.
    pub max_workers: usize,
    due: Mutex<Due>,
}

/// When something was done last.
struct Due {
    /// Subtables were ranked and ports looked at.
    ranked: Time,
    /// A step of the usage's history ended.
    measured: Time,
}

#[derive(Default)]
pub(crate) struct Ports {
    pub by_number: BTreeMap<PortNo, Entry>,
    /// The number given last.
    last: u32,
    /// Counters when they were reset.
    drops_base: BTreeMap<PortNo, Drops>,
    /// Cycles that have passed, for everybody's usage.
    pub wall: History,
}

/// A port, as the management knows it.
pub(crate) struct Entry {
    pub shared: Arc<PortShared>,
    pub tx: TxQueues,
    pub rx: Vec<RxState>,
    /// Core that is wanted for a receive queue.
    pub affinity: BTreeMap<usize, usize>,
}

/// A receive queue, as the management knows it.
pub(crate) struct RxState {
    pub place: Place,
    pub cycles: Arc<Counter>,
    pub history: History,
}

/// Set up and shut down.
impl Datapath {
    /// A datapath without ports and flows. Its workers do not run until [`start`](Datapath::start);
    /// until then [`poll`](Datapath::poll) drives them.
    pub fn new(config: Config, clock: Arc<dyn Clock>) -> Arc<Datapath> {
        let cores: Vec<_> = config.workers.iter().map(|&core| Some(core)).collect();
        let cores = if cores.is_empty() { vec![None] } else { cores };
        let max_workers = config.max_workers.max(cores.len());
        let handlers = config.handlers.clamp(1, max_workers);
        let domain = Arc::new(Domain::new(max_workers + handlers));
        let mut readers = domain.readers();
        let for_handlers = readers.split_off(max_workers);
        let table = Table::new(config.max_flows, config.max_masks, max_workers, config.seed, domain.clone());
        table.set_max_memory(config.max_flow_memory);
        let now = clock.now();
        let shared = Arc::new(Shared {
            clock,
            table: Arc::new(table),
            domain,
            upcall: Arc::default(),
            ports: Mutex::new(Ports { wall: History::starting_at(tsc::cycles()), ..Ports::default() }),
            crew: RwLock::default(),
            max_workers,
            due: Mutex::new(Due { ranked: now, measured: now }),
        });
        let mut management = Management::new(config, readers, for_handlers, &shared);
        for core in cores {
            management.hire(&shared, core).expect("there are as many places as workers, and no thread is started");
        }
        Arc::new(Datapath { shared, management: Mutex::new(management) })
    }

    /// Connects the slow path. Until then every miss is dropped as an upcall error. Can be done once;
    /// later calls have no effect.
    pub fn set_upcall(&self, upcall: Arc<dyn Upcall>) {
        let _ = self.shared.upcall.set(upcall);
    }

    /// Starts the worker and handler threads. Without effect where they run.
    pub fn start(&self) -> Result<(), Error> {
        self.management.lock().start(&self.shared)
    }

    /// Stops the threads, after which [`poll`](Datapath::poll) drives the datapath again. Packets that
    /// wait for the slow path stay queued. Not to be called from an upcall.
    pub fn stop(&self) {
        self.management.lock().stop(&self.shared);
    }

    /// Runs one turn of each worker in the calling thread, with the upcalls that it causes and what
    /// they send back, and returns how many packets were received. Deterministic. Without effect while
    /// threads run. Not to be called from an upcall.
    pub fn poll(&self) -> usize {
        let Some(received) = self.management.lock().poll() else { return 0 };
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

    /// Returns when every worker has finished the batch that it is at. After [`modify`](Datapath::modify)
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
        self.poll();
        let (reply, answers) = mpsc::channel();
        self.management.lock().tell(&self.shared, || Command::Report(reply.clone()));
        drop(reply);
        let mut idle = true;
        loop {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(answer) => idle &= answer,
                // Everybody has answered.
                Err(mpsc::RecvTimeoutError::Disconnected) => return Some(idle),
                Err(mpsc::RecvTimeoutError::Timeout) => return None,
            }
        }
    }
}

/// Settings that can change while packets flow.
impl Datapath {
    /// Changes on which cores there are workers; none: one worker that may run on any core. Workers whose
    /// core stays go on undisturbed. The others hand their receive queues over between two bursts, when
    /// the slow path has answered for what came from there: no packet is lost, nor overtaken by a later
    /// one of its queue. On an error nothing has changed. Not to be called from an upcall.
    pub fn set_workers(&self, cores: &[usize]) -> Result<(), Error> {
        self.management.lock().set_workers(&self.shared, cores)
    }

    /// Changes how receive queues are spread, and spreads them anew. With `isolate`, a worker that a
    /// queue is pinned to gets no others. Not to be called from an upcall.
    pub fn set_rx_policy(&self, policy: Policy, isolate: bool) {
        self.management.lock().set_policy(&self.shared, policy, isolate);
    }

    /// Pins receive queues of a port to cores; the others go where the policy puts them. Not to be called
    /// from an upcall.
    pub fn set_rx_affinity(&self, port: PortNo, affinity: BTreeMap<usize, usize>) -> Result<(), Error> {
        let mut management = self.management.lock();
        {
            let mut ports = self.shared.ports.lock();
            let entry = ports.by_number.get_mut(&port).ok_or(Error::NoSuchPort(port))?;
            if entry.affinity == affinity {
                return Ok(());
            }
            entry.affinity = affinity;
        }
        management.spread(&self.shared);
        Ok(())
    }

    /// Spreads the receive queues anew by the policy in force and the load of the last minute. Not to be
    /// called from an upcall.
    pub fn rebalance(&self) {
        self.management.lock().spread(&self.shared);
    }

    /// Changes how long a packet may wait for others to the same port. Zero: until the end of its batch.
    pub fn set_tx_flush_interval(&self, interval: Duration) {
        let mut management = self.management.lock();
        management.config.tx_flush_interval = interval;
        management.tell(&self.shared, || Command::SetFlushInterval(interval));
    }

    /// Changes the longest sleep of an idle worker ([`Config::max_sleep`]).
    pub fn set_max_sleep(&self, max_sleep: Duration) {
        let mut management = self.management.lock();
        management.config.max_sleep = max_sleep;
        management.tell(&self.shared, || Command::SetMaxSleep(max_sleep));
    }

    /// Changes how many of the flows that tier 2 has found the exact-match caches remember: one in so many;
    /// zero: none.
    pub fn set_exact_one_in(&self, one_in: u32) {
        let mut management = self.management.lock();
        management.config.exact_one_in = one_in;
        management.tell(&self.shared, || Command::SetExactOneIn(one_in));
    }

    /// Changes how many flows each exact-match cache can remember at most ([`Config::exact_entries`]).
    pub fn set_exact_entries(&self, entries: usize) {
        let mut management = self.management.lock();
        management.config.exact_entries = entries;
        management.tell(&self.shared, || Command::SetExactEntries(entries));
    }

    /// Changes how many VLAN tags of a frame are parsed. What a worker receives after the return is read in the new way;
    /// flows that were made in the old way stay. Not to be called from an upcall.
    pub fn set_vlan_limit(&self, limit: VlanLimit) {
        let mut management = self.management.lock();
        management.config.vlan_limit = limit;
        management.tell(&self.shared, || Command::SetVlanLimit(limit));
        drop(management);
        // A worker reads its mail after it has said that it is between two batches.
        self.barrier();
    }

    /// Changes the limit of flows. Flows above it are evicted within seconds.
    pub fn set_max_flows(&self, max_flows: usize) {
        self.shared.table.set_max_flows(max_flows);
    }

    /// Changes the limit of the memory that flows take, in bytes. Flows above it are evicted within seconds.
    pub fn set_max_flow_memory(&self, bytes: usize) {
        self.shared.table.set_max_memory(bytes);
    }

    /// Changes the limit of masks of one input port. A port that has more keeps them until it needs another.
    pub fn set_max_masks(&self, max_masks: usize) {
        self.shared.table.set_max_masks(max_masks);
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
        self.add_port_with(port, |_| ())
    }

    /// The same, with `announce` called before the first frame is received, so that whoever is asked about
    /// frames from this port knows it. It may not manage ports or workers.
    pub fn add_port_with(&self, port: Arc<dyn Port>, announce: impl FnOnce(PortNo)) -> Result<PortNo, Error> {
        let mut management = self.management.lock();
        let mut ports = self.shared.ports.lock();
        if ports.by_number.values().any(|entry| entry.shared.port.name() == port.name()) {
            return Err(Error::PortExists(port.name().to_owned()));
        }
        let number = ports.number_for(&*port).ok_or(Error::TooManyPorts(MAX_PORTS - 1))?;
        let crew = self.shared.crew.read();
        let workers: Vec<usize> = crew.members.keys().copied().collect();
        let (state, tx) = TxQueues::make(&*port, &workers)?;
        let shared = PortShared::new(number, port, self.shared.max_workers);
        let mut entry = Entry { shared: shared.clone(), tx: state, rx: Vec::new(), affinity: BTreeMap::new() };
        let mut rx: BTreeMap<usize, Vec<Rx>> = BTreeMap::new();
        for (index, queue) in shared.port.take_rx_queues().into_iter().enumerate() {
            let worker = ports.least_loaded(&workers, Some(&entry));
            let cycles = Arc::new(Counter::default());
            let (place, history) = (Place { worker, pinned: false }, History::default());
            entry.rx.push(RxState { place, cycles: cycles.clone(), history });
            rx.entry(worker).or_default().push(Rx::new(&shared, index, queue, cycles));
        }
        ports.by_number.insert(number, entry);
        ports.last = number.0;
        drop(ports);
        announce(number);
        for ((worker, member), tx) in crew.members.iter().zip(tx) {
            let rx = rx.remove(worker).unwrap_or_default();
            member.mailbox.post(Command::AddPort { port: shared.clone(), tx, rx });
        }
        drop(crew);
        management.obey_if_parked();
        Ok(number)
    }

    /// Takes over the receive queues that have come into being since their ports were added, as when a guest
    /// enables more of its own: each goes to the worker with the fewest. Not to be called from an upcall.
    pub fn adopt_rx_queues(&self) {
        let ports: Vec<_> = self.shared.ports.lock().by_number.values().map(|entry| entry.shared.clone()).collect();
        for shared in ports {
            let queues = shared.port.take_rx_queues();
            if !queues.is_empty() {
                self.add_rx_queues(&shared, queues);
            }
        }
    }

    fn add_rx_queues(&self, shared: &Arc<PortShared>, queues: Vec<Box<dyn RxQueue>>) {
        let mut management = self.management.lock();
        let mut ports = self.shared.ports.lock();
        let crew = self.shared.crew.read();
        let workers: Vec<usize> = crew.members.keys().copied().collect();
        let mut pinned = false;
        for queue in queues {
            // Removed meanwhile, and perhaps added again as another?
            let Some(entry) = ports.by_number.get(&shared.no).filter(|entry| Arc::ptr_eq(&entry.shared, shared)) else {
                return;
            };
            let (index, worker) = (entry.rx.len(), ports.least_loaded(&workers, None));
            let cycles = Arc::new(Counter::default());
            if let Some(entry) = ports.by_number.get_mut(&shared.no) {
                pinned = !entry.affinity.is_empty();
                let (place, history) = (Place { worker, pinned: false }, History::default());
                entry.rx.push(RxState { place, cycles: cycles.clone(), history });
            }
            if let Some(member) = crew.members.get(&worker) {
                let rx = vec![Rx::new(shared, index, queue, cycles)];
                member.mailbox.post(Command::TakeRx { rx });
            }
        }
        drop((ports, crew));
        management.obey_if_parked();
        if pinned {
            management.spread(&self.shared);
        }
    }

    /// Takes a port away. When this returns, no worker uses it: its queues are closed, packets that
    /// waited for transmission are sent, and flows for packets from it are removed and returned. Flows
    /// that send to it drop with `NoSuchPort` until the caller changes them. No packet of another port
    /// is lost. Not to be called from an upcall.
    pub fn remove_port(&self, port: PortNo) -> Result<Vec<RemovedFlow>, Error> {
        self.remove_ports(&[port])
    }

    /// Takes ports away, as [`remove_port`](Datapath::remove_port), waiting for the workers as often as for one.
    /// Where one of them does not exist, all stay.
    pub fn remove_ports(&self, going: &[PortNo]) -> Result<Vec<RemovedFlow>, Error> {
        let mut management = self.management.lock();
        let mut ports = self.shared.ports.lock();
        if let Some(&stranger) = going.iter().find(|port| !ports.by_number.contains_key(port)) {
            return Err(Error::NoSuchPort(stranger));
        }
        let mut shared = Vec::with_capacity(going.len());
        for port in going {
            shared.extend(ports.by_number.remove(port));
            ports.drops_base.remove(port);
        }
        drop(ports);
        let (reply, given_back) = mpsc::channel::<GivenBack>();
        let going: Arc<[PortNo]> = going.into();
        management.tell(&self.shared, || Command::RemovePorts { ports: going.clone(), reply: reply.clone() });
        drop(reply);
        // Ends when each worker has answered (or died). The queues are closed here, not on a worker.
        given_back.iter().for_each(drop);
        drop(management);
        let removed = self.shared.table.remove(&self.shared.table.ids_of(&going));
        drop(shared);
        Ok(removed)
    }

    /// The port with this number.
    pub fn port(&self, port: PortNo) -> Option<Arc<dyn Port>> {
        self.shared.ports.lock().by_number.get(&port).map(|entry| entry.shared.port.clone())
    }

    /// All ports, in the order of their numbers.
    pub fn ports(&self) -> Vec<(PortNo, Arc<dyn Port>)> {
        self.shared.ports.lock().by_number.values().map(|entry| (entry.shared.no, entry.shared.port.clone())).collect()
    }

    /// Takes over changes of the port's MTU and administrative state at once, rather than within a
    /// second.
    pub fn refresh_port(&self, port: PortNo) -> Result<(), Error> {
        let shared = self.shared.ports.lock().by_number.get(&port).map(|entry| entry.shared.clone());
        shared.ok_or(Error::NoSuchPort(port))?.refresh();
        Ok(())
    }

    /// Which worker polls which receive queue.
    pub fn rx_assignments(&self) -> Vec<RxAssignment> {
        let ports = self.shared.ports.lock();
        let of_port = |(&port, entry): (&PortNo, &Entry)| {
            let assignment = |(queue, rx): (usize, &RxState)| RxAssignment {
                port,
                queue,
                worker: rx.place.worker,
                pinned: rx.place.pinned,
            };
            entry.rx.iter().enumerate().map(assignment).collect::<Vec<_>>()
        };
        ports.by_number.iter().flat_map(of_port).collect()
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

    /// The worker with the fewest receive queues, those of a new port included; the first of them.
    fn least_loaded(&self, workers: &[usize], new: Option<&Entry>) -> usize {
        let queues = |worker: &usize| {
            let all = self.by_number.values().chain(new).flat_map(|entry| &entry.rx);
            // A worker that a queue is pinned to is left to it, if there is another.
            all.filter(|rx| rx.place.worker == *worker)
                .fold((false, 0), |(pinned, count), rx| (pinned || rx.place.pinned, count + 1))
        };
        workers.iter().copied().min_by_key(queues).unwrap_or(0)
    }
}

/// Flows.
impl Datapath {
    /// Installs a flow, or returns the one with equal key and mask, whose actions and tag become these.
    /// in_port, recirc_id and packet_type are matched exactly, whatever the mask says. Flows must not
    /// contradict each other: of those that match a packet, any may be taken.
    pub fn install(&self, spec: FlowSpec) -> Result<FlowId, Error> {
        let FlowSpec { key, mask, actions, tag } = spec;
        let installed = self.shared.table.install(&key, mask, actions.into(), tag, self.now(), By::Management)?;
        if !installed.existed
            && flow_log::is_on()
            && let Some(flow) = self.flow(installed.id)
        {
            flow_log::flow_added(flow.id, &key, &flow.mask, &flow.actions, self.shared.upcall.get());
        }
        Ok(installed.id)
    }

    /// Replaces a flow's actions. Packets of the batch that a worker is at may still see the old ones:
    /// [`barrier`](Datapath::barrier).
    pub fn modify(&self, id: FlowId, actions: Vec<Action>) -> Result<(), Error> {
        if flow_log::is_on()
            && let Some(flow) = self.flow(id)
        {
            flow_log::flow_modified(id, (&flow.key, &flow.mask), &flow.actions, &actions, self.shared.upcall.get());
        }
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
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let (flows, from) = self.shared.table.dump_some(next?);
            next = from;
            Some(flows)
        })
        .flatten()
    }

    /// As [`flows`](Datapath::flows), but only what changes of them: much cheaper.
    pub fn flow_briefs(&self) -> impl Iterator<Item = FlowBrief> + '_ {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let (flows, from) = self.shared.table.brief_some(next?);
            next = from;
            Some(flows)
        })
        .flatten()
    }

    /// Hands the flows that were evicted before this call to [`Upcall::evicted`], those included that workers
    /// were still using. Not to be called from an upcall.
    pub fn hand_over_evicted(&self) {
        self.shared.hand_over(self.shared.table.take_all_evicted());
    }

    /// Flows installed now.
    pub fn flow_count(&self) -> usize {
        self.shared.table.count()
    }

    /// Threads that serve the slow path.
    pub fn handlers(&self) -> usize {
        self.management.lock().handlers()
    }

    /// Most flows that there may be.
    pub fn max_flows(&self) -> usize {
        self.shared.table.max_flows()
    }

    /// Runs actions on a packet. Of `metadata`, in_port, packet_type, packet mark, priority, tunnel and
    /// connection fields count; the others are extracted from the frame. Done by a worker in its next
    /// turn, in the order of the calls; with [`poll`](Datapath::poll), in the next poll.
    pub fn execute(&self, packet: Packet, metadata: &Key, actions: &[Action]) {
        let program = Box::new(Program::compile(actions));
        let (metadata, in_port) = (Metadata::of(metadata), crate::upcall::in_port(metadata));
        // By the worker that has the input port's first queue, so that the packet stays in order with
        // what comes in there.
        let assigned = {
            let ports = self.shared.ports.lock();
            ports.by_number.get(&in_port).and_then(|entry| Some(entry.rx.first()?.place.worker))
        };
        // A worker that is about to end gets no more.
        let crew = self.shared.crew.read();
        let stays = |worker: &usize| crew.members.get(worker).filter(|member| !member.ending);
        let member = assigned.as_ref().and_then(stays).or_else(|| crew.members.values().find(|m| !m.ending));
        if let Some(member) = member {
            member.mailbox.post(Command::Execute { packet, metadata, program });
        }
    }
}

/// Statistics.
impl Datapath {
    /// Counters of the workers and ports.
    pub fn stats(&self) -> Stats {
        let ports = self.shared.ports.lock();
        let (crew, now) = (self.shared.crew.read(), self.now());
        let drops = ports.by_number.values().map(|entry| {
            let now = read_drops(&entry.shared);
            (entry.shared.no, ports.drops_base.get(&entry.shared.no).map_or(now.clone(), |base| drops_since(now, base)))
        });
        Stats {
            workers: crew.members.iter().map(|(&number, member)| member.stats(number, now)).collect(),
            ended: crew.ended.clone(),
            ports: drops.collect(),
            flows: self.shared.table.count(),
            masks: self.shared.table.masks(),
            flow_bytes: self.shared.table.bytes(),
            evictions: self.shared.table.evictions(),
            cycles_per_second: tsc::frequency(),
        }
    }

    /// What has become of all packets since the start.
    pub fn account(&self) -> Account {
        let crew = self.shared.crew.read();
        let present: Vec<WorkerStats> = crew.members.values().map(|member| member.counters.read()).collect();
        Account::of(present.iter().chain([&crew.ended_ever]))
    }

    /// How busy queues and workers were in the last `seconds`, of which the last minute is known, in steps
    /// of five seconds.
    pub fn usage(&self, seconds: u64) -> Usage {
        let steps = seconds.div_ceil(usage::STEP.as_secs()) as usize;
        let ports = self.shared.ports.lock();
        let of_port = |(&port, entry): (&PortNo, &Entry)| {
            let of_queue = |(queue, rx): (usize, &RxState)| ((port, queue), rx.history.percent_of(&ports.wall, steps));
            entry.rx.iter().enumerate().map(of_queue).collect::<Vec<_>>()
        };
        let crew = self.shared.crew.read();
        let of_worker = |(&number, member): (&usize, &Member)| (number, member.busy.percent_of(&ports.wall, steps));
        Usage {
            queues: ports.by_number.iter().flat_map(of_port).collect(),
            workers: crew.members.iter().map(of_worker).collect(),
        }
    }

    /// Starts the counters of workers and ports from zero.
    pub fn reset_stats(&self) {
        let mut ports = self.shared.ports.lock();
        let mut crew = self.shared.crew.write();
        crew.ended = WorkerStats::default();
        let now = self.now();
        for member in crew.members.values_mut() {
            (member.base, member.since) = (member.counters.read(), now);
        }
        ports.drops_base = ports.by_number.values().map(|entry| (entry.shared.no, read_drops(&entry.shared))).collect();
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
    fn hand_over(&self, evicted: Vec<RemovedFlow>) {
        if let Some(upcall) = self.upcall.get().filter(|_| !evicted.is_empty()) {
            upcall.evicted(evicted);
        }
    }

    pub(crate) fn maintain(&self) {
        self.domain.collect();
        self.table.enforce_limits();
        if self.table.has_evicted() {
            self.hand_over(self.table.take_evicted());
        }
        let now = self.clock.now();
        let mut due = self.due.lock();
        let rank = now.since(due.ranked) >= RANK;
        let measure = now.since(due.measured) >= usage::STEP;
        if rank {
            due.ranked = now;
        }
        if measure {
            due.measured = now;
        }
        drop(due);
        if rank {
            self.table.rank(now);
            let ports: Vec<_> = self.ports.lock().by_number.values().map(|entry| entry.shared.clone()).collect();
            ports.iter().for_each(|p| p.refresh());
        }
        if measure {
            self.measure();
        }
    }

    /// Ends a step of everybody's usage.
    fn measure(&self) {
        let mut ports = self.ports.lock();
        ports.wall.step(tsc::cycles());
        for rx in ports.by_number.values_mut().flat_map(|entry| &mut entry.rx) {
            rx.history.step(rx.cycles.get());
        }
        for member in self.crew.write().members.values_mut() {
            member.busy.step(member.counters.busy_cycles.get());
        }
    }
}
