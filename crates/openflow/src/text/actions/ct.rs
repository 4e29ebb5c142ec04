//! Connection tracking: `ct(commit,zone=5,nat(src=10.0.0.1),exec(load:1->ct_mark))`.

use packet::flow::text::{Items, PortNames, number};
use packet::put;

use super::{format_actions, parse_list};
use crate::action::{Action, Ct, CtZone, Nat, NatAddrs, NatKind};
use crate::text::{Error, integer, integer16, subfield};
use crate::types::TableId;

/// Helpers and the ports that stand for them.
const HELPERS: &[(u16, &str)] = &[(21, "ftp"), (69, "tftp")];

pub(super) fn parse(text: &str, ports: &dyn PortNames, depth: usize) -> Result<Action, Error> {
    let mut ct =
        Ct { commit: false, force: false, zone: CtZone::Immediate(0), table: None, alg: 0, actions: Vec::new() };
    let mut exec = Vec::new();
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "commit" => ct.commit = true,
            "force" => ct.force = true,
            "table" => ct.table = Some(TableId(integer("ct(table)", item.value, 254)? as u8)),
            "zone" => {
                ct.zone = match integer16("ct(zone)", item.value) {
                    Ok(zone) => CtZone::Immediate(zone),
                    Err(error) if number::parse_int(item.value).is_some() => return Err(error),
                    Err(_) => parse_zone(item.value)?,
                }
            }
            "alg" => ct.alg = parse_helper(item.value)?,
            "nat" => ct.actions.push(parse_nat(item.value)?),
            "exec" => exec.extend(parse_list(item.value, ports, depth + 1)?),
            name => {
                let problem =
                    format!("unknown argument {name:?}, valid are commit, force, table, zone, nat, exec, alg");
                return Err(Error::argument("ct", problem));
            }
        }
    }
    if ct.force && !ct.commit {
        return Err(Error::argument("ct", "force needs commit"));
    }
    ct.actions.extend(exec);
    Ok(Action::Ct(Box::new(ct)))
}

fn parse_zone(text: &str) -> Result<CtZone, Error> {
    let zone = subfield::parse(text)?;
    if zone.n_bits != 16 {
        return Err(Error::argument("ct(zone)", format!("{text} is {} bits wide, not 16", zone.n_bits)));
    }
    Ok(CtZone::Field(zone))
}

fn parse_helper(text: &str) -> Result<u16, Error> {
    let known = HELPERS.iter().find(|(_, name)| *name == text).map(|(port, _)| *port);
    match known.or_else(|| number::parse_int(text).and_then(|port| u16::try_from(port).ok())) {
        Some(port) => Ok(port),
        None => Err(Error::argument("ct(alg)", format!("unknown helper {text:?}, valid are ftp, tftp"))),
    }
}

pub(super) fn format(out: &mut String, ct: &Ct, ports: &dyn PortNames) {
    out.push_str("ct(");
    let start = out.len();
    if ct.commit {
        out.push_str("commit,");
    }
    if ct.force {
        out.push_str("force,");
    }
    if let Some(table) = ct.table {
        put!(out, "table={table},");
    }
    match &ct.zone {
        CtZone::Immediate(0) => {}
        CtZone::Immediate(zone) => put!(out, "zone={zone},"),
        CtZone::Field(field) => {
            out.push_str("zone=");
            subfield::format(out, field);
            out.push(',');
        }
    }
    // NAT comes first among the actions and stands outside of exec.
    let mut rest = &ct.actions[..];
    if let Some((Action::Nat(nat), others)) = rest.split_first() {
        format_nat(out, nat);
        out.push(',');
        rest = others;
    }
    if !rest.is_empty() {
        out.push_str("exec(");
        format_actions(out, rest, ports);
        out.push_str("),");
    }
    match HELPERS.iter().find(|(port, _)| *port == ct.alg) {
        Some((_, name)) => put!(out, "alg={name},"),
        None if ct.alg != 0 => put!(out, "alg={},", ct.alg),
        None => {}
    }
    if out.len() > start {
        out.truncate(out.len() - 1);
    }
    out.push(')');
}

/// `src=ADDRESSES:PORTS,persistent,...`, or nothing.
pub(super) fn parse_nat(text: &str) -> Result<Action, Error> {
    let mut nat = Nat::default();
    for item in Items::new(text) {
        let item = item?;
        match item.key {
            "src" | "dst" => {
                if nat.kind.is_some() {
                    return Err(Error::argument("nat", "only one of src and dst may be given"));
                }
                nat.kind = Some(if item.key == "src" { NatKind::Src } else { NatKind::Dst });
                if !item.value.is_empty() {
                    parse_range(item.value, &mut nat)?;
                }
            }
            "persistent" => nat.persistent = true,
            "hash" => nat.hash = true,
            "random" => nat.random = true,
            name => {
                let problem = format!("unknown argument {name:?}, valid are src, dst, persistent, hash, random");
                return Err(Error::argument("nat", problem));
            }
        }
    }
    if nat.kind.is_none() && (nat.persistent || nat.hash || nat.random) {
        return Err(Error::argument("nat", "persistent, hash and random need src or dst"));
    }
    if nat.hash && nat.random {
        return Err(Error::argument("nat", "hash and random exclude each other"));
    }
    Ok(Action::Nat(Box::new(nat)))
}

/// `A[-B][:P[-Q]]`; an IPv6 address stands in brackets where ports follow.
fn parse_range(text: &str, nat: &mut Nat) -> Result<(), Error> {
    let wrong = || {
        let expected = "ADDRESS[-ADDRESS][:PORT[-PORT]], IPv6 addresses with ports in brackets";
        Error::argument("nat", format!("{text:?} is not of the form {expected}"))
    };
    let (addresses, ports) = split_ports(text);
    let (first, last) = match addresses.split_once('-') {
        Some((first, last)) => (first, Some(last)),
        None => (addresses, None),
    };
    let bare = |text: &str| text.trim_start_matches('[').trim_end_matches(']').to_string();
    let v6 = |text: &str| bare(text).parse().map_err(|_| wrong());
    nat.addrs = if let Ok(first) = first.parse() {
        let last = last.map(str::parse).transpose().map_err(|_| wrong())?;
        if last.is_some_and(|last| last < first) {
            return Err(Error::argument("nat", format!("{text}: the range ends before it begins")));
        }
        NatAddrs::V4(first, last.filter(|&last| last != first))
    } else {
        let (first, last) = (v6(first)?, last.map(v6).transpose()?);
        if last.is_some_and(|last| last < first) {
            return Err(Error::argument("nat", format!("{text}: the range ends before it begins")));
        }
        NatAddrs::V6(first, last.filter(|&last| last != first))
    };
    // On the wire, an address of zero is none: what is sent keeps its address.
    let first = match nat.addrs {
        NatAddrs::None => 0,
        NatAddrs::V4(first, _) => u32::from(first).into(),
        NatAddrs::V6(first, _) => first.into(),
    };
    if first == 0 && ports.is_none() {
        nat.addrs = NatAddrs::None;
        return Ok(());
    }
    if let Some(ports) = ports {
        let (low, high) = ports.split_once('-').unwrap_or((ports, ports));
        let (low, high) = (integer16("nat", low)?, integer16("nat", high)?);
        if low == 0 || high < low {
            return Err(Error::argument("nat", format!("{ports} is no range of ports from 1 to 65535")));
        }
        nat.ports = Some((low, if high == low { 0 } else { high }));
    }
    Ok(())
}

/// The ports behind the last address. An IPv6 address without brackets has no ports.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    let split = match text.rfind(']') {
        Some(end) => text[end..].find(':').map(|at| end + at),
        None if text.matches(':').count() == 1 => text.find(':'),
        None => None,
    };
    match split {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

pub(super) fn format_nat(out: &mut String, nat: &Nat) {
    out.push_str("nat");
    let Some(kind) = nat.kind else { return };
    out.push_str(if kind == NatKind::Src { "(src" } else { "(dst" });
    match nat.addrs {
        NatAddrs::None => {}
        NatAddrs::V4(first, last) => {
            put!(out, "={first}");
            if let Some(last) = last {
                put!(out, "-{last}");
            }
        }
        NatAddrs::V6(first, last) => {
            let (open, close) = if nat.ports.is_some() { ("[", "]") } else { ("", "") };
            for (separator, address) in [("=", Some(first)), ("-", last)] {
                if let Some(address) = address {
                    put!(out, "{separator}{open}");
                    number::ipv6(out, address.into());
                    out.push_str(close);
                }
            }
        }
    }
    if let Some((low, high)) = nat.ports {
        put!(out, ":{low}");
        if high != 0 && high != low {
            put!(out, "-{high}");
        }
    }
    for (set, name) in [(nat.persistent, ",persistent"), (nat.hash, ",hash"), (nat.random, ",random")] {
        if set {
            out.push_str(name);
        }
    }
    out.push(')');
}
