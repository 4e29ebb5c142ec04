//! Controllers that Weir connects to, and connects to again when the connection ends.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio::sync::oneshot;

use super::connection::{self, Stream};
use super::{ControllerState, Peers, Task, in_band};
use crate::config::Target;
use crate::config::desired::{Controller, ControllerKind};

/// The first pause between two attempts to connect; each further one is twice as long.
const MIN_BACKOFF: Duration = Duration::from_secs(1);

/// How long one attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// After how many probe intervals without a controller a standalone bridge becomes a learning switch
/// (ovs-vswitchd.conf.db(5), fail_mode).
const FAIL_OPEN_PROBES: u32 = 3;

/// Keeps a connection to a controller.
pub fn connect(target: Target, peers: Rc<Peers>, state: Rc<ControllerState>) -> Task {
    Task::spawn(async move { keep_connected(&target, &peers, &state).await })
}

async fn keep_connected(target: &Target, peers: &Peers, state: &ControllerState) {
    let mut backoff = Backoff::new(state.settings().max_backoff);
    let timer = &peers.timer;
    let mut lost_since = timer.now();
    let name = target.to_string();
    let called = || connection::called(peers, &name);
    // Whether the log has all that it is to have of attempts that fail.
    let mut is_quiet = false;
    loop {
        if !is_quiet {
            tracing::info!("{}: connecting...", called());
        }
        let (error, lasted) = match connect_once(target, &state.settings(), peers, state).await {
            Ok(stream) => {
                let started = timer.now();
                let ended = connection::run(stream, &name, peers, state, None).await;
                // A peer that hangs up at once is tried no more often than one that does not answer.
                let lasted = timer.now().since(started) > MIN_BACKOFF;
                (ended.err().unwrap_or_else(|| "the controller has closed the connection".into()), lasted)
            }
            Err(error) => {
                if !is_quiet {
                    tracing::info!("{}: connection failed ({error})", called());
                }
                (error, false)
            }
        };
        let controller = &state.settings();
        backoff.set_max(controller.max_backoff);
        if lasted {
            backoff = Backoff::new(controller.max_backoff);
            (lost_since, is_quiet) = (timer.now(), false);
        }
        state.change(|status| status.error = Some(error));
        // The bridge may have to fail open within the pause.
        let until_fail_open = fail_open_after(controller).saturating_sub(timer.now().since(lost_since));
        let pause = backoff.next();
        if !is_quiet {
            is_quiet = backoff.is_longest(pause);
            match is_quiet {
                false => tracing::info!("{}: waiting {} seconds before reconnect", called(), pause.as_secs()),
                true => tracing::info!(
                    "{}: continuing to retry connections in the background but suppressing further logging",
                    called()
                ),
            }
        }
        if until_fail_open <= pause {
            timer.sleep(until_fail_open).await;
            if controller.kind == ControllerKind::Primary {
                peers.controller_lost();
            }
            timer.sleep(pause - until_fail_open).await;
        } else {
            timer.sleep(pause).await;
        }
    }
}

/// One attempt; an error says in words why it failed.
async fn connect_once(
    target: &Target,
    controller: &Controller,
    peers: &Peers,
    state: &ControllerState,
) -> Result<Box<dyn Stream>, String> {
    let opened = peers.timer.timeout(CONNECT_TIMEOUT, open(target, controller, peers, state)).await;
    opened.unwrap_or_else(|| Err("no answer".into()))
}

/// An error says in words what is wrong.
async fn open(
    target: &Target,
    controller: &Controller,
    peers: &Peers,
    state: &ControllerState,
) -> Result<Box<dyn Stream>, String> {
    // As the C library has it, without the number.
    let words = |e: io::Error| {
        let text = e.to_string();
        text.split(" (os error ").next().unwrap_or_default().to_owned()
    };
    let open_tcp = async |host: &str, port: u16| {
        let addresses = resolve(host, port).await.map_err(words)?;
        state.whereabouts.found(&addresses);
        in_band::refresh(peers);
        connect_tcp(&addresses, controller.dscp).await.map_err(words)
    };
    match target {
        Target::Tcp(host, port) => Ok(Box::new(open_tcp(host, *port).await?)),
        Target::Ssl(host, port) => {
            let connected = match peers.tls.connect(host, open_tcp(host, *port).await?).await {
                // With the CA certificate that the controller has just sent.
                Err(tls::Error::Bootstrapped(_)) => peers.tls.connect(host, open_tcp(host, *port).await?).await,
                connected => connected,
            };
            Ok(Box::new(connected.map_err(|e| e.to_string())?))
        }
        Target::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(words)?)),
        Target::PassiveTcp(..) | Target::PassiveSsl(..) | Target::PassiveUnix(_) => {
            Err(words(io::ErrorKind::InvalidInput.into()))
        }
    }
}

/// Connects to the first of the addresses that takes it.
async fn connect_tcp(addresses: &[SocketAddr], dscp: u8) -> io::Result<TcpStream> {
    let mut refused = io::ErrorKind::AddrNotAvailable.into();
    for &address in addresses {
        match tcp_socket(address, dscp)?.connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// A socket of the address's family that sends with this DSCP from its first packet on. Where the system refuses the DSCP, it sends without.
pub fn tcp_socket(address: SocketAddr, dscp: u8) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
    let class = dscp << 2;
    // One for IPv6 may carry IPv4, too.
    let set_v4 = set_ip_tos(&socket, class);
    let set = if address.is_ipv6() { set_ipv6_tclass(&socket, class.into()).and(set_v4) } else { set_v4 };
    if let Err(error) = set {
        tracing::warn!("the DSCP {dscp} cannot be set for OpenFlow connections: {error}");
    }
    Ok(socket)
}

/// The addresses of a host. A name is looked up on a thread of its own: tokio's function for that panics if the system
/// refuses it a thread.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let (reply, answer) = oneshot::channel();
    let host = host.to_owned();
    std::thread::Builder::new().name("resolver".into()).spawn(move || {
        // The receiver may have been dropped.
        let _ = reply.send((host, port).to_socket_addrs().map(Iterator::collect));
    })?;
    answer.await.unwrap_or_else(|_| Err(io::ErrorKind::NotFound.into()))
}

fn fail_open_after(controller: &Controller) -> Duration {
    controller.inactivity_probe.max(Duration::from_secs(1)) * FAIL_OPEN_PROBES
}

/// Pauses that double up to a limit.
struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    fn new(max: Duration) -> Backoff {
        Backoff { next: MIN_BACKOFF.min(max), max }
    }

    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.max);
        pause
    }

    /// No pause is longer from now on.
    fn set_max(&mut self, max: Duration) {
        (self.next, self.max) = (self.next.min(max), max);
    }

    /// Whether no pause will be longer.
    fn is_longest(&self, pause: Duration) -> bool {
        pause >= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_secs(8));
        let pauses: Vec<_> = (0..6).map(|_| backoff.next().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        assert!(backoff.is_longest(Duration::from_secs(8)) && !backoff.is_longest(Duration::from_secs(4)));
    }
}
