//! A bridge: its ports, its time, and the order in which the machines of its ports move.
//!
//! [`Bridge::run`] works in rounds. In each, first roles are selected anew if a port asks for that, then ports in the queue move
//! until none can, then what they asked of all other ports is done for all of them at once, which queues these. Frames are made
//! at the end, when everything has settled. The number of rounds does not grow with the number of ports.

use std::collections::VecDeque;

use packet::Time;

use super::port::{Info, Port, Role, State, Times, Tree};
use super::settings::{Link, MAX_PORTS, PortSettings, Settings};
use super::transitions::Effect;
use crate::stp::identifier::Priority;
use crate::stp::output::{Change, Output, PortError};

/// A second, in which timers count.
const TICK: std::time::Duration = std::time::Duration::from_secs(1);

/// The most seconds that count when a bridge was not run for longer. It has not listened in that time either, so that its timers
/// must not expire because of it: it is less than any of them.
const MAX_LATE_TICKS: u64 = 3;

/// A bridge that speaks RSTP.
#[derive(Debug)]
pub struct Bridge {
    pub(super) settings: Settings,
    pub(super) tree: Tree,
    /// By number, less one.
    ports: Vec<Option<Box<Port>>>,
    /// When timers were decremented last.
    last_tick: Time,
    reselect: bool,
    /// Ports that have to move, and those that may have something to send.
    queue: VecDeque<u16>,
    touched: Vec<u16>,
    /// How many ports keep `allSynced` from holding.
    unsynced: usize,
    pending: Pending,
}

/// What ports have asked of all others in this round.
#[derive(Debug, Default)]
struct Pending {
    sync: bool,
    re_root: bool,
    /// Which ports have asked to propagate a change of the topology.
    change: Option<Source>,
    /// All ports are to look at `allSynced` again.
    synced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Port(u16),
    Several,
}

impl Bridge {
    /// A bridge without ports.
    pub fn new(settings: Settings, now: Time) -> Bridge {
        let mut bridge = Bridge {
            tree: Tree {
                rstp: true,
                hold_count: 0,
                id: settings.bridge_id(),
                root: Priority::default(),
                root_port: None,
                times: own_times(&settings),
                all_synced: true,
                recent_roots: 0,
            },
            settings,
            ports: Vec::new(),
            last_tick: now,
            reselect: true,
            queue: VecDeque::new(),
            touched: Vec::new(),
            unsynced: 0,
            pending: Pending::default(),
        };
        bridge.configure(settings);
        bridge.tree.root = bridge.own_priority();
        bridge
    }

    /// Changes the settings. They take effect when the bridge runs.
    pub fn configure(&mut self, settings: Settings) {
        let restart = self.tree.rstp == settings.force_stp;
        self.settings = settings;
        self.tree.id = settings.bridge_id();
        self.tree.hold_count = settings.transmit_hold_count;
        self.tree.rstp = !settings.force_stp;
        self.reselect = true;
        if restart {
            let tree = self.tree;
            for port in self.ports.iter_mut().flatten() {
                let new = Port::new(port.settings.clone(), port.number, &tree);
                let old = std::mem::replace(&mut **port, new);
                (port.link, port.enabled, port.reported) = (old.link, old.enabled, old.reported);
                (port.counters, port.uptime, port.flush) = (old.counters, old.uptime, old.learning);
                (port.queued, port.touched) = (old.queued, old.touched);
                (port.counts_unsynced, port.counts_recent_root) = (old.counts_unsynced, old.counts_recent_root);
            }
        }
        self.queue_all();
    }

    /// Adds a port, whose link is down until [`Bridge::set_link`], and returns its number.
    pub fn add_port(&mut self, settings: PortSettings) -> Result<u16, PortError> {
        let number = match settings.number {
            Some(number @ 1..=MAX_PORTS) if self.port(number).is_none() => number,
            Some(number @ 1..=MAX_PORTS) => return Err(PortError::NumberTaken(number)),
            Some(number) => return Err(PortError::NumberOutOfRange { number, greatest: MAX_PORTS }),
            None => {
                let free = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
                u16::try_from(free + 1).ok().filter(|n| *n <= MAX_PORTS).ok_or(PortError::TooManyPorts(MAX_PORTS))?
            }
        };
        let index = usize::from(number) - 1;
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        self.ports[index] = Some(Box::new(Port::new(settings, number, &self.tree)));
        self.recount(number);
        self.enqueue(number);
        Ok(number)
    }

    /// Changes a port's settings; false where there is no such port. Its number stays: another one is another port's.
    pub fn configure_port(&mut self, number: u16, settings: PortSettings) -> bool {
        let Some(port) = self.port_mut(number) else { return false };
        port.mcheck |= settings.mcheck && !port.settings.mcheck;
        port.settings = settings;
        let link = port.link;
        self.reselect = true;
        self.queue_all();
        self.set_link(number, link)
    }

    /// Removes a port; false where there is no such port.
    pub fn remove_port(&mut self, number: u16) -> bool {
        let Some(slot) = usize::from(number).checked_sub(1).and_then(|index| self.ports.get_mut(index)) else {
            return false;
        };
        let Some(port) = slot.take() else { return false };
        self.unsynced -= usize::from(port.counts_unsynced);
        self.tree.recent_roots -= usize::from(port.counts_recent_root);
        self.reselect = true;
        self.queue_all();
        true
    }

    /// Says how a port's link is; false where there is no such port.
    pub fn set_link(&mut self, number: u16, link: Link) -> bool {
        let Some(port) = self.port_mut(number) else { return false };
        let cost = port.path_cost();
        port.link = link;
        port.enabled = link.up && port.settings.admin_state;
        if cost != port.path_cost() {
            self.reselect = true;
        }
        self.enqueue(number);
        true
    }

    /// Takes a frame that was received by a port, for the group address of bridges. What follows from it is done when the bridge
    /// runs, as soon as the frames at hand are taken. What is not for this protocol is counted as an error of the port.
    pub fn receive(&mut self, number: u16, frame: &[u8]) {
        let tree = self.tree;
        let Some(port) = self.port_mut(number).filter(|port| port.enabled && port.info_is != Info::Disabled) else {
            return;
        };
        match port.receive(frame, &tree) {
            Ok(()) => port.counters.received += 1,
            Err(_) => port.counters.errors += 1,
        }
        self.enqueue(number);
    }

    /// Has the topology of all ports changed (`rstp/tcn`): neighbours are told, and what was learnt is forgotten.
    pub fn change_topology(&mut self) {
        let tree = self.tree;
        for port in self.ports.iter_mut().flatten().filter(|port| port.forwarding && !port.oper_edge) {
            port.new_tc_while(&tree);
            (port.new_info, port.flush) = (true, true);
        }
        self.queue_all();
    }

    /// When to run again at the latest.
    pub fn next_wakeup(&self) -> Time {
        if self.queue.is_empty() && !self.reselect { self.last_tick + TICK } else { self.last_tick }
    }

    /// Does what time, frames and changes of links and settings ask for.
    pub fn run(&mut self, now: Time, output: &mut Output<State>) {
        self.settle();
        let passed = now.since(self.last_tick).as_secs();
        for _ in 0..passed.min(MAX_LATE_TICKS) {
            self.ports.iter_mut().flatten().for_each(|port| port.tick());
            self.queue_all();
            self.settle();
        }
        self.last_tick = if passed > MAX_LATE_TICKS { now } else { self.last_tick + TICK * passed as u32 };
        self.collect(output);
    }

    /// Lets all machines move until none can.
    fn settle(&mut self) {
        loop {
            if self.reselect {
                self.select_roles();
            }
            while let Some(number) = self.queue.pop_front() {
                self.step(number);
            }
            if !self.reselect && !self.do_pending() {
                break;
            }
        }
    }

    /// Lets the machines of a port move until none can, but by what is pending.
    fn step(&mut self, number: u16) {
        let Some(port) = self.port_mut(number) else { return };
        port.queued = false;
        if !std::mem::replace(&mut port.touched, true) {
            self.touched.push(number);
        }
        loop {
            let tree = self.tree_now();
            let Some(port) = self.port_mut(number) else { return };
            let mut moved = port.migrate(&tree) | port.detect_edge() | port.information(&tree);
            let reselect = std::mem::take(&mut port.reselect);
            let role = port.role_transition(&tree);
            moved |= port.state_transition();
            let topology = port.topology_change(&tree);
            self.reselect |= reselect;
            for effect in [role, topology].into_iter().flatten() {
                moved = true;
                self.pend(number, effect);
            }
            self.recount(number);
            if !moved {
                break;
            }
        }
    }

    /// What ports see of the bridge now. While a request to all ports is pending, they are not synced.
    fn tree_now(&self) -> Tree {
        Tree { all_synced: self.unsynced == 0 && !self.pending.sync, ..self.tree }
    }

    fn pend(&mut self, number: u16, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Sync => self.pending.sync = true,
            Effect::ReRoot => self.pending.re_root = true,
            Effect::PropagateChange => {
                self.pending.change = match self.pending.change {
                    None => Some(Source::Port(number)),
                    Some(Source::Port(source)) if source == number => Some(Source::Port(number)),
                    Some(_) => Some(Source::Several),
                };
            }
        }
    }

    /// Does what ports have asked of all others; whether there was something.
    fn do_pending(&mut self) -> bool {
        let pending = std::mem::take(&mut self.pending);
        let all_are_synced = pending.synced && self.unsynced == 0;
        if !(pending.sync || pending.re_root || pending.change.is_some() || all_are_synced) {
            return false;
        }
        for port in self.ports.iter_mut().flatten() {
            port.sync |= pending.sync;
            port.re_root |= pending.re_root;
            port.tc_prop |= pending.change.is_some_and(|source| source != Source::Port(port.number));
        }
        self.queue_all();
        true
    }

    /// Brings the sums over all ports up to date after a port has changed.
    fn recount(&mut self, number: u16) {
        let Some(port) = self.port_mut(number) else { return };
        let (unsynced, recent_root) = (port.is_unsynced(), port.rr_while != 0);
        let was_unsynced = std::mem::replace(&mut port.counts_unsynced, unsynced);
        let was_recent_root = std::mem::replace(&mut port.counts_recent_root, recent_root);
        self.unsynced = self.unsynced + usize::from(unsynced) - usize::from(was_unsynced);
        self.tree.recent_roots = self.tree.recent_roots + usize::from(recent_root) - usize::from(was_recent_root);
        self.pending.synced |= was_unsynced && !unsynced;
        if was_recent_root
            && !recent_root
            && let Some(root_port) = self.tree.root_port
        {
            self.enqueue(root_port);
        }
    }

    /// The port role selection machine (section 17.28, `updtRolesTree` in 17.21.25).
    fn select_roles(&mut self) {
        self.reselect = false;
        let own = self.own_priority();
        let mut best = (own, Default::default(), None);
        for port in self.ports.iter().flatten() {
            let heard = &port.port_priority;
            if port.info_is == Info::Received && heard.bridge.mac() != self.tree.id.mac() {
                let cost = heard.cost.saturating_add(port.path_cost());
                best = best.min((Priority { cost, ..*heard }, port.id(), Some(port.number)));
            }
        }
        let (root, _, root_port) = best;
        self.tree.root = root;
        self.tree.root_port = root_port;
        let own_times = own_times(&self.settings);
        self.tree.times = match root_port.and_then(|number| self.port(number)) {
            Some(port) => Times {
                message_age: port.port_times.message_age + 1,
                hello_time: own_times.hello_time,
                ..port.port_times
            },
            None => own_times,
        };
        let tree = self.tree;
        for port in self.ports.iter_mut().flatten() {
            port.select_role(&tree);
        }
        // Once all roles are selected: the ports' sums tell whether all of them are settled.
        for number in 1..=self.ports.len() as u16 {
            self.recount(number);
        }
        self.queue_all();
    }

    /// Takes out what has changed and what is to be sent.
    fn collect(&mut self, output: &mut Output<State>) {
        let tree = self.tree;
        let first = output.changes.len();
        for number in std::mem::take(&mut self.touched) {
            let Some(port) = self.port_mut(number) else { continue };
            port.touched = false;
            let state = port.state();
            let from = std::mem::replace(&mut port.reported, state);
            if from != state {
                output.changes.push(Change { port: number, from, to: state });
            }
            if std::mem::take(&mut port.flush) {
                output.flush.push(number);
            }
            if let Some(bpdu) = port.transmit(&tree) {
                output.frames.push((number, bpdu.emit(port.settings.mac)));
            }
        }
        output.changes[first..].sort_by_key(|change| change.to == State::Forwarding);
    }

    fn queue_all(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            if !std::mem::replace(&mut port.queued, true) {
                self.queue.push_back(port.number);
            }
        }
    }

    fn enqueue(&mut self, number: u16) {
        if let Some(port) = self.port_mut(number)
            && !std::mem::replace(&mut port.queued, true)
        {
            self.queue.push_back(number);
        }
    }

    /// The bridge priority vector: what it says where it hears nothing better.
    fn own_priority(&self) -> Priority {
        Priority { root: self.tree.id, cost: 0, bridge: self.tree.id, port: Default::default() }
    }

    pub(super) fn port(&self, number: u16) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)?.as_deref()
    }

    fn port_mut(&mut self, number: u16) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number).checked_sub(1)?)?.as_deref_mut()
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().flatten().map(|port| &**port)
    }
}

impl Port {
    /// The part of `updtRolesTree` for this port, and `setSelectedTree`.
    fn select_role(&mut self, tree: &Tree) {
        let designated = self.designated_priority(tree);
        self.updt_info = false;
        self.selected_role = match self.info_is {
            Info::Disabled => Role::Disabled,
            Info::Aged => {
                self.updt_info = true;
                Role::Designated
            }
            Info::Mine => {
                self.updt_info = self.port_priority != designated || self.port_times != tree.times;
                Role::Designated
            }
            Info::Received if tree.root_port == Some(self.number) => Role::Root,
            Info::Received if designated < self.port_priority => {
                self.updt_info = true;
                Role::Designated
            }
            Info::Received if self.port_priority.bridge.mac() == tree.id.mac() => Role::Backup,
            Info::Received => Role::Alternate,
        };
        (self.reselect, self.selected) = (false, true);
    }
}

/// `BridgeTimes`.
fn own_times(settings: &Settings) -> Times {
    let timing = &settings.timing;
    Times {
        message_age: 0,
        max_age: timing.max_age,
        hello_time: timing.hello_time,
        forward_delay: timing.forward_delay,
    }
}
