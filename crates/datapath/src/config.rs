//! How a datapath is set up.

use std::time::Duration;

use packet::flow::VlanLimit;

use crate::topology::Topology;

/// Settings of a [`Datapath`](crate::Datapath) at its start. Those for which it has a setter can change
/// while packets flow.
#[derive(Clone, Debug)]
pub struct Config {
    /// Core of each worker. Empty: one worker that may run on any core.
    pub workers: Vec<usize>,
    /// The cores that there are, with their NUMA nodes.
    pub topology: Topology,
    /// Most workers that there can be at a time, those included that are about to end while others take
    /// over. Each costs some memory for each port and mask, even before it exists.
    pub max_workers: usize,
    /// Threads that call [`Upcall`](crate::Upcall): at least one, and at most [`max_workers`](Config::max_workers). They
    /// share the misses of each worker by their connections, of which each stays in order. Eight can share those of one
    /// worker.
    pub handlers: usize,
    /// Longest sleep of an idle worker that has a receive queue without a descriptor to wait for.
    /// Zero: workers never sleep.
    pub max_sleep: Duration,
    /// How long a packet may wait for others to the same port. Zero: sent at the end of its batch.
    pub tx_flush_interval: Duration,
    /// Most flows. Where a missed packet needs one more, another is evicted; to add one otherwise fails with
    /// [`Error::TooManyFlows`](crate::Error::TooManyFlows).
    pub max_flows: usize,
    /// Most bytes that all flows take, in the same way.
    pub max_flow_memory: usize,
    /// Most megaflow masks of one input port, which bounds the work for each packet. Flows that would need
    /// one more get a wider mask, and the masks with few hits go; a flow that is added otherwise is refused
    /// with [`Error::TooManyMasks`](crate::Error::TooManyMasks).
    pub max_masks: usize,
    /// Most entries of each worker's exact-match cache, 36 or 68 bytes each, or 100 where an entry was of both kinds, and
    /// rounded up to a power of two; 16 million at most. It starts with few and grows as flows come.
    pub exact_entries: usize,
    /// One in so many flows that tier 2 finds is inserted in this cache; zero: none.
    pub exact_one_in: u32,
    /// Packets of one worker that may wait for the slow path, over all input ports. One port can have a third of them.
    pub upcall_queue: usize,
    /// Most connections that are tracked.
    pub max_connections: u32,
    /// Times that one packet may be recirculated.
    pub max_depth: u8,
    /// How many VLAN tags of a frame are parsed.
    pub vlan_limit: VlanLimit,
    /// Secret of the hash functions, drawn at start by the caller; fixed in tests.
    pub seed: [u64; 2],
}

impl Config {
    /// How many [`exact_entries`](Config::exact_entries) take no more than so many bytes; without what entries of established connections
    /// take beside, as they are made: 64 bytes, or 120 where addresses of IPv6 are translated.
    pub fn exact_entries_in(bytes: usize) -> usize {
        1 << (bytes / crate::classify::cache::headers::ENTRY_BYTES).max(1).ilog2()
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            workers: Vec::new(),
            topology: Topology::default(),
            max_workers: 16,
            handlers: 1,
            max_sleep: Duration::from_micros(100),
            tx_flush_interval: Duration::ZERO,
            max_flows: 2_000_000,
            max_flow_memory: usize::MAX,
            max_masks: 64,
            exact_entries: 1 << 21,
            exact_one_in: 1,
            upcall_queue: 1 << 14,
            // As in OVS.
            max_connections: 3_000_000,
            max_depth: 8,
            vlan_limit: VlanLimit::default(),
            seed: [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
        }
    }
}
