//! Cores, and what runs on them.

use super::{Finding, Machine};

const CPU: &str = "/sys/devices/system/cpu";

fn flags(machine: &Machine) -> Option<Vec<String>> {
    Some(machine.field("/proc/cpuinfo", "flags")?.split_whitespace().map(str::to_owned).collect())
}

/// Which level of instructions will the fast path use?
pub fn instructions(machine: &Machine) -> Vec<Finding> {
    let Some(flags) = flags(machine) else { return vec![] };
    let has = |names: &[&str]| names.iter().all(|name| flags.iter().any(|flag| flag == name));
    let common = ["bmi1", "bmi2", "abm", "popcnt"];
    vec![if has(&common) && has(&["avx512f", "avx512bw", "avx512dq", "avx512vl"]) {
        Finding::ok("processor", "AVX-512 will be used")
    } else if has(&common) && has(&["avx2"]) {
        Finding::ok("processor", "AVX2 will be used")
    } else {
        Finding::advice(
            "processor",
            "no AVX2: look-ups take about twice the cycles (in a virtual machine, have the host pass its processor through)",
            &["virsh edit GUEST   # <cpu mode='host-passthrough'/>; with qemu: -cpu host"],
        )
    }]
}

/// Is the cycle counter a clock?
pub fn clock(machine: &Machine) -> Vec<Finding> {
    let Some(flags) = flags(machine) else { return vec![] };
    let invariant = ["constant_tsc", "nonstop_tsc"].iter().all(|name| flags.iter().any(|flag| flag == name));
    vec![if invariant {
        Finding::ok("cycle counter", "constant")
    } else {
        Finding::advice(
            "cycle counter",
            "its rate changes: cycles per packet in pmd-stats-show are not comparable",
            &["virsh edit GUEST   # in a virtual machine: <feature policy='require' name='invtsc'/>"],
        )
    }]
}

/// Do workers have cores to themselves?
pub fn isolated_cores(machine: &Machine) -> Vec<Finding> {
    let online = machine.cpu_list(&format!("{CPU}/online"));
    let isolated = machine.cpu_list(&format!("{CPU}/isolated"));
    if !isolated.is_empty() {
        let mask = isolated.iter().filter(|&&core| core < 128).fold(0u128, |mask, &core| mask | 1 << core);
        return vec![Finding::ok(
            "isolated cores",
            format!(
                "{}; for workers: ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask=0x{mask:x}",
                list(&isolated)
            ),
        )];
    }
    let [_, rest @ ..] = online.as_slice() else { return vec![] };
    if rest.is_empty() {
        let found = "one core: the worker shares it with everything else; it should sleep when idle (pmd-sleep-max)";
        return vec![Finding::ok("isolated cores", found)];
    }
    let cores = list(rest);
    let edit = format!(
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&isolcpus={cores} nohz_full={cores} rcu_nocbs={cores} /' /etc/default/grub \
         && update-grub && reboot"
    );
    vec![Finding::advice(
        "isolated cores",
        "none: other processes and interrupts take turns with the workers, which shows as latency and loss at high rates",
        &[&edit],
    )]
}

/// Cores as the kernel's options have them: "1-3,5".
fn list(cores: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &core in cores {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => parts.push((core, core)),
        }
    }
    let part = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Does the clock rate stay up?
pub fn governor(machine: &Machine) -> Vec<Finding> {
    let slow = machine.cpu_list(&format!("{CPU}/online")).into_iter().find_map(|core| {
        let governor = machine.read(&format!("{CPU}/cpu{core}/cpufreq/scaling_governor"))?;
        (governor != "performance").then_some((core, governor))
    });
    let Some((core, governor)) = slow else { return vec![] };
    vec![Finding::advice(
        "clock rate",
        format!("core {core} has the governor {governor}: a worker that has slept starts slowly"),
        &["cpupower frequency-set -g performance"],
    )]
}

/// Does the kernel move memory between nodes under the workers?
pub fn numa_balancing(machine: &Machine) -> Vec<Finding> {
    if machine.number("/proc/sys/kernel/numa_balancing") != Some(1) {
        return vec![];
    }
    vec![Finding::advice(
        "NUMA balancing",
        "on: the kernel takes pages away to see who uses them, and workers wait for each",
        &["sysctl -w kernel.numa_balancing=0"],
    )]
}
