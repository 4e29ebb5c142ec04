//! What agents say, hear and forget, and what broken frames do to them: nothing.

use std::net::IpAddr;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use weir_time::Time;

use super::agent::{Agent, MAX_NEIGHBOURS, TX_INTERVAL};
use super::pdu::{Assignment, ETHERTYPE, Element, Error, GROUP, Identifier, Lldpdu, MAX_ASSIGNMENTS};
use super::show::{Show, ShowIsid, Statistics, Status};
use super::{AutoAttach, pdu};
use crate::registry::Session;

const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

fn at(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

fn auto_attach(mappings: &[(u32, u16)]) -> Arc<AutoAttach> {
    let mappings = mappings.iter().copied().collect();
    Arc::new(AutoAttach { system_name: "sw1".into(), system_description: "Weir".into(), mappings })
}

fn any_pdu() -> impl Strategy<Value = Lldpdu> {
    let id = || (1u8..8, vec(any::<u8>(), 1..256)).prop_map(|(subtype, value)| Identifier { subtype, value });
    let text = || vec(any::<u8>(), 0..256);
    let element = (any::<([u8; 6], [u8; 2])>(), 0u8..64, 0u8..64, 0u16..4096, 0u8..8, 0u16..1024).prop_map(
        |((mac, link), kind, state, management_vlan, connection, reserved)| Element {
            kind,
            state,
            management_vlan,
            mac,
            connection,
            reserved,
            link,
        },
    );
    let assignment =
        (0u8..16, 0u16..4096, 0u32..1 << 24).prop_map(|(status, vlan, isid)| Assignment { status, vlan, isid });
    let head = (id(), id(), any::<u16>(), text(), text(), text());
    let tail = (
        any::<Option<[u16; 2]>>(),
        vec(any::<IpAddr>(), 0..=pdu::MAX_ADDRESSES),
        proptest::option::of(element),
        vec(assignment, 0..=MAX_ASSIGNMENTS),
    );
    (head, tail).prop_map(|(head, (capabilities, addresses, element, assignments))| {
        let (chassis, port, ttl, port_description, system_name, system_description) = head;
        Lldpdu {
            chassis,
            port,
            ttl,
            port_description,
            system_name,
            system_description,
            capabilities,
            addresses,
            element,
            assignments,
            unrecognized: 0,
        }
    })
}

proptest! {
    #[test]
    fn what_is_emitted_is_read_again(pdu in any_pdu()) {
        prop_assert_eq!(Lldpdu::new_checked(&pdu.emit(A)), Ok(pdu));
    }

    #[test]
    fn cut_or_garbled_frames_are_no_panic(pdu in any_pdu(), cut: prop::sample::Index, byte: u8) {
        let mut frame = pdu.emit(A);
        let cut = cut.index(frame.len());
        prop_assert!(Lldpdu::new_checked(&frame[..cut]).is_err());
        frame[cut] = byte;
        let _ = Lldpdu::new_checked(&frame);
    }

    #[test]
    fn an_agent_knows_few_and_forgets_them(pdus in vec((any_pdu(), 0u64..200), 0..80)) {
        let (mut agent, mut now) = (Agent::new(at(0), "p1", B, auto_attach(&[])), 0);
        for (pdu, pause) in pdus {
            now += pause;
            agent.receive(at(now), &pdu.emit(A)).unwrap();
            agent.run(at(now));
            prop_assert!(agent.neighbours().len() <= MAX_NEIGHBOURS);
            prop_assert!(agent.next_wakeup().is_some_and(|wakeup| wakeup > at(now)));
            for neighbour in agent.neighbours() {
                prop_assert!(now - neighbour.heard.0 / 1_000_000_000 < u64::from(neighbour.pdu.ttl));
            }
            let counted = agent.statistics();
            let gone = counted.ageouts + counted.deletes;
            prop_assert_eq!(counted.inserts - gone, agent.neighbours().len() as u64);
        }
        agent.run(at(now + u64::from(u16::MAX)));
        prop_assert!(agent.neighbours().is_empty());
    }
}

#[test]
fn wrong_frames_are_refused_in_the_words_of_ovs() {
    // The frame of OVS's own test: mappings without a digest.
    let text = "0180c200000ef6b426aa5f0088cc020704f6b426aa5f000403057632060200780c
        5044454144424545464445414442454546444541444245454644454144424545464445414
        4424545464445414442454546444541444245454644454144424545464445414442454546
        4445414442454546fe0500040d0c010000";
    let text: String = text.split_whitespace().collect();
    let bytes = |i: usize| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
    let frame: Vec<u8> = (0..text.len() / 2).map(bytes).collect();
    let error = Lldpdu::new_checked(&frame).unwrap_err();
    assert_eq!(error.to_string(), "ISID_VLAN_ASGNS TLV too short");

    let good = Lldpdu {
        chassis: Identifier { subtype: 4, value: A.to_vec() },
        port: Identifier { subtype: 5, value: b"p1".to_vec() },
        ttl: 1,
        ..Lldpdu::default()
    };
    let good = good.emit(A);
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        Lldpdu::new_checked(&frame).unwrap_err()
    };
    assert_eq!(error(&|f| f[0] = 3), Error::OtherAddress);
    assert_eq!(error(&|f| f[13] = 3), Error::NotLldp);
    assert_eq!(error(&|f| f.truncate(10)), Error::NotLldp);
    assert_eq!(error(&|f| f.truncate(f.len() - 2)), Error::NoEnd);
    assert_eq!(error(&|f| f.truncate(f.len() - 1)), Error::Truncated);
    assert_eq!(error(&|f| f[14] = 4), Error::Order);
    assert_eq!(error(&|f| f[16] = 0), Error::Subtype);
    // The name of a system, behind the end of what has to be there, and its identifier once more.
    let insert = |tlv: &'static [u8]| {
        move |f: &mut Vec<u8>| {
            let end = f.len() - 2;
            f.splice(end..end, tlv.iter().copied());
        }
    };
    assert_eq!(error(&insert(&[2, 2, 4, 9])), Error::Order);
    assert_eq!(error(&insert(&[0xfe, 2, 0, 4])), Error::Short("Organisational"));
    assert_eq!(error(&insert(&[16, 3, 5, 1, 10])), Error::Short("Management address"));
    assert_eq!(error(&insert(&[14, 1, 5])), Error::Short("System capabilities"));
    // Types that nobody knows, and those of others, are passed over and counted.
    let mut frame = good.clone();
    insert(&[18, 1, 5])(&mut frame);
    insert(&[0xfe, 4, 0, 0x80, 0xc2, 1])(&mut frame);
    assert_eq!(Lldpdu::new_checked(&frame).map(|pdu| pdu.unrecognized), Ok(2));
    assert_eq!((&frame[..6], frame[12..14].to_vec()), (&GROUP[..], ETHERTYPE.to_be_bytes().to_vec()));
}

#[test]
fn two_agents_hear_each_other_until_one_is_silent() {
    let mut server = Agent::new(at(0), "s", A, auto_attach(&[]));
    let mut client = Agent::new(at(0), "c", B, auto_attach(&[(100, 7), (200, 8)]));
    let frame = client.run(at(0)).unwrap();
    assert_eq!(client.run(at(4)), None);
    server.receive(at(0), &frame).unwrap();
    let heard = &server.neighbours()[0].pdu;
    let expected = [(100, 7), (200, 8)].map(|(isid, vlan)| Assignment { status: 0, vlan, isid });
    assert_eq!(heard.assignments, expected);
    assert_eq!(heard.element.map(|element| (element.kind, element.mac)), Some((Element::VIRTUAL_SWITCH, B)));
    assert_eq!(server.next_wakeup(), Some(at(0)));

    // A change of what it says is said at once, and the same again is no change.
    client.configure(at(2), B, auto_attach(&[(100, 7)]));
    server.receive(at(2), &client.run(at(2)).unwrap()).unwrap();
    assert_eq!(server.neighbours()[0].pdu.assignments.len(), 1);
    client.configure(at(3), B, auto_attach(&[(100, 7)]));
    assert_eq!((client.run(at(3)), client.next_wakeup()), (None, Some(at(2) + TX_INTERVAL)));

    server.run(at(121));
    assert_eq!(server.neighbours().len(), 1);
    server.run(at(122));
    assert_eq!((server.neighbours().len(), server.statistics().ageouts), (0, 1));
}

#[test]
fn who_says_that_he_goes_is_forgotten_and_others_find_room() {
    let mut agent = Agent::new(at(0), "p1", A, auto_attach(&[]));
    let said = |n: u8, ttl| {
        let chassis = Identifier { subtype: 7, value: vec![n] };
        Lldpdu { port: chassis.clone(), chassis, ttl, ..Lldpdu::default() }.emit(B)
    };
    (0..=MAX_NEIGHBOURS as u8).for_each(|n| agent.receive(at(1), &said(n, 60)).unwrap());
    assert_eq!((agent.neighbours().len(), agent.statistics().drops), (MAX_NEIGHBOURS, 1));
    agent.receive(at(1), &said(3, 0)).unwrap();
    agent.receive(at(1), &said(99, 0)).unwrap();
    agent.receive(at(1), &said(32, 60)).unwrap();
    let counted = agent.statistics();
    assert_eq!((counted.inserts, counted.deletes, counted.drops), (33, 1, 1));
}

#[test]
fn texts_are_those_of_ovs() {
    let mut agent = Agent::new(at(0), "p1", A, auto_attach(&[(100, 7), (200, 8), (300, 9)]));
    agent.run(at(0));
    let server = Lldpdu {
        chassis: Identifier { subtype: 4, value: B.to_vec() },
        port: Identifier { subtype: 5, value: b"1/2".to_vec() },
        ttl: 120,
        system_name: b"edge\x1b[2J".to_vec(),
        capabilities: Some([0x14, 4]),
        addresses: vec!["192.0.2.1".parse().unwrap()],
        element: Some(Element { kind: 2, mac: B, connection: 1, reserved: 0x102, link: [3, 4], ..Element::default() }),
        assignments: vec![
            Assignment { status: 2, vlan: 7, isid: 100 },
            Assignment { status: 8, vlan: 8, isid: 200 },
            Assignment { status: 3, vlan: 1, isid: 999 },
        ],
        ..Lldpdu::default()
    };
    agent.receive(at(1), &server.emit(B)).unwrap();
    assert!(agent.receive(at(1), &[0; 20]).is_err());
    let status = "LLDP: p1\n  Auto Attach Primary Server Id: 02:00:00:00:00:0b\n  \
        Auto Attach Primary Server Descr: <None>\n  \
        Auto Attach Primary Server System Id: 02:00:00:00:00:0b:01:00:02:01:03:04\n";
    assert_eq!(Status(&agent).to_string(), status);
    let isids = "LLDP: p1\nI-SID    VLAN Source      Status  \n-------- ---- ----------- --------\n\
        100      7    Switch      Active     \n\
        200      8    Switch      Reject (VLAN resources unavailable)\n\
        300      9    Switch      Pending    \n";
    assert_eq!(ShowIsid(&agent).to_string(), isids);
    let statistics = "Statistics: p1\n  tx cnt: 1\n  rx cnt: 2\n  rx discarded cnt: 1\n  rx unrecognized cnt: 0\n  \
        ageout cnt: 0\n  insert cnt: 1\n  delete cnt: 0\n  drop cnt: 0\n";
    assert_eq!(Statistics(&agent).to_string(), statistics);
    let show = "---- p1 ----\nChassis ID: 02:00:00:00:00:0b\n  Port ID: 1/2\n  Heard: 2 s ago, counts for 120 s\n  \
        System Name: edge.[2J\n  Capabilities: bridge, router; enabled: bridge\n  Management Address: 192.0.2.1\n";
    assert_eq!(Show(&agent, at(3)).to_string(), show);
}
