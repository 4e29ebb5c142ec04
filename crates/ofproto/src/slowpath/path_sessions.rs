//! The sessions of BFD and the maintenance points of CFM, by port.
//!
//! They lie behind one lock of their own, which is held for as long as it takes to handle one frame or to do what is due. Everything that
//! a frame needs to leave by a port of the datapath is here, too, so that sessions are never held up by a change of tables.
//!
//! A port's path is *up* where BFD or CFM says so. What has changed is remembered ([`PathSessions::take_changed`]) until somebody has
//! told the tables, who asks again for what is so by then: whoever comes last tells the latest.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use datapath::PortNo;
use openflow::OfPort;
use packet::Time;
use protocols::bfd;
use protocols::cfm::show::Columns;
use protocols::cfm::{self, MaintenancePoint};
use protocols::random::Random;
use protocols::registry::{Registry, Session};

use crate::model::forwarding::{BridgeId, PatchCounters, PortState};
use crate::model::port::Device;

/// A port, by its bridge and number.
pub(crate) type PortId = (BridgeId, OfPort);

/// How often data are looked for by `bfd:forwarding_if_rx`, which counts them for two seconds at least.
const DATA_PERIOD: Duration = Duration::from_millis(500);

/// What the sessions of a port are to know of it.
#[derive(Clone)]
pub(crate) struct Interface {
    name: String,
    device: Device,
    dp_port: Option<PortNo>,
    /// Counters of a patch port or tunnel.
    counters: Arc<PatchCounters>,
}

impl Interface {
    /// What the sessions of this port need.
    pub fn of(state: &PortState) -> Interface {
        let (name, device, counters) = (state.name.clone(), state.device.clone(), state.patch.clone());
        Interface { name, device, dp_port: state.dp_port, counters }
    }

    /// How many packets it has received.
    fn rx_packets(&self) -> u64 {
        match &self.device {
            Device::Datapath(device) => device.stats().rx_packets,
            Device::Tunnel(_) | Device::Patch { .. } => self.counters.stats().rx_packets,
        }
    }

    fn is_same_device(&self, other: &Interface) -> bool {
        Arc::ptr_eq(&self.counters, &other.counters)
            && self.dp_port == other.dp_port
            && self.device.mac() == other.device.mac()
    }
}

/// A frame that is to be sent.
pub(crate) struct PathFrame {
    /// By which port.
    pub port: PortId,
    /// Its number in the datapath; `None` for tunnels and patch ports.
    pub dp_port: Option<PortNo>,
    /// The frame.
    pub bytes: Vec<u8>,
    /// The header of a tunnel is to have the OAM bit.
    pub oam: bool,
}

/// The sessions of one port.
struct Path {
    interface: Interface,
    bfd: Option<bfd::Session>,
    cfm: Option<MaintenancePoint>,
    data: DataWatch,
    /// What the tables are to be told.
    is_up: bool,
}

/// Watches whether a port receives anything but BFD (`bfd:forwarding_if_rx`).
#[derive(Default)]
struct DataWatch {
    /// Frames of BFD that came.
    control: u64,
    /// Other packets that came. A counter may have a frame of BFD before the session has it, and only more than ever before are data.
    most: u64,
    next: Time,
}

impl Path {
    /// How many packets have come, where somebody wants to know: that may take a system call.
    fn rx_packets(&self) -> u64 {
        let by_bfd = self.bfd.as_ref().is_some_and(|session| !session.settings().decay_min_rx.is_zero());
        let by_cfm = self.cfm.as_ref().is_some_and(|point| point.settings().in_demand_mode());
        if by_bfd || by_cfm || self.watches_data() { self.interface.rx_packets() } else { 0 }
    }

    fn watches_data(&self) -> bool {
        self.bfd.as_ref().is_some_and(|session| session.settings().forwarding_if_rx)
    }

    /// Does what is due. Returns frames to send, and whether a tunnel's header is to have the OAM bit.
    fn run(&mut self, now: Time) -> (Vec<Vec<u8>>, bool) {
        let rx_packets = self.rx_packets();
        if self.watches_data() && now >= self.data.next {
            self.look_for_data(now, rx_packets);
        }
        let by_bfd = self.bfd.as_mut().and_then(|session| session.run(now, rx_packets).frame);
        let by_cfm = self.cfm.as_mut().and_then(|point| point.run(now, rx_packets).frame);
        let oam = by_bfd.is_some() && self.bfd.as_ref().is_some_and(|session| session.settings().oam);
        (by_bfd.into_iter().chain(by_cfm).collect(), oam)
    }

    fn look_for_data(&mut self, now: Time, rx_packets: u64) {
        self.data.next = now + DATA_PERIOD;
        let data = rx_packets.saturating_sub(self.data.control);
        if data > self.data.most {
            self.data.most = data;
            if let Some(session) = &mut self.bfd {
                session.account_rx(now);
            }
        }
    }

    /// What has come until now is no news.
    fn begin_data_watch(&mut self, now: Time) {
        let most = self.interface.rx_packets().saturating_sub(self.data.control);
        self.data = DataWatch { most, next: now, ..self.data };
    }

    /// Whether the port may carry traffic: it may where one of the two says so.
    fn may_forward(&self, now: Time) -> bool {
        let by_bfd = self.bfd.as_ref().is_some_and(|session| session.forwarding(now));
        let by_cfm =
            self.cfm.as_ref().is_some_and(|point| point.faults().is_empty() && point.remote_opstate() != Some(false));
        by_bfd || by_cfm
    }
}

impl Session for Path {
    fn next_wakeup(&self) -> Option<Time> {
        let bfd = self.bfd.as_ref().and_then(Session::next_wakeup);
        let cfm = self.cfm.as_ref().and_then(Session::next_wakeup);
        let data = self.watches_data().then_some(self.data.next);
        [bfd, cfm, data].into_iter().flatten().min()
    }
}

/// The sessions of all ports.
pub(crate) struct PathSessions {
    paths: Registry<PortId, Path>,
    /// Ports whose path was found up or down since the tables were told.
    changed: BTreeSet<PortId>,
    discriminators: HashSet<u32>,
    /// By name, for commands.
    names: BTreeMap<String, PortId>,
    source_ports: u32,
    random: Random,
}

impl PathSessions {
    /// None yet. The seed is for jitter and discriminators.
    pub fn new(seed: u64) -> PathSessions {
        PathSessions {
            paths: Registry::new(),
            changed: BTreeSet::new(),
            discriminators: HashSet::new(),
            names: BTreeMap::new(),
            source_ports: 0,
            random: Random::new(seed),
        }
    }

    /// When the first session has something to do.
    pub fn next_wakeup(&self) -> Option<Time> {
        self.paths.next_wakeup()
    }

    /// Has a port's path checked by these settings.
    pub fn set(
        &mut self,
        now: Time,
        port: PortId,
        interface: Interface,
        bfd: Option<bfd::Settings>,
        cfm: Option<cfm::Settings>,
    ) {
        let same_name = self.paths.get(port).is_some_and(|path| path.interface.name == interface.name);
        if !same_name {
            self.remove(port);
            self.names.insert(interface.name.clone(), port);
            let (bfd, cfm, data) = (None, None, DataWatch::default());
            self.paths.insert(port, Path { interface: interface.clone(), bfd, cfm, data, is_up: false });
        }
        let fresh = self.fresh_session(&interface, port, bfd.as_ref());
        let seed = self.random.next_u64();
        let gone = self.paths.update(port, |path| path.configure(now, interface, (bfd, fresh), cfm, seed)).flatten();
        gone.map(|discriminator| self.discriminators.remove(&discriminator));
        self.note_change(now, port);
        self.changed.insert(port);
    }

    /// A session of BFD, where a port is to have its first one.
    fn fresh_session(
        &mut self,
        interface: &Interface,
        port: PortId,
        settings: Option<&bfd::Settings>,
    ) -> Option<bfd::Session> {
        let has_one = self.paths.get(port).is_some_and(|path| path.bfd.is_some());
        let settings = settings.filter(|_| !has_one)?;
        let taken = &self.discriminators;
        let discriminator = bfd::new_discriminator(&mut self.random, |number| taken.contains(&number));
        self.discriminators.insert(discriminator);
        self.source_ports = self.source_ports.wrapping_add(1);
        let (mac, source_port) = (interface.device.mac(), bfd::source_port(self.source_ports));
        let seed = self.random.next_u64();
        Some(bfd::Session::new(&interface.name, mac, settings.clone(), discriminator, source_port, seed))
    }

    /// Ends the sessions of a port.
    pub fn remove(&mut self, port: PortId) {
        if let Some(path) = self.paths.remove(port) {
            self.names.remove(&path.interface.name);
            path.bfd.map(|session| self.discriminators.remove(&session.discriminator()));
            self.changed.insert(port);
        }
    }

    /// Gives a frame to a port's session of BFD; `None` where there is none any more.
    pub fn receive_bfd(&mut self, now: Time, port: PortId, frame: &[u8]) -> Option<Result<(), bfd::ReceiveError>> {
        let outcome = self.paths.update(port, |path| {
            path.data.control += 1;
            path.bfd.as_mut().map(|session| session.receive(now, frame))
        });
        outcome.flatten()
    }

    /// Gives a frame to a port's maintenance point; `None` where there is none any more.
    pub fn receive_cfm(
        &mut self,
        now: Time,
        port: PortId,
        frame: &[u8],
    ) -> Option<Result<cfm::point::Received, cfm::ReceiveError>> {
        self.paths.update(port, |path| path.cfm.as_mut().map(|point| point.receive(now, frame))).flatten()
    }

    /// Does what is due, and was due up to so long before (`late`). Returns the frames to be sent.
    pub fn run(&mut self, now: Time, late: Duration) -> Vec<PathFrame> {
        let (mut frames, changed) = (Vec::new(), &mut self.changed);
        self.paths.run(now, |port, path| {
            path.bfd.iter_mut().for_each(|session| session.excuse(now, late));
            let (sent, oam) = path.run(now);
            let dp_port = path.interface.dp_port;
            frames.extend(sent.into_iter().map(|bytes| PathFrame { port, dp_port, bytes, oam }));
            if path.note_change(now) {
                changed.insert(port);
            }
        });
        frames
    }

    fn note_change(&mut self, now: Time, port: PortId) {
        if self.paths.update(port, |path| path.note_change(now)) == Some(true) {
            self.changed.insert(port);
        }
    }

    /// Whether the tables have not been told of a change yet.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The ports whose path was found up or down since this was called last.
    pub fn take_changed(&mut self) -> BTreeSet<PortId> {
        std::mem::take(&mut self.changed)
    }

    /// Whether a port may carry traffic. One without sessions may.
    pub fn is_up(&self, port: PortId) -> bool {
        self.paths.get(port).is_none_or(|path| path.is_up)
    }

    /// The sessions of BFD: of the port with this name, or all.
    pub fn bfd(&self, name: Option<&str>) -> impl Iterator<Item = &bfd::Session> {
        self.ports(name).filter_map(|port| self.bfd_of(port))
    }

    /// The maintenance points: of the port with this name, or all.
    pub fn cfm(&self, name: Option<&str>) -> impl Iterator<Item = &MaintenancePoint> {
        self.ports(name).filter_map(|port| self.cfm_of(port))
    }

    /// The session of BFD of a port.
    pub fn bfd_of(&self, port: PortId) -> Option<&bfd::Session> {
        self.paths.get(port)?.bfd.as_ref()
    }

    /// The maintenance point of a port.
    pub fn cfm_of(&self, port: PortId) -> Option<&MaintenancePoint> {
        self.paths.get(port)?.cfm.as_ref()
    }

    /// The columns of a port's maintenance point.
    pub fn cfm_columns(&self, port: PortId) -> Option<Columns> {
        self.cfm_of(port).map(Columns::of)
    }

    fn ports(&self, name: Option<&str>) -> impl Iterator<Item = PortId> {
        let named = self.names.iter().filter(move |(port, _)| name.is_none_or(|name| name == *port));
        named.map(|(_, port)| *port)
    }

    /// An operator says whether ports forward, or leaves that to BFD. Returns for how many.
    pub fn set_forwarding(&mut self, name: Option<&str>, forwarding: Option<bool>) -> usize {
        self.each(name, |path| path.bfd.as_mut().map(|session| session.set_forwarding(forwarding)))
    }

    /// An operator says whether ports have a fault, or leaves that to CFM. Returns for how many.
    pub fn set_fault(&mut self, name: Option<&str>, fault: Option<bool>) -> usize {
        self.each(name, |path| path.cfm.as_mut().map(|point| point.set_fault(fault)))
    }

    /// How many sessions, names, discriminators and untold changes there are.
    #[cfg(test)]
    pub fn counts(&self) -> [usize; 4] {
        [self.paths.len(), self.names.len(), self.discriminators.len(), self.changed.len()]
    }

    fn each(&mut self, name: Option<&str>, mut change: impl FnMut(&mut Path) -> Option<()>) -> usize {
        let ports: Vec<PortId> = self.ports(name).collect();
        ports.into_iter().filter_map(|port| self.paths.update(port, &mut change).flatten()).count()
    }
}

impl Path {
    /// Takes settings over. `fresh` is the session of BFD that a port without one gets. Returns the discriminator of one that has ended.
    fn configure(
        &mut self,
        now: Time,
        interface: Interface,
        (bfd, fresh): (Option<bfd::Settings>, Option<bfd::Session>),
        cfm: Option<cfm::Settings>,
        seed: u64,
    ) -> Option<u32> {
        let (mac, other_device) = (interface.device.mac(), !interface.is_same_device(&self.interface));
        self.interface = interface;
        let (rx_packets, watched_data) = (self.interface.rx_packets(), self.watches_data());
        if other_device {
            self.bfd.iter_mut().for_each(|session| session.set_device(now, mac, rx_packets));
            self.cfm.iter_mut().for_each(|point| point.set_device(mac, rx_packets));
        }
        let mut gone = None;
        match (&mut self.bfd, bfd) {
            (Some(session), Some(settings)) if *session.settings() != settings => {
                session.configure(now, rx_packets, settings);
            }
            (Some(_), Some(_)) => {}
            (session, None) => gone = session.take().map(|session| session.discriminator()),
            (session, Some(_)) => *session = fresh,
        }
        match (&mut self.cfm, cfm) {
            (Some(point), Some(settings)) if *point.settings() != settings => {
                point.configure(now, rx_packets, settings)
            }
            (Some(_), Some(_)) => {}
            (point, None) => *point = None,
            (point, Some(settings)) => {
                *point = Some(MaintenancePoint::new(now, &self.interface.name, mac, settings, rx_packets, seed));
            }
        }
        if self.watches_data() && (other_device || !watched_data) {
            self.begin_data_watch(now);
        }
        gone
    }

    /// Notes whether the path is up by now, and says whether that has changed.
    fn note_change(&mut self, now: Time) -> bool {
        let is_up = self.may_forward(now);
        std::mem::replace(&mut self.is_up, is_up) != is_up
    }
}
