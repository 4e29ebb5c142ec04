//! The ports, as the control plane knows them: their numbers, and which workers have which of their transmit and
//! receive queues.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use ports::{Port, RxQueue, TxQueue};

use crate::action::PortNo;
use crate::classify::table::stages::MAX_PORTS;
use crate::control::load_history::LoadHistory;
use crate::control::scheduler::{Assignment, EligibleWorker, QueueLoad};
use crate::error::Error;
use crate::pipeline::ingress::{IngressSource, with_policer};
use crate::pipeline::port::{DpPort, Queue, SharedQueue};
use crate::pipeline::steering::Steered;
use crate::stats::{Drops, RxAssignment};
use crate::sync::counters::Counter;
use crate::worker::rx_queue::Rx;

/// How many ports that were removed are remembered.
const REMEMBERED: usize = 256;

/// All ports, by number.
#[derive(Default)]
pub struct PortTable {
    ports: BTreeMap<PortNo, ManagedPort>,
    /// The same, by name.
    by_name: HashMap<String, PortNo>,
    /// What each worker has of receive queues; `None` where it has to be counted anew.
    held: Option<HashMap<usize, Held>>,
    /// The number given last.
    last: u32,
    /// Names of ports that were removed, and the numbers that they had; the last one is the latest. A device that comes back, or whose
    /// port is added anew, has the number that it had, if that is free.
    left: VecDeque<(String, PortNo)>,
    /// Drops when they were reset.
    drops_base: BTreeMap<PortNo, Drops>,
    /// Whole steps of the load histories since the receive queues were last assigned; `None` until one has begun.
    steps_since: Option<usize>,
    /// Makes the optional stages of new receive queues.
    ingress_source: Option<IngressSource>,
}

/// A port, as the control plane knows it.
pub struct ManagedPort {
    /// What the workers know of it.
    pub dp_port: Arc<DpPort>,
    /// Its transmit queues, and which workers share one.
    pub tx: TxQueues,
    /// Its receive queues, by number.
    rx: Vec<ManagedRxQueue>,
    /// Core that is wanted for a receive queue.
    affinity: BTreeMap<usize, usize>,
}

/// How many receive queues a worker has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Held {
    /// Of ports in poll mode.
    pmd: Queues,
    /// Of all ports.
    all: Queues,
}

/// How many there are, and whether one of them is pinned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Queues {
    count: usize,
    pinned: bool,
}

impl Queues {
    fn add(&mut self, assignment: Assignment) {
        self.count += 1;
        self.pinned |= assignment.pinned;
    }
}

impl Held {
    fn add(&mut self, is_pmd: bool, assignment: Assignment) {
        self.all.add(assignment);
        if is_pmd {
            self.pmd.add(assignment);
        }
    }
}

/// A receive queue, as the control plane knows it.
struct ManagedRxQueue {
    assignment: Assignment,
    /// Cycles spent on its packets; its worker counts them.
    cycles: Arc<Counter>,
    load: LoadHistory,
}

/// What workers are to be given of a port.
pub struct NewPort {
    /// The port.
    pub dp_port: Arc<DpPort>,
    /// Queues by worker.
    pub tx: BTreeMap<usize, Queue>,
    /// Queues by worker.
    pub rx: BTreeMap<usize, Vec<Rx>>,
}

/// Receive queues of a port that are to move between workers.
#[derive(Debug, PartialEq)]
pub struct RxMove {
    /// The port.
    pub port: PortNo,
    /// The worker that has them.
    pub from: usize,
    /// The worker that is to have each queue, by the queue's number.
    pub to: BTreeMap<usize, usize>,
}

/// Ports come and go.
impl PortTable {
    /// Adds a port, with a transmit queue for each of `workers`, among which its receive queues are spread. Without `wanted`, it
    /// gets a number that is free.
    pub fn add(
        &mut self,
        port: Arc<dyn Port>,
        wanted: Option<PortNo>,
        workers: &[EligibleWorker],
        max_workers: usize,
    ) -> Result<NewPort, Error> {
        if self.by_name.contains_key(port.name()) {
            return Err(Error::PortExists(port.name().to_owned()));
        }
        let number = match wanted {
            Some(number) if self.ports.contains_key(&number) => return Err(Error::NumberTaken(number)),
            Some(PortNo(number)) if number as usize >= MAX_PORTS => return Err(Error::TooManyPorts(MAX_PORTS - 1)),
            Some(number) => number,
            None => self.number_for(&*port).ok_or(Error::TooManyPorts(MAX_PORTS - 1))?,
        };
        let numbers: Vec<usize> = workers.iter().map(|worker| worker.number).collect();
        let (tx, queues) = TxQueues::make(&*port, &numbers)?;
        let dp_port = DpPort::new(number, port, max_workers);
        let managed = ManagedPort { dp_port: dp_port.clone(), tx, rx: Vec::new(), affinity: BTreeMap::new() };
        self.by_name.insert(dp_port.port.name().to_owned(), number);
        self.ports.insert(number, managed);
        let again = self.left.iter().position(|(name, _)| name == dp_port.port.name());
        let had = again.and_then(|index| self.left.remove(index));
        // One that was asked for, as the UDP port of a tunnel, may be far above those that are given in order.
        if wanted.is_none() && !dp_port.port.is_tunnel() && had.is_none_or(|(_, had)| had != number) {
            self.last = number.0;
        }
        let rx = self.add_rx_queues(&dp_port, dp_port.port.take_rx_queues(), workers);
        Ok(NewPort { dp_port, tx: numbers.into_iter().zip(queues).collect(), rx })
    }

    /// Adds receive queues of a port, each for the worker with the fewest, if there is one at the port's NUMA node for one of
    /// those. None where the port has gone.
    pub fn add_rx_queues(
        &mut self,
        dp_port: &Arc<DpPort>,
        queues: Vec<Box<dyn RxQueue>>,
        workers: &[EligibleWorker],
    ) -> BTreeMap<usize, Vec<Rx>> {
        let mut added: BTreeMap<usize, Vec<Rx>> = BTreeMap::new();
        for queue in queues {
            let worker = self.least_loaded(&*dp_port.port, workers);
            // A port that was removed may have been added again as another.
            let same = |port: &&mut ManagedPort| Arc::ptr_eq(&port.dp_port, dp_port);
            let Some(port) = self.ports.get_mut(&dp_port.no).filter(same) else { break };
            let (index, cycles) = (port.rx.len(), Arc::new(Counter::default()));
            let assignment = Assignment { worker, pinned: false };
            if let Some(held) = &mut self.held {
                held.entry(worker).or_default().add(dp_port.port.is_pmd(), assignment);
            }
            port.rx.push(ManagedRxQueue { assignment, cycles: cycles.clone(), load: LoadHistory::default() });
            let mut rx = Rx::new(dp_port, index, queue, cycles);
            let stages = self.ingress_source.as_ref().and_then(|make| make(&*dp_port.port, index));
            rx.ingress = with_policer(stages, dp_port.policers().ingress);
            added.entry(worker).or_default().push(rx);
        }
        added
    }

    /// Sets what makes the optional stages of receive queues that are added from now on.
    pub fn set_ingress_source(&mut self, source: IngressSource) {
        self.ingress_source = Some(source);
    }

    /// Removes ports. Where one of them does not exist, all stay.
    pub fn remove(&mut self, going: &[PortNo]) -> Result<Vec<ManagedPort>, Error> {
        if let Some(&unknown) = going.iter().find(|port| !self.ports.contains_key(port)) {
            return Err(Error::NoSuchPort(unknown));
        }
        let mut removed = Vec::with_capacity(going.len());
        self.held = None;
        for port in going {
            let gone = self.ports.remove(port);
            if let Some(gone) = &gone {
                let name = gone.dp_port.port.name();
                self.by_name.remove(name);
                if self.left.len() == REMEMBERED {
                    self.left.pop_front();
                }
                self.left.push_back((name.to_owned(), *port));
            }
            removed.extend(gone);
            self.drops_base.remove(port);
        }
        Ok(removed)
    }

    /// Dummy ports are numbered by their name where they can be, so that tests can name datapath ports:
    /// `p7` is 7, and bridges count from 100, `br0` is 100. This is how OVS numbers them.
    fn number_for(&self, port: &dyn Port) -> Option<PortNo> {
        // Tunnels by their UDP port, which is the number at the end of their name.
        if !port.kind().starts_with("dummy") && !port.is_tunnel() {
            let had = self.left.iter().find(|(name, _)| name == port.name()).map(|&(_, had)| had);
            return had.filter(|had| !self.ports.contains_key(had)).or_else(|| self.free_number());
        }
        let base = if port.name().starts_with("br") { 100 } else { 0 };
        let digits = port.name().trim_start_matches(|c: char| !c.is_ascii_digit());
        let digits = &digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())];
        let named = digits.parse::<u32>().ok().and_then(|n| n.checked_add(base)).map(PortNo);
        let free = |no: &PortNo| (1..MAX_PORTS as u32).contains(&no.0) && !self.ports.contains_key(no);
        named.filter(free).or_else(|| (1..MAX_PORTS as u32).map(PortNo).find(free))
    }

    fn free_number(&self) -> Option<PortNo> {
        let max = MAX_PORTS as u32 - 1;
        let numbers = (self.last + 1..=max).chain(1..=self.last);
        numbers.map(PortNo).find(|no| !self.ports.contains_key(no))
    }

    /// The worker with the fewest receive queues, for another one of `port`; the one on the first core of them.
    fn least_loaded(&mut self, port: &dyn Port, workers: &[EligibleWorker]) -> usize {
        let held = self.held.take().unwrap_or_else(|| self.count_held());
        let (node, is_pmd) = (port.numa_node(), port.is_pmd());
        let queues = |worker: &&EligibleWorker| {
            let held = held.get(&worker.number).copied().unwrap_or_default();
            // Queues of ports that are not in poll mode do not change where those go that are.
            let counted = if is_pmd { held.pmd } else { held.all };
            let is_foreign = node.is_some_and(|node| node != worker.node);
            // A worker with a pinned queue gets no others, if there is another worker.
            (counted.pinned, is_foreign, counted.count, worker.core, worker.number)
        };
        let least = workers.iter().min_by_key(queues).map_or(0, |worker| worker.number);
        self.held = Some(held);
        least
    }

    fn count_held(&self) -> HashMap<usize, Held> {
        let mut held: HashMap<usize, Held> = HashMap::new();
        for port in self.ports.values() {
            let is_pmd = port.dp_port.port.is_pmd();
            for rx in &port.rx {
                held.entry(rx.assignment.worker).or_default().add(is_pmd, rx.assignment);
            }
        }
        held
    }
}

/// Which there are.
impl PortTable {
    /// The part of a port that workers know, too.
    pub fn get(&self, port: PortNo) -> Option<&Arc<DpPort>> {
        self.ports.get(&port).map(|port| &port.dp_port)
    }

    /// The same of the port with this name.
    pub fn named(&self, name: &str) -> Option<&Arc<DpPort>> {
        self.get(*self.by_name.get(name)?)
    }

    /// The same of every port, in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<DpPort>> {
        self.ports.values().map(|port| port.dp_port.clone()).collect()
    }

    /// Every port, to have its transmit queues given out and taken back.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut ManagedPort> {
        self.ports.values_mut()
    }

    /// A port, as above.
    pub fn get_mut(&mut self, port: PortNo) -> Option<&mut ManagedPort> {
        self.ports.get_mut(&port)
    }
}

/// Receive queues, in the order of their ports' numbers and their own.
impl PortTable {
    /// Says on which cores a port's receive queues are wanted. Returns whether that is new.
    pub fn set_affinity(&mut self, port: PortNo, affinity: BTreeMap<usize, usize>) -> Result<bool, Error> {
        let port = self.ports.get_mut(&port).ok_or(Error::NoSuchPort(port))?;
        let is_new = port.affinity != affinity;
        port.affinity = affinity;
        Ok(is_new)
    }

    /// Whether receive queues of a port are wanted on certain cores.
    pub fn has_affinity(&self, port: PortNo) -> bool {
        self.ports.get(&port).is_some_and(|port| !port.affinity.is_empty())
    }

    /// What the receive queues have cost in the last minute, and where they are wanted.
    pub fn loads(&self) -> Vec<QueueLoad> {
        let of_port = |port: &ManagedPort| {
            let device = &port.dp_port.port;
            let (node, comes_last) = (device.numa_node(), !device.is_pmd());
            let load = |(index, rx): (usize, &ManagedRxQueue)| QueueLoad {
                cycles: rx.load.sum(),
                core: port.affinity.get(&index).copied(),
                node,
                comes_last,
            };
            port.rx.iter().enumerate().map(load).collect::<Vec<_>>()
        };
        self.ports.values().flat_map(of_port).collect()
    }

    /// Which worker polls each of them.
    pub fn assignments(&self) -> Vec<Assignment> {
        self.ports.values().flat_map(|port| port.rx.iter().map(|rx| rx.assignment)).collect()
    }

    /// Records which worker polls each of them from now on. Returns the queues that have to move.
    pub fn reassign(&mut self, assignments: Vec<Assignment>) -> Vec<RxMove> {
        (self.steps_since, self.held) = (None, None);
        let mut assignments = assignments.into_iter();
        let mut moves: BTreeMap<(PortNo, usize), BTreeMap<usize, usize>> = BTreeMap::new();
        for (&number, port) in &mut self.ports {
            for (index, (rx, new)) in port.rx.iter_mut().zip(assignments.by_ref()).enumerate() {
                let old = std::mem::replace(&mut rx.assignment, new);
                if old.worker != new.worker {
                    moves.entry((number, old.worker)).or_default().insert(index, new.worker);
                }
            }
        }
        moves.into_iter().map(|((port, from), to)| RxMove { port, from, to }).collect()
    }

    /// The worker that polls the first receive queue of a port.
    pub fn first_worker(&self, port: PortNo) -> Option<usize> {
        Some(self.ports.get(&port)?.rx.first()?.assignment.worker)
    }

    /// The assignments, as users see them.
    pub fn rx_assignments(&self) -> Vec<RxAssignment> {
        let of_port = |(&port, managed): (&PortNo, &ManagedPort)| {
            let shown = |(queue, rx): (usize, &ManagedRxQueue)| {
                let Assignment { worker, pinned } = rx.assignment;
                RxAssignment { port, queue, worker, pinned }
            };
            managed.rx.iter().enumerate().map(shown).collect::<Vec<_>>()
        };
        self.ports.iter().flat_map(of_port).collect()
    }

    /// Ends a step of the load histories.
    pub fn end_step(&mut self) {
        self.steps_since = Some(self.steps_since.map_or(0, |steps| steps.saturating_add(1)));
        for rx in self.ports.values_mut().flat_map(|port| &mut port.rx) {
            rx.load.step(rx.cycles.get());
        }
    }

    /// Over how many steps loads can be compared: since queues went to other workers, as in OVS.
    pub fn comparable_steps(&self) -> usize {
        self.steps_since.unwrap_or(0)
    }

    /// What the packets of each queue have cost in the last `steps` steps, in percent of what has `elapsed`.
    pub fn usage(&self, elapsed: &LoadHistory, steps: usize) -> BTreeMap<(PortNo, usize), Option<u8>> {
        let of_port = |(&port, managed): (&PortNo, &ManagedPort)| {
            let of_queue = |(queue, rx): (usize, &ManagedRxQueue)| ((port, queue), rx.load.percent_of(elapsed, steps));
            managed.rx.iter().enumerate().map(of_queue).collect::<Vec<_>>()
        };
        self.ports.iter().flat_map(of_port).collect()
    }
}

/// Drops of ports.
impl PortTable {
    /// Since they were reset.
    pub fn drops(&self) -> Vec<(PortNo, Drops)> {
        self.ports.iter().map(|(&number, port)| (number, self.drops_of(number, port))).collect()
    }

    /// The same of the ports from this number on, at most so many, with the name of each.
    pub fn drops_from(&self, from: PortNo, most: usize) -> Vec<(PortNo, String, Drops)> {
        let ports = self.ports.range(from..).take(most);
        ports
            .map(|(&number, port)| (number, port.dp_port.port.name().to_owned(), self.drops_of(number, port)))
            .collect()
    }

    fn drops_of(&self, number: PortNo, port: &ManagedPort) -> Drops {
        let drops = port.dp_port.read_drops();
        match self.drops_base.get(&number) {
            Some(base) => drops.since(base),
            None => drops,
        }
    }

    /// Starts them from zero.
    pub fn reset_drops(&mut self) {
        self.drops_base = self.ports.iter().map(|(&number, port)| (number, port.dp_port.read_drops())).collect();
    }
}

/// The transmit queues of a port: each worker has its own while there are enough, otherwise some share.
pub struct TxQueues {
    /// Queues that were made.
    made: usize,
    /// Queues of workers that have ended.
    spare: Vec<Box<dyn TxQueue>>,
    /// Workers without a queue of their own.
    sharers: BTreeSet<usize>,
    /// All of them, where each worker sends by all.
    steered: Option<Arc<[SharedQueue]>>,
}

impl TxQueues {
    /// Makes the queues of a port, one for each of `workers`.
    fn make(port: &dyn Port, workers: &[usize]) -> Result<(TxQueues, Vec<Queue>), Error> {
        let made = port.max_tx_queues().clamp(1, workers.len());
        let queues = (0..made).map(|index| port.tx_queue(index)).collect::<Result<Vec<_>, _>>()?;
        let mut state = TxQueues { made, spare: Vec::new(), sharers: BTreeSet::new(), steered: None };
        if made == workers.len() {
            return Ok((state, queues.into_iter().map(Queue::Own).collect()));
        }
        state.sharers.extend(workers);
        let dp_port: Vec<_> = queues.into_iter().map(|queue| Queue::Own(queue).share().1).collect();
        Ok((state, (0..workers.len()).map(|nth| Queue::Shared(dp_port[nth % made].clone())).collect()))
    }

    /// A queue that no other worker uses, if there is one.
    pub fn own(&mut self, port: &dyn Port) -> Option<Box<dyn TxQueue>> {
        if let Some(queues) = &self.steered {
            return Some(Box::new(Steered::new(queues.clone())));
        }
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

    /// Whether packets are spread over all queues by their hash.
    pub fn are_steered(&self) -> bool {
        self.steered.is_some()
    }

    /// Has workers send by all queues from now on. `shared` are those that they have; others are made, as many as the port has.
    /// Returns what each of them is to send by.
    pub fn steer(&mut self, port: &dyn Port, mut shared: Vec<SharedQueue>) -> Arc<[SharedQueue]> {
        shared.extend(self.spare.drain(..).map(|queue| Queue::Own(queue).share().1));
        while self.made < port.steered_tx_queues() {
            let Ok(queue) = port.tx_queue(self.made).inspect_err(|error| tracing::warn!("{error}; fewer queues"))
            else {
                break;
            };
            self.made += 1;
            shared.push(Queue::Own(queue).share().1);
        }
        self.sharers.clear();
        self.steered.insert(shared.into()).clone()
    }

    /// Has each worker send by one queue again. Returns a queue for each. They keep their locks: who knows how many send by them.
    pub fn unsteer(&mut self, workers: usize) -> Vec<Box<dyn TxQueue>> {
        let Some(queues) = self.steered.take() else { return Vec::new() };
        let count = workers.max(queues.len());
        let one = |nth: usize| Steered::new([queues[nth % queues.len()].clone()].into());
        let mut each: Vec<_> = (0..count).map(|nth| Box::new(one(nth)) as Box<dyn TxQueue>).collect();
        self.spare = each.split_off(workers);
        each
    }

    /// Records that these two workers share a queue.
    pub fn share(&mut self, workers: [usize; 2]) {
        self.sharers.extend(workers);
    }

    /// Takes the queue of a worker back that has ended. Returns it with the worker that is to have it, one of those that
    /// share theirs; without such a worker, it is kept.
    pub fn take_back(&mut self, worker: usize, queue: Queue) -> Option<(usize, Box<dyn TxQueue>)> {
        if self.steered.is_some() {
            return None;
        }
        self.sharers.remove(&worker);
        let Queue::Own(queue) = queue.reclaim() else { return None };
        match self.sharers.pop_first() {
            Some(heir) => Some((heir, queue)),
            None => {
                self.spare.push(queue);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ports::registry::{Env, PortSpec, open};
    use proptest::prelude::*;

    use super::*;

    /// What may happen to the table: a port comes, one goes, queues change hands.
    #[derive(Clone, Debug)]
    enum Change {
        Add { name: u8, is_pmd: bool, queues: u8 },
        Remove { index: usize },
        Reassign { workers: Vec<(usize, bool)> },
    }

    fn change() -> impl Strategy<Value = Change> {
        let add = (0..20u8, any::<bool>(), 1..4u8);
        prop_oneof![
            4 => add.prop_map(|(name, is_pmd, queues)| Change::Add { name, is_pmd, queues }),
            2 => any::<usize>().prop_map(|index| Change::Remove { index }),
            1 => prop::collection::vec((0..3usize, prop::bool::weighted(0.1)), 60)
                .prop_map(|workers| Change::Reassign { workers }),
        ]
    }

    #[test]
    fn a_port_that_comes_back_has_the_number_that_it_had_if_that_is_free() {
        let (mut table, env) = (PortTable::default(), Env::default());
        let worker = EligibleWorker { number: 0, core: Some(0), node: 0 };
        let add = |table: &mut PortTable, name: &str, wanted| {
            let port = open(&PortSpec::new(name, "null"), &env).unwrap();
            table.add(port, wanted, &[worker], 1).map(|new| new.dp_port.no.0)
        };
        let first: Vec<_> = ["a", "b", "c"].map(|name| add(&mut table, name, None).unwrap()).into();
        assert_eq!(first, [1, 2, 3]);
        table.remove(&[PortNo(1), PortNo(2), PortNo(3)]).unwrap();
        assert_eq!(add(&mut table, "d", None).unwrap(), 4, "numbers of others are not given again at once");
        assert_eq!((add(&mut table, "b", None).unwrap(), add(&mut table, "e", None).unwrap()), (2, 5));
        add(&mut table, "f", Some(PortNo(3))).unwrap();
        assert_eq!(add(&mut table, "c", None).unwrap(), 6, "another has it");
        // However many names there are, few are remembered.
        for n in 0..3 * REMEMBERED {
            let number = add(&mut table, &format!("n{n}"), None).unwrap();
            table.remove(&[PortNo(number)]).unwrap();
        }
        assert!(table.left.len() <= REMEMBERED);
        assert_ne!(add(&mut table, "a", None).unwrap(), 1, "forgotten");
    }

    proptest! {
        #[test]
        fn what_is_found_by_name_or_was_counted_is_what_a_look_at_all_ports_finds(
            changes in prop::collection::vec(change(), 1..40),
        ) {
            let (mut table, env) = (PortTable::default(), Env::default());
            let worker = |number| EligibleWorker { number, core: Some(number), node: 0 };
            let workers = [worker(0), worker(1), worker(2)];
            for change in changes {
                match change {
                    Change::Add { name, is_pmd, queues } => {
                        let kind = if is_pmd { "dummy-pmd" } else { "dummy" };
                        let spec = PortSpec::new(&format!("p{name}"), kind).with(&[("n_rxq", &queues.to_string())]);
                        let exists = table.all().iter().any(|other| other.port.name() == format!("p{name}"));
                        let added = table.add(open(&spec, &env).unwrap(), None, &workers, 3);
                        prop_assert_eq!(matches!(added, Err(Error::PortExists(_))), exists);
                        prop_assert_eq!(added.is_ok(), !exists);
                    }
                    Change::Remove { index } => {
                        let all = table.all();
                        if !all.is_empty() {
                            table.remove(&[all[index % all.len()].no]).unwrap();
                        }
                    }
                    Change::Reassign { workers } => {
                        let assignments = workers.into_iter().map(|(worker, pinned)| Assignment { worker, pinned });
                        let count = table.assignments().len();
                        table.reassign(assignments.cycle().take(count).collect());
                    }
                }
                let counted = table.count_held();
                prop_assert_eq!(table.held.as_ref().unwrap_or(&counted), &counted);
                for name in (0..20).map(|name| format!("p{name}")) {
                    let scanned = table.all().into_iter().find(|port| port.port.name() == name);
                    prop_assert_eq!(table.named(&name).map(|port| port.no), scanned.map(|port| port.no));
                }
            }
        }
    }
}
