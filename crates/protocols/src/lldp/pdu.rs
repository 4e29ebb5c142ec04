//! LLDPDUs (IEEE 802.1AB clause 8) and the frames that carry them. Numbers are in network byte order.
//!
//! Each TLV has seven bits of type and nine of length. What is kept of a PDU is bounded: identifiers and texts by 255
//! bytes, addresses by [`MAX_ADDRESSES`], mappings by [`MAX_ASSIGNMENTS`].

use std::net::IpAddr;

use packet::wire::build::ethernet;

use crate::ethernet::{Mac, Untagged};

/// Ethernet type of LLDP.
pub const ETHERTYPE: u16 = 0x88cc;
/// Address of the nearest bridge; bridges do not forward it.
pub const GROUP: Mac = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
/// Subtype of a chassis identifier that is an Ethernet address.
pub const CHASSIS_MAC: u8 = 4;
/// Subtype of a port identifier that is an Ethernet address.
pub const PORT_MAC: u8 = 3;
/// Subtype of a port identifier that is the name of an interface.
pub const PORT_NAME: u8 = 5;
/// How many mappings fit in one TLV, and are kept of a PDU.
pub const MAX_ASSIGNMENTS: usize = (MAX_TLV - ASSIGNMENTS_START) / ASSIGNMENT_LEN;
/// How many management addresses of a PDU are kept.
pub const MAX_ADDRESSES: usize = 8;
/// Capability of a bridge (table 8-4).
pub const BRIDGE: u16 = 1 << 2;

/// Bytes that a TLV may have after its first two.
const MAX_TLV: usize = 0x1ff;
/// Bytes that an identifier or text may have.
const MAX_TEXT: usize = 255;

const END: u8 = 0;
const CHASSIS_ID: u8 = 1;
const PORT_ID: u8 = 2;
const TTL: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;
const SYSTEM_DESCRIPTION: u8 = 6;
const SYSTEM_CAPABILITIES: u8 = 7;
const MANAGEMENT_ADDRESS: u8 = 8;
const ORGANISATION: u8 = 127;

/// Whose TLVs those of Auto Attach are.
const AVAYA: [u8; 3] = [0x00, 0x04, 0x0d];
const AVAYA_ELEMENT: u8 = 11;
const AVAYA_ASSIGNMENTS: u8 = 12;
/// Bytes of HMAC-SHA-256; zero where nothing is signed.
const DIGEST_LEN: usize = 32;
/// Organisation, subtype and digest.
const ASSIGNMENTS_START: usize = 3 + 1 + DIGEST_LEN;
const ELEMENT_LEN: usize = ASSIGNMENTS_START + 14;
const ASSIGNMENT_LEN: usize = 5;

/// Why a frame is discarded, in the words of OVS's log, where "received on" an interface follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is not of LLDP.
    #[error("non LLDP frame")]
    NotLldp,
    /// It is to another address than [`GROUP`].
    #[error("frame not targeted at LLDP multicast address")]
    OtherAddress,
    /// It ends within a TLV.
    #[error("frame too short for tlv")]
    Truncated,
    /// A TLV is shorter than what it is to hold.
    #[error("{0} TLV too short")]
    Short(&'static str),
    /// A TLV is longer than it may be.
    #[error("{0} TLV too large")]
    Long(&'static str),
    /// The first three are not chassis identifier, port identifier and TTL, or one of these is there twice.
    #[error("mandatory TLVs out of order or twice")]
    Order,
    /// An identifier of no known kind.
    #[error("unknown subtype for tlv id")]
    Subtype,
    /// The mappings end within one.
    #[error("malformed vlan-isid mappings tlv")]
    Assignments,
    /// There is no end, or it is not empty.
    #[error("frame without an end of the LLDPDU, which is empty,")]
    NoEnd,
}

/// Identifier of a chassis or port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifier {
    /// What its bytes are: 1 to 7 (tables 8-2 and 8-3).
    pub subtype: u8,
    /// 1 to 255 bytes.
    pub value: Vec<u8>,
}

/// What the sender takes part in Auto Attach as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Kind of element, of six bits; [`Element::VIRTUAL_SWITCH`] for instance.
    pub kind: u8,
    /// State, of six bits.
    pub state: u8,
    /// VLAN of management, of twelve bits.
    pub management_vlan: u16,
    /// The system: its address.
    pub mac: Mac,
    /// How it is connected, of three bits: 0 by a single link.
    pub connection: u8,
    /// Ten bits.
    pub reserved: u16,
    /// What identifies the link.
    pub link: [u8; 2],
}

impl Element {
    /// A client that is a virtual switch.
    pub const VIRTUAL_SWITCH: u8 = 14;

    /// The bytes after the digest, of which a TLV that is long enough has fourteen.
    fn parse(bytes: &[u8; 14]) -> Element {
        let [a, b, c, _, mac @ .., conn_high, reserved, l0, l1] = *bytes;
        Element {
            kind: a >> 2,
            state: (a & 3) << 4 | b >> 4,
            management_vlan: u16::from(b & 0xf) << 8 | u16::from(c),
            mac,
            connection: conn_high >> 5,
            reserved: u16::from(conn_high & 3) << 8 | u16::from(reserved),
            link: [l0, l1],
        }
    }

    fn emit(&self) -> [u8; 14] {
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        let [vlan_high, vlan_low] = (self.management_vlan & 0xfff).to_be_bytes();
        let [reserved_high, reserved_low] = (self.reserved & 0x3ff).to_be_bytes();
        let kind_state = self.kind << 2 | self.state >> 4 & 3;
        let connection = self.connection << 5 | reserved_high;
        let [l0, l1] = self.link;
        let second = self.state << 4 | vlan_high;
        [kind_state, second, vlan_low, 0, m0, m1, m2, m3, m4, m5, connection, reserved_low, l0, l1]
    }
}

/// A mapping, and what the sender says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Of four bits; see [`show::status_text`](super::show::status_text).
    pub status: u8,
    /// Of twelve bits.
    pub vlan: u16,
    /// Of 24 bits.
    pub isid: u32,
}

/// An LLDPDU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lldpdu {
    /// The sender's system.
    pub chassis: Identifier,
    /// The sender's port.
    pub port: Identifier,
    /// For how many seconds it counts; 0: no longer.
    pub ttl: u16,
    /// Text, of the sender's encoding.
    pub port_description: Vec<u8>,
    /// Text, likewise.
    pub system_name: Vec<u8>,
    /// Text, likewise.
    pub system_description: Vec<u8>,
    /// What the system can be, and what it is.
    pub capabilities: Option<[u16; 2]>,
    /// Addresses to manage it by.
    pub addresses: Vec<IpAddr>,
    /// Auto Attach.
    pub element: Option<Element>,
    /// Mappings of Auto Attach.
    pub assignments: Vec<Assignment>,
    /// How many TLVs were not understood, or not kept. It is not sent.
    pub unrecognized: u32,
}

impl Lldpdu {
    /// The PDU in a frame without a VLAN tag, or with one. As 802.1AB asks, TLVs of unknown types are passed over.
    pub fn new_checked(frame: &[u8]) -> Result<Lldpdu, Error> {
        let frame = Untagged::new_checked(frame).map_err(|_| Error::NotLldp)?;
        if frame.ethertype != ETHERTYPE {
            return Err(Error::NotLldp);
        }
        if frame.dst != GROUP {
            return Err(Error::OtherAddress);
        }
        let mut pdu = Lldpdu::default();
        let mut rest = frame.payload;
        for place in 1.. {
            let (kind, value, after) = split_tlv(rest)?;
            rest = after;
            // The first three in their order, and never again.
            if (1..=3).contains(&kind) != (place <= 3) || (place <= 3 && usize::from(kind) != place) {
                return Err(Error::Order);
            }
            if kind == END {
                return if value.is_empty() { Ok(pdu) } else { Err(Error::NoEnd) };
            }
            pdu.take(kind, value)?;
        }
        Err(Error::NoEnd)
    }

    fn take(&mut self, kind: u8, value: &[u8]) -> Result<(), Error> {
        match kind {
            CHASSIS_ID => self.chassis = identifier(value)?,
            PORT_ID => self.port = identifier(value)?,
            TTL => self.ttl = u16::from_be_bytes(*value.first_chunk().ok_or(Error::Short("TTL"))?),
            PORT_DESCRIPTION => self.port_description = text(value, "Port description")?,
            SYSTEM_NAME => self.system_name = text(value, "System name")?,
            SYSTEM_DESCRIPTION => self.system_description = text(value, "System description")?,
            SYSTEM_CAPABILITIES => {
                let [a, b, c, d] = *value.first_chunk().ok_or(Error::Short("System capabilities"))?;
                self.capabilities = Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]);
            }
            MANAGEMENT_ADDRESS => self.take_address(value)?,
            ORGANISATION => self.take_organisation(value)?,
            _ => self.unrecognized += 1,
        }
        Ok(())
    }

    /// Length of family and address, these two, how the interface is numbered, its number, and an object identifier.
    fn take_address(&mut self, value: &[u8]) -> Result<(), Error> {
        const SHORT: Error = Error::Short("Management address");
        let (&len, rest) = value.split_first().ok_or(SHORT)?;
        if len > 32 {
            return Err(Error::Long("Management address"));
        }
        let (address, rest) = rest.split_at_checked(len.into()).ok_or(SHORT)?;
        rest.first_chunk::<5>().ok_or(SHORT)?;
        // Address family numbers of IANA.
        let known = match address {
            [1, v4 @ ..] => v4.try_into().ok().map(|bytes: [u8; 4]| IpAddr::from(bytes)),
            [2, v6 @ ..] => v6.try_into().ok().map(|bytes: [u8; 16]| IpAddr::from(bytes)),
            _ => None,
        };
        match known.filter(|_| self.addresses.len() < MAX_ADDRESSES) {
            Some(address) => self.addresses.push(address),
            None => self.unrecognized += 1,
        }
        Ok(())
    }

    fn take_organisation(&mut self, value: &[u8]) -> Result<(), Error> {
        let (head, _) = value.split_first_chunk::<4>().ok_or(Error::Short("Organisational"))?;
        match (head.first_chunk::<3>(), head[3]) {
            (Some(&AVAYA), AVAYA_ELEMENT) => {
                let bytes = value.get(ASSIGNMENTS_START..).and_then(|rest| rest.first_chunk());
                self.element = Some(Element::parse(bytes.ok_or(Error::Short("ELEMENT"))?));
            }
            (Some(&AVAYA), AVAYA_ASSIGNMENTS) => {
                let pairs = value.get(ASSIGNMENTS_START..).ok_or(Error::Short("ISID_VLAN_ASGNS"))?;
                let (pairs, partial) = pairs.as_chunks::<ASSIGNMENT_LEN>();
                if !partial.is_empty() {
                    return Err(Error::Assignments);
                }
                let kept = pairs.len().min(MAX_ASSIGNMENTS - self.assignments.len());
                self.assignments.extend(pairs.iter().take(kept).map(|&[a, b, c, d, e]| Assignment {
                    status: a >> 4,
                    vlan: u16::from_be_bytes([a & 0xf, b]),
                    isid: u32::from_be_bytes([0, c, d, e]),
                }));
                self.unrecognized += u32::from(kept < pairs.len());
            }
            _ => self.unrecognized += 1,
        }
        Ok(())
    }

    /// The frame that carries the PDU. What is longer than it may be is cut. Where there are management addresses, the
    /// interface that they are of is not said.
    pub fn emit(&self, src: Mac) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, id) in [(CHASSIS_ID, &self.chassis), (PORT_ID, &self.port)] {
            tlv(&mut out, kind, &[&[id.subtype], cut(&id.value)]);
        }
        tlv(&mut out, TTL, &[&self.ttl.to_be_bytes()]);
        let texts = [
            (PORT_DESCRIPTION, &self.port_description),
            (SYSTEM_NAME, &self.system_name),
            (SYSTEM_DESCRIPTION, &self.system_description),
        ];
        for (kind, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
            tlv(&mut out, kind, &[cut(text)]);
        }
        if let Some([available, enabled]) = self.capabilities {
            tlv(&mut out, SYSTEM_CAPABILITIES, &[&available.to_be_bytes(), &enabled.to_be_bytes()]);
        }
        for address in self.addresses.iter().take(MAX_ADDRESSES) {
            // An interface number of no known kind, and no object identifier.
            let unknown = [1, 0, 0, 0, 0, 0];
            match address {
                IpAddr::V4(v4) => tlv(&mut out, MANAGEMENT_ADDRESS, &[&[5, 1], &v4.octets(), &unknown]),
                IpAddr::V6(v6) => tlv(&mut out, MANAGEMENT_ADDRESS, &[&[17, 2], &v6.octets(), &unknown]),
            }
        }
        let digest = [0; DIGEST_LEN];
        if let Some(element) = self.element {
            tlv(&mut out, ORGANISATION, &[&AVAYA, &[AVAYA_ELEMENT], &digest, &element.emit()]);
        }
        if !self.assignments.is_empty() {
            let kept = self.assignments.iter().take(MAX_ASSIGNMENTS);
            let pairs: Vec<u8> = kept.flat_map(Assignment::emit).collect();
            tlv(&mut out, ORGANISATION, &[&AVAYA, &[AVAYA_ASSIGNMENTS], &digest, &pairs]);
        }
        tlv(&mut out, END, &[]);
        ethernet(GROUP, src, &[], ETHERTYPE, &out)
    }
}

impl Assignment {
    fn emit(&self) -> [u8; ASSIGNMENT_LEN] {
        let [a, b] = (self.vlan & 0xfff | u16::from(self.status) << 12).to_be_bytes();
        let [_, c, d, e] = self.isid.to_be_bytes();
        [a, b, c, d, e]
    }
}

/// A TLV's type and value, and what follows it.
fn split_tlv(bytes: &[u8]) -> Result<(u8, &[u8], &[u8]), Error> {
    if bytes.is_empty() {
        return Err(Error::NoEnd);
    }
    let (head, rest) = bytes.split_first_chunk::<2>().ok_or(Error::Truncated)?;
    let head = u16::from_be_bytes(*head);
    let (value, rest) = rest.split_at_checked(usize::from(head) & MAX_TLV).ok_or(Error::Truncated)?;
    Ok(((head >> 9) as u8, value, rest))
}

fn identifier(value: &[u8]) -> Result<Identifier, Error> {
    const WHAT: &str = "Port/Chassis Id";
    match value {
        [] | [_] => Err(Error::Short(WHAT)),
        [_, value @ ..] if value.len() > MAX_TEXT => Err(Error::Long(WHAT)),
        [subtype @ 1..=7, value @ ..] => Ok(Identifier { subtype: *subtype, value: value.to_vec() }),
        _ => Err(Error::Subtype),
    }
}

fn text(value: &[u8], what: &'static str) -> Result<Vec<u8>, Error> {
    if value.len() <= MAX_TEXT { Ok(value.to_vec()) } else { Err(Error::Long(what)) }
}

/// As much as an identifier or text may have.
fn cut(text: &[u8]) -> &[u8] {
    &text[..text.len().min(MAX_TEXT)]
}

fn tlv(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(len <= MAX_TLV);
    out.extend((u16::from(kind) << 9 | len as u16).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

const _: () = assert!(ELEMENT_LEN == 50 && MAX_ASSIGNMENTS == 95);
