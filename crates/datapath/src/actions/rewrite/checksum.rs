//! Internet checksums, updated incrementally (RFC 1624).

/// The change of a one's complement sum.
#[derive(Clone, Copy, Default, Debug)]
pub struct Delta(u64);

impl Delta {
    /// Adds the change of a 16-bit word.
    #[inline]
    pub fn word(&mut self, old: u16, new: u16) {
        // Equal words are left out, so that a sum without a change keeps its form of zero.
        if old != new {
            self.0 += u64::from(!old) + u64::from(new);
        }
    }

    /// Adds another change.
    #[inline]
    pub fn add(&mut self, other: Delta) {
        self.0 += other.0;
    }

    /// Whether nothing has changed.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The checksum after the change: RFC 1624, equation 3.
    #[inline]
    pub fn apply(self, checksum: u16) -> u16 {
        if self.is_zero() { checksum } else { !fold(self.0 + u64::from(!checksum)) }
    }

    /// As [`apply`](Delta::apply), for a field that holds a sum which is not complemented: the pseudo
    /// header's, where the checksum is still to be completed.
    #[inline]
    pub fn apply_to_sum(self, sum: u16) -> u16 {
        if self.is_zero() { sum } else { fold(self.0 + u64::from(sum)) }
    }
}

/// Writes the bits of `to` that `mask` has with those of `value`, and adds the change to each of `deltas`. All three
/// slices have the same, even length.
#[inline]
pub fn store(to: &mut [u8], value: &[u8], mask: &[u8], deltas: &mut [&mut Delta]) {
    for ((to, value), mask) in to.chunks_exact_mut(2).zip(value.chunks_exact(2)).zip(mask.chunks_exact(2)) {
        let old = u16::from_be_bytes([to[0], to[1]]);
        let mask = u16::from_be_bytes([mask[0], mask[1]]);
        let new = old & !mask | u16::from_be_bytes([value[0], value[1]]) & mask;
        to.copy_from_slice(&new.to_be_bytes());
        for delta in deltas.iter_mut() {
            delta.word(old, new);
        }
    }
}

/// As [`store`], for the 32-bit word with this number. The two halves of a word count as the whole does, modulo
/// 0xffff.
#[inline(always)]
pub fn store_word<const N: usize>(header: &mut [u8; N], number: usize, value: u32, mask: u32) -> Delta {
    let word = &mut header[4 * number..4 * number + 4];
    let old = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
    let new = old & !mask | value & mask;
    word.copy_from_slice(&new.to_be_bytes());
    Delta(if old != new { u64::from(!old) + u64::from(new) } else { 0 })
}

#[inline]
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(bytes: &[u8]) -> u16 {
        !fold(bytes.chunks(2).map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum())
    }

    proptest! {
        #[test]
        fn incremental_equals_full(mut bytes in any::<[u8; 32]>(), value in any::<[u8; 32]>(), mask in any::<[u8; 32]>()) {
            let before = full(&bytes);
            let mut delta = Delta::default();
            store(&mut bytes, &value, &mask, &mut [&mut delta]);
            prop_assert!(bytes.iter().zip(&value).zip(&mask).all(|((b, v), m)| b & m == v & m));
            // All-zero bytes are the one case with two right answers.
            prop_assume!(bytes != [0; 32]);
            prop_assert_eq!(delta.apply(before), full(&bytes));
        }

        #[test]
        fn words_equal_halves(bytes in any::<[u8; 20]>(), number in 0..5usize, value in any::<u32>(), mask in any::<u32>()) {
            let (mut one, mut other, mut delta) = (bytes, bytes, Delta::default());
            let of_word = store_word(&mut one, number, value, mask);
            let at = 4 * number..4 * number + 4;
            store(&mut other[at], &value.to_be_bytes(), &mask.to_be_bytes(), &mut [&mut delta]);
            prop_assert_eq!(one, other);
            prop_assume!(one != [0; 20]);
            prop_assert_eq!(of_word.apply(full(&bytes)), full(&one));
            prop_assert_eq!(delta.apply(full(&bytes)), full(&one));
        }
    }
}
