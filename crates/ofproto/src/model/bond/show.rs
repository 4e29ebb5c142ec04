//! Texts of `bond/show` and `bond/list` (ovs-vswitchd(8)), in the format of OVS 3.1.

use std::fmt::{self, Display};

use datapath::bond::Traffic;
use openflow::{Action, Cookie, EthAddr, FlowModFlags, FlowStats, Instructions, Match, TableId};
use packet::{Field, Time};

use super::{Bond, BondMode};

/// `bond/show` of a bond.
pub(crate) struct Show<'a> {
    pub bond: &'a Bond,
    pub now: Time,
}

impl Display for Show<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bond, settings) = (self.bond, self.bond.settings());
        // What tools read here is whether packets are spread by connection.
        let by_connection = settings.mode == BondMode::BalanceTcp;
        writeln!(f, "---- {} ----", bond.name)?;
        writeln!(f, "bond_mode: {}", settings.mode.name())?;
        let recirculates = if by_connection { "yes" } else { "no" };
        let recirc_id = if by_connection { recirc_id(bond) } else { -1 };
        writeln!(f, "bond may use recirculation: {recirculates}, Recirc-ID : {recirc_id}")?;
        writeln!(f, "bond-hash-basis: {}", settings.hash_basis)?;
        let lb_output = by_connection && settings.lb_output;
        let enabled = if lb_output { "enabled" } else { "disabled" };
        let table = if lb_output { bond.table_id() } else { -1 };
        writeln!(f, "lb_output action: {enabled}, bond-id: {table}")?;
        if settings.mode == BondMode::BalanceSlb {
            writeln!(f, "all members active: {}", settings.all_members_active)?;
        }
        writeln!(f, "updelay: {} ms", settings.updelay.as_millis())?;
        writeln!(f, "downdelay: {} ms", settings.downdelay.as_millis())?;
        if bond.is_balanced() {
            writeln!(f, "next rebalance: {} ms", bond.next_rebalance().since(self.now).as_millis())?;
        }
        writeln!(f, "lacp_status: {}", bond.lacp().name())?;
        writeln!(f, "lacp_fallback_ab: {}", settings.lacp_fallback_ab)?;
        let primary = settings.primary.as_deref();
        let missing = if primary.is_some() && bond.primary().is_none() { " (no such member)" } else { "" };
        writeln!(f, "active-backup primary: {}{missing}", primary.unwrap_or("<none>"))?;
        let mac = bond.active_mac();
        let owner = bond.members().find(|(_, member)| mac != [0; 6] && member.mac == mac);
        let owner = owner.map_or("none", |(_, member)| &member.name);
        writeln!(f, "active member mac: {}({owner})", EthAddr(mac))?;
        self.members(f)?;
        writeln!(f)
    }
}

impl Show<'_> {
    fn members(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut members: Vec<_> = self.bond.members().collect();
        members.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        for (port, member) in members {
            writeln!(f, "\nmember {}: {}", member.name, if member.enabled { "enabled" } else { "disabled" })?;
            if self.bond.active() == Some(port) {
                writeln!(f, "  active member")?;
            }
            if let Some(at) = member.delay_expires {
                let delay = if member.enabled { "downdelay" } else { "updelay" };
                writeln!(f, "  {delay} expires in {} ms", at.since(self.now).as_millis())?;
            }
            writeln!(f, "  may_enable: {}", member.can_be_up())?;
            if self.bond.is_balanced() {
                let loads = self.bond.loads_of(port).map(|(bucket, bytes)| (bucket, bytes / 1024));
                for (bucket, kilobytes) in loads.filter(|(_, kilobytes)| *kilobytes > 0) {
                    writeln!(f, "  hash {bucket}: {kilobytes} kB load")?;
                }
            }
        }
        Ok(())
    }
}

/// What stands for the recirculation id of a bond of `balance-tcp`: the number of its table in the datapath, with which no packet goes
/// round. Packets to other members do, but each way to the bond has an id of its own: 0 stands for that.
fn recirc_id(bond: &Bond) -> i64 {
    bond.table().map_or(0, |table| table.id().into())
}

/// The first line of `bond/list`.
pub const LIST_HEADER: &str = "bond\ttype\trecircID\tmembers\n";

/// The line of a bond in `bond/list`.
pub(crate) struct Line<'a>(pub &'a Bond);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bond = self.0;
        let names: Vec<&str> = bond.members().map(|(_, member)| &*member.name).collect();
        let id = if bond.settings().mode == BondMode::BalanceTcp { recirc_id(bond) } else { 0 };
        writeln!(f, "{}\t{}\t{id}\t{}", bond.name, bond.settings().mode.name(), names.join(", "))
    }
}

/// The table that OVS has for its own flows, and the priority of those by which bonds send in it.
const OWN_TABLE: TableId = TableId(254);
const PRIORITY: u16 = 20;

impl Bond {
    /// How the connections of a balanced bond are spread, as the flows that OVS would have for that, with their priority: one for each
    /// bucket. With the number that stands for a recirculation id, if there is one.
    pub(crate) fn flows(&self, now: Time) -> Vec<(u32, FlowStats)> {
        if self.settings().mode != BondMode::BalanceTcp {
            return Vec::new();
        }
        let recirc_id = self.table().map(|table| table.id());
        let flow = |(bucket, port, sent): (u8, _, Traffic)| {
            let mut matching = Match::any();
            if let Some(recirc_id) = recirc_id {
                matching.set(Field::RecircId, recirc_id.into());
            }
            matching.set_masked(Field::DpHash, bucket.into(), u8::MAX.into());
            let shown = FlowStats {
                matching,
                cookie: Cookie::default(),
                table: OWN_TABLE,
                priority: PRIORITY,
                idle_timeout: 0,
                hard_timeout: 0,
                duration: now.since(self.began),
                idle_age: None,
                hard_age: None,
                packet_count: sent.packets,
                byte_count: sent.bytes,
                flags: FlowModFlags::default(),
                importance: 0,
                instructions: Instructions::apply(vec![Action::output(port)]),
            };
            (PRIORITY.into(), shown)
        };
        self.traffic().into_iter().map(flow).collect()
    }
}
