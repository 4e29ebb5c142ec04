//! What is wrong with a configuration: where, what, and what would be right.

use std::fmt;
use std::path::PathBuf;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; `None` where the file as a whole is meant.
    pub line: Option<usize>,
    /// The key with all the tables around it, `bridges.br0.ports.p1.tag`; empty at the top.
    pub key: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// All the mistakes in a configuration, in the order of the file; one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The candidate that `word` is most likely a slip of the pen for.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let measured = candidates.into_iter().map(|c| (edit_distance(word, c), c));
    measured.min().filter(|&(distance, c)| distance <= (c.len().max(3) / 3).max(1)).map(|(_, c)| c)
}

/// Levenshtein's distance, with `_` and `-` and upper and lower case taken as equal.
fn edit_distance(a: &str, b: &str) -> usize {
    let plain = |s: &str| s.to_ascii_lowercase().replace('_', "-").chars().collect::<Vec<_>>();
    let (a, b) = (plain(a), plain(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_no_more() {
        let keys = ["type", "options", "trunks", "tag", "vlan-mode"];
        assert_eq!(nearest("option", keys), Some("options"));
        assert_eq!(nearest("vlan_mode", keys), Some("vlan-mode"));
        assert_eq!(nearest("Tagg", keys), Some("tag"));
        assert_eq!(nearest("controller", keys), None);
    }
}
