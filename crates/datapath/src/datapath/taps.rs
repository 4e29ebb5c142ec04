//! Taps: see [`crate::tap`].

use std::sync::Arc;
use std::time::Instant;

use crate::datapath::Datapath;
use crate::error::Error;
use crate::tap::settings::{Ports, TapSettings};
use crate::tap::state::{MOST_TAPS, TapCounts, TapState};
use crate::tap::{Record, WorkerTap};
use crate::worker::mailbox::Command;

/// A tap. It ends when this is dropped; then no worker has anything of it left. Not to be dropped in an upcall.
pub struct Tap {
    datapath: Arc<Datapath>,
    state: Arc<TapState>,
    /// When packets were allowed by the rate last.
    allowed: Instant,
    /// The part of a packet that was left then.
    rest: f64,
    /// Whether workers show it anything.
    is_open: bool,
}

impl Datapath {
    /// Most taps at a time.
    pub const MOST_TAPS: usize = MOST_TAPS;

    /// Adds a tap of these ports, or of all. When this returns, workers show packets. Not to be called from an upcall.
    ///
    /// # Errors
    /// There are [`MOST_TAPS`](Datapath::MOST_TAPS) already.
    pub fn add_tap(self: &Arc<Datapath>, settings: TapSettings, ports: Ports) -> Result<Tap, Error> {
        let mut control = self.control.lock();
        let state = control.taps.add(settings, ports)?;
        {
            let pool = self.pool.read();
            let workers = pool.mailboxes();
            for mailbox in workers.values() {
                mailbox.post(Command::AddTap(Box::new(WorkerTap::new(&state, workers.len()))));
            }
        }
        control.serve();
        drop(control);
        // A worker reads its mailbox after it has announced that it is between two batches.
        self.barrier();
        Ok(Tap { datapath: self.clone(), state, allowed: Instant::now(), rest: 0.0, is_open: true })
    }
}

impl Tap {
    /// Calls `each` with what workers have shown since the last call, and with its frame, as long as it says to go on; some thousand times at
    /// most. Returns how many packets there were. Also allows what the rate does, so that a reader that stalls costs workers little.
    pub fn read(&mut self, each: impl FnMut(&Record, &[u8]) -> bool) -> usize {
        let now = Instant::now();
        self.rest = self.state.add_tokens(now.duration_since(self.allowed), self.rest);
        self.allowed = now;
        self.state.read(each)
    }

    /// Changes the ports that it is about, as when one has come back under another number.
    pub fn set_ports(&self, ports: Ports) {
        let number = self.state.number;
        let mut control = self.datapath.control.lock();
        self.state.set_ports(&ports);
        control.tell(|| Command::SetTapPorts { number, ports: ports.clone() });
    }

    /// What it has not shown so far.
    pub fn counts(&self) -> TapCounts {
        self.state.counts()
    }
}

impl Tap {
    /// Has workers show nothing more. What they have shown by then can still be read. Not to be called in an upcall.
    pub fn close(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let number = self.state.number;
        let mut control = self.datapath.control.lock();
        control.taps.remove(number);
        control.tell(|| Command::RemoveTap(number));
        drop(control);
        // The rings live until no worker has them, so that none has to free them.
        self.datapath.barrier();
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
    }
}
