//! Shapers: what a port is sent waits in queues, and leaves at their rates. They stand in for the kernel's queueing disciplines on ports
//! that have none.
//!
//! Rates are those of a hierarchical token bucket (HTB) of two levels. A queue has a guaranteed rate, and a highest one; the port has a
//! highest one. A packet leaves
//!
//! 1. where the guaranteed rate of its queue lets it, whatever the others do;
//! 2. or else where the highest rates of its queue and of the port let it: what the guarantees leave over goes to queues in the order of
//!    their priority, and within a priority by deficit round robin, in proportion to their guaranteed rates (up to one to [`MOST_FRAMES`]).
//!
//! Guarantees that together are more than the port's rate are made smaller in proportion, so that the port's rate holds.
//!
//! The rates ([`Shaper`]) are shared by all workers, without a lock. The packets wait with the worker that has sent them
//! ([`Backlog`](backlog::Backlog)): their order is kept, and no worker waits for another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use packet::Time;
use ports::QosState;
use ports::qos::{QueueState, QueueStats, Settings};

use crate::bucket::{Bucket, FULL_FRAME, SECOND};

pub mod backlog;
#[cfg(test)]
mod tests;

/// By how many bits the time of a byte is shifted, so that it is known well enough at high rates.
const FRACTION: u32 = 16;
/// Full frames that the queue with the highest guarantee of its priority sends in a round.
const MOST_FRAMES: u64 = 64;
/// The last priority, as with the kernel's HTB: those that come after it count as this one.
const LAST_PRIORITY: u64 = 7;
/// The highest rate and burst, in bit/s and bytes: more than any port has.
const MOST: u64 = 1 << 50;

/// Rates of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueRates {
    /// What it has in any case, in bit/s.
    pub min: u64,
    /// What it has at most, in bit/s.
    pub max: u64,
    /// Most that leaves at once, in bytes, where that is more than a few ms of `max`.
    pub burst: u64,
    /// Who has what is left over first: the lowest one.
    pub priority: u64,
}

/// What a shaper is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShaperLimits {
    /// The type of QoS that asks for it.
    pub kind: &'static str,
    /// What the port has at most, in bit/s.
    pub max: u64,
    /// By number. What is for no queue that is here goes by queue 0, which is always there.
    pub queues: BTreeMap<u32, QueueRates>,
}

/// A rate, with its bucket.
#[derive(Debug)]
struct Rate {
    bucket: Bucket,
    /// How long a byte takes, in 1/256 ns, shifted.
    byte: u64,
    /// How long a full frame takes, or else the burst.
    frame: u64,
}

impl Rate {
    /// The bucket holds so many ms, two frames at least, or a burst in bytes.
    const MILLIS: u64 = 4;

    /// A full bucket, for bit/s and bytes.
    fn new(rate: u64, burst: u64, now: Time) -> Rate {
        let rate = rate.clamp(1, MOST);
        let burst = burst.clamp(2 * FULL_FRAME, MOST).max(rate / 8 * Rate::MILLIS / 1000);
        let bucket = Bucket::default();
        bucket.fill(burst * 8, rate, now);
        let byte = (((u128::from(SECOND) * 8) << FRACTION) / u128::from(rate)) as u64;
        let mut made = Rate { bucket, byte, frame: 0 };
        made.frame = made.time_of(FULL_FRAME).min(made.bucket.burst());
        made
    }

    fn time_of(&self, bytes: u64) -> u64 {
        ((u128::from(bytes) * u128::from(self.byte)) >> FRACTION) as u64
    }

    /// Takes a packet's bytes, if there is room for a full frame of it.
    fn try_take(&self, bytes: u64, now: Time) -> bool {
        self.bucket.take_one(self.time_of(bytes), self.frame, now)
    }

    /// Takes a packet's bytes, which may leave it in debt.
    fn charge(&self, bytes: u64, now: Time) {
        self.bucket.charge(self.time_of(bytes), now);
    }

    fn give_back(&self, bytes: u64) {
        self.bucket.give_back(self.time_of(bytes));
    }
}

/// A queue, without its packets.
#[derive(Debug)]
struct ShapedQueue {
    number: u32,
    rates: QueueRates,
    guaranteed: Rate,
    /// Where it is less than the port's.
    highest: Option<Rate>,
    /// What it sends in a round.
    frames: u64,
    counters: Arc<Counters>,
}

impl ShapedQueue {
    /// Takes a packet's bytes from what it has at most and from what the port has. An error says whose rate does not let it.
    fn try_take(&self, port: &Rate, bytes: u64, now: Time) -> Result<(), Refused> {
        if !self.highest.as_ref().is_none_or(|highest| highest.try_take(bytes, now)) {
            return Err(Refused::ByQueue);
        }
        if !port.try_take(bytes, now) {
            if let Some(highest) = &self.highest {
                highest.give_back(bytes);
            }
            return Err(Refused::ByPort);
        }
        Ok(())
    }

    /// Takes a packet's bytes from what is guaranteed, and from the other rates with it. Returns whether they were there.
    fn try_take_guaranteed(&self, port: &Rate, bytes: u64, now: Time) -> bool {
        let has = self.guaranteed.try_take(bytes, now);
        if has {
            if let Some(highest) = &self.highest {
                highest.charge(bytes, now);
            }
            port.charge(bytes, now);
        }
        has
    }
}

/// Whose rate does not let a packet leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    ByQueue,
    ByPort,
}

/// What a queue has counted.
#[derive(Debug)]
struct Counters {
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
    created: Time,
}

impl Counters {
    fn new(now: Time) -> Arc<Counters> {
        let zero = || AtomicU64::new(0);
        Arc::new(Counters { packets: zero(), bytes: zero(), dropped: zero(), created: now })
    }

    fn stats(&self) -> QueueStats {
        QueueStats {
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.dropped.load(Relaxed),
        }
    }
}

/// The rates of a port and of its queues.
#[derive(Debug)]
pub struct Shaper {
    limits: ShaperLimits,
    port: Arc<Rate>,
    /// By number; the first one is queue 0.
    queues: Box<[Arc<ShapedQueue>]>,
    /// The priorities that queues have, ascending.
    priorities: Box<[u64]>,
}

impl Shaper {
    /// A shaper in the place of another one. Queues go on counting. Rates that are as before go on from where they are, others have full buckets.
    pub fn new(limits: ShaperLimits, before: Option<&Shaper>, now: Time) -> Shaper {
        let default = QueueRates { max: limits.max, ..QueueRates::default() };
        let default = (!limits.queues.contains_key(&0)).then_some((0, default));
        let wanted = || default.iter().copied().chain(limits.queues.iter().map(|(number, rates)| (*number, *rates)));
        let guaranteed = wanted().map(|(_, rates)| u128::from(rates.min)).sum::<u128>().max(1);
        // Of what they ask for, they get as much as the port has.
        let share = |min: u64| (u128::from(min) * u128::from(limits.max).min(guaranteed) / guaranteed) as u64;
        let wanted = || {
            wanted().map(|(number, rates)| {
                (
                    number,
                    QueueRates {
                        min: share(rates.min).min(rates.max).max(1),
                        priority: rates.priority.min(LAST_PRIORITY),
                        ..rates
                    },
                )
            })
        };
        let mut highest = BTreeMap::new();
        for (_, rates) in wanted() {
            let of_priority = highest.entry(rates.priority).or_insert(rates.min);
            *of_priority = rates.min.max(*of_priority);
        }
        let made = |(number, rates): (u32, QueueRates)| {
            let part = u128::from(rates.min) * u128::from(MOST_FRAMES) / u128::from(highest[&rates.priority]);
            let frames = (part as u64).max(1);
            let before = before.and_then(|before| Some(&before.queues[before.find(number)?]));
            let has_highest = rates.max < limits.max;
            let is_same =
                |same: &ShapedQueue| (same.rates, same.frames, same.highest.is_some()) == (rates, frames, has_highest);
            if let Some(same) = before.filter(|same| is_same(same)) {
                return same.clone();
            }
            Arc::new(ShapedQueue {
                number,
                rates,
                // A guarantee of nearly nothing does not let its burst pass by the others.
                guaranteed: Rate::new(rates.min, rates.burst.min(rates.min / 8), now),
                highest: has_highest.then(|| Rate::new(rates.max, rates.burst, now)),
                frames,
                counters: before.map_or_else(|| Counters::new(now), |before| before.counters.clone()),
            })
        };
        let queues = wanted().map(made).collect();
        let port = match before {
            Some(same) if same.limits.max == limits.max => same.port.clone(),
            _ => Arc::new(Rate::new(limits.max, 0, now)),
        };
        Shaper { port, queues, priorities: highest.into_keys().collect(), limits }
    }

    /// What it does.
    pub fn limits(&self) -> &ShaperLimits {
        &self.limits
    }

    /// Where the queue of this number is.
    fn find(&self, number: u32) -> Option<usize> {
        self.queues.binary_search_by_key(&number, |queue| queue.number).ok()
    }

    /// Where the queue is that a packet for this number waits in.
    fn queue_for(&self, number: u32) -> usize {
        self.find(number).unwrap_or(0)
    }

    /// What it does, and what was sent by each queue.
    pub fn state(&self, now: Time) -> QosState {
        let state = |queue: &Arc<ShapedQueue>| {
            let QueueRates { min, max, burst, priority } = queue.rates;
            let mut settings = Settings::from([("min-rate", min)]);
            settings.extend((max != min).then_some(("max-rate", max)));
            if self.limits.kind == "linux-htb" {
                settings.insert("burst", burst.saturating_mul(8));
                settings.extend((priority > 0).then_some(("priority", priority)));
            }
            QueueState {
                number: queue.number,
                settings,
                stats: Ok(queue.counters.stats()),
                age: now.since(queue.counters.created),
            }
        };
        QosState {
            kind: self.limits.kind,
            settings: Settings::from([("max-rate", self.limits.max)]),
            queues: self.queues.iter().map(state).collect(),
        }
    }
}
