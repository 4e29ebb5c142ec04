//! The MAC learning table of a bridge.
//!
//! Entries age unless packets refresh them. The table has a size limit. When it is full, the port with most entries
//! loses the one that was used least recently, so a port that invents addresses hurts itself first. Static entries
//! neither age nor move.
//!
//! Each change that forwarding can notice is handed to whoever makes it ([`MacChanges`]), so that the flows that depend
//! on the address can be found.
//!
//! An address is learnt from a packet that misses, and its entry is refreshed by what statistics tell of datapath flows
//! ([`MacUse`]). These also learn an address again that the table had no room for. There, addresses in use keep their
//! places: when more of them are in use than the table holds, they don't take turns.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use openflow::OfPort;
use packet::Time;
use parking_lot::{RwLock, RwLockReadGuard};
use ports::Mac;

/// An address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacKey {
    /// VLAN id, zero for none.
    pub vlan: u16,
    /// Ethernet address.
    pub mac: Mac,
}

/// An entry as listings show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacEntry {
    /// Address and VLAN.
    pub key: MacKey,
    /// Where the address is.
    pub port: OfPort,
    /// When a packet from it was last seen; `None` for a static entry.
    pub used: Option<Time>,
}

/// Settings of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacSettings {
    /// An entry is removed when it was not used for this long.
    pub ageing: Duration,
    /// Most entries.
    pub max_entries: usize,
}

impl Default for MacSettings {
    fn default() -> MacSettings {
        MacSettings { ageing: Duration::from_secs(300), max_entries: 8192 }
    }
}

/// Counters of the table, as `fdb/stats-show` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct MacStats {
    pub learned: u64,
    pub expired: u64,
    pub evicted: u64,
    pub moved: u64,
}

/// The MAC table of a bridge and its lock. Translations read it, and tell afterwards what they have learnt.
#[derive(Default)]
pub struct MacLearning {
    table: RwLock<MacTable>,
    /// How often a packet from a static address has come in elsewhere; counted while the table is shared.
    elsewhere: AtomicU64,
}

impl MacLearning {
    /// An empty table.
    pub fn new(settings: MacSettings) -> MacLearning {
        MacLearning { table: RwLock::new(MacTable::new(settings)), elsewhere: AtomicU64::new(0) }
    }

    /// The table, shared.
    pub fn read(&self) -> RwLockReadGuard<'_, MacTable> {
        self.table.read()
    }

    /// Counts a packet from a static address that came in on another port ([`MacTable::is_elsewhere`]).
    pub fn count_elsewhere(&self) {
        self.elsewhere.fetch_add(1, Relaxed);
    }

    /// How many were counted.
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere.load(Relaxed)
    }

    /// Changes the table. The flows that depend on what has changed are to be looked at.
    pub fn change<T>(&self, change: impl FnOnce(&mut MacTable) -> T) -> (T, MacChanges) {
        let mut table = self.table.write();
        let result = change(&mut table);
        (result, MacChanges(std::mem::take(&mut table.changes)))
    }
}

/// The addresses of which lookups answer something else than before.
#[must_use]
pub struct MacChanges(Vec<MacChange>);

impl MacChanges {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each one.
    pub fn iter(&self) -> impl Iterator<Item = MacChange> + '_ {
        self.0.iter().copied()
    }
}

/// A change of where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacChange {
    /// Which address.
    pub key: MacKey,
    /// Whether packets from the address have to be looked at, too, for they may have to learn it. An address that was
    /// evicted is learnt again through statistics.
    pub concerns_sources: bool,
}

/// Packets from an address were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacUse {
    /// Which address.
    pub key: MacKey,
    /// Where they came in.
    pub port: OfPort,
    /// When the last one did.
    pub used: Time,
    /// Whether the address may be learnt again, where it was evicted.
    pub learn: bool,
}

/// An entry of the table.
#[derive(Clone, Copy)]
struct MacSlot {
    key: MacKey,
    port: OfPort,
    /// A static entry. It is in no port's list.
    fixed: bool,
    used: Time,
    /// Neighbours in the list of its port.
    older: u32,
    newer: u32,
}

impl MacSlot {
    /// As listings show it.
    fn entry(&self) -> MacEntry {
        MacEntry { key: self.key, port: self.port, used: (!self.fixed).then_some(self.used) }
    }
}

/// Entries of a port from the least to the most recently used, without the static ones.
struct PortEntries {
    oldest: u32,
    newest: u32,
    count: usize,
}

/// No slot.
const NONE: u32 = u32::MAX;

/// An entry is not refreshed more often than this.
pub(crate) const REFRESH: Duration = Duration::from_secs(1);

/// An entry that was used within this time keeps its place from addresses of the same port that only statistics tell
/// of. Each entry in use is refreshed more often.
const IN_USE: Duration = Duration::from_secs(5);

/// The table.
#[derive(Default)]
pub struct MacTable {
    settings: MacSettings,
    stats: MacStats,
    slots: Vec<MacSlot>,
    free: Vec<u32>,
    by_key: HashMap<MacKey, u32, foldhash::fast::RandomState>,
    by_port: HashMap<OfPort, PortEntries, foldhash::fast::RandomState>,
    /// Static entries.
    fixed: usize,
    /// The ports by the number of their entries.
    ranks: BTreeSet<(usize, OfPort)>,
    /// When addresses were last forgotten other than by eviction. Packets of before then teach nothing.
    cleared: Time,
    /// What has changed since they were taken ([`MacLearning::change`]).
    changes: Vec<MacChange>,
}

impl MacTable {
    /// An empty table.
    pub fn new(settings: MacSettings) -> MacTable {
        MacTable { settings, ..MacTable::default() }
    }

    /// Settings in force.
    pub fn settings(&self) -> MacSettings {
        self.settings
    }

    /// Changes the settings; entries beyond a smaller limit go. As in OVS, they count as expired.
    pub fn set_settings(&mut self, settings: MacSettings) {
        self.settings = settings;
        while self.len() > self.settings.max_entries && self.evict() {
            self.stats.expired += 1;
        }
    }

    fn slot(&self, key: MacKey) -> Option<&MacSlot> {
        self.by_key.get(&key).map(|&slot| &self.slots[slot as usize])
    }

    /// Where the address is.
    pub fn lookup(&self, key: MacKey) -> Option<OfPort> {
        self.slot(key).map(|entry| entry.port)
    }

    /// Whether a packet from `key` on `port` has to be learnt from before it can be forwarded without: it would change
    /// what [`lookup`](MacTable::lookup) answers, and push no other address out.
    pub fn would_change(&self, key: MacKey, port: OfPort) -> bool {
        let room = self.len() < self.settings.max_entries;
        !is_multicast(key.mac) && self.slot(key).map_or(room, |entry| !entry.fixed && entry.port != port)
    }

    /// Whether a packet from a static address came in on another port than its own.
    pub fn is_elsewhere(&self, key: MacKey, port: OfPort) -> bool {
        self.slot(key).is_some_and(|entry| entry.fixed && entry.port != port)
    }

    /// Whether [`learn`](MacTable::learn) would do anything at all.
    pub fn needs_learning(&self, key: MacKey, port: OfPort, now: Time) -> bool {
        let current = |entry: &MacSlot| entry.fixed || entry.port == port && now.since(entry.used) < REFRESH;
        !is_multicast(key.mac) && !self.slot(key).is_some_and(current)
    }

    /// Learns that packets from `key` come in on `port`. Returns whether lookups change.
    pub fn learn(&mut self, key: MacKey, port: OfPort, now: Time) -> bool {
        if is_multicast(key.mac) {
            return false;
        }
        let Some(&slot) = self.by_key.get(&key) else { return self.add(key, port, now) };
        let entry = self.slots[slot as usize];
        if entry.fixed {
            return false;
        }
        self.unlink(slot);
        (self.slots[slot as usize].port, self.slots[slot as usize].used) = (port, now);
        self.link(slot);
        if entry.port != port {
            self.stats.moved += 1;
            self.changes.push(MacChange { key, concerns_sources: true });
        }
        entry.port != port
    }

    /// Adds a learnt entry. If there is no room, and no other entry can go, it does not.
    fn add(&mut self, key: MacKey, port: OfPort, used: Time) -> bool {
        while self.len() >= self.settings.max_entries {
            if !self.evict() {
                return false;
            }
            self.stats.evicted += 1;
        }
        let slot = self.insert(MacSlot { key, port, fixed: false, used, older: NONE, newer: NONE });
        self.link(slot);
        self.stats.learned += 1;
        self.changes.push(MacChange { key, concerns_sources: true });
        true
    }

    /// Takes note of packets from an address. They refresh its entry. An address that was evicted gets its entry back,
    /// but not at the cost of another one of the same port that is in use, too.
    pub fn note(&mut self, seen: MacUse) {
        let MacUse { key, port, used, learn } = seen;
        if let Some(&slot) = self.by_key.get(&key) {
            let entry = self.slots[slot as usize];
            if !entry.fixed && entry.port == port && entry.used < used {
                self.unlink(slot);
                self.slots[slot as usize].used = used;
                self.link(slot);
            }
        } else if learn && used > self.cleared && !is_multicast(key.mac) && self.has_place_for(port, used) {
            self.add(key, port, used);
        }
    }

    /// Whether an address of `port` that was in use at a time gets an entry.
    fn has_place_for(&self, port: OfPort, used: Time) -> bool {
        let victim = || self.victim().map(|slot| &self.slots[slot as usize]);
        self.len() < self.settings.max_entries
            || victim().is_some_and(|victim| victim.port != port || used.since(victim.used) > IN_USE)
    }

    /// Adds a static entry, in place of a learnt one.
    pub fn add_static(&mut self, key: MacKey, port: OfPort) {
        self.take_out(key);
        self.insert(MacSlot { key, port, fixed: true, used: Time(0), older: NONE, newer: NONE });
        self.changes.push(MacChange { key, concerns_sources: true });
    }

    /// Puts a learnt entry back, as after a restart.
    pub fn restore(&mut self, entry: MacEntry) {
        match entry.used {
            Some(used) => drop(self.learn(entry.key, entry.port, used)),
            None => self.add_static(entry.key, entry.port),
        }
    }

    /// Forgets an address of either kind, at this time. Returns whether it was there.
    pub fn remove(&mut self, key: MacKey, now: Time) -> bool {
        let found = self.take_out(key);
        if found {
            self.cleared = now;
            self.changes.push(MacChange { key, concerns_sources: true });
        }
        found
    }

    /// Forgets where an address was learnt, if it was.
    pub fn remove_learnt(&mut self, key: MacKey, now: Time) {
        if self.slot(key).is_some_and(|entry| !entry.fixed) {
            self.remove(key, now);
        }
    }

    /// Forgets every learnt address; static entries stay.
    pub fn flush(&mut self, now: Time) {
        self.remove_where(now, |entry| !entry.fixed);
    }

    /// Forgets every address of these ports, which were removed.
    pub fn flush_ports(&mut self, ports: &[OfPort], now: Time) {
        let ports: HashSet<OfPort> = ports.iter().copied().collect();
        self.remove_where(now, |entry| ports.contains(&entry.port));
    }

    /// Forgets what was learnt of a port, whose VLANs are others now; static entries stay.
    pub fn flush_learnt(&mut self, port: OfPort, now: Time) {
        self.remove_where(now, |entry| !entry.fixed && entry.port == port);
    }

    /// Forgets everything; for a table that replaces another.
    pub fn clear(&mut self, now: Time) {
        self.remove_where(now, |_| true);
    }

    /// Removes at most this many of the entries that have aged. Returns how many. It looks at no others: an entry goes
    /// when all those of its port have gone that were used before it.
    pub fn expire(&mut self, now: Time, most: usize) -> usize {
        let mut aged = Vec::new();
        for entries in self.by_port.values() {
            let mut next = entries.oldest;
            while aged.len() < most
                && let Some(entry) = self.slots.get(next as usize)
                && now.since(entry.used) >= self.settings.ageing
            {
                aged.push(entry.key);
                next = entry.newer;
            }
        }
        for &key in &aged {
            self.remove(key, now);
        }
        self.stats.expired += aged.len() as u64;
        aged.len()
    }

    /// When the next entry ages.
    pub fn next_expiry(&self) -> Option<Time> {
        let oldest = self.by_port.values().map(|entries| self.slots[entries.oldest as usize].used);
        oldest.min().map(|used| used + self.settings.ageing)
    }

    /// Every entry, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = MacEntry> {
        self.by_key.values().map(|&slot| self.slots[slot as usize].entry())
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Number of static entries.
    pub fn fixed_len(&self) -> usize {
        self.fixed
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Counters.
    pub fn stats(&self) -> MacStats {
        self.stats
    }

    /// Sets the counters, as after a restart.
    pub fn set_stats(&mut self, stats: MacStats) {
        self.stats = stats;
    }

    /// Sets the counters to zero.
    pub fn clear_stats(&mut self) {
        self.stats = MacStats::default();
    }

    fn remove_where(&mut self, now: Time, gone: impl Fn(&MacSlot) -> bool) -> usize {
        let slots = self.by_key.values().map(|&slot| &self.slots[slot as usize]);
        let keys: Vec<MacKey> = slots.filter(|entry| gone(entry)).map(|entry| entry.key).collect();
        for &key in &keys {
            self.remove(key, now);
        }
        keys.len()
    }

    /// The entry of an address.
    pub fn entry(&self, key: MacKey) -> Option<MacEntry> {
        self.slot(key).map(MacSlot::entry)
    }

    /// The entry to be evicted next: the least recently used one of the port with most entries.
    fn victim(&self) -> Option<u32> {
        let (_, port) = self.ranks.last()?;
        Some(self.by_port[port].oldest)
    }

    fn evict(&mut self) -> bool {
        let Some(slot) = self.victim() else { return false };
        let key = self.slots[slot as usize].key;
        self.take_out(key);
        self.changes.push(MacChange { key, concerns_sources: false });
        true
    }

    fn insert(&mut self, entry: MacSlot) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(entry);
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = entry;
        self.by_key.insert(entry.key, slot);
        self.fixed += usize::from(entry.fixed);
        slot
    }

    /// Removes an entry. Returns whether there was one.
    fn take_out(&mut self, key: MacKey) -> bool {
        let Some(slot) = self.by_key.remove(&key) else { return false };
        if self.slots[slot as usize].fixed {
            self.fixed -= 1;
        } else {
            self.unlink(slot);
        }
        self.free.push(slot);
        true
    }

    /// Makes a learnt entry its port's most recently used one.
    fn link(&mut self, slot: u32) {
        let port = self.slots[slot as usize].port;
        let entries = self.by_port.entry(port).or_insert(PortEntries { oldest: NONE, newest: NONE, count: 0 });
        let newest = std::mem::replace(&mut entries.newest, slot);
        (self.slots[slot as usize].older, self.slots[slot as usize].newer) = (newest, NONE);
        match self.slots.get_mut(newest as usize) {
            Some(newest) => newest.newer = slot,
            None => entries.oldest = slot,
        }
        entries.count += 1;
        self.ranks.remove(&(entries.count - 1, port));
        self.ranks.insert((entries.count, port));
    }

    /// Takes a learnt entry out of its port's list.
    fn unlink(&mut self, slot: u32) {
        let MacSlot { port, older, newer, .. } = self.slots[slot as usize];
        let Some(entries) = self.by_port.get_mut(&port) else { return };
        match self.slots.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => entries.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => entries.newest = older,
        }
        entries.count -= 1;
        let count = entries.count;
        self.ranks.remove(&(count + 1, port));
        if count > 0 {
            self.ranks.insert((count, port));
        } else {
            self.by_port.remove(&port);
        }
    }
}

/// Whether the group bit is set.
pub fn is_multicast(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn key(n: u8) -> MacKey {
        MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, n] }
    }

    fn at(secs: u64) -> Time {
        Time(secs * 1_000_000_000)
    }

    fn seen(n: u8, port: u32, secs: u64, learn: bool) -> MacUse {
        MacUse { key: key(n), port: OfPort(port), used: at(secs), learn }
    }

    /// What has changed since the last call, by the last byte of the address.
    fn changed(table: &mut MacTable) -> Vec<(u8, bool)> {
        let changes = std::mem::take(&mut table.changes);
        changes.iter().map(|change| (change.key.mac[5], change.concerns_sources)).collect()
    }

    #[test]
    fn learns_moves_and_ages() {
        let mut table = MacTable::new(MacSettings { ageing: Duration::from_secs(10), max_entries: 8 });
        assert!(table.learn(key(1), OfPort(1), at(0)));
        assert!(!table.learn(key(1), OfPort(1), at(5)));
        assert!(table.learn(key(1), OfPort(2), at(6)));
        assert_eq!(table.lookup(key(1)), Some(OfPort(2)));
        assert_eq!(changed(&mut table), [(1, true), (1, true)], "learnt and moved, but not refreshed");
        assert!(!table.learn(MacKey { vlan: 0, mac: [1; 6] }, OfPort(1), at(0)));
        assert_eq!(table.next_expiry(), Some(at(16)));
        assert_eq!(table.expire(at(15), 9), 0);
        table.note(seen(1, 2, 9, false));
        table.note(seen(1, 1, 14, true));
        assert_eq!(table.expire(at(18), 9), 0);
        assert_eq!(changed(&mut table), []);
        assert_eq!(table.expire(at(19), 9), 1, "refreshed by packets of its own port only");
        assert_eq!(changed(&mut table), [(1, true)]);
        assert_eq!(table.stats(), MacStats { learned: 1, expired: 1, evicted: 0, moved: 1 });
    }

    /// Whatever the size of the table, no more entries are looked at or removed at a time than are asked for.
    #[test]
    fn ageing_takes_a_bounded_step() {
        let mut table = MacTable::new(MacSettings { ageing: Duration::from_secs(10), max_entries: 100 });
        for n in 0..40 {
            table.learn(key(n), OfPort(u32::from(n) % 3), at(u64::from(n)));
        }
        table.add_static(key(99), OfPort(1));
        assert_eq!(table.next_expiry(), Some(at(10)));
        assert_eq!((table.expire(at(35), 7), table.len()), (7, 34), "of 26 that have aged");
        assert_eq!((table.expire(at(35), 7), table.expire(at(35), 7)), (7, 7));
        assert_eq!((table.expire(at(35), 7), table.expire(at(35), 7)), (5, 0));
        assert_eq!((table.stats().expired, table.next_expiry(), table.len()), (26, Some(at(36)), 15));
    }

    #[test]
    fn a_smaller_table_keeps_the_shares_of_the_ports() {
        let mut table = MacTable::new(MacSettings { max_entries: 100, ..MacSettings::default() });
        for n in 0..40 {
            let _ = table.learn(key(n), OfPort(1), at(u64::from(n)));
        }
        for n in 50..55 {
            let _ = table.learn(key(n), OfPort(2), at(0));
        }
        table.add_static(key(99), OfPort(1));
        table.set_settings(MacSettings { max_entries: 12, ..MacSettings::default() });
        let mut left: Vec<_> = table.iter().map(|entry| entry.key.mac[5]).collect();
        left.sort_unstable();
        assert_eq!(left, [34, 35, 36, 37, 38, 39, 50, 51, 52, 53, 54, 99]);
        assert_eq!((table.stats().expired, table.stats().evicted), (34, 0));
        assert!(table.learn(key(60), OfPort(3), at(50)) && table.lookup(key(34)).is_none());
        assert_eq!((table.len(), table.stats().evicted), (12, 1));
    }

    #[test]
    fn static_addresses_stay_where_they_are() {
        let mut table = MacTable::new(MacSettings::default());
        table.add_static(key(1), OfPort(1));
        table.learn(key(2), OfPort(1), at(0));
        assert!(table.is_elsewhere(key(1), OfPort(2)) && !table.is_elsewhere(key(1), OfPort(1)));
        assert!(!table.is_elsewhere(key(2), OfPort(2)), "it moves");
        assert_eq!(table.entry(key(1)), Some(MacEntry { key: key(1), port: OfPort(1), used: None }));
        table.remove_learnt(key(1), at(1));
        table.remove_learnt(key(2), at(1));
        assert_eq!((table.lookup(key(1)), table.lookup(key(2))), (Some(OfPort(1)), None));
    }

    #[test]
    fn eviction_is_fair() {
        let mut table = MacTable::new(MacSettings { max_entries: 4, ..MacSettings::default() });
        table.learn(key(1), OfPort(1), at(0));
        for n in 2..=10 {
            table.learn(key(n), OfPort(2), at(n.into()));
        }
        assert_eq!(table.len(), 4);
        assert_eq!(table.lookup(key(1)), Some(OfPort(1)), "the quiet port keeps its entry");
        assert_eq!(table.lookup(key(7)), None);
        assert_eq!(table.lookup(key(10)), Some(OfPort(2)));
        let evicted = changed(&mut table).into_iter().filter(|(_, concerns_sources)| !concerns_sources);
        assert_eq!(evicted.map(|(n, _)| n).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn static_entries_stay() {
        let mut table = MacTable::new(MacSettings::default());
        table.add_static(key(1), OfPort(1));
        assert!(!table.learn(key(1), OfPort(2), at(1)));
        assert!(!table.would_change(key(1), OfPort(2)));
        table.flush(at(2));
        table.expire(at(10_000), 9);
        assert_eq!(table.lookup(key(1)), Some(OfPort(1)));
        table.flush_ports(&[OfPort(1)], at(10_001));
        assert!(table.is_empty());
    }

    /// Six addresses of one port are in use all the time, and four have room: which ones stays as it is.
    #[test]
    fn addresses_in_use_do_not_take_turns() {
        let mut table = MacTable::new(MacSettings { max_entries: 4, ..MacSettings::default() });
        for n in 1..=6 {
            table.learn(key(n), OfPort(1), at(1));
        }
        table.changes.clear();
        assert!((1..=6).all(|n| !table.would_change(key(n), OfPort(1))), "none has to be learnt from a packet");
        for second in 2..30 {
            (1..=6).for_each(|n| table.note(seen(n, 1, second, true)));
        }
        assert_eq!(changed(&mut table), []);
        // Another port gets its entry all the same, and an entry that is not used any more goes.
        table.note(seen(9, 2, 30, true));
        assert_eq!(changed(&mut table), [(3, false), (9, true)]);
        for second in 31..40 {
            (1..=5).for_each(|n| table.note(seen(n, 1, second, true)));
        }
        assert_eq!(changed(&mut table), [(6, false), (1, true)]);
    }

    #[test]
    fn packets_of_before_a_flush_teach_nothing() {
        let mut table = MacTable::new(MacSettings::default());
        table.learn(key(1), OfPort(1), at(1));
        table.flush(at(5));
        table.note(seen(1, 1, 5, true));
        table.note(seen(1, 1, 6, false));
        assert!(table.is_empty());
        table.note(seen(1, 1, 6, true));
        assert_eq!(table.lookup(key(1)), Some(OfPort(1)));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Learn(u8, u32),
        Note(u8, u32, bool),
        Static(u8, u32),
        Remove(u8),
        Flush,
        FlushPort(u32),
        Expire,
        Limit(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let (n, port) = (0u8..8, 1u32..4);
        prop_oneof![
            8 => (n.clone(), port.clone()).prop_map(|(n, port)| Event::Learn(n, port)),
            6 => (n.clone(), port.clone(), any::<bool>()).prop_map(|(n, port, learn)| Event::Note(n, port, learn)),
            1 => (n.clone(), port.clone()).prop_map(|(n, port)| Event::Static(n, port)),
            1 => n.prop_map(Event::Remove),
            1 => Just(Event::Flush),
            1 => port.prop_map(Event::FlushPort),
            2 => Just(Event::Expire),
            1 => select(vec![0usize, 3, 5, 100]).prop_map(Event::Limit),
        ]
    }

    /// The same table as a list from the least to the most recently used entry: key, port, static, used.
    #[derive(Default)]
    struct Plain(Vec<(MacKey, OfPort, bool, Time)>, usize, Time);

    impl Plain {
        fn victim(&self) -> Option<usize> {
            let count = |port| self.0.iter().filter(|entry| entry.1 == port && !entry.2).count();
            let fullest = self.0.iter().filter(|entry| !entry.2).map(|entry| (count(entry.1), entry.1)).max()?;
            self.0.iter().position(|entry| !entry.2 && entry.1 == fullest.1)
        }

        fn shrink_to(&mut self, len: usize) -> bool {
            while self.0.len() > len {
                let Some(victim) = self.victim() else { return false };
                self.0.remove(victim);
            }
            true
        }

        fn touch(&mut self, key: MacKey, port: OfPort, now: Time) {
            let before = self.0.len();
            self.0.retain(|entry| entry.0 != key);
            let known = self.0.len() < before;
            if known || self.1 > 0 && self.shrink_to(self.1 - 1) {
                self.0.push((key, port, false, now));
            }
        }

        fn happen(&mut self, event: &Event, now: Time) {
            let find = |plain: &Plain, n: u8| plain.0.iter().find(|entry| entry.0 == key(n)).copied();
            match *event {
                Event::Learn(n, port) => {
                    if find(self, n).is_none_or(|entry| !entry.2) {
                        self.touch(key(n), OfPort(port), now);
                    }
                }
                Event::Note(n, port, learn) => match find(self, n) {
                    Some(entry) if !entry.2 && entry.1 == OfPort(port) && entry.3 < now => {
                        self.touch(key(n), OfPort(port), now);
                    }
                    Some(_) => {}
                    None => {
                        let victim = self.victim().map(|victim| self.0[victim]);
                        let other = victim.is_some_and(|v| v.1 != OfPort(port) || now.since(v.3) > IN_USE);
                        if learn && now > self.2 && (self.0.len() < self.1 || other) {
                            self.touch(key(n), OfPort(port), now);
                        }
                    }
                },
                Event::Static(n, port) => {
                    self.0.retain(|entry| entry.0 != key(n));
                    self.0.push((key(n), OfPort(port), true, Time(0)));
                }
                Event::Limit(limit) => {
                    self.1 = limit;
                    self.shrink_to(limit);
                }
                Event::Remove(n) => self.forget(now, |entry| entry.0 == key(n)),
                Event::Flush => self.forget(now, |entry| !entry.2),
                Event::FlushPort(port) => self.forget(now, |entry| entry.1 == OfPort(port)),
                Event::Expire => self.forget(now, |entry| !entry.2 && now.since(entry.3) >= Duration::from_secs(10)),
            }
        }

        fn forget(&mut self, now: Time, gone: impl Fn(&(MacKey, OfPort, bool, Time)) -> bool) {
            let before = self.0.len();
            self.0.retain(|entry| !gone(entry));
            if self.0.len() < before {
                self.2 = now;
            }
        }
    }

    proptest! {
        #[test]
        fn a_plain_list_does_the_same(events in prop::collection::vec((event(), 0u64..6), 1..60)) {
            let settings = |max_entries| MacSettings { ageing: Duration::from_secs(10), max_entries };
            let (mut table, mut plain, mut now) = (MacTable::new(settings(4)), Plain(Vec::new(), 4, Time(0)), at(1));
            for (event, seconds) in events {
                now = now + Duration::from_secs(seconds);
                let before: Vec<_> = (0..8).map(|n| table.lookup(key(n))).collect();
                match event {
                    Event::Learn(n, port) => drop(table.learn(key(n), OfPort(port), now)),
                    Event::Note(n, port, learn) => {
                        table.note(MacUse { key: key(n), port: OfPort(port), used: now, learn });
                    }
                    Event::Static(n, port) => table.add_static(key(n), OfPort(port)),
                    Event::Remove(n) => drop(table.remove(key(n), now)),
                    Event::Flush => table.flush(now),
                    Event::FlushPort(port) => table.flush_ports(&[OfPort(port)], now),
                    Event::Expire => drop(table.expire(now, usize::MAX)),
                    Event::Limit(limit) => table.set_settings(settings(limit)),
                }
                plain.happen(&event, now);
                let mut entries: Vec<_> = table.iter().map(|entry| (entry.key, entry.port, entry.used)).collect();
                let used = |entry: &(MacKey, OfPort, bool, Time)| (!entry.2).then_some(entry.3);
                let mut expected: Vec<_> = plain.0.iter().map(|entry| (entry.0, entry.1, used(entry))).collect();
                entries.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(entries, expected, "after {:?}", event);
                let fixed = plain.0.iter().filter(|entry| entry.2).count();
                prop_assert_eq!((table.len(), table.fixed_len()), (plain.0.len(), fixed));
                // Whatever a lookup answers anew was told.
                let told: Vec<_> = changed(&mut table).into_iter().map(|(n, _)| n).collect();
                for n in 0..8u8 {
                    prop_assert!(table.lookup(key(n)) == before[usize::from(n)] || told.contains(&n));
                }
            }
        }
    }
}
