//! Statistics as the management side reads them.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use crate::action::PortNo;
use crate::drop::DropReason;

/// Packets dropped, by reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drops(pub [u64; DropReason::ALL.len()]);

impl Default for Drops {
    fn default() -> Drops {
        Drops([0; DropReason::ALL.len()])
    }
}

impl Drops {
    /// Packets dropped for one reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Packets that were not given to the port that they were for.
    pub fn at_output(&self) -> u64 {
        DropReason::ALL.iter().filter(|reason| reason.is_of_output_port()).map(|&reason| self.get(reason)).sum()
    }

    /// Drops since `base` was read.
    pub(crate) fn since(&self, base: &Drops) -> Drops {
        Drops(std::array::from_fn(|i| self.0[i].wrapping_sub(base.0[i])))
    }

    /// The reasons that have occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&r| (r, self.get(r))).filter(|&(_, n)| n != 0)
    }
}

impl AddAssign<&Drops> for Drops {
    fn add_assign(&mut self, other: &Drops) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
    }
}

/// Counters of one worker since start or the last reset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerStats {
    /// Its number: the smallest that was free when the worker was created.
    pub number: usize,
    /// Core that the worker is pinned to.
    pub core: Option<usize>,
    /// The NUMA node of that.
    pub node: usize,
    /// Packets received from ports.
    pub received: u64,
    /// Packets injected by the management ([`Datapath::execute`](crate::Datapath::execute)).
    pub injected: u64,
    /// Packets made from others: copies, and segments of super-frames beyond the first.
    pub copied: u64,
    /// Passes of packets through classification because of recirculation.
    pub recirculated: u64,
    /// Hits of tier 0, the simple match: the port's flows match no more than a packet's mark.
    pub simple_hits: u64,
    /// Hits of tier 1, the header cache and the key cache.
    pub exact_hits: u64,
    /// Hits of tier 2, the megaflow table.
    pub megaflow_hits: u64,
    /// Subtables visited by the packets that reached tier 2, found or not.
    pub subtables_visited: u64,
    /// Misses that the slow path answered.
    pub misses: u64,
    /// Misses that were dropped: queue full or error.
    pub lost: u64,
    /// Bursts sent to ports.
    pub batches_sent: u64,
    /// Packets sent to ports.
    pub sent: u64,
    /// Packets that ports did not take.
    pub refused: u64,
    /// Packets that an action gave to the slow path.
    pub punted: u64,
    /// Packets that became part of another one: segments that have left a tunnel.
    pub joined: u64,
    /// Packets dropped.
    pub drops: Drops,
    /// Cycles of turns that handled packets.
    pub busy_cycles: u64,
    /// Cycles of turns that found nothing.
    pub idle_cycles: u64,
    /// Turns that handled packets.
    pub busy_turns: u64,
    /// All turns.
    pub turns: u64,
    /// Times that the worker went to sleep.
    pub sleeps: u64,
    /// Time spent sleeping.
    pub slept: Duration,
    /// How long it has counted: since the worker was created, or since the last reset.
    pub counted_for: Duration,
}

impl WorkerStats {
    /// Busy cycles for each packet received or recirculated; zero without packets.
    pub fn cycles_per_packet(&self) -> f64 {
        ratio(self.busy_cycles, self.received + self.recirculated)
    }

    /// Packets in the average burst sent; zero without bursts.
    pub fn packets_per_batch(&self) -> f64 {
        ratio(self.sent, self.batches_sent)
    }

    /// Subtables that a packet in tier 2 visited on average.
    pub fn subtables_per_lookup(&self) -> f64 {
        ratio(self.subtables_visited, self.megaflow_hits + self.misses + self.lost)
    }
}

fn ratio(n: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { n as f64 / of as f64 }
}

/// Counters of the datapath.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Each worker's, by number.
    pub workers: Vec<WorkerStats>,
    /// The sum of the workers that have ended.
    pub ended: WorkerStats,
    /// Packets dropped, by the port that they came from, or that refused them
    /// ([`DropReason::PortDown`], [`DropReason::TooBig`]).
    pub ports: Vec<(PortNo, Drops)>,
    /// Flows installed now.
    pub flows: usize,
    /// Different masks of these flows.
    pub masks: usize,
    /// Bytes that these flows take, by the size of their parts.
    pub flow_bytes: usize,
    /// Flows that were evicted, for others or for wider masks, since the start.
    pub evictions: u64,
    /// TSC cycles per second, to turn cycles into time; 1e9 where cycles are nanoseconds.
    pub cycles_per_second: u64,
}

/// Which worker polls which receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RxAssignment {
    /// The port.
    pub port: PortNo,
    /// Number of the queue in the port.
    pub queue: usize,
    /// Number of the worker.
    pub worker: usize,
    /// Whether the configuration has tied it to a core.
    pub pinned: bool,
}

/// How busy queues and workers were lately, in percent of a core's time. `None` in the first seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What the packets of each receive queue have cost.
    pub queues: BTreeMap<(PortNo, usize), Option<u8>>,
    /// Each worker, by number.
    pub workers: BTreeMap<usize, Option<u8>>,
}
