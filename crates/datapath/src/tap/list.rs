//! The taps that there are.

use std::sync::Arc;

use super::settings::{Ports, TapSettings};
use super::state::{MOST_TAPS, TapState};
use crate::error::Error;

/// The taps of a datapath, for workers that come later.
#[derive(Default)]
pub struct TapList {
    taps: Vec<Arc<TapState>>,
    /// How many there have ever been.
    numbers: u64,
}

impl TapList {
    /// Adds a tap, which no worker knows yet.
    pub fn add(&mut self, settings: TapSettings, ports: Ports) -> Result<Arc<TapState>, Error> {
        if self.taps.len() >= MOST_TAPS {
            return Err(Error::TooManyTaps(MOST_TAPS));
        }
        self.numbers += 1;
        let tap = TapState::new(self.numbers, settings, ports);
        self.taps.push(tap.clone());
        Ok(tap)
    }

    /// Removes a tap.
    pub fn remove(&mut self, number: u64) {
        self.taps.retain(|tap| tap.number != number);
    }

    /// The taps.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<TapState>> {
        self.taps.iter()
    }
}
