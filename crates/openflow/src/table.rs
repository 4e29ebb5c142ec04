//! Flow tables: how they are configured.

use crate::types::TableId;

/// What becomes of a packet that no flow of a table matches (`enum ofp11_table_config`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum TableMiss {
    /// What the connection's version does: OpenFlow 1.0 to 1.2 send it to the controller, later ones drop it.
    #[default]
    Default,
    /// It goes to the controller.
    Controller,
    /// The next table looks it up.
    Continue,
    /// It is dropped.
    Drop,
}

bitflags::bitflags! {
    /// How a table chooses the flow to evict (`enum ofp14_table_mod_prop_eviction_flag`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct EvictionFlags: u32 {
        /// In another way.
        const OTHER = 1;
        /// By importance.
        const IMPORTANCE = 1 << 1;
        /// By how long it has to live.
        const LIFETIME = 1 << 2;
    }
}

/// When to tell that a table is full, or no longer is (percent of its room that is free).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Vacancy {
    /// Tells when less is free.
    pub down: u8,
    /// Tells when more is free again.
    pub up: u8,
    /// Free at present; only in descriptions.
    pub now: u8,
}

/// A change to tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableMod {
    /// Table; ALL for all.
    pub table: TableId,
    /// What becomes of packets that miss (OpenFlow 1.1 and 1.2).
    pub miss: TableMiss,
    /// Whether a flow is evicted when the table is full (OpenFlow 1.4); `None` leaves that as it is.
    pub eviction: Option<bool>,
    /// How the flow is chosen, where the message says it.
    pub eviction_flags: Option<EvictionFlags>,
    /// Whether vacancy is told (OpenFlow 1.4); `None` leaves that as it is.
    pub vacancy: Option<bool>,
    /// When it is told, where the message says it.
    pub vacancy_at: Option<Vacancy>,
}

impl TableMod {
    /// A change that changes nothing.
    pub fn new(table: TableId) -> TableMod {
        TableMod {
            table,
            miss: TableMiss::Default,
            eviction: None,
            eviction_flags: None,
            vacancy: None,
            vacancy_at: None,
        }
    }
}

/// Why a table's status is told (`enum ofp14_table_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TableReason {
    /// Less is free than the vacancy's lower threshold.
    VacancyDown = 3,
    /// More is free than its upper threshold.
    VacancyUp = 4,
}

/// Tells that a table has become full, or no longer is (OpenFlow 1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableStatus {
    /// Why.
    pub reason: TableReason,
    /// The table as it is now.
    pub desc: TableDesc,
}

/// Description of a table (OpenFlow 1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableDesc {
    /// Table.
    pub table: TableId,
    /// Whether a flow is evicted when the table is full.
    pub eviction: bool,
    /// How the flow is chosen, where the message says it.
    pub eviction_flags: Option<EvictionFlags>,
    /// When vacancy is told; `None` where it is not.
    pub vacancy: Option<Vacancy>,
}
