//! Bridges, their OpenFlow tables, and their controllers.

use ofproto::model::mac::MacStats;

use super::{Metric, Samples, metrics};

/// A bridge.
#[derive(Clone, Debug, Default)]
pub struct Bridge {
    /// Its name.
    pub name: String,
    /// Ports, LOCAL included.
    pub ports: usize,
    /// OpenFlow flows.
    pub flows: usize,
    /// Learnt and static addresses.
    pub macs: usize,
    /// Most of them.
    pub macs_limit: usize,
    /// What has become of addresses.
    pub mac_stats: MacStats,
}

/// What is said of each.
pub static METRICS: &[Metric<Bridge>] = metrics! {
    "weir_bridge_ports" Gauge ["bridge"] |b, out| out.add(&[&b.name], b.ports), "Ports of a bridge.";
    "weir_bridge_flows" Gauge ["bridge"] |b, out| out.add(&[&b.name], b.flows), "OpenFlow flows of a bridge, in all tables.";
    "weir_bridge_mac_entries" Gauge ["bridge"] |b, out| out.add(&[&b.name], b.macs), "Learnt and static addresses of a bridge.";
    "weir_bridge_mac_entries_limit" Gauge ["bridge"] |b, out| out.add(&[&b.name], b.macs_limit), "Most that there may be.";
    "weir_bridge_mac_events_total" Counter ["bridge", "event"] mac_events,
        "Addresses that were learned, that have expired or were evicted, and that have moved to another port.";
};

fn mac_events(b: &Bridge, out: &mut Samples<'_>) {
    let MacStats { learned, expired, evicted, moved } = b.mac_stats;
    for (event, n) in [("learned", learned), ("expired", expired), ("evicted", evicted), ("moved", moved)] {
        out.add(&[&b.name, event], n);
    }
}

/// An OpenFlow table that is in use.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The bridge.
    pub bridge: String,
    /// Number.
    pub table: String,
    /// Flows.
    pub flows: u32,
    /// Most flows, where there is a limit.
    pub limit: Option<u32>,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that matched.
    pub matched: u64,
}

/// What is said of each.
pub static TABLES: &[Metric<Table>] = metrics! {
    "weir_table_flows" Gauge ["bridge", "table"] |t, out| out.add(&[&t.bridge, &t.table], t.flows),
        "OpenFlow flows of a table; only tables that have flows or were looked in.";
    "weir_table_flows_limit" Gauge ["bridge", "table"]
        |t, out| t.limit.iter().for_each(|limit| out.add(&[&t.bridge, &t.table], *limit)),
        "Most flows of a table that has a limit (Flow_Table, column flow_limit).";
    "weir_table_lookup_packets_total" Counter ["bridge", "table"] |t, out| out.add(&[&t.bridge, &t.table], t.lookups),
        "Packets for which a table was looked in, brought up to date by revalidation.";
    "weir_table_matched_packets_total" Counter ["bridge", "table"] |t, out| out.add(&[&t.bridge, &t.table], t.matched),
        "Packets that a flow of the table matched.";
};

/// A controller of a bridge.
#[derive(Clone, Debug, Default)]
pub struct Controller {
    /// The bridge.
    pub bridge: String,
    /// Its address.
    pub target: String,
    /// Connections that speak OpenFlow.
    pub connections: usize,
}

/// What is said of each.
pub static CONTROLLERS: &[Metric<Controller>] = metrics! {
    "weir_controller_connections" Gauge ["bridge", "target"] |c, out| out.add(&[&c.bridge, &c.target], c.connections),
        "Connections of a configured controller that speak OpenFlow now; 0 where it is not connected.";
};
