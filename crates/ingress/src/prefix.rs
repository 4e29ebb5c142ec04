//! Expressions that name a prefix only: `[ip | ip6] [src | dst] (net | host) PREFIX`.
//!
//! What they match is what libpcap's program for them matches (pcap-filter(7), and `gen_host` of its compiler):
//!
//! - the address at its place in an untagged IPv4 or IPv6 frame, whatever the rest of the header says;
//! - without the word `ip`, those of ARP and RARP frames, too;
//! - of source and destination either, where the expression names none.
//!
//! Whatever is written in another way is left to libpcap: other spellings of addresses, prefixes of length zero, bits
//! behind a prefix.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Addresses, and how many of their bits count, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// Of IPv4.
    V4 {
        /// The address; bits that do not count are zero.
        address: u32,
        /// How many count: at most 32.
        len: u8,
        /// Whether addresses in ARP and RARP count, too.
        arp: bool,
    },
    /// Of IPv6.
    V6 {
        /// The address; bits that do not count are zero.
        address: u128,
        /// How many count: at most 128.
        len: u8,
    },
}

/// An expression that names a prefix only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixExpression {
    /// The prefix.
    pub prefix: Prefix,
    /// Source addresses match.
    pub source: bool,
    /// Destination addresses match.
    pub destination: bool,
}

/// Reads an expression with single spaces; `None` where it is anything else.
pub fn recognise(expression: &str) -> Option<PrefixExpression> {
    let mut words = expression.split(' ').peekable();
    let protocol = words.next_if(|word| ["ip", "ip6"].contains(word));
    let direction = words.next_if(|word| ["src", "dst"].contains(word));
    let is_net = match words.next()? {
        "net" => true,
        "host" => false,
        _ => return None,
    };
    let (text, len) = match words.next()?.split_once('/') {
        Some((text, len)) if is_net => (text, Some(parse_len(len)?)),
        Some(_) => return None,
        None => (expression.rsplit(' ').next()?, None),
    };
    if words.next().is_some() {
        return None;
    }
    let prefix = match (text.parse::<Ipv4Addr>(), text.parse::<Ipv6Addr>()) {
        (Ok(address), _) if protocol != Some("ip6") => {
            let (address, len) = (u32::from(address), len.unwrap_or(32));
            let fits = (1..=32).contains(&len) && (len == 32 || address << len == 0);
            fits.then_some(Prefix::V4 { address, len, arp: protocol.is_none() })?
        }
        (_, Ok(address)) if protocol != Some("ip") => {
            let (address, len) = (u128::from(address), len.unwrap_or(128));
            let fits = (1..=128).contains(&len) && (len == 128 || address << len == 0);
            fits.then_some(Prefix::V6 { address, len })?
        }
        _ => return None,
    };
    Some(PrefixExpression { prefix, source: direction != Some("dst"), destination: direction != Some("src") })
}

/// A decimal number without a sign or leading zeros.
fn parse_len(text: &str) -> Option<u8> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
    plain.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_prefixes_are_recognised() {
        let v4 = |address: [u8; 4], len, arp| Prefix::V4 { address: u32::from_be_bytes(address), len, arp };
        let expected = |prefix, source, destination| Some(PrefixExpression { prefix, source, destination });
        assert_eq!(recognise("dst net 198.18.0.0/15"), expected(v4([198, 18, 0, 0], 15, true), false, true));
        assert_eq!(recognise("ip src host 10.0.0.1"), expected(v4([10, 0, 0, 1], 32, false), true, false));
        assert_eq!(recognise("net 10.0.0.0"), expected(v4([10, 0, 0, 0], 32, true), true, true));
        let v6 = Prefix::V6 { address: 0x2001_0db8 << 96, len: 32 };
        assert_eq!(recognise("ip6 dst net 2001:db8::/32"), expected(v6, false, true));
        assert_eq!(recognise("dst net 2001:db8::/32"), expected(v6, false, true));
    }

    #[test]
    fn everything_else_is_libpcaps() {
        for text in [
            "",
            "net",
            "tcp",
            "dst net 10.0.0.1/8",
            "dst net 0.0.0.0/0",
            "dst net 10/8",
            "dst net 10.0.0.0/08",
            "dst net 10.0.0.0/33",
            "dst net 010.0.0.0/8",
            "dst host 10.0.0.1/32",
            "dst host example",
            "arp dst net 10.0.0.0/8",
            "ip6 net 10.0.0.0/8",
            "ip net 2001:db8::/32",
            "src dst net 10.0.0.0/8",
            "dst net 10.0.0.0/8 and tcp",
            "dst net 10.0.0.0 mask 255.0.0.0",
            "dst  net 10.0.0.0/8",
            "net ::/0",
            "net fe80::1%eth0",
        ] {
            assert_eq!(recognise(text), None, "{text}");
        }
    }
}
