//! Ports that wait for a device: one that was not there when the port was to be opened, or has gone since.
//!
//! The configurator keeps a list of them, each with the interface that had its name at the last attempt. The watch
//! compares the list with the table of interfaces, and has the configurator try again when there is a difference. So
//! a missing device costs one look-up, an unusable one is not tried again and again, and one that flaps is tried once
//! for each round of the watch.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ports::link::{LinkId, LinkTable};

/// Which interface had a certain name at a certain time; `None`: there was none.
pub type Seen = Option<LinkId>;

/// The interfaces of the daemon's network namespace, by name.
pub struct Interfaces(Option<Arc<LinkTable>>);

impl Interfaces {
    /// Those of this thread's namespace.
    pub fn of_this_namespace() -> Interfaces {
        let table = LinkTable::current();
        Interfaces(table.inspect_err(|e| tracing::warn!("cannot follow the network interfaces: {e}")).ok())
    }

    /// Waits until an interface may have changed, `end` is closed, or the time is over. Returns `false` where `end` was.
    pub fn wait(&self, end: &mut UnixStream, at_most: Duration) -> bool {
        match self.0.as_ref().map(|table| table.wait(end.as_fd(), at_most)) {
            Some(Ok(goes_on)) => goes_on,
            // Nothing tells of changes.
            _ => end.set_read_timeout(Some(at_most)).is_ok() && end.read(&mut [0]).is_err(),
        }
    }

    /// The one that has this name now.
    pub fn find(&self, name: &str) -> Seen {
        self.0.as_ref()?.find(name)
    }
}

/// The ports that wait. The configurator writes, the watch reads.
#[derive(Default)]
pub struct Missing(Mutex<BTreeMap<String, Seen>>);

impl Missing {
    /// Replaces the list.
    pub fn set(&self, ports: BTreeMap<String, Seen>) {
        *self.0.lock() = ports;
    }

    /// Whether this port's last attempt was with this same interface: another one would fail, too.
    pub fn was_tried(&self, port: &str, seen: Seen) -> bool {
        self.0.lock().get(port) == Some(&seen)
    }

    /// Whether an interface of a waiting port's name has come or gone since the last attempt.
    pub fn has_news(&self, interfaces: &Interfaces) -> bool {
        self.0.lock().iter().any(|(port, &seen)| interfaces.find(port) != seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_tried_once_for_each_interface_of_its_name() {
        let (missing, interfaces) = (Missing::default(), Interfaces::of_this_namespace());
        let lo = interfaces.find("lo");
        assert!(lo.is_some() && !missing.was_tried("lo", lo));
        missing.set([("lo".into(), None)].into());
        assert!(missing.has_news(&interfaces) && !missing.was_tried("lo", lo));
        missing.set([("lo".into(), lo), ("weir-none0".into(), None)].into());
        assert!(!missing.has_news(&interfaces) && missing.was_tried("lo", lo));
    }
}
