//! What each action does to the packet under translation.

use datapath::DropReason;
use openflow::{Action, OfPort, PacketInReason, Subfield, TableId};
use packet::Field;
use packet::flow::{BlockId, VLAN_PRESENT};

use super::copies::is_register;
use super::headers::{self, MAX_LABELS, is_mpls, is_mpls_type};
use super::steps::{PipelineStep, of_action_set};
use super::trace::Event;
use super::{Ctx, ct, is_ip, limits};
use crate::table::Rule;

impl Ctx<'_, '_> {
    /// Executes a list of steps until its end, an error, or something that ends the pipeline. Every list that is nested
    /// in a translation is executed here.
    pub(super) fn steps<'e>(&mut self, steps: impl Iterator<Item = PipelineStep<'e>> + Clone) {
        self.nested(|ctx| ctx.list(steps));
    }

    fn list<'e>(&mut self, steps: impl Iterator<Item = PipelineStep<'e>> + Clone) {
        let mut rest = steps;
        loop {
            let here = rest.clone();
            let Some(step) = rest.next() else { return };
            if !self.charge(limits::cost(&step)) {
                return;
            }
            if self.was_mpls && !self.exit && (needs_l3(&step) || self.selects(&step)) {
                self.freeze();
            }
            if !self.exit
                && let Some(hash) = self.wants_hash(&step)
            {
                self.hashing = Some(hash);
                self.freeze();
            }
            if self.exit {
                if self.freezing {
                    self.freeze_steps(here);
                }
                return;
            }
            self.event(|| Event::from(step));
            if let PipelineStep::Act(Action::CheckPktLarger { pkt_len, dst }) = step {
                return self.check_length(*pkt_len, dst, rest);
            }
            if !self.step(step) {
                if self.error.is_some() {
                    return;
                }
                to_next_list(&mut rest);
            }
        }
    }

    /// Executes one step. False ends the list of its rule.
    fn step(&mut self, step: PipelineStep<'_>) -> bool {
        match step {
            PipelineStep::Act(action) => return self.action(action),
            PipelineStep::Meter(id) => self.meter(id),
            PipelineStep::Clear => {
                let set = std::mem::take(&mut self.action_set);
                self.event(|| Event::ActionSetWas(&set));
                self.flow.pipeline_mut().actset_output = OfPort::UNSET.0.into();
            }
            PipelineStep::Write(actions) => {
                self.write_actions(actions);
                let set = std::mem::take(&mut self.action_set);
                self.event(|| Event::ActionSetIs(&set));
                self.action_set = set;
            }
            PipelineStep::Metadata(write) => {
                let metadata = &mut self.flow.pipeline_mut().metadata;
                *metadata = (metadata.get() & !write.mask | write.value & write.mask).into();
            }
            PipelineStep::Goto(table) => {
                let in_port = self.in_port();
                self.table_action(in_port, table.0, true, false);
            }
            PipelineStep::Resume { table, cookie } => (self.table, self.cookie) = (table.0, cookie),
        }
        true
    }

    /// Adds to the action set. `actset_output` is its output, unless it has a group.
    pub(super) fn write_actions(&mut self, actions: &[Action]) {
        if !self.charge(self.action_set.len() + limits::size(actions)) {
            return;
        }
        self.action_set.extend_from_slice(actions);
        let set = &self.action_set;
        let grouped = set.iter().any(|action| matches!(action, Action::Group(_)));
        let output = set.iter().rev().find_map(|action| match action {
            Action::Output { port, .. } if !grouped => Some(*port),
            _ => None,
        });
        self.flow.pipeline_mut().actset_output = output.unwrap_or(OfPort::UNSET).0.into();
    }

    /// Executes and empties the action set.
    pub(super) fn execute_action_set(&mut self) {
        self.charge(self.action_set.len());
        let list = of_action_set(&std::mem::take(&mut self.action_set));
        if list.is_empty() || self.error.is_some() {
            return;
        }
        self.in_action_set = true;
        self.event(|| Event::ActionSet);
        self.steps(list.iter().map(PipelineStep::Act));
        self.leave();
        self.in_action_set = false;
    }

    fn action(&mut self, action: &Action) -> bool {
        self.keep_copies_for(action);
        match action {
            Action::Output { port, max_len } => {
                self.with_netflow_output(|ctx| ctx.output_action(*port, *max_len));
            }
            Action::OutputReg { src, max_len } => self.with_netflow_output(|ctx| ctx.output_reg(src, *max_len)),
            Action::OutputTrunc { port, max_len } => {
                self.with_netflow_output(|ctx| ctx.output_trunc(*port, *max_len));
            }
            Action::Controller(c) if c.pause => self.pause(c),
            Action::Controller(c) => self.punt_by(c.meter, c.reason, c.id, Some(c.max_len), &c.userdata, false),
            Action::Enqueue { port, queue } => self.with_netflow_output(|ctx| ctx.enqueue(*port, *queue)),
            Action::SetVlanVid { vid, push } => self.set_vlan(0xfff, *vid, *push),
            Action::SetVlanPcp { pcp, push } => self.set_vlan(0xe000, u16::from(*pcp) << 13, *push),
            Action::StripVlan => headers::pop_vlan(&mut self.flow, &mut self.wc),
            Action::PushVlan(tpid) => {
                if !headers::push_vlan(&mut self.flow, &mut self.wc, *tpid) {
                    self.fail(super::XlateError::TooManyTags, "more VLAN tags pushed than the 18 supported");
                }
            }
            Action::SetL4SrcPort(port) => self.set_l4_port(Field::TcpSrc, *port),
            Action::SetL4DstPort(port) => self.set_l4_port(Field::TcpDst, *port),
            Action::RegMove { src, dst } => self.reg_move(src, dst),
            Action::StackPush(src) => {
                let value = self.read(src);
                self.stack.push((value, src.n_bits));
            }
            Action::StackPop(dst) => match self.stack.pop() {
                Some((value, _)) => {
                    self.write_part(dst, &value);
                    self.written(dst);
                }
                None => self.event(|| Event::Error("stack underflow")),
            },
            Action::DecTtl => return self.dec_ttl(&[0]),
            Action::DecTtlCntIds(ids) => return self.dec_ttl(ids),
            Action::DecMplsTtl => return self.dec_mpls_ttl(),
            Action::PushMpls(ethertype) => self.push_mpls(*ethertype),
            Action::PopMpls(ethertype) => self.pop_mpls(*ethertype),
            Action::Encap(encap) => {
                self.encap(encap);
                return self.error.is_none();
            }
            Action::Decap(left) => {
                self.decap(*left);
                return self.error.is_none();
            }
            Action::DecNshTtl => return self.dec_nsh_ttl(),
            Action::SetQueue(queue) => self.set_queue(*queue),
            Action::PopQueue => {
                self.wc.set_exact(Field::SkbPriority);
                self.flow.common_mut().skb_priority = self.priority.into();
            }
            Action::Group(id) => self.group(*id),
            Action::Bundle(bundle) => self.bundle(bundle),
            Action::Multipath(multipath) => self.multipath(multipath),
            Action::Resubmit { in_port, table, with_ct } => self.resubmit(*in_port, *table, *with_ct),
            Action::Learn(learn) => self.learn(learn),
            Action::Exit => self.exit = true,
            Action::DebugRecirc => self.freeze(),
            Action::DebugSlow => self.slow = true,
            Action::Clone(actions) => self.clone_actions(actions),
            Action::Ct(ct) => self.ct(ct),
            Action::CtClear => self.ct_clear(),
            Action::Meter(id) => self.meter(*id),
            Action::Sample(sample) => self.sample_action(sample),
            Action::Note(_) => {}
            Action::SetTunMetadata(value) => self.set_tun(value),
            Action::DeleteField(index) => self.delete_field(*index),
            Action::FinTimeout { idle, hard } => {
                self.wc.set_exact(Field::NwProto);
                if let Some(caps) = self.rule.and_then(Rule::caps) {
                    self.record.fin_timeouts.push((caps.clone(), *idle, *hard));
                }
            }
            action => match action.field_write() {
                Some((field, value, mask)) => self.set_field(field, value, mask),
                None => self.detail(|| "action without effect".into()),
            },
        }
        true
    }

    fn resubmit(&mut self, in_port: OfPort, table: TableId, with_ct: bool) {
        let in_port = if in_port == OfPort::IN_PORT { self.in_port() } else { in_port };
        let table = if table == TableId::ALL { self.table } else { table.0 };
        self.table_action(in_port, table, false, with_ct);
    }

    /// Writes bits of a field, if the packet has it.
    fn set_field(&mut self, field: Field, value: u128, mask: u128) {
        let prereq = field.info().prereq;
        prereq.required_mask(&self.flow, &mut self.wc);
        if prereq.satisfied(&self.flow) {
            self.write(field, value, mask);
        } else {
            self.warning(|| format!("unmet prerequisites for {}, set_field ignored", field.info().name));
        }
    }

    pub(super) fn write(&mut self, field: Field, value: u128, mask: u128) {
        // NXM's in_port has 16 bits, of a port that is kept with 32.
        let (field, value, mask) = match field {
            Field::InPort => {
                let low = self.flow.get(field) & !mask | value & mask;
                (Field::InPortOxm, OfPort::from_u16(low as u16).0.into(), u128::MAX)
            }
            _ => (field, value, mask),
        };
        if !is_register(field) {
            self.keep_copies();
        }
        self.wc.add(field, mask & field.info().max());
        if matches!(field, Field::MplsLabel | Field::MplsTc | Field::MplsTtl) {
            headers::label_count_wc(&self.flow, &mut self.wc);
        }
        let old = self.flow.get(field);
        self.flow.set(field, old & !mask | value & mask);
        let tag = &mut self.flow.common_mut().vlan[0];
        match field {
            Field::DlVlan | Field::DlVlanPcp | Field::VlanPcp => tag.tci = (tag.tci.get() | VLAN_PRESENT).into(),
            Field::VlanTci | Field::VlanVid => {}
            _ => return,
        }
        self.wc.add(Field::VlanTci, VLAN_PRESENT.into());
        if tag.tci.get() & VLAN_PRESENT == 0 {
            (tag.tpid, tag.tci) = (0.into(), 0.into());
        } else if tag.tpid.get() == 0 {
            tag.tpid = 0x8100.into();
        }
    }

    fn set_vlan(&mut self, bits: u16, value: u16, push: bool) {
        self.wc.add(Field::VlanTci, (bits | VLAN_PRESENT).into());
        let tag = &mut self.flow.common_mut().vlan[0];
        if tag.tci.get() & VLAN_PRESENT != 0 || push {
            if tag.tpid.get() == 0 {
                tag.tpid = 0x8100.into();
            }
            tag.tci = (tag.tci.get() & !bits | value | VLAN_PRESENT).into();
        }
    }

    fn set_l4_port(&mut self, field: Field, port: u16) {
        let common = self.flow.common();
        if !is_ip(&self.flow) || common.nw_frag & packet::flow::frag::LATER != 0 {
            return;
        }
        self.wc.set_exact(Field::NwProto);
        if matches!(common.nw_proto, 6 | 17 | 132) {
            self.write(field, port.into(), 0xffff);
        }
    }

    fn reg_move(&mut self, src: &Subfield, dst: &Subfield) {
        for field in [src.field, dst.field] {
            let prereq = field.prereq();
            prereq.required_mask(&self.flow, &mut self.wc);
            if !prereq.satisfied(&self.flow) {
                return;
            }
        }
        match (src.in_key(), dst.in_key()) {
            (Some(from), Some(to)) if self.note_copy(&from, &to) => {
                let value = from.get(&self.flow);
                to.set(&mut self.flow, value);
            }
            _ => {
                let value = self.read(src);
                self.write_part(dst, &value);
            }
        }
        self.written(dst);
    }

    /// False where the TTL is over: the packet is sent to the controllers, and this list ends.
    fn dec_ttl(&mut self, controllers: &[u16]) -> bool {
        if !is_ip(&self.flow) {
            return true;
        }
        self.wc.set_exact(Field::NwTtl);
        let ttl = self.flow.common().nw_ttl;
        if ttl > 1 {
            self.flow.common_mut().nw_ttl = ttl - 1;
            return true;
        }
        for &id in controllers {
            self.punt(PacketInReason::InvalidTtl, id, None, &[], false);
        }
        self.not_sent(DropReason::TtlExceeded);
        let version = if self.flow.common().dl_type.get() == 0x86dd { 6 } else { 4 };
        self.warning(|| format!("IPv{version} decrement TTL exception"));
        false
    }

    fn dec_mpls_ttl(&mut self) -> bool {
        if !is_mpls(&self.flow) {
            return false;
        }
        headers::label_count_wc(&self.flow, &mut self.wc);
        self.wc.set_exact(Field::MplsTtl);
        let ttl = self.flow.get(Field::MplsTtl);
        if ttl > 1 {
            self.flow.set(Field::MplsTtl, ttl - 1);
            return true;
        }
        self.punt(PacketInReason::InvalidTtl, 0, None, &[], false);
        self.not_sent(DropReason::TtlExceeded);
        self.event(|| Event::Warning("MPLS decrement TTL exception"));
        false
    }

    fn push_mpls(&mut self, ethertype: u16) {
        let n = headers::label_count_wc(&self.flow, &mut self.wc);
        if n >= MAX_LABELS {
            return self.too_many_labels();
        }
        if n == 0 {
            self.commit();
        }
        headers::push_mpls(&mut self.flow, n, ethertype, &mut self.wc);
    }

    fn pop_mpls(&mut self, ethertype: u16) {
        let n = headers::label_count_wc(&self.flow, &mut self.wc);
        if headers::pop_mpls(&mut self.flow, n, ethertype, &mut self.wc) {
            self.was_mpls = !is_mpls_type(ethertype);
        } else if n >= MAX_LABELS {
            self.too_many_labels();
        }
    }

    /// Executes actions on a copy. Translation undoes their changes by itself, except truncation, which
    /// stays with the datapath's packet, and what [`Ctx::on_copy`] is for. That the pipeline has ended is no change of the packet.
    fn clone_actions(&mut self, actions: &[Action]) {
        if !self.charge(self.stack.len() + limits::size(&self.action_set)) {
            return;
        }
        let (flow, stack, set) = (Box::new(self.flow.clone()), self.stack.clone(), self.action_set.clone());
        let was_mpls = self.was_mpls;
        if ct::tracks(actions) {
            // Once, instead of in the copy and again behind it.
            self.commit();
        }
        let mut ends = false;
        self.on_copy(|ctx| {
            ctx.steps(actions.iter().map(PipelineStep::Act));
            // A copy that comes round again ends by itself; `exit` and a pause end all, as in OVS.
            ends = ctx.exit && (!ctx.freezing || ctx.is_pausing());
            ctx.end_pipeline();
        });
        (self.flow, self.stack, self.action_set) = (*flow, stack, set);
        (self.was_mpls, self.exit) = (was_mpls, ends);
    }
}

/// Skips what is left of one rule's list. A pipeline that continues has the lists of all rules that were not at their
/// end, one behind the other.
fn to_next_list<'e>(rest: &mut (impl Iterator<Item = PipelineStep<'e>> + Clone)) {
    let mut after = rest.clone();
    while let Some(step) = after.next() {
        if matches!(step, PipelineStep::Resume { .. }) {
            return;
        }
        *rest = after.clone();
    }
    *rest = after;
}

/// Whether a step looks at headers behind the labels that were popped, so that the packet has to be
/// parsed again before it.
fn needs_l3(step: &PipelineStep<'_>) -> bool {
    let PipelineStep::Act(action) = step else { return !matches!(step, PipelineStep::Meter(_)) };
    match action {
        Action::Output { port, .. } => matches!(*port, OfPort::NORMAL | OfPort::TABLE | OfPort::CONTROLLER),
        Action::OutputTrunc { .. } | Action::Enqueue { .. } | Action::OutputReg { .. } | Action::Group(_) => false,
        Action::SetVlanVid { .. } | Action::SetVlanPcp { .. } | Action::SetTunnel(_) | Action::SetQueue(_) => false,
        Action::SetEthSrc(_) | Action::SetEthDst(_) | Action::SetTunMetadata(_) | Action::DeleteField(_) => false,
        Action::SetField { field, .. } => {
            let info = field.info();
            let l3 = matches!(info.block(), BlockId::L3 | BlockId::Encap)
                || matches!(info.prereq, packet::flow::field::Prereq::Ipv4 | packet::flow::field::Prereq::Ip);
            l3 || !matches!(
                info.prereq,
                packet::flow::field::Prereq::None
                    | packet::flow::field::Prereq::Ethernet
                    | packet::flow::field::Prereq::VlanVid
            )
        }
        _ => true,
    }
}
