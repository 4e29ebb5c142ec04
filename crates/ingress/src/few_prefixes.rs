//! A few prefixes of IPv4, compared with the addresses of a whole batch at once.
//!
//! The addresses are gathered from the frames first, in arrays, so that the compiler compares several of them with each
//! instruction. This takes less than a look-up for each frame, up to [`MAX_COMPARISONS`].

use packet::{BATCH_SIZE, Packet};

use crate::prefix::{Prefix, PrefixExpression};

/// The most comparisons that are made in this way.
const MAX_COMPARISONS: usize = 8;

/// Bytes of Ethernet and IPv4 headers up to the end of the destination address (RFC 791 section 3.1).
const HEADERS: usize = 14 + 20;

/// Rules that name a prefix only, with what they say about frames of IPv4.
#[derive(Debug)]
pub struct FewPrefixes(Box<[Comparison]>);

/// A rule's comparison with one of the addresses.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    rule: u32,
    /// With the destination address, otherwise with that of the source.
    destination: bool,
    /// The bits that count, in the order of bytes in which the frame has them, as have the next.
    mask: u32,
    address: u32,
}

/// Which packets of a batch are frames of IPv4 with both addresses, and these addresses as the frames have them.
struct Addresses {
    present: u32,
    source: [u32; BATCH_SIZE],
    destination: [u32; BATCH_SIZE],
}

impl FewPrefixes {
    /// The comparisons for these rules, each with its number and in the order of these; `None` where they are too many.
    pub fn new(rules: &[(u32, PrefixExpression)]) -> Option<FewPrefixes> {
        let mut comparisons = Vec::new();
        for &(rule, expression) in rules {
            let Prefix::V4 { address, len, .. } = expression.prefix else { continue };
            let (mask, address) = (u32::MAX.unbounded_shl(32 - u32::from(len)).to_be(), address.to_be());
            let wanted = [(expression.source, false), (expression.destination, true)];
            let wanted = wanted.into_iter().filter(|(wanted, _)| *wanted);
            comparisons.extend(wanted.map(|(_, destination)| Comparison { rule, destination, mask, address }));
        }
        (comparisons.len() <= MAX_COMPARISONS).then(|| FewPrefixes(comparisons.into()))
    }

    /// Tells `matched` of the packets whose first match each rule is, as a set. Only packets of `among` are looked at.
    /// Returns those that this says nothing about, as they are not whole frames of IPv4.
    #[inline]
    pub fn each_match(&self, packets: &[Packet], among: u32, mut matched: impl FnMut(u32, u32)) -> u32 {
        let addresses = Addresses::of(packets);
        let mut pending = among & addresses.present;
        for comparison in &self.0 {
            let of = if comparison.destination { &addresses.destination } else { &addresses.source };
            let equal = pending & equal(of, comparison.mask, comparison.address);
            if equal != 0 {
                matched(comparison.rule, equal);
                pending &= !equal;
            }
        }
        among & !addresses.present
    }
}

impl Addresses {
    #[inline(always)]
    fn of(packets: &[Packet]) -> Addresses {
        let mut addresses = Addresses { present: 0, source: [0; BATCH_SIZE], destination: [0; BATCH_SIZE] };
        for (i, packet) in packets.iter().enumerate().take(BATCH_SIZE) {
            let Some(headers) = packet.data().first_chunk::<HEADERS>() else { continue };
            let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *headers;
            addresses.present |= u32::from(headers[12..14] == [0x08, 0x00]) << i;
            addresses.source[i] = u32::from_ne_bytes([s0, s1, s2, s3]);
            addresses.destination[i] = u32::from_ne_bytes([d0, d1, d2, d3]);
        }
        addresses
    }
}

/// Which of the addresses have these bits.
#[inline(always)]
fn equal(addresses: &[u32; BATCH_SIZE], mask: u32, bits: u32) -> u32 {
    addresses.iter().enumerate().fold(0, |set, (i, address)| set | u32::from(address & mask == bits) << i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::recognise;

    fn few(expressions: &[&str]) -> Option<FewPrefixes> {
        let rules = (0..).zip(expressions.iter().map(|text| recognise(text).unwrap())).collect::<Vec<_>>();
        FewPrefixes::new(&rules)
    }

    fn frame(ethertype: u16, source: [u8; 4], destination: [u8; 4], len: usize) -> Packet {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[26..30].copy_from_slice(&source);
        frame[30..34].copy_from_slice(&destination);
        Packet::from_slice(&frame[..len])
    }

    #[test]
    fn the_first_rule_has_each_packet_and_the_rest_is_returned() {
        let few = few(&["dst net 10.0.0.0/8", "ip6 net 2001:db8::/32", "host 10.1.2.3", "src net 10.0.0.0/9"]).unwrap();
        let (near, far) = ([10, 1, 2, 3], [192, 0, 2, 1]);
        let packets = [
            frame(0x0800, near, near, 60),
            frame(0x0800, near, far, 34),
            frame(0x0800, far, near, 60),
            frame(0x0800, far, far, 60),
            frame(0x0800, [10, 127, 0, 0], far, 60),
            frame(0x0800, [10, 128, 0, 0], far, 60),
            frame(0x0800, near, near, 33),
            frame(0x0806, near, near, 60),
            frame(0x0800, near, near, 60),
        ];
        let mut matches = Vec::new();
        let rest = few.each_match(&packets, 0b0_1111_1111, |rule, set| matches.push((rule, set)));
        assert_eq!((matches, rest), (vec![(0, 0b101), (2, 0b10), (3, 0b1_0000)], 0b1100_0000));
        let whole: Vec<_> = (0..BATCH_SIZE).map(|_| frame(0x0800, far, near, 60)).collect();
        let mut all = 0;
        assert_eq!(few.each_match(&whole, u32::MAX, |_, set| all |= set), 0);
        assert_eq!(all, u32::MAX);
    }

    #[test]
    fn many_are_not_compared() {
        assert!(few(&["net 10.0.0.0/8"; 4]).is_some() && few(&["net 10.0.0.0/8"; 5]).is_none());
        assert!(few(&["dst net 10.0.0.0/8"; 8]).is_some() && few(&["ip6 net 2001:db8::/32"; 9]).is_some());
    }
}
