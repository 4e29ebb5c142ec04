//! The header of each protocol: what follows UDP, or for GRE, ERSPAN and segment routing what follows IP.
//!
//! | protocol | over | source |
//! |---|---|---|
//! | VXLAN | UDP port 4789 | RFC 7348; group policy: draft-smith-vxlan-group-policy; protocol extension: draft-ietf-nvo3-vxlan-gpe |
//! | Geneve | UDP port 6081 | RFC 8926 |
//! | GRE | IP protocol 47 | RFC 2784, RFC 2890 |
//! | ERSPAN | GRE, types II (version 1) and III (version 2) | draft-foschiano-erspan |
//! | GTP-U | UDP port 2152 | 3GPP TS 29.281 |
//! | LISP | UDP port 4341 | RFC 6830 section 5, RFC 9300 section 5 |
//! | bareudp, which has none | UDP | Linux, Documentation/networking/bareudp.rst |
//! | SRv6 | IPv6, see [`srv6`] | RFC 8754, RFC 8986 |
//!
//! What is reserved has to be zero, as in Open vSwitch, except where the protocol counts on that being ignored: in Geneve, LISP and SRv6.

use packet::wire::checksum::Sum;
use packet::wire::{ethertype, ip_proto};

use crate::config::{BarePayload, FlowLabel};
pub mod srv6;

use self::srv6::Segments;
use crate::{Malformed, options};

/// A protocol, and what of it is switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Protocol {
    /// VXLAN.
    Vxlan {
        /// With group policies.
        group_policy: bool,
    },
    /// VXLAN with the generic protocol extension.
    VxlanGpe,
    /// Geneve.
    Geneve,
    /// GRE that carries frames or packets.
    Gre,
    /// ERSPAN of either version.
    Erspan,
    /// GTP-U.
    Gtpu,
    /// LISP.
    Lisp,
    /// Packets in UDP without a header. Only the port knows what they are.
    Bareudp(BarePayload),
    /// Segment routing over IPv6.
    Srv6 {
        /// Where the flow label of sent packets comes from.
        flow_label: FlowLabel,
    },
}

impl Protocol {
    /// The IP protocol that carries it.
    pub fn ip_proto(self) -> u8 {
        match self {
            Protocol::Gre | Protocol::Erspan => ip_proto::GRE,
            Protocol::Srv6 { .. } => ip_proto::ROUTING,
            _ => ip_proto::UDP,
        }
    }

    /// The values of nw_proto in flows that its packets are of: flows see what is behind the routing header.
    pub fn flow_protos(self) -> &'static [u8] {
        match self {
            Protocol::Gre | Protocol::Erspan => &[ip_proto::GRE],
            Protocol::Srv6 { .. } => &[srv6::IPV4, srv6::IPV6],
            _ => &[ip_proto::UDP],
        }
    }
}

/// What a tunnel carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Payload {
    /// A frame of Ethernet.
    Ethernet,
    /// A packet of this Ethernet type.
    Packet(u16),
    /// A message of the tunnel's ends to each other.
    Message,
}

impl Payload {
    fn of_ethertype(number: u16) -> Payload {
        if number == ethertype::TEB { Payload::Ethernet } else { Payload::Packet(number) }
    }

    fn ethertype(self) -> Option<u16> {
        match self {
            Payload::Ethernet => Some(ethertype::TEB),
            Payload::Packet(number) => Some(number),
            Payload::Message => None,
        }
    }
}

/// A group policy of VXLAN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Group {
    /// The source's group.
    pub id: u16,
    /// Flags: 0x40, do not learn; 0x08, the policy was applied.
    pub flags: u8,
}

/// What the versions of ERSPAN have of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mirror {
    /// Version 1: the port's index, 20 bits.
    One {
        /// Index.
        index: u32,
    },
    /// Version 2.
    Two {
        /// Whether the packet left the port.
        egress: bool,
        /// Number of the hardware that has mirrored it, 6 bits.
        hardware: u8,
        /// When it was mirrored, in units of 100 microseconds.
        timestamp: u32,
    },
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header<'a> {
    /// Of VXLAN.
    Vxlan {
        /// Network identifier, 24 bits.
        vni: u32,
        /// Group policy.
        group: Option<Group>,
    },
    /// Of VXLAN with the protocol extension.
    VxlanGpe {
        /// Network identifier, 24 bits.
        vni: u32,
        /// What is behind it.
        payload: Payload,
    },
    /// Of Geneve.
    Geneve {
        /// Network identifier, 24 bits.
        vni: u32,
        /// For the tunnel's end itself.
        oam: bool,
        /// What is behind it.
        payload: Payload,
        /// Options, each of them whole: at most 252 bytes.
        options: &'a [u8],
    },
    /// Of GRE.
    Gre {
        /// Key.
        key: Option<u32>,
        /// With a checksum over header and payload.
        checksum: bool,
        /// Sequence number.
        sequence: Option<u32>,
        /// What is behind it.
        payload: Payload,
    },
    /// Of ERSPAN, with that of GRE. It carries frames.
    Erspan {
        /// Session, 10 bits.
        session: u16,
        /// Sequence number of GRE.
        sequence: u32,
        /// What the version has.
        mirror: Mirror,
    },
    /// Of GTP-U.
    Gtpu {
        /// Tunnel endpoint identifier.
        teid: u32,
        /// Flags as they are in the first byte; the lowest three say that there are four bytes more.
        flags: u8,
        /// Message type; 255 for packets of users.
        kind: u8,
        /// Sequence number, N-PDU number and type of the next extension, where the flags say so.
        optional: [u8; 4],
        /// What is behind it.
        payload: Payload,
    },
    /// Of LISP, without nonce, version of a mapping and states of locators, which are of no use here.
    Lisp {
        /// Instance identifier, 24 bits.
        instance: Option<u32>,
        /// What is behind it.
        payload: Payload,
    },
    /// None, of bareudp.
    Bareudp {
        /// What UDP carries.
        payload: Payload,
    },
    /// Of SRv6: the routing header of IPv6.
    Srv6 {
        /// The way, from the first segment to the last one. Without any there is no routing header.
        segments: Segments<'a>,
        /// What is behind it.
        payload: Payload,
    },
}

/// Bytes of a header of VXLAN, with any extension.
pub(crate) const VXLAN_LEN: usize = 8;
/// Bytes of a header of Geneve without its options.
pub(crate) const GENEVE_LEN: usize = 8;
const VXLAN_VNI: u8 = 0x08;
const VXLAN_GROUP: u8 = 0x80;
const GPE_VERSION: u8 = 0x30;
const GPE_NEXT: u8 = 0x04;
const GENEVE_OAM: u8 = 0x80;
const GENEVE_CRITICAL: u8 = 0x40;
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
/// Ethernet types of ERSPAN in GRE.
const ERSPAN_ONE: u16 = 0x88be;
const ERSPAN_TWO: u16 = 0x22eb;
/// Version and protocol type of GTP-U.
const GTPU_VERSION: u8 = 0xf0;
const GTPU_KNOWN: u8 = 0x30;
/// Any of extension header, sequence number and N-PDU number.
const GTPU_OPTIONAL: u8 = 0x07;
const GTPU_EXTENSION: u8 = 0x04;
/// Bytes of a header of GTP-U without the optional part.
const GTPU_LEN: usize = 8;
/// The message type for packets of users.
pub const GTPU_PACKET: u8 = 255;

/// LISP: locator status bits are there, an instance identifier is there, and which key has encrypted the payload (RFC 8061).
const LISP_LOCATORS: u8 = 0x40;
const LISP_INSTANCE: u8 = 0x08;
const LISP_KEY: u8 = 0x03;
/// The first locator of this end can be reached: what Open vSwitch's module for the kernel says.
const LISP_FIRST_LOCATOR: u8 = 1;

/// Payloads of VXLAN-GPE by their numbers there.
const GPE_PAYLOADS: [(u8, Payload); 5] = [
    (1, Payload::Packet(ethertype::IPV4)),
    (2, Payload::Packet(ethertype::IPV6)),
    (3, Payload::Ethernet),
    (4, Payload::Packet(ethertype::NSH)),
    (5, Payload::Packet(ethertype::MPLS)),
];

/// What few protocols need to know of the headers below theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Below {
    /// The protocol of IP.
    pub proto: u8,
    /// Whether the destination is a multicast address.
    pub is_multicast: bool,
}

/// Reads the header at the start of `bytes`, which are all that the carrier carries. Returns it with its length; what is behind is
/// the payload.
pub fn read<'a>(protocol: Protocol, below: &Below, bytes: &'a [u8]) -> Result<(Header<'a>, usize), Malformed> {
    match protocol {
        // Ports with the extension and ports without it may share one of UDP.
        Protocol::Vxlan { .. } if has_extension(bytes) => read_gpe(bytes),
        Protocol::Vxlan { group_policy } => {
            let (vni, group) = read_vxlan(bytes, group_policy)?;
            Ok((Header::Vxlan { vni, group }, VXLAN_LEN))
        }
        Protocol::VxlanGpe => read_gpe(bytes),
        Protocol::Geneve => {
            let Geneve { vni, oam, payload, options } = read_geneve(bytes)?;
            Ok((Header::Geneve { vni, oam, payload, options }, GENEVE_LEN + options.len()))
        }
        Protocol::Gre => {
            let (gre, len) = read_gre(bytes)?;
            let payload = Payload::of_ethertype(gre.ethertype);
            let Gre { key, checksum, sequence, .. } = gre;
            Ok((Header::Gre { key, checksum, sequence, payload }, len))
        }
        Protocol::Erspan => read_erspan(bytes),
        Protocol::Gtpu => read_gtpu(bytes),
        Protocol::Lisp => read_lisp(bytes),
        Protocol::Bareudp(bare) => read_bareudp(bytes, bare, below.is_multicast),
        Protocol::Srv6 { .. } => srv6::read(below.proto, bytes),
    }
}

/// Whether a header of VXLAN has the protocol extension.
#[inline]
pub(crate) fn has_extension(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|flags| flags & GPE_NEXT != 0)
}

#[inline]
pub(crate) fn first<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Malformed> {
    bytes.first_chunk().ok_or(Malformed::Truncated)
}

#[inline]
fn u24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// Network identifier and group.
#[inline]
pub(crate) fn read_vxlan(bytes: &[u8], group_policy: bool) -> Result<(u32, Option<Group>), Malformed> {
    let &[flags, more, id0, id1, a, b, c, reserved] = first::<VXLAN_LEN>(bytes)?;
    let has_group = group_policy && flags & VXLAN_GROUP != 0;
    let known = VXLAN_VNI | if has_group { VXLAN_GROUP } else { 0 };
    let group = has_group.then_some(Group { id: u16::from_be_bytes([id0, id1]), flags: more });
    if flags != known || group.is_none() && [more, id0, id1] != [0; 3] || more & !0x48 != 0 || reserved != 0 {
        return Err(Malformed::Flags);
    }
    Ok((u24([a, b, c]), group))
}

fn read_gpe(bytes: &[u8]) -> Result<(Header<'_>, usize), Malformed> {
    let &[flags, a0, a1, next, a, b, c, reserved] = first(bytes)?;
    if flags & GPE_VERSION != 0 {
        return Err(Malformed::Version);
    }
    // What is for the tunnel's end itself (the O bit) is nothing to forward: as in OVS, it is dropped with all that is unknown.
    if flags != VXLAN_VNI | GPE_NEXT || [a0, a1, reserved] != [0; 3] {
        return Err(Malformed::Flags);
    }
    let payload = GPE_PAYLOADS.iter().find(|(number, _)| *number == next).ok_or(Malformed::Payload)?.1;
    Ok((Header::VxlanGpe { vni: u24([a, b, c]), payload }, 8))
}

/// What a header of Geneve says.
pub(crate) struct Geneve<'a> {
    pub(crate) vni: u32,
    pub(crate) oam: bool,
    pub(crate) payload: Payload,
    pub(crate) options: &'a [u8],
}

#[inline]
pub(crate) fn read_geneve(bytes: &[u8]) -> Result<Geneve<'_>, Malformed> {
    let &[version_len, flags, p0, p1, a, b, c, _] = first::<GENEVE_LEN>(bytes)?;
    if version_len >> 6 != 0 {
        return Err(Malformed::Version);
    }
    let len = GENEVE_LEN + usize::from(version_len & 0x3f) * 4;
    let options = bytes.get(GENEVE_LEN..len).ok_or(Malformed::Length)?;
    // Who looks at the options needs no flag that says that one of them is critical.
    options::check(options)?;
    let payload = Payload::of_ethertype(u16::from_be_bytes([p0, p1]));
    Ok(Geneve { vni: u24([a, b, c]), oam: flags & GENEVE_OAM != 0, payload, options })
}

struct Gre {
    ethertype: u16,
    key: Option<u32>,
    checksum: bool,
    sequence: Option<u32>,
}

fn read_gre(bytes: &[u8]) -> Result<(Gre, usize), Malformed> {
    let &[f0, f1, p0, p1] = first(bytes)?;
    let flags = u16::from_be_bytes([f0, f1]);
    if flags & 7 != 0 {
        return Err(Malformed::Version);
    }
    if flags & !(GRE_CHECKSUM | GRE_KEY | GRE_SEQUENCE) != 0 {
        return Err(Malformed::Flags);
    }
    let mut at = 4;
    let mut word = |flag: u16| -> Result<Option<[u8; 4]>, Malformed> {
        if flags & flag == 0 {
            return Ok(None);
        }
        let word = first(bytes.get(at..).unwrap_or_default())?;
        at += 4;
        Ok(Some(*word))
    };
    let checksum = word(GRE_CHECKSUM)?;
    let key = word(GRE_KEY)?.map(u32::from_be_bytes);
    let sequence = word(GRE_SEQUENCE)?.map(u32::from_be_bytes);
    if let Some([_, _, reserved @ ..]) = checksum {
        if reserved != [0; 2] {
            return Err(Malformed::Flags);
        }
        if Sum::ZERO.add_bytes(bytes).finish() != 0 {
            return Err(Malformed::Checksum);
        }
    }
    Ok((Gre { ethertype: u16::from_be_bytes([p0, p1]), key, checksum: checksum.is_some(), sequence }, at))
}

fn read_erspan(bytes: &[u8]) -> Result<(Header<'_>, usize), Malformed> {
    let (gre, at) = read_gre(bytes)?;
    let (Some(sequence), None, false) = (gre.sequence, gre.key, gre.checksum) else { return Err(Malformed::Flags) };
    let bytes = bytes.get(at..).unwrap_or_default();
    let &[version, _, s0, s1] = first(bytes)?;
    let session = u16::from_be_bytes([s0, s1]) & 0x3ff;
    match (gre.ethertype, version >> 4) {
        (ERSPAN_ONE, 1) => {
            let &[.., a, b, c, d] = first::<8>(bytes)?;
            let index = u32::from_be_bytes([a, b, c, d]) & 0xf_ffff;
            Ok((Header::Erspan { session, sequence, mirror: Mirror::One { index } }, at + 8))
        }
        (ERSPAN_TWO, 2) => {
            let &[_, _, _, _, a, b, c, d, _, _, m0, m1] = first::<12>(bytes)?;
            let more = u16::from_be_bytes([m0, m1]);
            let mirror = Mirror::Two {
                egress: more & 0x8 != 0,
                hardware: (more >> 4) as u8 & 0x3f,
                timestamp: u32::from_be_bytes([a, b, c, d]),
            };
            // A subheader of the platform may follow.
            let len = at + 12 + if more & 1 != 0 { 8 } else { 0 };
            if bytes.len() + at < len {
                return Err(Malformed::Truncated);
            }
            Ok((Header::Erspan { session, sequence, mirror }, len))
        }
        (ERSPAN_ONE | ERSPAN_TWO, _) => Err(Malformed::Version),
        _ => Err(Malformed::Payload),
    }
}

fn read_gtpu(bytes: &[u8]) -> Result<(Header<'_>, usize), Malformed> {
    let &[flags, kind, l0, l1, a, b, c, d] = first::<GTPU_LEN>(bytes)?;
    if flags & GTPU_VERSION != GTPU_KNOWN {
        return Err(Malformed::Version);
    }
    let all = GTPU_LEN + usize::from(u16::from_be_bytes([l0, l1]));
    let bytes = bytes.get(..all).ok_or(Malformed::Length)?;
    let (mut optional, mut len) = ([0; 4], GTPU_LEN);
    if flags & GTPU_OPTIONAL != 0 {
        optional = *first(&bytes[len..]).map_err(|_| Malformed::Length)?;
        len += 4;
        let mut next = if flags & GTPU_EXTENSION != 0 { optional[3] } else { 0 };
        // Each extension has its length in words first, and the type of the next one last.
        while next != 0 {
            let words = usize::from(*bytes.get(len).ok_or(Malformed::Length)?);
            if words == 0 {
                return Err(Malformed::Length);
            }
            len += 4 * words;
            next = *bytes.get(len - 1).ok_or(Malformed::Length)?;
        }
    }
    let payload = if kind == GTPU_PACKET { ip_version(&bytes[len..])? } else { Payload::Message };
    Ok((Header::Gtpu { teid: u32::from_be_bytes([a, b, c, d]), flags, kind, optional, payload }, len))
}

/// What a packet of IP is by its version.
fn ip_version(packet: &[u8]) -> Result<Payload, Malformed> {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => Ok(Payload::Packet(ethertype::IPV4)),
        Some(6) => Ok(Payload::Packet(ethertype::IPV6)),
        _ => Err(Malformed::Payload),
    }
}

fn read_lisp(bytes: &[u8]) -> Result<(Header<'_>, usize), Malformed> {
    let &[flags, _, _, _, a, b, c, _] = first(bytes)?;
    // Nobody here has a key.
    if flags & LISP_KEY != 0 {
        return Err(Malformed::Flags);
    }
    // An end that knows nothing of nonces and versions of mappings passes over them, and answers no request for an echo.
    let instance = (flags & LISP_INSTANCE != 0).then_some(u24([a, b, c]));
    Ok((Header::Lisp { instance, payload: ip_version(&bytes[8..])? }, 8))
}

fn read_bareudp(bytes: &[u8], bare: BarePayload, is_multicast: bool) -> Result<(Header<'_>, usize), Malformed> {
    let payload = match bare.ethertype {
        ethertype::IPV4 => ip_version(bytes)?,
        // The address tells multicast of MPLS from unicast, as in Linux.
        ethertype::MPLS if is_multicast => Payload::Packet(ethertype::MPLS_MULTICAST),
        number => Payload::Packet(number),
    };
    match payload {
        Payload::Packet(number) if bare.takes(number) => Ok((Header::Bareudp { payload }, 0)),
        _ => Err(Malformed::Payload),
    }
}

/// Why a header cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Unwritable {
    /// It is longer than the room for it.
    #[error("longer than the room for headers")]
    TooLong,
    /// A number is larger than its field.
    #[error("number larger than its field")]
    Range,
    /// The protocol cannot carry such a payload.
    #[error("payload that the protocol cannot carry")]
    Payload,
}

/// Where in a header something is to be written for each packet, as offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Patches {
    /// The checksum of GRE.
    pub checksum: Option<u16>,
    /// The sequence number of GRE.
    pub sequence: Option<u16>,
    /// The length of GTP-U, which does not count the first 8 bytes.
    pub length: Option<u16>,
    /// The timestamp of ERSPAN.
    pub timestamp: Option<u16>,
}

/// Bytes that are being written, with a bound.
pub(crate) struct Writer<'a> {
    bytes: &'a mut [u8],
    pub(crate) len: usize,
}

impl Writer<'_> {
    pub(crate) fn new(bytes: &mut [u8]) -> Writer<'_> {
        Writer { bytes, len: 0 }
    }

    pub(crate) fn put(&mut self, more: &[u8]) -> Result<(), Unwritable> {
        let room = self.bytes.get_mut(self.len..self.len + more.len()).ok_or(Unwritable::TooLong)?;
        room.copy_from_slice(more);
        self.len += more.len();
        Ok(())
    }
}

fn vni_bytes(vni: u32) -> Result<[u8; 4], Unwritable> {
    if vni >> 24 == 0 { Ok((vni << 8).to_be_bytes()) } else { Err(Unwritable::Range) }
}

impl Header<'_> {
    /// Writes the header at the start of `bytes`. What depends on the payload is zero; the patches say where it belongs. Returns them with
    /// the length.
    pub fn write(&self, bytes: &mut [u8]) -> Result<(usize, Patches), Unwritable> {
        let mut out = Writer::new(bytes);
        let mut patches = Patches::default();
        match *self {
            Header::Vxlan { vni, group } => {
                match group {
                    None => out.put(&[VXLAN_VNI, 0, 0, 0])?,
                    Some(Group { id, flags }) if flags & !0x48 == 0 => {
                        let [a, b] = id.to_be_bytes();
                        out.put(&[VXLAN_VNI | VXLAN_GROUP, flags, a, b])?;
                    }
                    Some(_) => return Err(Unwritable::Range),
                }
                out.put(&vni_bytes(vni)?)?;
            }
            Header::VxlanGpe { vni, payload } => {
                let next = GPE_PAYLOADS.iter().find(|(_, known)| *known == payload).ok_or(Unwritable::Payload)?.0;
                out.put(&[VXLAN_VNI | GPE_NEXT, 0, 0, next])?;
                out.put(&vni_bytes(vni)?)?;
            }
            Header::Geneve { vni, oam, payload, options } => {
                let critical = options::check(options).map_err(|_| Unwritable::Range)?;
                if options.len() > options::MAX_LEN {
                    return Err(Unwritable::TooLong);
                }
                let flags = if oam { GENEVE_OAM } else { 0 } | if critical { GENEVE_CRITICAL } else { 0 };
                let [a, b] = payload.ethertype().ok_or(Unwritable::Payload)?.to_be_bytes();
                out.put(&[(options.len() / 4) as u8, flags, a, b])?;
                out.put(&vni_bytes(vni)?)?;
                out.put(options)?;
            }
            Header::Gre { key, checksum, sequence, payload } => {
                let number = payload.ethertype().ok_or(Unwritable::Payload)?;
                write_gre(&mut out, &mut patches, Gre { ethertype: number, key, checksum, sequence })?;
            }
            Header::Erspan { session, sequence, mirror } => {
                if session > 0x3ff {
                    return Err(Unwritable::Range);
                }
                let number = if let Mirror::One { .. } = mirror { ERSPAN_ONE } else { ERSPAN_TWO };
                let gre = Gre { ethertype: number, key: None, checksum: false, sequence: Some(sequence) };
                write_gre(&mut out, &mut patches, gre)?;
                let [a, b] = session.to_be_bytes();
                match mirror {
                    Mirror::One { index } if index <= 0xf_ffff => {
                        out.put(&[0x10, 0, a, b])?;
                        out.put(&index.to_be_bytes())?;
                    }
                    Mirror::Two { egress, hardware, timestamp } if hardware < 64 => {
                        out.put(&[0x20, 0, a, b])?;
                        patches.timestamp = Some(out.len as u16);
                        out.put(&timestamp.to_be_bytes())?;
                        let more = u16::from(hardware) << 4 | u16::from(egress) << 3;
                        out.put(&[0, 0])?;
                        out.put(&more.to_be_bytes())?;
                    }
                    _ => return Err(Unwritable::Range),
                }
            }
            Header::Gtpu { teid, flags, kind, optional, payload } => {
                let is_packet = matches!(payload, Payload::Packet(ethertype::IPV4 | ethertype::IPV6));
                if is_packet != (kind == GTPU_PACKET) || payload == Payload::Ethernet {
                    return Err(Unwritable::Payload);
                }
                // Extensions are not written.
                if flags & (GTPU_VERSION | GTPU_EXTENSION) != GTPU_KNOWN {
                    return Err(Unwritable::Range);
                }
                patches.length = Some(2);
                out.put(&[flags, kind, 0, 0])?;
                out.put(&teid.to_be_bytes())?;
                if flags & GTPU_OPTIONAL != 0 {
                    out.put(&optional)?;
                }
            }
            Header::Lisp { instance, payload } => {
                if !matches!(payload, Payload::Packet(ethertype::IPV4 | ethertype::IPV6)) {
                    return Err(Unwritable::Payload);
                }
                let flags = LISP_LOCATORS | if instance.is_some() { LISP_INSTANCE } else { 0 };
                let [a, b, c, _] = vni_bytes(instance.unwrap_or(0))?;
                out.put(&[flags, 0, 0, 0, a, b, c, LISP_FIRST_LOCATOR])?;
            }
            Header::Bareudp { payload: Payload::Packet(_) } => {}
            Header::Bareudp { .. } => return Err(Unwritable::Payload),
            Header::Srv6 { segments, payload } => srv6::write(&mut out, segments, payload)?,
        }
        Ok((out.len, patches))
    }
}

fn write_gre(out: &mut Writer<'_>, patches: &mut Patches, gre: Gre) -> Result<(), Unwritable> {
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    let flags = flag(gre.checksum, GRE_CHECKSUM)
        | flag(gre.key.is_some(), GRE_KEY)
        | flag(gre.sequence.is_some(), GRE_SEQUENCE);
    out.put(&flags.to_be_bytes())?;
    out.put(&gre.ethertype.to_be_bytes())?;
    if gre.checksum {
        patches.checksum = Some(out.len as u16);
        out.put(&[0; 4])?;
    }
    if let Some(key) = gre.key {
        out.put(&key.to_be_bytes())?;
    }
    if let Some(sequence) = gre.sequence {
        patches.sequence = Some(out.len as u16);
        out.put(&sequence.to_be_bytes())?;
    }
    Ok(())
}
