//! Records that equal each other are kept once: a million flows of one rule have one record.
//!
//! A small table of the records made last, by a hash of what they are about. A record that is there is used
//! again as long as nothing that it depends on has changed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::forwarding::Forwarding;
use crate::record::Record;

/// Places in the table: enough for the pipelines that many new flows pass at a time.
const PLACES: usize = 256;

/// The records made last.
pub(crate) struct SharedRecords(Mutex<Box<[Option<Arc<Record>>]>>);

impl Default for SharedRecords {
    fn default() -> SharedRecords {
        SharedRecords(Mutex::new(vec![None; PLACES].into()))
    }
}

impl SharedRecords {
    /// A record that says what `record` does: one that is there already, or this one.
    pub fn share(&self, forwarding: &Forwarding, record: Record) -> Arc<Record> {
        if record.is_personal() {
            return Arc::new(record.compact());
        }
        let mut hasher = DefaultHasher::new();
        record.rules.iter().for_each(|rule| Arc::as_ptr(rule).hash(&mut hasher));
        record.tables.len().hash(&mut hasher);
        let place = &mut self.0.lock()[hasher.finish() as usize % PLACES];
        if let Some(known) = place
            && known.says_the_same(&record)
            && (known.generation == record.generation || !known.is_stale(forwarding))
        {
            return known.clone();
        }
        let record = Arc::new(record.compact());
        *place = Some(record.clone());
        record
    }

    /// Forgets all: what the records hold can go.
    pub fn clear(&self) {
        self.0.lock().fill(None);
    }
}
