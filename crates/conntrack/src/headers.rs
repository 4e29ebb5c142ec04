//! What tracking reads of a packet: its tuple, the TCP segment, and what an ICMP error quotes.
//!
//! The flow key has addresses and ports already; of the frame itself those headers are read that the key does not
//! have. A packet that cannot be tracked is `inv`, for one of the reasons of [`Malformed`].

use std::net::IpAddr;

use packet::flow::{Key, Layers};
use packet::wire::{checksum, ethertype, icmp, ip_proto, ipv4, ipv6, sctp, tcp};
use zerocopy::FromBytes;

use crate::protocol::tcp::{Segment, window_scale};
use crate::quoted::{Quoted, is_error};
use crate::tuple::Tuple;

/// Why a packet cannot be tracked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
pub enum Malformed {
    /// Neither IPv4 nor IPv6, or the header is not whole.
    #[error("no whole IP header")]
    NoIp,
    /// A fragment, which has not been reassembled.
    #[error("fragment")]
    Fragment,
    /// The header of TCP, UDP, SCTP, ICMP or ICMPv6 is not whole, or its lengths are wrong.
    #[error("transport header not whole")]
    NoTransport,
    /// A port of zero, or an ICMP type or code that is tracked neither as a query nor as an error.
    #[error("ports or ICMP type that belong to no connection")]
    NoTuple,
    /// A wrong checksum of IPv4.
    #[error("wrong IP checksum")]
    IpChecksum,
    /// A wrong checksum of the transport protocol.
    #[error("wrong transport checksum")]
    Checksum,
    /// An ICMP error that quotes no packet that its receiver could have sent.
    #[error("ICMP error that quotes no whole packet of its receiver")]
    Quote,
}

/// Which checksums have to be computed: those that the port has not verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verify {
    /// That of the IPv4 header.
    pub ip: bool,
    /// That of the transport protocol.
    pub transport: bool,
}

/// What is above IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Upper {
    /// TCP.
    Tcp(Segment),
    /// Another protocol.
    Other,
    /// An ICMP error about another packet. The tuple is that in which the error goes: the reverse of the quoted one.
    Error(Quoted),
}

/// What tracking reads of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// The direction that the packet belongs to.
    pub tuple: Tuple,
    /// What is above IP.
    pub upper: Upper,
}

impl Headers {
    /// The headers of a frame whose key and layers were extracted.
    pub fn of(frame: &[u8], key: &Key, layers: Layers, zone: u16, verify: Verify) -> Result<Headers, Malformed> {
        let common = key.common();
        let at = |offset: u16| (offset != Layers::NONE).then_some(usize::from(offset));
        let ip_at = at(layers.l3).ok_or(Malformed::NoIp)?;
        let ip = frame.get(ip_at..).ok_or(Malformed::NoIp)?;
        if common.nw_frag != 0 {
            return Err(Malformed::Fragment);
        }
        // Behind the IP packet there may be padding of the frame.
        let (src, dst, end) = match common.dl_type.get() {
            ethertype::IPV4 => {
                let packet = ipv4::Packet::new_checked(ip).map_err(|_| Malformed::NoIp)?;
                if verify.ip && !packet.verify_checksum() {
                    return Err(Malformed::IpChecksum);
                }
                (IpAddr::V4(packet.src()), IpAddr::V4(packet.dst()), packet.total_len())
            }
            ethertype::IPV6 => {
                let packet = ipv6::Packet::new_checked(ip).map_err(|_| Malformed::NoIp)?;
                let len = size_of::<ipv6::Header>() + packet.payload().len();
                (packet.src().into(), packet.dst().into(), len)
            }
            _ => return Err(Malformed::NoIp),
        };
        let transport = at(layers.l4).and_then(|from| frame.get(from..ip_at + end)).ok_or(Malformed::NoTransport)?;
        Headers::above_ip(src, dst, common.nw_proto, transport, zone, verify)
    }

    /// The tuple of a frame of TCP, UDP or SCTP whose key and layers were extracted, and nothing else: nothing is verified. To
    /// have its connection fetched.
    pub fn tuple_of(frame: &[u8], key: &Key, layers: Layers, zone: u16) -> Option<Tuple> {
        let common = key.common();
        let proto = common.nw_proto;
        if !matches!(proto, ip_proto::TCP | ip_proto::UDP | ip_proto::SCTP) || layers.l4 == Layers::NONE {
            return None;
        }
        let ip = frame.get(usize::from(layers.l3)..)?;
        let (src, dst): (IpAddr, IpAddr) = match common.dl_type.get() {
            ethertype::IPV4 => {
                let (header, _) = ipv4::Header::ref_from_prefix(ip).ok()?;
                (header.src.into(), header.dst.into())
            }
            ethertype::IPV6 => {
                let (header, _) = ipv6::Header::ref_from_prefix(ip).ok()?;
                (header.src.into(), header.dst.into())
            }
            _ => return None,
        };
        let [a, b, c, d] = *frame.get(usize::from(layers.l4)..)?.first_chunk()?;
        Tuple::new(src, dst, proto, (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])), zone)
    }

    /// The headers of an IP packet whose transport header and data are `transport`.
    pub fn above_ip(
        src: IpAddr,
        dst: IpAddr,
        proto: u8,
        transport: &[u8],
        zone: u16,
        verify: Verify,
    ) -> Result<Headers, Malformed> {
        let other = |ports| {
            let tuple = Tuple::new(src, dst, proto, ports, zone).ok_or(Malformed::NoTuple)?;
            Ok(Headers { tuple, upper: Upper::Other })
        };
        let check = |right: bool| if right || !verify.transport { Ok(()) } else { Err(Malformed::Checksum) };
        let sum = || pseudo(src, dst, proto, transport.len()).add_bytes(transport).finish() == 0;
        match (proto, src.is_ipv4()) {
            (ip_proto::TCP, _) => {
                let (ports, segment) = segment(transport)?;
                check(!verify.transport || sum())?;
                let tuple = Tuple::new(src, dst, proto, ports, zone).ok_or(Malformed::NoTuple)?;
                Ok(Headers { tuple, upper: Upper::Tcp(segment) })
            }
            (ip_proto::UDP, v4) => {
                let (header, _) =
                    packet::wire::udp::Header::ref_from_prefix(transport).map_err(|_| Malformed::NoTransport)?;
                let len = usize::from(header.len.get());
                if len < size_of_val(header) || len > transport.len() {
                    return Err(Malformed::NoTransport);
                }
                let none = header.checksum.get() == 0 && v4;
                check(none || !verify.transport || sum())?;
                other((header.src.get(), header.dst.get()))
            }
            (ip_proto::SCTP, _) => {
                let packet = sctp::Packet::new_checked(transport).map_err(|_| Malformed::NoTransport)?;
                if !has_whole_chunks(packet.payload()) {
                    return Err(Malformed::NoTransport);
                }
                check(!verify.transport || packet.verify_checksum())?;
                other((packet.src(), packet.dst()))
            }
            (ip_proto::ICMP, true) | (ip_proto::ICMPV6, false) => {
                let (header, _) = icmp::Header::ref_from_prefix(transport).map_err(|_| Malformed::NoTransport)?;
                let right = || if src.is_ipv4() { checksum::checksum(transport) == 0 } else { sum() };
                check(!verify.transport || right())?;
                if is_error(proto, header.kind) {
                    let quoted = Quoted::of(transport, dst, zone).ok_or(Malformed::Quote)?;
                    return Ok(Headers { tuple: quoted.tuple.reverse(), upper: Upper::Error(quoted) });
                }
                if header.code != 0 {
                    return Err(Malformed::NoTuple);
                }
                let [a, b, ..] = header.rest;
                other((u16::from_be_bytes([a, b]), header.kind.into()))
            }
            _ => other((0, 0)),
        }
    }

    /// The segment, of TCP.
    pub fn segment(&self) -> Option<&Segment> {
        match &self.upper {
            Upper::Tcp(segment) => Some(segment),
            _ => None,
        }
    }
}

fn pseudo(src: IpAddr, dst: IpAddr, proto: u8, len: usize) -> checksum::Sum {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => checksum::pseudo_v4(src, dst, proto, len as u16),
        (IpAddr::V6(src), IpAddr::V6(dst)) => checksum::pseudo_v6(src, dst, proto, len as u32),
        _ => checksum::Sum::ZERO,
    }
}

/// Ports and segment, of a TCP header with its options and data.
fn segment(bytes: &[u8]) -> Result<((u16, u16), Segment), Malformed> {
    let whole = tcp::Segment::new_checked(bytes).map_err(|_| Malformed::NoTransport)?;
    let (header, options) = tcp::Header::ref_from_prefix(bytes).map_err(|_| Malformed::NoTransport)?;
    let options = &options[..whole.header_len() - size_of::<tcp::Header>()];
    let segment = Segment {
        seq: header.seq.get(),
        ack: header.ack.get(),
        // Without the reserved bits and those of ECN, which tell nothing about the connection.
        flags: whole.flags() & 0x3f,
        window: header.window.get(),
        len: whole.payload().len() as u32,
        scale: if whole.flags() & tcp::flags::SYN != 0 { window_scale(options) } else { None },
    };
    Ok(((whole.src(), whole.dst()), segment))
}

/// Whether chunks fill SCTP's packet (RFC 9260 section 3.2): each is padded to four bytes.
fn has_whole_chunks(mut chunks: &[u8]) -> bool {
    while let [_, _, a, b, ..] = chunks {
        let len = usize::from(u16::from_be_bytes([*a, *b]));
        if len < 4 {
            return false;
        }
        match chunks.get(len.next_multiple_of(4)..) {
            Some(rest) => chunks = rest,
            None => return false,
        }
    }
    chunks.is_empty()
}

#[cfg(test)]
mod tests {
    use packet::flow::{VlanLimit, extract};
    use packet::wire::build;

    use super::*;

    const ALL: Verify = Verify { ip: true, transport: true };

    fn read(frame: &[u8], verify: Verify) -> Result<Headers, Malformed> {
        let mut key = Key::new();
        let layers = extract(frame, &mut key, VlanLimit::Two);
        Headers::of(frame, &key, layers, 5, verify)
    }

    #[test]
    fn reads_a_frame_and_verifies_it() {
        let ip = build::Ipv4 { proto: 17, ..build::Ipv4::default() }.packet(build::udp(1000, 53, b"question"));
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &ip);
        let headers = read(&frame, ALL).unwrap();
        assert_eq!((headers.upper, headers.tuple.proto(), headers.tuple.zone()), (Upper::Other, 17, 5));
        let mut wrong = frame.clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(read(&wrong, ALL), Err(Malformed::Checksum));
        assert_eq!(read(&wrong, Verify::default()), Ok(headers));
    }

    #[test]
    fn the_tuple_of_a_frame_is_that_of_its_headers() {
        let udp = build::udp(1000, 53, b"question");
        let tcp = build::tcp(1000, 80, 0x10, b"GET /");
        let v4 = |proto, above: &[u8]| {
            let ip = build::Ipv4 { proto, ..build::Ipv4::default() }.packet(above.to_vec());
            build::ethernet([2; 6], [4; 6], &[], 0x0800, &ip)
        };
        let v6 = |proto, above: &[u8]| {
            let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
            let ip = build::Ipv6 { src, dst, proto, ..Default::default() }.packet(above.to_vec());
            build::ethernet([2; 6], [4; 6], &[], 0x86dd, &ip)
        };
        let tuple_of = |frame: &[u8]| {
            let mut key = Key::new();
            let layers = extract(frame, &mut key, VlanLimit::Two);
            Headers::tuple_of(frame, &key, layers, 5)
        };
        for frame in [v4(17, &udp), v4(6, &tcp), v6(17, &udp), v6(6, &tcp)] {
            assert_eq!(tuple_of(&frame), Some(read(&frame, ALL).unwrap().tuple));
            for len in 0..frame.len() {
                tuple_of(&frame[..len]);
            }
        }
        assert_eq!(tuple_of(&v4(47, &udp)), None);
    }

    #[test]
    fn sctp_chunks_have_to_fill_the_packet() {
        assert!(has_whole_chunks(&[0, 0, 0, 5, 1, 0, 0, 0, 1, 0, 0, 4]));
        for wrong in [&[0, 0, 0, 3][..], &[0, 0, 0, 5, 1], &[0, 0, 0, 4, 0]] {
            assert!(!has_whole_chunks(wrong));
        }
        assert!(has_whole_chunks(&[]));
    }
}
