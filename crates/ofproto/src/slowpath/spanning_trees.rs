//! The state machines of STP and RSTP, one tree for each bridge that speaks either, in step with the bridges' ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use openflow::OfPort;
use packet::Time;
use protocols::rstp::Link;
use protocols::spanning_tree::{Bridge, PortSettings, Protocol, Settings, State};
use protocols::stp::output::PortError;

use crate::model::forwarding::{BridgeId, BridgeState, Forwarding, PatchCounters, PortState};
use crate::slowpath::flushes::{Flush, Flushes};

/// The spanning trees of bridges.
#[derive(Default)]
pub(crate) struct SpanningTrees {
    trees: BTreeMap<BridgeId, Tree>,
    /// The generation of the bridges' ports that was followed last.
    pub in_step: u64,
}

/// A bridge's part in its spanning tree.
pub(crate) struct Tree {
    pub bridge: Bridge,
    /// Name of the bridge.
    pub name: String,
    settings: Settings,
    members: BTreeMap<OfPort, Member>,
    /// Which port has a number.
    numbers: BTreeMap<u16, OfPort>,
    /// Ports that could not be had, and why.
    refused: BTreeMap<OfPort, PortError>,
    flushes: Flushes,
}

/// A port that takes part.
struct Member {
    number: u16,
    settings: PortSettings,
    link: Link,
    /// Those of the port: another port of the same number has others.
    identity: Arc<PatchCounters>,
}

/// What trees have decided, in the order in which it is done.
#[derive(Default)]
pub(crate) struct TreeWork {
    /// Ports that end forwarding or learning.
    pub ends: Vec<TreeChange>,
    /// Other changes of state.
    pub others: Vec<TreeChange>,
    /// Behind which ports addresses and groups are forgotten.
    pub flush: Vec<(BridgeId, Flush)>,
    /// Frames to be sent.
    pub frames: Vec<(BridgeId, OfPort, Vec<u8>)>,
}

/// A port whose state in the tables is to be another one.
pub(crate) struct TreeChange {
    pub bridge: BridgeId,
    pub port: OfPort,
    pub to: Option<State>,
    /// Which port it is.
    pub identity: Arc<PatchCounters>,
}

impl SpanningTrees {
    /// Whether no bridge speaks either protocol.
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// The tree of a bridge.
    pub fn get(&self, bridge: BridgeId) -> Option<&Tree> {
        self.trees.get(&bridge)
    }

    /// The trees of a protocol: of the bridge with this name, or all.
    pub fn of(&mut self, protocol: Protocol, name: Option<&str>) -> impl Iterator<Item = &mut Tree> {
        let trees = self.trees.values_mut().filter(move |tree| tree.bridge.protocol() == protocol);
        trees.filter(move |tree| name.is_none_or(|name| tree.name == name))
    }

    /// Gives a frame to the tree of a bridge; false where it is for none.
    pub fn receive(&mut self, now: Time, bridge: BridgeId, port: OfPort, frame: &[u8]) -> bool {
        let Some(tree) = self.trees.get_mut(&bridge) else { return false };
        let Some(member) = tree.members.get(&port) else { return false };
        tree.bridge.receive(now, member.number, frame);
        true
    }

    /// When the first tree has something to do.
    pub fn next_wakeup(&self) -> Option<Time> {
        let next = |tree: &Tree| tree.bridge.next_wakeup().into_iter().chain(tree.flushes.next()).min();
        self.trees.values().filter_map(next).min()
    }

    /// Brings the trees in step with the bridges' ports and settings. Linear in the ports of bridges that have a tree.
    pub fn follow(&mut self, forwarding: &Forwarding, now: Time) {
        let protocol = |id: &BridgeId| forwarding.bridges.get(id).map(|bridge| bridge.config.spanning_tree.protocol);
        self.trees.retain(|id, tree| protocol(id) == Some(tree.bridge.protocol()));
        for (id, state) in &forwarding.bridges {
            let config = &state.config.spanning_tree;
            // What is wrong was said when it was set.
            let settings = Settings::from_options(config.protocol, state.mac(), &config.options).0;
            let Some(settings) = settings else { continue };
            let tree = self.trees.entry(*id).or_insert_with(|| Tree::new(&state.config.name, settings, now));
            if tree.settings != settings {
                tree.settings = settings;
                tree.bridge.configure(settings);
            }
            tree.follow(state, now);
        }
    }

    /// Does what is due, and says what follows from it. `followed`: ports of the tables may have other states than those of the trees.
    pub fn run(&mut self, forwarding: &Forwarding, now: Time, followed: bool) -> TreeWork {
        let mut work = TreeWork::default();
        for (id, tree) in &mut self.trees {
            let output = tree.bridge.run(now);
            let ports = |numbers: &[u16]| numbers.iter().filter_map(|n| tree.numbers.get(n)).copied().collect();
            if !output.flush.is_empty() {
                // STP has all that is learnt age faster (IEEE 802.1D-1998 section 8.5.3.13), RSTP names ports.
                let flush = match tree.bridge.protocol() {
                    Protocol::Rstp => Flush::Ports(ports(&output.flush)),
                    _ => Flush::All,
                };
                tree.flushes.ask(flush);
            }
            for (number, frame) in &output.frames {
                work.frames.extend(tree.numbers.get(number).map(|port| (*id, *port, frame.to_vec())));
            }
            if !output.changes.is_empty() && !followed {
                work.add_differences(forwarding.bridges.get(id), Some(tree), now);
            }
        }
        if followed {
            for (id, state) in &forwarding.bridges {
                work.add_differences(Some(state), self.trees.get_mut(id), now);
            }
        }
        for (id, tree) in &mut self.trees {
            work.flush.extend(tree.flushes.take(now).map(|flush| (*id, flush)));
        }
        work
    }
}

impl TreeWork {
    /// Adds what differs between the states of ports in the tables and in a tree.
    fn add_differences(&mut self, state: Option<&BridgeState>, tree: Option<&mut Tree>, now: Time) {
        let Some(state) = state else { return };
        let mut no_longer_learn = Vec::new();
        for port in state.ports.values() {
            let to = tree.as_ref().and_then(|tree| tree.state(now, port.port));
            let from = port.spanning_tree.state;
            if from == to {
                continue;
            }
            let is = |state: Option<State>, what: fn(State) -> bool| state.is_none_or(what);
            let ends = |what| is(from, what) && !is(to, what);
            if ends(State::learns) {
                no_longer_learn.push(port.port);
            }
            let ends = ends(State::forwards) || ends(State::learns);
            let change = TreeChange { bridge: state.id, port: port.port, to, identity: port.patch.clone() };
            if ends { self.ends.push(change) } else { self.others.push(change) }
        }
        // Without a tree, all ports learn.
        if let Some(tree) = tree.filter(|_| !no_longer_learn.is_empty()) {
            tree.flushes.ask(Flush::Ports(no_longer_learn));
        }
    }
}

impl Tree {
    fn new(name: &str, settings: Settings, now: Time) -> Tree {
        let (members, numbers, refused, flushes) = Default::default();
        Tree { bridge: Bridge::new(settings, now), name: name.to_owned(), settings, members, numbers, refused, flushes }
    }

    /// State of a port; `None` where it takes no part.
    fn state(&self, now: Time, port: OfPort) -> Option<State> {
        self.bridge.state(now, self.members.get(&port)?.number)
    }

    /// The number of a port in the tree.
    pub fn number(&self, port: OfPort) -> Option<u16> {
        self.members.get(&port).map(|member| member.number)
    }

    /// Takes over which ports there are, their settings and links.
    fn follow(&mut self, state: &BridgeState, now: Time) {
        let mut wanted: Vec<(&PortState, PortSettings)> =
            state.ports.values().filter_map(|port| Some((port, state.tree_port(port)?))).collect();
        // Those that have a claim to a number come before those that take what is left.
        wanted.sort_by_key(|(port, settings)| (settings.number().is_none(), port.port));
        self.remove_others(&wanted);
        for (port, settings) in wanted {
            if !self.members.contains_key(&port.port) {
                self.add(port, settings.clone(), now);
            }
            let protocol = self.bridge.protocol();
            let Some(member) = self.members.get_mut(&port.port) else { continue };
            if member.settings != settings {
                member.settings = settings.clone();
                self.bridge.configure_port(member.number, settings);
            }
            let link = link(port, protocol, member.link);
            if member.link != link {
                member.link = link;
                self.bridge.set_link(member.number, link);
            }
        }
    }

    /// Removes the ports that are not wanted, or only with another number, and forgets which others were refused.
    fn remove_others(&mut self, wanted: &[(&PortState, PortSettings)]) {
        let claimed: HashSet<u16> = wanted.iter().filter_map(|(_, settings)| settings.number()).collect();
        let by_port: HashMap<OfPort, _> = wanted.iter().map(|wanted| (wanted.0.port, wanted)).collect();
        self.refused.retain(|port, _| by_port.contains_key(port));
        let stays = |port: OfPort, member: &Member| {
            by_port.get(&port).is_some_and(|(state, settings)| {
                let number = settings.number();
                let keeps_number = number.map_or(!claimed.contains(&member.number), |number| number == member.number);
                Arc::ptr_eq(&state.patch, &member.identity) && keeps_number
            })
        };
        let gone: Vec<OfPort> =
            self.members.iter().filter(|(port, member)| !stays(**port, member)).map(|(port, _)| *port).collect();
        for port in gone {
            if let Some(member) = self.members.remove(&port) {
                self.numbers.remove(&member.number);
                self.bridge.remove_port(member.number);
            }
        }
    }

    /// Adds a port. One that cannot be had takes no part, as in OVS, and is named in the log.
    fn add(&mut self, port: &PortState, settings: PortSettings, now: Time) {
        match self.bridge.add_port(now, settings.clone()) {
            Ok(number) => {
                self.refused.remove(&port.port);
                self.numbers.insert(number, port.port);
                let (link, identity) = (Link::default(), port.patch.clone());
                self.members.insert(port.port, Member { number, settings, link, identity });
            }
            Err(error) => {
                if self.refused.insert(port.port, error) != Some(error) {
                    let protocol = self.bridge.protocol().name();
                    tracing::warn!(target: "bridge", "port {}: takes no part in {protocol}: {error}", port.name);
                }
            }
        }
    }
}

/// How a port's link is now. What the device says of it is asked for when it comes up: that may take a system call.
fn link(port: &PortState, protocol: Protocol, before: Link) -> Link {
    // As in OVS: by RSTP, a path that BFD or CFM finds down is no link.
    let up = if protocol == Protocol::Rstp { port.is_live() } else { port.has_carrier() };
    if up == before.up {
        return before;
    }
    let features = port.device.port().filter(|_| up).map(|device| device.features());
    let (speed, full_duplex) = features.map_or((0, true), |features| (features.speed_mbps, features.full_duplex));
    Link { up, speed, full_duplex }
}
