//! Bonds one at a time and in pairs; what they show is what OVS shows in its own tests (tests/lacp.at).

use std::time::Duration;

use super::pdu::{Lacpdu, SlowPdu, State};
use super::show::{Show, ShowStats};
use super::*;
use crate::ethernet::Mac;
use crate::registry::{Registry, Session};
use weir_time::Time;

const SECOND: u64 = 1_000_000_000;
pub const P0: MemberId = MemberId(0);
pub const P1: MemberId = MemberId(1);

/// A point in time.
pub fn at(millis: u64) -> Time {
    Time(millis * 1_000_000)
}

/// A bond of members `p{first}` and so on, with port ids from `first + 1` on, as lacp.at has them.
pub fn bond(system: u8, first: u16, members: u16, fast: bool, active: bool) -> Aggregator {
    let system_id = [0xaa, system, 0xaa, system, 0, 0];
    let priority = 65535 - u16::from(members > 1);
    let name = format!("bond{}", first / 2);
    let settings =
        Settings { name, system_id, system_priority: priority, active, fast, fallback_ab: false, aggregates: false };
    let mut bond = Aggregator::new(settings);
    for n in 0..members {
        let settings = member(first + n, if members > 1 { first + 2 } else { 0 });
        bond.set_member(at(0), MemberId(n.into()), settings, true);
    }
    bond
}

fn member(n: u16, key: u16) -> MemberSettings {
    MemberSettings { name: format!("p{n}"), mac: [2, 0, 0, 0, 0, n as u8], port_id: n + 1, port_priority: 65535, key }
}

#[test]
fn the_first_member_of_several_says_so_at_once() {
    for (aggregates, frames) in [(true, 0), (false, 1)] {
        let mut bond = bond(0x55, 0, 1, true, true);
        bond.configure(Settings { aggregates, ..bond.settings().clone() });
        let first = bond.run(at(0)).frames;
        let said = first.iter().map(|(_, frame)| match SlowPdu::new_checked(frame) {
            Ok(SlowPdu::Lacp(pdu)) => pdu.actor.state.contains(State::AGGREGATION),
            _ => panic!("no PDU"),
        });
        assert_eq!(said.collect::<Vec<_>>(), [aggregates]);
        bond.set_member(at(50), MemberId(1), member(1, 0), true);
        let later = bond.run(at(50)).frames;
        assert_eq!(
            later.iter().filter(|(id, _)| *id == P0).count(),
            frames,
            "nothing new, or that it can be aggregated"
        );
    }
}

/// Runs both bonds each 100 ms, with member `n` of one connected to member `n` of the other where `wired` says so.
fn exchange(bonds: &mut [Aggregator; 2], from: u64, to: u64, wired: impl Fn(MemberId) -> bool) {
    for millis in (from..to).step_by(100) {
        for (near, far) in [(0, 1), (1, 0)] {
            for (id, frame) in bonds[near].run(at(millis)).frames {
                if wired(id) {
                    bonds[far].receive(at(millis), id, &frame).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_single_port_without_partner_is_shown_as_by_ovs() {
    let mut bond = bond(0x55, 0, 1, false, true);
    bond.configure(Settings { name: "p1".into(), ..bond.settings().clone() });
    bond.set_member(at(0), P0, MemberSettings { name: "p1".into(), ..member(0, 0) }, true);
    for millis in [0, 100, 200, 300] {
        bond.run(at(millis));
    }
    let expected = "\
---- p1 ----
  status: active negotiated
  sys_id: aa:55:aa:55:00:00
  sys_priority: 65535
  aggregation key: 1
  lacp_time: slow

member: p1: expired attached
  port_id: 1
  port_priority: 65535
  may_enable: false

  actor sys_id: aa:55:aa:55:00:00
  actor sys_priority: 65535
  actor port_id: 1
  actor port_priority: 65535
  actor key: 1
  actor state: activity synchronized collecting distributing expired

  partner sys_id: 00:00:00:00:00:00
  partner sys_priority: 0
  partner port_id: 0
  partner port_priority: 0
  partner key: 0
  partner state: timeout
";
    assert_eq!(Show(&bond).to_string(), expected);
}

const BOND0_WHOLE: &str = "\
---- bond0 ----
  status: active negotiated
  sys_id: aa:55:aa:55:00:00
  sys_priority: 65534
  aggregation key: 2
  lacp_time: fast

member: p0: current attached
  port_id: 1
  port_priority: 65535
  may_enable: true

  actor sys_id: aa:55:aa:55:00:00
  actor sys_priority: 65534
  actor port_id: 1
  actor port_priority: 65535
  actor key: 2
  actor state: activity timeout aggregation synchronized collecting distributing

  partner sys_id: aa:66:aa:66:00:00
  partner sys_priority: 65534
  partner port_id: 3
  partner port_priority: 65535
  partner key: 4
  partner state: activity timeout aggregation synchronized collecting distributing

member: p1: current attached
  port_id: 2
  port_priority: 65535
  may_enable: true

  actor sys_id: aa:55:aa:55:00:00
  actor sys_priority: 65534
  actor port_id: 2
  actor port_priority: 65535
  actor key: 2
  actor state: activity timeout aggregation synchronized collecting distributing

  partner sys_id: aa:66:aa:66:00:00
  partner sys_priority: 65534
  partner port_id: 4
  partner port_priority: 65535
  partner key: 4
  partner state: activity timeout aggregation synchronized collecting distributing
";

const P0_EXPIRED: &str = "\
member: p0: expired attached
  port_id: 1
  port_priority: 65535
  may_enable: false

  actor sys_id: aa:55:aa:55:00:00
  actor sys_priority: 65534
  actor port_id: 1
  actor port_priority: 65535
  actor key: 2
  actor state: activity timeout aggregation synchronized collecting distributing expired

  partner sys_id: aa:66:aa:66:00:00
  partner sys_priority: 65534
  partner port_id: 3
  partner port_priority: 65535
  partner key: 4
  partner state: activity timeout aggregation collecting distributing

";

const P0_DEFAULTED: &str = "\
member: p0: defaulted detached
  port_id: 1
  port_priority: 65535
  may_enable: false

  actor sys_id: aa:55:aa:55:00:00
  actor sys_priority: 65534
  actor port_id: 1
  actor port_priority: 65535
  actor key: 2
  actor state: activity timeout aggregation defaulted

  partner sys_id: 00:00:00:00:00:00
  partner sys_priority: 0
  partner port_id: 0
  partner port_priority: 0
  partner key: 0
  partner state:

";

/// The story of "lacp - negotiation": both links up, one cut until it has expired and defaulted, and mended.
#[test]
fn negotiation_is_shown_as_by_ovs() {
    let mut bonds = [bond(0x55, 0, 2, true, true), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 5_000, |_| true);
    assert_eq!(Show(&bonds[0]).to_string(), BOND0_WHOLE);
    assert!(Show(&bonds[1]).to_string().contains("partner port_id: 2\n"));

    let first_member = |bond: &Aggregator| {
        let text = Show(bond).to_string();
        text[text.find("member: p0").unwrap()..text.find("member: p1").unwrap()].to_string()
    };
    exchange(&mut bonds, 5_000, 9_100, |id| id != P0);
    assert_eq!(first_member(&bonds[0]), P0_EXPIRED);
    assert!(bonds[0].may_enable(P1) && bonds[1].may_enable(P1));
    exchange(&mut bonds, 9_100, 13_200, |id| id != P0);
    assert_eq!(first_member(&bonds[0]), P0_DEFAULTED);
    assert!(!bonds[0].is_current(P0) && bonds[0].is_current(P1));
    exchange(&mut bonds, 13_200, 43_300, |_| true);
    assert_eq!(Show(&bonds[0]).to_string(), BOND0_WHOLE);
}

#[test]
fn statistics_are_shown_as_by_ovs() {
    let mut bonds = [bond(0x55, 0, 1, true, true), bond(0x66, 2, 1, true, true)];
    exchange(&mut bonds, 0, 3_000, |_| true);
    assert!(bonds[0].receive(at(3_000), P0, &[0; 20]).is_err());
    let marker =
        packet::wire::build::ethernet(pdu::GROUP, [2; 6], &[], pdu::ETHERTYPE, &[&[2][..], &[0; 109]].concat());
    assert_eq!(bonds[0].receive(at(3_000), P0, &marker), Err(ReceiveError::Marker));
    bonds[0].run(at(7_000));
    bonds[0].run(at(10_000));
    bonds[0].set_carrier(at(10_000), P0, false);
    let Counters { tx_pdus, rx_pdus, .. } = bonds[0].counters(P0).unwrap();
    assert!(tx_pdus > 3 && rx_pdus > 4);
    let expected = format!(
        "---- bond0 statistics ----\n\nmember: p0:\n  TX PDUs: {tx_pdus}\n  RX PDUs: {rx_pdus}\n  RX Bad PDUs: 1\n  \
         RX Marker Request PDUs: 1\n  Link Expired: 1\n  Link Defaulted: 1\n  Carrier Status Changed: 1\n"
    );
    assert_eq!(ShowStats(&bonds[0]).to_string(), expected);
}

#[test]
fn two_passive_ends_say_nothing() {
    let mut bonds = [bond(0x55, 0, 2, true, false), bond(0x66, 2, 2, true, false)];
    exchange(&mut bonds, 0, 10_000, |_| true);
    assert!(bonds.iter().all(|bond| !bond.negotiated() && bond.counters(P0).unwrap().tx_pdus == 0));
    assert_eq!(bonds[0].next_wakeup(), None);
}

#[test]
fn a_passive_end_answers_an_active_one() {
    let mut bonds = [bond(0x55, 0, 2, true, false), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 5_000, |_| true);
    assert!(bonds.iter().all(|bond| bond.may_enable(P0) && bond.may_enable(P1)));
}

#[test]
fn without_a_partner_a_bond_falls_back_where_it_is_told_to() {
    let mut bonds = [bond(0x55, 0, 2, true, true), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 4_000, |_| false);
    assert!(!bonds[0].may_enable(P0));
    bonds[0].configure(Settings { fallback_ab: true, ..bonds[0].settings().clone() });
    let outcome = bonds[0].run(at(4_000));
    assert_eq!(outcome.events, [Event::MayEnable(P0, true), Event::MayEnable(P1, true)]);
    // A partner on one member, who sends within the slow period, ends that for the others.
    exchange(&mut bonds, 4_000, 45_000, |id| id == P1);
    assert!(!bonds[0].may_enable(P0) && bonds[0].may_enable(P1));
}

#[test]
fn a_port_that_is_looped_back_is_not_attached() {
    let mut bond = bond(0x55, 0, 2, true, true);
    let mut loopbacks = 0;
    for millis in (0..60_000).step_by(100) {
        let outcome = bond.run(at(millis));
        loopbacks += outcome.events.iter().filter(|event| matches!(event, Event::Loopback(_))).count();
        for (id, frame) in outcome.frames {
            // A cable between both members.
            let other = MemberId(1 - id.0);
            assert_eq!(bond.receive(at(millis), other, &frame), Ok(false));
        }
    }
    assert_eq!(loopbacks, 2);
    assert!(!bond.may_enable(P0) && !bond.may_enable(P1) && !bond.negotiated());
    assert!(bond.counters(P0).unwrap().tx_pdus < 3 * 60 + 3);
}

/// A frame of a partner who says what it likes.
fn lie(system_id: Mac, key: u16, partner: Lacpdu) -> Vec<u8> {
    let state = State::all() & !State::DEFAULTED & !State::EXPIRED;
    let actor = pdu::Info { system_priority: 1, system_id, key, port_priority: 1, port_id: 1, state };
    Lacpdu { actor, partner: partner.partner }.emit([6; 6]).to_vec()
}

#[test]
fn a_partner_that_lies_on_one_link_does_not_take_the_others_with_it() {
    let mut bonds = [bond(0x55, 0, 2, true, true), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 5_000, |_| true);
    for (system_id, key) in
        [([0, 0, 0, 0, 0, 1], 4), ([0xaa, 0x66, 0xaa, 0x66, 0, 0], 9), ([0xaa, 0x55, 0xaa, 0x55, 0, 0], 2)]
    {
        bonds[0].receive(at(5_000), P0, &lie(system_id, key, Lacpdu::default())).unwrap();
        bonds[0].run(at(5_000));
        assert!(!bonds[0].may_enable(P0) && bonds[0].may_enable(P1), "{system_id:x?} {key}");
    }
}

#[test]
fn a_partner_that_believes_nothing_gets_three_frames_in_a_second() {
    let mut bond = bond(0x55, 0, 1, true, true);
    let mut sent = Vec::new();
    for millis in 0..10_000 {
        bond.receive(at(millis), P0, &lie([6; 6], 1, Lacpdu::default())).unwrap();
        let wakeup = bond.next_wakeup().unwrap();
        let frames = bond.run(at(millis)).frames.len();
        assert!(frames == 0 || wakeup <= at(millis));
        sent.extend((0..frames).map(|_| millis));
        assert!(bond.next_wakeup().unwrap() > at(millis), "nothing is left to do");
    }
    assert!(sent.windows(4).all(|four| four[3] - four[0] >= 1_000), "{sent:?}");
    assert_eq!(sent.len(), 30);
}

#[test]
fn partners_that_are_exchanged_are_taken_once_all_links_lead_there() {
    let mut bonds = [bond(0x55, 0, 2, true, true), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 5_000, |_| true);
    let [near, _] = bonds;
    let mut bonds = [near, bond(0x77, 4, 2, true, true)];
    exchange(&mut bonds, 5_000, 10_000, |_| true);
    assert!(bonds.iter().all(|bond| bond.may_enable(P0) && bond.may_enable(P1)));
    assert!(Show(&bonds[0]).to_string().contains("partner sys_id: aa:77:aa:77:00:00"));
}

#[test]
fn a_frame_without_carrier_is_refused_and_a_carrier_that_returns_negotiates_anew() {
    let mut bonds = [bond(0x55, 0, 2, true, true), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 5_000, |_| true);
    bonds[0].set_carrier(at(5_000), P0, false);
    let outcome = bonds[0].run(at(5_000));
    assert_eq!(outcome.events, [Event::MayEnable(P0, false)]);
    assert!(outcome.frames.iter().all(|(id, _)| *id != P0));
    let frame = lie([6; 6], 1, Lacpdu::default());
    assert_eq!(bonds[0].receive(at(5_000), P0, &frame), Err(ReceiveError::NoCarrier));
    bonds[0].set_carrier(at(6_000), P0, true);
    exchange(&mut bonds, 6_000, 8_000, |_| true);
    assert!(bonds.iter().all(|bond| bond.may_enable(P0) && bond.may_enable(P1)));
}

#[test]
fn members_come_and_go() {
    let mut bonds = [bond(0x55, 0, 2, true, true), bond(0x66, 2, 2, true, true)];
    exchange(&mut bonds, 0, 5_000, |_| true);
    assert_eq!(bonds[0].key(), Some(2));
    bonds[0].remove_member(P0);
    bonds[0].run(at(5_000));
    assert!(!bonds[0].may_enable(P0) && bonds[0].may_enable(P1));
    assert_eq!(bonds[0].receive(at(5_000), P0, &[]), Err(ReceiveError::NoMember(0)));
    bonds[0].remove_member(P1);
    assert_eq!((bonds[0].key(), bonds[0].run(at(5_000)).events), (None, vec![Event::Negotiated(false)]));
    assert!(Show(&bonds[0]).to_string().contains("aggregation key: none"));
}

#[test]
fn a_thousand_bonds_are_served_by_what_is_due() {
    let mut registry = Registry::new();
    for n in 0..1000u32 {
        registry.insert(n, bond(0x55, 0, 1, false, true));
    }
    let (mut runs, mut frames) = (0, 0);
    for millis in (0..60_000).step_by(100) {
        registry.run(at(millis), |_, bond| {
            runs += 1;
            frames += bond.run(at(millis)).frames.len();
        });
    }
    // One at once, and fast ones until the bond gives its partner up after 3 s; slow ones then.
    assert!(frames >= 4_000 && runs <= 2 * frames, "{runs} runs for {frames} frames");
    assert!(registry.next_wakeup().unwrap() > Time(59 * SECOND) + Duration::from_millis(1));
}
