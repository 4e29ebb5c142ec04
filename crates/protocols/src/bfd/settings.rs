//! Settings of a session from column `bfd` of table `Interface` (ovs-vswitchd.conf.db(5)).

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::ethernet::Mac;
use crate::options::{OptionError, Options, Reader};

/// Destination of control packets by default.
pub const DEFAULT_DST_MAC: Mac = [0x00, 0x23, 0x20, 0x00, 0x00, 0x01];
/// Source of control packets by default; a session with it takes packets for any address.
pub const DEFAULT_SRC_IP: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
/// Destination of control packets by default.
pub const DEFAULT_DST_IP: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 0);
/// Longest interval that fits into a packet, in milliseconds.
const LONGEST: u64 = u32::MAX as u64 / 1000;

/// The options of column `bfd`.
pub const KEYS: &[&str] = &[
    "enable",
    "min_rx",
    "min_tx",
    "mult",
    "decay_min_rx",
    "forwarding_if_rx",
    "cpath_down",
    "check_tnl_key",
    "oam",
    "bfd_local_src_mac",
    "bfd_local_dst_mac",
    "bfd_remote_dst_mac",
    "bfd_src_ip",
    "bfd_dst_ip",
];

/// What of a session is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `min_rx`: shortest interval at which packets can be received.
    pub min_rx: Duration,
    /// `min_tx`: shortest interval at which packets are sent.
    pub min_tx: Duration,
    /// `decay_min_rx`: takes the place of `min_rx` while no data come; zero for never.
    pub decay_min_rx: Duration,
    /// `forwarding_if_rx`: the interface forwards also while data come, with a packet of BFD now and then.
    pub forwarding_if_rx: bool,
    /// `cpath_down`: tells the peer that this system cannot forward what comes.
    pub cpath_down: bool,
    /// `check_tnl_key`: packets from tunnels with another key than 0 are not taken.
    pub check_tnl_key: bool,
    /// `oam`: the caller sets the OAM bit of tunnels that have one.
    pub oam: bool,
    /// `mult`: how many packets the peer may miss.
    pub mult: u8,
    /// `bfd_local_src_mac`; `None` for the interface's address.
    pub local_src_mac: Option<Mac>,
    /// `bfd_local_dst_mac`.
    pub local_dst_mac: Mac,
    /// `bfd_remote_dst_mac`: packets for another address are not taken.
    pub remote_dst_mac: Option<Mac>,
    /// `bfd_src_ip`.
    pub src_ip: Ipv4Addr,
    /// `bfd_dst_ip`.
    pub dst_ip: Ipv4Addr,
}

impl Settings {
    /// The settings of column `bfd`; `None` where BFD is not enabled, which it is not by default.
    pub fn from_column(bfd: &Options) -> (Option<Settings>, Vec<OptionError>) {
        let mut reader = Reader::new(bfd);
        if !reader.flag("enable") {
            return (None, reader.errors);
        }
        let mut millis = |key, range, default| Duration::from_millis(reader.number::<u64>(key, range, default));
        let min_rx = millis("min_rx", 1..=LONGEST, 1000);
        let min_tx = millis("min_tx", 1..=LONGEST, 100);
        let decay_min_rx = millis("decay_min_rx", 0..=LONGEST, 0);
        let decays = decay_min_rx >= min_rx;
        if !decays && !decay_min_rx.is_zero() {
            let wanted = format!("0 or at least min_rx ({} ms)", min_rx.as_millis());
            let (value, used) = (decay_min_rx.as_millis().to_string(), "0".into());
            reader.errors.push(OptionError { key: "decay_min_rx", value, wanted, used });
        }
        let mut ip = |key, default: Ipv4Addr| {
            reader.value(key, default, &default.to_string(), "an IPv4 address", |value| value.parse().ok())
        };
        let (src_ip, dst_ip) = (ip("bfd_src_ip", DEFAULT_SRC_IP), ip("bfd_dst_ip", DEFAULT_DST_IP));
        let settings = Settings {
            min_rx,
            min_tx,
            decay_min_rx: if decays { decay_min_rx } else { Duration::ZERO },
            forwarding_if_rx: reader.flag("forwarding_if_rx"),
            cpath_down: reader.flag("cpath_down"),
            check_tnl_key: reader.flag("check_tnl_key"),
            oam: reader.flag("oam"),
            mult: reader.number("mult", 1..=255, 3),
            local_src_mac: reader.mac("bfd_local_src_mac", "the interface's address"),
            local_dst_mac: reader.mac("bfd_local_dst_mac", "00:23:20:00:00:01").unwrap_or(DEFAULT_DST_MAC),
            remote_dst_mac: reader.mac("bfd_remote_dst_mac", "any address"),
            src_ip,
            dst_ip,
        };
        (Some(settings), reader.errors)
    }

    /// Whether a frame for UDP port 3784 over IPv4 is the session's, by its destination addresses; others are forwarded. `tunnel_key`
    /// is that of the tunnel that the frame came by, 0 without one.
    pub fn accepts(&self, eth_dst: Mac, ip_dst: Ipv4Addr, tunnel_key: u64) -> bool {
        self.remote_dst_mac.is_none_or(|mac| mac == eth_dst)
            && (!self.checks_ip_dst() || self.src_ip == ip_dst)
            && (!self.check_tnl_key || tunnel_key == 0)
    }

    /// Whether packets for other addresses than the session's own are not taken.
    pub fn checks_ip_dst(&self) -> bool {
        self.src_ip != DEFAULT_SRC_IP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> (Option<Settings>, Vec<String>) {
        let options = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let (settings, errors) = Settings::from_column(&options);
        (settings, errors.iter().map(OptionError::to_string).collect())
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        assert_eq!(read(&[]), (None, vec![]));
        assert_eq!(read(&[("enable", "false")]), (None, vec![]));
        let (settings, errors) = read(&[("enable", "true")]);
        let settings = settings.unwrap();
        assert_eq!((settings.min_rx.as_millis(), settings.min_tx.as_millis(), settings.mult), (1000, 100, 3));
        assert_eq!((settings.src_ip, settings.dst_ip), (DEFAULT_SRC_IP, DEFAULT_DST_IP));
        assert_eq!(
            (settings.local_src_mac, settings.local_dst_mac, settings.remote_dst_mac),
            (None, DEFAULT_DST_MAC, None)
        );
        assert!(errors.is_empty() && !settings.oam && !settings.check_tnl_key && !settings.cpath_down);
    }

    #[test]
    fn wrong_values_leave_defaults() {
        let (settings, errors) = read(&[
            ("enable", "true"),
            ("min_rx", "300"),
            ("min_tx", "0"),
            ("decay_min_rx", "299"),
            ("mult", "256"),
            ("bfd_src_ip", "10.0.0.256"),
            ("bfd_dst_ip", "10.0.0.2"),
        ]);
        let settings = settings.unwrap();
        assert_eq!((settings.min_rx.as_millis(), settings.min_tx.as_millis(), settings.mult), (300, 100, 3));
        assert_eq!((settings.decay_min_rx, settings.src_ip), (Duration::ZERO, DEFAULT_SRC_IP));
        assert_eq!(settings.dst_ip, Ipv4Addr::new(10, 0, 0, 2));
        let decay = "decay_min_rx: \"299\" is not 0 or at least min_rx (300 ms); 0 counts instead".to_string();
        assert!(errors.contains(&decay) && errors.len() == 4, "{errors:?}");
    }
}
