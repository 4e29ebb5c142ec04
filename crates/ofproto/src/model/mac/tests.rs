//! Tests of the MAC table, among them one against a plain list.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn key(n: u8) -> MacKey {
    MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, n] }
}

fn at(secs: u64) -> Time {
    Time(secs * 1_000_000_000)
}

fn seen(n: u8, port: u32, secs: u64, learn: bool) -> MacUse {
    MacUse { key: key(n), port: OfPort(port), used: at(secs), learn }
}

/// What has changed since the last call, by the last byte of the address.
fn changed(table: &mut MacTable) -> Vec<(u8, bool)> {
    let changes = std::mem::take(&mut table.changes);
    changes.iter().map(|change| (change.key.mac[5], change.concerns_sources)).collect()
}

#[test]
fn learns_moves_and_ages() {
    let mut table = MacTable::new(MacSettings { ageing: Duration::from_secs(10), max_entries: 8 });
    assert!(table.learn(key(1), OfPort(1), at(0)));
    assert!(!table.learn(key(1), OfPort(1), at(5)));
    assert!(table.learn(key(1), OfPort(2), at(6)));
    assert_eq!(table.lookup(key(1)), Some(OfPort(2)));
    assert_eq!(changed(&mut table), [(1, true), (1, true)], "learnt and moved, but not refreshed");
    assert!(!table.learn(MacKey { vlan: 0, mac: [1; 6] }, OfPort(1), at(0)));
    assert_eq!(table.next_expiry(), Some(at(16)));
    assert_eq!(table.expire(at(15), 9), 0);
    table.note(seen(1, 2, 9, false));
    table.note(seen(1, 1, 14, true));
    assert_eq!(table.expire(at(18), 9), 0);
    assert_eq!(changed(&mut table), []);
    assert_eq!(table.expire(at(19), 9), 1, "refreshed by packets of its own port only");
    assert_eq!(changed(&mut table), [(1, true)]);
    assert_eq!(table.stats(), MacStats { learned: 1, expired: 1, evicted: 0, moved: 1 });
}

/// Whatever the size of the table, no more entries are looked at or removed at a time than are asked for.
#[test]
fn ageing_takes_a_bounded_step() {
    let mut table = MacTable::new(MacSettings { ageing: Duration::from_secs(10), max_entries: 100 });
    for n in 0..40 {
        table.learn(key(n), OfPort(u32::from(n) % 3), at(u64::from(n)));
    }
    table.add_static(key(99), OfPort(1));
    assert_eq!(table.next_expiry(), Some(at(10)));
    assert_eq!((table.expire(at(35), 7), table.len()), (7, 34), "of 26 that have aged");
    assert_eq!((table.expire(at(35), 7), table.expire(at(35), 7)), (7, 7));
    assert_eq!((table.expire(at(35), 7), table.expire(at(35), 7)), (5, 0));
    assert_eq!((table.stats().expired, table.next_expiry(), table.len()), (26, Some(at(36)), 15));
}

#[test]
fn a_smaller_table_keeps_the_shares_of_the_ports() {
    let mut table = MacTable::new(MacSettings { max_entries: 100, ..MacSettings::default() });
    for n in 0..40 {
        let _ = table.learn(key(n), OfPort(1), at(u64::from(n)));
    }
    for n in 50..55 {
        let _ = table.learn(key(n), OfPort(2), at(0));
    }
    table.add_static(key(99), OfPort(1));
    table.set_settings(MacSettings { max_entries: 12, ..MacSettings::default() });
    let mut left: Vec<_> = table.iter().map(|entry| entry.key.mac[5]).collect();
    left.sort_unstable();
    assert_eq!(left, [34, 35, 36, 37, 38, 39, 50, 51, 52, 53, 54, 99]);
    assert_eq!((table.stats().expired, table.stats().evicted), (34, 0));
    assert!(table.learn(key(60), OfPort(3), at(50)) && table.lookup(key(34)).is_none());
    assert_eq!((table.len(), table.stats().evicted), (12, 1));
}

#[test]
fn static_addresses_stay_where_they_are() {
    let mut table = MacTable::new(MacSettings::default());
    table.add_static(key(1), OfPort(1));
    table.learn(key(2), OfPort(1), at(0));
    assert!(table.is_elsewhere(key(1), OfPort(2)) && !table.is_elsewhere(key(1), OfPort(1)));
    assert!(!table.is_elsewhere(key(2), OfPort(2)), "it moves");
    assert_eq!(table.entry(key(1)), Some(MacEntry { key: key(1), port: OfPort(1), used: None }));
    table.remove_learnt(key(1), at(1));
    table.remove_learnt(key(2), at(1));
    assert_eq!((table.lookup(key(1)), table.lookup(key(2))), (Some(OfPort(1)), None));
}

#[test]
fn eviction_is_fair() {
    let mut table = MacTable::new(MacSettings { max_entries: 4, ..MacSettings::default() });
    table.learn(key(1), OfPort(1), at(0));
    for n in 2..=10 {
        table.learn(key(n), OfPort(2), at(n.into()));
    }
    assert_eq!(table.len(), 4);
    assert_eq!(table.lookup(key(1)), Some(OfPort(1)), "the quiet port keeps its entry");
    assert_eq!(table.lookup(key(7)), None);
    assert_eq!(table.lookup(key(10)), Some(OfPort(2)));
    let evicted = changed(&mut table).into_iter().filter(|(_, concerns_sources)| !concerns_sources);
    assert_eq!(evicted.map(|(n, _)| n).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
}

#[test]
fn static_entries_stay() {
    let mut table = MacTable::new(MacSettings::default());
    table.add_static(key(1), OfPort(1));
    assert!(!table.learn(key(1), OfPort(2), at(1)));
    assert!(!table.would_change(key(1), OfPort(2)));
    table.flush(at(2));
    table.expire(at(10_000), 9);
    assert_eq!(table.lookup(key(1)), Some(OfPort(1)));
    table.flush_ports(&[OfPort(1)], at(10_001));
    assert!(table.is_empty());
}

/// Six addresses of one port are in use all the time, and four have room: which ones stays as it is.
#[test]
fn addresses_in_use_do_not_take_turns() {
    let mut table = MacTable::new(MacSettings { max_entries: 4, ..MacSettings::default() });
    for n in 1..=6 {
        table.learn(key(n), OfPort(1), at(1));
    }
    table.changes.clear();
    assert!((1..=6).all(|n| !table.would_change(key(n), OfPort(1))), "none has to be learnt from a packet");
    for second in 2..30 {
        (1..=6).for_each(|n| table.note(seen(n, 1, second, true)));
    }
    assert_eq!(changed(&mut table), []);
    // Another port gets its entry all the same, and an entry that is not used any more goes.
    table.note(seen(9, 2, 30, true));
    assert_eq!(changed(&mut table), [(3, false), (9, true)]);
    for second in 31..40 {
        (1..=5).for_each(|n| table.note(seen(n, 1, second, true)));
    }
    assert_eq!(changed(&mut table), [(6, false), (1, true)]);
}

#[test]
fn packets_of_before_a_flush_teach_nothing() {
    let mut table = MacTable::new(MacSettings::default());
    table.learn(key(1), OfPort(1), at(1));
    table.flush(at(5));
    table.note(seen(1, 1, 5, true));
    table.note(seen(1, 1, 6, false));
    assert!(table.is_empty());
    table.note(seen(1, 1, 6, true));
    assert_eq!(table.lookup(key(1)), Some(OfPort(1)));
}

#[derive(Clone, Debug)]
enum Event {
    Learn(u8, u32),
    Note(u8, u32, bool),
    Static(u8, u32),
    Remove(u8),
    Flush,
    FlushPort(u32),
    Expire,
    Limit(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let (n, port) = (0u8..8, 1u32..4);
    prop_oneof![
        8 => (n.clone(), port.clone()).prop_map(|(n, port)| Event::Learn(n, port)),
        6 => (n.clone(), port.clone(), any::<bool>()).prop_map(|(n, port, learn)| Event::Note(n, port, learn)),
        1 => (n.clone(), port.clone()).prop_map(|(n, port)| Event::Static(n, port)),
        1 => n.prop_map(Event::Remove),
        1 => Just(Event::Flush),
        1 => port.prop_map(Event::FlushPort),
        2 => Just(Event::Expire),
        1 => select(vec![0usize, 3, 5, 100]).prop_map(Event::Limit),
    ]
}

/// The same table as a list from the least to the most recently used entry: key, port, static, used. Of several ports
/// with most entries it chooses as the table does, which goes by the last list.
struct Plain(Vec<(MacKey, OfPort, bool, Time)>, usize, Time, Vec<MacKey>);

impl Plain {
    fn victim(&self) -> Option<usize> {
        let count = |port| self.0.iter().filter(|entry| entry.1 == port && !entry.2).count();
        let fullest = self.0.iter().filter(|entry| !entry.2).map(|entry| count(entry.1)).max()?;
        let oldest = |port| self.0.iter().position(|entry| !entry.2 && entry.1 == port);
        let ports = self.0.iter().map(|entry| entry.1).filter(|&port| count(port) == fullest);
        let candidates: Vec<usize> = ports.filter_map(oldest).collect();
        let chosen = self.3.iter().find_map(|key| candidates.iter().find(|&&place| self.0[place].0 == *key));
        chosen.or(candidates.first()).copied()
    }

    fn shrink_to(&mut self, len: usize) -> bool {
        while self.0.len() > len {
            let Some(victim) = self.victim() else { return false };
            self.0.remove(victim);
        }
        true
    }

    fn touch(&mut self, key: MacKey, port: OfPort, now: Time) {
        let before = self.0.len();
        self.0.retain(|entry| entry.0 != key);
        let known = self.0.len() < before;
        if known || self.1 > 0 && self.shrink_to(self.1 - 1) {
            self.0.push((key, port, false, now));
        }
    }

    fn happen(&mut self, event: &Event, now: Time) {
        let find = |plain: &Plain, n: u8| plain.0.iter().find(|entry| entry.0 == key(n)).copied();
        match *event {
            Event::Learn(n, port) => {
                if find(self, n).is_none_or(|entry| !entry.2) {
                    self.touch(key(n), OfPort(port), now);
                }
            }
            Event::Note(n, port, learn) => match find(self, n) {
                Some(entry) if !entry.2 && entry.1 == OfPort(port) && entry.3 < now => {
                    self.touch(key(n), OfPort(port), now);
                }
                Some(_) => {}
                None => {
                    let victim = self.victim().map(|victim| self.0[victim]);
                    let other = victim.is_some_and(|v| v.1 != OfPort(port) || now.since(v.3) > IN_USE);
                    if learn && now > self.2 && (self.0.len() < self.1 || other) {
                        self.touch(key(n), OfPort(port), now);
                    }
                }
            },
            Event::Static(n, port) => {
                self.0.retain(|entry| entry.0 != key(n));
                self.0.push((key(n), OfPort(port), true, Time(0)));
            }
            Event::Limit(limit) => {
                self.1 = limit;
                self.shrink_to(limit);
            }
            Event::Remove(n) => self.forget(now, |entry| entry.0 == key(n)),
            Event::Flush => self.forget(now, |entry| !entry.2),
            Event::FlushPort(port) => self.forget(now, |entry| entry.1 == OfPort(port)),
            Event::Expire => self.forget(now, |entry| !entry.2 && now.since(entry.3) >= Duration::from_secs(10)),
        }
    }

    fn forget(&mut self, now: Time, gone: impl Fn(&(MacKey, OfPort, bool, Time)) -> bool) {
        let before = self.0.len();
        self.0.retain(|entry| !gone(entry));
        if self.0.len() < before {
            self.2 = now;
        }
    }
}

proptest! {
    #[test]
    fn a_plain_list_does_the_same(events in prop::collection::vec((event(), 0u64..6), 1..60)) {
        let settings = |max_entries| MacSettings { ageing: Duration::from_secs(10), max_entries };
        let (mut table, mut now) = (MacTable::new(settings(4)), at(1));
        let mut plain = Plain(Vec::new(), 4, Time(0), Vec::new());
        for (event, seconds) in events {
            now = now + Duration::from_secs(seconds);
            let before: Vec<_> = (0..8).map(|n| table.lookup(key(n))).collect();
            plain.3 = table.victim().map(|slot| table.slots[slot as usize].key).into_iter().collect();
            match event {
                Event::Learn(n, port) => drop(table.learn(key(n), OfPort(port), now)),
                Event::Note(n, port, learn) => {
                    table.note(MacUse { key: key(n), port: OfPort(port), used: now, learn });
                }
                Event::Static(n, port) => table.add_static(key(n), OfPort(port)),
                Event::Remove(n) => drop(table.remove(key(n), now)),
                Event::Flush => table.flush(now),
                Event::FlushPort(port) => table.flush_ports(&[OfPort(port)], now),
                Event::Expire => drop(table.expire(now, usize::MAX)),
                Event::Limit(limit) => table.set_settings(settings(limit)),
            }
            plain.3.extend(plain.0.iter().map(|entry| entry.0).filter(|&key| table.lookup(key).is_none()));
            plain.happen(&event, now);
            let mut entries: Vec<_> = table.iter().map(|entry| (entry.key, entry.port, entry.used)).collect();
            let used = |entry: &(MacKey, OfPort, bool, Time)| (!entry.2).then_some(entry.3);
            let mut expected: Vec<_> = plain.0.iter().map(|entry| (entry.0, entry.1, used(entry))).collect();
            entries.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(entries, expected, "after {:?}", event);
            let fixed = plain.0.iter().filter(|entry| entry.2).count();
            prop_assert_eq!((table.len(), table.fixed_len()), (plain.0.len(), fixed));
            // Whatever a lookup answers anew was told.
            let told: Vec<_> = changed(&mut table).into_iter().map(|(n, _)| n).collect();
            for n in 0..8u8 {
                prop_assert!(table.lookup(key(n)) == before[usize::from(n)] || told.contains(&n));
            }
        }
    }
}
