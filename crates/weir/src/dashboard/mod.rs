//! The dashboard: a page in a browser that shows what the switch does, and the data that it is made of. docs/dashboard.md has the paths.
//!
//! The page is the files in `page/`, which are in the binary as they are (`daemon::routes`). Its scripts draw it from JSON that the daemon
//! makes of what its commands report (`daemon::dashboard`). Nothing here changes the switch.
//!
//! What is asked often is measured once for all who look: every [`INTERVAL`](history::INTERVAL) the daemon reads its counters, while there
//! is an HTTP server, and keeps what happened for an hour ([`history`]).
//!
//! - [`history`]: the last hour, for the switch and its busiest ports
//! - [`report`]: the shapes of the JSON

pub mod history;
pub mod report;
