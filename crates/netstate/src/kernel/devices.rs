//! The devices of the kernel: their names and their addresses.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::Seen;
use super::message;
use crate::routes::Routes;

/// How many addresses are kept of all devices. Further ones are not known.
pub(super) const MAX_ADDRESSES: usize = 1 << 16;

/// All devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    known: HashMap<u32, Device>,
    /// Which device has a name.
    by_name: HashMap<Box<str>, u32>,
    addresses: usize,
    /// What has changed since it was taken last.
    pub changes: Changes,
}

#[derive(Debug)]
struct Device {
    name: Box<str>,
    up: bool,
    addresses: HashMap<(IpAddr, u8), Address>,
    seen: Seen,
}

/// When an address was seen first, which is their order, and when last.
#[derive(Clone, Copy, Debug)]
struct Address {
    first: Seen,
    last: Seen,
}

/// What has changed of devices.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Names of which the addresses have changed, or the device.
    pub names: HashSet<Box<str>>,
    /// Devices whose name or addresses have changed.
    pub devices: HashSet<u32>,
    /// Devices that have another name now, or none.
    pub renamed: HashSet<u32>,
    /// Devices that have gone, and when.
    pub gone: HashMap<u32, Seen>,
    /// Devices that are down: their routes have gone, and the kernel does not say so.
    pub down: HashSet<u32>,
    /// Addresses that are no device's own any more: nor does it say that the routes have gone which used them.
    pub addresses_gone: HashSet<IpAddr>,
}

impl Changes {
    /// Whether routes have to be looked at.
    pub fn concern_routes(&self) -> bool {
        !self.devices.is_empty() || !self.gone.is_empty() || !self.down.is_empty() || !self.addresses_gone.is_empty()
    }

    fn address_gone(&mut self, index: u32, device: &Device, address: IpAddr) {
        self.names.insert(device.name.clone());
        self.devices.insert(index);
        self.addresses_gone.insert(address);
    }
}

impl Devices {
    /// The present name of a device.
    pub fn name(&self, index: u32) -> Option<&str> {
        self.known.get(&index).map(|device| &*device.name).filter(|name| !name.is_empty())
    }

    /// A device is there, or has changed.
    pub fn put(&mut self, told: message::Device, seen: Seen) {
        let message::Device { index, name, up } = told;
        let known = self.known.entry(index).or_insert_with(|| Device {
            name: Box::default(),
            up,
            addresses: HashMap::new(),
            seen,
        });
        known.seen = seen;
        if std::mem::replace(&mut known.up, up) && !up {
            self.changes.down.insert(index);
        }
        if let Some(name) = name.filter(|name| *name != known.name) {
            let before = std::mem::replace(&mut known.name, name.clone());
            self.forget_name(before, index);
            self.by_name.insert(name.clone(), index);
            self.changes.names.insert(name);
            self.changes.devices.insert(index);
            self.changes.renamed.insert(index);
        }
    }

    /// A device has gone.
    pub fn remove(&mut self, index: u32, seen: Seen) {
        let Some(device) = self.known.remove(&index) else { return };
        self.addresses -= device.addresses.len();
        self.forget_name(device.name, index);
        self.changes.gone.insert(index, seen);
        self.changes.renamed.insert(index);
    }

    /// Another device may have taken the name since.
    fn forget_name(&mut self, name: Box<str>, index: u32) {
        if self.by_name.get(&name) == Some(&index) {
            self.by_name.remove(&name);
        }
        self.changes.names.insert(name);
    }

    /// A device has an address. Whether there was room for it.
    pub fn put_address(&mut self, index: u32, address: (IpAddr, u8), seen: Seen) -> bool {
        let Some(device) = self.known.get_mut(&index) else { return true };
        if let Some(known) = device.addresses.get_mut(&address) {
            known.last = seen;
            return true;
        }
        if self.addresses >= MAX_ADDRESSES {
            return false;
        }
        self.addresses += 1;
        device.addresses.insert(address, Address { first: seen, last: seen });
        self.changes.names.insert(device.name.clone());
        self.changes.devices.insert(index);
        true
    }

    /// A device has an address no more.
    pub fn remove_address(&mut self, index: u32, address: (IpAddr, u8)) {
        let Some(device) = self.known.get_mut(&index) else { return };
        if device.addresses.remove(&address).is_some() {
            self.addresses -= 1;
            self.changes.address_gone(index, device, address.0);
        }
    }

    /// Forgets the devices that were not seen since.
    pub fn sweep(&mut self, since: Seen, now: Seen) {
        let gone: Vec<u32> = self.known.iter().filter(|(_, device)| device.seen < since).map(|(i, _)| *i).collect();
        gone.into_iter().for_each(|index| self.remove(index, now));
    }

    /// Forgets the addresses that were not seen since.
    pub fn sweep_addresses(&mut self, since: Seen) {
        let Devices { known, addresses, changes, .. } = self;
        for (index, device) in known {
            let gone: Vec<_> = device.addresses.extract_if(|_, known| known.last < since).collect();
            for ((address, _), _) in gone {
                *addresses -= 1;
                changes.address_gone(*index, device, address);
            }
        }
    }

    /// Tells of the addresses of names of which something has changed, but for those whose addresses others tell.
    pub fn tell(&self, names: &HashSet<Box<str>>, routes: &mut Routes, is_told_by_others: impl Fn(&str) -> bool) {
        for name in names.iter().filter(|name| !name.is_empty() && !is_told_by_others(name)) {
            let device = self.by_name.get(name).and_then(|index| self.known.get(index));
            let mut addresses: Vec<_> = device.map_or(Vec::new(), |device| device.addresses.iter().collect());
            addresses.sort_by_key(|(_, known)| known.first);
            routes.set_addresses(name, addresses.into_iter().map(|(address, _)| *address).collect());
        }
    }
}
