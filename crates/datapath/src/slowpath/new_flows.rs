//! The flows that a handler has asked for, for a batch of misses: later misses of the batch may match them.
//!
//! A miss that does need not be translated. To find out costs one hash of its key for each mask that the batch has asked
//! for, and a look-up in the table only where the hash is that of a flow.

use std::sync::Arc;

use packet::flow::hash::Hasher;
use packet::{Key, Mask};

/// The flows, by mask.
#[derive(Default)]
pub struct NewFlows {
    masks: Vec<OfMask>,
    /// The version of the upper layer's state for which the last one is right.
    pub version: Option<u64>,
    /// Empty lists, for reuse.
    spare: Vec<Vec<u64>>,
}

/// Those with one mask.
struct OfMask {
    mask: Arc<Mask>,
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

    /// Adds a flow with this mask, by the hash of its masked key.
    pub fn add(&mut self, mask: &Arc<Mask>, hash: u64) {
        let same = |of_mask: &&mut OfMask| Arc::ptr_eq(&of_mask.mask, mask) || of_mask.mask == *mask;
        match self.masks.iter_mut().find(same) {
            Some(of_mask) => of_mask.hashes.push(hash),
            None => {
                let mut hashes = self.spare.pop().unwrap_or_default();
                hashes.push(hash);
                self.masks.push(OfMask { mask: mask.clone(), hashes });
            }
        }
    }

    /// Whether one of them matches a key, unless two hashes of 64 bits are equal by chance.
    pub fn may_match(&self, hasher: &Hasher, key: &Key) -> bool {
        self.masks.iter().any(|of_mask| of_mask.hashes.contains(&hasher.hash_masked(key, &of_mask.mask)))
    }
}
