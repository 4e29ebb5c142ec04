//! Entry for fuzzing: any bytes as a capture file, which is read, replayed with each timing and written again.

use std::sync::Arc;
use std::time::Duration;

use packet::buffer::heap::HEAP;
use packet::{Batch, Time};

use super::file::{Capture, ClassicHeader};
use super::{Pace, Replay, Timing, lap_time};
use crate::RxQueue;
use crate::spec::PortSpec;
use crate::stats::PortCounters;
use crate::virtual_port::VirtualPort;

/// The shortest record of either format that has a frame: an empty one of classic pcap, or a simple packet.
const SHORTEST_RECORD: usize = 16;

/// Reads `bytes` as a capture file. What is refused is refused without a panic; what is read takes no more
/// memory than the file does, comes out of a replay as it is, and survives being recorded.
pub fn run(bytes: &[u8]) {
    let Ok(capture) = Capture::parse(bytes.to_vec()) else { return };
    let frames: Vec<Vec<u8>> = (0..capture.len()).map(|index| capture.frame(index).to_vec()).collect();
    assert!(frames.len() <= bytes.len() / SHORTEST_RECORD, "{} frames in {} bytes", frames.len(), bytes.len());
    assert!(frames.iter().map(Vec::len).sum::<usize>() <= bytes.len(), "frames overlap");
    recorded(&capture, &frames);
    appended(bytes, &frames);
    for looped in [false, true] {
        for timing in [Timing::Fast, Timing::Rate(Pace::new(1000)), original(&capture)] {
            replayed(bytes, looped, timing, &frames);
        }
    }
}

fn original(capture: &Capture) -> Timing {
    Timing::Original { start: None, lap: lap_time(capture) }
}

/// What a recorder writes of the frames reads back as they are.
fn recorded(capture: &Capture, frames: &[Vec<u8>]) {
    let header = ClassicHeader::new(true);
    let mut file = header.encode().to_vec();
    for (index, frame) in frames.iter().enumerate() {
        file.extend(header.encode_record(capture.time(index), frame.len()));
        file.extend(frame);
    }
    let back = Capture::parse(file).expect("what was recorded is read");
    assert_eq!(back.len(), frames.len());
    for (index, frame) in frames.iter().enumerate() {
        assert_eq!(back.frame(index), frame);
        // The format has 32 bits for the seconds.
        let time = capture.time(index);
        assert_eq!(back.time(index), Duration::new(time.as_secs() & 0xffff_ffff, time.subsec_nanos()));
    }
}

/// A frame that is added to a classic file, in the file's own format, is its last.
fn appended(bytes: &[u8], frames: &[Vec<u8>]) {
    let Ok(Some(header)) = ClassicHeader::parse(bytes) else { return };
    let time = Duration::new(7, 5000);
    let file = [bytes, &header.encode_record(time, 5), b"added"].concat();
    let back = Capture::parse(file).expect("a file that was added to is read");
    assert_eq!(
        (back.len(), back.frame(frames.len()), back.time(frames.len())),
        (frames.len() + 1, &b"added"[..], time)
    );
}

/// Turns of a worker that looks whenever the replay says that a frame is due, and finds one then.
fn replayed(bytes: &[u8], looped: bool, timing: Timing, frames: &[Vec<u8>]) {
    let capture = Capture::parse(bytes.to_vec()).expect("read before");
    let state = Arc::new(VirtualPort::new(&PortSpec::new("p", "pcap"), [2, 0, 0, 0, 0, 1]));
    let counters = PortCounters::default().rx(0);
    let mut replay = Replay { state, counters, memory: &HEAP, capture, looped, timing, next: 0, laps: 0 };
    let (mut now, mut count) = (Time(1_000_000_000), 0);
    for turn in 0..40 {
        let mut batch = Batch::new();
        let received = replay.receive(&mut batch, now);
        assert_eq!(received, batch.len());
        for packet in &batch {
            assert_eq!(packet.data(), frames[count % frames.len()]);
            count += 1;
        }
        if replay.ended() {
            assert!(frames.is_empty() || !looped && count == frames.len());
            return;
        }
        assert!(received > 0 || turn == 0 || now == Time(u64::MAX), "nothing came when it was due");
        now = replay.next_due().unwrap_or(now).max(now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn frames_that_are_ages_apart_are_replayed() {
        let block = |kind: u32, body: &[u32]| {
            let len = 12 + 4 * body.len() as u32;
            [&[kind, len], body, &[len]].concat().into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>()
        };
        // An interface whose time stamps are whole seconds, and frames of no bytes at both ends of time.
        let interface = [1, 0, 0x0001_0009, 0];
        let frame = |time: u32| block(6, &[0, time, time, 0, 0]);
        let section = block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
        super::run(&[section, block(1, &interface), frame(0), frame(u32::MAX)].concat());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(
            magic in prop::sample::select(vec![
                [0xa1u8, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d], [0x4d, 0x3c, 0xb2, 0xa1],
            ]),
            records in prop::collection::vec((any::<u32>(), any::<u32>(), 0u8..40), 0..6),
            rest in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let big = magic[0] == 0xa1;
            let word = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
            let mut file = magic.to_vec();
            file.extend([0; 16]);
            file.extend(word(1));
            for (seconds, fraction, len) in records {
                file.extend([seconds, fraction, len.into(), 0].map(word).concat());
                file.extend(vec![len; len.into()]);
            }
            super::run(&file);
            file.extend(rest);
            super::run(&file);
        }
    }
}
