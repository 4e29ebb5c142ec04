//! Levels and destinations, and the syntax in which they are set: that of `-v` and `vlog/set`
//! (ovs-appctl(8)).

use super::module::Module;

/// How important a message is, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// As the level of a destination: nothing goes there.
    Off,
    /// The daemon cannot go on.
    Emer,
    /// Something failed.
    Err,
    /// Something may be wrong.
    Warn,
    /// What an operator may want to know.
    Info,
    /// What a programmer may want to know.
    Dbg,
}

impl Level {
    /// All levels, in their order.
    pub const ALL: [Level; 6] = [Level::Off, Level::Emer, Level::Err, Level::Warn, Level::Info, Level::Dbg];

    /// As in a message.
    pub fn name(self) -> &'static str {
        ["OFF", "EMER", "ERR", "WARN", "INFO", "DBG"][self as usize]
    }

    /// The level of this name, in any case.
    pub fn find(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name))
    }

    /// The level that this number is of.
    pub(super) fn of(number: u8) -> Level {
        Level::ALL[usize::from(number).min(Level::ALL.len() - 1)]
    }

    /// Severity in a message to syslog (RFC 5424, section 6.2.1), as OVS chooses it.
    pub(super) fn severity(self) -> u8 {
        [1, 1, 3, 4, 5, 7][self as usize]
    }
}

impl From<tracing::Level> for Level {
    fn from(level: tracing::Level) -> Level {
        match level {
            tracing::Level::ERROR => Level::Err,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            _ => Level::Dbg,
        }
    }
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Destination {
    /// The system's log.
    Syslog,
    /// Standard error.
    Console,
    /// The log file.
    File,
}

impl Destination {
    /// All destinations, in OVS's order.
    pub const ALL: [Destination; 3] = [Destination::Syslog, Destination::Console, Destination::File];

    /// As in `vlog/list-pattern`.
    pub fn name(self) -> &'static str {
        ["SYSLOG", "CONSOLE", "FILE"][self as usize]
    }

    /// The destination of this name, in any case.
    pub fn find(name: &str) -> Option<Destination> {
        Destination::ALL.into_iter().find(|destination| destination.name().eq_ignore_ascii_case(name))
    }
}

/// Facilities of syslog with their numbers (RFC 5424, section 6.2.1).
const FACILITIES: &[(&str, u8)] = &[
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("clock", 9),
    ("ftp", 11),
    ("ntp", 12),
    ("audit", 13),
    ("alert", 14),
    ("clock2", 15),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

/// One change of what is logged where; `None` is all.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogChange {
    Level { module: Option<Module>, destination: Option<Destination>, level: Level },
    Pattern { destination: Option<Destination>, pattern: String },
    Facility(u8),
}

/// What is wrong with a change; the texts are those of OVS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SpecError {
    #[error("no destination, level, or module \"{0}\"")]
    Unknown(String),
    #[error("cannot specify multiple destinations")]
    Destinations,
    #[error("cannot specify multiple levels")]
    Levels,
    #[error("cannot specify multiple modules")]
    Modules,
    #[error("missing destination")]
    NoDestination,
    #[error("unknown destination \"{0}\"")]
    UnknownDestination(String),
    #[error("invalid facility")]
    Facility,
}

/// What separates the words of a change.
const SEPARATORS: [char; 4] = [' ', ',', ':', '\t'];

impl LogChange {
    /// Everything everywhere, as `-v` and `vlog/set` without an argument say.
    pub const ALL: LogChange = LogChange::Level { module: None, destination: None, level: Level::Dbg };

    /// Reads `MODULE:DESTINATION:LEVEL`, of which each part may be left out and the order is free,
    /// `PATTERN:DESTINATION:PATTERN`, or `FACILITY:NAME`.
    pub fn parse(spec: &str) -> Result<LogChange, SpecError> {
        match next_word(spec) {
            (Some(word), rest) if word.eq_ignore_ascii_case("PATTERN") => LogChange::pattern(rest),
            (Some(word), rest) if word.eq_ignore_ascii_case("FACILITY") => LogChange::facility(rest),
            _ => LogChange::level(spec),
        }
    }

    fn level(spec: &str) -> Result<LogChange, SpecError> {
        let (mut module, mut destination, mut level) = (None, None, None);
        for word in spec.split(SEPARATORS).filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("ANY")) {
            if let Some(found) = Destination::find(word) {
                if destination.replace(found).is_some() {
                    return Err(SpecError::Destinations);
                }
            } else if let Some(found) = Level::find(word) {
                if level.replace(found).is_some() {
                    return Err(SpecError::Levels);
                }
            } else if let Some(found) = Module::find(word) {
                if module.replace(found).is_some() {
                    return Err(SpecError::Modules);
                }
            } else {
                return Err(SpecError::Unknown(word.to_owned()));
            }
        }
        Ok(LogChange::Level { module, destination, level: level.unwrap_or(Level::Dbg) })
    }

    fn pattern(rest: &str) -> Result<LogChange, SpecError> {
        let (word, pattern) = next_word(rest);
        let word = word.ok_or(SpecError::NoDestination)?;
        let destination = match Destination::find(word) {
            None if word.eq_ignore_ascii_case("ANY") => None,
            None => return Err(SpecError::UnknownDestination(word.to_owned())),
            found => found,
        };
        Ok(LogChange::Pattern { destination, pattern: pattern.to_owned() })
    }

    fn facility(rest: &str) -> Result<LogChange, SpecError> {
        let found = FACILITIES.iter().find(|(name, _)| name.eq_ignore_ascii_case(rest));
        found.map(|&(_, number)| LogChange::Facility(number)).ok_or(SpecError::Facility)
    }
}

/// The first word, and what comes after the separator that ends it.
fn next_word(text: &str) -> (Option<&str>, &str) {
    let text = text.trim_start_matches(SEPARATORS);
    let (word, rest) = text.split_once(SEPARATORS).unwrap_or((text, ""));
    ((!word.is_empty()).then_some(word), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(module: Option<&str>, destination: Option<Destination>, level: Level) -> Result<LogChange, SpecError> {
        Ok(LogChange::Level { module: module.and_then(Module::find), destination, level })
    }

    #[test]
    fn parts_in_any_order() {
        use Destination::*;
        assert_eq!(LogChange::parse("bridge:file:warn"), level(Some("bridge"), Some(File), Level::Warn));
        assert_eq!(LogChange::parse("WARN,Console bridge"), level(Some("bridge"), Some(Console), Level::Warn));
        assert_eq!(LogChange::parse("ANY:syslog:off"), level(None, Some(Syslog), Level::Off));
        assert_eq!(LogChange::parse("Netdev_Dummy"), level(Some("netdev_dummy"), None, Level::Dbg));
        assert_eq!(LogChange::parse(""), Ok(LogChange::ALL));
    }

    #[test]
    fn patterns_and_facilities() {
        let pattern = |destination, pattern: &str| Ok(LogChange::Pattern { destination, pattern: pattern.into() });
        assert_eq!(LogChange::parse("PATTERN:file:%c: %m"), pattern(Some(Destination::File), "%c: %m"));
        assert_eq!(LogChange::parse("pattern:ANY:"), pattern(None, ""));
        assert_eq!(LogChange::parse("FACILITY:local3"), Ok(LogChange::Facility(19)));
    }

    #[test]
    fn mistakes_in_the_words_of_ovs() {
        for (spec, says) in [
            ("bridge:loud", "no destination, level, or module \"loud\""),
            ("console:file", "cannot specify multiple destinations"),
            ("dbg:info", "cannot specify multiple levels"),
            ("bridge:ofproto", "cannot specify multiple modules"),
            ("PATTERN", "missing destination"),
            ("PATTERN:x:y", "unknown destination \"x\""),
            ("FACILITY:x", "invalid facility"),
        ] {
            assert_eq!(LogChange::parse(spec).unwrap_err().to_string(), says, "{spec}");
        }
    }
}
