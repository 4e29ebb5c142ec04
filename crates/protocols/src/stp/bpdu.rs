//! Bridge protocol data units (IEEE 802.1D-2004 clause 9) in frames of 802.3 with LLC: Configuration and Topology Change
//! Notification of STP, and those of RSTP.

use packet::wire::{Error, ethernet};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::identifier::{BridgeId, PortId, Priority};
use crate::ethernet::Mac;

/// The group address of bridges, which no bridge forwards (Table 7-10).
pub const GROUP: Mac = [0x01, 0x80, 0xc2, 0, 0, 0];

/// LLC header: both service access points are those of spanning trees, an unnumbered frame (section 7.12.3).
const LLC: [u8; 3] = [0x42, 0x42, 0x03];

/// The shortest frame of Ethernet, without its check sequence.
const MIN_FRAME: usize = 60;

/// Time units in a second.
const SECOND: u16 = 256;

const LAYER: &str = "BPDU";

/// A whole frame of Ethernet that holds a BPDU.
pub type Frame = [u8; MIN_FRAME];

/// What all BPDUs begin with.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Start {
    protocol: U16,
    version: u8,
    kind: u8,
}

/// What follows in a Configuration BPDU and, with one more byte behind it, in an RST BPDU.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Body {
    flags: u8,
    root: U64,
    cost: U32,
    bridge: U64,
    port: U16,
    message_age: U16,
    max_age: U16,
    hello_time: U16,
    forward_delay: U16,
}

const KIND_CONFIG: u8 = 0;
const KIND_RAPID: u8 = 2;
const KIND_NOTIFICATION: u8 = 0x80;

const TOPOLOGY_CHANGE: u8 = 0x01;
const PROPOSAL: u8 = 0x02;
const LEARNING: u8 = 0x10;
const FORWARDING: u8 = 0x20;
const AGREEMENT: u8 = 0x40;
const ACKNOWLEDGEMENT: u8 = 0x80;

/// Times of a BPDU, in 1/256 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WireTimes {
    /// Age of the information.
    pub message_age: u16,
    /// The age at which it is discarded.
    pub max_age: u16,
    /// Between two Configuration BPDUs of the root.
    pub hello_time: u16,
    /// In the states listening and learning.
    pub forward_delay: u16,
}

impl WireTimes {
    /// Times of whole seconds; 255 at most.
    pub fn from_seconds(message_age: u16, max_age: u16, hello_time: u16, forward_delay: u16) -> WireTimes {
        let [message_age, max_age, hello_time, forward_delay] =
            [message_age, max_age, hello_time, forward_delay].map(|seconds| seconds.min(255) * SECOND);
        WireTimes { message_age, max_age, hello_time, forward_delay }
    }
}

/// The role of the port that sends an RST BPDU (section 9.2.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireRole {
    /// Not to be sent; taken like nothing that is known.
    Unknown,
    /// Alternate or backup.
    AlternateOrBackup,
    /// Root.
    Root,
    /// Designated.
    Designated,
}

/// Flags that only RST BPDUs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RapidFlags {
    /// Role of the port.
    pub role: WireRole,
    /// The port asks to go to forwarding at once.
    pub proposal: bool,
    /// It answers that the other end may.
    pub agreement: bool,
    /// It learns.
    pub learning: bool,
    /// It forwards.
    pub forwarding: bool,
}

/// What a Configuration BPDU says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Root, cost, and who says so.
    pub priority: Priority,
    /// Times.
    pub times: WireTimes,
    /// The topology has changed.
    pub topology_change: bool,
    /// A notification of a change has been taken.
    pub acknowledgement: bool,
}

/// A BPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bpdu {
    /// Configuration (STP).
    Config(Config),
    /// Topology Change Notification (STP).
    Notification,
    /// RST.
    Rapid(Config, RapidFlags),
}

impl Bpdu {
    /// The BPDU in a frame. What a later version of the protocol adds behind is not looked at (section 9.3.4).
    pub fn new_checked(frame: &[u8]) -> Result<Bpdu, Error> {
        let frame = ethernet::Frame::new_checked(frame)?;
        if frame.dst() != GROUP {
            return Err(malformed("not sent to the group address of bridges"));
        }
        let length = usize::from(frame.ethertype());
        // 802.3: beyond 1500 it is a type.
        if length > 1500 {
            return Err(malformed("not in a frame with LLC"));
        }
        let payload = frame.payload();
        let Some(payload) = payload.get(..length) else {
            return Err(Error::Truncated { layer: LAYER, need: length, have: payload.len() });
        };
        match payload.strip_prefix(&LLC) {
            Some(bytes) => Bpdu::from_bytes(bytes),
            None => Err(malformed("not the LLC header of spanning trees")),
        }
    }

    /// The BPDU behind the LLC header.
    fn from_bytes(bytes: &[u8]) -> Result<Bpdu, Error> {
        let (start, rest) = split::<Start>(bytes)?;
        if start.protocol.get() != 0 {
            return Err(malformed("not the protocol identifier of spanning trees"));
        }
        match start.kind {
            KIND_NOTIFICATION => Ok(Bpdu::Notification),
            KIND_CONFIG => Ok(Bpdu::Config(split::<Body>(rest)?.0.config())),
            KIND_RAPID if start.version >= 2 => {
                // The length of a version 1 part, always zero, is what one more byte is for.
                let (body, rest) = split::<Body>(rest)?;
                split::<u8>(rest)?;
                Ok(Bpdu::Rapid(body.config(), body.rapid_flags()))
            }
            KIND_RAPID => Err(malformed("an RST BPDU of a version before 2")),
            _ => Err(malformed("neither Configuration, nor Topology Change Notification, nor RST")),
        }
    }

    /// The frame that says this, from this address.
    pub fn emit(&self, src: Mac) -> Frame {
        let mut payload = [0; MIN_FRAME - size_of::<ethernet::Header>()];
        payload[..LLC.len()].copy_from_slice(&LLC);
        let bpdu = &mut payload[LLC.len()..];
        let (kind, version, body) = match self {
            Bpdu::Notification => (KIND_NOTIFICATION, 0, None),
            Bpdu::Config(config) => (KIND_CONFIG, 0, Some(Body::new(config, None))),
            Bpdu::Rapid(config, flags) => (KIND_RAPID, 2, Some(Body::new(config, Some(flags)))),
        };
        let start = Start { protocol: 0.into(), version, kind };
        let mut length = size_of::<Start>();
        bpdu[..length].copy_from_slice(start.as_bytes());
        if let Some(body) = body {
            bpdu[length..length + size_of::<Body>()].copy_from_slice(body.as_bytes());
            length += size_of::<Body>() + usize::from(version == 2);
        }
        let length = (LLC.len() + length) as u16;
        let header = ethernet::Header { dst: GROUP, src, ethertype: length.into() };
        let mut frame = [0; MIN_FRAME];
        frame[..size_of::<ethernet::Header>()].copy_from_slice(header.as_bytes());
        frame[size_of::<ethernet::Header>()..].copy_from_slice(&payload);
        frame
    }
}

impl Body {
    fn new(config: &Config, rapid: Option<&RapidFlags>) -> Body {
        let Config { priority, times, topology_change, acknowledgement } = config;
        let bit = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut flags = bit(*topology_change, TOPOLOGY_CHANGE) | bit(*acknowledgement, ACKNOWLEDGEMENT);
        if let Some(rapid) = rapid {
            flags |= bit(rapid.proposal, PROPOSAL) | bit(rapid.agreement, AGREEMENT);
            flags |= bit(rapid.learning, LEARNING) | bit(rapid.forwarding, FORWARDING);
            flags |= match rapid.role {
                WireRole::Unknown => 0,
                WireRole::AlternateOrBackup => 1,
                WireRole::Root => 2,
                WireRole::Designated => 3,
            } << 2;
        }
        Body {
            flags,
            root: priority.root.0.into(),
            cost: priority.cost.into(),
            bridge: priority.bridge.0.into(),
            port: priority.port.0.into(),
            message_age: times.message_age.into(),
            max_age: times.max_age.into(),
            hello_time: times.hello_time.into(),
            forward_delay: times.forward_delay.into(),
        }
    }

    fn config(&self) -> Config {
        Config {
            priority: Priority {
                root: BridgeId(self.root.get()),
                cost: self.cost.get(),
                bridge: BridgeId(self.bridge.get()),
                port: PortId(self.port.get()),
            },
            times: WireTimes {
                message_age: self.message_age.get(),
                max_age: self.max_age.get(),
                hello_time: self.hello_time.get(),
                forward_delay: self.forward_delay.get(),
            },
            topology_change: self.flags & TOPOLOGY_CHANGE != 0,
            acknowledgement: self.flags & ACKNOWLEDGEMENT != 0,
        }
    }

    fn rapid_flags(&self) -> RapidFlags {
        RapidFlags {
            role: match self.flags >> 2 & 3 {
                0 => WireRole::Unknown,
                1 => WireRole::AlternateOrBackup,
                2 => WireRole::Root,
                _ => WireRole::Designated,
            },
            proposal: self.flags & PROPOSAL != 0,
            agreement: self.flags & AGREEMENT != 0,
            learning: self.flags & LEARNING != 0,
            forwarding: self.flags & FORWARDING != 0,
        }
    }
}

fn malformed(what: &'static str) -> Error {
    Error::Malformed { layer: LAYER, what }
}

fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> Result<(&T, &[u8]), Error> {
    T::ref_from_prefix(bytes).map_err(|_| Error::Truncated { layer: LAYER, need: size_of::<T>(), have: bytes.len() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn configs() -> impl Strategy<Value = Config> {
        (any::<(u64, u32, u64, u16)>(), any::<(u16, u16, u16, u16)>(), any::<(bool, bool)>()).prop_map(
            |((root, cost, bridge, port), (message_age, max_age, hello_time, forward_delay), flags)| Config {
                priority: Priority { root: BridgeId(root), cost, bridge: BridgeId(bridge), port: PortId(port) },
                times: WireTimes { message_age, max_age, hello_time, forward_delay },
                topology_change: flags.0,
                acknowledgement: flags.1,
            },
        )
    }

    fn bpdus() -> impl Strategy<Value = Bpdu> {
        let roles = [WireRole::Unknown, WireRole::AlternateOrBackup, WireRole::Root, WireRole::Designated];
        let flags = (prop::sample::select(roles.to_vec()), any::<(bool, bool, bool, bool)>()).prop_map(
            |(role, (proposal, agreement, learning, forwarding))| RapidFlags {
                role,
                proposal,
                agreement,
                learning,
                forwarding,
            },
        );
        prop_oneof![
            Just(Bpdu::Notification),
            configs().prop_map(Bpdu::Config),
            (configs(), flags).prop_map(|(config, flags)| Bpdu::Rapid(config, flags)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_back(bpdu in bpdus(), src: [u8; 6]) {
            let frame = bpdu.emit(src);
            prop_assert_eq!(Bpdu::new_checked(&frame), Ok(bpdu));
            prop_assert_eq!(&frame[6..12], &src[..]);
        }

        #[test]
        fn whatever_comes_is_refused_or_read(bpdu in bpdus(), cut in 0usize..60, flips in prop::collection::vec((0usize..60, any::<u8>()), 0..4)) {
            let mut frame = bpdu.emit([2; 6]);
            for (at, value) in flips {
                frame[at] = value;
            }
            let _ = Bpdu::new_checked(&frame[..cut]);
            if let Ok(read) = Bpdu::new_checked(&frame) {
                prop_assert_eq!(Bpdu::new_checked(&read.emit([3; 6])), Ok(read));
            }
        }
    }

    #[test]
    fn refuses_what_is_no_bpdu() {
        let good = Bpdu::Config(Config {
            priority: Priority::default(),
            times: WireTimes::from_seconds(0, 20, 2, 15),
            topology_change: false,
            acknowledgement: false,
        })
        .emit([2; 6]);
        let with = |at: usize, value: u8| {
            let mut frame = good;
            frame[at] = value;
            Bpdu::new_checked(&frame).unwrap_err().to_string()
        };
        assert_eq!(with(5, 1), "BPDU: not sent to the group address of bridges");
        assert_eq!(with(12, 8), "BPDU: not in a frame with LLC");
        assert_eq!(with(13, 60), "BPDU: 46 bytes, at least 60 needed");
        assert_eq!(with(13, 20), "BPDU: 13 bytes, at least 31 needed");
        assert_eq!(with(14, 0xaa), "BPDU: not the LLC header of spanning trees");
        assert_eq!(with(18, 1), "BPDU: not the protocol identifier of spanning trees");
        assert_eq!(with(20, 2), "BPDU: an RST BPDU of a version before 2");
        assert_eq!(with(20, 3), "BPDU: neither Configuration, nor Topology Change Notification, nor RST");
        assert!(Bpdu::new_checked(&good[..13]).is_err());
    }

    #[test]
    fn lengths_are_those_of_the_standard() {
        let length = |bpdu: Bpdu| bpdu.emit([0; 6])[13] - 3;
        let config = Config {
            priority: Priority::default(),
            times: WireTimes::default(),
            topology_change: false,
            acknowledgement: false,
        };
        let flags =
            RapidFlags { role: WireRole::Root, proposal: false, agreement: false, learning: false, forwarding: false };
        assert_eq!([Bpdu::Notification, Bpdu::Config(config), Bpdu::Rapid(config, flags)].map(length), [4, 35, 36]);
    }
}
