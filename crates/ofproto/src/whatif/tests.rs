//! What changes would do, beside what they do when they are made.

use openflow::text::parse_flow_mod_line;
use openflow::{FlowMod, OfError};
use packet::flow::text::NoNames;
use packet::wire::build;
use proptest::prelude::*;

use super::{FlowVerdict, Problem, TablesVersion, WhatIf, replacing};
use crate::reference::tests::Bed;

fn flow(text: &str) -> FlowMod {
    parse_flow_mod_line(text, &NoNames).unwrap()
}

fn bed(flows: &[&str]) -> Bed {
    let bed = Bed::new(3);
    flows.iter().for_each(|text| bed.bridge.flow_mod(&flow(text)).unwrap());
    bed
}

fn ask(bed: &Bed, changes: &[&str]) -> Result<WhatIf, Problem> {
    let changes: Vec<_> = changes.iter().map(|text| flow(text)).collect();
    WhatIf::new(&bed.bridge, &changes, TablesVersion::now(&bed.bridge)?)
}

/// A datagram from 10.0.0.`source` to a port.
fn udp(source: u8, to: u16) -> Vec<u8> {
    let header = build::Ipv4 { src: [10, 0, 0, source].into(), proto: 17, ttl: 64, ..build::Ipv4::default() };
    build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(7, to, b"")))
}

/// Of each flow of the datapath, what would become of it: unchanged, some packets, all, or not decided.
fn verdicts(bed: &Bed, what_if: &WhatIf) -> Vec<&'static str> {
    let mut flows: Vec<_> = bed.datapath.flows().collect();
    flows.sort_by_key(|flow| flow.id);
    let name = |verdict| match verdict {
        FlowVerdict::Unchanged => "unchanged",
        FlowVerdict::Undecided => "undecided",
        FlowVerdict::Changed(difference) if difference.whole => "all",
        FlowVerdict::Changed(_) => "some",
    };
    flows.iter().map(|flow| name(what_if.compare(flow))).collect()
}

#[test]
fn a_wide_flow_is_changed_for_some_of_its_packets() {
    let bed =
        bed(&["priority=5,udp,nw_src=10.0.0.1,actions=output:2", "priority=5,udp,nw_src=10.0.0.2,actions=output:2"]);
    drop((bed.receive(openflow::OfPort(1), &udp(1, 53)), bed.receive(openflow::OfPort(1), &udp(2, 53))));
    let of = |changes: &[&str]| verdicts(&bed, &ask(&bed, changes).unwrap());
    assert_eq!(of(&["priority=9,udp,nw_src=10.0.0.1,tp_dst=80,actions=drop"]), ["some", "unchanged"]);
    assert_eq!(of(&["priority=9,udp,actions=drop"]), ["all", "all"]);
    assert_eq!(of(&["priority=4,udp,actions=drop"]), ["unchanged", "unchanged"], "it is hidden by those above");
    assert_eq!(of(&["delete udp,nw_src=10.0.0.2"]), ["unchanged", "all"]);
    assert_eq!(of(&["modify udp,nw_src=10.0.0.1,actions=output:3"]), ["all", "unchanged"]);
    assert_eq!(
        of(&["priority=9,udp,tp_dst=80,actions=output:2"]),
        ["unchanged", "unchanged"],
        "the outcome is the same"
    );
    assert_eq!(of(&["priority=9,dl_src=02:00:00:00:00:77,actions=drop"]), ["some", "some"]);
    // Nothing of it has been done.
    assert_eq!(bed.bridge.flow_count(), 2);
    assert_eq!(bed.receive(openflow::OfPort(1), &udp(1, 80)).len(), 1);
}

#[test]
fn rewritten_fields_do_not_hide_a_change() {
    let bed = bed(&["udp,actions=mod_nw_src:10.0.0.9,load:5->NXM_NX_REG0[],resubmit(,1)", "table=1,actions=output:2"]);
    drop(bed.receive(openflow::OfPort(1), &udp(1, 53)));
    let of = |changes: &[&str]| verdicts(&bed, &ask(&bed, changes).unwrap());
    assert_eq!(of(&["table=1,priority=40000,udp,nw_src=10.0.0.9,actions=drop"]), ["all"]);
    assert_eq!(of(&["table=1,priority=40000,udp,nw_src=10.0.0.1,actions=drop"]), ["unchanged"]);
    assert_eq!(of(&["table=1,priority=40000,reg0=5,actions=drop"]), ["all"]);
    assert_eq!(of(&["table=1,priority=40000,reg0=6,actions=drop"]), ["unchanged"]);
    assert_eq!(of(&["table=2,priority=40000,actions=drop"]), ["unchanged"], "no packet comes there");
}

#[test]
fn changes_are_checked_as_the_tables_check_them() {
    let bed = bed(&[
        "priority=5,udp,actions=output:2",
        "priority=1,actions=learn(table=3,delete_learned,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[])",
    ]);
    let problem = |changes: &[&str]| ask(&bed, changes).err();
    let refused = |at, error| Some(Problem::Refused { at, error });
    assert_eq!(problem(&["actions=drop", "actions=group:7"]), refused(1, OfError::OFPBAC_BAD_OUT_GROUP));
    assert_eq!(problem(&["check_overlap,priority=5,ip,actions=drop"]), refused(0, OfError::OFPFMFC_OVERLAP));
    assert_eq!(problem(&["delete udp", "check_overlap,priority=5,ip,actions=drop"]), None);
    assert_eq!(problem(&["delete"]), Some(Problem::DeleteLearned(0)));
    let counts =
        ask(&bed, &["udp,priority=5,actions=drop", "tcp,actions=drop", "delete_strict tcp", "icmp,actions=drop"]);
    let counts = counts.unwrap().counts();
    assert_eq!((counts.added, counts.modified, counts.removed), (1, 1, 0));
}

#[test]
fn a_commit_is_refused_when_something_has_changed() {
    let bed = bed(&["priority=5,udp,actions=output:2"]);
    let changes = [flow("priority=6,udp,actions=output:3")];
    let what_if = WhatIf::new(&bed.bridge, &changes, TablesVersion::now(&bed.bridge).unwrap()).unwrap();
    assert!(what_if.is_current());
    bed.bridge.flow_mod(&flow("table=7,actions=drop")).unwrap();
    assert_eq!((what_if.is_current(), what_if.commit(&changes)), (false, Err(Problem::Outdated)));
    assert_eq!(bed.bridge.flow_count(), 2);
    let again = WhatIf::new(&bed.bridge, &changes, TablesVersion::now(&bed.bridge).unwrap()).unwrap();
    assert_eq!((again.commit(&changes), bed.bridge.flow_count()), (Ok(()), 3));
    assert_eq!(again.commit(&changes), Err(Problem::Outdated), "it has changed them itself");
}

#[test]
fn a_list_replaces_what_differs() {
    let bed = bed(&["cookie=1,udp,actions=output:2", "tcp,actions=output:2", "table=3,icmp,actions=output:3"]);
    let wanted = ["cookie=1,udp,actions=output:2", "tcp,actions=output:3", "table=4,arp,actions=NORMAL"].map(flow);
    let changes = replacing(&bed.bridge, &wanted).unwrap();
    assert_eq!(changes.len(), 3);
    let what_if = WhatIf::new(&bed.bridge, &changes, TablesVersion::now(&bed.bridge).unwrap()).unwrap();
    let counts = what_if.counts();
    assert_eq!((counts.added, counts.modified, counts.removed), (1, 1, 1));
    what_if.commit(&changes).unwrap();
    assert!(replacing(&bed.bridge, &wanted).unwrap().is_empty());
}

/// A flow-mod on a few fields, of two tables, by its numbers.
fn change() -> impl Strategy<Value = String> {
    let matching = prop_oneof![
        Just(String::new()),
        (1u8..4).prop_map(|source| format!(",nw_src=10.0.0.{source}")),
        (1u8..4).prop_map(|port| format!(",tp_dst={port}")),
        (1u8..4, 1u8..4).prop_map(|(source, port)| format!(",nw_src=10.0.0.{source},tp_dst={port}")),
        Just(",nw_src=10.0.0.2/31".to_owned()),
    ];
    let actions = prop_oneof![
        Just("output:2".to_owned()),
        Just("output:3".to_owned()),
        Just("drop".to_owned()),
        Just("resubmit(,1)".to_owned()),
        (1u8..4).prop_map(|source| format!("mod_nw_src:10.0.0.{source},resubmit(,1)")),
        (1u8..4).prop_map(|port| format!("output:2,mod_tp_dst:{port},resubmit(,1)")),
    ];
    let command = prop_oneof![4 => Just(""), 1 => Just("delete "), 1 => Just("delete_strict "), 1 => Just("modify ")];
    (command, 0u8..2, 1u16..5, matching, actions).prop_map(|(command, table, priority, matching, actions)| {
        // A loose command has no priority.
        let priority =
            if matches!(command, "delete " | "modify ") { String::new() } else { format!(",priority={priority}") };
        // Of table 1 no packet comes back to table 1.
        let actions = if table == 1 { "output:3" } else { &actions };
        let actions = if command.starts_with("delete") { String::new() } else { format!(",actions={actions}") };
        format!("{command}table={table},udp{priority}{matching}{actions}")
    })
}

/// Priorities differ, so that there is one right answer.
fn with_own_priorities(changes: &[String], from: usize) -> Vec<String> {
    let own = |(n, change): (usize, &String)| match change.split_once("priority=") {
        Some((before, after)) => format!("{before}priority={}{:02}{}", &after[..1], from + n, &after[1..]),
        None => change.clone(),
    };
    changes.iter().enumerate().map(own).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    /// A flow is said to be changed exactly if some of its packets leave otherwise once the changes are made. The packets are all
    /// that the rules tell apart.
    #[test]
    fn flows_that_are_listed_are_those_that_change(
        rules in prop::collection::vec(change(), 1..10),
        changes in prop::collection::vec(change(), 1..5),
    ) {
        let bed = bed(&[]);
        let (rules, changes) = (with_own_priorities(&rules, 0), with_own_priorities(&changes, 50));
        for rule in rules.iter().filter(|rule| rule.starts_with("table")) {
            bed.bridge.flow_mod(&flow(rule)).unwrap();
        }
        let packets: Vec<_> = (0..5).flat_map(|source| (0..5).map(move |port| udp(source, port))).collect();
        let before: Vec<_> = packets.iter().map(|packet| bed.receive(openflow::OfPort(1), packet)).collect();
        let key = |packet: &[u8]| {
            let mut key = packet::Key::new();
            packet::flow::extract(packet, &mut key, Default::default());
            key.common_mut().in_port = bed.bridge.ports()[0].dp_port.unwrap().0.into();
            key
        };
        let changes: Vec<_> = changes.iter().map(|text| flow(text)).collect();
        let what_if = WhatIf::new(&bed.bridge, &changes, TablesVersion::now(&bed.bridge).unwrap()).unwrap();
        let flows: Vec<_> = bed.datapath.flows().collect();
        let verdicts: Vec<_> = flows.iter().map(|flow| what_if.compare(flow)).collect();
        prop_assert!(what_if.is_current());
        what_if.commit(&changes).unwrap();
        bed.bridge.barrier();
        let after: Vec<_> = packets.iter().map(|packet| bed.receive(openflow::OfPort(1), packet)).collect();
        for (flow, verdict) in flows.iter().zip(&verdicts) {
            let own = |n: &usize| key(&packets[*n]).matches(&flow.key, &flow.mask);
            let members: Vec<_> = (0..packets.len()).filter(own).collect();
            let changed: Vec<_> = members.iter().copied().filter(|&n| before[n] != after[n]).collect();
            match verdict {
                FlowVerdict::Undecided => {}
                FlowVerdict::Unchanged => prop_assert_eq!(changed, Vec::<usize>::new()),
                FlowVerdict::Changed(difference) => {
                    prop_assert!(!changed.is_empty());
                    // Exactly those that it names, and maybe more.
                    let named = |n: &usize| key(&packets[*n]).matches(&difference.key, &difference.mask);
                    prop_assert!(members.iter().filter(|n| named(n)).all(|n| changed.contains(n)));
                }
            }
        }
    }
}
