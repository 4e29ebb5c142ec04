//! What the benchmarks of the whole loop share: a port that replays frames from memory, one that throws them
//! away, and sets of rules between the two.

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{CtState, Request};
use datapath::meter::{MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use datapath::{Action, Bucket, Config, Datapath, Encapsulation, FlowSpec, HashAlgorithm, PortNo, Rewrite};
use packet::buffer::{Owner, RawPacket};
use packet::flow::extract::{VlanLimit, extract};
use packet::wire::{build, tcp};
use packet::{BATCH_SIZE, Batch, Clock, Field, Key, Mask, Memory, Offload, Packet, Time};
use ports::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxQueue};
use tunnel::header::{Header, Protocol};
use tunnel::outer::{Outer, Prepared};
use tunnel::send::SourcePorts;
use zerocopy::FromBytes;

/// Buffers that live as long as the process and are never given back.
static STATIC: Memory =
    Memory { name: "static", release: |_| (), release_all: |_| (), allocate: |_, _, _| None, owner: Owner::NONE };

/// Buffers that a source fills in turn, as a driver's pool would have them.
const BUFFERS: usize = 2048;

/// Free bytes before a frame.
const HEADROOM: usize = 128;

/// Free bytes behind a frame.
const TAILROOM: usize = 64;

/// Most bytes of a frame.
const MAX_FRAME: usize = 128;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Buffer {
    headroom: [u8; HEADROOM],
    frame: [u8; MAX_FRAME],
    tailroom: [u8; TAILROOM],
    /// So that no two frames are next to each other.
    rest: [u8; 1856],
}

/// What frames are like. All are UDP over IPv4, unless another protocol is named.
#[derive(Clone, Copy, PartialEq, Default)]
#[allow(dead_code, reason = "each benchmark uses what it needs")]
pub enum Frames {
    /// Ethernet, IPv4, UDP.
    #[default]
    Plain,
    /// With an MPLS label.
    Labelled,
    /// To as many networks as there are [`NEXT_HOPS`].
    Networks,
    /// With a VLAN tag.
    Tagged,
    /// With two VLAN tags.
    TwoTags,
    /// In turn: IPv4 options, a first and a later fragment, ARP, ICMP, IPv6 with hop-by-hop options, an IPv6 fragment, two
    /// VLAN tags.
    Kinds,
    /// Segments of TCP connections, in turn from either end, with six bytes of data.
    Segments,
}

/// Networks behind as many next hops.
pub const NEXT_HOPS: usize = 256;

/// A port that gives each of so many flows' frames equally often, in random order. With none, it only sends.
pub struct Loop {
    pub name: &'static str,
    pub flows: usize,
    pub frames: Frames,
}

/// A source of frames that have `SIZE` bytes in memory, which are copied whole, and end four bytes before.
pub struct Source<const SIZE: usize> {
    trace: &'static [[u8; SIZE]],
    at: usize,
    buffers: NonNull<Buffer>,
    slot: usize,
}

// SAFETY: the buffers are the source's alone, but for the packets that it has given away.
unsafe impl<const SIZE: usize> Send for Source<SIZE> {}

impl<const SIZE: usize> RxQueue for Source<SIZE> {
    fn receive(&mut self, batch: &mut Batch, _: Time) -> usize {
        for _ in 0..BATCH_SIZE {
            // SAFETY: `slot` is below the number of buffers.
            let mut buffer = unsafe { self.buffers.add(self.slot) };
            // SAFETY: no packet is in the buffer: every one is thrown away before 2048 others were given.
            let frame = unsafe { &mut buffer.as_mut().frame };
            *frame.first_chunk_mut().expect("there is room for any frame") = self.trace[self.at];
            self.slot = (self.slot + 1) % BUFFERS;
            self.at += 1;
            if self.at == self.trace.len() {
                self.at = 0;
            }
            let raw = RawPacket {
                data: NonNull::from(frame).cast(),
                handle: 0,
                memory: &STATIC,
                len: SIZE as u32 - 4,
                tailroom: (4 + MAX_FRAME - SIZE + TAILROOM) as u32,
                queue: 0,
                headroom: HEADROOM as u16,
                offload: Offload::NONE,
            };
            // SAFETY: there is that much of the buffer before and behind the frame, which is never freed.
            batch.push(unsafe { Packet::from_raw(raw) });
        }
        BATCH_SIZE
    }
}

pub struct Sink;

impl TxQueue for Sink {
    fn transmit(&mut self, batch: &mut Batch, _: Time) -> usize {
        let count = batch.len();
        packet::buffer::release(batch);
        count
    }
}

impl Loop {
    pub fn source(&self) -> Box<dyn RxQueue> {
        if self.frames == Frames::Kinds { Box::new(self.source_of::<128>()) } else { Box::new(self.source_of::<64>()) }
    }

    fn source_of<const SIZE: usize>(&self) -> Source<SIZE> {
        // A trace of at least 1024 packets.
        let count = self.flows.next_multiple_of(1024);
        let padded = |n: usize| {
            let mut frame = frame((n % self.flows) as u32, self.frames);
            assert!(frame.len() + 4 <= SIZE);
            frame.resize(SIZE, 0);
            frame.try_into().expect("it has this size")
        };
        let mut trace: Vec<[u8; SIZE]> = (0..count).map(padded).collect();
        let mut state = 88_172_645_463_325_252u64;
        for i in (1..count).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            trace.swap(i, (state % (i as u64 + 1)) as usize);
        }
        let none = Buffer { headroom: [0; HEADROOM], frame: [0; MAX_FRAME], tailroom: [0; TAILROOM], rest: [0; 1856] };
        let buffers = vec![none; BUFFERS].leak();
        Source { trace: trace.leak(), at: 0, buffers: NonNull::from(buffers).cast(), slot: 0 }
    }
}

impl Port for Loop {
    fn name(&self) -> &str {
        self.name
    }
    fn kind(&self) -> &'static str {
        "loop"
    }
    fn mac(&self) -> Mac {
        [2; 6]
    }
    fn mtu(&self) -> u32 {
        1500
    }
    fn link(&self) -> Link {
        Link { up: true, admin_up: true, resets: 0 }
    }
    fn set_admin_up(&self, _: bool) -> Result<(), Error> {
        Ok(())
    }
    fn stats(&self) -> Stats {
        Stats::default()
    }
    fn tx_drops(&self) -> ports::TxDrops {
        ports::TxDrops::default()
    }
    fn features(&self) -> Features {
        Features::default()
    }
    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        if self.flows == 0 { vec![] } else { vec![self.source()] }
    }
    fn max_tx_queues(&self) -> usize {
        usize::MAX
    }
    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, Error> {
        Ok(Box::new(Sink))
    }
}

/// A frame without its padding.
fn frame(flow: u32, frames: Frames) -> Vec<u8> {
    const PROTOCOLS: u32 = 8;
    let plain = Ipv4 { source: 0x0a00_0000 + flow, ..Ipv4::default() };
    let behind = |l2: &[u8], ip: &Ipv4| [&ADDRESSES, l2, &ip.bytes(flow)].concat();
    match frames {
        Frames::Plain => behind(&[8, 0], &plain),
        Frames::Labelled => behind(&[0x88, 0x47, 0, 1, 1, 64], &plain),
        Frames::Networks => {
            let network = flow % NEXT_HOPS as u32;
            behind(&[8, 0], &Ipv4 { destination: 0xc612_0001 | network << 8, ..plain })
        }
        Frames::Tagged => behind(&[0x81, 0, 0, 10, 8, 0], &plain),
        Frames::TwoTags => behind(&TWO_TAGS, &plain),
        Frames::Kinds => match flow % PROTOCOLS {
            0 => behind(&[8, 0], &Ipv4 { options: 4, ..plain }),
            1 => behind(&[8, 0], &Ipv4 { fragment: 0x2000, ..plain }),
            2 => behind(&[8, 0], &Ipv4 { fragment: 0x0005, ..plain }),
            3 => arp(flow),
            4 => behind(&[8, 0], &Ipv4 { protocol: 1, ..plain }),
            // Hop-by-hop options (RFC 8200 section 4.3): padding.
            5 => ipv6(flow, 0, [17, 0, 1, 4, 0, 0, 0, 0]),
            // The first fragment (RFC 8200 section 4.5).
            6 => ipv6(flow, 44, [17, 0, 0, 1, 0, 0, 0, 7]),
            _ => behind(&TWO_TAGS, &plain),
        },
        Frames::Segments => segment(flow / 2, flow % 2 == 1),
    }
}

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
const TWO_TAGS: [u8; 10] = [0x88, 0xa8, 0, 20, 0x81, 0, 0, 10, 8, 0];

/// Bytes of a datagram, with its header.
const DATAGRAM: usize = 12;

struct Ipv4 {
    source: u32,
    destination: u32,
    protocol: u8,
    fragment: u16,
    /// Bytes of options.
    options: u8,
}

impl Default for Ipv4 {
    fn default() -> Ipv4 {
        Ipv4 { source: 0, destination: 0xc612_0001, protocol: 17, fragment: 0x4000, options: 0 }
    }
}

impl Ipv4 {
    fn bytes(&self, flow: u32) -> Vec<u8> {
        let length = 20 + self.options + DATAGRAM as u8;
        let [a, b] = self.fragment.to_be_bytes();
        let mut bytes = vec![0x45 + self.options / 4, 0, 0, length, 0, 0, a, b, 64, self.protocol, 0, 0];
        bytes.extend(self.source.to_be_bytes().iter().chain(&self.destination.to_be_bytes()));
        let sum = bytes.as_chunks().0.iter().map(|&word| u32::from(u16::from_be_bytes(word)));
        let options = vec![1; self.options.into()];
        let sum = sum.sum::<u32>() + u32::from(self.options) / 2 * 0x0101;
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        [bytes, options, datagram(flow)].concat()
    }
}

fn datagram(flow: u32) -> Vec<u8> {
    let mut bytes = vec![0; DATAGRAM];
    bytes[..2].copy_from_slice(&((1024 + flow % 50_000) as u16).to_be_bytes());
    (bytes[3], bytes[5]) = (53, DATAGRAM as u8);
    bytes
}

/// A segment of a connection, with right checksums.
fn segment(connection: u32, reply: bool) -> Vec<u8> {
    let mut ends = [(0x0a00_0000 + connection, (1024 + connection % 50_000) as u16, 100), (0xc612_0001, 80, 200)];
    if reply {
        ends.reverse();
    }
    let [from, to] = ends;
    let mut bytes = build::tcp(from.1, to.1, 0x18, &[0; 6]);
    let (header, _) = tcp::Header::mut_from_prefix(&mut bytes).expect("a header");
    (header.seq, header.ack, header.window) = (from.2.into(), to.2.into(), 65_000.into());
    let ip = build::Ipv4 { src: from.0.into(), dst: to.0.into(), proto: 6, ..build::Ipv4::default() };
    [&ADDRESSES[..], &[8, 0], &ip.packet(bytes)].concat()
}

/// UDP over IPv6, with an extension header that has this number.
fn ipv6(flow: u32, number: u8, extension: [u8; 8]) -> Vec<u8> {
    let mut frame = ADDRESSES.to_vec();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 + DATAGRAM as u8, number, 64]);
    for host in [0x0a00_0000 + flow, 0xc612_0001] {
        frame.extend((0x2001_0db8_u128 << 96 | u128::from(host)).to_be_bytes());
    }
    frame.extend(extension);
    frame.extend(datagram(flow));
    frame
}

/// A request.
fn arp(flow: u32) -> Vec<u8> {
    let mut frame = ADDRESSES.to_vec();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
    frame.extend((0x0a00_0000 + flow).to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0xc6, 0x12, 0, 1]);
    frame
}

/// What is matched, and what is done.
#[derive(Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "each benchmark uses what it needs")]
pub enum Rules {
    /// The input port only, and packets are forwarded.
    Port,
    /// The input port only, and packets are dropped.
    Drop,
    /// As the first, through a meter that lets all pass.
    Metered,
    /// All packets, by protocol and a prefix of the destination.
    Prefix,
    /// The same, and each is sent by the member of a bond that its connection selects.
    Bond,
    /// The input port only, and packets get a VLAN tag.
    Push,
    /// The input port only, and packets are sent to another address.
    Readdress,
    /// Each flow by its source, with one of so many masks.
    Sources(usize),
    /// Each flow by protocol, addresses and ports.
    Tuples,
    /// Each flow by its source, and packets get a VLAN tag.
    SourcesPush,
    /// The input port only, and packets lose a VLAN tag: with one or with two.
    Pop(Frames),
    /// Each flow by its source, and packets lose a VLAN tag: with one or with two.
    SourcesPop(Frames),
    /// By prefixes of the destination, and packets are sent to the next hop: the TTL is decremented, and both Ethernet
    /// addresses are written.
    NextHops,
    /// By the same prefixes, and packets are sent into a tunnel to each of them; before, they get addresses and another TTL, or not.
    Tunnels {
        /// Whether they do.
        routed: bool,
    },
    /// All packets, by protocol and a prefix of the destination, for each of the protocols among unusual frames.
    Kinds(Frames),
    /// All packets, by a prefix of the destination, and this is done with them before they are sent: at once, or by way of
    /// another stage, whose flows look at the prefix and at what was done.
    Before(Before, bool),
}

impl Rules {
    /// The frames that they are for.
    fn frames(self) -> Frames {
        match self {
            Rules::Before(Before::PopMpls, _) => Frames::Labelled,
            Rules::Before(Before::Connect, _) => Frames::Segments,
            Rules::NextHops | Rules::Tunnels { .. } => Frames::Networks,
            Rules::Pop(frames) | Rules::SourcesPop(frames) | Rules::Kinds(frames) => frames,
            _ => Frames::Plain,
        }
    }

    /// How many flows there are for this many flows of packets.
    fn number(self, flows: usize) -> usize {
        match self {
            Rules::Sources(_) | Rules::Tuples | Rules::SourcesPush | Rules::SourcesPop(_) => flows,
            Rules::NextHops | Rules::Tunnels { .. } => NEXT_HOPS,
            Rules::Kinds(_) => ARP + 1,
            _ => 1,
        }
    }
}

/// Writes the addresses of a next hop, and the TTL.
fn route(hop: usize) -> Vec<Action> {
    let mut addresses = Rewrite::field(Field::DlSrc, 0x0200_0000_0002);
    addresses.key.set(Field::DlDst, 0x0200_0000_0100 + hop as u128);
    addresses.mask.set_exact(Field::DlDst);
    let ttl = Rewrite::field(Field::NwTtl, 63);
    vec![Action::Set(Arc::new(addresses)), Action::Set(Arc::new(ttl))]
}

/// Puts packets into a tunnel to this end.
fn encapsulate(end: usize, port: PortNo) -> Action {
    let address = |host: usize| IpAddr::from([172, 31, (host >> 8) as u8, host as u8]);
    let ports = (0, 4789);
    let outer = Outer {
        src: address(1),
        dst: address(256 + end),
        tos: 0,
        ttl: 64,
        dont_fragment: true,
        ports,
        checksum: false,
    };
    let ethernet = [2, 0, 0, 0, 9, end as u8, 2, 0, 0, 0, 9, 1, 8, 0];
    let header = Header::Vxlan { vni: 7, group: None };
    let headers = Prepared::new(&ethernet, &outer, Protocol::Vxlan { group_policy: false }, &header).expect("they fit");
    Action::TunnelPush(Arc::new(Encapsulation::new(port, port, 4, headers, SourcePorts::default(), None)))
}

/// The flows of [`Rules::Kinds`]: IPv4 by fragment bits, then IPv6 by fragment bits, and ARP.
const ARP: usize = 6;

/// What sends packets to another stage.
#[derive(Clone, Copy, PartialEq)]
#[allow(dead_code, reason = "each benchmark uses what it needs")]
pub enum Before {
    /// A hash of their headers is computed, which spreads them over eight flows, as bonds do.
    Hash,
    /// A label is taken off.
    PopMpls,
    /// Metadata is written.
    Mark,
    /// They are tracked, and their connections are made, which nobody answers.
    Track,
    /// The same, and they are translated.
    Translate,
    /// They are tracked, and belong to connections of TCP, both directions of each.
    Connect,
}

/// The recirculation id of the other stage.
const STAGE: u32 = 7;

impl Before {
    fn action(self) -> Action {
        match self {
            Before::Hash => Action::Hash { algorithm: HashAlgorithm::L4, basis: 3 },
            Before::PopMpls => Action::PopMpls { ethertype: 0x0800 },
            Before::Mark => Action::Set(Arc::new(Rewrite::field(Field::TunId, 9))),
            Before::Track | Before::Connect => Action::Ct(Arc::default()),
            Before::Translate => Action::Ct(Arc::new(Request { nat: Some(Translate::AsBefore), ..Request::default() })),
        }
    }

    /// What makes connections.
    fn commit(self) -> Option<Action> {
        let addresses = Some(([203, 0, 113, 1].into(), [203, 0, 113, 9].into()));
        let nat = Nat { side: Side::Src, addresses, ports: None, choice: Choice::Hash, persistent: false };
        let nat = match self {
            Before::Track | Before::Connect => None,
            Before::Translate => Some(Translate::New(nat)),
            _ => return None,
        };
        Some(Action::Ct(Arc::new(Request { commit: true, nat, ..Request::default() })))
    }

    /// The flows of the other stage.
    fn later(self, source: PortNo, sink: PortNo) -> Vec<FlowSpec> {
        let flows = match self {
            Before::Hash => 8,
            Before::Connect => 2,
            _ => 1,
        };
        let spec = |flow: u128| {
            let (mut key, mut mask) = (Key::new(), Mask::wildcard());
            key.set(Field::InPortOxm, source.0.into());
            key.set(Field::RecircId, STAGE.into());
            let mut commit = self.commit();
            if self == Before::Connect {
                segments(&mut key, &mut mask);
            } else {
                prefix(&mut key, &mut mask);
            }
            match self {
                Before::Hash => {
                    key.set(Field::DpHash, flow);
                    mask.add(Field::DpHash, 7);
                }
                Before::Connect => {
                    let is = if flow == 0 { CtState::NEW } else { CtState::EST };
                    key.set(Field::CtState, (CtState::TRK | is).0.into());
                    mask.add(Field::CtState, (CtState::TRK | CtState::NEW | CtState::EST).0.into());
                    commit = commit.filter(|_| flow == 0);
                }
                Before::PopMpls => {}
                Before::Track | Before::Translate => {
                    key.set(Field::CtState, (CtState::TRK | CtState::NEW).0.into());
                    mask.add(Field::CtState, (CtState::TRK | CtState::NEW | CtState::EST).0.into());
                }
                Before::Mark => {
                    key.set(Field::TunId, 9);
                    mask.set_exact(Field::TunId);
                }
            }
            FlowSpec {
                key: Box::new(key),
                mask: Box::new(mask),
                actions: commit.into_iter().chain([Action::Output(sink)]).collect(),
                tag: Arc::new(()),
            }
        };
        (0..flows).map(spec).collect()
    }
}

/// UDP over IPv4 to a prefix.
fn prefix(key: &mut Key, mask: &mut Mask) {
    for (field, value, bits) in [
        (Field::DlType, 0x0800, 0xffff),
        (Field::NwProto, 17, 0xff),
        (Field::NwFrag, 0, 3),
        (Field::NwDst, 0xc612_0000, 0xfffe_0000),
    ] {
        key.set(field, value);
        mask.add(field, bits);
    }
}

/// TCP over IPv4.
fn segments(key: &mut Key, mask: &mut Mask) {
    for (field, value, bits) in [(Field::DlType, 0x0800, 0xffff), (Field::NwProto, 6, 0xff), (Field::NwFrag, 0, 3)] {
        key.set(field, value);
        mask.add(field, bits);
    }
}

fn specs(rules: Rules, flows: usize, source: PortNo, sink: PortNo) -> Vec<FlowSpec> {
    let spec = |flow: usize| {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        key.set(Field::InPortOxm, source.0.into());
        match rules {
            Rules::Port | Rules::Drop | Rules::Metered | Rules::Push | Rules::Readdress | Rules::Pop(_) => {}
            Rules::NextHops | Rules::Tunnels { .. } => {
                for (field, value, bits) in [
                    (Field::DlType, 0x0800, 0xffff),
                    (Field::NwFrag, 0, 3),
                    (Field::NwTtl, 64, 0xff),
                    (Field::NwDst, 0xc612_0000 | (flow as u128) << 8, 0xffff_ff00),
                    (Field::DlDst, 0x0200_0000_0002, 0xffff_ffff_ffff),
                    (Field::DlSrc, 0x0200_0000_0001, 0xffff_ffff_ffff),
                ] {
                    key.set(field, value);
                    mask.add(field, bits);
                }
            }
            Rules::Kinds(_) => {
                let fragment = [0, 1, 3][flow % 3];
                let network = 0x2001_0db8_u128 << 96 | 0xc612_0000;
                let fields: &[(Field, u128, u128)] = match flow {
                    ARP => &[(Field::DlType, 0x0806, 0xffff)],
                    0..3 => &[
                        (Field::DlType, 0x0800, 0xffff),
                        (Field::NwFrag, fragment, 3),
                        (Field::NwDst, 0xc612_0000, 0xfffe_0000),
                    ],
                    _ => &[
                        (Field::DlType, 0x86dd, 0xffff),
                        (Field::NwFrag, fragment, 3),
                        (Field::Ipv6Dst, network, !0x0001_ffff),
                    ],
                };
                for &(field, value, bits) in fields {
                    key.set(field, value);
                    mask.add(field, bits);
                }
            }
            Rules::Prefix | Rules::Bond => prefix(&mut key, &mut mask),
            Rules::Before(Before::PopMpls, _) => {
                key.set(Field::DlType, 0x8847);
                mask.set_exact(Field::DlType);
            }
            Rules::Before(Before::Connect, _) => segments(&mut key, &mut mask),
            Rules::Before(..) => prefix(&mut key, &mut mask),
            Rules::Tuples => {
                extract(&frame(flow as u32, Frames::Plain), &mut key, VlanLimit::default());
                key.set(Field::InPortOxm, source.0.into());
                for field in [Field::DlType, Field::NwFrag, Field::NwProto, Field::NwSrc, Field::NwDst] {
                    mask.set_exact(field);
                }
                [Field::UdpSrc, Field::UdpDst].iter().for_each(|&field| mask.set_exact(field));
            }
            Rules::SourcesPush | Rules::SourcesPop(_) => {
                key.set(Field::NwSrc, u128::from(0x0a00_0000 + flow as u32));
                mask.set_exact(Field::NwSrc);
            }
            Rules::Sources(masks) => {
                key.set(Field::NwSrc, u128::from(0x0a00_0000 + flow as u32));
                mask.set_exact(Field::NwSrc);
                // Bits that are zero in every packet.
                mask.add(Field::NwTos, (flow % masks) as u128);
            }
        }
        let actions = match rules {
            Rules::Drop => vec![],
            Rules::Metered => {
                let band = MeterBand { rate: u32::MAX, burst: u32::MAX, kind: MeterBandKind::Drop };
                let meter =
                    Arc::<MeterNumbers>::default().add(MeterUnit::Kilobits, &[band], Time(0)).expect("a number");
                vec![Action::Meter(meter), Action::Output(sink)]
            }
            Rules::Push | Rules::SourcesPush => {
                vec![Action::PushVlan { tpid: 0x8100, tci: 100 }, Action::Output(sink)]
            }
            Rules::Pop(_) | Rules::SourcesPop(_) => vec![Action::PopVlan, Action::Output(sink)],
            Rules::NextHops => [route(flow), vec![Action::Output(sink)]].concat(),
            Rules::Tunnels { routed } => {
                let before = if routed { route(flow) } else { vec![] };
                [before, vec![encapsulate(flow, sink), Action::Output(sink)]].concat()
            }
            Rules::Readdress => {
                vec![Action::Set(Arc::new(Rewrite::field(Field::NwDst, 0xc612_0002))), Action::Output(sink)]
            }
            Rules::Before(before, again) => {
                vec![before.action(), if again { Action::Recirc(STAGE) } else { Action::Output(sink) }]
            }
            _ => vec![Action::Output(sink)],
        };
        FlowSpec { key: Box::new(key), mask: Box::new(mask), actions, tag: Arc::new(()) }
    };
    let later = match rules {
        Rules::Before(before, true) => before.later(source, sink),
        _ => vec![],
    };
    (0..rules.number(flows)).map(spec).chain(later).collect()
}

/// The core that what is measured runs on: the last one.
pub fn last_core() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) - 1
}

/// A datapath with a source of so many flows, a sink, and rules between them, after `passes` passes of all flows. Its
/// worker has its core once it is started.
pub fn datapath(rules: Rules, flows: usize, clock: Arc<dyn Clock>, passes: usize) -> Arc<Datapath> {
    let (max_flows, exact_entries) = (5_000_000, 1 << 23);
    let config = Config { workers: vec![last_core()], max_flows, exact_entries, ..Config::default() };
    let dp = Datapath::new(config, clock);
    let source = dp.add_port(Arc::new(Loop { name: "source", flows, frames: rules.frames() })).expect("the port");
    let sink = dp.add_port(Arc::new(Loop { name: "sink", flows: 0, frames: Frames::Plain })).expect("the port");
    let mut specs = specs(rules, flows, source, sink);
    if rules == Rules::Bond {
        let other = dp.add_port(Arc::new(Loop { name: "other", flows: 0, frames: Frames::Plain })).expect("the port");
        let bond = dp.bonds().add().expect("the first bond");
        (0..=u8::MAX).for_each(|bucket| bond.set_member(bucket, Some(if bucket % 2 == 0 { sink } else { other })));
        specs
            .iter_mut()
            .for_each(|spec| spec.actions = vec![Action::Bond { bond: bond.clone(), bucket: Bucket::ByHash }]);
    }
    for spec in specs {
        dp.install(spec).expect("below the limits");
    }
    for _ in 0..passes * flows.max(1024) / BATCH_SIZE {
        dp.poll();
    }
    dp
}
