//! The thread that watches the ports' devices: whenever the kernel tells of a change, and now and then for the others.
//! Changes of a device are handled by [`super::links`]. If one has gone, or one has come that a port waits for, the
//! configurator is told to look for devices: once, also where a thousand go together.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Error;
use super::configurator::Jobs;
use super::engine::Engine;
use super::missing::Interfaces;
use super::service::Service;

/// How often the devices are looked at, though nothing is told of them.
const INTERVAL: Duration = Duration::from_millis(200);

/// The thread. Dropping it ends it.
pub struct Watch {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread.
    pub fn start(engine: &Engine, configurator: Arc<Jobs>) -> Result<Watch, Error> {
        let (stop, mut stopped) = UnixStream::pair().map_err(Error::Thread)?;
        let (switch, datapath, links) = (engine.switch.clone(), engine.datapath.clone(), engine.links.clone());
        let local_mtus = engine.local_mtus.clone();
        let thread = std::thread::Builder::new().name("port-watch".into()).spawn(move || {
            let interfaces = Interfaces::of_this_namespace();
            while interfaces.wait(&mut stopped, INTERVAL) {
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

/// Starts the thread that asks drivers for the links of bonds.
pub fn monitor_mii(engine: &Engine, configurator: Arc<Jobs>) -> Result<Service, Error> {
    let (switch, datapath) = (engine.switch.clone(), engine.datapath.clone());
    let (monitors, links) = (engine.mii.clone(), engine.links.clone());
    let turn = move || {
        if monitors.poll(&switch) && links.look(&switch, &datapath) {
            configurator.look_for_devices();
        }
        std::thread::park_timeout(monitors.idle());
    };
    Service::start("mii", || (), turn)
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
