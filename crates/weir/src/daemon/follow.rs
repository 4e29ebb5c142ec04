//! Follows the source of the configuration: what it wants is brought into force, and it is told what runs.

use tokio::sync::mpsc;

use super::commands::Context;
use super::reload::Asker;
use crate::config::Desired;
use crate::config::origins::Loaded;
use crate::source::{ConfigSource, Running, SourceEvent};
use crate::unixctl::command::Outcome;

/// Brings `first` into force, calls `in_force`, and then follows the source for ever.
pub async fn follow<S: ConfigSource>(
    source: &mut S,
    first: Loaded,
    context: &Context,
    mut askers: mpsc::Receiver<Asker>,
    in_force: impl FnOnce(),
) {
    let mut follower = Follower { context, wanted: None };
    follower.apply(first).await;
    follower.report(source).await;
    in_force();
    loop {
        tokio::select! {
            change = source.next() => follower.change(change).await,
            Some(asker) = askers.recv() => {
                // One reading is for all who have asked before it begins.
                let mut waiting = vec![asker];
                waiting.extend(std::iter::from_fn(|| askers.try_recv().ok()));
                let outcome = match source.reread().await {
                    Ok(loaded) => follower.apply(loaded).await,
                    Err(problem) => Some(Err(problem)),
                };
                if let Some(outcome) = outcome {
                    // A receiver may have been dropped meanwhile.
                    waiting.into_iter().for_each(|asker| drop(asker.send(outcome.clone())));
                }
            }
        }
        follower.report(source).await;
    }
}

struct Follower<'a> {
    context: &'a Context,
    /// What was applied last; none where nothing is wanted.
    wanted: Option<Desired>,
}

impl Follower<'_> {
    async fn change(&mut self, change: SourceEvent) {
        match change {
            SourceEvent::Wanted(loaded) => {
                let is_new = self.wanted.as_ref() != Some(&loaded.desired);
                if is_new || !self.context.configurator.unapplied().ports.is_empty() {
                    self.apply(*loaded).await;
                }
            }
            SourceEvent::Withdrawn => {
                self.wanted = None;
                // What fails is in the log.
                let _ = self.context.configurator.remove_all().await;
            }
            SourceEvent::Nothing => {}
        }
    }

    /// Brings a state into force. What fails is in the log, too. `None` where the configurator has died, which ends
    /// the daemon.
    async fn apply(&mut self, loaded: Loaded) -> Option<Outcome> {
        self.wanted = Some(loaded.desired.clone());
        self.context.configurator.apply(loaded).await.ok()
    }

    async fn report<S: ConfigSource>(&self, source: &mut S) {
        let Context { engine, configurator, openflow, .. } = self.context;
        let unapplied = configurator.unapplied();
        let controllers = |bridge: &str| openflow.controllers(bridge);
        source
            .applied(&Running {
                switch: &engine.switch,
                datapath: &engine.datapath,
                failed: &unapplied.ports,
                controllers: &controllers,
            })
            .await;
    }
}
