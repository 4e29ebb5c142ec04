//! Messages that take effect together.

use openflow::{FlowMod, FlowModCommand, GroupMod, OfError, PacketOut, PortMod, TableId};
use parking_lot::RwLockWriteGuard;

use super::{Bridge, flows, groups};
use crate::model::config::N_TABLES;
use crate::model::forwarding::{BridgeState, Forwarding};
use crate::model::transaction::{Changes, Transaction};
use crate::switch::Decided;

/// Most packets of a bundle, and most actions that the datapath carries out for them: they are kept until all else has
/// succeeded.
pub(super) const MAX_PACKETS: usize = 1024;
const MAX_ACTIONS: usize = 1 << 18;

/// Most steps of deciding what becomes of them. Nobody else can read the tables meanwhile: it is no more than one packet may take,
/// which is some tens of milliseconds, and what the last one takes.
const MAX_WORK: usize = 1 << 18;

/// Most effort on messages that cost more than others of their length, in rules that are looked at: those that are about all flows with
/// some match, that look for overlapping flows, or that change some buckets of a large group. Nobody else can change the tables
/// meanwhile. It takes a second or two, about as long as the largest bundle of other messages.
const MAX_EFFORT: usize = 1 << 25;

/// A message that can be in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bundled {
    /// A change of flows.
    Flow(Box<FlowMod>),
    /// A change of groups.
    Group(Box<GroupMod>),
    /// A change of a port.
    Port(PortMod),
    /// A packet.
    Packet(PacketOut),
}

impl Bundled {
    /// Finds the errors that can be found before the bundle is committed.
    pub fn check(&self) -> Result<(), OfError> {
        match self {
            Bundled::Flow(change) if change.command == FlowModCommand::Add => match change.table {
                Some(TableId(N_TABLES)) => Err(OfError::OFPBRC_EPERM),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

impl Bridge {
    /// Makes all changes, or none. Then the error says which one failed, and why. No packet from a port sees some of the changes
    /// of flows and groups without the others; what becomes of the packets of packet-outs is decided in between, each at its
    /// place. They are sent, and ports changed, after all changes.
    ///
    /// `read` makes a message out of what stands for it: many messages are kept in a form that takes less room, and
    /// are never there all at once.
    pub fn commit<M>(
        &self,
        messages: &[M],
        read: impl FnMut(&M) -> Result<Bundled, OfError>,
    ) -> Result<(), (usize, OfError)> {
        self.commit_in(self.switch.forwarding.write(), messages, read)
    }

    /// The same for who has locked the tables, and has seen that nothing else has changed.
    pub(crate) fn commit_in<M>(
        &self,
        mut forwarding: RwLockWriteGuard<'_, Forwarding>,
        messages: &[M],
        mut read: impl FnMut(&M) -> Result<Bundled, OfError>,
    ) -> Result<(), (usize, OfError)> {
        let (mut port_mods, mut packets) = (Vec::new(), Packets::default());
        let now = self.now();
        let generation = forwarding.next_generation();
        let mut changes = Changes::whole();
        let mut apply = |forwarding: &mut Forwarding, i, message| {
            let message = match message {
                Bundled::Packet(packet) => return packets.add(self.decide(forwarding, &packet)?),
                other => other,
            };
            let Some(bridge) = forwarding.bridges.get_mut(&self.id) else { return Ok(()) };
            let mut transaction = Transaction::resume(bridge, generation, now, std::mem::take(&mut changes));
            let applied = match message {
                Bundled::Flow(change) => flows::apply(&mut transaction, &change),
                Bundled::Group(change) => groups::apply(&mut transaction, &change),
                Bundled::Port(change) => {
                    port_mods.push(i);
                    check_port_mod(transaction.bridge, &change)
                }
                Bundled::Packet(_) => Ok(()),
            };
            transaction.end_message();
            changes = transaction.suspend();
            applied.and(if changes.effort > MAX_EFFORT { Err(OfError::OFPBFC_MSG_TOO_MANY) } else { Ok(()) })
        };
        let mut outcome = Ok(());
        for (i, message) in messages.iter().enumerate() {
            outcome = read(message).and_then(|message| apply(&mut forwarding, i, message)).map_err(|error| (i, error));
            if outcome.is_err() {
                break;
            }
        }
        if outcome.is_ok() {
            packets.decided.iter_mut().for_each(|decided| self.switch.account(&forwarding, decided));
        }
        self.switch.end_transaction(forwarding, self.id, (generation, now), changes, self.requester, outcome.is_ok());
        outcome?;
        packets.decided.into_iter().for_each(|decided| self.switch.carry_out(decided));
        for i in port_mods {
            if let Bundled::Port(change) = read(&messages[i]).map_err(|error| (i, error))? {
                self.port_mod(&change).map_err(|error| (i, error))?;
            }
        }
        Ok(())
    }
}

/// The packets of a bundle, of which it is decided what becomes of them.
#[derive(Default)]
struct Packets {
    decided: Vec<Decided>,
    /// How many actions they take together.
    actions: usize,
    /// How much work it was to decide.
    work: usize,
}

impl Packets {
    fn add(&mut self, decided: Option<Decided>) -> Result<(), OfError> {
        self.actions += decided.as_ref().map_or(0, Decided::actions);
        self.work += decided.as_ref().map_or(0, Decided::work);
        if self.decided.len() >= MAX_PACKETS || self.actions > MAX_ACTIONS || self.work > MAX_WORK {
            return Err(OfError::OFPBFC_MSG_TOO_MANY);
        }
        self.decided.extend(decided);
        Ok(())
    }
}

fn check_port_mod(bridge: &BridgeState, change: &PortMod) -> Result<(), OfError> {
    if bridge.ports.contains_key(&change.port) { Ok(()) } else { Err(OfError::OFPPMFC_BAD_PORT) }
}
