//! A bridge of the Spanning Tree Protocol (IEEE 802.1D-1998 clause 8). Functions have the names of section 8.6 where they are
//! procedures of it.
//!
//! [`Bridge::receive`] takes down what a port hears; what follows for the bridge is done once for all frames when it runs.

use std::time::Duration;

use packet::Time;
use packet::wire::Error;

use super::bpdu::{Bpdu, Config, WireTimes};
use super::identifier::{BridgeId, Priority};
use super::output::{Change, Output, PortError};
use super::port::{Heard, Port, State};
use super::settings::{MAX_PORTS, PortSettings, Settings};
use super::timing::Timing;

/// Between two Configuration BPDUs of a port, at least (Hold Time, Table 8-3).
const HOLD_TIME: Duration = Duration::from_secs(1);

/// By how much a bridge lets information age that it passes on (Message Age Increment Overestimate, Table 8-2).
const AGE_INCREMENT: Duration = Duration::from_secs(1);

/// A bridge that speaks STP.
#[derive(Debug)]
pub struct Bridge {
    pub(super) settings: Settings,
    /// By number, less one.
    ports: Vec<Option<Box<Port>>>,
    /// Designated root and cost to it; the sender is whom the root port heard it from.
    pub(super) root: Priority,
    pub(super) root_port: Option<u16>,
    /// Those of the root.
    pub(super) timing: Timing,
    topology_change_detected: bool,
    topology_change: bool,
    hello_at: Option<Time>,
    notify_at: Option<Time>,
    topology_change_until: Option<Time>,
    /// Links, settings or what was heard have changed.
    changed: bool,
    flush: bool,
    outbox: Vec<(u16, Bpdu)>,
}

impl Bridge {
    /// A bridge without ports.
    pub fn new(settings: Settings, now: Time) -> Bridge {
        let id = settings.bridge_id();
        Bridge {
            settings,
            ports: Vec::new(),
            root: Priority { root: id, cost: 0, bridge: id, port: Default::default() },
            root_port: None,
            timing: settings.timing,
            topology_change_detected: false,
            topology_change: false,
            hello_at: Some(now),
            notify_at: None,
            topology_change_until: None,
            changed: false,
            flush: false,
            outbox: Vec::new(),
        }
    }

    /// Changes the settings. They take effect when the bridge runs.
    pub fn configure(&mut self, settings: Settings) {
        let (old, new) = (self.settings.bridge_id(), settings.bridge_id());
        self.settings = settings;
        // Section 8.8.4.
        for port in self.ports.iter_mut().flatten().filter(|port| port.designated.bridge == old) {
            port.designated.bridge = new;
            if port.designated.root == old {
                port.designated.root = new;
            }
        }
        self.changed = true;
    }

    /// Adds a port, whose link is down until [`Bridge::set_link`], and returns its number.
    pub fn add_port(&mut self, now: Time, settings: PortSettings) -> Result<u16, PortError> {
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
        self.ports[index] = Some(Box::new(Port::new(settings, number, now)));
        Ok(number)
    }

    /// Changes a port's settings; false where there is no such port. Its number stays: another one is another port's.
    pub fn configure_port(&mut self, number: u16, settings: PortSettings) -> bool {
        let own = self.settings.bridge_id();
        let Some(port) = self.port_mut(number) else { return false };
        let old = port.id();
        port.settings = settings;
        // Section 8.8.5.
        if port.designated.bridge == own && port.designated.port == old {
            port.designated.port = port.id();
        }
        self.changed = true;
        true
    }

    /// Removes a port; false where there is no such port.
    pub fn remove_port(&mut self, number: u16) -> bool {
        let slot = usize::from(number).checked_sub(1).and_then(|index| self.ports.get_mut(index));
        self.changed = true;
        slot.and_then(Option::take).is_some()
    }

    /// Says whether a port's link is up, and at how many megabits per second (0: not known); false where there is no such port.
    pub fn set_link(&mut self, number: u16, up: bool, speed: u32) -> bool {
        let Some(port) = self.port_mut(number) else { return false };
        (port.up, port.speed) = (up, speed);
        self.changed = true;
        true
    }

    /// Takes a frame that was received by a port, for the group address of bridges. What follows from it is done when the bridge
    /// runs, as soon as the frames at hand are taken. What is not for this protocol is counted as an error of the port.
    pub fn receive(&mut self, now: Time, number: u16, frame: &[u8]) {
        let Some(port) = self.port_mut(number).filter(|port| port.enabled()) else { return };
        let bpdu = Bpdu::new_checked(frame).and_then(check);
        match bpdu {
            Ok(_) => port.counters.received += 1,
            Err(_) => port.counters.errors += 1,
        }
        match bpdu {
            Ok(Bpdu::Config(config)) => self.received_config_bpdu(now, number, &config),
            Ok(Bpdu::Notification) => self.received_tcn_bpdu(now, number),
            Ok(Bpdu::Rapid(..)) | Err(_) => {}
        }
    }

    /// Has the topology change (`stp/tcn`): the root is told, and what was learnt is forgotten.
    pub fn change_topology(&mut self, now: Time) {
        self.topology_change_detection(now);
    }

    /// When to run again at the latest.
    pub fn next_wakeup(&self) -> Option<Time> {
        if self.changed || self.flush || !self.outbox.is_empty() {
            return Some(Time::default());
        }
        let (max_age, delay) = (self.max_age(), seconds(self.timing.forward_delay));
        let ports = self.enabled().filter_map(|port| port.next_wakeup(max_age, delay));
        ports.chain([self.hello_at, self.notify_at, self.topology_change_until].into_iter().flatten()).min()
    }

    /// Does what time, frames and changes of links and settings ask for.
    pub fn run(&mut self, now: Time, output: &mut Output<State>) {
        if self.changed {
            self.follow_links(now);
        }
        self.message_ages(now);
        if std::mem::take(&mut self.changed) {
            self.update(now);
        }
        self.timers(now);
        self.collect(output);
    }

    /// Enables and disables ports (sections 8.8.2 and 8.8.3).
    fn follow_links(&mut self, now: Time) {
        for number in self.numbers() {
            let Some(port) = self.port_mut(number).filter(|port| port.enabled() != port.up) else { continue };
            port.enter(if port.up { State::Blocking } else { State::Disabled }, now);
            (port.topology_change_ack, port.config_pending) = (false, false);
            port.hold_until = None;
            self.become_designated_port(number);
        }
    }

    /// Message age timers that have expired (section 8.7.5).
    fn message_ages(&mut self, now: Time) {
        let max_age = self.max_age();
        for number in self.numbers() {
            let Some(port) = self.port(number) else { continue };
            if port.enabled() && port.expires(max_age).is_some_and(|at| at <= now) {
                self.become_designated_port(number);
                self.changed = true;
            }
        }
    }

    /// Selects root, designated ports and states anew, and tells others.
    fn update(&mut self, now: Time) {
        let was_root = self.root_port.is_none();
        self.root_selection();
        let is_root = self.root_port.is_none();
        if was_root && !is_root {
            // From now on the flag is the root's.
            (self.hello_at, self.topology_change, self.topology_change_until) = (None, false, None);
        }
        let pass_on = self.record_config_timeout_values();
        self.designated_port_selection();
        self.port_state_selection(now);
        if is_root && !was_root {
            self.notify_at = None;
            self.topology_change_detection(now);
            self.config_bpdu_generation(now);
            self.hello_at = Some(now + seconds(self.timing.hello_time));
        } else if was_root && !is_root && self.topology_change_detected {
            self.transmit_tcn(now);
        }
        if pass_on {
            self.config_bpdu_generation(now);
        }
    }

    /// All timers but those of messages (section 8.7).
    fn timers(&mut self, now: Time) {
        let due = |at: Option<Time>| at.is_some_and(|at| at <= now);
        if due(self.hello_at) {
            self.config_bpdu_generation(now);
            self.hello_at = Some(now + seconds(self.timing.hello_time));
        }
        if due(self.notify_at) {
            self.transmit_tcn(now);
        }
        if due(self.topology_change_until) {
            self.topology_change_until = None;
            (self.topology_change_detected, self.topology_change) = (false, false);
        }
        let delay = seconds(self.timing.forward_delay);
        let own = self.settings.bridge_id();
        let designated_for_some_port = self.enabled().any(|port| port.designated.bridge == own);
        let mut forwards = false;
        for port in self.ports.iter_mut().flatten().filter(|port| due(port.advances(delay))) {
            if port.state == State::Listening {
                port.enter(State::Learning, now);
            } else {
                port.enter(State::Forwarding, now);
                forwards |= designated_for_some_port;
            }
        }
        if forwards {
            self.topology_change_detection(now);
        }
        for number in self.numbers() {
            let Some(port) = self.port_mut(number) else { continue };
            if due(port.hold_until) {
                port.hold_until = None;
                if port.config_pending {
                    self.transmit_configuration(now, number);
                }
            }
        }
    }

    /// Takes out what has changed and what is to be sent.
    fn collect(&mut self, output: &mut Output<State>) {
        let flush = std::mem::take(&mut self.flush);
        let first = output.changes.len();
        for port in self.ports.iter_mut().flatten() {
            let from = std::mem::replace(&mut port.reported, port.state);
            if from != port.state {
                output.changes.push(Change { port: port.number, from, to: port.state });
            }
            if flush || (from.learns() && !port.state.learns()) {
                output.flush.push(port.number);
            }
        }
        output.changes[first..].sort_by_key(|change| change.to.forwards());
        for (number, bpdu) in std::mem::take(&mut self.outbox) {
            let Some(port) = self.port_mut(number).filter(|port| port.enabled()) else { continue };
            port.counters.sent += 1;
            output.frames.push((number, bpdu.emit(port.settings.mac)));
        }
    }

    fn received_config_bpdu(&mut self, now: Time, number: u16, config: &Config) {
        let own = self.settings.bridge_id();
        let is_root_port = self.root_port == Some(number);
        let Some(port) = self.port_mut(number) else { return };
        let sender = (config.priority.bridge, config.priority.port);
        if sender == (own, port.id()) {
            // The port hears itself.
            return;
        }
        if supersedes_port_info(config, port, own) {
            let changed = port.designated != config.priority || port.heard.is_none();
            port.designated = config.priority;
            port.heard = Some(Heard {
                at: now,
                age: duration(config.times.message_age),
                timing: timing(&config.times),
                topology_change: config.topology_change,
                acknowledgement: config.acknowledgement,
            });
            port.updated = true;
            // What the root says again is passed on; what a blocked port hears again changes nothing.
            self.changed |= changed || is_root_port;
        } else if (port.designated.bridge, port.designated.port) == (own, port.id()) {
            self.transmit_configuration(now, number);
        }
    }

    fn received_tcn_bpdu(&mut self, now: Time, number: u16) {
        if self.is_designated(number) {
            self.topology_change_detection(now);
            if let Some(port) = self.port_mut(number) {
                port.topology_change_ack = true;
            }
            self.transmit_configuration(now, number);
        }
    }

    /// Takes the times and flags that the root port has heard last; true where it has heard something since they were looked at.
    fn record_config_timeout_values(&mut self) -> bool {
        let Some(port) = self.root_port.and_then(|number| self.port_mut(number)) else {
            self.timing = self.settings.timing;
            return false;
        };
        let updated = std::mem::take(&mut port.updated);
        if let Some(heard) = port.heard {
            self.timing = heard.timing;
            self.topology_change = heard.topology_change;
            self.flush |= updated && heard.topology_change;
            if updated && heard.acknowledgement {
                (self.topology_change_detected, self.notify_at) = (false, None);
            }
        }
        updated
    }

    fn root_selection(&mut self) {
        let own = self.settings.bridge_id();
        let mut best =
            (Priority { root: own, cost: 0, bridge: own, port: Default::default() }, Default::default(), None);
        for port in self.enabled().filter(|port| !self.is_designated(port.number) && port.designated.root < own) {
            let cost = port.designated.cost.saturating_add(port.path_cost());
            best = best.min((Priority { cost, ..port.designated }, port.id(), Some(port.number)));
        }
        (self.root, _, self.root_port) = best;
    }

    fn designated_port_selection(&mut self) {
        let own = self.settings.bridge_id();
        for number in self.numbers() {
            let Some(port) = self.port(number) else { continue };
            let offered = Priority { root: self.root.root, cost: self.root.cost, bridge: own, port: port.id() };
            if self.is_designated(number) || port.designated.root != offered.root || offered <= port.designated {
                self.become_designated_port(number);
            }
        }
    }

    fn become_designated_port(&mut self, number: u16) {
        let (root, own) = (self.root, self.settings.bridge_id());
        let Some(port) = self.port_mut(number) else { return };
        port.designated = Priority { root: root.root, cost: root.cost, bridge: own, port: port.id() };
        port.heard = None;
    }

    fn port_state_selection(&mut self, now: Time) {
        for number in self.numbers() {
            let designated = self.is_designated(number);
            let is_root_port = self.root_port == Some(number);
            let Some(port) = self.port_mut(number).filter(|port| port.enabled()) else { continue };
            if !designated {
                (port.config_pending, port.topology_change_ack) = (false, false);
            }
            if designated || is_root_port {
                if port.state == State::Blocking {
                    port.enter(State::Listening, now);
                }
            } else if port.state != State::Blocking {
                let learnt = port.state.learns();
                port.enter(State::Blocking, now);
                if learnt {
                    self.topology_change_detection(now);
                }
            }
        }
    }

    fn topology_change_detection(&mut self, now: Time) {
        if self.root_port.is_none() {
            self.topology_change = true;
            let time = seconds(self.timing.max_age) + seconds(self.timing.forward_delay);
            self.topology_change_until = Some(now + time);
        } else if !self.topology_change_detected {
            self.transmit_tcn(now);
        }
        (self.topology_change_detected, self.flush) = (true, true);
    }

    fn transmit_tcn(&mut self, now: Time) {
        if let Some(root_port) = self.root_port {
            self.outbox.push((root_port, Bpdu::Notification));
            self.notify_at = Some(now + seconds(self.settings.timing.hello_time));
        }
    }

    fn config_bpdu_generation(&mut self, now: Time) {
        for number in self.numbers() {
            if self.is_designated(number) && self.port(number).is_some_and(|port| port.enabled()) {
                self.transmit_configuration(now, number);
            }
        }
    }

    fn transmit_configuration(&mut self, now: Time, number: u16) {
        let (root, own, topology_change) = (self.root, self.settings.bridge_id(), self.topology_change);
        let timing = self.timing;
        let root_port = self.root_port.and_then(|number| self.port(number));
        let age = root_port.map_or(Duration::ZERO, |port| port.message_age(now) + AGE_INCREMENT);
        let Some(port) = self.port_mut(number) else { return };
        if port.hold_until.is_some_and(|until| now < until) {
            port.config_pending = true;
            return;
        }
        port.config_pending = false;
        if age >= seconds(timing.max_age) {
            return;
        }
        let times = WireTimes {
            // In 1/256 s.
            message_age: (age.as_millis() * 256 / 1000) as u16,
            ..WireTimes::from_seconds(0, timing.max_age, timing.hello_time, timing.forward_delay)
        };
        let config = Config {
            priority: Priority { root: root.root, cost: root.cost, bridge: own, port: port.id() },
            times,
            topology_change,
            acknowledgement: std::mem::take(&mut port.topology_change_ack),
        };
        port.hold_until = Some(now + HOLD_TIME);
        self.outbox.push((number, Bpdu::Config(config)));
    }

    /// Whether a port is the designated one of its network.
    pub(super) fn is_designated(&self, number: u16) -> bool {
        let own = self.settings.bridge_id();
        self.port(number).is_some_and(|port| port.designated.bridge == own && port.designated.port == port.id())
    }

    fn max_age(&self) -> Duration {
        seconds(self.timing.max_age)
    }

    fn numbers(&self) -> std::ops::RangeInclusive<u16> {
        1..=self.ports.len() as u16
    }

    fn enabled(&self) -> impl Iterator<Item = &Port> {
        self.ports().filter(|port| port.enabled())
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().flatten().map(|port| &**port)
    }

    pub(super) fn port(&self, number: u16) -> Option<&Port> {
        self.ports.get(usize::from(number).checked_sub(1)?)?.as_deref()
    }

    fn port_mut(&mut self, number: u16) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number).checked_sub(1)?)?.as_deref_mut()
    }
}

/// Refuses what a bridge of this protocol does not take (section 9.3.4).
fn check(bpdu: Bpdu) -> Result<Bpdu, Error> {
    let what = match bpdu {
        Bpdu::Rapid(..) => "an RST BPDU, for a bridge that speaks STP",
        Bpdu::Config(config) if config.times.message_age >= config.times.max_age => "older than the greatest age",
        _ => return Ok(bpdu),
    };
    Err(Error::Malformed { layer: "BPDU", what })
}

/// Section 8.6.2.2: what is from the port's designated bridge replaces what that said before.
fn supersedes_port_info(config: &Config, port: &Port, own: BridgeId) -> bool {
    let (new, known) = (&config.priority, &port.designated);
    let (path, known_path) = ((new.root, new.cost, new.bridge), (known.root, known.cost, known.bridge));
    path < known_path || (path == known_path && (new.bridge != own || new.port <= known.port))
}

/// The times of the root, with those outside of Table 8-3 taken as the nearest inside: a forward delay of zero would have ports
/// forward before others know.
fn timing(times: &WireTimes) -> Timing {
    let seconds = |time: u16| ((u32::from(time) + 128) >> 8) as u16;
    Timing {
        hello_time: seconds(times.hello_time).clamp(1, 10),
        max_age: seconds(times.max_age).clamp(6, 40),
        forward_delay: seconds(times.forward_delay).clamp(4, 30),
    }
}

fn seconds(seconds: u16) -> Duration {
    Duration::from_secs(seconds.into())
}

/// A time of a BPDU, in 1/256 s.
fn duration(time: u16) -> Duration {
    Duration::from_nanos(u64::from(time) * 1_000_000_000 / 256)
}
