//! A worker's end of taps: copies what a tap is about to its ring.
//!
//! Everything here is called only while there is a tap.

use std::sync::Arc;

use packet::{Packet, Time};

use super::record::{Event, Record};
use super::ring::Producer;
use super::settings::{PortSet, Ports};
use super::state::TapState;
use crate::action::PortNo;
use crate::classify::table::arena::{FastAction, FastActionKind};
use crate::classify::table::flow_ref::FlowRef;
use crate::classify::{Table, bits};
use crate::drop::DropReason;
use crate::pipeline::batch::BatchMeta;
use crate::upcall::FlowId;

/// A tap, as a worker has it.
pub struct WorkerTap {
    tap: Arc<TapState>,
    ports: PortSet,
    producer: Producer,
}

impl WorkerTap {
    /// A worker's part of a tap, with a ring of its own. There are so many `workers`.
    pub fn new(tap: &Arc<TapState>, workers: usize) -> WorkerTap {
        let (ports, producer) = tap.for_worker(workers);
        WorkerTap { tap: tap.clone(), ports, producer }
    }

    /// Copies a packet to the ring, if the tap is about it.
    fn show(&self, packet: &Packet, record: &Record) {
        let settings = &self.tap.settings;
        let is_wanted = settings.filter.as_ref().is_none_or(|filter| filter.matches(packet));
        if is_wanted && self.tap.take_token() {
            let shown = packet.len().min(settings.snap_length as usize);
            self.producer.push(record.encode(), &packet.data()[..shown]);
        }
    }

    /// Whether the tap is about such events at this port.
    fn wants(&self, event: Event, port: PortNo) -> bool {
        self.tap.settings.wants(event) && self.ports.has(port)
    }
}

/// The taps of a worker.
pub struct Taps {
    taps: Vec<WorkerTap>,
    /// The flows, for their identities.
    table: Arc<Table>,
}

impl Taps {
    /// No taps yet.
    pub fn new(table: Arc<Table>) -> Taps {
        Taps { taps: Vec::new(), table }
    }

    /// Adds a tap.
    pub fn add(&mut self, tap: WorkerTap) {
        self.taps.push(tap);
    }

    /// Removes the tap of this number. Returns whether there are others.
    pub fn remove(&mut self, number: u64) -> bool {
        self.taps.retain(|tap| tap.tap.number != number);
        !self.taps.is_empty()
    }

    /// Changes the ports that the tap of this number is about.
    pub fn set_ports(&mut self, number: u64, ports: &Ports) {
        self.taps.iter_mut().filter(|tap| tap.tap.number == number).for_each(|tap| tap.ports = PortSet::new(ports));
    }

    /// Shows the packets of a batch that was classified, before anything is done to them: those that came in, unless they go to the slow
    /// path, from where they are shown; of those that have been recirculated, only the ones that are dropped now. Returns the flow of the batch
    /// if all of its packets have the same.
    ///
    /// Where a tap is about the port, no packet takes the short way of fused connections: each pass can drop it, and is to be seen.
    #[cold]
    #[inline(never)]
    pub fn show_classified(&self, packets: &[Packet], meta: &mut BatchMeta, now: Time) -> FlowRef {
        let (in_port, recirc_id) = (meta.in_port(), meta.stage().recirc_id);
        let first = meta.found[0].flow;
        let mut is_one_flow = true;
        let has_readers = self.taps.iter().any(|tap| tap.ports.has(in_port));
        for at in bits(meta.starts()) {
            let found = &mut meta.found[at];
            is_one_flow &= found.flow == first;
            if !has_readers {
                continue;
            }
            if found.action.is_fused() {
                found.action = FastAction::PROGRAM;
            }
            let event = match (found.action.kind(), recirc_id) {
                (FastActionKind::Miss, _) => continue,
                (FastActionKind::Drop(reason), 0) => Event::Received(Some(reason)),
                (FastActionKind::Drop(reason), _) => Event::Dropped(reason),
                (_, 0) => Event::Received(None),
                _ => continue,
            };
            let flow = self.id(found.flow);
            let run = at..meta.end_of_run(at, packets.len());
            self.show(&packets[run], &Shown { event, port: in_port, flow, recirc_id, now });
        }
        if is_one_flow { first } else { FlowRef::NONE }
    }

    /// Shows a packet that came back from the slow path, and will be dropped for this `reason` if there is one. Returns its flow, if it has one
    /// by now.
    pub fn show_answered(
        &self,
        packet: &Packet,
        (in_port, recirc_id): (PortNo, u32),
        flow: Option<FlowId>,
        reason: Option<DropReason>,
        now: Time,
    ) {
        let event = match (reason, recirc_id) {
            (reason, 0) => Event::Received(reason),
            (Some(reason), _) => Event::Dropped(reason),
            (None, _) => return,
        };
        self.show(std::slice::from_ref(packet), &Shown { event, port: in_port, flow, recirc_id, now });
    }

    /// Shows packets that are about to be dropped.
    #[cold]
    #[inline(never)]
    pub fn show_dropped(&self, packets: &[Packet], reason: DropReason, port: PortNo, flow: FlowRef, now: Time) {
        let (event, flow) = (Event::of_drop(reason), self.id(flow));
        self.show(packets, &Shown { event, port, flow, recirc_id: 0, now });
    }

    /// Shows packets that are about to be sent.
    #[cold]
    #[inline(never)]
    pub fn show_sent(&self, packets: &[Packet], port: PortNo, now: Time) {
        self.show(packets, &Shown { event: Event::Sent, port, flow: None, recirc_id: 0, now });
    }

    fn show(&self, packets: &[Packet], shown: &Shown) {
        let Shown { event, port, flow, recirc_id, now: time } = *shown;
        for tap in self.taps.iter().filter(|tap| tap.wants(event, port)) {
            for packet in packets {
                let length = packet.len() as u32;
                tap.show(packet, &Record { time, event, port, flow, length, recirc_id });
            }
        }
    }

    fn id(&self, flow: FlowRef) -> Option<FlowId> {
        (flow != FlowRef::NONE).then(|| self.table.arena.id(flow))
    }
}

/// What is shown of several packets.
struct Shown {
    event: Event,
    port: PortNo,
    flow: Option<FlowId>,
    recirc_id: u32,
    now: Time,
}
