//! How often a packet may be classified again, and how many packets it may become on the way.
//!
//! A program can recirculate several copies of a packet, and what it does with each can recirculate several again. So
//! each packet has a *share* of those that the one that was received may become, and its copies share it. What is left of
//! a share when it is too small for all is lost: it needs no counter that all the copies would have to find. Nothing of
//! this is looked at until a packet recirculates.

use crate::actions::program::Program;
use crate::drop::DropReason;

/// How many packets one that was received may become, at each depth of recirculation.
pub const MAX_PACKETS: u16 = 1024;

/// How many packets of a worker may wait to be classified again, which is a bound of memory.
pub const MAX_WAITING: usize = 8192;

/// Which pass of a packet through classification it is, and its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Times that the packet has been recirculated.
    pub depth: u8,
    /// How many packets it may become.
    pub share: u16,
}

impl Pass {
    /// That of a packet as it was received.
    pub const FIRST: Pass = Pass { depth: 0, share: MAX_PACKETS };

    /// The pass to which a program, which runs in this one, recirculates.
    #[inline(always)]
    pub fn of(self, program: &Program) -> Pass {
        // Most programs do not, and it does not matter then.
        if program.recirculations() == 0 { self } else { self.next(program.recirculations()) }
    }

    /// The pass of each of so many copies.
    fn next(self, copies: u16) -> Pass {
        Pass { depth: self.depth.saturating_add(1), share: self.share / copies }
    }

    /// Why no packet may come to this pass, behind `waiting` others, if that is so.
    pub fn refusal(self, max_depth: u8, waiting: usize) -> Option<DropReason> {
        if self.depth > max_depth {
            Some(DropReason::RecursionTooDeep)
        } else {
            (self.share == 0 || waiting >= MAX_WAITING).then_some(DropReason::RecirculationStorm)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_what_one_packet_may_become() {
        let mut pass = Pass::FIRST;
        let mut packets = 1u32;
        while pass.refusal(200, 0).is_none() {
            pass = pass.next(3);
            packets *= 3;
        }
        assert_eq!((pass.depth, pass.share, packets / 3), (7, 0, 729));
        // One that does not fan out keeps all of it.
        let straight = (0..6).fold(Pass::FIRST, |pass, _| pass.next(1));
        assert_eq!(straight, Pass { depth: 6, share: MAX_PACKETS });
        assert_eq!(straight.refusal(6, 0), None);
        assert_eq!(straight.next(1).refusal(6, 0), Some(DropReason::RecursionTooDeep));
        assert_eq!(straight.refusal(6, MAX_WAITING), Some(DropReason::RecirculationStorm));
    }
}
