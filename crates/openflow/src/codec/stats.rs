//! Multipart messages ("stats" in OpenFlow 1.0): requests, replies, and the cutting of long replies.

use super::flow::{port16, pull_duration, pull_port16, pull_port32, put_duration};
use super::wire::{Put, Reader};
use super::{instruction, match10, oxm, port, table_features};
use crate::error::OfError::{self, *};
use crate::error::vendor;
use crate::flow_mod::FlowModFlags;
use crate::message::Dialect;
use crate::stats::*;
use crate::types::{Cookie, CookieFilter, GroupId, OfPort, TableId, Version};

/// OFPST_* and OFPMP_*.
mod kind {
    pub const DESC: u16 = 0;
    pub const FLOW: u16 = 1;
    pub const AGGREGATE: u16 = 2;
    pub const TABLE: u16 = 3;
    pub const PORT: u16 = 4;
    pub const QUEUE: u16 = 5;
    pub const GROUP: u16 = 6;
    pub const GROUP_DESC: u16 = 7;
    pub const GROUP_FEATURES: u16 = 8;
    pub const METER: u16 = 9;
    pub const METER_CONFIG: u16 = 10;
    pub const METER_FEATURES: u16 = 11;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESC: u16 = 13;
    pub const EXPERIMENTER: u16 = 0xffff;
}

/// Subtypes of Nicira's multiparts.
mod nx_kind {
    pub const FLOW: u32 = 0;
    pub const AGGREGATE: u32 = 1;
}

/// The beginning of a multipart's body.
struct Head {
    kind: u16,
    more: bool,
    dialect: Dialect,
}

fn pull_head(r: &mut Reader, version: Version) -> Result<Head, OfError> {
    let (kind, flags) = (r.u16()?, r.u16()?);
    if version > Version::V1_0 {
        r.skip(4)?;
    }
    let more = flags & 1 != 0;
    if kind != kind::EXPERIMENTER {
        return Ok(Head { kind, more, dialect: Dialect::Standard });
    }
    let (experimenter, subtype) = (r.u32()?, r.u32()?);
    if version == Version::V1_0 {
        r.skip(4)?;
    }
    if experimenter != vendor::NX {
        return Err(OFPBRC_BAD_VENDOR);
    }
    let kind = match subtype {
        nx_kind::FLOW if version == Version::V1_0 => kind::FLOW,
        nx_kind::AGGREGATE if version == Version::V1_0 => kind::AGGREGATE,
        _ => return Err(OFPBRC_BAD_SUBTYPE),
    };
    Ok(Head { kind, more, dialect: Dialect::Nicira })
}

fn put_head(out: &mut Vec<u8>, version: Version, dialect: Dialect, kind: u16, more: bool) {
    let nicira = dialect == Dialect::Nicira && version == Version::V1_0 && matches!(kind, kind::FLOW | kind::AGGREGATE);
    out.u16(if nicira { kind::EXPERIMENTER } else { kind });
    out.u16(more.into());
    if version > Version::V1_0 {
        out.zeros(4);
    }
    if nicira {
        out.u32(vendor::NX);
        out.u32(if kind == kind::FLOW { nx_kind::FLOW } else { nx_kind::AGGREGATE });
        out.zeros(4);
    }
}

/// Reads the body of a request: more, dialect, request.
pub(super) fn pull_request(r: &mut Reader, version: Version) -> Result<(bool, Dialect, MultipartRequest), OfError> {
    use MultipartRequest::*;
    let Head { kind, more, dialect } = pull_head(r, version)?;
    let since = |v: Version| version >= v;
    let request = match kind {
        kind::DESC => Desc,
        kind::FLOW => Flow(pull_flow_request(r, version, dialect)?),
        kind::AGGREGATE => Aggregate(pull_flow_request(r, version, dialect)?),
        kind::TABLE => Table,
        kind::PORT => Port(pull_padded_port(r, version, 6)?),
        kind::QUEUE => {
            let any = |port| if port == OfPort::ALL { OfPort::ANY } else { port };
            Queue { port: any(pull_padded_port(r, version, 2)?), queue: r.u32()? }
        }
        kind::GROUP if since(Version::V1_1) => Group(GroupId(pull_padded_u32(r)?)),
        kind::GROUP_DESC if since(Version::V1_5) => GroupDesc(GroupId(pull_padded_u32(r)?)),
        kind::GROUP_DESC if since(Version::V1_1) => GroupDesc(GroupId::ALL),
        kind::GROUP_FEATURES if since(Version::V1_2) => GroupFeatures,
        kind::METER if since(Version::V1_3) => Meter(pull_padded_u32(r)?),
        kind::METER_CONFIG if since(Version::V1_3) => MeterConfig(pull_padded_u32(r)?),
        kind::METER_FEATURES if since(Version::V1_3) => MeterFeatures,
        kind::TABLE_FEATURES if since(Version::V1_3) => TableFeatures(table_features::pull(r)?),
        kind::PORT_DESC if since(Version::V1_5) => PortDesc(pull_padded_port(r, version, 6)?),
        kind::PORT_DESC => PortDesc(OfPort::ANY),
        _ => return Err(OFPBRC_BAD_STAT),
    };
    Ok((more, dialect, request))
}

/// A port of 16 bits and `pad` bytes, or of 32 bits and two bytes less of padding.
fn pull_padded_port(r: &mut Reader, version: Version, pad: usize) -> Result<OfPort, OfError> {
    if version == Version::V1_0 {
        let port = pull_port16(r)?;
        r.skip(pad)?;
        return Ok(port);
    }
    let port = pull_port32(r)?;
    r.skip(pad - 2)?;
    Ok(port)
}

fn put_padded_port(out: &mut Vec<u8>, version: Version, port: OfPort, pad: usize) {
    if version == Version::V1_0 {
        out.u16(port16(port));
        out.zeros(pad);
    } else {
        out.u32(port.0);
        out.zeros(pad - 2);
    }
}

fn pull_padded_u32(r: &mut Reader) -> Result<u32, OfError> {
    let n = r.u32()?;
    r.skip(4)?;
    Ok(n)
}

fn pull_flow_request(r: &mut Reader, version: Version, dialect: Dialect) -> Result<FlowStatsRequest, OfError> {
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
    Ok(FlowStatsRequest { matching: oxm::pull_oxm_match(r, false)?, table, out_port, out_group, cookie })
}

fn put_flow_request(out: &mut Vec<u8>, version: Version, dialect: Dialect, q: &FlowStatsRequest) {
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
    oxm::put_oxm_match(out, version, &q.matching);
}

/// Writes the body of a request.
pub(super) fn put_request(out: &mut Vec<u8>, version: Version, dialect: Dialect, more: bool, q: &MultipartRequest) {
    use MultipartRequest::*;
    let head = |out: &mut Vec<u8>, kind| put_head(out, version, dialect, kind, more);
    let padded = |out: &mut Vec<u8>, kind, n: u32| {
        head(out, kind);
        out.u32(n);
        out.zeros(4);
    };
    match q {
        Desc => head(out, kind::DESC),
        Flow(q) => {
            head(out, kind::FLOW);
            put_flow_request(out, version, dialect, q);
        }
        Aggregate(q) => {
            head(out, kind::AGGREGATE);
            put_flow_request(out, version, dialect, q);
        }
        Table => head(out, kind::TABLE),
        Port(port) => {
            head(out, kind::PORT);
            put_padded_port(out, version, *port, 6);
        }
        Queue { port, queue } => {
            head(out, kind::QUEUE);
            // OpenFlow 1.0 asks for all ports as OFPP_ALL, later versions as OFPP_ANY.
            let all = version == Version::V1_0 && *port == OfPort::ANY;
            put_padded_port(out, version, if all { OfPort::ALL } else { *port }, 2);
            out.u32(*queue);
        }
        Group(id) => padded(out, kind::GROUP, id.0),
        GroupDesc(id) if version >= Version::V1_5 => padded(out, kind::GROUP_DESC, id.0),
        GroupDesc(_) => head(out, kind::GROUP_DESC),
        GroupFeatures => head(out, kind::GROUP_FEATURES),
        Meter(id) => padded(out, kind::METER, *id),
        MeterConfig(id) => padded(out, kind::METER_CONFIG, *id),
        MeterFeatures => head(out, kind::METER_FEATURES),
        TableFeatures(tables) => {
            head(out, kind::TABLE_FEATURES);
            tables.iter().for_each(|t| table_features::put(out, t));
        }
        PortDesc(port) => {
            head(out, kind::PORT_DESC);
            if version >= Version::V1_5 {
                put_padded_port(out, version, *port, 6);
            }
        }
    }
}

/// Reads entries until there are no more.
fn all<T>(r: &mut Reader, mut one: impl FnMut(&mut Reader) -> Result<T, OfError>) -> Result<Vec<T>, OfError> {
    let mut out = Vec::new();
    while !r.is_empty() {
        out.push(one(r)?);
    }
    Ok(out)
}

/// Reads the body of a reply: more, dialect, reply.
pub(super) fn pull_reply(r: &mut Reader, version: Version) -> Result<(bool, Dialect, MultipartReply), OfError> {
    use MultipartReply::*;
    let Head { kind, more, dialect } = pull_head(r, version)?;
    let empty = |r: &Reader, kind| if r.is_empty() { Ok(Empty(kind)) } else { Err(OFPBRC_BAD_STAT) };
    let since = |v: Version| version >= v;
    let reply = match kind {
        kind::DESC => Desc(Box::new(pull_desc(r)?)),
        kind::FLOW => Flow(all(r, |r| pull_flow(r, version, dialect))?),
        kind::AGGREGATE => {
            let sums = AggregateStats { packet_count: r.u64()?, byte_count: r.u64()?, flow_count: r.u32()? };
            r.skip(4)?;
            Aggregate(sums)
        }
        kind::TABLE => Table(all(r, |r| pull_table(r, version))?),
        kind::PORT => Port(all(r, |r| port::pull_stats(r, version))?),
        kind::QUEUE => Queue(all(r, |r| port::pull_queue(r, version))?),
        kind::PORT_DESC => PortDesc(all(r, |r| port::pull_desc(r, version))?),
        kind::GROUP if since(Version::V1_1) => empty(r, EmptyReply::Group)?,
        kind::GROUP_DESC if since(Version::V1_1) => empty(r, EmptyReply::GroupDesc)?,
        kind::METER if since(Version::V1_3) => empty(r, EmptyReply::Meter)?,
        kind::METER_CONFIG if since(Version::V1_3) => empty(r, EmptyReply::MeterConfig)?,
        kind::GROUP_FEATURES if since(Version::V1_2) => {
            let mut four = || -> Result<[u32; 4], OfError> { Ok([r.u32()?, r.u32()?, r.u32()?, r.u32()?]) };
            let [types, capabilities, a, b] = four()?;
            let [c, d, w, x] = four()?;
            GroupFeatures(crate::stats::GroupFeatures {
                types,
                capabilities,
                max_groups: [a, b, c, d],
                actions: [w, x, r.u32()?, r.u32()?],
            })
        }
        kind::METER_FEATURES if since(Version::V1_3) => {
            let features = crate::stats::MeterFeatures {
                max_meters: r.u32()?,
                band_types: r.u32()?,
                capabilities: r.u32()?,
                max_bands: r.u8()?,
                max_color: r.u8()?,
            };
            r.skip(2)?;
            MeterFeatures(features)
        }
        kind::TABLE_FEATURES if since(Version::V1_3) => TableFeatures(table_features::pull(r)?),
        _ => return Err(OFPBRC_BAD_STAT),
    };
    Ok((more, dialect, reply))
}

const DESC_LEN: usize = 256;
const SERIAL_LEN: usize = 32;

fn pull_desc(r: &mut Reader) -> Result<SwitchDesc, OfError> {
    Ok(SwitchDesc {
        manufacturer: r.name(DESC_LEN)?,
        hardware: r.name(DESC_LEN)?,
        software: r.name(DESC_LEN)?,
        serial: r.name(SERIAL_LEN)?,
        datapath: r.name(DESC_LEN)?,
    })
}

fn pull_table(r: &mut Reader, version: Version) -> Result<TableStats, OfError> {
    let table = TableId(r.u8()?);
    r.skip(3)?;
    let early = version < Version::V1_3;
    let (mut name, mut wildcards, mut max_entries) = (String::new(), 0, 0);
    if early {
        name = r.name(32)?;
        wildcards = r.u32()?;
        max_entries = r.u32()?;
    }
    let (active_count, lookup_count, matched_count) = (r.u32()?, r.u64()?, r.u64()?);
    Ok(TableStats { table, name, wildcards, max_entries, active_count, lookup_count, matched_count })
}

fn put_table(out: &mut Vec<u8>, version: Version, t: &TableStats) {
    out.put(&[t.table.0, 0, 0, 0]);
    if version < Version::V1_3 {
        out.name(&t.name, 32);
        out.u32(t.wildcards);
        out.u32(t.max_entries);
    }
    out.u32(t.active_count);
    out.u64(t.lookup_count);
    out.u64(t.matched_count);
}

fn pull_flow(r: &mut Reader, version: Version, dialect: Dialect) -> Result<FlowStats, OfError> {
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
        None => oxm::pull_oxm_match(&mut r, true)?,
    };
    let (flags, importance) = if v10 { (0, 0) } else { (a, b) };
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
        importance: if version >= Version::V1_4 { importance } else { 0 },
        instructions: instruction::pull(r.sub(r.len())?, version)?,
    })
}

fn put_flow(out: &mut Vec<u8>, version: Version, dialect: Dialect, f: &FlowStats) {
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
        () if v10 => [0; 3],
        () => [f.flags.bits(), importance, 0],
    };
    six.into_iter().for_each(|n| out.u16(n));
    [f.cookie.0, f.packet_count, f.byte_count].into_iter().for_each(|n| out.u64(n));
    if nicira {
        oxm::put_nxm(out, version, &f.matching, CookieFilter::default(), len_at);
    } else if !v10 {
        oxm::put_oxm_match(out, version, &f.matching);
    }
    instruction::put(out, version, &f.instructions);
    out.close(start, 0);
}

/// The bodies of the messages that carry a reply: one, or as many as its length needs, all but the last
/// with the "more" flag. `room` is what a body can be long.
pub(super) fn put_reply(
    version: Version,
    dialect: Dialect,
    more: bool,
    reply: &MultipartReply,
    room: usize,
) -> Vec<Vec<u8>> {
    use MultipartReply::*;
    let single = |kind, body: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        put_head(&mut out, version, dialect, kind, more);
        body(&mut out);
        vec![out]
    };
    let mut cut = Cutter { version, dialect, kind: kind::FLOW, room, done: Vec::new(), now: Vec::new() };
    match reply {
        Desc(d) => {
            return single(kind::DESC, &|o| {
                [&d.manufacturer, &d.hardware, &d.software].into_iter().for_each(|s| o.name(s, DESC_LEN));
                o.name(&d.serial, SERIAL_LEN);
                o.name(&d.datapath, DESC_LEN);
            });
        }
        Aggregate(a) => {
            return single(kind::AGGREGATE, &|o| {
                o.u64(a.packet_count);
                o.u64(a.byte_count);
                o.u32(a.flow_count);
                o.zeros(4);
            });
        }
        GroupFeatures(g) => {
            return single(kind::GROUP_FEATURES, &|o| {
                let rest = g.max_groups.into_iter().chain(g.actions);
                [g.types, g.capabilities].into_iter().chain(rest).for_each(|n| o.u32(n));
            });
        }
        MeterFeatures(m) => {
            return single(kind::METER_FEATURES, &|o| {
                [m.max_meters, m.band_types, m.capabilities].into_iter().for_each(|n| o.u32(n));
                o.put(&[m.max_bands, m.max_color, 0, 0]);
            });
        }
        Empty(kind) => {
            let kind = match kind {
                EmptyReply::Group => kind::GROUP,
                EmptyReply::GroupDesc => kind::GROUP_DESC,
                EmptyReply::Meter => kind::METER,
                EmptyReply::MeterConfig => kind::METER_CONFIG,
            };
            return single(kind, &|_| ());
        }
        Flow(flows) => cut.each(kind::FLOW, flows, |o, f| put_flow(o, version, dialect, f)),
        Table(tables) => cut.each(kind::TABLE, tables, |o, t| put_table(o, version, t)),
        Port(ports) => cut.each(kind::PORT, ports, |o, p| port::put_stats(o, version, p)),
        PortDesc(ports) => cut.each(kind::PORT_DESC, ports, |o, p| port::put_desc(o, version, p)),
        Queue(queues) => cut.each(kind::QUEUE, queues, |o, q| port::put_queue(o, version, q)),
        TableFeatures(tables) => cut.each(kind::TABLE_FEATURES, tables, table_features::put),
    }
    cut.finish(more)
}

/// Gathers entries into bodies that are not too long.
struct Cutter {
    version: Version,
    dialect: Dialect,
    kind: u16,
    room: usize,
    done: Vec<Vec<u8>>,
    now: Vec<u8>,
}

impl Cutter {
    fn each<T>(&mut self, kind: u16, entries: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        self.kind = kind;
        put_head(&mut self.now, self.version, self.dialect, kind, false);
        let head = self.now.len();
        for entry in entries {
            let at = self.now.len();
            put(&mut self.now, entry);
            if self.now.len() <= self.room {
                continue;
            }
            let mut next = Vec::new();
            put_head(&mut next, self.version, self.dialect, kind, false);
            // An entry that no message has room for is left out. It cannot come from a flow-mod of the
            // same version, which has no more room.
            if head + (self.now.len() - at) <= self.room {
                next.extend_from_slice(&self.now[at..]);
                self.now.truncate(at);
                self.done.push(std::mem::replace(&mut self.now, next));
            } else {
                self.now.truncate(at);
            }
        }
    }

    fn finish(mut self, more: bool) -> Vec<Vec<u8>> {
        self.done.push(self.now);
        let last = self.done.len() - 1;
        for (i, body) in self.done.iter_mut().enumerate() {
            body.set_u16(2, (more || i < last).into());
        }
        self.done
    }
}
