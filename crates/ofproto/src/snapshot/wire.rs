//! The frame of a snapshot: a header, sections, and a last section that shows whether all is there and unharmed.
//!
//! Numbers are in network byte order. The header is the magic, the version of the format, and six zero bytes. A section
//! is its type, two zero bytes, the length of its body, and the body. The last section has the number of the others and
//! the CRC-32C of all bytes before it.

use std::io::Write;

use packet::wire::crc32c;

use super::{SnapshotError, VERSION};

const MAGIC: &[u8; 8] = b"WEIRSNAP";
const HEADER_LEN: usize = 16;
const SECTION_HEADER_LEN: usize = 8;

/// Types of sections.
pub(super) mod kind {
    pub const BRIDGE: u16 = 1;
    pub const TABLE: u16 = 2;
    pub const PORT: u16 = 3;
    pub const METER: u16 = 4;
    pub const GROUP: u16 = 5;
    pub const FLOW: u16 = 6;
    pub const MAC: u16 = 7;
    pub const TLV: u16 = 8;
    /// From here on, who does not know a type passes over it.
    pub const OPTIONAL: u16 = 0x8000;
    pub const TIMEOUT_POLICY: u16 = 0x8001;
    pub const CONNECTION: u16 = 0x8002;
    pub const EXPECTATION: u16 = 0x8003;
    pub const METER_COUNTERS: u16 = 0x8004;
    pub const MULTICAST: u16 = 0x8005;
    pub const END: u16 = 0xffff;
}

/// Writes sections.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    crc: u32,
    sections: u64,
}

impl<'a> Writer<'a> {
    /// Writes the header.
    pub fn new(out: &'a mut dyn Write) -> Result<Writer<'a>, SnapshotError> {
        let mut writer = Writer { out, crc: 0, sections: 0 };
        writer.put(MAGIC)?;
        writer.put(&VERSION.to_be_bytes())?;
        writer.put(&[0; 6])?;
        Ok(writer)
    }

    /// Writes a section.
    pub fn section(&mut self, kind: u16, body: &[u8]) -> Result<(), SnapshotError> {
        self.sections += 1;
        self.put(&section_header(kind, body.len()))?;
        self.put(body)
    }

    /// Writes the end.
    pub fn finish(self) -> Result<(), SnapshotError> {
        self.out.write_all(&end(self.sections, self.crc))?;
        Ok(self.out.flush()?)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.crc = crc32c::extend(self.crc, bytes);
        Ok(self.out.write_all(bytes)?)
    }
}

fn section_header(kind: u16, len: usize) -> [u8; SECTION_HEADER_LEN] {
    let mut header = [0; SECTION_HEADER_LEN];
    header[..2].copy_from_slice(&kind.to_be_bytes());
    // A body is at most a few messages of 64 KiB each.
    header[4..].copy_from_slice(&(len as u32).to_be_bytes());
    header
}

fn end(sections: u64, crc: u32) -> Vec<u8> {
    let mut end = section_header(kind::END, 12).to_vec();
    end.extend(sections.to_be_bytes());
    end.extend(crc.to_be_bytes());
    end
}

/// Makes a snapshot of any bytes that follow its header: what is whole of them gets the end that belongs to it.
#[cfg(any(test, fuzzing))]
pub(super) fn seal(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let Ok(mut writer) = Writer::new(&mut out) else { return Vec::new() };
    let mut rest = body;
    while let Some((header, after)) = rest.split_first_chunk::<SECTION_HEADER_LEN>() {
        let [k0, k1, _, _, l @ ..] = *header;
        let (kind, len) = (u16::from_be_bytes([k0, k1]), u32::from_be_bytes(l) as usize);
        let Some((body, next)) = after.split_at_checked(len) else { break };
        if kind == kind::END || writer.section(kind, body).is_err() {
            break;
        }
        rest = next;
    }
    let _ = writer.finish();
    out
}

/// The sections of a snapshot, in an order of their own: flows are in the order of their tables' hashes.
#[cfg(any(test, fuzzing))]
pub(super) fn sorted(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let sections = open(bytes).into_iter().flatten().flatten();
    let mut sections: Vec<_> = sections.map(|section| (section.kind, section.rest().to_vec())).collect();
    sections.sort_unstable();
    sections
}

/// A section's body, which is read from its beginning.
#[derive(Clone)]
pub(super) struct Body<'a> {
    pub kind: u16,
    /// Where the rest begins in the snapshot.
    pub at: usize,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// The next `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.corrupt("a section is too short"));
        };
        (self.rest, self.at) = (rest, self.at + N);
        Ok(*head)
    }

    pub fn u16(&mut self) -> Result<u16, SnapshotError> {
        self.bytes().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.bytes().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.bytes().map(u64::from_be_bytes)
    }

    /// So many bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], SnapshotError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.corrupt("a section is too short"));
        };
        (self.rest, self.at) = (rest, self.at + len);
        Ok(head)
    }

    /// What is left, without reading it.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// What is left, as a name.
    pub fn name(&mut self) -> Result<String, SnapshotError> {
        let bytes = self.take(self.rest.len())?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.corrupt("a name is not UTF-8"))
    }

    /// Nothing may be left.
    pub fn done(&self) -> Result<(), SnapshotError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.corrupt("a section is too long")) }
    }

    pub fn corrupt(&self, what: &'static str) -> SnapshotError {
        SnapshotError::Corrupt { at: self.at, what }
    }
}

/// Checks a snapshot's header, length and sum, and returns its sections without the end.
pub(super) fn open(bytes: &[u8]) -> Result<Sections<'_>, SnapshotError> {
    let shorter = bytes.len().min(MAGIC.len());
    if bytes[..shorter] != MAGIC[..shorter] {
        return Err(SnapshotError::NotASnapshot);
    }
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Err(SnapshotError::Truncated { at: bytes.len() });
    };
    let version = u16::from_be_bytes([header[8], header[9]]);
    if version > VERSION {
        return Err(SnapshotError::Newer { version });
    }
    if version == 0 || header[10..] != [0; 6] {
        return Err(SnapshotError::Corrupt { at: 8, what: "the header is wrong" });
    }
    let mut sections = Sections { bytes, at: HEADER_LEN };
    let mut count = 0;
    loop {
        let start = sections.at;
        let Some(section) = sections.next() else { return Err(SnapshotError::Truncated { at: start }) };
        let mut section = section?;
        if section.kind != kind::END {
            count += 1;
            continue;
        }
        let (sections_said, crc) = (section.u64()?, section.u32()?);
        section.done()?;
        if crc != crc32c::crc32c(&bytes[..start]) {
            return Err(SnapshotError::Corrupt { at: start, what: "the checksum is wrong" });
        }
        if sections_said != count {
            return Err(SnapshotError::Corrupt { at: start, what: "the number of sections is wrong" });
        }
        if section.at != bytes.len() {
            return Err(SnapshotError::Corrupt { at: section.at, what: "something follows the end" });
        }
        return Ok(Sections { bytes: &bytes[..start], at: HEADER_LEN });
    }
}

/// The sections from an offset on.
#[derive(Clone)]
pub(super) struct Sections<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Sections<'a> {
    type Item = Result<Body<'a>, SnapshotError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let truncated = SnapshotError::Truncated { at: self.bytes.len() };
        let found = rest.split_first_chunk::<SECTION_HEADER_LEN>();
        let Some((header, after)) = found else {
            self.at = self.bytes.len();
            return Some(Err(truncated));
        };
        let [k0, k1, z0, z1, l @ ..] = *header;
        let (kind, len) = (u16::from_be_bytes([k0, k1]), u32::from_be_bytes(l) as usize);
        let start = self.at;
        let Some(body) = after.get(..len) else {
            self.at = self.bytes.len();
            return Some(Err(truncated));
        };
        self.at += SECTION_HEADER_LEN + len;
        if (z0, z1) != (0, 0) {
            return Some(Err(SnapshotError::Corrupt { at: start, what: "the header of a section is wrong" }));
        }
        Some(Ok(Body { kind, at: start + SECTION_HEADER_LEN, rest: body }))
    }
}
