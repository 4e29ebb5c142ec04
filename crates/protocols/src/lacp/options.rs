//! Settings of bonds and members from the columns of `Port` and `Interface` (ovs-vswitchd.conf.db(5)).

use super::{MemberSettings, Settings};
use crate::ethernet::Mac;
use crate::options::{OptionError, Options, Reader};

/// What the database says of a bond that bears on LACP.
#[derive(Clone, Copy, Debug)]
pub struct PortRow<'a> {
    /// Column `name`.
    pub name: &'a str,
    /// Column `lacp`.
    pub lacp: Option<&'a str>,
    /// Column `other_config`.
    pub other_config: &'a Options,
    /// How many interfaces the port has.
    pub interfaces: usize,
    /// The bridge's address.
    pub bridge: Mac,
}

impl Settings {
    /// The settings of a port; `None` where LACP is off, which it is by default. A bond has a better priority than a
    /// single interface by default, so that of two systems the one that can aggregate decides.
    pub fn from_row(row: &PortRow<'_>) -> (Option<Settings>, Vec<OptionError>) {
        let mut reader = Reader::new(row.other_config);
        let active = match row.lacp {
            None | Some("off") => return (None, Vec::new()),
            Some("active") => true,
            Some("passive") => false,
            Some(other) => {
                let wanted = "active, passive or off".into();
                let error = OptionError { key: "lacp", value: other.into(), wanted, used: "off".into() };
                return (None, vec![error]);
            }
        };
        let default_priority = if row.interfaces > 1 { u16::MAX - 1 } else { u16::MAX };
        let settings = Settings {
            name: row.name.into(),
            system_id: reader.mac("lacp-system-id", "the bridge's address").unwrap_or(row.bridge),
            system_priority: reader.number("lacp-system-priority", 1..=u16::MAX, default_priority),
            active,
            fast: reader.value("lacp-time", false, "slow", "fast or slow", |value| {
                match value.to_ascii_lowercase().as_str() {
                    "fast" => Some(true),
                    "slow" => Some(false),
                    _ => None,
                }
            }),
            fallback_ab: reader.flag("lacp-fallback-ab"),
            aggregates: row.interfaces > 1,
        };
        (Some(settings), reader.errors)
    }
}

impl MemberSettings {
    /// The settings of an interface with this name, address, OpenFlow port and column `other_config`.
    pub fn from_row(name: &str, mac: Mac, ofport: u16, other_config: &Options) -> (MemberSettings, Vec<OptionError>) {
        let mut reader = Reader::new(other_config);
        let settings = MemberSettings {
            name: name.into(),
            mac,
            port_id: reader.number("lacp-port-id", 1..=u16::MAX, ofport),
            port_priority: reader.number("lacp-port-priority", 1..=u16::MAX, u16::MAX),
            key: reader.number("lacp-aggregation-key", 0..=u16::MAX, 0),
        };
        (settings, reader.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn settings(lacp: Option<&str>, interfaces: usize, other_config: &Options) -> (Option<Settings>, Vec<OptionError>) {
        Settings::from_row(&PortRow { name: "bond", lacp, other_config, interfaces, bridge: [2; 6] })
    }

    #[test]
    fn settings_are_those_of_the_database() {
        let config = [
            ("lacp-time", "fast"),
            ("lacp-system-id", "11:22:33:44:55:66"),
            ("lacp-system-priority", "54321"),
            ("lacp-fallback-ab", "true"),
        ];
        let (got, errors) = settings(Some("active"), 2, &options(&config));
        let system_id = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66];
        let (name, system_priority) = ("bond".into(), 54321);
        let wanted = Settings {
            name,
            system_id,
            system_priority,
            active: true,
            fast: true,
            fallback_ab: true,
            aggregates: true,
        };
        assert_eq!((got, errors), (Some(wanted), vec![]));
        assert_eq!(settings(None, 1, &options(&config)).0, None);
        assert_eq!(settings(Some("off"), 1, &options(&config)).0, None);
        let (got, _) = settings(Some("passive"), 1, &options(&[]));
        assert!(
            got.is_some_and(|got| !got.active && !got.fast && (got.system_id, got.system_priority) == ([2; 6], 65535))
        );
    }

    #[test]
    fn wrong_options_leave_defaults() {
        let (got, errors) = settings(Some("maybe"), 1, &options(&[]));
        assert_eq!(
            (got, errors[0].to_string()),
            (None, "lacp: \"maybe\" is not active, passive or off; off counts instead".into())
        );
        let config =
            options(&[("lacp-time", "soon"), ("lacp-system-id", "0:0:0:0:0:0"), ("lacp-system-priority", "0")]);
        let (got, errors) = settings(Some("active"), 2, &config);
        assert!(got.is_some_and(|got| (got.system_id, got.system_priority, got.fast) == ([2; 6], 65534, false)));
        assert_eq!(errors.len(), 3);
        let config = options(&[("lacp-port-id", "70000"), ("lacp-port-priority", "9"), ("lacp-aggregation-key", "8")]);
        let (member, errors) = MemberSettings::from_row("p0", [2; 6], 5, &config);
        assert_eq!((member.port_id, member.port_priority, member.key, errors.len()), (5, 9, 8, 1));
    }
}
