//! Keys and masks: `recirc_id(0),in_port(1),eth(src=...),eth_type(0x0800),ipv4(...)`.

use packet::flow::text::{Items, PortNames, flags, number};
use packet::flow::{DL_TYPE_NONE, Key, Mask, VLAN_PRESENT, frag, tun_flags};
use packet::{Field, put};

use super::argument::{argument, small, small32};
use super::section::{self, Section};
use super::{Context, Error, options};

const ETH_IPV4: u16 = 0x0800;
const ETH_ARP: u16 = 0x0806;
const ETH_RARP: u16 = 0x8035;
const ETH_IPV6: u16 = 0x86dd;
const ETH_NSH: u16 = 0x894f;
const ETH_MPLS: u16 = 0x8847;
const ETH_MPLS_MCAST: u16 = 0x8848;
const VLAN_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Below it, an Ethernet type is the length of an 802.3 frame.
const ETH_TYPE_MIN: u16 = 0x600;

/// Formats a key under its mask: sections with a matched field, or all that the packet has if
/// `verbose`, in OVS's order.
pub fn format_key(out: &mut String, key: &Key, mask: &Mask, context: &Context<'_>) {
    let start = out.len();
    let mut sections = Sections { out, key, mask: &mask.0, context };
    sections.metadata();
    sections.link();
    if out.len() == start {
        out.push_str("<empty>");
    } else {
        out.truncate(out.trim_end_matches(',').len());
    }
}

/// Formats the section `name` of a `set` action: its written fields.
pub(super) fn format_section(out: &mut String, section: &Section, key: &Key, mask: &Key, ports: &dyn PortNames) {
    put!(out, "{}(", section.name);
    section.format_args(out, key, mask, false, ports);
    out.truncate(out.trim_end_matches(',').len());
    out.push(')');
}

/// Writes the sections of the headers in a key, each followed by a comma.
struct Sections<'a> {
    out: &'a mut String,
    key: &'a Key,
    mask: &'a Key,
    context: &'a Context<'a>,
}

impl Sections<'_> {
    fn section(&mut self, section: &Section) {
        if self.context.verbose || !section.is_wild(self.mask) {
            put!(self.out, "{}(", section.name);
            section.format_args(self.out, self.key, self.mask, self.context.verbose, self.context.ports);
            self.end();
        }
    }

    /// Closes a section, without the comma of its last argument.
    fn end(&mut self) {
        self.out.truncate(self.out.trim_end_matches(',').len());
        self.out.push_str("),");
    }

    /// Metadata of the packet.
    fn metadata(&mut self) {
        self.section(&section::SKB_PRIORITY);
        self.tunnel();
        for section in
            [&section::SKB_MARK, &section::CT_STATE, &section::CT_ZONE, &section::CT_MARK, &section::CT_LABEL]
        {
            self.section(section);
        }
        if self.key.get(Field::CtNwProto) != 0 {
            match self.key.common().dl_type.get() {
                ETH_IPV4 => self.section(&section::CT_TUPLE4),
                ETH_IPV6 => self.section(&section::CT_TUPLE6),
                _ => {}
            }
        }
        for section in [&section::RECIRC_ID, &section::DP_HASH, &section::IN_PORT] {
            self.section(section);
        }
        self.packet_type();
    }

    /// The tunnel's section is there for every packet that came through one, and only for those.
    fn tunnel(&mut self) {
        let (key, mask) = (self.key.tunnel(), self.mask.tunnel());
        let tunnelled = key.tun_src.get() != 0
            || key.tun_dst.get() != 0
            || [key.tun_ipv6_src, key.tun_ipv6_dst].concat().iter().any(|&b| b != 0);
        if !tunnelled {
            return;
        }
        self.out.push_str("tunnel(");
        let shown = with_parts(self.key, self.mask);
        section::TUNNEL.format_args(self.out, self.key, &shown, self.context.verbose, self.context.ports);
        let (ports, bits) = (self.key.encap(), self.mask.encap());
        for (name, value, mask) in
            [("tp_src", ports.tun_tp_src, bits.tun_tp_src), ("tp_dst", ports.tun_tp_dst, bits.tun_tp_dst)]
        {
            if value.get() & mask.get() != 0 {
                put!(self.out, "{name}=");
                number::decimal_masked(self.out, value.get().into(), mask.get().into(), 0xffff);
                self.out.push(',');
            }
        }
        options::format_key(self.out, self.key.tun_metadata(), self.mask.tun_metadata(), self.context.verbose);
        // The key flag says whether there is a tunnel key: it shows with the key itself.
        let keyed = key.tun_id.get() != 0 || key.tun_flags.get() & tun_flags::KEY != 0;
        let key_flag = if keyed { tun_flags::KEY } else { 0 };
        // What left the tunnel without Ethernet shows by its type.
        let value = key.tun_flags.get() & !tun_flags::BARE | key_flag;
        let bits = mask.tun_flags.get() & (tun_flags::OAM | tun_flags::DF | tun_flags::CSUM) | key_flag;
        if bits != 0 {
            self.out.push_str("flags(");
            flags::TUN.format_masked(self.out, value.into(), bits.into());
            self.out.push(')');
        }
        self.end();
    }

    fn packet_type(&mut self) {
        let (value, mask) = (self.key.common().packet_type.get(), self.mask.common().packet_type.get());
        if mask == 0 && !self.context.verbose {
            return;
        }
        self.out.push_str("packet_type(");
        if mask >> 16 != 0 || self.context.verbose {
            self.out.push_str("ns=");
            number::decimal_masked(self.out, (value >> 16).into(), (mask >> 16).into(), 0xffff);
            self.out.push(',');
        }
        if mask & 0xffff != 0 || self.context.verbose {
            self.out.push_str("id=");
            number::hex_masked(self.out, (value & 0xffff).into(), (mask & 0xffff).into(), 0xffff);
        }
        self.end();
    }

    /// Ethernet, VLAN tags, and what they carry.
    fn link(&mut self) {
        if self.key.common().packet_type.get() != 0 {
            return self.network();
        }
        if self.context.verbose || !section::ETH.is_wild(self.mask) {
            self.section(&section::ETH);
        } else if self.mask.common().packet_type.get() == 0 {
            // Nothing else tells that this is an Ethernet frame.
            self.out.push_str("eth(),");
        }
        let tags = self.key.common().vlan;
        let depth = tags.iter().take_while(|tag| tag.tci.get() != 0).count();
        for (tag, mask) in tags.iter().zip(self.mask.common().vlan).take(depth) {
            put!(self.out, "eth_type(0x{:04x}),", if tag.tpid.get() == 0 { 0x8100 } else { tag.tpid.get() });
            if self.context.verbose || mask.tci.get() != 0 {
                self.out.push_str("vlan(");
                format_vlan(self.out, tag.tci.get(), mask.tci.get(), self.context.verbose);
                self.out.push_str("),");
            }
            self.out.push_str("encap(");
        }
        self.network();
        for _ in 0..depth {
            self.end();
        }
    }

    fn network(&mut self) {
        let dl_type = self.key.common().dl_type.get();
        let mask = self.mask.common().dl_type.get();
        if dl_type < ETH_TYPE_MIN {
            // A frame without an Ethernet type has no such section, but its absence can be matched.
            if mask != 0 {
                put!(self.out, "eth_type(0/0x{mask:04x}),");
            }
            return;
        }
        self.section(&section::ETH_TYPE);
        match dl_type {
            ETH_IPV4 => self.section(&section::IPV4),
            ETH_IPV6 => self.section(&section::IPV6),
            ETH_ARP | ETH_RARP => self.section(&section::ARP),
            ETH_NSH => self.section(&section::NSH),
            ETH_MPLS | ETH_MPLS_MCAST => self.mpls(),
            _ => {}
        }
        let common = self.key.common();
        if matches!(dl_type, ETH_IPV4 | ETH_IPV6) && common.nw_frag & frag::LATER == 0 {
            self.transport(dl_type == ETH_IPV6, common.nw_proto);
        }
    }

    fn transport(&mut self, ipv6: bool, proto: u8) {
        match (proto, ipv6) {
            (6, _) => {
                self.section(&section::TCP);
                if self.mask.common().tcp_flags.get() != 0 {
                    self.section(&section::TCP_FLAGS);
                }
            }
            (17, _) => self.section(&section::UDP),
            (132, _) => self.section(&section::SCTP),
            (1, false) => self.section(&section::ICMP),
            (58, true) => {
                self.section(&section::ICMPV6);
                let common = self.key.common();
                if matches!(common.tp_src.get(), 135 | 136) && common.tp_dst.get() == 0 {
                    self.section(&section::ND);
                    if !section::ND_EXT.is_wild(self.mask) {
                        self.section(&section::ND_EXT);
                    }
                }
            }
            _ => {}
        }
    }

    /// The label stack entries down to the bottom of the stack.
    fn mpls(&mut self) {
        let (stack, masks) = (self.key.encap().mpls_lse, self.mask.encap().mpls_lse);
        if masks.iter().all(|mask| mask.get() == 0) && !self.context.verbose {
            return;
        }
        let bottom = stack.iter().position(|lse| lse.get() & 0x100 != 0).map_or(0, |at| at + 1);
        let depth = bottom.max(masks.iter().rposition(|mask| mask.get() != 0).map_or(1, |at| at + 1));
        let exact = masks[..depth].iter().all(|mask| mask.get() == u32::MAX);
        self.out.push_str("mpls(");
        for (lse, mask) in stack.iter().zip(masks).take(depth) {
            let ([label, tc, bos, ttl], mask) = (split_lse(lse.get()), split_lse(mask.get()));
            if exact {
                put!(self.out, "label={label},tc={tc},ttl={ttl},bos={bos},");
            } else {
                put!(self.out, "label={label}/{:#x},tc={tc}/{:x},", mask[0], mask[1]);
                put!(self.out, "ttl={ttl}/{:#x},bos={bos}/{:x},", mask[3], mask[2]);
            }
        }
        self.end();
    }
}

/// Label, traffic class, bottom of stack, TTL (RFC 3032).
pub(super) fn split_lse(lse: u32) -> [u32; 4] {
    [lse >> 12, lse >> 9 & 7, lse >> 8 & 1, lse & 0xff]
}

/// `vid=10,pcp=0`; `cfi=0` where the tag is not marked as present.
pub(super) fn format_vlan(out: &mut String, tci: u16, mask: u16, verbose: bool) {
    let start = out.len();
    let mut part = |name: &str, value: u16, mask: u16, exact: u16| {
        if verbose || value != 0 || mask != 0 {
            put!(out, "{name}=");
            put!(out, "{value}");
            if mask != exact {
                put!(out, "/{mask:#x}");
            }
            out.push(',');
        }
    };
    part("vid", tci & 0xfff, mask & 0xfff, 0xfff);
    part("pcp", tci >> 13, mask >> 13, 7);
    if tci & VLAN_PRESENT == 0 {
        out.push_str("cfi=0,");
    }
    if out.len() > start {
        out.truncate(out.len() - 1);
    }
}

/// Parses a key and its mask. What is not mentioned is a wildcard; an Ethernet type without a VLAN tag
/// matches untagged frames only, as in OVS. Identity and counters of a dump are skipped.
pub fn parse_key(text: &str, ports: &dyn PortNames) -> Result<(Key, Mask), Error> {
    let (given, mask) = parse_given(text, ports)?;
    Ok((given.masked(&mask), mask))
}

/// The same, with the values of the key as they are given, also where they are not matched.
pub fn parse_given(text: &str, ports: &dyn PortNames) -> Result<(Key, Mask), Error> {
    let mut parser = Parser::new(ports);
    parser.list(text, 0)?;
    parser.finish();
    Ok((parser.key, Mask(parser.mask)))
}

pub(super) struct Parser<'a> {
    pub(super) key: Key,
    pub(super) mask: Key,
    /// VLAN tags read so far.
    tags: usize,
    /// An Ethernet type was given.
    untagged: bool,
    /// The Ethernet type that goes with the network header that was given.
    implied: Option<u16>,
    ports: &'a dyn PortNames,
}

impl<'a> Parser<'a> {
    pub(super) fn new(ports: &'a dyn PortNames) -> Parser<'a> {
        Parser { key: Key::new(), mask: Key::new(), tags: 0, untagged: false, implied: None, ports }
    }

    pub(super) fn list(&mut self, text: &str, depth: usize) -> Result<(), Error> {
        if depth > self.key.common().vlan.len() {
            return Err(Error::TooDeep { text: text.into(), max: self.key.common().vlan.len() });
        }
        for item in Items::new(text) {
            let item = item?;
            match (item.key, item.delimiter) {
                ("ufid" | "packets" | "bytes" | "used" | "flags" | "dp" | "offloaded", Some(':')) => {}
                ("encap", Some('(')) => {
                    self.tags += 1;
                    self.list(item.value, depth + 1)?;
                }
                (name, Some('(')) => self.section(name, item.value)?,
                (name, _) => return Err(unknown_section(name)),
            }
        }
        Ok(())
    }

    fn section(&mut self, name: &str, text: &str) -> Result<(), Error> {
        match name {
            "vlan" => return self.vlan(text),
            "mpls" => return self.mpls(text),
            "packet_type" => return self.packet_type(text),
            "eth_type" => return self.eth_type(text),
            "tunnel" => return self.tunnel(text),
            "ipv4" => self.implied = Some(ETH_IPV4),
            "ipv6" => self.implied = Some(ETH_IPV6),
            "arp" => self.implied = Some(ETH_ARP),
            _ => {}
        }
        let section = section::ALL.iter().find(|section| section.name == name);
        let section = section.ok_or_else(|| unknown_section(name))?;
        section.parse(text, &mut self.key, &mut self.mask, self.ports)
    }

    fn finish(&mut self) {
        if let Some(implied) = self.implied.filter(|_| !self.untagged) {
            // Of a packet without Ethernet, its own type says what it is.
            let packet_type = self.key.common().packet_type.get();
            let ethertype = if packet_type >> 16 == 1 { packet_type as u16 } else { implied };
            self.key.common_mut().dl_type.set(ethertype);
            self.mask.common_mut().dl_type.set(u16::MAX);
            self.untagged = true;
        }
        if self.untagged && self.tags < 2 {
            self.mask.common_mut().vlan[self.tags].tci.set(u16::MAX);
        }
    }

    /// The type of a VLAN tag goes with the tag that follows.
    fn eth_type(&mut self, text: &str) -> Result<(), Error> {
        let (mut key, mut mask) = (Key::new(), Key::new());
        section::ETH_TYPE.parse(text, &mut key, &mut mask, self.ports)?;
        let (value, bits) = (key.common().dl_type, mask.common().dl_type);
        if VLAN_TYPES.contains(&value.get()) && self.tags < 2 {
            self.key.common_mut().vlan[self.tags].tpid = value;
            self.mask.common_mut().vlan[self.tags].tpid = bits;
            return Ok(());
        }
        self.untagged = true;
        // `eth_type(0/0xffff)`: a frame that has none.
        let none = value.get() == 0 && bits.get() == u16::MAX;
        let value = if none { DL_TYPE_NONE } else { value.get() };
        self.key.common_mut().dl_type.set(value);
        self.mask.common_mut().dl_type = bits;
        Ok(())
    }

    fn vlan(&mut self, text: &str) -> Result<(), Error> {
        let (mut tci, mut mask) = (VLAN_PRESENT, VLAN_PRESENT);
        for item in Items::new(text) {
            let item = item?;
            let (shift, max) = match item.key {
                "vid" => (0, 0xfff),
                "pcp" => (13, 7),
                "cfi" => (12, 1),
                name => return Err(argument("vlan", name, "vid, pcp, cfi")),
            };
            let (value, bits) = small(&format!("vlan({})", item.key), item.value, max)?;
            tci = tci & !(max << shift) | value << shift;
            mask = mask & !(max << shift) | bits << shift;
        }
        if let Some(tag) = self.key.common_mut().vlan.get_mut(self.tags) {
            tag.tci.set(tci);
            self.mask.common_mut().vlan[self.tags].tci.set(mask);
        }
        Ok(())
    }

    fn mpls(&mut self, text: &str) -> Result<(), Error> {
        let mut at = 0;
        for item in Items::new(text) {
            let item = item?;
            let (shift, max) = match item.key {
                "label" => (12, 0xf_ffff),
                "tc" => (9, 7),
                "bos" => (8, 1),
                "ttl" => (0, 0xff),
                name => return Err(argument("mpls", name, "label, tc, ttl, bos")),
            };
            let (value, bits) = small32(&format!("mpls({})", item.key), item.value, max)?;
            // The next label begins the next entry.
            let (old, mask) = (self.key.encap().mpls_lse, self.mask.encap().mpls_lse);
            if item.key == "label" && mask[at].get() != 0 {
                at += 1;
            }
            if at == old.len() {
                return Err(argument("mpls", text, "those of at most three label stack entries"));
            }
            self.key.encap_mut().mpls_lse[at].set(old[at].get() | value << shift);
            self.mask.encap_mut().mpls_lse[at].set(mask[at].get() | bits << shift);
        }
        Ok(())
    }

    fn packet_type(&mut self, text: &str) -> Result<(), Error> {
        for item in Items::new(text) {
            let item = item?;
            let shift = match item.key {
                "ns" => 16,
                "id" => 0,
                name => return Err(argument("packet_type", name, "ns, id")),
            };
            let (value, bits) = small(&format!("packet_type({})", item.key), item.value, 0xffff)?;
            let (old, mask) = (self.key.common().packet_type.get(), self.mask.common().packet_type.get());
            self.key.common_mut().packet_type.set(old & !(0xffff << shift) | u32::from(value) << shift);
            self.mask.common_mut().packet_type.set(mask & !(0xffff << shift) | u32::from(bits) << shift);
        }
        Ok(())
    }

    /// `flags(...)` is not a field that OpenFlow has as a whole.
    fn tunnel(&mut self, text: &str) -> Result<(), Error> {
        for item in Items::new(text) {
            let item = item?;
            if item.key == "flags" && item.value.is_empty() {
                // None is set.
                self.mask.tunnel_mut().tun_flags.set(flags::TUN.exact as u16);
            } else if item.key == "flags" {
                let (value, mask) = flags::TUN.parse("tunnel(flags)", item.value)?;
                self.key.tunnel_mut().tun_flags.set(value as u16);
                self.mask.tunnel_mut().tun_flags.set(mask as u16);
            } else if item.key == "tp_src" {
                let (value, mask) = small("tunnel(tp_src)", item.value, u16::MAX)?;
                self.key.encap_mut().tun_tp_src.set(value);
                self.mask.encap_mut().tun_tp_src.set(mask);
            } else if item.key == "tp_dst" {
                let (value, mask) = small("tunnel(tp_dst)", item.value, u16::MAX)?;
                self.key.encap_mut().tun_tp_dst.set(value);
                self.mask.encap_mut().tun_tp_dst.set(mask);
            } else if item.key == "geneve" {
                options::parse(item.value, self.key.tun_metadata_mut(), self.mask.tun_metadata_mut())?;
            } else {
                section::TUNNEL.parse(item.text, &mut self.key, &mut self.mask, self.ports)?;
            }
        }
        Ok(())
    }
}

/// The mask of a tunnel without the parts that the packet does not have: OVS has no attributes for them.
fn with_parts(key: &Key, mask: &Key) -> Key {
    let (mut out, parts) = (mask.clone(), key.tunnel());
    let shown = out.tunnel_mut();
    if parts.tun_id.get() == 0 && parts.tun_flags.get() & tun_flags::KEY == 0 {
        shown.tun_id = 0.into();
    }
    if parts.tun_tos == 0 {
        shown.tun_tos = 0;
    }
    if (parts.tun_gbp_id.get(), parts.tun_gbp_flags) == (0, 0) {
        (shown.tun_gbp_id, shown.tun_gbp_flags) = (0.into(), 0);
    }
    if parts.tun_erspan_ver == 0 {
        (shown.tun_erspan_ver, shown.tun_erspan_idx, shown.tun_erspan_dir, shown.tun_erspan_hwid) = (0, 0.into(), 0, 0);
    }
    if (parts.tun_gtpu_flags, parts.tun_gtpu_msgtype) == (0, 0) {
        (shown.tun_gtpu_flags, shown.tun_gtpu_msgtype) = (0, 0);
    }
    for (address, bits) in [(parts.tun_src, &mut shown.tun_src), (parts.tun_dst, &mut shown.tun_dst)] {
        if address.get() == 0 {
            *bits = 0.into();
        }
    }
    let addresses = [(parts.tun_ipv6_src, &mut shown.tun_ipv6_src), (parts.tun_ipv6_dst, &mut shown.tun_ipv6_dst)];
    for (address, bits) in addresses {
        if address == [0; 16] {
            *bits = [0; 16];
        }
    }
    out
}

fn unknown_section(name: &str) -> Error {
    Error::Section { name: name.into(), valid: section::NAMES.clone() }
}
