//! What the reader of samples and the workers share.

use std::sync::Arc;

use parking_lot::Mutex;

use super::sample::VerifySample;
use super::worker::VerifyRing;
use crate::actions::sample::Sampling;
use crate::classify::Table;
use crate::tap::ring::ring;
use crate::tap::rings::Rings;

/// Bytes of all rings together, as far as the workers' shares are within [`RING`].
const RINGS: usize = 4 << 20;

/// The least and the most bytes of a worker's ring: room for a hundred packets of ordinary length, or for some twenty of the longest.
const RING: (usize, usize) = (64 << 10, 512 << 10);

/// How packets are sampled, and the readers' ends of the rings.
#[derive(Default)]
pub struct Verification {
    one_in: u32,
    rings: Arc<Mutex<Rings>>,
}

impl Verification {
    /// Changes how many packets are sampled: one of so many; zero for none. True where that is a change. Workers are to be told.
    pub fn set(&mut self, one_in: u32) -> bool {
        std::mem::replace(&mut self.one_in, one_in) != one_in
    }

    /// One of how many packets is sampled.
    pub fn one_in(&self) -> u32 {
        self.one_in
    }

    /// A further worker's end, of so many `workers`; `None` where nothing is sampled.
    pub fn for_worker(&self, table: &Arc<Table>, workers: usize) -> (Sampling, Option<Box<VerifyRing>>) {
        if self.one_in == 0 {
            return (Sampling::NONE, None);
        }
        let bytes = (RINGS / workers.max(1)).clamp(RING.0, RING.1);
        let (producer, consumer) = ring(bytes / 8);
        self.rings.lock().add(consumer);
        (Sampling::one_in(self.one_in), Some(Box::new(VerifyRing::new(producer, table.clone()))))
    }

    /// The reader's end.
    pub fn reader(&self) -> VerifyReader {
        VerifyReader(self.rings.clone())
    }
}

/// Reads what workers have sampled.
#[derive(Clone)]
pub struct VerifyReader(Arc<Mutex<Rings>>);

impl VerifyReader {
    /// Takes at most so many samples, some of each worker.
    pub fn take(&self, most: usize) -> Vec<VerifySample> {
        let mut samples = Vec::new();
        if most > 0 {
            self.0.lock().read(|header, data| {
                samples.extend(VerifySample::read(header, data));
                samples.len() < most
            });
        }
        samples
    }

    /// How many samples have found no room since the start.
    pub fn lost(&self) -> u64 {
        self.0.lock().lost()
    }
}
