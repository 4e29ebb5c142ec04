//! LACPDUs and the frames that carry them (IEEE 802.1AX-2008 clause 5.4.2). Numbers are in network byte order.

use std::fmt;

use packet::wire::Error;
use packet::wire::ethernet::Header as EthernetHeader;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{Mac, Untagged};

/// Ethernet type of the slow protocols.
pub const ETHERTYPE: u16 = 0x8809;
/// Address that slow protocols are sent to; bridges do not forward it.
pub const GROUP: Mac = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x02];
/// Bytes of a frame with an LACPDU, without check sequence.
pub const FRAME_LEN: usize = size_of::<EthernetHeader>() + size_of::<Layout>();

const SUBTYPE_LACP: u8 = 1;
const SUBTYPE_MARKER: u8 = 2;

bitflags::bitflags! {
    /// State of one end of a link (5.4.2.2, Actor_State).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct State: u8 {
        /// LACP_Activity: sends without being asked.
        const ACTIVITY = 0x01;
        /// LACP_Timeout: wants a PDU each second.
        const TIMEOUT = 0x02;
        /// The link may be aggregated with others.
        const AGGREGATION = 0x04;
        /// The link is in the right aggregation.
        const SYNCHRONIZED = 0x08;
        /// Frames of the link are received.
        const COLLECTING = 0x10;
        /// Frames are sent to the link.
        const DISTRIBUTING = 0x20;
        /// What is said of the partner is a default.
        const DEFAULTED = 0x40;
        /// What is said of the partner is out of date.
        const EXPIRED = 0x80;
    }
}

impl fmt::Display for State {
    /// The names of what is set, each after a space, as `lacp/show` has them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter_names().try_for_each(|(name, _)| write!(f, " {}", name.to_ascii_lowercase()))
    }
}

/// What a PDU says of one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Of systems with different priorities, the one with the lower number decides.
    pub system_priority: u16,
    /// Address that stands for the system.
    pub system_id: Mac,
    /// Operational key: links with the same key of the same system may be aggregated.
    pub key: u16,
    /// Links with lower numbers are preferred.
    pub port_priority: u16,
    /// Number of the port in its system.
    pub port_id: u16,
    /// Its state.
    pub state: State,
}

/// [`Info`] as it is sent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InfoLayout {
    system_priority: U16,
    system_id: Mac,
    key: U16,
    port_priority: U16,
    port_id: U16,
    state: u8,
    reserved: [u8; 3],
}

/// An LACPDU from its subtype on (figure 5-8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    subtype: u8,
    version: u8,
    actor_type: u8,
    actor_len: u8,
    actor: InfoLayout,
    partner_type: u8,
    partner_len: u8,
    partner: InfoLayout,
    collector_type: u8,
    collector_len: u8,
    collector_max_delay: U16,
    collector_reserved: [u8; 12],
    terminator_type: u8,
    terminator_len: u8,
    reserved: [u8; 50],
}

/// An LACPDU: both ends of a link, as its sender knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lacpdu {
    /// The sender's end.
    pub actor: Info,
    /// The receiver's end.
    pub partner: Info,
}

/// What a frame of the slow protocols is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowPdu {
    /// An LACPDU.
    Lacp(Lacpdu),
    /// A PDU of the marker protocol (5.3), which is not answered.
    Marker,
}

impl SlowPdu {
    /// The PDU in a frame without a VLAN tag, or with one that has a priority only. The version is not looked at: a
    /// later one has the same fields here (5.4.2.2 c).
    pub fn new_checked(frame: &[u8]) -> Result<SlowPdu, Error> {
        let malformed = |what| Error::Malformed { layer: "LACP", what };
        let frame = Untagged::new_checked(frame)?;
        if frame.ethertype != ETHERTYPE || frame.vid() != 0 {
            return Err(malformed("not an untagged frame of type 0x8809"));
        }
        let (layout, _) = Layout::ref_from_prefix(frame.payload).map_err(|_| Error::Truncated {
            layer: "LACP",
            need: size_of::<Layout>(),
            have: frame.payload.len(),
        })?;
        match layout.subtype {
            SUBTYPE_LACP if (layout.actor_type, layout.actor_len) != (1, 20) => {
                Err(malformed("the first TLV is not the actor's, of 20 bytes"))
            }
            SUBTYPE_LACP if (layout.partner_type, layout.partner_len) != (2, 20) => {
                Err(malformed("the second TLV is not the partner's, of 20 bytes"))
            }
            SUBTYPE_LACP => {
                Ok(SlowPdu::Lacp(Lacpdu { actor: layout.actor.to_info(), partner: layout.partner.to_info() }))
            }
            SUBTYPE_MARKER => Ok(SlowPdu::Marker),
            _ => Err(malformed("a subtype that is neither LACP (1) nor marker (2)")),
        }
    }
}

impl Lacpdu {
    /// The frame that carries the PDU from an address.
    pub fn emit(&self, src: Mac) -> [u8; FRAME_LEN] {
        let layout = Layout {
            subtype: SUBTYPE_LACP,
            version: 1,
            actor_type: 1,
            actor_len: 20,
            actor: InfoLayout::new(&self.actor),
            partner_type: 2,
            partner_len: 20,
            partner: InfoLayout::new(&self.partner),
            collector_type: 3,
            collector_len: 16,
            collector_max_delay: 0.into(),
            collector_reserved: [0; 12],
            terminator_type: 0,
            terminator_len: 0,
            reserved: [0; 50],
        };
        let header = EthernetHeader { dst: GROUP, src, ethertype: ETHERTYPE.into() };
        let mut frame = [0; FRAME_LEN];
        let (first, rest) = frame.split_at_mut(size_of::<EthernetHeader>());
        first.copy_from_slice(header.as_bytes());
        rest.copy_from_slice(layout.as_bytes());
        frame
    }
}

impl InfoLayout {
    fn new(info: &Info) -> InfoLayout {
        InfoLayout {
            system_priority: info.system_priority.into(),
            system_id: info.system_id,
            key: info.key.into(),
            port_priority: info.port_priority.into(),
            port_id: info.port_id.into(),
            state: info.state.bits(),
            reserved: [0; 3],
        }
    }

    fn to_info(self) -> Info {
        Info {
            system_priority: self.system_priority.get(),
            system_id: self.system_id,
            key: self.key.get(),
            port_priority: self.port_priority.get(),
            port_id: self.port_id.get(),
            state: State::from_bits_retain(self.state),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any end of a link.
    pub fn any_info() -> impl Strategy<Value = Info> {
        any::<(u16, Mac, u16, u16, u16, u8)>().prop_map(
            |(system_priority, system_id, key, port_priority, port_id, state)| Info {
                system_priority,
                system_id,
                key,
                port_priority,
                port_id,
                state: State::from_bits_retain(state),
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_again(actor in any_info(), partner in any_info(), src: Mac) {
            let pdu = Lacpdu { actor, partner };
            prop_assert_eq!(SlowPdu::new_checked(&pdu.emit(src)), Ok(SlowPdu::Lacp(pdu)));
        }

        #[test]
        fn cut_or_garbled_frames_are_no_panic(at in 0..FRAME_LEN, byte: u8, len in 0..FRAME_LEN) {
            let mut frame = Lacpdu::default().emit([2; 6]);
            frame[at] = byte;
            let _ = SlowPdu::new_checked(&frame);
            prop_assert!(SlowPdu::new_checked(&frame[..len]).is_err());
        }
    }

    #[test]
    fn wrong_frames_are_refused_with_what_is_wrong() {
        let good = Lacpdu::default().emit([2; 6]);
        let refused = |at: usize, byte: u8| {
            let mut frame = good;
            frame[at] = byte;
            SlowPdu::new_checked(&frame).map_err(|error| error.to_string())
        };
        assert_eq!(refused(13, 0x0a), Err("LACP: not an untagged frame of type 0x8809".into()));
        assert_eq!(refused(14, 2), Ok(SlowPdu::Marker));
        assert_eq!(refused(14, 3), Err("LACP: a subtype that is neither LACP (1) nor marker (2)".into()));
        assert_eq!(refused(17, 21), Err("LACP: the first TLV is not the actor's, of 20 bytes".into()));
        assert_eq!(refused(36, 1), Err("LACP: the second TLV is not the partner's, of 20 bytes".into()));
        assert_eq!(SlowPdu::new_checked(&good[..100]).unwrap_err().to_string(), "LACP: 86 bytes, at least 110 needed");
        let tagged = |tci| packet::wire::build::ethernet(GROUP, [2; 6], &[(0x8100, tci)], ETHERTYPE, &good[14..]);
        assert!(SlowPdu::new_checked(&tagged(0xe000)).is_ok() && SlowPdu::new_checked(&tagged(1)).is_err());
    }

    #[test]
    fn states_have_the_names_of_ovs() {
        let all = " activity timeout aggregation synchronized collecting distributing defaulted expired";
        assert_eq!(State::all().to_string(), all);
        assert_eq!(State::empty().to_string(), "");
    }
}
