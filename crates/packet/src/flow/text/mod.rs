//! Text of field values: what stands behind `=` in a flow, parsed and formatted by [`Format`].
//!
//! The forms are those of ovs-fields(7), so that scripts which read or write OVS's flow syntax work
//! unchanged. [`number`] holds the scalar forms, [`flags`] the sets of named bits, [`scan`] the
//! `key=value,key(value)` lists in which they stand, [`port`] the names of ports.

pub mod flags;
pub mod number;
pub mod port;
pub mod scan;

use super::field::{Field, FieldInfo, Format, Maskable};
use super::frag;
pub use port::{NoNames, PortNames};
pub use scan::{Item, Items};

/// Appends formatted text to a `String`, which cannot fail.
#[macro_export]
#[doc(hidden)]
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{
        use std::fmt::Write as _;
        let _ = write!($out, $($arg)*);
    }};
}

/// What is wrong with a text, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text has not the form of the field.
    #[error("{name}: {text:?} is not {expected}")]
    Value {
        /// Name of the field or argument.
        name: String,
        /// What was given.
        text: String,
        /// The form that would be right.
        expected: &'static str,
    },
    /// The value needs more bits than the field has.
    #[error("{name}: {text} is too large, the largest value is {max:#x}")]
    TooLarge {
        /// Name of the field or argument.
        name: String,
        /// What was given.
        text: String,
        /// The largest value that would be right.
        max: u128,
    },
    /// The field can be matched as a whole only.
    #[error("{name}: {text:?} has a mask, but this field takes only a whole value")]
    NotMaskable {
        /// Name of the field.
        name: String,
        /// What was given.
        text: String,
    },
    /// A value was expected, without a mask or wildcard.
    #[error("{name}: {text:?} has wildcards, which are not allowed here")]
    Wildcards {
        /// Name of the field.
        name: String,
        /// What was given.
        text: String,
    },
    /// A flag name that the field does not have.
    #[error("{name}: unknown flag in {text:?}; valid flags are {valid}")]
    Flag {
        /// Name of the field.
        name: String,
        /// What was given.
        text: String,
        /// The valid names.
        valid: String,
    },
    /// A port that is neither a number nor a known name.
    #[error(
        "{name}: unknown port {text:?}; give a number, the name of a port, or one of IN_PORT, TABLE, NORMAL, FLOOD, \
         ALL, CONTROLLER, LOCAL, ANY"
    )]
    Port {
        /// Name of the field or action.
        name: String,
        /// What was given.
        text: String,
    },
    /// A parenthesis is not closed.
    #[error("{text:?}: missing ')'")]
    Unclosed {
        /// What was given.
        text: String,
    },
}

impl Error {
    /// A value of the wrong form.
    pub fn value(name: &str, text: &str, expected: &'static str) -> Error {
        Error::Value { name: name.into(), text: text.into(), expected }
    }
}

/// Parses the value and mask of a field. `*` is a wildcard: mask zero. Bits of the value outside the
/// mask are cleared.
///
/// The numbers are those of [`Key::get`](super::Key::get): right-aligned, host order.
pub fn parse(field: Field, text: &str, ports: &dyn PortNames) -> Result<(u128, u128), Error> {
    let info = field.info();
    if text == "*" {
        return Ok((0, 0));
    }
    let (value, mask) = match info.format {
        Format::Decimal | Format::Hex | Format::VlanVid => parse_integer(info, text)?,
        Format::Tos => parse_tos(info, text)?,
        Format::Ethernet => masked(info, text, number::parse_mac_masked, "an Ethernet address as 00:11:22:33:44:55")?,
        Format::Ipv4 => masked(info, text, number::parse_ipv4_masked, "an IPv4 address as 10.0.0.0 or 10.0.0.0/8")?,
        Format::Ipv6 => masked(info, text, number::parse_ipv6_masked, "an IPv6 address as fe80::1 or fe80::/10")?,
        Format::OfPort => (u128::from(port::parse(info.name, text, ports)?) & info.max(), info.max()),
        Format::Frag => parse_frag(info, text)?,
        Format::TunFlags => flags::TUN_OAM.parse(info.name, text)?,
        Format::TcpFlags => flags::TCP.parse(info.name, text)?,
        Format::CtState => flags::CT_STATE.parse(info.name, text)?,
        Format::PacketType => parse_packet_type(info, text)?,
    };
    let mask = mask & info.max();
    if info.maskable == Maskable::No && mask != 0 && mask != info.max() {
        return Err(Error::NotMaskable { name: info.name.into(), text: text.into() });
    }
    Ok((value & mask, mask))
}

/// Parses a whole value of a field, without a mask.
pub fn parse_value(field: Field, text: &str, ports: &dyn PortNames) -> Result<u128, Error> {
    let (value, mask) = parse(field, text, ports)?;
    // Some fields have more bits than names.
    let whole = match field.info().format {
        Format::CtState => flags::CT_STATE.exact,
        Format::TunFlags => flags::TUN_OAM.exact,
        _ => field.info().max(),
    };
    if mask != whole {
        return Err(Error::Wildcards { name: field.info().name.into(), text: text.into() });
    }
    Ok(value)
}

/// Formats the value and mask of a field as `parse` reads them; `ANY` where the mask is zero.
pub fn format(out: &mut String, field: Field, value: u128, mask: u128, ports: &dyn PortNames) {
    let info = field.info();
    let exact = mask & info.max() == info.max();
    match info.format {
        _ if mask & info.max() == 0 => out.push_str("ANY"),
        Format::OfPort if exact => port::format(out, value as u32, ports),
        Format::Decimal | Format::VlanVid | Format::OfPort => number::decimal_masked(out, value, mask, info.max()),
        Format::Hex => number::hex_masked(out, value, mask, info.max()),
        Format::Tos => number::decimal_masked(out, value << info.shift, mask << info.shift, info.max() << info.shift),
        Format::Ethernet => number::mac_masked(out, value as u64, mask as u64),
        Format::Ipv4 => number::ipv4_masked(out, value as u32, mask as u32),
        Format::Ipv6 => number::ipv6_masked(out, value, mask),
        Format::Frag => out.push_str(frag_name(value, mask)),
        Format::TunFlags => flags::TUN_OAM.format_masked(out, value, mask),
        Format::TcpFlags => flags::TCP.format_masked(out, value, mask),
        Format::CtState => flags::CT_STATE.format_masked(out, value, mask),
        Format::PacketType => {
            put!(out, "({},", value >> 16);
            number::small_hex(out, value & 0xffff);
            out.push(')');
        }
    }
}

/// `value` or `value/mask`.
fn parse_integer(info: &FieldInfo, text: &str) -> Result<(u128, u128), Error> {
    let expected = "a number, decimal or hexadecimal with 0x, with a mask as 1/0x3 where the field takes one";
    let number = |part: &str| number::parse_int(part).ok_or_else(|| Error::value(info.name, text, expected));
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (number(value)?, number(mask)?),
        None => (number(text)?, info.max()),
    };
    // A mask of all ones over the bytes of the field is as good as one over its bits.
    let bytes = u128::MAX >> (128 - 8 * u32::from(info.bits.div_ceil(8)));
    let large = |max| Err(Error::TooLarge { name: info.name.into(), text: text.into(), max });
    if value > info.max() {
        return large(info.max());
    } else if mask > bytes && mask != u128::from(u64::MAX) {
        return large(bytes);
    }
    Ok((value, mask & info.max()))
}

/// The whole TOS byte, whose ECN bits must be zero.
fn parse_tos(info: &FieldInfo, text: &str) -> Result<(u128, u128), Error> {
    match number::parse_int(text) {
        Some(tos) if tos <= 0xff && tos & 3 == 0 => Ok((tos >> info.shift, info.max())),
        _ => Err(Error::value(info.name, text, "a TOS byte between 0 and 252 whose two low bits (ECN) are zero")),
    }
}

fn masked<T: Into<u128>>(
    info: &FieldInfo,
    text: &str,
    parse: fn(&str) -> Option<(T, T)>,
    expected: &'static str,
) -> Result<(u128, u128), Error> {
    let (value, mask) = parse(text).ok_or_else(|| Error::value(info.name, text, expected))?;
    Ok((value.into(), mask.into()))
}

/// Fragment kinds: name, value, mask (ovs-fields(7), ip_frag). The first that fits is the one printed.
const FRAGS: [(&str, u8, u8); 7] = [
    ("no", 0, frag::ANY | frag::LATER),
    ("first", frag::ANY, frag::ANY | frag::LATER),
    ("later", frag::ANY | frag::LATER, frag::ANY | frag::LATER),
    ("no", 0, frag::ANY),
    ("yes", frag::ANY, frag::ANY),
    ("not_later", 0, frag::LATER),
    ("later", frag::LATER, frag::LATER),
];

fn parse_frag(info: &FieldInfo, text: &str) -> Result<(u128, u128), Error> {
    let known = FRAGS.iter().find(|kind| kind.0.eq_ignore_ascii_case(text));
    let &(_, value, mask) =
        known.ok_or_else(|| Error::value(info.name, text, "one of no, yes, first, later, not_later"))?;
    Ok((value.into(), mask.into()))
}

fn frag_name(value: u128, mask: u128) -> &'static str {
    let fits = |kind: &&(_, u8, u8)| u128::from(kind.2) == mask & 3 && u128::from(kind.1) == value & mask & 3;
    FRAGS.iter().find(fits).map_or("<error>", |kind| kind.0)
}

fn parse_packet_type(info: &FieldInfo, text: &str) -> Result<(u128, u128), Error> {
    let parse = || {
        let (namespace, kind) = text.strip_prefix('(')?.strip_suffix(')')?.split_once(',')?;
        let small = |part: &str| number::parse_int(part.trim()).filter(|&n| n <= 0xffff);
        Some((small(namespace)? << 16 | small(kind)?, info.max()))
    };
    parse().ok_or_else(|| Error::value(info.name, text, "a packet type as (namespace,type), for example (1,0x800)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::field::FIELDS;
    use proptest::prelude::*;

    fn round(field: Field, text: &str) -> String {
        let (value, mask) = parse(field, text, &NoNames).unwrap_or_else(|e| panic!("{e}"));
        let mut out = String::new();
        format(&mut out, field, value, mask, &NoNames);
        out
    }

    #[test]
    fn a_whole_value_names_all_flags_that_there_are() {
        for text in ["0x21", "new|trk", "+new-est-rel-rpl-inv+trk-snat-dnat"] {
            assert_eq!(parse_value(Field::CtState, text, &NoNames), Ok(0x21));
        }
        assert_eq!(parse_value(Field::TunFlags, "oam", &NoNames), Ok(1));
        assert_eq!(parse_value(Field::TcpFlags, "0x2", &NoNames), Ok(2));
        for (field, text) in [(Field::CtState, "+trk"), (Field::TcpFlags, "+syn"), (Field::CtState, "0x21/0x7f")] {
            assert!(matches!(parse_value(field, text, &NoNames), Err(Error::Wildcards { .. })), "{text}");
        }
    }

    /// What goes in and what comes out, as ovs-ofctl does it.
    #[test]
    fn forms_of_fields() {
        let cases = [
            (Field::TunId, "16", "0x10"),
            (Field::TunId, "0x10/0xff", "0x10/0xff"),
            (Field::Metadata, "0", "0"),
            (Field::NwProto, "0x11", "17"),
            (Field::TcpDst, "80/0xfff0", "80/0xfff0"),
            (Field::TcpDst, "0120", "80"),
            (Field::DlSrc, "0:1:2:3:4:5", "00:01:02:03:04:05"),
            (Field::DlDst, "01:00:00:00:00:00/01:00:00:00:00:00", "01:00:00:00:00:00/01:00:00:00:00:00"),
            (Field::NwSrc, "10.1.2.3", "10.1.2.3"),
            (Field::NwSrc, "10.1.2.3/255.255.0.0", "10.1.0.0/16"),
            (Field::NwSrc, "10.1.2.3/255.0.255.0", "10.0.2.0/255.0.255.0"),
            (Field::Ipv6Src, "2001:DB8:0:0:1:0:0:1/64", "2001:db8::/64"),
            (Field::Ipv6Src, "::1/::f", "::1/::f"),
            (Field::InPort, "LOCAL", "LOCAL"),
            (Field::InPort, "65534", "LOCAL"),
            (Field::InPort, "7", "7"),
            (Field::NwFrag, "NOT_LATER", "not_later"),
            (Field::NwFrag, "yes", "yes"),
            (Field::NwTos, "0xb8", "184"),
            (Field::IpDscp, "46", "46"),
            (Field::TcpFlags, "+syn-ack", "+syn-ack"),
            (Field::TcpFlags, "syn|ack", "syn|ack"),
            (Field::TcpFlags, "0x2/0x12", "+syn-ack"),
            (Field::TunFlags, "+oam", "oam"),
            (Field::TunFlags, "0", "0"),
            (Field::CtState, "+trk-new", "-new+trk"),
            (Field::PacketType, "(1,0x800)", "(1,0x800)"),
            (Field::PacketType, "(1,5)", "(1,5)"),
            (Field::VlanTci, "0x1123/0x1fff", "0x1123/0x1fff"),
            (Field::CtLabel, "0x1234567890abcdef1234567890abcdef", "0x1234567890abcdef1234567890abcdef"),
            (Field::NwSrc, "*", "ANY"),
        ];
        for (field, text, expected) in cases {
            assert_eq!(round(field, text), expected, "{field:?} {text}");
        }
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let cases = [
            (Field::NwSrc, "10.0.0", "ip_src: \"10.0.0\" is not an IPv4 address as 10.0.0.0 or 10.0.0.0/8"),
            (Field::NwProto, "256", "nw_proto: 256 is too large, the largest value is 0xff"),
            (Field::NwProto, "6/0xf0", "nw_proto: \"6/0xf0\" has a mask, but this field takes only a whole value"),
            (Field::NwFrag, "maybe", "ip_frag: \"maybe\" is not one of no, yes, first, later, not_later"),
            (Field::TunFlags, "+xyzzy", "tun_flags: unknown flag in \"+xyzzy\"; valid flags are oam"),
        ];
        for (field, text, expected) in cases {
            assert_eq!(parse(field, text, &NoNames).unwrap_err().to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn formatted_values_parse_back(index in 0..FIELDS.len(), value: u128, mask: u128, exact: bool) {
            let info = &FIELDS[index];
            let whole = exact || info.maskable == Maskable::No;
            let mask = if whole { info.max() } else { mask & info.max() };
            let mask = if info.format == Format::CtState { mask & 0xff } else { mask };
            let mut value = value & mask;
            if info.format == Format::OfPort {
                value %= 0xff00;
            }
            if info.format == Format::Frag {
                prop_assume!(frag_name(value, mask) != "<error>");
            }
            prop_assume!(mask != 0);
            let mut text = String::new();
            format(&mut text, info.field, value, mask, &NoNames);
            let (back, back_mask) = parse(info.field, &text, &NoNames).map_err(|e| TestCaseError::fail(e.to_string()))?;
            if info.format == Format::Frag {
                // "no" and "later" name two masks each; the wider is read back.
                prop_assert_eq!(back & mask, value);
            } else if info.format == Format::CtState && mask == 0xff {
                prop_assert_eq!(back, value);
            } else {
                prop_assert_eq!((back, back_mask), (value, mask), "{} {}", info.name, text);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(index in 0..FIELDS.len(), text in ".{0,40}|[-+0-9a-fx/:.,()|]{0,40}") {
            if let Ok((value, mask)) = parse(FIELDS[index].field, &text, &NoNames) {
                prop_assert!(value & !mask == 0 && mask <= FIELDS[index].max());
            }
        }
    }
}
