//! Messages that take effect together.

use openflow::{FlowMod, FlowModCommand, GroupMod, OfError, OfPort, PacketOut, PortMod, TableId};

use super::{Bridge, flows, groups};
use crate::model::config::N_TABLES;
use crate::model::forwarding::BridgeState;

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
    /// Makes all changes, or none. Then the error says which one failed, and why. No packet sees some of the changes
    /// of flows and groups without the others. Ports are changed and packets sent after these, in order.
    ///
    /// `read` makes a message out of what stands for it: many messages are kept in a form that takes less room, and
    /// are never there all at once.
    pub fn commit<M>(
        &self,
        messages: &[M],
        read: impl Fn(&M) -> Result<Bundled, OfError>,
    ) -> Result<(), (usize, OfError)> {
        let mut later = Vec::new();
        self.transact(|transaction| {
            for (i, message) in messages.iter().enumerate() {
                let apply = |message| match message {
                    Bundled::Flow(change) => flows::apply(transaction, &change),
                    Bundled::Group(change) => groups::apply(transaction, &change),
                    Bundled::Port(change) => {
                        later.push(i);
                        check_port_mod(transaction.bridge, &change)
                    }
                    Bundled::Packet(packet) => {
                        later.push(i);
                        check_packet_out(transaction.bridge, &packet)
                    }
                };
                read(message).and_then(apply).map_err(|error| (i, error))?;
            }
            Ok(())
        })?;
        for i in later {
            let act = |message| match message {
                Bundled::Port(change) => self.port_mod(&change),
                Bundled::Packet(packet) => self.packet_out(&packet),
                Bundled::Flow(_) | Bundled::Group(_) => Ok(()),
            };
            read(&messages[i]).and_then(act).map_err(|error| (i, error))?;
        }
        Ok(())
    }
}

fn check_port_mod(bridge: &BridgeState, change: &PortMod) -> Result<(), OfError> {
    if bridge.ports.contains_key(&change.port) { Ok(()) } else { Err(OfError::OFPPMFC_BAD_PORT) }
}

fn check_packet_out(bridge: &BridgeState, packet: &PacketOut) -> Result<(), OfError> {
    if packet.buffer_id.is_some() {
        return Err(OfError::OFPBRC_BUFFER_UNKNOWN);
    }
    if packet.in_port.is_reserved() && packet.in_port != OfPort::LOCAL {
        return Ok(());
    }
    super::check::check_actions(&packet.actions, &super::check::Known::of(bridge))
}
