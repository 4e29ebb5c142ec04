//! Whether others want a worker's core.
//!
//! A worker that polls in vain takes time from whoever shares its core: from a guest or a server that would send what the worker waits
//! for. The scheduler lets the others wait for as long as it takes to be fair, and gives the worker's turns to them then. So the time
//! during which a worker was awake but not on a processor shows that others want its core, whether that was meant to be its own or not.

use std::time::Duration;

use packet::Time;

/// How long a worker is watched at least.
const WINDOW: Duration = Duration::from_millis(10);

/// Others want the core if they had at least this part of the time, twice in a row: once, it may be some background work.
const PART: u32 = 8;

/// How long they are taken to want it then. A worker that sleeps leaves them the core, and learns nothing more.
const KEPT: Duration = Duration::from_millis(250);

/// What is known of others on the core of one worker.
#[derive(Default)]
pub struct Contention {
    /// When the worker was looked at last.
    since: Time,
    /// How long it had been on a processor by then.
    on_processor: Duration,
    /// How long it has slept since then.
    slept: Duration,
    /// Whether others had the core before that.
    had_core: bool,
    /// Until when others want the core.
    until: Time,
}

impl Contention {
    /// Records a sleep.
    pub fn on_slept(&mut self, slept: Duration) {
        self.slept += slept;
    }

    /// Looks whether others had the core, where the last look is long enough ago. `on_processor` says for how long the worker has been on a
    /// processor.
    #[inline]
    pub fn look(&mut self, now: Time, on_processor: impl FnOnce() -> Duration) {
        if now.since(self.since) >= WINDOW {
            self.compare(now, on_processor());
        }
    }

    #[cold]
    fn compare(&mut self, now: Time, on_processor: Duration) {
        let passed = now.since(self.since);
        let had = on_processor.saturating_sub(self.on_processor) + self.slept;
        let is_first = self.since == Time::default();
        let others_had_core = !is_first && passed.saturating_sub(had) >= passed / PART;
        if others_had_core && self.had_core {
            self.until = now + KEPT;
        }
        *self = Contention {
            since: now,
            on_processor,
            slept: Duration::ZERO,
            had_core: others_had_core,
            until: self.until,
        };
    }

    /// Whether others want the core.
    pub fn is_contended(&self, now: Time) -> bool {
        now < self.until
    }
}

/// How long this thread has been on a processor.
pub fn on_processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time(millis * 1_000_000)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn time_awake_without_a_processor_is_that_of_others() {
        let mut contention = Contention::default();
        contention.look(at(1000), || millis(400));
        assert!(!contention.is_contended(at(1000)), "nothing to compare with");
        contention.look(at(1009), || panic!("so soon"));
        contention.on_slept(millis(12));
        contention.look(at(1020), || millis(407));
        assert!(!contention.is_contended(at(1020)), "one of 20 was another's");
        contention.on_slept(millis(10));
        contention.look(at(1040), || millis(414));
        assert!(!contention.is_contended(at(1040)), "three of 20, but just once");
        contention.look(at(1050), || millis(422));
        assert!(contention.is_contended(at(1050)), "two of ten, again");
        contention.look(at(1060), || millis(432));
        contention.look(at(1070), || millis(434));
        assert!(
            contention.is_contended(at(1299)) && !contention.is_contended(at(1300)),
            "not twice in a row since then"
        );
    }

    #[test]
    fn a_thread_is_on_a_processor_while_it_computes() {
        let start = on_processor();
        let mut n = 1u64;
        while on_processor() == start {
            n = std::hint::black_box(n.wrapping_mul(3));
        }
        let before = on_processor();
        std::thread::sleep(millis(50));
        assert!(on_processor() - before < millis(50), "it slept");
    }
}
