//! The switch: all bridges of a daemon over one datapath.
//!
//! Locks, in the order in which they are taken; a thread that holds one takes only later ones:
//!
//! 0. `spanning_trees_turn`: one thread runs the spanning trees at a time;
//! 1. `statistics`: one round for statistics at a time;
//! 2. a round's progress, while the round is interrupted; otherwise a leaf;
//! 3. `revalidation`: one round for changes at a time;
//! 4. `forwarding`: shared by translations, alone for changes. Not held across calls of the datapath,
//!    nor of subscribers;
//! 5. a bridge's MAC table;
//! 6. the interners, `drop_sites`, `helpers`, `subscribers`, `records`, `mac_dependents`, the uses of addresses in `forwarding`, `removed`, `announcements`, `bonds_due`, `lacp`, `path_sessions`, `path_checks_due`, `lldp`, `spanning_trees`, `spanning_trees_due`, `round_stats`, `settings`, `waiting`, `requests`, `due`: leaves.
//!
//! Who runs [`Switch::run`] does the rounds; in the daemon that is a thread of its own ([`Switch::set_revalidator`]), and
//! no other thread but for operators' commands waits for a round.

use std::any::Any;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use datapath::{Action, Datapath, DropReason, PortNo};
use netstate::state::NetState;
use openflow::{FlowRemoved, FlowRemovedReason, OfPort, PortReason, PortStatus};
use packet::flow::VlanLimit;
use packet::{Clock, Key, Packet, Time};
use parking_lot::{Condvar, Mutex, RwLock};
use tunnel::fields::FieldTable;

use crate::connection::budget::Budget;
use crate::connection::event_memory::EventMemory;
use crate::events::{Subscriber, SubscriptionId};
use crate::model::forwarding::{BridgeId, BridgeState, Forwarding, PortState};
use crate::model::mac_batch::MacBatch;
use crate::model::shadow::Shadow;
use crate::model::tunnels::Located;
use crate::model::underlay::Underlay;
use crate::slowpath::announcements::Announcements;
use crate::slowpath::control::Control;
use crate::slowpath::control::{Revalidation, RevalidationStats, StatisticsRounds};
use crate::slowpath::drop_sites::{DropSite, DropSites, TableDrop};
use crate::slowpath::lacp_sessions::LacpSessions;
use crate::slowpath::lldp_agents::LldpAgents;
use crate::slowpath::mac_dependents::MacDependents;
use crate::slowpath::neighbour_waits::NeighbourWaits;
use crate::slowpath::path_sessions::PathSessions;
use crate::slowpath::paused::Paused;
use crate::slowpath::record_table::SharedRecords;
use crate::slowpath::requests::FlowRequests;
use crate::slowpath::revalidators::Helpers;
use crate::slowpath::spanning_trees::SpanningTrees;
use crate::slowpath::trace_log::TraceLog;
use crate::slowpath::waiting::Waiting;
use crate::table::Rule;
use crate::verify::report::Verification;
use crate::xlate::frozen::Frozen;
use crate::xlate::trace::Sink;
use crate::xlate::{self, Input, Interners, LearntFlow, LookUp, Translation, translate, tunnel_metadata};

/// Bytes of an Ethernet header.
const ETHERNET_HEADER: usize = 14;

/// Settings of the switch.
#[derive(Clone, Copy, Debug)]
pub struct SwitchSettings {
    /// A datapath flow is removed when no packet has used it for this long.
    pub max_idle: Duration,
    /// How often there is a round over the datapath's flows, for statistics and expiry.
    pub revalidate_interval: Duration,
    /// Packets that no datapath flow matches are dropped: the flow tables are not filled yet.
    pub hold_misses: bool,
    /// Threads that share a round over the datapath's flows, that of [`Switch::run`] included.
    pub revalidators: usize,
    /// Most bytes of events and answers that are kept for all OpenFlow peers together. Beyond them, the peer that has most is
    /// disconnected.
    pub controller_memory: usize,
    /// A bundle that a connection has not used for this long is discarded.
    pub bundle_idle: Duration,
    /// How many VLAN tags are parsed of a packet that a controller sends: as many as the datapath does.
    pub vlan_limit: VlanLimit,
}

impl Default for SwitchSettings {
    fn default() -> SwitchSettings {
        SwitchSettings {
            max_idle: Duration::from_secs(10),
            revalidate_interval: Duration::from_millis(500),
            hold_misses: false,
            revalidators: 1,
            controller_memory: 256 << 20,
            bundle_idle: Duration::from_secs(10),
            vlan_limit: VlanLimit::default(),
        }
    }
}

/// Bytes that the bundles of all connections can hold together.
const MAX_BUNDLE_BYTES: usize = 2 << 30;

/// Flow monitors of all connections together. Each change of a flow looks at all those of its bridge, with the tables locked.
pub(crate) const MAX_FLOW_MONITORS: usize = 1024;

type Subscription = (BridgeId, Arc<dyn Subscriber>);

/// A rule that was removed.
pub(crate) struct RemovedRule {
    bridge: BridgeId,
    rule: Arc<Rule>,
    /// What the tun_metadata fields of its bridge stood for.
    tlv: Arc<FieldTable>,
    reason: FlowRemovedReason,
    at: Time,
    /// The generation with which no flow uses the rule any more.
    final_at: u64,
}

/// All bridges over one datapath. Implements [`datapath::Upcall`].
pub struct Switch {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Mutex<SwitchSettings>,
    pub(crate) datapath: OnceLock<Arc<Datapath>>,
    pub(crate) forwarding: RwLock<Forwarding>,
    pub(crate) interners: Interners,
    /// Routes and neighbours of tunnels.
    pub(crate) underlay: Arc<Underlay>,
    /// Packets by which bonds tell neighbours where addresses are now.
    pub(crate) announcements: Mutex<Announcements>,
    /// The ports by which LACP is spoken.
    pub(crate) lacp: Mutex<LacpSessions>,
    /// The ports whose paths are checked by BFD or CFM.
    pub(crate) path_sessions: Mutex<PathSessions>,
    /// Whether something has happened to these.
    pub(crate) path_checks_due: Mutex<bool>,
    pub(crate) path_checks_due_changed: Condvar,
    /// The ports by which LLDP is spoken.
    pub(crate) lldp: Mutex<LldpAgents>,
    /// Who runs the spanning trees and does what follows: one at a time.
    pub(crate) spanning_trees_turn: Mutex<()>,
    /// The spanning trees of bridges.
    pub(crate) spanning_trees: Mutex<SpanningTrees>,
    /// Whether something has happened to these.
    pub(crate) spanning_trees_due: Mutex<bool>,
    pub(crate) spanning_trees_due_changed: Condvar,
    /// Whether there is something to wait for of bonds.
    pub(crate) bonds_due: Mutex<bool>,
    pub(crate) bonds_due_changed: Condvar,
    /// Packets that wait for neighbours.
    pub(crate) neighbour_waits: NeighbourWaits,
    /// Sends samples and flow records to collectors.
    pub(crate) exporter: export::exporter::Exporter,
    /// Packets that were to be translated one by one, and were dropped.
    pub(crate) slow_drops: AtomicU64,
    /// Where the tables drop packets.
    pub(crate) drop_sites: DropSites,
    /// Which packet is traced in the log.
    pub(crate) trace_log: TraceLog,
    /// One tunnel port is added at a time.
    pub(crate) adding_tunnel: Mutex<()>,
    /// Records of flows that were translated lately.
    pub(crate) records: SharedRecords,
    /// What verification of the caches has found.
    pub(crate) verification: Verification,
    /// Pipelines that wait for a controller.
    pub(crate) paused: Paused,
    pub(crate) statistics: Mutex<StatisticsRounds>,
    pub(crate) revalidation: Mutex<Revalidation>,
    pub(crate) round_stats: Mutex<RevalidationStats>,
    pub(crate) helpers: Helpers,
    /// Generation up to which changes are in force. Written with `revalidation` held.
    pub(crate) in_force: AtomicU64,
    /// [`Forwarding::affecting`], to be read without the lock.
    pub(crate) affecting: Arc<AtomicU64>,
    /// Who waits for changes to be in force.
    pub(crate) waiting: Waiting,
    /// What operators have asked for.
    pub(crate) requests: FlowRequests,
    /// Whether a thread runs [`run`](Switch::run) again and again.
    has_revalidator: AtomicBool,
    /// Which datapath flows depend on which address.
    pub(crate) mac_dependents: Arc<MacDependents>,
    pub(crate) control: Control,
    /// What the bundles of all connections may hold.
    pub(crate) bundles: Arc<Budget>,
    /// How many flow monitors all connections may have.
    pub(crate) flow_monitors: Arc<Budget>,
    /// What is kept of events and answers for all connections.
    pub(crate) events: Arc<EventMemory>,
    pub(crate) subscribers: RwLock<BTreeMap<SubscriptionId, Subscription>>,
    /// Removed rules whose flow-removed waits for the final counters.
    removed: Mutex<Vec<RemovedRule>>,
    /// Datapath flows may send to ports that were removed.
    pub(crate) ports_removed: AtomicBool,
    due: Mutex<bool>,
    due_changed: Condvar,
    pub(crate) next_bridge: AtomicU32,
    next_subscription: AtomicU64,
}

impl Switch {
    /// A switch without bridges. Call [`attach`](Switch::attach) next.
    pub fn new(settings: SwitchSettings, clock: Arc<dyn Clock>) -> Arc<Switch> {
        let forwarding = Forwarding::default();
        let (affecting, underlay) = (forwarding.affecting.clone(), forwarding.underlay.clone());
        let switch = Arc::new(Switch {
            clock,
            settings: Mutex::new(settings),
            datapath: OnceLock::new(),
            forwarding: RwLock::new(forwarding),
            interners: Interners::default(),
            underlay,
            announcements: Mutex::default(),
            lacp: Mutex::default(),
            path_sessions: Mutex::new(PathSessions::new(RandomState::new().hash_one(()))),
            path_checks_due: Mutex::new(false),
            path_checks_due_changed: Condvar::new(),
            lldp: Mutex::default(),
            spanning_trees_turn: Mutex::default(),
            spanning_trees: Mutex::default(),
            spanning_trees_due: Mutex::new(false),
            spanning_trees_due_changed: Condvar::new(),
            bonds_due: Mutex::new(false),
            bonds_due_changed: Condvar::new(),
            neighbour_waits: NeighbourWaits::default(),
            exporter: Default::default(),
            slow_drops: AtomicU64::new(0),
            drop_sites: DropSites::default(),
            trace_log: TraceLog::default(),
            adding_tunnel: Mutex::default(),
            records: SharedRecords::default(),
            verification: Verification::default(),
            paused: Paused::default(),
            statistics: Mutex::default(),
            revalidation: Mutex::default(),
            round_stats: Mutex::default(),
            helpers: Helpers::default(),
            in_force: AtomicU64::new(0),
            affecting,
            waiting: Waiting::default(),
            requests: FlowRequests::default(),
            has_revalidator: AtomicBool::new(false),
            mac_dependents: Arc::default(),
            control: Control::default(),
            bundles: Budget::new(MAX_BUNDLE_BYTES),
            flow_monitors: Budget::new(MAX_FLOW_MONITORS),
            events: EventMemory::new(settings.controller_memory),
            subscribers: RwLock::default(),
            removed: Mutex::default(),
            ports_removed: AtomicBool::new(false),
            due: Mutex::new(false),
            due_changed: Condvar::new(),
            next_bridge: AtomicU32::new(1),
            next_subscription: AtomicU64::new(1),
        });
        switch.set_settings(settings);
        switch
    }

    /// Routes and neighbours of tunnels. Whoever changes them calls [`netstate_changed`](Switch::netstate_changed) next.
    pub fn netstate(&self) -> &Arc<NetState> {
        &self.underlay.netstate
    }

    /// How many threads share a round over the datapath's flows: as many as are set, or as could be started.
    pub fn revalidators(&self) -> usize {
        1 + self.helpers.count()
    }

    /// Settings in force.
    pub fn settings(&self) -> SwitchSettings {
        *self.settings.lock()
    }

    /// At which port of which bridge, by name, a packet with the key of a datapath has come in.
    pub fn locate(&self, key: &Key) -> Result<(String, OfPort), Unlocated> {
        let forwarding = self.forwarding.read();
        let port = PortNo(key.common().in_port.get());
        let &(bridge, of_port) = match forwarding.tunnels.locate(key) {
            Located::Tunnel(location) => location,
            Located::Nowhere => return Err(Unlocated::Tunnel),
            Located::Plain => forwarding.by_dp_port.get(&port).ok_or(Unlocated::Port(port.0))?,
        };
        let bridge = forwarding.bridges.get(&bridge).ok_or(Unlocated::Port(port.0))?;
        Ok((bridge.config.name.clone(), of_port))
    }

    /// How many OpenFlow peers were disconnected because more was kept for all than may be.
    pub fn overflown_connections(&self) -> u64 {
        self.events.closed()
    }

    /// Says whether a thread runs [`run`](Switch::run) again and again, as [`wait`](Switch::wait) tells it. Then connections
    /// wait for their barriers without holding up their own thread; otherwise a barrier is passed at once, by the
    /// thread that asks for it.
    pub fn set_revalidator(&self, has_revalidator: bool) {
        self.has_revalidator.store(has_revalidator, Ordering::SeqCst);
    }

    /// See [`set_revalidator`](Switch::set_revalidator).
    pub(crate) fn has_revalidator(&self) -> bool {
        self.has_revalidator.load(Ordering::SeqCst)
    }

    /// Blocks until a change makes [`run`](Switch::run) due, or for at most `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let mut due = self.due.lock();
        if !*due {
            self.due_changed.wait_for(&mut due, timeout);
        }
        *due = false;
    }

    /// Makes `run` due.
    pub(crate) fn notify(&self) {
        // Who is told once of many changes takes all of them.
        if !std::mem::replace(&mut *self.due.lock(), true) {
            self.due_changed.notify_all();
        }
    }

    /// Translates a made-up packet, and reports each step to `sink`. `None` where there is no such bridge.
    pub fn trace(&self, traced: &Traced<'_>, sink: &mut dyn Sink) -> Option<Explanation> {
        let forwarding = self.forwarding.read();
        let state = forwarding.bridges.values().find(|state| state.config.name == traced.bridge)?;
        let (bridge, tlv) = (state.id, state.tlv.clone());
        let frozen = self.interners.frozen.get(traced.key.common().recirc_id.get());
        let (packet_out, look_up) = (traced.actions, LookUp::with(traced.shadow));
        let input = Input { packet_out, look_up, ..self.input(traced.key, bridge, frozen.as_deref()) };
        Some(Explanation::of(&forwarding, translate(&forwarding, &self.interners, &input, Some(sink)), traced.key, tlv))
    }

    /// As [`trace`](Switch::trace), for a packet: addresses and flows are learnt from it, and the
    /// controllers get it where the tables say so. It is not sent to any port.
    pub fn trace_packet(&self, traced: &Traced<'_>, packet: Packet, sink: &mut dyn Sink) -> Option<Explanation> {
        let forwarding = self.forwarding.read();
        let state = forwarding.bridges.values().find(|state| state.config.name == traced.bridge)?;
        let key = traced.key;
        let frozen = self.interners.frozen.get(key.common().recirc_id.get());
        let batch = MacBatch::default();
        let input = self.input(key, state.id, frozen.as_deref());
        let input = Input { learning: Some(&batch), packet_out: traced.actions, ..input };
        let (now, out) = (input.now, translate(&forwarding, &self.interners, &input, Some(sink)));
        self.learn_macs(&forwarding, batch);
        self.hear(&forwarding, &out.heard, packet.data(), now);
        let metadata = datapath_key(state, key).unwrap_or_else(|| with_datapath_port(state, key, PortNo(0)));
        let explanation = Explanation::of(&forwarding, out, key, state.tlv.clone());
        drop(forwarding);
        self.learn_flows(&explanation.learnt, now);
        if let Some(datapath) = self.datapath.get()
            && explanation.error.is_none()
        {
            datapath.execute(packet, &metadata, &without_outputs(&explanation.actions));
        }
        Some(explanation)
    }

    /// Whether packets may be on their way with this recirculation id.
    pub fn knows_recirculation(&self, id: u32) -> bool {
        self.interners.frozen.get(id).is_some()
    }

    /// The key that the datapath looks a packet up by that comes in at a port of a bridge; `None` where no port of the
    /// datapath is behind that, as with patch ports.
    pub fn datapath_key(&self, bridge: &str, key: &Key) -> Option<Key> {
        let forwarding = self.forwarding.read();
        datapath_key(forwarding.bridges.values().find(|state| state.config.name == bridge)?, key)
    }

    pub(crate) fn input<'a>(&self, key: &'a Key, bridge: BridgeId, frozen: Option<&'a Frozen>) -> Input<'a> {
        Input {
            key,
            bridge,
            frozen,
            packet_out: None,
            learning: None,
            now: self.clock.now(),
            bytes: None,
            look_up: LookUp::Classifier,
        }
    }

    /// Translates the key of a datapath flow, or of a miss whose batch learns. `None` where its port is not of any bridge.
    pub(crate) fn translate_dp(
        &self,
        forwarding: &Forwarding,
        key: &Key,
        learning: Option<&MacBatch>,
        now: Time,
    ) -> Option<Translation> {
        self.translate_sized(forwarding, key, learning, now, None)
    }

    /// The same for one packet, of which it may tell how long it is.
    pub(crate) fn translate_sized(
        &self,
        forwarding: &Forwarding,
        key: &Key,
        learning: Option<&MacBatch>,
        now: Time,
        bytes: Option<u64>,
    ) -> Option<Translation> {
        let look_up = LookUp::Classifier;
        let input = DatapathInput { interners: &self.interners, look_up, learning, now, bytes };
        let mut out = self.translate_as(forwarding, key, &input)?;
        self.find_drop_site(forwarding, &mut out, PortNo(key.common().in_port.get()));
        Some(out)
    }

    /// The same without any effect on the switch, and maybe as if flows had been changed, or without the tables' classifiers.
    pub(crate) fn translate_as(
        &self,
        forwarding: &Forwarding,
        key: &Key,
        input: &DatapathInput<'_>,
    ) -> Option<Translation> {
        let &DatapathInput { interners, look_up, learning, now, bytes } = input;
        let dp_port = PortNo(key.common().in_port.get());
        let recirc = key.common().recirc_id.get();
        let frozen = if recirc == 0 { None } else { Some(self.interners.frozen.get(recirc)?) };
        let mut flow = key.clone();
        let location = match forwarding.tunnels.locate(key) {
            Located::Plain => forwarding.by_dp_port.get(&dp_port),
            Located::Tunnel(location) => Some(location),
            Located::Nowhere if frozen.is_some() => None,
            Located::Nowhere => return Some(xlate::tunnel::unknown_port(forwarding, key)),
        };
        let bridge = match (location, &frozen) {
            (Some(&(bridge, port)), _) => {
                flow.common_mut().in_port = port.0.into();
                bridge
            }
            (None, Some(frozen)) => frozen.bridge,
            (None, None) => return None,
        };
        let (frozen_at, packet_out) = (frozen.as_deref(), None);
        let input = Input { key: &flow, bridge, frozen: frozen_at, packet_out, learning, now, bytes, look_up };
        let may_have_options = forwarding.tunnels.carrier(dp_port).is_none_or(|carrier| carrier.has_options());
        let mut out = tunnel_metadata::translate_with_options(forwarding, interners, &input, may_have_options);
        if let Some(frozen) = frozen {
            // The packets that the flow is for carry this number.
            out.record.holds.push(frozen);
        }
        Some(out)
    }

    /// Has the packets of a translation counted where they are dropped, if they are.
    fn find_drop_site(&self, forwarding: &Forwarding, out: &mut Translation, dp_port: PortNo) {
        if let Some(dropped) = out.dropped.take()
            && let Some(bridge) = forwarding.bridges.get(&dropped.bridge)
        {
            out.record.drop_site = self.drop_sites.site(*dropped, &bridge.config.name, dp_port);
        }
    }

    /// What the tables have dropped, where, and why. Up to the last packet, as statistics of flows are.
    pub fn table_drops(&self) -> Vec<Arc<DropSite>> {
        self.refresh_statistics();
        self.drop_sites.used()
    }

    /// Translates a packet that did not come from a port of the datapath, and has the datapath do with it what comes out.
    pub(crate) fn execute(&self, packet: Packet, input: &Input<'_>) {
        let forwarding = self.forwarding.read();
        let mut decided = self.decide_sent(&forwarding, packet, input);
        self.account(&forwarding, &mut decided);
        drop(forwarding);
        self.carry_out(decided);
    }

    /// Decides what becomes of such a packet.
    pub(crate) fn decide_sent(&self, forwarding: &Forwarding, packet: Packet, input: &Input<'_>) -> Decided {
        let key = input.key;
        let batch = MacBatch::default();
        let sent = Input { learning: Some(&batch), bytes: Some(packet.len() as u64), ..*input };
        let mut translation = translate(forwarding, &self.interners, &sent, None);
        let bridge = forwarding.bridges.get(&input.bridge);
        let port = bridge.and_then(|bridge| bridge.ports.get(&OfPort(key.common().in_port.get())));
        let mut metadata = key.clone();
        let dp_port = port.and_then(|port| port.dp_port).unwrap_or(PortNo(0));
        metadata.common_mut().in_port = dp_port.0.into();
        // As in OVS, its datapath takes none that is not even an Ethernet header; other switches would see one of zeros.
        if packet.len() < ETHERNET_HEADER {
            translation.actions = vec![Action::Drop(DropReason::Malformed)];
        }
        self.find_drop_site(forwarding, &mut translation, dp_port);
        if let Some(bridge) = bridge {
            tunnel_metadata::encode(&bridge.tlv, &mut metadata);
        }
        Decided {
            packet,
            metadata: Box::new(metadata),
            translation: Box::new(translation),
            learnt: batch,
            now: input.now,
        }
    }

    /// Counts the packet, and learns its address.
    pub(crate) fn account(&self, forwarding: &Forwarding, decided: &mut Decided) {
        self.learn_macs(forwarding, std::mem::take(&mut decided.learnt));
        self.hear(forwarding, &decided.translation.heard, decided.packet.data(), decided.now);
        let tcp_flags = decided.metadata.common().tcp_flags.get();
        decided.translation.record.credit(1, decided.packet.len() as u64, decided.now, tcp_flags);
    }

    /// Has the datapath do what was decided. Called without the lock of what decided it.
    pub(crate) fn carry_out(&self, decided: Decided) {
        let Decided { packet, metadata, translation, now, .. } = decided;
        self.learn_flows(&translation.learnt, now);
        if let Some(datapath) = self.datapath.get() {
            datapath.execute(packet, &metadata, &translation.actions);
        }
    }

    pub(crate) fn subscribe(&self, bridge: BridgeId, subscriber: Arc<dyn Subscriber>) -> SubscriptionId {
        let id = SubscriptionId(self.next_subscription.fetch_add(1, Ordering::Relaxed));
        self.subscribers.write().insert(id, (bridge, subscriber));
        id
    }

    pub(crate) fn unsubscribe(&self, id: SubscriptionId) {
        self.subscribers.write().remove(&id);
    }

    /// The subscribers of a bridge.
    pub(crate) fn subscribers(&self, bridge: BridgeId) -> Vec<Arc<dyn Subscriber>> {
        self.subscribers_but(bridge, None)
    }

    /// The subscribers of a bridge but for one.
    pub(crate) fn subscribers_but(&self, bridge: BridgeId, but: Option<SubscriptionId>) -> Vec<Arc<dyn Subscriber>> {
        let subscribers = self.subscribers.read();
        let wanted = subscribers.iter().filter(|(id, (of, _))| *of == bridge && Some(**id) != but);
        wanted.map(|(_, (_, subscriber))| subscriber.clone()).collect()
    }

    pub(crate) fn subscriber(&self, id: SubscriptionId) -> Option<Arc<dyn Subscriber>> {
        self.subscribers.read().get(&id).map(|(_, subscriber)| subscriber.clone())
    }

    pub(crate) fn port_status(&self, bridge: BridgeId, reason: PortReason, port: &PortState) {
        let status = PortStatus { reason, desc: port.describe() };
        for subscriber in self.subscribers(bridge) {
            subscriber.port_status(&status, crate::events::Audience::All);
        }
    }

    /// Records that a rule was removed, for a flow-removed if it wants one. Its counters are final when the changes up to
    /// `final_at` are in force.
    pub(crate) fn rule_removed(
        &self,
        (bridge, tlv): (BridgeId, &Arc<FieldTable>),
        rule: &Arc<Rule>,
        reason: FlowRemovedReason,
        at: Time,
        final_at: u64,
    ) {
        if rule.flags.contains(openflow::FlowModFlags::SEND_FLOW_REM) {
            let (rule, tlv) = (rule.clone(), tlv.clone());
            self.removed.lock().push(RemovedRule { bridge, rule, tlv, reason, at, final_at });
        }
    }

    /// Sends the flow-removed messages that wait, of rules whose counters are final now that the changes up to a
    /// generation are in force.
    pub(crate) fn send_removed(&self, in_force: u64) {
        let removed: Vec<_> = self.removed.lock().extract_if(.., |rule| rule.final_at <= in_force).collect();
        for RemovedRule { bridge, rule, tlv, reason, at, .. } in removed {
            let (idle_timeout, hard_timeout) = rule.timeouts();
            let message = FlowRemoved {
                matching: rule.matching(&tlv),
                priority: rule.priority,
                cookie: rule.cookie,
                reason,
                table: Some(rule.table),
                duration: at.since(rule.created),
                idle_timeout,
                hard_timeout,
                packet_count: rule.stats.packets(),
                byte_count: rule.stats.bytes(),
            };
            for subscriber in self.subscribers(bridge) {
                subscriber.flow_removed(&message);
            }
        }
    }
}

fn datapath_key(bridge: &BridgeState, key: &Key) -> Option<Key> {
    let port = bridge.ports.get(&OfPort(key.common().in_port.get()))?.dp_port?;
    Some(with_datapath_port(bridge, key, port))
}

fn with_datapath_port(bridge: &BridgeState, key: &Key, port: PortNo) -> Key {
    let mut key = key.clone();
    key.common_mut().in_port = port.0.into();
    tunnel_metadata::encode(&bridge.tlv, &mut key);
    key
}

/// How a key of the datapath is translated.
pub(crate) struct DatapathInput<'a> {
    /// Where pipelines and punts get their numbers.
    pub interners: &'a Interners,
    /// How rules are found.
    pub look_up: LookUp<'a>,
    /// The batch of a miss that learns.
    pub learning: Option<&'a MacBatch>,
    /// The time.
    pub now: Time,
    /// How long the packet is, where it is translated for itself.
    pub bytes: Option<u64>,
}

/// What is to become of a packet that did not come from a port of the datapath.
pub(crate) struct Decided {
    packet: Packet,
    metadata: Box<Key>,
    translation: Box<Translation>,
    learnt: MacBatch,
    now: Time,
}

impl Decided {
    /// How much work it was to decide it, in steps.
    pub fn work(&self) -> usize {
        self.translation.work
    }

    /// How many actions the datapath is to carry out.
    pub fn actions(&self) -> usize {
        self.translation.actions.len()
    }
}

/// Why a packet has come in at no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unlocated {
    /// No bridge has this port of the datapath.
    #[error("no OpenFlow port for datapath port {0}")]
    Port(u32),
    /// It has left a tunnel of which no port is.
    #[error("no OpenFlow tunnel port for this packet")]
    Tunnel,
}

/// What is traced.
pub struct Traced<'a> {
    /// Name of the bridge that the packet is in.
    pub bridge: &'a str,
    /// The packet, with an OpenFlow port in `in_port` and the values of tun_metadata fields.
    pub key: &'a Key,
    /// Instead of a lookup in table 0: the actions of a packet-out.
    pub actions: Option<&'a [openflow::Action]>,
    /// Changes of flows that are looked up as if they had been made.
    pub shadow: Option<&'a Shadow>,
}

/// What a trace ends with.
pub struct Explanation {
    /// The megaflow: what the outcome depends on.
    pub mask: packet::Mask,
    /// The datapath actions.
    pub actions: Vec<datapath::Action>,
    /// The key at the end.
    pub flow: Key,
    /// What the tun_metadata fields of the keys and of the mask stand for.
    pub tlv: Arc<FieldTable>,
    /// Why the translation gave up, in words, where it did. The packet is dropped then.
    pub error: Option<String>,
    /// Whether the outcome depends on the VLAN tag. The mask has bits of it in any case.
    pub looked_at_vlan: bool,
    /// Whether every packet is translated anew, without a datapath flow.
    pub slow: bool,
    /// Where the tables drop the packet, if they do.
    pub dropped: Option<TableDrop>,
    /// Flows that `learn` actions ask for.
    pub(crate) learnt: Vec<LearntFlow>,
    /// Keeps the pipelines that packets are recirculated to.
    pub holds: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Explanation {
    fn of(forwarding: &Forwarding, out: Translation, key: &Key, tlv: Arc<FieldTable>) -> Explanation {
        let dropped = out.dropped.as_ref().and_then(|dropped| {
            let bridge = forwarding.bridges.get(&dropped.bridge)?;
            let port = bridge.ports.get(&OfPort(key.common().in_port.get())).and_then(|port| port.dp_port);
            Some(dropped.describe(&bridge.config.name, port.unwrap_or(PortNo(0))))
        });
        Explanation {
            dropped,
            learnt: out.learnt,
            mask: out.mask,
            actions: out.actions,
            flow: out.flow.map_or_else(|| key.clone(), |flow| *flow),
            tlv,
            error: out.error.map(|error| error.to_string()),
            looked_at_vlan: out.looked_at_vlan,
            slow: out.slow,
            holds: out.record.holds,
        }
    }
}

fn sends_on(action: &Action) -> bool {
    matches!(action, Action::Output(_) | Action::Bond { .. } | Action::Recirc(_) | Action::Ct(_) | Action::TunnelPop(_))
}

/// The actions without those that send the packet on, or make connections.
fn without_outputs(actions: &[Action]) -> Vec<Action> {
    let kept = actions.iter().filter(|action| !sends_on(action));
    let inside = |action: &Action| match action {
        Action::Clone(inner) => Action::Clone(without_outputs(inner)),
        Action::Sample { probability, actions } => {
            Action::Sample { probability: *probability, actions: without_outputs(actions) }
        }
        Action::CheckLength { size, longer, others } => {
            Action::CheckLength { size: *size, longer: without_outputs(longer), others: without_outputs(others) }
        }
        other => other.clone(),
    };
    kept.map(inside).collect()
}
