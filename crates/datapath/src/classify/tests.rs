//! Every tier compared with a linear search, and readers concurrent with a writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use packet::{BATCH_SIZE, Field, Key, Mask, Time};
use proptest::prelude::*;

use super::batch::classify_keys;
use super::table::flow_counters;
use super::table::megaflow::LookupContext;
use super::*;
use crate::action::{Action, PortNo};
use crate::actions::program::Program;
use crate::pipeline::batch::BatchMeta;
use crate::sync::rcu::{Domain, Reader};
use crate::upcall::FlowId;

const FIELDS: [Field; 6] = [Field::NwSrc, Field::NwDst, Field::UdpDst, Field::VlanTci, Field::Ipv6Src, Field::TunId];

fn table(readers: usize, max_masks: usize) -> (Arc<Domain>, Vec<Reader>, Table) {
    let domain = Arc::new(Domain::new(readers));
    let readers = domain.readers();
    let table = Table::new(if cfg!(miri) { 200 } else { 100_000 }, max_masks, 2, [1, 2], domain.clone());
    table.add_worker(1);
    (domain, readers, table)
}

/// Few values, so that keys often share some.
fn key(values: &[u8; 7]) -> Key {
    let mut key = Key::new();
    key.set(Field::InPortOxm, u128::from(values[6] % 3 + 1));
    for (field, value) in FIELDS.into_iter().zip(values) {
        if value % 4 != 0 {
            key.set(field, u128::from(value % 4) << (value % 3 * 2));
        }
    }
    key
}

fn mask(choice: u8) -> Mask {
    let mut mask = Mask::wildcard();
    for (i, field) in FIELDS.into_iter().enumerate() {
        if choice >> i & 1 != 0 {
            mask.add(field, if choice & 0x40 != 0 { 0x7 } else { u128::MAX });
        }
    }
    mask
}

fn install(table: &Table, key: &Key, mask: &Mask) -> FlowId {
    let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    table.install(key, Box::new(mask.clone()), actions, Arc::new(()), Time(1), Requester::Management).unwrap().id
}

/// The memory of flows includes the counters of each worker, also of one that is added after a flow and exists when
/// the flow is removed.
#[test]
fn a_flow_takes_with_it_what_it_was_counted_for() {
    let table = Table::new(1000, 10, 3, [1, 2], Arc::new(Domain::new(1)));
    table.add_worker(0);
    let ids: Vec<FlowId> = (1..9u8).map(|n| install(&table, &key(&[n % 4, n / 4, 0, 0, 0, 0, 0]), &mask(3))).collect();
    let of_one_worker = table.bytes();
    table.add_worker(2);
    assert_eq!(table.bytes() - of_one_worker, 2 * flow_counters::COUNTERS_BYTES * ids.len());
    let each = table.bytes() / ids.len();
    table.remove(&ids[..5]);
    assert_eq!(table.bytes(), 3 * each);
}

/// Looks keys up in the tiers, as a worker does.
fn classify(table: &Table, exact: &mut KeyCache, keys: &[Key], reader: &Reader) -> Vec<Option<FlowId>> {
    let guard = reader.pin();
    keys.chunks(BATCH_SIZE)
        .flat_map(|keys| {
            let mut found = vec![None; keys.len()];
            for (i, key) in keys.iter().enumerate() {
                let Some(list) = table.list_of_port(crate::upcall::in_port(key), guard) else { continue };
                let hash = list.union.hash(&table.hasher, key);
                let hit = |&flow: &FlowRef| table.arena.live(flow, guard).is_some_and(|l| l.matches(key));
                let cached = exact.hints(hash).find(hit);
                let mut flows = [FlowRef::NONE; BATCH_SIZE];
                let at = LookupContext { list, table, worker: 0, guard, count_at: None };
                let (hits, visited) = Table::lookup(at, keys, 1 << i, &mut flows);
                assert!(visited as usize <= list.subtables.len());
                assert!(cached.is_none() || hits != 0, "tier 1 finds only what tier 2 finds");
                if hits != 0 {
                    assert_eq!(hits, 1 << i);
                    exact.insert(hash, flows[i]);
                    found[i] = Some(table.arena.id(cached.unwrap_or(flows[i])));
                }
            }
            found
        })
        .collect()
}

/// Looks up whole batches of one port, with the packets in order of their ports, as recirculated ones are looked up.
fn in_batches(table: &Table, exact: &mut KeyCache, keys: &[Key], reader: &Reader) -> Vec<(Key, Option<FlowId>)> {
    let guard = reader.pin();
    let mut found = Vec::new();
    let mut meta = BatchMeta::default();
    for port in 0..4 {
        let of_port: Vec<Key> = keys.iter().filter(|k| crate::upcall::in_port(k) == PortNo(port)).cloned().collect();
        let Some(list) = table.list_of_port(PortNo(port), guard) else {
            found.extend(of_port.into_iter().map(|key| (key, None)));
            continue;
        };
        for batch in of_port.chunks(BATCH_SIZE) {
            meta.keys[..batch.len()].clone_from_slice(batch);
            let at = LookupContext { list, table, worker: 0, guard, count_at: None };
            let hits = classify_keys(at, batch.len(), exact, &mut meta);
            let flows = meta.found[..batch.len()].iter().map(|found| found.flow);
            assert_eq!((hits.exact + hits.megaflow) as usize, flows.clone().filter(|&f| f != FlowRef::NONE).count());
            let ids = flows.map(|flow| table.arena.live(flow, guard).map(|_| table.arena.id(flow)));
            found.extend(batch.iter().cloned().zip(ids));
        }
    }
    found
}

const CHANGES: usize = if cfg!(miri) { 6 } else { 80 };
const PACKETS: usize = if cfg!(miri) { 6 } else { 40 };
/// Subtables are ranked after so many changes.
const RANKED: usize = if cfg!(miri) { 3 } else { 8 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 60 }))]

    #[test]
    fn tiers_agree_with_a_linear_scan(
        steps in proptest::collection::vec((any::<[u8; 7]>(), any::<u8>(), any::<bool>()), 1..CHANGES),
        packets in proptest::collection::vec(any::<[u8; 7]>(), PACKETS),
        runs in proptest::collection::vec(1..5usize, PACKETS),
    ) {
        let (domain, mut readers, table) = table(1, 1000);
        let mut exact = KeyCache::new(16);
        let mut linear: Vec<(Key, Mask, FlowId)> = Vec::new();
        let packets: Vec<Key> = packets.iter().map(key).collect();
        let in_runs: Vec<Key> = packets.iter().zip(runs).flat_map(|(k, n)| vec![k.clone(); n]).collect();
        for (at, (values, choice, remove)) in steps.iter().enumerate() {
            if *remove && !linear.is_empty() {
                let (.., id) = linear.swap_remove(usize::from(*choice) % linear.len());
                prop_assert_eq!(table.remove(&[id]).len(), 1);
            } else {
                let (flow, mut mask) = (key(values), mask(*choice));
                let id = install(&table, &flow, &mask);
                for field in [Field::InPortOxm, Field::RecircId, Field::PacketType] {
                    mask.set_exact(field);
                }
                match linear.iter().find(|(k, m, _)| *m == mask && k.matches(&flow, m)) {
                    Some((.., known)) => prop_assert_eq!(*known, id),
                    None => linear.push((flow, mask, id)),
                }
            }
            prop_assert_eq!(table.count(), linear.len());
            if at % RANKED == RANKED - 1 {
                table.rank(Time(1));
            }
            readers[0].quiescent();
            let single = packets.iter().cloned().zip(classify(&table, &mut exact, &packets, &readers[0]));
            for (packet, found) in single.chain(in_batches(&table, &mut exact, &in_runs, &readers[0])) {
                let mut matching = linear.iter().filter(|(k, m, _)| packet.matches(k, m)).map(|f| f.2);
                match found {
                    Some(id) => prop_assert!(matching.any(|m| m == id), "found a flow that does not match"),
                    None => prop_assert_eq!(matching.next(), None, "missed a flow"),
                }
            }
            readers[0].offline();
            domain.collect();
        }
        // Dumps return what was installed, with the values of the first packet also where they are not matched; searches
        // leave them out.
        for (flow, mask, id) in &linear {
            let dump = table.dump(*id).unwrap();
            for block in mask.blocks().iter() {
                prop_assert!(dump.key.block(block) == flow.block(block), "{:?}", block);
            }
            let entry = table.arena.find(*id).unwrap();
            prop_assert_eq!(table.arena.key_for_writer(entry), Some(flow.masked(mask)));
            prop_assert_eq!(&*dump.mask, mask);
        }
        prop_assert_eq!(table.ids(None).len(), linear.len());
        table.remove(&table.ids(None));
        prop_assert_eq!((table.count(), table.masks()), (0, 0));
    }
}

#[test]
fn many_flows_of_one_mask() {
    let (_, mut readers, table) = table(1, 10);
    let mut wanted = Mask::wildcard();
    wanted.set_exact(Field::NwSrc);
    const FLOWS: u32 = if cfg!(miri) { 60 } else { 20_000 };
    let keys: Vec<Key> = (0..FLOWS)
        .map(|n| {
            let mut key = key(&[0; 7]);
            key.set(Field::NwSrc, n.into());
            key
        })
        .collect();
    let ids: Vec<FlowId> = keys.iter().map(|k| install(&table, k, &wanted)).collect();
    readers[0].quiescent();
    let found = classify(&table, &mut KeyCache::new(64), &keys, &readers[0]);
    assert!(found.iter().zip(&ids).all(|(f, id)| *f == Some(*id)));
    readers[0].offline();
    assert_eq!(table.remove(&ids).len(), ids.len());
    assert_eq!(table.masks(), 0);
}

#[test]
fn masks_of_a_port_are_limited() {
    let (_, _readers, table) = table(1, 2);
    install(&table, &key(&[1; 7]), &mask(1));
    install(&table, &key(&[1; 7]), &mask(2));
    let actions: Arc<[Action]> = Arc::new([]);
    let refused =
        table.install(&key(&[1; 7]), Box::new(mask(4)), actions, Arc::new(()), Time(1), Requester::Management).err();
    assert!(matches!(refused, Some(crate::Error::TooManyMasks { port: PortNo(2), limit: 2 })), "{refused:?}");
    install(&table, &key(&[2; 7]), &mask(4));
    install(&table, &key(&[5, 5, 5, 5, 5, 5, 1]), &mask(1));
}

#[test]
fn readers_never_see_a_wrong_flow_while_a_writer_works() {
    let (domain, mut readers, table) = table(2, 1000);
    let (stop, checked) = (AtomicBool::new(false), AtomicU64::new(0));
    // Flow n matches nw_src n and sends to port n + 1, with one of three masks.
    let spec = |n: u32| {
        let (mut key, mut mask) = (key(&[0; 7]), Mask::wildcard());
        key.set(Field::NwSrc, n.into());
        mask.set_exact(Field::NwSrc);
        if n % 3 == 1 {
            mask.set_exact(Field::NwDst);
        }
        if n % 3 == 2 {
            mask.set_exact(Field::Ipv6Dst);
        }
        (key, mask)
    };
    // Miri is slow, but detects races even where they have no effect.
    const FLOWS: u32 = if cfg!(miri) { 16 } else { 300 };
    const STEPS: u32 = if cfg!(miri) { 24 } else { 600 };
    // So many steps are between two reclamations.
    const COLLECTED: u32 = if cfg!(miri) { 6 } else { 64 };
    const TURN: u32 = if cfg!(miri) { 4 } else { 64 };
    const CHECKS: u64 = if cfg!(miri) { 50 } else { 1000 };
    std::thread::scope(|scope| {
        for (worker, reader) in readers.iter_mut().enumerate() {
            let (table, stop, checked) = (&table, &stop, &checked);
            scope.spawn(move || {
                let mut exact = KeyCache::new(256);
                let mut n = worker as u32;
                while !stop.load(Ordering::Relaxed) {
                    reader.quiescent();
                    let guard = reader.pin();
                    for _ in 0..TURN {
                        n = (n + 7) % FLOWS;
                        let (key, _) = spec(n);
                        let Some(list) = table.list_of_port(PortNo(1), guard) else { continue };
                        let hash = list.union.hash(&table.hasher, &key);
                        let hit = |&flow: &FlowRef| table.arena.live(flow, guard).is_some_and(|l| l.matches(&key));
                        let cached = exact.hints(hash).find(hit);
                        let mut found = [FlowRef::NONE; BATCH_SIZE];
                        let at = LookupContext { list, table, worker, guard, count_at: None };
                        if cached.is_none() && Table::lookup(at, &[key], 1, &mut found).0 != 0 {
                            exact.insert(hash, found[0]);
                        }
                        let flow = cached.unwrap_or(found[0]);
                        if let Some(live) = table.arena.live(flow, guard) {
                            let CompiledAction::Output(port) = live.action() else { panic!("flows have one output") };
                            assert_eq!(port.0, n + 1, "another flow's action");
                            checked.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                reader.offline();
            });
        }
        let mut installed = std::collections::VecDeque::new();
        for step in 0..STEPS {
            let n = step * 31 % FLOWS;
            let (key, mask) = spec(n);
            let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(n + 1))]);
            installed.push_back(
                table.install(&key, Box::new(mask), actions, Arc::new(()), Time(1), Requester::Management).unwrap().id,
            );
            if installed.len() > FLOWS as usize / 2 {
                let ids: Vec<_> = installed.drain(..3).collect();
                table.remove(&ids);
            }
            if step % COLLECTED == 0 {
                table.rank(Time(1));
                domain.collect();
            }
        }
        while checked.load(Ordering::Relaxed) < CHECKS {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Subtables with more hits come first, so that most packets visit few.
#[test]
fn subtables_are_ranked_by_hits() {
    let (domain, mut readers, table) = table(1, 10);
    let choices = [1u8, 2, 4];
    for (n, choice) in choices.into_iter().enumerate() {
        let n = n as u8 + 1;
        install(&table, &key(&[n, n, n, 0, 0, 0, 0]), &mask(choice));
    }
    let visits = |table: &Table, reader: &Reader, key: &Key, times: usize| {
        let guard = reader.pin();
        let list = table.list_of_port(PortNo(1), guard).unwrap();
        let mut found = [FlowRef::NONE; BATCH_SIZE];
        let at = LookupContext { list, table, worker: 0, guard, count_at: None };
        (0..times).map(|_| Table::lookup(at, std::slice::from_ref(key), 1, &mut found)).last().unwrap()
    };
    // Each key matches the flow of one mask only.
    let keys = [key(&[1, 0, 0, 0, 0, 0, 0]), key(&[0, 2, 0, 0, 0, 0, 0]), key(&[0, 0, 3, 0, 0, 0, 0])];
    for busy in [2, 0, 1, 2] {
        readers[0].quiescent();
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(visits(&table, &readers[0], key, if n == busy { 100 } else { 10 }).0, 1);
        }
        readers[0].offline();
        table.rank(Time(1));
        domain.collect();
        readers[0].quiescent();
        assert_eq!(visits(&table, &readers[0], &keys[busy], 1), (1, 1), "the busiest is found first");
        readers[0].offline();
    }
}

#[test]
fn a_flow_that_is_out_of_date_is_not_installed() {
    let table = Table::new(10, 10, 1, [1, 2], Arc::new(Domain::new(1)));
    table.add_worker(0);
    let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    let install = |n: u8, current: bool| {
        let compiled = (actions.clone(), Arc::new(Program::compile(&actions)));
        let flow = NewFlow::new(&table.hasher, &key(&[n; 7]), Arc::new(mask(1)), compiled, Arc::new(n));
        let mut result = None;
        let flows = [(&key(&[n; 7]), flow)];
        table.install_all(&flows, Time(1), Requester::Miss, |_| current, |_, installed| result = Some(installed));
        result.unwrap()
    };
    let id = install(1, true).unwrap().id;
    assert!(matches!(install(2, false), Err(crate::Error::OutOfDate)));
    assert!(matches!(install(1, false), Err(crate::Error::OutOfDate)), "nor does it replace another");
    assert_eq!((table.count(), table.dump(id).unwrap().tag.downcast_ref::<u8>()), (1, Some(&1)));
}

/// Several flows under one lock, with their evictions made together, come to the same as one by one.
#[test]
fn flows_that_are_installed_together_are_as_one_by_one() {
    let mask = || {
        let mut mask = Mask::wildcard();
        mask.set_exact(Field::NwSrc);
        Arc::new(mask)
    };
    let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    let keys = |batch: &[(u32, u32)]| -> Vec<Key> {
        let key = |&(port, source): &(u32, u32)| {
            let mut key = Key::new();
            key.set(Field::InPortOxm, port.into());
            key.set(Field::NwSrc, source.into());
            key
        };
        batch.iter().map(key).collect()
    };
    let flows = |table: &Table| {
        let flow = |id: FlowId| table.dump(id).map(|flow| (flow.key.get(Field::InPortOxm), flow.key.get(Field::NwSrc)));
        table.ids(None).into_iter().filter_map(flow).collect::<std::collections::BTreeSet<_>>()
    };
    let batches = prop::collection::vec(prop::collection::vec((1..5u32, 0..60u32), 1..BATCH_SIZE), 1..12);
    proptest!(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }), |(limit in 1..50usize, batches in batches)| {
        let tables = [(); 2].map(|()| Table::new(limit, 10, 1, [1, 2], Arc::new(Domain::new(1))));
        tables.iter().for_each(|table| table.add_worker(0));
        for batch in &batches {
            let keys = keys(batch);
            let flow = |key| {
                let compiled = (actions.clone(), Arc::new(Program::compile(&actions)));
                (key, NewFlow::new(&tables[0].hasher, key, mask(), compiled, Arc::new(())))
            };
            let mut there: Vec<_> = keys.iter().collect();
            there.sort_by_key(|key| (key.get(Field::InPortOxm), key.get(Field::NwSrc)));
            there.dedup();
            // A handler asks for flows that are not there yet.
            there.retain(|key| tables[0].find_same(key, (*mask()).clone()).is_none());
            let together: Vec<_> = there.iter().map(|key| flow(*key)).collect();
            tables[0].install_all(&together, Time(1), Requester::Miss, |_| true, |_, installed| {
                assert!(installed.is_ok());
            });
            for key in there {
                tables[1].install(key, mask(), actions.clone(), Arc::new(()), Time(1), Requester::Miss).unwrap();
            }
            prop_assert_eq!(flows(&tables[0]), flows(&tables[1]));
            prop_assert_eq!(tables[0].count(), flows(&tables[0]).len());
            prop_assert!(tables[0].count() <= limit);
            prop_assert_eq!(tables[0].evictions(), tables[1].evictions());
        }
    });
}

/// Walks by chunks of numbers meet every flow once, and each packet is taken once.
#[test]
fn a_walk_takes_each_packet_once() {
    use crate::upcall::{FlowTag, FlowUses};
    let (domain, _readers, table) = table(1, 1000);
    let tags: [FlowTag; 2] = [Arc::new(1u8), Arc::new(2u8)];
    let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    let number = if cfg!(miri) { 60u32 } else { 3000 };
    let install = |n: u32| {
        let mut key = Key::new();
        key.set(Field::NwSrc, n.into());
        let (mut mask, tag) = (Mask::wildcard(), tags[n as usize % 2].clone());
        mask.set_exact(Field::NwSrc);
        table.install(&key, Box::new(mask), actions.clone(), tag, Time(1), Requester::Miss).unwrap().id
    };
    let ids: Vec<_> = (0..number).map(install).collect();
    let now = Time(60_000_000_000);
    table.arena.flow_counters(0).set_latest(now);
    let count = |id: FlowId| table.arena.flow_counters(0).add(FlowRef::at(id.0 as u32 as usize), 2, 120, 0, now);
    let walk = |idle_since| {
        let (mut uses, mut sums, mut idle) = (FlowUses::default(), [0u64; 3], Vec::new());
        for from in (0..table.flow_numbers()).step_by(FLOW_CHUNK) {
            table.take_uses(from, idle_since, &mut uses);
            sums[0] += uses.flows as u64;
            for (tag, stats) in &uses.used {
                sums[usize::from(*tag.downcast_ref::<u8>().unwrap())] += stats.packets;
            }
            idle.append(&mut uses.idle);
        }
        (sums, idle)
    };
    let all = u64::from(number);
    assert_eq!(walk(None), ([all, 0, 0], vec![]));
    ids.iter().for_each(|&id| count(id));
    assert_eq!(walk(None), ([all, all, all], vec![]));
    count(ids[4]);
    count(ids[4]);
    assert_eq!(table.take_use(ids[4]).map(|stats| (stats.packets, stats.bytes)), Some((4, 240)));
    count(ids[5]);
    assert_eq!(walk(Some(Time(now.0 / 2))), ([all, 0, 2], vec![]));
    let (_, idle) = walk(Some(Time(u64::MAX)));
    assert_eq!(idle, ids);
    count(ids[7]);
    let rest: Vec<_> = table.remove(&ids).iter().map(|flow| flow.rest.packets).collect();
    assert_eq!((rest.iter().sum::<u64>(), rest[7]), (2, 2), "the rest comes with the removal");
    assert_eq!(walk(None).0, [0; 3]);
    drop(domain);
}
