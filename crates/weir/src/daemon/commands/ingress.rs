//! The commands on ingress filters, `ingress/*`: docs/ingress.md.

use ingress::{RuleSet, rule};
use tokio::sync::oneshot;

use super::Context;
use super::reports::json;
use crate::config::desired;
use crate::report::{self, IngressPort, IngressReport, IngressRule};
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

/// The commands.
pub static COMMANDS: &[Command<Context>] = commands! {
    "ingress/add" "PORT RULES..." (2, usize::MAX) |context, args| change(context, args, added),
        "Adds rules behind those of a port's ingress filter.";
    "ingress/set" "PORT [RULES...]" (1, usize::MAX) |context, args| change(context, args, |_, rules| Ok(Some(rules.into()))),
        "Replaces the rules of a port's ingress filter.";
    "ingress/del" "PORT [NUMBER|RULES...]" (1, usize::MAX) |context, args| change(context, args, remaining),
        "Removes a rule by its number, rules by their text, or the whole ingress filter of a port.";
    "ingress/show" "[PORT]" (0, 1) now!(show), "The rules of the ingress filters of one port or all.";
    "ingress/stats" "[PORT]" (0, 1) now!(stats), "The same with their counters.";
    "weir/ingress" "[PORT]" (0, 1) now!(as_json), "The same as JSON.";
};

/// Makes the text of the rules from those in force and an argument; `None`: there is to be no filter.
type Change = fn(Option<&RuleSet>, &str) -> Result<Option<String>, String>;

/// Changes a filter on a thread of its own: libpcap may ask a name server, and a long expression takes a moment.
fn change(context: &Context, args: &[String], change: Change) -> Reply {
    let (port, rules) = (args[0].clone(), args[1..].join(" "));
    if let Err(problem) = check(context, &port) {
        return Reply::Now(Err(problem));
    }
    let (filters, datapath) = (context.engine.ingress.clone(), context.engine.datapath.clone());
    let (reply, answer) = oneshot::channel();
    let compiling = std::thread::Builder::new().name("ingress-compiler".into()).spawn(move || {
        let outcome = filters.change(&datapath, &port, |before| change(before, &rules));
        // The receiver may have been dropped meanwhile.
        let _ = reply.send(outcome.map(|()| String::new()));
    });
    match compiling {
        Ok(_) => Reply::Later(answer),
        Err(e) => Reply::Now(Err(format!("cannot start a thread that compiles the rules: {e}"))),
    }
}

/// Whether a port can have a filter.
fn check(context: &Context, name: &str) -> Result<(), String> {
    let ports = context.engine.switch.bridges().into_iter().flat_map(|bridge| bridge.ports());
    let port = ports.into_iter().find(|port| port.name == name).ok_or_else(|| format!("no such port: {name}"))?;
    if port.peer.is_some() { Err(desired::NO_FRAMES.into()) } else { Ok(()) }
}

fn added(before: Option<&RuleSet>, rules: &str) -> Result<Option<String>, String> {
    // Looked at alone first, so that places in errors are those of the argument.
    RuleSet::compile(rules).map_err(|e| e.to_string())?;
    let before = before.map(|set| rule::format(set.rules())).unwrap_or_default();
    Ok(Some(if before.is_empty() { rules.to_owned() } else { format!("{before}; {rules}") }))
}

fn remaining(before: Option<&RuleSet>, which: &str) -> Result<Option<String>, String> {
    let before = before.ok_or("the port has no ingress filter")?;
    if which.trim().is_empty() {
        return Ok(None);
    }
    let mut rules = before.rules().to_vec();
    if let Ok(number) = which.trim().parse::<usize>() {
        if !(1..=rules.len()).contains(&number) {
            return Err(format!("there is no rule {number}; the filter has {}", rules.len()));
        }
        rules.remove(number - 1);
    } else {
        for gone in rule::parse(which).map_err(|e| e.to_string())? {
            let place = rules.iter().position(|rule| rule.is_same(&gone));
            rules.remove(place.ok_or_else(|| format!("there is no rule \"{gone}\""))?);
        }
    }
    Ok(Some(rule::format(&rules)))
}

fn show(context: &Context, args: &[String]) -> Outcome {
    Ok(report::text::ingress(&report(context, args.first())?))
}

fn stats(context: &Context, args: &[String]) -> Outcome {
    Ok(report::text::ingress_stats(&report(context, args.first())?))
}

fn as_json(context: &Context, args: &[String]) -> Outcome {
    json(&report(context, args.first())?)
}

fn report(context: &Context, port: Option<&String>) -> Result<IngressReport, String> {
    let mut filters = context.engine.ingress.all();
    if let Some(port) = port {
        filters.retain(|(name, _)| name == port);
        if filters.is_empty() {
            check(context, port)?;
        }
    }
    let ports = filters.into_iter().map(|(name, filter)| {
        let offload = context.engine.ingress.offload_status(&name).unwrap_or_default();
        let counts = context.engine.ingress.counts(&name, &filter);
        let shown = |(number, (rule, counts)): (usize, (&ingress::Rule, ingress::RuleCounts))| IngressRule {
            rule: rule.to_string(),
            packets: counts.packets,
            bytes: counts.bytes,
            dropped: counts.dropped,
            offloaded: number < offload.rules,
        };
        let rules = filter.rules().rules().iter().zip(counts).enumerate().map(shown).collect();
        IngressPort { name, rules, not_offloaded: offload.reason }
    });
    Ok(IngressReport { ports: ports.collect() })
}
