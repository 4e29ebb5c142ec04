//! The slow path: misses and punts of the datapath, and revalidation of its flows.
//!
//! | module | what it is |
//! |---|---|
//! | `upcall` | What the datapath asks: misses, and packets for the controllers |
//! | `record` | What is known of a datapath flow: whom to credit, and what it depends on |
//! | `record_table` | Flows with equal records share one |
//! | `ways` | Translations that are used again for packets that go the same way |
//! | `announcements` | What neighbours are to be told after a failover |
//! | `lacp` | LACP: frames of members |
//! | `lacp_sessions` | The state machines of LACP |
//! | `mac_dependents` | Which flows depend on which address |
//! | `mac_changes` | Addresses are learnt, moved and forgotten, and their flows follow |
//! | `multicast` | Multicast groups are learnt and forgotten, and their flows follow |
//! | `bonds` | Bonds in step with their members' carriers, and what neighbours are told of failovers |
//! | `change_set` | What has changed, and which flows it can be about |
//! | `decision` | Which rules have decided what a datapath flow does |
//! | `drop_sites` | Where the tables drop packets, and how many |
//! | `expiry` | Rules, addresses and members of groups whose time is over |
//! | `flow_dump_log` | Log lines for the flows that rounds find and change |
//! | `trace_log` | Which packet is traced in the log |
//! | `revalidate` | The rounds over the flows: for changes, for statistics |
//! | `waiting` | Who waits for changes to be in force |
//! | `round` | How threads share a round, chunk by chunk |
//! | `revalidators` | The threads that help with a round |
//! | `requests` | What operators ask of the thread that does the rounds |
//! | `control` | What operators have set, and what revalidation remembers between rounds |
//! | `commands` | What operators ask: `upcall/...` and `revalidator/...` |
//! | `intern` | Numbers for values that travel through the datapath |
//! | `neighbour_waits` | The packets that wait for neighbours below tunnels |
//! | `neighbours` | Packets that wait for the addresses of neighbours below tunnels, and frames that tell these |
//! | `lldp` | LLDP: frames that come and go, and VLANs that ports are to carry |
//! | `lldp_agents` | The agents of LLDP |
//! | `path_checks` | BFD and CFM: frames that come and go, and paths that come up or go down |
//! | `path_sessions` | The sessions of BFD and CFM |
//! | `spanning_tree` | STP and RSTP: frames that come and go, and what follows for ports |
//! | `spanning_trees` | The state machines of STP and RSTP |
//! | `flushes` | How often a spanning tree has what was learnt forgotten |
//! | `paused` | Pipelines that wait for a controller |

pub(crate) mod announcements;
mod bonds;
mod change_set;
#[cfg(test)]
pub(crate) mod change_tests;
mod commands;
pub(crate) mod control;
pub(crate) mod decision;
pub(crate) mod drop_sites;
mod expiry;
mod flow_dump_log;
mod flushes;
pub(crate) mod intern;
mod lacp;
pub(crate) mod lacp_sessions;
#[cfg(test)]
mod liveness_tests;
pub(crate) mod lldp;
pub(crate) mod lldp_agents;
#[cfg(test)]
mod lldp_tests;
mod mac_changes;
pub(crate) mod mac_dependents;
mod multicast;
pub(crate) mod neighbour_waits;
mod neighbours;
#[cfg(test)]
mod path_check_tests;
mod path_checks;
pub(crate) mod path_sessions;
pub(crate) mod paused;
#[cfg(test)]
mod port_change_tests;
pub(crate) mod record;
pub(crate) mod record_table;
pub(crate) mod requests;
mod revalidate;
pub(crate) mod revalidators;
pub(crate) mod round;
mod samples;
mod spanning_tree;
#[cfg(test)]
mod spanning_tree_tests;
pub(crate) mod spanning_trees;
pub(crate) mod trace_log;
pub(crate) mod upcall;
pub(crate) mod waiting;
pub(crate) mod ways;
