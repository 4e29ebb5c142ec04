//! Packets from the datapath: those that no flow matches, and those for the controllers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use datapath::{Datapath, DropReason, FlowId, FlowTag, Miss, PacketInPunt, Punt, RemovedFlow, Upcall, Verdict};
use openflow::{Cookie, Match, PacketIn, PacketInFormat, PacketInReason};
use packet::flow::BlockId;
use packet::flow::field::FIELDS;
use packet::{Field, Key, Packet, Time};

use crate::events::PacketInEvent;
use crate::model::forwarding::Forwarding;
use crate::model::mac_batch::MacBatch;
use crate::slowpath::record::FlowRecord;
use crate::switch::Switch;
use crate::xlate::{LearntFlow, XlateError};

/// The switch, as the datapath knows it. The switch owns the datapath. Were it owned in return, neither would ever be
/// freed.
struct SlowPath(Weak<Switch>);

impl Upcall for SlowPath {
    fn misses(&self, misses: &mut [Miss], now: Time) {
        if let Some(switch) = self.0.upgrade() {
            switch.misses(misses, now);
        }
    }

    fn punt(&self, packet: &Packet, key: &Key, punt: &Punt, now: Time) {
        if let Some(switch) = self.0.upgrade() {
            switch.punt(packet, key, punt, now);
        }
    }

    fn installed(&self, flow: FlowId, tag: &FlowTag) {
        if let Some(switch) = self.0.upgrade() {
            switch.installed(flow, tag);
        }
    }

    fn evicted(&self, flows: Vec<RemovedFlow>) {
        if let Some(switch) = self.0.upgrade() {
            switch.evicted(flows);
        }
    }
}

impl Switch {
    /// Connects the datapath, and this switch to it as its slow path. Can be done once.
    pub fn attach(self: &Arc<Switch>, datapath: Arc<Datapath>) {
        if self.datapath.set(datapath.clone()).is_ok() {
            datapath.set_upcall(Arc::new(SlowPath(Arc::downgrade(self))));
        }
    }
}

impl Upcall for Switch {
    fn misses(&self, misses: &mut [Miss], now: Time) {
        if self.settings().hold_misses {
            misses.iter_mut().for_each(|miss| miss.verdict = Verdict::Drop(DropReason::UpcallError));
            return;
        }
        let mut rest = misses;
        while !rest.is_empty() {
            let done = self.decide(rest, now);
            rest = &mut rest[done..];
        }
    }

    /// Each kind of punt has its receiver here.
    fn punt(&self, packet: &Packet, _key: &Key, punt: &Punt, _now: Time) {
        match punt {
            Punt::PacketIn(punt) => self.packet_in(packet, punt),
        }
    }

    /// A flow may be installed out of date: a round between its translation and its installation has not seen it.
    fn installed(&self, flow: FlowId, tag: &FlowTag) {
        let Some(record) = tag.downcast_ref::<FlowRecord>() else { return };
        let forwarding = self.forwarding.read();
        self.adopt(flow, record, &forwarding);
        if record.is_stale(&forwarding) {
            self.round_again.store(true, Ordering::SeqCst);
            self.notify();
        }
    }

    /// Called for each batch of misses, so it never waits for a round: the one that is under way credits these flows,
    /// or the next one.
    fn evicted(&self, flows: Vec<RemovedFlow>) {
        self.evicted.lock().extend(flows);
        if let Some(_round) = self.revalidation.try_lock() {
            self.credit_evicted();
        }
    }
}

impl Switch {
    /// Decides about the first packets: all of them, or up to one that flows are to be learnt from. Returns how many.
    fn decide(&self, misses: &mut [Miss], now: Time) -> usize {
        let forwarding = self.forwarding.read();
        let (batch, mut learnt, mut done) = (MacBatch::default(), Vec::new(), 0);
        for miss in misses {
            (miss.verdict, learnt) = self.miss(&forwarding, &batch, &miss.key, miss.packet.len() as u64, now);
            done += 1;
            if !learnt.is_empty() {
                break;
            }
        }
        // Before other changes: the ports are still there.
        self.learn_macs(&forwarding, batch);
        drop(forwarding);
        self.learn_flows(&learnt, now);
        done
    }

    /// Decides about a packet of `bytes` bytes, and credits it. The flow that is installed for it counts the packets
    /// after it. Returns the flows that it teaches, too.
    fn miss(
        &self,
        forwarding: &Forwarding,
        batch: &MacBatch,
        key: &Key,
        bytes: u64,
        now: Time,
    ) -> (Verdict, Vec<LearntFlow>) {
        let Some(mut translation) = self.translate_dp(forwarding, key, Some(batch), now) else {
            return (Verdict::Drop(DropReason::UpcallError), Vec::new());
        };
        let record = self.records.share(forwarding, std::mem::take(&mut translation.record));
        record.credit(1, bytes, now, key.common().tcp_flags.get());
        if matches!(translation.error, Some(XlateError::NoBridge | XlateError::NoContext)) {
            return (Verdict::Drop(DropReason::UpcallError), Vec::new());
        }
        let verdict = if translation.slow {
            Verdict::Execute(translation.actions)
        } else {
            let mask = self.mask_of_flow(translation.mask, key);
            Verdict::Install { mask, actions: translation.actions, tag: record }
        };
        (verdict, translation.learnt)
    }

    /// Hands a packet to the controllers of its bridge. A context that is not known any more belonged to a flow that
    /// was removed.
    fn packet_in(&self, packet: &Packet, punt: &PacketInPunt) {
        let Some(context) = self.interners.packet_ins.get(punt.context) else { return };
        let paused = punt.continuation.and_then(|id| Some((id, self.interners.frozen.get(id)?)));
        let event = PacketInEvent {
            packet_in: PacketIn {
                format: PacketInFormat::Standard,
                buffer_id: None,
                total_len: packet.len() as u32,
                reason: reason(punt.reason),
                table: context.table,
                cookie: Some(punt.rule_cookie).filter(|&cookie| cookie != u64::MAX).map(Cookie),
                metadata: metadata_match(&context.metadata),
                data: packet.data().to_vec(),
                userdata: context.userdata.clone(),
                continuation: paused.map_or_else(Vec::new, |(id, pipeline)| self.paused.keep(id, pipeline)),
            },
            max_len: punt.max_len,
            controller_id: punt.controller_id,
            explicit_miss: context.explicit_miss,
            implicit_miss: context.implicit_miss,
        };
        for subscriber in self.subscribers(context.bridge) {
            subscriber.packet_in(&event);
        }
    }

    /// Does what `learn` actions ask for.
    pub(crate) fn learn_flows(&self, learnt: &[LearntFlow], now: Time) {
        for flow in learnt {
            if let Err(error) = self.learn_flow(flow, now) {
                tracing::debug!("a learn action's flow was refused: {error}");
            }
        }
    }
}

/// The reason with this number. A datapath flow that an operator adds may have a number that is no reason.
fn reason(number: u8) -> PacketInReason {
    let mut reasons = PacketInReason::NAMES.iter().map(|(reason, _)| *reason);
    reasons.find(|reason| *reason as u8 == number).unwrap_or(PacketInReason::Action)
}

/// The metadata of a packet-in: in_port, and what else is not zero.
fn metadata_match(key: &Key) -> Match {
    let mut matching = Match::any();
    matching.set(Field::InPortOxm, key.get(Field::InPortOxm));
    for info in FIELDS {
        let wide = info.name.starts_with("xreg") || info.name.starts_with("xxreg");
        let other = matches!(info.field, Field::ActsetOutput | Field::SkbPriority | Field::ConjId);
        let metadata = matches!(info.block(), BlockId::Tunnel | BlockId::Pipeline | BlockId::Regs);
        if (metadata || info.field == Field::PktMark) && !wide && !other && key.get(info.field) != 0 {
            matching.set(info.field, key.get(info.field));
        }
    }
    matching
}
