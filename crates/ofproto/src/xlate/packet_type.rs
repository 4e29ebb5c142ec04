//! Packet types (OpenFlow 1.5 section 7.2.3.11): Ethernet, and packets that begin with a header of some Ethernet type.

use packet::Key;
use packet::flow::packet_type as bare;
use packet::wire::ethertype;

pub(super) const ETHERNET: u32 = 0;
pub(super) const IPV4: u32 = bare(ethertype::IPV4);
pub(super) const IPV6: u32 = bare(ethertype::IPV6);
pub(super) const MPLS: u32 = bare(ethertype::MPLS);
pub(super) const MPLS_MULTICAST: u32 = bare(ethertype::MPLS_MULTICAST);
pub(super) const NSH: u32 = bare(ethertype::NSH);

/// The type of the packet with this key.
pub(super) fn of(key: &Key) -> u32 {
    key.common().packet_type.get()
}
