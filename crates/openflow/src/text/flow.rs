//! Whole flows: what `ovs-ofctl add-flow` reads and what `ovs-ofctl dump-flows` prints.

use std::time::Duration;

use packet::flow::text::{Item, Items, PortNames, port};
use packet::put;

use super::actions::{format_instructions, parse_instructions};
use super::matching::{Parser, format_match};
use super::{Error, integer, integer16};
use crate::flow_mod::{FlowMod, FlowModCommand};
use crate::instruction::Instructions;
use crate::matching::Match;
use crate::stats::{FlowStats, FlowStatsRequest};
use crate::types::{Cookie, CookieFilter, FlowModFlags, GroupId, OfPort, TableId};

/// The names of the commands, as a line of a flow file may begin with one.
pub const COMMANDS: &[(&str, FlowModCommand)] = &[
    ("add", FlowModCommand::Add),
    ("delete", FlowModCommand::Delete),
    ("delete_strict", FlowModCommand::DeleteStrict),
    ("modify", FlowModCommand::Modify),
    ("modify_strict", FlowModCommand::ModifyStrict),
];

/// The names of the flags.
pub const FLAGS: &[(&str, FlowModFlags)] = &[
    ("send_flow_rem", FlowModFlags::SEND_FLOW_REM),
    ("check_overlap", FlowModFlags::CHECK_OVERLAP),
    ("reset_counts", FlowModFlags::RESET_COUNTS),
    ("no_packet_counts", FlowModFlags::NO_PKT_COUNTS),
    ("no_byte_counts", FlowModFlags::NO_BYT_COUNTS),
];

/// Parses the flow of `add-flow`, `mod-flows` or `del-flows`, with `command` saying which.
pub fn parse_flow_mod(command: FlowModCommand, text: &str, ports: &dyn PortNames) -> Result<FlowMod, Error> {
    let mut flow = FlowMod::new(command, Match::any(), Instructions::default());
    let mut matching = Parser::default();
    let mut has_actions = false;
    let mut items = Items::new(text);
    while let Some(item) = items.next() {
        let item = item?;
        if takes_actions(command) && matches!(item.key, "actions" | "action") && item.delimiter == Some('=') {
            // The rest of the text, commas and all.
            let end = text.len() - items.rest().len();
            let value = end - item.text.len() + item.key.len() + 1;
            flow.instructions = parse_instructions(&text[value..], ports)?;
            has_actions = true;
            break;
        }
        if !attribute(&mut flow, &item, ports)? && !matching.item(&item, ports)? {
            return Err(unknown(&item));
        }
    }
    if takes_actions(command) && !has_actions {
        return Err(Error::NoActions);
    }
    flow.matching = matching.finish()?;
    Ok(flow)
}

/// Parses a line of a flow file, which may begin with `add`, `modify`, `modify_strict`, `delete` or
/// `delete_strict`; without one, the flow is to be added.
pub fn parse_flow_mod_line(text: &str, ports: &dyn PortNames) -> Result<FlowMod, Error> {
    let text = text.trim_start();
    let end = text.find([',', ' ', '\t', '\r', '\n']).unwrap_or(text.len());
    match COMMANDS.iter().find(|(name, _)| *name == &text[..end]) {
        Some(&(_, command)) => parse_flow_mod(command, &text[end..], ports),
        None => parse_flow_mod(FlowModCommand::Add, text, ports),
    }
}

/// Parses the filter of `dump-flows` and `dump-aggregate`: a match, `table`, `cookie`, `out_port`,
/// `out_group`.
pub fn parse_flow_stats_request(text: &str, ports: &dyn PortNames) -> Result<FlowStatsRequest, Error> {
    let flow = parse_flow_mod(FlowModCommand::Delete, text, ports)?;
    Ok(FlowStatsRequest {
        table: flow.table.unwrap_or(TableId::ALL),
        out_port: flow.out_port,
        out_group: flow.out_group,
        cookie: flow.cookie,
        matching: flow.matching,
    })
}

fn takes_actions(command: FlowModCommand) -> bool {
    !matches!(command, FlowModCommand::Delete | FlowModCommand::DeleteStrict)
}

fn unknown(item: &Item<'_>) -> Error {
    let expected = "a field of ovs-fields(7), a protocol as ip, tcp or arp, or an attribute as table or priority that \
                    fits the command";
    Error::Keyword { name: item.key.into(), expected }
}

/// Takes an item that is not of the match; false if it is none.
fn attribute(flow: &mut FlowMod, item: &Item<'_>, ports: &dyn PortNames) -> Result<bool, Error> {
    let (name, value) = (item.key, item.value);
    let changes = takes_actions(flow.command);
    if let Some(&(_, flag)) = FLAGS.iter().find(|(flag, _)| changes && *flag == name) {
        flow.flags |= flag;
        return Ok(true);
    }
    match name {
        "table" => {
            flow.table = match integer(name, value, 255)? as u8 {
                255 => None,
                table => Some(TableId(table)),
            }
        }
        "cookie" => cookie(flow, value)?,
        "priority" if flow.command != FlowModCommand::Delete => flow.priority = integer16(name, value)?,
        "idle_timeout" if changes => flow.idle_timeout = integer16(name, value)?,
        "hard_timeout" if changes => flow.hard_timeout = integer16(name, value)?,
        "importance" if flow.command == FlowModCommand::Add => flow.importance = integer16(name, value)?,
        "out_port" if !changes => flow.out_port = OfPort(port::parse(name, value, ports)?),
        "out_group" if !changes => {
            flow.out_group = match value {
                _ if value.eq_ignore_ascii_case("any") => GroupId::ANY,
                _ if value.eq_ignore_ascii_case("all") => GroupId::ALL,
                _ => GroupId(integer(name, value, GroupId::MAX.0.into())? as u32),
            }
        }
        // What dump-flows prints can be fed back.
        "duration" | "n_packets" | "n_bytes" | "idle_age" | "hard_age" => {}
        "no_readonly_table" | "allow_hidden_fields" => {}
        _ => return Ok(false),
    }
    Ok(true)
}

/// `cookie=V` gives a flow its cookie, `cookie=V/M` selects flows.
fn cookie(flow: &mut FlowMod, text: &str) -> Result<(), Error> {
    let number = |text| integer("cookie", text, u64::MAX);
    match text.split_once('/') {
        Some(_) if flow.command == FlowModCommand::Add => {
            return Err(Error::argument("cookie", "a flow that is added takes a cookie without a mask"));
        }
        Some((value, mask)) => {
            let (value, mask) = (number(value)?, number(mask)?);
            flow.cookie = CookieFilter { value: value & mask, mask };
        }
        None if takes_actions(flow.command) => flow.new_cookie = Some(Cookie(number(text)?)),
        None => {
            let problem = format!("to select flows by their cookie, give a mask: cookie={text}/-1");
            return Err(Error::argument("cookie", problem));
        }
    }
    Ok(())
}

/// Formats a flow as a line of `ovs-ofctl dump-flows`, without the line break:
/// ` cookie=0x0, duration=1.234s, table=0, n_packets=0, n_bytes=0, priority=100,in_port=1 actions=output:2`.
pub fn format_flow_stats(out: &mut String, flow: &FlowStats, ports: &dyn PortNames) {
    put!(out, " cookie={:#x}, duration=", flow.cookie.0);
    format_duration(out, flow.duration);
    put!(out, ", table={}, n_packets=", flow.table);
    count(out, flow.packet_count);
    out.push_str(", n_bytes=");
    count(out, flow.byte_count);
    out.push_str(", ");
    timeouts(out, flow);
    if let Some(age) = flow.idle_age {
        put!(out, "idle_age={age}, ");
    }
    if let Some(age) = flow.hard_age.filter(|&age| u64::from(age) != flow.duration.as_secs()) {
        put!(out, "hard_age={age}, ");
    }
    match_and_actions(out, flow, ports);
}

/// Formats a flow without its counters, as `ovs-ofctl --no-stats dump-flows` does:
/// ` priority=100,in_port=1 actions=output:2`.
pub fn format_flow_entry(out: &mut String, flow: &FlowStats, ports: &dyn PortNames) {
    out.push(' ');
    if flow.cookie != Cookie(0) {
        put!(out, "cookie={:#x}, ", flow.cookie.0);
    }
    if flow.table != TableId(0) {
        put!(out, "table={}, ", flow.table);
    }
    timeouts(out, flow);
    match_and_actions(out, flow, ports);
}

/// Formats a flow as a line of `ovs-appctl bridge/dump-flows`, without the line break.
pub fn format_bridge_flow(out: &mut String, flow: &FlowStats, ports: &dyn PortNames) {
    counters(out, flow);
    format_match(out, &flow.matching, flow.priority, ports);
    out.push_str(",actions=");
    format_instructions(out, &flow.instructions, ports);
}

/// A flow of the switch's own, whose priority is above all that OpenFlow knows, in the same form.
pub fn format_hidden_flow(out: &mut String, priority: u32, flow: &FlowStats, ports: &dyn PortNames) {
    counters(out, flow);
    put!(out, "priority={priority}");
    if !flow.matching.is_any() {
        out.push(',');
    }
    format_match(out, &flow.matching, FlowMod::DEFAULT_PRIORITY, ports);
    out.push_str(",actions=");
    format_instructions(out, &flow.instructions, ports);
}

fn counters(out: &mut String, flow: &FlowStats) {
    if flow.table != TableId(0) {
        put!(out, "table_id={}, ", flow.table);
    }
    put!(out, "duration={}s, n_packets={}, ", flow.duration.as_secs(), flow.packet_count);
    put!(out, "n_bytes={}, ", flow.byte_count);
}

fn timeouts(out: &mut String, flow: &FlowStats) {
    if flow.idle_timeout != 0 {
        put!(out, "idle_timeout={}, ", flow.idle_timeout);
    }
    if flow.hard_timeout != 0 {
        put!(out, "hard_timeout={}, ", flow.hard_timeout);
    }
    for (name, _) in FLAGS.iter().filter(|(_, flag)| flow.flags.contains(*flag)) {
        put!(out, "{name} ");
    }
    if flow.importance != 0 {
        put!(out, "importance={}, ", flow.importance);
    }
}

fn match_and_actions(out: &mut String, flow: &FlowStats, ports: &dyn PortNames) {
    format_match(out, &flow.matching, flow.priority, ports);
    if !out.ends_with(' ') {
        out.push(' ');
    }
    out.push_str("actions=");
    format_instructions(out, &flow.instructions, ports);
}

/// A counter, of which all ones means that it is not known.
fn count(out: &mut String, value: u64) {
    if value == u64::MAX { out.push('?') } else { put!(out, "{value}") }
}

/// Seconds, with no more decimals than needed but three where there are any.
pub fn format_duration(out: &mut String, duration: Duration) {
    put!(out, "{}", duration.as_secs());
    let nanos = duration.subsec_nanos();
    if nanos != 0 && nanos.is_multiple_of(1_000_000) {
        put!(out, ".{:03}", nanos / 1_000_000);
    } else if nanos != 0 {
        put!(out, ".{}", format!("{nanos:09}").trim_end_matches('0'));
    }
    out.push('s');
}
