//! What happened in the switch in an interval: what `weir top` shows, and prints with `--once --json`.
//!
//! Made of the daemon's reports at two times ([`Reports`]). docs/top.md has the keys.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::activity::{Connections, QueueShow, Queues, Upcalls, ZoneShow};
use super::ranking::{Ranking, TopDrop, TopFlow, TopRule};
use super::rates::{StatsRates, per_second};
use super::{PortShow, Ports, Stats};

/// What the daemon says at a time.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// `weir/stats`.
    pub stats: Stats,
    /// `weir/ports`.
    pub ports: Ports,
    /// `weir/queues`.
    pub queues: Queues,
    /// `weir/upcalls`.
    pub upcalls: Upcalls,
    /// `weir/connections`.
    pub connections: Connections,
    /// What was asked of `weir/top`.
    pub flows: Option<Ranking<TopFlow>>,
    /// Likewise.
    pub rules: Option<Ranking<TopRule>>,
    /// Likewise.
    pub drops: Option<Ranking<TopDrop>>,
}

/// What happened in an interval. Counts are by second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Length of the interval in seconds.
    pub interval_s: f64,
    /// Ports, by bridge and OpenFlow number.
    pub ports: Vec<PortRates>,
    /// Workers, and the sum of them.
    pub stats: StatsRates,
    /// Receive queues, by port and number.
    pub queues: Vec<QueueShow>,
    /// The slow path.
    pub upcalls: UpcallRates,
    /// Tracked connections.
    pub connections: ConnectionRates,
    /// Flows of the datapath with the most traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Ranking<TopFlow>>,
    /// OpenFlow rules with the most traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Ranking<TopRule>>,
    /// Places with the most drops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops: Option<Ranking<TopDrop>>,
}

/// A port in [`Measurement`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PortRates {
    /// Name.
    pub name: String,
    /// Bridge.
    pub bridge: String,
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// "up", "down", "disabled", or "error" where it is not in service.
    pub link: String,
    /// Packets received.
    pub rx_packets: f64,
    /// Bytes received.
    pub rx_bytes: f64,
    /// Received frames with errors.
    pub rx_errors: f64,
    /// Frames that the device dropped before Weir had them.
    pub rx_dropped: f64,
    /// Packets sent.
    pub tx_packets: f64,
    /// Bytes sent.
    pub tx_bytes: f64,
    /// Frames that could not be sent because of errors.
    pub tx_errors: f64,
    /// Packets that the port did not take.
    pub tx_dropped: f64,
    /// Packets that Weir has dropped which came in at the port, or that were too big for it, or while it was down.
    pub dropped: f64,
    /// The same by reason.
    pub drops: BTreeMap<String, f64>,
    /// Why the port is not in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The slow path in [`Measurement`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpcallRates {
    /// Misses that were answered.
    pub misses: f64,
    /// Misses that were dropped.
    pub lost: f64,
    /// Of these, those that found their port's share of the queue used up.
    pub queue_full: f64,
    /// Packets that an action gave to the slow path.
    pub punted: f64,
    /// Packets that the tables decide on one by one, and that were dropped because too many of them waited.
    pub overflown: f64,
    /// Flows that had to make room.
    pub evictions: f64,
    /// Flows that were translated again because of changes.
    pub translated: f64,
    /// Rounds of the revalidators.
    pub rounds: f64,
    /// What there is at the end of the interval, and counts since the start.
    pub now: Upcalls,
}

/// Tracked connections in [`Measurement`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionRates {
    /// Connections now.
    pub connections: u64,
    /// Most connections that there may be.
    pub limit: u32,
    /// Connections made.
    pub made: f64,
    /// Connections that have ended.
    pub ended: f64,
    /// Connections that had to make room for others.
    pub dropped_early: f64,
    /// What else was counted, by the names of `coverage/show`.
    pub counters: BTreeMap<String, f64>,
    /// The zones with the most connections.
    pub zones: Vec<ZoneShow>,
}

impl Reports {
    /// What happened since `before`, which was `time` ago.
    #[must_use]
    pub fn since(&self, before: &Reports, time: Duration) -> Measurement {
        let known: BTreeMap<_, _> = before.ports.ports.iter().map(|port| ((&port.bridge, &port.name), port)).collect();
        let new = PortShow::default();
        let ports = self.ports.ports.iter().map(|port| {
            let before = known.get(&(&port.bridge, &port.name)).copied().unwrap_or(&new);
            port_rates(port, before, time)
        });
        Measurement {
            interval_s: time.as_secs_f64(),
            ports: ports.collect(),
            stats: self.stats.rates(&before.stats, time),
            queues: self.queues.queues.clone(),
            upcalls: upcall_rates(&self.upcalls, &before.upcalls, time),
            connections: connection_rates(&self.connections, &before.connections, time),
            flows: self.flows.clone(),
            rules: self.rules.clone(),
            drops: self.drops.clone(),
        }
    }
}

/// Each counter of `now` by second.
fn each_per_second(
    now: &BTreeMap<String, u64>,
    before: &BTreeMap<String, u64>,
    time: Duration,
) -> BTreeMap<String, f64> {
    let rate =
        |(name, &n): (&String, &u64)| (name.clone(), per_second(n, before.get(name).copied().unwrap_or(0), time));
    now.iter().map(rate).filter(|(_, rate)| *rate > 0.0).collect()
}

fn port_rates(now: &PortShow, before: &PortShow, time: Duration) -> PortRates {
    let count = |port: &PortShow, name: &str| port.statistics.get(name).copied().unwrap_or(0);
    let rate = |name: &str| per_second(count(now, name), count(before, name), time);
    let drops = each_per_second(&now.drops, &before.drops, time);
    PortRates {
        name: now.name.clone(),
        bridge: now.bridge.clone(),
        kind: now.kind.clone(),
        link: now.link_state().into(),
        rx_packets: rate("rx_packets"),
        rx_bytes: rate("rx_bytes"),
        rx_errors: rate("rx_errors"),
        rx_dropped: rate("rx_dropped"),
        tx_packets: rate("tx_packets"),
        tx_bytes: rate("tx_bytes"),
        tx_errors: rate("tx_errors"),
        tx_dropped: rate("tx_dropped"),
        dropped: drops.values().sum(),
        drops,
        error: now.error.clone(),
    }
}

fn upcall_rates(now: &Upcalls, before: &Upcalls, time: Duration) -> UpcallRates {
    let rate = |of: fn(&Upcalls) -> u64| per_second(of(now), of(before), time);
    UpcallRates {
        misses: rate(|u| u.misses),
        lost: rate(|u| u.lost),
        queue_full: rate(|u| u.queue_full),
        punted: rate(|u| u.punted),
        overflown: rate(|u| u.overflown),
        evictions: rate(|u| u.evictions),
        translated: rate(|u| u.translated),
        rounds: rate(|u| u.rounds),
        now: now.clone(),
    }
}

fn connection_rates(now: &Connections, before: &Connections, time: Duration) -> ConnectionRates {
    let rate = |of: fn(&Connections) -> u64| per_second(of(now), of(before), time);
    ConnectionRates {
        connections: now.connections,
        limit: now.limit,
        made: rate(|c| c.made),
        ended: rate(|c| c.ended),
        dropped_early: rate(|c| c.dropped_early),
        counters: each_per_second(&now.counters, &before.counters, time),
        zones: now.zones.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, rx_packets: u64, dropped: u64) -> PortShow {
        PortShow {
            name: name.into(),
            statistics: BTreeMap::from([("rx_packets".to_owned(), rx_packets)]),
            drops: BTreeMap::from([("rule".to_owned(), dropped)]),
            ..PortShow::default()
        }
    }

    #[test]
    fn ports_are_compared_by_name() {
        let before =
            Reports { ports: Ports { ports: vec![port("p1", 10, 5), port("gone", 3, 0)] }, ..Reports::default() };
        let now = Reports { ports: Ports { ports: vec![port("new", 8, 0), port("p1", 30, 5)] }, ..Reports::default() };
        let measurement = now.since(&before, Duration::from_secs(2));
        let rates: Vec<_> = measurement.ports.iter().map(|p| (p.name.as_str(), p.rx_packets, p.dropped)).collect();
        assert_eq!(rates, [("new", 4.0, 0.0), ("p1", 10.0, 0.0)]);
        assert!(measurement.ports[1].drops.is_empty(), "only reasons that occur");
    }

    #[test]
    fn a_measurement_survives_json() {
        let measurement = Reports { ports: Ports { ports: vec![port("p1", 30, 5)] }, ..Reports::default() }
            .since(&Reports::default(), Duration::from_secs(1));
        let text = serde_json::to_string(&measurement).unwrap();
        assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), measurement);
    }
}
