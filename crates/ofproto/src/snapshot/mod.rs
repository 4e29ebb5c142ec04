//! What has to survive a restart, in one serialised form: flows, groups, meters, addresses, and what controllers have
//! set of tables and ports. docs/snapshot.md describes the format.
//!
//! A snapshot is of one moment. Pointers to the flows and groups are taken under one hold of the tables' lock, and
//! encoded without it, so packets are forwarded meanwhile. Flows and groups never change but for their counters. The
//! memory that this takes is a pointer for each flow and an entry for each address.
//!
//! Restoring reads the bytes twice: once to find errors, and once to apply them. The decoded flows are never in memory
//! all at once.
//!
//! | module | what it is |
//! |---|---|
//! | `capture` | Takes a snapshot |
//! | `connections` | Connections, and what they expect |
//! | `fuzz` | Entry for fuzzing |
//! | `restore` | Restores one |
//! | `sections` | What each section says, and how it is encoded |
//! | `wire` | Header, framing of sections, and checksum |

mod capture;
#[cfg(test)]
mod connection_tests;
mod connections;
#[cfg(any(test, fuzzing))]
mod fuzz;
mod restore;
mod sections;
#[cfg(test)]
mod tests;
mod wire;

use std::io;

use openflow::OfError;
use openflow::codec::DecodeError;

use crate::switch::Switch;

#[cfg(any(test, fuzzing))]
pub use fuzz::run as fuzz;
pub use restore::Restored;

/// Version of the format that is written, and the latest that is read.
pub const VERSION: u16 = 1;

/// Why a snapshot cannot be written or taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It does not begin as a snapshot does.
    #[error("not a snapshot: it does not begin with \"WEIRSNAP\"")]
    NotASnapshot,
    /// It was written by a later version of this program.
    #[error("a snapshot of format {version}; this program reads formats up to {VERSION}")]
    Newer {
        /// Version of its format.
        version: u16,
    },
    /// It ends too early.
    #[error("the snapshot is cut short at byte {at}")]
    Truncated {
        /// Where something is missing.
        at: usize,
    },
    /// It does not say what it said when it was written, or was never written so.
    #[error("the snapshot is damaged at byte {at}: {what}")]
    Corrupt {
        /// Where.
        at: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// An OpenFlow message in it cannot be read.
    #[error("the snapshot is damaged at byte {at}: {error}")]
    Message {
        /// Where.
        at: usize,
        /// What is wrong.
        error: DecodeError,
    },
    /// It has something that the bridge cannot take, as a flow with a group that there is not.
    #[error("bridge {bridge}: what is at byte {at} of the snapshot is refused: {error}")]
    Refused {
        /// The bridge, which stays as it is.
        bridge: String,
        /// Where.
        at: usize,
        /// Why.
        error: OfError,
    },
    /// A flow, group or meter has no encoding.
    #[error("bridge {bridge}: {what} has no encoding as a message of OpenFlow")]
    Unencodable {
        /// Name of the bridge.
        bridge: String,
        /// What it is.
        what: String,
    },
    /// It cannot be written.
    #[error("writing the snapshot: {0}")]
    Write(#[from] io::Error),
}

impl Switch {
    /// Writes the present state of all bridges. Counters include every packet forwarded before the call. Not to be
    /// called from an upcall.
    pub fn snapshot(&self, out: &mut dyn io::Write) -> Result<(), SnapshotError> {
        self.revalidate();
        let captured = self.capture();
        captured.write(out)
    }

    /// Puts the bridges that are in a snapshot and in this switch into the snapshot's state, each in one step that no
    /// packet sees the middle of. A snapshot that cannot be read changes nothing; one that has what a bridge refuses
    /// changes the bridges before that one. No flow-removed is sent.
    ///
    /// Connections are taken over beside those that there are; a snapshot's connection whose tuples another has is lost.
    ///
    /// Ages go on as they were at the snapshot; the clocks of the two switches need not have anything in common. Not to
    /// be called from an upcall.
    pub fn restore(&self, snapshot: &[u8]) -> Result<Restored, SnapshotError> {
        restore::restore(self, snapshot)
    }
}
