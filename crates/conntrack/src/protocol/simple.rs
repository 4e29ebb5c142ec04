//! Protocols whose packets are told apart by direction only: UDP, SCTP, ICMP, ICMPv6 and all others but TCP.
//!
//! Open vSwitch's userspace tracker keeps SCTP as it keeps UDP.

use super::Update;
use crate::timeout::Timeout;

/// What has been seen of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Seen {
    /// One packet.
    First,
    /// Several packets, all from one end.
    Multiple,
    /// Packets from both ends.
    Both,
}

impl Seen {
    /// The state that a number stands for in a connection's memory.
    pub(crate) fn from_bits(bits: u8) -> Seen {
        match bits & 3 {
            0 => Seen::First,
            1 => Seen::Multiple,
            _ => Seen::Both,
        }
    }

    /// A packet of the connection: what has been seen now, and what the packet is.
    pub fn step(self, icmp: bool, reply: bool) -> (Seen, Update) {
        let after = match (self, reply) {
            (Seen::Both, _) | (_, true) => Seen::Both,
            // An ICMP query that is repeated without an answer stays the first.
            (Seen::First, false) if icmp => Seen::First,
            (_, false) => Seen::Multiple,
        };
        let timeout = Some(after.timeout(icmp));
        (after, if after == Seen::Both { Update::Established { timeout } } else { Update::New { timeout } })
    }

    /// The timeout of this state.
    pub fn timeout(self, icmp: bool) -> Timeout {
        match (self, icmp) {
            (Seen::First, false) => Timeout::UdpFirst,
            (Seen::Multiple, false) => Timeout::UdpSingle,
            (Seen::Both, false) => Timeout::UdpMultiple,
            (Seen::First | Seen::Multiple, true) => Timeout::IcmpFirst,
            (Seen::Both, true) => Timeout::IcmpReply,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_is_new_until_answered() {
        let new = |timeout| Update::New { timeout: Some(timeout) };
        let established = Update::Established { timeout: Some(Timeout::UdpMultiple) };
        assert_eq!(Seen::First.step(false, false), (Seen::Multiple, new(Timeout::UdpSingle)));
        assert_eq!(Seen::Multiple.step(false, false), (Seen::Multiple, new(Timeout::UdpSingle)));
        assert_eq!(Seen::First.step(false, true), (Seen::Both, established));
        assert_eq!(Seen::Both.step(false, false), (Seen::Both, established));
    }

    #[test]
    fn icmp_keeps_the_first_timeout_until_answered() {
        let new = Update::New { timeout: Some(Timeout::IcmpFirst) };
        assert_eq!(Seen::First.step(true, false), (Seen::First, new));
        let established = Update::Established { timeout: Some(Timeout::IcmpReply) };
        assert_eq!(Seen::First.step(true, true), (Seen::Both, established));
        assert_eq!(Seen::Both.step(true, false), (Seen::Both, established));
    }

    #[test]
    fn numbers_come_back() {
        for seen in [Seen::First, Seen::Multiple, Seen::Both] {
            assert_eq!(Seen::from_bits(seen as u8), seen);
        }
    }
}
