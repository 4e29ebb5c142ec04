//! What is left of a port that was closed, until it is opened again: how it looked. It has no queues and is down.

use std::sync::Arc;

use crate::{Error, Features, Link, Mac, Port, RxQueue, Stats, TxDrops, TxQueue};

/// A port that was closed.
#[derive(Debug)]
pub struct Closed {
    name: String,
    kind: &'static str,
    mac: Mac,
    mtu: u32,
    link: Link,
    stats: Stats,
    tx_drops: TxDrops,
}

impl Closed {
    /// What is left of `port`, which is still open.
    pub fn after(port: &dyn Port) -> Arc<Closed> {
        let link = port.link();
        Arc::new(Closed {
            name: port.name().to_owned(),
            kind: port.kind(),
            mac: port.mac(),
            mtu: port.mtu(),
            link: Link { up: false, resets: link.resets + u64::from(link.up), ..link },
            stats: port.stats(),
            tx_drops: port.tx_drops(),
        })
    }

    fn error(&self) -> Error {
        Error::Unavailable { port: self.name.clone(), problem: "the device is closed".into() }
    }
}

impl Port for Closed {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        self.kind
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> u32 {
        self.mtu
    }

    fn link(&self) -> Link {
        self.link
    }

    fn is_gone(&self) -> bool {
        true
    }

    fn set_admin_up(&self, _: bool) -> Result<(), Error> {
        Err(self.error())
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn tx_drops(&self) -> TxDrops {
        self.tx_drops
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn take_rx_queues(&self) -> Vec<Box<dyn RxQueue>> {
        Vec::new()
    }

    fn max_tx_queues(&self) -> usize {
        0
    }

    fn tx_queue(&self, _: usize) -> Result<Box<dyn TxQueue>, Error> {
        Err(self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Env, PortSpec, registry};

    #[test]
    fn shows_what_was_there_last() {
        let spec = PortSpec::new("p0", "null").with(&[("n_rxq", "1")]);
        let port = registry::open(&spec, &Env::default()).unwrap();
        port.set_mtu(2000).unwrap();
        let closed = Closed::after(&*port);
        assert_eq!((closed.name(), closed.kind(), closed.mac(), closed.mtu()), ("p0", "null", port.mac(), 2000));
        assert!(closed.is_gone() && port.link().up && !closed.link().up && closed.link().admin_up);
        assert_eq!(closed.link().resets, port.link().resets + 1);
        assert!(closed.take_rx_queues().is_empty() && closed.tx_queue(0).is_err());
        assert_eq!(closed.set_admin_up(false).unwrap_err().to_string(), "p0: the device is closed");
    }
}
