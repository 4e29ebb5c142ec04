//! The fields tun_metadata0 to tun_metadata63: options of tunnels (ovs-fields(7), "TUNNEL Fields").
//!
//! They are up to 124 bytes wide, and have no place in a [`Key`](packet::Key) before a bridge's table (NXT_TLV_TABLE_*) says which option
//! a field stands for, and how long that is. Until then, their values are bytes here, beside the key.

use packet::flow::field::Oxm;
use packet::flow::text::number;
use packet::put;

/// How many fields there are.
pub const FIELDS: u8 = 64;
/// Bytes of the longest value.
pub const MAX_LEN: usize = 124;
/// The NXM number of tun_metadata0; the others follow.
const FIRST_NUMBER: u8 = 40;
/// The NXM class of the fields.
const CLASS: u16 = 1;

/// A field in an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunField {
    /// N of tun_metadataN.
    pub index: u8,
    /// Bytes of its value: as many as a value can have until a bridge's table tells the length.
    pub len: u8,
}

impl TunField {
    /// The field with this number, if there is one. Its length is not known.
    pub fn new(index: u8) -> Option<TunField> {
        (index < FIELDS).then_some(TunField { index, len: MAX_LEN as u8 })
    }

    /// The field with this NXM number.
    pub fn from_oxm(oxm: Oxm) -> Option<TunField> {
        let number = oxm.field.checked_sub(FIRST_NUMBER)?;
        (oxm.class == CLASS).then(|| TunField::new(number))?
    }

    /// Its NXM number.
    pub fn oxm(self) -> Oxm {
        Oxm { class: CLASS, field: FIRST_NUMBER + self.index, experimenter: 0 }
    }

    /// The field with this name: `tun_metadata5`, or `NXM_NX_TUN_METADATA5`.
    pub fn from_name(name: &str) -> Option<TunField> {
        let digits = name.strip_prefix("tun_metadata").or_else(|| name.strip_prefix("NXM_NX_TUN_METADATA"))?;
        let plain = digits.bytes().all(|digit| digit.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        plain.then(|| TunField::new(digits.parse().ok()?))?
    }

    /// Its width.
    pub fn bits(self) -> u16 {
        u16::from(self.len) * 8
    }
}

/// A number of up to 992 bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// One of up to 128 bits.
    Few(u128),
    /// A larger one, in network byte order.
    Many(Box<[u8; MAX_LEN]>),
}

impl Bits {
    /// The number that these bytes are, in network byte order. Beyond the last 124 they do not count.
    pub fn from_bytes(bytes: &[u8]) -> Bits {
        let (high, low) = bytes.split_at(bytes.len().saturating_sub(16));
        if high.iter().any(|&byte| byte != 0) {
            Bits::Many(Box::new(right_aligned(bytes)))
        } else {
            Bits::Few(low.iter().fold(0, |n, &byte| n << 8 | u128::from(byte)))
        }
    }

    /// In network byte order.
    pub fn to_bytes(&self) -> [u8; MAX_LEN] {
        match self {
            Bits::Few(n) => right_aligned(&n.to_be_bytes()),
            Bits::Many(bytes) => **bytes,
        }
    }

    /// The low 128 bits.
    pub fn low(&self) -> u128 {
        match self {
            Bits::Few(n) => *n,
            Bits::Many(bytes) => bytes.last_chunk().map_or(0, |low| u128::from_be_bytes(*low)),
        }
    }

    /// `n_bits` bits from `ofs` on.
    pub fn part(&self, ofs: u16, n_bits: u16) -> Bits {
        if let Bits::Few(n) = self {
            let n = n.checked_shr(ofs.into()).unwrap_or(0);
            return Bits::Few(if n_bits < 128 { n & ((1 << n_bits) - 1) } else { n });
        }
        let mut out = [0; MAX_LEN];
        copy_bits(&self.to_bytes(), ofs, &mut out, 0, n_bits);
        Bits::from_bytes(&out)
    }
}

impl From<u128> for Bits {
    fn from(n: u128) -> Bits {
        Bits::Few(n)
    }
}

/// The last bytes of a number in the last bytes of a larger one.
fn right_aligned(bytes: &[u8]) -> [u8; MAX_LEN] {
    let mut out = [0; MAX_LEN];
    let n = bytes.len().min(MAX_LEN);
    out[MAX_LEN - n..].copy_from_slice(&bytes[bytes.len() - n..]);
    out
}

/// Copies bits of a number to another, both in network byte order and counted from their lowest bits. Bits that one of them does not have
/// count as zero, or stay out.
pub fn copy_bits(src: &[u8], src_ofs: u16, dst: &mut [u8], dst_ofs: u16, n_bits: u16) {
    for at in (0..n_bits).step_by(8) {
        let bits = (n_bits - at).min(8);
        put_byte(dst, dst_ofs + at, bits, byte_at(src, src_ofs + at));
    }
}

/// Eight bits from `ofs` on.
fn byte_at(bytes: &[u8], ofs: u16) -> u8 {
    let (byte, shift) = (usize::from(ofs / 8), ofs % 8);
    let get = |n: usize| u16::from(bytes.iter().rev().nth(n).copied().unwrap_or(0));
    ((get(byte + 1) << 8 | get(byte)) >> shift) as u8
}

/// Writes up to eight bits from `ofs` on.
fn put_byte(bytes: &mut [u8], ofs: u16, n_bits: u16, value: u8) {
    let (byte, shift) = (usize::from(ofs / 8), ofs % 8);
    let mask = (0xffu16 >> (8 - n_bits)) << shift;
    let value = u16::from(value) << shift & mask;
    for (n, (value, mask)) in
        [(value as u8, mask as u8), ((value >> 8) as u8, (mask >> 8) as u8)].into_iter().enumerate()
    {
        if let Some(to) = bytes.iter_mut().rev().nth(byte + n) {
            *to = *to & !mask | value;
        }
    }
}

/// A value of a field, for a match or to be written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TunValue {
    /// N of tun_metadataN.
    pub index: u8,
    /// The value, zero where the mask is: in network byte order, of which leading zeros may be missing.
    pub value: Vec<u8>,
    /// The bits that count, in as many bytes as the value has; those of bytes that are missing do not. `None` where all of the field
    /// counts.
    pub mask: Option<Vec<u8>>,
}

impl TunValue {
    /// All of a field.
    pub fn whole(index: u8, value: &Bits) -> TunValue {
        TunValue { index, value: trimmed(&value.to_bytes()).to_vec(), mask: None }
    }

    /// The bits of `mask`.
    pub fn masked(index: u8, value: &Bits, mask: &Bits) -> TunValue {
        let (mut value, mask) = (value.to_bytes(), mask.to_bytes());
        value.iter_mut().zip(mask).for_each(|(value, mask)| *value &= mask);
        let from = MAX_LEN - trimmed(&mask).len();
        TunValue { index, value: value[from..].to_vec(), mask: Some(mask[from..].to_vec()) }
    }

    /// Some adjacent bits of a field.
    pub fn part(index: u8, ofs: u16, n_bits: u16, bits: &Bits) -> TunValue {
        let (mut value, mut mask) = ([0; MAX_LEN], [0; MAX_LEN]);
        copy_bits(&bits.to_bytes(), 0, &mut value, ofs, n_bits);
        copy_bits(&[0xff; MAX_LEN], 0, &mut mask, ofs, n_bits);
        TunValue::masked(index, &Bits::from_bytes(&value), &Bits::from_bytes(&mask))
    }

    /// The value, and the mask over a field of `len` bytes. `None` where the field is too short for them.
    pub fn over(&self, len: usize) -> Option<([u8; MAX_LEN], [u8; MAX_LEN])> {
        let fits = |bytes: &[u8]| trimmed(bytes).len() <= len;
        let mask = self.mask.as_deref();
        if len > MAX_LEN || !fits(&self.value) || !mask.is_none_or(fits) {
            return None;
        }
        let exact = || {
            let mut all = [0; MAX_LEN];
            all[MAX_LEN - len..].fill(0xff);
            all
        };
        Some((right_aligned(&self.value), mask.map_or_else(exact, right_aligned)))
    }

    /// Adds the bits of another value of the same field, which count where both have some.
    pub fn merge(&mut self, other: &TunValue) {
        let Some(mask) = &self.mask else { return };
        let Some(other_mask) = &other.mask else {
            *self = other.clone();
            return;
        };
        let over = right_aligned(other_mask);
        let join = |a: &[u8], b: &[u8]| {
            let (a, b) = (right_aligned(a), right_aligned(b));
            Bits::from_bytes(&std::array::from_fn::<u8, MAX_LEN, _>(|i| a[i] & !over[i] | b[i]))
        };
        *self = TunValue::masked(self.index, &join(&self.value, &other.value), &join(mask, other_mask));
    }
}

/// Without leading zeros.
fn trimmed(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().take_while(|&&byte| byte == 0).count()..]
}

/// What a flow matches of a field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TunMatch {
    /// That the packet has no such option. No OpenFlow message can say so, but the flow of a datapath may be about it.
    Absent(u8),
    /// That it has the option, with such a value.
    Value(TunValue),
}

impl TunMatch {
    /// N of tun_metadataN.
    pub fn index(&self) -> u8 {
        match self {
            TunMatch::Absent(index) => *index,
            TunMatch::Value(value) => value.index,
        }
    }

    /// Formats the match as in flow syntax.
    pub fn format(&self, out: &mut String) {
        put!(out, "tun_metadata{}", self.index());
        match self {
            TunMatch::Absent(_) => out.push_str("=NP"),
            TunMatch::Value(TunValue { mask: Some(mask), .. }) if trimmed(mask).is_empty() => {}
            TunMatch::Value(value) => {
                out.push('=');
                value.format(out);
            }
        }
    }
}

impl TunValue {
    /// Formats the value, and the mask if there is one.
    pub fn format(&self, out: &mut String) {
        number::hex_bytes(out, &self.value);
        if let Some(mask) = &self.mask {
            out.push('/');
            number::hex_bytes(out, mask);
        }
    }

    /// Reads `VALUE` or `VALUE/MASK` for a field.
    pub fn parse(index: u8, text: &str) -> Option<TunValue> {
        match text.split_once('/') {
            None => Some(TunValue::whole(index, &parse_bits(text)?)),
            Some((value, mask)) => {
                let (value, mask) = (parse_bits(value)?, parse_bits(mask)?);
                let all = mask.to_bytes().iter().all(|&byte| byte == 0xff);
                Some(if all { TunValue::whole(index, &value) } else { TunValue::masked(index, &value, &mask) })
            }
        }
    }
}

/// A number: decimal, octal with 0, or hexadecimal with 0x and up to 992 bits.
pub fn parse_bits(text: &str) -> Option<Bits> {
    let mut bytes = [0; MAX_LEN];
    number::parse_bytes(text, &mut bytes)?;
    Some(Bits::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bit by bit.
    fn bit(bytes: &[u8], n: usize) -> bool {
        bytes.len() > n / 8 && bytes[bytes.len() - 1 - n / 8] >> (n % 8) & 1 != 0
    }

    proptest! {
        #[test]
        fn bits_are_copied_one_by_one(
            src in prop::collection::vec(any::<u8>(), 0..20),
            dst in prop::collection::vec(any::<u8>(), 0..20),
            (src_ofs, dst_ofs, n) in (0u16..170, 0u16..170, 0u16..170),
        ) {
            let mut out = dst.clone();
            copy_bits(&src, src_ofs, &mut out, dst_ofs, n);
            for at in 0..dst.len() * 8 {
                let copied = at.checked_sub(dst_ofs.into()).filter(|&from| from < n.into());
                let expected = copied.map_or(bit(&dst, at), |from| bit(&src, from + usize::from(src_ofs)));
                prop_assert_eq!(bit(&out, at), expected, "bit {}", at);
            }
        }

        #[test]
        fn numbers_come_back(bytes in prop::collection::vec(any::<u8>(), 0..=MAX_LEN), ofs in 0u16..1000, n in 1u16..1000) {
            let bits = Bits::from_bytes(&bytes);
            let all = bits.to_bytes();
            prop_assert_eq!(trimmed(&all), trimmed(&bytes));
            let mut text = String::new();
            number::hex_bytes(&mut text, &bytes);
            prop_assert_eq!(parse_bits(&text), Some(bits.clone()));
            let part = bits.part(ofs, n).to_bytes();
            for at in 0..MAX_LEN * 8 {
                prop_assert_eq!(bit(&part, at), at < n.into() && bit(&bytes, at + usize::from(ofs)));
            }
        }
    }

    #[test]
    fn names_and_numbers() {
        let five = TunField { index: 5, len: 124 };
        assert_eq!(TunField::from_name("tun_metadata5"), Some(five));
        assert_eq!(TunField::from_name("NXM_NX_TUN_METADATA5"), Some(five));
        assert_eq!(TunField::from_oxm(five.oxm()), Some(five));
        for name in
            ["tun_metadata", "tun_metadata64", "tun_metadata05", "tun_metadata+5", "tun_metadata-1", "tun_metadata 5"]
        {
            assert_eq!(TunField::from_name(name), None, "{name}");
        }
        let last = Oxm { class: 1, field: 103, experimenter: 0 };
        assert_eq!(TunField::from_oxm(last), TunField::new(63));
        assert_eq!(TunField::from_oxm(Oxm { field: 104, ..last }), None);
        assert_eq!(TunField::from_oxm(Oxm { field: 39, ..last }), None);
    }

    #[test]
    fn values_have_to_fit_their_field() {
        let value = TunValue::parse(0, "0x12345").unwrap();
        assert!(value.over(2).is_none());
        let (bytes, mask) = value.over(4).unwrap();
        assert_eq!((&bytes[120..], &mask[119..]), (&[0, 1, 0x23, 0x45][..], &[0, 0xff, 0xff, 0xff, 0xff][..]));
        assert!(TunValue::parse(0, "0/0x10000").unwrap().over(2).is_none());
        assert!(TunValue::parse(0, "0").unwrap().over(0).is_some(), "an option without a value");
        let mut part = TunValue::part(0, 4, 4, &Bits::Few(0xf5));
        assert_eq!(part, TunValue { index: 0, value: vec![0x50], mask: Some(vec![0xf0]) });
        part.merge(&TunValue::part(0, 8, 8, &Bits::Few(0xa5)));
        assert_eq!(part, TunValue { index: 0, value: vec![0xa5, 0x50], mask: Some(vec![0xff, 0xf0]) });
    }

    #[test]
    fn text_is_that_of_ovs_ofctl() {
        let text = |matching: &TunMatch| {
            let mut out = String::new();
            matching.format(&mut out);
            out
        };
        let value = |text| TunMatch::Value(TunValue::parse(7, text).unwrap());
        assert_eq!(text(&TunMatch::Absent(7)), "tun_metadata7=NP");
        assert_eq!(text(&value("0/0")), "tun_metadata7");
        assert_eq!(text(&value("0")), "tun_metadata7=0");
        assert_eq!(text(&value("0x0a/0x0f")), "tun_metadata7=0xa/0xf");
        assert_eq!(
            text(&value("0x1234567890abcdef1234567890abcdef12")),
            "tun_metadata7=0x1234567890abcdef1234567890abcdef12"
        );
        let wide = format!("0x{}", "f".repeat(248));
        assert_eq!(text(&value(&format!("5/{wide}"))), "tun_metadata7=0x5", "all of the field");
        for wrong in ["", "0x", "0xg", "5/", "/5", "0x1/0xq"] {
            assert_eq!(TunValue::parse(7, wrong), None, "{wrong}");
        }
        assert_eq!(TunValue::parse(7, &format!("{wide}0")), None, "too wide");
    }
}
