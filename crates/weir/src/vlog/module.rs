//! Log modules: the parts of the daemon whose messages are set louder or quieter. They carry OVS's
//! names, so that what operators and scripts say to `vlog/set` is accepted, also where no message of
//! Weir's corresponds.

/// A module, by its place in [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module(u8);

impl Module {
    /// All modules, by name.
    pub fn all() -> impl Iterator<Item = Module> {
        (0..NAMES.len()).map(|index| Module(index as u8))
    }

    /// The module of this name, in any case.
    pub fn find(name: &str) -> Option<Module> {
        Module::all().find(|module| module.name().eq_ignore_ascii_case(name))
    }

    /// The modules of messages from code whose path begins with `path`.
    pub fn of_path(path: &str) -> impl Iterator<Item = Module> {
        let within = move |target: &str| target.strip_prefix(path).is_some_and(|r| r.is_empty() || r.starts_with(':'));
        PATHS.iter().filter(move |(target, _)| within(target)).filter_map(|(_, name)| Module::find(name))
    }

    /// The module of a message with this target: the name of a module, or the path of the code.
    pub fn of_target(target: &str) -> Module {
        if let Ok(index) = NAMES.binary_search(&target) {
            return Module(index as u8);
        }
        let within = |path: &str| target.strip_prefix(path).is_some_and(|r| r.is_empty() || r.starts_with("::"));
        let found = PATHS.iter().filter(|(path, _)| within(path)).max_by_key(|(path, _)| path.len());
        found.and_then(|(_, name)| Module::find(name)).unwrap_or_else(|| Module::find(OTHER).unwrap_or(Module(0)))
    }

    /// Name.
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    /// Whether what it says at level info is what others do: the other ends of links, by LACP, BFD or CFM, OpenFlow peers, guests. They can do so a
    /// thousand times in a second.
    pub(super) fn follows_others(self) -> bool {
        matches!(self.name(), "bond" | "connmgr" | "netdev_dpdk" | "rconn")
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The module of messages from code that no path covers.
const OTHER: &str = "weir";

/// The module of messages that name none, by the path of the code that logs them. The longest path that fits counts.
const PATHS: &[(&str, &str)] = &[
    ("datapath", "dpif_netdev"),
    ("export", "collectors"),
    ("ofproto", "ofproto"),
    ("ofproto::connection", "connmgr"),
    ("ofproto::model::mac", "ofproto_dpif"),
    ("ofproto::slowpath", "ofproto_dpif_upcall"),
    ("ofproto::xlate", "ofproto_dpif_xlate"),
    ("openflow", "ofp_msgs"),
    ("ovsdb", "ovsdb_cs"),
    ("ovsdb::client", "reconnect"),
    ("ports", "netdev"),
    ("ports::afpacket", "netdev_linux"),
    ("ports::afxdp", "netdev_afxdp"),
    ("ports::dummy", "netdev_dummy"),
    ("ports::link", "netdev_linux"),
    ("ports::pcap", "pcap"),
    ("ports::tap", "netdev_linux"),
    ("tls", "stream_ssl"),
    ("weir", "weir"),
    ("weir::cli::vswitchd", "vswitchd"),
    ("weir::daemon::apply", "bridge"),
    ("weir::daemon::configurator", "bridge"),
    ("weir::daemon::openflow", "rconn"),
    ("weir::source::ovsdb", "bridge"),
    ("weir::unixctl", "unixctl"),
    ("weir::vlog", "vlog"),
];

/// Names of the modules, in the order of their bytes.
pub const NAMES: &[&str] = &[
    "backtrace",
    "bfd",
    "bond",
    "bridge",
    "bundle",
    "bundles",
    "cfm",
    "collectors",
    "command_line",
    "connmgr",
    "conntrack",
    "conntrack_tp",
    "coverage",
    "ct_dpif",
    "daemon",
    "daemon_unix",
    "dns_resolve",
    "dpdk",
    "dpif",
    "dpif_lookup_autovalidator",
    "dpif_lookup_generic",
    "dpif_mfex_extract_study",
    "dpif_netdev",
    "dpif_netdev_extract",
    "dpif_netdev_impl",
    "dpif_netdev_lookup",
    "dpif_netlink",
    "dpif_netlink_rtnl",
    "entropy",
    "fail_open",
    "fatal_signal",
    "flow",
    "hmap",
    "in_band",
    "ipf",
    "ipfix",
    "jsonrpc",
    "lacp",
    "lldp",
    "lldpd",
    "lldpd_structs",
    "lockfile",
    "memory",
    "meta_flow",
    "native_tnl",
    "netdev",
    "netdev_afxdp",
    "netdev_dpdk",
    "netdev_dummy",
    "netdev_linux",
    "netdev_offload",
    "netdev_offload_tc",
    "netdev_vport",
    "netflow",
    "netlink",
    "netlink_conntrack",
    "netlink_notifier",
    "netlink_socket",
    "nx_match",
    "odp_execute",
    "odp_execute_impl",
    "odp_util",
    "ofp_actions",
    "ofp_bundle",
    "ofp_connection",
    "ofp_errors",
    "ofp_flow",
    "ofp_group",
    "ofp_match",
    "ofp_meter",
    "ofp_monitor",
    "ofp_msgs",
    "ofp_packet",
    "ofp_port",
    "ofp_protocol",
    "ofp_queue",
    "ofp_table",
    "ofp_util",
    "ofproto",
    "ofproto_dpif",
    "ofproto_dpif_mirror",
    "ofproto_dpif_monitor",
    "ofproto_dpif_rid",
    "ofproto_dpif_upcall",
    "ofproto_dpif_xlate",
    "ofproto_xlate_cache",
    "ovs_lldp",
    "ovs_numa",
    "ovs_rcu",
    "ovs_replay",
    "ovs_router",
    "ovs_thread",
    "ovsdb_cs",
    "ovsdb_error",
    "ovsdb_idl",
    "ox_stat",
    "pcap",
    "pmd_perf",
    "poll_loop",
    "process",
    "rconn",
    "reconnect",
    "route_table",
    "rstp",
    "rstp_sm",
    "sflow",
    "sha1",
    "signals",
    "socket_util",
    "socket_util_unix",
    "stp",
    "stream",
    "stream_fd",
    "stream_replay",
    "stream_ssl",
    "stream_tcp",
    "stream_unix",
    "svec",
    "system_stats",
    "tc",
    "timeval",
    "tunnel",
    "unixctl",
    "userspace_tso",
    "util",
    "uuid",
    "vconn",
    "vconn_stream",
    "vlog",
    "vswitchd",
    "weir",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order() {
        assert!(NAMES.is_sorted() && NAMES.len() <= usize::from(u8::MAX));
    }

    #[test]
    fn every_path_has_a_module() {
        for (path, name) in PATHS {
            assert_eq!(Module::find(name).map(Module::name), Some(*name), "{path}");
        }
        assert!(Module::find(OTHER).is_some());
    }

    #[test]
    fn modules_of_messages() {
        let name = |target| Module::of_target(target).name();
        assert_eq!(name("dpif_netdev"), "dpif_netdev");
        assert_eq!(name("ports::dummy"), "netdev_dummy");
        assert_eq!(name("ports::dummy::conn"), "netdev_dummy");
        assert_eq!(name("ports::dummyish"), "netdev");
        assert_eq!(name("rustls::client"), "weir");
        assert_eq!(Module::find("Bridge").map(Module::name), Some("bridge"));
        assert_eq!(Module::find("nonsense"), None);
        let of_ports: Vec<_> = Module::of_path("ofproto").map(Module::name).collect();
        assert!(of_ports.contains(&"ofproto_dpif_xlate") && !of_ports.contains(&"rconn"), "{of_ports:?}");
    }
}
