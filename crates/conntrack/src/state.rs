//! The bits of ct_state (ovs-fields(7), Connection Tracking Fields).

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of the bits of ct_state, as the datapath's flow key has them (`CS_*` of Open vSwitch).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CtState(pub u8);

impl CtState {
    /// No bit: the packet has not been tracked.
    pub const NONE: CtState = CtState(0);
    /// The packet begins a connection that is not committed, or whose other end has not answered.
    pub const NEW: CtState = CtState(0x01);
    /// The packet is of a connection that has had packets in both directions.
    pub const EST: CtState = CtState(0x02);
    /// The packet is related to another connection: an ICMP error, or of a connection that a helper expected.
    pub const REL: CtState = CtState(0x04);
    /// The packet goes in the direction of replies.
    pub const RPL: CtState = CtState(0x08);
    /// The packet could not be tracked, or is not valid for its connection.
    pub const INV: CtState = CtState(0x10);
    /// The packet has been through the tracker.
    pub const TRK: CtState = CtState(0x20);
    /// The packet's source was translated.
    pub const SNAT: CtState = CtState(0x40);
    /// The packet's destination was translated.
    pub const DNAT: CtState = CtState(0x80);

    /// Bits and names, in the order of ovs-fields(7)'s text form.
    pub const NAMES: [(CtState, &str); 8] = [
        (CtState::NEW, "new"),
        (CtState::EST, "est"),
        (CtState::REL, "rel"),
        (CtState::RPL, "rpl"),
        (CtState::INV, "inv"),
        (CtState::TRK, "trk"),
        (CtState::SNAT, "snat"),
        (CtState::DNAT, "dnat"),
    ];

    /// Whether every bit of `bits` is set.
    #[inline(always)]
    pub const fn has(self, bits: CtState) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Whether some bit of `bits` is set.
    #[inline(always)]
    pub const fn any(self, bits: CtState) -> bool {
        self.0 & bits.0 != 0
    }

    /// The set without `bits`.
    #[inline(always)]
    #[must_use]
    pub const fn without(self, bits: CtState) -> CtState {
        CtState(self.0 & !bits.0)
    }

    /// The set with `bits`.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, bits: CtState) -> CtState {
        CtState(self.0 | bits.0)
    }
}

impl BitOr for CtState {
    type Output = CtState;
    fn bitor(self, other: CtState) -> CtState {
        self.with(other)
    }
}

impl BitOrAssign for CtState {
    fn bitor_assign(&mut self, other: CtState) {
        *self = self.with(other);
    }
}

/// `new|trk`, as in flow dumps; `0` for none.
impl fmt::Display for CtState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0");
        }
        let mut names = CtState::NAMES.iter().filter(|(bit, _)| self.has(*bit)).map(|(_, name)| *name);
        f.write_str(names.next().unwrap_or_default())?;
        names.try_for_each(|name| write!(f, "|{name}"))
    }
}

impl fmt::Debug for CtState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_sets() {
        let state = CtState::NEW | CtState::TRK | CtState::DNAT;
        assert_eq!(state.to_string(), "new|trk|dnat");
        assert_eq!(CtState::NONE.to_string(), "0");
        assert!(state.has(CtState::NEW | CtState::DNAT) && !state.has(CtState::NEW | CtState::INV));
        assert!(state.any(CtState::NEW | CtState::INV) && !state.any(CtState::INV));
        assert_eq!(state.without(CtState::NEW | CtState::EST), CtState::TRK | CtState::DNAT);
    }
}
