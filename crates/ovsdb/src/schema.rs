//! Schemas: tables, columns and their types (RFC 7047 section 3.2), as `get_schema` returns them.
//!
//! Reading is tolerant: members that are not known are passed over, and a column whose type cannot be
//! read is left out and named in [`DatabaseSchema::left_out`], so that a client goes on working with the
//! schema of an older or newer server.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use thiserror::Error;

use crate::types::{Atom, AtomicType, Datum, ValueError, describe};

/// A schema that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("schema: {place}: {problem}")]
pub struct SchemaError {
    /// Table and column, or what else it is about.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

impl SchemaError {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> SchemaError {
        SchemaError { place: place.into(), problem: problem.into() }
    }
}

/// What happens to a reference when the row goes to which it refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefKind {
    /// The row cannot go.
    Strong,
    /// The reference goes too.
    Weak,
}

/// `<base-type>`: the type of elements, keys or values, with what restricts them.
#[derive(Clone, Debug, PartialEq)]
pub struct BaseType {
    /// Kind of atom.
    pub kind: AtomicType,
    /// The only values allowed, if there is such a list.
    pub allowed: Option<BTreeSet<Atom>>,
    /// Least integer.
    pub min_integer: Option<i64>,
    /// Greatest integer.
    pub max_integer: Option<i64>,
    /// Least real.
    pub min_real: Option<f64>,
    /// Greatest real.
    pub max_real: Option<f64>,
    /// Least number of characters.
    pub min_length: Option<u64>,
    /// Greatest number of characters.
    pub max_length: Option<u64>,
    /// The table to which a UUID refers.
    pub ref_table: Option<(String, RefKind)>,
}

impl BaseType {
    /// One without restrictions.
    pub fn plain(kind: AtomicType) -> BaseType {
        BaseType {
            kind,
            allowed: None,
            min_integer: None,
            max_integer: None,
            min_real: None,
            max_real: None,
            min_length: None,
            max_length: None,
            ref_table: None,
        }
    }

    /// Reads a name of an atomic type, or an object with `type` and restrictions.
    pub fn parse(value: &Value) -> Result<BaseType, String> {
        let members = match value {
            Value::String(name) => return Ok(BaseType::plain(atomic(name)?)),
            Value::Object(members) => members,
            other => return Err(format!("{} is not a type", describe(other))),
        };
        let Some(Value::String(name)) = members.get("type") else {
            return Err("a type without the member `type`".to_owned());
        };
        let mut base = BaseType::plain(atomic(name)?);
        base.min_integer = members.get("minInteger").and_then(Value::as_i64);
        base.max_integer = members.get("maxInteger").and_then(Value::as_i64);
        base.min_real = members.get("minReal").and_then(Value::as_f64);
        base.max_real = members.get("maxReal").and_then(Value::as_f64);
        base.min_length = members.get("minLength").and_then(Value::as_u64);
        base.max_length = members.get("maxLength").and_then(Value::as_u64);
        if let Some(list) = members.get("enum") {
            let any = ColumnType { key: BaseType::plain(base.kind), value: None, min: 0, max: None };
            let list = Datum::parse(list, &any).map_err(|e| format!("enum: {e}"))?;
            base.allowed = Some(list.atoms().iter().cloned().collect());
        }
        if let Some(Value::String(table)) = members.get("refTable") {
            let kind = match members.get("refType").and_then(Value::as_str) {
                Some("weak") => RefKind::Weak,
                _ => RefKind::Strong,
            };
            base.ref_table = Some((table.clone(), kind));
        }
        Ok(base)
    }

    /// Checks an atom against the restrictions.
    pub fn check(&self, atom: &Atom) -> Result<(), ValueError> {
        if atom.kind() != self.kind {
            return Err(ValueError::Kind { expected: self.kind.name(), found: atom.to_string() });
        }
        let broken = |rule: String| Err(ValueError::Constraint { value: atom.to_string(), rule });
        if let Some(allowed) = &self.allowed
            && !allowed.contains(atom)
        {
            return broken(format!("one of {}", Datum::set(allowed.iter().cloned())));
        }
        match atom {
            Atom::Integer(i) => {
                let (min, max) = (self.min_integer.unwrap_or(i64::MIN), self.max_integer.unwrap_or(i64::MAX));
                if *i < min || *i > max { broken(format!("{min} to {max}")) } else { Ok(()) }
            }
            Atom::Real(r) => {
                let (min, max) = (self.min_real.unwrap_or(f64::MIN), self.max_real.unwrap_or(f64::MAX));
                if *r >= min && *r <= max { Ok(()) } else { broken(format!("{min} to {max}")) }
            }
            Atom::String(s) => {
                let (min, max) = (self.min_length.unwrap_or(0), self.max_length.unwrap_or(u64::MAX));
                let length = s.chars().count() as u64;
                if length < min || length > max { broken(format!("{min} to {max} characters")) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}

fn atomic(name: &str) -> Result<AtomicType, String> {
    AtomicType::from_name(name).ok_or_else(|| format!("`{name}` is not an atomic type"))
}

/// `<type>` of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnType {
    /// Elements of a set, or keys of a map.
    pub key: BaseType,
    /// Values of a map.
    pub value: Option<BaseType>,
    /// Least number of elements: 0 or 1.
    pub min: u64,
    /// Greatest number of elements; none if there is no limit.
    pub max: Option<u64>,
}

impl ColumnType {
    /// A scalar: exactly one element.
    pub fn scalar(kind: AtomicType) -> ColumnType {
        ColumnType { key: BaseType::plain(kind), value: None, min: 1, max: Some(1) }
    }

    /// Reads a base type, or an object with `key` and perhaps `value`, `min`, `max`.
    pub fn parse(json: &Value) -> Result<ColumnType, String> {
        let Some(key) = json.get("key") else {
            return Ok(ColumnType { key: BaseType::parse(json)?, value: None, min: 1, max: Some(1) });
        };
        let min = json.get("min").map_or(Some(1), Value::as_u64).ok_or("`min` is not a number")?;
        let max = match json.get("max") {
            None => Some(1),
            Some(Value::String(s)) if s == "unlimited" => None,
            Some(n) => Some(n.as_u64().ok_or("`max` is neither a number nor \"unlimited\"")?),
        };
        if min > 1 || max.is_some_and(|max| max == 0 || max < min) {
            return Err(format!("from {min} to {max:?} elements cannot be"));
        }
        let value = json.get("value").map(BaseType::parse).transpose()?;
        Ok(ColumnType { key: BaseType::parse(key)?, value, min, max })
    }

    /// True if a column may have more than one element: `update2` sends the difference of such a column,
    /// and the new value of any other.
    pub fn is_composite(&self) -> bool {
        self.max != Some(1)
    }

    /// What the column holds where nothing was written (RFC 7047 section 5.2.1).
    pub fn default_datum(&self) -> Datum {
        match &self.value {
            None if self.min == 0 => Datum::EMPTY,
            None => Datum::Set(vec![self.key.kind.default_atom()]),
            Some(_) if self.min == 0 => Datum::Map(Vec::new()),
            Some(value) => Datum::Map(vec![(self.key.kind.default_atom(), value.kind.default_atom())]),
        }
    }

    /// Checks a value against number and restrictions of elements.
    pub fn check(&self, datum: &Datum) -> Result<(), ValueError> {
        let found = datum.len();
        if (found as u64) < self.min || self.max.is_some_and(|max| found as u64 > max) {
            return Err(ValueError::Count { found, min: self.min, max: self.max });
        }
        match (datum, &self.value) {
            (Datum::Set(atoms), None) => atoms.iter().try_for_each(|a| self.key.check(a)),
            (Datum::Map(pairs), Some(value)) => {
                pairs.iter().try_for_each(|(k, v)| self.key.check(k).and_then(|()| value.check(v)))
            }
            (Datum::Set(_), Some(_)) => Err(ValueError::Kind { expected: "map", found: datum.to_string() }),
            (Datum::Map(_), None) => Err(ValueError::Kind { expected: "set", found: datum.to_string() }),
        }
    }
}

impl Datum {
    /// Reads a value of the type `of`. Kinds of atoms are checked; number and restrictions are not, since
    /// what a server sends is in force already ([`ColumnType::check`] does that).
    pub fn parse(json: &Value, of: &ColumnType) -> Result<Datum, ValueError> {
        let tagged = |tag| match json.as_array().map(Vec::as_slice) {
            Some([Value::String(t), Value::Array(items)]) if t == tag => Some(items),
            _ => None,
        };
        let Some(value) = &of.value else {
            let mut atoms = match tagged("set") {
                Some(items) => items.iter().map(|i| Atom::parse(i, of.key.kind)).collect::<Result<Vec<_>, _>>()?,
                None => vec![Atom::parse(json, of.key.kind)?],
            };
            atoms.sort();
            no_duplicates(&atoms, |a| a)?;
            return Ok(Datum::Set(atoms));
        };
        // The empty set stands for the empty map where a server does not know better.
        let items = match (tagged("map"), tagged("set")) {
            (Some(items), _) => items,
            (None, Some(items)) if items.is_empty() => items,
            _ => return Err(ValueError::Kind { expected: "map", found: describe(json) }),
        };
        let mut pairs = items
            .iter()
            .map(|item| match item.as_array().map(Vec::as_slice) {
                Some([k, v]) => Ok((Atom::parse(k, of.key.kind)?, Atom::parse(v, value.kind)?)),
                _ => Err(ValueError::Kind { expected: "pair", found: describe(item) }),
            })
            .collect::<Result<Vec<_>, _>>()?;
        pairs.sort();
        no_duplicates(&pairs, |p| &p.0)?;
        Ok(Datum::Map(pairs))
    }
}

fn no_duplicates<T>(items: &[T], key: fn(&T) -> &Atom) -> Result<(), ValueError> {
    match items.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
        Some(pair) => Err(ValueError::Duplicate(key(&pair[0]).to_string())),
        None => Ok(()),
    }
}

/// `<column-schema>`.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnSchema {
    /// Type.
    pub kind: ColumnType,
    /// Not kept on disk.
    pub ephemeral: bool,
    /// False if it cannot be written after a row's insertion.
    pub mutable: bool,
}

/// `<table-schema>`.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSchema {
    /// Columns by name, without `_uuid` and `_version`.
    pub columns: BTreeMap<String, ColumnSchema>,
    /// Most rows; none if there is no limit.
    pub max_rows: Option<u64>,
    /// True if rows stay without strong references to them.
    pub is_root: bool,
    /// Sets of columns whose values together are unique.
    pub indexes: Vec<Vec<String>>,
}

/// `<database-schema>`.
#[derive(Clone, Debug, PartialEq)]
pub struct DatabaseSchema {
    /// Name of the database.
    pub name: String,
    /// Version, as in `8.3.1`; empty if the server does not tell.
    pub version: String,
    /// Tables by name.
    pub tables: BTreeMap<String, TableSchema>,
    /// Columns that could not be read, and why.
    pub left_out: Vec<SchemaError>,
}

impl DatabaseSchema {
    /// Reads what `get_schema` returns.
    pub fn parse(json: &Value) -> Result<DatabaseSchema, SchemaError> {
        let name = json.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| SchemaError::new("database", "no member `name`"))?.to_owned();
        let version = json.get("version").and_then(Value::as_str).unwrap_or_default().to_owned();
        let tables = json.get("tables").and_then(Value::as_object);
        let tables = tables.ok_or_else(|| SchemaError::new(&name, "no member `tables`"))?;
        let mut schema = DatabaseSchema { name, version, tables: BTreeMap::new(), left_out: Vec::new() };
        for (name, table) in tables {
            let table = parse_table(name, table, &mut schema.left_out)?;
            schema.tables.insert(name.clone(), table);
        }
        Ok(schema)
    }

    /// The type of a column.
    pub fn column(&self, table: &str, column: &str) -> Option<&ColumnType> {
        self.tables.get(table)?.columns.get(column).map(|c| &c.kind)
    }
}

fn parse_table(name: &str, json: &Value, left_out: &mut Vec<SchemaError>) -> Result<TableSchema, SchemaError> {
    let columns = json.get("columns").and_then(Value::as_object);
    let columns = columns.ok_or_else(|| SchemaError::new(name, "no member `columns`"))?;
    let flag = |of: &Map<String, Value>, member, default| of.get(member).and_then(Value::as_bool).unwrap_or(default);
    let mut table = TableSchema {
        columns: BTreeMap::new(),
        max_rows: json.get("maxRows").and_then(Value::as_u64),
        is_root: json.get("isRoot").and_then(Value::as_bool).unwrap_or(false),
        indexes: Vec::new(),
    };
    for (column, json) in columns {
        let kind = json.get("type").ok_or_else(|| "no member `type`".to_owned()).and_then(ColumnType::parse);
        match (kind, json.as_object()) {
            (Ok(kind), Some(members)) => {
                let schema = ColumnSchema {
                    kind,
                    ephemeral: flag(members, "ephemeral", false),
                    mutable: flag(members, "mutable", true),
                };
                table.columns.insert(column.clone(), schema);
            }
            (Err(problem), _) => left_out.push(SchemaError::new(format!("{name}:{column}"), problem)),
            (Ok(_), None) => left_out.push(SchemaError::new(format!("{name}:{column}"), "not an object")),
        }
    }
    for index in json.get("indexes").and_then(Value::as_array).into_iter().flatten() {
        let columns = index.as_array().into_iter().flatten().filter_map(|c| c.as_str().map(str::to_owned));
        table.indexes.push(columns.collect());
    }
    Ok(table)
}
