//! Flows until they are exported: in the order in which they began, and no more than may be.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use packet::Time;

use super::element::{Direction, L3, L4};
use super::{FlowKey, Sample};

/// Most flows that a cache may have, whatever is asked for: about 200 MB.
pub const MAX_FLOWS: u32 = 1 << 18;

/// Why a flow was exported (`flowEndReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It was kept for as long as it may be.
    ActiveTimeout = 2,
    /// The exporter ends.
    Forced = 4,
    /// There are too many.
    LackOfResources = 5,
}

/// What is counted for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Those that went nowhere.
    pub dropped: u64,
    /// Bytes of frame.
    pub layer2: u64,
    /// Bytes of IP.
    pub octets: u64,
    /// Those that went nowhere.
    pub dropped_octets: u64,
    /// The squares of the lengths of IP packets.
    pub squares: u64,
    /// The shortest.
    pub shortest: u16,
    /// The longest.
    pub longest: u16,
    /// Multicast packets that were sent.
    pub post_multicast: u64,
    /// Their bytes of IP.
    pub post_multicast_octets: u64,
    /// Packets with the flags FIN, SYN, RST, PSH, ACK, URG.
    pub tcp: [u64; 6],
}

/// What is counted for all flows of an exporter together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// Packets to one receiver, to several, and to all: on ingress.
    pub ingress: [u64; 3],
    /// On egress.
    pub egress: [u64; 3],
}

/// A flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// When its first sample came.
    pub start: Time,
    /// When its last sample came.
    pub end: Time,
    /// Since it began.
    pub counts: Counts,
    /// By the time of its last sample.
    pub totals: Totals,
}

/// The flows.
#[derive(Default)]
pub struct Cache {
    flows: HashMap<Arc<FlowKey>, Flow>,
    /// Their keys, the oldest first.
    order: VecDeque<Arc<FlowKey>>,
}

impl Counts {
    fn of(sample: &Sample, packets: u64) -> Counts {
        let key = &sample.flow;
        let header = key.template.ethernet_header_len();
        let dropped = if sample.is_forwarded { 0 } else { packets };
        let layer2 = packets.saturating_mul(sample.frame_len.into());
        let multicast = key.template.direction == Direction::Egress && receivers(key.mac.dst) == Receivers::Several;
        let post_multicast = if multicast { packets } else { 0 };
        let mut counts = Counts { packets, dropped, layer2, post_multicast, ..Counts::default() };
        if key.template.l3 != L3::Other {
            let len = sample.frame_len.saturating_sub(header.into()).min(u16::MAX.into());
            let octets = |packets: u64| packets.saturating_mul(len.into());
            counts.octets = octets(packets);
            counts.dropped_octets = octets(dropped);
            counts.squares = octets(octets(packets));
            counts.post_multicast_octets = octets(post_multicast);
            (counts.shortest, counts.longest) = (len as u16, len as u16);
        }
        if key.template.l4 == L4::Tcp {
            let flags = counts.tcp.iter_mut().enumerate().filter(|(bit, _)| sample.tcp_flags >> bit & 1 != 0);
            flags.for_each(|(_, count)| *count = packets);
        }
        counts
    }

    fn add(&mut self, other: &Counts) {
        let pairs = [
            (&mut self.packets, other.packets),
            (&mut self.dropped, other.dropped),
            (&mut self.layer2, other.layer2),
            (&mut self.octets, other.octets),
            (&mut self.dropped_octets, other.dropped_octets),
            (&mut self.squares, other.squares),
            (&mut self.post_multicast, other.post_multicast),
            (&mut self.post_multicast_octets, other.post_multicast_octets),
        ];
        for (sum, more) in pairs {
            *sum = sum.wrapping_add(more);
        }
        for (sum, more) in self.tcp.iter_mut().zip(other.tcp) {
            *sum = sum.wrapping_add(more);
        }
        self.longest = self.longest.max(other.longest);
        self.shortest = if self.shortest == 0 { other.shortest } else { self.shortest.min(other.shortest) };
    }
}

/// To how many a frame goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Receivers {
    One,
    Several,
    All,
}

fn receivers(dst: [u8; 6]) -> Receivers {
    match dst {
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => Receivers::All,
        [first, ..] if first & 1 != 0 => Receivers::Several,
        _ => Receivers::One,
    }
}

impl Totals {
    /// Counts a sample that stands for so many packets. Returns what it adds to its flow.
    pub fn add(&mut self, sample: &Sample, packets: u64) -> Counts {
        let by_receivers = match sample.flow.template.direction {
            Direction::Ingress => &mut self.ingress,
            Direction::Egress => &mut self.egress,
        };
        let count = &mut by_receivers[receivers(sample.flow.mac.dst) as usize];
        *count = count.wrapping_add(packets);
        Counts::of(sample, packets)
    }
}

impl Cache {
    /// Flows in it.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Adds a sample to its flow. True where that is a new one.
    pub fn add(&mut self, key: FlowKey, counts: &Counts, totals: &Totals, now: Time) -> bool {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.counts.add(counts);
            flow.totals = *totals;
            flow.end = now;
            return false;
        }
        let key = Arc::new(key);
        self.flows.insert(key.clone(), Flow { start: now, end: now, counts: *counts, totals: *totals });
        self.order.push_back(key);
        true
    }

    /// Takes the oldest flow, if it is due: it was kept for `timeout`, or there are more than `most`.
    pub fn take_due(&mut self, now: Time, timeout: Duration, most: u32) -> Option<(Arc<FlowKey>, Flow, EndReason)> {
        let oldest = self.flows.get(self.order.front()?)?;
        let reason = if now >= oldest.start + timeout {
            EndReason::ActiveTimeout
        } else if self.flows.len() > most.min(MAX_FLOWS) as usize {
            EndReason::LackOfResources
        } else {
            return None;
        };
        let (key, flow) = self.take_oldest()?;
        Some((key, flow, reason))
    }

    /// Takes the oldest flow.
    pub fn take_oldest(&mut self) -> Option<(Arc<FlowKey>, Flow)> {
        let key = self.order.pop_front()?;
        let flow = self.flows.remove(&key)?;
        Some((key, flow))
    }

    /// When the next flow is due.
    pub fn next(&self, timeout: Duration) -> Option<Time> {
        Some(self.flows.get(self.order.front()?)?.start + timeout)
    }
}
