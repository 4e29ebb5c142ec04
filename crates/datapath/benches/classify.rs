//! Tier 2, and tier 1 with the scan before it, at 1 to 1,000,000 flows with 1, 8 and 64 masks, in batches of 32.
//!
//! Packets are of random flows, each as often as the others. With several masks, the flows are spread
//! over them evenly, so that a look-up in tier 2 visits half of them.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath::classify::batch::Hits;
use datapath::classify::cpu::simd::Simd;
use datapath::classify::cpu::{Leveled, at_best};
use datapath::classify::mixed::RunHistory;
use datapath::classify::table::megaflow::LookupContext;
use datapath::classify::{Caches, FlowRef, Requester, Table, classify as tiers};
use datapath::pipeline::batch::BatchMeta;
use datapath::sync::rcu::Domain;
use datapath::{Action, PortNo};
use packet::{BATCH_SIZE, Field, Key, Mask, Packet, Time};

/// Packets in the trace.
const TRACE: usize = 1 << 16;

fn key(flow: u32) -> Key {
    let mut key = Key::new();
    key.set(Field::InPortOxm, 1);
    key.set(Field::DlType, 0x0800);
    key.set(Field::NwSrc, u128::from(flow));
    key.set(Field::NwDst, u128::from(flow.wrapping_mul(0x9e37_79b9)));
    key.set(Field::UdpSrc, u128::from(flow % 50_000));
    key
}

/// The mask of a flow: all of nw_src, and one of 64 sets of bits of the rest.
fn mask(flow: u32, masks: u32) -> Mask {
    let mut mask = Mask::wildcard();
    mask.set_exact(Field::NwSrc);
    mask.add(Field::UdpDst, u128::from(flow % masks));
    mask
}

/// A UDP frame with this key.
fn frame(key: &Key) -> Packet {
    let mut f = [0u8; 60];
    f[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    (f[14], f[17], f[20], f[22], f[23], f[39]) = (0x45, 46, 0x40, 64, 17, 26);
    f[26..30].copy_from_slice(key.bytes(Field::NwSrc));
    f[30..34].copy_from_slice(key.bytes(Field::NwDst));
    f[34..36].copy_from_slice(key.bytes(Field::UdpSrc));
    Packet::from_slice(&f)
}

/// A batch, classified as a worker does it.
struct OfBatch<'a> {
    at: LookupContext<'a>,
    packets: &'a [Packet],
    caches: &'a mut Caches,
    meta: &'a mut BatchMeta,
    recent: &'a mut RunHistory,
}

impl Leveled for OfBatch<'_> {
    type Output = Hits;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Hits {
        self.meta.begin(PortNo(1));
        tiers(simd, self.at, self.packets, self.caches, self.meta, self.recent)
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn classify(c: &mut Criterion) {
    let mut group = c.benchmark_group("classify");
    group.throughput(Throughput::Elements(BATCH_SIZE as u64)).sample_size(20);
    for flows in [1u32, 1_000, 100_000, 1_000_000] {
        for masks in [1u32, 8, 64] {
            if masks > flows {
                continue;
            }
            let domain = Arc::new(Domain::new(1));
            let mut reader = domain.readers().pop().expect("one reader");
            let table = Table::new(flows as usize, 64, 1, [3, 4], domain.clone());
            table.add_worker(0);
            let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(2))]);
            for flow in 0..flows {
                let mask = Box::new(mask(flow, masks));
                table
                    .install(&key(flow), mask, actions.clone(), Arc::new(()), Time(1), Requester::Management)
                    .expect("below the limits");
            }
            let mut state = 88_172_645_463_325_252;
            let mut trace: Vec<Key> = (0..TRACE).map(|_| key((random(&mut state) % u64::from(flows)) as u32)).collect();
            trace.truncate(TRACE / BATCH_SIZE * BATCH_SIZE);
            reader.quiescent();
            let guard = reader.pin();
            let list = table.list_of_port(PortNo(1), guard).expect("flows of this port");
            let at = LookupContext { list, table: &table, worker: 0, guard, count_at: Some(Time(1)) };

            let mut batches = trace.chunks(BATCH_SIZE).cycle();
            group.bench_function(BenchmarkId::new("megaflow", format!("{flows} flows, {masks} masks")), |b| {
                b.iter(|| {
                    let mut found = [FlowRef::NONE; BATCH_SIZE];
                    let keys = batches.next().expect("endless");
                    black_box(Table::lookup(at, keys, u32::MAX, &mut found))
                });
            });
            // The same packets as frames, through the scan and the cache of headers.
            let frames: Vec<Packet> = trace.iter().map(frame).collect();
            let mut caches = Caches::new(2 * flows as usize, [3, 4]);
            let mut meta = BatchMeta::default();
            let mut recent = RunHistory::default();
            for packets in frames.chunks(BATCH_SIZE).cycle().take(8 * frames.len() / BATCH_SIZE) {
                at_best(OfBatch { at, packets, caches: &mut caches, meta: &mut meta, recent: &mut recent });
            }
            let mut batches = frames.chunks(BATCH_SIZE).cycle();
            group.bench_function(BenchmarkId::new("headers", format!("{flows} flows, {masks} masks")), |b| {
                b.iter(|| {
                    let packets = batches.next().expect("endless");
                    at_best(OfBatch { at, packets, caches: &mut caches, meta: &mut meta, recent: &mut recent })
                });
            });
        }
    }
}

criterion_group!(benches, classify);
criterion_main!(benches);
