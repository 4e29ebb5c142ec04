//! Listening sockets: each bridge's management socket, `ptcp:`, `pssl:` and `punix:`.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::JoinSet;

use super::connection::{self, HANDSHAKE, Stream};
use super::controller::tcp_socket;
use super::{ControllerState, Peers, Task};
use crate::config::desired::{Controller, ControllerKind};
use crate::connections::Connections;
use crate::unixctl::server::bind_unix;

/// Connections to one listener at a time.
const MAX_CONNECTIONS: usize = 128;

/// The probe interval on the management socket. It is long, because tools that only listen print what they receive.
const SERVICE_PROBE: Duration = Duration::from_secs(60);

/// The bridge's management socket, where `ovs-ofctl CMD BRIDGE` finds it.
pub fn management(path: &Path, peers: Rc<Peers>) -> Result<Task, String> {
    let (listener, file) = bind_unix(path).map_err(|e| format!("{}: cannot listen: {e}", path.display()))?;
    let (kind, inactivity_probe) = (ControllerKind::Service, SERVICE_PROBE);
    let settings = Controller { kind, inactivity_probe, ..Controller::default() };
    let accept = accept(Listener::Unix(listener), peers, ControllerState::new(settings));
    Ok(Task::spawn(accept).with_file(file))
}

/// `punix:FILE`.
pub fn unix(path: &Path, peers: Rc<Peers>, state: Rc<ControllerState>) -> Result<Task, String> {
    let (listener, file) = bind_unix(path).map_err(|e| format!("punix:{}: cannot listen: {e}", path.display()))?;
    let accept = accept(Listener::Unix(listener), peers, state);
    Ok(Task::spawn(accept).with_file(file))
}

/// `ptcp:[PORT][:HOST]`, or, where it is secure, `pssl:[PORT][:HOST]`.
pub fn tcp(
    port: u16,
    host: Option<&str>,
    is_secure: bool,
    peers: Rc<Peers>,
    state: Rc<ControllerState>,
    dscp: u8,
) -> Result<Task, String> {
    let method = if is_secure { "pssl" } else { "ptcp" };
    let address = match host.map(str::parse::<IpAddr>) {
        // The IPv6 wildcard takes IPv4, too.
        None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        Some(Ok(address)) => address,
        Some(Err(_)) => return Err(format!("{method}:{port}: {:?} is not an IP address", host.unwrap_or_default())),
    };
    let bind = |address| bind_tcp(SocketAddr::new(address, port), dscp);
    let bound = bind(address).or_else(|e| match host {
        None => bind([0, 0, 0, 0].into()),
        Some(_) => Err(e),
    });
    let listener = bound.map_err(|e| format!("{method}:{port}: cannot listen: {e}"))?;
    let listening = listener.as_fd().try_clone_to_owned().map_err(|e| format!("{method}:{port}: {e}"))?;
    let listener = if is_secure { Listener::Ssl(listener) } else { Listener::Tcp(listener) };
    Ok(Task::spawn(accept(listener, peers, state)).with_listening(listening))
}

/// What is accepted sends with the same DSCP.
fn bind_tcp(address: SocketAddr, dscp: u8) -> io::Result<TcpListener> {
    let socket = tcp_socket(address, dscp)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(64)
}

/// How many connections of Unix sockets there have been, for their names.
static ACCEPTED: AtomicU64 = AtomicU64::new(0);

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
    Ssl(TcpListener),
}

/// A peer that has connected.
enum Accepted {
    Plain(Box<dyn Stream>),
    /// It has to shake hands first, which is not waited for where connections are taken.
    Ssl(TcpStream),
}

impl Listener {
    async fn accept(&self) -> io::Result<(Accepted, String)> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                // Such peers have no address: they are counted, as in Open vSwitch.
                let number = ACCEPTED.fetch_add(1, Ordering::Relaxed);
                Ok((Accepted::Plain(Box::new(stream)), format!("unix#{number}")))
            }
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Accepted::Plain(Box::new(stream)), format!("tcp:{peer}")))
            }
            Listener::Ssl(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Accepted::Ssl(stream), format!("ssl:{peer}")))
            }
        }
    }
}

impl Accepted {
    async fn stream(self, peers: &Peers, name: &str) -> Result<Box<dyn Stream>, String> {
        let stream = match self {
            Accepted::Plain(stream) => return Ok(stream),
            Accepted::Ssl(stream) => stream,
        };
        let failed = |error: String| {
            tracing::warn!(target: "stream_ssl", bridge = peers.bridge.name(), peer = name, "{error}");
            error
        };
        match tokio::time::timeout(HANDSHAKE, peers.tls.accept(stream)).await {
            Ok(accepted) => Ok(Box::new(accepted.map_err(|e| failed(e.to_string()))?)),
            Err(_) => Err(failed(format!("TLS: the handshake has taken longer than {} s", HANDSHAKE.as_secs()))),
        }
    }
}

/// Takes connections, each as a task that ends with this one.
async fn accept(listener: Listener, peers: Rc<Peers>, state: Rc<ControllerState>) {
    let (mut tasks, connections) = (JoinSet::new(), Connections::new(MAX_CONNECTIONS));
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((accepted, name)) => {
                    let slot = connections.admit().await;
                    let (peers, state) = (peers.clone(), state.clone());
                    tasks.spawn_local(async move {
                        let serve = async {
                            let stream = accepted.stream(&peers, &name).await?;
                            connection::run(stream, &name, &peers, &state, Some(&slot)).await
                        };
                        let ended = tokio::select! {
                            ended = serve => ended,
                            () = slot.lost() => Err(made_room(&peers, &name)),
                        };
                        state.change(|status| status.error = ended.err());
                    });
                    // Its task runs, and reads what has arrived, before another connection is taken.
                    tokio::task::yield_now().await;
                }
                Err(e) => {
                    // Most likely there are no descriptors left. Some may be free soon.
                    tracing::warn!(bridge = peers.bridge.name(), "cannot accept an OpenFlow connection: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

fn made_room(peers: &Peers, name: &str) -> String {
    let reason = format!("{MAX_CONNECTIONS} others are connected, and it was silent for longest");
    tracing::warn!(bridge = peers.bridge.name(), peer = name, "OpenFlow connection closed: {reason}");
    reason
}
