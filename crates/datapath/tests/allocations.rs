//! The fast path does not allocate.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::{by_hand, flow, udp};
use datapath::meter::{MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use datapath::{Action, Config, HashAlgorithm, Rewrite};
use packet::{Field, Key, Packet};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static KEYS: Cell<usize> = const { Cell::new(0) };
}

#[allow(unsafe_code)]
// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        if layout == Layout::new::<Key>() {
            KEYS.with(|n| n.set(n.get() + 1));
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn hits_do_not_allocate() {
    let (dp, _, p) = by_hand(Config::default(), 3);
    let set = Action::Set(Arc::new(Rewrite::field(Field::UdpDst, 99)));
    let band = MeterBand { rate: 1, burst: u32::MAX, kind: MeterBandKind::Drop };
    let meter = Arc::<MeterNumbers>::default().add(MeterUnit::Packets, &[band], dp.now()).unwrap();
    // Tier 2 for one port, tiers 1 and 2 for the other, with rewriting and recirculation.
    dp.install(flow(p[0].0, 0, &[], vec![Action::Output(p[2].0)])).unwrap();
    dp.install(flow(p[1].0, 0, &[(Field::NwDst, 1)], vec![set.clone(), Action::Meter(meter), Action::Recirc(1)]))
        .unwrap();
    dp.install(flow(p[1].0, 0, &[(Field::NwDst, 2), (Field::UdpDst, 4)], vec![Action::Output(p[2].0)])).unwrap();
    dp.install(flow(p[1].0, 1, &[(Field::UdpDst, 99)], vec![Action::Output(p[2].0)])).unwrap();
    let mut packets: Vec<Packet> = (0..128).map(|n| Packet::from_slice(&udp(n, 1 + n % 2, 3, 4))).collect();
    for round in 0..50 {
        for (n, packet) in packets.drain(..).enumerate() {
            p[n / 64].1.queues[0].lock().unwrap().push_back(packet);
        }
        let before = ALLOCATIONS.with(Cell::get);
        assert_eq!(dp.poll() + dp.poll(), 128);
        let allocated = ALLOCATIONS.with(Cell::get) - before;
        // The first rounds may make room in queues that grow, here and in the test's ports.
        assert!(round < 3 || allocated == 0, "{allocated} allocations in round {round}");
        packets.append(&mut p[2].1.sent.lock().unwrap());
        for packet in &mut packets {
            packet.data_mut()[36..38].copy_from_slice(&[0, 4]);
        }
        assert_eq!(packets.len(), 128);
    }
    let worker = &dp.stats().workers[0];
    assert!(worker.exact_hits > 0 && worker.megaflow_hits > 0 && worker.recirculated > 0);
}

/// Packets that go round again take all their metadata with them: that in the common block of their keys, and that in others.
#[test]
fn packets_with_metadata_go_round_without_allocations() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let set = |field, value: u128| Action::Set(Arc::new(Rewrite::field(field, value)));
    let written = [(Field::PktMark, 7), (Field::TunId, 8), (Field::TunDst, 9), (Field::TunIpv6Src, 10)];
    let mut actions: Vec<Action> = written.iter().map(|&(field, value)| set(field, value)).collect();
    actions.extend([Action::Hash { algorithm: HashAlgorithm::L4, basis: 1 }, Action::Recirc(1)]);
    dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
    // By the header cache; and by keys, for what the line has no room for.
    dp.install(flow(p[0].0, 1, &written[..2], vec![set(Field::TunId, 9), Action::Recirc(2)])).unwrap();
    dp.install(flow(p[0].0, 2, &[&written[2..], &[(Field::TunId, 9)]].concat(), vec![Action::Output(p[1].0)])).unwrap();
    let mut packets: Vec<Packet> = (0..64).map(|n| Packet::from_slice(&udp(n, 1, 3, 4))).collect();
    for round in 0..50 {
        p[0].1.queues[0].lock().unwrap().extend(packets.drain(..));
        let before = ALLOCATIONS.with(Cell::get);
        assert_eq!(dp.poll() + dp.poll(), 64);
        let allocated = ALLOCATIONS.with(Cell::get) - before;
        assert!(round < 3 || allocated == 0, "{allocated} allocations in round {round}");
        packets.append(&mut p[1].1.sent.lock().unwrap());
        assert_eq!(packets.len(), 64, "round {round}");
    }
    let worker = &dp.stats().workers[0];
    assert!(worker.recirculated == 50 * 128 && worker.exact_hits > 0, "{worker:?}");
}

/// Packets of established connections, the short way and the long way.
#[test]
fn tracked_packets_do_not_allocate() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let ct = |commit| Action::Ct(Arc::new(conntrack::Request { commit, ..Default::default() }));
    dp.install(flow(p[0].0, 0, &[], vec![ct(false), Action::Recirc(1)])).unwrap();
    dp.install(flow(p[0].0, 1, &[], vec![ct(true), Action::Output(p[1].0)])).unwrap();
    for fusing in [true, false] {
        dp.conntrack().set_fusing(fusing);
        let mut packets: Vec<Packet> = (0..64).map(|n| Packet::from_slice(&udp(n, 1, 3, 4))).collect();
        let before = dp.stats().workers[0].recirculated;
        for round in 0..50 {
            p[0].1.queues[0].lock().unwrap().extend(packets.drain(..));
            let before = ALLOCATIONS.with(Cell::get);
            assert_eq!(dp.poll() + dp.poll(), 64);
            let allocated = ALLOCATIONS.with(Cell::get) - before;
            assert!(round < 4 || allocated == 0, "{allocated} allocations in round {round}, {fusing}");
            packets.append(&mut p[1].1.sent.lock().unwrap());
            assert_eq!(packets.len(), 64, "round {round}");
        }
        let recirculated = dp.stats().workers[0].recirculated - before;
        assert!(if fusing { recirculated <= 4 * 64 } else { recirculated == 50 * 64 }, "{recirculated}, {fusing}");
    }
}

/// A clone has a packet of its own, which these tests have on the heap, and where it writes metadata a key of its own.
#[test]
fn clones_do_not_allocate_keys() {
    let (dp, _, p) = by_hand(Config::default(), 2);
    let mark = Action::Set(Arc::new(Rewrite::field(Field::PktMark, 9)));
    let inner = Action::Clone(vec![mark.clone(), Action::Recirc(1)]);
    let actions = vec![Action::Clone(vec![mark, inner, Action::Output(p[1].0)]), Action::Output(p[1].0)];
    dp.install(flow(p[0].0, 0, &[], actions)).unwrap();
    dp.install(flow(p[0].0, 1, &[(Field::PktMark, 9)], vec![Action::Output(p[1].0)])).unwrap();
    for round in 0..5 {
        (0..32).for_each(|n| p[0].1.give(&udp(n, 1, 2, 3)));
        let before = KEYS.with(Cell::get);
        dp.poll();
        let keys = KEYS.with(Cell::get) - before;
        assert_eq!(keys > 0, round == 0, "{keys} keys in round {round}");
        assert_eq!(p[1].1.take().len(), 96);
    }
}
