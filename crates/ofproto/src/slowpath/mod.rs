//! What the datapath asks for and what keeps its flows true: misses, punts, revalidation.

pub(crate) mod control;
pub(crate) mod credits;
pub(crate) mod intern;
pub(crate) mod paused;
pub(crate) mod record;
pub(crate) mod record_table;
pub(crate) mod revalidate;
pub(crate) mod revalidators;
pub(crate) mod round;
pub(crate) mod upcall;
