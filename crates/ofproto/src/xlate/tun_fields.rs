//! tun_metadata fields in a translation: their place is where the bridge's table says. A field that stands for nothing reads as zero, and
//! what is written to it is lost.

use openflow::tun_metadata::{MAX_LEN, copy_bits};
use openflow::{AnyField, Bits, Subfield, TunValue};
use packet::Key;
use tunnel::fields::{FieldTable, Mapping};

use super::Ctx;
use crate::model::tlv::{present, set_present, set_values, values};

impl Ctx<'_, '_> {
    /// The value of a part of a field, which the outcome depends on from now on.
    pub(super) fn read(&mut self, part: &Subfield) -> Bits {
        if let Some(part) = part.in_key() {
            part.add_to(&mut self.wc);
            return part.get(&self.flow).into();
        }
        self.depend_on(part);
        self.value_of(part)
    }

    /// The value of a part of a field.
    pub(super) fn value_of(&self, part: &Subfield) -> Bits {
        match part.field {
            AnyField::Key(_) => part.in_key().map_or(0, |part| part.get(&self.flow)).into(),
            AnyField::Tun(field) => {
                let option = self.bridge.tlv.get(field.index.into());
                let all = option.map_or([0; MAX_LEN], |option| option.get(self.flow.tun_metadata()));
                Bits::from_bytes(&all).part(part.ofs, part.n_bits)
            }
        }
    }

    /// Writes a part of a field, from the low bits of a value.
    pub(super) fn write_part(&mut self, part: &Subfield, value: &Bits) {
        match part.field {
            AnyField::Key(field) => {
                let Some(part) = part.in_key() else { return };
                self.write(field, part.place(value.low()), part.mask());
            }
            AnyField::Tun(field) => self.set_tun(&TunValue::part(field.index, part.ofs, part.n_bits, value)),
        }
    }

    /// Has the outcome depend on a part of a tun_metadata field, and on whether the packet has it.
    fn depend_on(&mut self, part: &Subfield) {
        let AnyField::Tun(field) = part.field else { return };
        let mut bits = [0; MAX_LEN];
        copy_bits(&[0xff; MAX_LEN], 0, &mut bits, part.ofs, part.n_bits);
        if let Some(option) = self.bridge.tlv.get(field.index.into()) {
            add_bits(&mut self.wc.0, field.index, option, &bits);
        }
    }

    /// Has the outcome depend on all fields that the packet has. Which these are is matched of each packet that can have any
    /// ([`encode_mask`](super::tunnel_metadata::encode_mask)).
    pub(super) fn look_at_tun_fields(&mut self) {
        let bridge = self.bridge;
        let fields = present(self.packet);
        for (index, option) in bridge.tlv.iter().filter(|(index, _)| fields >> index & 1 != 0) {
            add_bits(&mut self.wc.0, index as u8, option, &[0xff; MAX_LEN]);
        }
    }

    /// `set_field` on a tun_metadata field, which the packet has from now on.
    pub(super) fn set_tun(&mut self, written: &TunValue) {
        self.keep_copies();
        let bridge = self.bridge;
        let Some(option) = bridge.tlv.get(written.index.into()) else { return };
        // Of a value that is too wide, which only a packet-out or a bucket can have, nothing is written.
        let Some((value, mask)) = written.over(option.len()) else { return };
        add_bits(&mut self.wc.0, written.index, option, &mask);
        let mut now = option.get(self.flow.tun_metadata());
        for ((now, value), mask) in now.iter_mut().zip(value).zip(mask) {
            *now = *now & !mask | value & mask;
        }
        let fields = present(&self.flow) | 1 << written.index;
        set_present(&mut self.flow, fields);
        if !option.is_empty() {
            option.set(self.flow.tun_metadata_mut(), &now);
        }
    }

    /// `delete_field`: the packet does not have the field any more.
    pub(super) fn delete_field(&mut self, index: u8) {
        self.keep_copies();
        let fields = present(&self.flow) & !1u64.checked_shl(index.into()).unwrap_or(0);
        if let Some(option) = self.bridge.tlv.get(index.into()).filter(|_| fields != present(&self.flow)) {
            let option = *option;
            set_present(&mut self.flow, fields);
            option.set(self.flow.tun_metadata_mut(), &[0; MAX_LEN]);
        }
    }

    /// The table of the fields that the packet has, for a pipeline that stops.
    pub(super) fn tlv_of_packet(&self) -> Option<std::sync::Arc<FieldTable>> {
        (present(&self.flow) != 0).then(|| self.bridge.tlv.clone())
    }

    /// The values of a pipeline that goes on are those of the fields that stand for the same options now.
    pub(super) fn adopt_tun(&mut self, then: Option<&FieldTable>) {
        if let Some(then) = then.filter(|then| **then != *self.bridge.tlv) {
            let now = self.bridge.tlv.adopt(&values(&self.flow), then);
            set_values(&mut self.flow, &now);
        }
    }

    /// In another bridge, a packet has no fields of a tunnel. Returns what has been looked at of those here, for
    /// [`look_again`](Self::look_again).
    pub(super) fn leave_tun(&mut self) -> Option<Box<Key>> {
        set_values(&mut self.flow, &Default::default());
        let before = (present(&self.wc.0) != 0).then(|| {
            let mut before = Box::new(Key::new());
            set_values(&mut before, &values(&self.wc.0));
            before
        });
        set_values(&mut self.wc.0, &Default::default());
        before
    }

    /// What has been looked at in another bridge was none of the packet's.
    pub(super) fn look_again(&mut self, before: Option<Box<Key>>) {
        let before = before.map_or_else(Default::default, |before| values(&before));
        if before.present != 0 || present(&self.wc.0) != 0 {
            set_values(&mut self.wc.0, &before);
        }
    }
}

/// Matches bits of a field, and whether the packet has it.
fn add_bits(mask: &mut Key, index: u8, option: &Mapping, bits: &[u8; MAX_LEN]) {
    set_present(mask, present(mask) | 1 << index);
    if !option.is_empty() && bits.iter().any(|&byte| byte != 0) {
        let mut now = option.get(mask.tun_metadata());
        now.iter_mut().zip(bits).for_each(|(now, bits)| *now |= bits);
        option.set(mask.tun_metadata_mut(), &now);
    }
}
