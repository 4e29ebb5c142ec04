//! Settings of a bridge and its ports, from the options of ovs-vswitchd.conf.db(5).

use std::time::Duration;

use crate::options::{OptionError, Options, Reader};

/// Settings of a bridge (`mcast_snooping_enable`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long membership is kept, and is forced into 15 to 3600 s: `mcast-snooping-aging-time`.
    pub ageing_time: Duration,
    /// The most groups, and is forced into 10 to 1 000 000: `mcast-snooping-table-size`.
    pub table_size: usize,
    /// Whether packets of groups without members go to all ports: the opposite of `mcast-snooping-disable-flood-unregistered`.
    pub flood_unregistered: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { ageing_time: Duration::from_secs(300), table_size: 2048, flood_unregistered: true }
    }
}

impl Settings {
    /// The settings that options ask for, and what is wrong with these.
    pub fn from_options(options: &Options) -> (Settings, Vec<OptionError>) {
        let mut reader = Reader::new(options);
        let ageing_time = reader.number("mcast-snooping-aging-time", 0..=u32::MAX, 300).clamp(15, 3600);
        let table_size = reader.number("mcast-snooping-table-size", 0..=u32::MAX, 2048).clamp(10, 1_000_000);
        let settings = Settings {
            ageing_time: Duration::from_secs(ageing_time.into()),
            table_size: table_size as usize,
            flood_unregistered: !reader.flag("mcast-snooping-disable-flood-unregistered"),
        };
        (settings, reader.errors)
    }
}

/// Settings of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    /// Multicast goes there whoever is a member: `mcast-snooping-flood`.
    pub flood: bool,
    /// Reports go there: `mcast-snooping-flood-reports`.
    pub flood_reports: bool,
}

impl PortSettings {
    /// The settings that options ask for, and what is wrong with these.
    pub fn from_options(options: &Options) -> (PortSettings, Vec<OptionError>) {
        let mut reader = Reader::new(options);
        let settings = PortSettings {
            flood: reader.flag("mcast-snooping-flood"),
            flood_reports: reader.flag("mcast-snooping-flood-reports"),
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

    #[test]
    fn options_are_forced_into_their_ranges() {
        let of = |age: &str, size: &str| {
            let pairs = [
                ("mcast-snooping-aging-time", age),
                ("mcast-snooping-table-size", size),
                ("mcast-snooping-disable-flood-unregistered", "true"),
            ];
            Settings::from_options(&options(&pairs)).0
        };
        let low = Settings { ageing_time: Duration::from_secs(15), table_size: 10, flood_unregistered: false };
        let high =
            Settings { ageing_time: Duration::from_secs(3600), table_size: 1_000_000, flood_unregistered: false };
        assert_eq!((of("0", "1"), of("4000", "4000000000")), (low, high));
        assert_eq!(Settings::from_options(&Options::new()), (Settings::default(), vec![]));
        let pairs = [("mcast-snooping-flood", "1"), ("mcast-snooping-flood-reports", "true")];
        let (settings, wrong) = PortSettings::from_options(&options(&pairs));
        assert_eq!(settings, PortSettings { flood: false, flood_reports: true });
        assert_eq!(wrong[0].to_string(), "mcast-snooping-flood: \"1\" is not true or false; false counts instead");
    }
}
