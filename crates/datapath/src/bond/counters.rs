//! What a worker has sent by each bucket of a bond.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::BUCKETS;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

impl Traffic {
    /// What has come since an earlier count.
    pub fn since(self, earlier: Traffic) -> Traffic {
        Traffic { packets: self.packets.wrapping_sub(earlier.packets), bytes: self.bytes.wrapping_sub(earlier.bytes) }
    }
}

/// The counters of a worker: packets and bytes of each bucket.
pub(super) struct Counters([[AtomicU64; 2]; BUCKETS]);

impl Default for Counters {
    fn default() -> Counters {
        Counters(std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]))
    }
}

impl Counters {
    /// Counts a frame. Only one thread at a time may do that.
    #[inline(always)]
    pub fn count(&self, bucket: u8, bytes: usize) {
        for (sum, more) in self.0[usize::from(bucket)].iter().zip([1, bytes as u64]) {
            sum.store(sum.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }

    /// Adds up the counters of all workers.
    pub fn add_to(&self, sum: &mut [Traffic; BUCKETS]) {
        for (counted, sum) in self.0.iter().zip(sum) {
            let [packets, bytes] = counted.each_ref().map(|of| of.load(Relaxed));
            *sum = Traffic { packets: sum.packets.wrapping_add(packets), bytes: sum.bytes.wrapping_add(bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_added_up() {
        let workers = [Counters::default(), Counters::default()];
        workers[0].count(3, 1514);
        workers[1].count(3, 60);
        workers[1].count(4, 0);
        let mut sum = [Traffic::default(); BUCKETS];
        workers.iter().for_each(|worker| worker.add_to(&mut sum));
        assert_eq!(sum[3], Traffic { packets: 2, bytes: 1574 });
        assert_eq!(sum[4], Traffic { packets: 1, bytes: 0 });
        assert_eq!(sum[5], Traffic::default());
    }
}
