//! Recirculation: the pipeline stops, the datapath parses the packet again, the pipeline goes on.

use std::sync::Arc;

use datapath::{Action as DpAction, Punt};
use openflow::action::Controller;
use openflow::{Action, Cookie, OfPort, PacketInReason, TableId};
use packet::Key;
use packet::flow::BlockId;

use super::steps::{Step, StepRef};
use super::trace::Event;
use super::{Ctx, XlateError, limits};
use crate::model::forwarding::BridgeId;
use crate::model::mirror::MirrorSet;

/// A pipeline that waits for its packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frozen {
    pub bridge: BridgeId,
    /// Where to go on when no steps are left.
    pub table: u8,
    /// What is not in the packet: ports, registers, metadata, tunnel.
    pub metadata: Key,
    pub stack: Vec<(u128, u16)>,
    pub action_set: Vec<Action>,
    pub steps: Vec<Step>,
    /// The mirrors that have got their copy.
    pub mirrored: MirrorSet,
}

/// What is known about a packet that goes to the controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PuntInfo {
    pub bridge: BridgeId,
    pub reason: PacketInReason,
    pub table: TableId,
    pub cookie: Option<Cookie>,
    pub controller_id: u16,
    /// `None` for what the connection says.
    pub max_len: Option<u16>,
    pub userdata: Vec<u8>,
    pub metadata: Key,
    pub explicit_miss: bool,
    pub implicit_miss: bool,
    /// The pipeline's state, for one that goes on when the controller says so.
    pub paused: Option<u32>,
}

/// The part of a key that is not in the packet.
pub(crate) fn metadata(key: &Key) -> Key {
    let mut out = Key::new();
    let (from, to) = (key.common(), out.common_mut());
    (to.in_port, to.pkt_mark, to.skb_priority) = (from.in_port, from.pkt_mark, from.skb_priority);
    for block in [BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
        if !key.block(block).is_zero() {
            *out.block_mut(block) = *key.block(block);
        }
    }
    if key.present().has(BlockId::TunMeta0) {
        *out.tun_metadata_mut() = *key.tun_metadata();
    }
    out
}

impl Ctx<'_, '_> {
    /// Has the pipeline stop; what is left of it is collected while the calls return.
    pub(super) fn freeze(&mut self) {
        self.freezing = true;
        self.exit = true;
    }

    /// Collects the steps of one rule that are left.
    pub(super) fn freeze_steps<'e>(&mut self, steps: impl Iterator<Item = StepRef<'e>>) {
        let mut steps = steps.peekable();
        if steps.peek().is_some() {
            self.frozen_steps.push(Step::Resume { table: TableId(self.table), cookie: self.cookie });
        }
        for step in steps {
            if !self.charge(limits::size_of_step(&step)) {
                return;
            }
            self.frozen_steps.push(step.to_step());
        }
    }

    /// Sends the packet round.
    pub(super) fn finish_freezing(&mut self) {
        self.commit();
        self.charge(limits::STATE + self.stack.len());
        let frozen = Frozen {
            bridge: self.bridge.id,
            table: 0,
            metadata: metadata(&self.flow),
            stack: self.stack.clone(),
            action_set: std::mem::take(&mut self.action_set),
            steps: std::mem::take(&mut self.frozen_steps),
            mirrored: self.mirrored,
        };
        let (id, held) = self.interners.frozen.intern(frozen);
        self.hold(held);
        match self.pausing.take() {
            None => self.out.push(DpAction::Recirc(id)),
            Some(info) => self.send_up(PuntInfo { metadata: metadata(&self.flow), paused: Some(id), ..*info }),
        }
        self.freezing = false;
        self.exit = false;
        self.was_mpls = false;
    }

    /// Has the pipeline stop until the controller says that it may go on.
    pub(super) fn pause(&mut self, controller: &Controller) {
        let info = PuntInfo {
            bridge: self.bridge.id,
            reason: controller.reason,
            table: TableId(self.table),
            cookie: self.cookie,
            controller_id: controller.id,
            max_len: Some(u16::MAX),
            userdata: controller.userdata.clone(),
            metadata: Key::new(),
            explicit_miss: false,
            implicit_miss: false,
            paused: None,
        };
        self.pausing = Some(Box::new(info));
        // Where nothing is left to do, the pipeline goes on at its end, and not at its start.
        self.frozen_steps.push(Step::Resume { table: TableId(self.table), cookie: self.cookie });
        self.freeze();
    }

    /// Goes on where `frozen` stopped.
    pub(super) fn thaw(&mut self, frozen: &Frozen) {
        self.event(|| Event::Thaw { table: TableId(frozen.table) });
        self.table = frozen.table;
        self.mirrored = frozen.mirrored;
        let (from, to) = (frozen.metadata.common(), self.flow.common_mut());
        (to.in_port, to.pkt_mark, to.skb_priority) = (from.in_port, from.pkt_mark, from.skb_priority);
        for block in [BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
            *self.flow.block_mut(block) = *frozen.metadata.block(block);
        }
        if frozen.metadata.present().has(BlockId::TunMeta0) {
            *self.flow.tun_metadata_mut() = *frozen.metadata.tun_metadata();
        }
        self.stack = frozen.stack.clone();
        self.flow.pipeline_mut().actset_output = OfPort::UNSET.0.into();
        self.write_actions(&frozen.action_set);
        if frozen.steps.is_empty() {
            let in_port = self.in_port();
            self.table_action(in_port, frozen.table, true, false);
        } else {
            self.steps(frozen.steps.iter().map(Step::as_ref));
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
        self.commit();
        let explicit_miss = reason == PacketInReason::Action && self.table_miss;
        let reason = if explicit_miss { PacketInReason::NoMatch } else { reason };
        let info = PuntInfo {
            bridge: self.bridge.id,
            reason,
            table: TableId(self.table),
            cookie: self.cookie,
            controller_id,
            max_len,
            userdata: userdata.to_vec(),
            metadata: metadata(&self.flow),
            explicit_miss,
            implicit_miss,
            paused: None,
        };
        self.send_up(info);
    }

    fn send_up(&mut self, info: PuntInfo) {
        if !self.charge(limits::STATE) {
            return;
        }
        let (id, held) = self.interners.punts.intern(info);
        self.hold(held);
        self.out.push(DpAction::Punt(Arc::new(Punt { max_len: u16::MAX, cookie: id.into() })));
    }

    /// A label stack that cannot be handled.
    pub(super) fn too_many_labels(&mut self) {
        self.fail(XlateError::TooManyLabels, "more MPLS labels than the 3 supported");
    }
}
