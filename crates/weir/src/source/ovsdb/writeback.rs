//! Writes to the database what runs: only the columns that differ from what it holds.

use std::collections::{BTreeMap, HashMap, HashSet};

use datapath::DropReason;
use ofproto::PortInfo;
use openflow::{OfPort, PortStats, Role};
use ovsdb::transaction::Values;
use ovsdb::{Atom, Datum, Replica, Row, Transaction, Uuid};
use packet::Time;
use ports::{dpdk, registry};

use super::OVS_VERSION;
use super::conntrack;
use super::lldp;
use super::path_checks;
use super::read::DatabaseState;
use super::spanning_tree;
use crate::config::Target;
use crate::config::desired::format_mac;
use crate::features::capabilities;
use crate::reconfigure::unapplied::FailedPort;
use crate::report::statistics;
use crate::source::{ControllerStatus, Running};
use crate::turn::{self, Steps};

/// How much to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What changes seldom.
    Status,
    /// Statistics too.
    StatusAndStatistics,
}

/// OpenFlow's number of the LOCAL port in OpenFlow 1.0, which the database has.
const OFPORT_LOCAL: i64 = 0xfffe;

/// The number of a port that is not there.
const OFPORT_NONE: i64 = -1;

/// What has to change in the database now that `state` has been applied. Others have their turns meanwhile: what they change is written
/// the next time.
pub async fn transaction(
    replica: &Replica,
    state: &DatabaseState,
    running: &Running<'_>,
    now: Time,
    extent: Extent,
) -> Transaction {
    let failed = running.failed.iter().map(|failed| ((failed.bridge.as_str(), failed.name.as_str()), failed)).collect();
    let bridges = running.switch.bridges().into_iter().map(|bridge| (bridge.name().to_owned(), bridge)).collect();
    let (written, out) = (HashSet::new(), Transaction::new());
    let mut writer = Writer { replica, state, running, now, extent, bridges, failed, written, out };
    let mut steps = turn::begin().await;
    writer.root();
    writer.datapaths();
    // A bridge that other tables still refer to is none.
    let listed = replica.rows("Open_vSwitch").next().into_iter().flat_map(|root| root.references("bridges"));
    let listed: Vec<_> = listed.filter_map(|uuid| replica.row("Bridge", uuid)).collect();
    for row in &listed {
        writer.bridge(row);
    }
    for what in [Ports::There, Ports::Missing] {
        for row in &listed {
            writer.ports(row, what, &mut steps).await;
        }
    }
    writer.out
}

/// Which of the ports of a row are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    /// Those that the bridge has.
    There,
    /// Those that no bridge has.
    Missing,
}

struct Writer<'a> {
    replica: &'a Replica,
    state: &'a DatabaseState,
    running: &'a Running<'a>,
    now: Time,
    extent: Extent,
    /// By name.
    bridges: HashMap<String, ofproto::Bridge>,
    /// By bridge and interface.
    failed: HashMap<(&'a str, &'a str), &'a FailedPort>,
    /// Rows that several others refer to, as nothing forbids, are written once: two that each wrote what they know would do so for ever.
    written: HashSet<Uuid>,
    out: Transaction,
}

impl Writer<'_> {
    /// Updates the columns of a row that differ.
    fn update(&mut self, row: &Row, columns: impl IntoIterator<Item = (&'static str, Datum)>) {
        let differs = |(column, value): &(&str, Datum)| row.get(column).is_some_and(|held| held != value);
        let values: Values = columns.into_iter().filter(differs).map(|(c, v)| (c.to_owned(), v)).collect();
        if !values.is_empty() {
            self.out.update(row.table(), row.uuid(), values);
        }
    }

    fn root(&mut self) {
        let Some(row) = self.replica.rows("Open_vSwitch").next() else { return };
        let dpdk_ready = dpdk::state().is_ready();
        let names = registry::KINDS.iter().flat_map(|kind| kind.names).copied();
        let kinds = names.filter(|name| dpdk_ready || !name.starts_with("dpdk"));
        let kinds = kinds.chain(ports::tunnel::KIND.names.iter().copied()).chain(["patch"]);
        let columns = [
            ("cur_cfg", self.state.next_cfg.into()),
            ("ovs_version", OVS_VERSION.into()),
            ("iface_types", Datum::set(kinds)),
            ("datapath_types", Datum::set(["dummy", "netdev", "system"])),
            ("dpdk_initialized", dpdk_ready.into()),
            ("dpdk_version", dpdk::version().unwrap_or_else(|| "none".into()).into()),
        ];
        self.update(row, columns);
    }

    /// What the datapath can do. Other pairs stay, as with OVS.
    fn datapaths(&mut self) {
        let Some(root) = self.replica.rows("Open_vSwitch").next() else { return };
        for (_, row) in conntrack::datapaths(self.replica, root).filter(|(name, _)| conntrack::TYPES.contains(name)) {
            let held = row.string_pairs("capabilities").map(|(name, value)| (name.to_owned(), value.to_owned()));
            let mut pairs: BTreeMap<_, _> = held.collect();
            pairs.extend(capabilities().map(|(name, value)| (name.to_owned(), value)));
            self.update(row, [("capabilities", Datum::map(pairs))]);
        }
    }

    fn bridge(&mut self, row: &Row) {
        let Some(name) = row.string("name").filter(|_| self.is_known(row)) else { return };
        let bridge = self.bridges.get(name).cloned();
        let id = bridge.as_ref().map(|bridge| format!("{:016x}", bridge.config().datapath_id));
        let version = if bridge.is_some() { "<built-in>" } else { "" };
        self.update(row, [("datapath_id", optional(id)), ("datapath_version", version.into())]);
        self.update(row, spanning_tree::bridge_columns(bridge.as_ref()));
        if let Some(bridge) = &bridge
            && self.extent == Extent::StatusAndStatistics
        {
            self.mirrors(row, bridge);
        }
        let known = (self.running.controllers)(name);
        for controller in row.references("controller").filter_map(|uuid| self.replica.row("Controller", uuid)) {
            if !self.written.insert(controller.uuid()) {
                continue;
            }
            let target = controller.string("target").and_then(|text| text.parse::<Target>().ok());
            let status = known.iter().find(|(t, _)| Some(t) == target.as_ref()).map(|(_, status)| status);
            self.controller(controller, status);
        }
    }

    /// The ports of a bridge.
    async fn ports(&mut self, row: &Row, what: Ports, steps: &mut Steps) {
        let Some(name) = row.string("name").filter(|_| self.is_known(row)) else { return };
        let rows = row.references("ports").filter_map(|uuid| self.replica.row("Port", uuid));
        let rows: Vec<_> = rows.filter(|port| self.is_known(port)).collect();
        let is_written = |uuid| self.written.contains(&uuid);
        let is_done = |port: &Row| is_written(port.uuid()) && port.references("interfaces").all(is_written);
        if what == Ports::Missing && rows.iter().all(|port| is_done(port)) {
            return;
        }
        let bridge = self.bridges.get(name).cloned();
        let ports = bridge.as_ref().map(ofproto::Bridge::ports).unwrap_or_default();
        let ports: HashMap<_, _> = ports.iter().map(|info| (info.name.as_str(), info)).collect();
        let bonds = bridge.as_ref().map(ofproto::Bridge::bonds).unwrap_or_default();
        let bonds: HashMap<_, _> = bonds.iter().map(|bond| (bond.name.as_str(), bond)).collect();
        for port in rows {
            steps.next().await;
            let bond = port.string("name").and_then(|name| bonds.get(name));
            let active = bond.map(|bond| bond.active_mac).filter(|mac| *mac != [0; 6]);
            let only = port.references("interfaces").filter_map(|uuid| self.replica.row("Interface", uuid));
            let only = only.filter_map(|interface| ports.get(interface.string("name")?)).map(|info| info.port).next();
            if (only.is_some() || what == Ports::Missing) && self.written.insert(port.uuid()) {
                let with_counters = self.extent == Extent::StatusAndStatistics;
                self.update(port, spanning_tree::port_columns(bridge.as_ref(), only, with_counters));
                self.trunks(port);
                self.update(port, [("bond_active_slave", optional(active.map(|mac| format_mac(&mac))))]);
            }
            let interfaces = port.references("interfaces").filter_map(|uuid| self.replica.row("Interface", uuid));
            for interface in interfaces.filter(|interface| self.is_known(interface)).collect::<Vec<_>>() {
                let device = interface.string("name").unwrap_or_default();
                match (ports.get(device), &bridge, what) {
                    (Some(info), Some(bridge), Ports::There) if self.written.insert(interface.uuid()) => {
                        self.interface(interface, (row, bridge), info);
                    }
                    (None, _, Ports::Missing) if self.written.insert(interface.uuid()) => {
                        self.missing(interface, name, port, device);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The VLANs that Auto Attach has a port carry.
    fn trunks(&mut self, port: &Row) {
        let Some(name) = port.string("name") else { return };
        let changes = self.running.switch.trunk_changes(name);
        if !changes.is_empty() {
            let done = lldp::change_trunks(&mut self.out, port, &changes);
            done.into_iter().for_each(|(vlan, is_carried)| self.running.switch.trunk_changed(name, vlan, is_carried));
        }
    }

    /// What the mirrors of a bridge have sent.
    fn mirrors(&mut self, row: &Row, bridge: &ofproto::Bridge) {
        let rows: Vec<_> = row.references("mirrors").filter_map(|uuid| self.replica.row("Mirror", uuid)).collect();
        if rows.is_empty() {
            return;
        }
        let sent: HashMap<_, _> = bridge.mirror_stats().into_iter().collect();
        for mirror in rows {
            if !self.written.insert(mirror.uuid()) {
                continue;
            }
            let Some(counters) = mirror.string("name").and_then(|name| sent.get(name)) else { continue };
            let counters = [("tx_packets", counters.packets()), ("tx_bytes", counters.bytes())];
            let counters = counters.map(|(name, n)| (name, i64::try_from(n).unwrap_or(i64::MAX)));
            self.update(mirror, [("statistics", Datum::map(counters))]);
        }
    }

    fn controller(&mut self, row: &Row, status: Option<&ControllerStatus>) {
        let connected = status.is_some_and(|status| status.connections > 0);
        let mut facts = vec![("state", if connected { "ACTIVE" } else { "BACKOFF" }.to_owned())];
        facts.extend(status.and_then(|status| status.error.clone()).map(|e| ("last_error", e)));
        let times = status
            .map(|status| [("sec_since_connect", status.connected), ("sec_since_disconnect", status.disconnected)]);
        for (name, at) in times.into_iter().flatten().filter_map(|(name, at)| Some((name, at?))) {
            // Written with the statistics: these change all the time.
            let held = row.map_string("status", name).filter(|_| self.extent == Extent::Status);
            facts.push((name, held.map_or_else(|| self.now.since(at).as_secs().to_string(), str::to_owned)));
        }
        let role = status.filter(|_| connected).and_then(|status| status.role).map(role_name);
        let columns = [("is_connected", connected.into()), ("role", optional(role)), ("status", Datum::map(facts))];
        self.update(row, columns);
    }

    /// An interface whose port is there, of the bridge of a row.
    fn interface(&mut self, row: &Row, (of, bridge): (&Row, &ofproto::Bridge), info: &PortInfo) {
        let number = if info.port == OfPort::LOCAL { OFPORT_LOCAL } else { i64::from(info.port.0) };
        let error =
            self.failure(bridge.name(), &info.name).map(FailedPort::in_words).or_else(|| lacks_peer(of, bridge, info));
        self.update(row, [("ofport", number.into()), ("error", optional(error))]);
        let current = bridge.lacp_current(info.port);
        self.update(row, [("lacp_current", Datum::set(current))]);
        self.update(row, path_checks::columns(bridge, info.port));
        let Some(device) = &info.device else {
            let mac = bridge.port_descs(info.port).first().map(|desc| desc.hw_addr.0);
            let mac = optional(mac.map(|mac| format_mac(&mac)));
            let columns = [
                ("mac_in_use", mac),
                ("link_state", "up".into()),
                ("admin_state", "up".into()),
                ("link_resets", 0.into()),
                ("ifindex", 0.into()),
            ];
            self.update(row, columns);
            self.statistics(row, || bridge.port_stats(info.port).first().map(counted).unwrap_or_default());
            return;
        };
        let (link, features) = (device.link(), device.features());
        let state = |up: bool| Datum::from(if up { "up" } else { "down" });
        let speed = (features.speed_mbps > 0).then(|| i64::from(features.speed_mbps) * 1_000_000);
        let duplex = speed.map(|_| if features.full_duplex { "full" } else { "half" });
        let resets = i64::try_from(link.resets).unwrap_or(i64::MAX);
        // As in OVS: a tunnel is no device of the kernel, and has no MTU of its own.
        let is_tunnel = ports::tunnel::KIND.names.contains(&info.kind);
        let ifindex = device.ifindex().or(is_tunnel.then_some(0));
        let columns = [
            ("mac_in_use", format_mac(&device.mac()).into()),
            ("mtu", optional((!is_tunnel).then(|| device.mtu()))),
            ("link_state", state(link.up)),
            ("admin_state", state(link.admin_up)),
            ("link_resets", resets.into()),
            ("link_speed", optional(speed)),
            ("duplex", optional(duplex)),
            ("ifindex", optional(ifindex)),
            ("status", Datum::map(device.status())),
        ];
        self.update(row, columns);
        self.statistics(row, || {
            let mut stats = device.stats();
            let (drops, policers) = info
                .dp_port
                .map(|port| (self.running.datapath.drops_at(port), self.running.datapath.policers(port)))
                .unwrap_or_default();
            stats.count_unsent(drops.at_output());
            let mut counters = statistics(&stats);
            counters.extend(device.custom_stats().into_iter().map(|(name, n)| (name.to_owned(), n)));
            let too_big = drops.get(DropReason::TooBig);
            if too_big > 0 {
                *counters.entry("ovs_tx_mtu_exceeded_drops".to_owned()).or_default() += too_big;
            }
            if policers.ingress.is_some() || policers.egress.is_some() {
                let unsent = drops.get(DropReason::EgressPolicer) + drops.get(DropReason::QueueFull);
                counters.insert("ovs_rx_qos_drops".to_owned(), drops.get(DropReason::IngressPolicer));
                counters.insert("ovs_tx_qos_drops".to_owned(), unsent);
            }
            counters
        });
    }

    /// The counters of an interface, where it is time for them. Whoever has added one finds them at once.
    fn statistics(&mut self, row: &Row, counters: impl FnOnce() -> BTreeMap<String, u64>) {
        let has_none = row.get("statistics").is_some_and(Datum::is_empty);
        if self.extent == Extent::StatusAndStatistics || has_none {
            let counters = counters().into_iter().map(|(name, n)| (name, i64::try_from(n).unwrap_or(i64::MAX)));
            self.update(row, [("statistics", Datum::map(counters))]);
        }
    }

    /// An interface whose port is not there.
    fn missing(&mut self, row: &Row, bridge: &str, port: &Row, name: &str) {
        let reason = match (self.state.problems.get(name), self.failure(bridge, name)) {
            (Some(problem), _) => problem.clone(),
            (None, Some(failed)) => failed.in_words(),
            // Neither there nor failed: the interface came after the configuration that is in force.
            (None, None) if !self.is_wanted(bridge, port, name) => return,
            (None, None) => format!("could not add network device {name} to bridge {bridge}"),
        };
        let empty = Datum::default;
        let columns = [
            ("ofport", OFPORT_NONE.into()),
            ("error", optional(Some(reason).filter(|reason| !reason.is_empty()))),
            ("mac_in_use", empty()),
            ("mtu", empty()),
            ("link_state", empty()),
            ("admin_state", empty()),
            ("link_resets", empty()),
            ("link_speed", empty()),
            ("duplex", empty()),
            ("ifindex", empty()),
            ("status", nothing()),
            ("statistics", nothing()),
        ];
        self.update(row, columns);
        self.update(row, path_checks::no_columns());
    }

    /// Whether the state that has been applied was read from a row. Who removes a port and adds one of the same name does not find the
    /// number of the former, nor why it could not be opened.
    fn is_known(&self, row: &Row) -> bool {
        self.state.rows.contains(&row.uuid())
    }

    /// Whether the state that has been applied wants an interface.
    fn is_wanted(&self, bridge: &str, port: &Row, interface: &str) -> bool {
        let bridge = self.state.desired.bridges.get(bridge);
        let port = bridge.zip(port.string("name")).and_then(|(bridge, port)| bridge.ports.get(port));
        port.is_some_and(|port| port.interfaces.contains_key(interface))
    }

    fn failure(&self, bridge: &str, name: &str) -> Option<&FailedPort> {
        self.failed.get(&(bridge, name)).copied()
    }
}

/// What is wrong with a patch port of the bridge of a row that leads nowhere.
fn lacks_peer(row: &Row, bridge: &ofproto::Bridge, info: &PortInfo) -> Option<String> {
    let peer = info.peer.as_ref().filter(|_| !bridge.has_peer(info.port))?;
    let datapath = row.string("datapath_type").filter(|kind| !kind.is_empty()).unwrap_or("system");
    Some(format!("No usable peer '{peer}' exists in '{datapath}' datapath."))
}

/// The counters that a patch port keeps, by name.
fn counted(stats: &PortStats) -> BTreeMap<String, u64> {
    let counters = [
        ("rx_packets", stats.rx_packets),
        ("rx_bytes", stats.rx_bytes),
        ("tx_packets", stats.tx_packets),
        ("tx_bytes", stats.tx_bytes),
    ];
    counters.map(|(name, n)| (name.to_owned(), n)).into()
}

/// A controller's role, as the column `role` has it.
fn role_name(role: Role) -> &'static str {
    match role {
        Role::Primary => "master",
        Role::Secondary => "slave",
        Role::Equal | Role::NoChange => "other",
    }
}

/// A column that holds one value or none.
fn optional(value: Option<impl Into<Atom>>) -> Datum {
    Datum::set(value)
}

/// A map without pairs.
fn nothing() -> Datum {
    Datum::map(Vec::<(Atom, Atom)>::new())
}
