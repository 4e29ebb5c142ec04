//! Trails: what is known of the way of a tracked packet, while the packet goes round.
//!
//! A trail begins with the first pass of a packet of an established connection, whose line was looked up in the header
//! cache, and ends with its last pass, where [`fused`](super::fused) makes one entry of it. It is given up where
//! something on the way is not the same for all packets of the connection's direction.

use ::conntrack::nat::Translation;
use ::conntrack::table::remembered::Remembered;
use packet::BATCH_SIZE;

use crate::actions::compact::CompactRewrite;
use crate::classify::cache::fused::{FlowAt, LATER, PASSES, SteppedWay, TRACKED, TRANSLATIONS, Translations};
use crate::classify::plan::Aligned;

/// The way of a packet so far.
#[derive(Clone)]
pub struct Trail {
    /// The line that the packet was looked up by.
    pub line: Aligned,
    /// Its hash.
    pub hash: u64,
    /// The serial number of the plan that the line was made by.
    pub serial: u64,
    /// The flows, the first one first.
    pub flows: [FlowAt; PASSES],
    /// How many there are.
    pub passes: u8,
    /// TCP, not UDP.
    pub is_tcp: bool,
    /// Offset of the IP header in the frame, as it came.
    pub ip: u8,
    /// Offset of the TCP or UDP header.
    pub transport: u8,
    /// What was done is more than what a [`Fused`](crate::classify::cache::fused::Fused) alone can say.
    pub in_steps: bool,
    /// Samples were taken before it was tracked for the first time.
    pub is_sampled: bool,
    /// Copies were sent then.
    pub is_copied: bool,
    /// What was rewritten so far, if that is all.
    pub rewrite: Option<CompactRewrite>,
    /// The connections that it belongs to.
    pub tracked: Tracked,
}

impl Trail {
    /// Notes what a program has rewritten.
    pub fn rewrites(&mut self, rewrite: &CompactRewrite) {
        self.rewrite = Some(self.rewrite.map_or(*rewrite, |before| before.then(rewrite)));
    }

    /// Notes that the packet has come to another flow. False where there is no room for that.
    pub fn add(&mut self, flow: FlowAt) -> bool {
        let Some(last) = self.flows.get_mut(usize::from(self.passes)) else { return false };
        *last = flow;
        self.passes += 1;
        true
    }

    /// The flows behind the first one, the last one first, if there are so few.
    pub fn later(&self) -> Option<[FlowAt; LATER]> {
        let mut later = [FlowAt::NONE; LATER];
        let flows = self.flows[1..usize::from(self.passes)].iter().rev();
        if flows.len() > LATER {
            return None;
        }
        later.iter_mut().zip(flows).for_each(|(to, flow)| *to = *flow);
        Some(later)
    }

    /// The way in steps.
    pub fn way(&self) -> SteppedWay {
        let Tracked { connections, translated, count, .. } = self.tracked;
        SteppedWay { flows: self.flows, passes: self.passes, tracked: count, translated, connections }
    }
}

/// The connections that a packet belongs to, as it was tracked, and how it was translated then: what packets of one direction have in common as long as none of
/// them changes.
#[derive(Clone)]
pub struct Tracked {
    connections: [Remembered; TRACKED],
    /// See [`SteppedWay::translated`].
    translated: [u8; TRACKED],
    count: u8,
    translations: Translations,
    translation_count: u8,
}

impl Tracked {
    /// Those of a packet that was tracked for the first time.
    pub fn new(first: Remembered, translation: Option<Translation>) -> Tracked {
        let mut tracked = Tracked {
            connections: [first; TRACKED],
            translated: [0; TRACKED],
            count: 0,
            translations: [Translation::default(); TRANSLATIONS],
            translation_count: 0,
        };
        tracked.add(first, translation);
        tracked
    }

    /// Notes that the packet was tracked once more. False where there is no room for that.
    pub fn add(&mut self, connection: Remembered, translation: Option<Translation>) -> bool {
        let at = usize::from(self.count);
        if at == TRACKED || translation.is_some() && usize::from(self.translation_count) == TRANSLATIONS {
            return false;
        }
        if let Some(translation) = translation {
            self.translations[usize::from(self.translation_count)] = translation;
            self.translation_count += 1;
            self.translated[at] = self.translation_count;
        }
        self.connections[at] = connection;
        self.count += 1;
        true
    }

    /// The translations, if there are any.
    pub fn translations(&self) -> Option<&Translations> {
        (self.translation_count > 0).then_some(&self.translations)
    }

    /// The first connection.
    pub fn first(&self) -> Remembered {
        self.connections[0]
    }

    /// The first connection, another one if there is one, and the translation for either; `None` where there are more.
    pub fn few(&self) -> Option<(Remembered, Option<Remembered>, Option<&Translation>)> {
        let (first, mut second) = (self.connections[0], None);
        for connection in &self.connections[1..usize::from(self.count)] {
            if *connection != first && *second.get_or_insert(*connection) != *connection {
                return None;
            }
        }
        let translation = match self.translation_count {
            0 => None,
            1 => self.translations.first(),
            _ => return None,
        };
        Some((first, second, translation))
    }
}

/// The trails of a batch's packets.
#[derive(Default)]
pub struct Trails {
    /// Packets that have one.
    set: u32,
    /// Allocated at the first packet that has one, and kept.
    trails: Option<Box<[Option<Trail>; BATCH_SIZE]>>,
}

impl Trails {
    /// The packets that have a trail, as a set.
    #[inline(always)]
    pub fn set_of(&self) -> u32 {
        self.set
    }

    /// Forgets all of them.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.set = 0;
    }

    /// The trail of packet `i`.
    pub fn get(&self, i: usize) -> Option<&Trail> {
        if self.set >> i & 1 == 0 {
            return None;
        }
        self.trails.as_ref()?.get(i)?.as_ref()
    }

    /// Keeps the trail of packet `i`.
    pub fn set(&mut self, i: usize, trail: &Trail) {
        let trails = self.trails.get_or_insert_with(none);
        trails[i] = Some(trail.clone());
        self.set |= 1 << i;
    }
}

#[cold]
fn none() -> Box<[Option<Trail>; BATCH_SIZE]> {
    Box::new(std::array::from_fn(|_| None))
}
