//! Separate datapaths: those that an operator makes with `dpctl/add-dp` beside the bridges' one.
//!
//! No bridge uses them. They forward by flows that are given with `dpctl/add-flow`, and drop what no flow matches. They end
//! with the daemon, if not before.
//!
//! Each has one worker that may run on any core and one handler, so that it takes no time from the bridges' workers
//! while it has nothing to do. What all of them take is bounded by [`MAX_DATAPATHS`] and the limits of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use datapath::{Datapath, PortNo};
use ofproto::DatapathType;
use packet::buffer::pool::give_back_kept;
use parking_lot::Mutex;
use ports::registry::{self, Env, PortSpec};

use super::account::log_account;
use super::seed::random_seed;
use crate::timer::Timer;

/// Most separate datapaths at a time.
pub const MAX_DATAPATHS: usize = 16;

/// Most ports of one.
const MAX_PORTS: usize = 256;

/// Most receive queues of a port of one.
const MAX_RX_QUEUES: usize = 16;

/// Most flows of one.
const MAX_FLOWS: usize = 1 << 15;

/// Most bytes that its flows take: enough for all of them, so that none is evicted that somebody has given.
const MAX_FLOW_MEMORY: usize = 64 << 20;

/// Most entries of its exact-match cache.
const EXACT_ENTRIES: usize = 1 << 14;

/// Most packets that wait there only to be dropped, since no flow matches them.
const QUEUE: usize = 1 << 10;

/// Most connections that it tracks.
const MAX_CONNECTIONS: u32 = 1 << 16;

/// The longest sleep of its worker where a port cannot wake it.
const MAX_SLEEP: Duration = Duration::from_micros(500);

/// How long its end waits for packets that are under way.
const LAST_PACKETS: Duration = Duration::from_secs(1);

/// Why a command on them fails. The text of some is OVS's name for the error of the system that it would be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is one of this name.
    #[error("File exists")]
    Exists,
    /// No more of them.
    #[error("there can be {MAX_DATAPATHS} datapaths beside that of the bridges (No space left on device)")]
    TooMany,
    /// A port too many.
    #[error("a datapath beside that of the bridges can have {MAX_PORTS} ports (No space left on device)")]
    TooManyPorts,
    /// Too many receive queues.
    #[error(
        "a port of a datapath beside that of the bridges can have {MAX_RX_QUEUES} receive queues (Invalid argument)"
    )]
    TooManyQueues,
    /// It has gone.
    #[error("No such device")]
    NoSuchDatapath,
    /// A type that its ports cannot have.
    #[error("{0}: ports of a datapath beside that of the bridges cannot be of this type (Operation not supported)")]
    Type(String),
    /// What has a name elsewhere.
    #[error("{0} is a port of {1} (Device or resource busy)")]
    InUse(String, String),
    /// The port that has the datapath's name stays until the end.
    #[error("Invalid argument")]
    IsLocal,
    /// The port could not be opened, or the datapath did not take it.
    #[error("{0}")]
    Other(String),
}

/// The separate datapaths. Several threads may make changes, one at a time.
pub struct SeparateDatapaths {
    list: Mutex<BTreeMap<String, Arc<SeparateDatapath>>>,
    changing: Mutex<Phase>,
    env: Env,
    timer: Timer,
}

/// Whether there may be new ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// The daemon ends.
    Closed,
}

/// A datapath that no bridge uses.
pub struct SeparateDatapath {
    /// `TYPE@NAME`.
    pub name: String,
    /// Its ports, flows and worker.
    pub datapath: Arc<Datapath>,
    /// Its dummy ports, which may be called as others elsewhere.
    pub env: Env,
}

/// A port that is to be added.
pub struct NewPort {
    /// Its name, type and options.
    pub spec: PortSpec,
    /// The number that it is to have.
    pub number: Option<PortNo>,
}

impl SeparateDatapaths {
    /// None yet. Their ports take frames from the memory of `env`.
    pub fn new(env: Env, timer: Timer) -> Arc<SeparateDatapaths> {
        Arc::new(SeparateDatapaths { list: Mutex::default(), changing: Mutex::new(Phase::Open), env, timer })
    }

    /// All of them, in the order of their names.
    pub fn all(&self) -> Vec<Arc<SeparateDatapath>> {
        self.list.lock().values().cloned().collect()
    }

    /// The one called `name`, with or without its type.
    pub fn find(&self, name: &str) -> Option<Arc<SeparateDatapath>> {
        let list = self.list.lock();
        let short = |whole: &str| whole.split_once('@').is_some_and(|(_, short)| short == name);
        list.get(name).or_else(|| list.iter().find(|(whole, _)| short(whole)).map(|(_, found)| found)).cloned()
    }

    /// The one that has a port of this name which a bridge could not have, too.
    pub fn user_of(&self, device: &str) -> Option<String> {
        let uses = |one: &&Arc<SeparateDatapath>| one.device(device).is_some_and(|(_, kind)| !is_dummy(kind));
        self.list.lock().values().find(uses).map(|user| user.name.clone())
    }

    /// Makes one, with a port of its own name.
    pub fn add(&self, kind: DatapathType, name: &str) -> Result<(), Error> {
        let phase = self.changing.lock();
        let whole = whole_name(kind, name);
        {
            let list = self.list.lock();
            if list.contains_key(&whole) {
                return Err(Error::Exists);
            }
            if list.len() >= MAX_DATAPATHS || *phase == Phase::Closed {
                return Err(Error::TooMany);
            }
        }
        let added = SeparateDatapath::start(whole.clone(), &self.env, &self.timer)?;
        let local = if kind == DatapathType::Dummy { "dummy-internal" } else { "tap" };
        let port = NewPort { spec: PortSpec::new(name, local), number: Some(PortNo(0)) };
        if let Err(error) = added.open(&port) {
            added.end();
            return Err(error);
        }
        self.list.lock().insert(whole, Arc::new(added));
        Ok(())
    }

    /// Ends one, with its ports and flows.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        let _one_change_at_a_time = self.changing.lock();
        let gone = self.find(name).ok_or(Error::NoSuchDatapath)?;
        self.list.lock().remove(&gone.name);
        gone.end();
        Ok(())
    }

    /// Adds a port to one.
    pub fn add_port(&self, datapath: &str, port: &NewPort) -> Result<PortNo, Error> {
        let _one_change_at_a_time = self.changing.lock();
        let datapath = self.find(datapath).ok_or(Error::NoSuchDatapath)?;
        if datapath.datapath.ports().len() >= MAX_PORTS {
            return Err(Error::TooManyPorts);
        }
        let name = &port.spec.name;
        if let Some(user) = self.user_of(name).filter(|user| *user != datapath.name) {
            return Err(Error::InUse(name.clone(), user));
        }
        datapath.open(port)
    }

    /// Takes a port from one.
    pub fn remove_port(&self, datapath: &str, port: PortNo) -> Result<(), Error> {
        let _one_change_at_a_time = self.changing.lock();
        let datapath = self.find(datapath).ok_or(Error::NoSuchDatapath)?;
        if port == PortNo(0) {
            return Err(Error::IsLocal);
        }
        datapath.datapath.remove_port(port).map(drop).map_err(|e| Error::Other(e.to_string()))
    }

    /// Ends all of them for good.
    pub fn close(&self) {
        let mut phase = self.changing.lock();
        *phase = Phase::Closed;
        let all = std::mem::take(&mut *self.list.lock());
        all.values().for_each(|datapath| datapath.end());
    }
}

impl SeparateDatapath {
    fn start(name: String, env: &Env, timer: &Timer) -> Result<SeparateDatapath, Error> {
        let config = datapath::Config {
            // Its worker and its handler do not change.
            max_workers: 1,
            max_sleep: MAX_SLEEP,
            max_flows: MAX_FLOWS,
            max_flow_memory: MAX_FLOW_MEMORY,
            exact_entries: EXACT_ENTRIES,
            upcall_queue: QUEUE,
            max_connections: MAX_CONNECTIONS,
            seed: random_seed(),
            ..datapath::Config::default()
        };
        let datapath = Datapath::new(config, timer.clock());
        datapath.start().map_err(|e| Error::Other(e.to_string()))?;
        let env = Env { dummies: env.dummies.beside(), ..env.clone() };
        Ok(SeparateDatapath { name, datapath, env })
    }

    /// Opens a device and adds it as a port.
    fn open(&self, port: &NewPort) -> Result<PortNo, Error> {
        let NewPort { spec, number } = port;
        if self.device(&spec.name).is_some() {
            return Err(Error::Exists);
        }
        if spec.kind == "patch" || ports::tunnel::KIND.names.contains(&&*spec.kind) {
            return Err(Error::Type(spec.kind.clone()));
        }
        let queues = spec.options.get("n_rxq").and_then(|queues| queues.parse::<usize>().ok());
        if queues.is_some_and(|queues| queues > MAX_RX_QUEUES) {
            return Err(Error::TooManyQueues);
        }
        let other = |problem: &dyn std::fmt::Display| Error::Other(problem.to_string());
        let device = registry::open(spec, &self.env).map_err(|e| other(&e))?;
        let added = match number {
            Some(number) => self.datapath.add_port_at(device, *number),
            None => self.datapath.add_port(device),
        };
        added.map_err(|e| other(&e))
    }

    /// The number and the type of the port called `name`, or so numbered.
    pub fn device(&self, name: &str) -> Option<(PortNo, &'static str)> {
        let ports = self.datapath.ports();
        let number = name.parse().ok().map(PortNo);
        let found = ports.iter().find(|(_, port)| port.name() == name);
        let found = found.or_else(|| ports.iter().find(|(no, _)| Some(*no) == number));
        found.map(|(number, port)| (*number, port.kind()))
    }

    /// Takes everything away. Somebody may still have hold of it, and finds it empty.
    fn end(&self) {
        let ports: Vec<_> = self.datapath.ports().into_iter().map(|(number, _)| number).collect();
        // All of them exist: only who ends it, or changes it before, takes ports away.
        let _ = self.datapath.remove_ports(&ports);
        self.datapath.flush();
        self.datapath.settle(LAST_PACKETS);
        self.datapath.stop();
        // Otherwise what this thread keeps for itself would count as leaked.
        give_back_kept();
        log_account(&format!("{}: packets", self.name), &self.datapath);
    }
}

fn whole_name(kind: DatapathType, name: &str) -> String {
    let of_bridges = kind.datapath_name();
    format!("{}@{name}", of_bridges.split_once('@').map_or(of_bridges, |(kind, _)| kind))
}

/// Whether ports of this type are no devices, so that two can have one name.
fn is_dummy(kind: &str) -> bool {
    ports::dummy::KIND.names.contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Arc<SeparateDatapaths> {
        SeparateDatapaths::new(Env::default(), Timer::system())
    }

    fn dummy(name: &str) -> NewPort {
        NewPort { spec: PortSpec::new(name, "dummy"), number: None }
    }

    #[test]
    fn each_has_a_port_of_its_name_and_ports_of_its_own() {
        let all = none();
        all.add(DatapathType::Dummy, "dp0").unwrap();
        all.add(DatapathType::Dummy, "dp1").unwrap();
        assert_eq!(all.add(DatapathType::Dummy, "dp0"), Err(Error::Exists));
        assert_eq!(all.add_port("dummy@dp0", &dummy("p7")), Ok(PortNo(7)), "dummies are numbered by their names");
        assert_eq!(all.add_port("dp0", &dummy("p7")), Err(Error::Exists));
        assert_eq!(all.add_port("dp1", &dummy("p7")), Ok(PortNo(7)), "another datapath can have one of that name");
        let numbered = NewPort { number: Some(PortNo(7)), ..dummy("q") };
        assert!(all.add_port("dp0", &numbered).is_err(), "the number is taken");
        assert_eq!(all.remove_port("dp0", PortNo(0)), Err(Error::IsLocal));
        assert_eq!(all.remove_port("dp0", PortNo(7)), Ok(()));
        let device = |name: &str, port| all.find(name).unwrap().device(port);
        assert_eq!(device("dp0", "p7"), None);
        assert_eq!(device("dp1", "p7"), Some((PortNo(7), "dummy")));
        assert_eq!(device("dp1", "7"), Some((PortNo(7), "dummy")));
        assert_eq!(device("dp1", "dp1"), Some((PortNo(0), "dummy-internal")));
        all.remove("dp1").unwrap();
        assert_eq!(all.remove("dp1"), Err(Error::NoSuchDatapath));
        assert_eq!(all.all().len(), 1);
    }

    #[test]
    fn their_number_and_that_of_their_ports_is_bounded() {
        let all = none();
        for number in 0..MAX_DATAPATHS {
            all.add(DatapathType::Dummy, &format!("dp{number}")).unwrap();
        }
        assert_eq!(all.add(DatapathType::Dummy, "more"), Err(Error::TooMany));
        for number in 1..MAX_PORTS {
            all.add_port("dp3", &dummy(&format!("p{number}"))).unwrap();
        }
        assert_eq!(all.add_port("dp3", &dummy("more")), Err(Error::TooManyPorts));
        all.close();
        assert!(all.all().is_empty());
        assert_eq!(all.add(DatapathType::Dummy, "late"), Err(Error::TooMany), "the daemon ends");
    }

    #[test]
    fn bridges_do_not_open_a_device_that_has_a_user() {
        let all = none();
        all.add(DatapathType::Dummy, "dp0").unwrap();
        let null = || NewPort { spec: PortSpec::new("n0", "null"), number: None };
        all.add_port("dp0", &null()).unwrap();
        all.add_port("dp0", &dummy("d0")).unwrap();
        assert_eq!(all.user_of("n0").as_deref(), Some("dummy@dp0"));
        assert_eq!(all.user_of("d0"), None, "dummies are no devices");
        all.add(DatapathType::Dummy, "dp1").unwrap();
        assert_eq!(all.add_port("dp1", &null()), Err(Error::InUse("n0".into(), "dummy@dp0".into())));
        let wide = NewPort { spec: PortSpec::new("w0", "dummy").with(&[("n_rxq", "17")]), number: None };
        assert_eq!(all.add_port("dp1", &wide), Err(Error::TooManyQueues));
        let tunnel = NewPort { spec: PortSpec::new("v0", "vxlan"), number: None };
        assert_eq!(all.add_port("dp1", &tunnel), Err(Error::Type("vxlan".into())));
    }
}
