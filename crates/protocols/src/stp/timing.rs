//! The times that a bridge announces while it is the root.

use crate::options::OptionError;

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
    pub fn checked(mut self, keys: &TimingKeys, errors: &mut Vec<OptionError>) -> Timing {
        let mut at_least = |key, time: &mut u16, least: u16, because: String| {
            if *time < least {
                let wanted = format!("{least} or more with {because}");
                errors.push(OptionError { key, value: time.to_string(), wanted, used: least.to_string() });
                *time = least;
            }
        };
        let because = format!("a hello time of {}", self.hello_time);
        at_least(keys.max_age, &mut self.max_age, 2 * (self.hello_time + 1), because);
        let (least, because) = (self.max_age.div_ceil(2) + 1, format!("{}={}", keys.max_age, self.max_age));
        at_least(keys.forward_delay, &mut self.forward_delay, least, because);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: TimingKeys = TimingKeys { max_age: "max", forward_delay: "delay" };

    #[test]
    fn times_that_make_loops_are_lengthened() {
        let mut errors = Vec::new();
        let timing = Timing { hello_time: 4, max_age: 6, forward_delay: 4 };
        assert_eq!(timing.checked(&KEYS, &mut errors), Timing { hello_time: 4, max_age: 10, forward_delay: 6 });
        assert_eq!(Timing::default().checked(&KEYS, &mut errors), Timing::default());
        let wrong: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            wrong,
            [
                "max: \"6\" is not 10 or more with a hello time of 4; 10 counts instead",
                "delay: \"4\" is not 6 or more with max=10; 6 counts instead"
            ]
        );
    }
}
