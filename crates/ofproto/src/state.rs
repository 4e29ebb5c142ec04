//! The state of a bridge that survives a restart: flows with their counters and ages, and addresses.
//!
//! Times are stored as ages, since a clock starts anew with the process.

use std::time::Duration;

use openflow::{FlowStats, FlowStatsRequest, GroupId, Match, OfPort, TableId};
use packet::Time;

use crate::bridge::Bridge;
use crate::model::mac::{MacEntry, MacKey};
use crate::table::Rule;

/// What a bridge holds besides its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Flows, with counters and ages.
    pub flows: Vec<FlowStats>,
    /// Addresses, with the time since a packet from there was seen; `None` for a static one.
    pub macs: Vec<(MacKey, OfPort, Option<Duration>)>,
}

impl Bridge {
    /// The present state, with counters that include every packet forwarded before the call.
    pub fn snapshot(&self) -> Snapshot {
        let everything = FlowStatsRequest {
            matching: Match::any(),
            table: TableId::ALL,
            out_port: OfPort::ANY,
            out_group: GroupId::ANY,
            cookie: Default::default(),
        };
        let now = self.now();
        let macs = self.macs().into_iter();
        Snapshot {
            flows: self.flow_stats(&everything).unwrap_or_default(),
            macs: macs.map(|entry| (entry.key, entry.port, entry.used.map(|used| now.since(used)))).collect(),
        }
    }

    /// Adds what `snapshot` holds to what is there.
    pub fn restore(&self, snapshot: &Snapshot) {
        let now = self.now();
        let ago = |age: Duration| Time(now.0.saturating_sub(age.as_nanos() as u64));
        let seconds = |age: Option<u16>| ago(Duration::from_secs(age.unwrap_or(0).into()));
        let added: Result<(), std::convert::Infallible> = self.transact(|transaction| {
            for flow in &snapshot.flows {
                let Some(table) = transaction.bridge.tables.get(usize::from(flow.table.0)) else { continue };
                let pattern = table.rules.pattern(&flow.matching.key, &flow.matching.mask);
                let instructions = flow.instructions.clone();
                let mut rule = Rule::new(flow.table, flow.priority, pattern, instructions, ago(flow.duration));
                (rule.idle_timeout, rule.hard_timeout) = (flow.idle_timeout, flow.hard_timeout);
                (rule.cookie, rule.flags, rule.importance) = (flow.cookie, flow.flags, flow.importance);
                rule.modified = seconds(flow.hard_age);
                rule.stats.restore(flow.packet_count, flow.byte_count, seconds(flow.idle_age));
                transaction.insert(rule);
            }
            Ok(())
        });
        debug_assert!(added.is_ok());
        self.change(|bridge, generation| {
            let mut macs = bridge.macs.write();
            for &(key, port, age) in &snapshot.macs {
                macs.restore(MacEntry { key, port, used: age.map(ago) }, generation);
            }
        });
    }
}
