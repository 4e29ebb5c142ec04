//! L4 headers and neighbour discovery.

use super::load::{be16, chunk, copy};
use crate::flow::Key;
use crate::flow::block::Common;

/// Reads ports, or ICMP and IGMP type and code, and TCP flags from an L4 header. False where the header of
/// a known protocol is not whole: then nothing is written.
#[inline(always)]
pub fn ports(l4: &[u8], proto: u8, common: &mut Common) -> bool {
    match proto {
        6 => {
            let Some(header) = chunk::<20>(l4, 0) else { return false };
            let header_len = usize::from(header[12] >> 4) * 4;
            if header_len < 20 || header_len > l4.len() {
                return false;
            }
            common.tcp_flags = (be16(header, 12) & 0x0fff).into();
            common.tp_src = be16(header, 0).into();
            common.tp_dst = be16(header, 2).into();
        }
        17 | 132 => {
            // UDP headers have 8 bytes (RFC 768), SCTP's common header 12 (RFC 9260 section 3.1).
            let Some(header) = chunk::<8>(l4, 0) else { return false };
            if proto == 132 && l4.len() < 12 {
                return false;
            }
            common.tp_src = be16(header, 0).into();
            common.tp_dst = be16(header, 2).into();
        }
        1 | 2 | 58 => {
            let Some(header) = chunk::<8>(l4, 0) else { return false };
            common.tp_src = u16::from(header[0]).into();
            common.tp_dst = u16::from(header[1]).into();
        }
        _ => {}
    }
    true
}

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;

/// Reads target and link-layer address options of neighbour solicitations and advertisements (RFC 4861
/// sections 4.3 to 4.6) from an ICMPv6 message of at least 8 bytes.
///
/// An option of length zero or beyond the packet ends the options. The same option twice makes the message
/// invalid: target and addresses are then zero.
pub fn neighbour_discovery(l4: &[u8], key: &mut Key) {
    let Some(header) = chunk::<8>(l4, 0) else { return };
    if !matches!(header[0], SOLICITATION | ADVERTISEMENT) || header[1] != 0 {
        return;
    }
    let reserved: [u8; 4] = copy(header, 4);
    if reserved != [0; 4] {
        key.encap_mut().nd_reserved = u32::from_be_bytes(reserved).into();
    }
    let Some(target) = chunk::<16>(l4, 8) else { return };
    let Options { sll, tll, first, repeated } = options(&l4[24..]);
    if first != 0 {
        key.encap_mut().nd_options_type = first;
    }
    if !repeated {
        let l3 = key.l3_mut();
        l3.nd_target = *target;
        l3.arp_sha = sll;
        l3.arp_tha = tll;
    }
}

#[derive(Default)]
struct Options {
    sll: [u8; 6],
    tll: [u8; 6],
    /// Type of the first link-layer address option.
    first: u8,
    repeated: bool,
}

fn options(mut bytes: &[u8]) -> Options {
    let mut out = Options::default();
    while let Some(option) = chunk::<8>(bytes, 0) {
        let len = usize::from(option[1]) * 8;
        if len == 0 || len > bytes.len() {
            break;
        }
        let slot = match option[0] {
            SOURCE_LINK_LAYER if len == 8 => Some(&mut out.sll),
            TARGET_LINK_LAYER if len == 8 => Some(&mut out.tll),
            _ => None,
        };
        if let Some(slot) = slot {
            if *slot != [0; 6] {
                out.repeated = true;
                break;
            }
            *slot = copy(option, 2);
            if out.first == 0 {
                out.first = option[0];
            }
        }
        bytes = &bytes[len..];
    }
    out
}
