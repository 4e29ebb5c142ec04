//! The commands on ingress filters, `ingress/*`: docs/ingress.md.

use ingress::ebpf::map::{Map, text};
use ingress::{RuleSet, rule};
use tokio::sync::Semaphore;

use super::Context;
use super::reports::json;
use crate::config::desired;
use crate::daemon::ingress::IngressFilters;
use crate::report::{self, IngressElements, IngressReport};
use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply};

/// The commands.
pub static COMMANDS: &[Command<Context>] = commands! {
    "ingress/add" "PORT RULES..." (2, usize::MAX) slow!(|context, args| change(context, args, added)),
        "Adds rules behind those of a port's ingress filter.";
    "ingress/set" "PORT [RULES...]" (1, usize::MAX) slow!(|context, args| {
        change(context, args, |_, rules| Ok(Some(rules.into())))
    }),
        "Replaces the rules of a port's ingress filter.";
    "ingress/del" "PORT [NUMBER|RULES...]" (1, usize::MAX) slow!(|context, args| change(context, args, remaining)),
        "Removes a rule by its number, rules by their text, or the whole ingress filter of a port.";
    "ingress/load" "PORT FILE [PROGRAM]" (2, 3) slow!(load),
        "Puts an XDP program of an object file behind the rules of a port, in the place of the one that is there.";
    "ingress/unload" "PORT" (1, 1) slow!(load), "Takes the XDP program of a port away.";
    "ingress/map" "PORT NAME [KEY [VALUE]]" (2, 4) now!(map),
        "The elements of a map of a port's XDP program, or the value of a key; or sets it.";
    "ingress/unmap" "PORT NAME KEY" (3, 3) now!(unmap), "Removes a key from a map of a port's XDP program.";
    "ingress/show" "[PORT]" (0, 1) now!(show), "The rules of the ingress filters of one port or all.";
    "ingress/stats" "[PORT]" (0, 1) now!(stats), "The same with their counters.";
    "weir/ingress" "[PORT]" (0, 1) now!(as_json), "The same as JSON.";
    "weir/ingress-map" "PORT NAME [KEY [VALUE]]" (2, 4) now!(map_as_json), "The elements of a map as JSON.";
};

/// Makes the text of the rules from those in force and an argument; `None`: there is to be no filter.
type Change = fn(Option<&RuleSet>, &str) -> Result<Option<String>, String>;

/// How many changes are under way at a time.
static PLACES: Semaphore = Semaphore::const_new(16);

/// The most elements of a map that are shown.
const MAX_ELEMENTS: usize = 100_000;

/// Changes the rules of a filter.
fn change(context: &Context, args: &[String], change: Change) -> Reply {
    let (port, rules) = (args[0].clone(), args[1..].join(" "));
    let datapath = context.engine.datapath.clone();
    on_a_thread(context, &args[0], move |filters| filters.change(&datapath, &port, |before| change(before, &rules)))
}

/// Sets the program of a filter, or takes it away.
fn load(context: &Context, args: &[String]) -> Reply {
    let (port, mut rest) = (args[0].clone(), args[1..].iter().cloned());
    let program = rest.next().map(|path| desired::IngressProgram { path, name: rest.next() });
    let datapath = context.engine.datapath.clone();
    on_a_thread(context, &args[0], move |filters| filters.load(&datapath, &port, program.as_ref()))
}

/// Changes a filter on a thread of its own: libpcap may ask a name server, and a long expression or a program takes a
/// moment.
fn on_a_thread(
    context: &Context,
    port: &str,
    change: impl FnOnce(&IngressFilters) -> Result<(), String> + Send + 'static,
) -> Reply {
    if let Err(problem) = check(context, port) {
        return Reply::Now(Err(problem));
    }
    let filters = context.engine.ingress.clone();
    Reply::on_thread("ingress-compiler", &PLACES, move || change(&filters).map(|()| String::new()))
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

/// The filters of one port, or all.
fn report(context: &Context, port: Option<&String>) -> Result<IngressReport, String> {
    let mut ports = context.engine.ingress.report();
    ports.retain(|filter| port.is_none_or(|port| filter.name == *port));
    if let Some(port) = port.filter(|_| ports.is_empty()) {
        check(context, port)?;
    }
    Ok(IngressReport { ports })
}

fn map(context: &Context, args: &[String]) -> Outcome {
    Ok(report::text::ingress_elements(&elements(context, args)?))
}

fn map_as_json(context: &Context, args: &[String]) -> Outcome {
    json(&elements(context, args)?)
}

fn unmap(context: &Context, args: &[String]) -> Outcome {
    with_map(context, &args[0], &args[1], |map| {
        map.delete(&text::parse_key(map, &args[2])?, true).map_err(|e| e.to_string())?;
        Ok(String::new())
    })
}

/// What a map holds, or the value of a key, after it was set where there is one to be set.
fn elements(context: &Context, args: &[String]) -> Result<IngressElements, String> {
    with_map(context, &args[0], &args[1], |map| {
        let shown = |(key, value): (Vec<u8>, Vec<u8>)| (text::format_key(map, &key), text::format_value(&value));
        let Some(key) = args.get(2) else {
            let mut elements = map.elements(MAX_ELEMENTS);
            elements.sort();
            return Ok(IngressElements { elements: elements.into_iter().map(shown).collect() });
        };
        let key = text::parse_key(map, key)?;
        if let Some(value) = args.get(3) {
            map.update(&key, &text::parse_value(map, value)?, 0, true).map_err(|e| e.to_string())?;
            return Ok(IngressElements::default());
        }
        let value = map.get(&key).ok_or("there is no such key")?;
        Ok(IngressElements { elements: vec![shown((key, value))] })
    })
}

/// Does something with a map of a port's program.
fn with_map<T>(
    context: &Context,
    port: &str,
    name: &str,
    action: impl FnOnce(&Map) -> Result<T, String>,
) -> Result<T, String> {
    check(context, port)?;
    let filter = context.engine.ingress.get(port);
    let program = filter.as_ref().and_then(|filter| filter.program()).ok_or("the port has no ingress program")?;
    let maps = program.machine().maps();
    let found = maps.iter().find(|map| map.definition().name == name);
    let names = || maps.iter().map(|map| map.definition().name.as_str()).collect::<Vec<_>>().join(", ");
    action(found.ok_or_else(|| format!("the program has no map {name}; its maps: {}", names()))?)
}
