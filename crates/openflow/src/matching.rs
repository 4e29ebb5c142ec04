//! What a flow matches, and parts of fields.

use packet::flow::FieldInfo;
use packet::{Field, Key, Mask};

use crate::types::OfPort;

/// What a flow matches: `key` under `mask`. Values are zero where the mask is.
///
/// `in_port` is an OpenFlow port in its 32-bit form ([`OfPort`]), whatever the message had: use
/// [`in_port`](Match::in_port) and [`set_in_port`](Match::set_in_port), or [`Field::InPortOxm`];
/// [`Field::InPort`] shows only its low 16 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Match {
    /// The values, zero where wildcarded.
    pub key: Box<Key>,
    /// The bits that are matched.
    pub mask: Box<Mask>,
}

impl Match {
    /// Matches every packet.
    pub fn any() -> Match {
        Match::default()
    }

    /// Matches all bits of `field`.
    pub fn set(&mut self, field: Field, value: u128) {
        self.set_masked(field, value, u128::MAX);
    }

    /// Matches the bits of `field` that are set in `mask`, and no others of that field.
    pub fn set_masked(&mut self, field: Field, value: u128, mask: u128) {
        let mask = mask & field.info().max();
        self.key.set(field, value & mask);
        self.mask.0.set(field, mask);
    }

    /// Makes `field` a wildcard.
    pub fn clear(&mut self, field: Field) {
        if !self.mask.is_wild(field) {
            self.set_masked(field, 0, 0);
        }
    }

    /// The value and mask of `field`; both zero for a wildcard.
    pub fn get(&self, field: Field) -> (u128, u128) {
        (self.key.get(field), self.mask.get(field))
    }

    /// The value of `field` where all of it is matched.
    pub fn exact(&self, field: Field) -> Option<u128> {
        self.mask.is_exact(field).then(|| self.key.get(field))
    }

    /// The input port, where it is matched.
    pub fn in_port(&self) -> Option<OfPort> {
        self.exact(Field::InPortOxm).map(|port| OfPort(port as u32))
    }

    /// Matches the input port.
    pub fn set_in_port(&mut self, port: OfPort) {
        self.set(Field::InPortOxm, port.0.into());
    }

    /// Whether every packet matches.
    pub fn is_any(&self) -> bool {
        self.mask.blocks().count() == 0
    }

    /// Whether a packet with this key matches.
    pub fn matches(&self, key: &Key) -> bool {
        key.matches(&self.key, &self.mask)
    }
}

/// Some adjacent bits of a field: `reg0[0..15]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subfield {
    /// The field.
    pub field: Field,
    /// The lowest bit; zero is the field's least significant one.
    pub ofs: u16,
    /// Number of bits, at least one.
    pub n_bits: u16,
}

impl Subfield {
    /// All of a field.
    pub fn whole(field: Field) -> Subfield {
        Subfield { field, ofs: 0, n_bits: u16::from(field.info().bits) }
    }

    /// The subfield, if it has at least one bit and lies within the field.
    pub fn new(field: Field, ofs: u16, n_bits: u16) -> Option<Subfield> {
        let fits = n_bits > 0 && u32::from(ofs) + u32::from(n_bits) <= u32::from(field.info().bits);
        fits.then_some(Subfield { field, ofs, n_bits })
    }

    /// Whether this is all of the field.
    pub fn is_whole(&self) -> bool {
        self.ofs == 0 && self.n_bits == u16::from(self.info().bits)
    }

    /// The field's row in the table.
    pub fn info(&self) -> &'static FieldInfo {
        self.field.info()
    }

    /// The subfield's largest value, right-aligned: all bits one.
    pub fn max(&self) -> u128 {
        u128::MAX >> (128 - self.n_bits)
    }

    /// The subfield's bits, in their place in the field.
    pub fn mask(&self) -> u128 {
        self.max() << self.ofs
    }

    /// The subfield's value in `key`, right-aligned.
    pub fn get(&self, key: &Key) -> u128 {
        key.get(self.field) >> self.ofs & self.max()
    }

    /// Writes the subfield, from the low bits of `value`.
    pub fn set(&self, key: &mut Key, value: u128) {
        let old = key.get(self.field) & !self.mask();
        key.set(self.field, old | (value & self.max()) << self.ofs);
    }

    /// Has `mask` match the subfield, in addition to what it matches.
    pub fn add_to(&self, mask: &mut Mask) {
        mask.add(self.field, self.mask());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subfield_must_lie_in_its_field() {
        assert!(Subfield::new(Field::Reg0, 0, 32).is_some_and(|s| s.is_whole()));
        assert!(Subfield::new(Field::Reg0, 16, 16).is_some_and(|s| !s.is_whole()));
        assert_eq!(Subfield::new(Field::Reg0, 17, 16), None);
        assert_eq!(Subfield::new(Field::Reg0, 0, 0), None);
        assert_eq!(Subfield::new(Field::Reg0, u16::MAX, u16::MAX), None);
    }

    #[test]
    fn a_subfield_is_written_in_its_place() {
        let mut key = Key::new();
        key.set(Field::Reg3, 0xffff_ffff);
        let part = Subfield::new(Field::Reg3, 8, 8).unwrap();
        part.set(&mut key, 0x1234);
        assert_eq!(key.get(Field::Reg3), 0xffff_34ff);
        assert_eq!(part.get(&key), 0x34);
    }

    #[test]
    fn a_wildcarded_field_has_no_value() {
        let mut m = Match::any();
        m.set(Field::NwSrc, 0x0a00_0001);
        m.set_in_port(OfPort::LOCAL);
        assert_eq!(m.in_port(), Some(OfPort::LOCAL));
        m.clear(Field::NwSrc);
        m.clear(Field::InPortOxm);
        assert!(m.is_any());
        assert_eq!(m, Match::any());
    }
}
