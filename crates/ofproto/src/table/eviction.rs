//! Which flow is evicted when a table is full.
//!
//! The flows of a table form groups by the configured subfields, and the largest group loses a flow: the one of least
//! importance, and among these the one that expires first. A flow that never expires is evicted only where a controller
//! has asked for eviction.
//!
//! A full table mostly stays full, and each flow that comes evicts another. So who is next is kept from the first eviction on
//! ([`Candidates`]), and is not searched for each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use openflow::Subfield;
use packet::Time;

use super::{Rule, Table};

/// How long an order holds in which the end of a connection (`fin_timeout`) can put a flow further ahead.
const LOWERED_UNSEEN: Duration = Duration::from_secs(1);

/// Whom to evict first: not those that never expire, then by importance, then by expiry.
type Rank = (bool, u16, Time);

/// What distinguishes a group of flows: the values of the subfields in their matches.
type Values = Arc<[u128]>;

/// The flows that may be evicted, in the order in which they go.
///
/// A packet puts off when its flow expires by `idle_timeout`, and nobody says so here. So a flow is listed by a rank that it had,
/// which is never above the one that it has: where it comes to be the first, it is listed again by that. What `fin_timeout`
/// lowers goes the other way. Where a flow has that action, the order is made anew once in a second.
pub(super) struct Candidates {
    rules: Eligible,
    /// When it was made.
    made: Time,
    /// A flow has the action `fin_timeout`.
    lowered: bool,
    /// The flows of each group by rank, and by address.
    groups: HashMap<Values, BTreeMap<(Rank, usize), Arc<Rule>>>,
    /// The groups by how many flows they have.
    sizes: BTreeSet<(usize, Values)>,
    /// By which rank a flow is listed.
    listed: HashMap<usize, Rank>,
}

/// Which flows may be evicted, and what makes them a group.
#[derive(Clone, PartialEq, Eq)]
struct Eligible {
    /// None where false.
    evicts: bool,
    /// Those, too, that never expire.
    lasting: bool,
    subfields: Vec<Subfield>,
}

impl Eligible {
    fn has(&self, rule: &Rule) -> bool {
        self.evicts && (self.lasting || rule.timeouts() != (0, 0))
    }
}

impl Candidates {
    fn of(table: &Table, now: Time) -> Candidates {
        let mut candidates = Candidates {
            rules: table.eligible(),
            made: now,
            lowered: false,
            groups: HashMap::new(),
            sizes: BTreeSet::new(),
            listed: HashMap::new(),
        };
        table.rules.iter().for_each(|rule| candidates.add(rule));
        candidates
    }

    /// Adds a flow that has come into the table.
    pub(super) fn add(&mut self, rule: &Arc<Rule>) {
        self.lowered |= rule.caps().is_some();
        if !self.rules.has(rule) {
            return;
        }
        let (address, rank) = (address(rule), rank(rule));
        self.change(rule, |members| drop(members.insert((rank, address), rule.clone())));
        self.listed.insert(address, rank);
    }

    /// Removes a flow that has left the table.
    pub(super) fn remove(&mut self, rule: &Arc<Rule>) {
        let address = address(rule);
        if let Some(rank) = self.listed.remove(&address) {
            self.change(rule, |members| drop(members.remove(&(rank, address))));
        }
    }

    /// Changes the flows of a rule's group, and ranks the group by how many it has then.
    fn change(&mut self, rule: &Rule, change: impl FnOnce(&mut BTreeMap<(Rank, usize), Arc<Rule>>)) {
        let values: Values = group(rule, &self.rules.subfields).into();
        let members = self.groups.entry(values.clone()).or_default();
        let before = members.len();
        change(members);
        let after = members.len();
        if after == 0 {
            self.groups.remove(&values);
        }
        let mut place = (before, values);
        self.sizes.remove(&place);
        place.0 = after;
        if after > 0 {
            self.sizes.insert(place);
        }
    }

    /// Who is next.
    fn first(&mut self) -> Option<Arc<Rule>> {
        let members = self.groups.get_mut(&self.sizes.last()?.1)?;
        loop {
            let (&(listed, address), rule) = members.first_key_value()?;
            let rank = rank(rule);
            if rank <= listed {
                return Some(rule.clone());
            }
            let rule = members.remove(&(listed, address))?;
            members.insert((rank, address), rule);
            self.listed.insert(address, rank);
        }
    }
}

fn address(rule: &Arc<Rule>) -> usize {
    Arc::as_ptr(rule).addr()
}

impl Table {
    /// Whether there is no room for one more flow.
    pub fn is_full(&self) -> bool {
        self.settings.max_flows.is_some_and(|max| self.rules.len() >= max as usize)
    }

    /// How many flows there are above the limit.
    pub fn excess(&self) -> usize {
        self.settings.max_flows.map_or(0, |max| self.rules.len().saturating_sub(max as usize))
    }

    /// The flow to evict, if there is one that may be.
    pub fn victim(&mut self, now: Time) -> Option<Arc<Rule>> {
        let eligible = self.eligible();
        let holds =
            |known: &Candidates| known.rules == eligible && !(known.lowered && now.since(known.made) >= LOWERED_UNSEEN);
        let known = self.candidates.take().filter(|known| holds(known));
        let candidates = known.unwrap_or_else(|| Box::new(Candidates::of(self, now)));
        self.candidates.insert(candidates).first()
    }

    /// The flows to evict one after the other, `n` of them or as many as may be. The table is searched once.
    pub fn victims(&self, n: usize) -> Vec<Arc<Rule>> {
        let eligible = self.eligible();
        let mut members: HashMap<Vec<u128>, Vec<&Arc<Rule>>> = HashMap::new();
        for rule in self.rules.iter().filter(|rule| eligible.has(rule)) {
            members.entry(group(rule, &eligible.subfields)).or_default().push(rule);
        }
        let mut members: Vec<_> = members.into_values().collect();
        // Those that are evicted first are at the end.
        members.iter_mut().for_each(|group| group.sort_by_cached_key(|rule| Reverse(rank(rule))));
        let mut largest: BinaryHeap<_> = members.iter().enumerate().map(|(i, group)| (group.len(), i)).collect();
        let mut victims = Vec::new();
        while victims.len() < n
            && let Some((size, i)) = largest.pop()
        {
            victims.extend(members[i].pop().cloned());
            if size > 1 {
                largest.push((size - 1, i));
            }
        }
        victims
    }

    /// The flows that may be evicted, and what makes them a group.
    fn eligible(&self) -> Eligible {
        Eligible {
            evicts: self.settings.evict || self.state.evict,
            lasting: self.state.evict,
            subfields: if self.settings.evict { self.settings.groups.clone() } else { Vec::new() },
        }
    }
}

/// What distinguishes a rule's group: the values of the subfields in its match.
fn group(rule: &Rule, subfields: &[Subfield]) -> Vec<u128> {
    if subfields.is_empty() {
        return Vec::new();
    }
    let key = rule.pattern.key();
    // Groups by options of tunnels are not made.
    subfields.iter().map(|subfield| subfield.in_key().map_or(0, |part| part.get(&key))).collect()
}

/// The flow of the lowest rank is evicted first, one that never expires last.
fn rank(rule: &Rule) -> Rank {
    let after = |since: Time, seconds: u16| (seconds != 0).then(|| since + Duration::from_secs(seconds.into()));
    let (idle_timeout, hard_timeout) = rule.timeouts();
    let hard = after(rule.renewed(), hard_timeout);
    let idle = after(rule.stats.used(), idle_timeout);
    match [hard, idle].into_iter().flatten().min() {
        Some(expiry) => (false, rule.importance, expiry),
        None => (true, rule.importance, rule.created),
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Instructions, TableId};
    use packet::{Field, Key, Mask};
    use proptest::prelude::*;

    use super::*;
    use crate::table::InstructionSet;

    /// A rule of a group with this port.
    fn rule(table: &Table, priority: u16, port: u8, idle: u16, importance: u16) -> Arc<Rule> {
        let (mut key, mut mask) = (Key::new(), Mask::wildcard());
        key.set(Field::InPort, port.into());
        mask.set_exact(Field::InPort);
        let instructions = InstructionSet::default().share(&Instructions::default());
        let mut rule = Rule::new(TableId(0), priority, table.rules.pattern(&key, &mask), instructions, Time(1));
        (rule.idle_timeout, rule.importance) = (idle, importance);
        Arc::new(rule)
    }

    /// Whom a look at all flows finds: the size of the largest groups, and the lowest rank of each of them.
    fn searched(table: &Table) -> (usize, Vec<Rank>) {
        let eligible = table.eligible();
        let mut groups: HashMap<Vec<u128>, Vec<Rank>> = HashMap::new();
        for rule in table.rules.iter().filter(|rule| eligible.has(rule)) {
            groups.entry(group(rule, &eligible.subfields)).or_default().push(rank(rule));
        }
        let most = groups.values().map(Vec::len).max().unwrap_or(0);
        (most, groups.into_values().filter(|ranks| ranks.len() == most).filter_map(|r| r.into_iter().min()).collect())
    }

    proptest! {
        /// Whatever comes, goes, is used and is configured in between.
        #[test]
        fn who_is_next_is_whom_a_search_would_find(
            steps in prop::collection::vec((0u8..8, 0u16..24, 0u8..4, 0u16..3, 0u16..3), 1..120),
        ) {
            let mut table = Table::default();
            (table.settings.max_flows, table.settings.evict) = (Some(8), true);
            for (now, (step, priority, port, idle, importance)) in (2u64..).zip(steps) {
                let pattern = rule(&table, priority, port, 0, 0).pattern.clone();
                let known = table.rules.find(&pattern, priority).cloned();
                match (step, known) {
                    (0..=2, _) => drop(table.insert(rule(&table, priority, port, idle, importance), now)),
                    (3, Some(known)) => drop(table.remove(&known, now)),
                    (4 | 5, Some(known)) => known.stats.add(1, 60, Time(now * 1_000_000_000)),
                    (6, _) if importance == 0 => table.state.evict ^= true,
                    (6, _) if importance == 1 => table.settings.groups = vec![Subfield::whole(Field::InPort)],
                    (7, _) if importance == 0 => drop(table.clear(now)),
                    _ => {}
                }
                let (_, lowest) = searched(&table);
                let victim = table.victim(Time(now)).map(|victim| rank(&victim));
                prop_assert!(victim.map_or(lowest.is_empty(), |rank| lowest.contains(&rank)), "{victim:?} {lowest:?}");
            }
        }
    }
}
