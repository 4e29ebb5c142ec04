//! The daemon, whatever the source of its configuration.
//!
//! ```text
//! management (main)  control socket, HTTP, OpenFlow, signals, the source: one task for each, none waits for work
//! configurator       opens devices, applies steps
//! revalidator        brings datapath flows up to date, expires, ages
//! path-checks        runs the sessions of BFD and CFM
//! spanning-tree      runs STP and RSTP
//! bonds              delays and LACP of bonds, and what neighbours are told
//! top                finds what has the most traffic, while somebody asks
//! exporter           sends samples and flow records to collectors
//! port-watch         notices what happens to the ports' devices
//! verifier           verifies what the caches did with some packets
//! netstate           follows the kernel's routes and neighbours
//! handlers, workers  belong to the datapath
//! ```
//!
//! The management thread only ever does short work: what takes time is handed to the configurator.
//!
//! A configuration's way: a [`ConfigSource`](crate::source::ConfigSource) brings a desired state; `follow` hands it to
//! the `configurator`, which has [`reconfigure`](crate::reconfigure) work out the steps and takes them on the switch
//! (`apply`); the source is told what runs then.
//!
//! - `account`: what has become of all packets, in the log
//! - `address`: the addresses of bridges
//! - `aging`: neighbours whose time is over
//! - `apply`: takes the steps of a reconfiguration on the real switch
//! - `bonds`: the thread of the bonds
//! - `commands`: what the control socket takes
//! - `compiler`: compiles the ingress filters of a configuration
//! - `configurator`: the thread that brings the switch to what is wanted
//! - `dashboard`: the JSON of the dashboard, and the measuring for it
//! - `drops`: which packets were dropped where, and why
//! - `engine`: the switch without its management
//! - `follow`: follows the source of the configuration
//! - `ingress`: the ingress filters of the ports
//! - `netstate`: the thread that follows the kernel's routes and neighbours
//! - `offload`: what ports have of their filters themselves
//! - `links`: the ports' devices as they were seen last
//! - `mii`: the bonds whose drivers are asked for links
//! - `missing`: ports that wait for a device
//! - `mtu`: the MTU of LOCAL ports
//! - `openflow`: the OpenFlow sockets
//! - `path_checks`: the thread that runs BFD and CFM
//! - `process`: the daemon as a process of the system
//! - `ranking`: which flows, rules and drops have the most traffic
//! - `reload`: asks for the configuration to be read again
//! - `routes`: what the HTTP server answers
//! - `seed`: secrets of the datapaths' hashes
//! - `separate`: datapaths that no bridge uses
//! - `service`: threads that do one thing again and again
//! - `spanning_tree`: the thread that runs STP and RSTP
//! - `topology`: the machine's cores and NUMA nodes
//! - `verifier`: the thread that verifies what the caches did
//! - `watch`: the thread that watches the ports' devices

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ::netstate::kernel::Scope;
use datapath::Topology;
use tls::Tls;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio::task::LocalSet;

use crate::config::ConfigErrors;
use crate::config::origins::Loaded;
use crate::http;
use crate::rundir::{self, Rundir};
use crate::source::ConfigSource;
use crate::timer::Timer;
use crate::unixctl::Commands;
use crate::unixctl::server::Server;
use crate::vlog::Logger;

mod account;
mod address;
mod aging;
mod apply;
mod bonds;
pub mod commands;
mod compiler;
mod configurator;
mod dashboard;
mod devices;
mod drops;
mod engine;
mod exporter;
mod follow;
mod ingress;
mod links;
mod mii;
mod missing;
mod mtu;
mod netstate;
mod offload;
mod openflow;
mod path_checks;
pub mod process;
mod ranking;
mod reload;
mod routes;
mod seed;
mod separate;
mod service;
mod spanning_tree;
pub mod topology;
mod verifier;
mod watch;

use apply::LiveSwitch;
use commands::{Context, waiting};
use configurator::Configurator;
use engine::{Engine, Revalidator};
use exporter::ExporterThread;
use netstate::NetWatch;
use process::{exit, panic};
use reload::{Asker, Reloader};
use watch::Watch;

/// How a daemon runs.
pub struct Settings {
    /// What it answers to who asks for its version.
    pub version: String,
    /// Where sockets go.
    pub rundir: Rundir,
    /// The control socket, if there is to be one.
    pub control_socket: Option<PathBuf>,
    /// What is logged where.
    pub log: Arc<Logger>,
    /// The clock.
    pub timer: Timer,
    /// The cores that there are.
    pub topology: Topology,
    /// What of the kernel's routes and neighbours is followed.
    pub netstate: Scope,
    /// Called when the first state is in force.
    pub ready: Box<dyn FnOnce()>,
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
    /// The log cannot be started as it is wanted.
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

/// Runs the switch until it is told to end. The source is made on the management thread, within its tokio runtime.
pub fn run<S: ConfigSource + 'static>(
    settings: Settings,
    source: impl FnOnce() -> std::io::Result<S>,
) -> Result<(), Error> {
    panic::report();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(io("cannot start the management thread"))?;
    let outcome = LocalSet::new().block_on(&runtime, async {
        let source = source().map_err(Error::Thread)?;
        let daemon = Daemon::new(settings, source)?;
        // A task like the others: the future that the set itself runs is polled whenever any task is.
        tokio::task::spawn_local(daemon.run()).await.unwrap_or_else(|failed| match failed.try_into_panic() {
            Ok(panicked) => std::panic::resume_unwind(panicked),
            Err(_) => Err(Error::Panicked),
        })
    });
    // Name resolution for a controller may still be under way on a thread of the runtime.
    runtime.shutdown_background();
    outcome
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}

/// What the management thread has before there is a switch.
struct Daemon<S> {
    settings: Settings,
    source: S,
    socket: ControlSocket,
    outside: Outside,
    reloader: Reloader,
    askers: Receiver<Asker>,
}

impl<S: ConfigSource> Daemon<S> {
    fn new(settings: Settings, source: S) -> Result<Daemon<S>, Error> {
        let (reloader, askers) = Reloader::channel();
        // A source that brings its states by itself is asked for none.
        let reload = (!source.pushes()).then(|| reloader.clone());
        let outside = Outside::new(settings.log.clone(), reload)?;
        let mut socket = ControlSocket { path: settings.control_socket.clone(), server: None };
        if source.pushes() {
            socket.bind()?;
        }
        Ok(Daemon { settings, source, socket, outside, reloader, askers })
    }

    /// Waits for the first state, runs the switch, and ends it.
    async fn run(mut self) -> Result<(), Error> {
        let waiting = Rc::new(waiting::WaitingContext {
            exit: self.outside.exit.clone(),
            log: self.settings.log.clone(),
            version: self.settings.version.clone(),
        });
        let first = tokio::select! {
            first = self.source.first() => first,
            () = self.socket.serve(waiting::TABLE, waiting) => return Ok(()),
            outcome = self.outside.end() => return outcome,
        };
        let Loaded { desired, .. } = &first;
        let (topology, timer) = (self.settings.topology.clone(), self.settings.timer.clone());
        let engine = Engine::start(&desired.workers, &desired.datapath, topology, timer)?;
        let outcome = self.run_switch(&engine, first).await;
        engine.end();
        outcome
    }

    /// Runs the switch from its first state until it is told to end. No port is left then.
    async fn run_switch(self, engine: &Engine, first: Loaded) -> Result<(), Error> {
        let Daemon { settings, mut source, mut socket, mut outside, reloader, askers } = self;
        // Ends last: the last flows are credited before.
        let _exporter = ExporterThread::start(engine)?;
        let _revalidator = Revalidator::start(engine)?;
        let _verifier = verifier::start(engine)?;
        let tls = Tls::default();
        let openflow = Rc::new(openflow::Manager::new(settings.rundir.clone(), engine.timer.clone(), tls.clone()));
        let (requests, queue) = openflow::requests();
        tokio::task::spawn_local(openflow::serve(openflow.clone(), queue));
        let (http, http_settings) = http::Server::new(settings.rundir.path());
        let configurator = Configurator::start(LiveSwitch {
            engine: engine.clone(),
            rundir: settings.rundir.path().into(),
            openflow: requests,
            tls,
            http: http_settings,
            workers: first.desired.workers.clone(),
            datapath: first.desired.datapath.clone(),
            conntrack: Default::default(),
            addresses: Default::default(),
            local_ipv4: Default::default(),
            numbers_had: (!source.pushes()).then(Default::default),
        })?;
        let _path_checks = path_checks::start(engine)?;
        let _spanning_trees = spanning_tree::start(engine)?;
        let _bonds = bonds::start(engine)?;
        let _mii = watch::monitor_mii(engine, configurator.jobs())?;
        let watch = Watch::start(engine, configurator.jobs())?;
        let _net_watch = NetWatch::start(engine, settings.netstate)?;
        let context = Rc::new(Context {
            engine: engine.clone(),
            configurator,
            openflow,
            http: Rc::new(http),
            exit: outside.exit.clone(),
            log: settings.log,
            coverage: commands::coverage::History::default(),
            chosen: Default::default(),
            reloader,
            location: source.location().to_owned(),
            version: settings.version,
            history: Rc::default(),
            rankings: ranking::Rankings::new(engine),
            started: Instant::now(),
            started_at: SystemTime::now(),
        });
        commands::coverage::watch(&context);
        dashboard::sampler::watch(&context);
        commands::perf::watch(&context);
        let first_in_force = Notify::new();
        let serving = async {
            if !socket.is_bound() {
                first_in_force.notified().await;
                socket.bind()?;
                tracing::info!(socket = ?socket.path, "running");
            }
            socket.serve(commands::TABLE, context.clone()).await;
            Ok(())
        };
        let in_force = || {
            first_in_force.notify_one();
            (settings.ready)();
        };
        let outcome = tokio::select! {
            () = follow::follow(&mut source, first, &context, askers, in_force) => Ok(()),
            outcome = serving => outcome,
            () = context.http.serve(routes::ROUTES, context.clone()) => Ok(()),
            outcome = outside.end() => outcome,
        };
        exit::bound();
        let _ = context.configurator.remove_all().await;
        engine.separate.close();
        context.openflow.close();
        drop(watch);
        outcome
    }
}

/// The control socket. It is there from the start where the first state may be long in coming, and otherwise once that
/// is in force.
struct ControlSocket {
    path: Option<PathBuf>,
    server: Option<Server>,
}

impl ControlSocket {
    /// Whether there is nothing to wait for: it listens, or there is to be none.
    fn is_bound(&self) -> bool {
        self.server.is_some() || self.path.is_none()
    }

    fn bind(&mut self) -> Result<(), Error> {
        if let Some(path) = &self.path {
            self.server = Some(Server::bind(path).map_err(io(format!("control socket {}", path.display())))?);
        }
        Ok(())
    }

    /// Serves for ever.
    async fn serve<C: 'static>(&self, table: Commands<C>, context: Rc<C>) {
        match &self.server {
            Some(server) => server.serve(table, context).await,
            None => std::future::pending().await,
        }
    }
}

/// What ends the daemon or asks something of it from outside.
struct Outside {
    exit: Rc<Notify>,
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    log: Arc<Logger>,
    /// Where SIGHUP asks for the configuration to be read again.
    reload: Option<Reloader>,
}

impl Outside {
    fn new(log: Arc<Logger>, reload: Option<Reloader>) -> Result<Outside, Error> {
        Ok(Outside {
            exit: Rc::new(Notify::new()),
            terminate: signal(SignalKind::terminate()).map_err(io("SIGTERM"))?,
            interrupt: signal(SignalKind::interrupt()).map_err(io("SIGINT"))?,
            hangup: signal(SignalKind::hangup()).map_err(io("SIGHUP"))?,
            log,
            reload,
        })
    }

    /// Returns when the daemon is to end.
    async fn end(&mut self) -> Result<(), Error> {
        loop {
            tokio::select! {
                () = self.exit.notified() => {
                    // The reply to "exit" is on its way; give it the moment that it needs.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return Ok(());
                }
                () = panic::happened() => return Err(Error::Panicked),
                _ = self.terminate.recv() => return Ok(()),
                _ = self.interrupt.recv() => return Ok(()),
                _ = self.hangup.recv() => self.hangup(),
            }
        }
    }

    /// Opens the log file anew, and has the configuration read again.
    fn hangup(&self) {
        // What fails is in the log, or would be.
        let _ = self.log.reopen();
        let Some(reloader) = &self.reload else { return };
        tracing::info!("SIGHUP: reading the configuration again");
        let reloading = reloader.reload();
        tokio::task::spawn_local(async move {
            // What fails while applying has been logged; a file with mistakes has not.
            if let Ok(Err(problem)) = reloading.await {
                problem.lines().for_each(|line| tracing::error!("reload: {line}"));
            }
        });
    }
}
