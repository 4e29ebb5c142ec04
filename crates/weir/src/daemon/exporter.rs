//! The thread that sends samples and flow records to collectors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use export::collectors::Status;
use export::sflow::{Counters, PolledPort, PortCounters, SwitchCounters};
use ofproto::Switch;

use super::Error;
use super::engine::Engine;

/// The longest that the thread waits, and so the longest that it takes to notice that a test has warped the clock.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// How long it waits while nothing is exported: settings, and the end, wake it.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// How often it is looked for collectors that cannot be reached.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

/// How many looks in a row find nothing wrong with a collector before the log says so.
const QUIET_LOOKS: u32 = 2;

/// Collectors that are named in the log at a look because they cannot be reached; as many are because they can again.
const MOST_LINES: usize = 10;

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

/// A collector of a bridge.
type Place = (u32, SocketAddr);

/// The collectors that cannot be reached, as far as the log says so.
#[derive(Default)]
struct Problems {
    /// For each, how many looks have found nothing wrong since.
    known: BTreeMap<Place, u32>,
    /// Datagrams that had been in vain at the last look.
    in_vain: BTreeMap<Place, u64>,
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
            report.collectors.into_iter().map(move |status| (bridge, status))
        });
        for (line, is_problem) in self.changes(statuses) {
            match is_problem {
                true => tracing::warn!("{line}"),
                false => tracing::info!("{line}"),
            }
        }
    }

    /// Takes how it stands now. Returns lines for the log, and whether each tells of an error. A host may refuse some datagrams and say nothing of
    /// others: that is over when nothing has been in vain for some looks.
    fn changes(&mut self, statuses: impl Iterator<Item = (u32, Status)>) -> Vec<(String, bool)> {
        let (mut begun, mut ended) = (Lines::default(), Lines::default());
        let (mut known, mut in_vain) = (BTreeMap::new(), BTreeMap::<Place, u64>::new());
        let mut errors = BTreeMap::<Place, Option<String>>::new();
        for (bridge, Status { target, failed, refused, error, .. }) in statuses {
            *in_vain.entry((bridge, target)).or_default() += failed + refused;
            let known = errors.entry((bridge, target)).or_default();
            *known = known.take().or(error);
        }
        for (&place, error) in &errors {
            // Exporters may have begun anew.
            let has_failed = in_vain.get(&place) > self.in_vain.get(&place).or(Some(&0));
            let quiet = self.known.get(&place);
            match (error, quiet) {
                (Some(error), None) => {
                    begun.add(|| format!("collector {} cannot be reached: {error}", place.1));
                    known.insert(place, 0);
                }
                (None, None) => {}
                (_, Some(_)) if error.is_some() || has_failed => drop(known.insert(place, 0)),
                (_, Some(&quiet)) if quiet + 1 < QUIET_LOOKS => drop(known.insert(place, quiet + 1)),
                (_, Some(_)) => ended.add(|| format!("collector {} has no more errors", place.1)),
            }
        }
        for (_, target) in self.known.keys().filter(|place| !errors.contains_key(place)) {
            ended.add(|| format!("collector {target} has no more errors"));
        }
        (self.known, self.in_vain) = (known, in_vain);
        let begun = begun.with("more collectors cannot be reached").into_iter().map(|line| (line, true));
        begun.chain(ended.with("more collectors have no more errors").into_iter().map(|line| (line, false))).collect()
    }
}

/// Lines of one kind: the first ones, and how many more there are.
#[derive(Default)]
struct Lines {
    first: Vec<String>,
    more: usize,
}

impl Lines {
    fn add(&mut self, line: impl FnOnce() -> String) {
        if self.first.len() < MOST_LINES { self.first.push(line()) } else { self.more += 1 }
    }

    fn with(mut self, what: &str) -> Vec<String> {
        if self.more > 0 {
            self.first.push(format!("{} {what}; export/show has all", self.more));
        }
        self.first
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
        let (one, two) = ("10.0.0.1:1", "10.0.0.2:1");
        let no = Some("no");
        let mut changes = |statuses: &[(&str, u64, Option<&str>)]| {
            let status = |&(target, refused, error): &(&str, u64, Option<&str>)| {
                let (target, error) = (target.parse().unwrap(), error.map(str::to_owned));
                (1, Status { target, sent: 9, failed: 0, refused, error })
            };
            problems.changes(statuses.iter().map(status))
        };
        assert_eq!(changes(&[(one, 0, None)]), []);
        let told = changes(&[(one, 1, no), (two, 0, None)]);
        assert_eq!(told, [(format!("collector {one} cannot be reached: no"), true)]);
        let told = changes(&[(one, 1, no), (two, 1, no)]);
        assert_eq!(told, [(format!("collector {two} cannot be reached: no"), true)]);
        // Its host refuses some, and the last one was not among them.
        for refused in 2..10 {
            assert_eq!(changes(&[(one, refused, None), (two, 1, no)]), []);
        }
        assert_eq!(changes(&[(one, 9, None), (two, 1, no)]), []);
        let told = changes(&[(one, 9, None), (two, 1, no)]);
        assert_eq!(told, [(format!("collector {one} has no more errors"), false)]);
        assert_eq!(changes(&[(one, 9, None)]), [(format!("collector {two} has no more errors"), false)]);
    }

    #[test]
    fn however_many_collectors_fail_the_log_has_some_lines() {
        let mut problems = Problems::default();
        let mut look = |error: Option<&str>| {
            let status = |number: u32| {
                let (target, error) = (([10, 0, 0, 1], number as u16).into(), error.map(str::to_owned));
                (1, Status { target, sent: 0, failed: 0, refused: 0, error })
            };
            problems.changes((1..=1000).map(status))
        };
        let told = look(Some("no"));
        assert_eq!(told.len(), MOST_LINES + 1);
        assert_eq!(told[MOST_LINES], ("990 more collectors cannot be reached; export/show has all".to_owned(), true));
        assert_eq!(look(None), []);
        let told = look(None);
        assert_eq!(
            told[MOST_LINES],
            ("990 more collectors have no more errors; export/show has all".to_owned(), false)
        );
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
