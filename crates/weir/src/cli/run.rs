//! `weir run`: the daemon with its configuration in a file.

use std::path::PathBuf;

use netstate::kernel::Scope;

use crate::daemon::{self, Error, Settings, topology};
use crate::rundir::{self, Pidfile, Rundir};
use crate::source::toml::TomlSource;
use crate::timer::Timer;
use crate::vlog;

/// The name of the program, as `ovs-appctl -t` has it.
pub const PROGRAM: &str = "weir";

/// Runs the switch until it is told to end. `log` says what to log to standard error.
pub fn run(config: PathBuf, rundir: Rundir, log: &str) -> Result<(), Error> {
    let changes = vlog::parse_filter(log).map_err(|problem| Error::Log { filter: log.into(), problem })?;
    let log_config = vlog::Config { changes, ..vlog::Config::default() };
    let log = vlog::init(PROGRAM, &log_config).map_err(Error::LogMethod)?;
    let source = TomlSource::open(config)?;
    rundir.create().map_err(|source| rundir::Error::Io { path: rundir.path().into(), source })?;
    let _pidfile = Pidfile::create(&rundir, PROGRAM)?;
    let settings = Settings {
        version: format!("weir {}", env!("CARGO_PKG_VERSION")),
        control_socket: Some(rundir.control_socket(PROGRAM, std::process::id())),
        rundir,
        log,
        timer: Timer::system(),
        topology: topology::of_machine(),
        netstate: Scope::All,
        ready: Box::new(|| {}),
    };
    let outcome = daemon::run(settings, || Ok(source));
    tracing::info!("ended");
    outcome
}
