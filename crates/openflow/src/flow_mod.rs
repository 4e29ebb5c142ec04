//! Changes to flow tables and their echoes.

use std::time::Duration;

use crate::instruction::Instructions;
use crate::matching::Match;
use crate::types::{Cookie, CookieFilter, FlowModFlags, GroupId, OfPort, TableId};

/// What a flow-mod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlowModCommand {
    /// Add, replacing a flow of equal match and priority.
    Add = 0,
    /// Modify the instructions of all flows that the match covers; in OpenFlow 1.0 add where none is.
    Modify = 1,
    /// Modify the flow of equal match and priority.
    ModifyStrict = 2,
    /// Delete all flows that the match covers.
    Delete = 3,
    /// Delete the flow of equal match and priority.
    DeleteStrict = 4,
}

/// A change to the flow tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowMod {
    /// What to do.
    pub command: FlowModCommand,
    /// Table; `None` for all tables (delete), or the switch's choice (OpenFlow 1.0).
    pub table: Option<TableId>,
    /// Cookie to give to the flow; `None` leaves it.
    pub new_cookie: Option<Cookie>,
    /// A modify gives `new_cookie` only to a flow that it adds because it finds none (OpenFlow 1.1).
    pub keep_cookie: bool,
    /// For modify and delete: only flows with such a cookie.
    pub cookie: CookieFilter,
    /// Seconds; zero for never.
    pub idle_timeout: u16,
    /// Seconds; zero for never.
    pub hard_timeout: u16,
    /// Priority.
    pub priority: u16,
    /// Importance for eviction (OpenFlow 1.4).
    pub importance: u16,
    /// Flags.
    pub flags: FlowModFlags,
    /// For delete: only flows that output to this port; ANY for all.
    pub out_port: OfPort,
    /// For delete: only flows that use this group; ANY for all.
    pub out_group: GroupId,
    /// Buffered packet to send through the new flow.
    pub buffer_id: Option<u32>,
    /// Match.
    pub matching: Match,
    /// Instructions.
    pub instructions: Instructions,
    /// Actions that take away or look at a header need not have a match that guarantees it (OpenFlow 1.0).
    pub lenient: bool,
}

impl FlowMod {
    /// Priority where the text form gives none (OFP_DEFAULT_PRIORITY).
    pub const DEFAULT_PRIORITY: u16 = 0x8000;

    /// A change with everything else at its default.
    pub fn new(command: FlowModCommand, matching: Match, instructions: Instructions) -> FlowMod {
        FlowMod {
            command,
            table: None,
            new_cookie: (command == FlowModCommand::Add).then(Cookie::default),
            keep_cookie: false,
            cookie: CookieFilter::default(),
            idle_timeout: 0,
            hard_timeout: 0,
            priority: FlowMod::DEFAULT_PRIORITY,
            importance: 0,
            flags: FlowModFlags::empty(),
            out_port: OfPort::ANY,
            out_group: GroupId::ANY,
            buffer_id: None,
            matching,
            instructions,
            lenient: false,
        }
    }
}

/// Why a flow went (`enum ofp_flow_removed_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlowRemovedReason {
    /// Idle timeout.
    IdleTimeout = 0,
    /// Hard timeout.
    HardTimeout = 1,
    /// Deleted by a flow-mod.
    Delete = 2,
    /// Its group went.
    GroupDelete = 3,
    /// Its meter went (OpenFlow 1.4).
    MeterDelete = 4,
    /// Evicted (OpenFlow 1.4).
    Eviction = 5,
}

/// Tells that a flow went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRemoved {
    /// Match.
    pub matching: Match,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: Cookie,
    /// Why.
    pub reason: FlowRemovedReason,
    /// Table; `None` in OpenFlow 1.0, which does not say.
    pub table: Option<TableId>,
    /// How long it lived; nanosecond precision.
    pub duration: Duration,
    /// Seconds.
    pub idle_timeout: u16,
    /// Seconds; zero in OpenFlow 1.0 and 1.1.
    pub hard_timeout: u16,
    /// Packets; [`u64::MAX`] where unknown.
    pub packet_count: u64,
    /// Bytes; [`u64::MAX`] where unknown.
    pub byte_count: u64,
}
