//! Settings of a bridge and its ports, from the options of ovs-vswitchd.conf.db(5).

use crate::ethernet::Mac;
use crate::options::{OptionError, Options, Reader};
use crate::stp::identifier::BridgeId;
use crate::stp::timing::{Timing, TimingKeys};

/// The options of a bridge.
pub const KEYS: &[&str] = &[
    "rstp-address",
    "rstp-priority",
    "rstp-ageing-time",
    "rstp-force-protocol-version",
    "rstp-max-age",
    "rstp-forward-delay",
    "rstp-transmit-hold-count",
];

/// The options of a port.
pub const PORT_KEYS: &[&str] = &[
    "rstp-enable",
    "rstp-port-num",
    "rstp-port-priority",
    "rstp-path-cost",
    "rstp-port-admin-edge",
    "rstp-port-auto-edge",
    "rstp-port-mcheck",
    "rstp-admin-p2p-mac",
    "rstp-admin-port-state",
];

/// The greatest number of a port.
pub const MAX_PORTS: u16 = 4095;

/// Settings of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its address in the identifier: `rstp-address`.
    pub address: Mac,
    /// Its priority, a multiple of 4096: `rstp-priority`.
    pub priority: u16,
    /// How long learnt addresses are kept, in seconds: `rstp-ageing-time`.
    pub ageing_time: u32,
    /// Whether it speaks STP only: `rstp-force-protocol-version` 0 instead of 2.
    pub force_stp: bool,
    /// `rstp-max-age` and `rstp-forward-delay`; the hello time is 2 s (Table 17-1).
    pub timing: Timing,
    /// How many BPDUs a port sends in a second at most, beyond one: `rstp-transmit-hold-count`.
    pub transmit_hold_count: u8,
}

impl Settings {
    /// The defaults, for a bridge with this address.
    pub fn new(address: Mac) -> Settings {
        Settings {
            address,
            priority: 32768,
            ageing_time: 300,
            force_stp: false,
            timing: Timing::default(),
            transmit_hold_count: 6,
        }
    }

    /// The settings that options ask for, and what is wrong with these.
    pub fn from_options(address: Mac, options: &Options) -> (Settings, Vec<OptionError>) {
        let mut reader = Reader::new(options);
        let default = Settings::new(address);
        let timing = Timing {
            hello_time: default.timing.hello_time,
            max_age: reader.number("rstp-max-age", 6..=40, 20),
            forward_delay: reader.number("rstp-forward-delay", 4..=30, 15),
        };
        let keys = TimingKeys { max_age: "rstp-max-age", forward_delay: "rstp-forward-delay" };
        let settings = Settings {
            address: reader.mac("rstp-address", "the bridge's").unwrap_or(address),
            // Rounded down, as the manual says.
            priority: reader.any_number("rstp-priority", 0..=61440, "32768").unwrap_or(32768) as u16 & 0xf000,
            ageing_time: reader.number("rstp-ageing-time", 10..=1_000_000, 300),
            // Version 3 is that of MSTP, which speaks RSTP with a bridge that has one tree.
            force_stp: reader.number("rstp-force-protocol-version", 0..=3u8, 2) < 2,
            timing: timing.checked(&keys, &mut reader.errors),
            transmit_hold_count: reader.number("rstp-transmit-hold-count", 1..=10, 6),
        };
        (settings, reader.errors)
    }

    /// The identifier of the bridge.
    pub fn bridge_id(&self) -> BridgeId {
        BridgeId::new(self.priority, self.address)
    }
}

/// Whether a port's link has just two ends: `rstp-admin-p2p-mac`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PointToPoint {
    /// It is taken for shared: 0.
    ForceFalse,
    /// It is taken for point-to-point: 1.
    #[default]
    ForceTrue,
    /// It is where it is full-duplex: 2.
    Auto,
}

/// Settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Its name, for reports.
    pub name: String,
    /// Its address, from which it sends.
    pub mac: Mac,
    /// Its number, 1 to [`MAX_PORTS`]: `rstp-port-num`; the first free one where there is none.
    pub number: Option<u16>,
    /// Its priority, a multiple of 16: `rstp-port-priority`.
    pub priority: u8,
    /// The cost of its link, 1 to 200 000 000: `rstp-path-cost`; by the speed where there is none.
    pub path_cost: Option<u32>,
    /// No bridge is behind it: `rstp-port-admin-edge`.
    pub admin_edge: bool,
    /// Whether to find out that no bridge is behind it: `rstp-port-auto-edge`.
    pub auto_edge: bool,
    /// To look whether STP bridges have left, when it becomes true: `rstp-port-mcheck`.
    pub mcheck: bool,
    /// `rstp-admin-p2p-mac`.
    pub point_to_point: PointToPoint,
    /// Whether the port may be used at all: `rstp-admin-port-state`.
    pub admin_state: bool,
}

impl PortSettings {
    /// The defaults.
    pub fn new(name: &str, mac: Mac) -> PortSettings {
        PortSettings {
            name: name.to_owned(),
            mac,
            number: None,
            priority: 128,
            path_cost: None,
            admin_edge: false,
            auto_edge: true,
            mcheck: false,
            point_to_point: PointToPoint::ForceTrue,
            admin_state: true,
        }
    }

    /// The settings that options ask for, and what is wrong with these. None where `rstp-enable` is false.
    pub fn from_options(name: &str, mac: Mac, options: &Options) -> (Option<PortSettings>, Vec<OptionError>) {
        let mut reader = Reader::new(options);
        if !reader.flag_or("rstp-enable", true) {
            return (None, reader.errors);
        }
        let settings = PortSettings {
            number: reader
                .any_number("rstp-port-num", 1..=u32::from(MAX_PORTS), "the first free one")
                .map(|n| n as u16),
            priority: reader.any_number("rstp-port-priority", 0..=255, "128").unwrap_or(128) as u8 & 0xf0,
            path_cost: reader.any_number("rstp-path-cost", 1..=200_000_000, "that of the link's speed"),
            admin_edge: reader.flag("rstp-port-admin-edge"),
            auto_edge: reader.flag_or("rstp-port-auto-edge", true),
            mcheck: reader.flag("rstp-port-mcheck"),
            point_to_point: match reader.number("rstp-admin-p2p-mac", 0..=2u8, 1) {
                0 => PointToPoint::ForceFalse,
                1 => PointToPoint::ForceTrue,
                _ => PointToPoint::Auto,
            },
            admin_state: reader.flag_or("rstp-admin-port-state", true),
            ..PortSettings::new(name, mac)
        };
        (Some(settings), reader.errors)
    }
}

/// A port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Link {
    /// Whether frames get through.
    pub up: bool,
    /// Megabits per second; 0 where that is not known.
    pub speed: u32,
    /// Whether both ends may send at the same time.
    pub full_duplex: bool,
}

impl Link {
    /// A full-duplex link that is up.
    pub fn up(speed: u32) -> Link {
        Link { up: true, speed, full_duplex: true }
    }

    /// The cost of a link of this speed (Table 17-3).
    pub fn path_cost(&self) -> u32 {
        match self.speed {
            10_000_000.. => 2,
            1_000_000.. => 20,
            100_000.. => 200,
            10_000.. => 2000,
            1000.. => 20_000,
            100.. => 200_000,
            10.. => 2_000_000,
            1.. => 20_000_000,
            0 => 2000,
        }
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
                ("rstp-address", "aa:66:aa:66:00:00"),
                ("rstp-priority", "28700"),
                ("rstp-ageing-time", "1000"),
                ("rstp-force-protocol-version", "0"),
                ("rstp-max-age", "40"),
                ("rstp-transmit-hold-count", "11"),
            ]),
        );
        assert_eq!(settings.bridge_id().to_string(), "7000.aa66aa660000");
        assert_eq!((settings.ageing_time, settings.force_stp, settings.transmit_hold_count), (1000, true, 6));
        assert_eq!((settings.timing.max_age, settings.timing.forward_delay), (40, 21));
        let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        assert_eq!(
            wrong,
            [
                "rstp-forward-delay: \"15\" is not 21 or more with rstp-max-age=40; 21 counts instead",
                "rstp-transmit-hold-count: \"11\" is not a number from 1 to 10; 6 counts instead",
            ]
        );
        assert_eq!(Settings::from_options([2; 6], &Options::new()), (Settings::new([2; 6]), vec![]));
    }

    #[test]
    fn options_of_a_port() {
        let (settings, wrong) = PortSettings::from_options(
            "p1",
            [2; 6],
            &options(&[
                ("rstp-port-num", "4095"),
                ("rstp-port-priority", "0x4f"),
                ("rstp-path-cost", "7"),
                ("rstp-port-admin-edge", "true"),
                ("rstp-port-mcheck", "true"),
                ("rstp-port-auto-edge", "false"),
                ("rstp-admin-port-state", "false"),
                ("rstp-admin-p2p-mac", "2"),
            ]),
        );
        let wanted = PortSettings {
            number: Some(4095),
            priority: 0x40,
            path_cost: Some(7),
            admin_edge: true,
            auto_edge: false,
            mcheck: true,
            point_to_point: PointToPoint::Auto,
            admin_state: false,
            ..PortSettings::new("p1", [2; 6])
        };
        assert_eq!((settings, wrong), (Some(wanted), vec![]));
        let default = PortSettings::from_options("p1", [2; 6], &Options::new());
        assert_eq!(default, (Some(PortSettings::new("p1", [2; 6])), vec![]));
        let off = PortSettings::from_options("p1", [2; 6], &options(&[("rstp-enable", "false")]));
        assert_eq!(off, (None, vec![]));
    }

    #[test]
    fn costs_are_those_of_table_17_3() {
        let costs = [0, 1, 10, 100, 999, 1000, 10_000, 100_000, 1_000_000, u32::MAX].map(|s| Link::up(s).path_cost());
        assert_eq!(costs, [2000, 20_000_000, 2_000_000, 200_000, 200_000, 20_000, 2000, 200, 20, 2]);
    }
}
