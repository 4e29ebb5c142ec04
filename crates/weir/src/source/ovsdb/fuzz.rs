//! Entry for fuzzing: a database made from text, to the desired state.
//!
//! Each line sets a column of a row: `TABLE ROW COLUMN VALUE…`, such as `Interface 1 options remote_ip=192.0.2.1`. Rows have numbers of one
//! digit, by which references name them. Elements are separated by tabs, a key from its value by the first `=`. Whatever
//! a server with this schema could send can be said, and lines that it could not are left out.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use datapath::Topology;
use ovsdb::replica::Method;
use ovsdb::schema::{BaseType, ColumnType};
use ovsdb::{AtomicType, DatabaseSchema, Datum, Replica};
use serde_json::{Map, Value, json};

use super::columns;
use super::files::Files;
use super::read::{Dummy, Rules, read};
use crate::config::desired::Desired;
use crate::reconfigure::{Numbers, plan};

/// Where Debian's package openvswitch-common has the schema.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Reads the database that `text` makes. It must do so without a panic, twice the same, and what it wants must need no step once it is in
/// force.
///
/// # Panics
/// Where the schema is not installed.
pub fn run(text: &str) {
    let mut replica = Replica::new();
    replica.prepare(schema(), &columns::selection());
    let contents = contents(schema(), text);
    replica.load(Method::MonitorCondSince, None, &contents).expect("the columns have values of their types");
    for dummy in [Dummy::Explicit, Dummy::Override] {
        let rules = Rules {
            dummy,
            files: Files::new(Path::new("/run/openvswitch"), false),
            topology: Topology::of_machine(BTreeMap::from([(0, 0), (1, 1)])),
            tls: tls::Settings::default(),
        };
        let state = read(&replica, &rules, true);
        assert_eq!(state, read(&replica, &rules, true));
        let _ = plan(&Desired::default(), &state.desired, &Numbers::new());
        let steps = plan(&state.desired, &state.desired, &Numbers::new());
        assert!(steps.is_empty(), "{steps:?}");
    }
}

fn schema() -> &'static DatabaseSchema {
    static PARSED: OnceLock<DatabaseSchema> = OnceLock::new();
    PARSED.get_or_init(|| {
        let text = std::fs::read_to_string(SCHEMA)
            .unwrap_or_else(|e| panic!("{SCHEMA}: {e}; install Debian's package openvswitch-common"));
        DatabaseSchema::parse(&serde_json::from_str(&text).expect("the schema is JSON")).expect("it is a schema")
    })
}

/// The `<table-updates2>` with what the lines say.
fn contents(schema: &DatabaseSchema, text: &str) -> Value {
    let mut tables: BTreeMap<&str, BTreeMap<String, Map<String, Value>>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some(table), Some(row), Some(column)) = (words.next(), words.next(), words.next()) else { continue };
        let Some((table, _)) = schema.tables.get_key_value(table) else { continue };
        let Some(kind) = schema.column(table, column).filter(|_| is_selected(table, column)) else { continue };
        let (Some(uuid), Some(value)) =
            (uuid(schema, table, row), value(schema, kind, words.next().unwrap_or_default()))
        else {
            continue;
        };
        tables.entry(table).or_default().entry(uuid).or_default().insert(column.to_owned(), value);
    }
    let rows = |rows: BTreeMap<String, Map<String, Value>>| -> Map<String, Value> {
        rows.into_iter().map(|(uuid, columns)| (uuid, json!({ "initial": columns }))).collect()
    };
    Value::Object(tables.into_iter().map(|(table, of)| (table.to_owned(), Value::Object(rows(of)))).collect())
}

/// Whether the server is asked for the column.
fn is_selected(table: &str, column: &str) -> bool {
    columns::TABLES.iter().any(|t| t.name == table && t.columns().any(|name| name == column))
}

/// The identity of a row: by the place of its table in the schema, and its number.
fn uuid(schema: &DatabaseSchema, table: &str, row: &str) -> Option<String> {
    let (table, row) = (schema.tables.keys().position(|name| name == table)?, row.parse::<u8>().ok()?);
    (row < 10).then(|| format!("{:08x}-0000-0000-0000-{row:012x}", table + 1))
}

/// A value as JSON; `None` where the column cannot have it.
fn value(schema: &DatabaseSchema, kind: &ColumnType, text: &str) -> Option<Value> {
    let items: Vec<_> = text.split('\t').filter(|item| !item.is_empty()).collect();
    let value = match &kind.value {
        None => {
            let atoms = items.iter().map(|item| atom(schema, &kind.key, item)).collect::<Option<Vec<_>>>()?;
            json!(["set", atoms])
        }
        Some(of) => {
            let pair = |item: &&str| {
                let (key, value) = item.split_once('=')?;
                Some(json!([atom(schema, &kind.key, key)?, atom(schema, of, value)?]))
            };
            json!(["map", items.iter().map(pair).collect::<Option<Vec<_>>>()?])
        }
    };
    let datum = Datum::parse(&value, kind).ok()?;
    kind.check(&datum).ok()?;
    Some(value)
}

fn atom(schema: &DatabaseSchema, of: &BaseType, text: &str) -> Option<Value> {
    Some(match of.kind {
        AtomicType::Integer => json!(text.parse::<i64>().ok()?),
        AtomicType::Real => json!(text.parse::<f64>().ok().filter(|number| number.is_finite())?),
        AtomicType::Boolean => json!(text.parse::<bool>().ok()?),
        AtomicType::String => json!(text),
        AtomicType::Uuid => json!(["uuid", uuid(schema, &of.ref_table.as_ref()?.0, text)?]),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEED: &str = include_str!("../../../../../fuzz/seeds/database/all");

    /// The lines of the seed are such as a server could send.
    #[test]
    fn every_line_of_the_seed_counts() {
        testing::file(SCHEMA);
        for line in SEED.lines() {
            let contents = contents(schema(), line);
            assert!(contents.as_object().is_some_and(|tables| !tables.is_empty()), "{line}");
        }
        run(SEED);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// Any values of any columns, amid others that are right.
        #[test]
        fn arbitrary_settings_do_no_harm(
            changes in prop::collection::vec((any::<prop::sample::Index>(), "[ -~\t]{0,24}", any::<prop::sample::Index>()), 1..12),
        ) {
            testing::file(SCHEMA);
            let mut lines: Vec<_> = SEED.lines().map(str::to_owned).collect();
            for (line, text, from) in changes {
                let line = line.get_mut(&mut lines);
                let start = line.match_indices(' ').nth(2).map_or(line.len(), |(at, _)| at + 1);
                let at = start + from.index(line.len() - start + 1);
                if line.is_char_boundary(at) {
                    line.replace_range(at.., &text);
                }
            }
            run(&lines.join("\n"));
        }
    }
}
