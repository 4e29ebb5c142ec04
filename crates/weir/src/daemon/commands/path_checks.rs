//! `bfd/...` and `cfm/...`: what sessions find, and overriding it, in OVS's formats.

use protocols::bfd::show::parse_forwarding;

use super::Context;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

pub static COMMANDS: &[Command<Context>] = commands! {
    "bfd/show" "[interface]" (0, 1) now!(show_bfd), "What one session of BFD, or each, says and hears.";
    "bfd/set-forwarding" "[interface] normal|false|true" (1, 2) now!(set_forwarding), "Says whether interfaces forward, or leaves it to BFD.";
    "cfm/show" "[interface]" (0, 1) now!(show_cfm), "What one maintenance point of CFM, or each, knows.";
    "cfm/set-fault" "[interface] normal|false|true" (1, 2) now!(set_fault), "Says whether interfaces have a fault, or leaves it to CFM.";
};

/// Why CFM's commands are refused.
const NO_CFM: &str = "no such CFM object";

fn show_bfd(context: &Context, args: &[String]) -> Outcome {
    let text = context.engine.switch.show_bfd(args.first().map(String::as_str));
    text.ok_or_else(|| "no such bfd object".into())
}

fn show_cfm(context: &Context, args: &[String]) -> Outcome {
    context.engine.switch.show_cfm(args.first().map(String::as_str)).ok_or_else(|| NO_CFM.into())
}

fn set_forwarding(context: &Context, args: &[String]) -> Outcome {
    let (name, forwarding) = parse(args)?;
    let known = context.engine.switch.set_bfd_forwarding(name, forwarding);
    if known { Ok("OK".into()) } else { Err("no such BFD object".into()) }
}

fn set_fault(context: &Context, args: &[String]) -> Outcome {
    let (name, fault) = parse(args)?;
    if context.engine.switch.set_cfm_fault(name, fault) { Ok("OK".into()) } else { Err(NO_CFM.into()) }
}

/// The interface, where one is named, and the word at the end.
fn parse(args: &[String]) -> Result<(Option<&str>, Option<bool>), String> {
    let word = args.last().map_or("", String::as_str);
    let said = parse_forwarding(word).ok_or("unknown fault string")?;
    let name = args.first().filter(|_| args.len() > 1);
    Ok((name.map(String::as_str), said))
}
