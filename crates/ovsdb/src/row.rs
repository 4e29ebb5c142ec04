//! Rows of the replica, and typed access to their columns.

use std::fmt;
use std::sync::Arc;

use crate::schema::ColumnType;
use crate::types::{Atom, Datum, Uuid};

/// The columns of a table that are replicated, in order of their names.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Name of the table.
    pub table: String,
    /// Names and types.
    pub columns: Vec<(String, ColumnType)>,
}

impl Layout {
    /// The place of a column.
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.binary_search_by(|(name, _)| name.as_str().cmp(column)).ok()
    }
}

/// A row, as it was at one time. The accessors take the name of a column and return nothing (or an empty
/// value) where the server's schema has no such column, so that callers need not know its version.
#[derive(Clone)]
pub struct Row {
    uuid: Uuid,
    layout: Arc<Layout>,
    /// In the order of the layout.
    values: Box<[Datum]>,
}

impl Row {
    pub(crate) fn new(uuid: Uuid, layout: Arc<Layout>, values: Box<[Datum]>) -> Row {
        debug_assert_eq!(layout.columns.len(), values.len());
        Row { uuid, layout, values }
    }

    /// Its name.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Name of its table.
    pub fn table(&self) -> &str {
        &self.layout.table
    }

    /// The value of a column.
    pub fn get(&self, column: &str) -> Option<&Datum> {
        self.values.get(self.layout.position(column)?)
    }

    /// All columns and their values, in order of names.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Datum)> {
        self.layout.columns.iter().zip(&*self.values).map(|((name, _), value)| (name.as_str(), value))
    }

    /// The one element of a column; none if it is empty, has several, or is a map.
    pub fn atom(&self, column: &str) -> Option<&Atom> {
        self.get(column)?.atom()
    }

    /// The elements of a set.
    pub fn atoms(&self, column: &str) -> &[Atom] {
        self.get(column).map_or(&[], Datum::atoms)
    }

    /// A string, or an optional one that is there.
    pub fn string(&self, column: &str) -> Option<&str> {
        self.atom(column)?.as_str()
    }

    /// An integer, or an optional one that is there.
    pub fn integer(&self, column: &str) -> Option<i64> {
        self.atom(column)?.as_integer()
    }

    /// A real, or an optional one that is there.
    pub fn real(&self, column: &str) -> Option<f64> {
        self.atom(column)?.as_real()
    }

    /// A boolean, or an optional one that is there.
    pub fn boolean(&self, column: &str) -> Option<bool> {
        self.atom(column)?.as_boolean()
    }

    /// A reference, or an optional one that is there.
    pub fn reference(&self, column: &str) -> Option<Uuid> {
        self.atom(column)?.as_uuid()
    }

    /// The strings of a set.
    pub fn strings(&self, column: &str) -> impl Iterator<Item = &str> {
        self.atoms(column).iter().filter_map(Atom::as_str)
    }

    /// The integers of a set.
    pub fn integers(&self, column: &str) -> impl Iterator<Item = i64> {
        self.atoms(column).iter().filter_map(Atom::as_integer)
    }

    /// The references of a set.
    pub fn references(&self, column: &str) -> impl Iterator<Item = Uuid> {
        self.atoms(column).iter().filter_map(Atom::as_uuid)
    }

    /// The value at `key` of a map from strings to strings.
    pub fn map_string(&self, column: &str, key: &str) -> Option<&str> {
        self.get(column)?.get(key)?.as_str()
    }

    /// The pairs of a map from strings to strings.
    pub fn string_pairs(&self, column: &str) -> impl Iterator<Item = (&str, &str)> {
        self.get(column).map_or(&[][..], Datum::pairs).iter().filter_map(|(k, v)| Some((k.as_str()?, v.as_str()?)))
    }

    /// The pairs of a map.
    pub fn pairs(&self, column: &str) -> &[(Atom, Atom)] {
        self.get(column).map_or(&[], Datum::pairs)
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.uuid == other.uuid
            && self.values == other.values
            && (Arc::ptr_eq(&self.layout, &other.layout) || self.layout == other.layout)
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {{", self.layout.table, self.uuid)?;
        for (i, (name, value)) in self.columns().enumerate() {
            write!(f, "{}{name}: {value}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("}")
    }
}
