//! Weir in the place of ovs-vswitchd: `weir vswitchd DATABASE`.
//!
//! The start: read the options, go to the background, wait for the database and for its lock, start the switch, apply
//! the first configuration, report that all is well. Nothing that a database says ends the daemon.
//!
//! - [`options`]: the command line of ovs-vswitchd(8)

use std::process::ExitCode;

use netstate::kernel::Scope;
use ovsdb::Remote;

use crate::daemon::process::{detach, user};
use crate::daemon::{self, Error, Settings, topology};
use crate::rundir::{Pidfile, Rundir};
use crate::source::ovsdb::files::Files;
use crate::source::ovsdb::read::Rules;
use crate::source::ovsdb::{Database, OvsdbSource};
use crate::timer::Timer;
use crate::vlog;

pub mod options;
pub use options::PROGRAM;
use options::{Dirs, Invocation, Options};

/// Does what ovs-vswitchd does with these arguments, which come after the program's name.
pub fn main(arguments: &[String]) -> ExitCode {
    let options = match options::parse(arguments, Dirs::from_environment()) {
        Ok(Invocation::Run(options)) => options,
        Ok(Invocation::Help) => return print(&options::help()),
        Ok(Invocation::Version) => return print(&options::version()),
        Err(problem) => {
            eprintln!("{PROGRAM}: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let failed = |problem: String| {
        eprintln!("{PROGRAM}: {problem}");
        ExitCode::FAILURE
    };
    if options.detach && !detach::is_background() {
        return detach::start().unwrap_or_else(|e| failed(format!("cannot go to the background: {e}")));
    }
    if options.monitor && !detach::is_monitored() {
        return detach::monitor(options.detach).unwrap_or_else(|e| failed(format!("cannot monitor: {e}")));
    }
    match run(*options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Panicked) => ExitCode::from(detach::INTERNAL_ERROR),
        Err(e) => failed(e.to_string()),
    }
}

fn print(text: &str) -> ExitCode {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// Runs until told to end.
fn run(mut options: Options) -> Result<(), Error> {
    // Tools find the process by this name, whatever the file is called.
    let _ = rustix::thread::set_name(c"ovs-vswitchd");
    if let Some(user) = &options.user {
        user::Identity::find(user)?.assume()?;
    }
    make_absolute(&mut options).map_err(io("cannot find the working directory"))?;
    let rundir = Rundir::choose(Some(options.dirs.run.clone()));
    rundir.create().map_err(io(options.dirs.run.display().to_string()))?;
    // The terminal of a daemon that goes to the background is for what went wrong.
    let config = vlog::Config {
        file: options.log_file.clone(),
        changes: options.verbosity.clone(),
        quiet_console: options.detach,
        syslog: options.syslog.clone(),
    };
    let log = vlog::init(PROGRAM, &config).map_err(Error::LogMethod)?;
    let database = database(&options)?;
    if options.detach {
        detach::leave_session();
    }
    let _pidfile =
        options.pidfile.as_deref().map(|path| Pidfile::create_at(path, options.overwrite_pidfile)).transpose()?;
    if options.detach && options.chdir {
        std::env::set_current_dir("/").map_err(io("cannot change to the root directory"))?;
    }
    if options.mlockall {
        lock_memory();
    }
    for option in &options.ignored {
        tracing::info!("{option} is accepted and has no effect");
    }
    let timer = if options.warpable { Timer::warpable() } else { Timer::system() };
    let topology = options.topology.clone().unwrap_or_else(topology::of_machine);
    let files = Files::new(rundir.path(), options.warpable);
    let rules = Rules { dummy: options.dummy, files, topology: topology.clone(), tls: options.tls.clone() };
    let settings = Settings {
        version: options::version().trim_end().to_owned(),
        rundir,
        control_socket: options.control_socket(std::process::id()),
        log,
        timer: timer.clone(),
        topology,
        netstate: if options.system_routes { Scope::All } else { Scope::Addresses },
        ready: ready(&options),
    };
    let outcome = daemon::run(settings, || OvsdbSource::connect(database, rules, timer));
    tracing::debug!("ended");
    outcome
}

/// What is to be done once the first configuration is in force.
fn ready(options: &Options) -> Box<dyn FnOnce()> {
    let (is_awaited, in_background) = (options.detach || options.monitor, options.detach);
    Box::new(move || {
        if is_awaited {
            detach::ready();
        }
        if in_background && let Err(e) = detach::leave_terminal() {
            tracing::error!("cannot let go of the terminal: {e}");
        }
    })
}

/// Keeps memory that is in use from being paged out. Caches reserve far more than most of them ever use.
fn lock_memory() {
    use rustix::io::Errno;
    use rustix::mm::{MlockAllFlags, mlockall};
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    let locked = mlockall(all | MlockAllFlags::ONFAULT).or_else(|e| match e {
        // Kernels before 4.4.
        Errno::INVAL => mlockall(all),
        e => Err(e),
    });
    if let Err(e) = locked {
        tracing::error!("mlockall failed: {e}");
    }
}

/// Makes paths mean the same from every working directory.
fn make_absolute(options: &mut Options) -> std::io::Result<()> {
    let here = std::env::current_dir()?;
    options.dirs.run = here.join(&options.dirs.run);
    for path in [&mut options.pidfile, &mut options.log_file].into_iter().flatten() {
        *path = here.join(&*path);
    }
    for path in options.tls.paths_mut() {
        *path = here.join(&*path);
    }
    let run = &options.dirs.run;
    let remotes = options.database.split(',').map(|remote| match remote.trim().strip_prefix("unix:") {
        Some(path) if !path.is_empty() => format!("unix:{}", run.join(path).display()),
        _ => remote.to_owned(),
    });
    options.database = remotes.collect::<Vec<_>>().join(",");
    Ok(())
}

fn database(options: &Options) -> Result<Database, Error> {
    let remotes = Remote::parse_list(&options.database).map_err(|e| Error::Database(e.to_string()))?;
    Ok(Database { location: options.database.clone(), remotes, tls: options.tls.clone() })
}
