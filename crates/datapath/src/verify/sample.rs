//! What is known of a sampled packet.

use packet::flow::{BLOCK_SIZE, Blocks};
use packet::{Key, Time};

use crate::action::{Action, PortNo};
use crate::actions::program::Program;
use crate::classify::table::arena::FastActionKind;
use crate::drop::DropReason;
use crate::tap::ring::Header;
use crate::upcall::FlowId;

/// Most bytes of a frame that are kept: what any parser looks at, and enough to see the packet again.
pub const MOST_BYTES: usize = 2048;

/// What a cache said is to be done with a packet, as far as caches know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// Send it to this port.
    Output(PortNo),
    /// Drop it.
    Drop(DropReason),
    /// Run the flow's program, in whatever form.
    Program,
}

impl Decided {
    /// What is to be decided of the packets of a flow with these actions.
    pub fn of(actions: &[Action]) -> Decided {
        let program = Program::compile(actions);
        match (program.single_output(), program.single_drop()) {
            (Some(port), _) => Decided::Output(port),
            (None, Some(reason)) => Decided::Drop(reason),
            (None, None) => Decided::Program,
        }
    }

    /// What was found in a cache; `None` for a miss.
    pub(crate) fn of_found(kind: FastActionKind) -> Option<Decided> {
        match kind {
            FastActionKind::Output(port) => Some(Decided::Output(port)),
            FastActionKind::Drop(reason) => Some(Decided::Drop(reason)),
            FastActionKind::Program => Some(Decided::Program),
            FastActionKind::Miss => None,
        }
    }
}

/// A packet that was sampled, as it came in to a pass.
#[derive(Clone, Debug)]
pub struct VerifySample {
    /// When: the beginning of the worker's turn.
    pub time: Time,
    /// The flow that was found for it.
    pub flow: FlowId,
    /// What was to be done with it.
    pub decided: Decided,
    /// Its key, with its metadata: input port (of the datapath), recirculation id, tunnel, connection.
    pub key: Box<Key>,
    /// Its frame, maybe cut short to [`MOST_BYTES`].
    pub frame: Vec<u8>,
    /// Length of the whole frame.
    pub length: u32,
}

impl VerifySample {
    /// Appends the bytes that are stored of a key and a frame.
    pub(crate) fn write(key: &Key, frame: &[u8], data: &mut Vec<u8>) {
        for block in key.present().iter() {
            data.extend_from_slice(&key.block(block).0);
        }
        data.extend_from_slice(&frame[..frame.len().min(MOST_BYTES)]);
    }

    /// The header of a sample of this key in a ring.
    pub(crate) fn header(time: Time, flow: FlowId, decided: Decided, key: &Key, length: u32) -> Header {
        let (kind, value) = match decided {
            Decided::Output(port) => (0, port.0),
            Decided::Drop(reason) => (1, reason as u32),
            Decided::Program => (2, 0),
        };
        let lengths = u64::from(length) | u64::from(value) << 32;
        [u64::from(key.present().0) | kind << 16, time.0, lengths, flow.0, 0]
    }

    /// Reads what [`write`](VerifySample::write) and [`header`](VerifySample::header) have made. `None` where it is something else.
    pub(crate) fn read([what, time, lengths, flow, _]: Header, data: &[u8]) -> Option<VerifySample> {
        let (present, value) = (Blocks(what as u16), (lengths >> 32) as u32);
        let decided = match what >> 16 {
            0 => Decided::Output(PortNo(value)),
            1 => Decided::Drop(*DropReason::ALL.get(value as usize)?),
            2 => Decided::Program,
            _ => return None,
        };
        let (blocks, frame) = data.split_at_checked(present.count() * BLOCK_SIZE)?;
        let mut key = Box::new(Key::new());
        for (id, bytes) in present.iter().zip(blocks.as_chunks::<BLOCK_SIZE>().0) {
            key.block_mut(id).0 = *bytes;
        }
        Some(VerifySample {
            time: Time(time),
            flow: FlowId(flow),
            decided,
            key,
            frame: frame.to_vec(),
            length: lengths as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use packet::Field;

    use super::*;

    #[test]
    fn samples_read_back() {
        let reasons = DropReason::ALL.iter().map(|&reason| Decided::Drop(reason));
        for decided in reasons.chain([Decided::Output(PortNo(u32::MAX - 1)), Decided::Program]) {
            for (field, length) in [(Field::InPortOxm, 60), (Field::CtMark, 0), (Field::TunId, MOST_BYTES + 1)] {
                let mut key = Key::new();
                key.set(field, 7);
                let (frame, mut data) = (vec![0x5a; length], Vec::new());
                let header = VerifySample::header(Time(9), FlowId(u64::MAX), decided, &key, length as u32);
                VerifySample::write(&key, &frame, &mut data);
                let read = VerifySample::read(header, &data).unwrap();
                assert_eq!((read.time, read.flow, read.decided), (Time(9), FlowId(u64::MAX), decided));
                assert!(*read.key == key && read.frame == frame[..length.min(MOST_BYTES)]);
                assert_eq!(read.length as usize, length);
                assert!(VerifySample::read(header, &data[..10]).is_none(), "a part of a key");
            }
        }
    }

    #[test]
    fn what_is_decided_follows_from_the_actions() {
        let port = PortNo(3);
        assert_eq!(Decided::of(&[Action::Output(port)]), Decided::Output(port));
        assert_eq!(Decided::of(&[]), Decided::Drop(DropReason::Rule));
        assert_eq!(Decided::of(&[Action::Drop(DropReason::Fragment)]), Decided::Drop(DropReason::Fragment));
        assert_eq!(Decided::of(&[Action::Output(port), Action::Output(port)]), Decided::Program);
    }
}
