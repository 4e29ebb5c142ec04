//! Follows the database: what it says is brought into force, what runs is written back.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ovsdb::client::Events;
use packet::Time;
use tokio::time::{MissedTickBehavior, interval};

use super::read::{self, Rules, Source};
use super::writeback::{self, What};
use crate::config::origins::{Loaded, Origins};
use crate::daemon::commands::Context;

/// How often links and addresses are looked at.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// How often statistics are written at most (`other_config:stats-update-interval`).
const MIN_STATS_INTERVAL: Duration = Duration::from_secs(5);

/// Waits for the database and its lock: the first configuration.
pub async fn first(events: &mut Events, rules: &Rules) -> Source {
    let mut told = false;
    loop {
        let state = events.state();
        if state.synced && state.has_lock {
            return read::read(&state.replica, rules, true);
        } else if state.synced && !told {
            let pid = std::process::id();
            tracing::error!(
                "another ovs-vswitchd process is running, disabling this process (pid {pid}) until it goes away"
            );
            told = true;
        }
        events.next().await;
    }
}

/// Keeps switch and database in step.
pub struct Follower {
    events: Events,
    context: Rc<Context>,
    rules: Rules,
    /// What was applied last; none while another daemon holds the lock.
    applied: Option<Source>,
    warned: BTreeSet<String>,
    /// When statistics were written last.
    stats_written: Option<Time>,
}

impl Follower {
    /// One that has applied nothing.
    pub fn new(events: Events, context: Rc<Context>, rules: Rules) -> Follower {
        Follower { events, context, rules, applied: None, warned: BTreeSet::new(), stats_written: None }
    }

    /// Brings `first` into force, calls `ready`, and then follows for ever.
    pub async fn run(mut self, first: Source, ready: impl FnOnce()) {
        self.bring(first).await;
        self.write_back(What::Status).await;
        ready();
        let timer = self.context.engine.timer.clone();
        let mut tick = interval(STATUS_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = self.events.next() => self.catch_up().await,
                _ = tick.tick() => self.tick().await,
                () = timer.warped() => {
                    let _work = timer.work();
                    self.tick().await;
                }
            }
        }
    }

    /// Does what the database asks for now. Without a connection, all stays as it is.
    async fn catch_up(&mut self) {
        let state = self.events.state();
        if !state.synced {
            return;
        }
        if !state.has_lock {
            if self.applied.take().is_some() {
                tracing::error!("another process has taken the lock of the database; removing all bridges");
                let _ = self.context.configurator.remove_all().await;
            }
            return;
        }
        let waits = self.applied.as_ref().is_some_and(|applied| applied.desired.datapath.flow_restore_wait);
        let source = read::read(&state.replica, &self.rules, waits);
        if self.applied.as_ref() != Some(&source) {
            self.bring(source).await;
        }
        self.write_back(What::Status).await;
    }

    async fn bring(&mut self, source: Source) {
        for warning in source.warnings.difference(&self.warned) {
            tracing::warn!("{warning}");
        }
        for note in source.notes.difference(&self.warned) {
            tracing::info!("{note}");
        }
        self.warned = &source.warnings | &source.notes;
        let unchanged = self.applied.as_ref().is_some_and(|applied| applied.desired == source.desired);
        if !unchanged || !self.context.configurator.status().ports.is_empty() {
            self.apply(&source).await;
        }
        self.applied = Some(source);
    }

    async fn apply(&mut self, source: &Source) {
        let loaded = Loaded { desired: source.desired.clone(), origins: Origins::named("Open_vSwitch") };
        // What failed is in the log, and goes into the column `error`.
        let _ = self.context.configurator.apply(loaded).await;
    }

    /// Writes what changed by itself.
    async fn tick(&mut self) {
        let state = self.events.state();
        if !(state.synced && state.has_lock) {
            return;
        }
        let now = self.context.engine.timer.now();
        if self.stats_written.is_none_or(|written| now.since(written) >= self.stats_interval()) {
            self.stats_written = Some(now);
            self.write_back(What::StatusAndStatistics).await;
        } else {
            self.write_back(What::Status).await;
        }
    }

    fn stats_interval(&self) -> Duration {
        let state = self.events.state();
        let root = state.replica.rows("Open_vSwitch").next();
        let wanted = root.and_then(|root| root.map_string("other_config", "stats-update-interval")?.parse().ok());
        wanted.map_or(MIN_STATS_INTERVAL, |ms| Duration::from_millis(ms).max(MIN_STATS_INTERVAL))
    }

    async fn write_back(&mut self, what: What) {
        let Some(source) = &self.applied else { return };
        let state = self.events.state();
        if !(state.synced && state.has_lock) {
            return;
        }
        let transaction = writeback::transaction(&state.replica, source, &self.context, what);
        if transaction.is_empty() {
            return;
        }
        // What was not written differs next time too, and is tried again.
        if let Err(e) = self.events.handle().transact(transaction).await {
            tracing::warn!("cannot write to the database: {e}");
        }
    }
}
