//! `dpdk/...` and `netdev-dpdk/...`: what DPDK says of itself.

use ports::dpdk::reports;

use super::Context;
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpdk/lcore-list" "" (0, 0) now!(lcore_list), "DPDK's threads, and those of Weir that it knows.";
    "dpdk/log-list" "" (0, 0) now!(log_list), "DPDK's log levels.";
    "dpdk/log-set" "{level | pattern:level}" (0, usize::MAX) now!(log_set),
        "Changes DPDK's log levels; without arguments, everything is logged.";
    "dpdk/get-malloc-stats" "" (0, 0) now!(malloc_stats), "How DPDK's memory is used.";
    "netdev-dpdk/set-admin-state" "[netdev] up|down" (1, 2) now!(set_admin_state),
        "Enables or disables one port of DPDK or all.";
    "netdev-dpdk/detach" "pci address of device" (1, 1) now!(detach),
        "Has DPDK forget a device that no port uses.";
    "netdev-dpdk/get-mempool-info" "[netdev]" (0, 1) now!(mempool_info), "The mempool of a port, or all.";
};

fn lcore_list(_: &Context, _: &[String]) -> Outcome {
    reports::lcore_list()
}

fn log_list(_: &Context, _: &[String]) -> Outcome {
    reports::log_list()
}

fn log_set(_: &Context, args: &[String]) -> Outcome {
    let changes: Vec<_> = args.iter().map(String::as_str).collect();
    reports::set_log(&changes).map(|()| String::new())
}

fn malloc_stats(_: &Context, _: &[String]) -> Outcome {
    reports::malloc_stats()
}

fn mempool_info(_: &Context, args: &[String]) -> Outcome {
    reports::mempool_info(args.first().map(String::as_str))
}

fn detach(_: &Context, args: &[String]) -> Outcome {
    reports::detach(&args[0])
}

fn set_admin_state(context: &Context, args: &[String]) -> Outcome {
    let state = args.last().map(|state| state.to_ascii_lowercase());
    let up = match state.as_deref() {
        Some("up") => true,
        Some("down") => false,
        _ => return Err("Invalid Admin State".into()),
    };
    let name = if let [name, _] = args { Some(name) } else { None };
    let bridges = context.engine.switch.bridges();
    let devices = bridges.iter().flat_map(|bridge| bridge.ports()).filter_map(|port| port.device);
    let ours = devices.filter(|device| device.kind().starts_with("dpdk") && name.is_none_or(|n| n == device.name()));
    let ours: Vec<_> = ours.collect();
    if name.is_some() && ours.is_empty() {
        return Err("Not a DPDK Interface".into());
    }
    for device in ours {
        device.set_admin_up(up).map_err(|e| e.to_string())?;
    }
    if context.engine.links.look(&context.engine.switch, &context.engine.datapath) {
        context.configurator.jobs().look_for_devices();
    }
    Ok("OK".into())
}
