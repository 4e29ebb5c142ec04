//! Packets of a few connections, from one end or the other, as a port or a tunnel receives them.

use std::net::Ipv6Addr;

use datapath::PortNo;
use packet::Offload;
use packet::wire::build;
use proptest::prelude::*;

/// A TOS whose drop precedence can be raised.
pub const HIGH_TOS: u8 = 0x28;

/// A packet of one of a few connections.
#[derive(Clone, Default, Debug)]
pub struct Event {
    pub client: u8,
    pub reply: bool,
    pub tcp: Option<(u16, u8)>,
    pub v6: bool,
    pub data: u8,
    pub wrong: bool,
    pub tos: u8,
    /// The other end of the tunnel that it comes from.
    pub end: u8,
    /// How many VLAN tags it has.
    pub tags: u8,
    /// What of its checksum is left to do, or was done.
    pub offload: u8,
    /// Tenths of a second until then.
    pub after: u16,
    pub repeated: u8,
}

pub fn event() -> impl Strategy<Value = Event> {
    let tcp = prop::option::of((
        prop_oneof![
            6 => Just(0x10u16), 2 => Just(0x18), 2 => Just(0x02), 2 => Just(0x12), 1 => Just(0x11), 1 => Just(0x04),
        ],
        0..3u8,
    ));
    let after = prop_oneof![6 => Just(0u16), 2 => 0..20u16, 1 => 200..400u16];
    let common = (0..3u8, any::<bool>(), tcp, prop::bool::weighted(0.3), 0..9u8, prop::bool::weighted(0.1));
    let offload = prop_oneof![3 => Just(0), 1 => Just(Offload::DATA_VALID), 2 => Just(Offload::NEEDS_CSUM)];
    let tags = prop_oneof![6 => Just(0u8), 2 => Just(1), 1 => Just(2)];
    (common, 0..2u8, (0..2u8, tags), offload, after, 1..4u8).prop_map(
        |((client, reply, tcp, v6, data, wrong), tos, (end, tags), offload, after, repeated)| Event {
            client,
            reply,
            tcp,
            v6,
            data,
            wrong,
            tos: HIGH_TOS * tos,
            end,
            tags,
            offload,
            after,
            repeated,
        },
    )
}

/// The addresses of the other ends of tunnels, and what their option of Geneve says.
pub const ENDS: [u8; 2] = [7, 8];

/// The port that what leaves a tunnel comes in at: VXLAN for clients, Geneve with an option for servers.
pub fn tunnel_port(reply: bool) -> PortNo {
    PortNo(if reply { 6081 } else { 4789 })
}

/// A frame in a tunnel, as the underlay receives it.
pub fn tunnelled(frame: &[u8], reply: bool, end: u8) -> Vec<u8> {
    let end = ENDS[usize::from(end)];
    let header = match reply {
        false => vec![8, 0, 0, 0, 0, 0, 7, 0],
        true => vec![2, 0, 0x65, 0x58, 0, 0, 7, 0, 0xff, 0xff, 1, 1, 0, 0, 0, end],
    };
    let datagram = build::udp(50_000, tunnel_port(reply).0 as u16, &[&header[..], frame].concat());
    let (src, dst) = ([172, 31, 0, end].into(), [172, 31, 0, 1].into());
    let packet = build::Ipv4 { src, dst, proto: 17, ..Default::default() }.packet(datagram);
    build::ethernet([2; 6], [4; 6], &[], 0x0800, &packet)
}

/// Sequence numbers of both ends of each connection of TCP.
#[derive(Default)]
pub struct Ends([[u32; 2]; 6]);

impl Event {
    /// The frame. `public`: clients are translated, and answers go to the translated address.
    pub fn frame(&self, ends: &mut Ends, public: bool) -> Vec<u8> {
        let client = u16::from(self.client);
        let (sport, dport) = (1000 + client, 80);
        let (from, to) = if self.reply { (dport, sport) } else { (sport, dport) };
        let data = vec![7; usize::from(self.data)];
        let above = match self.tcp {
            Some((flags, ahead)) => {
                let sent = &mut ends.0[usize::from(self.client) + 3 * usize::from(self.v6)];
                let [own, other] = if self.reply { [1, 0] } else { [0, 1] };
                let seq = sent[own].wrapping_add(u32::from(ahead) * 40_000);
                let (ack, opens) = (sent[other], u32::from(flags & 3 != 0));
                if ahead == 0 {
                    sent[own] = seq.wrapping_add(data.len() as u32 + opens);
                }
                let mut segment = build::tcp(from, to, flags, &data);
                segment[4..8].copy_from_slice(&seq.to_be_bytes());
                segment[8..12].copy_from_slice(&ack.to_be_bytes());
                segment[14..16].copy_from_slice(&30_000u16.to_be_bytes());
                segment
            }
            None => build::udp(from, to, &data),
        };
        let proto = if self.tcp.is_some() { 6 } else { 17 };
        let sum_at = if self.tcp.is_some() { 16 } else { 6 };
        let (mut frame, transport) = if self.v6 {
            let inside: Ipv6Addr = "2001:db8::1".parse().unwrap();
            let client = if public && self.reply { "2001:db8:7::7".parse().unwrap() } else { inside };
            let server = "2001:db8:1::1".parse().unwrap();
            let (src, dst) = if self.reply { (server, client) } else { (client, server) };
            let packet = build::Ipv6 { src, dst, proto, traffic_class: self.tos, ..Default::default() }.packet(above);
            (build::ethernet([2; 6], [4; 6], &[], 0x86dd, &packet), 54)
        } else {
            let client = if public && self.reply { [203, 0, 113, 7] } else { [10, 0, 0, 1] };
            let (client, server) = (client.into(), [192, 0, 2, 1].into());
            let (src, dst) = if self.reply { (server, client) } else { (client, server) };
            let packet = build::Ipv4 { src, dst, proto, tos: self.tos, ..Default::default() }.packet(above);
            (build::ethernet([2; 6], [4; 6], &[], 0x0800, &packet), 34)
        };
        frame.resize(frame.len().max(80), 0);
        if self.wrong {
            frame[transport + sum_at] ^= 0x55;
        }
        // The inner tag differs between packets of a connection.
        let tags = [[0x81, 0, 0, self.data % 2 + 1], [0x81, 0, 0, 5]];
        frame.splice(12..12, tags[2 - usize::from(self.tags)..].concat());
        frame
    }
}

impl Event {
    /// What is left to do to its frame, which lies so far behind the beginning of the packet.
    pub fn offload(&self, behind: usize) -> Offload {
        if self.offload != Offload::NEEDS_CSUM {
            return Offload { flags: self.offload, ..Offload::NONE };
        }
        let start = behind + 4 * usize::from(self.tags) + if self.v6 { 54 } else { 34 };
        let csum_offset = if self.tcp.is_some() { 16 } else { 6 };
        Offload { flags: self.offload, csum_start: start as u16, csum_offset, ..Offload::NONE }
    }
}
