//! A disagreement between caches and tables, in words.

use std::fmt::Write as _;

use datapath::FlowDump;
use datapath::text::{Context, format_actions, format_key};
use datapath::verify::{Decided, VerifySample};
use packet::{Key, Mask};

use crate::model::forwarding::Forwarding;
use crate::slowpath::decision::Decision;
use crate::slowpath::record::FlowRecord;
use crate::verify::report::{Disagreement, Wrong};
use crate::xlate::Translation;

/// Most bytes that are kept of the text of a list of actions.
const MOST_TEXT: usize = 4096;

/// Describes a disagreement about a packet and its flow.
pub(super) fn describe(
    forwarding: &Forwarding,
    wrong: Wrong,
    sample: &VerifySample,
    flow: &FlowDump,
    expected: Option<&Translation>,
) -> Disagreement {
    let style = Context { verbose: true, ..Context::default() };
    let key = |key: &Key, mask: &Mask| {
        let mut text = String::new();
        format_key(&mut text, key, mask, &style);
        text
    };
    let actions = |actions: &[datapath::Action]| {
        let mut text = String::new();
        format_actions(&mut text, actions, &flow.key, &style);
        shortened(text)
    };
    let rules = |record: &FlowRecord| rules(&Decision::of(record, forwarding));
    let decided = match sample.decided {
        Decided::Output(port) => format!("output to datapath port {}", port.0),
        Decided::Drop(reason) => format!("drop ({})", reason.name()),
        Decided::Program => "these actions".into(),
    };
    let bridge_port = forwarding.by_dp_port.get(&datapath::upcall::in_port(&sample.key));
    let place = bridge_port.and_then(|(bridge, port)| {
        let bridge = forwarding.bridges.get(bridge)?;
        Some(format!("port {port} of {}", bridge.config.name))
    });
    Disagreement {
        time: sample.time,
        wrong,
        id: flow.id,
        place: place.unwrap_or_else(|| format!("datapath port {}", datapath::upcall::in_port(&sample.key).0)),
        packet: key(&sample.key, &all_of(&sample.key)),
        frame: hexadecimal(&sample.frame),
        length: sample.length,
        decided,
        flow: key(&flow.key, &flow.mask),
        actions: actions(&flow.actions),
        rules: flow.tag.downcast_ref().map_or_else(|| "an operator".into(), rules),
        expected: expected.map(|translation| (actions(&translation.actions), rules(&translation.record))),
    }
}

/// A mask of all bits of the blocks that a key has.
fn all_of(key: &Key) -> Mask {
    let mut mask = Mask::wildcard();
    for block in key.present().iter() {
        mask.0.block_mut(block).0.fill(0xff);
    }
    mask
}

fn rules(decision: &Decision) -> String {
    let mut text = decision.bridges.join(", ");
    for rule in &decision.rules {
        let _ = match rule {
            Some(rule) => {
                write!(text, " table={} priority={} cookie={:#x}", rule.table.0, rule.priority, rule.cookie.0)
            }
            None => write!(text, " a hidden flow"),
        };
    }
    match (decision.rules.is_empty(), decision.more_rules) {
        (true, _) => text.push_str(" no flow"),
        (false, 0) => {}
        (false, more) => {
            let _ = write!(text, " and {more} more");
        }
    }
    text
}

fn shortened(mut text: String) -> String {
    if text.len() > MOST_TEXT {
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        text.push_str("...");
    }
    text
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
