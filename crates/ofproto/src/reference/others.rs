//! Properties of actions that cut a copy, name queues, and leave notes, by the reference.

use datapath::Config;
use openflow::action::{Controller, Sample, SampleDirection};
use openflow::{Action, OfPort};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::tests::{Change, PORTS, Pair, RuleSpec, change, frame, groups, rule, tiny};
use crate::model::vlan::PortVlan;

fn other() -> impl Strategy<Value = Action> {
    let port = || prop_oneof![8 => (1..=PORTS + 1).prop_map(OfPort), 1 => Just(OfPort::IN_PORT)];
    // The length of most frames, and of what is left of them.
    let cut = (port(), 14u32..80).prop_map(|(port, max_len)| Action::OutputTrunc { port, max_len });
    let queue = 0u32..3;
    let sample = Sample {
        probability: 0xffff,
        collector_set: 1,
        obs_domain: 2,
        obs_point: 3,
        sampling_port: OfPort::ANY,
        direction: SampleDirection::Default,
    };
    prop_oneof![
        4 => cut,
        2 => (port(), queue.clone()).prop_map(|(port, queue)| Action::Enqueue { port, queue }),
        1 => queue.prop_map(Action::SetQueue),
        1 => select(vec![
            Action::PopQueue,
            Action::Note(vec![1, 2]),
            Action::Sample(Box::new(sample)),
            Action::Controller(Box::default()),
            Action::Controller(Box::new(Controller { max_len: 10, userdata: vec![7], ..Controller::default() })),
            Action::DebugSlow,
        ]),
    ]
}

/// A rule with some of these among its actions, or among those on a copy.
fn with_others() -> impl Strategy<Value = RuleSpec> {
    (rule(), proptest::collection::vec((other(), any::<Index>()), 1..4)).prop_map(|(mut rule, more)| {
        let apply = &mut rule.instructions.apply;
        for (action, at) in more {
            let at = at.index(apply.len() + 1);
            match apply.get_mut(at) {
                Some(Action::Clone(inner)) => inner.push(action),
                _ => apply.insert(at, action),
            }
        }
        rule
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 3))]

    /// Copies are cut and sent to queues as in the reference, and what leaves packets alone does.
    #[test]
    fn other_actions_equal_reference(
        groups in groups(),
        rules in proptest::collection::vec(with_others(), 1..10),
        frames in proptest::collection::vec((1..=PORTS, frame()), 2..8),
        rounds in proptest::collection::vec(
            (
                // Mirrors may get less than what is sent.
                proptest::option::of(change().prop_filter("no mirrors", |c| !matches!(c, Change::Mirrors(_)))),
                proptest::collection::vec(any::<Index>(), 1..8),
            ),
            1..8,
        ),
        limited in any::<bool>(),
    ) {
        let config = if limited { tiny() } else { Config::default() };
        let mut pair = Pair::new(&vec![PortVlan::default(); PORTS as usize], config);
        pair.groups(&groups);
        rules.iter().for_each(|rule| pair.add(rule));
        pair.play(&rounds, &frames)?;
        pair.check_counters()?;
    }
}
