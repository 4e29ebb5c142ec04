//! `dpctl/...`: the datapath by itself, as ovs-dpctl(8) shows and changes it.
//!
//! Flows that are added here belong to the caller: revalidation leaves them alone. A datapath that no bridge uses has no others.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use datapath::text::{Context as Style, parse_ufid};
use datapath::{Action, Bucket, Datapath, FlowDump, FlowId, FlowSpec, FlowStats, Given, PortNo, WorkerStats};
use ofproto::{FlowRequest, Switch};
use openflow::Match;
use packet::flow::text::NoNames;
use packet::{Field, Key};
use tokio::sync::Semaphore;

use super::Context;
use super::flows::DumpOptions;
use super::ports::dpctl_show;
use super::slow_path::when_done;
use super::{conntrack, datapaths, dpctl_error as error, dpctl_error_of as of_program, pmd};
use crate::flow_text::Names;
use crate::unixctl::command::{Outcome, Reply};
use crate::unixctl::{Command, Pieces};

const ANY: usize = usize::MAX;

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpctl/show" "[-s] [dp...]" (0, ANY) now!(dpctl_show), "A datapath's counters and ports.";
    "dpctl/dump-flows" "[-m] [--names] [dp] [filter=..] [type=..] [pmd=..]" (0, 7) pieces!(dump_flows),
        "All datapath flows, or those that an OpenFlow match leaves.";
    "dpctl/add-flow" "[dp] flow actions" (2, 3) now!(add_flow), "Adds a datapath flow.";
    "dpctl/mod-flow" "[dp] flow actions" (2, 3) now!(mod_flow), "Changes the actions of a datapath flow.";
    "dpctl/get-flow" "[dp] ufid" (1, 4) now!(get_flow), "The datapath flow of this identity.";
    "dpctl/del-flow" "[dp] flow" (1, 2) now!(del_flow), "Removes a datapath flow.";
    "dpctl/add-flows" "[dp] file" (1, 2) slow!(add_flows), "Adds the flows that a file lists.";
    "dpctl/mod-flows" "[dp] file" (1, 2) slow!(mod_flows), "Changes the flows that a file lists.";
    "dpctl/del-flows" "[dp] [file]" (0, 2) slow!(del_flows), "Removes the flows that a file lists, or all.";
    "dpctl/parse-actions" "actions" (1, ANY) now!(parse_actions), "Checks datapath actions and prints them.";
    "dpctl/normalize-actions" "flow actions [NAME=NUMBER]..." (2, ANY) now!(normalize_actions),
        "Groups datapath actions by the headers of the packets that they get.";
    "dpctl/list-commands" "" (0, 0) quick!(|_, _| Reply::Now(Ok(list()))), "Lists these commands.";
};

fn list() -> String {
    let mut text = "The available commands are:\n".to_owned();
    for command in datapaths::COMMANDS.iter().chain(COMMANDS).chain(conntrack::COMMANDS) {
        let _ = writeln!(text, "  {:<29} {}", command.name, command.usage);
    }
    text
}

/// A datapath, and what is asked of it.
type Request<'a> = (Arc<Datapath>, Vec<&'a str>);

/// Takes an optional datapath off the front of arguments, of which `needed` others follow.
fn after_datapath<'a>(context: &Context, args: &[&'a str], needed: usize) -> Result<Request<'a>, String> {
    let (name, rest) = match args {
        [name, rest @ ..] if rest.len() >= needed => (Some(*name), rest),
        rest => (None, rest),
    };
    let found = datapaths::find(context, name);
    let found = found.ok_or_else(|| error(context, "datapath not found (Invalid argument)"))?;
    Ok((found, rest.to_vec()))
}

fn words_of(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).filter(|arg| !arg.starts_with('-')).collect()
}

fn dump_flows(context: &Context, args: &[String]) -> Result<Pieces, String> {
    let (mut filter, mut types, mut pmd, mut rest) = (None, None, None, Vec::new());
    for arg in args {
        match arg.split_once('=') {
            Some(("filter", text)) => filter = Some(text),
            Some(("type", list)) => types = Some(list),
            Some(("pmd", number)) => pmd = Some(number),
            _ => rest.push(arg.clone()),
        }
    }
    let options = DumpOptions::parse(&rest)?;
    let names: Vec<_> = options.rest.iter().map(|name| name.as_str()).collect();
    let (datapath, _) = after_datapath(context, &names, 0)?;
    let filter = filter.map(|text| parse_filter(context, &datapath, text)).transpose()?;
    if let Some(list) = types
        && !has_type(context, list)?
    {
        return Ok(Box::new(|_| false));
    }
    let thread = pmd.map(|core| threads_on(core, &datapath).ok_or_else(|| error(context, "Invalid argument")));
    let thread = thread.transpose()?.flatten();
    let of = datapath.clone();
    let passes = move |flow: &mut FlowDump| {
        filter.as_ref().is_none_or(|filter| filter_passes(filter, flow))
            && thread.as_ref().is_none_or(|workers| leave_uses_by(workers, &of, flow))
    };
    let heading = if pmd.is_some() { "" } else { "flow-dump from the main thread:\n" };
    Ok(options.format(&datapath, options.verbose.then_some("ovs")).dump(heading, passes))
}

/// The workers on a core, by its number; what stands for the main thread has what all of them have. `None` where it is no number.
fn threads_on(core: &str, datapath: &Datapath) -> Option<Option<Vec<usize>>> {
    let core: i32 = core.parse().ok()?;
    let on_core = |worker: &WorkerStats| usize::try_from(core) == Ok(pmd::core_of(worker));
    Some((core >= 0).then(|| pmd::workers(datapath).iter().filter(|w| on_core(w)).map(|w| w.number).collect()))
}

/// The workers share one flow table, but each counts for itself. Leaves of what a flow has counted what these have. False where
/// only others have used it; what nobody has is there for all.
fn leave_uses_by(workers: &[usize], datapath: &Datapath, flow: &mut FlowDump) -> bool {
    if flow.stats.packets == 0 {
        return !workers.is_empty();
    }
    let mut uses = FlowStats::default();
    for &worker in workers {
        uses.add(&datapath.flow_stats_by(flow.id, worker).unwrap_or_default());
    }
    flow.stats = uses;
    uses.packets > 0
}

fn parse_filter(context: &Context, datapath: &Datapath, text: &str) -> Result<Match, String> {
    let names = Names::of_datapath(datapath);
    openflow::text::parse_match(text, &names).map_err(|e| error(context, &format!("Failed to parse filter ({e})")))
}

/// Whether a flow can match what the filter does: bits that one of them leaves out do not count.
fn filter_passes(filter: &Match, flow: &FlowDump) -> bool {
    filter.mask.0.present().iter().all(|block| {
        let (wanted, bits) = (filter.key.block(block).words(), filter.mask.0.block(block).words());
        let (key, mask) = (flow.key.block(block).words(), flow.mask.0.block(block).words());
        (0..8).all(|i| (wanted[i] ^ key[i]) & bits[i] & mask[i] == 0)
    })
}

/// Whether flows of the software datapath, which all are, are among the listed types.
fn has_type(context: &Context, list: &str) -> Result<bool, String> {
    let mut ours = false;
    for name in list.split(',').filter(|name| !name.is_empty()) {
        match name {
            "ovs" | "non-offloaded" | "all" => ours = true,
            "tc" | "dpdk" | "offloaded" | "partially-offloaded" => {}
            other => return Err(error(context, &format!("Failed to parse type ({other}) (Invalid argument)"))),
        }
    }
    Ok(ours)
}

/// What to do with a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FlowChange {
    Add,
    Modify,
    Delete,
}

/// What changes flows of a datapath, on any thread.
struct FlowChanges {
    program: &'static str,
    switch: Arc<Switch>,
    datapath: Arc<Datapath>,
    is_of_bridges: bool,
    names: Names,
}

fn add_flow(context: &Context, args: &[String]) -> Outcome {
    let (datapath, words) = after_datapath(context, &words_of(args), 2)?;
    FlowChanges::of(context, datapath).change(FlowChange::Add, &words)
}

fn mod_flow(context: &Context, args: &[String]) -> Outcome {
    let (datapath, words) = after_datapath(context, &words_of(args), 2)?;
    FlowChanges::of(context, datapath).change(FlowChange::Modify, &words)
}

fn del_flow(context: &Context, args: &[String]) -> Outcome {
    let (datapath, words) = after_datapath(context, &words_of(args), 1)?;
    FlowChanges::of(context, datapath).change(FlowChange::Delete, &words)
}

impl FlowChanges {
    fn of(context: &Context, datapath: Arc<Datapath>) -> FlowChanges {
        let names = Names::of_datapath(&datapath);
        let is_of_bridges = Arc::ptr_eq(&datapath, &context.engine.datapath);
        let (program, switch) = (context.log.program(), context.engine.switch.clone());
        FlowChanges { program, switch, datapath, is_of_bridges, names }
    }

    fn error(&self, text: &str) -> String {
        of_program(self.program, text)
    }

    /// `words` are a flow and, unless it is to be deleted, its actions.
    fn change(&self, change: FlowChange, words: &[&str]) -> Outcome {
        let (text, actions) = match (change, words) {
            (FlowChange::Delete, [flow]) => (flow, ""),
            (FlowChange::Add | FlowChange::Modify, [flow, actions]) => (flow, *actions),
            _ => return Err(self.error("a flow and its actions are needed (Invalid argument)")),
        };
        if has_too_long_tunnel(text) {
            let problem = format!("parsing flow key (syntax error at {text}) (Argument list too long)");
            return Err(self.error(&problem));
        }
        let datapath = &self.datapath;
        let (given, mask) = datapath::text::parse_given(text, &self.names)
            .map_err(|e| self.error(&format!("parsing flow key ({e}) (Invalid argument)")))?;
        let key = given.masked(&mask);
        if change == FlowChange::Delete {
            let found = parse_ufid(text.trim_end_matches(',')).or_else(|| datapath.find_flow(&key, mask));
            return match found.is_some_and(|id| self.remove(id)) {
                true => Ok(String::new()),
                false => {
                    let hint = "Perhaps you need to specify a UFID?";
                    Err(self.error(&format!("deleting flow (No such file or directory)\n{hint}")))
                }
            };
        }
        let actions = datapath::text::parse_actions(actions, &self.names)
            .map_err(|e| self.error(&format!("parsing actions ({e}) (Invalid argument)")))?;
        let refused = |why: &str| self.error(&format!("updating flow table ({why})"));
        if !mask.is_exact(Field::InPortOxm) {
            tracing::error!(target: "dpif_netdev", "flow: in_port is not an exact match");
            return Err(refused("Invalid argument"));
        }
        match (change, datapath.find_flow(&key, mask.clone())) {
            (FlowChange::Add, Some(_)) => Err(refused("File exists")),
            (FlowChange::Add, None) => {
                // A flow is for one stage, also where none was given.
                let mut shown = mask.clone();
                shown.set_exact(Field::RecircId);
                let tag = Arc::new(Given(given, shown));
                let spec = FlowSpec { key: Box::new(key), mask: Box::new(mask), actions, tag };
                datapath.install(spec).map_err(|e| refused(&e.to_string()))?;
                Ok(String::new())
            }
            (_, Some(id)) => datapath.modify(id, actions).map(|()| String::new()).map_err(|e| refused(&e.to_string())),
            (_, None) => Err(refused("No such file or directory")),
        }
    }

    /// Removes a flow. What it has counted goes to the bridges' flows that it was made from.
    fn remove(&self, id: FlowId) -> bool {
        if self.is_of_bridges { self.switch.remove_datapath_flow(id) } else { self.datapath.remove(id).is_some() }
    }

    /// A line is a flow, with its actions after a blank. It may begin with what is to be done instead of `change`.
    fn change_by_file(&self, change: FlowChange, file: &str) -> Outcome {
        let bytes = ports::files::read_regular(Path::new(file), MAX_FILE);
        let text =
            bytes.and_then(|bytes| String::from_utf8(bytes).map_err(|e| io::Error::new(ErrorKind::InvalidData, e)));
        let text = text.map_err(|e| {
            let why = if e.kind() == ErrorKind::InvalidInput { e.to_string() } else { e.kind().to_string() };
            self.error(&format!("Opening file '{file}' failed ({why})"))
        })?;
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            let mut parts: Vec<_> = line.split_whitespace().collect();
            let change = match parts.first() {
                None => continue,
                Some(&"add") => FlowChange::Add,
                Some(&"modify") => FlowChange::Modify,
                Some(&"delete") => FlowChange::Delete,
                Some(_) => {
                    parts.insert(0, "");
                    change
                }
            };
            self.change(change, &parts[1..])?;
        }
        Ok(String::new())
    }
}

/// Whether the tunnel's part of a flow has more arguments than there is room for in a netlink attribute of OVS, where each takes eight
/// bytes at least.
fn has_too_long_tunnel(text: &str) -> bool {
    let tunnel = text.split_once("tunnel(").and_then(|(_, rest)| rest.split(')').next());
    tunnel.is_some_and(|tunnel| tunnel.split(',').count() > (usize::from(u16::MAX) - 4) / 8)
}

fn add_flows(context: &Context, args: &[String]) -> Reply {
    change_flows(context, FlowChange::Add, &words_of(args))
}

fn mod_flows(context: &Context, args: &[String]) -> Reply {
    change_flows(context, FlowChange::Modify, &words_of(args))
}

/// Of one argument, it is a datapath if there is one of this name, and else a file.
fn del_flows(context: &Context, args: &[String]) -> Reply {
    let words = words_of(args);
    let all_of = match words[..] {
        [] => datapaths::find(context, None),
        [name] => datapaths::find(context, Some(name)),
        _ => None,
    };
    match all_of {
        Some(datapath) if Arc::ptr_eq(&datapath, &context.engine.datapath) => {
            return when_done(context, FlowRequest::Purge, move || {
                // Those that were added by hand, too.
                datapath.flush();
                String::new()
            });
        }
        Some(datapath) => {
            datapath.flush();
            return Reply::Now(Ok(String::new()));
        }
        None => {}
    }
    change_flows(context, FlowChange::Delete, &words)
}

/// How many files are worked on at a time.
static PLACES: Semaphore = Semaphore::const_new(1);

/// Longest file of flows, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Does so on a thread of its own: there may be very many.
fn change_flows(context: &Context, change: FlowChange, words: &[&str]) -> Reply {
    match after_datapath(context, words, 1) {
        Err(problem) => Reply::Now(Err(problem)),
        Ok((datapath, mut rest)) => {
            let (changes, file) = (FlowChanges::of(context, datapath), rest.pop().unwrap_or_default().to_owned());
            Reply::on_thread("dpctl-flows", &PLACES, move || changes.change_by_file(change, &file))
        }
    }
}

fn get_flow(context: &Context, args: &[String]) -> Outcome {
    let options = DumpOptions::parse(args)?;
    let names: Vec<_> = options.rest.iter().map(|name| name.as_str()).collect();
    let (datapath, mut rest) = after_datapath(context, &names, 1)?;
    let text = rest.pop().unwrap_or_default();
    let id = parse_ufid(text).ok_or_else(|| error(context, "parsing flow ufid"))?;
    let Some(flow) = datapath.flow(id) else {
        return Err(error(context, "getting flow (No such file or directory)"));
    };
    Ok(options.format(&datapath, options.verbose.then_some("ovs")).line(&flow))
}

fn parse_actions(context: &Context, args: &[String]) -> Outcome {
    let names = Names::of_datapath(&context.engine.datapath);
    let mut text = String::new();
    for arg in args {
        let actions = datapath::text::parse_actions(arg, &names)
            .map_err(|e| error(context, &format!("odp_actions_from_string ({e}) (Invalid argument)")))?;
        datapath::text::format_actions(&mut text, &actions, &Key::new(), &Style::default());
        text.push('\n');
    }
    Ok(text)
}

fn normalize_actions(context: &Context, args: &[String]) -> Outcome {
    let numbers = args[2..].iter().map(|arg| {
        let named = arg.split_once('=').and_then(|(name, number)| Some((number.parse().ok()?, name.to_owned())));
        named.ok_or_else(|| error(context, &format!("{arg}: expected NAME=NUMBER")))
    });
    let names: Names = numbers.collect::<Result<Vec<_>, _>>()?.into_iter().collect();
    let (key, _) = datapath::text::parse_key(&args[0], &names)
        .map_err(|e| error(context, &format!("odp_flow_key_from_string ({e}) (Invalid argument)")))?;
    let actions = datapath::text::parse_actions(&args[1], &names)
        .map_err(|e| error(context, &format!("odp_actions_from_string ({e}) (Invalid argument)")))?;
    Ok(format!("input flow: {}\n{}", args[0], normalize(&key, &actions)))
}

/// TPID and TCI of a VLAN tag.
type Tag = (u16, u16);

/// Gives each group of actions the tags of the packets that it gets; outputs that follow each other are
/// put in order.
fn normalize(key: &Key, actions: &[Action]) -> String {
    let mut tags: Vec<Tag> =
        key.common().vlan.iter().map(|tag| (tag.tpid.get(), tag.tci.get())).filter(|tag| tag.1 != 0).collect();
    let mut groups: Vec<(Vec<Tag>, Vec<Action>)> = Vec::new();
    for action in actions {
        match action {
            Action::PopVlan => tags.truncate(tags.len().saturating_sub(1)),
            Action::PushVlan { tpid, tci } => tags.push((*tpid, *tci)),
            other => match groups.iter_mut().find(|(of, _)| *of == tags) {
                Some((_, list)) => list.push(other.clone()),
                None => groups.push((tags.clone(), vec![other.clone()])),
            },
        }
    }
    groups.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut text = String::new();
    for (tags, mut list) in groups {
        sort_outputs(&mut list);
        for (tpid, tci) in tags.iter().rev() {
            let tpid = if matches!(tpid, 0 | 0x8100) { String::new() } else { format!("tpid=0x{tpid:04x},") };
            let _ = write!(text, "vlan({tpid}vid={},pcp={}): ", tci & 0xfff, tci >> 13);
        }
        text.push_str(if tags.is_empty() { "no vlan: " } else { "" });
        match key.encap().mpls_lse[0].get() {
            lse if matches!(key.common().dl_type.get(), 0x8847 | 0x8848) => {
                let _ = write!(text, "mpls(label={},tc={},ttl={}): ", lse >> 12, lse >> 9 & 7, lse & 0xff);
            }
            _ => text.push_str("no mpls: "),
        }
        datapath::text::format_actions(&mut text, &list, key, &Style { ports: &NoNames, ..Style::default() });
        text.push('\n');
    }
    text
}

fn sort_outputs(actions: &mut [Action]) {
    let port = |action: &Action| match action {
        Action::Output(PortNo(number)) => Some(*number),
        Action::Bond { bond, bucket: Bucket::Fixed(bucket) } => bond.member(*bucket).map(|port| port.0),
        _ => None,
    };
    for run in actions.chunk_by_mut(|a, b| port(a).is_some() && port(b).is_some()) {
        run.sort_by_key(|action| port(action));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(key: &str, actions: &str) -> (Key, Vec<Action>) {
        let key = datapath::text::parse_key(key, &NoNames).unwrap().0;
        (key, datapath::text::parse_actions(actions, &NoNames).unwrap())
    }

    #[test]
    fn actions_are_grouped_by_tag() {
        let (key, actions) = parse("in_port(1),eth(),eth_type(0x0800)", "3,2,push_vlan(vid=9,pcp=1),5,4,pop_vlan,1");
        assert_eq!(
            normalize(&key, &actions),
            "no vlan: no mpls: 2,3,1\nvlan(vid=9,pcp=1): no mpls: 4,5\n".replace("2,3,1", "1,2,3")
        );
        let (key, actions) =
            parse("in_port(1),eth(),eth_type(0x8100),vlan(vid=7,pcp=0),encap(eth_type(0x0806))", "2,pop_vlan,1");
        assert_eq!(normalize(&key, &actions), "no vlan: no mpls: 1\nvlan(vid=7,pcp=0): no mpls: 2\n");
    }

    #[test]
    fn every_command_is_listed() {
        let text = list();
        assert!(COMMANDS.iter().all(|command| text.contains(command.name)));
    }
}
