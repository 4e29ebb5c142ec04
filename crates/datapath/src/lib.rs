//! The datapath: workers that receive packets, classify them, run the actions of their flows, and transmit them.
//!
//! The datapath knows nothing of OpenFlow: it defines [`Upcall`], which the layer above implements. [`Datapath`] is
//! the interface of everything else. `ARCHITECTURE.md` lists the stages of a packet's way with the file of each.
//!
//! | module | what it is |
//! |---|---|
//! | [`datapath`] | [`Datapath`], the interface for the rest of the switch |
//! | [`config`] | Settings of a datapath at its start |
//! | [`topology`] | Which cores there are, and at which NUMA node each is |
//! | [`error`] | Why a request to the datapath is refused |
//! | [`action`] | Actions of a flow, in the datapath's own terms |
//! | [`bond`] | Bonds: outputs that choose a port for each packet |
//! | [`upcall`] | The contract between fast path and slow path |
//! | [`stats`] | Statistics of workers, ports and flows |
//! | [`mod@drop`] | Reasons to drop a packet, listed by stage |
//! | [`account`] | The sum of all packets: received, made, sent, dropped |
//! | [`meter`], [`policer`], [`trtcm`], [`shaper`] | Limits of rates: of what flows send to a meter, and of what a port receives and sends |
//! | [`text`] | The text form of datapath flows, as `dpctl/dump-flows` has it |
//! | `worker` | A worker: its turn, mailbox, receive queues, fairness and idle policy |
//! | [`pipeline`] | The stages of a packet's way through a worker, and the metadata of a batch |
//! | [`classify`] | Which flow a packet belongs to: caches, megaflow table, eviction |
//! | `actions` | A flow's actions: compiled into a program, executed on runs of packets |
//! | [`mod@conntrack`] | Connection tracking as a stage |
//! | `slowpath` | Packets on their way to a handler and back, in order and fairly |
//! | `control` | The control plane: ports, workers, handlers, and which worker polls which queue |
//! | [`perf`] | Detailed performance metrics of workers |
//! | [`tap`] | Taps: copies of packets for who looks, with what has become of each |
//! | [`verify`] | Samples for the verification of the caches |
//! | [`sync`] | Deferred freeing (RCU), counters, clocks, the cycle counter |

pub mod account;
pub mod action;
mod actions;
pub mod bond;
mod bucket;
pub mod classify;
pub mod config;
pub mod conntrack;
mod control;
pub mod datapath;
pub mod drop;
pub mod error;
pub mod meter;
pub mod perf;
pub mod pipeline;
pub mod policer;
mod port_no;
pub mod shaper;
mod slowpath;
pub mod stats;
pub mod sync;
pub mod tap;
pub mod text;
pub mod topology;
pub mod trtcm;
pub mod upcall;
pub mod verify;
mod worker;

pub use account::Account;
pub use action::{
    Action, Decapsulation, Encapsulation, FlowSample, HashAlgorithm, IpfixPunt, Kept, MAX_NESTING, PacketInPunt,
    PortNo, Punt, Rewrite, SentTunnel, SflowPunt, TunnelSet,
};
pub use actions::encap::{MADE_UP, made_up_header};
pub use actions::flow_hash::flow_hash;
pub use bond::{BondOutput, Bonds, Bucket};
pub use classify::CacheTier;
pub use config::Config;
pub use control::balance::AutoBalance;
pub use control::scheduler::RxPolicy;
pub use datapath::{Datapath, Tap};
pub use drop::{DropReason, DropStage};
pub use error::Error;
pub use meter::Meter;
pub use policer::{EgressLimits, EgressPolicer, Policer, PolicerLimits, RateLimit};
pub use shaper::{QueueRates, Shaper, ShaperLimits};
pub use stats::{Drops, RxAssignment, Stats, Usage, WorkerStats};
pub use topology::Topology;
pub use trtcm::{TrtcmLimits, TrtcmPolicer, TrtcmRates};
pub use upcall::{FlowDump, FlowId, FlowSpec, FlowStats, FlowTag, FlowUses, Given, Miss, RemovedFlow, Upcall, Verdict};
