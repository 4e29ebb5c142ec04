//! Which ports are members of which groups.
//!
//! The table is bounded: so many groups, and [`MEMBERS_PER_GROUP`] times as many memberships. Where it is full, room is made by the
//! port that has most memberships, which loses those that it has renewed least recently. A port that joins without end thus
//! loses its own, and not those of others.
//!
//! Every operation on one membership costs the logarithm of the size of the table; those that make room are paid for by the
//! ones that took it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use packet::Time;

/// A port, by the number that its bridge has for it.
pub type Port = u32;

/// How many memberships there may be for each group that there may be.
const MEMBERS_PER_GROUP: usize = 16;

/// A group in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The VLAN; 0 for none.
    pub vlan: u16,
    /// The group's address.
    pub address: IpAddr,
}

/// A port's membership of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Membership {
    /// When it was renewed, and the place in the order of renewals; none where it is static.
    renewed: Option<(Time, u64)>,
}

/// A membership as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The group.
    pub group: Group,
    /// The port.
    pub port: Port,
    /// When it was renewed; none where it is static.
    pub renewed: Option<Time>,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Table {
    groups: HashMap<Group, BTreeMap<Port, Membership>>,
    /// Memberships that expire, in the order in which they were renewed.
    order: BTreeMap<u64, (Group, Port)>,
    /// The same by port, and how many each port has.
    by_port: HashMap<Port, BTreeSet<u64>>,
    by_count: BTreeSet<(usize, Port)>,
    /// Static memberships.
    fixed: BTreeSet<(Port, Group)>,
    renewals: u64,
    /// Groups whose members have changed since [`Table::take_changes`].
    changes: Vec<Group>,
    /// How many groups there have been, memberships that have expired, and those that made room for others.
    pub learned: u64,
    pub expired: u64,
    pub evicted: u64,
}

impl Table {
    /// The ports that are members of a group; none where it has no members.
    pub fn members(&self, group: &Group) -> Option<impl Iterator<Item = Port>> {
        Some(self.groups.get(group)?.keys().copied())
    }

    /// The groups whose members have changed since the last call.
    pub fn take_changes(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.changes)
    }

    /// How many groups have members.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Makes a port a member, or renews its membership. Whether it is new.
    pub fn join(&mut self, now: Time, group: Group, port: Port, limit: usize) -> bool {
        match self.groups.get(&group).and_then(|members| members.get(&port)) {
            Some(Membership { renewed: None }) => return false,
            Some(_) => {
                self.unlink(&group, port);
                self.insert(now, group, port);
                return false;
            }
            None => {}
        }
        while self.is_full(&group, limit) {
            if !self.evict() {
                return false;
            }
        }
        self.learned += u64::from(!self.groups.contains_key(&group));
        self.insert(now, group, port);
        self.changes.push(group);
        true
    }

    /// Has no more groups than these, but for static ones.
    pub fn shrink(&mut self, limit: usize) {
        while (self.groups.len() > limit || self.order.len() > limit * MEMBERS_PER_GROUP) && self.evict() {}
    }

    /// Makes a port a member until it is removed by [`Table::remove`]. Whether it was none, or one that expires.
    pub fn join_for_good(&mut self, group: Group, port: Port) -> bool {
        if self.fixed.contains(&(port, group)) {
            return false;
        }
        let is_new = self.unlink(&group, port).is_none();
        self.fixed.insert((port, group));
        self.groups.entry(group).or_default().insert(port, Membership { renewed: None });
        if is_new {
            self.changes.push(group);
        }
        true
    }

    /// Ends a membership that is not static; whether there was one.
    pub fn leave(&mut self, group: &Group, port: Port) -> bool {
        let member = self.groups.get(group).and_then(|members| members.get(&port));
        member.is_some_and(|member| member.renewed.is_some()) && self.remove(group, port)
    }

    /// Ends a membership; whether there was one.
    pub fn remove(&mut self, group: &Group, port: Port) -> bool {
        let found = self.unlink(group, port).is_some();
        if found {
            self.changes.push(*group);
        }
        found
    }

    /// Ends at most this many of those that are older than this. How many it has ended.
    pub fn expire(&mut self, now: Time, ageing_time: Duration, most: usize) -> usize {
        let mut expired = 0;
        while expired < most
            && let Some((at, group, port)) = self.oldest()
            && at + ageing_time <= now
        {
            self.remove(&group, port);
            expired += 1;
        }
        self.expired += expired as u64;
        expired
    }

    /// When the next one expires.
    pub fn next_expiry(&self, ageing_time: Duration) -> Option<Time> {
        self.oldest().map(|(at, ..)| at + ageing_time)
    }

    /// Ends all memberships of a port in some VLANs, static ones too. The work is linear in how many the port has.
    pub fn remove_port(&mut self, port: Port, of: impl Fn(u16) -> bool) {
        let renewals = self.by_port.get(&port).into_iter().flatten();
        let learnt = renewals.filter_map(|renewal| self.order.get(renewal)).map(|(group, _)| *group);
        let least = Group { vlan: 0, address: IpAddr::from([0; 4]) };
        let fixed = self.fixed.range((port, least)..).take_while(|(of, _)| *of == port).map(|(_, group)| *group);
        let groups: Vec<Group> = learnt.chain(fixed).filter(|group| of(group.vlan)).collect();
        for group in &groups {
            self.remove(group, port);
        }
    }

    /// Ends all memberships that are not static. The work is linear in how many there are: nothing is taken out of an order one by one.
    pub fn clear(&mut self) {
        self.order.clear();
        self.by_port.clear();
        self.by_count.clear();
        let changes = &mut self.changes;
        self.groups.retain(|group, members| {
            let before = members.len();
            members.retain(|_, member| member.renewed.is_none());
            if members.len() < before {
                changes.push(*group);
            }
            !members.is_empty()
        });
    }

    /// All memberships: static ones, then by when their group was renewed last, and in it by when they were.
    ///
    /// Whoever calls has locks for which packets wait, so each group is looked up once, and not for each comparison.
    pub fn list(&self) -> Vec<Member> {
        let fixed = self.fixed.iter().map(|(port, group)| Member { group: *group, port: *port, renewed: None });
        let mut all: Vec<Member> = fixed.collect();
        all.sort_by_key(|member| (member.group, member.port));
        let mut learnt = Vec::with_capacity(self.order.len());
        for (group, members) in &self.groups {
            let renewals = || members.iter().filter_map(|(port, member)| Some((*port, member.renewed?)));
            let latest = renewals().map(|(_, (_, renewal))| renewal).max();
            learnt.extend(
                renewals().map(|(port, (at, renewal))| {
                    ((latest, renewal), Member { group: *group, port, renewed: Some(at) })
                }),
            );
        }
        learnt.sort_unstable_by_key(|(order, _)| *order);
        all.extend(learnt.into_iter().map(|(_, member)| member));
        all
    }

    /// Has the port with most memberships lose the one that it has renewed least recently. Static memberships give no room.
    fn evict(&mut self) -> bool {
        let greatest = self.by_count.last().and_then(|(_, port)| self.by_port.get(port));
        let oldest = greatest.and_then(BTreeSet::first).and_then(|renewal| self.order.get(renewal)).copied();
        let Some((group, port)) = oldest else { return false };
        self.evicted += 1;
        self.remove(&group, port)
    }

    /// Takes a membership out.
    fn unlink(&mut self, group: &Group, port: Port) -> Option<Membership> {
        let members = self.groups.get_mut(group)?;
        let member = members.remove(&port)?;
        if members.is_empty() {
            self.groups.remove(group);
        }
        match member.renewed {
            Some((_, renewal)) => {
                self.order.remove(&renewal);
                self.count(port, |renewals| renewals.remove(&renewal));
            }
            None => drop(self.fixed.remove(&(port, *group))),
        }
        Some(member)
    }

    /// Whether there is no room for one more member of this group.
    fn is_full(&self, group: &Group, limit: usize) -> bool {
        let new_group = !self.groups.contains_key(group);
        (new_group && self.groups.len() >= limit) || self.order.len() >= limit * MEMBERS_PER_GROUP
    }

    fn oldest(&self) -> Option<(Time, Group, Port)> {
        let (_, (group, port)) = self.order.first_key_value()?;
        let (renewed, _) = self.groups.get(group)?.get(port)?.renewed?;
        Some((renewed, *group, *port))
    }

    fn insert(&mut self, now: Time, group: Group, port: Port) {
        self.renewals += 1;
        let renewal = self.renewals;
        self.groups.entry(group).or_default().insert(port, Membership { renewed: Some((now, renewal)) });
        self.order.insert(renewal, (group, port));
        self.count(port, |renewals| renewals.insert(renewal));
    }

    /// Changes what a port has, and its place among those that have most.
    fn count(&mut self, port: Port, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let renewals = self.by_port.entry(port).or_default();
        let before = renewals.len();
        change(renewals);
        let after = renewals.len();
        self.by_count.remove(&(before, port));
        if after == 0 {
            self.by_port.remove(&port);
        } else {
            self.by_count.insert((after, port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(number: u32) -> Group {
        Group { vlan: 0, address: IpAddr::from((0xe100_0000 + number).to_be_bytes()) }
    }

    /// What one has said of another agrees.
    fn check(table: &Table) {
        let mut by_port: BTreeMap<Port, usize> = BTreeMap::new();
        for (renewal, (group, port)) in &table.order {
            assert_eq!(table.groups[group][port].renewed.unwrap().1, *renewal);
            assert!(table.by_port[port].contains(renewal));
            *by_port.entry(*port).or_default() += 1;
        }
        let counts: BTreeSet<(usize, Port)> = by_port.iter().map(|(port, count)| (*count, *port)).collect();
        assert_eq!(table.by_count, counts);
        assert_eq!(table.by_port.len(), counts.len());
        let expiring = table.groups.values().flat_map(BTreeMap::values).filter(|member| member.renewed.is_some());
        assert_eq!(expiring.count(), table.order.len());
        assert!(table.groups.values().all(|members| !members.is_empty()));
        let members =
            table.groups.iter().flat_map(|(group, members)| members.iter().map(move |member| (group, member)));
        let fixed: BTreeSet<(Port, Group)> =
            members.filter(|(_, (_, m))| m.renewed.is_none()).map(|(group, (port, _))| (*port, *group)).collect();
        assert_eq!(table.fixed, fixed);
    }

    /// Who is a member of what.
    fn members(table: &Table) -> BTreeMap<Group, BTreeSet<Port>> {
        table.groups.iter().map(|(group, members)| (*group, members.keys().copied().collect())).collect()
    }

    proptest! {
        #[test]
        fn sums_and_orders_agree(steps in prop::collection::vec((0u8..8, 0u32..30, 0u32..5), 0..300)) {
            let mut table = Table::default();
            for (time, (step, number, port)) in steps.into_iter().enumerate() {
                let now = Time(time as u64);
                let before = members(&table);
                match step {
                    0..=3 => { table.join(now, group(number), port, 10); }
                    4 => { table.leave(&group(number), port); }
                    5 if number < 3 => { table.join_for_good(group(number), port); }
                    6 if number == 0 => { table.remove_port(port, |_| true); }
                    7 => { table.expire(now, Duration::from_nanos(50), 3); }
                    _ => {}
                }
                check(&table);
                let (after, changes) = (members(&table), table.take_changes());
                for group in (0..30).map(group) {
                    let has_changed = before.get(&group) != after.get(&group);
                    prop_assert!(!has_changed || changes.contains(&group), "a change of {group:?} is not told");
                }
                // Three static groups go beyond the limit at most.
                assert!(table.groups.len() <= 13 && table.order.len() <= 160);
            }
            let in_order = |table: &Table| table.list().iter().filter(|m| m.renewed.is_some()).map(|m| (m.group, m.port)).collect::<Vec<_>>();
            let latest = |group: &Group| table.groups[group].values().filter_map(|m| m.renewed).map(|(_, renewal)| renewal).max();
            let mut expected: Vec<_> = table.order.values().copied().collect();
            expected.sort_by_key(|(group, _)| latest(group));
            prop_assert_eq!(in_order(&table), expected);
            let before = members(&table);
            table.clear();
            check(&table);
            prop_assert_eq!(table.order.len() + table.by_port.len(), 0);
            let (after, changes) = (members(&table), table.take_changes());
            prop_assert!(before.iter().all(|(group, ports)| after.get(group) == Some(ports) || changes.contains(group)));
        }
    }

    #[test]
    fn a_port_that_joins_without_end_costs_only_itself() {
        let mut table = Table::default();
        for port in 1..=4 {
            for number in 0..20 {
                table.join(Time(0), group(1000 * port + number), port, 100);
            }
        }
        for number in 0..1_000_000 {
            table.join(Time(1), group(1_000_000 + number), 9, 100);
        }
        for port in 1..=4 {
            assert_eq!(table.by_port[&port].len(), 20);
        }
        assert_eq!((table.by_port[&9].len(), table.groups.len()), (20, 100));
        check(&table);
    }

    #[test]
    fn static_members_stay() {
        let mut table = Table::default();
        assert!(table.join_for_good(group(1), 1));
        assert!(!table.join_for_good(group(1), 1) && !table.join(Time(0), group(1), 1, 10));
        table.clear();
        assert!(!table.leave(&group(1), 1) && table.expire(Time(u64::MAX), Duration::ZERO, 1) == 0);
        assert!(table.join(Time(0), group(1), 2, 10));
        table.clear();
        assert_eq!(table.list(), [Member { group: group(1), port: 1, renewed: None }]);
        table.remove_port(1, |vlan| vlan == 0);
        assert!(table.list().is_empty());
    }

    #[test]
    fn a_smaller_table_loses_groups() {
        let mut table = Table::default();
        assert!((0..20).all(|number| table.join(Time(0), group(number), number % 2, 20)));
        table.take_changes();
        table.shrink(12);
        assert_eq!((table.len(), table.take_changes().len(), table.evicted), (12, 8, 8));
        check(&table);
    }
}
