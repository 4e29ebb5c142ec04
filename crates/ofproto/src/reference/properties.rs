//! Properties of the switch, by the reference.

use std::time::Duration;

use datapath::Config;
use openflow::meter::{Band, BandKind, MeterCommand, MeterFlags};
use openflow::{Action, Instructions, Match, MeterConfig, MeterMod, OfPort, TableId};
use packet::Clock;
use packet::Field;
use proptest::prelude::*;
use proptest::sample::Index;
use protocols::mcast::Settings;

use super::RefMeter;
use super::multicast::tests::multicast_frame;
use super::tests::{
    Change, Kind, MACS, PORTS, Pair, RuleSpec, change, cut_frame, frame, groups, match_of, mirrors, rule, tiny, vlan,
    write,
};
use crate::model::vlan::PortVlan;

impl Pair {
    /// Meters with these rates and bursts in packets, from number 1 on.
    pub fn meters(&mut self, meters: &[(u32, u32)]) {
        for (id, &(rate, burst)) in (1..).zip(meters) {
            let flags = MeterFlags::PKTPS | MeterFlags::BURST;
            let config = MeterConfig { meter: id, flags, bands: vec![Band { kind: BandKind::Drop, rate, burst }] };
            self.bed.bridge.meter_mod(&MeterMod { command: MeterCommand::Add, config }).unwrap();
            let (rate, burst) = (rate.into(), burst.into());
            let meter = RefMeter { rate, burst, tokens: burst * 1_000_000_000, filled: self.bed.clock.now() };
            self.reference.meters.insert(id, meter);
        }
    }

    /// Makes a change, where there is one, and sends some of the packets, again and again.
    pub fn play(
        &mut self,
        rounds: &[(Option<Change>, Vec<Index>)],
        packets: &[(u32, Vec<u8>)],
    ) -> Result<(), TestCaseError> {
        for (change, order) in rounds {
            if let Some(change) = change {
                self.change(change);
            }
            for index in order {
                let (port, frame) = index.get(packets);
                self.packet(*port, frame)?;
            }
        }
        Ok(())
    }
}

/// A rule of an access list, whose mask has bits anywhere.
fn acl_rule() -> impl Strategy<Value = RuleSpec> {
    let bits =
        || prop_oneof![Just(0u32), Just(u32::MAX), (0u32..33).prop_map(|n| !(u32::MAX >> n.min(31))), any::<u32>()];
    let action = prop_oneof![
        3 => (1..=PORTS).prop_map(|n| vec![Action::output(OfPort(n))]),
        1 => Just(vec![]),
        1 => (1..=PORTS).prop_map(|n| vec![Action::set_field(Field::NwTtl, 7), Action::output(OfPort(n))]),
    ];
    (bits(), bits(), bits(), bits(), 0u16..8, proptest::bool::ANY, action).prop_map(
        |(src, dst, sport, dport, priority, next, actions)| {
            let mut matching = Match::any();
            matching.set(Field::DlType, 0x0800);
            matching.set(Field::NwProto, 17);
            matching.set_masked(Field::NwSrc, SOURCE.into(), src.into());
            matching.set_masked(Field::NwDst, TARGET.into(), dst.into());
            matching.set_masked(Field::UdpSrc, 12345, (sport & 0xffff).into());
            matching.set_masked(Field::UdpDst, 80, (dport & 0xffff).into());
            let goto = next.then_some(TableId(1));
            let table = u8::from(priority % 2 == 1);
            let goto = goto.filter(|_| table == 0);
            RuleSpec { table, priority, matching, instructions: Instructions { goto, ..Instructions::apply(actions) } }
        },
    )
}

const SOURCE: u32 = 0x0a09_0909;
const TARGET: u32 = 0xc612_0001;

const METERS: u32 = 2;

/// A rule, most often with a meter: as its instruction, among its actions, or among those on a copy.
fn metered() -> impl Strategy<Value = RuleSpec> {
    (rule(), 0u32..8, 1..=METERS, any::<Index>()).prop_map(|(mut rule, place, meter, at)| {
        let apply = &mut rule.instructions.apply;
        let at = at.index(apply.len() + 1);
        match place {
            0..3 => rule.instructions.meter = Some(meter),
            3..6 => apply.insert(at, Action::Meter(meter)),
            6 => {
                let copies = apply.iter_mut().filter_map(|action| match action {
                    Action::Clone(inner) => Some(inner),
                    _ => None,
                });
                copies.for_each(|inner| inner.insert(0, Action::Meter(meter)));
            }
            _ => {}
        }
        rule
    })
}

/// Packets that differ from what the access list names in one bit of each field: each makes a mask of its own.
fn crafted() -> impl Strategy<Value = (u32, Vec<u8>)> {
    (1u32..3, 0u32..34, 0u32..34, 0u16..18, 0u16..18).prop_map(|(port, a, b, c, d)| {
        use packet::wire::build;
        let bit = |n: u32| 1u32.checked_shl(n).unwrap_or(0);
        let bit16 = |n: u16| 1u16.checked_shl(n.into()).unwrap_or(0);
        let payload = build::udp(12345 ^ bit16(c), 80 ^ bit16(d), b"attack");
        let (src, dst) = ((SOURCE ^ bit(a)).into(), (TARGET ^ bit(b)).into());
        let header = build::Ipv4 { src, dst, proto: 17, ..build::Ipv4::default() };
        (port, build::ethernet(MACS[0], MACS[1], &[], 0x0800, &header.packet(payload)))
    })
}

/// Rules for packets of each kind: they are sent, rewritten, and sent again, and other tables see them.
fn rewriting() -> impl Strategy<Value = Vec<RuleSpec>> {
    let rule = |kind: Kind| {
        let more = proptest::option::of(match_of(kind));
        (proptest::collection::vec(write(kind), 1..4), more).prop_map(move |(writes, more)| {
            let next = Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(1), with_ct: false };
            let (two, three) = (Action::output(OfPort(2)), Action::output(OfPort(3)));
            let actions = [vec![two], writes, vec![three, next]].concat();
            let spec = |table, matching, actions| RuleSpec {
                table,
                priority: kind as u16,
                matching,
                instructions: Instructions::apply(actions),
            };
            let mut matching = Match::any();
            kind.headers().iter().for_each(|&(field, value)| matching.set(field, value));
            let more = more.map(|matching| spec(1, matching, vec![Action::output(OfPort(4))]));
            [Some(spec(0, matching, actions)), more].into_iter().flatten().collect::<Vec<_>>()
        })
    };
    [Kind::Any, Kind::Ip, Kind::Tcp, Kind::Udp, Kind::Ipv6, Kind::Arp].map(rule).prop_map(|rules| rules.concat())
}

proptest! {
    // A part of PROPTEST_CASES, which is 256 unless set.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 3))]

    /// The test of tests: what the cached path does equals a direct walk of the tables.
    #[test]
    fn switch_equals_reference(
        vlans in proptest::collection::vec(vlan(), PORTS as usize),
        mirrors in mirrors(),
        groups in groups(),
        rules in proptest::collection::vec(rule(), 1..14),
        frames in proptest::collection::vec((1..=PORTS, prop_oneof![3 => frame().boxed(), 1 => multicast_frame().boxed()]), 4..10),
        rounds in proptest::collection::vec((change(), proptest::collection::vec(any::<Index>(), 1..12)), 1..8),
        limited in any::<bool>(),
        snooping in proptest::option::of(any::<bool>()),
    ) {
        let mut pair = Pair::new(&vlans, if limited { tiny() } else { Config::default() });
        if let Some(flood_unregistered) = snooping {
            pair.snoop(Some(Settings { flood_unregistered, ..Settings::default() }));
        }
        pair.mirrors(&mirrors);
        pair.groups(&groups);
        for rule in &rules {
            pair.add(rule);
        }
        for (port, frame) in frames.iter().chain(&frames) {
            pair.packet(*port, frame)?;
        }
        for (change, packets) in &rounds {
            pair.change(change);
            for index in packets {
                let (port, frame) = index.get(&frames);
                pair.packet(*port, frame)?;
                // As a run, on which a flow's program runs as a whole.
                pair.packets(&vec![(*port, frame.clone()); 3])?;
            }
        }
        pair.check_counters()?;
    }

    /// Meters drop what they drop in the reference, wherever rules and groups have them, and nothing else.
    #[test]
    fn metered_switch_equals_reference(
        mirrors in mirrors(),
        groups in groups(),
        meters in proptest::collection::vec((1u32..4, 1u32..6), METERS as usize),
        rules in proptest::collection::vec(metered(), 1..10),
        frames in proptest::collection::vec((1..=PORTS, frame()), 2..6),
        rounds in proptest::collection::vec((change(), proptest::collection::vec(any::<Index>(), 1..12)), 1..8),
    ) {
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
        pair.mirrors(&mirrors);
        pair.groups(&groups);
        pair.meters(&meters);
        for rule in &rules {
            pair.add(rule);
        }
        for (change, packets) in &rounds {
            pair.change(change);
            for index in packets {
                let (port, frame) = index.get(&frames);
                pair.packet(*port, frame)?;
            }
        }
        pair.check_counters()?;
    }

    /// However packets are crafted, the limits hold, every packet goes its way, and every rule counts it.
    #[test]
    fn an_attack_changes_nothing_but_the_flows(
        rules in proptest::collection::vec(acl_rule(), 1..8),
        batches in proptest::collection::vec((proptest::collection::vec(crafted(), 1..60), 0u64..15), 1..8),
        (max_flows, max_masks) in (1usize..40, 1usize..12),
    ) {
        let vlans = vec![PortVlan::default(); PORTS as usize];
        let mut pair = Pair::new(&vlans, Config { max_flows, max_masks, ..Config::default() });
        for rule in &rules {
            pair.add(rule);
        }
        for (frames, pause) in &batches {
            pair.packets(frames)?;
            let stats = pair.bed.datapath.stats();
            prop_assert!(stats.flows <= max_flows, "{} flows of {max_flows}", stats.flows);
            prop_assert!(stats.masks <= 2 * (max_masks + 8), "{} masks of {max_masks} for each port", stats.masks);
            pair.bed.clock.advance(Duration::from_secs(*pause));
            pair.bed.switch.run(pair.bed.clock.now());
        }
        pair.check_counters()?;
    }
}

proptest! {
    #[test]
    fn a_malformed_header_ended_the_packet(
        rules in rewriting(),
        frames in proptest::collection::vec(cut_frame(), 1..12),
    ) {
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], Config::default());
        rules.iter().for_each(|rule| pair.add(rule));
        for frame in &frames {
            pair.packet(1, frame)?;
        }
        pair.packets(&frames.into_iter().map(|frame| (1, frame)).collect::<Vec<_>>())?;
    }
}
