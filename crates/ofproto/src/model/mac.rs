//! The MAC learning table of a bridge.
//!
//! Entries age unless packets refresh them. The table has a size limit. When it is full, the port with most entries
//! loses the one that was used least recently, so a port that invents addresses hurts itself first. Static entries
//! neither age nor move.
//!
//! Each change that forwarding can notice is logged with a generation, so that the flows that depend
//! on an address can be found ([`MacTable::changed_since`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use openflow::OfPort;
use packet::Time;
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

/// Where an address is.
#[derive(Clone, Copy)]
struct MacLocation {
    port: OfPort,
    /// A static entry.
    fixed: bool,
    used: Time,
    /// Position in the order of use; key of `by_port`.
    stamp: u64,
}

/// How many changes are remembered. When more happen between two revalidations, every flow that
/// depends on the table is checked.
const LOG: usize = 4096;

/// An entry is not refreshed more often than this: each refresh takes the table's lock.
const REFRESH: Duration = Duration::from_secs(1);

/// The table.
#[derive(Default)]
pub struct MacTable {
    settings: MacSettings,
    stats: MacStats,
    entries: HashMap<MacKey, MacLocation, foldhash::fast::RandomState>,
    /// For each port, its entries from the least to the most recently used, without the static ones.
    by_port: BTreeMap<OfPort, BTreeMap<u64, MacKey>>,
    next_stamp: u64,
    log: VecDeque<(u64, MacKey)>,
    /// Changes up to this generation may be missing from the log.
    forgotten: u64,
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

    /// Changes the settings; entries beyond a smaller limit go.
    pub fn set_settings(&mut self, settings: MacSettings, generation: u64) {
        self.settings = settings;
        while self.entries.len() > self.settings.max_entries && self.evict(generation) {}
    }

    /// Where the address is.
    pub fn lookup(&self, key: MacKey) -> Option<OfPort> {
        self.entries.get(&key).map(|entry| entry.port)
    }

    /// Whether a packet from `key` on `port` would change what [`lookup`](MacTable::lookup) answers.
    pub fn would_change(&self, key: MacKey, port: OfPort) -> bool {
        !is_multicast(key.mac) && self.entries.get(&key).is_none_or(|entry| !entry.fixed && entry.port != port)
    }

    /// Whether [`learn`](MacTable::learn) would do anything at all.
    pub fn needs_learning(&self, key: MacKey, port: OfPort, now: Time) -> bool {
        if is_multicast(key.mac) {
            return false;
        }
        let current = |entry: &MacLocation| entry.fixed || entry.port == port && now.since(entry.used) < REFRESH;
        !self.entries.get(&key).is_some_and(current)
    }

    /// Learns that packets from `key` come in on `port`. Returns whether lookups change.
    pub fn learn(&mut self, key: MacKey, port: OfPort, now: Time, generation: u64) -> bool {
        if is_multicast(key.mac) {
            return false;
        }
        let old = self.entries.get(&key).copied();
        match old {
            Some(entry) if entry.fixed => return false,
            Some(entry) => {
                self.unlink(entry);
                self.stats.moved += u64::from(entry.port != port);
            }
            None => {
                while self.entries.len() >= self.settings.max_entries {
                    if !self.evict(generation) {
                        return false;
                    }
                }
                self.stats.learned += 1;
            }
        }
        self.link(key, port, now);
        let changed = old.is_none_or(|entry| entry.port != port);
        if changed {
            self.record(generation, key);
        }
        changed
    }

    /// Refreshes the entry of `key`, if it is still on `port`.
    pub fn refresh(&mut self, key: MacKey, port: OfPort, used: Time) {
        if let Some(&entry) = self.entries.get(&key)
            && !entry.fixed
            && entry.port == port
            && entry.used < used
        {
            self.unlink(entry);
            self.link(key, port, used);
        }
    }

    /// Adds a static entry, in place of a learnt one.
    pub fn add_static(&mut self, key: MacKey, port: OfPort, generation: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.unlink(entry);
        }
        self.entries.insert(key, MacLocation { port, fixed: true, used: Time(0), stamp: 0 });
        self.record(generation, key);
    }

    /// Puts a learnt entry back, as after a restart.
    pub fn restore(&mut self, entry: MacEntry, generation: u64) {
        match entry.used {
            Some(used) => drop(self.learn(entry.key, entry.port, used, generation)),
            None => self.add_static(entry.key, entry.port, generation),
        }
    }

    /// Removes an entry of either kind. Returns whether there was one.
    pub fn remove(&mut self, key: MacKey, generation: u64) -> bool {
        let Some(entry) = self.entries.remove(&key) else { return false };
        self.unlink(entry);
        self.record(generation, key);
        true
    }

    /// Removes every learnt entry; static ones stay.
    pub fn flush(&mut self, generation: u64) {
        self.remove_where(generation, |_, entry| !entry.fixed);
    }

    /// Removes every entry of these ports, which were removed.
    pub fn flush_ports(&mut self, ports: &[OfPort], generation: u64) {
        let ports: HashSet<OfPort> = ports.iter().copied().collect();
        self.remove_where(generation, |_, entry| ports.contains(&entry.port));
    }

    /// Removes the entries that have aged. Returns how many.
    pub fn expire(&mut self, now: Time, generation: u64) -> usize {
        let ageing = self.settings.ageing;
        let n = self.remove_where(generation, |_, entry| !entry.fixed && now.since(entry.used) >= ageing);
        self.stats.expired += n as u64;
        n
    }

    /// When the next entry ages.
    pub fn next_expiry(&self) -> Option<Time> {
        let oldest = self.by_port.values().filter_map(|keys| keys.first_key_value());
        oldest.map(|(_, key)| self.entries[key].used + self.settings.ageing).min()
    }

    /// Every entry, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = MacEntry> {
        self.entries.iter().map(|(&key, entry)| MacEntry {
            key,
            port: entry.port,
            used: (!entry.fixed).then_some(entry.used),
        })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
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

    /// Whether a lookup of `key` may answer something else than at `generation`.
    pub fn changed_since(&self, key: MacKey, generation: u64) -> bool {
        if generation < self.forgotten {
            return true;
        }
        self.log.iter().rev().take_while(|&&(at, _)| at > generation).any(|&(_, changed)| changed == key)
    }

    /// Generation of the last change.
    pub fn last_change(&self) -> u64 {
        self.log.back().map_or(self.forgotten, |&(at, _)| at)
    }

    fn record(&mut self, generation: u64, key: MacKey) {
        if self.log.len() == LOG
            && let Some((at, _)) = self.log.pop_front()
        {
            self.forgotten = at;
        }
        self.log.push_back((generation, key));
    }

    fn remove_where(&mut self, generation: u64, gone: impl Fn(&MacKey, &MacLocation) -> bool) -> usize {
        let keys: Vec<MacKey> = self.entries.iter().filter(|(k, e)| gone(k, e)).map(|(&k, _)| k).collect();
        for &key in &keys {
            self.remove(key, generation);
        }
        keys.len()
    }

    /// Removes the least recently used entry of the port with most entries.
    fn evict(&mut self, generation: u64) -> bool {
        let fullest = self.by_port.values().max_by_key(|keys| keys.len());
        let Some(&key) = fullest.and_then(|keys| keys.first_key_value()).map(|(_, key)| key) else { return false };
        self.stats.evicted += 1;
        self.remove(key, generation)
    }

    fn unlink(&mut self, entry: MacLocation) {
        if !entry.fixed
            && let Some(keys) = self.by_port.get_mut(&entry.port)
        {
            keys.remove(&entry.stamp);
            if keys.is_empty() {
                self.by_port.remove(&entry.port);
            }
        }
    }

    fn link(&mut self, key: MacKey, port: OfPort, used: Time) {
        self.next_stamp += 1;
        let stamp = self.next_stamp;
        self.by_port.entry(port).or_default().insert(stamp, key);
        self.entries.insert(key, MacLocation { port, fixed: false, used, stamp });
    }
}

/// Whether the group bit is set.
pub fn is_multicast(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> MacKey {
        MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, n] }
    }

    fn at(secs: u64) -> Time {
        Time(secs * 1_000_000_000)
    }

    #[test]
    fn learns_moves_and_ages() {
        let mut table = MacTable::new(MacSettings { ageing: Duration::from_secs(10), max_entries: 8 });
        assert!(table.learn(key(1), OfPort(1), at(0), 1));
        assert!(!table.learn(key(1), OfPort(1), at(5), 2));
        assert!(table.learn(key(1), OfPort(2), at(6), 3));
        assert_eq!(table.lookup(key(1)), Some(OfPort(2)));
        assert!(table.changed_since(key(1), 2) && !table.changed_since(key(1), 3));
        assert!(!table.learn(MacKey { vlan: 0, mac: [1; 6] }, OfPort(1), at(0), 4));
        assert_eq!(table.next_expiry(), Some(at(16)));
        assert_eq!(table.expire(at(15), 5), 0);
        table.refresh(key(1), OfPort(2), at(9));
        assert_eq!(table.expire(at(18), 6), 0);
        assert_eq!(table.expire(at(19), 7), 1);
        assert!(table.changed_since(key(1), 6));
        assert_eq!(table.stats(), MacStats { learned: 1, expired: 1, evicted: 0, moved: 1 });
    }

    #[test]
    fn eviction_is_fair() {
        let mut table = MacTable::new(MacSettings { max_entries: 4, ..MacSettings::default() });
        table.learn(key(1), OfPort(1), at(0), 1);
        for n in 2..=10 {
            table.learn(key(n), OfPort(2), at(n.into()), 1);
        }
        assert_eq!(table.len(), 4);
        assert_eq!(table.lookup(key(1)), Some(OfPort(1)), "the quiet port keeps its entry");
        assert_eq!(table.lookup(key(7)), None);
        assert_eq!(table.lookup(key(10)), Some(OfPort(2)));
    }

    #[test]
    fn static_entries_stay() {
        let mut table = MacTable::new(MacSettings::default());
        table.add_static(key(1), OfPort(1), 1);
        assert!(!table.learn(key(1), OfPort(2), at(1), 2));
        assert!(!table.would_change(key(1), OfPort(2)));
        table.flush(3);
        table.expire(at(10_000), 4);
        assert_eq!(table.lookup(key(1)), Some(OfPort(1)));
        table.flush_ports(&[OfPort(1)], 5);
        assert!(table.is_empty());
    }

    #[test]
    fn a_long_log_forgets_in_the_safe_direction() {
        let mut table = MacTable::new(MacSettings { max_entries: 100_000, ..MacSettings::default() });
        for n in 0..LOG as u64 + 10 {
            let mac = [2, 0, 0, 0, (n >> 8) as u8, n as u8];
            table.learn(MacKey { vlan: (n >> 16) as u16, mac }, OfPort(1), at(0), n + 1);
        }
        assert!(table.changed_since(MacKey { vlan: 9, mac: [2; 6] }, 3));
        assert!(!table.changed_since(MacKey { vlan: 9, mac: [2; 6] }, 20));
    }
}
