//! Text of `cfm/show` (ovs-vswitchd(8)), in the format of OVS 3.1, and the columns `cfm_*`.

use std::fmt::{self, Display};

use weir_time::Time;

use super::point::MaintenancePoint;

/// `cfm/show` of a maintenance point at a point in time.
#[derive(Debug)]
pub struct Show<'a>(pub &'a MaintenancePoint, pub Time);

impl Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Show(point, now) = *self;
        writeln!(f, "---- {} ----", point.name)?;
        let extended = if point.settings.extended { " extended" } else { "" };
        let fault_override = if point.fault_override.is_some() { " fault_override" } else { "" };
        writeln!(f, "MPID {}:{extended}{fault_override}", point.settings.mpid)?;
        if !point.faults().is_empty() {
            writeln!(f, "  fault: {}", point.faults())?;
        }
        writeln!(f, "  average health: {}", point.health.map_or("undefined".into(), |health| health.to_string()))?;
        writeln!(f, "  opstate: {}", opstate(point.settings.opup))?;
        writeln!(f, "  remote_opstate: {}", opstate(point.remote_opup))?;
        writeln!(f, "  interval: {}ms", point.settings.interval().1)?;
        writeln!(f, "  next CCM tx: {}ms", millis_until(now, point.tx_at))?;
        writeln!(f, "  next fault check: {}ms", millis_until(now, point.check_at))?;
        for (mpid, remote) in &point.remotes {
            writeln!(f, "Remote MPID {mpid}")?;
            writeln!(f, "  recv since check: {}", remote.heard)?;
            writeln!(f, "  opstate: {}", opstate(remote.opup))?;
        }
        Ok(())
    }
}

/// The columns `cfm_*` of an interface; all of them are empty where it has no CFM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// `cfm_fault`.
    pub fault: bool,
    /// `cfm_fault_status`.
    pub fault_status: Vec<String>,
    /// `cfm_flap_count`.
    pub flap_count: u64,
    /// `cfm_health`.
    pub health: Option<u8>,
    /// `cfm_remote_mpids`.
    pub remote_mpids: Vec<u64>,
    /// `cfm_remote_opstate`.
    pub remote_opstate: Option<&'static str>,
}

impl Columns {
    /// The columns as they are now.
    pub fn of(point: &MaintenancePoint) -> Columns {
        Columns {
            fault: !point.faults().is_empty(),
            fault_status: point.faults().names().collect(),
            flap_count: point.flap_count(),
            health: point.health(),
            remote_mpids: point.remote_mpids().to_vec(),
            remote_opstate: point.remote_opstate().map(opstate),
        }
    }
}

fn opstate(up: bool) -> &'static str {
    if up { "up" } else { "down" }
}

/// Whole milliseconds from `now` to `then`.
fn millis_until(now: Time, then: Time) -> i128 {
    i128::from(then.millis()) - i128::from(now.millis())
}
