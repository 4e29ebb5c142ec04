//! Packets that go round again, against a plain reference: a linear scan of all flows for each packet by itself.

mod common;

use std::sync::Arc;

use common::{by_hand, flow, udp};
use datapath::{Action, Config, DropReason, FlowSpec, PortNo, Rewrite};
use packet::flow::extract::{VlanLimit, extract};
use packet::{Field, Key, Packet};
use ports::tunnel::TunnelPort;
use proptest::prelude::*;

/// Metadata that programs write here and flows of later stages match: in the common block of a key and in others.
const METADATA: [Field; 3] = [Field::PktMark, Field::TunId, Field::TunDst];

fn set(field: Field, value: u8) -> Action {
    Action::Set(Arc::new(Rewrite::field(field, value.into())))
}

/// What flows of the first stage do with packets to one destination.
#[derive(Clone, Debug)]
struct First {
    /// Writes to metadata, with the number of the field.
    writes: Vec<(usize, u8)>,
    /// Ids of copies; the last one is the packet's own.
    ids: Vec<u8>,
    vlan: bool,
}

impl First {
    fn actions(&self) -> Vec<Action> {
        let mut actions: Vec<Action> = self.writes.iter().map(|&(field, value)| set(METADATA[field], value)).collect();
        if self.vlan {
            actions.push(Action::PushVlan { tpid: 0x8100, tci: 7 });
        }
        for &id in &self.ids {
            actions.extend([Action::Recirc(id.into()), set(Field::PktMark, id), Action::PopVlan]);
        }
        actions
    }
}

fn first() -> impl Strategy<Value = First> {
    let writes = prop::collection::vec((0..METADATA.len(), 0..3u8), 0..3);
    (writes, prop::collection::vec(1..4u8, 1..3), any::<bool>()).prop_map(|(writes, ids, vlan)| First {
        writes,
        ids,
        vlan,
    })
}

/// A flow of a later stage: the metadata that it matches, a bit of the source, and where it sends to, perhaps by another
/// stage.
type Later = (Vec<(usize, u8)>, Option<u8>, u8, bool);

fn later() -> impl Strategy<Value = Later> {
    (prop::collection::vec((0..METADATA.len(), 0..3u8), 0..3), prop::option::of(0..2u8), 0..2u8, any::<bool>())
}

/// What the flows do with a packet, one after the other: ports and frames.
fn reference(flows: &[FlowSpec], frame: Vec<u8>, metadata: &Key, depth: u8, out: &mut Vec<(PortNo, Vec<u8>)>) {
    let mut key = metadata.clone();
    extract(&frame, &mut key, VlanLimit::default());
    // An extraction leaves metadata alone.
    let matches = |flow: &&FlowSpec| {
        let always = [Field::InPortOxm, Field::RecircId].into_iter().all(|f| flow.key.get(f) == key.get(f));
        let fields = [Field::PktMark, Field::TunId, Field::TunDst, Field::NwSrc, Field::NwDst];
        always && fields.into_iter().all(|f| flow.mask.get(f) & (flow.key.get(f) ^ key.get(f)) == 0)
    };
    let Some(flow) = flows.iter().find(matches) else { return };
    let mut frame = frame;
    for action in &flow.actions {
        match action {
            Action::Output(port) => out.push((*port, frame.clone())),
            Action::Set(rewrite) => {
                for field in METADATA {
                    if rewrite.mask.get(field) != 0 {
                        key.set(field, rewrite.key.get(field));
                    }
                }
            }
            Action::PushVlan { tpid, tci } => {
                let tag = [tpid.to_be_bytes(), tci.to_be_bytes()].concat();
                frame.splice(12..12, tag);
            }
            Action::PopVlan if frame[12..14] == [0x81, 0] => drop(frame.drain(12..16)),
            Action::PopVlan => {}
            Action::Recirc(id) => {
                if depth < 8 {
                    let mut next = key.clone();
                    next.set(Field::RecircId, (*id).into());
                    reference(flows, frame.clone(), &next, depth + 1, out);
                }
            }
            other => panic!("{other:?} is not among these flows"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever the metadata is and however often packets go round, each goes where a scan of the flows sends it, in all
    /// rounds, whether the caches know the packets or not. Before each round come flows for one destination more, which match other fields.
    #[test]
    fn every_stage_finds_what_a_scan_finds(
        of_destination in prop::collection::vec(first(), 3),
        of_stage in prop::collection::vec(prop::collection::vec(prop::collection::vec(later(), 1..4), 3), 3),
        packets in prop::collection::vec((0..3u8, 0..4u8, 0..2u8), 1..80),
        caches in any::<bool>(),
    ) {
        let config = Config { exact_one_in: u32::from(caches), ..Config::default() };
        let (dp, _, p) = by_hand(config, 4);
        let mut flows: Vec<FlowSpec> = Vec::new();
        for port in [p[0].0, p[1].0] {
            for (n, first) in of_destination.iter().enumerate() {
                flows.push(flow(port, 0, &[(Field::NwDst, n as u128)], first.actions()));
            }
        }
        let copy = |f: &FlowSpec| FlowSpec { key: f.key.clone(), mask: f.mask.clone(), actions: f.actions.clone(), tag: Arc::new(()) };
        let mut installed = 0;
        for round in 0..5 {
            let new = [p[0].0, p[1].0].into_iter().flat_map(|port| of_stage.iter().enumerate().map(move |of| (port, of)));
            for (port, (stage, later)) in new.filter_map(|(port, (stage, all))| Some((port, (stage, all.get(round)?)))) {
                // Flows must not contradict each other: all flows of a stage and destination match the same fields.
                let fields: Vec<usize> = (0..METADATA.len()).filter(|f| later[0].0.iter().any(|m| m.0 == *f)).collect();
                let with_source = later[0].1.is_some();
                for (values, source, to, again) in later {
                    let value = |f: usize| values.iter().find(|m| m.0 == f).map_or(0, |m| m.1);
                    let mut spec = flow(port, stage as u32 + 1, &[(Field::NwDst, round as u128)], vec![]);
                    for &f in &fields {
                        spec.key.set(METADATA[f], value(f).into());
                        spec.mask.set_exact(METADATA[f]);
                    }
                    if with_source {
                        spec.key.set(Field::NwSrc, source.unwrap_or(0).into());
                        spec.mask.add(Field::NwSrc, 1);
                    }
                    let next = if *again { Action::Recirc(1) } else { Action::Output(p[2 + usize::from(*to)].0) };
                    spec.actions = vec![Action::Output(p[2].0), next];
                    let same = |f: &FlowSpec| f.mask == spec.mask && f.key == spec.key;
                    if !flows.iter().any(same) {
                        flows.push(spec);
                    }
                }
            }
            for flow in &flows[installed..] {
                dp.install(copy(flow)).unwrap();
            }
            installed = flows.len();
            let mut expected: Vec<(PortNo, Vec<u8>)> = Vec::new();
            for &(dst, src, port) in &packets {
                let frame = udp(src.into(), dst.into(), 3, 4);
                let mut metadata = Key::new();
                metadata.set(Field::InPortOxm, p[usize::from(port)].0.0.into());
                reference(&flows, frame.clone(), &metadata, 0, &mut expected);
                p[usize::from(port)].1.give(&frame);
            }
            for _ in 0..20 {
                dp.poll();
            }
            let mut sent: Vec<(PortNo, Vec<u8>)> =
                p[2..].iter().flat_map(|(no, port)| port.take().into_iter().map(|f| (*no, f))).collect();
            expected.sort_by(|a, b| (a.0.0, &a.1).cmp(&(b.0.0, &b.1)));
            sent.sort_by(|a, b| (a.0.0, &a.1).cmp(&(b.0.0, &b.1)));
            prop_assert_eq!(sent, expected, "round {}", round);
        }
    }
}

/// Packets of later stages are found by the header cache, and their runs stay runs.
#[test]
fn later_stages_have_caches_and_runs() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let mark = set(Field::TunId, 9);
    dp.install(flow(p[0].0, 0, &[], vec![mark, Action::Recirc(5)])).unwrap();
    let fields = [(Field::TunId, 9), (Field::NwDst, 2), (Field::UdpDst, 4)];
    let id = dp.install(flow(p[0].0, 5, &fields, vec![Action::Output(p[1].0)])).unwrap();
    for _ in 0..10 {
        (0..32).for_each(|_| p[0].1.give(&udp(1, 2, 3, 4)));
        dp.poll();
    }
    let worker = &dp.stats().workers[0];
    assert_eq!((p[1].1.sent(), worker.recirculated, dp.flow_stats(id).unwrap().packets), (320, 320, 320));
    // All but the first batch of the later stage; the first stage is simple.
    assert_eq!((worker.megaflow_hits, worker.exact_hits, worker.simple_hits), (32, 288, 320));
}

/// Later stages do not share one limit of masks, nor with the port's own flows.
#[test]
fn each_stage_has_masks_of_its_own() {
    let (dp, _, p) = by_hand(Config { max_masks: 4, ..Config::default() }, 2);
    for id in 0..20 {
        for bits in 1..=4u32 {
            let mut spec = flow(p[0].0, id, &[], vec![Action::Output(p[1].0)]);
            spec.mask.add(Field::NwSrc, (1 << bits) - 1);
            dp.install(spec).unwrap();
        }
        let mut one_more = flow(p[0].0, id, &[], vec![]);
        one_more.mask.add(Field::NwSrc, 0xff00);
        assert!(dp.install(one_more).is_err(), "stage {id}");
    }
    assert_eq!(dp.flow_count(), 80);
    assert_eq!(dp.remove_port(p[0].0).unwrap().len(), 80, "flows of later stages go with their port");
    assert_eq!(dp.flow_count(), 0);
}

/// More stages than there are lists: the others are found all the same, and lists that are free again are used.
#[test]
fn more_stages_than_lists() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let many = 40_000u32;
    let out = || vec![Action::Output(p[1].0)];
    let ids: Vec<_> = (1..=many).map(|id| dp.install(flow(p[0].0, id, &[(Field::NwDst, 2)], out())).unwrap()).collect();
    let sends = |id: u32| {
        let first = dp.install(flow(p[0].0, 0, &[], vec![Action::Recirc(id)])).unwrap();
        p[0].1.give(&udp(1, 2, 3, 4));
        dp.poll();
        dp.remove(first);
        p[1].1.take().len()
    };
    for id in (1..=many).step_by(997).chain([many]) {
        assert_eq!(sends(id), 1, "stage {id}");
    }
    dp.remove_all(&ids);
    assert_eq!((dp.flow_count(), sends(7)), (0, 0));
    for id in [1, many, many + 1] {
        dp.install(flow(p[0].0, id, &[(Field::NwDst, 2)], out())).unwrap();
        assert_eq!(sends(id), 1, "stage {id} again");
    }
}

/// Flows of a stage come that look at more metadata, or at more of the headers: what was looked up before by a line that has metadata in
/// other places must not be taken for it.
#[test]
fn lines_made_when_flows_looked_at_less_are_no_others() {
    let later: [&[(Field, u128)]; 2] =
        [&[(Field::PktMark, 1), (Field::SkbPriority, 0)], &[(Field::NwSrc, 1 << 16), (Field::SkbPriority, 0)]];
    for more in later {
        let (dp, _, p) = by_hand(Config::default(), 4);
        // The packets of one source get what the first flow of the later stage is for, those of the other what the second one is for. Its
        // address is where the priority was.
        let first = |src, action| flow(p[0].0, 0, &[(Field::NwSrc, src)], vec![action, Action::Recirc(1)]);
        dp.install(first(1, set(Field::SkbPriority, 1))).unwrap();
        dp.install(first(1 << 16, set(Field::PktMark, 1))).unwrap();
        let (one, two) = (udp(1, 9, 3, 4), udp(1 << 16, 9, 3, 4));
        // Far from the metadata, so that what differs does not lie within few bytes.
        let dl_dst = (Field::DlDst, 0x0200_0000_0002);
        dp.install(flow(p[0].0, 1, &[dl_dst, (Field::SkbPriority, 1)], vec![Action::Output(p[1].0)])).unwrap();
        let give = |frame: &[u8]| {
            p[0].1.give(frame);
            while dp.poll() > 0 {}
        };
        (0..3).for_each(|_| give(&one));
        let fields = [&[dl_dst][..], more].concat();
        dp.install(flow(p[0].0, 1, &fields, vec![Action::Output(p[2].0)])).unwrap();
        (0..3).for_each(|_| give(&two));
        (0..3).for_each(|_| give(&one));
        assert_eq!((p[1].1.sent(), p[2].1.sent()), (6, 3), "{more:?}");
    }
}

/// A packet of metadata whose flows look at more of it than the header cache has room for.
#[test]
fn more_metadata_than_a_line_holds() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let wide = [
        Field::TunSrc,
        Field::TunDst,
        Field::TunId,
        Field::TunTos,
        Field::PktMark,
        Field::SkbPriority,
        Field::TunIpv6Src,
    ];
    let mut actions: Vec<Action> = wide.iter().map(|&f| set(f, 3)).collect();
    actions.push(Action::Recirc(1));
    dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
    let mut fields: Vec<(Field, u128)> = wide.iter().map(|&f| (f, 3)).collect();
    dp.install(flow(p[0].0, 1, &fields, vec![Action::Output(p[1].0)])).unwrap();
    fields[6].1 = 4;
    dp.install(flow(p[0].0, 1, &fields, vec![Action::Output(p[2].0)])).unwrap();
    for _ in 0..3 {
        (0..9).for_each(|n| p[0].1.give(&udp(n, 2, 3, 4)));
        dp.poll();
    }
    assert_eq!((p[1].1.sent(), p[2].1.sent()), (27, 0));
}

/// All metadata that there is travels with packets through the stages: connection tracking's, too, which no action of a flow
/// writes.
#[test]
fn metadata_that_comes_with_a_packet_stays_with_it() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let fields = [(Field::CtMark, 7), (Field::CtZone, 8), (Field::TunId, 9), (Field::NwDst, 2)];
    dp.install(flow(p[0].0, 5, &fields, vec![Action::Recirc(6)])).unwrap();
    dp.install(flow(p[0].0, 6, &fields, vec![Action::Output(p[1].0)])).unwrap();
    let mut metadata = Key::new();
    metadata.set(Field::InPortOxm, p[0].0.0.into());
    fields.iter().take(3).for_each(|&(field, value)| metadata.set(field, value));
    for round in 0..40 {
        // Every other one is of another zone, which no flow is for.
        metadata.set(Field::CtZone, 8 + round % 2);
        dp.execute(Packet::from_slice(&udp(1, 2, 3, 4)), &metadata, &[Action::Recirc(5)]);
    }
    dp.poll();
    assert_eq!(p[1].1.sent(), 20);
    assert_eq!(dp.stats().workers[0].drops.get(DropReason::UpcallError), 20);
}

/// What is zero for all packets that come out of a tunnel is no part of their lines. Packets of the same stage for which it is not, since somebody has
/// injected them, are no others for it.
#[test]
fn injected_packets_are_not_taken_for_those_of_a_tunnel() {
    let (dp, _, p) = by_hand(Config::default(), 4);
    let port = dp.add_port(TunnelPort::new("vxlan_sys_4789", "vxlan")).unwrap();
    let more = [(Field::PktMark, 5u128), (Field::SkbPriority, 5), (Field::CtMark, 5), (Field::TunId, 7 << 32 | 7)];
    let wide: Vec<Field> = more.iter().map(|&(field, _)| field).collect();
    let spec = |fields: &[(Field, u128)], to: usize| {
        let mut spec = flow(port, 0, fields, vec![Action::Output(p[to].0)]);
        wide.iter().for_each(|&field| spec.mask.set_exact(field));
        spec
    };
    dp.install(spec(&[(Field::TunId, 7)], 1)).unwrap();
    for (field, value) in more {
        dp.install(spec(&[(Field::TunId, 7), (field, value)], 2)).unwrap();
    }
    let metadata = |fields: &[(Field, u128)]| {
        let mut key = Key::new();
        key.set(Field::InPortOxm, port.0.into());
        fields.iter().for_each(|&(field, value)| key.set(field, value));
        key
    };
    for _ in 0..4 {
        for (field, value) in more {
            for fields in [&[(Field::TunId, 7)][..], &[(Field::TunId, 7), (field, value)]] {
                dp.execute(Packet::from_slice(&udp(1, 2, 3, 4)), &metadata(fields), &[Action::Recirc(0)]);
                while dp.poll() > 0 {}
            }
        }
    }
    assert_eq!((p[1].1.sent(), p[2].1.sent()), (16, 16));
    // Those that are like packets of the tunnel were found by their lines.
    assert!(dp.stats().workers[0].exact_hits >= 15, "{:?}", dp.stats().workers[0]);
}
