//! The flows that a handler has made for a batch of misses: later misses of the batch may match them.
//!
//! A miss that does need not be translated. To find out costs one hash of its key for each mask that the batch has asked
//! for, and a look-up in the table only where the hash is that of a flow.

use std::sync::Arc;

use packet::Key;
use packet::flow::hash::Hasher;

use crate::classify::table::subtable::Subtable;

/// The flows, by mask.
#[derive(Default)]
pub struct NewFlows {
    masks: Vec<OfMask>,
    /// Empty lists, for reuse.
    spare: Vec<Vec<u64>>,
}

/// Those with one mask.
struct OfMask {
    subtable: Arc<Subtable>,
    /// The hashes of their masked keys.
    hashes: Vec<u64>,
}

impl NewFlows {
    /// Forgets all.
    pub fn clear(&mut self) {
        let lists = self.masks.drain(..).map(|of_mask| of_mask.hashes);
        self.spare.extend(lists.map(|mut hashes| {
            hashes.clear();
            hashes
        }));
    }

    /// Adds a flow of a subtable, by the hash of its masked key.
    pub fn add(&mut self, subtable: Arc<Subtable>, hash: u64) {
        match self.masks.iter_mut().find(|of_mask| Arc::ptr_eq(&of_mask.subtable, &subtable)) {
            Some(of_mask) => of_mask.hashes.push(hash),
            None => {
                let mut hashes = self.spare.pop().unwrap_or_default();
                hashes.push(hash);
                self.masks.push(OfMask { subtable, hashes });
            }
        }
    }

    /// Whether one of them matches a key, unless two hashes of 64 bits are equal by chance.
    pub fn may_match(&self, hasher: &Hasher, key: &Key) -> bool {
        self.masks.iter().any(|of_mask| of_mask.hashes.contains(&of_mask.subtable.shape.hash(hasher, key)))
    }
}
