//! The Internet checksum: the full sum of RFC 1071 and the incremental update of RFC 1624.
//!
//! A checksum field holds the one's complement of the one's complement sum of the 16-bit words that it
//! covers. Functions take and return field values in host byte order.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A one's complement sum in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The empty sum.
    pub const ZERO: Sum = Sum(0);

    /// Adds bytes, of which the first is the high byte of a word. A last odd byte is padded with zero, so
    /// only the last piece of a message may have an odd length.
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Sum {
        let (quads, rest) = bytes.as_chunks::<4>();
        let (pairs, last) = rest.as_chunks::<2>();
        // 2^32 words of 32 bits fit: more than a message can have. The order of bytes is put right at the end, which is the same
        // (RFC 1071 section 2(B)), and lets several words be added at once.
        let mut sum = 0;
        for quad in quads {
            sum += u64::from(u32::from_ne_bytes(*quad));
        }
        for pair in pairs {
            sum += u64::from(u16::from_ne_bytes(*pair));
        }
        if let [byte] = last {
            sum += u64::from(u16::from_ne_bytes([*byte, 0]));
        }
        Sum(fold32(self.0 + u64::from(u16::from_be(Sum(fold32(sum)).partial()))))
    }

    /// Adds one word.
    #[must_use]
    pub fn add_u16(self, word: u16) -> Sum {
        Sum(fold32(self.0 + u64::from(word)))
    }

    /// Adds two words.
    #[must_use]
    pub fn add_u32(self, words: u32) -> Sum {
        Sum(fold32(self.0 + u64::from(words)))
    }

    /// The sum, folded to 16 bits, not complemented: what a checksum field holds that hardware is to
    /// complete.
    pub fn partial(self) -> u16 {
        let sum = (self.0 >> 16) + (self.0 & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        ((sum >> 16) + (sum & 0xffff)) as u16
    }

    /// The value for the checksum field.
    pub fn finish(self) -> u16 {
        !self.partial()
    }

    /// The value for the checksum field of UDP, which sends zero as 0xffff (RFC 768).
    pub fn finish_udp(self) -> u16 {
        udp_nonzero(self.finish())
    }
}

fn fold32(sum: u64) -> u64 {
    (sum >> 32) + (sum & 0xffff_ffff)
}

fn udp_nonzero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// The checksum over `bytes`. Zero for a header that holds its own correct checksum.
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.add_bytes(bytes).finish()
}

/// Sum of the IPv4 pseudo header (RFC 793 section 3.1): addresses, protocol, L4 length in bytes.
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, proto: u8, length: u16) -> Sum {
    Sum::ZERO.add_u32(src.into()).add_u32(dst.into()).add_u16(proto.into()).add_u16(length)
}

/// Sum of the IPv6 pseudo header (RFC 8200 section 8.1): addresses, upper-layer length in bytes, protocol.
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, proto: u8, length: u32) -> Sum {
    Sum::ZERO.add_bytes(&src.octets()).add_bytes(&dst.octets()).add_u32(length).add_u32(proto.into())
}

/// The checksum after one word that it covers has changed (RFC 1624 equation 3).
pub fn update16(checksum: u16, old: u16, new: u16) -> u16 {
    change(checksum, u64::from(!old), u64::from(new))
}

/// The checksum after an aligned 32-bit value that it covers has changed.
pub fn update32(checksum: u16, old: u32, new: u32) -> u16 {
    change(checksum, u64::from(!old), u64::from(new))
}

/// The checksum after an IPv6 address or another aligned 128-bit value that it covers has changed.
pub fn update128(checksum: u16, old: &[u8; 16], new: &[u8; 16]) -> u16 {
    update(checksum, old, new)
}

/// The checksum after `old` was replaced by `new`, of the same even length, at an even offset. Bytes beyond
/// the shorter of the two count as unchanged.
pub fn update(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let pairs = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
    let (old, new) = pairs.fold((0, 0), |(o, n), (old, new)| {
        (o + u64::from(!u16::from_be_bytes(*old)), n + u64::from(u16::from_be_bytes(*new)))
    });
    change(checksum, old, new)
}

/// UDP's checksum after a change that alters a checksum from `checksum` to `update(checksum)`: zero, "no
/// checksum", stays zero, and zero as a result is sent as 0xffff (RFC 768).
pub fn update_udp(checksum: u16, update: impl FnOnce(u16) -> u16) -> u16 {
    if checksum == 0 { 0 } else { udp_nonzero(update(checksum)) }
}

/// HC' = ~(~HC + ~m + m'), with the complemented old and the new words summed up.
fn change(checksum: u16, old_complement: u64, new: u64) -> u16 {
    Sum(u64::from(!checksum) + old_complement + new).finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 3 has the sum of these words: ddf2.
    #[test]
    fn example_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::ZERO.add_bytes(&bytes).partial(), 0xddf2);
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    /// RFC 1624 section 4: HC = dd2f, a word changes from 5555 to 3285, HC' = 0000.
    #[test]
    fn example_of_rfc_1624() {
        assert_eq!(update16(0xdd2f, 0x5555, 0x3285), 0);
    }

    #[test]
    fn udp_zero_rule() {
        assert_eq!(update_udp(0, |sum| update16(sum, 1, 2)), 0);
        assert_eq!(update_udp(0xdd2f, |sum| update16(sum, 0x5555, 0x3285)), 0xffff);
        assert_eq!(Sum::ZERO.add_u16(0xffff).finish_udp(), 0xffff);
    }

    /// The definition, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        let sum = bytes.chunks(2).map(word).fold(0u32, |sum, w| (sum + w) % 0xffff);
        let all_zero = bytes.iter().all(|&b| b == 0);
        if sum == 0 && !all_zero { 0 } else { !(sum as u16) }
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes: Vec<u8>) {
            prop_assert_eq!(checksum(&bytes), slow(&bytes));
        }

        /// After any change the updated checksum is the full one over the new bytes.
        #[test]
        fn updates_equal_the_full_sum(mut bytes: [u8; 40], new: [u8; 16], at in 0usize..12) {
            let at = 2 * at;
            bytes[39] |= 1; // RFC 1624: an all-zero message has two representations of zero
            let before = checksum(&bytes);
            let old: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
            let word = |b: &[u8]| u16::from_be_bytes([b[0], b[1]]);
            let long = |b: &[u8]| u32::from_be_bytes([b[0], b[1], b[2], b[3]]);

            bytes[at..at + 2].copy_from_slice(&new[..2]);
            prop_assert_eq!(update16(before, word(&old), word(&new)), checksum(&bytes));
            bytes[at..at + 4].copy_from_slice(&new[..4]);
            prop_assert_eq!(update32(before, long(&old), long(&new)), checksum(&bytes));
            bytes[at..at + 6].copy_from_slice(&new[..6]);
            prop_assert_eq!(update(before, &old[..6], &new[..6]), checksum(&bytes));
            bytes[at..at + 16].copy_from_slice(&new);
            prop_assert_eq!(update128(before, &old, &new), checksum(&bytes));
        }
    }
}
