//! Walks over everything of a subject, and the answers that come of them.
//!
//! A walk takes the locks of flows and rules for some hundred of them at a time, as dumps do, and describes only what is in an answer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use datapath::text::{Context as Style, format_flow, format_ufid};
use datapath::{Datapath, FlowId, PortNo};
use ofproto::{Bridge, DropSite, RuleCounters, RuleId};
use openflow::text::flow::format_flow_stats;

use super::pairs;
use super::question::Question;
use super::top::{Baseline, Count, Highest, Rank, by_second, rank};
use crate::daemon::drops::{self, DropSource};
use crate::daemon::engine::Engine;
use crate::flow_text::Names;
use crate::report::cut;
use crate::report::drops::{DropRow, RowKey};
use crate::report::ranking::{Ranking, TopDrop, TopFlow, TopRule, Traffic};
use crate::unixctl::command::Outcome;

/// Most questions that one walk answers.
pub const MAX_QUESTIONS: usize = 64;

/// What was counted up to the walks before.
#[derive(Default)]
pub struct Baselines {
    pub flows: Baseline<FlowId>,
    pub rules: Baseline<(Arc<str>, RuleId)>,
    pub drops: Baseline<DropKey>,
    /// Keep the addresses of the sites in `drops` from being used again.
    sites: Vec<Weak<DropSite>>,
}

/// What tells places of drops apart.
#[derive(PartialEq, Eq, Hash)]
pub enum DropKey {
    /// The address of a site.
    Site(usize),
    Row(RowKey),
}

/// What is found for a question during a walk.
struct Found<'a, T> {
    question: &'a Question,
    /// Rank, rise, count, and what it is.
    highest: Highest<(Rank, Count, Count, T)>,
    of: usize,
    /// The rise of all.
    risen: Count,
}

impl<T: Ord> Found<'_, T> {
    fn new(question: &Question) -> Found<'_, T> {
        let most = if question.pairs { pairs::FLOWS } else { question.most };
        Found { question, highest: Highest::new(most), of: 0, risen: Count::default() }
    }

    fn offer(&mut self, risen: Count, all: Count, what: T) {
        self.of += 1;
        self.risen += risen;
        self.highest.offer((rank(self.question.by, risen, all), risen, all, what));
    }

    /// The answer, with a row for each that is still there.
    fn answer<R: serde::Serialize>(self, time: Duration, row: impl Fn(T, Traffic) -> Option<R>) -> Outcome {
        let highest = self.highest.into_sorted().into_iter();
        let rows = highest.filter_map(|(_, risen, all, what)| row(what, by_second(risen, all, time))).collect();
        let ranking = Ranking { interval_s: time.as_secs_f64(), of: self.of, rows };
        serde_json::to_string(&ranking).map_err(|e| e.to_string())
    }
}

/// Which flows a question is about.
struct FlowFilter {
    port: Option<PortNo>,
    rule: Option<RuleCounters>,
}

impl FlowFilter {
    fn of(question: &Question, engine: &Engine, ports: &[(PortNo, String)]) -> Result<FlowFilter, String> {
        let port = question.port.as_ref().map(|wanted| {
            let found = ports.iter().find(|(_, name)| name == wanted).map(|(number, _)| *number);
            found.ok_or_else(|| format!("no such port in the datapath: {wanted}"))
        });
        let rule = question.rule.as_ref().map(|(name, id)| {
            let bridge = engine.switch.bridge(name).ok_or_else(|| format!("no such bridge: {name}"))?;
            bridge.rule_counters(*id).ok_or_else(|| format!("{name}/{id}: there is no such rule any more"))
        });
        Ok(FlowFilter { port: port.transpose()?, rule: rule.transpose()? })
    }
}

/// A flow that a walk has met.
struct MetFlow {
    id: FlowId,
    port: PortNo,
    count: Count,
    /// The questions whose rule its packets pass, as bits.
    passes: u64,
}

/// Walks over the flows of the datapath. `Err` where a question cannot be answered. Ends early when `go_on` says so.
pub fn flows(
    engine: &Engine,
    baseline: &mut Baseline<FlowId>,
    questions: &[Question],
    time: Duration,
    go_on: &dyn Fn() -> bool,
) -> Vec<Outcome> {
    let datapath = &engine.datapath;
    let ports: Vec<_> = datapath.ports().into_iter().map(|(number, port)| (number, port.name().to_owned())).collect();
    let filters: Vec<_> = questions.iter().map(|question| FlowFilter::of(question, engine, &ports)).collect();
    let mut found: Vec<Found<'_, FlowId>> = questions.iter().map(Found::new).collect();
    let rule_of = |number: usize| filters[number].as_ref().ok()?.rule.as_ref();
    let by_rule: Vec<_> = (0..filters.len()).filter_map(|number| Some((number, rule_of(number)?))).collect();
    baseline.begin();
    let mut met = Vec::with_capacity(Datapath::FLOW_CHUNK);
    for from in (0..datapath.flow_numbers()).step_by(Datapath::FLOW_CHUNK) {
        if !go_on() {
            break;
        }
        // With the flows locked, no more is done than this.
        datapath.visit_flows(from, |id, port, stats, tag| {
            let passes = by_rule.iter().filter(|(_, rule)| rule.is_of(tag)).fold(0, |bits, (n, _)| bits | 1 << n);
            met.push(MetFlow { id, port, count: Count { packets: stats.packets, bytes: stats.bytes }, passes });
        });
        for MetFlow { id, port, count, passes } in met.drain(..) {
            let risen = baseline.take(id, count);
            for (number, (found, filter)) in found.iter_mut().zip(&filters).enumerate() {
                let Ok(filter) = filter else { continue };
                if filter.port.is_none_or(|wanted| wanted == port)
                    && (filter.rule.is_none() || passes >> number & 1 == 1)
                {
                    found.offer(risen, count, id);
                }
            }
        }
    }
    baseline.end();
    let names = Names::of_datapath(datapath);
    let row = |id: FlowId, traffic| describe_flow(datapath, id, &names, traffic);
    let answer = |found: Found<'_, FlowId>| {
        if !found.question.pairs {
            return found.answer(time, row);
        }
        let Found { question, highest, risen, .. } = found;
        let flows = highest.into_sorted().into_iter().map(|(_, risen, all, id)| (risen, all, id));
        let pairs = pairs::pairs(datapath, question, flows, risen, time);
        serde_json::to_string(&pairs).map_err(|e| e.to_string())
    };
    found.into_iter().zip(filters).map(|(found, filter)| filter.and_then(|_| answer(found))).collect()
}

fn describe_flow(datapath: &Datapath, id: FlowId, names: &Names, traffic: Traffic) -> Option<TopFlow> {
    let flow = datapath.flow(id)?;
    let (mut text, mut ufid) = (String::new(), String::new());
    format_flow(&mut text, &flow, datapath.now(), &Style { verbose: false, ports: names });
    format_ufid(&mut ufid, id);
    let port = datapath::upcall::in_port(&flow.key);
    let port = datapath.port(port).map_or_else(|| format!("datapath port {}", port.0), |port| port.name().to_owned());
    Some(TopFlow { traffic, ufid, port, text: cut(text) })
}

/// Walks over the rules of all bridges.
pub fn rules(
    engine: &Engine,
    baseline: &mut Baseline<(Arc<str>, RuleId)>,
    questions: &[Question],
    time: Duration,
    go_on: &dyn Fn() -> bool,
) -> Vec<Outcome> {
    engine.switch.refresh_statistics();
    let bridges = engine.switch.bridges();
    let mut found: Vec<Found<'_, (usize, RuleId)>> = questions.iter().map(Found::new).collect();
    baseline.begin();
    for (number, bridge) in bridges.iter().enumerate() {
        let name: Arc<str> = bridge.name().into();
        let is_about = |question: &Question| question.bridge.as_deref().is_none_or(|wanted| wanted == &*name);
        let mut walk = bridge.walk_as_counted();
        let mut visit = |id, packets, bytes| {
            let count = Count { packets, bytes };
            let risen = baseline.take((name.clone(), id), count);
            found
                .iter_mut()
                .filter(|found| is_about(found.question))
                .for_each(|found| found.offer(risen, count, (number, id)));
        };
        while go_on() && walk.visit_next(&mut visit) {}
    }
    baseline.end();
    let names: Vec<_> = bridges.iter().map(Names::of_bridge).collect();
    let row = |(number, id): (usize, RuleId), traffic| describe_rule(&bridges[number], id, &names[number], traffic);
    let known = |wanted: &Option<String>| match wanted {
        Some(name) if !bridges.iter().any(|bridge| bridge.name() == name) => Err(format!("no such bridge: {name}")),
        _ => Ok(()),
    };
    found.into_iter().map(|found| known(&found.question.bridge).and_then(|()| found.answer(time, row))).collect()
}

fn describe_rule(bridge: &Bridge, id: RuleId, names: &Names, traffic: Traffic) -> Option<TopRule> {
    let flow = bridge.rule(id)?;
    let mut text = String::new();
    format_flow_stats(&mut text, &flow, names);
    Some(TopRule {
        traffic,
        bridge: bridge.name().to_owned(),
        id: id.to_string(),
        table: flow.table.0,
        priority: flow.priority,
        cookie: flow.cookie.0,
        text: cut(text.trim_start().to_owned()),
    })
}

/// Looks at all drops.
pub fn drops(engine: &Engine, baselines: &mut Baselines, questions: &[Question], time: Duration) -> Vec<Outcome> {
    let sources = drops::sources(engine);
    let ports = drops::port_names(engine);
    let mut found: Vec<Found<'_, usize>> = questions.iter().map(Found::new).collect();
    // The addresses of before are of no more use once there are new ones.
    let mut sites = Vec::new();
    baselines.drops.begin();
    for (number, source) in sources.iter().enumerate() {
        let count = |packets| Count { packets, bytes: 0 };
        let (risen, count) = match source {
            DropSource::Site(packets, site) => {
                sites.push(Arc::downgrade(site));
                let key = DropKey::Site(Arc::as_ptr(site).addr());
                (baselines.drops.take(key, count(*packets)), count(*packets))
            }
            // What is left when the sites are taken away.
            DropSource::Row(row) => {
                (baselines.drops.take_rest(DropKey::Row(row.key()), count(row.packets)), count(row.packets))
            }
        };
        let is_about = |question: &Question| question.port.as_ref().is_none_or(|port| source.is_of_port(port, &ports));
        found.iter_mut().filter(|found| is_about(found.question)).for_each(|found| found.offer(risen, count, number));
    }
    baselines.drops.end();
    baselines.sites = sites;
    let describe = drops::describer(engine);
    let row = |number: usize, Traffic { packets_per_s, .. }| {
        Some(TopDrop { packets_per_s, row: cut_row(describe(&sources[number])) })
    };
    found.into_iter().map(|found| found.answer(time, row)).collect()
}

/// A row whose rule is not very long.
fn cut_row(mut row: DropRow) -> DropRow {
    use crate::report::drops::DropRule;
    match &mut row.rule {
        Some(DropRule::Flow(place)) => {
            if let Some(found) = &mut place.flow {
                found.matching = cut(std::mem::take(&mut found.matching));
            }
        }
        Some(DropRule::IngressFilter(rule)) => *rule = cut(std::mem::take(rule)),
        Some(DropRule::Others) | None => {}
    }
    row
}
