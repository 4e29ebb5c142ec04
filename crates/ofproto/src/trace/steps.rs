//! The events of a translation as a tree, and its layout.

use openflow::text::{PortNames, format_actions, format_instructions, format_match};
use openflow::{Action, FlowMod, Instructions, TableId, WriteMetadata};
use packet::put;
use serde::{Deserialize, Serialize};
use tunnel::fields::FieldTable;

use super::{Fork, MAX_FORKS};
use crate::table::Rule;
use crate::xlate::steps::of_action_set;
use crate::xlate::trace::{Event, Sink};

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// A bridge.
    Bridge,
    /// A table and its rule, or the action set.
    Table,
    /// A bucket of a group.
    Bucket,
    /// Return from recirculation.
    Thaw,
    /// An action.
    Action,
    /// What an action did.
    Detail,
    /// Something that is probably a mistake of configuration.
    Warning,
    /// The end of the translation.
    Error,
}

/// How deep the tree may be. Deeper steps are listed one after the other: neither a reader nor
/// a parser of JSON follows any further.
const MAX_DEPTH: usize = 60;

impl StepKind {
    /// Whether what is inside is indented also where nothing follows.
    fn is_leaf(self) -> bool {
        !matches!(self, StepKind::Bridge | StepKind::Table | StepKind::Thaw)
    }
}

/// Something that happened in a translation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// The kind.
    pub kind: StepKind,
    /// In words.
    pub text: String,
    /// What happened inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<TraceStep>,
}

impl TraceStep {
    fn new(kind: StepKind, text: impl Into<String>) -> TraceStep {
        TraceStep { kind, text: text.into(), steps: Vec::new() }
    }
}

/// Collects events.
pub struct Collector<'a> {
    ports: &'a dyn PortNames,
    /// Steps that have begun, the innermost last. The first is no step: what it has inside is the trace.
    open: Vec<TraceStep>,
    /// Steps that have begun and are too deep for the tree.
    too_deep: usize,
    /// The packets that are recirculated by ct and for bonds, in order.
    pub(super) forks: Vec<Fork>,
}

impl<'a> Collector<'a> {
    /// An empty tree. `ports` are the names of OpenFlow ports that it shows.
    pub fn new(ports: &'a dyn PortNames) -> Collector<'a> {
        Collector { ports, open: vec![TraceStep::new(StepKind::Thaw, "")], too_deep: 0, forks: Vec::new() }
    }

    /// The tree.
    pub fn finish(&mut self) -> Vec<TraceStep> {
        self.too_deep = 0;
        while self.open.len() > 1 {
            self.leave();
        }
        self.open.pop().map(|root| root.steps).unwrap_or_default()
    }

    fn add(&mut self, step: TraceStep) {
        if let Some(open) = self.open.last_mut() {
            open.steps.push(step);
        }
    }

    fn leaf(&mut self, kind: StepKind, text: impl Into<String>) {
        self.add(TraceStep::new(kind, text));
    }

    fn enter(&mut self, kind: StepKind, text: impl Into<String>) {
        if self.open.len() > MAX_DEPTH {
            self.too_deep += 1;
            return self.leaf(kind, text);
        }
        self.open.push(TraceStep::new(kind, text));
    }

    fn instructions(&mut self, instructions: Instructions) {
        let mut text = String::new();
        format_instructions(&mut text, &instructions, self.ports);
        self.leaf(StepKind::Action, text);
    }

    fn actions(&self, actions: &[Action]) -> String {
        let mut text = String::new();
        format_actions(&mut text, actions, self.ports);
        text
    }

    fn action_set(&mut self, verb: &str, set: &[Action]) {
        let list = of_action_set(set);
        let text = match list.is_empty() {
            true => format!("action set {verb} empty"),
            false => format!("action set {verb}: {}", self.actions(&list)),
        };
        self.leaf(StepKind::Detail, text);
    }

    fn rule(&self, table: TableId, rule: &Rule, priority: u32, tlv: &FieldTable) -> String {
        let mut text = heading(table);
        let before = text.len();
        format_match(&mut text, &rule.matching(tlv), FlowMod::DEFAULT_PRIORITY, self.ports);
        if text.len() > before {
            text.push_str(", ");
        }
        put!(text, "priority {priority}");
        if rule.cookie.0 != 0 {
            put!(text, ", cookie {:#x}", rule.cookie.0);
        }
        text
    }
}

fn heading(table: TableId) -> String {
    format!("{:2}. ", table.0)
}

impl Sink for Collector<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Bridge(name) => self.enter(StepKind::Bridge, format!("bridge(\"{name}\")")),
            Event::Rule { table, rule, priority, tlv, .. } => {
                self.enter(StepKind::Table, self.rule(table, rule, priority, tlv));
            }
            Event::Miss { table, to_controller: true } => {
                self.enter(StepKind::Table, heading(table) + "No match, and a \"packet-in\" is called for.");
                self.leaf(StepKind::Action, "controller(reason=no_match)");
            }
            Event::Miss { table, to_controller: false } => {
                self.enter(StepKind::Table, heading(table) + "No match.");
                self.leaf(StepKind::Action, "drop");
            }
            Event::FragmentDropped { table } => {
                let text = "Packets are IP fragments and the fragment handling mode is \"drop\".";
                self.enter(StepKind::Table, heading(table) + text);
                self.leaf(StepKind::Action, "drop");
                self.leave();
            }
            Event::Bucket(id) => self.enter(StepKind::Bucket, format!("bucket {id}")),
            Event::ActionSet => self.enter(StepKind::Table, "--. Executing action set:"),
            Event::Thaw { table } => {
                self.enter(StepKind::Thaw, "thaw");
                self.leaf(StepKind::Thaw, format!("Resuming from table {table}"));
                self.leave();
            }
            Event::Resume { table, cookie } => {
                let cookie = cookie.map_or(0, |cookie| cookie.0);
                self.leaf(StepKind::Thaw, format!("restored state: table={table}, cookie={cookie:#x}"));
            }
            Event::Action(action) => self.leaf(StepKind::Action, self.actions(std::slice::from_ref(action))),
            Event::ClearActions => self.instructions(Instructions { clear: true, ..Default::default() }),
            Event::WriteActions(set) => self.instructions(Instructions { write: set.to_vec(), ..Default::default() }),
            Event::WriteMetadata(value, mask) => {
                let metadata = Some(WriteMetadata { value, mask });
                self.instructions(Instructions { metadata, ..Default::default() });
            }
            Event::Meter(id) => self.instructions(Instructions { meter: Some(id), ..Default::default() }),
            Event::Goto(table) => self.instructions(Instructions { goto: Some(table), ..Default::default() }),
            Event::ActionSetWas(set) => self.action_set("was", set),
            Event::ActionSetIs(set) => self.action_set("is", set),
            Event::Drop => self.leaf(StepKind::Action, "drop"),
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
            // OVS does not tell them.
            Event::Group(..) | Event::VlanIn { .. } | Event::VlanOut { .. } => {}
            Event::Detail(text) => self.leaf(StepKind::Detail, text),
            Event::Warning(text) => self.leaf(StepKind::Warning, text),
            Event::Error(text) => self.leaf(StepKind::Error, text),
        }
    }

    fn leave(&mut self) {
        if self.too_deep > 0 {
            self.too_deep -= 1;
            return;
        }
        if self.open.len() < 2 {
            return;
        }
        let Some(step) = self.open.pop() else { return };
        let outermost = self.open.len() == 2;
        let Some(parent) = self.open.last_mut() else { return };
        // In the bridge that the packet came to, OVS shows the action set inside the first table.
        let set = step.text.starts_with("--.");
        match parent.steps.last_mut() {
            Some(table) if set && outermost && table.kind == StepKind::Table => table.steps.push(step),
            _ => parent.steps.push(step),
        }
    }
}

/// Writes steps in OVS's layout. What comes last in its list is not indented further, so that a chain of
/// tables stays at the margin.
pub(super) fn render(
    out: &mut String,
    steps: &[TraceStep],
    level: usize,
    paint: &dyn Fn(Option<StepKind>, &str) -> String,
) {
    for (i, step) in steps.iter().enumerate() {
        let more = usize::from(i + 1 < steps.len() || step.kind.is_leaf());
        let indent = " ".repeat((level + more) * 4);
        let (before, after) = match step.kind {
            StepKind::Detail => (" -> ", ""),
            StepKind::Warning => (" >> ", ""),
            StepKind::Error => (" >>>> ", " <<<<"),
            _ => ("", ""),
        };
        if step.kind == StepKind::Bridge {
            out.push('\n');
        }
        put!(out, "{indent}{}\n", paint(Some(step.kind), &format!("{before}{}{after}", step.text)));
        if step.kind == StepKind::Bridge {
            put!(out, "{indent}{}\n", "-".repeat(step.text.len()));
        }
        render(out, &step.steps, level + 2 * more, paint);
    }
}
