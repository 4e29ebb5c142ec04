//! What the sections say, and how it is encoded: a fixed part and, for what OpenFlow has a message for, that message.
//!
//! A flow is written as the message of the latest version of OpenFlow that can express all of it: each one is read back
//! before it is used. So a flow that a controller could send with some version can be written, however long it is.

use std::net::IpAddr;
use std::time::Duration;

use datapath::meter::{BandCounters, MAX_BANDS, MeterCounters};
use openflow::codec::{DecodeOptions, HEADER_LEN, decode, encode, frame_len};
use openflow::group::{GroupCommand, Selection, bucket_id};
use openflow::meter::MeterCommand;
use openflow::table::{TableMiss, Vacancy};
use openflow::{
    Body as MessageBody, Cookie, Dialect, FlowMod, FlowModCommand, FlowModFlags, FragHandling, GroupId, GroupMod,
    GroupSpec, GroupType, Instructions, Match, Message, MeterConfig, MeterMod, OfPort, PortConfig, TableId, TlvCommand,
    TlvMap, TlvTableMod, Version,
};

use super::SnapshotError;
use super::wire::{Body, kind};
use crate::model::mac::{MacKey, MacStats};
use crate::table::TableState;

/// A section of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Section {
    Bridge(BridgeSection),
    Table(TableSection),
    Port(PortSection),
    /// What the tun_metadata fields stand for.
    Tlv(Vec<TlvMap>),
    Meter(MeterSection),
    /// Of the meter with this number, which has come before.
    MeterCounters(u32, MeterCounters),
    Group(GroupSection),
    Flow(Box<FlowSection>),
    Mac(MacSection),
    Multicast(MulticastSection),
    /// Of a type that may be passed over.
    Unknown,
}

/// Begins a bridge: the sections up to the next one are of this bridge.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BridgeSection {
    pub frag: FragHandling,
    pub mac_stats: MacStats,
    pub name: String,
}

/// What controllers have set of a table, and its counters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TableSection {
    pub table: TableId,
    pub state: TableState,
    pub matched: u64,
    pub missed: u64,
}

/// What controllers have set of a port. The addresses that were learnt at a port are taken over where the port of that
/// number still has this name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PortSection {
    pub port: OfPort,
    pub config: PortConfig,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct MeterSection {
    pub age: Duration,
    pub config: MeterConfig,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupSection {
    pub group: GroupId,
    pub spec: GroupSpec,
    pub age: Duration,
    /// Packets and bytes of the group.
    pub counters: (u64, u64),
    /// Packets and bytes of each bucket.
    pub buckets: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct FlowSection {
    /// Since it was added, since it was modified, and since its last packet.
    pub ages: [Duration; 3],
    pub packets: u64,
    pub bytes: u64,
    pub cookie: Cookie,
    pub table: TableId,
    pub importance: u16,
    pub flags: FlowModFlags,
    /// What `fin_timeout` has lowered the idle and the hard timeout to; zero for nothing.
    pub caps: (u16, u16),
    pub rule: RuleSpec,
}

/// The part of a flow that is written as a message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RuleSpec {
    pub priority: u16,
    pub idle_timeout: u16,
    pub hard_timeout: u16,
    pub matching: Match,
    pub instructions: Instructions,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct MacSection {
    /// Since the last packet; `None` for a static entry.
    pub age: Option<Duration>,
    pub port: OfPort,
    pub key: MacKey,
}

/// A port is a member of a multicast group, or leads to a router.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MulticastSection {
    /// Since it was heard last; `None` for a static member.
    pub age: Option<Duration>,
    pub port: OfPort,
    pub vlan: u16,
    /// The group; `None` for a router.
    pub group: Option<IpAddr>,
}

/// Stands for the age of what has none.
const NO_AGE: u64 = u64::MAX;

/// Versions of OpenFlow in which a flow or group may be written, the one that can express most first.
const VERSIONS: [(Version, Dialect); 6] = [
    (Version::V1_5, Dialect::Standard),
    (Version::V1_4, Dialect::Standard),
    (Version::V1_3, Dialect::Standard),
    (Version::V1_2, Dialect::Standard),
    (Version::V1_1, Dialect::Standard),
    (Version::V1_0, Dialect::Nicira),
];

impl Section {
    /// Type and body; `None` where no message can tell it.
    pub fn encode(&self) -> Option<(u16, Vec<u8>)> {
        let mut out = Vec::with_capacity(256);
        let kind = match self {
            Section::Bridge(bridge) => {
                put16(&mut out, bridge.frag as u16);
                let MacStats { learned, expired, evicted, moved } = bridge.mac_stats;
                [learned, expired, evicted, moved].into_iter().for_each(|n| put64(&mut out, n));
                out.extend(bridge.name.as_bytes());
                kind::BRIDGE
            }
            Section::Table(table) => {
                let state = &table.state;
                let vacancy = state.vacancy.unwrap_or_default();
                let flags = u8::from(state.evict) | u8::from(state.vacancy.is_some()) << 1;
                out.extend([table.table.0, miss_to_wire(state.miss), flags, vacancy.down, vacancy.up]);
                out.push(u8::from(state.name.is_some()));
                [table.matched, table.missed].into_iter().for_each(|n| put64(&mut out, n));
                out.extend(state.name.as_deref().unwrap_or_default().as_bytes());
                kind::TABLE
            }
            Section::Port(port) => {
                put32(&mut out, port.port.0);
                put32(&mut out, port.config.bits());
                out.extend(port.name.as_bytes());
                kind::PORT
            }
            Section::Tlv(maps) => {
                let change = TlvTableMod { command: TlvCommand::Add, maps: maps.clone() };
                put_message(&mut out, MessageBody::TlvTableMod(change))?;
                kind::TLV
            }
            Section::Meter(meter) => {
                put_age(&mut out, meter.age);
                let change = MeterMod { command: MeterCommand::Add, config: meter.config.clone() };
                put_message(&mut out, MessageBody::MeterMod(change))?;
                kind::METER
            }
            Section::MeterCounters(meter, counters) => {
                put32(&mut out, *meter);
                put64(&mut out, counters.packets);
                put64(&mut out, counters.bytes);
                put32(&mut out, u32::try_from(counters.bands.len()).ok()?);
                for band in &counters.bands {
                    [band.packets, band.bytes, band.full_in].into_iter().for_each(|number| put64(&mut out, number));
                }
                kind::METER_COUNTERS
            }
            Section::Group(group) => {
                put_age(&mut out, group.age);
                put64(&mut out, group.counters.0);
                put64(&mut out, group.counters.1);
                put32(&mut out, u32::try_from(group.buckets.len()).ok()?);
                for (bucket, (packets, bytes)) in group.spec.buckets.iter().zip(&group.buckets) {
                    put64(&mut out, *packets);
                    put64(&mut out, *bytes);
                    // The message has the weights of select groups only.
                    put16(&mut out, bucket.weight);
                }
                put_group(&mut out, group)?;
                kind::GROUP
            }
            Section::Flow(flow) => {
                flow.ages.iter().for_each(|&age| put_age(&mut out, age));
                [flow.packets, flow.bytes, flow.cookie.0].into_iter().for_each(|n| put64(&mut out, n));
                out.extend([flow.table.0, 0]);
                let numbers = [flow.importance, flow.flags.bits(), flow.caps.0, flow.caps.1];
                numbers.into_iter().for_each(|n| put16(&mut out, n));
                out.extend(flow.rule.encode()?);
                kind::FLOW
            }
            Section::Mac(mac) => {
                match mac.age {
                    Some(age) => put_age(&mut out, age),
                    None => put64(&mut out, NO_AGE),
                }
                put32(&mut out, mac.port.0);
                put16(&mut out, mac.key.vlan);
                out.extend(mac.key.mac);
                kind::MAC
            }
            Section::Multicast(heard) => {
                match heard.age {
                    Some(age) => put_age(&mut out, age),
                    None => put64(&mut out, NO_AGE),
                }
                put32(&mut out, heard.port.0);
                put16(&mut out, heard.vlan);
                match heard.group {
                    None => out.push(0),
                    Some(IpAddr::V4(group)) => out.extend([4].into_iter().chain(group.octets())),
                    Some(IpAddr::V6(group)) => out.extend([6].into_iter().chain(group.octets())),
                }
                kind::MULTICAST
            }
            Section::Unknown => return None,
        };
        Some((kind, out))
    }

    /// Reads a section.
    pub fn decode(mut body: Body<'_>) -> Result<Section, SnapshotError> {
        let section = match body.kind {
            kind::BRIDGE => Section::Bridge(read_bridge(&mut body)?),
            kind::TABLE => Section::Table(read_table(&mut body)?),
            kind::PORT => Section::Port(PortSection {
                port: OfPort(body.u32()?),
                config: PortConfig::from_bits(body.u32()?).ok_or_else(|| body.corrupt("unknown settings of a port"))?,
                name: body.name()?,
            }),
            kind::TLV => Section::Tlv(read_tlv(&mut body)?),
            kind::METER => Section::Meter(read_meter(&mut body)?),
            kind::METER_COUNTERS => read_meter_counters(&mut body)?,
            kind::GROUP => Section::Group(read_group(&mut body)?),
            kind::FLOW => Section::Flow(Box::new(read_flow(&mut body)?)),
            kind::MAC => Section::Mac(read_mac(&mut body)?),
            kind::MULTICAST => Section::Multicast(read_multicast(&mut body)?),
            kind::OPTIONAL.. => return Ok(Section::Unknown),
            _ => return Err(body.corrupt("a section of an unknown type")),
        };
        body.done()?;
        Ok(section)
    }
}

fn read_bridge(body: &mut Body<'_>) -> Result<BridgeSection, SnapshotError> {
    let frag = body.u16()?;
    let known = [FragHandling::Normal, FragHandling::Drop, FragHandling::NxMatch];
    let frag = known.into_iter().find(|known| *known as u16 == frag);
    let frag = frag.ok_or_else(|| body.corrupt("an unknown handling of fragments"))?;
    let (learned, expired, evicted, moved) = (body.u64()?, body.u64()?, body.u64()?, body.u64()?);
    Ok(BridgeSection { frag, mac_stats: MacStats { learned, expired, evicted, moved }, name: body.name()? })
}

fn read_table(body: &mut Body<'_>) -> Result<TableSection, SnapshotError> {
    let [table, miss, flags, down, up, named] = body.bytes()?;
    if flags > 3 || named > 1 {
        return Err(body.corrupt("unknown settings of a table"));
    }
    let miss = [TableMiss::Default, TableMiss::Controller, TableMiss::Continue, TableMiss::Drop]
        .into_iter()
        .find(|known| miss_to_wire(*known) == miss)
        .ok_or_else(|| body.corrupt("an unknown way to treat what misses"))?;
    let (matched, missed, name) = (body.u64()?, body.u64()?, body.name()?);
    let vacancy = (flags & 2 != 0).then_some(Vacancy { down, up, now: 0 });
    let name = (named == 1).then_some(name);
    let state = TableState { name, miss, evict: flags & 1 != 0, vacancy };
    Ok(TableSection { table: TableId(table), state, matched, missed })
}

fn miss_to_wire(miss: TableMiss) -> u8 {
    match miss {
        TableMiss::Default => 0,
        TableMiss::Controller => 1,
        TableMiss::Continue => 2,
        TableMiss::Drop => 3,
    }
}

fn read_tlv(body: &mut Body<'_>) -> Result<Vec<TlvMap>, SnapshotError> {
    let at = body.at;
    match read_message(body)? {
        MessageBody::TlvTableMod(TlvTableMod { command: TlvCommand::Add, maps }) => Ok(maps),
        _ => Err(SnapshotError::Corrupt { at, what: "not the message of the fields for options of tunnels" }),
    }
}

fn read_meter(body: &mut Body<'_>) -> Result<MeterSection, SnapshotError> {
    let age = read_age(body)?;
    let at = body.at;
    match read_message(body)? {
        MessageBody::MeterMod(MeterMod { command: MeterCommand::Add, config }) => Ok(MeterSection { age, config }),
        _ => Err(SnapshotError::Corrupt { at, what: "not the message of a meter" }),
    }
}

fn read_meter_counters(body: &mut Body<'_>) -> Result<Section, SnapshotError> {
    let (meter, packets, bytes, count) = (body.u32()?, body.u64()?, body.u64()?, body.u32()?);
    if count > MAX_BANDS as u32 {
        return Err(body.corrupt("more bands than a meter has"));
    }
    let mut band = || Ok(BandCounters { packets: body.u64()?, bytes: body.u64()?, full_in: body.u64()? });
    let bands = (0..count).map(|_| band()).collect::<Result<_, SnapshotError>>()?;
    Ok(Section::MeterCounters(meter, MeterCounters { packets, bytes, bands }))
}

fn read_mac(body: &mut Body<'_>) -> Result<MacSection, SnapshotError> {
    let age = Some(body.u64()?).filter(|&age| age != NO_AGE).map(Duration::from_nanos);
    let (port, vlan, mac) = (OfPort(body.u32()?), body.u16()?, body.bytes()?);
    Ok(MacSection { age, port, key: MacKey { vlan, mac } })
}

fn read_multicast(body: &mut Body<'_>) -> Result<MulticastSection, SnapshotError> {
    let age = Some(body.u64()?).filter(|&age| age != NO_AGE).map(Duration::from_nanos);
    let (port, vlan, [family]) = (OfPort(body.u32()?), body.u16()?, body.bytes()?);
    let group = match family {
        0 if age.is_some() => None,
        4 => Some(IpAddr::from(body.bytes::<4>()?)),
        6 => Some(IpAddr::from(body.bytes::<16>()?)),
        _ => return Err(body.corrupt("neither a group of a known family nor a router with an age")),
    };
    if vlan > 0xfff || group.is_some_and(|group| !group.is_multicast()) {
        return Err(body.corrupt("a member of what is no multicast group of a VLAN"));
    }
    Ok(MulticastSection { age, port, vlan, group })
}

fn read_flow(body: &mut Body<'_>) -> Result<FlowSection, SnapshotError> {
    let ages = [read_age(body)?, read_age(body)?, read_age(body)?];
    let (packets, bytes, cookie) = (body.u64()?, body.u64()?, Cookie(body.u64()?));
    let [table, zero] = body.bytes()?;
    let (importance, flags, caps) = (body.u16()?, body.u16()?, (body.u16()?, body.u16()?));
    let flags = FlowModFlags::from_bits(flags).filter(|_| zero == 0);
    let flags = flags.ok_or_else(|| body.corrupt("unknown flags of a flow"))?;
    let at = body.at;
    let rule = match read_message(body)? {
        MessageBody::FlowMod(change) if change.command == FlowModCommand::Add => RuleSpec::of(&change),
        _ => return Err(SnapshotError::Corrupt { at, what: "not the message of a flow" }),
    };
    let table = TableId(table);
    Ok(FlowSection { ages, packets, bytes, cookie, table, importance, flags, caps, rule })
}

fn read_group(body: &mut Body<'_>) -> Result<GroupSection, SnapshotError> {
    let (age, counters, count) = (read_age(body)?, (body.u64()?, body.u64()?), body.u32()?);
    let (mut buckets, mut weights) = (Vec::new(), Vec::new());
    for _ in 0..count {
        buckets.push((body.u64()?, body.u64()?));
        weights.push(body.u16()?);
    }
    let at = body.at;
    let not_a_group = || SnapshotError::Corrupt { at, what: "not the messages of a group" };
    let (group, mut spec) = match read_message(body)? {
        MessageBody::GroupMod(change) if change.command == GroupCommand::Add => (change.group, change.spec),
        _ => return Err(not_a_group()),
    };
    while !body.rest().is_empty() {
        match read_message(body)? {
            MessageBody::GroupMod(more) if more.command == GroupCommand::InsertBucket && more.group == group => {
                spec.buckets.extend(more.spec.buckets);
            }
            _ => return Err(not_a_group()),
        }
    }
    if spec.buckets.len() != buckets.len() {
        return Err(not_a_group());
    }
    spec.buckets.iter_mut().zip(weights).for_each(|(bucket, weight)| bucket.weight = weight);
    Ok(GroupSection { group, spec, age, counters, buckets })
}

impl RuleSpec {
    fn of(change: &FlowMod) -> RuleSpec {
        RuleSpec {
            priority: change.priority,
            idle_timeout: change.idle_timeout,
            hard_timeout: change.hard_timeout,
            matching: change.matching.clone(),
            instructions: change.instructions.clone(),
        }
    }

    /// The message that says the same when it is read.
    fn encode(&self) -> Option<Vec<u8>> {
        let mut change = FlowMod::new(FlowModCommand::Add, self.matching.clone(), self.instructions.clone());
        change.table = Some(TableId(0));
        change.new_cookie = Some(Cookie(0));
        change.priority = self.priority;
        (change.idle_timeout, change.hard_timeout) = (self.idle_timeout, self.hard_timeout);
        encode_as(MessageBody::FlowMod(Box::new(change)), |back, _| match back {
            MessageBody::FlowMod(back) => RuleSpec::of(back) == *self,
            _ => false,
        })
    }
}

/// Writes a group as a message that adds it, and messages that add buckets where one has no room for all.
fn put_group(out: &mut Vec<u8>, section: &GroupSection) -> Option<()> {
    let mut rest = section.spec.buckets.as_slice();
    let (mut command, mut command_bucket) = (GroupCommand::Add, bucket_id::ALL);
    let mut some = rest.len();
    loop {
        let mut spec = GroupSpec { buckets: rest[..some].to_vec(), ..section.spec.clone() };
        if spec.kind != GroupType::Select {
            spec.buckets.iter_mut().for_each(|bucket| bucket.weight = 0);
        }
        if command == GroupCommand::InsertBucket {
            // Said with the first message.
            spec.selection = Selection::default();
        }
        let change = GroupMod { command, group: section.group, command_bucket, spec };
        if put_message(out, MessageBody::GroupMod(Box::new(change))).is_none() {
            // Too long, or no version can express all of them.
            some /= 2;
            if some == 0 {
                return None;
            }
            continue;
        }
        rest = &rest[some..];
        if rest.is_empty() {
            return Some(());
        }
        some = some.min(rest.len());
        (command, command_bucket) = (GroupCommand::InsertBucket, bucket_id::LAST);
    }
}

/// Writes a message of the latest version that says the same when it is read.
fn put_message(out: &mut Vec<u8>, body: MessageBody) -> Option<()> {
    out.extend(encode_as(body, |back, body| back == body)?);
    Some(())
}

/// A message of the latest version in which it is `same` when it is read.
fn encode_as(body: MessageBody, same: impl Fn(&MessageBody, &MessageBody) -> bool) -> Option<Vec<u8>> {
    let mut message = Message::new(Version::V1_5, 0, body);
    VERSIONS.into_iter().find_map(|(version, dialect)| {
        (message.version, message.dialect) = (version, dialect);
        let bytes = encode(&message, DecodeOptions::default()).ok()?;
        let back = decode(&bytes, DecodeOptions::default()).ok()?;
        same(&back.body, &message.body).then_some(bytes)
    })
}

fn read_message(body: &mut Body<'_>) -> Result<MessageBody, SnapshotError> {
    let len = match frame_len(body.rest()) {
        Ok(Some(len)) => len,
        Ok(None) => HEADER_LEN,
        Err(_) => return Err(body.corrupt("a message is too short")),
    };
    let at = body.at;
    let message = decode(body.take(len)?, DecodeOptions::default());
    message.map(|message| message.body).map_err(|error| SnapshotError::Message { at, error })
}

fn put16(out: &mut Vec<u8>, n: u16) {
    out.extend(n.to_be_bytes());
}

fn put32(out: &mut Vec<u8>, n: u32) {
    out.extend(n.to_be_bytes());
}

fn put64(out: &mut Vec<u8>, n: u64) {
    out.extend(n.to_be_bytes());
}

/// Nanoseconds, of which 64 bits hold more than five hundred years.
fn put_age(out: &mut Vec<u8>, age: Duration) {
    put64(out, u64::try_from(age.as_nanos()).unwrap_or(NO_AGE - 1).min(NO_AGE - 1));
}

fn read_age(body: &mut Body<'_>) -> Result<Duration, SnapshotError> {
    Ok(Duration::from_nanos(body.u64()?))
}
