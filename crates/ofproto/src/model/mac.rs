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

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use openflow::OfPort;
use packet::Time;
use parking_lot::{RwLock, RwLockReadGuard};
use ports::Mac;

use super::ranks::Ranks;

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
    /// Until when announcements of the address by bonds do not count.
    locked_until: Time,
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

/// How long an announcement of an address counts, so that those that a bond reflects do not. As in OVS.
const ANNOUNCED: Duration = Duration::from_secs(5);

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
    ranks: Ranks,
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

    /// An address was announced at this time by another port than a bond. Announcements that come back by a bond do not count for a while:
    /// see [`is_locked`](MacTable::is_locked).
    pub fn lock(&mut self, key: MacKey, at: Time) {
        if let Some(&slot) = self.by_key.get(&key) {
            self.slots[slot as usize].locked_until = at + ANNOUNCED;
        }
    }

    /// Whether an address was announced by another port than a bond lately, so that an announcement by a bond is a reflection.
    pub fn is_locked(&self, key: MacKey, now: Time) -> bool {
        self.slot(key).is_some_and(|entry| now < entry.locked_until)
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
        let slot =
            self.insert(MacSlot { key, port, fixed: false, used, older: NONE, newer: NONE, locked_until: Time(0) });
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
        self.insert(MacSlot { key, port, fixed: true, used: Time(0), older: NONE, newer: NONE, locked_until: Time(0) });
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

    /// Forgets what was learnt of a port, behind which it may not be any more; static entries stay. It looks at no others.
    pub fn flush_learnt(&mut self, port: OfPort, now: Time) {
        let mut next = self.by_port.get(&port).map_or(NONE, |entries| entries.oldest);
        let mut keys = Vec::new();
        while let Some(entry) = self.slots.get(next as usize) {
            keys.push(entry.key);
            next = entry.newer;
        }
        for key in keys {
            self.remove(key, now);
        }
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
        Some(self.by_port[&self.ranks.most()?].oldest)
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
        self.ranks.set(port, entries.count);
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
        self.ranks.set(port, count);
        if count == 0 {
            self.by_port.remove(&port);
        }
    }
}

/// Whether the group bit is set.
pub fn is_multicast(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

#[cfg(test)]
mod tests;
