//! Snapshots of a switch that forwards, of damaged ones, and of what bridges refuse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openflow::codec::{DecodeOptions, encode};
use openflow::group::{Bucket, GroupCommand, GroupSpec, Selection, bucket_id};
use openflow::meter::{Band, BandKind, MeterCommand, MeterFlags, meter_id};
use openflow::table::TableMiss;
use openflow::text::{parse_actions, parse_flow_mod};
use openflow::{
    Action, Body, FlowModCommand, FragHandling, GroupId, GroupMod, GroupType, Message, MeterConfig, MeterMod, OfPort,
    PortConfig, PortMod, SwitchConfig, TableId, TableMod, TlvCommand, TlvMap, TlvTableMod, Version,
};
use packet::Clock;
use packet::flow::text::NoNames;
use packet::wire::build;
use proptest::prelude::*;

use protocols::mcast::message;

use super::*;
use crate::model::mac::MacKey;
use crate::reference::tests::{Bed, all_flows};

/// Flows of all kinds that hold state: timeouts, learning, groups, meters, conjunctions, a cookie of all ones.
const FLOWS: [&str; 14] = [
    "table=0,priority=0,actions=NORMAL",
    "table=0,priority=10,in_port=1,udp,actions=learn(table=2,idle_timeout=5,hard_timeout=30,delete_learned,cookie=0x7,\
     NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),resubmit(,2)",
    "table=0,priority=12,in_port=2,udp,actions=resubmit(,2),resubmit(,3)",
    "table=0,priority=20,udp,nw_src=10.0.0.0/30,idle_timeout=4,importance=9,send_flow_rem,\
     cookie=0xffffffffffffffff,actions=group:1",
    "table=0,priority=25,udp,tp_src=5,reset_counts,check_overlap,hard_timeout=9,actions=group:2",
    "table=0,priority=30,tcp,idle_timeout=60,actions=fin_timeout(idle_timeout=7,hard_timeout=20),output:2",
    "table=0,priority=35,udp,tp_dst=9,actions=meter:5,write_actions(output:3),write_metadata:0x12/0xff,goto_table:1",
    "table=1,priority=1,metadata=0x12/0xff,actions=check_pkt_larger(60)->NXM_NX_REG0[0],\
     set_field:0x1234->vlan_tci,clone(set_field:7->reg3,output:1),controller(max_len=100,id=3,userdata=01.02)",
    "table=3,priority=5,conj_id=4,udp,actions=output:3",
    "table=3,priority=6,udp,tp_src=3,actions=conjunction(4,1/2)",
    "table=3,priority=6,udp,tp_dst=3,actions=conjunction(4,2/2)",
    "table=0,priority=40,in_port=3,tun_metadata5=0x7/0xff,tun_metadata9,actions=set_field:0x5/0xf->tun_metadata9,\
     push:tun_metadata9[100..299],pop:tun_metadata9[0..199],output:3",
    "table=0,priority=8,in_port=3,udp,actions=learn(table=2,priority=3,tun_metadata5[0..15]=reg1[0..15],\
     load:reg1->tun_metadata5[0..31],output:NXM_OF_IN_PORT[]),move:tun_metadata5[0..7]->tun_metadata5[8..15],output:1",
    "table=2,priority=0,actions=bundle(eth_src,7,active_backup,ofport,members:1,3)",
];

/// What happens to a switch.
#[derive(Clone, Debug)]
enum Event {
    Receive {
        port: u32,
        source: u32,
        ports: (u16, u16),
        fin: bool,
    },
    Add(usize),
    Delete(usize),
    Group(u32, u8),
    Wait(u64),
    Macs,
    /// A report or a query of a group.
    Multicast(u32, u8, bool),
    Port(u32, bool),
    Table(u8, bool),
    Field(u16, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let receive = (1u32..4, 0u32..6, 1u16..10, 1u16..10, any::<bool>());
    prop_oneof![
        6 => receive.prop_map(|(port, source, from, to, fin)| {
            Event::Receive { port, source: 0x0a00_0000 + source, ports: (from, to), fin }
        }),
        4 => (0..FLOWS.len()).prop_map(Event::Add),
        1 => (0..FLOWS.len()).prop_map(Event::Delete),
        1 => (1u32..3, 1u8..4).prop_map(|(id, buckets)| Event::Group(id, buckets)),
        2 => (100u64..7_000).prop_map(Event::Wait),
        1 => Just(Event::Macs),
        2 => (1u32..4, 1u8..4, any::<bool>()).prop_map(|(port, group, query)| Event::Multicast(port, group, query)),
        1 => (1u32..4, any::<bool>()).prop_map(|(port, no_flood)| Event::Port(port, no_flood)),
        1 => (0u8..4, any::<bool>()).prop_map(|(table, evict)| Event::Table(table, evict)),
        1 => (20u16..22, any::<bool>()).prop_map(|(field, add)| Event::Field(field, add)),
    ]
}

fn bucket(id: u32, actions: Vec<Action>) -> Bucket {
    Bucket { id, weight: 1 + id as u16, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions }
}

fn group_mod(id: u32, buckets: Vec<Bucket>) -> GroupMod {
    let selection = Selection { method: "hash".into(), param: 9, fields: vec![(packet::Field::NwSrc, 0xffff)] };
    let (kind, selection) =
        if id == 1 { (GroupType::Select, selection) } else { (GroupType::All, Selection::default()) };
    GroupMod {
        command: GroupCommand::AddOrModify,
        group: GroupId(id),
        command_bucket: bucket_id::ALL,
        spec: GroupSpec { kind, buckets, selection },
    }
}

/// Fields for options of tunnels: their numbers, and the lengths of their values.
fn fields(command: TlvCommand, fields: &[(u16, u8)]) -> TlvTableMod {
    let map = |&(index, len)| TlvMap { class: 7, kind: index as u8, len, index };
    TlvTableMod { command, maps: fields.iter().map(map).collect() }
}

/// A switch with ports, groups, a meter, and fields for options of tunnels.
fn bed() -> Bed {
    let bed = Bed::new(3);
    let mcast_snooping = Some(protocols::mcast::Settings::default());
    bed.bridge.set_config(crate::BridgeConfig { mcast_snooping, ..bed.bridge.config() });
    for id in 1..3 {
        bed.bridge.group_mod(&group_mod(id, vec![bucket(0, vec![Action::output(OfPort(2))])])).unwrap();
    }
    let config = MeterConfig {
        meter: 5,
        flags: MeterFlags::PKTPS | MeterFlags::STATS,
        bands: vec![Band { kind: BandKind::Drop, rate: 1000, burst: 10 }],
    };
    bed.bridge.meter_mod(&MeterMod { command: MeterCommand::Add, config }).unwrap();
    bed.bridge.tlv_table_mod(&fields(TlvCommand::Add, &[(5, 4), (9, 40)])).unwrap();
    bed
}

/// Does it, and returns what was sent.
fn happen(bed: &Bed, event: &Event) -> Vec<(OfPort, Vec<u8>)> {
    match *event {
        Event::Receive { port, source, ports: (from, to), fin } => {
            let payload = if fin {
                build::tcp(from, to, 0x11, b"")
            } else {
                build::udp(from, to, &vec![7; usize::from(from) * 9])
            };
            let header = build::Ipv4 { src: source.into(), proto: if fin { 6 } else { 17 }, ..build::Ipv4::default() };
            let [.., last] = source.to_be_bytes();
            let frame =
                build::ethernet([2, 0, 0, 0, 0, last ^ 1], [2, 0, 0, 0, 0, last], &[], 0x0800, &header.packet(payload));
            return bed.receive(OfPort(port), &frame);
        }
        Event::Add(n) => {
            let change = parse_flow_mod(FlowModCommand::Add, FLOWS[n], &NoNames).unwrap();
            // Of two that overlap, the second is refused.
            let _ = bed.bridge.flow_mod(&change);
        }
        Event::Delete(n) => {
            let text = FLOWS[n].split("actions=").next().unwrap();
            let text: Vec<_> = text
                .split(',')
                .filter(|part| {
                    !["idle_", "hard_", "import", "send_", "reset_", "check_", "cookie"]
                        .iter()
                        .any(|p| part.starts_with(p))
                })
                .collect();
            let change = parse_flow_mod(FlowModCommand::DeleteStrict, text.join(",").trim_end_matches(','), &NoNames);
            bed.bridge.flow_mod(&change.unwrap()).unwrap();
        }
        Event::Group(id, buckets) => {
            let buckets = (0..buckets).map(|n| bucket(n.into(), vec![Action::output(OfPort(u32::from(n) + 1))]));
            bed.bridge.group_mod(&group_mod(id, buckets.collect())).unwrap();
        }
        Event::Wait(millis) => {
            bed.clock.advance(Duration::from_millis(millis));
            bed.switch.run(bed.clock.now());
        }
        Event::Multicast(port, group, query) => {
            let group = [239, 0, 0, group].into();
            let body = if query { message::Body::Query(None) } else { message::Body::Report(group) };
            let packet = message::Message { src: [10, 0, 0, 9].into(), body }.emit();
            let now = bed.clock.now();
            let forwarding = bed.switch.forwarding.read();
            let bridge = forwarding.bridges.get(&bed.bridge.id()).unwrap();
            bed.switch.change_groups(bridge, |snooping| assert!(snooping.receive(now, 0, port, &packet).is_ok()));
        }
        Event::Macs => {
            bed.bridge.add_static_mac(MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, 3] }, OfPort(3)).unwrap();
        }
        Event::Port(port, no_flood) => {
            let config = if no_flood { PortConfig::NO_FLOOD } else { PortConfig::empty() };
            let desc = bed.bridge.port_descs(OfPort(port)).remove(0);
            let change = PortMod {
                port: OfPort(port),
                hw_addr: desc.hw_addr,
                config,
                mask: PortConfig::NO_FLOOD,
                advertise: Default::default(),
            };
            bed.bridge.port_mod(&change).unwrap();
        }
        Event::Table(table, evict) => {
            let miss = if evict { TableMiss::Continue } else { TableMiss::Drop };
            let change = TableMod { eviction: Some(evict), miss, ..TableMod::new(TableId(table)) };
            bed.bridge.table_mod(&change).unwrap();
            bed.bridge.name_tables(&[(TableId(table), format!("t{evict}"))]).unwrap();
            let frag = if evict { FragHandling::NxMatch } else { FragHandling::Drop };
            let config = SwitchConfig { frag, ..bed.bridge.switch_config() };
            bed.bridge.set_switch_config(config).unwrap();
        }
        Event::Field(field, add) => {
            let command = if add { TlvCommand::Add } else { TlvCommand::Delete };
            // It may be there already.
            let _ = bed.bridge.tlv_table_mod(&fields(command, &[(field, 8)]));
        }
    }
    Vec::new()
}

/// All that controllers and commands can see of a switch's state.
fn seen(bed: &Bed) -> Vec<String> {
    let (bridge, now) = (&bed.bridge, bed.clock.now());
    let mut out: Vec<_> = bridge.flow_stats(&all_flows()).unwrap().iter().map(|flow| format!("{flow:?}")).collect();
    out.extend(
        bridge.macs().iter().map(|m| format!("{:?} {:?} {:?}", m.key, m.port, m.used.map(|used| now.since(used)))),
    );
    out.extend(
        bridge.multicast_entries().unwrap_or_default().iter().map(|entry| entry.show(now, |port| port.to_string())),
    );
    out.extend(bridge.ports().iter().map(|port| format!("{} {:?}", port.port, port.config)));
    out.sort_unstable();
    out.push(format!("{:?} {:?}", bridge.group_descs(GroupId::ALL), bridge.group_stats(GroupId::ALL)));
    out.push(format!("{:?} {:?}", bridge.meter_configs(meter_id::ALL), bridge.meter_stats(meter_id::ALL)));
    out.push(format!("{:?} {:?} {:?}", bridge.table_stats(), bridge.table_descs(), bridge.table_misses()));
    out.push(format!("{:?} {:?} {:?}", bridge.mac_stats(), bridge.switch_config().frag, bridge.tlv_table()));
    out
}

fn snapshot(bed: &Bed) -> Vec<u8> {
    let mut out = Vec::new();
    bed.switch.snapshot(&mut out).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 100, ..ProptestConfig::default() })]
    /// A switch that forwards, learns and forgets is put into another one, which goes on as the first does.
    #[test]
    fn a_restored_switch_goes_on_as_the_first_one(
        before in prop::collection::vec(event(), 0..40),
        after in prop::collection::vec(event(), 0..25),
        elsewhere in prop::collection::vec(event(), 0..6),
        later in 0u64..1_000_000,
    ) {
        let (old, new) = (bed(), bed());
        // The clocks have nothing in common, and the new switch is not empty.
        new.clock.advance(Duration::from_secs(1_000_000 + later));
        elsewhere.iter().for_each(|event| drop(happen(&new, event)));
        before.iter().for_each(|event| drop(happen(&old, event)));
        // They differ by a multiple of the 2 ms to which the datapath counts times, so that ages can be compared.
        let apart = old.clock.now().0.wrapping_sub(new.clock.now().0) % (1 << 21);
        new.clock.advance(Duration::from_nanos(apart));
        let bytes = snapshot(&old);
        new.switch.restore(&bytes).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(seen(&new), seen(&old));
        prop_assert_eq!(wire::sorted(&snapshot(&new)), wire::sorted(&bytes), "the same comes out again");
        // The datapath's flows are not part of a snapshot. They count times to 2 ms, which shows in ages.
        old.switch.purge();
        for event in &after {
            // What has changed is in force before the next packet, also where there are datapath flows from before.
            old.bridge.barrier();
            new.bridge.barrier();
            prop_assert_eq!(happen(&new, event), happen(&old, event), "{:?}", event);
        }
        prop_assert_eq!(seen(&new), seen(&old));
    }

    #[test]
    fn arbitrary_bytes_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&bytes);
    }

    #[test]
    fn damaged_sections_are_taken_or_refused(
        events in prop::collection::vec(event(), 0..12),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let bed = bed();
        events.iter().for_each(|event| drop(happen(&bed, event)));
        let mut bytes = snapshot(&bed).split_off(16);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        fuzz(&bytes);
    }
}

/// A small switch with something of each kind.
fn small() -> Bed {
    let bed = bed();
    for event in [Event::Add(0), Event::Add(3), Event::Macs, Event::Table(1, true)] {
        happen(&bed, &event);
    }
    happen(&bed, &Event::Receive { port: 1, source: 0x0a00_0009, ports: (1, 2), fin: false });
    bed
}

/// A snapshot of format 1, without its header and end, as the fuzz target takes it.
const FORMAT_1: &[u8] = include_bytes!("../../../../fuzz/seeds/snapshot/bridge");

/// With other numbers for the same fields of `learn`.
const FORMAT_1_BEFORE: &[u8] = include_bytes!("../../../../fuzz/seeds/snapshot/bridge_before");

/// What was written once can be read for ever.
#[test]
fn a_snapshot_of_an_earlier_day_is_taken() {
    for earlier in [FORMAT_1, FORMAT_1_BEFORE] {
        let bed = bed();
        bed.clock.advance(Duration::from_secs(100));
        let restored = bed.switch.restore(&wire::seal(earlier)).unwrap();
        assert_eq!((restored.flows, restored.groups, restored.meters, restored.macs), (12, 2, 1, 1));
        let written = wire::sorted(&snapshot(&bed));
        assert!(written.len() > 15 && written == wire::sorted(&wire::seal(FORMAT_1)), "and is what is written");
        fuzz(earlier);
    }
}

#[test]
fn what_is_cut_short_or_damaged_is_refused_and_changes_nothing() {
    let bytes = snapshot(&small());
    let other = bed();
    let before = seen(&other);
    for len in 0..bytes.len() {
        let error = other.switch.restore(&bytes[..len]).unwrap_err();
        assert!(matches!(error, SnapshotError::Truncated { at } if at <= len), "{len}: {error}");
    }
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(other.switch.restore(&damaged).is_err(), "byte {at}");
    }
    let more = [&bytes[..], &[0]].concat();
    assert!(matches!(other.switch.restore(&more), Err(SnapshotError::Corrupt { .. })));
    assert!(matches!(other.switch.restore(b"WEIRSNOW........"), Err(SnapshotError::NotASnapshot)));
    let mut newer = bytes;
    newer[8..10].copy_from_slice(&2u16.to_be_bytes());
    assert!(matches!(other.switch.restore(&newer), Err(SnapshotError::Newer { version: 2 })));
    assert_eq!(seen(&other), before);
}

/// Section by section, what a snapshot made of these is answered with.
fn restore_sections(bed: &Bed, sections: &[(u16, Vec<u8>)]) -> Result<Restored, SnapshotError> {
    let mut bytes = Vec::new();
    let mut writer = wire::Writer::new(&mut bytes).unwrap();
    sections.iter().for_each(|(kind, body)| writer.section(*kind, body).unwrap());
    writer.finish().unwrap();
    bed.switch.restore(&bytes)
}

/// The sections of a switch.
fn sections_of(bed: &Bed) -> Vec<(u16, Vec<u8>)> {
    let bytes = snapshot(bed);
    let sections = wire::open(&bytes).unwrap().map(|section| section.unwrap());
    sections.map(|section| (section.kind, section.rest().to_vec())).collect()
}

#[test]
fn a_flow_whose_group_is_missing_is_refused_and_the_bridge_stays_as_it_is() {
    let sections = sections_of(&small());
    let without_groups: Vec<_> = sections.into_iter().filter(|(kind, _)| *kind != wire::kind::GROUP).collect();
    let other = bed();
    happen(&other, &Event::Add(6));
    let before = seen(&other);
    let error = restore_sections(&other, &without_groups).unwrap_err();
    let expected = openflow::OfError::OFPBAC_BAD_OUT_GROUP;
    assert!(matches!(&error, SnapshotError::Refused { bridge, error, .. } if bridge == "br0" && *error == expected));
    assert_eq!(seen(&other), before);
}

#[test]
fn sections_that_may_be_passed_over_are() {
    let old = small();
    let mut sections = sections_of(&old);
    sections.insert(0, (wire::kind::OPTIONAL, vec![1, 2, 3]));
    sections.push((wire::kind::OPTIONAL + 0x700, Vec::new()));
    let new = bed();
    let restored = restore_sections(&new, &sections).unwrap();
    assert_eq!((restored.bridges.as_slice(), restored.flows, restored.macs), (&["br0".to_owned()][..], 2, 2));
    assert_eq!(seen(&new), seen(&old));
    sections.push((0x7fff, Vec::new()));
    assert!(matches!(restore_sections(&new, &sections), Err(SnapshotError::Corrupt { .. })));
    let early = [(wire::kind::MAC, vec![0; 20])];
    assert!(matches!(restore_sections(&new, &early), Err(SnapshotError::Corrupt { .. })));
}

#[test]
fn what_this_switch_does_not_have_is_told() {
    let (old, new) = (small(), Bed::new(0));
    let restored = new.switch.restore(&snapshot(&old)).unwrap();
    assert_eq!((restored.macs, restored.lost_macs), (0, 2), "no ports");
    old.switch.add_bridge(crate::BridgeConfig::new("br1", 2)).unwrap();
    let restored = new.switch.restore(&snapshot(&old)).unwrap();
    assert_eq!((restored.bridges, restored.unknown_bridges), (vec!["br0".to_owned()], vec!["br1".to_owned()]));
}

/// More than one message of the latest version has room for.
#[test]
fn long_flows_and_groups_are_written() {
    let (old, new) = (bed(), bed());
    let many = vec![Action::output(OfPort(2)); 8000];
    let mut change =
        openflow::FlowMod::new(FlowModCommand::Add, openflow::Match::any(), openflow::Instructions::apply(many));
    change.new_cookie = Some(openflow::Cookie(3));
    let in_latest = Message::new(Version::V1_5, 0, Body::FlowMod(Box::new(change.clone())));
    assert!(encode(&in_latest, DecodeOptions::default()).is_err());
    old.bridge.flow_mod(&change).unwrap();
    let actions = parse_actions("set_field:1->reg1,set_field:2->reg2,output:2", &NoNames).unwrap();
    let buckets = (0..3000).map(|id| bucket(id, actions.clone())).collect();
    old.bridge.group_mod(&group_mod(1, buckets)).unwrap();
    new.switch.restore(&snapshot(&old)).unwrap();
    assert_eq!(seen(&new), seen(&old));
}

/// Snapshots are taken while packets come, flows are learnt and expire: each is whole, and of one moment.
#[test]
fn a_group_of_an_old_version_is_written() {
    let old = Action::SetEthDst(openflow::EthAddr([2, 0, 0, 0, 0, 1]));
    let new = Action::SetField { field: packet::Field::DlDst, value: 1, mask: 0xffff_ffff_ffff };
    let live = small();
    let group = group_mod(7, vec![bucket(0, vec![old]), bucket(1, vec![new])]);
    live.bridge.group_mod(&group).unwrap();
    let other = bed();
    other.switch.restore(&snapshot(&live)).unwrap();
    assert_eq!(seen(&other), seen(&live));
}

#[test]
fn a_snapshot_does_not_stop_the_switch() {
    let live = bed();
    (0..FLOWS.len()).for_each(|n| drop(happen(&live, &Event::Add(n))));
    // Two flows that are always changed together.
    let pair = |cookie: u64| {
        let change = |table: u8| {
            let text = format!("table={table},priority=77,udp,cookie={cookie},actions=drop");
            crate::bridge::Bundled::Flow(Box::new(parse_flow_mod(FlowModCommand::Add, &text, &NoNames).unwrap()))
        };
        let both = [change(5), change(6)];
        live.bridge.commit(&both, |message| Ok(message.clone())).unwrap();
    };
    pair(0);
    /// Ends the threads, also where the test fails.
    struct StopAtEnd<'a>(&'a AtomicBool);
    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (live, stop, at_end) = (&live, &stop, StopAtEnd(&stop));
        let traffic = scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let (source, ports) = (0x0a00_0000 + n % 6, ((n % 9) as u16 + 1, (n % 7) as u16 + 1));
                happen(live, &Event::Receive { port: 1 + n % 3, source, ports, fin: n.is_multiple_of(5) });
                if n.is_multiple_of(16) {
                    happen(live, &Event::Wait(500));
                }
            }
            n
        });
        let changes = scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                pair(n);
            }
        });
        for _ in 0..20 {
            let other = bed();
            other.switch.restore(&snapshot(live)).unwrap();
            let flows = other.bridge.flow_stats(&all_flows()).unwrap();
            let pair: Vec<_> = flows.iter().filter(|flow| flow.priority == 77).map(|flow| flow.cookie).collect();
            assert!(pair.len() == 2 && pair[0] == pair[1], "of one moment: {pair:?}");
        }
        drop(at_end);
        assert!(traffic.join().unwrap() > 0);
        changes.join().unwrap();
    });
    let other = bed();
    other.switch.restore(&snapshot(&live)).unwrap();
    let flows = |bed: &Bed| bed.bridge.flow_stats(&all_flows()).unwrap().len();
    assert_eq!(flows(&other), flows(&live));
}

/// Which address goes first when there are too many is decided by when they were used, also before the restart.
#[test]
fn addresses_are_restored_in_the_order_of_their_use() {
    let old = bed();
    happen(&old, &Event::Add(0));
    let from = |bed: &Bed, source: u8| {
        let header = build::Ipv4 { src: (0x0a00_0000 + u32::from(source)).into(), ..build::Ipv4::default() };
        let packet = header.packet(build::udp(1, 2, b""));
        bed.receive(OfPort(1), &build::ethernet([2, 0, 0, 0, 0, 99], [2, 0, 0, 0, 0, source], &[], 0x0800, &packet));
        bed.clock.advance(std::time::Duration::from_secs(2));
    };
    (1..=20).for_each(|source| from(&old, source));
    let new = bed();
    new.clock.advance(std::time::Duration::from_secs(40));
    new.switch.restore(&snapshot(&old)).unwrap();
    let mut config = new.bridge.config();
    config.mac.max_entries = 5;
    new.bridge.set_config(config);
    let mut left: Vec<_> = new.bridge.macs().iter().map(|entry| entry.key.mac[5]).collect();
    left.sort_unstable();
    assert_eq!(left, [16, 17, 18, 19, 20]);
}
