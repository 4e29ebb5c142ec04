//! OVSDB client: JSON-RPC, schemas, a replica of a database, transactions (RFC 7047 and the extensions of
//! ovsdb-server(7)).
//!
//! The codec half does no I/O and reads no clock: bytes and times go into a [`Session`], bytes and events
//! come out. The I/O half is [`transport`] (unix, TCP and TLS sockets) and [`client`], which drives a session
//! on a tokio runtime of one thread.
//!
//! ```text
//! socket ─▶ framing::Framer ─▶ Session ─▶ Replica ─▶ Event::Changed(ChangeSet)
//!        ◀────────────────────        ◀─ Transaction
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`change`] | What an update changed |
//! | [`client`] | A session on a socket, driven by tokio |
//! | [`fuzz`] | Entry for fuzzing |
//! | [`jsonrpc`] | JSON-RPC on a byte stream |
//! | [`replica`] | The copy of the database |
//! | [`row`] | Typed access to a row |
//! | [`schema`] | Tables, columns and their types |
//! | [`session`] | The protocol: connect, monitor, transact, reconnect |
//! | [`transaction`] | Transactions and their results |
//! | [`transport`] | Unix, TCP and TLS connections |
//! | [`types`] | Values: atoms, sets, maps |

pub mod change;
pub mod client;
pub mod framing;
pub mod fuzz;
pub mod jsonrpc;
pub mod replica;
pub mod row;
pub mod schema;
pub mod session;
pub mod transaction;
pub mod transport;
pub mod types;

pub use change::{ChangeKind, ChangeSet, RowChange};
pub use client::{Client, Handle};
pub use replica::{Replica, Selection, Table};
pub use row::Row;
pub use schema::DatabaseSchema;
pub use session::{Config, Event, Reason, Session};
pub use transaction::{Committed, DbError, Function, Mutator, TransactError, Transaction, Where, values};
pub use transport::Remote;
pub use types::{Atom, AtomicType, Datum, Uuid};
