//! The cores of this machine that the process may use, and their NUMA nodes.

use std::collections::BTreeMap;

use datapath::Topology;
use rustix::thread::{CpuSet, sched_getaffinity};

/// OVS's module of the lines in the log.
const TARGET: &str = "ovs_numa";

/// What the kernel says. A core whose node it does not name counts as at node 0.
pub fn of_machine() -> Topology {
    let Ok(allowed) = sched_getaffinity(None) else { return Topology::default() };
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    Topology::of_machine(cores.map(|core| (core, node_of(core).unwrap_or(0))).collect::<BTreeMap<_, _>>())
}

/// The directory of a core has an entry `nodeN`.
fn node_of(core: usize) -> Option<usize> {
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
}

/// Says in the log which there are, as OVS does.
pub fn log(topology: &Topology) {
    let nodes = topology.cores_by_node();
    for (node, cores) in &nodes {
        tracing::info!(target: TARGET, "Discovered {cores} CPU cores on NUMA node {node}");
    }
    let cores = topology.cores().len();
    tracing::info!(target: TARGET, "Discovered {} NUMA nodes and {cores} CPU cores", nodes.len());
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_a_core() {
        let topology = super::of_machine();
        assert!(!topology.cores().is_empty() && !topology.is_made_up());
    }
}
