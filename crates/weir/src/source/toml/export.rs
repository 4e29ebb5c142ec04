//! What a bridge exports: `[bridge.sflow]`, `[bridge.netflow]`, `[bridge.ipfix]` and `[[bridge.collector-set]]`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use export::settings::{BridgeExport, BridgeIpfix, FlowIpfix, IPFIX_PORT, NETFLOW_TIMEOUT, Netflow, SFLOW_PORT, Sflow};

use super::reader::Section;

/// Reads what a bridge exports. `agents` counts sFlow's agents.
pub fn read(s: &mut Section<'_>, agents: &mut u32) -> BridgeExport {
    BridgeExport {
        sflow: s.section("sflow").and_then(|section| read_sflow(section, agents)),
        netflow: s.section("netflow").and_then(read_netflow),
        ipfix: s.section("ipfix").and_then(read_bridge_ipfix),
        collector_sets: read_collector_sets(s),
    }
}

fn targets(s: &mut Section<'_>, port: Option<u16>) -> Option<Vec<SocketAddr>> {
    let mut targets = Vec::new();
    for item in s.list("targets") {
        let Some(text) = item.str() else { continue };
        match export::target::parse(text, port) {
            Ok(target) => targets.push(target),
            Err(problem) => item.error(problem.to_string()),
        }
    }
    if targets.is_empty() {
        s.error("there are no collectors: targets = [\"IP:PORT\"] names one");
        return None;
    }
    targets.sort();
    targets.dedup();
    Some(targets)
}

fn number(s: &mut Section<'_>, key: &'static str, most: u32) -> Option<u32> {
    s.integer(key, 0..=most.into(), "a number").map(|number| number as u32)
}

fn sampling(s: &mut Section<'_>) -> u32 {
    s.integer("sampling", 1..=u32::MAX.into(), "one packet in so many").unwrap_or(400) as u32
}

fn read_sflow(mut s: Section<'_>, agents: &mut u32) -> Option<Sflow> {
    let targets = targets(&mut s, Some(SFLOW_PORT));
    let sub_id = *agents;
    *agents += 1;
    let (sampling, polling) = (sampling(&mut s), s.seconds("polling-s", 0..=86_400));
    let header = s.integer("header", 1..=i64::from(u16::MAX), "a number of bytes");
    let agent = s.get("agent").and_then(|item| item.str()).map(str::to_owned);
    s.finish();
    Some(Sflow {
        targets: targets?,
        sampling,
        polling: polling.unwrap_or(Duration::from_secs(30)),
        header: header.unwrap_or(128) as u16,
        agent,
        sub_id,
    })
}

fn read_netflow(mut s: Section<'_>) -> Option<Netflow> {
    let targets = targets(&mut s, None);
    let engine_type = number(&mut s, "engine-type", 255).unwrap_or(0) as u8;
    let engine_id = number(&mut s, "engine-id", 255).unwrap_or(0) as u8;
    let active_timeout = s.seconds("active-timeout-s", 0..=86_400).unwrap_or(NETFLOW_TIMEOUT);
    let add_id_to_interface = s.bool("add-id-to-interface").unwrap_or(false);
    if add_id_to_interface && engine_id > 0x7f {
        s.error_at("engine-id", "only seven bits can be added to the numbers of ports: 0 to 127");
    }
    s.finish();
    Some(Netflow { targets: targets?, engine_type, engine_id, active_timeout, add_id_to_interface })
}

/// Reads what all exporters of IPFIX have; the section is not finished.
fn read_ipfix(s: &mut Section<'_>) -> Option<FlowIpfix> {
    let targets = targets(s, Some(IPFIX_PORT));
    let active_timeout = s.seconds("cache-active-timeout-s", 0..=4200).unwrap_or(Duration::ZERO);
    let max_flows = number(s, "cache-max-flows", u32::MAX).unwrap_or(0);
    let tunnels = s.bool("tunnel-sampling").unwrap_or(true);
    let virtual_obs_id = s.get("virtual-obs-id").and_then(|item| item.str()).map(str::to_owned);
    Some(FlowIpfix { targets: targets?, active_timeout, max_flows, tunnels, virtual_obs_id })
}

fn read_bridge_ipfix(mut s: Section<'_>) -> Option<BridgeIpfix> {
    let exporter = read_ipfix(&mut s);
    let sampling = sampling(&mut s);
    let obs_domain = number(&mut s, "obs-domain-id", u32::MAX).unwrap_or(0);
    let obs_point = number(&mut s, "obs-point-id", u32::MAX).unwrap_or(0);
    let input = s.bool("input-sampling").unwrap_or(true);
    let output = s.bool("output-sampling").unwrap_or(true);
    s.finish();
    Some(BridgeIpfix { exporter: exporter?, sampling, obs_domain, obs_point, input, output })
}

fn read_collector_sets(s: &mut Section<'_>) -> BTreeMap<u32, FlowIpfix> {
    let mut sets = BTreeMap::new();
    for item in s.list("collector-set") {
        let Some(mut section) = item.section() else { continue };
        let id = number(&mut section, "id", u32::MAX);
        let exporter = read_ipfix(&mut section);
        section.finish();
        let Some(id) = id else {
            section.error("a collector set needs a number, by which actions name it: id = 1");
            continue;
        };
        let Some(exporter) = exporter else { continue };
        if sets.insert(id, exporter).is_some() {
            item.error(format!("collector set {id} is listed twice"));
        }
    }
    sets
}
