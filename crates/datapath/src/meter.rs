//! Meters: limits of rates, shared by all workers without a lock.
//!
//! A band is a bucket of tokens ([`Bucket`]). A worker takes tokens by one compare-and-swap for a batch, and nothing has to be
//! refilled.
//!
//! A configuration that changes is written beside the present one, which workers use until then. A worker that two
//! changes overtake while it judges a batch may judge that one by values of both.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use packet::{Packet, Time};
use parking_lot::Mutex;

use crate::bucket::{Bucket, SECOND};

/// Most bands of a meter.
pub const MAX_BANDS: usize = 8;
/// Most meters.
pub const MAX_METERS: u32 = 1 << 18;

/// What a meter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeterUnit {
    /// Rates are in packets per second, bursts in packets.
    Packets,
    /// Rates are in kb/s, bursts in kb. A packet's bits are those of its frame, from the Ethernet header to the end of the
    /// payload.
    Kilobits,
}

/// What becomes of packets above a band's rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeterBandKind {
    /// They are dropped.
    Drop,
    /// The drop precedence of their DSCP (RFC 2597) is raised by so much.
    Remark(u8),
}

/// A band as it is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeterBand {
    /// Rate, in the meter's unit per second. Zero: no packet conforms.
    pub rate: u32,
    /// Size of bursts, in the meter's unit. Zero: what the rate lets pass in a second.
    pub burst: u32,
    /// What becomes of packets above the rate.
    pub kind: MeterBandKind,
}

/// What a meter has counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeterCounters {
    /// Packets that came.
    pub packets: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// What each band has counted.
    pub bands: Vec<BandCounters>,
}

/// What a band has counted, and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BandCounters {
    /// Packets that it has dropped or remarked.
    pub packets: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// How long its bucket takes to be full, in ns.
    pub full_in: u64,
}

/// The numbers of meters.
#[derive(Default)]
pub struct MeterNumbers(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    /// Above all that are in use.
    next: u32,
    /// Below that, and not in use.
    free: BTreeSet<u32>,
}

/// A meter. Its number is free again when nobody has it any more.
pub struct Meter {
    number: u32,
    numbers: Arc<MeterNumbers>,
    remarks: bool,
    /// The slot in use, and how often it has changed.
    current: AtomicUsize,
    slots: [Slot; 2],
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// A configuration, and what belongs to it.
#[derive(Default)]
struct Slot {
    by_packets: AtomicU8,
    count: AtomicUsize,
    bands: [Band; MAX_BANDS],
}

#[derive(Default)]
struct Band {
    rate: AtomicU32,
    /// By how much a packet is raised, plus one; zero: it is dropped.
    remark: AtomicU32,
    bucket: Bucket,
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// What becomes of the packets of a batch, by their bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// They are dropped.
    pub drop: u32,
    /// Their drop precedence is raised.
    pub remark: u32,
    /// By how much, for each of those.
    pub levels: [u8; 32],
}

impl MeterNumbers {
    /// A new meter with the lowest number that is free, and with full buckets. `None`: there are [`MAX_METERS`].
    pub fn add(self: &Arc<MeterNumbers>, unit: MeterUnit, bands: &[MeterBand], now: Time) -> Option<Arc<Meter>> {
        let number = {
            let mut numbers = self.0.lock();
            match numbers.free.pop_first() {
                Some(number) => number,
                None if numbers.next == MAX_METERS => return None,
                None => {
                    numbers.next += 1;
                    numbers.next - 1
                }
            }
        };
        let meter = Meter {
            number,
            numbers: self.clone(),
            remarks: remarks(bands),
            current: AtomicUsize::new(0),
            slots: Default::default(),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        meter.slots[0].configure(unit, bands, now);
        Some(Arc::new(meter))
    }

    fn give_back(&self, number: u32) {
        let mut numbers = self.0.lock();
        numbers.free.insert(number);
        while numbers.next > 0 && numbers.free.last() == Some(&(numbers.next - 1)) {
            numbers.free.pop_last();
            numbers.next -= 1;
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.numbers.give_back(self.number);
    }
}

impl PartialEq for Meter {
    fn eq(&self, other: &Meter) -> bool {
        std::ptr::eq(self, other)
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "meter({})", self.number)
    }
}

/// Whether a band remarks packets.
fn remarks(bands: &[MeterBand]) -> bool {
    bands.iter().any(|band| matches!(band.kind, MeterBandKind::Remark(_)))
}

impl Meter {
    /// Its number among all meters of the datapath.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether it may change packets: it has a band that remarks them.
    #[inline(always)]
    pub fn remarks(&self) -> bool {
        self.remarks
    }

    /// Changes the configuration; buckets are full again, and counters zero. Where the meter would begin to
    /// [remark](Meter::remarks) packets, or cease to, nothing happens and the result is `false`: flows have to be translated
    /// for another meter then. One thread may do so at a time.
    #[must_use]
    pub fn configure(&self, unit: MeterUnit, bands: &[MeterBand], now: Time) -> bool {
        if remarks(bands) != self.remarks {
            return false;
        }
        let next = self.current.load(Ordering::Relaxed).wrapping_add(1);
        self.slots[next % 2].configure(unit, bands, now);
        self.packets.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.current.store(next, Ordering::Release);
        true
    }

    /// What it has counted.
    pub fn counters(&self, now: Time) -> MeterCounters {
        let of_band = |band: &Band| BandCounters {
            packets: band.packets.load(Ordering::Relaxed),
            bytes: band.bytes.load(Ordering::Relaxed),
            full_in: band.bucket.full_in(now),
        };
        MeterCounters {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            bands: self.slot().bands().iter().map(of_band).collect(),
        }
    }

    /// Goes on from what another meter of this configuration has counted. Not while packets pass it.
    pub fn restore(&self, counters: &MeterCounters, now: Time) {
        self.packets.store(counters.packets, Ordering::Relaxed);
        self.bytes.store(counters.bytes, Ordering::Relaxed);
        for (band, counters) in self.slot().bands().iter().zip(&counters.bands) {
            band.packets.store(counters.packets, Ordering::Relaxed);
            band.bytes.store(counters.bytes, Ordering::Relaxed);
            band.bucket.set_full_in(counters.full_in, now);
        }
    }

    #[inline(always)]
    fn slot(&self) -> &Slot {
        &self.slots[self.current.load(Ordering::Acquire) % 2]
    }

    /// Counts packets, and judges them: of the bands whose rate a packet exceeds, the one with the highest rate decides
    /// (OpenFlow 1.3.5 section 5.7.1). `None`: all of them conform. At most 32 packets.
    pub fn judge(&self, packets: &[Packet], now: Time) -> Option<Judgement> {
        debug_assert!(packets.len() <= 32);
        let slot = self.slot();
        let bytes = packets.iter().map(|packet| packet.len() as u64).sum();
        self.packets.fetch_add(packets.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let by_packets = slot.by_packets.load(Ordering::Relaxed) != 0;
        let volume = if by_packets { packets.len() as u64 } else { bytes };
        let mut exceeded = [0; MAX_BANDS];
        let bands = slot.bands();
        for (band, exceeded) in bands.iter().zip(&mut exceeded) {
            *exceeded = band.take(packets, by_packets, volume, now);
        }
        if exceeded == [0; MAX_BANDS] {
            return None;
        }
        Some(decide(bands, &exceeded, packets))
    }
}

/// What becomes of packets that exceed the rates of these bands.
#[cold]
fn decide(bands: &[Band], exceeded: &[u32; MAX_BANDS], packets: &[Packet]) -> Judgement {
    let mut judgement = Judgement { drop: 0, remark: 0, levels: [0; 32] };
    for (at, packet) in packets.iter().enumerate() {
        let exceeds = bands.iter().zip(exceeded).filter(|(_, exceeded)| *exceeded >> at & 1 != 0);
        // Of several with this rate, the first one.
        let highest = exceeds.map(|(band, _)| band).reduce(|highest, band| {
            let rate = |band: &Band| band.rate.load(Ordering::Relaxed);
            if rate(band) > rate(highest) { band } else { highest }
        });
        let Some(band) = highest else { continue };
        band.packets.fetch_add(1, Ordering::Relaxed);
        band.bytes.fetch_add(packet.len() as u64, Ordering::Relaxed);
        match band.remark.load(Ordering::Relaxed) {
            0 => judgement.drop |= 1 << at,
            remark => {
                judgement.remark |= 1 << at;
                judgement.levels[at] = (remark - 1) as u8;
            }
        }
    }
    judgement
}

impl Slot {
    fn bands(&self) -> &[Band] {
        &self.bands[..self.count.load(Ordering::Relaxed).min(MAX_BANDS)]
    }

    fn configure(&self, unit: MeterUnit, bands: &[MeterBand], now: Time) {
        self.by_packets.store(u8::from(unit == MeterUnit::Packets), Ordering::Relaxed);
        for (band, &MeterBand { rate, burst, kind }) in self.bands.iter().zip(bands) {
            let burst = if burst == 0 { rate } else { burst };
            let remark = match kind {
                MeterBandKind::Drop => 0,
                MeterBandKind::Remark(levels) => 1 + u32::from(levels),
            };
            band.rate.store(rate, Ordering::Relaxed);
            band.remark.store(remark, Ordering::Relaxed);
            band.bucket.fill(burst.into(), rate.into(), now);
            band.packets.store(0, Ordering::Relaxed);
            band.bytes.store(0, Ordering::Relaxed);
        }
        self.count.store(bands.len().min(MAX_BANDS), Ordering::Relaxed);
    }
}

impl Band {
    /// Takes the tokens of those packets that conform. Returns the bits of the others. `volume` is that of all packets.
    #[inline]
    fn take(&self, packets: &[Packet], by_packets: bool, volume: u64, now: Time) -> u32 {
        let rate = u64::from(self.rate.load(Ordering::Relaxed));
        if rate == 0 {
            return (1u64 << packets.len()).wrapping_sub(1) as u32;
        }
        // A byte is 8/1000 of a kilobit.
        let unit = if by_packets { SECOND } else { SECOND / 125 };
        let time_of = |volume: u64| volume * unit / rate;
        let needed = |packet: &Packet| time_of(if by_packets { 1 } else { packet.len() as u64 });
        self.bucket.take(packets, time_of(volume), needed, u64::MAX, now)
    }
}

/// The DSCP in a traffic class, after its drop precedence was raised: of a class of assured forwarding (RFC 2597) up to 3;
/// others have none, and stay.
pub fn raised(tos: u8, levels: u8) -> u8 {
    let (class, precedence) = (tos >> 5, tos >> 3 & 3);
    if !(1..=4).contains(&class) || precedence == 0 || tos & 4 != 0 {
        return tos;
    }
    tos & !0b1_1000 | precedence.saturating_add(levels).min(3) << 3
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECONDS: u64 = 1_000_000_000;

    fn frame(len: usize) -> Packet {
        Packet::from_slice(&vec![0; len])
    }

    fn drops(rate: u32, burst: u32) -> MeterBand {
        MeterBand { rate, burst, kind: MeterBandKind::Drop }
    }

    fn add(unit: MeterUnit, bands: &[MeterBand], now: u64) -> Arc<Meter> {
        Arc::<MeterNumbers>::default().add(unit, bands, Time(now)).unwrap()
    }

    /// How many of so many packets of this length a meter lets pass.
    fn passed(meter: &Meter, packets: usize, len: usize, now: u64) -> u32 {
        let batch: Vec<_> = (0..packets).map(|_| frame(len)).collect();
        packets as u32 - meter.judge(&batch, Time(now)).map_or(0, |judgement| judgement.drop.count_ones())
    }

    #[test]
    fn bits_conform_up_to_the_burst_and_then_at_the_rate() {
        // 1 kb/s in bursts of 2 kb, and frames of 480 bits.
        let meter = add(MeterUnit::Kilobits, &[drops(1, 2)], 0);
        assert_eq!(passed(&meter, 7, 60, 5 * SECONDS), 4);
        assert_eq!(passed(&meter, 5, 60, 5 * SECONDS + 870_000_000), 1);
        // Now 470 bits are there, which are ten too few for as many milliseconds.
        assert_eq!(passed(&meter, 1, 60, 5 * SECONDS + 879_999_999), 0);
        assert_eq!(passed(&meter, 5, 60, 5 * SECONDS + 880_000_000), 1);
        let now = Time(5 * SECONDS + 880_000_000);
        let band = BandCounters { packets: 12, bytes: 720, full_in: 2 * SECONDS };
        assert_eq!(meter.counters(now), MeterCounters { packets: 18, bytes: 1080, bands: vec![band] });
        // Another meter goes on from there.
        let next = add(MeterUnit::Kilobits, &[drops(1, 2)], 7);
        next.restore(&meter.counters(now), Time(9 * SECONDS));
        assert_eq!(next.counters(Time(9 * SECONDS)), meter.counters(now));
        assert_eq!(passed(&next, 1, 60, 9 * SECONDS + 479_999_999), 0);
        assert_eq!(passed(&next, 2, 60, 9 * SECONDS + 480_000_000), 1);
        // Without a burst, that of a second; of a frame that is longer, none passes.
        let meter = add(MeterUnit::Kilobits, &[drops(1, 0)], 0);
        assert_eq!((passed(&meter, 1, 126, SECONDS), passed(&meter, 2, 125, SECONDS)), (0, 1));
    }

    #[test]
    fn packets_conform_whatever_their_length() {
        let meter = add(MeterUnit::Packets, &[drops(10, 3)], 0);
        let lens = [60, 9000, 1, 60].map(frame);
        assert_eq!(meter.judge(&lens, Time(0)).unwrap().drop, 0b1000);
        assert_eq!(passed(&meter, 32, 60, SECONDS / 10), 1);
        assert_eq!(passed(&meter, 32, 60, 100 * SECONDS), 3);
        let none = add(MeterUnit::Packets, &[drops(0, 5)], 0);
        assert_eq!((passed(&none, 1, 60, 5), passed(&none, 32, 60, SECONDS)), (0, 0));
        let all = add(MeterUnit::Packets, &[], 0);
        assert_eq!((passed(&all, 32, 60, 5), all.counters(Time(5)).packets), (32, 32));
    }

    #[test]
    fn the_exceeded_band_with_the_highest_rate_decides() {
        let remark = MeterBand { rate: 1, burst: 1, kind: MeterBandKind::Remark(1) };
        let meter = add(MeterUnit::Packets, &[remark, drops(4, 4)], 0);
        let batch: Vec<_> = (0..6).map(|_| frame(60)).collect();
        let judgement = meter.judge(&batch, Time(0)).unwrap();
        assert_eq!((judgement.drop, judgement.remark, judgement.levels[1]), (0b11_0000, 0b00_1110, 1));
        let bands = meter.counters(Time(0)).bands;
        assert_eq!([0, 1].map(|at: usize| (bands[at].packets, bands[at].bytes)), [(3, 180), (2, 120)]);
    }

    #[test]
    fn a_change_fills_the_buckets_and_does_not_make_it_another_meter() {
        let meter = add(MeterUnit::Packets, &[drops(1, 1)], 0);
        assert_eq!(passed(&meter, 5, 60, 0), 1);
        assert!(meter.configure(MeterUnit::Packets, &[drops(1, 3), drops(9, 9)], Time(0)));
        assert_eq!((passed(&meter, 5, 60, 0), meter.counters(Time(0)).bands.len()), (3, 2));
        assert!(meter.configure(MeterUnit::Kilobits, &[drops(8, 1)], Time(0)));
        assert_eq!((passed(&meter, 5, 50, 0), meter.counters(Time(0)).packets), (2, 5));
        let remark = MeterBand { rate: 1, burst: 1, kind: MeterBandKind::Remark(1) };
        assert!(!meter.remarks() && !meter.configure(MeterUnit::Packets, &[remark], Time(0)));
    }

    #[test]
    fn time_may_stand_still_wrap_and_differ_among_workers() {
        let year = 31_536_000 * SECONDS;
        let meter = add(MeterUnit::Packets, &[drops(1, 2)], 0);
        assert_eq!(passed(&meter, 5, 60, 0), 2);
        for now in [year, 2 * year, 10 * year, 100 * year] {
            assert_eq!(passed(&meter, 5, 60, now), 2, "{now}");
            assert_eq!(passed(&meter, 5, 60, now - SECONDS / 2), 0, "{now}, a bit earlier");
        }
        // Extremes of what can be configured.
        for (rate, burst) in [(1, u32::MAX), (u32::MAX, 1), (u32::MAX, u32::MAX), (0, u32::MAX)] {
            for unit in [MeterUnit::Packets, MeterUnit::Kilobits] {
                let meter = add(unit, &[drops(rate, burst)], u64::MAX);
                passed(&meter, 32, 65_535, u64::MAX);
                passed(&meter, 32, 65_535, 0);
            }
        }
    }

    #[test]
    fn numbers_are_the_lowest_that_are_free_and_bounded() {
        let numbers = Arc::<MeterNumbers>::default();
        let add = || numbers.add(MeterUnit::Packets, &[], Time(0));
        let mut meters: Vec<_> = (0..4).map(|_| add().unwrap()).collect();
        meters.remove(1);
        assert_eq!(add().unwrap().number(), 1);
        let again = [add().unwrap(), add().unwrap()];
        assert_eq!(again.each_ref().map(|meter| meter.number()), [1, 4]);
        numbers.0.lock().next = MAX_METERS;
        assert!(add().is_none());
        drop(again);
        assert_eq!(add().unwrap().number(), 1);
    }

    #[test]
    fn the_drop_precedence_of_assured_forwarding_is_raised() {
        let dscp = |dscp: u8, levels| raised(dscp << 2 | 3, levels) >> 2;
        // AF11 to AF13, AF42 to AF43; EF, CS1 and best effort have no drop precedence.
        assert_eq!([(10, 1), (10, 2), (10, 9), (14, 1), (36, 1)].map(|(d, l)| dscp(d, l)), [12, 14, 14, 14, 38]);
        assert_eq!([46, 8, 0, 42].map(|d| dscp(d, 3)), [46, 8, 0, 42]);
        assert_eq!((0..=255).filter(|&tos| raised(tos, 1) & 3 != tos & 3).count(), 0);
    }

    #[test]
    fn workers_share_what_there_is() {
        let meter = add(MeterUnit::Packets, &[drops(1, 100_000)], 0);
        let each = |_| {
            let meter = meter.clone();
            std::thread::spawn(move || (0..5_000).map(|_| passed(&meter, 16, 60, 0)).sum::<u32>())
        };
        let threads: Vec<_> = (0..4).map(each).collect();
        assert_eq!(threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>(), 100_000);
    }

    /// A bucket of tokens, in the plain form.
    struct Bucket {
        tokens: f64,
        at: u64,
    }

    proptest! {
        /// As a bucket of tokens that is refilled, up to what rounding can make of a packet at the edge.
        #[test]
        fn it_is_a_token_bucket(
            rate in 1u32..1_000_000,
            burst in 1u32..10_000,
            by_packets: bool,
            batches in prop::collection::vec((0u64..3_000_000_000, prop::collection::vec(1usize..2000, 1..32)), 1..20),
        ) {
            let unit = if by_packets { MeterUnit::Packets } else { MeterUnit::Kilobits };
            let meter = add(unit, &[drops(rate, burst)], 0);
            let scale = if by_packets { 1.0 } else { 1000.0 };
            let mut bucket = Bucket { tokens: f64::from(burst) * scale, at: 0 };
            for (after, lens) in batches {
                let now = bucket.at + after;
                let filled = bucket.tokens + after as f64 / 1e9 * f64::from(rate) * scale;
                bucket = Bucket { tokens: filled.min(f64::from(burst) * scale), at: now };
                let batch: Vec<_> = lens.iter().map(|&len| frame(len)).collect();
                let drop = meter.judge(&batch, Time(now)).map_or(0, |judgement| judgement.drop);
                for (at, len) in lens.into_iter().enumerate() {
                    let needed = if by_packets { 1.0 } else { 8.0 * len as f64 };
                    let dropped = drop >> at & 1 != 0;
                    if (bucket.tokens - needed).abs() > 1e-3 * scale {
                        prop_assert_eq!(dropped, bucket.tokens < needed, "{} of {}", bucket.tokens, needed);
                    }
                    if !dropped {
                        bucket.tokens -= needed;
                    }
                }
            }
        }
    }
}
