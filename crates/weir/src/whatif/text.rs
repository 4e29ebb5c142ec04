//! `weir diff` in words.

use packet::put;

use super::report::{Diff, FlowDiff, Surprise, Treatment};
use crate::report::table::grouped;

/// The text: the flows, then a summary.
pub fn text(diff: &Diff) -> String {
    let mut text = String::new();
    diff.listed.iter().for_each(|flow| listed(&mut text, flow));
    if diff.not_listed > 0 {
        put!(text, "... and {} more flows\n", grouped(diff.not_listed as u64));
    }
    summary(&mut text, diff);
    text
}

fn listed(text: &mut String, flow: &FlowDiff) {
    put!(text, "{:.1} packets/s: {}\n", flow.pps, flow.r#match);
    if let Some(packets) = &flow.packets_like {
        put!(text, "  some of its packets, as {packets}\n");
    }
    put!(text, "  now:  {}\n", treatment(&flow.before));
    match &flow.after {
        Some(after) => put!(text, "  then: {}\n", treatment(after)),
        None => text.push_str("  then: not decided, since there are too many cases\n"),
    }
}

fn treatment(treatment: &Treatment) -> String {
    let mut text = treatment.outcome.clone();
    if let Some(by) = &treatment.dropped_by {
        put!(text, ", by {by}");
    }
    if let Some(error) = &treatment.error {
        put!(text, " ({error})");
    }
    put!(text, " [{}]", treatment.actions);
    text
}

fn summary(text: &mut String, diff: &Diff) {
    let rules = &diff.rules;
    let tense = if diff.committed { "" } else { "would be " };
    let (added, modified) = (grouped(rules.added as u64), grouped(rules.modified as u64));
    let removed = grouped(rules.removed as u64);
    put!(text, "{}: {added} rules {tense}added, {modified} modified, {removed} removed; ", diff.bridge);
    let (changed, flows) = (grouped(diff.changed as u64), grouped(diff.flows as u64));
    put!(text, "{changed} of {flows} datapath flows treat packets otherwise ({:.1} packets/s)", diff.changed_pps);
    if diff.undecided > 0 {
        put!(text, ", {} are not decided", grouped(diff.undecided as u64));
    }
    text.push_str(".\n");
    if diff.tables_changed {
        text.push_str(
            "Others have changed flows, groups, ports or settings meanwhile: some flows may be told wrongly.\n",
        );
    }
    if let Some(expectations) = &diff.expectations {
        for Surprise { line, packet, expected, found, rules } in &expectations.unmet {
            put!(text, "line {line}: {packet} -> {found}, but {expected} is expected\n");
            rules.iter().for_each(|rule| put!(text, "  {rule}\n"));
        }
        let met = expectations.total - expectations.unmet.len();
        put!(text, "{} of {} expectations are met.\n", grouped(met as u64), grouped(expectations.total as u64));
    }
    if diff.committed {
        text.push_str("The changes were made.\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whatif::report::Expectations;

    #[test]
    fn a_flow_has_what_is_and_what_would_be() {
        let before = Treatment { outcome: "forwarded to p2".into(), actions: "p2".into(), ..Treatment::default() };
        let after = Treatment { outcome: "dropped: rule (x)".into(), actions: "drop".into(), ..Treatment::default() };
        let flow = FlowDiff {
            r#match: "in_port(p1)".into(),
            is_decided: true,
            packets_like: Some("in_port(p1),udp(dst=80)".into()),
            pps: 12.0,
            before,
            after: Some(after),
            ..FlowDiff::default()
        };
        let diff = Diff { bridge: "br0".into(), flows: 1204, changed: 1, listed: vec![flow], ..Diff::default() };
        let expected = "12.0 packets/s: in_port(p1)\n  some of its packets, as in_port(p1),udp(dst=80)\n  \
                        now:  forwarded to p2 [p2]\n  then: dropped: rule (x) [drop]\n\
                        br0: 0 rules would be added, 0 modified, 0 removed; 1 of 1 204 datapath flows treat packets otherwise (0.0 packets/s).\n";
        assert_eq!(text(&diff), expected);
        assert!(diff.is_difference() && !Diff::default().is_difference());
        // With expectations, these count.
        let expected = Diff { expectations: Some(Expectations { total: 1, unmet: Vec::new() }), ..diff.clone() };
        assert!(!expected.is_difference());
        let json = serde_json::to_string(&diff).unwrap();
        assert_eq!(serde_json::from_str::<Diff>(&json).unwrap(), diff);
    }
}
