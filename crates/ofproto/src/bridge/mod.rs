//! A bridge: what controllers and the configuration can ask of it.
//!
//! | module | what it is |
//! |---|---|
//! | `bonds` | Bonds: made, changed, shown |
//! | `bundle` | Messages that take effect together |
//! | `check` | Whether instructions and actions can be carried out |
//! | `counters` | Counters of rules, for who compares them again and again |
//! | `piecewise` | Changes of many flows, groups or meters, in pieces |
//! | `flows` | Flow-mods, flow statistics, and the flows of `learn` |
//! | `groups` | Group-mods, group descriptions and statistics |
//! | `in_band` | What is reached through the bridge itself, and the flows for it |
//! | `meters` | Meter-mods, meter configurations and statistics |
//! | `multicast` | Multicast groups: configured, shown, forgotten |
//! | `lldp` | LLDP of ports: configured |
//! | `path_checks` | BFD and CFM of ports: configured, shown |
//! | `port` | Ports: added, removed, changed, described |
//! | `protocols` | What protocols say of a port, in short |
//! | `queues` | Queues of ports |
//! | `registry` | The bridges of a switch: added, removed, found |
//! | `spanning_tree` | Spanning trees: configured, shown |
//! | `tables` | Table-mods, table descriptions and statistics |
//! | `tlv` | What the tun_metadata fields stand for |
//! | `tunnels` | Tunnel ports: added, shown |
//! | `walk` | Walks over flows in pieces, for statistics and dumps |

pub(crate) mod bonds;
mod bundle;
pub(crate) mod check;
pub mod counters;
mod export;
pub(crate) mod flows;
mod groups;
mod in_band;
mod lldp;
pub(crate) mod meters;
mod multicast;
mod path_checks;
mod piecewise;
mod port;
mod protocols;
mod queues;
mod registry;
pub(crate) mod spanning_tree;
mod tables;
#[cfg(test)]
mod tests;
mod tlv;
pub(crate) mod tunnels;
mod walk;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use datapath::Datapath;
use openflow::stats::SwitchDesc;
use openflow::{Action, FragHandling, Match, OfError, OfPort, PacketIn, PacketOut, SwitchConfig};
use packet::flow::BlockId;
use packet::{Field, Key, Packet};

use crate::connection::budget::Charge;
use crate::connection::event_memory::EventMemory;
use crate::error::Error;
use crate::events::{ForwardedRequest, Subscriber, SubscriptionId, Waker};
use crate::model::config::{BridgeConfig, Controllers};
use crate::model::flow_changes::{FlowWatcher, Requester};
use crate::model::forwarding::{BridgeId, BridgeState, Forwarding};
use crate::model::mac::{MacEntry, MacKey, MacStats, MacTable};
use crate::model::mirror::MirrorCounters;
use crate::switch::{Decided, Switch};
use crate::xlate::frozen::{self, Frozen};
use crate::xlate::{Input, LookUp};

pub use bundle::Bundled;
pub(crate) use flows::Filter;
pub use piecewise::Piecewise;
pub use tables::TableCounts;
pub use walk::FlowWalk;

/// A handle to a bridge. Cheap to clone; a call on a bridge that has been removed does nothing and
/// answers as an empty bridge would, or with an error.
#[derive(Clone)]
pub struct Bridge {
    pub(crate) switch: Arc<Switch>,
    id: BridgeId,
    name: Arc<str>,
    /// Who asks for the changes that are made through this handle.
    requester: Option<Requester>,
}

impl Bridge {
    pub(crate) fn new(switch: Arc<Switch>, id: BridgeId, name: Arc<str>) -> Bridge {
        Bridge { switch, id, name, requester: None }
    }

    pub(crate) fn id(&self) -> BridgeId {
        self.id
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the bridge is still in the switch.
    pub fn exists(&self) -> bool {
        self.read(|_| ()).is_some()
    }

    /// Configuration in force; the default one where the bridge was removed.
    pub fn config(&self) -> BridgeConfig {
        self.read(|bridge| bridge.config.clone()).unwrap_or_else(|| BridgeConfig::new(&self.name, 0))
    }

    /// Changes the configuration, all but the name.
    pub fn set_config(&self, config: BridgeConfig) {
        let (name, now) = (self.name.to_string(), self.now());
        if self.read(|bridge| bridge.config.spanning_tree != config.spanning_tree) == Some(true) {
            spanning_tree::log_problems(&BridgeConfig { name: name.clone(), ..config.clone() });
        }
        let outcome = self.change(|bridge, _| {
            let old = std::mem::replace(&mut bridge.config, BridgeConfig { name, ..config });
            bridge.set_mirrors();
            bridge.guard_against_loops();
            // Every flow is looked at for a change of settings.
            drop(bridge.macs.change(|macs| {
                macs.set_settings(bridge.config.mac);
                // What statistics still tell of packets from before is not to be learnt either.
                if old.flood_vlans != bridge.config.flood_vlans {
                    macs.flush(now);
                }
            }));
            bridge.configure_multicast();
            bridge.update_hidden(now);
            let speakers = bridge.ports.values().filter(|state| state.lldp).map(|state| state.port);
            let changed = old.auto_attach != bridge.config.auto_attach;
            let told: Vec<OfPort> = speakers.filter(|_| changed).collect();
            let mirrored = bridge.ports.keys().copied().filter(|_| old.mirrors != bridge.config.mirrors);
            (
                old.fail_mode != bridge.config.fail_mode && !bridge.controllers.configured,
                told,
                mirrored.collect::<Vec<_>>(),
            )
        });
        let (flush, told, mirrored) = outcome.unwrap_or_default();
        mirrored.into_iter().for_each(|port| self.tell_whether_mirror_port(port));
        told.into_iter().for_each(|port| self.switch.follow_lldp(self.id, port));
        self.configure_tables();
        self.switch.notify_spanning_trees();
        if flush {
            self.flush_flows();
        }
    }

    /// What a peer is told of the switch, with what the configuration says of the bridge.
    pub(crate) fn describe(&self, default: &SwitchDesc) -> SwitchDesc {
        let (description, serial) =
            self.read(|bridge| (bridge.config.description.clone(), bridge.config.serial.clone())).unwrap_or_default();
        let datapath = description.unwrap_or_else(|| default.datapath.clone());
        let serial = serial.unwrap_or_else(|| default.serial.clone());
        SwitchDesc { datapath, serial, ..default.clone() }
    }

    /// What the connections to controllers mean at present.
    pub fn controllers(&self) -> Controllers {
        self.read(|bridge| bridge.controllers).unwrap_or_default()
    }

    /// Sets what the controllers' connections mean. When the first controller is configured or the last is removed, all
    /// flows are removed, and a standalone bridge without controllers gets its NORMAL flow.
    pub fn set_controllers(&self, controllers: Controllers) {
        if self.controllers() == controllers {
            return;
        }
        let now = self.now();
        let old = self.change(|bridge, _| {
            let old = std::mem::replace(&mut bridge.controllers, controllers);
            bridge.update_hidden(now);
            old
        });
        if old.is_some_and(|old| old.configured != controllers.configured) {
            self.flush_flows();
        }
    }

    /// Tells all subscribers but the one who sent it of a message that has changed groups or meters.
    pub(crate) fn forward_request(&self, sender: SubscriptionId, request: &ForwardedRequest) {
        let others = self.switch.subscribers_but(self.id, Some(sender));
        others.iter().for_each(|subscriber| subscriber.request_forward(request));
    }

    /// A bundle that a connection has not used for this long is discarded.
    pub(crate) fn bundle_idle(&self) -> Duration {
        self.switch.settings.lock().bundle_idle
    }

    /// Sends the bridge's events to `subscriber` from now on.
    pub fn subscribe(&self, subscriber: Arc<dyn Subscriber>) -> SubscriptionId {
        self.switch.subscribe(self.id, subscriber)
    }

    /// Says who asks for the changes that are made through this handle from now on.
    pub(crate) fn set_requester(&mut self, requester: Requester) {
        self.requester = Some(requester);
    }

    /// Has `watcher` told of all changes of flows from now on, where it is not yet.
    pub(crate) fn watch_flows(&self, id: SubscriptionId, watcher: Arc<dyn FlowWatcher>) {
        let mut forwarding = self.switch.forwarding.write();
        let Some(bridge) = forwarding.bridges.get_mut(&self.id) else { return };
        if bridge.watchers.iter().all(|(known, _)| *known != id) {
            bridge.watchers.push((id, watcher));
        }
    }

    /// Ends that.
    pub(crate) fn unwatch_flows(&self, id: SubscriptionId) {
        let mut forwarding = self.switch.forwarding.write();
        if let Some(bridge) = forwarding.bridges.get_mut(&self.id) {
            bridge.watchers.retain(|(watcher, _)| *watcher != id);
        }
    }

    /// Ends a subscription. Events that are on their way may still arrive.
    pub fn unsubscribe(&self, id: SubscriptionId) {
        self.switch.unsubscribe(id);
    }

    /// Sends a packet. Its data must be present: Weir buffers no packets.
    pub fn packet_out(&self, message: &PacketOut) -> Result<(), OfError> {
        let forwarding = self.switch.forwarding.read();
        let Some(mut decided) = self.decide(&forwarding, message)? else { return Ok(()) };
        self.switch.account(&forwarding, &mut decided);
        drop(forwarding);
        self.switch.carry_out(decided);
        Ok(())
    }

    /// Decides what becomes of the packet of a packet-out. `None` where the bridge has gone.
    fn decide(&self, forwarding: &Forwarding, message: &PacketOut) -> Result<Option<Decided>, OfError> {
        if message.buffer_id.is_some() && message.data.is_empty() {
            return Err(OfError::OFPBRC_BUFFER_UNKNOWN);
        }
        let in_port = message.in_port;
        if in_port.is_reserved() && !matches!(in_port, OfPort::LOCAL | OfPort::ANY | OfPort::CONTROLLER) {
            return Err(OfError::OFPBRC_BAD_PORT);
        }
        let Some(bridge) = forwarding.bridges.get(&self.id) else { return Ok(None) };
        check::check_actions(&message.actions, &check::Known::of(bridge))?;
        let (packet, mut key) = self.parsed(&message.data, &message.metadata);
        let mut metadata = message.metadata.clone();
        crate::model::tlv::place_known(&mut metadata, &bridge.tlv);
        add_metadata(&mut key, &metadata);
        key.common_mut().in_port = in_port.0.into();
        let input = Input { packet_out: Some(&message.actions), ..self.input(&key) };
        Ok(Some(self.switch.decide_sent(forwarding, packet, &input)))
    }

    /// The datapath that the bridge's packets pass.
    pub(crate) fn datapath(&self) -> Option<Arc<Datapath>> {
        self.switch.datapath.get().cloned()
    }

    /// Whether the workers are so far behind with the packets of controllers that these should send no more.
    pub fn has_packet_outs_enough(&self) -> bool {
        self.switch.datapath.get().is_some_and(|datapath| datapath.has_injected_enough())
    }

    /// Lets a packet's pipeline go on, which `controller(pause)` has stopped. The packet and its metadata
    /// are those of the message, the rest is as it was.
    pub fn resume(&self, message: &PacketIn) -> Result<(), OfError> {
        let frozen = self.switch.paused.find(&message.continuation).ok_or(OfError::NXR_STALE)?;
        if !self.switch.forwarding.read().bridges.contains_key(&frozen.bridge) {
            return Err(OfError::NXR_STALE);
        }
        let (packet, mut key) = self.parsed(&message.data, &message.metadata);
        let (metadata, tlv) = self.switch.place_in(frozen.bridge, &message.metadata)?;
        add_metadata(&mut key, &metadata);
        key.common_mut().pkt_mark = metadata.key.common().pkt_mark;
        if metadata.key.present().has(BlockId::Ct) {
            *key.block_mut(BlockId::Ct) = *metadata.key.block(BlockId::Ct);
        }
        key.common_mut().in_port = message.in_port().0.into();
        let frozen = Frozen { metadata: frozen::metadata(&key), tlv: Some(tlv), ..(*frozen).clone() };
        let input = Input { bridge: frozen.bridge, frozen: Some(&frozen), ..self.input(&key) };
        self.switch.execute(packet, &input);
        Ok(())
    }

    /// The packet that a controller sends, and its key. One without Ethernet gets a header that is made up.
    fn parsed(&self, data: &[u8], metadata: &Match) -> (Packet, Key) {
        let kind = metadata.exact(Field::PacketType).filter(|kind| kind >> 16 == 1).unwrap_or(0) as u32;
        let mut key = Key::new();
        key.common_mut().packet_type = kind.into();
        let packet = match kind {
            0 => Packet::from_slice(data),
            kind => Packet::from_slice(&[&datapath::made_up_header(kind as u16)[..], data].concat()),
        };
        packet::flow::extract(packet.data(), &mut key, self.switch.settings().vlan_limit);
        (packet, key)
    }

    /// A packet that a controller sends.
    fn input<'a>(&self, key: &'a Key) -> Input<'a> {
        let now = self.switch.clock.now();
        Input {
            key,
            bridge: self.id,
            frozen: None,
            packet_out: None,
            learning: None,
            now,
            bytes: None,
            look_up: LookUp::Classifier,
        }
    }

    /// Whether a packet-out may have these actions.
    pub fn check_packet_out(&self, actions: &[Action]) -> Result<(), OfError> {
        self.read(|bridge| check::check_actions(actions, &check::Known::of(bridge))).unwrap_or(Ok(()))
    }

    /// A connection's part of the memory that there is for bundles.
    pub(crate) fn bundle_memory(&self) -> Charge {
        self.switch.bundles.charge()
    }

    /// A connection's part of the flow monitors that there can be.
    pub(crate) fn flow_monitors(&self) -> Charge {
        self.switch.flow_monitors.charge()
    }

    /// What is kept of events and answers for all connections.
    pub(crate) fn event_memory(&self) -> Arc<EventMemory> {
        self.switch.events.clone()
    }

    /// Returns when all changes so far are in force. Not to be called from an upcall.
    pub fn barrier(&self) {
        self.switch.apply_changes(self.now());
    }

    /// The latest change that datapath flows may depend on, MAC tables apart.
    pub(crate) fn latest_change(&self) -> u64 {
        self.switch.affecting.load(Ordering::SeqCst)
    }

    /// Passes a barrier for the changes up to this one, or has `waker` called when it is passed, and returns false.
    pub(crate) fn begin_barrier(&self, changes: u64, waker: Option<Waker>) -> bool {
        let Some(waker) = waker.filter(|_| self.switch.has_revalidator()) else {
            self.barrier();
            return true;
        };
        if self.switch.wait_for_changes(changes, waker) {
            return false;
        }
        if let Some(datapath) = self.switch.datapath.get() {
            // Packets may be with a worker.
            datapath.barrier();
        }
        self.switch.send_removed(self.switch.in_force.load(Ordering::SeqCst));
        true
    }

    /// Whether a barrier that waits for these changes is passed.
    pub(crate) fn has_passed(&self, changes: u64) -> bool {
        self.switch.is_in_force(changes)
    }

    /// Fragment handling and miss_send_len. The latter belongs to connections; here it is the default.
    pub fn switch_config(&self) -> SwitchConfig {
        let frag = self.read(|bridge| bridge.frag).unwrap_or_default();
        SwitchConfig { frag, invalid_ttl_to_controller: None, miss_send_len: 0 }
    }

    /// Changes fragment handling. Reassembly is refused.
    pub fn set_switch_config(&self, config: SwitchConfig) -> Result<(), OfError> {
        if config.frag == FragHandling::Reassemble {
            return Err(OfError::OFPSCFC_BAD_FLAGS);
        }
        self.change(|bridge, _| bridge.frag = config.frag);
        Ok(())
    }

    /// The MAC table, in no particular order. Times of use include every packet before the call; where there are more than
    /// 20 000 datapath flows, every packet before the last round for statistics.
    pub fn macs(&self) -> Vec<MacEntry> {
        self.switch.refresh_statistics();
        self.read(|bridge| bridge.macs.read().iter().collect()).unwrap_or_default()
    }

    /// What each mirror has sent, by its name, as up to date as [`macs`](Bridge::macs).
    pub fn mirror_stats(&self) -> Vec<(String, Arc<MirrorCounters>)> {
        self.switch.refresh_statistics();
        let stats = |bridge: &BridgeState| {
            bridge.mirrors.iter().map(|state| (state.mirror.name.clone(), state.counters.clone())).collect()
        };
        self.read(stats).unwrap_or_default()
    }

    /// How many entries the MAC table has, and how many of them are static.
    pub fn mac_counts(&self) -> (usize, usize) {
        let counts = |bridge: &BridgeState| {
            let table = bridge.macs.read();
            (table.len(), table.fixed_len())
        };
        self.read(counts).unwrap_or_default()
    }

    /// Counters of the MAC table.
    pub fn mac_stats(&self) -> MacStats {
        self.read(|bridge| bridge.macs.read().stats()).unwrap_or_default()
    }

    /// How many packets from static addresses have missed on other ports than theirs.
    pub fn static_macs_elsewhere(&self) -> u64 {
        self.read(|bridge| bridge.macs.elsewhere()).unwrap_or_default()
    }

    /// Sets the counters of the MAC table to zero.
    pub fn clear_mac_stats(&self) {
        self.change_macs(MacTable::clear_stats);
    }

    /// Forgets every learnt address.
    pub fn flush_macs(&self) {
        let now = self.now();
        self.change_macs(|macs| macs.flush(now));
    }

    /// Adds a static entry. Returns the entry whose place it takes.
    pub fn add_static_mac(&self, key: MacKey, port: OfPort) -> Result<Option<MacEntry>, Error> {
        if self.read(|bridge| bridge.ports.contains_key(&port)) != Some(true) {
            return Err(self.no_such_port(port));
        }
        let replaced = self.change_macs(|macs| {
            let replaced = macs.entry(key);
            macs.add_static(key, port);
            replaced
        });
        Ok(replaced.flatten())
    }

    /// Removes an entry of either kind; false where there was none.
    pub fn remove_mac(&self, key: MacKey) -> bool {
        let now = self.now();
        self.change_macs(|macs| macs.remove(key, now)).unwrap_or(false)
    }

    fn change_macs<T>(&self, f: impl FnOnce(&mut MacTable) -> T) -> Option<T> {
        let forwarding = self.switch.forwarding.read();
        let bridge = forwarding.bridges.get(&self.id)?;
        Some(self.switch.change_macs(bridge, f))
    }

    /// The time by the switch's clock.
    pub(crate) fn now(&self) -> packet::Time {
        self.switch.clock.now()
    }

    /// Reads the bridge's state; `None` where it was removed.
    fn read<T>(&self, f: impl FnOnce(&BridgeState) -> T) -> Option<T> {
        self.switch.forwarding.read().bridges.get(&self.id).map(f)
    }

    /// Changes settings on which all flows depend.
    pub(crate) fn change<T>(&self, f: impl FnOnce(&mut BridgeState, u64) -> T) -> Option<T> {
        let mut forwarding = self.switch.forwarding.write();
        forwarding.touch();
        let generation = forwarding.generation();
        let result = forwarding.bridges.get_mut(&self.id).map(|bridge| f(bridge, generation));
        drop(forwarding);
        self.switch.notify();
        result
    }

    fn no_such_port(&self, port: OfPort) -> Error {
        Error::NoSuchPort { bridge: self.name.to_string(), port: port.to_string() }
    }
}

/// Adds the pipeline fields that a packet-out of OpenFlow 1.5 gives.
fn add_metadata(key: &mut Key, metadata: &Match) {
    for block in [BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
        if metadata.key.present().has(block) {
            *key.block_mut(block) = *metadata.key.block(block);
        }
    }
    if metadata.key.present().has(BlockId::TunMeta0) {
        *key.tun_metadata_mut() = *metadata.key.tun_metadata();
    }
}
