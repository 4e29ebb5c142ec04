//! The packet that an ICMP error quotes (RFC 792, RFC 4443 section 3): of its transport header, 8 bytes are sure to be there, which hold
//! the ports and no more.

use std::net::IpAddr;

use packet::wire::{icmp, ip_proto, ipv4, ipv6};
use zerocopy::FromBytes;

use crate::tuple::Tuple;

/// What an ICMP error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quoted {
    /// The direction in which the quoted packet went.
    pub tuple: Tuple,
    /// Where its IP header is in the ICMP message.
    pub ip: usize,
    /// Where its transport header is in the ICMP message.
    pub transport: usize,
}

/// Bytes of a transport header that are needed.
const TRANSPORT: usize = 8;

/// The most extension headers that are passed over in search of the transport header.
const MAX_EXTENSION_HEADERS: usize = 16;

/// Whether an ICMP or ICMPv6 type is an error about another packet.
pub fn is_error(proto: u8, kind: u8) -> bool {
    match proto {
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
        ip_proto::ICMP => matches!(kind, 3 | 4 | 5 | 11 | 12),
        // Destination unreachable, packet too big, time exceeded, parameter problem.
        ip_proto::ICMPV6 => matches!(kind, 1..=4),
        _ => false,
    }
}

impl Quoted {
    /// What an ICMP message quotes that went to `receiver`, which must have sent the quoted packet; `None` where it does
    /// not quote one whole.
    pub fn of(message: &[u8], receiver: IpAddr, zone: u16) -> Option<Quoted> {
        let ip = size_of::<icmp::Header>();
        let bytes = message.get(ip..)?;
        let (src, dst, proto, header) = match receiver {
            IpAddr::V4(_) => quoted_v4(bytes)?,
            IpAddr::V6(_) => quoted_v6(bytes)?,
        };
        if src != receiver {
            return None;
        }
        let ports = ports(src.is_ipv4(), proto, bytes.get(header..)?)?;
        Some(Quoted { tuple: Tuple::new(src, dst, proto, ports, zone)?, ip, transport: ip + header })
    }
}

/// Addresses, protocol, and where the transport header is. Of a later fragment that is unknown.
fn quoted_v4(bytes: &[u8]) -> Option<(IpAddr, IpAddr, u8, usize)> {
    let (header, _) = ipv4::Header::ref_from_prefix(bytes).ok()?;
    let len = usize::from(header.version_ihl & 0xf) * 4;
    let whole = header.version_ihl >> 4 == 4 && len >= size_of_val(header) && len <= bytes.len();
    let first = header.flags_offset.get() & 0x1fff == 0;
    (whole && first).then(|| (header.src.into(), header.dst.into(), header.proto, len))
}

fn quoted_v6(bytes: &[u8]) -> Option<(IpAddr, IpAddr, u8, usize)> {
    let (header, _) = ipv6::Header::ref_from_prefix(bytes).ok()?;
    if header.version_class_label.get() >> 28 != 6 {
        return None;
    }
    let (mut at, mut next) = (size_of_val(header), header.next);
    for _ in 0..MAX_EXTENSION_HEADERS {
        let length = |unit, first| Some((usize::from(*bytes.get(at + 1)?) + first) * unit);
        let len = match next {
            ip_proto::HOP_BY_HOP | ip_proto::ROUTING | ip_proto::DEST_OPTIONS => length(8, 1)?,
            ip_proto::AUTH => length(4, 2)?,
            ip_proto::FRAGMENT => return None,
            _ => return (at <= bytes.len()).then(|| (header.src.into(), header.dst.into(), next, at)),
        };
        next = *bytes.get(at)?;
        at += len;
    }
    None
}

/// Ports, or identifier and type of a query, from the first bytes of a transport header.
fn ports(v4: bool, proto: u8, bytes: &[u8]) -> Option<(u16, u16)> {
    let word = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    match (proto, v4) {
        (ip_proto::TCP | ip_proto::UDP | ip_proto::SCTP, _) if bytes.len() >= TRANSPORT => Some((word(0)?, word(2)?)),
        (ip_proto::ICMP, true) | (ip_proto::ICMPV6, false) if bytes.len() >= TRANSPORT && bytes[1] == 0 => {
            Some((word(4)?, bytes[0].into()))
        }
        (ip_proto::TCP | ip_proto::UDP | ip_proto::SCTP, _) | (ip_proto::ICMP, true) | (ip_proto::ICMPV6, false) => {
            None
        }
        _ => Some((0, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuple::tests::v4;

    /// An ICMP error about a packet from 10.0.0.1 port 1000 to 10.0.0.2 port 53, of which 8 bytes are quoted.
    fn error() -> Vec<u8> {
        let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0];
        message.extend([0x45, 0, 5, 0xdc, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        message.extend([0x03, 0xe8, 0, 53, 0, 100, 0xab, 0xcd]);
        message
    }

    fn quote(message: &[u8]) -> Option<Quoted> {
        Quoted::of(message, [10, 0, 0, 1].into(), 0)
    }

    #[test]
    fn reads_what_is_sure_to_be_there() {
        let quoted = quote(&error()).unwrap();
        assert_eq!(quoted.tuple, v4([10, 0, 0, 1], 1000, [10, 0, 0, 2], 53, 17));
        assert_eq!((quoted.ip, quoted.transport), (8, 28));
    }

    #[test]
    fn rejects_what_the_receiver_cannot_have_sent() {
        for (at, value) in [(8, 0x44), (8, 0x4f), (8, 0x65), (15, 1), (20, 11), (28 + 2, 0), (17, 1)] {
            let mut message = error();
            message[at] = value;
            if at == 30 {
                message[31] = 0;
            }
            assert_eq!(quote(&message), None, "byte {at}");
        }
        for len in 0..error().len() {
            assert_eq!(quote(&error()[..len]), None, "{len} bytes");
        }
        assert!(Quoted::of(&error(), [10, 0, 0, 2].into(), 0).is_none());
    }

    #[test]
    fn passes_over_extension_headers_of_ipv6() {
        let mut message = vec![1, 4, 0, 0, 0, 0, 0, 0];
        message.extend([0x60, 0, 0, 0, 0, 24, 0, 64]);
        message.extend([0xfc; 16]);
        message.extend([0xfd; 16]);
        message.extend([60, 0, 0, 0, 0, 0, 0, 0]);
        message.extend([6, 0, 0, 0, 0, 0, 0, 0]);
        message.extend([0x9c, 0x40, 0, 80, 0, 0, 0, 1]);
        let quoted = Quoted::of(&message, [0xfc; 16].into(), 3).unwrap();
        assert_eq!((quoted.transport, quoted.tuple.proto()), (64, 6));
        assert_eq!(
            quoted.tuple.to_string(),
            "src=fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc:fcfc,dst=fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd,sport=40000,dport=80"
        );
        message[56] = 44;
        assert!(Quoted::of(&message, [0xfc; 16].into(), 3).is_none(), "a fragment");
        message[56] = 60;
        message[57] = 255;
        assert!(Quoted::of(&message, [0xfc; 16].into(), 3).is_none(), "a header beyond the end");
    }
}
