//! Indexes of flows, compared with a walk over all of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use packet::{Field, Key, Mask, Time};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use super::{Requester, Table};
use crate::action::{Action, PortNo};
use crate::sync::rcu::Domain;
use crate::upcall::FlowId;

const FIELDS: [(Field, u32); 5] =
    [(Field::NwSrc, 32), (Field::NwDst, 32), (Field::UdpDst, 16), (Field::DlType, 16), (Field::VlanTci, 16)];

/// A few of a field's highest bits in each field, and values that often agree in them.
#[derive(Clone, Debug)]
struct Spec {
    in_port: u128,
    bits: [u32; 5],
    values: [u8; 5],
}

impl Spec {
    fn any() -> impl Strategy<Value = Spec> {
        let bits = select(vec![0u32, 0, 4, 6, 8, 13, 16, 24, 32]);
        (1u128..4, proptest::array::uniform5(bits), proptest::array::uniform5(0u8..3))
            .prop_map(|(in_port, bits, values)| Spec { in_port, bits, values })
    }

    fn key(&self) -> Key {
        let mut key = Key::new();
        key.set(Field::InPortOxm, self.in_port);
        for ((field, width), value) in FIELDS.into_iter().zip(self.values) {
            // Differs in the highest and the lowest bits.
            let value = u128::from(value);
            key.set(field, value << (width - 3) | value << (width - 9) | value);
        }
        key
    }

    fn mask(&self) -> Mask {
        let mut mask = Mask::wildcard();
        for ((field, width), bits) in FIELDS.into_iter().zip(self.bits) {
            let all = (1u128 << width) - 1;
            mask.add(field, all & !(all >> bits.min(width)));
        }
        mask
    }
}

#[derive(Clone, Debug)]
enum Event {
    Install(Spec),
    Remove(usize),
    /// Rules with one mask and so many values; whether the input port is part of it.
    Find(Spec, Vec<[u8; 5]>, bool),
    Rank(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let values = prop::collection::vec(proptest::array::uniform5(0u8..3), 1..4);
    prop_oneof![
        6 => Spec::any().prop_map(Event::Install),
        2 => any::<usize>().prop_map(Event::Remove),
        4 => (Spec::any(), values, any::<bool>()).prop_map(|(spec, values, port)| Event::Find(spec, values, port)),
        1 => (0u64..50).prop_map(Event::Rank),
    ]
}

/// What a walk finds.
fn walk(table: &Table, is_wanted: &dyn Fn(&Key, &Mask) -> bool) -> BTreeSet<FlowId> {
    let mut found = Vec::new();
    for from in (0..table.flow_numbers()).step_by(FLOW_CHUNK) {
        let wanted = |_: &_, mask: &Arc<Mask>, read: &dyn Fn(&mut Key) -> bool| {
            let mut key = Key::new();
            read(&mut key) && is_wanted(&key, mask)
        };
        table.find_flows(from, wanted, &mut found);
    }
    found.into_iter().map(|(flow, _)| flow).collect()
}

fn agrees(flow: &Key, flows: &Mask, value: &Key, rules: &Mask) -> bool {
    packet::flow::block::ALL_BLOCKS.into_iter().all(|block| {
        (0..8).all(|word| {
            let bits = flows.0.block(block).words()[word] & rules.0.block(block).words()[word];
            (flow.block(block).words()[word] ^ value.block(block).words()[word]) & bits == 0
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, ..ProptestConfig::default() })]
    #[test]
    fn an_index_finds_every_flow_that_agrees(events in prop::collection::vec(event(), 1..80)) {
        let table = Table::new(if cfg!(miri) { 200 } else { 10_000 }, 100, 1, [1, 2], Arc::new(Domain::new(0)));
        table.add_worker(0);
        table.set_indexed_from(0);
        let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
        let (mut flows, mut now) = (Vec::new(), Time(1));
        for event in events {
            match event {
                Event::Install(spec) => {
                    let mask = Box::new(spec.mask());
                    let tag = Arc::new(());
                    let installed = table.install(&spec.key(), mask, actions.clone(), tag, now, Requester::Miss);
                    flows.push(installed.unwrap().id);
                }
                Event::Remove(n) if !flows.is_empty() => drop(table.remove(&[flows.swap_remove(n % flows.len())])),
                Event::Remove(_) => {}
                Event::Find(spec, values, with_port) => {
                    let mut mask = spec.mask();
                    if with_port {
                        mask.set_exact(Field::InPortOxm);
                    }
                    let values: Vec<_> = values.iter().map(|&values| Spec { values, ..spec.clone() }.key()).collect();
                    let wanted = |key: &Key, flows: &Mask| values.iter().any(|value| agrees(key, flows, value, &mask));
                    let (mut found, mut looked_at) = (Vec::new(), 0);
                    let is_wanted = |_: &_, flows: &Arc<Mask>, read: &dyn Fn(&mut Key) -> bool| {
                        looked_at += 1;
                        let mut key = Key::new();
                        read(&mut key) && wanted(&key, flows)
                    };
                    let used = table.find_agreeing(&mask, &values, now, is_wanted, &mut found);
                    let found: BTreeSet<_> = found.into_iter().map(|(flow, _)| flow).collect();
                    if used {
                        prop_assert_eq!(found, walk(&table, &wanted));
                    } else {
                        prop_assert!(found.is_empty());
                    }
                }
                Event::Rank(seconds) => {
                    now = Time(now.0 + seconds * 1_000_000_000);
                    table.rank(now);
                }
            }
        }
    }
}

/// A table with so many flows of one mask, by source, of which sixteen share their address's first 28 bits.
fn with_sources(flows: u32) -> (Table, Mask) {
    let table = Table::new(1 << 16, 100, 1, [1, 2], Arc::new(Domain::new(0)));
    table.add_worker(0);
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwSrc);
    (0..flows).for_each(|source| install(&table, source, &mask));
    (table, mask)
}

fn install(table: &Table, source: u32, mask: &Mask) {
    let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    let mask = Box::new(mask.clone());
    table.install(&source_key(source), mask, actions, Arc::new(()), Time(1), Requester::Miss).unwrap();
}

fn source_key(source: u32) -> Key {
    let mut key = Key::new();
    key.set(Field::InPortOxm, 1);
    key.set(Field::NwSrc, source.into());
    key
}

/// How many flows were looked at for rules with these sources; `None` where a walk is better.
fn looked_at(table: &Table, mask: &Mask, sources: &[u32], now: Time) -> Option<usize> {
    let (mut looked_at, mut found) = (0, Vec::new());
    let is_wanted = |_: &_, _: &Arc<Mask>, _: &dyn Fn(&mut Key) -> bool| {
        looked_at += 1;
        true
    };
    let values: Vec<_> = sources.iter().map(|&source| source_key(source)).collect();
    table.find_agreeing(mask, &values, now, is_wanted, &mut found).then_some(looked_at)
}

#[test]
#[cfg_attr(miri, ignore = "takes very many flows")]
fn few_flows_are_looked_at() {
    let (table, mask) = with_sources(20_000);
    let of = |bits| {
        let mut mask = Mask::wildcard();
        mask.add(Field::NwSrc, bits);
        mask
    };
    assert_eq!(looked_at(&table, &mask, &[7, 8, 30_000], Time(1)), Some(2));
    assert_eq!(looked_at(&table, &of(0xffff_fff0), &[160], Time(1)), Some(16));
    assert_eq!(looked_at(&table, &of(0xffff_ffe0), &[160], Time(1)), Some(256), "the next whole group of bits");
    assert_eq!(looked_at(&table, &of(0xffff_0000), &[0], Time(1)), None, "all of them");
    assert_eq!(looked_at(&table, &mask, &(0..2000).collect::<Vec<_>>(), Time(1)), None, "too many rules");
    (20_000..20_100).for_each(|source| install(&table, source, &mask));
    assert_eq!(looked_at(&table, &mask, &[20_050], Time(1)), Some(1), "flows that came later");
    table.set_indexed_from(30_000);
    assert_eq!(looked_at(&table, &mask, &[7], Time(1)), None, "few flows");
}

#[test]
#[cfg_attr(miri, ignore = "takes very many flows")]
fn indexes_are_few_and_go_when_nobody_asks() {
    let (table, _) = with_sources(100);
    table.set_indexed_from(0);
    let seconds = |n: u64| Time(n * 1_000_000_000);
    let ask = |bits: u32, now| {
        let mut mask = Mask::wildcard();
        mask.add(Field::NwSrc, u128::from(u32::MAX << (32 - bits)));
        looked_at(&table, &mask, &[5], seconds(now)).is_some()
    };
    let count = || table.writer.lock().indexes.count();
    assert!([32, 28, 24, 20].into_iter().all(|bits| ask(bits, 10)));
    assert!(!ask(16, 11), "the others are in use");
    assert!(ask(28, 13) && ask(16, 13) && ask(28, 13));
    assert_eq!(count(), 4);
    table.rank(seconds(72));
    assert_eq!(count(), 2);
    table.rank(seconds(74));
    assert_eq!(count(), 0);
    // One that was made for few flows is dropped when there are many.
    assert!(ask(32, 75) && count() == 1);
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwSrc);
    (100..2000).for_each(|source| install(&table, source, &mask));
    assert_eq!(count(), 0);
    assert!(ask(32, 75), "and made anew");
}
