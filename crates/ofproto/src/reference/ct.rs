//! Connection tracking, packet by packet. Only the tracker itself is the real one (it has a reference of its own).

use conntrack::headers::{Headers, Verify};
use conntrack::{Metadata, Request, Tracker};
use openflow::Action;
use openflow::action::{Ct, CtZone};
use packet::{Field, Key, Time};

use super::{List, PacketInFlight, Pass, Reference, Step};

/// The connections, and the time.
pub struct Connections {
    tracker: Tracker,
    pub now: Time,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections { tracker: Tracker::new(1000, [1, 2]), now: Time(0) }
    }
}

/// What connection tracking has found out about a packet.
#[derive(Clone, Copy, Default)]
pub struct Tracked {
    metadata: Metadata,
    /// Whether the tables see it.
    is_visible: bool,
}

impl Tracked {
    /// Adds what the tables see to the key of a packet.
    pub fn show(&self, key: &mut Key) {
        if self.is_visible {
            datapath::conntrack::metadata::write(&self.metadata, key);
        }
    }

    /// Puts the connection's original direction in the place of the packet's own headers. False where there is none.
    pub fn show_original(&self, key: &mut Key) -> bool {
        let Some(orig) = self.metadata.orig.filter(|_| self.is_visible && key.common().dl_type.get() == 0x0800) else {
            return false;
        };
        let (own, tuple) = (key.clone(), key);
        let pairs = [
            (Field::NwSrc, Field::CtNwSrc),
            (Field::NwDst, Field::CtNwDst),
            (Field::NwProto, Field::CtNwProto),
            (Field::TcpSrc, Field::CtTpSrc),
            (Field::TcpDst, Field::CtTpDst),
        ];
        assert_eq!(u128::from(orig.proto()), own.get(Field::CtNwProto));
        for (plain, original) in pairs {
            tuple.set(plain, own.get(original));
            tuple.set(original, own.get(plain));
        }
        true
    }
}

impl Reference {
    pub(super) fn ct(&mut self, in_flight: &mut PacketInFlight, ct: &Ct, pass: &mut Pass) {
        let (mut key, layers) = in_flight.frame.key();
        let mut seen = in_flight.pipeline.clone();
        in_flight.tracked.show(&mut seen);
        let zone = match &ct.zone {
            CtZone::Immediate(zone) => *zone,
            CtZone::Field(src) => src.in_key().unwrap().get(&seen) as u16,
        };
        let (mut mark, mut label) = ((0, 0), (0, 0));
        for action in &ct.actions {
            let (field, value, mask) = match action {
                Action::SetField { field, value, mask } => (*field, *value, *mask),
                Action::RegMove { src, dst } => {
                    let (src, dst) = (src.in_key().unwrap(), dst.in_key().unwrap());
                    (dst.field, src.get(&seen) << dst.ofs, dst.mask())
                }
                other => panic!("the reference does not know {other:?} in ct"),
            };
            seen.set(field, seen.get(field) & !mask | value & mask);
            match field {
                Field::CtMark => mark = (mark.0 & !mask | value & mask, mark.1 | mask),
                _ => label = (label.0 & !mask | value & mask, label.1 | mask),
            }
        }
        let request = Request {
            zone,
            commit: ct.commit,
            force: ct.force,
            mark: (mark.1 != 0).then_some((mark.0 as u32, mark.1 as u32)),
            label: (label.1 != 0).then_some(label),
            ..Request::default()
        };
        key.common_mut().in_port = in_flight.in_port.0.into();
        let verify = Verify { ip: true, transport: true };
        let before = in_flight.tracked.metadata;
        let connections = &mut self.connections;
        let metadata = match Headers::of(&in_flight.frame.bytes, &key, layers, zone, verify) {
            Ok(headers) => connections.tracker.track(&headers, &before, &request, connections.now).metadata,
            Err(_) => connections.tracker.malformed(zone),
        };
        if let Some(table) = ct.table {
            let mut copy = in_flight.clone();
            copy.tracked = Tracked { metadata, is_visible: true };
            copy.rest = vec![List::of([Step::Table(table.0)])];
            copy.queue(pass);
        }
        in_flight.tracked = Tracked { metadata, is_visible: false };
    }

    pub(super) fn ct_clear(&mut self, in_flight: &mut PacketInFlight) {
        if in_flight.tracked.is_visible {
            in_flight.tracked = Tracked::default();
        }
    }
}
