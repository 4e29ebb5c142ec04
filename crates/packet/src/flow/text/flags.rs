//! Sets of named bits: `+syn-ack`, `syn|ack`, `0x2/0x12`.

use super::{Error, number};
use crate::put;

/// The named bits of a field.
#[derive(Debug)]
pub struct Flags {
    /// Names, the bit of the first being 1.
    pub names: &'static [&'static str],
    /// The bits of the field that text can name.
    pub allowed: u128,
    /// The mask that counts as exact, which is printed as `a|b`.
    pub exact: u128,
}

/// TCP flags.
pub static TCP: Flags = Flags {
    names: &["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"],
    allowed: 0xfff,
    exact: 0xfff,
};

/// Connection states (ovs-fields(7), ct_state).
pub static CT_STATE: Flags =
    Flags { names: &["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"], allowed: 0xff, exact: 0xff };

/// The tunnel flags that OpenFlow can match, bits of [`tun_flags`](crate::flow::tun_flags).
pub static TUN_OAM: Flags = Flags { names: &["oam"], allowed: 1, exact: 1 };

/// All tunnel flags, as the datapath's text has them.
pub static TUN: Flags = Flags { names: &["oam", "df", "csum", "key"], allowed: 0xf, exact: 0xf };

impl Flags {
    /// Parses value and mask. `name` is for the error.
    pub fn parse(&self, name: &str, text: &str) -> Result<(u128, u128), Error> {
        let parsed = match text.split_once('/') {
            Some((value, mask)) => number::parse_int(value).zip(number::parse_int(mask)),
            None if text.starts_with(['+', '-']) => self.signed(text),
            None => self.listed(text).map(|value| (value, self.exact)),
        };
        // A numeric mask may be all ones, beyond the flags that have names.
        let fits = |(value, mask): &(u128, u128)| value & !self.allowed == 0 && mask & !0xffff_ffff == 0;
        let (value, mask) = parsed.filter(fits).ok_or_else(|| self.unknown(name, text))?;
        let mask = mask & self.allowed;
        Ok((value & mask, mask))
    }

    /// `+a-b+c`: each flag once.
    fn signed(&self, text: &str) -> Option<(u128, u128)> {
        let (mut value, mut mask) = (0, 0);
        let mut rest = text;
        while let Some(sign) = rest.chars().next() {
            let tail = rest.strip_prefix(['+', '-'])?;
            let end = tail.find(['+', '-']).unwrap_or(tail.len());
            let bit = self.bit(&tail[..end])?;
            if mask & bit != 0 {
                return None;
            }
            mask |= bit;
            if sign == '+' {
                value |= bit;
            }
            rest = &tail[end..];
        }
        Some((value, mask))
    }

    /// `a|b|0x10`: what is not listed is zero.
    fn listed(&self, text: &str) -> Option<u128> {
        if text.is_empty() {
            return None;
        }
        let bit = |part: &str| number::parse_int(part).or_else(|| self.bit(part));
        text.split('|').try_fold(0, |value, part| Some(value | bit(part)?))
    }

    fn bit(&self, name: &str) -> Option<u128> {
        let bit = 1 << self.names.iter().position(|&n| n == name)?;
        (bit & self.allowed != 0).then_some(bit)
    }

    fn unknown(&self, name: &str, text: &str) -> Error {
        Error::Flag { name: name.into(), text: text.into(), valid: self.names.join(", ") }
    }

    /// `a|b`, or `0`.
    pub fn format(&self, out: &mut String, value: u128) {
        let start = out.len();
        for (_, name) in self.names.iter().enumerate().filter(|(bit, _)| value >> bit & 1 != 0) {
            out.push_str(name);
            out.push('|');
        }
        let unnamed = value & !((1 << self.names.len()) - 1);
        if unnamed != 0 {
            put!(out, "{unnamed:#x}|");
        }
        if out.len() == start { out.push('0') } else { out.truncate(out.len() - 1) }
    }

    /// `a|b` where the mask is exact, else `+a-b`, `0/0` for none.
    pub fn format_masked(&self, out: &mut String, value: u128, mask: u128) {
        match mask & self.exact == self.exact {
            true => self.format(out, value),
            false => self.format_signed(out, value, mask),
        }
    }

    /// `+a-b` whatever the mask, `0/0` for none.
    pub fn format_signed(&self, out: &mut String, value: u128, mask: u128) {
        if mask == 0 {
            return out.push_str("0/0");
        }
        for (bit, name) in self.names.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 != 0) {
            out.push(if value >> bit & 1 != 0 { '+' } else { '-' });
            out.push_str(name);
        }
    }
}
