//! How conditions are found in what the reports say.

use std::collections::BTreeMap;

use super::{Fact, Switch};
use crate::report::PortShow;
use crate::report::rates::risen;

/// From how much of a limit on it is said to be near, in percent.
const NEAR: u64 = 90;

/// Which part of all packets have to be dropped since the start so that it is said, although none is dropped now: one in so many.
const ONE_IN: u64 = 100;

/// And how many they are at least.
const SOME: u64 = 10;

/// How long a switch has to run before ports without traffic are said, in seconds.
const MINUTE: u64 = 60;

fn is_near(n: u64, limit: u64) -> bool {
    limit > 0 && u128::from(n) * 100 >= u128::from(limit) * u128::from(NEAR)
}

pub fn not_in_force(switch: &Switch) -> Vec<Fact> {
    switch.show.errors.iter().map(|error| Fact::new("", error.clone())).collect()
}

pub fn port_not_in_service(switch: &Switch) -> Vec<Fact> {
    let failed = switch.ports.iter().filter_map(|port| Some((port, port.error.as_ref()?)));
    failed.map(|(port, error)| Fact::new(&port.name, format!("{} is not in service: {error}", port.name))).collect()
}

pub fn controller_unreachable(switch: &Switch) -> Vec<Fact> {
    let mut facts = Vec::new();
    for bridge in &switch.show.bridges {
        let connected = bridge.controllers.iter().any(|controller| controller.connections > 0);
        // A bridge without any goes on by itself or does not, as its fail mode says.
        let then = match (connected, bridge.fail_mode.as_str()) {
            (true, _) => "",
            (false, "secure") => "; what no flow matches is dropped meanwhile",
            (false, _) => "; the bridge learns addresses by itself meanwhile",
        };
        for controller in bridge.controllers.iter().filter(|controller| controller.connections == 0) {
            let error = controller.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            facts.push(Fact::new(
                &bridge.name,
                format!("{} has no connection to {}{error}{then}", bridge.name, controller.target),
            ));
        }
    }
    facts
}

pub fn upcalls_lost(switch: &Switch) -> Vec<Fact> {
    let upcalls = &switch.measurement.upcalls;
    let (lost, misses) = (upcalls.now.lost, upcalls.now.misses);
    if upcalls.lost == 0.0 && (lost < SOME || lost.saturating_mul(ONE_IN) < misses) {
        return vec![];
    }
    let found = format!("{lost} misses were dropped and {misses} answered, now {:.0} dropped by second", upcalls.lost);
    vec![Fact::new("", found)]
}

pub fn connections_full(switch: &Switch) -> Vec<Fact> {
    let connections = &switch.measurement.connections;
    let mut facts = Vec::new();
    let refused: f64 =
        ["conntrack_full", "conntrack_zone_full"].iter().filter_map(|n| connections.counters.get(*n)).sum();
    let refuses = if refused > 0.0 { format!(", {refused:.0} are refused by second") } else { String::new() };
    if is_near(connections.connections, connections.limit.into()) {
        facts.push(Fact::new("", format!("{} of {} connections{refuses}", connections.connections, connections.limit)));
    }
    for zone in &connections.zones {
        if let Some(limit) = zone.limit.filter(|limit| is_near(zone.connections, (*limit).into())) {
            facts.push(Fact::new(
                zone.zone.to_string(),
                format!("zone {} has {} of {limit} connections{refuses}", zone.zone, zone.connections),
            ));
        }
    }
    if facts.is_empty() && refused > 0.0 {
        facts.push(Fact::new("", format!("{refused:.0} connections are refused by second: there are too many")));
    }
    facts
}

pub fn port_down(switch: &Switch) -> Vec<Fact> {
    let down = switch.ports.iter().filter(|port| port.link_state() == "down");
    down.map(|port| Fact::new(&port.name, format!("{} is enabled and has no carrier", port.name))).collect()
}

pub fn busy_workers(switch: &Switch) -> Vec<Fact> {
    let workers = &switch.measurement.stats.workers;
    let busy: Vec<_> = workers.iter().filter(|w| w.busy_percent >= NEAR as f64).collect();
    let idle = workers.iter().filter(|w| w.busy_percent < 50.0).count();
    let beside = if idle > 0 { format!(", while {idle} others have time") } else { String::new() };
    let fact = |w: &&crate::report::rates::WorkerRates| {
        let core = w.core.map(|core| format!(" on core {core}")).unwrap_or_default();
        let number = w.worker.unwrap_or(0);
        let found = format!("worker {number}{core} is busy {:.0} % of the time{beside}", w.busy_percent);
        Fact::new(number.to_string(), found)
    };
    busy.iter().map(fact).collect()
}

pub fn device_drops(switch: &Switch) -> Vec<Fact> {
    let dropping = switch.measurement.ports.iter().filter(|port| port.rx_dropped > 0.0);
    let fact = |port: &crate::report::measurement::PortRates| {
        Fact::new(&port.name, format!("the device of {} drops {:.0} frames by second", port.name, port.rx_dropped))
    };
    dropping.map(fact).collect()
}

pub fn mask_pressure(switch: &Switch) -> Vec<Fact> {
    let upcalls = &switch.measurement.upcalls.now;
    let fact = |port: &String| {
        let found = format!(
            "flows of {port} ask for more masks than they may have, so some match more and there are more of them"
        );
        Fact::new(port, format!("{found} ({} masks in all)", upcalls.masks))
    };
    upcalls.mask_pressure.iter().map(fact).collect()
}

pub fn flow_limit(switch: &Switch) -> Vec<Fact> {
    let upcalls = &switch.measurement.upcalls;
    let (flows, limit) = (upcalls.now.flows, upcalls.now.flow_limit);
    if !is_near(flows as u64, limit as u64) && upcalls.evictions == 0.0 {
        return vec![];
    }
    let found = format!("{flows} of {limit} datapath flows, {:.0} evicted by second", upcalls.evictions);
    vec![Fact::new("", found)]
}

/// Ports that packets of other ports come to with their own MTU.
fn with_mtu<'a>(ports: impl Iterator<Item = &'a PortShow>) -> impl Iterator<Item = (&'a PortShow, u32)> {
    // Tunnels have none of their own, and a bridge's own port follows the others.
    ports.filter(|port| port.ofport != Some(openflow::OfPort::LOCAL.0)).filter_map(|port| Some((port, port.mtu?)))
}

pub fn mtu_mismatch(switch: &Switch) -> Vec<Fact> {
    let mut facts = Vec::new();
    for bridge in &switch.show.bridges {
        let ports: Vec<_> = with_mtu(switch.ports.iter().filter(|port| port.bridge == bridge.name)).collect();
        let most = ports.iter().map(|(_, mtu)| *mtu).max().unwrap_or(0);
        let others = |mtu: u32| ports.iter().find(|(_, other)| *other == mtu).map_or("", |(port, _)| &port.name);
        for (port, mtu) in ports.iter().filter(|(_, mtu)| *mtu < most) {
            let found = format!(
                "{} has MTU {mtu}, {} of the same bridge {most}: what is longer is dropped",
                port.name,
                others(most)
            );
            facts.push(Fact::new(&port.name, found));
        }
    }
    facts
}

pub fn no_traffic(switch: &Switch) -> Vec<Fact> {
    if switch.show.uptime_s < MINUTE {
        return vec![];
    }
    let received = |port: &PortShow| port.statistics.get("rx_packets").copied();
    let by_bridge = switch.ports.iter().fold(BTreeMap::<_, u64>::new(), |mut sums, port| {
        *sums.entry(port.bridge.as_str()).or_default() += received(port).unwrap_or(0);
        sums
    });
    let silent =
        with_mtu(switch.ports.iter()).filter(|(port, _)| port.link_state() == "up" && received(port) == Some(0));
    let silent = silent.filter(|(port, _)| by_bridge.get(port.bridge.as_str()).is_some_and(|sum| *sum > 0));
    let fact = |(port, _): (&PortShow, u32)| {
        let sent = port.statistics.get("tx_packets").copied().unwrap_or(0);
        Fact::new(&port.name, format!("{} is up and has received nothing; {sent} packets were sent there", port.name))
    };
    silent.map(fact).collect()
}

/// Where packets are dropped for one of these reasons: now, or one in a hundred since the start.
pub fn drops(switch: &Switch, reasons: &[&str]) -> Vec<Fact> {
    let before: BTreeMap<_, _> = switch.before.iter().map(|port| ((&port.bridge, &port.name), port)).collect();
    let mut facts = Vec::new();
    for port in &switch.ports {
        let before = before.get(&(&port.bridge, &port.name));
        for reason in reasons {
            let count = |port: &PortShow| port.drops.get(*reason).or(port.tx_drops.get(*reason)).copied().unwrap_or(0);
            let dropped = count(port);
            let now = before.map_or(0, |before| risen(dropped, count(before)));
            let all = ["rx_packets", "tx_packets"].iter().filter_map(|name| port.statistics.get(*name)).sum::<u64>();
            if now > 0 || dropped >= SOME && dropped.saturating_mul(ONE_IN) >= all {
                let found = format!("{dropped} packets were dropped at {}: {reason}", port.name);
                let now = if now > 0 { format!(", {now} of them just now") } else { String::new() };
                facts.push(Fact::new(&port.name, found + &now));
            }
        }
    }
    facts
}
