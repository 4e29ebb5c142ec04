//! Whole messages, as `ovs-ofctl ofp-print` shows them: for logs.
//!
//! The first line names the message, its version and its transaction id; what it says follows, on lines of its own where it
//! is long. Flow changes, flows, bundles, hellos, errors, roles and configuration are shown in full, packets without their
//! contents, and of all other messages how long they are.

use packet::flow::text::{NoNames, port};
use packet::put;

use super::actions::{format_actions, format_instructions};
use super::flow::{FLAGS, format_duration, format_flow_stats};
use super::matching::format_match;
use crate::bundle::{BundleAdd, BundleControl, BundleControlKind, BundleFlags};
use crate::codec::{DecodeOptions, HEADER_LEN, decode};
use crate::error::{ErrorCode, ErrorMsg, OfError};
use crate::flow_mod::{FlowMod, FlowModCommand, FlowRemoved, FlowRemovedReason};
use crate::message::{Body, Dialect, Message};
use crate::packet_msg::{PacketInFormat, PacketOut};
use crate::stats::{FlowStatsRequest, MultipartReply, MultipartRequest};
use crate::switch::{FlowFormat, FragHandling, Role, RoleReason, SwitchConfig};
use crate::types::{FlowModFlags, OfPort, TableId, Version};

/// Bytes of text after which no more of a message is shown.
const MAX_TEXT: usize = 16 << 10;

/// Bytes that are shown of a message that cannot be decoded.
const MAX_DUMP: usize = 256;

/// How deeply messages in messages are shown: in bundles, and in errors about what was in one.
const MAX_NESTED: usize = 3;

/// Formats the bytes of a message. Any bytes will do; the text is bounded.
pub fn format_message(out: &mut String, bytes: &[u8]) {
    let start = out.len();
    nested(out, bytes, MAX_NESTED);
    let text = out[start..].trim_end_matches(['\n', ' ']).len();
    out.truncate(start + text);
    if text > MAX_TEXT {
        out.truncate(out.floor_char_boundary(start + MAX_TEXT));
        out.push_str("...");
    }
}

fn nested(out: &mut String, bytes: &[u8], depth: usize) {
    // Flow-mods of OpenFlow 1.0 are read with a table, which is zero where the connection has not agreed on that.
    match decode(bytes, DecodeOptions { flow_mod_table_id: true }) {
        Ok(message) => {
            put!(out, "{}{} (xid={:#x}):", name(&message), version(bytes[0]), message.xid);
            format_body(out, &message, bytes.len() - HEADER_LEN, depth);
        }
        Err(e) => {
            put!(out, "***decode error: {}***", e.error.name());
            dump(out, &bytes[..bytes.len().min(MAX_DUMP)]);
        }
    }
}

/// The version of a header; nothing for OpenFlow 1.0.
fn version(byte: u8) -> String {
    match Version::from_wire(byte) {
        Some(Version::V1_0) => String::new(),
        Some(known) => format!(" (OF1.{})", known.wire() - 1),
        None => format!(" (OF {byte:#04x})"),
    }
}

fn format_body(out: &mut String, message: &Message, len: usize, depth: usize) {
    match &message.body {
        Body::Hello(hello) => put!(out, "\n version bitmap: {}", hello.versions),
        Body::Error(e) => format_error(out, e, depth),
        Body::EchoRequest(data) | Body::EchoReply(data) => put!(out, " {} bytes of payload", data.len()),
        Body::GetConfigReply(config) | Body::SetConfig(config) => format_config(out, config),
        Body::FlowMod(change) => format_flow_mod(out, change, message.version),
        Body::FlowRemoved(removed) => format_flow_removed(out, removed),
        Body::PacketOut(packet_out) => format_packet_out(out, packet_out),
        Body::BundleControl(control) => format_bundle_control(out, control),
        Body::BundleAdd(add) => format_bundle_add(out, add, depth),
        Body::RoleRequest(role) | Body::RoleReply(role) => format_role(out, role.role, role.generation_id),
        Body::RoleStatus(status) => {
            format_role(out, status.role, status.generation_id);
            out.push_str(match status.reason {
                RoleReason::PrimaryRequest => " reason=primary_request",
                RoleReason::Config => " reason=configuration_changed",
                RoleReason::Experimenter => " reason=experimenter_data_changed",
            });
        }
        Body::MultipartRequest { more, request } => format_request(out, *more, request, len),
        Body::MultipartReply { more, reply } => format_reply(out, *more, reply, len),
        Body::SetFlowFormat(FlowFormat::OpenFlow10) => out.push_str(" format=openflow10"),
        Body::SetFlowFormat(FlowFormat::Nxm) => out.push_str(" format=nxm"),
        Body::FlowModTableId(on) => out.push_str(if *on { " enable" } else { " disable" }),
        Body::SetPacketInFormat(format) => out.push_str(match format {
            PacketInFormat::Standard => " format=standard",
            PacketInFormat::Nxt => " format=nxt_packet_in",
            PacketInFormat::Nxt2 => " format=nxt_packet_in2",
        }),
        Body::SetControllerId(id) => put!(out, " id={id}"),
        Body::FlowMonitorCancel(id) => put!(out, " id={id}"),
        Body::CtFlushZone(zone) => put!(out, " zone_id={zone}"),
        _ => other(out, len),
    }
}

/// A message that is not shown in full.
fn other(out: &mut String, len: usize) {
    if len > 0 {
        put!(out, " {len} bytes");
    }
}

fn format_error(out: &mut String, e: &ErrorMsg, depth: usize) {
    match e.error {
        ErrorCode::Known(error) => put!(out, " {}\n", error.name()),
        ErrorCode::Unknown { kind, code, .. } => put!(out, " type {kind} code {code}\n"),
    }
    match e.error {
        ErrorCode::Known(OfError::OFPHFC_INCOMPATIBLE | OfError::OFPHFC_EPERM) => {
            put!(out, "{}", e.data.escape_ascii());
        }
        _ if depth > 0 => nested(out, &e.data, depth - 1),
        _ => {}
    }
}

fn format_config(out: &mut String, config: &SwitchConfig) {
    out.push_str(match config.frag {
        FragHandling::Normal => " frags=normal",
        FragHandling::Drop => " frags=drop",
        FragHandling::Reassemble => " frags=reassemble",
        FragHandling::NxMatch => " frags=nx-match",
    });
    if config.invalid_ttl_to_controller == Some(true) {
        out.push_str(" invalid_ttl_to_controller");
    }
    put!(out, " miss_send_len={}", config.miss_send_len);
}

fn format_flow_mod(out: &mut String, change: &FlowMod, version: Version) {
    out.push_str(match change.command {
        FlowModCommand::Add => " ADD",
        FlowModCommand::Modify => " MOD",
        FlowModCommand::ModifyStrict => " MOD_STRICT",
        FlowModCommand::Delete => " DEL",
        FlowModCommand::DeleteStrict => " DEL_STRICT",
    });
    match change.table.unwrap_or(TableId::ALL) {
        TableId(0) => {}
        table => put!(out, " table:{table}"),
    }
    out.push(' ');
    format_match(out, &change.matching, change.priority, &NoNames);
    if !out.ends_with(' ') {
        out.push(' ');
    }
    if let Some(cookie) = change.new_cookie.filter(|cookie| cookie.0 != 0) {
        put!(out, "cookie:{:#x} ", cookie.0);
    }
    if change.cookie.mask != 0 {
        put!(out, "cookie:{:#x}/{:#x} ", change.cookie.value, change.cookie.mask);
    }
    for (name, value) in
        [("idle", change.idle_timeout), ("hard", change.hard_timeout), ("importance", change.importance)]
    {
        if value != 0 {
            put!(out, "{name}:{value} ");
        }
    }
    if let Some(buffer) = change.buffer_id {
        put!(out, "buf:{buffer:#x} ");
    }
    if change.out_port != OfPort::ANY {
        out.push_str("out_port:");
        port::format(out, change.out_port.0, &NoNames);
        out.push(' ');
    }
    // Before OpenFlow 1.2 the flag is no part of the message.
    let implied = if version < Version::V1_2 { FlowModFlags::RESET_COUNTS } else { FlowModFlags::empty() };
    for (name, _) in FLAGS.iter().filter(|(_, flag)| change.flags.difference(implied).contains(*flag)) {
        put!(out, "{name} ");
    }
    out.push_str("actions=");
    format_instructions(out, &change.instructions, &NoNames);
}

fn format_flow_removed(out: &mut String, removed: &FlowRemoved) {
    out.push(' ');
    format_match(out, &removed.matching, removed.priority, &NoNames);
    out.push_str(match removed.reason {
        FlowRemovedReason::IdleTimeout => " reason=idle",
        FlowRemovedReason::HardTimeout => " reason=hard",
        FlowRemovedReason::Delete => " reason=delete",
        FlowRemovedReason::GroupDelete => " reason=group_delete",
        FlowRemovedReason::MeterDelete => " reason=meter_delete",
        FlowRemovedReason::Eviction => " reason=eviction",
    });
    if let Some(table) = removed.table {
        put!(out, " table_id={table}");
    }
    if removed.cookie.0 != 0 {
        put!(out, " cookie:{:#x}", removed.cookie.0);
    }
    out.push_str(" duration");
    format_duration(out, removed.duration);
    put!(out, " idle{}", removed.idle_timeout);
    if removed.hard_timeout != 0 {
        put!(out, " hard{}", removed.hard_timeout);
    }
    put!(out, " pkts{} bytes{}", removed.packet_count, removed.byte_count);
}

fn format_packet_out(out: &mut String, packet_out: &PacketOut) {
    out.push(' ');
    let mut metadata = packet_out.metadata.clone();
    metadata.set_in_port(packet_out.in_port);
    format_match(out, &metadata, FlowMod::DEFAULT_PRIORITY, &NoNames);
    out.push_str(" actions=");
    format_actions(out, &packet_out.actions, &NoNames);
    match packet_out.buffer_id {
        None => put!(out, " data_len={}", packet_out.data.len()),
        Some(buffer) => put!(out, " buffer={buffer:#010x}"),
    }
}

fn format_bundle_control(out: &mut String, control: &BundleControl) {
    use BundleControlKind::*;
    let kind = match control.kind {
        OpenRequest => "OPEN_REQUEST",
        OpenReply => "OPEN_REPLY",
        CloseRequest => "CLOSE_REQUEST",
        CloseReply => "CLOSE_REPLY",
        CommitRequest => "COMMIT_REQUEST",
        CommitReply => "COMMIT_REPLY",
        DiscardRequest => "DISCARD_REQUEST",
        DiscardReply => "DISCARD_REPLY",
    };
    put!(out, "\n bundle_id={} type={kind} flags=", alternate_hex(control.bundle));
    bundle_flags(out, control.flags);
}

fn format_bundle_add(out: &mut String, add: &BundleAdd, depth: usize) {
    put!(out, "\n bundle_id={} flags=", alternate_hex(add.bundle));
    bundle_flags(out, add.flags);
    out.push('\n');
    if depth > 0 {
        nested(out, &add.message, depth - 1);
    }
}

/// As C's `%#x`: without 0x for zero.
fn alternate_hex(number: u32) -> String {
    if number == 0 { "0".into() } else { format!("{number:#x}") }
}

fn bundle_flags(out: &mut String, flags: BundleFlags) {
    let unknown = flags.bits() & !(BundleFlags::all().bits());
    let names = [(BundleFlags::ATOMIC, "atomic"), (BundleFlags::ORDERED, "ordered")];
    let known = names.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| name.to_owned());
    let all: Vec<String> = known.chain((unknown != 0).then(|| format!("{unknown:#x}"))).collect();
    out.push_str(if all.is_empty() { "0" } else { "" });
    out.push_str(&all.join(" "));
}

fn format_role(out: &mut String, role: Role, generation: Option<u64>) {
    out.push_str(match role {
        Role::NoChange => " role=nochange",
        Role::Equal => " role=equal",
        Role::Primary => " role=primary",
        Role::Secondary => " role=secondary",
    });
    if let Some(generation) = generation.filter(|&generation| generation != u64::MAX) {
        put!(out, " generation_id={generation}");
    }
}

fn format_request(out: &mut String, more: bool, request: &MultipartRequest, len: usize) {
    use MultipartRequest::*;
    flags(out, more);
    match request {
        Flow(wanted) | Aggregate(wanted) => format_flow_request(out, wanted),
        Port(wanted) | PortDesc(wanted) => {
            out.push_str(if matches!(request, Port(_)) { " port_no=" } else { " port=" });
            port::format(out, wanted.0, &NoNames);
        }
        Desc | Table | GroupFeatures | MeterFeatures | TableDesc | IpfixBridge | IpfixFlow => {}
        _ => other(out, len),
    }
}

fn flags(out: &mut String, more: bool) {
    out.push_str(if more { " flags=[more]" } else { "" });
}

fn format_flow_request(out: &mut String, wanted: &FlowStatsRequest) {
    if wanted.table != TableId::ALL {
        put!(out, " table={}", wanted.table);
    }
    if wanted.out_port != OfPort::ANY {
        out.push_str(" out_port=");
        port::format(out, wanted.out_port.0, &NoNames);
    }
    out.push(' ');
    format_match(out, &wanted.matching, FlowMod::DEFAULT_PRIORITY, &NoNames);
}

fn format_reply(out: &mut String, more: bool, reply: &MultipartReply, len: usize) {
    flags(out, more);
    match reply {
        MultipartReply::Flow(flows) => {
            let start = out.len();
            for flow in flows {
                out.push('\n');
                format_flow_stats(out, flow, &NoNames);
                if out.len() - start > MAX_TEXT {
                    break;
                }
            }
        }
        MultipartReply::Aggregate(sum) => {
            put!(out, " packet_count={} byte_count={}", sum.packet_count, sum.byte_count);
            put!(out, " flow_count={}", sum.flow_count);
        }
        _ => other(out, len),
    }
}

/// The bytes in lines of sixteen, with what of them is text.
fn dump(out: &mut String, bytes: &[u8]) {
    for (i, line) in bytes.chunks(16).enumerate() {
        put!(out, "\n{:08x} ", 16 * i);
        for at in 0..16 {
            out.push(if at == 8 { '-' } else { ' ' });
            match line.get(at) {
                Some(byte) => put!(out, "{byte:02x}"),
                None => out.push_str("  "),
            }
        }
        let shown = |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '.' };
        put!(out, " |{}|", line.iter().map(shown).collect::<String>());
    }
}

/// The name that ovs-ofctl gives a message.
fn name(message: &Message) -> &'static str {
    let since = |version| message.version >= version;
    let nicira = message.dialect == Dialect::Nicira;
    let extension = |nxt, standard| if nicira { nxt } else { standard };
    let onf = |onf, standard| if since(Version::V1_4) { standard } else { onf };
    match &message.body {
        Body::Hello(_) => "OFPT_HELLO",
        Body::Error(_) => "OFPT_ERROR",
        Body::EchoRequest(_) => "OFPT_ECHO_REQUEST",
        Body::EchoReply(_) => "OFPT_ECHO_REPLY",
        Body::FeaturesRequest => "OFPT_FEATURES_REQUEST",
        Body::FeaturesReply(_) => "OFPT_FEATURES_REPLY",
        Body::GetConfigRequest => "OFPT_GET_CONFIG_REQUEST",
        Body::GetConfigReply(_) => "OFPT_GET_CONFIG_REPLY",
        Body::SetConfig(_) => "OFPT_SET_CONFIG",
        Body::PacketIn(packet_in) => match packet_in.format {
            PacketInFormat::Standard => "OFPT_PACKET_IN",
            PacketInFormat::Nxt => "NXT_PACKET_IN",
            PacketInFormat::Nxt2 => "NXT_PACKET_IN2",
        },
        Body::Resume(_) => "NXT_RESUME",
        Body::FlowRemoved(_) => extension("NXT_FLOW_REMOVED", "OFPT_FLOW_REMOVED"),
        Body::PortStatus(_) => "OFPT_PORT_STATUS",
        Body::PacketOut(_) => "OFPT_PACKET_OUT",
        Body::FlowMod(_) => extension("NXT_FLOW_MOD", "OFPT_FLOW_MOD"),
        Body::PortMod(_) => "OFPT_PORT_MOD",
        Body::TableMod(_) => "OFPT_TABLE_MOD",
        Body::GroupMod(_) if !since(Version::V1_1) => "NXT_GROUP_MOD",
        Body::GroupMod(_) => "OFPT_GROUP_MOD",
        Body::MeterMod(_) => "OFPT_METER_MOD",
        Body::QueueGetConfigRequest(_) => "OFPT_QUEUE_GET_CONFIG_REQUEST",
        Body::QueueGetConfigReply { .. } => "OFPT_QUEUE_GET_CONFIG_REPLY",
        Body::BundleControl(_) => onf("ONFT_BUNDLE_CONTROL", "OFPT_BUNDLE_CONTROL"),
        Body::BundleAdd(_) => onf("ONFT_BUNDLE_ADD_MESSAGE", "OFPT_BUNDLE_ADD_MESSAGE"),
        Body::RoleStatus(_) => onf("ONFT_ROLE_STATUS", "OFPT_ROLE_STATUS"),
        Body::TableStatus(_) => "OFPT_TABLE_STATUS",
        Body::RequestForward(_) if !since(Version::V1_3) => "NXT_REQUESTFORWARD",
        Body::RequestForward(_) => onf("ONFT_REQUESTFORWARD", "OFPT_REQUESTFORWARD"),
        Body::TlvTableMod(_) => "NXT_TLV_TABLE_MOD",
        Body::TlvTableRequest => "NXT_TLV_TABLE_REQUEST",
        Body::TlvTableReply(_) => "NXT_TLV_TABLE_REPLY",
        Body::CtFlushZone(_) => "NXT_CT_FLUSH_ZONE",
        Body::CtFlush(_) => "NXT_CT_FLUSH",
        Body::BarrierRequest => "OFPT_BARRIER_REQUEST",
        Body::BarrierReply => "OFPT_BARRIER_REPLY",
        Body::RoleRequest(_) => extension("NXT_ROLE_REQUEST", "OFPT_ROLE_REQUEST"),
        Body::RoleReply(_) => extension("NXT_ROLE_REPLY", "OFPT_ROLE_REPLY"),
        Body::GetAsyncRequest => "OFPT_GET_ASYNC_REQUEST",
        Body::GetAsyncReply(_) => "OFPT_GET_ASYNC_REPLY",
        Body::SetAsync(_) => extension("NXT_SET_ASYNC_CONFIG", "OFPT_SET_ASYNC"),
        Body::SetAsync2(_) => "NXT_SET_ASYNC_CONFIG2",
        Body::MultipartRequest { request, .. } => request_name(message, request),
        Body::MultipartReply { reply, .. } => reply_name(message, reply),
        Body::SetFlowFormat(_) => "NXT_SET_FLOW_FORMAT",
        Body::FlowModTableId(_) => "NXT_FLOW_MOD_TABLE_ID",
        Body::SetPacketInFormat(_) => "NXT_SET_PACKET_IN_FORMAT",
        Body::FlowAge => "NXT_FLOW_AGE",
        Body::SetControllerId(_) => "NXT_SET_CONTROLLER_ID",
        Body::FlowMonitorCancel(_) if since(Version::V1_3) => "ONFT_FLOW_MONITOR_CANCEL",
        Body::FlowMonitorCancel(_) => "NXT_FLOW_MONITOR_CANCEL",
        Body::FlowMonitorPaused if since(Version::V1_3) => "ONFT_FLOW_MONITOR_PAUSED",
        Body::FlowMonitorPaused => "NXT_FLOW_MONITOR_PAUSED",
        Body::FlowMonitorResumed if since(Version::V1_3) => "ONFT_FLOW_MONITOR_RESUMED",
        Body::FlowMonitorResumed => "NXT_FLOW_MONITOR_RESUMED",
    }
}

fn request_name(message: &Message, request: &MultipartRequest) -> &'static str {
    use MultipartRequest::*;
    let nicira = message.dialect == Dialect::Nicira;
    let v10 = message.version == Version::V1_0;
    match request {
        Desc => "OFPST_DESC request",
        Flow(_) if nicira => "NXST_FLOW request",
        Flow(_) => "OFPST_FLOW request",
        Aggregate(_) if nicira => "NXST_AGGREGATE request",
        Aggregate(_) => "OFPST_AGGREGATE request",
        Table => "OFPST_TABLE request",
        Port(_) => "OFPST_PORT request",
        PortDesc(_) => "OFPST_PORT_DESC request",
        Queue { .. } => "OFPST_QUEUE request",
        Group(_) if v10 => "NXST_GROUP request",
        Group(_) => "OFPST_GROUP request",
        GroupDesc(_) if v10 => "NXST_GROUP_DESC request",
        GroupDesc(_) => "OFPST_GROUP_DESC request",
        GroupFeatures if v10 => "NXST_GROUP_FEATURES request",
        GroupFeatures => "OFPST_GROUP_FEATURES request",
        Meter(_) => "OFPST_METER request",
        MeterConfig(_) => "OFPST_METER_CONFIG request",
        MeterFeatures => "OFPST_METER_FEATURES request",
        TableFeatures(_) => "OFPST_TABLE_FEATURES request",
        TableDesc => "OFPST_TABLE_DESC request",
        QueueDesc { .. } => "OFPST_QUEUE_DESC request",
        FlowMonitor(_) if message.version >= Version::V1_4 => "OFPST_FLOW_MONITOR request",
        FlowMonitor(_) if message.version == Version::V1_3 => "ONFST_FLOW_MONITOR request",
        FlowMonitor(_) => "NXST_FLOW_MONITOR request",
        IpfixBridge => "NXST_IPFIX_BRIDGE request",
        IpfixFlow => "NXST_IPFIX_FLOW request",
    }
}

fn reply_name(message: &Message, reply: &MultipartReply) -> &'static str {
    use MultipartReply::*;
    let nicira = message.dialect == Dialect::Nicira;
    let v10 = message.version == Version::V1_0;
    match reply {
        Desc(_) => "OFPST_DESC reply",
        Flow(_) if nicira => "NXST_FLOW reply",
        Flow(_) => "OFPST_FLOW reply",
        Aggregate(_) if nicira => "NXST_AGGREGATE reply",
        Aggregate(_) => "OFPST_AGGREGATE reply",
        Table(_) => "OFPST_TABLE reply",
        Port(_) => "OFPST_PORT reply",
        PortDesc(_) => "OFPST_PORT_DESC reply",
        Queue(_) => "OFPST_QUEUE reply",
        GroupFeatures(_) if v10 => "NXST_GROUP_FEATURES reply",
        GroupFeatures(_) => "OFPST_GROUP_FEATURES reply",
        MeterFeatures(_) => "OFPST_METER_FEATURES reply",
        TableFeatures(_) => "OFPST_TABLE_FEATURES reply",
        TableDesc(_) => "OFPST_TABLE_DESC reply",
        QueueDesc(_) => "OFPST_QUEUE_DESC reply",
        Group(_) if v10 => "NXST_GROUP reply",
        Group(_) => "OFPST_GROUP reply",
        GroupDesc(_) if v10 => "NXST_GROUP_DESC reply",
        GroupDesc(_) => "OFPST_GROUP_DESC reply",
        Meter(_) => "OFPST_METER reply",
        MeterConfig(_) => "OFPST_METER_CONFIG reply",
        FlowMonitor(_) if message.version >= Version::V1_4 => "OFPST_FLOW_MONITOR reply",
        FlowMonitor(_) if message.version == Version::V1_3 => "ONFST_FLOW_MONITOR reply",
        FlowMonitor(_) => "NXST_FLOW_MONITOR reply",
        IpfixBridge(_) => "NXST_IPFIX_BRIDGE reply",
        IpfixFlow(_) => "NXST_IPFIX_FLOW reply",
    }
}

/// For fuzzing: any bytes have a text, and it is bounded.
pub fn fuzz(bytes: &[u8]) {
    let mut text = String::new();
    format_message(&mut text, bytes);
    assert!(text.len() <= MAX_TEXT + 3, "{} bytes", text.len());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::{MAX_LEN, encode};
    use crate::matching::Match;
    use crate::{Cookie, Instructions};

    fn text(bytes: &[u8]) -> String {
        let mut out = String::new();
        format_message(&mut out, bytes);
        out
    }

    fn message(version: Version, body: Body) -> Vec<u8> {
        encode(&Message::new(version, 9, body), DecodeOptions::default()).expect("short")
    }

    /// An error about `bytes`.
    fn error_about(bytes: Vec<u8>) -> Vec<u8> {
        let error = ErrorCode::Known(OfError::OFPBRC_EPERM);
        message(Version::V1_3, Body::Error(ErrorMsg { error, data: bytes }))
    }

    #[test]
    fn a_flow_mod_is_one_line() {
        let mut change = FlowMod::new(FlowModCommand::Add, Match::any(), Instructions::default());
        change.table = Some(TableId(3));
        change.new_cookie = Some(Cookie(0x1f));
        change.idle_timeout = 60;
        change.flags = FlowModFlags::SEND_FLOW_REM;
        let bytes = message(Version::V1_4, Body::FlowMod(Box::new(change)));
        let expected = "OFPT_FLOW_MOD (OF1.4) (xid=0x9): ADD table:3 cookie:0x1f idle:60 send_flow_rem actions=drop";
        assert_eq!(text(&bytes), expected);
    }

    #[test]
    fn what_cannot_be_decoded_is_dumped() {
        let bytes = [4, 0xee, 0, 8, b'a', b'b', 0, 1];
        let expected = "***decode error: OFPBRC_BAD_TYPE***\n\
                        00000000  04 ee 00 08 61 62 00 01-                        |....ab..|";
        assert_eq!(text(&bytes), expected);
        assert!(text(&[]).starts_with("***decode error: "));
    }

    #[test]
    fn errors_about_errors_about_errors_end() {
        let mut bytes = message(Version::V1_3, Body::BarrierRequest);
        while bytes.len() + 100 < MAX_LEN {
            bytes = error_about(bytes);
        }
        let shown = text(&bytes);
        assert_eq!(shown.matches("OFPT_ERROR").count(), MAX_NESTED + 1, "{shown}");
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "ä".repeat(MAX_TEXT);
        let error = ErrorMsg { error: ErrorCode::Known(OfError::OFPHFC_EPERM), data: long.into_bytes() };
        let shown = text(&message(Version::V1_3, Body::Error(error)));
        assert_eq!(shown.len(), MAX_TEXT + 3);
        assert!(shown.ends_with("..."));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_text(bytes in prop::collection::vec(any::<u8>(), 0..200), version in 1..7u8, kind in 0..36u8) {
            fuzz(&bytes);
            let mut framed = bytes;
            framed.resize(framed.len().max(8), 0);
            framed[..2].copy_from_slice(&[version, kind]);
            let len = framed.len() as u16;
            framed[2..4].copy_from_slice(&len.to_be_bytes());
            fuzz(&framed);
        }
    }
}
