//! NetFlow version 5: records of flows of IPv4, as the switch counts them.
//!
//! [`NetFlow`] is shared: whoever credits flows with their packets calls [`NetFlow::credit`], which takes a short lock.
//! A record is made when a flow ends, when it goes out by another port, and after the active timeout. The flows that are
//! kept are bounded, and so are the packets that wait until [`NetFlow::run`] sends them.

pub mod packet;

use std::collections::VecDeque;
use std::time::Duration;

use ::packet::{Key, Time};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::settings::Netflow;
use crate::{Moment, Sink};
use packet::{Packet, Record};

/// Most flows that are kept. One more, and each that it takes the place of, is exported at once.
pub const MAX_FLOWS: usize = 262_144;

/// Most packets that wait to be sent.
const MAX_PACKETS: usize = 4096;

/// Most packets that are sent in one round: no more than a socket of a collector has room for. Rounds follow each other
/// fast enough for some hundred thousand records a second.
const PACKETS_PER_ROUND: usize = 64;

/// How often it is looked for flows whose active timeout is over.
const TICK: Duration = Duration::from_secs(1);

/// The packet was flooded.
pub const OUT_FLOOD: u16 = 0xffff;
/// It went out by several ports.
pub const OUT_MULTIPLE: u16 = 0xfffe;
/// It was dropped.
pub const OUT_DROP: u16 = 0xfffd;
/// Not known: no port has this number.
pub const OUT_UNKNOWN: u16 = 0;

/// What makes packets one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FlowKey {
    /// Port that they come in by.
    pub in_port: u16,
    /// Source.
    pub src: u32,
    /// Destination.
    pub dst: u32,
    /// Type of service, without the congestion bits.
    pub tos: u8,
    /// IP protocol.
    pub protocol: u8,
    /// Source port, or type of ICMP.
    pub src_port: u16,
    /// Destination port, or code of ICMP.
    pub dst_port: u16,
}

impl FlowKey {
    /// The flow of a packet that has come in by the OpenFlow port `in_port`. There are none but of IPv4.
    pub fn of(key: &Key, in_port: u16) -> Option<FlowKey> {
        let common = key.common();
        (common.dl_type.get() == 0x0800).then(|| FlowKey {
            in_port,
            src: common.nw_src.get(),
            dst: common.nw_dst.get(),
            tos: common.nw_tos & 0xfc,
            protocol: common.nw_proto,
            src_port: common.tp_src.get(),
            dst_port: common.tp_dst.get(),
        })
    }
}

/// Packets to credit a flow with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Credit {
    /// Where they go.
    pub output: u16,
    /// How many.
    pub packets: u64,
    /// How many bytes.
    pub bytes: u64,
    /// When the last came.
    pub used: Time,
    /// TCP flags, or-ed.
    pub tcp_flags: u16,
}

struct Flow {
    output: u16,
    created: Time,
    used: Time,
    /// When it was exported last, or begun.
    exported: Time,
    packets: u64,
    bytes: u64,
    tcp_flags: u8,
}

/// The flows of a bridge.
pub struct NetFlow(Mutex<Flows>);

struct Flows {
    settings: Netflow,
    started: Time,
    flows: HashMap<FlowKey, Flow>,
    /// The packet that is being filled.
    filling: Packet,
    /// Full ones.
    full: VecDeque<Packet>,
    /// Records so far, lost ones included: so collectors see that they were.
    records: u32,
    /// Records that were lost, since too many packets waited.
    lost: u64,
    /// When flows were looked through last.
    looked: Time,
}

impl NetFlow {
    /// No flows yet.
    pub fn new(settings: Netflow, now: Time) -> NetFlow {
        NetFlow(Mutex::new(Flows {
            settings,
            started: now,
            flows: HashMap::new(),
            filling: Packet::new(0),
            full: VecDeque::new(),
            records: 0,
            lost: 0,
            looked: now,
        }))
    }

    /// Changes the settings; flows stay.
    pub fn set(&self, settings: Netflow) {
        self.0.lock().settings = settings;
    }

    /// Credits a flow with packets.
    pub fn credit(&self, key: &FlowKey, credit: &Credit) {
        self.0.lock().credit(key, credit, MAX_FLOWS);
    }

    /// Ends a flow.
    pub fn end(&self, key: &FlowKey) {
        let mut flows = self.0.lock();
        if let Some(flow) = flows.flows.remove(key) {
            flows.export(key, &flow);
        }
    }

    /// Ends all flows, and sends their records.
    pub fn end_all(&self, at: Moment, sink: &mut dyn Sink) {
        let all = std::mem::take(&mut self.0.lock().flows);
        for (n, (key, flow)) in all.into_iter().enumerate() {
            self.0.lock().export(&key, &flow);
            if n % packet::MAX_RECORDS == 0 {
                self.send(usize::MAX, false, at, sink);
            }
        }
        self.send(usize::MAX, true, at, sink);
    }

    /// Records that were lost, since they became more than could be sent.
    pub fn lost(&self) -> u64 {
        self.0.lock().lost
    }

    /// Flows that are kept.
    pub fn len(&self) -> usize {
        self.0.lock().flows.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Exports what is due, and sends some of what waits. Returns when it is to be called again.
    pub fn run(&self, at: Moment, sink: &mut dyn Sink) -> Time {
        let mut flows = self.0.lock();
        let is_due = at.now >= flows.looked + TICK;
        if is_due {
            flows.looked = at.now;
            flows.export_active(at.now);
        }
        let next = flows.looked + TICK;
        drop(flows);
        // Records gather until a packet is full, or for a second.
        if self.send(PACKETS_PER_ROUND, is_due, at, sink) { at.now } else { next }
    }

    /// Sends so many packets, and the one that is being filled if it `empties`. Returns whether others wait.
    fn send(&self, most: usize, empties: bool, at: Moment, sink: &mut dyn Sink) -> bool {
        let mut flows = self.0.lock();
        let uptime = at.now.since(flows.started).as_millis() as u32;
        let engine = (flows.settings.engine_type, flows.settings.engine_id);
        if empties && !flows.filling.is_empty() && flows.full.len() < MAX_PACKETS {
            let next = Packet::new(flows.records);
            let last = std::mem::replace(&mut flows.filling, next);
            flows.full.push_back(last);
        }
        let most = most.min(flows.full.len());
        let ready: Vec<_> = flows.full.drain(..most).collect();
        let others = !flows.full.is_empty();
        // Those that credit flows are not kept waiting by the kernel.
        drop(flows);
        for packet in ready {
            sink.send(&packet.finish(uptime, at, engine));
        }
        others
    }
}

impl Flows {
    fn credit(&mut self, key: &FlowKey, credit: &Credit, max_flows: usize) {
        let is_known = self.flows.contains_key(key);
        if !is_known && self.flows.len() >= max_flows {
            // Any of them: what is left of it begins anew.
            if let Some(other) = self.flows.keys().next().copied()
                && let Some(flow) = self.flows.remove(&other)
            {
                self.export(&other, &flow);
            }
        }
        let begin = || Flow {
            output: credit.output,
            created: credit.used,
            used: credit.used,
            exported: credit.used,
            packets: 0,
            bytes: 0,
            tcp_flags: 0,
        };
        let mut ended = None;
        let flow = self.flows.entry(*key).or_insert_with(begin);
        if flow.output != credit.output {
            ended = Some(std::mem::replace(flow, begin()));
        }
        if flow.packets == 0 {
            flow.created = credit.used;
        }
        flow.packets += credit.packets;
        flow.bytes = flow.bytes.saturating_add(credit.bytes);
        flow.tcp_flags |= credit.tcp_flags as u8;
        flow.used = flow.used.max(credit.used);
        if let Some(ended) = ended {
            self.export(key, &ended);
        }
    }

    /// Exports the flows whose active timeout is over. Those without packets since the last time have ended. Where very
    /// many are due at once, some have to wait until there is room for their packets.
    fn export_active(&mut self, now: Time) {
        let timeout = self.settings.active_timeout;
        if timeout.is_zero() {
            return;
        }
        let room = (MAX_PACKETS / 2).saturating_sub(self.full.len()) * packet::MAX_RECORDS;
        let mut due = Vec::new();
        self.flows.retain(|key, flow| {
            if now <= flow.exported + timeout || due.len() >= room {
                return true;
            }
            let is_idle = flow.packets == 0;
            if !is_idle {
                // Counts begin anew.
                let next = Flow { exported: now, packets: 0, bytes: 0, tcp_flags: 0, ..*flow };
                due.push((*key, std::mem::replace(flow, next)));
            }
            !is_idle
        });
        for (key, flow) in due {
            self.export(&key, &flow);
        }
    }

    /// Makes records of what a flow has counted: as many as its bytes need, whose numbers have 32 bits. Packets and
    /// bytes are spread over them alike.
    fn export(&mut self, key: &FlowKey, flow: &Flow) {
        if flow.packets == 0 {
            return;
        }
        // A counter that has gone wrong must not make records without end.
        const MOST: u64 = 256;
        let most = u64::from(u32::MAX);
        let records = flow.bytes.div_ceil(most).max(flow.packets.div_ceil(most)).clamp(1, MOST);
        let mut record = self.record(key, flow);
        let (packets, bytes) = (flow.packets.min(MOST * most), flow.bytes.min(MOST * most));
        for n in 0..records {
            let part = |total: u64| {
                let (quotient, rest) = (total / records, total % records);
                (quotient + u64::from(n < rest)) as u32
            };
            (record.packets, record.bytes) = (part(packets), part(bytes));
            self.add(&record);
        }
    }

    fn record(&self, key: &FlowKey, flow: &Flow) -> Record {
        let settings = &self.settings;
        let port = |number: u16| match settings.add_id_to_interface {
            true => u16::from(settings.engine_id & 0x7f) << 9 | number & 0x1ff,
            false => number,
        };
        let (src_port, dst_port) = match key.protocol {
            // Type and code of ICMP are where the destination port is.
            1 => (0, key.src_port << 8 | key.dst_port & 0xff),
            _ => (key.src_port, key.dst_port),
        };
        let millis = |time: Time| time.since(self.started).as_millis() as u32;
        Record {
            src: key.src,
            dst: key.dst,
            input: port(key.in_port),
            output: port(flow.output),
            packets: 0,
            bytes: 0,
            first: millis(flow.created),
            last: millis(flow.used.max(flow.created)),
            src_port,
            dst_port,
            tcp_flags: flow.tcp_flags,
            protocol: key.protocol,
            tos: key.tos,
        }
    }

    fn add(&mut self, record: &Record) {
        self.records = self.records.wrapping_add(1);
        self.filling.add(record);
        if self.filling.is_full() {
            let full = std::mem::replace(&mut self.filling, Packet::new(self.records));
            if self.full.len() < MAX_PACKETS {
                self.full.push_back(full);
            } else {
                self.lost += packet::MAX_RECORDS as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests;
