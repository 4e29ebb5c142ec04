//! From frame to flow key.

/// Where the headers of a frame are. Offsets count from the first byte of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// First MPLS label stack entry, or [`Layers::NONE`].
    pub l2_5: u16,
    /// First byte of the L3 header (IPv4, IPv6, ARP, ...), or [`Layers::NONE`].
    pub l3: u16,
    /// First byte of the L4 header, or [`Layers::NONE`] (later fragments have none).
    pub l4: u16,
    /// VLAN tags that were parsed into the key.
    pub vlans: u8,
}

impl Layers {
    /// The header is absent or not whole.
    pub const NONE: u16 = u16::MAX;
}
