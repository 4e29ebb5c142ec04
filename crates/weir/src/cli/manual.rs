//! `weir manual`: the manual pages, made from what is declared.
//!
//! - weir(1), and a page for each command such as weir-tap(1): [`args`](super::args)
//! - weir-vswitchd(8): [`vswitchd::options`](super::vswitchd::options)
//! - weir.toml(5): [`settings`](crate::source::toml::settings)

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::args::Args;
use super::vswitchd::options;
use crate::source::toml::settings::{Setting, TABLES};

/// A page: its section, its name, and its text in the language of man(7).
struct Page {
    section: u8,
    name: String,
    text: Vec<u8>,
}

/// Writes all pages below a directory, as `man1/weir-tap.1`.
pub fn write(directory: &Path) -> io::Result<()> {
    for Page { section, name, text } in pages()? {
        let directory = directory.join(format!("man{section}"));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join(format!("{name}.{section}")), text)?;
    }
    Ok(())
}

fn pages() -> io::Result<Vec<Page>> {
    let mut program = Args::command().disable_help_subcommand(true);
    program.build();
    let commands: Vec<Command> = program.get_subcommands().filter(|c| documented(c)).cloned().collect();
    let mut pages = vec![
        Page { section: 1, name: "weir".into(), text: of_program(program)? },
        Page { section: 5, name: "weir.toml".into(), text: of_settings() },
        Page { section: 8, name: DAEMON.into(), text: of_daemon() },
    ];
    for command in commands {
        pages.push(Page { section: 1, name: format!("weir-{}", command.get_name()), text: of_command(command)? });
    }
    Ok(pages)
}

/// The page of `weir vswitchd`, whose options are declared elsewhere.
const DAEMON: &str = "weir-vswitchd";

/// Whether a command has a page of section 1.
fn documented(command: &Command) -> bool {
    !command.is_hide_set() && format!("weir-{}", command.get_name()) != DAEMON
}

fn of_program(command: Command) -> io::Result<Vec<u8>> {
    let mut page = begin(&command)?;
    let mut commands = Vec::new();
    Man::new(command.clone()).render_subcommands_section(&mut commands)?;
    let commands = String::from_utf8_lossy(&commands).replace("weir\\-vswitchd(1)", "weir\\-vswitchd(8)");
    page.extend_from_slice(commands.as_bytes());
    let mut rest = examples(&command);
    rest.control("SH", ["FILES"]);
    for (file, what) in [
        ("/var/run/openvswitch/weir.pid", "The pidfile of \"weir run\", by which the other commands find it."),
        ("/var/run/openvswitch/weir.PID.ctl", "Its control socket."),
        ("/var/run/openvswitch/BRIDGE.mgmt", "Where ovs-ofctl(8) finds a bridge."),
        ("/etc/weir/weir.toml", "The configuration that the unit weir.service runs."),
    ] {
        rest.control("TP", []).text([italic(file)]).text([roman(what)]);
    }
    see_also(&mut rest, &["weir.toml(5)", "weir-vswitchd(8)", "ovs-vsctl(8)", "ovs-ofctl(8)", "ovs-appctl(8)"]);
    page.extend_from_slice(rest.render().as_bytes());
    Ok(page)
}

fn of_command(command: Command) -> io::Result<Vec<u8>> {
    let mut page = begin(&command)?;
    let mut rest = examples(&command);
    see_also(&mut rest, &["weir(1)", "weir.toml(5)", "ovs-appctl(8)"]);
    page.extend_from_slice(rest.render().as_bytes());
    Ok(page)
}

/// What all pages of commands begin with: name, synopsis, description, options.
fn begin(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).date(NO_DATE).source(source()).manual("Weir Manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    Ok(page)
}

/// No date, so that the same sources make the same pages. The crate roff writes arguments of macros as they are: an empty one
/// would let the next one take its place.
const NO_DATE: &str = "\"\"";

fn source() -> String {
    format!("Weir {}", env!("CARGO_PKG_VERSION"))
}

/// The examples that the help ends with, line by line as they are.
fn examples(command: &Command) -> Roff {
    let mut page = Roff::new();
    let Some(text) = command.get_after_help().map(ToString::to_string) else { return page };
    page.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in text.lines().filter(|line| line.starts_with(' ')) {
        page.text([roman(line.trim_start())]);
    }
    page.control("fi", []);
    page
}

fn see_also(page: &mut Roff, pages: &[&str]) {
    page.control("SH", ["SEE ALSO"]);
    let mut words: Vec<Inline> = Vec::new();
    for (i, name) in pages.iter().enumerate() {
        let (name, section) = name.split_at(name.find('(').unwrap_or(name.len()));
        words.extend([bold(name), roman(format!("{section}{}", if i + 1 < pages.len() { ", " } else { "" }))]);
    }
    page.text(words);
}

/// The beginning of a page that is not clap's.
fn page(name: &str, section: &str, what: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", [name, section, NO_DATE, source().as_str(), "Weir Manual"]);
    page.control("SH", ["NAME"]).text([roman(format!("{name} - {what}"))]);
    page
}

fn of_daemon() -> Vec<u8> {
    let mut page = page(DAEMON, "8", "the virtual switch in the place of ovs-vswitchd");
    page.control("SH", ["SYNOPSIS"]);
    page.text([bold("weir vswitchd"), roman(" ["), italic("OPTIONS"), roman("] ["), italic("DATABASE"), roman("]")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "Forwards packets in user space, with the configuration in an OVSDB server, as ovs-vswitchd(8) does. A program file or \
         link called ovs-vswitchd does the same without the first argument.",
    )]);
    page.control("PP", []).text([
        italic("DATABASE"),
        roman(
            " is where the server listens: unix:FILE, tcp:HOST:PORT or ssl:HOST:PORT; by default unix:RUNDIR/db.sock.",
        ),
    ]);
    page.control("SH", ["OPTIONS"]);
    for option in options::listed() {
        let mut names = Vec::new();
        if let Some(short) = option.short {
            names.extend([bold(format!("-{short}")), roman(", ")]);
        }
        names.push(bold(option.long));
        page.control("TP", []).text(names).text([roman(sentence(option.help))]);
    }
    page.control("SH", ["ENVIRONMENT"]);
    for (name, what) in [
        ("OVS_RUNDIR", "Where sockets and pidfiles are, by default /var/run/openvswitch."),
        ("OVS_LOGDIR", "Where log files are, by default /var/log/openvswitch."),
    ] {
        page.control("TP", []).text([bold(name)]).text([roman(what)]);
    }
    let others =
        ["weir(1)", "ovs-vswitchd(8)", "ovs-vswitchd.conf.db(5)", "ovsdb-server(1)", "ovs-vsctl(8)", "ovs-ctl(8)"];
    see_also(&mut page, &others);
    page.render().into_bytes()
}

/// A line of help as a sentence.
fn sentence(help: &str) -> String {
    let mut letters = help.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

fn of_settings() -> Vec<u8> {
    let mut page = page("weir.toml", "5", "the configuration of weir run");
    page.control("SH", ["DESCRIPTION"]).text([
        roman("A TOML file that "),
        bold("weir run"),
        roman(" reads at its start and "),
        bold("weir reload"),
        roman(" reads again: only what changed is applied. "),
        bold("weir check"),
        roman(" says what is wrong with it, and where. The underscore may stand for the hyphen in keys."),
    ]);
    page.control("SH", ["EXAMPLE"]).control("nf", []);
    for line in include_str!("../../../../examples/demo.toml").lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.control("SH", ["TABLES"]);
    for table in TABLES {
        page.control("SS", [if table.header.is_empty() { "The daemon" } else { table.header }])
            .text([roman(table.help)]);
        for setting in table.settings {
            of_setting(&mut page, setting);
        }
    }
    see_also(&mut page, &["weir(1)", "weir-run(1)", "weir-check(1)", "ovs-ofctl(8)", "ovs-vswitchd.conf.db(5)"]);
    page.render().into_bytes()
}

fn of_setting(page: &mut Roff, Setting { key, takes, default, help }: &Setting) {
    page.control("TP", []).text([bold(*key), roman(" = "), italic(*takes)]);
    let default = if default.is_empty() { String::new() } else { format!(" By default {default}.") };
    page.text([roman(format!("{help}{default}"))]);
}
