//! Neighbour solicitation and advertisement (RFC 4861 sections 4.3, 4.4 and 4.6).

use std::net::Ipv6Addr;

use super::{Error, icmpv6, split, take};

/// Source link-layer address option.
pub const SOURCE_LINK_LAYER: u8 = 1;
/// Target link-layer address option.
pub const TARGET_LINK_LAYER: u8 = 2;

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    reserved: u32,
    target: &'a [u8; 16],
    options: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message in an ICMPv6 packet.
    pub fn new_checked(icmp: &icmpv6::Packet<'a>) -> Result<Message<'a>, Error> {
        if !matches!(icmp.kind(), icmpv6::NEIGHBOR_SOLICIT | icmpv6::NEIGHBOR_ADVERT) || icmp.code() != 0 {
            return Err(Error::Malformed { layer: "ND", what: "not a neighbour solicitation or advertisement" });
        }
        let (target, options) = split("ND", icmp.payload())?;
        Ok(Message { reserved: u32::from_be_bytes(icmp.rest()), target, options })
    }

    /// The word before the target: router, solicited and override flags of an advertisement.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Target.
    pub fn target(&self) -> Ipv6Addr {
        (*self.target).into()
    }

    /// The options.
    pub fn options(&self) -> Options<'a> {
        Options { rest: self.options }
    }
}

/// An option: type and whole bytes, type and length included.
pub type NdOption<'a> = (u8, &'a [u8]);

/// Iterator over options. Ends after the last one or after an error.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<NdOption<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        const LAYER: &str = "ND option";
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            return None;
        }
        let len = match take(LAYER, rest, 8) {
            Ok(start) if start[1] == 0 => return Some(Err(Error::Malformed { layer: LAYER, what: "length zero" })),
            Ok(start) => usize::from(start[1]) * 8,
            Err(error) => return Some(Err(error)),
        };
        Some(take(LAYER, rest, len).map(|option| {
            self.rest = &rest[len..];
            (option[0], option)
        }))
    }
}

/// Emits a link-layer address option.
pub fn link_layer_option(kind: u8, mac: [u8; 6]) -> [u8; 8] {
    let [a, b, c, d, e, f] = mac;
    [kind, 1, a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, options: &[u8]) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0xe0, 0, 0, 0][..], &[0xfe; 16], options].concat()
    }

    #[test]
    fn reads_target_and_options() {
        let bytes = message(136, &[&link_layer_option(2, [1, 2, 3, 4, 5, 6])[..], &[14, 1, 0, 0, 0, 0, 0, 0]].concat());
        let message = Message::new_checked(&icmpv6::Packet::new_checked(&bytes).unwrap()).unwrap();
        assert_eq!((message.reserved(), message.target()), (0xe000_0000, Ipv6Addr::from([0xfe; 16])));
        let kinds: Vec<_> = message.options().map(|o| o.unwrap().0).collect();
        assert_eq!(kinds, [TARGET_LINK_LAYER, 14]);
    }

    #[test]
    fn ends_at_broken_options() {
        for broken in [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 0, 0, 0, 0, 0, 0], &[1, 1, 0]] {
            let bytes = message(135, broken);
            let message = Message::new_checked(&icmpv6::Packet::new_checked(&bytes).unwrap()).unwrap();
            assert!(matches!(message.options().collect::<Vec<_>>()[..], [Err(_)]));
        }
    }

    #[test]
    fn refuses_other_messages() {
        for bytes in [message(128, &[]), message(135, &[])[..23].to_vec()] {
            assert!(Message::new_checked(&icmpv6::Packet::new_checked(&bytes).unwrap()).is_err());
        }
    }
}
