//! Moving receive queues by themselves when a worker is overloaded: OVS's PMD auto load balance, with its
//! settings and log lines.
//!
//! At an interval of minutes: where a worker was busier than the load threshold for the last minute, the
//! queues are spread anew on paper. When that would lower the variance of the workers' loads by the
//! improvement threshold, it is done.

use std::time::Duration;

use packet::Time;

use crate::control::assignment::{self, Place, Policy};
use crate::control::pool::{Crew, Management};
use crate::control::queues::{candidates, loads};
use crate::datapath::{Datapath, Ports, Shared};

/// OVS's module of such lines.
const TARGET: &str = "dpif_netdev";

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

/// What the balance remembers.
#[derive(Default)]
pub(crate) struct State {
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
    policy: (Policy, bool),
    /// Workers that take what the policy gives them, with how many queues they have.
    workers: Vec<(usize, usize)>,
}

impl State {
    fn settings(&self) -> AutoBalance {
        self.settings.unwrap_or_default()
    }

    /// Changes the settings, and says so in the log.
    fn set(&mut self, new: AutoBalance) {
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
        let useful = if layout.policy.0 == Policy::RoundRobin {
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

impl Datapath {
    /// Changes when receive queues are moved by themselves.
    pub fn set_auto_balance(&self, settings: AutoBalance) {
        self.management.lock().balance.set(settings);
    }

    /// Moves receive queues where that is due and of use. To be called now and then by a thread that may
    /// wait for the slow path; not from an upcall.
    pub fn balance(&self) {
        // Whoever has the lock changes what this would look at.
        let Some(mut management) = self.management.try_lock() else { return };
        if management.balance.is_due(self.now()) {
            management.rebalance_if_better(&self.shared);
        }
    }
}

impl Management {
    fn rebalance_if_better(&mut self, shared: &Shared) {
        let settings = self.balance.settings();
        let better = {
            let ports = shared.ports.lock();
            let crew = shared.crew.read();
            let overloaded = |member: &crate::control::pool::Member| member.busy.least_percent_of(&ports.wall);
            let isolated = self.isolated(&ports);
            let mut free = crew.members.iter().filter(|(n, m)| !m.ending && !isolated.contains(n));
            if !free.any(|(_, member)| overloaded(member).is_some_and(|least| least >= settings.load)) {
                return;
            }
            let layout = self.layout(&ports, &crew);
            self.balance.is_useful(layout) && self.dry_run(&ports, &crew, settings.improvement)
        };
        if better {
            tracing::info!(
                target: TARGET,
                "PMD auto load balance dry run. Requesting datapath reconfigure."
            );
            self.spread(shared);
        }
    }

    /// Workers that are left to the queues that are pinned to them.
    fn isolated(&self, ports: &Ports) -> Vec<usize> {
        let queues = ports.by_number.values().flat_map(|entry| &entry.rx);
        let pinned = queues.filter(|rx| rx.place.pinned && self.policy().1);
        pinned.map(|rx| rx.place.worker).collect()
    }

    fn layout(&self, ports: &Ports, crew: &Crew) -> Layout {
        let isolated = self.isolated(ports);
        let count = |worker: usize| {
            ports.by_number.values().flat_map(|entry| &entry.rx).filter(|rx| rx.place.worker == worker).count()
        };
        let free = crew.members.iter().filter(|(n, m)| !m.ending && !isolated.contains(n));
        Layout { policy: self.policy(), workers: free.map(|(&n, _)| (n, count(n))).collect() }
    }

    /// Whether spreading the queues anew would make the loads more equal by this many percent.
    fn dry_run(&self, ports: &Ports, crew: &Crew, threshold: u8) -> bool {
        tracing::debug!(target: TARGET, "PMD auto load balance performing dry run.");
        let loads: Vec<_> = ports.by_number.values().flat_map(loads).collect();
        let now: Vec<Place> = ports.by_number.values().flat_map(|entry| entry.rx.iter().map(|rx| rx.place)).collect();
        let (policy, isolate) = self.policy();
        let then = assignment::assign(policy, isolate, &loads, &candidates(crew));
        let isolated = self.isolated(ports);
        let workers: Vec<usize> = crew.members.keys().copied().filter(|n| !isolated.contains(n)).collect();
        let wall = ports.wall.sum().max(1);
        let of = |places: &[Place]| {
            let busy = |&worker: &usize| {
                let own = places.iter().zip(&loads).filter(|(place, _)| place.worker == worker);
                own.map(|(_, load)| load.cycles).sum::<u64>() * 100 / wall
            };
            variance(&workers.iter().map(busy).collect::<Vec<_>>())
        };
        let (current, estimated) = (of(&now), of(&then));
        let improvement = if estimated < current { (current - estimated) * 100 / current } else { 0 };
        tracing::debug!(
            target: TARGET,
            "Numa node 0. Current variance {current} Estimated variance {estimated}. \
             Variance improvement {improvement}%."
        );
        let met = improvement >= threshold.into();
        let word = if met { "met" } else { "not met" };
        tracing::debug!(target: TARGET, "PMD load variance improvement threshold {threshold}% is {word}.");
        met
    }
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
        let mut state = State::default();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!state.is_due(at(1)) && !state.is_due(at(1000)), "it is off");
        state.set(AutoBalance { enabled: true, minutes: 2, ..AutoBalance::default() });
        assert!(!state.is_due(at(1000)), "counted from now on");
        assert!(!state.is_due(at(1120)) && state.is_due(at(1121)));
        assert!(!state.is_due(at(1122)));
    }

    #[test]
    fn nothing_to_do_is_said_once() {
        let layout = |policy, workers: &[(usize, usize)]| Layout { policy: (policy, true), workers: workers.to_vec() };
        let mut state = State::default();
        assert!(!state.is_useful(layout(Policy::Cycles, &[(0, 5)])));
        assert!(!state.is_useful(layout(Policy::Cycles, &[(0, 1), (1, 1)])));
        assert!(!state.is_useful(layout(Policy::RoundRobin, &[(0, 2), (1, 1)])));
        assert!(state.is_useful(layout(Policy::Group, &[(0, 2), (1, 1)])));
    }
}
