//! Bridges and networks between them, in simulated time. After every step of a bridge it is looked whether a loop forwards.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use packet::Time;
use protocols::random::Random;
use protocols::{rstp, stp};

/// The address from which all ports send.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Frames, and the ports that send them.
pub type Frames = Vec<(u16, Vec<u8>)>;

/// What the tests need of a bridge of either protocol.
pub trait Switch {
    fn add_port(&mut self, now: Time, name: &str) -> u16;
    fn set_up(&mut self, port: u16, up: bool);
    fn receive(&mut self, now: Time, port: u16, frame: &[u8]);
    /// Runs, and returns ports whose forwarding has changed and frames.
    fn run(&mut self, now: Time) -> (Vec<(u16, bool)>, Frames);
    fn next_wakeup(&self) -> Option<Time>;
    /// The bridge's state, as the tests of Open vSwitch write it: `root`, or the state of each port, where the root port's has its
    /// cost behind it.
    fn summary(&self, ports: &[u16]) -> String;
    /// What `rstp/show` or `stp/show` answers.
    fn show(&self) -> String;
}

impl Switch for rstp::Bridge {
    fn add_port(&mut self, _: Time, name: &str) -> u16 {
        self.add_port(rstp::PortSettings { path_cost: Some(200_000), ..rstp::PortSettings::new(name, MAC) }).unwrap()
    }

    fn set_up(&mut self, port: u16, up: bool) {
        self.set_link(port, rstp::Link { up, ..rstp::Link::up(100) });
    }

    fn receive(&mut self, _: Time, port: u16, frame: &[u8]) {
        self.receive(port, frame);
    }

    fn run(&mut self, now: Time) -> (Vec<(u16, bool)>, Frames) {
        let mut output = rstp::Output::default();
        self.run(now, &mut output);
        let changes = output.changes.iter().map(|change| (change.port, change.to.forwards())).collect();
        (changes, output.frames.iter().map(|(port, frame)| (*port, frame.to_vec())).collect())
    }

    fn next_wakeup(&self) -> Option<Time> {
        Some(self.next_wakeup())
    }

    fn summary(&self, ports: &[u16]) -> String {
        let status = self.status();
        if status.bridge_id == status.root_id {
            return "root".to_owned();
        }
        let states = ports.iter().map(|number| {
            let port = self.port_status(*number).unwrap();
            match (port.state, port.role) {
                (rstp::State::Disabled, _) => "D".to_owned(),
                (rstp::State::Forwarding, rstp::Role::Root) => format!("F:{}", status.root_path_cost),
                (rstp::State::Forwarding, _) => "F".to_owned(),
                (rstp::State::Learning, _) => "Le".to_owned(),
                (rstp::State::Discarding, _) => "Di".to_owned(),
            }
        });
        states.collect::<Vec<_>>().join(" ")
    }

    fn show(&self) -> String {
        self.show("br0")
    }
}

impl Switch for stp::Bridge {
    fn add_port(&mut self, now: Time, name: &str) -> u16 {
        let settings = stp::PortSettings { path_cost: Some(10), ..stp::PortSettings::new(name, MAC) };
        self.add_port(now, settings).unwrap()
    }

    fn set_up(&mut self, port: u16, up: bool) {
        self.set_link(port, up, 100);
    }

    fn receive(&mut self, now: Time, port: u16, frame: &[u8]) {
        self.receive(now, port, frame);
    }

    fn run(&mut self, now: Time) -> (Vec<(u16, bool)>, Frames) {
        let mut output = stp::Output::default();
        self.run(now, &mut output);
        let changes = output.changes.iter().map(|change| (change.port, change.to.forwards())).collect();
        (changes, output.frames.iter().map(|(port, frame)| (*port, frame.to_vec())).collect())
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.next_wakeup()
    }

    fn summary(&self, ports: &[u16]) -> String {
        let status = self.status();
        if status.bridge_id == status.designated_root {
            return "root".to_owned();
        }
        let states = ports.iter().map(|number| {
            let port = self.port_status(Time(0), *number).unwrap();
            match (port.state, port.role) {
                (stp::State::Disabled, _) => "D".to_owned(),
                (stp::State::Forwarding, stp::Role::Root) => format!("F:{}", status.root_path_cost),
                (stp::State::Forwarding, _) => "F".to_owned(),
                (stp::State::Learning, _) => "Le".to_owned(),
                (stp::State::Listening, _) => "Li".to_owned(),
                (stp::State::Blocking, _) => "B".to_owned(),
            }
        });
        states.collect::<Vec<_>>().join(" ")
    }

    fn show(&self) -> String {
        self.show("br0")
    }
}

/// A port on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    pub bridge: usize,
    pub port: u16,
}

/// What happens to frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Of 256 frames, how many are lost; never two in a row of those that a port gets.
    pub lost: u8,
    /// Of 256 frames, how many come twice.
    pub doubled: u8,
    /// The longest delay, in milliseconds. Frames do not overtake each other.
    pub delay: u64,
}

struct Node {
    switch: Option<Box<dyn Switch>>,
    ports: Vec<u16>,
    scheduled: Time,
}

/// What happens at some time.
enum Event {
    /// From one port to another.
    Frame(End, End, Vec<u8>),
    Wake(usize),
    /// A frame on a link that went down.
    Lost,
}

pub struct Network {
    pub now: Time,
    nodes: Vec<Node>,
    /// The network of each port, whether its link is up, and whether it forwards.
    ends: BTreeMap<End, (usize, bool, bool)>,
    /// On a way between two ports: when the last frame comes, and whether the last one was lost.
    ways: BTreeMap<(End, End), (Time, bool)>,
    events: BTreeMap<u64, Event>,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    sequence: u64,
    random: Random,
    pub faults: Faults,
    /// Frames that were sent.
    pub sent: u64,
    /// How long a loop may forward; zero: not at all.
    pub longest_loop: Duration,
    /// Since when one does.
    loop_since: Option<Time>,
}

impl Network {
    pub fn new(seed: u64, faults: Faults) -> Network {
        Network {
            now: Time(0),
            nodes: Vec::new(),
            ends: BTreeMap::new(),
            ways: BTreeMap::new(),
            events: BTreeMap::new(),
            due: BinaryHeap::new(),
            sequence: 0,
            random: Random::new(seed),
            faults,
            sent: 0,
            longest_loop: Duration::ZERO,
            loop_since: None,
        }
    }

    pub fn add(&mut self, switch: Box<dyn Switch>) -> usize {
        let scheduled = Time(u64::MAX);
        self.nodes.push(Node { switch: Some(switch), ports: Vec::new(), scheduled });
        self.nodes.len() - 1
    }

    /// Connects a new port of a bridge to a network.
    pub fn connect(&mut self, bridge: usize, network: usize) -> End {
        let now = self.now;
        let node = &mut self.nodes[bridge];
        let name = format!("p{}", node.ports.len());
        let port = node.switch.as_mut().expect("bridges die later").add_port(now, &name);
        node.ports.push(port);
        let end = End { bridge, port };
        self.ends.insert(end, (network, false, false));
        self.set_up(end, true);
        end
    }

    pub fn port(&self, bridge: usize, index: usize) -> End {
        End { bridge, port: self.nodes[bridge].ports[index] }
    }

    pub fn set_up(&mut self, end: End, up: bool) {
        let Some(switch) = self.nodes[end.bridge].switch.as_mut() else { return };
        switch.set_up(end.port, up);
        self.ends.get_mut(&end).unwrap().1 = up;
        if !up {
            let lost = |event: &&mut Event| matches!(event, Event::Frame(from, to, _) if *from == end || *to == end);
            self.events.values_mut().filter(lost).for_each(|event| *event = Event::Lost);
        }
        self.run_bridge(end.bridge);
    }

    /// Moves a port to another network.
    pub fn move_to(&mut self, end: End, network: usize) {
        self.set_up(end, false);
        self.ends.get_mut(&end).unwrap().0 = network;
        self.set_up(end, true);
    }

    /// A bridge stops at once, and forwards nothing any longer; the links of its neighbours go down or not.
    pub fn kill(&mut self, bridge: usize, links_go_down: bool) {
        self.nodes[bridge].switch = None;
        let ends: Vec<End> = self.ends.keys().copied().filter(|end| end.bridge == bridge).collect();
        for end in ends {
            let (network, ..) = self.ends.remove(&end).unwrap();
            let others: Vec<End> = self.on(network).collect();
            if links_go_down && let [other] = others[..] {
                self.set_up(other, false);
            }
        }
    }

    /// Changes a bridge in any way.
    pub fn with<T>(&mut self, bridge: usize, change: impl FnOnce(&mut dyn Switch) -> T) -> T {
        let result = change(&mut **self.nodes[bridge].switch.as_mut().expect("the bridge lives"));
        self.run_bridge(bridge);
        result
    }

    pub fn summary(&self, bridge: usize) -> String {
        let node = &self.nodes[bridge];
        node.switch.as_ref().map_or_else(|| "dead".to_owned(), |switch| switch.summary(&node.ports))
    }

    pub fn show(&self, bridge: usize) -> String {
        self.nodes[bridge].switch.as_ref().expect("the bridge lives").show()
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse((at, id))) = self.due.peek().copied().filter(|Reverse((at, _))| *at <= end) {
            self.due.pop();
            self.now = at;
            if self.loop_since.is_some() {
                self.check_loops();
            }
            match self.events.remove(&id).expect("events happen once") {
                Event::Wake(bridge) if self.nodes[bridge].scheduled <= at => {
                    self.nodes[bridge].scheduled = Time(u64::MAX);
                    self.run_bridge(bridge);
                }
                Event::Wake(_) | Event::Lost => {}
                Event::Frame(_, end, frame) => {
                    if self.ends.get(&end).is_some_and(|(_, up, _)| *up) {
                        let switch = self.nodes[end.bridge].switch.as_mut().expect("its ports are there");
                        switch.receive(at, end.port, &frame);
                        self.run_bridge(end.bridge);
                    }
                }
            }
        }
        self.now = end;
    }

    fn run_bridge(&mut self, bridge: usize) {
        let now = self.now;
        let Some(switch) = self.nodes[bridge].switch.as_mut() else { return };
        let (changes, frames) = switch.run(now);
        let wakeup = switch.next_wakeup();
        let has_changed = !changes.is_empty();
        for (port, forwards) in changes {
            self.ends.get_mut(&End { bridge, port }).unwrap().2 = forwards;
        }
        if has_changed {
            self.check_loops();
        }
        for (port, frame) in frames {
            self.send(End { bridge, port }, frame);
        }
        let scheduled = self.nodes[bridge].scheduled;
        if let Some(wakeup) = wakeup.filter(|at| *at < scheduled) {
            // A daemon is somewhat late.
            let at = wakeup.max(now) + Duration::from_millis(self.below(20));
            self.nodes[bridge].scheduled = at;
            self.schedule(at, Event::Wake(bridge));
        }
    }

    fn send(&mut self, from: End, frame: Vec<u8>) {
        self.sent += 1;
        let Some((network, up, _)) = self.ends.get(&from).copied() else { return };
        if !up {
            return;
        }
        for to in self.on(network).filter(|end| *end != from).collect::<Vec<_>>() {
            let (last, was_lost) = self.ways.get(&(from, to)).copied().unwrap_or_default();
            let lost = !was_lost && self.below(256) < u64::from(self.faults.lost);
            let at = last.max(self.now + Duration::from_micros(1 + self.below(1000 * self.faults.delay.max(1))));
            self.ways.insert((from, to), (at, lost));
            if lost {
                continue;
            }
            if self.below(256) < u64::from(self.faults.doubled) {
                self.schedule(at, Event::Frame(from, to, frame.clone()));
            }
            self.schedule(at, Event::Frame(from, to, frame.clone()));
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.events.insert(self.sequence, event);
        self.due.push(Reverse((at, self.sequence)));
    }

    fn on(&self, network: usize) -> impl Iterator<Item = End> {
        self.ends.iter().filter(move |(_, end)| end.0 == network).map(|(end, _)| *end)
    }

    /// A number below this one; 0 where that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// Fails where a loop forwards for longer than it may.
    fn check_loops(&mut self) {
        let Some(end) = self.find_loop() else {
            self.loop_since = None;
            return;
        };
        let since = *self.loop_since.get_or_insert(self.now);
        if self.longest_loop.is_zero() || self.now.since(since) > self.longest_loop {
            let all: Vec<String> = (0..self.nodes.len()).map(|bridge| self.summary(bridge)).collect();
            let (since, now) = (since.millis(), self.now.millis());
            panic!("a loop forwards over {end:?}, after {now} ms, since {since} ms: {all:#?}");
        }
    }

    /// Bridges and networks are the nodes of a graph, ports its edges: those that forward are a forest, or there is a loop.
    fn find_loop(&self) -> Option<End> {
        let mut joined = Joined::default();
        let forwarding = self.ends.iter().filter(|(_, (_, up, forwards))| *up && *forwards);
        forwarding
            .into_iter()
            .find(|(end, (network, ..))| !joined.join(Ok(end.bridge), Err(*network)))
            .map(|(end, _)| *end)
    }

    /// Whether ports that forward connect whatever ports that are up connect.
    pub fn is_connected(&self) -> bool {
        let components = |only_forwarding: bool| {
            let mut joined = Joined::default();
            for (end, (network, up, forwards)) in &self.ends {
                if *up && (*forwards || !only_forwarding) {
                    joined.join(Ok(end.bridge), Err(*network));
                }
            }
            joined.joins
        };
        components(true) == components(false)
    }
}

/// Sets of bridges (Ok) and networks (Err) that are connected.
#[derive(Default)]
struct Joined {
    parent: BTreeMap<Result<usize, usize>, Result<usize, usize>>,
    joins: usize,
}

impl Joined {
    fn find(&self, mut node: Result<usize, usize>) -> Result<usize, usize> {
        while let Some(parent) = self.parent.get(&node) {
            node = *parent;
        }
        node
    }

    /// Joins two; false where they were connected.
    fn join(&mut self, a: Result<usize, usize>, b: Result<usize, usize>) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            self.parent.insert(a, b);
            self.joins += 1;
        }
        a != b
    }
}
