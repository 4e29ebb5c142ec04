//! The commands `dpif-netdev/pmd-perf-*`: what workers measure of themselves. Layouts of OVS 3.1. OVS calls a turn an iteration.

use std::fmt::Write as _;
use std::rc::{Rc, Weak};
use std::time::Duration;

use datapath::WorkerStats;
use datapath::perf::{BINS, Iteration, Metric, PerfMetrics, Reason, Supervision, Suspicious};

use super::Context;
use super::pmd::{PmdArguments, core_of, per};
use crate::unixctl::command::Outcome;

/// How often it is looked for suspicious turns.
const INTERVAL: Duration = Duration::from_millis(200);

/// Most suspicious turns of a worker that are logged each time.
const MOST_LOGGED: usize = 16;

/// `dpif-netdev/pmd-perf-show`.
pub fn show(context: &Context, args: &[String]) -> Outcome {
    let arguments = PmdArguments::parse(context, args, false, &["-it", "-ms"], &["-nh"])?;
    let frequency = arguments.datapath.stats().cycles_per_second as f64;
    let measured = arguments.datapath.perf_metrics();
    let length = |option| arguments.other(option).map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let mut text = String::new();
    for w in arguments.workers() {
        let _ = writeln!(
            text,
            "\nTime: {}\nMeasurement duration: {:.3} s\n\npmd thread numa_id {} core_id {}:\n",
            time_of_day(),
            w.counted_for.as_secs_f64(),
            w.node,
            core_of(&w)
        );
        let perf = measured.get(&w.number);
        overall(&mut text, &w, perf.map(|perf| perf.totals()), frequency);
        let Some(perf) = perf else { continue };
        if arguments.other("-nh").is_none() {
            text.push('\n');
            histograms(&mut text, perf);
        }
        if length("-it") > 0 {
            text.push('\n');
            turns(&mut text, &perf.latest_turns(length("-it")));
        }
        if length("-ms") > 0 {
            text.push('\n');
            milliseconds(&mut text, &perf.latest_milliseconds(length("-ms")));
        }
    }
    Ok(text)
}

/// The length of the line above the averages.
const SEPARATOR: usize = 154;

/// Columns of the histograms: the name, the name of the averages, and what is counted.
const COLUMNS: [(&str, &str, Metric); 7] = [
    ("cycles/it", "cycles/it", Metric::TurnCycles),
    ("packets/it", "packets/it", Metric::TurnPackets),
    ("cycles/pkt", "cycles/pkt", Metric::CyclesPerPacket),
    ("pkts/batch", "pkts/batch", Metric::ReceiveBatch),
    ("max vhost qlen", "vhost qlen", Metric::TurnGuestQueue),
    ("upcalls/it", "upcalls/it", Metric::TurnUpcalls),
    ("cycles/upcall", "cycles/upcall", Metric::UpcallCycles),
];

fn histograms(text: &mut String, perf: &PerfMetrics) {
    let totals = perf.totals();
    let columns = COLUMNS.map(|(.., metric)| perf.histogram(metric));
    text.push_str("Histograms\n");
    row(text, COLUMNS.map(|(name, ..)| name.to_owned()));
    for bin in 0..BINS {
        row(
            text,
            columns.map(|column| match column.walls.get(bin) {
                Some(wall) => format!("{wall:<9} {:<11}", column.counts[bin]),
                None => format!("{:<9} {:<11}", ">", column.counts[bin]),
            }),
        );
    }
    if totals.iterations == 0 {
        return;
    }
    let _ = writeln!(text, "{}", "-".repeat(SEPARATOR));
    row(text, COLUMNS.map(|(_, name, _)| name.to_owned()));
    row(
        text,
        [
            (totals.cycles / totals.iterations).to_string(),
            format!("{:.5}", per(totals.packets, totals.iterations)),
            totals.busy_cycles.checked_div(totals.packets).unwrap_or(0).to_string(),
            format!("{:.5}", per(totals.packets, totals.batches)),
            format!("{:.5}", per(totals.guest_queue, totals.iterations)),
            format!("{:.5}", per(totals.upcalls, totals.iterations)),
            totals.upcall_cycles.checked_div(totals.upcalls).unwrap_or(0).to_string(),
        ],
    );
}

/// A line of the histograms.
fn row(text: &mut String, cells: [String; COLUMNS.len()]) {
    let _ = writeln!(text, "   {}", cells.map(|cell| format!("{cell:<21}")).join("  "));
}

/// Turns, the latest one first.
fn turns(text: &mut String, turns: &[Iteration]) {
    let headings = ["cycles", "packets", "cycles/pkt", "pkts/batch", "vhost qlen", "upcalls", "cycles/upcall"];
    let _ = writeln!(text, "   {:<17}   {}", "iter", headings.map(|name| format!("{name:<10}")).join("   "));
    for turn in turns {
        let cells = [
            turn.cycles,
            turn.packets,
            turn.cycles.checked_div(turn.packets).unwrap_or(0),
            turn.packets.checked_div(turn.batches).unwrap_or(0),
            turn.guest_queue,
            turn.upcalls,
            turn.upcall_cycles.checked_div(turn.upcalls).unwrap_or(0),
        ];
        let _ = writeln!(text, "   {:<17}   {}", turn.timestamp, cells.map(|n| format!("{n:<11}")).join("  "));
    }
}

/// Milliseconds, the latest one first.
fn milliseconds(text: &mut String, milliseconds: &[Iteration]) {
    let headings =
        ["iterations", "cycles/it", "Kpps", "cycles/pkt", "pkts/batch", "vhost qlen", "upcalls", "cycles/upcall"];
    let _ = writeln!(text, "   {:<12}   {}", "ms", headings.map(|name| format!("{name:<10}")).join("   "));
    for of in milliseconds {
        let cells = [
            of.iterations,
            of.cycles.checked_div(of.iterations).unwrap_or(0),
            // Packets in a millisecond are thousands in a second.
            of.packets,
            of.busy_cycles.checked_div(of.packets).unwrap_or(0),
            of.packets.checked_div(of.batches).unwrap_or(0),
            of.guest_queue.checked_div(of.iterations).unwrap_or(0),
            of.upcalls,
            of.upcall_cycles.checked_div(of.upcalls).unwrap_or(0),
        ];
        let _ = writeln!(text, "   {:<12}   {}", of.timestamp, cells.map(|n| format!("{n:<11}")).join("  "));
    }
}

/// How `dpif-netdev/pmd-perf-log-set` is used.
const USAGE: &str = "Usage: ovs-appctl dpif-netdev/pmd-perf-log-set \
                     [on|off] [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]";

/// `dpif-netdev/pmd-perf-log-set`. What is not named stays as it is.
pub fn log_set(context: &Context, args: &[String]) -> Outcome {
    let datapath = &context.engine.datapath;
    let (on, settings) = log_settings(datapath.supervision(), args).ok_or_else(|| USAGE.to_owned())?;
    datapath.set_supervision(on, settings);
    let (on, Supervision { before, after, extends, longest, fullest }) = datapath.supervision();
    let on = if on { "on" } else { "off" };
    tracing::info!(
        target: "pmd_perf",
        "pmd-perf-log-set: {on}, before={before}, after={after}, extend={extends}, us_thr={longest}, q_thr={fullest}"
    );
    Ok(String::new())
}

/// The settings after these arguments. `None` where these are wrong.
fn log_settings((mut on, mut settings): (bool, Supervision), args: &[String]) -> Option<(bool, Supervision)> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || args.next()?.parse::<u32>().ok();
        match arg.as_str() {
            "on" => on = true,
            "off" => on = false,
            "-e" => settings.extends = true,
            "-ne" => settings.extends = false,
            "-b" => settings.before = number()? as usize,
            "-a" => settings.after = number()? as usize,
            "-us" => settings.longest = number()?,
            "-q" => settings.fullest = number()?,
            _ => return None,
        }
    }
    Some((on, settings))
}

/// Logs suspicious turns for as long as the daemon runs, on the management thread.
pub fn watch(context: &Rc<Context>) {
    let context = Rc::downgrade(context);
    tokio::task::spawn_local(async move {
        while let Some(context) = Weak::upgrade(&context) {
            log_suspicious(&context.engine.datapath);
            drop(context);
            tokio::time::sleep(INTERVAL).await;
        }
    });
}

fn log_suspicious(datapath: &datapath::Datapath) {
    let suspicious = datapath.take_suspicious(MOST_LOGGED);
    if suspicious.is_empty() {
        return;
    }
    let frequency = datapath.worker_stats().cycles_per_second.max(1);
    for (worker, Suspicious { turn, cycles, reason, around }) in suspicious {
        let reason = match reason {
            Reason::Cycles => "Excessive total cycles",
            Reason::GuestQueue => "Vhost RX queue full",
        };
        let duration = u128::from(cycles) * 1_000_000 / u128::from(frequency);
        tracing::warn!(
            target: "pmd_perf", worker, "Suspicious iteration ({reason}): iter={turn} duration={duration} us"
        );
        if !around.is_empty() {
            let mut text = String::new();
            turns(&mut text, &around);
            tracing::warn!(target: "pmd_perf", lines = text, "Neighborhood of suspicious iteration:");
        }
    }
}
/// The time of day in UTC.
fn time_of_day() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs() % 86_400;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{hour:02}:{minute:02}:{second:02}.{:03}", now.subsec_millis())
}

/// The counters. `measured`: the sums of what is measured in detail, if it is.
fn overall(text: &mut String, w: &WorkerStats, measured: Option<Iteration>, frequency: f64) {
    let seconds = w.counted_for.as_secs_f64();
    if seconds == 0.0 {
        return;
    }
    let cycles = w.busy_cycles + w.idle_cycles;
    let idle = w.turns.saturating_sub(w.busy_turns);
    let ratio = |n: f64, of: f64| if of == 0.0 { 0.0 } else { n / of };
    let micros = |cycles: u64| cycles as f64 / frequency * 1e6;
    let slept = w.slept.as_micros() as f64;
    let mut line = |name: &str, value: u64, more: String| {
        let _ = writeln!(text, "  {name:<19} {value:>12}{more}");
    };
    line("Iterations:", w.turns, format!("  ({:.2} us/it)", ratio(micros(cycles) + slept, w.turns as f64)));
    let used = 100.0 * cycles as f64 / seconds / frequency;
    line("- Used TSC cycles:", cycles, format!("  ({used:5.1} % of total cycles)"));
    line("- idle iterations:", idle, format!("  ({:5.1} % of used cycles)", 100.0 * per(w.idle_cycles, cycles)));
    line(
        "- busy iterations:",
        w.busy_turns,
        format!("  ({:5.1} % of used cycles)", 100.0 * per(w.busy_cycles, cycles)),
    );
    line("- sleep iterations:", w.sleeps, format!("  ({:5.1} % of iterations)", 100.0 * per(w.sleeps, w.turns)));
    let average = ratio(slept, w.sleeps as f64);
    line("Sleep time (us):", slept as u64, format!("  ({average:3.0} us/iteration avg.)"));
    line(
        "Rx packets:",
        w.received,
        match w.received {
            0 => String::new(),
            n => format!("  ({:.0} Kpps, {:.0} cycles/pkt)", n as f64 / seconds / 1000.0, per(w.busy_cycles, n)),
        },
    );
    if w.received > 0 {
        let passes = w.received + w.recirculated;
        let share = |n: u64| format!("  ({:5.1} %)", 100.0 * per(n, passes));
        line("Datapath passes:", passes, format!("  ({:.2} passes/pkt)", per(passes, w.received)));
        line("- PHWOL hits:", 0, share(0));
        line("- MFEX Opt hits:", 0, share(0));
        line("- Simple Match hits:", w.simple_hits, share(w.simple_hits));
        line("- EMC hits:", w.exact_hits, share(w.exact_hits));
        line("- SMC hits:", 0, share(0));
        let hits = 100.0 * per(w.megaflow_hits, passes);
        let lookups = w.subtables_per_lookup();
        line("- Megaflow hits:", w.megaflow_hits, format!("  ({hits:5.1} %, {lookups:.2} subtbl lookups/hit)"));
        let misses = 100.0 * per(w.misses, passes);
        let upcall = measured.map_or(0.0, |of| ratio(micros(of.upcall_cycles), of.upcalls as f64));
        line("- Upcalls:", w.misses, format!("  ({misses:5.1} %, {upcall:.1} us/upcall)"));
        line("- Lost upcalls:", w.lost, share(w.lost));
    }
    if w.sent > 0 {
        line("Tx packets:", w.sent, format!("  ({:.0} Kpps)", w.sent as f64 / seconds / 1000.0));
        line("Tx batches:", w.batches_sent, format!("  ({:.2} pkts/batch)", w.packets_per_batch()));
    } else {
        line("Tx packets:", 0, "\n".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_laid_out_as_in_ovs() {
        let mut text = String::new();
        histograms(&mut text, &PerfMetrics::default());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2 + BINS, "without turns, there are no averages");
        assert!(lines[1].starts_with("   cycles/it              packets/it             cycles/pkt  "), "{}", lines[1]);
        assert!(lines[2].starts_with("   499       0            0         0            100       0  "), "{}", lines[2]);
        assert!(
            lines[BINS].starts_with("   24000000  0            1000      0            30000     0  "),
            "{}",
            lines[BINS]
        );
        assert!(lines[BINS + 1].starts_with("   >         0            >         0  "), "{}", lines[BINS + 1]);
        assert!(lines[1..].iter().all(|line| line.len() == lines[1].len()));
    }

    #[test]
    fn histories_are_laid_out_as_in_ovs() {
        let mut turn = Iteration { timestamp: 7, iterations: 1, cycles: 900, busy_cycles: 900, ..Iteration::default() };
        (turn.packets, turn.batches, turn.guest_queue, turn.upcalls, turn.upcall_cycles) = (6, 2, 40, 3, 6000);
        let (mut by_turn, mut by_ms) = (String::new(), String::new());
        turns(&mut by_turn, &[turn]);
        milliseconds(&mut by_ms, &[turn]);
        let numbers = |text: &str| {
            let line = text.lines().nth(1).unwrap_or_default();
            line.split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<u64>>()
        };
        assert_eq!(numbers(&by_turn), [7, 900, 6, 150, 3, 40, 3, 2000]);
        assert_eq!(numbers(&by_ms), [7, 1, 900, 6, 150, 3, 40, 3, 2000]);
        assert!(by_turn.starts_with("   iter                cycles       packets      cycles/pkt "), "{by_turn}");
        assert!(by_ms.starts_with("   ms             iterations   cycles/it    Kpps "), "{by_ms}");
    }

    #[test]
    fn settings_of_the_log_are_read() {
        let default = (false, Supervision::default());
        let read = |text: &str| {
            let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            log_settings(default, &words)
        };
        assert_eq!(read(""), Some(default));
        let set = Supervision { before: 1, after: 2, extends: true, longest: 30, fullest: 512 };
        assert_eq!(read("on -b 1 -a 2 -e -us 30 -q 512"), Some((true, set)));
        assert_eq!(read("-e -ne off"), Some(default));
        for wrong in ["-b", "-b x", "-a -1", "-us 99999999999", "maybe", "-q"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
