//! `weir/verify`: what verification of the datapath's caches has found.

use std::fmt::Write as _;

use ofproto::{Disagreement, NotComparable, VerifyReport};
use packet::Time;

use super::Context;
use crate::unixctl::command::Outcome;

/// `weir/verify`.
pub fn show(context: &Context, _: &[String]) -> Outcome {
    let one_in = context.engine.datapath.verify_sampling();
    Ok(text(one_in, &context.engine.switch.verify_report(), context.engine.clock.now()))
}

fn text(one_in: u32, VerifyReport { counts, latest }: &VerifyReport, now: Time) -> String {
    let mut text = match one_in {
        0 => "verification is off (other_config:verify-sampling)\n".to_owned(),
        one_in => format!("one of {one_in} packets that have a datapath flow is verified\n"),
    };
    let _ = writeln!(text, "checked: {}", counts.checked());
    let _ = writeln!(text, "  equal: {}", counts.equal);
    let _ = writeln!(text, "  disagreements: {}", counts.disagreements);
    let causes = NotComparable::ALL.iter().map(|&cause| (cause, counts.not_comparable(cause)));
    let _ = writeln!(text, "  not comparable: {}", causes.clone().map(|(_, count)| count).sum::<u64>());
    for (cause, count) in causes.filter(|(_, count)| *count > 0) {
        let _ = writeln!(text, "    {}: {count} ({})", cause.name(), cause.describe().trim_end_matches('.'));
    }
    let _ = writeln!(text, "lost, because too many waited: {}", counts.lost);
    for found in latest {
        describe(&mut text, found, now);
    }
    text
}

fn describe(text: &mut String, found: &Disagreement, now: Time) {
    let _ = writeln!(text, "\n{:.3} s ago: {}", now.since(found.time).as_secs_f64(), found.wrong.describe());
    let _ = writeln!(text, "  packet: {} bytes at {}: {}", found.length, found.place, found.frame);
    let _ = writeln!(text, "  key: {}", found.packet);
    let _ = writeln!(text, "  flow: {}", found.flow);
    let _ = writeln!(text, "    made by {}", found.rules);
    let _ = writeln!(text, "    actions: {}", found.actions);
    let _ = writeln!(text, "  a cache said: {}", found.decided);
    if let Some((actions, rules)) = &found.expected {
        let _ = writeln!(text, "  expected actions: {actions}");
        let _ = writeln!(text, "    by {rules}");
    }
}
