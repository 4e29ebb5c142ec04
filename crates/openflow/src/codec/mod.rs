//! Messages as bytes, and bytes as messages.
//!
//! A message is a header (version, type, length, xid) and a body. [`decode`] takes whole messages, which
//! [`frame_len`] cuts out of a byte stream; what is wrong with one comes back as the OpenFlow error that
//! the sender is to be told ([`DecodeError::reply`]). Nothing in here panics on any input.
//!
//! Versions 1.0 and 1.3 are complete ([`SUPPORTED`]). The modules decide by comparing versions, so that what a
//! later version changes is one more arm where it changes.

mod action;
mod flow;
mod instruction;
mod match10;
mod oxm;
mod packet;
mod port;
mod prop;
mod stats;
mod switch;
mod table_features;
mod wire;

#[cfg(test)]
mod tests;

use crate::error::OfError::{self, *};
use crate::error::{ErrorCode, ErrorMsg, vendor};
use crate::message::{Body, Dialect, Message};
use crate::packet_msg::PacketInFormat;
use crate::switch::FlowFormat;
use crate::types::{Version, Versions};
use wire::{Put, Reader};

pub use match10::OFPFW_ALL;

/// The versions whose messages can be decoded and encoded. Hellos, errors and echoes of all others can.
pub const SUPPORTED: Versions = Versions(1 << Version::V1_0 as u32 | 1 << Version::V1_3 as u32);

/// Bytes of a header.
pub const HEADER_LEN: usize = 8;

/// The most bytes that a message can have.
pub const MAX_LEN: usize = 0xffff;

/// How many bytes of a message an error about it quotes (OpenFlow 1.3.5 section 7.4.4: at least 64).
pub const ERROR_QUOTE_LEN: usize = 64;

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
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const GET_ASYNC_REQUEST: u8 = 26;
    pub const GET_ASYNC_REPLY: u8 = 27;
    pub const SET_ASYNC: u8 = 28;
}

/// Types that OpenFlow 1.1 moved: port-mod, stats request and reply, barrier request and reply.
fn moved(version: Version) -> [u8; 5] {
    if version == Version::V1_0 { [15, 16, 17, 18, 19] } else { [16, 18, 19, 20, 21] }
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
    pub const SET_ASYNC_CONFIG: u32 = 19;
    pub const SET_CONTROLLER_ID: u32 = 20;
    pub const PACKET_IN2: u32 = 30;
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
    let (dialect, body) = pull_body(&mut r, known, kind, version, options).map_err(fail)?;
    r.done().map_err(fail)?;
    Ok(Message { version: known, xid, dialect, body })
}

fn pull_body(
    r: &mut Reader,
    version: Version,
    kind: u8,
    header_version: u8,
    options: DecodeOptions,
) -> Result<(Dialect, Body), OfError> {
    let standard = Dialect::Standard;
    let v13 = version >= Version::V1_3;
    let [port_mod, stats_request, stats_reply, barrier_request, barrier_reply] = moved(version);
    let body = match kind {
        kind::HELLO => Body::Hello(switch::pull_hello(r, header_version)),
        kind::ERROR => Body::Error(switch::pull_error(r, version)?),
        kind::ECHO_REQUEST => Body::EchoRequest(r.rest().to_vec()),
        kind::ECHO_REPLY => Body::EchoReply(r.rest().to_vec()),
        kind::EXPERIMENTER => return pull_experimenter(r, version, options),
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
        kind::ROLE_REQUEST if v13 => Body::RoleRequest(switch::pull_role(r, standard)?),
        kind::ROLE_REPLY if v13 => Body::RoleReply(switch::pull_role(r, standard)?),
        kind::GET_ASYNC_REQUEST if v13 => Body::GetAsyncRequest,
        kind::GET_ASYNC_REPLY if v13 => Body::GetAsyncReply(switch::pull_async(r)?),
        kind::SET_ASYNC if v13 => Body::SetAsync(switch::pull_async(r)?),
        _ => return Err(OFPBRC_BAD_TYPE),
    };
    Ok((standard, body))
}

fn pull_experimenter(r: &mut Reader, version: Version, options: DecodeOptions) -> Result<(Dialect, Body), OfError> {
    let (experimenter, subtype) = (r.u32()?, r.u32()?);
    if experimenter != vendor::NX {
        return Err(OFPBRC_BAD_VENDOR);
    }
    let v10 = version == Version::V1_0;
    let nicira = Dialect::Nicira;
    let body = match subtype {
        nxt::ROLE_REQUEST => Body::RoleRequest(switch::pull_role(r, nicira)?),
        nxt::ROLE_REPLY => Body::RoleReply(switch::pull_role(r, nicira)?),
        nxt::FLOW_MOD if v10 => Body::FlowMod(Box::new(flow::pull_flow_mod(r, version, nicira, options)?)),
        nxt::FLOW_REMOVED if v10 => Body::FlowRemoved(Box::new(flow::pull_flow_removed(r, version, nicira)?)),
        nxt::SET_ASYNC_CONFIG => Body::SetAsync(switch::pull_async(r)?),
        other => return Ok((Dialect::Standard, pull_nicira(r, version, other)?)),
    };
    Ok((nicira, body))
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
        nxt::SET_CONTROLLER_ID => {
            r.zeros(6, NXBRC_MUST_BE_ZERO)?;
            Body::SetControllerId(r.u16()?)
        }
        nxt::PACKET_IN => Body::PacketIn(Box::new(packet::pull_packet_in_nxt(r, version)?)),
        nxt::PACKET_IN2 => Body::PacketIn(Box::new(packet::pull_packet_in2(r, version)?)),
        _ => return Err(OFPBRC_BAD_SUBTYPE),
    })
}

/// Writes a message, which has to fit into one: for multipart replies use [`encode_all`].
pub fn encode(message: &Message, options: DecodeOptions) -> Result<Vec<u8>, TooLong> {
    let mut out = start(message);
    match &message.body {
        Body::MultipartReply { more, reply } => {
            let bodies = stats::put_reply(message.version, message.dialect, *more, reply, usize::MAX);
            bodies.iter().for_each(|body| out.put(body));
        }
        _ => put_body(&mut out, message, options),
    }
    close(out)
}

/// Writes a message, cutting a multipart reply into as many as it needs. An entry that no message has room
/// for is left out.
pub fn encode_all(message: &Message, options: DecodeOptions) -> Result<Vec<Vec<u8>>, TooLong> {
    let Body::MultipartReply { more, reply } = &message.body else {
        return Ok(vec![encode(message, options)?]);
    };
    stats::put_reply(message.version, message.dialect, *more, reply, MAX_LEN - HEADER_LEN)
        .into_iter()
        .map(|body| {
            let mut out = start(message);
            out.put(&body);
            close(out)
        })
        .collect()
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
    let [port_mod, stats_request, stats_reply, barrier_request, barrier_reply] = moved(message.version);
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
        Body::SetFlowFormat(_) | Body::FlowModTableId(_) | Body::SetPacketInFormat(_) | Body::SetControllerId(_) => {
            kind::EXPERIMENTER
        }
    }
}

/// The subtype of a message that is written as Nicira's: because it is asked for, or because the version
/// has no other.
fn subtype(message: &Message) -> Option<u32> {
    let v10 = message.version == Version::V1_0;
    let nicira = message.dialect == Dialect::Nicira;
    let no_standard = message.version < Version::V1_3;
    match &message.body {
        Body::RoleRequest(_) if nicira || no_standard => Some(nxt::ROLE_REQUEST),
        Body::RoleReply(_) if nicira || no_standard => Some(nxt::ROLE_REPLY),
        Body::SetAsync(_) if nicira || no_standard => Some(nxt::SET_ASYNC_CONFIG),
        Body::FlowMod(_) if nicira && v10 => Some(nxt::FLOW_MOD),
        Body::FlowRemoved(_) if nicira && v10 => Some(nxt::FLOW_REMOVED),
        Body::PacketIn(p) if p.format == PacketInFormat::Nxt => Some(nxt::PACKET_IN),
        Body::PacketIn(p) if p.format == PacketInFormat::Nxt2 => Some(nxt::PACKET_IN2),
        Body::SetFlowFormat(_) => Some(nxt::SET_FLOW_FORMAT),
        Body::FlowModTableId(_) => Some(nxt::FLOW_MOD_TABLE_ID),
        Body::SetPacketInFormat(_) => Some(nxt::SET_PACKET_IN_FORMAT),
        Body::SetControllerId(_) => Some(nxt::SET_CONTROLLER_ID),
        _ => None,
    }
}

fn put_body(out: &mut Vec<u8>, message: &Message, options: DecodeOptions) {
    let version = message.version;
    let mut dialect = message.dialect;
    if let Some(subtype) = subtype(message) {
        out.u32(vendor::NX);
        out.u32(subtype);
        dialect = Dialect::Nicira;
    }
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
        Body::FlowRemoved(f) => flow::put_flow_removed(out, version, dialect, f),
        Body::PortStatus(s) => port::put_status(out, version, s),
        Body::PacketOut(p) => packet::put_packet_out(out, version, p),
        Body::FlowMod(f) => flow::put_flow_mod(out, version, dialect, f, options),
        Body::PortMod(p) => port::put_mod(out, version, p),
        Body::RoleRequest(m) | Body::RoleReply(m) => switch::put_role(out, dialect, m),
        Body::GetAsyncReply(a) | Body::SetAsync(a) => switch::put_async(out, a),
        Body::MultipartRequest { more, request } => stats::put_request(out, version, dialect, *more, request),
        Body::SetFlowFormat(format) => out.u32(*format as u32),
        Body::FlowModTableId(set) => out.put(&[(*set).into(), 0, 0, 0, 0, 0, 0, 0]),
        Body::SetPacketInFormat(format) => out.u32(*format as u32),
        Body::SetControllerId(id) => {
            out.zeros(6);
            out.u16(*id);
        }
        // Only a header; multipart replies are written by the callers.
        Body::FeaturesRequest
        | Body::GetConfigRequest
        | Body::BarrierRequest
        | Body::BarrierReply
        | Body::GetAsyncRequest
        | Body::MultipartReply { .. } => {}
    }
}

/// Decodes; what decodes is encoded and decoded again, and has to be the same. For fuzzing.
///
/// The messages of a switch are read leniently: a match in them can have fields without their prerequisites,
/// which are not written, and a hello's header can name another version than the latest of its bitmap. Of
/// these the second reading has to be the same as the third.
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
        let Ok(mut first) = decode(bytes, options) else { continue };
        if matches!(first.body, Body::Hello(_) | Body::PacketIn(_) | Body::FlowRemoved(_) | Body::MultipartReply { .. })
        {
            first = match again(&first) {
                Some(second) => second,
                None => continue,
            };
        }
        if let Some(second) = again(&first) {
            assert_eq!(first, second);
        }
    }
}
