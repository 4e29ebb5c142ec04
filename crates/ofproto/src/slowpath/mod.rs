//! What the datapath asks for and what keeps its flows true: misses, punts, revalidation.

pub(crate) mod control;
pub(crate) mod intern;
pub(crate) mod paused;
pub(crate) mod record;
pub(crate) mod record_table;
pub(crate) mod revalidate;
pub(crate) mod upcall;
