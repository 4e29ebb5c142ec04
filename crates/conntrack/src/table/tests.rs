use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::protocol::simple::Seen;
use crate::tuple::tests::v4;

const SECRET: [u64; 2] = [11, 12];

fn at(seconds: u64) -> Time {
    Time(1_000_000_000) + Duration::from_secs(seconds)
}

fn udp(n: u16) -> Tuple {
    v4([10, 0, (n >> 8) as u8, n as u8], 1000, [10, 9, 9, 9], 53, 17)
}

fn contents(orig: Tuple, reply: Tuple) -> Contents {
    Contents { reply, ..plain(orig) }
}

fn plain(orig: Tuple) -> Contents {
    Contents::new(orig, Protocol::Simple(Seen::First))
}

fn insert(table: &Table, new: &Contents, seconds: u64) -> Result<Reference, Refused> {
    table.insert(new, Timeout::UdpFirst, at(seconds))
}

#[test]
fn both_directions_are_found_until_the_time_is_over() {
    let table = Table::new(10, SECRET);
    let connection = insert(&table, &plain(udp(1)), 0).unwrap();
    let found = |tuple: &Tuple, seconds| table.find(tuple, at(seconds)).map(|f| (f.connection, f.reply));
    assert_eq!(found(&udp(1), 0), Some((connection, false)));
    assert_eq!(found(&udp(1).reverse(), 59), Some((connection, true)));
    assert_eq!(found(&udp(1), 60), None);
    assert_eq!(found(&udp(1).in_zone(1), 0), None);
    assert!(matches!(insert(&table, &plain(udp(1)), 59), Err(Refused::Exists(f)) if f.connection == connection));
    let second = insert(&table, &plain(udp(1)), 60).unwrap();
    assert_eq!(found(&udp(1), 60), Some((second, false)));
    assert!(!table.remove(connection) && table.remove(second) && !table.remove(second));
    assert_eq!(table.counts(), Counts { made: 2, removed: 2, dropped_early: 0 });
    assert_eq!(table.limits.connections(), 0);
}

#[test]
fn what_a_connection_holds_comes_back() {
    let table = Table::new(10, SECRET);
    let (a, b) = (std::net::IpAddr::from([0xfc; 16]), std::net::IpAddr::from([0xfd; 16]));
    let orig = Tuple::new(a, b, 6, (40000, 80), 7).unwrap();
    let syn = Segment { seq: 5, flags: 2, window: 1000, scale: Some(7), ..Segment::default() };
    let (protocol, timeout) = first_state(&orig, Some(&syn)).unwrap();
    let mut reply = orig.reverse();
    reply.set_port(crate::tuple::Side::Dst, 50000);
    let new = Contents {
        protocol,
        mark: 3,
        label: 4 << 100 | 5,
        flags: flags::SNAT | flags::RELATED,
        parent: Some(udp(9)),
        skew: [slot::Skew { total: -3, last: -2, position: 9 }, slot::Skew { total: 7, last: 8, position: u32::MAX }],
        ..contents(orig, reply)
    };
    let connection = table.insert(&new, timeout, at(0)).unwrap();
    assert_eq!(table.read(connection).unwrap().0, new);
    assert_eq!(table.seconds_left(connection, at(10)), Some(20));
    assert_eq!(table.mark(connection, Some((1, u32::MAX)), None), Some((3, 4 << 100 | 5)), "expected: unchanged");
    assert!(table.remove(connection));
    assert!(table.read(connection).is_none());
}

#[test]
fn mark_and_label_change_the_version() {
    let table = Table::new(10, SECRET);
    let connection = insert(&table, &plain(udp(1)), 0).unwrap();
    let found = table.find(&udp(1), at(0)).unwrap();
    assert_eq!(table.mark(connection, Some((0xff, 0x0f)), Some((1, 1))), Some((0x0f, 1)));
    assert!(!table.is_current(&found));
    let found = table.find(&udp(1), at(0)).unwrap();
    assert_eq!(table.mark(connection, Some((0x0f, 0x0f)), None), Some((0x0f, 1)));
    assert!(table.is_current(&found), "nothing has changed");
    table.step_simple(&udp(1).reverse(), &Found { reply: true, ..found }, at(0));
    assert!(!table.is_current(&found), "it is established");
    let found = table.find(&udp(1), at(0)).unwrap();
    table.step_simple(&udp(1), &found, at(0)).unwrap();
    assert!(table.is_current(&found));
}

#[test]
fn a_translated_port_is_leased_once() {
    let table = Table::new(10, SECRET);
    let reply = v4([10, 9, 9, 9], 53, [1, 1, 1, 1], 5000, 17);
    insert(&table, &contents(udp(1), reply), 0).unwrap();
    assert_eq!(insert(&table, &contents(udp(2), reply), 0), Err(Refused::ReplyTaken));
    assert!(insert(&table, &contents(udp(2), reply), 60).is_ok(), "the first has ended");
    assert_eq!(table.limits.connections(), 1);
}

#[test]
fn limits_of_all_and_of_a_zone() {
    let table = Table::new(3, SECRET);
    table.limits.set_zone_limit(5, Some(1));
    let zoned = |n| plain(udp(n).in_zone(5));
    let first = insert(&table, &zoned(1), 0).unwrap();
    assert_eq!(insert(&table, &zoned(2), 0), Err(Refused::ZoneFull));
    insert(&table, &plain(udp(1)), 0).unwrap();
    insert(&table, &plain(udp(2)), 0).unwrap();
    assert_eq!(insert(&table, &plain(udp(3)), 0), Err(Refused::Full));
    assert_eq!((table.limits.connections(), table.limits.zone_connections(5)), (3, 1));
    table.remove(first);
    table.limits.set_zone_limit(5, None);
    table.limits.set_default_zone_limit(Some(2));
    assert_eq!((table.limits.zone_limit(5), table.limits.zone_limit(6)), (Some(2), Some(2)));
    table.limits.set_zone_limit(5, Some(0));
    assert_eq!(table.limits.zone_limit(5), None);
    assert_eq!(insert(&table, &plain(udp(3)), 0), Err(Refused::ZoneFull), "zone 0 has two");
    assert!(insert(&table, &zoned(2), 0).is_ok());
}

#[test]
fn early_drop_takes_unanswered_connections_only() {
    let table = Table::new(2000, SECRET);
    let answered = |n: u16| n.is_multiple_of(2);
    for n in 0..1000 {
        insert(&table, &plain(udp(n)), 0).unwrap();
        if answered(n) {
            let found = table.find(&udp(n).reverse(), at(0)).unwrap();
            table.step_simple(&udp(n).reverse(), &found, at(0)).unwrap();
        }
    }
    let dropped = (0..1000).filter(|n| table.drop_early(table.hash(&udp(*n)))).count();
    assert!(dropped > 400, "{dropped}");
    assert_eq!(table.counts().dropped_early, dropped as u64);
    for n in (0..1000).filter(|n| answered(*n)) {
        assert!(table.find(&udp(n), at(0)).is_some());
    }
}

#[test]
fn expiry_is_in_small_steps_and_misses_nothing() {
    let table = Table::new(10_000, SECRET);
    for n in 0..5000 {
        insert(&table, &plain(udp(n)), 0).unwrap();
    }
    // Packets put off the end of every third; one is answered, and ends sooner.
    for n in (0..5000).step_by(3) {
        table.step_simple(&udp(n), &table.find(&udp(n), at(30)).unwrap(), at(30)).unwrap();
    }
    let (mut shard, mut removed, mut rounds) = (0, 0, 0);
    assert_eq!(table.expire(&mut shard, 1000, at(59)).removed, 0);
    loop {
        let done = table.expire(&mut shard, 100, at(62));
        assert!(done.looked_at < 100 + EXPIRE_BATCH);
        removed += done.removed;
        rounds += 1;
        if done.finished {
            break;
        }
    }
    assert_eq!(removed, 5000 - 1667);
    assert!(rounds > 10);
    assert_eq!(table.expire(&mut shard, usize::MAX, at(92)).removed, 1667);
    assert_eq!(table.limits.connections(), 0);
    // A connection that lasts longer than the wheel's turn.
    let long = insert(&table, &plain(udp(1)), 100).unwrap();
    for seconds in (100..4000).step_by(50) {
        table.step_simple(&udp(1), &table.find(&udp(1), at(seconds)).unwrap(), at(seconds)).unwrap();
        table.expire(&mut shard, usize::MAX, at(seconds));
    }
    assert!(table.read(long).is_some());
    assert_eq!(table.expire(&mut shard, usize::MAX, at(1_000_000)).removed, 1, "nobody looked for days");
}

#[test]
fn closing_moves_a_connection_in_the_wheel() {
    let table = Table::new(10, SECRET);
    let orig = v4([1, 1, 1, 1], 1, [2, 2, 2, 2], 2, 6);
    let segment = |flags, seq, ack| Segment { seq, ack, flags, window: 1000, ..Segment::default() };
    let (protocol, timeout) = first_state(&orig, Some(&segment(2, 0, 0))).unwrap();
    table.insert(&Contents { protocol, ..plain(orig) }, timeout, at(0)).unwrap();
    let step = |reply: bool, segment: Segment, seconds| {
        let tuple = if reply { orig.reverse() } else { orig };
        let found = table.find(&tuple, at(seconds)).unwrap();
        table.step_tcp(&found, &segment, false, at(seconds)).unwrap()
    };
    step(true, segment(0x12, 100, 1), 0);
    step(false, segment(0x10, 1, 101), 0);
    let mut shard = 0;
    // By now the wheel looks at it every 200 seconds.
    table.expire(&mut shard, usize::MAX, at(40));
    let reset = step(false, segment(0x04, 1, 0), 50);
    assert_eq!(reset, Update::Established { timeout: Some(Timeout::TcpClose) });
    assert_eq!(table.expire(&mut shard, usize::MAX, at(82)).removed, 1);
}

#[test]
fn dump_and_flush_go_on_where_they_stopped() {
    let table = Table::new(1000, SECRET);
    for n in 0..300 {
        insert(&table, &plain(udp(n).in_zone(n % 3)), 0).unwrap();
    }
    let (mut cursor, mut seen) = (0, std::collections::HashSet::new());
    while table.dump(&mut cursor, 10, |connection, contents| assert!(seen.insert((connection, contents.orig)))) {}
    assert_eq!(seen.len(), 300);
    let (mut cursor, mut removed) = (0, 0);
    while table.flush(&mut cursor, 10, &mut removed, |contents| contents.orig.zone() == 2) {}
    assert_eq!((removed, table.limits.zone_connections(2), table.limits.connections()), (100, 0, 200));
}

/// Threads make and remove the same few connections: at the end, as many are there as were made and not removed, and each
/// direction is there once.
#[test]
fn made_is_present_and_removed_while_threads_race() {
    let table = Table::new(40, SECRET);
    let made = std::sync::atomic::AtomicU64::new(0);
    let removed = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (table, made, removed) = (&table, &made, &removed);
            scope.spawn(move || {
                let mut state = thread + 1;
                for _ in 0..20_000 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let n = (state >> 40) as u16 % 64;
                    let reply = v4([10, 9, 9, 9], 53, [1, 1, 1, 1], 5000 + n % 48, 17);
                    let relaxed = std::sync::atomic::Ordering::Relaxed;
                    match (state >> 33) % 4 {
                        0 | 1 => {
                            made.fetch_add(u64::from(insert(table, &contents(udp(n), reply), 0).is_ok()), relaxed);
                        }
                        2 => {
                            if let Some(found) = table.find(&reply, at(0)) {
                                assert!(found.reply);
                                removed.fetch_add(u64::from(table.remove(found.connection)), relaxed);
                            }
                        }
                        _ => {
                            if let Some(found) = table.find(&udp(n), at(0))
                                && let Some((contents, _)) = table.read(found.connection)
                            {
                                assert_eq!(contents.orig, udp(n), "the connection that was found");
                            }
                        }
                    }
                }
            });
        }
    });
    let mut present = Vec::new();
    table.dump(&mut 0, usize::MAX, |_, contents| present.extend([contents.orig, contents.reply]));
    assert_eq!(made.into_inner() - removed.into_inner(), present.len() as u64 / 2);
    assert_eq!(table.limits.connections(), present.len() as u64 / 2);
    for tuple in &present {
        assert!(table.find(tuple, at(0)).is_some());
        assert_eq!(present.iter().filter(|other| *other == tuple).count(), 1);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u16),
    Packet(u16, bool),
    Remove(u16),
    Pass(u64),
    Expire(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u16..40, 0u16..60).prop_map(|(n, port)| Step::Insert(n, port)),
        4 => (0u16..40, any::<bool>()).prop_map(|(n, reply)| Step::Packet(n, reply)),
        1 => (0u16..40).prop_map(Step::Remove),
        1 => (1u64..40).prop_map(Step::Pass),
        1 => (1usize..100).prop_map(Step::Expire),
    ];
    proptest::collection::vec(step, 0..300)
}

proptest! {
    /// The table against a plain map, with translated ports, deadlines and limits.
    #[test]
    fn table_equals_a_map(steps in steps()) {
        struct Known { reply: Tuple, seen: Seen, end: u64 }
        let table = Table::new(24, SECRET);
        let mut map: HashMap<Tuple, Known> = HashMap::new();
        let (mut now, mut shard) = (0, 0);
        for step in steps {
            match step {
                Step::Insert(n, port) => {
                    let reply = v4([10, 9, 9, 9], 53, [1, 1, 1, 1], 5000 + port, 17);
                    let reply = if port < 20 { udp(n).reverse() } else { reply };
                    let live = |known: &&Known| known.end > now;
                    let exists = map.get(&udp(n)).is_some_and(|known| live(&known));
                    let taken = map.values().filter(live).any(|known| known.reply == reply);
                    match insert(&table, &contents(udp(n), reply), now) {
                        Ok(_) => {
                            prop_assert!(!exists && !taken);
                            map.retain(|_, known| known.reply != reply);
                            map.insert(udp(n), Known { reply, seen: Seen::First, end: now + 60 });
                        }
                        Err(Refused::Exists(found)) => prop_assert!(exists && !found.reply),
                        Err(Refused::ReplyTaken) => prop_assert!(taken && !exists),
                        // Those whose time is over count until they are removed.
                        Err(Refused::Full) => prop_assert!(table.limits.connections() >= 24),
                        Err(Refused::ZoneFull) => prop_assert!(false),
                    }
                }
                Step::Packet(n, reply) => {
                    let known = map.get_mut(&udp(n)).filter(|known| known.end > now);
                    let tuple = match &known {
                        Some(known) if reply => known.reply,
                        _ => udp(n),
                    };
                    let found = table.find(&tuple, at(now));
                    prop_assert_eq!(found.map(|found| found.reply), known.is_some().then_some(reply));
                    if let (Some(found), Some(known)) = (found, known) {
                        known.seen = if reply || known.seen == Seen::Both { Seen::Both } else { Seen::Multiple };
                        known.end = now + if known.seen == Seen::Both { 30 } else { 60 };
                        let update = table.step_simple(&tuple, &found, at(now)).unwrap();
                        prop_assert_eq!(matches!(update, Update::Established { .. }), known.seen == Seen::Both);
                        prop_assert_eq!(u64::from(table.seconds_left(found.connection, at(now)).unwrap()), known.end - now);
                    }
                }
                Step::Remove(n) => {
                    let found = table.find(&udp(n), at(now));
                    let known = map.remove(&udp(n)).filter(|known| known.end > now);
                    prop_assert_eq!(found.is_some(), known.is_some());
                    if let Some(found) = found {
                        prop_assert!(table.remove(found.connection));
                    }
                }
                Step::Pass(seconds) => now += seconds,
                Step::Expire(budget) => {
                    table.expire(&mut shard, budget, at(now));
                    let live = map.values().filter(|known| known.end > now).count() as u64;
                    prop_assert!(table.limits.connections() >= live);
                }
            }
        }
        // After a turn of the wheel nothing is left but what lives.
        table.expire(&mut shard, usize::MAX, at(now + 300));
        prop_assert_eq!(table.limits.connections(), 0);
        let counts = table.counts();
        prop_assert_eq!(counts.made, counts.removed);
    }
}
