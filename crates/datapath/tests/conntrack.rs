//! Connection tracking in the datapath: the ct action on packets of both directions, with recirculation.

mod common;

use std::sync::Arc;

use common::{MemPort, by_hand, flow, udp};
use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{CtState, Request};
use datapath::conntrack::counters::Counter;
use datapath::{Action, Config, Datapath, FlowSpec, PortNo};
use packet::Field;

const INSIDE: u32 = 0x0a00_0001;
const OUTSIDE: u32 = 0xc633_6401;
const PUBLIC: u32 = 0xcb00_7107;

fn ct(request: Request) -> Action {
    Action::Ct(Arc::new(request))
}

/// A flow of the second stage, for a state of connections.
fn after(in_port: PortNo, state: CtState, actions: Vec<Action>) -> FlowSpec {
    flow(in_port, 1, &[(Field::CtState, state.0.into())], actions)
}

/// A firewall between the first two ports: connections begin at the first one. The third gets what is invalid.
fn firewall(dp: &Datapath, ports: &[(PortNo, Arc<MemPort>)], look_up: Request, commit: Request) {
    let [inside, outside, invalid] = [ports[0].0, ports[1].0, ports[2].0];
    let (trk, new, est, rpl) = (CtState::TRK, CtState::NEW, CtState::EST, CtState::RPL);
    for port in [inside, outside] {
        dp.install(flow(port, 0, &[], vec![ct(look_up), Action::Recirc(1)])).unwrap();
        dp.install(after(port, trk | CtState::INV, vec![Action::Output(invalid)])).unwrap();
    }
    let extra = |way: CtState| if commit.nat.is_some() { way } else { CtState::NONE };
    dp.install(after(inside, trk | new, vec![ct(commit), Action::Output(outside)])).unwrap();
    dp.install(after(inside, trk | est | extra(CtState::SNAT), vec![Action::Output(outside)])).unwrap();
    dp.install(after(outside, trk | est | rpl | extra(CtState::DNAT), vec![Action::Output(inside)])).unwrap();
    dp.install(after(outside, trk | new, vec![])).unwrap();
}

#[test]
fn a_firewall_lets_answers_in() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    firewall(
        &dp,
        &p,
        Request { zone: 3, ..Request::default() },
        Request { zone: 3, commit: true, ..Request::default() },
    );
    let sent = || [0, 1, 2].map(|port: usize| p[port].1.take().len());
    p[1].1.give(&udp(OUTSIDE, INSIDE, 53, 1000));
    dp.poll();
    assert_eq!(sent(), [0, 0, 0], "nothing was asked for");
    p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
    dp.poll();
    assert_eq!(sent(), [0, 1, 0]);
    for _ in 0..3 {
        p[1].1.give(&udp(OUTSIDE, INSIDE, 53, 1000));
        p[1].1.give(&udp(OUTSIDE, INSIDE, 53, 1001));
    }
    dp.poll();
    assert_eq!(sent(), [3, 0, 0], "only what was asked for");
    (0..40).for_each(|_| p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53)));
    (0..2).for_each(|_| {
        dp.poll();
    });
    assert_eq!(sent(), [0, 40, 0]);
    assert_eq!(dp.conntrack().tracker.table.limits.zone_connections(3), 1);
}

#[test]
fn a_packet_that_goes_nowhere_opens_a_connection() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let commit = || ct(Request { commit: true, ..Request::default() });
    dp.install(flow(p[0].0, 0, &[], vec![commit(), Action::PopVlan])).unwrap();
    dp.install(flow(p[1].0, 0, &[], vec![Action::Output(p[0].0), commit()])).unwrap();
    p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
    p[1].1.give(&udp(OUTSIDE, INSIDE, 80, 2000));
    dp.poll();
    assert_eq!(p[0].1.sent(), 1);
    assert_eq!(dp.conntrack().tracker.table.limits.connections(), 2);
}

#[test]
fn addresses_are_translated_and_back() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let address = [203, 0, 113, 7].into();
    let addresses = Some((address, address));
    let nat = Nat { side: Side::Src, addresses, ports: None, choice: Choice::Hash, persistent: false };
    let look_up = Request { nat: Some(Translate::AsBefore), ..Request::default() };
    firewall(&dp, &p, look_up, Request { commit: true, nat: Some(Translate::New(nat)), ..Request::default() });
    for _ in 0..2 {
        p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
        dp.poll();
        assert_eq!(p[1].1.take(), [udp(PUBLIC, OUTSIDE, 1000, 53)]);
        p[1].1.give(&udp(OUTSIDE, PUBLIC, 53, 1000));
        dp.poll();
        assert_eq!(p[0].1.take(), [udp(OUTSIDE, INSIDE, 53, 1000)]);
    }
}

#[test]
fn what_cannot_be_tracked_is_invalid_and_counted() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    firewall(&dp, &p, Request::default(), Request { commit: true, ..Request::default() });
    let mut short = udp(INSIDE, OUTSIDE, 1000, 53);
    short[39] = 7;
    p[0].1.give(&short);
    let mut wrong = udp(INSIDE, OUTSIDE, 1000, 53);
    wrong[24] ^= 1;
    p[0].1.give(&wrong);
    p[0].1.give(&udp(INSIDE, OUTSIDE, 0, 53));
    dp.poll();
    assert_eq!([0, 1, 2].map(|port: usize| p[port].1.sent()), [0, 0, 3]);
    let counted = |counter| dp.conntrack().counters.get(counter);
    assert_eq!([Counter::NoTransport, Counter::IpChecksum, Counter::NoTuple].map(counted), [1, 1, 1]);
}

#[test]
fn cleared_packets_are_untracked() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.install(flow(p[0].0, 0, &[], vec![ct(Request::default()), Action::CtClear, Action::Recirc(1)])).unwrap();
    dp.install(after(p[0].0, CtState::NONE, vec![Action::Output(p[1].0)])).unwrap();
    p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
    dp.poll();
    assert_eq!(p[1].1.sent(), 1);
}

#[test]
fn connections_end_when_their_time_is_over() {
    let (dp, clock, p) = by_hand(Config::default(), 3);
    firewall(&dp, &p, Request::default(), Request { commit: true, ..Request::default() });
    p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
    dp.poll();
    let connections = || dp.conntrack().tracker.table.limits.connections();
    assert_eq!(connections(), 1);
    for _ in 0..100 {
        clock.advance(std::time::Duration::from_secs(1));
        dp.poll();
    }
    assert_eq!(connections(), 0);
}

/// A port that sends nothing but new connections pays for them with its turns; the other port is polled in each.
#[test]
fn new_connections_cost_their_own_port() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let commit = Request { commit: true, ..Request::default() };
    firewall(&dp, &p, Request::default(), commit);
    dp.install(flow(p[2].0, 0, &[], vec![ct(commit), Action::Output(p[1].0)])).unwrap();
    // Until its packets take the short way.
    for _ in 0..20 {
        p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
        dp.poll();
    }
    let mut passed_over = [0, 0];
    for n in 0..4_000 {
        for k in 0..32 {
            p[0].1.give(&udp(INSIDE, OUTSIDE, 1000, 53));
            if p[2].1.waiting() < 32 {
                p[2].1.give(&udp(INSIDE + 1 + n, OUTSIDE, 2000 + k, 53));
            }
        }
        dp.poll();
        for (port, passed_over) in [0, 2].into_iter().zip(&mut passed_over) {
            *passed_over += u32::from(p[port].1.waiting() > 0);
        }
        p[1].1.take();
    }
    assert_eq!(passed_over[0], 0, "the port with an established connection");
    assert!(passed_over[1] > 0, "the other has lost no turn");
}
