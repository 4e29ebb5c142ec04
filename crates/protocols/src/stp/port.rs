//! A port: what it has heard, its state and its timers (IEEE 802.1D-1998 section 8.5.5).

use std::time::Duration;

use packet::Time;

use super::identifier::{PortId, Priority};
use super::output::Counters;
use super::settings::{PortSettings, path_cost};
use super::timing::Timing;

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its link is down.
    Disabled,
    /// It neither forwards nor learns, and waits to learn.
    Listening,
    /// It learns addresses, and waits to forward.
    Learning,
    /// It learns and forwards.
    Forwarding,
    /// It neither forwards nor learns, since another port leads to the same network.
    Blocking,
}

/// Role of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its link is down.
    Disabled,
    /// It leads to the root.
    Root,
    /// It leads from the root to others.
    Designated,
    /// It blocks.
    Alternate,
}

/// A port.
#[derive(Debug)]
pub(super) struct Port {
    pub settings: PortSettings,
    pub number: u16,
    pub speed: u32,
    pub up: bool,
    pub state: State,
    /// Since when it is in this state.
    pub since: Time,
    pub reported: State,
    pub counters: Counters,
    /// Designated root, cost, bridge and port.
    pub designated: Priority,
    pub topology_change_ack: bool,
    pub config_pending: bool,
    /// What was heard of the designated bridge; none where the port is a designated one.
    pub heard: Option<Heard>,
    /// Until when the port sends no other Configuration BPDU.
    pub hold_until: Option<Time>,
    /// It has heard something that the bridge has yet to look at.
    pub updated: bool,
}

/// What a port has heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// When it came.
    pub at: Time,
    /// How old it was then.
    pub age: Duration,
    /// The root's times.
    pub timing: Timing,
    /// Whether the root says that the topology has changed.
    pub topology_change: bool,
    /// Whether the designated bridge has taken a notification.
    pub acknowledgement: bool,
}

impl Port {
    pub fn new(settings: PortSettings, number: u16, now: Time) -> Port {
        Port {
            settings,
            number,
            speed: 0,
            up: false,
            state: State::Disabled,
            since: now,
            reported: State::Disabled,
            counters: Counters::default(),
            designated: Priority::default(),
            topology_change_ack: false,
            config_pending: false,
            heard: None,
            hold_until: None,
            updated: false,
        }
    }

    pub fn id(&self) -> PortId {
        PortId(u16::from(self.settings.priority) << 8 | self.number)
    }

    pub fn path_cost(&self) -> u32 {
        u32::from(self.settings.path_cost.unwrap_or_else(|| path_cost(self.speed)))
    }

    pub fn enabled(&self) -> bool {
        self.state != State::Disabled
    }

    pub fn enter(&mut self, state: State, now: Time) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
    }

    /// Age of what was heard.
    pub fn message_age(&self, now: Time) -> Duration {
        self.heard.map_or(Duration::ZERO, |heard| heard.age + now.since(heard.at))
    }

    /// When what was heard is too old.
    pub fn expires(&self, max_age: Duration) -> Option<Time> {
        self.heard.map(|heard| heard.at + max_age.saturating_sub(heard.age))
    }

    /// When to leave the states listening and learning.
    pub fn advances(&self, forward_delay: Duration) -> Option<Time> {
        matches!(self.state, State::Listening | State::Learning).then(|| self.since + forward_delay)
    }

    /// The first of the port's timers.
    pub fn next_wakeup(&self, max_age: Duration, forward_delay: Duration) -> Option<Time> {
        let hold = self.hold_until.filter(|_| self.config_pending);
        [self.expires(max_age), self.advances(forward_delay), hold].into_iter().flatten().min()
    }
}
