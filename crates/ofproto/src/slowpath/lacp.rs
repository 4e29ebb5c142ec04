//! LACP: frames that members receive, and what the state machines of crate `protocols` say of bonds.
//!
//! A frame comes up as a punt ([`Punt::Lacp`](datapath::Punt::Lacp)); a handler gives it to the session of its port, and has the thread of the bonds
//! look at what has come of it. That thread runs the sessions ([`LacpSessions::run`]), tells the bonds which members may be used, and
//! sends frames.

use std::collections::BTreeMap;

use openflow::OfPort;
use packet::Time;
use ports::Mac;
use protocols::lacp::options::PortRow;
use protocols::lacp::show::{Show, ShowStats};
use protocols::lacp::{Aggregator, MemberId, MemberSettings, ReceiveError, Settings};
use protocols::options::OptionError;
use protocols::registry::Registry;

use crate::bridge::Bridge;
use crate::model::bond::{LacpConfig, LacpStatus};
use crate::model::forwarding::{BridgeId, BridgeState};
use crate::switch::Switch;

/// A session's port: of which bridge, and called what.
type PortName = (BridgeId, String);

/// The ports by which LACP is spoken.
#[derive(Default)]
pub(crate) struct LacpSessions {
    numbers: BTreeMap<PortName, u32>,
    sessions: Registry<u32, Aggregator>,
    next: u32,
}

/// A frame to be sent by a port of a bridge.
pub(crate) type LacpFrame = (BridgeId, OfPort, Vec<u8>);

/// The settings of a port, and what is wrong with them. `bridge` is the bridge's address.
pub(crate) fn lacp_settings(name: &str, config: &LacpConfig, bridge: Mac) -> (Option<Settings>, Vec<OptionError>) {
    let LacpConfig { mode, options, interfaces } = config;
    Settings::from_row(&PortRow { name, lacp: Some(mode), other_config: options, interfaces: *interfaces, bridge })
}

impl LacpSessions {
    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// When the first session has something to do.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.sessions.next_wakeup()
    }

    /// Brings the sessions in step with the ports, does what is due, and tells the bonds. Returns the frames to be sent.
    pub fn run(&mut self, bridges: &mut BTreeMap<BridgeId, BridgeState>, now: Time) -> Vec<LacpFrame> {
        let exists =
            |(bridge, port): &PortName| bridges.get(bridge).is_some_and(|bridge| bridge.lacp.contains_key(port));
        let gone: Vec<PortName> = self.numbers.keys().filter(|name| !exists(name)).cloned().collect();
        for name in gone {
            self.remove(&name, bridges);
        }
        let mut frames = Vec::new();
        for (id, bridge) in bridges {
            let names: Vec<String> = bridge.lacp.keys().cloned().collect();
            for name in names {
                self.follow(*id, bridge, &name, now);
                self.run_port(*id, bridge, &name, now, &mut frames);
            }
        }
        frames
    }

    fn remove(&mut self, name: &PortName, bridges: &mut BTreeMap<BridgeId, BridgeState>) {
        if let Some(number) = self.numbers.remove(name) {
            self.sessions.remove(number);
        }
        let bridge = bridges.get_mut(&name.0);
        if let Some(bond) = bridge.and_then(|bridge| bridge.bonds.get_mut(&name.1)) {
            bond.set_lacp(LacpStatus::Off);
        }
    }

    /// Tells the session of a port of its settings, members and carriers.
    fn follow(&mut self, id: BridgeId, bridge: &BridgeState, name: &str, now: Time) {
        let Some(config) = bridge.lacp.get(name) else { return };
        let Some(settings) = lacp_settings(name, config, bridge.mac()).0 else { return };
        let number = *self.numbers.entry((id, name.to_owned())).or_insert_with(|| {
            self.next += 1;
            self.sessions.insert(self.next, Aggregator::new(settings.clone()));
            self.next
        });
        let members: Vec<_> = bridge.ports.values().filter(|state| state.logical == name).collect();
        self.sessions.update(number, |session| {
            session.configure(settings);
            let gone: Vec<MemberId> =
                session.members().filter(|id| !members.iter().any(|state| state.port.0 == id.0)).collect();
            gone.into_iter().for_each(|id| session.remove_member(id));
            for state in members {
                let ofport = state.port.to_u16().unwrap_or(u16::MAX);
                let settings = MemberSettings::from_row(&state.name, state.device.mac(), ofport, &state.lacp).0;
                session.set_member(now, MemberId(state.port.0), settings, state.is_live());
            }
        });
    }

    /// Runs the session of a port, and tells its bond.
    fn run_port(&mut self, id: BridgeId, bridge: &mut BridgeState, name: &str, now: Time, frames: &mut Vec<LacpFrame>) {
        let Some(&number) = self.numbers.get(&(id, name.to_owned())) else { return };
        let outcome = self.sessions.update(number, |session| session.run(now));
        let outcome = outcome.unwrap_or_default();
        frames.extend(outcome.frames.into_iter().map(|(member, frame)| (id, OfPort(member.0), frame.to_vec())));
        let (Some(session), Some(bond)) = (self.sessions.get(number), bridge.bonds.get_mut(name)) else { return };
        bond.set_lacp(if session.negotiated() { LacpStatus::Negotiated } else { LacpStatus::Configured });
        let members: Vec<OfPort> = bond.members().map(|(port, _)| port).collect();
        for port in members {
            bond.set_may_enable(port, session.may_enable(MemberId(port.0)));
        }
    }
}

impl Switch {
    /// Takes a frame of a slow protocol that a port has received.
    pub(crate) fn receive_lacp(&self, bridge: BridgeId, port: OfPort, frame: &[u8]) {
        let logical = {
            let forwarding = self.forwarding.read();
            let state = forwarding.bridges.get(&bridge).and_then(|bridge| bridge.ports.get(&port));
            state.map(|state| state.logical.clone())
        };
        let mut lacp = self.lacp.lock();
        let number = logical.and_then(|logical| lacp.numbers.get(&(bridge, logical)).copied());
        // The port has gone, or has just ceased to speak LACP.
        let Some(number) = number else { return };
        let now = self.clock.now();
        let outcome = lacp.sessions.update(number, |session| session.receive(now, MemberId(port.0), frame));
        drop(lacp);
        match outcome {
            Some(Err(ReceiveError::Malformed(error))) => tracing::debug!(target: "lacp", "{port}: {error}"),
            Some(_) => self.notify_bonds(),
            None => {}
        }
    }
}

/// Shows what LACP says of ports.
impl Bridge {
    /// `lacp/show`, of one port or of all; `None` where there is no such port.
    pub fn show_lacp(&self, name: Option<&str>) -> Option<String> {
        self.lacp_text(name, |session| Show(session).to_string())
    }

    /// `lacp/show-stats`.
    pub fn show_lacp_stats(&self, name: Option<&str>) -> Option<String> {
        self.lacp_text(name, |session| ShowStats(session).to_string())
    }

    fn lacp_text(&self, name: Option<&str>, text: impl Fn(&Aggregator) -> String) -> Option<String> {
        let lacp = self.switch.lacp.lock();
        let of_bridge = lacp.numbers.iter().filter(|((bridge, _), _)| *bridge == self.id());
        let wanted = of_bridge.filter(|((_, port), _)| name.is_none_or(|name| name == port));
        let texts: Vec<String> = wanted.filter_map(|(_, number)| lacp.sessions.get(*number)).map(text).collect();
        (name.is_none() || !texts.is_empty()).then(|| texts.concat())
    }

    /// Whether what is known of an interface's partner is up to date; `None` where LACP is not spoken by it.
    pub fn lacp_current(&self, port: OfPort) -> Option<bool> {
        let logical = {
            let forwarding = self.switch.forwarding.read();
            forwarding.bridges.get(&self.id())?.ports.get(&port)?.logical.clone()
        };
        let lacp = self.switch.lacp.lock();
        let session = lacp.sessions.get(*lacp.numbers.get(&(self.id(), logical))?)?;
        Some(session.is_current(MemberId(port.0)))
    }
}
