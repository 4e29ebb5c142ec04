//! Prometheus's text format, version 0.0.4 ("Exposition formats" in Prometheus's documentation).
//!
//! Written here: the crates for it either write OpenMetrics only, which `promtool check metrics` and other readers of this format do
//! not take, or want all metrics in memory in forms of their own, where this is written piece by piece from what is there anyway.

use std::fmt::Write as _;

use super::Kind;

/// The media type of the text.
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole number.
    Whole(u64),
    /// Any other.
    Real(f64),
}

impl From<u64> for Number {
    fn from(n: u64) -> Number {
        Number::Whole(n)
    }
}

impl From<u32> for Number {
    fn from(n: u32) -> Number {
        Number::Whole(n.into())
    }
}

impl From<usize> for Number {
    fn from(n: usize) -> Number {
        Number::Whole(n as u64)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Number {
        Number::Whole(is.into())
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Number {
        Number::Real(n)
    }
}

/// Writes what stands before the samples of a metric.
pub(super) fn heading(text: &mut String, name: &str, kind: Kind, help: &str) {
    let _ = write!(text, "# HELP {name} ");
    escape(text, help, false);
    let _ = writeln!(text, "\n# TYPE {name} {}", kind.name());
}

/// Where the samples of one metric go.
pub struct Samples<'a> {
    text: &'a mut String,
    name: &'static str,
    labels: &'static [&'static str],
}

impl<'a> Samples<'a> {
    pub(super) fn new(text: &'a mut String, name: &'static str, labels: &'static [&'static str]) -> Samples<'a> {
        Samples { text, name, labels }
    }

    /// Adds a sample; `values` are those of the labels, in the order of their declaration.
    pub fn add(&mut self, values: &[&str], number: impl Into<Number>) {
        self.add_part("", values, None, number);
    }

    /// Adds a histogram: for each bucket but the last one, the largest value in it; how many values each bucket has; and the sum of all.
    pub fn add_histogram(&mut self, values: &[&str], walls: &[u32], counts: &[u64], sum: u64) {
        debug_assert_eq!(walls.len() + 1, counts.len(), "{}", self.name);
        let walls = walls.iter().map(u32::to_string).chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (wall, in_bucket) in walls.zip(counts) {
            // Buckets have what is in those below them, too.
            count += in_bucket;
            self.add_part("_bucket", values, Some(&wall), count);
        }
        self.add_part("_sum", values, None, sum);
        self.add_part("_count", values, None, count);
    }

    fn add_part(&mut self, part: &str, values: &[&str], bucket: Option<&str>, number: impl Into<Number>) {
        debug_assert_eq!(values.len(), self.labels.len(), "{}", self.name);
        self.text.push_str(self.name);
        self.text.push_str(part);
        let mut before = '{';
        let bucket = bucket.map(|bucket| (&"le", bucket));
        for (label, value) in self.labels.iter().zip(values.iter().copied()).chain(bucket) {
            self.text.push(before);
            self.text.push_str(label);
            self.text.push_str("=\"");
            escape(self.text, value, true);
            self.text.push('"');
            before = ',';
        }
        self.text.push_str(if before == ',' { "} " } else { " " });
        let _ = match number.into() {
            Number::Whole(n) => writeln!(self.text, "{n}"),
            // The format's words, which are those of Go.
            Number::Real(n) if n.is_nan() => writeln!(self.text, "NaN"),
            Number::Real(n) if n.is_infinite() => writeln!(self.text, "{}Inf", if n > 0.0 { '+' } else { '-' }),
            Number::Real(n) => writeln!(self.text, "{n}"),
        };
    }
}

/// Escapes backslashes and line feeds, and double quotes where the text is a label's value.
fn escape(text: &mut String, raw: &str, quoted: bool) {
    for c in raw.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quoted => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(labels: &'static [&'static str], values: &[&str], number: impl Into<Number>) -> String {
        let mut text = String::new();
        Samples::new(&mut text, "m", labels).add(values, number);
        text
    }

    /// Reads the labels of a line as the format has them.
    fn read(line: &str) -> Option<(Vec<(String, String)>, &str)> {
        let mut rest = line.strip_prefix("m{")?;
        let mut labels = Vec::new();
        loop {
            let (name, behind) = rest.split_once("=\"")?;
            let (mut value, mut chars) = (String::new(), behind.chars());
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => value.push(match chars.next()? {
                        'n' => '\n',
                        c => c,
                    }),
                    '\n' => return None,
                    c => value.push(c),
                }
            }
            labels.push((name.to_owned(), value));
            rest = chars.as_str();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => return Some((labels, rest.strip_prefix("} ")?.strip_suffix('\n')?)),
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_a_port_is_called_it_stays_one_label(a in any::<String>(), b in any::<String>(), n in any::<u64>()) {
            let text = line(&["a", "b"], &[&a, &b], n);
            let (labels, number) = read(&text).expect("a sample");
            prop_assert_eq!(labels, vec![("a".to_string(), a), ("b".to_string(), b)]);
            prop_assert_eq!(number, n.to_string());
        }
    }

    #[test]
    fn numbers_are_those_of_the_format() {
        for (number, expected) in [
            (Number::Whole(u64::MAX), "m 18446744073709551615\n"),
            (Number::Real(0.25), "m 0.25\n"),
            (Number::Real(f64::NAN), "m NaN\n"),
            (Number::Real(f64::INFINITY), "m +Inf\n"),
            (Number::Real(f64::NEG_INFINITY), "m -Inf\n"),
            (true.into(), "m 1\n"),
        ] {
            assert_eq!(line(&[], &[], number), expected);
        }
    }

    #[test]
    fn help_is_one_line() {
        let mut text = String::new();
        heading(&mut text, "m", Kind::Counter, "A \"b\"\n\\ c.");
        assert_eq!(text, "# HELP m A \"b\"\\n\\\\ c.\n# TYPE m counter\n");
    }
}
