//! The flow-mods that make the flows of a bridge those of a list, as `ovs-ofctl replace-flows` finds them: a flow that is not on the
//! list is deleted, and one that is not there, or differs in what it does, in its cookie, timeouts, importance or flags, is added.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use openflow::{FlowMod, FlowModCommand, FlowStatsRequest, GroupId, Instructions, Match, OfPort, TableId};

use tunnel::fields::FieldTable;

use super::{MOST_CHANGES, Problem};
use crate::bridge::Bridge;
use crate::bridge::flows::added_rule;
use crate::model::tlv;
use crate::table::{Classifier, Rule, RuleInstructions};

/// Most rules that are compared for one piece.
const PIECE: usize = 1024;

/// The changes after which a bridge has these flows, each of which is one to be added, and no others.
///
/// # Errors
/// There are too many changes, or a flow has a field for which the bridge has no place.
pub fn replacing(bridge: &Bridge, wanted: &[FlowMod]) -> Result<Vec<FlowMod>, Problem> {
    let tlv = &fields(bridge);
    let (rules, mut gone) = (index(bridge, wanted, tlv)?, Vec::new());
    let mut kept = HashSet::new();
    let mut walk = bridge.walk_rules(FlowStatsRequest {
        matching: Match::any(),
        table: TableId::ALL,
        out_port: OfPort::ANY,
        out_group: GroupId::ANY,
        cookie: Default::default(),
    });
    while let Some((piece, _)) = walk.next_rules(PIECE) {
        for rule in piece {
            let found = rules.get(&rule.table).and_then(|rules| rules.find(&rule.pattern, rule.priority));
            match found {
                Some(wanted) if is_same(wanted, &rule) => {
                    kept.insert(Arc::as_ptr(wanted));
                }
                Some(_) => {}
                None => gone.push(rule),
            }
        }
        if gone.len() > MOST_CHANGES {
            return Err(Problem::TooMany(gone.len()));
        }
    }
    let new = || rules.values().flat_map(Classifier::iter).filter(|rule| !kept.contains(&Arc::as_ptr(rule)));
    // Messages take a hundred times as much memory as rules that are there anyway.
    let count = gone.len() + new().count();
    if count > MOST_CHANGES {
        return Err(Problem::TooMany(count));
    }
    let deletes = gone.iter().map(|rule| {
        let mut change = FlowMod::new(FlowModCommand::DeleteStrict, rule.matching(tlv), Instructions::default());
        (change.table, change.priority) = (Some(rule.table), rule.priority);
        change
    });
    let adds = new().map(|rule| {
        let list = Instructions::clone(&rule.instructions);
        let mut change = FlowMod::new(FlowModCommand::Add, rule.matching(tlv), list);
        (change.table, change.priority, change.new_cookie) = (Some(rule.table), rule.priority, Some(rule.cookie));
        (change.idle_timeout, change.hard_timeout) = (rule.idle_timeout, rule.hard_timeout);
        (change.importance, change.flags) = (rule.importance, rule.flags);
        change
    });
    Ok(deletes.chain(adds).collect())
}

/// The wanted rules by table. Of two with one match and priority, the last one counts.
fn index(
    bridge: &Bridge,
    wanted: &[FlowMod],
    tlv: &FieldTable,
) -> Result<BTreeMap<TableId, Classifier<Rule>>, Problem> {
    let mut rules: BTreeMap<TableId, Classifier<Rule>> = BTreeMap::new();
    for (at, change) in wanted.iter().enumerate() {
        let change = tlv::placed_flow_mod(change, tlv).map_err(|error| Problem::Refused { at, error })?;
        let table = change.table.unwrap_or(TableId(0));
        let rules = rules.entry(table).or_default();
        let pattern = rules.pattern(&change.matching.key, &change.matching.mask);
        let instructions = Arc::new(RuleInstructions::from(change.instructions.clone()));
        rules.insert(Arc::new(added_rule(&change, table, (pattern, instructions), bridge.now())));
    }
    Ok(rules)
}

/// What the tun_metadata fields of a bridge stand for.
fn fields(bridge: &Bridge) -> Arc<FieldTable> {
    let forwarding = bridge.switch.forwarding.read();
    forwarding.bridges.get(&bridge.id()).map(|state| state.tlv.clone()).unwrap_or_default()
}

fn is_same(a: &Rule, b: &Rule) -> bool {
    let what = |rule: &Rule| (rule.cookie, rule.idle_timeout, rule.hard_timeout, rule.importance, rule.flags);
    what(a) == what(b) && *a.instructions == *b.instructions
}
