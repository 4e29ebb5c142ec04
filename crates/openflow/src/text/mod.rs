//! The text syntax of flows: that of ovs-ofctl(8), ovs-fields(7) and ovs-actions(7), in both directions.
//!
//! [`matching`] reads and writes matches, [`actions`] actions and instructions, [`flow`] whole flows and
//! flow-mods, [`subfield`] parts of fields. [`message`] writes whole messages, for logs. What a field's value looks like
//! is declared in [`packet::flow::text`].

pub mod actions;
mod arguments;
pub mod flow;
pub mod matching;
pub mod message;
pub mod subfield;
#[cfg(test)]
mod tests;

use packet::flow::text::{NoNames, number};

pub use actions::{ACTIONS, format_actions, format_instructions, parse_actions, parse_instructions};
pub use flow::{format_flow_entry, format_flow_stats, parse_flow_mod, parse_flow_mod_line, parse_flow_stats_request};
pub use matching::{format_match, parse_match};
pub use message::format_message;
pub use packet::flow::text::PortNames;

/// How deeply actions may nest in text (`clone`, `ct(exec())`, `write_actions`).
pub const MAX_DEPTH: usize = 16;

/// What is wrong with a text, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is wrong.
    #[error(transparent)]
    Value(#[from] packet::flow::text::Error),
    /// Neither a field nor anything else that a flow can have here.
    #[error("unknown keyword {name:?}; expected {expected}")]
    Keyword {
        /// What was given.
        name: String,
        /// What would be right.
        expected: &'static str,
    },
    /// A field whose prerequisite is not matched.
    #[error("{field}: can only be matched together with {needs}")]
    Prerequisite {
        /// Field.
        field: String,
        /// What has to be matched.
        needs: &'static str,
    },
    /// Not a part of a field.
    #[error("{text:?}: {problem}; expected a field as reg0, reg0[], reg0[3] or reg0[0..15]")]
    Subfield {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No such action.
    #[error("unknown action {name:?}; expected a port or one of {valid}")]
    Action {
        /// What was given.
        name: String,
        /// The valid names.
        valid: String,
    },
    /// An action's argument is wrong.
    #[error("{action}: {problem}")]
    Argument {
        /// Action.
        action: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// Actions within actions within actions.
    #[error("actions are nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// A flow to be added or modified has no actions.
    #[error("must specify an action; for none, write actions=drop")]
    NoActions,
}

impl Error {
    fn argument(action: &str, problem: impl Into<String>) -> Error {
        Error::Argument { action: action.into(), problem: problem.into() }
    }
}

/// A number between zero and `max`. `name` is for the error.
fn integer(name: &str, text: &str, max: u64) -> Result<u64, Error> {
    use packet::flow::text::Error as Wrong;
    let value = number::parse_int(text).ok_or_else(|| Wrong::value(name, text, "a number, decimal or with 0x"))?;
    match u64::try_from(value) {
        Ok(value) if value <= max => Ok(value),
        _ => Err(Wrong::TooLarge { name: name.into(), text: text.into(), max: max.into() }.into()),
    }
}

fn integer16(name: &str, text: &str) -> Result<u16, Error> {
    integer(name, text, 0xffff).map(|value| value as u16)
}

fn integer32(name: &str, text: &str) -> Result<u32, Error> {
    integer(name, text, 0xffff_ffff).map(|value| value as u32)
}

/// For fuzzing: reads any text as a flow. What is read comes out as text that reads back equal; what
/// is refused is refused without a panic.
pub fn fuzz(text: &str) {
    if let Ok(flow) = parse_flow_mod_line(text, &NoNames) {
        let mut out = String::new();
        format_match(&mut out, &flow.matching, flow.priority, &NoNames);
        out.push_str(" actions=");
        format_instructions(&mut out, &flow.instructions, &NoNames);
        let back = parse_instructions(&out[out.find("actions=").map_or(0, |at| at + 8)..], &NoNames);
        assert_eq!(back.as_ref(), Ok(&flow.instructions), "{out}");
    }
    let _ = parse_match(text, &NoNames);
    let _ = parse_actions(text, &NoNames);
}
