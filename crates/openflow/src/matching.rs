//! What a flow matches, and parts of fields.

use std::borrow::Cow;

use packet::flow::field::Prereq;
use packet::{Field, Key, Mask};

use crate::recycled::Recycled;
use crate::tun_metadata::{TunField, TunMatch, TunValue};
use crate::types::OfPort;

/// What a flow matches: `key` under `mask`. Values are zero where the mask is.
///
/// `in_port` is an OpenFlow port in its 32-bit form ([`OfPort`]), whatever the message had: use
/// [`in_port`](Match::in_port) and [`set_in_port`](Match::set_in_port), or [`Field::InPortOxm`];
/// [`Field::InPort`] shows only its low 16 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Match {
    /// The values, zero where wildcarded.
    pub key: Recycled<Key>,
    /// The bits that are matched.
    pub mask: Recycled<Mask>,
    /// What is matched of tun_metadata fields, in their order, each once. In a bridge, key and mask have it instead: where the bridge's
    /// table says.
    pub tun_metadata: Vec<TunMatch>,
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

    /// What is matched of a tun_metadata field.
    pub fn tun(&self, index: u8) -> Option<&TunMatch> {
        self.tun_metadata.iter().find(|known| known.index() == index)
    }

    /// Matches a tun_metadata field, in place of what was matched of it.
    pub fn set_tun(&mut self, matching: TunMatch) {
        match self.tun_metadata.binary_search_by_key(&matching.index(), TunMatch::index) {
            Ok(at) => self.tun_metadata[at] = matching,
            Err(at) => self.tun_metadata.insert(at, matching),
        }
    }

    /// Matches bits of a tun_metadata field, in addition to those already matched.
    pub fn add_tun(&mut self, mut value: TunValue) {
        if let Some(TunMatch::Value(known)) = self.tun(value.index) {
            let new = std::mem::replace(&mut value, known.clone());
            value.merge(&new);
        }
        self.set_tun(TunMatch::Value(value));
    }

    /// Whether every packet matches.
    pub fn is_any(&self) -> bool {
        self.mask.blocks().count() == 0 && self.tun_metadata.is_empty()
    }

    /// Whether a packet with this key matches, tun_metadata fields apart.
    pub fn matches(&self, key: &Key) -> bool {
        key.matches(&self.key, &self.mask)
    }
}

/// A field that an action can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyField {
    /// One that has its place in the key.
    Key(Field),
    /// One whose place the bridge's table tells: tun_metadataN.
    Tun(TunField),
}

impl AnyField {
    /// The field, where it has its place in the key.
    pub fn key(self) -> Option<Field> {
        match self {
            AnyField::Key(field) => Some(field),
            AnyField::Tun(_) => None,
        }
    }

    /// Its width, which parts of it are counted in: nw_tos is the whole byte of which the field has the upper six bits, arp_op has 16
    /// bits, of which the field has the lower eight, and vlan_vid is without the bit that tells whether there is a tag.
    pub fn bits(self) -> u16 {
        match self {
            AnyField::Key(Field::NwTos) => 8,
            AnyField::Key(Field::ArpOp) => 16,
            AnyField::Key(Field::VlanVid) => 12,
            AnyField::Key(field) => field.info().bits.into(),
            AnyField::Tun(field) => field.bits(),
        }
    }

    /// What has to be matched with it.
    pub fn prereq(self) -> Prereq {
        self.key().map_or(Prereq::None, |field| field.info().prereq)
    }

    /// Whether actions can write it.
    pub fn is_writable(self) -> bool {
        self.key().is_none_or(|field| field.info().writable)
    }

    /// Its name in ovs-fields(7).
    pub fn name(self) -> Cow<'static, str> {
        match self {
            AnyField::Key(field) => field.info().name.into(),
            AnyField::Tun(field) => format!("tun_metadata{}", field.index).into(),
        }
    }
}

impl From<Field> for AnyField {
    fn from(field: Field) -> AnyField {
        AnyField::Key(field)
    }
}

impl From<TunField> for AnyField {
    fn from(field: TunField) -> AnyField {
        AnyField::Tun(field)
    }
}

impl PartialEq<Field> for AnyField {
    fn eq(&self, field: &Field) -> bool {
        self.key() == Some(*field)
    }
}

/// Some adjacent bits of a field: `reg0[0..15]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Subfield {
    /// The field.
    pub field: AnyField,
    /// The lowest bit; zero is the field's least significant one.
    pub ofs: u16,
    /// Number of bits, at least one.
    pub n_bits: u16,
}

impl Subfield {
    /// All of a field.
    pub fn whole(field: impl Into<AnyField>) -> Subfield {
        let field = field.into();
        Subfield { field, ofs: 0, n_bits: field.bits() }
    }

    /// The subfield, if it has at least one bit and lies within the field.
    pub fn new(field: impl Into<AnyField>, ofs: u16, n_bits: u16) -> Option<Subfield> {
        let field = field.into();
        let fits = n_bits > 0 && u32::from(ofs) + u32::from(n_bits) <= u32::from(field.bits());
        fits.then_some(Subfield { field, ofs, n_bits })
    }

    /// Whether this is all of the field.
    pub fn is_whole(&self) -> bool {
        self.ofs == 0 && self.n_bits == self.field.bits()
    }

    /// The subfield's largest value of at most 128 bits, right-aligned: all bits one.
    pub fn max(&self) -> u128 {
        u128::MAX >> (128 - self.n_bits.min(128))
    }

    /// The same bits, where the field has its place in the key.
    pub fn in_key(&self) -> Option<KeyPart> {
        Some(KeyPart { field: self.field.key()?, ofs: self.ofs, n_bits: self.n_bits })
    }
}

/// Some adjacent bits of a field that has its place in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyPart {
    /// The field.
    pub field: Field,
    /// The lowest bit; zero is the field's least significant one.
    pub ofs: u16,
    /// Number of bits, at least one.
    pub n_bits: u16,
}

impl KeyPart {
    /// The bits, in their place in the field. Those that the field does not have are left out ([`AnyField::bits`]).
    pub fn mask(&self) -> u128 {
        self.place(u128::MAX)
    }

    /// The low bits of `value`, in their place in the field.
    pub fn place(&self, value: u128) -> u128 {
        (value & self.max()) << self.ofs >> self.absent_low_bits() & self.field.info().max()
    }

    /// The bits of a value of the field, right-aligned.
    pub fn take(&self, value: u128) -> u128 {
        value << self.absent_low_bits() >> self.ofs & self.max()
    }

    /// By how many bits the field begins later than its parts are counted from.
    fn absent_low_bits(&self) -> u32 {
        if self.field == Field::NwTos { 2 } else { 0 }
    }

    /// The largest value, right-aligned: all bits one.
    pub fn max(&self) -> u128 {
        u128::MAX >> (128 - self.n_bits)
    }

    /// The value in `key`, right-aligned.
    pub fn get(&self, key: &Key) -> u128 {
        self.take(key.get(self.field))
    }

    /// Writes the bits, from the low bits of `value`.
    pub fn set(&self, key: &mut Key, value: u128) {
        let old = key.get(self.field) & !self.mask();
        key.set(self.field, old | self.place(value));
    }

    /// Has `mask` match the bits, in addition to what it matches.
    pub fn add_to(&self, mask: &mut Mask) {
        mask.add(self.field, self.mask());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of NXM_OF_IP_TOS was one of its upper six bits, in the place of the lower six.
    #[test]
    fn parts_of_nw_tos_and_arp_op_are_counted_as_on_the_wire() {
        let mut key = Key::default();
        key.set(Field::NwTos, 46);
        let tos = |ofs, n_bits| Subfield::new(Field::NwTos, ofs, n_bits).unwrap().in_key().unwrap();
        assert_eq!((tos(0, 8).get(&key), tos(2, 6).get(&key), tos(0, 2).get(&key)), (184, 46, 0));
        tos(0, 8).set(&mut key, 0x4b);
        assert_eq!(key.get(Field::NwTos), 0x12);
        tos(0, 2).set(&mut key, 3);
        assert_eq!((key.get(Field::NwTos), tos(0, 2).mask(), tos(1, 4).mask()), (0x12, 0, 0b111));
        let operation = |ofs, n_bits| Subfield::new(Field::ArpOp, ofs, n_bits).unwrap().in_key().unwrap();
        operation(0, 16).set(&mut key, 0x102);
        assert_eq!((operation(0, 16).get(&key), operation(8, 8).get(&key), operation(8, 8).mask()), (2, 0, 0));
        assert!(Subfield::whole(Field::NwTos).is_whole() && Subfield::whole(Field::NwTos).n_bits == 8);
    }

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
        let part = Subfield::new(Field::Reg3, 8, 8).unwrap().in_key().unwrap();
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
