//! The tracker against a plain list of connections, over random packets: both directions, lost and repeated ones, numbers that wrap
//! around, translated addresses, ICMP errors, time that passes. Packets are frames: what they become has right checksums.

use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;

use conntrack::headers::{Headers, Upper, Verify};
use conntrack::nat::{Choice, Nat, Place};
use conntrack::tracker::{Metadata, Request, Tracker, Translate};
use conntrack::tuple::{Side, Tuple};
use conntrack::{CtState, Verdict};
use packet::Time;
use packet::flow::{Key, VlanLimit, extract};
use packet::wire::{build, tcp};
use zerocopy::FromBytes;

const ALL: Verify = Verify { ip: true, transport: true };
const IP: usize = 14;

/// An IP packet in a frame.
fn frame(src: IpAddr, dst: IpAddr, proto: u8, transport: Vec<u8>) -> Vec<u8> {
    let (ethertype, packet) = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            (0x0800, build::Ipv4 { src, dst, proto, ..build::Ipv4::default() }.packet(transport))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            (0x86dd, build::Ipv6 { src, dst, proto, ..build::Ipv6::default() }.packet(transport))
        }
        _ => panic!("one family"),
    };
    let mut frame = build::ethernet([2; 6], [4; 6], &[], ethertype, &packet);
    // As short frames have.
    frame.extend([0xee; 3]);
    frame
}

fn place(headers: &Headers, frame: &[u8]) -> Place {
    let v6 = headers.tuple.is_v6();
    let header = if v6 { 40 } else { 20 };
    let proto = match (headers.upper, v6) {
        (Upper::Error(_), false) => 1,
        (Upper::Error(_), true) => 58,
        _ => headers.tuple.proto(),
    };
    Place { ip: IP, transport: Some(IP + header), end: frame.len() - 3, proto, partial: false }
}

fn read(frame: &[u8]) -> Headers {
    let mut key = Key::new();
    let layers = extract(frame, &mut key, VlanLimit::Two);
    Headers::of(frame, &key, layers, 0, ALL).expect("a frame with right checksums")
}

/// What a packet of the reference is made of.
#[derive(Clone, Copy, Debug)]
struct Sent {
    flags: u16,
    seq: u32,
    ack: u32,
    window: u16,
    len: u16,
    scale: Option<u8>,
}

fn transport(tuple: &Tuple, sent: &Sent) -> Vec<u8> {
    let ports = (tuple.port(Side::Src), tuple.port(Side::Dst));
    let data = vec![0x61; sent.len.into()];
    match tuple.proto() {
        6 => {
            let options = sent.scale.filter(|_| sent.flags & 2 != 0).map(|scale| vec![3, 3, scale, 0]);
            let options = options.unwrap_or_default();
            let mut bytes = build::tcp(ports.0, ports.1, sent.flags, &[options.clone(), data].concat());
            let (header, _) = tcp::Header::mut_from_prefix(&mut bytes).unwrap();
            header.seq = sent.seq.into();
            header.ack = sent.ack.into();
            header.window = sent.window.into();
            header.offset_flags = ((5 + options.len() as u16 / 4) << 12 | sent.flags).into();
            bytes
        }
        17 => build::udp(ports.0, ports.1, &data),
        1 => build::icmp(tuple.icmp_type().unwrap(), 0, [(ports.0 >> 8) as u8, ports.0 as u8, 0, 1], &data),
        58 => build::icmpv6(tuple.icmp_type().unwrap(), 0, [(ports.0 >> 8) as u8, ports.0 as u8, 0, 1], &data),
        other => panic!("protocol {other}"),
    }
}

/// One end of TCP, in the words of the rules.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    highest: u32,
    may_reach: u32,
    window: u32,
    /// 0 closed, 2 has sent, 4 established, 7 has closed, 9 closing was acknowledged, 10 reset.
    state: u8,
    scale: Option<u8>,
    picked_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    New,
    Established,
    Invalid,
    Another,
}

fn diff(a: u32, b: u32) -> i64 {
    i64::from(a.wrapping_sub(b) as i32)
}

const SYN: u16 = 2;
const ACK: u16 = 16;
const FIN: u16 = 1;
const RST: u16 = 4;

fn impossible(flags: u16) -> bool {
    let syn = flags & SYN != 0;
    syn && flags & (FIN | RST) != 0
        || !syn && flags & (ACK | RST) == 0
        || flags & ACK == 0 && flags & (FIN | 8 | 32) != 0
}

/// A segment; what it is, and the seconds that the connection then has.
fn tcp_rules(ends: &mut [End; 2], from: usize, s: &Sent) -> (Is, Option<u64>) {
    let (mut a, mut b) = (ends[from], ends[1 - from]);
    if impossible(s.flags) {
        return (Is::Invalid, None);
    }
    let has = |flag| s.flags & flag != 0;
    if has(SYN) && !has(ACK) && a.state >= 9 && b.state >= 9 {
        (ends[0].state, ends[1].state) = (0, 0);
        return (Is::Another, None);
    }
    if has(SYN) && !has(ACK) && a.state <= 2 {
        ends[from].state = 2;
        return (Is::New, Some(30));
    }
    let (mut my_scale, mut its_scale) = match (a.scale, b.scale) {
        (Some(x), Some(y)) if !has(SYN) => (x, y),
        _ if a.picked_up && b.picked_up && !has(SYN) => (14, 14),
        _ => (0, 0),
    };
    let len = u32::from(s.len) + u32::from(has(SYN)) + u32::from(has(FIN));
    let (mut start, mut end) = (s.seq, s.seq.wrapping_add(len));
    let mut window = u32::from(s.window);
    let mut strict = true;
    if a.state < 2 {
        if let (true, Some(y)) = (has(SYN), b.scale) {
            a.scale = s.scale.map(|x| x.min(14));
            a.picked_up = false;
            match a.scale {
                Some(x) => {
                    (my_scale, its_scale) = (x, y);
                    window = window.div_ceil(1 << x);
                }
                None => {
                    b.window = (b.window << y).min(0xffff);
                    b.scale = None;
                }
            }
        }
        a.highest = start;
        a.state = 2;
        let reach = end.wrapping_add((b.window << its_scale).max(1));
        if a.may_reach == 1 || diff(reach, a.may_reach) >= 0 {
            a.may_reach = reach;
            strict = false;
        }
        a.window = a.window.max(window);
    }
    let ack = if !has(ACK) || s.ack == 0 && has(RST) { b.highest } else { s.ack };
    if len == 0 {
        (start, end) = (a.highest, a.highest);
    }
    const FUDGE: i64 = 65535 + 1500;
    let behind = if strict { diff(b.highest, ack) } else { 0 };
    let within = diff(a.may_reach, end) >= 0
        && diff(start, a.highest.wrapping_sub(b.window << its_scale)) >= 0
        && behind >= -FUDGE
        && behind <= FUDGE << my_scale
        && (!has(RST) || (-1..=1).contains(&diff(s.seq, a.highest)));
    let near = (b.state < 2 || b.state >= 9 || a.state >= 9)
        && diff(a.may_reach.wrapping_add(FUDGE as u32), end) >= 0
        && diff(start, a.highest.wrapping_sub(FUDGE as u32)) >= 0;
    if !within && !near {
        return (Is::Invalid, None);
    }
    a.window = a.window.max(window);
    if diff(end, a.highest) > 0 {
        a.highest = end;
    }
    if diff(ack.wrapping_add(window << my_scale), b.may_reach) >= 0 {
        b.may_reach = ack.wrapping_add((window << my_scale).max(1));
    }
    if has(FIN) && a.state < 7 {
        a.state = 7;
    }
    if within && has(ACK) {
        b.state = match b.state {
            2 => 4,
            7 => 9,
            other => other,
        };
    }
    if has(RST) {
        (a.state, b.state) = (10, 10);
    }
    let (low, high) = (a.state.min(b.state), a.state.max(b.state));
    let seconds = match (low, high) {
        (9.., _) => 30,
        (7.., _) => 45,
        (..4, _) => 30,
        (_, 7..) => 15 * 60,
        _ => 24 * 60 * 60,
    };
    (ends[from], ends[1 - from]) = (a, b);
    (Is::Established, within.then_some(seconds))
}

fn tcp_begins(s: &Sent) -> Option<[End; 2]> {
    if impossible(s.flags) || s.flags & (SYN | ACK) == SYN | ACK {
        return None;
    }
    let syn = s.flags & SYN != 0;
    let scale = s.scale.filter(|_| syn).map(|x| x.min(14));
    let len = u32::from(s.len) + u32::from(syn) + u32::from(s.flags & FIN != 0);
    let first = End {
        highest: s.seq,
        may_reach: s.seq.wrapping_add(len).wrapping_add(1),
        window: u32::from(s.window.max(1)).div_ceil(1 << scale.unwrap_or(0)),
        state: 2,
        scale,
        picked_up: !syn,
    };
    Some([first, End { may_reach: 1, window: 1, picked_up: !syn, ..End::default() }])
}

#[derive(Clone, Copy, Debug)]
enum Machine {
    Tcp([End; 2]),
    /// Packets of the first end, whether the other has answered.
    Other(u32, bool),
}

#[derive(Clone, Copy, Debug)]
struct Known {
    orig: Tuple,
    reply: Tuple,
    machine: Machine,
    end: u64,
    mark: u32,
    nat: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Out of nothing.
    Any { flags: u16, seq: u32, ack: u32 },
    /// What the end would send next: data, FIN and so on.
    Next { flags: u16, lost: bool },
    /// The same again.
    Repeat,
    /// An ICMP error about the last packet.
    Error,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    flow: u8,
    reply: bool,
    kind: Kind,
    commit: bool,
    nat: bool,
    force: bool,
    mark: Option<(u32, u32)>,
    window: u16,
    len: u16,
    pass: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = prop_oneof![
        6 => Just(ACK), 2 => Just(ACK | 8), 3 => Just(SYN), 3 => Just(SYN | ACK), 2 => Just(FIN | ACK), 1 => Just(RST),
        1 => Just(RST | ACK), 1 => 0u16..64
    ];
    let near = prop_oneof![any::<u32>(), (0u32..200_000).prop_map(|n| n.wrapping_sub(100_000))];
    let kind = prop_oneof![
        1 => (flags.clone(), near.clone(), near).prop_map(|(flags, seq, ack)| Kind::Any { flags, seq, ack }),
        8 => (flags, any::<bool>()).prop_map(|(flags, lost)| Kind::Next { flags, lost }),
        2 => Just(Kind::Repeat),
        1 => Just(Kind::Error),
    ];
    let pass = prop_oneof![8 => 0u64..5, 2 => 0u64..300, 1 => 0u64..1000];
    let request = (prop::bool::weighted(0.7), any::<bool>(), prop::bool::weighted(0.05));
    let mark = proptest::option::weighted(0.2, any::<(u32, u32)>());
    let step = (0u8..18, any::<bool>(), kind, request, mark, any::<u16>(), 0u16..1400, pass).prop_map(
        |(flow, reply, kind, (commit, nat, force), mark, window, len, pass)| {
            let mark = mark.map(|(value, mask)| (value & mask, mask));
            Step { flow, reply, kind, commit, nat, force, mark, window, len, pass }
        },
    );
    proptest::collection::vec(step, 0..120)
}

struct Reference {
    known: Vec<Known>,
    now: u64,
    nat: Nat,
}

impl Reference {
    fn find(&mut self, tuple: &Tuple) -> Option<(usize, bool)> {
        let now = self.now;
        self.known.retain(|known| known.end > now);
        self.known.iter().enumerate().find_map(|(i, known)| {
            (known.orig == *tuple).then_some((i, false)).or((known.reply == *tuple).then_some((i, true)))
        })
    }

    /// What is translated of packets in this direction.
    fn translated(&self, reply: bool) -> CtState {
        if (self.nat.side == Side::Src) == reply { CtState::DNAT } else { CtState::SNAT }
    }

    /// The end of answers that is translated: that to which they go, or that from which they come.
    fn translated_side(&self) -> Side {
        if self.nat.side == Side::Src { Side::Dst } else { Side::Src }
    }

    /// Whether every port of the range is taken for answers to a connection; one that keeps its ports has one try.
    fn range_is_taken(&self, orig: &Tuple) -> bool {
        let (min, max) = self.nat.ports.unwrap();
        let mut reply = orig.reverse();
        reply.set_address(self.translated_side(), self.nat.addresses.unwrap().0);
        (min..=max).all(|port| {
            if orig.has_ports() {
                reply.set_port(self.translated_side(), port);
            }
            self.known.iter().any(|known| known.reply == reply || known.orig == reply)
        })
    }

    /// Whether a connection has to be refused: no translation of it is free.
    fn exhausted(&self, orig: &Tuple) -> bool {
        // Any identifier of ICMP will do. Where a destination's ports are taken, so will another port of the source: those
        // like it are more than there are flows.
        let others = orig.proto() == 1 || orig.has_ports() && self.nat.side == Side::Dst;
        !others && self.range_is_taken(orig)
    }

    /// Whether a translation may be chosen, which nobody else has: the range's address, a port of the range, and the source's own port as
    /// long as it can be kept.
    fn admissible(&self, orig: &Tuple, reply: &Tuple) -> bool {
        let (side, kept) = (self.translated_side(), self.nat.side);
        let (min, max) = self.nat.ports.unwrap();
        let in_range = !orig.has_ports() || (min..=max).contains(&reply.port(side));
        let other_source = kept == Side::Dst && orig.has_ports() && self.range_is_taken(orig);
        reply.address(side) == self.nat.addresses.unwrap().0
            && reply.address(kept) == orig.address(side)
            && in_range
            && (!orig.has_ports() || (reply.port(kept) != orig.port(side)) == other_source)
    }

    /// What the tracker has to say of a packet; it may choose the port.
    fn check(&mut self, tuple: &Tuple, sent: &Sent, step: &Step, verdict: &Verdict) -> Result<(), TestCaseError> {
        let state = verdict.metadata.state;
        let mut found = self.find(tuple);
        if let (Some((i, true)), true) = (found, step.force) {
            self.known.swap_remove(i);
            found = None;
        }
        if let Some((i, reply)) = found {
            let known = &mut self.known[i];
            let (is, seconds) = match &mut known.machine {
                Machine::Tcp(ends) => tcp_rules(ends, usize::from(reply), sent),
                Machine::Other(count, answered) => {
                    *answered |= reply;
                    *count += 1;
                    let seconds = if *answered { 30 } else { 60 };
                    (if *answered { Is::Established } else { Is::New }, Some(seconds))
                }
            };
            if let Some(seconds) = seconds {
                known.end = self.now + seconds * 10;
            }
            let bits = self.translated(reply);
            let known = &mut self.known[i];
            if is == Is::Another {
                self.known.swap_remove(i);
            } else {
                if let Some((value, mask)) = step.mark {
                    known.mark = known.mark & !mask | value;
                }
                prop_assert_eq!(verdict.metadata.mark, known.mark);
                prop_assert_eq!(verdict.metadata.orig, Some(known.orig));
                let translated = step.nat && known.nat && is != Is::Invalid;
                let expected = CtState::TRK
                    | match is {
                        Is::New => CtState::NEW,
                        Is::Invalid => CtState::INV,
                        _ if reply => CtState::EST | CtState::RPL,
                        _ => CtState::EST,
                    }
                    | if translated { bits } else { CtState::NONE };
                prop_assert_eq!(state, expected, "{:?} {:?}", known, sent);
                return Ok(());
            }
        }
        let machine = match tuple.proto() {
            6 => tcp_begins(sent).map(Machine::Tcp),
            1 if tuple.icmp_type() != Some(8) => None,
            58 if tuple.icmp_type() != Some(128) => None,
            _ => Some(Machine::Other(1, false)),
        };
        let Some(machine) = machine else {
            prop_assert_eq!(state, CtState::INV | CtState::TRK);
            return Ok(());
        };
        let commit = step.commit || step.force;
        let mut reply = tuple.reverse();
        if commit && step.nat {
            if self.exhausted(tuple) {
                prop_assert!(verdict.refused.is_some() && state == CtState::NEW | CtState::TRK);
                return Ok(());
            }
            reply = verdict.connection.map_or(reply, |_| self.chosen(tuple, verdict));
        } else if commit && self.find(&reply).is_some() {
            // A translated connection's original direction is what would be answered.
            prop_assert!(verdict.refused.is_some() && state == CtState::NEW | CtState::TRK);
            return Ok(());
        }
        prop_assert_eq!(verdict.connection.is_some(), commit, "{:?}", verdict.refused);
        let bits = if commit && step.nat { self.translated(false) } else { CtState::NONE };
        prop_assert_eq!(state, CtState::NEW | CtState::TRK | bits);
        if commit {
            let mark = step.mark.map_or(0, |(value, _)| value);
            prop_assert_eq!(verdict.metadata.mark, mark);
            let seconds = if tuple.proto() == 6 { 30 } else { 60 };
            let end = self.now + seconds * 10;
            prop_assert!(self.find(&reply).is_none(), "the translated port is nobody else's");
            prop_assert!(!step.nat || self.admissible(tuple, &reply), "{:?} {:?}", tuple, reply);
            self.known.push(Known { orig: *tuple, reply, machine, end, mark, nat: step.nat });
        }
        Ok(())
    }

    fn chosen(&self, tuple: &Tuple, verdict: &Verdict) -> Tuple {
        let mut frame = frame(tuple.src(), tuple.dst(), tuple.proto(), transport(tuple, &Sent::default()));
        let headers = read(&frame);
        if let Some((translation, _)) = verdict.translation {
            let place = place(&headers, &frame);
            translation.apply(&mut frame, &place);
        }
        read(&frame).tuple.reverse()
    }
}

impl Default for Sent {
    fn default() -> Sent {
        Sent { flags: ACK, seq: 0, ack: 0, window: 1000, len: 0, scale: None }
    }
}

fn run(v6: bool, start: u32, side: Side, choice: Choice, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let address = |n: u8| {
        if v6 { IpAddr::from([0xfc, n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, n]) } else { [10, n, 0, n].into() }
    };
    let nat =
        Nat { side, addresses: Some((address(99), address(99))), ports: Some((5000, 5003)), choice, persistent: false };
    let tracker = Tracker::new(1000, [5, 6]);
    let mut reference = Reference { known: Vec::new(), now: 10, nat };
    // What each end of each flow has sent, as it would know it: next sequence number, and what it acknowledges.
    let mut ends = [[(start, 0u32); 2]; 18];
    let mut last: [Option<(Tuple, Sent)>; 18] = [None; 18];
    for step in steps {
        reference.now += step.pass;
        let now = Time(0) + Duration::from_millis(100 * reference.now);
        let flow = usize::from(step.flow);
        let (proto, port) = match (flow % 3, v6) {
            (0, _) => (6, 80),
            (1, _) => (17, 53),
            (_, false) => (1, 8),
            (_, true) => (58, 128),
        };
        let orig =
            Tuple::new(address(flow as u8 / 6 + 1), address(50), proto, (2000 + flow as u16 % 6, port), 0).unwrap();
        let known = reference.find(&orig).map(|(i, _)| reference.known[i]);
        let tuple = match (step.reply, &known) {
            (true, Some(known)) => known.reply,
            (true, None) => orig.reverse(),
            _ => orig,
        };
        let own = usize::from(step.reply);
        let scale = (step.window % 3 != 0).then_some((step.window % 16) as u8);
        let (mut tuple, sent) = match step.kind {
            Kind::Repeat => match last[flow] {
                Some(again) => again,
                None => continue,
            },
            Kind::Any { flags, seq, ack } => (
                tuple,
                Sent {
                    flags,
                    seq: start.wrapping_add(seq),
                    ack: start.wrapping_add(ack),
                    window: step.window,
                    len: step.len,
                    scale,
                },
            ),
            Kind::Next { flags, .. } => {
                let (seq, ack) = ends[flow][own];
                let len = if flags & SYN != 0 { 0 } else { step.len };
                (tuple, Sent { flags, seq, ack, window: step.window, len, scale })
            }
            Kind::Error => (tuple, Sent::default()),
        };
        if let Kind::Error = step.kind {
            error(&tracker, &mut reference, &known, &tuple, address(77), step, now)?;
            continue;
        }
        if let Kind::Next { flags, lost } = step.kind {
            let len = u32::from(sent.len) + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
            ends[flow][own].0 = sent.seq.wrapping_add(len);
            if !lost {
                ends[flow][1 - own].1 = sent.seq.wrapping_add(len);
            }
        }
        last[flow] = Some((tuple, sent));
        if tuple.proto() != 6 {
            // The other fields are of TCP.
            tuple = tuple.in_zone(0);
        }
        let mut bytes = frame(tuple.src(), tuple.dst(), tuple.proto(), transport(&tuple, &sent));
        let headers = read(&bytes);
        prop_assert_eq!(headers.tuple, tuple);
        let request = Request {
            commit: step.commit,
            force: step.force,
            nat: step.nat.then_some(Translate::New(nat)),
            mark: step.mark,
            ..Request::default()
        };
        let verdict = tracker.track(&headers, &Metadata::default(), &request, now);
        reference.check(&tuple, &sent, &step, &verdict)?;
        if let Some((translation, _)) = &verdict.translation {
            let place = place(&headers, &bytes);
            translation.apply(&mut bytes, &place);
            // Checksums are verified.
            let after = read(&bytes).tuple;
            let (i, reply) = reference.find(&tuple).expect("a translated packet has a connection");
            let known = &reference.known[i];
            prop_assert_eq!(after, if reply { known.orig.reverse() } else { known.reply.reverse() });
        }
    }
    // As many as the reference has, once those are gone whose time is over.
    let now = Time(0) + Duration::from_millis(100 * reference.now);
    reference.find(&Tuple::new([1, 1, 1, 1].into(), [1, 1, 1, 1].into(), 47, (0, 0), 0).unwrap());
    let mut live = 0;
    tracker
        .table
        .dump(&mut 0, usize::MAX, |_, contents| live += usize::from(tracker.table.find(&contents.orig, now).is_some()));
    prop_assert_eq!(live, reference.known.len());
    Ok(())
}

/// A router in between reports that it could not forward a packet of the connection.
fn error(
    tracker: &Tracker,
    reference: &mut Reference,
    known: &Option<Known>,
    tuple: &Tuple,
    router: IpAddr,
    step: Step,
    now: Time,
) -> Result<(), TestCaseError> {
    // As the router saw it: behind the translation.
    let forwarded = match known {
        Some(known) if step.reply => known.orig.reverse(),
        Some(known) => known.reply.reverse(),
        None => *tuple,
    };
    let quoted = frame(forwarded.src(), forwarded.dst(), forwarded.proto(), transport(&forwarded, &Sent::default()));
    let quoted = &quoted[IP..quoted.len() - 3];
    let message = match forwarded.is_v6() {
        false => build::icmp(3, 1, [0; 4], quoted),
        true => build::icmpv6(1, 4, [0; 4], quoted),
    };
    let proto = if forwarded.is_v6() { 58 } else { 1 };
    let mut bytes = frame(router, forwarded.src(), proto, message);
    let headers = read(&bytes);
    prop_assert_eq!(headers.tuple, forwarded.reverse());
    let request = Request { nat: step.nat.then_some(Translate::AsBefore), ..Request::default() };
    let verdict = tracker.track(&headers, &Metadata::default(), &request, now);
    let found = reference.find(&forwarded.reverse());
    let Some((i, reply)) = found else {
        prop_assert_eq!(verdict.metadata.state, CtState::INV | CtState::TRK);
        return Ok(());
    };
    let known = reference.known[i];
    let direction = if reply { CtState::RPL } else { CtState::NONE };
    let translated = if step.nat && known.nat { reference.translated(reply) } else { CtState::NONE };
    prop_assert_eq!(verdict.metadata.state, CtState::REL | CtState::TRK | direction | translated);
    prop_assert_eq!(verdict.metadata.orig, Some(known.orig));
    if let Some((outside, inside)) = &verdict.translation {
        let Upper::Error(quoted) = &headers.upper else { panic!("an error") };
        let place = place(&headers, &bytes);
        outside.apply_to_error(&mut bytes, &place, quoted, inside.as_ref().expect("both change"));
        let after = read(&bytes);
        prop_assert_eq!(after.tuple, if reply { known.orig.reverse() } else { known.reply.reverse() });
        // The quoted packet's own checksums are right, too.
        let Upper::Error(quoted) = &after.upper else { panic!("an error") };
        let at = place.transport.unwrap() + quoted.ip;
        let quoted =
            build::ethernet([0; 6], [0; 6], &[], if proto == 1 { 0x0800 } else { 0x86dd }, &bytes[at..place.end]);
        let mut key = Key::new();
        let layers = extract(&quoted, &mut key, VlanLimit::Two);
        prop_assert_eq!(Headers::of(&quoted, &key, layers, 0, ALL).map(|h| h.tuple), Ok(after.tuple.reverse()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tracker_equals_the_reference(
        v6: bool,
        start in prop_oneof![Just(0u32), Just(u32::MAX - 2000), any::<u32>()],
        side in prop_oneof![Just(Side::Src), Just(Side::Dst)],
        random: bool,
        steps in steps(),
    ) {
        run(v6, start, side, if random { Choice::Random } else { Choice::Hash }, steps)?;
    }
}

/// Four servers' answers, which are new connections, take the four ports of the destination. The fifth is not refused: it gets
/// another source port, as in OVS.
#[test]
fn taken_destination_ports_leave_other_source_ports() {
    let step = |flow| Step {
        flow,
        reply: true,
        kind: Kind::Any { flags: ACK, seq: 0, ack: 0 },
        commit: true,
        nat: true,
        force: false,
        mark: None,
        window: 0,
        len: 0,
        pass: 0,
    };
    for v6 in [false, true] {
        run(v6, 0, Side::Dst, Choice::Hash, [4, 1, 16, 7, 10].map(step).to_vec()).unwrap();
    }
}

/// Whatever is lost, comes twice or overtakes: no segment of two ends that keep to the rules is invalid, and the connection
/// closes. One that neither end would send is invalid.
#[test]
fn honest_ends_are_never_invalid() {
    let mut random = 1u64;
    let mut next = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    for round in 0..60u32 {
        let tracker = Tracker::new(10, [7, 8]);
        let tuple = Tuple::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, (4000, 80), 0).unwrap();
        let scale = (round % 15) as u8;
        let window = 20_000u16;
        // Close to the end of the numbers.
        let isn = [u32::MAX - 30_000, u32::MAX - 10];
        let pass = |reply: bool, sent: Sent| {
            let tuple = if reply { tuple.reverse() } else { tuple };
            let headers = read(&frame(tuple.src(), tuple.dst(), 6, transport(&tuple, &sent)));
            let request = Request { commit: true, ..Request::default() };
            tracker.track(&headers, &Metadata::default(), &request, Time(1 << 30)).metadata.state
        };
        let syn = Sent { flags: SYN, seq: isn[0], scale: Some(scale), window, ..Sent::default() };
        assert_eq!(pass(false, syn), CtState::NEW | CtState::TRK);
        let answer = Sent { flags: SYN | ACK, seq: isn[1], ack: isn[0].wrapping_add(1), ..syn };
        assert_eq!(pass(true, answer), CtState::EST | CtState::RPL | CtState::TRK);
        // Next byte to send, and next byte expected, of each end.
        let mut send = isn.map(|n| n.wrapping_add(1));
        let mut expect = [send[1], send[0]];
        let mut acked = send;
        let mut flight: [Vec<Sent>; 2] = [Vec::new(), Vec::new()];
        for _ in 0..400 {
            let end = next(2) as usize;
            let room = (u32::from(window) << scale).saturating_sub(send[end].wrapping_sub(acked[end]));
            let sent = match next(10) {
                // Again, from where the other end has not acknowledged.
                0 if !flight[end].is_empty() => {
                    let i = next(flight[end].len() as u64) as usize;
                    Sent { ack: expect[end], ..flight[end][i] }
                }
                1..=5 if room > 1000 => {
                    let len = 1 + next(1000) as u16;
                    let sent = Sent { flags: ACK, seq: send[end], ack: expect[end], window, len, scale: None };
                    send[end] = send[end].wrapping_add(len.into());
                    flight[end].push(sent);
                    sent
                }
                _ => Sent { flags: ACK, seq: send[end], ack: expect[end], window, len: 0, scale: None },
            };
            let state = pass(end == 1, sent);
            assert!(state.has(CtState::EST) && !state.has(CtState::INV), "{state} {sent:?}");
            // Behind the tracker, too, packets are lost.
            if next(4) > 0 && sent.seq == expect[1 - end] {
                expect[1 - end] = sent.seq.wrapping_add(sent.len.into());
            }
            if next(4) > 0 {
                acked[1 - end] = sent.ack;
                flight[1 - end].retain(|f| diff(f.seq.wrapping_add(f.len.into()), sent.ack) > 0);
                flight[1 - end].truncate(20);
            }
        }
        let forged = Sent { seq: send[0].wrapping_add(0x4000_0000), ack: expect[0], len: 10, ..Sent::default() };
        assert_eq!(pass(false, forged), CtState::INV | CtState::TRK);
        let reset = Sent { flags: RST, seq: send[0].wrapping_sub(70_000), ..Sent::default() };
        assert_eq!(pass(false, reset), CtState::INV | CtState::TRK);
    }
}
