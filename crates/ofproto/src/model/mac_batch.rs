//! What a batch of packets has learnt, until the MAC tables are told.
//!
//! The packets of a batch are translated one after the other. Each sees what those before it have learnt, and the
//! tables learn all of it at the end: each of them is locked for writing once for a batch.

use std::cell::RefCell;
use std::net::IpAddr;

use hashbrown::HashMap;
use netstate::neighbours::Mac;
use openflow::OfPort;
use packet::Time;

use crate::model::forwarding::{BridgeId, BridgeState};
use crate::model::mac::MacKey;

/// An address that was learnt.
#[derive(Clone, Copy)]
pub(crate) struct LearntMac {
    pub bridge: BridgeId,
    pub key: MacKey,
    pub port: OfPort,
    pub at: Time,
}

/// Where packets of the batch came from.
#[derive(Default)]
pub(crate) struct MacBatch(RefCell<BatchLog>);

#[derive(Default)]
struct BatchLog {
    /// In the order of the packets.
    learnt: Vec<LearntMac>,
    /// Addresses that were announced, and when.
    announced: Vec<(BridgeId, MacKey, Time)>,
    /// The latest place of each address.
    latest: HashMap<(BridgeId, MacKey), OfPort, foldhash::fast::RandomState>,
    /// Bridge, IP address and MAC address of the neighbours below tunnels from which packets of tunnels have come.
    neighbours: Vec<(BridgeId, IpAddr, Mac)>,
}

impl MacBatch {
    /// Where an address is, as far as this packet can know: from the batch, or else from the table.
    pub fn lookup(&self, bridge: &BridgeState, key: MacKey) -> Option<OfPort> {
        let learnt = self.learnt(bridge.id, key);
        learnt.or_else(|| bridge.macs.read().lookup(key))
    }

    /// Learns that packets from `key` come in on `port`, if the table does not know it already. Returns whether lookups
    /// change.
    pub fn learn(&self, bridge: &BridgeState, key: MacKey, port: OfPort, at: Time) -> bool {
        let (needed, changes) = match self.learnt(bridge.id, key) {
            Some(learnt) => (learnt != port, learnt != port),
            None => {
                let table = bridge.macs.read();
                if table.is_elsewhere(key, port) {
                    bridge.macs.count_elsewhere();
                }
                (table.needs_learning(key, port, at), table.lookup(key) != Some(port))
            }
        };
        if needed {
            let mut log = self.0.borrow_mut();
            log.learnt.push(LearntMac { bridge: bridge.id, key, port, at });
            log.latest.insert((bridge.id, key), port);
        }
        needed && changes
    }

    /// Notes that an address was announced: see [`MacTable::lock`](crate::model::mac::MacTable::lock).
    pub fn lock(&self, bridge: &BridgeState, key: MacKey, at: Time) {
        self.0.borrow_mut().announced.push((bridge.id, key, at));
    }

    /// The addresses that were announced.
    pub fn take_announced(&self) -> Vec<(BridgeId, MacKey, Time)> {
        std::mem::take(&mut self.0.borrow_mut().announced)
    }

    /// Notes that a packet of a tunnel has come from a neighbour.
    pub fn see_neighbour(&self, bridge: BridgeId, ip: IpAddr, mac: Mac) {
        let neighbours = &mut self.0.borrow_mut().neighbours;
        let seen = (bridge, ip, mac);
        if neighbours.last() != Some(&seen) {
            neighbours.push(seen);
        }
    }

    /// The neighbours from which packets of tunnels have come, in the order of the packets.
    pub fn take_neighbours(&self) -> Vec<(BridgeId, IpAddr, Mac)> {
        std::mem::take(&mut self.0.borrow_mut().neighbours)
    }

    fn learnt(&self, bridge: BridgeId, key: MacKey) -> Option<OfPort> {
        let log = self.0.borrow();
        if log.learnt.is_empty() { None } else { log.latest.get(&(bridge, key)).copied() }
    }

    /// What was learnt, bridge by bridge, in the order of the packets.
    pub fn into_learnt(self) -> Vec<LearntMac> {
        let mut learnt = self.0.into_inner().learnt;
        learnt.sort_by_key(|learnt| learnt.bridge);
        learnt
    }
}
