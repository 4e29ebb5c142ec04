//! That a mask says all that a translation depends on: whatever else a packet has, it fares alike. Blocks of
//! which a flow matches nothing are zero in its key, by which it is translated again after a change, so zeros are tried, too.

use datapath::Config;
use openflow::{FlowMod, FlowModCommand, OfPort, PortConfig, PortFeatures, PortMod, TableId};
use packet::flow::{BlockId, Blocks, VLAN_PRESENT, VlanLimit, extract};
use packet::wire::build;
use packet::{Clock, Field, Key};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use protocols::mcast::Settings;
use protocols::spanning_tree::Protocol;
use tunnel::header::{self, Header, Payload};

use super::multicast::tests::multicast_frame;
use super::tests::{Bed, MACS, PORTS, Pair, frame, groups, mirrors, rule, vlan};
use super::{connections, labels, packet_types};
use crate::bridge::Bridge;
use crate::model::bond::BondMode;
use crate::model::config::BridgeConfig;
use crate::model::spanning_tree::SpanningTreeConfig;
use crate::model::vlan::PortVlan;
use crate::slowpath::change_tests::effects;
use crate::xlate::bond_recirculation_tests::negotiated;
use crate::xlate::bond_tests::{bond, set_up};
use crate::xlate::spanning_tree::BRIDGES;
use crate::xlate::tunnel_tests::Host;

/// Frames that ports take for themselves, or that are like those.
fn llc() -> impl Strategy<Value = Vec<u8>> {
    select(vec![BRIDGES, MACS[0], MACS[5], [1, 0, 0x0c, 0xcc, 0xcc, 0xcc]])
        .prop_map(|dst| build::ethernet(dst, MACS[1], &[], 38, &[&[0x42, 0x42, 3][..], &[0; 43]].concat()))
}

fn received() -> impl Strategy<Value = (u32, Vec<u8>)> {
    prop_oneof![
        3 => (1..=PORTS, frame()),
        3 => connections::packet(),
        1 => (1..=PORTS, multicast_frame()),
        1 => (1..=PORTS, llc()),
    ]
}

/// What a host says when it has moved, and what is like it.
fn announcement() -> impl Strategy<Value = Vec<u8>> {
    let mac = || select(MACS[..2].to_vec());
    let address = || select(vec![[10, 0, 0, 1], [10, 0, 0, 2]]);
    (mac(), select(vec![MACS[4], MACS[2]]), 1u16..3, address(), address()).prop_map(|(src, dst, op, spa, tpa)| {
        build::ethernet(dst, src, &[], 0x0806, &build::arp(op, src, spa.into(), [0; 6], tpa.into()))
    })
}

fn flags() -> impl Strategy<Value = PortConfig> {
    select(vec![
        PortConfig::NO_RECV,
        PortConfig::NO_RECV_STP,
        PortConfig::NO_RECV | PortConfig::NO_RECV_STP,
        PortConfig::NO_FWD,
        PortConfig::NO_FLOOD,
        PortConfig::NO_PACKET_IN,
    ])
}

fn set_config(bed: &Bed, port: u32, config: PortConfig) {
    let [desc] = &bed.bridge.port_descs(OfPort(port))[..] else { return };
    let (hw_addr, advertise) = (desc.hw_addr, PortFeatures::empty());
    bed.bridge.port_mod(&PortMod { port: OfPort(port), hw_addr, config, mask: config, advertise }).unwrap();
}

/// The key of a frame as the datapath sees it.
fn key_of(bridge: &Bridge, port: u32, frame: &[u8]) -> Option<Key> {
    let mut key = Key::new();
    extract(frame, &mut key, VlanLimit::default());
    key.common_mut().in_port = bridge.port(OfPort(port))?.dp_port?.0.into();
    Some(key)
}

/// The key as it would be had the packet a connection: `n` tells several apart.
fn tracked(key: &Key, n: u8) -> Key {
    let mut key = key.clone();
    let (src, dst) = (key.get(Field::NwSrc), key.get(Field::NwDst));
    let has_answers = n & 1 != 0;
    let fields = [
        (Field::CtState, if has_answers { 0x2a } else { 0x21 }),
        (Field::CtZone, u128::from(n / 2)),
        (Field::CtMark, u128::from(n)),
        (Field::CtLabel, u128::from(n) << 64),
        (Field::CtNwProto, key.get(Field::NwProto)),
        (Field::CtNwSrc, if has_answers { dst } else { src }),
        (Field::CtNwDst, if has_answers { src } else { dst }),
        (Field::CtTpSrc, 1),
        (Field::CtTpDst, 2),
    ];
    if key.common().dl_type.get() == 0x0800 {
        fields.into_iter().for_each(|(field, value)| key.set(field, value));
    }
    key
}

fn comes_back(key: &Key) -> bool {
    key.common().recirc_id.get() != 0
}

const OF_TUNNELS: [BlockId; 5] =
    [BlockId::Tunnel, BlockId::TunMeta0, BlockId::TunMeta1, BlockId::TunMeta2, BlockId::TunMeta3];

/// The key with what packets can have: tags with types, a hash and a connection only if they come back, and what a tunnel's headers
/// said only if they come out of one.
fn possible(mut key: Key, carriers: &[u32]) -> Key {
    let mut blocks = Blocks::ALL;
    let mut without = |id| blocks = Blocks(blocks.0 & !Blocks::default().with(id).0);
    if !comes_back(&key) {
        key.common_mut().dp_hash = 0.into();
        without(BlockId::Ct);
    }
    if !carriers.contains(&key.common().in_port.get()) {
        OF_TUNNELS.into_iter().for_each(without);
    }
    key.keep(blocks);
    // Type and code of ICMP are a byte each.
    let common = key.common_mut();
    if matches!((common.dl_type.get(), common.nw_proto), (0x0800, 1) | (0x86dd, 58)) {
        let byte = |value: u16| (value & 0xff).into();
        (common.tp_src, common.tp_dst) = (byte(common.tp_src.get()), byte(common.tp_dst.get()));
    }
    if key.get(Field::PacketType) != 0 {
        [Field::DlSrc, Field::DlDst, Field::VlanTci].into_iter().for_each(|field| key.set(field, 0));
    }
    // A tag has a type, and there is none behind one that is not there.
    let mut is_there = true;
    for tag in &mut key.common_mut().vlan {
        is_there &= tag.tci.get() & VLAN_PRESENT != 0;
        match (is_there, tag.tpid.get()) {
            (true, 0) => tag.tpid = 0x8100.into(),
            (true, _) => {}
            (false, _) => (tag.tpid, tag.tci) = (0.into(), 0.into()),
        }
    }
    key
}

/// The bits of `own` that the mask matches, and of the others those of `other`.
fn mixed(own: &Key, other: &Key, mask: &packet::Mask, carriers: &[u32]) -> Key {
    let mut key = own.masked(mask);
    for id in other.present().iter() {
        let (from, matched) = (*other.block(id).words(), *mask.0.block(id).words());
        let to = key.block_mut(id).words_mut();
        for at in 0..8 {
            to[at] |= from[at] & !matched[at];
        }
    }
    possible(key, carriers)
}

/// A key whose matched bits are kept, and one that the others are taken from.
type Pairs = Vec<(Index, Index)>;

fn pairs() -> impl Strategy<Value = Pairs> {
    proptest::collection::vec((any::<Index>(), any::<Index>()), 40)
}

/// Mixes the keys of these packets, of the flows, and what could be in those of later passes.
fn check(bed: &Bed, mut keys: Vec<Key>, pairs: &Pairs) -> Result<(), TestCaseError> {
    let carriers: Vec<u32> = bed.switch.carriers().iter().map(|carrier| carrier.dp_port).collect();
    keys.extend(bed.datapath.flows().map(|flow| possible(flow.key.masked(&flow.mask), &carriers)));
    let of_connections: Vec<Key> = (0..).zip(&keys).map(|(n, key)| tracked(key, n % 8)).collect();
    let others: Vec<Key> = keys.iter().chain(&of_connections).cloned().chain([Key::new()]).collect();
    keys.extend(of_connections.into_iter().filter(comes_back));
    let forwarding = bed.switch.forwarding.read();
    let translate = |key: &Key| bed.switch.translate_dp(&forwarding, key, None, bed.clock.now());
    for (own, other) in pairs {
        let own = own.get(&keys);
        let Some(first) = translate(own) else { continue };
        let mixed = mixed(own, other.get(&others), &first.mask, &carriers);
        let second = translate(&mixed).unwrap();
        let context = || format!("of {own:?}, mixed {mixed:?}, mask {:?}", first.mask);
        prop_assert_eq!(first.slow, second.slow, "{}", context());
        // Where each packet is translated for itself, what becomes of one says nothing of others.
        if !first.slow {
            prop_assert_eq!(effects(&first.actions, &mixed), effects(&second.actions, &mixed), "{}", context());
        }
    }
    Ok(())
}

/// Has the switch receive the frames; returns their keys.
fn receive(bed: &Bed, frames: &[(u32, Vec<u8>)]) -> Vec<Key> {
    frames.iter().for_each(|(port, frame)| drop(bed.receive(OfPort(*port), frame)));
    frames.iter().filter_map(|(port, frame)| key_of(&bed.bridge, *port, frame)).collect()
}

const TUNNELS: [&str; 8] = [
    "vxlan remote_ip=192.0.2.2 key=7",
    "vxlan remote_ip=192.0.2.2 key=flow tos=inherit",
    "vxlan remote_ip=flow key=flow ttl=inherit",
    "vxlan remote_ip=192.0.2.3 key=9 egress_pkt_mark=5",
    "geneve remote_ip=192.0.2.2 key=flow csum=true",
    "geneve remote_ip=flow local_ip=flow key=7",
    "gre remote_ip=192.0.2.2 key=flow",
    "gre remote_ip=192.0.2.2 packet_type=legacy_l3",
];

/// Headers that a frame comes in behind.
#[derive(Clone, Copy, Debug)]
struct OuterSpec {
    protocol: header::Protocol,
    id: u32,
    has_options: bool,
    tos: u8,
}

impl OuterSpec {
    fn frame(&self, host: &Host, inner: &[u8]) -> Vec<u8> {
        let options: &[u8] = if self.has_options { &[1, 2, 3, 1, 0, 0, 0, 9] } else { &[] };
        let header = match self.protocol {
            header::Protocol::Geneve => {
                Header::Geneve { vni: self.id, oam: self.has_options, payload: Payload::Ethernet, options }
            }
            header::Protocol::Gre if self.has_options => {
                Header::Gre { key: None, checksum: false, sequence: None, payload: Payload::Packet(0x0800) }
            }
            header::Protocol::Gre => {
                Header::Gre { key: Some(self.id), checksum: self.id == 7, sequence: None, payload: Payload::Ethernet }
            }
            _ => Header::Vxlan { vni: self.id, group: None },
        };
        let begins_with_ip = matches!(header, Header::Gre { payload: Payload::Packet(_), .. });
        let inner = if begins_with_ip { inner.get(14..).unwrap_or_default() } else { inner };
        let mut frame = host.frame(self.protocol, &header, inner);
        frame[15] = self.tos;
        frame[24..26].fill(0);
        let sum = packet::wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }
}

fn outer() -> impl Strategy<Value = OuterSpec> {
    let vxlan = header::Protocol::Vxlan { group_policy: false };
    let protocol = select(vec![vxlan, vxlan, header::Protocol::Geneve, header::Protocol::Gre]);
    (protocol, select(vec![0u32, 7, 9]), any::<bool>(), select(vec![0u8, 1, 3, 0x28]))
        .prop_map(|(protocol, id, has_options, tos)| OuterSpec { protocol, id, has_options, tos })
}

/// A rule of the bridge with the tunnels.
fn tunnel_flow() -> impl Strategy<Value = String> {
    let matches = vec![
        "",
        "in_port=1",
        "in_port=10",
        "in_port=11",
        "tun_id=7",
        "tun_id=0/1",
        "tun_src=192.0.2.2",
        "tun_dst=192.0.2.0/24",
        "tun_flags=oam",
        "tun_flags=-oam",
        "ip",
        "ip,nw_ecn=3",
        "tcp,tp_dst=80",
        "ip,nw_tos=0x28",
        "packet_type=(0,0)",
        "packet_type=(1,0x800)",
        "dl_vlan=5",
        "in_port=10,ip,tun_id=9",
        "in_port=10,ct_state=+trk",
        "reg0=7",
        "pkt_mark=3",
    ];
    let actions = vec![
        "1",
        "2",
        "10",
        "11",
        "12",
        "in_port",
        "NORMAL",
        "set_tunnel:7",
        "set_tunnel:9",
        "set_field:192.0.2.2->tun_dst",
        "set_field:192.0.2.1->tun_src",
        "set_field:9->tun_tos",
        "set_field:33->tun_ttl",
        "move:NXM_NX_TUN_ID[0..15]->NXM_NX_REG0[0..15]",
        "move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31]",
        "move:NXM_NX_TUN_IPV4_SRC[]->NXM_NX_TUN_IPV4_DST[]",
        "resubmit(,1)",
        "resubmit(,2)",
        "dec_ttl",
        "ct(table=1)",
        "mod_dl_dst:2:0:0:0:0:4",
        "load:1->NXM_NX_TUN_FLAGS[]",
        "set_field:3->pkt_mark",
        "clone(set_tunnel:5,10)",
        "strip_vlan",
    ];
    (0u8..3, 0u16..8, select(matches), proptest::collection::vec(select(actions), 1..5)).prop_map(
        |(table, priority, matching, actions)| {
            format!("table={table},priority={priority},{matching},actions={}", actions.join(","))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn a_mask_says_all_that_a_translation_depends_on(
        rules in proptest::collection::vec(prop_oneof![rule(), connections::rule()], 2..16),
        groups in groups(),
        (mirrors, vlans) in (mirrors(), proptest::collection::vec(vlan(), PORTS as usize)),
        flags in proptest::collection::vec((1..=PORTS, flags()), 0..3),
        protocol in select(vec![Protocol::Off, Protocol::Off, Protocol::Stp, Protocol::Rstp]),
        snooping in proptest::option::of(any::<bool>()),
        frames in proptest::collection::vec(received(), 2..10),
        pairs in pairs(),
    ) {
        let mut pair = Pair::new(&vlans, Config::default());
        pair.groups(&groups);
        pair.mirrors(&mirrors);
        rules.iter().for_each(|rule| pair.add(rule));
        let bed = &pair.bed;
        let mcast_snooping = snooping.map(|flood_unregistered| Settings { flood_unregistered, ..Settings::default() });
        let spanning_tree = SpanningTreeConfig { protocol, ..SpanningTreeConfig::default() };
        bed.bridge.set_config(BridgeConfig { spanning_tree, mcast_snooping, ..bed.bridge.config() });
        flags.iter().for_each(|(port, config)| set_config(bed, *port, *config));
        check(bed, receive(bed, &frames), &pairs)?;
    }

    #[test]
    fn so_do_those_of_headers_that_come_and_go(
        rules in proptest::collection::vec(prop_oneof![packet_types::rule(), labels::rule()], 2..16),
        groups in proptest::collection::vec(packet_types::group(), 2),
        frames in proptest::collection::vec(prop_oneof![packet_types::packet(), labels::packet()], 2..10),
        pairs in pairs(),
    ) {
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
        pair.groups(&groups);
        rules.iter().for_each(|rule| pair.add(rule));
        check(&pair.bed, receive(&pair.bed, &frames), &pairs)?;
    }

    #[test]
    fn so_do_those_of_bonds(
        mode in select(vec![BondMode::ActiveBackup, BondMode::BalanceSlb, BondMode::BalanceTcp]),
        rules in proptest::collection::vec(rule(), 0..6),
        down in proptest::option::of(1..=PORTS),
        frames in proptest::collection::vec((1..=PORTS, prop_oneof![2 => frame(), 1 => announcement()]), 2..10),
        pairs in pairs(),
    ) {
        let bed = bond(mode);
        if mode == BondMode::BalanceTcp {
            negotiated(&bed, &bed.bridge, "bond0");
        }
        // Above that of NORMAL.
        (40_000..).zip(&rules).for_each(|(priority, rule)| {
            let mut change = FlowMod::new(FlowModCommand::Add, rule.matching.clone(), rule.instructions.clone());
            (change.table, change.priority) = (Some(TableId(rule.table)), priority);
            // Not all can be without groups.
            let _ = bed.bridge.flow_mod(&change);
        });
        down.into_iter().for_each(|port| set_up(&bed, port, false));
        check(&bed, receive(&bed, &frames), &pairs)?;
    }

    #[test]
    fn so_do_those_of_tunnels(
        tunnels in subsequence(TUNNELS.to_vec(), 1..4),
        flows in proptest::collection::vec(tunnel_flow(), 1..12),
        frames in proptest::collection::vec((any::<bool>(), frame(), outer()), 2..10),
        pairs in pairs(),
    ) {
        let host = Host::new(&tunnels, &[]);
        flows.iter().for_each(|flow| host.try_flow(flow));
        let mut keys = Vec::new();
        for (comes_in, inner, outer) in &frames {
            let (bridge, port, frame) = match comes_in {
                true => (&host.phy, 1, outer.frame(&host, inner)),
                false => (&host.bed.bridge, 1, inner.clone()),
            };
            match comes_in {
                true => drop(host.receive(&frame)),
                false => drop(host.bed.receive(OfPort(1), &frame)),
            }
            keys.extend(key_of(bridge, port, &frame));
        }
        check(&host.bed, keys, &pairs)?;
    }
}
