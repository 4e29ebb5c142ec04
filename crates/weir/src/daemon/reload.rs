//! Asking the daemon to read its configuration again.

use tokio::sync::{mpsc, oneshot};

use crate::unixctl::command::Outcome;

/// Where the outcome of a reload is sent.
pub type Asker = oneshot::Sender<Outcome>;

/// Asks the daemon to read its source again.
#[derive(Clone)]
pub struct Reloader(mpsc::UnboundedSender<Asker>);

impl Reloader {
    /// A channel to the task that follows the source.
    pub fn channel() -> (Reloader, mpsc::UnboundedReceiver<Asker>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Reloader(sender), receiver)
    }

    /// Has the configuration read again, and applied where it has changed. The outcome comes when that is done.
    pub fn reload(&self) -> oneshot::Receiver<Outcome> {
        let (asker, outcome) = oneshot::channel();
        // At the end of the daemon, no task follows the source any more: the receiver sees the channel closed.
        let _ = self.0.send(asker);
        outcome
    }
}
