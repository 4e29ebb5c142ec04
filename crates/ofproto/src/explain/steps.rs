//! The events of a translation as a list of decisions, in plain words.

use openflow::group::GroupType;
use openflow::text::{PortNames, format_actions, format_instructions, format_match};
use openflow::{Action, FlowMod, Instructions, TableId, WriteMetadata};
use packet::put;
use serde::{Deserialize, Serialize};
use tunnel::fields::FieldTable;

use crate::model::hidden::shown_priority;
use crate::model::vlan::{PortVlan, VlanMode};
use crate::table::Rule;
use crate::trace::{Fork, MAX_FORKS};
use crate::xlate::steps::of_action_set;
use crate::xlate::trace::{Event, Sink};

/// Most steps that are kept. A packet may pass thousands of rules.
const MOST_STEPS: usize = 10_000;

/// What decides, or what is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// The packet is in a bridge.
    Bridge,
    /// The VLAN mode of a port.
    Vlan,
    /// A table, and the rule that was found in it.
    Table,
    /// The action set.
    Set,
    /// A group.
    Group,
    /// A bucket of a group.
    Bucket,
    /// A meter.
    Meter,
    /// Another action.
    Action,
    /// What an action did.
    Detail,
    /// The pipeline goes on after recirculation.
    Resume,
    /// Something that is probably a mistake of configuration.
    Warning,
    /// What ended the translation.
    Error,
}

/// A step of a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// How many steps it is inside of.
    pub depth: usize,
    /// The kind.
    pub kind: StepKind,
    /// In words.
    pub text: String,
    /// The rule that decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleText>,
    /// The rule that would decide if that one were not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RuleText>,
}

/// A rule, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleText {
    /// Its table.
    pub table: u8,
    /// Its priority; above 65 535 that of a hidden flow.
    pub priority: u32,
    /// Its cookie.
    pub cookie: u64,
    /// What it matches, in the syntax of ovs-ofctl(8); empty for every packet.
    pub r#match: String,
    /// What it does, likewise.
    pub actions: String,
    /// Packets that it has counted, without those that datapath flows have not been asked about yet.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Collects events.
pub(super) struct Collector<'a> {
    ports: &'a dyn PortNames,
    depth: usize,
    /// What happened.
    pub steps: Vec<Step>,
    /// How much more happened.
    pub left_out: usize,
    /// The packets that are recirculated by ct and for bonds, in order.
    pub forks: Vec<Fork>,
}

impl<'a> Collector<'a> {
    /// An empty list. `ports` are the names of OpenFlow ports that it shows.
    pub fn new(ports: &'a dyn PortNames) -> Collector<'a> {
        Collector { ports, depth: 0, steps: Vec::new(), left_out: 0, forks: Vec::new() }
    }

    fn add(&mut self, kind: StepKind, text: impl Into<String>) {
        self.add_rules(kind, text, (None, None));
    }

    fn add_rules(&mut self, kind: StepKind, text: impl Into<String>, rules: (Option<RuleText>, Option<RuleText>)) {
        if self.steps.len() == MOST_STEPS {
            self.left_out += 1;
            return;
        }
        let ((rule, next), text) = (rules, text.into());
        self.steps.push(Step { depth: self.depth, kind, text, rule, next });
    }

    fn enter(&mut self, kind: StepKind, text: impl Into<String>) {
        self.add(kind, text);
        self.depth += 1;
    }

    fn rule(&self, table: TableId, rule: &Rule, priority: u32, tlv: &FieldTable) -> RuleText {
        let (mut matching, mut actions) = (String::new(), String::new());
        format_match(&mut matching, &rule.matching(tlv), FlowMod::DEFAULT_PRIORITY, self.ports);
        format_instructions(&mut actions, &rule.instructions, self.ports);
        RuleText {
            table: table.0,
            priority,
            cookie: rule.cookie.0,
            r#match: matching,
            actions,
            packets: rule.stats.packets(),
            bytes: rule.stats.bytes(),
        }
    }

    fn actions(&self, actions: &[Action]) -> String {
        let mut text = String::new();
        format_actions(&mut text, actions, self.ports);
        text
    }

    fn instruction(&mut self, kind: StepKind, instructions: &Instructions) {
        let mut text = String::new();
        format_instructions(&mut text, instructions, self.ports);
        self.add(kind, text);
    }

    fn action_set(&mut self, verb: &str, set: &[Action]) {
        let list = of_action_set(set);
        let text = if list.is_empty() { "empty".into() } else { self.actions(&list) };
        self.add(StepKind::Detail, format!("the action set {verb} {text}"));
    }
}

impl Sink for Collector<'_> {
    fn wants_neighbours(&self) -> bool {
        true
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Bridge(name) => self.enter(StepKind::Bridge, format!("in bridge {name}")),
            Event::Rule { table, rule, priority, tlv, next } => {
                let decides = self.rule(table, rule, priority, tlv);
                let next = next.map(|next| {
                    let hidden = next.stats.rule().is_none();
                    let priority = if hidden { shown_priority(next) } else { next.priority.into() };
                    self.rule(table, next, priority, tlv)
                });
                let text = format!("table {} finds the rule {}", table.0, decides.name());
                self.add_rules(StepKind::Table, text, (Some(decides), next));
                self.depth += 1;
            }
            Event::Miss { table, to_controller } => {
                let then = if to_controller { "the controllers get the packet" } else { "the packet is dropped" };
                self.enter(StepKind::Table, format!("table {} finds no rule: {then}", table.0));
            }
            Event::FragmentDropped { table } => {
                let text = "the packet is a fragment, and the bridge drops fragments";
                self.add(StepKind::Table, format!("table {}: {text}", table.0));
            }
            Event::ActionSet => self.enter(StepKind::Set, "the action set is executed"),
            Event::Group(spec, id) => self.add(StepKind::Group, group(spec.kind, id.0, spec.buckets.len())),
            Event::Bucket(id) => self.enter(StepKind::Bucket, format!("bucket {id} gets the packet")),
            Event::VlanIn { port, vlan, received, inside } => {
                self.add(StepKind::Vlan, vlan_in(port, vlan, received, inside));
            }
            Event::VlanOut { port, vlan, inside, sent } => {
                let sent = sent.map_or("without a tag".into(), |vid| format!("with VLAN tag {vid}"));
                let text = format!("port {port}, {}, sends the packet of VLAN {inside} {sent}", mode(vlan));
                self.add(StepKind::Vlan, text);
            }
            Event::Thaw { table } => self.add(StepKind::Resume, format!("the pipeline goes on in table {}", table.0)),
            Event::Resume { table, cookie } => {
                let cookie = cookie.map_or(0, |cookie| cookie.0);
                let text = format!("what is left of the rule with cookie {cookie:#x} in table {}:", table.0);
                self.add(StepKind::Resume, text);
            }
            Event::Action(&Action::Meter(id)) | Event::Meter(id) => {
                self.add(StepKind::Meter, format!("meter {id} lets through what is within its rate"));
            }
            Event::Action(action) => {
                let text = self.actions(std::slice::from_ref(action));
                self.add(StepKind::Action, text);
            }
            Event::ClearActions => {
                self.instruction(StepKind::Action, &Instructions { clear: true, ..Default::default() });
            }
            Event::WriteActions(set) => {
                self.instruction(StepKind::Action, &Instructions { write: set.to_vec(), ..Default::default() });
            }
            Event::WriteMetadata(value, mask) => {
                let metadata = Some(WriteMetadata { value, mask });
                self.instruction(StepKind::Action, &Instructions { metadata, ..Default::default() });
            }
            Event::Goto(table) => {
                self.instruction(StepKind::Action, &Instructions { goto: Some(table), ..Default::default() });
            }
            Event::ActionSetWas(set) => self.action_set("was", set),
            Event::ActionSetIs(set) => self.action_set("is", set),
            Event::Drop => self.add(StepKind::Action, "drop"),
            Event::Fork { recirc_id, key, zone, nat } => {
                if self.forks.len() < MAX_FORKS {
                    self.forks.push(Fork::new(recirc_id, key, zone, nat));
                }
            }
            Event::Hashed { recirc_id, key, hash, bond } => {
                if self.forks.len() < MAX_FORKS {
                    self.forks.push(Fork::hashed(recirc_id, key, hash, bond));
                }
            }
            Event::Detail(text) => self.add(StepKind::Detail, text),
            Event::Warning(text) => self.add(StepKind::Warning, text),
            Event::Error(text) => self.add(StepKind::Error, text),
        }
    }

    fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}

impl RuleText {
    /// What it is called: priority, cookie and match.
    pub fn name(&self) -> String {
        let mut text = format!("priority={},cookie={:#x}", self.priority, self.cookie);
        if !self.r#match.is_empty() {
            put!(text, ",{}", self.r#match);
        }
        text
    }
}

fn group(kind: GroupType, id: u32, buckets: usize) -> String {
    let buckets = if buckets == 1 { "its bucket".into() } else { format!("{buckets} buckets") };
    match kind {
        GroupType::All => format!("group {id} (all) copies the packet to {buckets}"),
        GroupType::Select => format!("group {id} (select) chooses one of {buckets} by a hash"),
        GroupType::Indirect => format!("group {id} (indirect) hands the packet to {buckets}"),
        GroupType::FastFailover => format!("group {id} (fast failover) takes the first one that is live of {buckets}"),
    }
}

fn vlan_in(port: &str, vlan: &PortVlan, received: u16, inside: Option<u16>) -> String {
    let tag = if received == 0 { "without a VLAN tag".into() } else { format!("with VLAN tag {received}") };
    match inside {
        Some(vid) => format!("port {port} is {}: the packet {tag} belongs to VLAN {vid}", mode(vlan)),
        None => format!("port {port} is {}, which takes no packet {tag}", mode(vlan)),
    }
}

/// What a port is, by its VLAN configuration (ovs-vswitchd.conf.db(5), "VLAN Configuration").
pub fn mode(vlan: &PortVlan) -> String {
    let carried = match &vlan.trunks {
        None => "all VLANs".into(),
        Some(set) => {
            let vids: Vec<_> = set.iter().map(|vid| vid.to_string()).collect();
            if vids.len() == 1 { format!("VLAN {}", vids[0]) } else { format!("VLANs {}", vids.join(",")) }
        }
    };
    match vlan.mode {
        VlanMode::Access => format!("an access port of VLAN {}", vlan.tag),
        VlanMode::Trunk => format!("a trunk port of {carried}"),
        VlanMode::NativeTagged | VlanMode::NativeUntagged => {
            format!("a {} trunk port of {carried} with native VLAN {}", vlan.mode.name(), vlan.tag)
        }
        VlanMode::Dot1qTunnel => format!("a dot1q-tunnel port of service VLAN {}", vlan.tag),
    }
}
