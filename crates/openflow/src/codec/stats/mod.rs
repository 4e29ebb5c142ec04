//! Multipart messages ("stats" in OpenFlow 1.0): requests, replies, and the cutting of long replies.

mod flow;

use super::flow::{port16, pull_port16, pull_port32};
use super::wire::{Put, Reader};
use super::{group, ipfix, meter, monitor, port, queue, table, table_features};
use crate::error::OfError::{self, *};
use crate::error::vendor;
use crate::message::Dialect;
use crate::stats::*;
use crate::types::{GroupId, OfPort, Version};
use flow::{pull_flow, pull_flow_request, pull_sums, put_flow, put_flow_request, put_sums};

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
    pub const TABLE_DESC: u16 = 14;
    pub const QUEUE_DESC: u16 = 15;
    pub const FLOW_MONITOR: u16 = 16;
    pub const EXPERIMENTER: u16 = 0xffff;
    // These are extensions in all versions, and have no number.
    pub const IPFIX_BRIDGE: u16 = 0xfff0;
    pub const IPFIX_FLOW: u16 = 0xfff1;
}

/// Subtypes of Nicira's multiparts.
mod nx_kind {
    pub const FLOW: u32 = 0;
    pub const AGGREGATE: u32 = 1;
    pub const FLOW_MONITOR: u32 = 2;
    pub const IPFIX_BRIDGE: u32 = 3;
    pub const IPFIX_FLOW: u32 = 4;
    pub const GROUP: u32 = 7;
    pub const GROUP_DESC: u32 = 8;
    pub const GROUP_FEATURES: u32 = 9;
}

/// Subtypes of ONF's multiparts, which OpenFlow 1.3 has.
mod onf_kind {
    pub const FLOW_MONITOR: u32 = 1870;
}

/// Experimenter and subtype of a multipart that is written as an extension.
fn extension(version: Version, dialect: Dialect, kind: u16) -> Option<(u32, u32)> {
    match kind {
        kind::FLOW_MONITOR if version == Version::V1_3 => Some((vendor::ONF, onf_kind::FLOW_MONITOR)),
        _ => nicira_kind(version, dialect, kind).map(|subtype| (vendor::NX, subtype)),
    }
}

/// The subtype of a multipart that a version has only as Nicira's, or in Nicira's dialect as well.
fn nicira_kind(version: Version, dialect: Dialect, kind: u16) -> Option<u32> {
    let v10 = version == Version::V1_0;
    match kind {
        kind::FLOW if v10 && dialect == Dialect::Nicira => Some(nx_kind::FLOW),
        kind::AGGREGATE if v10 && dialect == Dialect::Nicira => Some(nx_kind::AGGREGATE),
        kind::GROUP if v10 => Some(nx_kind::GROUP),
        kind::GROUP_DESC if v10 => Some(nx_kind::GROUP_DESC),
        kind::GROUP_FEATURES if version < Version::V1_2 => Some(nx_kind::GROUP_FEATURES),
        kind::FLOW_MONITOR if version < Version::V1_3 => Some(nx_kind::FLOW_MONITOR),
        kind::IPFIX_BRIDGE => Some(nx_kind::IPFIX_BRIDGE),
        kind::IPFIX_FLOW => Some(nx_kind::IPFIX_FLOW),
        _ => None,
    }
}

/// The beginning of a multipart's body.
struct Head {
    kind: u16,
    more: bool,
    dialect: Dialect,
    /// It comes as an extension, of Nicira or of another experimenter.
    is_extension: bool,
}

fn pull_head(r: &mut Reader, version: Version) -> Result<Head, OfError> {
    let (kind, flags) = (r.u16()?, r.u16()?);
    if version > Version::V1_0 {
        r.skip(4)?;
    }
    let more = flags & 1 != 0;
    if kind != kind::EXPERIMENTER {
        return Ok(Head { kind, more, dialect: Dialect::Standard, is_extension: false });
    }
    let experimenter = r.u32()?;
    if !matches!(experimenter, vendor::NX | vendor::ONF) {
        return Err(OFPBRC_BAD_VENDOR);
    }
    let subtype = r.u32()?;
    if version == Version::V1_0 {
        r.skip(4)?;
    }
    let kind = match subtype {
        onf_kind::FLOW_MONITOR if experimenter == vendor::ONF && version == Version::V1_3 => {
            let kind = kind::FLOW_MONITOR;
            return Ok(Head { kind, more, dialect: Dialect::Standard, is_extension: true });
        }
        _ if experimenter == vendor::ONF => return Err(OFPBRC_BAD_SUBTYPE),
        nx_kind::FLOW if version == Version::V1_0 => kind::FLOW,
        nx_kind::AGGREGATE if version == Version::V1_0 => kind::AGGREGATE,
        nx_kind::GROUP if version == Version::V1_0 => kind::GROUP,
        nx_kind::GROUP_DESC if version == Version::V1_0 => kind::GROUP_DESC,
        nx_kind::GROUP_FEATURES if version < Version::V1_2 => kind::GROUP_FEATURES,
        nx_kind::FLOW_MONITOR if version < Version::V1_3 => kind::FLOW_MONITOR,
        nx_kind::IPFIX_BRIDGE => kind::IPFIX_BRIDGE,
        nx_kind::IPFIX_FLOW => kind::IPFIX_FLOW,
        _ => return Err(OFPBRC_BAD_SUBTYPE),
    };
    Ok(Head { kind, more, dialect: Dialect::Nicira, is_extension: true })
}

fn put_head(out: &mut Vec<u8>, version: Version, dialect: Dialect, kind: u16, more: bool) {
    let extension = extension(version, dialect, kind);
    out.u16(if extension.is_some() { kind::EXPERIMENTER } else { kind });
    out.u16(more.into());
    if version > Version::V1_0 {
        out.zeros(4);
    }
    if let Some((experimenter, subtype)) = extension {
        out.u32(experimenter);
        out.u32(subtype);
        if version == Version::V1_0 {
            out.zeros(4);
        }
    }
}

/// Reads the body of a request: more, dialect, request.
pub(super) fn pull_request(r: &mut Reader, version: Version) -> Result<(bool, Dialect, MultipartRequest), OfError> {
    use MultipartRequest::*;
    let Head { kind, more, dialect, is_extension } = pull_head(r, version)?;
    // Requests in several messages came with OpenFlow 1.3.
    let more = more && version >= Version::V1_3;
    // What comes as an extension has been found to be there.
    let since = |v: Version| version >= v || is_extension;
    let new_groups = version >= Version::V1_5 || version == Version::V1_0;
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
        kind::GROUP_DESC if since(Version::V1_1) && new_groups => GroupDesc(GroupId(pull_padded_u32(r)?)),
        kind::GROUP_DESC if since(Version::V1_1) => GroupDesc(GroupId::ALL),
        kind::GROUP_FEATURES if since(Version::V1_2) => GroupFeatures,
        kind::METER if since(Version::V1_3) => Meter(pull_padded_u32(r)?),
        kind::METER_CONFIG if since(Version::V1_3) => MeterConfig(pull_padded_u32(r)?),
        kind::METER_FEATURES if since(Version::V1_3) => MeterFeatures,
        kind::TABLE_FEATURES if since(Version::V1_3) => TableFeatures(table_features::pull(r)?),
        kind::PORT_DESC if since(Version::V1_5) => PortDesc(pull_padded_port(r, version, 6)?),
        kind::PORT_DESC => PortDesc(OfPort::ANY),
        kind::TABLE_DESC if since(Version::V1_4) => TableDesc,
        kind::QUEUE_DESC if since(Version::V1_4) => QueueDesc { port: pull_port32(r)?, queue: r.u32()? },
        kind::FLOW_MONITOR if since(Version::V1_4) => FlowMonitor(all(r, |r| monitor::pull_request(r, version))?),
        kind::IPFIX_BRIDGE if is_extension => IpfixBridge,
        kind::IPFIX_FLOW if is_extension => IpfixFlow,
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
        GroupDesc(id) if version >= Version::V1_5 || version == Version::V1_0 => {
            padded(out, kind::GROUP_DESC, id.0);
        }
        GroupDesc(_) => head(out, kind::GROUP_DESC),
        GroupFeatures => head(out, kind::GROUP_FEATURES),
        Meter(id) => padded(out, kind::METER, *id),
        MeterConfig(id) => padded(out, kind::METER_CONFIG, *id),
        MeterFeatures => head(out, kind::METER_FEATURES),
        TableFeatures(tables) => {
            head(out, kind::TABLE_FEATURES);
            tables.iter().for_each(|t| table_features::put(out, t));
        }
        TableDesc => head(out, kind::TABLE_DESC),
        IpfixBridge => head(out, kind::IPFIX_BRIDGE),
        IpfixFlow => head(out, kind::IPFIX_FLOW),
        QueueDesc { port, queue } => {
            head(out, kind::QUEUE_DESC);
            out.u32(port.0);
            out.u32(*queue);
        }
        FlowMonitor(requests) => {
            head(out, kind::FLOW_MONITOR);
            requests.iter().for_each(|request| monitor::put_request(out, version, request));
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
    let Head { kind, more, dialect, is_extension } = pull_head(r, version)?;
    let since = |v: Version| version >= v || is_extension;
    let reply = match kind {
        kind::DESC => Desc(Box::new(pull_desc(r)?)),
        kind::FLOW => Flow(all(r, |r| pull_flow(r, version, dialect))?),
        kind::AGGREGATE => Aggregate(pull_sums(r, version)?),
        kind::TABLE => Table(all(r, |r| table::pull_stats(r, version))?),
        kind::PORT => Port(all(r, |r| port::pull_stats(r, version))?),
        kind::QUEUE => Queue(all(r, |r| port::pull_queue(r, version))?),
        kind::PORT_DESC => PortDesc(all(r, |r| port::pull_desc(r, version))?),
        kind::GROUP if since(Version::V1_1) => Group(all(r, |r| group::pull_stats(r, version))?),
        kind::GROUP_DESC if since(Version::V1_1) => GroupDesc(all(r, |r| group::pull_desc(r, version))?),
        kind::METER if since(Version::V1_3) => Meter(all(r, meter::pull_stats)?),
        kind::METER_CONFIG if since(Version::V1_3) => MeterConfig(all(r, meter::pull_config)?),
        kind::TABLE_DESC if since(Version::V1_4) => TableDesc(all(r, table::pull_desc)?),
        kind::QUEUE_DESC if since(Version::V1_4) => QueueDesc(all(r, queue::pull_desc)?),
        kind::FLOW_MONITOR if since(Version::V1_4) => FlowMonitor(all(r, |r| monitor::pull_update(r, version))?),
        kind::IPFIX_BRIDGE if is_extension => IpfixBridge(ipfix::pull(r)?),
        kind::IPFIX_FLOW if is_extension => IpfixFlow(all(r, ipfix::pull)?),
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

/// The bodies of the messages that carry a reply: one, or as many as its length needs, all but the last
/// with the "more" flag. `room` is what a body can be long.
pub(super) fn put_reply(version: Version, dialect: Dialect, more: bool, reply: &MultipartReply, room: usize) -> Bodies {
    use MultipartReply::*;
    let single = |kind, body: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        put_head(&mut out, version, dialect, kind, more);
        body(&mut out);
        Bodies { bodies: vec![out], left_out: 0 }
    };
    let mut cut = Cutter { version, dialect, kind: kind::FLOW, room, done: Vec::new(), now: Vec::new(), left_out: 0 };
    match reply {
        Desc(d) => {
            return single(kind::DESC, &|o| {
                [&d.manufacturer, &d.hardware, &d.software].into_iter().for_each(|s| o.name(s, DESC_LEN));
                o.name(&d.serial, SERIAL_LEN);
                o.name(&d.datapath, DESC_LEN);
            });
        }
        IpfixBridge(stats) => {
            return single(kind::IPFIX_BRIDGE, &|o| ipfix::put(o, stats));
        }
        Aggregate(a) => {
            return single(kind::AGGREGATE, &|o| put_sums(o, version, a));
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
        Flow(flows) => cut.each(kind::FLOW, flows, |o, f| put_flow(o, version, dialect, f)),
        Table(tables) => cut.each(kind::TABLE, tables, |o, t| table::put_stats(o, version, t)),
        IpfixFlow(sets) => cut.each(kind::IPFIX_FLOW, sets, ipfix::put),
        TableDesc(tables) => cut.each(kind::TABLE_DESC, tables, table::put_desc),
        Port(ports) => cut.each(kind::PORT, ports, |o, p| port::put_stats(o, version, p)),
        PortDesc(ports) => cut.each(kind::PORT_DESC, ports, |o, p| port::put_desc(o, version, p)),
        Queue(queues) => cut.each(kind::QUEUE, queues, |o, q| port::put_queue(o, version, q)),
        QueueDesc(queues) => cut.each(kind::QUEUE_DESC, queues, queue::put_desc),
        Group(groups) => cut.each(kind::GROUP, groups, |o, g| group::put_stats(o, version, g)),
        GroupDesc(groups) => cut.each(kind::GROUP_DESC, groups, |o, g| group::put_desc(o, version, g)),
        Meter(meters) => cut.each(kind::METER, meters, meter::put_stats),
        MeterConfig(meters) => cut.each(kind::METER_CONFIG, meters, meter::put_config),
        TableFeatures(tables) => cut.each(kind::TABLE_FEATURES, tables, table_features::put),
        FlowMonitor(updates) => cut.each(kind::FLOW_MONITOR, updates, |o, u| monitor::put_update(o, version, u)),
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
    left_out: usize,
}

/// The bodies of a reply.
pub(super) struct Bodies {
    pub bodies: Vec<Vec<u8>>,
    /// Entries for which there is no room in any.
    pub left_out: usize,
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
                self.left_out += 1;
            }
        }
    }

    fn finish(mut self, more: bool) -> Bodies {
        self.done.push(self.now);
        let last = self.done.len() - 1;
        for (i, body) in self.done.iter_mut().enumerate() {
            body.set_u16(2, (more || i < last).into());
        }
        Bodies { bodies: self.done, left_out: self.left_out }
    }
}
