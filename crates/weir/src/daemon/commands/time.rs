//! The commands on the clock, for tests: `time/stop` and `time/warp`.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Context;
use crate::daemon::aging;
use crate::daemon::engine::Engine;
use crate::daemon::exporter;
use crate::daemon::{bonds, path_checks, spanning_tree};
use crate::unixctl::command::{Outcome, Reply};

/// How long a step waits for packets under way, or for what the step before has made due.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a step leaves the management thread to its other tasks, so that they do what is due.
const PAUSE: Duration = Duration::from_millis(1);

const NO_DUMMIES: &str = "the clock is the system's; only a daemon started with --enable-dummy has one to stop";

/// `time/stop`.
pub fn stop(context: &Context, _: &[String]) -> Outcome {
    context.engine.timer.warp_clock().ok_or(NO_DUMMIES)?.stop();
    Ok(String::new())
}

/// `time/warp`. What a step makes due happens before the next step, and before the reply.
pub fn warp(context: &Context, args: &[String]) -> Reply {
    let steps = match Steps::parse(args) {
        Some(steps) => steps,
        None => return Reply::Now(Err("invalid MSECS".into())),
    };
    if context.engine.timer.warp_clock().is_none() {
        return Reply::Now(Err(NO_DUMMIES.into()));
    }
    let (reply, answer) = oneshot::channel();
    let engine = context.engine.clone();
    tokio::task::spawn_local(async move {
        for step in steps {
            take(&engine, step);
            let began = Instant::now();
            tokio::time::sleep(PAUSE).await;
            while engine.timer.is_working() && began.elapsed() < SETTLE_TIMEOUT {
                tokio::time::sleep(PAUSE).await;
            }
        }
        // The receiver may have been dropped.
        let _ = reply.send(Ok("warped".into()));
    });
    Reply::Later(answer)
}

/// Moves the clock and does what that makes due.
fn take(engine: &Engine, step: Duration) {
    let Some(clock) = engine.timer.warp_clock() else { return };
    // Packets that came before the warp are handled at the old time.
    engine.datapath.settle(SETTLE_TIMEOUT);
    clock.warp(step);
    path_checks::run(&engine.switch);
    spanning_tree::run(&engine.switch);
    bonds::run(&engine.switch);
    aging::forget_neighbours(&engine.switch, engine.timer.now());
    engine.switch.run(engine.timer.now());
    engine.datapath.settle(SETTLE_TIMEOUT);
    // What packets of the step have made due: answers, and paths that are up or down by them.
    path_checks::run(&engine.switch);
    spanning_tree::run(&engine.switch);
    engine.datapath.settle(SETTLE_TIMEOUT);
    path_checks::run(&engine.switch);
    spanning_tree::run(&engine.switch);
    exporter::run(&engine.switch);
}

/// The steps of a warp, in milliseconds.
#[derive(Debug)]
pub(super) struct Steps {
    left: u64,
    step: u64,
}

impl Steps {
    /// From `[TOTAL] STEP`: without a total it is one step.
    pub(super) fn parse(args: &[String]) -> Option<Steps> {
        let numbers: Vec<u64> = args.iter().map(|arg| arg.parse().ok()).collect::<Option<_>>()?;
        match numbers[..] {
            [step] if step > 0 => Some(Steps { left: step, step }),
            // A total of zero counts as none, as in OVS.
            [0, step] if step > 0 => Some(Steps { left: step, step }),
            [total, step] if step > 0 => Some(Steps { left: total, step }),
            _ => None,
        }
    }
}

impl Iterator for Steps {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let step = self.step.min(self.left);
        self.left -= step;
        (step > 0).then(|| Duration::from_millis(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(args: &[&str]) -> Option<Vec<u128>> {
        let args: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
        Steps::parse(&args).map(|steps| steps.map(|step| step.as_millis()).collect())
    }

    #[test]
    fn a_large_warp_is_cut_into_steps() {
        assert_eq!(steps(&["500"]), Some(vec![500]));
        assert_eq!(steps(&["1000", "300"]), Some(vec![300, 300, 300, 100]));
        assert_eq!(steps(&["100", "300"]), Some(vec![100]));
        assert_eq!(steps(&["0", "300"]), Some(vec![300]));
        for bad in [&["0"][..], &["-5"], &["x"], &["100", "0"], &["-1", "5"]] {
            assert_eq!(steps(bad), None, "{bad:?}");
        }
    }
}
