//! Keys and masks on the heap that are used again.
//!
//! Every flow-mod holds a key and a mask of 768 bytes for a moment. Allocated and freed in turn with what stays of a flow,
//! which is small, they leave holes that the small parts break up: of a million flows, most of the memory was such holes.
//! So each thread keeps some.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

use packet::{Key, Mask};

/// Most that a thread keeps of each kind.
const KEPT: usize = 64;

/// What a thread keeps of one kind. The boxes are what is used again.
pub type Kept<T> = RefCell<Vec<Box<T>>>;

/// What is used again.
pub trait Recycle: Default + 'static {
    /// Where the present thread keeps some.
    fn kept() -> &'static LocalKey<Kept<Self>>;

    /// Empties it, as a new one is.
    fn reset(&mut self);
}

thread_local! {
    static KEYS: Kept<Key> = const { Kept::new(Vec::new()) };
    static MASKS: Kept<Mask> = const { Kept::new(Vec::new()) };
}

impl Recycle for Key {
    fn kept() -> &'static LocalKey<Kept<Key>> {
        &KEYS
    }

    fn reset(&mut self) {
        Key::reset(self);
        *self.block_mut(packet::flow::block::BlockId::Common) = packet::flow::block::Block::ZERO;
    }
}

impl Recycle for Mask {
    fn kept() -> &'static LocalKey<Kept<Mask>> {
        &MASKS
    }

    fn reset(&mut self) {
        Recycle::reset(&mut self.0);
    }
}

/// A box whose memory the thread that drops it uses again.
pub struct Recycled<T: Recycle>(
    /// `None` only while it is dropped.
    Option<Box<T>>,
);

impl<T: Recycle> Recycled<T> {
    /// One with unknown content.
    fn used() -> Option<Box<T>> {
        // A thread that ends has none any more.
        T::kept().try_with(|kept| kept.borrow_mut().pop()).ok().flatten()
    }
}

impl<T: Recycle> Default for Recycled<T> {
    fn default() -> Recycled<T> {
        let used = Recycled::used().map(|mut used: Box<T>| {
            used.reset();
            used
        });
        Recycled(Some(used.unwrap_or_default()))
    }
}

impl<T: Recycle> From<T> for Recycled<T> {
    fn from(value: T) -> Recycled<T> {
        Recycled(Some(match Recycled::used() {
            Some(mut used) => {
                *used = value;
                used
            }
            None => Box::new(value),
        }))
    }
}

impl<T: Recycle> Drop for Recycled<T> {
    fn drop(&mut self) {
        if let Some(unused) = self.0.take() {
            let _ = T::kept().try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < KEPT {
                    kept.push(unused);
                }
            });
        }
    }
}

impl<T: Recycle> Deref for Recycled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("it is there until it is dropped")
    }
}

impl<T: Recycle> DerefMut for Recycled<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("it is there until it is dropped")
    }
}

impl<T: Recycle + Clone> Clone for Recycled<T> {
    fn clone(&self) -> Recycled<T> {
        let mut new = Recycled::default();
        T::clone_from(&mut new, self);
        new
    }
}

impl<T: Recycle + PartialEq> PartialEq for Recycled<T> {
    fn eq(&self, other: &Recycled<T>) -> bool {
        **self == **other
    }
}

impl<T: Recycle + Eq> Eq for Recycled<T> {}

impl<T: Recycle + Hash> Hash for Recycled<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        T::hash(self, state);
    }
}

impl<T: Recycle + fmt::Debug> fmt::Debug for Recycled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use packet::Field;

    use super::*;

    #[test]
    fn what_is_used_again_is_empty() {
        let mut key = Recycled::<Key>::default();
        let mut mask = Recycled::<Mask>::default();
        for field in [Field::InPortOxm, Field::Ipv6Src, Field::Reg3] {
            key.set(field, 5);
            mask.set_exact(field);
        }
        let (copy, whole) = (key.clone(), Recycled::from(Key::clone(&key)));
        assert!(copy == key && whole == key);
        drop((key, mask));
        let (first, second) = (Recycled::<Key>::default(), Recycled::<Mask>::default());
        assert!(*first == Key::new() && *second == Mask::wildcard());
        assert_eq!(copy.get(Field::Ipv6Src), 5, "it has a box of its own");
    }

    #[test]
    fn a_thread_keeps_no_more_than_it_may() {
        drop((0..2 * KEPT).map(|_| Recycled::<Key>::default()).collect::<Vec<_>>());
        assert_eq!(KEYS.with_borrow(Vec::len), KEPT);
    }
}
