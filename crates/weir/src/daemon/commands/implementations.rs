//! The commands that choose between implementations of one function, of which Weir has one each: `dpif-netdev/dpif-impl-...`,
//! `dpif-netdev/subtable-lookup-...`, `dpif-netdev/miniflow-parser-...`, `odp-execute/action-impl-...`.
//!
//! The one that there is can be chosen, under the name that OVS has for the portable one. `autovalidator` stands for that one,
//! checked against all others: where there are none, it is the same, and only its name is remembered. Names of code for
//! particular processors are unknown here.

use std::cell::Cell;
use std::fmt::Write as _;

use super::{Context, pmd};
use crate::unixctl::Command;
use crate::unixctl::command::Outcome;

/// OVS's module of the lines in the log.
const TARGET: &str = "dpif_netdev";

/// The commands.
pub const COMMANDS: &[Command<Context>] = commands! {
    "dpif-netdev/dpif-impl-get" "" (0, 0) now!(dpif_get), "Which implementation of the datapath the workers use.";
    "dpif-netdev/dpif-impl-set" "dpif_implementation_name" (1, 1) now!(dpif_set),
        "Chooses it; there is one, dpif_scalar.";
    "dpif-netdev/subtable-lookup-info-get" "" (0, 0) now!(lookup_get), "The implementations of a subtable's look-up.";
    "dpif-netdev/subtable-lookup-prio-get" "" (0, 0) now!(lookup_get), "The same.";
    "dpif-netdev/subtable-lookup-prio-set" "[lookup_func] [prio]" (2, 2) now!(lookup_set),
        "Sets the priority of one; there is only one to be chosen.";
    "dpif-netdev/miniflow-parser-get" "" (0, 0) now!(parser_get), "Which implementation of the parser the workers use.";
    "dpif-netdev/miniflow-parser-set" "[-pmd core] name" (0, 5) now!(parser_set), "Chooses it; there is one, scalar.";
    "odp-execute/action-impl-show" "" (0, 0) now!(actions_show), "Which implementation of actions is used.";
    "odp-execute/action-impl-set" "name" (1, 1) now!(actions_set), "Chooses it; there is one.";
};

/// What was chosen.
pub struct Chosen {
    /// Priorities of `autovalidator` and `generic`, as in [`LOOKUPS`].
    lookup_priorities: [Cell<u8>; 2],
    /// The place in [`ACTIONS`].
    actions: Cell<usize>,
}

impl Default for Chosen {
    fn default() -> Chosen {
        Chosen { lookup_priorities: [Cell::new(0), Cell::new(1)], actions: Cell::new(1) }
    }
}

const LOOKUPS: [&str; 2] = ["autovalidator", "generic"];

const ACTIONS: [&str; 2] = ["autovalidator", "scalar"];

/// The cores of the workers, as OVS lists those that use an implementation.
fn cores(context: &Context) -> String {
    let cores: Vec<_> =
        pmd::workers(&context.engine.datapath).iter().map(|worker| pmd::core_of(worker).to_string()).collect();
    cores.join(",")
}

fn dpif_get(context: &Context, _: &[String]) -> Outcome {
    Ok(format!("Available DPIF implementations:\n  dpif_scalar (pmds: {})\n", cores(context)))
}

fn dpif_set(_: &Context, args: &[String]) -> Outcome {
    let name = &args[0];
    if name != "dpif_scalar" {
        let problem = format!("DPIF implementation not available: Unknown DPIF implementation {name}.\n");
        tracing::error!(target: TARGET, "{}", problem.trim_end());
        return Err(problem);
    }
    let done = format!("DPIF implementation set to {name}.\n");
    tracing::info!(target: TARGET, "{}", done.trim_end());
    Ok(done)
}

fn lookup_get(context: &Context, _: &[String]) -> Outcome {
    let mut text = String::from("Available dpcls implementations:\n");
    // All subtables use the one that there is, wherever its priority is.
    let counts = [0, context.engine.datapath.stats().masks];
    for ((name, priority), count) in LOOKUPS.iter().zip(&context.chosen.lookup_priorities).zip(counts) {
        let _ = writeln!(text, "  {name} (Use count: {count}, Priority: {})", priority.get());
    }
    Ok(text)
}

fn lookup_set(context: &Context, args: &[String]) -> Outcome {
    let priority = args[1].parse().map_err(|_| "error converting priority, use integer in range 0-255\n")?;
    let at = LOOKUPS.iter().position(|name| *name == args[0]);
    let at = at.ok_or("error, subtable lookup function not found\n")?;
    context.chosen.lookup_priorities[at].set(priority);
    Ok("Lookup priority change affected 0 dpcls ports and 0 subtables.\n".into())
}

fn parser_get(context: &Context, _: &[String]) -> Outcome {
    Ok(format!("Available MFEX implementations:\n  scalar (available: True pmds: {})\n", cores(context)))
}

fn parser_set(context: &Context, args: &[String]) -> Outcome {
    let set = parser_choice(args).and_then(|core| match core {
        Some(core) if !pmd::workers(&context.engine.datapath).iter().any(|worker| pmd::core_of(worker) == core) => Err(format!(
            "Error: miniflow extract parser not changed, PMD thread {core} not in use, pass a valid pmd thread ID.\n"
        )),
        Some(core) => Ok(format!("Miniflow extract implementation set to scalar, on pmd thread {core}.\n")),
        None => Ok("Miniflow extract implementation set to scalar.\n".into()),
    });
    match &set {
        Ok(done) => tracing::info!(target: TARGET, "{}", done.trim_end()),
        Err(problem) => tracing::error!(target: TARGET, "{}", problem.trim_end()),
    }
    set
}

/// Parses `[-pmd CORE] scalar`. Returns the core.
fn parser_choice(args: &[String]) -> Result<Option<usize>, String> {
    let (core, rest) = match args {
        [option, rest @ ..] if option == "-pmd" => {
            let [core, rest @ ..] = rest else {
                return Err("Error: -pmd option requires a thread id argument.\n".into());
            };
            let number: u32 = core.parse().map_err(|_| {
                format!(
                    "Error: miniflow extract parser not changed, PMD thread passed is not valid: '{core}'. Pass a valid \
                     pmd thread ID.\n"
                )
            })?;
            (Some(number as usize), rest)
        }
        rest => (None, rest),
    };
    match rest {
        [] => {
            Err("Error: no miniflow extract name provided. Output of miniflow-parser-get shows implementation list.\n"
                .into())
        }
        [name] if name == "scalar" => Ok(core),
        [name, unknown, ..] if name == "scalar" => Err(format!("Error: unknown argument {unknown}.\n")),
        [name, ..] => Err(format!("Error: unknown miniflow extract implementation {name}.")),
    }
}

fn actions_show(context: &Context, _: &[String]) -> Outcome {
    let mut text = String::from("Available Actions implementations:\n");
    for (at, name) in ACTIONS.iter().enumerate() {
        let active = if context.chosen.actions.get() == at { "Yes" } else { "No" };
        let _ = writeln!(text, "  {name} (available: Yes, active: {active})");
    }
    Ok(text)
}

fn actions_set(context: &Context, args: &[String]) -> Outcome {
    let name = &args[0];
    let Some(at) = ACTIONS.iter().position(|known| known == name) else {
        tracing::error!(target: "odp_execute", "Failed setting action implementation to {name}");
        return Err(format!("Error: unknown action implementation, {name}, specified!"));
    };
    if context.chosen.actions.replace(at) != at {
        tracing::info!(target: "odp_execute_impl", "Action implementation set to {name}");
    }
    Ok(format!("Action implementation set to {name}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_that_there_is_can_be_chosen() {
        let choice = |args: &[&str]| parser_choice(&args.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(choice(&["scalar"]), Ok(None));
        assert_eq!(choice(&["-pmd", "3", "scalar"]), Ok(Some(3)));
        for (bad, problem) in [
            (&[][..], "no miniflow extract name"),
            (&["-pmd"], "requires a thread id"),
            (&["-pmd", "zero", "scalar"], "not valid: 'zero'"),
            (&["-pmd", "1"], "no miniflow extract name"),
            (&["scalar", "1"], "unknown argument 1"),
            (&["study"], "unknown miniflow extract implementation study"),
        ] {
            let got = choice(bad).unwrap_err();
            assert!(got.contains(problem), "{bad:?}: {got}");
        }
    }
}
