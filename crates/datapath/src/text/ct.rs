//! Connection tracking: `ct(commit,zone=5,mark=0x1/0xff,nat(src=10.0.0.1-10.0.0.9:1024-2048,random))`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use conntrack::Request;
use conntrack::helpers::Helper;
use conntrack::nat::{Choice, Nat};
use conntrack::tracker::Translate;
use conntrack::tuple::Side;
use packet::flow::text::{Item, Items, number};
use packet::put;

use super::Error;
use super::argument::{argument, integer};

const ARGUMENTS: &str = "commit, force_commit, zone=, mark=, label=, helper=ftp, helper=tftp, timeout=, nat(...)";
const NAT_ARGUMENTS: &str = "src, dst, persistent, hash, random";
const RANGE: &str = "ADDRESS[-ADDRESS][:PORT[-PORT]], IPv6 addresses with ports in brackets";

/// Writes the action. Arguments that say nothing are left out, and the parentheses where there is none.
pub(super) fn format(out: &mut String, request: &Request) {
    let start = out.len();
    out.push_str("ct(");
    let arguments = out.len();
    if request.force {
        out.push_str("force_commit,");
    } else if request.commit {
        out.push_str("commit,");
    }
    if request.zone != 0 {
        put!(out, "zone={},", request.zone);
    }
    if let Some((mark, mask)) = request.mark {
        put!(out, "mark={mark:#x}/{mask:#x},");
    }
    if let Some((label, mask)) = request.label {
        put!(out, "label={label:#x}");
        if mask != u128::MAX {
            put!(out, "/{mask:#x}");
        }
        out.push(',');
    }
    match request.helper {
        Some(Helper::Ftp) => out.push_str("helper=ftp,"),
        Some(Helper::Tftp) => out.push_str("helper=tftp,"),
        None => {}
    }
    if request.policy != 0 {
        put!(out, "timeout={},", request.policy);
    }
    match &request.nat {
        None => {}
        Some(Translate::AsBefore) => out.push_str("nat,"),
        Some(Translate::New(nat)) => {
            format_nat(out, nat);
            out.push(',');
        }
    }
    if out.len() > arguments {
        out.pop();
        out.push(')');
    } else {
        out.truncate(start + "ct".len());
    }
}

fn format_nat(out: &mut String, nat: &Nat) {
    out.push_str(if nat.side == Side::Src { "nat(src" } else { "nat(dst" });
    if let Some((min, max)) = nat.addresses {
        let bracketed = nat.ports.is_some();
        out.push('=');
        format_address(out, min, bracketed);
        if max != min {
            out.push('-');
            format_address(out, max, bracketed);
        }
        if let Some((min, max)) = nat.ports {
            put!(out, ":{min}");
            if max != min {
                put!(out, "-{max}");
            }
        }
    }
    if nat.persistent {
        out.push_str(",persistent");
    }
    match nat.choice {
        Choice::Unsaid => {}
        Choice::Hash => out.push_str(",hash"),
        Choice::Random => out.push_str(",random"),
    }
    out.push(')');
}

fn format_address(out: &mut String, address: IpAddr, bracketed: bool) {
    match address {
        IpAddr::V4(address) => put!(out, "{address}"),
        IpAddr::V6(address) => {
            let (open, close) = if bracketed { ("[", "]") } else { ("", "") };
            out.push_str(open);
            number::ipv6(out, address.into());
            out.push_str(close);
        }
    }
}

/// Reads the arguments.
pub(super) fn parse(text: &str) -> Result<Request, Error> {
    let mut request = Request::default();
    let mut plain_commit = false;
    for item in Items::new(text) {
        let Item { key, value, delimiter, .. } = item?;
        match (key, delimiter) {
            ("commit", None) => (request.commit, plain_commit) = (true, true),
            ("force_commit", None) => (request.commit, request.force) = (true, true),
            ("zone", Some('=')) => request.zone = integer("ct(zone)", value, u16::MAX.into())? as u16,
            ("mark", Some('=')) => {
                let (mark, mask) = masked("ct(mark)", value, u32::MAX.into())?;
                request.mark = (mask != 0).then_some((mark as u32 & mask as u32, mask as u32));
            }
            ("label", Some('=')) => {
                let (label, mask) = masked("ct(label)", value, u128::MAX)?;
                request.label = (mask != 0).then_some((label & mask, mask));
            }
            ("helper", Some('=')) => {
                request.helper = match value {
                    "ftp" => Some(Helper::Ftp),
                    "tftp" => Some(Helper::Tftp),
                    other => return Err(argument("ct(helper)", other, "ftp, tftp")),
                }
            }
            ("timeout", Some('=')) => request.policy = integer("ct(timeout)", value, u16::MAX.into())? as u16,
            ("nat", None) => request.nat = Some(Translate::AsBefore),
            ("nat", Some('(')) => request.nat = Some(parse_nat(value)?),
            (other, _) => return Err(argument("ct", other, ARGUMENTS)),
        }
    }
    if plain_commit && request.force {
        return Err(argument("ct", "commit,force_commit", "commit or force_commit"));
    }
    Ok(request)
}

/// `VALUE[/MASK]`.
fn masked(name: &str, text: &str, max: u128) -> Result<(u128, u128), Error> {
    let number = |text: &str| {
        let value = number::parse_int(text);
        let value =
            value.ok_or_else(|| packet::flow::text::Error::value(name, text, "a number, with or without a mask"))?;
        if value > max {
            return Err(packet::flow::text::Error::TooLarge { name: name.into(), text: text.into(), max });
        }
        Ok(value)
    };
    match text.split_once('/') {
        Some((value, mask)) => Ok((number(value)?, number(mask)?)),
        None => Ok((number(text)?, max)),
    }
}

fn parse_nat(text: &str) -> Result<Translate, Error> {
    let mut nat = Nat { side: Side::Src, addresses: None, ports: None, choice: Choice::Unsaid, persistent: false };
    let (mut side, mut is_empty) = (None, true);
    for item in Items::new(text) {
        let Item { key, value, delimiter, .. } = item?;
        is_empty = false;
        let choice = match (key, delimiter) {
            ("src" | "dst", None | Some('=')) => {
                if side.is_some() {
                    return Err(argument("ct(nat)", text, "only one of src and dst"));
                }
                side = Some(if key == "src" { Side::Src } else { Side::Dst });
                if delimiter.is_some() {
                    (nat.addresses, nat.ports) = parse_range(value).ok_or_else(|| argument("ct(nat)", value, RANGE))?;
                }
                continue;
            }
            ("persistent", None) => {
                nat.persistent = true;
                continue;
            }
            ("hash", None) => Choice::Hash,
            ("random", None) => Choice::Random,
            (other, _) => return Err(argument("ct(nat)", other, NAT_ARGUMENTS)),
        };
        if nat.choice != Choice::Unsaid && nat.choice != choice {
            return Err(argument("ct(nat)", text, "only one of hash and random"));
        }
        nat.choice = choice;
    }
    match side {
        Some(side) => Ok(Translate::New(Nat { side, ..nat })),
        None if is_empty => Ok(Translate::AsBefore),
        None => Err(argument("ct(nat)", text, "src or dst")),
    }
}

type Range = (Option<(IpAddr, IpAddr)>, Option<(u16, u16)>);

/// `A[-B][:P[-Q]]`. An IPv6 address without brackets has no ports.
fn parse_range(text: &str) -> Option<Range> {
    let ports_at = match text.rfind(']') {
        Some(end) => text[end..].find(':').map(|at| end + at),
        None if text.matches(':').count() == 1 => text.find(':'),
        None => None,
    };
    let (addresses, ports) = ports_at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    let (min, max) = addresses.split_once('-').unwrap_or((addresses, addresses));
    let address = |text: &str| -> Option<IpAddr> {
        let bare = text.strip_prefix('[').map_or(Some(text), |rest| rest.strip_suffix(']'))?;
        bare.parse::<Ipv4Addr>().map(IpAddr::from).or_else(|_| bare.parse::<Ipv6Addr>().map(IpAddr::from)).ok()
    };
    let addresses = (address(min)?, address(max)?);
    if addresses.0 > addresses.1 || addresses.0.is_ipv4() != addresses.1.is_ipv4() {
        return None;
    }
    let ports = match ports {
        None => None,
        Some(text) => {
            let (min, max) = text.split_once('-').unwrap_or((text, text));
            let ports: (u16, u16) = (min.parse().ok()?, max.parse().ok()?);
            (ports.0 > 0 && ports.0 <= ports.1).then_some(Some(ports))?
        }
    };
    Some((Some(addresses), ports))
}

#[cfg(test)]
mod tests {
    use packet::flow::text::NoNames;

    use crate::action::Action;
    use crate::text::{format_actions, parse_actions};

    /// Texts as OVS writes them.
    const WRITTEN: &[&str] = &[
        "ct",
        "ct(zone=5)",
        "ct(commit)",
        "ct(force_commit,zone=65535)",
        "ct(commit,zone=5,mark=0x1/0xff,label=0x1/0x1,helper=ftp,timeout=3,nat(src=1.1.1.1-1.1.1.9:1-5,random))",
        "ct(commit,label=0x12345678901234567890)",
        "ct(commit,mark=0x0/0xffffffff,helper=tftp)",
        "ct(nat)",
        "ct(commit,nat(src))",
        "ct(commit,nat(dst=10.0.0.1,persistent,hash))",
        "ct(commit,nat(dst=10.0.0.1:80))",
        "ct(commit,nat(src=fe80::1-fe80::9,random))",
        "ct(commit,nat(dst=[fe80::1]:255-4096))",
        "ct(commit,nat(src=0.0.0.0))",
        "ct_clear",
    ];

    #[test]
    fn texts_of_ovs_read_and_write() {
        for &text in WRITTEN {
            let actions = parse_actions(text, &NoNames).unwrap_or_else(|error| panic!("{text}: {error}"));
            let mut out = String::new();
            format_actions(&mut out, &actions, &Default::default(), &Default::default());
            assert_eq!(out, text);
        }
        for (text, same) in [
            ("ct()", "ct"),
            ("ct(nat())", "ct(nat)"),
            ("ct(commit,mark=1)", "ct(commit,mark=0x1/0xffffffff)"),
            ("ct(zone=0,mark=0/0,label=3/0)", "ct"),
            ("ct(commit,nat(random,src=1.2.3.4-1.2.3.4:7-7))", "ct(commit,nat(src=1.2.3.4:7,random))"),
        ] {
            let mut out = String::new();
            format_actions(&mut out, &parse_actions(text, &NoNames).unwrap(), &Default::default(), &Default::default());
            assert_eq!(out, same, "{text}");
        }
    }

    #[test]
    fn mistakes_are_told() {
        for text in [
            "ct(commit,force_commit)",
            "ct(zone=65536)",
            "ct(zone)",
            "ct(mark=0x100000000)",
            "ct(label=x)",
            "ct(helper=sip)",
            "ct(helper)",
            "ct(nope)",
            "ct(nat(src,dst))",
            "ct(nat(src=1.2.3.4,dst=1.2.3.4))",
            "ct(nat(hash))",
            "ct(nat(src,hash,random))",
            "ct(nat(src=1.2.3.4-1.2.3.3))",
            "ct(nat(src=1.2.3.4-::5))",
            "ct(nat(src=1.2.3.4:0))",
            "ct(nat(src=1.2.3.4:9-8))",
            "ct(nat(src=[::1))",
            "ct(nat(src=))",
            "ct_clear(1)",
            "ct(commit",
        ] {
            assert!(parse_actions(text, &NoNames).is_err(), "{text}");
        }
        assert!(matches!(parse_actions("ct", &NoNames).unwrap()[..], [Action::Ct(_)]));
    }
}
