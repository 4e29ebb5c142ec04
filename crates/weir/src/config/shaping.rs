//! Shapers of the datapath: QoS with queues, on ports that have no kernel to see to it.

use datapath::{QueueRates, ShaperLimits};
use ports::qos::Settings;
use ports::{Port, Qos};

/// The types of QoS that are a shaper's.
pub const TYPES: [&str; 2] = ["linux-htb", "linux-hfsc"];

/// The rate of a port whose speed is not known, in bit/s.
const DEFAULT_RATE: u64 = 100_000_000;
/// Bytes that a queue sends in a second at least, and at once: a frame.
const FRAME: u64 = 1500;

/// The types of QoS that the datapath has for a port.
pub fn types(device: &dyn Port) -> &'static [&'static str] {
    if device.qos_types().is_empty() { &TYPES } else { &[] }
}

/// What a QoS asks of the datapath for a port; `None` where it is for the port itself, or for nobody. Defaults are those of the
/// kernel's disciplines ([`ports::link::qdisc`]).
pub fn limits(device: &dyn Port, qos: &Qos) -> Option<ShaperLimits> {
    let kind = types(device).iter().find(|kind| **kind == qos.kind.name)?;
    let link = || Some(u64::from(device.features().speed_mbps) * 1_000_000).filter(|rate| *rate > 0);
    let max = said(&qos.settings, "max-rate").or_else(link).unwrap_or(DEFAULT_RATE);
    let queues = qos.queues.iter().map(|(number, settings)| (*number, rates(settings, max))).collect();
    Some(ShaperLimits { kind, max, queues })
}

/// A number that is said, and not zero.
fn said(settings: &Settings, name: &str) -> Option<u64> {
    settings.get(name).copied().filter(|value| *value > 0)
}

fn rates(settings: &Settings, most: u64) -> QueueRates {
    let min = said(settings, "min-rate").unwrap_or(0).max(FRAME * 8).min(most);
    QueueRates {
        min,
        max: said(settings, "max-rate").unwrap_or(most).clamp(min, most),
        burst: said(settings, "burst").map_or(0, |bits| bits / 8).max(FRAME),
        priority: said(settings, "priority").unwrap_or(0),
    }
}
