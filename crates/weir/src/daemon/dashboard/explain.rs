//! `/api/explain`: what becomes of a packet, as `weir explain` says it.

use super::{of_reply, with_query};
use crate::daemon::commands::reports::json;
use crate::daemon::commands::{Context, explain};
use crate::explain::report::{Explanation, Pass};
use crate::http::Answer;
use crate::report::cut;

/// Passes that are told of.
const MOST_PASSES: usize = 16;

/// Steps of a pass that are told of.
const MOST_STEPS: usize = 500;

/// `/api/explain`.
pub fn report(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &["bridge", "port", "packet"], |query| {
        let packet = query
            .get("packet")
            .ok_or("packet= is missing: a flow in the syntax of ovs-ofctl(8), or hexadecimal digits")?;
        if let Some(word) =
            [query.get("bridge"), Some(packet)].into_iter().flatten().find(|word| word.starts_with("--"))
        {
            return Err(format!("{word}: an option is no bridge and no packet"));
        }
        let mut args: Vec<_> = query.get("port").map(|port| format!("--port={port}")).into_iter().collect();
        args.extend(query.get("bridge").map(str::to_owned));
        args.push(packet.trim().to_owned());
        Ok(of_reply(explain::start(context, &args, |explanation| json(&shortened(explanation)))))
    })
}

/// The first passes and steps of an explanation, none with a very long text.
fn shortened(mut explanation: Explanation) -> Explanation {
    explanation.passes.truncate(MOST_PASSES);
    explanation.passes.iter_mut().for_each(shorten);
    explanation
}

fn shorten(pass: &mut Pass) {
    pass.steps_left_out += pass.steps.len().saturating_sub(MOST_STEPS);
    pass.steps.truncate(MOST_STEPS);
    let of_steps = pass.steps.iter_mut().flat_map(|step| {
        let rules = [&mut step.rule, &mut step.next].into_iter().flatten();
        rules.flat_map(|rule| [&mut rule.r#match, &mut rule.actions]).chain([&mut step.text])
    });
    let of_flow = pass.served_by.iter_mut().flat_map(|flow| [&mut flow.r#match, &mut flow.actions]);
    let of_pass = [&mut pass.packet, &mut pass.megaflow, &mut pass.datapath_actions, &mut pass.outcome.text];
    let of_outputs = pass.outcome.outputs.iter_mut().map(|output| &mut output.rewrites);
    let all = of_steps.chain(of_flow).chain(of_pass).chain(of_outputs);
    all.for_each(|text| *text = cut(std::mem::take(text)));
}

#[cfg(test)]
mod tests {
    use ofproto::explain::{Step, StepKind};

    use super::*;

    #[test]
    fn an_answer_is_bounded() {
        let long = || "x".repeat(100_000);
        let step = Step { depth: 0, kind: StepKind::Action, text: long(), rule: None, next: None };
        let pass = Pass { packet: long(), steps: vec![step; 600], steps_left_out: 7, ..Pass::default() };
        let explanation = shortened(Explanation { passes: vec![pass; 20], ..Explanation::default() });
        assert_eq!(explanation.passes.len(), MOST_PASSES);
        let pass = &explanation.passes[0];
        assert_eq!((pass.steps.len(), pass.steps_left_out), (MOST_STEPS, 107));
        assert!(pass.packet.len() < 2100 && pass.steps[0].text.len() < 2100);
    }
}
