//! `ofproto/trace`: what the tables do to a packet, explained (ovs-vswitchd(8)).
//!
//! [`trace`] watches the translation that packets get and keeps its events as a tree. A [`Trace`] is data, and
//! [`Trace::render`] lays it out as OVS does.
//!
//! | module | what it is |
//! |---|---|
//! | [`steps`] | The events of a translation as a tree, and its layout |
//! | [`flow`] | Keys and masks in words |
//! | `resume` | Packets that come back from connection tracking |

pub mod flow;
mod resume;
pub mod steps;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use datapath::{Action as DpAction, Punt};
use openflow::{Action, OfPort};
use packet::flow::text::PortNames;
use packet::{Key, Packet};
use serde::{Deserialize, Serialize};

pub use resume::parse_ct_state;
pub use steps::{StepKind, TraceStep};

use crate::switch::{Switch, Traced};
pub(crate) use resume::{Fork, is_ct_state};

/// The most packets that are followed when they come back from connection tracking.
pub(crate) const MAX_FORKS: usize = 64;

/// What to trace.
pub struct Request<'a> {
    /// Name of the bridge that the packet is in.
    pub bridge: &'a str,
    /// The packet, with an OpenFlow port in `in_port` and the values of tun_metadata fields.
    pub key: &'a Key,
    /// Instead of a lookup in table 0: the actions of a packet-out.
    pub actions: Option<&'a [Action]>,
    /// The frame. With it, the trace has the effects that a packet has, but for output: addresses and
    /// flows are learnt, controllers get packet-ins.
    pub packet: Option<&'a [u8]>,
    /// The ct_state of the packet each time that it comes back from connection tracking. Where there are no more of them, it is
    /// `new|trk`.
    pub ct_next: &'a [u32],
    /// Names to show for OpenFlow ports.
    pub ports: &'a dyn PortNames,
    /// Names to show for datapath ports.
    pub datapath_ports: &'a dyn PortNames,
}

/// An explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The packet.
    pub flow: String,
    /// What happened.
    pub steps: Vec<TraceStep>,
    /// The packet at the end of the pipeline, where it is another.
    pub final_flow: Option<String>,
    /// All packets that are treated like this one.
    pub megaflow: String,
    /// What the datapath does with them.
    pub datapath_actions: String,
    /// Why the translation gave up. The packet is dropped then.
    pub error: Option<String>,
    /// Every such packet is translated anew, in the slow path.
    #[serde(default)]
    pub slow: bool,
    /// The protocol whose session takes every such packet, in the slow path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    /// The packet as it comes back from connection tracking, each time, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resumed: Vec<Resumed>,
}

/// A packet that comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// As what it comes back, in words, of several lines.
    pub heading: String,
    /// What happens to it then.
    pub trace: Trace,
}

/// Traces. `None` where there is no such bridge.
pub fn trace(switch: &Switch, request: &Request<'_>) -> Option<Trace> {
    let packet = request.packet.map(Packet::from_slice);
    let traced = Traced { bridge: request.bridge, key: request.key, actions: request.actions, shadow: None };
    let first = one(switch, request, &traced, packet)?;
    let (mut trace, resumed) = follow(request.ct_next, first, |key| {
        let traced = Traced { bridge: request.bridge, key, actions: None, shadow: None };
        one(switch, request, &traced, request.packet.map(Packet::from_slice))
    })?;
    trace.resumed = resumed.into_iter().map(|(heading, trace)| Resumed { heading, trace }).collect();
    Some(trace)
}

/// Has every packet translated that comes back from connection tracking or to a bond, as `next` does it, with these states. Returns the
/// first of the translations, and the others with what they are about.
pub(crate) fn follow<T>(
    ct_next: &[u32],
    (first, outcome): (T, Outcome),
    mut next: impl FnMut(&Key) -> Option<(T, Outcome)>,
) -> Option<(T, Vec<(String, T)>)> {
    // The pipelines stay known as long as the first translations do that lead to them.
    let (mut forks, mut holds) = (VecDeque::from(outcome.forks), vec![outcome.holds]);
    let (mut states, mut resumed) = (ct_next.iter().copied().collect(), Vec::new());
    while let Some(fork) = forks.pop_front() {
        let (key, heading) = fork.resume(&mut states);
        if resumed.len() == MAX_FORKS {
            break;
        }
        let (translated, more) = next(&key)?;
        forks.extend(more.forks);
        holds.push(more.holds);
        resumed.push((heading, translated));
    }
    Some((first, resumed))
}

/// What follows from a translation.
pub(crate) struct Outcome {
    /// Packets that are recirculated.
    pub forks: Vec<Fork>,
    /// Keeps the pipelines that they come back to.
    pub holds: Vec<Arc<dyn Any + Send + Sync>>,
}

/// Traces a packet to the end of one pass.
fn one(
    switch: &Switch,
    request: &Request<'_>,
    traced: &Traced<'_>,
    packet: Option<Packet>,
) -> Option<(Trace, Outcome)> {
    let mut sink = steps::Collector::new(request.ports);
    let key = traced.key;
    let out = match packet {
        Some(packet) => switch.trace_packet(traced, packet, &mut sink)?,
        None => switch.trace(traced, &mut sink)?,
    };
    // Nothing is in the action set yet.
    let mut initial = key.clone();
    initial.pipeline_mut().actset_output = OfPort::UNSET.0.into();
    let mut datapath_actions = String::new();
    let style = datapath::text::Context { ports: request.datapath_ports, ..Default::default() };
    datapath::text::format_actions(&mut datapath_actions, &out.actions, key, &style);
    let trace = Trace {
        flow: flow::describe(key, &out.tlv, request.ports),
        steps: sink.finish(),
        final_flow: (out.flow != initial).then(|| flow::describe(&out.flow, &out.tlv, request.ports)),
        megaflow: flow::describe_megaflow(key, &out.mask, out.looked_at_vlan, &out.tlv, request.ports),
        datapath_actions,
        error: out.error,
        slow: out.slow,
        taken_by: out.actions.iter().find_map(taken_by).map(str::to_owned),
        resumed: Vec::new(),
    };
    Some((trace, Outcome { forks: sink.forks, holds: out.holds }))
}

/// The protocol whose frames an action gives to the switch itself.
fn taken_by(action: &DpAction) -> Option<&'static str> {
    let DpAction::Punt(punt) = action else { return None };
    match **punt {
        Punt::Bfd { .. } => Some("BFD"),
        Punt::Bpdu { .. } => Some("STP"),
        Punt::Cfm { .. } => Some("CFM"),
        Punt::Lacp { .. } => Some("LACP"),
        Punt::Lldp { .. } => Some("LLDP"),
        _ => None,
    }
}

impl Trace {
    /// The text in OVS's layout, without a line break at its end. `paint` dresses up what the kind of a
    /// line calls for; `None` is a heading as `Final flow:`.
    pub fn render(&self, paint: &dyn Fn(Option<StepKind>, &str) -> String) -> String {
        let heading = |text| paint(None, text);
        let mut out = format!("{} {}\n", heading("Flow:"), self.flow);
        steps::render(&mut out, &self.steps, 0, paint);
        let last = self.final_flow.as_deref().unwrap_or("unchanged");
        out += &format!("\n{} {last}\n", heading("Final flow:"));
        out += &format!("{} {}\n", heading("Megaflow:"), self.megaflow);
        out += &format!("{} {}", heading("Datapath actions:"), self.datapath_actions);
        let uses_actions = self.slow.then(|| "Uses action(s) not supported by datapath".to_owned());
        let is_of_protocol = self.taken_by.as_ref().map(|protocol| format!("Consists of {protocol} packets"));
        if let Some(why) = is_of_protocol.or(uses_actions) {
            out += &format!("\nThis flow is handled by the userspace slow path because it:\n  - {why}.\n");
        } else if let Some(error) = &self.error {
            out += &format!("\nTranslation failed ({error}), packet is dropped.\n");
        }
        for Resumed { heading, trace } in &self.resumed {
            let line = "=".repeat(79);
            let heading = paint(None, heading.trim_end());
            out += &format!("\n\n{line}\n{heading}\n{line}\n\n{}", trace.render(paint));
        }
        out
    }

    /// The text without colours.
    pub fn text(&self) -> String {
        self.render(&|_, text| text.to_owned())
    }
}
