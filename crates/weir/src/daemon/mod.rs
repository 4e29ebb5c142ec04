//! The daemon: `weir run`.
//!
//! ```text
//! management (main)  control socket, OpenFlow, signals: one task for each connection, none waits for work
//! configurator       reads the configuration, opens devices, applies steps
//! revalidator        brings datapath flows up to date, expires, ages
//! port-watch         notices what happens to the ports' devices
//! handlers, workers  belong to the datapath
//! ```
//!
//! The management thread only ever does short work: what takes time is handed to the configurator.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::config::origins::Loaded;
use crate::config::{ConfigErrors, check};
use crate::rundir::{self, Pidfile, Rundir};
use crate::source::toml;
use crate::timer::Timer;
use crate::unixctl::server::Server;
use crate::vlog::{self, Logger};

pub(crate) mod apply;
pub(crate) mod commands;
pub(crate) mod configurator;
pub(crate) mod engine;
pub(crate) mod missing;
pub(crate) mod mtu;
pub(crate) mod openflow;
pub(crate) mod process;
pub(crate) mod watch;

use apply::Target;
use commands::Context;
use configurator::Configurator;
use engine::{Engine, Revalidator};
use process::panic;
use watch::Watch;

/// The name of the program, as `ovs-appctl -t` has it.
pub const PROGRAM: &str = "weir";

/// How long the end may take before the process is ended the hard way.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What the command line says about a daemon to be started.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// Where sockets and the pidfile go.
    pub rundir: Rundir,
    /// What to log.
    pub log: String,
}

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration has mistakes.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The pidfile.
    #[error(transparent)]
    Rundir(#[from] rundir::Error),
    /// A socket, the runtime, signals.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The datapath could not be started.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The log filter is wrong.
    #[error("--log {filter}: {problem}")]
    Log {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no such way to the system's log.
    #[error("{0}")]
    LogMethod(String),
    /// The user of `--user` cannot be changed to.
    #[error(transparent)]
    User(#[from] process::user::Error),
    /// The address of the database makes no sense.
    #[error("{0}")]
    Database(String),
    /// A thread has panicked.
    #[error("ended because of an internal error, which is reported above")]
    Panicked,
}

/// Runs the switch until it is told to end.
pub fn run(options: Options) -> Result<(), Error> {
    let log = init_logging(&options.log)?;
    let loaded = load(&options)?;
    let rundir = &options.rundir;
    rundir.create().map_err(|source| rundir::Error::Io { path: rundir.path().into(), source })?;
    let _pidfile = Pidfile::create(rundir, PROGRAM)?;
    panic::report();
    let engine = Engine::start(&loaded.desired.workers, &loaded.desired.datapath, Timer::system())?;
    let revalidator = Revalidator::start(&engine)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| Error::Io { what: "cannot start the management thread".into(), source })?;
    let outcome = LocalSet::new().block_on(&runtime, manage(&options, engine.clone(), loaded, log));
    // Name resolution for a controller may still be under way on a thread of the runtime.
    runtime.shutdown_background();
    drop(revalidator);
    engine.end();
    tracing::info!("ended");
    outcome
}

fn load(options: &Options) -> Result<Loaded, Error> {
    let loaded = toml::load(&options.config)?;
    match check::cores(&loaded.desired, &loaded.origins) {
        missing if missing.is_empty() => Ok(loaded),
        missing => Err(ConfigErrors(missing).into()),
    }
}

/// The management thread: applies the configuration, then serves until the end.
async fn manage(options: &Options, engine: Engine, loaded: Loaded, log: Arc<Logger>) -> Result<(), Error> {
    let openflow = Rc::new(openflow::Manager::new(options.rundir.clone(), engine.timer.clone()));
    let (requests, queue) = openflow::requests();
    tokio::task::spawn_local(openflow::serve(openflow.clone(), queue));
    let target = Target {
        engine: engine.clone(),
        rundir: options.rundir.path().into(),
        openflow: requests,
        workers: loaded.desired.workers.clone(),
        datapath: loaded.desired.datapath.clone(),
    };
    let configurator = Configurator::start(Some(options.config.clone()), target)?;
    let watch = Watch::start(&engine, configurator.requests())?;
    // What failed is in the log and in `weir show`; the rest is in force.
    let _ = configurator.apply(loaded).await;

    let exit = Rc::new(Notify::new());
    let context = Rc::new(Context {
        engine,
        configurator,
        openflow,
        exit: exit.clone(),
        log,
        coverage: commands::coverage::History::default(),
        config: options.config.clone(),
        version: format!("weir {}", env!("CARGO_PKG_VERSION")),
        started: Instant::now(),
    });
    commands::coverage::watch(&context);
    let outcome = serve(options, &context, &exit).await;
    bound_the_end();
    let _ = context.configurator.remove_all().await;
    context.openflow.close();
    drop(watch);
    outcome
}

/// Ends the process when the end takes too long. Without a thread for that, the end takes as long as it takes.
pub(crate) fn bound_the_end() {
    let watch = std::thread::Builder::new().name("end".into()).spawn(|| {
        std::thread::sleep(EXIT_TIMEOUT);
        tracing::error!("the end takes too long; a thread hangs");
        std::process::exit(1);
    });
    if let Err(e) = watch {
        tracing::warn!("cannot start a thread that watches the end: {e}");
    }
}

/// Serves the control socket and signals until one of them says that this is the end.
async fn serve(options: &Options, context: &Rc<Context>, exit: &Notify) -> Result<(), Error> {
    let path = options.rundir.control_socket(PROGRAM, std::process::id());
    let io = |what: &str| {
        let what = what.to_string();
        move |source| Error::Io { what, source }
    };
    let server = Server::bind(&path).map_err(io(&format!("control socket {}", path.display())))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(io("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io("SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(io("SIGHUP"))?;
    tracing::info!(socket = %path.display(), "running");
    let serving = server.serve(commands::TABLE, context.clone());
    tokio::pin!(serving);
    loop {
        tokio::select! {
            () = &mut serving => {}
            () = exit.notified() => {
                // The reply to "exit" is on its way; give it the moment that it needs.
                tokio::time::sleep(Duration::from_millis(20)).await;
                return Ok(());
            }
            () = panic::happened() => return Err(Error::Panicked),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {
                tracing::info!("SIGHUP: reading the configuration again");
                let reloading = context.configurator.reload();
                tokio::task::spawn_local(async move {
                    // What fails while applying has been logged; a file with mistakes has not.
                    if let Ok(Err(problem)) = reloading.await {
                        tracing::error!("reload: {problem}");
                    }
                });
            }
        }
    }
}

/// Logs to standard error.
fn init_logging(filter: &str) -> Result<Arc<Logger>, Error> {
    let changes = vlog::parse_filter(filter).map_err(|problem| Error::Log { filter: filter.into(), problem })?;
    vlog::init(PROGRAM, &vlog::Config { changes, ..vlog::Config::default() }).map_err(Error::LogMethod)
}
