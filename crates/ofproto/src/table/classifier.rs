//! Finds the rule of highest priority that matches a key, and says which bits it had to look at.
//!
//! Tuple space search: rules with the same mask form a subtable, which is a hash table over the masked
//! key. A lookup visits subtables in the order of their highest priority and stops when none of the
//! rest can hold a better rule. Three things keep the bits that it looks at few, so that the flows
//! cached from its answers cover many packets:
//!
//! 1. a subtable is searched in stages (`layout`): where no rule agrees in the first stages, the
//!    later ones stay wildcards;
//! 2. tries over the IPv4 addresses tell that no rule of a subtable can match, from a few leading bits;
//! 3. a trie over the ports of a subtable does the same when only the last stage disagrees.
//!
//! Which bits these are agrees with OVS, whose megaflows are what people compare ours with.

use std::cmp::Ordering;
use std::sync::Arc;

use hashbrown::HashTable;
use packet::flow::block::{BlockId, Common};
use packet::{Field, Key, Mask};

use super::layout::Layout;
use super::order::Ordered;
use super::trie::{Answer, Trie};

/// What the classifier needs to know of a rule.
pub trait Classified {
    /// Priority; the highest wins.
    fn priority(&self) -> u16;
    /// What is matched.
    fn pattern(&self) -> &Pattern;
    /// The part of a conjunctive match that the rule is, empty for an ordinary rule.
    fn conjunctions(&self) -> &[Conjunction] {
        &[]
    }
}

/// A dimension of a conjunctive match (ovs-fields(7), "Conjunctive Match Fields").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conjunction {
    /// Value of conj_id for the rule that acts when all dimensions match.
    pub id: u32,
    /// This dimension, from zero.
    pub clause: u8,
    /// Number of dimensions.
    pub n_clauses: u8,
}

/// A match in compact form: the values under a shared layout.
#[derive(Clone, Debug)]
pub struct Pattern {
    layout: Arc<Layout>,
    values: Box<[u64]>,
}

impl Pattern {
    /// The match as a key; zero where nothing is matched.
    pub fn key(&self) -> Key {
        self.layout.expand(&self.values)
    }

    /// The match as a mask.
    pub fn mask(&self) -> Mask {
        let mut mask = Mask::wildcard();
        self.layout.fold_into(&mut mask, self.layout.stages());
        mask
    }

    /// Whether every packet matches.
    pub fn is_any(&self) -> bool {
        self.values.is_empty()
    }

    /// The bits of a word of a block that are matched.
    pub fn matched(&self, block: BlockId, word: usize) -> u64 {
        self.layout.matched(block, word)
    }

    /// Whether a packet with this key matches.
    pub fn matches(&self, key: &Key) -> bool {
        self.layout.equal(key, &self.values)
    }
}

/// Tells which patterns match only packets that a key under a mask matches, too.
#[derive(Clone)]
pub struct Within {
    mask: Mask,
    criteria: Pattern,
    /// The layout of the pattern that was looked at last, and whether its mask includes ours: neighbours mostly share
    /// it.
    last: Option<(Arc<Layout>, bool)>,
}

impl Within {
    /// What `key` under `mask` matches.
    pub fn new(key: &Key, mask: &Mask) -> Within {
        let layout = Arc::new(Layout::new(mask));
        Within { mask: mask.clone(), criteria: Pattern { values: layout.values(key), layout }, last: None }
    }

    /// Whether a pattern matches nothing else.
    pub fn contains(&mut self, pattern: &Pattern) -> bool {
        if self.criteria.is_any() {
            return true;
        }
        let known = self.last.as_ref().filter(|(layout, _)| Arc::ptr_eq(layout, &pattern.layout));
        let included = known.map_or_else(|| includes(&pattern.mask(), &self.mask), |(_, included)| *included);
        if known.is_none() {
            self.last = Some((pattern.layout.clone(), included));
        }
        included && self.criteria.matches(&pattern.key())
    }
}

/// Fields with a trie for the whole classifier: the field, and the word of the common block it is in.
const TRIES: [(Field, usize); 2] = [
    (Field::NwDst, std::mem::offset_of!(Common, nw_dst) / 8),
    (Field::NwSrc, std::mem::offset_of!(Common, nw_src) / 8),
];

/// A set of rules with priorities.
pub struct Classifier<R> {
    /// By their highest priorities.
    subtables: Ordered<Subtable<R>>,
    /// Number in `subtables` for each mask.
    by_mask: hashbrown::HashMap<Mask, u32, foldhash::fast::RandomState>,
    tries: [Trie; 2],
    /// Which of the tries lookups use.
    tries_used: [bool; 2],
    len: usize,
}

/// The rules that share a mask.
struct Subtable<R> {
    mask: Mask,
    layout: Arc<Layout>,
    rows: HashTable<Row<R>>,
    /// Number of rules.
    len: usize,
    /// For every stage but the last, how many rows there are for each hash of the stages so far.
    stages: Vec<hashbrown::HashMap<u64, u32, foldhash::fast::RandomState>>,
    /// How many rules there are of each priority.
    priorities: std::collections::BTreeMap<u16, u32>,
    /// Prefix length of each field of [`TRIES`] in the mask; zero where it is not a prefix.
    prefixes: [u8; 2],
    /// Mask over the source and destination port, and the trie over them.
    ports: u32,
    ports_trie: Trie,
}

/// The rules that share mask and values.
struct Row<R> {
    /// The one of highest priority.
    best: Arc<R>,
    /// The rest, by priority, descending.
    rest: Box<[Arc<R>]>,
}

impl<R> Row<R> {
    fn iter(&self) -> impl Iterator<Item = &Arc<R>> {
        std::iter::once(&self.best).chain(&self.rest)
    }

    /// Changes the rest. Few rows have one, so all have two words for it instead of three.
    fn change_rest<T>(&mut self, change: impl FnOnce(&mut Vec<Arc<R>>) -> T) -> T {
        let mut rest = std::mem::take(&mut self.rest).into_vec();
        let result = change(&mut rest);
        self.rest = rest.into();
        result
    }

    /// The rule at a position; the best one is at zero.
    fn get(&self, at: usize) -> Option<&Arc<R>> {
        if at == 0 { Some(&self.best) } else { self.rest.get(at - 1) }
    }
}

impl<R: Classified> Row<R> {
    /// The position of the rule of this priority, or where it would have to be inserted.
    fn position(&self, priority: u16) -> Result<usize, usize> {
        match priority.cmp(&self.best.priority()) {
            Ordering::Equal => Ok(0),
            Ordering::Greater => Err(0),
            Ordering::Less => match self.rest.binary_search_by(|rule| priority.cmp(&rule.priority())) {
                Ok(at) => Ok(at + 1),
                Err(at) => Err(at + 1),
            },
        }
    }
}

impl<R: Classified> Default for Classifier<R> {
    fn default() -> Classifier<R> {
        Classifier {
            subtables: Ordered::default(),
            by_mask: Default::default(),
            tries: Default::default(),
            tries_used: [true; 2],
            len: 0,
        }
    }
}

impl<R: Classified> Classifier<R> {
    /// Says for which fields lookups tell prefixes apart by few bits; `None` for all that they can.
    pub fn use_prefixes(&mut self, fields: Option<&[Field]>) {
        self.tries_used = TRIES.map(|(field, _)| fields.is_none_or(|fields| fields.contains(&field)));
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The compact form of a match. `key` may have bits set outside `mask`.
    pub fn pattern(&self, key: &Key, mask: &Mask) -> Pattern {
        let known = self.by_mask.get(mask).and_then(|&number| self.subtables.get(number));
        let layout = known.map_or_else(|| Arc::new(Layout::new(mask)), |subtable| subtable.layout.clone());
        Pattern { values: layout.values(key), layout }
    }

    /// Adds a rule, or replaces the one with the same match and priority, which is returned.
    pub fn insert(&mut self, rule: Arc<R>) -> Option<Arc<R>> {
        let number = self.subtable_for(rule.pattern());
        let subtable = self.subtables.get_mut(number).expect("every mask has a subtable");
        let replaced = subtable.insert(rule.clone());
        if replaced.is_some() {
            return replaced;
        }
        self.len += 1;
        subtable.len += 1;
        let (values, prefixes) = (rule.pattern(), subtable.prefixes);
        for (trie, (len, (field, _))) in self.tries.iter_mut().zip(prefixes.into_iter().zip(TRIES)) {
            if len > 0 {
                trie.insert(values.key().get(field) as u32, len);
            }
        }
        let priority = subtable.max_priority();
        self.subtables.set_priority(number, priority);
        None
    }

    /// Removes the rule with this match and priority.
    pub fn remove(&mut self, pattern: &Pattern, priority: u16) -> Option<Arc<R>> {
        let number = self.find_subtable(pattern)?;
        let subtable = self.subtables.get_mut(number)?;
        let removed = subtable.remove(pattern, priority)?;
        self.len -= 1;
        subtable.len -= 1;
        for (trie, (len, (field, _))) in self.tries.iter_mut().zip(subtable.prefixes.into_iter().zip(TRIES)) {
            if len > 0 {
                trie.remove(pattern.key().get(field) as u32, len);
            }
        }
        if subtable.rows.is_empty() {
            if let Some(gone) = self.subtables.remove(number) {
                self.by_mask.remove(&gone.mask);
            }
        } else {
            let priority = subtable.max_priority();
            self.subtables.set_priority(number, priority);
        }
        Some(removed)
    }

    /// The rule with exactly this match and priority.
    pub fn find(&self, pattern: &Pattern, priority: u16) -> Option<&Arc<R>> {
        let subtable = self.subtables.get(self.find_subtable(pattern)?)?;
        let row = subtable.row(pattern)?;
        row.position(priority).ok().and_then(|at| row.get(at))
    }

    /// Every rule, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<R>> {
        self.subtables.iter().flat_map(|subtable| subtable.rows.iter().flat_map(Row::iter))
    }

    /// Every rule that matches only packets that `key` under `mask` matches too.
    pub fn iter_within(&self, key: &Key, mask: &Mask) -> impl Iterator<Item = &Arc<R>> {
        let criteria = self.pattern(key, mask);
        let all = criteria.is_any();
        let mask = mask.clone();
        self.subtables
            .iter()
            .filter(move |subtable| includes(&subtable.mask, &mask))
            .flat_map(|subtable| subtable.rows.iter().flat_map(Row::iter))
            .filter(move |rule| all || criteria.matches(&rule.pattern().key()))
    }

    /// Whether a rule can match only packets that the wanted ones include, by the masks alone.
    pub fn may_be_within(&self, wanted: &Within) -> bool {
        self.subtables.iter().any(|subtable| includes(&subtable.mask, &wanted.mask))
    }

    /// How many rules have masks with which they can be among the wanted ones.
    pub fn len_within(&self, wanted: &Within) -> usize {
        let subtables = self.subtables.iter().filter(|subtable| includes(&subtable.mask, &wanted.mask));
        subtables.map(|subtable| subtable.len).sum()
    }

    /// Whether a rule of this priority and `key` under `mask` have a packet in common.
    pub fn overlaps(&self, key: &Key, mask: &Mask, priority: u16) -> bool {
        self.subtables.iter().filter(|subtable| subtable.priorities.contains_key(&priority)).any(|subtable| {
            let both = intersection(&subtable.mask, mask);
            let mut rules = subtable.rows.iter().flat_map(Row::iter).filter(|rule| rule.priority() == priority);
            rules.any(|rule| rule.pattern().key().matches(key, &both))
        })
    }

    /// The best rule for `key`. Bits that the answer depends on are added to `wc`; every key that
    /// equals this one in them gets the same answer. The bits for dl_type and, for IP, nw_frag have
    /// to be in `wc` already.
    pub fn lookup(&self, key: &Key, wc: &mut Mask) -> Option<&Arc<R>> {
        self.search(key, wc, true)
    }

    fn search(&self, key: &Key, wc: &mut Mask, conjunctive: bool) -> Option<&Arc<R>> {
        // A trie that is not used excludes nothing.
        let mut answers = self.tries_used.map(|used| (!used).then_some(Answer { bits: 0, lengths: u32::MAX }));
        let mut best: Option<&Arc<R>> = None;
        let mut soft: Vec<(&Row<R>, usize)> = Vec::new();
        for subtable in self.subtables.iter() {
            if best.is_some_and(|best| best.priority() >= subtable.max_priority()) {
                break;
            }
            let Some(row) = subtable.lookup(key, wc, &self.tries, &mut answers) else { continue };
            if best.is_some_and(|best| best.priority() >= row.best.priority()) {
                continue;
            }
            if row.best.conjunctions().is_empty() {
                best = Some(&row.best);
            } else if conjunctive {
                soft.push((row, 0));
            }
        }
        if soft.is_empty() { best } else { self.resolve(key, wc, best, soft) }
    }

    /// Decides between an ordinary match and parts of conjunctive ones, from the highest priority down.
    fn resolve<'a>(
        &'a self,
        key: &Key,
        wc: &mut Mask,
        mut best: Option<&'a Arc<R>>,
        mut soft: Vec<(&'a Row<R>, usize)>,
    ) -> Option<&'a Arc<R>> {
        let at = |&(row, n): &(&'a Row<R>, usize)| row.iter().nth(n);
        loop {
            soft.retain(|part| at(part).is_some_and(|rule| best.is_none_or(|best| rule.priority() > best.priority())));
            let Some(top) = soft.iter().filter_map(at).map(|rule| rule.priority()).max() else { return best };
            let parts: Vec<_> = soft.iter().filter_map(at).filter(|rule| rule.priority() == top).collect();
            for id in complete_conjunctions(parts.iter().flat_map(|rule| rule.conjunctions())) {
                let mut key = key.clone();
                key.set(Field::ConjId, id.into());
                if let Some(rule) = self.search(&key, wc, false) {
                    return Some(rule);
                }
            }
            for part in soft.iter_mut().filter(|part| at(part).is_some_and(|rule| rule.priority() == top)) {
                part.1 += 1;
                if let Some(rule) = at(part).filter(|rule| rule.conjunctions().is_empty()) {
                    if best.is_none_or(|best| rule.priority() > best.priority()) {
                        best = Some(rule);
                    }
                    part.1 = usize::MAX;
                }
            }
        }
    }

    fn find_subtable(&self, pattern: &Pattern) -> Option<u32> {
        self.by_mask.get(&pattern.mask()).copied()
    }

    fn subtable_for(&mut self, pattern: &Pattern) -> u32 {
        let mask = pattern.mask();
        *self
            .by_mask
            .entry(mask)
            .or_insert_with_key(|mask| self.subtables.push(Subtable::new(mask.clone(), pattern.layout.clone())))
    }
}

impl<R: Classified> Subtable<R> {
    fn new(mask: Mask, layout: Arc<Layout>) -> Subtable<R> {
        let prefixes = TRIES.map(|(field, _)| prefix_len(mask.get(field) as u32));
        let ports = (mask.get(Field::TcpSrc) << 16 | mask.get(Field::TcpDst)) as u32;
        let stages = vec![Default::default(); layout.stages() - 1];
        let (rows, ports_trie) = (HashTable::new(), Trie::default());
        Subtable { mask, layout, rows, len: 0, stages, priorities: Default::default(), prefixes, ports, ports_trie }
    }

    fn max_priority(&self) -> u16 {
        self.priorities.last_key_value().map_or(0, |(&priority, _)| priority)
    }

    fn row(&self, pattern: &Pattern) -> Option<&Row<R>> {
        let hash = self.layout.hash_all(&pattern.values);
        self.rows.find(hash, |row| row.best.pattern().values == pattern.values)
    }

    fn insert(&mut self, rule: Arc<R>) -> Option<Arc<R>> {
        let values = &rule.pattern().values;
        let hash = self.layout.hash_all(values);
        if let Some(row) = self.rows.find_mut(hash, |row| row.best.pattern().values == *values) {
            let position = row.position(rule.priority());
            if position.is_err() {
                *self.priorities.entry(rule.priority()).or_default() += 1;
            }
            return match position {
                Ok(0) => Some(std::mem::replace(&mut row.best, rule)),
                Ok(i) => Some(std::mem::replace(&mut row.rest[i - 1], rule)),
                Err(0) => {
                    let second = std::mem::replace(&mut row.best, rule);
                    row.change_rest(|rest| rest.insert(0, second));
                    None
                }
                Err(i) => {
                    row.change_rest(|rest| rest.insert(i - 1, rule));
                    None
                }
            };
        }
        let mut basis = 0;
        for (stage, counts) in self.stages.iter_mut().enumerate() {
            basis = self.layout.hash_values(stage, basis, values);
            *counts.entry(basis).or_default() += 1;
        }
        if self.ports != 0 {
            self.ports_trie.insert(ports(&rule.pattern().key()) & self.ports, ports_len(self.ports));
        }
        *self.priorities.entry(rule.priority()).or_default() += 1;
        let layout = &self.layout;
        let rehash = |row: &Row<R>| layout.hash_all(&row.best.pattern().values);
        self.rows.insert_unique(hash, Row { best: rule, rest: Box::default() }, rehash);
        None
    }

    fn remove(&mut self, pattern: &Pattern, priority: u16) -> Option<Arc<R>> {
        let hash = self.layout.hash_all(&pattern.values);
        let mut entry = self.rows.find_entry(hash, |row| row.best.pattern().values == pattern.values).ok()?;
        let row = entry.get_mut();
        let index = row.position(priority).ok()?;
        let count = self.priorities.get_mut(&priority).expect("every rule is counted");
        *count -= 1;
        if *count == 0 {
            self.priorities.remove(&priority);
        }
        if index > 0 {
            return Some(row.change_rest(|rest| rest.remove(index - 1)));
        }
        if !row.rest.is_empty() {
            let next = row.change_rest(|rest| rest.remove(0));
            return Some(std::mem::replace(&mut row.best, next));
        }
        let (row, _) = entry.remove();
        let mut basis = 0;
        for (stage, counts) in self.stages.iter_mut().enumerate() {
            basis = self.layout.hash_values(stage, basis, &pattern.values);
            if let hashbrown::hash_map::Entry::Occupied(mut count) = counts.entry(basis) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
        if self.ports != 0 {
            self.ports_trie.remove(ports(&pattern.key()) & self.ports, ports_len(self.ports));
        }
        Some(row.best)
    }

    /// The row that `key` belongs to. Adds to `wc` what was looked at.
    fn lookup(
        &self,
        key: &Key,
        wc: &mut Mask,
        tries: &[Trie; 2],
        answers: &mut [Option<Answer>; 2],
    ) -> Option<&Row<R>> {
        let mut basis = 0;
        for (stage, counts) in self.stages.iter().enumerate() {
            if self.excluded(stage, key, wc, tries, answers) {
                self.layout.fold_into(wc, stage);
                return None;
            }
            basis = self.layout.hash_key(stage, basis, key);
            if !counts.contains_key(&basis) {
                self.layout.fold_into(wc, stage + 1);
                return None;
            }
        }
        let last = self.stages.len();
        if self.excluded(last, key, wc, tries, answers) {
            self.layout.fold_into(wc, last);
            return None;
        }
        basis = self.layout.hash_key(last, basis, key);
        let row = self.rows.find(basis, |row| self.layout.equal(key, &row.best.pattern().values));
        if row.is_none() && self.ports != 0 {
            // Instead of all bits of the ports, those that tell that no rule can match. The earlier
            // stages do have rules that agree, so the disagreement may also be in other fields of the
            // last stage or come from a combination: then the trie covers the ports, and all count.
            let value = ports(key) & self.ports;
            let answer = self.ports_trie.lookup(value, 32);
            if !answer.covers(ports_len(self.ports)) {
                add_ports(wc, self.ports & prefix_mask(answer.bits));
                self.layout.fold_into(wc, last);
                return None;
            }
        }
        self.layout.fold_into(wc, last + 1);
        row
    }

    /// Whether a trie shows that no rule of this subtable can match, without looking at more bits than
    /// the subtable would. Adds to `wc` what was looked at.
    fn excluded(
        &self,
        stage: usize,
        key: &Key,
        wc: &mut Mask,
        tries: &[Trie; 2],
        answers: &mut [Option<Answer>; 2],
    ) -> bool {
        for (i, (field, word)) in TRIES.into_iter().enumerate() {
            let len = self.prefixes[i];
            if len == 0 || !self.layout.stage_has(stage, BlockId::Common, word) {
                continue;
            }
            if key.common().dl_type.get() != 0x0800 {
                continue;
            }
            let answer = *answers[i].get_or_insert_with(|| tries[i].lookup(key.get(field) as u32, 32));
            if answer.covers(len) {
                continue;
            }
            let bits = prefix_mask(answer.bits);
            if answer.bits <= len || wc.get(field) as u32 & bits == bits {
                wc.add(field, bits.into());
                return true;
            }
        }
        false
    }
}

/// The ids of the conjunctions of which every dimension is present, in the order in which they became
/// complete.
fn complete_conjunctions<'a>(parts: impl Iterator<Item = &'a Conjunction>) -> Vec<u32> {
    let (mut seen, mut complete): (Vec<(u32, u8, u64)>, Vec<u32>) = Default::default();
    for part in parts {
        let bit = 1u64 << (part.clause & 63);
        let at = seen.iter().position(|(id, n, _)| (*id, *n) == (part.id, part.n_clauses)).unwrap_or_else(|| {
            seen.push((part.id, part.n_clauses, 0));
            seen.len() - 1
        });
        seen[at].2 |= bit;
        if seen[at].2.count_ones() == u32::from(part.n_clauses) && !complete.contains(&part.id) {
            complete.push(part.id);
        }
    }
    complete
}

/// Whether every bit of `b` is in `a`.
fn includes(a: &Mask, b: &Mask) -> bool {
    b.0.present().iter().all(|block| {
        let (a, b) = (a.0.block(block).words(), b.0.block(block).words());
        a.iter().zip(b).all(|(a, b)| a & b == *b)
    })
}

fn intersection(a: &Mask, b: &Mask) -> Mask {
    Mask(a.0.masked(b))
}

/// Length of a prefix mask, zero where it is none.
fn prefix_len(mask: u32) -> u8 {
    if mask.leading_ones() + mask.trailing_zeros() >= 32 { mask.leading_ones() as u8 } else { 0 }
}

fn prefix_mask(len: u8) -> u32 {
    !u32::MAX.checked_shr(len.into()).unwrap_or(0)
}

fn ports(key: &Key) -> u32 {
    let common = key.common();
    u32::from(common.tp_src.get()) << 16 | u32::from(common.tp_dst.get())
}

fn ports_len(mask: u32) -> u8 {
    32 - mask.trailing_zeros() as u8
}

fn add_ports(wc: &mut Mask, bits: u32) {
    wc.add(Field::TcpSrc, (bits >> 16).into());
    wc.add(Field::TcpDst, (bits & 0xffff).into());
}
