//! Which worker polls which receive queue.

use std::collections::BTreeMap;

/// How receive queues are spread over the workers (`pmd-rxq-assign`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// In turn, whatever the load.
    RoundRobin,
    /// The busiest first, to the workers in turn, there and back.
    #[default]
    Cycles,
    /// The busiest first, each to the worker with the least load so far.
    Group,
}

/// What there is to be spread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Cycles that the queue's packets have cost lately.
    pub cycles: u64,
    /// Core that the configuration wants for it.
    pub core: Option<usize>,
}

/// A worker that queues can be given to.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Its number.
    pub number: usize,
    /// Its core.
    pub core: Option<usize>,
}

/// A queue's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the worker.
    pub worker: usize,
    /// Whether the configuration chose it.
    pub pinned: bool,
}

/// Spreads queues over workers, of which there is at least one. With `isolate`, a worker that a queue is
/// pinned to gets no others, unless there is no other worker. A queue that is wanted on a core without a
/// worker counts as one without a wish.
pub fn assign(policy: Policy, isolate: bool, queues: &[Load], workers: &[Candidate]) -> Vec<Place> {
    let mut workers = workers.to_vec();
    workers.sort_by_key(|worker| (worker.core, worker.number));
    let pinned = |load: &Load| {
        let core = load.core?;
        workers.iter().find(|worker| worker.core == Some(core)).map(|worker| worker.number)
    };
    let mut places: Vec<Option<Place>> =
        queues.iter().map(|load| pinned(load).map(|worker| Place { worker, pinned: true })).collect();

    // Load and queues of each worker so far.
    let mut given: BTreeMap<usize, (u64, usize)> = workers.iter().map(|worker| (worker.number, (0, 0))).collect();
    for (place, load) in places.iter().zip(queues) {
        if let Some((cycles, count)) = place.and_then(|place| given.get_mut(&place.worker)) {
            (*cycles, *count) = (*cycles + load.cycles, *count + 1);
        }
    }
    let mut open: Vec<usize> =
        workers.iter().map(|worker| worker.number).filter(|number| !isolate || given[number].1 == 0).collect();
    if open.is_empty() {
        open = workers.iter().map(|worker| worker.number).collect();
    }

    let mut rest: Vec<usize> = (0..queues.len()).filter(|&queue| places[queue].is_none()).collect();
    if policy != Policy::RoundRobin {
        rest.sort_by_key(|&queue| std::cmp::Reverse(queues[queue].cycles));
    }
    for (turn, queue) in rest.into_iter().enumerate() {
        let worker = match policy {
            Policy::RoundRobin => open[turn % open.len()],
            Policy::Cycles => {
                let (round, at) = (turn / open.len(), turn % open.len());
                open[if round % 2 == 0 { at } else { open.len() - 1 - at }]
            }
            Policy::Group => open.iter().copied().min_by_key(|number| given[number]).unwrap_or(open[0]),
        };
        let so_far = given.entry(worker).or_default();
        *so_far = (so_far.0 + queues[queue].cycles, so_far.1 + 1);
        places[queue] = Some(Place { worker, pinned: false });
    }
    places.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: [Candidate; 2] = [Candidate { number: 0, core: Some(4) }, Candidate { number: 1, core: Some(7) }];

    fn workers_of(policy: Policy, isolate: bool, queues: &[Load]) -> Vec<usize> {
        assign(policy, isolate, queues, &TWO).into_iter().map(|place| place.worker).collect()
    }

    #[test]
    fn eight_idle_queues() {
        let queues = [Load::default(); 8];
        assert_eq!(workers_of(Policy::RoundRobin, true, &queues), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(workers_of(Policy::Cycles, true, &queues), [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(workers_of(Policy::Group, true, &queues), [0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn the_busiest_come_first() {
        let queues = [10, 100, 20, 50].map(|cycles| Load { cycles, core: None });
        assert_eq!(workers_of(Policy::Cycles, true, &queues), [0, 0, 1, 1]);
        assert_eq!(workers_of(Policy::Group, true, &queues), [1, 0, 1, 1]);
    }

    #[test]
    fn pinned_queues_have_their_worker_alone() {
        let mut queues = [Load::default(); 3];
        queues[1].core = Some(4);
        assert_eq!(workers_of(Policy::RoundRobin, true, &queues), [1, 0, 1]);
        assert_eq!(workers_of(Policy::RoundRobin, false, &queues), [0, 0, 1]);
        queues[2].core = Some(5);
        assert_eq!(workers_of(Policy::RoundRobin, true, &queues), [1, 0, 1], "there is no worker on core 5");
        (queues[0].core, queues[2].core) = (Some(7), None);
        assert_eq!(workers_of(Policy::Cycles, true, &queues), [1, 0, 0], "nobody else is left for it");
    }
}
