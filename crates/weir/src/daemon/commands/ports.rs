//! The commands on bridges, ports and learnt addresses, in OVS's layout.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::sync::Arc;

use datapath::{Datapath, PortNo};
use ofproto::model::mac::{MacEntry, MacKey};
use ofproto::{DatapathType, PortInfo};
use openflow::OfPort;
use packet::Time;

use super::datapaths::{find_of_bridges, of_bridges};
use super::{Context, dpctl_error as error};
use crate::config::desired::{format_mac, parse_mac};
use crate::unixctl::command::{Outcome, Reply};

/// `ofproto/list`.
pub fn list_bridges(context: &Context, _: &[String]) -> Outcome {
    Ok(context.engine.switch.bridges().iter().map(|bridge| format!("{}\n", bridge.name())).collect())
}

/// `dpif/dump-dps`: the bridges, each with the kind of its datapath, as OVS has it.
pub fn list_bridge_datapaths(context: &Context, _: &[String]) -> Outcome {
    let mut names: Vec<_> = context.engine.switch.bridges().iter().map(bridge_datapath).collect();
    names.sort();
    Ok(names.concat())
}

fn bridge_datapath(bridge: &ofproto::Bridge) -> String {
    let name = bridge.config().datapath_type.datapath_name();
    format!("{}@{}\n", name.split_once('@').map_or(name, |(kind, _)| kind), bridge.name())
}

/// `ofproto/list-tunnels`.
pub fn list_tunnels(context: &Context, _: &[String]) -> Outcome {
    Ok(context.engine.switch.tunnels().into_iter().map(|line| line + "\n").collect())
}

/// `tnl/ports/show`.
pub fn listening(context: &Context, _: &[String]) -> Outcome {
    let carriers = context.engine.switch.carriers().into_iter();
    let lines = carriers.map(|carrier| format!("{} ({}) ref_cnt={}\n", carrier.name, carrier.dp_port, carrier.users));
    Ok(std::iter::once("Listening ports:\n".to_owned()).chain(lines).collect())
}

/// `dpif/show`.
pub fn dpif_show(context: &Context, _: &[String]) -> Outcome {
    let (hit, missed, _) = lookups(&context.engine.datapath);
    let mut bridges = context.engine.switch.bridges();
    bridges.sort_by(|a, b| a.name().cmp(b.name()));
    let mut text = String::new();
    for kind in of_bridges(context) {
        let _ = writeln!(text, "{}: hit:{hit} missed:{missed}", kind.datapath_name());
        for bridge in bridges.iter().filter(|bridge| bridge.config().datapath_type == kind) {
            let _ = writeln!(text, "  {}:", bridge.name());
            let mut ports = bridge.ports();
            ports.sort_by(|a, b| a.name.cmp(&b.name));
            for port in ports {
                let number = short_number(port.port);
                let dp_port = port.dp_port.map_or("none".into(), |n| n.0.to_string());
                let _ = match &port.peer {
                    Some(peer) => writeln!(text, "    {} {number}/none: (patch: peer={peer})", port.name),
                    None => {
                        let options = options_text(&port.options);
                        writeln!(text, "    {} {number}/{dp_port}: ({}{options})", port.name, ovs_type(port.kind))
                    }
                };
            }
        }
    }
    Ok(text)
}

/// The type of a port as OVS's userspace datapath calls it.
fn ovs_type(kind: &'static str) -> &'static str {
    match kind {
        "afpacket" => "system",
        "internal" => "tap",
        _ => kind,
    }
}

/// What follows the type of a port: nothing where there are no options.
fn options_text(options: &[(&'static str, String)]) -> String {
    let options: Vec<_> = options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if options.is_empty() { String::new() } else { format!(": {}", options.join(", ")) }
}

/// `dpctl/show`.
pub fn dpctl_show(context: &Context, args: &[String]) -> Outcome {
    let (options, names): (Vec<_>, Vec<_>) = args.iter().partition(|arg| arg.starts_with('-'));
    let statistics = options.iter().any(|option| ["-s", "--statistics"].contains(&option.as_str()));
    let mut shown: Vec<(String, Arc<Datapath>)> = Vec::new();
    if names.is_empty() {
        let name = |kind: DatapathType| (kind.datapath_name().to_owned(), context.engine.datapath.clone());
        shown.extend(of_bridges(context).into_iter().map(name));
        shown.extend(context.engine.separate.all().into_iter().map(|one| (one.name.clone(), one.datapath.clone())));
    }
    for name in names {
        let of_bridges = find_of_bridges(context, name);
        shown.push(match (of_bridges, context.engine.separate.find(name)) {
            (Some(kind), _) => (kind.datapath_name().to_owned(), context.engine.datapath.clone()),
            (None, Some(one)) => (one.name.clone(), one.datapath.clone()),
            (None, None) => return Err(error(context, &format!("opening datapath {name} failed (No such device)"))),
        });
    }
    // As its bridge calls it: the port of the bridge itself has a kind of its own.
    let bridges = context.engine.switch.bridges();
    let kinds: BTreeMap<_, _> = bridges.iter().flat_map(|b| b.ports()).map(|port| (port.dp_port, port.kind)).collect();
    let show = |(name, datapath): (String, Arc<Datapath>)| {
        let is_of_bridges = Arc::ptr_eq(&datapath, &context.engine.datapath);
        let kind = |number| if is_of_bridges { kinds.get(&Some(number)).copied() } else { None };
        show_datapath(&name, &datapath, kind, statistics)
    };
    Ok(shown.into_iter().map(show).collect())
}

fn show_datapath(
    name: &str,
    datapath: &Datapath,
    kind: impl Fn(PortNo) -> Option<&'static str>,
    statistics: bool,
) -> String {
    let ((hit, missed, lost), flows) = (lookups(datapath), datapath.flow_count());
    let mut text = format!("{name}:\n  lookups: hit:{hit} missed:{missed} lost:{lost}\n  flows: {flows}\n");
    for (number, port) in datapath.ports() {
        let kind = ovs_type(kind(number).unwrap_or_else(|| port.kind()));
        let mut options = port.shown_options();
        options.extend(port.is_tunnel().then(|| ("packet_type", "ptap".to_owned())));
        let shown = match (kind, options_text(&options)) {
            ("system", options) if options.is_empty() => String::new(),
            (kind, options) => format!(" ({kind}{options})"),
        };
        let _ = writeln!(text, "  port {}: {}{shown}", number.0, port.name());
        if statistics {
            let mut stats = port.stats();
            stats.count_unsent(datapath.drops_at(number).at_output());
            show_statistics(&mut text, &stats);
        }
    }
    text
}

/// What a port does not count is shown as `?`.
fn show_statistics(text: &mut String, stats: &::ports::Stats) {
    let count = |n: u64| if n == u64::MAX { "?".to_owned() } else { n.to_string() };
    let _ = writeln!(
        text,
        "    RX packets:{} errors:{} dropped:{} overruns:{} frame:{}",
        count(stats.rx_packets),
        count(stats.rx_errors),
        count(stats.rx_dropped),
        count(stats.rx_over_err),
        count(stats.rx_frame_err)
    );
    let _ = writeln!(
        text,
        "    TX packets:{} errors:{} dropped:{} aborted:? carrier:?\n    collisions:{}",
        count(stats.tx_packets),
        count(stats.tx_errors),
        count(stats.tx_dropped),
        count(stats.collisions)
    );
    let size = |n: u64| if n == u64::MAX { "?".to_owned() } else { format!("{n}{}", human_size(n)) };
    let _ = writeln!(text, "    RX bytes:{}  TX bytes:{}", size(stats.rx_bytes), size(stats.tx_bytes));
}

/// ` (1.5 KiB)`; nothing below that unit.
fn human_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(units.len() as u32);
    match power {
        0 => String::new(),
        _ => format!(" ({:.1} {})", bytes as f64 / 1024f64.powi(power as i32), units[power as usize - 1]),
    }
}

/// `bridge/reconnect`.
pub fn reconnect(context: &Context, args: &[String]) -> Outcome {
    let bridges = context.bridges(args.first()).map_err(|_| "Unknown bridge")?;
    for bridge in bridges {
        context.openflow.reconnect(bridge.name())?;
    }
    Ok(String::new())
}

/// Hits, misses and lost misses of all workers.
fn lookups(datapath: &Datapath) -> (u64, u64, u64) {
    let stats = datapath.stats();
    stats.workers.iter().chain([&stats.ended]).fold((0, 0, 0), |(hit, missed, lost), w| {
        (hit + w.simple_hits + w.exact_hits + w.megaflow_hits, missed + w.misses, lost + w.lost)
    })
}

/// A port number as OpenFlow 1.0 has it: LOCAL is 65534.
fn short_number(port: OfPort) -> u32 {
    port.to_u16().map_or(port.0, u32::from)
}

pub(super) fn port_name(port: OfPort) -> String {
    port.reserved_name().map_or_else(|| port.0.to_string(), str::to_owned)
}

/// Addresses that are shown at a time.
const PIECE: usize = 256;

/// What comes first in `fdb/show`: the longest unused, as in OVS; static ones last.
type Unused = Reverse<(bool, Option<Time>, MacKey, OfPort)>;

/// `fdb/show`: the table as it is now, put in order while the client reads.
pub fn fdb_show(context: &Context, args: &[String]) -> Reply {
    let bridge = match context.bridge(&args[0]) {
        Ok(bridge) => bridge,
        Err(problem) => return Reply::Now(Err(problem)),
    };
    let now = context.engine.clock.now();
    let in_order = |entry: MacEntry| Reverse((entry.used.is_none(), entry.used, entry.key, entry.port));
    let entries: Vec<Unused> = bridge.macs().into_iter().map(in_order).collect();
    let bytes = entries.len() * size_of::<Unused>();
    let mut entries = BinaryHeap::from(entries);
    let mut heading = " port  VLAN  MAC                Age\n";
    let piece = move |text: &mut String| {
        text.push_str(std::mem::take(&mut heading));
        for Reverse((_, used, key, port)) in std::iter::from_fn(|| entries.pop()).take(PIECE) {
            let age = used.map_or("static".into(), |used| format!("{:3}", now.since(used).as_secs()));
            let _ = writeln!(text, "{:>5}  {:4}  {}  {age}", port_name(port), key.vlan, format_mac(&key.mac));
        }
        !entries.is_empty()
    };
    Reply::Listing(bytes, Box::new(piece))
}

/// `fdb/flush`.
pub fn fdb_flush(context: &Context, args: &[String]) -> Outcome {
    for bridge in context.bridges(args.first())? {
        bridge.flush_macs();
    }
    Ok("table successfully flushed".into())
}

/// `fdb/add`.
pub fn fdb_add(context: &Context, args: &[String]) -> Outcome {
    let bridge = context.bridge(&args[0])?;
    let port = bridge_port(&bridge, &args[1])?;
    let replaced = bridge.add_static_mac(mac_key(&args[2], &args[3])?, port.port).map_err(|e| e.to_string())?;
    let kind = |entry: &MacEntry| if entry.used.is_none() { "static" } else { "dynamic" };
    // The same once more is no news.
    let replaced = replaced.filter(|old| old.used.is_some() || old.port != port.port);
    Ok(replaced.map_or_else(String::new, |old| {
        format!("Overriding already existing {} entry on {}\n", kind(&old), port_name(old.port))
    }))
}

/// `fdb/del`.
pub fn fdb_del(context: &Context, args: &[String]) -> Outcome {
    let bridge = context.bridge(&args[0])?;
    match bridge.remove_mac(mac_key(&args[1], &args[2])?) {
        true => Ok(String::new()),
        false => Err(format!("no entry for {} in VLAN {}", args[2], args[1])),
    }
}

fn bridge_port(bridge: &ofproto::Bridge, text: &str) -> Result<PortInfo, String> {
    let number = text.parse().ok().map(OfPort::from_u16);
    let found = bridge.ports().into_iter().find(|p| p.name == text || Some(p.port) == number);
    found.ok_or_else(|| format!("bridge {} has no port {text}", bridge.name()))
}

fn mac_key(vlan: &str, mac: &str) -> Result<MacKey, String> {
    let vlan = vlan.parse().ok().filter(|&vlan| vlan <= 4095).ok_or_else(|| format!("{vlan}: not a VLAN"))?;
    let mac = parse_mac(mac).ok_or_else(|| format!("{mac}: not an Ethernet address"))?;
    Ok(MacKey { vlan, mac })
}

/// `fdb/stats-show`.
pub fn fdb_stats(context: &Context, args: &[String]) -> Outcome {
    let mut text = String::new();
    for bridge in context.bridges(args.first())? {
        let (stats, (entries, fixed)) = (bridge.mac_stats(), bridge.mac_counts());
        let _ = write!(
            text,
            "Statistics for bridge \"{}\":\n  \
             Current/maximum MAC entries in the table: {}/{}\n  \
             Current static MAC entries in the table : {fixed}\n  \
             Total number of learned MAC entries     : {}\n  \
             Total number of expired MAC entries     : {}\n  \
             Total number of evicted MAC entries     : {}\n  \
             Total number of port moved MAC entries  : {}\n",
            bridge.name(),
            entries,
            bridge.config().mac.max_entries,
            stats.learned,
            stats.expired,
            stats.evicted,
            stats.moved
        );
    }
    Ok(text)
}

/// `fdb/stats-clear`.
pub fn fdb_stats_clear(context: &Context, args: &[String]) -> Outcome {
    for bridge in context.bridges(args.first())? {
        bridge.clear_mac_stats();
    }
    Ok("statistics successfully cleared".into())
}

/// A frame in hexadecimal; blanks between the digits are allowed.
pub(super) fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let whole = digits.len().is_multiple_of(2) && digits.len() >= 28;
    whole.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_hexadecimal() {
        assert_eq!(parse_hex(&"0a".repeat(14)), Some(vec![10; 14]));
        assert_eq!(parse_hex(&"0A ".repeat(14)), Some(vec![10; 14]));
        for bad in ["", "0a", &"0a".repeat(13), &"0".repeat(29), &"0g".repeat(14), &"é".repeat(28)] {
            assert_eq!(parse_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_for_people() {
        let shown: Vec<_> = [0, 1023, 1024, 1536, 1 << 20, 5 << 40].into_iter().map(human_size).collect();
        assert_eq!(shown, ["", "", " (1.0 KiB)", " (1.5 KiB)", " (1.0 MiB)", " (5.0 TiB)"]);
    }

    #[test]
    fn local_has_its_short_number_and_name() {
        assert_eq!(short_number(OfPort::LOCAL), 65534);
        assert_eq!(port_name(OfPort::LOCAL), "LOCAL");
        assert_eq!(port_name(OfPort(3)), "3");
    }
}
