//! How often a spanning tree has what was learnt forgotten.
//!
//! Each change of the topology, of which any neighbour tells, has addresses and groups forgotten, and the flows that depend on them. What comes after
//! it misses, and is learnt from. A neighbour that tells of changes without end would have a bridge do nothing else. So after a few
//! times in a row, those that follow are done together, once a second. Bridges that keep to the standard send no more than ten frames in a row
//! and one a second from then on (IEEE 802.1D-2004 section 17.13.12).

use std::time::Duration;

use openflow::OfPort;
use packet::Time;

/// So many times in a row, without a pause.
const IN_A_ROW: u32 = 10;
/// Between two times from then on.
const INTERVAL: Duration = Duration::from_secs(1);

/// Which addresses and groups are forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// All that were learnt by the bridge.
    All,
    /// Those that were learnt behind these ports.
    Ports(Vec<OfPort>),
}

/// What of a tree is to be forgotten. See the [module](self).
#[derive(Default)]
pub(crate) struct Flushes {
    asked_for: Option<Flush>,
    /// When as many times in a row are possible again as after a long pause.
    rested: Time,
}

impl Flushes {
    /// Has something forgotten, as soon as that may be.
    pub fn ask(&mut self, flush: Flush) {
        self.asked_for = match (self.asked_for.take(), flush) {
            (Some(Flush::All), _) | (_, Flush::All) => Some(Flush::All),
            (None, ports) => Some(ports),
            (Some(Flush::Ports(mut ports)), Flush::Ports(more)) => {
                ports.extend(more);
                ports.sort_unstable();
                ports.dedup();
                Some(Flush::Ports(ports))
            }
        };
    }

    /// What is to be forgotten now.
    pub fn take(&mut self, now: Time) -> Option<Flush> {
        let is_due = self.next().is_some_and(|at| at <= now);
        let flush = self.asked_for.take_if(|_| is_due)?;
        self.rested = self.rested.max(now) + INTERVAL;
        Some(flush)
    }

    /// When something is to be forgotten; `None` where nothing is.
    pub fn next(&self) -> Option<Time> {
        let wait = self.rested.since(Time(0)).saturating_sub(INTERVAL * (IN_A_ROW - 1));
        self.asked_for.is_some().then(|| Time(0) + wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_without_end_are_followed_together_once_a_second() {
        let (mut flushes, start) = (Flushes::default(), Time(0) + Duration::from_secs(100));
        let mut done = Vec::new();
        // A thousand a second, for five seconds.
        for millis in 0..5000 {
            flushes.ask(Flush::Ports(vec![OfPort(1 + millis % 3)]));
            done.extend(flushes.take(start + Duration::from_millis(millis.into())));
        }
        let each = |flush: &Flush| matches!(flush, Flush::Ports(ports) if ports.len() == 1);
        assert_eq!(done.iter().take_while(|flush| each(flush)).count() as u32, IN_A_ROW);
        let all = Flush::Ports([1, 2, 3].map(OfPort).into());
        assert_eq!(done[IN_A_ROW as usize..], vec![all; 4]);
        // What was asked for last is done, too.
        assert_eq!(flushes.next(), Some(start + Duration::from_secs(5)));
        flushes.ask(Flush::All);
        assert_eq!(flushes.take(start + Duration::from_secs(5)), Some(Flush::All));
        assert_eq!((flushes.next(), flushes.take(start + Duration::from_secs(9))), (None, None));
        // After a pause, some follow at once again.
        for _ in 0..IN_A_ROW {
            flushes.ask(Flush::All);
            assert_eq!(flushes.take(start + Duration::from_secs(30)), Some(Flush::All));
        }
        flushes.ask(Flush::All);
        assert_eq!(flushes.take(start + Duration::from_secs(30)), None);
    }
}
