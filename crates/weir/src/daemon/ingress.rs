//! The ingress filters of the ports, by the names of these: so a filter outlasts the device of its port.
//!
//! The datapath asks for the filters of receive queues that come into being ([`IngressFilters::source`]), so these have
//! theirs before they receive; those of others are replaced. What an operator sets is in force until the configuration
//! says something else than before.
//!
//! Sharing between threads: changes are made one at a time, under `changing`, when their rules have been compiled, which can
//! take as long as a name server does. `by_port` is locked for moments only, also within the datapath's own locks; nothing is
//! locked under it but the counters of a filter.

use std::collections::BTreeMap;
use std::sync::Arc;

use datapath::Datapath;
use datapath::pipeline::ingress::{Ingress, IngressSource};
use ingress::ebpf::PortProgram;
use ingress::{PortFilter, RuleCounts, RuleSet};
use parking_lot::Mutex;

use super::compiler::Compiler;
use super::offload::{OffloadStatus, Offloads};
use crate::config::desired::IngressProgram;
use crate::report;

/// The filters of all ports.
#[derive(Default)]
pub struct IngressFilters {
    /// Compiles what the configuration wants.
    pub compiler: Compiler,
    changing: Mutex<()>,
    offloads: Offloads,
    by_port: Arc<Mutex<BTreeMap<String, PortEntry>>>,
}

/// What is known of a port's filter.
#[derive(Default)]
struct PortEntry {
    /// What is in force.
    filter: Option<Arc<PortFilter>>,
    /// What was in force before: a worker that has it still is not to be the one that frees it, which takes time.
    before: Option<Arc<PortFilter>>,
    /// What the configuration has asked for last.
    configured: Configured,
    /// The port is not to drop frames by itself.
    is_kept_here: bool,
}

/// What a configuration says about a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// The rules.
    pub rules: Option<String>,
    /// The program behind them.
    pub program: Option<IngressProgram>,
}

impl IngressFilters {
    /// What is told of all filters: their rules and programs, with their counters.
    pub fn report(&self) -> Vec<report::IngressPort> {
        let filters = self.all().into_iter().map(|(name, filter)| {
            let offload = self.offload_status(&name).unwrap_or_default();
            let counts = self.counts(&name, &filter);
            let shown = |(number, (rule, counts)): (usize, (&ingress::Rule, RuleCounts))| report::IngressRule {
                rule: rule.to_string(),
                packets: counts.packets,
                bytes: counts.bytes,
                dropped: counts.dropped,
                offloaded: number < offload.rules,
            };
            let rules = filter.rules().rules().iter().zip(counts).enumerate().map(shown).collect();
            let program = filter.program().map(|program| program_report(program));
            report::IngressPort { name, rules, not_offloaded: offload.reason, program }
        });
        filters.collect()
    }

    /// Makes the filters of new receive queues.
    pub fn source(&self) -> IngressSource {
        let by_port = self.by_port.clone();
        Arc::new(move |port, _| {
            let filter = by_port.lock().get(port.name())?.filter.clone()?;
            Some(for_queue(&filter))
        })
    }

    /// The filter that is in force at a port.
    pub fn get(&self, port: &str) -> Option<Arc<PortFilter>> {
        self.by_port.lock().get(port)?.filter.clone()
    }

    /// The filters of all ports that have one, by name.
    pub fn all(&self) -> Vec<(String, Arc<PortFilter>)> {
        let by_port = self.by_port.lock();
        by_port.iter().filter_map(|(name, entry)| Some((name.clone(), entry.filter.clone()?))).collect()
    }

    /// Brings the filter into force that the configuration wants: rules and program, each unless it is the same as before.
    /// On an error, what was in force of it stays so. With `offload`, the port does what it can of the rules.
    pub fn configure(&self, datapath: &Datapath, port: &str, wanted: Configured, offload: bool) -> Result<(), String> {
        let (configured, was_kept_here) = {
            let mut by_port = self.by_port.lock();
            let entry = by_port.entry(port.to_owned()).or_default();
            (entry.configured.clone(), std::mem::replace(&mut entry.is_kept_here, !offload))
        };
        if was_kept_here == offload {
            self.push_down(datapath, port);
        }
        let mut outcome = Ok(());
        if configured.program != wanted.program {
            match wanted.program.as_ref().map(open).transpose() {
                Ok(program) => {
                    let _changing = self.changing.lock();
                    self.replace_program(datapath, port, program);
                    self.by_port.lock().entry(port.to_owned()).or_default().configured.program = wanted.program;
                }
                Err(e) => outcome = Err(format!("ingress-ebpf: {e}")),
            }
        }
        if configured.rules != wanted.rules {
            match wanted.rules.as_ref().map(|rules| self.compiler.compile(port, rules)).transpose() {
                Ok(rules) => {
                    let _changing = self.changing.lock();
                    self.replace_rules(datapath, port, rules);
                    self.by_port.lock().entry(port.to_owned()).or_default().configured.rules = wanted.rules;
                }
                Err(e) => outcome = Err(format!("ingress-filter: {e}")),
            }
        }
        outcome
    }

    /// Changes the text of the rules of a port: `change` makes it from the rules in force, `None` where there is no
    /// filter, before or after. It is called again where others have changed them meanwhile. On an error, what was in force
    /// stays so.
    pub fn change(
        &self,
        datapath: &Datapath,
        port: &str,
        change: impl Fn(Option<&RuleSet>) -> Result<Option<String>, String>,
    ) -> Result<(), String> {
        loop {
            let before = self.get(port);
            let wanted = change(before.as_ref().map(|filter| filter.rules()))?;
            let rules = wanted.as_deref().map(RuleSet::compile).transpose().map_err(|e| e.to_string())?;
            let _changing = self.changing.lock();
            if self.get(port).as_ref().map(Arc::as_ptr) == before.as_ref().map(Arc::as_ptr) {
                self.replace_rules(datapath, port, rules);
                return Ok(());
            }
        }
    }

    /// Puts a program behind the rules of a port, or takes it away. On an error, what was in force stays so.
    pub fn load(&self, datapath: &Datapath, port: &str, program: Option<&IngressProgram>) -> Result<(), String> {
        let program = program.map(open).transpose()?;
        let _changing = self.changing.lock();
        if program.is_none() && self.get(port).is_none_or(|filter| filter.program().is_none()) {
            return Err("the port has no ingress program".into());
        }
        self.replace_program(datapath, port, program);
        Ok(())
    }

    /// Has a port that was opened do what it can of its filter.
    pub fn push_down(&self, datapath: &Datapath, port: &str) {
        let _changing = self.changing.lock();
        self.push_down_locked(datapath, port);
    }

    fn push_down_locked(&self, datapath: &Datapath, port: &str) {
        let (filter, wanted) = {
            let by_port = self.by_port.lock();
            let entry = by_port.get(port);
            (entry.and_then(|entry| entry.filter.clone()), entry.is_some_and(|entry| !entry.is_kept_here))
        };
        let early = datapath.port_named(port).and_then(|(_, device)| device.early_drop());
        let is_set = early.as_ref().zip(filter.as_ref()).is_some_and(|(e, f)| self.offloads.is_set(port, e, f, wanted));
        if !is_set {
            self.offloads.set(port, early, filter.as_ref(), wanted);
        }
    }

    /// What the rules of a port's filter have counted.
    pub fn counts(&self, port: &str, filter: &PortFilter) -> Vec<RuleCounts> {
        self.offloads.counts(port, filter)
    }

    /// What a port has of its filter; `None` where it can have nothing.
    pub fn offload_status(&self, port: &str) -> Option<OffloadStatus> {
        self.offloads.status(port)
    }

    /// Forgets ports that are not to be kept.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.compiler.retain(&keep);
        self.by_port.lock().retain(|port, _| keep(port));
        self.offloads.retain(keep);
    }

    /// Puts rules in force, in front of the program that there is. Called under `changing`.
    fn replace_rules(&self, datapath: &Datapath, port: &str, rules: Option<RuleSet>) {
        let before = self.get(port);
        // A program needs a filter, of no rules where there are none.
        let has_program = before.as_ref().is_some_and(|before| before.program().is_some());
        let rules = rules.or_else(|| has_program.then(RuleSet::default));
        let filter = rules.map(|rules| match &before {
            Some(before) => PortFilter::replacing(rules, before),
            None => PortFilter::new(rules),
        });
        self.replace(datapath, port, before, filter);
    }

    /// Puts a program in force, behind the rules that there are. Called under `changing`.
    fn replace_program(&self, datapath: &Datapath, port: &str, program: Option<Arc<PortProgram>>) {
        let before = self.get(port);
        let filter = match &before {
            Some(before) if program.is_none() && before.rules().rules().is_empty() => None,
            Some(before) => Some(before.with_program(program)),
            None => program.map(|program| PortFilter::new(RuleSet::default()).with_program(Some(program))),
        };
        self.replace(datapath, port, before, filter);
    }

    /// Puts a filter in force. Frames that come meanwhile see the one from before or this one.
    fn replace(&self, datapath: &Datapath, port: &str, before: Option<Arc<PortFilter>>, filter: Option<PortFilter>) {
        let filter = filter.map(Arc::new);
        // New receive queues get it from here on, those that are there below.
        let earlier = {
            let mut by_port = self.by_port.lock();
            let entry = by_port.entry(port.to_owned()).or_default();
            entry.filter.clone_from(&filter);
            std::mem::replace(&mut entry.before, before)
        };
        drop(earlier);
        if let Some((number, _)) = datapath.port_named(port) {
            // The port may have gone since.
            let _ = datapath.set_ingress(number, |_| filter.as_deref().map(for_queue));
        }
        // After the receive queues, so that no frame gets by while the port's rules change.
        self.push_down_locked(datapath, port);
    }
}

/// Loads a program.
fn open(wanted: &IngressProgram) -> Result<Arc<PortProgram>, String> {
    PortProgram::open(&wanted.path, wanted.name.as_deref()).map(Arc::new)
}

fn for_queue(filter: &PortFilter) -> Box<Ingress> {
    Box::new(Ingress { filter: Some(Box::new(filter.for_queue())), ..Ingress::default() })
}
fn program_report(program: &PortProgram) -> report::IngressProgram {
    let (machine, counts) = (program.machine(), program.counts());
    let maps = machine.maps().iter().map(|map| map.definition()).map(|map| report::IngressMap {
        name: map.name.clone(),
        r#type: map.kind_name(),
        key_size: map.key_size,
        value_size: map.value_size,
        max_entries: map.max_entries,
    });
    report::IngressProgram {
        path: program.path().to_owned(),
        name: machine.name().to_owned(),
        instructions: machine.len(),
        longest: machine.longest(),
        code: machine.code(),
        passed: counts.passed,
        dropped: counts.dropped,
        aborted: counts.aborted,
        unsupported: counts.unsupported,
        faults: counts.faults,
        maps: maps.collect(),
    }
}
