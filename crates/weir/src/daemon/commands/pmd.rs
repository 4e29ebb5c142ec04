//! The commands `dpif-netdev/pmd-*`: OVS's name for the workers is PMD threads. Layouts of OVS 3.1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use datapath::{Datapath, RxAssignment, WorkerStats};

use super::Context;
use super::datapaths::find_or_list;
use crate::unixctl::command::Outcome;

/// The longest time that `pmd-rxq-show` can look back, in seconds.
const LONGEST: u64 = 60;

/// What all of these commands take.
pub(super) struct PmdArguments {
    /// Whose workers are meant.
    pub datapath: Arc<Datapath>,
    /// Only the worker on this core.
    core: Option<usize>,
    /// How many seconds to look back.
    seconds: Option<u64>,
    /// Options with other numbers, and flags, as they were given.
    others: BTreeMap<&'static str, u64>,
}

impl PmdArguments {
    /// Parses `[-pmd CORE] [-secs SECONDS] [OTHER NUMBER]... [FLAG]... [DP]`.
    pub fn parse(
        context: &Context,
        args: &[String],
        seconds: bool,
        others: &[&'static str],
        flags: &[&'static str],
    ) -> Result<PmdArguments, String> {
        let datapath = context.engine.datapath.clone();
        let mut out = PmdArguments { datapath, core: None, seconds: None, others: BTreeMap::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = || {
                let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
                value.parse::<u64>().map_err(|_| format!("{arg} {value}: not a number"))
            };
            match arg.as_str() {
                "-pmd" => out.core = Some(number()? as usize),
                // Less than nothing counts as nothing, which stands for the longest time.
                "-secs" if seconds => {
                    out.seconds = Some(seconds_of(args.next().ok_or_else(|| format!("{arg} needs a number"))?)?)
                }
                other => {
                    if let Some(&option) = others.iter().find(|option| **option == other) {
                        out.others.insert(option, number()?);
                    } else if let Some(&flag) = flags.iter().find(|flag| **flag == other) {
                        out.others.insert(flag, 1);
                    } else {
                        out.datapath = find_or_list(context, other)?;
                    }
                }
            }
        }
        Ok(out)
    }

    /// The number of an option that was given, or one for a flag.
    pub fn other(&self, option: &str) -> Option<u64> {
        self.others.get(option).copied()
    }

    /// The workers that are asked for, by core.
    pub fn workers(&self) -> Vec<WorkerStats> {
        let mut workers = workers(&self.datapath);
        workers.retain(|w| self.core.is_none_or(|core| core == core_of(w)));
        workers
    }
}

/// All workers, by core.
pub(super) fn workers(datapath: &Datapath) -> Vec<WorkerStats> {
    let mut workers = datapath.stats().workers;
    workers.sort_by_key(|w| (w.core, w.number));
    workers
}

fn seconds_of(text: &str) -> Result<u64, String> {
    let seconds: i64 = text.parse().map_err(|_| format!("-secs {text}: not a number"))?;
    Ok(u64::try_from(seconds).unwrap_or(0))
}

/// A worker that is on no particular core is shown as the first core's.
pub(super) fn core_of(worker: &WorkerStats) -> usize {
    worker.core.unwrap_or(0)
}

pub(super) fn per(n: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / of as f64 }
}

/// `dpif-netdev/pmd-stats-show`.
pub fn stats_show(context: &Context, args: &[String]) -> Outcome {
    let mut text = String::new();
    for w in PmdArguments::parse(context, args, false, &[], &[])?.workers() {
        let passes = w.received + w.recirculated;
        let cycles = w.busy_cycles + w.idle_cycles;
        let mut line = |args: std::fmt::Arguments| {
            let _ = writeln!(text, "{args}");
        };
        line(format_args!("pmd thread numa_id {} core_id {}:", w.node, core_of(&w)));
        line(format_args!("  packets received: {}", w.received));
        line(format_args!("  packet recirculations: {}", w.recirculated));
        line(format_args!("  avg. datapath passes per packet: {:.2}", per(passes, w.received)));
        line(format_args!("  phwol hits: 0"));
        line(format_args!("  mfex opt hits: 0"));
        line(format_args!("  simple match hits: {}", w.simple_hits));
        line(format_args!("  emc hits: {}", w.exact_hits));
        line(format_args!("  smc hits: 0"));
        line(format_args!("  megaflow hits: {}", w.megaflow_hits));
        line(format_args!("  avg. subtable lookups per megaflow hit: {:.2}", w.subtables_per_lookup()));
        line(format_args!("  miss with success upcall: {}", w.misses));
        line(format_args!("  miss with failed upcall: {}", w.lost));
        line(format_args!("  avg. packets per output batch: {:.2}", w.packets_per_batch()));
        line(format_args!("  idle cycles: {} ({:.2}%)", w.idle_cycles, 100.0 * per(w.idle_cycles, cycles)));
        line(format_args!("  processing cycles: {} ({:.2}%)", w.busy_cycles, 100.0 * per(w.busy_cycles, cycles)));
        if w.received > 0 {
            line(format_args!("  avg cycles per packet: {:.2} ({cycles}/{})", per(cycles, w.received), w.received));
            line(format_args!(
                "  avg processing cycles per packet: {:.2} ({}/{})",
                per(w.busy_cycles, w.received),
                w.busy_cycles,
                w.received
            ));
        }
    }
    Ok(text)
}

/// `dpif-netdev/pmd-stats-clear`. The counters of all workers start again, whichever is named.
pub fn stats_clear(context: &Context, args: &[String]) -> Outcome {
    PmdArguments::parse(context, args, false, &[], &[])?.datapath.reset_stats();
    Ok(String::new())
}

/// `dpif-netdev/pmd-rxq-show`.
pub fn rxq_show(context: &Context, args: &[String]) -> Outcome {
    let arguments = PmdArguments::parse(context, args, true, &[], &[])?;
    let seconds = match arguments.seconds {
        None | Some(0) => LONGEST,
        Some(seconds) => seconds.min(LONGEST).next_multiple_of(5),
    };
    let datapath = &arguments.datapath;
    let isolate = context.configurator.workers().rx_isolate;
    let ports: BTreeMap<_, _> = datapath.ports().into_iter().collect();
    let usage = datapath.usage(seconds);
    let name = |port| ports.get(&port).map_or("?", |port| port.name());
    let enabled = |rx: &RxAssignment| ports.get(&rx.port).is_some_and(|port| port.rx_enabled(rx.queue));
    let mut queues = datapath.rx_assignments();
    queues.retain(|rx| ports.get(&rx.port).is_some_and(|port| port.is_pmd()));
    queues.sort_by(|a, b| (name(a.port), a.queue).cmp(&(name(b.port), b.queue)));
    let mut text = format!("Displaying last {seconds} seconds pmd usage %\n");
    for w in arguments.workers() {
        let own: Vec<_> = queues.iter().filter(|queue| queue.worker == w.number).collect();
        let isolated = isolate && own.iter().any(|queue| queue.pinned);
        let _ = writeln!(text, "pmd thread numa_id {} core_id {}:\n  isolated : {isolated}", w.node, core_of(&w));
        let percent = |share: Option<u8>| share.map_or("NOT AVAIL".into(), |share| format!("{share:>2} %"));
        let mut for_packets = 0;
        for queue in &own {
            let share = usage.queues.get(&(queue.port, queue.queue)).copied().flatten();
            for_packets += share.unwrap_or(0);
            let _ = writeln!(
                text,
                "  port: {:<16}  queue-id: {:>2} {}pmd usage: {}",
                name(queue.port),
                queue.queue,
                if enabled(queue) { "(enabled)   " } else { "(disabled)  " },
                percent(share)
            );
        }
        if !own.is_empty() {
            let busy = usage.workers.get(&w.number).copied().flatten();
            let _ = writeln!(text, "  overhead: {}", percent(busy.map(|busy| busy.saturating_sub(for_packets))));
        }
    }
    Ok(text)
}

/// `dpif-netdev/pmd-rxq-rebalance`.
pub fn rxq_rebalance(context: &Context, args: &[String]) -> Outcome {
    let name = args.first().map(|name| find_or_list(context, name));
    name.unwrap_or_else(|| Ok(context.engine.datapath.clone()))?.rebalance();
    Ok("pmd rxq rebalance requested.\n".into())
}
