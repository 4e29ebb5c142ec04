//! Why a transmit queue does not take a packet: one reason and one counter each.
//!
//! Queues count in [`TxCounters`](crate::stats::TxCounters), from which `tx_dropped` and `tx_errors` are made: a packet
//! that is not sent cannot be counted without its reason. Ports show the reasons that have occurred among their own
//! statistics ([`Port::custom_stats`](crate::Port::custom_stats)), by the name that OVS has where it has one.

use crate::offload::OffloadError;

macro_rules! reasons {
    ($($variant:ident $kind:ident $name:literal $doc:literal;)*) => {
        /// A reason for which a transmit queue does not take a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum TxDrop { $(#[doc = $doc] $variant,)* }

        impl TxDrop {
            /// Every reason, in order.
            pub const ALL: &'static [TxDrop] = &[$(TxDrop::$variant,)*];

            /// Name in a port's statistics.
            pub const fn name(self) -> &'static str {
                match self { $(TxDrop::$variant => $name,)* }
            }

            /// What it means, in words.
            pub const fn describe(self) -> &'static str {
                match self { $(TxDrop::$variant => $doc,)* }
            }

            /// Whether it counts in `tx_errors`, and not in `tx_dropped`: something is wrong with the packet or with the
            /// system, and more room or another configuration would not help.
            pub const fn is_error(self) -> bool {
                match self { $(TxDrop::$variant => reasons!(@$kind),)* }
            }
        }
    };
    (@drop) => { false };
    (@error) => { true };
}

reasons! {
    QueueFull    drop  "ovs_tx_failure_drops"      "The ring, the socket's buffer or the device's queue is full.";
    TooLong      drop  "ovs_tx_mtu_exceeded_drops" "Longer than the port's MTU, or than its buffers, and not to be segmented.";
    TooShort     drop  "tx_too_short_drops"        "Shorter than an Ethernet header.";
    Down         drop  "tx_down_drops"             "The port or its interface is down, or has gone.";
    NotConnected drop  "tx_not_connected_drops"    "Nothing is at the other end: no guest or none of its queues, no route, no file.";
    NoBuffer     drop  "tx_no_buffer_drops"        "No buffer for a copy, or for a segment.";
    Malformed    error "ovs_tx_invalid_hwol_drops" "It is to be completed or cut into segments, and has no whole headers for that.";
    Refused      error "tx_system_errors"          "The kernel refused it for another reason.";
}

impl TxDrop {
    /// Why a frame of this length is not sent, that [does not fit](crate::virtual_port::fits).
    #[cold]
    pub(crate) fn of_length(frame: &[u8]) -> TxDrop {
        if frame.len() < 14 { TxDrop::TooShort } else { TxDrop::TooLong }
    }
}

impl From<OffloadError> for TxDrop {
    fn from(error: OffloadError) -> TxDrop {
        match error {
            OffloadError::NoBuffer => TxDrop::NoBuffer,
            OffloadError::Checksum { .. } | OffloadError::Segmentation(_) => TxDrop::Malformed,
        }
    }
}

/// Packets that transmit queues did not take, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxDrops(pub [u64; TxDrop::ALL.len()]);

impl TxDrops {
    /// Packets not taken for one reason.
    pub fn get(&self, reason: TxDrop) -> u64 {
        self.0[reason as usize]
    }

    /// Packets not taken for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that count in `tx_errors`.
    pub fn errors(&self) -> u64 {
        self.iter().filter(|(reason, _)| reason.is_error()).map(|(_, n)| n).sum()
    }

    /// The reasons that have occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (TxDrop, u64)> + '_ {
        TxDrop::ALL.iter().map(|&reason| (reason, self.get(reason))).filter(|&(_, n)| n != 0)
    }

    /// As a port's own statistics.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        self.iter().map(|(reason, n)| (reason.name(), n)).collect()
    }
}

impl std::ops::AddAssign for TxDrops {
    fn add_assign(&mut self, other: TxDrops) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, n)| *sum += n);
    }
}
