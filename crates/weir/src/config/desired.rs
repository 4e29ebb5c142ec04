//! The state that the operator wants, free of the source that it came from.
//!
//! The names follow the Open_vSwitch schema (ovs-vswitchd.conf.db(5)), so that a database and a file
//! fill the same structure. Everything here is plain data that can be compared: `reconfigure` works
//! out what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use datapath::AutoBalance;
use datapath::RxPolicy;
use export::settings::BridgeExport;
use ofproto::connection::{PACKET_IN_QUEUE, PacketInLimit};
use ofproto::{BondSettings, TableSettings};
use openflow::{TableId, Version, Versions};
use ports::Qos;
use ports::link::Ipv4Config;
use protocols::mcast;
use protocols::spanning_tree::Protocol as TreeProtocol;
use serde::Serialize;

use super::conntrack::Conntrack;
use super::http::Http;
use super::policing::Policing;
use super::target::Target;

/// The whole state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Desired {
    /// The threads that forward.
    pub workers: Workers,
    /// The flow caches.
    pub datapath: Datapath,
    /// Connection tracking.
    pub conntrack: Conntrack,
    /// How OpenFlow connections speak TLS.
    pub tls: tls::Settings,
    /// The HTTP server.
    pub http: Http,
    /// How DPDK is to be started.
    #[serde(serialize_with = "dpdk_by_name")]
    pub dpdk: ports::dpdk::Settings,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
}

fn dpdk_by_name<S: serde::Serializer>(settings: &ports::dpdk::Settings, serializer: S) -> Result<S::Ok, S::Error> {
    let mut settings = settings.clone();
    let init = settings.init.name();
    let given = settings.by_name().into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    serializer.collect_map(std::iter::once(("dpdk-init", init)).chain(given))
}

/// The threads that forward.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workers {
    /// One worker for each core in this list. Empty: one worker on no particular core.
    pub cores: BTreeSet<u32>,
    /// The longest sleep of an idle worker (`pmd-sleep-max`); zero polls without pause.
    pub sleep_max: Duration,
    /// How long a packet may wait for others to the same port (`tx-flush-interval`); zero sends at the
    /// end of each batch.
    pub tx_flush_interval: Duration,
    /// How receive queues are spread over the workers (`pmd-rxq-assign`).
    #[serde(serialize_with = "policy_name")]
    pub rx_assign: RxPolicy,
    /// A worker that a queue is pinned to gets no others (`pmd-rxq-isolate`).
    pub rx_isolate: bool,
    /// Whether performance is measured in detail (`pmd-perf-metrics`).
    pub perf_metrics: bool,
    /// When receive queues are moved by themselves (`pmd-auto-lb*`).
    #[serde(serialize_with = "balance")]
    pub auto_balance: AutoBalance,
}

/// The ways to spread receive queues, by name.
pub const POLICIES: [(&str, RxPolicy); 3] =
    [("roundrobin", RxPolicy::RoundRobin), ("cycles", RxPolicy::Cycles), ("group", RxPolicy::Group)];

fn policy_name<S: serde::Serializer>(policy: &RxPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    let name = POLICIES.iter().find(|(_, p)| p == policy).map_or("", |(name, _)| name);
    serializer.serialize_str(name)
}

fn balance<S: serde::Serializer>(settings: &AutoBalance, serializer: S) -> Result<S::Ok, S::Error> {
    let AutoBalance { enabled, load, improvement, minutes } = *settings;
    serializer.collect_map([
        ("enabled", u32::from(enabled)),
        ("load", load.into()),
        ("improvement", improvement.into()),
        ("minutes", minutes),
    ])
}

impl Default for Workers {
    fn default() -> Workers {
        Workers {
            cores: BTreeSet::new(),
            sleep_max: Duration::from_micros(500),
            tx_flush_interval: Duration::ZERO,
            rx_assign: RxPolicy::Cycles,
            rx_isolate: true,
            perf_metrics: false,
            auto_balance: AutoBalance::default(),
        }
    }
}

/// Most threads of a kind that can be asked for.
pub const MAX_THREADS: u32 = 64;

/// The flow caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Datapath {
    /// After how long without a packet a datapath flow is removed (`max-idle`).
    pub max_idle: Duration,
    /// How often datapath flows are looked through at least (`max-revalidator`).
    pub max_revalidator: Duration,
    /// How many threads share that (`n-revalidator-threads`).
    pub revalidators: u32,
    /// How many threads translate packets that no datapath flow matches (`n-handler-threads`).
    pub handlers: u32,
    /// Most datapath flows (`flow-limit`).
    pub flow_limit: u32,
    /// Most memory that they take, in MiB (`megaflow-memory-limit`).
    pub flow_memory: u32,
    /// Most masks of the datapath flows for one input port (`megaflow-mask-limit`).
    pub mask_limit: u32,
    /// One in so many flows found is remembered in the exact-match cache (`emc-insert-inv-prob`); zero: none.
    pub emc_insert_inv_prob: u32,
    /// Most memory of each worker's exact-match cache, in MiB (`exact-cache-memory-limit`).
    pub exact_cache_memory: u32,
    /// Most memory of what OpenFlow peers have not read yet, of all together, in MiB (`controller-memory-limit`).
    pub controller_memory: u32,
    /// How long a bundle stays that its connection does not use (`bundle-idle-timeout`).
    pub bundle_idle: Duration,
    /// How many VLAN tags can be matched; a further one is payload (`vlan-limit`).
    pub vlan_limit: u8,
    /// One of so many packets is verified (`verify-sampling`); zero: none.
    pub verify_sampling: u32,
    /// The flow tables are being restored by a tool: nothing is forwarded until that is done (`flow-restore-wait`).
    pub flow_restore_wait: bool,
}

impl Default for Datapath {
    fn default() -> Datapath {
        Datapath {
            max_idle: Duration::from_secs(10),
            max_revalidator: Duration::from_millis(500),
            revalidators: 1,
            handlers: 1,
            flow_limit: 2_000_000,
            flow_memory: 2048,
            mask_limit: 64,
            emc_insert_inv_prob: 1,
            exact_cache_memory: 200,
            controller_memory: 256,
            bundle_idle: Duration::from_secs(10),
            vlan_limit: 2,
            verify_sampling: 1 << 20,
            flow_restore_wait: false,
        }
    }
}

/// A bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bridge {
    /// What belongs to the bridge itself.
    pub settings: BridgeSettings,
    /// Ports by name, without the LOCAL port.
    pub ports: BTreeMap<String, Port>,
    /// OpenFlow controllers: those that the bridge connects to and those that it listens for.
    pub controllers: BTreeMap<Target, Controller>,
    /// Flows in the tables from the start.
    pub flows: BTreeSet<FlowText>,
}

impl Bridge {
    /// The names of the interfaces of the bridge, which is called `name`; with that of its LOCAL port.
    pub fn interface_names<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let others = self.ports.values().flat_map(|port| port.interfaces.keys()).map(String::as_str);
        self.settings.local.then_some(name).into_iter().chain(others)
    }

    /// Whether it has a primary controller.
    pub fn has_primary(&self) -> bool {
        self.controllers.values().any(|controller| controller.kind == ControllerKind::Primary)
    }

    /// The interface of this name. Most ports have the name of their interface.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        let same_name = self.ports.get(name).and_then(|port| port.interfaces.get(name));
        same_name.or_else(|| self.ports.values().find_map(|port| port.interfaces.get(name)))
    }
}

/// What belongs to a bridge itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BridgeSettings {
    /// Whether the bridge has a LOCAL port: a device of the bridge's name.
    pub local: bool,
    /// What the LOCAL port is.
    pub local_kind: LocalKind,
    /// Options of the LOCAL port, where that is a dummy port.
    pub local_options: BTreeMap<String, String>,
    /// What the host speaks IPv4 with by the LOCAL port, as a controller has it (`local_ip`, ...).
    #[serde(skip)]
    pub local_ipv4: Option<Ipv4Config>,
    /// MTU of the LOCAL port; by default the smallest of the other ports.
    pub local_mtu: Option<u32>,
    /// VLANs of the LOCAL port.
    pub local_vlans: Vlans,
    /// Rules for the frames that the LOCAL port receives ([`Interface::ingress_filter`]).
    pub local_ingress_filter: Option<String>,
    /// Limits of the LOCAL port.
    pub local_policing: Policing,
    /// Datapath id; by default made from the bridge's Ethernet address.
    pub datapath_id: Option<u64>,
    /// Ethernet address of the bridge and its LOCAL port; by default the lowest of its network cards.
    pub hwaddr: Option<ports::Mac>,
    /// What tells the bridge from those of its name that other switches have, where its address is made up: the identity of the
    /// database. Empty for a file.
    #[serde(skip)]
    pub origin: String,
    /// What to do while no controller is connected.
    pub fail_mode: FailMode,
    /// After how long without a packet a learnt address is forgotten (`mac-aging-time`).
    pub mac_aging_time: Duration,
    /// Most learnt addresses (`mac-table-size`).
    pub mac_table_size: u32,
    /// VLANs in which no address is learnt, and every packet is flooded (`flood_vlans`).
    pub flood_vlans: BTreeSet<u16>,
    /// Multicast snooping, where it is enabled (`mcast_snooping_enable`, `mcast-snooping-*`).
    #[serde(serialize_with = "multicast")]
    pub mcast_snooping: Option<mcast::Settings>,
    /// What the LOCAL port gets of multicast ([`Interface::mcast_snooping`]).
    #[serde(serialize_with = "multicast_of_port")]
    pub local_mcast_snooping: mcast::PortSettings,
    /// Versions of OpenFlow that controllers and clients may speak (`protocols`).
    #[serde(serialize_with = "version_names")]
    pub protocols: Versions,
    /// Controllers are reached through the bridge itself, whatever its flows say (not `disable-in-band`).
    pub in_band: bool,
    /// The queue for what is sent to them and comes from them (`in-band-queue`).
    pub in_band_queue: Option<u32>,
    /// What controllers are told that it is (`dp-desc`); by default its name.
    pub description: Option<String>,
    /// The serial number that they are told (`dp-sn`).
    pub serial: Option<String>,
    /// OpenFlow tables with limits, policies and names of their own (`flow_tables`).
    #[serde(skip)]
    pub tables: BTreeMap<TableId, TableSettings>,
    /// NORMAL forwards frames to the addresses that bridges keep for themselves (`forward-bpdu`).
    pub forward_bpdu: bool,
    /// What its ports say of it by LLDP (`auto_attach`).
    pub auto_attach: AutoAttach,
    /// What keeps loops from forwarding (`stp_enable`, `rstp_enable`).
    pub spanning_tree: SpanningTree,
    /// Copies of packets (`mirrors`).
    pub mirrors: Vec<ofproto::Mirror>,
    /// Samples and flow records for collectors (`sflow`, `netflow`, `ipfix`).
    #[serde(skip)]
    pub export: BridgeExport,
}

fn multicast<S: serde::Serializer>(settings: &Option<mcast::Settings>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(settings.iter().flat_map(|settings| {
        [
            ("mcast-snooping-aging-time", settings.ageing_time.as_secs()),
            ("mcast-snooping-table-size", settings.table_size as u64),
            ("mcast-snooping-disable-flood-unregistered", u64::from(!settings.flood_unregistered)),
        ]
    }))
}

fn multicast_of_port<S: serde::Serializer>(settings: &mcast::PortSettings, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map([
        ("mcast-snooping-flood", settings.flood),
        ("mcast-snooping-flood-reports", settings.flood_reports),
    ])
}

fn version_names<S: serde::Serializer>(versions: &Versions, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(versions.iter().map(Version::name))
}

impl Default for BridgeSettings {
    fn default() -> BridgeSettings {
        BridgeSettings {
            local: true,
            local_kind: LocalKind::Tap,
            local_options: BTreeMap::new(),
            local_ipv4: None,
            local_mtu: None,
            local_vlans: Vlans::default(),
            local_ingress_filter: None,
            local_policing: Policing::default(),
            datapath_id: None,
            hwaddr: None,
            origin: String::new(),
            fail_mode: FailMode::Standalone,
            mac_aging_time: Duration::from_secs(300),
            mac_table_size: 8192,
            flood_vlans: BTreeSet::new(),
            mcast_snooping: None,
            local_mcast_snooping: mcast::PortSettings::default(),
            protocols: Versions::ALL,
            in_band: true,
            in_band_queue: None,
            description: None,
            serial: None,
            tables: BTreeMap::new(),
            forward_bpdu: false,
            auto_attach: AutoAttach::default(),
            spanning_tree: SpanningTree::default(),
            mirrors: Vec::new(),
            export: BridgeExport::default(),
        }
    }
}

/// What the ports of a bridge say of it by LLDP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AutoAttach {
    /// Its name in the network (`system_name`).
    pub system_name: String,
    /// What it is (`system_description`); Weir's name and version where empty.
    pub system_description: String,
    /// VLAN by I-SID (`mappings`).
    pub mappings: BTreeMap<u32, u16>,
}

/// What keeps the loops of a bridge from forwarding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpanningTree {
    /// The protocol.
    #[serde(serialize_with = "tree_protocol_name")]
    pub protocol: TreeProtocol,
    /// The options of the bridge that begin with `stp-` or `rstp-`.
    pub options: BTreeMap<String, String>,
}

/// The protocols, by name.
pub const TREE_PROTOCOLS: [(&str, TreeProtocol); 3] =
    [("off", TreeProtocol::Off), ("stp", TreeProtocol::Stp), ("rstp", TreeProtocol::Rstp)];

fn tree_protocol_name<S: serde::Serializer>(protocol: &TreeProtocol, serializer: S) -> Result<S::Ok, S::Error> {
    let name = TREE_PROTOCOLS.iter().find(|(_, p)| p == protocol).map_or("", |(name, _)| name);
    serializer.serialize_str(name)
}

/// What the LOCAL port of a bridge is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LocalKind {
    /// A TAP device.
    #[default]
    Tap,
    /// A dummy port, for tests.
    DummyInternal,
}

impl LocalKind {
    /// The kind of port that the registry opens.
    pub const fn name(self) -> &'static str {
        match self {
            LocalKind::Tap => "tap",
            LocalKind::DummyInternal => "dummy-internal",
        }
    }
}

/// What a bridge does while no controller is connected (`fail_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FailMode {
    /// It is a learning switch.
    Standalone,
    /// It does what its flows say, and nothing else.
    Secure,
}

/// How often drivers are asked for links, where nothing else is said.
pub const MII_INTERVAL: Duration = Duration::from_millis(200);

/// A port of a bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Which VLANs it carries, and how.
    pub vlans: Vlans,
    /// The address that counts as its own where the bridge takes that of a port (`mac`); by default that of its first interface.
    pub mac: Option<ports::Mac>,
    /// The devices behind it by name: one, or those of a bond.
    pub interfaces: BTreeMap<String, Interface>,
    /// How they share its traffic, where there are several: it is a bond then (`bond_mode`, ...).
    pub bond: Option<BondSettings>,
    /// How often the drivers of a bond's interfaces are asked whether there is a link, where they are (`bond-detect-mode`).
    pub mii_interval: Option<Duration>,
    /// The address of the member that was active when the source was read, which is preferred after a restart.
    #[serde(skip)]
    pub last_active: LastActive,
    /// How LACP is spoken by its interfaces.
    pub lacp: Lacp,
    /// Its part in the spanning tree: its options that begin with `stp-` or `rstp-`.
    pub spanning_tree: BTreeMap<String, String>,
}

/// How LACP is spoken by the interfaces of a port, as the database has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lacp {
    /// `active` or `passive` (`lacp`).
    pub mode: Option<String>,
    /// The options of the port that begin with `lacp-`.
    pub options: BTreeMap<String, String>,
}

impl Lacp {
    /// Whether it is spoken at all.
    pub fn is_on(&self) -> bool {
        self.mode.as_deref().is_some_and(|mode| mode != "off")
    }
}

/// Why a program has no name alone.
pub const NO_PROGRAM: &str = "ingress-ebpf-program names a program of the file in ingress-ebpf, which is not set";

/// Why a patch port cannot have a filter.
pub const NO_FRAMES: &str =
    "a patch port receives no frames of its own; set the filter on the port that they come from";

/// Why patch ports and tunnels have no QoS.
pub const NO_QOS: &str =
    "patch ports and tunnels send nothing by themselves; set the QoS on the port by which their packets leave";

impl Interface {
    /// Whether it is a device of its own: no patch port, and no tunnel.
    pub fn is_device(&self) -> bool {
        self.kind != "patch" && !ports::tunnel::KIND.names.contains(&self.kind.as_str())
    }
}

impl Port {
    /// A port of one interface, whose name it has.
    pub fn single(name: &str, interface: Interface, vlans: Vlans) -> Port {
        Port { vlans, interfaces: BTreeMap::from([(name.to_owned(), interface)]), ..Port::default() }
    }

    /// The names of its interfaces, without a [fake](Interface::fake) one.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.interfaces.iter().filter(|(_, interface)| !interface.fake).map(|(name, _)| &**name)
    }

    /// The same port with one of its interfaces alone.
    pub fn with_only(&self, name: &str) -> Port {
        let interface = self.interfaces.get_key_value(name).map(|(name, interface)| (name.clone(), interface.clone()));
        Port { interfaces: interface.into_iter().collect(), ..self.clone() }
    }

    /// What is more than VLANs and interfaces.
    pub fn logical(&self) -> (&Option<BondSettings>, Option<Duration>, &Lacp, &BTreeMap<String, String>) {
        (&self.bond, self.mii_interval, &self.lacp, &self.spanning_tree)
    }
}

/// What a source remembers of a bond's active member. It is not part of what is wanted: two of them are always equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastActive(pub Option<ports::Mac>);

impl PartialEq for LastActive {
    fn eq(&self, _: &LastActive) -> bool {
        true
    }
}

impl Eq for LastActive {}

/// What a source remembers of a port's number. It is not part of what is wanted: two of them are always equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastNumber(pub Option<u16>);

impl PartialEq for LastNumber {
    fn eq(&self, _: &LastNumber) -> bool {
        true
    }
}

impl Eq for LastNumber {}

/// A device behind a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Type, as the column `type` has it; empty is "system".
    pub kind: String,
    /// Options of the type.
    pub options: BTreeMap<String, String>,
    /// OpenFlow port number that is wanted.
    pub ofport_request: Option<u16>,
    /// The number that it had when the source was read, which it keeps over a restart if no other port wants it.
    #[serde(skip)]
    pub last_ofport: LastNumber,
    /// MTU that is wanted.
    pub mtu_request: Option<u32>,
    /// Ethernet address that is wanted.
    pub mac: Option<ports::Mac>,
    /// Cores whose workers are to poll receive queues, by queue (`pmd-rxq-affinity`).
    pub rx_affinity: BTreeMap<usize, usize>,
    /// Packets are spread over the transmit queues by their hash (`tx-steering`).
    pub steers_by_hash: bool,
    /// What takes the place of the DSCP of IP packets that are sent to a queue, by queue.
    pub queue_dscp: BTreeMap<u32, u8>,
    /// What it gets of multicast whoever is a member (`mcast-snooping-flood*` of its port).
    #[serde(serialize_with = "multicast_of_port")]
    pub mcast_snooping: mcast::PortSettings,
    /// What it may receive and be sent in a second.
    pub policing: Policing,
    /// Which queues share what it is sent, and how fast (`qos` of its port), where the port itself sees to that.
    #[serde(serialize_with = "qos_fields")]
    pub qos: Option<Qos>,
    /// Rules for the frames that it receives (`ingress-filter`); see docs/ingress.md.
    pub ingress_filter: Option<String>,
    /// The port drops by itself what it can of it (`ingress-offload`).
    pub ingress_offload: bool,
    /// The XDP program for the frames that the rules let pass (`ingress-ebpf`, `ingress-ebpf-program`).
    pub ingress_program: Option<IngressProgram>,
    /// Its options that begin with `lacp-`.
    pub lacp: BTreeMap<String, String>,
    /// The options of BFD on it (`bfd`).
    pub bfd: BTreeMap<String, String>,
    /// Its maintenance point.
    pub cfm: Cfm,
    /// LLDP is spoken by it (`lldp:enable`).
    pub lldp: bool,
    /// It is no member of its bond, but a device of the bond's name for programs that look for one (`bond_fake_iface`).
    pub fake: bool,
}

fn qos_fields<S: serde::Serializer>(qos: &Option<Qos>, serializer: S) -> Result<S::Ok, S::Error> {
    qos.as_ref().map(|qos| (qos.kind.name, &qos.settings, &qos.queues)).serialize(serializer)
}

/// A maintenance point of CFM, as the database has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cfm {
    /// Its identifier (`cfm_mpid`); `None`: there is no maintenance point.
    pub mpid: Option<i64>,
    /// The options of the interface that begin with `cfm_`.
    pub options: BTreeMap<String, String>,
}

/// An XDP program of an ingress filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IngressProgram {
    /// The object file.
    pub path: String,
    /// Its function, or its section; `None`: the only one.
    pub name: Option<String>,
}

impl Interface {
    /// The interface called `name`, as the port registry takes it.
    pub fn port_spec(&self, name: &str) -> ports::registry::PortSpec {
        ports::registry::PortSpec {
            name: name.to_owned(),
            kind: self.kind.clone(),
            options: self.options.clone(),
            mtu: self.mtu_request,
            mac: self.mac,
        }
    }
}

/// Which VLANs a port carries, and how (`vlan_mode`, `tag`, `trunks`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vlans {
    /// Mode; by default access with a tag, and trunk without one.
    pub mode: Option<VlanMode>,
    /// The VLAN of untagged packets.
    pub tag: Option<u16>,
    /// The VLANs of tagged packets; empty is all.
    pub trunks: BTreeSet<u16>,
    /// The customers' VLANs that a dot1q-tunnel accepts; empty is all (`cvlans`).
    pub cvlans: BTreeSet<u16>,
    /// The outer tag of a dot1q-tunnel is of 802.1Q, not of 802.1ad (`qinq-ethtype`).
    pub qinq_is_8021q: bool,
    /// When tags without a VLAN id are sent (`priority-tags`).
    pub priority_tags: PriorityTags,
    /// Nothing is sent from one protected port to another (`protected`).
    pub protected: bool,
}

/// When a port sends tags that have a priority but no VLAN id (`other_config:priority-tags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityTags {
    /// Never.
    #[default]
    Never,
    /// When the priority is not zero.
    IfNonzero,
    /// Whenever the packet had a tag.
    Always,
}

impl Vlans {
    /// The mode in force.
    pub fn effective_mode(&self) -> VlanMode {
        self.mode.unwrap_or(if self.tag.is_some() { VlanMode::Access } else { VlanMode::Trunk })
    }
}

/// How a port treats VLANs (`vlan_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VlanMode {
    /// One VLAN, without tags.
    Access,
    /// Several VLANs, with tags.
    Trunk,
    /// As a trunk; packets of the native VLAN leave with a tag.
    NativeTagged,
    /// As a trunk; packets of the native VLAN leave without a tag.
    NativeUntagged,
    /// Carries customers' tagged packets within a service VLAN.
    Dot1qTunnel,
}

impl VlanMode {
    /// Every mode with its name.
    pub const NAMES: [(&'static str, VlanMode); 5] = [
        ("access", VlanMode::Access),
        ("trunk", VlanMode::Trunk),
        ("native-tagged", VlanMode::NativeTagged),
        ("native-untagged", VlanMode::NativeUntagged),
        ("dot1q-tunnel", VlanMode::Dot1qTunnel),
    ];
}

/// How to speak with a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Controller {
    /// What it is for the bridge (`type`).
    pub kind: ControllerKind,
    /// The longest pause between two attempts to connect (`max_backoff`).
    pub max_backoff: Duration,
    /// A peer that has been silent for this long is sent an echo request (`inactivity_probe`); zero: never.
    pub inactivity_probe: Duration,
    /// Most packets that it is sent for each second (`controller_rate_limit`); `None`: as many as it takes.
    pub rate_limit: Option<u32>,
    /// Most that it is sent at once after a pause (`controller_burst_limit`); by default a quarter of the rate.
    pub burst_limit: Option<u32>,
    /// How many packets of each kind wait for it at most (`controller_queue_size`).
    pub queue_size: u16,
    /// It is reached through the bridge itself, whatever the flows say (`connection_mode`).
    pub in_band: bool,
    /// It gets messages that it has not asked for before it says which it wants (`enable_async_messages`).
    pub async_messages: bool,
    /// DSCP of what it is sent (`dscp`).
    pub dscp: u8,
}

/// What a controller is for its bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerKind {
    /// It says how the bridge forwards: without it the bridge does what `fail_mode` says.
    #[default]
    Primary,
    /// It looks at the bridge and changes it now and then, as `ovs-ofctl` does, and gets no messages that it has not asked for.
    Service,
}

impl ControllerKind {
    /// The names, as they are written in configurations.
    pub const NAMES: [(&str, ControllerKind); 2] =
        [("primary", ControllerKind::Primary), ("service", ControllerKind::Service)];

    /// Which of the two a controller is where the configuration does not say: one that connects to the switch is a service.
    pub fn of(target: &Target) -> ControllerKind {
        if target.is_passive() { ControllerKind::Service } else { ControllerKind::Primary }
    }
}

/// The DSCP of what controllers are sent, where nothing else is said: that of network control (CS6).
pub const CONTROLLER_DSCP: u8 = 48;

impl Controller {
    /// The limit of the packets that it is sent.
    pub fn packet_in_limit(&self) -> Option<PacketInLimit> {
        let rate = self.rate_limit?;
        Some(PacketInLimit { rate, burst: self.burst_limit.unwrap_or(rate / 4) })
    }
}

impl Default for Controller {
    fn default() -> Controller {
        Controller {
            kind: ControllerKind::Primary,
            max_backoff: Duration::from_secs(8),
            inactivity_probe: Duration::from_secs(5),
            rate_limit: None,
            burst_limit: None,
            queue_size: PACKET_IN_QUEUE as u16,
            in_band: true,
            async_messages: true,
            dscp: CONTROLLER_DSCP,
        }
    }
}

/// A flow in the syntax of ovs-ofctl(8): `priority=10,in_port=1,actions=output:2`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct FlowText(pub String);

impl FlowText {
    /// All but the actions: two flows of one selector replace each other.
    pub fn selector(&self) -> &str {
        let text = self.0.as_str();
        text.find("actions=").map_or(text, |at| text[..at].trim_end_matches([',', ' ', '\t']))
    }
}

impl std::fmt::Display for FlowText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses an Ethernet address: six octets of two hexadecimal digits with colons between them.
pub fn parse_mac(text: &str) -> Option<ports::Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut mac {
        let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *octet = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// The text of an Ethernet address.
pub fn format_mac(mac: &ports::Mac) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_is_what_stands_before_the_actions() {
        let selector = |s: &str| FlowText(s.into()).selector().to_string();
        assert_eq!(selector("priority=1,ip,actions=drop"), "priority=1,ip");
        assert_eq!(selector("priority=1, ip actions=output:1"), "priority=1, ip");
        assert_eq!(selector("actions=NORMAL"), "");
    }

    #[test]
    fn mac_round_trip() {
        let mac = parse_mac("0a:1B:00:ff:7e:01").unwrap();
        assert_eq!(format_mac(&mac), "0a:1b:00:ff:7e:01");
        for bad in
            ["", "0a:1b:00:ff:7e", "0a:1b:00:ff:7e:01:02", "0a:1b:00:ff:7e:+1", "0a1b00ff7e01", "é:00:00:00:00:0"]
        {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
    }
}
