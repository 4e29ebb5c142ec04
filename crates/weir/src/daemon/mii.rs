//! MII monitoring of bonds (`bond-detect-mode=miimon`): the drivers of their members are asked again and again whether there is a link,
//! and not the kernel, which may be told of it late or never.
//!
//! A thread of its own does it ([`super::watch`]): a driver may take its time to ask its transceiver, and holds the kernel's lock of all
//! interfaces meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofproto::Switch;
use parking_lot::Mutex;
use ports::Port;

/// How often the thread looks whether there is anything to do.
const IDLE: Duration = Duration::from_secs(1);

/// The members that are monitored, by bridge and name.
#[derive(Default)]
pub struct MiiMonitors(Mutex<BTreeMap<(String, String), Monitor>>);

struct Monitor {
    interval: Duration,
    /// When to ask again.
    next: Instant,
    /// What the last answer was.
    answer: Option<bool>,
}

impl MiiMonitors {
    /// Has a member monitored, that is there or comes later.
    pub fn set(&self, bridge: &str, member: &str, interval: Duration) {
        let monitor = Monitor { interval, next: Instant::now(), answer: None };
        self.0.lock().insert((bridge.to_owned(), member.to_owned()), monitor);
    }

    /// Monitors a member no more. What the kernel says counts again.
    pub fn forget(&self, switch: &Arc<Switch>, bridge: &str, member: &str) {
        let key = (bridge.to_owned(), member.to_owned());
        if self.0.lock().remove(&key).is_some()
            && let Some(device) = device(switch, &key)
        {
            device.forget_mii();
        }
    }

    /// Asks the drivers whose time has come. Returns whether an answer was another one than before.
    pub fn poll(&self, switch: &Arc<Switch>) -> bool {
        let now = Instant::now();
        let mut due = Vec::new();
        for (key, monitor) in self.0.lock().iter_mut().filter(|(_, monitor)| monitor.next <= now) {
            monitor.next = now + monitor.interval;
            due.push(key.clone());
        }
        let mut has_changed = false;
        for key in due {
            let answer = device(switch, &key).and_then(|device| device.poll_mii());
            // It may have been forgotten meanwhile, which only now takes effect on the device.
            match self.0.lock().get_mut(&key) {
                Some(monitor) => has_changed |= std::mem::replace(&mut monitor.answer, answer) != answer,
                None => device(switch, &key).into_iter().for_each(|device| device.forget_mii()),
            }
        }
        has_changed
    }

    /// How long there is nothing to do.
    pub fn idle(&self) -> Duration {
        let next = self.0.lock().values().map(|monitor| monitor.next).min();
        next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()).min(IDLE))
    }
}

fn device(switch: &Arc<Switch>, (bridge, member): &(String, String)) -> Option<Arc<dyn Port>> {
    let bridge = switch.bridge(bridge)?;
    bridge.port(bridge.port_by_name(member)?)?.device
}
