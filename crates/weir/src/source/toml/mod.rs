//! The TOML file as a source of the desired state.
//!
//! ```toml
//! [workers]
//! cores = [0, 1]
//!
//! [[bridge]]
//! name = "br0"
//! flows = ["priority=10,tcp,tp_dst=23,actions=drop"]
//!
//! [[bridge.port]]
//! name = "eth1"
//!
//! [[bridge.port]]
//! name = "vm1"
//! type = "tap"
//! tag = 10
//! ```
//!
//! The whole file is read before anything is reported, so that one run shows every mistake. A file says nothing by
//! itself: it is read again on request.
//!
//! - `bond`: bonds and LACP
//! - `lldp`: LLDP and Auto Attach
//! - `path_checks`: BFD and CFM
//! - `spanning_tree`: STP and RSTP
//! - `reader`: typed values out of a document, with the line of each
//! - [`settings`]: what a file may say, for the manual

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datapath::AutoBalance;
use ports::{dpdk, registry};
use protocols::mcast;
use tls::settings::{Ciphers, Versions};
use tokio::sync::oneshot;

use super::{ConfigSource, Running, SourceEvent};
use crate::config::Target;
use crate::config::check;
use crate::config::conntrack::{self, Conntrack, CtZone};
use crate::config::desired::{
    self, Bridge, BridgeSettings, Controller, ControllerKind, Datapath, Desired, FailMode, FlowText, Interface,
    MAX_THREADS, POLICIES, Port, VlanMode, Vlans, Workers, parse_mac,
};
use crate::config::error::{ConfigError, ConfigErrors, nearest};
use crate::config::http::{Http, HttpAddress};
use crate::config::origins::{Loaded, Origins, port_key};
use crate::config::policing::{Egress, EgressPolicer, IngressPolicing, Policing};
use crate::flow_text;

mod bond;
mod export;
mod lldp;
mod path_checks;
mod qos;
mod reader;
pub mod settings;
mod spanning_tree;
use reader::{Document, Item, Section};

/// A file.
pub struct TomlSource {
    path: PathBuf,
    location: String,
    first: Loaded,
}

impl TomlSource {
    /// Reads the file at `path`, and looks whether this machine has the cores that it names.
    pub fn open(path: PathBuf) -> Result<TomlSource, ConfigErrors> {
        Ok(TomlSource { first: for_this_machine(load(&path))?, location: path.display().to_string(), path })
    }
}

impl ConfigSource for TomlSource {
    fn location(&self) -> &str {
        &self.location
    }

    fn pushes(&self) -> bool {
        false
    }

    async fn first(&mut self) -> Loaded {
        std::mem::take(&mut self.first)
    }

    async fn next(&mut self) -> SourceEvent {
        std::future::pending().await
    }

    /// Reads the file on a thread of its own: a file system may keep it waiting.
    async fn reread(&mut self) -> Result<Loaded, String> {
        let (reply, answer) = oneshot::channel();
        let path = self.path.clone();
        let reading = std::thread::Builder::new().name("config-reader".into()).spawn(move || {
            // The receiver may have been dropped.
            let _ = reply.send(for_this_machine(read(&path, ports::files::read_regular)));
        });
        reading.map_err(|e| format!("cannot start a thread that reads the configuration: {e}"))?;
        match answer.await {
            Ok(loaded) => loaded.map_err(|errors| errors.to_string()),
            Err(_) => Err("the thread that reads the configuration has ended".into()),
        }
    }

    async fn applied(&mut self, _: &Running<'_>) {}
}

fn for_this_machine(loaded: Result<Loaded, ConfigErrors>) -> Result<Loaded, ConfigErrors> {
    let loaded = loaded?;
    match check::cores(&loaded.desired, &loaded.origins) {
        missing if missing.is_empty() => Ok(loaded),
        missing => Err(ConfigErrors(missing)),
    }
}

/// The longest name of a Linux interface, without the terminating zero (`IFNAMSIZ`).
const MAX_INTERFACE_NAME: usize = 15;

/// The highest OpenFlow port number of a port (OpenFlow 1.0 section 5.2.1; higher ones are reserved).
const MAX_OFPORT: i64 = 0xfeff;

/// What a VLAN id is, for errors (IEEE 802.1Q table 9-2).
const VLAN: &str = "the number of a VLAN (4095 is reserved)";

/// Longest configuration, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Reads the file at `path`, which may be a pipe: not for a daemon that runs.
pub fn load(path: &Path) -> Result<Loaded, ConfigErrors> {
    read(path, ports::files::read_any)
}

fn read(path: &Path, read: fn(&Path, u64) -> std::io::Result<Vec<u8>>) -> Result<Loaded, ConfigErrors> {
    let failed = |line, problem: String| {
        ConfigErrors(vec![ConfigError { file: path.into(), line, key: String::new(), problem }])
    };
    let bytes = read(path, MAX_FILE).map_err(|e| failed(None, format!("cannot read the configuration: {e}")))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        failed(Some(line), format!("the configuration is not UTF-8: {}", e.utf8_error()))
    })?;
    parse(path, &text)
}

/// Reads a configuration from `text`; `file` is its name in errors.
pub fn parse(file: &Path, text: &str) -> Result<Loaded, ConfigErrors> {
    let (root, syntax_errors) = ::toml::de::DeTable::parse_recoverable(text);
    let document = Document::new(file, text);
    for e in &syntax_errors {
        document.syntax_error(e);
    }
    if !syntax_errors.is_empty() {
        return Err(document.into_errors());
    }
    let desired = read_root(Section::root(&document, root.get_ref()));
    check_across_bridges(&document, &desired);
    let lines = document.lines();
    match document.into_errors() {
        ConfigErrors(errors) if errors.is_empty() => Ok(Loaded { desired, origins: Origins::new(file, lines) }),
        errors => Err(errors),
    }
}

/// Entry point for fuzzing: any bytes.
pub fn fuzz(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(errors) = parse(Path::new("fuzz.toml"), text)
    {
        assert!(!errors.to_string().is_empty());
    }
}

fn read_root(mut root: Section) -> Desired {
    let desired = Desired {
        workers: root.section("workers").map(read_workers).unwrap_or_default(),
        datapath: root.section("datapath").map(read_datapath).unwrap_or_default(),
        conntrack: root.section("conntrack").map(read_conntrack).unwrap_or_default(),
        tls: root.section("tls").map(read_tls).unwrap_or_default(),
        http: read_http(&mut root),
        dpdk: root.section("dpdk").map(read_dpdk).unwrap_or_default(),
        bridges: {
            let agents = Cell::new(0);
            root.named("bridge", |name, section| read_bridge(name, section, &agents))
        },
    };
    root.finish();
    desired
}

fn read_tls(mut s: Section) -> tls::Settings {
    let mut file = |key| s.get(key).and_then(|item| item.str().map(PathBuf::from));
    let (private_key, certificate) = (file("private-key"), file("certificate"));
    let (ca_cert, peer_ca_cert) = (file("ca-cert"), file("peer-ca-cert"));
    let bootstrap = s.bool("bootstrap-ca-cert").unwrap_or(false);
    if bootstrap && ca_cert.is_none() {
        s.error_at("bootstrap-ca-cert", "the file for the certificate is missing: ca-cert = \"FILE\"");
    }
    let versions = s.get("protocols").and_then(|item| {
        let versions = Versions::parse(item.str()?);
        versions.map_err(|problem| item.error(problem)).ok()
    });
    let ciphers = s.get("ciphers").and_then(|item| {
        let ciphers = Ciphers::parse(item.str()?);
        ciphers.map_err(|problem| item.error(problem)).ok()
    });
    s.finish();
    tls::Settings {
        private_key,
        certificate,
        ca: ca_cert.map(|path| tls::Ca::named(&path, bootstrap)),
        peer_ca_cert,
        versions: versions.unwrap_or_default(),
        ciphers: ciphers.unwrap_or_default(),
    }
}

/// Keys of the root: `http`, `http-allow-remote`, `http-token-file`.
fn read_http(root: &mut Section) -> Http {
    let allow_remote = root.bool("http-allow-remote").unwrap_or(false);
    let listen = root.get("http").and_then(|item| {
        let address = HttpAddress::parse(item.str()?, allow_remote);
        address.map_err(|e| item.error(e.to_string())).ok()
    });
    let token_file = root.get("http-token-file").and_then(|item| item.str().map(PathBuf::from));
    Http { listen, token_file }
}

fn read_dpdk(mut s: Section) -> dpdk::Settings {
    let init = s.get("init").and_then(|item| {
        let known = item.scalar_text().map(|text| (dpdk::Init::from_text(&text), text));
        let known = known.filter(|(init, text)| *init != dpdk::Init::Off || text == "false").map(|(init, _)| init);
        item.require(known, || "expected true, false or \"try\"")
    });
    let mut text = |key| s.get(key).and_then(|item| item.scalar_text());
    let settings = dpdk::Settings {
        init: init.unwrap_or_default(),
        lcore_mask: text("lcore-mask"),
        socket_mem: text("socket-mem"),
        socket_limit: text("socket-limit"),
        alloc_mem: text("alloc-mem"),
        hugepage_dir: text("hugepage-dir"),
        extra: text("extra"),
        vhost_sock_dir: text("vhost-sock-dir"),
        vhost_iommu: text("vhost-iommu-support"),
        vhost_postcopy: text("vhost-postcopy-support"),
    };
    s.finish();
    settings
}

fn read_workers(mut s: Section) -> Workers {
    let default = Workers::default();
    let balance = default.auto_balance;
    let mut cores = BTreeSet::new();
    for item in s.list("cores") {
        if let Some(core) = item.integer(0..=4095, "the number of a core")
            && !cores.insert(core as u32)
        {
            item.error(format!("core {core} is listed twice; one worker runs on each core"));
        }
    }
    let workers = Workers {
        cores,
        sleep_max: s.micros("sleep-max-us", 0..=10_000).unwrap_or(default.sleep_max),
        tx_flush_interval: s.micros("tx-flush-interval-us", 0..=1_000_000).unwrap_or(default.tx_flush_interval),
        rx_assign: s.choice("rx-assign", &POLICIES).unwrap_or(default.rx_assign),
        rx_isolate: s.bool("rx-isolate").unwrap_or(default.rx_isolate),
        perf_metrics: s.bool("perf-metrics").unwrap_or(default.perf_metrics),
        auto_balance: AutoBalance {
            enabled: s.bool("auto-balance").unwrap_or(balance.enabled),
            load: s.integer("auto-balance-load", 0..=100, "percent").unwrap_or(balance.load.into()) as u8,
            improvement: s.integer("auto-balance-improvement", 0..=100, "percent").unwrap_or(balance.improvement.into())
                as u8,
            minutes: s.integer("auto-balance-minutes", 1..=20_000, "minutes").unwrap_or(balance.minutes.into()) as u32,
        },
    };
    s.finish();
    workers
}

fn read_datapath(mut s: Section) -> Datapath {
    let default = Datapath::default();
    let datapath = Datapath {
        max_idle: s.millis("max-idle-ms", 500..=3_600_000).unwrap_or(default.max_idle),
        max_revalidator: s.millis("max-revalidator-ms", 100..=60_000).unwrap_or(default.max_revalidator),
        revalidators: s
            .integer("n-revalidator-threads", 1..=MAX_THREADS.into(), "a number of threads")
            .unwrap_or(default.revalidators.into()) as u32,
        handlers: s
            .integer("n-handler-threads", 1..=MAX_THREADS.into(), "a number of threads")
            .unwrap_or(default.handlers.into()) as u32,
        flow_limit: s.integer("flow-limit", 1..=100_000_000, "a number of flows").unwrap_or(default.flow_limit.into())
            as u32,
        flow_memory: s
            .integer("flow-memory-mib", 1..=1_000_000, "a number of MiB")
            .unwrap_or(default.flow_memory.into()) as u32,
        mask_limit: s.integer("mask-limit", 1..=16384, "a number of masks").unwrap_or(default.mask_limit.into()) as u32,
        emc_insert_inv_prob: s
            .integer("emc-insert-inv-prob", 0..=u32::MAX.into(), "a number; 0 switches the cache off")
            .unwrap_or(default.emc_insert_inv_prob.into()) as u32,
        controller_memory: s
            .integer("controller-memory-mib", 16..=65_536, "a number of MiB")
            .unwrap_or(default.controller_memory.into()) as u32,
        bundle_idle: s
            .integer("bundle-idle-timeout", 1..=86_400, "a number of seconds")
            .map_or(default.bundle_idle, |seconds| Duration::from_secs(seconds as u64)),
        exact_cache_memory: s
            .integer("exact-cache-memory-mib", 1..=65_536, "a number of MiB")
            .unwrap_or(default.exact_cache_memory.into()) as u32,
        vlan_limit: s.integer("vlan-limit", 1..=2, "1 or 2").unwrap_or(default.vlan_limit.into()) as u8,
        verify_sampling: s
            .integer("verify-sampling", 0..=u32::MAX.into(), "a number of packets; 0 switches verification off")
            .unwrap_or(default.verify_sampling.into()) as u32,
        flow_restore_wait: false,
    };
    s.finish();
    datapath
}

fn read_conntrack(mut s: Section) -> Conntrack {
    let default = Conntrack::default();
    let mut zones = BTreeMap::new();
    for item in s.list("zone") {
        let Some(mut zone) = item.section() else { continue };
        let Some(number) = zone.get("number") else {
            zone.error("a zone needs a number: number = 5");
            continue;
        };
        let Some(number) = number.integer(0..=u16::MAX.into(), "the number of a zone") else { continue };
        if zones.insert(number as u16, read_zone(zone)).is_some() {
            item.error(format!("zone {number} is listed twice"));
        }
    }
    let conntrack = Conntrack {
        limit: s.integer("limit", CONNECTIONS, A_LIMIT).map_or(default.limit, |n| n as u32),
        zone_limit: s.integer("zone-limit", CONNECTIONS, A_LIMIT).map(|n| n as u32),
        tcp_sequence_check: s.bool("tcp-sequence-check").unwrap_or(default.tcp_sequence_check),
        early_drop: s.bool("early-drop").unwrap_or(default.early_drop),
        zones,
    };
    s.finish();
    conntrack
}

const CONNECTIONS: RangeInclusive<i64> = 0..=u32::MAX as i64;
const A_LIMIT: &str = "a number of connections";

fn read_zone(mut s: Section) -> CtZone {
    let limit = s.integer("limit", CONNECTIONS, A_LIMIT).map(|n| n as u32);
    let timeouts = s.map("timeouts", |name, item| {
        let known = name.replace('-', "_");
        if !conntrack::timeout_names().any(|name| name == known) {
            let near = nearest(&known, conntrack::timeout_names()).map(|near| format!("; did you mean {near:?}?"));
            item.error(format!("there is no such timeout{}", near.unwrap_or_default()));
            return None;
        }
        let seconds = item.integer(0..=u32::MAX.into(), "a number of seconds")?;
        Some((known, seconds as u32))
    });
    s.finish();
    CtZone { limit, timeouts: timeouts.into_values().collect() }
}

/// `agents` counts sFlow's agents.
fn read_bridge(name: &str, mut s: Section, agents: &Cell<u32>) -> Bridge {
    if name.is_empty() || name.contains('/') || name.starts_with('.') || name.contains(char::is_control) {
        s.error(
            "the name of a bridge is part of a file's name: no '/', no '.' at the start, no control characters, not empty",
        );
    }
    let mut settings = read_bridge_settings(&mut s, name);
    let mut count = agents.get();
    settings.export = export::read(&mut s, &mut count);
    agents.set(count);
    let mut ports = s.named("port", read_port);
    lldp::attach(&settings.auto_attach, &mut ports);
    check_ofports(&s, &ports);
    let mut controllers = BTreeMap::new();
    for item in s.list("controllers") {
        if let Some((target, controller)) = read_controller(&item)
            && controllers.insert(target.clone(), controller).is_some()
        {
            item.error(format!("controller {target} is listed twice"));
        }
    }
    let local = settings.local.then_some(name);
    let interfaces = ports.values().flat_map(|port| port.interfaces.keys());
    let flows = read_flows(&mut s, interfaces.map(String::as_str).chain(local).collect());
    s.finish();
    Bridge { settings, ports, controllers, flows }
}

fn read_bridge_settings(s: &mut Section, name: &str) -> BridgeSettings {
    let default = BridgeSettings::default();
    let local = s.bool("local").unwrap_or(default.local);
    if local && name.len() > MAX_INTERFACE_NAME {
        s.error(format!(
            "{name:?} is too long for the bridge's LOCAL port; at most {MAX_INTERFACE_NAME} bytes, or local = false"
        ));
    }
    BridgeSettings {
        local,
        local_kind: default.local_kind,
        datapath_id: s.get("datapath-id").and_then(|item| {
            let text = item.str()?;
            let id = u64::from_str_radix(text, 16).ok().filter(|&id| text.len() == 16 && id != 0);
            item.require(id, || format!("{text:?} is not a datapath id; 16 hexadecimal digits, not all zero"))
        }),
        hwaddr: s.mac("hwaddr"),
        fail_mode: s
            .choice("fail-mode", &[("standalone", FailMode::Standalone), ("secure", FailMode::Secure)])
            .unwrap_or(default.fail_mode),
        mac_aging_time: s.seconds("mac-aging-time-s", 15..=3600).unwrap_or(default.mac_aging_time),
        mac_table_size: s
            .integer("mac-table-size", 10..=1_000_000, "a number of addresses")
            .unwrap_or(default.mac_table_size.into()) as u32,
        flood_vlans: s
            .list("flood-vlans")
            .iter()
            .filter_map(|item| item.integer(0..=4095, "a VLAN"))
            .map(|vlan| vlan as u16)
            .collect(),
        forward_bpdu: s.bool("forward-bpdu").unwrap_or(default.forward_bpdu),
        description: s.text("dp-desc"),
        serial: s.text("dp-sn"),
        auto_attach: lldp::read_bridge(s),
        spanning_tree: spanning_tree::read_bridge(s),
        mcast_snooping: read_multicast(s),
        ..default
    }
}

fn read_multicast(s: &mut Section) -> Option<mcast::Settings> {
    let default = mcast::Settings::default();
    let is_on = s.bool("mcast-snooping").unwrap_or(false);
    let no_flood = s.bool("mcast-snooping-disable-flood-unregistered").unwrap_or(!default.flood_unregistered);
    let settings = mcast::Settings {
        ageing_time: s.seconds("mcast-snooping-aging-time-s", 15..=3600).unwrap_or(default.ageing_time),
        table_size: s
            .integer("mcast-snooping-table-size", 10..=1_000_000, "a number of groups")
            .map_or(default.table_size, |groups| groups as usize),
        flood_unregistered: !no_flood,
    };
    is_on.then_some(settings)
}

fn read_controller(item: &Item) -> Option<(Target, Controller)> {
    let target = |item: &Item| {
        let text = item.str()?;
        text.parse::<Target>().map_err(|e| item.error(e.to_string())).ok()
    };
    if item.is_str() {
        let target = target(item)?;
        let kind = ControllerKind::of(&target);
        return Some((target, Controller { kind, ..Controller::default() }));
    }
    let mut s = item.section()?;
    let packets = |s: &mut Section, key| s.integer(key, 1..=1_000_000, "a number of packets").map(|n| n as u32);
    let default = Controller::default();
    let address = s.get("target").map(|item| target(&item));
    if address.is_none() {
        s.error("a controller needs a target, such as target = \"tcp:10.0.0.1:6653\"");
    }
    let by_target = address.iter().flatten().map(ControllerKind::of).next();
    let controller = Controller {
        kind: s.choice("type", &ControllerKind::NAMES).or(by_target).unwrap_or_default(),
        max_backoff: s.millis("max-backoff-ms", 1000..=3_600_000).unwrap_or(default.max_backoff),
        inactivity_probe: s.millis("inactivity-probe-ms", 0..=3_600_000).unwrap_or(default.inactivity_probe),
        rate_limit: packets(&mut s, "rate-limit"),
        burst_limit: packets(&mut s, "burst-limit"),
        queue_size: s.integer("queue-size", 1..=512, "a number of packets").map_or(default.queue_size, |n| n as u16),
        in_band: s.bool("in-band").unwrap_or(default.in_band),
        async_messages: s.bool("async-messages").unwrap_or(default.async_messages),
        dscp: s.integer("dscp", 0..=63, "a DSCP").map_or(default.dscp, |dscp| dscp as u8),
    };
    s.finish();
    Some((address??, controller))
}

/// `ports` are the names of the bridge's ports, which a flow may use.
fn read_flows(s: &mut Section, ports: Vec<&str>) -> BTreeSet<FlowText> {
    let names: flow_text::Names = (1..).zip(ports.into_iter().map(str::to_owned)).collect();
    let mut flows = BTreeSet::new();
    let mut selectors = HashMap::new();
    for item in s.list("flows") {
        let Some(text) = item.str() else { continue };
        let flow = FlowText(text.trim().to_owned());
        if let Err(problem) = flow_text::check(&flow.0, &names) {
            item.error(format!("flow \"{}\": {problem}", flow.0));
        } else if let Some(line) = selectors.insert(flow.selector().to_owned(), item.line()) {
            item.error(format!("flow \"{}\" has the same match as the flow in line {line}", flow.0));
        }
        flows.insert(flow);
    }
    flows
}

fn read_port(name: &str, mut s: Section) -> Port {
    check_interface_name(name, &s);
    let vlans = read_vlans(&mut s);
    let (bond, mii_interval, lacp) = (bond::read(&mut s), bond::read_mii_interval(&mut s), bond::read_lacp(&mut s));
    let spanning_tree = spanning_tree::read_port(&mut s);
    let qos = qos::read(&mut s);
    let mcast_snooping = mcast::PortSettings {
        flood: s.bool("mcast-snooping-flood").unwrap_or(false),
        flood_reports: s.bool("mcast-snooping-flood-reports").unwrap_or(false),
    };
    let members = s.named("interface", |name, mut s| {
        check_interface_name(name, &s);
        let mut interface = Interface { mcast_snooping, ..read_interface(&mut s) };
        s.finish();
        check_options(&s, name, &interface);
        qos.put(&mut interface, &s);
        interface
    });
    let interface = read_interface(&mut s);
    s.finish();
    if members.is_empty() {
        check_options(&s, name, &interface);
        let mut interface = Interface { mcast_snooping, ..interface };
        qos.put(&mut interface, &s);
        return Port { lacp, spanning_tree, ..Port::single(name, interface, vlans) };
    }
    if interface != (Interface { kind: "system".into(), ingress_offload: true, ..Interface::default() }) {
        s.error("what belongs to a device (type, options, ofport, mtu, mac, ...) stands with each interface of a bond");
    }
    Port {
        bond: (members.len() > 1).then_some(bond),
        mii_interval: mii_interval.filter(|_| members.len() > 1),
        interfaces: members,
        vlans,
        lacp,
        spanning_tree,
        ..Port::default()
    }
}

fn check_interface_name(name: &str, s: &Section) {
    let is_wrong = |c: char| c == '/' || c == ' ' || c.is_control();
    if name.is_empty() || name.len() > MAX_INTERFACE_NAME || name.contains(is_wrong) {
        s.error(format!(
            "{name:?} is not a name for a port; 1 to {MAX_INTERFACE_NAME} bytes, no '/', space or control character"
        ));
    }
}

fn read_interface(s: &mut Section) -> Interface {
    let kind = s.get("type").and_then(|item| read_kind(&item));
    Interface {
        kind: kind.unwrap_or_else(|| "system".into()),
        options: s.map("options", |_, item| item.scalar_text()),
        ofport_request: s.integer("ofport", 1..=MAX_OFPORT, "an OpenFlow port number").map(|n| n as u16),
        last_ofport: desired::LastNumber::default(),
        mtu_request: s.integer("mtu", 68..=65535, "an MTU in bytes").map(|n| n as u32),
        mac: s.mac("mac"),
        rx_affinity: BTreeMap::new(),
        steers_by_hash: false,
        queue_dscp: BTreeMap::new(),
        mcast_snooping: mcast::PortSettings::default(),
        qos: None,
        policing: read_policing(s),
        ingress_filter: s.get("ingress-filter").and_then(|item| read_ingress_filter(&item)),
        ingress_program: read_ingress_program(s),
        ingress_offload: s.bool("ingress-offload").unwrap_or(true),
        lacp: bond::read_member_lacp(s),
        bfd: path_checks::read_bfd(s),
        cfm: path_checks::read_cfm(s),
        lldp: s.bool("lldp").unwrap_or(false),
        fake: false,
    }
}

fn read_policing(s: &mut Section) -> Policing {
    let mut number = |key, what| s.integer(key, 0..=u32::MAX.into(), what).map_or(0, |number| number as u32);
    let ingress = IngressPolicing {
        rate: number("ingress-policing-rate", "a rate in kb/s"),
        burst: number("ingress-policing-burst", "a burst in kb"),
        kpkts_rate: number("ingress-policing-kpkts-rate", "a rate in thousands of packets per second"),
        kpkts_burst: number("ingress-policing-kpkts-burst", "a burst in thousands of packets"),
    };
    let mut bytes = |key, what| s.integer(key, 1..=EgressPolicer::MOST as i64, what).map(|number| number as u64);
    let (cir, cbs) =
        (bytes("egress-policer-cir", "a rate in bytes per second"), bytes("egress-policer-cbs", "a burst in bytes"));
    let egress = cir.zip(cbs).map(|(cir, cbs)| Egress::OneRate(EgressPolicer { cir, cbs }));
    if cir.is_some() != cbs.is_some() {
        s.error("egress-policer-cir and egress-policer-cbs are set together");
    }
    Policing { ingress, egress }
}

/// Expressions are looked into where the filter is put in force, and by `weir check`.
fn read_ingress_filter(item: &Item) -> Option<String> {
    let text = item.str()?;
    let read = ingress::rule::parse(text).map_err(|problem| item.error(problem.to_string()));
    read.is_ok().then(|| text.to_owned())
}

/// The file is looked into where the program is put in force, and by `weir check`.
fn read_ingress_program(s: &mut Section) -> Option<desired::IngressProgram> {
    let path = s.text("ingress-ebpf");
    let name = s.text("ingress-ebpf-program");
    if name.is_some() && path.is_none() {
        s.error_at("ingress-ebpf-program", desired::NO_PROGRAM);
    }
    path.map(|path| desired::IngressProgram { path, name })
}

fn read_kind(item: &Item) -> Option<String> {
    let kind = item.str()?;
    let mut kinds: Vec<&str> = registry::KINDS.iter().flat_map(|k| k.names).copied().collect();
    kinds.extend(ports::tunnel::KIND.names);
    kinds.push(PATCH);
    let known = kinds.contains(&kind).then(|| kind.to_owned());
    item.require(known, || {
        let hint = nearest(kind, kinds.iter().copied()).map_or(String::new(), |n| format!("; did you mean {n:?}?"));
        format!("{kind:?} is not a type of port{hint} (types: {})", kinds.join(", "))
    })
}

/// The type of port that joins two bridges and has no device.
const PATCH: &str = "patch";

fn check_options(s: &Section, name: &str, interface: &Interface) {
    let is_tunnel = ports::tunnel::KIND.names.contains(&interface.kind.as_str());
    if !interface.is_device() {
        if interface.ingress_filter.is_some() {
            s.error_at("ingress-filter", desired::NO_FRAMES);
        }
        if interface.ingress_program.is_some() {
            s.error_at("ingress-ebpf", desired::NO_FRAMES);
        }
    }
    if is_tunnel {
        return check_tunnel(s, interface);
    }
    if interface.kind == PATCH {
        match interface.options.get("peer") {
            Some(peer) if peer == name => s.error_at("options", "a patch port cannot be its own peer"),
            Some(_) if interface.options.len() == 1 => {}
            _ => s.error_at("options", "a patch port has one option: options = { peer = \"NAME\" }"),
        }
        return;
    }
    if let Err(e) = registry::check(&interface.port_spec(name)) {
        match e {
            ports::Error::Option { option, problem, .. } => s.error_at(&format!("options.{option}"), problem),
            other => s.error(other.to_string()),
        }
    }
}

/// What a database's tunnel is only warned of, is a mistake in a file.
fn check_tunnel(s: &Section, interface: &Interface) {
    let kind = match tunnel::config::Kind::from_name(&interface.kind) {
        Ok(kind) => kind,
        Err(problem) => return s.error_at("type", problem.to_string()),
    };
    let options = interface.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let problems =
        tunnel::config::Config::parse(kind, options).map_or_else(|problems| problems, |(_, warnings)| warnings);
    problems.iter().for_each(|problem| s.error_at("options", problem.to_string()));
}

fn read_vlans(s: &mut Section) -> Vlans {
    let mode = s.choice("vlan-mode", &VlanMode::NAMES);
    let tag = s.integer("tag", 1..=4094, VLAN).map(|tag| tag as u16);
    let trunks: BTreeSet<u16> =
        s.list("trunks").iter().filter_map(|item| item.integer(0..=4094, VLAN)).map(|vlan| vlan as u16).collect();
    let protected = s.bool("protected").unwrap_or(false);
    let vlans = Vlans { mode, tag, trunks, protected, ..Vlans::default() };
    match vlans.effective_mode() {
        VlanMode::Access if !vlans.trunks.is_empty() => {
            s.error("an access port carries one VLAN; remove trunks, or set vlan-mode = \"native-untagged\"");
        }
        VlanMode::Access | VlanMode::NativeTagged | VlanMode::NativeUntagged | VlanMode::Dot1qTunnel
            if vlans.tag.is_none() =>
        {
            s.error("this vlan-mode needs a tag");
        }
        VlanMode::Trunk if vlans.tag.is_some() => {
            s.error("a trunk port has no tag; remove it, or set vlan-mode = \"native-untagged\"");
        }
        _ => {}
    }
    vlans
}

fn check_ofports(s: &Section, ports: &BTreeMap<String, Port>) {
    let mut taken: HashMap<u16, &str> = HashMap::new();
    let interfaces = ports.values().flat_map(|port| &port.interfaces);
    for (name, interface) in interfaces {
        if let Some(number) = interface.ofport_request
            && let Some(other) = taken.insert(number, name)
        {
            let key = format!("port.{name}.ofport");
            s.error_at(&key, format!("OpenFlow port {number} is taken by port {other}; each number is used once"));
        }
    }
}

/// A device has one owner: a port's name is used once, and not by a bridge that has a LOCAL port.
fn check_across_bridges(document: &Document, desired: &Desired) {
    let mut owners: HashMap<&str, String> = HashMap::new();
    for (name, bridge) in &desired.bridges {
        if bridge.settings.local {
            owners.insert(name, format!("bridge.{name}"));
        }
    }
    for (bridge_name, bridge) in &desired.bridges {
        let all = bridge.ports.iter().flat_map(|(port, has)| has.interfaces.keys().map(move |name| (port, name)));
        for (port, name) in all {
            let key = port_key(bridge_name, port);
            if let Some(other) = owners.get(name.as_str()) {
                let line = document.line_of(other).map_or(String::new(), |line| format!(", line {line}"));
                document.error_at_key(&key, format!("the name {name:?} is used twice: {other}{line} has it already"));
            } else {
                owners.insert(name, key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
