//! Where the desired state comes from: a file ([`toml`]) or a database ([`ovsdb`]).

pub mod ovsdb;
pub mod toml;
