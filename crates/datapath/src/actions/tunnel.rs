//! Tunnels: putting their headers before packets, and taking them away.
//!
//! Headers are made once for a flow; for each packet they are copied, and what depends on the packet is written: lengths, the UDP source
//! port, and checksums. A packet that has left its tunnel is classified again, as one that its tunnel's port has received, with what the
//! headers said as metadata.
//!
//! Work that is left to do for a packet (checksums, segments) is about its inner headers. Where the outer ones have a checksum of all that
//! they carry, it is done before. Super-frames get the headers as a whole where each segment can have the same and the port by which they leave takes them so;
//! otherwise they are cut before. What is too long then for the device of the route is
//! sent in fragments where the headers allow that; otherwise it is dropped where it would be sent.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use packet::flow::{block, tun_flags};
use packet::wire::{ip_proto, ipv4, ipv6};
use packet::{Memory, Offload, Packet};
use ports::offload::fragment::fragment;
use ports::offload::{OffloadError, complete, complete_checksum};
use ports::{Offloads, TakesTunnels};
use tunnel::Malformed;
use tunnel::header::{Payload, Protocol};
use tunnel::outer::{self, Each, PlainHeaders, Prepared, Verify};
use tunnel::send::SourcePorts;
use tunnel::{ecn, metadata, plain};
use zerocopy::FromBytes;

use crate::drop::DropReason;
use crate::pipeline::metadata::{Metadata, TunnelledRest};
use crate::port_no::PortNo;

/// What [`Action::TunnelPush`](crate::Action::TunnelPush) puts before packets.
pub struct Encapsulation {
    /// The tunnel's port; for whoever reads the flow.
    pub tunnel_port: PortNo,
    /// The port of the underlay that has its address; for whoever reads the flow.
    pub out_port: PortNo,
    /// What is in the headers: the number of its type in OVS's text.
    pub kind: u32,
    /// The headers.
    pub headers: Prepared,
    /// Which UDP source ports packets get.
    pub source_ports: SourcePorts,
    /// Numbers of packets, for tunnels that number them.
    pub sequence: Option<Arc<AtomicU32>>,
    /// Most bytes of a packet that enter; set by [`Action::Truncate`](crate::Action::Truncate) before it.
    max_len: u32,
}

impl PartialEq for Encapsulation {
    fn eq(&self, other: &Encapsulation) -> bool {
        let Encapsulation { tunnel_port, out_port, kind, headers, source_ports, sequence, max_len } = self;
        let same_numbers = match (sequence, &other.sequence) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        (*tunnel_port, *out_port, *kind) == (other.tunnel_port, other.out_port, other.kind)
            && *source_ports == other.source_ports
            && same_numbers
            && *max_len == other.max_len
            && *headers == other.headers
    }
}

impl fmt::Debug for Encapsulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encapsulation({} over {}, {:02x?})", self.tunnel_port.0, self.out_port.0, self.headers.bytes())
    }
}

/// What [`Action::TunnelPop`](crate::Action::TunnelPop) takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decapsulation {
    /// The port that receives what was in the tunnel.
    pub port: PortNo,
    /// The protocol.
    pub protocol: Protocol,
    /// The port for frames of ERSPAN, whose carrier is GRE, too.
    pub erspan: Option<PortNo>,
}

/// The shortest frame of Ethernet with a tag, without its checksum: shorter ones are padded.
const SHORTEST: usize = 64;

/// The longest packet of IP.
const LONGEST: usize = u16::MAX as usize;

/// How many identifications a thread takes at once.
const IDS: u32 = 64;

/// The next identifications that no thread has taken: what two workers send to one host must not be put together there.
static NEXT_IDS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// The identification of the next packet that may be fragmented, and how many are left behind it.
    static OWN_IDS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The time of day in hundreds of microseconds, which wraps after five days: what ERSPAN's granularity 0 asks for.
#[cold]
fn timestamp() -> u32 {
    let today = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (today.as_micros() / 100) as u32
}

/// An identification that no other packet has had lately.
#[inline]
fn next_id() -> u32 {
    let (id, left) = match OWN_IDS.get() {
        (_, 0) => (NEXT_IDS.fetch_add(IDS, Ordering::Relaxed), IDS),
        own => own,
    };
    OWN_IDS.set((id.wrapping_add(1), left - 1));
    id
}

impl Encapsulation {
    /// These headers, with source ports from a range.
    pub fn new(
        tunnel_port: PortNo,
        out_port: PortNo,
        kind: u32,
        headers: Prepared,
        source_ports: SourcePorts,
        sequence: Option<Arc<AtomicU32>>,
    ) -> Encapsulation {
        Encapsulation { tunnel_port, out_port, kind, headers, source_ports, sequence, max_len: u32::MAX }
    }

    /// The same for packets that are cut off behind so many bytes.
    pub(crate) fn truncating(&self, max_len: u32) -> Encapsulation {
        let &Encapsulation { tunnel_port, out_port, kind, headers, source_ports, ref sequence, .. } = self;
        Encapsulation { tunnel_port, out_port, kind, headers, source_ports, sequence: sequence.clone(), max_len }
    }

    /// The longest packet that gets these headers as it is: longer ones cannot say their length, or have to be fragmented, where packets may
    /// be: others are not our business. `mtu`: that of the route's device.
    #[inline(always)]
    pub fn longest(&self, mtu: usize) -> usize {
        let longer = self.headers.len() - self.headers.ip();
        let most = if self.headers.may_fragment() { mtu.min(LONGEST) } else { LONGEST };
        match most.saturating_sub(longer) + self.headers.skipped() {
            longest if longest >= self.max_len as usize => usize::MAX,
            longest => longest,
        }
    }

    /// Whether the packet can be encapsulated as it is. It is `longer` then by headers that it gets before; see
    /// [`longest`](Encapsulation::longest). `whole` says how the port by which a super-frame leaves takes it with the headers as a whole, and the
    /// MTU. Cutting it behind a tunnel takes longer than before it.
    #[inline(always)]
    pub fn takes(
        &self,
        packet: &Packet,
        longer: usize,
        longest: usize,
        whole: impl Fn() -> (TakesTunnels, usize),
    ) -> bool {
        let offload = packet.offload();
        if offload.is_gso() {
            let (by_port, mtu) = whole();
            return longer == 0 && self.takes_whole(packet, by_port, mtu);
        }
        let is_summed = self.headers.sums_payload() || self.max_len != u32::MAX;
        (!offload.needs_csum() || !is_summed) && packet.len() + longer <= longest
    }

    /// Whether a super-frame can have the headers as a whole: it is in no other tunnel, its segments keep within the MTU, and IP can tell
    /// its length.
    #[inline(never)]
    fn takes_whole(&self, packet: &Packet, by_port: TakesTunnels, mtu: usize) -> bool {
        let (offload, frame) = (packet.offload(), packet.data());
        let fit = by_port.whole && self.headers.fit_super_frames() || by_port.datagrams && self.headers.fit_datagrams();
        if !fit || self.max_len != u32::MAX || !offload.needs_csum() {
            return false;
        }
        let (l4, longer) = (usize::from(offload.csum_start), self.headers.len() - self.headers.ip());
        let l4_len = match offload.gso_type & !Offload::GSO_ECN {
            Offload::GSO_TCPV4 | Offload::GSO_TCPV6 => usize::from(frame.get(l4 + 12).map_or(0, |byte| byte >> 4)) * 4,
            Offload::GSO_UDP_L4 => 8,
            _ => return false,
        };
        own_l4(frame) == Some(l4)
            && l4 + l4_len + usize::from(offload.gso_size) + longer <= mtu
            && frame.len() + longer <= usize::from(u16::MAX)
    }

    /// Puts the headers before a packet that can be encapsulated as it is. Returns `false` where there is no room, or the packet is too
    /// long for the length fields; then it must not go on.
    #[must_use]
    #[inline(always)]
    pub fn push(&self, packet: &mut Packet) -> bool {
        let len = self.headers.len();
        if packet.len() > self.max_len as usize {
            packet.truncate(self.max_len as usize);
        }
        let hash = inner_hash(packet.data());
        let source_port = self.source_ports.of(hash);
        let skipped = self.headers.skipped();
        if skipped != 0 {
            // The tunnel carries no Ethernet.
            if packet.len() < skipped {
                return false;
            }
            packet.pull_front(skipped);
        }
        if !packet.make_headroom(len) || packet.push_front(len).is_none() {
            return false;
        }
        let mut each = Each { source_port, hash, ..Each::default() };
        if self.headers.needs_id() {
            each.id = next_id() as u16;
        }
        if let Some(sequence) = &self.sequence {
            each.sequence = sequence.fetch_add(1, Ordering::Relaxed);
        }
        if self.headers.needs_timestamp() {
            each.timestamp = timestamp();
        }
        let offload = packet.offload_mut();
        let by = (len - skipped) as u16;
        if offload.needs_csum() {
            offload.csum_start = offload.csum_start.wrapping_add(by);
            match offload.is_gso() {
                true => offload.hdr_len = offload.hdr_len.saturating_add(by),
                false => (offload.gso_type, offload.hdr_len, offload.gso_size) = (0, 0, 0),
            }
        } else {
            *offload = Offload::NONE;
        }
        self.headers.write(packet.data_mut(), &each)
    }

    /// Puts the headers before each packet that `packet` becomes when the work is done that is left to do for it, and has those
    /// fragmented that may be and are longer than `mtu`.
    #[cold]
    pub fn push_completed(
        &self,
        packet: Packet,
        memory: &'static Memory,
        mtu: usize,
        emit: &mut dyn FnMut(Packet, bool),
    ) -> Result<(), OffloadError> {
        let csum = !self.headers.sums_payload() && self.max_len == u32::MAX;
        let can = Offloads { csum, ..Offloads::default() };
        let ip = self.headers.ip();
        let mut fragmented = Ok(());
        complete(packet, can, memory, &mut |mut part| {
            let pushed = self.push(&mut part);
            if !pushed || !self.headers.may_fragment() || part.len() - ip <= mtu {
                return emit(part, pushed);
            }
            let result = complete_checksum(&mut part)
                .and_then(|()| fragment(&part, ip, mtu, next_id(), memory, &mut |piece| emit(piece, true)));
            if fragmented.is_ok() {
                fragmented = result.map(|_| ());
            }
        })
        .and(fragmented)
    }
}

/// What puts headers like those of most tunnels before packets and sends them. It is two cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct PlainPush {
    headers: PlainHeaders,
    source_ports: SourcePorts,
    /// The port that packets are sent to.
    port: PortNo,
}

const _: () = assert!(size_of::<PlainPush>() == 128);

impl PlainPush {
    /// For an encapsulation and the port that packets leave by, if all packets get such headers.
    pub fn new(push: &Encapsulation, port: PortNo) -> Option<PlainPush> {
        let is_plain = push.sequence.is_none() && push.max_len == u32::MAX;
        let headers = push.headers.plain().filter(|_| is_plain)?;
        Some(PlainPush { headers, source_ports: push.source_ports, port })
    }

    /// The port that packets are sent to.
    #[inline(always)]
    pub fn port(&self) -> PortNo {
        self.port
    }

    /// How many bytes the headers are.
    #[inline(always)]
    pub fn growth(&self) -> u32 {
        self.headers.len() as u32
    }

    /// Whether the packet can have the headers as it is, but for `longer` more bytes that it gets before: it is no super-frame, there is room,
    /// and it is not too long.
    #[inline(always)]
    pub fn takes(&self, packet: &Packet, longer: u32) -> bool {
        let room = PlainHeaders::ROOM + longer as usize;
        !packet.offload().is_gso() & (packet.headroom() >= room) & (packet.len() + room <= LONGEST)
    }

    /// Puts the headers before a packet that can have them.
    #[inline(always)]
    pub fn push(&self, packet: &mut Packet) {
        let source_port = self.source_ports.of(inner_hash(packet.data()));
        let len = packet.len();
        let room = packet.push_front(PlainHeaders::ROOM).and_then(|room| room.first_chunk_mut());
        let is_written = room.is_some_and(|room| self.headers.write(room, len, source_port));
        debug_assert!(is_written, "there is room");
        packet.pull_front(PlainHeaders::ROOM - self.headers.len());
        if packet.offload().needs_csum() {
            return self.shift_offload(packet);
        }
        *packet.offload_mut() = Offload::NONE;
    }

    /// What is left to do for the packet is about what is behind the headers.
    #[inline(never)]
    fn shift_offload(&self, packet: &mut Packet) {
        let offload = packet.offload_mut();
        offload.csum_start = offload.csum_start.wrapping_add(self.headers.len() as u16);
        (offload.gso_type, offload.hdr_len, offload.gso_size) = (0, 0, 0);
    }
}

/// Where the header above IP begins in a frame, behind tags, if there are no extension headers.
fn own_l4(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    while let Some([0x81, 0x00] | [0x88, 0xa8]) = frame.get(at..at + 2) {
        at += 4;
    }
    match *frame.get(at..at + 3)? {
        [0x08, 0x00, first] => Some(at + 2 + usize::from(first & 15) * 4),
        [0x86, 0xdd, _] => Some(at + 2 + 40),
        _ => None,
    }
}

/// A hash of the addresses and ports of a packet, by which its UDP source port is chosen: packets of a connection have the same.
#[inline(always)]
fn inner_hash(frame: &[u8]) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |at: usize| frame.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
    let half = |at: usize| frame.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap_or_default()));
    let mut at = 12;
    while let Some([0x81, 0x00] | [0x88, 0xa8]) = frame.get(at..at + 2) {
        at += 4;
    }
    let mix = |a: u64, b: u64| (a ^ b.rotate_left(32)).wrapping_mul(K);
    let state = match frame.get(at..at + 3) {
        Some([0x08, 0x00, 0x45]) => {
            let addresses = word(at + 14);
            // Fragments have no ports, but for the first one, and have to stay together.
            let is_fragment = matches!(frame.get(at + 8..at + 10), Some([a, b]) if a & 0x3f | b != 0);
            let proto = frame.get(at + 11).copied().unwrap_or(0);
            let ports = if has_ports(proto) && !is_fragment { half(at + 22) } else { 0 };
            mix(mix(addresses, u64::from(ports)), u64::from(proto))
        }
        Some([0x86, 0xdd, version]) if version >> 4 == 6 => {
            let addresses = mix(mix(word(at + 10), word(at + 18)), mix(word(at + 26), word(at + 34)));
            let next = frame.get(at + 8).copied().unwrap_or(0);
            let ports = if has_ports(next) { half(at + 42) } else { 0 };
            mix(mix(addresses, u64::from(ports)), u64::from(next))
        }
        _ => mix(word(0), u64::from(half(8))),
    };
    (mix(state, state >> 29) >> 32) as u32
}

/// Whether a header of this protocol begins with two ports. What ICMP has there differs from packet to packet.
#[inline(always)]
fn has_ports(proto: u8) -> bool {
    matches!(proto, ip_proto::TCP | ip_proto::UDP | ip_proto::SCTP)
}

impl Decapsulation {
    /// As [`pop`](Decapsulation::pop), for a packet like most, for which no work is left to do. `None` says nothing of the packet but that it
    /// is not like most.
    #[inline(always)]
    pub fn pop_plain(&self, packet: &mut Packet, block: &mut block::Tunnel) -> Option<()> {
        let Range { start, end } = plain::receive(packet.data(), self.protocol, !is_verified(packet.offload()), block)?;
        packet.truncate(end);
        packet.pull_front(start);
        // Whatever is known of a checksum was about the outer packet.
        *packet.offload_mut() = Offload::NONE;
        Some(())
    }

    /// As [`pop_plain`](Decapsulation::pop_plain), for a packet a little less like most, the one of number `at` of a batch, which gets its
    /// metadata.
    #[inline]
    pub fn pop_more(&self, packet: &mut Packet, metadata: &mut Metadata, at: usize) -> Option<()> {
        let verify = !is_verified(packet.offload());
        let (Range { start, end }, options) =
            plain::receive_more(packet.data(), self.protocol, verify, metadata.tunnel_mut(at))?;
        metadata.finish_with_options(at, self.port, options);
        packet.truncate(end);
        packet.pull_front(start);
        *packet.offload_mut() = Offload::NONE;
        Some(())
    }

    /// Takes the headers away. Returns the port that receives the packet, or why it is dropped. What the headers said becomes
    /// `block` and `rest`.
    #[inline]
    pub fn pop(
        &self,
        packet: &mut Packet,
        block: &mut block::Tunnel,
        rest: &mut TunnelledRest,
    ) -> Result<PortNo, DropReason> {
        let offload = *packet.offload();
        // The frame that carries the tunnel has no tags: the underlay's bridge has removed them.
        let frame = packet.data();
        let start = match frame.get(12..14) {
            Some([0x08, 0x00] | [0x86, 0xdd]) => 14,
            _ => return Err(reason(Malformed::Carrier)),
        };
        let verify = Verify { ip: true, transport: !is_verified(&offload) };
        let (mut protocol, mut port) = (self.protocol, self.port);
        if let (Protocol::Gre, Some(erspan)) = (protocol, self.erspan)
            && outer::carries_erspan(&frame[start..])
        {
            (protocol, port) = (Protocol::Erspan, erspan);
        }
        let carried = metadata::receive(&frame[start..], protocol, verify, block).map_err(reason)?;
        let bare = match carried.payload {
            // No port receives less.
            Payload::Ethernet if carried.end - carried.start < 14 => return Err(DropReason::TunnelHeader),
            Payload::Ethernet => None,
            Payload::Packet(number) => Some(number),
            Payload::Message => return Err(DropReason::TunnelHeader),
        };
        rest.options.set(carried.options);
        rest.packet_type = bare.map_or(0, packet::flow::packet_type);
        let (outer_tos, inner, end) = (carried.tos, start + carried.start, start + carried.end);
        // UDP has a length of its own. Otherwise, what is behind the packet in a longer frame than the shortest is no padding. It is
        // passed on, as in Open vSwitch, which looks at no length of IP.
        if protocol.ip_proto() == ip_proto::UDP || packet.len() <= SHORTEST {
            packet.truncate(end);
        }
        packet.pull_front(inner);
        if let Some(number) = bare {
            // The switch sees a packet without Ethernet with a header that is made up.
            let has_room = packet.make_headroom(14);
            let Some(header) = packet.push_front(14).filter(|_| has_room) else { return Err(DropReason::NoBuffer) };
            header[..12].fill(0);
            header[12..].copy_from_slice(&number.to_be_bytes());
            block.tun_flags.set(block.tun_flags.get() | tun_flags::BARE);
        }
        if outer_tos & ecn::MASK != 0 {
            mark_congestion(packet.data_mut(), outer_tos)?;
        }
        let moved = inner - if bare.is_some() { 14 } else { 0 };
        // What is still to be done is about the inner packet, or was about the outer one. Hardly ever there is anything.
        if offload != Offload::NONE {
            let is_of_inner = offload.needs_csum() && usize::from(offload.csum_start) >= inner;
            if offload.is_gso() && !is_of_inner {
                // It would be cut within the tunnel's header.
                return Err(DropReason::TunnelHeader);
            }
            let by = moved as u16;
            *packet.offload_mut() = match is_of_inner {
                true => Offload {
                    csum_start: offload.csum_start - by,
                    hdr_len: offload.hdr_len.saturating_sub(by),
                    ..offload
                },
                false => Offload::NONE,
            };
        }
        Ok(port)
    }
}

/// Whether the checksum of an outer packet needs no look. One that is still to be completed is one that this host has just made; with that of
/// an inner header to be completed, it is right.
#[inline(always)]
fn is_verified(offload: &Offload) -> bool {
    offload.flags & (Offload::NEEDS_CSUM | Offload::DATA_VALID) != 0
}

/// Completes what is left to do for an outer frame, so that its headers can be taken away, and calls `emit` with each result.
#[cold]
pub fn complete_outer(
    packet: Packet,
    memory: &'static Memory,
    emit: &mut dyn FnMut(Packet),
) -> Result<(), OffloadError> {
    // Who left the outer checksum to others has sent from this host: it needs not be there to be right.
    let can = Offloads { csum: packet.offload().needs_csum(), ..Offloads::default() };
    complete(packet, can, memory, emit)
}

/// Tells a packet of IP in a frame of the congestion that its outer header has met (RFC 6040 section 4.2). One that cannot hear it stays as
/// it is, and translation drops it.
#[cold]
fn mark_congestion(frame: &mut [u8], outer_tos: u8) -> Result<(), DropReason> {
    let mut at = 12;
    while let Some([0x81, 0x00] | [0x88, 0xa8]) = frame.get(at..at + 2) {
        at += 4;
    }
    let l3 = at + 2;
    // Whether such a packet is for a port of a tunnel at all, and counts there, only translation knows. It does not see through all tags.
    let is_seen = at <= 16;
    let told = |old: u8| match ecn::decapsulate(outer_tos, old) {
        Err(Malformed::Congestion) if is_seen => Ok(old),
        told => told.map_err(reason),
    };
    match frame.get(at..at + 2) {
        Some([0x08, 0x00]) => {
            if let Ok((header, _)) = ipv4::Header::mut_from_prefix(&mut frame[l3..]) {
                header.set_tos(told(header.tos)?);
            }
        }
        Some([0x86, 0xdd]) => {
            if let Ok((header, _)) = ipv6::Header::mut_from_prefix(&mut frame[l3..]) {
                header.set_traffic_class(told(header.traffic_class())?);
            }
        }
        // ECN is not known there.
        _ => {}
    }
    Ok(())
}

/// The reason to drop a packet that came through a tunnel.
fn reason(malformed: Malformed) -> DropReason {
    match malformed {
        Malformed::Checksum => DropReason::TunnelChecksum,
        Malformed::Fragment => DropReason::TunnelFragment,
        Malformed::Option | Malformed::Critical => DropReason::TunnelOption,
        Malformed::Congestion => DropReason::Congestion,
        Malformed::Truncated
        | Malformed::Length
        | Malformed::Version
        | Malformed::Flags
        | Malformed::Payload
        | Malformed::Carrier => DropReason::TunnelHeader,
    }
}
