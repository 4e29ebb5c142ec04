//! What an update changed: the rows, as they were and as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::row::Row;
use crate::types::Uuid;

/// What happened to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It is new.
    Insert,
    /// Columns of it differ.
    Modify,
    /// It is gone.
    Delete,
}

/// A row before and after. At least one of the two is there.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChange {
    /// As it was; none if it was not there.
    pub old: Option<Arc<Row>>,
    /// As it is; none if it is gone.
    pub new: Option<Arc<Row>>,
}

impl RowChange {
    /// What happened.
    pub fn kind(&self) -> ChangeKind {
        match (&self.old, &self.new) {
            (None, _) => ChangeKind::Insert,
            (Some(_), Some(_)) => ChangeKind::Modify,
            (Some(_), None) => ChangeKind::Delete,
        }
    }

    /// True if the value of `column` is not the same before and after; a row that comes or goes changes
    /// every column that it has.
    pub fn changed(&self, column: &str) -> bool {
        let value = |row: &Option<Arc<Row>>| row.as_ref().and_then(|r| r.get(column).cloned());
        value(&self.old) != value(&self.new)
    }
}

/// Rows that changed, by table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChangeSet {
    tables: BTreeMap<String, BTreeMap<Uuid, RowChange>>,
}

impl ChangeSet {
    /// Adds a change of a row that is not in the set.
    pub(crate) fn add(&mut self, table: &str, uuid: Uuid, change: RowChange) {
        if !self.tables.contains_key(table) {
            self.tables.insert(table.to_owned(), BTreeMap::new());
        }
        if let Some(rows) = self.tables.get_mut(table) {
            rows.insert(uuid, change);
        }
    }

    /// True if no row changed.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tables.values().map(BTreeMap::len).sum()
    }

    /// True if a row of `table` changed.
    pub fn touches(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// The change of one row.
    pub fn get(&self, table: &str, uuid: Uuid) -> Option<&RowChange> {
        self.tables.get(table)?.get(&uuid)
    }

    /// The rows of `table` that changed, in order of UUIDs.
    pub fn table(&self, table: &str) -> impl Iterator<Item = (Uuid, &RowChange)> {
        self.tables.get(table).into_iter().flatten().map(|(uuid, change)| (*uuid, change))
    }

    /// All changes: table, row, change.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Uuid, &RowChange)> {
        self.tables.iter().flat_map(|(table, rows)| rows.iter().map(|(uuid, c)| (table.as_str(), *uuid, c)))
    }

    /// Adds what changed afterwards. A row that is again as it was before drops out.
    pub fn merge(&mut self, later: ChangeSet) {
        for (table, rows) in later.tables {
            let mine = self.tables.entry(table).or_default();
            for (uuid, change) in rows {
                let old = match mine.remove(&uuid) {
                    Some(earlier) => earlier.old,
                    None => change.old,
                };
                if old != change.new {
                    mine.insert(uuid, RowChange { old, new: change.new });
                }
            }
        }
        self.tables.retain(|_, rows| !rows.is_empty());
    }
}
