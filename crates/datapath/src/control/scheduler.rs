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
}

/// A worker that queues can be given to.
#[derive(Clone, Copy, Debug)]
pub struct EligibleWorker {
    /// Its number.
    pub number: usize,
    /// Its core.
    pub core: Option<usize>,
}

/// Where a queue is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Number of the worker.
    pub worker: usize,
    /// Whether the configuration chose it.
    pub pinned: bool,
}

/// Spreads queues over workers, of which there is at least one. A worker that a pinned queue isolates gets no others,
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
    let mut open: Vec<usize> =
        workers.iter().map(|worker| worker.number).filter(|number| !isolate || so_far[number].1 == 0).collect();
    if open.is_empty() {
        open = workers.iter().map(|worker| worker.number).collect();
    }

    let mut rest: Vec<usize> = (0..queues.len()).filter(|&queue| assignments[queue].is_none()).collect();
    if policy != RxPolicy::RoundRobin {
        rest.sort_by_key(|&queue| std::cmp::Reverse(queues[queue].cycles));
    }
    for (turn, queue) in rest.into_iter().enumerate() {
        let worker = match policy {
            RxPolicy::RoundRobin => open[turn % open.len()],
            RxPolicy::Cycles => {
                let (round, at) = (turn / open.len(), turn % open.len());
                open[if round % 2 == 0 { at } else { open.len() - 1 - at }]
            }
            RxPolicy::Group => open.iter().copied().min_by_key(|number| so_far[number]).unwrap_or(open[0]),
        };
        let (cycles, count) = so_far.entry(worker).or_default();
        (*cycles, *count) = (*cycles + queues[queue].cycles, *count + 1);
        assignments[queue] = Some(Assignment { worker, pinned: false });
    }
    assignments.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: [EligibleWorker; 2] =
        [EligibleWorker { number: 0, core: Some(4) }, EligibleWorker { number: 1, core: Some(7) }];

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
        let queues = [10, 100, 20, 50].map(|cycles| QueueLoad { cycles, core: None });
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
}
