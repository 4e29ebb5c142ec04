//! The OpenFlow sockets of every bridge, on the management thread.
//!
//! Each listener, each controller and each connection is a task of its own: a peer that stalls or dies
//! holds up nobody else. A task ends when its [`Task`] is dropped, and with it the connections that it
//! has accepted.
//!
//! Sharing between threads: [`Manager`] stays on the management thread. The configurator sends it
//! requests through [`SocketRequests`] and waits for the answers.
//!
//! - `connection`: one OpenFlow connection
//! - `direct`: its socket, as threads that make packet-ins send to it
//! - `controller`: controllers that Weir connects to
//! - `in_band`: what a bridge needs to reach its controllers through itself
//! - `listener`: listening sockets
//! - `message_log`: their messages in the log
//! - `snoop`: copies of a controller's messages, for who asks for them

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use ofproto::connection::{ConnectionKind, Roles};
use ofproto::{Bridge, Controllers};
use ports::files::SocketFile;
use tls::Tls;
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Target;
use crate::config::desired::{Controller, ControllerKind};
use crate::rundir::Rundir;
use crate::source::ControllerStatus;
use crate::timer::Timer;
use in_band::Whereabouts;
use snoop::SnoopPoint;

mod connection;
mod controller;
mod direct;
mod in_band;
mod listener;
mod lockstep;
mod message_log;
mod snoop;

/// Sends requests to the [`Manager`]. Its methods wait for the answer, so they are not for the
/// management thread itself.
#[derive(Clone)]
pub struct SocketRequests(mpsc::UnboundedSender<SocketRequest>);

enum SocketChange {
    AddBridge(Bridge),
    RemoveBridge,
    AddController(Target, Controller),
    RemoveController(Target),
    Reconnect,
}

struct SocketRequest {
    bridge: String,
    change: SocketChange,
    reply: oneshot::Sender<Result<(), String>>,
}

impl SocketRequests {
    /// Opens the management sockets of a bridge.
    pub fn add_bridge(&self, name: &str, bridge: Bridge) -> Result<(), String> {
        self.ask(name, SocketChange::AddBridge(bridge))
    }

    /// Closes every socket of a bridge.
    pub fn remove_bridge(&self, name: &str) -> Result<(), String> {
        self.ask(name, SocketChange::RemoveBridge)
    }

    /// Connects to a controller, or listens for one.
    pub fn add_controller(&self, bridge: &str, target: Target, controller: Controller) -> Result<(), String> {
        self.ask(bridge, SocketChange::AddController(target, controller))
    }

    /// Closes a controller's connections.
    pub fn remove_controller(&self, bridge: &str, target: Target) -> Result<(), String> {
        self.ask(bridge, SocketChange::RemoveController(target))
    }

    /// Closes the connections to a bridge's controllers, and connects again.
    pub fn reconnect(&self, bridge: &str) -> Result<(), String> {
        self.ask(bridge, SocketChange::Reconnect)
    }

    fn ask(&self, bridge: &str, change: SocketChange) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        let ended = || "the management thread has ended".to_string();
        self.0.send(SocketRequest { bridge: bridge.to_owned(), change, reply }).map_err(|_| ended())?;
        answer.blocking_recv().unwrap_or_else(|_| Err(ended()))
    }
}

/// The sockets of all bridges.
pub struct Manager {
    rundir: Rundir,
    timer: Timer,
    tls: Tls,
    bridges: RefCell<BTreeMap<String, BridgeSockets>>,
}

struct BridgeSockets {
    /// Where relative names of sockets begin.
    rundir: PathBuf,
    peers: Rc<Peers>,
    controllers: BTreeMap<Target, ControllerTask>,
    /// Runs while there are controllers.
    in_band: Option<Task>,
    _management: Task,
    _snoop: Task,
}

struct ControllerTask {
    state: Rc<ControllerState>,
    _task: Task,
}

/// What is known of a controller. Its tasks write, reports read.
#[derive(Debug, Default)]
pub struct ControllerState {
    /// As it is configured. Its connections have changes of most of it at once, and of the rest when they are made anew.
    settings: watch::Sender<Controller>,
    status: RefCell<ControllerStatus>,
    /// Where it is, for in-band control.
    whereabouts: Whereabouts,
    /// Copies its messages.
    snoop_point: Arc<SnoopPoint>,
}

impl ControllerState {
    fn new(settings: Controller) -> Rc<ControllerState> {
        Rc::new(ControllerState { settings: watch::Sender::new(settings), ..ControllerState::default() })
    }

    /// As it is configured now.
    fn settings(&self) -> Controller {
        self.settings.borrow().clone()
    }

    /// A copy.
    fn status(&self) -> ControllerStatus {
        self.status.borrow().clone()
    }

    fn change(&self, change: impl FnOnce(&mut ControllerStatus)) {
        change(&mut self.status.borrow_mut());
    }
}

impl Manager {
    /// A manager without bridges.
    pub fn new(rundir: Rundir, timer: Timer, tls: Tls) -> Manager {
        Manager { rundir, timer, tls, bridges: RefCell::default() }
    }

    /// Does what is asked for.
    fn change(&self, name: &str, change: SocketChange) -> Result<(), String> {
        let mut bridges = self.bridges.borrow_mut();
        match change {
            SocketChange::AddBridge(bridge) => {
                bridges.insert(name.to_owned(), self.open(name, bridge)?);
                Ok(())
            }
            SocketChange::RemoveBridge => bridges.remove(name).map(drop).ok_or_else(|| no_bridge(name)),
            SocketChange::AddController(target, controller) => {
                bridges.get_mut(name).ok_or_else(|| no_bridge(name))?.set_controller(target, controller)
            }
            SocketChange::RemoveController(target) => {
                bridges.get_mut(name).ok_or_else(|| no_bridge(name))?.remove_controller(&target);
                Ok(())
            }
            SocketChange::Reconnect => bridges.get_mut(name).ok_or_else(|| no_bridge(name))?.reconnect(),
        }
    }

    fn open(&self, name: &str, bridge: Bridge) -> Result<BridgeSockets, String> {
        let path = self.rundir.file(&format!("{name}.mgmt"));
        let peers = Rc::new(Peers::new(bridge, self.timer.clone(), self.tls.clone()));
        let management = listener::management(&path, peers.clone())?;
        let snoop = snoop::listen(&self.rundir.file(&format!("{name}.snoop")), peers.clone())?;
        let rundir = self.rundir.path().into();
        let (controllers, in_band) = Default::default();
        Ok(BridgeSockets { rundir, peers, controllers, in_band, _management: management, _snoop: snoop })
    }

    /// The controllers of a bridge and what is known about them.
    pub fn controllers(&self, bridge: &str) -> Vec<(Target, ControllerStatus)> {
        let bridges = self.bridges.borrow();
        let controllers = bridges.get(bridge).into_iter().flat_map(|b| &b.controllers);
        controllers.map(|(target, c)| (target.clone(), c.state.status())).collect()
    }

    /// Closes the connections to a bridge's controllers, and connects again.
    pub fn reconnect(&self, bridge: &str) -> Result<(), String> {
        let mut bridges = self.bridges.borrow_mut();
        bridges.get_mut(bridge).ok_or_else(|| no_bridge(bridge))?.reconnect()
    }

    /// Closes every socket.
    pub fn close(&self) {
        self.bridges.borrow_mut().clear();
    }
}

/// Serves the configurator's requests until it ends.
pub async fn serve(manager: Rc<Manager>, mut requests: SocketRequestQueue) {
    while let Some(request) = requests.0.recv().await {
        let outcome = manager.change(&request.bridge, request.change);
        // The configurator may have died meanwhile.
        let _ = request.reply.send(outcome);
    }
}

/// The receiving end of [`SocketRequests`].
pub struct SocketRequestQueue(mpsc::UnboundedReceiver<SocketRequest>);

/// A channel from the configurator to the manager.
pub fn requests() -> (SocketRequests, SocketRequestQueue) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (SocketRequests(sender), SocketRequestQueue(receiver))
}

fn no_bridge(name: &str) -> String {
    format!("bridge {name} does not exist")
}

impl BridgeSockets {
    fn add_controller(&mut self, target: Target, controller: Controller) -> Result<(), String> {
        self.end_controller(&target);
        let state = ControllerState::new(controller.clone());
        state.whereabouts.configure(&target, controller.in_band);
        let dscp = controller.dscp;
        let task = match &target {
            Target::PassiveTcp(port, host) | Target::PassiveSsl(port, host) => {
                let is_secure = matches!(target, Target::PassiveSsl(..));
                listener::tcp(*port, host.as_deref(), is_secure, self.peers.clone(), state.clone(), dscp)?
            }
            Target::PassiveUnix(path) => listener::unix(&self.rundir.join(path), self.peers.clone(), state.clone())?,
            Target::Unix(path) => {
                let target = Target::Unix(self.rundir.join(path));
                controller::connect(target, self.peers.clone(), state.clone())
            }
            Target::Tcp(..) | Target::Ssl(..) => controller::connect(target.clone(), self.peers.clone(), state.clone()),
        };
        self.peers.controllers.borrow_mut().push(state.clone());
        self.controllers.insert(target, ControllerTask { state, _task: task });
        self.controllers_changed();
        Ok(())
    }

    /// Adds a controller, or changes the settings of one: as in OVS, its connections stay, unless it is to be another kind of controller or its
    /// packets are to be marked otherwise.
    fn set_controller(&mut self, target: Target, controller: Controller) -> Result<(), String> {
        let known = self.controllers.get(&target).filter(|known| {
            let known = known.state.settings.borrow();
            (known.kind, known.dscp) == (controller.kind, controller.dscp)
        });
        let Some(known) = known else { return self.add_controller(target, controller) };
        known.state.whereabouts.configure(&target, controller.in_band);
        known.state.settings.send_replace(controller);
        in_band::refresh(&self.peers);
        Ok(())
    }

    fn reconnect(&mut self) -> Result<(), String> {
        let controllers: Vec<_> = self.controllers.iter().map(|(t, c)| (t.clone(), c.state.settings())).collect();
        controllers.into_iter().try_for_each(|(target, controller)| self.add_controller(target, controller))
    }

    fn remove_controller(&mut self, target: &Target) {
        self.end_controller(target);
        self.controllers_changed();
    }

    fn controllers_changed(&mut self) {
        let is_primary = |task: &ControllerTask| task.state.settings.borrow().kind == ControllerKind::Primary;
        self.peers.configured(self.controllers.values().any(is_primary));
        in_band::refresh(&self.peers);
        if self.controllers.is_empty() {
            self.in_band = None;
        } else if self.in_band.is_none() {
            let peers = self.peers.clone();
            self.in_band = Some(Task::spawn(async move { in_band::keep(&peers).await }));
        }
    }

    fn end_controller(&mut self, target: &Target) {
        if let Some(ControllerTask { state, .. }) = self.controllers.remove(target) {
            state.snoop_point.close();
            self.peers.controllers.borrow_mut().retain(|other| !Rc::ptr_eq(other, &state));
        }
    }
}

/// A bridge and its OpenFlow connections.
pub struct Peers {
    bridge: Bridge,
    timer: Timer,
    /// For those that speak it.
    tls: Tls,
    /// Which of them is the primary.
    roles: Arc<Roles>,
    /// A primary controller is configured.
    configured: Cell<bool>,
    /// Primary controllers that are connected.
    connected: Cell<usize>,
    /// No controller has been connected for too long.
    fail_open: Cell<bool>,
    /// Connections of OpenFlow 1.0 to 1.2, which get packets that miss.
    want_misses: Cell<usize>,
    /// The controllers that are configured.
    controllers: RefCell<Vec<Rc<ControllerState>>>,
}

impl Peers {
    fn new(bridge: Bridge, timer: Timer, tls: Tls) -> Peers {
        Peers {
            bridge,
            timer,
            tls,
            roles: Arc::default(),
            configured: Cell::default(),
            connected: Cell::default(),
            fail_open: Cell::default(),
            want_misses: Cell::default(),
            controllers: RefCell::default(),
        }
    }

    fn configured(&self, configured: bool) {
        self.configured.set(configured);
        self.tell();
    }

    /// Counts a connection in or out.
    fn count(&self, kind: ConnectionKind, wants_misses: bool, up: bool) {
        let change = |cell: &Cell<usize>| cell.set(if up { cell.get() + 1 } else { cell.get().saturating_sub(1) });
        if kind == ConnectionKind::Controller {
            change(&self.connected);
        }
        if wants_misses {
            change(&self.want_misses);
        }
        if self.connected.get() > 0 {
            self.fail_open.set(false);
        }
        self.tell();
    }

    /// Where the messages of the controller are to be had that is most interesting.
    fn best_snoop_point(&self) -> Option<Arc<SnoopPoint>> {
        let controllers = self.controllers.borrow();
        let best = controllers.iter().max_by_key(|state| snoop::preference(&state.status()))?;
        Some(best.snoop_point.clone())
    }

    /// A controller has not been connected for too long.
    fn controller_lost(&self) {
        if self.connected.get() == 0 {
            self.fail_open.set(true);
            self.tell();
        }
    }

    /// Tells the bridge what the connections mean for its forwarding.
    fn tell(&self) {
        self.bridge.set_controllers(Controllers {
            configured: self.configured.get(),
            want_misses: self.want_misses.get() > 0,
            fail_open: self.fail_open.get(),
        });
    }
}

/// A task that ends when this is dropped.
pub struct Task {
    handle: tokio::task::JoinHandle<()>,
    /// The socket that it listens on, which goes with it.
    file: Option<SocketFile>,
    /// A TCP socket that it listens on, of which another one may take the port as soon as this is dropped.
    listening: Option<OwnedFd>,
}

impl Task {
    fn spawn(future: impl Future<Output = ()> + 'static) -> Task {
        Task { handle: tokio::task::spawn_local(future), file: None, listening: None }
    }

    fn with_listening(mut self, socket: OwnedFd) -> Task {
        self.listening = Some(socket);
        self
    }

    fn with_file(mut self, file: SocketFile) -> Task {
        self.file = Some(file);
        self
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
        // The task itself is dropped when the runtime next comes to it.
        if let Some(socket) = &self.listening {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}
