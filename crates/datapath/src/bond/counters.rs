//! What a worker has sent by each bucket of a bond.
//!
//! A packet costs one addition: its length and itself are counted in one number. Before that is full, the worker adds it to a pair of
//! numbers that never are, and begins anew. Who reads meanwhile sees that, and reads again.

use std::sync::atomic::{AtomicU64, Ordering, fence};

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

/// Below this bit are bytes, and from it on packets. The highest bit is set after 2²³ packets, which have fewer than 2⁴⁰ bytes as long
/// as none is longer than 131 071.
const PACKET: u32 = 40;

/// The counters of a worker.
pub(super) struct Counters {
    lately: [AtomicU64; BUCKETS],
    earlier: [[AtomicU64; 2]; BUCKETS],
    /// Odd while the worker takes from `lately` to `earlier`.
    version: AtomicU64,
}

impl Default for Counters {
    fn default() -> Counters {
        let zero = || AtomicU64::new(0);
        Counters {
            lately: std::array::from_fn(|_| zero()),
            earlier: std::array::from_fn(|_| [zero(), zero()]),
            version: zero(),
        }
    }
}

impl Counters {
    /// Counts a frame. Only one thread at a time may do that.
    #[inline(always)]
    pub fn count(&self, bucket: u8, bytes: usize) {
        let lately = &self.lately[usize::from(bucket)];
        let sum = lately.load(Ordering::Relaxed).wrapping_add(1 << PACKET | bytes as u64);
        lately.store(sum, Ordering::Relaxed);
        if sum.cast_signed() < 0 {
            self.take_over(bucket);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_over(&self, bucket: u8) {
        let bucket = usize::from(bucket);
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let Traffic { packets, bytes } = unpacked(self.lately[bucket].load(Ordering::Relaxed));
        self.lately[bucket].store(0, Ordering::Relaxed);
        for (sum, more) in self.earlier[bucket].iter().zip([packets, bytes]) {
            sum.store(sum.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Adds up the counters of all workers.
    pub fn add_to(&self, sum: &mut [Traffic; BUCKETS]) {
        for (bucket, sum) in sum.iter_mut().enumerate() {
            let Traffic { packets, bytes } = self.read(bucket);
            *sum = Traffic { packets: sum.packets.wrapping_add(packets), bytes: sum.bytes.wrapping_add(bytes) };
        }
    }

    fn read(&self, bucket: usize) -> Traffic {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let lately = unpacked(self.lately[bucket].load(Ordering::Relaxed));
            let [packets, bytes] = self.earlier[bucket].each_ref().map(|of| of.load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed) {
                return Traffic {
                    packets: packets.wrapping_add(lately.packets),
                    bytes: bytes.wrapping_add(lately.bytes),
                };
            }
            // The worker may have lost its core in between.
            std::thread::yield_now();
        }
    }
}

fn unpacked(number: u64) -> Traffic {
    Traffic { packets: number >> PACKET, bytes: number & ((1 << PACKET) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counters: &Counters, bucket: u8) -> Traffic {
        let mut sum = [Traffic::default(); BUCKETS];
        counters.add_to(&mut sum);
        sum[usize::from(bucket)]
    }

    #[test]
    fn packets_and_bytes_are_exact_at_any_length() {
        let counters = Counters::default();
        // More than once around, with the longest frames that there may be.
        let packets = (1 << 23) + 7;
        (0..packets).for_each(|_| counters.count(3, 131_071));
        counters.count(4, 0);
        counters.count(4, 60);
        assert_eq!(of(&counters, 3), Traffic { packets, bytes: packets * 131_071 });
        assert_eq!(of(&counters, 4), Traffic { packets: 2, bytes: 60 });
        assert_eq!(of(&counters, 5), Traffic::default());
        assert!(counters.version.load(Ordering::Relaxed) > 0, "it was not full");
    }

    /// Each packet has as many bytes, and the counters never go back, also while they are taken over.
    #[test]
    fn a_reader_sees_no_half_of_a_change() {
        let counters = Counters::default();
        let packets = 2 << 23;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..packets).for_each(|_| counters.count(9, 100)));
            let mut last = Traffic::default();
            while last.packets < packets {
                let now = counters.read(9);
                assert!(now.packets >= last.packets && now.bytes == 100 * now.packets, "{last:?} {now:?}");
                last = now;
            }
        });
        assert_eq!(counters.version.load(Ordering::Relaxed), 2 * 2);
    }
}
