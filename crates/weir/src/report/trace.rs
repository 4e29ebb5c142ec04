//! `weir trace`: the explanation in OVS's layout, in colour on a terminal.

use std::io::IsTerminal as _;

use ofproto::trace::{StepKind, Trace};

use crate::printable::printable_lines;

/// The text for standard output.
pub fn trace(trace: &Trace) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if std::io::stdout().is_terminal() && !plain { trace.render(&colour) } else { trace.text() }
}

/// Sequences of ECMA-48, SGR. The text itself has none.
fn colour(kind: Option<StepKind>, text: &str) -> String {
    let text = printable_lines(text);
    let code = match kind {
        None => "1",
        Some(StepKind::Bridge) => "1;34",
        Some(StepKind::Table) => "36",
        Some(StepKind::Bucket | StepKind::Thaw) => "35",
        Some(StepKind::Action) => return text,
        Some(StepKind::Detail) => "2",
        Some(StepKind::Warning) => "33",
        Some(StepKind::Error) => "1;31",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

#[cfg(test)]
mod tests {
    use ofproto::trace::TraceStep;

    use super::*;

    #[test]
    fn colours_change_nothing_but_colour() {
        let step = |kind, text: &str| TraceStep { kind, text: text.into(), steps: Vec::new() };
        let explained = Trace {
            flow: "in_port=1".into(),
            steps: vec![TraceStep {
                steps: vec![step(StepKind::Action, "NORMAL"), step(StepKind::Warning, "no input bundle, dropping")],
                ..step(StepKind::Bridge, "bridge(\"br0\")")
            }],
            final_flow: None,
            megaflow: "recirc_id=0,eth,in_port=1".into(),
            datapath_actions: "drop".into(),
            error: None,
            slow: false,
            taken_by: None,
            resumed: Vec::new(),
        };
        let coloured = explained.render(&colour);
        assert!(coloured.contains("\x1b[33m >> no input bundle, dropping\x1b[0m\n"), "{coloured:?}");
        let mut bare = coloured;
        for code in ["0", "1", "1;34", "33"] {
            bare = bare.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(bare, explained.text());
        let json = serde_json::to_string(&explained).unwrap();
        assert_eq!(serde_json::from_str::<Trace>(&json).unwrap(), explained);
    }
}
