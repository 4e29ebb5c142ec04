//! Bonds of a bridge: making, changing, showing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Bound;

use openflow::{FlowStats, OfPort};
use ports::Mac;
use protocols::lacp::show::{Show as ShowLacp, ShowStats};
use protocols::lacp::{Aggregator, MemberId};

use super::Bridge;
use crate::error::Error;
use crate::model::bond::show::{Line, Show};
use crate::model::bond::{Bond, BondSettings, LacpConfig, LacpStatus};
use crate::model::forwarding::BridgeState;
use crate::slowpath::lacp_sessions::lacp_settings;

/// A bond, as other parts of the switch are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondInfo {
    /// Name of the port.
    pub name: String,
    /// The address of the member that is active, or was so last; zero for none.
    pub active_mac: Mac,
}

/// Why a command on a bond is refused, in OVS's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BondError {
    /// No bond has this name.
    #[error("no such bond")]
    NoBond,
    /// No member of it has this name.
    #[error("no such member")]
    NoMember,
    /// The member is disabled, and cannot become the active one.
    #[error("cannot make disabled member active")]
    DisabledActive,
    /// The member is disabled, and can have no bucket.
    #[error("cannot migrate to disabled member")]
    DisabledMigration,
    /// Only buckets of `balance-slb` are moved.
    #[error("not an SLB bond")]
    NotSlb,
}

impl Bridge {
    /// Makes a bond of the ports that belong to the logical port `name` ([`PortSpec::logical`](crate::PortSpec::logical)), now and later;
    /// or changes its settings. `active_mac` is the address of the member that was active before the daemon started.
    pub fn set_bond(&self, name: &str, settings: BondSettings, active_mac: Mac) -> Result<(), Error> {
        let datapath = self.switch.datapath.get();
        let now = self.now();
        self.change(|bridge, _| {
            match bridge.bonds.get_mut(name) {
                Some(bond) => bond.configure(settings, now),
                None => {
                    let output = datapath.and_then(|datapath| datapath.bonds().add());
                    let mut bond = Bond::new(name, settings, output, active_mac, now);
                    if bridge.lacp.contains_key(name) {
                        // No member carries traffic before it has a partner.
                        bond.set_lacp(LacpStatus::Configured);
                    }
                    bridge.bonds.insert(name.to_owned(), bond);
                }
            }
            bridge.tell_bonds();
        })
        .ok_or_else(|| Error::NoSuchBridge(self.name().to_owned()))?;
        self.switch.run_bonds();
        Ok(())
    }

    /// Has the ports of a bond be ports on their own again. What was learnt there is forgotten.
    pub fn remove_bond(&self, name: &str) {
        let now = self.now();
        let members = self.change(|bridge, _| {
            let bond = bridge.bonds.remove(name)?;
            bridge.guard_against_loops();
            Some(bond.members().map(|(port, _)| port).collect::<Vec<_>>())
        });
        if let Some(Some(members)) = members {
            self.change_macs(|macs| members.iter().for_each(|port| macs.flush_learnt(*port, now)));
            self.forget_groups_of(&members);
        }
    }

    /// Has LACP spoken by the interfaces of a port, or not any more. What is wrong in the options is in the log, and its default counts.
    pub fn set_lacp(&self, port: &str, config: Option<LacpConfig>) {
        if self.read(|bridge| bridge.lacp.get(port) == config.as_ref()).unwrap_or(true) {
            return;
        }
        for problem in config.iter().flat_map(|config| lacp_settings(port, config, [2, 0, 0, 0, 0, 0]).1) {
            tracing::warn!(target: "lacp", "port {port}: {problem}");
        }
        self.change(|bridge, _| match config {
            Some(config) => drop(bridge.lacp.insert(port.to_owned(), config)),
            None => drop(bridge.lacp.remove(port)),
        });
        self.switch.run_bonds();
    }

    /// Changes what of LACP is configured for an interface.
    pub fn set_member_lacp(&self, port: OfPort, options: BTreeMap<String, String>) {
        let same = |bridge: &BridgeState| bridge.ports.get(&port).is_none_or(|state| state.lacp == options);
        if !self.read(same).unwrap_or(true) {
            self.change(|bridge, _| {
                if let Some(state) = bridge.ports.get_mut(&port) {
                    state.lacp = options;
                }
            });
            self.switch.run_bonds();
        }
    }

    /// All bonds, by name.
    pub fn bonds(&self) -> Vec<BondInfo> {
        let info = |bond: &Bond| BondInfo { name: bond.name.clone(), active_mac: bond.active_mac() };
        self.read(|bridge| bridge.bonds.values().map(info).collect()).unwrap_or_default()
    }

    /// `bond/show`, of one bond or all; `None` where there is no such bond.
    pub fn show_bonds(&self, name: Option<&str>) -> Option<String> {
        let now = self.now();
        self.read(|bridge| {
            let mut text = String::new();
            let wanted = bridge.bonds.values().filter(|bond| name.is_none_or(|name| bond.name == name));
            wanted.for_each(|bond| {
                let _ = write!(text, "{}", Show { bond, now });
            });
            (name.is_none() || !text.is_empty()).then_some(text)
        })?
    }

    /// `dpif-netdev/bond-show`: which port of the datapath each bucket is sent by, of the bonds that are to be the datapath's.
    pub fn show_bond_tables(&self) -> String {
        let mut text = String::new();
        self.read(|bridge| {
            for bond in bridge.bonds.values().filter(|bond| bond.settings().lb_output).filter_map(Bond::table) {
                let _ = writeln!(text, "Bond-id {} :", bond.id());
                for bucket in 0..=u8::MAX {
                    let _ = match bond.member(bucket) {
                        Some(port) => writeln!(text, "\tbucket {bucket} - member {}", port.0),
                        None => writeln!(text, "\tbucket {bucket} - none"),
                    };
                }
            }
        });
        text
    }

    /// The lines of `bond/list`.
    pub fn list_bonds(&self) -> String {
        let line = |bond: &Bond| Line(bond).to_string();
        self.read(|bridge| bridge.bonds.values().map(line).collect()).unwrap_or_default()
    }

    /// The flows that stand for how the connections of the first bond after this one are spread, in the order of names, each with its
    /// priority; and the bond's name. None of bonds that are not spread by connection. `None`: there is no further bond.
    pub fn bond_flows_after(&self, after: Option<&str>) -> Option<(String, Vec<(u32, FlowStats)>)> {
        // All bonds of which the datapath has no table are counted with flows.
        if after.is_none() && self.read(|bridge| bridge.bonds.values().any(|bond| bond.table().is_none())) == Some(true)
        {
            self.switch.refresh_statistics();
        }
        let (now, from) = (self.now(), after.map_or(Bound::Unbounded, Bound::Excluded));
        self.read(|bridge| {
            let (name, bond) = bridge.bonds.range::<str, _>((from, Bound::Unbounded)).next()?;
            Some((name.clone(), bond.flows(now)))
        })?
    }

    /// Makes a member of a bond the active one. `false`: it is that already.
    pub fn set_active_member(&self, bond: &str, member: &str) -> Result<bool, BondError> {
        self.on_member(bond, member, |bond, port| {
            let enabled = bond.members().any(|(of, member)| of == port && member.enabled);
            if enabled { Ok(bond.set_active(port)) } else { Err(BondError::DisabledActive) }
        })
    }

    /// Enables or disables a member of a bond, until its carrier says otherwise.
    pub fn enable_member(&self, bond: &str, member: &str, enabled: bool) -> Result<(), BondError> {
        self.on_member(bond, member, |bond, port| {
            bond.enable(port, enabled);
            Ok(())
        })
    }

    /// Has the packets of a bucket of a `balance-slb` bond leave by a member.
    pub fn migrate_bucket(&self, bond: &str, bucket: u8, member: &str) -> Result<(), BondError> {
        self.on_member(bond, member, |bond, port| {
            if !bond.members().any(|(of, member)| of == port && member.enabled) {
                return Err(BondError::DisabledMigration);
            }
            bond.migrate(bucket, port);
            Ok(())
        })
    }

    /// The mode of a bond.
    pub fn bond_settings(&self, bond: &str) -> Option<BondSettings> {
        self.read(|bridge| bridge.bonds.get(bond).map(|bond| bond.settings().clone()))?
    }

    /// Changes a bond, and does what that makes due.
    fn on_member<T>(
        &self,
        bond: &str,
        member: &str,
        change: impl FnOnce(&mut Bond, OfPort) -> Result<T, BondError>,
    ) -> Result<T, BondError> {
        let outcome = {
            let mut forwarding = self.switch.forwarding.write();
            let bridge = forwarding.bridges.get_mut(&self.id);
            let bond = bridge.and_then(|bridge| bridge.bonds.get_mut(bond)).ok_or(BondError::NoBond)?;
            let port = bond.members().find(|(_, state)| state.name == member).map(|(port, _)| port);
            change(bond, port.ok_or(BondError::NoMember)?)?
        };
        self.switch.run_bonds();
        Ok(outcome)
    }
}

/// What LACP says of ports.
impl Bridge {
    /// `lacp/show`, of one port or of all; `None` where there is no such port.
    pub fn show_lacp(&self, name: Option<&str>) -> Option<String> {
        self.lacp_text(name, |session| ShowLacp(session).to_string())
    }

    /// `lacp/show-stats`.
    pub fn show_lacp_stats(&self, name: Option<&str>) -> Option<String> {
        self.lacp_text(name, |session| ShowStats(session).to_string())
    }

    fn lacp_text(&self, name: Option<&str>, text: impl Fn(&Aggregator) -> String) -> Option<String> {
        let lacp = self.switch.lacp.lock();
        let wanted = lacp.of_bridge(self.id).filter(|(port, _)| name.is_none_or(|name| name == *port));
        let texts: Vec<String> = wanted.map(|(_, session)| text(session)).collect();
        (name.is_none() || !texts.is_empty()).then(|| texts.concat())
    }

    /// Whether what is known of an interface's partner is up to date; `None` where LACP is not spoken by it.
    pub fn lacp_current(&self, port: OfPort) -> Option<bool> {
        let logical = self.read(|bridge| bridge.ports.get(&port).map(|state| state.logical.clone()))??;
        let lacp = self.switch.lacp.lock();
        let session = lacp.of_bridge(self.id).find(|(name, _)| *name == logical);
        session.map(|(_, session)| session.is_current(MemberId(port.0)))
    }
}
