//! Bundles, eviction, groups, meters and tables of a bridge.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use datapath::{Config, Datapath};
use openflow::action::{Learn, LearnDst};
use openflow::codec::{DecodeOptions, encode_all};
use openflow::group::{Bucket, GroupCommand, GroupSpec, GroupType, Selection, bucket_id};
use openflow::meter::{MeterCommand, MeterFlags};
use openflow::text::parse_flow_mod;
use openflow::{
    Action, Body, Cookie, FlowMod, FlowModCommand, FlowModFlags, FlowRemovedReason, GroupId, GroupMod, Instructions,
    Match, Message, MeterConfig, MeterMod, MultipartReply, OfError, OfPort, PacketOut, Subfield, TableId, TableMod,
    Version,
};
use packet::flow::text::NoNames;
use packet::{Clock, Field, Time};
use parking_lot::Mutex;

use super::{Bridge, Bundled};
use crate::events::SubscriptionId;
use crate::model::flow_changes::{FlowChanges, FlowWatcher};
use crate::model::forwarding::BridgeState;
use crate::model::group::{Group, uses_group};
use crate::model::transaction::Transaction;
use crate::model::users::Used;
use crate::table::Rule;
use crate::{BridgeConfig, Switch, SwitchSettings, TableSettings};

struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

pub(super) fn bridge() -> Bridge {
    let clock = Arc::new(TestClock(AtomicU64::new(1)));
    let switch = Switch::new(SwitchSettings::default(), clock.clone());
    switch.attach(Datapath::new(Config { exact_entries: 256, ..Config::default() }, clock));
    let config = BridgeConfig { fail_mode: crate::FailMode::Secure, ..BridgeConfig::new("br0", 1) };
    switch.add_bridge(config).unwrap()
}

/// A flow on an input port.
fn flow(command: FlowModCommand, in_port: u32, actions: Vec<Action>) -> FlowMod {
    let mut matching = Match::any();
    matching.set_in_port(OfPort(in_port));
    FlowMod::new(command, matching, Instructions::apply(actions))
}

fn add(in_port: u32, actions: Vec<Action>) -> FlowMod {
    flow(FlowModCommand::Add, in_port, actions)
}

fn everything() -> FlowMod {
    FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default())
}

/// Input ports of the flows of table 0 and what they do.
fn flows(bridge: &Bridge) -> Vec<(u32, Vec<Action>)> {
    let request = openflow::FlowStatsRequest {
        matching: Match::any(),
        table: TableId(0),
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        cookie: Default::default(),
    };
    let all = bridge.flow_stats(&request).unwrap().into_iter();
    let mut all: Vec<_> = all.map(|f| (f.matching.in_port().map_or(0, |p| p.0), f.instructions.apply)).collect();
    all.sort_by_key(|(port, _)| *port);
    all
}

fn ports(bridge: &Bridge) -> Vec<u32> {
    flows(bridge).into_iter().map(|(port, _)| port).collect()
}

fn output(port: u32) -> Vec<Action> {
    vec![Action::output(OfPort(port))]
}

fn commit(bridge: &Bridge, messages: &[Bundled]) -> Result<(), (usize, OfError)> {
    bridge.commit(messages, |message| Ok(message.clone()))
}

fn limit(bridge: &Bridge, settings: TableSettings) {
    bridge.set_config(BridgeConfig { tables: [(TableId(0), settings)].into(), ..bridge.config() });
}

pub(super) fn group(command: GroupCommand, id: u32, ids: &[u32]) -> GroupMod {
    let bucket = |&id: &u32| Bucket {
        id,
        weight: 0,
        watch_port: OfPort::ANY,
        watch_group: GroupId::ANY,
        actions: output(id + 1),
    };
    GroupMod {
        command,
        group: GroupId(id),
        command_bucket: bucket_id::ALL,
        spec: GroupSpec {
            kind: GroupType::All,
            buckets: ids.iter().map(bucket).collect(),
            selection: Selection::default(),
        },
    }
}

#[test]
fn a_bundle_that_fails_leaves_everything_as_it_was() {
    let bridge = bridge();
    bridge.flow_mod(&add(1, output(11))).unwrap();
    bridge.flow_mod(&add(2, output(12))).unwrap();
    bridge.group_mod(&group(GroupCommand::Add, 1, &[0])).unwrap();
    let before = flows(&bridge);
    let mut forbidden = add(9, output(1));
    forbidden.table = Some(TableId(254));
    let bundle = [
        Bundled::Flow(Box::new(add(1, output(21)))),
        Bundled::Flow(Box::new(everything())),
        Bundled::Flow(Box::new(add(3, output(23)))),
        Bundled::Group(Box::new(group(GroupCommand::Delete, 1, &[]))),
        Bundled::Group(Box::new(group(GroupCommand::Add, 2, &[0]))),
        Bundled::Flow(Box::new(forbidden)),
    ];
    assert_eq!(commit(&bridge, &bundle), Err((5, OfError::OFPBRC_EPERM)));
    assert_eq!(flows(&bridge), before);
    let groups: Vec<_> = bridge.group_descs(GroupId::ALL).iter().map(|g| g.group.0).collect();
    assert_eq!(groups, [1]);
    assert_eq!(commit(&bridge, &bundle[..5]), Ok(()));
    assert_eq!(flows(&bridge), [(3, output(23))]);
    assert_eq!(bridge.group_descs(GroupId::ALL)[0].group, GroupId(2));
}

/// A packet-out that goes through the tables.
fn packet_out(in_port: u32) -> Bundled {
    Bundled::Packet(PacketOut {
        buffer_id: None,
        in_port: OfPort(in_port),
        metadata: Match::any(),
        actions: vec![Action::output(OfPort::TABLE)],
        data: vec![0; 60],
    })
}

/// Packets that the flow of an input port has had.
fn packets(bridge: &Bridge, in_port: u32) -> u64 {
    let request = openflow::FlowStatsRequest {
        matching: flow(FlowModCommand::Add, in_port, Vec::new()).matching,
        table: TableId(0),
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        cookie: Default::default(),
    };
    bridge.flow_stats(&request).unwrap().iter().map(|flow| flow.packet_count).sum()
}

#[test]
fn a_packet_in_a_bundle_meets_the_changes_before_it_and_not_those_after() {
    let bridge = bridge();
    let change = |flow| Bundled::Flow(Box::new(flow));
    // The packet is the first flow's, which the bundle replaces afterwards.
    let replaced = [change(add(6, output(1))), packet_out(6), change(everything()), change(add(6, output(2)))];
    assert_eq!(commit(&bridge, &replaced), Ok(()));
    assert_eq!((flows(&bridge), packets(&bridge, 6)), (vec![(6, output(2))], 0));
    assert_eq!(commit(&bridge, &[packet_out(6), change(add(7, output(1))), packet_out(7)]), Ok(()));
    assert_eq!((packets(&bridge, 6), packets(&bridge, 7)), (1, 1));
    // Of a bundle that fails, nothing is sent.
    let failing = [packet_out(6), change(FlowMod { table: Some(TableId(254)), ..add(9, output(1)) })];
    assert_eq!(commit(&bridge, &failing), Err((1, OfError::OFPBRC_EPERM)));
    assert_eq!(packets(&bridge, 6), 1);
}

#[test]
fn a_bundle_has_a_bounded_number_of_packets() {
    let bridge = bridge();
    let many = vec![packet_out(6); super::bundle::MAX_PACKETS + 1];
    assert_eq!(commit(&bridge, &many), Err((super::bundle::MAX_PACKETS, OfError::OFPBFC_MSG_TOO_MANY)));
    assert_eq!(commit(&bridge, &many[1..]), Ok(()));
}

#[test]
fn messages_of_a_bundle_that_cost_more_than_others_are_counted() {
    let bridge = bridge();
    for port in 0..500 {
        let cookie = Some(Cookie((port / 100).into()));
        bridge.flow_mod(&FlowMod { new_cookie: cookie, ..add(port, output(1)) }).unwrap();
    }
    bridge.group_mod(&group(GroupCommand::Add, 1, &(0..50).collect::<Vec<_>>())).unwrap();
    let effort = |message: &Bundled| {
        let mut forwarding = bridge.switch.forwarding.write();
        let mut transaction = Transaction::new(forwarding.bridges.get_mut(&bridge.id).unwrap(), 9, Time(2));
        match message {
            Bundled::Flow(change) => super::flows::apply(&mut transaction, change).unwrap(),
            Bundled::Group(change) => super::groups::apply(&mut transaction, change).unwrap(),
            other => panic!("{other:?}"),
        }
        let effort = transaction.effort;
        transaction.rollback();
        effort
    };
    let all = |command| FlowMod::new(command, Match::any(), Instructions::apply(output(2)));
    let with = |mask| FlowMod { cookie: openflow::CookieFilter { value: 3, mask }, ..all(FlowModCommand::Delete) };
    let wide = FlowMod { flags: FlowModFlags::CHECK_OVERLAP, priority: 7, ..all(FlowModCommand::Add) };
    let priority = add(1, vec![]).priority;
    for (change, expected) in [
        (all(FlowModCommand::Delete), 500),
        (with(0xff), 500),
        (with(u64::MAX), 100),
        (all(FlowModCommand::Modify), 500 + 32 * 500),
        (wide.clone(), 0),
        (FlowMod { flags: FlowModFlags::CHECK_OVERLAP, ..add(900, vec![]) }, 0),
        (add(1, output(3)), 0),
        (flow(FlowModCommand::DeleteStrict, 1, vec![]), 0),
    ] {
        assert_eq!(effort(&Bundled::Flow(Box::new(change.clone()))), expected, "{change:?}");
    }
    let overlapping = Bundled::Flow(Box::new(FlowMod { priority, ..wide }));
    assert_eq!(commit(&bridge, &[overlapping]), Err((0, OfError::OFPFMFC_OVERLAP)));
    let insert = GroupMod { command_bucket: bucket_id::LAST, ..group(GroupCommand::InsertBucket, 1, &[99]) };
    assert_eq!(effort(&Bundled::Group(Box::new(insert))), 8 * 51);
    assert_eq!(effort(&Bundled::Group(Box::new(group(GroupCommand::Modify, 1, &[1])))), 0);
}

#[test]
fn a_modify_that_is_undone_leaves_the_counters() {
    let bridge = bridge();
    bridge.flow_mod(&add(1, output(11))).unwrap();
    let mut reset = flow(FlowModCommand::Modify, 1, output(12));
    reset.flags = FlowModFlags::RESET_COUNTS;
    let rule = || bridge.read(|state| state.tables[0].rules.iter().next().unwrap().clone()).unwrap();
    rule().stats.add(5, 500, Time(2));
    let missing = add(2, vec![Action::Group(GroupId(77))]);
    let bundle = [Bundled::Flow(Box::new(reset.clone())), Bundled::Flow(Box::new(missing))];
    assert_eq!(commit(&bridge, &bundle), Err((1, OfError::OFPBAC_BAD_OUT_GROUP)));
    assert_eq!(rule().stats.packets(), 5);
    bridge.flow_mod(&reset).unwrap();
    assert_eq!(rule().stats.packets(), 0);
}

#[test]
fn an_idle_age_goes_on_when_a_flow_is_added_again() {
    let bridge = bridge();
    let rule = || bridge.read(|state| state.tables[0].rules.iter().next().unwrap().clone()).unwrap();
    bridge.flow_mod(&FlowMod { idle_timeout: 5, ..add(1, output(11)) }).unwrap();
    rule().stats.add(3, 300, Time(1));
    let used = rule().stats.used();
    bridge.flow_mod(&add(1, output(11))).unwrap();
    assert_eq!((rule().stats.used(), rule().stats.packets()), (used, 3));
    let mut reset = FlowMod { idle_timeout: 5, ..add(1, output(11)) };
    reset.flags = FlowModFlags::RESET_COUNTS;
    bridge.flow_mod(&reset).unwrap();
    assert_eq!((rule().stats.used(), rule().stats.packets()), (used, 0));
    // Its time begins anew all the same.
    let added = rule().created;
    rule().stats.restore(0, 0, Time(0));
    let secs = |n| std::time::Duration::from_secs(n);
    assert_eq!((rule().expired(added + secs(5)), rule().expired(added + secs(6)).is_some()), (None, true));
}

#[test]
fn a_full_table_refuses_or_evicts() {
    let bridge = bridge();
    limit(&bridge, TableSettings { max_flows: Some(2), ..TableSettings::default() });
    let lasting = |port, seconds| FlowMod { idle_timeout: seconds, ..add(port, output(1)) };
    bridge.flow_mod(&lasting(1, 20)).unwrap();
    bridge.flow_mod(&lasting(2, 10)).unwrap();
    assert_eq!(bridge.flow_mod(&lasting(3, 30)), Err(OfError::OFPFMFC_TABLE_FULL));
    limit(&bridge, TableSettings { max_flows: Some(2), evict: true, ..TableSettings::default() });
    bridge.flow_mod(&lasting(3, 30)).unwrap();
    assert_eq!(ports(&bridge), [1, 3], "the one that expires first goes");
    bridge.flow_mod(&add(4, vec![])).unwrap();
    bridge.flow_mod(&add(5, vec![])).unwrap();
    assert_eq!(bridge.flow_mod(&add(6, vec![])), Err(OfError::OFPFMFC_TABLE_FULL), "what never expires stays");
    // A controller may ask for more.
    bridge.table_mod(&TableMod { eviction: Some(true), ..TableMod::new(TableId(0)) }).unwrap();
    bridge.flow_mod(&FlowMod { importance: 9, ..add(6, vec![]) }).unwrap();
    assert_eq!(ports(&bridge).len(), 2);
    assert!(ports(&bridge).contains(&6));
    limit(&bridge, TableSettings { max_flows: Some(1), evict: true, ..TableSettings::default() });
    assert_eq!(ports(&bridge), [6], "a lower limit evicts the least important");
}

#[test]
fn the_largest_group_of_flows_is_evicted_from() {
    let bridge = bridge();
    let groups = vec![Subfield::whole(Field::InPort)];
    limit(&bridge, TableSettings { max_flows: Some(3), evict: true, groups, ..TableSettings::default() });
    let of = |port, n: u16, seconds| {
        let mut change = FlowMod { idle_timeout: seconds, ..add(port, output(1)) };
        change.priority = n;
        change
    };
    bridge.flow_mod(&of(1, 1, 5)).unwrap();
    bridge.flow_mod(&of(2, 2, 20)).unwrap();
    bridge.flow_mod(&of(2, 3, 30)).unwrap();
    bridge.flow_mod(&of(3, 4, 40)).unwrap();
    assert_eq!(ports(&bridge), [1, 2, 3]);
}

#[test]
fn each_flow_that_evicted_another_cost_a_look_at_the_whole_table() {
    const FLOWS: u32 = 10_000;
    let bridge = bridge();
    limit(&bridge, TableSettings { max_flows: Some(FLOWS), evict: true, ..TableSettings::default() });
    let began = Instant::now();
    for port in 0..2 * FLOWS {
        bridge.flow_mod(&FlowMod { hard_timeout: 60, importance: (port / FLOWS) as u16, ..add(port, vec![]) }).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let (flows, left) = (bridge.flow_count(), ports(&bridge));
    assert_eq!((flows, left.first(), left.last()), (FLOWS as usize, Some(&FLOWS), Some(&(2 * FLOWS - 1))));
}

#[test]
fn a_lower_limit_evicts_whom_one_after_the_other_would_have_gone() {
    let flows = |bridge: &Bridge| {
        for n in 0..40u16 {
            let mut change =
                FlowMod { idle_timeout: 10 + n * 7 % 40, importance: n % 2, ..add((n % 5).into(), vec![]) };
            change.priority = n;
            bridge.flow_mod(&change).unwrap();
        }
    };
    let groups = vec![Subfield::whole(Field::InPort)];
    let limited =
        |max| TableSettings { max_flows: Some(max), evict: true, groups: groups.clone(), ..Default::default() };
    let left = |bridge: &Bridge| {
        let rules = |state: &BridgeState| state.tables[0].rules.iter().map(|rule| rule.priority).collect::<Vec<_>>();
        let mut left = bridge.read(rules).unwrap();
        left.sort_unstable();
        left
    };
    let (at_once, stepwise) = (bridge(), bridge());
    flows(&at_once);
    limit(&at_once, limited(15));
    flows(&stepwise);
    limit(&stepwise, limited(40));
    let evicted: Result<(), ()> = stepwise.switch.transact(stepwise.id, |transaction| {
        for _ in 15..40 {
            let victim = transaction.bridge.tables[0].victim(Time(1)).unwrap();
            transaction.remove(&victim, FlowRemovedReason::Eviction);
        }
        Ok(())
    });
    evicted.unwrap();
    // Three of each group. Which ones does not depend on the order of groups of equal size.
    assert_eq!(left(&at_once).len(), 15);
    assert_eq!(left(&at_once), left(&stepwise));
    // What never expires stays.
    limit(&at_once, TableSettings::default());
    at_once.flow_mod(&add(9, vec![])).unwrap();
    limit(&at_once, limited(0));
    assert_eq!(ports(&at_once), [9]);
}

#[test]
fn groups_go_with_the_flows_that_use_them() {
    let bridge = bridge();
    assert_eq!(bridge.group_mod(&group(GroupCommand::Modify, 1, &[0])), Err(OfError::OFPGMFC_UNKNOWN_GROUP));
    bridge.group_mod(&group(GroupCommand::Add, 1, &[0, 1])).unwrap();
    assert_eq!(bridge.group_mod(&group(GroupCommand::Add, 1, &[0])), Err(OfError::OFPGMFC_GROUP_EXISTS));
    bridge.flow_mod(&add(1, vec![Action::Group(GroupId(1))])).unwrap();
    bridge.flow_mod(&add(2, output(1))).unwrap();
    assert_eq!(bridge.group_stats(GroupId(1))[0].ref_count, 1);
    bridge.group_mod(&group(GroupCommand::Delete, 1, &[])).unwrap();
    assert_eq!(ports(&bridge), [2]);
    assert!(bridge.group_descs(GroupId::ALL).is_empty());
}

#[test]
fn buckets_come_and_go_by_number() {
    let bridge = bridge();
    bridge.group_mod(&group(GroupCommand::Add, 1, &[0, 5])).unwrap();
    let ids = || bridge.group_descs(GroupId(1))[0].spec.buckets.iter().map(|b| b.id).collect::<Vec<_>>();
    let change = |command, ids: &[u32], at| GroupMod { command_bucket: at, ..group(command, 1, ids) };
    bridge.group_mod(&change(GroupCommand::InsertBucket, &[7], 0)).unwrap();
    assert_eq!(ids(), [0, 7, 5]);
    bridge.group_mod(&change(GroupCommand::InsertBucket, &[8], bucket_id::FIRST)).unwrap();
    assert_eq!(ids(), [8, 0, 7, 5]);
    let twice = change(GroupCommand::InsertBucket, &[7], bucket_id::LAST);
    assert_eq!(bridge.group_mod(&twice), Err(OfError::OFPGMFC_BUCKET_EXISTS));
    bridge.group_mod(&change(GroupCommand::RemoveBucket, &[], 7)).unwrap();
    bridge.group_mod(&change(GroupCommand::RemoveBucket, &[], bucket_id::LAST)).unwrap();
    assert_eq!(ids(), [8, 0]);
    let unknown = change(GroupCommand::RemoveBucket, &[], 99);
    assert_eq!(bridge.group_mod(&unknown), Err(OfError::OFPGMFC_UNKNOWN_BUCKET));
}

#[test]
fn a_group_that_grew_bucket_by_bucket_took_ever_more_time_and_memory() {
    let (bridge, most) = (bridge(), (1 << 20) / 24);
    bridge.group_mod(&group(GroupCommand::Add, 1, &[])).unwrap();
    let insert =
        |ids: &[u32]| GroupMod { command_bucket: bucket_id::LAST, ..group(GroupCommand::InsertBucket, 1, ids) };
    let ids: Vec<u32> = (0..most - 2).collect();
    bridge.group_mod(&insert(&ids)).unwrap();
    assert_eq!(bridge.group_mod(&insert(&[most, most + 1, most + 2])), Err(OfError::OFPGMFC_OUT_OF_BUCKETS));
    bridge.group_mod(&insert(&[most])).unwrap();
    let reply = MultipartReply::GroupDesc(bridge.group_descs(GroupId(1)));
    let message = Message::new(Version::V1_5, 0, Body::MultipartReply { more: false, reply });
    // It is described as far as one entry has room.
    let encoded = encode_all(&message, DecodeOptions::default()).unwrap();
    assert_eq!((encoded.left_out, encoded.messages.len()), (0, 1));
    assert!((60_000..1 << 16).contains(&encoded.messages[0].len()));
    let reply = MultipartReply::Group(bridge.group_stats(GroupId(1)));
    let message = Message::new(Version::V1_5, 0, Body::MultipartReply { more: false, reply });
    assert_eq!(encode_all(&message, DecodeOptions::default()).unwrap().left_out, 0);
    // A bundle keeps what the group was before it, and no more.
    let before = Arc::downgrade(&bridge.read(|state| state.groups[&GroupId(1)].clone()).unwrap());
    let remove = GroupMod { command_bucket: bucket_id::LAST, ..group(GroupCommand::RemoveBucket, 1, &[]) };
    let mut changes = bridge.switch.forwarding.write();
    let state = changes.bridges.values_mut().next().unwrap();
    let mut transaction = Transaction::new(state, 9, Time(2));
    super::groups::apply(&mut transaction, &remove).unwrap();
    let between = Arc::downgrade(&transaction.bridge.groups[&GroupId(1)]);
    super::groups::apply(&mut transaction, &remove).unwrap();
    assert_eq!((before.strong_count(), between.strong_count()), (1, 0));
    transaction.rollback();
    assert!(Arc::ptr_eq(&before.upgrade().unwrap(), &state.groups[&GroupId(1)]));
}

#[test]
fn meters_go_with_the_flows_that_use_them() {
    let bridge = bridge();
    let meter = |command, id| MeterMod {
        command,
        config: MeterConfig { meter: id, flags: MeterFlags::KBPS, bands: Vec::new() },
    };
    let mut metered = add(1, output(1));
    metered.instructions.meter = Some(3);
    assert_eq!(bridge.flow_mod(&metered), Err(OfError::OFPMMFC_INVALID_METER));
    bridge.meter_mod(&meter(MeterCommand::Add, 3)).unwrap();
    assert_eq!(bridge.meter_mod(&meter(MeterCommand::Add, 3)), Err(OfError::OFPMMFC_METER_EXISTS));
    bridge.flow_mod(&metered).unwrap();
    assert_eq!(bridge.meter_stats(3).unwrap()[0].flow_count, 1);
    bridge.meter_mod(&meter(MeterCommand::Delete, 3)).unwrap();
    assert!(ports(&bridge).is_empty());
    assert_eq!(bridge.meter_stats(3), Err(OfError::OFPMMFC_UNKNOWN_METER));
}

#[test]
fn learn_copies_what_there_is_and_makes_flows_that_can_be() {
    let bridge = bridge();
    let inconsistent = OfError::OFPBAC_MATCH_INCONSISTENT;
    for (flow, expected) in [
        ("actions=learn(NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:5->NXM_NX_REG0[])", Ok(())),
        ("udp,actions=learn(eth_type=0x800,nw_proto=17,NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[])", Ok(())),
        ("ip,actions=learn(eth_type=0x800,nw_proto=17,NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[])", Err(inconsistent)),
        ("udp,actions=learn(eth_type=0x800,NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[])", Err(inconsistent)),
        ("udp,actions=learn(nw_proto=17,eth_type=0x800,NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[])", Err(inconsistent)),
        // A value that is copied may be any.
        ("ip,actions=learn(NXM_OF_ETH_TYPE[],NXM_OF_IP_SRC[])", Err(inconsistent)),
        ("ip,actions=learn(NXM_OF_IP_SRC[])", Err(inconsistent)),
        ("ip,actions=learn(load:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[])", Err(inconsistent)),
        ("ip,actions=learn(eth_type=0x800,load:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[])", Ok(())),
        ("ip,actions=learn(eth_type=0x800,NXM_NX_CT_STATE[0]=1,NXM_NX_CT_NW_SRC[])", Err(inconsistent)),
        ("ip,ct_state=+trk+new,actions=learn(eth_type=0x800,NXM_NX_CT_NW_SRC[])", Err(inconsistent)),
        ("ip,ct_state=+trk+new,actions=learn(eth_type=0x800,ct_state=0x21,NXM_NX_CT_NW_SRC[])", Ok(())),
        ("ip,ct_state=+trk+new,actions=learn(eth_type=0x800,NXM_NX_CT_STATE[4..5]=2,NXM_NX_CT_NW_SRC[])", Ok(())),
    ] {
        let change = parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap();
        assert_eq!(bridge.flow_mod(&change), expected, "{flow}");
    }
    let mut change =
        parse_flow_mod(FlowModCommand::Add, "actions=learn(load:5->NXM_NX_REG0[0..15])", &NoNames).unwrap();
    let [Action::Learn(learn)] = &mut change.instructions.apply[..] else { panic!("{change:?}") };
    learn.specs[0].dst = LearnDst::Load(Subfield::whole(Field::CtZone));
    assert_eq!(bridge.flow_mod(&change), Err(OfError::OFPBAC_BAD_SET_ARGUMENT), "a field that is only read");
}

#[test]
fn what_was_learnt_goes_with_the_last_flow_that_learns_it() {
    let bridge = bridge();
    let learn = |cookie| {
        vec![Action::Learn(Box::new(Learn {
            idle_timeout: 0,
            hard_timeout: 0,
            priority: 1,
            cookie: Cookie(cookie),
            flags: FlowModFlags::empty(),
            delete_learned: true,
            table: TableId(0),
            fin_idle_timeout: 0,
            fin_hard_timeout: 0,
            limit: 0,
            result_dst: None,
            specs: Vec::new(),
        }))]
    };
    bridge.flow_mod(&add(1, learn(7))).unwrap();
    bridge.flow_mod(&add(2, learn(7))).unwrap();
    bridge.flow_mod(&FlowMod { new_cookie: Some(Cookie(7)), ..add(10, vec![]) }).unwrap();
    bridge.flow_mod(&flow(FlowModCommand::Delete, 1, vec![])).unwrap();
    assert_eq!(ports(&bridge), [2, 10]);
    bridge.flow_mod(&flow(FlowModCommand::Modify, 2, learn(8))).unwrap();
    assert_eq!(ports(&bridge), [2]);
    // In a bundle, before one comes that learns the same; what the bundle adds itself stays.
    let learnt = |port| FlowMod { new_cookie: Some(Cookie(8)), ..add(port, vec![]) };
    bridge.flow_mod(&learnt(10)).unwrap();
    let delete = |port| flow(FlowModCommand::Delete, port, vec![]);
    let bundle = [delete(2), add(3, learn(8)), learnt(11)];
    bridge.commit(&bundle, |change| Ok(Bundled::Flow(Box::new(change.clone())))).unwrap();
    assert_eq!(ports(&bridge), [3, 11]);
    // Where it fails, all is as it was.
    let bundle = [delete(3), flow(FlowModCommand::Add, 4, vec![Action::Group(GroupId(9))])];
    bridge.commit(&bundle, |change| Ok(Bundled::Flow(Box::new(change.clone())))).unwrap_err();
    assert_eq!(ports(&bridge), [3, 11]);
}

/// Looks, when the tables are not locked any more, whether what went is still there.
struct Last {
    bridge: Bridge,
    rule: Weak<Rule>,
    group: Weak<Group>,
    seen: Mutex<Vec<(bool, bool)>>,
}

impl FlowWatcher for Last {
    fn note(&self, _: &FlowChanges<'_>) {}

    fn settle(&self) {
        assert!(self.bridge.switch.forwarding.try_write().is_some());
        self.seen.lock().push((self.rule.strong_count() > 0, self.group.strong_count() > 0));
    }
}

#[test]
fn packets_waited_while_what_was_removed_was_freed() {
    let bridge = bridge();
    let watch = || {
        bridge.flow_mod(&add(1, vec![])).unwrap();
        bridge.group_mod(&group(GroupCommand::Add, 1, &[0])).unwrap();
        let mut forwarding = bridge.switch.forwarding.write();
        let state = forwarding.bridges.get_mut(&bridge.id).unwrap();
        let rule = state.tables[0].rules.iter().next().map(Arc::downgrade).unwrap();
        let group = state.groups.values().next().map(Arc::downgrade).unwrap();
        let last = Arc::new(Last { bridge: bridge.clone(), rule, group, seen: Mutex::default() });
        state.watchers = vec![(SubscriptionId(7), last.clone())];
        last
    };
    let last = watch();
    bridge.flow_mod(&flow(FlowModCommand::Delete, 1, vec![])).unwrap();
    assert_eq!((last.seen.lock().as_slice(), last.rule.strong_count()), (&[(true, true)][..], 0));
    bridge.group_mod(&group(GroupCommand::Delete, 1, &[])).unwrap();
    let last = watch();
    bridge.flush_flows();
    let left = (last.rule.strong_count(), last.group.strong_count());
    assert_eq!((last.seen.lock().as_slice(), left), (&[(true, true)][..], (0, 0)));
}

#[test]
fn flows_of_all_tables_are_counted() {
    let bridge = bridge();
    let before = bridge.flow_count();
    for (table, port) in [(0, 1), (0, 2), (7, 1), (253, 1)] {
        bridge.flow_mod(&FlowMod { table: Some(TableId(table)), ..add(port, vec![]) }).unwrap();
    }
    assert_eq!(bridge.flow_count(), before + 4);
    bridge.flush_flows();
    assert_eq!(bridge.flow_count(), before);
}

#[test]
fn the_operators_name_of_a_table_wins() {
    let bridge = bridge();
    let name = || bridge.table_stats()[0].name.clone();
    assert_eq!(name(), "");
    bridge.name_tables(&[(TableId(0), "controllers".into())]).unwrap();
    assert_eq!(name(), "controllers");
    limit(&bridge, TableSettings { name: Some("mine".into()), ..TableSettings::default() });
    assert_eq!(name(), "mine");
    let renamed = bridge.name_tables(&[(TableId(0), "controllers".into())]);
    assert_eq!(renamed, Err(OfError::OFPTFFC_EPERM));
    bridge.name_tables(&[(TableId(0), "mine".into())]).unwrap();
    limit(&bridge, TableSettings::default());
    assert_eq!(name(), "controllers", "what the operator called it goes with the operator's settings");
}

#[test]
fn a_change_of_one_group_copies_no_other() {
    let bridge = bridge();
    (1..=50).for_each(|id| bridge.group_mod(&group(GroupCommand::Add, id, &[0])).unwrap());
    let references = |state: &BridgeState| state.groups.values().map(Arc::strong_count).sum::<usize>();
    let changed: Result<(), ()> = bridge.switch.transact(bridge.id, |transaction| {
        super::groups::apply(transaction, &group(GroupCommand::Add, 51, &[0])).unwrap();
        assert_eq!(references(transaction.bridge), 51, "each is held by the table alone");
        Ok(())
    });
    changed.unwrap();
}

/// Compares what the index of users says with a look through the tables.
fn check_users(bridge: &Bridge) {
    bridge.read(|state| {
        let rules: Vec<_> = state.tables.iter().flat_map(|table| table.rules.iter()).collect();
        for id in (0..8).map(GroupId) {
            let uses = |i: &Instructions| uses_group(&i.apply, id) || uses_group(&i.write, id);
            let by_rules = rules.iter().filter(|rule| uses(&rule.instructions)).count() as u32;
            let by_groups = state
                .groups
                .values()
                .filter(|group| group.spec.buckets.iter().any(|bucket| uses_group(&bucket.actions, id)));
            assert_eq!(state.users.rule_count(Used::Group(id)), by_rules, "flows of group {}", id.0);
            assert_eq!(state.users.count(Used::Group(id)), by_rules + by_groups.count() as u32, "of group {}", id.0);
            for rule in state.users.rules(Used::Group(id)) {
                assert!(rules.iter().any(|other| Arc::ptr_eq(other, rule)), "a flow that is gone is still listed");
            }
        }
    });
}

#[test]
fn the_users_of_groups_are_known_without_a_look_through_the_tables() {
    let bridge = bridge();
    let to = |ids: &[u32]| ids.iter().map(|&id| Action::Group(GroupId(id))).collect::<Vec<_>>();
    for id in 1..6 {
        bridge.group_mod(&group(GroupCommand::Add, id, &[0])).unwrap();
    }
    // A group that sends to two others, to one of them twice.
    let mut chain = group(GroupCommand::Add, 6, &[0, 1]);
    (chain.spec.buckets[0].actions, chain.spec.buckets[1].actions) = (to(&[1]), to(&[1, 2]));
    bridge.group_mod(&chain).unwrap();
    bridge.flow_mod(&add(1, to(&[1, 1, 2]))).unwrap();
    bridge.flow_mod(&add(2, vec![Action::Clone(to(&[3]))])).unwrap();
    let mut written = add(3, to(&[4]));
    std::mem::swap(&mut written.instructions.apply, &mut written.instructions.write);
    bridge.flow_mod(&written).unwrap();
    check_users(&bridge);
    assert_eq!(bridge.group_stats(GroupId(1))[0].ref_count, 2);
    // In place of another; by a modification.
    bridge.flow_mod(&add(1, to(&[2]))).unwrap();
    bridge.flow_mod(&flow(FlowModCommand::Modify, 2, to(&[5]))).unwrap();
    check_users(&bridge);
    // A bundle that fails after it has changed all of it.
    let bundle = [
        Bundled::Group(Box::new(group(GroupCommand::Delete, GroupId::ALL.0, &[]))),
        Bundled::Group(Box::new(group(GroupCommand::Add, 7, &[0]))),
        Bundled::Flow(Box::new(add(7, to(&[7])))),
        Bundled::Group(Box::new(group(GroupCommand::Add, 7, &[0]))),
    ];
    assert_eq!(commit(&bridge, &bundle), Err((3, OfError::OFPGMFC_GROUP_EXISTS)));
    assert_eq!(ports(&bridge), [1, 2, 3]);
    check_users(&bridge);
    bridge.group_mod(&group(GroupCommand::Delete, 2, &[])).unwrap();
    assert_eq!(ports(&bridge), [2, 3]);
    check_users(&bridge);
    bridge.group_mod(&group(GroupCommand::Delete, GroupId::ALL.0, &[])).unwrap();
    assert!(ports(&bridge).is_empty());
    check_users(&bridge);
    bridge.flow_mod(&add(1, output(1))).unwrap();
    bridge.flush_flows();
    check_users(&bridge);
}
