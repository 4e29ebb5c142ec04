//! From the rows of the database to the desired state.
//!
//! What a database cannot say right (its schema sees to most of that), or what Weir does not do, is a
//! problem of the one interface or bridge that it concerns; the rest is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use datapath::{AutoBalance, RxPolicy, Topology, TrtcmPolicer};
use openflow::{Version, Versions};
use ovsdb::{Atom, Replica, Row, Uuid};
use ports::{Qos, registry};
use protocols::spanning_tree::Protocol;

use super::bond;
use super::conntrack;
use super::export;
use super::files::Files;
use super::flow_tables;
use super::lldp;
use super::local;
use super::mirror;
use super::multicast;
use super::path_checks;
use super::qos;
use super::spanning_tree;
use super::unsupported;
use crate::config::conntrack::Conntrack;
use crate::config::desired::{
    Bridge, BridgeSettings, Controller, ControllerKind, Datapath, Desired, FailMode, IngressProgram, Interface,
    LastNumber, LocalKind, MAX_THREADS, POLICIES, Port, PriorityTags, SpanningTree, VlanMode, Vlans, Workers,
    parse_mac,
};
use crate::config::http::{Http, HttpAddress};
use crate::config::policing::{Egress, EgressPolicer, IngressPolicing, Policing, TwoRates};
use crate::config::{Target, check, desired};

/// The longest sleep of an idle worker that can be asked for, in microseconds; more counts as this, as in OVS.
const MAX_SLEEP: u64 = 10_000;

/// What the database says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseState {
    /// The state that it wants.
    pub desired: Desired,
    /// Interfaces that cannot be had, by name, and why.
    pub problems: BTreeMap<String, String>,
    /// Things without effect, in words.
    pub notes: BTreeSet<String>,
    /// Other things that are wrong, in words.
    pub warnings: BTreeSet<String>,
    /// What is refused because it would harm others.
    pub refusals: BTreeSet<String>,
    /// The number of the configuration (`next_cfg`).
    pub next_cfg: i64,
    /// The rows of bridges, ports and interfaces that it was read from. One of the same name that comes later is another one's.
    pub rows: BTreeSet<Uuid>,
}

/// Which interfaces become dummy ports (`--enable-dummy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dummy {
    /// Those that say so.
    #[default]
    Explicit,
    /// Those of the type `system` too.
    System,
    /// All but patch ports.
    Override,
}

/// What the command line makes of the database.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Which interfaces become dummy ports.
    pub dummy: Dummy,
    /// The files that it may name.
    pub files: Files,
    /// The cores that there are.
    pub topology: Topology,
    /// How OpenFlow connections speak TLS, where the database does not say.
    pub tls: tls::Settings,
}

/// Reads the database. It wants nothing before `ovs-vsctl init` has made the one row of the table Open_vSwitch.
///
/// With `may_wait`, `flow-restore-wait` is obeyed: until it is over, controllers are not known. It counts
/// only from the start of the daemon until it is over for the first time.
pub fn read(replica: &Replica, rules: &Rules, may_wait: bool) -> DatabaseState {
    let Some(root) = replica.rows("Open_vSwitch").next() else { return DatabaseState::default() };
    let mut state = DatabaseState { next_cfg: root.integer("next_cfg").unwrap_or(0), ..DatabaseState::default() };
    state.notes = unsupported::notes(replica);
    let rows = ["Bridge", "Port", "Interface"].iter().flat_map(|table| replica.rows(table));
    state.rows = rows.map(|row| row.uuid()).collect();
    state.desired.workers = state.workers(root, &rules.topology);
    state.desired.datapath = state.datapath(root);
    state.desired.conntrack = state.conntrack(replica, root);
    state.desired.tls = tls(replica, root, &rules.tls);
    state.desired.http = state.http(root, &rules.files);
    state.desired.dpdk = dpdk(root);
    let waits = may_wait && root.map_string("other_config", "flow-restore-wait") == Some("true");
    state.desired.datapath.flow_restore_wait = waits;
    let mut agents = 0;
    for row in root.references("bridges").filter_map(|uuid| replica.row("Bridge", uuid)) {
        let Some(name) = row.string("name") else { continue };
        // Sockets and devices bear the bridge's name: it has to be a file's.
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            state.warnings.insert(format!("ignoring bridge with invalid name {name:?}"));
            continue;
        }
        let mut bridge = state.bridge(replica, row, name, rules, &mut agents);
        bridge.settings.origin = root.uuid().to_string();
        if waits {
            bridge.controllers.clear();
        }
        state.desired.bridges.insert(name.to_owned(), bridge);
    }
    state
}

/// The settings of the command line, with the files that the database names in their place.
fn tls(replica: &Replica, root: &Row, options: &tls::Settings) -> tls::Settings {
    let Some(row) = root.references("ssl").find_map(|uuid| replica.row("SSL", uuid)) else { return options.clone() };
    let file = |column| row.string(column).filter(|path| !path.is_empty()).map(PathBuf::from);
    let bootstrap = row.boolean("bootstrap_ca_cert") == Some(true);
    let mut settings = options.clone();
    settings.private_key = file("private_key").or(settings.private_key);
    settings.certificate = file("certificate").or(settings.certificate);
    settings.ca = file("ca_cert").map(|path| tls::Ca::named(&path, bootstrap)).or(settings.ca);
    settings
}

/// Whether a name is kept for devices of the datapath itself, or of its kind of tunnels, as in OVS.
fn is_reserved(name: &str) -> bool {
    const TUNNELS: [&str; 10] = [
        "erspan_sys",
        "genev_sys",
        "gre_sys",
        "gtpu_sys",
        "ip6erspan_sys",
        "ip6gre_sys",
        "lisp_sys",
        "stt_sys",
        "udp_sys",
        "vxlan_sys",
    ];
    let datapath = name.strip_prefix("ovs-").is_some_and(|kind| matches!(kind, "dummy" | "netdev" | "system"));
    datapath || TUNNELS.iter().any(|prefix| name.starts_with(prefix))
}

impl DatabaseState {
    fn warn(&mut self, what: String) {
        self.warnings.insert(what);
    }

    /// A number in a map of strings; one that is out of place counts as not there.
    fn number<T>(&mut self, row: &Row, column: &str, key: &str) -> Option<T>
    where
        T: std::str::FromStr,
    {
        let text = row.map_string(column, key)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.warn(format!("{column}:{key}: {text:?} is not a number that fits; the default is used"));
        }
        number
    }

    /// One of several words in `other_config`.
    fn choice<T: Copy>(&mut self, row: &Row, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = row.map_string("other_config", key)?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.warn(format!("other_config:{key}: {text:?} is none of {}; the default is used", names.join(", ")));
        }
        found
    }

    fn workers(&mut self, root: &Row, topology: &Topology) -> Workers {
        let default = Workers::default();
        let cores = root.map_string("other_config", "pmd-cpu-mask").map(|mask| {
            cores_of(mask).unwrap_or_else(|| {
                self.warn(format!("other_config:pmd-cpu-mask: {mask:?} is not a hexadecimal mask"));
                BTreeSet::new()
            })
        });
        let cores = cores.unwrap_or_default();
        let missing = check::missing_cores(&cores, topology);
        if !missing.is_empty() {
            self.warn(format!(
                "other_config:pmd-cpu-mask: cores {missing:?} do not exist, or may not be used; left out"
            ));
        }
        let sleep: Option<u64> = self.number(root, "other_config", "pmd-sleep-max");
        // The name that it had in 3.1.
        let sleep = sleep.or_else(|| self.number(root, "other_config", "pmd-maxsleep"));
        let flush = self.number(root, "other_config", "tx-flush-interval");
        let rx_assign = self.choice(root, "pmd-rxq-assign", &POLICIES).unwrap_or(default.rx_assign);
        let mut rx_isolate = root.map_string("other_config", "pmd-rxq-isolate") != Some("false");
        if !rx_isolate && rx_assign != RxPolicy::Group {
            self.warn("pmd-rxq-isolate can only be set false when using pmd-rxq-assign=group".into());
            rx_isolate = true;
        }
        Workers {
            cores: &cores - &missing,
            sleep_max: sleep.map_or(default.sleep_max, |micros| Duration::from_micros(micros.min(MAX_SLEEP))),
            tx_flush_interval: flush.map_or(default.tx_flush_interval, Duration::from_micros),
            rx_assign,
            rx_isolate,
            perf_metrics: root.map_string("other_config", "pmd-perf-metrics") == Some("true"),
            auto_balance: self.auto_balance(root),
        }
    }

    /// Values that are negative or too large count as none, as in OVS.
    fn auto_balance(&mut self, root: &Row) -> AutoBalance {
        let default = AutoBalance::default();
        let mut number = |key: &str, most: u32| {
            let number: Option<i64> = self.number(root, "other_config", key);
            number.and_then(|number| u32::try_from(number).ok()).filter(|&number| number <= most)
        };
        let percent = |n: Option<u32>, default: u8| n.map_or(default, |n| n as u8);
        AutoBalance {
            load: percent(number("pmd-auto-lb-load-threshold", 100), default.load),
            improvement: percent(number("pmd-auto-lb-improvement-threshold", 100), default.improvement),
            minutes: number("pmd-auto-lb-rebal-interval", 20_000).filter(|&n| n > 0).unwrap_or(default.minutes),
            enabled: root.map_string("other_config", "pmd-auto-lb") == Some("true"),
        }
    }

    fn datapath(&mut self, root: &Row) -> Datapath {
        let default = Datapath::default();
        let idle = self.number(root, "other_config", "max-idle").map(Duration::from_millis);
        let limit = self.number(root, "other_config", "flow-limit");
        let memory: Option<u32> = self.number(root, "other_config", "megaflow-memory-limit");
        let masks: Option<u32> = self.number(root, "other_config", "megaflow-mask-limit");
        let probability = self.number(root, "other_config", "emc-insert-inv-prob");
        let cache: Option<u32> = self.number(root, "other_config", "exact-cache-memory-limit");
        let controllers: Option<u32> = self.number(root, "other_config", "controller-memory-limit");
        let bundles: Option<u32> =
            self.number(root, "other_config", "bundle-idle-timeout").filter(|&seconds| seconds != 0);
        let vlans: Option<u32> = self.number(root, "other_config", "vlan-limit");
        let verify: Option<u32> = self.number(root, "other_config", "verify-sampling");
        let revalidator = self.number(root, "other_config", "max-revalidator").map(Duration::from_millis);
        let revalidators: Option<u32> = self.number(root, "other_config", "n-revalidator-threads");
        let handlers: Option<u32> = self.number(root, "other_config", "n-handler-threads");
        // Below this, the revalidator would do nothing else.
        let shortest = Duration::from_millis(100);
        Datapath {
            max_idle: idle.unwrap_or(default.max_idle).max(shortest),
            max_revalidator: revalidator.unwrap_or(default.max_revalidator).max(shortest),
            revalidators: revalidators.unwrap_or(default.revalidators).clamp(1, MAX_THREADS),
            handlers: handlers.unwrap_or(default.handlers).clamp(1, MAX_THREADS),
            flow_limit: limit.unwrap_or(default.flow_limit),
            flow_memory: memory.unwrap_or(default.flow_memory).max(1),
            mask_limit: masks.unwrap_or(default.mask_limit).clamp(1, 16384),
            emc_insert_inv_prob: probability.unwrap_or(default.emc_insert_inv_prob),
            exact_cache_memory: cache.unwrap_or(default.exact_cache_memory).clamp(1, 65_536),
            controller_memory: controllers.unwrap_or(default.controller_memory).clamp(16, 65_536),
            bundle_idle: bundles.map_or(default.bundle_idle, |seconds| Duration::from_secs(seconds.into())),
            verify_sampling: verify.unwrap_or(default.verify_sampling),
            // As OVS's. Zero is for as many as can be.
            vlan_limit: if vlans.unwrap_or(1) == 1 { 1 } else { default.vlan_limit },
            ..default
        }
    }

    /// What may not be had is refused, and the server is off: it would answer otherwise than is wanted.
    fn http(&mut self, root: &Row, files: &Files) -> Http {
        let allow_remote = root.map_string("other_config", "http-allow-remote") == Some("true");
        let Some(text) = root.map_string("other_config", "http") else { return Http::default() };
        let token_file = root.map_string("other_config", "http-token-file").map(PathBuf::from);
        let listen = HttpAddress::parse(text, allow_remote).map_err(|e| format!("other_config:http: {e}"));
        let allowed = listen.and_then(|address| files.http(&address, token_file.as_deref()).map(|()| address));
        match allowed {
            Ok(address) => Http { listen: Some(address), token_file },
            Err(problem) => {
                self.refusals.insert(problem);
                Http::default()
            }
        }
    }

    fn conntrack(&mut self, replica: &Replica, root: &Row) -> Conntrack {
        let default = Conntrack::default();
        let rows = conntrack::read(replica, root);
        let unknown = rows.unknown.iter().map(|name| format!("open_vswitch .: datapaths:{name} has no effect"));
        self.notes.extend(unknown);
        Conntrack {
            limit: self.number(root, "other_config", "conntrack-limit").unwrap_or(default.limit),
            zone_limit: rows.default_limit,
            early_drop: root.map_string("other_config", "conntrack-early-drop") == Some("true"),
            zones: rows.zones,
            ..default
        }
    }

    /// `agents` counts sFlow's agents.
    fn bridge(&mut self, replica: &Replica, row: &Row, name: &str, rules: &Rules, agents: &mut u32) -> Bridge {
        let datapath_type = row.string("datapath_type").unwrap_or_default();
        let dummies = match rules.dummy {
            Dummy::Override => true,
            Dummy::System => matches!(datapath_type, "" | "system" | "dummy"),
            Dummy::Explicit => datapath_type == "dummy",
        };
        let mut bridge = Bridge { settings: self.settings(row, name), ..Bridge::default() };
        bridge.settings.local = false;
        let (auto_attach, problems) = lldp::auto_attach(replica, row);
        bridge.settings.auto_attach = auto_attach;
        problems.into_iter().for_each(|problem| self.warn(format!("bridge {name}: {problem}")));
        let (tables, problems) = flow_tables::read(replica, row);
        bridge.settings.tables = tables;
        problems.into_iter().for_each(|problem| self.warn(format!("bridge {name}: {problem}")));
        bridge.settings.local_kind = if dummies { LocalKind::DummyInternal } else { LocalKind::Tap };
        for port in row.references("ports").filter_map(|uuid| replica.row("Port", uuid)) {
            let interfaces: Vec<_> =
                port.references("interfaces").filter_map(|uuid| replica.row("Interface", uuid)).collect();
            if let [interface] = interfaces[..]
                && interface.string("name") == Some(name)
            {
                bridge.settings.local = true;
                bridge.settings.local_mtu = interface.integer("mtu_request").and_then(|n| u32::try_from(n).ok());
                bridge.settings.local_vlans = vlans(port);
                bridge.settings.local_mcast_snooping = self.port_multicast(port, name);
                bridge.settings.local_ingress_filter = ingress_filter(interface);
                let (egress, qos) = self.qos(replica, port, name);
                // Queues of LOCAL are left alone, as "linux-noop" asks: ovn-controller sets those of the port below its tunnels.
                if let Some(qos) = qos.filter(|qos| qos.kind.name != "linux-noop") {
                    self.notes.insert(format!("port {name}: QoS of type {} has no effect there", qos.kind.name));
                }
                bridge.settings.local_policing = Policing { ingress: ingress_policing(interface), egress };
                if dummies {
                    let options = self.options(interface, name, LocalKind::DummyInternal.name(), rules);
                    bridge.settings.local_options = self.or_warn(Some(options)).unwrap_or_default();
                }
                continue;
            }
            let Some(port_name) = port.string("name") else { continue };
            let bond = (interfaces.len() > 1).then(|| {
                let (bond, problems) = bond::settings(port, port_name);
                problems.into_iter().for_each(|problem| self.warn(problem));
                bond
            });
            let mut interfaces = self.interfaces(&interfaces, dummies, rules);
            if !interfaces.is_empty() {
                let (dscp, (egress, qos)) = (queue_dscp(replica, port), self.qos(replica, port, port_name));
                if let Some(qos) = &qos
                    && !interfaces.values().all(Interface::is_device)
                {
                    let kind = qos.kind.name;
                    self.notes
                        .insert(format!("port {port_name}: QoS of type {kind} has no effect: {}", desired::NO_QOS));
                }
                let mcast_snooping = self.port_multicast(port, port_name);
                interfaces.values_mut().for_each(|interface| {
                    interface.queue_dscp.clone_from(&dscp);
                    interface.policing.egress.clone_from(&egress);
                    interface.qos.clone_from(&qos);
                    interface.mcast_snooping = mcast_snooping;
                });
                if let Some(fake) = bond::fake_interface(port, &interfaces, dummies)
                    && !is_reserved(port_name)
                {
                    interfaces.entry(port_name.to_owned()).or_insert(fake);
                }
                let (last_active, lacp) = (bond::last_active(port), bond::lacp(port));
                let spanning_tree = spanning_tree::options(port);
                let (vlans, mac) = (vlans(port), self.or_warn(port_mac(port, port_name)));
                let mii_interval = bond.as_ref().and_then(|_| bond::mii_interval(port));
                let port = Port { vlans, mac, interfaces, bond, mii_interval, last_active, lacp, spanning_tree };
                bridge.ports.insert(port_name.to_owned(), port);
            }
        }
        for mirror in row.references("mirrors").filter_map(|uuid| replica.row("Mirror", uuid)) {
            match mirror::read(replica, mirror) {
                Ok(mirror) => bridge.settings.mirrors.push(mirror),
                Err(problem) => self.warn(format!("bridge {name}: {problem}")),
            }
        }
        let (exported, problems) = export::read(replica, row, agents);
        bridge.settings.export = exported;
        problems.into_iter().for_each(|problem| self.warn(format!("bridge {name}: {problem}")));
        bridge.settings.mirrors.sort_by(|a, b| a.name.cmp(&b.name));
        for controller in row.references("controller").filter_map(|uuid| replica.row("Controller", uuid)) {
            let Some((target, settings)) = self.controller(controller, (name, row)) else { continue };
            match rules.files.controller(name, &target) {
                Ok(()) => {
                    let local = local::ipv4(controller).map(|ip| ip.map_err(|e| format!("bridge {name}: {e}")));
                    bridge.settings.local_ipv4 = self.or_warn(local).or(bridge.settings.local_ipv4);
                    bridge.controllers.insert(target, settings);
                }
                Err(refusal) => drop(self.refusals.insert(refusal)),
            }
        }
        bridge
    }

    fn settings(&mut self, row: &Row, name: &str) -> BridgeSettings {
        let default = BridgeSettings::default();
        let datapath_id = row.map_string("other_config", "datapath-id").map(|text| {
            let id = u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16);
            id.map_err(|_| format!("bridge {name}: datapath-id {text:?} is not a hexadecimal number"))
        });
        let hwaddr = row.map_string("other_config", "hwaddr").map(|text| {
            let mac = parse_mac(text).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]);
            mac.ok_or_else(|| format!("bridge {name}: hwaddr {text:?} is not an Ethernet address of one station"))
        });
        // Zero stands for the default, and what is out of range for the nearest that is not.
        let ageing: Option<i64> = self.number(row, "other_config", "mac-aging-time").filter(|&seconds| seconds != 0);
        let size: Option<i64> = self.number(row, "other_config", "mac-table-size").filter(|&size| size != 0);
        // A negative number stands for none.
        let queue: Option<i64> = self.number(row, "other_config", "in-band-queue");
        let (mcast_snooping, problems) = multicast::of_bridge(row);
        problems.into_iter().for_each(|problem| self.warn(format!("bridge {name}: {problem}")));
        BridgeSettings {
            // Zero stands for the default.
            datapath_id: self.or_warn(datapath_id).filter(|&id| id != 0),
            hwaddr: self.or_warn(hwaddr),
            fail_mode: match row.string("fail_mode") {
                Some("secure") => FailMode::Secure,
                _ => FailMode::Standalone,
            },
            mac_aging_time: ageing.map_or(default.mac_aging_time, |n| Duration::from_secs(n.clamp(15, 3600) as u64)),
            mac_table_size: size.map_or(default.mac_table_size, |n| n.clamp(10, 1_000_000) as u32),
            flood_vlans: row.integers("flood_vlans").filter_map(|vlan| u16::try_from(vlan).ok()).collect(),
            mcast_snooping,
            protocols: self.protocols(row, name),
            forward_bpdu: row.map_string("other_config", "forward-bpdu") == Some("true"),
            spanning_tree: self.spanning_tree(row, name),
            in_band: row.map_string("other_config", "disable-in-band") != Some("true"),
            in_band_queue: queue.and_then(|queue| u32::try_from(queue).ok()),
            description: row.map_string("other_config", "dp-desc").map(str::to_owned),
            serial: row.map_string("other_config", "dp-sn").map(str::to_owned),
            ..default
        }
    }

    fn spanning_tree(&mut self, row: &Row, name: &str) -> SpanningTree {
        let is_set = |column| row.boolean(column) == Some(true);
        let protocol = match (is_set("stp_enable"), is_set("rstp_enable")) {
            (false, false) => Protocol::Off,
            (true, false) => Protocol::Stp,
            (with_stp, true) => {
                if with_stp {
                    self.warn(format!(
                        "{name}: RSTP and STP are mutually exclusive but both are configured; enabling RSTP"
                    ));
                }
                Protocol::Rstp
            }
        };
        SpanningTree { protocol, options: spanning_tree::options(row) }
    }

    /// What a port gets of multicast whoever is a member.
    fn port_multicast(&mut self, port: &Row, name: &str) -> protocols::mcast::PortSettings {
        let (settings, problems) = multicast::of_port(port);
        problems.into_iter().for_each(|problem| self.warn(format!("port {name}: {problem}")));
        settings
    }

    /// A value that is there and right.
    fn or_warn<T>(&mut self, value: Option<Result<T, String>>) -> Option<T> {
        match value? {
            Ok(value) => Some(value),
            Err(problem) => {
                self.warn(problem);
                None
            }
        }
    }

    /// The interfaces of a port, without those that cannot be had: a bond is one of the others.
    fn interfaces(&mut self, rows: &[&Arc<Row>], dummies: bool, rules: &Rules) -> BTreeMap<String, Interface> {
        let mut interfaces = BTreeMap::new();
        for row in rows {
            let Some(name) = row.string("name") else { continue };
            match self.interface(row, name, dummies, rules) {
                Ok(interface) => drop(interfaces.insert(name.to_owned(), interface)),
                Err(problem) => drop(self.problems.insert(name.to_owned(), problem)),
            }
        }
        interfaces
    }

    /// What an interface is to be, or why it cannot be had.
    fn interface(&mut self, row: &Row, name: &str, dummies: bool, rules: &Rules) -> Result<Interface, String> {
        if is_reserved(name) {
            // As in OVS, the reason is in the log alone.
            self.warn(format!("could not create interface {name}, name is reserved"));
            return Err(String::new());
        }
        let kind = device_kind(row.string("type").unwrap_or_default(), dummies, rules.dummy);
        let options = self.options(row, name, kind, rules)?;
        let other = |key| row.map_string("other_config", key);
        if other("ingress-ebpf-program").is_some() && other("ingress-ebpf").is_none() {
            self.notes.insert(format!("interface {name}: other_config: {}", desired::NO_PROGRAM));
        }
        Ok(Interface {
            kind: kind.to_owned(),
            options,
            ofport_request: row.integer("ofport_request").and_then(|n| u16::try_from(n).ok()),
            last_ofport: LastNumber(row.integer("ofport").and_then(valid_ofport)),
            mtu_request: row.integer("mtu_request").and_then(|n| u32::try_from(n).ok()),
            // As in OVS, an address of several stations is none.
            mac: row.string("mac").and_then(parse_mac).filter(|mac| mac[0] & 1 == 0 && *mac != [0; 6]),
            rx_affinity: self.affinity(row, name),
            steers_by_hash: self.steers_by_hash(row, name),
            // Of the port's, not its own.
            queue_dscp: BTreeMap::new(),
            mcast_snooping: Default::default(),
            policing: Policing { ingress: ingress_policing(row), egress: None },
            qos: None,
            ingress_filter: ingress_filter(row),
            ingress_program: other("ingress-ebpf").map(|path| IngressProgram {
                path: path.to_owned(),
                name: other("ingress-ebpf-program").map(str::to_owned),
            }),
            ingress_offload: row.map_string("other_config", "ingress-offload") != Some("false"),
            lacp: bond::lacp_options(row),
            bfd: path_checks::bfd(row),
            cfm: path_checks::cfm(row),
            lldp: lldp::is_on(row),
            fake: false,
        })
    }

    /// The options of a device of this kind, or why it cannot be had with one of them.
    fn options(
        &mut self,
        row: &Row,
        name: &str,
        kind: &str,
        rules: &Rules,
    ) -> Result<BTreeMap<String, String>, String> {
        let known = registry::kind(kind).map(|kind| kind.options);
        let mut options = BTreeMap::new();
        for (key, value) in row.string_pairs("options") {
            // A type's options that Weir does not have are no reason to be without the port.
            if known.is_none_or(|known| known.iter().any(|option| option.name == key)) {
                rules.files.option(kind, key, value)?;
                options.insert(key.to_owned(), value.to_owned());
            } else {
                self.notes.insert(format!("interface {name}: options:{key} has no effect"));
            }
        }
        Ok(options)
    }

    /// What a port's QoS says: the limit of an egress policer, or what the port itself sees to.
    fn qos(&mut self, replica: &Replica, port: &Row, name: &str) -> (Option<Egress>, Option<Qos>) {
        let Some(row) = port.reference("qos").and_then(|uuid| replica.row("QoS", uuid)) else { return (None, None) };
        match row.string("type").unwrap_or_default() {
            "" => (None, None),
            datapath::EgressPolicer::ONE_RATE => (self.egress_policer(row, name).map(Egress::OneRate), None),
            _ => {
                let (qos, mut problems) = qos::read(replica, row);
                let (limits, rest) = match qos {
                    Some(qos) if qos.kind.name == TrtcmPolicer::TYPE => {
                        let (limits, wrong) = TwoRates::of(&qos);
                        problems.extend(wrong);
                        (limits.map(Egress::TwoRates), None)
                    }
                    rest => (None, rest),
                };
                problems.into_iter().for_each(|problem| self.warn(format!("port {name}: {problem}")));
                (limits, rest)
            }
        }
    }

    /// The limit that a QoS sets, which is of the type that does.
    fn egress_policer(&mut self, qos: &Row, name: &str) -> Option<EgressPolicer> {
        let number = |key| {
            let number: Option<u64> = qos.map_string("other_config", key)?.parse().ok();
            number.filter(|number| (1..=EgressPolicer::MOST).contains(number))
        };
        let policer = number("cir").zip(number("cbs")).map(|(cir, cbs)| EgressPolicer { cir, cbs });
        if policer.is_none() {
            self.warn(format!(
                "port {name}: no limit for what is sent: QoS of type egress-policer needs other_config:cir, in bytes per second, \
                 and other_config:cbs, in bytes, each from 1 to {}",
                EgressPolicer::MOST
            ));
        }
        policer
    }

    /// `other_config:tx-steering`: `hash` or `thread`, the default.
    fn steers_by_hash(&mut self, row: &Row, interface: &str) -> bool {
        match row.map_string("other_config", "tx-steering") {
            Some("hash") => true,
            None | Some("thread") => false,
            Some(other) => {
                self.warn(format!("interface {interface}: tx-steering {other:?} is neither \"thread\" nor \"hash\""));
                false
            }
        }
    }

    /// `other_config:pmd-rxq-affinity`: `QUEUE:CORE,...`.
    fn affinity(&mut self, row: &Row, interface: &str) -> BTreeMap<usize, usize> {
        let text = row.map_string("other_config", "pmd-rxq-affinity").unwrap_or_default();
        let pair = |pair: &str| {
            let (queue, core) = pair.split_once(':')?;
            Some((queue.trim().parse().ok()?, core.trim().parse().ok()?))
        };
        let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(pair);
        pairs.collect::<Option<_>>().unwrap_or_else(|| {
            self.warn(format!("interface {interface}: pmd-rxq-affinity {text:?} is not of the form QUEUE:CORE,..."));
            BTreeMap::new()
        })
    }

    /// The versions of OpenFlow that the column `protocols` names; all where it is empty.
    fn protocols(&mut self, row: &Row, bridge: &str) -> Versions {
        let mut versions = Vec::new();
        for name in row.strings("protocols") {
            match Version::from_name(name) {
                Some(version) => versions.push(version),
                None => self.warn(format!("bridge {bridge}: {name} is not a version of OpenFlow")),
            }
        }
        if versions.is_empty() { BridgeSettings::default().protocols } else { Versions::of(&versions) }
    }

    fn controller(&mut self, row: &Row, (bridge, bridge_row): (&str, &Row)) -> Option<(Target, Controller)> {
        let target = row.string("target")?.parse();
        let target = target.map_err(|e| self.warn(format!("bridge {bridge}: {e}"))).ok()?;
        let millis = |column| row.integer(column).and_then(|n| u64::try_from(n).ok()).map(Duration::from_millis);
        // As in OVS, zero is as good as nothing.
        let number = |column| row.integer(column).and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
        let default = desired::Controller::default();
        // The bridge's, where a controller has none of its own, counts only if it is right.
        let of_bridge: Option<i64> = self.number(bridge_row, "other_config", "controller-queue-size");
        let of_bridge = of_bridge.filter(|size| (1..=512).contains(size));
        let queue_size = row.integer("controller_queue_size").or(of_bridge);
        let dscp: Option<i64> = self.number(row, "other_config", "dscp").filter(|dscp| (0..64).contains(dscp));
        let kind = match row.string("type") {
            None => ControllerKind::of(&target),
            Some("primary") => ControllerKind::Primary,
            Some(_) => ControllerKind::Service,
        };
        let settings = Controller {
            kind,
            max_backoff: millis("max_backoff").unwrap_or(default.max_backoff),
            inactivity_probe: millis("inactivity_probe").unwrap_or(default.inactivity_probe),
            rate_limit: number("controller_rate_limit"),
            burst_limit: number("controller_burst_limit"),
            queue_size: queue_size.map_or(default.queue_size, |n| n.clamp(1, 512) as u16),
            in_band: row.string("connection_mode") != Some("out-of-band"),
            async_messages: row.boolean("enable_async_messages") != Some(false),
            dscp: dscp.map_or(default.dscp, |dscp| dscp as u8),
        };
        Some((target, settings))
    }
}

/// How DPDK is to be started.
fn dpdk(root: &Row) -> ports::dpdk::Settings {
    let setting = |name| root.map_string("other_config", name);
    let mut settings = ports::dpdk::Settings {
        init: ports::dpdk::Init::from_text(setting("dpdk-init").unwrap_or_default()),
        ..Default::default()
    };
    for (name, value) in settings.by_name() {
        *value = setting(name).map(str::to_owned);
    }
    settings
}

/// `mac` of a Port.
fn port_mac(port: &Row, name: &str) -> Option<Result<ports::Mac, String>> {
    let text = port.string("mac")?;
    Some(parse_mac(text).ok_or_else(|| format!("port {name}: mac {text:?} is not an Ethernet address")))
}

/// `other_config:ingress-filter` of an Interface.
fn ingress_filter(interface: &Row) -> Option<String> {
    interface.map_string("other_config", "ingress-filter").map(str::to_owned)
}

/// The kind of port for an interface's type. `dummies`: its bridge is one of dummy ports.
fn device_kind(kind: &str, dummies: bool, dummy: Dummy) -> &str {
    match (kind, dummy) {
        ("patch", _) => "patch",
        ("dummy" | "dummy-pmd" | "dummy-internal", _) => kind,
        _ if ports::tunnel::KIND.names.contains(&kind) => kind,
        ("internal", _) if dummies => "dummy-internal",
        (_, Dummy::Override) => "dummy",
        ("" | "system", Dummy::System) => "dummy",
        ("", _) => "system",
        _ => kind,
    }
}

/// The limits of what an interface receives.
fn ingress_policing(interface: &Row) -> IngressPolicing {
    let number = |column| interface.integer(column).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    IngressPolicing {
        rate: number("ingress_policing_rate"),
        burst: number("ingress_policing_burst"),
        kpkts_rate: number("ingress_policing_kpkts_rate"),
        kpkts_burst: number("ingress_policing_kpkts_burst"),
    }
}

/// The DSCP of a port's queues, of those that have one.
fn queue_dscp(replica: &Replica, port: &Row) -> BTreeMap<u32, u8> {
    let Some(qos) = port.reference("qos").and_then(|uuid| replica.row("QoS", uuid)) else { return BTreeMap::new() };
    let dscp = |pair: &(Atom, Atom)| {
        let &(Atom::Integer(number), Atom::Uuid(uuid)) = pair else { return None };
        let dscp = replica.row("Queue", uuid)?.integer("dscp")?;
        Some((u32::try_from(number).ok()?, u8::try_from(dscp).ok().filter(|dscp| *dscp < 64)?))
    };
    qos.pairs("queues").iter().filter_map(dscp).collect()
}

fn vlans(port: &Row) -> Vlans {
    let vlan = |n: i64| u16::try_from(n).ok();
    let mode = port.string("vlan_mode").and_then(|name| VlanMode::NAMES.iter().find(|(n, _)| *n == name));
    Vlans {
        mode: mode.map(|(_, mode)| *mode),
        tag: port.integer("tag").and_then(vlan),
        trunks: port.integers("trunks").filter_map(vlan).collect(),
        cvlans: port.integers("cvlans").filter_map(vlan).collect(),
        qinq_is_8021q: port.map_string("other_config", "qinq-ethtype") == Some("802.1q"),
        priority_tags: match port.map_string("other_config", "priority-tags") {
            Some("if-nonzero" | "true") => PriorityTags::IfNonzero,
            Some("always") => PriorityTags::Always,
            _ => PriorityTags::Never,
        },
        protected: port.boolean("protected") == Some(true),
    }
}

/// The cores of a hexadecimal mask, the lowest digit last.
fn cores_of(mask: &str) -> Option<BTreeSet<u32>> {
    let digits = mask.strip_prefix("0x").or_else(|| mask.strip_prefix("0X")).unwrap_or(mask);
    // More cores than any machine has.
    if digits.is_empty() || digits.len() > 1024 {
        return None;
    }
    let mut cores = BTreeSet::new();
    for (place, digit) in digits.chars().rev().enumerate() {
        let digit = digit.to_digit(16)?;
        cores.extend((0..4).filter(|bit| digit >> bit & 1 == 1).map(|bit| place as u32 * 4 + bit));
    }
    Some(cores)
}

/// A number that a port can have.
fn valid_ofport(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|&number| (1..=OFPP_MAX).contains(&number))
}

/// The largest one (OpenFlow 1.0, section 5.2.1).
const OFPP_MAX: u16 = 0xff00;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_name_cores() {
        assert_eq!(cores_of("0x6"), Some(BTreeSet::from([1, 2])));
        assert_eq!(cores_of("100000001"), Some(BTreeSet::from([0, 32])));
        assert_eq!(cores_of("0"), Some(BTreeSet::new()));
        assert_eq!(cores_of("0xg"), None);
        assert_eq!(cores_of(""), None);
    }

    #[test]
    fn dummies_take_the_place_of_devices() {
        for (kind, dummies, dummy, expected) in [
            ("", false, Dummy::Explicit, "system"),
            ("internal", false, Dummy::Explicit, "internal"),
            ("internal", true, Dummy::Explicit, "dummy-internal"),
            ("", true, Dummy::Override, "dummy"),
            ("tap", true, Dummy::Override, "dummy"),
            ("patch", true, Dummy::Override, "patch"),
            ("gre", true, Dummy::Override, "gre"),
            ("dummy-pmd", true, Dummy::Override, "dummy-pmd"),
            ("", true, Dummy::System, "dummy"),
            ("tap", true, Dummy::System, "tap"),
        ] {
            assert_eq!(device_kind(kind, dummies, dummy), expected, "{kind} {dummy:?}");
        }
    }
}
