//! Versions, identifiers, reserved numbers, and what messages and actions have in common.

use std::fmt;

/// A version of OpenFlow. Ordered: later versions compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Version {
    /// OpenFlow 1.0, wire 0x01.
    V1_0 = 1,
    /// OpenFlow 1.1, wire 0x02.
    V1_1 = 2,
    /// OpenFlow 1.2, wire 0x03.
    V1_2 = 3,
    /// OpenFlow 1.3, wire 0x04.
    V1_3 = 4,
    /// OpenFlow 1.4, wire 0x05.
    V1_4 = 5,
    /// OpenFlow 1.5, wire 0x06.
    V1_5 = 6,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Version; 6] =
        [Version::V1_0, Version::V1_1, Version::V1_2, Version::V1_3, Version::V1_4, Version::V1_5];

    /// The version with this number in the message header.
    pub fn from_wire(byte: u8) -> Option<Version> {
        Version::ALL.into_iter().find(|&v| v as u8 == byte)
    }

    /// The number in the message header.
    pub fn wire(self) -> u8 {
        self as u8
    }

    /// The name in the `protocols` column of a bridge: "OpenFlow13".
    pub fn name(self) -> &'static str {
        ["OpenFlow10", "OpenFlow11", "OpenFlow12", "OpenFlow13", "OpenFlow14", "OpenFlow15"][self as usize - 1]
    }

    /// The version with this [`name`](Version::name).
    pub fn from_name(name: &str) -> Option<Version> {
        Version::ALL.into_iter().find(|v| v.name() == name)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of versions, as in the version bitmap of a hello: bit N is wire version N.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Versions(pub u32);

impl Versions {
    /// Every version that [`Version`] names.
    pub const ALL: Versions = Versions(0b111_1110);

    /// The set of these versions.
    pub fn of(versions: &[Version]) -> Versions {
        Versions(versions.iter().fold(0, |bits, &v| bits | 1 << v as u32))
    }

    /// Every version up to the wire number `highest`: what a hello without a bitmap stands for.
    pub fn up_to(highest: u8) -> Versions {
        Versions(((2u64 << highest.min(31)) - 2) as u32)
    }

    /// Whether `version` is in the set.
    pub fn has(self, version: Version) -> bool {
        self.0 >> version as u32 & 1 != 0
    }

    /// The latest version that is in both sets: the outcome of version negotiation (OpenFlow 1.3.1
    /// section 6.3.1).
    pub fn negotiate(self, other: Versions) -> Option<Version> {
        Version::ALL.into_iter().rev().find(|&v| self.has(v) && other.has(v))
    }

    /// The known versions in the set, oldest first.
    pub fn iter(self) -> impl Iterator<Item = Version> {
        Version::ALL.into_iter().filter(move |&v| self.has(v))
    }
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Versions({:#x})", self.0)
    }
}

/// Wire numbers separated by commas: "0x01, 0x04".
impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, v) in (0..32).filter(|v| self.0 >> v & 1 != 0).enumerate() {
            write!(f, "{}0x{v:02x}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// An OpenFlow port number, as OpenFlow 1.1 and later write it: 32 bits, reserved ports from
/// 0xffffff00. OpenFlow 1.0's 16-bit numbers map to it by [`from_u16`](OfPort::from_u16).
///
/// This 32-bit form is also what the `in_port` of a [`Match`](crate::Match) and of a key in the
/// OpenFlow tables holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OfPort(pub u32);

impl OfPort {
    /// One more than the largest number of a physical or logical port. Weir, as OVS, gives ports
    /// 16-bit numbers only, so that they mean the same in every version.
    pub const MAX: u32 = 0xff00;
    /// `OFPP_UNSET`: no output port in the action set (OpenFlow 1.5).
    pub const UNSET: OfPort = OfPort(0xffff_fff7);
    /// `OFPP_IN_PORT`: back to where the packet came from.
    pub const IN_PORT: OfPort = OfPort(0xffff_fff8);
    /// `OFPP_TABLE`: submit to the first table (packet-out only).
    pub const TABLE: OfPort = OfPort(0xffff_fff9);
    /// `OFPP_NORMAL`: L2 forwarding with learning.
    pub const NORMAL: OfPort = OfPort(0xffff_fffa);
    /// `OFPP_FLOOD`: all ports but the input port and those with no-flood.
    pub const FLOOD: OfPort = OfPort(0xffff_fffb);
    /// `OFPP_ALL`: all ports but the input port.
    pub const ALL: OfPort = OfPort(0xffff_fffc);
    /// `OFPP_CONTROLLER`: packet-in to the controllers.
    pub const CONTROLLER: OfPort = OfPort(0xffff_fffd);
    /// `OFPP_LOCAL`: the bridge's own port.
    pub const LOCAL: OfPort = OfPort(0xffff_fffe);
    /// `OFPP_ANY`, in OpenFlow 1.0 `OFPP_NONE`: no port, or any port.
    pub const ANY: OfPort = OfPort(0xffff_ffff);

    /// The reserved ports with their names in flow syntax, ovs-ofctl(8).
    pub const RESERVED: &'static [(OfPort, &'static str)] = &[
        (OfPort::IN_PORT, "IN_PORT"),
        (OfPort::TABLE, "TABLE"),
        (OfPort::NORMAL, "NORMAL"),
        (OfPort::FLOOD, "FLOOD"),
        (OfPort::ALL, "ALL"),
        (OfPort::CONTROLLER, "CONTROLLER"),
        (OfPort::LOCAL, "LOCAL"),
        (OfPort::ANY, "ANY"),
        (OfPort::UNSET, "UNSET"),
    ];

    /// The port that OpenFlow 1.0 and NXM write as `port`.
    pub const fn from_u16(port: u16) -> OfPort {
        if port >= 0xff00 { OfPort(port as u32 | 0xffff_0000) } else { OfPort(port as u32) }
    }

    /// The OpenFlow 1.0 and NXM form; `None` for a number that has none.
    pub const fn to_u16(self) -> Option<u16> {
        if self.0 < 0xff00 || self.0 >= 0xffff_ff00 { Some(self.0 as u16) } else { None }
    }

    /// Whether this is one of the reserved numbers rather than a port that can exist. LOCAL is
    /// reserved.
    pub const fn is_reserved(self) -> bool {
        self.0 >= OfPort::MAX
    }

    /// Name of a reserved port.
    pub fn reserved_name(self) -> Option<&'static str> {
        OfPort::RESERVED.iter().find(|(port, _)| *port == self).map(|(_, name)| *name)
    }
}

impl fmt::Debug for OfPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfPort({self})")
    }
}

/// The number, or the name of a reserved port.
impl fmt::Display for OfPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reserved_name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Number of a flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u8);

impl TableId {
    /// Not a table: in requests all tables, in resubmit the present one.
    pub const ALL: TableId = TableId(0xff);
    /// The largest number of a table (`OFPTT_MAX`).
    pub const MAX: TableId = TableId(0xfe);
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The largest number of a group (`OFPG_MAX`).
    pub const MAX: GroupId = GroupId(0xffff_ff00);
    /// All groups, in deletion (`OFPG_ALL`).
    pub const ALL: GroupId = GroupId(0xffff_fffc);
    /// No group: no filter (`OFPG_ANY`).
    pub const ANY: GroupId = GroupId(0xffff_ffff);
}

/// A flow's cookie: the controller's own 64-bit name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cookie(pub u64);

/// Which cookies a request is about: those that equal `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct CookieFilter {
    /// Value.
    pub value: u64,
    /// Bits that are compared; zero is every cookie.
    pub mask: u64,
}

impl CookieFilter {
    /// Whether `cookie` passes.
    pub fn accepts(self, cookie: Cookie) -> bool {
        (self.value ^ cookie.0) & self.mask == 0
    }
}

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EthAddr(pub [u8; 6]);

impl EthAddr {
    /// The address as the value of a field: its bytes as a big-endian number.
    pub fn to_value(self) -> u128 {
        self.0.iter().fold(0, |n, &b| n << 8 | u128::from(b))
    }

    /// The address in the low 48 bits of a field's value.
    pub fn from_value(value: u128) -> EthAddr {
        let b = value.to_be_bytes();
        EthAddr([b[10], b[11], b[12], b[13], b[14], b[15]])
    }
}

impl fmt::Display for EthAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for EthAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

bitflags::bitflags! {
    /// Flags of a flow; bits as in OpenFlow 1.3.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct FlowModFlags: u16 {
        /// Send a flow-removed when the flow expires or is deleted.
        const SEND_FLOW_REM = 1;
        /// Refuse to add a flow that overlaps one of equal priority.
        const CHECK_OVERLAP = 1 << 1;
        /// Set the counters to zero. Always set in an add of OpenFlow 1.0 and 1.1.
        const RESET_COUNTS = 1 << 2;
        /// Packets need not be counted.
        const NO_PKT_COUNTS = 1 << 3;
        /// Bytes need not be counted.
        const NO_BYT_COUNTS = 1 << 4;
    }
}

/// Why a packet goes to the controller (`enum ofp_packet_in_reason`). What an older version cannot say
/// is sent as [`Action`](PacketInReason::Action).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PacketInReason {
    /// No flow matches; in OpenFlow 1.3 and later, the table-miss flow says so.
    NoMatch = 0,
    /// An action says so.
    Action = 1,
    /// TTL is used up.
    InvalidTtl = 2,
    /// An action of the action set says so (OpenFlow 1.4).
    ActionSet = 3,
    /// An action of a group says so (OpenFlow 1.4).
    Group = 4,
    /// An action of a packet-out says so (OpenFlow 1.4).
    PacketOut = 5,
    /// No flow matches, and no table-miss flow exists: OVS's own distinction, sent as NoMatch.
    ImplicitMiss = 6,
}

impl PacketInReason {
    /// Every reason with its name in `controller(reason=...)`.
    pub const NAMES: &'static [(PacketInReason, &'static str)] = &[
        (PacketInReason::NoMatch, "no_match"),
        (PacketInReason::Action, "action"),
        (PacketInReason::InvalidTtl, "invalid_ttl"),
        (PacketInReason::ActionSet, "action_set"),
        (PacketInReason::Group, "group"),
        (PacketInReason::PacketOut, "packet_out"),
        (PacketInReason::ImplicitMiss, "implicit_miss"),
    ];
}
