//! The headers that carry a tunnel: IPv4 (RFC 791) or IPv6 (RFC 8200), and UDP (RFC 768) for those that need it.

use std::net::IpAddr;

use packet::wire::checksum::{self, Sum};
use packet::wire::{ethertype, ip_proto, ipv4, ipv6, udp};
use zerocopy::{FromBytes, IntoBytes};

use crate::config::FlowLabel;
use crate::header::{self, Header, Patches, Payload, Protocol, Unwritable, Writer};
use crate::{Malformed, srv6};

/// Most bytes of all headers of a tunnel, that of Ethernet included.
pub const MAX_HEADERS: usize = 256;

/// What the outer headers say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// Source; of the same family as the destination.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Whether routers may not fragment it, of IPv4.
    pub dont_fragment: bool,
    /// Source and destination port of UDP; zero where there is none.
    pub ports: (u16, u16),
    /// Whether it has a checksum of UDP.
    pub checksum: bool,
}

/// Which checksums have to be computed: those that the port has not verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verify {
    /// That of the IPv4 header.
    pub ip: bool,
    /// That of UDP.
    pub transport: bool,
}

/// A packet that came through a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decapsulated<'a> {
    /// The outer headers.
    pub outer: Outer,
    /// The tunnel's header.
    pub header: Header<'a>,
    /// Where the payload begins, from the start of the outer IP header.
    pub start: usize,
    /// Where it ends; padding of the frame may follow.
    pub end: usize,
}

/// Reads all headers of a packet that begins with its outer IP header and is for a tunnel's end.
pub fn decapsulate(packet: &[u8], protocol: Protocol, verify: Verify) -> Result<Decapsulated<'_>, Malformed> {
    let (mut outer, above, proto) = read_ip(packet, verify)?;
    let is_srv6 = matches!(protocol, Protocol::Srv6 { .. });
    if if is_srv6 { outer.src.is_ipv4() } else { proto != protocol.ip_proto() } {
        return Err(Malformed::Carrier);
    }
    let mut carried =
        packet.get(above..).and_then(|bytes| bytes.get(..ip_end(packet)? - above)).ok_or(Malformed::Length)?;
    let mut start = above;
    if protocol.ip_proto() == ip_proto::UDP {
        let (header, _) = udp::Header::ref_from_prefix(carried).map_err(|_| Malformed::Truncated)?;
        let len = usize::from(header.len.get());
        let datagram = carried.get(..len).filter(|_| len >= size_of_val(header)).ok_or(Malformed::Length)?;
        outer.ports = (header.src.get(), header.dst.get());
        outer.checksum = header.checksum.get() != 0;
        // Without a checksum over IPv6: RFC 6935.
        if outer.checksum && verify.transport && pseudo(&outer, proto, len).add_bytes(datagram).finish() != 0 {
            return Err(Malformed::Checksum);
        }
        carried = &datagram[size_of_val(header)..];
        start += size_of_val(header);
    }
    let end = start + carried.len();
    let (mut header, len) = if is_srv6 { srv6::read(proto, carried)? } else { header::read(protocol, carried)? };
    if let (Protocol::Bareudp(bare), Header::Bareudp { payload: Payload::Packet(number) }) = (protocol, &mut header)
        && *number == ethertype::MPLS
        && outer.dst.is_multicast()
    {
        // The address tells multicast of MPLS from unicast, as in Linux.
        *number = ethertype::MPLS_MULTICAST;
        if !bare.takes(*number) {
            return Err(Malformed::Payload);
        }
    }
    // The length of GTP-U may be less than that of UDP.
    let end = match header {
        Header::Gtpu { .. } => start + 8 + usize::from(u16::from_be_bytes([carried[2], carried[3]])),
        _ => end,
    };
    Ok(Decapsulated { outer, header, start: start + len, end })
}

/// What is behind a header.
pub fn payload_of(header: &Header<'_>) -> Payload {
    match *header {
        Header::Vxlan { .. } | Header::Erspan { .. } => Payload::Ethernet,
        Header::VxlanGpe { payload, .. }
        | Header::Geneve { payload, .. }
        | Header::Gre { payload, .. }
        | Header::Gtpu { payload, .. }
        | Header::Lisp { payload, .. }
        | Header::Bareudp { payload }
        | Header::Srv6 { payload, .. } => payload,
    }
}

/// Whether a packet that begins with its outer IP header is of GRE and carries ERSPAN.
pub fn carries_erspan(packet: &[u8]) -> bool {
    let above = match packet.first().map_or(0, |byte| byte >> 4) {
        4 => usize::from(packet[0] & 0xf) * 4,
        _ => size_of::<ipv6::Header>(),
    };
    matches!(packet.get(above + 2..above + 4), Some([0x88, 0xbe] | [0x22, 0xeb]))
}

/// Reads the outer IP header. Returns also where it ends, and the protocol.
fn read_ip(packet: &[u8], verify: Verify) -> Result<(Outer, usize, u8), Malformed> {
    let outer = |src, dst, tos, ttl| Outer { src, dst, tos, ttl, dont_fragment: false, ports: (0, 0), checksum: false };
    match packet.first().ok_or(Malformed::Truncated)? >> 4 {
        4 => {
            let (header, _) = ipv4::Header::ref_from_prefix(packet).map_err(|_| Malformed::Truncated)?;
            let len = usize::from(header.version_ihl & 0xf) * 4;
            let bytes = packet.get(..len).ok_or(Malformed::Truncated)?;
            if len < size_of_val(header) || usize::from(header.total_len.get()) < len {
                return Err(Malformed::Length);
            }
            if verify.ip && checksum::checksum(bytes) != 0 {
                return Err(Malformed::Checksum);
            }
            let flags_offset = header.flags_offset.get();
            if flags_offset & !ipv4::DONT_FRAGMENT != 0 {
                return Err(Malformed::Fragment);
            }
            let outer = outer(IpAddr::from(header.src), IpAddr::from(header.dst), header.tos, header.ttl);
            Ok((Outer { dont_fragment: flags_offset != 0, ..outer }, len, header.proto))
        }
        6 => {
            let whole = ipv6::Packet::new_checked(packet).map_err(|_| Malformed::Truncated)?;
            if whole.next() == ip_proto::FRAGMENT {
                return Err(Malformed::Fragment);
            }
            let outer = outer(whole.src().into(), whole.dst().into(), whole.traffic_class(), whole.hop_limit());
            Ok((outer, size_of::<ipv6::Header>(), whole.next()))
        }
        _ => Err(Malformed::Carrier),
    }
}

/// Where the IP packet ends, as its header says, if that is within `packet`.
fn ip_end(packet: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?])));
    let end = if packet.first()? >> 4 == 4 { word(2)? } else { size_of::<ipv6::Header>() + word(4)? };
    (end <= packet.len()).then_some(end)
}

fn pseudo(outer: &Outer, proto: u8, len: usize) -> Sum {
    match (outer.src, outer.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, proto, len as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, proto, len as u32),
        _ => Sum::ZERO,
    }
}

/// What differs from packet to packet of one tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Each {
    /// Identification, of IPv4.
    pub id: u16,
    /// Source port, of UDP: of the hash of the inner packet.
    pub source_port: u16,
    /// Sequence number, of GRE that has one.
    pub sequence: u32,
    /// Timestamp, of ERSPAN version 2.
    pub timestamp: u32,
    /// Hash of the inner packet, of SRv6 whose flow label is made of it.
    pub hash: u32,
}

/// All headers of a tunnel, made once for many packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prepared {
    bytes: [u8; MAX_HEADERS],
    len: u16,
    /// Where the IP header begins, and where it ends.
    ip: [u16; 2],
    is_v6: bool,
    /// Where the header of UDP begins, and whether it has a checksum.
    udp: Option<(u16, bool)>,
    /// Where the tunnel's header begins.
    header: u16,
    /// How many bytes of a frame are not carried: its header of Ethernet, or none.
    skipped: u8,
    /// Whether routers may fragment the packet, by its identification.
    has_id: bool,
    /// The flow label, where it differs from packet to packet.
    label: Option<FlowLabel>,
    patches: Patches,
    /// Of the IPv4 header without length and identification, or of the pseudo header without the length.
    sums: [Sum; 2],
}

impl Prepared {
    /// Headers that begin with `ethernet`: that of Ethernet, with its VLAN tags.
    pub fn new(
        ethernet: &[u8],
        outer: &Outer,
        protocol: Protocol,
        header: &Header<'_>,
    ) -> Result<Prepared, Unwritable> {
        let mut bytes = [0; MAX_HEADERS];
        let mut out = Writer::new(&mut bytes);
        out.put(ethernet)?;
        let ip = out.len as u16;
        let proto = match (*header, protocol) {
            (Header::Srv6 { segments, .. }, _) if segments.iter().next().is_some_and(|first| first != outer.dst) => {
                return Err(Unwritable::Range);
            }
            (Header::Srv6 { segments, payload }, _) if segments.is_empty() => srv6::next(payload)?,
            (Header::Bareudp { payload: Payload::Packet(number) }, Protocol::Bareudp(bare)) if !bare.takes(number) => {
                return Err(Unwritable::Payload);
            }
            _ => protocol.ip_proto(),
        };
        let is_v6 = match (outer.src, outer.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let flags_offset = if outer.dont_fragment { ipv4::DONT_FRAGMENT } else { 0 };
                let header = ipv4::Header {
                    version_ihl: 0x45,
                    tos: outer.tos,
                    total_len: 0.into(),
                    id: 0.into(),
                    flags_offset: flags_offset.into(),
                    ttl: outer.ttl,
                    proto,
                    checksum: 0.into(),
                    src: src.octets(),
                    dst: dst.octets(),
                };
                out.put(header.as_bytes())?;
                false
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let first = 6 << 28 | u32::from(outer.tos) << 20;
                out.put(&first.to_be_bytes())?;
                out.put(&[0, 0, proto, outer.ttl])?;
                out.put(&src.octets())?;
                out.put(&dst.octets())?;
                true
            }
            _ => return Err(Unwritable::Range),
        };
        let payload = payload_of(header);
        let label = match protocol {
            Protocol::Srv6 { .. } if !is_v6 => return Err(Unwritable::Range),
            Protocol::Srv6 { flow_label: FlowLabel::Copy } if payload == Payload::Packet(ethertype::IPV6) => {
                Some(FlowLabel::Copy)
            }
            Protocol::Srv6 { flow_label: FlowLabel::Compute } => Some(FlowLabel::Compute),
            _ => None,
        };
        let above = out.len as u16;
        let udp = (proto == ip_proto::UDP).then_some((above, outer.checksum));
        if udp.is_some() {
            out.put(&0u16.to_be_bytes())?;
            out.put(&outer.ports.1.to_be_bytes())?;
            out.put(&[0; 4])?;
        }
        let at = out.len;
        let (len, patches) = header.write(&mut bytes[at..])?;
        let sums = [Sum::ZERO.add_bytes(&bytes[usize::from(ip)..usize::from(above)]), pseudo(outer, proto, 0)];
        let (len, header_at) = ((at + len) as u16, at as u16);
        let skipped = if payload == Payload::Ethernet { 0 } else { 14 };
        let has_id = !is_v6 && !outer.dont_fragment;
        let ip = [ip, above];
        Ok(Prepared { bytes, len, ip, is_v6, udp, header: header_at, skipped, has_id, label, patches, sums })
    }

    /// The headers, without what each packet has of its own.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// Whether a checksum covers what is carried.
    #[inline]
    pub fn sums_payload(&self) -> bool {
        self.patches.checksum.is_some() || matches!(self.udp, Some((_, true)))
    }

    /// How many bytes of a frame are not carried: its header of Ethernet, or none.
    #[inline]
    pub fn skipped(&self) -> usize {
        self.skipped.into()
    }

    /// Whether [`Each::id`] has to differ from packet to packet.
    #[inline]
    pub fn needs_id(&self) -> bool {
        self.has_id
    }

    /// How many bytes they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Whether there are none: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes them into the first bytes of a frame, whose payload is behind them. Returns `false`, and leaves no frame to be sent, where
    /// the packet is longer than its length fields can say, or there is no room.
    #[inline]
    pub fn write(&self, frame: &mut [u8], each: &Each) -> bool {
        let Some(room) = frame.get_mut(..self.len()) else { return false };
        room.copy_from_slice(&self.bytes[..self.len()]);
        let [ip, above] = self.ip.map(usize::from);
        let above_len = frame.len() - above;
        let counted = if self.is_v6 { above_len } else { frame.len() - ip };
        let Ok(counted) = u16::try_from(counted) else { return false };
        if self.is_v6 {
            put16(frame, ip + 4, counted);
            if let Some(label) = self.label {
                put_label(frame, ip, self.len(), label, each.hash);
            }
        } else {
            put16(frame, ip + 2, counted);
            put16(frame, ip + 4, each.id);
            put16(frame, ip + 10, self.sums[0].add_u16(counted).add_u16(each.id).finish());
        }
        let header = usize::from(self.header);
        let place = |at: Option<u16>| at.map(|at| header + usize::from(at));
        if let Some(at) = place(self.patches.sequence) {
            put32(frame, at, each.sequence);
        }
        if let Some(at) = place(self.patches.timestamp) {
            put32(frame, at, each.timestamp);
        }
        if let Some(at) = place(self.patches.length) {
            // At most what the length of IP can say.
            put16(frame, at, (frame.len() - header - 8) as u16);
        }
        if let Some(at) = place(self.patches.checksum) {
            let sum = checksum::checksum(&frame[header..]);
            put16(frame, at, sum);
        }
        if let Some((udp, has_checksum)) = self.udp {
            let udp = usize::from(udp);
            put16(frame, udp, each.source_port);
            put16(frame, udp + 4, above_len as u16);
            if has_checksum {
                let sum = self.sums[1].add_u16(above_len as u16).add_bytes(&frame[udp..]).finish_udp();
                put16(frame, udp + 6, sum);
            }
        }
        true
    }
}

/// Writes the flow label of IPv6, which is zero: that of the packet of IPv6 at `inner`, or one made of a hash.
fn put_label(frame: &mut [u8], ip: usize, inner: usize, label: FlowLabel, hash: u32) {
    let word =
        |at: usize| frame.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u32::from_be_bytes(*word));
    let label = match label {
        FlowLabel::Copy if word(inner) >> 28 == 6 => word(inner),
        FlowLabel::Compute => hash,
        _ => 0,
    };
    put32(frame, ip, word(ip) | label & 0xf_ffff);
}

fn put16(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn put32(frame: &mut [u8], at: usize, value: u32) {
    frame[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
