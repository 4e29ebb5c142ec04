//! The command line of ovs-vswitchd(8).

use std::path::{Path, PathBuf};

use datapath::Topology;
use tls::Ca;
use tls::settings::{Ciphers, Versions};

use crate::source::ovsdb::OVS_VERSION;
use crate::source::ovsdb::read::Dummy;
use crate::vlog::LogChange;

/// The name under which tools look for the daemon.
pub const PROGRAM: &str = "ovs-vswitchd";

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// To run.
    Run(Box<Options>),
    /// The help text.
    Help,
    /// The version.
    Version,
}

/// How to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the database is (ovsdb(7)).
    pub database: String,
    /// Directories, from the environment.
    pub dirs: Dirs,
    /// The pidfile; none is written without the option.
    pub pidfile: Option<PathBuf>,
    /// Whether to take a pidfile from a process that runs.
    pub overwrite_pidfile: bool,
    /// Whether to go to the background.
    pub detach: bool,
    /// Whether to leave the working directory when in the background.
    pub chdir: bool,
    /// Whether to be watched by a process that starts another one after a crash.
    pub monitor: bool,
    /// The log file.
    pub log_file: Option<PathBuf>,
    /// What to log where: changes to the defaults, in their order.
    pub verbosity: Vec<LogChange>,
    /// How to reach the system's log.
    pub syslog: Option<String>,
    /// The control socket: `none`, a name in the run directory, or a path.
    pub unixctl: Option<String>,
    /// Whom to run as.
    pub user: Option<String>,
    /// Whether to keep the memory that is in use from being paged out.
    pub mlockall: bool,
    /// Which interfaces become dummy ports.
    pub dummy: Dummy,
    /// Whether tests may stop and warp the clock: `--enable-dummy` is given.
    pub warpable: bool,
    /// Cores and NUMA nodes in the place of the machine's.
    pub topology: Option<Topology>,
    /// Whether tunnels use the kernel's routes and neighbours.
    pub system_routes: bool,
    /// How TLS is spoken: with the database, and with OpenFlow peers unless the database says otherwise.
    pub tls: tls::Settings,
    /// Options that are accepted and mean nothing to Weir.
    pub ignored: Vec<String>,
}

/// Where files go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Dirs {
    pub run: PathBuf,
    pub log: PathBuf,
}

impl Dirs {
    /// The directories that the environment names, or Debian's.
    pub fn from_environment() -> Dirs {
        let dir = |name: &str, default: &str| {
            std::env::var_os(name).filter(|v| !v.is_empty()).map_or_else(|| default.into(), PathBuf::from)
        };
        Dirs { run: dir("OVS_RUNDIR", "/var/run/openvswitch"), log: dir("OVS_LOGDIR", "/var/log/openvswitch") }
    }
}

/// Whether an option has a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakesValue {
    No,
    /// Only as `--name=value`.
    Optional,
    Needed,
}

struct Def {
    name: &'static str,
    short: Option<char>,
    value: TakesValue,
    help: &'static str,
}

const fn def(name: &'static str, short: Option<char>, value: TakesValue, help: &'static str) -> Def {
    Def { name, short, value, help }
}

use TakesValue::{Needed, No, Optional};

const DEFS: &[Def] = &[
    def("pidfile", None, Optional, "write a pidfile, by default RUNDIR/ovs-vswitchd.pid"),
    def("overwrite-pidfile", None, No, "take the pidfile from a daemon that runs"),
    def("detach", None, No, "go to the background once the configuration is in force"),
    def("no-chdir", None, No, "do not change to the root directory"),
    def("monitor", None, No, "start the daemon again when it crashes"),
    def("no-self-confinement", None, No, "accepted without effect"),
    def("user", None, Needed, "run as this user: USER, USER:GROUP or :GROUP"),
    def("log-file", None, Optional, "log to a file, by default LOGDIR/ovs-vswitchd.log"),
    def("verbose", Some('v'), Optional, "logging levels: [MODULE][:DESTINATION][:LEVEL]"),
    def("syslog-target", None, Needed, "accepted without effect"),
    def(
        "syslog-method",
        None,
        Needed,
        "how to reach the system's log: libc, null, unix:FILE, udp:HOST:PORT, journal or journal:FILE",
    ),
    def("unixctl", None, Needed, "control socket, or none"),
    def("mlockall", None, No, "keep the memory that is in use from being paged out"),
    def(
        "enable-dummy",
        None,
        Optional,
        "for tests: interfaces are dummy ports (override: all, system), files anywhere",
    ),
    def("dummy-numa", None, Needed, "for tests: cores that do not exist, by their NUMA nodes: NODE[,NODE]..."),
    def("disable-system", None, No, "accepted: there is no kernel datapath"),
    def("disable-system-route", None, No, "tunnels do not use the kernel's routes and neighbours"),
    def("private-key", Some('p'), Needed, "private key for TLS"),
    def("certificate", Some('c'), Needed, "certificate for TLS"),
    def("ca-cert", Some('C'), Needed, "certificate of the CA for TLS"),
    def("bootstrap-ca-cert", None, Needed, "the same, but a file that is missing is obtained from the first peer"),
    def("peer-ca-cert", None, Needed, "certificate of the CA that peers are sent"),
    def("ssl-protocols", None, Needed, "versions of TLS: TLSv1.2, TLSv1.3"),
    def("ssl-ciphers", None, Needed, "ciphers of TLS 1.2"),
    def("help", Some('h'), No, "print this text"),
    def("version", Some('V'), No, "print the version"),
];

/// An option as help and manual list it.
pub struct Listed {
    /// Its letter.
    pub short: Option<char>,
    /// Its name and value: `--log-file[=VALUE]`.
    pub long: String,
    /// What it does.
    pub help: &'static str,
}

/// All options.
pub fn listed() -> impl Iterator<Item = Listed> {
    DEFS.iter().map(|def| {
        let value = match def.value {
            No => "",
            Optional => "[=VALUE]",
            Needed => "=VALUE",
        };
        Listed { short: def.short, long: format!("--{}{value}", def.name), help: def.help }
    })
}

/// The text for `--help`.
pub fn help() -> String {
    let mut out = String::from(
        "ovs-vswitchd: Weir in the place of the Open vSwitch daemon\n\
         usage: weir vswitchd [OPTIONS] [DATABASE]\n\
         where DATABASE is a socket on which ovsdb-server is listening\n\
         (default: \"unix:RUNDIR/db.sock\").\n\nOptions:\n",
    );
    for Listed { short, long, help } in listed() {
        let short = short.map_or(String::from("    "), |c| format!("-{c}, "));
        out.push_str(&format!("  {short}{long:<28} {help}\n"));
    }
    out
}

/// The text for `--version`; tools look for the first line.
pub fn version() -> String {
    format!("{PROGRAM} (Open vSwitch) {OVS_VERSION}\nWeir {}\n", env!("CARGO_PKG_VERSION"))
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: &[String], dirs: Dirs) -> Result<Invocation, String> {
    let database = format!("unix:{}", dirs.run.join("db.sock").display());
    let mut options = Options {
        database,
        dirs,
        pidfile: None,
        overwrite_pidfile: false,
        detach: false,
        chdir: true,
        monitor: false,
        log_file: None,
        verbosity: Vec::new(),
        syslog: None,
        unixctl: None,
        user: None,
        mlockall: false,
        dummy: Dummy::Explicit,
        warpable: false,
        topology: None,
        system_routes: true,
        tls: tls::Settings::default(),
        ignored: Vec::new(),
    };
    let mut positional = Vec::new();
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        if argument == "--" {
            positional.extend(rest.by_ref());
        } else if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
            let def = find(name)?;
            let value = match (def.value, value) {
                (No, Some(_)) => return Err(format!("option --{} takes no value", def.name)),
                (Needed, None) => Some(rest.next().ok_or_else(|| format!("option --{} needs a value", def.name))?),
                (_, value) => value,
            };
            if let Some(request) = options.set(def.name, value)? {
                return Ok(request);
            }
        } else if argument.len() > 1 && argument.starts_with('-') {
            let mut letters = argument[1..].chars();
            while let Some(letter) = letters.next() {
                let def = DEFS.iter().find(|d| d.short == Some(letter));
                let def = def.ok_or_else(|| format!("unknown option -{letter}"))?;
                let tail = std::mem::replace(&mut letters, "".chars()).as_str();
                let value = match def.value {
                    No => {
                        letters = tail.chars();
                        None
                    }
                    Optional => (!tail.is_empty()).then_some(tail),
                    Needed if tail.is_empty() => {
                        Some(rest.next().ok_or_else(|| format!("option -{letter} needs a value"))?)
                    }
                    Needed => Some(tail),
                };
                if let Some(request) = options.set(def.name, value)? {
                    return Ok(request);
                }
            }
        } else {
            positional.push(argument);
        }
    }
    match positional[..] {
        [] => {}
        [database] => options.database = database.to_owned(),
        _ => return Err("at most one argument, the database, is accepted; use --help for usage".into()),
    }
    Ok(Invocation::Run(Box::new(options)))
}

/// The option of this name, or of this unambiguous beginning.
fn find(name: &str) -> Result<&'static Def, String> {
    if let Some(def) = DEFS.iter().find(|d| d.name == name) {
        return Ok(def);
    }
    let mut candidates = DEFS.iter().filter(|d| !name.is_empty() && d.name.starts_with(name));
    match (candidates.next(), candidates.next()) {
        (Some(def), None) => Ok(def),
        (Some(_), Some(_)) => Err(format!("option --{name} is ambiguous")),
        _ => Err(format!("unknown option --{name}; use --help for usage")),
    }
}

impl Options {
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<Option<Invocation>, String> {
        let within = |dir: &Path, default: &str| dir.join(value.unwrap_or(default));
        let path = || value.map(PathBuf::from);
        match name {
            "help" => return Ok(Some(Invocation::Help)),
            "version" => return Ok(Some(Invocation::Version)),
            "pidfile" => self.pidfile = Some(within(&self.dirs.run, &format!("{PROGRAM}.pid"))),
            "overwrite-pidfile" => self.overwrite_pidfile = true,
            "detach" => self.detach = true,
            "no-chdir" => self.chdir = false,
            "monitor" => self.monitor = true,
            "log-file" => self.log_file = Some(within(&self.dirs.log, &format!("{PROGRAM}.log"))),
            "verbose" => {
                let change = value.map_or(Ok(LogChange::ALL), LogChange::parse);
                self.verbosity.push(change.map_err(|e| format!("processing {:?}: {e}", value.unwrap_or_default()))?);
            }
            "syslog-method" => self.syslog = value.map(str::to_owned),
            "unixctl" => self.unixctl = value.map(str::to_owned),
            "user" => self.user = value.map(str::to_owned),
            "mlockall" => self.mlockall = true,
            "enable-dummy" => {
                self.warpable = true;
                self.dummy = match value {
                    None | Some("") => Dummy::Explicit,
                    Some("override") => Dummy::Override,
                    Some("system") => Dummy::System,
                    Some(other) => return Err(format!("--enable-dummy={other}: override or system")),
                }
            }
            "dummy-numa" => {
                let topology = Topology::made_up(value.unwrap_or_default());
                self.topology = Some(topology.map_err(|problem| format!("--dummy-numa: {problem}"))?);
            }
            "disable-system-route" => self.system_routes = false,
            "private-key" => self.tls.private_key = path(),
            "certificate" => self.tls.certificate = path(),
            "ca-cert" => self.tls.ca = path().map(|path| Ca::named(&path, false)),
            "bootstrap-ca-cert" => self.tls.ca = path().map(|path| Ca::named(&path, true)),
            "peer-ca-cert" => self.tls.peer_ca_cert = path(),
            "ssl-protocols" => {
                let versions = Versions::parse(value.unwrap_or_default());
                self.tls.versions = versions.map_err(|problem| format!("--ssl-protocols: {problem}"))?;
            }
            "ssl-ciphers" => {
                let ciphers = Ciphers::parse(value.unwrap_or_default());
                self.tls.ciphers = ciphers.map_err(|problem| format!("--ssl-ciphers: {problem}"))?;
            }
            other => self.ignored.push(format!("--{other}")),
        }
        Ok(None)
    }

    /// Where the control socket of process `pid` is; none if there is to be none.
    pub fn control_socket(&self, pid: u32) -> Option<PathBuf> {
        match self.unixctl.as_deref() {
            Some("none") => None,
            Some(path) => Some(self.dirs.run.join(path)),
            None => Some(self.dirs.run.join(format!("{PROGRAM}.{pid}.ctl"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs() -> Dirs {
        Dirs { run: "/r".into(), log: "/l".into() }
    }

    fn run(arguments: &[&str]) -> Result<Box<Options>, String> {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        match parse(&arguments, dirs())? {
            Invocation::Run(options) => Ok(options),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn files_go_where_tools_look_for_them() {
        let o = run(&["--pidfile", "--log-file", "--detach"]).unwrap();
        assert_eq!(o.pidfile.as_deref(), Some(Path::new("/r/ovs-vswitchd.pid")));
        assert_eq!(o.log_file.as_deref(), Some(Path::new("/l/ovs-vswitchd.log")));
        assert_eq!(o.control_socket(7).unwrap(), Path::new("/r/ovs-vswitchd.7.ctl"));
        assert_eq!(o.database, "unix:/r/db.sock");
        assert!(o.detach && o.chdir);
        let o = run(&["--pidfile=x.pid", "--unixctl", "/s", "unix:/d"]).unwrap();
        assert_eq!(o.pidfile.as_deref(), Some(Path::new("/r/x.pid")));
        assert_eq!(o.control_socket(7).unwrap(), Path::new("/s"));
        assert_eq!(o.database, "unix:/d");
        assert_eq!(run(&["--unixctl=none"]).unwrap().control_socket(7), None);
    }

    #[test]
    fn options_as_debian_starts_it() {
        let o = run(&[
            "unix:/var/run/openvswitch/db.sock",
            "-vconsole:emer",
            "-vsyslog:err",
            "-vfile:info",
            "--mlockall",
            "--no-chdir",
            "--log-file=/var/log/openvswitch/ovs-vswitchd.log",
            "--pidfile=/var/run/openvswitch/ovs-vswitchd.pid",
            "--detach",
        ])
        .unwrap();
        assert!(o.mlockall && o.detach && !o.chdir);
        assert_eq!(o.pidfile.as_deref(), Some(Path::new("/var/run/openvswitch/ovs-vswitchd.pid")));
    }

    #[test]
    fn mistakes_are_explained() {
        for (arguments, says) in [
            (&["--nonsense"][..], "--nonsense"),
            (&["--detach=yes"], "no value"),
            (&["--unixctl"], "needs a value"),
            (&["--enable-dummy=all"], "override or system"),
            (&["--ssl-protocols=TLSv1.1"], "--ssl-protocols: \"TLSv1.1\" has neither TLSv1.2 nor TLSv1.3"),
            (&["--ssl-ciphers=AES128-SHA"], "--ssl-ciphers: \"AES128-SHA\" is not a cipher"),
            (&["--dummy-numa=0,x"], "--dummy-numa: \"x\" is not a NUMA node"),
            (&["--no-"], "ambiguous"),
            (&["-x"], "-x"),
            (&["a", "b"], "at most one"),
            (&["-vconsole:loud"], "loud"),
        ] {
            let error = run(arguments).unwrap_err();
            assert!(error.contains(says), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn abbreviations_and_dummies() {
        assert_eq!(run(&["--enable-dummy=override"]).unwrap().dummy, Dummy::Override);
        assert_eq!(run(&["--enable-dummy"]).unwrap().dummy, Dummy::Explicit);
        assert!(run(&["--mlock"]).unwrap().mlockall);
        assert!(run(&[]).unwrap().system_routes && !run(&["--disable-system-route"]).unwrap().system_routes);
        let options = run(&["--disable-system", "--user", "a:b"]).unwrap();
        assert!(options.system_routes);
        assert_eq!((options.ignored, options.user), (vec!["--disable-system".to_owned()], Some("a:b".to_owned())));
    }

    #[test]
    fn version_and_help() {
        assert!(version().starts_with("ovs-vswitchd (Open vSwitch) 3.1.0\n"));
        assert_eq!(parse(&["-V".into()], dirs()), Ok(Invocation::Version));
        assert_eq!(parse(&["--help".into()], dirs()), Ok(Invocation::Help));
        assert!(DEFS.iter().all(|d| help().contains(d.name)));
    }
}
