//! The agents of LLDP, by port, behind one lock of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use datapath::PortNo;
use packet::Time;
use protocols::lldp::{Agent, AutoAttach, Error};
use protocols::registry::{Registry, Session};

use super::path_sessions::PortId;
use crate::model::forwarding::PortState;

/// How many agents run before others may use the thread: each builds a frame and sends it.
const AGENTS_AT_ONCE: usize = 16;

/// A port of the configuration and a VLAN.
pub(crate) type Trunk = (String, u16);

/// A frame that is to be sent.
pub(crate) struct LldpFrame {
    /// By which port.
    pub port: PortId,
    /// Its number in the datapath; `None` for tunnels and patch ports.
    pub dp_port: Option<PortNo>,
    /// The frame.
    pub bytes: Vec<u8>,
}

/// The agent of one port.
struct Speaker {
    agent: Agent,
    dp_port: Option<PortNo>,
}

impl Session for Speaker {
    fn next_wakeup(&self) -> Option<Time> {
        self.agent.next_wakeup()
    }
}

/// The agents of all ports.
#[derive(Default)]
pub(crate) struct LldpAgents {
    speakers: Registry<PortId, Speaker>,
    /// Whether a port is to carry a VLAN in future, or no longer, since mappings of Auto Attach came or went. Whoever keeps the
    /// configuration says when it does so.
    trunks: BTreeMap<Trunk, bool>,
}

impl LldpAgents {
    /// When the first agent has something to do.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.speakers.next_wakeup()
    }

    /// Has a port speak.
    pub fn set(&mut self, now: Time, id: PortId, state: &PortState, auto_attach: &Arc<AutoAttach>) {
        let (mac, dp_port) = (state.device.mac(), state.dp_port);
        let known = self.speakers.get(id).filter(|speaker| speaker.agent.name() == state.name);
        let before = known.map(|speaker| speaker.agent.auto_attach().mappings.clone()).unwrap_or_default();
        if known.is_none() {
            let agent = Agent::new(now, &state.name, mac, auto_attach.clone());
            self.speakers.insert(id, Speaker { agent, dp_port });
        } else {
            self.speakers.update(id, |speaker| {
                speaker.dp_port = dp_port;
                speaker.agent.configure(now, mac, auto_attach.clone());
            });
        }
        // As in OVS, not those of a bond's members.
        if state.logical != state.name {
            return;
        }
        let vlans =
            |mappings: &BTreeMap<u32, u16>| mappings.values().copied().collect::<std::collections::BTreeSet<u16>>();
        let (before, after) = (vlans(&before), vlans(&auto_attach.mappings));
        let gone = before.difference(&after).map(|&vlan| (vlan, false));
        let new = after.difference(&before).map(|&vlan| (vlan, true));
        self.trunks.extend(gone.chain(new).map(|(vlan, is_carried)| ((state.name.clone(), vlan), is_carried)));
    }

    /// Has a port be silent.
    pub fn remove(&mut self, id: PortId) {
        if let Some(speaker) = self.speakers.remove(id) {
            self.trunks.retain(|(name, _), _| *name != speaker.agent.name());
        }
    }

    /// Takes a frame; `None` where the port does not speak.
    pub fn receive(&mut self, now: Time, id: PortId, frame: &[u8]) -> Option<Result<(), (String, Error)>> {
        let receive = |agent: &mut Agent| agent.receive(now, frame).map_err(|error| (agent.name().to_owned(), error));
        self.speakers.update(id, |speaker| receive(&mut speaker.agent))
    }

    /// Does what is due, for some agents.
    pub fn run(&mut self, now: Time) -> Vec<LldpFrame> {
        let mut frames = Vec::new();
        self.speakers.run_some(now, AGENTS_AT_ONCE, |port, speaker| {
            let dp_port = speaker.dp_port;
            frames.extend(speaker.agent.run(now).map(|bytes| LldpFrame { port, dp_port, bytes }));
        });
        frames
    }

    /// The agents, in the order of their ports.
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &Agent)> {
        self.speakers.iter().map(|(id, speaker)| (id, &speaker.agent))
    }

    /// What is to change of a port's VLANs.
    pub fn trunk_changes(&self, port: &str) -> Vec<(u16, bool)> {
        let all = (port.to_owned(), 0)..=(port.to_owned(), u16::MAX);
        self.trunks.range(all).map(|((_, vlan), is_carried)| (*vlan, *is_carried)).collect()
    }

    /// A change has been made.
    pub fn trunk_changed(&mut self, port: &str, vlan: u16, is_carried: bool) {
        let trunk = (port.to_owned(), vlan);
        if self.trunks.get(&trunk) == Some(&is_carried) {
            self.trunks.remove(&trunk);
        }
    }
}
