//! `ofproto/trace`: what the tables do to a packet, explained (ovs-vswitchd(8)).
//!
//! [`trace`] watches the translation that packets get and keeps its events as a tree. A [`Trace`] is data, and
//! [`Trace::render`] lays it out as OVS does.
//!
//! | module | what it is |
//! |---|---|
//! | [`steps`] | The events of a translation as a tree, and its layout |
//! | [`flow`] | Keys and masks in words |

pub mod flow;
pub mod steps;
#[cfg(test)]
mod tests;

use openflow::{Action, OfPort};
use packet::flow::text::PortNames;
use packet::{Key, Packet};
use serde::{Deserialize, Serialize};

pub use steps::{StepKind, TraceStep};

use crate::switch::{Switch, Traced};

/// What to trace.
pub struct Request<'a> {
    /// Name of the bridge that the packet is in.
    pub bridge: &'a str,
    /// The packet, with an OpenFlow port in `in_port`.
    pub key: &'a Key,
    /// Instead of a lookup in table 0: the actions of a packet-out.
    pub actions: Option<&'a [Action]>,
    /// The frame. With it, the trace has the effects that a packet has, but for output: addresses and
    /// flows are learnt, controllers get packet-ins.
    pub packet: Option<Packet>,
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
}

/// Traces. `None` where there is no such bridge.
pub fn trace(switch: &Switch, request: Request<'_>) -> Option<Trace> {
    let mut sink = steps::Collector::new(request.ports);
    let key = request.key;
    let traced = Traced { bridge: request.bridge, key, actions: request.actions };
    let out = match request.packet {
        Some(packet) => switch.trace_packet(&traced, packet, &mut sink)?,
        None => switch.trace(&traced, &mut sink)?,
    };
    // Nothing is in the action set yet.
    let mut initial = key.clone();
    initial.pipeline_mut().actset_output = OfPort::UNSET.0.into();
    let mut datapath_actions = String::new();
    let style = datapath::text::Context { ports: request.datapath_ports, ..Default::default() };
    datapath::text::format_actions(&mut datapath_actions, &out.actions, key, &style);
    Some(Trace {
        flow: flow::describe(key, request.ports),
        steps: sink.finish(),
        final_flow: (out.flow != initial).then(|| flow::describe(&out.flow, request.ports)),
        megaflow: flow::describe_megaflow(key, &out.mask, out.looked_at_vlan, request.ports),
        datapath_actions,
        error: out.error,
        slow: out.slow,
    })
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
        if self.slow {
            out += "\nThis flow is handled by the userspace slow path because it:\n\
                    \x20 - Uses action(s) not supported by datapath.\n";
        } else if let Some(error) = &self.error {
            out += &format!("\nTranslation failed ({error}), packet is dropped.\n");
        }
        out
    }

    /// The text without colours.
    pub fn text(&self) -> String {
        self.render(&|_, text| text.to_owned())
    }
}
