//! Prefixes of addresses of both families.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Addresses whose first bits are the same. One of IPv4 is kept as the IPv6 address to which it is mapped (RFC 4291 section 2.5.5.2),
/// with 96 bits more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Prefix {
    bits: u128,
    len: u8,
}

/// An address as its prefixes see it.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl Prefix {
    /// The addresses that have the first `len` bits of this one; `None` where it has fewer.
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        let (most, more) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        (len <= most).then(|| Prefix::of_bits(bits(address), len + more))
    }

    /// As [`new`](Prefix::new), by all 128 bits.
    pub(crate) fn of_bits(bits: u128, len: u8) -> Prefix {
        Prefix { bits: bits & mask(len), len }
    }

    /// How many of 128 bits count.
    pub fn mapped_len(self) -> u8 {
        self.len
    }

    /// Whether the address is one of them.
    pub fn contains(self, address: IpAddr) -> bool {
        bits(address) & mask(self.len) == self.bits
    }

    /// The first of the addresses.
    pub fn address(self) -> IpAddr {
        let address = Ipv6Addr::from_bits(self.bits);
        match address.to_ipv4_mapped() {
            Some(v4) if self.len >= 96 => v4.into(),
            _ => address.into(),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address();
        write!(f, "{address}/{}", if address.is_ipv4() { self.len - 96 } else { self.len })
    }
}

/// Text that is no prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no address with the length of a prefix")]
pub struct BadPrefix;

impl FromStr for Prefix {
    type Err = BadPrefix;

    /// Without a length, all bits count.
    fn from_str(text: &str) -> Result<Prefix, BadPrefix> {
        let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
        let address: IpAddr = address.parse().map_err(|_| BadPrefix)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => most,
            Some(len) if len.bytes().all(|byte| byte.is_ascii_digit()) => len.parse().map_err(|_| BadPrefix)?,
            Some(_) => return Err(BadPrefix),
        };
        Prefix::new(address, len).ok_or(BadPrefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_read_and_written() {
        for (text, written) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("::ffff:10.0.0.1", "10.0.0.1/32"),
        ] {
            assert_eq!(text.parse::<Prefix>().map(|prefix| prefix.to_string()), Ok(written.to_owned()));
        }
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8", "/8", "br0"] {
            assert_eq!(text.parse::<Prefix>(), Err(BadPrefix), "{text}");
        }
    }

    proptest! {
        #[test]
        fn contains_what_has_the_same_first_bits(a: [u8; 4], b: [u8; 4], len in 0u8..33) {
            let same = a.iter().zip(b).flat_map(|(a, b)| (0..8).rev().map(move |bit| (a ^ b) >> bit & 1)).take(len.into());
            let prefix = Prefix::new(a.into(), len).unwrap();
            prop_assert_eq!(prefix.contains(b.into()), same.sum::<u8>() == 0);
            prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
        }
    }
}
