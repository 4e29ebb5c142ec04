//! Instructions: what a flow does with the pipeline.

use crate::action::Action;
use crate::types::TableId;

/// A flow's instructions. They run in the order of the members (OpenFlow 1.3.5 section 5.9). A flow of
/// OpenFlow 1.0 has only `apply`, and by extension write-metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Instructions {
    /// Meter.
    pub meter: Option<u32>,
    /// Apply-Actions.
    pub apply: Vec<Action>,
    /// Clear-Actions.
    pub clear: bool,
    /// Write-Actions.
    pub write: Vec<Action>,
    /// Write-Metadata.
    pub metadata: Option<WriteMetadata>,
    /// Goto-Table.
    pub goto: Option<TableId>,
}

impl Instructions {
    /// Only Apply-Actions.
    pub fn apply(actions: Vec<Action>) -> Instructions {
        Instructions { apply: actions, ..Instructions::default() }
    }

    /// Whether there is none: the packet is dropped.
    pub fn is_empty(&self) -> bool {
        *self == Instructions::default()
    }
}

/// Argument of Write-Metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteMetadata {
    /// Value; zero where `mask` is.
    pub value: u64,
    /// Bits that are written.
    pub mask: u64,
}
