//! The commands on dummy ports, `netdev-dummy/*`: frames in, and what they pretend to be.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use datapath::PortNo;
use packet::Packet;
use packet::flow::compose::{compose, compose_sized};
use ports::Port as _;
use ports::dummy::Dummy;

use super::datapaths::find_of_bridges;
use super::ports::parse_hex;
use super::{Context, cidr};
use crate::flow_text::Names;
use crate::unixctl::command::{Outcome, Reply};

/// Bytes of data in a packet made from a flow, as in OVS.
const PAYLOAD: u8 = 64;

/// The shortest frame that `--len` may ask for: Ethernet's, without the checksum.
const MIN_LEN: usize = 60;

/// How long a frame may be: the largest IP packet with its Ethernet header and two tags.
const MAX_LEN: usize = 65535 + 22;

/// How long the command waits for its packets to be through.
const PATIENCE: Duration = Duration::from_secs(5);

/// `netdev-dummy/receive`: returns when the packets have gone their way, so that whatever is asked next
/// sees their flows and counters.
pub fn receive(context: &Context, args: &[String]) -> Outcome {
    let port = find(context, &args[0]).ok_or("no such dummy netdev")?;
    let mut rest = &args[1..];
    let mut queue = 0;
    if let [option, value, after @ ..] = rest
        && option == "--qid"
        && !after.is_empty()
    {
        queue = value.parse().ok().filter(|&queue| queue < port.rx_queues()).ok_or("bad rx queue id.")?;
        rest = after;
    }
    // What is wrong with one of them is said before any has come in.
    let mut frames = Vec::new();
    while let [text, after @ ..] = rest {
        let (frame, after) = frame(context, text, after)?;
        frames.push(frame);
        rest = after;
    }
    for frame in frames {
        if !port.inject_packet(queue, Packet::from_slice(&frame)) {
            return Err(format!("{}: the receive queue is full", args[0]));
        }
    }
    let engine = &context.engine;
    engine.datapath.settle(PATIENCE);
    for separate in engine.separate.all() {
        separate.datapath.settle(PATIENCE);
    }
    // What the packets have changed, by learning, is in force for those that come next.
    engine.switch.run(engine.timer.now());
    Ok(String::new())
}

/// The frame that `text` stands for, and what of `rest` comes after its option.
fn frame<'a>(context: &Context, text: &str, rest: &'a [String]) -> Result<(Vec<u8>, &'a [String]), String> {
    if let Some(frame) = parse_hex(text) {
        return Ok((frame, rest));
    }
    let names = Names::of_datapath(&context.engine.datapath);
    let (key, _) = datapath::text::parse_key(text, &names).map_err(|e| format!("{text}: {e}"))?;
    let [option, value, after @ ..] = rest else { return Ok((compose(&key, &payload()), rest)) };
    if option != "--len" {
        return Ok((compose(&key, &payload()), rest));
    }
    let len = value.parse().ok().filter(|len| *len <= MAX_LEN).ok_or_else(|| format!("{value}: not a packet len"))?;
    if len < MIN_LEN {
        return Err("too small packet len".into());
    }
    let frame = compose_sized(&key, len).ok_or_else(|| format!("{text}: the headers do not fit into {len} bytes"))?;
    Ok((frame, after))
}

fn payload() -> Vec<u8> {
    (0..PAYLOAD).collect()
}

/// The dummy port of this name, of the bridges' datapath if it has one.
fn find(context: &Context, name: &str) -> Option<Arc<Dummy>> {
    let separate = || context.engine.separate.all().into_iter().find_map(|one| one.env.dummies.find(name));
    context.engine.env.dummies.find(name).or_else(separate)
}

/// `netdev-dummy/set-admin-state`.
pub fn set_admin_state(context: &Context, args: &[String]) -> Outcome {
    let state = args.last().map(|state| state.to_ascii_lowercase());
    let up = match state.as_deref() {
        Some("up") => true,
        Some("down") => false,
        _ => return Err("Invalid Admin State".into()),
    };
    let dummies = &context.engine.env.dummies;
    let ports = match args {
        [name, _] => vec![find(context, name).ok_or(UNKNOWN)?],
        _ => dummies.names().iter().filter_map(|name| dummies.find(name)).collect(),
    };
    for port in ports {
        port.set_admin_up(up).map_err(|e| e.to_string())?;
    }
    if context.engine.links.look(&context.engine.switch, &context.engine.datapath) {
        context.configurator.jobs().look_for_devices();
    }
    Ok("OK".into())
}

/// `netdev-dummy/conn-state`: of a port, or of all that connect.
pub fn conn_state(context: &Context, args: &[String]) -> Outcome {
    let names = match args.first() {
        Some(name) => vec![name.clone()],
        None => context.engine.env.dummies.names(),
    };
    let mut text = String::new();
    for name in names {
        let state = match find(context, &name).and_then(|port| port.connected()) {
            Some(true) => "connected",
            Some(false) => "disconnected",
            None if args.is_empty() => continue,
            None => "unknown",
        };
        text += &format!("{name}: {state}\n");
    }
    Ok(text)
}

/// `netdev-dummy/ip4addr`.
pub fn ip4addr(context: &Context, args: &[String]) -> Outcome {
    let port = find(context, &args[0]).ok_or(UNKNOWN)?;
    let (address, len) = cidr::ipv4(&args[1])?;
    port.set_address(address);
    set_address(context, &args[0], (address.into(), len));
    Ok("OK".into())
}

/// `netdev-dummy/ip6addr`.
pub fn ip6addr(context: &Context, args: &[String]) -> Outcome {
    find(context, &args[0]).ok_or(UNKNOWN)?;
    let (address, len) = cidr::ipv6(&args[1])?;
    set_address(context, &args[0], (address.into(), len));
    Ok("OK".into())
}

/// `dpif-dummy/change-port-number`: what a datapath outside of the process could do by itself.
pub fn change_port_number(context: &Context, args: &[String]) -> Reply {
    if find_of_bridges(context, &args[0]).is_none() {
        return Reply::Now(Err("unknown datapath".into()));
    }
    match args[2].parse() {
        Ok(number) if find(context, &args[1]).is_some() && number != 0 => {
            Reply::Later(context.configurator.renumber(&args[1], PortNo(number)))
        }
        Ok(0) | Err(_) => Reply::Now(Err("bad port number".into())),
        Ok(_) => Reply::Now(Err("unknown port".into())),
    }
}

const UNKNOWN: &str = "Unknown Dummy Interface";

/// Tells routes of the address of a port, which has one of each family.
fn set_address(context: &Context, name: &str, address: (IpAddr, u8)) {
    let switch = &context.engine.switch;
    let mut routes = switch.netstate().routes.write();
    let of_other_family = |own: &&(IpAddr, u8)| own.0.is_ipv4() != address.0.is_ipv4();
    let mut all: Vec<_> = routes.addresses(name).iter().filter(of_other_family).copied().collect();
    all.extend((!address.0.is_unspecified()).then_some(address));
    all.sort_by_key(|(own, _)| own.is_ipv6());
    routes.set_addresses(name, all);
    drop(routes);
    switch.netstate_changed();
}
