//! IPv6 and its extension headers (RFC 8200).

use super::MAX_EXTENSION_HEADERS;
use super::load::{be16, chunk};
use crate::flow::{exthdr, frag};

/// A packet with a valid fixed header.
pub struct Ipv6<'a> {
    pub header: &'a [u8; 40],
    /// First byte behind the packet: what follows in the frame is padding.
    pub end: usize,
    /// What the chain of extension headers leads to; `None` where it is broken.
    pub upper: Option<Upper>,
}

/// The end of the chain of extension headers.
pub struct Upper {
    /// Protocol of what is at `at`; 44 for a later fragment.
    pub proto: u8,
    pub nw_frag: u8,
    /// Bits of [`exthdr`].
    pub exthdr: u16,
    pub at: usize,
}

/// Reads the header at `at`; `None` unless the frame holds all that its length says.
#[inline(always)]
pub fn parse(frame: &[u8], at: usize) -> Option<Ipv6<'_>> {
    let header = chunk::<40>(frame, at)?;
    let end = at + 40 + usize::from(be16(header, 4));
    if end > frame.len() || frame.len() - end > usize::from(u16::MAX) {
        return None;
    }
    let proto = header[6];
    let upper = if matches!(proto, HOP_BY_HOP | ROUTING | FRAGMENT | ESP | AUTH | NO_NEXT | DEST) {
        walk(&frame[..end], at + 40, proto)
    } else {
        Some(Upper { proto, nw_frag: 0, exthdr: 0, at: at + 40 })
    };
    Some(Ipv6 { header, end, upper })
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ESP: u8 = 50;
const AUTH: u8 = 51;
const NO_NEXT: u8 = 59;
const DEST: u8 = 60;

/// Follows the chain from the header `proto` at `at`.
///
/// A fragment header with offset and flags zero ("atomic fragment", RFC 6946) is skipped. Behind the
/// header of a later fragment nothing can be read.
#[inline(never)]
fn walk(packet: &[u8], mut at: usize, mut proto: u8) -> Option<Upper> {
    let (mut seen, mut nw_frag) = (Seen::default(), 0);
    for count in 0.. {
        let header = match proto {
            HOP_BY_HOP | ROUTING | DEST | AUTH | FRAGMENT if count == MAX_EXTENSION_HEADERS => return None,
            HOP_BY_HOP | ROUTING | DEST | AUTH | FRAGMENT => chunk::<8>(packet, at)?,
            _ => {
                seen.note(proto);
                return Some(Upper { proto, nw_frag, exthdr: seen.bits, at });
            }
        };
        seen.note(proto);
        at += match proto {
            AUTH => (usize::from(header[1]) + 2) * 4,
            FRAGMENT => 8,
            _ => (usize::from(header[1]) + 1) * 8,
        };
        if at > packet.len() {
            return None;
        }
        if proto == FRAGMENT && be16(header, 2) != 0 {
            nw_frag = frag::ANY;
            if be16(header, 2) & 0xfff8 != 0 {
                return Some(Upper { proto, nw_frag: frag::ANY | frag::LATER, exthdr: seen.bits, at });
            }
        }
        proto = header[0];
    }
    None
}

/// The extension headers seen so far, and the pseudo-field of OpenFlow 1.3 section 7.2.3.8 made of them.
#[derive(Default)]
struct Seen {
    bits: u16,
    /// The furthest position in the order of RFC 8200 section 4.1 that has been reached.
    position: u8,
    dests: u8,
}

impl Seen {
    fn note(&mut self, proto: u8) {
        // Destination options may come twice: before the routing header and last.
        let (bit, position) = match proto {
            HOP_BY_HOP => (exthdr::HOP, 1),
            DEST if self.dests == 0 && self.position <= 1 => (exthdr::DEST, 2),
            ROUTING => (exthdr::ROUTER, 3),
            FRAGMENT => (exthdr::FRAG, 4),
            AUTH => (exthdr::AUTH, 5),
            ESP => (exthdr::ESP, 6),
            DEST => (exthdr::DEST, 7),
            NO_NEXT => (exthdr::NO_NEXT, 8),
            _ => return,
        };
        let repeated = if proto == DEST { self.dests >= 2 } else { self.bits & bit != 0 };
        if repeated {
            self.bits |= exthdr::UNREP;
        }
        if position < self.position {
            self.bits |= exthdr::UNSEQ;
        }
        self.dests = self.dests.saturating_add(u8::from(proto == DEST));
        self.position = self.position.max(position);
        self.bits |= bit;
    }
}
