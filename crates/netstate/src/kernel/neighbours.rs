//! The neighbours of the kernel.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use parking_lot::Mutex;
use weir_time::Time;

use super::Seen;
use super::devices::{Changes, Devices};
use crate::neighbours::{Mac, Neighbours, Told};
use crate::state::MAX_NEIGHBOURS;

/// How many neighbours are kept: others have to find room, too. Further ones are not known.
pub(super) const MAX_KERNELS: usize = MAX_NEIGHBOURS / 2;

/// How many neighbours are told while the lock is held.
const PORTION: usize = 512;

/// All neighbours.
#[derive(Debug, Default)]
pub(super) struct KnownNeighbours {
    by_device: HashMap<u32, HashMap<IpAddr, (Mac, Seen)>>,
    count: usize,
    changed: HashSet<(u32, IpAddr)>,
    /// Under which name the neighbours of a device were told.
    told_under: HashMap<u32, Box<str>>,
    /// Whether what is known may not be what is so.
    pub is_stale: bool,
}

impl KnownNeighbours {
    /// A neighbour is known. Whether there was room for it.
    pub fn put(&mut self, device: u32, ip: IpAddr, mac: Mac, seen: Seen) -> bool {
        let of_device = self.by_device.entry(device).or_default();
        match of_device.get_mut(&ip) {
            Some(known) => {
                known.1 = seen;
                if std::mem::replace(&mut known.0, mac) == mac {
                    return true;
                }
            }
            None if self.count >= MAX_KERNELS => {
                if of_device.is_empty() {
                    self.by_device.remove(&device);
                }
                return false;
            }
            None => {
                self.count += 1;
                of_device.insert(ip, (mac, seen));
            }
        }
        self.changed.insert((device, ip));
        true
    }

    /// A neighbour is not known any more.
    pub fn remove(&mut self, device: u32, ip: IpAddr) {
        let Some(of_device) = self.by_device.get_mut(&device) else { return };
        if of_device.remove(&ip).is_some() {
            self.count -= 1;
            self.changed.insert((device, ip));
        }
        if of_device.is_empty() {
            self.by_device.remove(&device);
        }
    }

    /// Forgets the neighbours that were not seen since.
    pub fn sweep(&mut self, since: Seen) {
        self.retain(|_, seen| seen >= since);
    }

    fn retain(&mut self, keep: impl Fn(u32, Seen) -> bool) {
        let KnownNeighbours { by_device, count, changed, .. } = self;
        by_device.retain(|device, of_device| {
            of_device.retain(|ip, (_, seen)| {
                let stays = keep(*device, *seen);
                if !stays {
                    *count -= 1;
                    changed.insert((*device, *ip));
                }
                stays
            });
            !of_device.is_empty()
        });
    }

    /// Follows devices that have other names, or have gone.
    pub fn follow(&mut self, changes: &Changes) {
        for device in &changes.renamed {
            let Some(of_device) = self.by_device.get(device) else { continue };
            self.changed.extend(of_device.keys().map(|ip| (*device, *ip)));
            if changes.gone.contains_key(device) {
                // Of another socket: what is known may be neighbours of a device that has come since with the same number.
                self.is_stale = true;
                self.count -= of_device.len();
                self.by_device.remove(device);
            }
        }
    }

    /// Tells of the neighbours that have changed.
    pub fn tell(&mut self, neighbours: &Mutex<Neighbours>, devices: &Devices, renamed: &HashSet<u32>, now: Time) {
        let changed: Vec<(u32, IpAddr)> = std::mem::take(&mut self.changed).into_iter().collect();
        // First what is no longer so: a name may be another device's now. In portions, so that nobody waits for long.
        for portion in changed.chunks(PORTION) {
            let mut neighbours = neighbours.lock();
            for (device, ip) in portion {
                let Some(name) = self.told_under.get(device) else { continue };
                if devices.name(*device) != Some(name) || self.find(*device, ip).is_none() {
                    neighbours.remove_told(name, *ip, Told::Kernel);
                }
            }
        }
        for device in renamed {
            self.told_under.remove(device);
        }
        for portion in changed.chunks(PORTION) {
            let mut neighbours = neighbours.lock();
            for (device, ip) in portion {
                let (Some(name), Some(mac)) = (devices.name(*device), self.find(*device, ip)) else { continue };
                neighbours.set(name, *ip, mac, Told::Kernel, now);
                self.told_under.entry(*device).or_insert_with(|| name.into());
            }
        }
    }

    fn find(&self, device: u32, ip: &IpAddr) -> Option<Mac> {
        self.by_device.get(&device)?.get(ip).map(|(mac, _)| *mac)
    }

    /// How many neighbours are known.
    #[cfg(any(test, fuzzing))]
    pub fn count(&self) -> usize {
        assert_eq!(self.count, self.by_device.values().map(|of_device| of_device.len()).sum::<usize>());
        self.count
    }
}
