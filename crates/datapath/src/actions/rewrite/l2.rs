//! Ethernet, VLAN and MPLS.

use packet::Packet;
use packet::flow::VLAN_PRESENT;
use packet::flow::block::{Common, Encap};
use packet::flow::extract::Layers;

use super::Pair;
use super::checksum::{Delta, store};

/// Bytes of the two Ethernet addresses.
const ADDRESSES: usize = 12;

pub(super) fn set_ethernet(frame: &mut [u8], common: &Pair<Common>) {
    let Some(addresses) = frame.get_mut(..ADDRESSES) else { return };
    let (value, mask) = (&common.value, &common.mask);
    store(&mut addresses[..6], &value.dl_dst, &mask.dl_dst, &mut []);
    store(&mut addresses[6..], &value.dl_src, &mask.dl_src, &mut []);
}

/// Writes the outermost tag's priority and id. The CFI bit, which the key uses to say that there is a tag,
/// stays as it is in the frame.
pub(super) fn set_vlan(frame: &mut [u8], common: &Pair<Common>) {
    let Some(tci) = frame.get_mut(14..16) else { return };
    let mask = common.mask.vlan[0].tci.get() & !VLAN_PRESENT;
    store(tci, &common.value.vlan[0].tci.get().to_be_bytes(), &mask.to_be_bytes(), &mut []);
}

pub(super) fn set_mpls(frame: &mut [u8], encap: &Pair<Encap>, at: u16) {
    let at = at as usize;
    let Some(lse) = frame.get_mut(at..at + 4) else { return };
    let (value, mask) = (encap.value.mpls_lse[0], encap.mask.mpls_lse[0]);
    store(lse, &value.get().to_be_bytes(), &mask.get().to_be_bytes(), &mut [&mut Delta::default()]);
}

/// Pushes a tag behind the Ethernet addresses. `false`: there is no buffer for it.
#[must_use]
pub fn push_vlan(packet: &mut Packet, tpid: u16, tci: u16) -> bool {
    packet.len() < ADDRESSES + 2 || insert(packet, ADDRESSES, u32::from(tpid) << 16 | u32::from(tci))
}

/// Whether the frame starts with a VLAN tag, as extraction has it: with a type behind it.
#[inline(always)]
pub(super) fn is_tagged(frame: &[u8]) -> bool {
    frame.len() >= ADDRESSES + 6 && matches!(frame[ADDRESSES..ADDRESSES + 2], [0x81, 0x00] | [0x88, 0xa8])
}

/// Removes the outermost tag, if there is one.
pub fn pop_vlan(packet: &mut Packet) {
    if is_tagged(packet.data()) {
        remove(packet, ADDRESSES);
    }
}

/// Pushes a label stack entry behind the Ethernet header and the VLAN tags. `false`: there is no buffer for it.
#[must_use]
pub fn push_mpls(packet: &mut Packet, layers: &Layers, ethertype: u16, lse: u32) -> bool {
    let at = ADDRESSES + 2 + 4 * layers.vlans as usize;
    if packet.len() < at {
        return true;
    }
    let inserted = insert(packet, at, lse);
    if inserted {
        packet.data_mut()[at - 2..at].copy_from_slice(&ethertype.to_be_bytes());
    }
    inserted
}

/// Removes the outermost label stack entry, if there is one.
pub fn pop_mpls(packet: &mut Packet, layers: &Layers, ethertype: u16) {
    let at = layers.l2_5 as usize;
    if layers.l2_5 == Layers::NONE || packet.len() < at + 4 || at < 2 {
        return;
    }
    remove(packet, at);
    packet.data_mut()[at - 2..at].copy_from_slice(&ethertype.to_be_bytes());
}

/// Makes room for four bytes at offset `at`, which is within the frame, and writes them. `false`, and no change, where
/// no room can be made.
fn insert(packet: &mut Packet, at: usize, bytes: u32) -> bool {
    if !packet.make_headroom(4) || packet.push_front(4).is_none() {
        return false;
    }
    let frame = packet.data_mut();
    frame.copy_within(4..at + 4, 0);
    frame[at..at + 4].copy_from_slice(&bytes.to_be_bytes());
    shift_offload(packet, 4);
    true
}

/// Removes the four bytes at offset `at`.
fn remove(packet: &mut Packet, at: usize) {
    packet.data_mut().copy_within(..at, 4);
    packet.pull_front(4);
    shift_offload(packet, -4);
}

/// The headers behind have moved.
pub fn shift_offload(packet: &mut Packet, by: i16) {
    let offload = packet.offload_mut();
    if offload.needs_csum() {
        offload.csum_start = offload.csum_start.saturating_add_signed(by);
    }
    if offload.hdr_len != 0 {
        offload.hdr_len = offload.hdr_len.saturating_add_signed(by);
    }
}
