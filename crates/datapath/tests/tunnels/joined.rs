//! Segments of TCP that leave a tunnel one by one, finished, as they come from a NIC.

use super::common::segments::{by_connection, segment, stream};
use super::*;

/// A tunnel that ends at a port that takes super-frames.
fn way_to_taker() -> Way {
    way_by_kind(&kinds()[0])
}

fn way_by_kind(kind: &(Protocol, Header<'_>)) -> Way {
    let way = way(kind, false, false, false);
    way.take_super_frames(true);
    way
}

impl Way {
    /// Whether the port at the end takes super-frames from now on.
    fn take_super_frames(&self, takes: bool) {
        self.ports[3].super_frames.store(takes, Ordering::Relaxed);
        self.dp.refresh_port(self.numbers[3]).unwrap();
    }

    /// What has left the tunnel of these frames, which come in at once.
    fn through(&self, frames: &[Vec<u8>]) -> Vec<Packet> {
        frames.iter().for_each(|frame| self.ports[0].give(frame));
        self.poll();
        self.ports[1].take().iter().for_each(|frame| self.ports[2].give(frame));
        self.poll();
        let left = self.ports[3].sent.lock().unwrap().drain(..).collect();
        assert_eq!(self.dp.account().came(), self.dp.account().went());
        left
    }
}

#[test]
fn segments_leave_the_tunnel_as_one_super_frame() {
    let way = way_to_taker();
    let left = way.through(&stream(20));
    assert_eq!((left.len(), left[0].len()), (1, 54 + 20_000));
    assert_eq!((left[0].offload().gso_type, left[0].offload().gso_size), (Offload::GSO_TCPV4, 1000));
    assert_eq!(way.dp.account().joined, 19);
}

#[test]
fn they_leave_it_as_they_came_where_no_port_takes_super_frames() {
    let way = way(&kinds()[0], false, false, false);
    let frames = stream(20);
    let left = way.through(&frames);
    assert!(left.iter().all(|packet| *packet.offload() == Offload::NONE));
    assert_eq!(left.iter().map(|packet| packet.data().to_vec()).collect::<Vec<_>>(), frames);
}

#[test]
fn a_port_may_take_super_frames_no_longer() {
    let way = way_to_taker();
    assert_eq!(way.through(&stream(32)).len(), 1);
    way.take_super_frames(false);
    // The trial that has begun goes on.
    let left: Vec<_> = (0..20).map(|_| way.through(&stream(32)).len()).collect();
    assert_eq!((left[0], left[19]), (1, 32));
}

#[test]
fn they_leave_every_type_of_tunnel_so() {
    for kind in kinds() {
        let left = way_by_kind(&kind).through(&stream(20));
        assert_eq!((left.len(), left[0].len()), (1, 54 + 20_000), "{kind:?}");
    }
}

#[test]
fn a_segment_with_a_wrong_checksum_is_left_to_its_receiver() {
    // Payload, and the checksum of the IP header.
    for at in [100, 24] {
        let mut frames = stream(5);
        frames[2][at] ^= 1;
        let left = way_to_taker().through(&frames);
        assert_eq!(left.iter().map(Packet::len).collect::<Vec<_>>(), [2054, 1054, 2054], "{at}");
        assert_eq!((left[1].data(), *left[1].offload()), (&frames[2][..], Offload::NONE));
    }
}

#[test]
fn it_is_tried_no_longer_where_hardly_any_follow_each_other() {
    let way = way_to_taker();
    let mut finished = 0;
    for _ in 0..100 {
        let frames: Vec<_> = (0..32).map(|source| segment(1000 + source, (0, 0, 0x10), 1000)).collect();
        let left = way.through(&frames);
        finished += left.iter().filter(|packet| *packet.offload() == Offload::NONE).count();
    }
    assert_eq!(finished, 3200 - 256, "the others have been verified");
    assert_eq!(way.dp.account().joined, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is joined, its segments are those that came, those of a connection in the same order.
    #[test]
    fn whatever_leaves_a_tunnel_has_the_segments_that_came(
        pieces in prop::collection::vec((0..3u16, 1..8u16, 500..1400usize, any::<[bool; 3]>(), 0..30u8), 1..20),
    ) {
        let way = way_to_taker();
        let mut frames = Vec::new();
        let mut sent = [(0u16, 0u32); 3];
        for (source, count, size, [push, lost, short], odd) in pieces {
            let (id, seq) = &mut sent[usize::from(source)];
            for n in 0..count {
                let is_last = n + 1 == count;
                let size = if is_last && short { size / 3 } else { size };
                let mut frame = segment(source, (*id, *seq, if is_last && push { 0x18 } else { 0x10 }), size);
                (*id, *seq) = (id.wrapping_add(1), seq.wrapping_add(size as u32));
                match odd {
                    0 => frame[60] ^= 1,
                    1 => frame = udp(source.into(), 9, n, 80),
                    2 => frame.resize(1400, 0),
                    _ => {}
                }
                if !(lost && n == 2) {
                    frames.push(frame);
                }
            }
        }
        let mut left = Vec::new();
        for packet in frames.chunks(32).flat_map(|frames| way.through(frames)) {
            complete(packet, Offloads::default(), &HEAP, &mut |part| left.push(part.data().to_vec())).unwrap();
        }
        prop_assert_eq!(by_connection(left), by_connection(frames));
    }
}
