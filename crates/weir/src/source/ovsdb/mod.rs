//! The Open_vSwitch database as a source of the desired state (ovs-vswitchd.conf.db(5)).
//!
//! ```text
//! ovsdb-server ──▶ replica ──▶ read ──▶ Desired ──▶ daemon
//!              ◀─────────── writeback ◀── what runs ◀──┘
//! ```
//!
//! The database is followed only while this process holds its lock, which one ovs-vswitchd of several has. While there
//! is no connection, everything stays as it is.
//!
//! - `bond`: bonds and LACP
//! - `columns`: what is done with each column
//! - `conntrack`: limits and timeouts of tracked connections
//! - [`files`]: which files the database may name
//! - `flow_tables`: the table Flow_Table
//! - `mirror`: the table Mirror
//! - `multicast`: multicast snooping
//! - `lldp`: LLDP and Auto Attach
//! - `local`: the IP address of a LOCAL port
//! - `path_checks`: BFD and CFM
//! - `spanning_tree`: STP and RSTP
//! - [`read`]: from the rows to the desired state
//! - `unsupported`: what the database asks for and Weir does not do
//! - `writeback`: writes what runs to the database

use std::collections::BTreeSet;
use std::future::pending;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use ovsdb::client::Events;
use ovsdb::{Client, Committed, Config, Remote, TransactError};
use packet::Time;
use tls::Tls;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use super::{ConfigSource, Running, SourceEvent};
use crate::config::origins::{Loaded, Origins};
use crate::timer::{DueWork, Timer};

mod bond;
mod columns;
mod conntrack;
mod export;
pub mod files;
mod flow_tables;
pub mod fuzz;
mod lldp;
mod local;
mod mirror;
mod multicast;
mod path_checks;
mod qos;
pub mod read;
mod spanning_tree;
mod unsupported;
mod writeback;

use read::{DatabaseState, Rules};
use writeback::Extent;

/// The version of Open vSwitch whose place Weir takes, for tools that ask.
pub const OVS_VERSION: &str = "3.1.0";

/// How often links and addresses are looked at.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// How often statistics are written at most (`other_config:stats-update-interval`).
const MIN_STATS_INTERVAL: Duration = Duration::from_secs(5);

/// How long a transaction is waited for. Most take less than a hundredth of it, and changes that come meanwhile are applied
/// together; a server that cannot write (a slow disk, a cluster without a majority) must not hold up what it asks for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A transaction under way.
type Writing = Pin<Box<dyn Future<Output = Result<Committed, TransactError>> + Send>>;

/// Where a database is, and how it is reached.
#[derive(Clone, Debug)]
pub struct Database {
    /// As the command line has it.
    pub location: String,
    /// The servers.
    pub remotes: Vec<Remote>,
    /// How it is spoken with over TLS.
    pub tls: tls::Settings,
}

/// A database.
pub struct OvsdbSource {
    location: String,
    events: Events,
    rules: Rules,
    timer: Timer,
    tick: Interval,
    /// The state that the daemon has been given last; none while another process holds the lock.
    given: Option<DatabaseState>,
    /// Something has happened that has not been looked at.
    is_unread: bool,
    /// The reading of what it wants that has begun.
    reading: Option<JoinHandle<DatabaseState>>,
    /// Warnings and notes that are in the log already.
    told: BTreeSet<String>,
    /// How much is to be written when the daemon says what runs.
    extent: Extent,
    /// When statistics were written last.
    stats_written: Option<Time>,
    /// What is being written, one transaction at a time.
    writing: Option<Writing>,
    /// There is more to write behind that.
    is_behind: bool,
    /// A warp of the clock has made writing due.
    due: Option<DueWork>,
}

impl OvsdbSource {
    /// Starts to connect. To be called within a tokio runtime, which goes on with it.
    ///
    /// # Errors
    /// The system gives no thread to speak with the database.
    pub fn connect(database: Database, rules: Rules, timer: Timer) -> io::Result<OvsdbSource> {
        let Database { location, remotes, tls } = database;
        let config = Config::new("Open_vSwitch", columns::selection()).with_lock("ovs_vswitchd");
        let mut tick = interval(STATUS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(OvsdbSource {
            location,
            events: Client::new(config, remotes, Tls::new(tls)).spawn()?,
            rules,
            timer,
            tick,
            given: None,
            is_unread: false,
            reading: None,
            told: BTreeSet::new(),
            extent: Extent::Status,
            stats_written: None,
            writing: None,
            is_behind: false,
            due: None,
        })
    }

    /// Gives a state to the daemon. What is wrong with it is logged once.
    fn give(&mut self, state: DatabaseState) -> Loaded {
        for refusal in state.refusals.difference(&self.told) {
            tracing::error!("{refusal}");
        }
        for warning in state.warnings.difference(&self.told) {
            tracing::warn!("{warning}");
        }
        for note in state.notes.difference(&self.told) {
            tracing::info!("{note}");
        }
        self.told = &(&state.refusals | &state.warnings) | &state.notes;
        let loaded = Loaded { desired: state.desired.clone(), origins: Origins::named("Open_vSwitch") };
        self.given = Some(state);
        loaded
    }

    /// What the database asks for now; none while there is no connection. Can be cancelled at any time, and is to be called anew then.
    async fn catch_up(&mut self) -> Option<SourceEvent> {
        let state = self.events.state();
        if !state.synced {
            self.is_unread = false;
            return None;
        }
        if !state.has_lock {
            self.is_unread = false;
            self.given.take()?;
            self.stats_written = None;
            tracing::error!("another process has taken the lock of the database; removing all bridges");
            return Some(SourceEvent::Withdrawn);
        }
        let waits = self.given.as_ref().is_some_and(|given| given.desired.datapath.flow_restore_wait);
        let rules = self.rules.clone();
        // Thousands of ports take a while. Who is cancelled meanwhile goes on with it.
        let begin = || tokio::task::spawn_blocking(move || read::read(&state.replica, &rules, waits));
        let read = self.reading.get_or_insert_with(begin).await;
        self.reading = None;
        self.is_unread = false;
        let wanted = read.ok()?;
        self.extent = self.extent_due(self.stats_written.is_none());
        if self.given.as_ref() == Some(&wanted) {
            return Some(SourceEvent::Nothing);
        }
        Some(SourceEvent::Wanted(Box::new(self.give(wanted))))
    }

    fn is_writable(&self) -> bool {
        let state = self.events.state();
        state.synced && state.has_lock
    }

    /// Has written what changes by itself: statistics, when it is time for them, or else only the status.
    fn write_what_changed(&mut self) -> SourceEvent {
        let now = self.timer.now();
        let is_due = self.stats_written.is_none_or(|written| now.since(written) >= self.stats_interval());
        self.extent = self.extent_due(is_due);
        SourceEvent::Nothing
    }

    fn extent_due(&mut self, statistics: bool) -> Extent {
        if !statistics {
            return Extent::Status;
        }
        self.stats_written = Some(self.timer.now());
        Extent::StatusAndStatistics
    }

    fn stats_interval(&self) -> Duration {
        let state = self.events.state();
        let root = state.replica.rows("Open_vSwitch").next();
        let wanted = root.and_then(|root| root.map_string("other_config", "stats-update-interval")?.parse().ok());
        wanted.map_or(MIN_STATS_INTERVAL, |ms| Duration::from_millis(ms).max(MIN_STATS_INTERVAL))
    }

    async fn write_back(&mut self, running: &Running<'_>) {
        let Some(given) = &self.given else { return };
        if !self.is_writable() {
            return;
        }
        self.is_behind = self.writing.is_some();
        if self.is_behind {
            return;
        }
        let replica = &self.events.state().replica;
        let transaction = writeback::transaction(replica, given, running, self.timer.now(), self.extent).await;
        if transaction.is_empty() {
            return;
        }
        self.writing = Some(Box::pin(self.events.handle().transact(transaction)));
        if timeout(PATIENCE, written(&mut self.writing)).await.is_err() {
            tracing::info!("the database takes its time to write; it is followed meanwhile");
        }
    }
}

/// Waits until what is being written is written, for ever where nothing is. Can be cancelled at any time.
async fn written(writing: &mut Option<Writing>) {
    let Some(transaction) = writing else { return pending().await };
    let outcome = transaction.await;
    *writing = None;
    // What was not written differs next time too, and is tried again.
    if let Err(e) = outcome {
        tracing::warn!("cannot write to the database: {e}");
    }
}

impl ConfigSource for OvsdbSource {
    fn location(&self) -> &str {
        &self.location
    }

    fn pushes(&self) -> bool {
        true
    }

    /// Waits for the database and its lock.
    async fn first(&mut self) -> Loaded {
        let mut told = false;
        loop {
            let state = self.events.state();
            if state.synced && state.has_lock {
                let wanted = read::read(&state.replica, &self.rules, true);
                // Who finds the configuration in force finds no statistics of another daemon.
                self.extent = self.extent_due(true);
                return self.give(wanted);
            } else if state.synced && !told {
                let pid = std::process::id();
                tracing::error!(
                    "another ovs-vswitchd process is running, disabling this process (pid {pid}) until it goes away"
                );
                told = true;
            }
            self.events.next().await;
        }
    }

    async fn next(&mut self) -> SourceEvent {
        loop {
            if self.is_unread
                && let Some(change) = self.catch_up().await
            {
                return change;
            }
            tokio::select! {
                _ = self.events.next() => self.is_unread = true,
                _ = self.tick.tick() => if self.is_writable() && self.writing.is_none() {
                    return self.write_what_changed();
                },
                () = written(&mut self.writing) => {
                    if self.is_behind {
                        return SourceEvent::Nothing;
                    }
                    self.due = None;
                },
                () = self.timer.warped() => if self.is_writable() {
                    self.due = Some(self.timer.begin_due_work());
                    return self.write_what_changed();
                },
            }
        }
    }

    async fn reread(&mut self) -> Result<Loaded, String> {
        Err("the configuration is in a database, which is followed as it changes".into())
    }

    async fn applied(&mut self, running: &Running<'_>) {
        self.write_back(running).await;
        if self.writing.is_none() {
            self.due = None;
        }
    }
}
