//! Scalars: integers, Ethernet, IPv4 and IPv6 addresses, and their masks.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::put;

/// An integer as strtoull(3) with base 0 reads it: decimal, hexadecimal with 0x, octal with 0; a
/// negative number counts from 2^64. Hexadecimal may have up to 128 bits.
pub fn parse_int(text: &str) -> Option<u128> {
    if let Some(digits) = text.strip_prefix('-') {
        let magnitude = u64::try_from(unsigned(digits)?).ok()?;
        return Some(magnitude.wrapping_neg().into());
    }
    unsigned(text)
}

fn unsigned(text: &str) -> Option<u128> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    // from_str_radix takes a sign, which is wrong behind a prefix.
    let valid = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    valid.then(|| u128::from_str_radix(digits, radix).ok())?
}

/// As [`parse_int`], into bytes in network byte order. Hexadecimal may have as many digits as there is room for.
pub fn parse_bytes(text: &str, out: &mut [u8]) -> Option<()> {
    out.fill(0);
    let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).filter(|digits| digits.len() > 32)
    else {
        let value = parse_int(text)?.to_be_bytes();
        let room = out.len().min(value.len());
        let (high, low) = value.split_at(value.len() - room);
        let at = out.len() - room;
        out[at..].copy_from_slice(low);
        return high.iter().all(|&byte| byte == 0).then_some(());
    };
    for (n, digit) in digits.bytes().rev().enumerate() {
        let digit = char::from(digit).to_digit(16)? as u8;
        match out.iter_mut().rev().nth(n / 2) {
            Some(byte) => *byte |= digit << (n % 2 * 4),
            None if digit == 0 => {}
            None => return None,
        }
    }
    Some(())
}

/// Six groups of one or two hexadecimal digits.
pub fn parse_mac(text: &str) -> Option<u64> {
    let mut groups = 0;
    let mac = text.split(':').try_fold(0u64, |mac, group| {
        groups += 1;
        let valid = (1..=2).contains(&group.len()) && group.bytes().all(|b| b.is_ascii_hexdigit());
        let byte = valid.then(|| u64::from_str_radix(group, 16).ok())??;
        (groups <= 6).then_some(mac << 8 | byte)
    })?;
    (groups == 6).then_some(mac)
}

/// An Ethernet address, and the mask behind a slash; all ones without one.
pub fn parse_mac_masked(text: &str) -> Option<(u64, u64)> {
    match text.split_once('/') {
        Some((value, mask)) => Some((parse_mac(value)?, parse_mac(mask)?)),
        None => Some((parse_mac(text)?, MAC_EXACT)),
    }
}

/// Every bit of an Ethernet address.
pub const MAC_EXACT: u64 = 0xffff_ffff_ffff;

/// An IPv4 address, and the prefix length or mask behind a slash; all ones without one.
pub fn parse_ipv4_masked(text: &str) -> Option<(u32, u32)> {
    let address = |text: &str| text.parse::<Ipv4Addr>().ok().map(u32::from);
    let Some((value, mask)) = text.split_once('/') else {
        return Some((address(text)?, u32::MAX));
    };
    let mask = match address(mask) {
        Some(mask) => mask,
        None => prefix(mask, 32).map(|n| if n == 0 { 0 } else { u32::MAX << (32 - n) })?,
    };
    Some((address(value)?, mask))
}

/// An IPv6 address, and the prefix length or mask behind a slash; all ones without one.
pub fn parse_ipv6_masked(text: &str) -> Option<(u128, u128)> {
    let Some((value, mask)) = text.split_once('/') else {
        return Some((parse_ipv6(text)?, u128::MAX));
    };
    let mask = match parse_ipv6(mask) {
        Some(mask) => mask,
        None => prefix(mask, 128).map(|n| if n == 0 { 0 } else { u128::MAX << (128 - n) })?,
    };
    Some((parse_ipv6(value)?, mask))
}

/// An IPv6 address.
pub fn parse_ipv6(text: &str) -> Option<u128> {
    text.parse::<Ipv6Addr>().ok().map(u128::from)
}

fn prefix(text: &str, bits: u32) -> Option<u32> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?.filter(|&n| n <= bits)
}

/// `0` or hexadecimal with 0x.
pub fn hex(out: &mut String, value: u128) {
    if value == 0 { out.push('0') } else { put!(out, "{value:#x}") }
}

/// A number in network byte order: `0` or hexadecimal with 0x, without leading zeros.
pub fn hex_bytes(out: &mut String, bytes: &[u8]) {
    let mut rest = bytes.iter().skip_while(|&&byte| byte == 0);
    match rest.next() {
        None => out.push('0'),
        Some(first) => {
            put!(out, "{first:#x}");
            rest.for_each(|byte| put!(out, "{byte:02x}"));
        }
    }
}

/// Decimal up to nine, hexadecimal above.
pub fn small_hex(out: &mut String, value: u128) {
    if value < 10 { put!(out, "{value}") } else { put!(out, "{value:#x}") }
}

/// Hexadecimal, with the mask unless it is `exact`.
pub fn hex_masked(out: &mut String, value: u128, mask: u128, exact: u128) {
    hex(out, value);
    if mask != exact {
        out.push('/');
        hex(out, mask);
    }
}

/// Decimal, with the mask in hexadecimal unless it is `exact`.
pub fn decimal_masked(out: &mut String, value: u128, mask: u128, exact: u128) {
    put!(out, "{value}");
    if mask != exact {
        out.push('/');
        hex(out, mask);
    }
}

/// An Ethernet address in the low 48 bits.
pub fn mac(out: &mut String, value: u64) {
    let [_, _, a, b, c, d, e, f] = value.to_be_bytes();
    put!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
}

/// An Ethernet address, with the mask unless it is all ones.
pub fn mac_masked(out: &mut String, value: u64, mask: u64) {
    mac(out, value);
    if mask & MAC_EXACT != MAC_EXACT {
        out.push('/');
        mac(out, mask);
    }
}

/// An IPv4 address, with the mask unless it is all ones, as a prefix length if it is one.
pub fn ipv4_masked(out: &mut String, value: u32, mask: u32) {
    put!(out, "{}", Ipv4Addr::from(value));
    if mask == u32::MAX {
    } else if mask.leading_ones() + mask.trailing_zeros() >= 32 {
        put!(out, "/{}", mask.leading_ones());
    } else {
        put!(out, "/{}", Ipv4Addr::from(mask));
    }
}

/// An IPv6 address, with the mask unless it is all ones, as a prefix length if it is one.
pub fn ipv6_masked(out: &mut String, value: u128, mask: u128) {
    ipv6(out, value);
    if mask == u128::MAX {
    } else if mask.leading_ones() + mask.trailing_zeros() >= 128 {
        put!(out, "/{}", mask.leading_ones());
    } else {
        out.push('/');
        ipv6(out, mask);
    }
}

/// An IPv6 address by RFC 5952; IPv4-compatible ones end in a dotted quad, as inet_ntop(3) has it.
pub fn ipv6(out: &mut String, value: u128) {
    if value >> 32 == 0 && value >> 16 != 0 {
        put!(out, "::{}", Ipv4Addr::from(value as u32));
    } else {
        put!(out, "{}", Ipv6Addr::from(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        let cases = [
            ("0", Some(0)),
            ("10", Some(10)),
            ("010", Some(8)),
            ("0x10", Some(16)),
            ("-1", Some(u64::MAX.into())),
            ("0xffffffffffffffffffffffffffffffff", Some(u128::MAX)),
            ("0x1ffffffffffffffffffffffffffffffff", None),
            ("08", None),
            ("", None),
            ("0x", None),
            ("+1", None),
            ("0x+1", None),
            ("1 ", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_int(text), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_as_bytes() {
        let parse = |text: &str| {
            let mut out = [7; 18];
            parse_bytes(text, &mut out).map(|()| out)
        };
        let all = "0x000102030405060708090a0b0c0d0e0f1011";
        assert_eq!(parse(all), Some(std::array::from_fn(|i| i as u8)));
        assert_eq!(parse(&all.replace("0x", "0x0000")), parse(all));
        assert_eq!(parse("0x1ff").map(|out| out[16..].to_vec()), Some(vec![1, 0xff]));
        let wide = format!("0x1{}", "0".repeat(36));
        for wrong in ["", "0x", "0xg", "x", &all.replace("10", "1g"), &wide] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        let mut two = [0; 2];
        assert_eq!((parse_bytes("65535", &mut two), two), (Some(()), [0xff; 2]));
        assert_eq!(parse_bytes("65536", &mut two), None);
        assert_eq!((parse_bytes("0", &mut []), parse_bytes("1", &mut [])), (Some(()), None));
        let mut out = String::new();
        [&[0, 0][..], &[0, 10, 11], &[]].into_iter().for_each(|bytes| {
            hex_bytes(&mut out, bytes);
            out.push(' ');
        });
        assert_eq!(out, "0 0xa0b 0 ");
    }

    #[test]
    fn addresses() {
        assert_eq!(parse_mac("0:1:2:a:B:ff"), Some(0x0001_020a_0bff));
        assert_eq!(parse_mac("0:1:2:a:B"), None);
        assert_eq!(parse_mac("0:1:2:a:B:ff:1"), None);
        assert_eq!(parse_mac("00:01:02:03:04:+5"), None);
        assert_eq!(parse_ipv4_masked("1.2.3.4/0"), Some((0x0102_0304, 0)));
        assert_eq!(parse_ipv4_masked("1.2.3.4/33"), None);
        assert_eq!(parse_ipv6_masked("::1/129"), None);
        let mut out = String::new();
        for address in [1, 0x10001, 0xffff_0a00_0001, 0x2001_0db8 << 96] {
            ipv6(&mut out, address);
            out.push(' ');
        }
        assert_eq!(out, "::1 ::0.1.0.1 ::ffff:10.0.0.1 2001:db8:: ");
    }
}
