//! STP and RSTP in a switch: frames that come and go, and what follows from a port that begins or ends to forward.
//!
//! 1. A handler gives a frame to the tree of its bridge ([`Switch::receive_bpdu`]), and wakes the thread of the spanning trees.
//! 2. That thread brings the trees in step with ports and links, runs them, and does what follows ([`Switch::run_due_spanning_trees`]).
//!
//! The order of what it does keeps loops from forwarding. Ports that are to end forwarding do so first, in the datapath's flows too, for
//! which it waits; then others begin; and only then neighbours are told, who may forward because of it. Swapped, two bridges could
//! forward at the same time what only one of them may. The wait is bounded: frames that are late by more than a neighbour allows would break the tree.

use std::sync::Arc;
use std::time::Duration;

use openflow::OfPort;
use packet::Time;
use parking_lot::{Condvar, Mutex};
use protocols::spanning_tree::{Protocol, State};

use super::flushes::Flush;
use super::spanning_trees::{TreeChange, TreeWork};
use crate::bridge::Bridge;
use crate::events::Waker;
use crate::model::forwarding::BridgeId;
use crate::switch::Switch;

/// The longest wait for flows to follow a port that has ended forwarding. With this delay of frames, trees have no loops (docs/spanning_tree.md).
const LONGEST_WAIT: Duration = Duration::from_millis(400);

impl Switch {
    /// Takes a frame for the group address of bridges, by a port that takes part in a spanning tree.
    pub(crate) fn receive_bpdu(&self, bridge: BridgeId, port: OfPort, frame: &[u8]) {
        // The port may have gone, or have just ceased to take part.
        if self.spanning_trees.lock().receive(self.clock.now(), bridge, port, frame) {
            self.notify_spanning_trees();
        }
    }

    /// Has the thread of the spanning trees look at what has changed.
    pub(crate) fn notify_spanning_trees(&self) {
        *self.spanning_trees_due.lock() = true;
        self.spanning_trees_due_changed.notify_all();
    }

    /// Blocks until something has changed that makes [`run_due_spanning_trees`](Switch::run_due_spanning_trees) due, or for at most
    /// `timeout`.
    pub fn wait_for_spanning_trees(&self, timeout: Duration) {
        let mut due = self.spanning_trees_due.lock();
        if !*due {
            self.spanning_trees_due_changed.wait_for(&mut due, timeout);
        }
        *due = false;
    }

    /// Does what is due of spanning trees. Returns when it is to be done again, unless something happens before; `None`: not before.
    pub fn run_due_spanning_trees(self: &Arc<Switch>) -> Option<Time> {
        let _turn = self.spanning_trees_turn.lock();
        let now = self.clock.now();
        let (work, next) = {
            let forwarding = self.forwarding.read();
            let mut trees = self.spanning_trees.lock();
            let is_on = |protocol| protocol != Protocol::Off;
            let has_some = forwarding.bridges.values().any(|bridge| is_on(bridge.config.spanning_tree.protocol));
            if !has_some && trees.is_empty() {
                return None;
            }
            let follows = trees.in_step != forwarding.changed;
            if follows {
                trees.in_step = forwarding.changed;
                trees.follow(&forwarding, now);
            }
            (trees.run(&forwarding, now, follows), trees.next_wakeup())
        };
        self.do_tree_work(work, now);
        next
    }

    fn do_tree_work(self: &Arc<Switch>, work: TreeWork, now: Time) {
        let TreeWork { ends, others, flush, frames } = work;
        if !ends.is_empty() {
            let generation = self.set_tree_states(&ends);
            self.wait_until_in_force(generation, now);
        }
        if !others.is_empty() {
            self.set_tree_states(&others);
            self.notify();
        }
        for (bridge, which) in flush {
            self.forget_behind(bridge, &which, now);
        }
        for (bridge, port, frame) in frames {
            self.send_by(bridge, port, &frame);
        }
        for TreeChange { bridge: id, port, .. } in ends.into_iter().chain(others) {
            let name = self.forwarding.read().bridges.get(&id).map(|bridge| bridge.config.name.as_str().into());
            if let Some(name) = name {
                Bridge::new(self.clone(), id, name).tell_state(port);
            }
        }
    }

    /// Tells the tables which state ports have. Returns the generation of the change.
    fn set_tree_states(&self, changes: &[TreeChange]) -> u64 {
        let mut forwarding = self.forwarding.write();
        let was_in_step = forwarding.changed;
        for change in changes {
            let Some(bridge) = forwarding.bridges.get_mut(&change.bridge) else { continue };
            let protocol = bridge.config.spanning_tree.protocol;
            let Some(port) = bridge.ports.get_mut(&change.port) else { continue };
            // Ports and settings may have changed since the trees looked at them; they look again.
            let is_outdated = change.to.is_some_and(|state| state.protocol() != protocol);
            if is_outdated || !Arc::ptr_eq(&port.patch, &change.identity) {
                continue;
            }
            let from = std::mem::replace(&mut port.spanning_tree.state, change.to);
            log_change(&port.name, from, change.to);
            if from.is_some() && change.to.is_some() {
                forwarding.touch_number(change.bridge, change.port);
            } else {
                forwarding.touch_port(change.bridge, change.port);
            }
        }
        let mut trees = self.spanning_trees.lock();
        if trees.in_step == was_in_step {
            trees.in_step = forwarding.changed;
        }
        forwarding.changed
    }

    /// Returns when the flows are as the tables say since a generation, or when it is too long to wait for that.
    fn wait_until_in_force(&self, generation: u64, now: Time) {
        if !self.has_revalidator() {
            return self.apply_changes(now);
        }
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let told = done.clone();
        let waker: Waker = Arc::new(move || {
            *told.0.lock() = true;
            told.1.notify_all();
        });
        if self.wait_for_changes(generation, waker) {
            let mut is_done = done.0.lock();
            if !*is_done {
                done.1.wait_for(&mut is_done, LONGEST_WAIT);
            }
        }
    }

    /// Forgets the addresses and multicast groups that were learnt behind ports: after a change of the topology they may be elsewhere.
    fn forget_behind(&self, bridge: BridgeId, which: &Flush, now: Time) {
        let forwarding = self.forwarding.read();
        let Some(bridge) = forwarding.bridges.get(&bridge) else { return };
        self.change_macs(bridge, |macs| match which {
            Flush::All => macs.flush(now),
            Flush::Ports(ports) => ports.iter().for_each(|port| macs.flush_learnt(*port, now)),
        });
        self.change_groups(bridge, |groups| match which {
            Flush::All => groups.flush(),
            Flush::Ports(ports) => ports.iter().for_each(|port| groups.forget_port(bridge.logical(*port).0, |_| true)),
        });
    }
}

/// In OVS's words, which its tests look for.
fn log_change(port: &str, from: Option<State>, to: Option<State>) {
    let Some(protocol) = to.or(from).map(State::protocol) else { return };
    let off = State::disabled(protocol).map_or("", State::name);
    let name = |state: Option<State>| state.filter(|state| state.protocol() == protocol).map_or(off, State::name);
    if name(from) != name(to) {
        let protocol = protocol.name();
        tracing::debug!(target: "ofproto_dpif", "port {port}: {protocol} state changed from {} to {}", name(from), name(to));
    }
}

/// What operators ask.
impl Switch {
    /// `stp/show` or `rstp/show`, of one bridge or of all; `None` where a bridge does not speak the protocol.
    pub fn show_spanning_trees(self: &Arc<Switch>, protocol: Protocol, name: Option<&str>) -> Option<String> {
        self.run_due_spanning_trees();
        let mut trees = self.spanning_trees.lock();
        let texts: Vec<String> = trees.of(protocol, name).map(|tree| tree.bridge.show(&tree.name)).collect();
        (name.is_none() || !texts.is_empty()).then(|| texts.concat())
    }

    /// `stp/tcn` or `rstp/tcn`, of one bridge or of all. False where a bridge does not speak the protocol.
    pub fn change_topology(self: &Arc<Switch>, protocol: Protocol, name: Option<&str>) -> bool {
        let now = self.clock.now();
        let count = {
            let mut trees = self.spanning_trees.lock();
            let trees = trees.of(protocol, name);
            trees.map(|tree| tree.bridge.change_topology(now)).count()
        };
        self.run_due_spanning_trees();
        name.is_none() || count > 0
    }
}
