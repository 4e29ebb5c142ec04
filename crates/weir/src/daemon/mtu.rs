//! The MTU of LOCAL ports: what the configuration wants, or else the smallest of the bridge's other
//! ports, so that what the host sends fits everywhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use datapath::Datapath;
use ofproto::{Bridge, Switch};
use openflow::OfPort;
use parking_lot::Mutex;

/// The MTU of a LOCAL port whose bridge has no other ports.
const DEFAULT: u32 = 1500;

/// What the configuration wants, by bridge.
#[derive(Default)]
pub struct LocalMtus(Mutex<BTreeMap<String, Option<u32>>>);

impl LocalMtus {
    /// Sets the MTU that is wanted for a bridge's LOCAL port; `None`: that of the other ports.
    pub fn want(&self, bridge: &str, mtu: Option<u32>) {
        self.0.lock().insert(bridge.to_owned(), mtu);
    }

    /// Forgets a bridge.
    pub fn forget(&self, bridge: &str) {
        self.0.lock().remove(bridge);
    }

    /// Changes the MTUs of devices that differ from what is wanted.
    pub fn apply(&self, switch: &Arc<Switch>, datapath: &Datapath) {
        let wanted = self.0.lock();
        for bridge in switch.bridges() {
            if let Some(&mtu) = wanted.get(bridge.name()) {
                set(&bridge, mtu, datapath);
            }
        }
    }
}

fn set(bridge: &Bridge, wanted: Option<u32>, datapath: &Datapath) {
    let ports = bridge.ports();
    let Some(local) = ports.iter().find(|info| info.port == OfPort::LOCAL) else { return };
    let present = |info: &&ofproto::PortInfo| info.device.as_ref().is_some_and(|device| !device.is_gone());
    let Some(device) = Some(local).filter(present).and_then(|info| info.device.as_ref()) else { return };
    let internal = |kind: &str| matches!(kind, "tap" | "dummy-internal");
    let others =
        ports.iter().filter(present).filter_map(|info| info.device.as_ref()).filter(|device| !internal(device.kind()));
    let mtu = wanted.or_else(|| others.map(|device| device.mtu()).min()).unwrap_or(DEFAULT);
    if device.mtu() == mtu {
        return;
    }
    match device.set_mtu(mtu) {
        Ok(()) => {
            if let Some(number) = local.dp_port {
                // The port may have gone since it was listed.
                let _ = datapath.refresh_port(number);
            }
        }
        Err(error) => tracing::debug!("{error}"),
    }
}
