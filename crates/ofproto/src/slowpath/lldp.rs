//! LLDP in a switch: a handler gives a frame to the agent of its port; the thread of the path checks runs agents and sends
//! their frames, after those that tell whether paths are up.

use openflow::OfPort;
use packet::Time;
use protocols::lldp::show::{Show, ShowIsid, Statistics, Status};

use super::path_sessions::PortId;
use crate::bridge::Bridge;
use crate::model::forwarding::BridgeId;
use crate::switch::Switch;

/// What operators ask of LLDP, in the formats of OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LldpReport {
    /// `autoattach/status`.
    Status,
    /// `autoattach/show-isid`.
    Isids,
    /// `autoattach/statistics`.
    Statistics,
}

impl Switch {
    /// Brings the agent of a port in step with what is configured for it and for its bridge, and with its device.
    pub(crate) fn follow_lldp(&self, bridge: BridgeId, port: OfPort) {
        let now = self.clock.now();
        let forwarding = self.forwarding.read();
        let of_bridge = forwarding.bridges.get(&bridge);
        let state = of_bridge.and_then(|of_bridge| Some((of_bridge, of_bridge.ports.get(&port)?)));
        let mut agents = self.lldp.lock();
        let before = agents.next_wakeup();
        match state.filter(|(_, state)| state.lldp) {
            Some((of_bridge, state)) => agents.set(now, (bridge, port), state, &of_bridge.config.auto_attach),
            None => agents.remove((bridge, port)),
        }
        let is_sooner = agents.next_wakeup().is_some_and(|next| before.is_none_or(|before| next < before));
        drop((agents, forwarding));
        if is_sooner {
            self.notify_path_checks();
        }
    }

    /// Takes a frame of LLDP that a port has received.
    pub(crate) fn receive_lldp(&self, port: PortId, frame: &[u8]) {
        let outcome = {
            let mut agents = self.lldp.lock();
            agents.receive(self.clock.now(), port, frame)
        };
        // The port may have gone, or have just ceased to speak.
        if let Some(Err((name, error))) = outcome {
            tracing::warn!(target: "lldp", "{error} received on {name}");
        }
    }

    /// Runs some of the agents that are due and sends their frames. Returns when it is to be done again.
    pub(crate) fn run_due_lldp(&self) -> Option<Time> {
        let (frames, next) = {
            let mut agents = self.lldp.lock();
            (agents.run(self.clock.now()), agents.next_wakeup())
        };
        for frame in frames {
            self.send_frame(frame.port, frame.dp_port, &frame.bytes, false);
        }
        next
    }

    /// What a report says of all agents, or of those of one bridge.
    pub fn show_lldp(&self, report: LldpReport, bridge: Option<&Bridge>) -> String {
        let agents = self.lldp.lock();
        let shown = agents.iter().filter(|((of, _), _)| bridge.is_none_or(|bridge| bridge.id() == *of));
        let text = |agent| match report {
            LldpReport::Status => Status(agent).to_string(),
            LldpReport::Isids => ShowIsid(agent).to_string(),
            LldpReport::Statistics => Statistics(agent).to_string(),
        };
        shown.map(|(_, agent)| text(agent)).collect()
    }

    /// The neighbours that one port hears, or each; `None` where no port of this name speaks LLDP.
    pub fn show_lldp_neighbours(&self, name: Option<&str>) -> Option<String> {
        let (now, agents) = (self.clock.now(), self.lldp.lock());
        let shown = agents.iter().filter(|(_, agent)| name.is_none_or(|name| agent.name() == name));
        let texts: Vec<String> = shown.map(|(_, agent)| Show(agent, now).to_string()).collect();
        (name.is_none() || !texts.is_empty()).then(|| texts.concat())
    }

    /// The VLANs that a port of the configuration is to carry in future (true), or no longer, since mappings of Auto Attach came or went.
    /// They are remembered until [`trunk_changed`](Switch::trunk_changed).
    pub fn trunk_changes(&self, port: &str) -> Vec<(u16, bool)> {
        self.lldp.lock().trunk_changes(port)
    }

    /// The configuration has a change of [`trunk_changes`](Switch::trunk_changes).
    pub fn trunk_changed(&self, port: &str, vlan: u16, is_carried: bool) {
        self.lldp.lock().trunk_changed(port, vlan, is_carried);
    }
}
