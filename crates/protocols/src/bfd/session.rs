//! A session of BFD (RFC 5880 section 6.8).

use std::time::Duration;

use packet::wire;
use weir_time::Time;

use super::control::{Addresses, Control, Diagnostic, Flags, Frame, State, TTL};
use super::settings::Settings;
use crate::ethernet::Mac;
use crate::random::Random;
use crate::registry;

/// Shortest interval between packets while the session is not up (6.8.3).
pub const SLOW_TX: Duration = Duration::from_secs(1);
/// Shortest interval between two packets of a session, also where its peer polls or changes its state all the time.
pub const SHORTEST_GAP: Duration = Duration::from_millis(1);
/// Least time over which data are looked for, by `decay_min_rx` and `forwarding_if_rx`.
const DATA_WINDOW: Duration = Duration::from_secs(2);
/// Within how many `min_rx` a packet of BFD has to come for data to count (`forwarding_if_rx`).
const DEMAND_RX_PERIODS: u32 = 100;

/// A number for a new session: random, not zero, and not taken (6.8.1).
pub fn new_discriminator(random: &mut Random, is_taken: impl Fn(u32) -> bool) -> u32 {
    loop {
        let discriminator = random.next_u64() as u32;
        if discriminator != 0 && !is_taken(discriminator) {
            return discriminator;
        }
    }
}

/// Source port of the n-th session (RFC 5881 section 4).
pub fn source_port(n: u32) -> u16 {
    49152 + (n % 16384) as u16
}

/// What a [`Session::run`] asks of its caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// A frame to send by the interface.
    pub frame: Option<Vec<u8>>,
    /// Whether something that [`super::show::status`] shows has changed since the last run.
    pub status_changed: bool,
}

/// Why a frame changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// No control packet, or one that no session takes.
    #[error("{0}")]
    Malformed(#[from] wire::Error),
    /// The packet has come by a router, or claims to come from this hop and does not.
    #[error("BFD: TTL {0}, 255 needed from a neighbour")]
    Ttl(u8),
    /// The peer means another session.
    #[error("BFD: Your Discriminator {got:#x}, this session has {own:#x}")]
    Discriminator {
        /// What the packet says.
        got: u32,
        /// The session's own.
        own: u32,
    },
}

/// A session.
#[derive(Debug)]
pub struct Session {
    pub(super) settings: Settings,
    /// Name and address of the interface.
    pub(super) name: String,
    mac: Mac,
    source_port: u16,
    /// bfd.LocalDiscr.
    pub(super) discriminator: u32,
    /// bfd.SessionState.
    pub(super) state: State,
    /// bfd.LocalDiag.
    pub(super) diagnostic: Diagnostic,
    /// Poll and Final, where they are to be sent.
    pub(super) flags: Flags,
    /// bfd.DesiredMinTxInterval while the session is up, and bfd.RequiredMinRxInterval: what is in force.
    pub(super) min_tx: Duration,
    pub(super) min_rx: Duration,
    /// What a poll sequence under way asks for (6.5).
    poll: (Duration, Duration),
    /// What the peer said last.
    pub(super) remote: Remote,
    pub(super) last_tx: Option<Time>,
    pub(super) next_tx: Time,
    /// When the peer has been silent for the detection time (6.8.4).
    pub(super) detect_time: Time,
    /// Whether it was put off since the last packet.
    is_excused: bool,
    pub(super) last_forwarding: bool,
    forwarding_override: Option<bool>,
    flap_count: u64,
    decay: Decay,
    /// Until when data that came keep the interface forwarding.
    data_until: Time,
    /// Until when the last packet of BFD lets them.
    demand_until: Time,
    status_changed: bool,
    random: Random,
}

/// What the peer said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub state: State,
    pub diagnostic: Diagnostic,
    pub flags: Flags,
    pub discriminator: u32,
    pub min_rx: Duration,
    pub min_tx: Duration,
    pub mult: u8,
}

/// Watches whether data come (`decay_min_rx`).
#[derive(Clone, Copy, Debug, Default)]
struct Decay {
    /// Whether none came, so that fewer packets of BFD will do.
    active: bool,
    /// Packets of the interface when the window began, and packets of BFD since.
    rx_packets: u64,
    rx_control: u64,
    until: Time,
}

impl Remote {
    const UNKNOWN: Remote = Remote {
        state: State::Down,
        diagnostic: Diagnostic::NONE,
        flags: Flags::empty(),
        discriminator: 0,
        min_rx: Duration::from_millis(1),
        min_tx: Duration::ZERO,
        mult: 0,
    };
}

impl Session {
    /// A session on an interface, with [`new_discriminator`], [`source_port`] and a seed for jitter. Its first packet
    /// is due.
    pub fn new(name: &str, mac: Mac, settings: Settings, discriminator: u32, source_port: u16, seed: u64) -> Session {
        let (min_tx, min_rx) = (settings.min_tx, settings.min_rx);
        let diagnostic = if settings.cpath_down { Diagnostic::CONCATENATED_PATH_DOWN } else { Diagnostic::NONE };
        Session {
            settings,
            name: name.into(),
            mac,
            source_port,
            discriminator,
            state: State::Down,
            diagnostic,
            flags: Flags::empty(),
            min_tx,
            min_rx,
            poll: (min_tx, min_rx),
            remote: Remote::UNKNOWN,
            last_tx: None,
            next_tx: Time::default(),
            detect_time: Time::default(),
            is_excused: false,
            last_forwarding: false,
            forwarding_override: None,
            flap_count: 0,
            decay: Decay::default(),
            data_until: Time::default(),
            demand_until: Time::default(),
            status_changed: true,
            random: Random::new(seed),
        }
    }

    /// Changes the settings. What makes either end send or expect fewer packets waits for the peer's consent: the end
    /// of a poll sequence (6.8.3).
    pub fn configure(&mut self, now: Time, rx_packets: u64, settings: Settings) {
        let before = std::mem::replace(&mut self.settings, settings);
        let (min_tx, min_rx) = (self.settings.min_tx, self.settings.min_rx);
        let at_once = self.state != State::Up;
        if before.min_tx != min_tx && (at_once || !self.in_poll() && min_tx < self.min_tx) {
            self.min_tx = min_tx;
        }
        if before.min_rx != min_rx && (at_once || !self.in_poll() && min_rx > self.min_rx) {
            self.min_rx = min_rx;
        }
        let decays_otherwise = before.decay_min_rx != self.settings.decay_min_rx || before.min_rx != min_rx;
        if decays_otherwise {
            self.decay.active = false;
            self.start_decay_window(now, rx_packets);
        }
        if before.cpath_down != self.settings.cpath_down {
            self.set_state(now, self.state, Diagnostic::NONE);
        }
        let turned = before.forwarding_if_rx != self.settings.forwarding_if_rx;
        if turned {
            self.data_until = Time::default();
        }
        let watches_data = self.state == State::Up && self.settings.forwarding_if_rx;
        if watches_data && (turned || before.mult != self.settings.mult) {
            self.extend_data_window(now);
        }
        if before.min_tx != min_tx || decays_otherwise || before.cpath_down != self.settings.cpath_down {
            self.start_poll(now);
        }
        self.update_forwarding(now);
    }

    /// The interface has another device now, which has received this many packets.
    pub fn set_device(&mut self, now: Time, mac: Mac, rx_packets: u64) {
        self.mac = mac;
        self.start_decay_window(now, rx_packets);
    }

    /// What is configured.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// bfd.SessionState.
    pub fn state(&self) -> State {
        self.state
    }

    /// bfd.LocalDiscr.
    pub fn discriminator(&self) -> u32 {
        self.discriminator
    }

    /// Takes a frame that is the session's (6.8.6).
    pub fn receive(&mut self, now: Time, frame: &[u8]) -> Result<(), ReceiveError> {
        // Refused packets count, too, where data are looked for: they are not data.
        self.decay.rx_control += 1;
        let frame = Frame::new_checked(frame)?;
        if frame.addresses.ttl != TTL {
            return Err(ReceiveError::Ttl(frame.addresses.ttl));
        }
        let control = Control::new_checked(frame.payload)?;
        if control.your_discriminator != 0 && control.your_discriminator != self.discriminator {
            return Err(ReceiveError::Discriminator { got: control.your_discriminator, own: self.discriminator });
        }
        // The detection time is looked at in `run` only: where that is late, packets that came in time are taken first.
        self.take_remote(now, &control);
        self.detect_time = now + self.detection();
        self.is_excused = false;
        self.step(now, control.state);
        if self.settings.forwarding_if_rx {
            self.demand_until = now + self.settings.min_rx * DEMAND_RX_PERIODS;
        }
        self.update_forwarding(now);
        Ok(())
    }

    fn take_remote(&mut self, now: Time, control: &Control) {
        let before = self.remote;
        let micros = |micros: u32| Duration::from_micros(micros.into());
        self.remote = Remote {
            state: control.state,
            diagnostic: control.diagnostic,
            flags: control.flags,
            discriminator: control.my_discriminator,
            min_rx: micros(control.required_min_rx),
            min_tx: micros(control.desired_min_tx),
            mult: control.detect_mult,
        };
        self.status_changed |= (before.state, before.diagnostic) != (self.remote.state, self.remote.diagnostic);
        // Before an answer to a poll is made due, which does not wait for the new interval.
        if before.min_rx != self.remote.min_rx {
            self.schedule_tx();
        }
        if control.flags.contains(Flags::FINAL) && self.in_poll() {
            (self.min_tx, self.min_rx) = self.poll;
            self.flags.remove(Flags::POLL);
        }
        if control.flags.contains(Flags::POLL) {
            // A packet has one of both bits (6.5): the answer goes first, and the own poll is taken up again by `run`.
            self.flags = Flags::FINAL;
            self.hurry(now);
        }
    }

    /// The state machine of 6.8.6 (figure in 6.2).
    fn step(&mut self, now: Time, remote: State) {
        match (self.state, remote) {
            (State::AdminDown, _) | (State::Down, State::AdminDown | State::Up) => {}
            (State::Init | State::Up, State::AdminDown) | (State::Up, State::Down) => {
                self.set_state(now, State::Down, Diagnostic::NEIGHBOR_DOWN);
            }
            (State::Down, State::Down) => self.set_state(now, State::Init, self.diagnostic),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.set_state(now, State::Up, self.diagnostic);
            }
            (State::Init, State::Down) | (State::Up, State::Init | State::Up) => {}
        }
    }

    fn set_state(&mut self, now: Time, state: State, diagnostic: Diagnostic) {
        let diagnostic = if self.settings.cpath_down { Diagnostic::CONCATENATED_PATH_DOWN } else { diagnostic };
        if (self.state, self.diagnostic) == (state, diagnostic) {
            return;
        }
        let came_up = state == State::Up && self.state != State::Up;
        (self.state, self.diagnostic) = (state, diagnostic);
        if state <= State::Down {
            let mult = self.remote.mult;
            self.remote = Remote { mult, ..Remote::UNKNOWN };
            self.flags.remove(Flags::POLL);
            (self.min_tx, self.min_rx) = (self.settings.min_tx, self.settings.min_rx);
            self.decay.active = false;
        }
        if came_up {
            // The window begins in `run`, which knows how many packets have come.
            self.decay.until = Time::default();
        }
        self.status_changed = true;
        self.schedule_tx();
        // What has changed is told at once (6.8.7).
        self.hurry(now);
    }

    /// Data have come by the interface.
    pub fn account_rx(&mut self, now: Time) {
        if self.settings.forwarding_if_rx {
            self.update_forwarding(now);
            self.extend_data_window(now);
            self.update_forwarding(now);
        }
    }

    /// `bfd/set-forwarding`: says whether the interface forwards, or (`None`) leaves it to the protocol.
    pub fn set_forwarding(&mut self, forwarding: Option<bool>) {
        self.forwarding_override = forwarding;
        self.status_changed = true;
    }

    /// Does what the time asks for. `rx_packets` is how many packets the interface has received in its life.
    pub fn run(&mut self, now: Time, rx_packets: u64) -> Outcome {
        self.expire(now);
        self.update_forwarding(now);
        if self.watches_decay() && now >= self.decay.until {
            self.end_decay_window(now, rx_packets);
        }
        if self.wants_poll() {
            self.start_poll(now);
        }
        let frame = self.tx_deadline().filter(|at| *at <= now).map(|_| self.transmit(now));
        Outcome { frame, status_changed: std::mem::take(&mut self.status_changed) }
    }

    /// After the last packet, the peer may be silent for so long.
    fn detection(&self) -> Duration {
        self.rx_interval() * u32::from(self.remote.mult)
    }

    /// Nobody has looked at the session for `late`, as where the machine stood still. A detection time that has passed meanwhile is put off
    /// by as much: packets that came in time have not been taken yet, and where both ends are of one machine, they have not been sent. That
    /// is done once, so that a peer that is silent is found out also by those who are always late.
    pub fn excuse(&mut self, now: Time, late: Duration) {
        let has_passed_meanwhile = self.detect_time <= now && now.since(self.detect_time) < late;
        if self.state > State::Down && has_passed_meanwhile && !self.is_excused {
            self.detect_time = now + late.min(self.detection());
            self.is_excused = true;
        }
    }

    fn expire(&mut self, now: Time) {
        if self.state > State::Down && now >= self.detect_time {
            self.set_state(now, State::Down, Diagnostic::EXPIRED);
        }
    }

    fn transmit(&mut self, now: Time) -> Vec<u8> {
        let (min_tx, min_rx) = if self.in_poll() { self.poll } else { (self.min_tx, self.min_rx) };
        let micros = |interval: Duration| u32::try_from(interval.as_micros()).unwrap_or(u32::MAX);
        let control = Control {
            diagnostic: self.diagnostic,
            state: self.state,
            flags: self.flags,
            detect_mult: self.settings.mult,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            desired_min_tx: micros(self.slow_unless_up(min_tx)),
            required_min_rx: micros(min_rx),
        };
        self.flags.remove(Flags::FINAL);
        self.last_tx = Some(now);
        self.schedule_tx();
        let addresses = Addresses {
            eth: (self.settings.local_dst_mac, self.settings.local_src_mac.unwrap_or(self.mac)),
            ip: (self.settings.src_ip, self.settings.dst_ip),
            port: self.source_port,
            ttl: TTL,
        };
        addresses.emit(&control)
    }

    /// The next periodic packet: an interval after the last one, less up to a quarter (6.8.7), so that sessions do
    /// not fall into step.
    fn schedule_tx(&mut self) {
        let Some(last) = self.last_tx else { return };
        let percent = if self.settings.mult == 1 { 10 + self.random.below(16) } else { self.random.below(26) };
        self.next_tx = last + self.tx_interval() * (100 - percent as u32) / 100;
    }

    /// The next packet goes as soon as the shortest gap lets it.
    fn hurry(&mut self, now: Time) {
        self.next_tx = self.next_tx.min(self.last_tx.map_or(now, |last| now.max(last + SHORTEST_GAP)));
    }

    /// When the next packet goes. A peer that can receive none periodically gets answers to its polls, and no more
    /// (6.8.7).
    fn tx_deadline(&self) -> Option<Time> {
        let periodic = !self.remote.min_rx.is_zero() || self.flags.contains(Flags::FINAL);
        periodic.then_some(self.next_tx)
    }

    /// Starts a poll sequence, by which the peer learns of new intervals (6.5).
    fn start_poll(&mut self, now: Time) {
        if self.can_poll() {
            self.poll = (self.settings.min_tx, self.wanted_min_rx());
            self.flags.insert(Flags::POLL);
            self.hurry(now);
        }
    }

    fn can_poll(&self) -> bool {
        self.state > State::Down && !self.flags.intersects(Flags::POLL | Flags::FINAL)
    }

    /// Whether the peer has to learn of an interval before it counts.
    fn wants_poll(&self) -> bool {
        self.can_poll() && (self.min_tx, self.min_rx) != (self.settings.min_tx, self.wanted_min_rx())
    }

    pub(super) fn in_poll(&self) -> bool {
        self.flags.contains(Flags::POLL)
    }

    fn wanted_min_rx(&self) -> Duration {
        if self.decay.active { self.settings.decay_min_rx } else { self.settings.min_rx }
    }

    fn slow_unless_up(&self, min_tx: Duration) -> Duration {
        if self.state == State::Up { min_tx } else { min_tx.max(SLOW_TX) }
    }

    /// bfd.DesiredMinTxInterval.
    pub(super) fn desired_min_tx(&self) -> Duration {
        self.slow_unless_up(self.min_tx)
    }

    /// Interval at which packets are sent, without jitter.
    pub(super) fn tx_interval(&self) -> Duration {
        self.desired_min_tx().max(self.remote.min_rx)
    }

    /// Interval at which packets are expected.
    pub(super) fn rx_interval(&self) -> Duration {
        self.min_rx.max(self.remote.min_tx)
    }

    /// Whether the interface may carry traffic.
    pub fn forwarding(&self, now: Time) -> bool {
        self.forwarding_override.unwrap_or_else(|| self.forwards(now))
    }

    fn forwards(&self, now: Time) -> bool {
        let broken =
            [Diagnostic::PATH_DOWN, Diagnostic::CONCATENATED_PATH_DOWN, Diagnostic::REVERSE_CONCATENATED_PATH_DOWN];
        (self.state == State::Up || now < self.data_counts_until()) && !broken.contains(&self.remote.diagnostic)
    }

    /// Until when the interface forwards for the data that came.
    fn data_counts_until(&self) -> Time {
        if self.settings.forwarding_if_rx { self.data_until.min(self.demand_until) } else { Time::default() }
    }

    /// Counts a change of [`Session::forwarding`], unless an operator has set that.
    fn update_forwarding(&mut self, now: Time) {
        if self.forwarding_override.is_none() {
            let forwarding = self.forwards(now);
            if forwarding != std::mem::replace(&mut self.last_forwarding, forwarding) {
                self.flap_count += 1;
                self.status_changed = true;
            }
        }
    }

    /// How often [`Session::forwarding`] has changed.
    pub fn flap_count(&self) -> u64 {
        self.flap_count
    }

    fn extend_data_window(&mut self, now: Time) {
        self.data_until = now + (self.rx_interval() * u32::from(self.settings.mult)).max(DATA_WINDOW);
    }

    fn watches_decay(&self) -> bool {
        self.state == State::Up && !self.settings.decay_min_rx.is_zero()
    }

    fn start_decay_window(&mut self, now: Time, rx_packets: u64) {
        let until = now + self.settings.decay_min_rx.max(DATA_WINDOW);
        self.decay = Decay { active: self.decay.active, rx_packets, rx_control: 0, until };
    }

    /// Decides whether data came in the window that is over, and starts the next one. Twice the packets of BFD are
    /// allowed for, as in OVS: an interface's counters may be late.
    fn end_decay_window(&mut self, now: Time, rx_packets: u64) {
        let is_first = self.decay.until == Time::default();
        if !is_first {
            let received = rx_packets.saturating_sub(self.decay.rx_packets);
            self.decay.active = received <= 2 * self.decay.rx_control.max(1);
        }
        self.start_decay_window(now, rx_packets);
    }
}

impl registry::Session for Session {
    fn next_wakeup(&self) -> Option<Time> {
        let detection = (self.state > State::Down).then_some(self.detect_time);
        let decay = self.watches_decay().then_some(self.decay.until);
        // Where an operator says what is forwarded, nothing changes by the time.
        let by_data = self.forwarding_override.is_none() && self.last_forwarding && self.state != State::Up;
        let data = by_data.then(|| self.data_counts_until());
        let poll = self.wants_poll().then(Time::default);
        let status = self.status_changed.then(Time::default);
        [self.tx_deadline(), detection, decay, data, poll, status].into_iter().flatten().min()
    }
}
