//! `qos/...`: the limits of what ports are sent, in OVS's format.

use datapath::RateLimit;

use super::Context;
use crate::config::policing::EgressPolicer;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "qos/show-types" "INTERFACE" (1, 1) now!(types), "Which types of QoS an interface can have.";
    "qos/show" "INTERFACE" (1, 1) now!(show), "The QoS of an interface.";
};

/// The egress policer of an interface in use. An error where there is no such interface.
fn egress(context: &Context, interface: &str) -> Result<Option<RateLimit>, String> {
    let mut ports = context.engine.switch.bridges().into_iter().flat_map(|bridge| bridge.ports());
    let info = ports.find(|info| info.name == interface).ok_or("no such interface")?;
    let policer = info.dp_port.and_then(|port| context.engine.datapath.policers(port).egress);
    Ok(policer.and_then(|policer| policer.limits().bits))
}

fn types(context: &Context, args: &[String]) -> Outcome {
    egress(context, &args[0])?;
    Ok(format!("QoS type: {}\n", EgressPolicer::TYPE))
}

fn show(context: &Context, args: &[String]) -> Outcome {
    let interface = &args[0];
    Ok(match egress(context, interface)? {
        Some(RateLimit { rate, burst }) => {
            let (name, cir, cbs) = (EgressPolicer::TYPE, rate / 8, burst / 8);
            format!("QoS: {interface} {name}\ncbs: {cbs}\ncir: {cir}\n")
        }
        None => format!("QoS not configured on {interface}\n"),
    })
}
