//! The flow key: what is known of a packet, and what flows look at.
//!
//! | module | what it is |
//! |---|---|
//! | [`block`] | How the key lies in memory |
//! | [`compose`] | A frame that has a given key |
//! | [`mod@extract`] | From frame to key |
//! | [`field`] | The table of all fields that can be matched |
//! | [`hash`] | Hashes of keys |
//! | [`key`] | Key and mask |
//! | [`outline`] | Where the headers of unusual IP packets are |
//! | [`prereq`] | Which fields a field needs beside it |
//! | [`reference`] | A second extractor, to test the first by |
//! | [`template`] | Frames whose key can be compared without extracting it |
//! | [`text`] | Fields and values as text |

pub mod block;
pub mod compose;
pub mod extract;
pub mod field;
pub mod hash;
pub mod key;
pub mod outline;
pub mod prereq;
pub mod reference;
pub mod template;
pub mod text;

pub use block::{BLOCK_SIZE, BLOCKS, Block, BlockId};
pub use compose::compose;
pub use extract::{Layers, VlanLimit, extract, simple_mark};
pub use field::{Field, FieldInfo};
pub use hash::Hasher;
pub use key::{Blocks, Key, Mask};
pub use template::{Template, Window};

/// Bits of `nw_frag` (ovs-fields(7), ip_frag).
pub mod frag {
    /// The packet is a fragment.
    pub const ANY: u8 = 1;
    /// The packet is a fragment other than the first.
    pub const LATER: u8 = 2;
}

/// Bits of `ipv6_exthdr` (OpenFlow 1.3 section 7.2.3.8).
pub mod exthdr {
    /// "No next header".
    pub const NO_NEXT: u16 = 1;
    /// Encapsulated security payload.
    pub const ESP: u16 = 1 << 1;
    /// Authentication header.
    pub const AUTH: u16 = 1 << 2;
    /// One or two destination options headers.
    pub const DEST: u16 = 1 << 3;
    /// Fragment header.
    pub const FRAG: u16 = 1 << 4;
    /// Routing header.
    pub const ROUTER: u16 = 1 << 5;
    /// Hop-by-hop options.
    pub const HOP: u16 = 1 << 6;
    /// A header came more often than it may.
    pub const UNREP: u16 = 1 << 7;
    /// The headers were not in the order of RFC 8200.
    pub const UNSEQ: u16 = 1 << 8;
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
    /// The tunnel carried a packet without Ethernet. Only between datapath and translation.
    pub const BARE: u16 = 1 << 15;
}

/// `vlan_tci` bit that is set for every tag that is present.
pub const VLAN_PRESENT: u16 = 0x1000;

/// dl_type of an 802.3 frame without an Ethernet type (ovs-fields(7), eth_type).
pub const DL_TYPE_NONE: u16 = 0x05ff;

/// The type of a packet without Ethernet that begins with a header of this Ethernet type: namespace 1 of OpenFlow
/// (1.5 section 7.2.3.11).
pub const fn packet_type(ethertype: u16) -> u32 {
    1 << 16 | ethertype as u32
}
