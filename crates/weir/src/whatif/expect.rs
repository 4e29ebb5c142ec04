//! Files of expectations: what is to become of packets.
//!
//! A line is `FLOW -> OUTCOME`: a packet in the syntax of ovs-ofctl(8), and where it is to leave: `output:PORT`, several of them
//! with commas between, `controller`, or `drop`. `#` begins a comment.

use std::collections::BTreeSet;

use openflow::text::PortNames;

use super::flow_file::lines;
use super::report::Surprise;

/// Most expectations of a file.
const MOST: usize = 10_000;

/// What is to become of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// The number of its line, from 1.
    pub line: usize,
    /// The packet.
    pub packet: String,
    /// What is expected.
    pub expected: Destinations,
}

/// Where a packet leaves; nowhere where it is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// The ports, by name.
    pub ports: BTreeSet<String>,
    /// Controllers get it.
    pub controller: bool,
}

impl std::fmt::Display for Destinations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts: Vec<_> = self.ports.iter().map(|port| format!("output:{port}")).collect();
        parts.extend(self.controller.then(|| "controller".to_owned()));
        f.write_str(&if parts.is_empty() { "drop".to_owned() } else { parts.join(",") })
    }
}

impl Destinations {
    /// Reads what is expected.
    fn parse(text: &str, names: &dyn PortNames) -> Result<Destinations, String> {
        let mut expected = Destinations::default();
        if text == "drop" {
            return Ok(expected);
        }
        for part in text.split(',').map(str::trim) {
            match part.split_once(':') {
                Some(("output", port)) => {
                    let by_number = || names.name(port.parse().ok()?);
                    let name = names.number(port).map(|_| port.to_owned()).or_else(by_number);
                    expected.ports.insert(name.ok_or_else(|| format!("{port}: the bridge has no such port"))?);
                }
                None if part == "controller" => expected.controller = true,
                _ => return Err(format!("{part:?}: an outcome is output:PORT,..., controller or drop")),
            }
        }
        Ok(expected)
    }
}

impl Expectation {
    /// What is said where something else happens.
    pub fn surprise(&self, found: &Destinations, rules: Vec<String>) -> Option<Surprise> {
        let (expected, is_met) = (self.expected.to_string(), self.expected == *found);
        let (line, packet) = (self.line, self.packet.clone());
        (!is_met).then(|| Surprise { line, packet, expected, found: found.to_string(), rules })
    }
}

/// Reads a file of expectations.
///
/// # Errors
/// The first line that is wrong.
pub fn parse(path: &str, text: &str, names: &dyn PortNames) -> Result<Vec<Expectation>, String> {
    let mut expectations = Vec::new();
    for (line, content) in lines(text) {
        let wrong = |problem: String| format!("{path}:{line}: {problem}");
        let parts = content.split_once("->").map(|(packet, outcome)| (packet.trim(), outcome.trim()));
        let (packet, outcome) =
            parts.ok_or_else(|| wrong("a line is FLOW -> OUTCOME, as in in_port=1,tcp -> output:2".into()))?;
        let expected = Destinations::parse(outcome, names).map_err(wrong)?;
        if expectations.len() == MOST {
            return Err(format!("{path}:{line}: more than {MOST} expectations"));
        }
        expectations.push(Expectation { line, packet: packet.to_owned(), expected });
    }
    Ok(expectations)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::flow_text::Names;

    fn names() -> Names {
        [(1, "p1".to_owned()), (2, "p2".to_owned())].into_iter().collect()
    }

    #[test]
    fn ports_are_named_or_numbered() {
        let text = "# reach\nin_port=1,tcp -> output:2\nin_port=p2 -> output:p1, controller # both\n\nudp -> drop\n";
        let expectations = parse("f", text, &names()).unwrap();
        let shown: Vec<_> = expectations.iter().map(|it| (it.line, &it.packet[..], it.expected.to_string())).collect();
        assert_eq!(
            shown,
            [
                (2, "in_port=1,tcp", "output:p2".to_owned()),
                (3, "in_port=p2", "output:p1,controller".to_owned()),
                (5, "udp", "drop".to_owned())
            ]
        );
        assert_eq!(expectations[0].surprise(&expectations[0].expected, Vec::new()), None);
        assert_eq!(expectations[0].surprise(&Destinations::default(), Vec::new()).unwrap().found, "drop");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = |text: &str| parse("f", text, &names()).unwrap_err();
        assert!(error("\nudp").starts_with("f:2: a line is FLOW -> OUTCOME"));
        assert_eq!(error("udp -> output:9"), "f:1: 9: the bridge has no such port");
        assert!(error("udp -> flood").starts_with("f:1: \"flood\": an outcome is"));
        assert!(error("udp -> ").contains("an outcome is"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(udp|[ ,]|->|output:|p1|[0-9]{1,11}|drop|controller|[#\n]|é){0,30}") {
            let _ = parse("f", &text, &names());
        }
    }
}
