//! Sending: to ports, to all ports, through patches, to controllers.

use datapath::{Action as DpAction, DropReason};
use openflow::{OfPort, PacketInReason, PortConfig, Subfield};
use packet::Field;
use packet::flow::BlockId;

use super::packet_type;
use super::trace::Event;
use super::{Ctx, XlateError, is_ip};
use crate::model::forwarding::{BridgeState, PortState};
use crate::model::port::Device;

impl<'a> Ctx<'a, '_> {
    /// The output action, to a port or a reserved one.
    pub(super) fn output_action(&mut self, port: OfPort, max_len: u16) {
        match port {
            OfPort::IN_PORT => self.output(self.in_port()),
            OfPort::TABLE => {
                let in_port = self.in_port();
                self.table_action(in_port, 0, true, false);
            }
            OfPort::NORMAL => self.normal(),
            OfPort::FLOOD => self.flood(false),
            OfPort::ALL => self.flood(true),
            OfPort::CONTROLLER => {
                let reason = match (self.in_group, self.in_packet_out, self.in_action_set) {
                    (true, ..) => PacketInReason::Group,
                    (_, true, _) => PacketInReason::PacketOut,
                    (_, _, true) => PacketInReason::ActionSet,
                    _ => PacketInReason::Action,
                };
                self.punt(reason, 0, Some(max_len), &[], false);
            }
            OfPort::ANY | OfPort::UNSET => {}
            port if port == self.in_port() => {
                self.not_sent(DropReason::Reflection);
                self.event(|| Event::Warning("skipping output to input port"));
            }
            port => self.output(port),
        }
    }

    pub(super) fn output_reg(&mut self, src: &Subfield, max_len: u16) {
        let value = self.read(src).low();
        if value <= 0xffff || src.n_bits == 32 {
            let port = openflow::action::port_from_value(value, src.n_bits);
            self.detail(|| format!("output port is {port}"));
            self.output_action(port, max_len);
        } else {
            self.warning(|| format!("output port {value} is out of range"));
        }
    }

    pub(super) fn output_trunc(&mut self, port: OfPort, max_len: u32) {
        let port = if port == OfPort::IN_PORT { self.in_port() } else { port };
        if port.is_reserved() && port != OfPort::LOCAL {
            return self.warning(|| format!("output_trunc does not support port: {port}"));
        }
        if port == self.in_port() {
            self.not_sent(DropReason::Reflection);
            return self.detail(|| "skipping output to input port".into());
        }
        let can = |state: &PortState| state.dp_port.is_some() || matches!(state.device, Device::Tunnel(_));
        if !self.port(port).is_some_and(can) {
            let text = format!("output_trunc does not support patch port {port}");
            return self.event(|| Event::Error(&text));
        }
        self.commit();
        self.out.push(DpAction::Truncate { max_len });
        self.output(port);
        // It is not for what is sent next.
        self.out.pop_if(|action| matches!(action, DpAction::Truncate { .. }));
    }

    pub(super) fn enqueue(&mut self, port: OfPort, queue: u32) {
        self.wc.set_exact(Field::SkbPriority);
        let port = if port == OfPort::IN_PORT { self.in_port() } else { port };
        let old = self.flow.common().skb_priority;
        self.set_queue(queue);
        if port == self.in_port() {
            self.not_sent(DropReason::Reflection);
            self.event(|| Event::Warning("skipping output to input port"));
        } else {
            self.output(port);
        }
        self.flow.common_mut().skb_priority = old;
    }

    /// A queue's number is the priority, as in OVS's userspace datapath.
    pub(super) fn set_queue(&mut self, queue: u32) {
        self.wc.set_exact(Field::SkbPriority);
        self.flow.common_mut().skb_priority = queue.into();
    }

    fn flood(&mut self, all: bool) {
        let in_port = self.in_port();
        let bridge = self.bridge;
        self.record.depends_on_all_ports(bridge.id);
        self.charge(bridge.ports.len() / 8);
        for (&port, state) in &bridge.ports {
            if port != in_port && (all || !state.config.contains(PortConfig::NO_FLOOD)) {
                self.output(port);
            }
        }
        self.note_flood();
    }

    /// Sends the packet as it is now to a port, whichever it is.
    pub(super) fn output(&mut self, port: OfPort) {
        if self.error.is_some() {
            return;
        }
        let Some(state) = self.port(port) else {
            self.not_sent(DropReason::NoSuchPort);
            return self.event(|| Event::Warning("Nonexistent output port"));
        };
        if state.config.contains(PortConfig::NO_FWD) {
            self.not_sent(DropReason::PortDown);
            return self.detail(|| "OFPPC_NO_FWD set, skipping output".into());
        }
        if state.vlan.protected && self.port(self.in_port()).is_some_and(|from| from.vlan.protected) {
            self.not_sent(DropReason::ProtectedPort);
            return self.event(|| Event::Warning("Flow is between protected ports, skipping output."));
        }
        if !self.spanning_tree_lets_out(state) {
            return self.not_sent(DropReason::SpanningTree);
        }
        if packet_type::of(&self.flow) != packet_type::ETHERNET && !state.takes_bare() {
            self.not_sent(DropReason::UnsupportedPacketType);
            return self
                .event(|| Event::Warning("the port sends Ethernet only, skipping output of a packet without it"));
        }
        let is_patch = matches!(state.device, Device::Patch { .. });
        if !is_patch && !state.queue_dscp.is_empty() {
            return self.output_with_dscp(state);
        }
        self.send(state);
    }

    /// Sends an IP packet with the DSCP of its queue. What is sent next has its own.
    fn output_with_dscp(&mut self, to: &'a PortState) {
        self.wc.set_exact(Field::SkbPriority);
        let queue = self.flow.common().skb_priority.get();
        let Some(&dscp) = to.queue_dscp.get(&queue).filter(|_| is_ip(&self.flow)) else { return self.send(to) };
        let tos = self.flow.common().nw_tos;
        self.write(Field::IpDscp, dscp.into(), 0x3f);
        self.send(to);
        self.flow.common_mut().nw_tos = tos;
    }

    fn send(&mut self, state: &'a PortState) {
        match (&state.device, state.dp_port) {
            (Device::Patch { .. }, _) if self.mirror_max_len != super::mirror::WHOLE => {
                self.event(|| Event::Warning("Mirror truncate to ODPP_NONE, skipping output"));
            }
            (Device::Patch { peer, .. }, _) => self.cross_patch(state, peer),
            (Device::Tunnel(tunnel), _) => {
                let before = self.destinations.clone();
                self.send_through_tunnel(state, tunnel);
                self.note_sent_through(state, before);
            }
            (Device::Datapath(_), Some(port)) => {
                self.commit();
                if self.ends_tunnel_at(state) {
                    self.note_sent(state);
                    return self.mirror_sent(state);
                }
                self.sample_sent(port, None);
                self.truncate_for_mirror();
                let by_bond = self.by_bond.take();
                self.out.push(by_bond.unwrap_or(DpAction::Output(port)));
                self.note_sent(state);
                self.mirror_sent(state);
            }
            (Device::Datapath(_), None) => self.not_sent(DropReason::NoSuchPort),
        }
    }

    /// Has the next output send no more than the mirror wants, while its copy is sent.
    pub(super) fn truncate_for_mirror(&mut self) {
        if self.mirror_max_len != super::mirror::WHOLE {
            self.out.push(DpAction::Truncate { max_len: self.mirror_max_len.into() });
        }
    }

    /// Translates the packet in the bridge at the other end of a patch. Afterwards the packet here is as it was.
    fn cross_patch(&mut self, from: &'a PortState, peer: &str) {
        let Some((bridge, to)) = self.forwarding.peer(&from.name, peer) else {
            self.not_sent(DropReason::NoSuchPort);
            return self.event(|| Event::Warning("the other end of the patch port does not exist"));
        };
        self.keep_copies();
        self.in_bridge(bridge, to, |ctx| ctx.on_copy(|ctx| ctx.enter_bridge(to)));
        self.record.patches.push((from.patch.clone(), to.patch.clone()));
    }

    /// Has a packet that comes in at a port of another bridge translated there. Afterwards the packet here is as it was.
    pub(super) fn in_bridge(&mut self, bridge: &'a BridgeState, at: &'a PortState, enter: impl FnOnce(&mut Self)) {
        let flow = Box::new(self.flow.clone());
        let (stack, set) = (std::mem::take(&mut self.stack), std::mem::take(&mut self.action_set));
        let old = (self.bridge, self.table, self.rule, self.cookie, self.table_miss);
        let old_flags = (self.was_mpls, self.in_action_set, self.in_packet_out, self.in_group);
        (self.in_action_set, self.in_packet_out, self.in_group) = (false, false, false);
        let mirrored = self.mirrored;
        if bridge.id != self.bridge.id {
            self.mirrored = 0;
        }
        self.bridge = bridge;
        self.flow.common_mut().in_port = at.port.0.into();
        for block in [BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
            if self.flow.present().has(block) {
                self.flow.block_mut(block).0.fill(0);
            }
        }
        self.flow.pipeline_mut().actset_output = OfPort::UNSET.0.into();
        let looked_at = self.leave_tun();
        self.event(|| Event::Bridge(&bridge.config.name));
        enter(self);
        self.leave();
        self.look_again(looked_at);
        if bridge.id != old.0.id {
            self.mirrored = mirrored;
        }
        (self.bridge, self.table, self.rule, self.cookie, self.table_miss) = old;
        (self.was_mpls, self.in_action_set, self.in_packet_out, self.in_group) = old_flags;
        (self.flow, self.stack, self.action_set) = (*flow, stack, set);
        // What ends the pipeline over there does not end it here.
        self.exit = false;
        if let Some(error) = self.error
            && !matches!(error, XlateError::TooManyResubmits | XlateError::TooMuchWork)
        {
            self.error = None;
            self.not_sent(error.drop_reason());
        }
    }

    /// Begins the pipeline of a packet that has crossed a patch.
    pub(super) fn enter_bridge(&mut self, port: &PortState) {
        if port.spanning_tree.state.is_some() {
            // Changes of the state are told by the port's number.
            self.record.depends_on_port(self.bridge.id, port.port);
        }
        self.clear_conntrack();
        if self.may_receive(port) && self.is_taken_by_protocol(port) {
            return;
        }
        if self.may_receive(port) {
            self.as_spanning_tree_allows(Some(port), |ctx| {
                ctx.table_action(port.port, 0, true, false);
                ctx.end_pipeline();
            });
        } else {
            self.not_sent(DropReason::InPortDown);
        }
    }
}
