//! Parts of the packet that were copied to registers.
//!
//! A copy makes the outcome depend on the bits that were copied, as in OVS: the flow matches them. But as long as nothing
//! looks at the register, packets that differ in these bits go the same way and have the same outcome. A translation
//! tells by which bits it was [decided](super::Translation::decided_by), so that it can be used again for such packets
//! (`slowpath::ways`).
//!
//! So a copy is noted here, and the bits are added to the mask when something may look at the register, or at the end.
//! When that was necessary before the end, or anything was executed whose outcome depends on more than packet and tables,
//! the translation is decided by its whole mask.

use std::mem::offset_of;
use std::ops::Range;

use openflow::{Action, KeyPart};
use packet::flow::BlockId;
use packet::flow::block::{BLOCK_SIZE, Common};
use packet::{Field, Key, Mask};
use smallvec::SmallVec;

use super::{Ctx, finish_mask, is_ip};

/// Most copies that are noted.
const MOST: usize = 8;

/// Source and destination of copies that are not in the mask.
pub(super) struct Copies {
    noted: SmallVec<[(KeyPart, KeyPart); 4]>,
    /// Whether further ones may be noted.
    open: bool,
}

impl Copies {
    /// None so far. `open`: whether any may be noted.
    pub fn new(open: bool) -> Copies {
        Copies { noted: SmallVec::new(), open }
    }

    /// Whether IPv4 addresses were copied. What a look-up adds to the mask depends on whether it has them.
    pub fn have_addresses(&self) -> bool {
        let addresses = offset_of!(Common, nw_src)..offset_of!(Common, tp_src);
        let is_address = |field: Field| field.info().block() == BlockId::Common && overlaps(field, addresses.clone());
        self.noted.iter().any(|(from, _)| is_address(from.field))
    }

    /// Whether a mask looks at a register that something was copied to.
    pub fn are_looked_at(&self, wc: &Mask) -> bool {
        self.noted.iter().any(|(_, to)| wc.get(to.field) & to.mask() != 0)
    }
}

impl Ctx<'_, '_> {
    /// Notes a copy, unless its bits have to be in the mask at once.
    pub(super) fn note_copy(&mut self, from: &KeyPart, to: &KeyPart) -> bool {
        let may =
            self.copies.open && self.copies.noted.len() < MOST && is_register(to.field) && may_be_left(from.field);
        if may {
            self.copies.noted.push((*from, *to));
        }
        may
    }

    /// Adds what was copied to the mask. From now on, every copy is added at once.
    pub(super) fn keep_copies(&mut self) {
        self.copies.open = false;
        for (from, _) in std::mem::take(&mut self.copies.noted) {
            from.add_to(&mut self.wc);
        }
    }

    /// Adds what was copied to the mask unless an action neither looks at a register nor depends on anything but the
    /// packet and the tables.
    pub(super) fn keep_copies_for(&mut self, action: &Action) {
        let may_be_left = match action {
            Action::RegMove { src, dst } => src.in_key().is_some() && dst.in_key().is_some(),
            Action::Resubmit { with_ct: false, .. } => true,
            Action::Output { port, .. } => !port.is_reserved() && self.bridge.mirrors.is_empty(),
            action => action.field_write().is_some_and(|(field, ..)| is_register(field)),
        };
        if !may_be_left {
            self.keep_copies();
        }
    }

    /// By which bits the translation was decided, where these are less than the mask has.
    pub(super) fn decided_by(&self, original: &Key) -> Option<Box<Mask>> {
        let is_whole = !self.copies.open || self.copies.noted.is_empty();
        if is_whole || self.error.is_some() || self.slow || !self.learnt.is_empty() || !self.record.is_plain() {
            return None;
        }
        // The mask is finished by what the packet is. That has to be the same for the others.
        let blocks = self.wc.blocks();
        let others = [BlockId::Encap, BlockId::Tunnel, BlockId::Ct].iter().any(|&block| blocks.has(block));
        let mut all = self.wc.clone();
        self.copies.noted.iter().for_each(|(from, _)| from.add_to(&mut all));
        let has_ports = !all.is_wild(Field::TcpSrc) || !all.is_wild(Field::TcpDst);
        // So are options of tunnels.
        if others
            || crate::model::tlv::present(&self.wc.0) != 0
            || has_ports && is_ip(original) && !self.wc.is_exact(Field::NwProto)
            || self.looks_at_inner_tag()
        {
            return None;
        }
        let mut decided_by = Box::new(self.wc.clone());
        finish_mask(&mut decided_by, original);
        Some(decided_by)
    }

    fn looks_at_inner_tag(&self) -> bool {
        let bits = self.wc.0.common().vlan[1];
        bits.tpid.get() != 0 || bits.tci.get() != 0
    }
}

/// Whether it is a field of the pipeline's own.
pub(super) fn is_register(field: Field) -> bool {
    matches!(field.info().block(), BlockId::Regs | BlockId::Pipeline)
}

/// Whether the bits of a field may be left out of the mask for a while. Those of tags, and of what only some packets have,
/// may not: they decide how the mask is finished.
fn may_be_left(field: Field) -> bool {
    match field.info().block() {
        BlockId::L3 => true,
        BlockId::Common => !overlaps(field, offset_of!(Common, vlan)..offset_of!(Common, in_port)),
        _ => false,
    }
}

/// Whether a field is in these bytes of its block.
fn overlaps(field: Field, bytes: Range<usize>) -> bool {
    let info = field.info();
    let at = usize::from(info.offset) % BLOCK_SIZE;
    at < bytes.end && bytes.start < at + usize::from(info.bytes)
}
