//! Every field that a flow can match: one table, from which the codec, the text form and the
//! documentation come.
//!
//! Names, prerequisites and numbers are those of ovs-fields(7) and the OpenFlow specifications. A
//! field's value is an unsigned number in [`Key::get`](super::Key::get); in the key it is stored in
//! network byte order at [`FieldInfo::offset`].

use std::mem::offset_of;

use super::block::{BLOCK_SIZE, BlockId, Common, Ct, Encap, L3, Pipeline, Regs, Tunnel};

/// How a field's mask may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maskable {
    /// Exact match or wildcard only.
    No,
    /// Any bit pattern.
    Bitwise,
}

/// The text form of a field's value (ovs-fields(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Decimal; hexadecimal is accepted.
    Decimal,
    /// Hexadecimal with 0x; decimal is accepted.
    Hex,
    /// xx:xx:xx:xx:xx:xx.
    Ethernet,
    /// Dotted quad, mask as prefix length or dotted quad.
    Ipv4,
    /// RFC 5952, mask as prefix length or address.
    Ipv6,
    /// OpenFlow port number or name.
    OfPort,
    /// no, yes, first, later, not_later.
    Frag,
    /// `+oam-...` flag names.
    TunFlags,
    /// `+syn-ack` flag names.
    TcpFlags,
    /// `+trk-new` flag names.
    CtState,
    /// (namespace,type).
    PacketType,
    /// Low 12 bits decimal; bit 12 says that a tag is present.
    VlanVid,
    /// The whole TOS byte with ECN zero, decimal.
    Tos,
}

/// What must be matched exactly before a field may be matched (OpenFlow 1.5 section 7.2.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prereq {
    /// Nothing.
    None,
    /// packet_type is Ethernet.
    Ethernet,
    /// A VLAN tag is present.
    VlanVid,
    /// dl_type 0x8847 or 0x8848.
    Mpls,
    /// dl_type 0x0800.
    Ipv4,
    /// dl_type 0x86dd.
    Ipv6,
    /// dl_type 0x0800 or 0x86dd.
    Ip,
    /// dl_type 0x0806 or 0x8035.
    Arp,
    /// Protocol 6, not a later fragment.
    Tcp,
    /// Protocol 17, not a later fragment.
    Udp,
    /// Protocol 132, not a later fragment.
    Sctp,
    /// IPv4 protocol 1, not a later fragment.
    Icmp,
    /// IPv6 protocol 58, not a later fragment.
    Icmpv6,
    /// ICMPv6 type 135 or 136, code 0.
    Nd,
    /// ICMPv6 type 135, code 0.
    NdSolicit,
    /// ICMPv6 type 136, code 0.
    NdAdvert,
    /// dl_type 0x894f, or packet_type (1,0x894f).
    Nsh,
    /// dl_type 0x88e7.
    Pbb,
    /// A tracked packet (ct_state +trk) of an IP protocol.
    Ct,
    /// As [`Prereq::Ct`], original tuple IPv4.
    CtIpv4,
    /// As [`Prereq::Ct`], original tuple IPv6.
    CtIpv6,
    /// As [`Prereq::Ct`], original tuple with ports.
    CtPorts,
}

/// An OXM or NXM type: class, field number, and the experimenter for class 0xffff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Oxm {
    /// OXM class.
    pub class: u16,
    /// Field number, 7 bits.
    pub field: u8,
    /// Experimenter id where `class` is 0xffff, else zero.
    pub experimenter: u32,
}

#[allow(non_snake_case, reason = "spelled as the name of the class in the table below")]
mod class {
    use super::Oxm;

    const fn oxm(class: u16, field: u8, experimenter: u32) -> Oxm {
        Oxm { class, field, experimenter }
    }
    /// NXM_OF_*: nicira-ext.h.
    pub const fn Of(field: u8) -> Oxm {
        oxm(0x0000, field, 0)
    }
    /// NXM_NX_*: nicira-ext.h.
    pub const fn Nx(field: u8) -> Oxm {
        oxm(0x0001, field, 0)
    }
    /// OXM_OF_*: OpenFlow.
    pub const fn Oxm(field: u8) -> Oxm {
        oxm(0x8000, field, 0)
    }
    /// OXM_OF_PKT_REG*: OpenFlow 1.5.
    pub const fn PktReg(field: u8) -> Oxm {
        oxm(0x8001, field, 0)
    }
    /// NXOXM_ET_*: Nicira experimenter.
    pub const fn NxEt(field: u8) -> Oxm {
        oxm(0xffff, field, 0x0000_2320)
    }
    /// ONFOXM_ET_*: ONF experimenter.
    pub const fn Onf(field: u8) -> Oxm {
        oxm(0xffff, field, 0x4f4e_4600)
    }
    /// NXOXM_NSH_*.
    pub const fn Nsh(field: u8) -> Oxm {
        oxm(0xffff, field, 0x005a_d650)
    }
    /// ERICOXM_OF_*: a class of its own.
    pub const fn Eric(field: u8) -> Oxm {
        oxm(0x1000, field, 0)
    }
}

impl Oxm {
    /// The number in OpenFlow 1.5, which made ONF's extensions fields of its own.
    pub const fn since_1_5(self) -> Oxm {
        let onf = class::Onf(self.field);
        if self.experimenter == onf.experimenter { class::Oxm(self.field) } else { self }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct FieldInfo {
    /// The field.
    pub field: Field,
    /// Name in ovs-fields(7).
    pub name: &'static str,
    /// Other accepted names.
    pub aliases: &'static [&'static str],
    /// First storage byte in the key.
    pub offset: u16,
    /// Storage bytes; never more than 16, never across blocks.
    pub bytes: u8,
    /// Payload bytes in OXM and NXM.
    pub wire: u8,
    /// Width in bits.
    pub bits: u8,
    /// Bits to the right of the field in its storage bytes, read as one big-endian number.
    pub shift: u8,
    /// What masks are allowed.
    pub maskable: Maskable,
    /// Text form.
    pub format: Format,
    /// Prerequisites.
    pub prereq: Prereq,
    /// Whether actions can write the field.
    pub writable: bool,
    /// NXM number.
    pub nxm: Option<Oxm>,
    /// OXM number.
    pub oxm: Option<Oxm>,
}

impl FieldInfo {
    /// The largest value: all bits one.
    pub const fn max(&self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// The block that holds the field.
    pub fn block(&self) -> BlockId {
        super::block::ALL_BLOCKS[self.offset as usize / BLOCK_SIZE]
    }
}

impl Field {
    /// The field's row in the table.
    #[inline(always)]
    pub fn info(self) -> &'static FieldInfo {
        &FIELDS[self as usize]
    }

    /// The field with this name or alias.
    pub fn from_name(name: &str) -> Option<Field> {
        FIELDS.iter().find(|f| f.name == name || f.aliases.contains(&name)).map(|f| f.field)
    }
}

const fn member_size<S, T: Copy>(_: fn(&S) -> T) -> usize {
    size_of::<T>()
}

macro_rules! fields {
    (@bytes $block:ident $member:ident -) => { member_size(|s: &$block| s.$member) };
    (@bytes $block:ident $member:ident $bytes:literal) => { $bytes };
    (@rw rw) => { true };
    (@rw ro) => { false };
    (@num -) => { None };
    (@num $class:ident $number:literal) => { Some(class::$class($number)) };
    ($($variant:ident $name:literal [$($alias:literal),*] $block:ident . $member:ident $(+ $plus:literal)?;
       $bytes:tt $wire:literal $bits:literal >> $shift:literal $mask:ident $format:ident $prereq:ident $rw:ident
       ($($nxm:tt)*) ($($oxm:tt)*);)*) => {
        /// A field of the flow key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Field {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        /// The table, in the order of [`Field`].
        pub static FIELDS: &[FieldInfo] = &[$(FieldInfo {
            field: Field::$variant,
            name: $name,
            aliases: &[$($alias),*],
            offset: (BlockId::$block as usize * BLOCK_SIZE + offset_of!($block, $member) $(+ $plus)?) as u16,
            bytes: fields!(@bytes $block $member $bytes) as u8,
            wire: $wire,
            bits: $bits,
            shift: $shift,
            maskable: Maskable::$mask,
            format: Format::$format,
            prereq: Prereq::$prereq,
            writable: fields!(@rw $rw),
            nxm: fields!(@num $($nxm)*),
            oxm: fields!(@num $($oxm)*),
        },)*];
    };
}

// variant, name, [aliases], block.member (+ byte), storage bytes ("-": the whole member), payload bytes
// in OXM, width in bits >> shift, mask, text form, prerequisite, access, (NXM), (OXM).
#[rustfmt::skip]
fields! {
    DpHash         "dp_hash"          []                 Common.dp_hash;           -  4  32 >> 0  Bitwise Hex        None      ro (Nx 35) (NxEt 0);
    RecircId       "recirc_id"        []                 Common.recirc_id;         -  4  32 >> 0  No      Decimal    None      ro (Nx 36) (-);
    PacketType     "packet_type"      []                 Common.packet_type;       -  4  32 >> 0  No      PacketType None      ro (-) (Oxm 44);
    ConjId         "conj_id"          []                 Pipeline.conj_id;         -  4  32 >> 0  No      Decimal    None      ro (Nx 37) (-);
    TunId          "tun_id"           ["tunnel_id"]      Tunnel.tun_id;            -  8  64 >> 0  Bitwise Hex        None      rw (Nx 16) (Oxm 38);
    TunSrc         "tun_src"          []                 Tunnel.tun_src;           -  4  32 >> 0  Bitwise Ipv4       None      rw (Nx 31) (-);
    TunDst         "tun_dst"          []                 Tunnel.tun_dst;           -  4  32 >> 0  Bitwise Ipv4       None      rw (Nx 32) (-);
    TunIpv6Src     "tun_ipv6_src"     []                 Tunnel.tun_ipv6_src;      - 16 128 >> 0  Bitwise Ipv6       None      rw (Nx 109) (-);
    TunIpv6Dst     "tun_ipv6_dst"     []                 Tunnel.tun_ipv6_dst;      - 16 128 >> 0  Bitwise Ipv6       None      rw (Nx 110) (-);
    TunFlags       "tun_flags"        []                 Tunnel.tun_flags;         -  2   1 >> 0  Bitwise TunFlags   None      rw (Nx 104) (-);
    TunTtl         "tun_ttl"          []                 Tunnel.tun_ttl;           -  1   8 >> 0  No      Decimal    None      ro (-) (-);
    TunTos         "tun_tos"          []                 Tunnel.tun_tos;           -  1   8 >> 0  No      Decimal    None      ro (-) (-);
    TunGbpId       "tun_gbp_id"       []                 Tunnel.tun_gbp_id;        -  2  16 >> 0  Bitwise Decimal    None      rw (Nx 38) (-);
    TunGbpFlags    "tun_gbp_flags"    []                 Tunnel.tun_gbp_flags;     -  1   8 >> 0  Bitwise Hex        None      rw (Nx 39) (-);
    TunErspanIdx   "tun_erspan_idx"   []                 Tunnel.tun_erspan_idx;    -  4  20 >> 0  Bitwise Hex        None      rw (-) (NxEt 11);
    TunErspanVer   "tun_erspan_ver"   []                 Tunnel.tun_erspan_ver;    -  1   4 >> 0  Bitwise Decimal    None      rw (-) (NxEt 12);
    TunErspanDir   "tun_erspan_dir"   []                 Tunnel.tun_erspan_dir;    -  1   1 >> 0  Bitwise Decimal    None      rw (-) (NxEt 13);
    TunErspanHwid  "tun_erspan_hwid"  []                 Tunnel.tun_erspan_hwid;   -  1   6 >> 0  Bitwise Hex        None      rw (-) (NxEt 14);
    TunGtpuFlags   "tun_gtpu_flags"   []                 Tunnel.tun_gtpu_flags;    -  1   8 >> 0  Bitwise Hex        None      ro (-) (NxEt 15);
    TunGtpuMsgtype "tun_gtpu_msgtype" []                 Tunnel.tun_gtpu_msgtype;  -  1   8 >> 0  Bitwise Decimal    None      ro (-) (NxEt 16);
    Metadata       "metadata"         []                 Pipeline.metadata;        -  8  64 >> 0  Bitwise Hex        None      rw (-) (Oxm 2);
    InPort         "in_port"          []                 Common.in_port;           -  2  16 >> 0  No      OfPort     None      rw (Of 0) (-);
    InPortOxm      "in_port_oxm"      []                 Common.in_port;           -  4  32 >> 0  No      OfPort     None      rw (-) (Oxm 0);
    ActsetOutput   "actset_output"    []                 Pipeline.actset_output;   -  4  32 >> 0  No      OfPort     None      ro (-) (Onf 43);
    SkbPriority    "skb_priority"     []                 Common.skb_priority;      -  4  32 >> 0  No      Hex        None      ro (-) (-);
    PktMark        "pkt_mark"         []                 Common.pkt_mark;          -  4  32 >> 0  Bitwise Hex        None      rw (Nx 33) (-);
    CtState        "ct_state"         []                 Ct.ct_state;              -  4  32 >> 0  Bitwise CtState    None      ro (Nx 105) (-);
    CtZone         "ct_zone"          []                 Ct.ct_zone;               -  2  16 >> 0  No      Hex        None      ro (Nx 106) (-);
    CtMark         "ct_mark"          []                 Ct.ct_mark;               -  4  32 >> 0  Bitwise Hex        None      rw (Nx 107) (-);
    CtLabel        "ct_label"         []                 Ct.ct_label;              - 16 128 >> 0  Bitwise Hex        None      rw (Nx 108) (-);
    CtNwProto      "ct_nw_proto"      []                 Ct.ct_nw_proto;           -  1   8 >> 0  No      Decimal    Ct        ro (Nx 119) (-);
    CtNwSrc        "ct_nw_src"        []                 Ct.ct_src;                4  4  32 >> 0  Bitwise Ipv4       CtIpv4    ro (Nx 120) (-);
    CtNwDst        "ct_nw_dst"        []                 Ct.ct_dst;                4  4  32 >> 0  Bitwise Ipv4       CtIpv4    ro (Nx 121) (-);
    CtIpv6Src      "ct_ipv6_src"      []                 Ct.ct_src;                - 16 128 >> 0  Bitwise Ipv6       CtIpv6    ro (Nx 122) (-);
    CtIpv6Dst      "ct_ipv6_dst"      []                 Ct.ct_dst;                - 16 128 >> 0  Bitwise Ipv6       CtIpv6    ro (Nx 123) (-);
    CtTpSrc        "ct_tp_src"        []                 Ct.ct_tp_src;             -  2  16 >> 0  Bitwise Decimal    CtPorts   ro (Nx 124) (-);
    CtTpDst        "ct_tp_dst"        []                 Ct.ct_tp_dst;             -  2  16 >> 0  Bitwise Decimal    CtPorts   ro (Nx 125) (-);
    Reg0           "reg0"             []                 Regs.reg;                 4  4  32 >> 0  Bitwise Hex        None      rw (Nx 0) (-);
    Reg1           "reg1"             []                 Regs.reg + 4;               4  4  32 >> 0  Bitwise Hex        None      rw (Nx 1) (-);
    Reg2           "reg2"             []                 Regs.reg + 8;               4  4  32 >> 0  Bitwise Hex        None      rw (Nx 2) (-);
    Reg3           "reg3"             []                 Regs.reg + 12;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 3) (-);
    Reg4           "reg4"             []                 Regs.reg + 16;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 4) (-);
    Reg5           "reg5"             []                 Regs.reg + 20;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 5) (-);
    Reg6           "reg6"             []                 Regs.reg + 24;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 6) (-);
    Reg7           "reg7"             []                 Regs.reg + 28;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 7) (-);
    Reg8           "reg8"             []                 Regs.reg + 32;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 8) (-);
    Reg9           "reg9"             []                 Regs.reg + 36;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 9) (-);
    Reg10          "reg10"            []                 Regs.reg + 40;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 10) (-);
    Reg11          "reg11"            []                 Regs.reg + 44;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 11) (-);
    Reg12          "reg12"            []                 Regs.reg + 48;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 12) (-);
    Reg13          "reg13"            []                 Regs.reg + 52;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 13) (-);
    Reg14          "reg14"            []                 Regs.reg + 56;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 14) (-);
    Reg15          "reg15"            []                 Regs.reg + 60;              4  4  32 >> 0  Bitwise Hex        None      rw (Nx 15) (-);
    Xreg0          "xreg0"            []                 Regs.reg;                 8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 0);
    Xreg1          "xreg1"            []                 Regs.reg + 8;               8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 1);
    Xreg2          "xreg2"            []                 Regs.reg + 16;              8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 2);
    Xreg3          "xreg3"            []                 Regs.reg + 24;              8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 3);
    Xreg4          "xreg4"            []                 Regs.reg + 32;              8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 4);
    Xreg5          "xreg5"            []                 Regs.reg + 40;              8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 5);
    Xreg6          "xreg6"            []                 Regs.reg + 48;              8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 6);
    Xreg7          "xreg7"            []                 Regs.reg + 56;              8  8  64 >> 0  Bitwise Hex        None      rw (-) (PktReg 7);
    Xxreg0         "xxreg0"           []                 Regs.reg;                 16 16 128 >> 0  Bitwise Hex        None      rw (Nx 111) (-);
    Xxreg1         "xxreg1"           []                 Regs.reg + 16;              16 16 128 >> 0  Bitwise Hex        None      rw (Nx 112) (-);
    Xxreg2         "xxreg2"           []                 Regs.reg + 32;              16 16 128 >> 0  Bitwise Hex        None      rw (Nx 113) (-);
    Xxreg3         "xxreg3"           []                 Regs.reg + 48;              16 16 128 >> 0  Bitwise Hex        None      rw (Nx 114) (-);
    DlSrc          "eth_src"          ["dl_src"]         Common.dl_src;            -  6  48 >> 0  Bitwise Ethernet   Ethernet  rw (Of 2) (Oxm 4);
    DlDst          "eth_dst"          ["dl_dst"]         Common.dl_dst;            -  6  48 >> 0  Bitwise Ethernet   Ethernet  rw (Of 1) (Oxm 3);
    DlType         "eth_type"         ["dl_type"]        Common.dl_type;           -  2  16 >> 0  No      Hex        Ethernet  ro (Of 3) (Oxm 5);
    VlanTci        "vlan_tci"         []                 Common.vlan + 2;            2  2  16 >> 0  Bitwise Hex        Ethernet  rw (Of 4) (-);
    DlVlan         "dl_vlan"          []                 Common.vlan + 2;            2  2  12 >> 0  No      Decimal    Ethernet  rw (-) (-);
    VlanVid        "vlan_vid"         []                 Common.vlan + 2;            2  2  13 >> 0  Bitwise VlanVid    Ethernet  rw (-) (Oxm 6);
    DlVlanPcp      "dl_vlan_pcp"      []                 Common.vlan + 2;            2  1   3 >> 13 No      Decimal    Ethernet  rw (-) (-);
    VlanPcp        "vlan_pcp"         []                 Common.vlan + 2;            2  1   3 >> 13 No      Decimal    VlanVid   rw (-) (Oxm 7);
    MplsLabel      "mpls_label"       []                 Encap.mpls_lse;           4  4  20 >> 12 No      Decimal    Mpls      rw (-) (Oxm 34);
    MplsTc         "mpls_tc"          []                 Encap.mpls_lse;           4  1   3 >> 9  No      Decimal    Mpls      rw (-) (Oxm 35);
    MplsBos        "mpls_bos"         []                 Encap.mpls_lse;           4  1   1 >> 8  No      Decimal    Mpls      ro (-) (Oxm 36);
    MplsTtl        "mpls_ttl"         []                 Encap.mpls_lse;           4  1   8 >> 0  No      Decimal    Mpls      rw (Nx 30) (-);
    NwSrc          "ip_src"           ["nw_src"]         Common.nw_src;            -  4  32 >> 0  Bitwise Ipv4       Ipv4      rw (Of 7) (Oxm 11);
    NwDst          "ip_dst"           ["nw_dst"]         Common.nw_dst;            -  4  32 >> 0  Bitwise Ipv4       Ipv4      rw (Of 8) (Oxm 12);
    Ipv6Src        "ipv6_src"         []                 L3.ipv6_src;              - 16 128 >> 0  Bitwise Ipv6       Ipv6      rw (Nx 19) (Oxm 26);
    Ipv6Dst        "ipv6_dst"         []                 L3.ipv6_dst;              - 16 128 >> 0  Bitwise Ipv6       Ipv6      rw (Nx 20) (Oxm 27);
    Ipv6Label      "ipv6_label"       ["ipv6_flabel"]    L3.ipv6_label;            -  4  20 >> 0  Bitwise Hex        Ipv6      rw (Nx 27) (Oxm 28);
    Ipv6Exthdr     "ipv6_exthdr"      []                 Encap.ipv6_exthdr;        -  2   9 >> 0  Bitwise Hex        Ipv6      ro (-) (Oxm 39);
    NwProto        "nw_proto"         ["ip_proto"]       Common.nw_proto;          -  1   8 >> 0  No      Decimal    Ip        ro (Of 6) (Oxm 10);
    NwTos          "nw_tos"           []                 Common.nw_tos;            -  1   6 >> 2  No      Tos        Ip        rw (Of 5) (-);
    IpDscp         "ip_dscp"          ["nw_tos_shifted"] Common.nw_tos;            -  1   6 >> 2  No      Decimal    Ip        rw (-) (Oxm 8);
    NwEcn          "nw_ecn"           ["ip_ecn"]         Common.nw_tos;            -  1   2 >> 0  No      Decimal    Ip        rw (Nx 28) (Oxm 9);
    NwTtl          "nw_ttl"           []                 Common.nw_ttl;            -  1   8 >> 0  No      Decimal    Ip        rw (Nx 29) (-);
    NwFrag         "ip_frag"          ["nw_frag"]        Common.nw_frag;           -  1   2 >> 0  Bitwise Frag       Ip        ro (Nx 26) (-);
    ArpOp          "arp_op"           []                 Common.nw_proto;          -  2   8 >> 0  No      Decimal    Arp       rw (Of 15) (Oxm 21);
    ArpSpa         "arp_spa"          []                 Common.nw_src;            -  4  32 >> 0  Bitwise Ipv4       Arp       rw (Of 16) (Oxm 22);
    ArpTpa         "arp_tpa"          []                 Common.nw_dst;            -  4  32 >> 0  Bitwise Ipv4       Arp       rw (Of 17) (Oxm 23);
    ArpSha         "arp_sha"          []                 L3.arp_sha;               -  6  48 >> 0  Bitwise Ethernet   Arp       rw (Nx 17) (Oxm 24);
    ArpTha         "arp_tha"          []                 L3.arp_tha;               -  6  48 >> 0  Bitwise Ethernet   Arp       rw (Nx 18) (Oxm 25);
    TcpSrc         "tcp_src"          ["tp_src"]         Common.tp_src;            -  2  16 >> 0  Bitwise Decimal    Tcp       rw (Of 9) (Oxm 13);
    TcpDst         "tcp_dst"          ["tp_dst"]         Common.tp_dst;            -  2  16 >> 0  Bitwise Decimal    Tcp       rw (Of 10) (Oxm 14);
    TcpFlags       "tcp_flags"        []                 Common.tcp_flags;         -  2  12 >> 0  Bitwise TcpFlags   Tcp       ro (Nx 34) (Onf 42);
    UdpSrc         "udp_src"          []                 Common.tp_src;            -  2  16 >> 0  Bitwise Decimal    Udp       rw (Of 11) (Oxm 15);
    UdpDst         "udp_dst"          []                 Common.tp_dst;            -  2  16 >> 0  Bitwise Decimal    Udp       rw (Of 12) (Oxm 16);
    SctpSrc        "sctp_src"         []                 Common.tp_src;            -  2  16 >> 0  Bitwise Decimal    Sctp      rw (-) (Oxm 17);
    SctpDst        "sctp_dst"         []                 Common.tp_dst;            -  2  16 >> 0  Bitwise Decimal    Sctp      rw (-) (Oxm 18);
    IcmpType       "icmp_type"        []                 Common.tp_src;            -  1   8 >> 0  No      Decimal    Icmp      rw (Of 13) (Oxm 19);
    IcmpCode       "icmp_code"        []                 Common.tp_dst;            -  1   8 >> 0  No      Decimal    Icmp      rw (Of 14) (Oxm 20);
    Icmpv6Type     "icmpv6_type"      []                 Common.tp_src;            -  1   8 >> 0  No      Decimal    Icmpv6    rw (Nx 21) (Oxm 29);
    Icmpv6Code     "icmpv6_code"      []                 Common.tp_dst;            -  1   8 >> 0  No      Decimal    Icmpv6    rw (Nx 22) (Oxm 30);
    NdTarget       "nd_target"        []                 L3.nd_target;             - 16 128 >> 0  Bitwise Ipv6       Nd        rw (Nx 23) (Oxm 31);
    NdSll          "nd_sll"           []                 L3.arp_sha;               -  6  48 >> 0  Bitwise Ethernet   NdSolicit rw (Nx 24) (Oxm 32);
    NdTll          "nd_tll"           []                 L3.arp_tha;               -  6  48 >> 0  Bitwise Ethernet   NdAdvert  rw (Nx 25) (Oxm 33);
    NdReserved     "nd_reserved"      []                 Encap.nd_reserved;        -  4  32 >> 0  No      Decimal    Nd        rw (-) (Eric 1);
    NdOptionsType  "nd_options_type"  []                 Encap.nd_options_type;    -  1   8 >> 0  No      Decimal    Nd        rw (-) (Eric 2);
    PbbIsid        "pbb_isid"         []                 Encap.pbb_isid;           -  3  24 >> 0  Bitwise Decimal    Pbb       ro (-) (Oxm 37);
    PbbUca         "pbb_uca"          []                 Encap.pbb_uca;            -  1   1 >> 0  No      Decimal    Pbb       ro (-) (Oxm 41);
    NshFlags       "nsh_flags"        []                 Encap.nsh_flags;          -  1   8 >> 0  Bitwise Decimal    Nsh       rw (-) (Nsh 1);
    NshTtl         "nsh_ttl"          []                 Encap.nsh_ttl;            -  1   8 >> 0  No      Decimal    Nsh       rw (-) (Nsh 10);
    NshMdtype      "nsh_mdtype"       []                 Encap.nsh_mdtype;         -  1   8 >> 0  No      Decimal    Nsh       ro (-) (Nsh 2);
    NshNp          "nsh_np"           []                 Encap.nsh_np;             -  1   8 >> 0  No      Decimal    Nsh       ro (-) (Nsh 3);
    NshSpi         "nsh_spi"          ["nsp"]            Encap.nsh_path;           -  4  24 >> 8  No      Hex        Nsh       rw (-) (Nsh 4);
    NshSi          "nsh_si"           ["nsi"]            Encap.nsh_path;           -  1   8 >> 0  No      Decimal    Nsh       rw (-) (Nsh 5);
    NshC1          "nsh_c1"           []                 Encap.nsh_c;              4  4  32 >> 0  Bitwise Hex        Nsh       rw (-) (Nsh 6);
    NshC2          "nsh_c2"           []                 Encap.nsh_c + 4;            4  4  32 >> 0  Bitwise Hex        Nsh       rw (-) (Nsh 7);
    NshC3          "nsh_c3"           []                 Encap.nsh_c + 8;            4  4  32 >> 0  Bitwise Hex        Nsh       rw (-) (Nsh 8);
    NshC4          "nsh_c4"           []                 Encap.nsh_c + 12;           4  4  32 >> 0  Bitwise Hex        Nsh       rw (-) (Nsh 9);
}
