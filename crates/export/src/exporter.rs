//! What all bridges export: takes their samples, and does what the time asks for.
//!
//! A thread of its own calls [`Exporter::run`], and sleeps in [`Exporter::wait`] meanwhile. Settings, and questions about
//! statistics, come from other threads, and take the lock of the state; samples only take the queue's. NetFlow is
//! credited directly ([`NetFlow::credit`]).
//!
//! The order of locks: the state, then what [`Counters`] takes. So nobody may change settings while holding what
//! [`Counters`] needs. While counters of ports are read, the state is not locked: devices may take long.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use packet::Time;
use parking_lot::Mutex;

use crate::collectors::{Collectors, Status};
use crate::ipfix::exporter::{Exporter as IpfixExporter, Statistics};
use crate::netflow::NetFlow;
use crate::queue::{Queue, Sample};
use crate::settings::{BridgeExport, BridgeIpfix, FlowIpfix, Netflow, Sflow};
use crate::sflow::{Agent, Counters, Poll, Polled};
use crate::{Moment, ipfix};

/// The longest time until [`Exporter::run`] is to be called again.
const LONGEST: Duration = Duration::from_secs(1);

/// The exporter.
#[derive(Default)]
pub struct Exporter {
    queue: Queue,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bridges: BTreeMap<u32, Bridge>,
    /// Exporters of IPFIX so far, which are numbered.
    exporters: u32,
    /// Lost samples that agents were told of.
    told_lost: u64,
    /// Those that were lost on their way to the exporter, when that was asked last.
    lost_before: u64,
}

/// How it stands with one of a bridge's exporters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The bridge.
    pub bridge: u32,
    /// What it exports.
    pub what: What,
    /// Its collectors.
    pub collectors: Vec<Status>,
}

/// What an exporter exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// sFlow: samples of packets so far.
    Sflow {
        /// Since the agent was started.
        samples: u32,
    },
    /// NetFlow.
    Netflow {
        /// Flows that are kept.
        flows: usize,
        /// Records that became more than could be sent.
        lost: u64,
    },
    /// IPFIX of all packets of a bridge.
    Ipfix(Statistics),
    /// IPFIX of a collector set, with its number.
    CollectorSet(u32, Statistics),
}

/// What a bridge exports.
#[derive(Default)]
struct Bridge {
    settings: BridgeExport,
    sflow: Option<SflowAgent>,
    netflow: Option<(Arc<NetFlow>, Collectors)>,
    ipfix: Option<(IpfixExporter, Collectors)>,
    collector_sets: BTreeMap<u32, (IpfixExporter, Collectors)>,
}

struct SflowAgent {
    /// `None` until its address is known.
    agent: Option<Agent>,
    settings: Sflow,
    collectors: Collectors,
}

impl Exporter {
    /// Sets what a bridge exports. What stays as it was keeps its flows and numbers. Returns the flows of NetFlow, which
    /// are to be credited.
    pub fn set(&self, bridge: u32, wanted: &BridgeExport, at: Moment) -> Option<Arc<NetFlow>> {
        let mut state = self.state.lock();
        let mut exporters = state.exporters;
        let known = state.bridges.entry(bridge).or_default();
        if known.settings.sflow != wanted.sflow {
            if let Some(SflowAgent { agent: Some(agent), collectors, .. }) = &mut known.sflow {
                agent.flush(at, collectors.at(at.now));
            }
            known.sflow = wanted.sflow.as_ref().map(|settings| SflowAgent::new(settings, at.now));
        }
        known.set_netflow(wanted.netflow.as_ref(), at);
        known.set_ipfix(wanted.ipfix.as_ref(), at, &mut exporters);
        known.set_collector_sets(&wanted.collector_sets, at, &mut exporters);
        known.settings = wanted.clone();
        let netflow = known.netflow.as_ref().map(|(flows, _)| flows.clone());
        if known.settings == BridgeExport::default() {
            state.bridges.remove(&bridge);
        }
        state.exporters = exporters;
        drop(state);
        self.queue.wake();
        netflow
    }

    /// Takes a sample, if there is room.
    pub fn submit(&self, sample: Sample) -> bool {
        self.queue.push(sample)
    }

    /// Whether any bridge exports anything.
    pub fn exports(&self) -> bool {
        !self.state.lock().bridges.is_empty()
    }

    /// Samples that were lost for want of room.
    pub fn lost(&self) -> u64 {
        self.queue.lost()
    }

    /// Does what samples and the time ask for. Returns when it is to be called again.
    pub fn run(&self, at: Moment, counters: &dyn Counters) -> Time {
        let mut state = self.state.lock();
        self.take_samples(&mut state, at, counters);
        let polls = state.polls(at, counters);
        drop(state);
        // Devices may take their time: meanwhile, nobody has to wait for the state.
        let polled: Vec<_> = polls.into_iter().map(|poll| poll.read(counters)).collect();
        self.state.lock().tick(at, &polled)
    }

    fn take_samples(&self, state: &mut State, at: Moment, counters: &dyn Counters) {
        for sflow in state.bridges.values_mut().filter_map(|bridge| bridge.sflow.as_mut()) {
            sflow.start(at.now, counters);
        }
        let samples = self.queue.take();
        state.tell_lost(self.queue.lost());
        for sample in samples {
            state.sample(sample, at);
        }
    }

    /// How it stands with all exporters, samples that wait included.
    pub fn reports(&self, at: Moment, counters: &dyn Counters) -> Vec<Report> {
        let mut state = self.state.lock();
        self.take_samples(&mut state, at, counters);
        state.bridges.iter().flat_map(|(&bridge, exports)| exports.reports(bridge)).collect()
    }

    /// Waits for a sample, for other settings, or until the time is over.
    pub fn wait(&self, at_most: Duration) {
        self.queue.wait(at_most);
    }

    /// Ends a [`wait`](Exporter::wait).
    pub fn wake(&self) {
        self.queue.wake();
    }

    /// What a bridge's exporter of IPFIX has done, samples that wait included, if it has one.
    pub fn bridge_statistics(&self, bridge: u32, at: Moment, counters: &dyn Counters) -> Option<Statistics> {
        let mut state = self.state.lock();
        self.take_samples(&mut state, at, counters);
        state.bridges.get(&bridge)?.ipfix.as_ref().map(|(exporter, _)| exporter.statistics())
    }

    /// What its exporters for collector sets have done, by number.
    pub fn collector_set_statistics(&self, bridge: u32, at: Moment, counters: &dyn Counters) -> Vec<(u32, Statistics)> {
        let mut state = self.state.lock();
        self.take_samples(&mut state, at, counters);
        let sets = state.bridges.get(&bridge).into_iter().flat_map(|bridge| &bridge.collector_sets);
        sets.map(|(&id, (exporter, _))| (id, exporter.statistics())).collect()
    }
}

impl State {
    fn tell_lost(&mut self, lost: u64) {
        let new = lost - self.told_lost;
        self.told_lost = lost;
        if new > 0 {
            self.agents().for_each(|agent| agent.lose(new));
        }
    }

    fn agents(&mut self) -> impl Iterator<Item = &mut Agent> {
        self.bridges.values_mut().filter_map(|bridge| bridge.sflow.as_mut()?.agent.as_mut())
    }

    /// Tells agents of samples that were lost on their way here, once in a second. Whose they were is not known.
    fn ask_for_lost(&mut self, now: Time, counters: &dyn Counters) {
        if self.agents().all(|agent| now < agent.next()) {
            return;
        }
        let lost = counters.lost_samples();
        // Counters of the datapath may have begun anew.
        let new = lost.saturating_sub(self.lost_before);
        self.lost_before = lost;
        self.agents().for_each(|agent| agent.lose(new));
    }

    fn sample(&mut self, sample: Sample, at: Moment) {
        match sample {
            Sample::Sflow(sample) => {
                let Some(bridge) = self.bridges.get_mut(&sample.bridge) else { return };
                let Some(SflowAgent { agent: Some(agent), collectors, .. }) = &mut bridge.sflow else { return };
                agent.sample(&sample, at, collectors.at(at.now));
            }
            Sample::Ipfix(sample) => {
                if let Some(bridge) = self.bridges.get_mut(&sample.bridge) {
                    bridge.sample_ipfix(*sample, at);
                }
            }
        }
    }

    /// What agents want to know this second.
    fn polls(&mut self, at: Moment, counters: &dyn Counters) -> Vec<Poll> {
        self.ask_for_lost(at.now, counters);
        let agents = self.bridges.iter_mut().filter_map(|(&id, bridge)| Some((id, bridge.sflow.as_mut()?)));
        // One agent tells the counters of the switch.
        let numbered = agents.enumerate();
        numbered.filter_map(|(n, (id, sflow))| sflow.poll(id, n == 0, at, counters)).collect()
    }

    fn tick(&mut self, at: Moment, polled: &[Polled]) -> Time {
        for polled in polled {
            // It may have gone meanwhile.
            let sflow = self.bridges.get_mut(&polled.bridge).and_then(|bridge| bridge.sflow.as_mut());
            if let Some(SflowAgent { agent: Some(agent), collectors, .. }) = sflow {
                agent.polled(polled, at, collectors.at(at.now));
            }
        }
        let mut next = self.agents().map(|agent| agent.next()).fold(at.now + LONGEST, Time::min);
        for bridge in self.bridges.values_mut() {
            if let Some((flows, collectors)) = &mut bridge.netflow {
                next = next.min(flows.run(at, collectors.at(at.now)));
            }
            for (exporter, collectors) in bridge.ipfix.iter_mut().chain(bridge.collector_sets.values_mut()) {
                next = exporter.run(at, collectors.at(at.now)).map_or(next, |due| next.min(due));
            }
        }
        next
    }
}

impl SflowAgent {
    fn new(settings: &Sflow, now: Time) -> SflowAgent {
        let collectors = Collectors::open(&settings.targets, now);
        SflowAgent { agent: None, settings: settings.clone(), collectors }
    }

    /// Starts the agent, unless it runs.
    fn start(&mut self, now: Time, counters: &dyn Counters) {
        if self.agent.is_none() {
            // Without an address, there is no way to any collector either.
            let address = self.address(counters).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            self.agent = Some(Agent::new(self.settings.clone(), address, now));
        }
    }

    /// The address that the agent has now.
    fn address(&self, counters: &dyn Counters) -> Option<IpAddr> {
        let named = self.settings.agent.as_deref();
        let named = named.and_then(|agent| agent.parse().ok().or_else(|| counters.address(agent)));
        named.or_else(|| self.collectors.local_address())
    }

    /// Whose counters are to be sampled, once in each second.
    fn poll(&mut self, bridge: u32, is_global: bool, at: Moment, counters: &dyn Counters) -> Option<Poll> {
        if self.agent.as_ref().is_none_or(|agent| at.now < agent.next()) {
            return None;
        }
        let address = self.address(counters);
        let agent = self.agent.as_mut()?;
        if let Some(address) = address {
            // Devices get their addresses late, and other ones.
            agent.set_address(address);
        }
        agent.poll(bridge, is_global, counters, at)
    }
}

impl Bridge {
    fn set_netflow(&mut self, wanted: Option<&Netflow>, at: Moment) {
        let known = self.settings.netflow.as_ref();
        if known == wanted {
            return;
        }
        let Some(wanted) = wanted else {
            if let Some((flows, mut collectors)) = self.netflow.take() {
                flows.end_all(at, collectors.at(at.now));
            }
            return;
        };
        match &mut self.netflow {
            Some((flows, collectors)) => {
                flows.set(wanted.clone());
                if known.is_none_or(|known| known.targets != wanted.targets) {
                    *collectors = Collectors::open(&wanted.targets, at.now);
                }
            }
            None => {
                let flows = Arc::new(NetFlow::new(wanted.clone(), at.now));
                self.netflow = Some((flows, Collectors::open(&wanted.targets, at.now)));
            }
        }
    }

    fn set_ipfix(&mut self, wanted: Option<&BridgeIpfix>, at: Moment, exporters: &mut u32) {
        if self.settings.ipfix.as_ref() == wanted {
            return;
        }
        end(self.ipfix.take(), at);
        self.ipfix = wanted.map(|wanted| begin(&wanted.exporter, at, exporters));
    }

    fn set_collector_sets(&mut self, wanted: &BTreeMap<u32, FlowIpfix>, at: Moment, exporters: &mut u32) {
        let known = &self.settings.collector_sets;
        let changed: Vec<_> =
            self.collector_sets.keys().copied().filter(|id| known.get(id) != wanted.get(id)).collect();
        for id in changed {
            end(self.collector_sets.remove(&id), at);
        }
        for (id, settings) in wanted {
            self.collector_sets.entry(*id).or_insert_with(|| begin(settings, at, exporters));
        }
    }

    fn reports(&self, bridge: u32) -> Vec<Report> {
        let mut reports = Vec::new();
        let mut add = |what, collectors: &Collectors| {
            reports.push(Report { bridge, what, collectors: collectors.statuses() });
        };
        if let Some(SflowAgent { agent: Some(agent), collectors, .. }) = &self.sflow {
            add(What::Sflow { samples: agent.samples() }, collectors);
        }
        if let Some((flows, collectors)) = &self.netflow {
            add(What::Netflow { flows: flows.len(), lost: flows.lost() }, collectors);
        }
        if let Some((exporter, collectors)) = &self.ipfix {
            add(What::Ipfix(exporter.statistics()), collectors);
        }
        for (&id, (exporter, collectors)) in &self.collector_sets {
            add(What::CollectorSet(id, exporter.statistics()), collectors);
        }
        reports
    }

    fn sample_ipfix(&mut self, mut sample: ipfix::Sample, at: Moment) {
        let exporter = match sample.collector_set {
            Some(id) => self.collector_sets.get_mut(&id),
            None => {
                let Some(settings) = &self.settings.ipfix else { return };
                (sample.flow.obs_domain, sample.flow.obs_point) = (settings.obs_domain, settings.obs_point);
                self.ipfix.as_mut()
            }
        };
        if let Some((exporter, collectors)) = exporter {
            exporter.sample(sample, at, collectors.at(at.now));
        }
    }
}

fn begin(settings: &FlowIpfix, at: Moment, exporters: &mut u32) -> (IpfixExporter, Collectors) {
    *exporters = exporters.wrapping_add(1);
    (IpfixExporter::new(settings.clone(), *exporters), Collectors::open(&settings.targets, at.now))
}

/// Exports the flows of an exporter that is not wanted any more.
fn end(exporter: Option<(IpfixExporter, Collectors)>, at: Moment) {
    if let Some((mut exporter, mut collectors)) = exporter {
        exporter.end(at, collectors.at(at.now));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use super::*;
    use crate::queue::MAX_WAITING;
    use crate::sflow::{self, PolledPort, PortCounters, SwitchCounters};

    struct NoCounters;

    impl Counters for NoCounters {
        fn ports(&self, _: u32) -> Vec<PolledPort> {
            Vec::new()
        }
        fn port(&self, _: u32, _: u32) -> Option<PortCounters> {
            None
        }
        fn address(&self, device: &str) -> Option<IpAddr> {
            (device == "eth7").then_some(Ipv4Addr::new(10, 7, 7, 7).into())
        }
        fn switch(&self) -> SwitchCounters {
            SwitchCounters::default()
        }
        fn lost_samples(&self) -> u64 {
            3
        }
    }

    fn at(millis: u64) -> Moment {
        Moment { now: Time(0) + Duration::from_millis(millis), wall: Duration::from_millis(millis) }
    }

    fn collector() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn sflow(target: SocketAddr) -> BridgeExport {
        let (sampling, polling, header) = (1, Duration::ZERO, 128);
        let sflow = Sflow { targets: vec![target], sampling, polling, header, agent: None, sub_id: 0 };
        BridgeExport { sflow: Some(sflow), ..BridgeExport::default() }
    }

    #[test]
    fn a_sample_comes_to_its_collector() {
        let (socket, target) = collector();
        let exporter = Exporter::default();
        exporter.set(5, &sflow(target), at(0));
        assert!(exporter.submit(Sample::Sflow(Box::new(sflow::Sample { bridge: 5, ..sflow::Sample::default() }))));
        // Another bridge exports nothing.
        exporter.submit(Sample::Sflow(Box::new(sflow::Sample { bridge: 6, ..sflow::Sample::default() })));
        assert_eq!(exporter.run(at(0), &NoCounters), at(500).now);
        exporter.run(at(500), &NoCounters);
        let mut bytes = [0; 2000];
        let n = socket.recv(&mut bytes).unwrap();
        // The agent has the address by which it sends.
        assert_eq!(bytes[..12], [0, 0, 0, 5, 0, 0, 0, 1, 127, 0, 0, 1]);
        assert_eq!((bytes[27], n % 4), (1, 0), "one sample");
    }

    #[test]
    fn an_agent_has_the_address_of_its_device() {
        let (socket, target) = collector();
        for (agent, expected) in [("eth7", [10, 7, 7, 7]), ("10.1.2.3", [10, 1, 2, 3]), ("gone", [127, 0, 0, 1])] {
            let exporter = Exporter::default();
            let mut wanted = sflow(target);
            wanted.sflow.as_mut().unwrap().agent = Some(agent.into());
            exporter.set(0, &wanted, at(0));
            exporter.submit(Sample::Sflow(Box::default()));
            exporter.run(at(0), &NoCounters);
            exporter.run(at(1000), &NoCounters);
            let mut bytes = [0; 2000];
            socket.recv(&mut bytes).unwrap();
            assert_eq!(bytes[8..12], expected, "{agent}");
        }
    }

    #[test]
    fn samples_that_find_no_room_are_lost_and_told() {
        let (socket, target) = collector();
        let exporter = Exporter::default();
        exporter.set(0, &sflow(target), at(0));
        let lost = (0..MAX_WAITING + 7).filter(|_| !exporter.submit(Sample::Sflow(Box::default()))).count();
        assert_eq!((lost, exporter.lost()), (7, 7));
        exporter.run(at(0), &NoCounters);
        let mut bytes = [0; 2000];
        socket.recv(&mut bytes).unwrap();
        assert_eq!(bytes[28 + 7 * 4 - 1], 7, "drops of the first sample");
        // What the datapath has lost comes to it, once.
        for second in 1..4 {
            exporter.run(at(second * 1000), &NoCounters);
        }
        while socket.recv(&mut bytes).is_ok_and(|n| n > 700) {}
        exporter.submit(Sample::Sflow(Box::default()));
        exporter.run(at(4000), &NoCounters);
        socket.recv(&mut bytes).unwrap();
        assert_eq!(bytes[28 + 7 * 4 - 1], 7 + 3);
    }

    #[test]
    fn an_agent_gets_the_address_that_its_device_has_later() {
        struct Late(std::cell::Cell<u8>);
        impl Counters for Late {
            fn ports(&self, _: u32) -> Vec<PolledPort> {
                Vec::new()
            }
            fn port(&self, _: u32, _: u32) -> Option<PortCounters> {
                None
            }
            fn address(&self, _: &str) -> Option<IpAddr> {
                Some(Ipv4Addr::new(10, 0, 0, self.0.get()).into())
            }
            fn switch(&self) -> SwitchCounters {
                SwitchCounters::default()
            }
            fn lost_samples(&self) -> u64 {
                0
            }
        }
        let (socket, target) = collector();
        let (exporter, counters) = (Exporter::default(), Late(1.into()));
        let mut wanted = sflow(target);
        wanted.sflow.as_mut().unwrap().agent = Some("eth0".into());
        exporter.set(0, &wanted, at(0));
        exporter.run(at(0), &counters);
        for (second, last) in [(1, 1), (2, 2)] {
            exporter.submit(Sample::Sflow(Box::default()));
            exporter.run(at(second * 1000), &counters);
            let mut bytes = [0; 2000];
            socket.recv(&mut bytes).unwrap();
            assert_eq!(bytes[8..12], [10, 0, 0, last]);
            counters.0.set(2);
        }
    }

    #[test]
    fn nobody_waits_for_the_counters_of_devices() {
        struct Slow<'e>(&'e Exporter);
        impl Counters for Slow<'_> {
            fn ports(&self, _: u32) -> Vec<PolledPort> {
                vec![PolledPort { ifindex: 1, port: 1 }]
            }
            fn port(&self, _: u32, _: u32) -> Option<PortCounters> {
                // What waits for a device would hang here, if the state were locked; so would the end of the bridge.
                assert_eq!(self.0.reports(at(1000), &NoCounters).len(), 1);
                self.0.set(0, &BridgeExport::default(), at(1000));
                Some(PortCounters::default())
            }
            fn address(&self, _: &str) -> Option<IpAddr> {
                None
            }
            fn switch(&self) -> SwitchCounters {
                SwitchCounters::default()
            }
            fn lost_samples(&self) -> u64 {
                0
            }
        }
        let (_socket, target) = collector();
        let exporter = Exporter::default();
        let mut wanted = sflow(target);
        wanted.sflow.as_mut().unwrap().polling = Duration::from_secs(1);
        exporter.set(0, &wanted, at(0));
        exporter.run(at(0), &NoCounters);
        exporter.run(at(1000), &Slow(&exporter));
        assert!(!exporter.exports());
    }

    #[test]
    fn an_agent_that_ends_sends_what_it_has() {
        let (socket, target) = collector();
        let exporter = Exporter::default();
        exporter.set(0, &sflow(target), at(0));
        exporter.submit(Sample::Sflow(Box::default()));
        exporter.run(at(0), &NoCounters);
        exporter.set(0, &BridgeExport::default(), at(1));
        assert!(socket.recv(&mut [0; 2000]).is_ok());
    }

    #[test]
    fn reports_say_what_has_become_of_samples_and_datagrams() {
        let (_socket, target) = collector();
        let exporter = Exporter::default();
        exporter.set(7, &sflow(target), at(0));
        exporter.submit(Sample::Sflow(Box::new(sflow::Sample { bridge: 7, ..sflow::Sample::default() })));
        let report = exporter.reports(at(0), &NoCounters).remove(0);
        assert_eq!((report.bridge, report.what, report.collectors[0].sent), (7, What::Sflow { samples: 1 }, 0));
        exporter.run(at(1000), &NoCounters);
        let report = exporter.reports(at(1000), &NoCounters).remove(0);
        assert_eq!((report.collectors[0].target, report.collectors[0].sent), (target, 1));
    }

    #[test]
    fn settings_that_stay_keep_what_they_have() {
        let (_socket, target) = collector();
        let exporter = Exporter::default();
        let mut wanted = BridgeExport::default();
        let netflow = |engine_id| Netflow {
            targets: vec![target],
            engine_type: 0,
            engine_id,
            active_timeout: Duration::ZERO,
            add_id_to_interface: false,
        };
        wanted.netflow = Some(netflow(1));
        wanted.collector_sets.insert(3, FlowIpfix { targets: vec![target], ..FlowIpfix::default() });
        let flows = exporter.set(0, &wanted, at(0)).unwrap();
        wanted.netflow = Some(netflow(2));
        wanted.collector_sets.insert(4, FlowIpfix::default());
        assert!(Arc::ptr_eq(&flows, &exporter.set(0, &wanted, at(0)).unwrap()));
        let numbers: Vec<_> =
            exporter.collector_set_statistics(0, at(0), &NoCounters).into_iter().map(|(id, _)| id).collect();
        assert_eq!(numbers, [3, 4]);
        assert_eq!(exporter.bridge_statistics(0, at(0), &NoCounters), None);
        assert!(exporter.set(0, &BridgeExport::default(), at(0)).is_none());
        assert!(exporter.state.lock().bridges.is_empty());
    }
}
