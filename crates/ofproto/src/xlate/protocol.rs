//! Frames of protocols that the switch itself takes part in: they go to the protocol's sessions, and not through the tables.

use std::sync::Arc;

use datapath::{Action as DpAction, Punt};
use packet::Field;
use packet::flow::frag;
use packet::wire::{ethertype, ip_proto};
use protocols::bfd::control::PORT as BFD_PORT;
use protocols::cfm::ccm::ETHERTYPE as CFM;
use protocols::lldp::pdu::ETHERTYPE as LLDP;

use super::Ctx;
use crate::model::forwarding::PortState;

impl Ctx<'_, '_> {
    /// Has a frame that came in by a port handled by the switch itself, where it is of a protocol that is spoken by the port. As in OVS, CFM
    /// comes before BFD, that before LACP, then spanning trees, and LLDP last.
    pub(super) fn is_taken_by_protocol(&mut self, port: &PortState) -> bool {
        self.error.is_none()
            && (self.is_taken_by_cfm(port)
                || self.is_taken_by_bfd(port)
                || self.is_taken_by_lacp(port)
                || self.is_taken_by_spanning_tree(port)
                || self.is_taken_by_lldp(port))
    }

    fn is_taken_by_cfm(&mut self, port: &PortState) -> bool {
        let Some(settings) = &port.path_checks.cfm else { return false };
        // The type is matched by all flows.
        if self.flow.common().dl_type.get() != CFM {
            return false;
        }
        self.wc.set_exact(Field::DlDst);
        if settings.check_tnl_key {
            self.wc.set_exact(Field::TunId);
        }
        if !settings.accepts(self.flow.common().dl_dst, self.tunnel_key()) {
            return false;
        }
        self.take(
            Punt::Cfm { bridge: self.bridge.id.0, port: port.port.0 },
            "CFM is spoken by this port, which takes the frame",
        )
    }

    fn is_taken_by_bfd(&mut self, port: &PortState) -> bool {
        let Some(settings) = &port.path_checks.bfd else { return false };
        if self.flow.common().dl_type.get() != ethertype::IPV4 {
            return false;
        }
        self.wc.set_exact(Field::NwProto);
        let is_later_fragment = self.flow.common().nw_frag & frag::LATER != 0;
        if self.flow.common().nw_proto != ip_proto::UDP || is_later_fragment || !self.is_tp_dst(BFD_PORT) {
            return false;
        }
        if settings.remote_dst_mac.is_some() {
            self.wc.set_exact(Field::DlDst);
        }
        if settings.checks_ip_dst() {
            self.wc.set_exact(Field::NwDst);
        }
        if settings.check_tnl_key {
            self.wc.set_exact(Field::TunId);
        }
        let (eth_dst, ip_dst) = (self.flow.common().dl_dst, self.flow.get(Field::NwDst) as u32);
        if !settings.accepts(eth_dst, ip_dst.into(), self.tunnel_key()) {
            return false;
        }
        self.take(
            Punt::Bfd { bridge: self.bridge.id.0, port: port.port.0 },
            "BFD is spoken by this port, which takes the packet",
        )
    }

    /// As in OVS, whatever address the frame is to.
    fn is_taken_by_lldp(&mut self, port: &PortState) -> bool {
        // The type is matched by all flows.
        if !port.lldp || self.flow.common().dl_type.get() != LLDP {
            return false;
        }
        self.take(
            Punt::Lldp { bridge: self.bridge.id.0, port: port.port.0 },
            "LLDP is spoken by this port, which takes the frame",
        )
    }

    /// The key of the tunnel that the packet came by, 0 without one.
    fn tunnel_key(&self) -> u64 {
        self.flow.get(Field::TunId) as u64
    }

    pub(super) fn take(&mut self, punt: Punt, detail: &str) -> bool {
        self.out.push(DpAction::Punt(Arc::new(punt)));
        self.detail(|| detail.into());
        true
    }

    /// Whether a datagram is for this port. Where it is not, one bit that differs is matched, so that other datagrams have few flows.
    pub(super) fn is_tp_dst(&mut self, port: u16) -> bool {
        let difference = self.flow.common().tp_dst.get() ^ port;
        let looked_at = if difference == 0 { u16::MAX } else { 0x8000 >> difference.leading_zeros() };
        let bits = self.wc.0.common_mut();
        bits.tp_dst = (bits.tp_dst.get() | looked_at).into();
        difference == 0
    }
}
