//! A shard's timer wheel: lists of connections by the time at which they are looked at next.
//!
//! A packet stores its connection's deadline and does not touch the wheel. When a connection's turn has come, it is removed, or put to
//! where its deadline is by now; a deadline beyond the wheel's horizon is looked at once for each turn of the wheel. Only a
//! deadline that comes much earlier moves a connection at once.
//!
//! All of it belongs to the holder of the shard's lock.

use super::arena::Arena;

/// Ticks of a list.
const SPACING: u32 = 8;
/// Lists. With ticks of a tenth of a second, a turn takes 205 seconds.
#[cfg(not(loom))]
const LISTS: u32 = 256;
#[cfg(loom)]
const LISTS: u32 = 4;

/// A shard's lists. Links are numbers of slots and one; zero ends a list.
pub(super) struct Wheel {
    heads: [u32; LISTS as usize],
    /// Lists that ended before this one have been looked at: a time in units of [`SPACING`].
    next: u32,
    /// Slots in all lists.
    entries: u32,
}

impl Wheel {
    pub(super) fn new() -> Wheel {
        Wheel { heads: [0; LISTS as usize], next: 0, entries: 0 }
    }

    /// Puts a slot, which is in no list, where it is looked at by `tick`, or at the wheel's horizon.
    pub(super) fn add(&mut self, arena: &Arena, slot: u32, tick: u32, now: u32) {
        if self.entries == 0 {
            self.next = self.next.max(now / SPACING);
        }
        self.entries += 1;
        let list = (tick / SPACING).clamp(self.next, self.next + LISTS - 1);
        let head = &mut self.heads[(list % LISTS) as usize];
        if let Some(after) = head.checked_sub(1) {
            let after = arena.get(after);
            after.set_links([after.links()[0], slot + 1]);
        }
        let added = arena.get(slot);
        added.set_links([*head, 0]);
        // At the end of the list every tick of it has passed. Zero is for none.
        added.set_scheduled((list * SPACING + SPACING).max(1));
        *head = slot + 1;
    }

    /// Takes a slot out of its list, if it is in one.
    pub(super) fn remove(&mut self, arena: &Arena, slot: u32) {
        let removed = arena.get(slot);
        let scheduled = removed.scheduled();
        if scheduled == 0 {
            return;
        }
        let [next, previous] = removed.links();
        match previous.checked_sub(1) {
            Some(before) => {
                let before = arena.get(before);
                before.set_links([next, before.links()[1]]);
            }
            None => self.heads[((scheduled / SPACING - 1) % LISTS) as usize] = next,
        }
        if let Some(after) = next.checked_sub(1) {
            let after = arena.get(after);
            after.set_links([after.links()[0], previous]);
        }
        self.entries -= 1;
        removed.set_links([0, 0]);
        removed.set_scheduled(0);
    }

    /// The next slot whose turn has come, taken out of its list.
    pub(super) fn pop(&mut self, arena: &Arena, now: u32) -> Option<u32> {
        let end = now / SPACING;
        // A wheel that has stood still turns once.
        self.next = self.next.max(end.saturating_sub(LISTS));
        while self.next < end {
            if let Some(slot) = self.heads[(self.next % LISTS) as usize].checked_sub(1) {
                self.remove(arena, slot);
                return Some(slot);
            }
            self.next += 1;
        }
        None
    }
}
