//! Hugepages.

use super::{Finding, Machine};

const SIZES: &str = "/sys/kernel/mm/hugepages";

/// Are there hugepages for DPDK and vhost-user?
pub fn hugepages(machine: &Machine) -> Vec<Finding> {
    let sizes: Vec<(u64, u64, u64)> = machine
        .list(SIZES)
        .iter()
        .filter_map(|name| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count = |what: &str| machine.number(&format!("{SIZES}/{name}/{what}_hugepages"));
            Some((kib, count("nr")?, count("free")?))
        })
        .collect();
    if sizes.is_empty() {
        let found = "this kernel has none: DPDK runs with --no-huge, slower, and no guest can share its memory with vhost-user ports";
        return vec![Finding::advice("hugepages", found, &["apt install linux-image-amd64 && reboot"])];
    }
    let megabytes = |pages: fn(&(u64, u64, u64)) -> u64| sizes.iter().map(|s| s.0 * pages(s)).sum::<u64>() >> 10;
    let (reserved, free) = (megabytes(|s| s.1), megabytes(|s| s.2));
    if reserved == 0 {
        return vec![Finding::advice("hugepages", format!("none are reserved: {COSTS}"), RESERVE)];
    }
    if free == 0 {
        return vec![Finding::advice("hugepages", format!("all {reserved} MiB are in use: {COSTS}"), RESERVE)];
    }
    let mut findings = vec![Finding::ok("hugepages", format!("{free} of {reserved} MiB are free"))];
    findings.extend(poor_nodes(machine));
    findings
}

const COSTS: &str = "DPDK runs with --no-huge, which costs it TLB misses and physical addresses (no NIC through vfio \
                     without an IOMMU)";

const RESERVE: &[&str] = &[
    "sysctl -w vm.nr_hugepages=1024   # 2 GiB; guests of vhost-user ports need theirs in addition",
    "echo vm.nr_hugepages=1024 > /etc/sysctl.d/80-hugepages.conf",
];

/// NUMA nodes without a free page: ports and workers there use remote memory.
fn poor_nodes(machine: &Machine) -> Vec<Finding> {
    const NODES: &str = "/sys/devices/system/node";
    let nodes: Vec<String> = machine
        .list(NODES)
        .into_iter()
        .filter(|n| n.strip_prefix("node").is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit())))
        .collect();
    let is_poor = |node: &&String| {
        let sizes = machine.list(&format!("{NODES}/{node}/hugepages"));
        let free = |size: &String| machine.number(&format!("{NODES}/{node}/hugepages/{size}/free_hugepages"));
        !sizes.is_empty() && sizes.iter().filter_map(free).sum::<u64>() == 0
    };
    let poor = nodes.iter().filter(is_poor).filter(|_| nodes.len() > 1);
    poor.map(|node| {
        let set = format!("echo 512 > {NODES}/{node}/hugepages/hugepages-2048kB/nr_hugepages");
        Finding::advice(
            "hugepages",
            format!("{node} has none free: its ports and workers use memory of other nodes"),
            &[&set],
        )
    })
    .collect()
}

/// May memory that asks for huge pages have them?
pub fn transparent_hugepages(machine: &Machine) -> Vec<Finding> {
    let Some(text) = machine.read("/sys/kernel/mm/transparent_hugepage/enabled") else { return vec![] };
    vec![if text.contains("[never]") {
        Finding::advice(
            "transparent hugepages",
            "never: frames and flow tables lie on small pages, which costs TLB misses from some ten thousand flows on",
            &["echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"],
        )
    } else {
        Finding::ok("transparent hugepages", "memory that asks for them gets them")
    }]
}
