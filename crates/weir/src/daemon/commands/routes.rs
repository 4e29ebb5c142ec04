//! `ovs/route/...`: the routes of tunnels.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr};

use netstate::prefix::Prefix;
use netstate::routes::{Origin, Place, Route};

use super::Context;
use super::cidr::{self, Cidr};
use super::conntrack::arguments::whole_number;
use crate::unixctl::command::Outcome;
use crate::unixctl::{Command, Pieces};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "ovs/route/add" "ip_addr/prefix_len out_br_name [gw] [pkt_mark=mark]" (2, 4) now!(add),
        "Adds a route for tunnels, which counts before those of the kernel.";
    "ovs/route/show" "" (0, 0) quick!(|context, _| Ok(show(context)).into()),
        "Routes for tunnels: those of the kernel, and those that were added.";
    "ovs/route/del" "ip_addr/prefix_len [pkt_mark=mark]" (1, 2) now!(del), "Removes a route that was added.";
    "ovs/route/lookup" "ip_addr [pkt_mark=mark]" (1, 2) now!(lookup),
        "By which device, over which gateway and from which address an address is reached.";
};

/// How many routes are listed at a time.
const PORTION: usize = 128;

/// Most routes that operators have added.
const MAX_ADDED: usize = 65_536;

const BAD_MARK: &str = "Invalid pkt_mark";

fn add(context: &Context, args: &[String]) -> Outcome {
    let (address, len) = parse(&args[0])?;
    let (device, mut mark, mut gateway) = (&args[1], 0, None);
    if let Some(text) = args.get(2) {
        match parse_mark(text) {
            Some(given) => mark = given,
            None => gateway = Some(parse_gateway(text, address)?),
        }
    }
    if let Some(text) = args.get(3) {
        mark = parse_mark(text).ok_or(BAD_MARK)?;
    }
    let gateway = gateway.filter(|gateway| !gateway.is_unspecified());
    let prefix = Prefix::new(address, len).ok_or("Invalid parameters")?;
    let mut routes = context.engine.switch.netstate().routes.write();
    // By the address that was given, though the route is for its whole network.
    let source = routes.source(device, address, gateway).ok_or("Error while inserting route.")?;
    if routes.get(mark, prefix, Origin::User).is_none() && routes.count(Origin::User) >= MAX_ADDED {
        return Err(format!("no more than {MAX_ADDED} routes can be added"));
    }
    routes.insert(Route { mark, prefix, device: device.as_str().into(), gateway, source, origin: Origin::User });
    drop(routes);
    context.engine.switch.netstate_changed();
    Ok("OK".into())
}

fn del(context: &Context, args: &[String]) -> Outcome {
    let (address, len) = parse(&args[0])?;
    let mark = args.get(1).map_or(Some(0), |text| parse_mark(text)).ok_or(BAD_MARK)?;
    let prefix = Prefix::new(address, len).ok_or("Invalid parameters")?;
    if !context.engine.switch.netstate().routes.write().remove(mark, prefix, Origin::User) {
        return Err("Not found".into());
    }
    context.engine.switch.netstate_changed();
    Ok("OK".into())
}

fn lookup(context: &Context, args: &[String]) -> Outcome {
    let (address, len) = parse(&args[0])?;
    if len != if address.is_ipv4() { 32 } else { 128 } {
        return Err("Invalid parameters".into());
    }
    let mark = args.get(1).map_or(Some(0), |text| parse_mark(text)).ok_or(BAD_MARK)?;
    let routes = context.engine.switch.netstate().routes.read();
    let Route { device, gateway, source, .. } = routes.find(mark, address).ok_or("Not found")?;
    let gateway = gateway.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    Ok(format!("src {source}\ngateway {gateway}\ndev {device}\n"))
}

fn show(context: &Context) -> Pieces {
    let netstate = context.engine.switch.netstate().clone();
    let (mut heading, mut place) = ("Route Table:\n", None::<Place>);
    Box::new(move |text| {
        text.push_str(std::mem::take(&mut heading));
        let before = place;
        for (next, route) in netstate.routes.read().after(before).take(PORTION) {
            line(text, route);
            place = Some(next);
        }
        place != before
    })
}

fn line(text: &mut String, route: &Route) {
    text.push_str(if route.origin == Origin::User { "User: " } else { "Cached: " });
    let _ = write!(text, "{}", route.prefix);
    if route.mark != 0 {
        let _ = write!(text, " MARK {}", route.mark);
    }
    let _ = write!(text, " dev {}", route.device);
    if let Some(gateway) = route.gateway {
        let _ = write!(text, " GW {gateway}");
    }
    let _ = write!(text, " SRC {}", route.source);
    text.push_str(if route.origin == Origin::Local { " local\n" } else { "\n" });
}

pub(super) fn parse(text: &str) -> Result<Cidr<IpAddr>, String> {
    let v4 = cidr::ipv4(text).map(|(address, len)| (address.into(), len));
    let parsed = v4.or_else(|_| cidr::ipv6(text).map(|(address, len)| (address.into(), len)));
    parsed.map_err(|_| "Invalid parameters".into())
}

/// A gateway of the same family as the destination.
fn parse_gateway(text: &str, to: IpAddr) -> Result<IpAddr, &'static str> {
    let kind = if to.is_ipv4() { "Invalid pkt_mark or gateway" } else { "Invalid pkt_mark or IPv6 gateway" };
    text.parse().ok().filter(|gateway: &IpAddr| gateway.is_ipv4() == to.is_ipv4()).ok_or(kind)
}

/// `pkt_mark=N`. A negative number is the one with the same 32 bits.
fn parse_mark(text: &str) -> Option<u32> {
    let text = text.strip_prefix("pkt_mark=")?;
    let number = |text| whole_number(text).and_then(|number| u32::try_from(number).ok());
    match text.strip_prefix('-') {
        Some(text) => number(text).map(u32::wrapping_neg),
        None => number(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let v4: IpAddr = [192, 0, 2, 1].into();
        assert_eq!(parse("192.0.2.1/24"), Ok((v4, 24)));
        assert_eq!(parse("2001:db8::1"), Ok(("2001:db8::1".parse().unwrap(), 128)));
        assert!(parse("br0").is_err() && parse("192.0.2.1/33").is_err() && parse("2001:db8::/129").is_err());
        assert_eq!(parse_gateway("192.0.2.2", v4), Ok([192, 0, 2, 2].into()));
        assert_eq!(parse_gateway("2001:db8::1", v4), Err("Invalid pkt_mark or gateway"));
        let marks = ["pkt_mark=1234", "pkt_mark=0x10", "pkt_mark=-1", "pkt_mark=4294967296", "mark=1", "pkt_mark="];
        assert_eq!(marks.map(parse_mark), [Some(1234), Some(16), Some(u32::MAX), None, None, None]);
    }

    #[test]
    fn lines_are_those_of_open_vswitch() {
        let mut text = String::new();
        let route = Route {
            mark: 1234,
            prefix: "198.51.100.0/24".parse().unwrap(),
            device: "br0".into(),
            gateway: Some([192, 0, 2, 250].into()),
            source: [192, 0, 2, 1].into(),
            origin: Origin::User,
        };
        line(&mut text, &route);
        line(&mut text, &Route { mark: 0, gateway: None, origin: Origin::Kernel, ..route.clone() });
        line(&mut text, &Route { mark: 0, gateway: None, origin: Origin::Local, ..route });
        assert_eq!(
            text,
            "User: 198.51.100.0/24 MARK 1234 dev br0 GW 192.0.2.250 SRC 192.0.2.1\n\
             Cached: 198.51.100.0/24 dev br0 SRC 192.0.2.1\n\
             Cached: 198.51.100.0/24 dev br0 SRC 192.0.2.1 local\n"
        );
    }
}
