//! Connections in a snapshot: timeout policies, connections, and those that are expected. They come before the first bridge.
//!
//! Connections go on while the snapshot is written: each is of one moment, not all of the same. Programs that know nothing of
//! connections pass over them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::conntrack::saved::{Connection, Damaged, Expected, Policy};
use datapath::conntrack::Conntrack;
use packet::Time;

use super::SnapshotError;
use super::wire::{Body, Writer, kind};

/// Connections that are in memory at once.
const PORTION: usize = 4096;

/// Writes all connections, each behind its policy, and then what they expect.
pub(super) fn write(conntrack: &Conntrack, now: Time, writer: &mut Writer<'_>) -> Result<(), SnapshotError> {
    let table = &conntrack.tracker.table;
    let (mut cursor, mut more) = (0, true);
    let mut policies = BTreeSet::from([0]);
    let mut portion = Vec::new();
    while more {
        more = table.dump(&mut cursor, PORTION, |connection, contents| {
            let left = table.ticks_left(connection, now).filter(|left| *left > 0);
            portion.extend(left.map(|left| Connection { contents: *contents, left }));
        });
        for connection in portion.drain(..) {
            let number = connection.contents.policy;
            if policies.insert(number)
                && let Some(timeouts) = table.policies.timeouts(number)
            {
                writer.section(kind::TIMEOUT_POLICY, &Policy { number, timeouts }.encode())?;
            }
            writer.section(kind::CONNECTION, &connection.encode())?;
        }
    }
    for (tuple, expectation, left) in conntrack.tracker.expectations.all(now) {
        let left = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
        writer.section(kind::EXPECTATION, &Expected { tuple, expectation, left }.encode())?;
    }
    Ok(())
}

/// A section of connections.
pub(super) enum Section {
    Policy(Policy),
    Connection(Box<Connection>),
    Expected(Box<Expected>),
}

impl Section {
    /// `None` for a section of another type.
    pub fn decode(body: &Body<'_>) -> Result<Option<Section>, SnapshotError> {
        let bytes = body.rest();
        let section = match body.kind {
            kind::TIMEOUT_POLICY => Policy::decode(bytes).map(Section::Policy),
            kind::CONNECTION => Connection::decode(bytes).map(|connection| Section::Connection(Box::new(connection))),
            kind::EXPECTATION => Expected::decode(bytes).map(|expected| Section::Expected(Box::new(expected))),
            _ => return Ok(None),
        };
        section.map(Some).map_err(|Damaged(what)| body.corrupt(what))
    }
}

/// Takes connections over, beside those that there are.
pub(super) struct Restoration<'a> {
    conntrack: &'a Conntrack,
    now: Time,
    /// Numbers of policies: here, by those in the snapshot.
    policies: BTreeMap<u16, u16>,
    /// Connections that were taken over.
    pub taken: usize,
    /// Connections that were not.
    pub lost: usize,
}

impl<'a> Restoration<'a> {
    pub fn new(conntrack: &'a Conntrack, now: Time) -> Restoration<'a> {
        Restoration { conntrack, now, policies: BTreeMap::new(), taken: 0, lost: 0 }
    }

    pub fn take_over(&mut self, section: Section) {
        let tracker = &self.conntrack.tracker;
        match section {
            Section::Policy(Policy { number, timeouts }) => {
                self.policies.extend(self.conntrack.policy_with(&timeouts).map(|here| (number, here)));
            }
            Section::Connection(saved) => {
                let Connection { mut contents, left } = *saved;
                contents.policy = self.policies.get(&contents.policy).copied().unwrap_or(0);
                match tracker.table.restore(&contents, left, self.now) {
                    Ok(_) => self.taken += 1,
                    Err(_) => self.lost += 1,
                }
            }
            Section::Expected(saved) => {
                let Expected { tuple, expectation, left } = *saved;
                if let Some(parent) = tracker.table.find(&expectation.parent, self.now) {
                    let left = Duration::from_millis(left.into());
                    tracker.expectations.expect_for(&tuple, parent.connection, expectation, left, self.now);
                }
            }
        }
    }
}
