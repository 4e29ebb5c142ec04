//! Flow monitors: who wants to be told of changes to flows, and what is told (OpenFlow 1.4 section 7.3.5.17; before,
//! extensions of Nicira and ONF).

use crate::flow_mod::FlowRemovedReason;
use crate::instruction::Instructions;
use crate::matching::Match;
use crate::types::{Cookie, GroupId, OfPort, TableId};

/// What a request does (`enum ofp14_flow_monitor_command`). The extensions only add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlowMonitorCommand {
    /// Add; a monitor of the same number is an error.
    Add = 0,
    /// Replace; no monitor of that number is an error.
    Modify = 1,
    /// Remove; likewise.
    Delete = 2,
}

bitflags::bitflags! {
    /// What a monitor wants to be told; bits as in OpenFlow 1.4.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct FlowMonitorFlags: u16 {
        /// The flows that are there.
        const INITIAL = 1;
        /// Flows that are added.
        const ADD = 1 << 1;
        /// Flows that are removed.
        const REMOVED = 1 << 2;
        /// Flows that are modified.
        const MODIFY = 1 << 3;
        /// The flows' instructions, too.
        const INSTRUCTIONS = 1 << 4;
        /// Changes that its own connection has asked for in full (the extensions' OWN).
        const NO_ABBREV = 1 << 5;
        /// By the specification nothing but its own connection's changes. In Open vSwitch, the same as `NO_ABBREV`.
        const ONLY_OWN = 1 << 6;
    }
}

impl FlowMonitorFlags {
    /// The flags of which a monitor has one at least.
    pub const CHANGES: FlowMonitorFlags = Self::ADD.union(Self::REMOVED).union(Self::MODIFY);
}

/// A monitor, and what is to be done with it. One that is removed is named by its number alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMonitorRequest {
    /// Number, which its connection has given it.
    pub id: u32,
    /// What to do.
    pub command: FlowMonitorCommand,
    /// What to tell.
    pub flags: FlowMonitorFlags,
    /// Flows that output to this port; ANY for all.
    pub out_port: OfPort,
    /// Flows that use this group; ANY for all (OpenFlow 1.4).
    pub out_group: GroupId,
    /// Table; ALL for all.
    pub table: TableId,
    /// Flows that are as narrow as this or narrower.
    pub matching: Match,
}

impl FlowMonitorRequest {
    /// The removal of a monitor.
    pub fn removal(id: u32) -> FlowMonitorRequest {
        FlowMonitorRequest {
            id,
            command: FlowMonitorCommand::Delete,
            flags: FlowMonitorFlags::empty(),
            out_port: OfPort::ANY,
            out_group: GroupId::ANY,
            table: TableId::ALL,
            matching: Match::any(),
        }
    }
}

/// What became of a flow (`enum ofp_flow_update_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowEvent {
    /// It was there when the monitor was added. The extensions say that it was added.
    Initial,
    /// It was added.
    Added,
    /// It was removed, for this reason.
    Removed(FlowRemovedReason),
    /// Its instructions or its cookie were modified.
    Modified,
}

/// What a monitor is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowUpdate {
    /// What became of a flow.
    Flow(Box<MonitoredFlow>),
    /// The connection's own request with this transaction id has changed flows.
    Abbreviated {
        /// Transaction id.
        xid: u32,
    },
    /// Changes other than removals wait until the peer has read what was sent (OpenFlow 1.4; the extensions have a
    /// message of its own).
    Paused,
    /// All that waited has been told (OpenFlow 1.4).
    Resumed,
}

/// A flow in an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredFlow {
    /// What became of it.
    pub event: FlowEvent,
    /// Table.
    pub table: TableId,
    /// Priority.
    pub priority: u16,
    /// Seconds.
    pub idle_timeout: u16,
    /// Seconds.
    pub hard_timeout: u16,
    /// Cookie.
    pub cookie: Cookie,
    /// Match.
    pub matching: Match,
    /// Instructions; empty where the monitor does not want them.
    pub instructions: Instructions,
}
