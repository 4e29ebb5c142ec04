//! VLAN configuration of a port, and what it does to tags in NORMAL forwarding
//! (ovs-vswitchd.conf.db(5), "VLAN Configuration").

use packet::flow::{VLAN_PRESENT, block::Vlan};
use smallvec::{SmallVec, smallvec};

/// How a port treats VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum VlanMode {
    /// Carries one VLAN, untagged.
    Access,
    /// Carries several VLANs, tagged.
    #[default]
    Trunk,
    /// A trunk whose untagged packets belong to the native VLAN; sends that VLAN tagged.
    NativeTagged,
    /// A trunk whose untagged packets belong to the native VLAN; sends that VLAN untagged.
    NativeUntagged,
    /// Puts every packet, tagged or not, into a service VLAN by an outer tag.
    Dot1qTunnel,
}

impl VlanMode {
    /// Name in the `vlan_mode` column.
    pub fn name(self) -> &'static str {
        match self {
            VlanMode::Access => "access",
            VlanMode::Trunk => "trunk",
            VlanMode::NativeTagged => "native-tagged",
            VlanMode::NativeUntagged => "native-untagged",
            VlanMode::Dot1qTunnel => "dot1q-tunnel",
        }
    }
}

/// When a port sends a tag with VLAN id zero to carry a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PriorityTags {
    /// Never.
    #[default]
    Never,
    /// When the priority is not zero.
    IfNonzero,
    /// Always.
    Always,
}

/// A set of VLAN ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Whether `vid` is in the set.
    pub fn has(&self, vid: u16) -> bool {
        self.0[usize::from(vid & 0xfff) / 64] & 1 << (vid % 64) != 0
    }

    /// The members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..4096).filter(|&vid| self.has(vid))
    }
}

impl FromIterator<u16> for VlanSet {
    fn from_iter<T: IntoIterator<Item = u16>>(vids: T) -> VlanSet {
        let mut set = VlanSet(Box::new([0; 64]));
        for vid in vids {
            set.0[usize::from(vid & 0xfff) / 64] |= 1 << (vid % 64);
        }
        set
    }
}

/// VLAN configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortVlan {
    /// Mode.
    pub mode: VlanMode,
    /// The access, native or service VLAN.
    pub tag: u16,
    /// The VLANs that a trunk carries; `None` for all.
    pub trunks: Option<VlanSet>,
    /// The customer VLANs that a dot1q-tunnel accepts; `None` for all.
    pub cvlans: Option<VlanSet>,
    /// Ethernet type of the tag that a dot1q-tunnel adds: 0x88a8 or 0x8100.
    pub qinq_ethertype: u16,
    /// Tags with VLAN id zero.
    pub priority_tags: PriorityTags,
    /// Nothing is sent from one protected port to another.
    pub protected: bool,
}

impl Default for PortVlan {
    /// A trunk of all VLANs.
    fn default() -> PortVlan {
        PortVlan {
            mode: VlanMode::Trunk,
            tag: 0,
            trunks: None,
            cvlans: None,
            qinq_ethertype: 0x88a8,
            priority_tags: PriorityTags::Never,
            protected: false,
        }
    }
}

/// The tags of a packet during NORMAL processing, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Tags(SmallVec<[Tag; 3]>);

/// One tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tag {
    /// Ethernet type; zero for none.
    pub tpid: u16,
    /// VLAN id.
    pub vid: u16,
    /// Priority, in place: the high three bits.
    pub pcp: u16,
}

impl Tags {
    /// The tags of a packet.
    pub fn new(tags: &[Vlan]) -> Tags {
        let tag = |vlan: &Vlan| {
            let tci = vlan.tci.get();
            Tag { tpid: vlan.tpid.get(), vid: tci & 0xfff, pcp: tci & 0xe000 }
        };
        Tags(tags.iter().map(tag).collect())
    }

    /// The tags as they are sent. Leading tags without VLAN id and priority are left out unless `priority`
    /// says otherwise; what is below a tag that stays does, too, which OVS would drop.
    pub fn sent(&self, priority: PriorityTags) -> impl Iterator<Item = Vlan> {
        let empty = move |tag: &&Tag| tag.vid | tag.pcp == 0 && (priority != PriorityTags::Always || tag.tpid == 0);
        self.0.iter().skip_while(empty).map(|tag| Vlan {
            tpid: if tag.tpid != 0 { tag.tpid } else { 0x8100 }.into(),
            tci: (tag.vid | tag.pcp | VLAN_PRESENT).into(),
        })
    }

    /// Id of the VLAN that the packet is in, zero for none.
    pub fn vid(&self) -> u16 {
        self.0.first().map_or(0, |tag| tag.vid)
    }

    /// VLAN id of the second tag, zero for none.
    fn inner_vid(&self) -> u16 {
        self.0.get(1).map_or(0, |tag| tag.vid)
    }

    /// The outermost tag, an empty one where there was none.
    pub fn outer_mut(&mut self) -> &mut Tag {
        if self.0.is_empty() {
            self.0.push(Tag::default());
        }
        &mut self.0[0]
    }

    fn pop(&mut self) {
        if !self.0.is_empty() {
            self.0.remove(0);
        }
    }

    fn push(&mut self, tag: Tag) {
        self.0.insert(0, tag);
    }
}

impl PortVlan {
    /// An access port of this VLAN.
    pub fn access(tag: u16) -> PortVlan {
        PortVlan { mode: VlanMode::Access, tag, ..PortVlan::default() }
    }

    /// Whether the port carries this VLAN as a trunk. One with a native VLAN carries that one, and not
    /// VLAN 0, to which untagged packets would belong otherwise.
    fn trunks(&self, vid: u16) -> bool {
        let native = matches!(self.mode, VlanMode::NativeTagged | VlanMode::NativeUntagged) && self.tag != 0;
        match native {
            true if vid == self.tag || vid == 0 => vid == self.tag,
            _ => self.trunks.as_ref().is_none_or(|set| set.has(vid)),
        }
    }

    fn allows_customer(&self, vid: u16) -> bool {
        self.cvlans.as_ref().is_none_or(|set| set.has(vid))
    }

    /// Whether the port accepts a packet with this outer VLAN id, zero for none.
    pub fn accepts(&self, vid: u16) -> bool {
        match self.mode {
            VlanMode::Access => vid == 0,
            VlanMode::Trunk => self.trunks(vid),
            VlanMode::NativeTagged | VlanMode::NativeUntagged => vid == 0 || self.trunks(vid),
            VlanMode::Dot1qTunnel => self.allows_customer(vid),
        }
    }

    /// The tags inside the bridge of a packet that came in with `tags`.
    pub fn ingress(&self, mut tags: Tags) -> Tags {
        let outer = tags.0.first().copied().unwrap_or_default();
        let tpid = if outer.tpid != 0 { outer.tpid } else { 0x8100 };
        let own = Tag { tpid, vid: self.tag, pcp: outer.pcp };
        match self.mode {
            VlanMode::Access => Tags(smallvec![own]),
            VlanMode::Trunk => tags,
            VlanMode::NativeTagged | VlanMode::NativeUntagged if outer.vid == 0 => {
                *tags.outer_mut() = own;
                tags
            }
            VlanMode::NativeTagged | VlanMode::NativeUntagged => tags,
            VlanMode::Dot1qTunnel => {
                tags.push(Tag { tpid: self.qinq_ethertype, vid: self.tag, pcp: 0 });
                tags
            }
        }
    }

    /// Whether the port carries a packet that has these tags inside the bridge.
    pub fn includes(&self, tags: &Tags) -> bool {
        let vid = tags.vid();
        match self.mode {
            VlanMode::Access => vid == self.tag && tags.inner_vid() == 0,
            VlanMode::Trunk => self.trunks(vid),
            VlanMode::NativeTagged | VlanMode::NativeUntagged => self.trunks(vid),
            VlanMode::Dot1qTunnel => vid == self.tag && self.allows_customer(tags.inner_vid()),
        }
    }

    /// The tags with which the port sends a packet that has `tags` inside the bridge.
    pub fn egress(&self, tags: &Tags) -> Tags {
        let mut out = tags.clone();
        match self.mode {
            VlanMode::Access => out = Tags::default(),
            VlanMode::Trunk | VlanMode::NativeTagged => {}
            VlanMode::NativeUntagged if tags.vid() == self.tag => out.pop(),
            VlanMode::NativeUntagged => {}
            VlanMode::Dot1qTunnel => out.pop(),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(vid: u16) -> Tag {
        Tag { tpid: 0x8100, vid, pcp: 0 }
    }

    #[test]
    fn access_and_trunk() {
        let access = PortVlan::access(10);
        assert!(access.accepts(0) && !access.accepts(10));
        let inside = access.ingress(Tags::default());
        assert_eq!(inside.vid(), 10);
        let trunk = PortVlan { trunks: Some([10, 20].into_iter().collect()), ..PortVlan::default() };
        assert!(trunk.includes(&inside) && trunk.accepts(20) && !trunk.accepts(0) && !trunk.accepts(30));
        assert_eq!(trunk.egress(&inside), inside);
        assert_eq!(access.egress(&inside), Tags::default());
        assert!(!PortVlan::access(20).includes(&inside));
    }

    #[test]
    fn native() {
        let untagged = PortVlan { mode: VlanMode::NativeUntagged, tag: 5, ..PortVlan::default() };
        let tagged = PortVlan { mode: VlanMode::NativeTagged, ..untagged.clone() };
        let inside = untagged.ingress(Tags::default());
        assert_eq!(inside.vid(), 5);
        assert_eq!(untagged.egress(&inside), Tags::default());
        assert_eq!(tagged.egress(&inside).vid(), 5);
        assert_eq!(untagged.egress(&Tags(smallvec![tag(6)])).vid(), 6);
    }

    #[test]
    fn tunnel() {
        let port = PortVlan {
            mode: VlanMode::Dot1qTunnel,
            tag: 100,
            cvlans: Some([7].into_iter().collect()),
            ..PortVlan::default()
        };
        assert!(port.accepts(7) && !port.accepts(8));
        let tags = Tags(smallvec![tag(7), tag(9)]);
        let inside = port.ingress(tags.clone());
        assert_eq!(inside.0[..], [Tag { tpid: 0x88a8, vid: 100, pcp: 0 }, tag(7), tag(9)]);
        assert!(port.includes(&inside));
        assert_eq!(port.egress(&inside), tags);
    }
}
