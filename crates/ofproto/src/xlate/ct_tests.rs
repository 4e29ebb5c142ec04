//! Translations with connection tracking, and what becomes of connections' packets.

use openflow::text::{parse_flow_mod, parse_match};
use openflow::{FlowModCommand, GroupId, OfError, OfPort};
use packet::flow::text::NoNames;
use packet::wire::build;
use packet::{Clock, Key};

use crate::reference::tests::Bed;
use crate::switch::Traced;
use crate::trace::steps::Collector;

const INSIDE: [u8; 4] = [10, 0, 0, 1];
const OUTSIDE: [u8; 4] = [192, 0, 2, 9];
const PUBLIC: [u8; 4] = [203, 0, 113, 7];

fn add(bed: &Bed, flow: &str) -> Result<(), OfError> {
    bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap())
}

fn bed(flows: &[&str]) -> Bed {
    let bed = Bed::new(4);
    for flow in flows {
        add(&bed, flow).unwrap_or_else(|error| panic!("{flow}: {error:?}"));
    }
    bed
}

fn key(flow: &str) -> Key {
    Key::clone(&parse_match(flow, &NoNames).unwrap().key)
}

/// A translation.
struct Translated {
    megaflow: String,
    /// With recirculation ids numbered by their first appearance.
    actions: String,
    /// The recirculation ids.
    ids: Vec<u32>,
    /// Keeps them.
    _holds: Vec<std::sync::Arc<dyn std::any::Any + Send + Sync>>,
}

fn translate_key(bed: &Bed, key: &Key) -> Translated {
    let mut sink = Collector::new(&NoNames);
    let out = bed.switch.trace(&Traced { bridge: "br0", key, actions: None, shadow: None }, &mut sink).unwrap();
    let mut text = String::new();
    datapath::text::format_actions(&mut text, &out.actions, key, &Default::default());
    let (mut ids, mut shown) = (Vec::new(), String::new());
    let mut parts = text.split("recirc(");
    shown.push_str(parts.next().unwrap());
    for part in parts {
        let (id, rest) = part.split_once(')').unwrap();
        let id = u32::from_str_radix(id.trim_start_matches("0x"), 16).unwrap();
        let n = ids.iter().position(|known| *known == id).unwrap_or(ids.len());
        if n == ids.len() {
            ids.push(id);
        }
        shown += &format!("recirc(#{n}){rest}");
    }
    let megaflow = crate::trace::flow::describe_megaflow(key, &out.mask, out.looked_at_vlan, &out.tlv, &NoNames);
    Translated { megaflow, actions: shown, ids, _holds: out.holds }
}

fn actions(bed: &Bed, flow: &str) -> String {
    translate_key(bed, &key(flow)).actions
}

/// What a packet does first, and when it comes back with this metadata.
fn both(bed: &Bed, flow: &str, metadata: &str) -> [String; 2] {
    let first = translate_key(bed, &key(flow));
    let mut again = key(&format!("{flow},{metadata}"));
    again.common_mut().recirc_id = first.ids[0].into();
    let second = translate_key(bed, &again).actions;
    [first.actions, second]
}

fn udp(src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> Vec<u8> {
    let header = build::Ipv4 { src: src.into(), dst: dst.into(), proto: 17, ..Default::default() };
    let packet = header.packet(build::udp(sport, dport, b"question"));
    build::ethernet([2; 6], [4; 6], &[], 0x0800, &packet)
}

#[test]
fn every_argument_becomes_one_of_the_datapath() {
    let cases = [
        ("ct()", "ct"),
        ("ct(commit)", "ct(commit)"),
        ("ct(commit,force,zone=5)", "ct(force_commit,zone=5)"),
        ("load:0x50007->NXM_NX_REG0[],ct(zone=NXM_NX_REG0[16..31])", "ct(zone=5)"),
        ("ct(zone=NXM_OF_TCP_SRC[])", "ct(zone=80)"),
        ("ct(commit,exec(set_field:5->ct_mark))", "ct(commit,mark=0x5/0xffffffff)"),
        ("ct(commit,exec(load:5->NXM_NX_CT_MARK[4..7]))", "ct(commit,mark=0x50/0xf0)"),
        ("ct(commit,exec(set_field:0x1/0x3->ct_mark,set_field:0x8/0xc->ct_mark))", "ct(commit,mark=0x9/0xf)"),
        ("ct(commit,exec(set_field:1->ct_label))", "ct(commit,label=0x1)"),
        ("ct(commit,exec(set_field:0x10/0xf0->ct_label))", "ct(commit,label=0x10/0xf0)"),
        (
            "load:7->NXM_NX_REG1[],ct(commit,exec(move:NXM_NX_REG1[]->NXM_NX_CT_LABEL[96..127]))",
            "ct(commit,label=0x7000000000000000000000000/0xffffffff000000000000000000000000)",
        ),
        ("ct(commit,alg=ftp)", "ct(commit,helper=ftp)"),
        ("ct(nat)", "ct(nat)"),
        ("ct(commit,nat(src))", "ct(commit,nat(src))"),
        ("ct(commit,nat(src=0.0.0.0))", "ct(commit,nat(src))"),
        ("ct(commit,nat(dst=1.2.3.4))", "ct(commit,nat(dst=1.2.3.4))"),
        (
            "ct(commit,nat(src=1.2.3.4-1.2.3.9:100-200,random,persistent))",
            "ct(commit,nat(src=1.2.3.4-1.2.3.9:100-200,persistent,random))",
        ),
        ("ct(commit,nat(src=1.2.3.4:100,hash))", "ct(commit,nat(src=1.2.3.4:100,hash))"),
        ("mod_tp_dst:9,ct(commit)", "set(tcp(dst=9)),ct(commit)"),
        ("ct_clear", "drop"),
    ];
    for (action, expected) in cases {
        let bed = bed(&[&format!("tcp,actions={action}")]);
        assert_eq!(actions(&bed, "in_port=1,tcp,tp_src=80,tp_dst=7"), expected, "{action}");
    }
    let bed =
        bed(&["tcp6,actions=ct(commit,nat(dst=[2001:db8::1]-[2001:db8::9]:80))", "udp,actions=ct(commit,alg=tftp)"]);
    assert_eq!(actions(&bed, "in_port=1,tcp6"), "ct(commit,nat(dst=[2001:db8::1]-[2001:db8::9]:80))");
    assert_eq!(actions(&bed, "in_port=1,udp"), "ct(commit,helper=tftp)");
}

#[test]
fn what_names_the_zone_and_fills_mark_and_label_is_matched() {
    let bed = bed(&[
        "tcp,actions=ct(commit,zone=NXM_OF_TCP_SRC[])",
        "udp,actions=ct(commit,exec(move:NXM_OF_UDP_DST[0..7]->NXM_NX_CT_MARK[0..7],set_field:1->ct_label))",
    ]);
    let megaflow = |flow| translate_key(&bed, &key(flow)).megaflow;
    assert_eq!(megaflow("in_port=1,tcp,tp_src=80"), "recirc_id=0,eth,tcp,in_port=1,nw_frag=no,tp_src=80");
    assert_eq!(megaflow("in_port=1,udp,tp_dst=0x305"), "recirc_id=0,eth,udp,in_port=1,nw_frag=no,tp_dst=0x5/0xff");
    assert_eq!(actions(&bed, "in_port=1,udp,tp_dst=0x305"), "ct(commit,mark=0x5/0xff,label=0x1)");
}

#[test]
fn the_pipeline_goes_on_untracked_and_the_recirculated_packet_sees_its_connection() {
    let bed = bed(&[
        "ip,actions=load:9->NXM_NX_REG3[],ct(table=1,zone=3),load:1->NXM_NX_REG4[],resubmit(,2),output:2",
        "table=1,ct_state=+trk+new,reg3=9,reg4=0,ip,actions=ct(commit,zone=3),output:3",
        "table=1,ct_state=+trk+est,ct_zone=3,ct_mark=7,ip,actions=ct_clear,resubmit(,2)",
        "table=2,priority=2,ct_state=-trk,ct_mark=0,actions=output:4",
        "table=2,priority=1,actions=output:3",
    ]);
    let [first, new] = both(&bed, "in_port=1,tcp", "ct_state=new|trk,ct_zone=3");
    assert_eq!([first.as_str(), &new], ["ct(zone=3),recirc(#0),4,2", "ct(commit,zone=3),3"]);
    let [_, est] = both(&bed, "in_port=1,tcp", "ct_state=est|trk,ct_zone=3,ct_mark=7");
    assert_eq!(est, "ct_clear,4");
    let [_, other] = both(&bed, "in_port=1,tcp", "ct_state=est|trk,ct_zone=3,ct_mark=8");
    assert_eq!(other, "drop");
}

#[test]
fn the_state_is_matched_only_as_far_as_it_is_looked_at() {
    let bed = bed(&[
        "ip,actions=ct(table=1)",
        "table=1,priority=2,ct_state=+trk+est,ip,actions=output:2",
        "table=1,priority=1,ct_state=+trk+new,tcp,ct_nw_src=10.0.0.0/8,ct_tp_dst=80,actions=output:3",
    ]);
    let first = translate_key(&bed, &key("in_port=1,tcp"));
    let megaflow = |flow: &str| {
        let mut key = key(flow);
        key.common_mut().recirc_id = first.ids[0].into();
        translate_key(&bed, &key).megaflow.split_once(',').unwrap().1.to_owned()
    };
    assert_eq!(megaflow("in_port=1,tcp,ct_state=est|trk,ct_mark=9"), "ct_state=+est+trk,eth,ip,in_port=1,nw_frag=no");
    let new =
        "in_port=1,tcp,ct_state=new|trk,ct_nw_src=10.1.2.3,ct_nw_dst=10.0.0.2,ct_nw_proto=6,ct_tp_src=5,ct_tp_dst=80";
    let expected = "ct_state=+new-est+trk,ct_nw_src=10.0.0.0/8,ct_tp_dst=80,eth,tcp,in_port=1,nw_frag=no";
    assert_eq!(megaflow(new), expected);
}

#[test]
fn ct_clear_is_for_tracked_packets_only() {
    let bed =
        bed(&["ip,actions=ct_clear,ct(commit),ct_clear,ct(table=1)", "table=1,ip,actions=ct_clear,ct_clear,output:2"]);
    let [first, second] = both(&bed, "in_port=1,udp", "ct_state=new|trk");
    assert_eq!([first.as_str(), &second], ["ct(commit),ct,recirc(#0)", "ct_clear,2"]);
}

#[test]
fn a_packet_that_comes_back_from_elsewhere_is_untracked() {
    let bed = bed(&[
        "ip,actions=ct(commit),debug_recirc,resubmit(,1)",
        "table=1,ct_state=-trk,actions=ct_clear,output:2",
        "table=1,ct_state=+trk,actions=output:3",
    ]);
    let [_, second] = both(&bed, "in_port=1,udp", "ct_state=new|trk");
    assert_eq!(second, "2");
}

#[test]
fn what_tracks_a_copy_leaves_the_packet_alone() {
    let bed = bed(&[
        "in_port=1,ip,actions=mod_nw_tos:4,clone(ct(commit,nat(src=1.1.1.1)),output:2),output:3",
        "in_port=2,ip,actions=clone(mod_nw_tos:4,output:1),output:3",
        "in_port=3,ip,actions=clone(resubmit(,1)),output:4",
        "in_port=4,ip,actions=clone(output:1,clone(ct(table=9)))",
        "table=1,ip,actions=mod_nw_tos:8,ct(commit),output:2",
    ]);
    let tos = |value| format!("set(ipv4(tos={value}/0xfc))");
    assert_eq!(actions(&bed, "in_port=1,udp"), format!("{},clone(ct(commit,nat(src=1.1.1.1)),2),3", tos("0x4")),);
    assert_eq!(actions(&bed, "in_port=2,udp"), format!("{},1,{},3", tos("0x4"), tos("0")));
    assert_eq!(actions(&bed, "in_port=3,udp"), format!("clone({},ct(commit),2),4", tos("0x8")));
    assert_eq!(actions(&bed, "in_port=4,udp"), "1,ct,recirc(#0)");
}

/// OVN floods to copies, one of which may go to a controller that resumes it.
#[test]
fn an_exit_or_a_pause_in_a_copy_is_the_end_of_all() {
    let bed = bed(&[
        "in_port=1,actions=clone(output:2,exit),output:3",
        "in_port=2,ip,actions=resubmit(,1),output:3",
        "table=1,in_port=2,actions=clone(mod_nw_tos:4,output:1,clone(resubmit(,2)),output:3),output:4",
        "table=2,actions=exit",
        "in_port=3,actions=clone(controller(pause)),output:4",
        // What comes round again goes on by itself.
        "in_port=4,ip,actions=clone(debug_recirc,output:2,exit),output:3",
    ]);
    assert_eq!(actions(&bed, "in_port=1,udp"), "2");
    assert_eq!(actions(&bed, "in_port=2,udp"), "set(ipv4(tos=0x4/0xfc)),1");
    let paused = actions(&bed, "in_port=3,udp");
    assert!(
        paused.starts_with("userspace(pid=0,controller(reason=1,dont_send=0,continuation=1") && paused.ends_with("))"),
        "{paused}"
    );
    assert_eq!(actions(&bed, "in_port=4,udp"), "recirc(#0),3");
}

#[test]
fn a_look_up_by_the_original_tuple() {
    let bed = bed(&[
        "ip,actions=ct(table=1,nat)",
        "table=1,ip,actions=resubmit(,2,ct),resubmit(,3)",
        "table=2,tcp,nw_src=10.0.0.0/24,nw_dst=1.2.3.4,tp_dst=80,actions=output:2",
        "table=3,tcp,nw_src=192.0.2.0/24,actions=output:3",
    ]);
    let first = translate_key(&bed, &key("in_port=1,tcp"));
    let tuple = "ct_nw_src=10.0.0.7,ct_nw_dst=1.2.3.4,ct_nw_proto=6,ct_tp_src=1000,ct_tp_dst=80";
    let mut key = key(&format!("in_port=1,tcp,nw_src=192.0.2.1,tp_dst=81,ct_state=est|trk,{tuple}"));
    key.common_mut().recirc_id = first.ids[0].into();
    let Translated { megaflow, actions, .. } = translate_key(&bed, &key);
    assert_eq!(actions, "2,3");
    assert!(megaflow.contains("ct_nw_src=10.0.0.0/24,ct_nw_dst=1.2.3.4,ct_nw_proto=6,ct_tp_dst=80"), "{megaflow}");
    assert!(megaflow.contains("nw_src=192.0.2.0/24") && !megaflow.contains(",tp_dst"), "{megaflow}");
    // A packet that is not of a connection has none.
    key.ct_mut().ct_nw_proto = 0;
    assert_eq!(translate_key(&bed, &key).actions, "3");
}

#[test]
fn a_group_tracks_and_an_action_set_does() {
    let bed = bed(&[]);
    bed.put_group(1, &{
        use openflow::group::{Bucket, GroupSpec, GroupType, Selection};
        let bucket = |text: &str| {
            let actions = openflow::text::parse_actions(text, &NoNames).unwrap();
            Bucket { id: 0, weight: 0, watch_port: OfPort::ANY, watch_group: GroupId::ANY, actions }
        };
        GroupSpec {
            kind: GroupType::All,
            buckets: vec![bucket("ct(commit,nat(dst=1.1.1.1),table=3)"), bucket("mod_nw_tos:4,output:2")],
            selection: Selection::default(),
        }
    });
    add(&bed, "in_port=1,ip,actions=group:1").unwrap();
    add(&bed, "in_port=2,ip,actions=write_actions(mod_nw_tos:4,ct(commit,zone=4))").unwrap();
    add(&bed, "in_port=3,ip,actions=write_actions(ct(commit,zone=4),output:2)").unwrap();
    assert_eq!(
        actions(&bed, "in_port=1,udp"),
        "clone(ct(commit,nat(dst=1.1.1.1)),recirc(#0)),set(ipv4(tos=0x4/0xfc)),2"
    );
    assert_eq!(actions(&bed, "in_port=2,udp"), "set(ipv4(tos=0x4/0xfc)),ct(commit,zone=4)");
    assert_eq!(actions(&bed, "in_port=3,udp"), "2", "an output comes before ct");
}

#[test]
fn what_cannot_be_tracked_is_refused() {
    use OfError::*;
    let bed = bed(&[]);
    for (flow, error) in [
        ("actions=ct()", OFPBAC_MATCH_INCONSISTENT),
        ("arp,actions=ct(commit)", OFPBAC_MATCH_INCONSISTENT),
        ("ip,ct_state=+trk+inv,actions=ct(commit)", OFPBAC_MATCH_INCONSISTENT),
        ("udp,actions=ct(commit,alg=ftp)", OFPBAC_MATCH_INCONSISTENT),
        ("tcp,actions=ct(commit,alg=tftp)", OFPBAC_MATCH_INCONSISTENT),
        ("ip,actions=ct(zone=NXM_OF_TCP_SRC[])", OFPBAC_MATCH_INCONSISTENT),
        ("ip,actions=ct(commit,nat(src=fe80::1))", OFPBAC_MATCH_INCONSISTENT),
        ("ipv6,actions=ct(commit,nat(src=1.2.3.4))", OFPBAC_MATCH_INCONSISTENT),
        ("ip,actions=ct(commit,exec(move:NXM_OF_TCP_SRC[]->NXM_NX_CT_MARK[0..15]))", OFPBAC_MATCH_INCONSISTENT),
    ] {
        assert_eq!(add(&bed, flow), Err(error), "{flow}");
    }
    for flow in
        ["ip,ct_state=+trk+inv,actions=ct()", "ipv6,actions=ct(commit,nat(src=fe80::1))", "ip,actions=clone(ct())"]
    {
        assert_eq!(add(&bed, flow), Ok(()), "{flow}");
    }
}

#[test]
fn a_firewall_with_nat_passes_packets_of_its_connections() {
    let bed = bed(&[
        "in_port=1,ip,actions=ct(table=1,zone=1,nat)",
        "in_port=2,ip,actions=ct(table=2,zone=1,nat)",
        "table=1,ct_state=+trk+new,ip,actions=ct(commit,zone=1,nat(src=203.0.113.7),exec(set_field:7->ct_mark)),output:2",
        "table=1,ct_state=+trk+est,ct_mark=7,ip,actions=output:2",
        "table=2,ct_state=+trk+est+rpl+dnat,ct_mark=7,ct_nw_src=10.0.0.1,ip,actions=output:1",
        "table=2,ct_state=+trk+new,ip,actions=output:4",
    ]);
    let answer = udp(OUTSIDE, PUBLIC, 53, 1000);
    assert_eq!(bed.receive(OfPort(2), &answer), [(OfPort(4), answer.clone())], "nobody has asked");
    for _ in 0..3 {
        let asked = bed.receive(OfPort(1), &udp(INSIDE, OUTSIDE, 1000, 53));
        assert_eq!(asked, [(OfPort(2), udp(PUBLIC, OUTSIDE, 1000, 53))]);
        assert_eq!(bed.receive(OfPort(2), &answer), [(OfPort(1), udp(OUTSIDE, INSIDE, 53, 1000))]);
    }
}

#[test]
fn a_new_connection_gets_the_timeout_policy_of_its_zone() {
    let bed = bed(&["udp,actions=ct(commit,zone=5),2", "tcp,actions=ct(commit,zone=6)", "icmp,actions=ct(zone=5)"]);
    let of_datapath = || {
        bed.switch.run(bed.clock.now());
        let mut text = String::new();
        let flow = bed.datapath.flows().next().unwrap();
        datapath::text::format_actions(&mut text, &flow.actions, &flow.key, &Default::default());
        text
    };
    bed.receive(OfPort(1), &udp(INSIDE, OUTSIDE, 1000, 53));
    assert!(of_datapath().starts_with("ct(commit,zone=5),"));
    bed.switch.set_ct_policies([(5, 3)].into());
    assert!(of_datapath().starts_with("ct(commit,zone=5,timeout=3),"), "{}", of_datapath());
    assert_eq!(actions(&bed, "in_port=1,tcp"), "ct(commit,zone=6)");
    assert_eq!(actions(&bed, "in_port=1,icmp"), "ct(zone=5)", "no connection is made");
    bed.switch.set_ct_policies(Default::default());
    assert!(of_datapath().starts_with("ct(commit,zone=5),"));
}

#[test]
fn copies_inside_each_other_are_bounded() {
    // Each table tracks a copy, in which the next table comes.
    let chain = |tables: u8, after: &str| {
        let bed = bed(&[]);
        for table in 0..tables {
            let next = table + 1;
            add(&bed, &format!("table={table},ip,actions=clone(ct(commit),resubmit(,{next}),{after}),output:2"))
                .unwrap();
        }
        let traced = translate_key(&bed, &key("in_port=1,udp"));
        (traced.actions, bed.receive(OfPort(1), &udp(INSIDE, OUTSIDE, 1, 2)).len())
    };
    assert_eq!(chain(2, "output:3"), ("clone(ct(commit),clone(ct(commit),3),2,3),2".into(), 4));
    let (actions, sent) = chain(32, "output:3");
    assert!(actions.matches("clone(").count() == 32 && sent == 64, "{sent} {actions}");
    assert_eq!(chain(33, "output:3"), ("drop".into(), 0));
}

/// The packets that controllers get.
#[derive(Default)]
struct Recorder(parking_lot::Mutex<Vec<openflow::PacketIn>>);

impl crate::events::Subscriber for Recorder {
    fn packet_in(&self, event: &crate::events::PacketInEvent) {
        self.0.lock().push(event.packet_in.clone());
    }
    fn flow_removed(&self, _: &openflow::FlowRemoved) {}
    fn port_status(&self, _: &openflow::PortStatus, _: crate::events::Audience) {}
}

#[test]
fn controllers_get_what_is_known_of_the_connection_and_the_pipeline_goes_on_with_it() {
    let bed = bed(&[
        "ip,actions=controller,ct(commit,zone=3,exec(set_field:7->ct_mark),table=1)",
        "table=1,ip,actions=controller(pause),resubmit(,2),ct_clear,controller",
        "table=2,ip,ct_mark=7,ct_zone=3,actions=output:2",
    ]);
    let recorder = std::sync::Arc::new(Recorder::default());
    bed.bridge.subscribe(recorder.clone());
    let frame = udp(INSIDE, OUTSIDE, 1000, 53);
    for round in 1..3 {
        assert_eq!(bed.receive(OfPort(1), &frame), []);
        let packets = std::mem::take(&mut *recorder.0.lock());
        let text = |packet: &openflow::PacketIn| {
            let mut text = String::new();
            openflow::text::format_match(&mut text, &packet.metadata, 32768, &NoNames);
            text
        };
        let tracked = "ct_state=new|trk,ct_zone=3,ct_mark=0x7,ct_nw_src=10.0.0.1,ct_nw_dst=192.0.2.9,ct_nw_proto=17,\
                       ct_tp_src=1000,ct_tp_dst=53,ip,in_port=1";
        assert_eq!(packets.iter().map(text).collect::<Vec<_>>(), ["in_port=1", tracked], "round {round}");
        bed.bridge.resume(&packets[1]).unwrap();
        bed.poll();
        assert_eq!(bed.sent(), [(OfPort(2), frame.clone())]);
        let packets = std::mem::take(&mut *recorder.0.lock());
        assert_eq!(packets.iter().map(text).collect::<Vec<_>>(), ["in_port=1"], "cleared");
    }
}
