//! `upcall/...`, `revalidator/...` and `memory/show`: what lies between the datapath and the tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ofproto::{FlowRequest, RevalidationStats};
use tokio::sync::oneshot;

use super::Context;
use super::datapaths::of_bridges;
use crate::places::Places;
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "upcall/show" "" (0, 0) now!(show), "Flows of the datapath, their limit, and how long a round over them takes.";
    "upcall/disable-megaflows" "" (0, 0) slow!(|context, _| set_megaflows(context, false)),
        "Makes a flow of its own for each connection; for tests.";
    "upcall/enable-megaflows" "" (0, 0) slow!(|context, _| set_megaflows(context, true)),
        "Makes flows that many connections share.";
    "upcall/disable-ufid" "" (0, 0) now!(disable_ufid), "Has flows shown whole where they are logged; for tests.";
    "upcall/enable-ufid" "" (0, 0) now!(enable_ufid), "Has them shown by their identifiers.";
    "upcall/set-flow-limit" "flow-limit-number" (1, 1) now!(set_flow_limit),
        "Sets the most flows that the datapath may have.";
    "revalidator/wait" "" (0, 0) slow!(|context, _| when_done(context, FlowRequest::Revalidate, String::new)),
        "Returns when all datapath flows are up to date.";
    "revalidator/purge" "" (0, 0) slow!(|context, _| when_done(context, FlowRequest::Purge, String::new)),
        "Removes every datapath flow.";
    "revalidator/pause" "" (0, 0) now!(pause), "Leaves datapath flows as they are; for tests.";
    "revalidator/resume" "" (0, 0) now!(resume), "Brings datapath flows up to date again.";
    "memory/show" "" (0, 0) quick!(|context, _| Reply::Now(Ok(memory(context)))), "How many there are of what takes memory.";
};

fn show(context: &Context, _: &[String]) -> Outcome {
    let (stats, datapath) = (context.engine.switch.revalidation_stats(), &context.engine.datapath);
    let mut text = String::new();
    for kind in of_bridges(context) {
        let _ = write!(
            text,
            "{}:\n  flows         : (current {current}) (avg {}) (max {}) (limit {})\n  \
             dump duration : {}ms\n  ufid enabled : {}\n\n",
            kind.datapath_name(),
            stats.average_flows,
            stats.most_flows,
            datapath.max_flows(),
            stats.duration.as_millis(),
            !context.engine.switch.has_whole_dumps(),
            current = datapath.flow_count(),
        );
        for (keys, number) in keys(&stats, datapath.flow_count()).into_iter().zip(1..) {
            let _ = writeln!(text, "  {number}: (keys {keys})");
        }
    }
    Ok(text)
}

/// Requests that wait for a round over all flows, also for clients that have gone.
static PLACES: Places = Places::new(64);

/// How many flows each revalidator has: one has all, several have what they looked at in the last round.
fn keys(stats: &RevalidationStats, flows: usize) -> Vec<usize> {
    if stats.by_thread.len() > 1 { stats.by_thread.clone() } else { vec![flows] }
}

fn set_megaflows(context: &Context, enabled: bool) -> Reply {
    context.engine.switch.set_megaflows(enabled);
    let done = if enabled { "megaflows enabled\n" } else { "megaflows disabled\n" };
    when_done(context, FlowRequest::Purge, || done.into())
}

/// Answers when the thread that keeps flows up to date has done something with all of them. Others are served meanwhile.
/// `answer` is called by that thread.
pub(super) fn when_done(
    context: &Context,
    request: FlowRequest,
    answer: impl FnOnce() -> String + Send + 'static,
) -> Reply {
    let Some(place) = PLACES.take() else {
        let problem = format!("{} others wait for all flows already; try again", PLACES.most());
        return Reply::Now(Err(problem));
    };
    let (reply, outcome) = oneshot::channel();
    let done = move || {
        drop(place);
        // The client may have gone.
        let _ = reply.send(Ok(answer()));
    };
    context.engine.switch.request(request, Box::new(done));
    Reply::Later(outcome)
}

fn disable_ufid(context: &Context, _: &[String]) -> Outcome {
    context.engine.switch.set_whole_dumps(true);
    Ok("Datapath dumping tersely using UFID disabled".into())
}

fn enable_ufid(context: &Context, _: &[String]) -> Outcome {
    context.engine.switch.set_whole_dumps(false);
    Ok("Datapath dumping tersely using UFID enabled for supported datapaths".into())
}

fn set_flow_limit(context: &Context, args: &[String]) -> Outcome {
    let limit = args[0].parse().map_err(|_| format!("{}: not a number of flows", args[0]))?;
    context.engine.datapath.set_max_flows(limit);
    Ok(format!("set flow_limit to {}\n", context.engine.datapath.max_flows()))
}

fn pause(context: &Context, _: &[String]) -> Outcome {
    context.engine.switch.set_paused(true);
    Ok(String::new())
}

fn resume(context: &Context, _: &[String]) -> Outcome {
    context.engine.switch.set_paused(false);
    Ok(String::new())
}

fn memory(context: &Context) -> String {
    let bridges = context.engine.switch.bridges();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    counts.insert("handlers", context.engine.datapath.handlers());
    counts.insert("revalidators", context.engine.switch.revalidators());
    counts.insert("udpif keys", context.engine.datapath.flow_count());
    for bridge in &bridges {
        *counts.entry("ports").or_default() += bridge.ports().len();
        *counts.entry("rules").or_default() += bridge.flow_count();
    }
    let parts: Vec<_> = counts.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name}:{n}")).collect();
    parts.join(" ")
}
