//! A packet's headers in a line.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::flow::extract::extract;
use packet::flow::{VLAN_PRESENT, VlanLimit};
use packet::{Field, Key, put};

/// Ethernet types with a text of their own.
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// The letters of TCP's flags, by their bits from the lowest on, as tcpdump has them.
const TCP_FLAGS: [char; 8] = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];

/// Appends what the headers of a frame say, or as much of them as there is.
pub fn summary(out: &mut String, frame: &[u8], vlan_limit: VlanLimit) {
    if frame.len() < 14 {
        return put!(out, "a frame without a whole Ethernet header");
    }
    let mut key = Key::new();
    extract(frame, &mut key, vlan_limit);
    let common = key.common();
    for tag in common.vlan.iter().map(|tag| tag.tci.get()).filter(|tci| tci & VLAN_PRESENT != 0) {
        put!(out, "vlan {} ", tag & 0xfff);
    }
    let protocol = common.nw_proto;
    match common.dl_type.get() {
        IPV4 => {
            let [from, to] = [Field::NwSrc, Field::NwDst].map(|field| Ipv4Addr::from(key.get(field) as u32));
            conversation(out, &key, [from.to_string(), to.to_string()], protocol);
        }
        IPV6 => {
            let [from, to] = [Field::Ipv6Src, Field::Ipv6Dst].map(|field| Ipv6Addr::from(key.get(field)));
            let bracketed =
                |address: Ipv6Addr| if has_ports(&key) { format!("[{address}]") } else { address.to_string() };
            conversation(out, &key, [bracketed(from), bracketed(to)], protocol);
        }
        ARP => {
            let [from, to] = [Field::ArpSpa, Field::ArpTpa].map(|field| Ipv4Addr::from(key.get(field) as u32));
            match key.get(Field::ArpOp) {
                1 => put!(out, "arp who has {to}, tells {from}"),
                2 => put!(out, "arp {from} is at {}", mac(key.get(Field::ArpSha))),
                other => put!(out, "arp operation {other}"),
            }
        }
        kind => {
            let [from, to] = [Field::DlSrc, Field::DlDst].map(|field| mac(key.get(field)));
            put!(out, "{from} > {to} type {kind:#06x}");
        }
    }
}

/// Whether the packet has ports.
fn has_ports(key: &Key) -> bool {
    let common = key.common();
    matches!(common.nw_proto, 6 | 17 | 132) && common.nw_frag & packet::flow::frag::LATER == 0
}

fn conversation(out: &mut String, key: &Key, [from, to]: [String; 2], protocol: u8) {
    let ports = match protocol {
        6 => [Field::TcpSrc, Field::TcpDst],
        17 => [Field::UdpSrc, Field::UdpDst],
        _ => [Field::SctpSrc, Field::SctpDst],
    };
    if has_ports(key) {
        put!(out, "{from}:{} > {to}:{}", key.get(ports[0]), key.get(ports[1]));
    } else {
        put!(out, "{from} > {to}");
    }
    match protocol {
        6 if has_ports(key) => {
            let flags = key.get(Field::TcpFlags);
            let letters =
                TCP_FLAGS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 != 0).map(|(_, letter)| letter);
            put!(out, " tcp [{}]", letters.collect::<String>());
        }
        1 => put!(out, " icmp type {} code {}", key.get(Field::IcmpType), key.get(Field::IcmpCode)),
        58 => put!(out, " icmp6 type {} code {}", key.get(Field::Icmpv6Type), key.get(Field::Icmpv6Code)),
        6 => out.push_str(" tcp"),
        17 => out.push_str(" udp"),
        132 => out.push_str(" sctp"),
        other => put!(out, " protocol {other}"),
    }
    if key.common().nw_frag != 0 {
        out.push_str(" fragment");
    }
}

fn mac(address: u128) -> String {
    let bytes = address.to_be_bytes();
    bytes[10..].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use packet::wire::build;
    use proptest::prelude::*;

    use super::*;

    fn text(frame: &[u8]) -> String {
        let mut out = String::new();
        summary(&mut out, frame, VlanLimit::default());
        out
    }

    #[test]
    fn headers_in_a_line() {
        let ip = |proto| build::Ipv4 {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            proto,
            ..build::Ipv4::default()
        };
        let ethernet = |kind, payload: &[u8]| build::ethernet([2; 6], [4; 6], &[], kind, payload);
        assert_eq!(text(&ethernet(0x0800, &ip(17).packet(build::udp(5, 53, b"x")))), "10.0.0.1:5 > 10.0.0.2:53 udp");
        assert_eq!(text(&ethernet(0x0800, &ip(89).packet(vec![0; 20]))), "10.0.0.1 > 10.0.0.2 protocol 89");
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1, 4, 4, 4, 4, 4, 4, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
        assert_eq!(text(&ethernet(0x0806, &arp)), "arp who has 10.0.0.2, tells 10.0.0.1");
        arp[7] = 2;
        assert_eq!(text(&ethernet(0x0806, &arp)), "arp 10.0.0.1 is at 04:04:04:04:04:04");
        let other = ethernet(0x88cc, &[0; 50]);
        assert!(text(&other).ends_with("type 0x88cc"), "{}", text(&other));
        assert_eq!(text(&[1; 13]), "a frame without a whole Ethernet header");
        let mut tagged = ethernet(0x0800, &ip(1).packet(vec![8, 0, 0, 0, 0, 0, 0, 0]));
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(text(&tagged), "vlan 7 10.0.0.1 > 10.0.0.2 icmp type 8 code 0");
    }

    proptest! {
        #[test]
        fn no_frame_panics(mut frame in prop::collection::vec(any::<u8>(), 0..120), kind in prop::sample::select(vec![IPV4, ARP, IPV6])) {
            if let Some(bytes) = frame.get_mut(12..14) {
                bytes.copy_from_slice(&kind.to_be_bytes());
            }
            text(&frame);
        }
    }
}
