//! Fused connections against the long way: whatever packets come, a datapath with caches does what one without does, to
//! packets, counters and connections.

mod common;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{ByHand, by_hand, flow};
use conntrack::nat::{Choice, Nat};
use conntrack::table::slot::Contents;
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{CtState, Request};
use datapath::meter::{Meter, MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use datapath::{
    Action, Config, Decapsulation, DropReason, Encapsulation, FlowId, FlowSpec, HashAlgorithm, Miss, PortNo, Punt,
    Rewrite, SflowPunt, Upcall, Verdict,
};
use packet::flow::{BlockId, Blocks};
use packet::wire::build;
use packet::{Field, Key, Offload, Packet, Time};
use ports::tunnel::TunnelPort;
use proptest::prelude::*;
use tunnel::header::{Header, Protocol};
use tunnel::outer::{Outer, Prepared};
use tunnel::send::SourcePorts;

const TRK: CtState = CtState::TRK;

/// A TOS whose drop precedence can be raised.
const HIGH_TOS: u8 = 0x28;

/// A packet of one of a few connections.
#[derive(Clone, Default, Debug)]
struct Event {
    client: u8,
    reply: bool,
    tcp: Option<(u16, u8)>,
    v6: bool,
    data: u8,
    wrong: bool,
    tos: u8,
    /// The other end of the tunnel that it comes from.
    end: u8,
    /// How many VLAN tags it has.
    tags: u8,
    /// What of its checksum is left to do, or was done.
    offload: u8,
    /// Tenths of a second until then.
    after: u16,
    repeated: u8,
}

fn event() -> impl Strategy<Value = Event> {
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
const ENDS: [u8; 2] = [7, 8];

/// The port that what leaves a tunnel comes in at: VXLAN for clients, Geneve with an option for servers.
fn tunnel_port(reply: bool) -> PortNo {
    PortNo(if reply { 6081 } else { 4789 })
}

/// A frame in a tunnel, as the underlay receives it.
fn tunnelled(frame: &[u8], reply: bool, end: u8) -> Vec<u8> {
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
struct Ends([[u32; 2]; 6]);

impl Event {
    /// The frame. `public`: clients are translated, and answers go to the translated address.
    fn frame(&self, ends: &mut Ends, public: bool) -> Vec<u8> {
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
    fn offload(&self, behind: usize) -> Offload {
        if self.offload != Offload::NEEDS_CSUM {
            return Offload { flags: self.offload, ..Offload::NONE };
        }
        let start = behind + 4 * usize::from(self.tags) + if self.v6 { 54 } else { 34 };
        let csum_offset = if self.tcp.is_some() { 16 } else { 6 };
        Offload { flags: self.offload, csum_start: start as u16, csum_offset, ..Offload::NONE }
    }
}

/// What flows do with packets that have been tracked.
#[derive(Clone, Copy, Default, Debug)]
struct Rules {
    nat: bool,
    zone: u16,
    mark: bool,
    /// New packets are committed again, also where there is a connection.
    commits_all: bool,
    /// Rewrites a MAC address in the end.
    rewrites: bool,
    /// Established packets are classified once more.
    thrice: bool,
    /// In the end, they go different ways by their TOS.
    tos: bool,
    /// In the end, packets enter a tunnel.
    tunnel: bool,
    /// In the beginning, they come out of one.
    from_tunnel: bool,
    /// In the end, they go different ways by where that tunnel comes from.
    ends: bool,
    /// Established packets are tracked in a second zone.
    second: bool,
    /// There they are translated.
    second_nat: bool,
    /// What is done before packets are sent.
    before: Before,
    /// Before they are tracked for the first time.
    first: Early,
    /// Before they are tracked again, or after they were tracked.
    again: Early,
    /// In the end, they go different ways by their hash.
    hash: bool,
}

/// What programs do before packets are tracked.
#[derive(Clone, Copy, Default, Debug)]
enum Early {
    #[default]
    Nothing,
    /// All of it is copied.
    Copy,
    /// The beginning is copied, as for a mirror.
    Mirror,
    /// A copy is put into a tunnel.
    Tunnel,
    /// Few packets pass a meter.
    Meter,
    /// A meter raises the drop precedence of most.
    Remark,
    /// All are samples: a copy is sent.
    Sample,
    /// Another sample, which goes to the slow path.
    Report,
    /// The same, of few packets.
    Seldom,
    /// The metadata of tracking is cleared.
    Clear,
    /// Addresses of Ethernet and the TTL are rewritten.
    Route,
    /// The TOS is rewritten.
    Tos,
    /// A tag is removed.
    Pop,
    /// One is pushed.
    Push,
    /// One is changed.
    Tag,
    /// A copy of what has no tag any more, and is routed.
    PopCopyRoute,
    /// An address is rewritten.
    Address,
}

impl Early {
    const ALL: [Early; 17] = [
        Early::Nothing,
        Early::Copy,
        Early::Mirror,
        Early::Tunnel,
        Early::Meter,
        Early::Remark,
        Early::Sample,
        Early::Report,
        Early::Seldom,
        Early::Clear,
        Early::Route,
        Early::Tos,
        Early::Pop,
        Early::Push,
        Early::Tag,
        Early::PopCopyRoute,
        Early::Address,
    ];

    fn any() -> impl Strategy<Value = Early> {
        prop_oneof![10 => Just(Early::Nothing), 14 => prop::sample::select(Early::ALL.to_vec())]
    }

    /// The actions. Copies go to this port; the second meter remarks.
    fn actions(self, port: PortNo, [meter, remarking]: &[Arc<Meter>; 2]) -> Vec<Action> {
        let set = |field, value: u128| Action::Set(Arc::new(Rewrite::field(field, value)));
        let copy = Action::Output(port);
        let route = || vec![set(Field::DlSrc, 9), set(Field::DlDst, 8), set(Field::NwTtl, 63)];
        match self {
            Early::Nothing => vec![],
            Early::Copy => vec![copy],
            Early::Mirror => vec![Action::Truncate { max_len: 60 }, copy],
            Early::Tunnel => vec![Action::Clone(vec![tunnel(port), copy])],
            Early::Meter => vec![Action::Meter(meter.clone())],
            Early::Remark => vec![Action::Meter(remarking.clone())],
            Early::Sample => vec![Action::Sample { probability: u32::MAX, actions: vec![Action::PopVlan, copy] }],
            Early::Report => report(u32::MAX),
            Early::Seldom => report(u32::MAX / 8),
            Early::Clear => vec![Action::CtClear],
            Early::Route => route(),
            Early::Tos => vec![set(Field::NwTos, HIGH_TOS.into())],
            Early::Pop => vec![Action::PopVlan],
            Early::Push => vec![Action::PushVlan { tpid: 0x8100, tci: 3 }],
            Early::Tag => vec![set(Field::VlanTci, 0x1003)],
            Early::PopCopyRoute => [vec![Action::PopVlan, copy], route()].concat(),
            Early::Address => vec![set(Field::NwSrc, 0x0a00_0063)],
        }
    }
}

/// What programs do that have no compact form, or one with copies.
#[derive(Clone, Copy, Default, Debug)]
enum Before {
    #[default]
    Nothing,
    /// All of it is copied.
    Copy,
    /// The beginning is copied, as for a mirror.
    Mirror,
    /// Few packets pass a meter.
    Meter,
    /// A copy has a tag, the packet has none.
    Tag,
    /// All are samples for a collector.
    Report,
}

/// Samples for a collector.
fn report(probability: u32) -> Vec<Action> {
    let sflow = SflowPunt { bridge: 1, vlan_tci: 0, output: 0, tunnel: None, mpls: Vec::new() };
    let punt = Action::Punt(Arc::new(Punt::Sflow(sflow)));
    vec![Action::Sample { probability, actions: vec![punt] }]
}

impl Rules {
    /// The zone of the second pass.
    fn zone_again(self) -> u16 {
        self.zone + if self.second { 7 } else { 0 }
    }

    /// Whether clients have another address outside.
    fn is_public(self) -> bool {
        self.nat || self.second && self.second_nat
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let bools = any::<[bool; 11]>();
    let before = prop_oneof![
        4 => Just(Before::Nothing), 1 => Just(Before::Copy), 1 => Just(Before::Mirror), 1 => Just(Before::Meter), 1 => Just(Before::Tag),
        1 => Just(Before::Report)
    ];
    let early = (Early::any(), Early::any(), prop::bool::weighted(0.3));
    (bools, 0..2u16, before, early).prop_map(
        |(
            [nat, mark, commits_all, rewrites, thrice, tos, tunnel, from_tunnel, ends, second, second_nat],
            zone,
            before,
            (first, mut again, hash),
        )| {
            let ends = ends && from_tunnel;
            // Packets come to one sampling step in the same order, but not to two.
            let is_seldom = matches!(first, Early::Seldom);
            if is_seldom && matches!(again, Early::Report | Early::Sample) || matches!(again, Early::Seldom) {
                again = Early::Nothing;
            }
            let before = if is_seldom && matches!(before, Before::Report) { Before::Nothing } else { before };
            Rules {
                nat,
                zone,
                mark,
                commits_all,
                rewrites,
                thrice,
                tos,
                tunnel,
                from_tunnel,
                ends,
                second,
                second_nat,
                before,
                first,
                again,
                hash,
            }
        },
    )
}

/// Puts packets that leave by this port into a tunnel.
fn tunnel(port: PortNo) -> Action {
    let address = |last: u8| IpAddr::from([172, 31, 0, last]);
    let outer = Outer {
        src: address(1),
        dst: address(port.0 as u8),
        tos: 0,
        ttl: 64,
        dont_fragment: true,
        ports: (0, 4789),
        checksum: false,
    };
    let ethernet = [2, 0, 0, 0, 9, 2, 2, 0, 0, 0, 9, 1, 8, 0];
    let protocol = Protocol::Vxlan { group_policy: false };
    let headers = Prepared::new(&ethernet, &outer, protocol, &Header::Vxlan { vni: 7, group: None }).unwrap();
    let push = Encapsulation::new(PortNo(9), port, 4, headers, SourcePorts::default(), None);
    Action::TunnelPush(Arc::new(push))
}

/// Flows between the first two ports; the third one gets what is invalid.
fn install(switch: &ByHand, rules: Rules) -> Vec<FlowId> {
    let (dp, _, p) = switch;
    let invalid = p[2].0;
    let [inside, outside] = [false, true].map(|reply| {
        if !rules.from_tunnel {
            return p[usize::from(reply)].0;
        }
        let (name, kind, protocol) = match reply {
            false => ("vxlan_sys_4789", "vxlan", Protocol::Vxlan { group_policy: false }),
            true => ("genev_sys_6081", "geneve", Protocol::Geneve),
        };
        let port = dp.add_port(TunnelPort::new(name, kind)).unwrap();
        assert_eq!(port, tunnel_port(reply));
        let pop = Decapsulation { port, protocol, erspan: None };
        dp.install(flow(p[usize::from(reply)].0, 0, &[], vec![Action::TunnelPop(pop)])).unwrap();
        port
    });
    let sends_to = |port: PortNo| p[usize::from(port == outside)].0;
    let ct = |request: Request| Action::Ct(Arc::new(request));
    // The zones of the passes, and whether packets are translated there: answers come through in the opposite order.
    let zones = |port: PortNo| match (rules.second, port == outside) {
        (false, _) => [(rules.zone, rules.nat); 2],
        (true, false) => [(rules.zone, rules.nat), (rules.zone_again(), rules.second_nat)],
        (true, true) => [(rules.zone_again(), rules.second_nat), (rules.zone, rules.nat)],
    };
    let look =
        |(zone, nat): (u16, bool)| ct(Request { zone, nat: nat.then_some(Translate::AsBefore), ..Request::default() });
    let commit = |v6: bool, zone: u16, translates: bool| {
        let address = if v6 { "2001:db8:7::7".parse().unwrap() } else { [203, 0, 113, 7].into() };
        let addresses = Some((address, address));
        let nat = Nat { side: Side::Src, addresses, ports: None, choice: Choice::Hash, persistent: false };
        let nat = translates.then_some(Translate::New(nat));
        let mark = rules.mark.then_some((5, 0xff));
        ct(Request { zone, commit: true, nat, mark, ..Request::default() })
    };
    let meters = Arc::<MeterNumbers>::default();
    let bands = [
        MeterBand { rate: 5, burst: 5, kind: MeterBandKind::Remark(1) },
        MeterBand { rate: 20, burst: 20, kind: MeterBandKind::Drop },
    ];
    let new_meter = |bands: &[MeterBand]| meters.add(MeterUnit::Packets, bands, dp.now()).unwrap();
    let meter = new_meter(&bands);
    // In other batches, packets come to one meter in the same order, but not to one that they pass twice.
    let [first_limits, limits, last_limits] = std::array::from_fn(|_| [new_meter(&bands[1..]), new_meter(&bands[..1])]);
    let to = |port: PortNo| {
        let port = sends_to(port);
        let copy = || Action::Output(invalid);
        let mut actions = match rules.before {
            Before::Nothing => vec![],
            Before::Copy => vec![copy()],
            Before::Mirror => vec![Action::Truncate { max_len: 60 }, copy()],
            Before::Meter => vec![Action::Meter(meter.clone())],
            Before::Report => report(u32::MAX),
            Before::Tag => vec![Action::PushVlan { tpid: 0x8100, tci: 7 }, copy(), Action::PopVlan],
        };
        if rules.rewrites {
            actions.push(Action::Set(Arc::new(Rewrite::field(Field::DlDst, 0x0600_0000_0001))));
        }
        if rules.tunnel {
            actions.push(tunnel(port));
        }
        actions.push(Action::Output(port));
        actions
    };
    // Of the second pass, for these bits of ct_state.
    let after = |port: PortNo, recirc: u32, dl_type: u128, bits: CtState, all: CtState, actions: Vec<Action>| {
        let mut spec = flow(port, recirc, &[(Field::DlType, dl_type)], actions);
        spec.key.set(Field::CtState, bits.0.into());
        spec.mask.add(Field::CtState, all.0.into());
        spec
    };
    let (new, est, inv) = (CtState::NEW, CtState::EST, CtState::INV);
    let mut specs: Vec<FlowSpec> = Vec::new();
    for (dl_type, v6) in [(0x0800, false), (0x86dd, true)] {
        for (port, other) in [(inside, outside), (outside, inside)] {
            let [again, at_last] = [&limits, &last_limits].map(|limits| rules.again.actions(invalid, limits));
            let looks =
                [rules.first.actions(invalid, &first_limits), vec![look(zones(port)[0]), Action::Recirc(1)]].concat();
            specs.push(flow(port, 0, &[(Field::DlType, dl_type)], looks));
            let mask = TRK | new | est | inv;
            specs.push(after(port, 1, dl_type, TRK | inv, mask, vec![Action::Output(invalid)]));
            let thrice = rules.thrice || rules.second;
            let hash = Action::Hash { algorithm: HashAlgorithm::L4, basis: 0 };
            let last = if rules.hash { [at_last, vec![hash, Action::Recirc(3)]].concat() } else { to(other) };
            let tracked = || [again.clone(), vec![look(zones(port)[1]), Action::Recirc(2)]].concat();
            let established = if thrice { tracked() } else { last.clone() };
            if rules.hash {
                for (bit, actions) in [(0, to(other)), (1, vec![Action::Output(invalid)])] {
                    let mut spec = flow(port, 3, &[(Field::DlType, dl_type)], actions);
                    spec.key.set(Field::DpHash, bit);
                    spec.mask.add(Field::DpHash, 1);
                    specs.push(spec);
                }
            }
            specs.push(after(port, 1, dl_type, TRK | est, mask, established.clone()));
            specs.push(after(port, 2, dl_type, TRK | est, mask, last));
            let last = if thrice { specs.len() - 1 } else { specs.len() - 2 };
            if rules.tos {
                let mut high = after(
                    port,
                    specs[last].key.common().recirc_id.get(),
                    dl_type,
                    TRK | est,
                    mask,
                    vec![Action::Output(invalid)],
                );
                high.key.set(Field::NwTos, HIGH_TOS.into());
                [&mut high.mask, &mut specs[last].mask].into_iter().for_each(|mask| mask.set_exact(Field::NwTos));
                specs.push(high);
            }
            if rules.ends {
                // Those of the second end, told by the address of one tunnel, and by the option of the other one.
                let one = &mut specs[last];
                let (key, mask) = (one.key.clone(), one.mask.clone());
                let mut other = FlowSpec { key, mask, actions: vec![Action::Output(invalid)], tag: Arc::new(()) };
                for (spec, end) in [(one, ENDS[0]), (&mut other, ENDS[1])] {
                    if port == inside {
                        spec.key.set(Field::TunSrc, 0xac1f_0000 | u128::from(end));
                        spec.mask.set_exact(Field::TunSrc);
                    } else {
                        let option = &mut spec.key.block_mut(BlockId::TunMeta0).0[..8];
                        option.copy_from_slice(&[0xff, 0xff, 1, 1, 0, 0, 0, end]);
                        spec.mask.0.block_mut(BlockId::TunMeta0).0[..8].fill(0xff);
                    }
                }
                specs.push(other);
            }
            specs.push(after(port, 2, dl_type, TRK | inv, mask, vec![Action::Output(invalid)]));
            for (recirc, (zone, nat)) in (1..).zip(zones(port)) {
                let then = if rules.second && recirc == 1 { established.clone() } else { to(other) };
                let commits = port == inside || rules.commits_all;
                let actions = if commits { [vec![commit(v6, zone, nat)], then].concat() } else { vec![] };
                specs.push(after(port, recirc, dl_type, TRK | new, mask, actions));
            }
        }
    }
    specs.into_iter().map(|spec| dp.install(spec).unwrap()).collect()
}

/// Flows that match fields of which no packet has the value.
fn flows_for_none(switch: &ByHand, rules: Rules, n: usize) -> Vec<FlowId> {
    let (dp, _, p) = switch;
    let fields = [
        Field::VlanTci,
        Field::NwTtl,
        Field::TunTtl,
        Field::TcpDst,
        Field::CtMark,
        Field::DlSrc,
        Field::TunIpv6Src,
        Field::NwTos,
    ];
    let fields = [fields[n % fields.len()], fields[n / 3 % fields.len()]].map(|field| (field, 0xf0));
    let port = |reply: bool| if rules.from_tunnel { tunnel_port(reply) } else { p[usize::from(reply)].0 };
    let stages = [false, true].into_iter().flat_map(|reply| [(port(reply), 0), (port(reply), n as u32 % 2 + 1)]);
    stages.map(|(port, recirc)| dp.install(flow(port, recirc, &fields, vec![])).unwrap()).collect()
}

/// A slow path that keeps what it gets, and its metadata.
#[derive(Default)]
struct Reports(Mutex<Vec<(Vec<u8>, String)>>);

impl Reports {
    /// What came since then, in no order, as copies have none.
    fn take(&self) -> Vec<(Vec<u8>, String)> {
        let mut reports = std::mem::take(&mut *self.0.lock().unwrap());
        reports.sort();
        reports
    }
}

impl Upcall for Reports {
    fn misses(&self, misses: &mut [Miss], _: Time) {
        misses.iter_mut().for_each(|miss| miss.verdict = Verdict::Drop(DropReason::Rule));
    }

    fn punt(&self, packet: &Packet, key: &Key, _: &Punt, _: Time) {
        let mut key = key.clone();
        // Collectors are not told of the rest.
        key.keep(Blocks::COMMON.with(BlockId::L3).with(BlockId::Tunnel).with(BlockId::TunMeta0));
        [Field::RecircId, Field::DpHash].into_iter().for_each(|field| key.set(field, 0));
        self.0.lock().unwrap().push((packet.data().to_vec(), format!("{key:?}")));
    }
}

/// All connections, in an order of their own.
fn connections(switch: &ByHand) -> Vec<Contents> {
    let (mut cursor, mut all) = (0, Vec::new());
    while switch.0.conntrack().tracker.table.dump(&mut cursor, 100, |_, contents| all.push(*contents)) {}
    all.sort_by_key(|contents| (contents.orig, contents.reply));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_short_way_does_what_the_long_way_does(
        rules in rules(),
        events in prop::collection::vec(event(), 1..120),
        disturb in prop::collection::vec((0..120usize, 0..9u8), 0..6),
    ) {
        let config = |caches| Config { exact_one_in: caches, ..Config::default() };
        let (short, long) = (by_hand(config(1), 3), by_hand(config(0), 3));
        let ids = [install(&short, rules), install(&long, rules)];
        let reports = [&short, &long].map(|switch| {
            let reports = Arc::<Reports>::default();
            switch.0.set_upcall(reports.clone());
            reports
        });
        let mut ends = Ends::default();
        let mut others = [Vec::new(), Vec::new()];
        for (n, event) in events.iter().enumerate() {
            let mut frame = event.frame(&mut ends, rules.is_public());
            let len = frame.len();
            if rules.from_tunnel {
                frame = tunnelled(&frame, event.reply, event.end);
            }
            let port = usize::from(event.reply);
            let mut sent = Vec::new();
            for ((switch, ids), others) in [&short, &long].into_iter().zip(&ids).zip(&mut others) {
                let (dp, clock, p) = switch;
                clock.advance(Duration::from_millis(100 * u64::from(event.after)));
                for (_, what) in disturb.iter().filter(|(at, _)| *at == n) {
                    let table = &dp.conntrack().tracker.table;
                    match what {
                        // Somebody changes marks, removes a connection, or changes what a flow does.
                        0 => for contents in connections(switch) {
                            let found = table.find(&contents.orig, dp.now());
                            found.and_then(|found| table.mark(found.connection, Some((9, 0xf)), None));
                        },
                        1 => if let Some(contents) = connections(switch).first() {
                            table.find(&contents.orig, dp.now()).map(|found| table.remove(found.connection));
                        },
                        2 => dp.modify(ids[2], vec![Action::Output(p[2].0)]).unwrap(),
                        // In a form that cannot be done so shortly.
                        3 => {
                            let output = vec![tunnel(p[1].0), Action::Output(p[2].0)];
                            let list = Action::CheckLength { size: 60, longer: output.clone(), others: output };
                            dp.modify(ids[2], vec![list]).unwrap();
                        }
                        // Flows come that are for none of these packets, and have others look at more; and go.
                        4 => others.extend(flows_for_none(switch, rules, n)),
                        5 => drop(dp.remove_all(&std::mem::take(others))),
                        6 => dp.conntrack().set_fusing(n % 2 == 0),
                        7 => {
                            let spec = dp.flow(ids[1]).unwrap();
                            dp.modify(ids[1], spec.actions.to_vec()).unwrap();
                        }
                        _ => dp.conntrack().tracker.set_liberal(true),
                    }
                }
                for _ in 0..event.repeated {
                    let mut packet = Packet::from_slice(&frame);
                    *packet.offload_mut() = event.offload(frame.len() - len);
                    p[port].1.queues[0].lock().unwrap().push_back(packet);
                }
                while dp.poll() > 0 {}
                // Copies of the same packets by different flows have no order.
                let mut copies = p[2].1.take();
                copies.sort();
                sent.push([p[0].1.take(), p[1].1.take(), copies]);
            }
            prop_assert_eq!(&sent[0], &sent[1], "packet {}: {:?}", n, event);
            prop_assert_eq!(reports[0].take(), reports[1].take(), "after packet {}: {:?}", n, event);
            prop_assert_eq!(connections(&short), connections(&long), "after packet {}: {:?}", n, event);
        }
        for (a, b) in ids[0].iter().zip(&ids[1]) {
            prop_assert_eq!(short.0.flow_stats(*a), long.0.flow_stats(*b));
        }
    }
}

/// Packets of an established connection are not classified twice.
#[test]
fn established_packets_take_the_short_way() {
    let cases = [(false, false, false), (true, false, false), (true, true, false), (false, true, true)];
    let ways =
        [(false, false, false), (true, false, false), (false, true, false), (true, true, true), (false, false, true)];
    let all = cases.into_iter().flat_map(|case| ways.map(|way| (case, way)));
    let befores = [Before::Nothing, Before::Copy, Before::Mirror, Before::Meter, Before::Tag, Before::Report];
    let all = all.flat_map(|case| befores.map(|before| (case, before)));
    for (((nat, tcp, v6), (tunnel, from_tunnel, second)), before) in all {
        let switch = by_hand(Config::default(), 3);
        let rules = Rules {
            nat,
            zone: 1,
            mark: true,
            rewrites: true,
            tunnel,
            from_tunnel,
            ends: from_tunnel,
            second,
            before,
            ..Rules::default()
        };
        install(&switch, rules);
        let (dp, _, p) = &switch;
        let mut ends = Ends::default();
        let mut give = |reply: bool, flags: u16, count: usize| {
            let tcp = tcp.then_some((flags, 0));
            let event = Event { client: 0, reply, tcp, v6, data: 3, ..Event::default() };
            for _ in 0..count {
                let frame = event.frame(&mut ends, nat);
                let frame = if from_tunnel { tunnelled(&frame, reply, 0) } else { frame };
                p[usize::from(reply)].1.give(&frame);
                while dp.poll() > 0 {}
            }
        };
        // To leave a tunnel is a pass.
        let passes = u64::from(from_tunnel);
        give(false, 0x02, 1);
        give(true, 0x12, 1);
        for _ in 0..2 {
            give(false, 0x10, 2);
            give(true, 0x10, 2);
        }
        let (so_far, copies) = (dp.stats().workers[0].recirculated, p[2].1.sent());
        give(false, 0x10, 20);
        give(true, 0x10, 20);
        let after = dp.stats().workers[0].recirculated;
        assert_eq!(after, so_far + 40 * passes, "nat {nat}, tcp {tcp}, v6 {v6}, {rules:?}");
        let copied = matches!(before, Before::Copy | Before::Mirror | Before::Tag);
        assert_eq!(p[2].1.sent(), copies + if copied { 40 } else { 0 }, "{rules:?}");
        dp.conntrack().set_fusing(false);
        give(false, 0x10, 20);
        assert_eq!(dp.stats().workers[0].recirculated, after + 20 * (1 + passes + u64::from(second)), "switched off");
    }
}

/// Whatever else is done with them before they are tracked, and in between.
#[test]
fn what_comes_before_tracking_is_done_on_the_short_way() {
    let cases = [(false, false), (true, true)];
    let ways =
        [(false, false, false), (true, false, false), (false, true, false), (true, true, true), (false, false, true)];
    let all = cases.into_iter().flat_map(|case| ways.map(|way| (case, way)));
    let earlies =
        Early::ALL.into_iter().flat_map(|early| [(early, Early::Nothing), (Early::Nothing, early), (early, early)]);
    let all = all.flat_map(|case| earlies.clone().map(move |early| (case, early)));
    for (((nat, tcp), (from_tunnel, second, hash)), (first, again)) in all {
        // On the short way it is not known what lies behind a second tag, nor which packets are remarked.
        let again_twice = second && hash;
        // Nobody answers another address.
        if [first, again].iter().any(|early| matches!(early, Early::Remark | Early::Address))
            || matches!((first, again), (Early::Push, Early::Push))
            || again_twice && matches!(again, Early::Push)
        {
            continue;
        }
        let switch = by_hand(Config::default(), 3);
        let rules = Rules { nat, zone: 1, rewrites: true, from_tunnel, second, hash, first, again, ..Rules::default() };
        install(&switch, rules);
        let (dp, clock, p) = &switch;
        let mut ends = Ends::default();
        let mut give = |reply: bool, flags: u16, count: usize| {
            let tcp = tcp.then_some((flags, 0));
            let event = Event { client: 0, reply, tcp, data: 3, ..Event::default() };
            for _ in 0..count {
                clock.advance(Duration::from_millis(200));
                let frame = event.frame(&mut ends, nat);
                let frame = if from_tunnel { tunnelled(&frame, reply, 0) } else { frame };
                p[usize::from(reply)].1.give(&frame);
                while dp.poll() > 0 {}
            }
        };
        give(false, 0x02, 1);
        give(true, 0x12, 1);
        for _ in 0..2 {
            give(false, 0x10, 2);
            give(true, 0x10, 2);
        }
        let passes = u64::from(from_tunnel);
        let so_far = (dp.stats().workers[0].recirculated, p[0].1.sent() + p[1].1.sent());
        give(false, 0x10, 20);
        give(true, 0x10, 20);
        let after = (dp.stats().workers[0].recirculated, p[0].1.sent() + p[1].1.sent());
        assert_eq!(after.0, so_far.0 + 40 * passes, "nat {nat}, tcp {tcp}, {rules:?}");
        assert!(hash || after.1 == so_far.1 + 40, "nat {nat}, tcp {tcp}, {rules:?}");
    }
}

/// Neither do those of a connection that nobody answers, though each of them is committed.
#[test]
fn unanswered_packets_take_the_short_way() {
    for (tunnel, second) in [(false, false), (true, false), (false, true), (true, true)] {
        let switch = by_hand(Config::default(), 3);
        install(&switch, Rules { nat: true, rewrites: tunnel, tunnel, second, ..Rules::default() });
        let (dp, _, p) = &switch;
        let event = Event { client: 1, data: 3, ..Event::default() };
        let give = |count: usize| {
            for _ in 0..count {
                p[0].1.give(&event.frame(&mut Ends::default(), true));
                dp.poll();
            }
        };
        give(4);
        let before = dp.stats().workers[0].recirculated;
        give(20);
        assert_eq!(
            (dp.stats().workers[0].recirculated, p[1].1.sent()),
            (before, 24),
            "tunnel {tunnel}, second {second}"
        );
    }
}

/// One packet of a batch goes the long way, for its window is larger than any before: those behind it of the same connection
/// follow, those of others need not.
#[test]
fn nothing_overtakes_a_packet_that_goes_the_long_way() {
    let switch = by_hand(Config::default(), 3);
    let rules = Rules { zone: 1, rewrites: true, ..Rules::default() };
    install(&switch, rules);
    let (dp, _, p) = &switch;
    let mut ends = Ends::default();
    let mut frame = |client, reply, flags, data| {
        let tcp = Some((flags, 0));
        Event { client, reply, tcp, data, ..Event::default() }.frame(&mut ends, false)
    };
    for (reply, flags) in [(false, 0x02), (true, 0x12), (false, 0x10), (false, 0x10), (false, 0x10)] {
        for client in [0, 1] {
            p[usize::from(reply)].1.give(&frame(client, reply, flags, 0));
            dp.poll();
        }
    }
    p[1].1.take();
    let before = dp.stats().workers[0].recirculated;
    let given: Vec<_> = [(0, 1), (0, 2), (0, 3), (1, 4), (0, 5), (0, 6)]
        .into_iter()
        .map(|(client, data)| {
            let mut frame = frame(client, false, 0x10, data);
            if data == 2 {
                let [window, sum] = [48, 50].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
                frame[48..50].copy_from_slice(&(window + 1).to_be_bytes());
                frame[50..52].copy_from_slice(&(sum - 1).to_be_bytes());
            }
            frame
        })
        .collect();
    given.iter().for_each(|frame| p[0].1.give(frame));
    dp.poll();
    let of = |client: u8, frames: &[Vec<u8>]| -> Vec<u8> {
        let port = 1000 + u16::from(client);
        // The last byte of the IP header's length tells them apart.
        frames.iter().filter(|frame| frame[34..36] == port.to_be_bytes()).map(|frame| frame[17]).collect()
    };
    let sent = p[1].1.take();
    assert_eq!((sent.len(), of(0, &sent), of(1, &sent)), (6, of(0, &given), of(1, &given)));
    assert_eq!(dp.stats().workers[0].recirculated, before + 4, "one, and three behind it");
}

/// Also frames whose length does not fit where those of others do, when a tag is removed.
#[test]
fn lengths_of_all_sizes_are_followed() {
    let switch = by_hand(Config::default(), 3);
    install(&switch, Rules { zone: 1, first: Early::Pop, ..Rules::default() });
    let (dp, _, p) = &switch;
    let give = |len: usize, reply: bool| {
        let (from, to) = if reply { (80, 1000) } else { (1000, 80) };
        let addresses = [[10, 0, 0, 1].into(), [192, 0, 2, 1].into()];
        let [src, dst] = if reply { [addresses[1], addresses[0]] } else { addresses };
        let datagram = build::udp(from, to, &vec![7; len - 18 - 20 - 8]);
        let datagram = build::Ipv4 { src, dst, proto: 17, ..Default::default() }.packet(datagram);
        p[usize::from(reply)].1.give(&build::ethernet([2; 6], [4; 6], &[(0x8100, 1)], 0x0800, &datagram));
        dp.poll();
    };
    (0..3).for_each(|_| [false, true].into_iter().for_each(|reply| give(100, reply)));
    let before = dp.stats().workers[0].recirculated;
    p[1].1.take();
    let lengths = [64, 100, 1518, 32_767, 32_768, 32_771, 32_772, 60_000];
    lengths.into_iter().for_each(|len| give(len, false));
    assert_eq!(dp.stats().workers[0].recirculated, before);
    // The port does not take the others.
    assert_eq!(p[1].1.take().iter().map(Vec::len).collect::<Vec<_>>(), [60, 96, 1514]);
}
