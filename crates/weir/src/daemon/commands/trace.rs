//! `ofproto/trace`: what the tables do to a packet, explained.

use std::sync::Arc;

use ofproto::Switch;
use ofproto::trace::{Request, Trace, parse_ct_state};
use openflow::{Action, Match};
use packet::flow::text::{Items, NoNames, PortNames};
use packet::flow::{BlockId, VLAN_PRESENT, VlanLimit, compose, extract, tun_flags};
use packet::{Field, Key};
use tokio::sync::Semaphore;

use super::Context;
use super::datapaths::find_of_bridges;
use super::ports::parse_hex;
use super::reports::json;
use crate::flow_text::Names;
use crate::unixctl::command::{Outcome, Reply};

/// How many packets are traced or explained at a time, by HTTP, too.
pub(super) static PLACES: Semaphore = Semaphore::const_new(2);
/// The most data that `--l7-len` may ask for, in bytes: more does not fit into a packet.
const MAX_PAYLOAD: usize = 64_000;
/// The Ethernet type of a frame without one, as in [`packet::flow::block::Common`].
const NO_ETHERNET_TYPE: u16 = 0x05ff;

/// `ofproto/trace`.
pub fn text(context: &Context, args: &[String]) -> Reply {
    on_thread(Asked::read(context, args, None), |trace| Ok(trace.text()))
}

/// `ofproto/trace-packet-out`.
pub fn packet_out_text(context: &Context, args: &[String]) -> Reply {
    // Whether every version of OpenFlow has the actions is of no concern here.
    let args: Vec<String> = args.iter().filter(|arg| *arg != "-consistent").cloned().collect();
    let Some((actions, args)) = args.split_last() else { return Reply::Now(Err("the actions are missing".into())) };
    on_thread(Asked::read(context, args, Some(actions)), |trace| Ok(trace.text()))
}

/// `weir/trace`.
pub fn report(context: &Context, args: &[String]) -> Reply {
    on_thread(Asked::read(context, args, None), |trace| json(&trace))
}

/// Traces on a thread of its own, where the answer is made, too: one packet can pass very many flows.
fn on_thread(asked: Result<Asked, String>, answer: fn(Trace) -> Outcome) -> Reply {
    match asked {
        Ok(asked) => Reply::on_thread("trace", &PLACES, move || answer(asked.trace()?)),
        Err(problem) => Reply::Now(Err(problem)),
    }
}

/// What is to be traced.
struct Asked {
    switch: Arc<Switch>,
    bridge: String,
    key: Key,
    frame: Option<Vec<u8>>,
    actions: Option<Vec<Action>>,
    ct_next: Vec<u32>,
    /// Of the bridge and of the datapath, where names are to be shown.
    names: Option<(Names, Names)>,
}

impl Asked {
    /// `actions` are those of a packet-out, instead of the tables.
    fn read(context: &Context, args: &[String], actions: Option<&String>) -> Result<Asked, String> {
        let arguments = TraceArguments::parse(args)?;
        let (bridge, mut key) = find_flow(context, &arguments.words)?;
        let limit = context.engine.switch.settings().vlan_limit;
        let frame = match (arguments.generate, arguments.frame) {
            (true, _) => Some(compose(&key, &arguments.payload)),
            (false, frame) => frame.inspect(|frame| key = of_frame(frame, &key, limit)),
        };
        key = as_parsed(key, limit);
        let handle = context.engine.switch.bridge(&bridge).ok_or_else(|| unknown(&bridge))?;
        let ports = Names::of_bridge(&handle);
        let actions = actions.map(|text| {
            let actions = openflow::text::parse_actions(text, &ports).map_err(|error| error.to_string())?;
            handle.check_packet_out(&actions).map_err(|error| format!("Bad actions: {error}"))?;
            Ok::<_, String>(actions)
        });
        let (switch, actions, ct_next) = (context.engine.switch.clone(), actions.transpose()?, arguments.ct_next);
        let names = arguments.names.then(|| (ports, Names::of_datapath(&context.engine.datapath)));
        Ok(Asked { switch, bridge, key, frame, actions, ct_next, names })
    }

    fn trace(self) -> Result<Trace, String> {
        let (ports, datapath_ports): (&dyn PortNames, &dyn PortNames) = match &self.names {
            Some((ports, datapath_ports)) => (ports, datapath_ports),
            None => (&NoNames, &NoNames),
        };
        let request = Request {
            bridge: &self.bridge,
            key: &self.key,
            actions: self.actions.as_deref(),
            packet: self.frame.as_deref(),
            ct_next: &self.ct_next,
            ports,
            datapath_ports,
        };
        ofproto::trace::trace(&self.switch, &request).ok_or_else(|| unknown(&self.bridge))
    }
}

fn unknown(bridge: &str) -> String {
    format!("{bridge}: unknown bridge")
}

/// The arguments without options, and the packet taken off their end.
#[derive(Debug, Default)]
pub(super) struct TraceArguments<'a> {
    words: Vec<&'a str>,
    generate: bool,
    names: bool,
    payload: Vec<u8>,
    frame: Option<Vec<u8>>,
    ct_next: Vec<u32>,
}

impl TraceArguments<'_> {
    pub(super) fn parse(args: &[String]) -> Result<TraceArguments<'_>, String> {
        let mut out = TraceArguments::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("Missing argument for option {arg}"));
            match arg.as_str() {
                "-generate" | "--generate" => out.generate = true,
                "-names" | "--names" => out.names = true,
                "--l7" => out.payload = hex(value()?).ok_or("Trailing garbage in packet data")?,
                "--l7-len" => {
                    let text = value()?;
                    let length = text.parse().map_err(|_| format!("{text}: not a number of bytes"))?;
                    if length > MAX_PAYLOAD {
                        return Err(format!("{text}: too much L7 data"));
                    }
                    out.payload = (0..length).map(|n| n as u8).collect();
                }
                "--ct-next" => out.ct_next.push(parse_ct_state(value()?)?),
                option if option.starts_with('-') => return Err(format!("{option}: unknown option")),
                _ if out.words.len() == 3 => return Err("too many arguments".into()),
                word => out.words.push(word),
            }
        }
        // Of three arguments the last has to be a packet; of two it may be one.
        if !out.generate && out.words.len() > 1 {
            out.frame = out.words.last().and_then(|word| parse_hex(word));
            if out.frame.is_some() {
                out.words.pop();
            } else if out.words.len() > 2 {
                return Err("Trailing garbage in packet data".into());
            }
        }
        Ok(out)
    }
}

/// Digits in pairs; none is no data.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// What the datapath would see of a packet: what its text says of headers behind more tags than are parsed, it would not show.
pub(super) fn as_parsed(key: Key, limit: VlanLimit) -> Key {
    let tags = key.common().vlan.iter().filter(|tag| tag.tci.get() & VLAN_PRESENT != 0).count();
    if tags > limit.tags() { of_frame(&compose(&key, &[]), &key, limit) } else { key }
}

/// The bridge and the key that `[DP] ODP_FLOW` or `BRIDGE FLOW` name.
pub(super) fn find_flow(context: &Context, words: &[&str]) -> Result<(String, Key), String> {
    let (name, text) = match *words {
        [text] => (None, text),
        [name, text] => (Some(name), text),
        _ => return Err("Syntax error".into()),
    };
    let names = Names::of_datapath(&context.engine.datapath);
    // A packet has whole values: what a mask leaves of them, if one is given, does not matter here.
    match (datapath::text::parse_given(text, &names), name) {
        (Ok((key, _)), _) if !text.is_empty() => datapath_flow(context, name, key, text),
        (_, None) => Err(format!("syntax error at {text} (or the bridge name was omitted)")),
        (_, Some(name)) => {
            let bridge = context.engine.switch.bridge(name).ok_or_else(|| format!("{name}: unknown bridge"))?;
            let key = bridge_flow(text, &Names::of_bridge(&bridge), |matching| bridge.place_known(matching));
            Ok((name.to_owned(), key.map_err(|error| format!("Bad openflow flow syntax: {error}"))?))
        }
    }
}

/// A flow in the datapath's syntax: its port tells the bridge.
fn datapath_flow(context: &Context, name: Option<&str>, mut key: Key, text: &str) -> Result<(String, Key), String> {
    if name.is_some_and(|name| find_of_bridges(context, name).is_none()) {
        return Err("Cannot find the datapath".into());
    }
    let recirculation = key.common().recirc_id.get();
    if recirculation != 0 && !context.engine.switch.knows_recirculation(recirculation) {
        return Err(format!("no recirculation data for recirc_id {recirculation:#x}"));
    }
    let common = key.common_mut();
    if common.packet_type.get() == 0 && common.dl_type.get() == 0 && text.contains("eth(") {
        common.dl_type = NO_ETHERNET_TYPE.into();
    }
    if gives_tunnel_key(text) {
        let flags = key.tunnel().tun_flags.get();
        key.tunnel_mut().tun_flags = (flags | tun_flags::KEY).into();
    }
    let common = key.common();
    if common.packet_type.get() >> 16 == 1 && common.recirc_id.get() == 0 && key.present().has(BlockId::Tunnel) {
        // It has left a tunnel without Ethernet.
        let flags = key.tunnel().tun_flags.get();
        key.tunnel_mut().tun_flags = (flags | tun_flags::BARE).into();
    }
    let (bridge, port) = context.engine.switch.locate(&key).map_err(|error| error.to_string())?;
    key.common_mut().in_port = port.0.into();
    if let Some(handle) = context.engine.switch.bridge(&bridge) {
        handle.decode_options(&mut key).map_err(|_| "Failed to parse Geneve options")?;
    }
    Ok((bridge, key))
}

/// Whether a flow in the datapath's syntax came by a tunnel with a key: with one that is given, unless its flags say otherwise.
fn gives_tunnel_key(text: &str) -> bool {
    let items = |text| Items::new(text).flatten();
    items(text).filter(|section| section.key == "tunnel").any(|tunnel| {
        let denied = items(tunnel.value).any(|item| item.key == "flags" && item.value.contains("-key"));
        !denied && items(tunnel.value).any(|item| item.key == "tun_id")
    })
}

/// A flow in ovs-ofctl's syntax, of which every field is given whole. Without a port the packet came
/// from nowhere. `place` puts the values of tun_metadata fields where the bridge has them.
pub(super) fn bridge_flow(text: &str, names: &Names, place: impl Fn(&mut Match)) -> Result<Key, String> {
    for item in Items::new(text) {
        let item = item.map_err(|error| error.to_string())?;
        if item.value.contains('/') {
            return Err(format!("{}: {:?} has a mask, but a packet has whole values", item.key, item.value));
        }
    }
    let mut matching = openflow::text::parse_match(text, names).map_err(|error| error.to_string())?;
    place(&mut matching);
    let mut key = Key::clone(&matching.key);
    if matching.mask.is_wild(Field::InPortOxm) {
        key.common_mut().in_port = openflow::OfPort::ANY.0.into();
    }
    let common = key.common_mut();
    if common.packet_type.get() >> 16 == 1 {
        // It begins with a header of this type.
        common.dl_type = (common.packet_type.get() as u16).into();
    }
    for tag in &mut common.vlan {
        if tag.tci.get() & VLAN_PRESENT != 0 && tag.tpid.get() == 0 {
            tag.tpid = 0x8100.into();
        }
    }
    Ok(key)
}

/// The key of a frame, with the metadata of `key`.
pub(super) fn of_frame(frame: &[u8], key: &Key, vlan_limit: VlanLimit) -> Key {
    let mut out = Key::new();
    extract(frame, &mut out, vlan_limit);
    for field in [Field::InPortOxm, Field::PktMark, Field::SkbPriority, Field::RecircId, Field::DpHash] {
        out.set(field, key.get(field));
    }
    for block in [BlockId::Ct, BlockId::Tunnel, BlockId::Pipeline, BlockId::Regs] {
        if key.present().has(block) {
            *out.block_mut(block) = *key.block(block);
        }
    }
    if key.present().has(BlockId::TunMeta0) {
        *out.tun_metadata_mut() = *key.tun_metadata();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: &str = "50540000000250540000000108064500001C";

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| arg.to_string()).collect()
    }

    #[test]
    fn forms_of_the_arguments() {
        let args = strings(&["br0", "in_port=1", PACKET, "--names"]);
        let parsed = TraceArguments::parse(&args).unwrap();
        assert_eq!((parsed.words, parsed.names), (vec!["br0", "in_port=1"], true));
        assert_eq!(parsed.frame.unwrap().len(), PACKET.len() / 2);
        let args = strings(&["in_port(1)", PACKET]);
        assert_eq!(TraceArguments::parse(&args).unwrap().words, ["in_port(1)"]);
        let args = strings(&["br0", "-generate", "in_port=1", "--l7", "0aff"]);
        let parsed = TraceArguments::parse(&args).unwrap();
        assert_eq!((parsed.words, parsed.generate), (vec!["br0", "in_port=1"], true));
        assert_eq!(parsed.payload, [10, 255]);
        let args = strings(&["br0", "in_port=1", "--ct-next", "trk,est", "--ct-next", "trk"]);
        assert_eq!(TraceArguments::parse(&args).unwrap().ct_next, [0x22, 0x20]);
    }

    #[test]
    fn mistakes_in_the_arguments() {
        let error = |args: &[&str]| TraceArguments::parse(&strings(args)).unwrap_err();
        assert_eq!(error(&["br0", "in_port=1", "garbage"]), "Trailing garbage in packet data");
        assert_eq!(error(&["br0", "a", "b", "c"]), "too many arguments");
        assert_eq!(error(&["br0", "a", "--nope"]), "--nope: unknown option");
        assert_eq!(error(&["br0", "a", "--l7"]), "Missing argument for option --l7");
        assert_eq!(error(&["br0", "a", "--l7-len", "64001"]), "64001: too much L7 data");
        assert_eq!(error(&["br0", "a", "--ct-next"]), "Missing argument for option --ct-next");
        assert_eq!(error(&["br0", "a", "--ct-next", "x"]), "x: unknown connection tracking state flag");
    }

    #[test]
    fn a_key_that_is_given_was_there() {
        let with = |tunnel: &str| gives_tunnel_key(&format!("in_port(vm-key),{tunnel},eth(),eth_type(0x0800)"));
        assert!(with("tunnel(tun_id=0,src=1.1.1.1,flags())") && with("tunnel(tun_id=0x7/0xff,flags(-df+key))"));
        assert!(!with("tunnel(tun_id=0x7,flags(-df-csum-key))") && !with("tunnel(src=1.1.1.1,flags())"));
        assert!(!gives_tunnel_key("in_port(tun_id=7),eth()"));
    }

    #[test]
    fn a_packet_has_whole_values_and_complete_tags() {
        let names = Names::default();
        assert!(bridge_flow("ip,nw_src=10.0.0.0/8", &names, |_| ()).unwrap_err().contains("mask"));
        let key = bridge_flow("dl_vlan=5", &names, |_| ()).unwrap();
        assert_eq!(key.common().vlan[0].tpid.get(), 0x8100);
        assert_eq!(key.common().in_port.get(), openflow::OfPort::ANY.0);
        let frame = parse_hex(PACKET).unwrap();
        let key = of_frame(
            &frame,
            &bridge_flow("in_port=2,pkt_mark=1,reg0=7", &names, |_| ()).unwrap(),
            VlanLimit::default(),
        );
        assert_eq!((key.get(Field::InPortOxm), key.get(Field::PktMark), key.get(Field::Reg0)), (2, 1, 7));
        assert_eq!(key.common().dl_type.get(), 0x0806);
    }
}
