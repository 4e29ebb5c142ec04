//! Whole frames through all tiers, compared with a linear search of the flows by extracted keys, while flows are
//! added, removed and changed, at each level of the processor.

use std::sync::Arc;

use packet::flow::extract::{VlanLimit, extract};
use packet::flow::template::Template;
use packet::{BATCH_SIZE, Field, Key, Mask, Packet, Time};
use proptest::prelude::*;

use super::batch::Hits;
use super::mixed::RunHistory;
use super::plan::is_simple;
use super::table::flow_counters;
use super::table::megaflow::LookupContext;
use super::*;
use crate::action::{Action, PortNo};
use crate::actions::compact::CompactRewrite;
use crate::actions::program::Program;
use crate::classify::cpu::simd::Simd;
use crate::classify::cpu::{Leveled, at_best, at_every};
use crate::drop::DropReason;
use crate::pipeline::batch::{BatchMeta, start_key};
use crate::sync::rcu::{Domain, Guard};
use crate::upcall::FlowId;

const IN_PORT: PortNo = PortNo(3);

/// A frame from a few choices, so that frames often share headers.
pub(super) fn frame(choice: [u8; 8]) -> Vec<u8> {
    let [kind, tag, src, dst, ports, tos, unusual, size] = choice;
    let mut f = vec![2, 0, 0, 0, 0, dst & 1, 2, 0, 0, 0, 0, src & 1];
    match tag & 7 {
        0 | 1 => f.extend([0x81, 0x00, tag & 0x30, src & 3]),
        2 => f.extend([0x88, 0xa8, 0, 1, 0x81, 0x00, 0, 2]),
        // Another type of tag, or an unknown one, with equal bytes otherwise.
        3 => f.extend([[0x88, 0xa8], [0x91, 0x00]][usize::from(tag >> 3 & 1)].into_iter().chain([tag & 0x30, src & 3])),
        _ => {}
    }
    let tcp = kind & 1 != 0;
    let mut l4 = vec![0, ports & 3, 0, ports >> 2 & 3];
    if tcp {
        let words = if unusual == 1 { 4 } else { 5 + (unusual >> 6) };
        l4.extend([0, 0, 0, 1, 0, 0, 0, 2, words << 4, ports >> 4, 0, 0, 0, 0, 0, 0]);
        l4.extend([1; 12]);
    } else {
        l4.extend([0, 8, 0, 0]);
    }
    l4.extend([7; 4]);
    let proto = match unusual {
        2 => 1,
        10 => [47, 2, 58, 132][usize::from(ports >> 4 & 3)],
        _ => [17, 6][usize::from(tcp)],
    };
    match kind >> 1 & 3 {
        _ if kind & 0x10 != 0 && unusual & 0x10 != 0 => {
            // LLDP or the like, a length and LLC, SNAP with IPv4 or ARP, a label.
            f.extend([[0x88, 0xcc + (src & 1)], [0, 40], [0, 40], [0x88, 0x47]][usize::from(unusual & 3)]);
            let snap = [0xaa, 0xaa, 3, 0, 0, 0, 8, [0, 6][usize::from(ports & 1)]];
            f.extend(if unusual & 3 == 2 { snap } else { [src & 1, 0, 1, dst & 1, 0, 0, 0, 0] });
            f.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, src & 7, 198, 18, 0, dst & 3]);
        }
        0 | 1 if kind & 0x10 == 0 || tos & 1 == 0 => {
            let options = if unusual == 3 { 4 } else { 0 };
            let total = (20 + options + l4.len()) as u16 - u16::from(unusual == 4) * 30;
            let fragment = if unusual == 5 {
                [0x20, 0]
            } else if unusual == 6 {
                [0, 5]
            } else {
                [0x40, 0]
            };
            f.extend([0x08, 0x00, 0x45 + (options / 4) as u8, tos & 7]);
            f.extend(total.to_be_bytes());
            f.extend([size, 1, fragment[0], fragment[1], 64 - (tos >> 7), proto, 0, 0]);
            f.extend([10, 0, 0, src & 7, 198, 18, 0, dst & 3]);
            f.extend(vec![0; options]);
        }
        2 => {
            f.extend([0x86, 0xdd, 0x60 | (tos & 7) >> 2, (tos & 3) << 6, 0, tos >> 6]);
            // Hop-by-hop options, a first or a later fragment, or two such headers.
            let headers = match unusual {
                7 => vec![[proto, 0, 1, 4, 0, 0, 0, 0]],
                8 => vec![[proto, 0, 0, (size & 8) | 1, 0, 0, 0, 1]],
                9 => vec![[44, 0, 1, 4, 0, 0, 0, 0], [proto, 0, 0, 1, 0, 0, 0, 1]],
                _ => vec![],
            };
            f.extend(((l4.len() + 8 * headers.len()) as u16).to_be_bytes());
            f.extend([if headers.is_empty() { proto } else { [0, 44][usize::from(unusual == 8)] }, 64]);
            f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, src & 7]);
            f.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, dst & 3]);
            f.extend(headers.as_flattened());
        }
        _ => {
            f.extend([0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1 + (ports & 1)]);
            f.extend([2, 0, 0, 0, 0, src & 3, 10, 0, 0, src & 7, 0, 0, 0, 0, 0, 0, 10, 0, 0, dst & 3]);
            l4.clear();
        }
    }
    f.extend(l4);
    match size & 7 {
        // Cut short, or with padding.
        0 => f.truncate(f.len() - usize::from(size >> 3)),
        1 => f.resize(f.len() + usize::from(size >> 2), 0xee),
        _ => {}
    }
    f
}

pub(super) fn mask(choice: u16) -> Mask {
    let mut mask = Mask::wildcard();
    let parts = [
        (Field::DlType, 0xffff),
        (Field::VlanTci, 0x1fff),
        (Field::NwFrag, 3),
        (Field::NwSrc, u128::MAX),
        (Field::NwDst, 0xffff_fffe),
        (Field::UdpDst, 0xffff),
        (Field::NwTos, 0xfc),
        (Field::NwProto, 0xff),
        (Field::TcpFlags, 0x017),
        (Field::Ipv6Src, u128::MAX),
        (Field::DlDst, u128::MAX),
        (Field::UdpSrc, 1),
        (Field::VlanTci, 0xe000),
        (Field::ArpTpa, 3),
        (Field::ArpSha, u128::MAX),
        (Field::DlSrc, 1),
    ];
    for (i, (field, bits)) in parts.into_iter().enumerate() {
        if choice >> i & 1 != 0 {
            mask.add(field, bits & field.info().max());
        }
    }
    mask
}

fn key_of(frame: &[u8]) -> Key {
    let mut key = Key::new();
    start_key(&mut key, IN_PORT);
    extract(frame, &mut key, VlanLimit::default());
    key
}

/// Whether a packet has the template's lengths, and the list a pattern for it.
fn plan_fits(list: &FlowList, template: Template, packet: &Packet) -> bool {
    list.plan.pattern(template).is_some_and(|pattern| super::scan::fitting::<false>(&pattern.layout, packet).is_some())
}

/// Classifies a batch as a worker does.
struct OfBatch<'a, 'g> {
    packets: &'a [Packet],
    list: &'a FlowList,
    table: &'a Table,
    caches: std::cell::RefMut<'a, Caches>,
    guard: Guard<'g>,
    /// Whether it is treated as mixed.
    mixed: bool,
}

/// The result for a batch.
struct OfPackets {
    /// The result for each packet.
    found: Vec<Found>,
    hits: Hits,
    /// The bytes, the flags and the length of each run, and whether it has been counted.
    runs: Vec<(u32, u16, usize, bool)>,
    longest: u32,
    /// The packets whose keys were extracted.
    extracted: u32,
    /// Whether all are counted and have the same action.
    uniform: bool,
    /// How many of the next batches are treated as mixed.
    mixed: u8,
}

thread_local! {
    /// The history, shared by all batches, whatever their plan is.
    static RECENT: std::cell::RefCell<RunHistory> = std::cell::RefCell::default();
}

impl Leveled for OfBatch<'_, '_> {
    type Output = OfPackets;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> OfPackets {
        let mut meta = BatchMeta::default();
        meta.begin(IN_PORT);
        let (packets, caches) = (self.packets, &mut *self.caches);
        let OfBatch { list, table, guard, .. } = self;
        let at = LookupContext { list, table, worker: 0, guard, count_at: Some(NOW) };
        let (hits, mixed) = RECENT.with(|recent| {
            let mut recent = recent.borrow_mut();
            recent.mixed = u8::from(self.mixed);
            let hits = super::classify(simd, at, packets, caches, &mut meta, &mut recent);
            (hits, recent.mixed)
        });
        let (mut found, mut runs) = (Vec::new(), Vec::new());
        while found.len() < packets.len() {
            let at = found.len();
            let end = meta.end_of_run(at, packets.len());
            found.extend((at..end).map(|_| meta.found[at]));
            let counted = meta.is_counted(at);
            runs.push((meta.headers.bytes[at], meta.headers.flags[at], end - at, counted));
        }
        let (longest, extracted, uniform) = (meta.headers.longest, meta.extracted(), meta.is_uniform());
        OfPackets { found, hits, runs, longest, extracted, uniform, mixed }
    }
}

/// When packets are counted.
const NOW: Time = Time(7 << 20);

/// The actions of the flow with this number.
fn actions(number: u32) -> Arc<[Action]> {
    match number % 4 {
        0 => Arc::new([]),
        1 => Arc::new([Action::Output(PortNo(number)), Action::Output(PortNo(1))]),
        _ => Arc::new([Action::Output(PortNo(number))]),
    }
}

fn action(number: u32) -> FastActionKind {
    match number % 4 {
        0 => FastActionKind::Drop(DropReason::Rule),
        1 => FastActionKind::Program,
        _ => FastActionKind::Output(PortNo(number)),
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Install(usize, u16),
    Remove(usize),
    Modify(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (any::<usize>(), any::<u16>(), any::<u16>()).prop_map(|(n, a, b)| Change::Install(n, a & b)),
        1 => any::<usize>().prop_map(Change::Remove),
        1 => any::<usize>().prop_map(Change::Modify),
    ]
}

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let choice = prop_oneof![any::<[u8; 8]>(), any::<[u8; 8]>().prop_map(|c| c.map(|b| b & 0x13))];
    proptest::collection::vec((choice, 1..4usize), 1..if cfg!(miri) { 6 } else { 60 })
        .prop_map(|choices| choices.into_iter().flat_map(|(choice, times)| vec![frame(choice); times]).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 150 }))]

    #[test]
    fn frames_find_the_flows_of_their_keys(
        frames in frames(),
        steps in proptest::collection::vec(change(), 1..if cfg!(miri) { 4 } else { 40 }),
        // Only fields of the simple match: never, always, or mostly, so that the port changes between the simple
        // match and the other tiers.
        only in prop_oneof![
            2 => Just([u16::MAX; 4]), 1 => Just([7u16; 4]), 1 => Just([0xfff; 4]), 2 => Just([7, 7, 7, u16::MAX]),
        ],
        one_in in prop_oneof![3 => Just(1), 1 => Just(0), 1 => Just(3)],
    ) {
        let domain = Arc::new(Domain::new(1));
        let mut reader = domain.readers().pop().unwrap();
        let table = Table::new(if cfg!(miri) { 100 } else { 100_000 }, 1000, 1, [1, 2], domain.clone());
        table.add_worker(0);
        let keys: Vec<Key> = frames.iter().map(|frame| key_of(frame)).collect();
        let packets: Vec<Packet> = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
        let caches = std::cell::RefCell::new(Caches::new(64, [5, 6]));
        caches.borrow_mut().set_one_in(one_in);
        let mut linear: Vec<(Key, Mask, FlowId, u32)> = Vec::new();
        let mut counted = std::collections::HashMap::<u64, (u64, u64)>::new();

        for (number, step) in steps.into_iter().enumerate() {
            let number = number as u32 + 10;
            match step {
                Change::Install(frame, choice) => {
                    let (key, mut mask) = (keys[frame % keys.len()].clone(), mask(choice & only[number as usize % 4]));
                    let installed = table
                        .install(&key, Box::new(mask.clone()), actions(number), Arc::new(()), Time(1), Requester::Management)
                        .unwrap();
                    for field in [Field::InPortOxm, Field::RecircId, Field::PacketType] {
                        mask.set_exact(field);
                    }
                    linear.retain(|flow| flow.2 != installed.id);
                    linear.push((key, mask, installed.id, number));
                }
                Change::Remove(which) if !linear.is_empty() => {
                    let (.., id, _) = linear.swap_remove(which % linear.len());
                    prop_assert_eq!(table.remove(&[id]).len(), 1);
                }
                Change::Modify(which) if !linear.is_empty() => {
                    let which = which % linear.len();
                    table.modify(linear[which].2, actions(number).to_vec()).unwrap();
                    linear[which].3 = number;
                }
                _ => {}
            }
            reader.quiescent();
            let guard = reader.pin();
            let Some(list) = table.list_of_port(IN_PORT, guard) else { continue };
            for (packets, keys) in packets.chunks(BATCH_SIZE).zip(keys.chunks(BATCH_SIZE)) {
                let work = |mixed| {
                    let (table, caches) = (&table, &caches);
                    move || OfBatch { packets, list, table, caches: caches.borrow_mut(), guard, mixed }
                };
                for of_packets in at_every(work(false)).into_iter().chain(at_every(work(true))) {
                    let OfPackets { found, hits, runs, longest, extracted, uniform, .. } = of_packets;
                    prop_assert!(!uniform || runs.iter().all(|run| run.3) && found.iter().all(|f| f.action == found[0].action));
                    let known = found.iter().filter(|found| found.flow != FlowRef::NONE).count();
                    prop_assert_eq!((hits.simple + hits.exact + hits.megaflow) as usize, known);
                    prop_assert!(hits.simple == 0 || hits.exact + hits.megaflow == 0);
                    // The simple match is used exactly while all flows qualify for it. Then packets that miss have no
                    // extracted key, unless their headers are unusual.
                    let simple = linear.iter().all(|flow| is_simple(&flow.1));
                    prop_assert_eq!(list.plan.simple, simple);
                    prop_assert!(!simple || hits.exact + hits.megaflow == 0);
                    let is_usual = |i: &usize| {
                        let template = Template::of(packets[*i].data(), VlanLimit::default());
                        template.is_some_and(|t| plan_fits(list, t, &packets[*i]))
                    };
                    let usual = (0..packets.len()).filter(is_usual).fold(0, |set, i| set | 1u32 << i);
                    prop_assert!(!simple || extracted & usual == 0);
                    prop_assert!(simple || hits.simple == 0);
                    prop_assert_eq!(longest as usize, packets.iter().map(Packet::len).max().unwrap_or(0));
                    let mut at = 0;
                    for (bytes, flags, length, is_counted) in runs {
                        let run = at..at + length;
                        if is_counted {
                            prop_assert!(found[at] != Found::MISS);
                            let (packets_of, bytes_of) = counted.entry(table.arena.id(found[at].flow).0).or_default();
                            *packets_of += length as u64;
                            *bytes_of += u64::from(bytes);
                        }
                        prop_assert_eq!(bytes as usize, packets[run.clone()].iter().map(Packet::len).sum::<usize>());
                        let all = keys[run].iter().fold(0, |flags, key| flags | key.common().tcp_flags.get());
                        prop_assert_eq!(flags, all);
                        at += length;
                    }
                    for (key, found) in keys.iter().zip(found) {
                        let mut matching = linear.iter().filter(|(k, m, ..)| key.matches(k, m));
                        if found == Found::MISS {
                            prop_assert!(matching.next().is_none(), "missed a flow");
                            continue;
                        }
                        let id = table.arena.id(found.flow);
                        let flow = matching.find(|flow| flow.2 == id);
                        prop_assert!(flow.is_some(), "found a flow that does not match");
                        prop_assert_eq!(found.action.kind(), action(flow.unwrap().3));
                    }
                }
            }
            for (.., id, _) in &linear {
                let stats = table.arena.stats(table.arena.find(*id).unwrap());
                let of_flow = counted.get(&id.0).copied().unwrap_or_default();
                prop_assert_eq!((stats.packets, stats.bytes), of_flow);
                prop_assert_eq!(stats.used, if of_flow.0 > 0 { NOW } else { Time(0) });
            }
            reader.offline();
            domain.collect();
        }
    }
}

#[test]
fn caches_stay_within_their_memory() {
    assert_eq!(cache::headers::ENTRY_BYTES, 100);
    let entries = crate::Config::exact_entries_in;
    assert_eq!((entries(200 << 20), entries(199 << 20), entries(0)), (1 << 21, 1 << 20, 1));
    let mut caches = Caches::new(64, [1, 2]);
    caches.set_one_in(0);
    caches.resize(1 << 14);
    assert!(!caches.headers.is_on() && caches.headers.ways() <= 1 << 14);
}

/// The cache starts small and grows to hold the flows of a trace. In the end all packets hit.
#[test]
#[cfg_attr(miri, ignore = "thousands of flows")]
fn the_cache_grows_with_the_flows() {
    const FLOWS: u32 = 20_000;
    let domain = Arc::new(Domain::new(1));
    let mut reader = domain.readers().pop().unwrap();
    let table = Table::new(100_000, 1000, 1, [1, 2], domain.clone());
    table.add_worker(0);
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwSrc);
    let packet = |n: u32| {
        let mut f = frame([0, 7, 0, 0, 0, 0, 0, 2]);
        f[26..30].copy_from_slice(&n.to_be_bytes());
        Packet::from_slice(&f)
    };
    let packets: Vec<Packet> = (0..FLOWS).map(packet).collect();
    let any: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    for packet in &packets {
        let mask = Box::new(mask.clone());
        table.install(&key_of(packet.data()), mask, any.clone(), Arc::new(()), Time(1), Requester::Management).unwrap();
    }
    let caches = std::cell::RefCell::new(Caches::new(1 << 16, [5, 6]));
    let before = caches.borrow().headers.ways();
    reader.quiescent();
    let guard = reader.pin();
    let list = table.list_of_port(IN_PORT, guard).unwrap();
    let mut exact = 0;
    for _ in 0..8 {
        exact = 0;
        for packets in packets.chunks(BATCH_SIZE) {
            let work = OfBatch { packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed: false };
            exact += at_best(work).hits.exact;
        }
    }
    assert!(before < FLOWS as usize && caches.borrow().headers.ways() > FLOWS as usize);
    assert!(exact > FLOWS * 98 / 100, "{exact} of {FLOWS}");
    let numbers = caches.borrow().headers.numbers();
    assert!(numbers <= FLOWS as usize && numbers > FLOWS as usize * 98 / 100, "one entry for each flow: {numbers}");
}

/// A table with one flow of a mask, a cache, and the frames that a batch is made of.
fn one_flow(fields: &[Field], first: &[u8], entries: usize) -> (crate::sync::rcu::Reader, Table, Caches) {
    let domain = Arc::new(Domain::new(1));
    let reader = domain.readers().pop().unwrap();
    let table = Table::new(100, 10, 1, [1, 2], domain.clone());
    table.add_worker(0);
    let mut mask = Mask::wildcard();
    fields.iter().for_each(|&field| mask.set_exact(field));
    let any: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    table.install(&key_of(first), Box::new(mask), any, Arc::new(()), Time(1), Requester::Management).unwrap();
    (reader, table, Caches::new(entries, [5, 6]))
}

/// Fields that no flow of the port matches are neither hashed nor compared: packets that differ only there share an
/// entry of the cache.
#[test]
fn fields_that_no_flow_looks_at_make_no_entry() {
    let frames: Vec<Vec<u8>> = (0..32u8).map(|n| frame([0, 7, 1, n, n, 0, 0, 2])).collect();
    for (fields, expected) in [(&[Field::NwSrc][..], 31), (&[Field::NwSrc, Field::UdpSrc], 7)] {
        let (mut reader, table, caches) = one_flow(fields, &frames[0], 64);
        let caches = std::cell::RefCell::new(caches);
        reader.quiescent();
        let guard = reader.pin();
        let list = table.list_of_port(IN_PORT, guard).unwrap();
        let mut exact = 0;
        for (n, frame) in frames.iter().enumerate() {
            let packets = &[Packet::from_slice(frame)];
            let work = OfBatch { packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed: false };
            let OfPackets { found, hits, .. } = at_best(work);
            exact += hits.exact;
            assert_eq!(found[0] != Found::MISS, expected > 7 || n % 4 == 0, "frame {n}");
        }
        // The second frame's destination and ports vary, and the first flow matches none of them.
        assert_eq!(exact, expected, "{fields:?}");
    }
}

/// Packets of one flow that follow each other are looked up once.
#[test]
fn a_run_is_looked_up_once() {
    let (one, other) = (frame([0, 7, 1, 0, 0, 0, 0, 2]), frame([0, 7, 2, 0, 0, 0, 0, 2]));
    let (mut reader, table, mut caches) = one_flow(&[Field::NwProto], &one, 64);
    caches.set_one_in(0);
    let caches = std::cell::RefCell::new(caches);
    reader.quiescent();
    let guard = reader.pin();
    let list = table.list_of_port(IN_PORT, guard).unwrap();
    let packets: Vec<Packet> = (0..32).map(|n| Packet::from_slice(if n < 20 { &one } else { &other })).collect();
    let (packets, table, mixed) = (&packets, &table, false);
    for of_packets in at_every(|| OfBatch { packets, list, table, caches: caches.borrow_mut(), guard, mixed }) {
        let OfPackets { found, hits, runs, .. } = of_packets;
        // No flow matches the source address here.
        assert_eq!((hits.visited, hits.megaflow, runs.len()), (1, 32, 1));
        assert!(found.iter().all(|f| *f != Found::MISS));
    }
}

/// Ports over IPv6 behind a tag are so far from the Ethernet type of the tag that this is checked separately: packets
/// with another type do not match.
#[test]
fn only_tagged_packets_are_of_a_tagged_flow() {
    for kind in [0x14, 0x15] {
        // Tagged, tagged by a provider, and with an unknown type where the tag would be.
        let of = |tag| frame([kind & 7, tag, 1, 0, 7, 0, 0, 2]);
        let (tagged, provider, unknown) = (of(0), of(3), of(11));
        let (mut reader, table, caches) = one_flow(&[Field::DlType, Field::UdpDst], &tagged, 64);
        let caches = std::cell::RefCell::new(caches);
        reader.quiescent();
        let guard = reader.pin();
        let list = table.list_of_port(IN_PORT, guard).unwrap();
        let frames = [&tagged, &unknown, &tagged, &provider, &unknown, &tagged];
        let packets: &[Packet] = &frames.map(|frame| Packet::from_slice(frame));
        for mixed in [false, true, true] {
            let of = || OfBatch { packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed };
            for of_packets in at_every(of) {
                let found: Vec<bool> = of_packets.found.iter().map(|found| *found != Found::MISS).collect();
                // A provider's tag is a tag as well.
                assert_eq!(found, [true, false, true, true, false, true], "kind {kind}");
            }
        }
    }
}

/// The packets of a mixed batch are counted in the look-up, once each. Those whose flow is gone are not counted.
#[test]
fn a_mixed_batch_is_counted_while_it_is_looked_up() {
    let frames: Vec<Vec<u8>> = (0..8u8).map(|n| frame([0, 7, n, 0, 0, 0, 0, 2])).collect();
    let packets: Vec<Packet> = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
    let (mut reader, table, caches) = one_flow(&[Field::NwSrc], &frames[0], 64);
    let to = |port| -> Arc<[Action]> { Arc::new([Action::Output(PortNo(port))]) };
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwSrc);
    let install = |n: usize, port| {
        let (key, mask) = (key_of(&frames[n]), Box::new(mask.clone()));
        table.install(&key, mask, to(port), Arc::new(()), Time(1), Requester::Management).unwrap().id
    };
    let ids: Vec<_> = (1..8).map(|n| install(n, 1)).collect();
    let caches = std::cell::RefCell::new(caches);
    let mut look = || {
        flow_counters::WRITES.with(|work| work.added.set(0));
        reader.quiescent();
        let guard = reader.pin();
        let list = table.list_of_port(IN_PORT, guard).unwrap();
        let of = OfBatch { packets: &packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed: true };
        let OfPackets { runs, uniform, hits, .. } = at_best(of);
        let counted: Vec<bool> = runs.iter().map(|run| run.3).collect();
        reader.offline();
        (counted, uniform, hits.exact, flow_counters::WRITES.with(|work| work.added.get()))
    };
    assert_eq!(look(), (vec![false; 8], false, 0, 0), "tier 2 finds them");
    assert_eq!(look(), (vec![true; 8], true, 8, 8));
    // One flow gets another port, and one is removed.
    table.modify(ids[2], to(2).to_vec()).unwrap();
    let but = |missing: &[usize]| (0..8).map(|n| !missing.contains(&n)).collect::<Vec<_>>();
    assert_eq!(look(), (but(&[3]), false, 7, 7), "what was known of a flow that has changed is no longer");
    assert_eq!(look(), (vec![true; 8], false, 8, 8), "not alike");
    table.remove(&[ids[4]]);
    assert_eq!(look(), (but(&[5]), false, 7, 7));
    let packets_of = |id| table.arena.stats(table.arena.find(id).unwrap()).packets;
    assert_eq!((packets_of(ids[0]), packets_of(ids[2])), (4, 3));
}

/// Runs are looked for until there are hardly any, and where most packets have headers that are so unusual that they
/// have no line.
#[test]
fn batches_without_runs_are_told() {
    let numbered = |n: u8| frame([0, 7, n, 0, 0, 0, 0, 2]);
    // A line has room for five words of a key.
    let many = [Field::NwSrc, Field::Ipv6Src, Field::Ipv6Dst, Field::ArpSha, Field::DlDst, Field::VlanTci];
    let (mut reader, table, caches) = one_flow(&many[..1], &numbered(0), 64);
    // Another flow looks at more.
    let mut mask = Mask::wildcard();
    many.iter().for_each(|&field| mask.set_exact(field));
    let any: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
    let mut key = key_of(&numbered(0));
    key.set(Field::NwSrc, 0x7f00_0001);
    table.install(&key, Box::new(mask), any, Arc::new(()), Time(1), Requester::Management).unwrap();
    let caches = std::cell::RefCell::new(caches);
    reader.quiescent();
    let guard = reader.pin();
    let list = table.list_of_port(IN_PORT, guard).unwrap();
    let labelled = frame([0x10, 7, 5, 0, 0, 0, 0x13, 2]);
    let after = |frames: Vec<Vec<u8>>, mixed| {
        let packets: Vec<Packet> = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
        at_best(OfBatch { packets: &packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed }).mixed
    };
    let distinct: Vec<Vec<u8>> = (0..8).map(numbered).collect();
    assert!(after(distinct.clone(), false) > 8);
    assert_eq!(after(distinct[..3].to_vec(), false), 0, "too few");
    assert_eq!(after(vec![numbered(1); 8], false), 0, "a run");
    assert_eq!(after((0..8).map(|n| numbered(n / 2)).collect(), false), 0, "runs of two");
    let unusual = |count| [&distinct[..8 - count], &vec![labelled.clone(); count]].concat();
    assert!(after(unusual(1), false) > 8 && after(unusual(4), false) > 8, "some labels");
    assert_eq!(after(unusual(5), false), 0, "most are");
}

/// Packets with unusual headers are found by a line of the header cache, too, which is made of their outlines, or of
/// their keys. Only where flows look at too many fields are they not.
#[test]
fn unusual_headers_have_lines() {
    // Options, fragments, a hop-by-hop header, a provider's tag, a label.
    let choices = [
        [0, 7, 1, 0, 0, 0, 3, 2],
        [0, 7, 2, 0, 0, 0, 5, 2],
        [0, 7, 3, 0, 0, 0, 6, 2],
        [4, 7, 1, 0, 0, 0, 7, 2],
        [0, 3, 4, 0, 0, 0, 0, 2],
        [0x10, 7, 5, 0, 0, 0, 0x13, 2],
    ];
    let frames: Vec<Vec<u8>> = choices.into_iter().map(frame).collect();
    let packets: Vec<Packet> = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
    let few = [Field::DlType, Field::NwFrag, Field::NwSrc, Field::Ipv6Src];
    let too_many = [&few[..], &[Field::Ipv6Dst, Field::DlDst, Field::UdpDst, Field::VlanTci]].concat();
    for (fields, has_lines) in [(&few[..], true), (&too_many, false)] {
        let (mut reader, table, caches) = one_flow(fields, &frames[0], 64);
        let any: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
        for frame in &frames[1..] {
            let mut mask = Mask::wildcard();
            fields.iter().for_each(|&field| mask.set_exact(field));
            let mask = Box::new(mask);
            table.install(&key_of(frame), mask, any.clone(), Arc::new(()), Time(1), Requester::Management).unwrap();
        }
        let caches = std::cell::RefCell::new(caches);
        reader.quiescent();
        let guard = reader.pin();
        let list = table.list_of_port(IN_PORT, guard).unwrap();
        for (round, mixed) in [false, false, true, true].into_iter().enumerate() {
            let of = OfBatch { packets: &packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed };
            let OfPackets { found, hits, runs, extracted, .. } = at_best(of);
            assert!(found.iter().all(|found| *found != Found::MISS) && hits.simple == 0);
            assert_eq!(runs.iter().all(|run| run.3), mixed && has_lines, "counted in the look-up of the header cache");
            // The label has no outline. Where there are too many fields for IPv6, IPv4 has lines all the same.
            let expected = [0b11_1111, if has_lines { 0b10_0000 } else { 0b10_1000 }][round.min(1)];
            assert_eq!(extracted, expected, "{fields:?}, round {round}");
        }
        assert_eq!(caches.borrow().headers.numbers(), if has_lines { frames.len() } else { 4 });
    }
}

/// A worker whose table of compact rewrites is full of others forgets all of them. The entries of its header cache, which
/// have their numbers, go as well, and flows get numbers again.
#[test]
#[cfg_attr(miri, ignore = "thousands of rewrites")]
fn a_worn_out_table_of_rewrites_is_forgotten() {
    let numbered = |n: u8| frame([0, 7, n, 0, 0, 0, 0, 2]);
    let (mut reader, table, mut caches) = one_flow(&[Field::NwSrc], &numbered(0), 64);
    let actions = |n: u8| [Action::PushVlan { tpid: 0x8100, tci: n.into() }, Action::Output(PortNo(1))];
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwSrc);
    for n in 1..4 {
        let (key, mask) = (key_of(&numbered(n)), Box::new(mask.clone()));
        table.install(&key, mask, Arc::new(actions(n)), Arc::new(()), Time(1), Requester::Management).unwrap();
    }
    // So that the flows' first numbers are not the first of all, and are not given again.
    caches.rewrites.number(&CompactRewrite::to(PortNo(7)));
    let caches = std::cell::RefCell::new(caches);
    reader.quiescent();
    let guard = reader.pin();
    let list = table.list_of_port(IN_PORT, guard).unwrap();
    let look = |order: [u8; 3], mixed| {
        let packets = order.map(|n| Packet::from_slice(&numbered(n)));
        let of = OfBatch { packets: &packets, list, table: &table, caches: caches.borrow_mut(), guard, mixed };
        let OfPackets { found, hits, .. } = at_best(of);
        for (n, found) in order.into_iter().zip(found) {
            let program = Program::compile(&actions(n));
            let number = found.action.rewrite().expect("it has a compact form");
            assert_eq!(caches.borrow().rewrites.rewrites().get(number as usize), program.compact(), "flow {n}");
        }
        (hits.exact, hits.megaflow)
    };
    for mixed in [false, true] {
        assert_eq!(look([1, 2, 3], mixed), (0, 3));
        assert_eq!(look([1, 2, 3], mixed), (3, 0));
        let mut others = (8..).map(|port| CompactRewrite::to(PortNo(port)));
        while !caches.borrow().rewrites.is_worn_out() {
            caches.borrow_mut().rewrites.number(&others.next().expect("there is no last one"));
        }
        assert_eq!(look([3, 1, 2], mixed), (0, 3), "nothing is known any more");
        assert_eq!(caches.borrow().rewrites.rewrites().len(), 3);
        assert_eq!(look([1, 2, 3], mixed), (3, 0));
        caches.borrow_mut().set_one_in(0);
        caches.borrow_mut().set_one_in(1);
    }
}

/// To remove or change a flow is one write for each worker, however many cache entries it has, all of which become
/// invalid.
#[test]
fn a_flow_goes_with_one_write_for_each_worker() {
    for lines in [10u16, if cfg!(miri) { 40 } else { 500 }] {
        // Other flows match ports, but not this one.
        let of_port = |n: u16| {
            let mut f = frame([0, 7, 0, 0, 0, 0, 0, 2]);
            f[34..36].copy_from_slice(&n.to_be_bytes());
            f
        };
        let (mut reader, table, caches) =
            one_flow(&[Field::NwSrc], &of_port(0), if cfg!(miri) { 1 << 11 } else { 1 << 14 });
        let mut other = Mask::wildcard();
        [Field::NwSrc, Field::UdpSrc].iter().for_each(|&field| other.set_exact(field));
        let mut elsewhere = of_port(7);
        elsewhere[29] = 9;
        let any: Arc<[Action]> = Arc::new([Action::Output(PortNo(1))]);
        let key = key_of(&elsewhere);
        table.install(&key, Box::new(other), any.clone(), Arc::new(()), Time(1), Requester::Management).unwrap();
        let caches = std::cell::RefCell::new(caches);
        let packets: Vec<Packet> = (0..lines).map(|n| Packet::from_slice(&of_port(n))).collect();
        let mut look = || {
            reader.quiescent();
            let guard = reader.pin();
            let list = table.list_of_port(IN_PORT, guard).unwrap();
            let mut hits = Hits::default();
            let mut flow = None;
            for packets in packets.chunks(BATCH_SIZE) {
                let caches = caches.borrow_mut();
                let of = at_best(OfBatch { packets, list, table: &table, caches, guard, mixed: true });
                (hits.exact, hits.megaflow) = (hits.exact + of.hits.exact, hits.megaflow + of.hits.megaflow);
                flow = flow.or(Some(of.found[0].flow));
            }
            reader.offline();
            (hits.exact, hits.megaflow, flow.unwrap())
        };
        let (_, found, flow) = look();
        assert_eq!((found, look().0), (lines.into(), lines.into()), "all lines are in the cache");
        let id = table.arena.id(flow);
        flow_counters::WRITES.with(|work| work.epochs_raised.set(0));
        table.modify(id, any.to_vec()).unwrap();
        assert_eq!(flow_counters::WRITES.with(|work| work.epochs_raised.get()), 1);
        assert_eq!(look().1, u32::from(lines), "none was known any more");
        table.remove(&[id]);
        assert_eq!(flow_counters::WRITES.with(|work| work.epochs_raised.get()), 2);
        assert_eq!(look().0 + look().1, 0);
    }
}

/// Without the secret it cannot be predicted which packets share a set of the cache.
#[test]
fn the_secret_decides_where_a_line_goes() {
    let lines: Vec<crate::classify::cpu::simd::Line> =
        (0..64u64).map(|n| [1, 2, 3, n << 32, 5, 6, 0, 7 << 32]).collect();
    let sets = |seed| {
        let cache = HeaderCache::new(1 << 16, seed);
        lines.iter().map(|line| cache.set_of(line)).collect::<Vec<_>>()
    };
    let same = |a: &[usize], b: &[usize]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    let (a, b, c) = (sets([1, 2]), sets([1, 3]), sets([9, 2]));
    assert_eq!(a, sets([1, 2]));
    assert!(same(&a, &b) < 8 && same(&a, &c) < 8 && same(&b, &c) < 8, "{a:?} {b:?} {c:?}");
}
