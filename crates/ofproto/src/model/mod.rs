//! The state of bridges. Translation reads it, and bridges change it.
//!
//! | module | what it is |
//! |---|---|
//! | `forwarding` | All that a translation reads, behind one lock |
//! | [`config`] | The configuration of a bridge |
//! | `port` | Ports: how they are declared, shown and described |
//! | `path_check` | BFD and CFM of a port, as translation reads them |
//! | `port_numbers` | Which numbers ports get |
//! | `number_changes` | Which ports and groups have changed last |
//! | `ranks` | Which port has most addresses |
//! | [`bond`] | Bonds: logical ports of several members |
//! | [`vlan`] | VLAN configuration of a port, and what it does to tags |
//! | [`mac`] | The MAC learning table |
//! | `multicast` | What was learnt of multicast groups |
//! | `mac_batch` | What a batch of packets has learnt, until the tables are told |
//! | `flow_changes` | Changes of flows, for whoever is told of them |
//! | [`hidden`] | Flows of the switch's own: in-band control, fail-open |
//! | [`group`] | Groups and their counters |
//! | [`meter`] | Meters |
//! | [`mirror`] | Mirrors and their counters |
//! | `sampling` | What translation knows of what a bridge exports |
//! | `spanning_tree` | Spanning trees, as they are configured and as translation reads them |
//! | `selector` | How a select group chooses among its buckets |
//! | [`shadow`] | The tables as they would be after changes |
//! | `shared` | What the state of bridges and that of their ports both have |
//! | [`tunnels`] | Tunnel ports, and where packets come out of tunnels |
//! | `underlay` | Routes and neighbours, as flows depend on them |
//! | `tlv` | What the tun_metadata fields stand for |
//! | `tree_ports` | Which ports take part in the spanning tree of their bridge |
//! | `transaction` | Changes of flows and groups that take effect together |
//! | `users` | Which flows and groups use a group, a meter or a tun_metadata field |

pub mod bond;
pub mod config;
pub(crate) mod flow_changes;
pub(crate) mod forwarding;
pub mod group;
pub mod hidden;
pub mod mac;
pub(crate) mod mac_batch;
pub mod meter;
pub mod mirror;
pub(crate) mod multicast;
pub(crate) mod number_changes;
pub(crate) mod path_check;
pub(crate) mod port;
pub(crate) mod port_numbers;
mod ranks;
pub(crate) mod sampling;
pub mod selector;
pub mod shadow;
pub(crate) mod shared;
pub(crate) mod spanning_tree;
pub(crate) mod tlv;
pub(crate) mod transaction;
mod tree_ports;
pub mod tunnels;
pub(crate) mod underlay;
pub(crate) mod users;
pub mod vlan;
