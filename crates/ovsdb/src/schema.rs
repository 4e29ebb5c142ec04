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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn kind(json: Value) -> ColumnType {
        ColumnType::parse(&json).unwrap()
    }

    #[test]
    fn types_and_their_restrictions() {
        let tag = kind(json!({"key": {"type": "integer", "minInteger": 0, "maxInteger": 4095}, "min": 0}));
        assert_eq!((tag.min, tag.max, tag.is_composite()), (0, Some(1), false));
        assert_eq!(tag.default_datum(), Datum::EMPTY);
        assert!(tag.check(&4095.into()).is_ok());
        assert!(matches!(tag.check(&4096.into()), Err(ValueError::Constraint { .. })));
        assert!(matches!(tag.check(&Datum::set([1, 2])), Err(ValueError::Count { found: 2, .. })));
        assert!(matches!(tag.check(&"1".into()), Err(ValueError::Kind { .. })));

        let mode = kind(json!({"key": {"type": "string", "enum": ["set", ["access", "trunk"]]}, "min": 0, "max": 1}));
        assert!(mode.check(&"trunk".into()).is_ok());
        let error = mode.check(&"access2".into()).unwrap_err().to_string();
        assert_eq!(error, r#""access2" is not allowed: one of ["access", "trunk"]"#);

        let reference =
            kind(json!({"key": {"type": "uuid", "refTable": "Port", "refType": "weak"}, "max": "unlimited"}));
        assert_eq!(reference.key.ref_table, Some(("Port".to_owned(), RefKind::Weak)));
        assert!(reference.is_composite() && reference.min == 1 && reference.max.is_none());
        let length = kind(json!({"type": "string", "minLength": 2, "maxLength": 3}));
        assert!(length.check(&"éé".into()).is_ok() && length.check(&"é".into()).is_err());
        let rate = kind(json!({"type": "real", "minReal": 0.5, "maxReal": 1}));
        assert!(rate.check(&0.5.into()).is_ok() && rate.check(&1.01.into()).is_err());
        assert!(rate.check(&f64::NAN.into()).is_err());

        let map = kind(json!({"key": "string", "value": "integer", "min": 0, "max": "unlimited"}));
        assert_eq!(map.default_datum(), Datum::Map(Vec::new()));
        assert!(map.check(&Datum::map([("a", 1)])).is_ok());
        assert!(map.check(&Datum::map([("a", "1")])).is_err());
        assert!(map.check(&Datum::set(["a"])).is_err());
        assert_eq!(kind(json!("boolean")).default_datum(), false.into());

        for wrong in [
            json!("float"),
            json!(5),
            json!({}),
            json!({"key": "string", "min": 2}),
            json!({"key": "string", "max": 0}),
            json!({"key": "string", "max": "many"}),
        ] {
            assert!(ColumnType::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_column_that_cannot_be_read_is_left_out() {
        let schema = DatabaseSchema::parse(&json!({"name": "D", "novelty": 1, "tables": {"T": {
            "columns": {"a": {"type": "string", "mutable": false}, "b": {"type": "complex"}, "c": 7},
            "isRoot": true, "maxRows": 1, "indexes": [["a"]],
        }}}))
        .unwrap();
        let table = &schema.tables["T"];
        assert_eq!(table.columns.keys().collect::<Vec<_>>(), ["a"]);
        assert!(!table.columns["a"].mutable && table.is_root && table.max_rows == Some(1));
        assert_eq!(table.indexes, [["a"]]);
        let left_out: Vec<_> = schema.left_out.iter().map(|e| e.place.as_str()).collect();
        assert_eq!(left_out, ["T:b", "T:c"]);
        for wrong in [json!(null), json!({"name": "D"}), json!({"name": "D", "tables": {"T": 5}})] {
            assert!(DatabaseSchema::parse(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_that_a_type_does_not_allow_are_refused() {
        let set = kind(json!({"key": "integer", "min": 0, "max": "unlimited"}));
        let map = kind(json!({"key": "string", "value": "string", "min": 0, "max": "unlimited"}));
        assert_eq!(Datum::parse(&json!(["set", [2, 1]]), &set), Ok(Datum::set([1, 2])));
        assert_eq!(Datum::parse(&json!(1), &set), Ok(1.into()));
        assert_eq!(Datum::parse(&json!(["set", []]), &map), Ok(Datum::Map(Vec::new())));
        assert!(matches!(Datum::parse(&json!(["set", [1, 1]]), &set), Err(ValueError::Duplicate(_))));
        let twice = json!(["map", [["a", "1"], ["a", "2"]]]);
        assert!(matches!(Datum::parse(&twice, &map), Err(ValueError::Duplicate(_))));
        for wrong in [json!(["set", 1]), json!(["map", []]), json!([]), json!("1"), json!(null), json!(["set", [[]]])] {
            assert!(Datum::parse(&wrong, &set).is_err(), "{wrong}");
        }
        for wrong in [json!(["map", [["a"]]]), json!(["map", ["a", "b"]]), json!({"a": "b"}), json!(["set", ["a"]])] {
            assert!(Datum::parse(&wrong, &map).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_schema_of_open_vswitch() {
        const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
        testing::file(SCHEMA);
        let text = std::fs::read_to_string(SCHEMA).unwrap();
        let schema = DatabaseSchema::parse(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(schema.name, "Open_vSwitch");
        assert!(schema.left_out.is_empty(), "{:?}", schema.left_out);
        assert!(schema.tables["Open_vSwitch"].is_root);
        assert_eq!(schema.column("Port", "trunks").unwrap().max, Some(4096));
        assert!(schema.tables["Interface"].columns["statistics"].ephemeral);
    }

    fn atom(kind: AtomicType) -> BoxedStrategy<Atom> {
        match kind {
            AtomicType::Integer => any::<i64>().prop_map(Atom::Integer).boxed(),
            AtomicType::Real => (-1e15f64..1e15).prop_map(Atom::Real).boxed(),
            AtomicType::Boolean => any::<bool>().prop_map(Atom::Boolean).boxed(),
            AtomicType::String => any::<String>().prop_map(Atom::from).boxed(),
            AtomicType::Uuid => any::<u128>().prop_map(|u| Atom::Uuid(Uuid(u))).boxed(),
        }
    }

    use crate::types::Uuid;

    fn typed() -> impl Strategy<Value = (ColumnType, Datum)> {
        let kinds = [AtomicType::Integer, AtomicType::Real, AtomicType::Boolean, AtomicType::String, AtomicType::Uuid];
        (prop::sample::select(kinds.to_vec()), prop::option::of(prop::sample::select(kinds.to_vec()))).prop_flat_map(
            |(key, value)| {
                let of = ColumnType { key: BaseType::plain(key), value: value.map(BaseType::plain), min: 0, max: None };
                let datum = match value {
                    None => prop::collection::vec(atom(key), 0..5).prop_map(Datum::set::<Atom>).boxed(),
                    Some(value) => {
                        prop::collection::vec((atom(key), atom(value)), 0..5).prop_map(Datum::map::<Atom, Atom>).boxed()
                    }
                };
                (Just(of), datum)
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn values_survive_json((of, datum) in typed()) {
            let text = datum.to_json().to_string();
            let json: Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(Datum::parse(&json, &of), Ok(datum.clone()));
            prop_assert_eq!(of.check(&datum), Ok(()));
        }

        #[test]
        fn set_differences_are_symmetric_differences(a in prop::collection::btree_set(0i64..20, 0..12), b in prop::collection::btree_set(0i64..20, 0..12)) {
            let mut datum = Datum::set(a.iter().copied());
            let difference: BTreeSet<i64> = &a ^ &b;
            datum.apply_difference(&Datum::set(difference));
            prop_assert_eq!(datum, Datum::set(b));
        }

        #[test]
        fn map_differences_lead_from_one_map_to_the_other(a in prop::collection::btree_map(0i64..12, 0i64..4, 0..9), b in prop::collection::btree_map(0i64..12, 0i64..4, 0..9)) {
            // ovsdb-server(7), 4.1.14: pairs with keys in one only, and new values of keys in both.
            let mut difference: BTreeMap<i64, i64> = b.iter().filter(|&(k, v)| a.get(k) != Some(v)).map(|(k, v)| (*k, *v)).collect();
            difference.extend(a.iter().filter(|(k, _)| !b.contains_key(k)));
            let mut datum = Datum::map(a);
            datum.apply_difference(&Datum::map(difference));
            prop_assert_eq!(datum, Datum::map(b));
        }
    }
}
