//! Addresses with the length of a prefix, as arguments of commands.

use std::net::{Ipv4Addr, Ipv6Addr};

/// An address, and the length of its network's prefix.
pub type Cidr<T> = (T, u8);

/// `A.B.C.D`, with `/LEN` or `/MASK` behind it or without.
pub fn ipv4(text: &str) -> Result<Cidr<Ipv4Addr>, String> {
    let invalid = || format!("{text}: invalid IP address");
    let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
    let address = address.parse().map_err(|_| invalid())?;
    let Some(len) = len else { return Ok((address, 32)) };
    if let Ok(mask) = len.parse::<Ipv4Addr>() {
        let mask = mask.to_bits();
        let is_prefix = mask.leading_ones() == mask.count_ones();
        return is_prefix.then_some((address, mask.count_ones() as u8)).ok_or(format!("{text}: CIDR network required"));
    }
    let out_of_range = || format!("{text}: IPv4 network prefix bits not between 0 and 32, inclusive");
    in_range(len, 32).ok_or_else(invalid)?.map(|len| (address, len)).ok_or_else(out_of_range)
}

/// An IPv6 address, with `/LEN` or `/MASK` behind it or without.
pub fn ipv6(text: &str) -> Result<Cidr<Ipv6Addr>, String> {
    let invalid = || format!("{text}: invalid IPv6 address");
    let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
    let address = address.parse().map_err(|_| invalid())?;
    let Some(len) = len else { return Ok((address, 128)) };
    if let Ok(mask) = len.parse::<Ipv6Addr>() {
        let mask = mask.to_bits();
        let is_prefix = mask.leading_ones() == mask.count_ones();
        let required = || format!("{text}: IPv6 CIDR network required");
        return is_prefix.then_some((address, mask.count_ones() as u8)).ok_or_else(required);
    }
    let out_of_range = || format!("{text}: IPv6 network prefix bits not between 0 and 128, inclusive");
    in_range(len, 128).ok_or_else(invalid)?.map(|len| (address, len)).ok_or_else(out_of_range)
}

/// A number, if it is one, and if it is at most so large.
fn in_range(text: &str, most: u8) -> Option<Option<u8>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().ok().filter(|number| *number <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_masks_are_read() {
        let address = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(ipv4("192.0.2.1"), Ok((address, 32)));
        assert_eq!(ipv4("192.0.2.1/24"), Ok((address, 24)));
        assert_eq!(ipv4("192.0.2.1/255.255.240.0"), Ok((address, 20)));
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(ipv6("2001:db8::1"), Ok((address, 128)));
        assert_eq!(ipv6("2001:db8::1/0"), Ok((address, 0)));
        assert_eq!(ipv6("2001:db8::1/ffff::"), Ok((address, 16)));
    }

    #[test]
    fn mistakes_are_worded_as_in_open_vswitch() {
        for (text, problem) in [
            ("192.0.2", "invalid IP address"),
            ("192.0.2.1/", "invalid IP address"),
            ("192.0.2.1/24/8", "invalid IP address"),
            ("192.0.2.1/33", "IPv4 network prefix bits not between 0 and 32, inclusive"),
            ("192.0.2.1/-1", "IPv4 network prefix bits not between 0 and 32, inclusive"),
            ("192.0.2.1/255.0.255.0", "CIDR network required"),
        ] {
            assert_eq!(ipv4(text), Err(format!("{text}: {problem}")));
        }
        for (text, problem) in [
            ("192.0.2.1", "invalid IPv6 address"),
            ("2001:db8::/x", "invalid IPv6 address"),
            ("2001:db8::/129", "IPv6 network prefix bits not between 0 and 128, inclusive"),
            ("2001:db8::/ffff::1", "IPv6 CIDR network required"),
        ] {
            assert_eq!(ipv6(text), Err(format!("{text}: {problem}")));
        }
    }
}
