//! Actions: `1,2`, `set(ipv4(ttl=63))`, `push_vlan(vid=10,pcp=0)`, `recirc(0x1)`, `drop`.

use std::sync::Arc;

use packet::flow::text::{Item, Items, PortNames, number};
use packet::flow::{Key, Mask, tun_flags};
use packet::put;

use super::argument::{argument, integer};
use super::key::{Parser, format_section, format_vlan, split_lse};
use super::section::{self, Section};
use super::{Context, Error, ct, nsh, sample, tunnel};
use crate::action::{Action, HashAlgorithm, Kept, PacketInPunt, PortNo, Punt, Rewrite};
use crate::bond::Bucket;
use crate::drop::DropReason;

/// How deeply `clone` may nest in text.
pub const MAX_DEPTH: usize = 16;

/// The names of the actions with what they do, for help and documentation. A bare number or name of a
/// port is the action that sends there.
pub const ACTIONS: &[(&str, &str)] = &[
    ("set", "set(SECTION(FIELD=VALUE/MASK)): rewrite header fields"),
    ("push_vlan", "push_vlan(tpid=TYPE,vid=ID,pcp=PRIO): push a VLAN tag"),
    ("pop_vlan", "pop_vlan: remove the outermost VLAN tag"),
    ("push_mpls", "push_mpls(label=L,tc=C,ttl=T,bos=B,eth_type=TYPE): push an MPLS label stack entry"),
    ("pop_mpls", "pop_mpls(eth_type=TYPE): remove the outermost MPLS label stack entry"),
    ("add_mpls", "add_mpls(label=L,tc=C,ttl=T,bos=B,eth_type=TYPE): put an MPLS entry before the whole packet"),
    ("push_eth", "push_eth(src=MAC,dst=MAC): give a packet without Ethernet a header of it"),
    ("pop_eth", "pop_eth: make a frame a packet without Ethernet"),
    ("push_nsh", "push_nsh(flags=F,ttl=T,mdtype=N,np=N,spi=N,si=N,c1=N..c4=N|md2=HEX): push a network service header"),
    ("pop_nsh", "pop_nsh(): remove the network service header"),
    ("recirc", "recirc(ID): classify again"),
    ("hash", "hash(l4(BASIS)), hash(sym_l4(BASIS)): compute dp_hash"),
    ("ct", "ct([commit|force_commit][,zone=N][,mark=M/MASK][,label=L/MASK][,helper=H][,timeout=N][,nat(...)]): track"),
    ("ct_clear", "ct_clear: make the packet an untracked one"),
    ("userspace", "userspace(pid=PID,...): hand a copy to the slow path"),
    ("trunc", "trunc(BYTES): send at most this much with the next output"),
    ("clone", "clone(ACTIONS): run actions on a copy"),
    ("check_pkt_len", "check_pkt_len(size=BYTES,gt(ACTIONS),le(ACTIONS)): run one of two lists, by the length"),
    ("sample", "sample(sample=PERCENT%,actions(ACTIONS)): run actions on a copy of some packets"),
    ("drop", "drop: drop the packet"),
];

/// Formats actions; `drop` for none. `flow` is the key of their flow: it decides by which protocol a
/// rewritten field is called. A drop behind other actions is left out where it only gives a reason for what the
/// packet's end would be without it: in OVS the list just ends there.
pub fn format_actions(out: &mut String, actions: &[Action], flow: &Key, context: &Context<'_>) {
    let is_shown = |action: &&Action| !matches!(action, Action::Drop(reason) if *reason != DropReason::Rule);
    if !actions.iter().any(|action| is_shown(&action)) {
        return out.push_str("drop");
    }
    for (i, action) in actions.iter().filter(is_shown).enumerate() {
        if i > 0 {
            out.push(',');
        }
        format_action(out, action, flow, context);
    }
}

fn format_action(out: &mut String, action: &Action, flow: &Key, context: &Context<'_>) {
    match action {
        Action::Output(port) => format_port(out, *port, context),
        Action::Bond { bond, bucket: Bucket::ByHash } => put!(out, "lb_output({})", bond.id()),
        // Where its packets go now, as OVS shows bonds that choose by what the flow matches.
        Action::Bond { bond, bucket: Bucket::Fixed(bucket) } => match bond.member(*bucket) {
            Some(port) => format_port(out, port, context),
            None => out.push_str("drop"),
        },
        Action::Set(rewrite) => format_set(out, rewrite, flow, context),
        Action::PushVlan { tpid, tci } => {
            out.push_str("push_vlan(");
            if *tpid != 0x8100 {
                put!(out, "tpid=0x{tpid:04x},");
            }
            format_vlan(out, tci | packet::flow::VLAN_PRESENT, u16::MAX, false);
            out.push(')');
        }
        Action::PopVlan => out.push_str("pop_vlan"),
        Action::PushMpls { ethertype, lse } => {
            let [label, tc, bos, ttl] = split_lse(*lse);
            put!(out, "push_mpls(label={label},tc={tc},ttl={ttl},bos={bos},eth_type={ethertype:#x})");
        }
        Action::AddMpls { ethertype, lse } => {
            let [label, tc, bos, ttl] = split_lse(*lse);
            put!(out, "add_mpls(label={label},tc={tc},ttl={ttl},bos={bos},eth_type={ethertype:#x})");
        }
        Action::PopMpls { ethertype } => put!(out, "pop_mpls(eth_type={ethertype:#x})"),
        Action::Recirc(id) => {
            out.push_str("recirc(");
            number::hex(out, (*id).into());
            out.push(')');
        }
        Action::Hash { algorithm: HashAlgorithm::L4, basis } => put!(out, "hash(l4({basis}))"),
        Action::Hash { algorithm: HashAlgorithm::SymmetricL4, basis } => put!(out, "hash(sym_l4({basis}))"),
        Action::Ct(request) => ct::format(out, request),
        Action::CtClear => out.push_str("ct_clear"),
        Action::Punt(punt) => match &**punt {
            Punt::PacketIn(packet_in) => {
                out.push_str("userspace(pid=0,");
                format_controller(out, packet_in);
                out.push(')');
            }
            Punt::Sflow(punt) => sample::format_sflow(out, punt),
            Punt::Ipfix(punt) => sample::format_ipfix(out, punt),
            Punt::Lacp { .. } => out.push_str("userspace(pid=0,slow_path(lacp))"),
            Punt::Bfd { .. } => out.push_str("userspace(pid=0,slow_path(bfd))"),
            Punt::Bpdu { .. } => out.push_str("userspace(pid=0,slow_path(stp))"),
            Punt::Cfm { .. } => out.push_str("userspace(pid=0,slow_path(cfm))"),
            Punt::Lldp { .. } => out.push_str("userspace(pid=0,slow_path(lldp))"),
            Punt::Slow | Punt::Unresolved { .. } | Punt::Neighbour { .. } => {
                out.push_str("userspace(pid=0,slow_path(action))")
            }
        },
        Action::PushEthernet { src, dst } => {
            out.push_str("push_eth(src=");
            number::mac(out, section::mac_number(src));
            out.push_str(",dst=");
            number::mac(out, section::mac_number(dst));
            out.push(')');
        }
        Action::PopEthernet => out.push_str("pop_eth"),
        Action::PushNsh(header) => nsh::format(out, header),
        Action::PopNsh => out.push_str("pop_nsh()"),
        Action::TunnelPush(push) => {
            out.push_str("tnl_push(tnl_port(");
            format_port(out, push.tunnel_port, context);
            out.push_str("),");
            tunnel::format_header(out, push);
            out.push_str(",out_port(");
            format_port(out, push.out_port, context);
            out.push_str("))");
        }
        Action::TunnelSet(set) => {
            out.push_str("set(tunnel(");
            tunnel::format_metadata(out, &set.metadata);
            out.push_str("))");
        }
        Action::TunnelPop(pop) => {
            out.push_str("tnl_pop(");
            format_port(out, pop.port, context);
            out.push(')');
        }
        Action::Truncate { max_len } => put!(out, "trunc({max_len})"),
        Action::Sample { probability, actions } => {
            let percent = 100.0 * f64::from(*probability) / f64::from(u32::MAX);
            put!(out, "sample(sample={percent:.1}%,actions(");
            format_actions(out, actions, flow, context);
            out.push_str("))");
        }
        Action::Clone(actions) if let [Action::Meter(_), Action::Punt(_)] = &actions[..] => {
            out.push_str("sample(sample=100.0%,actions(");
            format_actions(out, actions, flow, context);
            out.push_str("))");
        }
        Action::Clone(actions) => {
            out.push_str("clone(");
            format_actions(out, actions, flow, context);
            out.push(')');
        }
        Action::CheckLength { size, longer, others } => {
            put!(out, "check_pkt_len(size={size},gt(");
            format_actions(out, longer, flow, context);
            out.push_str("),le(");
            format_actions(out, others, flow, context);
            out.push_str("))");
        }
        Action::Meter(meter) => put!(out, "meter({})", meter.number()),
        Action::Drop(_) => out.push_str("drop"),
    }
}

fn format_port(out: &mut String, port: PortNo, context: &Context<'_>) {
    match context.ports.name(port.0) {
        Some(name) => out.push_str(&name),
        None => put!(out, "{}", port.0),
    }
}

/// `controller(...)`, with the arguments of OVS.
fn format_controller(out: &mut String, punt: &PacketInPunt) {
    let &PacketInPunt { context, continuation, reason, rule_cookie, controller_id, max_len, kept: _ } = punt;
    let (paused, recirc_id) = (u8::from(continuation.is_some()), continuation.unwrap_or(context));
    put!(out, "controller(reason={reason},dont_send=0,continuation={paused},recirc_id={recirc_id},rule_cookie=");
    number::hex(out, rule_cookie.into());
    put!(out, ",controller_id={controller_id},max_len={})", max_len.unwrap_or(u16::MAX));
}

/// One `set(...)` for each header that is written.
fn format_set(out: &mut String, rewrite: &Rewrite, flow: &Key, context: &Context<'_>) {
    let start = out.len();
    let (key, mask) = (&rewrite.key, &rewrite.mask.0);
    for section in sections_of(flow, mask).into_iter().filter(|section| !section.is_wild(mask)) {
        out.push_str("set(");
        if section.name == "tunnel" {
            out.push_str("tunnel(");
            section.format_args(out, key, mask, false, context.ports);
            let value = key.tunnel().tun_flags.get();
            let key_flag = if mask.tunnel().tun_id.get() != 0 { tun_flags::KEY } else { 0 };
            out.push_str("flags(");
            packet::flow::text::flags::TUN.format(out, (value | key_flag).into());
            out.push_str("))");
        } else {
            format_section(out, section, key, mask, context.ports);
        }
        out.push_str("),");
    }
    for (tag, bits) in key.common().vlan.iter().zip(mask.common().vlan).filter(|(_, bits)| bits.tci.get() != 0) {
        out.push_str("set(vlan(");
        format_vlan(out, tag.tci.get() | packet::flow::VLAN_PRESENT, bits.tci.get(), false);
        out.push_str(")),");
    }
    for (lse, bits) in key.encap().mpls_lse.iter().zip(mask.encap().mpls_lse).filter(|(_, bits)| bits.get() != 0) {
        let ([label, tc, bos, ttl], bits) = (split_lse(lse.get()), split_lse(bits.get()));
        put!(out, "set(mpls(label={label}/{:#x},tc={tc}/{:x},", bits[0], bits[1]);
        put!(out, "ttl={ttl}/{:#x},bos={bos}/{:x})),", bits[3], bits[2]);
    }
    if out.len() == start { out.push_str("set()") } else { out.truncate(out.len() - 1) }
}

/// The headers whose fields are written. Where fields of several protocols share a part of the key, the flow's own
/// protocol decides.
fn sections_of(flow: &Key, mask: &Key) -> Vec<&'static Section> {
    let (dl_type, proto) = (flow.common().dl_type.get(), flow.common().nw_proto);
    let mut sections = vec![&section::SKB_PRIORITY, &section::TUNNEL, &section::SKB_MARK, &section::ETH, &section::NSH];
    let ipv6_address = !section::IPV6.args[..3].iter().all(|arg| arg_is_wild(arg, mask));
    let network = match dl_type {
        0x0806 | 0x8035 => &section::ARP,
        0x86dd => &section::IPV6,
        _ if ipv6_address => &section::IPV6,
        _ => &section::IPV4,
    };
    sections.push(network);
    sections.push(match (proto, dl_type) {
        (17, _) => &section::UDP,
        (132, _) => &section::SCTP,
        (1, 0x0800) => &section::ICMP,
        (58, 0x86dd) => &section::ICMPV6,
        _ => &section::TCP,
    });
    if network.name != "arp" {
        sections.push(&section::ND);
    }
    sections
}

fn arg_is_wild(arg: &section::Arg, mask: &Key) -> bool {
    matches!(arg.part, section::KeyPart::Field(field) if mask.get(field) == 0)
}

/// Parses actions; `drop` is [`DropReason::Rule`].
pub fn parse_actions(text: &str, ports: &dyn PortNames) -> Result<Vec<Action>, Error> {
    parse_list(text, ports, 0)
}

fn parse_list(text: &str, ports: &dyn PortNames, depth: usize) -> Result<Vec<Action>, Error> {
    if depth > MAX_DEPTH {
        return Err(Error::TooDeep { text: text.into(), max: MAX_DEPTH });
    }
    Items::new(text).map(|item| parse_action(&item?, ports, depth)).collect()
}

fn parse_hash(text: &str) -> Result<Action, Error> {
    let item = Items::new(text).next().transpose()?.filter(|item| item.text == text && item.delimiter == Some('('));
    let algorithm = match item.map(|item| item.key) {
        Some("l4") => HashAlgorithm::L4,
        Some("sym_l4") => HashAlgorithm::SymmetricL4,
        _ => return Err(argument("hash", text, "l4(BASIS), sym_l4(BASIS)")),
    };
    let basis = item.map_or("", |item| item.value);
    Ok(Action::Hash { algorithm, basis: integer("hash", basis, u32::MAX)? })
}

fn parse_action(item: &Item<'_>, ports: &dyn PortNames, depth: usize) -> Result<Action, Error> {
    let value = item.value;
    Ok(match (item.key, item.delimiter) {
        ("set", Some('(')) => parse_set(value, ports)?,
        ("push_vlan", Some('(')) => parse_push_vlan(value)?,
        ("pop_vlan", None) => Action::PopVlan,
        ("push_mpls", Some('(')) => {
            let (ethertype, lse) = parse_label("push_mpls", value)?;
            Action::PushMpls { ethertype, lse }
        }
        ("add_mpls", Some('(')) => {
            let (ethertype, lse) = parse_label("add_mpls", value)?;
            Action::AddMpls { ethertype, lse }
        }
        ("push_eth", Some('(')) => parse_push_eth(value)?,
        ("pop_eth", None) => Action::PopEthernet,
        ("push_nsh", Some('(')) => Action::PushNsh(Arc::new(nsh::parse(value)?)),
        ("pop_nsh", None | Some('(')) => Action::PopNsh,
        ("pop_mpls", Some('(')) => {
            let ethertype = value.strip_prefix("eth_type=").unwrap_or(value);
            Action::PopMpls { ethertype: integer("pop_mpls(eth_type)", ethertype, 0xffff)? as u16 }
        }
        ("recirc", Some('(')) => Action::Recirc(integer("recirc", value, u32::MAX)?),
        ("hash", Some('(')) => parse_hash(value)?,
        ("ct", Some('(')) => Action::Ct(Arc::new(ct::parse(value)?)),
        ("ct", None) => Action::Ct(Arc::default()),
        ("ct_clear", None) => Action::CtClear,
        ("userspace", Some('(')) => parse_userspace(value)?,
        ("trunc", Some('(')) => Action::Truncate { max_len: integer("trunc", value, u32::MAX)? },
        ("clone", Some('(')) => Action::Clone(parse_clone(value, ports, depth)?),
        ("check_pkt_len", Some('(')) => parse_check_length(value, ports, depth)?,
        ("sample", Some('(')) => parse_sample(value, ports, depth)?,
        ("tnl_push" | "tnl_pop" | "meter" | "lb_output", Some('(')) => {
            return Err(argument(item.key, value, "made by the OpenFlow tables alone; a flow cannot be added with it"));
        }
        ("drop", None) => Action::Drop(DropReason::Rule),
        (port, None) => Action::Output(PortNo(parse_port(port, ports)?)),
        (name, _) => return Err(unknown(name)),
    })
}

/// `clone(drop)` is what a clone without actions prints.
fn parse_clone(text: &str, ports: &dyn PortNames, depth: usize) -> Result<Vec<Action>, Error> {
    if text == "drop" { Ok(Vec::new()) } else { parse_list(text, ports, depth + 1) }
}

fn parse_sample(text: &str, ports: &dyn PortNames, depth: usize) -> Result<Action, Error> {
    let (mut probability, mut actions) = (None, Vec::new());
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "sample" => probability = Some(sample::parse_percent(item.value)?),
            "actions" => actions = parse_clone(item.value, ports, depth)?,
            other => return Err(argument("sample", other, "sample=PERCENT%, actions(...)")),
        }
    }
    let probability = probability.ok_or_else(|| argument("sample", text, "sample=PERCENT%, actions(...)"))?;
    Ok(Action::Sample { probability, actions })
}

fn parse_check_length(text: &str, ports: &dyn PortNames, depth: usize) -> Result<Action, Error> {
    let (mut size, mut longer, mut others) = (0, Vec::new(), Vec::new());
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "size" => size = integer("check_pkt_len(size)", item.value, 0xffff)? as u16,
            "gt" => longer = parse_clone(item.value, ports, depth)?,
            "le" => others = parse_clone(item.value, ports, depth)?,
            other => return Err(argument("check_pkt_len", other, "size, gt(...), le(...)")),
        }
    }
    Ok(Action::CheckLength { size, longer, others })
}

fn parse_port(text: &str, ports: &dyn PortNames) -> Result<u32, Error> {
    if text.starts_with(|c: char| c.is_ascii_digit()) && number::parse_int(text).is_some() {
        return integer("output", text, u32::MAX);
    }
    ports.number(text).ok_or_else(|| unknown(text))
}

fn unknown(name: &str) -> Error {
    let valid: Vec<_> = ACTIONS.iter().map(|(name, _)| *name).collect();
    Error::Action { name: name.into(), valid: valid.join(", ") }
}

fn parse_set(text: &str, ports: &dyn PortNames) -> Result<Action, Error> {
    let mut parser = Parser::new(ports);
    for item in Items::new(text) {
        let item = item?;
        if !matches!(item.delimiter, Some('(')) || item.key == "encap" || item.key == "eth_type" {
            return Err(argument("set", item.key, section::NAMES.as_str()));
        }
        parser.list(item.text, 0)?;
    }
    let mask = Mask(parser.mask);
    Ok(Action::Set(Arc::new(Rewrite { key: parser.key.masked(&mask), mask })))
}

fn parse_push_vlan(text: &str) -> Result<Action, Error> {
    let (mut tpid, mut tci) = (0x8100, 0);
    for item in Items::new(text) {
        let item = item?;
        let name = format!("push_vlan({})", item.key);
        match item.key {
            "tpid" => tpid = integer(&name, item.value, 0xffff)? as u16,
            "vid" => tci |= integer(&name, item.value, 0xfff)? as u16,
            "pcp" => tci |= (integer(&name, item.value, 7)? as u16) << 13,
            // Ignored, since it is never sent.
            "cfi" => drop(integer(&name, item.value, 1)?),
            other => return Err(argument("push_vlan", other, "tpid, vid, pcp, cfi")),
        }
    }
    Ok(Action::PushVlan { tpid, tci })
}

fn parse_push_eth(text: &str) -> Result<Action, Error> {
    let (mut src, mut dst) = ([0; 6], [0; 6]);
    for item in Items::new(text) {
        let item = item?;
        let mac = || match number::parse_mac(item.value).map(u64::to_be_bytes) {
            Some([_, _, mac @ ..]) => Ok(mac),
            None => Err(argument("push_eth", item.value, "an Ethernet address")),
        };
        match item.key {
            "src" => src = mac()?,
            "dst" => dst = mac()?,
            other => return Err(argument("push_eth", other, "src, dst")),
        }
    }
    Ok(Action::PushEthernet { src, dst })
}

/// Ethernet type and label stack entry of `action`.
fn parse_label(action: &str, text: &str) -> Result<(u16, u32), Error> {
    let (mut ethertype, mut lse) = (0x8847, 0);
    for item in Items::new(text) {
        let item = item?;
        let name = format!("{action}({})", item.key);
        match item.key {
            "label" => lse |= integer(&name, item.value, 0xf_ffff)? << 12,
            "tc" => lse |= integer(&name, item.value, 7)? << 9,
            "bos" => lse |= integer(&name, item.value, 1)? << 8,
            "ttl" => lse |= integer(&name, item.value, 0xff)?,
            "eth_type" => ethertype = integer(&name, item.value, 0xffff)? as u16,
            other => return Err(argument(action, other, "label, tc, ttl, bos, eth_type")),
        }
    }
    Ok((ethertype, lse))
}

/// `pid=PID,controller(...)`. The pid of a netlink socket is ignored.
fn parse_userspace(text: &str) -> Result<Action, Error> {
    let mut punt = None;
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "pid" => drop(integer("userspace(pid)", item.value, u32::MAX)?),
            "controller" => punt = Some(Punt::PacketIn(parse_controller(item.value)?)),
            "actions" => {}
            other => return Err(argument("userspace", other, "pid, controller(...)")),
        }
    }
    let punt = punt.ok_or_else(|| argument("userspace", text, "pid, controller(...)"))?;
    Ok(Action::Punt(Arc::new(punt)))
}

fn parse_controller(text: &str) -> Result<PacketInPunt, Error> {
    let (mut recirc_id, mut paused) = (0, false);
    let mut punt = PacketInPunt {
        context: 0,
        continuation: None,
        reason: 0,
        rule_cookie: 0,
        controller_id: 0,
        max_len: Some(u16::MAX),
        kept: Kept::default(),
    };
    for item in Items::new(text) {
        let item = item?;
        let name = format!("controller({})", item.key);
        let number = |max| integer(&name, item.value, max);
        match item.key {
            "reason" => punt.reason = number(u8::MAX.into())? as u8,
            "continuation" => paused = number(1)? == 1,
            "recirc_id" => recirc_id = number(u32::MAX)?,
            "rule_cookie" => {
                let cookie = number::parse_int(item.value).and_then(|n| u64::try_from(n).ok());
                let error = || packet::flow::text::Error::value(&name, item.value, "a number of 64 bits");
                punt.rule_cookie = cookie.ok_or_else(error)?;
            }
            "controller_id" => punt.controller_id = number(u16::MAX.into())? as u16,
            "max_len" => punt.max_len = Some(number(u16::MAX.into())? as u16),
            // Every packet-in is sent.
            "dont_send" => drop(number(1)?),
            other => {
                let valid = "reason, dont_send, continuation, recirc_id, rule_cookie, controller_id, max_len";
                return Err(argument("controller", other, valid));
            }
        }
    }
    if paused {
        punt.continuation = Some(recirc_id)
    } else {
        punt.context = recirc_id
    }
    Ok(punt)
}
