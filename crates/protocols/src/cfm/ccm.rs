//! Continuity check messages (IEEE 802.1ag clause 21.6), with the fields that extended mode has where they are zero
//! otherwise.

use packet::wire::Error;
use packet::wire::build::ethernet;
use packet::wire::ethertype::VLAN;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{Mac, Untagged};

/// Ethernet type of CFM.
pub const ETHERTYPE: u16 = 0x8902;
/// Address of messages of level 0.
pub const GROUP: Mac = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x30];
/// Address of messages in extended mode.
pub const GROUP_EXTENDED: Mac = [0x01, 0x23, 0x20, 0x00, 0x00, 0x30];
/// Identifier of the maintenance association that OVS has: domain and association are called `ovs`, both as text.
pub const MAID: [u8; 48] = {
    let mut maid = [0; 48];
    let start = *b"\x04\x03ovs\x02\x03ovs";
    let mut at = 0;
    while at < start.len() {
        maid[at] = start[at];
        at += 1;
    }
    maid
};

const OPCODE_CCM: u8 = 1;
/// Remote defect indication, in the flags.
const RDI_BIT: u8 = 7;
const INTERVAL_MASK: u8 = 0x07;
/// Bytes from a message's fourth one to its first TLV.
const FIRST_TLV: u8 = 70;

/// A message without its TLVs. OVS before 2.4 sent it without the TLV at the end, too.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    level_version: u8,
    opcode: u8,
    flags: u8,
    first_tlv_offset: u8,
    sequence: U32,
    mpid: U16,
    maid: [u8; 48],
    /// Of ITU-T Y.1731, and zero in 802.1ag; of extended mode here.
    interval_ms: U16,
    extended_mpid: U64,
    opdown: u8,
    reserved: [u8; 5],
}

/// A continuity check message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ccm {
    /// The sender hears nobody.
    pub rdi: bool,
    /// Code of the interval: 1 to 7, or 0 in extended mode where `interval_ms` has it.
    pub interval: u8,
    /// Number of the message.
    pub sequence: u32,
    /// The sender.
    pub mpid: u16,
    /// Identifier of its maintenance association.
    pub maid: [u8; 48],
    /// Extended mode: the interval in milliseconds where `interval` is 0.
    pub interval_ms: u16,
    /// Extended mode: the sender, in full.
    pub extended_mpid: u64,
    /// Extended mode: the sender is operationally down.
    pub opdown: bool,
}

impl Ccm {
    /// The message in a frame, which may have a VLAN tag. TLVs are not looked at.
    pub fn new_checked(bytes: &[u8]) -> Result<Ccm, Error> {
        let malformed = |what| Err(Error::Malformed { layer: "CFM", what });
        let frame = Untagged::new_checked(bytes)?;
        if frame.ethertype != ETHERTYPE {
            return malformed("not a frame of type 0x8902");
        }
        let (layout, _) = Layout::ref_from_prefix(frame.payload).map_err(|_| Error::Truncated {
            layer: "CFM",
            need: size_of::<Layout>(),
            have: frame.payload.len(),
        })?;
        if layout.opcode != OPCODE_CCM {
            return malformed("an opcode that is not 1, continuity check");
        }
        Ok(Ccm {
            rdi: layout.flags >> RDI_BIT != 0,
            interval: layout.flags & INTERVAL_MASK,
            sequence: layout.sequence.get(),
            mpid: layout.mpid.get(),
            maid: layout.maid,
            interval_ms: layout.interval_ms.get(),
            extended_mpid: layout.extended_mpid.get(),
            opdown: layout.opdown != 0,
        })
    }

    /// The frame that carries the message, with a VLAN tag where `tci` is not zero.
    pub fn emit(&self, dst: Mac, src: Mac, tci: u16) -> Vec<u8> {
        let layout = Layout {
            level_version: 0,
            opcode: OPCODE_CCM,
            flags: u8::from(self.rdi) << RDI_BIT | self.interval & INTERVAL_MASK,
            first_tlv_offset: FIRST_TLV,
            sequence: self.sequence.into(),
            mpid: self.mpid.into(),
            maid: self.maid,
            interval_ms: self.interval_ms.into(),
            extended_mpid: self.extended_mpid.into(),
            opdown: self.opdown.into(),
            reserved: [0; 5],
        };
        let end = [0];
        let tags: &[(u16, u16)] = if tci == 0 { &[] } else { &[(VLAN, tci)] };
        ethernet(dst, src, tags, ETHERTYPE, &[layout.as_bytes(), &end].concat())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any message, of the association of OVS or of another.
    pub fn any_ccm() -> impl Strategy<Value = Ccm> {
        let maid = prop_oneof![3 => Just(MAID), 1 => Just([7; 48])];
        (any::<(bool, u32, u16, u16, u64, bool)>(), 0u8..8, maid).prop_map(
            |((rdi, sequence, mpid, interval_ms, extended_mpid, opdown), interval, maid)| Ccm {
                rdi,
                interval,
                sequence,
                mpid,
                maid,
                interval_ms,
                extended_mpid,
                opdown,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_again(ccm in any_ccm(), tci: u16) {
            prop_assert_eq!(Ccm::new_checked(&ccm.emit(GROUP, [2; 6], tci)), Ok(ccm));
        }

        #[test]
        fn cut_or_garbled_frames_are_no_panic(ccm in any_ccm(), at in 0usize..89, byte: u8, len in 0usize..88) {
            let mut frame = ccm.emit(GROUP, [2; 6], 0);
            prop_assert_eq!(frame.len(), 89);
            prop_assert!(Ccm::new_checked(&frame[..len]).is_err());
            frame[at] = byte;
            let _ = Ccm::new_checked(&frame);
        }
    }

    #[test]
    fn wrong_frames_are_refused_with_what_is_wrong() {
        let good = Ccm {
            rdi: false,
            interval: 4,
            sequence: 1,
            mpid: 1,
            maid: MAID,
            interval_ms: 0,
            extended_mpid: 0,
            opdown: false,
        };
        let good = good.emit(GROUP, [2; 6], 0);
        assert_eq!(&good[24..36], b"\x04\x03ovs\x02\x03ovs\0\0");
        // A message without the TLV at the end.
        assert!(Ccm::new_checked(&good[..88]).is_ok());
        let error = |frame: &[u8]| Ccm::new_checked(frame).unwrap_err().to_string();
        assert_eq!(error(&good[..80]), "CFM: 66 bytes, at least 74 needed");
        let mut other = good.clone();
        other[15] = 3;
        assert_eq!(error(&other), "CFM: an opcode that is not 1, continuity check");
        other[13] = 3;
        assert_eq!(error(&other), "CFM: not a frame of type 0x8902");
    }
}
