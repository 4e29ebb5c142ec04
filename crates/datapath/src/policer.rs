//! Policers: what a port may receive, or send, per second; what is more is dropped. All workers share a port's policers,
//! without a lock. What a port is sent may be limited by a shaper instead ([`shaper`](crate::shaper)), with which packets wait.
//!
//! A policer limits bits, packets, or both. A packet that one of the two refuses takes nothing from the other. A packet that is
//! longer than a frame of Ethernet, as one that a device will cut into segments, passes when there is room for such a frame, and
//! those after it wait the longer: the rate stays what it is, and long packets are not starved by short ones.

use std::sync::Arc;

use packet::{Batch, Packet, Time};
use ports::QosState;
use ports::qos::Settings;

use crate::bucket::{Bucket, FULL_FRAME, SECOND};
use crate::shaper::{Shaper, ShaperLimits};
use crate::trtcm::{TrtcmLimits, TrtcmPolicer};

/// A rate, and how much may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Per second, at least 1.
    pub rate: u64,
    /// At most so many at once, at least 1.
    pub burst: u64,
}

/// What a policer limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicerLimits {
    /// Bits of frames, from the Ethernet header to the end of the payload.
    pub bits: Option<RateLimit>,
    /// Packets.
    pub packets: Option<RateLimit>,
    /// Bytes of each frame, from its begin, that do not count.
    pub uncounted: usize,
}

impl PolicerLimits {
    /// Whether they limit nothing.
    pub fn is_empty(&self) -> bool {
        self.bits.is_none() && self.packets.is_none()
    }
}

/// What limits that which a port is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EgressLimits {
    /// Nothing.
    #[default]
    Nothing,
    /// One rate.
    OneRate(PolicerLimits),
    /// Two rates, by queue and as a whole.
    TwoRates(TrtcmLimits),
    /// Rates of queues, in which packets wait.
    Shaper(ShaperLimits),
}

/// What limits that which a port is sent, with its buckets.
#[derive(Debug)]
pub enum EgressPolicer {
    /// Of one rate.
    OneRate(Policer),
    /// Of two rates.
    TwoRates(TrtcmPolicer),
    /// Queues in which packets wait. Each worker has a backlog of its own.
    Shaper(Shaper),
}

impl EgressPolicer {
    /// The name of those of one rate as a type of QoS.
    pub const ONE_RATE: &str = "egress-policer";

    /// A policer in the place of another one; `None` where nothing is limited. Limits that stay as they are go on from where they are.
    pub(crate) fn replace(
        before: Option<Arc<EgressPolicer>>,
        limits: EgressLimits,
        now: Time,
    ) -> Option<Arc<EgressPolicer>> {
        let made = match (limits, before.as_deref()) {
            (EgressLimits::OneRate(limits), Some(EgressPolicer::OneRate(same))) if *same.limits() == limits => {
                return before;
            }
            (EgressLimits::TwoRates(limits), Some(EgressPolicer::TwoRates(same))) if *same.limits() == limits => {
                return before;
            }
            (EgressLimits::Shaper(limits), Some(EgressPolicer::Shaper(same))) if *same.limits() == limits => {
                return before;
            }
            (EgressLimits::Nothing, _) => return None,
            (EgressLimits::OneRate(limits), _) if limits.is_empty() => return None,
            (EgressLimits::OneRate(limits), _) => EgressPolicer::OneRate(Policer::new(limits, now)),
            (EgressLimits::TwoRates(limits), before) => {
                let before = before.and_then(|before| match before {
                    EgressPolicer::TwoRates(policer) => Some(policer),
                    _ => None,
                });
                EgressPolicer::TwoRates(TrtcmPolicer::new(limits, before, now))
            }
            (EgressLimits::Shaper(limits), before) => {
                EgressPolicer::Shaper(Shaper::new(limits, before.and_then(EgressPolicer::shaper), now))
            }
        };
        Some(Arc::new(made))
    }

    /// What it does, as the tables QoS and Queue have it.
    pub fn state(&self, now: Time) -> QosState {
        match self {
            EgressPolicer::OneRate(policer) => {
                let bits = policer.limits().bits;
                let settings =
                    bits.map(|RateLimit { rate, burst }| Settings::from([("cbs", burst / 8), ("cir", rate / 8)]));
                let kind = EgressPolicer::ONE_RATE;
                QosState { kind, settings: settings.unwrap_or_default(), queues: Vec::new() }
            }
            EgressPolicer::TwoRates(policer) => policer.state(now),
            EgressPolicer::Shaper(shaper) => shaper.state(now),
        }
    }

    /// The packets that are too much, as a set: bit `i` stands for `packets[i]`. At most 32 packets. A shaper refuses none here.
    pub fn refused(&self, packets: &[Packet], now: Time) -> u32 {
        match self {
            EgressPolicer::OneRate(policer) => policer.refused(packets, now),
            EgressPolicer::TwoRates(policer) => policer.refused(packets, now),
            EgressPolicer::Shaper(_) => 0,
        }
    }

    /// The shaper, where it is one.
    pub(crate) fn shaper(&self) -> Option<&Shaper> {
        match self {
            EgressPolicer::Shaper(shaper) => Some(shaper),
            _ => None,
        }
    }
}

/// The policer of a port and a direction, of one rate.
#[derive(Debug)]
pub struct Policer {
    limits: PolicerLimits,
    bits: Bucket,
    packets: Bucket,
}

impl Policer {
    /// A policer with full buckets.
    pub fn new(limits: PolicerLimits, now: Time) -> Policer {
        let at_least_one = |limit: RateLimit| RateLimit { rate: limit.rate.max(1), burst: limit.burst.max(1) };
        let limits = PolicerLimits {
            bits: limits.bits.map(at_least_one),
            packets: limits.packets.map(at_least_one),
            uncounted: limits.uncounted,
        };
        let policer = Policer { limits, bits: Bucket::default(), packets: Bucket::default() };
        for (bucket, limit) in [(&policer.bits, limits.bits), (&policer.packets, limits.packets)] {
            if let Some(RateLimit { rate, burst }) = limit {
                bucket.fill(burst, rate, now);
            }
        }
        policer
    }

    /// What it limits.
    pub fn limits(&self) -> &PolicerLimits {
        &self.limits
    }

    /// The packets that are too much, as a set: bit `i` stands for `packets[i]`. At most 32 packets.
    pub fn refused(&self, packets: &[Packet], now: Time) -> u32 {
        debug_assert!(packets.len() <= 32);
        let too_many = match self.limits.packets {
            Some(RateLimit { rate, .. }) => {
                let one = SECOND / rate;
                self.packets.take(packets, one * packets.len() as u64, |_| one, self.packets.burst(), now)
            }
            None => 0,
        };
        let Some(RateLimit { rate, .. }) = self.limits.bits else { return too_many };
        let time_of = |bytes: u64| (u128::from(bytes) * 8 * u128::from(SECOND) / u128::from(rate)) as u64;
        let counted = |packet: &Packet| packet.len().saturating_sub(self.limits.uncounted) as u64;
        let all = packets.iter().map(counted).sum();
        let needed = |packet: &Packet| time_of(counted(packet));
        let most = time_of(FULL_FRAME).min(self.bits.burst());
        let too_long = self.bits.take(packets, time_of(all), needed, most, now);
        let refused = too_many | too_long;
        if self.limits.packets.is_some() && too_many != too_long {
            self.return_unused(packets, [too_many, too_long], needed);
        }
        refused
    }

    /// Puts back what packets have taken from one bucket that the other one refuses.
    #[cold]
    fn return_unused(&self, packets: &[Packet], [too_many, too_long]: [u32; 2], needed: impl Fn(&Packet) -> u64) {
        let those = |bits: u32| packets.iter().enumerate().filter(move |(at, _)| bits >> at & 1 != 0);
        let rate = self.limits.packets.map_or(1, |limit| limit.rate);
        self.packets.give_back(SECOND / rate * those(too_long & !too_many).count() as u64);
        self.bits.give_back(those(too_many & !too_long).map(|(_, packet)| needed(packet)).sum());
    }
}

/// Takes those packets out of a batch: bit `i` stands for `packets[i]`. The others move to the front, in their order.
pub(crate) fn take(packets: &mut Batch, those: u32) -> Batch {
    let mut kept = 0;
    for at in 0..packets.len() {
        if those >> at & 1 == 0 {
            packets.swap(kept, at);
            kept += 1;
        }
    }
    packets.drain(kept..).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECONDS: u64 = 1_000_000_000;

    fn frame(len: usize) -> Packet {
        Packet::from_slice(&vec![0; len])
    }

    fn limits(bits: Option<(u64, u64)>, packets: Option<(u64, u64)>) -> PolicerLimits {
        let limit = |(rate, burst)| RateLimit { rate, burst };
        PolicerLimits { bits: bits.map(limit), packets: packets.map(limit), uncounted: 0 }
    }

    /// Bytes and packets that pass when `frames` of such lengths come at once.
    fn passed(policer: &Policer, frames: &[usize], now: u64) -> (usize, usize) {
        let packets: Vec<_> = frames.iter().map(|&len| frame(len)).collect();
        packets.chunks(32).fold((0, 0), |(bytes, count), batch| {
            let refused = policer.refused(batch, Time(now));
            let kept = || batch.iter().enumerate().filter(|(at, _)| refused >> at & 1 == 0);
            (bytes + kept().map(|(_, packet)| packet.len()).sum::<usize>(), count + kept().count())
        })
    }

    #[test]
    fn rates_are_right_from_a_megabit_to_a_hundred_gigabits() {
        for rate in [1_000_000, 10_000_000, 1_000_000_000, 10_000_000_000, 100_000_000_000u64] {
            let policer = Policer::new(limits(Some((rate, rate / 100)), None), Time(0));
            // Twice what may pass, in a thousand steps of a second.
            let step = SECONDS / 1000;
            let count = (2 * rate / 8 / 1000).div_ceil(1000) as usize;
            let sent: usize = (0..1000).map(|at| passed(&policer, &vec![1000; count], at * step).0).sum();
            let wanted = (rate / 8 + rate / 800) as f64;
            let error = (sent as f64 / wanted - 1.0).abs();
            assert!(error < 0.02, "{rate}: {sent} bytes, {wanted} wanted");
        }
    }

    #[test]
    fn packets_are_counted_and_both_limits_hold() {
        let policer = Policer::new(limits(None, Some((1000, 10))), Time(0));
        assert_eq!(passed(&policer, &[60; 50], 0).1, 10);
        assert_eq!(passed(&policer, &[9000; 50], 5_000_000).1, 5);
        let both = Policer::new(limits(Some((8_000_000, 8_000)), Some((1000, 5))), Time(0));
        assert_eq!(passed(&both, &[600, 600, 60, 60, 60, 60, 60, 60], 0), (780, 4), "the second one is too long");
        assert_eq!(passed(&both, &[60], 0), (60, 1), "and did not count as a packet");
        assert_eq!(passed(&both, &[60], 0), (0, 0));
    }

    #[test]
    fn a_packet_longer_than_the_burst_passes_and_is_paid_for() {
        let policer = Policer::new(limits(Some((8_000_000, 16_000)), None), Time(0));
        assert_eq!(passed(&policer, &[64_000, 64_000, 60], 0), (64_000, 1));
        assert_eq!(passed(&policer, &[60], 61_000_000), (0, 0), "it takes 62 ms until there is room for one");
        assert_eq!(passed(&policer, &[60], 63_000_000), (60, 1));
        assert_eq!(passed(&policer, &[64_000], 200_000_000), (64_000, 1));
    }

    #[test]
    fn what_does_not_count_is_left_out() {
        let policer = Policer::new(PolicerLimits { uncounted: 14, ..limits(Some((8000, 8 * 100)), None) }, Time(0));
        assert_eq!(passed(&policer, &[64, 64, 64], 0).1, 2);
        assert_eq!(passed(&policer, &[8, 14], 0).1, 2, "nothing of these counts");
    }

    /// A bucket in tokens that is filled as time passes.
    struct Plain {
        tokens: f64,
        rate: f64,
        burst: f64,
        at: u64,
    }

    impl Plain {
        fn takes(&mut self, tokens: f64, now: u64) -> bool {
            self.tokens = (self.tokens + (now - self.at) as f64 * self.rate / 1e9).min(self.burst);
            self.at = now;
            let conforms = self.tokens >= tokens.min(self.burst).min(1518.0 * 8.0) - 1e-3;
            if conforms {
                self.tokens -= tokens;
            }
            conforms
        }
    }

    proptest! {
        /// One packet at a time, it is a bucket of bits that is filled as time passes.
        #[test]
        fn equals_a_plain_bucket(
            rate in 10_000u64..1_000_000_000,
            burst in 1000u64..1_000_000,
            frames in proptest::collection::vec((0u64..3_000_000, 14usize..9000), 1..200),
        ) {
            let policer = Policer::new(limits(Some((rate, burst)), None), Time(0));
            let mut plain = Plain { tokens: burst as f64, rate: rate as f64, burst: burst as f64, at: 0 };
            let (mut now, mut differ) = (0, 0);
            for (later, len) in frames {
                now += later;
                let bits = len as f64 * 8.0;
                let expected = plain.takes(bits, now);
                let found = passed(&policer, &[len], now).1 == 1;
                if expected != found {
                    // Only where it is a matter of rounding, and then the reference follows.
                    differ += 1;
                    let found_room_for = bits.min(plain.burst).min(1518.0 * 8.0);
                    let short = (plain.tokens + if expected { bits } else { 0.0 } - found_room_for).abs();
                    prop_assert!(short < 1.0 + rate as f64 / 1e6, "{short} tokens at {now}");
                    plain.tokens += if expected { bits } else { -bits };
                }
            }
            prop_assert!(differ < 3);
        }
    }
}
