//! The JSON of the dashboard, made from what commands report. docs/dashboard.md has the paths and shapes.
//!
//! What bounds a request: long answers are made in pieces as the peer reads them (`/api/now`, `/api/history`, `/api/topology`,
//! `/api/tables`); what takes longer is done by other threads, few at a time ([`http::Answer::Later`](crate::http::Answer)), and is bounded
//! itself: rankings by the time that they may take (`daemon::ranking`), a search by the flows that it looks at ([`search`]), an explanation
//! by its steps ([`explain`]).
//!
//! - [`explain`]: what becomes of a packet
//! - [`sampler`]: measures what is shown to all
//! - [`search`]: finds flows by their text
//! - [`topology`]: bridges, ports, mirrors

pub mod explain;
pub mod sampler;
pub mod search;
pub mod topology;

use std::time::UNIX_EPOCH;

use datapath::DropReason;

use super::commands::flows::{in_turn, list, literal};
use super::commands::{Context, activity};
use crate::dashboard::history::{MOST_PORTS, Span, lost};
use crate::dashboard::report::{DropNow, Now, PortNow};
use crate::http::{Answer, Query};
use crate::report::rates::StatsRates;
use crate::unixctl::Pieces;
use crate::unixctl::command::Reply;

/// Ports or tables that are written at a time.
const PIECE: usize = 64;

/// Runs what reads a query of these parameters.
fn with_query(text: Option<&str>, names: &[&str], run: impl FnOnce(&Query) -> Result<Answer, String>) -> Answer {
    Query::parse(text, names).and_then(|query| run(&query)).unwrap_or_else(Answer::Refused)
}

/// A command's reply as an answer. What a command says is wrong is wrong with its arguments.
fn of_reply(reply: Reply) -> Answer {
    match reply {
        Reply::Now(Ok(text)) => Answer::Now(Ok(text)),
        Reply::Now(Err(problem)) => Answer::Refused(problem),
        Reply::Later(answer) => Answer::Later(answer),
        Reply::Pieces(pieces) | Reply::Listing(_, pieces) => Answer::Pieces(pieces),
        Reply::Stream(_) => Answer::Now(Err("this has no end, and is not answered here".into())),
    }
}

/// The JSON of a value whose strings and numbers always have one.
fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// `/api/now`: what the last sample says.
pub fn now(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &[], |_| {
        let latest = context.history.borrow().latest().unwrap_or_default();
        let unapplied = context.configurator.unapplied();
        let stats = latest.measurement.stats.clone();
        let since_epoch = context.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Now {
            version: env!("CARGO_PKG_VERSION").into(),
            started: since_epoch.as_secs_f64(),
            uptime_s: context.started.elapsed().as_secs(),
            changes: context.configurator.changes(),
            errors: unapplied.errors.iter().cloned().chain(context.http.problem()).collect(),
            sample: latest.number,
            time: latest.time,
            drops: DropReason::ALL.iter().filter_map(|&reason| drop_now(reason, &stats)).collect(),
            stats,
        };
        let (mut head, mut from) = (to_json(&now), 0);
        head.pop();
        let next = move || {
            let ports = latest.measurement.ports.get(from..)?;
            let piece: Vec<_> = ports.iter().take(PIECE).map(|port| to_json(&port_now(port))).collect();
            from += PIECE;
            (!piece.is_empty()).then_some(piece)
        };
        Ok(Answer::Pieces(in_turn(vec![literal(head + ",\"ports\":["), joined(next), literal("]}")])))
    })
}

fn drop_now(reason: DropReason, stats: &StatsRates) -> Option<DropNow> {
    let packets_per_s = *stats.total.drops.get(reason.name())?;
    let (stage, meaning) = (reason.stage().name(), reason.describe());
    Some(DropNow { reason: reason.name(), stage, meaning, packets_per_s })
}

fn port_now(port: &crate::report::measurement::PortRates) -> PortNow<'_> {
    PortNow {
        bridge: &port.bridge,
        name: &port.name,
        link: &port.link,
        rx_packets: port.rx_packets,
        tx_packets: port.tx_packets,
        rx_bytes: port.rx_bytes,
        tx_bytes: port.tx_bytes,
        dropped: lost(port),
    }
}

/// Texts that come in lists, with commas between them.
fn joined(mut next: impl FnMut() -> Option<Vec<String>> + 'static) -> Pieces {
    let mut comma = "";
    Box::new(move |text| {
        let Some(items) = next() else { return false };
        for item in items {
            text.push_str(comma);
            text.push_str(&item);
            comma = ",";
        }
        true
    })
}

/// `/api/history`: the last hour, or what is new of it.
pub fn history(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &["after"], |query| {
        let after = query.number("after", 0..=u64::MAX, 0)?;
        let (history, span) = (context.history.clone(), context.history.borrow().since(after));
        let head = {
            let history = history.borrow();
            let Span { from, to } = span;
            let (times, switch) = (to_json(&history.times(span)), to_json(&history.switch(span)));
            format!("{{\"from\":{from},\"to\":{to},\"time\":{times},\"switch\":{switch},\"ports\":[")
        };
        // Which port stands where may change between two pieces: each is written once.
        let (mut at, mut written) = (0, Vec::new());
        let next = move || {
            at += 1;
            let port = history.borrow().port(at - 1, span).filter(|_| at <= MOST_PORTS)?;
            let id = (port.bridge.clone(), port.name.clone());
            if written.contains(&id) {
                return Some(Vec::new());
            }
            written.push(id);
            Some(vec![to_json(&port)])
        };
        Ok(Answer::Pieces(in_turn(vec![literal(head), joined(next), literal("]}")])))
    })
}

/// `/api/tables`: the OpenFlow tables in use.
pub fn tables(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &[], |_| {
        let latest = context.history.borrow().latest().unwrap_or_default();
        let mut from = 0;
        let next = move || {
            let piece: Vec<_> = latest.tables.iter().skip(from).take(PIECE).cloned().collect();
            from += PIECE;
            (!piece.is_empty()).then_some(piece)
        };
        Ok(Answer::Pieces(in_turn(vec![literal("{\"tables\":["), list(next, |table| table), literal("]}")])))
    })
}

/// `/api/top`: what has the most traffic.
pub fn top(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &["of", "most", "by", "port", "bridge", "rule"], |query| {
        let of = query.get("of").ok_or("of=flows, rules, drops or pairs?")?;
        let options = query.words().filter(|word| !word.starts_with("of="));
        let words: Vec<_> = std::iter::once(of.to_owned()).chain(options).collect();
        Ok(of_reply(activity::top(context, &words)))
    })
}
