//! Translation: what the OpenFlow tables do to a packet, as a mask and datapath actions.
//!
//! `translate` executes the pipeline on a copy of the packet's key. It keeps three things: `flow`, the key of the
//! packet as it should be by now; `base`, the key of the packet as the datapath has it; and `wc`, a mask of the bits of
//! the original packet that the result depends on. An output first brings `base` up to `flow` (`commit`). Every packet
//! that equals this one in the bits of the mask gets the same actions.
//!
//! This file has the start and the end of a translation.
//!
//! | module | what it is |
//! |---|---|
//! | `tables` | Tables: looked up, and what is found executed |
//! | [`steps`] | Instructions and actions in the order of their execution |
//! | `actions` | What each action does |
//! | `output` | Ports, floods, patches, controllers |
//! | `normal` | NORMAL: a learning switch with VLANs |
//! | `bond` | Bonds: which packets of members are taken, and by which member packets leave |
//! | `group` | Groups |
//! | `look_up` | How the rules of tables are found |
//! | `learn` | The learn action |
//! | `choose` | Choices by a hash: bundle, multipath |
//! | `length` | `check_pkt_larger` |
//! | `known_length` | What a translation knows about the length of the packet |
//! | `multicast` | NORMAL for multicast, where the bridge snoops |
//! | `mirror` | Copies for mirrors |
//! | `tunnel` | Tunnels: what enters them, and what leaves them |
//! | `freeze` | Recirculation and pauses: the pipeline stops and goes on |
//! | `frozen` | What is kept of a pipeline that has stopped |
//! | `commit` | Datapath actions for header changes |
//! | `dropped` | Which rule drops a packet |
//! | `encap` | Headers that change the packet's type: Ethernet, NSH, MPLS before the whole packet |
//! | `copies` | Parts of the packet that were copied to registers |
//! | `ct` | Connection tracking |
//! | `packet_type` | Packet types |
//! | `protocol` | Frames of protocols that the switch itself takes part in |
//! | `sample` | Samples for collectors, and what NetFlow is told |
//! | `spanning_tree` | Ports that do not forward, or not yet |
//! | `headers` | VLAN tags and MPLS labels of a key |
//! | `tun_fields` | Fields for options of tunnels |
//! | `tunnel_metadata` | These options, before and after a translation |
//! | `limits` | What one translation may take |
//! | [`trace`] | Events for whoever explains a translation |

mod actions;
mod bond;
#[cfg(test)]
pub(crate) mod bond_recirculation_tests;
#[cfg(test)]
pub(crate) mod bond_tests;
pub(crate) mod choose;
mod commit;
mod copies;
mod ct;
#[cfg(test)]
mod ct_tests;
#[cfg(test)]
mod drop_tests;
mod dropped;
mod encap;
#[cfg(test)]
mod encap_tests;
mod freeze;
pub(crate) mod frozen;
pub(crate) mod group;
mod headers;
mod known_length;
mod learn;
mod length;
#[cfg(test)]
mod limit_tests;
mod limits;
pub(crate) mod look_up;
pub(crate) mod meter;
mod mirror;
mod multicast;
mod normal;
mod output;
mod packet_type;
mod protocol;
mod sample;
#[cfg(test)]
mod sample_tests;
pub(crate) mod spanning_tree;
pub mod steps;
mod tables;
#[cfg(test)]
mod tests;
pub mod trace;
mod tun_fields;
pub(crate) mod tunnel;
pub(crate) mod tunnel_metadata;
#[cfg(test)]
mod tunnel_metadata_tests;
#[cfg(test)]
pub(crate) mod tunnel_tests;

use std::sync::Arc;

use datapath::{Action as DpAction, DropReason};
use openflow::{Action, Bits, Cookie, OfPort, PortConfig};
use packet::flow::frag;
use packet::{Field, Key, Mask, Time};

use dropped::LastLookup;
use frozen::{Frozen, PacketInContext};
use headers::Headers;

pub(crate) use learn::LearntFlow;
pub(crate) use look_up::LookUp;
pub(crate) use multicast::Heard;
pub(crate) use steps::FrozenStep;
use steps::PipelineStep;
use trace::{Event, Sink};

use crate::model::forwarding::{BridgeId, BridgeState, Forwarding, PortState};
use crate::model::mac_batch::MacBatch;
use crate::model::mirror::MirrorSet;
use crate::model::port::Device;
use crate::model::underlay::Question;
use crate::slowpath::drop_sites::Dropped;
use crate::slowpath::intern::Interner;
use crate::slowpath::record::FlowRecord;
use crate::table::Rule;

/// Numbers that travel through the datapath.
#[derive(Default)]
pub(crate) struct Interners {
    pub frozen: Interner<Frozen>,
    pub packet_ins: Interner<PacketInContext>,
    pub questions: Interner<Question>,
}

/// What is to be translated.
pub(crate) struct Input<'a> {
    /// The packet's key. `in_port` is an OpenFlow port unless `frozen` is given.
    pub key: &'a Key,
    /// The bridge that it is in.
    pub bridge: BridgeId,
    /// Where the pipeline goes on, for a recirculated packet.
    pub frozen: Option<&'a Frozen>,
    /// Instead of a lookup in table 0: the actions of a packet-out.
    pub packet_out: Option<&'a [Action]>,
    /// For a real packet: its batch, which learns from it.
    pub learning: Option<&'a MacBatch>,
    /// The time.
    pub now: Time,
    /// How long the packet is, where it is translated for itself.
    pub bytes: Option<u64>,
    /// How rules are found.
    pub look_up: LookUp<'a>,
}

/// Why a translation gave up. The packet is dropped. The words are those of `ofproto/trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum XlateError {
    /// Resubmits are nested too deeply.
    #[error("Recursion too deep")]
    TooDeep,
    /// Too many resubmits.
    #[error("Too many resubmits")]
    TooManyResubmits,
    /// Too much pushed.
    #[error("Stack too deep")]
    StackTooDeep,
    /// More steps, or more datapath actions, than one packet may cost.
    #[error("Too much work")]
    TooMuchWork,
    /// A label too many, or one that is not known.
    #[error("Too many MPLS labels")]
    TooManyLabels,
    /// A VLAN tag too many.
    #[error("Too many VLAN tags")]
    TooManyTags,
    /// A header that cannot be added to the packet, or not be taken away.
    #[error("Unsupported packet type")]
    UnsupportedPacketType,
    /// The bridge was removed.
    #[error("Bridge not found")]
    NoBridge,
    /// The recirculation id is unknown.
    #[error("No recirculation context")]
    NoContext,
    /// The packet has an option of a tunnel that is critical and not known, or of another length than its field.
    #[error("Invalid tunnel metadata")]
    TunnelMetadata,
}

/// The outcome of a translation.
pub(crate) struct Translation {
    /// The bits of the key that the outcome depends on.
    pub mask: Mask,
    /// Those bits without the ones that were copied to registers at which nothing has looked, if there are any: packets
    /// that agree in these have the same outcome, mask included.
    pub decided_by: Option<Box<Mask>>,
    /// What the datapath has to do.
    pub actions: Vec<DpAction>,
    /// Whom to credit, and dependencies.
    pub record: FlowRecord,
    /// Flows that `learn` actions ask for.
    pub learnt: Vec<LearntFlow>,
    /// Where the packet was heard as a message of multicast membership, which its payload is to be learnt from.
    pub heard: Vec<Heard>,
    /// The key at the end, for whoever explains the translation.
    pub flow: Option<Box<Key>>,
    /// Whether it gave up.
    pub error: Option<XlateError>,
    /// Where the packet is dropped, if it is.
    pub dropped: Option<Box<Dropped>>,
    /// Whether the outcome depends on the VLAN tag. The mask has bits of it in any case.
    pub looked_at_vlan: bool,
    /// Every packet is translated anew.
    pub slow: bool,
    /// There are more actions than a flow may have: none is installed.
    pub too_long: bool,
    /// Steps that it has taken, and what takes as long.
    pub work: usize,
    /// It is not defined which rules it goes by: see [`LookUp::is_ambiguous`].
    pub is_ambiguous: bool,
}

/// Translates.
pub(crate) fn translate(
    forwarding: &Forwarding,
    interners: &Interners,
    input: &Input<'_>,
    sink: Option<&mut dyn Sink>,
) -> Translation {
    let Some(bridge) = forwarding.bridges.get(&input.frozen.map_or(input.bridge, |frozen| frozen.bridge)) else {
        return refused(forwarding, input, XlateError::NoBridge);
    };
    let mut ctx = Ctx {
        forwarding,
        interners,
        bridge,
        learning: input.learning,
        real: input.learning.is_some(),
        now: input.now,
        sink,
        flow: Headers::new(input.key.clone()),
        base: Headers::new(input.key.clone()),
        packet: input.key,
        entered: if input.frozen.is_some() { BridgeId(u32::MAX) } else { bridge.id },
        wc: initial_mask(input.key),
        // NetFlow tells apart what registers are copied from.
        copies: copies::Copies::new(
            input.frozen.is_none() && input.packet_out.is_none() && bridge.sampling.netflow.is_none(),
        ),
        out: Vec::new(),
        record: FlowRecord { generation: forwarding.generation(), ..FlowRecord::default() },
        learnt: Vec::new(),
        heard: Vec::new(),
        table: 0,
        rule: None,
        next_rule: None,
        cookie: None,
        first_cookie: None,
        table_miss: false,
        usage: limits::Usage::default(),
        exit: false,
        slow: false,
        too_long: false,
        error: None,
        unsent: None,
        last_lookup: LastLookup::none(bridge),
        action_set: Vec::new(),
        in_action_set: false,
        in_group: false,
        in_packet_out: input.packet_out.is_some(),
        stack: Vec::new(),
        was_mpls: false,
        pending: commit::Pending::Nothing,
        conntracked: input.frozen.is_none() && ct::is_tracked(input.key),
        undoable: true,
        mirrored: 0,
        mirror_max_len: mirror::WHOLE,
        freezing: false,
        pausing: None,
        hashing: None,
        bonds: 0,
        bond_hash: false,
        frozen_steps: Vec::new(),
        bytes: input.bytes,
        look_up: input.look_up,
        length: known_length::KnownLength::UNKNOWN,
        destinations: sample::Destinations::default(),
        by_bond: None,
        priority: input.key.common().skb_priority.get(),
    };
    ctx.run(input);
    ctx.complete_samples();
    if let Some(flows) = &bridge.sampling.netflow
        && input.frozen.is_none()
    {
        ctx.match_netflow();
        ctx.credit_netflow(flows);
    }
    ctx.finish(input.key)
}

/// The translation of a packet that no table has seen.
pub(crate) fn refused(forwarding: &Forwarding, input: &Input<'_>, error: XlateError) -> Translation {
    let mut mask = initial_mask(input.key);
    finish_mask(&mut mask, input.key);
    Translation {
        mask,
        decided_by: None,
        actions: vec![DpAction::Drop(error.drop_reason())],
        record: FlowRecord { generation: forwarding.generation(), ..FlowRecord::default() },
        learnt: Vec::new(),
        heard: Vec::new(),
        flow: None,
        error: Some(error),
        dropped: None,
        looked_at_vlan: false,
        slow: false,
        too_long: false,
        work: 0,
        is_ambiguous: false,
    }
}

/// What every translation looks at.
fn initial_mask(key: &Key) -> Mask {
    let mut wc = Mask::wildcard();
    let common = wc.0.common_mut();
    (common.packet_type, common.in_port, common.recirc_id) = (u32::MAX.into(), u32::MAX.into(), u32::MAX.into());
    common.dl_type = u16::MAX.into();
    if is_ip(key) {
        wc.set_exact(Field::NwFrag);
    }
    wc
}

fn is_ip(key: &Key) -> bool {
    matches!(key.common().dl_type.get(), 0x0800 | 0x86dd)
}

/// A translation under way.
struct Ctx<'a, 's> {
    forwarding: &'a Forwarding,
    interners: &'a Interners,
    bridge: &'a BridgeState,
    learning: Option<&'a MacBatch>,
    real: bool,
    now: Time,
    sink: Option<&'s mut dyn Sink>,
    /// The packet as it should be.
    flow: Headers,
    /// The packet as the datapath has it.
    base: Headers,
    /// The packet as it came in.
    packet: &'a Key,
    /// The bridge that the packet came in to. None for a packet that comes back: the port that it came in at may be of
    /// another one.
    entered: BridgeId,
    /// What was looked at.
    wc: Mask,
    /// What was copied to registers, and is not in `wc` yet.
    copies: copies::Copies,
    out: Vec<DpAction>,
    record: FlowRecord,
    learnt: Vec<LearntFlow>,
    heard: Vec<Heard>,
    table: u8,
    rule: Option<&'a Rule>,
    /// What would be found without the rule that was found last, for a sink that wants it.
    next_rule: Option<&'a Rule>,
    /// Cookie of the rule; `None` outside of any.
    cookie: Option<Cookie>,
    /// That of the first rule.
    first_cookie: Option<Cookie>,
    /// The rule is a table-miss flow.
    table_miss: bool,
    /// What it has taken so far.
    usage: limits::Usage,
    exit: bool,
    /// Every packet is to be translated anew.
    slow: bool,
    too_long: bool,
    error: Option<XlateError>,
    /// Why the packet was not sent where the tables say, the first time: see [`Ctx::not_sent`].
    unsent: Option<(DropReason, LastLookup<'a>)>,
    last_lookup: LastLookup<'a>,
    action_set: Vec<Action>,
    in_action_set: bool,
    /// A bucket of a group is executed.
    in_group: bool,
    in_packet_out: bool,
    /// Values pushed: value, width in bits.
    stack: Vec<(Bits, u16)>,
    /// The L3 header of the packet is not known: labels were popped.
    was_mpls: bool,
    /// The header that the next commit adds or takes away.
    pending: commit::Pending,
    /// The pipeline sees the metadata of a packet that the datapath has tracked.
    conntracked: bool,
    /// Nothing was done to the datapath's packet that cannot be undone, since [`Ctx::on_copy`].
    undoable: bool,
    /// The mirrors that have got their copy, and those that send to the same place.
    mirrored: MirrorSet,
    /// Most bytes to send, while a copy is sent.
    mirror_max_len: u16,
    freezing: bool,
    /// The packet-in of a pipeline that freezes until the controller answers.
    pausing: Option<Box<freeze::Pausing>>,
    /// What the datapath hashes before it recirculates a pipeline that freezes.
    hashing: Option<DpAction>,
    /// How many bonds have had the packet recirculated.
    bonds: u8,
    /// The hash that the packet came with was for a bond.
    bond_hash: bool,
    frozen_steps: Vec<FrozenStep>,
    /// How long the packet is, where it is translated for itself.
    bytes: Option<u64>,
    /// How rules are found.
    look_up: LookUp<'a>,
    /// What is known about the length of the datapath's packet.
    length: known_length::KnownLength,
    /// Where it goes, for its samples.
    destinations: sample::Destinations<'a>,
    /// What the next output does instead of sending by its port: it sends by a bond.
    by_bond: Option<DpAction>,
    /// Priority that the packet came with.
    priority: u32,
}

impl<'a> Ctx<'a, '_> {
    fn run(&mut self, input: &Input<'_>) {
        self.flow.pipeline_mut().actset_output = OfPort::UNSET.0.into();
        let bridge = self.bridge;
        self.event(|| Event::Bridge(&bridge.config.name));
        let port = self.port(self.in_port());
        if port.is_some_and(|port| bridge.is_mirror_port(port)) {
            self.not_sent(DropReason::MirrorPort);
            self.event(|| Event::Error("dropping packet received on a port that is reserved for mirroring"));
        } else if let Some(frozen) = input.frozen {
            self.match_tunnel_again();
            self.thaw(frozen);
        } else if self.flow.common().recirc_id.get() != 0 {
            let id = self.flow.common().recirc_id.get();
            self.fail(XlateError::NoContext, &format!("Recirculation context not found for ID {id:x}"));
        } else if port.is_some_and(|port| !self.may_receive(port)) {
            self.sample_received();
            self.not_sent(DropReason::InPortDown);
        } else if let Some(actions) = input.packet_out {
            self.sample_received();
            self.as_spanning_tree_allows(port, |ctx| {
                ctx.mirror_received();
                ctx.steps(actions.iter().map(PipelineStep::Act));
                ctx.end_pipeline();
            });
        } else {
            self.sample_received();
            if let Some(port) = port.filter(|port| matches!(port.device, Device::Tunnel(_)))
                && !self.receive_from_tunnel(port)
            {
                return self.leave();
            }
            if port.is_some_and(|port| self.is_taken_by_protocol(port)) {
                return self.leave();
            }
            self.as_spanning_tree_allows(port, |ctx| {
                ctx.mirror_received();
                let in_port = ctx.in_port();
                ctx.table_action(in_port, 0, true, false);
                // The action set is the first flow's, for the controllers.
                ctx.cookie = ctx.first_cookie;
                ctx.end_pipeline();
            });
        }
        self.leave();
    }

    /// What comes after the last table: the action set, or recirculation.
    fn end_pipeline(&mut self) {
        if !self.freezing {
            self.execute_action_set();
        }
        if self.freezing {
            self.finish_freezing();
        } else {
            self.reach_local();
        }
    }

    /// Sends a packet to the LOCAL port that in-band control wants there, if it does not go there anyway.
    fn reach_local(&mut self) {
        let bridge = self.bridge;
        // All flows depend on it.
        let Some(local) = bridge.ports.get(&OfPort::LOCAL).and_then(|port| port.dp_port) else { return };
        if self.in_port() != OfPort::LOCAL
            && bridge.hidden.must_reach_local(self.packet, &mut self.wc)
            && !self.out.contains(&DpAction::Output(local))
        {
            self.detail(|| "outputting DHCP packet to local port for in-band control".into());
            self.output(OfPort::LOCAL);
        }
    }

    fn finish(&mut self, original: &Key) -> Translation {
        let decided_by = self.decided_by(original);
        self.keep_copies();
        let looked_at_vlan = finish_mask(&mut self.wc, original);
        let dropped = self.dropped();
        if let Some(error) = self.error {
            self.out = vec![DpAction::Drop(error.drop_reason())];
        } else if let Some((reason, _)) = self.unsent
            && goes_nowhere(&self.out, reason)
        {
            self.out.push(DpAction::Drop(reason));
        } else {
            self.out = ct::without_last_copy(std::mem::take(&mut self.out));
        }
        Translation {
            mask: self.wc.clone(),
            decided_by,
            actions: std::mem::take(&mut self.out),
            record: std::mem::take(&mut self.record),
            learnt: std::mem::take(&mut self.learnt),
            heard: std::mem::take(&mut self.heard),
            flow: self.sink.is_some().then(|| Box::new(self.flow.key.clone())),
            error: self.error,
            dropped,
            looked_at_vlan,
            slow: self.slow,
            too_long: self.too_long,
            work: self.usage.work(),
            is_ambiguous: self.look_up.is_ambiguous(),
        }
    }

    /// Records why the packet is not sent where the tables say. If it is not sent anywhere else, that is the reason of
    /// its drop.
    fn not_sent(&mut self, reason: DropReason) {
        self.unsent.get_or_insert((reason, self.last_lookup));
    }

    /// The port of the present bridge with this number, on which the outcome depends, whether it is there or not. Whoever looks at all
    /// ports says so ([`FlowRecord::depends_on_all_ports`]); those that are found in other ways, all flows depend on
    /// ([`Forwarding::touch_port`]).
    fn port(&mut self, port: OfPort) -> Option<&'a PortState> {
        self.record.depends_on_port(self.bridge.id, port);
        self.bridge.ports.get(&port)
    }

    fn in_port(&self) -> OfPort {
        OfPort(self.flow.common().in_port.get())
    }

    fn may_receive(&mut self, port: &PortState) -> bool {
        if let Device::Tunnel(tunnel) = &port.device
            && !tunnel.is_enabled()
        {
            return false;
        }
        if !port.config.intersects(PortConfig::NO_RECV | PortConfig::NO_RECV_STP) {
            return true;
        }
        let forbidden = if self.is_for_bridges() { PortConfig::NO_RECV_STP } else { PortConfig::NO_RECV };
        // As in OVS, what controllers have set is for frames that are forwarded.
        self.is_for_spanning_tree() || !port.config.intersects(forbidden)
    }

    fn event<'e>(&mut self, event: impl FnOnce() -> Event<'e>) {
        if let Some(sink) = &mut self.sink {
            sink.event(event());
        }
    }

    fn leave(&mut self) {
        if let Some(sink) = &mut self.sink {
            sink.leave();
        }
    }

    fn detail(&mut self, text: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink.event(Event::Detail(&text()));
        }
    }

    fn warning(&mut self, text: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.sink {
            sink.event(Event::Warning(&text()));
        }
    }

    /// Reports the value of a part of a field after an action wrote it.
    fn written(&mut self, part: &openflow::Subfield) {
        if self.sink.is_some() {
            let text = trace::subfield_is_now(part, &self.value_of(part));
            self.detail(|| text);
        }
    }

    fn commit(&mut self) {
        let before = self.out.len();
        let pending = std::mem::take(&mut self.pending);
        if commit::commit(&self.flow, &mut self.base, pending, !self.was_mpls, &mut self.wc, &mut self.out) {
            self.undoable = false;
        }
        self.committed(before);
    }

    fn hold(&mut self, value: Arc<dyn std::any::Any + Send + Sync>) {
        self.record.holds.push(value);
    }
}

/// Whether a packet that was not sent for `reason` is dropped after these actions. One that a controller gets is not,
/// unless the controller only learns that its TTL is over.
fn goes_nowhere(actions: &[DpAction], reason: DropReason) -> bool {
    actions.iter().filter(|action| !sample::only_samples(action)).all(|action| match action {
        DpAction::Output(_)
        | DpAction::Bond { .. }
        | DpAction::Recirc(_)
        | DpAction::TunnelPop(_)
        | DpAction::Clone(_)
        | DpAction::CheckLength { .. } => false,
        DpAction::Punt(_) => reason == DropReason::TtlExceeded,
        _ => true,
    })
}

/// Removes bits that are not of the packet, or that other matched bits imply. Returns whether the
/// translation looked at the VLAN tag.
fn finish_mask(wc: &mut Mask, original: &Key) -> bool {
    use packet::flow::{BlockId, Blocks, VLAN_PRESENT};
    let own = Blocks::default().with(BlockId::Pipeline).with(BlockId::Regs);
    let tun_fields = crate::model::tlv::present(&wc.0);
    wc.0.keep(Blocks(Blocks::ALL.0 & !own.0));
    let common = original.common();
    let bits = wc.0.common_mut();
    if common.packet_type.get() != 0 {
        (bits.dl_src, bits.dl_dst) = ([0; 6], [0; 6]);
    }
    let icmp = matches!((common.dl_type.get(), common.nw_proto), (0x0800, 1) | (0x86dd, 58));
    if common.nw_frag & frag::LATER != 0 {
        (bits.tp_src, bits.tp_dst) = (0.into(), 0.into());
    } else if icmp {
        (bits.tp_src, bits.tp_dst) = ((bits.tp_src.get() & 0xff).into(), (bits.tp_dst.get() & 0xff).into());
    }
    for (tag, bits) in common.vlan.iter().zip(&mut bits.vlan) {
        if tag.tci.get() & VLAN_PRESENT != 0 {
            if bits.tci.get() != 0 {
                bits.tci = (bits.tci.get() | VLAN_PRESENT).into();
            }
        } else {
            // That there is no tag here.
            bits.tpid = 0.into();
            bits.tci = if bits.tci.get() != 0 { VLAN_PRESENT.into() } else { 0.into() };
        }
    }
    // As in OVS's datapath, every flow matches whether there is a tag.
    let looked_at_vlan = bits.vlan[0].tci.get() != 0;
    if !looked_at_vlan {
        bits.vlan[0].tci = (VLAN_PRESENT | 0xfff).into();
    }
    if !headers::is_mpls(original) && wc.0.present().has(BlockId::Encap) {
        wc.0.encap_mut().mpls_lse.fill(0.into());
    }
    if common.dl_type.get() != packet::wire::ethertype::NSH && wc.0.present().has(BlockId::Encap) {
        headers::clear_nsh(&mut wc.0);
    }
    let tunnel = original.tunnel();
    let tunnelled = tunnel.tun_dst.get() != 0 || tunnel.tun_ipv6_dst != [0; 16];
    if !tunnelled && wc.0.present().has(BlockId::Tunnel) {
        wc.0.block_mut(BlockId::Tunnel).0.fill(0);
    }
    tunnel_metadata::finish_mask(wc, tunnelled, tun_fields);
    looked_at_vlan
}
