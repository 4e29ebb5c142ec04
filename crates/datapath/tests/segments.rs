//! Segments of TCP, finished, as they come from a NIC, that are sent to a port that takes super-frames.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::segments::{by_connection, segment, stream};
use common::{MemPort, by_hand, flow};
use datapath::{Action, Config, Datapath, PortNo};
use packet::buffer::heap::HEAP;
use packet::{Offload, Packet};
use ports::Offloads;
use ports::offload::complete;
use proptest::prelude::*;

/// A switch that sends what comes in at the first port to the second and the third.
struct Switch {
    dp: Arc<Datapath>,
    ports: Vec<(PortNo, Arc<MemPort>)>,
}

impl Switch {
    /// Of the two, the last one takes super-frames.
    fn new() -> Switch {
        let (dp, _, ports) = by_hand(Config::default(), 3);
        let switch = Switch { dp, ports };
        switch.take_super_frames(true);
        let actions = [1, 2].map(|n: usize| Action::Output(switch.ports[n].0)).to_vec();
        switch.dp.install(flow(switch.ports[0].0, 0, &[], actions)).unwrap();
        switch
    }

    fn take_super_frames(&self, takes: bool) {
        self.ports[2].1.super_frames.store(takes, Ordering::Relaxed);
        self.dp.refresh_port(self.ports[2].0).unwrap();
    }

    /// What the two ports have sent of these frames, which come in at once.
    fn send(&self, frames: &[Vec<u8>]) -> [Vec<Packet>; 2] {
        frames.iter().for_each(|frame| self.ports[0].1.give(frame));
        while self.ports[0].1.waiting() > 0 {
            self.dp.poll();
        }
        assert_eq!(self.dp.account().came(), self.dp.account().went());
        [1, 2].map(|n: usize| self.ports[n].1.sent.lock().unwrap().drain(..).collect())
    }
}

fn bytes(packets: &[Packet]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| packet.data().to_vec()).collect()
}

#[test]
fn they_become_one_super_frame_for_a_port_that_takes_it_and_for_no_other() {
    let (switch, frames) = (Switch::new(), stream(20));
    let [others, taken] = switch.send(&frames);
    assert_eq!(bytes(&others), frames);
    assert_eq!((taken.len(), taken[0].len()), (1, 54 + 20_000));
    assert_eq!((taken[0].offload().gso_type, taken[0].offload().gso_size), (Offload::GSO_TCPV4, 1000));
    assert_eq!(switch.dp.account().joined, 19);
    switch.take_super_frames(false);
    let [_, taken] = switch.send(&frames);
    assert_eq!(bytes(&taken), frames);
}

#[test]
fn they_stay_as_they_are_for_who_wants_to_see_what_came() {
    let (switch, frames) = (Switch::new(), stream(20));
    for (keeps, left) in [(true, 20), (true, 20), (false, 1)] {
        switch.dp.keep_segments(switch.ports[2].0, keeps).unwrap();
        assert_eq!(switch.send(&frames)[1].len(), left);
    }
}

#[test]
fn those_of_several_connections_are_joined_where_they_are_mixed() {
    let switch = Switch::new();
    let frames: Vec<_> =
        (0..8).flat_map(|n: u16| (0..4).map(move |c| segment(c, (n, 1000 * u32::from(n), 0x10), 1000))).collect();
    let [_, taken] = switch.send(&frames);
    assert_eq!(taken.iter().map(Packet::len).collect::<Vec<_>>(), [54 + 8000; 4]);
}

#[test]
fn it_is_tried_no_longer_where_hardly_any_follow_each_other() {
    let switch = Switch::new();
    let alone: Vec<_> = (0..32).map(|source| segment(source, (0, 0, 0x10), 1000)).collect();
    for _ in 0..8 {
        let [_, taken] = switch.send(&alone);
        assert_eq!(bytes(&taken), alone, "nothing has changed");
    }
    // Of 256 none was joined.
    let frames = stream(32);
    let tries: Vec<_> = (0..257).map(|_| switch.send(&frames)[1].len()).collect();
    assert_eq!((tries[0], tries[255], tries[256]), (32, 32, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is joined, the segments of each connection are those that came, in the same order.
    #[test]
    fn whatever_is_joined_has_the_segments_that_came(
        pieces in prop::collection::vec((0..5u16, 1..8u16, 500..1400usize, any::<[bool; 2]>(), 0..20u8), 1..20),
        swaps: u64,
    ) {
        let switch = Switch::new();
        let mut frames = Vec::new();
        let mut sent = [(0u16, 0u32); 5];
        for (source, count, size, [push, lost], odd) in pieces {
            let (id, seq) = &mut sent[usize::from(source)];
            for n in 0..count {
                let mut frame = segment(source, (*id, *seq, if n + 1 == count && push { 0x18 } else { 0x10 }), size);
                (*id, *seq) = (id.wrapping_add(1), seq.wrapping_add(size as u32));
                match odd {
                    0 => frame[60] ^= 1,
                    1 => frame.truncate(54),
                    2 => frame.resize(1400, 0),
                    _ => {}
                }
                if !(lost && n == 2) {
                    frames.push(frame);
                }
            }
        }
        for at in (1..frames.len()).filter(|at| swaps >> (at % 64) & 3 == 0) {
            frames.swap(at - 1, at);
        }
        let mut came = Vec::new();
        for packet in frames.chunks(32).flat_map(|frames| { let [_, taken] = switch.send(frames); taken }) {
            complete(packet, Offloads::default(), &HEAP, &mut |part| came.push(part.data().to_vec())).unwrap();
        }
        prop_assert_eq!(by_connection(came), by_connection(frames));
    }
}
