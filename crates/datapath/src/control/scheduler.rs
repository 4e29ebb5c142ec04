//! The receive-queue scheduler: which worker polls which receive queue. Loads, pins, policy and workers go in, assignments
//! come out; nothing else is looked at or changed.

use std::collections::{BTreeMap, BTreeSet};

/// How receive queues are spread over the workers (`pmd-rxq-assign`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxPolicy {
    /// In turn, whatever the load.
    RoundRobin,
    /// The busiest first, to the workers in turn, there and back.
    #[default]
    Cycles,
    /// The busiest first, each to the worker with the least load so far.
    Group,
}

impl RxPolicy {
    /// What `pmd-rxq-assign` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            RxPolicy::RoundRobin => "roundrobin",
            RxPolicy::Cycles => "cycles",
            RxPolicy::Group => "group",
        }
    }
}

/// How receive queues are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// How they are spread.
    pub policy: RxPolicy,
    /// Whether a worker that a queue is pinned to gets no others (`pmd-rxq-isolate`).
    pub isolate: bool,
}

impl Default for Scheduling {
    fn default() -> Scheduling {
        Scheduling { policy: RxPolicy::default(), isolate: true }
    }
}

impl Scheduling {
    /// Workers that are left to the queues that are pinned to them.
    pub fn isolated(&self, assignments: &[Assignment]) -> BTreeSet<usize> {
        let pinned = assignments.iter().filter(|assignment| self.isolate && assignment.pinned);
        pinned.map(|assignment| assignment.worker).collect()
    }
}

/// A queue to be assigned.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueLoad {
    /// Cycles that the queue's packets have cost lately.
    pub cycles: u64,
    /// Core that the configuration wants for it.
    pub core: Option<usize>,
    /// NUMA node of its port, where that is known.
    pub node: Option<usize>,
    /// It comes after all others, and does not change where these go: that of a port that is not in poll mode.
    pub comes_last: bool,
}

/// A worker that queues can be given to.
#[derive(Clone, Copy, Debug)]
pub struct EligibleWorker {
    /// Its number.
    pub number: usize,
    /// Its core.
    pub core: Option<usize>,
    /// The NUMA node of that.
    pub node: usize,
}

/// Where a queue is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Number of the worker.
    pub worker: usize,
    /// Whether the configuration chose it.
    pub pinned: bool,
}

/// Spreads queues over workers, of which there is at least one. A queue goes to the workers at its own NUMA node, or where
/// it can have none there, to those of the other nodes in turn. A worker that a pinned queue isolates gets no others,
/// unless there is no other worker. A queue that is wanted on a core without a worker counts as unpinned.
pub fn assign(scheduling: Scheduling, queues: &[QueueLoad], workers: &[EligibleWorker]) -> Vec<Assignment> {
    let Scheduling { policy, isolate } = scheduling;
    let mut workers = workers.to_vec();
    workers.sort_by_key(|worker| (worker.core, worker.number));
    let pinned = |load: &QueueLoad| {
        let core = load.core?;
        workers.iter().find(|worker| worker.core == Some(core)).map(|worker| worker.number)
    };
    let mut assignments: Vec<Option<Assignment>> =
        queues.iter().map(|load| pinned(load).map(|worker| Assignment { worker, pinned: true })).collect();

    // Load and queues of each worker so far.
    let mut so_far: BTreeMap<usize, (u64, usize)> = workers.iter().map(|worker| (worker.number, (0, 0))).collect();
    for (assignment, load) in assignments.iter().zip(queues) {
        if let Some((cycles, count)) = assignment.and_then(|assignment| so_far.get_mut(&assignment.worker)) {
            (*cycles, *count) = (*cycles + load.cycles, *count + 1);
        }
    }
    let mut open: Vec<EligibleWorker> =
        workers.iter().copied().filter(|worker| !isolate || so_far[&worker.number].1 == 0).collect();
    if open.is_empty() {
        open = workers;
    }
    let mut nodes = Nodes::of(&open);

    let mut rest: Vec<usize> = (0..queues.len()).filter(|&queue| assignments[queue].is_none()).collect();
    rest.sort_by_key(|&queue| {
        let cycles = if policy == RxPolicy::RoundRobin { 0 } else { queues[queue].cycles };
        (queues[queue].comes_last, std::cmp::Reverse(cycles))
    });
    for queue in rest {
        let open = nodes.for_queue(queues[queue].node);
        let worker = match policy {
            RxPolicy::RoundRobin => open.next(|_, at, _| at),
            RxPolicy::Cycles => open.next(|round, at, len| if round % 2 == 0 { at } else { len - 1 - at }),
            RxPolicy::Group => open.least(|number| so_far[&number]),
        };
        let (cycles, count) = so_far.entry(worker).or_default();
        (*cycles, *count) = (*cycles + queues[queue].cycles, *count + 1);
        assignments[queue] = Some(Assignment { worker, pinned: false });
    }
    assignments.into_iter().flatten().collect()
}

/// The workers that unpinned queues can go to, by NUMA node.
struct Nodes {
    by_node: BTreeMap<usize, Group>,
    /// All of them, for queues whose node is not known.
    all: Group,
    /// How many queues had to go to a foreign node.
    foreign: usize,
}

impl Nodes {
    /// Groups workers, of which there is at least one.
    fn of(open: &[EligibleWorker]) -> Nodes {
        let mut nodes = Nodes { by_node: BTreeMap::new(), all: Group::default(), foreign: 0 };
        for worker in open {
            nodes.by_node.entry(worker.node).or_default().workers.push(worker.number);
            nodes.all.workers.push(worker.number);
        }
        nodes
    }

    /// The workers for a queue of a port at this node.
    fn for_queue(&mut self, node: Option<usize>) -> &mut Group {
        let Some(node) = node else { return &mut self.all };
        let own = self.by_node.contains_key(&node).then_some(node);
        let node = own.or_else(|| {
            let nth = self.foreign % self.by_node.len();
            self.foreign += 1;
            self.by_node.keys().nth(nth).copied()
        });
        node.and_then(|node| self.by_node.get_mut(&node)).unwrap_or(&mut self.all)
    }
}

/// Workers among which one is chosen for each queue.
#[derive(Default)]
struct Group {
    /// At least one, by core.
    workers: Vec<usize>,
    /// How many queues were given in turn.
    turn: usize,
}

impl Group {
    /// The worker whose turn it is: `place` makes its place from the round, the place in this round, and how many there are.
    fn next(&mut self, place: impl Fn(usize, usize, usize) -> usize) -> usize {
        let len = self.workers.len();
        let turn = self.turn;
        self.turn += 1;
        self.workers[place(turn / len, turn % len, len)]
    }

    /// The worker with the least load.
    fn least<L: Ord>(&self, load: impl Fn(usize) -> L) -> usize {
        self.workers.iter().copied().min_by_key(|&number| load(number)).unwrap_or(self.workers[0])
    }
}

/// Whether a queue is polled from another NUMA node than its port's, without the configuration having wanted that.
pub fn crosses(queue: &QueueLoad, assignment: &Assignment, workers: &[EligibleWorker]) -> bool {
    let at = workers.iter().find(|worker| worker.number == assignment.worker).map(|worker| worker.node);
    !assignment.pinned && queue.node.is_some_and(|node| at.is_some_and(|at| at != node))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: [EligibleWorker; 2] =
        [EligibleWorker { number: 0, core: Some(4), node: 0 }, EligibleWorker { number: 1, core: Some(7), node: 0 }];

    fn workers_of(policy: RxPolicy, isolate: bool, queues: &[QueueLoad]) -> Vec<usize> {
        assign(Scheduling { policy, isolate }, queues, &TWO).into_iter().map(|assignment| assignment.worker).collect()
    }

    #[test]
    fn eight_idle_queues() {
        let queues = [QueueLoad::default(); 8];
        assert_eq!(workers_of(RxPolicy::RoundRobin, true, &queues), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(workers_of(RxPolicy::Cycles, true, &queues), [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(workers_of(RxPolicy::Group, true, &queues), [0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn the_busiest_come_first() {
        let queues = [10, 100, 20, 50].map(|cycles| QueueLoad { cycles, ..QueueLoad::default() });
        assert_eq!(workers_of(RxPolicy::Cycles, true, &queues), [0, 0, 1, 1]);
        assert_eq!(workers_of(RxPolicy::Group, true, &queues), [1, 0, 1, 1]);
    }

    #[test]
    fn pinned_queues_have_their_worker_alone() {
        let mut queues = [QueueLoad::default(); 3];
        queues[1].core = Some(4);
        assert_eq!(workers_of(RxPolicy::RoundRobin, true, &queues), [1, 0, 1]);
        assert_eq!(workers_of(RxPolicy::RoundRobin, false, &queues), [0, 0, 1]);
        queues[2].core = Some(5);
        assert_eq!(workers_of(RxPolicy::RoundRobin, true, &queues), [1, 0, 1], "there is no worker on core 5");
        (queues[0].core, queues[2].core) = (Some(7), None);
        assert_eq!(workers_of(RxPolicy::Cycles, true, &queues), [1, 0, 0], "no other worker is left for it");
    }

    /// Two workers at node 1 and one each at nodes 0 and 8.
    const FOUR: [EligibleWorker; 4] = [worker(0, 1), worker(1, 1), worker(2, 0), worker(3, 8)];

    const fn worker(number: usize, node: usize) -> EligibleWorker {
        EligibleWorker { number, core: Some(number), node }
    }

    #[test]
    fn queues_stay_at_their_node() {
        let of = |policy, queues: &[QueueLoad], workers: &[EligibleWorker]| -> Vec<usize> {
            let scheduling = Scheduling { policy, isolate: true };
            assign(scheduling, queues, workers).into_iter().map(|assignment| assignment.worker).collect()
        };
        let at = |node| QueueLoad { node, ..QueueLoad::default() };
        for policy in [RxPolicy::RoundRobin, RxPolicy::Cycles, RxPolicy::Group] {
            assert_eq!(of(policy, &[at(Some(1)), at(Some(8)), at(Some(1))], &FOUR), [0, 3, 1], "{policy:?}");
            assert_eq!(of(policy, &[at(Some(8)); 3], &FOUR[..2]).len(), 3, "there is none at its node, {policy:?}");
            let mut foreign = of(policy, &[at(Some(7)); 6], &FOUR);
            foreign.sort();
            assert_eq!(foreign, [0, 1, 2, 2, 3, 3], "the nodes in turn, {policy:?}");
        }
        assert_eq!(of(RxPolicy::RoundRobin, &[at(None); 4], &FOUR), [0, 1, 2, 3], "a port at no known node");
    }

    #[test]
    fn what_comes_last_takes_no_turn_of_others() {
        let mut queues = [QueueLoad::default(); 4];
        queues[0].comes_last = true;
        queues[0].cycles = 100;
        for policy in [RxPolicy::RoundRobin, RxPolicy::Cycles, RxPolicy::Group] {
            assert_eq!(workers_of(policy, true, &queues)[1..3], [0, 1], "{policy:?}");
        }
    }

    #[test]
    fn a_pinned_queue_does_not_cross() {
        let queue = QueueLoad { node: Some(0), ..QueueLoad::default() };
        let crossing = |worker, pinned| crosses(&queue, &Assignment { worker, pinned }, &FOUR);
        assert!(crossing(0, false) && !crossing(0, true) && !crossing(2, false));
        assert!(!crosses(&QueueLoad::default(), &Assignment { worker: 0, pinned: false }, &FOUR), "no known node");
    }
}
