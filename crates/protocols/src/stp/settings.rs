//! Settings of a bridge and its ports, from the options of ovs-vswitchd.conf.db(5).

use super::identifier::BridgeId;
use super::timing::{Timing, TimingKeys};
use crate::ethernet::Mac;
use crate::options::{OptionError, Options, Reader};

/// The options of a bridge.
pub const KEYS: &[&str] = &["stp-system-id", "stp-priority", "stp-hello-time", "stp-max-age", "stp-forward-delay"];

/// The options of a port.
pub const PORT_KEYS: &[&str] = &["stp-enable", "stp-port-num", "stp-port-priority", "stp-path-cost"];

/// The greatest number of a port.
pub const MAX_PORTS: u16 = 255;

/// Settings of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its address in the identifier: `stp-system-id`.
    pub address: Mac,
    /// Its priority: `stp-priority`.
    pub priority: u16,
    /// `stp-hello-time`, `stp-max-age` and `stp-forward-delay`.
    pub timing: Timing,
}

impl Settings {
    /// The defaults, for a bridge with this address.
    pub fn new(address: Mac) -> Settings {
        Settings { address, priority: 32768, timing: Timing::default() }
    }

    /// The settings that options ask for, and what is wrong with these.
    pub fn from_options(address: Mac, options: &Options) -> (Settings, Vec<OptionError>) {
        let mut reader = Reader::new(options);
        let timing = Timing {
            hello_time: reader.number("stp-hello-time", 1..=10, 2),
            max_age: reader.number("stp-max-age", 6..=40, 20),
            forward_delay: reader.number("stp-forward-delay", 4..=30, 15),
        };
        let keys = TimingKeys { max_age: "stp-max-age", forward_delay: "stp-forward-delay" };
        let settings = Settings {
            address: reader.mac("stp-system-id", "the bridge's").unwrap_or(address),
            priority: reader.any_number("stp-priority", 0..=65535, "32768").unwrap_or(32768) as u16,
            timing: timing.checked(&keys, &mut reader.errors),
        };
        (settings, reader.errors)
    }

    /// The identifier of the bridge.
    pub fn bridge_id(&self) -> BridgeId {
        BridgeId::new(self.priority, self.address)
    }
}

/// Settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Its name, for reports.
    pub name: String,
    /// Its address, from which it sends.
    pub mac: Mac,
    /// Its number, 1 to [`MAX_PORTS`]: `stp-port-num`; the first free one where there is none.
    pub number: Option<u16>,
    /// Its priority: `stp-port-priority`.
    pub priority: u8,
    /// The cost of its link: `stp-path-cost`; by the speed where there is none.
    pub path_cost: Option<u16>,
}

impl PortSettings {
    /// The defaults.
    pub fn new(name: &str, mac: Mac) -> PortSettings {
        PortSettings { name: name.to_owned(), mac, number: None, priority: 128, path_cost: None }
    }

    /// The settings that options ask for, and what is wrong with these. None where `stp-enable` is false.
    pub fn from_options(name: &str, mac: Mac, options: &Options) -> (Option<PortSettings>, Vec<OptionError>) {
        let mut reader = Reader::new(options);
        if !reader.flag_or("stp-enable", true) {
            return (None, reader.errors);
        }
        let settings = PortSettings {
            number: reader.any_number("stp-port-num", 1..=u32::from(MAX_PORTS), "the first free one").map(|n| n as u16),
            priority: reader.any_number("stp-port-priority", 0..=255, "128").unwrap_or(128) as u8,
            path_cost: reader
                .any_number("stp-path-cost", 0..=65535, "that of the link's speed")
                .map(|cost| cost as u16),
            ..PortSettings::new(name, mac)
        };
        (Some(settings), reader.errors)
    }
}

/// The cost of a link of so many megabits per second (IEEE 802.1D-1998 Table 8-5, and 802.1t for the faster ones); 0 stands for
/// a speed that is not known.
pub fn path_cost(speed: u32) -> u16 {
    match speed {
        10_000.. => 2,
        1000.. => 4,
        100.. => 19,
        16.. => 62,
        10.. => 100,
        4.. => 250,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn options_of_a_bridge() {
        let (settings, wrong) = Settings::from_options(
            [2; 6],
            &options(&[
                ("stp-system-id", "aa:66:aa:66:00:00"),
                ("stp-priority", "0x7800"),
                ("stp-hello-time", "1"),
                ("stp-max-age", "6"),
                ("stp-forward-delay", "3"),
            ]),
        );
        assert_eq!(settings.bridge_id().to_string(), "7800.aa66aa660000");
        assert_eq!(settings.timing, Timing { hello_time: 1, max_age: 6, forward_delay: 15 });
        let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        assert_eq!(wrong, ["stp-forward-delay: \"3\" is not a number from 4 to 30; 15 counts instead"]);
        assert_eq!(Settings::from_options([2; 6], &Options::new()), (Settings::new([2; 6]), vec![]));
    }

    #[test]
    fn options_of_a_port() {
        let (settings, wrong) = PortSettings::from_options(
            "p1",
            [2; 6],
            &options(&[("stp-port-num", "7"), ("stp-port-priority", "0x90"), ("stp-path-cost", "0")]),
        );
        let wanted =
            PortSettings { number: Some(7), priority: 0x90, path_cost: Some(0), ..PortSettings::new("p1", [2; 6]) };
        assert_eq!((settings, wrong), (Some(wanted), vec![]));
        let off = PortSettings::from_options("p1", [2; 6], &options(&[("stp-enable", "false")]));
        assert_eq!(off, (None, vec![]));
        assert_eq!([0, 3, 4, 10, 16, 100, 1000, 10_000].map(path_cost), [2, 2, 250, 100, 62, 19, 4, 2]);
    }
}
