//! What is seen, as blocks of a capture file, as lines, or as JSON.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as BASE64;
use datapath::tap::{Event, Record};
use datapath::{Datapath, PortNo};
use ofproto::Switch;
use packet::flow::VlanLimit;
use packet::{Time, put};
use serde_json::json;

use super::line;
use super::pcapng::{self, Direction, PacketBlock};
use super::request::{Format, TapRequest};
use super::verdict::{PortTable, Verdicts, verdict};

/// Writes what a tap has seen.
pub struct Output {
    format: Format,
    snap_length: u32,
    filter: String,
    verdicts: Verdicts,
    ports: PortTable,
    vlan_limit: VlanLimit,
    /// What is added to the datapath's time to make it nanoseconds since 1970.
    since_1970: u64,
    /// The interfaces of a capture file that are described so far, with the packets of each.
    interfaces: HashMap<PortNo, (u32, u64)>,
    /// Those of ports whose numbers others have now.
    former: Vec<(u32, u64)>,
    blocks: Vec<u8>,
    text: String,
}

impl Output {
    /// Nothing written yet. `since_1970`: what is added to the datapath's time to make it nanoseconds since 1970.
    pub fn new(request: &TapRequest, datapath: &Arc<Datapath>, switch: &Arc<Switch>, since_1970: u64) -> Output {
        let mut ports = PortTable::default();
        ports.refresh(datapath);
        Output {
            format: request.format,
            snap_length: request.snap_length,
            filter: request.filter.clone(),
            verdicts: Verdicts::new(datapath, switch),
            ports,
            vlan_limit: switch.settings().vlan_limit,
            since_1970,
            interfaces: HashMap::new(),
            former: Vec::new(),
            blocks: Vec::new(),
            text: String::new(),
        }
    }

    /// Begins: a capture file with its header, and the interfaces that are known to come.
    pub fn begin(&mut self, version: &str, ports: &[PortNo]) {
        if self.format == Format::Pcapng {
            pcapng::section_header(&mut self.blocks, version);
            for port in ports {
                self.interface(*port);
            }
        }
    }

    /// Looks again at what may have changed: ports, flows and their rules.
    pub fn refresh(&mut self, datapath: &Datapath) {
        for (number, _) in self.ports.refresh(datapath) {
            self.former.extend(self.interfaces.remove(&number));
        }
        self.verdicts.forget();
    }

    /// Writes a packet.
    pub fn packet(&mut self, record: &Record, frame: &[u8]) {
        match self.format {
            Format::Pcapng => self.block(record, frame),
            Format::Text => self.line(record, frame),
            Format::Json => self.json(record, frame),
        }
    }

    /// Writes what was counted.
    pub fn end(&mut self, now: Time, lost: u64) {
        // Which port the lost ones are of is not known.
        let time = self.time(now);
        let mut interfaces: Vec<_> = self.interfaces.values().chain(&self.former).copied().collect();
        interfaces.sort_unstable();
        for (interface, packets) in interfaces {
            let lost = if interface == 0 { lost } else { 0 };
            pcapng::statistics(&mut self.blocks, interface, time, packets, lost);
        }
    }

    /// How much there is to take.
    pub fn pending(&self) -> usize {
        self.blocks.len() + self.text.len()
    }

    /// Takes what was written, as text.
    pub fn take(&mut self) -> Option<String> {
        if self.pending() == 0 {
            return None;
        }
        if self.format == Format::Pcapng {
            let text = BASE64.encode(&self.blocks);
            self.blocks.clear();
            return Some(text);
        }
        Some(std::mem::take(&mut self.text))
    }

    fn time(&self, time: Time) -> Time {
        Time(time.0.saturating_add(self.since_1970))
    }

    /// The number of a port's interface, which is described if it has not been yet.
    fn interface(&mut self, port: PortNo) -> &mut (u32, u64) {
        let number = (self.interfaces.len() + self.former.len()) as u32;
        let Output { interfaces, blocks, ports, snap_length, filter, .. } = self;
        interfaces.entry(port).or_insert_with(|| {
            pcapng::interface(blocks, &ports.shown(port), *snap_length, filter);
            (number, 0)
        })
    }

    fn block(&mut self, record: &Record, frame: &[u8]) {
        let direction = if record.event.is_outbound() { Direction::Outbound } else { Direction::Inbound };
        let comment = match record.event {
            Event::Sent => String::new(),
            _ => self.words(record).join("\n"),
        };
        let (interface, packets) = self.interface(record.port);
        let interface = *interface;
        *packets += 1;
        let time = self.time(record.time);
        let block = PacketBlock { interface, time, length: record.length, direction, comment: &comment };
        pcapng::packet(&mut self.blocks, &block, frame);
    }

    /// The verdict on a packet, its flow, and the rules that decided.
    fn words(&mut self, record: &Record) -> Vec<String> {
        let flow = record.flow.and_then(|id| self.verdicts.flow(id, &self.ports));
        let mut words = vec![verdict(record, flow.as_deref())];
        if let Some(flow) = flow {
            words.extend([&flow.flow, &flow.rules].into_iter().filter(|text| !text.is_empty()).cloned());
        }
        words
    }

    fn line(&mut self, record: &Record, frame: &[u8]) {
        let words = self.words(record);
        let port = self.ports.shown(record.port);
        let direction = if record.event.is_outbound() { "out" } else { "in" };
        let Time(nanos) = self.time(record.time);
        let (seconds, nanos) = (nanos / 1_000_000_000 % 86_400, nanos % 1_000_000_000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        put!(self.text, "{hours:02}:{minutes:02}:{seconds:02}.{:06} {port} {direction} ", nanos / 1000);
        line::summary(&mut self.text, frame, self.vlan_limit);
        put!(self.text, ", {} bytes: {}", record.length, words[0]);
        if let [_, rest @ ..] = &words[..]
            && !rest.is_empty()
        {
            put!(self.text, " [{}]", rest.join("; "));
        }
        self.text.push('\n');
    }

    fn json(&mut self, record: &Record, frame: &[u8]) {
        let flow = record.flow.and_then(|id| self.verdicts.flow(id, &self.ports));
        let mut summary = String::new();
        line::summary(&mut summary, frame, self.vlan_limit);
        let mut object = json!({
            "time": self.time(record.time).0 as f64 / 1e9,
            "port": self.ports.shown(record.port),
            "direction": if record.event.is_outbound() { "out" } else { "in" },
            "length": record.length,
            "packet": summary,
            "verdict": verdict(record, flow.as_deref()),
        });
        if let Some(reason) = record.event.reason() {
            object["reason"] = reason.name().into();
        }
        if let Some(flow) = flow {
            (object["flow"], object["rules"]) = (flow.flow.clone().into(), flow.rules.clone().into());
        }
        put!(self.text, "{object}\n");
    }
}
