//! Fragments of IPv4 and IPv6: reassembled in thought for the look-up, passed on as they came.
//!
//! Only the first fragment has the ports, and the others may come before it. So fragments are held until the datagram is whole; then the first
//! one's headers are tracked, and all get its metadata. What is held is bounded in number, bytes and time, as in Open vSwitch (`dpctl/ipf-*`).
//!
//! A fragment that overlaps another makes the whole datagram void, and its fragments are dropped, those included that
//! come later (RFC 5722 section 4). One that is exactly a copy is refused alone, as RFC 8200 section 4.5 allows.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use packet::Time;

use crate::sync::Mutex;

/// A datagram that is not whole after so long is dropped.
pub const TIMEOUT: Duration = Duration::from_secs(15);

/// The most fragments that can be allowed.
pub const MAX_FRAGMENTS: u32 = 5000;
/// The smallest least size that can be set.
pub const LEAST_MIN_SIZE: u32 = 400;
/// The most bytes of packets that are held: enough for as many usual fragments as can be allowed.
pub const MAX_BYTES: usize = 16 << 20;

/// Why a fragment is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Refused {
    /// Reassembly is off for its version of IP.
    #[error("reassembly is off")]
    Off,
    /// Shorter than allowed, and not the last.
    #[error("fragment too small")]
    TooSmall,
    /// Beyond the end of the datagram, or not a multiple of 8 bytes long.
    #[error("fragment beyond its datagram")]
    Malformed,
    /// As many fragments are held as may be.
    #[error("too many fragments")]
    TooMany,
    /// It is a copy of one that is held.
    #[error("fragment came before")]
    Duplicate,
    /// There is no memory to hold it.
    #[error("no memory for the fragment")]
    NoMemory,
}

/// Which datagram a fragment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Datagram {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same version of IP.
    pub dst: IpAddr,
    /// The protocol of IPv4; zero for IPv6, where fragments of one datagram may name different ones.
    pub proto: u8,
    /// The zone in which it is tracked.
    pub zone: u16,
    /// The identification.
    pub id: u32,
    /// The recirculation in which it is tracked.
    pub recirc_id: u32,
}

/// Where a fragment lies in its datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Offset of its first byte, a multiple of 8.
    pub offset: u32,
    /// Bytes of the datagram in it.
    pub len: u32,
    /// More fragments follow.
    pub more: bool,
    /// Bytes of the whole packet from its IP header on.
    pub packet_len: u32,
}

/// What comes of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<P> {
    /// It is held.
    Held,
    /// The datagram is whole. Its fragments in the order in which they came, and which of them is the first of the datagram.
    Whole(Vec<P>, usize),
    /// It is not held, and its packet was not asked for.
    Refused(Refused),
    /// Its datagram is void: this fragment is dropped, and these are, which were held.
    Void(Vec<P>),
}

/// Options and counts of one version of IP (`dpctl/ipf-get-status`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    /// Fragments are reassembled.
    pub enabled: bool,
    /// The least size of a fragment that is not the last.
    pub min_size: u32,
    /// Fragments accepted.
    pub accepted: u64,
    /// Fragments of datagrams that were whole.
    pub completed: u64,
    /// Fragments of datagrams that were not whole in time.
    pub expired: u64,
    /// Fragments that were too small.
    pub too_small: u64,
    /// Fragments that overlapped others or were copies of them, and those that were dropped for it.
    pub overlapped: u64,
    /// Fragments that were taken away, with their port for example.
    pub purged: u64,
}

/// All options and counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// IPv4.
    pub v4: Family,
    /// IPv6.
    pub v6: Family,
    /// The most fragments that are held.
    pub max: u32,
    /// Fragments that are held.
    pub held: u32,
}

/// A datagram of which fragments are held (`dpctl/ipf-get-status -m`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incomplete {
    /// Which one.
    pub datagram: Datagram,
    /// How many fragments are held. None where two overlapped.
    pub fragments: usize,
    /// Whether the first one is there.
    pub first_seen: bool,
    /// Whether the last one is there.
    pub last_seen: bool,
}

/// The fragments that are held, with packets of type `P`. Shared by all threads.
pub struct Fragments<P> {
    known: Mutex<Known<P>>,
}

struct Known<P> {
    datagrams: HashMap<Datagram, Pieces<P>>,
    /// In the order of their ends; some may be gone.
    order: VecDeque<(Datagram, Time)>,
    status: Status,
    /// Bytes of the packets that are held.
    bytes: usize,
}

struct Pieces<P> {
    /// By offset: offset, end, when it came, and the packet. Empty where two overlapped.
    held: Vec<(u32, u32, u32, P)>,
    /// Where the datagram ends, once the last fragment has come.
    end: Option<u32>,
    /// Bytes of the datagram that are held.
    bytes: u32,
    /// Bytes of the packets that are held.
    packet_bytes: usize,
    void: bool,
    expires: Time,
}

impl<P> Fragments<P> {
    /// With the options that Open vSwitch begins with.
    pub fn new() -> Fragments<P> {
        let family = |min_size| Family {
            enabled: true,
            min_size,
            accepted: 0,
            completed: 0,
            expired: 0,
            too_small: 0,
            overlapped: 0,
            purged: 0,
        };
        let status = Status { v4: family(1200), v6: family(1280), max: 1000, held: 0 };
        Fragments { known: Mutex::new(Known { datagrams: HashMap::new(), order: VecDeque::new(), status, bytes: 0 }) }
    }

    /// Options and counts.
    pub fn status(&self) -> Status {
        self.known.lock().status
    }

    /// The datagrams of which fragments are held, in no particular order.
    pub fn incomplete(&self) -> Vec<Incomplete> {
        let known = self.known.lock();
        let incomplete = |(datagram, pieces): (&Datagram, &Pieces<P>)| Incomplete {
            datagram: *datagram,
            fragments: pieces.held.len(),
            first_seen: pieces.held.first().is_some_and(|(offset, ..)| *offset == 0),
            last_seen: pieces.end.is_some(),
        };
        known.datagrams.iter().map(incomplete).collect()
    }

    /// Switches reassembly of a version of IP.
    pub fn set_enabled(&self, v6: bool, enabled: bool) {
        self.known.lock().family(v6).enabled = enabled;
    }

    /// Sets the least size of a fragment that is not the last; whether it is allowed.
    pub fn set_min_size(&self, v6: bool, size: u32) -> bool {
        let allowed = size >= LEAST_MIN_SIZE;
        if allowed {
            self.known.lock().family(v6).min_size = size;
        }
        allowed
    }

    /// Sets the most fragments that are held; whether it is allowed. Those beyond stay until they are whole or too old.
    pub fn set_max(&self, fragments: u32) -> bool {
        let allowed = fragments <= MAX_FRAGMENTS;
        if allowed {
            self.known.lock().status.max = fragments;
        }
        allowed
    }

    /// A fragment. `packet` gives its packet, and is asked only where that is held or makes the datagram whole, which it
    /// is told; `None` where there is no memory for it. It is called with the lock held.
    pub fn add(&self, at: Datagram, piece: Piece, now: Time, packet: impl FnOnce(bool) -> Option<P>) -> Outcome<P> {
        self.known.lock().add(at, piece, now, packet)
    }

    /// Fragments of a datagram that was not whole in time; `None` where there is none. To be called until then, every second or so.
    pub fn expire(&self, now: Time) -> Option<Vec<P>> {
        let mut known = self.known.lock();
        while let Some(&(datagram, expires)) = known.order.front()
            && expires <= now
        {
            known.order.pop_front();
            if known.datagrams.get(&datagram).is_some_and(|pieces| pieces.expires == expires) {
                let pieces = known.remove(&datagram);
                if !pieces.is_empty() {
                    known.family(datagram.src.is_ipv6()).expired += pieces.len() as u64;
                    return Some(pieces);
                }
            }
        }
        None
    }

    /// Takes away all datagrams with a fragment that is to go.
    pub fn purge(&self, goes: impl Fn(&P) -> bool) -> Vec<P> {
        let mut known = self.known.lock();
        let goes = |(_, pieces): &(&Datagram, &Pieces<P>)| pieces.held.iter().any(|(.., packet)| goes(packet));
        let going: Vec<Datagram> = known.datagrams.iter().filter(goes).map(|(datagram, _)| *datagram).collect();
        let mut purged = Vec::new();
        for datagram in going {
            let pieces = known.remove(&datagram);
            known.family(datagram.src.is_ipv6()).purged += pieces.len() as u64;
            purged.extend(pieces);
        }
        purged
    }
}

impl<P> Default for Fragments<P> {
    fn default() -> Fragments<P> {
        Fragments::new()
    }
}

impl<P> Known<P> {
    fn family(&mut self, v6: bool) -> &mut Family {
        if v6 { &mut self.status.v6 } else { &mut self.status.v4 }
    }

    /// Forgets a datagram; its packets in the order in which they came.
    fn remove(&mut self, datagram: &Datagram) -> Vec<P> {
        let Some(mut pieces) = self.datagrams.remove(datagram) else { return Vec::new() };
        self.status.held -= pieces.held.len() as u32;
        self.bytes -= pieces.packet_bytes;
        pieces.take()
    }

    /// Why a fragment cannot be held, whatever else there is of its datagram.
    fn refuses(&mut self, v6: bool, piece: &Piece) -> Option<Refused> {
        let family = self.family(v6);
        if !family.enabled {
            Some(Refused::Off)
        } else if piece.len == 0
            || piece.offset + piece.len > u32::from(u16::MAX)
            || !piece.offset.is_multiple_of(8)
            || piece.more && !piece.len.is_multiple_of(8)
        {
            Some(Refused::Malformed)
        } else if piece.more && piece.packet_len < family.min_size {
            family.too_small += 1;
            Some(Refused::TooSmall)
        } else if self.status.held >= self.status.max
            || self.bytes + piece.packet_len as usize > MAX_BYTES
            || self.datagrams.len() >= 2 * MAX_FRAGMENTS as usize
        {
            Some(Refused::TooMany)
        } else {
            None
        }
    }

    fn add(
        &mut self,
        datagram: Datagram,
        piece: Piece,
        now: Time,
        packet: impl FnOnce(bool) -> Option<P>,
    ) -> Outcome<P> {
        let v6 = datagram.src.is_ipv6();
        if let Some(why) = self.refuses(v6, &piece) {
            return Outcome::Refused(why);
        }
        if self.order.len() > 2 * self.datagrams.len() + 64 {
            // Most of them have become whole.
            let known = &self.datagrams;
            self.order
                .retain(|(datagram, expires)| known.get(datagram).is_some_and(|pieces| pieces.expires == *expires));
        }
        let order = &mut self.order;
        let pieces = self.datagrams.entry(datagram).or_insert_with(|| {
            let expires = now + TIMEOUT;
            order.push_back((datagram, expires));
            Pieces { held: Vec::new(), end: None, bytes: 0, packet_bytes: 0, void: false, expires }
        });
        match pieces.place(&piece) {
            Placed::At(at) => {
                let end = piece.offset + piece.len;
                let last = if piece.more { pieces.end } else { Some(end) };
                let whole = last == Some(pieces.bytes + piece.len);
                let Some(packet) = packet(whole) else { return Outcome::Refused(Refused::NoMemory) };
                let came = pieces.held.len() as u32;
                pieces.held.insert(at, (piece.offset, end, came, packet));
                (pieces.end, pieces.bytes) = (last, pieces.bytes + piece.len);
                pieces.packet_bytes += piece.packet_len as usize;
                let first = pieces.held[0].2 as usize;
                self.bytes += piece.packet_len as usize;
                self.status.held += 1;
                self.family(v6).accepted += 1;
                if !whole {
                    return Outcome::Held;
                }
                let packets = self.remove(&datagram);
                self.family(v6).completed += packets.len() as u64;
                Outcome::Whole(packets, first)
            }
            Placed::Overlaps => {
                // It is kept in mind, for those that come later.
                let packets = pieces.take();
                pieces.void = true;
                self.bytes -= std::mem::take(&mut pieces.packet_bytes);
                self.status.held -= packets.len() as u32;
                self.family(v6).overlapped += packets.len() as u64 + 1;
                Outcome::Void(packets)
            }
            Placed::Copy => {
                self.family(v6).overlapped += 1;
                Outcome::Refused(Refused::Duplicate)
            }
        }
    }
}

/// How a piece lies among those that are held.
enum Placed {
    /// Between the others, at this index.
    At(usize),
    /// Over another one, or beyond the end.
    Overlaps,
    /// Exactly over another one.
    Copy,
}

impl<P> Pieces<P> {
    fn place(&self, piece: &Piece) -> Placed {
        let (start, end) = (piece.offset, piece.offset + piece.len);
        if self.void {
            return Placed::Overlaps;
        }
        let at = self.held.partition_point(|(offset, ..)| *offset < start);
        if let Some((offset, to, ..)) = self.held.get(at)
            && (*offset, *to) == (start, end)
            && (self.end == Some(end)) != piece.more
        {
            return Placed::Copy;
        }
        let overlaps_before = at > 0 && self.held[at - 1].1 > start;
        let overlaps_next = self.held.get(at).is_some_and(|(offset, ..)| *offset < end);
        // A datagram has one end, and nothing behind it.
        let beyond = self.end.is_some_and(|last| end > last || !piece.more);
        let short = !piece.more && self.held.last().is_some_and(|(_, to, ..)| *to > end);
        if overlaps_before || overlaps_next || beyond || short { Placed::Overlaps } else { Placed::At(at) }
    }

    /// The packets in the order in which they came.
    fn take(&mut self) -> Vec<P> {
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_key(|(_, _, came, _)| *came);
        held.into_iter().map(|(.., packet)| packet).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn datagram(id: u32) -> Datagram {
        Datagram { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 17, zone: 0, id, recirc_id: 0 }
    }

    fn piece(offset: u32, len: u32, more: bool) -> Piece {
        Piece { offset, len, more, packet_len: 1500 }
    }

    const NOW: Time = Time(0);

    #[test]
    fn a_whole_datagram_comes_as_it_came() {
        let fragments = Fragments::new();
        assert_eq!(fragments.add(datagram(1), piece(1600, 100, false), NOW, |_| Some('c')), Outcome::Held);
        assert_eq!(fragments.add(datagram(2), piece(0, 800, true), NOW, |_| Some('x')), Outcome::Held);
        assert_eq!(fragments.add(datagram(1), piece(0, 800, true), NOW, |_| Some('a')), Outcome::Held);
        assert_eq!(
            fragments.add(datagram(1), piece(0, 800, true), NOW, |_| Some('a')),
            Outcome::Refused(Refused::Duplicate)
        );
        assert_eq!(
            fragments.add(datagram(1), piece(800, 800, true), NOW, |_| Some('b')),
            Outcome::Whole(vec!['c', 'a', 'b'], 1)
        );
        let status = fragments.status();
        assert_eq!((status.held, status.v4.accepted, status.v4.completed), (1, 4, 3));
        assert_eq!(fragments.expire(NOW + Duration::from_secs(14)), None);
        assert_eq!(fragments.expire(NOW + TIMEOUT), Some(vec!['x']));
        assert_eq!((fragments.expire(NOW + TIMEOUT), fragments.status().held), (None, 0));
    }

    #[test]
    fn an_overlap_makes_the_datagram_void() {
        for second in
            [piece(792, 800, true), piece(8, 8, true), piece(0, 808, true), piece(0, 8, true), piece(400, 8, false)]
        {
            let fragments = Fragments::new();
            assert_eq!(fragments.add(datagram(1), piece(0, 800, true), NOW, |_| Some(1)), Outcome::Held);
            assert_eq!(fragments.add(datagram(1), second, NOW, |_| Some(2)), Outcome::Void(vec![1]));
            let late = fragments.add(datagram(1), piece(1600, 8, false), NOW, |_| Some(3));
            assert_eq!(late, Outcome::Void(vec![]));
            assert_eq!((fragments.status().held, fragments.status().v4.overlapped), (0, 3));
            assert_eq!(fragments.expire(NOW + TIMEOUT), None);
            assert_eq!(fragments.add(datagram(1), piece(0, 800, true), NOW + TIMEOUT, |_| Some(4)), Outcome::Held);
        }
    }

    #[test]
    fn a_flood_of_whole_datagrams_leaves_nothing_behind() {
        let fragments = Fragments::new();
        for id in 0..10_000 {
            assert_eq!(fragments.add(datagram(id), piece(0, 800, true), NOW, |_| Some(())), Outcome::Held);
            assert!(matches!(
                fragments.add(datagram(id), piece(800, 8, false), NOW, |_| Some(())),
                Outcome::Whole(_, 0)
            ));
        }
        assert!(fragments.known.lock().order.len() < 100);
    }

    #[test]
    fn what_may_not_be_is_dropped() {
        let fragments = Fragments::new();
        let dropped = |piece, why| {
            assert_eq!(fragments.add(datagram(1), piece, NOW, |_| Some(())), Outcome::Refused(why));
        };
        dropped(piece(0, 801, true), Refused::Malformed);
        dropped(piece(65528, 8, true), Refused::Malformed);
        dropped(piece(8, 0, false), Refused::Malformed);
        dropped(Piece { packet_len: 1199, ..piece(0, 800, true) }, Refused::TooSmall);
        fragments.set_enabled(false, false);
        dropped(piece(0, 800, true), Refused::Off);
        fragments.set_enabled(false, true);
        assert!(fragments.set_max(2) && !fragments.set_max(5001) && !fragments.set_min_size(false, 399));
        (1..3).for_each(|id| {
            assert_eq!(fragments.add(datagram(id), piece(0, 800, true), NOW, |_| Some(())), Outcome::Held)
        });
        assert_eq!(
            fragments.add(datagram(3), piece(0, 800, true), NOW, |_| Some(())),
            Outcome::Refused(Refused::TooMany)
        );
    }

    #[test]
    fn what_is_held_is_bounded_in_bytes_and_can_be_taken_away() {
        let fragments = Fragments::new();
        let large = Piece { packet_len: 60_000, ..piece(0, 800, true) };
        let held =
            (0..).take_while(|&id| fragments.add(datagram(id), large, NOW, |_| Some(id)) == Outcome::Held).count();
        assert_eq!(held, MAX_BYTES / 60_000);
        assert_eq!(fragments.add(datagram(9), large, NOW, |_| None), Outcome::Refused(Refused::TooMany));
        let mut purged = fragments.purge(|id| *id < 5);
        purged.sort_unstable();
        assert_eq!((purged, fragments.status().v4.purged), (vec![0, 1, 2, 3, 4], 5));
        assert_eq!(fragments.add(datagram(9), large, NOW, |_| None), Outcome::Refused(Refused::Duplicate));
        assert_eq!(fragments.add(datagram(3), large, NOW, |_| None), Outcome::Refused(Refused::NoMemory));
        let listed = fragments.incomplete().into_iter().find(|of| of.datagram == datagram(9)).unwrap();
        assert_eq!((listed.fragments, listed.first_seen, listed.last_seen), (1, true, false));
        // Neither an overlap nor an expiry leaves bytes behind.
        let over = Piece { packet_len: 60_000, ..piece(8, 8, true) };
        assert!(matches!(fragments.add(datagram(9), over, NOW, |_| None), Outcome::Void(_)));
        while fragments.expire(NOW + TIMEOUT).is_some() {}
        assert_eq!((fragments.status().held, fragments.known.lock().bytes), (0, 0));
    }

    proptest! {
        /// Every fragment comes out exactly once, and what is whole has every byte once.
        #[test]
        fn nothing_is_lost_or_doubled(
            steps in proptest::collection::vec((0u32..3, 0u32..6, 1u32..4, any::<bool>(), 0u64..4), 0..200),
        ) {
            let fragments = Fragments::new();
            let (mut now, mut out) = (NOW, Vec::new());
            let number = steps.len();
            let all: Vec<Piece> = steps.iter().map(|(_, at, len, more, _)| piece(at * 8, len * 8, *more)).collect();
            for (n, (id, .., pass)) in steps.into_iter().enumerate() {
                now = now + Duration::from_secs(pass);
                while let Some(expired) = fragments.expire(now) {
                    out.extend(expired);
                }
                match fragments.add(datagram(id), all[n], now, |_| Some(n)) {
                    Outcome::Held => {}
                    Outcome::Refused(_) => out.push(n),
                    Outcome::Void(dropped) => out.extend(dropped.into_iter().chain([n])),
                    Outcome::Whole(whole, first) => {
                        prop_assert_eq!(all[whole[first]].offset, 0);
                        prop_assert!(whole.is_sorted(), "in the order in which they came");
                        let mut pieces: Vec<Piece> = whole.iter().map(|n| all[*n]).collect();
                        pieces.sort_by_key(|piece| piece.offset);
                        let end = pieces.iter().try_fold(0, |at, p| (at == p.offset).then_some(p.offset + p.len));
                        prop_assert!(end.is_some() && !pieces.last().unwrap().more);
                        prop_assert!(pieces.iter().rev().skip(1).all(|piece| piece.more));
                        out.extend(whole);
                    }
                }
            }
            while let Some(expired) = fragments.expire(now + TIMEOUT) {
                out.extend(expired);
            }
            out.sort_unstable();
            prop_assert_eq!(out, (0..number).collect::<Vec<_>>());
            prop_assert_eq!((fragments.status().held, fragments.known.lock().bytes), (0, 0));
        }
    }
}
