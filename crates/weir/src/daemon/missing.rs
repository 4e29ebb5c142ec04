//! Ports that wait for a device: one that was not there when the port was to be opened, or has gone since.
//!
//! The configurator notes them, with the interface that had the name when it tried last. The watch looks for
//! another one, and has the configurator try again when there is. So a device that is not there costs a look at the
//! table of interfaces, one that cannot be used is not tried again and again, and one that comes and goes all the
//! time is tried once for each round of the watch.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use ports::link::{LinkId, LinkTable};

/// Which interface had a port's name at a moment; `None`: there was none.
pub type Seen = Option<LinkId>;

/// The interfaces of the daemon's network namespace, by name.
pub struct Interfaces(Option<Arc<LinkTable>>);

impl Interfaces {
    /// Those of this thread's namespace.
    pub fn of_this_namespace() -> Interfaces {
        let table = LinkTable::current();
        Interfaces(table.inspect_err(|e| tracing::warn!("cannot follow the network interfaces: {e}")).ok())
    }

    /// Which one has this name now.
    pub fn find(&self, name: &str) -> Seen {
        self.0.as_ref()?.find(name)
    }
}

/// The ports that wait. The configurator writes, the watch reads.
#[derive(Default)]
pub struct Missing(Mutex<BTreeMap<String, Seen>>);

impl Missing {
    /// These wait now, and no others.
    pub fn set(&self, ports: BTreeMap<String, Seen>) {
        *self.0.lock() = ports;
    }

    /// Whether a port waits that was tried when its name had this interface: trying again would not help.
    pub fn was_tried(&self, port: &str, seen: Seen) -> bool {
        self.0.lock().get(port) == Some(&seen)
    }

    /// Whether an interface has come, or gone, under the name of one that waits.
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
