//! Checksums that the sender has left unfinished, recognised by what is in their field.
//!
//! A kernel stack at the other end of a veth pair leaves the checksum of TCP and UDP to the device, with
//! the sum of the pseudo header in its field, and says so beside the frame, where AF_XDP does not show
//! it. The sum itself tells: a frame whose field holds exactly the pseudo header's sum is taken as
//! unfinished. That is never wrong where it matters. Should a finished checksum happen to have this
//! value (once in 65 536 frames), completing it gives the same value again, since the field counts as
//! what it has to be.
//!
//! SCTP leaves zero. A CRC32c that is rightly zero is completed to zero.
//!
//! Inside of GRE and ERSPAN, and of VXLAN and Geneve at their usual ports, checksums are recognised too:
//! where a stack puts a frame into a tunnel, it completes the outer checksum only. Not recognised are
//! unfinished checksums inside of other tunnels.

use packet::Offload;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const GRE: u8 = 47;

/// VXLAN (RFC 7348, and what Linux used before there was one) and Geneve (RFC 8926).
const VXLAN_PORTS: [u16; 2] = [4789, 8472];
const GENEVE_PORT: u16 = 6081;

/// What GRE carries: Ethernet (RFC 7637), ERSPAN of types I and II, and III.
const BRIDGING: u16 = 0x6558;
const ERSPAN: u16 = 0x88be;
const ERSPAN_3: u16 = 0x22eb;

/// What is left to do to the checksum of `frame`.
#[inline]
pub fn recognise(frame: &[u8]) -> Offload {
    in_ethernet(frame, 0, true).unwrap_or(Offload::NONE)
}

/// Whether [`recognise`] finds in `frame` just the checksum that `todo` leaves unfinished: whether a receiver that is
/// told nothing beside the frame will know.
#[inline]
pub fn can_be_told(frame: &[u8], todo: Offload) -> bool {
    let found = recognise(frame);
    found.needs_csum() && (found.csum_start, found.csum_offset) == (todo.csum_start, todo.csum_offset)
}

/// As [`recognise`], for the Ethernet header at `l2`. `is_outer`: tunnels are looked into.
#[inline]
fn in_ethernet(frame: &[u8], l2: usize, is_outer: bool) -> Option<Offload> {
    let mut l3 = l2 + 14;
    while matches!(word(frame, l3 - 2)?, 0x8100 | 0x88a8) {
        l3 += 4;
    }
    in_ip(frame, word(frame, l3 - 2)?, l3, is_outer)
}

/// The same for the IP header at `l3`.
#[inline]
fn in_ip(frame: &[u8], ethertype: u16, l3: usize, is_outer: bool) -> Option<Offload> {
    let (l4, protocol, addresses, len) = match ethertype {
        0x0800 => ipv4(frame, l3)?,
        0x86dd => ipv6(frame, l3)?,
        _ => return None,
    };
    let offset = match protocol {
        TCP => 16,
        UDP => 6,
        SCTP => 8,
        GRE if is_outer => return in_gre(frame, l4),
        _ => return None,
    };
    let field = word(frame, l4 + usize::from(offset))?;
    let is_unfinished = match protocol {
        SCTP => field == 0 && word(frame, l4 + 10)? == 0,
        _ => field == pseudo_sum(addresses, protocol, len),
    };
    if !is_unfinished && protocol == UDP && is_outer {
        return in_ethernet(frame, inner(frame, l4)?, false);
    }
    let csum_start = u16::try_from(l4).ok()?;
    is_unfinished.then_some(Offload { flags: Offload::NEEDS_CSUM, csum_start, csum_offset: offset, ..Offload::NONE })
}

/// The Ethernet header in the tunnel whose UDP header is at `l4`.
#[inline]
fn inner(frame: &[u8], l4: usize) -> Option<usize> {
    let header = l4 + 8;
    match word(frame, l4 + 2)? {
        port if VXLAN_PORTS.contains(&port) => Some(header + 8),
        GENEVE_PORT if word(frame, header + 2)? == BRIDGING => Some(header + 8 + usize::from(frame[header] & 0x3f) * 4),
        _ => None,
    }
}

/// As [`recognise`], for the GRE header at `l4` (RFC 2784, RFC 2890).
#[inline]
fn in_gre(frame: &[u8], l4: usize) -> Option<Offload> {
    let flags = word(frame, l4)?;
    // No routing, and version 0.
    if flags & 0x4007 != 0 {
        return None;
    }
    let numbered = flags & 0x1000 != 0;
    let payload = l4 + 4 + (flags & 0xb000).count_ones() as usize * 4;
    match word(frame, l4 + 2)? {
        BRIDGING => in_ethernet(frame, payload, false),
        ERSPAN => in_ethernet(frame, payload + if numbered { 8 } else { 0 }, false),
        // Its last bit says that eight bytes more follow.
        ERSPAN_3 => in_ethernet(frame, payload + 12 + usize::from(word(frame, payload + 10)? & 1) * 8, false),
        ethertype => in_ip(frame, ethertype, payload, false),
    }
}

/// L4 header, protocol, addresses, and bytes of L4.
type Place<'a> = (usize, u8, &'a [u8], usize);

#[inline]
fn ipv4(frame: &[u8], l3: usize) -> Option<Place<'_>> {
    let header = frame.get(l3..l3 + 20)?;
    let header_len = usize::from(header[0] & 15) * 4;
    // A stack finishes checksums before it makes fragments.
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let len = usize::from(u16::from_be_bytes([header[2], header[3]])).checked_sub(header_len)?;
    (!fragment).then_some((l3 + header_len, header[9], &header[12..20], len))
}

#[inline]
fn ipv6(frame: &[u8], l3: usize) -> Option<Place<'_>> {
    let header = frame.get(l3..l3 + 40)?;
    let (mut protocol, mut l4) = (header[6], l3 + 40);
    let end = l4 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    // Hop-by-hop options, routing header, destination options (RFC 8200 section 4.1).
    while matches!(protocol, 0 | 43 | 60) {
        let extension = frame.get(l4..l4 + 8)?;
        protocol = extension[0];
        l4 += 8 + usize::from(extension[1]) * 8;
    }
    Some((l4, protocol, &header[8..40], end.checked_sub(l4)?))
}

#[inline]
fn pseudo_sum(addresses: &[u8], protocol: u8, len: usize) -> u16 {
    let words = addresses.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum = words.sum::<u32>() + u32::from(protocol) + len as u32;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[inline]
fn word(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::Packet;
    use proptest::prelude::*;

    /// A frame with zero in its checksum field.
    fn frame(ipv6: bool, udp: bool, tags: usize, options: bool, payload: &[u8]) -> (Vec<u8>, usize, usize) {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for _ in 0..tags {
            f.extend([0x81, 0, 0, 9]);
        }
        let l4 = [vec![0x30, 0x39, 0, 80], if udp { vec![0, 0, 0, 0] } else { vec![0; 8] }].concat();
        let l4 = if udp { l4 } else { [l4, vec![0x50, 0x18, 1, 0, 0, 0, 0, 0]].concat() };
        let (protocol, len) = (if udp { UDP } else { TCP }, l4.len() + payload.len());
        if ipv6 {
            let extra = if options { 8 } else { 0 };
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, (len + extra) as u8, if options { 60 } else { protocol }, 64]);
            f.extend([[0xfd; 16], [0xfe; 16]].concat());
            f.extend(if options { vec![protocol, 0, 1, 4, 0, 0, 0, 0] } else { vec![] });
        } else {
            let header = if options { 24 } else { 20 };
            f.extend([8, 0, 0x40 + (header / 4) as u8, 0, 0, (header + len) as u8, 0, 0, 0x40, 0, 64, protocol]);
            f.extend([0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            f.extend(vec![1; header - 20]);
        }
        let start = f.len();
        f.extend(l4);
        f.extend(payload);
        (f, start, start + if udp { 6 } else { 16 })
    }

    proptest! {
        #[test]
        fn the_pseudo_headers_sum_is_recognised_and_a_checksum_kept(
            ipv6: bool, udp: bool, tags in 0..3usize, options: bool, payload in prop::collection::vec(any::<u8>(), 0..60),
            other: u16,
        ) {
            let (mut f, start, at) = frame(ipv6, udp, tags, options, &payload);
            let l3 = 14 + 4 * tags;
            let addresses = if ipv6 { &f[l3 + 8..l3 + 40] } else { &f[l3 + 12..l3 + 20] };
            let sum = pseudo_sum(addresses, if udp { UDP } else { TCP }, f.len() - start);
            f[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            let offload = recognise(&f);
            prop_assert!(offload.needs_csum());
            prop_assert_eq!((offload.csum_start as usize, offload.csum_offset as usize), (start, at - start));
            let mut packet = Packet::from_slice(&f);
            *packet.offload_mut() = offload;
            crate::offload::complete_checksum(&mut packet).unwrap();
            let right = u16::from_be_bytes([packet.data()[at], packet.data()[at + 1]]);

            f[at..at + 2].copy_from_slice(&other.to_be_bytes());
            prop_assert_eq!(recognise(&f).needs_csum(), other == sum);

            // The payload for which the right checksum has the very value of the sum.
            let (mut f, ..) = frame(ipv6, udp, tags, options, &[&payload[..payload.len() / 2 * 2], &[0, 0]].concat());
            let addresses = if ipv6 { &f[l3 + 8..l3 + 40] } else { &f[l3 + 12..l3 + 20] };
            let sum = pseudo_sum(addresses, if udp { UDP } else { TCP }, f.len() - start);
            f[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            let mut packet = Packet::from_slice(&f);
            *packet.offload_mut() = recognise(&f);
            crate::offload::complete_checksum(&mut packet).unwrap();
            let first = u16::from_be_bytes([packet.data()[at], packet.data()[at + 1]]);
            let missing = pseudo_sum(&[first.to_be_bytes(), (!sum).to_be_bytes()].concat(), 0, 0);
            let last = f.len() - 2;
            f[last..].copy_from_slice(&missing.to_be_bytes());
            let mut packet = Packet::from_slice(&f);
            *packet.offload_mut() = recognise(&f);
            prop_assert!(packet.offload().needs_csum());
            crate::offload::complete_checksum(&mut packet).unwrap();
            prop_assert_eq!(packet.data(), &f[..], "finished by chance, and kept; {}", right);
        }

        #[test]
        fn any_bytes_are_harmless(mut bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0..3usize, first: u8) {
            if bytes.len() > 15 {
                bytes[12..14].copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0]][kind]);
                bytes[14] = first;
            }
            let offload = recognise(&bytes);
            if offload.needs_csum() {
                prop_assert!(usize::from(offload.csum_start + offload.csum_offset) + 2 <= bytes.len());
            }
        }
    }

    #[test]
    fn fragments_and_other_protocols_are_left_alone() {
        let (mut f, _, at) = frame(false, true, 0, false, &[1; 9]);
        let sum = pseudo_sum(&f[26..34], UDP, 17);
        f[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        assert!(recognise(&f).needs_csum());
        for (place, value) in [(20, 0x20), (21, 1), (23, 1), (12, 9)] {
            let mut other = f.clone();
            other[place] = value;
            assert!(!recognise(&other).needs_csum(), "{place}");
        }
    }

    #[test]
    fn a_checksum_inside_of_a_tunnel_is_recognised() {
        let (mut inner, start, at) = frame(false, false, 1, false, &[1; 9]);
        let sum = pseudo_sum(&inner[30..38], TCP, inner.len() - start);
        inner[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &inner].concat();
        let geneve = [&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 0, 1, 2, 0][..], &inner].concat();
        let other = [&[0, 0, 8, 0, 0, 0, 7, 0][..], &inner].concat();
        for (port, payload, known) in [
            (4789_u16, &vxlan, true),
            (8472, &vxlan, true),
            (4790, &vxlan, false),
            (6081, &geneve, true),
            (6081, &other, false),
        ] {
            let (mut outer, l4, _) = frame(false, true, 0, false, payload);
            outer[l4 + 2..l4 + 4].copy_from_slice(&port.to_be_bytes());
            let found = recognise(&outer);
            assert_eq!(found.needs_csum(), known, "{port}");
            if known {
                let first = outer.len() - inner.len();
                assert_eq!((usize::from(found.csum_start), found.csum_offset), (first + start, 16));
                assert!(can_be_told(&outer, found));
            }
            assert!(!can_be_told(&outer, Offload { csum_start: l4 as u16, csum_offset: 6, ..found }));
        }
    }

    #[test]
    fn a_checksum_inside_of_gre_is_recognised() {
        let (mut inner, start, at) = frame(false, false, 0, false, &[1; 9]);
        let sum = pseudo_sum(&inner[26..34], TCP, inner.len() - start);
        inner[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        let packet = &inner[14..];
        for (gre, payload, known) in [
            (&[0, 0, 0x65, 0x58][..], &inner[..], true),
            (&[0x20, 0, 0x65, 0x58, 0, 0, 0, 7], &inner, true),
            (&[0xb0, 0, 0x65, 0x58, 1, 2, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1], &inner, true),
            (&[0, 0, 8, 0], packet, true),
            (&[0, 0, 0x88, 0xbe], &inner, true),
            (&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 7, 0, 0, 0, 5], &inner, true),
            (&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0], &inner, true),
            (
                &[0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9],
                &inner,
                true,
            ),
            (&[0x40, 0, 0x65, 0x58], &inner, false),
            (&[0, 1, 0x65, 0x58], &inner, false),
            (&[0, 0, 0x88, 0x47], &inner, false),
        ] {
            let header = packet::wire::build::Ipv4 {
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                proto: GRE,
                ..Default::default()
            };
            let outer =
                packet::wire::build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet([gre, payload].concat()));
            let found = recognise(&outer);
            assert_eq!(found.needs_csum(), known, "{gre:x?}");
            if known {
                let first = outer.len() - inner.len();
                assert_eq!((usize::from(found.csum_start), found.csum_offset), (first + start, 16));
            }
            // Cut anywhere, it is looked at no further.
            (0..outer.len()).for_each(|len| _ = recognise(&outer[..len]));
        }
    }

    #[test]
    fn sctp_leaves_zero() {
        let mut f = vec![0; 12];
        f.extend([8, 0, 0x45, 0, 0, 36, 0, 0, 0, 0, 64, 132, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend([0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(recognise(&f).csum_offset, 8);
        f[45] = 1;
        assert!(!recognise(&f).needs_csum());
    }
}
