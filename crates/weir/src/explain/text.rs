//! `weir explain` in plain words, top-down.

use ofproto::explain::{RuleText, Step, StepKind};
use packet::put;

use super::report::{Explanation, InputPort, Pass, ServingFlow};
use crate::report::table::grouped;

/// The text.
pub fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    match &explanation.port {
        Some(port) => input_port(&mut text, port, &explanation.bridge),
        None => put!(text, "The packet comes in at no port of bridge {}.\n", explanation.bridge),
    }
    for pass in &explanation.passes {
        if let Some(heading) = &pass.heading {
            put!(text, "\nComes back: {}\n", heading.trim_end());
        }
        self::pass(&mut text, pass);
    }
    text
}

fn input_port(text: &mut String, port: &InputPort, bridge: &str) {
    put!(text, "Port {} (OpenFlow port {}", port.name, port.ofport);
    if let Some(number) = port.dp_port {
        put!(text, ", datapath port {number}");
    }
    put!(text, ") of bridge {bridge} is {}.\n", port.mode);
    if !port.is_up {
        text.push_str("The port is disabled or its link is down: no packet comes in here now.\n");
    }
}

fn pass(text: &mut String, pass: &Pass) {
    put!(text, "Packet: {}\n\n", pass.packet);
    pass.steps.iter().for_each(|step| self::step(text, step));
    if pass.steps_left_out > 0 {
        put!(text, "... and {} more steps\n", grouped(pass.steps_left_out as u64));
    }
    put!(text, "\nOutcome: {}\n", pass.outcome.text);
    if let Some(error) = &pass.error {
        put!(text, "  The translation gave up: {error}.\n");
    }
    if let Some(by) = &pass.dropped_by {
        put!(text, "  Decided by {by}.\n");
    }
    if let Some(dropped) = &pass.outcome.dropped {
        put!(text, "  Stage: {}.\n", dropped.stage);
    }
    for output in &pass.outcome.outputs {
        let changed =
            if output.rewrites.is_empty() { "unchanged".into() } else { format!("after {}", output.rewrites) };
        put!(text, "  To {}: {changed}.\n", output.port);
    }
    if pass.outcome.metered {
        text.push_str("  Beyond the rate of the meter it is dropped.\n");
    }
    put!(text, "Treated alike: {}\n", pass.megaflow);
    put!(text, "Datapath actions: {}\n", pass.datapath_actions);
    match &pass.served_by {
        Some(flow) => served_by(text, flow),
        None if pass.slow => text.push_str("Served by: the slow path, which translates each such packet anew.\n"),
        None => text.push_str("Served by: no datapath flow now; the next such packet goes to the slow path.\n"),
    }
    for tier in &pass.tiers {
        put!(text, "  Worker {} finds it in {}.\n", tier.worker, tier.tier);
    }
}

fn step(text: &mut String, step: &Step) {
    let indent = "  ".repeat(step.depth);
    let mark = match step.kind {
        StepKind::Warning => "warning: ",
        StepKind::Error => "error: ",
        StepKind::Detail => "-> ",
        _ => "",
    };
    put!(text, "{indent}{mark}{}\n", step.text);
    if step.rule.is_some() {
        let next = step.next.as_ref().map_or("no rule".into(), |next| below(step.rule.as_ref(), next));
        put!(text, "{indent}  (without it: {next})\n");
    }
}

/// The rule that would decide without another one.
fn below(rule: Option<&RuleText>, next: &RuleText) -> String {
    let actions = if next.actions.is_empty() { "drop" } else { next.actions.as_str() };
    let tied = rule.is_some_and(|rule| rule.priority == next.priority);
    let note = if tied { ", of the same priority: which of the two decides is not defined" } else { "" };
    format!("{} actions={actions}{note}", next.name())
}

fn served_by(text: &mut String, flow: &ServingFlow) {
    put!(text, "Served by: {} {}, actions:{}\n", flow.ufid, flow.r#match, flow.actions);
    let used = flow.idle_s.map_or("never used".into(), |idle| format!("used {idle:.3} s ago"));
    let (packets, bytes) = (grouped(flow.packets), grouped(flow.bytes));
    put!(text, "  {packets} packets, {bytes} bytes, installed {:.3} s ago, {used}.\n", flow.age_s);
    if !flow.is_current {
        text.push_str("  The tables say otherwise by now: the flow is about to be brought up to date.\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::outcome::Outcome;

    fn rule(priority: u32, matching: &str, actions: &str) -> RuleText {
        let (r#match, actions) = (matching.into(), actions.into());
        RuleText { table: 0, priority, cookie: 7, r#match, actions, packets: 1, bytes: 60 }
    }

    fn explanation() -> Explanation {
        let step = |depth, kind, text: &str| Step { depth, kind, text: text.into(), rule: None, next: None };
        let found = Step {
            rule: Some(rule(9, "ip", "output:2")),
            next: Some(rule(9, "", "")),
            ..step(1, StepKind::Table, "table 0 finds the rule priority=9,cookie=0x7,ip")
        };
        let steps = vec![step(0, StepKind::Bridge, "in bridge br0"), found, step(2, StepKind::Action, "output:p2")];
        let pass = Pass {
            packet: "ip,in_port=p1".into(),
            steps,
            outcome: Outcome { text: "forwarded to p2".into(), ..Outcome::default() },
            served_by: Some(ServingFlow { ufid: "ufid:1".into(), age_s: 2.5, packets: 1234, ..ServingFlow::default() }),
            ..Pass::default()
        };
        Explanation { bridge: "br0".into(), port: None, passes: vec![pass] }
    }

    #[test]
    fn a_tie_is_told_and_counters_are_readable() {
        let text = text(&explanation());
        let expected = "  table 0 finds the rule priority=9,cookie=0x7,ip\n    \
                        (without it: priority=9,cookie=0x7 actions=drop, of the same priority: which of the two decides is not defined)\n    \
                        output:p2\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("installed 2.500 s ago, never used.\n  The tables say otherwise"), "{text}");
    }

    #[test]
    fn json_has_the_same() {
        let explanation = explanation();
        let json = serde_json::to_string(&explanation).unwrap();
        assert_eq!(serde_json::from_str::<Explanation>(&json).unwrap(), explanation);
    }
}
