//! The times that a bridge announces while it is the root.

use crate::options::{OptionError, Reader};

/// The times of a bridge, in seconds, as it announces them while it is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two Configuration BPDUs: 1 to 10.
    pub hello_time: u16,
    /// The age at which information is discarded: 6 to 40.
    pub max_age: u16,
    /// In each of the states before forwarding: 4 to 30.
    pub forward_delay: u16,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { hello_time: 2, max_age: 20, forward_delay: 15 }
    }
}

/// Names of the options of [`Timing`]'s times.
pub struct TimingKeys {
    /// That of the greatest age.
    pub max_age: &'static str,
    /// That of the forward delay.
    pub forward_delay: &'static str,
}

impl Timing {
    /// The times that are used instead of these: such that max age ≥ 2 × (hello time + 1 s) and 2 × (forward delay − 1 s) ≥
    /// max age, without which old information may outlive the wait for it (section 17.14).
    pub fn checked<'a, F>(mut self, keys: &TimingKeys, reader: &mut Reader<F>) -> Timing
    where
        F: Fn(&str) -> Option<&'a str>,
    {
        let least = 2 * (self.hello_time + 1);
        if self.max_age < least {
            let because = format!("a hello time of {}", self.hello_time);
            reader.report(OptionError::Short { key: keys.max_age, value: self.max_age, because, used: least });
            self.max_age = least;
        }
        let least = self.max_age.div_ceil(2) + 1;
        if self.forward_delay < least {
            let because = format!("{}={}", keys.max_age, self.max_age);
            reader.report(OptionError::Short {
                key: keys.forward_delay,
                value: self.forward_delay,
                because,
                used: least,
            });
            self.forward_delay = least;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: TimingKeys = TimingKeys { max_age: "max", forward_delay: "delay" };

    #[test]
    fn times_that_make_loops_are_lengthened() {
        let mut reader = Reader::new(|_: &str| None::<&str>);
        let timing = Timing { hello_time: 4, max_age: 6, forward_delay: 4 };
        assert_eq!(timing.checked(&KEYS, &mut reader), Timing { hello_time: 4, max_age: 10, forward_delay: 6 });
        assert_eq!(Timing::default().checked(&KEYS, &mut reader), Timing::default());
        let wrong: Vec<_> = reader.finish().iter().map(ToString::to_string).collect();
        assert_eq!(
            wrong,
            ["max=6: too short with a hello time of 4; 10 is used", "delay=4: too short with max=10; 6 is used"]
        );
    }
}
