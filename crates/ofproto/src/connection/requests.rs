//! What each message asks for, and the answer.

use openflow::codec::OFPFW_ALL;
use openflow::stats::{IpfixStats, TableFeatures, TableFeaturesSet, TableStats};
use openflow::switch::Capabilities;
use openflow::{
    AsyncConfig, Body, CtFlush, Dialect, FlowMod, FragHandling, Message, MultipartReply, MultipartRequest, OfError,
    OfPort, PacketInReason, QueueConfig, Role, SwitchConfig, SwitchFeatures, TableId, Version,
};

use super::flush::flush_connections;
use super::reply::{Reply, aggregate, flows, groups, meters, whole};
use super::{Barrier, DEFAULT_MISS_SEND_LEN, Session, features};
use crate::model::config::N_TABLES;
use crate::model::flow_changes::Requester;

/// Reason bit of packets with an invalid TTL.
const INVALID_TTL: u32 = 1 << 2;

impl Session {
    /// Does what a message asks; its answer, if it has one.
    pub(super) fn answer(&mut self, message: Message) -> Result<Option<Body>, OfError> {
        if changes_switch(&message.body) && self.role() == Role::Secondary {
            return Err(OfError::OFPBRC_IS_SECONDARY);
        }
        self.bridge.set_requester(Requester { subscription: self.subscription, xid: message.xid });
        let before = self.bridge.latest_change();
        let answer = self.answer_to(message);
        let after = self.bridge.latest_change();
        if after != before {
            // Others may have made the change. Then a barrier takes longer than it has to.
            self.changed = after;
        }
        answer
    }

    fn answer_to(&mut self, message: Message) -> Result<Option<Body>, OfError> {
        let (version, dialect) = (message.version, message.dialect);
        Ok(Some(match message.body {
            Body::EchoRequest(data) => Body::EchoReply(data),
            Body::FeaturesRequest => Body::FeaturesReply(self.features(version)),
            Body::GetConfigRequest => Body::GetConfigReply(self.config(version)),
            Body::BarrierRequest => {
                if !self.bridge.begin_barrier(self.changed, self.mailbox.waker()) {
                    self.barrier = Some(Barrier { version, xid: message.xid, dialect, changes: self.changed });
                    return Ok(None);
                }
                self.send_all_events(self.last_heard);
                Body::BarrierReply
            }
            Body::RoleRequest(request) => {
                let reply = self.change_role(request, dialect)?;
                self.send_all_events(self.last_heard);
                reply
            }
            Body::TlvTableRequest => Body::TlvTableReply(self.bridge.tlv_table()),
            Body::GetAsyncRequest => Body::GetAsyncReply(told_async(version, self.async_config)),
            Body::MultipartRequest { more, request } => {
                let Some(request) = self.gather(message.xid, more, request)? else { return Ok(None) };
                self.reply = Some(self.multipart(version, message.xid, dialect, request)?);
                return Ok(None);
            }
            Body::QueueGetConfigRequest(port) => {
                let queues = self.bridge.queue_configs(port, QueueConfig::ALL)?;
                Body::QueueGetConfigReply { port, queues }
            }
            Body::CtFlushZone(zone) => {
                let flush = CtFlush { zone: Some(zone), ..CtFlush::default() };
                self.reply = self.end_connections(&flush, message.xid, version);
                return Ok(None);
            }
            Body::CtFlush(flush) => {
                self.reply = self.end_connections(&flush, message.xid, version);
                return Ok(None);
            }
            Body::BundleControl(control) => self.control_bundle(version, message.xid, control)?,
            other => return self.obey(other, version).map(|()| None),
        }))
    }

    /// Does what a message without an answer asks.
    fn obey(&mut self, body: Body, version: Version) -> Result<(), OfError> {
        match body {
            Body::FlowMod(change) => self.flow_mod(&change)?,
            Body::PacketOut(out) => self.bridge.packet_out(&out)?,
            // Before OpenFlow 1.5, who changes a port is not told of it.
            Body::PortMod(change) => {
                self.bridge.port_mod_but(&change, Some(self.subscription).filter(|_| version < Version::V1_5))?;
            }
            Body::TableMod(change) => self.bridge.table_mod(&change)?,
            Body::TlvTableMod(change) => self.bridge.tlv_table_mod(&change)?,
            Body::GroupMod(change) => self.piecewise = self.bridge.begin_group_mod(&change)?,
            Body::MeterMod(change) => self.piecewise = self.bridge.begin_meter_mod(&change)?,
            Body::BundleAdd(add) => self.add_to_bundle(version, add)?,
            Body::FlowMonitorCancel(id) => self.cancel_monitor(version, id)?,
            Body::SetConfig(config) => self.set_config(config)?,
            Body::SetAsync(change) | Body::SetAsync2(change) => {
                self.async_config = refined_async(version, change.applied(&self.async_config));
                // Who says what it wants wants it.
                if self.miss_send_len == 0 {
                    self.miss_send_len = DEFAULT_MISS_SEND_LEN;
                }
                self.change_interest();
            }
            Body::SetFlowFormat(format) => self.flow_format = format,
            Body::FlowModTableId(set) => self.options.flow_mod_table_id = set,
            Body::Resume(packet) => self.bridge.resume(&packet)?,
            Body::SetPacketInFormat(format) => self.packet_in_format = format,
            Body::SetControllerId(id) => {
                self.controller_id = id;
                self.change_interest();
            }
            Body::Error(e) => {
                tracing::info!("bridge {}: the controller reports {}", self.bridge.name(), e.error);
            }
            // A second hello changes nothing; an answer to our echo has been heard; replies have the ages of flows unasked.
            Body::Hello(_) | Body::EchoReply(_) | Body::FlowAge => {}
            // Messages that only a switch sends.
            _ => {
                tracing::debug!("bridge {}: a controller of {version} sent a switch's message", self.bridge.name());
                return Err(OfError::OFPBRC_BAD_TYPE);
            }
        }
        Ok(())
    }

    /// Ends the connections of a datapath. Where these may be many, that is work like an answer's, though nothing is said.
    fn end_connections(&self, flush: &CtFlush, xid: u32, version: Version) -> Option<Reply> {
        let pieces = flush_connections(self.bridge.datapath()?, flush, self.last_heard)?;
        Some(Reply { version, xid, dialect: Dialect::Standard, pieces })
    }

    /// Weir buffers no packets: a flow-mod with a buffer id does its work and tells that the buffer is not there.
    fn flow_mod(&mut self, change: &FlowMod) -> Result<(), OfError> {
        self.piecewise = self.bridge.begin_flow_mod(change)?;
        self.flow_mods.add(change.command, self.last_heard);
        if change.buffer_id.is_some() { Err(OfError::OFPBRC_BUFFER_UNKNOWN) } else { Ok(()) }
    }

    fn features(&self, version: Version) -> SwitchFeatures {
        use Capabilities as C;
        let ports = if version < Version::V1_3 { self.bridge.port_descs(OfPort::ANY) } else { Vec::new() };
        SwitchFeatures {
            datapath_id: self.bridge.config().datapath_id,
            n_buffers: 0,
            n_tables: N_TABLES,
            auxiliary_id: 0,
            capabilities: C::FLOW_STATS
                | C::TABLE_STATS
                | C::PORT_STATS
                | C::GROUP_STATS
                | C::QUEUE_STATS
                | C::ARP_MATCH_IP
                | C::BUNDLES,
            actions: features::ACTIONS10,
            ports,
        }
    }

    fn config(&self, version: Version) -> SwitchConfig {
        let to_controller = self.async_config.packet_in[0] & INVALID_TTL != 0;
        SwitchConfig {
            invalid_ttl_to_controller: (version < Version::V1_3).then_some(to_controller),
            miss_send_len: self.miss_send_len,
            ..self.bridge.switch_config()
        }
    }

    fn set_config(&mut self, config: SwitchConfig) -> Result<(), OfError> {
        // A secondary controller sets only what concerns itself. A fragment handling that is not to be had
        // leaves the present one, as the specification lets the switch do.
        if self.role() != Role::Secondary && config.frag != FragHandling::Reassemble {
            self.bridge.set_switch_config(config)?;
        }
        match config.invalid_ttl_to_controller {
            Some(true) => self.async_config.packet_in[0] |= INVALID_TTL,
            Some(false) => self.async_config.packet_in[0] &= !INVALID_TTL,
            None => {}
        }
        self.miss_send_len = config.miss_send_len;
        self.update_interest();
        Ok(())
    }

    /// Only requests with a list (table features, to change them) can come in pieces. The request, once it is whole.
    fn gather(&mut self, xid: u32, more: bool, part: MultipartRequest) -> Result<Option<MultipartRequest>, OfError> {
        let pending = self.pending_tables.take().filter(|(id, _)| *id == xid);
        match part {
            MultipartRequest::TableFeatures(tables) if more || pending.is_some() => {
                let mut all = pending.map_or_else(Vec::new, |(_, tables)| tables);
                all.extend(tables.into_iter().map(essence));
                if all.len() > usize::from(u8::MAX) {
                    return Err(OfError::OFPBRC_MULTIPART_BUFFER_OVERFLOW);
                }
                if more {
                    self.pending_tables = Some((xid, all));
                    return Ok(None);
                }
                Ok(Some(MultipartRequest::TableFeatures(all)))
            }
            _ if more => Err(OfError::OFPBRC_MULTIPART_BUFFER_OVERFLOW),
            whole => Ok(Some(whole)),
        }
    }

    /// Begins the answer to a multipart request.
    fn multipart(
        &mut self,
        version: Version,
        xid: u32,
        dialect: Dialect,
        request: MultipartRequest,
    ) -> Result<Reply, OfError> {
        use MultipartReply as Answer;
        use MultipartRequest as Ask;
        let bridge = self.bridge.clone();
        let pieces = match request {
            // As many entries as controllers have made.
            Ask::Flow(q) => flows(bridge.walk_flows(&q)?),
            Ask::Aggregate(q) => aggregate(bridge.walk_flows(&q)?),
            Ask::Group(group) => {
                bridge.credit_groups();
                groups(bridge, group, |bridge, ids| Answer::Group(bridge.count_groups(ids)))
            }
            Ask::GroupDesc(group) => {
                groups(bridge, group, |bridge, ids| Answer::GroupDesc(bridge.describe_groups(ids)))
            }
            Ask::Meter(meter) => meters(bridge, meter, |bridge, ids| Answer::Meter(bridge.count_meters(ids)))?,
            Ask::MeterConfig(meter) => {
                meters(bridge, meter, |bridge, ids| Answer::MeterConfig(bridge.describe_meters(ids)))?
            }
            // As many as the configuration has.
            Ask::Table => whole(Answer::Table(self.tables(version))),
            Ask::Port(port) => whole(Answer::Port(bridge.port_stats(port))),
            Ask::PortDesc(port) => whole(Answer::PortDesc(bridge.port_descs(port))),
            Ask::Queue { port, queue } => whole(Answer::Queue(bridge.queue_stats(port, queue)?)),
            Ask::QueueDesc { port, queue } => whole(Answer::QueueDesc(bridge.queue_configs(port, queue)?)),
            Ask::FlowMonitor(requests) => self.monitor_flows(version, requests)?,
            Ask::TableDesc => whole(Answer::TableDesc(bridge.table_descs())),
            Ask::TableFeatures(wanted) => {
                self.change_tables(&wanted)?;
                features::tables(&bridge, version)
            }
            // One.
            Ask::Desc => whole(Answer::Desc(Box::new(bridge.describe(&self.settings.desc)))),
            Ask::IpfixBridge => {
                let stats = bridge.ipfix_bridge_statistics().ok_or(OfError::NXST_NOT_CONFIGURED)?;
                whole(Answer::IpfixBridge(ipfix_stats(0, &stats)))
            }
            Ask::IpfixFlow => {
                let sets = bridge.ipfix_flow_statistics();
                if sets.is_empty() {
                    return Err(OfError::NXST_NOT_CONFIGURED);
                }
                whole(Answer::IpfixFlow(sets.iter().map(|(id, stats)| ipfix_stats(*id, stats)).collect()))
            }
            Ask::GroupFeatures => whole(Answer::GroupFeatures(bridge.group_features(features::actions(version)))),
            Ask::MeterFeatures => whole(Answer::MeterFeatures(bridge.meter_features())),
        };
        Ok(Reply { version, xid, dialect, pieces })
    }

    fn tables(&self, version: Version) -> Vec<TableStats> {
        let mut tables = self.bridge.table_stats();
        if version == Version::V1_0 {
            tables.iter_mut().for_each(|t| t.wildcards = OFPFW_ALL);
        }
        if matches!(version, Version::V1_1 | Version::V1_2) {
            for (table, miss) in tables.iter_mut().zip(self.bridge.table_misses()) {
                table.early = Some(Box::new(features::abilities(version, table.table, miss)));
            }
        }
        tables
    }

    /// Of what a controller asks of tables, names can be given. The rest has to be as it is, which this does not
    /// check.
    fn change_tables(&self, wanted: &[TableFeatures]) -> Result<(), OfError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<TableId> = wanted.iter().map(|table| table.table).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(OfError::NXTFFC_DUP_TABLE);
        }
        let names: Vec<_> = wanted.iter().map(|table| (table.table, table.name.clone())).collect();
        self.bridge.name_tables(&names)
    }
}

/// What counts of a table's wanted features, its name: they may come in many messages, and a peer may never send the
/// last one.
fn essence(table: TableFeatures) -> TableFeatures {
    TableFeatures {
        normal: TableFeaturesSet::default(),
        miss: None,
        matches: Vec::new(),
        wildcards: Vec::new(),
        ..table
    }
}

/// Reasons of packet-ins that OpenFlow 1.4 tells apart: what comes of an action set, a group or a packet-out. Before, they are an action's.
const OF14_ACTIONS: u32 = 0b11_1000;

/// The bits that a controller has set, with those that they stand for in its version.
fn refined_async(version: Version, mut config: AsyncConfig) -> AsyncConfig {
    if version < Version::V1_4 {
        for mask in config.packet_in.iter_mut().filter(|mask| **mask >> PacketInReason::Action as u32 & 1 != 0) {
            *mask |= OF14_ACTIONS;
        }
    }
    config
}

/// The bits of which the version knows.
fn told_async(version: Version, mut config: AsyncConfig) -> AsyncConfig {
    if version < Version::V1_4 {
        config.packet_in = config.packet_in.map(|mask| mask & 0b111);
    }
    config
}

/// Whether a message changes the switch or makes it send, which a secondary controller may not
/// (OpenFlow 1.3.5 section 6.3.5).
fn changes_switch(body: &Body) -> bool {
    match body {
        Body::FlowMod(_)
        | Body::PacketOut(_)
        | Body::PortMod(_)
        | Body::TableMod(_)
        | Body::TlvTableMod(_)
        | Body::GroupMod(_)
        | Body::MeterMod(_)
        | Body::BundleControl(_)
        | Body::BundleAdd(_) => true,
        Body::MultipartRequest { request: MultipartRequest::TableFeatures(tables), .. } => !tables.is_empty(),
        _ => false,
    }
}

/// What an exporter of IPFIX has done.
fn ipfix_stats(collector_set: u32, done: &export::ipfix::exporter::Statistics) -> IpfixStats {
    IpfixStats {
        flows: done.flows,
        current_flows: done.current_flows,
        packets: done.packets,
        ipv4: done.ipv4,
        ipv6: done.ipv6,
        errors: done.errors,
        ipv4_errors: done.ipv4_errors,
        ipv6_errors: done.ipv6_errors,
        sent: done.sent.taken,
        not_sent: done.sent.failed,
        collector_set,
    }
}
