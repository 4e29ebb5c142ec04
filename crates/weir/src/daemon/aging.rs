//! Neighbours whose time is over.

use ofproto::Switch;
use packet::Time;

/// Forgets the neighbours whose time is over. To be called now and then.
pub fn forget_neighbours(switch: &Switch, now: Time) {
    let mut neighbours = switch.netstate().neighbours.lock();
    let before = neighbours.generation();
    neighbours.expire(now);
    let some_went = neighbours.generation() != before;
    drop(neighbours);
    if some_went {
        switch.netstate_changed();
    }
}
