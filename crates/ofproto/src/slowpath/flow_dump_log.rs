//! Log lines for the flows that rounds find and change, at debug level, as OVS's revalidators write them.

use datapath::text::{Context, format_actions, format_flow, format_key, format_stats, format_ufid};
use datapath::{Action, Datapath, FlowDump};
use packet::Time;

use crate::model::forwarding::Forwarding;

/// OVS's module for these lines.
const TARGET: &str = "dpif";

/// So many flows of a round are shown: who looks into a log has few.
const MOST: usize = 1000;

/// Logs the flows of the datapath, if that is wanted; `terse`: by their identifiers alone.
pub(super) fn log(datapath: &Datapath, now: Time, terse: bool) {
    if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        for flow in datapath.flows().take(MOST) {
            tracing::debug!(target: TARGET, "ovs-netdev: flow_dump {}", line(&flow, now, terse));
        }
    }
}

/// Logs that a flow gets other actions.
pub(super) fn modified(forwarding: &Forwarding, flow: &FlowDump, actions: &[Action]) {
    if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) {
        let bridge = forwarding.by_dp_port.get(&datapath::upcall::in_port(&flow.key));
        let bridge = bridge.and_then(|(bridge, _)| forwarding.bridges.get(bridge));
        let kind = bridge.map(|bridge| bridge.config.datapath_type).unwrap_or_default();
        tracing::debug!(target: TARGET, "{}: {}", kind.datapath_name(), modification(flow, actions));
    }
}

fn modification(flow: &FlowDump, actions: &[Action]) -> String {
    let style = Context { verbose: true, ..Context::default() };
    let mut out = "put[modify] ".to_owned();
    format_ufid(&mut out, flow.id);
    out.push(' ');
    format_key(&mut out, &flow.key, &flow.mask, &style);
    out.push_str(", actions:");
    format_actions(&mut out, actions, &flow.key, &style);
    out
}

fn line(flow: &FlowDump, now: Time, terse: bool) -> String {
    let mut out = String::new();
    if terse {
        format_ufid(&mut out, flow.id);
        out.push_str(", ");
        format_stats(&mut out, &flow.stats, now);
        return out;
    }
    format_flow(&mut out, flow, now, &Context { verbose: true, ..Context::default() });
    // Without the identifier, which comes first.
    out.split_once(", ").map(|(_, rest)| rest.to_owned()).unwrap_or(out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datapath::text::parse_flow;
    use datapath::{FlowId, FlowStats};
    use packet::flow::text::NoNames;

    use super::*;

    #[test]
    fn flows_are_shown_whole_or_by_their_identifiers() {
        let text = "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x1234), actions:2";
        let flow = parse_flow(text, &NoNames).unwrap();
        let flow = FlowDump {
            id: FlowId(7),
            created: Time(0),
            key: Box::new(flow.key),
            mask: Arc::new(flow.mask),
            actions: flow.actions.into(),
            stats: FlowStats::default(),
            tag: Arc::new(()),
        };
        let terse = "ufid:00000000-0000-0000-0000-000000000007, packets:0, bytes:0, used:never";
        assert_eq!(line(&flow, Time(0), true), terse);
        let whole = line(&flow, Time(0), false);
        assert!(whole.starts_with("skb_priority(0/0)") && whole.contains("eth_type(0x1234)"), "{whole}");
        assert!(whole.ends_with(", packets:0, bytes:0, used:never, actions:2"), "{whole}");
        let modified = modification(&flow, &[]);
        let start = "put[modify] ufid:00000000-0000-0000-0000-000000000007 skb_priority(0/0),";
        assert!(modified.starts_with(start) && modified.ends_with(",eth_type(0x1234), actions:drop"), "{modified}");
    }
}
