//! Flows in multipart messages: which ones are asked for, each of them, sums over them.

use crate::codec::flow::{port16, pull_match, pull_port16, pull_port32, put_match};
use crate::codec::oxs::{self, Oxs};
use crate::codec::wire::{Put, Reader, pull_duration, put_duration};
use crate::codec::{instruction, match10, oxm};
use crate::error::OfError;
use crate::message::Dialect;
use crate::stats::*;
use crate::types::{Cookie, CookieFilter, FlowModFlags, GroupId, TableId, Version};

/// Reads which flows a request is about.
pub(super) fn pull_flow_request(
    r: &mut Reader,
    version: Version,
    dialect: Dialect,
) -> Result<FlowStatsRequest, OfError> {
    let mut cookie = CookieFilter::default();
    if version == Version::V1_0 && dialect == Dialect::Nicira {
        let (out_port, match_len, table) = (pull_port16(r)?, r.u16()?, TableId(r.u8()?));
        r.skip(3)?;
        let matching = oxm::pull_nxm(r, match_len.into(), false, Some(&mut cookie))?;
        return Ok(FlowStatsRequest { matching, table, out_port, out_group: GroupId::ANY, cookie });
    }
    if version == Version::V1_0 {
        let (matching, table) = (match10::pull(r)?, TableId(r.u8()?));
        r.skip(1)?;
        return Ok(FlowStatsRequest { matching, table, out_port: pull_port16(r)?, out_group: GroupId::ANY, cookie });
    }
    let table = TableId(r.u8()?);
    r.skip(3)?;
    let (out_port, out_group) = (pull_port32(r)?, GroupId(r.u32()?));
    r.skip(4)?;
    let (value, mask) = (r.u64()?, r.u64()?);
    cookie = CookieFilter { value: value & mask, mask };
    Ok(FlowStatsRequest { matching: pull_match(r, version, false)?, table, out_port, out_group, cookie })
}

/// Writes which flows a request is about.
pub(super) fn put_flow_request(out: &mut Vec<u8>, version: Version, dialect: Dialect, q: &FlowStatsRequest) {
    if version == Version::V1_0 && dialect == Dialect::Nicira {
        out.u16(port16(q.out_port));
        let len_at = out.here();
        out.u16(0);
        out.put(&[q.table.0, 0, 0, 0]);
        return oxm::put_nxm(out, version, &q.matching, q.cookie, len_at);
    }
    if version == Version::V1_0 {
        match10::put(out, &q.matching);
        out.put(&[q.table.0, 0]);
        return out.u16(port16(q.out_port));
    }
    out.put(&[q.table.0, 0, 0, 0]);
    out.u32(q.out_port.0);
    out.u32(q.out_group.0);
    out.zeros(4);
    out.u64(q.cookie.value);
    out.u64(q.cookie.mask);
    put_match(out, version, &q.matching);
}

/// Reads sums over flows.
pub(super) fn pull_sums(r: &mut Reader, version: Version) -> Result<AggregateStats, OfError> {
    if version >= Version::V1_5 {
        let stats = oxs::pull(r)?;
        return Ok(AggregateStats {
            packet_count: stats.packets.unwrap_or(u64::MAX),
            byte_count: stats.bytes.unwrap_or(u64::MAX),
            flow_count: stats.flows.unwrap_or(0),
        });
    }
    let sums = AggregateStats { packet_count: r.u64()?, byte_count: r.u64()?, flow_count: r.u32()? };
    r.skip(4)?;
    Ok(sums)
}

/// Writes sums over flows.
pub(super) fn put_sums(out: &mut Vec<u8>, version: Version, a: &AggregateStats) {
    if version >= Version::V1_5 {
        let (packets, bytes) = (oxs::known(a.packet_count), oxs::known(a.byte_count));
        return oxs::put(out, &Oxs { flows: Some(a.flow_count), packets, bytes, ..Oxs::default() });
    }
    out.u64(a.packet_count);
    out.u64(a.byte_count);
    out.u32(a.flow_count);
    out.zeros(4);
}

/// Reads a flow.
pub(super) fn pull_flow(r: &mut Reader, version: Version, dialect: Dialect) -> Result<FlowStats, OfError> {
    if version >= Version::V1_5 {
        return pull_flow15(r, version);
    }
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(2)?;
    let table = TableId(r.u8()?);
    r.skip(1)?;
    let v10 = version == Version::V1_0;
    let early = if v10 && dialect == Dialect::Standard { Some(match10::pull(&mut r)?) } else { None };
    let duration = pull_duration(&mut r)?;
    let (priority, idle_timeout, hard_timeout) = (r.u16()?, r.u16()?, r.u16()?);
    // Six bytes that every form uses in its own way.
    let (a, b, c) = (r.u16()?, r.u16()?, r.u16()?);
    let (cookie, packet_count, byte_count) = (Cookie(r.u64()?), r.u64()?, r.u64()?);
    let nicira = v10 && dialect == Dialect::Nicira;
    let matching = match early {
        Some(m) => m,
        None if nicira => oxm::pull_nxm(&mut r, a.into(), true, None)?,
        None => pull_match(&mut r, version, true)?,
    };
    let flags = if version >= Version::V1_3 { a } else { 0 };
    let age = |n: u16| if nicira { n.checked_sub(1) } else { None };
    Ok(FlowStats {
        matching,
        cookie,
        table,
        priority,
        idle_timeout,
        hard_timeout,
        duration,
        idle_age: age(b),
        hard_age: age(c),
        packet_count,
        byte_count,
        flags: FlowModFlags::from_bits_truncate(flags),
        importance: if version >= Version::V1_4 { b } else { 0 },
        instructions: instruction::pull(r.sub(r.len())?, version)?,
    })
}

/// Writes a flow.
pub(super) fn put_flow(out: &mut Vec<u8>, version: Version, dialect: Dialect, f: &FlowStats) {
    if version >= Version::V1_5 {
        return put_flow15(out, version, f);
    }
    let start = out.here();
    let v10 = version == Version::V1_0;
    let nicira = v10 && dialect == Dialect::Nicira;
    out.u16(0);
    out.put(&[f.table.0, 0]);
    if v10 && !nicira {
        match10::put(out, &f.matching);
    }
    put_duration(out, f.duration);
    [f.priority, f.idle_timeout, f.hard_timeout].into_iter().for_each(|n| out.u16(n));
    let len_at = out.here();
    // Ages are sent plus one; zero is unknown.
    let age = |age: Option<u16>| age.map_or(0, |n| n.saturating_add(1));
    let importance = if version >= Version::V1_4 { f.importance } else { 0 };
    let six = match () {
        () if nicira => [0, age(f.idle_age), age(f.hard_age)],
        () if version < Version::V1_3 => [0; 3],
        () => [f.flags.bits(), importance, 0],
    };
    six.into_iter().for_each(|n| out.u16(n));
    [f.cookie.0, f.packet_count, f.byte_count].into_iter().for_each(|n| out.u64(n));
    if nicira {
        oxm::put_nxm(out, version, &f.matching, CookieFilter::default(), len_at);
    } else if !v10 {
        put_match(out, version, &f.matching);
    }
    instruction::put(out, version, &f.instructions, &f.matching);
    out.close(start, 0);
}

/// A flow of OpenFlow 1.5: its counters are OXS fields.
fn pull_flow15(r: &mut Reader, version: Version) -> Result<FlowStats, OfError> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(4)?;
    let table = TableId(r.u8()?);
    r.skip(1)?;
    let (priority, idle_timeout, hard_timeout) = (r.u16()?, r.u16()?, r.u16()?);
    let (flags, importance, cookie) = (r.u16()?, r.u16()?, Cookie(r.u64()?));
    let matching = pull_match(&mut r, version, true)?;
    let stats = oxs::pull(&mut r)?;
    Ok(FlowStats {
        matching,
        cookie,
        table,
        priority,
        idle_timeout,
        hard_timeout,
        duration: stats.duration.unwrap_or_default(),
        idle_age: stats.idle.map(|seconds| seconds.min(u16::MAX.into()) as u16),
        hard_age: None,
        packet_count: stats.packets.unwrap_or(u64::MAX),
        byte_count: stats.bytes.unwrap_or(u64::MAX),
        flags: FlowModFlags::from_bits_truncate(flags),
        importance,
        instructions: instruction::pull(r.sub(r.len())?, version)?,
    })
}

fn put_flow15(out: &mut Vec<u8>, version: Version, f: &FlowStats) {
    let start = out.here();
    out.zeros(4);
    out.put(&[f.table.0, 0]);
    [f.priority, f.idle_timeout, f.hard_timeout, f.flags.bits(), f.importance].into_iter().for_each(|n| out.u16(n));
    out.u64(f.cookie.0);
    put_match(out, version, &f.matching);
    let (packets, bytes) = (oxs::known(f.packet_count), oxs::known(f.byte_count));
    let idle = f.idle_age.map(u32::from);
    oxs::put(out, &Oxs { duration: Some(f.duration), idle, flows: None, packets, bytes });
    instruction::put(out, version, &f.instructions, &f.matching);
    out.close(start, 0);
}
