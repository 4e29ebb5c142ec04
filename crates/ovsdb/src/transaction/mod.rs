//! Transactions: a list of operations that take effect together or not at all (RFC 7047 section 5.2).
//!
//! A column or table that the server's schema does not have is left out when a transaction is encoded, as
//! tolerantly as the replica reads: a newer client can write `dpdk_initialized` to an older database.

use std::fmt;

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::replica::Replica;
use crate::schema::{ColumnType, DatabaseSchema};
use crate::types::{Atom, Datum, Uuid, describe, shorten_to};

/// An `<error>` of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DbError {
    /// The short name: `constraint violation`, `timed out`, `not owner`, ...
    pub name: String,
    /// What it is about, in words.
    pub details: Option<String>,
    /// The JSON that could not be read, if that is what it is about.
    pub syntax: Option<String>,
}

/// Characters of each text of an error that are kept. What a server says goes to the log, and a message may have 64 MiB.
const MAX_TEXT: usize = 1000;

impl DbError {
    /// Reads an `<error>`; tolerates a plain string, as some replies have.
    pub fn from_json(json: &Value) -> DbError {
        let kept = |json: &Value| json.as_str().map(|text| shorten_to(text, MAX_TEXT));
        let text = |member| json.get(member).and_then(kept);
        DbError {
            name: text("error").or_else(|| kept(json)).unwrap_or_else(|| describe(json)),
            details: text("details"),
            syntax: text("syntax"),
        }
    }

    /// True if a `wait` did not find what it waited for: somebody else changed the rows meanwhile.
    pub fn is_conflict(&self) -> bool {
        self.name == "timed out"
    }

    /// True if the lock that an `assert` names is not held.
    pub fn is_not_owner(&self) -> bool {
        self.name == "not owner"
    }
}

impl fmt::Display for DbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(details) = &self.details {
            write!(f, ": {details}")?;
        }
        if let Some(syntax) = &self.syntax {
            write!(f, " ({})", crate::types::shorten(syntax))?;
        }
        Ok(())
    }
}

/// Why a transaction did not take effect, or why that is not known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TransactError {
    /// An operation failed. Nothing of the transaction took effect.
    #[error("{operation} (operation {index}): {error}")]
    Operation {
        /// Its place in the transaction, from zero.
        index: usize,
        /// Its name.
        operation: &'static str,
        /// What the server says.
        error: DbError,
    },
    /// All operations succeeded, but together they break a rule of the schema.
    #[error("commit: {0}")]
    Commit(DbError),
    /// The server did not accept the request.
    #[error("request refused: {0}")]
    Refused(DbError),
    /// There is no connection, or the replica is not loaded yet. Nothing was sent.
    #[error("not connected to the database")]
    NotConnected,
    /// The session has a lock to hold and does not hold it. Nothing was sent.
    #[error("another client holds the lock")]
    NotLocked,
    /// Too many transactions wait for their replies. Nothing was sent.
    #[error("{0} transactions wait for a reply already")]
    Busy(usize),
    /// The connection ended before the reply: whether it took effect is not known.
    #[error("connection lost before the reply")]
    Lost,
    /// A reply that makes no sense.
    #[error("unexpected reply: {0}")]
    Reply(String),
}

/// What an operation did.
#[derive(Clone, Debug, PartialEq)]
pub enum OpResult {
    /// `insert`: the new row.
    Inserted(Uuid),
    /// `update`, `mutate`, `delete`: number of rows.
    Count(u64),
    /// `select`: the rows as JSON objects.
    Rows(Vec<Value>),
    /// `wait`, `comment`, `assert`: done.
    Done,
    /// Not sent, because the server's schema has no such table.
    Skipped,
}

/// A transaction that took effect: the result of each operation, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Committed {
    /// One for each operation.
    pub results: Vec<OpResult>,
}

impl Committed {
    /// The row that an operation inserted.
    pub fn inserted(&self, row: &NewRow) -> Option<Uuid> {
        match self.results.get(row.index)? {
            OpResult::Inserted(uuid) => Some(*uuid),
            _ => None,
        }
    }

    /// The number of rows that operation `index` changed.
    pub fn count(&self, index: usize) -> u64 {
        match self.results.get(index) {
            Some(OpResult::Count(n)) => *n,
            _ => 0,
        }
    }
}

/// A row that the transaction inserts: usable as a value of its other operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRow {
    index: usize,
    name: String,
}

impl From<&NewRow> for Atom {
    fn from(row: &NewRow) -> Atom {
        Atom::Named(row.name.as_str().into())
    }
}

impl From<&NewRow> for Datum {
    fn from(row: &NewRow) -> Datum {
        Atom::from(row).into()
    }
}

/// How a condition compares (`<function>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// The column has all of the elements.
    Includes,
    /// The column has none of the elements.
    Excludes,
}

impl Function {
    const fn name(self) -> &'static str {
        match self {
            Function::Equal => "==",
            Function::NotEqual => "!=",
            Function::Less => "<",
            Function::LessOrEqual => "<=",
            Function::Greater => ">",
            Function::GreaterOrEqual => ">=",
            Function::Includes => "includes",
            Function::Excludes => "excludes",
        }
    }
}

/// Which rows of a table: those for which every condition holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Where(Vec<(String, Function, Datum)>);

impl Where {
    /// All rows.
    pub fn all() -> Where {
        Where::default()
    }

    /// The rows whose column equals a value.
    pub fn equal(column: &str, value: impl Into<Datum>) -> Where {
        Where::all().and(column, Function::Equal, value)
    }

    /// Adds a condition.
    pub fn and(mut self, column: &str, function: Function, value: impl Into<Datum>) -> Where {
        self.0.push((column.to_owned(), function, value.into()));
        self
    }

    fn to_json(&self) -> Value {
        self.0.iter().map(|(column, function, value)| json!([column, function.name(), value.to_json()])).collect()
    }
}

impl From<Uuid> for Where {
    fn from(row: Uuid) -> Where {
        Where::equal("_uuid", row)
    }
}

/// How `mutate` changes a column (`<mutator>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutator {
    /// `+=`
    Add,
    /// `-=`
    Subtract,
    /// `*=`
    Multiply,
    /// `/=`
    Divide,
    /// `%=`
    Modulo,
    /// Adds elements; pairs only where the key is not there.
    Insert,
    /// Removes elements; pairs, or keys whatever their value.
    Delete,
}

impl Mutator {
    const fn name(self) -> &'static str {
        match self {
            Mutator::Add => "+=",
            Mutator::Subtract => "-=",
            Mutator::Multiply => "*=",
            Mutator::Divide => "/=",
            Mutator::Modulo => "%=",
            Mutator::Insert => "insert",
            Mutator::Delete => "delete",
        }
    }
}

/// Columns and their values.
pub type Values = Vec<(String, Datum)>;

/// Collects columns and values: `values([("name", "br0".into()), ("stp_enable", true.into())])`.
pub fn values<'a>(pairs: impl IntoIterator<Item = (&'a str, Datum)>) -> Values {
    pairs.into_iter().map(|(column, value)| (column.to_owned(), value)).collect()
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq)]
enum Operation {
    Insert { table: String, name: String, row: Values },
    Update { table: String, rows: Where, row: Values },
    Mutate { table: String, rows: Where, mutations: Vec<(String, Mutator, Datum)> },
    Delete { table: String, rows: Where },
    Select { table: String, rows: Where, columns: Vec<String> },
    Wait { table: String, rows: Where, expected: Values, until_equal: bool, timeout_ms: u64 },
    Comment(String),
    Assert(String),
}

impl Operation {
    const fn name(&self) -> &'static str {
        match self {
            Operation::Insert { .. } => "insert",
            Operation::Update { .. } => "update",
            Operation::Mutate { .. } => "mutate",
            Operation::Delete { .. } => "delete",
            Operation::Select { .. } => "select",
            Operation::Wait { .. } => "wait",
            Operation::Comment(_) => "comment",
            Operation::Assert(_) => "assert",
        }
    }

    fn table(&self) -> Option<&str> {
        match self {
            Operation::Insert { table, .. }
            | Operation::Update { table, .. }
            | Operation::Mutate { table, .. }
            | Operation::Delete { table, .. }
            | Operation::Select { table, .. }
            | Operation::Wait { table, .. } => Some(table),
            Operation::Comment(_) | Operation::Assert(_) => None,
        }
    }
}

/// A transaction in the making. Operations are carried out in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction {
    operations: Vec<Operation>,
    unlocked: bool,
}

impl Transaction {
    /// One without operations.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// True without operations.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of operations: the place of the next one.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Inserts a row. Columns that are not given have their defaults.
    pub fn insert(&mut self, table: &str, row: Values) -> NewRow {
        let index = self.operations.len();
        let name = format!("row{index}");
        self.operations.push(Operation::Insert { table: table.to_owned(), name: name.clone(), row });
        NewRow { index, name }
    }

    /// Replaces the values of columns.
    pub fn update(&mut self, table: &str, rows: impl Into<Where>, row: Values) -> &mut Self {
        self.operations.push(Operation::Update { table: table.to_owned(), rows: rows.into(), row });
        self
    }

    /// Changes a column relative to what it holds.
    pub fn mutate(
        &mut self,
        table: &str,
        rows: impl Into<Where>,
        column: &str,
        mutator: Mutator,
        value: impl Into<Datum>,
    ) -> &mut Self {
        let mutations = vec![(column.to_owned(), mutator, value.into())];
        self.operations.push(Operation::Mutate { table: table.to_owned(), rows: rows.into(), mutations });
        self
    }

    /// Sets one key of a map from strings to strings, whatever it held: two operations.
    pub fn set_key(&mut self, table: &str, row: Uuid, column: &str, key: &str, value: &str) -> &mut Self {
        self.mutate(table, row, column, Mutator::Delete, Datum::set([key]));
        self.mutate(table, row, column, Mutator::Insert, Datum::map([(key, value)]))
    }

    /// Deletes rows.
    pub fn delete(&mut self, table: &str, rows: impl Into<Where>) -> &mut Self {
        self.operations.push(Operation::Delete { table: table.to_owned(), rows: rows.into() });
        self
    }

    /// Reads columns of rows as of this place in the transaction.
    pub fn select(&mut self, table: &str, rows: impl Into<Where>, columns: &[&str]) -> &mut Self {
        let columns = columns.iter().map(|&c| c.to_owned()).collect();
        self.operations.push(Operation::Select { table: table.to_owned(), rows: rows.into(), columns });
        self
    }

    /// Fails unless the columns of the one row that `rows` selects hold the values in `expected`.
    pub fn expect(&mut self, table: &str, rows: impl Into<Where>, expected: Values) -> &mut Self {
        self.wait(table, rows, expected, true, 0)
    }

    /// Fails if the columns of `row` do not hold what `replica` says: a read that the transaction relies on.
    pub fn verify(&mut self, replica: &Replica, table: &str, row: Uuid, columns: &[&str]) -> &mut Self {
        let Some(known) = replica.row(table, row) else {
            // The row is gone: an expectation of any row by this name fails, as it should.
            return self.expect(table, row, Vec::new());
        };
        let held = columns.iter().filter_map(|&c| known.get(c).map(|value| (c.to_owned(), value.clone())));
        let held = held.collect();
        self.expect(table, row, held)
    }

    /// Waits up to `timeout_ms` milliseconds until the columns of the one row that `rows` selects hold the
    /// values in `expected`, or until they do not.
    pub fn wait(
        &mut self,
        table: &str,
        rows: impl Into<Where>,
        expected: Values,
        until_equal: bool,
        timeout_ms: u64,
    ) -> &mut Self {
        let (table, rows) = (table.to_owned(), rows.into());
        self.operations.push(Operation::Wait { table, rows, expected, until_equal, timeout_ms });
        self
    }

    /// Writes a line to the database's log.
    pub fn comment(&mut self, text: &str) -> &mut Self {
        self.operations.push(Operation::Comment(text.to_owned()));
        self
    }

    /// Fails unless this client holds a lock. A session with a lock adds this by itself.
    pub fn assert_lock(&mut self, lock: &str) -> &mut Self {
        self.operations.push(Operation::Assert(lock.to_owned()));
        self
    }

    /// Lets the transaction go ahead though the session's lock is not held.
    pub fn without_lock(&mut self) -> &mut Self {
        self.unlocked = true;
        self
    }

    /// True if the transaction does not need the session's lock.
    pub fn is_without_lock(&self) -> bool {
        self.unlocked
    }

    /// The parameters of the `transact` request for a database with `schema`, and what is needed to read
    /// the reply. With `lock`, the transaction begins with an assertion that it is held.
    pub fn encode(&self, schema: &DatabaseSchema, lock: Option<&str>) -> (Value, Encoded) {
        let mut params = vec![json!(schema.name)];
        let mut sent = Vec::new();
        if let Some(lock) = lock {
            params.push(json!({"op": "assert", "lock": lock}));
        }
        for (index, operation) in self.operations.iter().enumerate() {
            if let Some(json) = operation_json(operation, schema) {
                params.push(json);
                sent.push((index, operation.name()));
            }
        }
        (Value::Array(params), Encoded { operations: self.operations.len(), sent, with_lock: lock.is_some() })
    }
}

/// What was sent of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Number of operations of the transaction.
    operations: usize,
    /// Place and name of those sent.
    sent: Vec<(usize, &'static str)>,
    /// True if an assertion went before them.
    with_lock: bool,
}

impl Encoded {
    /// Reads the reply.
    pub fn decode(&self, reply: &Result<Value, Value>) -> Result<Committed, TransactError> {
        let results = match reply {
            Ok(Value::Array(results)) => results,
            Ok(other) => return Err(TransactError::Reply(describe(other))),
            Err(error) => return Err(TransactError::Refused(DbError::from_json(error))),
        };
        let first = usize::from(self.with_lock);
        let mut decoded = vec![OpResult::Skipped; self.operations];
        for (i, result) in results.iter().enumerate() {
            let operation = i.checked_sub(first).map(|i| self.sent.get(i));
            if result.get("error").is_some_and(|e| !e.is_null()) {
                let error = DbError::from_json(result);
                return Err(match operation {
                    None if error.is_not_owner() => TransactError::NotLocked,
                    None => TransactError::Refused(error),
                    Some(None) => TransactError::Commit(error),
                    Some(Some(&(index, operation))) => TransactError::Operation { index, operation, error },
                });
            }
            if let Some(Some(&(index, operation))) = operation {
                decoded[index] = decode_result(operation, result)?;
            }
        }
        if results.len() < self.sent.len() + first {
            return Err(TransactError::Reply(format!(
                "{} results for {} operations",
                results.len(),
                self.sent.len() + first
            )));
        }
        Ok(Committed { results: decoded })
    }
}

fn decode_result(operation: &str, result: &Value) -> Result<OpResult, TransactError> {
    let wrong = || TransactError::Reply(format!("{operation}: {}", describe(result)));
    match operation {
        "insert" => {
            let uuid = result.get("uuid").ok_or_else(wrong)?;
            let uuid = Datum::parse(uuid, &ColumnType::scalar(crate::types::AtomicType::Uuid)).map_err(|_| wrong())?;
            uuid.atom().and_then(Atom::as_uuid).map(OpResult::Inserted).ok_or_else(wrong)
        }
        "update" | "mutate" | "delete" => {
            result.get("count").and_then(Value::as_u64).map(OpResult::Count).ok_or_else(wrong)
        }
        "select" => {
            result.get("rows").and_then(Value::as_array).map(|rows| OpResult::Rows(rows.clone())).ok_or_else(wrong)
        }
        // RFC 7047 has no result object for these, ovsdb-server an empty one (ovsdb-server(7), 5.2.6).
        _ if result.is_null() || result.is_object() => Ok(OpResult::Done),
        _ => Err(wrong()),
    }
}

/// The JSON form of an operation; none if the schema does not have its table.
fn operation_json(operation: &Operation, schema: &DatabaseSchema) -> Option<Value> {
    if let Some(table) = operation.table()
        && !schema.tables.contains_key(table)
    {
        return None;
    }
    let known = |table: &str, column: &str| column.starts_with('_') || schema.column(table, column).is_some();
    let row = |table: &str, values: &Values| {
        let known = values.iter().filter(|(column, _)| known(table, column));
        Value::Object(known.map(|(column, value)| (column.clone(), value.to_json())).collect::<Map<_, _>>())
    };
    Some(match operation {
        Operation::Insert { table, name, row: values } => {
            json!({"op": "insert", "table": table, "uuid-name": name, "row": row(table, values)})
        }
        Operation::Update { table, rows, row: values } => {
            json!({"op": "update", "table": table, "where": rows.to_json(), "row": row(table, values)})
        }
        Operation::Mutate { table, rows, mutations } => {
            let mutations = mutations.iter().filter(|(column, ..)| known(table, column));
            let mutations: Value = mutations.map(|(c, m, value)| json!([c, m.name(), value.to_json()])).collect();
            json!({"op": "mutate", "table": table, "where": rows.to_json(), "mutations": mutations})
        }
        Operation::Delete { table, rows } => json!({"op": "delete", "table": table, "where": rows.to_json()}),
        Operation::Select { table, rows, columns } => {
            let columns: Vec<_> = columns.iter().filter(|c| known(table, c)).collect();
            json!({"op": "select", "table": table, "where": rows.to_json(), "columns": columns})
        }
        Operation::Wait { table, rows, expected, until_equal, timeout_ms } => {
            let columns: Vec<&str> =
                expected.iter().map(|(c, _)| c.as_str()).filter(|column| known(table, column)).collect();
            json!({
                "op": "wait", "timeout": timeout_ms, "table": table, "where": rows.to_json(), "columns": columns,
                "until": if *until_equal { "==" } else { "!=" }, "rows": [row(table, expected)],
            })
        }
        Operation::Comment(text) => json!({"op": "comment", "comment": text}),
        Operation::Assert(lock) => json!({"op": "assert", "lock": lock}),
    })
}

#[cfg(test)]
mod tests;
