//! Capture files in memory: classic pcap (micro- and nanoseconds, both byte orders) and pcapng.
//!
//! The formats are those of draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. The reader is our own
//! because a replay wants little of them (frames and times of Ethernet interfaces) and its users want
//! the place of an error; the crates there are bring a type for each of pcapng's blocks instead.

use std::ops::Range;
use std::time::Duration;

use packet::buffer::prefetch;

/// The frames of a capture file.
#[derive(Debug, Default)]
pub struct Capture {
    bytes: Vec<u8>,
    frames: Vec<(Duration, Range<usize>)>,
    /// The names of interfaces, and where each frame was seen; nothing for a classic file, which does not tell.
    names: Vec<String>,
    sightings: Vec<Sighting>,
}

/// Where a frame was seen.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    /// Number of the interface's name.
    name: Option<usize>,
    /// It was on its way out.
    outbound: bool,
}

/// Link type of Ethernet, the only one that can be replayed.
const LINKTYPE_ETHERNET: u32 = 1;

/// The largest frame that is believed: what libpcap allows. More means a corrupt file.
const MAX_FRAME: usize = 262_144;

impl Capture {
    /// Reads a capture file's content. The error says what is wrong and where.
    pub fn parse(bytes: Vec<u8>) -> Result<Capture, String> {
        let magic = bytes.get(..4).ok_or_else(|| format!("{} bytes are too few for a capture file", bytes.len()))?;
        let frames = match u32::from_be_bytes(magic.try_into().expect("four bytes")) {
            0x0a0d_0d0a => {
                let Pcapng { frames, names, sightings, .. } = Pcapng::default().read(&bytes)?;
                return Ok(Capture { bytes, frames, names, sightings });
            }
            _ => match ClassicHeader::parse(&bytes)? {
                Some(header) => header.read(&bytes)?,
                None => {
                    return Err(format!("not a capture file: magic number {magic:02x?}; pcap or pcapng is expected"));
                }
            },
        };
        Ok(Capture { bytes, frames, ..Capture::default() })
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Frame `index`, which is below [`len`](Capture::len).
    #[inline]
    pub fn frame(&self, index: usize) -> &[u8] {
        &self.bytes[self.frames[index].1.clone()]
    }

    /// Asks for frame `index`, if there is one.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        if let Some((_, bytes)) = self.frames.get(index) {
            prefetch(self.bytes.as_ptr().wrapping_add(bytes.start));
        }
    }

    /// The name of the interface that frame `index` was seen at, where the file tells it (pcapng: if_name).
    pub fn interface(&self, index: usize) -> Option<&str> {
        Some(&self.names[self.sightings.get(index)?.name?])
    }

    /// Whether frame `index` was on its way out, as far as the file tells (pcapng: epb_flags).
    pub fn is_outbound(&self, index: usize) -> bool {
        self.sightings.get(index).is_some_and(|sighting| sighting.outbound)
    }

    /// When frame `index` was captured, since 1970.
    #[inline]
    pub fn time(&self, index: usize) -> Duration {
        self.frames[index].0
    }
}

/// Reads integers in the byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    big: bool,
}

impl Order {
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let b = [bytes[at], bytes[at + 1]];
        if self.big { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) }
    }

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let b = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }
    }
}

/// Header of a classic capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClassicHeader {
    order: Order,
    /// Fractions of seconds are nanoseconds rather than microseconds.
    pub nanoseconds: bool,
}

impl ClassicHeader {
    pub(super) const LEN: usize = 24;
    const RECORD_LEN: usize = 16;

    /// A header for a new file, in the byte order of the machine.
    pub(super) fn new(nanoseconds: bool) -> ClassicHeader {
        ClassicHeader { order: Order { big: cfg!(target_endian = "big") }, nanoseconds }
    }

    /// `None`: this is no classic capture file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<ClassicHeader>, String> {
        let Some(magic) = bytes.get(..4) else { return Ok(None) };
        let (big, nanoseconds) = match u32::from_be_bytes(magic.try_into().expect("four bytes")) {
            0xa1b2_c3d4 => (true, false),
            0xa1b2_3c4d => (true, true),
            0xd4c3_b2a1 => (false, false),
            0x4d3c_b2a1 => (false, true),
            _ => return Ok(None),
        };
        let order = Order { big };
        if bytes.len() < ClassicHeader::LEN {
            return Err(format!("the file header is cut short: {} of 24 bytes", bytes.len()));
        }
        check_link_type(order.u32(bytes, 20) & 0x0fff_ffff)?;
        Ok(Some(ClassicHeader { order, nanoseconds }))
    }

    fn read(self, bytes: &[u8]) -> Result<Vec<(Duration, Range<usize>)>, String> {
        let mut frames = Vec::new();
        let mut at = ClassicHeader::LEN;
        while at < bytes.len() {
            let place = || format!("record {} at byte {at}", frames.len() + 1);
            if bytes.len() - at < ClassicHeader::RECORD_LEN {
                return Err(format!("{}: cut short", place()));
            }
            let [seconds, fraction, length] = [0, 4, 8].map(|o| self.order.u32(bytes, at + o));
            let start = at + ClassicHeader::RECORD_LEN;
            let range = frame_range(bytes, start, length as usize).map_err(|e| format!("{}: {e}", place()))?;
            let nanos = u64::from(fraction) * if self.nanoseconds { 1 } else { 1000 };
            let next = range.end;
            frames.push((Duration::from_secs(seconds.into()) + Duration::from_nanos(nanos), range));
            at = next;
        }
        Ok(frames)
    }

    /// The file header.
    pub(super) fn encode(&self) -> [u8; ClassicHeader::LEN] {
        let mut header = [0; ClassicHeader::LEN];
        let magic: u32 = if self.nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
        header[..4].copy_from_slice(&self.word(magic));
        // Version 2.4, in two 16-bit fields.
        let version = if self.order.big { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
        header[4..8].copy_from_slice(&version);
        header[16..20].copy_from_slice(&self.word(MAX_FRAME as u32));
        header[20..24].copy_from_slice(&self.word(LINKTYPE_ETHERNET));
        header
    }

    /// The header of a record with a whole frame of `len` bytes.
    pub(super) fn encode_record(&self, time: Duration, len: usize) -> [u8; ClassicHeader::RECORD_LEN] {
        let fraction = if self.nanoseconds { time.subsec_nanos() } else { time.subsec_micros() };
        let mut header = [0; ClassicHeader::RECORD_LEN];
        for (word, value) in header.chunks_mut(4).zip([time.as_secs() as u32, fraction, len as u32, len as u32]) {
            word.copy_from_slice(&self.word(value));
        }
        header
    }

    fn word(&self, value: u32) -> [u8; 4] {
        if self.order.big { value.to_be_bytes() } else { value.to_le_bytes() }
    }
}

fn check_link_type(link_type: u32) -> Result<(), String> {
    match link_type {
        LINKTYPE_ETHERNET => Ok(()),
        other => Err(format!("link type {other}; only Ethernet (1) can be replayed")),
    }
}

/// Where a frame of `length` bytes at `start` lies, if the file is that long.
fn frame_range(bytes: &[u8], start: usize, length: usize) -> Result<Range<usize>, String> {
    if length > MAX_FRAME {
        return Err(format!("corrupt: a frame of {length} bytes"));
    }
    let end = start + length;
    match end <= bytes.len() {
        true => Ok(start..end),
        false => Err(format!("cut short: {} of {length} bytes of frame", bytes.len().saturating_sub(start))),
    }
}

/// State while reading a pcapng file: the interfaces of the present section.
#[derive(Default)]
struct Pcapng {
    interfaces: Vec<Interface>,
    frames: Vec<(Duration, Range<usize>)>,
    /// The names of interfaces of all sections.
    names: Vec<String>,
    sightings: Vec<Sighting>,
}

#[derive(Clone, Copy)]
struct Interface {
    ethernet: bool,
    snap_len: usize,
    /// Time units per second.
    units: u64,
    /// Seconds to add.
    offset: i64,
    /// Number of its name.
    name: Option<usize>,
}

impl Pcapng {
    fn read(mut self, bytes: &[u8]) -> Result<Pcapng, String> {
        let (mut at, mut number) = (0, 0);
        let mut order = Order { big: false };
        while at < bytes.len() {
            number += 1;
            let place = |problem: String| format!("block {number} at byte {at}: {problem}");
            if bytes.len() - at < 12 {
                return Err(place("cut short".into()));
            }
            if bytes[at..at + 4] == [0x0a, 0x0d, 0x0d, 0x0a] {
                order = match bytes[at + 8..at + 12] {
                    [0x1a, 0x2b, 0x3c, 0x4d] => Order { big: true },
                    [0x4d, 0x3c, 0x2b, 0x1a] => Order { big: false },
                    ref other => return Err(place(format!("byte-order magic {other:02x?}"))),
                };
                self.interfaces.clear();
            }
            let total = order.u32(bytes, at + 4) as usize;
            if total < 12 || !total.is_multiple_of(4) {
                return Err(place(format!("corrupt: a block of {total} bytes")));
            }
            if bytes.len() - at < total {
                return Err(place(format!("cut short: {} of {total} bytes", bytes.len() - at)));
            }
            if order.u32(bytes, at + total - 4) as usize != total {
                return Err(place("corrupt: its two lengths differ".into()));
            }
            let kind = order.u32(bytes, at);
            self.block(bytes, kind, at + 8..at + total - 4, order).map_err(place)?;
            at += total;
        }
        Ok(self)
    }

    /// Takes a block, whose body lies at `body`. Kinds that carry no frames are skipped.
    fn block(&mut self, bytes: &[u8], kind: u32, body: Range<usize>, order: Order) -> Result<(), String> {
        let need =
            |n: usize| if body.len() < n { Err("cut short: no room for its fields".to_string()) } else { Ok(()) };
        match kind {
            // Interface description.
            1 => {
                need(8)?;
                let (interface, name) = Interface::parse(&bytes[body.clone()], order);
                let number = name.map(|name| {
                    self.names.push(name);
                    self.names.len() - 1
                });
                self.interfaces.push(Interface { name: number, ..interface });
            }
            // Enhanced packet, and the obsolete packet, which has a drop count beside its interface.
            6 | 2 => {
                need(20)?;
                let interface = match kind {
                    6 => order.u32(bytes, body.start) as usize,
                    _ => order.u16(bytes, body.start).into(),
                };
                let interface = self.interface(interface)?;
                let [high, low, length] = [4, 8, 12].map(|o| order.u32(bytes, body.start + o));
                let time = interface.time(u64::from(high) << 32 | u64::from(low));
                let range = frame_range(&bytes[..body.end], body.start + 20, length as usize)?;
                let options = bytes.get(range.end.next_multiple_of(4)..body.end).unwrap_or_default();
                // epb_flags: the direction is in the lowest two bits, and 2 is outbound.
                let is_flags = |&(code, value): &(u16, &[u8])| code == 2 && value.len() == 4;
                let flags = Options { rest: options, order }.find(is_flags).map(|(_, value)| order.u32(value, 0));
                let outbound = flags.is_some_and(|flags| flags & 3 == 2);
                self.sightings.push(Sighting { name: interface.name, outbound });
                self.frames.push((time, range));
            }
            // Simple packet: of the first interface, without a time, cut at the snapshot length.
            3 => {
                need(4)?;
                let interface = self.interface(0)?;
                let length = (order.u32(bytes, body.start) as usize).min(interface.snap_len);
                let range = frame_range(&bytes[..body.end], body.start + 4, length)?;
                let time = self.frames.last().map_or(Duration::ZERO, |f| f.0);
                self.sightings.push(Sighting { name: interface.name, outbound: false });
                self.frames.push((time, range));
            }
            _ => {}
        }
        Ok(())
    }

    fn interface(&self, index: usize) -> Result<Interface, String> {
        let interface = self.interfaces.get(index).ok_or_else(|| format!("interface {index} is not described"))?;
        match interface.ethernet {
            true => Ok(*interface),
            false => Err(format!("interface {index} is not Ethernet; only Ethernet can be replayed")),
        }
    }
}

/// Code and value of each option of a block, up to the first that is cut short.
struct Options<'a> {
    rest: &'a [u8],
    order: Order,
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let header = self.rest.get(..4)?;
        let (code, length) = (self.order.u16(header, 0), usize::from(self.order.u16(header, 2)));
        let value = self.rest.get(4..4 + length).filter(|_| code != 0)?;
        self.rest = self.rest.get(4 + length.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    }
}

impl Interface {
    /// An interface, and its name.
    fn parse(body: &[u8], order: Order) -> (Interface, Option<String>) {
        let mut interface = Interface {
            ethernet: u32::from(order.u16(body, 0)) == LINKTYPE_ETHERNET,
            snap_len: match order.u32(body, 4) {
                0 => usize::MAX,
                n => n as usize,
            },
            units: 1_000_000,
            offset: 0,
            name: None,
        };
        let mut name = None;
        for option in (Options { rest: &body[8..], order }) {
            match option {
                (2, bytes) => name = Some(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()),
                // if_tsresol: a negative power of 10, or of 2 with the highest bit.
                (9, [n]) if n & 0x80 != 0 => {
                    interface.units = 1u64.checked_shl(u32::from(n & 0x7f)).unwrap_or(u64::MAX)
                }
                (9, [n]) => interface.units = 10u64.checked_pow((*n).into()).unwrap_or(u64::MAX),
                // if_tsoffset: seconds.
                (14, v) if v.len() == 8 => {
                    let [a, b] = [order.u32(v, 0), order.u32(v, 4)].map(u64::from);
                    interface.offset = (if order.big { a << 32 | b } else { b << 32 | a }) as i64;
                }
                _ => {}
            }
        }
        (interface, name)
    }

    fn time(&self, stamp: u64) -> Duration {
        let seconds = (stamp / self.units).saturating_add_signed(self.offset);
        let nanos = u128::from(stamp % self.units) * 1_000_000_000 / u128::from(self.units);
        Duration::new(seconds, nanos as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A classic capture, written here field by field and in either order.
    fn classic(big: bool, nanoseconds: bool, records: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let word = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let half = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let mut out = word(if nanoseconds { 0xa1b23c4d } else { 0xa1b2c3d4 }).to_vec();
        out.extend([half(2), half(4)].concat());
        out.extend([word(0), word(0), word(65535), word(1)].concat());
        for (seconds, fraction, frame) in records {
            out.extend([*seconds, *fraction, frame.len() as u32, 1500].map(word).concat());
            out.extend_from_slice(frame);
        }
        out
    }

    #[test]
    fn all_classic_forms() {
        for (big, nanoseconds) in [(false, false), (false, true), (true, false), (true, true)] {
            let capture =
                Capture::parse(classic(big, nanoseconds, &[(1, 5, b"one"), (2, 7, b""), (3, 9, b"three")])).unwrap();
            assert_eq!((capture.len(), capture.frame(0), capture.frame(2)), (3, &b"one"[..], &b"three"[..]));
            assert_eq!(capture.time(1), Duration::new(2, if nanoseconds { 7 } else { 7000 }));
        }
    }

    fn block(big: bool, kind: u32, body: &[u8]) -> Vec<u8> {
        let word = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let total = word(12 + body.len().next_multiple_of(4) as u32);
        let mut out = [word(kind), total].concat();
        out.extend_from_slice(body);
        out.resize(8 + body.len().next_multiple_of(4), 0);
        out.extend(total);
        out
    }

    fn pcapng(big: bool) -> Vec<u8> {
        let word = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let half = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
        let section = [&word(0x1a2b3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat();
        let microseconds = [&half(1)[..], &half(0), &word(65535)].concat();
        let nanoseconds =
            [&half(1)[..], &half(0), &word(0), &half(9), &half(1), &[9, 0, 0, 0], &half(0), &half(0)].concat();
        let packet = |interface: u32, stamp: u64, frame: &[u8]| {
            let mut body = [interface, (stamp >> 32) as u32, stamp as u32, frame.len() as u32, 99].map(word).concat();
            body.extend_from_slice(frame);
            block(big, 6, &body)
        };
        [
            block(big, 0x0a0d0d0a, &section),
            block(big, 1, &microseconds),
            block(big, 1, &nanoseconds),
            packet(0, 1_700_000_000_000_001, b"first"),
            block(big, 0xbad, b"unknown block"),
            packet(1, 1_700_000_000_000_000_002, b"second!!"),
            block(big, 3, &[&word(3)[..], b"abc"].concat()),
        ]
        .concat()
    }

    #[test]
    fn pcapng_in_both_orders() {
        for big in [false, true] {
            let capture = Capture::parse(pcapng(big)).unwrap();
            assert_eq!(
                (capture.frame(0), capture.frame(1), capture.frame(2)),
                (&b"first"[..], &b"second!!"[..], &b"abc"[..])
            );
            assert_eq!(capture.time(0), Duration::new(1_700_000_000, 1000));
            assert_eq!(capture.time(1), Duration::new(1_700_000_000, 2));
            let twice = [pcapng(big), pcapng(!big)].concat();
            assert_eq!(Capture::parse(twice).unwrap().len(), 6, "sections of different byte order");
        }
    }

    #[test]
    fn errors_say_what_and_where() {
        let error = |bytes: &[u8]| Capture::parse(bytes.to_vec()).unwrap_err();
        assert_eq!(error(b"no"), "2 bytes are too few for a capture file");
        assert!(error(b"#!/bin/sh").starts_with("not a capture file: magic number [23, 21, 2f, 62]"));
        let good = classic(false, false, &[(0, 0, b"0123456789"), (0, 0, b"0123456789")]);
        assert_eq!(error(&good[..20]), "the file header is cut short: 20 of 24 bytes");
        assert_eq!(error(&good[..60]), "record 2 at byte 50: cut short");
        assert_eq!(error(&good[..70]), "record 2 at byte 50: cut short: 4 of 10 bytes of frame");
        let mut bad = good.clone();
        bad[20] = 101;
        assert_eq!(error(&bad), "link type 101; only Ethernet (1) can be replayed");
        bad = good.clone();
        bad[35] = 0xff;
        assert_eq!(error(&bad), "record 1 at byte 24: corrupt: a frame of 4278190090 bytes");
        let ng = pcapng(true);
        assert!(error(&ng[..ng.len() - 1]).contains("cut short"));
        assert_eq!(
            error(&[&ng[..28], &block(true, 6, &[0; 24])].concat()),
            "block 2 at byte 28: interface 0 is not described"
        );
        assert_eq!(
            error(&[&ng[..28], &block(true, 1, &[0; 8]), &block(true, 6, &[0; 24])].concat()),
            "block 3 at byte 48: interface 0 is not Ethernet; only Ethernet can be replayed"
        );
    }

    proptest! {
        #[test]
        fn cut_and_corrupt_files_never_panic(big: bool, ng: bool, cut in 0usize..300, flips in prop::collection::vec((0usize..300, any::<u8>()), 0..6)) {
            let mut bytes = if ng { pcapng(big) } else { classic(big, true, &[(1, 2, b"hello"), (3, 4, &[7; 90])]) };
            for (at, value) in flips {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            bytes.truncate(cut);
            if let Ok(capture) = Capture::parse(bytes) {
                for i in 0..capture.len() {
                    prop_assert!(capture.frame(i).len() <= 300);
                }
            }
        }
    }
}
