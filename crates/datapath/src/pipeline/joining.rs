//! Joins segments of TCP that are sent to a port in one burst, as a NIC has received them, to super-frames, where the port takes these: a stack or a
//! guest behind it has one packet to handle in place of up to 45.

use packet::{Batch, Offload, Packet};
use ports::merge::Joiner;
use ports::pools;

use crate::pipeline::join_policy::{JoinPolicy, LONG};
use crate::sync::counters::WorkerCounters;

/// The state of one transmit queue.
#[derive(Default)]
pub struct Joining {
    policy: JoinPolicy,
    /// There from the first attempt on.
    joiner: Option<Box<Joiner>>,
}

impl Joining {
    /// Joins what can be joined, if that has paid lately. Three packets are looked at; where these are short, there is hardly anything to join.
    #[inline(always)]
    pub fn join(&mut self, batch: &mut Batch, counters: &WorkerCounters) {
        if let [first, .., last] = &batch[..]
            && (first.len() >= LONG || last.len() >= LONG || batch[batch.len() / 2].len() >= LONG)
        {
            self.join_long(batch, counters);
        }
    }

    #[inline(never)]
    fn join_long(&mut self, batch: &mut Batch, counters: &WorkerCounters) {
        let is_long = |packet: &&Packet| packet.len() >= LONG && *packet.offload() == Offload::NONE;
        let long = batch.iter().filter(is_long).count();
        if !self.policy.tries(long, || true) {
            return;
        }
        let joiner = self.joiner.get_or_insert_with(|| Box::new(Joiner::new(pools::for_super_frames())));
        let joined = joiner.join(batch, LONG);
        self.policy.record(long, joined);
        counters.joined.add(joined as u64);
    }
}
