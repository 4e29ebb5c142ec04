//! `weir/flows` and the commands that show or change flows.

use std::collections::BTreeSet;

use datapath::FlowDump;
use datapath::text::Context as Style;
use ofproto::Bridge;
use openflow::text::flow::{format_bridge_flow, format_flow_stats};
use openflow::{CookieFilter, FlowStats, FlowStatsRequest, GroupId, Match, OfPort, TableId};
use packet::flow::text::{NoNames, PortNames};

use super::Context;
use super::reports::json;
use crate::flow_text::Names;
use crate::report::{BridgeFlows, DatapathFlow, Flows, OpenFlowFlow};
use crate::unixctl::command::Outcome;

/// `weir/flows`.
pub fn report(context: &Context, args: &[String]) -> Outcome {
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
    json(&Flows {
        bridges: bridges.iter().map(|bridge| bridge_flows(bridge, filter.table)).collect::<Result<_, _>>()?,
        datapath: if filter.openflow_only { Vec::new() } else { datapath_flows(context) },
    })
}

#[derive(Default)]
struct Filter {
    bridge: Option<String>,
    table: Option<TableId>,
    openflow_only: bool,
    datapath_only: bool,
}

fn bridge_flows(bridge: &Bridge, table: Option<TableId>) -> Result<BridgeFlows, String> {
    let names = Names::of_bridge(bridge);
    let flow = |flow: FlowStats| {
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
    let flows = openflow_flows(bridge, table)?.into_iter().map(flow).collect();
    Ok(BridgeFlows { name: bridge.name().to_owned(), flows })
}

/// The flows of one table or all, by table, the highest priority first.
fn openflow_flows(bridge: &Bridge, table: Option<TableId>) -> Result<Vec<FlowStats>, String> {
    let request = FlowStatsRequest {
        matching: Match::any(),
        table: table.unwrap_or(TableId::ALL),
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        cookie: CookieFilter::default(),
    };
    let mut flows = bridge.flow_stats(&request).map_err(|e| e.to_string())?;
    flows.sort_by_key(|flow| (flow.table, std::cmp::Reverse(flow.priority)));
    Ok(flows)
}

fn datapath_flows(context: &Context) -> Vec<DatapathFlow> {
    let now = context.engine.datapath.now();
    let mut flows: Vec<FlowDump> = context.engine.datapath.flows().collect();
    flows.sort_by_key(|flow| flow.id);
    let style = Style::default();
    flows
        .iter()
        .map(|flow| {
            let mut text = String::new();
            datapath::text::format_flow(&mut text, flow, now, &style);
            DatapathFlow { packets: flow.stats.packets, bytes: flow.stats.bytes, text }
        })
        .collect()
}

/// `bridge/dump-flows`.
pub fn bridge_dump(context: &Context, args: &[String]) -> Outcome {
    let (options, names): (Vec<_>, Vec<_>) = args.iter().partition(|arg| arg.starts_with("--"));
    if let Some(other) = options.iter().find(|o| o.as_str() != "--offload-stats") {
        return Err(format!("{other}: not an option of bridge/dump-flows"));
    }
    let [name] = names[..] else { return Err("bridge/dump-flows takes the name of one bridge".into()) };
    let bridge = context.bridge(name).map_err(|_| "Unknown bridge")?;
    let mut text = String::new();
    for flow in openflow_flows(&bridge, None)? {
        format_bridge_flow(&mut text, &flow, &NoNames);
        text.push('\n');
    }
    Ok(text)
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

    /// A line for each of the datapath's flows that are wanted.
    pub(super) fn dump(&self, context: &Context, layer: Option<&str>, wanted: impl Fn(&FlowDump) -> bool) -> String {
        self.format(context, layer, context.engine.datapath.flows().filter(wanted))
    }

    /// A line for each flow, the oldest first. `layer` says what kind of datapath it is in.
    pub(super) fn format(
        &self,
        context: &Context,
        layer: Option<&str>,
        flows: impl Iterator<Item = FlowDump>,
    ) -> String {
        let names = Names::of_datapath(&context.engine.datapath);
        // Who asks for more gets names, too, as in OVS.
        let ports: &dyn PortNames = if self.names.unwrap_or(self.verbose) { &names } else { &NoNames };
        let style = Style { verbose: self.verbose, ports };
        let now = context.engine.datapath.now();
        let line = |flow: FlowDump| {
            let mut text = String::new();
            datapath::text::format_flow(&mut text, &flow, now, &style);
            if let (Some(layer), Some(at)) = (layer, text.find(", actions:")) {
                text.insert_str(at, &format!(", dp:{layer}"));
            }
            text.push('\n');
            ((flow.created, flow.id), text)
        };
        let mut lines: Vec<_> = flows.map(line).collect();
        lines.sort_by_key(|(age, _)| *age);
        lines.into_iter().map(|(_, text)| text).collect()
    }
}

/// `dpif/dump-flows`.
pub fn dpif_dump(context: &Context, args: &[String]) -> Outcome {
    let options = DumpOptions::parse(args)?;
    let [name] = options.rest[..] else { return Err("dpif/dump-flows takes the name of one bridge".into()) };
    let bridge = context.bridge(name).map_err(|_| "no such bridge")?;
    let ports: BTreeSet<_> = bridge.ports().iter().filter_map(|port| port.dp_port).collect();
    Ok(options.dump(context, None, |flow| ports.contains(&datapath::upcall::in_port(&flow.key))))
}
