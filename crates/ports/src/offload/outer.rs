//! Super-frames in a tunnel: what is around the packet that is to be cut.
//!
//! A stack that puts a super-frame into a tunnel of its own leaves the packet inside unfinished, and the checksum's
//! place tells that it is inside; so does this switch. Most devices take no such frame: it is cut here, and each segment
//! gets the tunnel's headers with lengths and checksums of its own. VXLAN, Geneve, GRE and IP in IP are understood, and
//! whatever else over UDP has nothing that differs from packet to packet.

use packet::Packet;

use super::{Headers, finish_ip, fold, nonzero, pseudo_sum, sum};

const UDP: u8 = 17;
const GRE: u8 = 47;
const IPV4: u8 = 4;
const IPV6: u8 = 41;

/// The tunnel's IP header and what is between it and the packet inside.
pub struct Outer {
    pub l3: usize,
    pub l4: usize,
    pub ipv6: bool,
    udp: bool,
    /// Whether it has a checksum, which covers what is inside.
    pub checksum: bool,
}

impl Outer {
    /// The tunnel in `packet`, whose own headers are `headers`, and the headers inside of it, if that is where the
    /// checksum belongs.
    pub fn find(packet: &Packet, headers: &Headers) -> Option<(Outer, Headers)> {
        let Headers { l3, l4, end, ipv6, protocol } = *headers;
        let frame = &packet.data()[..end];
        let start = usize::from(packet.offload().csum_start);
        let mut inner = places(frame, l4, protocol, start)?.into_iter().flatten().filter_map(|place| match place {
            Place::Ethernet(at) => Headers::behind_ethernet(frame, at).ok(),
            Place::Ip(at, ethertype) => Headers::of_ip(frame, at, ethertype).ok(),
        });
        let inner = inner.find(|inner| inner.l4 == start)?;
        let udp = protocol == UDP;
        // Over IPv6, too, a tunnel may have none (RFC 6935).
        let checksum = udp && frame[l4 + 6..l4 + 8] != [0, 0];
        Some((Outer { l3, l4, ipv6, udp, checksum }, inner))
    }

    /// Whether it is of UDP.
    pub fn is_udp(&self) -> bool {
        self.udp
    }

    /// Whether it is of UDP without a checksum.
    pub fn is_plain_udp(&self) -> bool {
        self.udp && !self.checksum
    }

    /// Makes the tunnel's headers of segment `index`, which is finished inside.
    pub fn finish(&self, frame: &mut [u8], index: usize) {
        let Outer { l3, l4, ipv6, .. } = *self;
        finish_ip(frame, l3, l4, ipv6, index);
        if !self.udp {
            return;
        }
        let length = (frame.len() - l4) as u16;
        frame[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
        if self.checksum {
            frame[l4 + 6..l4 + 8].fill(0);
            let sum = nonzero(fold(pseudo_sum(frame, l3, l4, ipv6, UDP) + sum(&frame[l4..])));
            frame[l4 + 6..l4 + 8].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// Where a tunnel may have its packet.
#[derive(Clone, Copy)]
enum Place {
    Ethernet(usize),
    /// With its EtherType.
    Ip(usize, u16),
}

/// Where a tunnel with this header at `l4` may have its packet; the checksum's place says which it is, since the port
/// numbers of UDP are no proof. It is at `start`.
fn places(frame: &[u8], l4: usize, protocol: u8, start: usize) -> Option<[Option<Place>; 3]> {
    let be16 = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    match protocol {
        UDP => {
            let vxlan = l4 + 16;
            let geneve = be16(l4 + 10)? == 0x6558;
            let options = usize::from(*frame.get(l4 + 8)? & 0x3f) * 4;
            let geneve = geneve.then_some(Place::Ethernet(vxlan + options));
            Some([Some(Place::Ethernet(vxlan)), geneve, bare_ip(frame, l4 + 8, start)])
        }
        GRE => {
            const KEY: u16 = 0x2000;
            let (flags, ethertype) = (be16(l4)?, be16(l4 + 2)?);
            // Checksums and sequence numbers are different for each segment.
            if flags & !KEY != 0 {
                return None;
            }
            let at = l4 + if flags & KEY == 0 { 4 } else { 8 };
            Some([Some(if ethertype == 0x6558 { Place::Ethernet(at) } else { Place::Ip(at, ethertype) }), None, None])
        }
        IPV4 => Some([Some(Place::Ip(l4, 0x0800)), None, None]),
        IPV6 => Some([Some(Place::Ip(l4, 0x86dd)), None, None]),
        _ => None,
    }
}

/// A header of IP without options right before `end`, and not before `from`.
fn bare_ip(frame: &[u8], from: usize, end: usize) -> Option<Place> {
    let begins = |len: usize| end.checked_sub(len).filter(|&at| at >= from);
    let first = |at: &usize| frame.get(*at).copied();
    let v4 = begins(20).filter(|at| first(at) == Some(0x45)).map(|at| Place::Ip(at, 0x0800));
    v4.or_else(|| begins(40).filter(|at| first(at).is_some_and(|byte| byte >> 4 == 6)).map(|at| Place::Ip(at, 0x86dd)))
}
