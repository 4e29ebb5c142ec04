//! What a configuration file may say, for weir.toml(5): each table with its settings.
//!
//! The reader beside this decides what is taken. The tests below hold each line against it: that it knows just these keys, that
//! a number beyond the range is refused with this range, and that the default given explicitly changes nothing.

/// A table of the file.
pub struct Table {
    /// As it stands in the file; empty for what stands above the first table.
    pub header: &'static str,
    /// What it is about.
    pub help: &'static str,
    /// Its settings.
    pub settings: &'static [Setting],
}

/// A key of a table.
pub struct Setting {
    /// Its name.
    pub key: &'static str,
    /// What it may be: `N to M` for whole numbers.
    pub takes: &'static str,
    /// What it is where it is not given, as it would be written; empty where there is nothing of the kind.
    pub default: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// Settings, a line each: key, what it takes, default, what it does.
macro_rules! settings {
    ($($key:literal $takes:tt $default:literal $help:literal;)*) => {
        &[$(Setting { key: $key, takes: $takes, default: $default, help: $help },)*]
    };
}

const BOOL: &str = "true or false";
const TEXT: &str = "text";
const FILE: &str = "a file";
const COUNT: &str = "0 to 4294967295";

/// All of it.
pub const TABLES: &[Table] = &[
    Table {
        header: "",
        help: "Above the first table stands what is about the daemon itself.",
        settings: settings! {
            "http" "\"ADDRESS:PORT\" or \"unix:PATH\"" "" "Where metrics are had by HTTP; without, nowhere.";
            "http-allow-remote" BOOL "false" "Whether the address may be another than one of this machine's loopback.";
            "http-token-file" FILE "" "The token that each request has to bear; without, none.";
        },
    },
    Table {
        header: "[workers]",
        help: "The threads that forward packets.",
        settings: settings! {
            "cores" "list of 0 to 4095" "[]" "A worker on each of these cores. Without, one on no particular core.";
            "sleep-max-us" "0 to 10000" "500" "The longest sleep of an idle worker, in microseconds; 0 polls without pause.";
            "tx-flush-interval-us" "0 to 1000000" "0" "How long a packet may wait for others to the same port, in microseconds.";
            "rx-assign" "\"roundrobin\", \"cycles\" or \"group\"" "\"cycles\"" "How receive queues are spread over the workers: in turn, or by their load.";
            "rx-isolate" BOOL "true" "Whether a worker that a queue is pinned to gets no others.";
            "perf-metrics" BOOL "false" "Whether workers measure in detail: histograms of turns, batches and upcalls.";
            "auto-balance" BOOL "false" "Whether receive queues are moved by themselves when the load is uneven.";
            "auto-balance-load" "0 to 100" "95" "From which load of a worker on, in percent.";
            "auto-balance-improvement" "0 to 100" "25" "For which improvement, in percent.";
            "auto-balance-minutes" "1 to 20000" "1" "How often that is looked at, in minutes.";
        },
    },
    Table {
        header: "[datapath]",
        help: "The flows of the datapath, what keeps them up to date, and what bounds them.",
        settings: settings! {
            "max-idle-ms" "500 to 3600000" "10000" "After how long without a packet a datapath flow is removed, in milliseconds.";
            "max-revalidator-ms" "100 to 60000" "500" "How often datapath flows are looked through at least, in milliseconds.";
            "n-revalidator-threads" "1 to 64" "1" "How many threads share that.";
            "n-handler-threads" "1 to 64" "1" "How many threads translate packets that no datapath flow matches.";
            "flow-limit" "1 to 100000000" "2000000" "Most datapath flows; beyond, each new one takes the place of another.";
            "flow-memory-mib" "1 to 1000000" "2048" "Most memory that datapath flows take, in MiB.";
            "mask-limit" "1 to 16384" "64" "Most masks of the datapath flows of one input port.";
            "emc-insert-inv-prob" COUNT "1" "One in so many flows found is remembered in the exact-match cache; 0 switches the cache off.";
            "exact-cache-memory-mib" "1 to 65536" "200" "Most memory of each worker's exact-match cache, in MiB.";
            "controller-memory-mib" "16 to 65536" "256" "Most memory of what OpenFlow peers have not read yet, in MiB.";
            "bundle-idle-timeout" "1 to 86400" "10" "How long a bundle stays that its connection does not use, in seconds.";
            "vlan-limit" "1 to 2" "2" "How many VLAN tags can be matched; a further one is payload.";
            "verify-sampling" COUNT "1048576" "One in so many packets is judged a second time by the OpenFlow tables; 0 switches that off.";
        },
    },
    Table {
        header: "[conntrack]",
        help: "Connection tracking.",
        settings: settings! {
            "limit" COUNT "3000000" "Most connections.";
            "zone-limit" COUNT "" "Most connections of a zone without a limit of its own; 0 is for no limit.";
            "tcp-sequence-check" BOOL "true" "Whether TCP segments outside of the windows are invalid.";
            "early-drop" BOOL "false" "Whether the limit makes room by ending unanswered connections.";
        },
    },
    Table {
        header: "[[conntrack.zone]]",
        help: "A zone with settings of its own.",
        settings: settings! {
            "number" "0 to 65535" "" "Which zone. It has to be there.";
            "limit" COUNT "" "Most connections; 0 is for no limit.";
            "timeouts" "a table" "{}" "Seconds, by the names of CT_Timeout_Policy: { tcp-established = 3600 }.";
        },
    },
    Table {
        header: "[tls]",
        help: "How OpenFlow connections speak TLS (targets ssl: and pssl:).",
        settings: settings! {
            "private-key" FILE "" "The private key of this switch.";
            "certificate" FILE "" "Its certificate.";
            "ca-cert" FILE "" "The certificate of the CA that peers are checked with.";
            "peer-ca-cert" FILE "" "The certificate of a CA that is sent to peers.";
            "bootstrap-ca-cert" BOOL "false" "Whether a missing file in ca-cert is obtained from the first peer.";
            "protocols" TEXT "" "Versions of TLS: \"TLSv1.2,TLSv1.3\".";
            "ciphers" TEXT "" "Ciphers of TLS 1.2, by OpenSSL's names.";
        },
    },
    Table {
        header: "[dpdk]",
        help: "How DPDK is started. Read once: later changes take effect when the daemon starts again.",
        settings: settings! {
            "init" "true, false or \"try\"" "false" "Whether to start it; with \"try\", a failure is no error.";
            "lcore-mask" TEXT "" "Cores of DPDK's own threads.";
            "socket-mem" TEXT "" "Memory for each NUMA node at the start, in MiB: \"1024,0\".";
            "socket-limit" TEXT "" "Most memory for each NUMA node, in MiB.";
            "alloc-mem" TEXT "" "Memory where there are no hugepages, in MiB.";
            "hugepage-dir" TEXT "" "Where hugetlbfs is mounted.";
            "extra" TEXT "" "Options for DPDK, as on a command line.";
            "vhost-sock-dir" TEXT "" "Where sockets of dpdkvhostuser ports are, below the run directory.";
            "vhost-iommu-support" BOOL "" "Whether guests may use a virtual IOMMU.";
            "vhost-postcopy-support" BOOL "" "Whether guests may be migrated by post-copy.";
        },
    },
    Table {
        header: "[[bridge]]",
        help: "A bridge.",
        settings: settings! {
            "name" TEXT "" "Its name. It has to be there.";
            "local" BOOL "true" "Whether it has a LOCAL port, a TAP device of its name.";
            "datapath-id" "16 hexadecimal digits" "" "Its datapath id; without, it is made from the address.";
            "hwaddr" "an Ethernet address" "" "Its address; without, it is the lowest of its network cards, or made from its name and the machine's id.";
            "dp-desc" TEXT "" "What controllers are told that it is, of which they get 255 bytes; without, its name.";
            "dp-sn" TEXT "" "The serial number that controllers are told, of which they get 31 bytes.";
            "fail-mode" "\"standalone\" or \"secure\"" "\"standalone\"" "What it does while no controller is connected: learn addresses and forward, or what its flows say and nothing else.";
            "mac-aging-time-s" "15 to 3600" "300" "After how long without a packet a learnt address is forgotten, in seconds.";
            "mac-table-size" "10 to 1000000" "8192" "Most learnt addresses.";
            "flood-vlans" "list of 0 to 4095" "[]" "VLANs in which no address is learnt, and every packet is flooded.";
            "forward-bpdu" BOOL "false" "Whether its rule NORMAL forwards frames to the addresses that bridges keep for themselves, as BPDUs are.";
            "system-name" TEXT "" "The name that its ports say by LLDP; without, its own.";
            "system-description" TEXT "" "The description that its ports say by LLDP; without, the name and version of this program.";
            "isid-mappings" "a table" "{}" "Services that its ports which speak LLDP ask a server of Auto Attach for, and their VLANs: { 10000 = 100 }.";
            "spanning-tree" "\"off\", \"stp\" or \"rstp\"" "\"off\"" "Which protocol keeps loops from forwarding.";
            "spanning-tree-options" "a table" "{}" "Options of that, as in ovs-vswitchd.conf.db(5): { rstp-priority = 4096 }.";
            "mcast-snooping" BOOL "false" "Whether multicast goes only where hosts ask for it by IGMP or MLD.";
            "mcast-snooping-aging-time-s" "15 to 3600" "300" "After how long a membership is over that is not renewed, in seconds.";
            "mcast-snooping-table-size" "10 to 1000000" "2048" "Most multicast groups.";
            "mcast-snooping-disable-flood-unregistered" BOOL "false" "Whether groups that nobody has asked for go to routers only, instead of everywhere.";
            "controllers" "list of targets, or tables" "[]" "OpenFlow controllers: [\"tcp:192.0.2.1:6653\", \"ptcp:6653\"].";
            "flows" "list of texts" "[]" "Flows in the tables from the start, in the syntax of ovs-ofctl(8).";
        },
    },
    Table {
        header: "[[bridge.controllers]]",
        help: "A controller with settings of its own.",
        settings: settings! {
            "target" TEXT "" "tcp:HOST:PORT, ssl:HOST:PORT, unix:FILE, or ptcp:, pssl: and punix: to listen. It has to be there.";
            "type" "\"primary\" or \"service\"" "" "Whether it says how the bridge forwards, or only looks and changes things now and then. Without, those that connect to the switch are services.";
            "max-backoff-ms" "1000 to 3600000" "8000" "The longest pause between two attempts to connect, in milliseconds.";
            "inactivity-probe-ms" "0 to 3600000" "5000" "After which silence to ask whether it is there, in milliseconds; 0: never.";
            "rate-limit" "1 to 1000000" "" "Most packets in a second that are sent to it; without, all.";
            "burst-limit" "1 to 1000000" "" "Most packets at once where there is a rate.";
            "queue-size" "1 to 512" "256" "Most packets that wait for it, of each of two kinds.";
            "in-band" BOOL "true" "Whether it is reached through the bridge itself, whatever the flows say.";
            "async-messages" BOOL "true" "Whether it gets messages that it has not asked for before it says which it wants.";
            "dscp" "0 to 63" "48" "DSCP of what it is sent.";
        },
    },
    Table {
        header: "[[bridge.port]]",
        help: "A port of the bridge above it.",
        settings: settings! {
            "name" TEXT "" "The name of the port and its device. It has to be there.";
            "type" TEXT "\"system\"" "What it is: system, tap, afpacket, afxdp, dpdk, dpdkvhostuserclient, patch, vxlan, geneve, ...";
            "options" "a table" "{}" "Options of the type, as in ovs-vswitchd.conf.db(5).";
            "ofport" "1 to 65279" "" "Its OpenFlow number; without, one that is free.";
            "mtu" "68 to 65535" "" "Its MTU, in bytes.";
            "mac" "an Ethernet address" "" "Its address.";
            "tag" "1 to 4094" "" "The VLAN of an access port, or the native one of a trunk.";
            "trunks" "list of 0 to 4094" "[]" "The VLANs that a trunk carries; without, all.";
            "vlan-mode" "\"access\", \"trunk\", \"native-tagged\", \"native-untagged\" or \"dot1q-tunnel\"" "" "How it carries them; without, \"access\" with a tag and \"trunk\" without.";
            "protected" BOOL "false" "Whether it is protected: nothing is sent from one protected port to another.";
            "mcast-snooping-flood" BOOL "false" "Whether it gets all multicast of a bridge that snoops.";
            "mcast-snooping-flood-reports" BOOL "false" "Whether it gets what hosts of such a bridge ask for by IGMP or MLD.";
            "ingress-filter" TEXT "" "Rules for the frames that it receives: \"drop udp port 1900; limit 1k icmp\".";
            "ingress-ebpf" FILE "" "An object file with an XDP program, which sees the frames that the rules let pass.";
            "ingress-ebpf-program" TEXT "" "Which of its programs.";
            "ingress-policing-rate" "0 to 4294967295" "0" "Most kb/s that it receives; 0: no limit.";
            "ingress-policing-burst" "0 to 4294967295" "0" "Most kb that come at once, where there is a rate; 0: 8000.";
            "ingress-policing-kpkts-rate" "0 to 4294967295" "0" "Most thousands of packets in a second that it receives; 0: no limit.";
            "ingress-policing-kpkts-burst" "0 to 4294967295" "0" "Most thousands of packets that come at once, where there is a rate; 0: 16.";
            "egress-policer-cir" "1 to 72057594037927936" "" "Most bytes in a second that it is sent, without Ethernet headers; without, no limit.";
            "egress-policer-cbs" "1 to 72057594037927936" "" "Most such bytes at once. It has to be there with egress-policer-cir.";
            "ingress-offload" BOOL "true" "Whether an AF_XDP port may drop in its own XDP program what the rules drop.";
            "lacp-port-id" "1 to 65535" "" "What the interface is called by LACP; without, its OpenFlow number.";
            "lacp-port-priority" "1 to 65535" "" "Its priority by LACP; without, 65535.";
            "lacp-aggregation-key" "0 to 65535" "" "The key of its bond by LACP; without, or with 0, made from a port id.";
            "bfd" "a table" "{}" "BFD on it: options of the column bfd, as in ovs-vswitchd.conf.db(5), such as { enable = true, min_rx = 100 }.";
            "cfm-mpid" "a number" "" "The identifier of its maintenance point of CFM: 1 to 8191, and any with cfm_extended; without, there is none.";
            "cfm" "a table" "{}" "Options of CFM: cfm_interval, cfm_extended, cfm_demand, cfm_opstate, cfm_ccm_vlan and cfm_ccm_pcp, as in ovs-vswitchd.conf.db(5).";
            "lldp" BOOL "false" "Whether it speaks LLDP and Auto Attach.";
            "bond-mode" "\"active-backup\", \"balance-slb\" or \"balance-tcp\"" "\"active-backup\"" "How several interfaces share traffic.";
            "bond-primary" TEXT "" "The interface that is active in \"active-backup\" whenever it can be.";
            "bond-updelay-ms" "0 to 3600000" "0" "How long a carrier has to be there before its interface is used.";
            "bond-downdelay-ms" "0 to 3600000" "0" "How long a carrier has to be gone before its interface is not used any more.";
            "bond-detect-mode" "\"carrier\" or \"miimon\"" "\"carrier\"" "Whether the kernel says which interfaces have a link, or their drivers are asked again and again.";
            "bond-miimon-interval-ms" "1 to 3600000" "200" "How often they are.";
            "bond-hash-basis" "0 to 4294967295" "0" "What the hash begins with that spreads traffic.";
            "bond-rebalance-interval-ms" "0 to 3600000" "10000" "How often load is moved between interfaces; 0: never.";
            "all-members-active" BOOL "false" "Whether every interface of a \"balance-slb\" bond takes multicast.";
            "lacp" "\"off\", \"active\" or \"passive\"" "\"off\"" "How LACP is spoken.";
            "lacp-time" "\"slow\" or \"fast\"" "" "How often the other end is to send: each 30 seconds, as without, or each second.";
            "lacp-system-id" "an Ethernet address" "" "The address of the system by LACP; without, the bridge's.";
            "lacp-system-priority" "1 to 65535" "" "Its priority; without, 65534, or 65535 with a single interface.";
            "spanning-tree-options" "a table" "{}" "Its part in the spanning tree of the bridge, as in ovs-vswitchd.conf.db(5): { rstp-port-admin-edge = true }.";
            "lacp-fallback-ab" BOOL "false" "Whether the bond is one of \"active-backup\" while the other end does not speak LACP.";
        },
    },
    Table {
        header: "[[bridge.port.interface]]",
        help: "An interface of the bond above it. A port without any of these tables is its own only interface.",
        settings: settings! {
            "name" TEXT "" "The name of the device. It has to be there.";
            "type" TEXT "\"system\"" "What it is, as for a port.";
            "options" "a table" "{}" "Options of the type.";
            "ofport" "1 to 65279" "" "Its OpenFlow number; without, one that is free.";
            "mtu" "68 to 65535" "" "Its MTU, in bytes.";
            "mac" "an Ethernet address" "" "Its address.";
            "ingress-filter" TEXT "" "Rules for the frames that it receives.";
            "ingress-ebpf" FILE "" "An object file with an XDP program, which sees the frames that the rules let pass.";
            "ingress-ebpf-program" TEXT "" "Which of its programs.";
            "ingress-policing-rate" "0 to 4294967295" "0" "Most kb/s that it receives; 0: no limit.";
            "ingress-policing-burst" "0 to 4294967295" "0" "Most kb that come at once, where there is a rate; 0: 8000.";
            "ingress-policing-kpkts-rate" "0 to 4294967295" "0" "Most thousands of packets in a second that it receives; 0: no limit.";
            "ingress-policing-kpkts-burst" "0 to 4294967295" "0" "Most thousands of packets that come at once, where there is a rate; 0: 16.";
            "egress-policer-cir" "1 to 72057594037927936" "" "Most bytes in a second that it is sent, without Ethernet headers; without, no limit.";
            "egress-policer-cbs" "1 to 72057594037927936" "" "Most such bytes at once. It has to be there with egress-policer-cir.";
            "ingress-offload" BOOL "true" "Whether an AF_XDP port may drop in its own XDP program what the rules drop.";
            "lacp-port-id" "1 to 65535" "" "What the interface is called by LACP; without, its OpenFlow number.";
            "lacp-port-priority" "1 to 65535" "" "Its priority by LACP; without, 65535.";
            "lacp-aggregation-key" "0 to 65535" "" "The key of its bond by LACP; without, or with 0, made from a port id.";
            "bfd" "a table" "{}" "BFD on it: options of the column bfd, as in ovs-vswitchd.conf.db(5), such as { enable = true, min_rx = 100 }.";
            "cfm-mpid" "a number" "" "The identifier of its maintenance point of CFM: 1 to 8191, and any with cfm_extended; without, there is none.";
            "cfm" "a table" "{}" "Options of CFM: cfm_interval, cfm_extended, cfm_demand, cfm_opstate, cfm_ccm_vlan and cfm_ccm_pcp, as in ovs-vswitchd.conf.db(5).";
            "lldp" BOOL "false" "Whether it speaks LLDP and Auto Attach.";
        },
    },
    Table {
        header: "[bridge.port.qos]",
        help: "What shares what the port above it is sent, and how fast, as the tables QoS and Queue of ovs-vswitchd.conf.db(5) have it.",
        settings: settings! {
            "type" TEXT "" "linux-htb, linux-hfsc, trtcm-policer, linux-sfq, linux-codel, linux-fq_codel, linux-netem or linux-noop. It has to be there.";
            "options" "a table" "{}" "Settings of the type: { max-rate = 1000000000 }, in bit/s.";
        },
    },
    Table {
        header: "[[bridge.port.qos.queue]]",
        help: "A queue of it. Queue 0, which has what names no other one, is there anyway.",
        settings: settings! {
            "number" COUNT "" "The number by which set_queue and enqueue name it. It has to be there.";
            "options" "a table" "{}" "Settings of the type: { min-rate = 500000000, max-rate = 1000000000, priority = 1 }.";
            "dscp" "0 to 63" "" "The DSCP of packets that are put into it; without, they keep theirs.";
        },
    },
    Table {
        header: "[bridge.sflow]",
        help: "sFlow of the bridge above it.",
        settings: settings! {
            "targets" "list of IP:PORT" "" "The collectors; without a port, 6343. There has to be one.";
            "sampling" "1 to 4294967295" "400" "One packet in so many.";
            "polling-s" "0 to 86400" "30" "Seconds between two counter samples of a port; 0: none.";
            "header" "1 to 65535" "128" "Most bytes of a packet.";
            "agent" TEXT "" "An address, or a device that has one.";
        },
    },
    Table {
        header: "[bridge.netflow]",
        help: "NetFlow of the bridge above it.",
        settings: settings! {
            "targets" "list of IP:PORT" "" "The collectors. There has to be one.";
            "engine-type" "0 to 255" "0" "Told as it is.";
            "engine-id" "0 to 255" "0" "Told as it is.";
            "active-timeout-s" "0 to 86400" "600" "Seconds after which a flow that lasts is told; 0: when it ends.";
            "add-id-to-interface" BOOL "false" "Whether the high bits of port numbers are those of engine-id.";
        },
    },
    Table {
        header: "[bridge.ipfix]",
        help: "IPFIX of the bridge above it.",
        settings: settings! {
            "targets" "list of IP:PORT" "" "The collectors; without a port, 4739. There has to be one.";
            "sampling" "1 to 4294967295" "400" "One packet in so many.";
            "obs-domain-id" COUNT "0" "The observation domain.";
            "obs-point-id" COUNT "0" "The observation point.";
            "cache-active-timeout-s" "0 to 4200" "0" "Seconds that a flow is kept; 0: each sample is a record.";
            "cache-max-flows" COUNT "0" "Most flows that are kept.";
            "tunnel-sampling" BOOL "true" "Whether records tell tunnels.";
            "virtual-obs-id" TEXT "" "A text that each record has.";
            "input-sampling" BOOL "true" "Whether packets that come in are sampled.";
            "output-sampling" BOOL "true" "Whether packets that go out are sampled.";
        },
    },
    Table {
        header: "[[bridge.collector-set]]",
        help: "Collectors of the action sample.",
        settings: settings! {
            "id" COUNT "" "The number by which the action names it. It has to be there.";
            "targets" "list of IP:PORT" "" "The collectors; without a port, 4739. There has to be one.";
            "cache-active-timeout-s" "0 to 4200" "0" "Seconds that a flow is kept; 0: each sample is a record.";
            "cache-max-flows" COUNT "0" "Most flows that are kept.";
            "tunnel-sampling" BOOL "true" "Whether records tell tunnels.";
            "virtual-obs-id" TEXT "" "A text that each record has.";
        },
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::super::parse;
    use super::*;
    use crate::config::desired::Desired;

    /// What has to stand in a file for a line of this table to be the last one.
    fn before(table: &Table) -> String {
        let needed = match table.header {
            "[[conntrack.zone]]" => "number = 1",
            "[[bridge]]" => "name = \"b\"",
            "[[bridge.controllers]]" => "target = \"ptcp:\"",
            "[[bridge.port]]" => "name = \"p\"",
            "[[bridge.port.interface]]" => "name = \"i\"",
            "[bridge.port.qos]" => "type = \"linux-htb\"",
            "[[bridge.port.qos.queue]]" => "number = 1",
            "[bridge.sflow]" | "[bridge.netflow]" | "[bridge.ipfix]" => "targets = [\"192.0.2.1:9\"]",
            "[[bridge.collector-set]]" => "id = 1\ntargets = [\"192.0.2.1:9\"]",
            _ => "",
        };
        let above = match table.header {
            "[[bridge.port.interface]]" | "[bridge.port.qos]" => {
                "[[bridge]]\nname = \"b\"\n[[bridge.port]]\nname = \"p\"\n"
            }
            "[[bridge.port.qos.queue]]" => {
                "[[bridge]]\nname = \"b\"\n[[bridge.port]]\nname = \"p\"\n[bridge.port.qos]\ntype = \"linux-htb\"\n"
            }
            header if header.contains("bridge.") => "[[bridge]]\nname = \"b\"\n",
            _ => "",
        };
        format!("{above}{}\n{needed}\n", table.header)
    }

    fn read(text: &str) -> Result<Desired, String> {
        parse(Path::new("t.toml"), text).map(|loaded| loaded.desired).map_err(|errors| errors.to_string())
    }

    fn path(header: &str) -> &str {
        header.trim_matches(['[', ']'])
    }

    /// The tables directly below one; below none, for the whole file.
    fn below(parent: &str) -> impl Iterator<Item = &'static str> {
        let prefix = if parent.is_empty() { String::new() } else { format!("{parent}.") };
        let names = TABLES.iter().filter_map(move |t| path(t.header).strip_prefix(&prefix));
        names.filter(|name| !name.is_empty() && !name.contains('.'))
    }

    /// The keys that the reader knows, as it tells them where one is unknown.
    fn known(text: &str) -> BTreeSet<String> {
        let errors = read(&format!("{text}no-such-key-anywhere = 1\n")).unwrap_err();
        let list = errors.split("(keys here: ").nth(1).unwrap_or_else(|| panic!("{errors}"));
        list.split(')').next().unwrap_or_default().split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn the_reader_knows_these_keys_and_no_others() {
        for table in TABLES {
            let own = table.settings.iter().map(|s| s.key.to_owned());
            let listed: BTreeSet<String> = own.chain(below(path(table.header)).map(str::to_owned)).collect();
            assert_eq!(known(&before(table)), listed, "{}", table.header);
        }
    }

    #[test]
    fn numbers_have_these_ranges() {
        for (table, setting) in TABLES.iter().flat_map(|table| table.settings.iter().map(move |s| (table, s))) {
            let takes = setting.takes.strip_prefix("list of ").unwrap_or(setting.takes);
            let Some((least, most)) = takes.split_once(" to ") else { continue };
            let Ok(most) = most.parse::<i64>() else { continue };
            let beyond = most + 1;
            let value = if takes == setting.takes { format!("{beyond}") } else { format!("[{beyond}]") };
            // A key that is needed stands there already.
            let text = before(table).replace(&format!("{} = 1\n", setting.key), "");
            let errors = read(&format!("{text}{} = {value}\n", setting.key)).unwrap_err();
            let range = format!("from {least} to {most}");
            assert!(errors.contains(&range), "{} {}: {errors}", table.header, setting.key);
        }
    }

    #[test]
    fn defaults_are_these() {
        for (table, setting) in TABLES.iter().flat_map(|table| table.settings.iter().map(move |s| (table, s))) {
            if !setting.default.is_empty() {
                let given = read(&format!("{}{} = {}\n", before(table), setting.key, setting.default));
                assert_eq!(given, read(&before(table)), "{} {}", table.header, setting.key);
            }
        }
    }

    #[test]
    fn lines_are_sentences() {
        for table in TABLES {
            assert!(table.help.ends_with('.'), "{}", table.header);
            assert!(table.settings.iter().all(|s| s.help.ends_with('.')), "{}", table.header);
        }
    }
}
