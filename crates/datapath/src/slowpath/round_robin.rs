//! A round-robin queue: it serves the input ports in turn.

use std::collections::VecDeque;

/// Items by port. The next item is of the port that was served least recently. Items of one port stay in order.
pub struct RoundRobin<T> {
    ports: VecDeque<(usize, VecDeque<T>)>,
    /// An empty queue, for reuse.
    spare: VecDeque<T>,
}

impl<T> Default for RoundRobin<T> {
    fn default() -> RoundRobin<T> {
        RoundRobin { ports: VecDeque::new(), spare: VecDeque::new() }
    }
}

impl<T> RoundRobin<T> {
    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Appends an item of a port.
    pub fn push(&mut self, port: usize, item: T) {
        if let Some((_, items)) = self.ports.iter_mut().find(|(other, _)| *other == port) {
            return items.push_back(item);
        }
        let mut items = std::mem::take(&mut self.spare);
        items.push_back(item);
        self.ports.push_back((port, items));
    }

    /// Hands out the next item.
    pub fn pop(&mut self) -> Option<T> {
        let (_, items) = self.ports.front_mut()?;
        let item = items.pop_front();
        if !items.is_empty() {
            self.ports.rotate_left(1);
        } else if let Some((_, items)) = self.ports.pop_front() {
            self.spare = items;
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_port_waits_for_one_of_each_other() {
        let mut backlog = RoundRobin::default();
        (0..100).for_each(|n| backlog.push(1, (1, n)));
        (0..100).for_each(|n| backlog.push(2, (2, n)));
        backlog.push(3, (3, 0));
        let first: Vec<_> = (0..4).filter_map(|_| backlog.pop()).collect();
        assert_eq!(first, [(1, 0), (2, 0), (3, 0), (1, 1)]);
        let rest: Vec<_> = std::iter::from_fn(|| backlog.pop()).collect();
        let of = |port| rest.iter().filter(|(p, _)| *p == port).map(|(_, n)| *n).collect::<Vec<_>>();
        assert_eq!((of(1), of(2)), ((2..100).collect(), (1..100).collect()), "in order, none is lost");
        assert!(backlog.is_empty());
    }
}
