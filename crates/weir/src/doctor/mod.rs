//! `weir doctor`: what this machine and the switch on it lack to switch packets well, in the order in which to mend it, each
//! with the command that does.
//!
//! [`Machine`] reads facts, all of them from files below one root, so that tests examine machines that
//! they make up; each check makes a [`Finding`] of them; [`examine`] puts these in order.
//!
//! - `machine`: the files that facts are read from
//! - `memory`: hugepages and locked memory
//! - `pci`: network cards and their drivers
//! - `processor`: instructions, cores and what takes them away
//! - [`switch`]: a running switch
//! - `system`: the kernel and what it offers

mod machine;
mod memory;
mod pci;
mod processor;
pub mod switch;
mod system;

use serde::Serialize;

pub use machine::Machine;

/// How much a finding matters. The order is the one in which to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something does not work.
    Problem,
    /// It works, but slower or less safely than it could.
    Advice,
    /// As it should be.
    Ok,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub level: Severity,
    /// What was looked at: "hugepages", "isolated cores", ...
    pub area: &'static str,
    /// What was found, and what follows from it.
    pub found: String,
    /// The commands that mend it, in order; empty where there is nothing to do.
    pub commands: Vec<String>,
    /// What a finding of a running switch is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'static str>,
    /// Where the documentation explains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub see: Option<String>,
}

impl Finding {
    fn ok(area: &'static str, found: impl Into<String>) -> Finding {
        Finding { level: Severity::Ok, area, found: found.into(), commands: Vec::new(), id: None, see: None }
    }

    fn advice(area: &'static str, found: impl Into<String>, commands: &[&str]) -> Finding {
        Finding { level: Severity::Advice, ..Finding::problem(area, found, commands) }
    }

    fn problem(area: &'static str, found: impl Into<String>, commands: &[&str]) -> Finding {
        let commands = commands.iter().map(|c| c.to_string()).collect();
        Finding { level: Severity::Problem, commands, ..Finding::ok(area, found) }
    }
}

/// A check; several where it looks at several things of a kind. None where it has nothing to look at.
type Check = fn(&Machine) -> Vec<Finding>;

/// In the order in which to act on findings of one level: what else depends on comes first.
const CHECKS: &[Check] = &[
    system::kernel,
    system::capabilities,
    system::other_daemon,
    system::xdp,
    system::tun,
    system::locked_memory,
    system::open_files,
    memory::hugepages,
    memory::transparent_hugepages,
    pci::iommu,
    pci::drivers,
    pci::dpdk,
    processor::instructions,
    processor::clock,
    processor::isolated_cores,
    processor::governor,
    processor::numa_balancing,
];

/// Examines a machine: problems first, then advice, then what is as it should be.
pub fn examine(machine: &Machine) -> Vec<Finding> {
    sorted(CHECKS.iter().flat_map(|check| check(machine)).collect())
}

/// Findings in the order in which to act on them.
pub fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.level);
    findings
}

/// That no switch was examined, and why.
pub fn no_switch(why: &str) -> Finding {
    Finding::ok("switch", format!("none was looked at: {why}"))
}

/// That a switch does not answer, and why.
pub fn silent_switch(why: &str) -> Finding {
    Finding::problem("switch", format!("it does not answer: {why}"), &["weir show   # again, when it may be less busy"])
}

/// The findings as text.
pub fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|f| f.area.len()).max().unwrap_or(0);
    let mut out = String::new();
    for Finding { level, area, found, commands, see, .. } in findings {
        let level = match level {
            Severity::Problem => "PROBLEM",
            Severity::Advice => "advice",
            Severity::Ok => "ok",
        };
        out += &format!("{level:<7}  {area:<width$}  {found}\n");
        for command in commands {
            out += &format!("{:7}  {:width$}    # {command}\n", "", "");
        }
        if let Some(see) = see {
            out += &format!("{:7}  {:width$}    see {see}\n", "", "");
        }
    }
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    out += &match (count(Severity::Problem), count(Severity::Advice)) {
        (0, 0) => "This machine is ready.\n".to_owned(),
        (problems, advice) => format!("{problems} to mend, {advice} to consider; from top to bottom.\n"),
    };
    out
}

#[cfg(test)]
mod tests;
