//! What translation reads: the tables, ports and settings of all bridges.
//!
//! It lies behind one lock ([`Switch`](crate::Switch) has it): a translation holds it shared from start
//! to end, so that it sees one state even where it crosses a patch port, and a change holds it alone.
//! The MAC tables and the multicast groups have locks of their own, because packets change them. What depends on them is found by
//! address (`slowpath::mac_dependents`), without generations.
//!
//! Generations: every change takes the next number of [`Forwarding::generation`] and stores it with what
//! was changed. A translation keeps the number that it began with. Its result is out of date when
//! something that it depends on has a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datapath::PortNo;
use datapath::meter::MeterNumbers;
use hashbrown::HashMap;
use openflow::{Cookie, FragHandling, GroupId, OfPort, PortConfig, PortDesc, TableId};
use packet::Time;
use parking_lot::Mutex;
use protocols::mcast;
use tunnel::fields::FieldTable;
use tunnel::matching::PacketType;

pub(crate) use crate::model::shared::{BridgeId, PatchCounters};

use crate::events::SubscriptionId;
use crate::model::bond::{Bond, BondVersion, LacpConfig, MemberInfo};
use crate::model::config::{BridgeConfig, Controllers};
use crate::model::flow_changes::FlowWatcher;
use crate::model::group::Group;
use crate::model::hidden::{HiddenFlows, InBand};
use crate::model::mac::{MacLearning, MacUse};
use crate::model::meter::Meter;
use crate::model::mirror::{MAX_MIRRORS, Mirror, MirrorOutput, MirrorSet, MirrorState};
use crate::model::multicast::MulticastSnooping;
use crate::model::number_changes::NumberChanges;
use crate::model::path_check::PathChecks;
use crate::model::port::{self, Device};
use crate::model::port_numbers::PortNumbers;
use crate::model::sampling::Sampling;
use crate::model::spanning_tree::PortTree;
use crate::model::tunnels::Tunnels;
use crate::model::underlay::Underlay;
use crate::model::users::Users;
use crate::model::vlan::PortVlan;
use crate::table::{InstructionSet, Table};

/// Tables that exist.
pub(crate) const TABLES: usize = 255;

/// The state of all bridges.
#[derive(Default)]
pub(crate) struct Forwarding {
    pub bridges: BTreeMap<BridgeId, BridgeState>,
    /// Which port of which bridge a datapath port is.
    pub by_dp_port: HashMap<PortNo, (BridgeId, OfPort)>,
    /// Which port of which bridge has a name.
    pub by_name: HashMap<String, (BridgeId, OfPort)>,
    /// Tunnel ports.
    pub tunnels: Tunnels,
    /// The network below them.
    pub underlay: Arc<Underlay>,
    /// Generation of the last change of routes or neighbours on which flows depend.
    pub hops_changed: u64,
    /// Generation of the last change of bonds on which flows depend.
    pub bonds_changed: u64,
    /// What is sent to a tunnel port goes to its carrier as it is, with the metadata of the tunnel (`ofproto/tnl-push-pop off`).
    pub without_push_pop: bool,
    /// The numbers of the meters of all bridges.
    pub meter_numbers: Arc<MeterNumbers>,
    /// Packets that get labels before all of their headers are translated one by one: an operator may say so.
    pub without_add_mpls: bool,
    /// Packets whose length is asked for are translated one by one: an operator may say so.
    pub without_check_length: bool,
    /// The number of the timeout policy of each zone that has one, for new connections.
    pub ct_policies: std::collections::HashMap<u16, u16>,
    /// Generation of the last change of ports or settings.
    pub changed: u64,
    /// Generation of the last of these on which all flows may depend.
    pub all_changed: u64,
    /// Generation of the last of these but for [`touch_number`](Forwarding::touch_number).
    pub configured: u64,
    /// Generation of the last change that a datapath flow may depend on, MAC tables apart. Written with the lock held
    /// alone, read without it.
    pub affecting: Arc<AtomicU64>,
    /// Addresses that statistics say are in use, until the tables are told.
    pub mac_uses: Mutex<Vec<(BridgeId, MacUse)>>,
    generation: AtomicU64,
}

impl Forwarding {
    /// The number of the latest change.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// A number for a change that is about to be made.
    pub fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records a change of settings, or of ports, on which all flows may depend.
    pub fn touch(&mut self) {
        self.changed = self.next_generation();
        (self.all_changed, self.configured) = (self.changed, self.changed);
        self.note_affecting(self.changed);
    }

    /// Records a change of a port: after it, and before it as well where the port is not there any more, or may have been of another
    /// kind. Flows depend on it that have looked at its number, or at all ports of the bridge; where a translation may come to
    /// it otherwise, all.
    pub fn touch_port(&mut self, id: BridgeId, port: OfPort) {
        let generation = self.next_generation();
        let Some(bridge) = self.bridges.get(&id) else { return };
        let found_otherwise = bridge.ports.get(&port).is_some_and(|state| bridge.is_found_otherwise(state));
        match port.to_u16().filter(|_| !found_otherwise) {
            None => self.touch(),
            Some(number) => {
                self.note_port(id, number, generation);
                self.configured = generation;
            }
        }
    }

    /// Records that a port has become live, or has ceased to be, or has another state in a spanning tree. Whatever the port is, flows ask
    /// for that by its number: of a member of a bond, they ask the bond.
    pub fn touch_number(&mut self, id: BridgeId, port: OfPort) {
        let generation = self.next_generation();
        if let Some(number) = port.to_u16() {
            self.note_port(id, number, generation);
        }
    }

    fn note_port(&mut self, id: BridgeId, number: u16, generation: u64) {
        let Some(bridge) = self.bridges.get_mut(&id) else { return };
        bridge.port_changes.note(number, generation);
        self.changed = generation;
        self.note_affecting(generation);
    }

    /// Records that datapath flows may depend on a change of tables or groups.
    pub fn note_affecting(&mut self, generation: u64) {
        self.affecting.store(generation, Ordering::SeqCst);
    }

    /// Records that routes or neighbours have changed on which flows depend.
    pub fn touch_hops(&mut self) {
        self.hops_changed = self.next_generation();
        self.note_affecting(self.hops_changed);
    }

    /// Records that bonds have changed on which flows depend.
    pub fn touch_bonds(&mut self, bonds: &[Arc<BondVersion>]) {
        self.bonds_changed = self.next_generation();
        bonds.iter().for_each(|version| version.set(self.bonds_changed));
        self.note_affecting(self.bonds_changed);
    }

    /// The other end of a patch port.
    pub fn peer(&self, name: &str, peer: &str) -> Option<(&BridgeState, &PortState)> {
        let (bridge, port) = self.by_name.get(peer)?;
        let bridge = self.bridges.get(bridge)?;
        let state = bridge.ports.get(port)?;
        // Both ends have to agree.
        matches!(&state.device, Device::Patch { peer, .. } if peer == name).then_some((bridge, state))
    }
}

/// The state of a bridge.
pub(crate) struct BridgeState {
    pub id: BridgeId,
    pub config: BridgeConfig,
    pub controllers: Controllers,
    pub frag: FragHandling,
    pub tables: Vec<Table>,
    /// The tables whose vacancy is told.
    pub watched_tables: BTreeSet<TableId>,
    pub ports: BTreeMap<OfPort, PortState>,
    /// Ports may have a state in a spanning tree.
    pub has_tree_states: bool,
    pub port_numbers: PortNumbers,
    /// The latest changes of ports that translations find by their numbers, all of them by those of OpenFlow 1.0.
    pub port_changes: NumberChanges<u16>,
    /// Bonds by the names of their ports.
    pub bonds: BTreeMap<String, Bond>,
    /// How LACP is spoken by ports, by their names.
    pub lacp: BTreeMap<String, LacpConfig>,
    pub macs: MacLearning,
    pub multicast: MulticastSnooping,
    pub groups: BTreeMap<GroupId, Arc<Group>>,
    /// The latest changes of groups.
    pub group_changes: NumberChanges<u32>,
    /// Held by the records of the flows that depend on the groups.
    pub group_dependents: Arc<()>,
    pub meters: BTreeMap<u32, Meter>,
    /// The numbers of all bridges' meters in the datapath.
    pub meter_numbers: Arc<MeterNumbers>,
    /// Who uses the groups and meters.
    pub users: Users,
    /// How many `learn(delete_learned)` actions there are for each kind of flow that they learn.
    pub learners: HashMap<Learned, u32>,
    /// Kinds of flows whose last such action was removed, in the present transaction or before: some of them may be left.
    pub orphaned: Vec<Learned>,
    /// What the rules do.
    pub instructions: InstructionSet,
    pub mirrors: Vec<MirrorState>,
    /// What is sampled for collectors.
    pub sampling: Sampling,
    /// What the tun_metadata fields stand for.
    pub tlv: Arc<FieldTable>,
    /// What is to be reached through the bridge itself.
    pub in_band: InBand,
    /// Flows above those of table 0.
    pub hidden: HiddenFlows,
    /// Who is told of changes of flows.
    pub watchers: Vec<(SubscriptionId, Arc<dyn FlowWatcher>)>,
}

impl BridgeState {
    pub fn new(id: BridgeId, config: BridgeConfig, meter_numbers: Arc<MeterNumbers>) -> BridgeState {
        let mut bridge = BridgeState {
            id,
            mirrors: Vec::new(),
            sampling: Sampling::default(),
            macs: MacLearning::new(config.mac),
            multicast: MulticastSnooping::new(config.mcast_snooping),
            controllers: Controllers::default(),
            frag: FragHandling::Normal,
            tables: (0..TABLES).map(|_| Table::default()).collect(),
            watched_tables: BTreeSet::new(),
            ports: BTreeMap::new(),
            has_tree_states: false,
            port_numbers: PortNumbers::default(),
            bonds: BTreeMap::new(),
            lacp: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_changes: NumberChanges::default(),
            port_changes: NumberChanges::default(),
            group_dependents: Arc::default(),
            meters: BTreeMap::new(),
            meter_numbers,
            users: Users::default(),
            learners: HashMap::new(),
            orphaned: Vec::new(),
            in_band: InBand::default(),
            hidden: HiddenFlows::default(),
            instructions: InstructionSet::default(),
            watchers: Vec::new(),
            tlv: Arc::default(),
            config,
        };
        bridge.configure_tables();
        bridge.set_mirrors();
        bridge
    }

    /// Replaces the group with this number, or removes it. Returns the old one.
    pub fn set_group(&mut self, id: GroupId, group: Option<Arc<Group>>) -> Option<Arc<Group>> {
        if let Some(group) = &group {
            self.users.add_group(group);
        }
        let old = match group {
            Some(group) => self.groups.insert(id, group),
            None => self.groups.remove(&id),
        };
        if let Some(old) = &old {
            self.users.remove_group(old);
        }
        old
    }

    /// Every port, the bridge's own first: it was there first.
    pub fn ports_local_first(&self) -> impl Iterator<Item = &PortState> {
        let local = self.ports.get(&OfPort::LOCAL);
        local.into_iter().chain(self.ports.values().filter(|port| port.port != OfPort::LOCAL))
    }

    /// As [`ports_local_first`](BridgeState::ports_local_first), but of each bond one member, and none that is [unbundled](PortSpec::unbundled).
    pub fn logical_ports(&self) -> impl Iterator<Item = &PortState> {
        let stands_for = |port: &&PortState| self.bond_of(port).is_none_or(|bond| bond.first() == Some(port.port));
        self.ports_local_first().filter(|port| !port.is_unbundled()).filter(stands_for)
    }

    /// The bond that a port is a member of.
    pub fn bond_of(&self, port: &PortState) -> Option<&Bond> {
        self.bonds.get(&port.logical)
    }

    /// The port that stands for the logical one that a port belongs to: where it is a member of a bond, one of the members.
    pub fn logical(&self, port: OfPort) -> OfPort {
        let bond = self.ports.get(&port).and_then(|port| self.bond_of(port));
        bond.and_then(Bond::first).unwrap_or(port)
    }

    /// Whether floods go to a logical port.
    pub fn floods(&self, port: &PortState) -> bool {
        let floods = |port: &PortState| !port.config.contains(PortConfig::NO_FLOOD);
        match self.bond_of(port) {
            None => floods(port),
            Some(bond) => bond.members().all(|(member, _)| self.ports.get(&member).is_none_or(floods)),
        }
    }

    /// Whether LACP is spoken by a port.
    pub fn speaks_lacp(&self, port: &PortState) -> bool {
        self.lacp.contains_key(&port.logical)
    }

    /// The bridge's own address: that of its LOCAL port, or the one that its datapath id begins with.
    pub fn mac(&self) -> ports::Mac {
        let [_, _, of_id @ ..] = self.config.datapath_id.to_be_bytes();
        self.ports.get(&OfPort::LOCAL).map_or(of_id, |local| local.device.mac())
    }

    /// Puts the settings of multicast snooping into force, those of the ports, too.
    pub fn configure_multicast(&self) {
        let ports = self.ports.values().map(|state| (state.port.0, state.mcast_snooping));
        self.multicast.configure(self.config.mcast_snooping, ports);
    }

    /// Tells bonds of their members and these of their carriers.
    pub fn tell_bonds(&mut self) {
        if self.bonds.is_empty() {
            return;
        }
        for state in self.ports.values() {
            if let Some(bond) = self.bonds.get_mut(&state.logical) {
                let (name, mac) = (state.name.clone(), state.device.mac());
                let (carrier, path_up) = (state.has_carrier(), !state.path_checks.down);
                bond.set_member(state.port, MemberInfo { name, mac, dp_port: state.dp_port, carrier, path_up });
            }
        }
    }
}

/// What a `learn(delete_learned)` makes: flows with this cookie in this table.
pub(crate) type Learned = (TableId, Cookie);

impl BridgeState {
    /// Whether a datapath flow may depend on the groups.
    pub fn groups_have_dependents(&self) -> bool {
        Arc::strong_count(&self.group_dependents) > 1
    }

    /// Puts the mirrors of the configuration into force. One that keeps its name keeps its counters.
    pub fn set_mirrors(&mut self) {
        let old = std::mem::take(&mut self.mirrors);
        let counters = |name: &str| old.iter().find(|old| old.mirror.name == name).map(|old| old.counters.clone());
        let new = self.config.mirrors.iter().take(MAX_MIRRORS);
        self.mirrors = new
            .map(|mirror| MirrorState { mirror: mirror.clone(), counters: counters(&mirror.name).unwrap_or_default() })
            .collect();
    }

    fn mirrors_where(&self, accepts: impl Fn(&Mirror) -> bool) -> MirrorSet {
        let mirrors = self.mirrors.iter().enumerate();
        mirrors.filter(|(_, state)| accepts(&state.mirror)).fold(0, |set, (n, _)| set | 1 << n)
    }

    /// The mirrors of packets that came in at `port`.
    pub fn mirrors_from(&self, port: &PortState) -> MirrorSet {
        self.mirrors_where(|mirror| !port.is_unbundled() && mirror.sources.has(&port.logical))
    }

    /// The mirrors of packets that are sent to `port`.
    pub fn mirrors_to(&self, port: &PortState) -> MirrorSet {
        self.mirrors_where(|mirror| !port.is_unbundled() && mirror.destinations.has(&port.logical))
    }

    /// The mirrors that send to the same place as this one.
    pub fn same_mirrors(&self, mirror: &Mirror) -> MirrorSet {
        self.mirrors_where(|other| other.output == mirror.output)
    }

    /// Whether translations may find a port by something else than its number: by its name, as the other end of a patch, the
    /// place of a mirror's copies and the device below a tunnel, as a member of a bond, or because it is LOCAL or a tunnel.
    pub fn is_found_otherwise(&self, port: &PortState) -> bool {
        port.port == OfPort::LOCAL
            || !matches!(port.device, Device::Datapath(_))
            || self.bond_of(port).is_some()
            || self.speaks_lacp(port)
            || self.is_mirror_port(port)
    }

    /// Whether the port is there for copies only.
    pub fn is_mirror_port(&self, port: &PortState) -> bool {
        self.mirrors
            .iter()
            .any(|state| matches!(&state.mirror.output, MirrorOutput::Port(name) if *name == port.logical))
    }
}

/// The state of a port.
pub(crate) struct PortState {
    pub port: OfPort,
    pub name: String,
    /// Name of the port of the configuration; that of the interface, unless it is another one's. Empty: it is [unbundled](PortSpec::unbundled).
    pub logical: String,
    pub device: Device,
    /// `None` for a patch port and a tunnel port, and while another device replaces one that has gone.
    pub dp_port: Option<PortNo>,
    pub config: PortConfig,
    pub vlan: PortVlan,
    /// What of LACP is configured for the interface.
    pub lacp: BTreeMap<String, String>,
    /// LACP is spoken by the port, and does not let it carry traffic.
    pub lacp_down: bool,
    /// How the path behind it is checked, and whether it is up.
    pub path_checks: PathChecks,
    /// LLDP is spoken by it.
    pub lldp: bool,
    /// Its part in the spanning tree of its bridge, and its state there.
    pub spanning_tree: PortTree,
    /// What it gets of multicast whoever is a member.
    pub mcast_snooping: mcast::PortSettings,
    /// What takes the place of the DSCP of packets that are sent to a queue, by queue.
    pub queue_dscp: BTreeMap<u32, u8>,
    pub created: Time,
    /// Its device was closed while the administrator had disabled it: so is the next one.
    pub was_disabled: bool,
    /// What controllers were told last.
    pub told: Option<Box<PortDesc>>,
    /// Counters of a patch port or a tunnel port; other ports have their device's.
    pub patch: Arc<PatchCounters>,
}

impl PortState {
    /// Whether it is no port of the configuration ([`PortSpec::unbundled`]).
    pub fn is_unbundled(&self) -> bool {
        self.logical.is_empty()
    }

    /// Whether packets without Ethernet can be sent here.
    pub fn takes_bare(&self) -> bool {
        match &self.device {
            Device::Patch { .. } => true,
            Device::Tunnel(tunnel) => tunnel.config.packet_type != PacketType::LegacyL2,
            Device::Datapath(_) => false,
        }
    }

    /// The OpenFlow description.
    pub fn describe(&self) -> PortDesc {
        let is_up = !self.path_checks.down && !self.lacp_down;
        let mut desc = port::describe(self.port, &self.name, self.config, &self.device, is_up);
        desc.state |= self.spanning_tree.openflow_bits();
        desc
    }

    /// Whether what is sent here can arrive: the port is enabled, has a carrier, no path check has found its path down, and LACP, where it
    /// is spoken, lets the port carry traffic.
    pub fn is_live(&self) -> bool {
        self.has_carrier() && !self.path_checks.down && !self.lacp_down
    }

    /// Whether the port is enabled and has a carrier.
    pub fn has_carrier(&self) -> bool {
        match &self.device {
            Device::Patch { .. } => true,
            Device::Tunnel(tunnel) => tunnel.is_enabled(),
            Device::Datapath(device) => {
                let link = device.link();
                link.up && link.admin_up
            }
        }
    }
}
