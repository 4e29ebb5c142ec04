//! Entry for fuzzing: bursts of segments, some of which were changed on their way.

use std::collections::BTreeMap;

use packet::buffer::heap::HEAP;
use packet::wire::build;
use packet::{BATCH_SIZE, Batch, Packet};

use super::finished::{Joiner, name_of};
use crate::Offloads;
use crate::offload::{checksum, complete};

/// Bytes of input that a frame is made of.
const RECORD: usize = 7;

/// Reads bursts of segments ([`segment`]) and joins them.
///
/// # Panics
/// Where a connection's frames, as a port sends them that takes no super-frames, are not those that came, in their order.
pub fn run(bytes: &[u8]) {
    let mut joiner = Joiner::new(&HEAP);
    let mut next = [(0u16, 0u32); 8];
    let records: Vec<&[u8; RECORD]> = bytes.as_chunks().0.iter().collect();
    for burst in records.chunks(BATCH_SIZE) {
        let frames: Vec<Vec<u8>> = burst.iter().map(|record| segment(record, &mut next)).collect();
        let mut batch: Batch = frames.iter().map(|frame| Packet::from_slice(frame)).collect();
        let joined = joiner.join(&mut batch, 100);
        assert_eq!(batch.len() + joined, frames.len());
        let mut left = Vec::new();
        for packet in batch {
            complete(packet, Offloads::default(), &HEAP, &mut |part| left.push(part.data().to_vec()))
                .expect("what was joined can be cut");
        }
        assert_eq!(by_connection(left), by_connection(frames));
    }
}

/// A frame: which connection (three bits), what is wrong with it, how long it is, which byte is changed, and how.
fn segment(record: &[u8; RECORD], next: &mut [(u16, u32); 8]) -> Vec<u8> {
    let &[which, wrong, size, low, high, change, flags] = record;
    let (connection, ipv6) = (which & 7, which & 1 != 0);
    let (id, seq) = &mut next[usize::from(connection)];
    let payload = vec![which; usize::from(size) * 6];
    let mut tcp = build::tcp(connection.into(), 80, (0x10 | flags & 0xc9).into(), &payload);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    let early = wrong & 1 != 0;
    let at = usize::from(u16::from_le_bytes([low, high]));
    if early {
        // The checksum is right all the same.
        let len = tcp.len();
        tcp[at % len] ^= change;
    }
    let mut frame = ip_packet(ipv6, if wrong & 2 != 0 { 17 } else { 6 }, tcp, *id);
    (*id, *seq) = (id.wrapping_add(1), seq.wrapping_add(payload.len() as u32));
    let tags: &[(u16, u16)] = if wrong & 4 != 0 { &[(0x8100, 7)] } else { &[] };
    frame = build::ethernet([2; 6], [4; 6], tags, if ipv6 { 0x86dd } else { 0x0800 }, &frame);
    let len = frame.len();
    match wrong >> 3 & 7 {
        0 if !early => frame[at % len] ^= change,
        1 => frame.truncate(at % len),
        2 => frame.resize(len + usize::from(change), 0),
        _ => {}
    }
    frame
}

fn ip_packet(ipv6: bool, proto: u8, payload: Vec<u8>, id: u16) -> Vec<u8> {
    if ipv6 {
        return build::Ipv6 { src: [1; 16].into(), dst: [2; 16].into(), proto, ..Default::default() }.packet(payload);
    }
    let mut packet =
        build::Ipv4 { src: [1; 4].into(), dst: [2; 4].into(), proto, ..Default::default() }.packet(payload);
    packet[4..6].copy_from_slice(&id.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Frames in their order, by their connection of TCP; the others by themselves. A checksum that is zero has two forms, which mean the same.
fn by_connection(frames: Vec<Vec<u8>>) -> BTreeMap<Option<Vec<u8>>, Vec<Vec<u8>>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for mut frame in frames {
        let name = name_of(&frame).map(|(name, l4)| (name.to_vec(), l4 + 16..l4 + 18));
        let name = name.map(|(name, checksum)| {
            if frame[checksum.clone()] == [0xff; 2] {
                frame[checksum].fill(0);
            }
            name
        });
        all.entry(name).or_default().push(frame);
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bursts_of_any_segments_end_well(
            records in prop::collection::vec((0..4u8, prop::sample::select(vec![0u8, 1, 8, 16, 64, 64, 64, 64, 66, 68]), 90..240u8, any::<[u8; 4]>()), 0..80),
        ) {
            let bytes: Vec<u8> = records.iter().flat_map(|&(which, wrong, size, [a, b, c, d])| [which, wrong, size, a, b, c, d & 8]).collect();
            super::run(&bytes);
        }
    }
}
