//! Taps: what is shown of packets, and that it costs their reader's patience, never a packet.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{MemPort, ToPort, by_hand, eventually, flow, udp};
use datapath::meter::{MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use datapath::pipeline::ingress::{Filter, Ingress};
use datapath::sync::clock::MonotonicClock;
use datapath::tap::{Event, Record, TapCounts, TapFilter, TapSettings};
use datapath::{Action, Config, Datapath, DropReason, Error, PortNo, Rewrite, Tap};
use packet::{Clock, Field, Packet, Time};

/// What a tap has shown since the last call, without its frames.
fn shown(tap: &mut Tap) -> Vec<Record> {
    let mut records = Vec::new();
    let mut take = |record: &Record, _: &[u8]| {
        records.push(*record);
        true
    };
    while tap.read(&mut take) > 0 {}
    records
}

/// The same, as ports and events.
fn events(tap: &mut Tap) -> Vec<(u32, Event)> {
    shown(tap).iter().map(|record| (record.port.0, record.event)).collect()
}

fn drops_only() -> TapSettings {
    TapSettings { drops_only: true, ..TapSettings::default() }
}

#[test]
fn a_packet_is_shown_as_it_came_with_its_flow_and_as_it_leaves() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let rewrite = vec![Action::PushVlan { tpid: 0x8100, tci: 0x1007 }, Action::Output(p[1].0)];
    let id = dp.install(flow(p[0].0, 0, &[], rewrite)).unwrap();
    let mut tap = dp.add_tap(TapSettings { snap_length: 20, ..TapSettings::default() }, None).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    let mut seen = Vec::new();
    tap.read(|record, frame| {
        seen.push((*record, frame.to_vec()));
        true
    });
    let [(came, before), (went, after)] = &seen[..] else { panic!("{seen:?}") };
    let time = Time(1_000_000_000);
    let expected =
        Record { time, event: Event::Received(None), port: p[0].0, flow: Some(id), length: 64, recirc_id: 0 };
    assert_eq!((*came, &before[..]), (expected, &udp(1, 2, 3, 4)[..20]));
    let expected = Record { event: Event::Sent, port: p[1].0, flow: None, length: 68, ..expected };
    assert_eq!((*went, &after[12..16], after.len()), (expected, &[0x81, 0, 0, 7][..], 20));
}

#[test]
fn each_drop_is_shown_once_with_its_reason() {
    struct RefuseAll;
    impl Filter for RefuseAll {
        fn refused(&mut self, packets: &[Packet], _: Time) -> u32 {
            ((1u64 << packets.len()) - 1) as u32
        }
    }
    let (dp, clock, p) = by_hand(Config::default(), 3);
    let mut tap = dp.add_tap(drops_only(), None).unwrap();
    let mut dropped = |source: u32, packets: u32| {
        (0..packets).for_each(|_| p[0].1.give(&udp(source, 2, 3, 4)));
        dp.poll();
        shown(&mut tap).iter().map(|record| (record.port, record.event, record.flow)).collect::<Vec<_>>()
    };
    let install = |source: u128, actions| {
        let fields = [(Field::DlType, 0x0800), (Field::NwSrc, source)];
        Some(dp.install(flow(p[0].0, 0, &fields, actions)).unwrap())
    };
    let by_flow = install(1, vec![]);
    let to_down = install(2, vec![Action::Output(p[1].0)]);
    let flooded = install(3, vec![Action::Output(p[1].0), Action::Output(p[2].0)]);
    let band = MeterBand { kind: MeterBandKind::Drop, rate: 1, burst: 1 };
    let meter = Arc::<MeterNumbers>::default().add(MeterUnit::Packets, &[band], clock.now()).unwrap();
    let metered = install(4, vec![Action::Meter(meter), Action::Output(p[2].0)]);
    let again = install(5, vec![Action::Recirc(7)]);
    let later = Some(dp.install(flow(p[0].0, 7, &[], vec![Action::Drop(DropReason::TtlExceeded)])).unwrap());
    let missing = install(6, vec![Action::Output(PortNo(99))]);
    p[1].1.up.store(false, Ordering::Relaxed);
    dp.refresh_port(p[1].0).unwrap();
    let _ = (by_flow, again);

    let rule = (p[0].0, Event::Received(Some(DropReason::Rule)), by_flow);
    assert_eq!(dropped(1, 2), [rule; 2]);
    assert_eq!(dropped(2, 1), [(p[1].0, Event::Dropped(DropReason::PortDown), to_down)]);
    assert_eq!(dropped(3, 1), [(p[1].0, Event::Dropped(DropReason::PortDown), flooded)], "the other copy was sent");
    assert_eq!(dropped(4, 3), [(p[0].0, Event::Dropped(DropReason::Meter), metered); 2]);
    assert_eq!(dropped(5, 1), [(p[0].0, Event::Dropped(DropReason::TtlExceeded), later)]);
    assert_eq!(dropped(6, 1), [(p[0].0, Event::Dropped(DropReason::NoSuchPort), missing)]);
    assert_eq!(dropped(77, 1), [(p[0].0, Event::Received(Some(DropReason::UpcallError)), None)]);
    dp.set_ingress(p[0].0, |_| Some(Box::new(Ingress { filter: Some(Box::new(RefuseAll)), ..Ingress::default() })))
        .unwrap();
    assert_eq!(dropped(1, 2), [(p[0].0, Event::Received(Some(DropReason::IngressFilter)), None); 2]);
    p[0].1.up.store(false, Ordering::Relaxed);
    dp.refresh_port(p[0].0).unwrap();
    assert_eq!(dropped(1, 1), [(p[0].0, Event::Received(Some(DropReason::InPortDown)), None)]);
    let account = dp.account();
    assert_eq!(account.came(), account.went(), "{account}");
}

#[test]
fn what_misses_is_shown_when_it_comes_back_with_the_flow_that_was_made_for_it() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.set_upcall(ToPort::new(p[1].0, Field::NwSrc, true));
    let mut tap = dp.add_tap(TapSettings { sent: false, ..TapSettings::default() }, None).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    (0..4).for_each(|_| assert!(dp.poll() <= 1));
    let flow = dp.flows().next().unwrap().id;
    let seen = shown(&mut tap);
    let seen: Vec<_> = seen.iter().map(|record| (record.event, record.flow)).collect();
    assert_eq!(seen, [(Event::Received(None), Some(flow))], "once");
    // Where nothing is installed, there is no flow to name.
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.set_upcall(ToPort::new(p[1].0, Field::NwSrc, false));
    let mut tap = dp.add_tap(TapSettings { sent: false, ..TapSettings::default() }, None).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    (0..4).for_each(|_| assert!(dp.poll() <= 1));
    assert_eq!(shown(&mut tap).iter().map(|r| (r.event, r.flow)).collect::<Vec<_>>(), [(Event::Received(None), None)]);
}

#[test]
fn packets_of_one_batch_have_their_own_flows() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let install = |source: u128, actions| {
        let fields = [(Field::DlType, 0x0800), (Field::NwSrc, source)];
        dp.install(flow(p[0].0, 0, &fields, actions)).unwrap()
    };
    let ttl = || Action::Set(Arc::new(Rewrite::field(Field::NwTtl, 3)));
    let flows = [
        install(0, vec![]),
        install(1, vec![Action::Output(p[1].0)]),
        install(2, vec![ttl(), Action::Output(p[1].0)]),
        install(3, vec![Action::Output(PortNo(98)), Action::Output(p[1].0)]),
    ];
    let mut tap = dp.add_tap(TapSettings::default(), Some([p[0].0].into())).unwrap();
    (0..32).for_each(|n| p[0].1.give(&udp(n % 4, 2, 3, 4)));
    dp.poll();
    let seen = shown(&mut tap);
    let received: Vec<_> = seen.iter().filter(|r| matches!(r.event, Event::Received(_))).map(|r| r.flow).collect();
    assert_eq!(received, (0..32).map(|n| Some(flows[n % 4])).collect::<Vec<_>>());
    let lost: Vec<_> = seen.iter().filter(|r| matches!(r.event, Event::Dropped(_))).map(|r| r.flow).collect();
    assert_eq!(lost, [Some(flows[3]); 8], "the copies for a port that is not there");
    assert_eq!(seen.len(), 40, "nothing of the other port");
}

#[test]
fn ports_directions_and_filters_choose() {
    struct FromOne;
    impl TapFilter for FromOne {
        fn matches(&self, packet: &Packet) -> bool {
            packet.data()[29] == 1
        }
    }
    let (dp, _, p) = by_hand(Config::default(), 3);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let add = |settings, ports| dp.add_tap(settings, ports).unwrap();
    let only = |n: usize| Some([p[n].0].into());
    let mut received = add(TapSettings { sent: false, ..TapSettings::default() }, None);
    let mut sent = add(TapSettings { received: false, ..TapSettings::default() }, None);
    let mut first = add(TapSettings::default(), only(0));
    let mut second = add(TapSettings::default(), only(1));
    let mut nothing = add(TapSettings::default(), Some([].into()));
    let mut filtered = add(TapSettings { filter: Some(Arc::new(FromOne)), ..TapSettings::default() }, None);
    (1..3).for_each(|source| p[0].1.give(&udp(source, 2, 3, 4)));
    dp.poll();
    let (came, went) = ((p[0].0.0, Event::Received(None)), (p[1].0.0, Event::Sent));
    assert_eq!(events(&mut received), [came; 2]);
    assert_eq!(events(&mut sent), [went; 2]);
    assert_eq!(events(&mut first), [came; 2]);
    assert_eq!(events(&mut second), [went; 2]);
    assert_eq!(events(&mut nothing), []);
    assert_eq!(events(&mut filtered), [came, went]);
    // A port that comes back has another number.
    nothing.set_ports(only(1));
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(events(&mut nothing), [went]);
}

#[test]
fn a_reader_that_does_not_read_loses_samples_and_no_packet() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let mut tap = dp.add_tap(TapSettings { sent: false, ..TapSettings::default() }, None).unwrap();
    let mut limited = dp.add_tap(TapSettings { sent: false, rate: Some(50), ..TapSettings::default() }, None).unwrap();
    const PACKETS: u64 = 32 * 2000;
    for _ in 0..PACKETS / 32 {
        (0..32).for_each(|_| p[0].1.give(&udp(1, 2, 3, 4)));
        dp.poll();
    }
    assert_eq!(p[1].1.sent() as u64, PACKETS);
    let read = shown(&mut tap).len() as u64;
    assert!((1..PACKETS).contains(&read));
    assert_eq!(tap.counts(), TapCounts { lost: PACKETS - read, skipped: 0 });
    assert_eq!(shown(&mut limited).len(), 5);
    assert_eq!(limited.counts(), TapCounts { lost: 0, skipped: PACKETS - 5 });
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(shown(&mut tap).len(), 1, "it goes on");
}

#[test]
fn a_reader_that_has_enough_finds_the_rest_later() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let mut tap = dp.add_tap(TapSettings { sent: false, ..TapSettings::default() }, None).unwrap();
    (0..10).for_each(|n| p[0].1.give(&udp(n, 2, 3, 4)));
    dp.poll();
    let mut sources = Vec::new();
    for _ in 0..5 {
        let mut left = 2;
        let read = tap.read(|_, frame| {
            sources.push(frame[29]);
            left -= 1;
            left > 0
        });
        assert_eq!(read, 2);
    }
    assert_eq!((sources, tap.read(|_, _| true)), ((0..10).collect(), 0));
}

#[test]
fn so_many_taps_at_a_time() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    let mut taps: Vec<_> = (0..Datapath::MOST_TAPS).map(|_| dp.add_tap(drops_only(), None).unwrap()).collect();
    assert!(matches!(dp.add_tap(drops_only(), None), Err(Error::TooManyTaps(16))));
    drop(taps.swap_remove(3));
    let mut another = dp.add_tap(TapSettings::default(), None).unwrap();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(events(&mut another).len(), 2);
    another.close();
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(events(&mut another).len(), 0, "what is closed is shown nothing");
    drop((taps, another));
    p[0].1.give(&udp(1, 2, 3, 4));
    dp.poll();
    assert_eq!(p[1].1.sent(), 3);
}

#[test]
fn workers_that_come_and_go_show_packets() {
    let clock = Arc::new(MonotonicClock::new());
    let dp = Datapath::new(Config { max_workers: 4, ..Config::default() }, clock);
    let p: Vec<_> = ["a", "b"]
        .map(|name| {
            let port = MemPort::new(name);
            (dp.add_port(port.clone()).unwrap(), port)
        })
        .into();
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[1].0)])).unwrap();
    dp.start().unwrap();
    let mut tap = dp.add_tap(TapSettings { sent: false, ..TapSettings::default() }, None).unwrap();
    let (mut given, mut seen) = (0, 0);
    for cores in [&[][..], &[0], &[], &[0]] {
        dp.set_workers(cores).unwrap();
        (0..10).for_each(|_| p[0].1.give(&udp(1, 2, 3, 4)));
        given += 10;
        eventually("forwarding", || p[1].1.sent() == given);
        seen += shown(&mut tap).len();
        assert_eq!(seen, given);
    }
    assert!(dp.settle(Duration::from_secs(30)));
    dp.stop();
}
