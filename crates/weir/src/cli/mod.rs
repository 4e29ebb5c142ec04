//! The command line: parses it and does what it says.
//!
//! - [`args`]: the commands and their options
//! - [`diff`]: `weir diff`
//! - [`doctor`]: `weir doctor`
//! - [`drops`]: `weir drops`
//! - [`extcap`]: `weir extcap`, for Wireshark
//! - [`manual`]: `weir manual`, the manual pages
//! - [`run`]: `weir run`, the daemon with its configuration in a file
//! - [`stats`]: `weir stats --interval`
//! - [`tap`]: `weir tap`
//! - [`top`]: `weir top`
//! - [`vswitchd`]: `weir vswitchd`, the daemon in the place of ovs-vswitchd

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::config::{self, check};
use crate::daemon;
use crate::explain::{self, capture};
use crate::printable::printable_lines;
use crate::report::{self, Flows, IngressElements, IngressReport, Ports, Show, Stats};
use crate::rundir::{self, Rundir};
use crate::source::toml;
use crate::unixctl::{Client, client};

pub mod args;
mod diff;
mod doctor;
mod drops;
mod extcap;
mod manual;
pub mod run;
mod stats;
mod tap;
mod top;
pub mod vswitchd;
use args::{Args, CliCommand, IngressCommand};

/// Does what the command line says. Exit status: 0 ok, 1 failure, 2 usage (which clap sees to).
pub fn main() -> ExitCode {
    let status = run_command();
    crate::vlog::flush();
    status
}

fn run_command() -> ExitCode {
    match vswitchd_arguments(std::env::args_os()) {
        Some(Ok(arguments)) => return vswitchd::main(&arguments),
        Some(Err(argument)) => {
            eprintln!("{}: the argument {argument:?} is not UTF-8", vswitchd::PROGRAM);
            return ExitCode::FAILURE;
        }
        None => {}
    }
    let args = match Args::try_parse_from(extcap::with_command(std::env::args_os().collect())) {
        Ok(args) => args,
        Err(said) => return say(&said),
    };
    // As diff(1): 1 says that there is a difference.
    let failure = if matches!(args.command, CliCommand::Diff { .. }) { ExitCode::from(2) } else { ExitCode::FAILURE };
    match dispatch(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Differs) => ExitCode::FAILURE,
        Err(e) => {
            // The words may be others'.
            eprintln!("{}", printable_lines(e.to_string().trim_end()));
            failure
        }
    }
}

/// The arguments for ovs-vswitchd, if that is what the program was started as: by this name, or with the
/// command `vswitchd`. They are in the syntax of ovs-vswitchd(8), which is not that of the other commands.
/// An error is one that is no text: with anything in its place, a file would get another name.
fn vswitchd_arguments(mut arguments: impl Iterator<Item = OsString>) -> Option<Result<Vec<String>, OsString>> {
    let program = arguments.next()?;
    let by_name = Path::new(&program).file_name().is_some_and(|name| name == vswitchd::PROGRAM);
    (by_name || arguments.next()? == "vswitchd").then(|| arguments.map(OsString::into_string).collect())
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("weir: {0}")]
    Rundir(#[from] rundir::Error),
    #[error("weir: {0}")]
    Client(#[from] client::Error),
    #[error("weir: the daemon's answer is not what this version of weir expects: {0}")]
    Answer(#[from] serde_json::Error),
    #[error(transparent)]
    Config(#[from] config::ConfigErrors),
    #[error("weir: {0}")]
    Daemon(#[from] daemon::Error),
    #[error("weir: vswitchd comes first: weir vswitchd [OPTIONS] [DATABASE]")]
    VswitchdNotFirst,
    #[error(
        "weir: a capture file is not written to a terminal; name a file or use a pipe: weir tap -w - | tshark -r -"
    )]
    CaptureOnTerminal,
    #[error("weir: cannot write the capture file {file}: {source}", file = .file.display())]
    CaptureFile { file: PathBuf, source: std::io::Error },
    #[error("weir: {0}")]
    Top(#[from] crate::top::source::Error),
    #[error(
        "weir: weir top needs a terminal; one measurement is printed by weir top --once, as JSON by weir --json top --once"
    )]
    NoTerminal,
    #[error("weir: --extcap-interface is missing; --extcap-interfaces lists the interfaces")]
    NoInterface,
    #[error("weir: {0}: no such interface; --extcap-interfaces lists them")]
    UnknownInterface(String),
    #[error("weir: --capture needs --fifo, the pipe to write to")]
    NoPipe,
    #[error("weir: nothing is asked; Wireshark gives --extcap-dlts, --extcap-config or --capture (docs/tap.md)")]
    NothingAsked,
    #[error("weir: {0}")]
    Capture(#[from] capture::Error),
    #[error("weir: {}: the name of the file is not UTF-8", .0.display())]
    NotUtf8(PathBuf),
    #[error("packets would be treated otherwise")]
    Differs,
    #[error("weir: something does not work; what to mend comes first above")]
    Unready,
    #[error("weir: cannot write: {0}")]
    Write(#[from] std::io::Error),
}

fn dispatch(args: Args) -> Result<(), Error> {
    let daemon = RunningDaemon { rundir: Rundir::choose(args.rundir), socket: args.socket, json: args.json };
    match args.command {
        CliCommand::Run { config, log } => Ok(run::run(config, daemon.rundir, &log)?),
        CliCommand::Vswitchd { .. } => Err(Error::VswitchdNotFirst),
        CliCommand::Show => daemon.report("weir/show", &[], |r: &Show| report::text::show(r)),
        CliCommand::Flows { bridge, table, openflow_only, datapath_only } => {
            daemon.report("weir/flows", &flows_arguments(bridge, table, openflow_only, datapath_only), |r: &Flows| {
                report::text::flows(r)
            })
        }
        CliCommand::Stats { interval: None, .. } => {
            daemon.report("weir/stats", &[], |r: &Stats| report::text::stats(r))
        }
        CliCommand::Stats { interval: Some(interval), count } => stats::watch(&daemon, interval, count),
        CliCommand::Ports => daemon.report("weir/ports", &[], |r: &Ports| report::text::ports(r)),
        CliCommand::Metrics => daemon.ctl("weir/metrics", &[]),
        CliCommand::Drops { port, by, watch, interval } => {
            let by = drops::by(&by);
            let watch = watch.then(|| Duration::from_secs(interval));
            drops::show(&daemon, port.as_deref(), by, watch)
        }
        CliCommand::Top { interval, once, rows } => top::show(daemon, interval, once.then_some(rows.into())),
        CliCommand::Tap(options) => tap::run(&daemon, &options),
        CliCommand::Extcap(options) => extcap::run(&daemon, &options),
        CliCommand::Trace { bridge, flow, packet, generate, names, ct_next } => {
            let mut arguments = vec![bridge, flow];
            arguments.extend(packet);
            arguments.extend(generate.then(|| "-generate".to_string()));
            arguments.extend(names.then(|| "--names".to_string()));
            ct_next.into_iter().for_each(|state| arguments.extend(["--ct-next".to_string(), state]));
            daemon.show(&daemon.call("weir/trace", &arguments)?, report::trace::trace).map(drop)
        }
        CliCommand::Explain { mut words, port, ct_next } => {
            let found = match words.last_mut() {
                Some(packet) => capture::resolve(packet)?,
                None => None,
            };
            let port = port.or(found).map(|port| format!("--port={port}"));
            let states = ct_next.into_iter().map(|state| format!("--ct-next={state}"));
            let arguments: Vec<_> = port.into_iter().chain(states).chain(words).collect();
            daemon.report("weir/explain", &arguments, explain::text::text)
        }
        CliCommand::Diff { bridge, flows, expect, replace, commit, most, interval } => {
            let mut arguments = vec![bridge, format!("--most={most}"), format!("--interval={interval}")];
            let flags = [(replace, "--replace"), (commit, "--commit")];
            arguments.extend(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_string()));
            diff::run(&daemon, arguments, [("--flows", flows.as_deref()), ("--expect", expect.as_deref())])
        }
        CliCommand::Ingress { port, command, rules } => daemon.ingress(port, command, rules),
        CliCommand::Reload => daemon.ctl("reload", &[]),
        CliCommand::Check { config } => check(&config, args.json),
        CliCommand::Doctor { interval } => doctor::run(daemon, interval),
        CliCommand::Ctl { name, args } => daemon.ctl(&name, &args),
        CliCommand::Version => version(args.json),
        CliCommand::Manual { directory } => Ok(manual::write(&directory)?),
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "weir", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}

/// The control socket of the daemon: the one that is given, or that of `weir run`, or that of a daemon in the place of ovs-vswitchd.
fn control_socket(rundir: &Rundir, given: Option<&Path>) -> Result<PathBuf, rundir::Error> {
    if let Some(socket) = given {
        return Ok(socket.to_owned());
    }
    // Where there is neither, the error is about the first.
    rundir
        .running_control_socket(run::PROGRAM)
        .or_else(|e| rundir.running_control_socket(vswitchd::PROGRAM).map_err(|_| e))
}

fn flows_arguments(bridge: Option<String>, table: Option<u8>, openflow: bool, datapath: bool) -> Vec<String> {
    let mut arguments = Vec::new();
    arguments.extend(bridge.map(|b| format!("bridge={b}")));
    arguments.extend(table.map(|t| format!("table={t}")));
    arguments.extend(openflow.then(|| "openflow-only".to_string()));
    arguments.extend(datapath.then(|| "datapath-only".to_string()));
    arguments
}

/// The daemon that commands are sent to.
struct RunningDaemon {
    rundir: Rundir,
    socket: Option<PathBuf>,
    json: bool,
}

impl RunningDaemon {
    fn call(&self, command: &str, arguments: &[String]) -> Result<String, Error> {
        Ok(Client::connect(&self.socket()?)?.call(command, arguments)?)
    }

    /// Its control socket: of `weir run`, or where that does not run, of the daemon in the place of ovs-vswitchd.
    fn socket(&self) -> Result<PathBuf, Error> {
        Ok(control_socket(&self.rundir, self.socket.as_deref())?)
    }

    /// Asks for a report and prints it, as JSON or by `render`.
    fn report<T: DeserializeOwned>(
        &self,
        command: &str,
        arguments: &[String],
        render: impl Fn(&T) -> String,
    ) -> Result<(), Error> {
        self.show(&self.call(command, arguments)?, |report| shown(&render(report)).into_owned()).map(drop)
    }

    /// Prints an answer, as JSON or by `render`, which makes text for the terminal, and returns what it says.
    fn show<T: DeserializeOwned>(&self, answer: &str, render: impl Fn(&T) -> String) -> Result<T, Error> {
        let report = serde_json::from_str(answer)?;
        if self.json {
            print(&serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(answer)?)?)?;
        } else {
            print_on(&render(&report))?;
        }
        Ok(report)
    }

    /// Shows or changes the ingress filter of a port.
    fn ingress(&self, port: String, command: IngressCommand, rules: Vec<String>) -> Result<(), Error> {
        let mut arguments = vec![port];
        arguments.extend(rules);
        if let (IngressCommand::Load, Some(path)) = (command, arguments.get_mut(1)) {
            // The daemon has another working directory.
            if let Some(absolute) =
                std::path::absolute(&*path).ok().and_then(|path| path.into_os_string().into_string().ok())
            {
                *path = absolute;
            }
        }
        match command {
            IngressCommand::Add => self.ctl("ingress/add", &arguments),
            IngressCommand::Set => self.ctl("ingress/set", &arguments),
            IngressCommand::Del => self.ctl("ingress/del", &arguments),
            IngressCommand::Load => self.ctl("ingress/load", &arguments),
            IngressCommand::Unload => self.ctl("ingress/unload", &arguments),
            IngressCommand::Unmap => self.ctl("ingress/unmap", &arguments),
            IngressCommand::Map => {
                let shown = |r: &IngressElements| report::text::ingress_elements(r);
                self.report("weir/ingress-map", &arguments, shown)
            }
            IngressCommand::Show => {
                self.report("weir/ingress", &arguments, |r: &IngressReport| report::text::ingress(r))
            }
            IngressCommand::Stats => {
                self.report("weir/ingress", &arguments, |r: &IngressReport| report::text::ingress_stats(r))
            }
        }
    }

    /// Runs any command and prints its answer as it is.
    fn ctl(&self, command: &str, arguments: &[String]) -> Result<(), Error> {
        let answer = self.call(command, arguments)?;
        if self.json { print(&json!({ "result": answer }).to_string()) } else { print(&answer) }
    }
}

fn check(config: &Path, json: bool) -> Result<(), Error> {
    let loaded = toml::load(config)?;
    let problems = check::environment(&loaded);
    if !problems.0.is_empty() {
        return Err(problems.into());
    }
    if json { print(&serde_json::to_string_pretty(&loaded.desired)?) } else { print("no mistakes found") }
}

fn version(json: bool) -> Result<(), Error> {
    let version = env!("CARGO_PKG_VERSION");
    if json { print(&json!({ "version": version }).to_string()) } else { print(&format!("weir {version}")) }
}

/// Text for standard output: names and words of others command no terminal.
fn shown(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { printable_lines(text).into() } else { text.into() }
}

/// Says what is wrong with the command line, or what was asked for about it (`--help`, `--version`).
fn say(said: &clap::Error) -> ExitCode {
    match said.print() {
        Err(e) if !said.use_stderr() && e.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("weir: cannot write: {e}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2)),
    }
}

/// Prints text with a line feed at its end. A reader that has seen enough (`weir flows | head`) is no
/// failure.
fn print(text: &str) -> Result<(), Error> {
    print_on(&shown(text)).map(drop)
}

/// Prints text as it is, and returns whether there is still a reader.
fn print_on(text: &str) -> Result<bool, Error> {
    let mut out = std::io::stdout().lock();
    let feed = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    match write!(out, "{text}{feed}").and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        outcome => Ok(outcome.map(|()| true)?),
    }
}
