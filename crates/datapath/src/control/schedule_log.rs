//! What the log says of a new assignment of receive queues, as OVS words it.

use std::collections::BTreeSet;

use crate::action::PortNo;
use crate::control::ports::PortTable;
use crate::control::scheduler::{Assignment, EligibleWorker, QueueLoad, RxPolicy, Scheduling, crosses};

/// OVS's module of such lines.
pub const TARGET: &str = "dpif_netdev";

/// The core of a worker, as it is shown: one that may run anywhere counts as the first core's.
pub fn shown_core(core: Option<usize>) -> usize {
    core.unwrap_or(0)
}

/// Queues that are wanted on cores without a worker.
#[derive(Debug, Default, PartialEq)]
pub struct Unpinnable(BTreeSet<(PortNo, usize, usize)>);

/// Lines for the log.
#[derive(Debug, Default, PartialEq)]
pub struct Lines {
    /// For operators who want to know.
    pub infos: Vec<String>,
    /// What is not as the configuration wants it.
    pub warnings: Vec<String>,
}

impl Lines {
    /// The lines about the queues of `ports`, which have just been assigned anew. Of what is as it was `before`, only that is
    /// said which is not good; of a wish that cannot be fulfilled only once, as `unpinnable` says.
    pub fn new(
        scheduling: Scheduling,
        ports: &PortTable,
        before: &[Assignment],
        workers: &[EligibleWorker],
        unpinnable: &mut Unpinnable,
    ) -> Lines {
        let mut lines = Lines::default();
        let mut wanted_elsewhere = BTreeSet::new();
        let mut performed = false;
        let mut rest = Vec::new();
        for ((load, rx), before) in ports.loads().iter().zip(ports.rx_assignments()).zip(before) {
            let Some(port) = ports.get(rx.port).filter(|_| !load.comes_last) else { continue };
            let Some(worker) = workers.iter().find(|worker| worker.number == rx.worker) else { continue };
            let now = Assignment { worker: rx.worker, pinned: rx.pinned };
            let (core, node, name, queue) = (shown_core(worker.core), worker.node, port.port.name(), rx.queue);
            let cycles = cycles(scheduling.policy, load);
            if let Some(core) = load.core.filter(|_| !rx.pinned)
                && wanted_elsewhere.insert((rx.port, queue, core))
                && !unpinnable.0.contains(&(rx.port, queue, core))
            {
                lines.warnings.push(format!(
                    "Core {core:2} cannot be pinned with port '{name}' rx queue {queue}. Use pmd-cpu-mask to enable a \
                     pmd on core {core}. An alternative core will be assigned."
                ));
            }
            if rx.pinned {
                if now != *before {
                    lines.infos.push(format!(
                        "Core {core:2} on numa node {node} is pinned with port '{name}' rx queue {queue}{cycles}"
                    ));
                }
                continue;
            }
            performed = true;
            if crosses(load, &now, workers) {
                let own = load.node.unwrap_or(0);
                rest.push(format!(
                    "There's no available (non-isolated) pmd thread on numa node {own}. Port '{name}' rx queue {queue} \
                     will be assigned to a pmd on numa node {node}. This may lead to reduced performance."
                ));
            }
            if now != *before {
                rest.push(format!(
                    "Core {core:2} on numa node {node} assigned port '{name}' rx queue {queue}{cycles}."
                ));
            }
        }
        unpinnable.0 = wanted_elsewhere;
        if performed {
            let policy = scheduling.policy.name();
            lines.infos.push(format!("Performing pmd to rx queue assignment using {policy} algorithm."));
        }
        lines.infos.extend(rest);
        lines
    }

    /// Writes them.
    pub fn write(self) {
        self.warnings.iter().for_each(|line| tracing::warn!(target: TARGET, "{line}"));
        self.infos.iter().for_each(|line| tracing::info!(target: TARGET, "{line}"));
    }
}

fn cycles(policy: RxPolicy, load: &QueueLoad) -> String {
    match policy {
        RxPolicy::RoundRobin => String::new(),
        RxPolicy::Cycles | RxPolicy::Group => format!(" (measured processing cycles {})", load.cycles),
    }
}
