//! The command line, declared once: parsing, help, completion and the manual pages follow from this.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Options, Parser, Subcommand, ValueEnum};

/// An OpenFlow virtual switch in user space.
///
/// `weir run` is the daemon; the other commands ask a running daemon over its control socket. The
/// daemon is also driven by Open vSwitch's tools: `ovs-ofctl CMD BRIDGE` and `ovs-appctl -t weir CMD`.
///
/// Exit status: 0 on success, 1 on failure, 2 for a mistake on the command line.
#[derive(Debug, Parser)]
#[command(name = "weir", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Args {
    /// Where sockets and pidfiles are [default: OVS_RUNDIR, or /var/run/openvswitch]
    #[arg(long, global = true, value_name = "DIR")]
    pub rundir: Option<PathBuf>,

    /// Control socket of the daemon, instead of the one that the pidfile of 'weir run' or ovs-vswitchd in the run directory names
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Print data as JSON
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do
    #[command(subcommand)]
    pub command: CliCommand,
}

const AFTER_HELP: &str = "\
Examples:
  weir doctor                  what to change on this machine and the switch, in order
  weir check switch.toml       look for mistakes without starting anything
  weir run switch.toml         run the switch until it is ended by a signal or 'weir ctl exit'
  weir flows --bridge br0      OpenFlow flows of br0, and the flows of the datapath
  weir stats --json            counters of the workers, for a program
  weir ctl fdb/show br0        any command of the control socket; 'weir ctl list-commands' lists them";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run the switch with a configuration, in the foreground
    ///
    /// SIGHUP reads the configuration again, as 'weir reload' does. SIGTERM and SIGINT end the switch
    /// and remove its sockets, TAP devices and XDP programs.
    Run {
        /// The configuration, a TOML file
        #[arg(value_name = "CONFIG")]
        config: PathBuf,

        /// What to log on standard error: error, warn, info, debug, trace, or a filter such as
        /// info,ofproto=debug
        #[arg(long, value_name = "FILTER", default_value = "info")]
        log: String,
    },

    /// Run the switch in the place of ovs-vswitchd, with the configuration in an OVSDB server
    ///
    /// The options are those of ovs-vswitchd(8); 'weir vswitchd --help' lists them. A program file or link
    /// called ovs-vswitchd does the same.
    #[command(disable_help_flag = true)]
    Vswitchd {
        /// Options, and the database: unix:FILE, tcp:HOST:PORT or ssl:HOST:PORT
        #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Show bridges, ports and controllers
    Show,

    /// Show the OpenFlow flows of each bridge and the flows of the datapath
    Flows {
        /// Only this bridge's OpenFlow flows
        #[arg(long, short, value_name = "BRIDGE")]
        bridge: Option<String>,

        /// Only OpenFlow flows of this table
        #[arg(long, short, value_name = "TABLE")]
        table: Option<u8>,

        /// No flows of the datapath
        #[arg(long, conflicts_with = "datapath_only")]
        openflow_only: bool,

        /// No OpenFlow flows
        #[arg(long)]
        datapath_only: bool,
    },

    /// Show the counters of the workers: hits by tier, misses, cycles, batches, drops by reason
    ///
    /// Counters are those since the start. With --interval, what happened in each interval, a line each, by second; with --json an object a
    /// line, with each worker in it.
    #[command(
        after_help = "Examples:\n  weir stats\n  weir stats --interval 1 --count 10\n  weir --json stats --interval 0.5"
    )]
    Stats {
        /// Show every so many seconds what happened in them, until interrupted
        #[arg(long, short, value_name = "SECONDS", value_parser = interval)]
        interval: Option<Duration>,

        /// End after so many intervals
        #[arg(long, short, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },

    /// Show the ports with their counters
    Ports,

    /// Show on the terminal what the switch does: ports, workers, queues, flows, rules, drops, connections, upcalls
    ///
    /// Rates are by second, over each interval. Keys sort, filter and lead from a port to its queues, drops and flows, and from a rule to its
    /// datapath flows; '?' lists them. With --once one measurement is printed, as tables or with --json as an object (docs/top.md).
    #[command(after_help = "Examples:\n  weir top\n  weir top --interval 5\n  weir --json top --once --rows 5")]
    Top {
        /// Seconds between two looks
        #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = interval)]
        interval: Duration,

        /// Print what happened in one interval
        #[arg(long)]
        once: bool,

        /// Most flows, rules and drops that --once prints
        #[arg(long, value_name = "N", default_value_t = 20, requires = "once", value_parser = clap::value_parser!(u16).range(1..=1000))]
        rows: u16,
    },
    /// Show all counters as Prometheus reads them (docs/metrics.md)
    Metrics,

    /// Show which packets were dropped where, and why
    ///
    /// By stage and reason, input port or output port, and what decided it: the last table and flow of a bridge,
    /// or the rule of an ingress filter. Devices' own drops are there, too. Counters are those since the start.
    #[command(
        after_help = "Examples:\n  weir drops --by reason\n  weir drops --port eth1 --by rule\n  weir drops --watch"
    )]
    Drops {
        /// Only drops of this port, as input port or as output port
        #[arg(long, short, value_name = "PORT")]
        port: Option<String>,

        /// What drops are told apart by
        #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "reason,port,rule")]
        by: Vec<DropKey>,

        /// Show every second what was dropped in it, until interrupted
        #[arg(long, short)]
        watch: bool,

        /// Seconds between two looks of --watch
        #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "watch",
              value_parser = clap::value_parser!(u64).range(1..=3600))]
        interval: u64,
    },

    /// Show packets as they pass, with what becomes of each
    ///
    /// Each packet is shown with its port, its direction, and the verdict: the ports that it is forwarded to, or why it is dropped, by which
    /// datapath flow and by which OpenFlow flows. With -w as a capture file (pcapng) that Wireshark reads, whose comments have the verdict.
    /// Words that name ports come first, and what is behind them is the filter: an expression of tcpdump, or an OpenFlow match behind
    /// 'flow:'. Forwarding never waits for who looks: what is not read in time is lost here, and counted. 16 taps at a time.
    #[command(
        after_help = "Examples:\n  weir tap eth1 tcp port 80\n  weir tap --drops\n  weir tap -c 100 -w lost.pcapng --drops eth1\n  \
                            weir tap -w - eth1 'flow:tcp,nw_dst=10.0.0.0/8' | tshark -r -"
    )]
    Tap(TapOptions),

    /// Be Weir's interfaces in Wireshark, which calls this itself (docs/tap.md)
    Extcap(ExtcapOptions),

    /// Explain what the tables do to a packet
    ///
    /// Shows every table on its way with the flow that matched, each action, the packet at the end, and
    /// the megaflow with its datapath actions. In colour on a terminal, unless NO_COLOR is set.
    Trace {
        /// The bridge
        #[arg(value_name = "BRIDGE")]
        bridge: String,

        /// The packet in the syntax of ovs-ofctl: in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80
        #[arg(value_name = "FLOW")]
        flow: String,

        /// A frame in hexadecimal, whose headers then count. Its addresses are learnt, and controllers
        /// get it where the tables say so
        #[arg(value_name = "PACKET", conflicts_with = "generate")]
        packet: Option<String>,

        /// Make a frame from FLOW, with the same effects
        #[arg(long)]
        generate: bool,

        /// Show names of ports instead of numbers
        #[arg(long)]
        names: bool,

        /// The ct_state of the packet when it comes back from connection tracking: trk,est. May be given several
        /// times, for several times; after that it is trk,new
        #[arg(long, value_name = "STATE")]
        ct_next: Vec<String>,
    },

    /// Say what decides what becomes of a packet, and what would decide otherwise
    ///
    /// Shows the port and its VLAN mode, each table with the rule that decides and the rule that would decide without it, groups, buckets
    /// and meters, the outcome, and which datapath flow and cache serve such a packet now. PACKET is a frame in hexadecimal, a flow in the
    /// syntax of ovs-ofctl (in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80) or of ovs-dpctl (in_port(eth1),eth_type(0x0800),...), or a packet of a
    /// capture file, FILE or FILE:N, as 'weir tap -w FILE' writes it. Nothing is learnt, counted or sent.
    #[command(
        after_help = "Examples:\n  weir explain br0 in_port=eth1,tcp,nw_dst=10.0.0.9,tp_dst=80\n  weir explain lost.pcapng:3\n  \
                            weir explain --port eth1 ffffffffffff0200000000010806..."
    )]
    Explain {
        /// The bridge, unless the packet or --port tells it, and the packet
        #[arg(value_name = "[BRIDGE] PACKET", required = true, num_args = 1..=2)]
        words: Vec<String>,

        /// The port that the packet comes in at
        #[arg(long, short, value_name = "PORT")]
        port: Option<String>,

        /// The ct_state of the packet when it comes back from connection tracking, as of 'weir trace'
        #[arg(long, value_name = "STATE")]
        ct_next: Vec<String>,
    },

    /// Say what changes of flows would do to the traffic that there is, before they are made
    ///
    /// The flows of FILE, in the syntax of 'ovs-ofctl --bundle add-flows' (a line may begin with add, modify, modify_strict, delete or
    /// delete_strict), are applied to a shadow of the tables, and the flows of the datapath are compared as the tables are and as they would
    /// be. Those that would treat packets otherwise are listed with their packet rate, the highest first. Nothing is changed without
    /// --commit. Exit status: 0 nothing would change, 1 something would, 2 an error.
    #[command(
        after_help = "Examples:\n  weir diff br0 --flows new-acl.txt\n  weir diff br0 --flows all.txt --replace --commit\n  \
                            weir diff br0 --flows new-acl.txt --expect reach.txt"
    )]
    Diff {
        /// The bridge
        #[arg(value_name = "BRIDGE")]
        bridge: String,

        /// The changes, a line each
        #[arg(long, value_name = "FILE", required_unless_present = "expect")]
        flows: Option<PathBuf>,

        /// Packets with what is to become of them, a line each: FLOW -> output:PORT,... or FLOW -> drop. The exit status then
        /// tells whether that is what would happen, and --commit does nothing where it is not
        #[arg(long, value_name = "FILE")]
        expect: Option<PathBuf>,

        /// The flows of FILE are to be the bridge's only ones, as with 'ovs-ofctl replace-flows'
        #[arg(long, requires = "flows")]
        replace: bool,

        /// Make the changes, all at once, unless others have changed flows, groups, ports or settings meanwhile
        #[arg(long)]
        commit: bool,

        /// Most flows that are listed
        #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
        most: u32,

        /// Seconds between two readings of counters, which make the rates
        #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
        interval: u64,
    },

    /// Show or change the ingress filter of a port
    ///
    /// A filter is a list of rules with ';' between them. Each is 'drop', 'pass' or 'limit RATE' (packets per
    /// second; 20k, 2m) and an expression of tcpdump, or none for every frame. The first rule that matches
    /// a frame decides; a frame that none matches passes. 'set' without rules sets an empty filter, 'del'
    /// without rules takes the filter away. 'load FILE [PROGRAM]' puts an XDP program behind the rules, from an
    /// object file that clang has made for BPF; 'map NAME [KEY [VALUE]]' shows or sets what is in its maps. What
    /// is set here is in force until the port's filter in the configuration changes, or the daemon ends.
    #[command(after_help = "Examples:\n  weir ingress eth1 set 'drop dst net 198.18.0.0/15; limit 1k icmp'\n  \
                            weir ingress eth1 add 'drop udp port 1900'\n  weir ingress eth1 stats\n  weir ingress eth1 del 2\n  \
                            weir ingress eth1 load blocklist.o\n  weir ingress eth1 map blocked 10.0.0.0/8 1")]
    Ingress {
        /// Name of the port
        #[arg(value_name = "PORT")]
        port: String,

        /// What to do
        #[arg(value_name = "add|set|del|load|unload|map|unmap|show|stats")]
        command: IngressCommand,

        /// Rules; with del also the number of one; what load, map and unmap take
        #[arg(value_name = "RULES", trailing_var_arg = true, allow_hyphen_values = true)]
        rules: Vec<String>,
    },

    /// Read the configuration again and apply what changed
    ///
    /// Ports that did not change forward on without losing a packet. A file with mistakes changes
    /// nothing.
    Reload,

    /// Look for mistakes in a configuration, without starting anything
    ///
    /// Reports every mistake with its line, and what of the machine the configuration needs and does
    /// not find: cores, interfaces, permissions, AF_XDP.
    Check {
        /// The configuration, a TOML file
        #[arg(value_name = "CONFIG")]
        config: PathBuf,
    },

    /// Look for what this machine and the running switch lack, and say what to change, in order
    ///
    /// Looks at the kernel, permissions, limits, hugepages, the IOMMU, network cards and their drivers, and the cores; where a switch runs, at its
    /// workers, drops, flows, ports, connections and controllers over some seconds (docs/doctor.md). Changes nothing. Exit status 1 when something
    /// is found that does not work.
    Doctor {
        /// Seconds to look at the switch
        #[arg(long, short, value_name = "SECONDS", default_value = "2", value_parser = interval)]
        interval: Duration,
    },

    /// Run a command of the control socket and print its answer
    ///
    /// The commands are those of ovs-appctl(8) that Weir has; 'list-commands' lists them.
    Ctl {
        /// Name of the command
        #[arg(value_name = "COMMAND")]
        name: String,

        /// Its arguments
        #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },

    /// Print the version of this program
    Version,

    /// Write the manual pages, for 'make install'
    #[command(hide = true)]
    Manual {
        /// Where to: man1, man5 and man8 are made there
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },

    /// Print a completion script for a shell
    Completions {
        /// The shell
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
}

/// An interval, as a number of seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("an interval is from 0.1 to 3600 seconds".into())
    }
}

/// What `weir tap` takes.
#[derive(Debug, Options)]
pub struct TapOptions {
    /// Names of ports, then a filter: tcp port 80, or flow:tcp,tp_dst=80
    #[arg(value_name = "PORT... FILTER")]
    pub words: Vec<String>,

    /// A port, where its name could be taken for a filter
    #[arg(long, short = 'i', value_name = "PORT")]
    pub port: Vec<String>,

    /// Only packets that are dropped; as text no more than 100 in a second, unless --rate says otherwise
    #[arg(long)]
    pub drops: bool,

    /// Only packets that come in, and are dropped where they do
    #[arg(long, conflicts_with_all = ["tx", "both"])]
    pub rx: bool,

    /// Only packets that go out, and are dropped where they should
    #[arg(long, conflicts_with = "both")]
    pub tx: bool,

    /// Packets in both directions, as without this
    #[arg(long)]
    pub both: bool,

    /// Write a capture file; -: to standard output
    #[arg(long, short = 'w', value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// End after this many packets
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Most bytes of a frame
    #[arg(long, short = 's', value_name = "BYTES", value_parser = clap::value_parser!(u32).range(14..=262_144))]
    pub snaplen: Option<u32>,

    /// Most packets in a second; 0 for all
    #[arg(long, value_name = "PACKETS")]
    pub rate: Option<u32>,
}

impl TapOptions {
    /// The same, as arguments of the control socket's command.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = self.port.iter().map(|port| format!("--port={port}")).collect();
        let flags = [(self.drops, "--drops"), (self.rx, "--rx"), (self.tx, "--tx")];
        arguments.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_string()));
        arguments.extend(self.count.map(|count| format!("--count={count}")));
        arguments.extend(self.snaplen.map(|bytes| format!("--snaplen={bytes}")));
        arguments.extend(self.rate.map(|rate| format!("--rate={rate}")));
        arguments.extend_from_slice(&self.words);
        arguments
    }
}

/// What Wireshark gives to `weir extcap`.
#[derive(Debug, Options)]
pub struct ExtcapOptions {
    /// List the interfaces
    #[arg(long)]
    pub extcap_interfaces: bool,

    /// The version of Wireshark
    #[arg(long, value_name = "VERSION")]
    pub extcap_version: Option<String>,

    /// The interface that the others are about: weir for all ports, weir-PORT for one
    #[arg(long, value_name = "INTERFACE")]
    pub extcap_interface: Option<String>,

    /// Say which frames the interface has
    #[arg(long)]
    pub extcap_dlts: bool,

    /// Say what can be set
    #[arg(long)]
    pub extcap_config: bool,

    /// A filter as of 'weir tap'; without --capture, say what is wrong with it
    #[arg(long, value_name = "FILTER")]
    pub extcap_capture_filter: Option<String>,

    /// Write packets to the pipe
    #[arg(long)]
    pub capture: bool,

    /// The pipe
    #[arg(long, value_name = "FILE")]
    pub fifo: Option<PathBuf>,

    /// Only dropped packets
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set,
          value_name = "BOOL")]
    pub drops: bool,

    /// Which packets
    #[arg(long, value_name = "DIRECTION", default_value = "both")]
    pub direction: TapDirection,

    /// Most bytes of a frame
    #[arg(long, value_name = "BYTES")]
    pub snaplen: Option<u32>,

    /// Most packets in a second; 0 for all
    #[arg(long, value_name = "PACKETS")]
    pub rate: Option<u32>,
}

/// Which packets Wireshark wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TapDirection {
    /// In and out
    Both,
    /// In
    Rx,
    /// Out
    Tx,
}

impl TapDirection {
    /// The option of `weir tap`, without its hyphens.
    pub fn name(self) -> &'static str {
        match self {
            TapDirection::Both => "both",
            TapDirection::Rx => "rx",
            TapDirection::Tx => "tx",
        }
    }
}

/// What `weir drops` tells drops apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DropKey {
    /// Stage and reason
    Reason,
    /// Input and output port
    Port,
    /// Table and flow, or rule of an ingress filter
    Rule,
}

/// What `weir ingress` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IngressCommand {
    /// Add rules behind those that are there
    Add,
    /// Replace all rules
    Set,
    /// Remove one rule by its number, rules by their text, or the filter
    Del,
    /// Put an XDP program of an object file behind the rules
    Load,
    /// Take the XDP program away
    Unload,
    /// Show the elements of a map of the program, or the value of a key, or set it
    Map,
    /// Remove a key from a map of the program
    Unmap,
    /// Show the rules
    Show,
    /// Show the rules with their counters
    Stats,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn declaration_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_help() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }

    #[test]
    fn ctl_takes_options_as_arguments() {
        let args = Args::try_parse_from(["weir", "ctl", "dpctl/dump-flows", "-m", "--names"]).unwrap();
        let CliCommand::Ctl { name, args } = args.command else { panic!("not ctl") };
        assert_eq!((name.as_str(), args), ("dpctl/dump-flows", vec!["-m".to_string(), "--names".to_string()]));
    }
}
