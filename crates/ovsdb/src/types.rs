//! Values: UUIDs, atoms, sets and maps (RFC 7047 section 5.1, "Notation").

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Value, json};
use thiserror::Error;

/// A value is not what its column's type allows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ValueError {
    /// A value of another kind.
    #[error("{found} where {expected} is expected")]
    Kind {
        /// What the type asks for.
        expected: &'static str,
        /// What was there, shortened.
        found: String,
    },
    /// Not a UUID.
    #[error("`{0}` is not a UUID")]
    Uuid(String),
    /// An element twice in a set, or a key twice in a map.
    #[error("{0} appears twice")]
    Duplicate(String),
    /// Fewer or more elements than the column may have.
    #[error("{found} elements, where {min} to {} are allowed", .max.map_or("any number".to_owned(), |m| m.to_string()))]
    Count {
        /// Number of elements.
        found: usize,
        /// Least allowed.
        min: u64,
        /// Most allowed; none where there is no limit.
        max: Option<u64>,
    },
    /// Outside of the range or the enumeration of the column.
    #[error("{value} is not allowed: {rule}")]
    Constraint {
        /// The element.
        value: String,
        /// The rule that it breaks.
        rule: String,
    },
}

/// 128 bits that name a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub u128);

impl Uuid {
    /// All zero: names no row, and no transaction.
    pub const ZERO: Uuid = Uuid(0);
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            (v >> 96) as u32,
            (v >> 80) as u16,
            (v >> 64) as u16,
            (v >> 48) as u16,
            v & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = ValueError;

    fn from_str(s: &str) -> Result<Uuid, ValueError> {
        let wrong = || ValueError::Uuid(shorten(s));
        if s.len() != 36 {
            return Err(wrong());
        }
        let mut value = 0u128;
        for (i, b) in s.bytes().enumerate() {
            match (i, b) {
                (8 | 13 | 18 | 23, b'-') => {}
                (8 | 13 | 18 | 23, _) => return Err(wrong()),
                _ => value = value << 4 | u128::from((b as char).to_digit(16).ok_or_else(wrong)?),
            }
        }
        Ok(Uuid(value))
    }
}

/// `<atomic-type>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicType {
    /// 64 bits, signed.
    Integer,
    /// IEEE 754 double, finite.
    Real,
    /// True or false.
    Boolean,
    /// UTF-8.
    String,
    /// Name of a row.
    Uuid,
}

impl AtomicType {
    /// The type of a name.
    pub fn from_name(name: &str) -> Option<AtomicType> {
        [Self::Integer, Self::Real, Self::Boolean, Self::String, Self::Uuid].into_iter().find(|t| t.name() == name)
    }

    /// The name in a schema.
    pub const fn name(self) -> &'static str {
        match self {
            AtomicType::Integer => "integer",
            AtomicType::Real => "real",
            AtomicType::Boolean => "boolean",
            AtomicType::String => "string",
            AtomicType::Uuid => "uuid",
        }
    }

    /// The value that a column has when nothing was written to it.
    pub fn default_atom(self) -> Atom {
        match self {
            AtomicType::Integer => Atom::Integer(0),
            AtomicType::Real => Atom::Real(0.0),
            AtomicType::Boolean => Atom::Boolean(false),
            AtomicType::String => Atom::String("".into()),
            AtomicType::Uuid => Atom::Uuid(Uuid::ZERO),
        }
    }
}

/// `<atom>`: one scalar. Atoms have a total order, so that sets and maps have one representation.
#[derive(Clone, Debug)]
pub enum Atom {
    /// 64 bits, signed.
    Integer(i64),
    /// A double. One that is not finite has no JSON form; a server refuses it.
    Real(f64),
    /// True or false.
    Boolean(bool),
    /// UTF-8.
    String(Arc<str>),
    /// Name of a row.
    Uuid(Uuid),
    /// A row that the same transaction inserts (`<named-uuid>`); appears in transactions only.
    Named(Arc<str>),
}

impl Atom {
    /// Reads an atom of the type `kind`.
    pub fn parse(value: &Value, kind: AtomicType) -> Result<Atom, ValueError> {
        let atom = match (kind, value) {
            (AtomicType::Integer, Value::Number(n)) => integer(n).map(Atom::Integer),
            (AtomicType::Real, Value::Number(n)) => n.as_f64().map(Atom::Real),
            (AtomicType::Boolean, Value::Bool(b)) => Some(Atom::Boolean(*b)),
            (AtomicType::String, Value::String(s)) => Some(Atom::String(s.as_str().into())),
            (AtomicType::Uuid, Value::Array(pair)) => match pair.as_slice() {
                [Value::String(tag), Value::String(s)] if tag == "uuid" => Some(Atom::Uuid(s.parse()?)),
                [Value::String(tag), Value::String(s)] if tag == "named-uuid" => Some(Atom::Named(s.as_str().into())),
                _ => None,
            },
            _ => None,
        };
        atom.ok_or_else(|| ValueError::Kind { expected: kind.name(), found: describe(value) })
    }

    /// The JSON form.
    pub fn to_json(&self) -> Value {
        match self {
            Atom::Integer(i) => json!(i),
            Atom::Real(r) => json!(r),
            Atom::Boolean(b) => json!(b),
            Atom::String(s) => Value::String(s.to_string()),
            Atom::Uuid(u) => json!(["uuid", u.to_string()]),
            Atom::Named(n) => json!(["named-uuid", &**n]),
        }
    }

    /// The type; a named UUID is one of a UUID.
    pub fn kind(&self) -> AtomicType {
        match self {
            Atom::Integer(_) => AtomicType::Integer,
            Atom::Real(_) => AtomicType::Real,
            Atom::Boolean(_) => AtomicType::Boolean,
            Atom::String(_) => AtomicType::String,
            Atom::Uuid(_) | Atom::Named(_) => AtomicType::Uuid,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Atom::String(s) = self { Some(s) } else { None }
    }

    /// The integer, if it is one.
    pub fn as_integer(&self) -> Option<i64> {
        if let Atom::Integer(i) = self { Some(*i) } else { None }
    }

    /// The real, if it is one.
    pub fn as_real(&self) -> Option<f64> {
        if let Atom::Real(r) = self { Some(*r) } else { None }
    }

    /// The boolean, if it is one.
    pub fn as_boolean(&self) -> Option<bool> {
        if let Atom::Boolean(b) = self { Some(*b) } else { None }
    }

    /// The UUID, if it is one.
    pub fn as_uuid(&self) -> Option<Uuid> {
        if let Atom::Uuid(u) = self { Some(*u) } else { None }
    }

    fn rank(&self) -> u8 {
        match self {
            Atom::Integer(_) => 0,
            Atom::Real(_) => 1,
            Atom::Boolean(_) => 2,
            Atom::String(_) => 3,
            Atom::Uuid(_) => 4,
            Atom::Named(_) => 5,
        }
    }
}

/// An integer, also one that is written with a fraction of zero or an exponent.
fn integer(n: &serde_json::Number) -> Option<i64> {
    let whole = |r: f64| (r.fract() == 0.0 && r >= -(2f64.powi(63)) && r < 2f64.powi(63)).then_some(r as i64);
    n.as_i64().or_else(|| if n.is_f64() { n.as_f64().and_then(whole) } else { None })
}

impl Ord for Atom {
    fn cmp(&self, other: &Atom) -> Ordering {
        match (self, other) {
            (Atom::Integer(a), Atom::Integer(b)) => a.cmp(b),
            // Adding zero turns -0.0 into 0.0: the two are one value.
            (Atom::Real(a), Atom::Real(b)) => (a + 0.0).total_cmp(&(b + 0.0)),
            (Atom::Boolean(a), Atom::Boolean(b)) => a.cmp(b),
            (Atom::String(a), Atom::String(b)) | (Atom::Named(a), Atom::Named(b)) => a.cmp(b),
            (Atom::Uuid(a), Atom::Uuid(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Atom) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Atom) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Atom {}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Integer(i) => i.fmt(f),
            Atom::Real(r) => r.fmt(f),
            Atom::Boolean(b) => b.fmt(f),
            Atom::String(s) => write!(f, "\"{}\"", s.escape_debug()),
            Atom::Uuid(u) => u.fmt(f),
            Atom::Named(n) => n.fmt(f),
        }
    }
}

macro_rules! atom_from {
    ($($from:ty: $value:ident => $atom:expr;)*) => {$(
        impl From<$from> for Atom {
            fn from($value: $from) -> Atom {
                $atom
            }
        }

        impl From<$from> for Datum {
            fn from($value: $from) -> Datum {
                Datum::Set(vec![$atom])
            }
        }
    )*};
}

atom_from! {
    i64: v => Atom::Integer(v);
    i32: v => Atom::Integer(v.into());
    u32: v => Atom::Integer(v.into());
    u16: v => Atom::Integer(v.into());
    f64: v => Atom::Real(v);
    bool: v => Atom::Boolean(v);
    &str: v => Atom::String(v.into());
    String: v => Atom::String(v.into());
    Arc<str>: v => Atom::String(v);
    Uuid: v => Atom::Uuid(v);
}

/// `<value>`: what a column of a row holds. A scalar is a set of one element, an optional one a set of
/// at most one. Sets are in order without duplicates, maps in order of keys, each key once: two data are
/// equal exactly if they mean the same. [`Datum::set`] and [`Datum::map`] see to that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Datum {
    /// Elements.
    Set(Vec<Atom>),
    /// Keys and values.
    Map(Vec<(Atom, Atom)>),
}

impl Default for Datum {
    fn default() -> Datum {
        Datum::Set(Vec::new())
    }
}

impl Datum {
    /// The empty set.
    pub const EMPTY: Datum = Datum::Set(Vec::new());

    /// A set of `elements`, without duplicates.
    pub fn set<A: Into<Atom>>(elements: impl IntoIterator<Item = A>) -> Datum {
        let mut atoms: Vec<Atom> = elements.into_iter().map(Into::into).collect();
        atoms.sort();
        atoms.dedup();
        Datum::Set(atoms)
    }

    /// A map of `pairs`; of two with the same key the later counts.
    pub fn map<K: Into<Atom>, V: Into<Atom>>(pairs: impl IntoIterator<Item = (K, V)>) -> Datum {
        let mut pairs: Vec<(Atom, Atom)> = pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        pairs.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        Datum::Map(pairs)
    }

    /// The JSON form.
    pub fn to_json(&self) -> Value {
        match self {
            Datum::Set(atoms) if atoms.len() == 1 => atoms[0].to_json(),
            Datum::Set(atoms) => json!(["set", atoms.iter().map(Atom::to_json).collect::<Vec<_>>()]),
            Datum::Map(pairs) => {
                json!(["map", pairs.iter().map(|(k, v)| json!([k.to_json(), v.to_json()])).collect::<Vec<_>>()])
            }
        }
    }

    /// Number of elements or pairs.
    pub fn len(&self) -> usize {
        match self {
            Datum::Set(atoms) => atoms.len(),
            Datum::Map(pairs) => pairs.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The one element of a set of one.
    pub fn atom(&self) -> Option<&Atom> {
        match self {
            Datum::Set(atoms) if atoms.len() == 1 => atoms.first(),
            _ => None,
        }
    }

    /// The elements of a set; none of a map.
    pub fn atoms(&self) -> &[Atom] {
        if let Datum::Set(atoms) = self { atoms } else { &[] }
    }

    /// The pairs of a map; none of a set.
    pub fn pairs(&self) -> &[(Atom, Atom)] {
        if let Datum::Map(pairs) = self { pairs } else { &[] }
    }

    /// The value at `key` of a map from strings.
    pub fn get(&self, key: &str) -> Option<&Atom> {
        let pairs = self.pairs();
        let at = pairs.partition_point(|(k, _)| k.as_str().is_some_and(|k| k < key));
        pairs.get(at).filter(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v)
    }

    /// Applies a difference as `update2` and `update3` send it for a column that may have more than one
    /// element: elements in both go, others come; for maps a pair that is in both goes, another key
    /// comes, a key with another value changes (ovsdb-server(7), 4.1.14).
    pub fn apply_difference(&mut self, difference: &Datum) {
        match (self, difference) {
            (Datum::Set(atoms), Datum::Set(toggled)) => {
                *atoms = merge(std::mem::take(atoms), toggled, |a| a, |_, _| None);
            }
            (Datum::Map(pairs), Datum::Map(toggled)) => {
                let both = |old: &(Atom, Atom), new: &(Atom, Atom)| (old.1 != new.1).then(|| new.clone());
                *pairs = merge(std::mem::take(pairs), toggled, |pair| &pair.0, both);
            }
            (this, other) => *this = other.clone(),
        }
    }
}

/// Merges two lists that are in order of `key`; where a key is in both, `both` says what remains.
fn merge<T: Clone>(old: Vec<T>, new: &[T], key: fn(&T) -> &Atom, both: impl Fn(&T, &T) -> Option<T>) -> Vec<T> {
    let mut merged = Vec::with_capacity(old.len() + new.len());
    let mut new = new.iter().peekable();
    for item in old {
        while let Some(earlier) = new.next_if(|n| key(n) < key(&item)) {
            merged.push(earlier.clone());
        }
        match new.next_if(|n| key(n) == key(&item)) {
            Some(same) => merged.extend(both(&item, same)),
            None => merged.push(item),
        }
    }
    merged.extend(new.cloned());
    merged
}

impl<A: Into<Atom>> From<Option<A>> for Datum {
    fn from(value: Option<A>) -> Datum {
        Datum::Set(value.into_iter().map(Into::into).collect())
    }
}

impl From<Atom> for Datum {
    fn from(atom: Atom) -> Datum {
        Datum::Set(vec![atom])
    }
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Datum::Set(atoms) if atoms.len() == 1 => atoms[0].fmt(f),
            Datum::Set(atoms) => {
                f.write_str("[")?;
                for (i, atom) in atoms.iter().enumerate() {
                    write!(f, "{}{atom}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Datum::Map(pairs) => {
                f.write_str("{")?;
                for (i, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}{key}={value}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("}")
            }
        }
    }
}

/// A value in words short enough for a message.
pub(crate) fn describe(value: &Value) -> String {
    shorten(&value.to_string())
}

/// The beginning of `text`, marked where it is cut.
pub(crate) fn shorten(text: &str) -> String {
    shorten_to(text, 80)
}

/// The same with so many characters of it.
pub(crate) fn shorten_to(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_strictly_and_printed_the_same() {
        let text = "fa4204ce-5b1e-4c7a-9e0d-0123456789ab";
        assert_eq!(text.parse::<Uuid>().unwrap().to_string(), text);
        for wrong in
            ["", "fa4204ce-5b1e-4c7a-9e0d-0123456789a", "fa4204ce+5b1e-4c7a-9e0d-0123456789ab", &"é".repeat(18)]
        {
            assert!(wrong.parse::<Uuid>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_read_by_value_not_by_spelling() {
        let read = |text: &str, kind| Atom::parse(&serde_json::from_str(text).unwrap(), kind);
        assert_eq!(read("1e3", AtomicType::Integer), Ok(Atom::Integer(1000)));
        assert_eq!(read("5", AtomicType::Real), Ok(Atom::Real(5.0)));
        assert_eq!(read("-9223372036854775808", AtomicType::Integer), Ok(Atom::Integer(i64::MIN)));
        assert_eq!(read("-0.0", AtomicType::Real), Ok(Atom::Real(0.0)));
        for wrong in ["9223372036854775808", "1.5", "\"1\"", "true", "1e300"] {
            assert!(read(wrong, AtomicType::Integer).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sets_and_maps_have_one_form() {
        assert_eq!(Datum::set([3, 1, 3]), Datum::Set(vec![Atom::Integer(1), Atom::Integer(3)]));
        let map = Datum::map([("b", "1"), ("a", "2"), ("b", "3")]);
        assert_eq!(map.to_string(), r#"{"a"="2", "b"="3"}"#);
        assert_eq!(map.get("b").and_then(Atom::as_str), Some("3"));
        assert_eq!(map.get("c"), None);
        assert_eq!(Datum::from(None::<i64>), Datum::EMPTY);
    }

    #[test]
    fn long_values_are_shortened_between_characters() {
        assert_eq!(shorten(&"é".repeat(100)).chars().count(), 81);
        assert_eq!(shorten("short"), "short");
    }
}
