//! What a bridge and its ports say of themselves: the columns `rstp_status` and `rstp_statistics`, and `rstp/show`.

use std::fmt::Write;

use super::bridge::Bridge;
use super::port::{Role, State};
use crate::ethernet::MacText;
use crate::stp::identifier::{BridgeId, PortId};
use crate::stp::output::Counters;
use crate::stp::timing::Timing;

impl Role {
    /// The name in the column `rstp_status`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Disabled => "Disabled",
            Role::Root => "Root",
            Role::Designated => "Designated",
            Role::Alternate => "Alternate",
            Role::Backup => "Backup",
        }
    }
}

impl State {
    /// The name in the column `rstp_status`.
    pub fn name(self) -> &'static str {
        match self {
            State::Disabled => "Disabled",
            State::Discarding => "Discarding",
            State::Learning => "Learning",
            State::Forwarding => "Forwarding",
        }
    }

    /// Whether addresses are learnt from what is received.
    pub fn learns(self) -> bool {
        matches!(self, State::Learning | State::Forwarding)
    }

    /// Whether frames are forwarded.
    pub fn forwards(self) -> bool {
        self == State::Forwarding
    }
}

/// Status of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// `rstp_bridge_id`.
    pub bridge_id: BridgeId,
    /// `rstp_root_id`.
    pub root_id: BridgeId,
    /// `rstp_root_path_cost`.
    pub root_path_cost: u32,
    /// `rstp_designated_id`: the bridge that the root port hears the root from, or this one.
    pub designated_id: BridgeId,
    /// `rstp_designated_port_id`: its port; zero where this bridge is the root.
    pub designated_port_id: PortId,
    /// `rstp_bridge_port_id`: the root port; zero where this bridge is the root.
    pub bridge_port_id: PortId,
}

impl Status {
    /// Keys and values of the column `rstp_status` of the bridge.
    pub fn columns(&self) -> [(&'static str, String); 6] {
        [
            ("rstp_bridge_id", extended(self.bridge_id)),
            ("rstp_root_path_cost", self.root_path_cost.to_string()),
            ("rstp_root_id", extended(self.root_id)),
            ("rstp_designated_id", extended(self.designated_id)),
            ("rstp_designated_port_id", self.designated_port_id.to_string()),
            ("rstp_bridge_port_id", self.bridge_port_id.to_string()),
        ]
    }
}

/// Status of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// `rstp_port_id`.
    pub port_id: PortId,
    /// `rstp_port_role`.
    pub role: Role,
    /// `rstp_port_state`.
    pub state: State,
    /// `rstp_designated_bridge_id`.
    pub designated_bridge_id: BridgeId,
    /// `rstp_designated_port_id`.
    pub designated_port_id: PortId,
    /// `rstp_designated_path_cost`.
    pub designated_path_cost: u32,
    /// Whether no bridge is behind the port.
    pub edge: bool,
    /// Whether its link has just two ends.
    pub point_to_point: bool,
    /// Whether it speaks RSTP, and not STP.
    pub rapid: bool,
    /// `rstp_tx_count`, `rstp_rx_count` and `rstp_error_count`.
    pub counters: Counters,
    /// `rstp_uptime`: what the counters cover, in seconds.
    pub uptime: u64,
}

impl PortStatus {
    /// Keys and values of the column `rstp_status` of the port.
    pub fn columns(&self) -> [(&'static str, String); 6] {
        [
            ("rstp_port_id", self.port_id.to_string()),
            ("rstp_port_role", self.role.name().to_owned()),
            ("rstp_port_state", self.state.name().to_owned()),
            ("rstp_designated_bridge_id", extended(self.designated_bridge_id)),
            ("rstp_designated_port_id", self.designated_port_id.to_string()),
            ("rstp_designated_path_cost", self.designated_path_cost.to_string()),
        ]
    }

    /// Keys and values of the column `rstp_statistics`.
    pub fn statistics(&self) -> [(&'static str, u64); 4] {
        [
            ("rstp_tx_count", self.counters.sent),
            ("rstp_rx_count", self.counters.received),
            ("rstp_uptime", self.uptime),
            ("rstp_error_count", self.counters.errors),
        ]
    }
}

impl Bridge {
    /// The bridge's status.
    pub fn status(&self) -> Status {
        let root_port = self.tree.root_port.and_then(|number| self.port(number));
        Status {
            bridge_id: self.tree.id,
            root_id: self.tree.root.root,
            root_path_cost: self.tree.root.cost,
            designated_id: self.tree.root.bridge,
            designated_port_id: self.tree.root.port,
            bridge_port_id: root_port.map_or(PortId(0), |port| port.id()),
        }
    }

    /// A port's status; none where there is no such port.
    pub fn port_status(&self, number: u16) -> Option<PortStatus> {
        let port = self.port(number)?;
        Some(PortStatus {
            port_id: port.id(),
            role: port.role,
            state: port.state(),
            designated_bridge_id: port.port_priority.bridge,
            designated_port_id: port.port_priority.port,
            designated_path_cost: port.port_priority.cost,
            edge: port.oper_edge,
            point_to_point: port.point_to_point(),
            rapid: port.send_rstp,
            counters: port.counters,
            uptime: port.uptime,
        })
    }

    /// Number of the root port; none where this bridge is the root.
    pub fn root_port(&self) -> Option<u16> {
        self.tree.root_port
    }

    /// How long learnt addresses are kept, in seconds (`rstp-ageing-time`).
    pub fn ageing_time(&self) -> u32 {
        self.settings.ageing_time
    }

    /// The text of `rstp/show` for this bridge, which has this name.
    pub fn show(&self, name: &str) -> String {
        let mut text = format!("---- {name} ----\nRoot ID:\n");
        let times = &self.tree.times;
        let root_port = self.tree.root_port.and_then(|number| self.port(number));
        match root_port {
            None => {
                show_bridge(&mut text, self.tree.id, &self.settings.timing);
                text.push_str("  This bridge is the root\n");
            }
            Some(port) => {
                let timing = Timing {
                    hello_time: port.port_times.hello_time,
                    max_age: times.max_age,
                    forward_delay: times.forward_delay,
                };
                show_bridge(&mut text, self.tree.root.root, &timing);
                let _ = writeln!(text, "  root-port       {}", port.settings.name);
                let _ = writeln!(text, "  root-path-cost  {}", self.tree.root.cost);
            }
        }
        text.push_str("\nBridge ID:\n");
        show_bridge(&mut text, self.tree.id, &self.settings.timing);
        text.push('\n');
        let _ = writeln!(text, "  {:<11}{:<11}{:<11}{:<9}{:<8}", "Interface", "Role", "State", "Cost", "Pri.Nbr");
        text.push_str("  ---------- ---------- ---------- -------- -------\n");
        for port in self.ports().filter(|port| port.state() != State::Disabled) {
            let (name, role, state) = (&port.settings.name, port.role.name(), port.state().name());
            let (cost, priority) = (port.path_cost(), port.settings.priority);
            let _ = writeln!(text, "  {name:<11.10}{role:<11}{state:<11}{cost:<9}{priority}.{}", port.number);
        }
        text.push('\n');
        text
    }
}

fn show_bridge(text: &mut String, id: BridgeId, timing: &Timing) {
    let _ = writeln!(text, "  stp-priority    {}", id.priority());
    let _ = writeln!(text, "  stp-system-id   {}", MacText(id.mac()));
    let _ = writeln!(text, "  stp-hello-time  {}s", timing.hello_time);
    let _ = writeln!(text, "  stp-max-age     {}s", timing.max_age);
    let _ = writeln!(text, "  stp-fwd-delay   {}s", timing.forward_delay);
}

/// The identifier with the system identifier extension apart: `8.000.0123456789ab`.
fn extended(id: BridgeId) -> String {
    let priority = id.priority();
    format!("{:x}.{:03x}.{:012x}", priority >> 12, priority & 0xfff, id.0 & 0xffff_ffff_ffff)
}
