//! Which rules have decided what a datapath flow does, from its record.

use datapath::FlowTag;

use crate::model::forwarding::Forwarding;
use crate::slowpath::drop_sites::TableDrop;
use crate::slowpath::record::FlowRecord;
use crate::switch::Switch;
use crate::table::RuleName;

/// Most rules that are named of one flow. A translation may pass thousands.
const MOST_RULES: usize = 16;

/// What is behind a datapath flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The bridges whose tables were asked.
    pub bridges: Vec<String>,
    /// The rules that its packets pass, in their order, each once; the first ones of very many. `None` stands for a hidden flow.
    pub rules: Vec<Option<RuleName>>,
    /// How many rules are not named.
    pub more_rules: usize,
    /// Where the tables drop its packets, if they do.
    pub dropped: Option<TableDrop>,
}

impl Switch {
    /// What is behind a datapath flow, by its tag. `None` where no translation has made it.
    pub fn decision(&self, tag: &FlowTag) -> Option<Decision> {
        Some(Decision::of(tag.downcast_ref::<FlowRecord>()?, &self.forwarding.read()))
    }
}

impl Decision {
    /// What is behind a translation with this record.
    pub(crate) fn of(record: &FlowRecord, forwarding: &Forwarding) -> Decision {
        let mut decision =
            Decision { dropped: record.drop_site.as_ref().map(|site| site.describe()), ..Decision::default() };
        for name in record.rules.iter().map(|stats| stats.rule()) {
            if decision.rules.contains(&name) {
                continue;
            }
            match decision.rules.len() {
                MOST_RULES => decision.more_rules += 1,
                _ => decision.rules.push(name),
            }
        }
        let bridges = record.deps.iter().filter_map(|deps| forwarding.bridges.get(&deps.bridge));
        decision.bridges = bridges.map(|bridge| bridge.config.name.clone()).collect();
        decision
    }
}

#[cfg(test)]
mod tests {
    use openflow::{Action, Cookie, FlowMod, FlowModCommand, Instructions, Match, OfPort, TableId};
    use packet::Field;
    use packet::wire::build;

    use super::*;
    use crate::reference::tests::Bed;

    fn decisions(bed: &Bed) -> Vec<Decision> {
        bed.datapath.flows().filter_map(|flow| bed.switch.decision(&flow.tag)).collect()
    }

    #[test]
    fn a_flow_leads_to_the_rules_that_made_it() {
        let bed = Bed::new(2);
        let resubmit = Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(3), with_ct: false };
        bed.add_flow(0, 9, Match::any(), vec![resubmit]);
        bed.add_flow(3, 7, Match::any(), vec![Action::output(OfPort(2))]);
        let header = build::Ipv4 { proto: 17, ..build::Ipv4::default() };
        let frame = build::ethernet([2; 6], [4; 6], &[], 0x0800, &header.packet(build::udp(1, 2, b"")));
        drop(bed.receive(OfPort(1), &frame));
        let name = |table, priority, cookie| Some(RuleName { table: TableId(table), priority, cookie: Cookie(cookie) });
        let [decision] = &decisions(&bed)[..] else { panic!("one flow") };
        assert_eq!((&decision.rules[..], decision.more_rules), (&[name(0, 9, 0), name(3, 7, 0)][..], 0));
        assert_eq!((decision.bridges.len(), &decision.dropped), (1, &None));
        // A rule that is modified has the same counters, and maybe another cookie.
        let mut matching = Match::any();
        matching.set(Field::DlType, 0x0800);
        bed.add_flow(3, 8, matching, vec![]);
        let again = Action::Resubmit { in_port: OfPort::IN_PORT, table: TableId(3), with_ct: false };
        let mut change = FlowMod::new(FlowModCommand::Modify, Match::any(), Instructions::apply(vec![again]));
        (change.table, change.new_cookie) = (Some(TableId(0)), Some(Cookie(0x2a)));
        bed.bridge.flow_mod(&change).unwrap();
        bed.switch.purge();
        drop(bed.receive(OfPort(1), &frame));
        let [decision] = &decisions(&bed)[..] else { panic!("one flow") };
        assert_eq!(decision.rules, [name(0, 9, 0x2a), name(3, 8, 0)]);
        let dropped = decision.dropped.as_ref().unwrap();
        assert_eq!((dropped.table, dropped.rule.as_ref().map(|rule| rule.priority)), (3, Some(8)));
    }
}
