//! A flow of the datapath, as the tables are and as they would be.
//!
//! All packets of a flow take the same way through the tables as they are. A packet takes another one only from a look-up on
//! that finds a rule which would come, or would have found one which would go. So it is enough to look at those packets of the
//! flow that match such a rule of a table on the way, as far as that can be told from the packet as it came in:
//!
//! 1. The flow's packet is translated as the tables are. That tells the way, and which headers were rewritten on it.
//! 2. For each changed rule of a table on the way, the flow's packets are narrowed to those that can match it. Bits that were
//!    rewritten before the look-up, and registers, narrow nothing.
//! 3. Each such region is translated as the tables would be. The translation says which bits it has looked at: packets that
//!    differ in others of them are split off, and are looked at in turn, until none are left.
//!
//! Step 3 ends after [`MOST_TRANSLATIONS`]; then it is [not decided](FlowVerdict::Undecided) whether any packet is treated otherwise.

use std::collections::VecDeque;

use datapath::{Action, FlowDump, PortNo};
use packet::flow::BlockId;
use packet::{Key, Mask, Time};

use super::WhatIf;
use super::regions::{Region, of_packet};
use crate::model::forwarding::Forwarding;
use crate::model::shadow::TableShadow;
use crate::model::tunnels::Located;
use crate::slowpath::drop_sites::TableDrop;
use crate::slowpath::record::{Deps, FlowRecord};
use crate::switch::DatapathInput;
use crate::xlate::{Interners, LookUp, Translation};

/// Most translations for one flow.
const MOST_TRANSLATIONS: usize = 1024;

/// Most steps of all of them. Nobody can change the tables meanwhile: it is no more than one packet may take, which is some tens of
/// milliseconds, and what the last one takes.
const MOST_WORK: usize = 1 << 18;

/// What changes would do to the packets of a flow.
pub enum FlowVerdict {
    /// Nothing.
    Unchanged,
    /// Some or all of them would be treated otherwise.
    Changed(Box<Difference>),
    /// There are too many cases to look at each; none was found yet in which they would be treated otherwise.
    Undecided,
}

/// A difference in the treatment of packets.
pub struct Difference {
    /// A packet of the flow that would be treated otherwise.
    pub key: Box<Key>,
    /// All packets that equal it under this mask would be.
    pub mask: Box<Mask>,
    /// Whether these are all of the flow's.
    pub whole: bool,
    /// What is done with them.
    pub before: Treatment,
    /// What would be done.
    pub after: Treatment,
}

/// What is done with packets.
#[derive(Clone)]
pub struct Treatment {
    /// The datapath actions. The numbers of pipelines and packet-ins in them mean something only in comparison.
    pub actions: Vec<Action>,
    /// Where the tables drop them, if they do.
    pub dropped: Option<TableDrop>,
    /// Why the translation gives up, if it does.
    pub error: Option<String>,
    /// Each packet is translated anew.
    pub slow: bool,
}

impl Treatment {
    /// Whether packets are treated alike, whatever rule says so, and for whatever reason they are dropped.
    fn is_like(&self, other: &Translation) -> bool {
        let told = |action: &&Action| !matches!(action, Action::Drop(_));
        self.actions.iter().filter(told).eq(other.actions.iter().filter(told)) && self.slow == other.slow
    }
}

impl WhatIf {
    /// Compares what is done with the packets of a flow. Locks the tables for that.
    pub fn compare(&self, flow: &FlowDump) -> FlowVerdict {
        if flow.tag.downcast_ref::<FlowRecord>().is_none() {
            // An operator has added it: the tables have no say.
            return FlowVerdict::Unchanged;
        }
        let forwarding = self.switch.forwarding.read();
        let interners = Interners::default();
        let now = self.switch.clock.now();
        let comparison = Comparison { what_if: self, forwarding: &forwarding, interners: &interners, now };
        comparison.compare(flow)
    }
}

/// A comparison under way.
struct Comparison<'a> {
    what_if: &'a WhatIf,
    forwarding: &'a Forwarding,
    /// For this flow: equal pipelines have equal numbers, before and after.
    interners: &'a Interners,
    now: Time,
}

impl Comparison<'_> {
    fn translate(&self, key: &Key, changed: bool) -> Option<Translation> {
        let look_up = LookUp::with(changed.then_some(&self.what_if.shadow));
        let interners = self.interners;
        let input = DatapathInput { interners, look_up, learning: None, now: self.now, bytes: None };
        self.what_if.switch.translate_as(self.forwarding, key, &input)
    }

    fn compare(&self, flow: &FlowDump) -> FlowVerdict {
        // A flow of a port that has gone goes, too.
        let Some(before) = self.translate(&flow.key, false) else { return FlowVerdict::Unchanged };
        let mut whole = Region { key: flow.key.clone(), mask: Box::new(Mask::clone(&flow.mask)) };
        // Where the flow is out of date, only the packets like its own are known to take this way.
        whole.mask.union(&before.mask);
        let treatment = self.treatment(&before);
        let mut search = Exploration { left: MOST_TRANSLATIONS, work: MOST_WORK, is_complete: true };
        let regions = self.regions(&whole, &before).collect();
        if let Some((region, after)) = search.explore(self, regions, &treatment) {
            let mut mask = region.mask;
            mask.union(&after.mask);
            let whole = whole.is_within(&mask);
            let (key, after) = (region.key, self.treatment(&after));
            return FlowVerdict::Changed(Box::new(Difference { key, mask, whole, before: treatment, after }));
        }
        if search.is_complete { FlowVerdict::Unchanged } else { FlowVerdict::Undecided }
    }

    /// The parts of a flow's packets that may be treated otherwise.
    fn regions<'r>(&'r self, whole: &'r Region, before: &'r Translation) -> impl Iterator<Item = Region> + 'r {
        let shadow = &self.what_if.shadow;
        let deps = before.record.deps.iter().find(|deps| deps.bridge == shadow.bridge);
        let on_the_way = deps.into_iter().flat_map(move |deps| {
            shadow.tables.iter().filter(move |(n, _)| deps.has_table(**n)).map(move |(n, table)| (deps, *n, table))
        });
        let of_port = self.with_openflow_port(whole);
        on_the_way.flat_map(move |(deps, n, table)| self.regions_of(whole, &of_port, (deps, n, table)))
    }

    fn regions_of(&self, whole: &Region, of_port: &Region, of: (&Deps, u8, &TableShadow)) -> Vec<Region> {
        let (deps, n, table) = of;
        let Some(patterns) = &table.patterns else { return vec![whole.clone()] };
        let overwritten = deps.overwritten_at(n);
        let narrowed = patterns.iter().filter_map(|(key, mask)| {
            let mut region = of_port.narrowed(key, &of_packet(mask, overwritten))?;
            region.key.common_mut().in_port = whole.key.common().in_port;
            Some(region)
        });
        narrowed.collect()
    }

    /// The same with the number that the port has in its bridge: that is what rules match.
    fn with_openflow_port(&self, region: &Region) -> Region {
        let mut region = region.clone();
        let port = match self.forwarding.tunnels.locate(&region.key) {
            Located::Tunnel((_, port)) => Some(port.0),
            _ => {
                let number = PortNo(region.key.common().in_port.get());
                self.forwarding.by_dp_port.get(&number).map(|(_, port)| port.0)
            }
        };
        if let Some(port) = port {
            region.key.common_mut().in_port = port.into();
        }
        debug_assert!(region.mask.0.present().has(BlockId::Common));
        region
    }

    fn treatment(&self, translation: &Translation) -> Treatment {
        let dropped = translation.dropped.as_ref().and_then(|dropped| {
            let bridge = self.forwarding.bridges.get(&dropped.bridge)?;
            Some(dropped.describe(&bridge.config.name, PortNo(0)))
        });
        let error = translation.error.map(|error| error.to_string());
        Treatment { actions: translation.actions.clone(), dropped, error, slow: translation.slow }
    }
}

/// How far the look at one flow has got.
struct Exploration {
    /// Translations that it may still take.
    left: usize,
    /// Steps of them.
    work: usize,
    /// Whether no packets were left out.
    is_complete: bool,
}

impl Exploration {
    /// Finds packets of some regions that would be treated otherwise than it is said. A packet of each region is looked at before
    /// regions are split.
    fn explore(
        &mut self,
        by: &Comparison<'_>,
        mut parts: VecDeque<Region>,
        before: &Treatment,
    ) -> Option<(Region, Translation)> {
        while let Some(region) = parts.pop_front() {
            if self.left == 0 || self.work == 0 {
                self.is_complete = false;
                return None;
            }
            self.left -= 1;
            let Some(after) = by.translate(&region.key, true) else { continue };
            self.work = self.work.saturating_sub(after.work);
            if !before.is_like(&after) {
                return Some((region, after));
            }
            if !region.is_within(&after.mask) {
                // What is not looked at any more is no reason to stop: others may be found.
                self.is_complete &= region.split(&after.mask, self.left, &mut parts);
            }
        }
        None
    }
}
