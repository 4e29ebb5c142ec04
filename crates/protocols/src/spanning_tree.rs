//! A bridge of either protocol, for whoever drives it: STP and RSTP have one interface here.

use packet::Time;

use crate::ethernet::Mac;
use crate::options::{OptionError, Options};
use crate::rstp::{self, Link};
use crate::stp;
use crate::stp::output::{Change, Output, PortError};

/// Which protocol keeps the loops of a bridge from forwarding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// None.
    #[default]
    Off,
    /// STP.
    Stp,
    /// RSTP.
    Rstp,
}

impl Protocol {
    /// Its name; empty for none.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Off => "",
            Protocol::Stp => "STP",
            Protocol::Rstp => "RSTP",
        }
    }

    /// What the names of its options begin with; none for no protocol.
    pub fn prefix(self) -> Option<&'static str> {
        match self {
            Protocol::Off => None,
            Protocol::Stp => Some("stp-"),
            Protocol::Rstp => Some("rstp-"),
        }
    }
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// By STP.
    Stp(stp::State),
    /// By RSTP.
    Rstp(rstp::State),
}

impl State {
    /// The state of a port whose link is down, or of which nothing is known yet.
    pub fn disabled(protocol: Protocol) -> Option<State> {
        match protocol {
            Protocol::Off => None,
            Protocol::Stp => Some(State::Stp(stp::State::Disabled)),
            Protocol::Rstp => Some(State::Rstp(rstp::State::Disabled)),
        }
    }

    /// Its protocol.
    pub fn protocol(self) -> Protocol {
        match self {
            State::Stp(_) => Protocol::Stp,
            State::Rstp(_) => Protocol::Rstp,
        }
    }

    /// The name that the database has for it.
    pub fn name(self) -> &'static str {
        match self {
            State::Stp(state) => state.name(),
            State::Rstp(state) => state.name(),
        }
    }

    /// Whether addresses are learnt from what is received.
    pub fn learns(self) -> bool {
        match self {
            State::Stp(state) => state.learns(),
            State::Rstp(state) => state.learns(),
        }
    }

    /// Whether frames are forwarded.
    pub fn forwards(self) -> bool {
        match self {
            State::Stp(state) => state.forwards(),
            State::Rstp(state) => state.forwards(),
        }
    }

    /// Whether BPDUs of others may leave by the port: by STP not while it blocks.
    pub fn passes_bpdus(self) -> bool {
        self != State::Stp(stp::State::Blocking)
    }
}

/// Settings of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    /// Of STP.
    Stp(stp::Settings),
    /// Of RSTP.
    Rstp(rstp::Settings),
}

impl Settings {
    /// The settings that options ask for, and what is wrong with these. `None` for no protocol.
    pub fn from_options(protocol: Protocol, address: Mac, options: &Options) -> (Option<Settings>, Vec<OptionError>) {
        match protocol {
            Protocol::Off => (None, Vec::new()),
            Protocol::Stp => {
                let (settings, wrong) = stp::Settings::from_options(address, options);
                (Some(Settings::Stp(settings)), wrong)
            }
            Protocol::Rstp => {
                let (settings, wrong) = rstp::Settings::from_options(address, options);
                (Some(Settings::Rstp(settings)), wrong)
            }
        }
    }
}

/// Settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSettings {
    /// Of STP.
    Stp(stp::PortSettings),
    /// Of RSTP.
    Rstp(rstp::PortSettings),
}

impl PortSettings {
    /// The settings that options ask for, and what is wrong with these. `None` where the port is not to take part.
    pub fn from_options(
        protocol: Protocol,
        name: &str,
        mac: Mac,
        options: &Options,
    ) -> (Option<PortSettings>, Vec<OptionError>) {
        match protocol {
            Protocol::Off => (None, Vec::new()),
            Protocol::Stp => {
                let (settings, wrong) = stp::PortSettings::from_options(name, mac, options);
                (settings.map(PortSettings::Stp), wrong)
            }
            Protocol::Rstp => {
                let (settings, wrong) = rstp::PortSettings::from_options(name, mac, options);
                (settings.map(PortSettings::Rstp), wrong)
            }
        }
    }

    /// The number that is asked for.
    pub fn number(&self) -> Option<u16> {
        match self {
            PortSettings::Stp(settings) => settings.number,
            PortSettings::Rstp(settings) => settings.number,
        }
    }
}

/// A bridge.
#[derive(Debug)]
pub enum Bridge {
    /// It speaks STP.
    Stp(stp::Bridge),
    /// It speaks RSTP.
    Rstp(rstp::Bridge),
}

impl Bridge {
    /// A bridge without ports.
    pub fn new(settings: Settings, now: Time) -> Bridge {
        match settings {
            Settings::Stp(settings) => Bridge::Stp(stp::Bridge::new(settings, now)),
            Settings::Rstp(settings) => Bridge::Rstp(rstp::Bridge::new(settings, now)),
        }
    }

    /// Its protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Bridge::Stp(_) => Protocol::Stp,
            Bridge::Rstp(_) => Protocol::Rstp,
        }
    }

    /// Changes the settings. False where they are of the other protocol, which another bridge is for.
    pub fn configure(&mut self, settings: Settings) -> bool {
        match (self, settings) {
            (Bridge::Stp(bridge), Settings::Stp(settings)) => bridge.configure(settings),
            (Bridge::Rstp(bridge), Settings::Rstp(settings)) => bridge.configure(settings),
            _ => return false,
        }
        true
    }

    /// Adds a port, whose link is down until [`Bridge::set_link`], and returns its number. Settings of the other protocol count as
    /// none that can be had.
    pub fn add_port(&mut self, now: Time, settings: PortSettings) -> Result<u16, PortError> {
        match (self, settings) {
            (Bridge::Stp(bridge), PortSettings::Stp(settings)) => bridge.add_port(now, settings),
            (Bridge::Rstp(bridge), PortSettings::Rstp(settings)) => bridge.add_port(settings),
            _ => Err(PortError::TooManyPorts(0)),
        }
    }

    /// Changes a port's settings but for its number; false where there is no such port.
    pub fn configure_port(&mut self, number: u16, settings: PortSettings) -> bool {
        match (self, settings) {
            (Bridge::Stp(bridge), PortSettings::Stp(settings)) => bridge.configure_port(number, settings),
            (Bridge::Rstp(bridge), PortSettings::Rstp(settings)) => bridge.configure_port(number, settings),
            _ => false,
        }
    }

    /// Removes a port; false where there is no such port.
    pub fn remove_port(&mut self, number: u16) -> bool {
        match self {
            Bridge::Stp(bridge) => bridge.remove_port(number),
            Bridge::Rstp(bridge) => bridge.remove_port(number),
        }
    }

    /// Says how a port's link is; false where there is no such port.
    pub fn set_link(&mut self, number: u16, link: Link) -> bool {
        match self {
            Bridge::Stp(bridge) => bridge.set_link(number, link.up, link.speed),
            Bridge::Rstp(bridge) => bridge.set_link(number, link),
        }
    }

    /// Takes a frame that was received by a port. What follows from it is done when the bridge runs.
    pub fn receive(&mut self, now: Time, number: u16, frame: &[u8]) {
        match self {
            Bridge::Stp(bridge) => bridge.receive(now, number, frame),
            Bridge::Rstp(bridge) => bridge.receive(number, frame),
        }
    }

    /// Has the topology change, as operators may ask for: neighbours are told, and what was learnt is forgotten.
    pub fn change_topology(&mut self, now: Time) {
        match self {
            Bridge::Stp(bridge) => bridge.change_topology(now),
            Bridge::Rstp(bridge) => bridge.change_topology(),
        }
    }

    /// When to run again at the latest.
    pub fn next_wakeup(&self) -> Option<Time> {
        match self {
            Bridge::Stp(bridge) => bridge.next_wakeup(),
            Bridge::Rstp(bridge) => Some(bridge.next_wakeup()),
        }
    }

    /// Does what time, frames and changes of links and settings ask for.
    pub fn run(&mut self, now: Time) -> Output<State> {
        match self {
            Bridge::Stp(bridge) => {
                let mut output = Output::default();
                bridge.run(now, &mut output);
                of_either(output, State::Stp)
            }
            Bridge::Rstp(bridge) => {
                let mut output = Output::default();
                bridge.run(now, &mut output);
                of_either(output, State::Rstp)
            }
        }
    }

    /// State of a port; none where there is no such port.
    pub fn state(&self, now: Time, number: u16) -> Option<State> {
        match self {
            Bridge::Stp(bridge) => bridge.port_status(now, number).map(|status| State::Stp(status.state)),
            Bridge::Rstp(bridge) => bridge.port_status(number).map(|status| State::Rstp(status.state)),
        }
    }

    /// The text of `stp/show` or `rstp/show` for this bridge, which has this name.
    pub fn show(&self, name: &str) -> String {
        match self {
            Bridge::Stp(bridge) => bridge.show(name),
            Bridge::Rstp(bridge) => bridge.show(name),
        }
    }
}

/// The same output with states of either protocol.
fn of_either<S>(output: Output<S>, state: impl Fn(S) -> State) -> Output<State> {
    let Output { changes, flush, frames } = output;
    let changes = changes.into_iter();
    let changes = changes.map(|Change { port, from, to }| Change { port, from: state(from), to: state(to) });
    Output { changes: changes.collect(), flush, frames }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both have the same interface: two bridges on one link agree on one root, by either protocol.
    #[test]
    fn a_pair_of_bridges_forwards_by_either_protocol() {
        for protocol in [Protocol::Stp, Protocol::Rstp] {
            let bridge = |last| {
                let settings = Settings::from_options(protocol, [2, 0, 0, 0, 0, last], &Options::new()).0.unwrap();
                Bridge::new(settings, Time::default())
            };
            let mut pair = [bridge(1), bridge(2)];
            for bridge in &mut pair {
                let port = PortSettings::from_options(protocol, "p1", [2; 6], &Options::new()).0.unwrap();
                assert_eq!(bridge.add_port(Time::default(), port), Ok(1));
                assert!(bridge.set_link(1, Link::up(10_000)));
            }
            for second in 0..40 {
                let now = Time::default() + std::time::Duration::from_secs(second);
                for (this, other) in [(0, 1), (1, 0)] {
                    let output = pair[this].run(now);
                    output.frames.iter().for_each(|(_, frame)| pair[other].receive(now, 1, frame));
                }
            }
            let now = Time::default() + std::time::Duration::from_secs(40);
            let states = [0, 1].map(|n: usize| pair[n].state(now, 1).unwrap());
            assert!(states.iter().all(|state| state.forwards() && state.learns()), "{states:?}");
            assert_eq!(states[0].protocol(), protocol);
            assert!(pair[0].show("br0").contains("This bridge is the root"));
            assert!(!pair[1].show("br1").contains("This bridge is the root"));
        }
    }

    #[test]
    fn settings_of_the_other_protocol_are_refused() {
        let stp = Settings::from_options(Protocol::Stp, [2; 6], &Options::new()).0.unwrap();
        let rstp = Settings::from_options(Protocol::Rstp, [2; 6], &Options::new()).0.unwrap();
        assert!(!Bridge::new(stp, Time::default()).configure(rstp));
        let port = PortSettings::from_options(Protocol::Rstp, "p", [2; 6], &Options::new()).0.unwrap();
        assert!(Bridge::new(stp, Time::default()).add_port(Time::default(), port).is_err());
        assert_eq!(Settings::from_options(Protocol::Off, [2; 6], &Options::new()), (None, vec![]));
    }
}
