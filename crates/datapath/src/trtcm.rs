//! Policers of two rates and three colours (RFC 4115): what a port may be sent per second, by queue and as a whole.
//!
//! A marker has a committed and an excess bucket. A packet that finds its tokens in the first one is green, in the second one yellow, in
//! neither red. Each packet is marked by its queue, whose marker knows of no colour, and what is not red by the port, whose marker
//! knows that colour: a yellow packet takes no committed tokens there. Red packets are dropped.
//!
//! Each bucket is shared by all workers without a lock, and taken from once for a batch. The outcome is that of the packets one after the
//! other, since each bucket sees them in their order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use packet::{Packet, Time};
use ports::QosState;
use ports::qos::{QueueState, QueueStats, Settings};

use crate::bucket::{Bucket, FULL_FRAME, SECOND};

/// Rates and bursts of a marker: bytes per second, and bytes. A rate of zero lets nothing pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrtcmRates {
    /// The committed information rate.
    pub cir: u64,
    /// The committed burst size.
    pub cbs: u64,
    /// The excess information rate.
    pub eir: u64,
    /// The excess burst size.
    pub ebs: u64,
}

impl TrtcmRates {
    /// By their names in `other_config`.
    pub fn settings(&self) -> Settings {
        Settings::from([("cir", self.cir), ("cbs", self.cbs), ("eir", self.eir), ("ebs", self.ebs)])
    }
}

/// What a policer limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrtcmLimits {
    /// Of all that the port is sent.
    pub port: TrtcmRates,
    /// Of what goes by each queue. What is for no queue that is here goes by queue 0, which is always there.
    pub queues: BTreeMap<u32, TrtcmRates>,
    /// Bytes of each frame, from its begin, that do not count.
    pub uncounted: usize,
}

/// Sets of packets of a batch: bit `i` stands for `packets[i]`.
type Set = u32;

/// A bucket that is filled at a rate, or none.
#[derive(Debug, Default)]
struct Limit {
    bucket: Bucket,
    rate: u64,
}

impl Limit {
    fn new(rate: u64, burst: u64, now: Time) -> Limit {
        let limit = Limit { bucket: Bucket::default(), rate: if burst == 0 { 0 } else { rate } };
        if limit.rate != 0 {
            limit.bucket.fill(burst, rate, now);
        }
        limit
    }

    /// Those of `tried` that do not conform; the others take their tokens.
    fn exceeded(&self, packets: &[Packet], tried: Set, counted: impl Fn(&Packet) -> u64, now: Time) -> Set {
        if self.rate == 0 || tried == 0 {
            return tried;
        }
        let time_of = |bytes: u64| (u128::from(bytes) * u128::from(SECOND) / u128::from(self.rate)) as u64;
        let most = time_of(FULL_FRAME).min(self.bucket.burst());
        self.bucket.take_some(packets, tried, |packet| time_of(counted(packet)), most, now)
    }
}

/// A marker, and what it has counted.
#[derive(Debug)]
struct Marker {
    rates: TrtcmRates,
    committed: Limit,
    excess: Limit,
    packets: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    created: Time,
}

impl Marker {
    fn new(rates: TrtcmRates, now: Time) -> Marker {
        Marker {
            rates,
            committed: Limit::new(rates.cir, rates.cbs, now),
            excess: Limit::new(rates.eir, rates.ebs, now),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            created: now,
        }
    }

    /// Marks packets that are green or yellow already. Returns those that are yellow now, and those that are red.
    fn mark(&self, packets: &[Packet], [green, yellow]: [Set; 2], uncounted: usize, now: Time) -> [Set; 2] {
        let counted = |packet: &Packet| packet.len().saturating_sub(uncounted) as u64;
        let tried = self.committed.exceeded(packets, green, counted, now) | yellow;
        let red = self.excess.exceeded(packets, tried, counted, now);
        let passed = (green | yellow) & !red;
        let bytes = members(passed).map(|at| counted(&packets[at])).sum();
        self.packets.fetch_add(passed.count_ones().into(), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.errors.fetch_add(red.count_ones().into(), Relaxed);
        [tried & !red, red]
    }

    fn stats(&self) -> QueueStats {
        QueueStats {
            packets: self.packets.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
        }
    }
}

/// The numbers in a set, ascending.
fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(at)
    })
}

/// The policer of what a port is sent.
#[derive(Debug)]
pub struct TrtcmPolicer {
    limits: TrtcmLimits,
    port: Arc<Marker>,
    /// By number; the first one is queue 0.
    queues: Box<[(u32, Arc<Marker>)]>,
}

impl TrtcmPolicer {
    /// Its name as a type of QoS.
    pub const TYPE: &str = "trtcm-policer";

    /// A policer in the place of another one: markers whose rates are as before go on from where they are, others have full buckets.
    pub fn new(limits: TrtcmLimits, before: Option<&TrtcmPolicer>, now: Time) -> TrtcmPolicer {
        let made = |before: Option<&Arc<Marker>>, rates: TrtcmRates| match before {
            Some(same) if same.rates == rates => same.clone(),
            _ => Arc::new(Marker::new(rates, now)),
        };
        let default = [(0, limits.port)];
        let first = default.into_iter().filter(|_| !limits.queues.contains_key(&0));
        let queues = first.chain(limits.queues.iter().map(|(number, rates)| (*number, *rates)));
        let queues = queues.map(|(number, rates)| {
            (number, made(before.and_then(|before| Some(&before.queues[before.find(number)?].1)), rates))
        });
        TrtcmPolicer { port: made(before.map(|before| &before.port), limits.port), queues: queues.collect(), limits }
    }

    /// What it limits.
    pub fn limits(&self) -> &TrtcmLimits {
        &self.limits
    }

    /// Where the queue of this number is.
    fn find(&self, number: u32) -> Option<usize> {
        self.queues.binary_search_by_key(&number, |(number, _)| *number).ok()
    }

    /// The packets that are too much, as a set: bit `i` stands for `packets[i]`. At most 32 packets.
    pub fn refused(&self, packets: &[Packet], now: Time) -> u32 {
        debug_assert!(packets.len() <= 32);
        let uncounted = self.limits.uncounted;
        let mut queues = [0; 32];
        queues.iter_mut().zip(packets).for_each(|(at, packet)| *at = self.find(packet.queue()).unwrap_or(0));
        let all = Set::MAX.checked_shr(32 - packets.len() as u32).unwrap_or(0);
        let (mut left, mut yellow, mut red) = (all, 0, 0);
        while left != 0 {
            let queue = queues[left.trailing_zeros() as usize];
            let of_queue = members(left).filter(|&at| queues[at] == queue).fold(0, |set, at| set | 1 << at);
            left &= !of_queue;
            let marked = self.queues[queue].1.mark(packets, [of_queue, 0], uncounted, now);
            yellow |= marked[0];
            red |= marked[1];
        }
        let [_, red_of_port] = self.port.mark(packets, [all & !yellow & !red, yellow], uncounted, now);
        red | red_of_port
    }

    /// What it does, and what was sent by each queue.
    pub fn state(&self, now: Time) -> QosState {
        let queue = |(number, marker): &(u32, Arc<Marker>)| QueueState {
            number: *number,
            settings: marker.rates.settings(),
            stats: Ok(marker.stats()),
            age: now.since(marker.created),
        };
        let queues = self.queues.iter().map(queue).collect();
        QosState { kind: TrtcmPolicer::TYPE, settings: self.limits.port.settings(), queues }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECONDS: u64 = 1_000_000_000;

    fn frame(len: usize, queue: u32) -> Packet {
        let mut packet = Packet::from_slice(&vec![0; len]);
        packet.set_queue(queue);
        packet
    }

    fn rates([cir, cbs, eir, ebs]: [u64; 4]) -> TrtcmRates {
        TrtcmRates { cir, cbs, eir, ebs }
    }

    fn limits(port: [u64; 4], queues: &[(u32, [u64; 4])]) -> TrtcmLimits {
        let queues = queues.iter().map(|(number, of)| (*number, rates(*of))).collect();
        TrtcmLimits { port: rates(port), queues, uncounted: 0 }
    }

    /// What was sent by each queue: packets, bytes, errors.
    fn sent(policer: &TrtcmPolicer) -> Vec<(u32, [u64; 3])> {
        let stats = |queue: QueueState| {
            let QueueStats { packets, bytes, errors } = queue.stats.unwrap();
            (queue.number, [packets, bytes, errors])
        };
        policer.state(Time(0)).queues.into_iter().map(stats).collect()
    }

    #[test]
    fn a_queue_has_its_committed_and_its_excess_burst() {
        let policer = TrtcmPolicer::new(limits([1000, 10_000, 1000, 10_000], &[(3, [1, 200, 1, 100])]), None, Time(0));
        let packets: Vec<_> = (0..5).map(|_| frame(100, 3)).collect();
        assert_eq!(policer.refused(&packets, Time(0)), 0b11000);
        assert_eq!(sent(&policer), [(0, [0, 0, 0]), (3, [3, 300, 2])]);
    }

    #[test]
    fn what_is_yellow_takes_no_committed_tokens_of_the_port() {
        let policer = TrtcmPolicer::new(limits([1, 300, 1, 100], &[(0, [1, 100, 1, 1000])]), None, Time(0));
        let packets: Vec<_> = (0..5).map(|_| frame(100, 0)).collect();
        // One is green; of the yellow ones the port takes one.
        assert_eq!(policer.refused(&packets, Time(0)), 0b11100);
        assert_eq!(sent(&policer), [(0, [5, 500, 0])], "the queue has let all of them pass");
    }

    #[test]
    fn what_is_for_no_queue_goes_by_the_default_one_and_that_has_the_rates_of_the_port() {
        let policer = TrtcmPolicer::new(limits([1, 200, 0, 0], &[(7, [0; 4])]), None, Time(0));
        let packets = [frame(100, 9), frame(100, 0), frame(100, 7), frame(100, 9)];
        assert_eq!(policer.refused(&packets, Time(0)), 0b1100, "nothing passes a queue without rates");
        assert_eq!(sent(&policer), [(0, [2, 200, 1]), (7, [0, 0, 1])]);
        assert_eq!(policer.refused(&[], Time(0)), 0);
    }

    #[test]
    fn rates_that_stay_as_they_are_keep_their_buckets_and_counters() {
        let port = [1000, 100_000, 0, 0];
        let before = TrtcmPolicer::new(limits(port, &[(1, [1, 100, 0, 0]), (2, [1, 100, 0, 0])]), None, Time(0));
        assert_eq!(before.refused(&[frame(100, 1), frame(100, 2)], Time(0)), 0);
        let after = limits(port, &[(1, [1, 100, 0, 0]), (2, [1, 200, 0, 0])]);
        let after = TrtcmPolicer::new(after, Some(&before), Time(0));
        assert_eq!(after.refused(&[frame(100, 1), frame(100, 2)], Time(0)), 0b01);
        assert_eq!(sent(&after), [(0, [0, 0, 0]), (1, [1, 100, 1]), (2, [1, 100, 0])]);
    }

    #[test]
    fn workers_together_send_no_more_than_the_bursts() {
        let policer = TrtcmPolicer::new(limits([1, 60_000, 1, 40_000], &[(0, [1, 50_000, 1, 1 << 40])]), None, Time(0));
        let passed: u64 = std::thread::scope(|scope| {
            let worker = || {
                let packets: Vec<_> = (0..32).map(|_| frame(100, 0)).collect();
                (0..20).map(|_| u64::from(32 - policer.refused(&packets, Time(0)).count_ones())).sum::<u64>()
            };
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        // 500 green ones, and of the others those for which the port has excess tokens.
        assert_eq!(passed, 900);
    }

    /// RFC 4115, packet by packet: tokens are filled as time passes.
    struct Plain {
        committed: Tokens,
        excess: Tokens,
    }

    struct Tokens {
        tokens: f64,
        rate: f64,
        burst: f64,
        at: u64,
    }

    impl Tokens {
        fn new(rate: u64, burst: u64) -> Tokens {
            let burst = if rate == 0 { 0.0 } else { burst as f64 };
            Tokens { tokens: burst, rate: rate as f64, burst, at: 0 }
        }

        /// Whether there are enough; `None` where that is too close to say.
        fn take(&mut self, bytes: f64, now: u64) -> Option<bool> {
            self.tokens = (self.tokens + (now - self.at) as f64 * self.rate / 1e9).min(self.burst);
            self.at = now;
            let missing = bytes.min(self.burst).min(FULL_FRAME as f64) - self.tokens;
            if self.rate != 0.0 && missing.abs() < 0.01 {
                return None;
            }
            let conforms = self.rate != 0.0 && missing < 0.0;
            self.tokens -= if conforms { bytes } else { 0.0 };
            Some(conforms)
        }
    }

    impl Plain {
        fn new(TrtcmRates { cir, cbs, eir, ebs }: TrtcmRates) -> Plain {
            Plain { committed: Tokens::new(cir, cbs), excess: Tokens::new(eir, ebs) }
        }

        /// The colour of a packet that was green or yellow before: 0 green, 1 yellow, 2 red.
        fn mark(&mut self, bytes: usize, before: u8, now: u64) -> Option<u8> {
            if before == 0 && self.committed.take(bytes as f64, now)? {
                return Some(0);
            }
            Some(if before < 2 && self.excess.take(bytes as f64, now)? { 1 } else { 2 })
        }
    }

    fn any_rates() -> impl Strategy<Value = [u64; 4]> {
        let rate = || prop_oneof![Just(0), 1u64..50_000];
        (rate(), 1u64..20_000, rate(), 1u64..20_000).prop_map(|(cir, cbs, eir, ebs)| [cir, cbs, eir, ebs])
    }

    proptest! {
        #[test]
        fn colours_are_those_of_packets_one_after_the_other(
            port in any_rates(),
            queues in prop::collection::vec((0u32..4, any_rates()), 0..4),
            bursts in prop::collection::vec((0u64..SECONDS, prop::collection::vec((20usize..3000, 0u32..5), 1..33)), 1..12),
        ) {
            let all = limits(port, &queues);
            let policer = TrtcmPolicer::new(all.clone(), None, Time(0));
            let mut plain: BTreeMap<_, _> = all.queues.iter().map(|(number, of)| (*number, Plain::new(*of))).collect();
            plain.entry(0).or_insert_with(|| Plain::new(all.port));
            let (mut whole, mut now) = (Plain::new(all.port), 0);
            for (pause, packets) in bursts {
                now += pause;
                let batch: Vec<_> = packets.iter().map(|&(len, queue)| frame(len, queue)).collect();
                let refused = policer.refused(&batch, Time(now));
                for (at, (len, queue)) in packets.into_iter().enumerate() {
                    let queue = if plain.contains_key(&queue) { queue } else { 0 };
                    let Some(colour) = plain.get_mut(&queue).unwrap().mark(len, 0, now) else { return Ok(()) };
                    let red = if colour == 2 { Some(2) } else { whole.mark(len, colour, now) };
                    let Some(colour) = red else { return Ok(()) };
                    prop_assert_eq!(refused >> at & 1 == 1, colour == 2, "packet {} at {}", at, now);
                }
            }
        }
    }
}
