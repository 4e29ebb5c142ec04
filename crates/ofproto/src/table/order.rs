//! Items with a number each, in the order of their priorities.
//!
//! The classifier keeps its subtables in it. A table can have thousands of masks, and each flow that is added or
//! removed may change the order. So the order is a list of numbers: a change shifts eight bytes for each item behind
//! it.

/// Items in order, the highest priority first.
pub(super) struct Ordered<T> {
    /// The items by number, each with the priority by which it is listed.
    items: Vec<Option<(u16, T)>>,
    /// Numbers that are free.
    free: Vec<u32>,
    order: Vec<RankedNumber>,
}

/// The number of an item, in the order.
#[derive(Clone, Copy)]
struct RankedNumber {
    priority: u16,
    number: u32,
}

impl<T> Default for Ordered<T> {
    fn default() -> Ordered<T> {
        Ordered { items: Vec::new(), free: Vec::new(), order: Vec::new() }
    }
}

impl<T> Ordered<T> {
    /// Adds an item of priority zero behind the others, and returns its number.
    pub fn push(&mut self, item: T) -> u32 {
        let number = self.free.pop().unwrap_or(self.items.len() as u32);
        if number as usize == self.items.len() {
            self.items.push(None);
        }
        self.items[number as usize] = Some((0, item));
        self.order.push(RankedNumber { priority: 0, number });
        number
    }

    /// Removes an item. Another one can get its number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let (priority, item) = self.items.get_mut(number as usize)?.take()?;
        let at = self.position(priority, number)?;
        self.order.remove(at);
        self.free.push(number);
        Some(item)
    }

    /// The item with this number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize)?.as_ref().map(|(_, item)| item)
    }

    /// The item with this number, to change it.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(number as usize)?.as_mut().map(|(_, item)| item)
    }

    /// Changes the priority of an item. A raised one comes behind those of its new priority, a lowered one before them.
    pub fn set_priority(&mut self, number: u32, priority: u16) {
        let Some((listed, _)) = self.items.get_mut(number as usize).and_then(Option::as_mut) else { return };
        let old = std::mem::replace(listed, priority);
        if old == priority {
            return;
        }
        let Some(at) = self.position(old, number) else { return };
        self.order.remove(at);
        let to = if priority > old {
            self.order.partition_point(|ranked| ranked.priority >= priority)
        } else {
            self.order.partition_point(|ranked| ranked.priority > priority)
        };
        self.order.insert(to, RankedNumber { priority, number });
    }

    /// All of them, the highest priority first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.order.iter().filter_map(|ranked| self.get(ranked.number))
    }

    fn position(&self, priority: u16, number: u32) -> Option<usize> {
        let from = self.order.partition_point(|ranked| ranked.priority > priority);
        self.order[from..].iter().position(|ranked| ranked.number == number).map(|at| from + at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_order_is_that_of_a_list_whose_neighbours_change_places(
            steps in prop::collection::vec((0u8..3, 0usize..8, 0u16..4), 0..60),
        ) {
            let mut ordered = Ordered::default();
            // What comes to the same, step by step: number, priority.
            let mut list: Vec<(u32, u16)> = Vec::new();
            for (kind, which, priority) in steps {
                match kind {
                    0 => {
                        let number = ordered.push(());
                        prop_assert!(list.iter().all(|(other, _)| *other != number));
                        list.push((number, 0));
                    }
                    1 if !list.is_empty() => {
                        let (number, _) = list.remove(which % list.len());
                        prop_assert!(ordered.remove(number).is_some() && ordered.remove(number).is_none());
                    }
                    2 if !list.is_empty() => {
                        let mut at = which % list.len();
                        list[at].1 = priority;
                        ordered.set_priority(list[at].0, priority);
                        while at > 0 && list[at - 1].1 < list[at].1 {
                            list.swap(at - 1, at);
                            at -= 1;
                        }
                        while at + 1 < list.len() && list[at].1 < list[at + 1].1 {
                            list.swap(at, at + 1);
                            at += 1;
                        }
                    }
                    _ => {}
                }
                let order: Vec<_> = ordered.order.iter().map(|ranked| (ranked.number, ranked.priority)).collect();
                prop_assert_eq!(&order, &list);
                prop_assert_eq!(ordered.iter().count(), list.len());
            }
        }
    }
}
