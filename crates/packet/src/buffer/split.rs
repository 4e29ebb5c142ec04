//! Splitting a batch by what its packets have in common.

use super::{BATCH_SIZE, Batch, Packet};

/// The packets of a batch, to be moved elsewhere in groups, each in its order. What is left at the end stays in the batch.
#[derive(Debug)]
pub struct Split<'a> {
    /// Its length is zero meanwhile: packets are those that `left` says.
    batch: &'a mut Batch,
    left: u32,
}

const _: () = assert!(BATCH_SIZE <= u32::BITS as usize);

impl<'a> Split<'a> {
    /// All packets of a batch.
    #[inline(always)]
    pub fn new(batch: &'a mut Batch) -> Split<'a> {
        let left = (1u64 << batch.len()) - 1;
        // SAFETY: not longer than before.
        unsafe { batch.set_len(0) };
        Split { batch, left: left as u32 }
    }

    /// Which packets are left: bit n stands for packet n.
    #[inline(always)]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Moves those packets of `which` that are left to the end of another batch, as far as there is room: the first ones. Returns those of
    /// `which` that are left then.
    #[inline(always)]
    pub fn move_to(&mut self, which: u32, to: &mut Batch) -> u32 {
        let (mut going, start) = (which & self.left, to.len());
        let mut len = start;
        while going != 0 && len < BATCH_SIZE {
            let at = going.trailing_zeros() as usize;
            // SAFETY: `left` has a bit for each initialised packet of the batch that has not been moved, so `at` is one
            // of them, below `BATCH_SIZE`, and loses its bit below before anything can end early. There is room for one more at `len`.
            unsafe { self.batch.as_ptr().add(at).copy_to_nonoverlapping(to.as_mut_ptr().add(len), 1) };
            len += 1;
            going &= going - 1;
        }
        self.left &= !which | going;
        // SAFETY: the packets from `start` to `len` were moved there.
        unsafe { to.set_len(len) };
        going
    }
}

impl Drop for Split<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.left != 0 {
            self.close_ranks();
        }
    }
}

impl Split<'_> {
    /// Gives the batch those that are left.
    #[cold]
    fn close_ranks(&mut self) {
        let first: *mut Packet = self.batch.as_mut_ptr();
        // The first ones are in their places.
        let mut len = self.left.trailing_ones() as usize;
        let mut left = self.left & !((1u64 << len) - 1) as u32;
        while left != 0 {
            let at = left.trailing_zeros() as usize;
            // SAFETY: both are within the batch, `at` is one of the packets that are left, and `len` is before it: as
            // many bits were met below it, and one was missing. What was at `len` has been moved.
            unsafe { first.add(at).copy_to_nonoverlapping(first.add(len), 1) };
            len += 1;
            left &= left - 1;
        }
        self.left = 0;
        // SAFETY: so many packets were moved to the front, in their order.
        unsafe { self.batch.set_len(len) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet(n: usize) -> Packet {
        Packet::from_slice(&[n as u8])
    }

    fn numbers(batch: &Batch) -> Vec<u8> {
        batch.iter().map(|packet| packet.data()[0]).collect()
    }

    proptest! {
        /// Against a list that is filtered.
        #[test]
        fn each_packet_goes_where_it_was_sent(
            count in 0..=BATCH_SIZE, steps in prop::collection::vec((any::<u32>(), 0..=BATCH_SIZE), 0..4),
        ) {
            let mut batch: Batch = (0..count).map(packet).collect();
            let mut expected: Vec<u8> = (0..count as u8).collect();
            let mut split = Split::new(&mut batch);
            for (which, room) in steps {
                let mut to: Batch = (0..BATCH_SIZE - room).map(|n| packet(100 + n)).collect();
                let asked = |n: &u8| which & 1 << n != 0;
                let moved: Vec<u8> = expected.iter().copied().filter(asked).take(room).collect();
                expected.retain(|n| !moved.contains(n));
                let rest = split.move_to(which, &mut to);
                prop_assert_eq!(&numbers(&to)[BATCH_SIZE - room..], &moved[..]);
                prop_assert_eq!(rest, expected.iter().filter(|n| asked(n)).fold(0, |bits, n| bits | 1 << n));
                prop_assert_eq!(split.left(), expected.iter().fold(0, |bits, n| bits | 1 << n));
            }
            drop(split);
            prop_assert_eq!(numbers(&batch), expected);
        }
    }

    #[test]
    fn whoever_takes_none_has_all() {
        let mut batch: Batch = (0..3).map(packet).collect();
        drop(Split::new(&mut batch));
        assert_eq!(numbers(&batch), [0, 1, 2]);
        let mut none = Batch::new();
        assert_eq!(Split::new(&mut none).left(), 0);
    }
}
