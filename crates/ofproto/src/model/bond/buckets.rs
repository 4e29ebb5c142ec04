//! Which member has which bucket of a bond.
//!
//! All members that are enabled share the buckets evenly. A member that is disabled leaves its buckets to the others; one that is
//! enabled takes its share of theirs, from those that have most. So a change moves no more buckets than it has to. Rebalancing moves
//! buckets from the member with most load to the one with least, as OVS does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use datapath::bond::{BUCKETS, Traffic};
use openflow::OfPort;
use packet::Time;

use super::Bond;

/// What has gone by each bucket of a bond whose members the translation chooses: credited with the counters of flows.
pub(crate) struct BucketCounters([[AtomicU64; 2]; BUCKETS]);

impl Default for BucketCounters {
    fn default() -> BucketCounters {
        BucketCounters(std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]))
    }
}

impl BucketCounters {
    /// Counts packets that have gone by a bucket.
    pub fn add(&self, bucket: u8, packets: u64, bytes: u64) {
        let [of_packets, of_bytes] = &self.0[usize::from(bucket)];
        of_packets.fetch_add(packets, Relaxed);
        of_bytes.fetch_add(bytes, Relaxed);
    }
}

/// The buckets.
pub(super) struct Buckets {
    members: [Option<OfPort>; BUCKETS],
    /// Bytes lately: each rebalancing halves it and adds what came since.
    load: [u64; BUCKETS],
    /// What had been counted by the last rebalancing, in the datapath's table and for flows.
    counted: [Traffic; BUCKETS],
    /// What had been counted when the bond began.
    before: [Traffic; BUCKETS],
}

impl Default for Buckets {
    fn default() -> Buckets {
        let nothing = [Traffic::default(); BUCKETS];
        Buckets { members: [None; BUCKETS], load: [0; BUCKETS], counted: nothing, before: nothing }
    }
}

impl Buckets {
    /// The member of a bucket.
    pub fn member(&self, bucket: u8) -> Option<OfPort> {
        self.members[usize::from(bucket)]
    }

    /// Gives a bucket to a member.
    pub fn give(&mut self, bucket: u8, member: OfPort) {
        self.members[usize::from(bucket)] = Some(member);
    }

    /// The load of a bucket, in bytes.
    pub fn load(&self, bucket: u8) -> u64 {
        self.load[usize::from(bucket)]
    }

    /// Begins with what was counted before.
    pub fn start_from(&mut self, counted: Option<[Traffic; BUCKETS]>) {
        self.counted = counted.unwrap_or([Traffic::default(); BUCKETS]);
        self.before = self.counted;
    }

    #[cfg(test)]
    pub fn add_load(&mut self, bucket: u8, bytes: u64) {
        self.load[usize::from(bucket)] += bytes;
    }

    /// Spreads the buckets evenly over the members that are enabled.
    pub fn share(&mut self, enabled: &[OfPort]) {
        let mut counts: BTreeMap<OfPort, usize> = enabled.iter().map(|port| (*port, 0)).collect();
        for member in &mut self.members {
            match member.and_then(|port| counts.get_mut(&port)) {
                Some(count) => *count += 1,
                None => *member = None,
            }
        }
        let (Some(least), most) = (BUCKETS.checked_div(enabled.len()), BUCKETS.div_ceil(enabled.len().max(1))) else {
            return;
        };
        // 1. Those with more than their share give some back.
        for member in &mut self.members {
            if let Some(count) = member.and_then(|port| counts.get_mut(&port))
                && *count > most
            {
                (*count, *member) = (*count - 1, None);
            }
        }
        // 2. Those with less take what is free; and, where there is nothing, of those with one more than the least.
        for (port, count) in wanting(&counts, least) {
            let mut missing = least - count;
            for at in 0..BUCKETS {
                let can_give = |owner: Option<OfPort>| match owner {
                    None => true,
                    Some(owner) => owner != port && counts.get(&owner).is_some_and(|count| *count > least),
                };
                if missing > 0 && can_give(self.members[at]) {
                    if let Some(count) = self.members[at].and_then(|owner| counts.get_mut(&owner)) {
                        *count -= 1;
                    }
                    self.members[at] = Some(port);
                    *counts.entry(port).or_default() += 1;
                    missing -= 1;
                }
            }
        }
        // 3. What is left goes round.
        let mut next = enabled.iter().filter(|port| counts[*port] < most).cycle();
        self.members.iter_mut().filter(|member| member.is_none()).for_each(|member| *member = next.next().copied());
    }
}

/// Members with less than their share, and how many buckets they have.
fn wanting(counts: &BTreeMap<OfPort, usize>, least: usize) -> Vec<(OfPort, usize)> {
    counts.iter().filter(|(_, count)| **count < least).map(|(port, count)| (*port, *count)).collect()
}

/// Less load than this is not moved, in bytes: about 1 Mb/s with the shortest interval.
const WORTH_MOVING: u64 = 100_000;

impl Bond {
    /// Moves load between members, if it is time.
    pub(super) fn rebalance_if_due(&mut self, now: Time) {
        if !self.is_balanced() || now < self.next_rebalance {
            return;
        }
        self.next_rebalance = now + self.settings.rebalance_interval;
        self.count_load();
        if self.rebalance() {
            // Where the table of the datapath says where packets go, no flow depends on it.
            self.pending.members |= self.table().is_none();
            self.fill_table();
        }
        self.buckets.load.iter_mut().for_each(|load| *load /= 2);
    }

    /// Adds what has been counted since the last time.
    fn count_load(&mut self) {
        let counted = self.counted();
        for (bucket, now) in counted.iter().enumerate() {
            self.buckets.load[bucket] += now.since(self.buckets.counted[bucket]).bytes;
        }
        self.buckets.counted = counted;
    }

    /// What has been counted of each bucket, in the datapath's table and for flows.
    fn counted(&self) -> [Traffic; BUCKETS] {
        let mut counted = self.output.as_ref().map_or([Traffic::default(); BUCKETS], |output| output.traffic());
        for (sum, [packets, bytes]) in counted.iter_mut().zip(&self.counters.0) {
            sum.packets = sum.packets.wrapping_add(packets.load(Relaxed));
            sum.bytes = sum.bytes.wrapping_add(bytes.load(Relaxed));
        }
        counted
    }

    /// The buckets with the members by which they go, and what was sent by each since the bond began.
    pub fn traffic(&self) -> Vec<(u8, OfPort, Traffic)> {
        let sent = self.counted();
        let of = |bucket: u8| {
            let at = usize::from(bucket);
            Some((bucket, self.buckets.member(bucket)?, sent[at].since(self.buckets.before[at])))
        };
        (0..=u8::MAX).filter_map(of).collect()
    }

    /// Moves buckets from members with much load to members with little. Returns whether any was moved.
    fn rebalance(&mut self) -> bool {
        let mut loads: BTreeMap<OfPort, u64> =
            self.members().filter(|(_, member)| member.enabled).map(|(port, _)| (port, 0)).collect();
        for bucket in 0..=u8::MAX {
            if let Some(load) = self.buckets.member(bucket).and_then(|port| loads.get_mut(&port)) {
                *load += self.buckets.load(bucket);
            }
        }
        let mut any = false;
        // Each member is given up as the one with most load once, or loses a bucket.
        for _ in 0..2 * BUCKETS {
            let most = loads.iter().max_by_key(|(_, load)| **load).map(|(port, load)| (*port, *load));
            let least = loads.iter().min_by_key(|(_, load)| **load).map(|(port, load)| (*port, *load));
            let (Some(from), Some(to)) = (most, least) else { break };
            let overload = from.1 - to.1;
            if overload < to.1 >> 5 || overload < WORTH_MOVING {
                break;
            }
            let moved = self.buckets.to_move(from, to);
            if moved.is_empty() {
                // Nothing that it has would make it better.
                loads.remove(&from.0);
            }
            for bucket in moved {
                let load = self.buckets.load(bucket);
                self.buckets.give(bucket, to.0);
                loads.entry(from.0).and_modify(|of| *of -= load);
                loads.entry(to.0).and_modify(|of| *of += load);
                let name = |port: OfPort| self.members.get(&port).map_or("", |member| &member.name);
                tracing::info!(
                    target: "bond",
                    "bond {}: shift {}kB of load (with hash {bucket}) from {} to {} (now carrying {}kB and {}kB load, respectively)",
                    self.name, load / 1024, name(from.0), name(to.0), loads[&from.0] / 1024, loads[&to.0] / 1024
                );
                any = true;
            }
        }
        any
    }

    /// Gives a bucket to a member, as an operator says.
    pub fn migrate(&mut self, bucket: u8, to: OfPort) {
        self.buckets.give(bucket, to);
        self.pending.members |= self.table().is_none();
        self.fill_table();
    }

    /// The buckets of a member with their load, in bytes.
    pub fn loads_of(&self, port: OfPort) -> impl Iterator<Item = (u8, u64)> + '_ {
        let of_port = move |bucket: &u8| self.buckets.member(*bucket) == Some(port);
        (0..=u8::MAX).filter(of_port).map(|bucket| (bucket, self.buckets.load(bucket)))
    }

    /// When load is moved next.
    pub fn next_rebalance(&self) -> Time {
        self.next_rebalance
    }
}

impl Buckets {
    /// The buckets of `from` that bring it and `to` closest to the middle of both; none where that would not be better by a tenth.
    fn to_move(&self, from: (OfPort, u64), to: (OfPort, u64)) -> Vec<u8> {
        let loaded = (0..=u8::MAX).filter(|&bucket| self.member(bucket) == Some(from.0) && self.load(bucket) > 0);
        let mut loaded: Vec<u8> = loaded.collect();
        if loaded.len() < 2 {
            return Vec::new();
        }
        loaded.sort_by_key(|&bucket| std::cmp::Reverse(self.load(bucket)));
        let wanted = (from.1 + to.1) / 2 - to.1;
        let threshold = wanted / 10;
        let (mut moved, mut sum) = (Vec::new(), 0);
        for &bucket in &loaded {
            if sum + self.load(bucket) <= wanted {
                moved.push(bucket);
                sum += self.load(bucket);
            }
            if wanted - sum < threshold {
                break;
            }
        }
        if moved.is_empty() {
            // The one with least load is the closest.
            moved.extend(loaded.last());
            sum = moved.iter().map(|&bucket| self.load(bucket)).sum();
        }
        let lower = (from.1 - sum).min(to.1 + sum);
        if lower > to.1 && lower - to.1 >= threshold { moved } else { Vec::new() }
    }
}
