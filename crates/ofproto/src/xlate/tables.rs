//! Tables: looked up, and what is found executed.

use datapath::DropReason;
use openflow::{Cookie, FragHandling, OfPort, PacketInReason, PortConfig, TableId, TableMiss};
use packet::Mask;
use packet::flow::block::Common;
use packet::flow::{BlockId, frag};

use super::dropped::LastLookup;
use super::trace::Event;
use super::{Ctx, packet_type, steps};
use crate::model::config::N_TABLES;
use crate::model::hidden::shown_priority;
use crate::slowpath::record::Parts;
use crate::table::Rule;

/// How a table lookup ended.
enum Lookup<'a> {
    Found { rule: &'a Rule, hidden: bool },
    Missed { to_controller: bool },
    FragmentDropped,
}

impl<'a> Ctx<'a, '_> {
    /// Looks up a table and executes what it says.
    pub(super) fn table_action(&mut self, in_port: OfPort, table: u8, may_packet_in: bool, with_ct: bool) {
        if self.was_mpls {
            self.freeze();
            return;
        }
        if !self.check_resources() {
            return;
        }
        let old = (self.table, self.rule, self.cookie, self.table_miss);
        // What a flow does that a bucket sends the packet to is not the bucket's doing.
        let in_group = std::mem::take(&mut self.in_group);
        let deepens = u32::from(table <= old.0 && self.usage.resubmits > 0);
        self.table = table;
        let look_up = |ctx: &mut Self| ctx.lookup(in_port, may_packet_in);
        let found = if with_ct { self.with_original_tuple(look_up) } else { Some(look_up(self)) };
        if let Some(found) = found {
            self.usage.resubmits += 1;
            self.usage.depth += deepens;
            self.enter(found);
            self.usage.depth -= deepens;
        }
        (self.table, self.rule, self.cookie, self.table_miss) = old;
        self.in_group = in_group;
    }

    fn enter(&mut self, found: Lookup<'a>) {
        let table = TableId(self.table);
        let rule = if let Lookup::Found { rule, hidden } = found { Some((rule, hidden)) } else { None };
        self.last_lookup = LastLookup { bridge: self.bridge, table: self.table, rule };
        match found {
            Lookup::Found { rule, hidden } => {
                let tlv = &self.bridge.tlv;
                let priority = if hidden { shown_priority(rule) } else { rule.priority.into() };
                let next = self.next_rule.take();
                self.event(|| Event::Rule { table, rule, priority, tlv, next });
                (self.rule, self.cookie, self.table_miss) = (Some(rule), Some(rule.cookie), rule.is_table_miss());
                self.first_cookie.get_or_insert(rule.cookie);
                self.record.rules.push(rule.stats.clone());
                if rule.instructions.is_empty() {
                    self.event(|| Event::Drop);
                }
                self.steps(steps::of_instructions(&rule.instructions));
                self.leave();
            }
            Lookup::Missed { to_controller } => {
                self.event(|| Event::Miss { table, to_controller });
                if to_controller {
                    self.rule = None;
                    self.cookie = Some(Cookie(0));
                    self.punt(PacketInReason::NoMatch, 0, None, &[], true);
                }
                self.leave();
            }
            Lookup::FragmentDropped => {
                self.not_sent(DropReason::Fragment);
                self.event(|| Event::FragmentDropped { table });
            }
        }
    }

    /// Looks up the present table as if the packet had come in on `in_port`, and the next ones where it is configured
    /// to continue there (OFPTC_TABLE_MISS_*).
    fn lookup(&mut self, in_port: OfPort, may_packet_in: bool) -> Lookup<'a> {
        let bridge = self.bridge;
        loop {
            let found = self.lookup_in_table(in_port);
            let Lookup::Missed { .. } = found else { return found };
            let port = self.port(self.in_port());
            let silent = port.is_some_and(|port| port.config.contains(PortConfig::NO_PACKET_IN));
            // A resubmit that misses leaves it at that, whatever the table is configured to do.
            let to_controller = match bridge.tables[usize::from(self.table)].state.miss {
                _ if !may_packet_in => false,
                TableMiss::Default => bridge.controllers.want_misses && !silent,
                TableMiss::Continue if self.table + 1 < N_TABLES => {
                    self.table += 1;
                    continue;
                }
                // After the last table there is nothing to continue with.
                TableMiss::Controller | TableMiss::Continue => !silent,
                TableMiss::Drop => false,
            };
            return Lookup::Missed { to_controller };
        }
    }

    /// Looks up in the present table only.
    fn lookup_in_table(&mut self, in_port: OfPort) -> Lookup<'a> {
        if self.copies.have_addresses() {
            self.keep_copies();
        }
        let bridge = self.bridge;
        let table = &bridge.tables[usize::from(self.table)];
        let common = self.flow.common();
        let (real_port, ports, dl_type) = (common.in_port, (common.tp_src, common.tp_dst), common.dl_type);
        if common.nw_frag & frag::ANY != 0 && self.bridge.frag != FragHandling::NxMatch {
            if self.bridge.frag == FragHandling::Drop {
                self.record.tables.push((table.counters.clone(), true));
                return Lookup::FragmentDropped;
            }
            let common = self.flow.common_mut();
            (common.tp_src, common.tp_dst) = (0.into(), 0.into());
        }
        let common = self.flow.common_mut();
        common.in_port = in_port.0.into();
        if common.packet_type.get() != packet_type::ETHERNET {
            // What matches the type of an Ethernet frame matches no packet without Ethernet: that has a packet type instead.
            common.dl_type = 0.into();
        }
        let place = (bridge.id, self.table);
        let hidden_rules = bridge.hidden.rules().filter(|_| self.table == 0);
        let mut effort = 0;
        let mut find = |place, rules| self.look_up.find(place, rules, &self.flow, (&mut self.wc, &mut effort));
        let hidden = hidden_rules.and_then(|rules| find(None, rules));
        let rule = hidden.or_else(|| find(Some(place), &table.rules));
        if self.sink.as_ref().is_some_and(|sink| sink.wants_neighbours()) {
            self.next_rule = rule.and_then(|rule| self.rule_without(rule, hidden.is_some()));
        }
        if effort > 0 {
            self.charge_conjunctions(effort);
        }
        let overwritten = self.overwritten();
        if self.copies.are_looked_at(&self.wc) {
            self.keep_copies();
        }
        let common = self.flow.common_mut();
        (common.in_port, common.dl_type) = (real_port, dl_type);
        (common.tp_src, common.tp_dst) = ports;
        self.record.depends_on_table(bridge.id, self.table, overwritten);
        self.record.tables.push((table.counters.clone(), rule.is_some()));
        match rule {
            Some(rule) => Lookup::Found { rule, hidden: hidden.is_some() },
            None => Lookup::Missed { to_controller: false },
        }
    }

    /// What the look-up in the present table would find if a rule that it has found were not there.
    fn rule_without(&self, rule: &'a Rule, hidden: bool) -> Option<&'a Rule> {
        let (rules, wc) = (&self.bridge.tables[usize::from(self.table)].rules, &mut Mask::wildcard());
        let next = match hidden {
            true => self.bridge.hidden.lookup_without(&self.flow, rule).or_else(|| rules.lookup(&self.flow, wc)),
            false => self.look_up.find_without((self.bridge.id, self.table), rules, &self.flow, rule),
        };
        next.map(|rule| &**rule)
    }

    /// The parts of the key that differ from the packet's, as it came in.
    fn overwritten(&self) -> Parts {
        let mut parts = Parts::of_difference(&self.flow, self.packet);
        if self.bridge.id != self.entered {
            // The same port number means another port.
            parts.insert(BlockId::Common, std::mem::offset_of!(Common, in_port));
        }
        parts
    }
}
