//! `dpctl/...`: tracked connections, as ovs-dpctl(8) shows, ends and limits them (CONNECTION TRACKING TABLE COMMANDS).
//!
//! What goes over all connections does so in portions, while the client reads; no lock is held in between, and nothing is
//! kept of connections that were shown.
//!
//! - `arguments`: options, an optional datapath, numbers
//! - `filter`: from text to the connections that are meant
//! - `fragments`: `dpctl/ipf-...`
//! - `settings`: limits, and the check of TCP sequence numbers
//! - `show`: connections and counts of them

use std::sync::Arc;

use ::conntrack::Tuple;
use ::conntrack::table::slot::Contents;
use ::conntrack::table::{Reference, Table};
use datapath::Datapath;
use datapath::conntrack::flush::{Flush, FlushOne};

use super::Context;
use super::dpctl_error as error;
use crate::unixctl::command::{Outcome, Reply};
use crate::unixctl::{Command, Pieces};

/// Entry for fuzzing: any words as arguments of these commands.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(args: &[String]) {
    if let Ok(arguments) = arguments::Arguments::parse(args) {
        let _ = filter::parse(&arguments.rest);
        let _ = settings::parse_limits(&arguments.rest);
    }
    args.iter().for_each(|text| drop(settings::parse_zones(text)));
}

pub(super) mod arguments;
mod filter;
mod fragments;
mod settings;
mod show;

use arguments::{Arguments, zone_argument};

const ANY: usize = usize::MAX;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpctl/dump-conntrack" "[-m] [-s] [dp] [zone=N]" (0, 4) pieces!(dump), "Tracked connections.";
    "dpctl/flush-conntrack" "[dp] [zone=N] [mark=X[/M]] [labels=X[/M]] [ct-orig-tuple] [ct-reply-tuple]" (0, 6) quick!(flush),
        "Ends tracked connections: all, or those of a zone, with a mark or label, or with such tuples.";
    "dpctl/ct-stats-show" "[-m] [dp] [zone=N]" (0, 3) pieces!(stats), "Tracked connections by protocol.";
    "dpctl/ct-bkts" "[dp] [gt=N]" (0, 2) pieces!(buckets), "Tracked connections by bucket.";
    "dpctl/ct-set-maxconns" "[dp] maxconns" (1, 2) now!(settings::set_maxconns),
        "Sets how many connections there may be.";
    "dpctl/ct-get-maxconns" "[dp]" (0, 1) now!(settings::get_maxconns), "How many connections there may be.";
    "dpctl/ct-get-nconns" "[dp]" (0, 1) now!(settings::get_nconns), "How many connections there are.";
    "dpctl/ct-enable-tcp-seq-chk" "[dp]" (0, 1) now!(settings::enable_tcp_seq_chk),
        "Has the sequence numbers of TCP checked.";
    "dpctl/ct-disable-tcp-seq-chk" "[dp]" (0, 1) now!(settings::disable_tcp_seq_chk),
        "Has the sequence numbers of TCP not checked.";
    "dpctl/ct-get-tcp-seq-chk" "[dp]" (0, 1) now!(settings::get_tcp_seq_chk),
        "Whether the sequence numbers of TCP are checked.";
    "dpctl/ct-enable-fusing" "[dp]" (0, 1) now!(settings::enable_fusing),
        "Has packets of established connections take the short way, as from the start.";
    "dpctl/ct-disable-fusing" "[dp]" (0, 1) now!(settings::disable_fusing),
        "Has every packet classified and tracked the long way, for comparisons.";
    "dpctl/ct-set-limits" "[dp] [default=L] [zone=N,limit=L]..." (1, ANY) now!(settings::set_limits),
        "Sets how many connections zones may have.";
    "dpctl/ct-del-limits" "[dp] zone=N1[,N2]..." (1, 2) now!(settings::del_limits),
        "Has the default limit hold for zones again.";
    "dpctl/ct-get-limits" "[dp] [zone=N1[,N2]...]" (0, 2) now!(settings::get_limits),
        "How many connections zones may have, and have.";
    "dpctl/ipf-set-enabled" "[dp] v4|v6" (1, 2) now!(fragments::set_enabled), "Has fragments reassembled for tracking.";
    "dpctl/ipf-set-disabled" "[dp] v4|v6" (1, 2) now!(fragments::set_disabled), "Has each fragment tracked by itself.";
    "dpctl/ipf-set-min-frag" "[dp] v4|v6 minfragment" (2, 3) now!(fragments::set_min_size),
        "Sets how short a fragment may be that is not the last.";
    "dpctl/ipf-set-max-nfrags" "[dp] maxfrags" (1, 2) now!(fragments::set_max),
        "Sets how many fragments may wait for others.";
    "dpctl/ipf-get-status" "[-m] [dp]" (0, 2) now!(fragments::status),
        "Settings and counters of reassembly; with -m, the datagrams that are not whole.";
};

/// Places for connections that are looked at before others may have a turn.
const PORTION: usize = 64;

/// A walk over the connections of one zone or all. One that is there all the time is met once.
struct Walk {
    datapath: Arc<Datapath>,
    zone: Option<u16>,
    cursor: u32,
}

impl Walk {
    fn new(datapath: Arc<Datapath>, zone: Option<u16>) -> Walk {
        Walk { datapath, zone, cursor: 0 }
    }

    /// Goes on for some places; whether there are more.
    fn step(&mut self, mut each: impl FnMut(&Table, Reference, &Contents)) -> bool {
        let (table, now) = (&self.datapath.conntrack().tracker.table, self.datapath.now());
        let zone = self.zone;
        let is_meant = |orig: &Tuple| zone.is_none_or(|zone| zone == orig.zone());
        table.dump(&mut self.cursor, PORTION, |connection, contents| {
            if is_meant(&contents.orig) && !table.has_ended(connection, now) {
                each(table, connection, contents);
            }
        })
    }
}

fn dump(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let mut arguments = Arguments::parse(args)?;
    let zone = arguments.take_last(zone_argument);
    let datapath = arguments.after_datapath(context, 1)?;
    let style = show::Style { more: arguments.more, statistics: arguments.statistics };
    let mut walk = Walk::new(datapath, zone);
    Ok(Box::new(move |text| {
        let now = walk.datapath.now();
        walk.step(|table, connection, contents| {
            let seconds = table.seconds_left(connection, now).unwrap_or(0);
            show::connection(text, contents, seconds, style);
        })
    }))
}

fn stats(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let mut arguments = Arguments::parse(args)?;
    let (mut zone, mut verbose) = (None, arguments.more);
    loop {
        if arguments.take_last(|text| text.starts_with("verbose").then_some(())).is_some() {
            verbose = true;
        } else if let Some(number) = arguments.take_last(zone_argument) {
            zone = Some(number);
        } else {
            break;
        }
    }
    let datapath = arguments.after_datapath(context, 1)?;
    let (mut walk, mut counts) = (Walk::new(datapath, zone), show::Counts::default());
    Ok(Box::new(move |text| {
        let more = walk.step(|_, _, contents| counts.add(contents));
        if !more {
            text.push_str(&counts.text(verbose));
        }
        more
    }))
}

fn buckets(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let mut arguments = Arguments::parse(args)?;
    let above = arguments.take_last(|text| arguments::number(text.strip_prefix("gt=")?)).unwrap_or(0);
    let datapath = arguments.after_datapath(context, 1)?;
    let (mut walk, mut counts) = (Walk::new(datapath, None), show::Buckets::default());
    Ok(Box::new(move |text| {
        let more = walk.step(|table, _, contents| counts.add(table.bucket(&contents.orig)));
        if !more {
            text.push_str(&counts.text(above));
        }
        more
    }))
}

fn flush(context: &Context, args: &[String]) -> Reply {
    begin_flush(context, args).unwrap_or_else(|problem| Reply::Now(Err(problem)))
}

fn begin_flush(context: &Context, args: &[String]) -> Result<Reply, String> {
    let mut arguments = Arguments::parse(args)?;
    let datapath = arguments.take_datapath(context);
    let filter = filter::parse(&arguments.rest).map_err(|e| error(context, &format!("{e} (Invalid argument)")))?;
    let done = Outcome::Ok(String::new());
    match datapath.conntrack().flush_one(&filter, datapath.now()) {
        FlushOne::Removed => return Ok(Reply::Now(done)),
        FlushOne::NotFound => {
            tracing::warn!(target: "conntrack", "Must flush tuple using the original pre-NATed tuple");
            return Err(error(context, "failed to flush conntrack (No such file or directory)"));
        }
        FlushOne::Many => {}
    }
    let mut flush = Flush::new(filter);
    Ok(Reply::Pieces(Box::new(move |_| flush.step(datapath.conntrack()))))
}
