//! When it pays to join segments of TCP that leave a tunnel one by one, as they come from a NIC.
//!
//! A super-frame costs the next port, and the stack or the guest behind it, as much as one of the segments that it has. But to join them, their
//! checksums are verified, and where there is nothing to join, that was in vain. So segments are joined where some port takes super-frames, and
//! for as long as enough of them find another one to be joined with.

/// Shorter packets are left alone: requests, answers, acknowledgements. They would not save what it costs to look at them.
pub const LONG: usize = 600;

/// After how many long packets the results are looked at.
const TRIAL: usize = 256;

/// It pays if at least this part of them were joined with the one before.
const PART: usize = 4;

/// How many long packets are left alone where it does not.
const PAUSE: usize = 8192;

/// The same where no port takes super-frames. To find that out, each of perhaps a thousand ports is looked at.
const NO_TAKER: usize = 65_536;

/// The policy of one worker, and its state.
#[derive(Debug, Default)]
pub struct JoinPolicy {
    /// Long packets of this trial.
    tried: usize,
    /// Packets of this trial that were joined with another one.
    joined: usize,
    /// Long packets that are still to be left alone.
    paused: usize,
}

impl JoinPolicy {
    /// Whether to try it with a batch that has this many long packets. `has_taker`: some port takes super-frames.
    #[inline]
    pub fn tries(&mut self, long: usize, has_taker: impl FnOnce() -> bool) -> bool {
        if long < 2 {
            return false;
        }
        if self.paused > 0 {
            self.paused = self.paused.saturating_sub(long);
            return false;
        }
        if self.tried == 0 && !has_taker() {
            self.paused = NO_TAKER;
            return false;
        }
        true
    }

    /// Records what has become of a batch with which it was tried.
    pub fn record(&mut self, long: usize, joined: usize) {
        self.tried += long;
        self.joined += joined;
        if self.tried >= TRIAL {
            let pays = self.joined >= self.tried / PART;
            *self = JoinPolicy { paused: if pays { 0 } else { PAUSE }, ..JoinPolicy::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of this many batches of 32 it is tried with, where `joined` of each are.
    fn tried(policy: &mut JoinPolicy, batches: usize, joined: usize) -> usize {
        let try_one = |_: &usize| {
            let tries = policy.tries(32, || true);
            if tries {
                policy.record(32, joined);
            }
            tries
        };
        (0..batches).filter(try_one).count()
    }

    #[test]
    fn it_goes_on_while_enough_are_joined_and_pauses_otherwise() {
        let mut policy = JoinPolicy::default();
        assert_eq!(tried(&mut policy, 1000, 30), 1000);
        assert_eq!(tried(&mut policy, 1000, 8), 1000, "a quarter");
        assert_eq!(tried(&mut policy, 1000, 7), 32, "3 per cent");
        let pause = PAUSE / 32;
        policy = JoinPolicy::default();
        assert_eq!(tried(&mut policy, 8 + pause, 0), 8);
        assert_eq!(tried(&mut policy, 100, 30), 100, "it is tried again");
    }

    #[test]
    fn it_is_for_nobody_where_no_port_takes_super_frames() {
        let mut policy = JoinPolicy::default();
        assert!(!policy.tries(32, || false));
        assert!(!policy.tries(NO_TAKER - 32, || panic!("so soon")) && !policy.tries(32, || panic!("so soon")));
        assert!(policy.tries(32, || true));
    }

    #[test]
    fn a_single_long_packet_has_nothing_to_be_joined_with() {
        let mut policy = JoinPolicy::default();
        assert!(!policy.tries(1, || panic!("not asked")));
        assert!(policy.tries(2, || true));
    }
}
