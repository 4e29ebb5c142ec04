//! Fused connections: all that is done with the next packet of an established connection's direction, which an entry of
//! the header cache leads to.
//!
//! A packet that is tracked goes round: the flow of its first pass sends it to the tracker and back to classification,
//! where a flow decides by what the tracker has found out. As long as the connection stays as it is, and each of these
//! flows, the next packet with the same headers goes the same way. So the entry of the first flow gets the number of
//! the whole way: the connection, the flows of the later passes with their epochs, the translation, and what is done
//! in the end. [`conntrack::fused`](crate::conntrack::fused) makes and uses them.
//!
//! A fused connection has the number of its entry, so it goes with the entry, and none is ever searched for.

use conntrack::nat::{ShortTranslation, Translation};
use conntrack::table::remembered::Remembered;
use zerocopy::{Immutable, IntoBytes};

use crate::classify::mem::chunks::Chunks;
use crate::classify::mem::region::{Region, Zero};
use crate::classify::prefetch;
use crate::classify::table::arena::FastAction;
use crate::classify::table::flow_ref::FlowRef;

/// Most passes after the first one.
pub const LATER: usize = 2;

/// Most passes of a way in steps.
pub const PASSES: usize = 7;

/// How often packets are tracked at most on a way in steps.
pub const TRACKED: usize = 4;

/// How often they are translated at most.
pub const TRANSLATIONS: usize = 2;

/// A flow, as it was when a packet went its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct FlowAt {
    /// The flow.
    pub flow: FlowRef,
    /// Its epoch for the worker.
    pub epoch: u32,
}

impl FlowAt {
    /// No flow.
    pub const NONE: FlowAt = FlowAt { flow: FlowRef::NONE, epoch: 0 };
}

/// Flows in words, for comparisons.
#[inline(always)]
pub fn in_words(flows: &[FlowAt; LATER]) -> [u64; LATER] {
    zerocopy::transmute!(*flows)
}

/// How packets of a fused connection are translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Translated {
    /// Not at all.
    No,
    /// By the [`ShortTranslation`] of the connection.
    Short,
    /// By a [`Translation`] of its own, with addresses of IPv6.
    Long,
}

/// The protocol of a fused connection, and how many connections a packet belongs to on its way: one, or two in different zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FusedKind(u8);

impl FusedKind {
    /// TCP, or UDP. `is_double`: packets also belong to a second connection.
    pub fn new(is_tcp: bool, is_double: bool) -> FusedKind {
        FusedKind(u8::from(is_tcp) | u8::from(is_double) << 1)
    }

    /// The same; samples of packets are taken before they are tracked.
    pub fn with_samples(self) -> FusedKind {
        FusedKind(self.0 | 8)
    }

    /// Whether samples are taken. Those go their way in steps: [`FusedTable::way`].
    #[inline(always)]
    pub fn is_sampled(self) -> bool {
        self.0 & 8 != 0
    }

    /// The same; copies of packets are sent before they are tracked.
    pub fn with_copies(self) -> FusedKind {
        FusedKind(self.0 | 16)
    }

    /// Whether copies are sent. All may go their way in steps: [`FusedTable::way`].
    #[inline(always)]
    pub fn is_copied(self) -> bool {
        self.0 & 16 != 0
    }

    /// TCP, or UDP, whose packets go their way in steps.
    pub fn in_steps(is_tcp: bool) -> FusedKind {
        FusedKind(u8::from(is_tcp) | 4)
    }

    /// Whether packets go their way in steps: [`FusedTable::way`].
    #[inline(always)]
    pub fn is_in_steps(self) -> bool {
        self.0 & 4 != 0
    }

    /// TCP, and no other protocol.
    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether packets belong to a second connection: [`FusedTable::second`].
    #[inline(always)]
    pub fn is_double(self) -> bool {
        self.0 & 2 != 0
    }
}

/// What is done with the packets of a connection's direction.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Fused {
    /// The flows of the later passes, the last one first. Where there are fewer, [`FlowAt::NONE`] holds for ever.
    pub later: [FlowAt; LATER],
    /// The direction of the connection.
    pub remembered: Remembered,
    /// Of IPv4.
    pub translation: ShortTranslation,
    /// What is done with packets after their translation. A program is that of the last flow: one that only sends packets or drops them, whatever it does to them
    /// before, or the rest of one, which puts them into a tunnel.
    pub action: FastAction,
    /// Offset of the IP header.
    pub ip: u8,
    /// Offset of the TCP or UDP header.
    pub transport: u8,
    /// What they are.
    pub kind: FusedKind,
    /// Which translation.
    pub translated: Translated,
}

const _: () = assert!(size_of::<Fused>() == 64);

/// A way in steps: what the programs of all flows do with the packets of a connection's direction, one after the other.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct SteppedWay {
    /// The flows, the first one first.
    pub flows: [FlowAt; PASSES],
    /// How many there are.
    pub passes: u8,
    /// How often packets are tracked.
    pub tracked: u8,
    /// Which translation follows each tracking, counted from one; zero for none.
    pub translated: [u8; TRACKED],
    /// The connections, and the direction in each, as they are tracked.
    pub connections: [Remembered; TRACKED],
}

/// The translations of a way in steps.
pub type Translations = [Translation; TRANSLATIONS];

const _: () = assert!(size_of::<SteppedWay>() == 128);

// SAFETY: all-zero bytes are a valid value: the members are integers, booleans, and enumerations whose first variant is
// zero. It has no drop code.
unsafe impl Zero for Fused {}
// SAFETY: all-zero bytes are a valid value: the members are integers, and structures for which the same is true. It has no drop code.
unsafe impl Zero for SteppedWay {}
// SAFETY: all-zero bytes are a valid value: the members are integers and booleans. It has no drop code.
unsafe impl Zero for Translation {}
// SAFETY: all-zero bytes are a valid value of each element, which has no drop code.
unsafe impl Zero for Translations {}
// SAFETY: all-zero bytes are a valid value: the members are integers and booleans. It has no drop code.
unsafe impl Zero for Remembered {}

/// What few fused connections have.
#[derive(Clone, Copy, Default)]
pub struct More<'a> {
    /// [`FusedTable::translation`].
    pub translation: Option<&'a Translation>,
    /// [`FusedTable::second`].
    pub second: Option<&'a Remembered>,
    /// [`FusedTable::way`], and [`FusedTable::translations`], if it has any.
    pub way: Option<(&'a SteppedWay, Option<&'a Translations>)>,
}

/// Fused connections by number.
pub struct FusedTable {
    /// Those of entries with a core, then those of entries without one.
    fused: Region<Fused>,
    translations: Region<Translation>,
    seconds: Region<Remembered>,
    ways: Chunks<SteppedWay>,
    ways_translations: Chunks<Translations>,
    /// How many there are of either.
    half: u32,
}

impl FusedTable {
    /// For so many entries of the header cache, of either size. Untouched ones take no memory.
    pub fn new(entries: usize) -> FusedTable {
        let (fused, translations) = (Region::new(2 * entries), Region::new(2 * entries));
        let (seconds, half) = (Region::new(2 * entries), entries as u32);
        let (ways, ways_translations) = (Chunks::new(2 * entries), Chunks::new(2 * entries));
        FusedTable { fused, translations, seconds, ways, ways_translations, half }
    }

    /// The number of the fused connection of an entry.
    #[inline(always)]
    pub fn number(&self, entry: u32, has_core: bool) -> u32 {
        if has_core { entry } else { entry + self.half }
    }

    /// The fused connection with this number, which a header cache entry has.
    #[inline(always)]
    pub fn get(&self, number: u32) -> &Fused {
        &self.fused.slice()[number as usize]
    }

    /// Prefetches the fused connection that an entry may have.
    #[inline(always)]
    pub fn prefetch(&self, entry: u32, has_core: bool) {
        prefetch(self.fused.slice().as_ptr().wrapping_add(self.number(entry, has_core) as usize));
    }

    /// Its [`Translation`].
    #[inline(always)]
    pub fn translation(&self, number: u32) -> &Translation {
        &self.translations.slice()[number as usize]
    }

    /// The second connection of its packets, if it is [double](FusedKind::is_double).
    #[inline(always)]
    pub fn second(&self, number: u32) -> &Remembered {
        &self.seconds.slice()[number as usize]
    }

    /// The way of its packets, if they go it [in steps](FusedKind::is_in_steps), or may, as [samples](FusedKind::is_sampled) do.
    #[inline(always)]
    pub fn way(&self, number: u32) -> Option<&SteppedWay> {
        self.ways.get(number as usize)
    }

    /// The translations of that way.
    #[inline(always)]
    pub fn translations(&self, number: u32) -> Option<&Translations> {
        self.ways_translations.get(number as usize)
    }

    /// Writes one.
    pub fn set(&mut self, number: u32, fused: &Fused, more: More<'_>) {
        self.fused.slice_mut()[number as usize] = *fused;
        if let Some(second) = more.second {
            self.seconds.slice_mut()[number as usize] = *second;
        }
        if let Some(long) = more.translation {
            self.translations.slice_mut()[number as usize] = *long;
        }
        if let Some((way, translations)) = more.way {
            self.ways.set(number as usize, *way);
            if let Some(translations) = translations {
                self.ways_translations.set(number as usize, *translations);
            }
        }
    }
}
