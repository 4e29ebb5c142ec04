//! `weir explain`: what decides what becomes of a packet.
//!
//! - [`capture`]: the client's part: packets of capture files
//! - [`outcome`]: what datapath actions do with a packet, as data
//! - [`report`]: the answer of `weir/explain`
//! - [`text`]: the same in plain words

pub mod capture;
pub mod outcome;
pub mod report;
pub mod text;
