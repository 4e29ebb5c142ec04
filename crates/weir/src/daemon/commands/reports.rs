//! `weir/show` and `weir/ports`.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use datapath::Drops;
use ofproto::PortInfo;

use super::Context;
use super::flows::{in_turn, list, literal};
use crate::config::Target;
use crate::config::desired::format_mac;
use crate::reconfigure::unapplied::{FailedPort, Unapplied};
use crate::report::{BridgeShow, ControllerShow, PortShow, Ports, Show, statistics};
use crate::source::ControllerStatus;
use crate::unixctl::Pieces;
use crate::unixctl::command::Outcome;

/// Ports that are described at a time.
const PIECE: usize = 16;

/// `weir/show`.
pub fn show(context: &Context, _: &[String]) -> Result<Pieces, String> {
    let unapplied = context.configurator.unapplied();
    let mut failed = failed_by_bridge(&unapplied);
    let drops = Rc::new(drops_by_port(context));
    let all = json(&Show {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        config: context.location.clone(),
        uptime_s: context.started.elapsed().as_secs(),
        bridges: Vec::new(),
        errors: unapplied.errors.iter().cloned().chain(context.http.problem()).collect(),
    })?;
    let (head, tail) = around(&all, "bridges");
    let mut parts = vec![literal(head)];
    for (number, bridge) in context.engine.switch.bridges().iter().enumerate() {
        let whole = json(&show_bridge(context, bridge))?;
        let (head, tail) = around(&whole, "ports");
        parts.push(literal(if number > 0 { format!(",{head}") } else { head }));
        let mut ports = PortWalk::of(bridge, failed.remove(bridge.name()).unwrap_or_default(), drops.clone());
        parts.push(list(move || ports.next(), |port| port));
        parts.push(literal(tail));
    }
    parts.push(literal(tail));
    Ok(in_turn(parts))
}

/// `weir/ports`.
pub fn ports(context: &Context, _: &[String]) -> Result<Pieces, String> {
    let mut failed = failed_by_bridge(&context.configurator.unapplied());
    let drops = Rc::new(drops_by_port(context));
    let (head, tail) = around(&json(&Ports::default())?, "ports");
    let mut bridges = context.engine.switch.bridges().into_iter();
    let mut walk: Option<PortWalk> = None;
    let next = move || {
        loop {
            if let Some(ports) = walk.as_mut().and_then(PortWalk::next) {
                return Some(ports);
            }
            let bridge = bridges.next()?;
            walk = Some(PortWalk::of(&bridge, failed.remove(bridge.name()).unwrap_or_default(), drops.clone()));
        }
    };
    Ok(in_turn(vec![literal(head), list(next, |port| port), literal(tail)]))
}

/// What stands before and behind the items of a list that is empty in some JSON. No text in it has bare quotes.
fn around(json: &str, name: &str) -> (String, String) {
    let (head, tail) = json.split_once(&format!("\"{name}\":[]")).unwrap_or((json, ""));
    (format!("{head}\"{name}\":["), format!("]{tail}"))
}

/// A report as JSON.
pub fn json(report: &impl serde::Serialize) -> Outcome {
    serde_json::to_string(report).map_err(|e| e.to_string())
}

/// What the datapath has dropped, by its numbers of ports.
pub fn drops_by_port(context: &Context) -> HashMap<u32, Drops> {
    context.engine.datapath.stats().ports.into_iter().map(|(number, drops)| (number.0, drops)).collect()
}

/// A bridge without its ports.
fn show_bridge(context: &Context, bridge: &ofproto::Bridge) -> BridgeShow {
    let config = bridge.config();
    BridgeShow {
        name: bridge.name().to_owned(),
        datapath_id: format!("{:016x}", config.datapath_id),
        fail_mode: fail_mode(config.fail_mode).into(),
        controllers: controllers_of(context, bridge.name()),
        ports: Vec::new(),
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

/// The ports that could not be opened or changed, by bridge.
fn failed_by_bridge(unapplied: &Unapplied) -> HashMap<String, Vec<FailedPort>> {
    let mut failed: HashMap<String, Vec<FailedPort>> = HashMap::new();
    for port in &unapplied.ports {
        failed.entry(port.bridge.clone()).or_default().push(port.clone());
    }
    failed
}

/// The ports of a bridge, those that could not be opened last.
struct PortWalk {
    bridge: String,
    infos: std::vec::IntoIter<PortInfo>,
    /// Those that failed, in their order.
    names: std::vec::IntoIter<String>,
    failed: HashMap<String, FailedPort>,
    drops: Rc<HashMap<u32, Drops>>,
}

impl PortWalk {
    fn of(bridge: &ofproto::Bridge, failed: Vec<FailedPort>, drops: Rc<HashMap<u32, Drops>>) -> PortWalk {
        let names: Vec<_> = failed.iter().map(|port| port.name.clone()).collect();
        let failed = failed.into_iter().map(|port| (port.name.clone(), port)).collect();
        let (bridge, infos) = (bridge.name().to_owned(), bridge.ports().into_iter());
        PortWalk { bridge, infos, names: names.into_iter(), failed, drops }
    }

    /// Some more of them.
    fn next(&mut self) -> Option<Vec<PortShow>> {
        let PortWalk { bridge, infos, names, failed, drops } = self;
        let mut ports: Vec<_> = infos.take(PIECE).map(|info| show_port(bridge, &info)).collect();
        for port in &mut ports {
            port.drops = drops_of(port.dp_port, drops);
            port.error = failed.remove(&port.name).map(|failed| failed.error);
        }
        if ports.is_empty() {
            ports.extend(names.filter_map(|name| failed.remove(&name)).take(PIECE).map(not_opened));
        }
        (!ports.is_empty()).then_some(ports)
    }
}

fn not_opened(failed: FailedPort) -> PortShow {
    let FailedPort { bridge, name, kind, error } = failed;
    PortShow { name, bridge, kind, vlan_mode: "trunk".into(), error: Some(error), ..PortShow::default() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_put_where_it_is_empty_whatever_texts_hold() {
        let config = "\"bridges\":[]\\".to_owned();
        let errors = vec!["\"bridges\":[]".to_owned()];
        let show = Show { version: String::new(), pid: 1, config, uptime_s: 2, bridges: Vec::new(), errors };
        let (head, tail) = around(&json(&show).unwrap(), "bridges");
        assert_eq!(serde_json::from_str::<Show>(&format!("{head}{tail}")).unwrap(), show);
        assert!(head.ends_with("\"uptime_s\":2,\"bridges\":["), "{head}");
    }
}
