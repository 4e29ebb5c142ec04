//! The tiers of a look-up, for a batch of packets of one input port.
//!
//! 1. Packets of one microflow that follow each other are a run. Only the first of a run, its leader, is
//!    looked up; the others take its flow: no flow of the port tells them apart, for they are equal under
//!    the union of all masks.
//! 2. Tier 1, the worker's exact-match cache, where there is more than one subtable.
//! 3. Tier 2, the megaflows, for what tier 1 does not know.

use packet::{BATCH_SIZE, Key};

use super::arena::FlowRef;
use super::bits;
use super::exact::ExactCache;
use super::megaflow::{PortList, Table};
use crate::rcu::Guard;

/// What was found out about a batch.
pub struct Classified {
    /// The flow of each packet, [`FlowRef::NONE`] where there is none.
    pub flows: [FlowRef; BATCH_SIZE],
    /// Packets that tier 1 led to their flow, with the runs behind them.
    pub exact_hits: u32,
    /// Packets that tier 2 led to their flow, with the runs behind them.
    pub megaflow_hits: u32,
    /// Subtables that tier 2 visited, summed over the leaders.
    pub subtables_visited: u32,
}

/// Finds the flows of packets from the port that `list` belongs to.
#[inline(always)]
pub fn classify(
    keys: &[Key],
    list: &PortList,
    table: &Table,
    exact: &mut ExactCache,
    worker: usize,
    guard: Guard<'_>,
) -> Classified {
    let leaders = leaders(keys, list);
    let mut flows = [FlowRef::NONE; BATCH_SIZE];
    let (known, found, visited) = if list.subtables.len() > 1 {
        exact.classify(keys, leaders, &mut flows, list, table, worker, guard)
    } else {
        // With a single subtable, tier 1 could only repeat it.
        let (found, visited) = table.lookup(list, keys, leaders, &mut flows, worker, guard);
        (0, found, visited)
    };
    let count = keys.len();
    if leaders.count_ones() as usize != count {
        for i in 1..count {
            flows[i] = if leaders >> i & 1 != 0 { flows[i] } else { flows[i - 1] };
        }
    }
    Classified {
        flows,
        exact_hits: packets(known, leaders, count),
        megaflow_hits: packets(found, leaders, count),
        subtables_visited: visited,
    }
}

/// The packets that differ from the one before them. Without packets, none.
#[inline(always)]
fn leaders(keys: &[Key], list: &PortList) -> u32 {
    let mut leaders = u32::from(!keys.is_empty());
    for i in 1..keys.len() {
        leaders |= u32::from(!list.union.equal(&keys[i - 1], &keys[i])) << i;
    }
    leaders
}

/// How many packets the runs have whose leaders are `of`.
#[inline(always)]
fn packets(of: u32, leaders: u32, count: usize) -> u32 {
    if leaders.count_ones() as usize == count {
        return of.count_ones();
    }
    let mut sum = 0;
    for i in bits(of) {
        sum += run_length(leaders, i, count);
    }
    sum
}

/// How many packets the run has whose leader is packet `i` of `count`.
#[inline(always)]
fn run_length(leaders: u32, i: usize, count: usize) -> u32 {
    let behind = leaders.checked_shr(i as u32 + 1).unwrap_or(0);
    (behind.trailing_zeros() + 1).min((count - i) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_the_next_leader_or_with_the_batch() {
        let leaders = 0b1000_0000_0000_0000_0000_0000_0001_0101;
        assert_eq!(run_length(leaders, 0, 32), 2);
        assert_eq!(run_length(leaders, 2, 32), 2);
        assert_eq!(run_length(leaders, 4, 32), 27);
        assert_eq!(run_length(leaders, 31, 32), 1);
        assert_eq!(run_length(0b1, 0, 7), 7);
        assert_eq!(run_length(0b10_0001, 5, 6), 1);
    }
}
