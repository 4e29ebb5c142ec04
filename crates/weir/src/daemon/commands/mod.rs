//! The commands of the control socket, in one table.
//!
//! - `activity`: `weir/queues`, `weir/upcalls`, `weir/connections`, `weir/top`
//! - `cidr`: addresses as arguments
//! - `conntrack`: `dpctl/...-conntrack`, `dpctl/ct-...`
//! - `coverage`: `coverage/...`
//! - `datapaths`: `dpctl/add-dp` and its kin; which datapath a command names
//! - `diff`: `weir/diff`
//! - `dpctl`: `dpctl/...`, flows
//! - `dpdk`: `dpdk/...`, `netdev-dpdk/...`
//! - `drops`: `weir/drops`
//! - `dummy`: `netdev-dummy/...`
//! - `multicast`: `mdb/...`
//! - `lldp`: `autoattach/...`, `lldp/show`
//! - `path_checks`: `bfd/...`, `cfm/...`
//! - `bonds`: `bond/...`
//! - `explain`: `weir/explain`
//! - `export`: `export/show`
//! - `features`: `dpif/show-dp-features`, `dpif/set-dp-features`
//! - `flows`: `weir/flows`, and the commands that list flows
//! - `implementations`: `dpif-netdev/dpif-impl-...`, `dpif-netdev/subtable-lookup-...`, `dpif-netdev/miniflow-parser-...`,
//!   `odp-execute/...`
//! - `ingress`: `ingress/...`
//! - `metrics`: `weir/metrics`
//! - `neighbours`: `tnl/neigh/...`, `tnl/arp/...`, `tnl/egress_port_range`
//! - `perf`: `dpif-netdev/pmd-perf-...`
//! - `pmd`: `dpif-netdev/pmd-...`
//! - `ports`: bridges, ports and learnt addresses
//! - `reports`: `weir/show`, `weir/ports`
//! - `routes`: `ovs/route/...`
//! - `slow_path`: `upcall/...`, `revalidator/...`, `memory/show`
//! - `spanning_tree`: `stp/...`, `rstp/...`
//! - `stats`: `weir/stats`
//! - `tap`: `weir/tap`
//! - `time`: `time/stop`, `time/warp`
//! - `trace`: `ofproto/trace...`
//! - `verify`: `weir/verify`
//! - `vlog`: `vlog/...`
//! - `waiting`: the commands until the first configuration has come

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::Notify;

use super::configurator::Configurator;
use super::engine::Engine;
use super::openflow;
use super::ranking::Rankings;
use super::reload::Reloader;
use crate::dashboard::history::History;
use crate::http;
use crate::unixctl::command::{Outcome, Reply};
use crate::unixctl::{Command, Commands};
use crate::vlog::Logger;

/// A table of commands: name, arguments, how few and how many, what runs, help.
macro_rules! commands {
    ($($name:literal $usage:literal ($min:expr, $max:expr) $run:expr, $help:literal;)*) => {
        &[$(Command { name: $name, usage: $usage, args: ($min, $max), help: $help, run: $run },)*]
    };
}

/// Wraps a command that answers at once.
macro_rules! now {
    ($run:path) => {
        $crate::unixctl::command::Run::Quick(|context, args| $crate::unixctl::command::Reply::Now($run(context, args)))
    };
}

/// Wraps a command that answers piece by piece.
macro_rules! pieces {
    ($run:path) => {
        $crate::unixctl::command::Run::Quick(|context, args| $run(context, args).into())
    };
}

/// Wraps a command that says by itself how it answers, at once or piece by piece.
macro_rules! quick {
    ($run:expr) => {
        $crate::unixctl::command::Run::Quick($run)
    };
}

/// Wraps a command whose client waits for what others do.
macro_rules! slow {
    ($run:expr) => {
        $crate::unixctl::command::Run::Slow($run)
    };
}

pub mod activity;
#[cfg(any(test, fuzzing))]
pub mod arguments;
mod bonds;
mod cidr;
mod conntrack;
pub mod coverage;
mod datapaths;
mod diff;
mod dpctl;
mod dpdk;
mod drops;
mod dummy;
pub mod explain;
mod export;
mod features;
pub mod flows;
pub mod implementations;
mod ingress;
mod lldp;
pub mod metrics;
mod multicast;
mod neighbours;
mod path_checks;
pub mod perf;
mod pmd;
mod ports;
mod qos;
pub mod reports;
mod routes;
mod slow_path;
mod spanning_tree;
pub mod stats;
mod tap;
mod time;
mod trace;
mod verify;
mod vlog;
pub mod waiting;

/// What commands work on.
pub struct Context {
    /// The switch.
    pub engine: Engine,
    /// The thread that applies the configuration.
    pub configurator: Configurator,
    /// The OpenFlow sockets.
    pub openflow: Rc<openflow::Manager>,
    /// The HTTP server.
    pub http: Rc<http::Server>,
    /// Told when the daemon is to end.
    pub exit: Rc<Notify>,
    /// What is logged where.
    pub log: Arc<Logger>,
    /// How often events came lately.
    pub coverage: coverage::History,
    /// Has the configuration read again.
    pub reloader: Reloader,
    /// Where the configuration comes from.
    pub location: String,
    /// What it answers to who asks for its version.
    pub version: String,
    /// Which implementations of functions were chosen.
    pub chosen: implementations::Chosen,
    /// The last hour, for the dashboard.
    pub history: Rc<RefCell<History>>,
    /// What has the most traffic.
    pub rankings: Rankings,
    /// When the daemon started.
    pub started: Instant,
    /// The same by the system's clock.
    pub started_at: SystemTime,
}

impl Context {
    fn bridge(&self, name: &str) -> Result<ofproto::Bridge, String> {
        self.engine.switch.bridge(name).ok_or_else(|| format!("no such bridge: {name}"))
    }

    /// The bridges that an optional argument names: one or all.
    fn bridges(&self, name: Option<&String>) -> Result<Vec<ofproto::Bridge>, String> {
        match name {
            Some(name) => Ok(vec![self.bridge(name)?]),
            None => Ok(self.engine.switch.bridges()),
        }
    }
}

/// An error as OVS's dpctl library words it.
fn dpctl_error(context: &Context, text: &str) -> String {
    dpctl_error_of(context.log.program(), text)
}

fn dpctl_error_of(program: &str, text: &str) -> String {
    format!("{program}: {text}\n")
}

/// The table for servers.
pub const TABLE: Commands<Context> = Commands(GROUPS);

static GROUPS: &[&[Command<Context>]] = &[
    COMMANDS,
    activity::COMMANDS,
    bonds::COMMANDS,
    lldp::COMMANDS,
    path_checks::COMMANDS,
    spanning_tree::COMMANDS,
    datapaths::COMMANDS,
    dpctl::COMMANDS,
    conntrack::COMMANDS,
    slow_path::COMMANDS,
    features::COMMANDS,
    coverage::COMMANDS,
    dpdk::COMMANDS,
    multicast::COMMANDS,
    implementations::COMMANDS,
    ingress::COMMANDS,
    neighbours::COMMANDS,
    qos::COMMANDS,
    routes::COMMANDS,
    &vlog::commands(),
];

impl vlog::Logs for Context {
    fn log(&self) -> &Logger {
        &self.log
    }
}

static COMMANDS: &[Command<Context>] = commands! {
    "list-commands" "" (0, 0) now!(list_commands), "Lists the commands with their arguments.";
    "help" "[COMMAND]" (0, 1) now!(help), "Says what a command does, or lists all.";
    "version" "" (0, 0) now!(version), "Prints the version of the daemon.";
    "exit" "[--cleanup]" (0, 1) now!(exit), "Ends the daemon, and removes its sockets and devices.";
    "reload" "" (0, 0) slow!(|context, _| Reply::Later(context.reloader.reload())),
        "Reads the configuration again and applies what changed.";

    "weir/show" "" (0, 0) pieces!(reports::show), "Bridges, ports and controllers, as JSON.";
    "weir/flows" "[bridge=BRIDGE] [table=TABLE] [openflow-only|datapath-only]" (0, 3) pieces!(flows::report),
        "OpenFlow and datapath flows, as JSON.";
    "weir/stats" "" (0, 0) now!(stats::report), "Counters of the workers, as JSON.";
    "weir/ports" "" (0, 0) pieces!(reports::ports), "Ports with their counters, as JSON.";
    "weir/metrics" "" (0, 0) pieces!(metrics::report), "All counters in Prometheus's text format.";
    "weir/drops" "" (0, 0) pieces!(drops::report), "Which packets were dropped where, and why, as JSON.";

    "weir/verify" "" (0, 0) now!(verify::show),
        "How many packets were verified (other_config:verify-sampling), and where caches and tables disagree.";

    "weir/tap" "[--drops] [--rx|--tx|--both] [--count=N] [--snaplen=N] [--rate=N] [--format=text|json|pcapng] [--port=PORT]... \
                [--filter=FILTER] [--check] [PORT]... [FILTER]" (0, usize::MAX) slow!(tap::start),
        "Shows packets as they pass, with what becomes of each, by notifications until the client sends or closes; for \"weir tap\".";

    "weir/trace" "{[DP] ODP_FLOW | BRIDGE FLOW} [OPTIONS...] [-generate|PACKET]" (1, usize::MAX) slow!(trace::report),
        "What ofproto/trace says, as JSON.";

    "weir/explain" "[--port=PORT] [--ct-next=STATE]... [BRIDGE] {PACKET | FLOW}" (1, usize::MAX) slow!(explain::report),
        "What decides what becomes of a packet, and what would decide otherwise, as JSON.";

    "weir/diff" "BRIDGE [--flows=FILE] [--expect=FILE] [--replace] [--commit] [--most=N] [--interval=SECONDS]" (2, usize::MAX) slow!(diff::start),
        "What changes of flows would do to the traffic that there is, as JSON.";

    "ofproto/list" "" (0, 0) now!(ports::list_bridges), "Names of the bridges.";
    "ofproto/list-tunnels" "" (0, 0) now!(ports::list_tunnels), "The tunnel ports and what packets they take.";
    "tnl/ports/show" "-v" (0, 1) now!(ports::listening), "The datapath's ports at which packets come out of tunnels.";
    "ofproto/trace" "{[DP] ODP_FLOW | BRIDGE FLOW} [OPTIONS...] [-generate|PACKET]" (1, usize::MAX) slow!(trace::text),
        "Explains what the tables do to a packet. Nothing is learnt from it unless it is given or generated.";
    "ofproto/trace-packet-out" "[-consistent] {[DP] ODP_FLOW | BRIDGE FLOW} [OPTIONS...] [-generate|PACKET] ACTIONS"
        (2, usize::MAX) slow!(trace::packet_out_text), "Explains what actions of a packet-out do to a packet.";
    "bridge/reconnect" "[BRIDGE]" (0, 1) now!(ports::reconnect),
        "Makes the connections to a bridge's controllers, or to all, anew.";
    "bridge/dump-flows" "[--offload-stats] BRIDGE" (1, 2) pieces!(flows::bridge_dump),
        "All OpenFlow flows of a bridge, hidden ones too.";
    "dpif/show" "" (0, 0) now!(ports::dpif_show), "Bridges and ports with their OpenFlow and datapath numbers.";
    "dpif/dump-dps" "" (0, 0) now!(ports::list_bridge_datapaths), "Bridges, each with the kind of its datapath.";
    "dpif/dump-flows" "[-m] [--names | --no-names] BRIDGE" (1, 4) pieces!(flows::dpif_dump),
        "Datapath flows of packets that came in at ports of a bridge.";

    "export/show" "[BRIDGE]" (0, 1) now!(export::show),
        "What bridges export by sFlow, NetFlow and IPFIX, and how it stands with their collectors.";

    "fdb/show" "BRIDGE" (1, 1) quick!(ports::fdb_show), "Learnt addresses of a bridge.";
    "fdb/flush" "[BRIDGE]" (0, 1) now!(ports::fdb_flush), "Forgets the learnt addresses of one bridge or all.";
    "fdb/add" "BRIDGE PORT VLAN MAC" (4, 4) now!(ports::fdb_add), "Adds a static address.";
    "fdb/del" "BRIDGE VLAN MAC" (3, 3) now!(ports::fdb_del), "Removes an address.";
    "fdb/stats-show" "[BRIDGE]" (0, 1) now!(ports::fdb_stats), "Counters of the table of learnt addresses.";
    "fdb/stats-clear" "[BRIDGE]" (0, 1) now!(ports::fdb_stats_clear), "Sets these counters to zero.";

    "dpif-netdev/pmd-stats-show" "[-pmd CORE] [DP]" (0, 3) now!(pmd::stats_show), "Counters of the workers.";
    "dpif-netdev/pmd-stats-clear" "[-pmd CORE] [DP]" (0, 3) now!(pmd::stats_clear),
        "Sets the counters of the workers to zero.";
    "dpif-netdev/pmd-rxq-show" "[-pmd core] [-secs secs] [dp]" (0, 5) now!(pmd::rxq_show),
        "Which worker polls which queue, and how busy they were.";
    "dpif-netdev/pmd-rxq-rebalance" "[dp]" (0, 1) now!(pmd::rxq_rebalance),
        "Spreads the receive queues over the workers by their load.";
    "dpif-netdev/pmd-perf-show" "[-nh] [-it iter-history-len] [-ms ms-history-len] [-pmd core] [dp]" (0, 8)
        now!(perf::show), "Counters of the workers, in relation to time.";
    "dpif-netdev/pmd-perf-log-set" "on|off [-b before] [-a after] [-e|-ne] [-us usec] [-q qlen]" (0, 10)
        now!(perf::log_set), "Whether turns of workers that take too long are logged.";

    "netdev-dummy/receive" "NAME [--qid QUEUE_ID] PACKET|FLOW [--len PACKET_LEN]" (2, usize::MAX)
        now!(dummy::receive),
        "Lets packets, in hexadecimal or made from datapath flows, come in at a dummy port.";
    "netdev-dummy/conn-state" "[NETDEV]" (0, 1) now!(dummy::conn_state),
        "Whether one dummy port with the option stream, or all, are connected.";
    "netdev-dummy/ip4addr" "NETDEV IPADDR/MASK-PREFIX-LEN" (2, 2) now!(dummy::ip4addr),
        "Gives a dummy port an IPv4 address, for which it answers ARP requests.";
    "netdev-dummy/ip6addr" "NETDEV IPADDR/MASK-PREFIX-LEN" (2, 2) now!(dummy::ip6addr),
        "Gives a dummy port an IPv6 address.";
    "netdev-dummy/set-admin-state" "[NETDEV] up|down" (1, 2) now!(dummy::set_admin_state),
        "Enables or disables one dummy port or all.";
    "dpif-dummy/change-port-number" "dp port new-number" (3, 3) slow!(dummy::change_port_number),
        "Gives a dummy port of the bridges' datapath another number there; for tests.";
    "time/stop" "" (0, 0) now!(time::stop), "Stops the daemon's clock; for tests.";
    "time/warp" "[LARGE_MSECS] MSECS" (1, 2) slow!(time::warp),
        "Moves the daemon's clock by MSECS, or by LARGE_MSECS in steps of MSECS; for tests.";
};

fn list_commands(_: &Context, _: &[String]) -> Outcome {
    Ok(TABLE.list())
}

fn help(_: &Context, args: &[String]) -> Outcome {
    TABLE.help(args.first().map(String::as_str))
}

fn version(context: &Context, _: &[String]) -> Outcome {
    Ok(context.version.clone())
}

/// With `--cleanup` or without, nothing is left: the datapath ends with the process.
fn exit(context: &Context, _: &[String]) -> Outcome {
    context.exit.notify_one();
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_consistent() {
        let all: Vec<_> = GROUPS.iter().copied().flatten().collect();
        for (i, command) in all.iter().enumerate() {
            assert!(command.args.0 <= command.args.1, "{}", command.name);
            assert!(command.help.ends_with('.'), "{}", command.name);
            assert!(all[..i].iter().all(|c| c.name != command.name), "{} is there twice", command.name);
        }
    }
}
