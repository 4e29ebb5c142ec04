//! Network address translation: which addresses and ports a connection gets, and what that changes of its packets.
//!
//! A connection's translation is in its two tuples: replies come to the translated addresses and ports. So to lease a
//! translated port is to insert the tuple of the replies, which no other connection may have; the same port serves many
//! connections as long as they go to different places. [`Nat::candidates`] lists tuples that may be tried, a bounded number of
//! them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::flow::Hasher;
use packet::wire::{checksum, icmp, ip_proto, sctp};
use zerocopy::FromBytes;

use crate::quoted::Quoted;
use crate::tuple::{Side, Tuple};

/// How a port is chosen first (ovs-actions(7), nat).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// As by `hash`, but nobody asked for it.
    #[default]
    Unsaid,
    /// By a keyed hash of the connection: `hash`.
    Hash,
    /// By chance: `random`.
    Random,
}

/// A translation of new connections, as the arguments of `nat` say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nat {
    /// SNAT translates the source, DNAT the destination.
    pub side: Side,
    /// The first and the last address. `None` or zero keep the address, and change the port only where two
    /// connections would be the same otherwise.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// The first and the last port.
    pub ports: Option<(u16, u16)>,
    /// How a port is chosen first.
    pub choice: Choice,
    /// The same sender gets the same address, also after a restart: `persistent`.
    pub persistent: bool,
}

/// A range of at most so many ports is tried whole, from where the choice begins.
const WHOLE: u32 = 128;
/// Of a larger range, so many ports are tried one after another, at so many places: where many ports are taken, they are taken in
/// a row, so that it is better to go on elsewhere.
const IN_A_ROW: u32 = 4;
const PLACES: u32 = 62;

impl Nat {
    /// The replies' tuples that may be tried for a connection in this direction. `random` is a number that nobody can
    /// foresee.
    pub fn candidates(&self, orig: &Tuple, hasher: &Hasher, random: u64) -> Candidates {
        let mut reply = orig.reverse();
        let chosen = self.hash(orig, hasher);
        // For a persistent choice the same in each process: it has no secret.
        let address = if self.persistent { self.hash_of_sender(orig) } else { chosen };
        // The receiver of replies is the sender's translation.
        let side = if self.side == Side::Src { Side::Dst } else { Side::Src };
        if let Some(address) = self.address(orig, address) {
            reply.set_address(side, address);
        }
        // Other bits than those that choose the address.
        let offset = if self.choice == Choice::Random { random } else { chosen >> 32 } as u32;
        let translates_ports = orig.has_ports() || orig.is_icmp() && !orig.is_v6();
        let mut phases = [None, None];
        if translates_ports {
            if let (Side::Dst, Some((min, max)), true) = (self.side, self.ports, orig.has_ports()) {
                phases[0] = Some(Phase::new(Side::Src, min, max, Start::Offset(offset)));
            }
            // The source's port: any of a range that is given, else one like it, itself first. With DNAT it is
            // the last resort. A range of ports says nothing of ICMP's identifier.
            phases[1] = Some(match (self.side, self.ports) {
                (Side::Src, Some((min, max))) if orig.has_ports() => {
                    Phase::new(Side::Dst, min, max, Start::Offset(offset))
                }
                _ => {
                    let port = orig.port(Side::Src);
                    let (min, max) = like(port);
                    Phase::new(Side::Dst, min, max, Start::Port(port))
                }
            });
        }
        Candidates { reply, phases, once: !translates_ports, random }
    }

    fn hash(&self, orig: &Tuple, hasher: &Hasher) -> u64 {
        let ports = u64::from(orig.ports) << 32 | u64::from(orig.class);
        hasher.finish(hasher.block(&[orig.v4, ports, orig.v6[0], orig.v6[1], orig.v6[2], orig.v6[3], 0, 0]))
    }

    fn hash_of_sender(&self, orig: &Tuple) -> u64 {
        const PUBLIC: Hasher = Hasher::new([0x5765_6972, 0]);
        PUBLIC.finish(PUBLIC.block(&[orig.v4 >> 32, orig.v6[0], orig.v6[1], 0, 0, 0, 0, 0]))
    }

    /// The address that a hash chooses; `None` to keep the one there is.
    fn address(&self, orig: &Tuple, hash: u64) -> Option<IpAddr> {
        match self.addresses? {
            (IpAddr::V4(min), IpAddr::V4(max)) if !orig.is_v6() && !min.is_unspecified() => {
                let range = u64::from(max.to_bits().saturating_sub(min.to_bits())) + 1;
                Some(Ipv4Addr::from_bits(min.to_bits() + (hash % range) as u32).into())
            }
            (IpAddr::V6(min), IpAddr::V6(max)) if orig.is_v6() && !min.is_unspecified() => {
                // As in Open vSwitch, the first 2^32 addresses of a range at most.
                let range = max.to_bits().saturating_sub(min.to_bits()).min(u32::MAX.into()) + 1;
                Some(Ipv6Addr::from_bits(min.to_bits() + u128::from(hash) % range).into())
            }
            _ => None,
        }
    }
}

/// Ports like this one: privileged ports stay privileged (RFC 4787 section 4.2.2 has the reason).
fn like(port: u16) -> (u16, u16) {
    match port {
        0..512 => (1, 511),
        512..1024 => (600, 1023),
        1024.. => (1024, u16::MAX),
    }
}

enum Start {
    /// So far behind the first port, in turns of the range.
    Offset(u32),
    /// This port, which may lie outside of the range.
    Port(u16),
}

/// Ports of one side that are tried.
#[derive(Clone, Copy, Debug)]
struct Phase {
    side: Side,
    min: u16,
    len: u32,
    /// Tried before the range.
    first: Option<u16>,
    /// The next port of the range.
    at: u32,
    /// Ports that are tried in a row yet, and places after that.
    left: u32,
    places: u32,
}

impl Phase {
    fn new(side: Side, min: u16, max: u16, start: Start) -> Phase {
        let len = u32::from(max.saturating_sub(min)) + 1;
        let (first, at) = match start {
            Start::Offset(offset) => (None, offset % len),
            Start::Port(port) if (min..=max).contains(&port) => (None, u32::from(port - min)),
            Start::Port(port) => (Some(port), 0),
        };
        let (left, places) = if len <= WHOLE { (len, 0) } else { (IN_A_ROW, PLACES - 1) };
        Phase { side, min, len, first, at, left, places }
    }

    fn next(&mut self, random: &mut u64) -> Option<u16> {
        if let Some(port) = self.first.take() {
            return Some(port);
        }
        if self.left == 0 {
            self.places = self.places.checked_sub(1)?;
            self.left = IN_A_ROW;
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.at = (*random >> 32) as u32 % self.len;
        }
        self.left -= 1;
        let port = self.min + self.at as u16;
        self.at = (self.at + 1) % self.len;
        Some(port)
    }
}

/// Tuples of replies, in the order in which they are tried.
#[derive(Clone, Debug)]
pub struct Candidates {
    reply: Tuple,
    phases: [Option<Phase>; 2],
    once: bool,
    random: u64,
}

impl Iterator for Candidates {
    type Item = Tuple;

    fn next(&mut self) -> Option<Tuple> {
        if std::mem::take(&mut self.once) {
            return Some(self.reply);
        }
        for phase in &mut self.phases {
            if let Some(ports) = phase {
                if let Some(port) = ports.next(&mut self.random) {
                    self.reply.set_port(ports.side, port);
                    return Some(self.reply);
                }
                *phase = None;
            }
        }
        None
    }
}

/// What a packet of one direction becomes: the words that are written, and by how much checksums change. It stands in one line of the
/// cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Translation {
    /// The tuple's words after the translation.
    v6: [u64; 4],
    v4: u64,
    ports: u32,
    /// Added to checksums that cover the addresses, as one's complement.
    address_delta: u16,
    /// Added to checksums that cover the ports, or ICMP's identifier.
    port_delta: u16,
    is_v6: bool,
    src: bool,
    dst: bool,
    src_port: bool,
    dst_port: bool,
}

const _: () = assert!(size_of::<Translation>() <= 64);

/// A [`Translation`] of TCP or UDP over IPv4, with all that is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct ShortTranslation {
    /// Source and destination address.
    addresses: u64,
    /// Source and destination port.
    ports: u32,
    address_delta: u16,
    port_delta: u16,
}

impl ShortTranslation {
    /// Translates a packet in place, whose headers begin at these offsets. `partial`: the transport checksum covers no
    /// more than the pseudo header yet. A frame that ends within its headers stays as it is.
    #[inline(always)]
    pub fn apply(&self, frame: &mut [u8], ip: usize, transport: usize, tcp: bool, partial: bool) {
        let sum_at = if tcp { 16 } else { 6 };
        let Some(header) = frame.get_mut(transport..).and_then(|bytes| bytes.get_mut(..sum_at + 2)) else { return };
        header[..4].copy_from_slice(&self.ports.to_be_bytes());
        let sum = u16::from_be_bytes([header[sum_at], header[sum_at + 1]]);
        let sum = match (partial, tcp) {
            (true, _) => covered(sum, true, self.address_delta),
            (false, true) => add(add(sum, self.address_delta), self.port_delta),
            (false, false) => checksum::update_udp(sum, |sum| add(add(sum, self.address_delta), self.port_delta)),
        };
        header[sum_at..].copy_from_slice(&sum.to_be_bytes());
        let Some(header) = frame.get_mut(ip..).and_then(|bytes| bytes.first_chunk_mut::<20>()) else { return };
        let sum = add(u16::from_be_bytes([header[10], header[11]]), self.address_delta);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header[12..].copy_from_slice(&self.addresses.to_be_bytes());
    }
}

/// A packet's protocol above IP, where its headers are, and whether the checksum is left to the hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First byte of the IP header.
    pub ip: usize,
    /// First byte of the transport header; `None` of a later fragment.
    pub transport: Option<usize>,
    /// First byte behind the IP packet.
    pub end: usize,
    /// The protocol.
    pub proto: u8,
    /// The transport checksum covers no more than the pseudo header yet.
    pub partial: bool,
}

impl Translation {
    /// What makes packets of one tuple packets of the other; `None` where they are the same.
    pub fn between(from: &Tuple, to: &Tuple) -> Option<Translation> {
        if from == to || from.class != to.class {
            return None;
        }
        let address = |side| from.address(side) != to.address(side);
        let port = |side| from.port(side) != to.port(side);
        let words = |t: &Tuple| t.v6.iter().fold(sum64(t.v4), |sum, word| sum + sum64(*word));
        let delta = |old: u64, new: u64| {
            // ~m + m' of RFC 1624, where sums stand for single words.
            fold(u64::from(!fold(old)) + u64::from(fold(new)))
        };
        Some(Translation {
            v6: to.v6,
            v4: to.v4,
            ports: to.ports,
            address_delta: delta(words(from), words(to)),
            port_delta: delta(sum64(from.ports.into()), sum64(to.ports.into())),
            is_v6: to.is_v6(),
            src: address(Side::Src),
            dst: address(Side::Dst),
            src_port: port(Side::Src),
            dst_port: port(Side::Dst),
        })
    }

    /// The short form, for TCP or UDP over IPv4.
    pub fn short(&self) -> Option<ShortTranslation> {
        let Translation { v4: addresses, ports, address_delta, port_delta, is_v6, .. } = *self;
        (!is_v6).then_some(ShortTranslation { addresses, ports, address_delta, port_delta })
    }

    /// Translates a packet in place. Bytes that are not there are left out: the caller has seen that the headers are whole.
    pub fn apply(&self, frame: &mut [u8], place: &Place) {
        self.write_addresses(frame, place.ip);
        if let Some(transport) = place.transport {
            self.write_transport(frame, transport, place);
        }
    }

    /// Translates an ICMP error in place: its own addresses, and the packet that it quotes, which went the other way.
    pub fn apply_to_error(&self, frame: &mut [u8], place: &Place, quoted: &Quoted, inner: &Translation) {
        let Some(message) = place.transport else { return };
        self.write_addresses(frame, place.ip);
        let transport = message + quoted.transport;
        let proto = quoted.tuple.proto();
        let inside =
            Place { ip: message + quoted.ip, transport: Some(transport), end: place.end, proto, partial: false };
        inner.write_addresses(frame, inside.ip);
        inner.write_ports(frame, transport, &inside);
        finish_icmp(frame, place, self.is_v6);
    }

    fn write_addresses(&self, frame: &mut [u8], ip: usize) {
        if self.is_v6 {
            let bytes = |words: &[u64]| {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&words[0].to_be_bytes());
                bytes[8..].copy_from_slice(&words[1].to_be_bytes());
                bytes
            };
            if self.src {
                write(frame, ip + 8, &bytes(&self.v6[..2]));
            }
            if self.dst {
                write(frame, ip + 24, &bytes(&self.v6[2..]));
            }
            return;
        }
        let (old_src, old_dst) = (long(frame, ip + 12), long(frame, ip + 16));
        let (src, dst) = ((self.v4 >> 32) as u32, self.v4 as u32);
        let mut sum = word(frame, ip + 10);
        if self.src {
            sum = checksum::update32(sum, old_src, src);
            write(frame, ip + 12, &src.to_be_bytes());
        }
        if self.dst {
            sum = checksum::update32(sum, old_dst, dst);
            write(frame, ip + 16, &dst.to_be_bytes());
        }
        write(frame, ip + 10, &sum.to_be_bytes());
    }

    fn write_transport(&self, frame: &mut [u8], at: usize, place: &Place) {
        self.write_ports(frame, at, place);
        if place.proto == ip_proto::SCTP
            && let Some(bytes) = frame.get_mut(at..place.end)
            && let Ok(packet) = sctp::Packet::new_checked(bytes)
        {
            let sum = packet.compute_checksum();
            write(bytes, 8, &sum);
        }
    }

    /// Ports or the identifier, and the transport checksum where it is there; not that of SCTP.
    fn write_ports(&self, frame: &mut [u8], at: usize, place: &Place) {
        let both = |sum: u16| add(add(sum, self.address_delta), self.port_delta);
        let ports = match place.proto {
            ip_proto::ICMP if !self.is_v6 => {
                let identifier = (self.ports >> 16) as u16;
                write(frame, at + 4, &identifier.to_be_bytes());
                update(frame, at + 2, place.end, |sum| add(sum, self.port_delta));
                return;
            }
            ip_proto::ICMPV6 if self.is_v6 => {
                let partial = place.partial;
                update(frame, at + 2, place.end, |sum| covered(sum, partial, self.address_delta));
                return;
            }
            ip_proto::TCP | ip_proto::UDP | ip_proto::SCTP => self.ports,
            _ => return,
        };
        if self.src_port {
            write(frame, at, &((ports >> 16) as u16).to_be_bytes());
        }
        if self.dst_port {
            write(frame, at + 2, &(ports as u16).to_be_bytes());
        }
        let sum_at = match place.proto {
            ip_proto::TCP => at + 16,
            ip_proto::UDP => at + 6,
            _ => return,
        };
        update(frame, sum_at, place.end, |sum| match (place.partial, place.proto) {
            (true, _) => covered(sum, true, self.address_delta),
            (false, ip_proto::UDP) => checksum::update_udp(sum, both),
            (false, _) => both(sum),
        });
    }
}

/// A checksum after addresses have changed that its pseudo header covers. A partial one is the sum itself.
fn covered(sum: u16, partial: bool, delta: u16) -> u16 {
    if partial { !add(!sum, delta) } else { add(sum, delta) }
}

/// A checksum after the sum that it covers has changed by a delta.
fn add(checksum: u16, delta: u16) -> u16 {
    checksum::update16(checksum, 0xffff, delta)
}

fn update(frame: &mut [u8], at: usize, end: usize, change: impl FnOnce(u16) -> u16) {
    if at + 2 <= end.min(frame.len()) {
        let sum = change(word(frame, at));
        write(frame, at, &sum.to_be_bytes());
    }
}

/// The checksum of an ICMP message whose contents have changed.
fn finish_icmp(frame: &mut [u8], place: &Place, v6: bool) {
    let Some(at) = place.transport else { return };
    let addresses = frame.get(place.ip + 8..place.ip + 40).and_then(|bytes| <[u8; 32]>::ref_from_bytes(bytes).ok());
    let start = match addresses {
        Some(addresses) if v6 => {
            let len = place.end.saturating_sub(at) as u32;
            let sum = checksum::Sum::ZERO.add_bytes(addresses).add_u32(len);
            sum.add_u32(ip_proto::ICMPV6.into())
        }
        _ => checksum::Sum::ZERO,
    };
    let Some(message) = frame.get_mut(at..place.end) else { return };
    if message.len() >= size_of::<icmp::Header>() {
        write(message, 2, &[0, 0]);
        let sum = start.add_bytes(message).finish();
        write(message, 2, &sum.to_be_bytes());
    }
}

fn write(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

fn word(frame: &[u8], at: usize) -> u16 {
    frame.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

fn long(frame: &[u8], at: usize) -> u32 {
    frame.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// The sum of a number's four 16-bit words.
fn sum64(word: u64) -> u64 {
    (0..4).map(|i| word >> (16 * i) & 0xffff).sum()
}

fn fold(sum: u64) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}
