//! NORMAL and mirrors, by lists of tags.

use super::frame::Frame;
use super::{PacketInFlight, Reference, Sent};
use crate::model::mirror::{MirrorOutput, PortSelection};
use crate::model::vlan::{PortVlan, PriorityTags, VlanMode};
use openflow::OfPort;

/// Tags of a frame, outermost first: TPID and TCI.
type Tags = Vec<(u16, u16)>;

const VID: u16 = 0xfff;
const PCP: u16 = 0xe000;

fn vid(tags: &[(u16, u16)]) -> u16 {
    tags.first().map_or(0, |tag| tag.1 & VID)
}

/// Whether a trunk's list, or a tunnel's, has this VLAN.
fn listed(vlan: &PortVlan, vid: u16) -> bool {
    let native = matches!(vlan.mode, VlanMode::NativeTagged | VlanMode::NativeUntagged) && vlan.tag != 0;
    match (native, vlan.mode) {
        (true, _) if vid == 0 || vid == vlan.tag => vid == vlan.tag,
        (_, VlanMode::Dot1qTunnel) => vlan.cvlans.as_ref().is_none_or(|set| set.has(vid)),
        _ => vlan.trunks.as_ref().is_none_or(|set| set.has(vid)),
    }
}

/// The tags inside the bridge; `None` for a frame that may not come in here.
fn inside(vlan: &PortVlan, tags: &[(u16, u16)]) -> Option<Tags> {
    let (outer, pcp) = tags.first().map_or((0x8100, 0), |tag| (tag.0, tag.1 & PCP));
    let own = (outer, vlan.tag | pcp);
    match (vlan.mode, vid(tags)) {
        (VlanMode::Access, 0) => Some(vec![own]),
        (VlanMode::Access, _) => None,
        (VlanMode::NativeTagged | VlanMode::NativeUntagged, 0) => {
            Some([own].into_iter().chain(tags.iter().skip(1).copied()).collect())
        }
        (_, vid) if !listed(vlan, vid) => None,
        (VlanMode::Dot1qTunnel, _) => {
            Some([(vlan.qinq_ethertype, vlan.tag)].into_iter().chain(tags.iter().copied()).collect())
        }
        _ => Some(tags.to_vec()),
    }
}

fn carries(vlan: &PortVlan, tags: &[(u16, u16)]) -> bool {
    let inner = vid(tags.get(1..).unwrap_or_default());
    match vlan.mode {
        VlanMode::Access => vid(tags) == vlan.tag && inner == 0,
        VlanMode::Dot1qTunnel => vid(tags) == vlan.tag && listed(vlan, inner),
        _ => listed(vlan, vid(tags)),
    }
}

/// The tags that the port sends, of a frame that has the priority `pcp`.
fn outside(vlan: &PortVlan, mut tags: Tags, pcp: u16) -> Tags {
    match vlan.mode {
        VlanMode::Access => tags.clear(),
        VlanMode::Dot1qTunnel if !tags.is_empty() => drop(tags.remove(0)),
        VlanMode::NativeUntagged if vid(&tags) == vlan.tag && !tags.is_empty() => drop(tags.remove(0)),
        _ => {}
    }
    if vlan.priority_tags != PriorityTags::Never {
        match tags.first_mut() {
            Some(tag) => tag.1 = tag.1 & !PCP | pcp,
            None if pcp != 0 => tags.push((0x8100, pcp)),
            None => {}
        }
    }
    // Empty tags are not sent.
    while tags.first().is_some_and(|tag| tag.1 == 0 && vlan.priority_tags != PriorityTags::Always) {
        tags.remove(0);
    }
    tags
}

impl Reference {
    pub(super) fn normal(&mut self, in_flight: &mut PacketInFlight, sent: &mut Sent) {
        let Some(vlan) = self.ports.get(&in_flight.in_port) else { return };
        if self.is_mirror_port(in_flight.in_port) {
            return;
        }
        // A tag that is cut short.
        if in_flight.frame.tags() == 0 && matches!(in_flight.frame.key().0.common().dl_type.get(), 0x8100 | 0x88a8) {
            return;
        }
        let bytes = &in_flight.frame.bytes;
        let (dst, src): ([u8; 6], [u8; 6]) = (bytes[..6].try_into().unwrap(), bytes[6..12].try_into().unwrap());
        let Some(tags) = inside(vlan, &in_flight.frame.tag_list()) else { return };
        if reserved(dst) {
            return;
        }
        let vid = vid(&tags);
        let learns = !self.flood_vlans.contains(&vid);
        if learns && src[0] & 1 == 0 && self.macs.insert((vid, src), in_flight.in_port) != Some(in_flight.in_port) {
            self.taught.insert((vid, src));
        }
        if let Some(receivers) = self.snoop(in_flight, vid) {
            let is_receiver = |port: &OfPort| receivers.as_ref().is_none_or(|ports| ports.contains(port));
            return self.send_to_others(in_flight, &tags, is_receiver, sent);
        }
        self.asks_what_was_taught |= self.taught.contains(&(vid, dst));
        match self.macs.get(&(vid, dst)).filter(|_| learns) {
            Some(&port) if port == in_flight.in_port || self.is_mirror_port(port) => {}
            Some(&port) => self.send_tagged(in_flight, port, &tags, sent),
            None => self.send_to_others(in_flight, &tags, |_| true, sent),
        }
    }

    /// Sends to those other ports that carry the VLAN.
    fn send_to_others(
        &self,
        in_flight: &mut PacketInFlight,
        tags: &Tags,
        is_receiver: impl Fn(&OfPort) -> bool,
        sent: &mut Sent,
    ) {
        let others = self.ports.iter().filter(|(port, vlan)| **port != in_flight.in_port && carries(vlan, tags));
        let others: Vec<OfPort> = others.map(|(port, _)| *port).filter(is_receiver).collect();
        for port in others.into_iter().filter(|&port| !self.is_mirror_port(port)) {
            self.send_tagged(in_flight, port, tags, sent);
        }
    }

    fn send_tagged(&self, in_flight: &mut PacketInFlight, port: OfPort, tags: &Tags, sent: &mut Sent) {
        let Some(vlan) = self.ports.get(&port) else { return };
        let pcp = in_flight.frame.tci().map_or(0, |tci| tci & PCP);
        let old = in_flight.frame.clone();
        in_flight.frame.set_tag_list(&outside(vlan, tags.clone(), pcp));
        self.send(in_flight, port, sent);
        in_flight.frame = old;
    }

    pub(super) fn is_mirror_port(&self, port: OfPort) -> bool {
        self.mirrors.iter().any(|mirror| mirror.output == MirrorOutput::Port(name(port)))
    }

    pub(super) fn mirror_received(&self, in_flight: &mut PacketInFlight, sent: &mut Sent) {
        self.mirror(in_flight, in_flight.in_port, &|mirror| &mirror.sources, sent);
    }

    pub(super) fn mirror_sent(&self, in_flight: &mut PacketInFlight, port: OfPort, sent: &mut Sent) {
        self.mirror(in_flight, port, &|mirror| &mirror.destinations, sent);
    }

    fn mirror(
        &self,
        in_flight: &mut PacketInFlight,
        port: OfPort,
        selection: &dyn Fn(&crate::model::mirror::Mirror) -> &PortSelection,
        sent: &mut Sent,
    ) {
        let Some(tags) = self.ports.get(&port).and_then(|vlan| inside(vlan, &in_flight.frame.tag_list())) else {
            return;
        };
        let dst: [u8; 6] = in_flight.frame.bytes[..6].try_into().unwrap();
        for mirror in &self.mirrors {
            let selected = match selection(mirror) {
                PortSelection::All => true,
                PortSelection::Ports(names) => names.contains(&name(port)),
            };
            let in_vlan = mirror.vlans.as_ref().is_none_or(|vlans| vlans.contains(&vid(&tags)));
            if !selected || !in_vlan || in_flight.mirrored.contains(&mirror.output) {
                continue;
            }
            in_flight.mirrored.push(mirror.output.clone());
            match &mirror.output {
                MirrorOutput::Port(out) => {
                    if let Some(&out) = self.ports.keys().find(|&&port| name(port) == *out) {
                        self.send_tagged(in_flight, out, &tags, sent);
                    }
                }
                MirrorOutput::Vlan(out) if *out != vid(&tags) && !reserved(dst) => {
                    let mut tags = tags.clone();
                    match tags.first_mut() {
                        Some(tag) => tag.1 = tag.1 & !VID | out,
                        None => tags.push((0x8100, *out)),
                    }
                    let ports: Vec<_> = self.ports.iter().filter(|(_, vlan)| carries(vlan, &tags)).collect();
                    for (&port, _) in ports.into_iter().filter(|(port, _)| !self.is_mirror_port(**port)) {
                        self.send_tagged(in_flight, port, &tags, sent);
                    }
                }
                MirrorOutput::Vlan(_) => {}
            }
        }
    }
}

fn name(port: OfPort) -> String {
    format!("p{}", port.0)
}

fn reserved(dst: [u8; 6]) -> bool {
    dst[..5] == [1, 0x80, 0xc2, 0, 0] && dst[5] < 16
}

impl Frame {
    fn tag_list(&self) -> Tags {
        let word = |at: usize| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        // The bit that says whether a frame may be dropped is not looked at.
        (0..self.tags()).map(|n| (word(12 + 4 * n), word(14 + 4 * n) & (VID | PCP))).collect()
    }

    fn set_tag_list(&mut self, tags: &[(u16, u16)]) {
        while self.tags() > 0 {
            self.pop();
        }
        tags.iter().rev().for_each(|&(tpid, tci)| self.push(tpid, tci));
    }
}
