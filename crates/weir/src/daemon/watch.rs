//! The thread that watches the ports' devices: a link that comes or goes, an MTU or address that somebody
//! else has changed. Controllers are told by a port-status message, the datapath takes the change over.
//! Devices that have gone, and those that have come under the name of a port that waits for one, are the
//! configurator's: it is told to look for them.
//!
//! What happens between two rounds counts once: a device that flaps makes one change for each round, and a
//! thousand that go together are one request to the configurator.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use datapath::{Datapath, PortNo};
use ofproto::{Bridge, Switch};
use openflow::OfPort;
use openflow::port::PortReason;
use parking_lot::Mutex;
use ports::Port;

use super::Error;
use super::configurator::Requests;
use super::engine::Engine;
use super::missing::Interfaces;

/// How often the devices are looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// The thread. Dropping it ends it.
pub struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread.
    pub fn start(engine: &Engine, configurator: Arc<Requests>) -> Result<Watch, Error> {
        let (stop, stopped) = channel();
        let (switch, datapath, links) = (engine.switch.clone(), engine.datapath.clone(), engine.links.clone());
        let local_mtus = engine.local_mtus.clone();
        let thread = std::thread::Builder::new().name("port-watch".into()).spawn(move || {
            let interfaces = Interfaces::of_this_namespace();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                local_mtus.apply(&switch, &datapath);
                let some_went = links.look(&switch, &datapath);
                if some_went || configurator.missing.has_news(&interfaces) {
                    configurator.look_for_devices();
                }
                datapath.adopt_rx_queues();
            }
        });
        Ok(Watch { stop: Some(stop), thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

/// What can change of a device without Weir's doing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    up: bool,
    admin_up: bool,
    mtu: u32,
    mac: ports::Mac,
    gone: bool,
}

/// The devices as they were seen last. A device of the same number that is another one counts as new.
#[derive(Default)]
pub struct Links(Mutex<HashMap<PortNo, Watched>>);

/// A device, which is only remembered, and what it was like.
type Watched = (Weak<dyn Port>, State);

impl Links {
    /// Looks at the devices and tells of what has changed since the last look: the thread does it now and
    /// then, and whoever has made a change that is to be noticed at once. Returns whether some have gone since.
    pub fn look(&self, switch: &Arc<Switch>, datapath: &Datapath) -> bool {
        let mut some_went = false;
        let mut seen = self.0.lock();
        let mut now = HashMap::new();
        for bridge in switch.bridges() {
            for info in bridge.ports() {
                let (Some(number), Some(device)) = (info.dp_port, &info.device) else { continue };
                let link = device.link();
                let (mtu, mac, gone) = (device.mtu(), device.mac(), device.is_gone());
                let state = State { up: link.up, admin_up: link.admin_up, mtu, mac, gone };
                let same = |old: &Weak<dyn Port>| old.as_ptr().addr() == Arc::as_ptr(device).addr();
                let before = seen.get(&number).filter(|(old, _)| same(old)).map(|(_, before)| before);
                if before.is_some_and(|before| *before != state) {
                    changed(&bridge, info.port, number, datapath);
                }
                some_went |= gone && before.is_none_or(|before| !before.gone);
                now.insert(number, (Arc::downgrade(device), state));
            }
        }
        *seen = now;
        some_went
    }
}

fn changed(bridge: &Bridge, port: OfPort, number: PortNo, datapath: &Datapath) {
    // The port may have gone since it was listed.
    let _ = datapath.refresh_port(number);
    bridge.port_changed(port, PortReason::Modify);
}
