//! What the datapath asks for and what keeps its flows true: misses, punts, revalidation.

mod commands;
pub(crate) mod control;
pub(crate) mod credits;
pub(crate) mod intern;
pub(crate) mod paused;
pub(crate) mod record;
pub(crate) mod record_table;
mod revalidate;
pub(crate) mod revalidators;
pub(crate) mod round;
mod upcall;
