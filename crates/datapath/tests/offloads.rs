//! What is left to do to a frame stays right whatever actions do to the frame: finishing it behind the
//! switch gives what finishing it in front of the switch would have given.

mod common;

use std::sync::Arc;

use common::{MemPort, ToPort, by_hand, flow, packet_in};
use datapath::{Action, Config, PortNo, Rewrite};
use packet::buffer::heap::HEAP;
use packet::{Field, Offload, Packet};
use ports::Offloads;
use ports::offload::complete;
use proptest::prelude::*;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A frame as a local stack hands it to its device.
#[derive(Clone, Debug)]
struct Shape {
    ipv6: bool,
    tcp: bool,
    tags: usize,
    /// IPv4 options or IPv6 destination options.
    options: bool,
    payload: Vec<u8>,
    /// Zero: not to be cut.
    gso_size: u16,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let payload = prop::collection::vec(any::<u8>(), 0..4000);
    (any::<[bool; 4]>(), 0..3usize, payload, 200u16..1400).prop_map(
        |([ipv6, tcp, options, gso], tags, mut payload, gso_size)| {
            if !gso {
                payload.truncate(1200);
            }
            let gso_size = if gso { gso_size } else { 0 };
            Shape { ipv6, tcp, tags, options, payload, gso_size }
        },
    )
}

/// One's complement sum of 16-bit words, in its plainest form.
fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) * 256 + u32::from(*w.get(1).unwrap_or(&0)));
    words.fold(0u32, |sum, word| {
        (sum + word) % 0xffff + u32::from(sum + word != 0 && (sum + word) % 0xffff == 0) * 0xffff
    }) as u16
}

impl Shape {
    fn protocol(&self) -> u8 {
        if self.tcp { TCP } else { UDP }
    }

    fn l4(&self) -> usize {
        let options = match (self.options, self.ipv6) {
            (false, _) => 0,
            (true, false) => 4,
            (true, true) => 8,
        };
        14 + 4 * self.tags + if self.ipv6 { 40 } else { 20 } + options
    }

    fn build(&self) -> Packet {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in 0..self.tags {
            f.extend(if self.tags == 2 && tag == 0 { [0x88, 0xa8, 0x40, 7] } else { [0x81, 0, 0x20, 9] });
        }
        let header = if self.tcp { 32 } else { 8 };
        let l4_len = header + self.payload.len();
        if self.ipv6 {
            let extra = if self.options { 8 } else { 0 };
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            f.extend(((l4_len + extra) as u16).to_be_bytes());
            f.extend([if self.options { 60 } else { self.protocol() }, 64]);
            f.extend([[0x20; 16], [0x31; 16]].concat());
            if self.options {
                f.extend([self.protocol(), 0, 1, 4, 0, 0, 0, 0]);
            }
        } else {
            let ihl = if self.options { 24 } else { 20 };
            let l3 = f.len() + 2;
            f.extend([0x08, 0x00, 0x40 | (ihl / 4) as u8, 0]);
            f.extend(((ihl + l4_len) as u16).to_be_bytes());
            f.extend([0x12, 0x34, 0x40, 0, 64, self.protocol(), 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            f.extend(vec![1; ihl - 20]);
            let sum = !plain_sum(&f[l3..]);
            f[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let l4 = f.len();
        assert_eq!(l4, self.l4());
        f.extend([0x30, 0x39, 0, 80]);
        if self.tcp {
            f.extend([0xff, 0xff, 0xf0, 0, 0, 0, 0, 1, 0x80, 0x99, 1, 0, 0, 0, 0, 0]);
            f.extend([1; 12]);
        } else {
            f.extend((l4_len as u16).to_be_bytes());
            f.extend([0, 0]);
        }
        f.extend(&self.payload);
        let pseudo = plain_sum(&self.pseudo(&f, l4)[..]);
        let offset = if self.tcp { 16 } else { 6 };
        f[l4 + offset..l4 + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
        let mut packet = Packet::from_slice(&f);
        *packet.offload_mut() = Offload {
            flags: Offload::NEEDS_CSUM,
            gso_type: match (self.gso_size > 0, self.tcp, self.ipv6) {
                (false, ..) => Offload::GSO_NONE,
                (true, true, false) => Offload::GSO_TCPV4,
                (true, true, true) => Offload::GSO_TCPV6,
                (true, false, _) => Offload::GSO_UDP_L4,
            },
            hdr_len: if self.gso_size > 0 { (l4 + header) as u16 } else { 0 },
            gso_size: self.gso_size,
            csum_start: l4 as u16,
            csum_offset: offset as u16,
        };
        packet
    }

    fn pseudo(&self, frame: &[u8], l4: usize) -> Vec<u8> {
        let l3 = l4 - (self.l4() - 14 - 4 * self.tags);
        let addresses = if self.ipv6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
        let mut pseudo = frame[addresses].to_vec();
        pseudo.extend([0, self.protocol()]);
        pseudo.extend(((frame.len() - l4) as u16).to_be_bytes());
        pseudo
    }
}

/// One step of a random program; what does not apply to the frame as it is then is left out.
#[derive(Clone, Debug)]
enum Step {
    PushVlan(bool, u16),
    PopVlan,
    PushMpls(u32),
    PopMpls,
    Source(u128),
    Destination(u128),
    SourcePort(u16),
    DestinationPort(u16),
    Ttl(u8),
    Tos(u8),
    Ethernet(u64),
    Output(u32),
    CutOutput(u32, u32),
    Punt,
    CloneWith(Vec<Step>),
    ByLength(u16, Vec<Step>, Vec<Step>),
    Recirculate,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let leaf = prop_oneof![
        (any::<bool>(), 1u16..4095).prop_map(|(s, vid)| Step::PushVlan(s, vid)),
        Just(Step::PopVlan),
        (16u32..1 << 20).prop_map(Step::PushMpls),
        Just(Step::PopMpls),
        any::<u128>().prop_map(Step::Source),
        any::<u128>().prop_map(Step::Destination),
        any::<u16>().prop_map(Step::SourcePort),
        any::<u16>().prop_map(Step::DestinationPort),
        any::<u8>().prop_map(Step::Ttl),
        (0u8..64).prop_map(Step::Tos),
        any::<u64>().prop_map(Step::Ethernet),
        (1u32..4).prop_map(Step::Output),
        (1u32..4).prop_map(Step::Output),
        (1u32..4, 14u32..3000).prop_map(|(port, len)| Step::CutOutput(port, len)),
        Just(Step::Punt),
        Just(Step::Recirculate),
    ];
    let program = leaf.prop_recursive(2, 12, 4, |inner| {
        let some = || prop::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            some().prop_map(Step::CloneWith),
            (100u16..3000, some(), some()).prop_map(|(size, a, b)| Step::ByLength(size, a, b)),
        ]
    });
    prop::collection::vec(program, 1..10)
}

/// What a program is at when it comes to a step.
#[derive(Clone, Copy)]
struct State<'a> {
    shape: &'a Shape,
    tags: usize,
    labels: usize,
}

/// Compiles steps; what comes behind a recirculation makes a program of its own.
fn compile(steps: &[Step], mut at: State<'_>, ports: &[PortNo], programs: &mut Vec<Vec<Action>>) -> Vec<Action> {
    let mut actions = Vec::new();
    let set = |field, value: u128| Action::Set(Arc::new(Rewrite::field(field, value & field.info().max())));
    let (v6, tcp) = (at.shape.ipv6, at.shape.tcp);
    let plain = if v6 { 0x86dd } else { 0x0800 };
    let rewritable = |at: &State<'_>| at.labels == 0 && at.tags <= 2;
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::PushVlan(service, vid) if at.tags < 4 && at.labels == 0 => {
                at.tags += 1;
                actions.push(Action::PushVlan { tpid: if *service { 0x88a8 } else { 0x8100 }, tci: *vid });
            }
            Step::PopVlan if at.tags > 0 && at.labels == 0 => {
                at.tags -= 1;
                actions.push(Action::PopVlan);
            }
            Step::PushMpls(label) if at.tags <= 2 && at.labels < 2 => {
                let bottom = if at.labels == 0 { 0x100 } else { 0 };
                at.labels += 1;
                actions.push(Action::PushMpls { ethertype: 0x8847, lse: label << 12 | bottom | 64 });
            }
            Step::PopMpls if at.labels > 0 => {
                at.labels -= 1;
                actions.push(Action::PopMpls { ethertype: if at.labels > 0 { 0x8847 } else { plain } });
            }
            Step::Source(value) if rewritable(&at) => {
                actions.push(set(if v6 { Field::Ipv6Src } else { Field::NwSrc }, *value))
            }
            Step::Destination(value) if rewritable(&at) => {
                actions.push(set(if v6 { Field::Ipv6Dst } else { Field::NwDst }, *value))
            }
            Step::SourcePort(value) if rewritable(&at) => {
                actions.push(set(if tcp { Field::TcpSrc } else { Field::UdpSrc }, u128::from(*value)))
            }
            Step::DestinationPort(value) if rewritable(&at) => {
                actions.push(set(if tcp { Field::TcpDst } else { Field::UdpDst }, u128::from(*value)))
            }
            Step::Ttl(value) if rewritable(&at) => actions.push(set(Field::NwTtl, u128::from(*value))),
            Step::Tos(value) if rewritable(&at) => actions.push(set(Field::IpDscp, u128::from(*value))),
            Step::Ethernet(value) => actions.push(set(Field::DlDst, u128::from(*value))),
            Step::Output(port) => actions.push(Action::Output(ports[*port as usize])),
            Step::CutOutput(port, len) => {
                actions.push(Action::Truncate { max_len: *len });
                actions.push(Action::Output(ports[*port as usize]));
            }
            Step::Punt => actions.push(packet_in(1)),
            Step::CloneWith(inner) => actions.push(Action::Clone(compile(inner, at, ports, programs))),
            Step::ByLength(size, longer, others) => {
                let (longer, others) = (compile(longer, at, ports, programs), compile(others, at, ports, programs));
                actions.push(Action::CheckLength { size: *size, longer, others });
            }
            Step::Recirculate => {
                let rest = compile(&steps[i + 1..], at, ports, programs);
                programs.push(rest);
                actions.push(Action::Recirc(programs.len() as u32));
                return actions;
            }
            _ => {}
        }
    }
    actions
}

/// What comes out of each port, and goes up, as it would be on a wire.
fn run(shape: &Shape, steps: &[Step], input: Vec<Packet>) -> Vec<Vec<Vec<u8>>> {
    let config = Config { upcall_queue: 4096, ..Config::default() };
    let (dp, _, ports) = by_hand(config, 4);
    ports.iter().for_each(|(_, port)| port.mtu.store(9000, std::sync::atomic::Ordering::Relaxed));
    ports.iter().for_each(|(no, _)| dp.refresh_port(*no).unwrap());
    let numbers: Vec<_> = ports.iter().map(|(no, _)| *no).collect();
    let upcall = ToPort::new(numbers[1], Field::UdpSrc, false);
    dp.set_upcall(upcall.clone());
    let mut programs = Vec::new();
    let state = State { shape, tags: shape.tags, labels: 0 };
    let actions = compile(steps, state, &numbers, &mut programs);
    dp.install(flow(numbers[0], 0, &[], actions)).unwrap();
    for (id, actions) in programs.into_iter().enumerate() {
        dp.install(flow(numbers[0], id as u32 + 1, &[], actions)).unwrap();
    }
    for packet in input {
        ports[0].1.queues[0].lock().unwrap().push_back(packet);
        dp.poll();
    }
    let mut out: Vec<_> = ports.iter().map(|(_, port)| on_the_wire(port)).collect();
    out.push(upcall.punts.lock().unwrap().iter().map(|(frame, ..)| frame.clone()).collect());
    out.iter_mut().for_each(|frames| frames.iter_mut().for_each(|frame| normal_zero(frame, shape)));
    out.iter_mut().for_each(|frames| frames.sort());
    out
}

fn on_the_wire(port: &MemPort) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for packet in port.sent.lock().unwrap().drain(..) {
        complete(packet, Offloads::default(), &HEAP, &mut |p| {
            assert_eq!(*p.offload(), Offload::NONE);
            frames.push(p.data().to_vec());
        })
        .unwrap();
    }
    frames
}

/// Where L4 begins behind any tags and labels, by a parser of the test's own.
fn find_l4(frame: &[u8], shape: &Shape) -> Option<usize> {
    let mut at = 12;
    let mut mpls = false;
    loop {
        match frame.get(at..at + 2)? {
            [0x81, 0] | [0x88, 0xa8] => at += 4,
            [0x88, 0x47] => {
                mpls = true;
                break;
            }
            _ => break,
        }
    }
    at += 2;
    if mpls {
        while frame.get(at + 2)? & 1 == 0 {
            at += 4;
        }
        at += 4;
    }
    Some(at + shape.l4() - 14 - 4 * shape.tags)
}

/// The two forms of zero that a TCP checksum may have are one.
fn normal_zero(frame: &mut [u8], shape: &Shape) {
    let at = find_l4(frame, shape).map(|l4| l4 + 16).filter(|at| shape.tcp && at + 2 <= frame.len());
    if let Some(at) = at
        && frame[at..at + 2] == [0, 0]
    {
        frame[at..at + 2].fill(0xff);
    }
}

/// Both checksums of a whole frame, computed from scratch.
fn is_right(frame: &[u8], shape: &Shape) -> bool {
    let l4 = find_l4(frame, shape).unwrap();
    let l3 = l4 - (shape.l4() - 14 - 4 * shape.tags);
    let covered = [&shape.pseudo(frame, l4)[..], &frame[l4..]].concat();
    plain_sum(&covered) == 0xffff && (shape.ipv6 || plain_sum(&frame[l3..l4]) == 0xffff)
}

fn is_whole(frame: &[u8], shape: &Shape) -> bool {
    let Some(l4) = find_l4(frame, shape) else { return false };
    let l3 = l4 - (shape.l4() - 14 - 4 * shape.tags);
    let word = |at: usize| frame.get(at..at + 2).map(|w| usize::from(w[0]) << 8 | usize::from(w[1]));
    let length = if shape.ipv6 { word(l3 + 4).map(|n| n + 40) } else { word(l3 + 2) };
    length == Some(frame.len() - l3.min(frame.len()))
}

fn compare(shape: &Shape, steps: &[Step]) {
    let mut finished = Vec::new();
    complete(shape.build(), Offloads::default(), &HEAP, &mut |p| finished.push(p)).unwrap();
    assert!(finished.iter().all(|p| is_right(p.data(), shape)), "the input is right");
    let before = run(shape, steps, finished);
    let behind = run(shape, steps, vec![shape.build()]);
    for (before, behind) in before.iter().zip(&behind) {
        for frame in behind.iter().filter(|frame| is_whole(frame, shape)) {
            assert!(is_right(frame, shape), "{frame:02x?}");
        }
        assert_eq!(before.len(), behind.len());
        assert!(before == behind, "{before:02x?}\n{behind:02x?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn finishing_commutes_with_any_program(shape in shapes(), steps in steps()) {
        compare(&shape, &steps);
    }
}

fn tcp(gso_size: u16) -> Shape {
    Shape { ipv6: false, tcp: true, tags: 0, options: false, payload: vec![7; 3000], gso_size }
}

#[test]
fn an_output_of_the_first_bytes_has_those_of_each_segment() {
    compare(&tcp(1400), &[Step::CutOutput(1, 100), Step::Source(0x0102_0304), Step::CutOutput(2, 60)]);
}

#[test]
fn what_goes_up_is_finished() {
    compare(&tcp(1400), &[Step::Punt, Step::DestinationPort(9), Step::PushVlan(false, 5), Step::Punt]);
}

#[test]
fn segments_are_what_length_is_checked_of() {
    for size in [100, 800, 1454, 1455, 3000, 4000] {
        compare(&tcp(1400), &[Step::ByLength(size, vec![Step::Output(1)], vec![Step::Output(2)]), Step::Output(3)]);
        compare(&tcp(1400), &[Step::ByLength(size, vec![Step::Output(1)], vec![Step::Output(2)])]);
    }
}

#[test]
fn flooded_frames_pass_whole() {
    let (dp, _, ports) = by_hand(Config::default(), 4);
    let outputs = ports[1..].iter().map(|(no, _)| Action::Output(*no)).collect();
    dp.install(flow(ports[0].0, 0, &[], outputs)).unwrap();
    let packet = tcp(1400).build();
    let offload = *packet.offload();
    ports[0].1.queues[0].lock().unwrap().push_back(packet);
    dp.poll();
    for (_, port) in &ports[1..] {
        let sent = port.sent.lock().unwrap();
        assert_eq!((sent.len(), *sent[0].offload()), (1, offload), "a port may take it over");
    }
}
