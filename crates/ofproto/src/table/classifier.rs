//! Finds the rule of highest priority that matches a key, and says which bits it had to look at.
//!
//! Tuple space search: rules with the same mask form a subtable, which is a hash table over the masked
//! key. A lookup visits subtables in the order of their highest priority and stops when none of the
//! rest can hold a better rule. Three things keep the bits that it looks at few, so that the flows
//! cached from its answers cover many packets:
//!
//! 1. a subtable is searched in stages (`layout`): where no rule agrees in the first stages, the
//!    later ones stay wildcards;
//! 2. tries over the addresses tell that no rule of a subtable can match, from a few leading bits;
//! 3. a trie over the ports of a subtable does the same when only the last stage disagrees.
//!
//! Which bits these are agrees with OVS, whose megaflows are what people compare ours with.
//!
//! - [`search`]: the search itself, also of a table as it would be without some rules or with others

pub mod search;

use std::mem::offset_of;
use std::sync::Arc;

use hashbrown::HashTable;
use packet::flow::block::{BlockId, Common, L3};
use packet::{Field, Key, Mask};

use super::layout::{Agreement, Layout, Values};
use super::order::Ordered;
use super::priorities::Priorities;
use super::row::{Row, short, spread};
use super::trie::{Answer, Trie, Word};
use search::Search;

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
    values: Values,
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

    /// A number that two equal patterns have, and two different ones hardly ever.
    pub fn fingerprint(&self) -> u64 {
        self.layout.fingerprint(&self.values)
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
    /// The layout of the pattern that was looked at last, and what its values have to be, if its mask includes ours: neighbours mostly
    /// share it.
    last: Option<(Arc<Layout>, Option<Agreement>)>,
    /// Where Ethernet packets are asked for: the same without that, for patterns that look at Ethernet's headers, which match no others.
    of_ethernet: Option<Box<Within>>,
}

impl Within {
    /// What `key` under `mask` matches.
    pub fn new(key: &Key, mask: &Mask) -> Within {
        let layout = Arc::new(Layout::new(mask));
        let of_ethernet = without_ethernet(key, mask).map(|mask| Box::new(Within::new(key, &mask)));
        Within { mask: mask.clone(), criteria: Pattern { values: layout.values(key), layout }, last: None, of_ethernet }
    }

    /// Whether a pattern matches nothing else.
    pub fn contains(&mut self, pattern: &Pattern) -> bool {
        let of_ethernet = self.of_ethernet.as_mut().filter(|_| looks_at_ethernet(&pattern.mask()));
        of_ethernet.is_some_and(|within| within.has(pattern)) || self.has(pattern)
    }

    fn has(&mut self, pattern: &Pattern) -> bool {
        if self.criteria.is_any() {
            return true;
        }
        if !self.last.as_ref().is_some_and(|(layout, _)| Arc::ptr_eq(layout, &pattern.layout)) {
            let agreement = includes(&pattern.mask(), &self.mask)
                .then(|| pattern.layout.agreement(&self.criteria.layout, &self.criteria.values));
            self.last = Some((pattern.layout.clone(), agreement));
        }
        self.last.as_ref().and_then(|(_, agreement)| agreement.as_ref()).is_some_and(|to| to.has(&pattern.values))
    }
}

/// A field with a trie for the whole classifier.
#[derive(Clone, Copy)]
struct Prefixed {
    field: Field,
    block: BlockId,
    /// Where it begins, in bytes.
    offset: usize,
}

impl Prefixed {
    fn word(self) -> usize {
        self.offset / 8
    }
}

const fn prefixed(field: Field, block: BlockId, offset: usize) -> Prefixed {
    Prefixed { field, block, offset }
}

const IPV4: [Prefixed; 2] = [
    prefixed(Field::NwDst, BlockId::Common, offset_of!(Common, nw_dst)),
    prefixed(Field::NwSrc, BlockId::Common, offset_of!(Common, nw_src)),
];

const IPV6: [Prefixed; 2] = [
    prefixed(Field::Ipv6Dst, BlockId::L3, offset_of!(L3, ipv6_dst)),
    prefixed(Field::Ipv6Src, BlockId::L3, offset_of!(L3, ipv6_src)),
];

/// Values of fields with tries.
trait Value: Word + Into<u128> {
    fn of(value: u128) -> Self;

    /// What a pattern has of a field.
    fn in_pattern(pattern: &Pattern, at: Prefixed) -> Self;
}

impl Value for u32 {
    fn of(value: u128) -> u32 {
        value as u32
    }

    fn in_pattern(pattern: &Pattern, at: Prefixed) -> u32 {
        u32::from_be_bytes(pattern.layout.bytes(&pattern.values, at.block, at.offset))
    }
}

impl Value for u128 {
    fn of(value: u128) -> u128 {
        value
    }

    fn in_pattern(pattern: &Pattern, at: Prefixed) -> u128 {
        u128::from_be_bytes(pattern.layout.bytes(&pattern.values, at.block, at.offset))
    }
}

/// The tries of some fields, and which of them lookups use.
#[derive(Default)]
struct Tries<W> {
    of: [Trie<W>; 2],
    unused: [bool; 2],
}

/// What tries have said of a key: nothing, where they were not asked.
type Answers<W> = [Option<Answer<W>>; 2];

impl<W: Value> Tries<W> {
    fn insert(&mut self, fields: [Prefixed; 2], lens: [u8; 2], pattern: &Pattern) {
        for (trie, (len, at)) in self.of.iter_mut().zip(lens.into_iter().zip(fields)).filter(|(_, (len, _))| *len > 0) {
            trie.insert(W::in_pattern(pattern, at), len);
        }
    }

    fn remove(&mut self, fields: [Prefixed; 2], lens: [u8; 2], pattern: &Pattern) {
        for (trie, (len, at)) in self.of.iter_mut().zip(lens.into_iter().zip(fields)).filter(|(_, (len, _))| *len > 0) {
            trie.remove(W::in_pattern(pattern, at), len);
        }
    }

    /// A trie that is not used excludes nothing.
    fn answers(&self) -> Answers<W> {
        self.unused.map(|unused| unused.then_some(Answer { bits: 0, lengths: W::ALL }))
    }

    /// Whether no rule has a prefix of this length that covers the key, as is seen without looking at more bits.
    fn exclude(&self, i: usize, field: Field, len: u8, key: &Key, wc: &mut Mask, answers: &mut Answers<W>) -> bool {
        let answer = *answers[i].get_or_insert_with(|| self.of[i].lookup(W::of(key.get(field))));
        if answer.covers(len) {
            return false;
        }
        let bits = W::ALL.keep(answer.bits);
        let excluded = answer.bits <= len || W::of(wc.get(field)) & bits == bits;
        if excluded {
            wc.add(field, bits.into());
        }
        excluded
    }
}

/// A set of rules with priorities.
pub struct Classifier<R> {
    /// By their highest priorities.
    subtables: Ordered<Subtable<R>>,
    /// Number in `subtables` for each mask.
    by_mask: hashbrown::HashMap<Mask, u32, foldhash::fast::RandomState>,
    /// The same by the address of the subtable's layout, which patterns mostly share.
    by_layout: hashbrown::HashMap<usize, u32, foldhash::fast::RandomState>,
    ipv4: Tries<u32>,
    ipv6: Tries<u128>,
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
    priorities: Priorities,
    /// Prefix length of each field of [`IPV4`] and [`IPV6`] in the mask; zero where it is not a prefix.
    prefixes: [[u8; 2]; 2],
    /// Mask over the source and destination port, and the trie over them.
    ports: u32,
    ports_trie: Trie<u32>,
}

impl<R: Classified> Default for Classifier<R> {
    fn default() -> Classifier<R> {
        Classifier {
            subtables: Ordered::default(),
            by_mask: Default::default(),
            by_layout: Default::default(),
            ipv4: Tries::default(),
            ipv6: Tries::default(),
            len: 0,
        }
    }
}

impl<R: Classified> Classifier<R> {
    /// Says for which fields lookups tell prefixes apart by few bits; `None` for all that they can.
    pub fn use_prefixes(&mut self, fields: Option<&[Field]>) {
        let unused = |at: Prefixed| fields.is_some_and(|fields| !fields.contains(&at.field));
        (self.ipv4.unused, self.ipv6.unused) = (IPV4.map(unused), IPV6.map(unused));
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
        let prefixes = subtable.prefixes;
        if prefixes != [[0; 2]; 2] {
            self.ipv4.insert(IPV4, prefixes[0], rule.pattern());
            self.ipv6.insert(IPV6, prefixes[1], rule.pattern());
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
        let prefixes = subtable.prefixes;
        if prefixes != [[0; 2]; 2] {
            self.ipv4.remove(IPV4, prefixes[0], pattern);
            self.ipv6.remove(IPV6, prefixes[1], pattern);
        }
        if subtable.rows.is_empty() {
            if let Some(gone) = self.subtables.remove(number) {
                self.by_mask.remove(&gone.mask);
                self.by_layout.remove(&address(&gone.layout));
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
        row.position(priority, R::priority).ok().and_then(|at| row.rules().get(at))
    }

    /// Every rule, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<R>> {
        self.subtables.iter().flat_map(|subtable| subtable.rules())
    }

    /// Every rule that matches only packets that `key` under `mask` matches too.
    pub fn iter_within(&self, key: &Key, mask: &Mask) -> impl Iterator<Item = &Arc<R>> {
        let of_ethernet = without_ethernet(key, mask).map(|mask| self.iter_of(key, mask, looks_at_ethernet));
        self.iter_of(key, mask.clone(), |_| true).chain(of_ethernet.into_iter().flatten())
    }

    fn iter_of<'a>(
        &'a self,
        key: &Key,
        mask: Mask,
        wanted: fn(&Mask) -> bool,
    ) -> impl Iterator<Item = &'a Arc<R>> + use<'a, R> {
        let criteria = self.pattern(key, &mask);
        let own_mask = mask.clone();
        let is_wanted = move |subtable: &&Subtable<R>| includes(&subtable.mask, &mask) && wanted(&subtable.mask);
        self.subtables.iter().filter(is_wanted).flat_map(move |subtable| {
            let row = subtable.is_decided_by(&own_mask).then(|| subtable.row(&criteria));
            let others = row.is_none().then(|| {
                let agreement = subtable.layout.agreement(&criteria.layout, &criteria.values);
                subtable.rules().filter(move |rule| agreement.has(&rule.pattern().values))
            });
            row.flatten().into_iter().flat_map(Row::rules).chain(others.into_iter().flatten())
        })
    }

    /// Whether a rule can match only packets that the wanted ones include, by the masks alone.
    pub fn may_be_within(&self, wanted: &Within) -> bool {
        let may_be = |mask: &Mask, wanted: &Within| includes(mask, &wanted.mask);
        self.subtables.iter().any(|Subtable { mask, .. }| {
            let of_ethernet = wanted.of_ethernet.as_ref().filter(|_| looks_at_ethernet(mask));
            may_be(mask, wanted) || of_ethernet.is_some_and(|wanted| may_be(mask, wanted))
        })
    }

    /// How many rules have to be looked at for the wanted ones: those that have masks with which they can be among them. Of those with
    /// the same mask, they are in one row.
    pub fn len_within(&self, wanted: &Within) -> usize {
        let of_ethernet = wanted.of_ethernet.as_ref().map_or(0, |wanted| self.len_of(wanted, looks_at_ethernet));
        of_ethernet + self.len_of(wanted, |_| true)
    }

    fn len_of(&self, wanted: &Within, is_wanted: fn(&Mask) -> bool) -> usize {
        let is_wanted = |subtable: &&Subtable<R>| includes(&subtable.mask, &wanted.mask) && is_wanted(&subtable.mask);
        let subtables = self.subtables.iter().filter(is_wanted);
        let to_look_at = |subtable: &Subtable<R>| match subtable.is_decided_by(&wanted.mask) {
            true => subtable.row(&wanted.criteria).map_or(0, |row| row.rules().len()),
            false => subtable.len,
        };
        subtables.map(to_look_at).sum()
    }

    /// How many rules [`overlaps`](Classifier::overlaps) looks at.
    pub fn len_to_compare(&self, mask: &Mask, priority: u16) -> usize {
        let to_compare =
            |subtable: &&Subtable<R>| subtable.priorities.contains(priority) && !subtable.is_decided_by(mask);
        self.subtables.iter().filter(to_compare).map(|subtable| subtable.len).sum()
    }

    /// Whether a rule of this priority and `key` under `mask` have a packet in common.
    pub fn overlaps(&self, key: &Key, mask: &Mask, priority: u16) -> bool {
        Search::of(self).overlaps(key, mask, priority)
    }

    /// The best rule for `key`. Bits that the answer depends on are added to `wc`; every key that
    /// equals this one in them gets the same answer. The bits for dl_type, packet_type and, for IP, nw_frag have
    /// to be in `wc` already.
    pub fn lookup(&self, key: &Key, wc: &mut Mask) -> Option<&Arc<R>> {
        Search::of(self).lookup(key, wc)
    }

    /// The same, and adds to `effort` what conjunctive matches take beyond other look-ups, in rules that are looked at. Where that
    /// is more than [`search::MAX_EFFORT`], the answer is no answer.
    pub fn lookup_counted(&self, key: &Key, wc: &mut Mask, effort: &mut usize) -> Option<&Arc<R>> {
        Search::of(self).lookup_counted(key, wc, effort)
    }

    fn find_subtable(&self, pattern: &Pattern) -> Option<u32> {
        let known = self.by_layout.get(&address(&pattern.layout)).copied();
        known.or_else(|| self.by_mask.get(&pattern.mask()).copied())
    }

    fn subtable_for(&mut self, pattern: &Pattern) -> u32 {
        if let Some(number) = self.find_subtable(pattern) {
            return number;
        }
        let mask = pattern.mask();
        let number = self.subtables.push(Subtable::new(mask.clone(), pattern.layout.clone()));
        self.by_mask.insert(mask, number);
        self.by_layout.insert(address(&pattern.layout), number);
        number
    }
}

impl<R: Classified> Subtable<R> {
    fn new(mask: Mask, layout: Arc<Layout>) -> Subtable<R> {
        let prefixes =
            [IPV4.map(|at| prefix_len(mask.get(at.field) as u32)), IPV6.map(|at| prefix_len(mask.get(at.field)))];
        let ports = (mask.get(Field::TcpSrc) << 16 | mask.get(Field::TcpDst)) as u32;
        let stages = vec![Default::default(); layout.stages() - 1];
        let (rows, ports_trie) = (HashTable::new(), Trie::default());
        Subtable { mask, layout, rows, len: 0, stages, priorities: Default::default(), prefixes, ports, ports_trie }
    }

    fn max_priority(&self) -> u16 {
        self.priorities.highest()
    }

    fn rules(&self) -> impl Iterator<Item = &Arc<R>> {
        self.rows.iter().flat_map(Row::rules)
    }

    /// Whether who matches these bits has packets in common with the rules of one row at most.
    fn is_decided_by(&self, mask: &Mask) -> bool {
        includes(mask, &self.mask)
    }

    /// The rules that match what has this key.
    fn row_of(&self, key: &Key) -> Option<&Row<R>> {
        self.row(&Pattern { values: self.layout.values(key), layout: self.layout.clone() })
    }

    fn row(&self, pattern: &Pattern) -> Option<&Row<R>> {
        let hash = short(self.layout.hash_all(&pattern.values));
        self.rows.find(spread(hash), |row| row.hash() == hash && row.best().pattern().values == pattern.values)
    }

    fn insert(&mut self, rule: Arc<R>) -> Option<Arc<R>> {
        let (values, priority) = (&rule.pattern().values, rule.priority());
        let hash = short(self.layout.hash_all(values));
        let same = |row: &Row<R>| row.hash() == hash && row.best().pattern().values == *values;
        if let Some(row) = self.rows.find_mut(spread(hash), same) {
            return match row.position(priority, R::priority) {
                Ok(at) => Some(row.replace(at, rule)),
                Err(at) => {
                    self.priorities.add(priority);
                    row.insert(at, rule);
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
            self.ports_trie.insert(ports_of(rule.pattern()), ports_len(self.ports));
        }
        self.priorities.add(priority);
        self.rows.insert_unique(spread(hash), Row::new(hash, rule), |row| spread(row.hash()));
        None
    }

    fn remove(&mut self, pattern: &Pattern, priority: u16) -> Option<Arc<R>> {
        let hash = short(self.layout.hash_all(&pattern.values));
        let same = |row: &Row<R>| row.hash() == hash && row.best().pattern().values == pattern.values;
        let mut entry = self.rows.find_entry(spread(hash), same).ok()?;
        let row = entry.get_mut();
        let at = row.position(priority, R::priority).ok()?;
        self.priorities.remove(priority);
        if let Some(removed) = row.remove(at) {
            return Some(removed);
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
            self.ports_trie.remove(ports_of(pattern), ports_len(self.ports));
        }
        Some(row.best().clone())
    }

    /// The row that `key` belongs to. Adds to `wc` what was looked at.
    fn lookup(&self, key: &Key, wc: &mut Mask, prefixes: &mut Prefixes<'_>) -> Option<&Row<R>> {
        let mut basis = 0;
        for (stage, counts) in self.stages.iter().enumerate() {
            if self.excluded(stage, key, wc, prefixes) {
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
        if self.excluded(last, key, wc, prefixes) {
            self.layout.fold_into(wc, last);
            return None;
        }
        basis = self.layout.hash_key(last, basis, key);
        let hash = short(basis);
        let same = |row: &Row<R>| row.hash() == hash && self.layout.equal(key, &row.best().pattern().values);
        let row = self.rows.find(spread(hash), same);
        if row.is_none() && self.ports != 0 {
            // Instead of all bits of the ports, those that tell that no rule can match. The earlier
            // stages do have rules that agree, so the disagreement may also be in other fields of the
            // last stage or come from a combination: then the trie covers the ports, and all count.
            let value = ports(key) & self.ports;
            let answer = self.ports_trie.lookup(value);
            if !answer.covers(ports_len(self.ports)) {
                add_ports(wc, self.ports & u32::ALL.keep(answer.bits));
                self.layout.fold_into(wc, last);
                return None;
            }
        }
        self.layout.fold_into(wc, last + 1);
        row
    }

    /// Whether a trie shows that no rule of this subtable can match, without looking at more bits than
    /// the subtable would. Adds to `wc` what was looked at.
    fn excluded(&self, stage: usize, key: &Key, wc: &mut Mask, prefixes: &mut Prefixes<'_>) -> bool {
        let is_here = |at: Prefixed, len: u8| len > 0 && self.layout.stage_has(stage, at.block, at.word());
        let (ipv4, ipv6) = &mut prefixes.answers;
        match prefixes.ethertype {
            0x0800 => (0..2).any(|i| {
                let len = self.prefixes[0][i];
                is_here(IPV4[i], len) && prefixes.ipv4.exclude(i, IPV4[i].field, len, key, wc, ipv4)
            }),
            0x86dd => (0..2).any(|i| {
                let len = self.prefixes[1][i];
                is_here(IPV6[i], len) && prefixes.ipv6.exclude(i, IPV6[i].field, len, key, wc, ipv6)
            }),
            _ => false,
        }
    }
}

/// What a search knows of the prefixes in use.
struct Prefixes<'a> {
    ipv4: &'a Tries<u32>,
    ipv6: &'a Tries<u128>,
    answers: (Answers<u32>, Answers<u128>),
    ethertype: u16,
}

/// The Ethernet type of what is in an Ethernet frame, or that a packet without Ethernet begins with. Where such a one is looked
/// up, its type stands in place of the other.
fn ethertype(key: &Key) -> u16 {
    let common = key.common();
    match common.packet_type.get() {
        0 => common.dl_type.get(),
        kind if kind >> 16 == 1 => kind as u16,
        _ => 0,
    }
}

fn address(layout: &Arc<Layout>) -> usize {
    Arc::as_ptr(layout) as usize
}

/// The mask without the packet type, where the packet type is Ethernet's, and asked for. Clients ask for it when they ask for a header.
fn without_ethernet(key: &Key, mask: &Mask) -> Option<Mask> {
    let is_asked_for = mask.is_exact(Field::PacketType) && key.get(Field::PacketType) == 0;
    is_asked_for.then(|| {
        let mut mask = mask.clone();
        mask.clear(Field::PacketType);
        mask
    })
}

/// Whether rules with this mask match Ethernet packets only, without saying so.
fn looks_at_ethernet(mask: &Mask) -> bool {
    let fields = [Field::DlType, Field::DlSrc, Field::DlDst, Field::VlanTci];
    mask.is_wild(Field::PacketType) && fields.into_iter().any(|field| !mask.is_wild(field))
}

/// Whether every bit of `b` is in `a`.
fn includes(a: &Mask, b: &Mask) -> bool {
    b.0.present().iter().all(|block| {
        let (a, b) = (a.0.block(block).words(), b.0.block(block).words());
        a.iter().zip(b).all(|(a, b)| a & b == *b)
    })
}

/// Length of a prefix mask, zero where it is none.
fn prefix_len<W: Word>(mask: W) -> u8 {
    let len = (!mask).leading_zeros();
    if mask == W::ALL.keep(len) { len } else { 0 }
}

fn ports(key: &Key) -> u32 {
    let common = key.common();
    u32::from(common.tp_src.get()) << 16 | u32::from(common.tp_dst.get())
}

/// What a pattern has of the ports.
fn ports_of(pattern: &Pattern) -> u32 {
    u32::from_be_bytes(pattern.layout.bytes(&pattern.values, BlockId::Common, offset_of!(Common, tp_src)))
}

fn ports_len(mask: u32) -> u8 {
    32 - mask.trailing_zeros() as u8
}

fn add_ports(wc: &mut Mask, bits: u32) {
    wc.add(Field::TcpSrc, (bits >> 16).into());
    wc.add(Field::TcpDst, (bits & 0xffff).into());
}
