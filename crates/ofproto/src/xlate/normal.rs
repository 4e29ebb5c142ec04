//! NORMAL: a learning switch with VLANs.

use datapath::DropReason;
use openflow::OfPort;
use packet::flow::VLAN_PRESENT;
use packet::{Field, Key, Mask};

use super::Ctx;
use super::trace::Event;
use crate::model::forwarding::{BridgeState, PortState};
use crate::model::mac::MacKey;
use crate::model::vlan::{PortVlan, PriorityTags, Tags, VlanMode};

impl Ctx<'_, '_> {
    /// The NORMAL action.
    pub(super) fn normal(&mut self) {
        self.wc.set_exact(Field::DlSrc);
        self.wc.set_exact(Field::DlDst);
        self.wc.add(Field::VlanTci, (VLAN_PRESENT | 0xfff).into());
        let in_port = self.in_port();
        let source = self.port(in_port);
        let is_known = source.map_or(matches!(in_port, OfPort::CONTROLLER | OfPort::ANY), |port| !port.is_unbundled());
        if !is_known {
            self.not_sent(DropReason::NoSuchPort);
            return self.event(|| Event::Warning("no input bundle, dropping"));
        }
        let common = self.flow.common();
        if matches!(common.dl_type.get(), 0x8100 | 0x88a8) && common.vlan[0].tci.get() & VLAN_PRESENT == 0 {
            self.not_sent(DropReason::Malformed);
            return self.event(|| Event::Warning("partial VLAN tag, dropping"));
        }

        if source.is_some_and(|port| self.bridge.is_mirror_port(port)) {
            self.not_sent(DropReason::MirrorPort);
            return self.event(|| Event::Warning("input port is mirror output port, dropping"));
        }

        // 1. The VLAN inside the bridge.
        let received = Tags::new(&self.flow.tags());
        let any = PortVlan::default();
        let vlan = source.map_or(&any, |port| &port.vlan);
        if matches!(vlan.mode, VlanMode::Dot1qTunnel | VlanMode::Access) {
            self.wc.add(Field::VlanTci, VLAN_PRESENT.into());
        }
        let (port, received_vid) = (source.map_or("", |port| &*port.name), received.vid());
        if !vlan.accepts(received_vid) {
            self.event(|| Event::VlanIn { port, vlan, received: received_vid, inside: None });
            self.not_sent(DropReason::VlanNotAllowed);
            return self.event(|| Event::Warning("disallowed VLAN VID for this input port, dropping"));
        }
        let tags = self.ingress(vlan, received);
        let vid = tags.vid();
        if source.is_some() {
            self.event(|| Event::VlanIn { port, vlan, received: received_vid, inside: Some(vid) });
        }
        let common = self.flow.common();

        // 2. Frames that bridges keep for themselves.
        if !self.bridge.config.forward_bpdu && source.is_some() && is_reserved(common.dl_dst) {
            self.not_sent(DropReason::ReservedAddress);
            return self.detail(|| "packet has reserved destination MAC, dropping".into());
        }

        // 3. Learn where the source is.
        let (dst, src) = (MacKey { vlan: vid, mac: common.dl_dst }, MacKey { vlan: vid, mac: common.dl_src });
        if source.is_some_and(|port| !self.is_admitted(port, src)) {
            return;
        }
        let in_port = self.bridge.logical(in_port);
        let announces = is_gratuitous_arp(&self.flow, &mut self.wc);
        // In a VLAN without learning every packet is flooded.
        let learns = !self.bridge.config.flood_vlans.contains(&vid);
        if let Some(port) = source.filter(|_| learns) {
            self.learn_source(src, in_port, announces && self.bridge.bond_of(port).is_none());
        }

        // 4. Forward.
        if self.is_snooped(source, in_port, &tags) {
            return;
        }
        let bridge = self.bridge;
        let known = match self.learning {
            _ if !learns => None,
            Some(batch) => batch.lookup(bridge, dst),
            None => bridge.macs.read().lookup(dst),
        };
        if learns {
            self.record.macs.add_destination(bridge.id, dst, known);
        }
        match known.map(|port| self.port(port)) {
            Some(Some(port)) if bridge.is_mirror_port(port) => {
                self.not_sent(DropReason::MirrorPort);
                self.event(|| Event::Warning("learned port is a mirror port, dropping"));
            }
            Some(Some(port)) if bridge.logical(port.port) == in_port => {
                self.not_sent(DropReason::Reflection);
                self.detail(|| "learned port is input port, dropping".into());
            }
            Some(Some(port)) => {
                self.detail(|| "forwarding to learned port".into());
                self.output_tagged(port, &tags);
            }
            Some(None) => {
                self.not_sent(DropReason::NoSuchPort);
                self.event(|| Event::Warning("learned port is unknown, dropping"));
            }
            None => {
                self.detail(|| "no learned MAC for destination, flooding".into());
                self.flood_vlan(bridge, in_port, &tags);
            }
        }
    }

    /// Learns where an address is; `announced`: it has been announced by another port than a bond, whose reflections of that are not to
    /// count for a while.
    fn learn_source(&mut self, key: MacKey, port: OfPort, announced: bool) {
        let bridge = self.bridge;
        self.record.macs.add_source(bridge.id, key, port);
        if let Some(batch) = self.learning {
            if announced {
                batch.lock(bridge, key, self.now);
            }
            if batch.learn(bridge, key, port, self.now) {
                let name = bridge.ports.get(&port).map_or("", |state| &state.name);
                let mac = openflow::EthAddr(key.mac);
                self.detail(|| format!("learned that {mac} is on port {name} in VLAN {}", key.vlan));
            }
        } else if bridge.macs.read().would_change(key, port) {
            self.record.volatile = true;
        }
    }

    pub(super) fn flood_vlan(&mut self, bridge: &BridgeState, in_port: OfPort, tags: &Tags) {
        self.record.depends_on_all_ports(bridge.id);
        self.charge(bridge.ports.len() / 8);
        for state in bridge.logical_ports() {
            let floods = bridge.floods(state) && !bridge.is_mirror_port(state);
            if bridge.logical(state.port) == in_port || !floods {
                continue;
            }
            if !state.spanning_tree.forwards() {
                self.not_sent(DropReason::SpanningTree);
            } else if self.includes(state, tags) {
                self.output_tagged(state, tags);
            } else {
                self.not_sent(DropReason::VlanNotAllowed);
            }
        }
        self.note_flood();
    }

    /// The tags inside the bridge.
    pub(super) fn ingress(&mut self, vlan: &PortVlan, received: Tags) -> Tags {
        if vlan.mode == VlanMode::Dot1qTunnel {
            super::headers::vlan_count_wc(&self.flow, &mut self.wc);
        }
        vlan.ingress(received)
    }

    /// Whether the port carries a packet with these tags inside the bridge. Matches the inner tag where
    /// that decides.
    pub(super) fn includes(&mut self, port: &PortState, tags: &Tags) -> bool {
        let tagged = self.flow.common().vlan[0].tci.get() & VLAN_PRESENT != 0;
        let bits = match port.vlan.mode {
            VlanMode::Dot1qTunnel if port.vlan.cvlans.is_some() => 0xffff,
            VlanMode::Access if tagged && tags.vid() == port.vlan.tag => VLAN_PRESENT | 0xfff,
            _ => 0,
        };
        let inner = &mut self.wc.0.common_mut().vlan[1].tci;
        *inner = (inner.get() | bits).into();
        port.vlan.includes(tags)
    }

    /// Sends with the tags that the port wants.
    pub(super) fn output_tagged(&mut self, port: &PortState, tags: &Tags) {
        let (old, covered) = (self.flow.common().vlan, self.flow.covered.clone());
        let present = old.map(|tag| tag.tci.get() & VLAN_PRESENT != 0);
        let inside = tags.vid();
        let mut tags = port.vlan.egress(tags);
        if port.vlan.priority_tags != PriorityTags::Never {
            self.wc.add(Field::VlanTci, 0xe000);
            tags.outer_mut().pcp = old[0].tci.get() & 0xe000;
        }
        self.flow.set_tags(tags.sent(port.vlan.priority_tags));
        let sent = Some(self.flow.common().vlan[0].tci.get()).filter(|tci| tci & VLAN_PRESENT != 0);
        let (vlan, sent) = (&port.vlan, sent.map(|tci| tci & 0xfff));
        self.event(|| Event::VlanOut { port: &port.name, vlan, inside, sent });
        let changed = self.flow.common().vlan != old;
        // A port that takes tags off may give back a priority: then the same tag is sent, but an inner one
        // would not be.
        let takes_off = !matches!(port.vlan.mode, VlanMode::Trunk | VlanMode::NativeTagged);
        if changed || takes_off && present[0] {
            // What is sent depends on both tags.
            super::headers::vlan_count_wc(&self.base, &mut self.wc);
        }
        // An empty tag at the front is not sent: what is, or may be, at the front is matched.
        let first = changed || present[0] && old[0].tci.get() & 0xfff == 0;
        if first {
            self.wc.add(Field::VlanTci, 0xffff);
        }
        if first && present[1] {
            self.wc.0.common_mut().vlan[1].tci = 0xffff.into();
        }
        self.output_logical(port, inside);
        (self.flow.common_mut().vlan, self.flow.covered) = (old, covered);
    }
}

/// 01:80:c2:00:00:00 to 01:80:c2:00:00:0f (IEEE 802.1Q table 8-1).
pub(super) fn is_reserved(mac: ports::Mac) -> bool {
    mac[..5] == [0x01, 0x80, 0xc2, 0, 0] && mac[5] <= 0x0f
}

/// Whether a packet is a gratuitous ARP message, by which a station says where it is now. Matters to bonds; the bits that tell are
/// matched everywhere, as OVS does.
pub(super) fn is_gratuitous_arp(flow: &Key, wc: &mut Mask) -> bool {
    const REQUEST: u8 = 1;
    const REPLY: u8 = 2;
    let common = flow.common();
    if common.dl_type.get() != 0x0806 || common.dl_dst != [0xff; 6] {
        return false;
    }
    wc.set_exact(Field::ArpOp);
    if common.nw_proto == REQUEST {
        wc.set_exact(Field::ArpSpa);
        wc.set_exact(Field::ArpTpa);
        return common.nw_src == common.nw_dst;
    }
    common.nw_proto == REPLY
}
