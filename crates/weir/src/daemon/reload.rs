//! Asking the daemon to read its configuration again.

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::unixctl::command::Outcome;

/// Where the outcome of a reload is sent.
pub type Asker = oneshot::Sender<Outcome>;

/// Those that wait at a time for the configuration to be read.
const MOST_WAITING: usize = 64;

/// Asks the daemon to read its source again.
#[derive(Clone)]
pub struct Reloader(mpsc::Sender<Asker>);

impl Reloader {
    /// A channel to the task that follows the source.
    pub fn channel() -> (Reloader, mpsc::Receiver<Asker>) {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        (Reloader(sender), receiver)
    }

    /// Has the configuration read again, and applied where it has changed. The outcome comes when that is done.
    pub fn reload(&self) -> oneshot::Receiver<Outcome> {
        let (asker, outcome) = oneshot::channel();
        // At the end of the daemon, no task follows the source any more: the receiver sees the channel closed.
        if let Err(TrySendError::Full(asker)) = self.0.try_send(asker) {
            let problem = format!("{MOST_WAITING} others wait for the configuration to be read; try again");
            // The receiver is here.
            let _ = asker.send(Err(problem));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_some_wait() {
        let (reloader, mut askers) = Reloader::channel();
        let waiting: Vec<_> = (0..MOST_WAITING).map(|_| reloader.reload()).collect();
        assert!(reloader.reload().blocking_recv().unwrap().unwrap_err().contains("64 others wait"));
        // Also where they have gone.
        drop(waiting);
        assert!(reloader.reload().blocking_recv().unwrap().is_err());
        askers.try_recv().unwrap();
        assert!(reloader.reload().try_recv().is_err(), "it waits");
    }
}
