//! The Open_vSwitch database as a source of the desired state (ovs-vswitchd.conf.db(5)).

pub(crate) mod columns;
pub(crate) mod files;
mod flow_tables;
pub(crate) mod follow;
mod mirror;
pub(crate) mod read;
mod unsupported;
mod writeback;
