//! Recirculation: the pipeline stops, the datapath parses the packet again, and the pipeline continues.

use std::sync::Arc;

use datapath::{Action as DpAction, Kept, PacketInPunt, Punt};
use openflow::action::Controller;
use openflow::{Action, OfPort, PacketInReason, TableId};
use packet::Key;
use packet::flow::{BlockId, Blocks};

use super::frozen::{Frozen, PacketInContext, metadata};
use super::steps::{FrozenStep, PipelineStep};
use super::trace::Event;
use super::{Ctx, XlateError, limits, meter as meters};
use crate::model::tlv::forget_bytes;

/// The packet-in of a pipeline that freezes until the controller answers.
pub(super) struct Pausing {
    context: PacketInContext,
    punt: PacketInPunt,
    /// The meter that the action names.
    meter: Option<u32>,
}

impl Ctx<'_, '_> {
    /// Stops the pipeline. The steps that are left are collected while the calls return.
    pub(super) fn freeze(&mut self) {
        self.freezing = true;
        self.exit = true;
    }

    /// Collects the steps of one rule that are left.
    pub(super) fn freeze_steps<'e>(&mut self, steps: impl Iterator<Item = PipelineStep<'e>>) {
        let mut steps = steps.peekable();
        if steps.peek().is_some() {
            self.frozen_steps.push(FrozenStep::Resume { table: TableId(self.table), cookie: self.cookie });
        }
        for step in steps {
            if !self.charge(limits::size_of_step(&step)) {
                return;
            }
            self.frozen_steps.push(step.to_frozen());
        }
    }

    /// Has the datapath recirculate the packet, or send it to the controller that the pipeline waits for.
    pub(super) fn finish_freezing(&mut self) {
        self.commit();
        let (action_set, steps) = (std::mem::take(&mut self.action_set), std::mem::take(&mut self.frozen_steps));
        let bond_hash = self.bond_hash && self.hashing.is_none();
        let id = self.keep_pipeline(Frozen { action_set, steps, bond_hash, ..self.frozen() });
        match self.pausing.take() {
            None => self.out.extend(self.hashing.take().into_iter().chain([DpAction::Recirc(id)])),
            Some(pausing) => {
                let conntracked = self.conntracked;
                let (metadata, tlv) = (metadata(&self.flow), self.tlv_of_packet());
                let context = PacketInContext { metadata, tlv, conntracked, ..pausing.context };
                let kept = Kept(self.record.holds.last().cloned().into_iter().collect());
                self.send_up(context, PacketInPunt { continuation: Some(id), kept, ..pausing.punt });
                self.limit_punt(pausing.meter);
            }
        }
        self.freezing = false;
        self.exit = false;
        self.was_mpls = false;
    }

    /// Has the datapath recirculate a copy of the packet, whose pipeline goes on with a look-up in `table`. Returns
    /// its recirculation id.
    pub(super) fn fork(&mut self, table: u8) -> u32 {
        let id = self.keep_pipeline(Frozen { table, action_set: self.action_set.clone(), ..self.frozen() });
        self.out.push(DpAction::Recirc(id));
        id
    }

    /// Returns the recirculation id of a pipeline that goes on with this output alone, and then ends.
    pub(super) fn keep_output(&mut self, output: Action) -> u32 {
        let resume = FrozenStep::Resume { table: TableId(self.table), cookie: self.cookie };
        self.keep_pipeline(Frozen { steps: vec![resume, FrozenStep::Act(output)], ..self.frozen() })
    }

    /// Returns the recirculation id of a pipeline that only sends the packet by a bond, which chooses the member by the packet's hash. What the
    /// output does not look at is forgotten, so that packets of other pipelines have the same one.
    pub(super) fn keep_output_to_bond(&mut self, bond: &str, has_tunnels: bool) -> u32 {
        let mut frozen = Frozen { stack: Vec::new(), conntracked: false, bond_hash: true, ..self.frozen() };
        frozen.bonds += 1;
        frozen.bond = Some(bond.into());
        let kept = Blocks::default().with(BlockId::Common).with(BlockId::Tunnel).with(BlockId::TunMeta0);
        frozen.metadata.keep(if has_tunnels { kept } else { Blocks::default().with(BlockId::Common) });
        frozen.tlv = frozen.tlv.filter(|_| has_tunnels);
        self.keep_pipeline(frozen)
    }

    /// The pipeline as it is now, with nothing left to do but to look table 0 up.
    fn frozen(&self) -> Frozen {
        Frozen {
            bridge: self.bridge.id,
            table: 0,
            metadata: metadata(&self.flow),
            tlv: self.tlv_of_packet(),
            stack: self.stack.clone(),
            action_set: Vec::new(),
            steps: Vec::new(),
            bond: None,
            bonds: self.bonds,
            bond_hash: self.bond_hash,
            mirrored: self.mirrored,
            conntracked: self.conntracked,
        }
    }

    /// Returns the number of a pipeline.
    fn keep_pipeline(&mut self, frozen: Frozen) -> u32 {
        self.charge(limits::STATE + frozen.stack.len() + limits::size(&frozen.action_set));
        let interner = &self.interners.frozen;
        let (id, held) = if self.sink.is_some() { interner.intern_to_show(frozen) } else { interner.intern(frozen) };
        self.hold(held);
        id
    }

    /// Stops the pipeline until the controller resumes it.
    pub(super) fn pause(&mut self, controller: &Controller) {
        let context = self.packet_in_context(&controller.userdata);
        let punt = self.packet_in_punt(controller.reason, controller.id, Some(u16::MAX));
        self.pausing = Some(Box::new(Pausing { context, punt, meter: controller.meter }));
        // With no steps left, the pipeline would continue at table 0 instead of its end.
        self.frozen_steps.push(FrozenStep::Resume { table: TableId(self.table), cookie: self.cookie });
        self.freeze();
    }

    /// Whether the pipeline stops until a controller resumes it.
    pub(super) fn is_pausing(&self) -> bool {
        self.pausing.is_some()
    }

    /// Continues where `frozen` stopped.
    pub(super) fn thaw(&mut self, frozen: &Frozen) {
        if frozen.bond.is_none() {
            self.event(|| Event::Thaw { table: TableId(frozen.table) });
        }
        self.table = frozen.table;
        self.mirrored = frozen.mirrored;
        if frozen.conntracked {
            self.conntracked = true;
        } else {
            self.clear_conntrack();
        }
        let (from, to) = (frozen.metadata.common(), self.flow.common_mut());
        (to.in_port, to.pkt_mark, to.skb_priority) = (from.in_port, from.pkt_mark, from.skb_priority);
        for block in [BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
            *self.flow.block_mut(block) = *frozen.metadata.block(block);
        }
        if frozen.metadata.present().has(BlockId::TunMeta0) {
            *self.flow.tun_metadata_mut() = *frozen.metadata.tun_metadata();
        } else {
            forget_bytes(&mut self.flow.key);
        }
        self.adopt_tun(frozen.tlv.as_deref());
        self.stack = frozen.stack.clone();
        self.flow.pipeline_mut().actset_output = OfPort::UNSET.0.into();
        (self.bonds, self.bond_hash) = (frozen.bonds, frozen.bond_hash);
        if frozen.bond_hash {
            // Nothing but the bond looks at it.
            self.flow.common_mut().dp_hash = 0.into();
        }
        if let Some(bond) = &frozen.bond {
            return self.output_to_chosen_member(bond);
        }
        self.write_actions(&frozen.action_set);
        if frozen.steps.is_empty() {
            let in_port = self.in_port();
            self.table_action(in_port, frozen.table, true, false);
        } else {
            self.steps(frozen.steps.iter().map(FrozenStep::as_step));
        }
        self.end_pipeline();
    }

    /// Sends a copy of the packet as it is now to the controllers.
    pub(super) fn punt(
        &mut self,
        reason: PacketInReason,
        controller_id: u16,
        max_len: Option<u16>,
        userdata: &[u8],
        implicit_miss: bool,
    ) {
        self.punt_by(None, reason, controller_id, max_len, userdata, implicit_miss);
    }

    /// The same, limited by a meter that is named rather than by that of all controllers.
    pub(super) fn punt_by(
        &mut self,
        meter: Option<u32>,
        reason: PacketInReason,
        controller_id: u16,
        max_len: Option<u16>,
        userdata: &[u8],
        implicit_miss: bool,
    ) {
        self.keep_copies();
        self.commit();
        let explicit_miss = reason == PacketInReason::Action && self.table_miss;
        let reason = if explicit_miss { PacketInReason::NoMatch } else { reason };
        let (mut metadata, tlv) = (metadata(&self.flow), self.tlv_of_packet());
        forget_headers(&mut metadata);
        let context =
            PacketInContext { metadata, tlv, explicit_miss, implicit_miss, ..self.packet_in_context(userdata) };
        self.send_up(context, self.packet_in_punt(reason, controller_id, max_len));
        self.limit_punt(meter);
    }

    /// Limits what was just sent up: by the meter that is named, or else by that of all packets to controllers.
    fn limit_punt(&mut self, meter: Option<u32>) {
        if let Some(punt @ DpAction::Punt(_)) = self.out.last_mut() {
            *punt = meters::to_controller(self.bridge, meter, punt.clone());
        }
    }

    fn packet_in_context(&self, userdata: &[u8]) -> PacketInContext {
        PacketInContext {
            bridge: self.bridge.id,
            table: TableId(self.table),
            userdata: userdata.to_vec(),
            metadata: Key::new(),
            tlv: None,
            conntracked: self.conntracked,
            explicit_miss: false,
            implicit_miss: false,
        }
    }

    fn packet_in_punt(&self, reason: PacketInReason, controller_id: u16, max_len: Option<u16>) -> PacketInPunt {
        let rule_cookie = self.cookie.map_or(u64::MAX, |cookie| cookie.0);
        let (reason, kept) = (reason as u8, Kept::default());
        PacketInPunt { context: 0, continuation: None, reason, rule_cookie, controller_id, max_len, kept }
    }

    /// `punt` gets the number of `context`.
    fn send_up(&mut self, context: PacketInContext, punt: PacketInPunt) {
        if !self.charge(limits::STATE) {
            return;
        }
        let (context, held) = self.interners.packet_ins.intern(context);
        self.hold(held.clone());
        let mut kept = punt.kept;
        kept.0.push(held);
        self.out.push(DpAction::Punt(Arc::new(Punt::PacketIn(PacketInPunt { context, kept, ..punt }))));
    }

    /// A label stack that cannot be handled.
    pub(super) fn too_many_labels(&mut self) {
        self.fail(XlateError::TooManyLabels, "more MPLS labels than the 3 supported");
    }
}

/// Leaves of a tunnel's headers what controllers are told, as in OVS: key, addresses and group. The rest is not matched, so that it differs
/// among the packets of a flow.
fn forget_headers(key: &mut Key) {
    if !key.present().has(BlockId::Tunnel) {
        return;
    }
    let all = *key.tunnel();
    let told = key.tunnel_mut();
    *told = Key::new().tunnel().to_owned();
    (told.tun_id, told.tun_src, told.tun_dst) = (all.tun_id, all.tun_src, all.tun_dst);
    (told.tun_ipv6_src, told.tun_ipv6_dst) = (all.tun_ipv6_src, all.tun_ipv6_dst);
    (told.tun_gbp_id, told.tun_gbp_flags) = (all.tun_gbp_id, all.tun_gbp_flags);
}
