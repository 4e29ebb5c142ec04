//! A copy in memory of selected tables and columns, kept up to date by monitor replies and update
//! notifications (RFC 7047 sections 4.1.5 and 4.1.6, ovsdb-server(7) 4.1.12 to 4.1.16).
//!
//! An update is applied whole or not at all, and every application returns what it changed. A clone of a
//! [`Replica`] is a cheap snapshot: tables and rows are shared until they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::change::{ChangeSet, RowChange};
use crate::row::{Layout, Row};
use crate::schema::DatabaseSchema;
use crate::types::{Datum, Uuid, ValueError, describe};

/// An update that does not fit the replica. The replica is as before; it has to be loaded anew.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UpdateError {
    /// Not an object where the protocol has one.
    #[error("{place}: {found} where an object is expected")]
    Shape {
        /// Table or row.
        place: String,
        /// What was there.
        found: String,
    },
    /// Not a UUID, or not a value of the column's type.
    #[error("{place}: {error}")]
    Value {
        /// Table, row and column.
        place: String,
        /// What is wrong.
        error: ValueError,
    },
    /// A change of a row that is not there.
    #[error("{table} {row}: change of a row that the replica does not have")]
    UnknownRow {
        /// Table.
        table: String,
        /// Row.
        row: Uuid,
    },
}

/// Which columns of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Columns {
    /// All that the schema has.
    All,
    /// These, as far as the schema has them.
    Named(Vec<String>),
}

/// What to replicate: tables and their columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    tables: BTreeMap<String, Columns>,
}

impl Selection {
    /// Nothing.
    pub fn new() -> Selection {
        Selection::default()
    }

    /// Adds a table with all of its columns.
    pub fn all(mut self, table: &str) -> Selection {
        self.tables.insert(table.to_owned(), Columns::All);
        self
    }

    /// Adds columns of a table.
    pub fn columns(mut self, table: &str, columns: &[&str]) -> Selection {
        let entry = self.tables.entry(table.to_owned()).or_insert_with(|| Columns::Named(Vec::new()));
        if let Columns::Named(names) = entry {
            names.extend(columns.iter().map(|&c| c.to_owned()));
        }
        self
    }
}

/// The forms in which a server reports changes, the best last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// `monitor` with `update`: old and new values.
    Monitor,
    /// `monitor_cond` with `update2`: differences.
    MonitorCond,
    /// `monitor_cond_since` with `update3`: differences, and the last transaction's id.
    MonitorCondSince,
}

impl Method {
    /// Name of the request.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Monitor => "monitor",
            Method::MonitorCond => "monitor_cond",
            Method::MonitorCondSince => "monitor_cond_since",
        }
    }

    /// Name of the notification.
    pub const fn notification(self) -> &'static str {
        match self {
            Method::Monitor => "update",
            Method::MonitorCond => "update2",
            Method::MonitorCondSince => "update3",
        }
    }

    /// What to try when a server does not know this one.
    pub const fn fallback(self) -> Option<Method> {
        match self {
            Method::MonitorCondSince => Some(Method::MonitorCond),
            Method::MonitorCond => Some(Method::Monitor),
            Method::Monitor => None,
        }
    }
}

/// A table of the replica.
#[derive(Clone, Debug)]
pub struct Table {
    layout: Arc<Layout>,
    rows: BTreeMap<Uuid, Arc<Row>>,
}

impl Table {
    /// Its columns.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A row.
    pub fn get(&self, uuid: Uuid) -> Option<&Arc<Row>> {
        self.rows.get(&uuid)
    }

    /// The rows in order of UUIDs.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &Arc<Row>> {
        self.rows.values()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// A copy of parts of a database.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    tables: BTreeMap<String, Arc<Table>>,
    last_txn: Option<Uuid>,
}

/// Rows that an update sets (some) or removes (none).
type Staged = Vec<(Arc<Layout>, Uuid, Option<Row>)>;

impl Replica {
    /// One without tables.
    pub fn new() -> Replica {
        Replica::default()
    }

    /// A table; none if it is not selected or the server does not have it.
    pub fn table(&self, table: &str) -> Option<&Table> {
        self.tables.get(table).map(Arc::as_ref)
    }

    /// The tables in order of names.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.tables.iter().map(|(name, table)| (name.as_str(), table.as_ref()))
    }

    /// The rows of a table in order of UUIDs; none if there is no such table.
    pub fn rows(&self, table: &str) -> impl Iterator<Item = &Arc<Row>> {
        self.tables.get(table).into_iter().flat_map(|t| t.rows.values())
    }

    /// A row.
    pub fn row(&self, table: &str, uuid: Uuid) -> Option<&Arc<Row>> {
        self.tables.get(table)?.get(uuid)
    }

    /// The first row of a table whose column `column` is the string `value`.
    pub fn find(&self, table: &str, column: &str, value: &str) -> Option<&Arc<Row>> {
        self.rows(table).find(|row| row.string(column) == Some(value))
    }

    /// The transaction up to which the contents are known, if the server tells.
    pub fn last_txn(&self) -> Option<Uuid> {
        self.last_txn
    }

    /// Prepares for the schema of a server. Contents stay for comparison with what is loaded next;
    /// if the columns are not those of before, a resumption is impossible and `last_txn` is forgotten.
    /// Returns the tables (`T`) and columns (`T:C`) selected that the server does not have.
    pub fn prepare(&mut self, schema: &DatabaseSchema, selection: &Selection) -> Vec<String> {
        let mut missing = Vec::new();
        let mut layouts = BTreeMap::new();
        for (name, columns) in &selection.tables {
            let Some(table) = schema.tables.get(name) else {
                missing.push(name.clone());
                continue;
            };
            let mut chosen = Vec::new();
            match columns {
                Columns::All => chosen.extend(table.columns.iter().map(|(name, c)| (name.clone(), c.kind.clone()))),
                Columns::Named(names) => {
                    for column in names {
                        match table.columns.get(column) {
                            Some(c) => chosen.push((column.clone(), c.kind.clone())),
                            None => missing.push(format!("{name}:{column}")),
                        }
                    }
                }
            }
            chosen.sort_by(|a, b| a.0.cmp(&b.0));
            chosen.dedup_by(|a, b| a.0 == b.0);
            layouts.insert(name.clone(), Layout { table: name.clone(), columns: chosen });
        }
        let same = layouts.len() == self.tables.len()
            && layouts.iter().all(|(name, layout)| self.tables.get(name).is_some_and(|t| *t.layout == *layout));
        if !same {
            self.last_txn = None;
            // A table that is gone keeps its rows, so that loading reports their deletion.
            for (name, layout) in layouts {
                let rows = self.tables.get(&name).map(|t| t.rows.clone()).unwrap_or_default();
                self.tables.insert(name, Arc::new(Table { layout: Arc::new(layout), rows }));
            }
            self.tables.retain(|name, table| schema.tables.contains_key(name) || !table.is_empty());
        }
        missing
    }

    /// The `<monitor-requests>` for the tables of the replica that `schema` has.
    pub fn monitor_requests(&self, schema: &DatabaseSchema) -> Value {
        let mut requests = Map::new();
        for (name, table) in self.tables.iter().filter(|(name, _)| schema.tables.contains_key(*name)) {
            let columns: Vec<&str> = table.layout.columns.iter().map(|(c, _)| c.as_str()).collect();
            requests.insert(name.clone(), json!([{ "columns": columns }]));
        }
        Value::Object(requests)
    }

    /// Takes the whole contents, from the reply to a monitor request, and returns how they differ from
    /// what was there.
    pub fn load(&mut self, method: Method, last_txn: Option<Uuid>, json: &Value) -> Result<ChangeSet, UpdateError> {
        let staged = self.stage(method, json, true)?;
        let mut kept: BTreeMap<&str, BTreeMap<Uuid, ()>> = BTreeMap::new();
        for (layout, uuid, row) in &staged {
            if row.is_some() {
                kept.entry(&layout.table).or_default().insert(*uuid, ());
            }
        }
        let mut gone = Vec::new();
        for (name, table) in &self.tables {
            let kept = kept.get(name.as_str());
            let absent = table.rows.keys().filter(|uuid| kept.is_none_or(|k| !k.contains_key(uuid)));
            gone.extend(absent.map(|uuid| (table.layout.clone(), *uuid, None)));
        }
        let mut changes = self.commit(gone);
        changes.merge(self.commit(staged));
        self.last_txn = last_txn.filter(|txn| *txn != Uuid::ZERO);
        Ok(changes)
    }

    /// Applies changes, from a notification or from the reply to a request that resumes.
    pub fn update(&mut self, method: Method, last_txn: Option<Uuid>, json: &Value) -> Result<ChangeSet, UpdateError> {
        let staged = self.stage(method, json, false)?;
        let changes = self.commit(staged);
        self.last_txn = last_txn.filter(|txn| *txn != Uuid::ZERO);
        Ok(changes)
    }

    /// Forgets which transaction is the last, so that the next load is a whole one.
    pub fn forget_last_txn(&mut self) {
        self.last_txn = None;
    }

    /// Reads `<table-updates>` or `<table-updates2>` without changing anything.
    fn stage(&self, method: Method, json: &Value, whole: bool) -> Result<Staged, UpdateError> {
        let mut staged = Vec::new();
        for (name, rows) in object(json, "update")? {
            // A server may know more than was asked for.
            let Some(table) = self.tables.get(name) else { continue };
            for (uuid, update) in object(rows, name)? {
                let uuid: Uuid = uuid.parse().map_err(|error| UpdateError::Value { place: name.clone(), error })?;
                let update = object(update, name)?;
                let row = match method {
                    Method::Monitor => stage_update(table, uuid, update, whole)?,
                    Method::MonitorCond | Method::MonitorCondSince => stage_update2(table, uuid, update)?,
                };
                staged.push((table.layout.clone(), uuid, row));
            }
        }
        Ok(staged)
    }

    fn commit(&mut self, staged: Staged) -> ChangeSet {
        let mut changes = ChangeSet::default();
        for (layout, uuid, row) in staged {
            let Some(table) = self.tables.get_mut(&layout.table) else { continue };
            let old = table.rows.get(&uuid);
            let same = match (old, &row) {
                (Some(old), Some(new)) => **old == *new,
                (None, None) => true,
                _ => false,
            };
            if same {
                continue;
            }
            let new = row.map(Arc::new);
            let table = Arc::make_mut(table);
            let old = match &new {
                Some(new) => table.rows.insert(uuid, new.clone()),
                None => table.rows.remove(&uuid),
            };
            changes.add(&layout.table, uuid, RowChange { old, new });
        }
        changes
    }
}

/// `<row-update>` of RFC 7047: `old` and `new`.
fn stage_update(
    table: &Table,
    uuid: Uuid,
    update: &Map<String, Value>,
    whole: bool,
) -> Result<Option<Row>, UpdateError> {
    match update.get("new") {
        Some(new) => {
            if !whole && update.contains_key("old") && !table.rows.contains_key(&uuid) {
                return Err(UpdateError::UnknownRow { table: table.layout.table.clone(), row: uuid });
            }
            whole_row(table, uuid, new).map(Some)
        }
        None => removal(table, uuid),
    }
}

/// `<row-update2>`: one of `initial`, `insert`, `modify`, `delete`.
fn stage_update2(table: &Table, uuid: Uuid, update: &Map<String, Value>) -> Result<Option<Row>, UpdateError> {
    if let Some(row) = update.get("initial").or_else(|| update.get("insert")) {
        return whole_row(table, uuid, row).map(Some);
    }
    let Some(difference) = update.get("modify") else {
        return removal(table, uuid);
    };
    let unknown = || UpdateError::UnknownRow { table: table.layout.table.clone(), row: uuid };
    let old = table.rows.get(&uuid).ok_or_else(unknown)?;
    let mut values: Box<[Datum]> = table.layout.columns.iter().map(|(c, kind)| value_of(old, c, kind)).collect();
    for (column, json) in object(difference, &table.layout.table)? {
        let Some(i) = table.layout.position(column) else { continue };
        let kind = &table.layout.columns[i].1;
        let value = Datum::parse(json, kind).map_err(|error| at(&table.layout, uuid, column, error))?;
        if kind.is_composite() { values[i].apply_difference(&value) } else { values[i] = value }
    }
    Ok(Some(Row::new(uuid, table.layout.clone(), values)))
}

fn value_of(row: &Row, column: &str, kind: &crate::schema::ColumnType) -> Datum {
    row.get(column).cloned().unwrap_or_else(|| kind.default_datum())
}

fn removal(table: &Table, uuid: Uuid) -> Result<Option<Row>, UpdateError> {
    match table.rows.contains_key(&uuid) {
        true => Ok(None),
        false => Err(UpdateError::UnknownRow { table: table.layout.table.clone(), row: uuid }),
    }
}

/// `<row>`: columns that are absent have their defaults.
fn whole_row(table: &Table, uuid: Uuid, json: &Value) -> Result<Row, UpdateError> {
    let json = object(json, &table.layout.table)?;
    let values = table.layout.columns.iter().map(|(column, kind)| match json.get(column) {
        Some(value) => Datum::parse(value, kind).map_err(|error| at(&table.layout, uuid, column, error)),
        None => Ok(kind.default_datum()),
    });
    Ok(Row::new(uuid, table.layout.clone(), values.collect::<Result<_, _>>()?))
}

fn at(layout: &Layout, uuid: Uuid, column: &str, error: ValueError) -> UpdateError {
    UpdateError::Value { place: format!("{} {uuid} {column}", layout.table), error }
}

fn object<'a>(json: &'a Value, place: &str) -> Result<&'a Map<String, Value>, UpdateError> {
    json.as_object().ok_or_else(|| UpdateError::Shape { place: place.to_owned(), found: describe(json) })
}

#[cfg(test)]
mod tests;
