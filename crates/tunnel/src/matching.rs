//! Which tunnel port a packet has come through.
//!
//! A port says for each of key, remote and local address whether it takes one value, any, or leaves it to the flow tables. That makes
//! twelve tiers, looked at in this order; within a tier, a port of the packet's own kind (Ethernet or not) comes before one that is aware
//! of packet types (ovs-vswitchd.conf.db(5), "Tunnel Options"):
//!
//! 1. key: one, then `flow`;
//! 2. within that, remote address: one, then `flow`;
//! 3. within that, local address: one, then any, then `flow`.
//!
//! So a look-up is at most 24 probes of a hash table, however many ports there are.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Which packets a port carries, and how they are shown to OpenFlow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum PacketType {
    /// Frames of Ethernet.
    LegacyL2,
    /// Packets without Ethernet; the switch sees them with a header of Ethernet that is made up.
    LegacyL3,
    /// Any, with their packet type.
    Aware,
}

/// As the option `packet_type` says it.
impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PacketType::LegacyL2 => "legacy_l2",
            PacketType::LegacyL3 => "legacy_l3",
            PacketType::Aware => "ptap",
        })
    }
}

/// What a port says of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Address {
    /// Just this one.
    One(IpAddr),
    /// Any: only of the local address.
    Any,
    /// Any; the flow tables look at it.
    Flow,
}

/// What a port says of the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Key {
    /// Just this one; zero stands for none.
    One(u64),
    /// Any; the flow tables look at it.
    Flow,
}

/// What packets a port takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Match {
    /// The port of the datapath, one for each protocol and UDP port.
    pub datapath_port: u32,
    /// Key.
    pub key: Key,
    /// The other end; never [`Address::Any`].
    pub remote: Address,
    /// This end.
    pub local: Address,
    /// What it carries.
    pub packet_type: PacketType,
}

impl Match {
    /// The tier, in the order of precedence.
    fn tier(&self) -> usize {
        let local = match self.local {
            Address::One(_) => 0,
            Address::Any => 1,
            Address::Flow => 2,
        };
        6 * usize::from(self.key == Key::Flow) + 3 * usize::from(self.remote == Address::Flow) + local
    }
}

/// As Open vSwitch says it in `ofproto/list-tunnels`.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.local, self.remote) {
            (Address::Flow, _) => f.write_str("flow")?,
            (Address::Any, _) => f.write_str("::")?,
            (Address::One(address), _) => write!(f, "{address}")?,
        }
        match self.remote {
            Address::One(address) => write!(f, "->{address}")?,
            _ => f.write_str("->flow")?,
        }
        match self.key {
            Key::Flow => f.write_str(", key=flow")?,
            Key::One(key) => write!(f, ", key={}", Hex(key))?,
        }
        write!(f, ", {}, dp port={}", self.packet_type, self.datapath_port)
    }
}

/// A number as `%#x` of C prints it: zero has no prefix.
pub(crate) struct Hex(pub(crate) u64);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.0) }
    }
}

/// What is known of a packet that has come through a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The port of the datapath.
    pub datapath_port: u32,
    /// Key; zero where there is none.
    pub key: u64,
    /// Source of the outer packet.
    pub src: IpAddr,
    /// Destination of the outer packet.
    pub dst: IpAddr,
    /// Whether it carries a frame of Ethernet.
    pub is_ethernet: bool,
}

/// Another port takes the same packets.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name}: attempting to add tunnel port with same config as port '{other}' ({matched})")]
pub struct SameConfig {
    /// The port that is refused.
    pub name: String,
    /// The port that is there.
    pub other: String,
    /// What both take.
    pub matched: Match,
}

const TIERS: usize = 12;

/// The table.
#[derive(Clone, Debug)]
pub struct Ports<T> {
    ports: HashMap<Match, (String, T)>,
    /// How many ports each tier has: those without are passed over.
    tiers: [u32; TIERS],
}

impl<T> Default for Ports<T> {
    fn default() -> Ports<T> {
        Ports { ports: HashMap::new(), tiers: [0; TIERS] }
    }
}

impl<T> Ports<T> {
    /// Adds a port, unless another takes the same packets.
    pub fn add(&mut self, name: &str, matched: Match, port: T) -> Result<(), SameConfig> {
        if let Some((other, _)) = self.ports.get(&matched) {
            return Err(SameConfig { name: name.into(), other: other.clone(), matched });
        }
        self.tiers[matched.tier()] += 1;
        self.ports.insert(matched, (name.into(), port));
        Ok(())
    }

    /// Removes the port that takes these packets.
    pub fn remove(&mut self, matched: &Match) -> Option<T> {
        let (_, port) = self.ports.remove(matched)?;
        self.tiers[matched.tier()] -= 1;
        Some(port)
    }

    /// The port that a packet has come through.
    pub fn find(&self, packet: &Received) -> Option<&T> {
        let own = if packet.is_ethernet { PacketType::LegacyL2 } else { PacketType::LegacyL3 };
        for key in [Key::One(packet.key), Key::Flow] {
            for remote in [Address::One(packet.src), Address::Flow] {
                for local in [Address::One(packet.dst), Address::Any, Address::Flow] {
                    for packet_type in [own, PacketType::Aware] {
                        let datapath_port = packet.datapath_port;
                        let matched = Match { datapath_port, key, remote, local, packet_type };
                        if self.tiers[matched.tier()] == 0 {
                            break;
                        }
                        if let Some((_, port)) = self.ports.get(&matched) {
                            return Some(port);
                        }
                    }
                }
            }
        }
        None
    }

    /// How many ports there are.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// All ports, by precedence; within a tier in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Match, &T)> {
        let mut all: Vec<_> = self.ports.iter().map(|(matched, (name, port))| (name.as_str(), matched, port)).collect();
        all.sort_by_key(|(_, matched, _)| matched.tier());
        all.into_iter()
    }
}
