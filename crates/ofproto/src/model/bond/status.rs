//! Which members of a bond are enabled, and which one is active.
//!
//! A member is enabled while it has a carrier, and LACP, BFD and CFM let it, where they are spoken. It is so after `bond_updelay`, and ends to be after
//! `bond_downdelay`. The active member is the primary one, or the one that was active last, or the first one that is
//! enabled. Where none is, the member that will be next does not wait for the rest of its delay.

use std::time::Duration;

use datapath::PortNo;
use openflow::OfPort;
use packet::Time;
use ports::Mac;

use super::{Bond, BondChanges, BondMode, LacpStatus};

/// A member of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondMember {
    /// Name of the interface.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its port of the datapath; `None` for patch and tunnel ports.
    pub dp_port: Option<PortNo>,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Whether LACP lets it carry traffic; true where that is not spoken.
    pub may_enable: bool,
    /// Whether BFD or CFM finds its path up; true where neither checks it.
    pub path_up: bool,
    /// Whether it carries traffic.
    pub enabled: bool,
    /// When it is enabled or disabled, if its carrier stays as it is.
    pub delay_expires: Option<Time>,
}

/// What a bond is told of a member.
#[derive(Clone, Debug)]
pub(crate) struct MemberInfo {
    pub name: String,
    pub mac: Mac,
    pub dp_port: Option<PortNo>,
    pub carrier: bool,
    pub path_up: bool,
}

impl BondMember {
    /// Whether everything but its delay lets it carry traffic.
    pub(super) fn can_be_up(&self) -> bool {
        self.carrier && self.may_enable && self.path_up
    }
}

impl Bond {
    /// Adds a member, or takes note of what has changed of it. A new one with a carrier is enabled at once.
    pub fn set_member(&mut self, port: OfPort, info: MemberInfo) {
        let MemberInfo { name, mac, dp_port, carrier, path_up } = info;
        let (spoken, had_table) = (self.lacp != LacpStatus::Off, self.table().is_some());
        self.without_dp_port += usize::from(dp_port.is_none());
        match self.members.get_mut(&port) {
            Some(member) => {
                let is_new_port = member.dp_port != dp_port;
                self.without_dp_port -= usize::from(member.dp_port.is_none());
                (member.name, member.mac, member.dp_port) = (name, mac, dp_port);
                (member.carrier, member.path_up) = (carrier, path_up);
                if !is_new_port {
                    return;
                }
            }
            None => {
                let (may_enable, delay_expires) = (!spoken, None);
                let enabled = false;
                let member = BondMember { name, mac, dp_port, carrier, may_enable, path_up, enabled, delay_expires };
                let is_up = member.can_be_up();
                self.members.insert(port, member);
                self.pending.members = true;
                if is_up {
                    self.enable(port, true);
                }
            }
        }
        self.pending.way |= had_table != self.table().is_some();
        self.fill_table();
    }

    /// Takes a member away.
    pub fn remove_member(&mut self, port: OfPort, now: Time) {
        let had_table = self.table().is_some();
        self.enable(port, false);
        let Some(member) = self.members.remove(&port) else { return };
        self.without_dp_port -= usize::from(member.dp_port.is_none());
        self.pending.members = true;
        if self.active == Some(port) {
            self.active = None;
            self.choose_active(now);
        }
        self.pending.way |= had_table != self.table().is_some();
        self.fill_table();
    }

    /// Says whether LACP lets a member carry traffic.
    pub fn set_may_enable(&mut self, port: OfPort, may_enable: bool) {
        if let Some(member) = self.members.get_mut(&port)
            && std::mem::replace(&mut member.may_enable, may_enable) != may_enable
        {
            // Packets of a member that LACP has just let in are taken before it is enabled.
            self.pending.members = true;
        }
    }

    /// Does what the time and what was told ask for. Returns what the caller has to do.
    pub fn run(&mut self, now: Time) -> BondChanges {
        let ports: Vec<OfPort> = self.members.keys().copied().collect();
        ports.into_iter().for_each(|port| self.follow_carrier(port, now));
        let is_enabled = |port: &OfPort| self.members.get(port).is_some_and(|member| member.enabled);
        let primary = self.primary().filter(is_enabled);
        let is_primary_wanted = primary.is_some() && self.settings.mode == BondMode::ActiveBackup;
        if !self.active.as_ref().is_some_and(is_enabled) || is_primary_wanted && self.active != primary {
            self.choose_active(now);
        }
        self.rebalance_if_due(now);
        std::mem::take(&mut self.pending)
    }

    /// When `run` has something to do that nobody tells of.
    pub fn next_wakeup(&self) -> Option<Time> {
        let delays = self.members.values().filter_map(|member| member.delay_expires);
        delays.chain(self.is_balanced().then_some(self.next_rebalance)).min()
    }

    /// Starts, ends or completes the delay of a member whose carrier has changed.
    fn follow_carrier(&mut self, port: OfPort, now: Time) {
        let (updelay, downdelay) = (self.settings.updelay, self.settings.downdelay);
        let Some(member) = self.members.get_mut(&port) else { return };
        let up = member.can_be_up();
        let (name, state) = (&member.name, if up { "up" } else { "down" });
        if (up == member.enabled) == member.delay_expires.is_some() {
            tracing::info!(target: "bond", "member {name}: link state {state}");
            if up == member.enabled {
                member.delay_expires = None;
                let not = if up { "disabled" } else { "enabled" };
                tracing::info!(target: "bond", "member {name}: will not be {not}");
            } else {
                let delay = if up { updelay } else { downdelay };
                member.delay_expires = Some(now + delay);
                if delay > Duration::ZERO {
                    let what = if up { "enabled" } else { "disabled" };
                    let millis = delay.as_millis();
                    tracing::info!(target: "bond", "member {name}: will be {what} if it stays {state} for {millis} ms");
                }
            }
        }
        if member.delay_expires.is_some_and(|at| at <= now) {
            self.enable(port, up);
        }
    }

    /// Enables or disables a member at once. Its buckets go to others, or it gets its share of theirs.
    pub fn enable(&mut self, port: OfPort, enabled: bool) {
        let Some(member) = self.members.get_mut(&port) else { return };
        member.delay_expires = None;
        if std::mem::replace(&mut member.enabled, enabled) == enabled {
            return;
        }
        tracing::info!(target: "bond", "member {}: {}", member.name, if enabled { "enabled" } else { "disabled" });
        self.pending.members = true;
        self.pending.tell_neighbours |= !enabled;
        let enabled: Vec<OfPort> = self.members().filter(|(_, member)| member.enabled).map(|(port, _)| port).collect();
        self.buckets.share(&enabled);
        self.fill_table();
    }

    /// The configured primary member.
    pub fn primary(&self) -> Option<OfPort> {
        let name = self.settings.primary.as_ref()?;
        self.members().find(|(_, member)| member.name == *name).map(|(port, _)| port)
    }

    /// Makes a member the active one, as an operator says. `false`: it is that already.
    pub fn set_active(&mut self, port: OfPort) -> bool {
        if self.active == Some(port) || !self.members.contains_key(&port) {
            return false;
        }
        self.become_active(port);
        true
    }

    fn become_active(&mut self, port: OfPort) {
        let Some(member) = self.members.get(&port) else { return };
        tracing::info!(target: "bond", "bond {}: active member is now {}", self.name, member.name);
        (self.active, self.active_mac) = (Some(port), member.mac);
        (self.pending.members, self.pending.tell_neighbours) = (true, true);
        self.fill_table();
    }

    /// Chooses the active member anew.
    pub(super) fn choose_active(&mut self, now: Time) {
        let chosen = self.best_active();
        match chosen {
            Some(port) if self.active == Some(port) && self.members[&port].enabled => {}
            Some(port) => {
                if let Some(member) = self.members.get(&port).filter(|member| !member.enabled) {
                    let left = member.delay_expires.map_or(Duration::ZERO, |at| at.since(now)).as_millis();
                    tracing::info!(
                        target: "bond",
                        "bond {}: active member is now {}, skipping remaining {left} ms updelay (since no member was enabled)",
                        self.name, member.name
                    );
                    self.enable(port, true);
                }
                self.become_active(port);
            }
            None if self.active.is_some() => {
                tracing::info!(target: "bond", "bond {}: all members disabled", self.name);
                self.active = None;
                self.active_mac = [0; 6];
                self.pending.members = true;
                self.fill_table();
            }
            None => {}
        }
    }

    fn best_active(&self) -> Option<OfPort> {
        let enabled = || self.members().filter(|(_, member)| member.enabled);
        let primary = self.primary();
        let primary = enabled().find(|(port, _)| Some(*port) == primary);
        let last = enabled().find(|(_, member)| member.mac == self.active_mac);
        let best = primary.or(last).or_else(|| enabled().next()).map(|(port, _)| port);
        best.or_else(|| {
            let waiting = self.members().filter(|(_, member)| member.can_be_up());
            let waiting = waiting.filter_map(|(port, member)| Some((member.delay_expires?, port)));
            waiting.min().map(|(_, port)| port)
        })
    }
}
