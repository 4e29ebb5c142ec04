//! Groups, meters, tables, queues, bundles, tunnel options: configuration of what flows use.

use proptest::prelude::*;
use proptest::sample::select;

use super::action::action_set;
use super::*;
use crate::bundle::{BundleControlKind, BundleFlags};
use crate::group::*;
use crate::message::RequestForward;
use crate::meter::*;
use crate::table::{EvictionFlags, TableReason, TableStatus, Vacancy};
use crate::tlv::TlvCommand;

fn bucket(v: Version, kind: GroupType) -> impl Strategy<Value = Bucket> {
    let actions = prop::collection::vec(action_set(v), 0..3);
    (1u16.., port(), 0u32..0xffff_ff00, any::<bool>(), actions).prop_map(
        move |(weight, port, group, by_port, actions)| {
            let failover = kind == GroupType::FastFailover;
            Bucket {
                id: 0,
                weight: if kind == GroupType::Select { weight } else { 0 },
                watch_port: if failover && by_port { port } else { OfPort::ANY },
                watch_group: if failover && !by_port { GroupId(group) } else { GroupId::ANY },
                actions,
            }
        },
    )
}

fn spec(v: Version) -> impl Strategy<Value = GroupSpec> {
    let kind = select(GroupType::NAMES).prop_map(|(kind, _)| kind);
    let selection = any::<(bool, u64, u32)>();
    kind.prop_flat_map(move |kind| (Just(kind), prop::collection::vec(bucket(v, kind), 1..4), selection)).prop_map(
        move |(kind, mut buckets, (chosen, param, mask))| {
            let new_form = v == Version::V1_0 || v >= Version::V1_5;
            buckets.truncate(if kind == GroupType::Indirect { 1 } else { 4 });
            for (i, bucket) in buckets.iter_mut().enumerate() {
                bucket.id = if new_form { 10 * i as u32 } else { i as u32 };
            }
            let mut selection = Selection::default();
            if chosen && new_form && kind == GroupType::Select {
                let fields = vec![(::packet::Field::Reg1, mask.into()), (::packet::Field::DlType, 0xffff)];
                selection = Selection { method: "hash".into(), param, fields };
            }
            GroupSpec { kind, buckets, selection }
        },
    )
}

fn group_mod(v: Version) -> impl Strategy<Value = Body> {
    use GroupCommand::*;
    let new_form = v == Version::V1_0 || v >= Version::V1_5;
    let mut commands = vec![Add, Modify, AddOrModify, Delete];
    commands.extend(new_form.then_some([InsertBucket, RemoveBucket]).into_iter().flatten());
    (select(commands), 0u32..0xffff_ff00, spec(v)).prop_map(move |(command, group, mut spec)| {
        if matches!(command, Delete | RemoveBucket) {
            spec.buckets.clear();
        }
        if !matches!(command, Add | Modify | AddOrModify) {
            spec.selection = Selection::default();
        }
        let command_bucket =
            if matches!(command, InsertBucket | RemoveBucket) { bucket_id::LAST } else { bucket_id::ALL };
        Body::GroupMod(Box::new(GroupMod { command, group: GroupId(group), command_bucket, spec }))
    })
}

pub fn desc(v: Version) -> impl Strategy<Value = GroupDesc> {
    (any::<u32>(), spec(v)).prop_map(|(group, spec)| GroupDesc { group: GroupId(group), spec })
}

pub fn stats(v: Version) -> impl Strategy<Value = GroupStats> {
    (any::<[u32; 2]>(), any::<[u64; 2]>(), duration(), any::<Vec<(u64, u64)>>()).prop_map(
        move |([group, ref_count], [packet_count, byte_count], age, mut buckets)| {
            buckets.truncate(4);
            let duration = (v >= Version::V1_3 || v == Version::V1_0).then_some(age);
            GroupStats { group: GroupId(group), ref_count, packet_count, byte_count, duration, buckets }
        },
    )
}

pub fn meter_config() -> impl Strategy<Value = MeterConfig> {
    let kind = prop_oneof![Just(BandKind::Drop), any::<u8>().prop_map(BandKind::DscpRemark)];
    let band = (kind, any::<[u32; 2]>()).prop_map(|(kind, [rate, burst])| Band { kind, rate, burst });
    (1u32..=meter_id::MAX, 0u16..16, prop::collection::vec(band, 0..3)).prop_map(|(meter, bits, bands)| {
        let mut flags = MeterFlags::from_bits_truncate(bits);
        flags.set(MeterFlags::PKTPS, !flags.contains(MeterFlags::KBPS));
        MeterConfig { meter, flags, bands }
    })
}

pub fn meter_stats() -> impl Strategy<Value = MeterStats> {
    (any::<[u32; 2]>(), any::<[u64; 2]>(), duration(), any::<Option<(u64, u64)>>()).prop_map(
        |([meter, flow_count], [packet_in_count, byte_in_count], duration, band)| MeterStats {
            meter,
            flow_count,
            packet_in_count,
            byte_in_count,
            duration,
            bands: band.into_iter().collect(),
        },
    )
}

fn meter_mod() -> impl Strategy<Value = Body> {
    use MeterCommand::*;
    (select(vec![Add, Modify, Delete]), meter_config()).prop_map(|(command, mut config)| {
        if command == Delete {
            config = MeterConfig { flags: MeterFlags::empty(), bands: Vec::new(), ..config };
        }
        Body::MeterMod(MeterMod { command, config })
    })
}

fn vacancy(a: u8, b: u8, now: u8) -> Vacancy {
    Vacancy { down: (a % 101).min(b % 101), up: (a % 101).max(b % 101), now }
}

fn table_mod(v: Version) -> impl Strategy<Value = Body> {
    let late = (any::<[bool; 2]>(), prop::option::of(0u32..8), any::<Option<[u8; 2]>>());
    (any::<u8>(), select(vec![TableMiss::Controller, TableMiss::Continue, TableMiss::Drop]), late).prop_map(
        move |(table, miss, ([eviction, vacant], flags, at))| {
            let mut change = TableMod::new(TableId(table));
            if v < Version::V1_3 {
                change.miss = miss;
            }
            if v >= Version::V1_4 {
                (change.eviction, change.vacancy) = (Some(eviction), Some(vacant));
                change.eviction_flags = flags.map(EvictionFlags::from_bits_truncate);
                change.vacancy_at = at.map(|[a, b]| vacancy(a, b, 0));
            }
            Body::TableMod(change)
        },
    )
}

pub fn table_desc() -> impl Strategy<Value = TableDesc> {
    (any::<u8>(), prop::option::of(0u32..8), any::<Option<[u8; 3]>>()).prop_map(|(table, flags, at)| TableDesc {
        table: TableId(table),
        eviction: table % 2 == 0,
        eviction_flags: flags.map(EvictionFlags::from_bits_truncate),
        vacancy: at.map(|[a, b, now]| vacancy(a, b, now)),
    })
}

fn table_status() -> impl Strategy<Value = Body> {
    (select(vec![TableReason::VacancyDown, TableReason::VacancyUp]), table_desc())
        .prop_map(|(reason, desc)| Body::TableStatus(TableStatus { reason, desc }))
}

fn request_forward(v: Version) -> impl Strategy<Value = Body> {
    let meters = if v >= Version::V1_3 { 1 } else { 0 };
    let change = prop_oneof![2 => group_mod(v), meters => meter_mod()];
    change.prop_map(|body| {
        Body::RequestForward(match body {
            Body::GroupMod(change) => RequestForward::Group(change),
            Body::MeterMod(change) => RequestForward::Meter(change),
            other => unreachable!("{other:?}"),
        })
    })
}

pub fn queue_config(v: Version) -> impl Strategy<Value = QueueConfig> {
    let rate = || prop::option::of(0u16..=1000);
    (port(), any::<u32>(), rate(), rate()).prop_map(move |(port, queue, min_rate, max_rate)| QueueConfig {
        port,
        queue,
        min_rate,
        max_rate: max_rate.filter(|_| v > Version::V1_0),
    })
}

fn queues(v: Version) -> impl Strategy<Value = Body> {
    let reply = (port(), prop::collection::vec(queue_config(v), 0..3)).prop_map(move |(port, mut queues)| {
        if v < Version::V1_2 {
            queues.iter_mut().for_each(|queue| queue.port = port);
        }
        Body::QueueGetConfigReply { port, queues }
    });
    prop_oneof![port().prop_map(Body::QueueGetConfigRequest), reply]
}

fn bundles(v: Version) -> impl Strategy<Value = Body> {
    let control = (any::<u32>(), select(&BundleControlKind::ALL[..]), 0u16..4).prop_map(|(bundle, kind, flags)| {
        Body::BundleControl(BundleControl { bundle, kind, flags: BundleFlags::from_bits_truncate(flags) })
    });
    let add = (any::<u32>(), 0u16..4, data()).prop_map(move |(bundle, flags, data)| {
        let len = (8 + data.len()) as u16;
        let message = [&[v.wire(), 14], &len.to_be_bytes()[..], &XID.to_be_bytes(), &data].concat();
        Body::BundleAdd(BundleAdd { bundle, flags: BundleFlags::from_bits_truncate(flags), message })
    });
    prop_oneof![control, add]
}

fn tunnel_options() -> impl Strategy<Value = Body> {
    use TlvCommand::*;
    let map = (any::<u16>(), any::<u8>(), 1u8..32, 0u16..64).prop_map(|(class, kind, words, index)| TlvMap {
        class,
        kind,
        len: 4 * words,
        index,
    });
    (prop::option::of(select(vec![Add, Delete, Clear])), prop::collection::vec(map, 0..4)).prop_map(
        |(command, maps)| match command {
            Some(command) => Body::TlvTableMod(TlvTableMod { command, maps }),
            None => Body::TlvTableReply(TlvTable { max_option_space: 256, max_fields: 64, maps }),
        },
    )
}

fn ending_connections() -> impl Strategy<Value = Body> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let address = |v4: bool| {
        let v6 = (1u128 << 64..).prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits)));
        let address = if v4 { any::<Ipv4Addr>().prop_map(IpAddr::from).boxed() } else { v6.boxed() };
        prop::option::of(address)
    };
    let tuple = move |v4, ip_proto| {
        (address(v4), address(v4), any::<[u16; 3]>(), any::<[u8; 2]>()).prop_map(
            move |(src, dst, [src_port, dst_port, id], [kind, code])| match ip_proto {
                1 | 58 => CtTuple { src, dst, icmp: (id, kind, code), ..CtTuple::default() },
                _ => CtTuple { src, dst, src_port, dst_port, ..CtTuple::default() },
            },
        )
    };
    let flush = (select(vec![0u8, 1, 6, 17, 58]), any::<bool>(), any::<Option<u16>>())
        .prop_flat_map(move |(proto, v4, zone)| (Just((proto, zone)), tuple(v4, proto), tuple(v4, proto)))
        .prop_map(|((ip_proto, zone), orig, reply)| Body::CtFlush(Box::new(CtFlush { zone, ip_proto, orig, reply })));
    prop_oneof![any::<u16>().prop_map(Body::CtFlushZone), flush]
}

const XID: u32 = 0x0badcafe;

/// A message about what flows use.
pub fn group() -> impl Strategy<Value = Message> {
    version()
        .prop_flat_map(|v| {
            let mut all = vec![group_mod(v).boxed(), tunnel_options().boxed(), ending_connections().boxed()];
            all.push(request_forward(v).boxed());
            all.extend((v >= Version::V1_1).then(|| table_mod(v).boxed()));
            all.extend((v >= Version::V1_4).then(|| table_status().boxed()));
            all.extend((v >= Version::V1_3).then(|| meter_mod().boxed()));
            all.extend((v >= Version::V1_3).then(|| bundles(v).boxed()));
            all.extend((v < Version::V1_4).then(|| queues(v).boxed()));
            (Just(v), proptest::strategy::Union::new(all))
        })
        .prop_map(|(v, body)| Message::new(v, XID, body))
}
