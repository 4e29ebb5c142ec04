//! `vlog/...`: what is logged where, as in OVS. Daemons have these commands from their first moment.

use std::fmt::Write as _;

use crate::unixctl::Command;
use crate::unixctl::command::{Outcome, Reply, Run};
use crate::vlog::{Destination, LogChange, Logger, Module};

/// A context that commands can change the logging of.
pub trait Logs {
    /// What is logged where.
    fn log(&self) -> &Logger;
}

/// The commands.
pub const fn commands<C: Logs>() -> [Command<C>; 7] {
    const ANY: usize = usize::MAX;
    [
        Command {
            name: "vlog/set",
            usage: "{spec | PATTERN:destination:pattern}",
            args: (0, ANY),
            help: "Sets levels as [MODULE][:DESTINATION][:LEVEL], or the form of lines.",
            run: Run::Quick(|context, args| Reply::Now(set(context.log(), args))),
        },
        Command {
            name: "vlog/list",
            usage: "",
            args: (0, 0),
            help: "Lists the modules with their level for each destination.",
            run: Run::Quick(|context, _| Reply::Now(Ok(list(context.log())))),
        },
        Command {
            name: "vlog/list-pattern",
            usage: "",
            args: (0, 0),
            help: "Lists the form of lines for each destination.",
            run: Run::Quick(|context, _| Reply::Now(Ok(list_patterns(context.log())))),
        },
        Command {
            name: "vlog/enable-rate-limit",
            usage: "[module]...",
            args: (0, ANY),
            help: "Limits the warnings of modules, or of all.",
            run: Run::Quick(|context, args| Reply::Now(set_limited(context.log(), args, true))),
        },
        Command {
            name: "vlog/disable-rate-limit",
            usage: "[module]...",
            args: (0, ANY),
            help: "Limits the warnings of modules, or of all, no longer.",
            run: Run::Quick(|context, args| Reply::Now(set_limited(context.log(), args, false))),
        },
        Command {
            name: "vlog/reopen",
            usage: "",
            args: (0, 0),
            help: "Opens the log file anew, after it was renamed.",
            run: Run::Quick(|context, _| Reply::Now(reopen(context.log()))),
        },
        Command {
            name: "vlog/close",
            usage: "",
            args: (0, 0),
            help: "Closes the log file, until vlog/reopen.",
            run: Run::Quick(|context, _| {
                context.log().close();
                Reply::Now(Ok(String::new()))
            }),
        },
    ]
}

/// The changes before one with a mistake are made.
fn set(log: &Logger, args: &[String]) -> Outcome {
    if args.is_empty() {
        log.apply(&LogChange::ALL);
    }
    for spec in args {
        log.apply(&LogChange::parse(spec).map_err(|e| e.to_string())?);
    }
    Ok(String::new())
}

fn list(log: &Logger) -> String {
    let mut text = format!("{:17}console    syslog    file\n{:17}-------    ------    ------\n", "", "");
    for module in Module::all() {
        let level = |to| log.level(module, to).name();
        let levels = [Destination::Console, Destination::Syslog, Destination::File].map(level);
        let note = if log.is_limited(module) { "" } else { "    (rate limiting disabled)" };
        let [console, syslog, file] = levels;
        let _ = writeln!(text, "{:<16}  {console:>4}       {syslog:>4}       {file:>4}{note}", module.name());
    }
    text
}

fn list_patterns(log: &Logger) -> String {
    let mut text = format!("{:9}{:<32}  format\n{:9}{:<32}  ------\n", "", "prefix", "", "------");
    for (destination, prefix, pattern) in log.patterns() {
        let _ = writeln!(text, "{:<7}  {prefix:<32}  {pattern}", destination.name());
    }
    text
}

fn set_limited(log: &Logger, args: &[String], limited: bool) -> Outcome {
    let all = |log: &Logger| Module::all().for_each(|module| log.set_limited(module, limited));
    if args.is_empty() {
        all(log);
    }
    for name in args {
        match Module::find(name) {
            Some(module) => log.set_limited(module, limited),
            None if name.eq_ignore_ascii_case("ANY") => all(log),
            None => return Err("unknown module".into()),
        }
    }
    Ok(String::new())
}

fn reopen(log: &Logger) -> Outcome {
    if log.file_path().is_none() {
        return Err("Logging to file not configured".into());
    }
    log.reopen().map(|()| String::new()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vlog::sink::Method;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn line(log: &Logger, name: &str) -> String {
        list(log).lines().find(|l| l.split(' ').next() == Some(name)).unwrap().to_owned()
    }

    #[test]
    fn levels_are_listed_as_ovs_lists_them() {
        let log = Logger::new("test", Method::Libc);
        set(&log, &words("bridge:file:dbg syslog:err console:off")).unwrap();
        set_limited(&log, &words("bridge"), false).unwrap();
        assert!(
            list(&log).starts_with(
                "                 console    syslog    file\n                 -------    ------    ------\n"
            )
        );
        assert_eq!(line(&log, "bridge"), "bridge             OFF        ERR        DBG    (rate limiting disabled)");
        assert_eq!(line(&log, "netdev_offload_tc"), "netdev_offload_tc   OFF        ERR       INFO");
        set_limited(&log, &[], true).unwrap();
        assert!(line(&log, "bridge").ends_with("DBG"));
    }

    #[test]
    fn a_mistake_ends_the_changes() {
        let log = Logger::new("test", Method::Libc);
        assert_eq!(
            set(&log, &words("vconn:warn foo bridge:off")),
            Err("no destination, level, or module \"foo\"".into())
        );
        assert!(line(&log, "vconn").contains("WARN") && line(&log, "bridge").contains("INFO"));
        set(&log, &[]).unwrap();
        assert_eq!(line(&log, "bridge").matches("DBG").count(), 3);
        assert_eq!(set_limited(&log, &words("nonsense"), true), Err("unknown module".into()));
        assert_eq!(reopen(&log), Err("Logging to file not configured".into()));
    }

    #[test]
    fn patterns_are_listed_as_ovs_lists_them() {
        let log = Logger::new("test", Method::Libc);
        set(&log, &["PATTERN:file:%c %m".into()]).unwrap();
        let text = list_patterns(&log);
        let expected = "SYSLOG   <%B> %D{%h %e %T} %E %A:          ovs|%05N|%c%T|%p|%m";
        assert_eq!(text.lines().nth(2), Some(expected));
        assert_eq!(text.lines().nth(4), Some("FILE     none                              %c %m"));
    }
}
