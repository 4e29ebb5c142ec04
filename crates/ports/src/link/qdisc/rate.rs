//! Rates and bursts as the kernel's packet schedulers want them: `struct tc_ratespec`, and times in ticks.

use std::sync::OnceLock;

/// Bytes of a rate table: the time that packets of some 256 lengths take. Kernels of today ask for it and compute their own.
const TABLE: usize = 256;

/// The shortest frame of Ethernet, which shorter packets count as.
const SHORTEST: u32 = 60;

/// Ethernet header and VLAN tag, which the longest frame has beside the MTU.
const HEADERS: u32 = 18;

/// The kernel's clock for schedulers (/proc/net/psched).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Ticks in a second.
    ticks: f64,
    /// How often in a second a timer may expire; a huge number where it is not the kernel's periodic one.
    timer_hz: u64,
}

impl Clock {
    /// That of this kernel.
    pub fn of_kernel() -> Clock {
        static CLOCK: OnceLock<Clock> = OnceLock::new();
        *CLOCK.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/net/psched").unwrap_or_default();
            Clock::parse(&text).unwrap_or(Clock { ticks: 15_625_000.0, timer_hz: 1_000_000_000 })
        })
    }

    /// Four hexadecimal numbers: nanoseconds for each microsecond and each tick, ticks in a second as seen from there, and
    /// the resolution of timers.
    pub fn parse(text: &str) -> Option<Clock> {
        let mut numbers = text.split_whitespace().map(|word| u32::from_str_radix(word, 16).ok());
        let mut next = || numbers.next().flatten().filter(|&number| number > 0);
        let (us, tick, per_second, timer_hz) = (next()?, next()?, next()?, next()?);
        Some(Clock { ticks: f64::from(us) * f64::from(per_second) / f64::from(tick), timer_hz: timer_hz.into() })
    }

    /// How long so many bytes take at a rate of bytes per second.
    pub fn time_of(&self, bytes: u64, rate: u64) -> u32 {
        if rate == 0 { 0 } else { saturate(self.ticks * bytes as f64 / rate as f64) }
    }

    /// Microseconds in ticks.
    pub fn microseconds(&self, us: u64) -> u32 {
        saturate(us as f64 * self.ticks / 1e6)
    }

    /// The time that the larger of a burst and what has to pass between two expirations of a timer takes.
    pub fn burst(&self, burst: u64, rate: u64, mtu: u32) -> u32 {
        self.time_of(burst.max(rate / self.timer_hz + u64::from(mtu)), rate)
    }
}

fn saturate(ticks: f64) -> u32 {
    // A conversion from floating point takes the nearest number that there is.
    ticks as u32
}

/// A rate, and the MTU for which it is expressed.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes per second.
    pub bytes: u64,
    /// By how many bits lengths are shifted to look up their time.
    cell_log: u8,
}

impl Rate {
    /// A rate of so many bytes per second over a link with this MTU.
    pub fn new(bytes: u64, mtu: u32) -> Rate {
        let longest = mtu.saturating_add(HEADERS);
        Rate { bytes, cell_log: (u32::BITS - longest.leading_zeros()).saturating_sub(8) as u8 }
    }

    /// `struct tc_ratespec`. A rate of more than 32 bits is the largest there, and has an attribute of its own.
    pub fn spec(&self) -> [u8; 12] {
        let mut spec = [0; 12];
        spec[0] = self.cell_log;
        spec[6..8].copy_from_slice(&(SHORTEST as u16).to_ne_bytes());
        spec[8..].copy_from_slice(&u32::try_from(self.bytes).unwrap_or(u32::MAX).to_ne_bytes());
        spec
    }

    /// Whether the rate needs an attribute of its own.
    pub fn is_long(&self) -> bool {
        u32::try_from(self.bytes).is_err()
    }

    /// The table of times.
    pub fn table(&self, clock: Clock) -> Vec<u8> {
        let length = |cell: usize| ((cell as u64 + 1) << self.cell_log).max(SHORTEST.into());
        (0..TABLE).flat_map(|cell| clock.time_of(length(cell), self.bytes).to_ne_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this and nearly every kernel of today says.
    const USUAL: &str = "000003e8 00000040 000f4240 3b9aca00\n";

    #[test]
    fn the_clock_is_read() {
        let clock = Clock::parse(USUAL).unwrap();
        assert_eq!((clock.ticks, clock.timer_hz), (15_625_000.0, 1_000_000_000));
        assert_eq!(clock.microseconds(10_000), 156_250);
        for wrong in ["", "000003e8 0 000f4240 3b9aca00", "1 2 3", "x y z w"] {
            assert!(Clock::parse(wrong).is_none(), "{wrong}");
        }
        assert!(Clock::of_kernel().ticks > 0.0);
    }

    #[test]
    fn absurd_rates_have_a_time() {
        let clock = Clock::parse(USUAL).unwrap();
        assert_eq!(clock.time_of(1500, 0), 0);
        assert_eq!(clock.time_of(u64::MAX, 1), u32::MAX);
        assert_eq!(clock.time_of(1500, u64::MAX), 0);
        assert_eq!(clock.burst(0, 125_000_000, 1500), clock.time_of(1500, 125_000_000));
    }

    #[test]
    fn the_longest_frame_has_a_cell() {
        for (mtu, cell_log) in [(68, 0), (1500, 3), (9000, 6), (65535, 9)] {
            let rate = Rate::new(1_000_000, mtu);
            assert_eq!(rate.cell_log, cell_log, "{mtu}");
            assert!((mtu + HEADERS) >> rate.cell_log < 256);
        }
        let fast = Rate::new(1 << 33, 1500);
        assert!(fast.is_long() && fast.spec()[8..] == [0xff; 4]);
    }
}
