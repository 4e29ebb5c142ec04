//! Messages without lists of flows or packets.

use proptest::prelude::*;
use proptest::sample::select;

use super::flow::removed;
use super::*;
use crate::error::{ErrorCode, ErrorMsg};
use crate::switch::*;

pub fn desc(v: Version) -> impl Strategy<Value = PortDesc> {
    let v10 = v == Version::V1_0;
    (port(), any::<[u8; 6]>(), "[a-z0-9]{0,15}", any::<[u32; 8]>()).prop_map(move |(port, mac, name, n)| PortDesc {
        port,
        hw_addr: EthAddr(mac),
        name,
        config: PortConfig::from_bits_truncate(if v10 { n[0] } else { n[0] & 0x65 }),
        state: PortState::from_bits_truncate(if v10 { n[1] & 0x301 } else { n[1] & 7 }),
        current: features(v, n[2]),
        advertised: features(v, n[3]),
        supported: features(v, n[4]),
        peer: features(v, n[5]),
        current_speed: if v10 { 0 } else { n[6] },
        max_speed: if v10 { 0 } else { n[7] },
    })
}

fn features(v: Version, bits: u32) -> PortFeatures {
    PortFeatures::from_bits_truncate(if v == Version::V1_0 { bits & 0xf87f } else { bits & 0xffff })
}

fn config(v: Version) -> impl Strategy<Value = SwitchConfig> {
    use FragHandling::*;
    (select(vec![Normal, Drop, Reassemble, NxMatch]), any::<bool>(), any::<u16>()).prop_map(move |(frag, ttl, len)| {
        SwitchConfig { frag, invalid_ttl_to_controller: (v < Version::V1_3).then_some(ttl), miss_send_len: len }
    })
}

/// Messages without lists of flows or packets.
pub fn small() -> impl Strategy<Value = Message> {
    version()
        .prop_flat_map(|v| (Just(v), prop_oneof![connection(v), switch_body(v), extension(v)]))
        .prop_map(|(v, (d, body))| Message { version: v, xid: 5, dialect: d, body })
}

fn connection(v: Version) -> Said {
    standard(prop_oneof![
        prop::sample::subsequence(&Version::ALL[..], 0..6).prop_map(move |versions| {
            // The message's version is the latest that the hello offers.
            Body::Hello(Hello { versions: Versions(Versions::of(&versions).0 & ((2 << v as u32) - 1) | 1 << v as u32) })
        }),
        data().prop_map(Body::EchoRequest),
        data().prop_map(Body::EchoReply),
        (any::<[u16; 2]>(), data()).prop_map(move |([kind, code], data)| {
            let error = match OfError::from_number(v, 0, kind, code) {
                Some(e) => ErrorCode::Known(e),
                None => ErrorCode::Unknown { vendor: 0, kind: kind & 0x7fff, code },
            };
            Body::Error(ErrorMsg { error, data })
        }),
        Just(Body::FeaturesRequest),
        Just(Body::GetConfigRequest),
        Just(Body::BarrierRequest),
        Just(Body::BarrierReply),
    ])
}

fn switch_body(v: Version) -> Said {
    let v10 = v == Version::V1_0;
    let ports = prop::collection::vec(desc(v), 0..4);
    let reason = select(vec![PortReason::Add, PortReason::Delete, PortReason::Modify]);
    let any_caps = Capabilities::FLOW_STATS
        | Capabilities::QUEUE_STATS
        | if v10 { Capabilities::STP } else { Capabilities::GROUP_STATS };
    standard(prop_oneof![
        (any::<u64>(), any::<u32>(), any::<[u8; 2]>(), ports).prop_map(
            move |(datapath_id, n, [tables, aux], ports)| {
                Body::FeaturesReply(SwitchFeatures {
                    datapath_id,
                    n_buffers: n,
                    n_tables: tables,
                    auxiliary_id: if v < Version::V1_3 { 0 } else { aux },
                    capabilities: any_caps & Capabilities::from_bits_truncate(n),
                    actions: if v10 { n } else { 0 },
                    ports: if v < Version::V1_3 { ports } else { Vec::new() },
                })
            }
        ),
        config(v).prop_map(Body::GetConfigReply),
        config(v).prop_map(Body::SetConfig),
        (reason, desc(v)).prop_map(|(reason, desc)| Body::PortStatus(PortStatus { reason, desc })),
        desc(v).prop_map(|d| Body::PortMod(PortMod {
            port: d.port,
            hw_addr: d.hw_addr,
            config: d.config & PortConfig::PORT_DOWN,
            mask: PortConfig::PORT_DOWN,
            advertise: d.current,
        })),
    ])
}

fn extension(v: Version) -> Said {
    let v10 = v == Version::V1_0;
    let format = select(vec![PacketInFormat::Standard, PacketInFormat::Nxt, PacketInFormat::Nxt2]);
    let mut only =
        vec![Body::FlowModTableId(true), Body::FlowModTableId(false), Body::SetControllerId(7), Body::FlowAge];
    only.extend(v10.then_some(Body::SetFlowFormat(FlowFormat::Nxm)));
    only.extend((v >= Version::V1_3).then_some(Body::GetAsyncRequest));
    only.push(Body::TlvTableRequest);
    prop_oneof![
        role(v),
        asynchronous(v),
        standard(format.prop_map(Body::SetPacketInFormat)),
        standard(select(only)),
        removed(v),
    ]
    .boxed()
}

fn role(v: Version) -> Said {
    let dialect = select(vec![Dialect::Nicira, if v < Version::V1_2 { Dialect::Nicira } else { Dialect::Standard }]);
    let role = select(vec![Role::Equal, Role::Primary, Role::Secondary]);
    let exchange = (dialect, role.clone(), 0u64..u64::MAX, any::<bool>()).prop_map(|(d, role, id, reply)| {
        let message = RoleMsg { role, generation_id: (d == Dialect::Standard).then_some(id) };
        (d, if reply { Body::RoleReply(message) } else { Body::RoleRequest(message) })
    });
    if v < Version::V1_3 {
        return exchange.boxed();
    }
    let reason = select(vec![RoleReason::PrimaryRequest, RoleReason::Config, RoleReason::Experimenter]);
    let status = (role, reason, prop::option::of(0u64..u64::MAX))
        .prop_map(|(role, reason, generation_id)| Body::RoleStatus(RoleStatus { role, reason, generation_id }));
    prop_oneof![exchange, standard(status)].boxed()
}

/// Which asynchronous messages a controller gets.
fn asynchronous(v: Version) -> Said {
    let six = any::<[[u32; 2]; 3]>().prop_map(|[packet_in, port_status, flow_removed]| AsyncConfig {
        packet_in,
        port_status,
        flow_removed,
        ..AsyncConfig::default()
    });
    let some = any::<[[Option<u32>; 2]; 6]>().prop_map(|masks| {
        let known = |i: usize, known: u32| masks[i].map(|mask| mask.map(|mask| mask & known));
        AsyncChange {
            packet_in: known(0, 0x3f),
            port_status: known(1, 7),
            flow_removed: known(2, 0x3f),
            role_status: known(3, 7),
            table_status: known(4, 0x18),
            requestforward: known(5, 3),
        }
    });
    let six_changed = six.clone().prop_map(|config| AsyncChange {
        role_status: [None; 2],
        table_status: [None; 2],
        requestforward: [None; 2],
        ..AsyncChange::to(&config)
    });
    let nicira = six_changed.clone().prop_map(|change| (Dialect::Nicira, Body::SetAsync(change)));
    match v {
        _ if v >= Version::V1_4 => {
            let reply = some.clone().prop_map(|change| Body::GetAsyncReply(change.applied(&AsyncConfig::default())));
            prop_oneof![nicira, standard(some.prop_map(Body::SetAsync)), standard(reply)].boxed()
        }
        Version::V1_3 => prop_oneof![
            nicira,
            standard(some.prop_map(Body::SetAsync2)),
            standard(six_changed.prop_map(Body::SetAsync)),
            standard(six.prop_map(Body::GetAsyncReply)),
        ]
        .boxed(),
        _ => prop_oneof![nicira, standard(some.prop_map(Body::SetAsync2))].boxed(),
    }
}
