//! What a running switch lacks, or what its counters say of a setting.
//!
//! [`Switch`] is what its reports say at two times, some seconds apart. Each [`Condition`] is declared once, in `conditions`: what it is called, what is
//! looked at, what to do. A condition that is found at several places makes a finding for each; one that is found nowhere makes none.
//!
//! - `conditions`: the conditions
//! - `facts`: how they are found

mod conditions;
mod facts;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use conditions::CONDITIONS;

use super::{Finding, Severity};
use crate::report::measurement::{Measurement, Reports};
use crate::report::{PortShow, Show};

/// The page that explains the conditions, each below its id.
const PAGE: &str = "docs/doctor.md";

/// Most findings of one condition: a thousand ports of which each lacks the same are said to be so.
const MOST: usize = 8;

/// What the reports of a switch say.
pub struct Switch {
    show: Show,
    before: Vec<PortShow>,
    ports: Vec<PortShow>,
    measurement: Measurement,
}

impl Switch {
    /// By what it said at two times, the second one `time` after the first.
    pub fn new(show: Show, before: Reports, now: Reports, time: Duration) -> Switch {
        let measurement = now.since(&before, time);
        Switch { show, before: before.ports.ports, ports: now.ports.ports, measurement }
    }

    /// Whether its configuration is in a database; otherwise it is in a file.
    fn has_database(&self) -> bool {
        ["unix:", "tcp:", "ssl:"].iter().any(|kind| self.show.config.starts_with(kind))
    }
}

/// Something that can be wrong with a switch.
pub struct Condition {
    /// Its name, which stays the same, and its heading in docs/doctor.md.
    pub id: &'static str,
    /// How much it matters.
    pub level: Severity,
    /// The part of the switch.
    pub area: &'static str,
    /// What is looked at.
    pub looks_at: &'static str,
    /// What to do where the configuration is in a database; `{}` stands for what was found: a port, a bridge, ...
    pub database: &'static [&'static str],
    /// The same where it is in a file.
    pub file: &'static [&'static str],
    /// Finds it.
    pub find: Finder,
}

/// How a condition is found.
pub enum Finder {
    /// By looking at everything.
    Facts(fn(&Switch) -> Vec<Fact>),
    /// Where packets are dropped for one of these reasons.
    Drops(&'static [&'static str]),
}

/// A place where a condition is found.
pub struct Fact {
    /// What it is about, for the advice.
    subject: String,
    /// What was found there.
    found: String,
}

impl Fact {
    fn new(subject: impl Into<String>, found: impl Into<String>) -> Fact {
        Fact { subject: subject.into(), found: found.into() }
    }
}

impl Condition {
    fn facts(&self, switch: &Switch) -> Vec<Fact> {
        match self.find {
            Finder::Facts(find) => find(switch),
            Finder::Drops(reasons) => facts::drops(switch, reasons),
        }
    }

    fn findings(&self, switch: &Switch) -> Vec<Finding> {
        let mut facts = self.facts(switch);
        let more = facts.len().saturating_sub(MOST);
        facts.truncate(MOST);
        if let Some(last) = facts.last_mut().filter(|_| more > 0) {
            last.found += &format!("; and {more} more like it");
        }
        let advice = if switch.has_database() { self.database } else { self.file };
        let finding = |fact: Fact| Finding {
            level: self.level,
            area: self.area,
            found: fact.found,
            commands: advice.iter().map(|command| command.replace("{}", &fact.subject)).collect(),
            id: Some(self.id),
            see: Some(format!("{PAGE}#{}", self.id)),
        };
        facts.into_iter().map(finding).collect()
    }
}

/// Examines a switch. Where nothing is wrong, that is the only finding.
pub fn examine(switch: &Switch) -> Vec<Finding> {
    let findings: Vec<_> = CONDITIONS.iter().flat_map(|condition| condition.findings(switch)).collect();
    if !findings.is_empty() {
        return findings;
    }
    let Show { version, pid, .. } = &switch.show;
    vec![Finding::ok("switch", format!("weir {version}, process {pid}: nothing to mend"))]
}
