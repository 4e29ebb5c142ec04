//! Ingress filters that ports have in part themselves, and what is counted there.
//!
//! A receive queue's filter has all rules, whatever its port has: a port only drops earlier what would be dropped. So
//! nothing has to be in step, and a port that cannot, or does not, costs nothing but time.
//!
//! What a port counts is added to the filter's counters when these are read, as if it were a further receive queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingress::counters::QueueCounters;
use ingress::offload::{PushDown, push_down};
use ingress::{PortFilter, RuleCounts};
use parking_lot::Mutex;
use ports::EarlyDrop;
use ports::early_drop::{Counters, Dropped};

/// What ports have of their filters, by their names. Locked for moments: not while a program is loaded.
#[derive(Default)]
pub struct Offloads(Mutex<BTreeMap<String, Offload>>);

/// What a port has of its filter.
struct Offload {
    /// The filter.
    filter: Arc<PortFilter>,
    /// The port's.
    early: Arc<dyn EarlyDrop>,
    /// The port is to do what it can.
    wanted: bool,
    /// How many rules it has: the first ones.
    rules: usize,
    /// Why the others are not among them.
    reason: Option<String>,
    /// Counters of the program that is in force, and of the one before, by which frames may still be dropped.
    counted: Vec<Counted>,
}

/// The counters of a program.
struct Counted {
    counters: Arc<dyn Counters>,
    /// What was added to the filter's counters.
    read: Vec<Dropped>,
    /// The filter's.
    filter: Arc<QueueCounters>,
}

/// What is to be said about a port's filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadStatus {
    /// How many rules the port has: the first ones.
    pub rules: usize,
    /// Why the others are not among them.
    pub reason: Option<String>,
}

impl Offloads {
    /// Has a port do what it can of a filter; or nothing, where there is none or that is not wanted. The receive queues have
    /// the filter already. Calls for one port come one after the other.
    pub fn set(&self, port: &str, early: Option<Arc<dyn EarlyDrop>>, filter: Option<&Arc<PortFilter>>, wanted: bool) {
        let before = self.0.lock().remove(port);
        let (Some(early), Some(filter)) = (early, filter) else {
            return before.into_iter().for_each(|before| clear(port, &*before.early));
        };
        let mut counted: Vec<_> = before.into_iter().flat_map(|before| before.counted.into_iter().last()).collect();
        let pushed = if wanted { push_down(filter.rules()) } else { PushDown::default() };
        let obstacle = pushed.obstacle.map(|why| format!("rule {}: {why}", pushed.head + 1));
        let (mut rules, mut reason) = (pushed.rules, obstacle);
        let set = pushed.program.as_ref().map(|program| early.set(program));
        match set {
            None => clear(port, &*early),
            Some(Ok(counters)) => {
                let read = vec![Dropped::default(); filter.rules().rules().len()];
                counted.push(Counted { counters, read, filter: filter.for_offload() });
            }
            Some(Err(problem)) => {
                tracing::info!(port, %problem, "the ingress filter stays in the switch");
                clear(port, &*early);
                (rules, reason) = (0, Some(problem.to_string()));
            }
        }
        counted.iter_mut().for_each(Counted::add);
        let offload = Offload { filter: filter.clone(), early, wanted, rules, reason, counted };
        self.0.lock().insert(port.to_owned(), offload);
    }

    /// Whether that is so already.
    pub fn is_set(&self, port: &str, early: &Arc<dyn EarlyDrop>, filter: &Arc<PortFilter>, wanted: bool) -> bool {
        let same = |set: &Offload| Arc::ptr_eq(&set.early, early) && Arc::ptr_eq(&set.filter, filter);
        self.0.lock().get(port).is_some_and(|set| same(set) && set.wanted == wanted)
    }

    /// What the rules of a port's filter have counted, here and there.
    pub fn counts(&self, port: &str, filter: &PortFilter) -> Vec<RuleCounts> {
        if let Some(offload) = self.0.lock().get_mut(port) {
            offload.counted.iter_mut().for_each(Counted::add);
        }
        filter.counts()
    }

    /// What a port has of its filter; `None` where it can have nothing.
    pub fn status(&self, port: &str) -> Option<OffloadStatus> {
        let offloads = self.0.lock();
        offloads.get(port).map(|set| OffloadStatus { rules: set.rules, reason: set.reason.clone() })
    }

    /// Forgets ports that are not to be kept.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.lock().retain(|port, _| keep(port));
    }
}

/// Has a port drop nothing by itself. Should it not be able to, it goes on with rules that were in force.
fn clear(port: &str, early: &dyn EarlyDrop) {
    if let Err(problem) = early.clear() {
        tracing::warn!(port, %problem, "rules of an ingress filter stay in the port");
    }
}

impl Counted {
    /// Adds what has been counted since the last time.
    fn add(&mut self) {
        let now = self.counters.read();
        for (rule, (read, now)) in self.read.iter_mut().zip(now).enumerate() {
            let Dropped { packets, bytes } = now.since(*read);
            self.filter.add(rule, RuleCounts { packets, bytes, dropped: packets });
            *read = now;
        }
    }
}
