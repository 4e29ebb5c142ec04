//! What a kind of port is: its names and options, and how a port of it is opened.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use packet::Memory;
use packet::buffer::heap::HEAP;
use parking_lot::Mutex;

use crate::options::{OptionDef, Options};
use crate::spec::PortSpec;
use crate::{Error, Port};

/// What ports need from the process.
#[derive(Clone)]
pub struct Env {
    /// Where received frames are put.
    pub memory: &'static Memory,
    /// Where received frames of up to 64 KiB are put, which a buffer of `memory` can't hold.
    pub large: &'static Memory,
    /// The dummy ports of this process, so that commands and tests find them by name.
    pub dummies: Directory,
}

impl Default for Env {
    fn default() -> Env {
        Env { memory: &HEAP, large: &HEAP, dummies: Default::default() }
    }
}

/// Ports of one kind by name, for commands that this kind alone takes. Of which type they are, their kind knows.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    ports: Arc<Mutex<HashMap<String, Weak<dyn Any + Send + Sync>>>>,
    added: Arc<AtomicUsize>,
}

impl Directory {
    /// A number for a port that is about to be added: how many had one before.
    pub(crate) fn number(&self) -> usize {
        self.added.fetch_add(1, Relaxed)
    }

    /// An empty directory, whose ports are numbered together with those of this one.
    pub fn beside(&self) -> Directory {
        Directory { ports: Arc::default(), added: self.added.clone() }
    }

    /// Adds a port until it is closed.
    pub(crate) fn add(&self, name: &str, port: Weak<dyn Any + Send + Sync>) {
        self.ports.lock().insert(name.into(), port);
    }

    /// The open port called `name`.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<dyn Any + Send + Sync>> {
        self.ports.lock().get(name)?.upgrade()
    }

    /// Names of the open ports, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut ports = self.ports.lock();
        ports.retain(|_, port| port.strong_count() > 0);
        let mut names: Vec<_> = ports.keys().cloned().collect();
        names.sort();
        names
    }
}

/// Opens a port whose options have been checked.
pub type Open = fn(&PortSpec, &Options, &Env) -> Result<Arc<dyn Port>, Error>;

/// A kind of port.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Names, the preferred one first.
    pub names: &'static [&'static str],
    /// One sentence for help.
    pub doc: &'static str,
    /// The options it takes.
    pub options: &'static [OptionDef],
    /// Opens a port of this kind.
    pub open: Open,
}
