//! Conservation: whatever is done with packets, each that came into being has gone out or ended for a named reason.

mod common;

use std::sync::{Arc, LazyLock};

use common::{ToPort, by_hand, flow, packet_in, udp};
use datapath::tap::{Event, Record, TapSettings};
use datapath::{Action, Config, DropReason, Drops, HashAlgorithm, PortNo, Rewrite, Tap};
use packet::{Field, Key, Offload, Packet, Pool, PoolConfig};
use ports::{Env, PortSpec, registry};
use proptest::prelude::*;

/// Of the ports that [`by_hand`] makes: two that send, one that is down.
const DOWN: usize = 2;
/// One that takes nothing, and one that is not there.
const REFUSES: PortNo = PortNo(4);
const MISSING: PortNo = PortNo(77);

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let port = prop::sample::select(vec![PortNo(1), PortNo(2), PortNo(3), REFUSES, MISSING]);
    let reason = prop::sample::select(DropReason::ALL);
    let action = prop_oneof![
        5 => port.prop_map(Action::Output),
        1 => Just(Action::PushVlan { tpid: 0x8100, tci: 7 }),
        1 => Just(Action::PopVlan),
        1 => Just(Action::PushMpls { ethertype: 0x8847, lse: 0x1140 }),
        1 => Just(Action::PopMpls { ethertype: 0x0800 }),
        1 => Just(Action::Set(Arc::new(Rewrite::field(Field::NwTtl, 3)))),
        1 => Just(Action::Set(Arc::new(Rewrite::field(Field::UdpDst, 99)))),
        1 => (0..3u32).prop_map(Action::Recirc),
        1 => Just(Action::Hash { algorithm: HashAlgorithm::L4, basis: 1 }),
        1 => Just(packet_in(1)),
        1 => (14..200u32).prop_map(|max_len| Action::Truncate { max_len }),
        1 => reason.prop_map(Action::Drop),
    ];
    let list = prop::collection::vec(action, 0..5);
    list.prop_recursive(3, 30, 4, |inner| {
        let nested = prop_oneof![
            inner.clone().prop_map(Action::Clone),
            (any::<u32>(), inner.clone()).prop_map(|(probability, actions)| Action::Sample { probability, actions }),
            (10..300u16, inner.clone(), inner.clone()).prop_map(|(size, longer, others)| Action::CheckLength {
                size,
                longer,
                others
            }),
        ];
        (inner, nested, any::<prop::sample::Index>()).prop_map(|(mut list, nested, at)| {
            list.insert(at.index(list.len() + 1), nested);
            list
        })
    })
}

/// A pool with buffers for some frames and few copies, and one whose buffers have no room for another header.
fn scarce() -> [&'static Pool; 2] {
    static POOLS: LazyLock<[&Pool; 2]> = LazyLock::new(|| {
        let pool = |chunks, chunk_size| Pool::new(PoolConfig { chunks, chunk_size, headroom: 0 }).unwrap();
        [pool(24, 512), pool(24, 256)]
    });
    *POOLS
}

/// Frames, some of them cut short, some to be cut into segments, some where buffers are scarce.
fn frames() -> impl Strategy<Value = Vec<Packet>> {
    let frame = (0..4u32, 0..3u16, 15..64usize, 0..5u8, 0..4usize).prop_map(|(src, port, len, kind, memory)| {
        let mut frame = udp(src, 2, port, 4);
        match kind {
            0 => frame.truncate(len),
            1 => {
                frame.resize(400, 7);
                frame[16..18].copy_from_slice(&386u16.to_be_bytes());
                frame[38..40].copy_from_slice(&366u16.to_be_bytes());
            }
            _ => {}
        }
        let mut packet = packet::buffer::heap::packet(&frame, 0, 256);
        if kind == 1 {
            let (flags, gso_type) = (Offload::NEEDS_CSUM, Offload::GSO_UDP_L4);
            *packet.offload_mut() =
                Offload { flags, gso_type, hdr_len: 42, gso_size: 100, csum_start: 34, csum_offset: 6 };
        }
        if memory == 1 && kind > 1 {
            // As long as its buffer.
            let _ = packet.push_back(256 - packet.len()).map(|padding| padding.fill(0));
        }
        match scarce().get(memory).and_then(|pool| packet.duplicate_in(pool.memory())) {
            Some(copy) => copy,
            None => packet,
        }
    });
    prop::collection::vec(frame, 0..80)
}

/// What a tap has shown of packets that went.
#[derive(Default)]
struct Shown {
    sent: u64,
    dropped: Drops,
}

impl Shown {
    fn read(&mut self, tap: &mut Tap) {
        let mut take = |record: &Record, frame: &[u8]| {
            assert_eq!(frame.len(), record.length as usize);
            self.sent += u64::from(record.event == Event::Sent);
            record.event.reason().inspect(|reason| self.dropped.0[*reason as usize] += 1);
            true
        };
        while tap.read(&mut take) > 0 {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_came_is_what_went(
        flows in prop::collection::vec((0..3u32, actions()), 0..4),
        received in frames(),
        injected in frames(),
        by_hand_actions in actions(),
    ) {
        let (dp, _, ports) = by_hand(Config { upcall_queue: 16, ..Config::default() }, 3);
        let refuses = PortSpec::new("t0", "gre").with(&[("remote_ip", "192.0.2.1")]);
        prop_assert_eq!(dp.add_port(registry::open(&refuses, &Env::default()).unwrap()).unwrap(), REFUSES);
        ports[DOWN].1.up.store(false, std::sync::atomic::Ordering::Relaxed);
        dp.refresh_port(ports[DOWN].0).unwrap();
        dp.set_upcall(ToPort::new(ports[1].0, Field::NwSrc, true));
        for (recirc, actions) in flows {
            dp.install(flow(ports[0].0, recirc, &[], actions)).unwrap();
        }
        let (mut tap, mut shown) = (dp.add_tap(TapSettings::default(), None).unwrap(), Shown::default());
        let (came, handed) = (received.len() as u64, injected.len() as u64);
        ports[0].1.queues[0].lock().unwrap().extend(received);
        let mut key = Key::new();
        key.set(Field::InPortOxm, ports[0].0.0.into());
        injected.into_iter().for_each(|packet| dp.execute(packet, &key, &by_hand_actions));
        // Statistics start anew in between, which the account does not mind.
        dp.poll();
        dp.reset_stats();
        // What a packet becomes by recirculation is handled in slices, one in a turn, before its port is polled again.
        for turn in 0..1000 {
            dp.poll();
            shown.read(&mut tap);
            let account = dp.account();
            if turn > 20 && account.came() == account.went() && ports[0].1.queues[0].lock().unwrap().is_empty() {
                break;
            }
        }

        let account = dp.account();
        prop_assert_eq!((account.received, account.injected), (came, handed));
        prop_assert_eq!(account.sent, ports.iter().map(|(_, port)| port.sent() as u64).sum::<u64>());
        prop_assert_eq!(account.refused, dp.port(REFUSES).unwrap().stats().tx_dropped);
        prop_assert_eq!(account.came(), account.went(), "{}", account);
        // A tap has seen each packet where it went.
        if tap.counts().lost == 0 {
            prop_assert_eq!(shown.sent, account.sent + account.refused);
            for &reason in DropReason::ALL {
                let (shown, counted) = (shown.dropped.get(reason), account.drops.get(reason));
                // But for what is left of a frame that could not be cut to its end.
                let is_of_segments = matches!(reason, DropReason::Malformed | DropReason::NoBuffer);
                prop_assert!(shown == counted || is_of_segments && shown < counted, "{:?} {} {}", reason, shown, counted);
            }
        }
        drop(tap);
        drop(ports[0].1.sent.lock().unwrap().drain(..));
        drop(ports[1].1.sent.lock().unwrap().drain(..));
        for pool in scarce() {
            prop_assert_eq!(pool.in_use(), 0, "every buffer is free again");
        }
        // A worker that ends takes nothing with it.
        dp.set_workers(&[0]).unwrap();
        prop_assert_eq!(dp.account(), account);
    }
}
