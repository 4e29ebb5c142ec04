//! The state machines of LACP, one for each port that speaks it, in step with the bridges' ports and bonds.

use std::collections::{BTreeMap, BTreeSet};

use export::sflow::LacpCounters;
use openflow::OfPort;
use packet::Time;
use ports::Mac;
use protocols::lacp::options::PortRow;
use protocols::lacp::{Aggregator, MemberId, MemberSettings, ReceiveError, Settings};
use protocols::options::OptionError;
use protocols::registry::Registry;

use crate::model::bond::{LacpConfig, LacpStatus};
use crate::model::forwarding::{BridgeId, BridgeState, PortState};

/// A session's port: of which bridge, and called what.
pub(crate) type PortName = (BridgeId, String);

/// The ports by which LACP is spoken.
#[derive(Default)]
pub(crate) struct LacpSessions {
    numbers: BTreeMap<PortName, u32>,
    names: BTreeMap<u32, PortName>,
    sessions: Registry<u32, Aggregator>,
    next: u32,
    /// Ports that have become live or have ceased to be, which nobody has been told yet.
    pub changed: BTreeSet<(BridgeId, OfPort)>,
    /// The generation of the bridges' ports that was followed last ([`Forwarding::configured`](crate::model::forwarding::Forwarding)).
    pub in_step: u64,
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

    /// Gives a frame to the session of a port; `None` where there is none.
    pub fn receive(
        &mut self,
        name: PortName,
        member: OfPort,
        frame: &[u8],
        now: Time,
    ) -> Option<Result<bool, ReceiveError>> {
        let number = *self.numbers.get(&name)?;
        self.sessions.update(number, |session| session.receive(now, MemberId(member.0), frame))
    }

    /// What is told of a member to collectors; `None` where it does not speak LACP.
    pub fn counters(&self, name: &PortName, member: OfPort) -> Option<LacpCounters> {
        let session = self.sessions.get(*self.numbers.get(name)?)?;
        let id = MemberId(member.0);
        let ((actor, partner), counters) = (session.ends(id)?, session.counters(id)?);
        // What the partner's administrator wants is not known.
        let states = [session.configured_state().bits(), actor.state.bits(), 0, partner.state.bits()];
        Some(LacpCounters {
            actor: actor.system_id,
            partner: partner.system_id,
            aggregator: session.key().unwrap_or(0).into(),
            states,
            rx: (counters.rx_pdus, counters.rx_bad_pdus),
            tx: counters.tx_pdus,
        })
    }

    /// The sessions of a bridge by the names of their ports.
    pub fn of_bridge(&self, id: BridgeId) -> impl Iterator<Item = (&str, &Aggregator)> {
        let of_bridge = self.numbers.iter().filter(move |((bridge, _), _)| *bridge == id);
        of_bridge.filter_map(|((_, port), number)| Some((&**port, self.sessions.get(*number)?)))
    }

    /// Brings the sessions in step with the bridges' ports. Linear in the ports of bridges where LACP is spoken.
    pub fn follow(&mut self, bridges: &mut BTreeMap<BridgeId, BridgeState>, now: Time) {
        let exists =
            |(bridge, port): &PortName| bridges.get(bridge).is_some_and(|bridge| bridge.lacp.contains_key(port));
        let gone: Vec<PortName> = self.numbers.keys().filter(|name| !exists(name)).cloned().collect();
        for name in gone {
            self.remove(&name, bridges);
        }
        for (id, bridge) in bridges.iter().filter(|(_, bridge)| !bridge.lacp.is_empty()) {
            let mut members: BTreeMap<&str, Vec<&PortState>> = BTreeMap::new();
            for state in bridge.ports.values() {
                members.entry(&state.logical).or_default().push(state);
            }
            for (name, config) in &bridge.lacp {
                let Some(settings) = lacp_settings(name, config, bridge.mac()).0 else { continue };
                let members = members.get(&**name).map_or(&[][..], Vec::as_slice);
                self.follow_port((*id, name.clone()), settings, members, now);
            }
        }
        // A bond may be new to a session that has nothing to do.
        for (number, session) in self.sessions.iter() {
            if let Some((id, name)) = self.names.get(&number)
                && let Some(bridge) = bridges.get_mut(id)
            {
                self.changed.extend(tell(session, bridge, name).into_iter().map(|port| (*id, port)));
            }
        }
    }

    fn remove(&mut self, name: &PortName, bridges: &mut BTreeMap<BridgeId, BridgeState>) {
        let Some(number) = self.numbers.remove(name) else { return };
        self.names.remove(&number);
        let (Some(session), Some(bridge)) = (self.sessions.remove(number), bridges.get_mut(&name.0)) else { return };
        for member in session.members() {
            if let Some(state) = bridge.ports.get_mut(&OfPort(member.0))
                && std::mem::take(&mut state.lacp_down)
            {
                self.changed.insert((name.0, state.port));
            }
        }
        if let Some(bond) = bridge.bonds.get_mut(&name.1) {
            bond.set_lacp(LacpStatus::Off);
        }
    }

    /// Tells the session of a port of its settings, members and carriers.
    fn follow_port(&mut self, name: PortName, settings: Settings, members: &[&PortState], now: Time) {
        let number = *self.numbers.entry(name).or_insert_with_key(|name| {
            self.next += 1;
            self.names.insert(self.next, name.clone());
            self.sessions.insert(self.next, Aggregator::new(settings.clone()));
            self.next
        });
        self.sessions.update(number, |session| {
            session.configure(settings);
            let gone: Vec<MemberId> =
                session.members().filter(|id| !members.iter().any(|state| state.port.0 == id.0)).collect();
            gone.into_iter().for_each(|id| session.remove_member(id));
            for state in members {
                let ofport = state.port.to_u16().unwrap_or(u16::MAX);
                let settings = MemberSettings::from_row(&state.name, state.device.mac(), ofport, &state.lacp).0;
                session.set_member(now, MemberId(state.port.0), settings, state.has_carrier());
            }
        });
    }

    /// Runs the sessions that are due, and tells their bonds and ports. Returns the frames to be sent.
    pub fn run(&mut self, bridges: &mut BTreeMap<BridgeId, BridgeState>, now: Time) -> Vec<LacpFrame> {
        let mut frames = Vec::new();
        let (names, changed) = (&self.names, &mut self.changed);
        self.sessions.run(now, |number, session| {
            let outcome = session.run(now);
            let Some((id, name)) = names.get(&number) else { return };
            frames.extend(outcome.frames.into_iter().map(|(member, frame)| (*id, OfPort(member.0), frame.to_vec())));
            if let Some(bridge) = bridges.get_mut(id) {
                changed.extend(tell(session, bridge, name).into_iter().map(|port| (*id, port)));
            }
        });
        frames
    }
}

/// Tells the bond of a session, and its ports, what it says. Returns the ports that have become live or have ceased to be.
fn tell(session: &Aggregator, bridge: &mut BridgeState, name: &str) -> Vec<OfPort> {
    let mut changed = Vec::new();
    for member in session.members() {
        let Some(state) = bridge.ports.get_mut(&OfPort(member.0)) else { continue };
        let down = !session.may_enable(member);
        if std::mem::replace(&mut state.lacp_down, down) != down {
            changed.push(state.port);
        }
    }
    if let Some(bond) = bridge.bonds.get_mut(name) {
        bond.set_lacp(if session.negotiated() { LacpStatus::Negotiated } else { LacpStatus::Configured });
        let members: Vec<OfPort> = bond.members().map(|(port, _)| port).collect();
        for port in members {
            bond.set_may_enable(port, session.may_enable(MemberId(port.0)));
        }
    }
    changed
}
