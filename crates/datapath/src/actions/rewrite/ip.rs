//! IPv4 (RFC 791) and IPv6 (RFC 8200).

use packet::flow::extract::Layers;

use super::Rewriter;
use super::checksum::{Delta, store, store_word};

/// Writes fields of the IPv4 header, and updates its checksum. Changes that matter for the pseudo header of the L4
/// checksum are added to `l4`.
#[inline]
pub(super) fn set_ipv4(r: &Rewriter, frame: &mut [u8], layers: &Layers, l4: &mut Delta) {
    let Some(header) = frame.get_mut(layers.l3 as usize..).and_then(|header| header.first_chunk_mut::<20>()) else {
        return;
    };
    let (value, mask) = (&r.common.value, &r.common.mask);
    let mut own = Delta::default();
    let (tos, ttl) = (|tos: u8| u32::from(tos) << 16, |ttl: u8| u32::from(ttl) << 24);
    own.add(store_word(header, 0, tos(value.nw_tos), tos(mask.nw_tos)));
    own.add(store_word(header, 2, ttl(value.nw_ttl), ttl(mask.nw_ttl)));
    l4.add(store_word(header, 3, value.nw_src.get(), mask.nw_src.get()));
    l4.add(store_word(header, 4, value.nw_dst.get(), mask.nw_dst.get()));
    own.add(*l4);
    let checksum = own.apply(u16::from_be_bytes([header[10], header[11]]));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Writes the TTL of an IPv4 header, and updates its checksum.
#[inline(always)]
pub fn ip_ttl(header: &mut [u8; 20], value: u8, mask: u8) {
    let [.., a, b, c, d] = *header.first_chunk::<12>().expect("a header has more");
    header[8..12].copy_from_slice(&ip_ttl_word(u32::from_le_bytes([a, b, c, d]), value, mask).to_le_bytes());
}

/// The word of an IPv4 header with TTL, protocol and checksum, the first byte lowest, with another TTL: RFC 1624,
/// equation 3, for the former half. Sums do not depend on the order of bytes (RFC 1071 section 2). Without a branch, since
/// checksums are random.
#[inline(always)]
pub fn ip_ttl_word(word: u32, value: u8, mask: u8) -> u32 {
    let (old, checksum) = (word & 0xffff, word >> 16);
    let new = old & !u32::from(mask) | u32::from(value);
    let sum = (checksum ^ 0xffff) + (old ^ 0xffff) + new;
    let sum = (sum & 0xffff) + (sum >> 16);
    let updated = !(sum + (sum >> 16)) & 0xffff;
    // A sum without a change keeps its form of zero.
    new | if old == new { checksum } else { updated } << 16
}

/// Writes fields of the IPv6 header. Changes that matter for the pseudo header of the L4 checksum are added to `l4`.
pub(super) fn set_ipv6(r: &Rewriter, frame: &mut [u8], layers: &Layers, l4: &mut Delta) {
    let at = layers.l3 as usize;
    let routed = routes_on(frame, at);
    let Some(header) = frame.get_mut(at..at + 40) else { return };
    let (value, mask, l3) = (&r.common.value, &r.common.mask, r.l3_or_wild());
    // Version (4 bits), traffic class (8), flow label (20).
    let word = |tos: u8, label: u32| (u32::from(tos) << 20 | label & 0xf_ffff).to_be_bytes();
    let first = (word(value.nw_tos, l3.value.ipv6_label.get()), word(mask.nw_tos, l3.mask.ipv6_label.get()));
    store(&mut header[0..4], &first.0, &first.1, &mut []);
    store(&mut header[6..8], &[0, value.nw_ttl], &[0, mask.nw_ttl], &mut []);
    store(&mut header[8..24], &l3.value.ipv6_src, &l3.mask.ipv6_src, &mut [l4]);
    // The pseudo header has the final destination (RFC 8200 section 8.1), which is another one while a
    // routing header has segments left.
    let mut other = Delta::default();
    let to = if routed { &mut other } else { l4 };
    store(&mut header[24..40], &l3.value.ipv6_dst, &l3.mask.ipv6_dst, &mut [to]);
}

/// Whether the IPv6 packet at offset `at` has a routing header with segments left.
fn routes_on(frame: &[u8], at: usize) -> bool {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    let Some(&(mut next)) = frame.get(at + 6) else { return false };
    let mut at = at + 40;
    // As many as extraction walks.
    for _ in 0..packet::flow::extract::MAX_EXTENSION_HEADERS {
        let Some(header) = frame.get(at..at + 4) else { return false };
        match next {
            ROUTING => return header[3] != 0,
            HOP_BY_HOP | DESTINATION => {
                next = header[0];
                at += 8 + 8 * header[1] as usize;
            }
            _ => return false,
        }
    }
    false
}
