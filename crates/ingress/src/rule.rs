//! Rules, and their text.
//!
//! ```text
//! rules      = [ rule *( ";" rule ) [ ";" ] ]
//! rule       = verdict [ expression ]
//! verdict    = "drop" / "pass" / "limit" rate
//! rate       = number [ "k" / "m" ]      ; packets per second, thousands or millions of them
//! expression = what pcap-filter(7) describes; none stands for every frame
//! ```

use std::fmt;

/// Most rules of a port.
pub const MAX_RULES: usize = 65_536;

/// Most bytes of an expression. The time in which libpcap optimises its program grows with the third power of its
/// length; at this limit, it is a tenth of a second.
pub const MAX_EXPRESSION: usize = 4096;

/// The highest rate of a limit, in packets per second.
pub const MAX_RATE: u32 = 100_000_000;

/// What is done with frames that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They go on.
    Pass,
    /// They are dropped.
    Drop,
    /// So many in a second go on, and the others are dropped.
    Limit(u32),
}

/// A rule. Its text has single spaces, so that rules can be compared by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is done.
    pub verdict: Verdict,
    /// With which frames; empty: with all.
    pub expression: String,
    /// Where the expression, or the end of the rule, is in the text, in characters from 1.
    pub column: usize,
}

/// Why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule}, column {column}: {reason}")]
pub struct RuleError {
    /// Which rule, from 1.
    pub rule: usize,
    /// Which character of the text, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Rule {
    /// Whether these are the same but for their places.
    pub fn is_same(&self, other: &Rule) -> bool {
        (self.verdict, &self.expression) == (other.verdict, &other.expression)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Pass => f.write_str("pass"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Limit(rate) => write!(f, "limit {rate}"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.verdict.fmt(f)?;
        if self.expression.is_empty() { Ok(()) } else { write!(f, " {}", self.expression) }
    }
}

/// The text of rules.
pub fn format(rules: &[Rule]) -> String {
    rules.iter().map(Rule::to_string).collect::<Vec<_>>().join("; ")
}

/// Reads rules. Expressions are not looked into.
///
/// # Errors
/// The first rule that is wrong.
pub fn parse(text: &str) -> Result<Vec<Rule>, RuleError> {
    let mut rules = Vec::new();
    // Where the part begins, in characters: counted along, so that a long text is walked once.
    let mut column = 1;
    let mut parts = text.split(';').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() && part.trim().is_empty() {
            break;
        }
        if rules.len() == MAX_RULES {
            return Err(RuleError {
                rule: MAX_RULES + 1,
                column,
                reason: format!("a port has at most {MAX_RULES} rules"),
            });
        }
        let failed = |Problem { at, reason }| RuleError {
            rule: rules.len() + 1,
            column: column + part[..at].chars().count(),
            reason,
        };
        let (verdict, at) = parse_verdict(part).map_err(failed)?;
        let expression = part[at..].split_whitespace().collect::<Vec<_>>().join(" ");
        if expression.len() > MAX_EXPRESSION {
            let reason = format!("the expression is longer than {MAX_EXPRESSION} bytes; use several rules");
            return Err(failed(Problem { at, reason }));
        }
        rules.push(Rule { verdict, expression, column: column + part[..at].chars().count() });
        column += part.chars().count() + 1;
    }
    Ok(rules)
}

/// What is wrong, and at which byte of the rule.
struct Problem {
    at: usize,
    reason: String,
}

/// The verdict at the start of a rule, and the byte at which the expression begins.
fn parse_verdict(part: &str) -> Result<(Verdict, usize), Problem> {
    let (word, at, end) = next_word(part, 0);
    let verdict = match word {
        "pass" => Verdict::Pass,
        "drop" => Verdict::Drop,
        "limit" => {
            let (rate, at, end) = next_word(part, end);
            let reason = |what: &str| format!("{what}: limit 500, limit 20k or limit 2m, up to {MAX_RATE}");
            let parsed = parse_rate(rate).ok_or_else(|| match rate {
                "" => Problem { at, reason: reason("limit needs a number of packets per second") },
                rate => Problem { at, reason: reason(&format!("{rate:?} is not a number of packets per second")) },
            })?;
            return Ok((Verdict::Limit(parsed), next_word(part, end).1));
        }
        "" => return Err(Problem { at, reason: "a rule is missing before \";\"".into() }),
        word => return Err(Problem { at, reason: format!("{word:?} is none of drop, pass and limit RATE") }),
    };
    Ok((verdict, next_word(part, end).1))
}

/// The word behind `from`, and where it begins and ends.
fn next_word(text: &str, from: usize) -> (&str, usize, usize) {
    let rest = text[from..].trim_start();
    let at = text.len() - rest.len();
    let word = rest.split(char::is_whitespace).next().unwrap_or_default();
    (word, at, at + word.len())
}

fn parse_rate(text: &str) -> Option<u32> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1000),
        b'm' | b'M' => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    // Signs are no part of a rate, though `parse` takes one.
    let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u32>().ok())??;
    number.checked_mul(unit).filter(|rate| (1..=MAX_RATE).contains(rate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rules_are_read_and_shown() {
        let text = " drop  dst net 198.18.0.0/15;limit 20k tcp\tport 80 ; pass;limit 2M;";
        let rules = parse(text).unwrap();
        let verdicts: Vec<_> = rules.iter().map(|rule| rule.verdict).collect();
        assert_eq!(verdicts, [Verdict::Drop, Verdict::Limit(20_000), Verdict::Pass, Verdict::Limit(2_000_000)]);
        let shown = "drop dst net 198.18.0.0/15; limit 20000 tcp port 80; pass; limit 2000000";
        assert_eq!(format(&rules), shown);
        assert_eq!(format(&parse(shown).unwrap()), shown);
        assert_eq!(rules.iter().map(|rule| rule.column).collect::<Vec<_>>(), [8, 40, 58, 67]);
        assert!(parse("").unwrap().is_empty() && parse(" \n").unwrap().is_empty());
    }

    #[test]
    fn mistakes_have_a_place_and_a_reason() {
        for (text, expected) in [
            ("allow tcp", "rule 1, column 1: \"allow\" is none of drop, pass and limit RATE"),
            ("drop tcp; ; pass", "rule 2, column 11: a rule is missing before \";\""),
            (";", "rule 1, column 1: a rule is missing before \";\""),
            ("drop é;  deny", "rule 2, column 10: \"deny\" is none of drop, pass and limit RATE"),
            ("limit", "rule 1, column 6: limit needs a number of packets per second: limit 500"),
            ("limit 0 tcp", "rule 1, column 7: \"0\" is not a number of packets per second"),
            ("limit 5g tcp", "rule 1, column 7: \"5g\" is not a number"),
            ("limit +5 tcp", "rule 1, column 7: \"+5\" is not a number"),
            ("limit 4295m", "rule 1, column 7: \"4295m\" is not a number"),
            ("limit 101m", "rule 1, column 7: \"101m\" is not a number"),
            ("limit k", "rule 1, column 7: \"k\" is not a number"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let long = format!("drop {}", "tcp or ".repeat(1000));
        assert!(parse(&long).unwrap_err().to_string().contains("longer than 4096 bytes"));
        assert_eq!(parse(&"drop;".repeat(MAX_RULES)).unwrap().len(), MAX_RULES);
        let error = parse(&"drop;".repeat(MAX_RULES + 1)).unwrap_err();
        assert_eq!((error.rule, error.column), (MAX_RULES + 1, 5 * MAX_RULES + 1));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_shown_is_read_as_the_same(text in "([a-z0-9 ;é]|drop|pass|limit 3k)*") {
            if let Ok(rules) = parse(&text) {
                let again = parse(&format(&rules)).unwrap();
                prop_assert!(rules.len() == again.len() && rules.iter().zip(&again).all(|(a, b)| a.is_same(b)));
            }
        }
    }
}
