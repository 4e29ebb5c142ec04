//! `autoattach/...` in OVS's formats, and `lldp/show`.

use ofproto::LldpReport;

use super::Context;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

pub static COMMANDS: &[Command<Context>] = commands! {
    "autoattach/status" "[bridge]" (0, 1) now!(status), "Which servers of Auto Attach the ports of one bridge, or of each, hear.";
    "autoattach/show-isid" "[bridge]" (0, 1) now!(show_isids), "What servers of Auto Attach say of the mappings of one bridge, or of each.";
    "autoattach/statistics" "[bridge]" (0, 1) now!(statistics), "What the ports of one bridge, or of each, have counted of LLDP.";
    "lldp/show" "[interface]" (0, 1) now!(show), "Which neighbours one interface that speaks LLDP, or each, hears.";
};

fn status(context: &Context, args: &[String]) -> Outcome {
    report(context, LldpReport::Status, args)
}

fn show_isids(context: &Context, args: &[String]) -> Outcome {
    report(context, LldpReport::Isids, args)
}

fn statistics(context: &Context, args: &[String]) -> Outcome {
    report(context, LldpReport::Statistics, args)
}

fn report(context: &Context, report: LldpReport, args: &[String]) -> Outcome {
    let switch = &context.engine.switch;
    let bridge = match args.first() {
        Some(name) => Some(switch.bridge(name).ok_or("no such bridge")?),
        None => None,
    };
    Ok(switch.show_lldp(report, bridge.as_ref()))
}

fn show(context: &Context, args: &[String]) -> Outcome {
    let name = args.first().map(String::as_str);
    context.engine.switch.show_lldp_neighbours(name).ok_or_else(|| "no such LLDP object".into())
}
