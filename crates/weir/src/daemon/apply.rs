//! Takes the steps of a reconfiguration on the real switch.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use datapath::{EgressLimits, PortNo, ShaperLimits};
use ofproto::{
    BridgeConfig, Device, LacpConfig, PathCheckConfig, PortSpec, PortVlan, SpanningTreeConfig, SpanningTreePort,
};
use openflow::{FlowModCommand, OfPort};
use packet::flow::VlanLimit;
use ports::Qos;
use ports::link::Ipv4Config;
use protocols::lldp;
use tls::Tls;
use tokio::sync::watch;

use super::address::{self, datapath_id, set_ipv4, stable_mac};
use super::engine::{Engine, cores, exact_entries, flow_memory, log_max_sleep, switch_settings};
use super::ingress::Configured;
use super::openflow::SocketRequests;
use crate::config::Workers;
use crate::config::conntrack::Conntrack;
use crate::config::desired::{
    self, AutoAttach, BridgeSettings, Datapath, FailMode, FlowText, Interface, LocalKind, Port, PriorityTags,
    SpanningTree, VlanMode, Vlans,
};
use crate::config::http::Http;
use crate::config::policing::Policing;
use crate::config::shaping;
use crate::flow_text;
use crate::reconfigure::{Apply, Numbers, ReconfigureStep};

/// The running switch, on which steps are taken.
pub struct LiveSwitch {
    /// The switch.
    pub engine: Engine,
    /// Where sockets are made.
    pub rundir: PathBuf,
    /// The OpenFlow sockets, on the management thread.
    pub openflow: SocketRequests,
    /// How they speak TLS.
    pub tls: Tls,
    /// The HTTP server, on the management thread.
    pub http: watch::Sender<Http>,
    /// What the workers and caches are set to.
    pub workers: Workers,
    /// What the caches are set to.
    pub datapath: Datapath,
    /// What connection tracking is set to.
    pub conntrack: Conntrack,
    /// The numbers that ports have had, by bridge and name. With a file, whose flows name ports by number, a port that comes back has
    /// its number again; with a database, which says what is another port, this is `None`.
    pub numbers_had: Option<BTreeMap<(String, String), OfPort>>,
    /// The lowest address of the network cards of each bridge.
    pub addresses: BTreeMap<String, Option<ports::Mac>>,
    /// What the host speaks IPv4 with by the LOCAL port of each bridge.
    pub local_ipv4: BTreeMap<String, Ipv4Config>,
}

pub(super) type StepResult = Result<(), String>;

impl Apply for LiveSwitch {
    fn apply(&mut self, step: &ReconfigureStep) -> StepResult {
        tracing::debug!(?step, "reconfigure");
        match step {
            ReconfigureStep::SetWorkers(workers) => self.set_workers(workers),
            ReconfigureStep::SetDatapath(datapath) => self.set_datapath(datapath),
            ReconfigureStep::SetConntrack(conntrack) => self.set_conntrack(conntrack),
            ReconfigureStep::SetTls(settings) => {
                self.tls.set(settings.clone());
                Ok(())
            }
            ReconfigureStep::SetHttp(settings) => {
                // Where it cannot listen, it says so by itself, and tries again.
                self.http.send_replace(settings.clone());
                Ok(())
            }
            ReconfigureStep::StartDpdk(settings) => {
                ports::vhost::configure(settings, &self.rundir);
                // A failure is logged, and reported as the error of each port that needs DPDK.
                ports::dpdk::initialise(settings);
                Ok(())
            }
            ReconfigureStep::AddBridge { bridge, settings } => self.add_bridge(bridge, settings),
            ReconfigureStep::SetBridge { bridge, settings } => self.set_bridge(bridge, settings),
            ReconfigureStep::RemoveBridge { bridge } => self.remove_bridge(bridge),
            ReconfigureStep::AddLocal { bridge, settings } => self.add_local(bridge, settings),
            ReconfigureStep::SetLocalFilter { bridge, filter } => self.set_local_filter(bridge, filter.as_deref()),
            ReconfigureStep::SetLocalPolicing { bridge, policing } => self.set_local_policing(bridge, policing),
            ReconfigureStep::RemoveLocal { .. } | ReconfigureStep::RemovePort { .. } => {
                self.take_away(std::slice::from_ref(step)).into_iter().collect()
            }
            ReconfigureStep::AddPort { bridge, port, wanted, had } => self.add_interface(bridge, port, wanted, had),
            ReconfigureStep::SetVlans { bridge, interfaces, vlans, .. } => self.set_vlans(bridge, interfaces, vlans),
            ReconfigureStep::SetBond { bridge, port, wanted, .. } => self.set_bond(bridge, port, wanted),
            ReconfigureStep::SetInterface { bridge, interface, wanted, .. } => {
                self.set_interface(bridge, interface, wanted)
            }
            ReconfigureStep::ReopenInterface { bridge, interface, wanted, enough, .. } => {
                self.set_options(bridge, interface, wanted, *enough)
            }
            ReconfigureStep::AddFlow { bridge, flow } => self.change_flow(bridge, flow, FlowModCommand::Add),
            ReconfigureStep::RemoveFlow { bridge, flow } => {
                self.change_flow(bridge, flow, FlowModCommand::DeleteStrict)
            }
            ReconfigureStep::AddController { bridge, target, controller } => {
                self.openflow.add_controller(bridge, target.clone(), controller.clone())
            }
            ReconfigureStep::RemoveController { bridge, target } => {
                self.openflow.remove_controller(bridge, target.clone())
            }
        }
    }

    fn take_away(&mut self, steps: &[ReconfigureStep]) -> Vec<StepResult> {
        let parts = steps.iter().filter_map(|step| match step {
            ReconfigureStep::RemovePort { bridge, interfaces, .. } => Some((bridge, &interfaces[..])),
            ReconfigureStep::RemoveLocal { bridge } => Some((bridge, std::slice::from_ref(bridge))),
            _ => None,
        });
        let (bridges, interfaces): (Vec<_>, Vec<_>) = parts.unzip();
        match bridges.first().map(|name| self.bridge(name)) {
            Some(Ok(bridge)) => {
                let names: Vec<_> = interfaces.iter().copied().flatten().collect();
                names.iter().for_each(|name| self.engine.mii.forget(&self.engine.switch, bridge.name(), name));
                let mut removed = remove_ports(&bridge, &names).into_iter();
                // A port has gone when all its interfaces have.
                interfaces
                    .iter()
                    .map(|names| removed.by_ref().take(names.len()).fold(Ok(()), StepResult::and))
                    .collect()
            }
            Some(Err(error)) => vec![Err(error); steps.len()],
            None => Vec::new(),
        }
    }

    fn before_controllers(&mut self, bridge: &str, state: &desired::Bridge) {
        self.follow_address(bridge, state);
    }

    fn settle(&mut self) {
        self.engine.switch.revalidate();
    }

    fn numbers(&self) -> Numbers {
        let of_bridge = |bridge: &ofproto::Bridge| {
            let ports = bridge.ports().into_iter();
            ports.filter_map(|info| Some((info.name, info.port.to_u16()?))).collect()
        };
        let bridges = self.engine.switch.bridges();
        bridges.iter().map(|bridge| (bridge.name().to_owned(), of_bridge(bridge))).collect()
    }
}

impl LiveSwitch {
    fn set_workers(&mut self, workers: &Workers) -> StepResult {
        let (datapath, have) = (&self.engine.datapath, &self.workers);
        if workers.tx_flush_interval != have.tx_flush_interval {
            datapath.set_tx_flush_interval(workers.tx_flush_interval);
        }
        if workers.sleep_max != have.sleep_max {
            datapath.set_max_sleep(workers.sleep_max);
            log_max_sleep(workers.sleep_max);
        }
        datapath.set_rx_policy(workers.rx_assign, workers.rx_isolate);
        datapath.set_auto_balance(workers.auto_balance);
        datapath.set_perf_metrics(workers.perf_metrics);
        // Last, because it can fail.
        if workers.cores != have.cores {
            datapath.set_workers(&cores(workers)).map_err(|e| e.to_string())?;
        }
        self.workers = workers.clone();
        Ok(())
    }

    fn set_datapath(&mut self, datapath: &Datapath) -> StepResult {
        self.engine.datapath.set_max_flows(datapath.flow_limit as usize);
        self.engine.datapath.set_max_flow_memory(flow_memory(datapath));
        self.engine.datapath.set_max_masks(datapath.mask_limit as usize);
        if datapath.emc_insert_inv_prob != self.datapath.emc_insert_inv_prob {
            self.engine.datapath.set_exact_one_in(datapath.emc_insert_inv_prob);
        }
        if datapath.exact_cache_memory != self.datapath.exact_cache_memory {
            self.engine.datapath.set_exact_entries(exact_entries(datapath));
        }
        self.engine.datapath.set_verify_sampling(datapath.verify_sampling);
        if datapath.vlan_limit != self.datapath.vlan_limit {
            self.engine.datapath.set_vlan_limit(VlanLimit::of(datapath.vlan_limit));
            // Flows that were made under the old limit would match the wrong packets.
            self.engine.switch.purge();
        }
        self.engine.switch.set_settings(switch_settings(datapath));
        // Is not done again when what follows is tried again.
        self.datapath = Datapath { handlers: self.datapath.handlers, ..datapath.clone() };
        // Last, because it can fail.
        self.engine.datapath.set_handlers(datapath.handlers as usize).map_err(|e| e.to_string())?;
        self.datapath.handlers = datapath.handlers;
        Ok(())
    }

    /// What the configuration leaves as it is stays as commands have set it; limits of zones are out of their reach while it has
    /// one.
    fn set_conntrack(&mut self, wanted: &Conntrack) -> StepResult {
        let (datapath, have) = (&self.engine.datapath, &self.conntrack);
        let limits = &datapath.conntrack().tracker.table.limits;
        if wanted.limit != have.limit {
            limits.set_limit(wanted.limit);
        }
        let mut limits_zones = self.engine.limits_zones.lock();
        if wanted.zone_limit != have.zone_limit {
            limits.set_default_zone_limit(wanted.zone_limit);
        }
        if wanted.tcp_sequence_check != have.tcp_sequence_check {
            datapath.set_tcp_sequence_check(wanted.tcp_sequence_check);
        }
        if wanted.early_drop != have.early_drop {
            datapath.set_early_drop(wanted.early_drop);
        }
        let zones: BTreeSet<_> = wanted.zones.keys().chain(have.zones.keys()).copied().collect();
        for zone in zones {
            let limit = |of: &Conntrack| of.zones.get(&zone).and_then(|zone| zone.limit);
            if limit(wanted) != limit(have) {
                limits.set_zone_limit(zone, limit(wanted));
            }
        }
        *limits_zones = wanted.limits_zones();
        drop(limits_zones);
        let set = datapath.conntrack().set_zone_policies(&wanted.policies());
        self.engine.switch.set_ct_policies(set.numbers);
        self.conntrack = wanted.clone();
        match set.refused[..] {
            [] => Ok(()),
            [first, ..] => Err(format!(
                "there are too many timeout policies; {} zones have the default timeouts, the first is zone {first}",
                set.refused.len()
            )),
        }
    }

    fn add_bridge(&mut self, name: &str, settings: &BridgeSettings) -> StepResult {
        // Its LOCAL port gets it when it is opened.
        self.local_ipv4.extend(settings.local_ipv4.map(|config| (name.to_owned(), config)));
        let config = bridge_config(name, settings, self.bridge_mac(name, settings));
        let bridge = self.engine.switch.add_bridge(config).map_err(|e| e.to_string())?;
        self.engine.local_mtus.want(name, settings.local_mtu);
        bridge.set_export(&settings.export);
        self.openflow.add_bridge(name, bridge).inspect_err(|_| {
            // Without its sockets the bridge could not be managed.
            let _ = self.engine.switch.remove_bridge(name);
        })
    }

    fn set_bridge(&mut self, name: &str, settings: &BridgeSettings) -> StepResult {
        let bridge = self.bridge(name)?;
        self.follow_ipv4(&bridge, settings);
        self.engine.local_mtus.want(name, settings.local_mtu);
        // Before protocols are told that the bridge has changed, which may have its address from it.
        let addressed = self.address_local(&bridge, settings);
        self.configure(&bridge, settings);
        bridge.set_export(&settings.export);
        let optioned = self.set_local_options(&bridge, settings);
        if bridge.port(OfPort::LOCAL).is_some() {
            bridge.set_port_vlan(OfPort::LOCAL, port_vlan(&settings.local_vlans)).map_err(|e| e.to_string())?;
            let multicast = settings.local_mcast_snooping;
            bridge.set_port_multicast(OfPort::LOCAL, multicast).map_err(|e| e.to_string())?;
        }
        addressed.and(optioned)
    }

    /// Gives the LOCAL port the bridge's address.
    fn address_local(&self, bridge: &ofproto::Bridge, settings: &BridgeSettings) -> StepResult {
        let local = bridge.port(OfPort::LOCAL).and_then(|port| port.device);
        match local.filter(|device| !device.is_gone()) {
            Some(local) => local.set_mac(self.bridge_mac(bridge.name(), settings)).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    /// Has the host speak IPv4 by the LOCAL port with another address. As in OVS, it keeps the last one.
    fn follow_ipv4(&mut self, bridge: &ofproto::Bridge, settings: &BridgeSettings) {
        let Some(config) = settings.local_ipv4 else { return };
        let old = self.local_ipv4.insert(bridge.name().to_owned(), config);
        let local = bridge.port(OfPort::LOCAL).and_then(|port| port.device).filter(|device| !device.is_gone());
        if let Some(local) = local.filter(|_| old != Some(config)) {
            set_ipv4(bridge.name(), &*local, &config, old.as_ref());
        }
    }

    /// Puts the settings of a bridge in force. Controllers cannot be told of another datapath id, and have to connect again.
    fn configure(&self, bridge: &ofproto::Bridge, settings: &BridgeSettings) {
        let name = bridge.name();
        let config = bridge_config(name, settings, self.bridge_mac(name, settings));
        let (old, new) = (bridge.config().datapath_id, config.datapath_id);
        bridge.set_config(config);
        if old != new {
            log_datapath_id(name, new);
            if let Err(error) = self.openflow.reconnect(name) {
                tracing::warn!("bridge {name}: {error}");
            }
        }
    }

    /// The address of a bridge and its LOCAL port.
    pub(super) fn bridge_mac(&self, name: &str, settings: &BridgeSettings) -> ports::Mac {
        let of_card = || self.addresses.get(name).copied().flatten();
        settings.hwaddr.or_else(of_card).unwrap_or_else(|| stable_mac(name, &settings.origin))
    }

    /// Has a bridge take the address of its network cards, as its ports are now, where its settings do not say which it has.
    pub fn follow_address(&mut self, name: &str, state: &desired::Bridge) {
        let Ok(bridge) = self.bridge(name) else { return };
        let lowest = address::lowest(&state.settings, &state.ports, &bridge.device_macs(address::is_of_card));
        match self.addresses.insert(name.to_owned(), lowest) {
            Some(known) if known == lowest => return,
            Some(_) => {}
            None => log_datapath_id(name, bridge.config().datapath_id),
        }
        let settings = &state.settings;
        if settings.hwaddr.is_none() {
            if let Err(error) = self.address_local(&bridge, settings) {
                tracing::warn!("bridge {name}: its LOCAL port does not take its address: {error}");
            }
            self.configure(&bridge, settings);
        }
    }

    fn remove_bridge(&mut self, name: &str) -> StepResult {
        self.engine.local_mtus.forget(name);
        self.addresses.remove(name);
        self.local_ipv4.remove(name);
        self.openflow.remove_bridge(name)?;
        self.engine.switch.remove_bridge(name).map_err(|e| e.to_string())
    }

    fn add_local(&self, name: &str, settings: &BridgeSettings) -> StepResult {
        // Before the port receives its first frame.
        self.set_local_filter(name, settings.local_ingress_filter.as_deref())?;
        let bridge = self.bridge(name)?;
        let device = self.open_local(name, settings)?;
        let vlan = port_vlan(&settings.local_vlans);
        let mcast_snooping = settings.local_mcast_snooping;
        let spec = PortSpec { request: Some(OfPort::LOCAL), vlan, mcast_snooping, ..PortSpec::new(device) };
        let port = bridge.add_port(spec).map_err(|e| format!("LOCAL port: {e}"))?;
        log_added(name, name, port);
        self.set_local_policing(name, &settings.local_policing)
    }

    /// Puts in force how the interfaces of a port share its traffic, how they speak LACP, and which part they have in the spanning tree.
    fn set_bond(&self, bridge: &str, port: &str, wanted: &Port) -> StepResult {
        let bridge = self.bridge(bridge)?;
        let mode = wanted.lacp.mode.clone().filter(|_| wanted.lacp.is_on());
        let interfaces = if wanted.bond.is_some() { 2 } else { 1 };
        let options = wanted.lacp.options.clone();
        bridge.set_lacp(port, mode.map(|mode| LacpConfig { mode, options, interfaces }));
        for (name, interface) in &wanted.interfaces {
            if let Some(number) = bridge.port_by_name(name) {
                bridge.set_spanning_tree(number, spanning_tree(wanted, interface));
            }
        }
        for name in wanted.members() {
            match wanted.mii_interval {
                Some(interval) => self.engine.mii.set(bridge.name(), name, interval),
                None => self.engine.mii.forget(&self.engine.switch, bridge.name(), name),
            }
        }
        match &wanted.bond {
            Some(settings) => {
                let last_active = wanted.last_active.0.unwrap_or_default();
                bridge.set_bond(port, settings.clone(), last_active).map_err(|e| e.to_string())
            }
            None => {
                bridge.remove_bond(port);
                Ok(())
            }
        }
    }

    fn add_interface(
        &mut self,
        bridge: &str,
        port_name: &str,
        wanted: &Port,
        had: &BTreeMap<String, u16>,
    ) -> StepResult {
        let (name, interface) = wanted.interfaces.first_key_value().ok_or("a port without interface")?;
        // Before the first interface comes.
        self.set_bond(bridge, port_name, wanted)?;
        // Before the port receives its first frame.
        self.set_filter_of(name, interface)?;
        let spec = PortSpec {
            name: name.to_owned(),
            device: self.open(name, interface)?,
            request: self.wanted_number(bridge, name, interface, had),
            logical: Some(port_name.to_owned()),
            unbundled: interface.fake,
            lacp: interface.lacp.clone(),
            path_checks: path_checks(interface),
            lldp: interface.lldp,
            spanning_tree: spanning_tree(wanted, interface),
            mcast_snooping: interface.mcast_snooping,
            vlan: port_vlan(&wanted.vlans),
            config: openflow::PortConfig::empty(),
        };
        let bridge = self.bridge(bridge)?;
        let port = bridge.add_port(spec).map_err(|e| e.to_string())?;
        log_added(bridge.name(), name, port);
        if let Some(numbers) = &mut self.numbers_had {
            numbers.insert((bridge.name().to_owned(), name.to_owned()), port);
        }
        self.push_filter_down(name);
        bridge.set_queue_dscp(port, interface.queue_dscp.clone()).map_err(|e| e.to_string())?;
        self.set_policing_of_new(&bridge, port, &interface.policing, interface.qos.as_ref())?;
        set_qos_of_new(&bridge, port, Some(interface));
        self.set_queues_of_new(&bridge, port, interface)
    }

    /// The number that an interface is to have, if that is free: the one that it requests, or else the one that it has had.
    fn wanted_number(
        &self,
        bridge: &str,
        name: &str,
        interface: &Interface,
        had: &BTreeMap<String, u16>,
    ) -> Option<OfPort> {
        let number = interface.ofport_request.or(had.get(name).copied()).or(interface.last_ofport.0);
        number.map(|number| OfPort(number.into())).or_else(|| {
            let place = (bridge.to_owned(), name.to_owned());
            self.numbers_had.as_ref()?.get(&place).copied()
        })
    }

    fn set_local_policing(&self, bridge: &str, policing: &Policing) -> StepResult {
        let local = self.bridge(bridge)?.port(OfPort::LOCAL).and_then(|info| info.dp_port);
        local.map_or(Ok(()), |local| self.set_policing(local, policing, None))
    }

    pub(super) fn set_policing(&self, port: PortNo, policing: &Policing, shaper: Option<ShaperLimits>) -> StepResult {
        let (ingress, egress) = (policing.ingress_limits(), policing.egress_limits());
        let egress = shaper.map_or(egress, EgressLimits::Shaper);
        self.engine.datapath.set_policers(port, ingress, egress).map_err(|e| e.to_string())
    }

    pub(super) fn set_queues(&self, port: PortNo, interface: &Interface) -> StepResult {
        let datapath = &self.engine.datapath;
        datapath.set_rx_affinity(port, interface.rx_affinity.clone()).map_err(|e| e.to_string())?;
        datapath.set_tx_steering(port, interface.steers_by_hash).map_err(|e| e.to_string())
    }

    fn set_vlans(&self, bridge: &str, interfaces: &[String], vlans: &Vlans) -> StepResult {
        let bridge = self.bridge(bridge)?;
        interfaces.iter().try_for_each(|name| {
            let port = bridge.port_by_name(name).ok_or_else(|| format!("{name}: no such port"))?;
            bridge.set_port_vlan(port, port_vlan(vlans)).map_err(|e| e.to_string())
        })
    }

    fn set_filter_of(&self, name: &str, interface: &Interface) -> StepResult {
        let wanted = Configured { rules: interface.ingress_filter.clone(), program: interface.ingress_program.clone() };
        let has_no_frames = interface.kind == "patch" || ports::tunnel::KIND.names.contains(&interface.kind.as_str());
        if has_no_frames && wanted != Configured::default() {
            return Err(desired::NO_FRAMES.into());
        }
        self.engine.ingress.configure(&self.engine.datapath, name, wanted, interface.ingress_offload)
    }

    fn set_local_filter(&self, bridge: &str, rules: Option<&str>) -> StepResult {
        let wanted = Configured { rules: rules.map(str::to_owned), program: None };
        self.engine.ingress.configure(&self.engine.datapath, bridge, wanted, true)
    }

    fn set_interface(&self, bridge: &str, name: &str, interface: &Interface) -> StepResult {
        // A wrong filter does not keep the rest from being set.
        let filtered = self.set_filter_of(name, interface);
        self.set_device(bridge, name, interface)?;
        self.push_filter_down(name);
        filtered
    }

    fn set_device(&self, bridge: &str, name: &str, interface: &Interface) -> StepResult {
        let bridge = self.bridge(bridge)?;
        let info = bridge.port_by_name(name).and_then(|port| bridge.port(port));
        let info = info.ok_or_else(|| format!("{name}: no such port"))?;
        bridge.set_queue_dscp(info.port, interface.queue_dscp.clone()).map_err(|e| e.to_string())?;
        bridge.set_member_lacp(info.port, interface.lacp.clone());
        bridge.set_path_checks(info.port, path_checks(interface));
        bridge.set_lldp(info.port, interface.lldp);
        bridge.set_port_multicast(info.port, interface.mcast_snooping).map_err(|e| e.to_string())?;
        if interface.kind == "patch" {
            return self.set_patch(&bridge, info.port, name, interface);
        }
        // If the device has gone, the one that replaces it is opened with these settings.
        let Some(device) = info.device.filter(|device| !device.is_gone()) else { return Ok(()) };
        // What the device refuses of these is told, and costs nothing else.
        let mtu = interface.mtu_request.map_or(Ok(()), |mtu| device.set_mtu(mtu));
        let mac = interface.mac.map_or(Ok(()), |mac| device.set_mac(mac));
        let taken = mtu.and(mac).map_err(|e| e.to_string());
        set_qos(&*device, interface.qos.as_ref());
        let done = match info.dp_port {
            Some(port) => {
                self.engine.datapath.refresh_port(port).map_err(|e| e.to_string())?;
                let shaper = interface.qos.as_ref().and_then(|qos| shaping::limits(&*device, qos));
                self.set_policing(port, &interface.policing, shaper)?;
                self.set_queues(port, interface)
            }
            None => Ok(()),
        };
        done.and(taken)
    }

    fn set_patch(&self, bridge: &ofproto::Bridge, port: OfPort, name: &str, interface: &Interface) -> StepResult {
        match self.open(name, interface)? {
            Device::Patch { peer, mac } => bridge.set_patch(port, peer, mac).map_err(|e| e.to_string()),
            Device::Datapath(_) | Device::Tunnel(_) => Ok(()),
        }
    }

    fn change_flow(&self, bridge: &str, flow: &FlowText, command: FlowModCommand) -> StepResult {
        let bridge = self.bridge(bridge)?;
        let change = flow_text::parse(&flow.0, command, &bridge).map_err(|e| format!("flow \"{flow}\": {e}"))?;
        bridge.flow_mod(&change).map_err(|e| format!("flow \"{flow}\": {e}"))
    }

    pub(super) fn bridge(&self, name: &str) -> Result<ofproto::Bridge, String> {
        self.engine.switch.bridge(name).ok_or_else(|| format!("bridge {name} does not exist"))
    }
}

/// Has a port whose device is a new one queue what it is sent. Without a QoS, the device keeps what it came with.
pub(super) fn set_qos_of_new(bridge: &ofproto::Bridge, port: OfPort, wanted: Option<&Interface>) {
    let qos = wanted.and_then(|interface| interface.qos.as_ref());
    if let Some((device, qos)) = bridge.port(port).and_then(|info| info.device).zip(qos) {
        set_qos(&*device, Some(qos));
    }
}

/// Has a port queue what it is sent, unless the datapath does that. As in OVS, the port is there also where nobody can, and the log says so.
fn set_qos(device: &dyn ports::Port, qos: Option<&Qos>) {
    let (name, types) = (device.name(), device.qos_types());
    let (can, other) = match qos {
        Some(qos) if shaping::types(device).contains(&qos.kind.name) => (None, None),
        // It says that the port is to be left alone.
        Some(qos) if types.is_empty() && qos.kind.name == "linux-noop" => (None, None),
        Some(qos) if !types.contains(&qos.kind.name) => (None, Some(qos.kind.name)),
        qos => (qos, None),
    };
    if let Some(other) = other {
        let known = [types, shaping::types(device)].concat().join(", ");
        tracing::warn!(
            "{name}: QoS of type {other} has no effect on a port of type {}, which has {known}",
            device.kind()
        );
    }
    if let Err(error) = device.set_qos(can) {
        tracing::warn!("{error}");
    }
}

/// Removes ports. Returns one result for each.
fn remove_ports(bridge: &ofproto::Bridge, names: &[&String]) -> Vec<StepResult> {
    let found: Vec<Option<OfPort>> = names.iter().map(|name| bridge.port_by_name(name)).collect();
    let going: Vec<OfPort> = found.iter().flatten().copied().collect();
    let removed = bridge.remove_ports(&going).map_err(|e| e.to_string());
    let outcome = |(name, port): (&&String, Option<OfPort>)| {
        let number = short_number(port.ok_or_else(|| format!("{name}: no such port"))?);
        removed.clone()?;
        tracing::info!("bridge {}: deleted interface {name} on port {number}", bridge.name());
        Ok(())
    };
    names.iter().zip(found).map(outcome).collect()
}

fn log_added(bridge: &str, name: &str, port: OfPort) {
    tracing::info!("bridge {bridge}: added interface {name} on port {}", short_number(port));
}

fn log_datapath_id(bridge: &str, id: u64) {
    tracing::info!("bridge {bridge}: using datapath ID {id:016x}");
}

/// As OpenFlow 1.0 has it: LOCAL is 65534.
pub(super) fn short_number(port: OfPort) -> u32 {
    port.to_u16().map_or(port.0, u32::from)
}

/// The configuration of a bridge that has this address.
fn bridge_config(name: &str, settings: &BridgeSettings, mac: ports::Mac) -> BridgeConfig {
    let mut config = BridgeConfig::new(name, settings.datapath_id.unwrap_or_else(|| datapath_id(mac)));
    config.fail_mode = match settings.fail_mode {
        FailMode::Standalone => ofproto::FailMode::Standalone,
        FailMode::Secure => ofproto::FailMode::Secure,
    };
    config.protocols = settings.protocols;
    (config.in_band, config.in_band_queue) = (settings.in_band, settings.in_band_queue);
    (config.description, config.serial) = (settings.description.clone(), settings.serial.clone());
    config.tables = settings.tables.clone();
    config.mirrors = settings.mirrors.clone();
    config.forward_bpdu = settings.forward_bpdu;
    let SpanningTree { protocol, options } = settings.spanning_tree.clone();
    config.spanning_tree = SpanningTreeConfig { protocol, options };
    config.auto_attach = Arc::new(auto_attach(&settings.auto_attach));
    config.datapath_type = match settings.local_kind {
        LocalKind::DummyInternal => ofproto::DatapathType::Dummy,
        LocalKind::Tap => ofproto::DatapathType::Netdev,
    };
    config.mac.ageing = settings.mac_aging_time;
    config.mac.max_entries = settings.mac_table_size as usize;
    config.flood_vlans = settings.flood_vlans.clone();
    config.mcast_snooping = settings.mcast_snooping;
    config
}

/// What the ports of a bridge say of it by LLDP.
fn auto_attach(settings: &AutoAttach) -> lldp::AutoAttach {
    let AutoAttach { system_name, system_description, mappings } = settings.clone();
    let default = || concat!("Weir ", env!("CARGO_PKG_VERSION")).to_owned();
    let system_description = if system_description.is_empty() { default() } else { system_description };
    lldp::AutoAttach { system_name, system_description, mappings }
}

/// How the path behind an interface is checked.
fn path_checks(interface: &Interface) -> PathCheckConfig {
    let (bfd, cfm) = (interface.bfd.clone(), interface.cfm.options.clone());
    let key_of_flow = ["key", "in_key"].iter().any(|key| interface.options.get(*key).is_some_and(|key| key == "flow"));
    PathCheckConfig { bfd, cfm_mpid: interface.cfm.mpid, cfm, key_of_flow }
}

/// An interface's part in the spanning tree of its bridge.
fn spanning_tree(port: &Port, interface: &Interface) -> SpanningTreePort {
    let is_internal = matches!(&*interface.kind, "internal" | "dummy-internal");
    SpanningTreePort { options: port.spanning_tree.clone(), is_internal }
}

fn port_vlan(vlans: &Vlans) -> PortVlan {
    let mode = match vlans.effective_mode() {
        VlanMode::Access => ofproto::VlanMode::Access,
        VlanMode::Trunk => ofproto::VlanMode::Trunk,
        VlanMode::NativeTagged => ofproto::VlanMode::NativeTagged,
        VlanMode::NativeUntagged => ofproto::VlanMode::NativeUntagged,
        VlanMode::Dot1qTunnel => ofproto::VlanMode::Dot1qTunnel,
    };
    let set = |vids: &BTreeSet<u16>| (!vids.is_empty()).then(|| vids.iter().copied().collect());
    PortVlan {
        mode,
        tag: vlans.tag.unwrap_or(0),
        trunks: set(&vlans.trunks),
        cvlans: set(&vlans.cvlans),
        qinq_ethertype: if vlans.qinq_is_8021q { 0x8100 } else { 0x88a8 },
        priority_tags: match vlans.priority_tags {
            PriorityTags::Never => ofproto::PriorityTags::Never,
            PriorityTags::IfNonzero => ofproto::PriorityTags::IfNonzero,
            PriorityTags::Always => ofproto::PriorityTags::Always,
        },
        protected: vlans.protected,
    }
}
