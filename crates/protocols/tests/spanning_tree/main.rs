//! Spanning trees in simulated networks, with both protocols.

mod network;
mod plain;
mod random;
mod rapid;
mod topologies;
