//! What a tap is about.

use std::sync::Arc;

use packet::Packet;

use super::record::Event;
use crate::action::PortNo;

/// Chooses packets by their frames. Called by workers, so it takes no lock and no memory.
pub trait TapFilter: Send + Sync {
    /// Whether the tap is about the packet, as it is now.
    fn matches(&self, packet: &Packet) -> bool;
}

/// What a tap is about.
#[derive(Clone)]
pub struct TapSettings {
    /// Packets that came in, with those that are dropped at their input port.
    pub received: bool,
    /// Packets that go out, with those that are dropped at their output port.
    pub sent: bool,
    /// Only packets that are dropped.
    pub drops_only: bool,
    /// Most bytes of a frame that are shown.
    pub snap_length: u32,
    /// Most packets in a second; `None`: as many as the reader takes.
    pub rate: Option<u32>,
    /// Only these packets.
    pub filter: Option<Arc<dyn TapFilter>>,
}

impl Default for TapSettings {
    fn default() -> TapSettings {
        let (received, sent, drops_only) = (true, true, false);
        TapSettings { received, sent, drops_only, snap_length: u32::MAX, rate: None, filter: None }
    }
}

impl TapSettings {
    /// Whether the tap is about such events.
    pub fn wants(&self, event: Event) -> bool {
        let direction = if event.is_outbound() { self.sent } else { self.received };
        direction && (!self.drops_only || event.reason().is_some())
    }
}

/// A set of ports. `None`: all of them.
pub type Ports = Option<Box<[PortNo]>>;

/// A set of ports, for look-ups: a bit for each number, up to the highest one.
#[derive(Default)]
pub struct PortSet(Option<Box<[u64]>>);

impl PortSet {
    /// The set of these.
    pub fn new(ports: &Ports) -> PortSet {
        let Some(ports) = ports else { return PortSet(None) };
        let words = ports.iter().map(|port| port.0 as usize / 64 + 1).max().unwrap_or(0);
        let mut bits = vec![0; words];
        ports.iter().for_each(|port| bits[port.0 as usize / 64] |= 1 << (port.0 % 64));
        PortSet(Some(bits.into()))
    }

    /// Whether the port is in the set.
    pub fn has(&self, port: PortNo) -> bool {
        let Some(bits) = &self.0 else { return true };
        bits.get(port.0 as usize / 64).is_some_and(|word| word >> (port.0 % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop::DropReason;

    #[test]
    fn a_set_has_its_ports_and_no_others() {
        let has = |ports: &[u32], port| {
            PortSet::new(&Some(ports.iter().map(|&port| PortNo(port)).collect())).has(PortNo(port))
        };
        assert!(has(&[0, 64, 200], 0) && has(&[0, 64, 200], 64) && has(&[0, 64, 200], 200));
        assert!(!has(&[0, 64, 200], 1) && !has(&[0, 64, 200], 65) && !has(&[0, 64, 200], 1000) && !has(&[], 0));
        assert!(PortSet::new(&None).has(PortNo(7)));
    }

    #[test]
    fn directions_and_drops_choose_events() {
        let events = [
            Event::Received(None),
            Event::Received(Some(DropReason::Rule)),
            Event::Dropped(DropReason::Meter),
            Event::Dropped(DropReason::PortDown),
            Event::Sent,
        ];
        let wanted = |received, sent, drops_only| {
            let settings = TapSettings { received, sent, drops_only, ..TapSettings::default() };
            events.map(|event| settings.wants(event))
        };
        assert_eq!(wanted(true, true, false), [true; 5]);
        assert_eq!(wanted(true, false, false), [true, true, true, false, false]);
        assert_eq!(wanted(false, true, false), [false, false, false, true, true]);
        assert_eq!(wanted(true, true, true), [false, true, true, true, false]);
    }
}
