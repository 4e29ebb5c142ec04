//! `weir diff`: what changes of flows would do to the traffic that there is.
//!
//! - [`expect`]: files of expectations
//! - [`flow_file`]: files of flows
//! - [`report`]: the answer of `weir/diff`
//! - [`text`]: the same in words

pub mod expect;
pub mod flow_file;
pub mod report;
pub mod text;
