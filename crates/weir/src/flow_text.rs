//! The text syntax of flows, with the names of ports that the switch knows.

use std::collections::{BTreeMap, HashMap};

use ofproto::Bridge;
use openflow::codec::{DecodeOptions, encode};
use openflow::text::{self, PortNames};
use openflow::{Body, FlowMod, FlowModCommand, Message, Version};

/// Of a flow for which no message has room.
pub const TOO_LONG: &str = "it is too long for a message of OpenFlow, which has at most 65535 bytes";

/// Names of ports.
#[derive(Debug, Default)]
pub struct Names {
    names: BTreeMap<u32, String>,
    numbers: HashMap<String, u32>,
}

impl FromIterator<(u32, String)> for Names {
    fn from_iter<T: IntoIterator<Item = (u32, String)>>(ports: T) -> Names {
        let names: BTreeMap<u32, String> = ports.into_iter().collect();
        let numbers = names.iter().map(|(number, name)| (name.clone(), *number)).collect();
        Names { names, numbers }
    }
}

impl Names {
    /// The OpenFlow ports of a bridge.
    pub fn of_bridge(bridge: &Bridge) -> Names {
        bridge.ports().into_iter().map(|port| (port.port.0, port.name)).collect()
    }

    /// The ports of the datapath.
    pub fn of_datapath(datapath: &datapath::Datapath) -> Names {
        datapath.ports().into_iter().map(|(number, port)| (number.0, port.name().to_owned())).collect()
    }
}

impl PortNames for Names {
    fn name(&self, port: u32) -> Option<String> {
        self.names.get(&port).cloned()
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }
}

/// Parses a flow for a bridge.
pub fn parse(text: &str, command: FlowModCommand, bridge: &Bridge) -> Result<FlowMod, text::Error> {
    let names = Names::of_bridge(bridge);
    match command {
        FlowModCommand::Delete | FlowModCommand::DeleteStrict => {
            // The actions of a flow to be removed do not matter, and the syntax has no place for them.
            let selector = crate::config::desired::FlowText(text.to_owned());
            text::parse_flow_mod(command, selector.selector(), &names)
        }
        _ => text::parse_flow_mod(command, text, &names),
    }
}

/// Whether a message of OpenFlow has room for a flow-mod: otherwise no client could have sent it, nor would any be told of the flow.
pub fn fits(change: &FlowMod) -> bool {
    let message = Message::new(Version::V1_5, 0, Body::FlowMod(Box::new(change.clone())));
    encode(&message, DecodeOptions::default()).is_ok()
}

/// Checks a flow that is to be added to a bridge whose ports have these names.
pub fn check(text: &str, names: &Names) -> Result<(), String> {
    let change = text::parse_flow_mod(FlowModCommand::Add, text, names).map_err(|error| error.to_string())?;
    if fits(&change) { Ok(()) } else { Err(TOO_LONG.into()) }
}
