//! Actions and instructions: `set_field:5->reg0,output:2`, `write_metadata:5,goto_table:3`.

mod ct;
mod learn;

use std::net::Ipv4Addr;

use packet::flow::text::{self, Item, Items, PortNames, number, port};
use packet::put;

use super::{Error, MAX_DEPTH, arguments, integer, integer16, integer32, subfield};
use crate::action::Action;
use crate::instruction::{Instructions, WriteMetadata};
use crate::matching::Subfield;
use crate::tun_metadata::{TunField, TunValue};
use crate::types::{EthAddr, GroupId, OfPort, TableId};

/// An action's entry in help and documentation.
#[derive(Debug)]
pub struct ActionInfo {
    /// Name.
    pub name: &'static str,
    /// How it is written.
    pub syntax: &'static str,
    /// What it does.
    pub help: &'static str,
}

macro_rules! actions {
    ($($name:literal $syntax:literal $help:literal;)*) => {
        /// Every action and instruction that text can name (ovs-actions(7)).
        pub const ACTIONS: &[ActionInfo] =
            &[$(ActionInfo { name: $name, syntax: $syntax, help: $help },)*];
    };
}

#[rustfmt::skip]
actions! {
    "output" "[output:]PORT, output:FIELD[], output(port=PORT,max_len=N)" "Send to a port, whole or cut to N bytes.";
    "group" "group:ID" "Send through a group.";
    "controller" "controller[:MAX_LEN], controller(reason=R,max_len=N,id=N,userdata=HEX,pause,meter_id=N)" "Send to the controllers.";
    "enqueue" "enqueue:PORT:QUEUE" "Send to a queue of a port.";
    "bundle" "bundle(FIELDS,BASIS,ALGORITHM,ofport,members:PORT,...)" "Send to one of several ports.";
    "bundle_load" "bundle_load(FIELDS,BASIS,ALGORITHM,ofport,FIELD[],members:PORT,...)" "Choose one of several ports and store its number.";
    "drop" "drop" "Do nothing; must be the only action.";
    "set_field" "set_field:VALUE[/MASK]->FIELD" "Write a field.";
    "load" "load:VALUE->FIELD[BITS]" "Write bits of a field.";
    "move" "move:FIELD[BITS]->FIELD[BITS]" "Copy bits of a field to another.";
    "push" "push:FIELD[BITS]" "Push bits of a field on the stack.";
    "pop" "pop:FIELD[BITS]" "Pop the stack into bits of a field.";
    "mod_vlan_vid" "mod_vlan_vid:ID" "Set the VLAN id, pushing a tag if there is none.";
    "set_vlan_vid" "set_vlan_vid:ID" "Set the VLAN id of a tagged packet.";
    "mod_vlan_pcp" "mod_vlan_pcp:PRIO" "Set the VLAN priority, pushing a tag if there is none.";
    "set_vlan_pcp" "set_vlan_pcp:PRIO" "Set the VLAN priority of a tagged packet.";
    "strip_vlan" "strip_vlan" "Remove the outermost VLAN tag.";
    "pop_vlan" "pop_vlan" "Remove the outermost VLAN tag.";
    "push_vlan" "push_vlan:ETHERTYPE" "Push a VLAN tag.";
    "mod_dl_src" "mod_dl_src:MAC" "Set the Ethernet source.";
    "mod_dl_dst" "mod_dl_dst:MAC" "Set the Ethernet destination.";
    "mod_nw_src" "mod_nw_src:IP" "Set the IPv4 source.";
    "mod_nw_dst" "mod_nw_dst:IP" "Set the IPv4 destination.";
    "mod_nw_tos" "mod_nw_tos:TOS" "Set the DSCP bits of the TOS byte.";
    "mod_nw_ecn" "mod_nw_ecn:ECN" "Set the ECN bits of the TOS byte.";
    "mod_nw_ttl" "mod_nw_ttl:TTL" "Set the TTL or hop limit.";
    "set_nw_ttl" "set_nw_ttl:TTL" "Another name of mod_nw_ttl.";
    "mod_tp_src" "mod_tp_src:PORT" "Set the TCP, UDP or SCTP source port.";
    "mod_tp_dst" "mod_tp_dst:PORT" "Set the TCP, UDP or SCTP destination port.";
    "set_tunnel" "set_tunnel:ID" "Set the tunnel key.";
    "set_tunnel64" "set_tunnel64:ID" "Set a tunnel key of up to 64 bits.";
    "dec_ttl" "dec_ttl, dec_ttl(ID,...)" "Decrement the TTL or hop limit; tell the controllers when it is used up.";
    "set_mpls_label" "set_mpls_label:LABEL" "Set the MPLS label.";
    "set_mpls_tc" "set_mpls_tc:TC" "Set the MPLS traffic class.";
    "set_mpls_ttl" "set_mpls_ttl:TTL" "Set the MPLS TTL.";
    "dec_mpls_ttl" "dec_mpls_ttl" "Decrement the MPLS TTL.";
    "push_mpls" "push_mpls:ETHERTYPE" "Push an MPLS label stack entry.";
    "pop_mpls" "pop_mpls:ETHERTYPE" "Pop an MPLS label stack entry.";
    "dec_nsh_ttl" "dec_nsh_ttl" "Decrement the NSH TTL.";
    "encap" "encap(HEADER), encap(HEADER(PROPERTIES))" "Push a header: ethernet, nsh, mpls or mpls_mc.";
    "decap" "decap(), decap(packet_type(ns=N,type=N))" "Pop the outermost header.";
    "set_queue" "set_queue:N" "Set the queue of later outputs.";
    "pop_queue" "pop_queue" "Undo set_queue.";
    "fin_timeout" "fin_timeout(idle_timeout=S,hard_timeout=S)" "Shorten the flow's timeouts when a FIN or RST is seen.";
    "resubmit" "resubmit:PORT, resubmit([PORT],[TABLE][,ct])" "Look up again, in another table or with another port.";
    "learn" "learn(ARG,...)" "Add a flow made from the packet.";
    "conjunction" "conjunction(ID,CLAUSE/N)" "Be a clause of a conjunctive match.";
    "multipath" "multipath(FIELDS,BASIS,ALGORITHM,N_LINKS,ARG,FIELD[BITS])" "Choose a link by a hash.";
    "note" "note:HEX" "Carry a note.";
    "exit" "exit" "Do no further action.";
    "debug_recirc" "debug_recirc" "Recirculate; for tests.";
    "debug_slow" "debug_slow" "Translate every packet anew; for tests.";
    "sample" "sample(probability=N,collector_set_id=N,obs_domain_id=N,obs_point_id=N[,sampling_port=PORT][,ingress|egress])" "Sample for IPFIX.";
    "ct" "ct([commit][,force][,table=N][,zone=N][,nat(...)][,exec(ACTIONS)][,alg=A])" "Track the connection.";
    "ct_clear" "ct_clear" "Forget what is known of the connection.";
    "nat" "nat, nat(src|dst[=ADDRESSES][:PORTS][,persistent][,hash|random])" "Translate addresses; only within ct.";
    "clone" "clone(ACTIONS)" "Run actions on a copy.";
    "check_pkt_larger" "check_pkt_larger(N)->FIELD[BIT]" "Store whether the packet is larger than N bytes.";
    "delete_field" "delete_field:FIELD" "Delete a tunnel metadata field.";
    "meter" "meter:ID" "Limit by a meter; first among the instructions.";
    "clear_actions" "clear_actions" "Clear the action set.";
    "write_actions" "write_actions(ACTIONS)" "Add to the action set.";
    "write_metadata" "write_metadata:VALUE[/MASK]" "Write the metadata field.";
    "goto_table" "goto_table:N" "Go on in a later table.";
}

/// Parses a list of actions without instructions; empty for `drop`.
pub fn parse_actions(text: &str, ports: &dyn PortNames) -> Result<Vec<Action>, Error> {
    parse_list(text, ports, 0)
}

/// Parses what follows `actions=` in a flow.
pub fn parse_instructions(text: &str, ports: &dyn PortNames) -> Result<Instructions, Error> {
    let mut instructions = Instructions::default();
    let mut step = InstructionKind::Start;
    let mut dropped = false;
    for item in Items::new(text) {
        let item = item?;
        let name = item.key.to_ascii_lowercase();
        let (next, value) = (InstructionKind::of(&name), item.value);
        // Apply-actions may go on; every other instruction comes once, in its order.
        if next < step || next == step && next != InstructionKind::Apply {
            let problem = "out of order; the order is meter, actions, clear_actions, write_actions, write_metadata, \
                           goto_table, each but actions once";
            return Err(Error::argument(&name, problem));
        }
        step = next;
        match next {
            InstructionKind::Meter => instructions.meter = Some(integer32("meter", value)?),
            InstructionKind::Clear => instructions.clear = true,
            InstructionKind::Write => instructions.write = parse_list(value, ports, 1)?,
            InstructionKind::Metadata => instructions.metadata = Some(parse_metadata(value)?),
            InstructionKind::Goto => instructions.goto = Some(TableId(integer("goto_table", value, 254)? as u8)),
            InstructionKind::Start | InstructionKind::Apply if name == "drop" => dropped = true,
            InstructionKind::Start | InstructionKind::Apply => instructions.apply.push(parse_action(&item, ports, 0)?),
        }
    }
    if dropped && !instructions.is_empty() {
        return Err(accompanied_drop());
    }
    Ok(instructions)
}

/// The order of instructions (OpenFlow 1.3.5 section 5.9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum InstructionKind {
    Start,
    Meter,
    Apply,
    Clear,
    Write,
    Metadata,
    Goto,
}

impl InstructionKind {
    fn of(name: &str) -> InstructionKind {
        match name {
            "meter" => InstructionKind::Meter,
            "clear_actions" => InstructionKind::Clear,
            "write_actions" => InstructionKind::Write,
            "write_metadata" => InstructionKind::Metadata,
            "goto_table" => InstructionKind::Goto,
            _ => InstructionKind::Apply,
        }
    }
}

fn accompanied_drop() -> Error {
    Error::argument("drop", "must not be accompanied by any other action or instruction")
}

fn parse_metadata(text: &str) -> Result<WriteMetadata, Error> {
    let number = |text| integer("write_metadata", text, u64::MAX);
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (number(value)?, number(mask)?),
        None => (number(text)?, u64::MAX),
    };
    Ok(WriteMetadata { value: value & mask, mask })
}

/// Parses actions at a depth of nesting.
pub(super) fn parse_list(text: &str, ports: &dyn PortNames, depth: usize) -> Result<Vec<Action>, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    let mut actions = Vec::new();
    let mut dropped = false;
    for item in Items::new(text) {
        let item = item?;
        if item.key.eq_ignore_ascii_case("drop") {
            dropped = true;
        } else {
            actions.push(parse_action(&item, ports, depth)?);
        }
    }
    if dropped && !actions.is_empty() { Err(accompanied_drop()) } else { Ok(actions) }
}

fn parse_action(item: &Item<'_>, ports: &dyn PortNames, depth: usize) -> Result<Action, Error> {
    let name = item.key.to_ascii_lowercase();
    let value = item.value;
    let small = |max: u64| integer(&name, value, max);
    Ok(match name.as_str() {
        "output" => arguments::parse_output(value, ports)?,
        "group" => Action::Group(GroupId(small(GroupId::MAX.0.into())? as u32)),
        "controller" => arguments::parse_controller(value)?,
        "enqueue" => arguments::parse_enqueue(value, ports)?,
        "bundle" => arguments::parse_bundle(value, false, ports)?,
        "bundle_load" => arguments::parse_bundle(value, true, ports)?,
        "set_field" => parse_set_field(value, ports)?,
        "load" => parse_load(value)?,
        "move" => parse_move(value)?,
        "push" => Action::StackPush(subfield::parse(value)?),
        "pop" => Action::StackPop(subfield::parse_writable(value)?),
        "mod_vlan_vid" => Action::SetVlanVid { vid: small(0xfff)? as u16, push: true },
        "set_vlan_vid" => Action::SetVlanVid { vid: small(0xfff)? as u16, push: false },
        "mod_vlan_pcp" => Action::SetVlanPcp { pcp: small(7)? as u8, push: true },
        "set_vlan_pcp" => Action::SetVlanPcp { pcp: small(7)? as u8, push: false },
        "strip_vlan" | "pop_vlan" => Action::StripVlan,
        "push_vlan" => Action::PushVlan(ethertype(&name, value, &[0x8100, 0x88a8])?),
        "mod_dl_src" => Action::SetEthSrc(mac(&name, value)?),
        "mod_dl_dst" => Action::SetEthDst(mac(&name, value)?),
        "mod_nw_src" => Action::SetIpv4Src(ipv4(&name, value)?),
        "mod_nw_dst" => Action::SetIpv4Dst(ipv4(&name, value)?),
        "mod_nw_tos" => match small(0xff)? as u8 {
            tos if tos & 3 == 0 => Action::SetIpDscp(tos),
            tos => return Err(Error::argument(&name, format!("{tos} is no TOS whose two low bits (ECN) are zero"))),
        },
        "mod_nw_ecn" => Action::SetIpEcn(small(3)? as u8),
        "mod_nw_ttl" | "set_nw_ttl" => Action::SetIpTtl(small(0xff)? as u8),
        "mod_tp_src" => Action::SetL4SrcPort(integer16(&name, value)?),
        "mod_tp_dst" => Action::SetL4DstPort(integer16(&name, value)?),
        "set_tunnel" | "set_tunnel64" => Action::SetTunnel(small(u64::MAX)?),
        "dec_ttl" => arguments::parse_dec_ttl(value)?,
        "set_mpls_label" => Action::SetMplsLabel(small(0xf_ffff)? as u32),
        "set_mpls_tc" => Action::SetMplsTc(small(7)? as u8),
        "set_mpls_ttl" => Action::SetMplsTtl(small(0xff)? as u8),
        "dec_mpls_ttl" => Action::DecMplsTtl,
        "push_mpls" => Action::PushMpls(ethertype(&name, value, &[0x8847, 0x8848])?),
        "pop_mpls" => Action::PopMpls(integer16(&name, value)?),
        "dec_nsh_ttl" => Action::DecNshTtl,
        "encap" => arguments::parse_encap(value)?,
        "decap" => arguments::parse_decap(value)?,
        "set_queue" => Action::SetQueue(integer32(&name, value)?),
        "pop_queue" => Action::PopQueue,
        "fin_timeout" => arguments::parse_fin_timeout(value)?,
        "resubmit" => arguments::parse_resubmit(value, ports)?,
        "learn" => learn::parse(value, ports)?,
        "conjunction" => arguments::parse_conjunction(value)?,
        "multipath" => arguments::parse_multipath(value)?,
        "note" => Action::Note(arguments::parse_hex(&name, value)?),
        "exit" => Action::Exit,
        "debug_recirc" => Action::DebugRecirc,
        "debug_slow" => Action::DebugSlow,
        "sample" => arguments::parse_sample(value, ports)?,
        "ct" => ct::parse(value, ports, depth)?,
        "ct_clear" => Action::CtClear,
        "nat" => ct::parse_nat(value)?,
        "clone" => Action::Clone(parse_list(value, ports, depth + 1)?),
        "check_pkt_larger" => arguments::parse_check_pkt_larger(item)?,
        "delete_field" => arguments::parse_delete_field(value)?,
        "meter" => Action::Meter(integer32(&name, value)?),
        "clear_actions" | "write_actions" | "write_metadata" | "goto_table" => {
            return Err(Error::argument(&name, "an instruction cannot stand within actions"));
        }
        _ if item.delimiter.is_none() => bare_port(item.key, ports)?,
        _ => return Err(unknown(item.key)),
    })
}

/// `2`, `eth0`, `normal`: output to that port.
fn bare_port(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    port::parse("output", text, ports).map(|port| Action::output(OfPort(port))).map_err(|_| unknown(text))
}

fn unknown(name: &str) -> Error {
    let valid: Vec<_> = ACTIONS.iter().map(|action| action.name).collect();
    Error::Action { name: name.into(), valid: valid.join(", ") }
}

fn ethertype(name: &str, text: &str, valid: &[u16]) -> Result<u16, Error> {
    let value = integer16(name, text)?;
    if !valid.contains(&value) {
        let problem = format!("{text} is not a valid Ethernet type here, {:#x} or {:#x} is", valid[0], valid[1]);
        return Err(Error::argument(name, problem));
    }
    Ok(value)
}

fn mac(name: &str, text: &str) -> Result<EthAddr, Error> {
    let value = number::parse_mac(text);
    let value = value.ok_or_else(|| text::Error::value(name, text, "an Ethernet address, as 00:11:22:33:44:55"))?;
    Ok(EthAddr::from_value(value.into()))
}

fn ipv4(name: &str, text: &str) -> Result<Ipv4Addr, Error> {
    Ok(text.parse().map_err(|_| text::Error::value(name, text, "an IPv4 address, as 10.0.0.1"))?)
}

/// `VALUE->FIELD`.
fn split_arrow<'a>(action: &str, text: &'a str) -> Result<(&'a str, &'a str), Error> {
    match text.split_once("->") {
        Some((source, target)) if !source.is_empty() && !target.is_empty() => Ok((source, target)),
        _ => Err(Error::argument(action, format!("{text:?} is not of the form SOURCE->TARGET"))),
    }
}

fn parse_set_field(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    let (value, name) = split_arrow("set_field", text)?;
    if let Some(tun) = TunField::from_name(name) {
        let value = TunValue::parse(tun.index, value).ok_or_else(|| {
            let expected = "a number, decimal or with 0x, of at most 992 bits, and maybe a mask behind a slash";
            text::Error::value(name, value, expected)
        })?;
        return Ok(Action::SetTunMetadata(Box::new(value)));
    }
    let field = packet::Field::from_name(name)
        .ok_or_else(|| Error::argument("set_field", format!("{name:?} is not a field of ovs-fields(7)")))?;
    if !field.info().writable {
        return Err(Error::argument("set_field", format!("field {name} is read-only")));
    }
    let (value, mask) = text::parse(field, value, ports)?;
    if mask == 0 {
        return Err(Error::argument("set_field", "the mask is zero, so nothing would be written"));
    }
    Ok(Action::SetField { field, value, mask })
}

fn parse_load(text: &str) -> Result<Action, Error> {
    let (value, target) = split_arrow("load", text)?;
    let dst = subfield::parse_writable(target)?;
    let number = number::parse_int(value);
    let number = number.ok_or_else(|| Error::argument("load", format!("{value:?} is not a number")))?;
    match u64::try_from(number) {
        Ok(value) if number <= dst.max() => Ok(Action::load(dst, value)),
        _ => Err(Error::argument("load", format!("{value} does not fit into {} bits", dst.n_bits.min(64)))),
    }
}

fn parse_move(text: &str) -> Result<Action, Error> {
    let (source, target) = split_arrow("move", text)?;
    let (src, dst) = (subfield::parse(source)?, subfield::parse_writable(target)?);
    if src.n_bits != dst.n_bits {
        let problem = format!("source is {} bits wide, target is {}", src.n_bits, dst.n_bits);
        return Err(Error::argument("move", problem));
    }
    Ok(Action::RegMove { src, dst })
}

/// Formats actions; `drop` for none.
pub fn format_actions(out: &mut String, actions: &[Action], ports: &dyn PortNames) {
    if actions.is_empty() {
        return out.push_str("drop");
    }
    for (i, action) in actions.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        format_action(out, action, ports);
    }
}

/// Formats what follows `actions=` in a flow.
pub fn format_instructions(out: &mut String, instructions: &Instructions, ports: &dyn PortNames) {
    let start = out.len();
    if let Some(meter) = instructions.meter {
        put!(out, "meter:{meter},");
    }
    if !instructions.apply.is_empty() {
        format_actions(out, &instructions.apply, ports);
        out.push(',');
    }
    if instructions.clear {
        out.push_str("clear_actions,");
    }
    if !instructions.write.is_empty() {
        out.push_str("write_actions(");
        format_actions(out, &instructions.write, ports);
        out.push_str("),");
    }
    if let Some(WriteMetadata { value, mask }) = instructions.metadata {
        out.push_str("write_metadata:");
        number::hex_masked(out, value.into(), mask.into(), u64::MAX.into());
        out.push(',');
    }
    if let Some(table) = instructions.goto {
        put!(out, "goto_table:{table},");
    }
    if out.len() == start { out.push_str("drop") } else { out.truncate(out.len() - 1) }
}

fn format_action(out: &mut String, action: &Action, ports: &dyn PortNames) {
    match action {
        Action::Output { port, max_len } => arguments::format_output(out, *port, *max_len, ports),
        Action::OutputReg { src, .. } => with_subfield(out, "output:", src),
        Action::OutputTrunc { port, max_len } => {
            out.push_str("output(port=");
            port::format(out, port.0, ports);
            put!(out, ",max_len={max_len})");
        }
        Action::Group(group) => put!(out, "group:{}", group.0),
        Action::Controller(controller) => arguments::format_controller(out, controller),
        Action::Enqueue { port, queue } => {
            out.push_str("enqueue:");
            port::format(out, port.0, ports);
            put!(out, ":{queue}");
        }
        Action::Bundle(bundle) => arguments::format_bundle(out, bundle, ports),
        Action::SetField { field, value, mask } => {
            out.push_str("set_field:");
            text::format(out, *field, *value, *mask, ports);
            put!(out, "->{}", field.info().name);
        }
        Action::SetTunMetadata(value) => {
            out.push_str("set_field:");
            value.format(out);
            put!(out, "->tun_metadata{}", value.index);
        }
        Action::RegLoad { dst, value } => {
            out.push_str("load:");
            number::hex(out, (*value).into());
            with_subfield(out, "->", dst);
        }
        Action::RegMove { src, dst } => {
            with_subfield(out, "move:", src);
            with_subfield(out, "->", dst);
        }
        Action::StackPush(src) => with_subfield(out, "push:", src),
        Action::StackPop(dst) => with_subfield(out, "pop:", dst),
        Action::SetVlanVid { vid, push } => put!(out, "{}_vlan_vid:{vid}", if *push { "mod" } else { "set" }),
        Action::SetVlanPcp { pcp, push } => put!(out, "{}_vlan_pcp:{pcp}", if *push { "mod" } else { "set" }),
        Action::StripVlan => out.push_str("strip_vlan"),
        Action::PushVlan(ethertype) => put!(out, "push_vlan:{ethertype:#x}"),
        Action::SetEthSrc(mac) => put!(out, "mod_dl_src:{mac}"),
        Action::SetEthDst(mac) => put!(out, "mod_dl_dst:{mac}"),
        Action::SetIpv4Src(ip) => put!(out, "mod_nw_src:{ip}"),
        Action::SetIpv4Dst(ip) => put!(out, "mod_nw_dst:{ip}"),
        Action::SetIpDscp(tos) => put!(out, "mod_nw_tos:{tos}"),
        Action::SetIpEcn(ecn) => put!(out, "mod_nw_ecn:{ecn}"),
        Action::SetIpTtl(ttl) => put!(out, "mod_nw_ttl:{ttl}"),
        Action::SetL4SrcPort(port) => put!(out, "mod_tp_src:{port}"),
        Action::SetL4DstPort(port) => put!(out, "mod_tp_dst:{port}"),
        Action::SetTunnel(id) => {
            out.push_str(if *id > u32::MAX.into() { "set_tunnel64:" } else { "set_tunnel:" });
            number::hex(out, (*id).into());
        }
        Action::DecTtl => out.push_str("dec_ttl"),
        Action::DecTtlCntIds(ids) => {
            out.push_str("dec_ttl(");
            arguments::join(out, ids, |out, id| put!(out, "{id}"));
            out.push(')');
        }
        Action::SetMplsLabel(label) => put!(out, "set_mpls_label({label})"),
        Action::SetMplsTc(tc) => put!(out, "set_mpls_tc({tc})"),
        Action::SetMplsTtl(ttl) => put!(out, "set_mpls_ttl({ttl})"),
        Action::DecMplsTtl => out.push_str("dec_mpls_ttl"),
        Action::PushMpls(ethertype) => put!(out, "push_mpls:0x{ethertype:04x}"),
        Action::PopMpls(ethertype) => put!(out, "pop_mpls:0x{ethertype:04x}"),
        Action::DecNshTtl => out.push_str("dec_nsh_ttl"),
        Action::Encap(encap) => arguments::format_encap(out, encap),
        Action::Decap(None) => out.push_str("decap()"),
        Action::Decap(Some(kind)) => {
            put!(out, "decap(packet_type(ns={},type=", kind >> 16);
            number::hex(out, (kind & 0xffff).into());
            out.push_str("))");
        }
        Action::SetQueue(queue) => put!(out, "set_queue:{queue}"),
        Action::PopQueue => out.push_str("pop_queue"),
        Action::FinTimeout { idle, hard } => arguments::format_fin_timeout(out, *idle, *hard),
        Action::Resubmit { in_port, table, with_ct } => {
            arguments::format_resubmit(out, *in_port, *table, *with_ct, ports);
        }
        Action::Learn(learn) => learn::format(out, learn, ports),
        Action::Conjunction { id, clause, n_clauses } => {
            put!(out, "conjunction({id},{}/{n_clauses})", u16::from(*clause) + 1);
        }
        Action::Multipath(multipath) => arguments::format_multipath(out, multipath),
        Action::Note(bytes) => {
            out.push_str("note:");
            arguments::format_hex(out, bytes);
        }
        Action::Exit => out.push_str("exit"),
        Action::DebugRecirc => out.push_str("debug_recirc"),
        Action::DebugSlow => out.push_str("debug_slow"),
        Action::Sample(sample) => arguments::format_sample(out, sample, ports),
        Action::Ct(ct) => ct::format(out, ct, ports),
        Action::CtClear => out.push_str("ct_clear"),
        Action::Nat(nat) => ct::format_nat(out, nat),
        Action::Clone(actions) => {
            out.push_str("clone(");
            format_actions(out, actions, ports);
            out.push(')');
        }
        Action::CheckPktLarger { pkt_len, dst } => {
            put!(out, "check_pkt_larger({pkt_len})");
            with_subfield(out, "->", dst);
        }
        Action::DeleteField(index) => put!(out, "delete_field:tun_metadata{index}"),
        Action::Meter(meter) => put!(out, "meter:{meter}"),
    }
}

fn with_subfield(out: &mut String, prefix: &str, part: &Subfield) {
    out.push_str(prefix);
    subfield::format(out, part);
}
