//! Fragments of a packet that is longer than the MTU on its way (RFC 791 section 2.3, RFC 8200 section 4.5).
//!
//! A switch passes on what fits, and drops what does not. But what it has put headers of its own before, it has sent itself, and may
//! send in fragments where these headers do not forbid it.

use packet::wire::{checksum, ip_proto, ipv4, ipv6};
use packet::{Memory, Packet};
use zerocopy::{FromBytes, IntoBytes};

use super::{MAX_SEGMENTS, OffloadError, SHORT, empty};

/// Bytes of payload of all fragments but the last are a multiple of this.
const UNIT: usize = 8;

/// Where a packet is cut.
struct Cut {
    /// Bytes of each fragment before its payload, without a fragment header.
    head: usize,
    /// End of the packet; bytes behind it are padding.
    end: usize,
    /// Of IPv6: where the first header that is not repeated is named.
    next_at: Option<usize>,
}

impl Cut {
    fn of(frame: &[u8], l3: usize) -> Result<Cut, OffloadError> {
        let ip = frame.get(l3..).ok_or(SHORT)?;
        match ip.first().ok_or(SHORT)? >> 4 {
            4 => {
                let (header, _) = ipv4::Header::ref_from_prefix(ip).map_err(|_| SHORT)?;
                let (len, total) = (usize::from(header.version_ihl & 15) * 4, usize::from(header.total_len.get()));
                if len < size_of_val(header) || len > total || total > ip.len() {
                    return Err(OffloadError::Segmentation("malformed IPv4 header"));
                }
                if header.flags_offset.get() != 0 {
                    return Err(OffloadError::Segmentation("an IPv4 packet that is not to be fragmented"));
                }
                Ok(Cut { head: l3 + len, end: l3 + total, next_at: None })
            }
            6 => {
                let (header, rest) = ipv6::Header::ref_from_prefix(ip).map_err(|_| SHORT)?;
                let mut cut = Cut { head: l3 + size_of_val(header), end: 0, next_at: Some(l3 + 6) };
                cut.end = cut.head + usize::from(header.payload_len.get());
                if rest.len() < usize::from(header.payload_len.get()) {
                    return Err(SHORT);
                }
                // Each fragment needs what routers on its way look at.
                let mut next = header.next;
                while matches!(next, ip_proto::HOP_BY_HOP | ip_proto::ROUTING) {
                    let extension = frame[..cut.end].get(cut.head..cut.head + 8).ok_or(SHORT)?;
                    (next, cut.next_at) = (extension[0], Some(cut.head));
                    cut.head += 8 + usize::from(extension[1]) * 8;
                }
                if cut.head > cut.end { Err(SHORT) } else { Ok(cut) }
            }
            _ => Err(OffloadError::Segmentation("neither IPv4 nor IPv6")),
        }
    }
}

/// Cuts the IP packet that begins `l3` bytes into the frame, and has no work left to do, into fragments of at most `mtu` bytes, and
/// calls `emit` with each. Returns how many there are. Over IPv4 they have the packet's identification, over IPv6 `id`.
pub fn fragment(
    packet: &Packet,
    l3: usize,
    mtu: usize,
    id: u32,
    memory: &'static Memory,
    emit: &mut dyn FnMut(Packet),
) -> Result<usize, OffloadError> {
    let Cut { head, end, next_at } = Cut::of(packet.data(), l3)?;
    let (head, payload) = packet.data()[..end].split_at(head);
    let more_head = if next_at.is_some() { size_of::<ipv6::Fragment>() } else { 0 };
    let size = mtu.saturating_sub(head.len() - l3 + more_head) / UNIT * UNIT;
    if size == 0 || payload.len().div_ceil(size) > MAX_SEGMENTS {
        return Err(OffloadError::Segmentation("the MTU is too small for fragments"));
    }
    let mut count = 0;
    for part in payload.chunks(size) {
        let len = head.len() + more_head + part.len();
        let mut fragment = empty(memory, len).ok_or(OffloadError::NoBuffer)?;
        fragment.set_queue(packet.queue());
        let frame = fragment.push_back(len).expect("allocated with this size");
        frame[..head.len()].copy_from_slice(head);
        frame[head.len() + more_head..].copy_from_slice(part);
        // The offset is less than the length of a packet, which has 16 bits.
        let (offset, more) = ((count * size) as u16, (count + 1) * size < payload.len());
        match next_at {
            None => finish_v4(&mut frame[l3..], offset, more),
            Some(next_at) => finish_v6(frame, (l3, head.len(), next_at), offset, more, id),
        }
        emit(fragment);
        count += 1;
    }
    Ok(count)
}

fn finish_v4(ip: &mut [u8], offset: u16, more: bool) {
    let total = ip.len() as u16;
    let Ok((header, _)) = ipv4::Header::mut_from_prefix(ip) else { return };
    let len = usize::from(header.version_ihl & 15) * 4;
    header.total_len.set(total);
    header.flags_offset.set((offset / UNIT as u16) | if more { ipv4::MORE_FRAGMENTS } else { 0 });
    header.checksum.set(0);
    let sum = checksum::checksum(&ip[..len]);
    if let Ok((header, _)) = ipv4::Header::mut_from_prefix(ip) {
        header.checksum.set(sum);
    }
}

/// `at`: where the IP header begins, where the fragment header is, and where that is named.
fn finish_v6(frame: &mut [u8], (l3, header_at, next_at): (usize, usize, usize), offset: u16, more: bool, id: u32) {
    let len = (frame.len() - l3 - size_of::<ipv6::Header>()) as u16;
    frame[l3 + 4..l3 + 6].copy_from_slice(&len.to_be_bytes());
    let next = std::mem::replace(&mut frame[next_at], ip_proto::FRAGMENT);
    let header = ipv6::Fragment { next, reserved: 0, offset_flags: (offset | u16::from(more)).into(), id: id.into() };
    frame[header_at..header_at + size_of_val(&header)].copy_from_slice(header.as_bytes());
}

#[cfg(test)]
mod tests {
    use packet::buffer::heap::HEAP;
    use packet::wire::build;
    use proptest::prelude::*;

    use super::*;

    fn cut(frame: &[u8], l3: usize, mtu: usize) -> Result<Vec<Vec<u8>>, OffloadError> {
        let mut all = Vec::new();
        let packet = Packet::from_slice(frame);
        let count = fragment(&packet, l3, mtu, 0x0102_0304, &HEAP, &mut |part| all.push(part.data().to_vec()))?;
        assert_eq!(count, all.len());
        Ok(all)
    }

    fn v4(payload: &[u8]) -> Vec<u8> {
        let header =
            build::Ipv4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), proto: 99, ..Default::default() };
        let mut packet = header.packet(payload.to_vec());
        packet[4..8].copy_from_slice(&[0xab, 0xcd, 0, 0]);
        packet
    }

    /// A packet of IPv6 with this many bytes of a routing header.
    fn v6(routing: usize, payload: &[u8]) -> Vec<u8> {
        let mut extension = vec![0u8; routing];
        let mut next = 17;
        if let [first, words, ..] = &mut extension[..] {
            (*first, *words, next) = (17, (routing / 8 - 1) as u8, 43);
        }
        let len = (routing + payload.len()) as u16;
        let fixed = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[next, 64], &[0x20; 32]].concat();
        [fixed, extension, payload.to_vec()].concat()
    }

    proptest! {
        /// Put together by what their headers say, fragments are what was cut, and each keeps within the MTU.
        #[test]
        fn fragments_are_the_packet(
            is_v6: bool, routing in 0usize..4, len in 0usize..20_000, mtu in 100usize..3000, l3 in 14usize..19, padding in 0usize..9,
        ) {
            let payload: Vec<u8> = (0..len).map(|n| (n * 7 + n / 256) as u8).collect();
            let routing = if is_v6 { routing * 8 } else { 0 };
            let head = if is_v6 { 40 + routing } else { 20 };
            let whole = if is_v6 { v6(routing, &payload) } else { v4(&payload) };
            let frame = [vec![9; l3], whole.clone(), vec![0; padding]].concat();
            let mut together = vec![None; len];
            let parts = cut(&frame, l3, mtu).unwrap();
            for (index, part) in parts.iter().enumerate() {
                prop_assert_eq!(&part[..l3], &vec![9; l3][..]);
                let ip = &part[l3..];
                prop_assert!(ip.len() <= mtu);
                let is_last = index + 1 == parts.len();
                let (offset, more, data) = if is_v6 {
                    prop_assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip.len() - 40);
                    prop_assert_eq!(if routing == 0 { ip[6] } else { ip[40] }, 44);
                    let (header, data) = ipv6::Fragment::ref_from_prefix(&ip[head..]).unwrap();
                    prop_assert_eq!((header.next, header.id.get()), (17, 0x0102_0304));
                    (header.offset_flags.get() & !7, header.offset_flags.get() & 1 != 0, data)
                } else {
                    let (header, data) = ipv4::Header::ref_from_prefix(ip).unwrap();
                    prop_assert_eq!((header.id.get(), usize::from(header.total_len.get())), (0xabcd, ip.len()));
                    prop_assert_eq!(checksum::checksum(&ip[..20]), 0);
                    let word = header.flags_offset.get();
                    ((word & 0x1fff) * 8, word & 0x2000 != 0, data)
                };
                prop_assert_eq!(more, !is_last);
                for (at, byte) in data.iter().enumerate() {
                    prop_assert_eq!(together[usize::from(offset) + at].replace(*byte), None, "twice");
                }
            }
            prop_assert_eq!(together.into_iter().collect::<Option<Vec<u8>>>(), Some(payload));
        }

        /// Any bytes.
        #[test]
        fn what_has_no_whole_headers_is_refused(frame in prop::collection::vec(any::<u8>(), 0..200), l3 in 0usize..40, mtu in 0usize..200) {
            for version in [4u8, 6] {
                let mut frame = frame.clone();
                if let Some(byte) = frame.get_mut(l3) {
                    *byte = version << 4 | *byte & 15;
                }
                for part in cut(&frame, l3, mtu).unwrap_or_default() {
                    prop_assert!(part.len() - l3 <= mtu);
                }
            }
        }
    }

    #[test]
    fn what_must_not_be_fragmented_is_refused() {
        let mut packet = v4(&[1; 3000]);
        for flags in [ipv4::DONT_FRAGMENT, ipv4::MORE_FRAGMENTS, 5] {
            packet[6..8].copy_from_slice(&flags.to_be_bytes());
            assert!(matches!(cut(&packet, 0, 1000), Err(OffloadError::Segmentation(_))));
        }
        assert!(cut(&v4(&[1; 3000]), 0, 27).is_err(), "no room for eight bytes");
        assert_eq!(cut(&v4(&[1; 3000]), 0, 28).map(|parts| parts.len()), Ok(375));
        assert!(cut(&v4(&[1; 30_000]), 0, 28).is_err(), "too many");
    }
}
