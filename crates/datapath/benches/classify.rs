//! Tier 2 and tier 1 at 1 to 1,000,000 flows with 1, 8 and 64 masks, in batches of 32.
//!
//! Packets are of random flows, each as often as the others. With several masks, the flows are spread
//! over them evenly, so that a look-up in tier 2 visits half of them.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath::classify::{By, ExactCache, FlowRef, Table, classify as tiers};
use datapath::rcu::Domain;
use datapath::{Action, PortNo};
use packet::{BATCH_SIZE, Field, Key, Mask, Time};

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
            table.enlist(0);
            let actions: Arc<[Action]> = Arc::new([Action::Output(PortNo(2))]);
            for flow in 0..flows {
                let mask = Box::new(mask(flow, masks));
                table
                    .install(&key(flow), mask, actions.clone(), Arc::new(()), Time(1), By::Management)
                    .expect("below the limits");
            }
            let mut state = 88_172_645_463_325_252;
            let mut trace: Vec<Key> = (0..TRACE).map(|_| key((random(&mut state) % u64::from(flows)) as u32)).collect();
            trace.truncate(TRACE / BATCH_SIZE * BATCH_SIZE);
            reader.quiescent();
            let guard = reader.pin();
            let list = table.list(PortNo(1), guard).expect("flows of this port");

            let mut batches = trace.chunks(BATCH_SIZE).cycle();
            group.bench_function(BenchmarkId::new("megaflow", format!("{flows} flows, {masks} masks")), |b| {
                b.iter(|| {
                    let mut found = [FlowRef::NONE; BATCH_SIZE];
                    let keys = batches.next().expect("endless");
                    black_box(table.lookup(list, keys, u32::MAX, &mut found, 0, guard))
                });
            });
            if masks == 1 {
                continue;
            }
            let mut exact = ExactCache::new(2 * flows as usize);
            let mut batches = trace.chunks(BATCH_SIZE).cycle();
            group.bench_function(BenchmarkId::new("exact", format!("{flows} flows, {masks} masks")), |b| {
                b.iter(|| {
                    let keys = batches.next().expect("endless");
                    black_box(tiers(keys, list, &table, &mut exact, 0, guard).flows)
                });
            });
        }
    }
}

criterion_group!(benches, classify);
criterion_main!(benches);
