//! The agent of an interface.

use std::sync::Arc;
use std::time::Duration;

use weir_time::Time;

use super::AutoAttach;
use super::pdu::{Assignment, BRIDGE, CHASSIS_MAC, Element, Error, Identifier, Lldpdu, MAX_ASSIGNMENTS, PORT_NAME};
use crate::ethernet::Mac;
use crate::registry::Session;

/// How many neighbours an agent knows at most. A link has one, a segment that is shared has few.
pub const MAX_NEIGHBOURS: usize = 32;
/// Between two frames.
pub const TX_INTERVAL: Duration = Duration::from_secs(5);
/// For how many seconds neighbours are to remember what a frame says.
pub const TX_TTL: u16 = 120;

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// What it said last.
    pub pdu: Lldpdu,
    /// When.
    pub heard: Time,
}

impl Neighbour {
    /// When it is forgotten unless it says something.
    fn expiry(&self) -> Time {
        self.heard + Duration::from_secs(self.pdu.ttl.into())
    }
}

/// Frames and neighbours, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames sent.
    pub tx: u64,
    /// Frames received.
    pub rx: u64,
    /// Of these, malformed.
    pub rx_discarded: u64,
    /// TLVs that were not understood.
    pub rx_unrecognized: u64,
    /// Neighbours that were not heard any longer.
    pub ageouts: u64,
    /// Neighbours that came.
    pub inserts: u64,
    /// Neighbours that said that they go.
    pub deletes: u64,
    /// Frames of neighbours for whom there was no room.
    pub drops: u64,
}

/// The agent of an interface.
#[derive(Debug)]
pub struct Agent {
    name: String,
    mac: Mac,
    auto_attach: Arc<AutoAttach>,
    next_tx: Time,
    neighbours: Vec<Neighbour>,
    statistics: Statistics,
}

impl Agent {
    /// An agent that knows nobody; its first frame is due at once.
    pub fn new(now: Time, name: &str, mac: Mac, auto_attach: Arc<AutoAttach>) -> Agent {
        let (name, neighbours) = (name.to_owned(), Vec::new());
        Agent { name, mac, auto_attach, next_tx: now, neighbours, statistics: Statistics::default() }
    }

    /// Changes what it says. Neighbours are told at once where that is something new.
    pub fn configure(&mut self, now: Time, mac: Mac, auto_attach: Arc<AutoAttach>) {
        if (self.mac, &self.auto_attach) != (mac, &auto_attach) {
            (self.mac, self.auto_attach, self.next_tx) = (mac, auto_attach, now);
        }
    }

    /// Takes a frame. An error is counted.
    pub fn receive(&mut self, now: Time, frame: &[u8]) -> Result<(), Error> {
        self.statistics.rx += 1;
        let pdu = Lldpdu::new_checked(frame).inspect_err(|_| self.statistics.rx_discarded += 1)?;
        self.statistics.rx_unrecognized += u64::from(pdu.unrecognized);
        let is_same = |known: &Neighbour| known.pdu.chassis == pdu.chassis && known.pdu.port == pdu.port;
        match self.neighbours.iter().position(is_same) {
            Some(at) if pdu.ttl == 0 => {
                self.neighbours.remove(at);
                self.statistics.deletes += 1;
            }
            Some(at) => self.neighbours[at] = Neighbour { pdu, heard: now },
            None if pdu.ttl == 0 => {}
            None if self.neighbours.len() == MAX_NEIGHBOURS => self.statistics.drops += 1,
            None => {
                self.neighbours.push(Neighbour { pdu, heard: now });
                self.statistics.inserts += 1;
            }
        }
        Ok(())
    }

    /// Does what is due: forgets who has not been heard, and returns a frame to send.
    pub fn run(&mut self, now: Time) -> Option<Vec<u8>> {
        let before = self.neighbours.len();
        self.neighbours.retain(|neighbour| neighbour.expiry() > now);
        self.statistics.ageouts += (before - self.neighbours.len()) as u64;
        if now < self.next_tx {
            return None;
        }
        self.next_tx = now + TX_INTERVAL;
        self.statistics.tx += 1;
        Some(self.pdu().emit(self.mac))
    }

    /// What it says.
    fn pdu(&self) -> Lldpdu {
        let AutoAttach { system_name, system_description, mappings } = &*self.auto_attach;
        let mappings = mappings.iter().take(MAX_ASSIGNMENTS);
        Lldpdu {
            chassis: Identifier { subtype: CHASSIS_MAC, value: self.mac.to_vec() },
            port: Identifier { subtype: PORT_NAME, value: self.name.clone().into_bytes() },
            ttl: TX_TTL,
            system_name: system_name.clone().into_bytes(),
            system_description: system_description.clone().into_bytes(),
            capabilities: Some([BRIDGE; 2]),
            element: Some(Element { kind: Element::VIRTUAL_SWITCH, mac: self.mac, ..Element::default() }),
            assignments: mappings.map(|(&isid, &vlan)| Assignment { status: 0, vlan, isid }).collect(),
            ..Lldpdu::default()
        }
    }

    /// The interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says of its bridge.
    pub fn auto_attach(&self) -> &AutoAttach {
        &self.auto_attach
    }

    /// Whom it knows, in the order in which they came.
    pub fn neighbours(&self) -> &[Neighbour] {
        &self.neighbours
    }

    /// What has been counted.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }
}

impl Session for Agent {
    fn next_wakeup(&self) -> Option<Time> {
        self.neighbours.iter().map(Neighbour::expiry).chain([self.next_tx]).min()
    }
}
