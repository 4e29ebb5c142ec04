//! Which rule decides, which one would without it, and by which port modes and groups.

use std::time::Duration;

use datapath::CacheTier;
use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
use openflow::meter::{Band, BandKind, MeterCommand, MeterFlags};
use openflow::text::{parse_flow_mod, parse_match};
use openflow::{Action, FlowModCommand, GroupId, MeterConfig, MeterMod, OfPort};
use packet::flow::text::NoNames;
use packet::wire::build;

use super::{Pass, Request, Step, StepKind, explain};
use crate::model::vlan::PortVlan;
use crate::reference::tests::Bed;

fn bed(flows: &[&str]) -> Bed {
    let bed = Bed::new(3);
    for flow in flows {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
    bed
}

fn passes(bed: &Bed, flow: &str, ct_next: &[u32]) -> Vec<Pass> {
    let matching = parse_match(flow, &NoNames).unwrap();
    explain(&bed.switch, &Request { bridge: "br0", key: &matching.key, ct_next, ports: &NoNames, shadow: None })
        .unwrap()
}

fn steps(bed: &Bed, flow: &str) -> Vec<Step> {
    passes(bed, flow, &[]).remove(0).steps
}

/// Table, priority and cookie of the rule that decides at each table, and the priority of the next one.
fn decisions(steps: &[Step]) -> Vec<(u8, u32, u64, Option<u32>)> {
    let rules = steps.iter().filter_map(|step| Some((step.rule.as_ref()?, step.next.as_ref())));
    rules.map(|(rule, next)| (rule.table, rule.priority, rule.cookie, next.map(|next| next.priority))).collect()
}

#[test]
fn each_table_has_a_rule_and_the_one_below_it() {
    let bed = bed(&[
        "priority=100,in_port=1,cookie=0x7,actions=resubmit(,1)",
        "priority=50,actions=drop",
        "table=1,priority=30,udp,actions=output:2",
        "table=1,priority=20,tcp,actions=output:3",
        "table=1,priority=10,ip,actions=output:3",
        "table=1,priority=10,in_port=2,actions=drop",
    ]);
    let steps = steps(&bed, "in_port=1,udp");
    assert_eq!(decisions(&steps), [(0, 100, 7, Some(50)), (1, 30, 0, Some(10))]);
    let next = steps.iter().find_map(|step| step.next.as_ref().filter(|next| next.table == 1)).unwrap();
    assert_eq!((&next.r#match[..], &next.actions[..]), ("ip", "output:3"));
    let depths: Vec<_> = steps.iter().map(|step| (step.depth, step.kind)).collect();
    let expected = [
        (0, StepKind::Bridge),
        (1, StepKind::Table),
        (2, StepKind::Action),
        (2, StepKind::Table),
        (3, StepKind::Action),
    ];
    assert_eq!(depths, expected);
    assert_eq!(decisions(&self::steps(&bed, "in_port=2,udp")), [(0, 50, 0, None)]);
}

#[test]
fn the_rule_below_a_conjunction_is_found_without_it() {
    let bed = bed(&[
        "priority=20,ip,nw_src=10.0.0.1,actions=conjunction(5,1/2)",
        "priority=20,ip,nw_dst=10.0.0.2,actions=conjunction(5,2/2)",
        "conj_id=5,priority=20,ip,actions=output:2",
        "priority=9,ip,actions=output:3",
    ]);
    let steps = steps(&bed, "in_port=1,ip,nw_src=10.0.0.1,nw_dst=10.0.0.2");
    assert_eq!(decisions(&steps), [(0, 20, 0, Some(9))]);
}

#[test]
fn normal_is_explained_by_the_modes_of_ports() {
    let bed = bed(&["actions=NORMAL"]);
    bed.bridge.set_port_vlan(OfPort(1), PortVlan::access(10)).unwrap();
    bed.bridge.set_port_vlan(OfPort(3), PortVlan::access(20)).unwrap();
    let texts = |flow: &str| -> Vec<String> {
        steps(&bed, flow).into_iter().filter(|step| step.kind == StepKind::Vlan).map(|step| step.text).collect()
    };
    let expected = [
        "port p1 is an access port of VLAN 10: the packet without a VLAN tag belongs to VLAN 10",
        "port p2, a trunk port of all VLANs, sends the packet of VLAN 10 with VLAN tag 10",
    ];
    assert_eq!(texts("in_port=1,dl_src=02:00:00:00:00:01"), expected);
    let refused = texts("in_port=1,dl_vlan=5,dl_src=02:00:00:00:00:01");
    assert_eq!(refused, ["port p1 is an access port of VLAN 10, which takes no packet with VLAN tag 5"]);
}

#[test]
fn nothing_is_learnt_or_counted_and_passes_follow() {
    let bed = bed(&[
        "table=0,ip,actions=ct(table=1)",
        "table=1,ct_state=+trk+est,ip,actions=learn(table=2,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),NORMAL",
        "table=1,priority=1,actions=drop",
    ]);
    let count = bed.bridge.flow_count();
    let passes = passes(&bed, "in_port=1,icmp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02", &[0x22]);
    assert_eq!(passes.len(), 2);
    assert!(passes[1].heading.as_ref().is_some_and(|heading| heading.contains("ct_state=est|trk")));
    assert_eq!(decisions(&passes[1].steps), [(1, 32768, 0, Some(1))]);
    assert_eq!((bed.bridge.flow_count(), bed.bridge.macs().len()), (count, 0));
    assert!(bed.sent().is_empty());
}

#[test]
fn groups_say_what_they_choose() {
    let bed = bed(&[]);
    let bucket = |id, port| {
        let (watch_port, watch_group, actions) = (OfPort::ANY, GroupId::ANY, vec![Action::output(OfPort(port))]);
        Bucket { id, weight: 1, watch_port, watch_group, actions }
    };
    let (buckets, selection) = (vec![bucket(0, 2), bucket(1, 3)], Selection::default());
    bed.put_group(4, &GroupSpec { kind: GroupType::All, buckets, selection });
    let bands = vec![Band { kind: BandKind::Drop, rate: 1, burst: 1 }];
    let config = MeterConfig { meter: 3, flags: MeterFlags::PKTPS, bands };
    bed.bridge.meter_mod(&MeterMod { command: MeterCommand::Add, config }).unwrap();
    bed.add_flow(0, 1, openflow::Match::any(), vec![Action::Group(GroupId(4)), Action::Meter(3)]);
    let steps = steps(&bed, "in_port=1");
    let of = |kind| steps.iter().filter(|step| step.kind == kind).count();
    assert!(steps.iter().any(|step| step.text == "group 4 (all) copies the packet to 2 buckets"));
    assert_eq!((of(StepKind::Bucket), of(StepKind::Meter)), (2, 1));
}

#[test]
fn workers_say_in_which_tier_they_find_a_flow() {
    let bed = bed(&["udp,in_port=1,nw_src=10.0.0.1,actions=output:2", "in_port=2,actions=output:1"]);
    let port = |n: usize| bed.bridge.ports()[n - 1].dp_port.unwrap();
    let tiers = |n, frame: &[u8]| bed.datapath.probe(port(n), frame, Duration::from_secs(10));
    let header = build::Ipv4 { src: [10, 0, 0, 1].into(), proto: 17, ttl: 64, ..build::Ipv4::default() };
    let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(7, 53, b"")));
    assert_eq!(tiers(1, &frame), []);
    drop(bed.receive(OfPort(1), &frame));
    assert_eq!(tiers(1, &frame), [(0, CacheTier::Megaflow)], "the slow path has just installed it");
    let before = bed.datapath.stats().workers[0].clone();
    // The caches take one in some of the flows that tier 2 finds.
    let found =
        (0..1000).find(|_| !bed.receive(OfPort(1), &frame).is_empty() && tiers(1, &frame)[0].1 != CacheTier::Megaflow);
    assert!(found.is_some());
    assert_eq!(tiers(1, &frame), [(0, CacheTier::Headers)]);
    let after = bed.datapath.stats().workers[0].clone();
    assert_eq!(after.received - before.received, found.unwrap() as u64 + 1, "to look is not to receive");
    drop(bed.receive(OfPort(2), &frame));
    assert_eq!(tiers(2, &frame), [(0, CacheTier::Simple)]);
}
