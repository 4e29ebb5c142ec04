//! Timeout policies by number, which a connection keeps in 16 bits.

use std::sync::OnceLock;

use crate::sync::Mutex;
use crate::timeout::{TIMEOUTS, Timeout, Timeouts};
use std::sync::atomic::{AtomicU32, Ordering};

/// The policies in force. Number zero is the default, and is always there.
pub struct Policies {
    by_number: Box<[OnceLock<Policy>]>,
    /// The identifiers that the control plane gave, by number.
    identifiers: Mutex<Vec<u32>>,
}

type Policy = [AtomicU32; TIMEOUTS];

/// The most policies that there can be.
#[cfg(not(loom))]
pub(super) const POLICIES: usize = 1 << 12;
#[cfg(loom)]
pub(super) const POLICIES: usize = 1;

impl Policies {
    pub(super) fn new() -> Policies {
        let policies = Policies {
            by_number: (0..POLICIES).map(|_| OnceLock::new()).collect(),
            identifiers: Mutex::new(Vec::new()),
        };
        policies.set(0, &Timeouts::default());
        policies
    }

    /// Sets the timeouts of the control plane's policy `identifier`, which connections may use already; its number. `None` where
    /// there are as many policies as there can be.
    pub fn set(&self, identifier: u32, timeouts: &Timeouts) -> Option<u16> {
        let mut identifiers = self.identifiers.lock();
        let number = match identifiers.iter().position(|known| *known == identifier) {
            Some(number) => number,
            None if identifiers.len() < POLICIES => {
                identifiers.push(identifier);
                identifiers.len() - 1
            }
            None => return None,
        };
        let policy = self.by_number[number].get_or_init(|| std::array::from_fn(|_| AtomicU32::new(0)));
        crate::timeout::ALL.iter().for_each(|t| policy[*t as usize].store(timeouts.get(*t), Ordering::Relaxed));
        Some(number as u16)
    }

    /// The timeouts of a policy.
    pub fn timeouts(&self, number: u16) -> Option<Timeouts> {
        let policy = self.by_number.get(usize::from(number))?.get()?;
        let mut timeouts = Timeouts::default();
        crate::timeout::ALL.iter().for_each(|t| timeouts.set(*t, policy[*t as usize].load(Ordering::Relaxed)));
        Some(timeouts)
    }

    /// Seconds of a state under a policy; under the default where there is no such policy.
    #[inline]
    pub fn seconds(&self, number: u16, timeout: Timeout) -> u32 {
        let policy = self.by_number.get(usize::from(number)).and_then(OnceLock::get);
        let policy = policy.or_else(|| self.by_number[0].get());
        policy.map_or(0, |policy| policy[timeout as usize].load(Ordering::Relaxed))
    }
}
