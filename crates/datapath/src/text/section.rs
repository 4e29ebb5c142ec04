//! The headers of a datapath flow and their fields, declared once for both directions.

use std::sync::LazyLock;

use packet::Field;
use packet::flow::text::{Item, PortNames, flags, number};
use packet::flow::{Key, frag};
use packet::put;

use super::Error;

/// A section of a key: `name(argument=value,...)`.
#[derive(Debug)]
pub struct Section {
    /// Name.
    pub name: &'static str,
    /// Arguments, in order.
    pub args: &'static [Arg],
}

/// An argument of a section. A section whose only argument has no name is written `name(value)`.
#[derive(Debug)]
pub struct Arg {
    /// Name.
    pub name: &'static str,
    /// The part of the key.
    pub part: KeyPart,
    /// Text form.
    pub form: Form,
}

/// The part of the key that an argument stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// A field.
    Field(Field),
    /// The whole TOS byte.
    Tos,
    /// The fields of a nested section.
    Nested(&'static Section),
}

impl PartialEq for Section {
    fn eq(&self, other: &Section) -> bool {
        self.name == other.name
    }
}

impl Eq for Section {}

/// Text form of an argument, with the mask that counts as exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Decimal.
    Dec(u128),
    /// Hexadecimal, 0 without 0x.
    Hex(u128),
    /// Hexadecimal, always with 0x.
    Hex0x(u128),
    /// Four hexadecimal digits.
    Hex4,
    /// Ethernet address.
    Mac,
    /// IPv4 address, the mask as an address.
    Ipv4,
    /// IPv6 address, the mask as an address.
    Ipv6,
    /// no, first, later.
    Frag,
    /// Datapath port.
    Port,
    /// TCP flags.
    TcpFlags,
    /// Connection states.
    CtState,
    /// A nested section.
    Nested,
}

const U8: u128 = 0xff;
const U16: u128 = 0xffff;
const U32: u128 = 0xffff_ffff;
const U64: u128 = 0xffff_ffff_ffff_ffff;

macro_rules! sections {
    ($($ident:ident $name:literal { $($arg:literal $part:expr, $form:expr;)* })*) => {
        $(pub(super) static $ident: Section =
            Section { name: $name, args: &[$(Arg { name: $arg, part: $part, form: $form },)*] };)*
        /// Every section.
        pub static ALL: &[&Section] = &[$(&$ident,)*];
    };
}

use KeyPart::Field as F;

sections! {
    SKB_PRIORITY "skb_priority" { "" F(Field::SkbPriority), Form::Hex(U32); }
    TUNNEL "tunnel" {
        "tun_id" F(Field::TunId), Form::Hex0x(U64);
        "src" F(Field::TunSrc), Form::Ipv4;
        "dst" F(Field::TunDst), Form::Ipv4;
        "ipv6_src" F(Field::TunIpv6Src), Form::Ipv6;
        "ipv6_dst" F(Field::TunIpv6Dst), Form::Ipv6;
        "tos" F(Field::TunTos), Form::Hex(U8);
        "ttl" F(Field::TunTtl), Form::Dec(U8);
        "vxlan" KeyPart::Nested(&VXLAN), Form::Nested;
        "erspan" KeyPart::Nested(&ERSPAN), Form::Nested;
        "gtpu" KeyPart::Nested(&GTPU), Form::Nested;
    }
    SKB_MARK "skb_mark" { "" F(Field::PktMark), Form::Hex(U32); }
    CT_STATE "ct_state" { "" F(Field::CtState), Form::CtState; }
    CT_ZONE "ct_zone" { "" F(Field::CtZone), Form::Hex(U16); }
    CT_MARK "ct_mark" { "" F(Field::CtMark), Form::Hex(U32); }
    CT_LABEL "ct_label" { "" F(Field::CtLabel), Form::Hex(u128::MAX); }
    CT_TUPLE4 "ct_tuple4" {
        "src" F(Field::CtNwSrc), Form::Ipv4;
        "dst" F(Field::CtNwDst), Form::Ipv4;
        "proto" F(Field::CtNwProto), Form::Dec(U8);
        "tp_src" F(Field::CtTpSrc), Form::Dec(U16);
        "tp_dst" F(Field::CtTpDst), Form::Dec(U16);
    }
    CT_TUPLE6 "ct_tuple6" {
        "src" F(Field::CtIpv6Src), Form::Ipv6;
        "dst" F(Field::CtIpv6Dst), Form::Ipv6;
        "proto" F(Field::CtNwProto), Form::Dec(U8);
        "src_port" F(Field::CtTpSrc), Form::Dec(U16);
        "dst_port" F(Field::CtTpDst), Form::Dec(U16);
    }
    RECIRC_ID "recirc_id" { "" F(Field::RecircId), Form::Hex(U32); }
    DP_HASH "dp_hash" { "" F(Field::DpHash), Form::Hex(U32); }
    IN_PORT "in_port" { "" F(Field::InPortOxm), Form::Port; }
    ETH "eth" {
        "src" F(Field::DlSrc), Form::Mac;
        "dst" F(Field::DlDst), Form::Mac;
    }
    ETH_TYPE "eth_type" { "" F(Field::DlType), Form::Hex4; }
    IPV4 "ipv4" {
        "src" F(Field::NwSrc), Form::Ipv4;
        "dst" F(Field::NwDst), Form::Ipv4;
        "proto" F(Field::NwProto), Form::Dec(U8);
        "tos" KeyPart::Tos, Form::Hex(U8);
        "ttl" F(Field::NwTtl), Form::Dec(U8);
        "frag" F(Field::NwFrag), Form::Frag;
    }
    IPV6 "ipv6" {
        "src" F(Field::Ipv6Src), Form::Ipv6;
        "dst" F(Field::Ipv6Dst), Form::Ipv6;
        "label" F(Field::Ipv6Label), Form::Hex(0xf_ffff);
        "proto" F(Field::NwProto), Form::Dec(U8);
        "tclass" KeyPart::Tos, Form::Hex(U8);
        "hlimit" F(Field::NwTtl), Form::Dec(U8);
        "frag" F(Field::NwFrag), Form::Frag;
    }
    NSH "nsh" {
        "flags" F(Field::NshFlags), Form::Dec(U8);
        "ttl" F(Field::NshTtl), Form::Dec(U8);
        "mdtype" F(Field::NshMdtype), Form::Dec(U8);
        "np" F(Field::NshNp), Form::Dec(U8);
        "spi" F(Field::NshSpi), Form::Hex0x(0xff_ffff);
        "si" F(Field::NshSi), Form::Dec(U8);
        "c1" F(Field::NshC1), Form::Hex0x(U32);
        "c2" F(Field::NshC2), Form::Hex0x(U32);
        "c3" F(Field::NshC3), Form::Hex0x(U32);
        "c4" F(Field::NshC4), Form::Hex0x(U32);
    }
    TCP "tcp" {
        "src" F(Field::TcpSrc), Form::Dec(U16);
        "dst" F(Field::TcpDst), Form::Dec(U16);
    }
    TCP_FLAGS "tcp_flags" { "" F(Field::TcpFlags), Form::TcpFlags; }
    UDP "udp" {
        "src" F(Field::UdpSrc), Form::Dec(U16);
        "dst" F(Field::UdpDst), Form::Dec(U16);
    }
    SCTP "sctp" {
        "src" F(Field::SctpSrc), Form::Dec(U16);
        "dst" F(Field::SctpDst), Form::Dec(U16);
    }
    ICMP "icmp" {
        "type" F(Field::IcmpType), Form::Dec(U8);
        "code" F(Field::IcmpCode), Form::Dec(U8);
    }
    ICMPV6 "icmpv6" {
        "type" F(Field::Icmpv6Type), Form::Dec(U8);
        "code" F(Field::Icmpv6Code), Form::Dec(U8);
    }
    // The opcode is 16 bits wide here while a key holds 8: its mask never looks exact, as in OVS.
    ARP "arp" {
        "sip" F(Field::ArpSpa), Form::Ipv4;
        "tip" F(Field::ArpTpa), Form::Ipv4;
        "op" F(Field::ArpOp), Form::Dec(U16);
        "sha" F(Field::ArpSha), Form::Mac;
        "tha" F(Field::ArpTha), Form::Mac;
    }
    ND "nd" {
        "target" F(Field::NdTarget), Form::Ipv6;
        "sll" F(Field::NdSll), Form::Mac;
        "tll" F(Field::NdTll), Form::Mac;
    }
    ND_EXT "nd_ext" {
        "nd_reserved" F(Field::NdReserved), Form::Hex0x(U32);
        "nd_options_type" F(Field::NdOptionsType), Form::Dec(U8);
    }
}

static VXLAN: Section =
    Section { name: "vxlan", args: &[Arg { name: "gbp", part: KeyPart::Nested(&GBP), form: Form::Nested }] };
static GBP: Section = Section {
    name: "gbp",
    args: &[
        Arg { name: "id", part: F(Field::TunGbpId), form: Form::Dec(U16) },
        Arg { name: "flags", part: F(Field::TunGbpFlags), form: Form::Hex(U8) },
    ],
};
static ERSPAN: Section = Section {
    name: "erspan",
    args: &[
        Arg { name: "ver", part: F(Field::TunErspanVer), form: Form::Dec(0xf) },
        Arg { name: "idx", part: F(Field::TunErspanIdx), form: Form::Hex(0xf_ffff) },
        Arg { name: "dir", part: F(Field::TunErspanDir), form: Form::Dec(1) },
        Arg { name: "hwid", part: F(Field::TunErspanHwid), form: Form::Hex(0x3f) },
    ],
};
static GTPU: Section = Section {
    name: "gtpu",
    args: &[
        Arg { name: "flags", part: F(Field::TunGtpuFlags), form: Form::Hex(U8) },
        Arg { name: "msgtype", part: F(Field::TunGtpuMsgtype), form: Form::Dec(U8) },
    ],
};

impl KeyPart {
    fn get(self, key: &Key) -> u128 {
        match self {
            KeyPart::Field(field) => key.get(field),
            KeyPart::Tos => key.common().nw_tos.into(),
            // For a mask: whether anything in it is matched.
            KeyPart::Nested(section) => u128::from(section.args.iter().any(|arg| arg.part.get(key) != 0)),
        }
    }

    fn set(self, key: &mut Key, value: u128) {
        match self {
            KeyPart::Field(field) => key.set(field, value),
            KeyPart::Tos => key.common_mut().nw_tos = value as u8,
            KeyPart::Nested(_) => {}
        }
    }

    /// All bits of the part.
    fn max(self) -> u128 {
        match self {
            KeyPart::Field(field) => field.info().max(),
            KeyPart::Tos => U8,
            KeyPart::Nested(_) => 0,
        }
    }
}

impl Section {
    /// Whether no argument is matched.
    pub(super) fn is_wild(&self, mask: &Key) -> bool {
        self.args.iter().all(|arg| arg.part.get(mask) == 0)
    }

    /// Formats the arguments, with those that are wildcarded if `verbose`. Each ends in a comma, but
    /// the one of a section with a single value.
    pub(super) fn format_args(&self, out: &mut String, key: &Key, mask: &Key, verbose: bool, ports: &dyn PortNames) {
        for arg in self.args {
            let bits = arg.part.get(mask);
            let hidden = !verbose || matches!(arg.form, Form::Frag | Form::Nested);
            if bits == 0 && hidden {
                continue;
            }
            if let KeyPart::Nested(inner) = arg.part {
                put!(out, "{}(", arg.name);
                inner.format_args(out, key, mask, verbose, ports);
                out.truncate(out.trim_end_matches(',').len());
                out.push_str("),");
            } else if verbose && matches!(arg.form, Form::CtState) {
                // As in OVS, flags are a number where everything is shown, and its mask has the flags that there are.
                number::hex(out, arg.part.get(key));
                out.push('/');
                number::hex(out, bits & CT_STATES);
            } else if arg.name.is_empty() {
                arg.form.format(out, arg.part.get(key), bits, ports);
            } else {
                put!(out, "{}=", arg.name);
                arg.form.format(out, arg.part.get(key), bits, ports);
                out.push(',');
            }
        }
    }

    /// Parses the text between the parentheses into key and mask.
    pub(super) fn parse(&self, text: &str, key: &mut Key, mask: &mut Key, ports: &dyn PortNames) -> Result<(), Error> {
        if let [arg @ Arg { name: "", .. }] = self.args {
            return arg.parse(self.name, text, key, mask, ports);
        }
        for item in packet::flow::text::Items::loose(text) {
            let item = item?;
            let arg = self.args.iter().find(|arg| arg.name == item.key || alias(arg.name) == item.key);
            match arg.ok_or_else(|| self.unknown(&item))? {
                Arg { part: KeyPart::Nested(inner), .. } => inner.parse(item.value, key, mask, ports)?,
                arg => arg.parse(&format!("{}({})", self.name, arg.name), item.value, key, mask, ports)?,
            }
        }
        Ok(())
    }

    pub(super) fn unknown(&self, item: &Item<'_>) -> Error {
        let valid: Vec<_> = self.args.iter().map(|arg| arg.name).collect();
        Error::Argument { section: self.name.into(), name: item.key.into(), valid: valid.join(", ") }
    }
}

/// `ct_tuple6` prints its ports by other names than it reads them.
fn alias(name: &str) -> &str {
    match name {
        "src_port" => "tp_src",
        "dst_port" => "tp_dst",
        name => name,
    }
}

impl Arg {
    fn parse(&self, name: &str, text: &str, key: &mut Key, mask: &mut Key, ports: &dyn PortNames) -> Result<(), Error> {
        let (value, bits) = self.form.parse(name, text.trim(), ports)?;
        let max = self.part.max();
        if value > max {
            let text = text.into();
            return Err(packet::flow::text::Error::TooLarge { name: name.into(), text, max }.into());
        }
        let bits = bits & max;
        self.part.set(key, value);
        self.part.set(mask, bits);
        Ok(())
    }
}

impl Form {
    fn format(self, out: &mut String, value: u128, mask: u128, ports: &dyn PortNames) {
        match self {
            Form::Dec(exact) => number::decimal_masked(out, value, mask, exact),
            Form::Hex(exact) => number::hex_masked(out, value, mask, exact),
            Form::Hex0x(exact) => {
                put!(out, "{value:#x}");
                if mask != exact {
                    out.push('/');
                    number::hex(out, mask);
                }
            }
            Form::Hex4 if mask == U16 => put!(out, "0x{value:04x}"),
            Form::Hex4 => put!(out, "0x{value:04x}/0x{mask:04x}"),
            Form::Mac => number::mac_masked(out, value as u64, mask as u64),
            Form::Ipv4 => {
                number::ipv4_masked(out, value as u32, u32::MAX);
                if mask != U32 {
                    out.push('/');
                    number::ipv4_masked(out, mask as u32, u32::MAX);
                }
            }
            Form::Ipv6 => {
                number::ipv6(out, value);
                if mask != u128::MAX {
                    out.push('/');
                    number::ipv6(out, mask);
                }
            }
            Form::Frag => out.push_str(FRAGS[(value & 3) as usize]),
            Form::Port if mask == U32 => match ports.name(value as u32) {
                Some(name) => out.push_str(&name),
                None => put!(out, "{value}"),
            },
            Form::Port => number::decimal_masked(out, value, mask, U32),
            Form::TcpFlags => flags::TCP.format_masked(out, value, mask),
            // Of its 32 bits, as many as have names can be matched: the mask is never exact.
            Form::CtState => flags::CT_STATE.format_signed(out, value, mask),
            Form::Nested => {}
        }
    }

    fn parse(self, name: &str, text: &str, ports: &dyn PortNames) -> Result<(u128, u128), Error> {
        use packet::flow::text::Error as Wrong;
        let parsed = match self {
            Form::Dec(exact) | Form::Hex(exact) | Form::Hex0x(exact) => integer(text, exact),
            Form::Hex4 => integer(text, U16),
            Form::Mac => number::parse_mac_masked(text).map(|(value, mask)| (value.into(), mask.into())),
            Form::Ipv4 => number::parse_ipv4_masked(text).map(|(value, mask)| (value.into(), mask.into())),
            Form::Ipv6 => number::parse_ipv6_masked(text),
            Form::Frag => {
                FRAGS.iter().position(|&kind| kind == text).filter(|&f| f != 2).map(|kind| (kind as u128, FRAG_EXACT))
            }
            Form::Port => integer(text, U32).or_else(|| ports.number(text).map(|port| (port.into(), U32))),
            Form::TcpFlags => return Ok(flags::TCP.parse(name, text)?),
            Form::CtState => match integer(text, U32) {
                Some(numbers) => return Ok(numbers),
                None => return Ok(flags::CT_STATE.parse(name, text)?),
            },
            Form::Nested => None,
        };
        Ok(parsed.ok_or_else(|| Wrong::value(name, text, self.expected()))?)
    }

    fn expected(self) -> &'static str {
        match self {
            Form::Dec(_) | Form::Hex(_) | Form::Hex0x(_) | Form::Hex4 => "a number, as 1 or 0x1, or 1/0xff with a mask",
            Form::Mac => "an Ethernet address, as 00:11:22:33:44:55",
            Form::Ipv4 => "an IPv4 address, as 10.0.0.1 or 10.0.0.0/255.0.0.0",
            Form::Ipv6 => "an IPv6 address, as fe80::1 or fe80::/ffc0::",
            Form::Frag => "one of no, first, later",
            Form::Port => "the number or name of a datapath port",
            Form::TcpFlags | Form::CtState => "flags, as +syn-ack",
            Form::Nested => "a list in parentheses",
        }
    }
}

/// The states of connections that there are.
const CT_STATES: u128 = 0xff;

/// By the bits of `nw_frag`. A packet cannot be a later fragment without being a fragment.
const FRAGS: [&str; 4] = ["no", "first", "<error>", "later"];
const FRAG_EXACT: u128 = (frag::ANY | frag::LATER) as u128;

fn integer(text: &str, exact: u128) -> Option<(u128, u128)> {
    match text.split_once('/') {
        Some((value, mask)) => Some((number::parse_int(value)?, number::parse_int(mask)?)),
        None => Some((number::parse_int(text)?, exact)),
    }
}

/// The names of all sections, for errors and help.
pub static NAMES: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<_> = ALL.iter().map(|section| section.name).collect();
    format!("{}, packet_type, vlan, mpls, encap", names.join(", "))
});

/// An address of Ethernet as a number.
pub(super) fn mac_number(mac: &[u8; 6]) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
