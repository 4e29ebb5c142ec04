//! `mdb/...`: multicast groups that bridges have learnt.

use std::fmt::Write as _;

use protocols::mcast::{Entry, HEADING};

use super::Context;
use super::ports::port_name;
use crate::unixctl::Command;
use crate::unixctl::Reply;
use crate::unixctl::command::Outcome;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "mdb/show" "BRIDGE" (1, 1) quick!(show), "Multicast groups and routers that a bridge has learnt.";
    "mdb/flush" "[BRIDGE]" (0, 1) now!(flush), "Forgets the multicast groups and routers of one bridge or all.";
};

/// In OVS's words.
const DISABLED: &str = "multicast snooping is disabled";

/// Entries that are shown at a time.
const PIECE: usize = 256;

/// The table as it is now, put into words while the client reads.
fn show(context: &Context, args: &[String]) -> Reply {
    let entries = context.bridge(&args[0]).and_then(|bridge| bridge.multicast_entries().ok_or(DISABLED.to_owned()));
    let entries = match entries {
        Ok(entries) => entries,
        Err(problem) => return Reply::Now(Err(problem)),
    };
    let now = context.engine.clock.now();
    let bytes = entries.len() * size_of::<Entry>();
    let (mut entries, mut heading) = (entries.into_iter(), HEADING);
    let piece = move |text: &mut String| {
        text.push_str(std::mem::take(&mut heading));
        for entry in entries.by_ref().take(PIECE) {
            let _ = writeln!(text, "{}", entry.show(now, |port| port_name(openflow::OfPort(port))));
        }
        entries.len() > 0
    };
    Reply::Listing(bytes, Box::new(piece))
}

fn flush(context: &Context, args: &[String]) -> Outcome {
    for bridge in context.bridges(args.first())? {
        if !bridge.flush_multicast() && !args.is_empty() {
            return Err(DISABLED.into());
        }
    }
    Ok("table successfully flushed".into())
}
