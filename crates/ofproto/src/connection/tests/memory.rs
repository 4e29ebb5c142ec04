//! What peers can make the switch keep, and how long answers are made.

use openflow::{PortConfig, PortFeatures, PortMod};

use super::super::bundles::MAX_BYTES;
use super::*;

/// Changes a port, each time in another way than before.
fn change_port(bridge: &Bridge, port: OfPort, n: usize) {
    let config = if n.is_multiple_of(2) { PortConfig::NO_FWD } else { PortConfig::empty() };
    let hw_addr = bridge.port_descs(port)[0].hw_addr;
    let change = PortMod { port, hw_addr, config, mask: PortConfig::NO_FWD, advertise: PortFeatures::empty() };
    bridge.port_mod(&change).unwrap();
}

#[test]
fn a_peer_that_does_not_read_costs_bounded_memory() {
    let bridge = bridge();
    let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_3);
    // Events: packet-ins are dropped and counted, the rest waits.
    for _ in 0..3 * PACKET_IN_QUEUE {
        s.mailbox.packet_in(&packet_in(PacketInReason::Action));
    }
    assert_eq!(s.dropped().packet_ins, 2 * PACKET_IN_QUEUE as u64);
    let port = add_port(&bridge, "p1");
    for n in 0..2 * MAX_OTHERS {
        change_port(&bridge, port, n);
    }
    assert_eq!(s.dropped().others, MAX_OTHERS as u64 + 2, "of a port that is added there are two");
    s.poll(START);
    assert!(s.output().len() < 2 * EVENT_LIMIT);
    // Requests: no more are taken once the answers to earlier ones have not been read.
    s.sent(usize::MAX);
    let echo = encode(&Message::new(Version::V1_3, 1, Body::EchoRequest(vec![0; 60_000])), s.options).unwrap();
    let mut n = 0;
    while s.wants_input() {
        s.receive(&echo, START);
        n += 1;
    }
    assert!(n < 30 && s.output().len() < OUTPUT_LIMIT + echo.len());
    s.receive(&echo, START);
    assert!(s.output().len() < OUTPUT_LIMIT + echo.len());
    // Once it reads, the one that waited is answered.
    s.sent(usize::MAX);
    s.poll(START);
    assert!(s.output().len() >= echo.len());
}

#[test]
fn the_peer_for_which_most_is_kept_is_closed_when_it_is_too_much_for_all() {
    let clock = Arc::new(TestClock(AtomicU64::new(1)));
    let limit = 2 << 20;
    let switch = Switch::new(SwitchSettings { controller_memory: limit, ..SwitchSettings::default() }, clock.clone());
    switch.attach(Datapath::new(Config { exact_entries: 256, ..Config::default() }, clock));
    let bridge = switch.add_bridge(BridgeConfig::new("br0", 0x1234)).unwrap();
    let mut sessions: Vec<_> = (0..8).map(|_| session(&bridge, ConnectionKind::Controller, Version::V1_3)).collect();
    let woken = Arc::new(AtomicU64::new(0));
    for session in &sessions {
        let woken = woken.clone();
        session.set_waker(Arc::new(move || {
            woken.fetch_add(1, Ordering::Relaxed);
        }));
    }
    let port = add_port(&bridge, "p1");
    // The first one reads, the second has an answer to read, too, and none of the others reads.
    let echo = encode(&Message::new(Version::V1_3, 1, Body::EchoRequest(vec![0; 60_000])), DecodeOptions::default());
    sessions[1].receive(&echo.unwrap(), START);
    for n in 0..100_000 {
        change_port(&bridge, port, n);
        sessions[0].poll(START);
        sessions[0].sent(usize::MAX);
        if switch.overflown_connections() > 0 {
            break;
        }
    }
    assert_eq!(switch.overflown_connections(), 1);
    sessions.iter_mut().for_each(|session| session.poll(START));
    let closed: Vec<_> = sessions.iter().map(|session| session.closed()).collect();
    let mut expected = vec![None; 8];
    expected[1] = Some(Closed::TooSlow);
    assert_eq!(closed, expected);
    assert!(sessions[1].output().is_empty() && woken.load(Ordering::Relaxed) > 0);
    // The others go one by one, and what is kept stays within the limit.
    for n in 0..3 * MAX_OTHERS {
        change_port(&bridge, port, n);
        sessions[0].poll(START);
        sessions[0].sent(usize::MAX);
    }
    assert!(sessions[0].closed().is_none());
    assert!((4..8).contains(&switch.overflown_connections()), "the last one has less than may be kept");
    drop(sessions);
    assert_eq!(bridge.event_memory().used(), 0);
}

/// A flow of its own for each number.
fn numbered_flow(n: u32) -> FlowMod {
    let mut m = Match::any();
    m.set(packet::Field::Reg0, n.into());
    let mut flow = FlowMod::new(FlowModCommand::Add, m, Instructions::apply(vec![Action::output(OfPort(2))]));
    flow.table = Some(TableId(3));
    flow
}

#[test]
fn a_long_dump_is_made_as_the_peer_reads_it() {
    const FLOWS: u32 = 12_000;
    let bridge = bridge();
    (0..FLOWS).for_each(|n| bridge.flow_mod(&numbered_flow(n)).unwrap());
    let s = &mut session(&bridge, ConnectionKind::Controller, Version::V1_3);
    let bytes = |xid, body| encode(&Message::new(Version::V1_3, xid, body), DecodeOptions::default()).unwrap();
    s.receive(&bytes(7, Body::MultipartRequest { more: false, request: all_flows() }), START);
    s.receive(&bytes(8, Body::BarrierRequest), START);
    s.mailbox.packet_in(&packet_in(PacketInReason::Action));
    s.poll(START);
    assert!(!s.wants_input() && s.output().len() < REPLY_LIMIT + (64 << 10), "{} bytes wait", s.output().len());
    // The tables are free, and who comes later is served.
    bridge.flow_mod(&numbered_flow(FLOWS)).unwrap();
    let other = &mut session(&bridge, ConnectionKind::Service, Version::V1_3);
    assert_eq!(ask(other, Body::BarrierRequest), Body::BarrierReply);
    // A slow reader is neither probed in the middle nor given up.
    s.poll(at(60));
    assert_eq!(s.closed(), None);
    assert!(s.next_timeout() > Some(at(60)));
    let (mut stream, mut most) = (Vec::new(), 0);
    while !s.output().is_empty() || s.has_work() {
        most = most.max(s.output().len());
        let n = s.output().len().min(10_000);
        stream.extend_from_slice(&s.output()[..n]);
        s.sent(n);
        s.poll(at(60));
    }
    assert!(most < REPLY_LIMIT + (64 << 10), "{most} bytes waited");
    let mut all = Vec::new();
    while let Some(len) = frame_len(&stream).unwrap() {
        let tail = stream.split_off(len);
        all.push(decode(&stream, DecodeOptions::default()).unwrap());
        stream = tail;
    }
    let parts = all.iter().take_while(|m| matches!(m.body, Body::MultipartReply { .. })).count();
    let flows = all[..parts].iter().enumerate().map(|(i, m)| match &m.body {
        Body::MultipartReply { more, reply: MultipartReply::Flow(flows) } => {
            assert_eq!((m.xid, *more), (7, i + 1 < parts));
            flows.len()
        }
        other => panic!("{other:?}"),
    });
    // With the NORMAL flow of a standalone bridge; without the flow that came after the request.
    assert_eq!(flows.sum::<usize>() as u32, FLOWS + 1);
    let rest: Vec<_> = all[parts..].iter().map(|m| &m.body).collect();
    assert!(matches!(rest[..], [Body::PacketIn(_), Body::BarrierReply]), "{rest:?}");
}

#[test]
fn a_peer_that_does_not_read_its_dump_keeps_no_flows() {
    const FLOWS: u32 = 5000;
    let bridge = bridge();
    (0..FLOWS).for_each(|n| bridge.flow_mod(&numbered_flow(n)).unwrap());
    let rules: Vec<_> = bridge.rules().iter().map(Arc::downgrade).collect();
    let s = &mut session(&bridge, ConnectionKind::Service, Version::V1_3);
    let request = Message::new(Version::V1_3, 7, Body::MultipartRequest { more: false, request: all_flows() });
    s.receive(&encode(&request, DecodeOptions::default()).unwrap(), START);
    while s.has_work() {
        s.poll(START);
    }
    assert!((1..256 << 10).contains(&s.output().len()), "{} bytes wait", s.output().len());
    bridge.flush_flows();
    assert_eq!(rules.iter().filter(|rule| rule.upgrade().is_some()).count(), 0);
    // When it reads, it gets what was left of its dump: that ends.
    while !s.output().is_empty() || s.has_work() {
        s.sent(usize::MAX);
        s.poll(START);
    }
    assert!(s.wants_input());
}

#[test]
fn a_long_search_is_done_in_steps() {
    let bridge = bridge();
    (0..12_000).for_each(|n| bridge.flow_mod(&numbered_flow(n)).unwrap());
    let s = &mut session(&bridge, ConnectionKind::Service, Version::V1_3);
    let MultipartRequest::Flow(mut nothing) = all_flows() else { panic!() };
    nothing.out_port = OfPort(77);
    let everything = FlowStatsRequest { out_port: OfPort::ANY, ..nothing.clone() };
    for (request, found) in
        [(MultipartRequest::Flow(nothing), 0), (MultipartRequest::Aggregate(everything), 12_000 + 1)]
    {
        let request = Message::new(Version::V1_3, 7, Body::MultipartRequest { more: false, request });
        s.receive(&encode(&request, DecodeOptions::default()).unwrap(), START);
        let mut polls = 0;
        while s.has_work() {
            assert!(s.output().is_empty() && !s.wants_input());
            s.poll(START);
            polls += 1;
        }
        assert!(polls > 0, "done at once");
        let flows = match &heard(s)[..] {
            [Message { body: Body::MultipartReply { more: false, reply }, .. }] => match reply {
                MultipartReply::Flow(flows) => flows.len(),
                MultipartReply::Aggregate(sum) => sum.flow_count as usize,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(flows, found);
    }
}

#[test]
fn what_waits_is_not_moved_for_each_byte_that_goes_or_comes() {
    let s = &mut session(&bridge(), ConnectionKind::Service, Version::V1_3);
    let echo = encode(&Message::new(Version::V1_3, 1, Body::EchoRequest(vec![0; 60_000])), s.options).unwrap();
    let mut places = Vec::new();
    for byte in &echo[..echo.len() - 1] {
        s.receive(std::slice::from_ref(byte), START);
        places.push(s.input.as_ptr());
    }
    places.dedup();
    assert!(places.len() < 100, "the input has moved {} times", places.len());
    s.receive(&echo[echo.len() - 1..], START);
    assert_eq!(s.output().len(), echo.len());
    let place = s.output().as_ptr() as usize;
    for n in 1..1000 {
        s.sent(1);
        assert_eq!(s.output().as_ptr() as usize, place + n, "the output has moved");
    }
}

/// Takes a long answer to its end.
fn take_all(s: &mut Session) {
    while s.has_work() {
        s.poll(START);
        s.sent(usize::MAX);
    }
}

#[test]
fn half_a_request_about_tables_keeps_only_names() {
    let bridge = bridge();
    let s = &mut session(&bridge, ConnectionKind::Service, Version::V1_3);
    let Body::MultipartReply { reply: MultipartReply::TableFeatures(all), .. } =
        tell(s, Body::MultipartRequest { more: false, request: MultipartRequest::TableFeatures(Vec::new()) })
            .remove(0)
            .body
    else {
        panic!()
    };
    take_all(s);
    let mut named = all[0].clone();
    named.name = "first".into();
    let part = |table| Body::MultipartRequest { more: true, request: MultipartRequest::TableFeatures(vec![table]) };
    assert_eq!(tell(s, part(named)), []);
    let (_, kept) = s.pending_tables.as_ref().unwrap();
    assert!(kept[0].matches.is_empty() && kept[0].wildcards.is_empty() && kept[0].normal.next_tables.is_empty());
    let rest = MultipartRequest::TableFeatures(vec![all[1].clone()]);
    tell(s, Body::MultipartRequest { more: false, request: rest });
    take_all(s);
    assert_eq!(bridge.table_stats()[0].name, "first");
    // No more pieces than tables can be told of.
    (0..255).for_each(|_| assert_eq!(tell(s, part(all[2].clone())), []));
    assert_eq!(error(&tell(s, part(all[2].clone()))[0].body), OfError::OFPBRC_MULTIPART_BUFFER_OVERFLOW);
}

fn bundle_add(s: &Session, bundle: u32, n: u32) -> Body {
    let message = encode(&Message::new(Version::V1_4, 77, Body::FlowMod(Box::new(numbered_flow(n)))), s.options);
    Body::BundleAdd(BundleAdd { bundle, flags: BundleFlags::empty(), message: message.unwrap() })
}

fn bundle_control(bundle: u32, kind: BundleControlKind) -> Body {
    Body::BundleControl(BundleControl { bundle, kind, flags: BundleFlags::empty() })
}

/// OVN's flows of a large deployment are one bundle.
#[test]
fn a_connection_can_have_a_bundle_of_a_million_flows_and_not_all_memory() {
    let bridge = bridge();
    let mut s = session(&bridge, ConnectionKind::Service, Version::V1_4);
    assert!(s.bundles.grow(1_000_000 * 200));
    let rest = MAX_BYTES - 1_000_000 * 200;
    assert!(!s.bundles.grow(rest + 1) && s.bundles.grow(rest));
    let mut other = session(&bridge, ConnectionKind::Service, Version::V1_4);
    assert!(other.bundles.grow(MAX_BYTES));
}

#[test]
fn bundles_take_no_more_memory_than_there_is_for_all_connections() {
    let bridge = bridge();
    let mut other = bridge.bundle_memory();
    let mut one = 1 << 40;
    while one > 0 {
        one = if other.grow(one) { one } else { one / 2 };
    }
    assert_eq!(other.bytes(), 2 << 30);
    // All but what some hundred flow-mods take.
    other.shrink(150_000);
    let mut a = session(&bridge, ConnectionKind::Service, Version::V1_4);
    let refused = (0..5000).find_map(|n| {
        let body = bundle_add(&a, 1, n);
        tell(&mut a, body).pop().map(|message| (n, error(&message.body)))
    });
    let (n, e) = refused.unwrap();
    assert!((500..1500).contains(&n) && e == OfError::OFPBFC_MSG_TOO_MANY, "{n} {e:?}");
    // Another session cannot have a bundle either.
    let mut b = session(&bridge, ConnectionKind::Service, Version::V1_4);
    let mut rest = bridge.bundle_memory();
    while rest.grow(100) || rest.grow(1) {}
    let refused = tell(&mut b, bundle_control(1, BundleControlKind::OpenRequest));
    assert_eq!(error(&refused[0].body), OfError::OFPBFC_OUT_OF_BUNDLES);
    // What was taken can be committed, and then there is room again; so there is when a connection ends.
    let commit = ask(&mut a, bundle_control(1, BundleControlKind::CommitRequest));
    assert!(matches!(commit, Body::BundleControl(BundleControl { kind: BundleControlKind::CommitReply, .. })));
    assert_eq!(bridge.table_stats()[3].active_count, n);
    let body = bundle_add(&b, 1, 0);
    assert_eq!(tell(&mut b, body), []);
    drop((a, b));
    drop(rest);
    assert!(other.grow(150_000));
}

#[test]
fn a_connection_has_no_more_than_so_many_bundles() {
    let s = &mut session(&bridge(), ConnectionKind::Service, Version::V1_4);
    let opened = (0..100_000).take_while(|&id| {
        matches!(tell(s, bundle_control(id, BundleControlKind::OpenRequest))[0].body, Body::BundleControl(_))
    });
    assert_eq!(opened.count(), 65_536);
    let refused = tell(s, bundle_control(200_000, BundleControlKind::OpenRequest));
    assert_eq!(error(&refused[0].body), OfError::OFPBFC_OUT_OF_BUNDLES);
    // All of them can have a message, and expire in the order in which they were used.
    let second = START + Duration::from_secs(1);
    (0..65_536).for_each(|id| {
        let body = bundle_add(s, id, id);
        let message = encode(&Message::new(Version::V1_4, 77, body), s.options).unwrap();
        s.receive(&message, if id < 100 { second } else { START });
        assert!(s.output().is_empty());
    });
    let idle = s.bridge.bundle_idle();
    assert_eq!(s.bundles.next_expiry(idle), Some(START + idle));
    s.expire_bundles(START + idle);
    assert_eq!(s.bundles.next_expiry(idle), Some(second + idle));
    s.expire_bundles(second + idle);
    assert_eq!((s.bundles.next_expiry(idle), s.bundles.grow(MAX_BYTES)), (None, true));
}
