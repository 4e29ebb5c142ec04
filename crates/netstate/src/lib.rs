//! Where a tunnel's packets go: routes, and the MAC addresses of next hops.
//!
//! | module | what it knows |
//! |---|---|
//! | [`prefix`] | an address and how many of its first bits count |
//! | [`routes`] | the routes of the kernel and those that an operator has added, and the addresses of devices |
//! | [`neighbours`] | the MAC addresses of next hops |
//! | [`resolution`] | frames that ask for them (ARP, neighbour discovery), and those that tell |
//! | [`state`] | all of it, shared |
//! | [`kernel`] | fills the tables with what the kernel tells |
//! | [`waiting`] | packets whose next hop's address is not known yet |
//!
//! But for [`kernel`], these are plain tables: nothing asks the kernel, sends anything, or reads a clock. Each change of routes or neighbours raises a number, by which
//! those who have used an entry notice that it may have changed.

pub mod kernel;
pub mod neighbours;
pub mod prefix;
pub mod resolution;
pub mod routes;
pub mod state;
pub mod waiting;
