//! Timeouts by state, with the names of the database's CT_Timeout_Policy and the defaults of Open vSwitch's userspace
//! datapath.

use packet::wire::ip_proto;

/// What state of a connection a timeout is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Timeout {
    /// TCP: a SYN was seen.
    TcpSynSent,
    /// TCP: the other end has answered, the connection is not established.
    TcpSynRecv,
    /// TCP: established.
    TcpEstablished,
    /// TCP: one end has closed.
    TcpFinWait,
    /// TCP: both ends have closed.
    TcpTimeWait,
    /// TCP: closed and acknowledged, or reset.
    TcpClose,
    /// UDP and other protocols: one packet was seen.
    UdpFirst,
    /// UDP and other protocols: several packets, all from one end.
    UdpSingle,
    /// UDP and other protocols: packets from both ends.
    UdpMultiple,
    /// ICMP: no answer was seen.
    IcmpFirst,
    /// ICMP: an answer was seen.
    IcmpReply,
}

/// A name of CT_Timeout_Policy, what it sets, and its default in seconds. A name without a timeout is known to the
/// schema, and means nothing to a userspace datapath.
pub const NAMES: [(&str, Option<Timeout>, u32); 15] = [
    ("tcp_syn_sent", Some(Timeout::TcpSynSent), 30),
    ("tcp_syn_recv", Some(Timeout::TcpSynRecv), 30),
    ("tcp_established", Some(Timeout::TcpEstablished), 24 * 60 * 60),
    ("tcp_fin_wait", Some(Timeout::TcpFinWait), 15 * 60),
    ("tcp_time_wait", Some(Timeout::TcpTimeWait), 45),
    ("tcp_close", Some(Timeout::TcpClose), 30),
    ("udp_first", Some(Timeout::UdpFirst), 60),
    ("udp_single", Some(Timeout::UdpSingle), 60),
    ("udp_multiple", Some(Timeout::UdpMultiple), 30),
    ("icmp_first", Some(Timeout::IcmpFirst), 60),
    ("icmp_reply", Some(Timeout::IcmpReply), 30),
    ("tcp_close_wait", None, 0),
    ("tcp_last_ack", None, 0),
    ("tcp_retransmit", None, 0),
    ("tcp_unack", None, 0),
];

/// Whether connections of a protocol follow a policy. As in Open vSwitch, those of others have the default timeouts.
pub fn has_policy(proto: u8) -> bool {
    matches!(proto, ip_proto::TCP | ip_proto::UDP | ip_proto::ICMP | ip_proto::ICMPV6)
}

/// How many timeouts there are.
pub const TIMEOUTS: usize = Timeout::IcmpReply as usize + 1;

/// All timeouts, by number.
pub const ALL: [Timeout; TIMEOUTS] = [
    Timeout::TcpSynSent,
    Timeout::TcpSynRecv,
    Timeout::TcpEstablished,
    Timeout::TcpFinWait,
    Timeout::TcpTimeWait,
    Timeout::TcpClose,
    Timeout::UdpFirst,
    Timeout::UdpSingle,
    Timeout::UdpMultiple,
    Timeout::IcmpFirst,
    Timeout::IcmpReply,
];

/// A timeout policy: seconds for each state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timeouts([u32; TIMEOUTS]);

impl Timeouts {
    /// Seconds of a state.
    pub fn get(&self, timeout: Timeout) -> u32 {
        self.0[timeout as usize]
    }

    /// Sets the seconds of a state.
    pub fn set(&mut self, timeout: Timeout, seconds: u32) {
        self.0[timeout as usize] = seconds;
    }

    /// Sets a timeout by its name in CT_Timeout_Policy; whether there is such a name.
    pub fn set_named(&mut self, name: &str, seconds: u32) -> bool {
        let Some((_, timeout, _)) = NAMES.iter().find(|(known, ..)| *known == name) else { return false };
        if let Some(timeout) = timeout {
            self.set(*timeout, seconds);
        }
        true
    }
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let mut timeouts = Timeouts([0; TIMEOUTS]);
        NAMES.iter().for_each(|(_, timeout, seconds)| {
            if let Some(timeout) = timeout {
                timeouts.set(*timeout, *seconds);
            }
        });
        timeouts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_defaults() {
        let mut timeouts = Timeouts::default();
        assert_eq!((timeouts.get(Timeout::TcpEstablished), timeouts.get(Timeout::UdpMultiple)), (86400, 30));
        assert!(timeouts.set_named("icmp_reply", 7) && timeouts.set_named("tcp_unack", 9));
        assert!(!timeouts.set_named("sctp_closed", 7));
        assert_eq!(timeouts.get(Timeout::IcmpReply), 7);
        assert_eq!(NAMES.iter().filter(|(_, timeout, _)| timeout.is_some()).count(), TIMEOUTS);
    }
}
