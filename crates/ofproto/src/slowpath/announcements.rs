//! What neighbours are to be told after a failover: see `bonds`.
//!
//! A *round* has all addresses that a bond announces, each once. There is one of a bond at a time: to make one takes a walk over the
//! bridge's table of addresses, for which packets wait, and the other end of a link can cause failovers by the hundred in a second.
//! What waits in a round leaves by the member that is active by then; what has left before a further failover is announced again by
//! the next round.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::forwarding::BridgeId;
use crate::model::mac::MacKey;

/// A bond, by its bridge and its name.
pub(crate) type Announcer = (BridgeId, Arc<str>);

/// The addresses that a bond has still to announce.
struct Round {
    of: Announcer,
    left: std::vec::IntoIter<MacKey>,
    /// Whether there was a failover since it began.
    again: bool,
}

/// Announcements that wait. There are no more of a bond than addresses in its bridge's table.
#[derive(Default)]
pub(crate) struct Announcements(VecDeque<Round>);

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// These addresses are to be announced.
    Announce(Announcer, Vec<MacKey>),
    /// The round of a bond has ended, and another one is to begin.
    Begin(Announcer),
}

impl Announcements {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes note of a failover. Whether a round is to begin now: otherwise another one follows the one that is under way.
    pub fn fail_over(&mut self, of: &Announcer) -> bool {
        let round = self.0.iter_mut().find(|round| round.of == *of);
        round.map(|round| round.again = true).is_none()
    }

    /// Begins a round. Where another thread was faster, one more follows that one.
    pub fn begin(&mut self, of: Announcer, addresses: Vec<MacKey>) {
        if !addresses.is_empty() && self.fail_over(&of) {
            self.0.push_back(Round { of, left: addresses.into_iter(), again: false });
        }
    }

    /// Takes what is due, so many addresses at most; none where nothing waits.
    pub fn take(&mut self, most: usize) -> Option<Due> {
        let round = self.0.front_mut()?;
        let (of, some) = (round.of.clone(), round.left.by_ref().take(most).collect::<Vec<_>>());
        if !some.is_empty() {
            let has_ended = round.left.len() == 0 && !round.again;
            if has_ended {
                self.0.pop_front();
            }
            return Some(Due::Announce(of, some));
        }
        self.0.pop_front();
        Some(Due::Begin(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failovers_during_a_round_have_one_more_follow() {
        let mut waiting = Announcements::default();
        let of: Announcer = (BridgeId(1), "bond0".into());
        let key = |n: u8| MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, n] };
        let announce = |keys: &[u8]| Some(Due::Announce(of.clone(), keys.iter().map(|n| key(*n)).collect()));
        assert!(waiting.fail_over(&of));
        waiting.begin(of.clone(), (1..=5).map(key).collect());
        assert_eq!(waiting.take(2), announce(&[1, 2]));
        assert!((0..1000).all(|_| !waiting.fail_over(&of)), "no walk over the table for each of them");
        assert!(
            waiting.fail_over(&(BridgeId(2), "bond0".into())) && waiting.fail_over(&(BridgeId(1), "bond1".into())),
            "others have their own"
        );
        assert_eq!(waiting.take(2), announce(&[3, 4]));
        assert_eq!(waiting.take(2), announce(&[5]));
        assert_eq!(waiting.take(2), Some(Due::Begin(of.clone())), "1 and 2 left before the last failover");
        assert!(waiting.is_empty() && waiting.fail_over(&of));
        waiting.begin(of.clone(), vec![key(6)]);
        assert_eq!((waiting.take(2), waiting.take(2)), (announce(&[6]), None));
    }

    #[test]
    fn a_bond_has_one_round_when_two_threads_begin_one() {
        let mut waiting = Announcements::default();
        let of: Announcer = (BridgeId(1), "bond0".into());
        let key = MacKey { vlan: 0, mac: [2, 0, 0, 0, 0, 1] };
        assert!(waiting.fail_over(&of) && waiting.fail_over(&of));
        waiting.begin(of.clone(), vec![key]);
        waiting.begin(of.clone(), vec![key]);
        assert_eq!(waiting.take(2), Some(Due::Announce(of.clone(), vec![key])));
        assert_eq!((waiting.take(2), waiting.take(2)), (Some(Due::Begin(of)), None));
    }
}
