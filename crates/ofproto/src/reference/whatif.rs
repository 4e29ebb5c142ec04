//! What is said of changes before they are made, and of packets before they are sent, beside what the reference does.

use std::collections::HashMap;

use datapath::{Action as DpAction, Config, PortNo};
use openflow::{FlowMod, FlowModCommand, OfPort, TableId};
use packet::flow::text::NoNames;
use packet::{Clock, Key};
use proptest::prelude::*;

use super::tests::{PORTS, Pair, RuleSpec, frame, rule, vlan};
use super::{RefRule, Reference, Sent};
use crate::explain::{Request, explain};
use crate::model::vlan::PortVlan;
use crate::whatif::{FlowVerdict, TablesVersion, WhatIf};

/// A reference with these rules, which has learnt these addresses.
fn reference<'a>(
    pair: &Pair,
    rules: impl Iterator<Item = &'a FlowMod>,
    macs: &HashMap<(u16, [u8; 6]), OfPort>,
) -> Reference {
    let rule = |change: &FlowMod| {
        let (table, now) = (change.table.unwrap_or(TableId(0)).0, pair.bed.clock.now());
        RefRule::new(table, change.priority, change.matching.clone(), change.instructions.clone(), now)
    };
    let (rules, macs, ports) = (rules.map(rule).collect(), macs.clone(), pair.reference.ports.clone());
    Reference { rules, macs, ports, ..Reference::default() }
}

fn sorted(mut sent: Sent) -> Sent {
    sent.sort();
    sent
}

/// The flow-mod for a rule. Priorities differ, so that there is one right answer.
fn added((n, spec): (u16, &RuleSpec)) -> FlowMod {
    let mut change = FlowMod::new(FlowModCommand::Add, spec.matching.clone(), spec.instructions.clone());
    (change.table, change.priority) = (Some(TableId(spec.table)), spec.priority * 1000 + n);
    change
}

/// A pair of switches with those of the rules that can be there.
fn pair(vlans: &[PortVlan], rules: &[RuleSpec]) -> (Pair, Vec<FlowMod>) {
    let pair = Pair::new(vlans, Config::default());
    let changes = (1..).zip(rules).map(added);
    let taken: Vec<_> = changes.filter(|change| pair.bed.bridge.flow_mod(change).is_ok()).collect();
    (pair, taken)
}

/// The key by which the datapath looks up a frame that comes in at a port.
fn key(pair: &Pair, port: u32, frame: &[u8]) -> Key {
    let mut key = Key::new();
    packet::flow::extract(frame, &mut key, Default::default());
    key.common_mut().in_port = port.into();
    pair.bed.switch.datapath_key("br0", &key).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    /// A flow of which it is said that changes leave it as it is has no packet that the reference would treat otherwise; and the packets that are
    /// named are treated otherwise.
    #[test]
    fn changed_flows_are_those_that_the_reference_treats_otherwise(
        vlans in proptest::collection::vec(vlan(), PORTS as usize),
        rules in proptest::collection::vec(rule(), 1..12),
        more in proptest::collection::vec(rule(), 1..4),
        gone in any::<proptest::sample::Index>(),
        frames in proptest::collection::vec((1..=PORTS, frame()), 2..10),
    ) {
        let (pair, taken) = pair(&vlans, &rules);
        for (port, frame) in frames.iter().chain(&frames) {
            drop(pair.bed.receive(OfPort(*port), frame));
            pair.bed.switch.run(pair.bed.clock.now());
        }
        let mut changes = Vec::new();
        let mut after = taken.clone();
        if !taken.is_empty() {
            let removed = after.swap_remove(gone.index(taken.len()));
            changes.push(FlowMod { command: FlowModCommand::DeleteStrict, ..removed });
        }
        let new = (500..).zip(&more).map(added);
        let now = TablesVersion::now(&pair.bed.bridge).unwrap();
        for change in new {
            if WhatIf::new(&pair.bed.bridge, std::slice::from_ref(&change), now).is_ok() {
                after.push(change.clone());
                changes.push(change);
            }
        }
        let flows: Vec<_> = pair.bed.datapath.flows().collect();
        let macs = pair.bed.bridge.macs().into_iter().map(|entry| ((entry.key.vlan, entry.key.mac), entry.port)).collect();
        let what_if = WhatIf::new(&pair.bed.bridge, &changes, now).unwrap();
        // What happens when packets come back is another flow's.
        for flow in flows.iter().filter(|flow| !recirculates(&flow.actions)) {
            let verdict = what_if.compare(flow);
            for (port, frame) in &frames {
                let key = key(&pair, *port, frame);
                if !key.matches(&flow.key, &flow.mask) {
                    continue;
                }
                let sent = |rules: &[FlowMod]| {
                    let mut reference = reference(&pair, rules.iter(), &macs);
                    let sent = sorted(reference.receive(OfPort(*port), frame));
                    (sent, reference.asks_what_was_taught)
                };
                let ((before, asked_before), (after, asked_after)) = (sent(&taken), sent(&after));
                // Who compares learns nothing; NORMAL would learn where such a packet comes from, and not send it there.
                if asked_before || asked_after {
                    continue;
                }
                match &verdict {
                    FlowVerdict::Unchanged => prop_assert!(before == after, "{before:?} becomes {after:?}"),
                    FlowVerdict::Changed(difference) if key.matches(&difference.key, &difference.mask) => {
                        let sides = [&difference.before.actions, &difference.after.actions];
                        let is_last = !sides.iter().any(|actions| recirculates(actions));
                        // A rewrite may write what is there anyway.
                        let rest = sides.map(|actions| actions.iter().filter(|action| !matches!(action, DpAction::Set(_))));
                        let [one, other] = rest;
                        prop_assert!(!is_last || before != after || one.eq(other), "{sides:?}");
                    }
                    _ => {}
                }
            }
        }
        prop_assert!(what_if.is_current());
    }

    /// The outcome that is explained is what the datapath does with the packet.
    #[test]
    fn what_is_explained_is_what_happens(
        vlans in proptest::collection::vec(vlan(), PORTS as usize),
        rules in proptest::collection::vec(rule(), 1..12),
        frames in proptest::collection::vec((1..=PORTS, frame()), 1..8),
    ) {
        let (pair, _) = pair(&vlans, &rules);
        for (port, frame) in &frames {
            // Who explains learns nothing: so the addresses are to be known.
            drop(pair.bed.receive(OfPort(*port), frame));
            pair.bed.switch.run(pair.bed.clock.now());
            let mut key = Key::new();
            packet::flow::extract(frame, &mut key, Default::default());
            key.common_mut().in_port = (*port).into();
            let request = Request { bridge: "br0", key: &key, ct_next: &[], ports: &NoNames, shadow: None };
            let passes = explain(&pair.bed.switch, &request).unwrap();
            // What is recirculated without connection tracking is followed by the datapath alone.
            if passes.iter().any(|pass| recirculates(&pass.actions)) {
                continue;
            }
            let numbers: HashMap<PortNo, OfPort> =
                pair.bed.bridge.ports().into_iter().filter_map(|port| Some((port.dp_port?, port.port))).collect();
            let mut expected = Vec::new();
            outputs(&passes[0].actions, &mut expected);
            let mut expected: Vec<_> = expected.iter().map(|port| numbers[port]).collect();
            let mut sent: Vec<_> = pair.bed.receive(OfPort(*port), frame).into_iter().map(|(port, _)| port).collect();
            expected.sort();
            sent.sort();
            prop_assert_eq!(&expected, &sent);
            let is_dropped = passes[0].dropped.is_some();
            prop_assert!(sent.is_empty() || !is_dropped);
            pair.bed.switch.run(pair.bed.clock.now());
        }
    }
}

/// Whether packets come back, or something is done that is not seen at a port.
fn recirculates(actions: &[DpAction]) -> bool {
    actions.iter().any(|action| matches!(action, DpAction::Recirc(_) | DpAction::Clone(_) | DpAction::Punt(_)))
}

/// Where actions send copies.
fn outputs(actions: &[DpAction], found: &mut Vec<PortNo>) {
    for action in actions {
        match action {
            DpAction::Output(port) => found.push(*port),
            DpAction::Clone(inner) => outputs(inner, found),
            _ => {}
        }
    }
}
