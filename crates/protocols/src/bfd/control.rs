//! BFD control packets (RFC 5880 section 4.1) and the frames that carry them (RFC 5881 section 4).

use std::fmt::{self, Display};
use std::net::Ipv4Addr;

use packet::wire::build::{Ipv4, ethernet, udp};
use packet::wire::udp::Datagram;
use packet::wire::{Error, ethertype, ip_proto, ipv4};
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ethernet::{Mac, Untagged};

/// UDP port that control packets of one hop are sent to.
pub const PORT: u16 = 3784;
/// TTL of packets that have come by one hop (RFC 5881 section 5).
pub const TTL: u8 = 255;

/// bfd.SessionState.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// The session is held down by its operator.
    AdminDown,
    /// Nothing is known of the peer.
    Down,
    /// The peer is heard, and has not said that it hears.
    Init,
    /// Both hear each other.
    Up,
}

/// Why a session is not up, or was not last (bfd.LocalDiag).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    /// No diagnostic.
    pub const NONE: Diagnostic = Diagnostic(0);
    /// No packet came within the detection time.
    pub const EXPIRED: Diagnostic = Diagnostic(1);
    /// The peer has said that it is down.
    pub const NEIGHBOR_DOWN: Diagnostic = Diagnostic(3);
    /// Path down.
    pub const PATH_DOWN: Diagnostic = Diagnostic(5);
    /// The path beyond the sender is down.
    pub const CONCATENATED_PATH_DOWN: Diagnostic = Diagnostic(6);
    /// The path back, beyond the receiver, is down.
    pub const REVERSE_CONCATENATED_PATH_DOWN: Diagnostic = Diagnostic(8);
}

bitflags::bitflags! {
    /// Flags of a control packet.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u8 {
        /// M, which must be zero.
        const MULTIPOINT = 0x01;
        /// D: the sender wants no periodic packets.
        const DEMAND = 0x02;
        /// A: an authentication section follows.
        const AUTH = 0x04;
        /// C: the sender's forwarding plane goes on where its control plane does not.
        const CTL = 0x08;
        /// F: answer to a poll.
        const FINAL = 0x10;
        /// P: asks for an answer.
        const POLL = 0x20;
    }
}

/// A control packet as it is sent.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    version_diagnostic: u8,
    state_flags: u8,
    detect_mult: u8,
    length: u8,
    my_discriminator: U32,
    your_discriminator: U32,
    desired_min_tx: U32,
    required_min_rx: U32,
    required_min_echo_rx: U32,
}

/// A control packet. Intervals are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Why the sender is not up, or was not last.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// Flags.
    pub flags: Flags,
    /// How many of the sender's packets may be missing; not zero.
    pub detect_mult: u8,
    /// The sender's session; not zero.
    pub my_discriminator: u32,
    /// The receiver's session, or zero where the sender does not know it.
    pub your_discriminator: u32,
    /// Shortest interval at which the sender wants to send.
    pub desired_min_tx: u32,
    /// Shortest interval at which it can receive; 0: not periodically.
    pub required_min_rx: u32,
}

impl Control {
    /// The packet in the payload of a UDP datagram, with the checks of RFC 5880 section 6.8.6 that need no session.
    /// Packets with an authentication section are refused, since no session has authentication.
    pub fn new_checked(bytes: &[u8]) -> Result<Control, Error> {
        let malformed = |what| Err(Error::Malformed { layer: "BFD", what });
        let truncated = |need| Error::Truncated { layer: "BFD", need, have: bytes.len() };
        let (layout, _) = Layout::ref_from_prefix(bytes).map_err(|_| truncated(size_of::<Layout>()))?;
        let flags = Flags::from_bits_truncate(layout.state_flags & 0x3f);
        let control = Control {
            diagnostic: Diagnostic(layout.version_diagnostic & 0x1f),
            state: State::from_bits(layout.state_flags >> 6),
            flags,
            detect_mult: layout.detect_mult,
            my_discriminator: layout.my_discriminator.get(),
            your_discriminator: layout.your_discriminator.get(),
            desired_min_tx: layout.desired_min_tx.get(),
            required_min_rx: layout.required_min_rx.get(),
        };
        match usize::from(layout.length) {
            _ if layout.version_diagnostic >> 5 != 1 => malformed("a version that is not 1"),
            _ if flags.contains(Flags::AUTH) => malformed("authentication, which this session does not have"),
            length if length < size_of::<Layout>() => malformed("a length below 24 bytes"),
            length if length > bytes.len() => Err(truncated(length)),
            _ if control.detect_mult == 0 => malformed("a detection multiplier of zero"),
            _ if flags.contains(Flags::MULTIPOINT) => malformed("the multipoint flag"),
            _ if control.my_discriminator == 0 => malformed("a zero My Discriminator"),
            _ if control.your_discriminator == 0 && control.state > State::Down => {
                malformed("a zero Your Discriminator in state Init or Up")
            }
            _ => Ok(control),
        }
    }

    /// The 24 bytes of the packet.
    pub fn emit(&self) -> [u8; 24] {
        let layout = Layout {
            version_diagnostic: 1 << 5 | self.diagnostic.0 & 0x1f,
            state_flags: (self.state as u8) << 6 | self.flags.bits(),
            detect_mult: self.detect_mult,
            length: size_of::<Layout>() as u8,
            my_discriminator: self.my_discriminator.into(),
            your_discriminator: self.your_discriminator.into(),
            desired_min_tx: self.desired_min_tx.into(),
            required_min_rx: self.required_min_rx.into(),
            required_min_echo_rx: 0.into(),
        };
        zerocopy::transmute!(layout)
    }
}

/// Addresses of a frame with a control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Destination and source of the frame.
    pub eth: (Mac, Mac),
    /// Source and destination of the IPv4 packet.
    pub ip: (Ipv4Addr, Ipv4Addr),
    /// Source port of the datagram.
    pub port: u16,
    /// Time to live.
    pub ttl: u8,
}

/// A datagram for [`PORT`] in an IPv4 packet; what it holds has not been looked at.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// How it is addressed.
    pub addresses: Addresses,
    /// The datagram's payload.
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The datagram in a frame, which may have a VLAN tag.
    pub fn new_checked(bytes: &'a [u8]) -> Result<Frame<'a>, Error> {
        let malformed = |what| Err(Error::Malformed { layer: "BFD", what });
        let frame = Untagged::new_checked(bytes)?;
        if frame.ethertype != ethertype::IPV4 {
            return malformed("not IPv4");
        }
        let ip = ipv4::Packet::new_checked(frame.payload)?;
        if ip.proto() != ip_proto::UDP || ip.fragment_offset() != 0 || ip.more_fragments() {
            return malformed("not a whole UDP datagram");
        }
        let datagram = Datagram::new_checked(ip.payload())?;
        let len = usize::from(datagram.len()).saturating_sub(8);
        if datagram.dst() != PORT {
            return malformed("not UDP port 3784");
        }
        let Some(payload) = datagram.payload().get(..len) else {
            return Err(Error::Truncated { layer: "UDP", need: len + 8, have: ip.payload().len() });
        };
        let addresses =
            Addresses { eth: (frame.dst, frame.src), ip: (ip.src(), ip.dst()), port: datagram.src(), ttl: ip.ttl() };
        Ok(Frame { addresses, payload })
    }
}

impl Addresses {
    /// A frame around a control packet. Its class of service is internetwork control.
    pub fn emit(&self, control: &Control) -> Vec<u8> {
        let datagram = udp(self.port, PORT, &control.emit());
        let ip =
            Ipv4 { src: self.ip.0, dst: self.ip.1, proto: ip_proto::UDP, tos: 0xc0, ttl: self.ttl, ..Ipv4::default() };
        ethernet(self.eth.0, self.eth.1, &[], ethertype::IPV4, &ip.packet(datagram))
    }
}

impl State {
    fn from_bits(bits: u8) -> State {
        match bits & 3 {
            0 => State::AdminDown,
            1 => State::Down,
            2 => State::Init,
            _ => State::Up,
        }
    }
}

impl Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::AdminDown => "admin_down",
            State::Down => "down",
            State::Init => "init",
            State::Up => "up",
        })
    }
}

impl Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "No Diagnostic",
            1 => "Control Detection Time Expired",
            2 => "Echo Function Failed",
            3 => "Neighbor Signaled Session Down",
            4 => "Forwarding Plane Reset",
            5 => "Path Down",
            6 => "Concatenated Path Down",
            7 => "Administratively Down",
            8 => "Reverse Concatenated Path Down",
            _ => "Invalid Diagnostic",
        })
    }
}

impl Display for Flags {
    /// Names with spaces between them, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
        f.write_str(if names.is_empty() { "none".into() } else { names.join(" ") }.as_str())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any packet that [`Control::new_checked`] takes.
    pub fn any_control() -> impl Strategy<Value = Control> {
        let flags = (0u8..0x40).prop_map(|bits| Flags::from_bits_truncate(bits) - Flags::AUTH - Flags::MULTIPOINT);
        let numbers = (1u8.., 1u32.., 1u32.., any::<(u32, u32)>());
        (0u8..32, 0u8..4, flags, numbers).prop_map(
            |(diagnostic, state, flags, (detect_mult, mine, yours, (tx, rx)))| Control {
                diagnostic: Diagnostic(diagnostic),
                state: State::from_bits(state),
                flags,
                detect_mult,
                my_discriminator: mine,
                your_discriminator: yours,
                desired_min_tx: tx,
                required_min_rx: rx,
            },
        )
    }

    const ADDRESSES: Addresses = Addresses {
        eth: ([2; 6], [4; 6]),
        ip: (Ipv4Addr::new(169, 254, 1, 1), Ipv4Addr::new(169, 254, 1, 0)),
        port: 49152,
        ttl: TTL,
    };

    proptest! {
        #[test]
        fn what_is_emitted_is_read_again(control in any_control()) {
            let bytes = ADDRESSES.emit(&control);
            let frame = Frame::new_checked(&bytes).unwrap();
            prop_assert_eq!(frame.addresses, ADDRESSES);
            prop_assert_eq!(Control::new_checked(frame.payload), Ok(control));
        }

        #[test]
        fn cut_or_garbled_frames_are_no_panic(control in any_control(), at in 0usize..66, byte: u8, len in 0usize..66) {
            let mut bytes = ADDRESSES.emit(&control);
            prop_assert!(Frame::new_checked(&bytes[..len]).is_err());
            bytes[at] = byte;
            let _ = Frame::new_checked(&bytes).map(|frame| Control::new_checked(frame.payload));
        }
    }

    #[test]
    fn wrong_packets_are_refused_with_what_is_wrong() {
        let control = Control {
            diagnostic: Diagnostic::NONE,
            state: State::Up,
            flags: Flags::empty(),
            detect_mult: 3,
            my_discriminator: 0x0100_0000,
            your_discriminator: 0x0100_0000,
            desired_min_tx: 1,
            required_min_rx: 1,
        };
        let refused = |at: usize, byte: u8| {
            let mut bytes = control.emit();
            bytes[at] = byte;
            Control::new_checked(&bytes).unwrap_err().to_string()
        };
        assert_eq!(refused(0, 0x40), "BFD: a version that is not 1");
        assert_eq!(refused(1, 0xc4), "BFD: authentication, which this session does not have");
        assert_eq!(refused(1, 0xc1), "BFD: the multipoint flag");
        assert_eq!(refused(2, 0), "BFD: a detection multiplier of zero");
        assert_eq!(refused(3, 23), "BFD: a length below 24 bytes");
        assert_eq!(refused(3, 25), "BFD: 24 bytes, at least 25 needed");
        assert_eq!(refused(4, 0), "BFD: a zero My Discriminator");
        assert_eq!(refused(8, 0), "BFD: a zero Your Discriminator in state Init or Up");
        assert!(Control::new_checked(&[control.emit().as_slice(), &[0; 4]].concat()).is_ok());
    }

    #[test]
    fn texts_are_those_of_ovs() {
        assert_eq!(Flags::empty().to_string(), "none");
        assert_eq!((Flags::POLL | Flags::DEMAND | Flags::CTL).to_string(), "demand ctl poll");
        assert_eq!(
            (Diagnostic(8).to_string(), Diagnostic(9).to_string()),
            ("Reverse Concatenated Path Down".into(), "Invalid Diagnostic".into())
        );
    }
}
