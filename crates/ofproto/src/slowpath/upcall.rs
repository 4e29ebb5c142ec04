//! Packets from the datapath: those that no flow matches, and those for the controllers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use datapath::{
    Action as DpAction, Datapath, DropReason, FlowId, FlowTag, MADE_UP, Miss, PacketInPunt, Punt, RemovedFlow, Upcall,
    Verdict,
};
use openflow::{Cookie, Match, OfPort, PacketIn, PacketInFormat, PacketInReason};
use packet::flow::BlockId;
use packet::flow::field::FIELDS;
use packet::flow::text::NoNames;
use packet::{Field, Key, Mask, Packet, Time};

use crate::events::PacketInEvent;
use crate::model::forwarding::{BridgeId, Forwarding};
use crate::model::mac::is_multicast;
use crate::model::mac_batch::MacBatch;
use crate::model::tlv;
use crate::slowpath::change_set::ChangeSet;
use crate::slowpath::record::FlowRecord;
use crate::slowpath::ways::Outcome;
use crate::switch::Switch;
use crate::trace::{Request, trace};
use crate::xlate::{LearntFlow, Translation, XlateError, meter};

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

    fn version_of(&self, tag: &FlowTag, key: &Key, mask: &Mask) -> Option<u64> {
        self.0.upgrade()?.version_of(tag, key, mask)
    }

    fn is_current(&self, version: u64) -> bool {
        self.0.upgrade().is_some_and(|switch| switch.is_current(version))
    }

    fn installed(&self, flows: &[(FlowId, FlowTag)]) {
        if let Some(switch) = self.0.upgrade() {
            switch.installed(flows);
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
            self.verification.connect(&datapath);
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
        let (mut learnt, mut done) = (Vec::new(), 0);
        while done < misses.len() {
            let (more, taught) = self.decide(&mut misses[done..], now);
            done += more;
            if taught {
                learnt.push(done - 1);
            }
        }
        // The table has all that the batch has taught.
        for number in learnt {
            let miss = &mut misses[number];
            let verdict = std::mem::take(&mut miss.verdict);
            miss.verdict = self.after_learning(&miss.key, verdict, now);
        }
    }

    /// Each kind of punt has its receiver here.
    fn punt(&self, packet: &Packet, key: &Key, punt: &Punt, now: Time) {
        match punt {
            Punt::PacketIn(punt) => self.packet_in(packet, key, punt),
            &Punt::Unresolved { question, continuation } => {
                self.unresolved(packet, key, question, continuation, now);
            }
            Punt::Slow => self.translate_one(packet, key, now),
            Punt::Sflow(punt) => self.sample_sflow(packet, key, punt),
            Punt::Ipfix(punt) => self.sample_ipfix(packet, key, punt),
            &Punt::Lacp { bridge, port } => self.receive_lacp(BridgeId(bridge), OfPort(port), packet.data()),
            &Punt::Bfd { bridge, port } => self.receive_bfd((BridgeId(bridge), OfPort(port)), packet.data()),
            &Punt::Cfm { bridge, port } => self.receive_cfm((BridgeId(bridge), OfPort(port)), packet.data()),
            &Punt::Bpdu { bridge, port } => self.receive_bpdu(BridgeId(bridge), OfPort(port), packet.data()),
            &Punt::Lldp { bridge, port } => self.receive_lldp((BridgeId(bridge), OfPort(port)), packet.data()),
            &Punt::Neighbour { bridge } => self.listen(packet, BridgeId(bridge), now),
        }
    }

    /// Other packets of the batch may have taught flows meanwhile.
    fn version_of(&self, tag: &FlowTag, key: &Key, mask: &Mask) -> Option<u64> {
        let affecting = self.affecting.load(Ordering::SeqCst);
        let Some(record) = tag.downcast_ref::<FlowRecord>() else { return Some(affecting) };
        let valid_at = record.valid_at.load(Ordering::SeqCst);
        if valid_at >= affecting {
            return Some(affecting);
        }
        let forwarding = self.forwarding.read();
        let changes = ChangeSet::since(&forwarding, valid_at);
        let read = |masked: &mut Key| {
            *masked = key.masked(mask);
            true
        };
        let about = changes.sorter().is_about(tag, &Arc::new(mask.clone()), &read);
        (!about).then(|| forwarding.affecting.load(Ordering::SeqCst))
    }

    /// A round for a change begins after the change, and walks over the flows with the lock held with which this is
    /// called. So a flow that was translated before the change is refused here, or the round meets it.
    fn is_current(&self, version: u64) -> bool {
        self.affecting.load(Ordering::SeqCst) <= version
    }

    /// A flow may be installed with an address that has moved meanwhile.
    fn installed(&self, flows: &[(FlowId, FlowTag)]) {
        let forwarding = self.forwarding.read();
        for (flow, tag) in flows {
            if let Some(record) = tag.downcast_ref::<FlowRecord>() {
                self.adopt(*flow, record, &forwarding);
            }
        }
    }

    fn evicted(&self, flows: Vec<RemovedFlow>) {
        self.credit_last(flows);
    }
}

impl Switch {
    /// Decides about the first packets: all of them, or up to one that flows are learnt from. Returns how many, and whether
    /// the last one is such a packet.
    fn decide(&self, misses: &mut [Miss], now: Time) -> (usize, bool) {
        let forwarding = self.forwarding.read();
        let (batch, mut learnt, mut done) = (MacBatch::default(), Vec::new(), 0);
        for miss in misses {
            (miss.verdict, learnt) = self.miss(&forwarding, &batch, miss, now);
            done += 1;
            if !learnt.is_empty() {
                break;
            }
        }
        let neighbours = batch.take_neighbours();
        // Before other changes: the ports are still there.
        self.learn_macs(&forwarding, batch);
        drop(forwarding);
        self.log_trace();
        self.see_neighbours(&neighbours, now);
        self.learn_flows(&learnt, now);
        (done, !learnt.is_empty())
    }

    /// Decides about a packet, and credits it, unless that is done. The flow that is installed for it counts the packets
    /// after it. Returns the flows that it teaches, too.
    fn miss(&self, forwarding: &Forwarding, batch: &MacBatch, miss: &Miss, now: Time) -> (Verdict, Vec<LearntFlow>) {
        let key = &*miss.key;
        let credit = |record: &FlowRecord| {
            if !miss.counted {
                record.credit(1, miss.bytes(), now, key.common().tcp_flags.get());
            }
        };
        // What a way's mask is finished by, all packets on it have in common. That of an exact flow is not.
        let has_ways = !self.are_flows_exact() && key.common().recirc_id.get() == 0;
        if has_ways && let Some(outcome) = self.records.ways.find(forwarding, key) {
            credit(&outcome.record);
            return (install(outcome), Vec::new());
        }
        let Some(translation) = self.translate_dp(forwarding, key, Some(batch), now) else {
            return (Verdict::Drop(DropReason::UpcallError), Vec::new());
        };
        let Translation { mask, decided_by, actions, mut record, learnt, error, slow, too_long, .. } = translation;
        self.trace_log.note(error, key, now);
        if matches!(error, Some(XlateError::NoBridge | XlateError::NoContext)) {
            credit(&record);
            return (Verdict::Drop(DropReason::UpcallError), learnt);
        }
        if slow {
            // Where a packet is dropped is found out when it is translated for itself.
            record.drop_site = None;
        }
        // What holds for a while only, such as an announcement that may be a bond's reflection, is decided for one packet.
        if slow && record.volatile {
            credit(&record);
            return (Verdict::Execute(vec![slow_path(forwarding, key)]), Vec::new());
        }
        if too_long || record.volatile {
            credit(&record);
            return (Verdict::Execute(actions), learnt);
        }
        if slow {
            // It comes up again, to be translated for itself: that teaches flows.
            let mask = self.mask_of_flow(mask, key);
            let outcome = self.records.share_outcome(forwarding, record, &mask, vec![slow_path(forwarding, key)]);
            credit(&outcome.record);
            return (install(outcome), Vec::new());
        }
        let outcome = self.records.share_outcome(forwarding, record, &self.mask_of_flow(mask, key), actions);
        credit(&outcome.record);
        if has_ways && let Some(decided_by) = decided_by {
            self.records.ways.add(forwarding, key, decided_by, &outcome);
        }
        (install(outcome), learnt)
    }

    /// Logs the trace of a packet whose resubmits have no end, as OVS does. Not to be called with the tables locked.
    fn log_trace(&self) {
        let Some(mut key) = self.trace_log.take() else { return };
        // Values of options are not in the form in which a trace takes them.
        if !tracing::enabled!(tracing::Level::WARN) || key.present().has(BlockId::TunMeta0) {
            return;
        }
        let Ok((bridge, port)) = self.locate(&key) else { return };
        key.common_mut().in_port = port.0.into();
        let (bridge, ports) = (&*bridge, &NoNames);
        let request =
            Request { bridge, key: &key, actions: None, packet: None, ct_next: &[], ports, datapath_ports: ports };
        if let Some(trace) = trace(self, &request) {
            let text = trace.render(&|_, text| text.to_owned());
            let (flow, lines) = text.split_once('\n').unwrap_or((&text, ""));
            tracing::warn!(lines, "{flow}");
        }
    }

    /// The verdict on a packet that flows were learnt from: its translation is out of date by that. So the flow is as a
    /// new one has it, if that agrees, and otherwise left to the next packet.
    fn after_learning(&self, key: &Key, verdict: Verdict, now: Time) -> Verdict {
        let Verdict::Install { actions, .. } = verdict else { return verdict };
        let forwarding = self.forwarding.read();
        match self.translate_dp(&forwarding, key, None, now) {
            Some(new) if !new.record.volatile && !new.slow && new.actions[..] == actions[..] => {
                let mask = self.mask_of_flow(new.mask, key);
                install(self.records.share_outcome(&forwarding, new.record, &mask, new.actions))
            }
            _ => Verdict::Execute(actions.to_vec()),
        }
    }

    /// Does with a packet of a flow that has no actions of its own what the tables say of it.
    fn translate_one(&self, packet: &Packet, key: &Key, now: Time) {
        let Some(datapath) = self.datapath.get() else { return };
        let is_late = datapath.has_injected_enough();
        // Who is a member of a multicast group is learnt all the same, so that those who send more than is forwarded don't keep
        // others from joining.
        if is_late && !is_multicast(key.common().dl_dst) {
            self.slow_drops.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let made_up = if key.common().packet_type.get() == 0 { 0 } else { datapath::MADE_UP };
        let bytes = packet.len().saturating_sub(made_up) as u64;
        let forwarding = self.forwarding.read();
        let translation = self.translate_sized(&forwarding, key, None, now, Some(bytes));
        if let Some(translation) = &translation {
            self.hear(&forwarding, &translation.heard, packet.data(), now);
        }
        drop(forwarding);
        if is_late {
            self.slow_drops.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (actions, learnt) = match translation {
            Some(translation) => {
                if let Some(site) = &translation.record.drop_site {
                    site.add(1, bytes);
                }
                (translation.actions, translation.learnt)
            }
            None => (vec![DpAction::Drop(DropReason::UpcallError)], Vec::new()),
        };
        datapath.execute(Packet::from_slice(packet.data()), key, &actions);
        self.learn_flows(&learnt, now);
    }

    /// Packets of flows without actions of their own that were dropped because too many waited.
    pub fn slow_drops(&self) -> u64 {
        self.slow_drops.load(Ordering::Relaxed)
    }

    /// Drops a packet of which nobody knows what to do with it.
    fn cannot_tell(&self, packet: &Packet, key: &Key) {
        match self.datapath.get() {
            Some(datapath) if !datapath.has_injected_enough() => {
                datapath.execute(Packet::from_slice(packet.data()), key, &[DpAction::Drop(DropReason::UpcallError)]);
            }
            _ => drop(self.slow_drops.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Hands a packet to the controllers of its bridge. A context that is not known comes from a flow that was given as text.
    fn packet_in(&self, packet: &Packet, key: &Key, punt: &PacketInPunt) {
        let Some(context) = self.interners.packet_ins.get(punt.context) else { return self.cannot_tell(packet, key) };
        let mut metadata = metadata_match(&context.metadata);
        if let Some(tlv) = &context.tlv {
            metadata.tun_metadata = tlv::of_packet(&context.metadata, tlv);
        }
        if context.conntracked {
            add_conntrack(&mut metadata, key);
        }
        let kind = key.common().packet_type.get();
        let data = if kind == 0 { packet.data() } else { packet.data().get(MADE_UP..).unwrap_or_default() };
        if kind != 0 {
            metadata.set(Field::PacketType, kind.into());
        }
        let paused = punt.continuation.and_then(|id| Some((id, self.interners.frozen.get(id)?)));
        let event = PacketInEvent {
            packet_in: PacketIn {
                format: PacketInFormat::Standard,
                buffer_id: None,
                total_len: data.len() as u32,
                reason: reason(punt.reason),
                table: context.table,
                cookie: Some(punt.rule_cookie).filter(|&cookie| cookie != u64::MAX).map(Cookie),
                metadata,
                data: data.to_vec(),
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

/// What the flow does whose packets are translated one by one.
pub(crate) fn slow_path(forwarding: &Forwarding, key: &Key) -> DpAction {
    let punt = DpAction::Punt(Arc::new(Punt::Slow));
    let bridge = forwarding.by_dp_port.get(&datapath::upcall::in_port(key)).map(|(bridge, _)| bridge);
    match bridge.and_then(|bridge| forwarding.bridges.get(bridge)) {
        Some(bridge) => meter::to_slow_path(bridge, punt),
        None => punt,
    }
}

/// The verdict that asks for a flow with this outcome.
fn install(Outcome { record, mask, actions }: Outcome) -> Verdict {
    Verdict::Install { mask, actions, tag: record }
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

/// Adds what connection tracking has found out about a packet: what is not zero, and the original direction of its
/// connection where it has a valid one. These fields need the packet's Ethernet type.
fn add_conntrack(matching: &mut Match, key: &Key) {
    if key.get(Field::CtState) == 0 {
        return;
    }
    let dl_type = key.common().dl_type.get();
    for field in [Field::CtState, Field::DlType] {
        matching.set(field, key.get(field));
    }
    for field in [Field::CtZone, Field::CtMark, Field::CtLabel].into_iter().filter(|&field| key.get(field) != 0) {
        matching.set(field, key.get(field));
    }
    let addresses = match dl_type {
        0x0800 => [Field::CtNwSrc, Field::CtNwDst],
        0x86dd => [Field::CtIpv6Src, Field::CtIpv6Dst],
        _ => return,
    };
    if key.ct().ct_nw_proto != 0 && addresses[0].info().prereq.check(&matching.key, &matching.mask) {
        for field in addresses.into_iter().chain([Field::CtNwProto, Field::CtTpSrc, Field::CtTpDst]) {
            matching.set(field, key.get(field));
        }
    }
}
