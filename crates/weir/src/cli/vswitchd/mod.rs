//! Weir in the place of ovs-vswitchd: `weir vswitchd DATABASE`.
//!
//! ```text
//! ovsdb-server ──▶ replica ──▶ source::read ──▶ Desired ──▶ configurator (plan, apply)
//!              ◀───────────── writeback ◀──── what runs ◀───────┘
//! ```
//!
//! The start: read the options, go to the background, wait for the database and for the lock, start the
//! switch, apply the first configuration, report that all is well. Nothing that a database says ends the
//! daemon.

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use ovsdb::client::Events;
use ovsdb::transport::TlsFiles;
use ovsdb::{Client, Config, Remote};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::daemon::commands::{self, Context, waiting};
use crate::daemon::configurator::Configurator;
use crate::daemon::engine::{Engine, Revalidator};
use crate::daemon::process::{detach, panic, user};
use crate::daemon::watch::Watch;
use crate::daemon::{Error, apply, bound_the_end, openflow};
use crate::rundir::{Pidfile, Rundir};
use crate::source::ovsdb::{columns, files, follow, read};
use crate::timer::Timer;
use crate::unixctl::server::Server;
use crate::vlog::{self, Logger};

pub mod options;
pub use options::PROGRAM;
use options::{Dirs, Options, Request};

/// Does what ovs-vswitchd does with these arguments, which come after the program's name.
pub fn main(arguments: &[String]) -> ExitCode {
    let options = match options::parse(arguments, Dirs::from_environment()) {
        Ok(Request::Run(options)) => options,
        Ok(Request::Help) => return print(&options::help()),
        Ok(Request::Version) => return print(&options::version()),
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
    let (remotes, tls) = remotes(&options)?;
    if options.detach {
        detach::leave_session();
    }
    let _pidfile =
        options.pidfile.as_deref().map(|path| Pidfile::create_at(path, options.overwrite_pidfile)).transpose()?;
    if options.detach && options.chdir {
        std::env::set_current_dir("/").map_err(io("cannot change to the root directory"))?;
    }
    panic::report();
    if options.mlockall {
        use rustix::mm::{MlockAllFlags, mlockall};
        if let Err(e) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
            tracing::error!("mlockall failed: {e}");
        }
    }
    for option in &options.ignored {
        tracing::info!("{option} is accepted and has no effect");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(io("cannot start the management thread"))?;
    let outcome = LocalSet::new().block_on(&runtime, manage(&options, &rundir, remotes, tls, log));
    // Name resolution for a controller may still be under way on a thread of the runtime.
    runtime.shutdown_background();
    tracing::debug!("ended");
    outcome
}

/// Makes paths mean the same from every working directory.
fn make_absolute(options: &mut Options) -> std::io::Result<()> {
    let here = std::env::current_dir()?;
    options.dirs.run = here.join(&options.dirs.run);
    for path in [&mut options.pidfile, &mut options.log_file].into_iter().flatten() {
        *path = here.join(&*path);
    }
    let tls = &mut options.tls;
    for path in [&mut tls.private_key, &mut tls.certificate, &mut tls.ca_cert].into_iter().flatten() {
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

fn remotes(options: &Options) -> Result<(Vec<Remote>, Option<TlsFiles>), Error> {
    let remotes = Remote::parse_list(&options.database).map_err(|e| Error::Database(e.to_string()))?;
    let tls = &options.tls;
    let tls = match (&tls.private_key, &tls.certificate, &tls.ca_cert) {
        (Some(key), Some(certificate), Some(ca)) => {
            Some(TlsFiles { private_key: key.clone(), certificate: certificate.clone(), ca_cert: ca.clone() })
        }
        _ => None,
    };
    Ok((remotes, tls))
}

/// What ends the daemon or asks something of it from outside.
pub struct Outside {
    exit: Rc<Notify>,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    log: Arc<Logger>,
}

impl Outside {
    /// Returns when the daemon is to end.
    async fn end(&mut self) -> Result<(), Error> {
        loop {
            tokio::select! {
                () = self.exit.notified() => {
                    // The reply to "exit" is on its way; give it the moment that it needs.
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    return Ok(());
                }
                () = panic::happened() => return Err(Error::Panicked),
                _ = self.terminate.recv() => return Ok(()),
                _ = self.interrupt.recv() => return Ok(()),
                _ = self.hangup.recv() => {
                    // What fails is in the log, or would be.
                    let _ = self.log.reopen();
                }
            }
        }
    }
}

/// The management thread.
async fn manage(
    options: &Options,
    rundir: &Rundir,
    remotes: Vec<Remote>,
    tls: Option<TlsFiles>,
    log: Arc<Logger>,
) -> Result<(), Error> {
    let exit = Rc::new(Notify::new());
    let mut outside = Outside {
        exit: exit.clone(),
        terminate: signal(SignalKind::terminate()).map_err(io("SIGTERM"))?,
        interrupt: signal(SignalKind::interrupt()).map_err(io("SIGINT"))?,
        hangup: signal(SignalKind::hangup()).map_err(io("SIGHUP"))?,
        log: log.clone(),
    };
    let socket = options.control_socket(std::process::id());
    let server = match &socket {
        Some(path) => Some(Server::bind(path).map_err(io(format!("control socket {}", path.display())))?),
        None => None,
    };
    let config = Config::new("Open_vSwitch", columns::selection()).with_lock("ovs_vswitchd");
    let mut events = Client::new(config, remotes, tls).spawn();
    let waiting = Rc::new(waiting::Context { exit: exit.clone(), log });
    let rules = rules(options, rundir);
    let first = tokio::select! {
        first = follow::first(&mut events, &rules) => first,
        () = serve(server.as_ref(), waiting::TABLE, waiting) => return Ok(()),
        outcome = outside.end() => return outcome,
    };
    switch(options, rundir, events, first, server.as_ref(), &mut outside).await
}

fn rules(options: &Options, rundir: &Rundir) -> read::Rules {
    read::Rules { dummy: options.dummy, files: files::Files::new(rundir.path(), options.warpable) }
}

/// Serves the control socket, for ever.
async fn serve<C: 'static>(server: Option<&Server>, table: crate::unixctl::Commands<C>, context: Rc<C>) {
    match server {
        Some(server) => server.serve(table, context).await,
        None => std::future::pending().await,
    }
}

/// Runs the switch, once the database is there and its lock is held.
async fn switch(
    options: &Options,
    rundir: &Rundir,
    events: Events,
    first: read::Source,
    server: Option<&Server>,
    outside: &mut Outside,
) -> Result<(), Error> {
    let desired = &first.desired;
    let timer = if options.warpable { Timer::warpable() } else { Timer::system() };
    let engine = Engine::start(&desired.workers, &desired.datapath, timer)?;
    let revalidator = Revalidator::start(&engine)?;
    let openflow = Rc::new(openflow::Manager::new(rundir.clone(), engine.timer.clone()));
    let (requests, queue) = openflow::requests();
    tokio::task::spawn_local(openflow::serve(openflow.clone(), queue));
    let target = apply::Target {
        engine: engine.clone(),
        rundir: rundir.path().into(),
        openflow: requests,
        workers: desired.workers.clone(),
        datapath: desired.datapath.clone(),
    };
    let configurator = Configurator::start(None, target)?;
    let watch = Watch::start(&engine, configurator.requests())?;
    let context = Rc::new(Context {
        engine: engine.clone(),
        configurator,
        openflow,
        exit: outside.exit.clone(),
        log: outside.log.clone(),
        coverage: commands::coverage::History::default(),
        config: options.database.clone().into(),
        version: options::version().trim_end().to_owned(),
        started: Instant::now(),
    });
    commands::coverage::watch(&context);
    let follower = follow::Follower::new(events, context.clone(), rules(options, rundir));
    let (awaited, in_background) = (options.detach || options.monitor, options.detach);
    let ready = move || {
        if awaited {
            detach::ready();
        }
        if in_background && let Err(e) = detach::leave_terminal() {
            tracing::error!("cannot let go of the terminal: {e}");
        }
    };
    let outcome = tokio::select! {
        () = follower.run(first, ready) => Ok(()),
        () = serve(server, commands::TABLE, context.clone()) => Ok(()),
        outcome = outside.end() => outcome,
    };
    bound_the_end();
    let _ = context.configurator.remove_all().await;
    context.openflow.close();
    drop(watch);
    drop(revalidator);
    engine.end();
    outcome
}
