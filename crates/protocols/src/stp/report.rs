//! What a bridge and its ports say of themselves: the columns `status` and `statistics`, and `stp/show`.

use std::fmt::Write;

use packet::Time;

use super::bridge::Bridge;
use super::identifier::{BridgeId, PortId};
use super::output::Counters;
use super::port::{Role, State};
use super::timing::Timing;
use crate::ethernet::MacText;

impl Role {
    /// The name in the column `status`.
    pub fn name(self) -> &'static str {
        match self {
            Role::Disabled => "disabled",
            Role::Root => "root",
            Role::Designated => "designated",
            Role::Alternate => "alternate",
        }
    }
}

impl State {
    /// The name in the column `status`.
    pub fn name(self) -> &'static str {
        match self {
            State::Disabled => "disabled",
            State::Listening => "listening",
            State::Learning => "learning",
            State::Forwarding => "forwarding",
            State::Blocking => "blocking",
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
    /// `stp_bridge_id`.
    pub bridge_id: BridgeId,
    /// `stp_designated_root`.
    pub designated_root: BridgeId,
    /// `stp_root_path_cost`.
    pub root_path_cost: u32,
}

impl Status {
    /// Keys and values of the column `status` of the bridge.
    pub fn columns(&self) -> [(&'static str, String); 3] {
        [
            ("stp_bridge_id", self.bridge_id.to_string()),
            ("stp_designated_root", self.designated_root.to_string()),
            ("stp_root_path_cost", self.root_path_cost.to_string()),
        ]
    }
}

/// Status of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// `stp_port_id`.
    pub port_id: PortId,
    /// `stp_state`.
    pub state: State,
    /// `stp_sec_in_state`.
    pub seconds_in_state: u64,
    /// `stp_role`.
    pub role: Role,
    /// `stp_tx_count`, `stp_rx_count` and `stp_error_count`.
    pub counters: Counters,
}

impl PortStatus {
    /// Keys and values of the column `status` of the port. The number of the port is decimal, as ovs-vswitchd writes it; its
    /// manual says hexadecimal.
    pub fn columns(&self) -> [(&'static str, String); 4] {
        [
            ("stp_port_id", self.port_id.0.to_string()),
            ("stp_state", self.state.name().to_owned()),
            ("stp_sec_in_state", self.seconds_in_state.to_string()),
            ("stp_role", self.role.name().to_owned()),
        ]
    }

    /// Keys and values of the column `statistics` of the port.
    pub fn statistics(&self) -> [(&'static str, u64); 3] {
        let Counters { sent, received, errors } = self.counters;
        [("stp_tx_count", sent), ("stp_rx_count", received), ("stp_error_count", errors)]
    }
}

impl Bridge {
    /// The bridge's status.
    pub fn status(&self) -> Status {
        Status { bridge_id: self.settings.bridge_id(), designated_root: self.root.root, root_path_cost: self.root.cost }
    }

    /// A port's status; none where there is no such port.
    pub fn port_status(&self, now: Time, number: u16) -> Option<PortStatus> {
        let port = self.port(number)?;
        Some(PortStatus {
            port_id: port.id(),
            state: port.state,
            seconds_in_state: now.since(port.since).as_secs(),
            role: self.role(number)?,
            counters: port.counters,
        })
    }

    /// Number of the root port; none where this bridge is the root.
    pub fn root_port(&self) -> Option<u16> {
        self.root_port
    }

    fn role(&self, number: u16) -> Option<Role> {
        let port = self.port(number)?;
        Some(match port.state {
            State::Disabled => Role::Disabled,
            _ if self.root_port == Some(number) => Role::Root,
            _ if self.is_designated(number) => Role::Designated,
            _ => Role::Alternate,
        })
    }

    /// The text of `stp/show` for this bridge, which has this name.
    pub fn show(&self, name: &str) -> String {
        let mut text = format!("---- {name} ----\nRoot ID:\n");
        show_bridge(&mut text, self.root.root, &self.timing);
        match self.root_port.and_then(|number| self.port(number)) {
            None => text.push_str("  This bridge is the root\n"),
            Some(port) => {
                let _ = writeln!(text, "  root-port       {}", port.settings.name);
                let _ = writeln!(text, "  root-path-cost  {}", self.root.cost);
            }
        }
        text.push_str("\nBridge ID:\n");
        show_bridge(&mut text, self.settings.bridge_id(), &self.settings.timing);
        text.push('\n');
        let _ = writeln!(text, "  {:<11}{:<11}{:<11}{:<6}{:<8}", "Interface", "Role", "State", "Cost", "Pri.Nbr");
        text.push_str("  ---------- ---------- ---------- ----- -------\n");
        for port in self.ports().filter(|port| port.enabled()) {
            let role = self.role(port.number).map_or("", Role::name);
            let (name, state, cost) = (&port.settings.name, port.state.name(), port.path_cost());
            let _ = writeln!(
                text,
                "  {name:<11.10}{role:<11}{state:<11}{cost:<6}{}.{}",
                port.settings.priority, port.number
            );
        }
        text.push('\n');
        text
    }
}

fn show_bridge(text: &mut String, id: BridgeId, timing: &Timing) {
    let _ = writeln!(text, "  stp-priority  {}", id.priority());
    let _ = writeln!(text, "  stp-system-id   {}", MacText(id.mac()));
    let _ = writeln!(text, "  stp-hello-time  {}s", timing.hello_time);
    let _ = writeln!(text, "  stp-max-age     {}s", timing.max_age);
    let _ = writeln!(text, "  stp-fwd-delay   {}s", timing.forward_delay);
}
