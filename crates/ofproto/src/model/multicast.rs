//! What a bridge has learnt of multicast groups, and its lock. Translations read it; messages of membership change it, which go up
//! one by one (`slowpath::multicast`). Workers never touch it.
//!
//! A port here is the number of the one that stands for the logical port ([`BridgeState::logical`](super::forwarding::BridgeState)).

use std::net::IpAddr;

use parking_lot::RwLock;
use protocols::mcast::{Changes, Destination, Port, Settings, Snooping, Stats, Why};

/// What is learnt, where the bridge snoops.
#[derive(Default)]
pub(crate) struct MulticastSnooping(RwLock<Option<Snooping>>);

impl MulticastSnooping {
    /// For a bridge with these settings.
    pub fn new(settings: Option<Settings>) -> MulticastSnooping {
        MulticastSnooping(RwLock::new(settings.map(Snooping::new)))
    }

    /// Puts settings into force. What was learnt is forgotten where the bridge snoops no longer. Whoever calls has all flows looked at.
    pub fn configure(
        &self,
        settings: Option<Settings>,
        ports: impl Iterator<Item = (Port, protocols::mcast::PortSettings)>,
    ) {
        let mut state = self.0.write();
        let Some(settings) = settings else { return *state = None };
        let snooping = state.get_or_insert_with(|| Snooping::new(settings));
        snooping.configure(settings);
        ports.for_each(|(port, settings)| snooping.configure_port(port, settings));
        // Of these, all flows that depend on groups learn.
        drop(snooping.take_changes());
    }

    /// Where packets for an address go in a VLAN.
    pub fn destination(&self, vlan: u16, address: IpAddr) -> Destination {
        self.0.read().as_ref().map_or(Destination::Flood, |snooping| snooping.destination(vlan, address))
    }

    /// Where reports go in a VLAN.
    pub fn report_ports(&self, vlan: u16) -> Vec<(Port, Why)> {
        self.0.read().as_ref().map_or_else(Vec::new, |snooping| snooping.report_ports(vlan))
    }

    /// Changes what was learnt; nothing where the bridge does not snoop. The flows that depend on what has changed are to be looked at.
    #[must_use]
    pub fn change(&self, change: impl FnOnce(&mut Snooping)) -> Changes {
        let mut state = self.0.write();
        let Some(snooping) = state.as_mut() else { return Changes::default() };
        change(snooping);
        snooping.take_changes()
    }

    /// Reads it; none where the bridge does not snoop.
    pub fn read<T>(&self, read: impl FnOnce(&Snooping) -> T) -> Option<T> {
        self.0.read().as_ref().map(read)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.read(Snooping::stats).unwrap_or_default()
    }
}
