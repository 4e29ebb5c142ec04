//! Files of flows, in the syntax of `ovs-ofctl --bundle add-flows` (ovs-ofctl(8), "Flow Syntax").

use std::path::Path;

use ofproto::whatif::MOST_CHANGES;
use openflow::text::{PortNames, parse_flow_mod_line};
use openflow::{FlowMod, FlowModCommand};

use crate::flow_text;

/// Longest file, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Reads a file of text. Only a regular one: what else there is may never end.
///
/// # Errors
/// What is wrong with the file.
pub fn read(path: &str) -> Result<String, String> {
    let bytes = ports::files::read_regular(Path::new(path), MAX_FILE).map_err(|error| format!("{path}: {error}"))?;
    String::from_utf8(bytes).map_err(|error| format!("{path}: {error}"))
}

/// The lines of a file that say something, with their numbers, from 1, and without comments, which begin with `#`.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines());
    let said = numbered.map(|(number, line)| (number, line.split('#').next().unwrap_or_default().trim()));
    said.filter(|(_, line)| !line.is_empty())
}

/// Reads the flow-mods of a file. `adds_only`: the flows are a list of those that are to be there.
///
/// # Errors
/// The first line that is wrong.
pub fn parse(path: &str, text: &str, names: &dyn PortNames, adds_only: bool) -> Result<Vec<FlowMod>, String> {
    let mut changes = Vec::new();
    for (number, line) in lines(text) {
        let change = parse_flow_mod_line(line, names).map_err(|error| format!("{path}:{number}: {error}"))?;
        if adds_only && change.command != FlowModCommand::Add {
            return Err(format!("{path}:{number}: with --replace, a line is a flow that is to be there"));
        }
        if !flow_text::fits(&change) {
            return Err(format!("{path}:{number}: {}", flow_text::TOO_LONG));
        }
        if changes.len() == MOST_CHANGES {
            return Err(format!("{path}:{number}: more than {MOST_CHANGES} flows"));
        }
        changes.push(change);
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use packet::flow::text::NoNames;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_flow_mods_with_and_without_a_command() {
        let text = "# a comment\n\n  priority=5,udp,actions=drop # why\ndelete table=3,tcp\nmodify_strict icmp,actions=output:2\n";
        let changes = parse("f", text, &NoNames, false).unwrap();
        let commands: Vec<_> = changes.iter().map(|change| change.command).collect();
        assert_eq!(commands, [FlowModCommand::Add, FlowModCommand::Delete, FlowModCommand::ModifyStrict]);
        assert_eq!(changes[0].priority, 5);
        let error = parse("f", text, &NoNames, true).unwrap_err();
        assert_eq!(error, "f:4: with --replace, a line is a flow that is to be there");
        assert!(parse("f", "udp,actions=drop\nnonsense\n", &NoNames, false).unwrap_err().starts_with("f:2: "));
    }

    #[test]
    fn a_flow_that_no_message_has_room_for_is_refused() {
        let flow = |n| format!("udp,actions=drop\npriority=7,actions={}\n", vec!["resubmit(,1)"; n].join(","));
        assert_eq!(parse("f", &flow(4000), &NoNames, false).unwrap().len(), 2);
        let error = parse("f", &flow(8000), &NoNames, false).unwrap_err();
        assert_eq!(error, "f:2: it is too long for a message of OpenFlow, which has at most 65535 bytes");
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        assert!(read("/dev/zero").unwrap_err().contains("not a regular file"));
        assert!(read("/does/not/exist").unwrap_err().contains("No such file"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([a-z_]{1,9}[ ,=]|[0-9./:]{1,9}|[#\n]|actions=|é){0,40}") {
            let _ = parse("f", &text, &NoNames, false);
        }
    }
}
