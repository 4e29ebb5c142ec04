//! A tap, as its reader and the workers share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::record::Record;
use super::ring::{Producer, ring};
use super::rings::Rings;
use super::settings::{PortSet, Ports, TapSettings};

/// Most taps at a time.
pub const MOST_TAPS: usize = 16;

/// Bytes of all rings of a tap together, as far as the workers' shares are within [`RING`].
const RINGS: usize = 8 << 20;

/// The least and the most bytes of a worker's ring: room for several of the longest frames.
const RING: (usize, usize) = (512 << 10, 2 << 20);

/// For how long a reader may look away before the packets of its rate are gone for good.
const BURST: Duration = Duration::from_millis(100);

/// A tap.
pub struct TapState {
    /// Its number; none is used again.
    pub number: u64,
    /// What it is about.
    pub settings: TapSettings,
    /// How many more packets may be shown before the reader allows more. Only where there is a rate.
    tokens: AtomicU32,
    /// Packets that were not shown, for the rate.
    skipped: AtomicU64,
    /// Locked by the reader, and by who adds a worker or changes the ports.
    reading: Mutex<Reading>,
}

/// The readers' ends of the rings, and the ports that the tap is about.
struct Reading {
    ports: Ports,
    rings: Rings,
}

/// What a tap has not shown of what it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounts {
    /// Packets that were lost because the reader was too slow.
    pub lost: u64,
    /// Packets that were left out for the rate.
    pub skipped: u64,
}

/// Set up.
impl TapState {
    /// A tap of these ports, which no worker knows yet.
    pub fn new(number: u64, settings: TapSettings, ports: Ports) -> Arc<TapState> {
        let tokens = AtomicU32::new(settings.rate.map_or(0, burst));
        let reading = Mutex::new(Reading { ports, rings: Rings::default() });
        Arc::new(TapState { number, settings, tokens, skipped: AtomicU64::new(0), reading })
    }

    /// A further worker's ends, of so many `workers`: the ports that the tap is about, and a ring.
    pub fn for_worker(&self, workers: usize) -> (PortSet, Producer) {
        let bytes = (RINGS / workers.max(1)).clamp(RING.0, RING.1);
        let (producer, consumer) = ring(bytes / 8);
        let mut reading = self.reading.lock();
        reading.rings.add(consumer);
        (PortSet::new(&reading.ports), producer)
    }

    /// Changes the ports, for workers that come later.
    pub fn set_ports(&self, ports: &Ports) {
        self.reading.lock().ports.clone_from(ports);
    }
}

/// The rate.
impl TapState {
    /// Whether the rate allows another packet. Called by workers.
    pub fn take_token(&self) -> bool {
        if self.settings.rate.is_none() {
            return true;
        }
        let taken = self.tokens.fetch_update(Relaxed, Relaxed, |tokens| tokens.checked_sub(1)).is_ok();
        if !taken {
            self.skipped.fetch_add(1, Relaxed);
        }
        taken
    }

    /// Allows what the rate does in this time. Returns the part of a packet that is left.
    pub fn add_tokens(&self, elapsed: Duration, rest: f64) -> f64 {
        let Some(rate) = self.settings.rate else { return 0.0 };
        // What is beyond a burst would be cut off below.
        let due = (elapsed.as_secs_f64() * f64::from(rate) + rest).min(f64::from(burst(rate)));
        let more = |tokens: u32| Some(tokens.saturating_add(due as u32).min(burst(rate)));
        let _ = self.tokens.fetch_update(Relaxed, Relaxed, more);
        due.fract()
    }
}

/// Most packets that are allowed at once.
fn burst(rate: u32) -> u32 {
    ((f64::from(rate) * BURST.as_secs_f64()) as u32).max(1)
}

/// Reading.
impl TapState {
    /// Calls `each` with what workers have shown since the last call, and with its frame, as long as it says to go on. Workers take turns.
    /// Returns how many packets there were.
    pub fn read(&self, mut each: impl FnMut(&Record, &[u8]) -> bool) -> usize {
        self.reading.lock().rings.read(|header, frame| each(&Record::decode(header), frame))
    }

    /// What it has not shown so far.
    pub fn counts(&self) -> TapCounts {
        TapCounts { lost: self.reading.lock().rings.lost(), skipped: self.skipped.load(Relaxed) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_rate_allows_so_many_and_counts_the_others() {
        let settings = TapSettings { rate: Some(50), ..TapSettings::default() };
        let tap = TapState::new(1, settings, None);
        let taken = |times: usize| (0..times).filter(|_| tap.take_token()).count();
        assert_eq!((taken(20), tap.counts().skipped), (5, 15), "a tenth of a second");
        // Parts of a packet are not lost, and a reader that looked away for long gets no more than a burst.
        let rest = (0..8).fold(0.0, |rest, _| tap.add_tokens(Duration::from_millis(5), rest));
        assert_eq!((taken(20), rest), (2, 0.0));
        tap.add_tokens(Duration::from_secs(3600), 0.0);
        assert_eq!(taken(20), 5);
        let tap = TapState::new(2, TapSettings { rate: Some(1), ..TapSettings::default() }, None);
        assert!(tap.take_token() && !tap.take_token());
        assert!((tap.add_tokens(Duration::from_millis(500), 0.0) - 0.5).abs() < 1e-9 && !tap.take_token());
        tap.add_tokens(Duration::from_millis(500), 0.5);
        assert!(tap.take_token());
    }

    #[test]
    fn what_rings_have_lost_stays_counted_when_they_go() {
        let tap = TapState::new(1, TapSettings::default(), None);
        let (_, producer) = tap.for_worker(1);
        let lost = (0..100_000).filter(|_| !producer.push([0; 5], &[0; 60])).count() as u64;
        assert!(lost > 0);
        drop(producer);
        let shown = 100_000 - lost;
        assert_eq!(
            std::iter::repeat_with(|| tap.read(|_, frame| frame.len() == 60)).take_while(|&n| n > 0).sum::<usize>()
                as u64,
            shown
        );
        assert!(tap.reading.lock().rings.is_empty());
        assert_eq!(tap.counts(), TapCounts { lost, skipped: 0 });
    }
}
