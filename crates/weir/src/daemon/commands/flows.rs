//! `weir/flows` and the commands that show flows. They walk the tables while the client reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use datapath::text::Context as Style;
use datapath::{Datapath, FlowDump};
use ofproto::Bridge;
use ofproto::bridge::FlowWalk;
use openflow::text::flow::{format_bridge_flow, format_flow_stats, format_hidden_flow};
use openflow::{FlowStats, TableId};
use packet::Time;
use packet::flow::text::{NoNames, PortNames};
use serde::Serialize;

use super::Context;
use crate::flow_text::Names;
use crate::report::{DatapathFlow, OpenFlowFlow};
use crate::unixctl::Pieces;

/// Most OpenFlow flows that are shown at a time.
const PIECE: usize = 64;

/// `weir/flows`: what [`Flows`](crate::report::Flows) is in JSON.
pub fn report(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let mut filter = Filter::default();
    for arg in args {
        match arg.split_once('=') {
            Some(("bridge", name)) => filter.bridge = Some(name.to_owned()),
            Some(("table", number)) => {
                let number =
                    number.parse().map_err(|_| format!("table={number}: a table is a number from 0 to 254"))?;
                filter.table = Some(TableId(number));
            }
            None if arg == "openflow-only" => filter.openflow_only = true,
            None if arg == "datapath-only" => filter.datapath_only = true,
            _ => return Err(format!("{arg}: not an argument of weir/flows; \"help weir/flows\" lists them")),
        }
    }
    let bridges = if filter.datapath_only { Vec::new() } else { context.bridges(filter.bridge.as_ref())? };
    let mut parts = vec![literal("{\"bridges\":[")];
    for (i, bridge) in bridges.iter().enumerate() {
        let name = serde_json::to_string(bridge.name()).map_err(|e| e.to_string())?;
        parts.push(literal(format!("{}{{\"name\":{name},\"flows\":[", if i > 0 { "," } else { "" })));
        parts.push(bridge_flows(bridge, filter.table));
        parts.push(literal("]}"));
    }
    parts.push(literal("],\"datapath\":["));
    if !filter.openflow_only {
        parts.push(datapath_flows(context));
    }
    parts.push(literal("]}"));
    Ok(in_turn(parts))
}

#[derive(Default)]
struct Filter {
    bridge: Option<String>,
    table: Option<TableId>,
    openflow_only: bool,
    datapath_only: bool,
}

fn bridge_flows(bridge: &Bridge, table: Option<TableId>) -> Pieces {
    let names = Names::of_bridge(bridge);
    let show = move |flow: FlowStats| {
        let mut text = String::new();
        format_flow_stats(&mut text, &flow, &names);
        OpenFlowFlow {
            table: flow.table.0,
            priority: flow.priority,
            cookie: flow.cookie.0,
            duration_s: flow.duration.as_secs_f64(),
            packets: flow.packet_count,
            bytes: flow.byte_count,
            text: text.trim_start().to_owned(),
        }
    };
    let mut walk = openflow_flows(bridge, table);
    list(move || walk.next_flows(PIECE), show)
}

fn datapath_flows(context: &Context) -> Pieces {
    let mut walk = DatapathWalk::new(&context.engine.datapath);
    let datapath = context.engine.datapath.clone();
    let show = move |flow: FlowDump| {
        let mut text = String::new();
        datapath::text::format_flow(&mut text, &flow, datapath.now(), &Style::default());
        DatapathFlow { packets: flow.stats.packets, bytes: flow.stats.bytes, text }
    };
    list(move || walk.next_flows(), show)
}

/// The items of a JSON array, without its brackets.
pub fn list<T, J: Serialize>(
    mut next: impl FnMut() -> Option<Vec<T>> + 'static,
    show: impl Fn(T) -> J + 'static,
) -> Pieces {
    let mut comma = "";
    Box::new(move |text| {
        let Some(items) = next() else { return false };
        for item in items {
            // Strings and numbers always have a JSON form.
            if let Ok(json) = serde_json::to_string(&show(item)) {
                text.push_str(comma);
                text.push_str(&json);
                comma = ",";
            }
        }
        true
    })
}

/// A text that is there already.
pub fn literal(part: impl Into<String>) -> Pieces {
    let part = part.into();
    Box::new(move |text| {
        text.push_str(&part);
        false
    })
}

/// Texts one after the other.
pub fn in_turn(parts: Vec<Pieces>) -> Pieces {
    let mut rest = parts.into_iter();
    let mut part = rest.next();
    Box::new(move |text| {
        if !part.as_mut().is_some_and(|part| part(text)) {
            part = rest.next();
        }
        part.is_some()
    })
}

/// The flows of one table or all, by table, the highest priority first.
fn openflow_flows(bridge: &Bridge, table: Option<TableId>) -> FlowWalk {
    bridge.walk_table(table.unwrap_or(TableId::ALL))
}

/// `bridge/dump-flows`.
pub fn bridge_dump(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let (options, names): (Vec<_>, Vec<_>) = args.iter().partition(|arg| arg.starts_with("--"));
    if let Some(other) = options.iter().find(|o| o.as_str() != "--offload-stats") {
        return Err(format!("{other}: not an option of bridge/dump-flows"));
    }
    let [name] = names[..] else { return Err("bridge/dump-flows takes the name of one bridge".into()) };
    let bridge = context.bridge(name).map_err(|_| "Unknown bridge")?;
    let mut hidden = String::new();
    for (priority, flow) in bridge.hidden_flows() {
        format_hidden_flow(&mut hidden, priority, &flow, &NoNames);
        hidden.push('\n');
    }
    let mut walk = openflow_flows(&bridge, None);
    let mut last: Option<String> = None;
    let of_bonds: Pieces = Box::new(move |text| {
        let Some((name, flows)) = bridge.bond_flows_after(last.as_deref()) else { return false };
        for (priority, flow) in flows {
            format_hidden_flow(text, priority, &flow, &NoNames);
            text.push('\n');
        }
        last = Some(name);
        true
    });
    let shown: Pieces = Box::new(move |text| {
        let Some(flows) = walk.next_flows(PIECE) else { return false };
        for flow in flows {
            format_bridge_flow(text, &flow, &NoNames);
            text.push('\n');
        }
        true
    });
    Ok(in_turn(vec![literal(hidden), of_bonds, shown]))
}

/// A walk over the datapath's flows. A flow that stays from its start to its end is met exactly once, and one that is
/// installed after its start is not.
struct DatapathWalk {
    datapath: Arc<Datapath>,
    /// Where to go on; `None` at the end.
    next: Option<usize>,
    began: Time,
}

impl DatapathWalk {
    fn new(datapath: &Arc<Datapath>) -> DatapathWalk {
        DatapathWalk { datapath: datapath.clone(), next: Some(0), began: datapath.now() }
    }

    /// Some of the next flows, the oldest first, maybe none. `None` at the end.
    fn next_flows(&mut self) -> Option<Vec<FlowDump>> {
        let (mut flows, next) = self.datapath.flows_from(self.next?);
        self.next = next;
        flows.retain(|flow| flow.created <= self.began);
        flows.sort_by_key(|flow| (flow.created, flow.id));
        Some(flows)
    }
}

/// What `-m`, `--names` and the other arguments of a dump of datapath flows say.
pub(super) struct DumpOptions<'a> {
    /// Wildcarded fields too, and identities.
    pub verbose: bool,
    names: Option<bool>,
    /// The arguments that are no options.
    pub rest: Vec<&'a String>,
}

impl DumpOptions<'_> {
    pub(super) fn parse(args: &[String]) -> Result<DumpOptions<'_>, String> {
        let mut options = DumpOptions { verbose: false, names: None, rest: Vec::new() };
        for arg in args {
            match arg.as_str() {
                "-m" | "--more" => options.verbose = true,
                "--names" => options.names = Some(true),
                "--no-names" => options.names = Some(false),
                option if option.starts_with('-') => return Err(format!("{option}: unknown option")),
                _ => options.rest.push(arg),
            }
        }
        Ok(options)
    }

    /// How flows are shown. `layer` says what kind of datapath they are in.
    pub(super) fn format(&self, datapath: &Arc<Datapath>, layer: Option<&'static str>) -> FlowFormat {
        let datapath = datapath.clone();
        // Who asks for more gets names, too, as in OVS.
        let names = self.names.unwrap_or(self.verbose).then(|| Names::of_datapath(&datapath));
        FlowFormat { datapath, verbose: self.verbose, names, layer }
    }
}

/// How datapath flows are shown.
pub(super) struct FlowFormat {
    datapath: Arc<Datapath>,
    verbose: bool,
    names: Option<Names>,
    layer: Option<&'static str>,
}

impl FlowFormat {
    /// The line of a flow.
    pub(super) fn line(&self, flow: &FlowDump) -> String {
        let ports: &dyn PortNames = self.names.as_ref().map_or(&NoNames, |names| names);
        let style = Style { verbose: self.verbose, ports };
        let mut text = String::new();
        datapath::text::format_flow(&mut text, flow, self.datapath.now(), &style);
        match self.layer {
            Some(layer) => {
                if let Some(at) = text.find(", actions:") {
                    text.insert_str(at, &format!(", dp:{layer}"));
                }
            }
            // Without one, no comma follows the identity, as in OVS.
            None => {
                if let Some(at) = text.find(", ").filter(|_| self.verbose) {
                    text.remove(at);
                }
            }
        }
        text.push('\n');
        text
    }

    /// A line for each of the datapath's flows that are wanted, as `wanted` leaves them, after a `heading` if there is one.
    pub(super) fn dump(self, heading: &'static str, wanted: impl Fn(&mut FlowDump) -> bool + 'static) -> Pieces {
        let (mut walk, mut heading) = (DatapathWalk::new(&self.datapath), heading);
        Box::new(move |text| {
            let Some(mut flows) = walk.next_flows() else { return false };
            flows.retain_mut(|flow| wanted(flow));
            for flow in &flows {
                text.push_str(std::mem::take(&mut heading));
                text.push_str(&self.line(flow));
            }
            true
        })
    }
}

/// `dpif/dump-flows`.
pub fn dpif_dump(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let options = DumpOptions::parse(args)?;
    let [name] = options.rest[..] else { return Err("dpif/dump-flows takes the name of one bridge".into()) };
    let bridge = context.bridge(name).map_err(|_| "no such bridge")?;
    let ports: BTreeSet<_> = bridge.ports().iter().filter_map(|port| port.dp_port).collect();
    let wanted = move |flow: &mut FlowDump| ports.contains(&datapath::upcall::in_port(&flow.key));
    Ok(options.format(&context.engine.datapath, None).dump("", wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(mut pieces: Pieces) -> String {
        let mut text = String::new();
        while pieces(&mut text) {}
        text
    }

    #[test]
    fn a_list_in_pieces_is_json() {
        for chunks in [vec![], vec![vec![]], vec![vec![1, 2], vec![], vec![3]]] {
            let all = chunks.concat();
            let mut chunks = chunks.into_iter();
            let items = list(move || chunks.next(), |n: u8| n);
            let text = whole(in_turn(vec![literal("["), items, literal("]")]));
            assert_eq!(serde_json::from_str::<Vec<u8>>(&text).unwrap(), all, "{text}");
        }
    }
}
