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

use crate::classify::mem::region::{Region, Zero};
use crate::classify::prefetch;
use crate::classify::table::arena::FastAction;
use crate::classify::table::flow_ref::FlowRef;

/// Most passes after the first one.
pub const LATER: usize = 2;

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
    /// What is done with packets after their translation: nothing that makes copies, and no program but one that does nothing but put them into a tunnel, in
    /// its compact form.
    pub action: FastAction,
    /// Offset of the IP header.
    pub ip: u8,
    /// Offset of the TCP or UDP header.
    pub transport: u8,
    /// TCP, and no other protocol.
    pub is_tcp: bool,
    /// Which translation.
    pub translated: Translated,
}

const _: () = assert!(size_of::<Fused>() == 64);

// SAFETY: all-zero bytes are a valid value: the members are integers, booleans, and enumerations whose first variant is
// zero. It has no drop code.
unsafe impl Zero for Fused {}
// SAFETY: all-zero bytes are a valid value: the members are integers and booleans. It has no drop code.
unsafe impl Zero for Translation {}

/// Fused connections by number.
pub struct FusedTable {
    /// Those of entries with a core, then those of entries without one.
    fused: Region<Fused>,
    translations: Region<Translation>,
    /// How many there are of either.
    half: u32,
}

impl FusedTable {
    /// For so many entries of the header cache, of either size. Untouched ones take no memory.
    pub fn new(entries: usize) -> FusedTable {
        FusedTable { fused: Region::new(2 * entries), translations: Region::new(2 * entries), half: entries as u32 }
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

    /// Writes one.
    pub fn set(&mut self, number: u32, fused: &Fused, long: Option<&Translation>) {
        self.fused.slice_mut()[number as usize] = *fused;
        if let Some(long) = long {
            self.translations.slice_mut()[number as usize] = *long;
        }
    }
}
