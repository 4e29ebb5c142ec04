//! What is measured, for Prometheus: the declaration of each metric, and the text that it is read as.
//!
//! A metric is declared once, in a table for what it is about: its name, its labels, what it means, and where its values come from.
//! The text and the check of docs/metrics.md follow from that. Whoever asks ([`commands::metrics`](crate::daemon::commands), by the
//! control socket or by HTTP) collects what the tables are about, and gets the text in pieces: the samples of a metric stand together
//! (a rule of the format), so what they are read from is collected before, and each piece goes over some of it.
//!
//! Names and units are those of Prometheus's conventions: seconds, bytes, `_total` for what only rises. A counter starts again at
//! zero when its port or worker is made anew, or when a command clears it, which Prometheus's `rate` takes for what it is.
//!
//! - [`bridges`]: bridges, their OpenFlow tables and controllers
//! - [`datapath`]: flows, drops, revalidation, connection tracking
//! - [`ports`]: what is counted by port
//! - [`process`]: the daemon as a process
//! - [`text`]: the text format
//! - [`workers`]: what is counted by worker

use crate::unixctl::Pieces;

pub mod bridges;
pub mod datapath;
pub mod ports;
pub mod process;
pub mod text;
pub mod workers;

pub use text::{Number, Samples};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises, until it starts again at zero.
    Counter,
    /// Rises and falls.
    Gauge,
    /// How often which values occurred. Has samples for each bucket, the sum and the count, by [`Samples::add_histogram`].
    Histogram,
}

impl Kind {
    /// Its name in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric of subjects `T`.
pub struct Metric<T: 'static> {
    /// Its name, whose end says the unit.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means, in words.
    pub help: &'static str,
    /// Adds the samples of a subject, none where it is not known: the values of all labels, and the number.
    pub samples: fn(&T, &mut Samples<'_>),
}

/// Declares metrics: name, kind, labels, where samples come from, help.
macro_rules! metrics {
    ($($name:literal $kind:ident $labels:tt $samples:expr, $help:literal;)*) => {
        &[$($crate::metrics::Metric {
            name: $name, kind: $crate::metrics::Kind::$kind, labels: &$labels, help: $help, samples: $samples,
        },)*]
    };
}
use metrics;

/// Most subjects that are looked at in one piece.
pub const PIECE: usize = 64;

/// The text of `metrics` about what `collect` appends, which is called until it says that this was the last of it.
pub fn pieces<T: 'static>(
    metrics: &'static [Metric<T>],
    mut collect: impl FnMut(&mut Vec<T>) -> bool + 'static,
) -> Pieces {
    let (mut subjects, mut complete) = (Vec::new(), false);
    let (mut metric, mut subject) = (0, 0);
    Box::new(move |text| {
        if !complete {
            complete = !collect(&mut subjects);
            return true;
        }
        let Some(shown) = metrics.get(metric) else { return false };
        if subject == 0 {
            text::heading(text, shown.name, shown.kind, shown.help);
        }
        let end = subjects.len().min(subject + PIECE);
        let mut samples = Samples::new(text, shown.name, shown.labels);
        subjects[subject..end].iter().for_each(|subject| (shown.samples)(subject, &mut samples));
        (metric, subject) = if end == subjects.len() { (metric + 1, 0) } else { (metric, end) };
        true
    })
}

/// The same about one subject.
pub fn of_one<T: 'static>(metrics: &'static [Metric<T>], subject: T) -> Pieces {
    let mut subject = Some(subject);
    pieces(metrics, move |subjects| {
        subjects.extend(subject.take());
        false
    })
}

/// A metric as the documentation has it.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// Every metric, in the order of the text.
pub fn declared() -> Vec<Declaration> {
    fn of<T>(metrics: &'static [Metric<T>]) -> impl Iterator<Item = Declaration> {
        metrics.iter().map(|m| Declaration { name: m.name, kind: m.kind, labels: m.labels, help: m.help })
    }
    of(process::METRICS)
        .chain(of(datapath::METRICS))
        .chain(of(datapath::PORT_DROPS))
        .chain(of(workers::METRICS))
        .chain(of(bridges::METRICS))
        .chain(of(bridges::TABLES))
        .chain(of(bridges::CONTROLLERS))
        .chain(of(ports::METRICS))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let all = declared();
        for (i, metric) in all.iter().enumerate() {
            let Declaration { name, kind, help, .. } = metric;
            assert!(name.starts_with("weir_") || name.starts_with("process_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(help.ends_with('.') && !help.contains('|') && !help.contains('\n'), "{name}: {help}");
            assert!(all[..i].iter().all(|other| other.name != *name), "{name} is there twice");
        }
    }

    #[test]
    fn the_documentation_has_each_metric_and_no_other() {
        let documentation = include_str!("../../../../docs/metrics.md");
        let documented: Vec<_> = documentation.lines().filter(|line| line.starts_with("| `")).collect();
        let declared: Vec<_> = declared()
            .iter()
            .map(|m| format!("| `{}` | {} | {} | {} |", m.name, m.kind.name(), m.labels.join(", "), m.help))
            .collect();
        for line in &declared {
            assert!(documented.contains(&line.as_str()), "docs/metrics.md lacks: {line}");
        }
        for line in documented {
            assert!(
                declared.iter().any(|declared| declared == line),
                "docs/metrics.md has, and nobody exports: {line}"
            );
        }
    }

    #[test]
    fn the_samples_of_a_metric_stand_together_however_many_subjects_there_are() {
        static METRICS: &[Metric<usize>] = metrics! {
            "weir_first" Gauge ["n"] |n, out| out.add(&[&n.to_string()], *n), "First.";
            "weir_second_total" Counter ["n"] |n, out| out.add(&[&n.to_string()], 2 * *n), "Second.";
        };
        for count in [0, 1, PIECE, 3 * PIECE + 1] {
            let mut rest = 0..count;
            let mut made = pieces(METRICS, move |subjects| {
                subjects.extend(rest.by_ref().take(7));
                !rest.is_empty()
            });
            let (mut text, mut longest) = (String::new(), 0);
            loop {
                let before = text.len();
                if !made(&mut text) {
                    break;
                }
                longest = longest.max(text[before..].lines().count());
            }
            let mut expected = String::from("# HELP weir_first First.\n# TYPE weir_first gauge\n");
            (0..count).for_each(|n| expected += &format!("weir_first{{n=\"{n}\"}} {n}\n"));
            expected += "# HELP weir_second_total Second.\n# TYPE weir_second_total counter\n";
            (0..count).for_each(|n| expected += &format!("weir_second_total{{n=\"{n}\"}} {}\n", 2 * n));
            assert_eq!(text, expected);
            assert!(longest <= PIECE + 2, "{longest} lines in one piece");
        }
    }
}
