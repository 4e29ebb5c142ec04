//! The headers that carry a tunnel: IPv4 (RFC 791) or IPv6 (RFC 8200), and UDP (RFC 768) for those that need it.

use std::net::{IpAddr, Ipv4Addr};

use packet::wire::checksum::{self, Sum};
use packet::wire::{ethertype, ip_proto, ipv4, ipv6, udp};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;
use crate::config::FlowLabel;
use crate::header::srv6;
use crate::header::{self, Below, Header, Patches, Payload, Protocol, Unwritable, Writer};

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
    /// Whether it may not be fragmented: by routers, where it is of IPv4, and by this host. What was received over IPv6 does not say so.
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

/// Reads all headers of a packet that begins with its outer IP header and is for a tunnel's end. [`crate::metadata::receive`] is for packets
/// by the million.
#[inline]
pub fn decapsulate(packet: &[u8], protocol: Protocol, verify: Verify) -> Result<Decapsulated<'_>, Malformed> {
    let none = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let mut outer =
        Outer { src: none, dst: none, tos: 0, ttl: 0, dont_fragment: false, ports: (0, 0), checksum: false };
    let (above, proto) = read_ip(packet, verify, &mut outer)?;
    // Of segment routing it is looked at where the routing header is read.
    let is_carrier = match protocol {
        Protocol::Srv6 { .. } => outer.src.is_ipv6(),
        _ => proto == protocol.ip_proto(),
    };
    if !is_carrier {
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
    let below = Below { proto, is_multicast: outer.dst.is_multicast() };
    let (header, len) = header::read(protocol, &below, carried)?;
    let end = match header {
        // The length of GTP-U may be less than that of UDP.
        Header::Gtpu { .. } => start + 8 + usize::from(u16::from_be_bytes([carried[2], carried[3]])),
        _ => start + carried.len(),
    };
    Ok(Decapsulated { outer, header, start: start + len, end })
}

/// The carrier of most packets: IPv4 without options, and UDP.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PlainUdp {
    pub(crate) ip: ipv4::Header,
    pub(crate) udp: udp::Header,
}

impl PlainUdp {
    /// The headers of a packet, and what UDP carries, where nothing about them is out of the ordinary; with one check of bounds. `None` says
    /// nothing of the packet but that [`decapsulate`] has to look at it.
    #[inline]
    pub(crate) fn read(packet: &[u8], verify: Verify) -> Option<(&PlainUdp, &[u8])> {
        let (plain, rest) = PlainUdp::ref_from_prefix(packet).ok()?;
        let PlainUdp { ip, udp } = plain;
        let (total, len) = (usize::from(ip.total_len.get()), usize::from(udp.len.get()));
        let is_plain = ip.version_ihl == 0x45
            && ip.proto == ip_proto::UDP
            && ip.flags_offset.get() & !ipv4::DONT_FRAGMENT == 0
            && (len >= size_of_val(udp) && size_of_val(ip) + len <= total && total <= packet.len())
            && (!verify.transport || udp.checksum.get() == 0)
            && (!verify.ip || sums_up(ip));
        if is_plain { Some((plain, rest.get(..len - size_of_val(udp))?)) } else { None }
    }
}

/// Whether the checksum of a header without options is right. A sum of words does not depend on the order of their bytes (RFC 1071 section 2).
#[inline]
pub(crate) fn sums_up(header: &ipv4::Header) -> bool {
    let words = header.as_bytes().as_chunks::<4>().0;
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff) == 0xffff
}

/// Whether a header is of those that carry frames and are the same for all of them.
fn is_same_for_segments(header: &Header<'_>) -> bool {
    matches!(
        header,
        Header::Vxlan { .. }
            | Header::VxlanGpe { payload: Payload::Ethernet, .. }
            | Header::Geneve { payload: Payload::Ethernet, .. }
            | Header::Gre { payload: Payload::Ethernet, checksum: false, sequence: None, .. }
    )
}

/// What is behind a header.
#[inline]
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
#[inline]
pub fn carries_erspan(packet: &[u8]) -> bool {
    let above = match packet.first().map_or(0, |byte| byte >> 4) {
        4 => usize::from(packet[0] & 0xf) * 4,
        _ => size_of::<ipv6::Header>(),
    };
    matches!(packet.get(above + 2..above + 4), Some([0x88, 0xbe] | [0x22, 0xeb]))
}

/// Reads the outer IP header into `outer`. Returns where it ends, and the protocol.
#[inline]
fn read_ip(packet: &[u8], verify: Verify, outer: &mut Outer) -> Result<(usize, u8), Malformed> {
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
            (outer.src, outer.dst) = (header.src.into(), header.dst.into());
            (outer.tos, outer.ttl, outer.dont_fragment) = (header.tos, header.ttl, flags_offset != 0);
            Ok((len, header.proto))
        }
        6 => {
            let whole = ipv6::Packet::new_checked(packet).map_err(|_| Malformed::Truncated)?;
            if whole.next() == ip_proto::FRAGMENT {
                return Err(Malformed::Fragment);
            }
            (outer.src, outer.dst) = (whole.src().into(), whole.dst().into());
            (outer.tos, outer.ttl) = (whole.traffic_class(), whole.hop_limit());
            Ok((size_of::<ipv6::Header>(), whole.next()))
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
    /// Timestamp, of ERSPAN version 2: hundreds of microseconds.
    pub timestamp: u32,
    /// Hash of the inner packet, of SRv6 whose flow label is made of it.
    pub hash: u32,
}

/// All headers of a tunnel, made once for many packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prepared {
    bytes: [u8; MAX_HEADERS],
    len: u16,
    /// Where the IP header begins.
    ip: u16,
    /// Where it ends.
    above: u16,
    /// Where the tunnel's header begins.
    header: u16,
    /// The sum of the IPv4 header without length and identification.
    ip_sum: u16,
    is_v6: bool,
    is_udp: bool,
    /// How many bytes of a frame are not carried: its header of Ethernet, or none.
    skipped: u8,
    /// Whether routers may fragment the packet, by its identification.
    has_id: bool,
    /// Whether this host may fragment the packet.
    may_fragment: bool,
    /// Whether a super-frame can have them as a whole.
    fit_super_frames: bool,
    /// Whether it may be one of UDP then, whose datagrams have the segments.
    fit_datagrams: bool,
    /// Whether packets have any of what [`Rest`] says.
    has_rest: bool,
    rest: Rest,
}

/// What few tunnels have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rest {
    patches: Patches,
    /// The flow label, where it differs from packet to packet.
    label: Option<FlowLabel>,
    /// The sum of the pseudo header without the length, where UDP has a checksum.
    udp_sum: Option<Sum>,
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
        let ip = out.len;
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
        let above = out.len;
        let is_udp = proto == ip_proto::UDP;
        if is_udp {
            out.put(&0u16.to_be_bytes())?;
            out.put(&outer.ports.1.to_be_bytes())?;
            out.put(&[0; 4])?;
        }
        let at = out.len;
        let (len, patches) = header.write(&mut bytes[at..])?;
        let udp_sum = (is_udp && outer.checksum).then(|| pseudo(outer, proto, 0));
        let fit_segments = outer.dont_fragment && is_same_for_segments(header);
        Ok(Prepared {
            bytes,
            len: (at + len) as u16,
            ip: ip as u16,
            above: above as u16,
            header: at as u16,
            ip_sum: Sum::ZERO.add_bytes(&bytes[ip..above]).partial(),
            is_v6,
            is_udp,
            skipped: if payload == Payload::Ethernet { 0 } else { 14 },
            has_id: !is_v6 && !outer.dont_fragment,
            may_fragment: !outer.dont_fragment,
            fit_super_frames: fit_segments && udp_sum.is_none(),
            fit_datagrams: fit_segments && is_udp,
            has_rest: patches != Patches::default() || label.is_some() || udp_sum.is_some(),
            rest: Rest { patches, label, udp_sum },
        })
    }

    /// The headers, without what each packet has of its own.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// Whether a checksum covers what is carried.
    #[inline]
    pub fn sums_payload(&self) -> bool {
        self.has_rest && (self.rest.patches.checksum.is_some() || self.rest.udp_sum.is_some())
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

    /// Whether packets say when they were mirrored ([`Each::timestamp`]).
    #[inline]
    pub fn needs_timestamp(&self) -> bool {
        self.rest.patches.timestamp.is_some()
    }

    /// Whether a super-frame can have them as a whole: they are the same for each of its segments but for lengths and identification,
    /// and whoever cuts it finds the packet inside.
    #[inline]
    pub fn fit_super_frames(&self) -> bool {
        self.fit_super_frames
    }

    /// The same, where each segment becomes a datagram of UDP with a checksum of its own: for those who make such of a super-frame.
    #[inline]
    pub fn fit_datagrams(&self) -> bool {
        self.fit_datagrams
    }

    /// Whether a packet that is too long may be sent as fragments.
    #[inline]
    pub fn may_fragment(&self) -> bool {
        self.may_fragment
    }

    /// Where the IP header begins.
    #[inline]
    pub fn ip(&self) -> usize {
        self.ip.into()
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
        // 1. What all packets have in common.
        let Some(room) = frame.get_mut(..self.len()) else { return false };
        copy(room, &self.bytes);
        // 2. IP.
        let [ip, above] = [self.ip, self.above].map(usize::from);
        let [from_ip, above_len] = [frame.len() - ip, frame.len() - above];
        let Some(front) = frame.get_mut(ip..).and_then(|bytes| bytes.first_chunk_mut::<20>()) else { return false };
        if self.is_v6 {
            let Ok(len) = u16::try_from(above_len) else { return false };
            front[4..6].copy_from_slice(&len.to_be_bytes());
        } else {
            let Ok(len) = u16::try_from(from_ip) else { return false };
            front[2..4].copy_from_slice(&len.to_be_bytes());
            front[4..6].copy_from_slice(&each.id.to_be_bytes());
            let sum = u32::from(self.ip_sum) + u32::from(len) + u32::from(each.id);
            let sum = (sum >> 16) + (sum & 0xffff);
            front[10..12].copy_from_slice(&(!((sum >> 16) + sum) as u16).to_be_bytes());
        }
        // 3. UDP.
        if self.is_udp {
            let Some(front) = frame.get_mut(above..).and_then(|bytes| bytes.first_chunk_mut::<8>()) else {
                return false;
            };
            front[..2].copy_from_slice(&each.source_port.to_be_bytes());
            front[4..6].copy_from_slice(&(above_len as u16).to_be_bytes());
        }
        // 4. The rest.
        if self.has_rest {
            self.write_rest(frame, each);
        }
        true
    }

    /// The same headers as [`PlainHeaders`], if they are like most.
    pub fn plain(&self) -> Option<PlainHeaders> {
        let is_plain = self.is_udp
            && !self.is_v6
            && !self.has_rest
            && !self.may_fragment
            && !self.has_id
            && (self.ip, self.skipped) == (ETHERNET_LEN as u16, 0)
            && usize::from(self.above) == ETHERNET_LEN + size_of::<ipv4::Header>();
        let skipped = MAX_PLAIN.checked_sub(self.len()).filter(|_| is_plain)?;
        let mut bytes = [0; MAX_PLAIN];
        bytes[skipped..].copy_from_slice(self.bytes());
        Some(PlainHeaders { bytes, skipped: skipped as u16, ip_sum: self.ip_sum })
    }

    /// Writes what few tunnels have, into a frame that has all else.
    #[inline(never)]
    fn write_rest(&self, frame: &mut [u8], each: &Each) {
        let [ip, above, header] = [self.ip, self.above, self.header].map(usize::from);
        let place = |at: Option<u16>| at.map(|at| header + usize::from(at));
        if let Some(label) = self.rest.label {
            put_label(frame, ip, self.len(), label, each.hash);
        }
        if let Some(at) = place(self.rest.patches.sequence) {
            put32(frame, at, each.sequence);
        }
        if let Some(at) = place(self.rest.patches.timestamp) {
            put32(frame, at, each.timestamp);
        }
        if let Some(at) = place(self.rest.patches.length) {
            // At most what the length of IP can say.
            put16(frame, at, (frame.len() - header - 8) as u16);
        }
        if let Some(at) = place(self.rest.patches.checksum) {
            let sum = checksum::checksum(&frame[header..]);
            put16(frame, at, sum);
        }
        if let Some(sum) = self.rest.udp_sum {
            let datagram = &frame[above..];
            let sum = sum.add_u16(datagram.len() as u16).add_bytes(datagram).finish_udp();
            put16(frame, above + 6, sum);
        }
    }
}

/// Most bytes of [`PlainHeaders`].
const MAX_PLAIN: usize = 64;

/// Bytes of the header of Ethernet, without tags.
const ETHERNET_LEN: usize = 14;

/// The headers that most tunnels put before frames: Ethernet without tags, IPv4 that nobody may fragment, UDP without a checksum, and one in which nothing
/// differs from packet to packet. They lie together, so that packets that each enter another tunnel need little memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct PlainHeaders {
    /// The headers, up to the end.
    bytes: [u8; MAX_PLAIN],
    /// Where they begin.
    skipped: u16,
    /// The sum of the IPv4 header without length and identification.
    ip_sum: u16,
}

impl PlainHeaders {
    /// How many bytes they are.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty, reason = "there are always some")]
    pub fn len(&self) -> usize {
        MAX_PLAIN - usize::from(self.skipped)
    }

    /// Room that has to be there before a packet. Its last bytes become the headers, the others have no meaning.
    pub const ROOM: usize = MAX_PLAIN;

    /// Writes them into the room before a packet of `len` bytes, as [`Prepared::write`] does. Returns `false` where the packet is longer than
    /// the length fields can say.
    #[inline(always)]
    pub fn write(&self, room: &mut [u8; MAX_PLAIN], len: usize, source_port: u16) -> bool {
        *room = self.bytes;
        let Some(front) = room.get_mut(usize::from(self.skipped) + ETHERNET_LEN..) else { return false };
        let from_ip = front.len() + len;
        let (Ok(from_ip), Ok((front, _))) = (u16::try_from(from_ip), PlainUdp::mut_from_prefix(front)) else {
            return false;
        };
        front.ip.total_len.set(from_ip);
        let sum = u32::from(self.ip_sum) + u32::from(from_ip);
        front.ip.checksum.set(!((sum >> 16) + sum) as u16);
        front.udp.src.set(source_port);
        front.udp.len.set(from_ip - size_of::<ipv4::Header>() as u16);
        true
    }
}

/// Copies as many of `bytes` as there is room for. For the usual lengths these are two pieces of a fixed length that overlap, and no call.
#[inline]
fn copy(room: &mut [u8], bytes: &[u8; MAX_HEADERS]) {
    fn ends<const N: usize>(room: &mut [u8], bytes: &[u8]) -> Option<()> {
        *room.first_chunk_mut::<N>()? = *bytes.first_chunk()?;
        *room.last_chunk_mut::<N>()? = *bytes.last_chunk()?;
        Some(())
    }
    let bytes = &bytes[..room.len()];
    let done = match room.len() {
        32..=64 => ends::<32>(room, bytes),
        65..=128 => ends::<64>(room, bytes),
        _ => None,
    };
    if done.is_none() {
        room.copy_from_slice(bytes);
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
