//! Measures what the dashboard shows to all who look, every [`INTERVAL`], for as long as there is to be an HTTP server.
//!
//! It runs on the management thread, and looks after everything else between some ports: a device may ask the kernel for its counters.
//! Without a server it reads nothing, and nothing is kept.

use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::yield_now;

use crate::daemon::commands::metrics::tables_in_use;
use crate::daemon::commands::{Context, reports, stats};
use crate::dashboard::history::INTERVAL;
use crate::dashboard::report::TableRates;
use crate::report::measurement::Reports;
use crate::report::rates::per_second;
use crate::report::{PortShow, Ports};

/// How long the first sample is measured, so that a page shows something soon.
const FIRST: Duration = Duration::from_secs(1);

/// Ports that are read at a time.
const PIECE: usize = 16;

/// Samples for as long as the daemon runs.
pub fn watch(context: &Rc<Context>) {
    let context = Rc::downgrade(context);
    tokio::task::spawn_local(async move {
        let mut before = None;
        while let Some(context) = Weak::upgrade(&context) {
            let pause = if before.is_some() { INTERVAL } else { FIRST };
            before = match context.http.is_wanted() {
                true => Some(sample(&context, before).await),
                false => {
                    context.history.borrow_mut().clear();
                    None
                }
            };
            drop(context);
            tokio::time::sleep(pause).await;
        }
    });
}

/// What was read, and when.
struct Read {
    at: Instant,
    reports: Reports,
    /// Lookups and matches of each table, by bridge and number.
    tables: HashMap<(Rc<str>, u8), (u64, u64)>,
}

async fn sample(context: &Context, before: Option<Read>) -> Read {
    let at = Instant::now();
    let stats = stats::stats(context);
    let ports = Ports { ports: ports(context).await };
    let reports = Reports { stats, ports, ..Reports::default() };
    let (known, time) = match &before {
        Some(before) => (Some(&before.tables), at.duration_since(before.at)),
        None => (None, Duration::ZERO),
    };
    let (counts, tables) = tables(context, known, time).await;
    if let Some(before) = &before {
        let measurement = reports.since(&before.reports, time);
        context.history.borrow_mut().add(measurement, tables, SystemTime::now());
    }
    Read { at, reports, tables: counts }
}

/// What all ports count; those that could not be opened come last, without counters.
async fn ports(context: &Context) -> Vec<PortShow> {
    let unapplied = context.configurator.unapplied();
    let drops = reports::drops_by_port(context);
    let mut errors: HashMap<_, _> =
        unapplied.ports.iter().map(|port| ((port.bridge.clone(), port.name.clone()), port)).collect();
    let mut ports = Vec::new();
    for bridge in context.engine.switch.bridges() {
        let infos = bridge.ports();
        for piece in infos.chunks(PIECE) {
            for info in piece {
                let mut port = reports::count_port(bridge.name(), info, &drops);
                let failed = errors.remove(&(port.bridge.clone(), port.name.clone()));
                port.error = failed.map(|failed| failed.error.clone());
                ports.push(port);
            }
            yield_now().await;
        }
    }
    let mut rest: Vec<_> = errors.into_values().collect();
    rest.sort_by(|a, b| (&a.bridge, &a.name).cmp(&(&b.bridge, &b.name)));
    ports.extend(rest.into_iter().map(|failed| PortShow {
        name: failed.name.clone(),
        bridge: failed.bridge.clone(),
        kind: failed.kind.clone(),
        error: Some(failed.error.clone()),
        ..PortShow::default()
    }));
    ports
}

type TableCounts = HashMap<(Rc<str>, u8), (u64, u64)>;

/// What the tables in use have counted, and what they have done since `before`.
async fn tables(context: &Context, before: Option<&TableCounts>, time: Duration) -> (TableCounts, Vec<TableRates>) {
    let (mut counts, mut rates) = (TableCounts::new(), Vec::new());
    for bridge in context.engine.switch.bridges() {
        let name: Rc<str> = bridge.name().into();
        for table in tables_in_use(&bridge) {
            let key = (name.clone(), table.table.0);
            let (lookups, matched) = before.and_then(|before| before.get(&key)).copied().unwrap_or_default();
            rates.push(TableRates {
                bridge: bridge.name().to_owned(),
                table: table.table.0,
                flows: table.flows,
                lookups: table.lookups,
                matched: table.matched,
                lookups_per_s: per_second(table.lookups, lookups, time),
                matched_per_s: per_second(table.matched, matched, time),
            });
            counts.insert(key, (table.lookups, table.matched));
        }
        yield_now().await;
    }
    (counts, rates)
}
