//! Memory layout of the flow key: 64-byte blocks, one per cache line.
//!
//! Every multi-byte member is in network byte order, so that a header is copied in and a masked
//! comparison needs no conversion. The order of members inside [`Common`] follows the frame: what is
//! contiguous in an Ethernet/IPv4/UDP frame is contiguous here, so that extraction moves words.
//!
//! Block 0 is all that plain IPv4 and L2 traffic touches. The other blocks are present only for
//! packets that need them; an absent block counts as all zero and is neither cleared, hashed nor
//! compared.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes in a block: one cache line.
pub const BLOCK_SIZE: usize = 64;

/// Number of blocks in a [`Key`](super::Key).
pub const BLOCKS: usize = 11;

/// Names of the blocks, in their order in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BlockId {
    /// [`Common`]: L2, IPv4/ARP, ports, in_port. Present in every key.
    Common = 0,
    /// [`L3`]: IPv6 addresses, neighbour discovery, ARP hardware addresses.
    L3 = 1,
    /// [`Encap`]: MPLS, NSH, PBB, rarely matched header fields.
    Encap = 2,
    /// [`Ct`]: connection tracking state and original-direction tuple.
    Ct = 3,
    /// [`Tunnel`]: outer header of a tunnelled packet.
    Tunnel = 4,
    /// [`Pipeline`]: OpenFlow metadata.
    Pipeline = 5,
    /// [`Regs`]: reg0-reg15.
    Regs = 6,
    /// First of the four blocks of tunnel metadata (Geneve options).
    TunMeta0 = 7,
    /// Second block of tunnel metadata.
    TunMeta1 = 8,
    /// Third block of tunnel metadata.
    TunMeta2 = 9,
    /// Fourth block of tunnel metadata.
    TunMeta3 = 10,
}

/// All blocks, in order.
pub const ALL_BLOCKS: [BlockId; BLOCKS] = [
    BlockId::Common,
    BlockId::L3,
    BlockId::Encap,
    BlockId::Ct,
    BlockId::Tunnel,
    BlockId::Pipeline,
    BlockId::Regs,
    BlockId::TunMeta0,
    BlockId::TunMeta1,
    BlockId::TunMeta2,
    BlockId::TunMeta3,
];

/// One 64-byte block as raw bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Block(pub [u8; BLOCK_SIZE]);

impl Block {
    /// The all-zero block.
    pub const ZERO: Block = Block([0; BLOCK_SIZE]);

    /// The block as eight native-endian words, for masking and hashing.
    #[inline(always)]
    pub fn words(&self) -> &[u64; 8] {
        zerocopy::transmute_ref!(self)
    }

    /// The block as eight native-endian words.
    #[inline(always)]
    pub fn words_mut(&mut self) -> &mut [u64; 8] {
        zerocopy::transmute_mut!(self)
    }

    /// Whether every byte is zero.
    #[inline]
    pub fn is_zero(&self) -> bool {
        self.words().iter().all(|&w| w == 0)
    }
}

macro_rules! block {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C, align(64))]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == BLOCK_SIZE);
    };
}

/// An 802.1Q or 802.1ad tag as the key holds it. `tpid` is zero where there is no tag; the CFI bit
/// (0x1000) of `tci` is set for every tag that is present, whatever the frame said (ovs-fields(7)).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Vlan {
    /// Tag protocol identifier: 0x8100 or 0x88a8.
    pub tpid: U16,
    /// Priority (3 bits), present bit, VLAN id (12 bits).
    pub tci: U16,
}

block! {
    /// Block 0.
    Common {
        /// Ethernet destination.
        dl_dst: [u8; 6],
        /// Ethernet source.
        dl_src: [u8; 6],
        /// Innermost Ethernet type, after the VLAN tags that are parsed; 0x05ff for 802.3 without SNAP.
        dl_type: U16,
        /// Fragment bits, see [`super::frag`].
        nw_frag: u8,
        /// IP protocol, or the low byte of the ARP opcode.
        nw_proto: u8,
        /// IPv4 TOS or IPv6 traffic class: DSCP and ECN.
        nw_tos: u8,
        /// IPv4 TTL or IPv6 hop limit.
        nw_ttl: u8,
        /// TCP flags, 12 bits.
        tcp_flags: U16,
        /// IPv4 source or ARP sender protocol address.
        nw_src: U32,
        /// IPv4 destination or ARP target protocol address.
        nw_dst: U32,
        /// TCP, UDP or SCTP source port, or ICMP type.
        tp_src: U16,
        /// TCP, UDP or SCTP destination port, or ICMP code.
        tp_dst: U16,
        /// Outer and inner VLAN tags.
        vlan: [Vlan; 2],
        /// Input port. In the datapath a datapath port number; in the OpenFlow tables an OpenFlow port.
        in_port: U32,
        /// Recirculation id; zero for a packet that came from a port.
        recirc_id: U32,
        /// Packet type: namespace in the high 16 bits; zero is Ethernet.
        packet_type: U32,
        /// Hash computed by the hash action.
        dp_hash: U32,
        /// Packet mark.
        pkt_mark: U32,
        /// QoS class or queue.
        skb_priority: U32,
    }
}

block! {
    /// Block 1.
    L3 {
        /// IPv6 source.
        ipv6_src: [u8; 16],
        /// IPv6 destination.
        ipv6_dst: [u8; 16],
        /// Neighbour discovery target.
        nd_target: [u8; 16],
        /// Flow label in the low 20 bits.
        ipv6_label: U32,
        /// ARP sender hardware address, or ND source link-layer address.
        arp_sha: [u8; 6],
        /// ARP target hardware address, or ND target link-layer address.
        arp_tha: [u8; 6],
    }
}

block! {
    /// Block 2.
    Encap {
        /// MPLS label stack entries, outermost first; an absent one is zero.
        mpls_lse: [U32; 3],
        /// NSH flags.
        nsh_flags: u8,
        /// NSH time to live.
        nsh_ttl: u8,
        /// NSH metadata type.
        nsh_mdtype: u8,
        /// NSH next protocol.
        nsh_np: u8,
        /// NSH service path identifier (24 bits) and service index (8 bits).
        nsh_path: U32,
        /// NSH context headers of metadata type 1.
        nsh_c: [U32; 4],
        /// ND reserved field.
        nd_reserved: U32,
        /// Provider backbone bridge service instance in the low 24 bits.
        pbb_isid: U32,
        /// IPv6 extension header pseudo-field, OpenFlow 1.3 section 7.2.3.8 (9 bits).
        ipv6_exthdr: U16,
        /// ND option type.
        nd_options_type: u8,
        /// Provider backbone bridge UCA bit.
        pbb_uca: u8,
        /// UDP source port of a tunnel. Packets do not have it: it is for flows that are matched by it, which match none.
        tun_tp_src: U16,
        /// UDP destination port of a tunnel, likewise.
        tun_tp_dst: U16,
        /// Always zero.
        reserved: [u8; 12],
    }
}

block! {
    /// Block 3.
    Ct {
        /// Connection state bits, see ovs-fields(7).
        ct_state: U32,
        /// Connection zone.
        ct_zone: U16,
        /// Protocol of the original direction tuple.
        ct_nw_proto: u8,
        /// Always zero.
        reserved: u8,
        /// Connection mark.
        ct_mark: U32,
        /// Source port of the original direction tuple.
        ct_tp_src: U16,
        /// Destination port of the original direction tuple.
        ct_tp_dst: U16,
        /// Connection label.
        ct_label: [u8; 16],
        /// IPv6 source of the original direction tuple; an IPv4 source is in the first four bytes.
        ct_src: [u8; 16],
        /// IPv6 destination of the original direction tuple; an IPv4 one is in the first four bytes.
        ct_dst: [u8; 16],
    }
}

block! {
    /// Block 4.
    Tunnel {
        /// Tunnel key (VNI, GRE key).
        tun_id: U64,
        /// Outer IPv4 source; zero for IPv6.
        tun_src: U32,
        /// Outer IPv4 destination; zero for IPv6.
        tun_dst: U32,
        /// Outer IPv6 source; zero for IPv4.
        tun_ipv6_src: [u8; 16],
        /// Outer IPv6 destination; zero for IPv4.
        tun_ipv6_dst: [u8; 16],
        /// Tunnel flags, see [`super::tun_flags`].
        tun_flags: U16,
        /// Outer TOS.
        tun_tos: u8,
        /// Outer TTL.
        tun_ttl: u8,
        /// VXLAN group based policy id.
        tun_gbp_id: U16,
        /// VXLAN group based policy flags.
        tun_gbp_flags: u8,
        /// ERSPAN version.
        tun_erspan_ver: u8,
        /// ERSPAN index in the low 20 bits.
        tun_erspan_idx: U32,
        /// ERSPAN direction.
        tun_erspan_dir: u8,
        /// ERSPAN hardware id.
        tun_erspan_hwid: u8,
        /// GTP-U flags.
        tun_gtpu_flags: u8,
        /// GTP-U message type.
        tun_gtpu_msgtype: u8,
    }
}

block! {
    /// Block 5.
    Pipeline {
        /// OpenFlow metadata.
        metadata: U64,
        /// Port of the output action in the action set, or [`u32::MAX`] for none.
        actset_output: U32,
        /// Conjunction id.
        conj_id: U32,
        /// Which of tun_metadata0 to tun_metadata63 the packet has, one bit for each, in the OpenFlow tables. Their values are in the blocks
        /// of tunnel metadata.
        tun_metadata_present: U64,
        /// Always zero.
        reserved: [u8; 40],
    }
}

block! {
    /// Block 6.
    Regs {
        /// reg0-reg15.
        reg: [U32; 16],
    }
}
