//! The classifier against a linear scan.

use std::sync::Arc;

use openflow::{Cookie, TableId};
use packet::{Field, Key, Mask, Time};
use proptest::prelude::*;

use super::classifier::{Classified, Classifier, Conjunction, Pattern, Within, search};
use super::scan::scan;
use super::{InstructionSet, Rule, Table};

struct Simple {
    priority: u16,
    pattern: Pattern,
    parts: Vec<Conjunction>,
}

impl Classified for Simple {
    fn priority(&self) -> u16 {
        self.priority
    }
    fn pattern(&self) -> &Pattern {
        &self.pattern
    }
    fn conjunctions(&self) -> &[Conjunction] {
        &self.parts
    }
}

fn rule(classifier: &Classifier<Simple>, priority: u16, fields: &[(Field, u128, u128)]) -> Arc<Simple> {
    let (mut key, mut mask) = (Key::new(), Mask::wildcard());
    for &(field, value, bits) in fields {
        key.set(field, value);
        mask.add(field, bits);
    }
    Arc::new(Simple { priority, pattern: classifier.pattern(&key, &mask), parts: Vec::new() })
}

fn base_mask(key: &Key) -> Mask {
    let mut wc = Mask::wildcard();
    wc.set_exact(Field::DlType);
    wc.set_exact(Field::PacketType);
    if matches!(key.common().dl_type.get(), 0x0800 | 0x86dd) {
        wc.set_exact(Field::NwFrag);
    }
    wc
}

const ALL: u128 = u128::MAX;

#[test]
fn early_stages_spare_the_later() {
    let mut classifier = Classifier::default();
    let tcp80 = [
        (Field::InPort, 1, ALL),
        (Field::DlType, 0x800, ALL),
        (Field::NwDst, 0x0a000001, ALL),
        (Field::NwProto, 6, ALL),
        (Field::TcpDst, 80, ALL),
    ];
    classifier.insert(rule(&classifier, 10, &tcp80));
    let mut key = Key::new();
    for (field, value) in [(Field::InPort, 2), (Field::DlType, 0x800), (Field::NwDst, 0x0a000001), (Field::TcpDst, 80)]
    {
        key.set(field, value);
    }
    let mut wc = base_mask(&key);
    assert!(classifier.lookup(&key, &mut wc).is_none());
    assert!(wc.is_exact(Field::InPort) && wc.is_wild(Field::NwDst) && wc.is_wild(Field::TcpDst));
}

/// lib/classifier's documentation: a /8 rule costs a packet elsewhere only the bits up to the first
/// that differs.
#[test]
fn tries_spare_address_bits() {
    let mut classifier = Classifier::default();
    let ip = |dst, len: u32| [(Field::DlType, 0x800, ALL), (Field::NwDst, dst, u128::from(u32::MAX << (32 - len)))];
    classifier.insert(rule(&classifier, 10, &ip(0x0a000000, 8)));
    classifier.insert(rule(&classifier, 20, &ip(0x14000001, 32)));
    let mut key = Key::new();
    key.set(Field::DlType, 0x800);
    key.set(Field::NwDst, 0x0b010203);
    let mut wc = base_mask(&key);
    assert!(classifier.lookup(&key, &mut wc).is_none());
    assert_eq!(wc.get(Field::NwDst), 0xff000000);
    for (prefixes, bits) in [(&[Field::NwSrc][..], 0xffffffff), (&[Field::NwDst][..], 0xff000000)] {
        classifier.use_prefixes(Some(prefixes));
        let mut wc = base_mask(&key);
        assert!(classifier.lookup(&key, &mut wc).is_none());
        assert_eq!(wc.get(Field::NwDst), bits);
    }
}

/// A rule for packets without Ethernet has their type in place of the Ethernet type.
#[test]
fn tries_spare_address_bits_of_packets_without_ethernet() {
    let mut classifier = Classifier::default();
    let kind = (Field::PacketType, packet::flow::packet_type(0x800).into(), ALL);
    classifier.insert(rule(&classifier, 32, &[kind, (Field::NwDst, 0xc0a8_0a1e, ALL)]));
    classifier.insert(rule(&classifier, 0, &[kind]));
    let mut key = Key::new();
    for (field, value, _) in [kind, (Field::NwDst, 0xc0a8_0a14, ALL)] {
        key.set(field, value);
    }
    let mut wc = base_mask(&key);
    assert_eq!(classifier.lookup(&key, &mut wc).map(|rule| rule.priority), Some(0));
    assert_eq!(wc.get(Field::NwDst), 0xffff_fff8);
}

#[test]
fn tries_spare_bits_of_ipv6_addresses() {
    let net = 0x2001_0db8u128 << 96;
    let prefix = |dst: u128, len: u32| [(Field::DlType, 0x86dd, ALL), (Field::Ipv6Dst, dst, u128::MAX << (128 - len))];
    let mut classifier = Classifier::default();
    classifier.insert(rule(&classifier, 1, &prefix(net, 32)));
    classifier.insert(rule(&classifier, 2, &prefix(net | 7 << 64, 64)));
    let mut key = Key::new();
    key.set(Field::DlType, 0x86dd);
    key.set(Field::Ipv6Dst, net | 3 << 64 | 1);
    for (prefixes, len) in [(None, 62), (Some(&[Field::Ipv6Src][..]), 64), (Some(&[Field::Ipv6Dst]), 62)] {
        classifier.use_prefixes(prefixes);
        let mut wc = base_mask(&key);
        assert_eq!(classifier.lookup(&key, &mut wc).map(|rule| rule.priority), Some(1));
        assert_eq!(wc.get(Field::Ipv6Dst), u128::MAX << (128 - len), "{prefixes:?}");
    }
}

#[test]
fn conjunctive_match() {
    let mut classifier = Classifier::default();
    let part = |fields: &[(Field, u128, u128)], clause| {
        let plain = rule(&Classifier::default(), 10, fields);
        let parts = vec![Conjunction { id: 7, clause, n_clauses: 2 }];
        Arc::new(Simple { priority: 10, pattern: plain.pattern.clone(), parts })
    };
    let ip = (Field::DlType, 0x800, ALL);
    classifier.insert(part(&[ip, (Field::NwSrc, 1, ALL)], 0));
    classifier.insert(part(&[ip, (Field::NwSrc, 2, ALL)], 0));
    classifier.insert(part(&[ip, (Field::NwDst, 3, ALL)], 1));
    classifier.insert(rule(&classifier, 10, &[ip, (Field::ConjId, 7, ALL)]));
    classifier.insert(rule(&classifier, 5, &[ip]));
    for (src, dst, expected) in [(1, 3, 10), (2, 3, 10), (4, 3, 5), (1, 4, 5)] {
        let mut key = Key::new();
        key.set(Field::DlType, 0x800);
        key.set(Field::NwSrc, src);
        key.set(Field::NwDst, dst);
        let found = classifier.lookup(&key, &mut base_mask(&key)).unwrap();
        assert_eq!(found.priority, expected, "src {src} dst {dst}");
        assert!(found.conjunctions().is_empty());
        assert!(scan(&classifier, &key).is_some_and(|(rule, is_alone)| is_alone && Arc::ptr_eq(rule, found)));
    }
}

/// A field with few values, so that rules and packets meet.
fn part() -> impl Strategy<Value = (Field, u128, u128)> {
    let prefix = |field| {
        (prop_oneof![Just(0x0a000000u128), Just(0x0a010000), Just(0x0a010203), Just(0x8a010203)], 0u32..=32)
            .prop_map(move |(v, n)| (field, v, u128::from(u32::MAX.checked_shl(32 - n).unwrap_or(0))))
    };
    let long = |field| {
        let values = [0x2001_0db8u128 << 96, 0x2001_0db8 << 96 | 5 << 64, 0x2001_0db8 << 96 | 5 << 64 | 1, 1];
        (proptest::sample::select(values.to_vec()), 0u32..=128)
            .prop_map(move |(v, n)| (field, v, u128::MAX.checked_shl(128 - n).unwrap_or(0)))
    };
    let ports = |field| {
        (prop_oneof![Just(80u128), Just(443), Just(0x8050)], prop_oneof![Just(ALL), Just(0xfff0), Just(0x0f)])
            .prop_map(move |(v, m)| (field, v, m))
    };
    prop_oneof![
        (1u128..4).prop_map(|v| (Field::InPortOxm, v, ALL)),
        (0u128..3).prop_map(|v| (Field::Metadata, v, 0x3)),
        (0u128..3).prop_map(|v| (Field::DlDst, v, ALL)),
        prop_oneof![Just(0x1005u128), Just(0), Just(0x3005)].prop_map(|v| (Field::VlanTci, v, 0x1fff)),
        prefix(Field::NwSrc),
        prefix(Field::NwDst),
        long(Field::Ipv6Src),
        long(Field::Ipv6Dst),
        ports(Field::TcpSrc),
        ports(Field::TcpDst),
        prop_oneof![Just(6u128), Just(17)].prop_map(|v| (Field::NwProto, v, ALL)),
        prop_oneof![Just(0x0800u128), Just(0x0806), Just(0x86dd)].prop_map(|v| (Field::DlType, v, ALL)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The rule is the one that a linear scan finds, and any key that equals the first one in the bits
    /// that were looked at gets the same rule.
    #[test]
    fn agrees_with_a_linear_scan(
        rules in proptest::collection::vec((0u16..6, proptest::collection::vec(part(), 0..5)), 0..24),
        removed in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        packets in proptest::collection::vec(proptest::collection::vec(part(), 0..9), 1..8),
        noise in proptest::collection::vec(part(), 0..12),
    ) {
        let mut classifier = Classifier::default();
        let mut list: Vec<Arc<Simple>> = Vec::new();
        for (priority, fields) in &rules {
            let new = rule(&classifier, *priority, fields);
            let replaced = classifier.insert(new.clone());
            let same = |old: &Arc<Simple>| old.priority == new.priority && old.pattern.mask() == new.pattern.mask()
                && old.pattern.key() == new.pattern.key();
            prop_assert_eq!(replaced.is_some(), list.iter().any(same));
            list.retain(|old| !same(old));
            list.push(new);
        }
        for index in removed {
            if !list.is_empty() {
                let gone = list.swap_remove(index.index(list.len()));
                prop_assert!(classifier.remove(&gone.pattern, gone.priority).is_some());
                prop_assert!(classifier.find(&gone.pattern, gone.priority).is_none());
            }
        }
        prop_assert_eq!(classifier.len(), list.len());
        prop_assert_eq!(classifier.iter().count(), list.len());
        let best = |key: &Key| list.iter().filter(|r| r.pattern.matches(key)).map(|r| r.priority).max();
        for fields in packets {
            let mut key = Key::new();
            for &(field, value, _) in &fields {
                key.set(field, value);
            }
            if !matches!(key.common().dl_type.get(), 0x800 | 0x86dd) {
                key.set(Field::NwFrag, 0);
            }
            let mut wc = base_mask(&key);
            let found = classifier.lookup(&key, &mut wc).map(|r| r.priority);
            prop_assert_eq!(found, best(&key));
            prop_assert_eq!(scan(&classifier, &key).map(|(rule, _)| rule.priority), found);
            let mut other = Key::new();
            for &(field, value, _) in &noise {
                other.set(field, value);
            }
            // Equal to `key` where it was looked at, to the noise elsewhere.
            let mut near = key.masked(&wc);
            for block in other.present().iter() {
                let bits = *wc.0.block(block).words();
                let from = *other.block(block).words();
                near.block_mut(block).words_mut().iter_mut().zip(from.iter().zip(bits)).for_each(|(w, (f, m))| *w |= f & !m);
            }
            prop_assert_eq!(best(&near), found, "mask {:?}", wc);
        }
    }

    /// The rules within a match, and those that overlap with it, are those whose keys and masks say so.
    #[test]
    fn what_is_within_and_overlaps_is_what_masks_and_values_say(
        rules in proptest::collection::vec((0u16..3, proptest::collection::vec(part(), 0..5)), 0..24),
        wanted in proptest::collection::vec(part(), 0..3),
    ) {
        let mut classifier = Classifier::default();
        for (priority, fields) in &rules {
            classifier.insert(rule(&classifier, *priority, fields));
        }
        let of = |pattern: &Pattern| (pattern.key(), pattern.mask());
        let (key, mask) = of(&rule(&classifier, 0, &wanted).pattern);
        let both = |mask: &Mask, other: &Mask| Mask(mask.0.masked(other));
        let (mut at_once, mut within) = (Vec::new(), Within::new(&key, &mask));
        at_once.extend(classifier.iter_within(&key, &mask).map(Arc::as_ptr));
        for rule in classifier.iter() {
            let (own, own_mask) = of(&rule.pattern);
            let expected = both(&own_mask, &mask) == mask && own.matches(&key, &mask);
            prop_assert_eq!(within.contains(&rule.pattern), expected, "{:?} under {:?}", own, own_mask);
            prop_assert_eq!(at_once.contains(&Arc::as_ptr(rule)), expected);
        }
        prop_assert!(at_once.len() <= classifier.len_within(&within));
        for priority in 0..3 {
            let overlaps = |rule: &&Arc<Simple>| {
                let (own, own_mask) = of(&rule.pattern);
                rule.priority == priority && own.matches(&key, &both(&own_mask, &mask))
            };
            prop_assert_eq!(classifier.overlaps(&key, &mask, priority), classifier.iter().any(|rule| overlaps(&rule)));
        }
    }
}

#[test]
fn rules_are_found_by_their_cookies() {
    let mut table = Table::default();
    let rule = |table: &Table, n: u16, cookie| {
        let instructions = InstructionSet::default().share(&Default::default());
        let pattern = table.rules.pattern(&Key::new(), &Mask::wildcard());
        let mut rule = Rule::new(TableId(0), n, pattern, instructions, Time(1));
        rule.cookie = Cookie(cookie);
        Arc::new(rule)
    };
    let found = |table: &mut Table, cookie| -> Vec<u16> {
        let found = table.rules_of(Cookie(cookie), usize::MAX);
        assert_eq!(found.len(), table.count_of(Cookie(cookie)) as usize);
        found.iter().map(|rule| rule.priority).collect()
    };
    // Few, and many, of which an index is made.
    for (from, to) in [(0, 40), (40, 1000)] {
        for n in from..to {
            table.insert(rule(&table, n, u64::from(n) % 100), 1);
        }
        assert_eq!(found(&mut table, 7), (7..to).step_by(100).collect::<Vec<_>>());
        assert_eq!(found(&mut table, 100), []);
    }
    // Another cookie, the same one anew, and one that goes.
    table.insert(rule(&table, 107, 8), 1);
    table.insert(rule(&table, 7, 7), 1);
    let gone = rule(&table, 207, 7);
    table.remove(&gone, 1);
    assert_eq!(found(&mut table, 7), [7, 307, 407, 507, 607, 707, 807, 907]);
    assert_eq!(found(&mut table, 8), [8, 107, 108, 208, 308, 408, 508, 608, 708, 808, 908]);
    table.clear(2);
    assert_eq!(found(&mut table, 8), []);
}

/// Looked at before: each rule with the same mask.
#[test]
fn rules_with_the_mask_that_is_wanted_are_found_without_a_look_at_the_others() {
    let mut classifier = Classifier::default();
    for n in 0..50 {
        classifier.insert(rule(&classifier, 10, &[(Field::Reg0, n, ALL)]));
        classifier.insert(rule(&classifier, 20, &[(Field::Reg0, n / 2, ALL)]));
        classifier.insert(rule(&classifier, 10, &[(Field::Reg1, n, ALL)]));
    }
    let find = |classifier: &Classifier<Simple>, n| {
        let pattern = rule(classifier, 0, &[(Field::Reg0, n, ALL)]).pattern.clone();
        let (key, mask) = (pattern.key(), pattern.mask());
        (classifier.iter_within(&key, &mask).count(), classifier.len_within(&Within::new(&key, &mask)))
    };
    assert_eq!(find(&classifier, 3), (2, 2));
    assert_eq!(find(&classifier, 30), (1, 1));
    assert_eq!(find(&classifier, 50), (0, 0));
    classifier.insert(rule(&classifier, 10, &[(Field::Reg0, 3, ALL), (Field::Reg1, 3, ALL)]));
    classifier.insert(rule(&classifier, 10, &[(Field::Reg0, 4, ALL), (Field::Reg1, 3, ALL)]));
    assert_eq!(find(&classifier, 3), (3, 4), "narrower ones are looked at");
}

/// Looked at before: each rule of the table for each new one, also where only one could have packets in common with it.
#[test]
fn overlaps_are_looked_for_where_they_can_be() {
    let mut classifier = Classifier::default();
    for n in 0..50 {
        classifier.insert(rule(&classifier, 10, &[(Field::Reg0, n, ALL), (Field::Reg1, 7, ALL)]));
        classifier.insert(rule(&classifier, 20 + n as u16, &[(Field::Reg0, n, ALL)]));
    }
    let check = |priority, fields: &[(Field, u128, u128)]| {
        let pattern = rule(&classifier, priority, fields).pattern.clone();
        let (key, mask) = (pattern.key(), pattern.mask());
        (classifier.overlaps(&key, &mask, priority), classifier.len_to_compare(&mask, priority))
    };
    let (reg0, reg1) = ((Field::Reg0, 3, ALL), (Field::Reg1, 7, ALL));
    assert_eq!(check(10, &[reg0, reg1]), (true, 0));
    assert_eq!(check(10, &[reg0, (Field::Reg1, 8, ALL)]), (false, 0));
    assert_eq!(check(10, &[reg0, reg1, (Field::Reg2, 8, ALL)]), (true, 0));
    assert_eq!(check(10, &[(Field::Reg0, 50, ALL), reg1, (Field::Reg2, 8, ALL)]), (false, 0));
    assert_eq!(check(23, &[reg0, reg1]), (true, 0), "of its own priority only");
    assert_eq!(check(24, &[reg0, reg1]), (false, 0));
    assert_eq!(check(10, &[reg0]), (true, 50), "a wider one");
    assert_eq!(check(10, &[(Field::Reg1, 8, ALL)]), (false, 50));
    assert_eq!(check(9, &[reg0, reg1]), (false, 0));
}

/// A rule can be part of thousands of conjunctions.
#[test]
fn a_look_up_compared_each_part_of_a_conjunction_with_all_others() {
    let parts =
        |ids: std::ops::Range<u32>, clause| ids.map(|id| Conjunction { id, clause, n_clauses: 2 }).collect::<Vec<_>>();
    let mut classifier = Classifier::default();
    let add = |classifier: &mut Classifier<Simple>, bits: u128, parts| {
        let pattern = rule(classifier, 10, &[(Field::Reg0, 0, bits)]).pattern.clone();
        classifier.insert(Arc::new(Simple { priority: 10, pattern, parts }));
    };
    // None is complete.
    (0..24).for_each(|n| add(&mut classifier, 1 << n, parts(n * 4000..(n + 1) * 4000, 0)));
    let other = rule(&classifier, 5, &[]);
    classifier.insert(other.clone());
    let (key, mut effort, began) = (Key::new(), 0, std::time::Instant::now());
    let found = classifier.lookup_counted(&key, &mut Mask::wildcard(), &mut effort).map(|rule| rule.priority);
    assert_eq!((found, effort), (Some(5), 24 * 4000 + 24));
    assert!(began.elapsed() < std::time::Duration::from_secs(4), "{:?}", began.elapsed());
    // All are complete, and nothing comes of any. Each takes a search.
    classifier.remove(&other.pattern, 5);
    (0..24).for_each(|n| add(&mut classifier, 1 << n | 1 << 30, parts(n * 4000..(n + 1) * 4000, 1)));
    let mut effort = 0;
    assert!(classifier.lookup_counted(&key, &mut Mask::wildcard(), &mut effort).is_none());
    assert!((1..1 << 10).contains(&(effort - search::MAX_EFFORT)));
}
