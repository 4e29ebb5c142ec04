//! Headers that make a packet one of another type: those of Ethernet, NSH, and MPLS that is put before a whole packet.
//!
//! A packet without Ethernet has a packet type other than zero among its metadata. In memory it has a header of Ethernet
//! all the same, which is *made up*: its addresses are zero, and its type says what follows. So whatever looks at frames or
//! rewrites them need not know of packet types, and only what adds or removes headers in front does. The made-up header never
//! leaves the switch: translation sends such packets into tunnels alone, whose headers take its place, and controllers get
//! what is behind it.

use packet::flow::packet_type;
use packet::wire::{ethertype, nsh};
use packet::{Key, Packet};

use super::rewrite::shift_offload;

/// Bytes of the made-up header, and of those of them that are addresses.
pub const MADE_UP: usize = 14;
const ADDRESSES: usize = 12;

/// The Ethernet type of a packet's first header, if it has no Ethernet.
fn bare_type(key: &Key) -> Option<u16> {
    let kind = key.common().packet_type.get();
    (kind != 0).then_some(kind as u16)
}

/// The made-up header of a packet that begins with a header of this Ethernet type.
pub fn made_up_header(ethertype: u16) -> [u8; MADE_UP] {
    let mut header = [0; MADE_UP];
    make_up(&mut header, ethertype);
    header
}

/// Makes up the header of Ethernet of a frame, or of what is to be a frame.
fn make_up(frame: &mut [u8], ethertype: u16) {
    if let Some((addresses, [high, low, ..])) = frame.split_at_mut_checked(ADDRESSES) {
        addresses.fill(0);
        [*high, *low] = ethertype.to_be_bytes();
    }
}

/// Makes a frame a packet without Ethernet.
pub fn pop_ethernet(packet: &mut Packet, key: &mut Key) {
    let Some(&[high, low]) = packet.data().get(ADDRESSES..MADE_UP).and_then(|number| number.first_chunk()) else {
        return;
    };
    let ethertype = u16::from_be_bytes([high, low]);
    make_up(packet.data_mut(), ethertype);
    key.common_mut().packet_type.set(packet_type(ethertype));
}

/// Puts a header before the whole packet, which makes it one without Ethernet. `false`: there is no buffer for it.
#[must_use]
pub fn push_header(packet: &mut Packet, key: &mut Key, header: &[u8], ethertype: u16) -> bool {
    let longer = header.len() + if bare_type(key).is_none() { MADE_UP } else { 0 };
    if packet.len() < MADE_UP {
        return true;
    }
    if !packet.make_headroom(longer) || packet.push_front(longer).is_none() {
        return false;
    }
    let frame = packet.data_mut();
    make_up(frame, ethertype);
    if let Some(place) = frame.get_mut(MADE_UP..MADE_UP + header.len()) {
        place.copy_from_slice(header);
    }
    shift_offload(packet, longer as i16);
    key.common_mut().packet_type.set(packet_type(ethertype));
    true
}

/// Takes away the first `len` bytes behind the made-up header. What is left begins with a header of this Ethernet type, or
/// is a frame where there is `None`. `false`, and no change, where that is more than there is.
fn remove_header(packet: &mut Packet, key: &mut Key, len: usize, ethertype: Option<u16>) -> bool {
    let removed = if ethertype.is_none() { len + MADE_UP } else { len };
    if packet.len() < removed + MADE_UP {
        return false;
    }
    packet.pull_front(removed);
    shift_offload(packet, -(removed as i16));
    match ethertype {
        Some(ethertype) => {
            make_up(packet.data_mut(), ethertype);
            key.common_mut().packet_type.set(packet_type(ethertype));
        }
        None => key.common_mut().packet_type.set(0),
    }
    true
}

/// Takes away the network service header that the packet begins with. `false`: it begins with none that is valid, or what
/// follows is not known.
#[must_use]
pub fn pop_nsh(packet: &mut Packet, key: &mut Key) -> bool {
    if bare_type(key) != Some(ethertype::NSH) {
        return false;
    }
    let header = packet.data().get(MADE_UP..).and_then(|bytes| nsh::Packet::new_checked(bytes).ok());
    let Some((len, next)) = header.map(|header| (header.header_len(), header.next())) else { return false };
    let follows = match next {
        nsh::next::IPV4 => Some(ethertype::IPV4),
        nsh::next::IPV6 => Some(ethertype::IPV6),
        nsh::next::NSH => Some(ethertype::NSH),
        nsh::next::MPLS => Some(ethertype::MPLS),
        nsh::next::ETHERNET => None,
        _ => return false,
    };
    remove_header(packet, key, len, follows)
}

/// Whether a label stack entry is what the packet itself begins with, rather than what Ethernet carries.
pub fn is_bare_mpls(key: &Key) -> bool {
    matches!(bare_type(key), Some(ethertype::MPLS | ethertype::MPLS_MULTICAST))
}

/// Takes away the label stack entry that the packet begins with. `false`: it is not whole.
#[must_use]
pub fn pop_bare_mpls(packet: &mut Packet, key: &mut Key, ethertype: u16) -> bool {
    remove_header(packet, key, 4, (ethertype != ethertype::TEB).then_some(ethertype))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> Vec<u8> {
        let mut frame = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x08, 0x00];
        frame.extend(0..60);
        frame
    }

    #[test]
    fn what_is_pushed_before_a_frame_is_popped_again() {
        let (mut packet, mut key) = (Packet::from_slice(&frame()), Key::new());
        let metadata = nsh::Metadata::Fixed([1, 2, 3, 4]);
        let header = nsh::Repr { flags: 0, ttl: 63, next: nsh::next::ETHERNET, path: 0x1234ff, metadata };
        assert!(push_header(&mut packet, &mut key, &header.to_bytes(), ethertype::NSH));
        assert_eq!(key.common().packet_type.get(), 0x1_894f);
        assert_eq!(packet.data()[..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 0x4f]);
        assert_eq!(packet.data()[14 + 24..], frame());
        let outer = nsh::Repr { next: nsh::next::NSH, ..header };
        assert!(push_header(&mut packet, &mut key, &outer.to_bytes(), ethertype::NSH));
        assert_eq!(packet.len(), frame().len() + 14 + 48);
        assert!(pop_nsh(&mut packet, &mut key));
        assert_eq!(key.common().packet_type.get(), 0x1_894f);
        assert!(pop_nsh(&mut packet, &mut key));
        assert_eq!((packet.data(), key.common().packet_type.get()), (&frame()[..], 0));
        assert!(!pop_nsh(&mut packet, &mut key), "there is none left");
    }

    #[test]
    fn labels_before_a_frame() {
        let (mut packet, mut key) = (Packet::from_slice(&frame()), Key::new());
        for lse in [0x0000_1140u32, 0x0000_2040] {
            assert!(push_header(&mut packet, &mut key, &lse.to_be_bytes(), ethertype::MPLS));
        }
        assert_eq!(packet.data()[12..22], [0x88, 0x47, 0, 0, 0x20, 0x40, 0, 0, 0x11, 0x40]);
        assert!(is_bare_mpls(&key));
        assert!(pop_bare_mpls(&mut packet, &mut key, ethertype::MPLS));
        assert!(pop_bare_mpls(&mut packet, &mut key, ethertype::TEB));
        assert_eq!((packet.data(), key.common().packet_type.get()), (&frame()[..], 0));
    }

    #[test]
    fn ethernet_is_taken_away_and_its_type_stays() {
        let (mut packet, mut key) = (Packet::from_slice(&frame()), Key::new());
        pop_ethernet(&mut packet, &mut key);
        assert_eq!(key.common().packet_type.get(), 0x1_0800);
        assert_eq!((packet.len(), &packet.data()[..14]), (74, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0][..]));
    }

    proptest! {
        /// No frame and no type of it makes a panic, or a frame that is shorter than a header of Ethernet.
        #[test]
        fn any_frame_is_safe(
            bytes in prop::collection::vec(any::<u8>(), 0..120),
            kind in prop::sample::select(vec![0u32, 0x1_894f, 0x1_8847, 0x1_0800]),
            number: u16,
        ) {
            let start = || {
                let mut key = Key::new();
                key.common_mut().packet_type.set(kind);
                (Packet::from_slice(&bytes), key)
            };
            let valid = |packet: &Packet| packet.len() >= MADE_UP || packet.len() == bytes.len();
            let (mut packet, mut key) = start();
            let popped = pop_nsh(&mut packet, &mut key);
            prop_assert!(valid(&packet) && (popped || packet.data() == &bytes[..]));
            let (mut packet, mut key) = start();
            let popped = pop_bare_mpls(&mut packet, &mut key, number);
            prop_assert!(valid(&packet) && (popped || packet.data() == &bytes[..]));
            let (mut packet, mut key) = start();
            pop_ethernet(&mut packet, &mut key);
            prop_assert_eq!(packet.len(), bytes.len());
            let (mut packet, mut key) = start();
            prop_assert!(push_header(&mut packet, &mut key, &[1; 8], number));
        }
    }
}
