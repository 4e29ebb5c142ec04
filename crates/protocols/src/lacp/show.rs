//! Texts of `lacp/show` and `lacp/show-stats` (ovs-vswitchd(8)), in the format of OVS 3.1.

use std::fmt::{self, Display, Write};

use super::aggregator::{Aggregator, Member, MemberId, Status};
use super::pdu::Info;
use crate::ethernet::MacText;

/// `lacp/show` of a bond.
#[derive(Debug)]
pub struct Show<'a>(pub &'a Aggregator);

/// `lacp/show-stats` of a bond.
#[derive(Debug)]
pub struct ShowStats<'a>(pub &'a Aggregator);

impl Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bond, settings) = (self.0, &self.0.settings);
        writeln!(f, "---- {} ----", settings.name)?;
        let mode = if settings.active { "active" } else { "passive" };
        writeln!(f, "  status: {mode}{}", if bond.negotiated { " negotiated" } else { "" })?;
        writeln!(f, "  sys_id: {}", MacText(settings.system_id))?;
        writeln!(f, "  sys_priority: {}", settings.system_priority)?;
        writeln!(f, "  aggregation key: {}", bond.key().map_or("none".into(), |key| key.to_string()))?;
        writeln!(f, "  lacp_time: {}", if settings.fast { "fast" } else { "slow" })?;
        by_name(bond).try_for_each(|(id, member)| show_member(f, bond, id, member))
    }
}

fn show_member(f: &mut fmt::Formatter<'_>, bond: &Aggregator, id: MemberId, member: &Member) -> fmt::Result {
    let status = match member.status {
        Status::Current => "current",
        Status::Expired => "expired",
        Status::Defaulted => "defaulted",
    };
    let attached = if member.attached { "attached" } else { "detached" };
    writeln!(f, "\nmember: {}: {status} {attached}", member.settings.name)?;
    writeln!(f, "  port_id: {}", member.settings.port_id)?;
    writeln!(f, "  port_priority: {}", member.settings.port_priority)?;
    writeln!(f, "  may_enable: {}\n", member.may_enable(bond.settings.fallback_ab))?;
    show_end(f, "actor", &bond.actor(id))?;
    f.write_char('\n')?;
    show_end(f, "partner", &member.partner)
}

fn show_end(f: &mut fmt::Formatter<'_>, end: &str, info: &Info) -> fmt::Result {
    writeln!(f, "  {end} sys_id: {}", MacText(info.system_id))?;
    writeln!(f, "  {end} sys_priority: {}", info.system_priority)?;
    writeln!(f, "  {end} port_id: {}", info.port_id)?;
    writeln!(f, "  {end} port_priority: {}", info.port_priority)?;
    writeln!(f, "  {end} key: {}", info.key)?;
    writeln!(f, "  {end} state:{}", info.state)
}

impl Display for ShowStats<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "---- {} statistics ----", self.0.settings.name)?;
        for (_, member) in by_name(self.0) {
            let counters = &member.counters;
            writeln!(f, "\nmember: {}:", member.settings.name)?;
            writeln!(f, "  TX PDUs: {}", counters.tx_pdus)?;
            writeln!(f, "  RX PDUs: {}", counters.rx_pdus)?;
            writeln!(f, "  RX Bad PDUs: {}", counters.rx_bad_pdus)?;
            writeln!(f, "  RX Marker Request PDUs: {}", counters.rx_marker_pdus)?;
            writeln!(f, "  Link Expired: {}", counters.link_expired)?;
            writeln!(f, "  Link Defaulted: {}", counters.link_defaulted)?;
            writeln!(f, "  Carrier Status Changed: {}", counters.carrier_changed)?;
        }
        Ok(())
    }
}

fn by_name(bond: &Aggregator) -> impl Iterator<Item = (MemberId, &Member)> {
    let mut members: Vec<_> = bond.members.iter().map(|(id, member)| (*id, member)).collect();
    members.sort_by(|(_, a), (_, b)| a.settings.name.cmp(&b.settings.name));
    members.into_iter()
}
