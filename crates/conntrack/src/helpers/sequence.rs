//! Numbers of segments, where a helper has changed the length of what one end has sent: that end counts without the change, the
//! other end with it. Sequence and acknowledgement number are shifted, and the edges of selective acknowledgements (RFC 2018).

use packet::wire::checksum;

use crate::nat::Place;
use crate::protocol::tcp::Segment;
use crate::table::slot::Skew;

/// By how much the numbers of a segment are shifted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shift {
    /// What is added to the sequence number.
    sequence: i32,
    /// The skew of the other direction, whose numbers the segment acknowledges.
    acknowledged: Skew,
}

/// The bytes of a header without options.
const FIXED: usize = 20;
const SEQUENCE: usize = 4;
const ACKNOWLEDGEMENT: usize = 8;
const CHECKSUM: usize = 16;

/// Options (RFC 9293 section 3.1, RFC 2018 section 3).
mod option {
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const SACK: u8 = 5;
    /// Bytes of an option's kind and length.
    pub const HEAD: usize = 2;
    /// Bytes of a selective acknowledgement's block: its left and its right edge.
    pub const BLOCK: usize = 8;
}

impl Shift {
    /// What a segment needs in a connection with these skews, of the original direction and of the replies.
    pub(crate) fn of(segment: &Segment, reply: bool, [orig, replies]: &[Skew; 2]) -> Option<Shift> {
        let (own, other) = if reply { (replies, orig) } else { (orig, replies) };
        let shift = Shift { sequence: own.of_sequence(segment.seq), acknowledged: *other };
        (shift.sequence != 0 || *other != Skew::default()).then_some(shift)
    }

    /// Shifts the numbers of a segment in its frame. Options that are malformed, and all behind one, stay as they are.
    pub fn apply(&self, bytes: &mut [u8], place: &Place) {
        let Some(at) = place.transport else { return };
        let Some(len) = bytes.get(at + 12).map(|byte| usize::from(byte >> 4) * 4) else { return };
        let Some(header) = bytes.get_mut(at..at + len).filter(|header| header.len() >= FIXED) else { return };
        replace(header, SEQUENCE, place.partial, |number| number.wrapping_add_signed(self.sequence));
        let acknowledged = |number| self.acknowledged.as_sent(number);
        replace(header, ACKNOWLEDGEMENT, place.partial, acknowledged);
        let mut at = FIXED;
        while let Some(&kind) = header.get(at).filter(|kind| **kind != option::END) {
            if kind == option::NOP {
                at += 1;
                continue;
            }
            let end = header.get(at + 1).map(|len| at + usize::from(*len));
            let Some(end) = end.filter(|end| (at + option::HEAD..=header.len()).contains(end)) else { return };
            if kind == option::SACK && (end - at) % option::BLOCK == option::HEAD {
                (at + option::HEAD..end).step_by(4).for_each(|edge| replace(header, edge, place.partial, acknowledged));
            }
            at = end;
        }
    }
}

/// Changes a number in a header, and the checksum, if that covers the header.
fn replace(header: &mut [u8], at: usize, partial: bool, change: impl Fn(u32) -> u32) {
    let number = &mut header[at..at + 4];
    let old = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
    let new = change(old);
    number.copy_from_slice(&new.to_be_bytes());
    if !partial {
        // At an odd offset, the words of the sum are the number's with their bytes one place further.
        let aligned = |number: u32| if at % 2 == 1 { number.rotate_left(8) } else { number };
        let sum = u16::from_be_bytes([header[CHECKSUM], header[CHECKSUM + 1]]);
        let sum = checksum::update32(sum, aligned(old), aligned(new));
        header[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place = Place { ip: 0, transport: Some(0), end: 0, proto: 6, partial: false };

    /// A segment with a right checksum, as if there were no pseudo header.
    fn segment(seq: u32, ack: u32, options: &[u8]) -> Vec<u8> {
        let mut bytes = [[0, 21, 0x9c, 0x40], seq.to_be_bytes(), ack.to_be_bytes(), [0, 16, 1, 0], [0; 4]].concat();
        bytes.extend(options);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes[12] = (bytes.len() as u8 / 4) << 4;
        bytes.extend(b"data");
        let sum = checksum::checksum(&bytes);
        bytes[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    fn sack(edges: &[u32]) -> Vec<u8> {
        [vec![option::SACK, 2 + 4 * edges.len() as u8], edges.iter().flat_map(|edge| edge.to_be_bytes()).collect()]
            .concat()
    }

    /// Eight bytes were added before number 1000 of the other end.
    const SHIFT: Shift = Shift { sequence: -3, acknowledged: Skew { total: 8, last: 8, position: 1000 } };

    fn shifted(options: &[u8]) -> Vec<u8> {
        let mut bytes = segment(100, 990, options);
        SHIFT.apply(&mut bytes, &PLACE);
        bytes
    }

    #[test]
    fn edges_of_selective_acknowledgements_are_shifted_as_acknowledgements_are() {
        // The first block has come twice (RFC 2883), the number that is acknowledged is from before the change.
        let (before, after) = ([900, 950, 1028, 1108], [900, 950, 1020, 1100]);
        for padding in 0..4 {
            let nops = vec![option::NOP; padding];
            let options = |edges: &[u32]| [&nops, &sack(edges)[..], &[8, 10, 1, 2, 3, 4, 5, 6, 7, 8]].concat();
            assert_eq!(shifted(&options(&before)), segment(97, 990, &options(&after)), "{padding}");
        }
        // Where there is room for two of them, both are.
        let twice = |a: &[u32], b: &[u32]| [sack(a), sack(b)].concat();
        let bytes = shifted(&twice(&before[2..], &before[2..]));
        assert_eq!(bytes, segment(97, 990, &twice(&after[2..], &after[2..])));
    }

    #[test]
    fn what_is_no_selective_acknowledgement_stays() {
        let mut short = sack(&[1028, 1108]);
        short[1] = 6;
        let mut long = sack(&[1028, 1108]);
        long[1] = 18;
        let mut endless = sack(&[1028, 1108]);
        endless[1] = 0;
        let behind_the_end = [&[option::END], &sack(&[1028, 1108])[..]].concat();
        let in_another = [&[253, 12], &sack(&[1028, 1108])[..]].concat();
        for options in [short, long, endless, behind_the_end, in_another, vec![4, 2], vec![option::NOP, option::SACK]] {
            assert_eq!(shifted(&options), segment(97, 990, &options), "{options:?}");
        }
    }

    proptest! {
        /// The sender gets the numbers that it has sent: those that the receiver has got are shifted back.
        #[test]
        fn what_was_sent_is_acknowledged(
            start: u32,
            total in -100i32..100,
            last in -9i16..9,
            sent in prop::collection::vec((0u32..2000).prop_filter("a number within", |n| !(980..1000).contains(n)), 6),
        ) {
            // The segment that was changed ends at the position, and no number within is acknowledged.
            let skew = Skew { total, last, position: start.wrapping_add(1000) };
            let sent: Vec<u32> = sent.iter().map(|n| start.wrapping_add(*n)).collect();
            let received: Vec<u32> = sent.iter().map(|n| n.wrapping_add_signed(skew.of_sequence(*n))).collect();
            let mut bytes = segment(1, received[0], &sack(&received));
            Shift { sequence: 0, acknowledged: skew }.apply(&mut bytes, &PLACE);
            prop_assert_eq!(bytes, segment(1, sent[0], &sack(&sent)));
        }

        /// Any options: none is read beyond the header, the checksum stays right, and nothing else is changed.
        #[test]
        fn options_of_any_form(
            options in prop::collection::vec(prop_oneof![Just(option::SACK), Just(10), Just(18), Just(option::NOP), any::<u8>()], 0..=40),
            total: i32,
            last: i16,
            cut in 0usize..64,
        ) {
            let shift = Shift { sequence: total, acknowledged: Skew { total, last, position: 5 } };
            let mut bytes = segment(7, 7, &options);
            let before = bytes.clone();
            shift.apply(&mut bytes, &PLACE);
            prop_assert!([0, 0xffff].contains(&checksum::checksum(&bytes)));
            prop_assert_eq!(&bytes[12..16], &before[12..16]);
            prop_assert!(bytes.ends_with(b"data"));
            let mut cut = before[..cut.min(before.len())].to_vec();
            shift.apply(&mut cut, &PLACE);
        }
    }
}
