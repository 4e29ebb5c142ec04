//! Why packets are not tracked, and why connections are not made.
//!
//! Established packets count nothing here. What counts is shared by all workers, since it is rare or costs much more
//! than a counter.

use std::sync::atomic::{AtomicU64, Ordering};

use ::conntrack::headers::Malformed;
use ::conntrack::protocol::Invalid;
use ::conntrack::table::Refused;

macro_rules! counters {
    ($($variant:ident $name:literal $doc:literal;)*) => {
        /// A counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Counter { $(#[doc = $doc] $variant,)* }

        impl Counter {
            /// Every counter.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant,)*];

            /// Name in statistics: Open vSwitch's, where it has one.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }

            /// What it means, in words.
            pub const fn describe(self) -> &'static str {
                match self { $(Counter::$variant => $doc,)* }
            }
        }
    };
}

counters! {
    NoIp "conntrack_no_ip" "Packets without a whole IP header.";
    NoTransport "conntrack_no_transport" "Packets whose transport header is not whole.";
    NoTuple "conntrack_no_tuple" "Packets whose ports or ICMP type belong to no connection.";
    IpChecksum "conntrack_l3csum_err" "Packets with a wrong checksum of IPv4.";
    Checksum "conntrack_l4csum_err" "Packets with a wrong checksum of the transport protocol.";
    Quote "conntrack_bad_quote" "ICMP errors that quote no packet that their receiver could have sent.";
    TcpFlags "conntrack_tcp_flags" "TCP segments whose flags cannot be together.";
    TcpWindow "conntrack_tcp_seq_chk_failed" "TCP segments outside of the windows.";
    NotFirst "conntrack_not_first" "Packets that belong to no connection, and with which none can begin.";
    NoConnection "conntrack_error_without_connection" "ICMP errors that belong to no connection.";
    Full "conntrack_full" "Connections that were not made since there are as many as there may be.";
    ZoneFull "conntrack_zone_full" "Connections that were not made since their zone has as many as it may have.";
    NoTranslation "conntrack_nat_exhausted" "Connections that were not made since no translated address and port was free.";
    Announcement "conntrack_alg_malformed" "Segments of control connections with a malformed announcement.";
    FragmentIpChecksum "ipf_l3csum_err" "Fragments with a wrong checksum of IPv4.";
    FragmentMalformed "ipf_malformed" "Fragments beyond the end of their datagram, or not a multiple of 8 bytes long.";
    FragmentTooSmall "ipf_too_small" "Fragments that are not the last and shorter than allowed.";
    FragmentTooMany "ipf_too_many" "Fragments that were not held since as many are held as may be.";
    FragmentDuplicate "ipf_duplicate" "Fragments that came before.";
    FragmentOff "ipf_disabled" "Fragments of a version of IP that is not reassembled.";
    FragmentNoMemory "ipf_no_memory" "Fragments that were not held since there was no memory for them.";
    NoBuffer "conntrack_no_buffer" "Segments of control connections that could not become longer.";
}

/// The values of all counters.
pub struct Counters([AtomicU64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Counters {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    /// Counts one.
    #[cold]
    pub fn count(&self, counter: Counter) {
        self.0[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The value of a counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

impl From<Malformed> for Counter {
    fn from(why: Malformed) -> Counter {
        match why {
            Malformed::NoIp | Malformed::Fragment => Counter::NoIp,
            Malformed::NoTransport => Counter::NoTransport,
            Malformed::NoTuple => Counter::NoTuple,
            Malformed::IpChecksum => Counter::IpChecksum,
            Malformed::Checksum => Counter::Checksum,
            Malformed::Quote => Counter::Quote,
        }
    }
}

impl From<Invalid> for Counter {
    fn from(why: Invalid) -> Counter {
        match why {
            Invalid::TcpFlags => Counter::TcpFlags,
            Invalid::TcpWindow => Counter::TcpWindow,
            Invalid::NotFirst => Counter::NotFirst,
            Invalid::NoConnection => Counter::NoConnection,
        }
    }
}

impl From<Refused> for Counter {
    fn from(why: Refused) -> Counter {
        match why {
            // The packet belongs to the connection that is there, so this is none of a packet.
            Refused::Exists(_) | Refused::ReplyTaken => Counter::NoTranslation,
            Refused::Full => Counter::Full,
            Refused::ZoneFull => Counter::ZoneFull,
        }
    }
}
