//! Messages as bytes, and bytes as messages.
//!
//! A message is a header (version, type, length, xid) and a body. [`decode`] takes whole messages, which
//! [`frame_len`] cuts out of a byte stream; what is wrong with one comes back as the OpenFlow error that
//! the sender is to be told ([`DecodeError::reply`]). Nothing in here panics on any input.
//!
//! All versions are complete ([`SUPPORTED`]). The modules decide by comparing versions, so that what a
//! later version changes is one more arm where it changes.

mod action;
mod bundle;
mod ct;
mod flow;
mod group;
mod instruction;
mod ipfix;
mod lengths;
mod match10;
mod match11;
mod meter;
mod monitor;
mod oxm;
mod oxs;
mod packet;
mod port;
mod prop;
mod queue;
mod request_forward;
mod stats;
mod switch;
mod table;
mod table_features;
mod tlv;
mod wire;

#[cfg(test)]
mod tests;

use crate::error::OfError::{self, *};
use crate::error::{ErrorCode, ErrorMsg, vendor};
use crate::group::GroupSpec;
use crate::message::{Body, Dialect, Message};
use crate::packet_msg::PacketInFormat;
use crate::switch::{AsyncChange, AsyncConfig, FlowFormat};
use crate::types::{Version, Versions};
use wire::{Put, Reader};

pub use match10::OFPFW_ALL;

/// The versions whose messages can be decoded and encoded. Hellos, errors and echoes of all others can.
pub const SUPPORTED: Versions = Versions::ALL;

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// The most bytes that a message can have.
pub const MAX_LEN: usize = 0xffff;

/// How many bytes of a message an error about it quotes (OpenFlow 1.3.5 section 7.4.4: at least 64): all, as OVS
/// does, unless the error would be too long to be a message.
pub const ERROR_QUOTE_LEN: usize = MAX_LEN - 32;

/// What a connection has agreed on that decides how flow-mods are read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DecodeOptions {
    /// NXT_FLOW_MOD_TABLE_ID: the command of a flow-mod of OpenFlow 1.0 has the table in its high byte.
    pub flow_mod_table_id: bool,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error} in message of type {kind} with xid {xid:#x}")]
pub struct DecodeError {
    /// The error for its sender.
    pub error: OfError,
    /// Version byte of the header.
    pub version: u8,
    /// Type byte of the header.
    pub kind: u8,
    /// Transaction id.
    pub xid: u32,
}

impl DecodeError {
    /// The answer for the sender of `bytes`, in `version`.
    pub fn reply(&self, version: Version, bytes: &[u8]) -> Message {
        error_message(version, self.xid, self.error, bytes)
    }
}

/// An error message about the message `bytes`, of which it quotes the beginning.
pub fn error_message(version: Version, xid: u32, error: OfError, bytes: &[u8]) -> Message {
    let data = bytes[..bytes.len().min(ERROR_QUOTE_LEN)].to_vec();
    Message::new(version, xid, Body::Error(ErrorMsg { error: ErrorCode::Known(error), data }))
}

/// A message that does not fit into 65535 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {0} bytes; the most is 65535")]
pub struct TooLong(pub usize);

/// A byte stream that cannot be cut into messages: the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message length {0} is less than that of a header (8)")]
pub struct FrameError(pub u16);

/// How long the message at the beginning of `stream` is, once its header is there. The message is whole when
/// the stream has as many bytes.
pub fn frame_len(stream: &[u8]) -> Result<Option<usize>, FrameError> {
    match stream {
        [_, _, high, low, ..] => match u16::from_be_bytes([*high, *low]) {
            len if usize::from(len) < HEADER_LEN => Err(FrameError(len)),
            len => Ok(Some(len.into())),
        },
        _ => Ok(None),
    }
}

/// The transaction id of a message; zero where its header is cut short.
pub fn xid(message: &[u8]) -> u32 {
    message.get(4..HEADER_LEN).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// Whether a message, of a version after 1.0, is a change of groups.
pub fn is_group_mod(message: &[u8]) -> bool {
    message.first() > Some(&Version::V1_0.wire()) && message.get(1) == Some(&kind::GROUP_MOD)
}

/// Types of messages.
mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const GET_CONFIG_REQUEST: u8 = 7;
    pub const GET_CONFIG_REPLY: u8 = 8;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
    pub const TABLE_MOD: u8 = 17;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const GET_ASYNC_REQUEST: u8 = 26;
    pub const GET_ASYNC_REPLY: u8 = 27;
    pub const SET_ASYNC: u8 = 28;
    pub const METER_MOD: u8 = 29;
    pub const ROLE_STATUS: u8 = 30;
    pub const TABLE_STATUS: u8 = 31;
    pub const REQUEST_FORWARD: u8 = 32;
    pub const BUNDLE_CONTROL: u8 = 33;
    pub const BUNDLE_ADD: u8 = 34;
}

/// Types of ONF's messages for OpenFlow 1.3.
mod onft {
    pub const FLOW_MONITOR_CANCEL: u32 = 1870;
    pub const FLOW_MONITOR_PAUSED: u32 = 1871;
    pub const FLOW_MONITOR_RESUMED: u32 = 1872;
    pub const ROLE_STATUS: u32 = 1911;
    pub const BUNDLE_CONTROL: u32 = 2300;
    pub const BUNDLE_ADD: u32 = 2301;
    pub const REQUEST_FORWARD: u32 = 2350;
}

/// Types that OpenFlow 1.1 moved: port-mod, stats request and reply, barrier request and reply, queue-get-config
/// request and reply. The last two are gone from OpenFlow 1.4.
fn moved(version: Version) -> [u8; 7] {
    if version == Version::V1_0 { [15, 16, 17, 18, 19, 20, 21] } else { [16, 18, 19, 20, 21, 22, 23] }
}

/// Whether only switches send messages of this type.
pub fn is_of_switches(version: Version, kind: u8) -> bool {
    let [.., stats_reply, _, barrier_reply, _, queue_reply] = moved(version);
    match kind {
        kind::FEATURES_REPLY | kind::GET_CONFIG_REPLY | kind::PACKET_IN | kind::FLOW_REMOVED | kind::PORT_STATUS => {
            true
        }
        k if k == stats_reply || k == barrier_reply => true,
        k if k == queue_reply && version < Version::V1_4 => true,
        kind::ROLE_REPLY | kind::GET_ASYNC_REPLY => version >= Version::V1_2,
        kind::ROLE_STATUS | kind::TABLE_STATUS | kind::REQUEST_FORWARD => version >= Version::V1_4,
        _ => false,
    }
}

/// Subtypes of Nicira's messages.
mod nxt {
    pub const ROLE_REQUEST: u32 = 10;
    pub const ROLE_REPLY: u32 = 11;
    pub const SET_FLOW_FORMAT: u32 = 12;
    pub const FLOW_MOD: u32 = 13;
    pub const FLOW_REMOVED: u32 = 14;
    pub const FLOW_MOD_TABLE_ID: u32 = 15;
    pub const SET_PACKET_IN_FORMAT: u32 = 16;
    pub const PACKET_IN: u32 = 17;
    pub const FLOW_AGE: u32 = 18;
    pub const SET_ASYNC_CONFIG: u32 = 19;
    pub const SET_CONTROLLER_ID: u32 = 20;
    pub const FLOW_MONITOR_CANCEL: u32 = 21;
    pub const FLOW_MONITOR_PAUSED: u32 = 22;
    pub const FLOW_MONITOR_RESUMED: u32 = 23;
    pub const TLV_TABLE_MOD: u32 = 24;
    pub const TLV_TABLE_REQUEST: u32 = 25;
    pub const TLV_TABLE_REPLY: u32 = 26;
    pub const SET_ASYNC_CONFIG2: u32 = 27;
    pub const RESUME: u32 = 28;
    pub const CT_FLUSH_ZONE: u32 = 29;
    pub const PACKET_IN2: u32 = 30;
    pub const GROUP_MOD: u32 = 31;
    pub const CT_FLUSH: u32 = 32;
    pub const REQUEST_FORWARD: u32 = 132;
}

/// Reads a whole message.
pub fn decode(bytes: &[u8], options: DecodeOptions) -> Result<Message, DecodeError> {
    let mut header = [0; HEADER_LEN];
    let n = bytes.len().min(HEADER_LEN);
    header[..n].copy_from_slice(&bytes[..n]);
    let [version, kind, l0, l1, x @ ..] = header;
    let xid = u32::from_be_bytes(x);
    let fail = |error| DecodeError { error, version, kind, xid };

    if bytes.len() != usize::from(u16::from_be_bytes([l0, l1])) || bytes.len() < HEADER_LEN {
        return Err(fail(OFPBRC_BAD_LEN));
    }
    let mut r = Reader::new(&bytes[HEADER_LEN..], OFPBRC_BAD_LEN);
    // Hellos, errors and echoes are the same in all versions, and a hello of an unknown version has to
    // be understood in order to agree on a known one.
    let known = match Version::from_wire(version) {
        Some(v) if SUPPORTED.has(v) || kind <= kind::ECHO_REPLY => v,
        None if kind == kind::HELLO && version > Version::V1_5 as u8 => Version::V1_5,
        _ => return Err(fail(OFPBRC_BAD_VERSION)),
    };
    lengths::check(known, kind, bytes.len() - HEADER_LEN).map_err(fail)?;
    let head = Head { version: known, header_version: version, kind, xid, options };
    let (dialect, body) = pull_body(&mut r, &head).map_err(fail)?;
    r.done().map_err(fail)?;
    Ok(Message { version: known, xid, dialect, body })
}

/// What a message's body is read with.
struct Head {
    /// Version by which the body is read.
    version: Version,
    /// The header's version byte, which in a hello can be an unknown one.
    header_version: u8,
    kind: u8,
    xid: u32,
    options: DecodeOptions,
}

fn pull_body(r: &mut Reader, head: &Head) -> Result<(Dialect, Body), OfError> {
    let &Head { version, header_version, kind, xid, options } = head;
    let standard = Dialect::Standard;
    let since = |first: Version| version >= first;
    let [port_mod, stats_request, stats_reply, barrier_request, barrier_reply, queue_request, queue_reply] =
        moved(version);
    let body = match kind {
        kind::HELLO => Body::Hello(switch::pull_hello(r, header_version)),
        kind::ERROR => Body::Error(switch::pull_error(r, version)?),
        kind::ECHO_REQUEST => Body::EchoRequest(r.rest().to_vec()),
        kind::ECHO_REPLY => Body::EchoReply(r.rest().to_vec()),
        kind::EXPERIMENTER => return pull_experimenter(r, head),
        kind::FEATURES_REQUEST => Body::FeaturesRequest,
        kind::FEATURES_REPLY => Body::FeaturesReply(switch::pull_features(r, version)?),
        kind::GET_CONFIG_REQUEST => Body::GetConfigRequest,
        kind::GET_CONFIG_REPLY => Body::GetConfigReply(switch::pull_config(r, version)?),
        kind::SET_CONFIG => Body::SetConfig(switch::pull_config(r, version)?),
        kind::PACKET_IN => Body::PacketIn(Box::new(packet::pull_packet_in(r, version)?)),
        kind::FLOW_REMOVED => Body::FlowRemoved(Box::new(flow::pull_flow_removed(r, version, standard)?)),
        kind::PORT_STATUS => Body::PortStatus(port::pull_status(r, version)?),
        kind::PACKET_OUT => Body::PacketOut(packet::pull_packet_out(r, version)?),
        kind::FLOW_MOD => Body::FlowMod(Box::new(flow::pull_flow_mod(r, version, standard, options)?)),
        k if k == port_mod => Body::PortMod(port::pull_mod(r, version)?),
        k if k == barrier_request => Body::BarrierRequest,
        k if k == barrier_reply => Body::BarrierReply,
        k if k == stats_request => {
            let (more, dialect, request) = stats::pull_request(r, version)?;
            return Ok((dialect, Body::MultipartRequest { more, request }));
        }
        k if k == stats_reply => {
            let (more, dialect, reply) = stats::pull_reply(r, version)?;
            return Ok((dialect, Body::MultipartReply { more, reply }));
        }
        k if k == queue_request && !since(Version::V1_4) => {
            Body::QueueGetConfigRequest(queue::pull_request(r, version)?)
        }
        k if k == queue_reply && !since(Version::V1_4) => {
            let (port, queues) = queue::pull_reply(r, version)?;
            Body::QueueGetConfigReply { port, queues }
        }
        kind::GROUP_MOD if since(Version::V1_1) => Body::GroupMod(Box::new(group::pull_mod(r, version)?)),
        kind::TABLE_MOD if since(Version::V1_1) => Body::TableMod(table::pull_mod(r, version)?),
        kind::ROLE_REQUEST if since(Version::V1_2) => Body::RoleRequest(switch::pull_role(r, standard)?),
        kind::ROLE_REPLY if since(Version::V1_2) => Body::RoleReply(switch::pull_role(r, standard)?),
        kind::GET_ASYNC_REQUEST if since(Version::V1_3) => Body::GetAsyncRequest,
        kind::GET_ASYNC_REPLY if since(Version::V1_3) => {
            let masks = switch::pull_async(r, since(Version::V1_4))?;
            Body::GetAsyncReply(masks.applied(&AsyncConfig::default()))
        }
        kind::SET_ASYNC if since(Version::V1_3) => Body::SetAsync(switch::pull_async(r, since(Version::V1_4))?),
        kind::METER_MOD if since(Version::V1_3) => Body::MeterMod(meter::pull_mod(r)?),
        kind::ROLE_STATUS if since(Version::V1_4) => Body::RoleStatus(switch::pull_role_status(r)?),
        kind::TABLE_STATUS if since(Version::V1_4) => Body::TableStatus(table::pull_status(r)?),
        kind::REQUEST_FORWARD if since(Version::V1_4) => Body::RequestForward(request_forward::pull(r, version)?),
        kind::BUNDLE_CONTROL if since(Version::V1_4) => Body::BundleControl(bundle::pull_control(r)?),
        kind::BUNDLE_ADD if since(Version::V1_4) => Body::BundleAdd(bundle::pull_add(r, version.wire(), xid)?),
        _ => return Err(OFPBRC_BAD_TYPE),
    };
    Ok((standard, body))
}

fn pull_experimenter(r: &mut Reader, head: &Head) -> Result<(Dialect, Body), OfError> {
    let &Head { version, options, .. } = head;
    let experimenter = r.u32()?;
    if !matches!(experimenter, vendor::NX | vendor::ONF) {
        return Err(OFPBRC_BAD_VENDOR);
    }
    let subtype = r.u32()?;
    if experimenter == vendor::ONF {
        return Ok((Dialect::Standard, pull_onf(r, subtype, head)?));
    }
    let v10 = version == Version::V1_0;
    let nicira = Dialect::Nicira;
    let body = match subtype {
        nxt::ROLE_REQUEST => Body::RoleRequest(switch::pull_role(r, nicira)?),
        nxt::ROLE_REPLY => Body::RoleReply(switch::pull_role(r, nicira)?),
        nxt::FLOW_MOD if v10 => Body::FlowMod(Box::new(flow::pull_flow_mod(r, version, nicira, options)?)),
        nxt::FLOW_REMOVED if v10 => Body::FlowRemoved(Box::new(flow::pull_flow_removed(r, version, nicira)?)),
        nxt::SET_ASYNC_CONFIG => Body::SetAsync(switch::pull_async(r, false)?),
        other => return Ok((Dialect::Standard, pull_nicira(r, version, other)?)),
    };
    Ok((nicira, body))
}

/// ONF's messages for OpenFlow 1.3, which later versions have in the standard.
fn pull_onf(r: &mut Reader, subtype: u32, head: &Head) -> Result<Body, OfError> {
    Ok(match subtype {
        _ if head.version != Version::V1_3 => return Err(OFPBRC_BAD_SUBTYPE),
        onft::FLOW_MONITOR_CANCEL => Body::FlowMonitorCancel(r.u32()?),
        onft::FLOW_MONITOR_PAUSED => Body::FlowMonitorPaused,
        onft::FLOW_MONITOR_RESUMED => Body::FlowMonitorResumed,
        onft::ROLE_STATUS => Body::RoleStatus(switch::pull_role_status(r)?),
        onft::BUNDLE_CONTROL => Body::BundleControl(bundle::pull_control(r)?),
        onft::BUNDLE_ADD => Body::BundleAdd(bundle::pull_add(r, head.version.wire(), head.xid)?),
        onft::REQUEST_FORWARD => Body::RequestForward(request_forward::pull(r, head.version)?),
        _ => return Err(OFPBRC_BAD_SUBTYPE),
    })
}

/// Nicira's messages that have no standard counterpart.
fn pull_nicira(r: &mut Reader, version: Version, subtype: u32) -> Result<Body, OfError> {
    Ok(match subtype {
        nxt::SET_FLOW_FORMAT if version == Version::V1_0 => Body::SetFlowFormat(match r.u32()? {
            0 => FlowFormat::OpenFlow10,
            2 => FlowFormat::Nxm,
            _ => return Err(OFPBRC_EPERM),
        }),
        nxt::FLOW_MOD_TABLE_ID => {
            let set = r.u8()? != 0;
            r.skip(7)?;
            Body::FlowModTableId(set)
        }
        nxt::SET_PACKET_IN_FORMAT => Body::SetPacketInFormat(match r.u32()? {
            0 => PacketInFormat::Standard,
            1 => PacketInFormat::Nxt,
            2 => PacketInFormat::Nxt2,
            _ => return Err(OFPBRC_EPERM),
        }),
        nxt::FLOW_AGE => Body::FlowAge,
        nxt::SET_CONTROLLER_ID => {
            r.zeros(6, NXBRC_MUST_BE_ZERO)?;
            Body::SetControllerId(r.u16()?)
        }
        nxt::SET_ASYNC_CONFIG2 if version < Version::V1_4 => Body::SetAsync2(switch::pull_async(r, true)?),
        nxt::REQUEST_FORWARD if version < Version::V1_3 => Body::RequestForward(request_forward::pull(r, version)?),
        nxt::GROUP_MOD if version == Version::V1_0 => Body::GroupMod(Box::new(group::pull_mod(r, version)?)),
        nxt::FLOW_MONITOR_CANCEL if version < Version::V1_3 => Body::FlowMonitorCancel(r.u32()?),
        nxt::FLOW_MONITOR_PAUSED if version < Version::V1_3 => Body::FlowMonitorPaused,
        nxt::FLOW_MONITOR_RESUMED if version < Version::V1_3 => Body::FlowMonitorResumed,
        nxt::TLV_TABLE_MOD => Body::TlvTableMod(tlv::pull_mod(r)?),
        nxt::TLV_TABLE_REQUEST => Body::TlvTableRequest,
        nxt::TLV_TABLE_REPLY => Body::TlvTableReply(tlv::pull_reply(r)?),
        nxt::CT_FLUSH_ZONE => {
            r.zeros(6, NXBRC_MUST_BE_ZERO)?;
            Body::CtFlushZone(r.u16()?)
        }
        nxt::CT_FLUSH => Body::CtFlush(Box::new(ct::pull_flush(r)?)),
        nxt::PACKET_IN => Body::PacketIn(Box::new(packet::pull_packet_in_nxt(r, version)?)),
        nxt::RESUME => Body::Resume(Box::new(packet::pull_packet_in2(r, version)?)),
        nxt::PACKET_IN2 => Body::PacketIn(Box::new(packet::pull_packet_in2(r, version)?)),
        _ => return Err(OFPBRC_BAD_SUBTYPE),
    })
}

/// Writes a message, which has to fit into one: for multipart replies use [`encode_all`].
pub fn encode(message: &Message, options: DecodeOptions) -> Result<Vec<u8>, TooLong> {
    let mut out = start(message);
    match &message.body {
        Body::MultipartReply { more, reply } => {
            let bodies = stats::put_reply(message.version, message.dialect, *more, reply, usize::MAX).bodies;
            bodies.iter().for_each(|body| out.put(body));
        }
        _ => put_body(&mut out, message, options),
    }
    close(out)
}

/// A message as it is sent: as several, where it is a long multipart reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The bytes of each.
    pub messages: Vec<Vec<u8>>,
    /// How many entries of the reply are in none, since no message has room for one: as for a flow that was added by a later
    /// version, with shorter actions.
    pub left_out: usize,
}

/// Writes a message, cutting a multipart reply into as many as it needs.
pub fn encode_all(message: &Message, options: DecodeOptions) -> Result<Encoded, TooLong> {
    let Body::MultipartReply { more, reply } = &message.body else {
        return Ok(Encoded { messages: vec![encode(message, options)?], left_out: 0 });
    };
    let reply = stats::put_reply(message.version, message.dialect, *more, reply, MAX_LEN - HEADER_LEN);
    let whole = |body: Vec<u8>| {
        let mut out = start(message);
        out.put(&body);
        close(out)
    };
    let messages = reply.bodies.into_iter().map(whole).collect::<Result<_, _>>()?;
    Ok(Encoded { messages, left_out: reply.left_out })
}

/// How long the description of a group is, in OpenFlow 1.5, where a message has room for it.
pub fn group_len(spec: &GroupSpec) -> usize {
    group::desc_len(spec)
}

/// The header, with a length that [`close`] fills in.
fn start(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.put(&[message.version.wire(), message_kind(message), 0, 0]);
    out.u32(message.xid);
    out
}

fn close(mut out: Vec<u8>) -> Result<Vec<u8>, TooLong> {
    let len = u16::try_from(out.len()).map_err(|_| TooLong(out.len()))?;
    out.set_u16(2, len);
    Ok(out)
}

fn message_kind(message: &Message) -> u8 {
    let [port_mod, stats_request, stats_reply, barrier_request, barrier_reply, queue_request, queue_reply] =
        moved(message.version);
    if subtype(message).is_some() {
        return kind::EXPERIMENTER;
    }
    match &message.body {
        Body::Hello(_) => kind::HELLO,
        Body::Error(_) => kind::ERROR,
        Body::EchoRequest(_) => kind::ECHO_REQUEST,
        Body::EchoReply(_) => kind::ECHO_REPLY,
        Body::FeaturesRequest => kind::FEATURES_REQUEST,
        Body::FeaturesReply(_) => kind::FEATURES_REPLY,
        Body::GetConfigRequest => kind::GET_CONFIG_REQUEST,
        Body::GetConfigReply(_) => kind::GET_CONFIG_REPLY,
        Body::SetConfig(_) => kind::SET_CONFIG,
        Body::PacketIn(_) => kind::PACKET_IN,
        Body::FlowRemoved(_) => kind::FLOW_REMOVED,
        Body::PortStatus(_) => kind::PORT_STATUS,
        Body::PacketOut(_) => kind::PACKET_OUT,
        Body::FlowMod(_) => kind::FLOW_MOD,
        Body::PortMod(_) => port_mod,
        Body::BarrierRequest => barrier_request,
        Body::BarrierReply => barrier_reply,
        Body::MultipartRequest { .. } => stats_request,
        Body::MultipartReply { .. } => stats_reply,
        Body::RoleRequest(_) => kind::ROLE_REQUEST,
        Body::RoleReply(_) => kind::ROLE_REPLY,
        Body::GetAsyncRequest => kind::GET_ASYNC_REQUEST,
        Body::GetAsyncReply(_) => kind::GET_ASYNC_REPLY,
        Body::SetAsync(_) => kind::SET_ASYNC,
        Body::TableMod(_) => kind::TABLE_MOD,
        Body::GroupMod(_) => kind::GROUP_MOD,
        Body::MeterMod(_) => kind::METER_MOD,
        Body::QueueGetConfigRequest(_) => queue_request,
        Body::QueueGetConfigReply { .. } => queue_reply,
        Body::BundleControl(_) => kind::BUNDLE_CONTROL,
        Body::BundleAdd(_) => kind::BUNDLE_ADD,
        Body::RoleStatus(_) => kind::ROLE_STATUS,
        Body::TableStatus(_) => kind::TABLE_STATUS,
        Body::RequestForward(_) => kind::REQUEST_FORWARD,
        Body::SetFlowFormat(_)
        | Body::FlowModTableId(_)
        | Body::SetPacketInFormat(_)
        | Body::Resume(_)
        | Body::FlowAge
        | Body::SetControllerId(_)
        | Body::FlowMonitorCancel(_)
        | Body::FlowMonitorPaused
        | Body::FlowMonitorResumed
        | Body::SetAsync2(_)
        | Body::TlvTableMod(_)
        | Body::TlvTableRequest
        | Body::TlvTableReply(_)
        | Body::CtFlushZone(_)
        | Body::CtFlush(_) => kind::EXPERIMENTER,
    }
}

/// Experimenter and subtype of a message that is written as an extension: because it is asked for, or because
/// the version has no other.
fn subtype(message: &Message) -> Option<(u32, u32)> {
    let onf = match &message.body {
        _ if message.version >= Version::V1_4 => None,
        Body::BundleControl(_) => Some(onft::BUNDLE_CONTROL),
        Body::BundleAdd(_) => Some(onft::BUNDLE_ADD),
        Body::RoleStatus(_) => Some(onft::ROLE_STATUS),
        Body::RequestForward(_) if message.version == Version::V1_3 => Some(onft::REQUEST_FORWARD),
        _ if message.version < Version::V1_3 => None,
        Body::FlowMonitorCancel(_) => Some(onft::FLOW_MONITOR_CANCEL),
        Body::FlowMonitorPaused => Some(onft::FLOW_MONITOR_PAUSED),
        Body::FlowMonitorResumed => Some(onft::FLOW_MONITOR_RESUMED),
        _ => None,
    };
    onf.map(|subtype| (vendor::ONF, subtype)).or_else(|| nicira_subtype(message).map(|subtype| (vendor::NX, subtype)))
}

fn nicira_subtype(message: &Message) -> Option<u32> {
    let v10 = message.version == Version::V1_0;
    let nicira = message.dialect == Dialect::Nicira;
    let before = |version| message.version < version;
    match &message.body {
        Body::RoleRequest(_) if nicira || before(Version::V1_2) => Some(nxt::ROLE_REQUEST),
        Body::RoleReply(_) if nicira || before(Version::V1_2) => Some(nxt::ROLE_REPLY),
        Body::SetAsync(_) if nicira || before(Version::V1_3) => Some(nxt::SET_ASYNC_CONFIG),
        Body::GroupMod(_) if v10 => Some(nxt::GROUP_MOD),
        Body::RequestForward(_) if before(Version::V1_3) => Some(nxt::REQUEST_FORWARD),
        Body::SetAsync2(_) => Some(nxt::SET_ASYNC_CONFIG2),
        Body::TlvTableMod(_) => Some(nxt::TLV_TABLE_MOD),
        Body::TlvTableRequest => Some(nxt::TLV_TABLE_REQUEST),
        Body::TlvTableReply(_) => Some(nxt::TLV_TABLE_REPLY),
        Body::CtFlushZone(_) => Some(nxt::CT_FLUSH_ZONE),
        Body::CtFlush(_) => Some(nxt::CT_FLUSH),
        Body::FlowMod(_) if nicira && v10 => Some(nxt::FLOW_MOD),
        Body::FlowRemoved(_) if nicira && v10 => Some(nxt::FLOW_REMOVED),
        Body::PacketIn(p) if p.format == PacketInFormat::Nxt => Some(nxt::PACKET_IN),
        Body::PacketIn(p) if p.format == PacketInFormat::Nxt2 => Some(nxt::PACKET_IN2),
        Body::SetFlowFormat(_) => Some(nxt::SET_FLOW_FORMAT),
        Body::FlowModTableId(_) => Some(nxt::FLOW_MOD_TABLE_ID),
        Body::SetPacketInFormat(_) => Some(nxt::SET_PACKET_IN_FORMAT),
        Body::Resume(_) => Some(nxt::RESUME),
        Body::FlowAge => Some(nxt::FLOW_AGE),
        Body::SetControllerId(_) => Some(nxt::SET_CONTROLLER_ID),
        Body::FlowMonitorCancel(_) => Some(nxt::FLOW_MONITOR_CANCEL),
        Body::FlowMonitorPaused => Some(nxt::FLOW_MONITOR_PAUSED),
        Body::FlowMonitorResumed => Some(nxt::FLOW_MONITOR_RESUMED),
        _ => None,
    }
}

fn put_body(out: &mut Vec<u8>, message: &Message, options: DecodeOptions) {
    let version = message.version;
    let mut dialect = message.dialect;
    if let Some((experimenter, subtype)) = subtype(message) {
        out.u32(experimenter);
        out.u32(subtype);
        dialect = Dialect::Nicira;
    }
    let properties = version >= Version::V1_4 && dialect == Dialect::Standard;
    match &message.body {
        Body::Hello(hello) => {
            out[0] = switch::hello_version(hello);
            switch::put_hello(out, hello, out[0]);
        }
        Body::Error(e) => switch::put_error(out, version, e),
        Body::EchoRequest(data) | Body::EchoReply(data) => out.put(data),
        Body::FeaturesReply(f) => switch::put_features(out, version, f),
        Body::GetConfigReply(c) | Body::SetConfig(c) => switch::put_config(out, c),
        Body::PacketIn(p) => packet::put_packet_in(out, version, p),
        Body::Resume(p) => packet::put_packet_in2(out, version, p),
        Body::FlowRemoved(f) => flow::put_flow_removed(out, version, dialect, f),
        Body::PortStatus(s) => port::put_status(out, version, s),
        Body::PacketOut(p) => packet::put_packet_out(out, version, p),
        Body::FlowMod(f) => flow::put_flow_mod(out, version, dialect, f, options),
        Body::PortMod(p) => port::put_mod(out, version, p),
        Body::RoleRequest(m) | Body::RoleReply(m) => switch::put_role(out, dialect, m),
        Body::GetAsyncReply(a) => switch::put_async(out, &AsyncChange::to(a), properties),
        Body::SetAsync(a) => switch::put_async(out, a, properties),
        Body::SetAsync2(a) => switch::put_async(out, a, true),
        Body::TableMod(t) => table::put_mod(out, version, t),
        Body::GroupMod(g) => group::put_mod(out, version, g),
        Body::MeterMod(m) => meter::put_mod(out, m),
        Body::QueueGetConfigRequest(port) => queue::put_request(out, version, *port),
        Body::QueueGetConfigReply { port, queues } => queue::put_reply(out, version, *port, queues),
        Body::BundleControl(b) => bundle::put_control(out, b),
        Body::BundleAdd(b) => bundle::put_add(out, b),
        Body::RoleStatus(s) => switch::put_role_status(out, s),
        Body::TableStatus(s) => table::put_status(out, s),
        Body::RequestForward(forwarded) => request_forward::put(out, version, message.xid, forwarded),
        Body::TlvTableMod(t) => tlv::put_mod(out, t),
        Body::TlvTableReply(t) => tlv::put_reply(out, t),
        Body::MultipartRequest { more, request } => stats::put_request(out, version, dialect, *more, request),
        Body::SetFlowFormat(format) => out.u32(*format as u32),
        Body::FlowModTableId(set) => out.put(&[(*set).into(), 0, 0, 0, 0, 0, 0, 0]),
        Body::SetPacketInFormat(format) => out.u32(*format as u32),
        Body::SetControllerId(number) | Body::CtFlushZone(number) => {
            out.zeros(6);
            out.u16(*number);
        }
        Body::CtFlush(flush) => ct::put_flush(out, flush),
        Body::FlowMonitorCancel(id) => out.u32(*id),
        // Only a header; multipart replies are written by the callers.
        Body::FeaturesRequest
        | Body::GetConfigRequest
        | Body::BarrierRequest
        | Body::BarrierReply
        | Body::GetAsyncRequest
        | Body::TlvTableRequest
        | Body::FlowAge
        | Body::FlowMonitorPaused
        | Body::FlowMonitorResumed
        | Body::MultipartReply { .. } => {}
    }
}

/// Decodes; what decodes is encoded and decoded twice more, and the second reading has to be the same as the
/// third. For fuzzing.
///
/// The first can differ: actions of older versions are written as those of the message's version, a match of a
/// switch can have fields without their prerequisites, which are not written, and a hello's header can name
/// another version than the latest of its bitmap.
///
/// # Panics
///
/// Where encoding loses what decoding found.
pub fn fuzz(bytes: &[u8]) {
    for flow_mod_table_id in [false, true] {
        let options = DecodeOptions { flow_mod_table_id };
        let again = |message: &Message| {
            // What its sender wrote shorter than we do can become too long.
            let bytes = encode(message, options).ok()?;
            Some(decode(&bytes, options).unwrap_or_else(|e| panic!("{e}: {message:?} became {bytes:02x?}")))
        };
        let Some(second) = decode(bytes, options).ok().and_then(|first| again(&first)) else { continue };
        if let Some(third) = again(&second) {
            assert_eq!(second, third);
        }
    }
}
