//! Which agreements of a neighbour count for a designated port: fewer than in the standard.
//!
//! An agreement does not say which information it answers, and the standard takes an answer to earlier information for one to
//! the present (IEEE 802.1D-2004 section 17.21.9). Where a root is lost and its old information still wanders from bridge to bridge, a
//! port sends A, then B, then A again, while the answer to the first A is on its way from a neighbour that has yet to
//! hear B. That neighbour passes B on, so that it comes back to this bridge, and a port that forwards because of the answer
//! closes a loop. It takes no lost frame (tests/spanning_tree/random.rs has a network where it happens).
//!
//! So an agreement counts only once the present information was sent, and not for [`SETTLE_TIME`] after it has changed a second time,
//! where one of both changes was for the worse: to come back to A, one has to be. The port goes on proposing in its hellos, and takes
//! the answer to the next one. A first change, as when a link fails in a tree at rest, is not slowed down.

/// After so many ends of seconds no answer to earlier information is on its way.
const SETTLE_TIME: u16 = 2;

/// What a port has told its neighbour lately. Timers count seconds down.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreements {
    /// The present information was sent.
    sent: bool,
    changed_while: u16,
    worsened_while: u16,
    doubt_while: u16,
}

impl Agreements {
    /// Whether an agreement that comes now is one with the present information.
    pub fn count(&self) -> bool {
        self.sent && self.doubt_while == 0
    }

    /// The port has other information to send, worse than before or better.
    pub fn information_changes(&mut self, worse: bool) {
        let recent = if worse { self.changed_while } else { self.worsened_while };
        if recent != 0 {
            self.doubt_while = SETTLE_TIME;
        }
        if worse {
            self.worsened_while = SETTLE_TIME;
        }
        (self.sent, self.changed_while) = (false, SETTLE_TIME);
    }

    /// The port has sent its information.
    pub fn information_is_sent(&mut self) {
        self.sent = true;
    }

    /// A second has passed.
    pub fn tick(&mut self) {
        for timer in [&mut self.changed_while, &mut self.worsened_while, &mut self.doubt_while] {
            *timer = timer.saturating_sub(1);
        }
    }
}
