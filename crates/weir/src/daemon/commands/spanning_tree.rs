//! `stp/...` and `rstp/...`: spanning trees, in OVS's formats.

use protocols::spanning_tree::Protocol;

use super::Context;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

pub static COMMANDS: &[Command<Context>] = commands! {
    "stp/show" "[bridge]" (0, 1) now!(show_stp), "What one bridge that speaks STP, or each, knows of its spanning tree.";
    "stp/tcn" "[bridge]" (0, 1) now!(change_stp), "Has the topology of one bridge that speaks STP, or of each, change: learnt addresses are forgotten.";
    "rstp/show" "[bridge]" (0, 1) now!(show_rstp), "What one bridge that speaks RSTP, or each, knows of its spanning tree.";
    "rstp/tcn" "[bridge]" (0, 1) now!(change_rstp), "Has the topology of one bridge that speaks RSTP, or of each, change: learnt addresses are forgotten.";
};

/// Why STP's commands are refused.
const NO_STP: &str = "no such stp object";
/// Why RSTP's are.
const NO_RSTP: &str = "No such RSTP object";

fn show_stp(context: &Context, args: &[String]) -> Outcome {
    show(context, Protocol::Stp, args).ok_or_else(|| NO_STP.into())
}

fn show_rstp(context: &Context, args: &[String]) -> Outcome {
    show(context, Protocol::Rstp, args).ok_or_else(|| NO_RSTP.into())
}

fn change_stp(context: &Context, args: &[String]) -> Outcome {
    change(context, Protocol::Stp, args).ok_or_else(|| NO_STP.into())
}

fn change_rstp(context: &Context, args: &[String]) -> Outcome {
    change(context, Protocol::Rstp, args).ok_or_else(|| NO_RSTP.into())
}

fn show(context: &Context, protocol: Protocol, args: &[String]) -> Option<String> {
    context.engine.switch.show_spanning_trees(protocol, args.first().map(String::as_str))
}

fn change(context: &Context, protocol: Protocol, args: &[String]) -> Option<String> {
    context.engine.switch.change_topology(protocol, args.first().map(String::as_str)).then(|| "OK".into())
}
