//! Explanations in OVS's layout. The expected texts are what OVS 3.1 prints for the same tables, with its
//! numbers of datapath ports put in.

use openflow::text::{parse_flow_mod, parse_match};
use openflow::{FlowModCommand, OfPort, TlvCommand, TlvMap, TlvTableMod};
use packet::Key;
use packet::flow::compose;
use packet::flow::text::NoNames;

use super::{Request, Trace, trace};
use crate::model::config::Controllers;
use crate::reference::tests::Bed;

fn bed(flows: &[&str]) -> Bed {
    let bed = Bed::new(3);
    for flow in flows {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
    bed
}

fn key(flow: &str) -> Key {
    Key::clone(&parse_match(flow, &NoNames).unwrap().key)
}

fn explain(bed: &Bed, flow: &str, generate: bool) -> Trace {
    let key = key(flow);
    let frame = compose(&key, b"");
    trace(&bed.switch, &Request { packet: generate.then_some(&frame), ..request(&key, &[]) }).unwrap()
}

fn request<'a>(key: &'a Key, ct_next: &'a [u32]) -> Request<'a> {
    Request { bridge: "br0", key, actions: None, packet: None, ct_next, ports: &NoNames, datapath_ports: &NoNames }
}

/// The lines between the bridge's heading and `Final flow`.
fn steps(trace: &Trace) -> String {
    let text = trace.text();
    let (_, rest) = text.split_once("bridge(\"br0\")\n-------------\n").unwrap();
    rest.split_once("\n\nFinal flow: ").unwrap().0.to_owned()
}

#[test]
fn a_flood_is_shown_whole() {
    let bed = bed(&["actions=NORMAL"]);
    let expected = "\
Flow: in_port=1,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=ff:ff:ff:ff:ff:ff,dl_type=0x0000

bridge(\"br0\")
-------------
 0. priority 32768
    NORMAL
     -> no learned MAC for destination, flooding

Final flow: unchanged
Megaflow: recirc_id=0,eth,in_port=1,dl_src=00:00:00:00:00:00,dl_dst=ff:ff:ff:ff:ff:ff,dl_type=0x0000
Datapath actions: ";
    let text = explain(&bed, "in_port=1,dl_dst=ff:ff:ff:ff:ff:ff", false).text();
    let actions = text.strip_prefix(expected).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(actions.split(',').count(), 2, "{actions}");
}

#[test]
fn output_and_drop() {
    let bed = bed(&[
        "priority=100,in_port=1,actions=output:2",
        "cookie=0x1f,in_port=2,actions=output:2,output:3",
        "in_port=3,ip,actions=drop",
    ]);
    let dp =
        |n: u32| bed.switch.forwarding.read().bridges.values().next().unwrap().ports[&OfPort(n)].dp_port.unwrap().0;
    let out = explain(&bed, "in_port=1", false);
    assert_eq!(steps(&out), " 0. in_port=1, priority 100\n    output:2");
    assert_eq!(out.megaflow, "recirc_id=0,eth,in_port=1,dl_type=0x0000");
    assert_eq!(out.datapath_actions, dp(2).to_string());
    let expected =
        " 0. in_port=2, priority 32768, cookie 0x1f\n    output:2\n     >> skipping output to input port\n    output:3";
    assert_eq!(steps(&explain(&bed, "in_port=2", false)), expected);
    let out = explain(&bed, "in_port=3,icmp,nw_src=10.0.0.1,icmp_type=8", false);
    assert_eq!(steps(&out), " 0. ip,in_port=3, priority 32768\n    drop");
    let flow = "icmp,in_port=3,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=10.0.0.1,\
                nw_dst=0.0.0.0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,icmp_type=8,icmp_code=0";
    assert_eq!((out.flow.as_str(), out.final_flow), (flow, None));
    assert_eq!(
        (out.megaflow.as_str(), out.datapath_actions.as_str()),
        ("recirc_id=0,eth,ip,in_port=3,nw_frag=no", "drop")
    );
    assert_eq!(steps(&explain(&bed, "in_port=3,arp", false)), " 0. No match.\n    drop");
    bed.bridge.set_controllers(Controllers { want_misses: true, ..Controllers::default() });
    let out = explain(&bed, "in_port=3,arp", false);
    let expected = " 0. No match, and a \"packet-in\" is called for.\n    controller(reason=no_match)";
    assert_eq!(steps(&out), expected);
    assert!(out.datapath_actions.starts_with("userspace(pid=0,controller(reason="), "{}", out.datapath_actions);
}

#[test]
fn the_last_table_stays_at_the_margin() {
    let bed = bed(&[
        "in_port=1,actions=resubmit(,1),output:3",
        "table=1,actions=write_actions(output:2),goto_table:5",
        "table=5,actions=load:7->NXM_NX_REG0[],move:NXM_NX_REG0[0..3]->NXM_NX_REG1[4..7]",
    ]);
    let expected = " 0. in_port=1, priority 32768
    resubmit(,1)
     1. priority 32768
            write_actions(output:2)
             -> action set is: output:2
            goto_table:5
         5. priority 32768
            load:0x7->NXM_NX_REG0[]
            move:NXM_NX_REG0[0..3]->NXM_NX_REG1[4..7]
             -> NXM_NX_REG1[4..7] is now 0x7
    output:3
--. Executing action set:
    output:2";
    assert_eq!(steps(&explain(&bed, "in_port=1", false)), expected);
}

#[test]
fn header_changes_show_in_the_final_flow() {
    let bed = bed(&[
        "in_port=1,ip,actions=dec_ttl,set_field:02:00:00:00:00:09->eth_dst,push_vlan:0x8100,set_field:4101->vlan_vid,output:2",
    ]);
    let out = explain(&bed, "in_port=1,ip,nw_ttl=64,dl_dst=02:00:00:00:00:02", false);
    let expected = "ip,in_port=1,dl_vlan=5,dl_vlan_pcp=0,dl_src=00:00:00:00:00:00,dl_dst=02:00:00:00:00:09,\
                    nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_proto=0,nw_tos=0,nw_ecn=0,nw_ttl=63,nw_frag=no";
    assert!(
        steps(&out)
            .starts_with(" 0. ip,in_port=1, priority 32768\n    dec_ttl\n    set_field:02:00:00:00:00:09->eth_dst\n")
    );
    assert_eq!(out.final_flow.as_deref(), Some(expected));
    assert!(out.datapath_actions.contains("push_vlan(vid=5,pcp=0)"), "{}", out.datapath_actions);
    let out = explain(&bed, "in_port=1,ip,nw_ttl=1", false);
    assert!(steps(&out).ends_with("    dec_ttl\n     >> IPv4 decrement TTL exception"), "{}", steps(&out));
    // As in OVS's test "ofproto-dpif - TTL decrement".
    assert_eq!(
        explain(&self::bed(&["ip,actions=dec_ttl,output:2"]), "in_port=1,ip,nw_ttl=3", false).megaflow,
        "recirc_id=0,eth,ip,in_port=1,nw_ttl=3,nw_frag=no"
    );
}

#[test]
fn a_packet_has_effects_and_a_flow_has_none() {
    let bed = bed(&["actions=NORMAL"]);
    let flow = "in_port=1,dl_src=50:54:00:00:00:05,dl_dst=ff:ff:ff:ff:ff:ff";
    assert!(!explain(&bed, flow, false).text().contains("learned that"));
    let back = "in_port=2,dl_dst=50:54:00:00:00:05";
    assert!(explain(&bed, back, false).text().contains("no learned MAC for destination, flooding"));
    let text = explain(&bed, flow, true).text();
    assert!(text.contains("\n     -> learned that 50:54:00:00:00:05 is on port p1 in VLAN 0\n"), "{text}");
    bed.poll();
    assert!(bed.sent().is_empty(), "a trace sends nothing");
    assert!(explain(&bed, back, false).text().contains("\n     -> forwarding to learned port\n"));
}

#[test]
fn a_loop_ends_with_an_error() {
    let bed = bed(&["actions=resubmit(,0)"]);
    let out = explain(&bed, "in_port=1", false);
    assert!(steps(&out).ends_with(" >>>> over max translation depth 64 <<<<"), "{}", steps(&out));
    assert!(
        out.text().ends_with("Datapath actions: drop\nTranslation failed (Recursion too deep), packet is dropped.\n")
    );
    assert_eq!(trace(&bed.switch, &Request { bridge: "no", ..request(&key(""), &[]) }), None);
}

/// A trace with connection tracking, its recirculation ids replaced by `#`.
fn tracked(bed: &Bed, flow: &str, ct_next: &[u32]) -> String {
    let text = trace(&bed.switch, &request(&key(flow), ct_next)).unwrap().text();
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("0x") {
        let (before, id) = rest.split_at(at);
        let end = id[2..].find(|c: char| !c.is_ascii_hexdigit()).map_or(id.len(), |end| end + 2);
        let is_id = before.ends_with("recirc(") || before.ends_with("recirc_id=");
        out += before;
        out += if is_id { "#" } else { &id[..end] };
        rest = &id[end..];
    }
    out + rest
}

#[test]
fn a_packet_is_followed_when_it_comes_back_from_connection_tracking() {
    let bed = bed(&[
        "tcp,actions=ct(table=2,zone=1)",
        "table=2,in_port=1,ct_zone=1,ct_state=+trk+new,tcp,actions=ct(commit,zone=1),ct(table=3,zone=2)",
        "table=2,in_port=1,ct_zone=1,ct_state=+trk+est,tcp,actions=ct(table=3,zone=2)",
        "table=3,in_port=1,ct_zone=2,ct_state=+trk+new,tcp,actions=ct(commit,zone=2),3",
        "table=3,in_port=1,ct_zone=2,ct_state=+trk+est,tcp,actions=2",
    ]);
    let line = "=".repeat(79);
    let rest = "vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_tos=0,\
                nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0,tcp_flags=0";
    let fork = |table| {
        format!(
            "     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table {table}.\n"
        )
    };
    let untracked = "     -> Sets the packet to an untracked state, and clears all the conntrack fields.\n";
    let expected = format!(
        "Flow: tcp,in_port=1,{rest}\n\nbridge(\"br0\")\n-------------\n 0. tcp, priority 32768\n    \
         ct(table=2,zone=1)\n{}{untracked}\n\
         Final flow: unchanged\nMegaflow: recirc_id=0,eth,tcp,in_port=1,nw_frag=no\n\
         Datapath actions: ct(zone=1),recirc(#)\n\n\
         {line}\nrecirc(#) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)\n{line}\n\n\
         Flow: recirc_id=#,ct_state=new|trk,ct_zone=1,eth,tcp,in_port=1,{rest}\n\n\
         bridge(\"br0\")\n-------------\n    thaw\n        Resuming from table 2\n \
         2. ct_state=+new+trk,ct_zone=1,tcp,in_port=1, priority 32768\n    ct(commit,zone=1)\n{untracked}    \
         ct(table=3,zone=2)\n{}{untracked}\n\
         Final flow: recirc_id=#,eth,tcp,in_port=1,{rest}\n\
         Megaflow: recirc_id=#,ct_state=+new+trk,ct_zone=1,eth,tcp,in_port=1,nw_frag=no\n\
         Datapath actions: ct(commit,zone=1),ct(zone=2),recirc(#)\n\n",
        fork(2),
        fork(3),
    );
    let text = tracked(&bed, "in_port=1,tcp", &[]);
    assert_eq!(text.get(..expected.len()), Some(&*expected), "{text}\n---\n{expected}");
    assert!(text.ends_with("Datapath actions: ct(commit,zone=2),3"), "{text}");
    let est = super::parse_ct_state("trk,est").unwrap();
    let text = tracked(&bed, "in_port=1,tcp", &[est, est]);
    assert!(text.ends_with("Datapath actions: 2"), "{text}");
    assert_eq!(text.matches(" - resume conntrack with ct_state=est|trk\n").count(), 2, "{text}");
    let text = tracked(&bed, "in_port=1,tcp", &[est]);
    assert!(text.ends_with("Datapath actions: ct(commit,zone=2),3"), "{text}");
}

#[test]
fn a_translated_packet_comes_back_with_the_first_address_and_port() {
    let bed = bed(&[
        "priority=100,ip,nw_src=1.1.1.1,ct_state=-trk,actions=ct(commit,nat(src=10.0.0.1-10.0.0.42:1000-1042),table=0)",
        "priority=100,udp,ct_state=+trk,nw_src=10.0.0.1,nw_dst=1.1.1.2,tp_src=1000,tp_dst=200,\
         actions=ct(commit,nat(dst=20.0.0.1-20.0.0.42:2000-2042),table=0)",
        "priority=100,udp,ct_state=+trk,nw_src=10.0.0.1,nw_dst=20.0.0.1,tp_src=1000,tp_dst=2000,actions=3",
        "priority=90,ip,ct_state=+trk,actions=2",
        "priority=100,ipv6,ipv6_src=1::1,ct_state=-trk,actions=ct(commit,nat(src=[10::1]-[10::42]:1000-1042),table=0)",
        "priority=100,udp6,ct_state=+trk,ipv6_src=10::1,tp_src=1000,actions=3",
    ]);
    let text = tracked(&bed, "in_port=1,udp,nw_src=1.1.1.1,nw_dst=1.1.1.2,udp_src=100,udp_dst=200", &[]);
    assert!(text.ends_with("Datapath actions: 3"), "{text}");
    let simulated = "(use --ct-next to customize)\nReplacing src/dst IP/ports to simulate NAT:\n \
                     Initial flow: nw_src=1.1.1.1,tp_src=100,nw_dst=1.1.1.2,tp_dst=200\n \
                     Modified flow: nw_src=10.0.0.1,tp_src=1000,nw_dst=1.1.1.2,tp_dst=200\n====";
    assert!(text.contains(simulated), "{text}");
    let text = tracked(&bed, "in_port=1,udp6,ipv6_src=1::1,ipv6_dst=1::2,udp_src=100,udp_dst=200", &[]);
    assert!(text.ends_with("Datapath actions: 3"), "{text}");
    assert!(text.contains(" Modified flow: ipv6_src=[10::1],tp_src=1000,ipv6_dst=[1::2],tp_dst=200\n"), "{text}");
}

#[test]
fn a_packet_that_always_comes_back_is_followed_64_times() {
    let bed = bed(&["ip,actions=ct(table=0),ct(table=0)"]);
    let text = tracked(&bed, "in_port=1,ip", &[]);
    assert_eq!(text.matches(" - resume conntrack ").count(), 64);
}

/// A bridge with fields for options of tunnels.
fn with_fields(flows: &[&str]) -> Bed {
    let bed = bed(&[]);
    let maps = [(0, 0, 4), (1, 1, 0), (2, 2, 4), (3, 3, 4)];
    let maps = maps.map(|(index, kind, len)| TlvMap { class: 0xffff, kind, len, index }).to_vec();
    bed.bridge.tlv_table_mod(&TlvTableMod { command: TlvCommand::Add, maps }).unwrap();
    for flow in flows {
        bed.bridge.flow_mod(&parse_flow_mod(FlowModCommand::Add, flow, &NoNames).unwrap()).unwrap();
    }
    bed
}

/// What a packet with these fields is shown to be, by its fields for options of tunnels.
fn explain_options(bed: &Bed, flow: &str) -> (Trace, [String; 3]) {
    let mut matching = parse_match(&format!("tun_dst=1.1.1.2,in_port=1,{flow}"), &NoNames).unwrap();
    bed.bridge.place_known(&mut matching);
    let out = trace(&bed.switch, &request(&matching.key, &[])).unwrap();
    let fields = |text: &str| text.split(',').filter(|item| item.starts_with("tun_m")).collect::<Vec<_>>().join(",");
    let shown = [&out.flow, &out.megaflow, out.final_flow.as_ref().unwrap_or(&out.flow)].map(|text| fields(text));
    (out, shown)
}

/// As in tests of OVS's suite (tunnel.at).
#[test]
fn options_of_tunnels_are_shown_as_fields() {
    let bed = with_fields(&[
        "priority=1,tun_metadata0,actions=output:2",
        "priority=2,tun_metadata1=0,actions=IN_PORT",
        "priority=3,tun_metadata2=0,actions=drop",
    ]);
    let (trace, shown) = explain_options(&bed, "tun_metadata0=0x12345678");
    assert_eq!(steps(&trace), " 0. tun_metadata0, priority 1\n    output:2");
    let whole = "tun_metadata0=0x12345678";
    assert_eq!(shown, [whole, "tun_metadata0,tun_metadata1=NP,tun_metadata2=NP", whole]);
    let (_, [_, megaflow, _]) = explain_options(&bed, "tun_metadata1=0");
    assert_eq!(megaflow, "tun_metadata1,tun_metadata2=NP");
    let bed = with_fields(&[
        "tun_metadata0=0x11112222,actions=set_field:0x55556666->tun_metadata3,resubmit(,1)",
        "tun_metadata0=0x33334444,actions=delete_field:tun_metadata0,set_field:0x77778888->tun_metadata3,resubmit(,1)",
        "tun_metadata0=0x88889999,actions=delete_field:tun_metadata3,resubmit(,1)",
        "table=1,actions=IN_PORT",
    ]);
    let one = "tun_metadata0=0x11112222";
    let (_, shown) = explain_options(&bed, one);
    let both = "tun_metadata0=0x11112222,tun_metadata3=0x55556666";
    assert_eq!(shown, [one, "tun_metadata0=0x11112222,tun_metadata3=NP", both]);
    let one = "tun_metadata0=0x33334444";
    let (_, shown) = explain_options(&bed, one);
    assert_eq!(shown, [one, "tun_metadata0=0x33334444,tun_metadata3=NP", "tun_metadata3=0x77778888"]);
    let one = "tun_metadata0=0x88889999";
    assert_eq!(explain_options(&bed, one).1, [one; 3]);
}
