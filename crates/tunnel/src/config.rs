//! The options of a tunnel port (ovs-vswitchd.conf.db(5), "Tunnel Options"), from text and to text.
//!
//! Texts and leniency are those of Open vSwitch 3.1: numbers end where their digits end, an option that is not known is warned of, and
//! what [`Config::options`] prints leaves out what is the default.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use packet::wire::ethertype;

use crate::matching::{Address, Hex, Key, Match, PacketType};

/// TTL of outer packets where none is configured.
pub const DEFAULT_TTL: u8 = 64;
/// Most segments of SRv6.
pub const MAX_SEGMENTS: usize = 6;

/// The type of a tunnel port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// VXLAN.
    Vxlan,
    /// Geneve.
    Geneve,
    /// GRE.
    Gre,
    /// GRE over IPv6.
    Ip6gre,
    /// ERSPAN.
    Erspan,
    /// ERSPAN over IPv6.
    Ip6erspan,
    /// GTP-U.
    Gtpu,
    /// LISP.
    Lisp,
    /// Packets in UDP without a header.
    Bareudp,
    /// Segment routing over IPv6.
    Srv6,
}

/// Name, UDP port, whether it takes `dst_port`, `csum` and `seq`.
const KINDS: [(Kind, &str, u16, bool, bool, bool); 10] = [
    (Kind::Vxlan, "vxlan", 4789, true, true, false),
    (Kind::Geneve, "geneve", 6081, true, true, false),
    (Kind::Gre, "gre", 0, false, true, true),
    (Kind::Ip6gre, "ip6gre", 0, false, true, true),
    (Kind::Erspan, "erspan", 0, false, false, false),
    (Kind::Ip6erspan, "ip6erspan", 0, false, false, false),
    (Kind::Gtpu, "gtpu", 2152, true, false, false),
    (Kind::Lisp, "lisp", 4341, true, false, false),
    (Kind::Bareudp, "bareudp", 0, true, false, false),
    (Kind::Srv6, "srv6", 0, false, false, false),
];

impl Kind {
    /// The type of this name.
    pub fn from_name(name: &str) -> Result<Kind, Problem> {
        match KINDS.iter().find(|row| row.1 == name) {
            Some(row) => Ok(row.0),
            None if name == "stt" => Err(Problem::Stt),
            None => Err(Problem::Kind { name: name.into() }),
        }
    }

    fn row(self) -> &'static (Kind, &'static str, u16, bool, bool, bool) {
        &KINDS[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Its UDP port where none is configured; zero where it has none.
    pub fn default_port(self) -> u16 {
        self.row().2
    }

    /// Whether it is ERSPAN, over IPv4 or IPv6.
    pub fn is_erspan(self) -> bool {
        matches!(self, Kind::Erspan | Kind::Ip6erspan)
    }
}

/// What is wrong with the options of a port. The text lacks the name of the port, which comes first.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what each is")]
pub enum Problem {
    #[error("stt tunnels are not supported: use geneve or vxlan")]
    Stt,
    #[error("unknown tunnel type '{name}'")]
    Kind { name: String },
    #[error("bad {kind} '{option}'")]
    BadAddress { kind: &'static str, option: &'static str },
    #[error("multicast remote_ip={value} not allowed")]
    Multicast { value: String },
    #[error("invalid TOS {value}")]
    Tos { value: String },
    #[error("unknown extension '{value}'")]
    Extension { value: String },
    #[error("invalid erspan {what}: {value}")]
    Erspan { what: &'static str, value: String },
    #[error("bad {value} '{option}'")]
    BadValue { option: &'static str, value: String },
    #[error("unknown {kind} argument '{option}'")]
    Unknown { kind: &'static str, option: String },
    #[error("{packet_type} configured on {kind} tunnel that cannot carry {layer} traffic")]
    Layer { packet_type: PacketType, kind: &'static str, layer: &'static str },
    #[error("unknown packet_type '{value}'")]
    PacketType { value: String },
    #[error("{kind} type requires valid 'remote_ip' argument")]
    NoRemote { kind: &'static str },
    #[error("{kind} type requires 'remote_ip=flow' with 'local_ip=flow'")]
    LocalFlow { kind: &'static str },
    #[error("'remote_ip' and 'local_ip' has to be of the same address family")]
    Family,
    #[error("VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port")]
    MixedGroupPolicy,
}

/// Problems as lines, each with the name of the port.
pub fn text_of(name: &str, problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{name}: {problem}")).collect::<Vec<_>>().join("\n")
}

/// A value that is configured, or left to the flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Setting<T> {
    /// What the flow has.
    Flow,
    /// This.
    One(T),
}

impl<T> Setting<T> {
    /// Puts what is configured into `place`; what is left to the flow stays.
    pub(crate) fn put(self, place: &mut T) {
        if let Setting::One(value) = self {
            *place = value;
        }
    }
}

/// What the port's own part of the header of ERSPAN says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Erspan {
    /// Version; zero where it is not configured, and then nothing can be sent.
    pub version: Setting<u8>,
    /// Index, of version 1.
    pub index: Setting<u32>,
    /// Direction, of version 2: 1 where the packet left the mirrored port.
    pub direction: Setting<u8>,
    /// Hardware, of version 2.
    pub hardware: Setting<u8>,
}

/// Where the flow label of SRv6 comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum FlowLabel {
    /// That of the inner packet.
    Copy,
    /// Zero.
    Zero,
    /// Of the inner packet's hash.
    Compute,
}

/// What packets of bareudp are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BarePayload {
    /// Ethernet type.
    pub ethertype: u16,
    /// Whether also its relative: IPv6 for IPv4, multicast for unicast of MPLS.
    pub with_relative: bool,
}

impl BarePayload {
    /// Whether packets of this Ethernet type are among them.
    pub fn takes(self, ethertype: u16) -> bool {
        let relative = match self.ethertype {
            ethertype::IPV4 => ethertype::IPV6,
            ethertype::MPLS => ethertype::MPLS_MULTICAST,
            other => other,
        };
        ethertype == self.ethertype || self.with_relative && ethertype == relative
    }
}

/// The options of a tunnel port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Type.
    pub kind: Kind,
    /// The other end.
    pub remote: Address,
    /// This end.
    pub local: Address,
    /// Key of received packets; `None` as if it were zero.
    pub in_key: Option<Key>,
    /// Key of sent packets.
    pub out_key: Option<Key>,
    /// TOS of outer packets.
    pub tos: u8,
    /// Whether they take the DSCP of inner ones.
    pub tos_inherit: bool,
    /// TTL of outer packets.
    pub ttl: u8,
    /// Whether they take that of inner ones.
    pub ttl_inherit: bool,
    /// Whether routers may not fragment them.
    pub dont_fragment: bool,
    /// Whether they have a checksum of UDP or GRE.
    pub checksum: bool,
    /// Whether they are numbered.
    pub sequence: bool,
    /// UDP port of the other end; zero where there is none.
    pub dst_port: u16,
    /// Group policies of VXLAN.
    pub group_policy: bool,
    /// The protocol extension of VXLAN.
    pub protocol_extension: bool,
    /// Mark of sent packets.
    pub egress_mark: Option<u32>,
    /// What it carries.
    pub packet_type: PacketType,
    /// Of ERSPAN.
    pub erspan: Erspan,
    /// Of bareudp.
    pub payload: Option<BarePayload>,
    /// Segments of SRv6.
    pub segments: Vec<Ipv6Addr>,
    /// Flow label of SRv6.
    pub flow_label: FlowLabel,
}

impl Config {
    fn new(kind: Kind) -> Config {
        Config {
            kind,
            remote: Address::Any,
            local: Address::Any,
            in_key: None,
            out_key: None,
            tos: 0,
            tos_inherit: false,
            ttl: 0,
            ttl_inherit: false,
            dont_fragment: true,
            checksum: false,
            sequence: false,
            dst_port: kind.default_port(),
            group_policy: false,
            protocol_extension: false,
            egress_mark: None,
            packet_type: PacketType::LegacyL2,
            erspan: Erspan {
                version: Setting::One(0),
                index: Setting::One(0),
                direction: Setting::One(0),
                hardware: Setting::One(0),
            },
            payload: None,
            segments: Vec::new(),
            flow_label: FlowLabel::Copy,
        }
    }

    /// Reads options. Returns them with what is to be warned of, or all that is wrong; the last of these is why they are refused.
    pub fn parse<'a>(
        kind: Kind,
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
        let mut parser = Parser::new(kind);
        for (name, value) in options {
            if let Err(problem) = parser.option(name, value) {
                parser.problems.push(problem);
                return Err(parser.problems);
            }
        }
        match parser.finish() {
            Ok(config) => Ok((config, parser.problems)),
            Err(problem) => {
                parser.problems.push(problem);
                Err(parser.problems)
            }
        }
    }

    /// Whether it can carry frames, and whether it can carry packets without Ethernet.
    fn layers(&self) -> (bool, bool) {
        match self.kind {
            Kind::Lisp | Kind::Gtpu | Kind::Bareudp | Kind::Srv6 => (false, true),
            Kind::Gre => (true, true),
            Kind::Vxlan => (true, self.protocol_extension),
            _ => (true, false),
        }
    }

    fn default_packet_type(&self) -> PacketType {
        if self.layers().0 { PacketType::LegacyL2 } else { PacketType::LegacyL3 }
    }

    /// What packets the port takes, behind this port of the datapath.
    pub fn matching(&self, datapath_port: u32) -> Match {
        Match {
            datapath_port,
            key: self.in_key.unwrap_or(Key::One(0)),
            remote: self.remote,
            local: self.local,
            packet_type: self.packet_type,
        }
    }

    /// The options that are not the default, by name, as Open vSwitch prints them.
    pub fn options(&self) -> Vec<(&'static str, String)> {
        let mut out: Vec<(&'static str, String)> = Vec::new();
        let mut put = |name, value: String| out.push((name, value));
        for (name, address) in [("remote_ip", self.remote), ("local_ip", self.local)] {
            match address {
                Address::One(address) => put(name, address.to_string()),
                Address::Flow => put(name, "flow".into()),
                Address::Any => {}
            }
        }
        let text = |key: Key| match key {
            Key::Flow => "flow".to_string(),
            Key::One(key) => key.to_string(),
        };
        match (self.in_key, self.out_key) {
            (Some(one), Some(other)) if one == other => put("key", text(one)),
            (incoming, outgoing) => {
                incoming.into_iter().for_each(|one| put("in_key", text(one)));
                outgoing.into_iter().for_each(|one| put("out_key", text(one)));
            }
        }
        if self.ttl_inherit {
            put("ttl", "inherit".into());
        } else if self.ttl != DEFAULT_TTL {
            put("ttl", self.ttl.to_string());
        }
        if self.tos_inherit {
            put("tos", "inherit".into());
        } else if self.tos != 0 {
            put("tos", format!("{:#x}", self.tos));
        }
        if self.dst_port != self.kind.default_port() && self.dst_port != 0 {
            put("dst_port", self.dst_port.to_string());
        }
        let flags = [("csum", self.checksum), ("seq", self.sequence)];
        flags.into_iter().filter(|flag| flag.1).for_each(|(name, _)| put(name, "true".into()));
        if self.packet_type != self.default_packet_type() {
            put("packet_type", self.packet_type.to_string());
        }
        if !self.dont_fragment {
            put("df_default", "false".into());
        }
        if let Some(mark) = self.egress_mark {
            put("egress_pkt_mark", mark.to_string());
        }
        if self.kind.is_erspan() {
            self.erspan.print(&mut put);
        }
        out.sort_unstable();
        out
    }

    /// The line of `ofproto/list-tunnels`, without its end.
    pub fn list(&self, name: &str, datapath_port: u32) -> String {
        let matching = self.matching(datapath_port);
        let mut line = format!("port {datapath_port}: {name} ({}: {matching}", self.kind.name());
        let mut more = |text: fmt::Arguments<'_>| line.push_str(&format!(", {text}"));
        match self.out_key {
            key if key == self.in_key => {}
            None => more(format_args!("out_key=none")),
            Some(Key::Flow) => more(format_args!("out_key=flow")),
            Some(Key::One(key)) => more(format_args!("out_key={}", Hex(key))),
        }
        match self.ttl_inherit {
            true => more(format_args!("ttl=inherit")),
            false => more(format_args!("ttl={}", self.ttl)),
        }
        match (self.tos_inherit, self.tos) {
            (true, _) => more(format_args!("tos=inherit")),
            (false, 0) => {}
            (false, tos) => more(format_args!("tos={tos:#x}")),
        }
        if !self.dont_fragment {
            more(format_args!("df=false"));
        }
        if self.checksum {
            more(format_args!("csum=true"));
        }
        line + ")"
    }
}

impl Erspan {
    fn print(&self, put: &mut impl FnMut(&'static str, String)) {
        let flow = || "flow".to_string();
        let index = match self.index {
            Setting::Flow => flow(),
            Setting::One(index) => format!("{index:#x}"),
        };
        let direction = match self.direction {
            Setting::Flow => flow(),
            Setting::One(direction) => direction.to_string(),
        };
        let hardware = match self.hardware {
            Setting::Flow => flow(),
            Setting::One(hardware) => format!("{hardware:#x}"),
        };
        match self.version {
            // As nothing is known of the version, all others count as left to the flow.
            Setting::Flow => {
                ["erspan_ver", "erspan_idx", "erspan_dir", "erspan_hwid"].into_iter().for_each(|name| put(name, flow()))
            }
            Setting::One(version) => {
                put("erspan_ver", version.to_string());
                if version == 1 {
                    put("erspan_idx", index);
                } else if version == 2 {
                    put("erspan_dir", direction);
                    put("erspan_hwid", hardware);
                }
            }
        }
    }
}

/// Options that are being read.
struct Parser {
    config: Config,
    problems: Vec<Problem>,
    /// Texts of `key`, `in_key` and `out_key`.
    keys: [Option<Key>; 3],
    packet_type: Option<String>,
    /// Whether the remote and the local address were written as those of IPv6.
    is_v6: [Option<bool>; 2],
}

impl Parser {
    fn new(kind: Kind) -> Parser {
        Parser { config: Config::new(kind), problems: Vec::new(), keys: [None; 3], packet_type: None, is_v6: [None; 2] }
    }

    /// Reads one option. What can be passed over is put down as a problem; an error ends the reading.
    fn option(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        let &(kind, kind_name, _, has_port, has_checksum, has_sequence) = self.config.kind.row();
        let config = &mut self.config;
        match name {
            "remote_ip" => match address(value) {
                Some(Address::One(one)) if one.is_multicast() => {
                    return Err(Problem::Multicast { value: value.into() });
                }
                Some(remote) => (config.remote, self.is_v6[0]) = (remote, family(value)),
                None => self.problems.push(Problem::BadAddress { kind: kind_name, option: "remote_ip" }),
            },
            "local_ip" => match address(value) {
                Some(local) => (config.local, self.is_v6[1]) = (local, family(value)),
                None => self.problems.push(Problem::BadAddress { kind: kind_name, option: "local_ip" }),
            },
            "tos" if value == "inherit" => config.tos_inherit = true,
            "tos" => match number(value, 0) {
                (tos, "") if tos & 0xfc == tos => config.tos = tos as u8,
                _ => self.problems.push(Problem::Tos { value: value.into() }),
            },
            "ttl" if value == "inherit" => config.ttl_inherit = true,
            "ttl" => config.ttl = decimal(value) as u8,
            "dst_port" if has_port => config.dst_port = decimal(value) as u16,
            "csum" if has_checksum => config.checksum |= value == "true",
            "seq" if has_sequence => config.sequence |= value == "true",
            "df_default" => config.dont_fragment &= value != "false",
            "key" => self.keys[0] = Some(key(value)),
            "in_key" => self.keys[1] = Some(key(value)),
            "out_key" => self.keys[2] = Some(key(value)),
            "packet_type" => self.packet_type = Some(value.into()),
            "exts" if kind == Kind::Vxlan => {
                (config.group_policy, config.protocol_extension) = (false, false);
                for extension in value.split(',').filter(|extension| !extension.is_empty()) {
                    match extension {
                        "gbp" => config.group_policy = true,
                        "gpe" => config.protocol_extension = true,
                        other => self.problems.push(Problem::Extension { value: other.into() }),
                    }
                }
            }
            "egress_pkt_mark" => config.egress_mark = Some(decimal(value) as u32),
            "erspan_ver" | "erspan_idx" | "erspan_dir" | "erspan_hwid" => self.erspan(name, value)?,
            "payload_type" => config.payload = Some(payload(value)?),
            "srv6_segs" if kind == Kind::Srv6 => match segments(value) {
                Some(segments) => config.segments = segments,
                None => self.problems.push(Problem::BadValue { option: "srv6_segs", value: value.into() }),
            },
            "srv6_flowlabel" if kind == Kind::Srv6 => {
                config.flow_label = match value {
                    "zero" => FlowLabel::Zero,
                    "compute" => FlowLabel::Compute,
                    _ => FlowLabel::Copy,
                }
            }
            // Of the IPsec daemon.
            "remote_cert" | "remote_name" | "psk" => {}
            other => self.problems.push(Problem::Unknown { kind: kind_name, option: other.into() }),
        }
        Ok(())
    }

    fn erspan(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        let erspan = &mut self.config.erspan;
        let is_flow = value == "flow";
        let bad = |what| Err(Problem::Erspan { what, value: value.into() });
        match name {
            "erspan_ver" if is_flow => {
                *erspan = Erspan {
                    version: Setting::Flow,
                    index: Setting::Flow,
                    direction: Setting::Flow,
                    hardware: Setting::Flow,
                };
            }
            "erspan_ver" => match decimal(value) as u8 {
                version @ 1..=2 => erspan.version = Setting::One(version),
                _ => return bad("version"),
            },
            "erspan_idx" if is_flow => erspan.index = Setting::Flow,
            "erspan_idx" => match number(value, 16).0 as u32 {
                index @ ..=0xf_ffff => erspan.index = Setting::One(index),
                _ => return bad("index"),
            },
            "erspan_dir" if is_flow => erspan.direction = Setting::Flow,
            "erspan_dir" => match decimal(value) as u8 {
                direction @ ..=1 => erspan.direction = Setting::One(direction),
                _ => return bad("direction"),
            },
            _ if is_flow => erspan.hardware = Setting::Flow,
            _ => match number(value, 16).0 as u8 {
                hardware @ ..=0x3f => erspan.hardware = Setting::One(hardware),
                _ => return bad("hardware ID"),
            },
        }
        Ok(())
    }

    /// What can be said only when all options are known.
    fn finish(&mut self) -> Result<Config, Problem> {
        let mut config = self.config.clone();
        let kind = config.kind.name();
        let (l2, l3) = config.layers();
        let full_name = match (config.kind, config.protocol_extension) {
            (Kind::Vxlan, true) => "VXLAN-GPE",
            (Kind::Vxlan, false) => "VXLAN (without GPE)",
            _ => kind,
        };
        config.packet_type = match self.packet_type.as_deref() {
            None => config.default_packet_type(),
            Some("legacy_l2") => PacketType::LegacyL2,
            Some("legacy_l3") => PacketType::LegacyL3,
            Some("ptap") => PacketType::Aware,
            Some(other) => return Err(Problem::PacketType { value: other.into() }),
        };
        let packet_type = config.packet_type;
        match packet_type {
            PacketType::LegacyL2 if !l2 => return Err(Problem::Layer { packet_type, kind: full_name, layer: "L2" }),
            PacketType::LegacyL3 if !l3 => return Err(Problem::Layer { packet_type, kind: full_name, layer: "L3" }),
            _ => {}
        }
        if config.remote == Address::Any {
            return Err(Problem::NoRemote { kind });
        }
        if config.local == Address::Flow && config.remote != Address::Flow {
            return Err(Problem::LocalFlow { kind });
        }
        if let [Some(remote), Some(local)] = self.is_v6
            && remote != local
        {
            return Err(Problem::Family);
        }
        if config.ttl == 0 {
            config.ttl = DEFAULT_TTL;
        }
        let [both, incoming, outgoing] = self.keys;
        (config.in_key, config.out_key) = (incoming.or(both), outgoing.or(both));
        Ok(config)
    }
}

/// An address; `::` is none.
fn address(text: &str) -> Option<Address> {
    if text == "flow" {
        return Some(Address::Flow);
    }
    let address = text.parse::<IpAddr>().ok()?;
    let is_none = address == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    Some(if is_none { Address::Any } else { Address::One(address.to_canonical()) })
}

/// Whether the text of an address is one of IPv6; `None` where it is none of an address.
fn family(text: &str) -> Option<bool> {
    (text != "flow").then(|| text.contains(':'))
}

fn key(text: &str) -> Key {
    if text == "flow" { Key::Flow } else { Key::One(number(text, 0).0 as u64) }
}

fn payload(text: &str) -> Result<BarePayload, Problem> {
    match text {
        "mpls" => Ok(BarePayload { ethertype: ethertype::MPLS, with_relative: true }),
        "ip" => Ok(BarePayload { ethertype: ethertype::IPV4, with_relative: true }),
        _ => match (number(text, 0), text.is_empty()) {
            ((number @ 0..=0xffff, ""), false) => Ok(BarePayload { ethertype: number as u16, with_relative: false }),
            _ => Err(Problem::BadValue { option: "payload_type", value: text.into() }),
        },
    }
}

fn segments(text: &str) -> Option<Vec<Ipv6Addr>> {
    let texts = text.split(',').filter(|text| !text.is_empty());
    let segments: Vec<Ipv6Addr> = texts.map(|text| text.parse().ok()).collect::<Option<_>>()?;
    (segments.len() <= MAX_SEGMENTS).then_some(segments)
}

fn decimal(text: &str) -> i128 {
    number(text, 10).0
}

/// The number that a text begins with, as C reads it, and what follows. The base is 10, 16, or 0 for what the prefix says. It is at most
/// what 64 bits can tell.
fn number(text: &str, base: u32) -> (i128, &str) {
    let trimmed = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let (negative, digits) = match trimmed.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let hex = hex.filter(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()));
    let (base, digits) = match (base, hex) {
        (0 | 16, Some(rest)) => (16, rest),
        (0, None) if digits.starts_with('0') => (8, digits),
        (0, None) => (10, digits),
        (base, _) => (base, digits),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    if end == 0 {
        return (0, text);
    }
    let value = digits[..end].chars().filter_map(|c| c.to_digit(base)).fold(0u64, |value, digit| {
        value.checked_mul(base.into()).and_then(|value| value.checked_add(digit.into())).unwrap_or(u64::MAX)
    });
    let value = i128::from(value);
    (if negative { -value } else { value }, &digits[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_in_c() {
        for (text, base, value, rest) in [
            ("12", 0, 12, ""),
            (" +0x1fz", 0, 0x1f, "z"),
            ("017", 0, 15, ""),
            ("0x", 0, 0, "x"),
            ("08", 0, 0, "8"),
            ("-3", 10, -3, ""),
            ("ff", 16, 255, ""),
            ("x", 10, 0, "x"),
            ("99999999999999999999", 10, i128::from(u64::MAX), ""),
        ] {
            assert_eq!(number(text, base), (value, rest), "{text:?}");
        }
    }

    #[test]
    fn the_table_of_kinds_is_in_their_order() {
        for (number, row) in KINDS.iter().enumerate() {
            assert_eq!((row.0 as usize, Kind::from_name(row.1)), (number, Ok(row.0)));
        }
    }
}
