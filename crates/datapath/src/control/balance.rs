//! Moving receive queues by themselves when a worker is overloaded: OVS's PMD auto load balance, with its
//! settings and log lines.
//!
//! At an interval of minutes: where a worker was busier than the load threshold for the last minute, a new assignment
//! of the queues is computed. If it would lower the variance of the workers' loads by the improvement threshold, it
//! is applied. [`Balancer::decide`] says so, from its inputs alone.

use std::collections::BTreeSet;
use std::time::Duration;

use packet::Time;

use crate::control::schedule_log::TARGET;
use crate::control::scheduler::{self, Assignment, EligibleWorker, QueueLoad, RxPolicy, Scheduling};

const MINUTE: Duration = Duration::from_secs(60);

/// Settings of the automatic balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoBalance {
    /// Whether queues are moved at all (`pmd-auto-lb`).
    pub enabled: bool,
    /// Percent of its time that a worker has to be busy (`pmd-auto-lb-load-threshold`).
    pub load: u8,
    /// Percent by which the variance has to become less (`pmd-auto-lb-improvement-threshold`).
    pub improvement: u8,
    /// Minutes between two looks (`pmd-auto-lb-rebal-interval`).
    pub minutes: u32,
}

impl Default for AutoBalance {
    fn default() -> AutoBalance {
        AutoBalance { enabled: false, load: 95, improvement: 25, minutes: 1 }
    }
}

/// Decides when queues move, and stores its last decisions.
#[derive(Default)]
pub struct Balancer {
    /// `None` before it was configured.
    settings: Option<AutoBalance>,
    /// The last look.
    looked: Option<Time>,
    /// What the last dry run was about, and whether there was any use in it.
    checked: Option<(Layout, bool)>,
}

/// What a rebalance depends on, but for the load.
#[derive(PartialEq)]
struct Layout {
    scheduling: Scheduling,
    /// Workers that take what the policy gives them, with how many queues they have.
    workers: Vec<(usize, usize)>,
}

/// Settings, and when to look.
impl Balancer {
    fn settings(&self) -> AutoBalance {
        self.settings.unwrap_or_default()
    }

    /// Changes the settings, and says so in the log.
    pub fn set(&mut self, new: AutoBalance) {
        let old = self.settings.replace(new);
        if old == Some(new) {
            return;
        }
        let changed = |of: fn(&AutoBalance) -> u32| old.as_ref().map(of) != Some(of(&new));
        let (minutes, load, improvement) = (new.minutes, new.load, new.improvement);
        if changed(|s| s.minutes) {
            tracing::info!(target: TARGET, "PMD auto load balance interval set to {minutes} mins");
        }
        if changed(|s| s.improvement.into()) {
            tracing::info!(target: TARGET, "PMD auto load balance improvement threshold set to {improvement}%");
        }
        if changed(|s| s.load.into()) {
            tracing::info!(target: TARGET, "PMD auto load balance load threshold set to {load}%");
        }
        if new.enabled {
            tracing::info!(
                target: TARGET,
                "PMD auto load balance is enabled, interval {minutes} mins, pmd load threshold {load}%, \
                 improvement threshold {improvement}%."
            );
        } else {
            self.looked = None;
            tracing::info!(target: TARGET, "PMD auto load balance is disabled.");
        }
    }

    /// Whether it is time for a look.
    fn is_due(&mut self, now: Time) -> bool {
        let settings = self.settings();
        if !settings.enabled {
            return false;
        }
        let due = now.since(*self.looked.get_or_insert(now)) > MINUTE * settings.minutes;
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Whether moving queues could be of any use.
    fn is_useful(&mut self, layout: Layout) -> bool {
        if let Some((checked, useful)) = &self.checked
            && *checked == layout
        {
            if !useful {
                tracing::debug!(
                    target: TARGET,
                    "PMD auto load balance nothing to do, no configuration changes since last check."
                );
            }
            return *useful;
        }
        let useful = if layout.scheduling.policy == RxPolicy::RoundRobin {
            tracing::debug!(
                target: TARGET,
                "PMD auto load balance nothing to do, pmd-rxq-assign=roundrobin assignment type configured."
            );
            false
        } else if layout.workers.len() < 2 || layout.workers.iter().all(|&(_, queues)| queues < 2) {
            tracing::debug!(
                target: TARGET,
                "PMD auto load balance nothing to do, not enough non-isolated PMDs or RxQs."
            );
            false
        } else {
            true
        };
        self.checked = Some((layout, useful));
        useful
    }
}

/// The inputs of the balancer. `queues` and `assignments` are of the same receive queues, in the same order.
pub struct Inputs {
    /// How queues are scheduled.
    pub scheduling: Scheduling,
    /// What each queue has cost in the last minute, and where it is wanted.
    pub queues: Vec<QueueLoad>,
    /// Which worker polls each queue now.
    pub assignments: Vec<Assignment>,
    /// The workers, and the least that each was busy in any step of the last minute, in percent.
    pub workers: Vec<(EligibleWorker, Option<u8>)>,
    /// Cycles that have passed in the last minute.
    pub elapsed: u64,
}

/// Whether to move queues.
impl Balancer {
    /// Whether the queues are to be scheduled anew: a look is due, a worker is overloaded, and the loads would become more
    /// equal. The inputs, which are of all queues, are collected only where a look is due.
    pub fn decide(&mut self, now: Time, inputs: impl FnOnce() -> Inputs) -> bool {
        self.is_due(now) && self.is_better(&inputs())
    }

    fn is_better(&mut self, inputs: &Inputs) -> bool {
        let settings = self.settings();
        let isolated = inputs.scheduling.isolated(&inputs.assignments);
        let mut open = inputs.workers.iter().filter(|(worker, _)| !isolated.contains(&worker.number));
        if !open.any(|&(_, busy)| busy.is_some_and(|least| least >= settings.load)) {
            return false;
        }
        let better = self.is_useful(Layout::of(inputs)) && dry_run(inputs, settings.improvement);
        if better {
            tracing::info!(target: TARGET, "PMD auto load balance dry run. Requesting datapath reconfigure.");
        }
        better
    }
}

impl Layout {
    fn of(inputs: &Inputs) -> Layout {
        let isolated = inputs.scheduling.isolated(&inputs.assignments);
        let counted = inputs.assignments.iter().zip(&inputs.queues).filter(|(_, load)| !load.comes_last);
        let counted: Vec<usize> = counted.map(|(assignment, _)| assignment.worker).collect();
        let queues_of = |number| counted.iter().filter(|&&worker| worker == number).count();
        let open = inputs.workers.iter().map(|(worker, _)| worker.number).filter(|n| !isolated.contains(n));
        Layout { scheduling: inputs.scheduling, workers: open.map(|number| (number, queues_of(number))).collect() }
    }
}

/// Whether scheduling the queues anew would make the loads more equal by this many percent.
fn dry_run(inputs: &Inputs, threshold: u8) -> bool {
    tracing::debug!(target: TARGET, "PMD auto load balance performing dry run.");
    let workers: Vec<EligibleWorker> = inputs.workers.iter().map(|&(worker, _)| worker).collect();
    let planned = scheduler::assign(inputs.scheduling, &inputs.queues, &workers);
    let nodes: BTreeSet<usize> = workers.iter().map(|worker| worker.node).collect();
    let mut queues = inputs.queues.iter().zip(&planned);
    if nodes.len() > 1 && queues.any(|(load, assignment)| scheduler::crosses(load, assignment, &workers)) {
        tracing::debug!(
            target: TARGET,
            "PMD auto load balance detected cross-numa polling with multiple numa nodes. Unable to accurately estimate."
        );
        return false;
    }
    let isolated = inputs.scheduling.isolated(&inputs.assignments);
    let elapsed = inputs.elapsed.max(1);
    let variance_of = |node: usize, assignments: &[Assignment]| {
        let busy = |worker: &EligibleWorker| {
            let own = assignments.iter().zip(&inputs.queues).filter(|(at, _)| at.worker == worker.number);
            own.map(|(_, load)| load.cycles).sum::<u64>() * 100 / elapsed
        };
        let open = workers.iter().filter(|worker| worker.node == node && !isolated.contains(&worker.number));
        variance(&open.map(busy).collect::<Vec<_>>())
    };
    let mut met = false;
    for node in nodes {
        let (current, estimated) = (variance_of(node, &inputs.assignments), variance_of(node, &planned));
        let improvement = if estimated < current { (current - estimated) * 100 / current } else { 0 };
        tracing::debug!(
            target: TARGET,
            "Numa node {node}. Current variance {current} Estimated variance {estimated}. \
             Variance improvement {improvement}%."
        );
        met |= improvement >= threshold.into();
    }
    let word = if met { "met" } else { "not met" };
    tracing::debug!(target: TARGET, "PMD load variance improvement threshold {threshold}% is {word}.");
    met
}

/// The mean of the squares of the distances from the mean, in whole numbers.
fn variance(loads: &[u64]) -> u64 {
    let n = loads.len().max(1) as u64;
    let mean = loads.iter().sum::<u64>() / n;
    loads.iter().map(|load| load.abs_diff(mean).pow(2)).sum::<u64>() / n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variance_is_that_of_the_loads() {
        assert_eq!((variance(&[100, 0]), variance(&[50, 50]), variance(&[]), variance(&[7])), (2500, 0, 0, 0));
    }

    #[test]
    fn looks_are_minutes_apart() {
        let mut balancer = Balancer::default();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!balancer.is_due(at(1)) && !balancer.is_due(at(1000)), "it is off");
        balancer.set(AutoBalance { enabled: true, minutes: 2, ..AutoBalance::default() });
        assert!(!balancer.is_due(at(1000)), "counted from now on");
        assert!(!balancer.is_due(at(1120)) && balancer.is_due(at(1121)));
        assert!(!balancer.is_due(at(1122)));
    }

    #[test]
    fn nothing_to_do_is_said_once() {
        let layout = |policy, workers: &[(usize, usize)]| Layout {
            scheduling: Scheduling { policy, isolate: true },
            workers: workers.to_vec(),
        };
        let mut balancer = Balancer::default();
        assert!(!balancer.is_useful(layout(RxPolicy::Cycles, &[(0, 5)])));
        assert!(!balancer.is_useful(layout(RxPolicy::Cycles, &[(0, 1), (1, 1)])));
        assert!(!balancer.is_useful(layout(RxPolicy::RoundRobin, &[(0, 2), (1, 1)])));
        assert!(balancer.is_useful(layout(RxPolicy::Group, &[(0, 2), (1, 1)])));
    }

    /// Two workers, of which the first has both busy queues.
    fn overloaded() -> Inputs {
        let worker = |number, busy| (EligibleWorker { number, core: Some(number), node: 0 }, Some(busy));
        Inputs {
            scheduling: Scheduling::default(),
            queues: vec![QueueLoad { cycles: 48, ..QueueLoad::default() }; 2],
            assignments: vec![Assignment { worker: 0, pinned: false }; 2],
            workers: vec![worker(0, 96), worker(1, 0)],
            elapsed: 100,
        }
    }

    /// Whether the balancer moves queues when it looks.
    fn decides(settings: AutoBalance, inputs: Inputs) -> bool {
        let mut balancer = Balancer::default();
        balancer.set(settings);
        assert!(!balancer.decide(Time(0), || unreachable!()), "the first interval has begun");
        balancer.decide(Time(0) + 2 * MINUTE, || inputs)
    }

    #[test]
    fn queues_move_where_a_worker_is_overloaded_and_the_loads_become_more_equal() {
        let on = AutoBalance { enabled: true, ..AutoBalance::default() };
        assert!(decides(on, overloaded()));
        assert!(!decides(AutoBalance { enabled: false, ..on }, overloaded()));
        assert!(!decides(AutoBalance { load: 97, ..on }, overloaded()), "no worker is that busy");
        let [one, other] = [0, 1].map(|worker| Assignment { worker, pinned: false });
        let spread = Inputs { assignments: vec![one, other], ..overloaded() };
        assert!(!decides(on, spread), "no assignment is better");
        let pinned = Assignment { worker: 0, pinned: true };
        let queues = vec![QueueLoad { cycles: 48, core: Some(0), ..QueueLoad::default() }; 2];
        assert!(
            !decides(on, Inputs { assignments: vec![pinned; 2], queues, ..overloaded() }),
            "they stay where they are"
        );
    }

    /// The first worker, at node 0, has both queues; the other one is at node 1, as are the queues' ports.
    fn across_nodes(queue: QueueLoad) -> Inputs {
        let worker = |number, busy| (EligibleWorker { number, core: Some(number), node: number }, Some(busy));
        Inputs { queues: vec![queue; 2], workers: vec![worker(0, 96), worker(1, 0)], ..overloaded() }
    }

    #[test]
    fn what_would_be_polled_from_another_node_is_not_moved() {
        let on = AutoBalance { enabled: true, improvement: 0, ..AutoBalance::default() };
        let at = |node| QueueLoad { cycles: 48, node: Some(node), ..QueueLoad::default() };
        assert!(decides(on, across_nodes(at(1))), "both have a place at their node");
        assert!(!decides(on, across_nodes(at(7))), "no worker is at their node: loads cannot be compared");
    }

    #[test]
    fn queues_that_come_last_are_not_counted() {
        let on = AutoBalance { enabled: true, ..AutoBalance::default() };
        let mut inputs = overloaded();
        inputs.queues.push(QueueLoad { comes_last: true, ..QueueLoad::default() });
        inputs.assignments.push(Assignment { worker: 0, pinned: false });
        assert!(decides(on, inputs));
        let mut inputs = overloaded();
        inputs.queues[1].comes_last = true;
        assert!(!decides(on, inputs), "one queue alone is not worth a look");
    }
}
