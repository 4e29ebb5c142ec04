//! Flow monitors: what is told, when, and in which order, and what a peer that reads slowly costs.

use std::collections::BTreeMap;

use openflow::codec::encode_all;
use openflow::monitor::{FlowEvent, FlowMonitorCommand, FlowMonitorFlags, FlowMonitorRequest, FlowUpdate};
use packet::Field;
use proptest::prelude::*;

use super::super::flow_monitors::PAUSE_ABOVE;
use super::*;

fn monitor(id: u32, flags: FlowMonitorFlags) -> FlowMonitorRequest {
    FlowMonitorRequest {
        id,
        command: FlowMonitorCommand::Add,
        flags,
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        table: TableId::ALL,
        matching: Match::any(),
    }
}

/// All changes, in full.
fn all() -> FlowMonitorFlags {
    FlowMonitorFlags::all() - FlowMonitorFlags::ONLY_OWN
}

fn watch(requests: Vec<FlowMonitorRequest>) -> Body {
    Body::MultipartRequest { more: false, request: MultipartRequest::FlowMonitor(requests) }
}

fn delete(n: u16) -> FlowMod {
    FlowMod { command: FlowModCommand::DeleteStrict, ..add_flow(n) }
}

/// An update in short: the event, and the cookie of the flow or the transaction id.
fn short(update: &FlowUpdate) -> (&'static str, u64) {
    match update {
        FlowUpdate::Flow(flow) => match flow.event {
            FlowEvent::Initial => ("initial", flow.cookie.0),
            FlowEvent::Added => ("added", flow.cookie.0),
            FlowEvent::Removed(_) => ("removed", flow.cookie.0),
            FlowEvent::Modified => ("modified", flow.cookie.0),
        },
        FlowUpdate::Abbreviated { xid } => ("own", u64::from(*xid)),
        FlowUpdate::Paused => ("paused", 0),
        FlowUpdate::Resumed => ("resumed", 0),
    }
}

fn updates(messages: &[Message]) -> Vec<FlowUpdate> {
    let updates = |message: &Message| match &message.body {
        Body::MultipartReply { reply: MultipartReply::FlowMonitor(updates), .. } => updates.clone(),
        Body::FlowMonitorPaused => vec![FlowUpdate::Paused],
        Body::FlowMonitorResumed => vec![FlowUpdate::Resumed],
        other => panic!("{other:?} is no update"),
    };
    messages.iter().flat_map(updates).collect()
}

/// The answer to a request, however many pieces it has.
fn answer(s: &mut Session, requests: Vec<FlowMonitorRequest>) -> Vec<FlowUpdate> {
    let mut messages = tell(s, watch(requests));
    while s.has_work() {
        s.poll(START);
        messages.extend(heard(s));
    }
    updates(&messages)
}

/// What the session has to say unasked: the updates of each message.
fn told(s: &mut Session) -> Vec<Vec<(&'static str, u64)>> {
    s.poll(START);
    heard(s).iter().map(|message| updates(std::slice::from_ref(message)).iter().map(short).collect()).collect()
}

#[test]
fn the_flows_that_are_there_are_told_once_and_then_what_changes() {
    let bridge = bridge();
    (1..=3).for_each(|n| bridge.flow_mod(&add_flow(n)).unwrap());
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_4);
    let mut narrow = monitor(2, all() - FlowMonitorFlags::INSTRUCTIONS);
    narrow.matching.set_in_port(OfPort(2));
    let wide = monitor(1, all());
    let flows = answer(&mut s, vec![narrow, wide]);
    let mut initial: Vec<_> = flows.iter().map(short).collect();
    initial.sort_unstable();
    assert_eq!(initial, [("initial", 0), ("initial", 1), ("initial", 2), ("initial", 3)]);
    let has_actions = |update: &FlowUpdate| match update {
        FlowUpdate::Flow(flow) => !flow.instructions.apply.is_empty(),
        _ => false,
    };
    assert!(flows.iter().all(has_actions), "one of the monitors wants them");

    bridge.flow_mod(&add_flow(4)).unwrap();
    bridge.flow_mod(&FlowMod { command: FlowModCommand::Modify, ..add_flow(4) }).unwrap();
    bridge.flow_mod(&FlowMod { new_cookie: Some(Cookie(44)), command: FlowModCommand::Modify, ..add_flow(4) }).unwrap();
    bridge.flow_mod(&add_flow(1)).unwrap();
    let mut everything = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
    everything.cookie = CookieFilter { value: 1, mask: 1 };
    bridge.flow_mod(&everything).unwrap();
    let mut all_told = told(&mut s);
    let mut removed = all_told.pop().unwrap();
    removed.sort_unstable();
    // A modification that changes nothing is none.
    assert_eq!(all_told, [[("added", 4)], [("modified", 44)], [("added", 1)]]);
    assert_eq!(removed, [("removed", 1), ("removed", 3)], "a transaction is a message");

    bridge.flush_flows();
    assert_eq!(told(&mut s).concat().len(), 4, "three that were left, and the NORMAL flow anew");
}

#[test]
fn a_monitor_is_told_only_what_it_asks_for() {
    use FlowMonitorFlags as F;
    let bridge = bridge();
    let modify = |n: u16, port: u32| FlowMod {
        command: FlowModCommand::ModifyStrict,
        instructions: Instructions::apply(vec![Action::output(OfPort(port))]),
        ..add_flow(n)
    };
    let events = |request: FlowMonitorRequest| {
        let mut s = session(&bridge, ConnectionKind::Controller, Version::V1_5);
        answer(&mut s, vec![request]);
        bridge.flow_mod(&add_flow(1)).unwrap();
        bridge.flow_mod(&modify(1, 7)).unwrap();
        bridge.flow_mod(&modify(1, 8)).unwrap();
        bridge.flow_mod(&delete(1)).unwrap();
        told(&mut s).concat().into_iter().map(|(event, _)| event).collect::<Vec<_>>()
    };
    assert_eq!(events(monitor(1, F::all())), ["added", "modified", "modified", "removed"]);
    assert_eq!(events(monitor(1, F::MODIFY | F::INITIAL)), ["modified", "modified"]);
    assert_eq!(events(monitor(1, F::ADD | F::REMOVED)), ["added", "removed"]);
    // The port that it has output to before the change counts, too.
    assert_eq!(events(FlowMonitorRequest { out_port: OfPort(7), ..monitor(1, all()) }), ["modified", "modified"]);
    assert!(events(FlowMonitorRequest { out_group: GroupId(7), ..monitor(1, all()) }).is_empty());
    assert!(events(FlowMonitorRequest { table: TableId(3), ..monitor(1, all()) }).is_empty());
    let mut other = monitor(1, all());
    other.matching.set(Field::InPortOxm, 9);
    assert!(events(other).is_empty());
}

#[test]
fn a_connections_own_changes_are_abbreviated_and_come_before_later_answers() {
    let bridge = bridge();
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_0);
    let abbreviating = FlowMonitorFlags::CHANGES;
    ask(&mut s, watch(vec![monitor(1, abbreviating)]));
    let mut stream = Vec::new();
    for (xid, body) in [
        (21, Body::FlowMod(Box::new(add_flow(1)))),
        (22, Body::EchoRequest(vec![])),
        (23, Body::FlowMod(Box::new(delete(1)))),
        (24, Body::BarrierRequest),
    ] {
        stream.extend(
            encode_all(&Message::new(Version::V1_0, xid, body), DecodeOptions::default()).unwrap().messages.concat(),
        );
    }
    s.receive(&stream, START);
    bridge.flow_mod(&add_flow(2)).unwrap();
    s.poll(START);
    let bodies: Vec<_> = heard(&mut s).into_iter().map(|message| (message.xid, message.body)).collect();
    let own = |xid| (0, vec![FlowUpdate::Abbreviated { xid }]);
    let update = |n: usize| match &bodies[n] {
        (xid, Body::MultipartReply { reply: MultipartReply::FlowMonitor(updates), .. }) => (*xid, updates.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(update(0), own(21));
    assert_eq!(bodies[1], (22, Body::EchoReply(vec![])));
    assert_eq!(update(2), own(23));
    assert_eq!(bodies[3], (24, Body::BarrierReply));
    assert_eq!(update(4).1.iter().map(short).collect::<Vec<_>>(), [("added", 2)], "somebody else's");
}

#[test]
fn requests_that_cannot_be_met_change_nothing() {
    let bridge = bridge();
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_4);
    let request = |id, command| FlowMonitorRequest { command, ..monitor(id, all()) };
    use FlowMonitorCommand::*;
    let refused = |s: &mut Session, requests| error(&ask(s, watch(requests)));
    assert_eq!(refused(&mut s, vec![request(1, Add), request(1, Add)]), OfError::OFPMOFC_MONITOR_EXISTS);
    assert_eq!(refused(&mut s, vec![request(1, Add), request(2, Delete)]), OfError::OFPMOFC_UNKNOWN_MONITOR);
    assert_eq!(refused(&mut s, vec![request(1, Modify)]), OfError::OFPMOFC_UNKNOWN_MONITOR, "the first was not added");
    let watchers = || bridge.switch.forwarding.read().bridges[&bridge.id()].watchers.len();
    assert_eq!(watchers(), 0, "nobody watches in vain");

    let many = |range: std::ops::Range<u32>| range.map(|id| request(id, Add)).collect::<Vec<_>>();
    answer(&mut s, many(0..256));
    assert_eq!(refused(&mut s, many(256..257)), OfError::OFPBRC_EPERM);
    // Each change looks at those of all connections.
    let mut others: Vec<_> = (0..3).map(|_| session(&bridge, ConnectionKind::Service, Version::V1_4)).collect();
    others.iter_mut().for_each(|other| drop(answer(other, many(0..256))));
    let mut last = session(&bridge, ConnectionKind::Service, Version::V1_4);
    assert_eq!(refused(&mut last, many(0..1)), OfError::OFPBRC_EPERM);
    others.pop();
    answer(&mut last, many(0..256));
    drop((others, last));
    answer(&mut s, vec![request(7, Modify)]);
    answer(&mut s, (0..255).map(|id| request(id, Delete)).collect());
    assert_eq!(watchers(), 1);
    answer(&mut s, vec![request(255, Delete)]);
    assert_eq!(watchers(), 0);

    let mut old = session(&bridge, ConnectionKind::Service, Version::V1_2);
    answer(&mut old, vec![monitor(5, all())]);
    assert_eq!(error(&ask(&mut old, Body::FlowMonitorCancel(6))), OfError::OFPMOFC_UNKNOWN_MONITOR);
    assert_eq!(tell(&mut old, Body::FlowMonitorCancel(5)), []);
    bridge.flow_mod(&add_flow(1)).unwrap();
    assert!(told(&mut old).is_empty());
    answer(&mut old, vec![monitor(5, all())]);
    assert_eq!(watchers(), 1);
    drop(old);
    assert_eq!(watchers(), 0);
}

/// What a peer knows of the flows: the cookie of each, by the port that it matches.
#[derive(Default, Debug, PartialEq)]
struct View {
    flows: BTreeMap<u128, u64>,
    is_paused: bool,
    pauses: usize,
}

impl View {
    fn hear(&mut self, messages: &[Message]) {
        for update in updates(messages) {
            match update {
                FlowUpdate::Flow(flow) => {
                    let port = flow.matching.key.get(Field::InPortOxm);
                    match flow.event {
                        FlowEvent::Removed(_) => {
                            assert!(self.flows.remove(&port).is_some(), "{port} is not known");
                        }
                        FlowEvent::Modified => {
                            assert!(self.flows.insert(port, flow.cookie.0).is_some(), "{port} is not known");
                        }
                        FlowEvent::Added | FlowEvent::Initial => drop(self.flows.insert(port, flow.cookie.0)),
                    }
                }
                FlowUpdate::Paused => {
                    assert!(!std::mem::replace(&mut self.is_paused, true));
                    self.pauses += 1;
                }
                FlowUpdate::Resumed => assert!(std::mem::replace(&mut self.is_paused, false)),
                FlowUpdate::Abbreviated { .. } => panic!("nothing of its own"),
            }
        }
    }
}

fn flows_of(bridge: &Bridge) -> BTreeMap<u128, u64> {
    let rules = bridge.rules();
    rules.iter().map(|rule| (rule.pattern.key().get(Field::InPortOxm), rule.cookie.0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_changes_and_however_it_reads_a_peer_knows_the_flows_in_the_end(
        version in prop::sample::select(&Version::ALL[..]),
        rounds in prop::collection::vec((prop::collection::vec((0u8..4, 1u16..400), 1..400), any::<bool>(), 1usize..200_000), 1..20),
    ) {
        let bridge = bridge();
        let mut s = session(&bridge, ConnectionKind::Service, version);
        let mut request = monitor(1, all());
        request.flags.set(FlowMonitorFlags::INSTRUCTIONS, true);
        let mut view = View::default();
        view.hear(&tell(&mut s, watch(vec![request])));
        let (mut stream, mut cookie) = (Vec::new(), 1000);
        for (changes, is_loud, read) in rounds {
            for (kind, n) in changes {
                cookie += 1;
                let mut change = add_flow(n);
                change.new_cookie = Some(Cookie(cookie));
                if is_loud {
                    // So that an update takes much room.
                    change.instructions = Instructions::apply(vec![Action::output(OfPort(1)); 200]);
                }
                change.command = match kind {
                    0 | 1 => FlowModCommand::Add,
                    2 => FlowModCommand::ModifyStrict,
                    _ => FlowModCommand::DeleteStrict,
                };
                if kind != 2 || flows_of(&bridge).contains_key(&n.into()) {
                    bridge.flow_mod(&change).unwrap();
                }
            }
            s.poll(START);
            let n = read.min(s.output().len());
            stream.extend_from_slice(&s.output()[..n]);
            s.sent(n);
            s.poll(START);
        }
        while !s.output().is_empty() {
            stream.extend_from_slice(s.output());
            s.sent(usize::MAX);
            s.poll(START);
        }
        while let Some(len) = frame_len(&stream).unwrap() {
            let rest = stream.split_off(len);
            view.hear(&[decode(&stream, DecodeOptions::default()).unwrap()]);
            stream = rest;
        }
        prop_assert_eq!(&view.flows, &flows_of(&bridge));
        prop_assert!(!view.is_paused);
    }
}

#[test]
fn a_peer_that_does_not_read_costs_little_and_hears_of_each_flow_once_when_it_does() {
    let bridge = bridge();
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_3);
    ask(&mut s, watch(vec![monitor(1, all())]));
    let memory = bridge.event_memory();
    (1..=5000).for_each(|n| bridge.flow_mod(&add_flow(n)).unwrap());
    let after_adding = memory.used();
    assert!(after_adding < PAUSE_ABOVE + (8 << 10) + 5000 * 64, "{after_adding}");
    for _ in 0..5 {
        // Each flow is there anew; none costs more for it.
        (4000..=5000).for_each(|n| bridge.flow_mod(&add_flow(n)).unwrap());
        (4500..=5000).for_each(|n| bridge.flow_mod(&delete(n)).unwrap());
    }
    assert!(memory.used() <= after_adding, "{} {after_adding}", memory.used());
    let mut messages = Vec::new();
    loop {
        s.poll(START);
        let heard = heard(&mut s);
        if heard.is_empty() {
            break;
        }
        messages.extend(heard);
    }
    let events: Vec<_> = updates(&messages).iter().map(|update| short(update).0).collect();
    let count = |wanted| events.iter().filter(|event| **event == wanted).count();
    assert_eq!((count("paused"), count("resumed")), (1, 1));
    assert_eq!(count("removed"), 0, "the peer has not heard of those that were");
    assert_eq!(count("added"), 4499);
    assert_eq!(events.last(), Some(&"resumed"));
}

#[test]
fn what_nobody_reads_at_all_closes_the_connection() {
    let bridge = bridge();
    (1..=5000).for_each(|n| bridge.flow_mod(&add_flow(n)).unwrap());
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_4);
    ask(&mut s, watch(vec![monitor(1, all() - FlowMonitorFlags::INITIAL)]));
    bridge.event_memory().set_limit(200 << 10);
    // Their removal is told one by one, as the peer knows of them.
    bridge.flow_mod(&FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default())).unwrap();
    s.poll(START);
    assert_eq!(s.closed(), Some(Closed::TooSlow));
    assert!(bridge.event_memory().used() < 1 << 10, "{}", bridge.event_memory().used());
    bridge.flow_mod(&add_flow(1)).unwrap();
}
