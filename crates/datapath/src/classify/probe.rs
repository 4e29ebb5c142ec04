//! By which tier a worker would find the flow of a frame now, for who only wants to know: nothing is inserted, counted or
//! forwarded. The steps are those of [`classify`](super::batch::classify), for one frame and with the caches as they are.

use packet::flow::extract::{VlanLimit, extract};
use packet::flow::outline::{Envelope, Outline};
use packet::{Key, Packet};

use super::batch::Caches;
use super::plan::Aligned;
use super::scan::{MaskedHeaders, scan};
use crate::action::PortNo;
use crate::classify::cpu::simd::Portable;
use crate::classify::table::megaflow::LookupContext;

/// Where the flow of a packet is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheTier {
    /// Tier 0: the flows of the port match no more than a packet's mark.
    Simple,
    /// Tier 1: the header cache.
    Headers,
    /// Tier 2: the key cache, for unusual headers.
    Keys,
    /// Tier 2: the megaflow table.
    Megaflow,
}

impl CacheTier {
    /// What it is called in `weir stats`.
    pub fn describe(self) -> &'static str {
        match self {
            CacheTier::Simple => "tier 0 (simple match)",
            CacheTier::Headers => "tier 1 (header cache)",
            CacheTier::Keys => "tier 2 (key cache)",
            CacheTier::Megaflow => "tier 2 (megaflow)",
        }
    }
}

/// The tier for a frame that came in at a port; `None` where no flow matches it.
pub fn tier(
    at: LookupContext<'_>,
    frame: &Packet,
    caches: &Caches,
    port: PortNo,
    vlan_limit: VlanLimit,
) -> Option<CacheTier> {
    let LookupContext { list, table, worker, guard, .. } = at;
    let mut key = Key::new();
    extract(frame.data(), &mut key, vlan_limit);
    key.common_mut().in_port = port.0.into();
    table.find(&key, guard)?;
    if list.plan.simple {
        return Some(CacheTier::Simple);
    }
    let mut headers = Box::<MaskedHeaders>::default();
    let scan = scan(Portable, &list.plan, std::slice::from_ref(frame), vlan_limit, &mut headers);
    let line = if scan.unusual == 0 { Some(headers.lines[0]) } else { line_of_unusual(at, frame, &key, vlan_limit) };
    let (flow_counters, keys) = (table.arena.flow_counters(worker), &caches.exact);
    match line {
        Some(line) if caches.headers.is_on() && caches.headers.has(&line.0, flow_counters) => Some(CacheTier::Headers),
        None if list.subtables.len() > 1 && keys.has(at, &key) => Some(CacheTier::Keys),
        _ => Some(CacheTier::Megaflow),
    }
}

/// The line of a frame with unusual headers, from its outline or its key.
fn line_of_unusual(at: LookupContext<'_>, frame: &Packet, key: &Key, vlan_limit: VlanLimit) -> Option<Aligned> {
    let (plan, frame) = (&at.list.plan, frame.data());
    if !plan.has_lines_of_unusual() {
        return None;
    }
    let mut line = Aligned([0; 8]);
    let envelope = Envelope::of(frame, vlan_limit).unwrap_or(Envelope::NONE);
    let outline = match (envelope.is_ipv4, envelope.is_ipv6) {
        (true, _) => Outline::of_ipv4(frame, envelope),
        (_, true) => Outline::of_ipv6(frame, envelope),
        _ => None,
    };
    match outline {
        Some(outline) if plan.write_line_of_outline(&outline, frame, &mut line.0) => Some(line),
        _ => plan.line_of_key(key),
    }
}
