//! What is asked, as the arguments of `weir/top`.

use std::time::Duration;

use ofproto::RuleId;

/// Most rows of an answer.
pub const MOST: usize = 1000;

/// The rows of an answer, where the question does not say how many.
const USUAL: usize = 20;

/// What is wrong with an argument that is none.
const NO_OPTION: &str = "not an argument; \"help weir/top\" lists them";

/// The intervals that can be asked for, in seconds.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=60.0;

/// What is ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// Flows of the datapath.
    Flows,
    /// OpenFlow rules.
    Rules,
    /// Places where packets are dropped.
    Drops,
}

impl Subject {
    /// Every subject.
    pub const ALL: [Subject; 3] = [Subject::Flows, Subject::Rules, Subject::Drops];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Flows => "flows",
            Subject::Rules => "rules",
            Subject::Drops => "drops",
        }
    }
}

/// What decides the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Packets by second.
    Packets,
    /// Bytes by second.
    Bytes,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What is ranked.
    pub subject: Subject,
    /// Of flows: they are added up by the ports between which their packets pass.
    pub pairs: bool,
    /// Most rows of the answer.
    pub most: usize,
    /// What decides the order.
    pub by: Measure,
    /// Only packets that come in at this port; of drops those that were to leave by it, too.
    pub port: Option<String>,
    /// Only rules of this bridge.
    pub bridge: Option<String>,
    /// Only datapath flows whose packets pass this rule of a bridge.
    pub rule: Option<(String, RuleId)>,
    /// How long to measure, at least.
    pub interval: Duration,
}

impl Question {
    /// Reads the arguments.
    pub fn parse(words: &[String]) -> Result<Question, String> {
        let (subject, options) = words.split_first().ok_or("flows, rules, drops or pairs?")?;
        let pairs = subject == "pairs";
        let found = if pairs { Some(Subject::Flows) } else { Subject::ALL.into_iter().find(|s| s.name() == subject) };
        let subject = found.ok_or_else(|| format!("{subject}: neither flows, rules, drops nor pairs"))?;
        let mut question = Question {
            subject,
            pairs,
            most: USUAL,
            by: Measure::Packets,
            port: None,
            bridge: None,
            rule: None,
            interval: Duration::from_secs(1),
        };
        for option in options {
            question.set(option).map_err(|problem| format!("{option}: {problem}"))?;
        }
        Ok(question)
    }

    fn set(&mut self, option: &str) -> Result<(), String> {
        let (name, value) = option.split_once('=').ok_or(NO_OPTION)?;
        match (name, self.subject) {
            ("most", _) => {
                let number = value.parse().ok().filter(|most| (1..=MOST).contains(most));
                self.most = number.ok_or_else(|| format!("a number of rows is from 1 to {MOST}"))?;
            }
            ("by", Subject::Flows | Subject::Rules) => {
                self.by = match value {
                    "packets" => Measure::Packets,
                    "bytes" => Measure::Bytes,
                    _ => return Err("by packets or by bytes".into()),
                }
            }
            ("port", Subject::Flows | Subject::Drops) => self.port = Some(value.to_owned()),
            ("bridge", Subject::Rules) => self.bridge = Some(value.to_owned()),
            ("rule", Subject::Flows) => {
                let (bridge, id) =
                    value.rsplit_once('/').ok_or("BRIDGE/ID names a rule, as \"weir/top rules\" has it")?;
                self.rule = Some((bridge.to_owned(), id.parse().map_err(|e: ofproto::NoRuleId| e.to_string())?));
            }
            ("interval", _) => {
                let seconds = value.parse().ok().filter(|seconds| INTERVALS.contains(seconds));
                let (least, most) = (INTERVALS.start(), INTERVALS.end());
                let seconds = seconds.ok_or_else(|| format!("an interval is from {least} to {most} seconds"))?;
                self.interval = Duration::from_secs_f64(seconds);
            }
            _ => return Err(format!("not an argument of {}; \"help weir/top\" lists them", self.subject.name())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Question, String> {
        Question::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn words_make_a_question() {
        let question = parse("flows most=5 by=bytes port=eth1 rule=br0/0:9:17 interval=0.5").unwrap();
        assert_eq!((question.subject, question.most, question.by), (Subject::Flows, 5, Measure::Bytes));
        assert_eq!((question.port.as_deref(), question.interval), (Some("eth1"), Duration::from_millis(500)));
        assert_eq!(question.rule, Some(("br0".into(), "0:9:17".parse().unwrap())));
        assert_eq!(parse("drops").unwrap().most, 20);
        let pairs = parse("pairs by=bytes port=eth1").unwrap();
        assert_eq!((pairs.subject, pairs.pairs, question.pairs), (Subject::Flows, true, false));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [
            ("", "flows, rules, drops or pairs"),
            ("ports", "ports: neither"),
            ("flows most=0", "from 1 to 1000"),
            ("flows most=1001", "from 1 to 1000"),
            ("flows by=age", "by packets or by bytes"),
            ("drops by=bytes", "not an argument of drops"),
            ("rules rule=br0/0:1:1", "not an argument of rules"),
            ("flows rule=br0", "BRIDGE/ID"),
            ("flows rule=br0/x", "x: not a rule"),
            ("flows interval=NaN", "0.1 to 60"),
            ("flows interval=1e9", "0.1 to 60"),
            ("flows fast", "not an argument"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }
}
