//! Plain tables: columns as wide as they need to be, two spaces between them.

use crate::printable::printable;

/// A table that is being filled.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Which columns are numbers, and set flush right.
    right: Vec<bool>,
}

impl Table {
    /// A table with these headings; one that starts with `>` is of a column of numbers.
    pub fn new(headings: &[&str]) -> Table {
        let right = headings.iter().map(|h| h.starts_with('>')).collect();
        let names = headings.iter().map(|h| h.trim_start_matches('>').to_string()).collect();
        Table { rows: vec![names], right }
    }

    /// Adds a row. Names can have line feeds in them, which are no ends of rows.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// The lines, each after `indent`.
    pub fn render(&self, indent: &str) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|r| r.get(column)).map(|c: &String| c.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cell = |(i, cell): (usize, &String)| {
                let width = widths.get(i).copied().unwrap_or(0);
                if self.right.get(i) == Some(&true) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            };
            let line = row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ");
            text += &format!("{indent}{}\n", line.trim_end());
        }
        text
    }
}

/// A number with its thousands set apart: `12 345 678`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">n", "last"]);
        table.row(vec!["a".into(), "10".into(), "x".into()]);
        table.row(vec!["long".into(), "7".into(), String::new()]);
        assert_eq!(table.render(" "), " name   n  last\n a     10  x\n long   7\n");
    }

    #[test]
    fn a_name_makes_no_row_of_its_own() {
        let mut table = Table::new(&["name", ">n"]);
        table.row(vec!["a\nforged".into(), "1".into()]);
        assert_eq!(table.render(""), "name      n\na?forged  1\n");
    }

    #[test]
    fn thousands() {
        let shown: Vec<_> = [0, 999, 1000, 1_234_567].into_iter().map(grouped).collect();
        assert_eq!(shown, ["0", "999", "1 000", "1 234 567"]);
    }
}
