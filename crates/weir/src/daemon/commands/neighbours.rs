//! `tnl/neigh/...` and `tnl/arp/...`: the neighbours of tunnels; and the UDP ports from which tunnels send.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use netstate::neighbours::{Key, Mac, Told};

use super::Context;
use crate::config::desired::format_mac;
use crate::unixctl::command::Outcome;
use crate::unixctl::{Command, Pieces};

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "tnl/neigh/show" "" (0, 0) quick!(|context, _| Ok(show(context)).into()), "MAC addresses of the next hops of tunnels.";
    "tnl/neigh/set" "BRIDGE IP MAC" (3, 3) now!(set), "Sets the MAC address of a next hop.";
    "tnl/neigh/flush" "" (0, 0) now!(flush), "Forgets the next hops, but for those that the kernel knows.";
    "tnl/neigh/aging" "[SECS]" (0, 1) now!(aging), "Shows or sets for how long a next hop is known that is not used.";
    "tnl/arp/show" "" (0, 0) quick!(|context, _| Ok(show(context)).into()), "The same as tnl/neigh/show.";
    "tnl/arp/set" "BRIDGE IP MAC" (3, 3) now!(set), "The same as tnl/neigh/set.";
    "tnl/arp/flush" "" (0, 0) now!(flush), "The same as tnl/neigh/flush.";
    "tnl/arp/aging" "[SECS]" (0, 1) now!(aging), "The same as tnl/neigh/aging.";
    "tnl/egress_port_range" "[MIN MAX]" (0, 2) now!(egress_port_range),
        "Shows or sets from which UDP ports tunnels send.";
};

/// How many neighbours are listed at a time.
const PORTION: usize = 128;

/// Width of the column of IP addresses: the longest there can be (INET6_ADDRSTRLEN).
const IP_WIDTH: usize = 46;

fn show(context: &Context) -> Pieces {
    let (netstate, clock) = (context.engine.switch.netstate().clone(), context.engine.clock.clone());
    let (mut heading, mut place) = (heading(), None::<Key>);
    Box::new(move |text| {
        text.push_str(&std::mem::take(&mut heading));
        let neighbours = netstate.neighbours.lock();
        let mut last = None;
        for (key, mac, is_over) in neighbours.after(place.as_ref(), clock.now()).take(PORTION) {
            last = Some(key);
            if !is_over {
                line(text, key, &mac);
            }
        }
        let Some(last) = last.cloned() else { return false };
        place = Some(last);
        true
    })
}

fn heading() -> String {
    format!("{:IP_WIDTH$}{:20}Bridge\n{}\n", "IP", "MAC", "=".repeat(74))
}

fn line(text: &mut String, (bridge, ip): &Key, mac: &Mac) {
    // Padding does nothing to the text of an address itself.
    let _ = writeln!(text, "{:IP_WIDTH$}{}   {bridge}", ip.to_string(), format_mac(mac));
}

fn set(context: &Context, args: &[String]) -> Outcome {
    let ip: IpAddr = args[1].parse().map_err(|_| "bad IP address")?;
    let mac = parse_mac(&args[2]).ok_or("bad MAC address")?;
    let (switch, now) = (&context.engine.switch, context.engine.clock.now());
    if !switch.netstate().neighbours.lock().set(&args[0], ip.to_canonical(), mac, Told::Set, now) {
        return Err("too many neighbours are set".into());
    }
    switch.netstate_changed();
    Ok("OK".into())
}

fn flush(context: &Context, _: &[String]) -> Outcome {
    context.engine.switch.netstate().neighbours.lock().flush(None);
    context.engine.switch.netstate_changed();
    Ok("OK".into())
}

fn aging(context: &Context, args: &[String]) -> Outcome {
    let mut neighbours = context.engine.switch.netstate().neighbours.lock();
    let Some(seconds) = args.first() else { return Ok(neighbours.aging().as_secs().to_string()) };
    let seconds = seconds.parse::<u32>().map_err(|_| "bad aging value")?;
    match neighbours.set_aging(Duration::from_secs(seconds.into()), context.engine.clock.now()) {
        true => Ok("OK".into()),
        false => Err("bad aging value".into()),
    }
}

/// As in OVS, a number that cannot be is no error, and its complaint is an answer.
fn egress_port_range(context: &Context, args: &[String]) -> Outcome {
    let switch = &context.engine.switch;
    let [min, max] = args else {
        let (min, max) = *switch.netstate().source_ports.lock();
        return Ok(format!("Tunnel UDP source port range: {min}-{max}\n"));
    };
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let Some(min) = port(min) else { return Ok("Invalid min.".into()) };
    let Some(max) = port(max) else { return Ok("Invalid max.".into()) };
    *switch.netstate().source_ports.lock() = (min.min(max), min.max(max));
    switch.netstate_changed();
    Ok("OK".into())
}

/// Six numbers of one or two hexadecimal digits with colons between them.
pub(super) fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for octet in &mut mac {
        let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        *octet = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_open_vswitch() {
        let mut text = heading();
        line(&mut text, &("br0".into(), [1, 1, 2, 92].into()), &[0xf8, 0xbc, 0x12, 0x44, 0x34, 0xb6]);
        line(&mut text, &("br0".into(), "2001:cafe::92".parse().unwrap()), &[0xf8, 0xbc, 0x12, 0x44, 0x34, 0xb6]);
        assert_eq!(
            text,
            "IP                                            MAC                 Bridge\n\
             ==========================================================================\n\
             1.1.2.92                                      f8:bc:12:44:34:b6   br0\n\
             2001:cafe::92                                 f8:bc:12:44:34:b6   br0\n"
        );
    }

    #[test]
    fn mac_addresses_are_read() {
        assert_eq!(parse_mac("f8:bc:12:44:34:b6"), Some([0xf8, 0xbc, 0x12, 0x44, 0x34, 0xb6]));
        assert_eq!(parse_mac("0:1:2:3:4:5"), Some([0, 1, 2, 3, 4, 5]));
        for text in ["", "0:1:2:3:4", "0:1:2:3:4:5:6", "0:1:2:3:4:+5", "0:1:2:3:4:100", "0:1:2:3:4:"] {
            assert_eq!(parse_mac(text), None, "{text}");
        }
    }
}
