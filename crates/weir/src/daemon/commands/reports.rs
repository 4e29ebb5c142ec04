//! `weir/show` and `weir/ports`.

use std::collections::{BTreeMap, HashMap};

use datapath::Drops;
use ofproto::PortInfo;

use super::Context;
use crate::config::Target;
use crate::config::desired::format_mac;
use crate::reconfigure::unapplied::Unapplied;
use crate::report::{BridgeShow, ControllerShow, PortShow, Ports, Show, statistics};
use crate::source::ControllerStatus;
use crate::unixctl::command::Outcome;

/// `weir/show`.
pub fn show(context: &Context, _: &[String]) -> Outcome {
    let unapplied = context.configurator.unapplied();
    let bridges = context.engine.switch.bridges();
    let drops = drops_by_port(context);
    json(&Show {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        config: context.location.clone(),
        uptime_s: context.started.elapsed().as_secs(),
        bridges: bridges.iter().map(|bridge| show_bridge(context, bridge, &unapplied, &drops)).collect(),
        errors: unapplied.errors.iter().cloned().chain(context.http.problem()).collect(),
    })
}

/// `weir/ports`.
pub fn ports(context: &Context, _: &[String]) -> Outcome {
    let unapplied = context.configurator.unapplied();
    let bridges = context.engine.switch.bridges();
    let drops = drops_by_port(context);
    json(&Ports { ports: bridges.iter().flat_map(|bridge| bridge_ports(bridge, &unapplied, &drops)).collect() })
}

/// A report as JSON.
pub fn json(report: &impl serde::Serialize) -> Outcome {
    serde_json::to_string(report).map_err(|e| e.to_string())
}

/// What the datapath has dropped, by its numbers of ports.
pub fn drops_by_port(context: &Context) -> HashMap<u32, Drops> {
    context.engine.datapath.stats().ports.into_iter().map(|(number, drops)| (number.0, drops)).collect()
}

fn show_bridge(
    context: &Context,
    bridge: &ofproto::Bridge,
    unapplied: &Unapplied,
    drops: &HashMap<u32, Drops>,
) -> BridgeShow {
    let config = bridge.config();
    BridgeShow {
        name: bridge.name().to_owned(),
        datapath_id: format!("{:016x}", config.datapath_id),
        fail_mode: fail_mode(config.fail_mode).into(),
        controllers: controllers_of(context, bridge.name()),
        ports: bridge_ports(bridge, unapplied, drops),
        flows: bridge.flow_count() as u64,
        macs: bridge.mac_counts().0,
    }
}

/// The word for it.
pub fn fail_mode(mode: ofproto::FailMode) -> &'static str {
    match mode {
        ofproto::FailMode::Standalone => "standalone",
        ofproto::FailMode::Secure => "secure",
    }
}

/// The controllers of a bridge.
pub fn controllers_of(context: &Context, bridge: &str) -> Vec<ControllerShow> {
    let controllers = context.openflow.controllers(bridge).into_iter();
    let show = |(target, status): (Target, ControllerStatus)| ControllerShow {
        target: target.to_string(),
        connections: status.connections,
        error: status.error,
    };
    controllers.map(show).collect()
}

/// The ports of a bridge, those that could not be opened last.
fn bridge_ports(bridge: &ofproto::Bridge, unapplied: &Unapplied, drops: &HashMap<u32, Drops>) -> Vec<PortShow> {
    let mut ports: Vec<_> = bridge.ports().iter().map(|info| show_port(bridge.name(), info)).collect();
    ports.iter_mut().for_each(|port| port.drops = drops_of(port.dp_port, drops));
    for failed in unapplied.ports.iter().filter(|failed| failed.bridge == bridge.name()) {
        match ports.iter_mut().find(|port| port.name == failed.name) {
            Some(port) => port.error = Some(failed.error.clone()),
            None => ports.push(PortShow {
                name: failed.name.clone(),
                bridge: failed.bridge.clone(),
                kind: failed.kind.clone(),
                vlan_mode: "trunk".into(),
                error: Some(failed.error.clone()),
                ..PortShow::default()
            }),
        }
    }
    ports
}

/// What the datapath has dropped at a port.
fn drops_of(dp_port: Option<u32>, drops: &HashMap<u32, Drops>) -> BTreeMap<String, u64> {
    let of_port = dp_port.and_then(|number| drops.get(&number));
    of_port.map(|d| d.iter().map(|(r, n)| (r.name().into(), n)).collect()).unwrap_or_default()
}

/// What a port counts, and whether it works: of [`PortShow`] what rates are made of.
pub fn count_port(bridge: &str, info: &PortInfo, drops: &HashMap<u32, Drops>) -> PortShow {
    let mut port = PortShow {
        name: info.name.clone(),
        bridge: bridge.to_owned(),
        kind: info.kind.to_owned(),
        drops: drops_of(info.dp_port.map(|n| n.0), drops),
        link_up: true,
        admin_up: true,
        ..PortShow::default()
    };
    if let Some(device) = &info.device {
        let link = device.link();
        (port.link_up, port.admin_up) = (link.up, link.admin_up);
        port.statistics = statistics(&device.stats());
    }
    port
}

fn show_port(bridge: &str, info: &PortInfo) -> PortShow {
    let tagged = !matches!(info.vlan.mode, ofproto::VlanMode::Trunk);
    let mut port = PortShow {
        name: info.name.clone(),
        bridge: bridge.to_owned(),
        ofport: Some(info.port.0),
        dp_port: info.dp_port.map(|n| n.0),
        kind: info.kind.to_owned(),
        vlan_mode: info.vlan.mode.name().to_owned(),
        tag: tagged.then_some(info.vlan.tag),
        trunks: info.vlan.trunks.as_ref().map(|set| set.iter().collect()).unwrap_or_default(),
        status: info.peer.iter().map(|peer| ("peer".to_string(), peer.clone())).collect(),
        link_up: true,
        admin_up: true,
        ..PortShow::default()
    };
    if let Some(device) = &info.device {
        let link = device.link();
        port.mac = Some(format_mac(&device.mac()));
        port.mtu = Some(device.mtu());
        (port.link_up, port.admin_up) = (link.up, link.admin_up);
        port.ifindex = device.ifindex();
        port.status.extend(device.status().into_iter().map(|(name, fact)| (name.to_owned(), fact)));
        port.statistics = statistics(&device.stats());
        port.tx_drops = device.tx_drops().named().into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    }
    port
}
