//! Identifiers of bridges and ports, and how they are compared (IEEE 802.1D-2004 sections 9.2.5, 9.2.7 and 17.6).

use std::fmt;

use crate::ethernet::Mac;

/// A bridge: 16 bits of priority, then its address. The lowest one becomes the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BridgeId(pub u64);

impl BridgeId {
    /// The identifier of a bridge with this priority and address.
    pub fn new(priority: u16, mac: Mac) -> BridgeId {
        let [a, b, c, d, e, f] = mac;
        let [high, low] = priority.to_be_bytes();
        BridgeId(u64::from_be_bytes([high, low, a, b, c, d, e, f]))
    }

    /// The priority; in RSTP the upper 4 bits of it, with 12 bits of system identifier extension.
    pub fn priority(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The address.
    pub fn mac(self) -> Mac {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        mac
    }
}

/// As in the column `status` of STP: `8000.0123456789ab`.
impl fmt::Display for BridgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}.{:012x}", self.priority(), self.0 & 0xffff_ffff_ffff)
    }
}

impl fmt::Debug for BridgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port of a bridge: priority, then number. STP has 8 bits for each, RSTP 4 and 12.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PortId(pub u16);

/// As in the columns: four hexadecimal digits.
impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}", self.0)
    }
}

impl fmt::Debug for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A priority vector (section 17.5): the lowest one is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Priority {
    /// The root.
    pub root: BridgeId,
    /// Cost of the path to the root.
    pub cost: u32,
    /// The bridge that says so.
    pub bridge: BridgeId,
    /// Its port.
    pub port: PortId,
}

impl Priority {
    /// Whether this, received in a BPDU, supersedes `known` of the port (section 17.6): it is better, or from the same port.
    pub fn supersedes(&self, known: &Priority) -> bool {
        // Number and address make a port the same; their priorities may have changed.
        let sender = |v: &Priority| (v.bridge.mac(), v.port.0 & 0x0fff);
        self < known || (sender(self) == sender(known) && self != known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_the_columns() {
        let id = BridgeId::new(0x8000, [0, 0x12, 3, 4, 5, 0xab]);
        assert_eq!(id.to_string(), "8000.0012030405ab");
        assert_eq!(id.mac(), [0, 0x12, 3, 4, 5, 0xab]);
        assert_eq!((id.priority(), PortId(0x8001).to_string().as_str()), (0x8000, "8001"));
    }

    #[test]
    fn priority_comes_before_address_and_cost_after_the_root() {
        let of = |root, cost, bridge, port| Priority {
            root: BridgeId(root),
            cost,
            bridge: BridgeId(bridge),
            port: PortId(port),
        };
        assert!(BridgeId::new(1, [0xff; 6]) < BridgeId::new(2, [0; 6]));
        assert!(of(1, 9, 9, 9) < of(2, 0, 0, 0));
        assert!(of(1, 1, 9, 9) < of(1, 2, 0, 0));
        assert!(of(1, 9, 2, 3).supersedes(&of(1, 5, 2, 3)), "the same port has a longer path now");
        assert!(of(1, 9, 2, 0x7003).supersedes(&of(1, 5, 2, 0x8003)));
        assert!(!of(1, 9, 3, 3).supersedes(&of(1, 5, 2, 3)));
        assert!(!of(1, 5, 2, 3).supersedes(&of(1, 5, 2, 3)));
    }
}
