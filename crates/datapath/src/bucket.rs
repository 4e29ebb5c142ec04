//! Buckets of tokens, shared by all workers without a lock: what meters and policers limit rates by.
//!
//! A bucket is kept as one number: the time at which it will be full again, if nothing is taken from it any more (the virtual
//! scheduling form of the generic cell rate algorithm, ITU-T I.371). A packet takes as much time as its tokens need to flow
//! in. It conforms if the bucket is full again no later than the burst allows.
//!
//! Times are in 1/256 ns, so that the tokens of a small packet are counted to 0.1 % at 100 Gb/s. They are compared by their
//! difference, since they wrap within three years.

use std::sync::atomic::{AtomicU64, Ordering};

use packet::{Packet, Time};

/// 1/256 ns in a second.
pub(crate) const SECOND: u64 = 256 * 1_000_000_000;
/// Bytes that a packet has to find room for, however long it is, where bytes are limited: a full frame of Ethernet.
pub(crate) const FULL_FRAME: u64 = 1518;
/// The longest burst: a hundred days at its rate.
const LONGEST: u64 = 1 << 61;
/// By how much the clocks of workers may differ, which is one turn.
const SKEW: u64 = 10 * SECOND;

/// A bucket. How fast it fills is known to who takes from it.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// How long it takes to be filled.
    burst: AtomicU64,
    /// When it is full.
    full_at: AtomicU64,
}

impl Bucket {
    /// Gives it another size, of tokens that flow in at this rate per second, and fills it.
    pub fn fill(&self, burst: u64, rate: u64, now: Time) {
        let filled_in = u128::from(burst) * u128::from(SECOND) / u128::from(rate.max(1));
        self.burst.store(filled_in.min(LONGEST.into()) as u64, Ordering::Relaxed);
        self.full_at.store(ticks(now), Ordering::Relaxed);
    }

    /// How long it takes to be full, in ns.
    pub fn full_in(&self, now: Time) -> u64 {
        let (full_at, burst) = (self.full_at.load(Ordering::Relaxed), self.burst.load(Ordering::Relaxed));
        ahead(full_at, ticks(now), burst).div_ceil(256)
    }

    /// Takes so much from it that it is full in so many ns, or empties it.
    pub fn set_full_in(&self, nanos: u64, now: Time) {
        let full_in = nanos.saturating_mul(256).min(self.burst.load(Ordering::Relaxed));
        self.full_at.store(ticks(now).wrapping_add(full_in), Ordering::Relaxed);
    }

    /// How long it takes to be filled from empty, in 1/256 ns.
    #[inline(always)]
    pub fn burst(&self) -> u64 {
        self.burst.load(Ordering::Relaxed)
    }

    /// Takes the tokens of those packets that conform. Returns the bits of the others. `needed` says how long the tokens of a
    /// packet take to flow in, and `all` that of all of them. No packet has to find more tokens than those of `most`, whatever it
    /// takes.
    #[inline(always)]
    pub fn take(&self, packets: &[Packet], all: u64, needed: impl Fn(&Packet) -> u64, most: u64, now: Time) -> u32 {
        self.exchange(now, |before, burst| {
            if before.saturating_add(all) <= burst {
                (before + all, 0)
            } else {
                spend(packets.iter().enumerate(), &needed, most, before, burst)
            }
        })
    }

    /// The same of the packets of a set: bit `i` stands for `packets[i]`.
    pub fn take_some(
        &self,
        packets: &[Packet],
        set: u32,
        needed: impl Fn(&Packet) -> u64,
        most: u64,
        now: Time,
    ) -> u32 {
        self.exchange(now, |before, burst| {
            let of_set = packets.iter().enumerate().filter(|(at, _)| set >> at & 1 != 0);
            spend(of_set, &needed, most, before, burst)
        })
    }

    /// Sets when it is full: `spend` is told how far that is ahead, and the burst, and says how far it is ahead then, and what to
    /// return.
    #[inline(always)]
    fn exchange(&self, now: Time, spend: impl Fn(u64, u64) -> (u64, u32)) -> u32 {
        let (burst, now) = (self.burst(), ticks(now));
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let before = ahead(full_at, now, burst);
            let (after, exceeded) = spend(before, burst);
            if after == before {
                return exceeded;
            }
            let next = now.wrapping_add(after);
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return exceeded,
                Err(other) => full_at = other,
            }
        }
    }

    /// Takes the tokens of one packet, which take so long to flow in, if those of `most` are there. Returns whether they were.
    #[inline(always)]
    pub fn take_one(&self, needed: u64, most: u64, now: Time) -> bool {
        let exceeded = self.exchange(now, |before, burst| {
            let conforms = before.saturating_add(needed.min(most)) <= burst;
            if conforms { (before.saturating_add(needed).min(burst + SKEW), 0) } else { (before, 1) }
        });
        exceeded == 0
    }

    /// Takes tokens whether they are there or not, which take so long to flow in: it may be in debt afterwards.
    #[inline(always)]
    pub fn charge(&self, needed: u64, now: Time) {
        self.exchange(now, |before, burst| (before.saturating_add(needed).min(burst + SKEW), 0));
    }

    /// Puts tokens back, which take so long to flow in.
    pub fn give_back(&self, time: u64) {
        self.full_at.fetch_sub(time, Ordering::Relaxed);
    }
}

/// Takes the tokens of those packets that conform, where it takes so long until the bucket is full. Returns how long it takes then, and
/// the bits of the other packets.
#[inline(always)]
fn spend<'a>(
    packets: impl Iterator<Item = (usize, &'a Packet)>,
    needed: impl Fn(&Packet) -> u64,
    most: u64,
    before: u64,
    burst: u64,
) -> (u64, u32) {
    let (mut after, mut exceeded) = (before, 0);
    for (at, packet) in packets {
        let needed = needed(packet);
        if after.saturating_add(needed.min(most)) <= burst {
            // What is further ahead would count as past.
            after = (after + needed).min(burst + SKEW);
        } else {
            exceeded |= 1 << at;
        }
    }
    (after, exceeded)
}

/// A point in time in 1/256 ns.
fn ticks(time: Time) -> u64 {
    time.0.wrapping_mul(256)
}

/// How far a time is ahead of now. Zero if it has passed. No bucket is full later than its burst from now: what seems to be
/// has passed so long ago that it has wrapped.
fn ahead(time: u64, now: u64, burst: u64) -> u64 {
    let ahead = time.wrapping_sub(now);
    if ahead > burst + SKEW { 0 } else { ahead }
}
