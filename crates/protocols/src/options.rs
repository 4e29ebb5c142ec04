//! Options of bridges and ports (`other_config`), from text.

use std::ops::RangeInclusive;

/// An option that is not taken as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Not a number, or one outside of the range.
    #[error("{key}={value}: not a number from {low} to {high}; {used} is used")]
    Number {
        /// The option.
        key: &'static str,
        /// What it says.
        value: String,
        /// The least value.
        low: u32,
        /// The greatest one.
        high: u32,
        /// What is used.
        used: u32,
    },
    /// Neither true nor false.
    #[error("{key}={value}: neither true nor false; {used} is used")]
    Flag {
        /// The option.
        key: &'static str,
        /// What it says.
        value: String,
        /// What is used.
        used: bool,
    },
    /// Not an Ethernet address.
    #[error("{key}={value}: not an Ethernet address like 01:23:45:67:89:ab; that of the bridge is used")]
    Mac {
        /// The option.
        key: &'static str,
        /// What it says.
        value: String,
    },
    /// Times that may make loops together (IEEE 802.1D-2004 section 17.14).
    #[error("{key}={value}: too short with {because}; {used} is used")]
    Short {
        /// The option.
        key: &'static str,
        /// What it says, in seconds.
        value: u16,
        /// The option that it does not go with, and its value.
        because: String,
        /// What is used.
        used: u16,
    },
}

/// Reads options one by one, and keeps what was wrong.
pub struct Reader<F> {
    option: F,
    wrong: Vec<OptionError>,
}

impl<'a, F: Fn(&str) -> Option<&'a str>> Reader<F> {
    /// Reads from this function, which has the value of each option that is set.
    pub fn new(option: F) -> Reader<F> {
        Reader { option, wrong: Vec::new() }
    }

    /// A number in a range, decimal or, with `0x` before it, hexadecimal.
    pub fn number(&mut self, key: &'static str, range: RangeInclusive<u32>, default: u32) -> u32 {
        self.optional_number(key, range, Some(default)).unwrap_or(default)
    }

    /// A number in a range, or `default` where it is not set or wrong. The error says zero where there is none.
    pub fn optional_number(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u32>,
        default: Option<u32>,
    ) -> Option<u32> {
        let Some(value) = (self.option)(key) else { return default };
        let number = match value.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => value.parse(),
        };
        match number {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                let (low, high) = (*range.start(), *range.end());
                let (value, used) = (value.to_owned(), default.unwrap_or(0));
                self.wrong.push(OptionError::Number { key, value, low, high, used });
                default
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        match (self.option)(key) {
            None => default,
            Some("true") => true,
            Some("false") => false,
            Some(value) => {
                self.wrong.push(OptionError::Flag { key, value: value.to_owned(), used: default });
                default
            }
        }
    }

    /// An Ethernet address.
    pub fn mac(&mut self, key: &'static str, default: [u8; 6]) -> [u8; 6] {
        let Some(value) = (self.option)(key) else { return default };
        parse_mac(value).unwrap_or_else(|| {
            self.wrong.push(OptionError::Mac { key, value: value.to_owned() });
            default
        })
    }

    /// Keeps what was found to be wrong otherwise.
    pub fn report(&mut self, error: OptionError) {
        self.wrong.push(error);
    }

    /// What was wrong.
    pub fn finish(self) -> Vec<OptionError> {
        self.wrong
    }
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
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
    fn wrong_values_are_named_and_replaced() {
        let mut reader = Reader::new(|key: &str| match key {
            "hex" => Some("0x7000"),
            "great" => Some("41"),
            "word" => Some("yes"),
            "mac" => Some("1:2:3:4:5"),
            _ => None,
        });
        assert_eq!(reader.number("hex", 0..=65535, 1), 0x7000);
        assert_eq!(reader.number("unset", 0..=5, 3), 3);
        assert_eq!(reader.number("great", 6..=40, 20), 20);
        assert!(reader.flag("word", true));
        assert_eq!(reader.mac("mac", [9; 6]), [9; 6]);
        let wrong: Vec<_> = reader.finish().iter().map(ToString::to_string).collect();
        assert_eq!(
            wrong,
            [
                "great=41: not a number from 6 to 40; 20 is used",
                "word=yes: neither true nor false; true is used",
                "mac=1:2:3:4:5: not an Ethernet address like 01:23:45:67:89:ab; that of the bridge is used",
            ]
        );
    }

    #[test]
    fn addresses_have_six_bytes() {
        assert_eq!(parse_mac("aa:66:AA:6:0:ff"), Some([0xaa, 0x66, 0xaa, 6, 0, 0xff]));
        for text in ["", "1:2:3:4:5:6:7", "1:2:3:4:5:g", "001:2:3:4:5:6", "1:2:3:4:5:+6", "1:2:3:4:5:"] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
