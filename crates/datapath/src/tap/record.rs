//! What is shown of a packet.

use packet::Time;

use super::ring::Header;
use crate::action::PortNo;
use crate::drop::{DropReason, DropStage};
use crate::upcall::FlowId;

/// What has become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It came in at the port. Where it was dropped at once, by its flow or before it had one, the reason is known, and it is not shown
    /// again for that.
    Received(Option<DropReason>),
    /// It was dropped later.
    Dropped(DropReason),
    /// It was handed to the port, which sends it.
    Sent,
}

impl Event {
    /// Why the packet was dropped, if it was.
    pub fn reason(self) -> Option<DropReason> {
        match self {
            Event::Received(reason) => reason,
            Event::Dropped(reason) => Some(reason),
            Event::Sent => None,
        }
    }

    /// The event of a drop that nothing has been said of yet: a reason of the first stages ends packets that no tap has seen.
    pub fn of_drop(reason: DropReason) -> Event {
        match reason.stage() {
            DropStage::Receive | DropStage::SlowPath => Event::Received(Some(reason)),
            DropStage::Translate | DropStage::Act | DropStage::Output => Event::Dropped(reason),
        }
    }

    /// Whether the port is the one that the packet leaves by, and not the one that it came in at.
    pub fn is_outbound(self) -> bool {
        match self {
            Event::Sent => true,
            Event::Received(_) => false,
            Event::Dropped(reason) => reason.is_of_output_port(),
        }
    }
}

/// A packet that a tap has seen. Its frame is beside it, maybe cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When: the beginning of the worker's turn.
    pub time: Time,
    /// What has become of it.
    pub event: Event,
    /// The port at which it came in, or by which it was to leave: see [`Event::is_outbound`].
    pub port: PortNo,
    /// The flow whose actions apply. `None` where it has none, or where it is not known of a later drop.
    pub flow: Option<FlowId>,
    /// Length of the whole frame.
    pub length: u32,
    /// The recirculation stage, where it is known; zero: the first one.
    pub recirc_id: u32,
}

impl Record {
    /// The record as it lies in a ring.
    pub fn encode(&self) -> Header {
        let (kind, reason) = match self.event {
            Event::Received(reason) => (0, reason.map_or(0, |reason| reason as u64 + 1)),
            Event::Dropped(reason) => (1, reason as u64 + 1),
            Event::Sent => (2, 0),
        };
        let flow = self.flow.map_or(0, |flow| flow.0);
        let place = u64::from(self.port.0) | u64::from(self.length) << 32;
        [kind | reason << 8, self.time.0, place, flow, u64::from(self.recirc_id)]
    }

    /// Reads what [`encode`](Record::encode) has written.
    pub fn decode(header: Header) -> Record {
        let [what, time, place, flow, recirc_id] = header;
        let reason = (what >> 8 & 0xff).checked_sub(1).and_then(|number| DropReason::ALL.get(number as usize).copied());
        let event = match (what & 0xff, reason) {
            (0, reason) => Event::Received(reason),
            (1, Some(reason)) => Event::Dropped(reason),
            _ => Event::Sent,
        };
        Record {
            time: Time(time),
            event,
            port: PortNo(place as u32),
            // No flow has the number zero: that entry of the arena is never live.
            flow: (flow != 0).then_some(FlowId(flow)),
            length: (place >> 32) as u32,
            recirc_id: recirc_id as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back() {
        let reasons = DropReason::ALL.iter().copied();
        let events = [Event::Received(None), Event::Sent]
            .into_iter()
            .chain(reasons.flat_map(|reason| [Event::Received(Some(reason)), Event::Dropped(reason)]));
        for event in events {
            for flow in [None, Some(FlowId(u64::MAX))] {
                let (time, port) = (Time(u64::MAX - 1), PortNo(u32::MAX - 2));
                let record = Record { time, event, port, flow, length: u32::MAX - 3, recirc_id: u32::MAX };
                assert_eq!(Record::decode(record.encode()), record);
            }
        }
    }

    #[test]
    fn drops_are_shown_at_the_port_that_counts_them() {
        let at_output: Vec<_> =
            DropReason::ALL.iter().filter(|&&reason| Event::Dropped(reason).is_outbound()).map(|r| r.name()).collect();
        assert_eq!(at_output, ["port_down", "too_big", "egress_policer", "queue_full"]);
        assert_eq!(Event::of_drop(DropReason::IngressFilter), Event::Received(Some(DropReason::IngressFilter)));
        assert_eq!(Event::of_drop(DropReason::Meter), Event::Dropped(DropReason::Meter));
    }
}
