//! What Weir does with each column of the database, declared once: what is asked of the server, the notes in the log
//! about what has no effect, and the check of docs/deviations/configuration.md all come from here.
//!
//! What is declared nowhere is not asked for, so nothing can read it.

use ovsdb::Selection;

/// A table of the database.
pub struct TableColumns {
    /// Its name.
    pub name: &'static str,
    /// Columns that say what is wanted.
    read: &'static [&'static str],
    /// Columns that say what is.
    written: &'static [&'static str],
    /// Keys of `other_config` that are read. The log names others.
    pub keys: &'static [&'static str],
}

impl TableColumns {
    /// The columns that are asked for.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> {
        [self.read, self.written].into_iter().flatten().copied()
    }
}

/// The tables that Weir reads and writes.
pub const TABLES: &[TableColumns] = &[
    TableColumns {
        name: "Open_vSwitch",
        read: &["bridges", "datapaths", "next_cfg", "other_config", "ssl"],
        written: &["cur_cfg", "datapath_types", "dpdk_initialized", "dpdk_version", "iface_types", "ovs_version"],
        keys: &[
            "bundle-idle-timeout",
            "conntrack-early-drop",
            "conntrack-limit",
            "controller-memory-limit",
            "dpdk-alloc-mem",
            "dpdk-extra",
            "dpdk-hugepage-dir",
            "dpdk-init",
            "dpdk-lcore-mask",
            "dpdk-socket-limit",
            "dpdk-socket-mem",
            "emc-insert-inv-prob",
            "exact-cache-memory-limit",
            "flow-limit",
            "flow-restore-wait",
            "http",
            "http-allow-remote",
            "http-token-file",
            "max-idle",
            "max-revalidator",
            "megaflow-mask-limit",
            "megaflow-memory-limit",
            "n-handler-threads",
            "n-revalidator-threads",
            "pmd-auto-lb",
            "pmd-auto-lb-improvement-threshold",
            "pmd-auto-lb-load-threshold",
            "pmd-auto-lb-rebal-interval",
            "pmd-cpu-mask",
            "pmd-maxsleep",
            "pmd-perf-metrics",
            "pmd-rxq-assign",
            "pmd-rxq-isolate",
            "pmd-sleep-max",
            "stats-update-interval",
            "tx-flush-interval",
            "verify-sampling",
            "vhost-iommu-support",
            "vhost-postcopy-support",
            "vhost-sock-dir",
            "vlan-limit",
        ],
    },
    TableColumns {
        name: "Bridge",
        read: &[
            "auto_attach",
            "controller",
            "datapath_type",
            "fail_mode",
            "flood_vlans",
            "flow_tables",
            "ipfix",
            "mcast_snooping_enable",
            "mirrors",
            "name",
            "netflow",
            "other_config",
            "ports",
            "protocols",
            "rstp_enable",
            "sflow",
            "stp_enable",
        ],
        written: &["datapath_id", "datapath_version", "rstp_status", "status"],
        keys: &[
            "controller-queue-size",
            "datapath-id",
            "disable-in-band",
            "dp-desc",
            "dp-sn",
            "forward-bpdu",
            "hwaddr",
            "in-band-queue",
            "mac-aging-time",
            "mac-table-size",
            "rstp-address",
            "rstp-ageing-time",
            "rstp-force-protocol-version",
            "rstp-forward-delay",
            "rstp-max-age",
            "rstp-priority",
            "rstp-transmit-hold-count",
            "stp-forward-delay",
            "stp-hello-time",
            "stp-max-age",
            "stp-priority",
            "stp-system-id",
            "mcast-snooping-aging-time",
            "mcast-snooping-disable-flood-unregistered",
            "mcast-snooping-table-size",
        ],
    },
    TableColumns {
        name: "Port",
        read: &[
            "bond_downdelay",
            "bond_fake_iface",
            "bond_mode",
            "bond_updelay",
            "cvlans",
            "interfaces",
            "lacp",
            "mac",
            "name",
            "other_config",
            "protected",
            "qos",
            "tag",
            "trunks",
            "vlan_mode",
        ],
        written: &["bond_active_slave", "rstp_statistics", "rstp_status", "statistics", "status"],
        keys: &[
            "all-members-active",
            "bond-detect-mode",
            "bond-hash-basis",
            "bond-miimon-interval",
            "bond-primary",
            "bond-rebalance-interval",
            "lacp-fallback-ab",
            "lacp-system-id",
            "lacp-system-priority",
            "lacp-time",
            "lb-output-action",
            "mcast-snooping-flood",
            "mcast-snooping-flood-reports",
            "priority-tags",
            "qinq-ethtype",
            "rstp-admin-p2p-mac",
            "rstp-admin-port-state",
            "rstp-enable",
            "rstp-path-cost",
            "rstp-port-admin-edge",
            "rstp-port-auto-edge",
            "rstp-port-mcheck",
            "rstp-port-num",
            "rstp-port-priority",
            "stp-enable",
            "stp-path-cost",
            "stp-port-num",
            "stp-port-priority",
        ],
    },
    TableColumns {
        name: "Interface",
        read: &[
            "bfd",
            "cfm_mpid",
            "ingress_policing_burst",
            "ingress_policing_kpkts_burst",
            "ingress_policing_kpkts_rate",
            "ingress_policing_rate",
            "lldp",
            "mac",
            "mtu_request",
            "name",
            "ofport_request",
            "options",
            "other_config",
            "type",
        ],
        written: &[
            "admin_state",
            "bfd_status",
            "cfm_fault",
            "cfm_fault_status",
            "cfm_flap_count",
            "cfm_health",
            "cfm_remote_mpids",
            "cfm_remote_opstate",
            "duplex",
            "error",
            "ifindex",
            "lacp_current",
            "link_resets",
            "link_speed",
            "link_state",
            "mac_in_use",
            "mtu",
            "ofport",
            "statistics",
            "status",
        ],
        keys: &[
            "cfm_ccm_pcp",
            "cfm_ccm_vlan",
            "cfm_demand",
            "cfm_extended",
            "cfm_interval",
            "cfm_opstate",
            "ingress-ebpf",
            "ingress-ebpf-program",
            "ingress-filter",
            "ingress-offload",
            "lacp-aggregation-key",
            "lacp-port-id",
            "lacp-port-priority",
            "pmd-rxq-affinity",
            "tx-steering",
        ],
    },
    TableColumns {
        name: "Controller",
        read: &[
            "connection_mode",
            "controller_burst_limit",
            "controller_queue_size",
            "controller_rate_limit",
            "enable_async_messages",
            "inactivity_probe",
            "local_gateway",
            "local_ip",
            "local_netmask",
            "max_backoff",
            "other_config",
            "target",
            "type",
        ],
        written: &["is_connected", "role", "status"],
        keys: &["dscp"],
    },
    TableColumns {
        name: "Mirror",
        read: &[
            "name",
            "output_port",
            "output_vlan",
            "select_all",
            "select_dst_port",
            "select_src_port",
            "select_vlan",
            "snaplen",
        ],
        written: &["statistics"],
        keys: &[],
    },
    TableColumns {
        name: "SSL",
        read: &["bootstrap_ca_cert", "ca_cert", "certificate", "private_key"],
        written: &[],
        keys: &[],
    },
    TableColumns {
        name: "Flow_Table",
        read: &["flow_limit", "groups", "name", "overflow_policy", "prefixes"],
        written: &[],
        keys: &[],
    },
    TableColumns {
        name: "Datapath",
        read: &["ct_zone_default_limit", "ct_zones"],
        written: &["capabilities"],
        keys: &[],
    },
    TableColumns {
        name: "AutoAttach",
        read: &["mappings", "system_description", "system_name"],
        written: &[],
        keys: &[],
    },
    TableColumns {
        name: "sFlow",
        read: &["agent", "header", "polling", "sampling", "targets"],
        written: &[],
        keys: &[],
    },
    TableColumns {
        name: "NetFlow",
        read: &["active_timeout", "add_id_to_interface", "engine_id", "engine_type", "targets"],
        written: &[],
        keys: &[],
    },
    TableColumns {
        name: "IPFIX",
        read: &[
            "cache_active_timeout",
            "cache_max_flows",
            "obs_domain_id",
            "obs_point_id",
            "other_config",
            "sampling",
            "targets",
        ],
        written: &[],
        keys: &["enable-input-sampling", "enable-output-sampling", "enable-tunnel-sampling", "virtual_obs_id"],
    },
    TableColumns { name: "Flow_Sample_Collector_Set", read: &["bridge", "id", "ipfix"], written: &[], keys: &[] },
    TableColumns { name: "CT_Zone", read: &["limit", "timeout_policy"], written: &[], keys: &[] },
    TableColumns { name: "CT_Timeout_Policy", read: &["timeouts"], written: &[], keys: &[] },
    TableColumns {
        name: "QoS",
        read: &["other_config", "queues", "type"],
        written: &[],
        // As ports::qos::TYPES declares them.
        keys: &[
            "cbs", "cir", "ebs", "eir", "flows", "interval", "latency", "limit", "loss", "max-rate", "perturb",
            "quantum", "target",
        ],
    },
    TableColumns {
        name: "Queue",
        read: &["dscp", "other_config"],
        written: &[],
        keys: &["burst", "cbs", "cir", "ebs", "eir", "max-rate", "min-rate", "priority"],
    },
];

/// What is asked of the server.
pub fn selection() -> Selection {
    TABLES
        .iter()
        .fold(Selection::new(), |selection, table| selection.columns(table.name, &table.columns().collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code that reads `other_config`.
    const READERS: [&str; 11] = [
        include_str!("read.rs"),
        include_str!("bond.rs"),
        include_str!("mod.rs"),
        include_str!("export.rs"),
        include_str!("../../../../ports/src/dpdk/settings.rs"),
        include_str!("../../../../ports/src/qos.rs"),
        include_str!("../../../../protocols/src/lacp/options.rs"),
        include_str!("../../../../protocols/src/cfm/settings.rs"),
        include_str!("../../../../protocols/src/stp/settings.rs"),
        include_str!("../../../../protocols/src/rstp/settings.rs"),
        include_str!("../../../../protocols/src/mcast/settings.rs"),
    ];

    #[test]
    fn every_key_that_is_read_is_declared() {
        let declared: Vec<_> = TABLES.iter().flat_map(|table| table.keys).copied().collect();
        let mut found = 0;
        for text in READERS {
            for after in text.split("\"other_config\", \"").skip(1) {
                let key = after.split('"').next().unwrap();
                assert!(declared.contains(&key), "{key} is read and not declared");
                found += 1;
            }
        }
        assert!(found > 15, "{found}");
    }

    #[test]
    fn every_key_that_is_declared_is_read() {
        for key in TABLES.iter().flat_map(|table| table.keys) {
            let literal = format!("\"{key}\"");
            assert!(READERS.iter().any(|text| text.contains(&literal)), "{key} is declared, and nobody reads it");
        }
    }
}
