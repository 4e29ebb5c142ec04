//! Copies for mirrors.

use packet::Field;
use packet::flow::VLAN_PRESENT;

use super::Ctx;
use crate::model::forwarding::PortState;
use crate::model::mirror::{MirrorOutput, MirrorSet};
use crate::model::vlan::Tags;

/// No truncation by a mirror.
pub(super) const WHOLE: u16 = 0;

impl<'a> Ctx<'a, '_> {
    /// Copies the packet as it came in.
    pub(super) fn mirror_received(&mut self) {
        if let Some(port) = self.port(self.in_port()) {
            self.mirror(port, self.bridge.mirrors_from(port));
        }
    }

    /// Copies the packet as it was sent to a port.
    pub(super) fn mirror_sent(&mut self, port: &'a PortState) {
        self.mirror(port, self.bridge.mirrors_to(port));
    }

    /// Sends copies to `mirrors`, as far as they select the packet's VLAN and have none yet.
    fn mirror(&mut self, port: &'a PortState, mirrors: MirrorSet) {
        if mirrors & !self.mirrored == 0 {
            return;
        }
        self.keep_copies();
        let received = Tags::new(&self.flow.tags());
        self.wc.add(Field::VlanTci, (VLAN_PRESENT | 0xfff).into());
        if !port.vlan.accepts(received.vid()) {
            return;
        }
        let tags = self.ingress(&port.vlan, received);
        let bridge = self.bridge;
        for (n, state) in bridge.mirrors.iter().enumerate() {
            let selects = state.mirror.vlans.as_ref().is_none_or(|vlans| vlans.contains(&tags.vid()));
            if mirrors & !self.mirrored & 1 << n == 0 || !selects {
                continue;
            }
            self.record.mirrors.push(state.counters.clone());
            // Before it is sent: what is sent would be mirrored again.
            self.mirrored |= bridge.same_mirrors(&state.mirror);
            self.mirror_max_len = state.mirror.max_len.unwrap_or(WHOLE);
            self.copy_to(&state.mirror.output, &tags);
            self.mirror_max_len = WHOLE;
        }
    }

    fn copy_to(&mut self, output: &MirrorOutput, tags: &Tags) {
        let bridge = self.bridge;
        self.record.depends_on_all_ports(bridge.id);
        match output {
            MirrorOutput::Port(name) => {
                if let Some(port) = bridge.logical_ports().find(|port| port.logical == *name) {
                    self.output_tagged(port, tags);
                }
            }
            MirrorOutput::Vlan(vid) => {
                self.wc.set_exact(Field::DlDst);
                if tags.vid() == *vid || super::normal::is_reserved(self.flow.common().dl_dst) {
                    return;
                }
                let mut tags = tags.clone();
                tags.outer_mut().vid = *vid;
                for port in bridge.logical_ports() {
                    if self.includes(port, &tags) && !bridge.is_mirror_port(port) {
                        self.output_tagged(port, &tags);
                    }
                }
            }
        }
    }
}
