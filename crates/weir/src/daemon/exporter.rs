//! The thread that sends samples and flow records to collectors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use export::sflow::{Counters, PolledPort, PortCounters, SwitchCounters};
use ofproto::Switch;

use super::Error;
use super::engine::Engine;

/// The longest that the thread waits, and so the longest that it takes to notice that a test has warped the clock.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// How long it waits while nothing is exported: settings, and the end, wake it.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// How often it is looked for collectors that cannot be reached: no more than as often, each has a line in the log.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// The shortest time between two rounds, so that samples are handled together.
const BETWEEN_ROUNDS: Duration = Duration::from_millis(5);

/// The thread. Dropping it ends it.
pub struct ExporterThread {
    switch: Arc<Switch>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ExporterThread {
    /// Starts the thread.
    pub fn start(engine: &Engine) -> Result<ExporterThread, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (switch, stopped) = (engine.switch.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("exporter".into()).spawn(move || {
            let exporter = switch.exporter();
            let mut problems = Problems::default();
            while !stopped.load(Ordering::Relaxed) {
                let next = run(&switch);
                if !exporter.exports() {
                    exporter.wait(IDLE_WAIT);
                    continue;
                }
                problems.look(&switch);
                exporter.wait(next.since(switch.moment().now).min(LONGEST_WAIT));
                std::thread::sleep(BETWEEN_ROUNDS);
            }
            run(&switch);
        });
        Ok(ExporterThread { switch: engine.switch.clone(), stop, thread: Some(thread.map_err(Error::Thread)?) })
    }
}

impl Drop for ExporterThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.switch.exporter().wake();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the hook.
            let _ = thread.join();
        }
    }
}

/// The collectors that cannot be reached, as far as the log says so.
#[derive(Default)]
struct Problems {
    known: BTreeMap<(u32, SocketAddr), String>,
    looked: Option<Instant>,
}

impl Problems {
    /// Logs what has changed, now and then.
    fn look(&mut self, switch: &Arc<Switch>) {
        if self.looked.is_some_and(|looked| looked.elapsed() < BETWEEN_LOOKS) {
            return;
        }
        self.looked = Some(Instant::now());
        let reports = switch.export_reports();
        let statuses = reports.into_iter().flat_map(|report| {
            let bridge = report.bridge;
            report.collectors.into_iter().map(move |status| ((bridge, status.target), status.error))
        });
        let found = statuses.filter_map(|(place, error)| Some((place, error?))).collect();
        for (line, is_problem) in self.changes(found) {
            match is_problem {
                true => tracing::warn!("{line}"),
                false => tracing::info!("{line}"),
            }
        }
    }

    /// Takes the errors that there are now. Returns lines for the log, and whether each tells of an error.
    fn changes(&mut self, found: BTreeMap<(u32, SocketAddr), String>) -> Vec<(String, bool)> {
        let mut lines = Vec::new();
        for ((_, target), error) in found.iter().filter(|(place, _)| !self.known.contains_key(place)) {
            lines.push((format!("collector {target} cannot be reached: {error}"), true));
        }
        for (_, target) in self.known.keys().filter(|place| !found.contains_key(place)) {
            lines.push((format!("collector {target} has no more errors"), false));
        }
        self.known = found;
        lines
    }
}

/// Has the exporter do what is due. Returns when it is to be done again.
pub fn run(switch: &Switch) -> packet::Time {
    switch.exporter().run(switch.moment(), &Process(switch))
}

/// The switch's counters, and what the process takes.
struct Process<'a>(&'a Switch);

impl Counters for Process<'_> {
    fn ports(&self, bridge: u32) -> Vec<PolledPort> {
        self.0.ports(bridge)
    }

    fn port(&self, bridge: u32, port: u32) -> Option<PortCounters> {
        self.0.port(bridge, port)
    }

    fn address(&self, device: &str) -> Option<std::net::IpAddr> {
        self.0.address(device)
    }

    fn lost_samples(&self) -> u64 {
        self.0.lost_samples()
    }

    fn switch(&self) -> SwitchCounters {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let (time, memory) = usage(&stat).unwrap_or_default();
        SwitchCounters { time, memory, ..self.0.switch() }
    }
}

/// Milliseconds of processor time as a user and in the kernel, and bytes of memory: proc(5).
fn usage(stat: &str) -> Option<((u32, u32), u64)> {
    const MILLIS_PER_TICK: u64 = 10;
    const PAGE: u64 = 4096;
    // The name may have spaces and brackets in it; the state is field 3.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let millis = |number| field(number).map(|ticks| (ticks * MILLIS_PER_TICK) as u32);
    Some(((millis(14)?, millis(15)?), field(24)? * PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_told_once_and_its_end_too() {
        let mut problems = Problems::default();
        let found = |targets: &[&str]| {
            targets.iter().map(|target| ((1, target.parse().unwrap()), "no".to_owned())).collect::<BTreeMap<_, _>>()
        };
        let (one, two) = ("10.0.0.1:1", "10.0.0.2:1");
        assert_eq!(problems.changes(found(&[])), []);
        let told = problems.changes(found(&[one]));
        assert_eq!(told, [("collector 10.0.0.1:1 cannot be reached: no".to_owned(), true)]);
        let told = problems.changes(found(&[one, two]));
        assert_eq!(told, [("collector 10.0.0.2:1 cannot be reached: no".to_owned(), true)]);
        assert_eq!(problems.changes(found(&[one, two])), []);
        let told = problems.changes(found(&[two]));
        assert_eq!(told, [("collector 10.0.0.1:1 has no more errors".to_owned(), false)]);
    }

    #[test]
    fn what_the_process_takes() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 123 45 0 0 20 0 9 0 100 1000000 300 18446744073709551615";
        assert_eq!(usage(line), Some(((1230, 450), 300 * 4096)));
        assert_eq!(usage(""), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(usage(&own).is_some_and(|(_, memory)| memory > 0));
    }
}
