//! The text form of datapath flows: that of OVS's `dpctl/dump-flows` (ovs-dpctl(8)), in both directions.
//!
//! [`section`] declares which headers have which fields, [`key`] formats and parses keys with their
//! masks, [`action`] does so with actions, `ct` with the arguments of `ct`, `options` with options of Geneve.

pub mod action;
mod argument;
mod ct;
pub mod key;
mod nsh;
mod options;
mod sample;
pub mod section;
#[cfg(test)]
mod tests;
pub mod tunnel;

use packet::flow::text::{NoNames, PortNames};
use packet::flow::{Key, Mask};
use packet::{Time, put};

use crate::action::Action;
use crate::upcall::{FlowDump, FlowId, FlowStats, Given};

pub use action::{format_actions, parse_actions};
pub use key::{format_key, parse_given, parse_key};

/// What formatting needs beside the flow.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Names of datapath ports; numbers where it knows none.
    pub ports: &'a dyn PortNames,
    /// Show wildcarded fields too, and the flow's identity, as `-m` does.
    pub verbose: bool,
}

impl Default for Context<'_> {
    fn default() -> Self {
        Context { ports: &NoNames, verbose: false }
    }
}

/// What is wrong with a text, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is wrong.
    #[error(transparent)]
    Value(#[from] packet::flow::text::Error),
    /// No such section of a key.
    #[error("unknown section {name:?}; sections are {valid}")]
    Section {
        /// What was given.
        name: String,
        /// The valid names.
        valid: String,
    },
    /// A section has no such argument.
    #[error("{section}: unknown argument {name:?}; arguments are {valid}")]
    Argument {
        /// Section.
        section: String,
        /// What was given.
        name: String,
        /// The valid names.
        valid: String,
    },
    /// No such action.
    #[error("unknown action {name:?}; actions are a port and {valid}")]
    Action {
        /// What was given.
        name: String,
        /// The valid names.
        valid: String,
    },
    /// Too many levels of `clone` or `encap`.
    #[error("{text:?}: nested more than {max} levels deep")]
    TooDeep {
        /// Where.
        text: String,
        /// How many are allowed.
        max: usize,
    },
    /// A flow without actions.
    #[error("{text:?}: a flow needs actions, as in \"in_port(1), actions:2\"")]
    NoActions {
        /// What was given.
        text: String,
    },
}

/// Formats a flow as a line of `dpctl/dump-flows`, without the line break.
pub fn format_flow(out: &mut String, flow: &FlowDump, now: Time, context: &Context<'_>) {
    if context.verbose {
        format_ufid(out, flow.id);
        out.push_str(", ");
    }
    let given = flow.tag.downcast_ref::<Given>();
    let (key, mask) = given.map_or((&*flow.key, &*flow.mask), |Given(key, mask)| (key, mask));
    format_key(out, key, mask, context);
    out.push_str(", ");
    format_stats(out, &flow.stats, now);
    out.push_str(", actions:");
    format_actions(out, &flow.actions, &flow.key, context);
}

/// Formats a flow's identity as OVS does: `ufid:00000000-0000-0000-0000-000000001234`.
pub fn format_ufid(out: &mut String, id: FlowId) {
    put!(out, "ufid:00000000-0000-0000-{:04x}-{:012x}", id.0 >> 48, id.0 & 0xffff_ffff_ffff);
}

/// Reads what [`format_ufid`] writes.
pub fn parse_ufid(text: &str) -> Option<FlowId> {
    let groups: Vec<&str> = text.strip_prefix("ufid:")?.split('-').collect();
    let widths = [8, 4, 4, 4, 12];
    let whole = groups.len() == widths.len()
        && groups.iter().zip(widths).all(|(g, width)| g.len() == width && g.bytes().all(|b| b.is_ascii_hexdigit()));
    let number = whole.then(|| u128::from_str_radix(&groups.concat(), 16).ok())??;
    u64::try_from(number).ok().map(FlowId)
}

/// Formats counters: `packets:5, bytes:490, used:1.234s, flags:SP.`.
pub fn format_stats(out: &mut String, stats: &FlowStats, now: Time) {
    put!(out, "packets:{}, bytes:{}, used:", stats.packets, stats.bytes);
    match stats.used {
        Time(0) => out.push_str("never"),
        used => put!(out, "{}.{:03}s", now.since(used).as_secs(), now.since(used).subsec_millis()),
    }
    if stats.tcp_flags != 0 {
        out.push_str(", flags:");
        out.extend(TCP_FLAG_LETTERS.iter().filter(|(flag, _)| stats.tcp_flags & flag != 0).map(|(_, letter)| *letter));
    }
}

/// TCP flags in the order and by the letters of tcpdump(8).
const TCP_FLAG_LETTERS: [(u16, &str); 12] = [
    (0x002, "S"),
    (0x001, "F"),
    (0x008, "P"),
    (0x004, "R"),
    (0x020, "U"),
    (0x010, "."),
    (0x040, "E"),
    (0x080, "C"),
    (0x100, "N"),
    (0x200, "[200]"),
    (0x400, "[400]"),
    (0x800, "[800]"),
];

/// A flow as text gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedFlow {
    /// Values.
    pub key: Key,
    /// What is matched.
    pub mask: Mask,
    /// What is done.
    pub actions: Vec<Action>,
}

/// Parses a line of `dpctl/dump-flows`. Identity and counters are skipped.
pub fn parse_flow(text: &str, ports: &dyn PortNames) -> Result<ParsedFlow, Error> {
    let (head, actions) = text.split_once("actions:").ok_or_else(|| Error::NoActions { text: text.into() })?;
    let (key, mask) = parse_key(head, ports)?;
    Ok(ParsedFlow { key, mask, actions: parse_actions(actions.trim(), ports)? })
}

/// For fuzzing: reads any text as a flow; what is read must come out as text that reads back equal.
pub fn fuzz(text: &str) {
    if let Ok(flow) = parse_flow(text, &NoNames) {
        let mut out = String::new();
        format_actions(&mut out, &flow.actions, &flow.key, &Context::default());
        format_key(&mut out, &flow.key, &flow.mask, &Context { verbose: true, ..Context::default() });
    }
    let _ = parse_actions(text, &NoNames);
    let _ = parse_key(text, &NoNames);
}

#[cfg(test)]
mod lines {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::upcall::FlowId;

    fn dump(line: &str) -> FlowDump {
        let flow = parse_flow(line, &NoNames).unwrap();
        FlowDump {
            id: FlowId(0x1234),
            key: Box::new(flow.key),
            mask: Arc::new(flow.mask),
            actions: flow.actions.into(),
            stats: FlowStats { packets: 5, bytes: 490, used: Time(1_000_000_000), tcp_flags: 0x1a },
            created: Time(0),
            tag: Arc::new(()),
        }
    }

    #[test]
    fn a_dump_line_as_ovs_prints_it() {
        let line = "recirc_id(0),in_port(1),packet_type(ns=0,id=0),eth(src=00:00:00:00:00:01,dst=00:00:00:00:00:02),\
                    eth_type(0x0800),ipv4(src=10.0.0.0/255.0.0.0,proto=6,frag=no),tcp(dst=80), packets:5, bytes:490, \
                    used:1.234s, flags:SP., actions:2";
        let now = Time(1_000_000_000) + Duration::from_millis(1234);
        let mut out = String::new();
        format_flow(&mut out, &dump(line), now, &Context::default());
        assert_eq!(out, line);

        let mut never = dump(line);
        never.stats = FlowStats::default();
        never.actions = Arc::new([]);
        out.clear();
        format_flow(&mut out, &never, now, &Context { verbose: true, ..Context::default() });
        assert!(
            out.starts_with("ufid:00000000-0000-0000-0000-000000001234, skb_priority(0/0),skb_mark(0/0),"),
            "{out}"
        );
        assert!(out.ends_with(", packets:0, bytes:0, used:never, actions:drop"), "{out}");
    }

    #[test]
    fn identities_read_back() {
        let mut text = String::new();
        format_ufid(&mut text, FlowId(0x0123_4567_89ab_cdef));
        assert_eq!(text, "ufid:00000000-0000-0000-0123-456789abcdef");
        assert_eq!(parse_ufid(&text), Some(FlowId(0x0123_4567_89ab_cdef)));
        for bad in
            ["", "ufid:", "ufid:1", "00000000-0000-0000-0000-000000000001", "ufid:00000000-0000-0000-0000-00000000000g"]
        {
            assert_eq!(parse_ufid(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_flow_without_actions_is_refused() {
        assert_eq!(
            parse_flow("in_port(1)", &NoNames).unwrap_err().to_string(),
            "\"in_port(1)\": a flow needs actions, as in \"in_port(1), actions:2\""
        );
    }
}
