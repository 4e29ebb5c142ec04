//! How the MAC address of a neighbour is asked for, and what tells it: ARP (RFC 826) and neighbour discovery (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use packet::wire::{arp, build, ethernet, ethertype, icmpv6, ip_proto, ipv6, nd};

use crate::neighbours::Mac;

const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const BROADCAST: Mac = [0xff; 6];
/// Hop limit of neighbour discovery: no router has passed it on.
const NEAR: u8 = 255;

/// The frame by which the one with this MAC and IP address asks for a neighbour: for one of IPv4 all are asked, for one of IPv6
/// those with the same last 24 bits. `None` where the addresses are of two families.
pub fn question(mac: Mac, own: IpAddr, neighbour: IpAddr) -> Option<Vec<u8>> {
    match (own, neighbour) {
        (IpAddr::V4(own), IpAddr::V4(neighbour)) => {
            let message = build::arp(REQUEST, mac, own, [0; 6], neighbour);
            Some(build::ethernet(BROADCAST, mac, &[], ethertype::ARP, &message))
        }
        (IpAddr::V6(own), IpAddr::V6(neighbour)) => {
            let message = build::neighbor(icmpv6::NEIGHBOR_SOLICIT, 0, neighbour, Some(mac), None);
            let [.., a, b, c] = neighbour.octets();
            let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
            let packet =
                build::Ipv6 { src: own, dst: group, proto: ip_proto::ICMPV6, hop_limit: NEAR, ..Default::default() };
            let frame = packet.packet(message);
            Some(build::ethernet([0x33, 0x33, 0xff, a, b, c], mac, &[], ethertype::IPV6, &frame))
        }
        _ => None,
    }
}

/// What a frame without VLAN tag tells of a neighbour: an ARP reply, an ARP message by which somebody announces an own address, or a
/// neighbour advertisement with an address. Open vSwitch listens to the same. What is malformed tells nothing.
pub fn told_by(frame: &[u8]) -> Option<(IpAddr, Mac)> {
    let frame = ethernet::Frame::new_checked(frame).ok()?;
    let (ip, mac) = match frame.ethertype() {
        ethertype::ARP => by_arp(frame.payload())?,
        ethertype::IPV6 => by_advertisement(frame.payload())?,
        _ => return None,
    };
    // Nobody has a group's address, or none.
    (mac[0] & 1 == 0 && mac != [0; 6] && !ip.is_multicast() && !ip.is_unspecified()).then_some((ip, mac))
}

fn by_arp(bytes: &[u8]) -> Option<(IpAddr, Mac)> {
    let message = arp::Packet::new_checked(bytes).ok()?;
    let announces = message.opcode() == REQUEST && message.spa() == message.tpa();
    (announces || message.opcode() == REPLY).then(|| (message.spa().into(), message.sha()))
}

fn by_advertisement(bytes: &[u8]) -> Option<(IpAddr, Mac)> {
    let packet = ipv6::Packet::new_checked(bytes).ok()?;
    if packet.next() != ip_proto::ICMPV6 || packet.hop_limit() != NEAR {
        return None;
    }
    let message = icmpv6::Packet::new_checked(packet.payload()).ok()?;
    if message.kind() != icmpv6::NEIGHBOR_ADVERT || !message.verify_checksum(packet.src(), packet.dst()) {
        return None;
    }
    let message = nd::Message::new_checked(&message).ok()?;
    let mut options = message.options().map_while(Result::ok);
    let (_, option) = options.find(|(kind, _)| *kind == nd::TARGET_LINK_LAYER)?;
    Some((message.target().into(), *option.get(2..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const THEIRS: Mac = [2, 0, 0, 0, 0, 9];

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn advertisement(hop_limit: u8, mac: Option<Mac>, kind: u8) -> Vec<u8> {
        let message = build::neighbor(kind, 0x6000_0000, "2001:db8::9".parse().unwrap(), None, mac);
        let (src, dst) = ("2001:db8::9".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let packet = build::Ipv6 { src, dst, proto: 58, hop_limit, ..Default::default() }.packet(message);
        build::ethernet(MAC, THEIRS, &[], 0x86dd, &packet)
    }

    fn reply(opcode: u16, mac: Mac, spa: [u8; 4], tpa: [u8; 4]) -> Vec<u8> {
        build::ethernet(MAC, THEIRS, &[], 0x0806, &build::arp(opcode, mac, spa.into(), MAC, tpa.into()))
    }

    #[test]
    fn questions_are_those_of_the_rfcs() {
        let frame = question(MAC, ip("192.0.2.1"), ip("192.0.2.9")).unwrap();
        let expected =
            "ffffffffffff020000000001080600010800060400010200000000 01c0000201000000000000c0000209".replace(' ', "");
        let hex = |frame: &[u8]| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&frame), expected);
        let frame = question(MAC, ip("2001:db8::1"), ip("2001:db8::abcd:9")).unwrap();
        assert_eq!((&frame[..6], frame[21]), (&[0x33, 0x33, 0xff, 0xcd, 0, 9][..], 255));
        assert_eq!(frame[38..54], [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xcd, 0, 9]);
        assert_eq!((frame[54], &frame[78..86]), (135, &[1, 1, 2, 0, 0, 0, 0, 1][..]));
        assert_eq!(question(MAC, ip("192.0.2.1"), ip("2001:db8::1")), None);
    }

    #[test]
    fn answers_tell_and_others_do_not() {
        let (a, b) = ([192, 0, 2, 9], [192, 0, 2, 1]);
        assert_eq!(told_by(&reply(2, THEIRS, a, b)), Some((ip("192.0.2.9"), THEIRS)));
        assert_eq!(told_by(&reply(1, THEIRS, a, a)), Some((ip("192.0.2.9"), THEIRS)), "an announcement");
        assert_eq!(told_by(&advertisement(255, Some(THEIRS), 136)), Some((ip("2001:db8::9"), THEIRS)));
        let mut wrong = advertisement(255, Some(THEIRS), 136);
        *wrong.last_mut().unwrap() ^= 1;
        for frame in [
            reply(1, THEIRS, a, b),
            reply(3, THEIRS, a, b),
            reply(2, [0; 6], a, b),
            reply(2, BROADCAST, a, b),
            reply(2, THEIRS, [0; 4], b),
            reply(2, THEIRS, [224, 0, 0, 1], b),
            advertisement(254, Some(THEIRS), 136),
            advertisement(255, None, 136),
            advertisement(255, Some(THEIRS), 135),
            wrong,
            question(MAC, ip("192.0.2.1"), ip("192.0.2.9")).unwrap(),
            question(MAC, ip("2001:db8::1"), ip("2001:db8::9")).unwrap(),
        ] {
            assert_eq!(told_by(&frame), None, "{frame:02x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(cut in 0usize..90, at in 0usize..86, value: u8, which in 0usize..2) {
            let frames = [reply(2, THEIRS, [192, 0, 2, 9], [192, 0, 2, 1]), advertisement(255, Some(THEIRS), 136)];
            let mut frame = frames[which].clone();
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
            frame.truncate(cut);
            told_by(&frame);
        }
    }
}
