//! Tables that would make one packet cost far too much, on a stack that is smaller than that of any thread of the daemon.

use datapath::{Action as DpAction, DropReason};
use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
use openflow::text::parse_flow_mod;
use openflow::{Action, FlowModCommand, GroupId, OfPort};
use packet::flow::text::NoNames;

use crate::reference::tests::Bed;

const FRAME: [u8; 60] = [2; 60];

/// What became of one packet.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Where it was sent.
    sent: Vec<u32>,
    drops: Vec<DropReason>,
    /// Actions in the flow that was made for it, nested ones included.
    actions: usize,
}

/// Receives a packet from port 1 in a thread with little stack. Port 9 does not exist.
fn receive(flows: Vec<String>, groups: Vec<(u32, GroupSpec)>) -> Outcome {
    let body = move || {
        let bed = Bed::new(3);
        for (id, spec) in groups {
            bed.put_group(id, &spec);
        }
        for flow in flows {
            bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, &flow, &NoNames).unwrap()).unwrap();
        }
        let sent = bed.receive(OfPort(1), &FRAME).into_iter().map(|(port, _)| port.0).collect();
        let drops = bed.datapath.stats().workers[0].drops.iter().map(|(reason, _)| reason).collect();
        let actions = bed.datapath.flows().map(|flow| count(&flow.actions)).sum();
        // As it does after every change.
        bed.switch.revalidate();
        Outcome { sent, drops, actions }
    };
    std::thread::Builder::new().stack_size(1 << 20).spawn(body).unwrap().join().unwrap()
}

fn count(actions: &[DpAction]) -> usize {
    let inside = |action: &DpAction| match action {
        DpAction::Clone(inner) => count(inner),
        DpAction::CheckLength { longer, others, .. } => count(longer) + count(others),
        _ => 0,
    };
    actions.len() + actions.iter().map(inside).sum::<usize>()
}

fn one(flow: String) -> Outcome {
    receive(vec![flow], Vec::new())
}

fn dropped(drops: &[DropReason]) -> Outcome {
    Outcome { sent: Vec::new(), drops: drops.to_vec(), actions: 1 }
}

/// Each table but the last does this; the last sends to port 2.
fn chain(tables: u8, each: impl Fn(u8) -> String) -> Vec<String> {
    let rules = (0..tables).map(|t| format!("table={t},actions={}", each(t + 1)));
    rules.chain([format!("table={tables},actions=output:2")]).collect()
}

#[test]
fn a_chain_through_all_tables_overflowed_the_stack() {
    let sent = Outcome { sent: vec![2], drops: vec![], actions: 1 };
    assert_eq!(receive(chain(252, |next| format!("clone(resubmit(,{next}))")), vec![]), sent);
    assert_eq!(receive(chain(252, |next| format!("resubmit(,{next})")), vec![]), sent);
    assert_eq!(receive(chain(252, |next| format!("goto_table:{next}")), vec![]), sent);
    let nested = |next| format!("{}resubmit(,{next}){}", "clone(".repeat(16), ")".repeat(16));
    assert_eq!(receive(chain(252, nested), vec![]), sent);
}

#[test]
fn the_deepest_translations_end() {
    // Round and round: 64 times back, from the last table to the first.
    let round = |tables: u8, each: &dyn Fn(u8) -> String| {
        (0..tables).map(|t| format!("table={t},actions={}", each((t + 1) % tables))).collect::<Vec<_>>()
    };
    let cloned = |next: u8| format!("clone(resubmit(,{next}))");
    assert_eq!(receive(round(63, &cloned), vec![]), dropped(&[DropReason::PipelineDepth]));
    assert_eq!(receive(round(66, &cloned), vec![]), dropped(&[DropReason::TooManyResubmits]));
    let nested = |next: u8| format!("{}resubmit(,{next}){}", "clone(".repeat(4), ")".repeat(4));
    assert_eq!(receive(round(60, &nested), vec![]), dropped(&[DropReason::PipelineDepth]));
}

#[test]
fn the_work_of_one_translation_is_bounded() {
    // 4096 look-ups of 500 steps each.
    let many = |action: &str, n: usize| vec![action; n].join(",");
    let twice = vec![
        format!("actions={}", many("resubmit(,1)", 4000)),
        format!("table=1,actions={}", many("set_field:1->reg0", 500)),
    ];
    assert_eq!(receive(twice, vec![]), dropped(&[DropReason::TooMuchWork]));
    // The action set grows with every table.
    let sets = vec![
        format!("actions={}", many("resubmit(,1)", 4000)),
        format!("table=1,actions=write_actions({})", many("set_field:1->reg0", 500)),
    ];
    assert_eq!(receive(sets, vec![]), dropped(&[DropReason::TooMuchWork]));
    // What is pushed is copied for each clone.
    let pushed = vec![
        format!("actions={},resubmit(,1)", many("push:NXM_NX_REG0[]", 3000)),
        format!("table=1,actions={}", many("clone(set_field:1->reg0)", 3000)),
    ];
    assert_eq!(receive(pushed, vec![]), dropped(&[DropReason::TooMuchWork]));
    let learnt = vec![
        format!("actions={}", many("resubmit(,1)", 100)),
        format!("table=1,actions={}", many("learn(table=2,NXM_OF_ETH_SRC[])", 300)),
    ];
    assert_eq!(receive(learnt, vec![]), dropped(&[DropReason::TooMuchWork]));
    let links = many("multipath(eth_src,0,hrw,65536,0,NXM_NX_REG0[0..15])", 100);
    assert_eq!(one(format!("actions={links}")), dropped(&[DropReason::TooMuchWork]));
}

#[test]
fn the_copies_of_one_packet_are_bounded() {
    // No port has more than it keeps of what is sent.
    let copies =
        |n: usize| format!("actions={}", ["output:2", "output:3", "IN_PORT"].repeat(n.div_ceil(3))[..n].join(","));
    assert_eq!(one(copies(4000)).sent.len(), 4000);
    // Past 64 kB of actions, as in OVS, no more tables are looked up, and no flow is made.
    let rules = vec![format!("actions={}", vec!["resubmit(,1)"; 40].join(",")), format!("table=1,{}", copies(500))];
    let outcome = receive(rules, vec![]);
    assert_eq!((outcome.sent.len(), outcome.actions), (8500, 0));
    let inner = format!("actions={}", ["ALL"; 3].join(","));
    assert_eq!(one(inner).sent.len(), 6);
    assert_eq!(one(copies(33_000)), dropped(&[DropReason::TooMuchWork]));
}

#[test]
fn each_question_for_the_length_doubled_the_rest() {
    let ask = |size: usize| format!("check_pkt_larger({size})->NXM_NX_REG0[0]");
    let output = "output:NXM_NX_REG0[0]";
    // The answer to the first is the answer to all.
    let same = format!("actions={},load:2->NXM_NX_REG0[0..3],output:2", vec![ask(100); 1000].join(","));
    assert_eq!(one(same), Outcome { sent: vec![2], drops: vec![], actions: 3 });
    // Each has one more.
    let sizes: Vec<String> = (1..=18).map(|n| ask(n * 100)).collect();
    let different = format!("actions={},load:2->NXM_NX_REG0[0..3],output:2", sizes.join(","));
    assert_eq!(one(different), Outcome { sent: vec![2], drops: vec![], actions: 18 + 19 });
    let too_many: Vec<String> = (1..=40).map(|n| ask(n * 30)).collect();
    assert_eq!(one(format!("actions={},output:2", too_many.join(","))), dropped(&[DropReason::PipelineDepth]));
    // The length changes, so each has to be asked.
    let tagged = vec![format!("push_vlan:0x8100,{},strip_vlan,{}", ask(100), ask(100)); 15].join(",");
    assert_eq!(one(format!("actions={tagged},{output}")), dropped(&[DropReason::TooMuchWork]));
    let few = vec![format!("push_vlan:0x8100,{},strip_vlan,{}", ask(100), ask(100)); 2].join(",");
    assert_eq!(one(format!("actions={few},output:2")).sent, [2]);
}

fn group(kind: GroupType, buckets: Vec<(OfPort, GroupId, Action)>) -> GroupSpec {
    let bucket = |(id, (watch_port, watch_group, action))| Bucket {
        id,
        weight: 1,
        watch_port,
        watch_group,
        actions: vec![action],
    };
    GroupSpec { kind, buckets: (0..).zip(buckets).map(bucket).collect(), selection: Selection::default() }
}

#[test]
fn groups_that_watch_each_other_doubled_with_each() {
    let (two, three) = (Action::output(OfPort(2)), Action::output(OfPort(3)));
    for kind in [GroupType::FastFailover, GroupType::Select] {
        let mut groups: Vec<_> = (1..=200)
            .map(|n| {
                let next = (OfPort::ANY, GroupId(n + 1), two.clone());
                (n, group(kind, vec![next.clone(), next.clone(), next]))
            })
            .collect();
        // None is live but the last bucket of the first.
        groups.push((201, group(kind, vec![(OfPort(9), GroupId(1), two.clone())])));
        let live = group(kind, vec![(OfPort(3), GroupId::ANY, three.clone())]).buckets.remove(0);
        groups[0].1.buckets.push(Bucket { id: 7, ..live });
        // The last watches the first, so all are live by it.
        let sent = receive(vec!["actions=group:2".into()], groups.clone());
        assert_eq!((&sent.sent[..], &sent.drops[..]), (&[2][..], &[][..]), "{kind:?}");
        let last = groups.last_mut().unwrap();
        last.1.buckets[0].watch_group = GroupId(2);
        let sent = receive(vec!["actions=group:1".into()], groups);
        assert_eq!((&sent.sent[..], &sent.drops[..]), (&[3][..], &[][..]), "{kind:?}");
    }
}

#[test]
fn a_look_up_among_many_conjunctions_is_work() {
    let parts = |clause: u32| {
        let part = |id: u32| format!("conjunction({id},{}/2)", clause + 1);
        (1..=500).map(part).collect::<Vec<_>>().join(",")
    };
    let flows = |times: usize| {
        vec![
            format!("actions={}output:2", "resubmit(,1),".repeat(times)),
            "table=1,priority=1,actions=drop".into(),
            format!("table=1,priority=2,dl_src=02:02:02:02:02:02,actions={}", parts(0)),
            format!("table=1,priority=2,dl_dst=02:02:02:02:02:02,actions={}", parts(1)),
        ]
    };
    assert_eq!(receive(flows(20), Vec::new()), Outcome { sent: vec![2], drops: vec![], actions: 1 });
    assert_eq!(receive(flows(3000), Vec::new()), dropped(&[DropReason::TooMuchWork]));
}

#[test]
fn empty_buckets_cost_nothing_and_took_seconds() {
    let none = |id| Bucket { id, weight: 0, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions: Vec::new() };
    let spec =
        |n| GroupSpec { kind: GroupType::All, buckets: (0..n).map(none).collect(), selection: Selection::default() };
    let through = |times: usize, buckets| {
        receive(vec![format!("actions={}output:2", "group:1,".repeat(times))], vec![(1, spec(buckets))])
    };
    assert_eq!(through(10, 1000), Outcome { sent: vec![2], drops: vec![], actions: 1 });
    assert_eq!(through(1000, 1000), dropped(&[DropReason::TooMuchWork]));
}
