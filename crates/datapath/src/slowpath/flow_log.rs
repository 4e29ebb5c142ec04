//! Log lines for changes of flows, at debug level, as OVS's userspace datapath writes them.

use packet::Key;
use packet::flow::Mask;
use packet::flow::field::FIELDS;

use crate::action::Action;
use crate::text::{Context, format_actions, format_key, format_ufid};
use crate::upcall::FlowId;

/// OVS's module for these lines.
const TARGET: &str = "dpif_netdev";

/// Whether these lines are logged.
pub(crate) fn is_on() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::DEBUG)
}

/// Logs that a packet with this key has missed.
pub(crate) fn missed(key: &Key) {
    tracing::debug!(target: TARGET, lines = whole(key), "ovs-netdev: miss upcall:");
}

/// The text of every field that a packet with this key has.
fn whole(key: &Key) -> String {
    let mut mask = Mask::wildcard();
    FIELDS.iter().for_each(|info| mask.set_exact(info.field));
    let mut out = String::new();
    format_key(&mut out, key, &mask, &Context::default());
    // OVS prints flags without a mask as a number.
    out.replace("ct_state(-new-est-rel-rpl-inv-trk-snat-dnat)", "ct_state(0)")
}

/// Logs that a flow was added for a packet with this key.
pub(crate) fn flow_added(id: FlowId, key: &Key, mask: &Mask, actions: &[Action]) {
    tracing::debug!(target: TARGET, "flow_add: {}", line(id, key, mask, &[("actions", actions)]));
}

/// Logs that a flow's actions have changed.
pub(crate) fn flow_modified(id: FlowId, (key, mask): (&Key, &Mask), old: &[Action], new: &[Action]) {
    let lists = [("old_actions", old), ("actions", new)];
    tracing::debug!(target: TARGET, "flow_mod: {}", line(id, key, mask, &lists));
}

fn line(id: FlowId, key: &Key, mask: &Mask, lists: &[(&str, &[Action])]) -> String {
    let style = Context::default();
    let mut out = String::new();
    format_ufid(&mut out, id);
    out.push_str(" mega_");
    format_ufid(&mut out, id);
    out.push(' ');
    format_key(&mut out, key, mask, &style);
    for (name, actions) in lists {
        out.extend([", ", name, ":"]);
        format_actions(&mut out, actions, key, &style);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse_flow;
    use packet::flow::text::NoNames;

    #[test]
    fn all_of_a_packet_is_shown() {
        let text = "skb_priority(0),skb_mark(0),ct_state(0),ct_zone(0),ct_mark(0),ct_label(0),recirc_id(0),dp_hash(0),\
                    in_port(1),packet_type(ns=0,id=0),eth(src=50:54:00:00:00:01,dst=50:54:00:00:02:00),\
                    eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6,tos=0,ttl=64,frag=no),tcp(src=8,dst=9),\
                    tcp_flags(ack)";
        let (key, _) = crate::text::parse_key(text, &NoNames).unwrap();
        assert_eq!(whole(&key), text);
    }

    #[test]
    fn lines_are_those_of_ovs() {
        let flow = parse_flow("recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x1234), actions:2", &NoNames);
        let flow = flow.unwrap();
        let ufid = "ufid:00000000-0000-0000-0000-000000000007";
        let lists: [(&str, &[Action]); 2] = [("old_actions", &[]), ("actions", &flow.actions)];
        assert_eq!(
            line(FlowId(7), &flow.key, &flow.mask, &lists),
            format!(
                "{ufid} mega_{ufid} recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth_type(0x1234), old_actions:drop, actions:2"
            )
        );
    }
}
