//! The handlers, as the control plane knows them, and which channel each of them serves.
//!
//! A worker's channels are served by the handlers whose numbers are the worker's and the following ones, modulo how many
//! handlers there are. A worker uses as many channels as there are handlers, if it has so many.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use crate::slowpath::channel::{CHANNELS, Channel, Channels, Notifier, ServingHandlers};
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
    pub fn of_channel(&self, worker: usize, channel: usize) -> &HandlerHandle {
        &self.handlers[handler_of(worker, channel, self.handlers.len())]
    }

    /// The handlers that serve a worker's channels.
    pub fn serving(&self, worker: usize) -> ServingHandlers {
        self.serving_of(worker, self.handlers.len())
    }

    /// The handlers that serve a worker's channels where there are so many handlers.
    pub fn serving_of(&self, worker: usize, handlers: usize) -> ServingHandlers {
        let notifier = |channel| self.handlers[handler_of(worker, channel, handlers)].notifier.clone();
        ServingHandlers { notifiers: std::array::from_fn(notifier), used: handlers.min(CHANNELS) }
    }

    /// Has those channels of workers released that change handlers where there were `before` and shall be `after`.
    pub fn release(&self, workers: Vec<(usize, Channels)>, before: usize, after: usize) -> Vec<ChannelMove> {
        let release = |(worker, at, channel): (usize, usize, Arc<Channel>)| {
            let (from, to) = (handler_of(worker, at, before), handler_of(worker, at, after));
            (from != to).then(|| {
                let released = self.handlers[from].channel_list.release(&channel);
                self.handlers[from].notifier.notify();
                ChannelMove { channel, released, to }
            })
        };
        let channels = workers.into_iter().flat_map(|(worker, channels)| {
            channels.into_iter().enumerate().map(move |(at, channel)| (worker, at, channel))
        });
        channels.filter_map(release).collect()
    }

    /// Waits until the old handlers have finished their present batch, and gives the channels to the new ones.
    pub fn take_over(&self, moves: Vec<ChannelMove>) {
        for ChannelMove { channel, released, to } in moves {
            // Without an answer, the old handler has panicked, and the process is about to end.
            let served = released.recv().unwrap_or_else(|_| Served::new(channel));
            self.handlers[to].channel_list.add(served);
            self.handlers[to].notifier.notify();
        }
    }
}

/// The number of the handler that serves a worker's channel, of so many handlers.
fn handler_of(worker: usize, channel: usize, handlers: usize) -> usize {
    (worker + channel) % handlers
}
