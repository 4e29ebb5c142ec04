//! BFD and CFM in a switch: frames that come and go, and what follows from a path that comes up or goes down.
//!
//! Three kinds of threads have a part in it:
//!
//! 1. A handler gives a frame to the session of its port, and wakes the thread of the path checks.
//! 2. The thread of the path checks runs sessions and sends their frames, and after them some of those of LLDP ([`Switch::run_due_path_checks`]). It holds the lock of the
//!    sessions and no other for what it sends by ports of the datapath. Frames for tunnels and patch ports are translated as packets of a controller are, for
//!    which it waits for the tables; they go after the others.
//! 3. The thread of the bonds tells the tables which paths are up ([`Switch::apply_path_checks`]): it has to wait for whoever changes
//!    them. Members of bonds are enabled and disabled before anything else is told.

use std::sync::Arc;
use std::time::Duration;

use openflow::OfPort;
use packet::Time;
use protocols::bfd::show::Show as ShowBfd;
use protocols::cfm::show::Show as ShowCfm;

use super::path_sessions::{Interface, PortId};
use crate::bridge::Bridge;
use crate::model::forwarding::BridgeId;
use crate::switch::Switch;

impl Switch {
    /// Brings the sessions of a port in step with what is configured for it, and with its device.
    pub(crate) fn follow_path_checks(&self, bridge: BridgeId, port: OfPort) {
        let now = self.clock.now();
        let forwarding = self.forwarding.read();
        let state = forwarding.bridges.get(&bridge).and_then(|bridge| bridge.ports.get(&port));
        let mut sessions = self.path_sessions.lock();
        match state.filter(|state| state.path_checks.are_on()) {
            Some(state) => {
                let (bfd, cfm) = (state.path_checks.bfd.clone(), state.path_checks.cfm.clone());
                sessions.set(now, (bridge, port), Interface::of(state), bfd, cfm);
            }
            None => sessions.remove((bridge, port)),
        }
        let has_changed = sessions.has_changed();
        drop((sessions, forwarding));
        if has_changed {
            self.notify_path_checks();
        }
    }

    /// Brings all that speaks by a port in step with its configuration and its device.
    pub(crate) fn follow_link(&self, bridge: BridgeId, port: OfPort) {
        self.follow_path_checks(bridge, port);
        self.follow_lldp(bridge, port);
    }

    /// Takes a control packet of BFD that a port has received.
    pub(crate) fn receive_bfd(&self, port: PortId, frame: &[u8]) {
        let outcome = self.path_sessions.lock().receive_bfd(self.clock.now(), port, frame);
        match outcome {
            Some(Err(error)) => tracing::debug!(target: "bfd", "port {}: {error}", port.1),
            Some(Ok(())) => self.notify_path_checks(),
            // The port may have gone, or have just ceased to speak BFD.
            None => {}
        }
    }

    /// Takes a frame of CFM that a port has received.
    pub(crate) fn receive_cfm(&self, port: PortId, frame: &[u8]) {
        let outcome = self.path_sessions.lock().receive_cfm(self.clock.now(), port, frame);
        match outcome {
            Some(Err(error)) => tracing::debug!(target: "cfm", "port {}: {error}", port.1),
            Some(Ok(received)) if received.other_interval || received.out_of_sequence => {
                tracing::debug!(target: "cfm", "port {}: a message with another interval, or after a gap", port.1);
            }
            _ => {}
        }
    }

    /// Has the thread of the path checks look at what has changed.
    pub(crate) fn notify_path_checks(&self) {
        *self.path_checks_due.lock() = true;
        self.path_checks_due_changed.notify_all();
    }

    /// Blocks until something has changed that makes [`run_due_path_checks`](Switch::run_due_path_checks) due, or for at most
    /// `timeout`.
    pub fn wait_for_path_checks(&self, timeout: Duration) {
        let mut due = self.path_checks_due.lock();
        if !*due {
            self.path_checks_due_changed.wait_for(&mut due, timeout);
        }
        *due = false;
    }

    /// Runs the sessions that are due and sends their frames. Returns when it is to be done again, unless something happens before;
    /// `None`: not before. It is so `late` because this thread could not run before: peers are not blamed for that.
    pub fn run_due_path_checks(&self, late: Duration) -> Option<Time> {
        let (frames, has_changed, next) = {
            let mut sessions = self.path_sessions.lock();
            let frames = sessions.run(self.clock.now(), late);
            (frames, sessions.has_changed(), sessions.next_wakeup())
        };
        if has_changed {
            // That thread tells the tables.
            self.notify_bonds();
        }
        let (direct, translated): (Vec<_>, Vec<_>) = frames.into_iter().partition(|frame| frame.dp_port.is_some());
        for frame in direct.into_iter().chain(translated) {
            self.send_frame(frame.port, frame.dp_port, &frame.bytes, frame.oam);
        }
        [next, self.run_due_lldp()].into_iter().flatten().min()
    }

    /// Has the tables know which paths are up: bonds first, then groups and flows, then controllers.
    pub fn apply_path_checks(self: &Arc<Switch>) {
        let ports = self.path_sessions.lock().take_changed();
        if ports.is_empty() {
            return;
        }
        let mut changed = Vec::new();
        let mut forwarding = self.forwarding.write();
        for (id, port) in ports {
            let Some(bridge) = forwarding.bridges.get_mut(&id) else { continue };
            let Some(state) = bridge.ports.get_mut(&port) else { continue };
            // Not what was so when the change was noted: whoever comes last tells the latest.
            let down = !self.path_sessions.lock().is_up((id, port));
            if std::mem::replace(&mut state.path_checks.down, down) != down {
                let (bridge, port) = (bridge.config.name.as_str().into(), state.port);
                changed.push((Bridge::new(self.clone(), id, bridge), port));
                forwarding.touch_number(id, port);
            }
        }
        if changed.is_empty() {
            return;
        }
        drop(forwarding);
        self.run_bonds();
        self.notify();
        for (bridge, port) in changed {
            bridge.liveness_changed(port);
        }
    }
}

/// What operators ask.
impl Switch {
    /// `bfd/show`, of one port or of all; `None` where there is no such session.
    pub fn show_bfd(&self, name: Option<&str>) -> Option<String> {
        let (now, sessions) = (self.clock.now(), self.path_sessions.lock());
        let texts = sessions.bfd(name).map(|session| match name {
            Some(_) => ShowBfd(session, now).to_string(),
            None => format!("---- {} ----\n{}", session.name(), ShowBfd(session, now)),
        });
        let texts: Vec<String> = texts.collect();
        (name.is_none() || !texts.is_empty()).then(|| texts.concat())
    }

    /// `cfm/show`, of one port or of all; `None` where there is no such maintenance point.
    pub fn show_cfm(&self, name: Option<&str>) -> Option<String> {
        let (now, sessions) = (self.clock.now(), self.path_sessions.lock());
        let texts: Vec<String> = sessions.cfm(name).map(|point| ShowCfm(point, now).to_string()).collect();
        (name.is_none() || !texts.is_empty()).then(|| texts.concat())
    }

    /// `bfd/set-forwarding`. False where there is no such session.
    pub fn set_bfd_forwarding(self: &Arc<Switch>, name: Option<&str>, forwarding: Option<bool>) -> bool {
        let some = self.path_sessions.lock().set_forwarding(name, forwarding) > 0;
        self.take_override();
        some || name.is_none()
    }

    /// `cfm/set-fault`. False where there is no such maintenance point.
    pub fn set_cfm_fault(self: &Arc<Switch>, name: Option<&str>, fault: Option<bool>) -> bool {
        let some = self.path_sessions.lock().set_fault(name, fault) > 0;
        self.take_override();
        some || name.is_none()
    }

    /// Puts in force what an operator has said before he is answered.
    fn take_override(self: &Arc<Switch>) {
        self.run_due_path_checks(Duration::ZERO);
        self.apply_path_checks();
    }
}
