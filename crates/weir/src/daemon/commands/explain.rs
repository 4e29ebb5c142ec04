//! `weir/explain`: what decides what becomes of a packet. A thread of its own looks, since workers are asked, too.

use std::sync::Arc;
use std::time::Duration;

use datapath::text::{Context as Style, format_actions, format_key, format_ufid};
use datapath::{Datapath, FlowDump};
use ofproto::explain::{Pass, Request, explain, steps};
use ofproto::trace::parse_ct_state;
use ofproto::{Bridge, PortInfo, Switch};
use openflow::OfPort;
use packet::flow::compose;
use packet::{Key, Time};

use super::Context;
use super::ports::parse_hex;
use super::trace::{PLACES, as_parsed, find_flow, of_frame};
use crate::daemon::drops::drop_rule;
use crate::explain::outcome::Outcome;
use crate::explain::report;
use crate::flow_text::Names;
use crate::tap::verdict::PortTable;
use crate::unixctl::Reply;

/// How long workers may take to say what their caches have.
const PATIENCE: Duration = Duration::from_secs(1);

/// Longest frame: what fits into a super-frame with its headers.
const MOST_BYTES: usize = 66_000;

/// Most times that a packet comes back from connection tracking with a state of its own.
const MOST_STATES: usize = 64;

/// `weir/explain`.
pub fn report(context: &Context, args: &[String]) -> Reply {
    start(context, args, |explanation| super::reports::json(&explanation))
}

/// Explains on a thread of its own, where the answer is made, too.
pub fn start(
    context: &Context,
    args: &[String],
    answer: impl FnOnce(report::Explanation) -> Result<String, String> + Send + 'static,
) -> Reply {
    let asked = match Asked::read(context, args) {
        Ok(asked) => asked,
        Err(problem) => return Reply::Now(Err(problem)),
    };
    let (switch, datapath) = (context.engine.switch.clone(), context.engine.datapath.clone());
    Reply::on_thread("explain", &PLACES, move || answer(asked.explain(&switch, &datapath)?))
}

/// What is to be explained.
struct Asked {
    bridge: Bridge,
    key: Key,
    /// The frame; one that is made of the key where none was given.
    frame: Vec<u8>,
    ct_next: Vec<u32>,
}

/// The arguments.
#[derive(Debug, Default)]
pub(super) struct ExplainArguments<'a> {
    port: Option<&'a str>,
    bridge: Option<&'a str>,
    packet: &'a str,
    ct_next: Vec<u32>,
}

impl ExplainArguments<'_> {
    pub(super) fn parse(args: &[String]) -> Result<ExplainArguments<'_>, String> {
        let (mut out, mut words) = (ExplainArguments::default(), Vec::new());
        for arg in args {
            match arg.strip_prefix("--").map(|option| option.split_once('=')) {
                Some(Some(("port", port))) => out.port = Some(port),
                Some(Some(("ct-next", state))) => out.ct_next.push(parse_ct_state(state)?),
                Some(_) => {
                    return Err(format!("{arg}: not an option of weir/explain; \"help weir/explain\" lists them"));
                }
                None => words.push(arg.as_str()),
            }
        }
        if out.ct_next.len() > MOST_STATES {
            return Err(format!("--ct-next is there more than {MOST_STATES} times"));
        }
        (out.bridge, out.packet) = match words[..] {
            [packet] => (None, packet),
            [bridge, packet] => (Some(bridge), packet),
            _ => return Err("one packet is to be named, and maybe its bridge: weir explain [BRIDGE] PACKET".into()),
        };
        Ok(out)
    }
}

impl Asked {
    fn read(context: &Context, args: &[String]) -> Result<Asked, String> {
        let ExplainArguments { port, bridge, packet, ct_next } = ExplainArguments::parse(args)?;
        let limit = context.engine.switch.settings().vlan_limit;
        let port = port.map(|port| find_port(context, bridge, port)).transpose()?;
        let bridge = port.as_ref().map(|(bridge, _)| bridge.name()).or(bridge);
        let frame = parse_hex(packet);
        if let Some(length) = frame.as_ref().map(Vec::len).filter(|length| *length > MOST_BYTES) {
            return Err(format!("a frame of {length} bytes; {MOST_BYTES} are the most"));
        }
        let (bridge, key) = match (&frame, &port, bridge) {
            (Some(frame), Some((bridge, port)), _) => {
                let mut metadata = Key::new();
                metadata.common_mut().in_port = port.port.0.into();
                (bridge.name().to_owned(), of_frame(frame, &metadata, limit))
            }
            (Some(_), None, _) => return Err("a frame does not tell at which port it comes in: --port does".into()),
            (None, port, bridge) => {
                let (bridge, mut key) = find_flow(context, &bridge.into_iter().chain([packet]).collect::<Vec<_>>())?;
                if let Some((_, port)) = port {
                    key.common_mut().in_port = port.port.0.into();
                }
                (bridge, as_parsed(key, limit))
            }
        };
        let frame = frame.unwrap_or_else(|| compose(&key, &[]));
        Ok(Asked { bridge: context.bridge(&bridge)?, key, frame, ct_next })
    }

    fn explain(self, switch: &Switch, datapath: &Arc<Datapath>) -> Result<report::Explanation, String> {
        let names = Names::of_bridge(&self.bridge);
        let (bridge, ct_next) = (self.bridge.name(), &self.ct_next[..]);
        let request = Request { bridge, key: &self.key, ct_next, ports: &names, shadow: None };
        let passes = explain(switch, &request).ok_or_else(|| format!("{bridge}: unknown bridge"))?;
        let mut ports = PortTable::default();
        ports.refresh(datapath);
        let describe = Describe { datapath, ports: &ports, names: &names, now: datapath.now() };
        let mut passes: Vec<_> = passes.into_iter().map(|pass| describe.pass(pass)).collect();
        let number = self.key.common().in_port.get();
        let port = self.bridge.ports().into_iter().find(|info| info.port == OfPort(number));
        let plain = port.as_ref().is_some_and(|port| port.dp_port.is_some() && port.kind != "patch");
        if let (Some(first), Some(port), true) = (passes.first_mut(), &port, plain)
            && first.served_by.is_some()
            && let Some(number) = port.dp_port
        {
            let tiers = datapath.probe(number, &self.frame, PATIENCE).into_iter();
            let tier =
                |(worker, tier): (_, datapath::CacheTier)| report::WorkerTier { worker, tier: tier.describe().into() };
            first.tiers = tiers.map(tier).collect();
        }
        Ok(report::Explanation { bridge: bridge.to_owned(), port: port.as_ref().map(input_port), passes })
    }
}

/// The port of this name, or of this number in a bridge, and its bridge.
fn find_port(context: &Context, bridge: Option<&str>, port: &str) -> Result<(Bridge, PortInfo), String> {
    let wanted: Vec<_> = match bridge {
        Some(bridge) => vec![context.bridge(bridge)?],
        None => context.engine.switch.bridges(),
    };
    let number: Option<u32> = bridge.and_then(|_| port.parse().ok());
    let is_wanted = |info: &PortInfo| info.name == port || number == Some(info.port.0);
    let found = wanted.into_iter().find_map(|bridge| Some((bridge.ports().into_iter().find(is_wanted)?, bridge)));
    let (info, bridge) = found.ok_or_else(|| match bridge {
        Some(bridge) => format!("{port}: bridge {bridge} has no such port; \"weir ports\" lists them"),
        None => format!("{port}: no port has this name; \"weir ports\" lists them"),
    })?;
    Ok((bridge, info))
}

fn input_port(info: &PortInfo) -> report::InputPort {
    let link = info.device.as_ref().map(|device| device.link());
    report::InputPort {
        name: info.name.clone(),
        ofport: info.port.0,
        dp_port: info.dp_port.map(|number| number.0),
        vlan_mode: info.vlan.mode.name().into(),
        mode: steps::mode(&info.vlan),
        is_up: link.is_none_or(|link| link.up && link.admin_up),
    }
}

/// Puts passes into words.
struct Describe<'a> {
    datapath: &'a Datapath,
    ports: &'a PortTable,
    names: &'a Names,
    now: Time,
}

impl Describe<'_> {
    fn pass(&self, pass: Pass) -> report::Pass {
        let served_by = pass.key.as_deref().and_then(|key| self.datapath.find_matching(key));
        let key = pass.key.unwrap_or_else(|| Box::new(Key::new()));
        let style = Style { ports: self.ports, verbose: false };
        let mut datapath_actions = String::new();
        format_actions(&mut datapath_actions, &pass.actions, &key, &style);
        report::Pass {
            heading: pass.heading,
            packet: pass.flow,
            steps: pass.steps,
            steps_left_out: pass.left_out,
            outcome: Outcome::of(&pass.actions, &key, self.ports),
            dropped_by: pass.dropped.as_ref().map(|dropped| drop_rule(dropped, self.names)),
            error: pass.error,
            slow: pass.slow,
            megaflow: pass.megaflow,
            datapath_actions,
            served_by: served_by.map(|flow| self.serving_flow(&flow, &pass.actions)),
            tiers: Vec::new(),
        }
    }

    fn serving_flow(&self, flow: &FlowDump, wanted: &[datapath::Action]) -> report::ServingFlow {
        let style = Style { ports: self.ports, verbose: false };
        let (mut ufid, mut matching, mut actions) = <(String, String, String)>::default();
        format_ufid(&mut ufid, flow.id);
        format_key(&mut matching, &flow.key, &flow.mask, &style);
        format_actions(&mut actions, &flow.actions, &flow.key, &style);
        let seconds = |since: Time| self.now.since(since).as_secs_f64();
        report::ServingFlow {
            ufid,
            r#match: matching,
            actions,
            is_current: *flow.actions == *wanted,
            packets: flow.stats.packets,
            bytes: flow.stats.bytes,
            age_s: seconds(flow.created),
            idle_s: (flow.stats.used != Time(0)).then(|| seconds(flow.stats.used)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(args: &[&str]) -> String {
        let args: Vec<_> = args.iter().map(|arg| arg.to_string()).collect();
        ExplainArguments::parse(&args).unwrap_err()
    }

    #[test]
    fn arguments_are_read_in_any_order() {
        let args = ["--port=p1", "br0", "--ct-next=trk,est", "in_port=1"].map(str::to_owned);
        let parsed = ExplainArguments::parse(&args).unwrap();
        assert_eq!((parsed.port, parsed.bridge, parsed.packet), (Some("p1"), Some("br0"), "in_port=1"));
        assert_eq!(parsed.ct_next, [0x22]);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error(&["--ports=p1", "x"]).starts_with("--ports=p1: not an option of weir/explain"));
        assert!(error(&["--port", "x"]).starts_with("--port: not an option"));
        assert!(error(&[]).starts_with("one packet is to be named"));
        assert!(error(&["a", "b", "c"]).starts_with("one packet is to be named"));
        assert_eq!(error(&["--ct-next=x", "a"]), "x: unknown connection tracking state flag");
        let states = vec!["--ct-next=trk"; MOST_STATES + 1];
        assert!(error(&[&states[..], &["a"]].concat()).contains("more than 64 times"));
    }
}
