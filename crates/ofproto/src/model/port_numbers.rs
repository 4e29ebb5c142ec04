//! Numbers of ports. That of a removed port is not given to another one soon: flows and controllers may still know the old one.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use openflow::OfPort;
use packet::Time;

/// How long a number rests, where there are others.
const REST: Duration = Duration::from_secs(60 * 60);

/// Numbers from here on are for those who ask for them, until the others are used up (as in OVS).
const FIRST_REQUESTED: u32 = 0x8000;

/// The numbers that ports have had.
#[derive(Default)]
pub(crate) struct PortNumbers {
    /// The number that was given last.
    last: u32,
    /// Those that rest, and since when. There are no more of them than numbers.
    freed: HashMap<OfPort, Time>,
    /// Those of ports that are being added.
    reserved: HashSet<OfPort>,
}

impl PortNumbers {
    /// A number for a port that is being added: the one that it requests, if that is free, or else the next one. It stays
    /// reserved until the port has [entered](PortNumbers::entered) the bridge or has failed to.
    pub fn reserve(
        &mut self,
        requested: Option<OfPort>,
        has_port: impl Fn(OfPort) -> bool,
        now: Time,
    ) -> Option<OfPort> {
        let port = match requested.filter(|port| !has_port(*port) && !self.reserved.contains(port)) {
            Some(requested) => {
                self.freed.remove(&requested);
                requested
            }
            None => self.allocate(has_port, now)?,
        };
        self.reserved.insert(port);
        Some(port)
    }

    /// Says that the bridge itself knows now whether there is a port with this number.
    pub fn entered(&mut self, port: OfPort) {
        self.reserved.remove(&port);
    }

    /// The next number that is not taken and does not rest, or else the one that has rested longest. `None` when all are
    /// taken.
    fn allocate(&mut self, has_port: impl Fn(OfPort) -> bool, now: Time) -> Option<OfPort> {
        let taken = |port: OfPort| has_port(port) || self.reserved.contains(&port);
        let next = (self.last + 1..FIRST_REQUESTED).chain(1..=self.last).map(OfPort);
        let mut rested: Option<(Time, OfPort)> = None;
        let mut found = None;
        for port in next.filter(|&port| !taken(port)) {
            match self.freed.get(&port) {
                Some(&since) if now.since(since) <= REST => {
                    rested = rested.into_iter().chain([(since, port)]).min_by_key(|(since, _)| *since);
                }
                _ => {
                    found = Some(port);
                    break;
                }
            }
        }
        let high = || (FIRST_REQUESTED..OfPort::MAX).map(OfPort).find(|&port| !taken(port));
        let port = found.or(rested.map(|(_, port)| port)).or_else(high)?;
        if port.0 < FIRST_REQUESTED {
            self.last = port.0;
        }
        self.freed.remove(&port);
        Some(port)
    }

    /// Says that the port with this number has been removed.
    pub fn free(&mut self, port: OfPort, now: Time) {
        if !port.is_reserved() {
            self.freed.insert(port, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Time {
        Time(minutes * 60_000_000_000)
    }

    #[test]
    fn the_number_of_a_removed_port_rests() {
        let mut numbers = PortNumbers::default();
        assert_eq!(numbers.allocate(|_| false, at(0)), Some(OfPort(1)));
        numbers.free(OfPort(1), at(0));
        assert_eq!(numbers.allocate(|port| port == OfPort(2), at(1)), Some(OfPort(3)), "one is taken, one rests");
        numbers.last = FIRST_REQUESTED - 2;
        assert_eq!(numbers.allocate(|_| false, at(59)), Some(OfPort(FIRST_REQUESTED - 1)));
        assert_eq!(numbers.allocate(|_| false, at(60)), Some(OfPort(2)), "it is the first one's turn, but it rests");
        numbers.last = FIRST_REQUESTED - 1;
        assert_eq!(numbers.allocate(|_| false, at(61)), Some(OfPort(1)));
    }

    #[test]
    fn when_all_are_used_up_the_longest_rested_comes_first() {
        let mut numbers = PortNumbers::default();
        numbers.free(OfPort(7), at(2));
        numbers.free(OfPort(9), at(1));
        let taken = |port: OfPort| port.0 < FIRST_REQUESTED && ![7, 9].contains(&port.0);
        assert_eq!(numbers.allocate(taken, at(3)), Some(OfPort(9)));
        assert_eq!(numbers.allocate(|port| taken(port) || port.0 == 9, at(3)), Some(OfPort(7)));
        assert_eq!(numbers.allocate(|port| port.0 < FIRST_REQUESTED, at(3)), Some(OfPort(FIRST_REQUESTED)));
        assert_eq!(numbers.allocate(|_| true, at(3)), None);
        numbers.free(OfPort(7), at(3));
        assert_eq!(numbers.reserve(Some(OfPort(7)), |_| false, at(3)), Some(OfPort(7)));
        assert!(numbers.freed.is_empty(), "who asks for one has it at once");
    }

    #[test]
    fn a_number_is_reserved_until_its_port_is_there() {
        let mut numbers = PortNumbers::default();
        let nobody = |_: OfPort| false;
        assert_eq!(numbers.reserve(None, nobody, at(0)), Some(OfPort(1)));
        assert_eq!(numbers.reserve(Some(OfPort(2)), nobody, at(0)), Some(OfPort(2)));
        assert_eq!(numbers.reserve(Some(OfPort(2)), nobody, at(0)), Some(OfPort(3)), "it is given to another");
        numbers.last = 0;
        assert_eq!(numbers.reserve(None, nobody, at(0)), Some(OfPort(4)), "so are those before");
        numbers.entered(OfPort(2));
        assert_eq!(numbers.reserve(Some(OfPort(2)), |port| port == OfPort(2), at(0)), Some(OfPort(5)), "it is there");
        assert_eq!(numbers.reserve(Some(OfPort(2)), nobody, at(0)), Some(OfPort(2)), "it has failed to come");
    }
}
