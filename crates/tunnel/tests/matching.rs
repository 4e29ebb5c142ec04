//! The table of ports, beside one that looks at all of them.

use std::net::IpAddr;

use proptest::prelude::*;
use tunnel::matching::{Address, Key, Match, PacketType, Ports, Received};

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

/// Few values, so that ports and packets meet.
fn matches() -> impl Strategy<Value = Match> {
    let address = || (0u8..3).prop_map(|last| Address::One(ip(last)));
    let key = prop_oneof![2 => (0u64..3).prop_map(Key::One), 1 => Just(Key::Flow)];
    let remote = prop_oneof![2 => address(), 1 => Just(Address::Flow)];
    let local = prop_oneof![2 => address(), 1 => Just(Address::Any), 1 => Just(Address::Flow)];
    let packet_type = prop::sample::select(vec![PacketType::LegacyL2, PacketType::LegacyL3, PacketType::Aware]);
    (0u32..2, key, remote, local, packet_type).prop_map(|(datapath_port, key, remote, local, packet_type)| Match {
        datapath_port,
        key,
        remote,
        local,
        packet_type,
    })
}

fn packets() -> impl Strategy<Value = Received> {
    (0u32..2, 0u64..3, 0u8..3, 0u8..3, any::<bool>()).prop_map(|(datapath_port, key, src, dst, is_ethernet)| Received {
        datapath_port,
        key,
        src: ip(src),
        dst: ip(dst),
        is_ethernet,
    })
}

/// How well a port fits, the lowest best: key before remote before local address before packet type.
fn rank(port: &Match, packet: &Received) -> Option<[u8; 4]> {
    if port.datapath_port != packet.datapath_port {
        return None;
    }
    let key = match port.key {
        Key::One(key) if key == packet.key => 0,
        Key::One(_) => return None,
        Key::Flow => 1,
    };
    let address = |wanted: Address, seen: IpAddr| match wanted {
        Address::One(one) if one == seen => Some(0),
        Address::One(_) => None,
        Address::Any => Some(1),
        Address::Flow => Some(2),
    };
    let packet_type = match (port.packet_type, packet.is_ethernet) {
        (PacketType::LegacyL2, true) | (PacketType::LegacyL3, false) => 0,
        (PacketType::Aware, _) => 1,
        _ => return None,
    };
    Some([key, address(port.remote, packet.src)?, address(port.local, packet.dst)?, packet_type])
}

proptest! {
    #[test]
    fn the_best_port_is_found(
        wanted in prop::collection::vec(matches(), 0..30),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        packets in prop::collection::vec(packets(), 1..30),
    ) {
        let mut ports = Ports::default();
        let mut all: Vec<(Match, usize)> = Vec::new();
        for (number, matched) in wanted.into_iter().enumerate() {
            let is_new = all.iter().all(|(other, _)| *other != matched);
            prop_assert_eq!(ports.add(&format!("p{number}"), matched, number).is_ok(), is_new);
            if is_new {
                all.push((matched, number));
            }
        }
        for index in removed {
            if !all.is_empty() {
                let (matched, number) = all.swap_remove(index.index(all.len()));
                prop_assert_eq!(ports.remove(&matched), Some(number));
                prop_assert_eq!(ports.remove(&matched), None);
            }
        }
        prop_assert_eq!(ports.len(), all.len());
        for packet in packets {
            let best = all.iter().filter_map(|(matched, number)| Some((rank(matched, &packet)?, number))).min();
            prop_assert_eq!(ports.find(&packet), best.map(|(_, number)| number));
        }
    }
}

#[test]
fn a_second_port_for_the_same_packets_is_refused() {
    let mut ports = Ports::default();
    let matched = Match {
        datapath_port: 4,
        key: Key::One(5),
        remote: Address::One(ip(1)),
        local: Address::Any,
        packet_type: PacketType::LegacyL2,
    };
    ports.add("p1", matched, ()).unwrap();
    let why = ports.add("p2", matched, ()).unwrap_err().to_string();
    assert_eq!(
        why,
        "p2: attempting to add tunnel port with same config as port 'p1' (::->192.0.2.1, key=0x5, legacy_l2, dp port=4)"
    );
    ports.add("p2", Match { packet_type: PacketType::Aware, ..matched }, ()).unwrap();
    assert_eq!((ports.len(), ports.iter().count()), (2, 2));
}
