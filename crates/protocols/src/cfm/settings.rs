//! Settings of a maintenance point from columns `cfm_mpid` and `other_config` of table `Interface`
//! (ovs-vswitchd.conf.db(5)).

use std::time::Duration;

use super::ccm::{GROUP, GROUP_EXTENDED};
use crate::ethernet::Mac;
use crate::options::{OptionError, Options, Reader};

/// Intervals that 802.1ag has, in milliseconds, by their codes from 1 on (table 21-16). That of code 1 is 10/3 ms.
const INTERVALS: [u32; 7] = [3, 10, 100, 1_000, 10_000, 60_000, 600_000];
/// The highest identifier of 802.1ag.
const MAX_MPID: u64 = 8191;

/// The options of column `other_config`.
pub const KEYS: &[&str] = &["cfm_interval", "cfm_extended", "cfm_demand", "cfm_opstate", "cfm_ccm_vlan", "cfm_ccm_pcp"];

/// The VLAN tag of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// None, unless they have a priority.
    None,
    /// This VLAN.
    Id(u16),
    /// Each one has another VLAN.
    Random,
}

/// What of a maintenance point is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Column `cfm_mpid`.
    pub mpid: u64,
    /// `cfm_interval` in milliseconds; what counts is [`Settings::interval`].
    pub interval_ms: u32,
    /// `cfm_extended`.
    pub extended: bool,
    /// `cfm_demand`; counts in extended mode.
    pub demand: bool,
    /// `cfm_opstate`; counts in extended mode.
    pub opup: bool,
    /// `cfm_ccm_vlan`.
    pub vlan: Vlan,
    /// `cfm_ccm_pcp`.
    pub pcp: u8,
    /// Whether only messages from tunnels with key 0 are taken: the tunnel's key is that of the flow.
    pub check_tnl_key: bool,
}

impl Settings {
    /// The settings of an interface; `None` where it has no identifier, or a wrong one.
    pub fn from_row(
        cfm_mpid: Option<i64>,
        other_config: &Options,
        check_tnl_key: bool,
    ) -> (Option<Settings>, Vec<OptionError>) {
        let Some(mpid) = cfm_mpid else { return (None, Vec::new()) };
        let mut reader = Reader::new(other_config);
        let extended = reader.flag("cfm_extended");
        // Extended identifiers are 64 bits; the database has them as signed numbers.
        let is_valid = if extended { mpid != 0 } else { (1..=MAX_MPID as i64).contains(&mpid) };
        if !is_valid {
            let wanted =
                if extended { "a number other than 0".into() } else { format!("a number from 1 to {MAX_MPID}") };
            let error = OptionError { key: "cfm_mpid", value: mpid.to_string(), wanted, used: "no CFM".into() };
            return (None, vec![error]);
        }
        let settings = Settings {
            mpid: mpid as u64,
            interval_ms: reader.number("cfm_interval", 1..=i32::MAX as u32, 1000),
            extended,
            demand: reader.flag("cfm_demand"),
            opup: reader.value("cfm_opstate", true, "up", "up or down", |value| {
                match value.to_ascii_lowercase().as_str() {
                    "up" => Some(true),
                    "down" => Some(false),
                    _ => None,
                }
            }),
            vlan: reader.value("cfm_ccm_vlan", Vlan::None, "no tag", "random or a number from 1 to 4095", |value| {
                if value.eq_ignore_ascii_case("random") {
                    return Some(Vlan::Random);
                }
                value.parse().ok().filter(|id| (1..=4095).contains(id)).map(Vlan::Id)
            }),
            pcp: reader.number("cfm_ccm_pcp", 0..=7, 0),
            check_tnl_key,
        };
        (Some(settings), reader.errors)
    }

    /// Code and milliseconds of the interval. Without extended mode, the longest interval of 802.1ag that is no longer
    /// than what is configured; in it, any one up to 65 535 ms, with code 0 where 802.1ag does not have it.
    pub fn interval(&self) -> (u8, u32) {
        let at = INTERVALS.iter().rposition(|millis| *millis <= self.interval_ms).unwrap_or(0);
        if self.extended && INTERVALS[at] != self.interval_ms {
            return (0, self.interval_ms.min(u16::MAX.into()));
        }
        (at as u8 + 1, INTERVALS[at])
    }

    /// Whether a frame of type [`super::ccm::ETHERTYPE`] for this address is the point's; others are forwarded.
    /// `tunnel_key` is that of the tunnel that the frame came by, 0 without one.
    pub fn accepts(&self, dst: Mac, tunnel_key: u64) -> bool {
        dst == self.group() && (!self.check_tnl_key || tunnel_key == 0)
    }

    /// The address that messages are for.
    pub(super) fn group(&self) -> Mac {
        if self.extended { GROUP_EXTENDED } else { GROUP }
    }

    /// Whether data that come count for messages.
    pub fn in_demand_mode(&self) -> bool {
        self.extended && self.demand
    }

    /// After how long without messages there is a fault: 3.5 intervals. Statistics may be late, so demand mode takes
    /// half a second at least for an interval.
    pub fn fault_interval(&self) -> Duration {
        let (_, millis) = self.interval();
        let millis = if self.in_demand_mode() { millis.max(500) } else { millis };
        Duration::from_millis(u64::from(millis) * 7 / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mpid: i64, pairs: &[(&str, &str)]) -> (Option<Settings>, Vec<String>) {
        let options = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let (settings, errors) = Settings::from_row(Some(mpid), &options, false);
        (settings, errors.iter().map(OptionError::to_string).collect())
    }

    #[test]
    fn intervals_are_rounded_down_but_in_extended_mode() {
        let interval = |millis: &str, extended: &str| {
            read(1, &[("cfm_interval", millis), ("cfm_extended", extended)]).0.unwrap().interval()
        };
        assert_eq!(
            [interval("1", "false"), interval("3", "false"), interval("999", "false")],
            [(1, 3), (1, 3), (3, 100)]
        );
        assert_eq!(
            [interval("1000", "true"), interval("300", "true"), interval("70000", "true")],
            [(4, 1000), (0, 300), (0, 65535)]
        );
        assert_eq!([interval("0", "false"), interval("9999999", "false")], [(4, 1000), (7, 600_000)]);
        let demand = read(1, &[("cfm_interval", "300"), ("cfm_extended", "true"), ("cfm_demand", "true")]).0.unwrap();
        assert_eq!(demand.fault_interval(), Duration::from_millis(1750));
        assert!(!Settings { extended: false, ..demand }.in_demand_mode());
    }

    #[test]
    fn wrong_values_leave_defaults_and_a_wrong_mpid_no_cfm() {
        assert_eq!(Settings::from_row(None, &Options::new(), false), (None, vec![]));
        assert_eq!(
            read(8192, &[]),
            (None, vec!["cfm_mpid: \"8192\" is not a number from 1 to 8191; no CFM counts instead".into()])
        );
        assert_eq!(read(-1, &[("cfm_extended", "true")]).0.unwrap().mpid, u64::MAX);
        assert!(read(0, &[("cfm_extended", "true")]).0.is_none());
        let (settings, errors) =
            read(7, &[("cfm_ccm_vlan", "4096"), ("cfm_ccm_pcp", "8"), ("cfm_opstate", "sideways")]);
        let settings = settings.unwrap();
        assert_eq!((settings.vlan, settings.pcp, settings.opup, errors.len()), (Vlan::None, 0, true, 3));
        let (settings, _) = read(7, &[("cfm_ccm_vlan", "Random"), ("cfm_ccm_pcp", "7"), ("cfm_opstate", "down")]);
        assert_eq!(settings.map(|it| (it.vlan, it.pcp, it.opup)), Some((Vlan::Random, 7, false)));
    }
}
