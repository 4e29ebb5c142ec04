//! Options as the database has them: text by key, as in the columns `other_config` and `bfd`.
//!
//! As in OVS, a value that is wrong never stops a protocol: the default counts instead. What was wrong is said, for
//! the log.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::ethernet::Mac;

/// Options by key.
pub type Options = BTreeMap<String, String>;

/// A value that does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: \"{value}\" is not {wanted}; {used} counts instead")]
pub struct OptionError {
    /// The option.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What the value should be.
    pub wanted: String,
    /// What counts instead.
    pub used: String,
}

impl OptionError {
    /// What is wrong, without what counts instead.
    pub fn mistake(&self) -> String {
        format!("\"{}\" is not {}", self.value, self.wanted)
    }
}

/// Reads options, and gathers what was wrong.
#[derive(Debug)]
pub struct Reader<'a> {
    options: &'a Options,
    /// What was wrong so far.
    pub errors: Vec<OptionError>,
}

impl<'a> Reader<'a> {
    /// A reader of these options.
    pub fn new(options: &'a Options) -> Reader<'a> {
        Reader { options, errors: Vec::new() }
    }

    /// `true` or `false` in any case; false by default.
    pub fn flag(&mut self, key: &'static str) -> bool {
        self.flag_or(key, false)
    }

    /// `true` or `false` in any case.
    pub fn flag_or(&mut self, key: &'static str, default: bool) -> bool {
        let parse = |value: &str| match value.to_ascii_lowercase().as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        };
        self.value(key, default, &default.to_string(), "true or false", parse)
    }

    /// A decimal number in a range.
    pub fn number<T>(&mut self, key: &'static str, range: RangeInclusive<T>, default: T) -> T
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        let parse = |value: &str| value.parse().ok().filter(|number| range.contains(number));
        self.value(key, default, &default.to_string(), &wanted, parse)
    }

    /// A number in a range, decimal or, with `0x` before it, hexadecimal; where it does not count, `used` says what does.
    pub fn any_number(&mut self, key: &'static str, range: RangeInclusive<u32>, used: &str) -> Option<u32> {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        let parse = |value: &str| {
            let number = match value.strip_prefix("0x") {
                Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16),
                _ => value.parse(),
            };
            number.ok().filter(|number| range.contains(number)).map(Some)
        };
        self.value(key, None, used, &wanted, parse)
    }

    /// An Ethernet address; all zero counts as none.
    pub fn mac(&mut self, key: &'static str, default: &str) -> Option<Mac> {
        let wanted = "an Ethernet address like 02:00:00:00:00:01, not all zero";
        self.value(key, None, default, wanted, |value| parse_mac(value).filter(|mac| *mac != [0; 6]).map(Some))
    }

    /// Anything that a function reads.
    pub fn value<T>(
        &mut self,
        key: &'static str,
        default: T,
        used: &str,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> T {
        let Some(value) = self.options.get(key) else { return default };
        parse(value).unwrap_or_else(|| {
            self.errors.push(OptionError { key, value: value.clone(), wanted: wanted.into(), used: used.into() });
            default
        })
    }
}

fn parse_mac(text: &str) -> Option<Mac> {
    let mut parts = text.split(':');
    let mut mac = Mac::default();
    for byte in &mut mac {
        let part = parts.next().filter(|part| matches!(part.len(), 1 | 2) && !part.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_values_are_named_and_defaults_count() {
        let pairs = [
            ("a", "TRUE"),
            ("b", "yes"),
            ("n", "7"),
            ("m", "70000"),
            ("x", "2:0:0:0:0:aB"),
            ("y", "1:2"),
            ("z", "0:0:0:0:0:0"),
        ];
        let options: Options = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let mut reader = Reader::new(&options);
        assert_eq!([reader.flag("a"), reader.flag("b"), reader.flag("none")], [true, false, false]);
        assert_eq!([reader.number("n", 1..=9u16, 3), reader.number("m", 1..=9u16, 3)], [7, 3]);
        assert_eq!(reader.mac("x", "the device's"), Some([2, 0, 0, 0, 0, 0xab]));
        assert_eq!([reader.mac("y", "the device's"), reader.mac("z", "the device's")], [None, None]);
        let errors: Vec<_> = reader.errors.iter().map(OptionError::to_string).collect();
        assert_eq!(errors[0], "b: \"yes\" is not true or false; false counts instead");
        assert_eq!(errors[1], "m: \"70000\" is not a number from 1 to 9; 3 counts instead");
        let mac =
            "y: \"1:2\" is not an Ethernet address like 02:00:00:00:00:01, not all zero; the device's counts instead";
        assert_eq!((errors[2].as_str(), errors.len()), (mac, 4));
    }

    #[test]
    fn numbers_in_two_bases_and_flags_that_are_set_by_default() {
        let pairs = [("hex", "0x7000"), ("decimal", "12"), ("great", "0x10000"), ("sign", "0x+1"), ("off", "False")];
        let options: Options = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let mut reader = Reader::new(&options);
        let numbers = ["hex", "decimal", "great", "sign", "none"].map(|key| reader.any_number(key, 1..=65535, "7"));
        assert_eq!(numbers, [Some(0x7000), Some(12), None, None, None]);
        assert_eq!([reader.flag_or("off", true), reader.flag_or("none", true)], [false, true]);
        let errors: Vec<_> = reader.errors.iter().map(OptionError::to_string).collect();
        assert_eq!(errors[0], "great: \"0x10000\" is not a number from 1 to 65535; 7 counts instead");
        assert_eq!(errors.len(), 2);
    }
}
