//! `weir extcap`: Weir's ports as interfaces in Wireshark, by what it asks of programs in its folder `extcap`.
//!
//! Wireshark asks which interfaces there are, what frames they have and what can be set, and then has packets written to a pipe. It is
//! Wireshark's manual (doc/extcap.adoc there) that says how.

use std::ffi::OsString;
use std::fmt::Write as _;

use super::args::ExtcapOptions;
use super::{Error, RunningDaemon, print, tap};
use crate::report::Ports;

/// The interface that stands for all ports; those of single ports begin with it and a hyphen.
const ALL_PORTS: &str = "weir";

/// What all of Wireshark's options begin with.
const OPTION: &str = "--extcap-";

/// Puts the name of the command where Wireshark has started the program by a link, which gives it nothing but options.
pub fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let starts_with = |argument: &OsString, prefix| argument.to_str().is_some_and(|text| text.starts_with(prefix));
    let has_no_command = arguments.get(1).is_some_and(|first| starts_with(first, "--"));
    if has_no_command && arguments.iter().any(|argument| starts_with(argument, OPTION)) {
        arguments.insert(1, "extcap".into());
    }
    arguments
}

/// Answers what Wireshark asks.
pub(super) fn run(daemon: &RunningDaemon, options: &ExtcapOptions) -> Result<(), Error> {
    if options.extcap_interfaces {
        return print(&interfaces(&ports(daemon)));
    }
    let Some(interface) = &options.extcap_interface else { return Err(Error::NoInterface) };
    if options.extcap_dlts {
        return print("dlt {number=1}{name=EN10MB}{display=Ethernet}");
    }
    if options.extcap_config {
        return print(CONFIG);
    }
    let port = match interface.strip_prefix(ALL_PORTS) {
        Some("") => None,
        Some(rest) if let Some(port) = rest.strip_prefix('-') => Some(port),
        _ => return Err(Error::UnknownInterface(interface.clone())),
    };
    let arguments = arguments(options, port);
    match (&options.fifo, options.capture) {
        (Some(pipe), true) => tap::capture(daemon, &arguments, pipe.clone()),
        (None, true) => Err(Error::NoPipe),
        // What is wrong with the filter is an answer, and no failure.
        (_, false) if options.extcap_capture_filter.is_some() => {
            let arguments: Vec<_> = std::iter::once("--check".to_owned()).chain(arguments).collect();
            print(&daemon.call("weir/tap", &arguments).map_or_else(|error| error.to_string(), |_| String::new()))
        }
        (_, false) => Err(Error::NothingAsked),
    }
}

/// The arguments of `weir/tap`.
fn arguments(options: &ExtcapOptions, port: Option<&str>) -> Vec<String> {
    let mut arguments = vec!["--format=pcapng".to_owned(), format!("--{}", options.direction.name())];
    arguments.extend(port.map(|port| format!("--port={port}")));
    arguments.extend(options.drops.then(|| "--drops".to_owned()));
    arguments.extend(options.snaplen.map(|bytes| format!("--snaplen={bytes}")));
    arguments.extend(options.rate.map(|rate| format!("--rate={rate}")));
    let filter = options.extcap_capture_filter.as_ref().filter(|filter| !filter.trim().is_empty());
    arguments.extend(filter.map(|filter| format!("--filter={filter}")));
    arguments
}

/// The names of the ports; none where no daemon answers, or not to this user.
fn ports(daemon: &RunningDaemon) -> Vec<String> {
    let answer = daemon.call("weir/ports", &[]).ok();
    let ports: Option<Ports> = answer.and_then(|answer| serde_json::from_str(&answer).ok());
    ports.map(|ports| ports.ports.into_iter().map(|port| port.name).collect()).unwrap_or_default()
}

fn interfaces(ports: &[String]) -> String {
    let mut text = format!("extcap {{version={}}}{{display=Weir}}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "interface {{value={ALL_PORTS}}}{{display=Weir: all ports, with verdicts}}");
    // Braces would end the value.
    for port in ports.iter().filter(|port| !port.contains(['{', '}'])) {
        let _ = writeln!(text, "interface {{value={ALL_PORTS}-{port}}}{{display=Weir: port {port}, with verdicts}}");
    }
    text
}

/// What can be set, in Wireshark's words.
const CONFIG: &str = "\
arg {number=0}{call=--drops}{display=Only dropped packets}{type=boolflag}{default=false}
arg {number=1}{call=--direction}{display=Direction}{type=selector}
value {arg=1}{value=both}{display=In and out}{default=true}
value {arg=1}{value=rx}{display=In}{default=false}
value {arg=1}{value=tx}{display=Out}{default=false}
arg {number=2}{call=--snaplen}{display=Snap length}{type=unsigned}{range=14,262144}{default=262144}{tooltip=Most bytes of a frame}
arg {number=3}{call=--rate}{display=Rate}{type=unsigned}{range=0,4294967295}{default=0}{tooltip=Most packets in a second; 0 for all}
";

#[cfg(test)]
mod tests {
    use super::*;

    fn command(arguments: &[&str]) -> Vec<OsString> {
        with_command(arguments.iter().map(OsString::from).collect())
    }

    #[test]
    fn wireshark_need_not_name_the_command() {
        assert_eq!(command(&["weir", "--extcap-interfaces"])[1], "extcap");
        assert_eq!(command(&["weir", "--capture", "--extcap-interface", "weir"])[1], "extcap");
        assert_eq!(command(&["weir", "extcap", "--extcap-dlts"]).len(), 3);
        assert_eq!(command(&["weir", "--json", "ports"])[1], "--json");
        assert_eq!(command(&["weir"]).len(), 1);
    }

    #[test]
    fn ports_are_interfaces() {
        let text = interfaces(&["eth1".into(), "a}{b".into()]);
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("interface {value=weir-eth1}{display=Weir: port eth1"), "{}", lines[1]);
    }
}
