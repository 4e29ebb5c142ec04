//! The flow key: layout ([`block`]), fields ([`field`]), key and mask ([`key`]), text of values ([`text`]).

pub mod block;
pub mod extract;
pub mod field;
pub mod key;
pub mod text;

pub use block::{BLOCK_SIZE, BLOCKS, Block, BlockId};
pub use field::{Field, FieldInfo};
pub use key::{Blocks, Key, Mask};

/// Bits of `nw_frag` (ovs-fields(7), ip_frag).
pub mod frag {
    /// The packet is a fragment.
    pub const ANY: u8 = 1;
    /// The packet is a fragment other than the first.
    pub const LATER: u8 = 2;
}

/// Bits of `tun_flags`.
pub mod tun_flags {
    /// OAM packet; the only bit that OpenFlow can match.
    pub const OAM: u16 = 1;
    /// Do not fragment the outer packet.
    pub const DF: u16 = 1 << 1;
    /// Compute the outer UDP checksum.
    pub const CSUM: u16 = 1 << 2;
    /// The tunnel has a key.
    pub const KEY: u16 = 1 << 3;
}

/// `vlan_tci` bit that is set for every tag that is present.
pub const VLAN_PRESENT: u16 = 0x1000;

/// dl_type of an 802.3 frame without an Ethernet type (ovs-fields(7), eth_type).
pub const DL_TYPE_NONE: u16 = 0x05ff;
