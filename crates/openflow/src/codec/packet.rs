//! Packet-in in its three forms, and packet-out.

use super::flow::{port16, pull_buffer, pull_port16, pull_port32};
use super::wire::{Put, Reader};
use super::{action, action::Within, oxm, prop};
use crate::error::OfError::{self, *};
use crate::matching::Match;
use crate::packet_msg::{PacketIn, PacketInFormat, PacketOut};
use crate::types::{Cookie, CookieFilter, OfPort, PacketInReason, TableId, Version};

/// The reason with this number; one that the version does not know counts as an action.
fn known_reason(version: Version, n: u8) -> PacketInReason {
    let reason = reason_from_wire(n);
    if version < Version::V1_4 && reason > PacketInReason::InvalidTtl { PacketInReason::Action } else { reason }
}

/// The reason with this number; an unknown one counts as an action.
pub(super) fn reason_from_wire(n: u8) -> PacketInReason {
    use PacketInReason::*;
    [NoMatch, Action, InvalidTtl, ActionSet, Group, PacketOut].into_iter().find(|&r| r as u8 == n).unwrap_or(Action)
}

/// The number of a reason, of those that the version knows.
fn reason_to_wire(version: Version, reason: PacketInReason) -> u8 {
    use PacketInReason::*;
    match reason {
        ImplicitMiss => NoMatch as u8,
        ActionSet | Group | PacketOut if version < Version::V1_4 => Action as u8,
        other => other as u8,
    }
}

fn known_cookie(cookie: u64) -> Option<Cookie> {
    (cookie != u64::MAX).then_some(Cookie(cookie))
}

fn cookie_to_wire(cookie: Option<Cookie>) -> u64 {
    cookie.map_or(u64::MAX, |c| c.0)
}

/// Reads the body of OFPT_PACKET_IN.
pub(super) fn pull_packet_in(r: &mut Reader, version: Version) -> Result<PacketIn, OfError> {
    let buffer_id = pull_buffer(r)?;
    let mut in_port = None;
    if version == Version::V1_1 {
        in_port = Some(pull_port32(r)?);
        // The physical port behind a logical one.
        r.skip(4)?;
    }
    let mut p = PacketIn {
        format: PacketInFormat::Standard,
        buffer_id,
        total_len: r.u16()?.into(),
        reason: PacketInReason::Action,
        table: TableId(0),
        cookie: None,
        metadata: Match::any(),
        data: Vec::new(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    };
    if version == Version::V1_0 {
        p.metadata.set_in_port(pull_port16(r)?);
        p.reason = known_reason(version, r.u8()?);
        r.skip(1)?;
    } else {
        p.reason = known_reason(version, r.u8()?);
        p.table = TableId(r.u8()?);
    }
    if version >= Version::V1_3 {
        p.cookie = known_cookie(r.u64()?);
    }
    if let Some(port) = in_port {
        p.metadata.set_in_port(port);
    } else if version > Version::V1_0 {
        p.metadata = oxm::pull_oxm_match(r, true)?;
        r.skip(2)?;
    }
    p.data = r.rest().to_vec();
    Ok(p)
}

/// Reads the body of NXT_PACKET_IN.
pub(super) fn pull_packet_in_nxt(r: &mut Reader, version: Version) -> Result<PacketIn, OfError> {
    let buffer_id = pull_buffer(r)?;
    let total_len = r.u16()?.into();
    let reason = known_reason(version, r.u8()?);
    let (table, cookie, match_len) = (TableId(r.u8()?), known_cookie(r.u64()?), r.u16()?);
    r.skip(6)?;
    let metadata = oxm::pull_nxm(r, match_len.into(), true, None)?;
    r.skip(2)?;
    Ok(PacketIn {
        format: PacketInFormat::Nxt,
        buffer_id,
        total_len,
        reason,
        table,
        cookie,
        metadata,
        data: r.rest().to_vec(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    })
}

/// NXPINT_*: properties of NXT_PACKET_IN2.
mod pint {
    pub const PACKET: u16 = 0;
    pub const FULL_LEN: u16 = 1;
    pub const BUFFER_ID: u16 = 2;
    pub const TABLE_ID: u16 = 3;
    pub const COOKIE: u16 = 4;
    pub const REASON: u16 = 5;
    pub const METADATA: u16 = 6;
    pub const USERDATA: u16 = 7;
    pub const CONTINUATION: u16 = 8;
}

/// Reads the body of NXT_PACKET_IN2.
pub(super) fn pull_packet_in2(r: &mut Reader, version: Version) -> Result<PacketIn, OfError> {
    let mut p = PacketIn {
        format: PacketInFormat::Nxt2,
        buffer_id: None,
        total_len: 0,
        reason: PacketInReason::NoMatch,
        table: TableId(0),
        cookie: None,
        metadata: Match::any(),
        data: Vec::new(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    };
    let mut full_len = 0;
    while !r.is_empty() {
        let (kind, mut v) = prop::pull(r)?;
        match kind {
            pint::PACKET => p.data = v.rest().to_vec(),
            pint::FULL_LEN => full_len = v.u32()?,
            pint::BUFFER_ID => p.buffer_id = pull_buffer(&mut v)?,
            pint::TABLE_ID => p.table = TableId(prop::byte(&mut v)?),
            pint::COOKIE => {
                v.skip(4)?;
                p.cookie = known_cookie(v.u64()?);
            }
            pint::REASON => p.reason = known_reason(version, prop::byte(&mut v)?),
            pint::METADATA => p.metadata = oxm::pull_entries(v.sub(v.len())?, true, None)?,
            pint::USERDATA => p.userdata = v.rest().to_vec(),
            pint::CONTINUATION => p.continuation = v.rest().to_vec(),
            _ => return Err(OFPBPC_BAD_TYPE),
        }
        v.done()?;
    }
    p.total_len = full_len.max(p.data.len() as u32);
    Ok(p)
}

/// Writes the body of a packet-in, in its format.
pub(super) fn put_packet_in(out: &mut Vec<u8>, version: Version, p: &PacketIn) {
    let total_len = p.total_len.min(0xffff) as u16;
    let buffer_id = p.buffer_id.unwrap_or(u32::MAX);
    match p.format {
        PacketInFormat::Standard if version == Version::V1_0 => {
            out.u32(buffer_id);
            out.u16(total_len);
            out.u16(port16(p.in_port()));
            out.put(&[reason_to_wire(version, p.reason), 0]);
        }
        PacketInFormat::Standard if version == Version::V1_1 => {
            out.u32(buffer_id);
            out.u32(p.in_port().0);
            out.u32(p.in_port().0);
            out.u16(total_len);
            out.put(&[reason_to_wire(version, p.reason), p.table.0]);
        }
        PacketInFormat::Standard => {
            out.u32(buffer_id);
            out.u16(total_len);
            out.put(&[reason_to_wire(version, p.reason), p.table.0]);
            if version >= Version::V1_3 {
                out.u64(cookie_to_wire(p.cookie));
            }
            oxm::put_oxm_match(out, version, &p.metadata);
            out.zeros(2);
        }
        PacketInFormat::Nxt => {
            out.u32(buffer_id);
            out.u16(total_len);
            out.put(&[reason_to_wire(version, p.reason), p.table.0]);
            out.u64(cookie_to_wire(p.cookie));
            let len_at = out.here();
            out.zeros(8);
            oxm::put_nxm(out, version, &p.metadata, CookieFilter::default(), len_at);
            out.zeros(2);
        }
        PacketInFormat::Nxt2 => return put_packet_in2(out, version, p),
    }
    out.put(&p.data);
}

/// Writes the body of NXT_PACKET_IN2 or NXT_RESUME.
pub(super) fn put_packet_in2(out: &mut Vec<u8>, version: Version, p: &PacketIn) {
    prop::put(out, pint::PACKET, &p.data);
    if p.total_len as usize > p.data.len() {
        prop::put(out, pint::FULL_LEN, &p.total_len.to_be_bytes());
    }
    if let Some(id) = p.buffer_id {
        prop::put(out, pint::BUFFER_ID, &id.to_be_bytes());
    }
    prop::put(out, pint::TABLE_ID, &[p.table.0]);
    if let Some(cookie) = p.cookie {
        prop::put_u64(out, pint::COOKIE, cookie.0);
    }
    prop::put(out, pint::REASON, &[reason_to_wire(version, p.reason)]);
    let mut metadata = Vec::new();
    oxm::put_entries(&mut metadata, version, &p.metadata);
    prop::put(out, pint::METADATA, &metadata);
    for (kind, value) in [(pint::USERDATA, &p.userdata), (pint::CONTINUATION, &p.continuation)] {
        if !value.is_empty() {
            prop::put(out, kind, value);
        }
    }
}

/// Reads the body of a packet-out.
pub(super) fn pull_packet_out(r: &mut Reader, version: Version) -> Result<PacketOut, OfError> {
    let buffer_id = pull_buffer(r)?;
    let mut in_port = match version {
        Version::V1_0 => pull_port16(r)?,
        Version::V1_5 => OfPort::ANY,
        _ => pull_port32(r)?,
    };
    let len = usize::from(r.u16()?);
    r.skip(match version {
        Version::V1_0 => 0,
        Version::V1_5 => 2,
        _ => 6,
    })?;
    let mut metadata = Match::any();
    if version == Version::V1_5 {
        metadata = oxm::pull_oxm_match(r, false)?;
        // Section 7.3.6: the match must have the input port.
        in_port = metadata.in_port().ok_or(OFPBRC_BAD_PORT)?;
        metadata.clear(packet::Field::InPortOxm);
    }
    // From no port, LOCAL, CONTROLLER and (Nicira) IN_PORT packets can come too.
    let known = matches!(in_port, OfPort::LOCAL | OfPort::ANY | OfPort::CONTROLLER | OfPort::IN_PORT);
    if in_port.is_reserved() && !known {
        return Err(OFPBRC_BAD_PORT);
    }
    let actions = r.sub(len)?;
    let actions = action::pull_actions(actions.with(OFPBAC_BAD_LEN), version, Within::List)?;
    let data = if buffer_id.is_none() { r.rest().to_vec() } else { Vec::new() };
    r.rest();
    Ok(PacketOut { buffer_id, in_port, metadata, actions, data })
}

/// Writes the body of a packet-out.
pub(super) fn put_packet_out(out: &mut Vec<u8>, version: Version, p: &PacketOut) {
    out.u32(p.buffer_id.unwrap_or(u32::MAX));
    match version {
        Version::V1_0 => out.u16(port16(p.in_port)),
        Version::V1_5 => {}
        _ => out.u32(p.in_port.0),
    }
    let len_at = out.here();
    out.zeros(match version {
        Version::V1_0 => 2,
        Version::V1_5 => 4,
        _ => 8,
    });
    if version == Version::V1_5 {
        let mut metadata = p.metadata.clone();
        metadata.set_in_port(p.in_port);
        oxm::put_oxm_match(out, version, &metadata);
    }
    let start = out.here();
    action::put_actions(out, version, &p.actions);
    let len = (out.here() - start).min(0xffff) as u16;
    out.set_u16(len_at, len);
    out.put(&p.data);
}
