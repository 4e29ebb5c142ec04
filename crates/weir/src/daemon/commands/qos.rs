//! `qos/...`: the limits and queues of what ports are sent, in OVS's format.

use std::fmt::Write as _;

use datapath::{EgressPolicer, TrtcmPolicer};
use ofproto::PortInfo;
use ports::QosState;
use ports::qos::QueueState;

use super::Context;
use crate::config::shaping;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "qos/show-types" "INTERFACE" (1, 1) now!(types), "Which types of QoS an interface can have.";
    "qos/show" "INTERFACE" (1, 1) now!(show), "The QoS of an interface.";
};

/// An interface in use. An error where there is no such interface.
fn find(context: &Context, interface: &str) -> Result<PortInfo, String> {
    let mut ports = context.engine.switch.bridges().into_iter().flat_map(|bridge| bridge.ports());
    ports.find(|info| info.name == interface).ok_or_else(|| "no such interface".into())
}

fn types(context: &Context, args: &[String]) -> Outcome {
    let info = find(context, &args[0])?;
    let of_port = info.device.as_ref().map_or(&[][..], |device| device.qos_types());
    let of_datapath = info.device.as_ref().map_or(&[][..], |device| shaping::types(&**device));
    let all = of_port.iter().chain(of_datapath).chain(&[EgressPolicer::ONE_RATE, TrtcmPolicer::TYPE]);
    Ok(all.map(|name| format!("QoS type: {name}\n")).collect())
}

fn show(context: &Context, args: &[String]) -> Outcome {
    let interface = &args[0];
    let info = find(context, interface)?;
    let of_port = info.device.as_ref().and_then(|device| device.qos());
    Ok(match of_port.or_else(|| context.engine.datapath.egress_state(info.dp_port?)) {
        Some(state) => in_words(interface, &state),
        None => format!("QoS not configured on {interface}\n"),
    })
}

fn in_words(interface: &str, state: &QosState) -> String {
    let mut text = format!("QoS: {interface} {}\n", state.kind);
    state.settings.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\n")));
    state.queues.iter().for_each(|queue| show_queue(&mut text, queue));
    text
}

fn show_queue(text: &mut String, queue: &QueueState) {
    let number = queue.number;
    text.push_str(&if number == 0 { "\nDefault:\n".into() } else { format!("\nQueue {number}:\n") });
    queue.settings.iter().for_each(|(name, value)| text.push_str(&format!("  {name}: {value}\n")));
    let _ = match &queue.stats {
        Ok(stats) => writeln!(
            text,
            "  tx_packets: {}\n  tx_bytes: {}\n  tx_errors: {}",
            stats.packets, stats.bytes, stats.errors
        ),
        Err(error) => writeln!(text, "  Failed to get statistics for queue {number}: {error}"),
    };
}
