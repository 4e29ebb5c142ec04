//! The daemon as a process. The names are those that Prometheus's client libraries give to every process.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Metric, metrics};

/// The daemon.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// Version of Weir.
    pub version: String,
    /// When it started.
    pub started: SystemTime,
    /// How often its configuration has changed.
    pub changes: u64,
    /// What of the configuration is not in force: ports and other things.
    pub unapplied: usize,
    /// What the kernel says.
    pub usage: Option<Usage>,
    /// Buffers in use, by pool.
    pub buffers: Vec<(&'static str, usize)>,
    /// Requests of the control socket that were answered.
    pub requests: u64,
}

/// What the process takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Time of processors, in seconds.
    pub cpu: f64,
    /// Bytes of address space.
    pub virtual_memory: u64,
    /// Bytes that are in memory.
    pub resident_memory: u64,
    /// Threads.
    pub threads: u64,
}

impl Usage {
    /// Of this process; `None` where /proc is not there.
    pub fn of_this_process() -> Option<Usage> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        Usage::parse(&stat, ticks, rustix::param::page_size() as u64)
    }

    /// From the line in /proc/PID/stat (proc_pid_stat(5)), whose second field, in parentheses, is any text.
    fn parse(stat: &str, ticks: u64, page: u64) -> Option<Usage> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // The first of these is the third of the line.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Usage {
            cpu: (field(14)? + field(15)?) as f64 / ticks.max(1) as f64,
            threads: field(20)?,
            virtual_memory: field(23)?,
            resident_memory: field(24)? * page,
        })
    }
}

/// What is said of it.
pub static METRICS: &[Metric<Daemon>] = metrics! {
    "weir_build_info" Gauge ["version"] |d, out| out.add(&[&d.version], 1u64), "Always 1; the label says which Weir this is.";
    "weir_configuration_changes_total" Counter [] |d, out| out.add(&[], d.changes), "Configurations that have changed something.";
    "weir_configuration_unapplied" Gauge [] |d, out| out.add(&[], d.unapplied),
        "Parts of the configuration that are not in force, ports included; weir show says why.";
    "weir_control_requests_total" Counter [] |d, out| out.add(&[], d.requests), "Requests of the control socket that were answered.";
    "weir_pool_buffers_in_use" Gauge ["pool"]
        |d, out| d.buffers.iter().for_each(|(pool, n)| out.add(&[pool], *n)),
        "Packet buffers in use, by the pool that they come from.";
    "process_start_time_seconds" Gauge [] |d, out| out.add(&[], since_1970(d.started)),
        "When the daemon started, in seconds since 1970.";
    "process_cpu_seconds_total" Counter [] |d, out| d.usage.iter().for_each(|u| out.add(&[], u.cpu)),
        "Time of processors that the process has taken, in seconds; a worker that polls takes all of its core's.";
    "process_resident_memory_bytes" Gauge [] |d, out| d.usage.iter().for_each(|u| out.add(&[], u.resident_memory)),
        "Memory that the process has.";
    "process_virtual_memory_bytes" Gauge [] |d, out| d.usage.iter().for_each(|u| out.add(&[], u.virtual_memory)),
        "Address space of the process, most of which is reserved and takes no memory.";
    "process_threads" Gauge [] |d, out| d.usage.iter().for_each(|u| out.add(&[], u.threads)), "Threads of the process.";
};

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read_whatever_the_program_is_called() {
        let line = "7 (a) b (c) S 1 1 1 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 12 0 100 4096 3 18446744073709551615 1 1";
        let usage = Usage { cpu: 2.0, virtual_memory: 4096, resident_memory: 3 * 4096, threads: 12 };
        assert_eq!(Usage::parse(line, 100, 4096), Some(usage));
        for cut in 0..line.len() {
            // Less of it may be less than is needed, and is never a panic.
            let _ = Usage::parse(&line[..cut], 0, 4096);
        }
        assert!(Usage::of_this_process().expect("/proc is there").resident_memory > 0);
    }
}
