//! Fragments at a ct action: they are held until their datagram is whole, which is then tracked once for all of them.
//!
//! Only the first fragment has ports, and no fragment has all that a checksum covers. So the datagram is put together in
//! a buffer of its own, which goes through the ct action as any packet does ([`Executor::track`]). Its fragments get its
//! metadata, and what the translation has changed of it, each in its own place. Then all of them, in the order in which they
//! came, run the rest of the program of the fragment that made the datagram whole, each with its own key. A further ct
//! action holds them again.
//!
//! A fragment that cannot be held goes on alone, as an invalid packet, as in Open vSwitch: too small, out of place, a copy, or
//! one too many. Those of a datagram in which two overlap are dropped (RFC 5722), and so are those that wait for too long.
//!
//! *Buffers.* A fragment that is held has been copied to the bounded memory of the heap, so that none keeps a buffer that
//! ports receive into. Number, bytes and time of what is held are bounded in [`Fragments`](::conntrack::fragments::Fragments).

use std::net::IpAddr;

use ::conntrack::Request;
use ::conntrack::fragments::{Datagram, Outcome, Piece, Refused};
use packet::buffer::heap::HEAP;
use packet::flow::block::Ct;
use packet::flow::extract::{Layers, extract};
use packet::wire::{checksum, ethertype, ipv4, ipv6};
use packet::{Key, Offload, Packet};
use zerocopy::FromBytes;

use super::counters::Counter;
use super::metadata;
use super::verify::to_verify;
use crate::action::PortNo;
use crate::actions::execute::{Executor, KeyView};
use crate::actions::program::{Disposition, Step};
use crate::drop::DropReason;
use crate::pipeline::metadata::OwnMetadata;
use crate::pipeline::recirculation::Pass;

/// In how many ct actions of one program a datagram may become whole. Bounds the stack: fragments run the rest of the
/// program from where they were held.
const MAX_REASSEMBLIES: u8 = 16;

/// A fragment that is held.
pub struct Held {
    packet: Packet,
    metadata: OwnMetadata,
    pass: Pass,
    place: FragmentPlace,
}

impl Held {
    /// The port that it came from.
    pub fn in_port(&self) -> PortNo {
        self.metadata.in_port()
    }
}

/// Where the parts of a fragment are in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FragmentPlace {
    /// First byte of the IP header.
    ip: usize,
    /// First byte behind the headers that are before the datagram: the fragment header of IPv6, or the data.
    head: usize,
    /// First byte of the datagram's part.
    data: usize,
    /// Bytes of that part.
    len: usize,
    /// Its offset in the datagram.
    offset: usize,
}

impl Executor {
    /// Takes a fragment, whose key is extracted, to the ct action that is the first of the last `steps` of a program. Returns
    /// it where it goes on alone, with metadata that say that it is invalid; otherwise what there is to be done has been
    /// done.
    #[cold]
    pub fn track_fragment(
        &mut self,
        steps: &[Step],
        end: &Disposition,
        packet: Packet,
        view: &mut KeyView<'_>,
        next: Pass,
    ) -> Option<Packet> {
        let Some((Step::Ct(request), rest)) = steps.split_first() else { return Some(packet) };
        if self.reassemblies >= MAX_REASSEMBLIES {
            self.outputs.retire_one(packet, DropReason::RecursionTooDeep, view.in_port());
            return None;
        }
        let verify = to_verify(packet.offload()).ip;
        let (datagram, piece, place) = match parse(packet.data(), view.key, view.layers, request.zone, verify) {
            // A super-frame is no fragment.
            Ok(parsed) if !packet.offload().is_gso() => parsed,
            Ok(_) => return Some(self.goes_on_alone(packet, Counter::FragmentMalformed, request, view)),
            Err(why) => return Some(self.goes_on_alone(packet, why, request, view)),
        };
        let conntrack = self.conntrack.clone();
        let mut given = Some(packet);
        let spare = self.misses.spare_keys();
        let hold = |whole: bool| {
            let packet = if whole { given.take()? } else { given.as_ref()?.duplicate_in(&HEAP)? };
            given = None;
            Some(Held { packet, metadata: OwnMetadata::of(view.key, spare), pass: next, place })
        };
        match (conntrack.fragments.add(datagram, piece, self.now, hold), given) {
            (Outcome::Held, _) => None,
            (Outcome::Whole(mut held, first), _) => {
                self.reassemblies += 1;
                let tracked = self.track_datagram(request, &mut held, first);
                held.into_iter().for_each(|held| self.run_held(held, &tracked, (rest, end), next));
                self.reassemblies -= 1;
                None
            }
            (Outcome::Void(held), packet) => {
                held.into_iter().for_each(|held| self.retire_held(held, DropReason::FragmentOverlap));
                let packet = packet?;
                self.outputs.retire_one(packet, DropReason::FragmentOverlap, view.in_port());
                None
            }
            (Outcome::Refused(why), packet) => Some(self.goes_on_alone(packet?, why.into(), request, view)),
        }
    }

    /// Makes a fragment an invalid packet.
    fn goes_on_alone(&self, packet: Packet, why: Counter, request: &Request, view: &mut KeyView<'_>) -> Packet {
        self.conntrack.counters.count(why);
        metadata::write(&self.conntrack.tracker.malformed(request.zone), view.key);
        packet
    }

    /// Drops a fragment that was held.
    pub fn retire_held(&mut self, held: Held, reason: DropReason) {
        let in_port = held.in_port();
        self.outputs.retire_one(held.packet, reason, in_port);
        held.metadata.into_spare().into_iter().for_each(|key| self.misses.reuse(key));
    }

    /// Tracks a datagram that is whole. Returns the metadata that all its fragments get, or why they are dropped.
    fn track_datagram(&mut self, request: &Request, held: &mut [Held], first: usize) -> Result<Ct, DropReason> {
        let mut key = self.scratch.pop().unwrap_or_default();
        held[first].metadata.start(&mut key);
        let mut result = Ok(());
        match reassemble(held, first) {
            Ok(mut whole) => {
                let layers = extract(whole.data(), &mut key, self.vlan_limit);
                let _ = self.track(request, &mut whole, &mut KeyView::new(&mut key, layers));
                if !distribute(&whole, held, first) {
                    result = Err(DropReason::Malformed);
                }
            }
            Err(Unfit::TooLong) => {
                self.conntrack.counters.count(Counter::FragmentMalformed);
                metadata::write(&self.conntrack.tracker.malformed(request.zone), &mut key);
            }
            Err(Unfit::NoBuffer) => result = Err(DropReason::NoBuffer),
        }
        let tracked = *key.ct();
        self.scratch.push(key);
        result.map(|()| tracked)
    }

    /// Runs the last steps of a program, and its end, on a fragment whose datagram has been tracked.
    fn run_held(
        &mut self,
        held: Held,
        tracked: &Result<Ct, DropReason>,
        (steps, end): (&[Step], &Disposition),
        next: Pass,
    ) {
        let tracked = match tracked {
            Ok(tracked) => tracked,
            Err(reason) => return self.retire_held(held, *reason),
        };
        let Held { packet, metadata, pass, .. } = held;
        let mut key = self.scratch.pop().unwrap_or_default();
        metadata.start(&mut key);
        metadata.into_spare().into_iter().for_each(|key| self.misses.reuse(key));
        let layers = extract(packet.data(), &mut key, self.vlan_limit);
        *key.ct_mut() = *tracked;
        // A fragment may become no more packets here than where it came from.
        let pass = Pass { depth: pass.depth.max(next.depth), budget: pass.budget.min(next.budget) };
        self.run_rest(steps, end, packet, &mut KeyView::new(&mut key, layers), pass);
        self.scratch.push(key);
    }
}

/// Reads what reassembly needs to know of a fragment.
fn parse(
    frame: &[u8],
    key: &Key,
    layers: Layers,
    zone: u16,
    verify: bool,
) -> Result<(Datagram, Piece, FragmentPlace), Counter> {
    let at = usize::from(layers.l3);
    let bytes = frame.get(at..).ok_or(Counter::FragmentMalformed)?;
    let recirc_id = key.common().recirc_id.get();
    match key.common().dl_type.get() {
        ethertype::IPV4 => {
            let ip = ipv4::Packet::new_checked(bytes).map_err(|_| Counter::FragmentMalformed)?;
            let (header, _) = ipv4::Header::ref_from_prefix(bytes).map_err(|_| Counter::FragmentMalformed)?;
            if verify && !ip.verify_checksum() {
                return Err(Counter::FragmentIpChecksum);
            }
            let (src, dst, id) = (ip.src().into(), ip.dst().into(), header.id.get().into());
            let (offset, len) = (ip.fragment_offset(), ip.payload().len());
            let more = ip.more_fragments();
            let datagram = Datagram { src, dst, proto: ip.proto(), zone, id, recirc_id };
            let piece = Piece { offset: offset as u32, len: len as u32, more, packet_len: ip.total_len() as u32 };
            let data = at + ip.header_len();
            Ok((datagram, piece, FragmentPlace { ip: at, head: data, data, len, offset }))
        }
        ethertype::IPV6 => {
            let ip = ipv6::Packet::new_checked(bytes).map_err(|_| Counter::FragmentMalformed)?;
            let mut head = at + size_of::<ipv6::Header>();
            let end = head + ip.payload().len();
            for header in ip.headers() {
                match header {
                    Ok(ipv6::ChainedHeader::Extension(_, bytes)) => head += bytes.len(),
                    Ok(ipv6::ChainedHeader::Fragment(fragment)) if fragment.offset_flags.get() != 0 => {
                        let (src, dst): (IpAddr, IpAddr) = (ip.src().into(), ip.dst().into());
                        let data = head + size_of_val(fragment);
                        let (offset, len, more) = (fragment.offset(), end - data, fragment.more());
                        if offset == 0 && !more {
                            // Reserved bits alone.
                            break;
                        }
                        let datagram = Datagram { src, dst, proto: 0, zone, id: fragment.id.get(), recirc_id };
                        let packet_len = (end - at) as u32;
                        let piece = Piece { offset: offset as u32, len: len as u32, more, packet_len };
                        return Ok((datagram, piece, FragmentPlace { ip: at, head, data, len, offset }));
                    }
                    // An atomic fragment is whole (RFC 6946).
                    Ok(ipv6::ChainedHeader::Fragment(fragment)) => head += size_of_val(fragment),
                    Ok(ipv6::ChainedHeader::Upper(..)) | Err(_) => break,
                }
            }
            Err(Counter::FragmentMalformed)
        }
        _ => Err(Counter::FragmentMalformed),
    }
}

/// Why a datagram cannot be put together.
enum Unfit {
    /// It is longer than an IP packet can be.
    TooLong,
    /// There is no buffer for it.
    NoBuffer,
}

/// The packet that was cut into these fragments, with the headers of the first one. Fragments have no holes between them and
/// do not overlap.
fn reassemble(held: &[Held], first: usize) -> Result<Packet, Unfit> {
    let Held { packet, place, .. } = &held[first];
    let (frame, is_v4) = (packet.data(), place.head == place.data);
    let len: usize = held.iter().map(|held| held.place.len).sum();
    let (ip_len, fixed) = (place.head - place.ip + len, if is_v4 { 0 } else { size_of::<ipv6::Header>() });
    let length_field = u16::try_from(ip_len - fixed).map_err(|_| Unfit::TooLong)?;
    let mut whole = (HEAP.allocate)(&HEAP, 0, place.head + len).ok_or(Unfit::NoBuffer)?;
    let bytes = whole.push_back(place.head + len).ok_or(Unfit::NoBuffer)?;
    bytes[..place.head].copy_from_slice(&frame[..place.head]);
    for Held { packet, place: piece, .. } in held {
        let to = place.head + piece.offset;
        bytes[to..to + piece.len].copy_from_slice(&packet.data()[piece.data..][..piece.len]);
    }
    if is_v4 {
        let ip = place.ip;
        let flags_offset = u16::from_be_bytes([frame[ip + 6], frame[ip + 7]]);
        set_ipv4_word(bytes, ip, 6, flags_offset & !ipv4::MORE_FRAGMENTS);
        set_ipv4_word(bytes, ip, 2, length_field);
    } else {
        bytes[place.ip + 4..place.ip + 6].copy_from_slice(&length_field.to_be_bytes());
        // The header before the fragment header names what is behind that.
        bytes[names_next(frame, place)] = frame[place.head];
    }
    // What is left to be done is left undone in the first fragment's checksum; otherwise nobody has verified it.
    let flags = packet.offload().flags & Offload::NEEDS_CSUM;
    *whole.offload_mut() = Offload { flags, ..Offload::NONE };
    Ok(whole)
}

/// Which byte of a fragment of IPv6 says that a fragment header follows: of the last header before that.
fn names_next(frame: &[u8], place: &FragmentPlace) -> usize {
    let (mut before, mut names) = (place.ip + size_of::<ipv6::Header>(), place.ip + 6);
    let headers = ipv6::Packet::new_checked(&frame[place.ip..]).ok();
    for header in headers.iter().flat_map(|ip| ip.headers()) {
        if before >= place.head {
            break;
        }
        names = before;
        before += match header {
            Ok(ipv6::ChainedHeader::Extension(_, bytes)) => bytes.len(),
            Ok(ipv6::ChainedHeader::Fragment(fragment)) => size_of_val(fragment),
            _ => break,
        };
    }
    names
}

/// Takes over into the fragments what has changed of their datagram: addresses into each, and each its own part of the data.
/// Where the datagram has become shorter, its last fragment does. `false` where that is not enough.
fn distribute(whole: &Packet, held: &mut [Held], first: usize) -> bool {
    let bytes = whole.data();
    let FragmentPlace { ip, head, data, .. } = held[first].place;
    let is_v4 = head == data;
    for Held { packet, place, .. } in held {
        let from = head + place.offset;
        let Some(part) = bytes.get(from..(from + place.len).min(bytes.len())).filter(|part| !part.is_empty()) else {
            return false;
        };
        if part.len() < place.len {
            packet.truncate(place.data + part.len());
            let frame = packet.data_mut();
            if is_v4 {
                set_ipv4_word(frame, place.ip, 2, (place.data - place.ip + part.len()) as u16);
            } else {
                let len = (place.data - place.ip - size_of::<ipv6::Header>() + part.len()) as u16;
                frame[place.ip + 4..place.ip + 6].copy_from_slice(&len.to_be_bytes());
            }
        }
        let frame = packet.data_mut();
        frame[place.data..place.data + part.len()].copy_from_slice(part);
        if is_v4 {
            for at in (12..20).step_by(2) {
                set_ipv4_word(frame, place.ip, at, u16::from_be_bytes([bytes[ip + at], bytes[ip + at + 1]]));
            }
        } else {
            frame[place.ip + 8..place.ip + 40].copy_from_slice(&bytes[ip + 8..ip + 40]);
        }
    }
    true
}

/// Sets a word of an IPv4 header, and adjusts the checksum where that changes it.
fn set_ipv4_word(frame: &mut [u8], ip: usize, at: usize, new: u16) {
    let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[ip + at], frame[ip + at + 1]]);
    let old = word(frame, at);
    if old != new {
        let sum = checksum::update16(word(frame, 10), old, new);
        frame[ip + at..ip + at + 2].copy_from_slice(&new.to_be_bytes());
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
}

impl From<Refused> for Counter {
    fn from(why: Refused) -> Counter {
        match why {
            Refused::Off => Counter::FragmentOff,
            Refused::TooSmall => Counter::FragmentTooSmall,
            Refused::Malformed => Counter::FragmentMalformed,
            Refused::TooMany => Counter::FragmentTooMany,
            Refused::Duplicate => Counter::FragmentDuplicate,
            Refused::NoMemory => Counter::FragmentNoMemory,
        }
    }
}
