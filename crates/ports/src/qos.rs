//! Quality of service of a port, as the tables QoS and Queue of ovs-vswitchd.conf.db(5) have it: how fast it sends, and
//! which queues share that.
//!
//! What a type of QoS knows is declared once, in [`TYPES`]. Who keeps it depends on the port: the kernel's queueing
//! disciplines ([`link::qdisc`](crate::link::qdisc)), or policers of the datapath.

use std::collections::BTreeMap;
use std::time::Duration;

/// Most queues of a port: each is a class of the kernel, and a request to it.
pub const MAX_QUEUES: usize = 4096;

/// What a type of QoS knows.
#[derive(Debug, PartialEq, Eq)]
pub struct QosType {
    /// Its name, as in the column `type`.
    pub name: &'static str,
    /// What counts of `other_config` of the QoS.
    pub settings: &'static [&'static str],
    /// What counts of `other_config` of a queue.
    pub queue_settings: &'static [&'static str],
    /// How many queues it can have: their numbers are below this.
    pub queues: u32,
}

/// Those of which there is a class for each queue, of 16 bits less some.
const CLASSES: u32 = 0xf000;

/// The types that there are.
pub const TYPES: &[QosType] = &[
    qos_type("linux-htb", &["max-rate"], &["burst", "max-rate", "min-rate", "priority"], CLASSES),
    qos_type("linux-hfsc", &["max-rate"], &["max-rate", "min-rate"], CLASSES),
    qos_type("linux-sfq", &["perturb", "quantum"], &[], 0),
    qos_type("linux-codel", &["interval", "limit", "target"], &[], 0),
    qos_type("linux-fq_codel", &["flows", "interval", "limit", "quantum", "target"], &[], 0),
    qos_type("linux-netem", &["latency", "limit", "loss"], &[], 0),
    qos_type("linux-noop", &[], &[], 0),
    qos_type("egress-policer", &["cbs", "cir"], &[], 0),
    qos_type("trtcm-policer", &["cbs", "cir", "ebs", "eir"], &["cbs", "cir", "ebs", "eir"], u32::MAX),
];

const fn qos_type(
    name: &'static str,
    settings: &'static [&'static str],
    queue_settings: &'static [&'static str],
    queues: u32,
) -> QosType {
    QosType { name, settings, queue_settings, queues }
}

/// Numbers by name. What is not there has its default.
pub type Settings = BTreeMap<&'static str, u64>;

/// What a port is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qos {
    /// Its type.
    pub kind: &'static QosType,
    /// Those of the port.
    pub settings: Settings,
    /// Those of its queues, by number. There is always a queue 0 where a type has queues.
    pub queues: BTreeMap<u32, Settings>,
}

impl Qos {
    /// A QoS of the type of this name, with those settings that the type knows. What is no number counts as not said, as in
    /// OVS. An error names the types that there are.
    pub fn new<'a>(name: &str, settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Qos, String> {
        let kind = TYPES.iter().find(|kind| kind.name == name).ok_or_else(|| {
            let known: Vec<_> = TYPES.iter().map(|kind| kind.name).collect();
            format!("there is no QoS of type {name:?}; known types: {}", known.join(", "))
        })?;
        let mut qos = Qos { kind, settings: Settings::new(), queues: BTreeMap::new() };
        qos.set(settings);
        if kind.queues > 0 {
            qos.queues.insert(0, Settings::new());
        }
        Ok(qos)
    }

    /// Replaces the settings of the port.
    pub fn set<'a>(&mut self, settings: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.settings = known(self.kind.settings, settings);
    }

    /// Adds a queue. An error says why it cannot be had.
    pub fn add_queue<'a>(
        &mut self,
        number: u32,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), String> {
        let name = self.kind.name;
        if self.kind.queues == 0 {
            return Err(format!("queue {number}: QoS of type {name} has no queues"));
        }
        if number >= self.kind.queues {
            return Err(format!("queue {number}: queues of type {name} have numbers below {}", self.kind.queues));
        }
        if self.queues.len() >= MAX_QUEUES && !self.queues.contains_key(&number) {
            return Err(format!("queue {number}: a port has {MAX_QUEUES} queues at most"));
        }
        self.queues.insert(number, known(self.kind.queue_settings, settings));
        Ok(())
    }
}

/// Of these settings, those that are known and numbers.
fn known<'a>(names: &[&'static str], settings: impl IntoIterator<Item = (&'a str, &'a str)>) -> Settings {
    let find = |(name, value): (&str, &str)| Some((*names.iter().find(|known| **known == name)?, value.parse().ok()?));
    settings.into_iter().filter_map(find).collect()
}

/// What a port does, with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosState {
    /// The name of its type.
    pub kind: &'static str,
    /// Settings of the port.
    pub settings: Settings,
    /// The queues, by number.
    pub queues: Vec<QueueState>,
}

/// A queue that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// Its number.
    pub number: u32,
    /// Its settings.
    pub settings: Settings,
    /// What was sent by it; an error says why that is not known.
    pub stats: Result<QueueStats, String>,
    /// How long there has been such a queue.
    pub age: Duration,
}

/// What was sent by a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Packets that were sent.
    pub packets: u64,
    /// Bytes that were sent.
    pub bytes: u64,
    /// Packets that were dropped.
    pub errors: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_type_does_not_know_is_left_out() {
        let mut qos = Qos::new("linux-htb", [("max-rate", "1000000"), ("burst", "7"), ("min-rate", "x")]).unwrap();
        assert_eq!(qos.settings, Settings::from([("max-rate", 1_000_000)]));
        qos.add_queue(3, [("priority", "2"), ("min-rate", "-1"), ("max-rate", "1e6"), ("burst", "8000")]).unwrap();
        assert_eq!(qos.queues[&3], Settings::from([("priority", 2), ("burst", 8000)]));
        assert_eq!(qos.queues.keys().collect::<Vec<_>>(), [&0, &3], "there is a default queue");
    }

    #[test]
    fn errors_say_what_would_be_right() {
        assert!(Qos::new("linux-htp", []).unwrap_err().contains("known types: linux-htb, linux-hfsc"));
        let mut qos = Qos::new("linux-htb", []).unwrap();
        assert!(qos.add_queue(0xf000, []).unwrap_err().contains("below 61440"));
        (1..MAX_QUEUES as u32).for_each(|number| qos.add_queue(number, []).unwrap());
        assert!(qos.add_queue(MAX_QUEUES as u32, []).unwrap_err().contains("4096 queues at most"));
        qos.add_queue(7, [("priority", "1")]).unwrap();
        let mut sfq = Qos::new("linux-sfq", []).unwrap();
        assert!(sfq.queues.is_empty() && sfq.add_queue(0, []).unwrap_err().contains("has no queues"));
    }
}
