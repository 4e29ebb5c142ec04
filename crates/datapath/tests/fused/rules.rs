//! Flows that track packets, and do this and that with them before and behind it.

use std::net::IpAddr;
use std::sync::Arc;

use super::packets::{ENDS, HIGH_TOS, tunnel_port};
use crate::common::{ByHand, flow};
use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use conntrack::{CtState, Request};
use datapath::meter::{Meter, MeterBand, MeterBandKind, MeterNumbers, MeterUnit};
use datapath::{
    Action, Decapsulation, Encapsulation, FlowId, FlowSpec, HashAlgorithm, PortNo, Punt, Rewrite, SflowPunt,
};
use packet::Field;
use packet::flow::BlockId;
use ports::tunnel::TunnelPort;
use proptest::prelude::*;
use tunnel::header::{Header, Protocol};
use tunnel::outer::{Outer, Prepared};
use tunnel::send::SourcePorts;

const TRK: CtState = CtState::TRK;

/// What flows do with packets that have been tracked.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rules {
    pub nat: bool,
    pub zone: u16,
    pub mark: bool,
    /// New packets are committed again, also where there is a connection.
    pub commits_all: bool,
    /// Rewrites a MAC address in the end.
    pub rewrites: bool,
    /// Established packets are classified once more.
    pub thrice: bool,
    /// In the end, they go different ways by their TOS.
    pub tos: bool,
    /// In the end, packets enter a tunnel.
    pub tunnel: bool,
    /// In the beginning, they come out of one.
    pub from_tunnel: bool,
    /// In the end, they go different ways by where that tunnel comes from.
    pub ends: bool,
    /// Established packets are tracked in a second zone.
    pub second: bool,
    /// There they are translated.
    pub second_nat: bool,
    /// What is done before packets are sent.
    pub before: Before,
    /// Before they are tracked for the first time.
    pub first: Early,
    /// Before they are tracked again, or after they were tracked.
    pub again: Early,
    /// In the end, they go different ways by their hash.
    pub hash: bool,
}

/// What programs do before packets are tracked.
#[derive(Clone, Copy, Default, Debug)]
pub enum Early {
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
    pub const ALL: [Early; 17] = [
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

    pub fn any() -> impl Strategy<Value = Early> {
        prop_oneof![10 => Just(Early::Nothing), 14 => prop::sample::select(Early::ALL.to_vec())]
    }

    /// The actions. Copies go to this port; the second meter remarks.
    pub fn actions(self, port: PortNo, [meter, remarking]: &[Arc<Meter>; 2]) -> Vec<Action> {
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
pub enum Before {
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
pub fn report(probability: u32) -> Vec<Action> {
    let sflow = SflowPunt { bridge: 1, vlan_tci: 0, output: 0, tunnel: None, mpls: Vec::new() };
    let punt = Action::Punt(Arc::new(Punt::Sflow(sflow)));
    vec![Action::Sample { probability, actions: vec![punt] }]
}

impl Rules {
    /// The zone of the second pass.
    pub fn zone_again(self) -> u16 {
        self.zone + if self.second { 7 } else { 0 }
    }

    /// Whether clients have another address outside.
    pub fn is_public(self) -> bool {
        self.nat || self.second && self.second_nat
    }
}

pub fn rules() -> impl Strategy<Value = Rules> {
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
pub fn tunnel(port: PortNo) -> Action {
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
pub fn install(switch: &ByHand, rules: Rules) -> Vec<FlowId> {
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
pub fn flows_for_none(switch: &ByHand, rules: Rules, n: usize) -> Vec<FlowId> {
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
