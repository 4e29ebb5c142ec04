//! The control socket: OVS's unixctl protocol (ovs-appctl(8)), server and client.
//!
//! A client sends JSON-RPC 1.0 requests over a Unix stream socket, one after the other, without any
//! framing: `{"method": "list-commands", "params": [], "id": 0}`. Parameters and results are strings.
//! An error is a string in the reply's `error`.
//!
//! A long result is made in pieces as the client takes it, and the reply is sent as it is made: so it costs little
//! memory, and the management thread serves others between two pieces.
//!
//! - [`client`]: the client's end, blocking
//! - [`command`]: the table of commands
//! - [`jsonrpc`]: the messages, without I/O
//! - [`server`]: the daemon's end

pub mod client;
pub mod command;
pub mod jsonrpc;
pub mod server;

pub use client::Client;
pub use command::{Command, Commands, Pieces, Reply};
