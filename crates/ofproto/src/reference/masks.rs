//! That a mask says all that a translation depends on: whatever else a packet has, it fares alike. What a flow does not match is
//! zero in its key, by which it is translated again after a change, so zeros are tried, too.

use datapath::Config;
use openflow::{OfPort, PortConfig, PortFeatures, PortMod};
use packet::flow::{BlockId, Blocks, VLAN_PRESENT, VlanLimit, extract};
use packet::wire::build;
use packet::{Clock, Field, Key};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use protocols::mcast::Settings;
use protocols::spanning_tree::Protocol;

use super::connections;
use super::multicast::tests::multicast_frame;
use super::tests::{Bed, MACS, PORTS, Pair, frame, groups, mirrors, rule, vlan};
use crate::model::config::BridgeConfig;
use crate::model::spanning_tree::SpanningTreeConfig;
use crate::slowpath::change_tests::effects;
use crate::xlate::spanning_tree::BRIDGES;

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
fn key_of(bed: &Bed, port: u32, frame: &[u8]) -> Option<Key> {
    let mut key = Key::new();
    extract(frame, &mut key, VlanLimit::default());
    key.common_mut().in_port = bed.bridge.port(OfPort(port))?.dp_port?.0.into();
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

/// The key with what packets can have: tags with types, and a hash and a connection only if they come back.
fn possible(mut key: Key) -> Key {
    if !comes_back(&key) {
        key.common_mut().dp_hash = 0.into();
        key.keep(Blocks(Blocks::ALL.0 & !Blocks::default().with(BlockId::Ct).0));
    }
    // Type and code of ICMP are a byte each.
    let common = key.common_mut();
    if matches!((common.dl_type.get(), common.nw_proto), (0x0800, 1) | (0x86dd, 58)) {
        let byte = |value: u16| (value & 0xff).into();
        (common.tp_src, common.tp_dst) = (byte(common.tp_src.get()), byte(common.tp_dst.get()));
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
fn mixed(own: &Key, other: &Key, mask: &packet::Mask) -> Key {
    let mut key = own.masked(mask);
    for id in other.present().iter() {
        let (from, matched) = (*other.block(id).words(), *mask.0.block(id).words());
        let to = key.block_mut(id).words_mut();
        for at in 0..8 {
            to[at] |= from[at] & !matched[at];
        }
    }
    possible(key)
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
        pairs in proptest::collection::vec((any::<Index>(), any::<Index>()), 40),
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
        frames.iter().for_each(|(port, frame)| drop(bed.receive(OfPort(*port), frame)));
        // Keys of packets, of flows, and what could be in those of later passes.
        let mut keys: Vec<Key> = frames.iter().filter_map(|(port, frame)| key_of(bed, *port, frame)).collect();
        keys.extend(bed.datapath.flows().map(|flow| possible(flow.key.masked(&flow.mask))));
        let of_connections: Vec<Key> = (0..).zip(&keys).map(|(n, key)| tracked(key, n % 8)).collect();
        let others: Vec<Key> = keys.iter().chain(&of_connections).cloned().chain([Key::new()]).collect();
        keys.extend(of_connections.into_iter().filter(comes_back));
        let forwarding = bed.switch.forwarding.read();
        let translate = |key: &Key| bed.switch.translate_dp(&forwarding, key, None, bed.clock.now());
        for (own, other) in pairs {
            let own = own.get(&keys);
            let Some(first) = translate(own) else { continue };
            let mixed = mixed(own, other.get(&others), &first.mask);
            let second = translate(&mixed).unwrap();
            let context = || format!("of {own:?}, mixed {mixed:?}, mask {:?}", first.mask);
            prop_assert_eq!(first.slow, second.slow, "{}", context());
            // Where each packet is translated for itself, what becomes of one says nothing of others.
            if !first.slow {
                prop_assert_eq!(effects(&first.actions, &mixed), effects(&second.actions, &mixed), "{}", context());
            }
        }
    }
}
