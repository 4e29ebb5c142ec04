//! The switch: all bridges of a daemon over one datapath.

use std::sync::Arc;
use std::time::Duration;

use datapath::{Datapath, Punt};
use packet::{Clock, Key, Packet, Time};

use crate::bridge::{Bridge, BridgeConfig};
use crate::error::Error;

/// Settings of the switch.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSettings {
    /// A datapath flow goes when no packet has used it for this long.
    pub max_idle: Duration,
    /// How often datapath flows are looked through for statistics and expiry.
    pub revalidate_interval: Duration,
}

impl Default for SwitchSettings {
    fn default() -> SwitchSettings {
        SwitchSettings { max_idle: Duration::from_secs(10), revalidate_interval: Duration::from_millis(500) }
    }
}

/// All bridges over one datapath. Implements [`datapath::Upcall`].
pub struct Switch {
    _todo: (),
}

impl Switch {
    /// A switch without bridges. Call [`attach`](Switch::attach) next.
    pub fn new(settings: SwitchSettings, clock: Arc<dyn Clock>) -> Arc<Switch> {
        let _ = (settings, clock);
        todo!()
    }

    /// Connects the datapath, and this switch to it as its slow path. Can be done once.
    pub fn attach(self: &Arc<Switch>, datapath: Arc<Datapath>) {
        let _ = datapath;
        todo!()
    }

    /// Changes the settings.
    pub fn set_settings(&self, settings: SwitchSettings) {
        let _ = settings;
        todo!()
    }

    /// Adds a bridge without ports. In standalone mode and without controllers it gets one flow, of
    /// priority 0, with the action NORMAL.
    pub fn add_bridge(self: &Arc<Switch>, config: BridgeConfig) -> Result<Bridge, Error> {
        let _ = config;
        todo!()
    }

    /// Removes a bridge and its ports.
    pub fn remove_bridge(&self, name: &str) -> Result<(), Error> {
        let _ = name;
        todo!()
    }

    /// The bridge with this name.
    pub fn bridge(self: &Arc<Switch>, name: &str) -> Option<Bridge> {
        let _ = name;
        todo!()
    }

    /// Every bridge, by name.
    pub fn bridges(self: &Arc<Switch>) -> Vec<Bridge> {
        todo!()
    }

    /// Does what is due: revalidation after changes, statistics, timeouts, MAC ageing, idle datapath
    /// flows, changes of the link state of ports. Returns when it wants to run next, at the latest;
    /// changes make it due at once ([`wait`](Switch::wait)). Not to be called from an upcall.
    pub fn run(&self, now: Time) -> Time {
        let _ = now;
        todo!()
    }

    /// Blocks until a change makes [`run`](Switch::run) due, or for at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let _ = timeout;
        todo!()
    }

    /// Brings every datapath flow and all statistics up to date. When this returns, no packet is
    /// forwarded by the state of before the call. Not to be called from an upcall.
    pub fn revalidate(&self) {
        todo!()
    }

    /// Removes every datapath flow, after their statistics have been counted.
    pub fn purge(&self) {
        todo!()
    }
}

impl datapath::Upcall for Switch {
    fn misses(&self, misses: &mut [datapath::Miss], now: Time) {
        let _ = (misses, now);
        todo!()
    }

    fn punt(&self, packet: &Packet, key: &Key, punt: &Punt, now: Time) {
        let _ = (packet, key, punt, now);
        todo!()
    }
}
