//! Multipart requests and replies.

use ::packet::Field;
use proptest::prelude::*;
use proptest::sample::select;

use super::action::instructions;
use super::matching::match_of;
use super::switch::desc;
use super::*;
use crate::port::*;
use crate::stats::*;

pub fn request() -> impl Strategy<Value = Message> {
    use MultipartRequest::*;
    with_dialect(|v, d| {
        let v10 = v == Version::V1_0;
        let flow = (match_of(v, d), any::<u8>(), port(), any::<[u64; 2]>()).prop_map(
            move |(matching, table, out_port, [value, mask])| {
                let filtered = !v10 || d == Dialect::Nicira;
                FlowStatsRequest {
                    matching,
                    table: TableId(table),
                    out_port,
                    out_group: if v10 { GroupId::ANY } else { GroupId(3) },
                    cookie: if filtered { CookieFilter { value: value & mask, mask } } else { CookieFilter::default() },
                }
            },
        );
        let flow = (flow, any::<bool>()).prop_map(|(q, sums)| if sums { Aggregate(q) } else { Flow(q) });
        let mut plain = vec![
            Desc,
            Table,
            PortDesc(OfPort::ANY),
            Port(OfPort::ANY),
            Port(OfPort(3)),
            Queue { port: OfPort::ANY, queue: 9 },
        ];
        plain.extend([Group(GroupId::ALL), GroupDesc(GroupId::ALL), GroupFeatures, IpfixBridge, IpfixFlow]);
        if v >= Version::V1_3 {
            plain.extend([Meter(3), MeterConfig(4), MeterFeatures, TableFeatures(Vec::new())]);
        }
        if v >= Version::V1_4 {
            plain.extend([TableDesc, QueueDesc { port: OfPort::ANY, queue: 7 }]);
        }
        if v >= Version::V1_5 {
            plain.extend([PortDesc(OfPort(7)), GroupDesc(GroupId(9))]);
        }
        let only_nicira = move |request: &MultipartRequest| match request {
            Group(_) | GroupDesc(_) => v10,
            GroupFeatures => v < Version::V1_2,
            IpfixBridge | IpfixFlow => true,
            _ => false,
        };
        prop_oneof![
            1 => flow.prop_map(move |request| (d, request)),
            1 => select(plain).prop_map(move |request| {
                (if only_nicira(&request) { Dialect::Nicira } else { Dialect::Standard }, request)
            }),
        ]
        .prop_map(|(d, request)| (d, Body::MultipartRequest { more: false, request }))
    })
    .prop_map(|(v, _, (d, body))| message((v, d, body)))
}

fn flow_stats(v: Version, d: Dialect) -> impl Strategy<Value = FlowStats> {
    let nicira = v == Version::V1_0 && d == Dialect::Nicira;
    let ages = (prop::option::of(0u16..0xffff), prop::option::of(0u16..0xffff));
    let rest = (any::<u8>(), any::<[u16; 3]>(), any::<[u64; 3]>(), duration(), ages, 0u16..32);
    (match_of(v, d), rest, instructions(v)).prop_map(move |(matching, rest, instructions)| {
        let (table, [priority, idle, hard], [cookie, packets, bytes], duration, (idle_age, hard_age), flags) = rest;
        FlowStats {
            matching,
            cookie: Cookie(cookie),
            table: TableId(table),
            priority,
            idle_timeout: idle,
            hard_timeout: hard,
            duration,
            idle_age: idle_age.filter(|_| nicira || v >= Version::V1_5),
            hard_age: hard_age.filter(|_| nicira),
            packet_count: packets,
            byte_count: bytes,
            flags: FlowModFlags::from_bits_truncate(if v < Version::V1_3 { 0 } else { flags }),
            importance: if v < Version::V1_4 { 0 } else { hard },
            instructions,
        }
    })
}

fn port_stats(v: Version) -> impl Strategy<Value = PortStats> {
    (port(), any::<[u64; 12]>(), duration()).prop_map(move |(port, n, duration)| PortStats {
        port,
        rx_packets: n[0],
        tx_packets: n[1],
        rx_bytes: n[2],
        tx_bytes: n[3],
        rx_dropped: n[4],
        tx_dropped: n[5],
        rx_errors: n[6],
        tx_errors: n[7],
        rx_frame_err: n[8],
        rx_over_err: n[9],
        rx_crc_err: n[10],
        collisions: n[11],
        duration: (v >= Version::V1_3 && duration.as_secs() < u32::MAX.into()).then_some(duration),
        custom: if v >= Version::V1_4 { vec![("rx_queue_0".into(), n[0]), (String::new(), n[1])] } else { Vec::new() },
    })
}

fn table_features() -> impl Strategy<Value = TableFeatures> {
    let set =
        (any::<[u32; 3]>(), prop::collection::vec(0u8..255, 0..5)).prop_map(|([i, w, a], next)| TableFeaturesSet {
            instructions: i,
            next_tables: next.into_iter().map(TableId).collect(),
            write_actions: w,
            apply_actions: a,
            write_setfield: vec![Field::NwSrc.info().oxm.unwrap()],
            apply_setfield: vec![Field::NshSpi.info().oxm.unwrap(), Field::Reg0.info().nxm.unwrap()],
        });
    (0u8..255, "[a-z]{0,31}", any::<[u64; 2]>(), set.clone(), prop::option::of(set)).prop_map(
        |(table, name, n, normal, miss)| TableFeatures {
            table: TableId(table),
            name,
            metadata_match: n[0],
            metadata_write: n[1],
            config: 3,
            max_entries: n[0] as u32,
            miss: miss.filter(|m| *m != normal),
            normal,
            matches: vec![(Field::NwSrc.info().oxm.unwrap(), true), (Field::DlType.info().oxm.unwrap(), false)],
            wildcards: vec![Field::DlSrc.info().oxm.unwrap()],
        },
    )
}

pub fn reply() -> impl Strategy<Value = Message> {
    use MultipartReply::*;
    with_dialect(|v, d| {
        let v10 = v == Version::V1_0;
        let said = |r: BoxedStrategy<MultipartReply>| r.prop_map(|r| (Dialect::Standard, r)).boxed();
        let own = |r: BoxedStrategy<MultipartReply>| r.prop_map(move |r| (d, r)).boxed();
        let sums = any::<[u64; 2]>().prop_map(|[packet_count, byte_count]| {
            Aggregate(AggregateStats { packet_count, byte_count, flow_count: 7 })
        });
        let table =
            (any::<u8>(), "[a-z]{0,31}", any::<[u32; 3]>(), any::<[u64; 2]>()).prop_map(move |(table, name, n, m)| {
                let named = v < Version::V1_3;
                TableStats {
                    table: TableId(table),
                    name: if named { name } else { String::new() },
                    wildcards: if v10 { n[0] } else { 0 },
                    max_entries: if named { n[1] } else { 0 },
                    active_count: n[2],
                    lookup_count: m[0],
                    matched_count: m[1],
                    early: (named && !v10).then(|| Box::new(abilities(v, n[0], m))),
                }
            });
        let queue =
            (port(), any::<u32>(), any::<[u64; 3]>(), duration()).prop_map(move |(port, queue, n, age)| QueueStats {
                port,
                queue,
                tx_bytes: n[0],
                tx_packets: n[1],
                tx_errors: n[2],
                duration: (v >= Version::V1_3 && age.as_secs() < u32::MAX.into()).then_some(age),
            });
        let mut all = vec![
            own(prop::collection::vec(flow_stats(v, d), 0..4).prop_map(Flow).boxed()),
            own(sums.boxed()),
            said(prop::collection::vec(table, 0..4).prop_map(Table).boxed()),
            said(prop::collection::vec(queue, 0..4).prop_map(Queue).boxed()),
            said(prop::collection::vec(port_stats(v), 0..4).prop_map(Port).boxed()),
            said(prop::collection::vec(desc(v), 0..4).prop_map(PortDesc).boxed()),
            said(
                "[ -~]{0,31}"
                    .prop_map(|s| {
                        let [manufacturer, hardware, software, serial, datapath] = std::array::from_fn(|_| s.clone());
                        Desc(Box::new(SwitchDesc { manufacturer, hardware, software, serial, datapath }))
                    })
                    .boxed(),
            ),
        ];
        all.extend(late_replies(v));
        proptest::strategy::Union::new(all).prop_map(|(d, reply)| (d, Body::MultipartReply { more: false, reply }))
    })
    .prop_map(|(v, _, (d, body))| message((v, d, body)))
}

/// What table statistics of OpenFlow 1.1 and 1.2 have besides counters.
fn abilities(v: Version, n: u32, m: [u64; 2]) -> TableAbilities {
    let v12 = v == Version::V1_2;
    let late = |value: u64| if v12 { value } else { 0 };
    TableAbilities {
        matches: if v12 { m[0] } else { n.into() },
        wildcards: u64::from(n) >> 1,
        instructions: n,
        write_actions: !n,
        apply_actions: n ^ 7,
        write_setfields: late(m[1]),
        apply_setfields: late(m[0]),
        metadata_match: late(m[0] ^ m[1]),
        metadata_write: late(!m[0]),
        miss: [TableMiss::Controller, TableMiss::Continue, TableMiss::Drop][n as usize % 3],
    }
}

fn ipfix_stats() -> impl Strategy<Value = IpfixStats> {
    (any::<[u64; 10]>(), any::<u32>()).prop_map(|(n, collector_set)| IpfixStats {
        flows: n[0],
        current_flows: n[1],
        packets: n[2],
        ipv4: n[3],
        ipv6: n[4],
        errors: n[5],
        ipv4_errors: n[6],
        ipv6_errors: n[7],
        sent: n[8],
        not_sent: n[9],
        collector_set,
    })
}

/// Replies that not every version has.
fn late_replies(v: Version) -> Vec<BoxedStrategy<(Dialect, MultipartReply)>> {
    use MultipartReply::*;
    let said = |r: BoxedStrategy<MultipartReply>| r.prop_map(|r| (Dialect::Standard, r)).boxed();
    let maybe = |nicira: bool, r: BoxedStrategy<MultipartReply>| {
        r.prop_map(move |r| (if nicira { Dialect::Nicira } else { Dialect::Standard }, r)).boxed()
    };
    let v10 = v == Version::V1_0;
    let features = any::<([u32; 2], [u32; 4], [u32; 4])>().prop_map(|([types, capabilities], max_groups, actions)| {
        GroupFeatures(crate::stats::GroupFeatures { types, capabilities, max_groups, actions })
    });
    let mut all = vec![
        maybe(v10, prop::collection::vec(group::desc(v), 0..3).prop_map(GroupDesc).boxed()),
        maybe(v10, prop::collection::vec(group::stats(v), 0..3).prop_map(Group).boxed()),
        maybe(v < Version::V1_2, features.boxed()),
        maybe(true, ipfix_stats().prop_map(IpfixBridge).boxed()),
        maybe(true, prop::collection::vec(ipfix_stats(), 0..3).prop_map(IpfixFlow).boxed()),
    ];
    if v >= Version::V1_3 {
        let features = any::<[u32; 3]>().prop_map(|[max_meters, band_types, capabilities]| {
            let limits =
                crate::stats::MeterFeatures { max_meters, band_types, capabilities, max_bands: 1, max_color: 2 };
            MeterFeatures(limits)
        });
        all.extend([
            said(prop::collection::vec(table_features(), 0..3).prop_map(TableFeatures).boxed()),
            said(prop::collection::vec(group::meter_stats(), 0..3).prop_map(Meter).boxed()),
            said(prop::collection::vec(group::meter_config(), 0..3).prop_map(MeterConfig).boxed()),
            said(features.boxed()),
        ]);
    }
    if v >= Version::V1_4 {
        all.push(said(prop::collection::vec(group::table_desc(), 0..3).prop_map(TableDesc).boxed()));
        all.push(said(prop::collection::vec(group::queue_config(v), 0..3).prop_map(QueueDesc).boxed()));
    }
    all
}
