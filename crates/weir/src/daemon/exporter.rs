//! The thread that sends samples and flow records to collectors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use export::sflow::{Counters, PolledPort, PortCounters, SwitchCounters};
use ofproto::Switch;

use super::Error;
use super::engine::Engine;

/// The longest that the thread waits, and so the longest that it takes to notice that it is to end, or that a test has warped the clock.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

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
            while !stopped.load(Ordering::Relaxed) {
                let next = run(&switch);
                let exporter = switch.exporter();
                exporter.wait(next.since(switch.moment().now).min(LONGEST_WAIT));
                if exporter.exports() {
                    std::thread::sleep(BETWEEN_ROUNDS);
                }
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
    fn what_the_process_takes() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 123 45 0 0 20 0 9 0 100 1000000 300 18446744073709551615";
        assert_eq!(usage(line), Some(((1230, 450), 300 * 4096)));
        assert_eq!(usage(""), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(usage(&own).is_some_and(|(_, memory)| memory > 0));
    }
}
