//! `/api/topology`: bridges, ports, mirrors and controllers, and what leads from one to another.

use std::collections::HashMap;

use ofproto::{Bridge, MirrorOutput, PortInfo, PortSelection, VlanMode};

use super::{joined, to_json, with_query};
use crate::daemon::commands::flows::{in_turn, literal};
use crate::daemon::commands::{Context, reports};
use crate::dashboard::report::{BridgeNode, MirrorEdge, PortNode};
use crate::http::Answer;
use crate::report::PortShow;

/// Ports that are asked at a time.
const PIECE: usize = 16;

/// Options of tunnels that say where the other end is.
const REMOTES: &[&str] = &["remote_ip", "remote_name"];

/// `/api/topology`.
pub fn report(context: &Context, query: Option<&str>) -> Answer {
    with_query(query, &[], |_| {
        let bridges = context.engine.switch.bridges();
        let shown: Vec<_> = bridges.iter().map(|bridge| to_json(&bridge_node(context, bridge))).collect();
        let unapplied = context.configurator.unapplied();
        let mut errors: HashMap<_, _> =
            unapplied.ports.iter().map(|port| ((port.bridge.clone(), port.name.clone()), port.clone())).collect();
        let mut infos = bridges.into_iter().flat_map(|bridge| {
            let name = bridge.name().to_owned();
            bridge.ports().into_iter().map(move |info| (name.clone(), info))
        });
        let next = move || {
            let mut piece: Vec<_> = infos
                .by_ref()
                .take(PIECE)
                .map(|(bridge, info)| {
                    let failed = errors.remove(&(bridge.clone(), info.name.clone()));
                    to_json(&port_node(bridge, &info, failed.map(|failed| failed.error)))
                })
                .collect();
            if piece.is_empty() {
                piece.extend(errors.drain().map(|(_, failed)| {
                    let (bridge, name, kind) = (failed.bridge, failed.name, failed.kind);
                    let (link, vlan_mode) = ("error".into(), VlanMode::Trunk.name().into());
                    let error = Some(failed.error);
                    to_json(&PortNode { bridge, name, kind, link, vlan_mode, error, ..PortNode::default() })
                }));
            }
            (!piece.is_empty()).then_some(piece)
        };
        let head = format!("{{\"bridges\":[{}],\"ports\":[", shown.join(","));
        Ok(Answer::Pieces(in_turn(vec![literal(head), joined(next), literal("]}")])))
    })
}

fn bridge_node(context: &Context, bridge: &Bridge) -> BridgeNode {
    let config = bridge.config();
    let names = |selection: &PortSelection| match selection {
        PortSelection::All => None,
        PortSelection::Ports(names) => Some(names.iter().cloned().collect()),
    };
    let mirrors = config.mirrors.iter().map(|mirror| {
        let (output_port, output_vlan) = match &mirror.output {
            MirrorOutput::Port(port) => (Some(port.clone()), None),
            MirrorOutput::Vlan(vlan) => (None, Some(*vlan)),
        };
        let (sources, destinations) = (names(&mirror.sources), names(&mirror.destinations));
        MirrorEdge { name: mirror.name.clone(), sources, destinations, output_port, output_vlan }
    });
    BridgeNode {
        name: bridge.name().to_owned(),
        datapath_id: format!("{:016x}", config.datapath_id),
        fail_mode: reports::fail_mode(config.fail_mode).into(),
        flows: bridge.flow_count() as u64,
        macs: bridge.mac_counts().0,
        controllers: reports::controllers_of(context, bridge.name()),
        mirrors: mirrors.collect(),
    }
}

fn port_node(bridge: String, info: &PortInfo, error: Option<String>) -> PortNode {
    let link = info.device.as_ref().map(|device| device.link());
    let (link_up, admin_up) = link.map_or((true, true), |link| (link.up, link.admin_up));
    let shown = PortShow { link_up, admin_up, error: error.clone(), ..PortShow::default() };
    let tagged = !matches!(info.vlan.mode, VlanMode::Trunk);
    PortNode {
        bridge,
        name: info.name.clone(),
        kind: info.kind.to_owned(),
        ofport: Some(info.port.0),
        link: shown.link_state().into(),
        vlan_mode: info.vlan.mode.name().into(),
        tag: tagged.then_some(info.vlan.tag),
        peer: info.peer.clone(),
        remote: info.options.iter().find(|(name, _)| REMOTES.contains(name)).map(|(_, value)| value.clone()),
        error,
    }
}
