//! Mirrors: copies of packets that pass a bridge's ports, to one of its ports or into a VLAN
//! (ovs-vswitchd.conf.db(5), "Mirror").

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use crate::model::forwarding::{BridgeState, PortState};

/// Most mirrors of a bridge.
pub const MAX_MIRRORS: usize = 32;

/// A set of a bridge's mirrors, as bits by their index.
pub(crate) type MirrorSet = u32;

/// Which packets are copied, and where to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mirror {
    /// Name.
    pub name: String,
    /// Ports whose received packets are copied.
    pub sources: PortSelection,
    /// Ports to which packets are sent whose copies are sent, too.
    pub destinations: PortSelection,
    /// Only packets of these VLANs; `None` for all.
    pub vlans: Option<BTreeSet<u16>>,
    /// Where copies go.
    pub output: MirrorOutput,
    /// Most bytes of a copy; `None` for all.
    pub max_len: Option<u16>,
}

/// Some ports of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PortSelection {
    /// Every port.
    All,
    /// Those with these names.
    Ports(BTreeSet<String>),
}

impl PortSelection {
    fn has(&self, port: &PortState) -> bool {
        match self {
            PortSelection::All => true,
            PortSelection::Ports(names) => names.contains(&port.name),
        }
    }
}

/// Where a mirror sends copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MirrorOutput {
    /// To the port with this name, which does nothing else from then on.
    Port(String),
    /// To the ports that carry this VLAN, tagged with it (RSPAN).
    Vlan(u16),
}

/// What a mirror has sent.
#[derive(Debug, Default)]
pub struct MirrorCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl MirrorCounters {
    /// Packets copied.
    pub fn packets(&self) -> u64 {
        self.packets.load(Relaxed)
    }

    /// Bytes of these packets.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(crate) fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

/// A mirror in force.
pub(crate) struct MirrorState {
    pub mirror: Mirror,
    pub counters: Arc<MirrorCounters>,
}

impl BridgeState {
    /// Puts the mirrors of the configuration into force. One that keeps its name keeps its counters.
    pub fn set_mirrors(&mut self) {
        let old = std::mem::take(&mut self.mirrors);
        let counters = |name: &str| old.iter().find(|old| old.mirror.name == name).map(|old| old.counters.clone());
        let new = self.config.mirrors.iter().take(MAX_MIRRORS);
        self.mirrors = new
            .map(|mirror| MirrorState { mirror: mirror.clone(), counters: counters(&mirror.name).unwrap_or_default() })
            .collect();
    }

    fn mirrors_where(&self, accepts: impl Fn(&Mirror) -> bool) -> MirrorSet {
        let mirrors = self.mirrors.iter().enumerate();
        mirrors.filter(|(_, state)| accepts(&state.mirror)).fold(0, |set, (n, _)| set | 1 << n)
    }

    /// The mirrors of packets that came in at `port`.
    pub fn mirrors_from(&self, port: &PortState) -> MirrorSet {
        self.mirrors_where(|mirror| mirror.sources.has(port))
    }

    /// The mirrors of packets that are sent to `port`.
    pub fn mirrors_to(&self, port: &PortState) -> MirrorSet {
        self.mirrors_where(|mirror| mirror.destinations.has(port))
    }

    /// The mirrors that send to the same place as this one.
    pub fn same_mirrors(&self, mirror: &Mirror) -> MirrorSet {
        self.mirrors_where(|other| other.output == mirror.output)
    }

    /// Whether the port is there for copies only.
    pub fn is_mirror_port(&self, port: &PortState) -> bool {
        self.mirrors.iter().any(|state| matches!(&state.mirror.output, MirrorOutput::Port(name) if *name == port.name))
    }
}
