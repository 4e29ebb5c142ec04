//! FTP's announcements of data connections: PORT and the answer 227 (RFC 959), EPRT and the answer 229 (RFC 2428).
//!
//! A command or an answer has to begin a segment and lie in it whole, up to the byte behind the port. Clients and servers
//! send them so; one that does not gets no data connection through a firewall.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use packet::Packet;
use packet::wire::{checksum, ip_proto};

use crate::nat::Place;

/// The most bytes of a segment that are looked at.
const LONGEST: usize = 512;

/// A segment that begins like an announcement and is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed FTP announcement")]
pub struct Malformed;

/// What a control connection announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announcement {
    /// The address, where the text has one, and where it is in the text.
    pub address: Option<(IpAddr, Range<usize>)>,
    /// The port.
    pub port: u16,
    /// The address is written with commas.
    commas: bool,
}

/// A change of text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    /// Bytes of the data that go away.
    pub range: Range<usize>,
    /// What comes instead.
    pub text: String,
}

impl Announcement {
    /// The change that puts another address where this one is.
    pub fn edit(&self, range: Range<usize>, address: IpAddr) -> Edit {
        let text = address.to_string();
        Edit { range, text: if self.commas { text.replace('.', ",") } else { text } }
    }
}

impl Edit {
    /// Bytes by which the data become longer.
    pub fn added(&self) -> i16 {
        // Both are texts of addresses.
        self.text.len() as i16 - self.range.len() as i16
    }

    /// Changes a segment in its packet: the text, the lengths and the checksums. Whether there was room for it.
    pub fn apply(&self, packet: &mut Packet, place: &Place) -> bool {
        let Some(transport) = place.transport.filter(|_| place.proto == ip_proto::TCP) else { return false };
        let data_offset = packet.data().get(transport + 12).map(|byte| usize::from(byte >> 4) * 4);
        let Some(start) = data_offset.map(|offset| transport + offset + self.range.start) else { return false };
        let end = start + self.range.len();
        if end > place.end || place.end > packet.len() {
            return false;
        }
        // Padding of a short frame goes away.
        packet.truncate(place.end);
        let (old, new) = (self.range.len(), self.text.len());
        if new > old && packet.push_back(new - old).is_none() {
            return false;
        }
        let bytes = packet.data_mut();
        bytes.copy_within(end..place.end, start + new);
        bytes[start..start + new].copy_from_slice(self.text.as_bytes());
        packet.truncate(place.end + new - old);
        set_lengths(packet.data_mut(), place, transport, i32::from(self.added()));
        true
    }
}

/// Puts the right lengths and checksums into a packet that has become longer.
fn set_lengths(bytes: &mut [u8], place: &Place, transport: usize, added: i32) {
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let put = |bytes: &mut [u8], at: usize, word: u16| bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
    let v4 = bytes[place.ip] >> 4 == 4;
    let at = place.ip + if v4 { 2 } else { 4 };
    let old = word(bytes, at);
    let new = old.wrapping_add_signed(added as i16);
    put(bytes, at, new);
    let addresses = if v4 {
        let sum = checksum::update16(word(bytes, place.ip + 10), old, new);
        put(bytes, place.ip + 10, sum);
        place.ip + 12..place.ip + 20
    } else {
        place.ip + 8..place.ip + 40
    };
    let len = (bytes.len() - transport) as u32;
    let pseudo = checksum::Sum::ZERO.add_bytes(&bytes[addresses]).add_u32(len).add_u32(ip_proto::TCP.into());
    put(bytes, transport + 16, 0);
    let sum = if place.partial { pseudo.partial() } else { pseudo.add_bytes(&bytes[transport..]).finish() };
    put(bytes, transport + 16, sum);
}

/// What the data of a segment announce; `None` for data that begin like no announcement. The client announces active
/// connections, the server passive ones.
pub fn parse(data: &[u8], from_server: bool, v6: bool) -> Result<Option<Announcement>, Malformed> {
    let data = &data[..data.len().min(LONGEST)];
    let is = |word: &[u8]| data.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    let text = Text { data, at: 4 };
    let parsed = if !from_server && !v6 && is(b"PORT ") {
        text.with_commas(false)
    } else if !from_server && is(b"EPRT ") {
        text.extended(v6)
    } else if from_server && !v6 && is(b"227 ") {
        text.with_commas(true)
    } else if from_server && is(b"229 ") {
        text.extended_passive()
    } else {
        return Ok(None);
    };
    parsed.map(Some).ok_or(Malformed)
}

/// A text that is read from a place on.
struct Text<'a> {
    data: &'a [u8],
    at: usize,
}

impl Text<'_> {
    fn peek(&self) -> Option<u8> {
        self.data.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// A number of a few digits with something behind it, up to a largest one.
    fn number(&mut self, max: u32) -> Option<u32> {
        let start = self.at;
        let mut number = 0;
        while let Some(digit) = self.peek()?.checked_sub(b'0').filter(|digit| *digit < 10) {
            number = number * 10 + u32::from(digit);
            self.at += 1;
            if number > max || self.at - start > 5 {
                return None;
            }
        }
        (self.at > start).then_some(number)
    }

    fn port(&mut self) -> Option<u16> {
        let port = self.number(u32::from(u16::MAX))? as u16;
        (port != 0).then_some(port)
    }

    /// `h1,h2,h3,h4,p1,p2`, behind the first digit that follows; an answer has words before it.
    fn with_commas(mut self, words: bool) -> Option<Announcement> {
        while !self.peek()?.is_ascii_digit() {
            let skip = words || self.peek()? == b' ';
            self.at += usize::from(skip);
            if !skip {
                return None;
            }
        }
        let start = self.at;
        let mut numbers = [0; 6];
        let mut end = start;
        for (i, number) in numbers.iter_mut().enumerate() {
            if i > 0 {
                self.expect(b',')?;
            }
            *number = self.number(255)? as u8;
            if i == 3 {
                end = self.at;
            }
        }
        let [a, b, c, d, high, low] = numbers;
        let port = u16::from_be_bytes([high, low]);
        let address = Some((Ipv4Addr::new(a, b, c, d).into(), start..end));
        (port != 0).then_some(Announcement { address, port, commas: true })
    }

    /// `|1|address|port|` or `|2|address|port|`, with any character instead of the bar.
    fn extended(mut self, v6: bool) -> Option<Announcement> {
        while self.peek()? == b' ' {
            self.at += 1;
        }
        let bar = self.bar()?;
        self.expect(if v6 { b'2' } else { b'1' })?;
        self.expect(bar)?;
        let start = self.at;
        while self.peek()? != bar {
            self.at += 1;
        }
        let range = start..self.at;
        let text = std::str::from_utf8(&self.data[range.clone()]).ok()?;
        let address: IpAddr = text.parse().ok()?;
        self.expect(bar)?;
        let port = self.port()?;
        self.expect(bar)?;
        (address.is_ipv6() == v6).then_some(Announcement { address: Some((address, range)), port, commas: false })
    }

    /// `(|||port|)`, behind some words.
    fn extended_passive(mut self) -> Option<Announcement> {
        while self.peek()? != b'(' {
            self.at += 1;
        }
        self.at += 1;
        let bar = self.bar()?;
        self.expect(bar)?;
        self.expect(bar)?;
        let port = self.port()?;
        self.expect(bar)?;
        Some(Announcement { address: None, port, commas: false })
    }

    /// RFC 2428 section 2: a character from 33 to 126, which cannot be a digit in practice.
    fn bar(&mut self) -> Option<u8> {
        let bar = self.peek().filter(|byte| (33..=126).contains(byte) && !byte.is_ascii_digit())?;
        self.at += 1;
        Some(bar)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Announced = Option<(Option<(IpAddr, Range<usize>)>, u16)>;

    fn announced(text: &str, from_server: bool) -> Announced {
        parse(text.as_bytes(), from_server, false).unwrap().map(|a| (a.address, a.port))
    }

    #[test]
    fn reads_announcements() {
        let address = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(announced("PORT 10,0,0,1,4,1\r\n", false), Some((Some((address, 5..13)), 1025)));
        assert_eq!(announced("port 10,0,0,1,4,1\r\n", false), Some((Some((address, 5..13)), 1025)));
        assert_eq!(announced("EPRT |1|10.0.0.1|6275|\r\n", false), Some((Some((address, 8..16)), 6275)));
        let passive = "227 Entering Passive Mode (10,0,0,1,255,255).\r\n";
        assert_eq!(announced(passive, true), Some((Some((address, 27..35)), 65535)));
        assert_eq!(announced("227 =10,0,0,1,0,9\r\n", true), Some((Some((address, 5..13)), 9)));
        assert_eq!(announced("229 Entering Extended Passive Mode (|||6446|)\r\n", true), Some((None, 6446)));
        let v6 = parse(b"EPRT |2|fc00::1|5282|\r\n", false, true).unwrap().unwrap();
        assert_eq!((v6.address, v6.port), (Some(("fc00::1".parse().unwrap(), 8..15)), 5282));
    }

    #[test]
    fn what_is_none_is_passed_over_or_malformed() {
        for (text, from_server) in [
            ("USER anonymous\r\n", false),
            ("PORT 10,0,0,1,4,1\r\n", true),
            ("227 Entering Passive Mode (10,0,0,1,4,1)\r\n", false),
            ("226 done\r\n", true),
            ("PORTAL 1,2,3,4,5,6\r\n", false),
            ("", false),
        ] {
            assert_eq!(announced(text, from_server), None, "{text}");
        }
        for text in [
            "PORT 10,0,0,1,4,1",
            "PORT 10,0,0,1,4\r\n",
            "PORT 10,0,0,256,4,1\r\n",
            "PORT 10,0,0,1,0,0\r\n",
            "PORT x10,0,0,1,4,1\r\n",
            "PORT 10,,0,1,4,1\r\n",
            "EPRT |2|10.0.0.1|6275|\r\n",
            "EPRT |1|10.0.0.1|65536|\r\n",
            "EPRT |1|10.0.0.1|6275",
            "EPRT |1|::1|6275|\r\n",
            "EPRT 11110.0.0.1162751\r\n",
        ] {
            assert_eq!(parse(text.as_bytes(), false, false), Err(Malformed), "{text}");
        }
        assert_eq!(parse(b"229 no port (||||)\r\n", true, false), Err(Malformed));
        assert_eq!(parse(b"229 no bracket\r\n", true, true), Err(Malformed));
        assert_eq!(parse(b"PORT 10,0,0,1,4,1\r\n", false, true), Ok(None), "no such command over IPv6");
    }

    #[test]
    fn edits_have_the_form_of_the_text() {
        let announcement = parse(b"PORT 10,0,0,1,4,1\r\n", false, false).unwrap().unwrap();
        let edit = announcement.edit(5..13, [203, 0, 113, 77].into());
        assert_eq!((edit.text.as_str(), edit.added()), ("203,0,113,77", 4));
    }

    proptest! {
        #[test]
        fn never_panics_and_stays_in_the_text(
            start in prop_oneof![Just("PORT "), Just("EPRT |1|"), Just("EPRT |2|"), Just("227 ("), Just("229 (|||")],
            rest in "[0-9,.:|() a]{0,40}",
            from_server: bool,
            v6: bool,
        ) {
            let text = format!("{start}{rest}");
            if let Ok(Some(Announcement { address: Some((address, range)), .. })) = parse(text.as_bytes(), from_server, v6) {
                let read = text[range].replace(',', ".");
                prop_assert_eq!(read.parse::<IpAddr>().ok(), Some(address));
            }
        }
    }
}
