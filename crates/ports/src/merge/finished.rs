//! Segments of TCP that are finished, as they come from a NIC, before they go to a port that takes super-frames.
//!
//! A stack or a guest takes a super-frame for what one of its segments would cost. Unlike those that a stack has just cut, the segments of several
//! connections are mixed in a burst. So several super-frames grow at a time: a segment moves to the place of those of its connection that came
//! before, past packets of others. Packets of one connection stay in their order.
//!
//! Checksums are verified where there is something to join, and not before. What is not joined stays as it was.

use arrayvec::ArrayVec;
use packet::{Batch, Memory, Offload, Packet};

use super::{Headers, Run, word};
use crate::offload::RightTcp;

/// Super-frames that grow at a time.
const RUNS: usize = 8;

/// Joins the segments of one burst.
pub struct Joiner {
    large: &'static Memory,
    /// What can grow, with its place in `out`, the oldest first.
    runs: ArrayVec<(Run, usize), RUNS>,
    /// What was made of the burst so far. Empty between two bursts.
    out: Batch,
}

/// What a packet belongs to.
enum Of {
    Tcp(Connection),
    /// Something that is no connection of TCP.
    Other,
    /// Perhaps any connection.
    Unknown,
}

/// Where a packet of TCP has what its connection is known by.
#[derive(Clone, Copy)]
struct Connection {
    l3: usize,
    l4: usize,
    ipv6: bool,
}

impl Joiner {
    /// Makes super-frames in `large`.
    pub fn new(large: &'static Memory) -> Joiner {
        Joiner { large, runs: ArrayVec::new(), out: Batch::new() }
    }

    /// Joins what follows each other in a burst. Returns how many packets became part of another one. With a frame that is shorter than
    /// `long`, no super-frame begins.
    pub fn join(&mut self, burst: &mut Batch, long: usize) -> usize {
        let before = burst.len();
        for packet in burst.drain(..) {
            self.add(packet, long);
        }
        for (run, at) in self.runs.drain(..) {
            finish(&run, &mut self.out[at]);
        }
        std::mem::swap(burst, &mut self.out);
        before - burst.len()
    }

    fn add(&mut self, packet: Packet, long: usize) {
        let connection = match Of::frame(packet.data()) {
            Of::Tcp(connection) => connection,
            Of::Other => return self.out.push(packet),
            Of::Unknown => {
                (0..self.runs.len()).for_each(|_| self.close(0));
                return self.out.push(packet);
            }
        };
        let Connection { l3, l4, ipv6 } = connection;
        let headers = Headers::at(packet.data(), l3, l4, ipv6).filter(|_| *packet.offload() == Offload::NONE);
        let is_same = |(run, at): &(Run, usize)| {
            let Headers { l3, l4, ipv6, .. } = run.headers;
            let other = Connection { l3, l4, ipv6 };
            ipv6 == connection.ipv6 && connection.name(packet.data()) == other.name(self.out[*at].data())
        };
        let Some(found) = self.runs.iter().position(is_same) else { return self.begin(packet, headers, long) };
        let (run, at) = &mut self.runs[found];
        let joined = headers.as_ref().and_then(|headers| append(run, &mut self.out[*at], &packet, headers, self.large));
        if joined.is_some() {
            return;
        }
        self.close(found);
        self.begin(packet, headers, long);
    }

    /// Adds a packet that a super-frame may begin with.
    fn begin(&mut self, packet: Packet, headers: Option<Headers>, long: usize) {
        if let Some(headers) = headers.filter(|_| packet.len() >= long) {
            if self.runs.is_full() {
                self.close(0);
            }
            self.runs.push((Run::new(headers), self.out.len()));
        }
        self.out.push(packet);
    }

    /// Lets a super-frame grow no further.
    fn close(&mut self, at: usize) {
        let (run, at) = self.runs.remove(at);
        finish(&run, &mut self.out[at]);
    }
}

/// Appends the next segment to a super-frame, or to the segment that one begins with. `None`: they don't belong together, one of them is not as it
/// was sent, or there is no buffer.
fn append(run: &mut Run, last: &mut Packet, next: &Packet, headers: &Headers, large: &'static Memory) -> Option<()> {
    if last.queue() != next.queue() || !run.is_followed_by(last, next, headers) {
        return None;
    }
    let first = if run.segments == 1 { Some(RightTcp::verify(last)?) } else { None };
    RightTcp::verify(next)?;
    run.append(last, next, headers, large).then_some(())?;
    if let Some(first) = first {
        first.unfinish(last);
    }
    Some(())
}

/// What a frame's connection of TCP is known by, and where its header is.
pub(super) fn name_of(frame: &[u8]) -> Option<(&[u8], usize)> {
    match Of::frame(frame) {
        Of::Tcp(connection) => Some((connection.name(frame), connection.l4)),
        Of::Other | Of::Unknown => None,
    }
}

fn finish(run: &Run, packet: &mut Packet) {
    if run.segments > 1 {
        run.finish(packet);
    }
}

impl Of {
    fn frame(frame: &[u8]) -> Of {
        let mut l3 = 14;
        while matches!(word(frame, l3 - 2), Some(0x8100 | 0x88a8)) {
            l3 += 4;
        }
        let (l4, ipv6, protocol) = match (word(frame, l3 - 2), frame.get(l3..l3 + 20)) {
            (Some(0x0806), _) => return Of::Other,
            // Without options, and whole.
            (Some(0x0800), Some(&[0x45, _, _, _, _, _, a, b, _, protocol, ..])) if a & 0x3f == 0 && b == 0 => {
                (l3 + 20, false, protocol)
            }
            (Some(0x86dd), Some(&[version, _, _, _, _, _, protocol @ (6 | 17 | 58), ..])) if version >> 4 == 6 => {
                (l3 + 40, true, protocol)
            }
            _ => return Of::Unknown,
        };
        match protocol {
            6 if frame.len() < l4 + 20 => Of::Unknown,
            6 => Of::Tcp(Connection { l3, l4, ipv6 }),
            _ => Of::Other,
        }
    }
}

impl Connection {
    /// Addresses and ports, which follow each other.
    fn name<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let addresses = if self.ipv6 { self.l3 + 8 } else { self.l3 + 12 };
        &frame[addresses..self.l4 + 4]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use packet::BATCH_SIZE;
    use packet::buffer::heap::{HEADROOM, HEAP};
    use packet::buffer::pool::{Pool, PoolConfig};
    use proptest::prelude::*;

    use super::*;
    use crate::Offloads;
    use crate::merge::tests::super_frame;
    use crate::offload::{complete, segment};

    const LONG: usize = 600;

    /// Where the port of the sender is, without tags: it tells connections apart here.
    fn source_at(ipv6: bool) -> usize {
        if ipv6 { 54 } else { 34 }
    }

    /// Finished segments of a connection, of so many bytes of payload each, in a row.
    fn segments(ipv6: bool, source: u8, size: u16, payload: usize) -> Vec<Packet> {
        let mut whole = super_frame(ipv6, 0, super::super::ACK, size, &vec![7; payload]);
        let at = source_at(ipv6);
        whole.data_mut()[at..at + 2].copy_from_slice(&u16::from(source).to_be_bytes());
        let mut parts = Vec::new();
        segment(&whole, &HEAP, &mut |part| parts.push(part)).unwrap();
        parts
    }

    fn join_in(joiner: &mut Joiner, packets: Vec<Packet>) -> Vec<Packet> {
        let (mut packets, mut left, mut joined) = (packets.into_iter().peekable(), Vec::new(), 0);
        let mut count = 0;
        while packets.peek().is_some() {
            let mut burst: Batch = packets.by_ref().take(BATCH_SIZE).collect();
            count += burst.len();
            joined += joiner.join(&mut burst, LONG);
            left.extend(burst);
        }
        assert_eq!(left.len() + joined, count);
        left
    }

    fn join(packets: Vec<Packet>) -> Vec<Packet> {
        join_in(&mut Joiner::new(&HEAP), packets)
    }

    /// The frames that a port sends that takes no super-frames.
    fn sent(packet: Packet) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        complete(packet, Offloads::default(), &HEAP, &mut |part| frames.push(part.data().to_vec())).unwrap();
        frames
    }

    /// In turns, one of each, as long as there are any.
    fn mixed(streams: Vec<Vec<Packet>>) -> Vec<Packet> {
        let mut streams: Vec<_> = streams.into_iter().map(Vec::into_iter).collect();
        let longest = streams.iter().map(|stream| stream.len()).max().unwrap_or(0);
        (0..longest).flat_map(|_| streams.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn segments_of_several_connections_become_a_super_frame_each() {
        for ipv6 in [false, true] {
            let streams: Vec<_> = (0..RUNS as u8).map(|source| segments(ipv6, source, 1000, 4000)).collect();
            let expected: Vec<Vec<_>> =
                streams.iter().map(|stream| stream.iter().map(|part| part.data().to_vec()).collect()).collect();
            let left = join(mixed(streams));
            assert_eq!(left.len(), RUNS);
            assert!(left.iter().all(|packet| packet.offload().is_gso() && packet.offload().gso_size == 1000));
            assert_eq!(left.into_iter().map(sent).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn with_more_connections_than_grow_at_a_time_nothing_gets_lost() {
        let streams = (0..2 * RUNS as u8).map(|source| segments(false, source, 1000, 2000)).collect();
        let left = join(mixed(streams));
        assert!(left.iter().all(|packet| *packet.offload() == Offload::NONE));
        assert_eq!(left.len(), 4 * RUNS);
    }

    #[test]
    fn what_comes_between_them_of_their_connection_stays_there() {
        let between = |change: &dyn Fn(&mut Packet)| {
            let mut packets = segments(false, 1, 1000, 4000);
            change(&mut packets[1]);
            let expected: Vec<_> = packets.iter().map(|packet| packet.data().to_vec()).collect();
            let left = join(packets);
            let lengths: Vec<_> = left.iter().map(Packet::len).collect();
            assert_eq!(left.into_iter().flat_map(sent).collect::<Vec<_>>(), expected);
            lengths
        };
        assert_eq!(between(&|_| {}), [4066]);
        // Payload, checksum, sequence number, SYN, window, TTL and identification, that of the IP header.
        for at in [100, 50, 41, 47, 49, 22, 19, 24] {
            assert_eq!(between(&|packet| packet.data_mut()[at] ^= 2), [1066, 1066, 2066], "{at}");
        }
        // No payload, or of unknown shape: a fragment, options, a label, cut short.
        assert_eq!(between(&|packet| packet.truncate(66)), [1066, 66, 2066]);
        assert_eq!(between(&|packet| packet.data_mut()[20] = 0x20), [1066, 1066, 2066]);
        assert_eq!(between(&|packet| packet.data_mut()[14] = 0x46), [1066, 1066, 2066]);
        assert_eq!(between(&|packet| packet.data_mut()[12..14].copy_from_slice(&[0x88, 0x47])), [1066, 1066, 2066]);
        assert_eq!(between(&|packet| packet.truncate(40)), [1066, 40, 2066]);
    }

    #[test]
    fn what_comes_between_them_of_others_does_not_part_them() {
        let lengths = |ethertype: [u8; 2], protocol: u8| {
            let mut packets = segments(false, 1, 1000, 4000);
            let mut other = Packet::from_slice(packets[0].data());
            other.data_mut()[12..14].copy_from_slice(&ethertype);
            other.data_mut()[23] = protocol;
            packets.insert(2, other);
            join(packets).iter().map(Packet::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths([8, 0], 17), [4066, 1066]);
        assert_eq!(lengths([8, 6], 6), [4066, 1066]);
        assert_eq!(lengths([0x88, 0xcc], 6), [2066, 1066, 2066], "it is not known what that is");
    }

    #[test]
    fn packets_of_different_queues_and_short_ones_stay_alone() {
        let mut packets = segments(false, 1, 1000, 3000);
        packets[1].set_queue(7);
        assert_eq!(join(packets).len(), 3);
        let mut packets = segments(false, 1, 1000, 3000);
        packets.iter_mut().for_each(|packet| packet.set_queue(7));
        let left = join(packets);
        assert_eq!((left.len(), left[0].queue()), (1, 7));
        assert_eq!(join(segments(false, 1, 500, 3000)).len(), 6);
        assert_eq!(join(segments(false, 1, 1000, 2100)).len(), 1, "the last one may be short");
    }

    #[test]
    fn segments_stay_as_they_are_without_a_buffer_for_the_whole() {
        let pool = Pool::new(PoolConfig { chunks: 1, chunk_size: 1 << 17, headroom: HEADROOM }).unwrap();
        let mut joiner = Joiner::new(pool.memory());
        let left = join_in(&mut joiner, mixed((0..3).map(|source| segments(false, source, 1000, 3000)).collect()));
        assert_eq!(left.iter().filter(|packet| packet.offload().is_gso()).count(), 1);
        assert_eq!(left.iter().filter(|packet| *packet.offload() == Offload::NONE).count(), 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever is joined, the frames of each connection are those that came, in the same order.
        #[test]
        fn frames_of_a_connection_stay_as_they_are_and_in_their_order(
            pieces in prop::collection::vec(
                (0..4u8, any::<bool>(), 500..1449u16, 1..9usize, any::<u64>(), 0..8u8, 0..3usize), 1..12,
            ),
            order: u64,
        ) {
            let mut streams = Vec::new();
            for (source, ipv6, size, count, losses, odd, swap) in pieces {
                let mut parts = segments(ipv6, source, size, usize::from(size) * count - 50);
                let mut n = 0;
                parts.retain(|_| { n += 1; losses >> (n % 64) & 7 != 0 });
                if let Some(part) = parts.get_mut(1) {
                    match odd {
                        0 => part.data_mut()[120] ^= 1,
                        1 => part.truncate(66),
                        2 => part.data_mut()[20] |= 0x20,
                        _ => {}
                    }
                }
                if swap == 0 && parts.len() > 2 {
                    parts.swap(1, 2);
                }
                streams.push(parts);
            }
            let packets = if order & 1 == 0 { mixed(streams) } else { streams.into_iter().flatten().collect() };
            type Frames = Vec<Vec<u8>>;
            let by_connection = |frames: Frames| {
                let mut all: HashMap<Vec<u8>, Frames> = HashMap::new();
                for frame in frames {
                    let name = if frame[12] == 8 { frame[26..38].to_vec() } else { frame[22..58].to_vec() };
                    all.entry(name).or_default().push(frame);
                }
                all
            };
            let before = by_connection(packets.iter().map(|packet| packet.data().to_vec()).collect());
            let after = by_connection(join(packets).into_iter().flat_map(sent).collect());
            prop_assert_eq!(before, after);
        }
    }
}
