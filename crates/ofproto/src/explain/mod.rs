//! What decides what becomes of a packet, step by step, and what would decide if it were not there.
//!
//! [`explain`] watches the translation that packets get, as [`trace`](crate::trace) does. Beside what that shows, it knows of
//! each table the rule that would be found if the deciding one were gone, the VLAN modes by which NORMAL decides, and which
//! groups choose. It learns nothing, counts nothing and sends nothing. The tables are locked for the look-ups of one packet,
//! of which each table takes two.
//!
//! | module | what it is |
//! |---|---|
//! | [`steps`] | The events of a translation as a list of decisions |

pub mod steps;
#[cfg(test)]
mod tests;

use datapath::Action;
use packet::Key;
use packet::flow::text::PortNames;

pub use steps::{RuleText, Step, StepKind};

use crate::model::shadow::Shadow;
use crate::slowpath::drop_sites::TableDrop;
use crate::switch::{Switch, Traced};
use crate::trace::{self, flow};

/// What is to be explained.
pub struct Request<'a> {
    /// Name of the bridge that the packet is in.
    pub bridge: &'a str,
    /// The packet, with an OpenFlow port in `in_port` and the values of tun_metadata fields.
    pub key: &'a Key,
    /// The ct_state of the packet each time that it comes back from connection tracking; then `new|trk`.
    pub ct_next: &'a [u32],
    /// Names to show for OpenFlow ports.
    pub ports: &'a dyn PortNames,
    /// Changes of flows that are looked up as if they had been made.
    pub shadow: Option<&'a Shadow>,
}

/// One pass of a packet through the tables.
pub struct Pass {
    /// As what it has come back from connection tracking, in words; nothing in the first pass.
    pub heading: Option<String>,
    /// The packet, in words.
    pub flow: String,
    /// What the datapath looks it up by; `None` where it came in at no port of the datapath.
    pub key: Option<Box<Key>>,
    /// What happened, in order.
    pub steps: Vec<Step>,
    /// How many steps are left out, since there are too many.
    pub left_out: usize,
    /// All packets that are treated like this one.
    pub megaflow: String,
    /// What the datapath does with them.
    pub actions: Vec<Action>,
    /// Where the tables drop it, if they do.
    pub dropped: Option<TableDrop>,
    /// Why the translation gave up, if it did.
    pub error: Option<String>,
    /// Each such packet is translated anew, in the slow path.
    pub slow: bool,
}

/// Explains what becomes of a packet, pass by pass. `None` where there is no such bridge.
pub fn explain(switch: &Switch, request: &Request<'_>) -> Option<Vec<Pass>> {
    let first = pass(switch, request, request.key)?;
    let (first, resumed) = trace::follow(request.ct_next, first, |key| pass(switch, request, key))?;
    let resumed = resumed.into_iter().map(|(heading, pass)| Pass { heading: Some(heading), ..pass });
    Some(std::iter::once(first).chain(resumed).collect())
}

fn pass(switch: &Switch, request: &Request<'_>, key: &Key) -> Option<(Pass, trace::Outcome)> {
    let mut sink = steps::Collector::new(request.ports);
    let traced = Traced { bridge: request.bridge, key, actions: None, shadow: request.shadow };
    let out = switch.trace(&traced, &mut sink)?;
    let pass = Pass {
        heading: None,
        flow: flow::describe(key, &out.tlv, request.ports),
        key: switch.datapath_key(request.bridge, key).map(Box::new),
        steps: sink.steps,
        left_out: sink.left_out,
        megaflow: flow::describe_megaflow(key, &out.mask, out.looked_at_vlan, &out.tlv, request.ports),
        actions: out.actions,
        dropped: out.dropped,
        error: out.error,
        slow: out.slow,
    };
    Some((pass, trace::Outcome { forks: sink.forks, holds: out.holds }))
}
