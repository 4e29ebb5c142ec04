//! Trails: what is known of the way of a tracked packet, while the packet goes round.
//!
//! A trail begins with the first pass of a packet of an established connection, whose line was looked up in the header
//! cache, and ends with its last pass, where [`fused`](super::fused) makes one entry of it. It is given up where
//! something on the way is not the same for all packets of the connection's direction.

use ::conntrack::nat::Translation;
use ::conntrack::table::remembered::Remembered;
use packet::BATCH_SIZE;

use crate::classify::cache::fused::{FlowAt, LATER};
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
    /// The flow of the first pass.
    pub first: FlowAt,
    /// Those of the later passes, as many as `passes` says.
    pub later: [FlowAt; LATER],
    /// How many later passes there have been.
    pub passes: u8,
    /// TCP, not UDP.
    pub is_tcp: bool,
    /// Offset of the IP header in the frame.
    pub ip: u8,
    /// Offset of the TCP or UDP header.
    pub transport: u8,
    /// The connections that it belongs to.
    pub tracked: Tracked,
}

/// The connections that a packet belongs to, and how it was translated for them: what packets of one direction have in common as long as none of them changes.
#[derive(Clone)]
pub struct Tracked {
    /// The first one, and the direction.
    pub first: Remembered,
    /// A second one, in another zone.
    pub second: Option<Remembered>,
    /// The translation for either.
    pub translation: Option<Translation>,
}

impl Tracked {
    /// Those of a packet that was tracked for the first time.
    pub fn new(first: Remembered, translation: Option<Translation>) -> Tracked {
        Tracked { first, second: None, translation }
    }

    /// Notes that the packet was tracked once more. False where there is no room for that, or the packet was translated once more, too.
    pub fn add(&mut self, remembered: Remembered, translation: Option<Translation>) -> bool {
        if self.translation.is_some() && translation.is_some() {
            return false;
        }
        if self.first == remembered || self.second == Some(remembered) {
            return translation.is_none();
        }
        if self.second.is_some() {
            return false;
        }
        self.second = Some(remembered);
        self.translation = self.translation.or(translation);
        true
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
