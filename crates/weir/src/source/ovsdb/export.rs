//! The tables sFlow, NetFlow, IPFIX and Flow_Sample_Collector_Set (ovs-vswitchd.conf.db(5)).

use std::net::SocketAddr;
use std::time::Duration;

use export::settings::{BridgeExport, BridgeIpfix, FlowIpfix, IPFIX_PORT, NETFLOW_TIMEOUT, Netflow, SFLOW_PORT, Sflow};
use ovsdb::{Replica, Row};

/// One packet in so many is sampled, where nothing says otherwise.
const SAMPLING: u32 = 400;
/// Seconds between two samples of counters.
const POLLING: u64 = 30;
/// Bytes of a packet in a sample.
const HEADER: u16 = 128;

/// What a bridge exports, and what is wrong with it in words. `agents` counts sFlow's agents.
pub fn read(replica: &Replica, bridge: &Row, agents: &mut u32) -> (BridgeExport, Vec<String>) {
    let mut problems = Vec::new();
    let referred =
        |table: &str, column: &str| bridge.references(column).find_map(|uuid| replica.row(table, uuid)).cloned();
    let (sflow, netflow, ipfix) =
        (referred("sFlow", "sflow"), referred("NetFlow", "netflow"), referred("IPFIX", "ipfix"));
    let mut export = BridgeExport {
        sflow: sflow.and_then(|row| read_sflow(&row, agents, &mut problems)),
        netflow: netflow.and_then(|row| read_netflow(&row, &mut problems)),
        ipfix: ipfix.and_then(|row| read_bridge_ipfix(&row, &mut problems)),
        ..BridgeExport::default()
    };
    for set in replica.rows("Flow_Sample_Collector_Set") {
        if !set.references("bridge").any(|uuid| uuid == bridge.uuid()) {
            continue;
        }
        let row = set.references("ipfix").find_map(|uuid| replica.row("IPFIX", uuid));
        let id = set.integer("id").and_then(|id| u32::try_from(id).ok());
        if let (Some(id), Some(exporter)) = (id, row.and_then(|row| read_ipfix(row, &mut problems))) {
            export.collector_sets.insert(id, exporter);
        }
    }
    (export, problems)
}

/// The collectors; `None` where there is none that can be one.
fn targets(row: &Row, what: &str, port: Option<u16>, problems: &mut Vec<String>) -> Option<Vec<SocketAddr>> {
    let mut targets = Vec::new();
    for text in row.strings("targets") {
        match export::target::parse(text, port) {
            Ok(target) => targets.push(target),
            Err(problem) => problems.push(format!("{what}: {problem}")),
        }
    }
    if targets.is_empty() {
        problems.push(format!("{what}: there are no collectors, so nothing is exported"));
        return None;
    }
    targets.sort();
    targets.dedup();
    Some(targets)
}

fn number<T: TryFrom<i64>>(row: &Row, column: &str) -> Option<T> {
    row.integer(column).and_then(|number| T::try_from(number).ok())
}

fn seconds(row: &Row, column: &str) -> Option<Duration> {
    number(row, column).map(Duration::from_secs)
}

fn read_sflow(row: &Row, agents: &mut u32, problems: &mut Vec<String>) -> Option<Sflow> {
    let targets = targets(row, "sFlow", Some(SFLOW_PORT), problems)?;
    let sub_id = *agents;
    *agents += 1;
    Some(Sflow {
        targets,
        sampling: number(row, "sampling").unwrap_or(SAMPLING),
        polling: seconds(row, "polling").unwrap_or(Duration::from_secs(POLLING)),
        header: number(row, "header").unwrap_or(HEADER),
        agent: row.string("agent").filter(|agent| !agent.is_empty()).map(str::to_owned),
        sub_id,
    })
}

fn read_netflow(row: &Row, problems: &mut Vec<String>) -> Option<Netflow> {
    let engine_id = number(row, "engine_id").unwrap_or(0);
    let add_id_to_interface = row.boolean("add_id_to_interface") == Some(true);
    if add_id_to_interface && engine_id > 0x7f {
        problems.push(format!("NetFlow: only seven bits of engine_id {engine_id} are added to the numbers of ports"));
    }
    Some(Netflow {
        targets: targets(row, "NetFlow", None, problems)?,
        engine_type: number(row, "engine_type").unwrap_or(0),
        engine_id,
        // A negative number stands for the default.
        active_timeout: seconds(row, "active_timeout").unwrap_or(NETFLOW_TIMEOUT),
        add_id_to_interface,
    })
}

fn read_ipfix(row: &Row, problems: &mut Vec<String>) -> Option<FlowIpfix> {
    Some(FlowIpfix {
        targets: targets(row, "IPFIX", Some(IPFIX_PORT), problems)?,
        active_timeout: seconds(row, "cache_active_timeout").unwrap_or(Duration::ZERO),
        max_flows: number(row, "cache_max_flows").unwrap_or(0),
        tunnels: row.map_string("other_config", "enable-tunnel-sampling") != Some("false"),
        virtual_obs_id: row.map_string("other_config", "virtual_obs_id").map(str::to_owned),
    })
}

fn read_bridge_ipfix(row: &Row, problems: &mut Vec<String>) -> Option<BridgeIpfix> {
    Some(BridgeIpfix {
        exporter: read_ipfix(row, problems)?,
        sampling: number(row, "sampling").unwrap_or(SAMPLING),
        obs_domain: number(row, "obs_domain_id").unwrap_or(0),
        obs_point: number(row, "obs_point_id").unwrap_or(0),
        input: row.map_string("other_config", "enable-input-sampling") != Some("false"),
        output: row.map_string("other_config", "enable-output-sampling") != Some("false"),
    })
}
