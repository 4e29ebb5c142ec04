//! The switch beside the reference: what comes out of both, and what both count, for tables, packets and
//! changes that are made at random. [`super::properties`] and [`super::fuzz`] say at random by what.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use datapath::sync::clock::ManualClock;
use datapath::{Config, Datapath};
use openflow::group::{Bucket, GroupSpec, GroupType};
use openflow::{
    Action, FlowMod, FlowModCommand, FlowStats, FlowStatsRequest, GroupId, Instructions, Match, OfPort, Subfield,
    TableId, WriteMetadata,
};
use packet::flow::VLAN_PRESENT;
use packet::{Clock, Field, Time};
use ports::dummy::Dummy;
use ports::registry::{self, Env};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use protocols::spanning_tree::State;

use super::choices::{choice, selection};
use super::{RefRule, Reference};
use crate::bridge::Bridge;
use crate::model::config::{BridgeConfig, FailMode};
use crate::model::mirror::{Mirror, MirrorOutput, PortSelection};
use crate::model::port::PortSpec;
use crate::model::vlan::{PortVlan, PriorityTags, VlanMode};
use crate::switch::{Switch, SwitchSettings};

pub(super) const PORTS: u32 = 4;
const TABLES: u8 = 4;
const GROUPS: u32 = 3;

/// A switch with dummy ports and a clock that stands still.
pub struct Bed {
    pub clock: Arc<ManualClock>,
    pub datapath: Arc<Datapath>,
    pub switch: Arc<Switch>,
    pub bridge: Bridge,
    pub devices: Vec<Arc<Dummy>>,
    pub env: Env,
}

#[cfg_attr(fuzzing, allow(dead_code))]
impl Bed {
    pub fn new(ports: u32) -> Bed {
        Bed::with(ports, Config::default())
    }

    /// With limits of one's own.
    pub fn with(ports: u32, config: Config) -> Bed {
        let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
        let datapath = Datapath::new(Config { exact_entries: 256, ..config }, clock.clone());
        let switch = Switch::new(SwitchSettings::default(), clock.clone());
        switch.attach(datapath.clone());
        let config = BridgeConfig { fail_mode: FailMode::Secure, ..BridgeConfig::new("br0", 1) };
        let bridge = switch.add_bridge(config).unwrap();
        let mut bed = Bed { clock, datapath, switch, bridge, devices: Vec::new(), env: Env::default() };
        for n in 1..=ports {
            bed.add_port(&format!("p{n}"));
        }
        bed
    }

    pub fn add_port(&mut self, name: &str) -> OfPort {
        let port = registry::open(&registry::PortSpec::new(name, "dummy"), &self.env).unwrap();
        port.set_admin_up(true).unwrap();
        self.devices.push(self.env.dummies.find(name).unwrap());
        self.bridge.add_port(PortSpec::new(port)).unwrap()
    }

    /// Receives a frame and returns what was sent, by port.
    pub fn receive(&self, port: OfPort, frame: &[u8]) -> Vec<(OfPort, Vec<u8>)> {
        assert!(self.devices[port.0 as usize - 1].inject(frame));
        self.poll();
        self.sent()
    }

    pub fn poll(&self) {
        while self.datapath.poll() > 0 {}
        // What comes back from the slow path is not received, and takes turns of its own.
        for _ in 0..4 {
            self.datapath.poll();
        }
    }

    pub fn sent(&self) -> Vec<(OfPort, Vec<u8>)> {
        let devices = self.devices.iter().zip(1..);
        devices.flat_map(|(device, n)| device.take_sent().into_iter().map(move |frame| (OfPort(n), frame))).collect()
    }

    /// Has a port be in a state of a spanning tree, which no tree says.
    pub fn set_tree_state(&self, port: OfPort, state: Option<State>) {
        self.bridge.with_port(port, |port| port.spanning_tree.state = state).unwrap();
    }

    pub fn put_group(&self, id: u32, spec: &GroupSpec) {
        let mut forwarding = self.switch.forwarding.write();
        let generation = forwarding.next_generation();
        let bridge = forwarding.bridges.get_mut(&self.bridge.id()).unwrap();
        let group = crate::model::group::Group::new(GroupId(id), spec.clone(), self.clock.now());
        bridge.set_group(GroupId(id), Some(Arc::new(group)));
        bridge.group_changes.note(id, generation);
    }

    pub fn add_flow(&self, table: u8, priority: u16, matching: Match, actions: Vec<Action>) {
        let mut change = FlowMod::new(FlowModCommand::Add, matching, Instructions::apply(actions));
        (change.table, change.priority) = (Some(TableId(table)), priority);
        self.bridge.flow_mod(&change).unwrap();
    }
}

/// Every flow of a bridge.
pub fn all_flows() -> FlowStatsRequest {
    FlowStatsRequest {
        matching: Match::any(),
        table: TableId::ALL,
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        cookie: Default::default(),
    }
}

pub(super) const MACS: [[u8; 6]; 6] = [
    [2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2],
    [2, 0, 0, 0, 0, 3],
    [2, 0, 0, 0, 0, 4],
    [0xff; 6],
    [1, 0x80, 0xc2, 0, 0, 1],
];
const ADDRESSES: [u32; 4] = [0x0a00_0001, 0x0a00_0002, 0x0a01_0001, 0x8a00_0001];
const L4: [u16; 3] = [80, 443, 0x1050];

/// What a rule can rely on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Any,
    Ip,
    Tcp,
    Udp,
    Ipv6,
    Arp,
}

impl Kind {
    pub fn headers(self) -> &'static [(Field, u128)] {
        match self {
            Kind::Any => &[],
            Kind::Ip => &[(Field::DlType, 0x0800)],
            Kind::Tcp => &[(Field::DlType, 0x0800), (Field::NwProto, 6)],
            Kind::Udp => &[(Field::DlType, 0x0800), (Field::NwProto, 17)],
            Kind::Ipv6 => &[(Field::DlType, 0x86dd)],
            Kind::Arp => &[(Field::DlType, 0x0806)],
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct RuleSpec {
    pub table: u8,
    pub priority: u16,
    pub matching: Match,
    pub instructions: Instructions,
}

fn field(field: Field, values: Vec<u128>, masks: Vec<u128>) -> BoxedStrategy<(Field, u128, u128)> {
    (select(values), select(masks)).prop_map(move |(value, mask)| (field, value, mask)).boxed()
}

const ALL: u128 = u128::MAX;

pub(super) fn match_of(kind: Kind) -> impl Strategy<Value = Match> {
    let macs: Vec<u128> = MACS.iter().map(|mac| openflow::EthAddr(*mac).to_value()).collect();
    let present = u128::from(VLAN_PRESENT);
    let vlans = vec![present | 5, present | 6, 0, present, present | 0x6005];
    let addresses: Vec<u128> = ADDRESSES.iter().map(|&a| a.into()).collect();
    let prefixes = vec![0xffff_ffff, 0xffff_0000, 0xff00_0000, 0x8000_0000];
    let ports: Vec<u128> = L4.iter().map(|&p| p.into()).collect();
    let mut fields = vec![
        field(Field::InPortOxm, (1..=PORTS.into()).collect(), vec![ALL]),
        field(Field::DlSrc, macs.clone(), vec![ALL, 0x0100_0000_0001]),
        field(Field::DlDst, macs, vec![ALL, 0x0100_0000_0000]),
        field(Field::VlanTci, vlans, vec![0x1fff, 0x1000, 0xffff]),
        field(Field::Reg0, vec![0, 1, 2], vec![ALL, 1]),
        field(Field::Metadata, vec![0, 1, 2], vec![ALL, 2]),
    ];
    if matches!(kind, Kind::Ip | Kind::Tcp | Kind::Udp) {
        fields.push(field(Field::NwSrc, addresses.clone(), prefixes.clone()));
        fields.push(field(Field::NwDst, addresses, prefixes));
        fields.push(field(Field::NwTtl, vec![1, 2, 64], vec![ALL]));
    }
    if kind == Kind::Tcp {
        fields.push(field(Field::TcpSrc, ports.clone(), vec![ALL, 0xf0]));
        fields.push(field(Field::TcpDst, ports.clone(), vec![ALL, 0xff]));
    }
    if kind == Kind::Udp {
        fields.push(field(Field::UdpDst, ports, vec![ALL, 0xf0]));
    }
    proptest::collection::vec(proptest::strategy::Union::new(fields), 0..3).prop_map(move |fields| {
        let mut matching = Match::any();
        kind.headers().iter().for_each(|&(field, value)| matching.set(field, value));
        fields.into_iter().for_each(|(field, value, mask)| matching.set_masked(field, value, mask));
        matching
    })
}

fn output() -> impl Strategy<Value = Action> {
    let reserved = vec![OfPort::NORMAL, OfPort::FLOOD, OfPort::ALL, OfPort::IN_PORT];
    prop_oneof![
        3 => (1..=PORTS + 1).prop_map(|n| Action::output(OfPort(n))),
        2 => select(reserved).prop_map(Action::output),
        2 => Just(Action::output(OfPort::NORMAL)),
    ]
}

fn set(field: Field, values: Vec<u128>) -> BoxedStrategy<Action> {
    select(values).prop_map(move |value| Action::set_field(field, value)).boxed()
}

/// Changes that a packet of this kind can have.
pub(super) fn write(kind: Kind) -> impl Strategy<Value = Action> {
    let mac = |n: usize| openflow::EthAddr(MACS[n]).to_value();
    let addresses = vec![0x0a00_0001, 0x0a00_0009, 0x0a01_0001];
    let mut list = vec![
        set(Field::DlSrc, vec![mac(0), mac(1)]),
        set(Field::DlDst, vec![mac(0), mac(2), mac(4)]),
        select(vec![5u16, 6, 0]).prop_map(|vid| Action::SetVlanVid { vid, push: true }).boxed(),
        select(vec![0x8100u16, 0x88a8]).prop_map(Action::PushVlan).boxed(),
        Just(Action::StripVlan).boxed(),
        Just(Action::DecTtl).boxed(),
        Just(Action::SetField { field: Field::DlDst, value: 2, mask: 3 }).boxed(),
    ];
    match kind {
        Kind::Ip | Kind::Tcp | Kind::Udp => {
            list.push(set(Field::NwSrc, addresses.clone()));
            list.push(set(Field::NwDst, addresses));
            list.push(set(Field::NwTtl, vec![1, 9]));
            list.push(set(Field::IpDscp, vec![0, 10]));
        }
        Kind::Ipv6 => list.push(set(Field::Ipv6Dst, vec![1, 0xfe80 << 112])),
        Kind::Arp => list.push(set(Field::ArpSpa, addresses)),
        Kind::Any => {}
    }
    match kind {
        Kind::Tcp => list.push(set(Field::TcpDst, vec![80, 8080])),
        Kind::Udp => list.push(set(Field::UdpSrc, vec![80, 8080])),
        _ => {}
    }
    proptest::strategy::Union::new(list)
}

fn apply(kind: Kind, table: u8) -> BoxedStrategy<Action> {
    let mv = Subfield::new(Field::DlSrc, 0, 2).unwrap();
    let reg = Subfield::new(Field::Reg0, 0, 2).unwrap();
    let mut list = vec![
        (6, output().boxed()),
        (2, (0..GROUPS).prop_map(|id| Action::Group(GroupId(id))).boxed()),
        (6, write(kind).boxed()),
        (1, set(Field::Reg0, vec![0, 1, 2])),
        (1, Just(Action::RegMove { src: mv, dst: reg }).boxed()),
        (1, Just(Action::SetVlanPcp { pcp: 3, push: false }).boxed()),
        (1, Just(Action::Exit).boxed()),
        (2, choice(PORTS).boxed()),
        (1, Just(Action::DebugRecirc).boxed()),
        (
            2,
            proptest::collection::vec(prop_oneof![write(kind).boxed(), output().boxed()], 1..3)
                .prop_map(Action::Clone)
                .boxed(),
        ),
    ];
    if table + 1 < TABLES {
        let resubmit = (table + 1..TABLES, select(vec![OfPort::IN_PORT, OfPort(2)]))
            .prop_map(|(table, in_port)| Action::Resubmit { in_port, table: TableId(table), with_ct: false });
        list.push((4, resubmit.boxed()));
    }
    proptest::strategy::Union::new_weighted(list).boxed()
}

pub(super) fn rule() -> impl Strategy<Value = RuleSpec> {
    let kinds = vec![Kind::Any, Kind::Any, Kind::Ip, Kind::Tcp, Kind::Udp, Kind::Ipv6, Kind::Arp];
    (select(vec![0, 0, 0, 1, 1, 2, 3]), 0u16..8, select(kinds)).prop_flat_map(|(table, priority, kind)| {
        let goto = if table + 1 < TABLES {
            proptest::option::of((table + 1..TABLES).prop_map(TableId)).boxed()
        } else {
            Just(None).boxed()
        };
        let written = proptest::collection::vec(
            prop_oneof![
                4 => output().boxed(),
                4 => write(kind).boxed(),
                1 => (0..GROUPS).prop_map(|id| Action::Group(GroupId(id))).boxed(),
            ],
            0..3,
        );
        let metadata = proptest::option::weighted(0.2, select(vec![1u64, 2]));
        (
            match_of(kind),
            proptest::collection::vec(apply(kind, table), 0..4),
            proptest::option::weighted(0.3, written),
            proptest::bool::weighted(0.1),
            metadata,
            goto,
        )
            .prop_map(move |(matching, mut apply, write, clear, metadata, goto)| {
                // With nothing left to do, a packet that comes round again begins anew in table 0, as in OVS.
                if apply.contains(&Action::DebugRecirc) {
                    apply.push(Action::set_field(Field::Reg1, 0));
                }
                let instructions = Instructions {
                    meter: None,
                    apply,
                    clear,
                    write: write.unwrap_or_default(),
                    metadata: metadata.map(|value| WriteMetadata { value, mask: 3 }),
                    goto,
                };
                RuleSpec { table, priority, matching, instructions }
            })
    })
}

/// Frames of several kinds, of few addresses; some have a header that is cut short.
pub fn frame() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => whole_frame().boxed(), 1 => cut_frame().boxed()]
}

pub(super) fn cut_frame() -> impl Strategy<Value = Vec<u8>> {
    let cuts = vec![Cut::Frame, Cut::Packet, Cut::Packet, Cut::Length, Cut::Offset];
    (whole_frame(), select(cuts), any::<Index>()).prop_map(|(frame, cut, at)| malformed(frame, cut, at))
}

/// How a header is cut short.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// The frame ends in it.
    Frame,
    /// An IPv4 packet ends in its L4 header, by its own length.
    Packet,
    /// An IPv4 header has no room for itself.
    Length,
    /// A TCP header has no room for itself.
    Offset,
}

fn malformed(mut frame: Vec<u8>, cut: Cut, at: Index) -> Vec<u8> {
    let tags = (0..2).take_while(|n| frame[12 + 4 * n] == 0x81).count();
    let l3 = 14 + 4 * tags;
    let is_ip = frame[l3 - 2..l3] == [8, 0];
    let (is_tcp, proto) = (is_ip && frame[l3 + 9] == 6, frame[l3 + 9]);
    match cut {
        Cut::Length if is_ip => frame[l3] = 0x44,
        Cut::Offset if is_tcp => frame[l3 + 32] = 0x40,
        Cut::Packet if is_ip => {
            frame[l3 + 3] = 20 + at.index(if proto == 6 { 20 } else { 8 }) as u8;
            frame[l3 + 10..l3 + 12].fill(0);
            let sum =
                frame[l3..l3 + 20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
            let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
            frame[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        _ => frame.truncate(l3 + at.index(20)),
    }
    frame
}

fn whole_frame() -> impl Strategy<Value = Vec<u8>> {
    let tag = (select(vec![5u16, 6, 0]), select(vec![0u16, 0x6000])).prop_map(|(vid, pcp)| (0x8100u16, vid | pcp));
    let addr = || select(ADDRESSES.to_vec()).prop_map(std::net::Ipv4Addr::from);
    let port = || select(L4.to_vec());
    let ip = (addr(), addr(), select(vec![1u8, 2, 64]), port(), port(), any::<bool>()).prop_map(
        |(src, dst, ttl, a, b, tcp)| {
            use packet::wire::build;
            let payload = if tcp { build::tcp(a, b, 0x10, b"data") } else { build::udp(a, b, b"odd") };
            let proto = if tcp { 6 } else { 17 };
            let header = build::Ipv4 { src, dst, proto, ttl, ..build::Ipv4::default() };
            (0x0800u16, header.packet(payload))
        },
    );
    let arp = (addr(), addr(), 1u16..3)
        .prop_map(|(spa, tpa, op)| (0x0806u16, packet::wire::build::arp(op, [2, 0, 0, 0, 0, 1], spa, [0; 6], tpa)));
    let ip6 = (select(vec![1u8, 64]), port()).prop_map(|(ttl, port)| {
        use packet::wire::build;
        let header = build::Ipv6 { proto: 17, hop_limit: ttl, ..build::Ipv6::default() };
        (0x86ddu16, header.packet(build::udp(port, 53, b"six")))
    });
    let macs = (select(MACS.to_vec()), select(MACS[..4].to_vec()));
    (macs, proptest::collection::vec(tag, 0..3), prop_oneof![3 => ip.boxed(), 1 => arp.boxed(), 1 => ip6.boxed()])
        .prop_map(|((dst, src), tags, (ethertype, payload))| {
            packet::wire::build::ethernet(dst, src, &tags, ethertype, &payload)
        })
}

pub(super) fn vlan() -> impl Strategy<Value = PortVlan> {
    let modes = vec![
        VlanMode::Access,
        VlanMode::Trunk,
        VlanMode::Trunk,
        VlanMode::NativeTagged,
        VlanMode::NativeUntagged,
        VlanMode::Dot1qTunnel,
    ];
    let set = || proptest::option::of(select(vec![vec![5u16], vec![5, 6], vec![0, 6]]));
    let priority = vec![PriorityTags::Never, PriorityTags::Never, PriorityTags::IfNonzero, PriorityTags::Always];
    let protected = proptest::bool::weighted(0.2);
    let qinq = select(vec![0x8100u16, 0x88a8]);
    (select(modes), select(vec![5u16, 6]), set(), set(), qinq, select(priority), protected).prop_map(
        |(mode, tag, trunks, cvlans, qinq_ethertype, priority_tags, protected)| PortVlan {
            mode,
            tag: if mode == VlanMode::Trunk { 0 } else { tag },
            trunks: trunks.map(|set| set.into_iter().collect()),
            cvlans: cvlans.map(|set| set.into_iter().collect()),
            qinq_ethertype,
            priority_tags,
            protected,
        },
    )
}

/// Groups that a switch always has: a bucket sends to ports, or to groups of lower numbers.
pub(super) fn groups() -> impl Strategy<Value = Vec<GroupSpec>> {
    use GroupType::*;
    let kinds = vec![All, All, Indirect, FastFailover, Select, Select];
    let group = |n: u32| {
        let lower = move |id: u32| (id < n).then_some(Action::Group(GroupId(id)));
        let to_group = (0..GROUPS).prop_map(move |id| lower(id).unwrap_or(Action::output(OfPort(1))));
        let output = prop_oneof![3 => output().boxed(), 1 => to_group.boxed()];
        let writes = proptest::collection::vec(write(Kind::Any), 0..3);
        let watch = (proptest::option::of(1..=PORTS + 1), proptest::option::weighted(0.2, 0..GROUPS));
        let bucket = (writes, proptest::option::weighted(0.9, output), watch, 0u16..4);
        (select(kinds.clone()), proptest::collection::vec(bucket, 0..4), selection()).prop_map(
            |(kind, buckets, selection)| {
                let limit = if kind == Indirect { 1 } else { usize::MAX };
                let buckets = buckets.into_iter().take(limit).zip(0..);
                let buckets = buckets.map(|((mut actions, output, (port, group), weight), id)| {
                    actions.extend(output);
                    let watches = matches!(kind, FastFailover | Select);
                    let watch_port = port.filter(|_| watches).map_or(OfPort::ANY, OfPort);
                    let watch_group = group.filter(|_| watches).map_or(GroupId::ANY, GroupId);
                    Bucket { id, weight: if kind == Select { weight } else { 0 }, watch_port, watch_group, actions }
                });
                GroupSpec { kind, buckets: buckets.collect(), selection }
            },
        )
    };
    (0..GROUPS).map(group).collect::<Vec<_>>()
}

pub(super) fn mirrors() -> impl Strategy<Value = Vec<Mirror>> {
    let ports = || {
        let some = proptest::collection::btree_set((1..=PORTS).prop_map(|n| format!("p{n}")), 0..3);
        prop_oneof![1 => Just(PortSelection::All), 2 => some.prop_map(PortSelection::Ports)]
    };
    let output = prop_oneof![
        (1..=PORTS + 1).prop_map(|n| MirrorOutput::Port(format!("p{n}"))),
        select(vec![5u16, 7]).prop_map(MirrorOutput::Vlan),
    ];
    let vlans = proptest::option::of(select(vec![vec![5u16], vec![0, 6]]));
    let mirror = (ports(), ports(), vlans, output).prop_map(|(sources, destinations, vlans, output)| Mirror {
        name: "m".into(),
        sources,
        destinations,
        vlans: vlans.map(|set| set.into_iter().collect()),
        output,
        max_len: None,
    });
    prop_oneof![2 => Just(Vec::new()), 1 => proptest::collection::vec(mirror, 1..3)]
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Add(RuleSpec),
    Replace(Index, Instructions),
    Delete(Index),
    DeleteTable(u8),
    Vlan(u32, PortVlan),
    /// The port's state in a spanning tree.
    Tree(u32, Option<State>),
    Mirrors(Vec<Mirror>),
    Groups(Vec<GroupSpec>),
    FloodVlans(BTreeSet<u16>),
    FlushMacs,
    RemovePort(u32),
    Wait(u64),
    /// Time passes, and what is over ends. Fuzz targets have no such changes.
    #[cfg_attr(not(test), expect(dead_code))]
    Age(u64),
}

/// States of a port: as often none that stops anything as one that does.
pub(crate) fn tree_states() -> Vec<Option<State>> {
    use protocols::{rstp, stp};
    let stp = [stp::State::Disabled, stp::State::Blocking, stp::State::Listening, stp::State::Learning];
    let rstp = [rstp::State::Discarding, rstp::State::Learning, rstp::State::Learning, rstp::State::Forwarding];
    let some = stp.map(State::Stp).into_iter().chain(rstp.map(State::Rstp)).map(Some);
    some.chain([None; 6]).collect()
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => rule().prop_map(Change::Add),
        2 => (any::<Index>(), proptest::collection::vec(output(), 0..2))
            .prop_map(|(i, actions)| Change::Replace(i, Instructions::apply(actions))),
        3 => any::<Index>().prop_map(Change::Delete),
        1 => (0..TABLES).prop_map(Change::DeleteTable),
        2 => (1..=PORTS, vlan()).prop_map(|(port, vlan)| Change::Vlan(port, vlan)),
        1 => (1..=PORTS, select(tree_states())).prop_map(|(port, state)| Change::Tree(port, state)),
        1 => mirrors().prop_map(Change::Mirrors),
        1 => groups().prop_map(Change::Groups),
        1 => select(vec![BTreeSet::new(), BTreeSet::from([5]), BTreeSet::from([0, 6])]).prop_map(Change::FloodVlans),
        1 => Just(Change::FlushMacs),
        1 => (1..=PORTS).prop_map(Change::RemovePort),
        1 => (1u64..20).prop_map(Change::Wait),
    ]
}

/// The two switches side by side.
pub(super) struct Pair {
    pub bed: Bed,
    pub reference: Reference,
    /// What comes out at a port does so in one order. Not where copies of a packet with other headers come round: such may
    /// overtake each other in the slow path.
    pub is_ordered: bool,
    added: u16,
}

impl Pair {
    pub fn new(vlans: &[PortVlan], config: Config) -> Pair {
        let mut pair =
            Pair { bed: Bed::with(PORTS, config), reference: Reference::default(), is_ordered: true, added: 0 };
        // Whatever flow a packet has, the tables give it the same.
        pair.bed.datapath.set_verify_sampling(1);
        for (n, vlan) in (1..).zip(vlans) {
            pair.vlan(n, vlan.clone());
        }
        pair
    }

    pub fn vlan(&mut self, port: u32, vlan: PortVlan) {
        if self.bed.bridge.set_port_vlan(OfPort(port), vlan.clone()).is_ok()
            && self.reference.ports.insert(OfPort(port), vlan.clone()) != Some(vlan)
        {
            self.reference.macs.retain(|_, learnt| *learnt != OfPort(port));
            if let Some(snooping) = &mut self.reference.snooping {
                snooping.forget(OfPort(port));
            }
        }
    }

    pub fn mirrors(&mut self, mirrors: &[Mirror]) {
        let bridge = &self.bed.bridge;
        self.configure(BridgeConfig { mirrors: mirrors.to_vec(), ..bridge.config() });
        self.reference.mirrors = mirrors.to_vec();
    }

    fn configure(&self, config: BridgeConfig) {
        self.bed.bridge.set_config(config);
        // No spanning tree is configured, so that a change of the configuration has ports forward.
        self.reference.tree.iter().for_each(|(port, state)| self.bed.set_tree_state(*port, Some(*state)));
    }

    /// Has a port be in a state of a spanning tree.
    pub fn tree(&mut self, port: u32, state: Option<State>) {
        let port = OfPort(port);
        if !self.reference.ports.contains_key(&port) {
            return;
        }
        self.bed.set_tree_state(port, state);
        match state {
            Some(state) => drop(self.reference.tree.insert(port, state)),
            None => drop(self.reference.tree.remove(&port)),
        }
    }

    pub fn groups(&mut self, groups: &[GroupSpec]) {
        for (n, spec) in (0..).zip(groups) {
            self.bed.put_group(n, spec);
            self.reference.groups.insert(GroupId(n), spec.clone());
        }
    }

    pub fn add(&mut self, spec: &RuleSpec) {
        // Priorities differ, so that there is one right answer.
        self.added += 1;
        let priority = spec.priority * 1000 + self.added;
        self.put(spec.table, priority, &spec.matching, &spec.instructions);
    }

    pub fn put(&mut self, table: u8, priority: u16, matching: &Match, instructions: &Instructions) {
        let mut change = FlowMod::new(FlowModCommand::Add, matching.clone(), instructions.clone());
        (change.table, change.priority) = (Some(TableId(table)), priority);
        if self.bed.bridge.flow_mod(&change).is_err() {
            return;
        }
        let before = self.reference.learning();
        let now = self.bed.clock.now();
        let rule = RefRule::new(table, priority, matching.clone(), instructions.clone(), now);
        match self.reference.rules.iter_mut().find(|old| old.is(table, priority, matching)) {
            Some(old) => *old = RefRule { packets: old.packets, bytes: old.bytes, ..rule },
            None => self.reference.rules.push(rule),
        }
        self.reference.forget_orphans(before);
    }

    pub fn change(&mut self, change: &Change) {
        let reference = &mut self.reference;
        match change {
            Change::Add(spec) => self.add(spec),
            Change::Replace(..) | Change::Delete(_) if reference.rules.is_empty() => {}
            Change::Replace(index, instructions) => {
                let rule = &reference.rules[index.index(reference.rules.len())];
                let (table, priority, matching) = (rule.table, rule.priority, rule.matching.clone());
                self.put(table, priority, &matching, instructions);
            }
            Change::Delete(index) => {
                let rule = &reference.rules[index.index(reference.rules.len())];
                let (table, priority, matching) = (rule.table, rule.priority, rule.matching.clone());
                reference.retain(|rule| !rule.is(table, priority, &matching));
                let mut delete = FlowMod::new(FlowModCommand::DeleteStrict, matching, Instructions::default());
                (delete.table, delete.priority) = (Some(TableId(table)), priority);
                self.bed.bridge.flow_mod(&delete).unwrap();
            }
            Change::DeleteTable(table) => {
                reference.retain(|rule| rule.table != *table);
                let mut delete = FlowMod::new(FlowModCommand::Delete, Match::any(), Instructions::default());
                delete.table = Some(TableId(*table));
                self.bed.bridge.flow_mod(&delete).unwrap();
            }
            Change::Vlan(port, vlan) => self.vlan(*port, vlan.clone()),
            Change::Tree(port, state) => self.tree(*port, *state),
            Change::Mirrors(mirrors) => self.mirrors(mirrors),
            Change::Groups(groups) => self.groups(groups),
            Change::FloodVlans(vlans) => {
                if reference.flood_vlans != *vlans {
                    reference.macs.clear();
                    reference.flood_vlans = vlans.clone();
                }
                self.configure(BridgeConfig { flood_vlans: vlans.clone(), ..self.bed.bridge.config() });
            }
            Change::FlushMacs => {
                reference.macs.clear();
                self.bed.bridge.flush_macs();
            }
            Change::RemovePort(port) => {
                if reference.ports.remove(&OfPort(*port)).is_some() {
                    reference.macs.retain(|_, at| at.0 != *port);
                    reference.tree.remove(&OfPort(*port));
                    if let Some(snooping) = &mut reference.snooping {
                        snooping.forget(OfPort(*port));
                        snooping.flood.remove(&OfPort(*port));
                        snooping.flood_reports.remove(&OfPort(*port));
                    }
                    self.bed.bridge.remove_port(OfPort(*port)).unwrap();
                }
            }
            Change::Wait(secs) => self.bed.clock.advance(Duration::from_secs(*secs)),
            Change::Age(secs) => {
                self.bed.clock.advance(Duration::from_secs(*secs));
                self.bed.switch.run(self.bed.clock.now());
                reference.expire(self.bed.clock.now());
                if let Some(snooping) = &mut reference.snooping {
                    snooping.expire(self.bed.clock.now());
                }
            }
        }
        self.bed.bridge.barrier();
    }

    pub fn packet(&mut self, port: u32, frame: &[u8]) -> Result<(), TestCaseError> {
        let port = OfPort(port);
        if !self.reference.ports.contains_key(&port) {
            return Ok(());
        }
        self.reference.connections.now = self.bed.clock.now();
        let mut expected = self.reference.receive(port, frame);
        let mut sent = self.bed.receive(port, frame);
        // The order between ports is not kept by gathering; the order at each port is.
        expected.sort_by_key(|(port, _)| *port);
        sent.sort_by_key(|(port, _)| *port);
        if !self.is_ordered {
            expected.sort();
            sent.sort();
        }
        prop_assert!(sent == expected, "{} from port {port} frame {}", difference(&sent, &expected), hex(frame));
        self.verify()?;
        self.bed.switch.run(self.bed.clock.now());
        Ok(())
    }

    /// As [`packet`](Pair::packet), for many that come in at once: they miss, wait and return together. Those that
    /// a flow matches meanwhile don't wait until NORMAL has learnt from those before them, so what is sent is
    /// compared where it has learnt nothing.
    pub fn packets(&mut self, frames: &[(u32, Vec<u8>)]) -> Result<(), TestCaseError> {
        let (mut expected, known) = (Vec::new(), self.reference.learnt());
        for (port, frame) in frames {
            if !self.reference.ports.contains_key(&OfPort(*port)) {
                continue;
            }
            expected.extend(self.reference.receive(OfPort(*port), frame));
            prop_assert!(self.bed.devices[*port as usize - 1].inject(frame));
        }
        self.bed.poll();
        let mut sent = self.bed.sent();
        // Packets of different ports come out in any order.
        expected.sort();
        sent.sort();
        let learnt = known != self.reference.learnt();
        prop_assert!(learnt || sent == expected, "{}", difference(&sent, &expected));
        self.verify()?;
        self.bed.switch.run(self.bed.clock.now());
        Ok(())
    }

    /// Verification in production has nothing to say of what was received.
    fn verify(&self) -> Result<(), TestCaseError> {
        while self.bed.switch.verify(64) > 0 {
            // What differs is compared again when all changes are in force.
            self.bed.bridge.barrier();
        }
        let report = self.bed.switch.verify_report();
        prop_assert!(report.counts.disagreements == 0, "{}", report.latest[0]);
        Ok(())
    }

    /// Every rule has counted what passed it.
    pub fn check_counters(&self) -> Result<(), TestCaseError> {
        let flows = self.bed.bridge.flow_stats(&all_flows()).unwrap();
        prop_assert_eq!(flows.len(), self.reference.rules.len(), "{:?}", flows);
        for rule in &self.reference.rules {
            let is = |flow: &&FlowStats| rule.is(flow.table.0, flow.priority, &flow.matching);
            let Some(flow) = flows.iter().find(is) else { panic!("{:?} is missing", rule.matching) };
            let agrees = (flow.packet_count, flow.byte_count) == (rule.packets, rule.bytes);
            prop_assert!(agrees, "{} packets, {} bytes expected of {:?}", rule.packets, rule.bytes, flow);
        }
        Ok(())
    }
}

/// What was sent and should not have been, and the other way round.
fn difference(sent: &[(OfPort, Vec<u8>)], expected: &[(OfPort, Vec<u8>)]) -> String {
    let mut missing = expected.to_vec();
    let mut text = format!("{} sent, {} expected;", sent.len(), expected.len());
    for frame in sent {
        match missing.iter().position(|other| other == frame) {
            Some(at) => drop(missing.swap_remove(at)),
            None => text += &format!(" unexpected at port {}: {};", frame.0, hex(&frame.1)),
        }
    }
    missing.iter().for_each(|frame| text += &format!(" missing at port {}: {};", frame.0, hex(&frame.1)));
    text
}

fn hex(frame: &[u8]) -> String {
    frame.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Limits that are reached at once.
pub(super) fn tiny() -> Config {
    Config { max_flows: 3, max_masks: 2, ..Config::default() }
}
