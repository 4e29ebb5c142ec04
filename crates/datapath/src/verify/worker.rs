//! A worker's end: chooses packets, and copies them to its ring.

use std::sync::Arc;

use packet::{Key, Packet, Time};

use super::sample::{Decided, MOST_BYTES, VerifySample};
use crate::actions::sample::{Sampler, Sampling};
use crate::classify::{Table, bits};
use crate::pipeline::batch::BatchMeta;
use crate::tap::ring::Producer;

/// Chooses packets. A worker looks at this once for each batch.
pub struct VerifySampler {
    sampler: Sampler,
    sampling: Sampling,
    ring: Option<Box<VerifyRing>>,
}

impl VerifySampler {
    /// Nothing is sampled yet. `seed`: a secret of this worker.
    pub fn new(seed: u64) -> VerifySampler {
        VerifySampler { sampler: Sampler::new(seed), sampling: Sampling::NONE, ring: None }
    }

    /// Changes what is sampled, and where it goes.
    pub fn set(&mut self, (sampling, ring): (Sampling, Option<Box<VerifyRing>>)) {
        (self.sampling, self.ring) = (sampling, ring);
    }

    /// Which of the next `packets` packets is to be sampled first, if any is.
    #[inline(always)]
    pub fn next(&mut self, packets: usize) -> Option<usize> {
        self.sampler.next(self.sampling, packets)
    }

    /// Copies the packets of a classified batch that are to be sampled, of which `first` is the first. Nothing has been done to them yet.
    #[cold]
    #[inline(never)]
    pub fn sample(&mut self, first: usize, packets: &[Packet], meta: &BatchMeta, now: Time) {
        let mut next = Some(first);
        while let Some(at) = next {
            if let Some(ring) = &mut self.ring {
                ring.push(at, packets, meta, now);
            }
            next = self.next(packets.len() - at - 1).map(|before| at + 1 + before);
        }
    }
}

/// Where a worker's samples go.
pub struct VerifyRing {
    producer: Producer,
    /// The flows, for their identities.
    table: Arc<Table>,
    /// The key of the packet that is being sampled.
    key: Box<Key>,
    /// Its key and frame as bytes. Has room for all that there can be.
    data: Vec<u8>,
}

impl VerifyRing {
    /// A worker's end of a ring.
    pub fn new(producer: Producer, table: Arc<Table>) -> VerifyRing {
        let data = Vec::with_capacity(size_of::<Key>() + MOST_BYTES);
        VerifyRing { producer, table, key: Box::new(Key::new()), data }
    }

    fn push(&mut self, at: usize, packets: &[Packet], meta: &BatchMeta, now: Time) {
        // The run that the packet is of begins with the last start that is not behind it.
        let Some(start) = bits(meta.starts() & (u32::MAX >> (31 - at))).last() else { return };
        let found = meta.found[start];
        let Some(decided) = Decided::of_found(found.action.kind()) else { return };
        let packet = &packets[at];
        meta.extract_anew(at, packet, &mut self.key);
        self.data.clear();
        VerifySample::write(&self.key, packet.data(), &mut self.data);
        let flow = self.table.arena.id(found.flow);
        let header = VerifySample::header(now, flow, decided, &self.key, packet.len() as u32);
        self.producer.push(header, &self.data);
    }
}
