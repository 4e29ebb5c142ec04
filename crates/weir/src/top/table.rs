//! A table as a screen shows it: columns that are declared once, lines that can be sorted and filtered.

use std::cmp::Ordering;

use crate::printable::printable;

/// What a cell is sorted by.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Key {
    /// A number, the highest first.
    Number(f64),
    /// A text, in the order of the alphabet.
    Text(String),
}

/// What a cell holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number by second, or a count: shown with a unit prefix.
    Rate(f64),
    /// A number, whole.
    Count(u64),
    /// A part of something, in percent.
    Percent(f64),
    /// Nothing is known.
    Unknown,
}

impl Value {
    /// As it is shown.
    pub fn text(&self) -> String {
        match self {
            Value::Text(text) => printable(text),
            Value::Rate(rate) => si(*rate),
            Value::Count(count) => count.to_string(),
            Value::Percent(percent) => format!("{percent:.1}"),
            Value::Unknown => "-".into(),
        }
    }

    fn key(&self) -> Key {
        match self {
            Value::Text(text) => Key::Text(text.clone()),
            Value::Rate(n) | Value::Percent(n) => Key::Number(*n),
            Value::Count(n) => Key::Number(*n as f64),
            Value::Unknown => Key::Number(-1.0),
        }
    }
}

/// A number in at most five characters, by prefixes of a thousand.
fn si(n: f64) -> String {
    if n == 0.0 {
        return "0".into();
    }
    if n < 9.95 {
        return format!("{n:.1}");
    }
    let (mut n, mut prefix) = (n, "");
    for next in ["k", "M", "G", "T", "P", "E"] {
        if n < 999.5 {
            break;
        }
        (n, prefix) = (n / 1000.0, next);
    }
    if prefix.is_empty() || n >= 99.95 { format!("{n:.0}{prefix}") } else { format!("{n:.1}{prefix}") }
}

/// A column of rows `R`, declared once for headings, cells, order and help.
pub struct Column<R> {
    /// Heading.
    pub heading: &'static str,
    /// Width; of the last column, the least.
    pub width: u16,
    /// Whether it is set flush right.
    pub right: bool,
    /// What is in it.
    pub value: fn(&R) -> Value,
}

/// A heading.
#[derive(Clone, Debug, PartialEq)]
pub struct Heading {
    /// What it says.
    pub text: &'static str,
    /// Width of the column; of the last one, the least.
    pub width: u16,
    /// Whether it is set flush right.
    pub right: bool,
}

/// Where a line leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A port: its queues, drops and flows.
    Port(String),
    /// A rule of a bridge, by its id, with its text: its datapath flows.
    Rule {
        /// As `weir/top flows rule=` takes it.
        rule: String,
        /// For people.
        text: String,
    },
    /// The whole text of the line.
    Text(String),
}

/// A line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Cells, one for each heading.
    pub cells: Vec<String>,
    keys: Vec<Key>,
    /// Where it leads.
    pub target: Option<Target>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it is about, where there are several on a screen.
    pub title: String,
    /// Headings.
    pub headings: Vec<Heading>,
    /// Lines.
    pub lines: Vec<Line>,
}

impl Table {
    /// A table of rows.
    pub fn of<'a, R: 'a>(
        title: impl Into<String>,
        columns: &[Column<R>],
        rows: impl IntoIterator<Item = &'a R>,
        target: impl Fn(&R) -> Option<Target>,
    ) -> Table {
        let line = |row: &R| {
            let values: Vec<_> = columns.iter().map(|column| (column.value)(row)).collect();
            let (cells, keys) = values.iter().map(|value| (value.text(), value.key())).unzip();
            Line { cells, keys, target: target(row) }
        };
        Table {
            title: title.into(),
            headings: columns.iter().map(|c| Heading { text: c.heading, width: c.width, right: c.right }).collect(),
            lines: rows.into_iter().map(line).collect(),
        }
    }

    /// Keeps the lines that have `words` somewhere, in upper or lower case.
    pub fn retain(&mut self, words: &str) {
        let words = words.to_lowercase();
        self.lines.retain(|line| line.cells.iter().any(|cell| cell.to_lowercase().contains(&words)));
    }

    /// Sorts by a column: numbers with the highest first, texts by the alphabet; or the other way round. Equal lines stay in their order.
    pub fn sort(&mut self, column: usize, reverse: bool) {
        self.lines.sort_by(|a, b| {
            let order = match (a.keys.get(column), b.keys.get(column)) {
                (Some(Key::Text(a)), Some(Key::Text(b))) => a.cmp(b),
                (Some(a), Some(b)) => b.partial_cmp(a).unwrap_or(Ordering::Equal),
                _ => Ordering::Equal,
            };
            if reverse { order.reverse() } else { order }
        });
    }

    /// As text, for `--once`.
    pub fn text(&self) -> String {
        let right = |heading: &Heading| if heading.right { format!(">{}", heading.text) } else { heading.text.into() };
        let headings: Vec<String> = self.headings.iter().map(right).collect();
        let mut table = crate::report::table::Table::new(&headings.iter().map(String::as_str).collect::<Vec<_>>());
        self.lines.iter().for_each(|line| table.row(line.cells.clone()));
        format!("{}\n{}", printable(&self.title), table.render("  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column<(&str, f64)>] = &[
        Column { heading: "name", width: 5, right: false, value: |r| Value::Text(r.0.into()) },
        Column { heading: "n", width: 5, right: true, value: |r| Value::Rate(r.1) },
    ];

    fn names(table: &Table) -> Vec<&str> {
        table.lines.iter().map(|line| line.cells[0].as_str()).collect()
    }

    #[test]
    fn lines_are_sorted_and_filtered() {
        let rows = [("b", 1.0), ("c", 12_345.0), ("A", 2.0)];
        let mut table = Table::of("all", COLUMNS, &rows, |_| None);
        table.sort(1, false);
        assert_eq!(names(&table), ["c", "A", "b"]);
        table.sort(1, true);
        assert_eq!(names(&table), ["b", "A", "c"]);
        table.sort(0, false);
        assert_eq!(names(&table), ["A", "b", "c"]);
        table.sort(7, false);
        table.retain("a");
        assert_eq!(names(&table), ["A"]);
        table.retain("12.3K");
        assert!(table.lines.is_empty());
    }

    #[test]
    fn numbers_take_five_characters() {
        for (n, text) in [
            (0.0, "0"),
            (0.04, "0.0"),
            (9.94, "9.9"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (999_600.0, "1.0M"),
            (14_880_952.0, "14.9M"),
            (u64::MAX as f64, "18.4E"),
        ] {
            assert_eq!(si(n), text);
        }
    }

    #[test]
    fn no_command_for_a_terminal_is_in_a_cell() {
        let table = Table::of("t\x1bitle", COLUMNS, &[("a\x1b[2J", 0.0)], |_| None);
        assert_eq!(names(&table), ["a?[2J"]);
        assert!(!table.text().contains('\x1b'));
    }
}
