//! Spanning trees in simulated networks, with both protocols.

mod capture;
mod network;
mod random;
mod rapid;
mod topologies;
