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

/// The candidate that `word` is most likely a misspelling of.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    let measured = candidates.into_iter().map(|c| (edit_distance(word, c), c));
    measured.min().filter(|&(distance, c)| distance <= (c.len().max(3) / 3).max(1)).map(|(_, c)| c)
}

/// How many characters to insert, delete, change or swap with their neighbour; `_` and `-`, upper and
/// lower case are taken as equal.
fn edit_distance(a: &str, b: &str) -> usize {
    let plain = |s: &str| s.to_ascii_lowercase().replace('_', "-").chars().collect::<Vec<_>>();
    let (a, b) = (plain(a), plain(b));
    let mut d = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                d[i][j] = i + j;
                continue;
            }
            let changed = d[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            d[i][j] = changed.min(d[i - 1][j] + 1).min(d[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                d[i][j] = d[i][j].min(d[i - 2][j - 2] + 1);
            }
        }
    }
    d[a.len()][b.len()]
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
        assert_eq!(nearest("tpye", keys), Some("type"));
        assert_eq!(nearest("controller", keys), None);
    }
}
