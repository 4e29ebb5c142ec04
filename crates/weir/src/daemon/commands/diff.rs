//! `weir/diff`: what changes of flows would do to the flows of the datapath. A thread of its own looks; a client that goes ends it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datapath::text::{Context as Style, format_actions, format_key, format_ufid};
use datapath::{Datapath, FlowDump, FlowId};
use ofproto::explain::Pass;
use ofproto::whatif::{Difference, FlowVerdict, TablesVersion, Treatment, WhatIf, replacing};
use ofproto::{Bridge, TableDrop};
use openflow::FlowMod;
use packet::{Key, Mask};
use tokio::sync::mpsc;

use super::Context;
use super::trace::bridge_flow;
use crate::daemon::drops::drop_rule;
use crate::explain;
use crate::flow_text::Names;
use crate::places::Places;
use crate::tap::verdict::{self, PortTable};
use crate::unixctl::Reply;
use crate::unixctl::command::{Outcome, Stream, StreamItem};
use crate::whatif::expect::{self, Destinations, Expectation};
use crate::whatif::flow_file;
use crate::whatif::report::{self, Diff, FlowDiff};

/// How many can be under way at a time.
static PLACES: Places = Places::new(2);

/// Flows that are listed unless told otherwise, and at most.
const LISTED: usize = 1000;
const MOST_LISTED: usize = 100_000;

/// Between the two readings of counters that make a rate: at least, and at most as long as told.
const INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: u64 = 60;

/// Rules that are told of an expectation that is not met.
const MOST_RULES: usize = 16;

/// How often it is looked whether the client has gone, while nothing else is to be done.
const PAUSE: Duration = Duration::from_millis(50);

/// What is asked: the arguments of `weir/diff`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DiffArguments {
    bridge: String,
    flows: Option<String>,
    expect: Option<String>,
    replace: bool,
    commit: bool,
    most: usize,
    interval: Duration,
}

impl DiffArguments {
    pub(super) fn parse(args: &[String]) -> Result<DiffArguments, String> {
        let (mut bridge, mut flows, mut expect) = (None, None, None);
        let (mut replace, mut commit, mut most, mut interval) = (false, false, LISTED, INTERVAL);
        for arg in args {
            match arg.split_once('=').map_or((&arg[..], None), |(name, value)| (name, Some(value))) {
                ("--flows", Some(path)) => flows = Some(path.to_owned()),
                ("--expect", Some(path)) => expect = Some(path.to_owned()),
                ("--replace", None) => replace = true,
                ("--commit", None) => commit = true,
                ("--most", Some(text)) => {
                    let number = text.parse().ok().filter(|n| *n <= MOST_LISTED);
                    most = number.ok_or_else(|| format!("{arg}: this takes a number up to {MOST_LISTED}"))?;
                }
                ("--interval", Some(text)) => {
                    let seconds = text.parse().ok().filter(|n| (1..=LONGEST_INTERVAL).contains(n));
                    let seconds =
                        seconds.ok_or_else(|| format!("{arg}: this takes seconds, 1 to {LONGEST_INTERVAL}"))?;
                    interval = Duration::from_secs(seconds);
                }
                (name, _) if !name.starts_with("--") && bridge.is_none() => bridge = Some(arg.clone()),
                _ => return Err(format!("{arg}: not an argument of weir/diff; \"help weir/diff\" lists them")),
            }
        }
        let bridge = bridge.ok_or("a bridge is to be named: weir diff BRIDGE --flows FILE")?;
        if flows.is_none() && (expect.is_none() || replace) {
            return Err("a file is to be named: weir diff BRIDGE --flows FILE".into());
        }
        Ok(DiffArguments { bridge, flows, expect, replace, commit, most, interval })
    }
}

/// `weir/diff`.
pub fn start(context: &Context, args: &[String]) -> Reply {
    match begin(context, args) {
        Ok(stream) => Reply::Stream(stream),
        Err(problem) => Reply::Now(Err(problem)),
    }
}

fn begin(context: &Context, args: &[String]) -> Result<Stream, String> {
    let asked = DiffArguments::parse(args)?;
    let (bridge, datapath) = (context.bridge(&asked.bridge)?, context.engine.datapath.clone());
    let busy = || format!("{} diffs are under way already; try again when they have ended", PLACES.most());
    let place = PLACES.take().ok_or_else(busy)?;
    let (items, receiver) = mpsc::channel(1);
    let stop = Arc::new(AtomicBool::new(false));
    let session = Session { asked, bridge, datapath, stop: stop.clone() };
    let run = move || {
        let outcome = session.run();
        drop(place);
        // Where the client has gone, nobody wants to know.
        let _ = items.blocking_send(StreamItem::End(outcome));
    };
    std::thread::Builder::new()
        .name("diff".into())
        .spawn(run)
        .map_err(|error| format!("no thread for a diff: {error}"))?;
    Ok(Stream { items: receiver, stop })
}

/// What the thread works on.
struct Session {
    asked: DiffArguments,
    bridge: Bridge,
    datapath: Arc<Datapath>,
    stop: Arc<AtomicBool>,
}

/// A flow that would treat packets otherwise, or may: as little as is needed until it is listed.
struct Seen {
    id: FlowId,
    is_decided: bool,
    packets: u64,
    at: Instant,
    /// Packets per second.
    rate: f64,
}

impl Session {
    fn run(&self) -> Outcome {
        let (asked, names) = (&self.asked, Names::of_bridge(&self.bridge));
        let version = TablesVersion::now(&self.bridge).map_err(|problem| problem.to_string())?;
        let changes = self.changes(&names)?;
        let expectations = match &asked.expect {
            Some(path) => Some(expect::parse(path, &flow_file::read(path)?, &names)?),
            None => None,
        };
        let gone = || self.stop.load(Ordering::Relaxed);
        let what_if = WhatIf::unless(&gone, &self.bridge, &changes, version).map_err(|problem| problem.to_string())?;
        let counts = what_if.counts();
        let (added, modified, removed) = (counts.added, counts.modified, counts.removed);
        let rules = report::RuleCounts { added, modified, removed };
        let mut diff = Diff { bridge: asked.bridge.clone(), rules, ..Diff::default() };
        let mut seen = self.look(&what_if, &mut diff)?;
        self.measure(&mut seen)?;
        // From zero, as the sum of none is -0.
        diff.changed_pps = seen.iter().filter(|flow| flow.is_decided).fold(0.0, |sum, flow| sum + flow.rate);
        seen.sort_by_key(|flow| (Reverse(flow.is_decided), Reverse(flow.rate.to_bits()), flow.id));
        diff.not_listed = seen.len().saturating_sub(asked.most);
        seen.truncate(asked.most);
        let mut describe = Describe { ports: PortTable::default(), names: &names };
        describe.ports.refresh(&self.datapath);
        diff.listed =
            seen.iter().filter_map(|seen| describe.flow(seen, &self.datapath.flow(seen.id)?, &what_if)).collect();
        if let Some(expectations) = expectations {
            diff.expectations = Some(self.test(&expectations, &what_if, &describe)?);
        }
        diff.tables_changed = !what_if.is_current();
        let is_as_expected = diff.expectations.as_ref().is_none_or(|expectations| expectations.unmet.is_empty());
        if asked.commit && is_as_expected {
            what_if.commit(&changes).map_err(|problem| problem.to_string())?;
            diff.committed = true;
        }
        super::reports::json(&diff)
    }

    /// The changes that the file asks for.
    fn changes(&self, names: &Names) -> Result<Vec<FlowMod>, String> {
        let Some(path) = &self.asked.flows else { return Ok(Vec::new()) };
        let changes = flow_file::parse(path, &flow_file::read(path)?, names, self.asked.replace)?;
        if !self.asked.replace {
            return Ok(changes);
        }
        replacing(&self.bridge, &changes).map_err(|problem| problem.to_string())
    }

    /// Looks what would become of the packets of which something is expected.
    fn test(
        &self,
        expectations: &[Expectation],
        what_if: &WhatIf,
        describe: &Describe<'_>,
    ) -> Result<report::Expectations, String> {
        let mut unmet = Vec::new();
        for expectation in expectations {
            self.check_client()?;
            let key = bridge_flow(&expectation.packet, describe.names, |matching| self.bridge.place_known(matching));
            let key = key.map_err(|error| format!("line {}: {error}", expectation.line))?;
            let passes = what_if.explain(&key, describe.names);
            let rules = passes.iter().flat_map(|pass| &pass.steps).filter_map(|step| step.rule.as_ref());
            let rules = rules
                .take(MOST_RULES)
                .map(|rule| format!("table {}: {} actions={}", rule.table, rule.name(), rule.actions));
            unmet.extend(expectation.surprise(&describe.destinations(&passes), rules.collect()));
        }
        Ok(report::Expectations { total: expectations.len(), unmet })
    }

    /// Compares each flow of the datapath.
    fn look(&self, what_if: &WhatIf, diff: &mut Diff) -> Result<Vec<Seen>, String> {
        let (mut seen, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            // The counters are of now, however long the flows take.
            let at = Instant::now();
            let (flows, after) = self.datapath.flows_from(from);
            next = after;
            for flow in &flows {
                self.check_client()?;
                let is_decided = match what_if.compare(flow) {
                    FlowVerdict::Unchanged => continue,
                    FlowVerdict::Changed(_) => true,
                    FlowVerdict::Undecided => false,
                };
                (diff.changed, diff.undecided) =
                    (diff.changed + usize::from(is_decided), diff.undecided + usize::from(!is_decided));
                seen.push(Seen { id: flow.id, is_decided, packets: flow.stats.packets, at, rate: 0.0 });
            }
            diff.flows += flows.len();
        }
        Ok(seen)
    }

    /// Reads the counters again, some time after the first reading.
    fn measure(&self, seen: &mut [Seen]) -> Result<(), String> {
        let Some(last) = seen.last().map(|flow| flow.at) else { return Ok(()) };
        while last.elapsed() < self.asked.interval {
            self.check_client()?;
            std::thread::sleep(PAUSE);
        }
        for flow in seen {
            // One that has gone has no packets any more.
            let packets = self.datapath.flow_stats(flow.id).map_or(flow.packets, |stats| stats.packets);
            flow.rate = packets.saturating_sub(flow.packets) as f64 / flow.at.elapsed().as_secs_f64();
        }
        Ok(())
    }

    fn check_client(&self) -> Result<(), String> {
        if self.stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }
}

/// Puts flows into words.
struct Describe<'a> {
    ports: PortTable,
    names: &'a Names,
}

impl Describe<'_> {
    /// A flow that was seen; `None` where it would not be changed any more.
    fn flow(&self, seen: &Seen, flow: &FlowDump, what_if: &WhatIf) -> Option<FlowDiff> {
        let mut ufid = String::new();
        format_ufid(&mut ufid, flow.id);
        let listed = FlowDiff {
            ufid,
            r#match: self.matching(&flow.key, &flow.mask),
            packets: flow.stats.packets,
            bytes: flow.stats.bytes,
            pps: seen.rate,
            ..FlowDiff::default()
        };
        match what_if.compare(flow) {
            FlowVerdict::Unchanged => None,
            FlowVerdict::Undecided => {
                let before = self.treatment(&flow.actions, &flow.key, None, None);
                Some(FlowDiff { before, ..listed })
            }
            FlowVerdict::Changed(difference) => {
                let Difference { key, mask, whole, before, after } = *difference;
                let of = |treatment: &Treatment| {
                    self.treatment(&treatment.actions, &key, treatment.dropped.as_ref(), treatment.error.clone())
                };
                let (before, after) = (of(&before), Some(of(&after)));
                let packets_like = (!whole).then(|| self.matching(&key, &mask));
                Some(FlowDiff { is_decided: true, is_whole: whole, packets_like, before, after, ..listed })
            }
        }
    }

    /// Where a packet leaves, whatever rewrites it on its way.
    fn destinations(&self, passes: &[Pass]) -> Destinations {
        let mut found = Destinations::default();
        for pass in passes {
            let outcome = explain::outcome::Outcome::of(&pass.actions, &Key::new(), &self.ports);
            found.ports.extend(outcome.outputs.into_iter().map(|output| output.port));
            found.controller |= outcome.to_controller;
        }
        found
    }

    fn matching(&self, key: &Key, mask: &Mask) -> String {
        let mut text = String::new();
        format_key(&mut text, key, mask, &Style { ports: &self.ports, verbose: false });
        text
    }

    fn treatment(
        &self,
        actions: &[datapath::Action],
        key: &Key,
        dropped: Option<&TableDrop>,
        error: Option<String>,
    ) -> report::Treatment {
        let mut text = String::new();
        format_actions(&mut text, actions, key, &Style { ports: &self.ports, verbose: false });
        report::Treatment {
            outcome: verdict::outcome(actions, &self.ports),
            actions: text,
            dropped_by: dropped.map(|dropped| drop_rule(dropped, self.names)),
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<DiffArguments, String> {
        DiffArguments::parse(&args.iter().map(|arg| arg.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_and_mistakes() {
        let parsed = parse(&["br0", "--flows=/x=y", "--replace", "--most=5", "--interval=3"]).unwrap();
        assert_eq!((parsed.flows.as_deref(), parsed.replace, parsed.most), (Some("/x=y"), true, 5));
        assert!(parse(&["br0", "--expect=x", "--commit"]).unwrap().commit);
        for (args, expected) in [
            (&["br0"][..], "a file is to be named"),
            (&["br0", "--expect=x", "--replace"], "a file is to be named"),
            (&["--flows=x"], "a bridge is to be named"),
            (&["br0", "br1", "--flows=x"], "br1: not an argument"),
            (&["br0", "--flows"], "--flows: not an argument"),
            (&["br0", "--flows=x", "--interval=0"], "--interval=0: this takes seconds, 1 to 60"),
            (&["br0", "--flows=x", "--most=x"], "--most=x: this takes a number up to"),
        ] {
            assert!(parse(args).unwrap_err().starts_with(expected), "{args:?}");
        }
    }
}
