//! The handlers, as the control plane knows them, and which channel each of them serves.
//!
//! A worker's channel is served by the handler whose number is the worker's, modulo how many handlers there are.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::slowpath::channel::{Channel, Notifier};
use crate::slowpath::handler::{ChannelList, Served};
use crate::sync::rcu::Reader;

/// The handlers that there are, and places for others.
pub struct HandlerPool {
    handlers: Vec<HandlerHandle>,
    /// Places in the RCU domain of handlers that do not exist.
    vacant: Vec<Reader>,
}

/// A handler, as other threads know it.
#[derive(Clone, Default)]
pub struct HandlerHandle {
    /// What it is to serve.
    pub channel_list: Arc<ChannelList>,
    /// Wakes it.
    pub notifier: Arc<Notifier>,
}

/// A channel on its way from one handler to another.
pub struct ChannelMove {
    worker: usize,
    channel: Arc<Channel>,
    released: Receiver<Served>,
    /// The handler that is to serve it.
    to: usize,
}

impl HandlerPool {
    /// No handlers, with a place for each of `readers`.
    pub fn new(readers: Vec<Reader>) -> HandlerPool {
        HandlerPool { handlers: Vec::new(), vacant: readers }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.handlers.len()
    }

    /// How many there can be.
    pub fn max(&self) -> usize {
        self.handlers.len() + self.vacant.len()
    }

    /// The handlers, by number.
    pub fn iter(&self) -> impl Iterator<Item = &HandlerHandle> {
        self.handlers.iter()
    }

    /// Takes a place in the RCU domain for one more.
    pub fn take_place(&mut self) -> Option<Reader> {
        self.vacant.pop()
    }

    /// Adds a handler, which serves nothing yet.
    pub fn add(&mut self, handler: HandlerHandle) {
        self.handlers.push(handler);
    }

    /// Removes the last handler, which serves nothing, and gives its place back.
    pub fn remove_last(&mut self, reader: Option<Reader>) {
        self.handlers.pop();
        self.vacant.extend(reader);
    }

    /// The handler that serves a worker's channel.
    pub fn of_worker(&self, worker: usize) -> &HandlerHandle {
        &self.handlers[worker % self.handlers.len()]
    }

    /// Has those channels of workers released that change handlers where there were `before` and shall be `after`.
    pub fn release(&self, channels: Vec<(usize, Arc<Channel>)>, before: usize, after: usize) -> Vec<ChannelMove> {
        let release = |(worker, channel): (usize, Arc<Channel>)| {
            let (from, to) = (worker % before, worker % after);
            (from != to).then(|| {
                let released = self.handlers[from].channel_list.release(&channel);
                self.handlers[from].notifier.notify();
                ChannelMove { worker, channel, released, to }
            })
        };
        channels.into_iter().filter_map(release).collect()
    }

    /// Waits until the old handlers have finished their present batch, and gives the channels to the new ones.
    /// Returns the notifier of each worker's new handler.
    pub fn take_over(&self, moves: Vec<ChannelMove>) -> Vec<(usize, Arc<Notifier>)> {
        let take = |ChannelMove { worker, channel, released, to }: ChannelMove| {
            // Without an answer, the old handler has panicked, and the process is about to end.
            let served = released.recv().unwrap_or_else(|_| Served::new(channel));
            self.handlers[to].channel_list.add(served);
            self.handlers[to].notifier.notify();
            (worker, self.handlers[to].notifier.clone())
        };
        moves.into_iter().map(take).collect()
    }
}
