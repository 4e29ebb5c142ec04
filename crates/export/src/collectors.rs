//! Sockets to collectors. Each is a UDP socket that is connected to its collector and never blocks.
//!
//! All exporters together have [`MOST_SOCKETS`] at most, so that descriptors are left for everything else.
//!
//! A collector that cannot be reached costs no more than one attempt a second, and others nothing. Where a host says that
//! nobody listens (ICMP port unreachable), the kernel tells it with the next datagram ([`Sent::refused`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use packet::Time;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover};
use rustix::process::{Resource, getrlimit};

use crate::{Sent, Sink};

/// Sockets of the process at a time, and the part of its descriptors that they take at most.
const MOST_SOCKETS: u64 = 1024;
const PART: u64 = 4;

/// Those of the process.
static SOCKETS: Sockets = Sockets { open: AtomicU64::new(0), most: MOST_SOCKETS };

/// How long a collector that cannot be reached is left alone.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// The collectors of an exporter.
pub struct Collectors {
    collectors: Vec<Collector>,
    sockets: &'static Sockets,
    /// The time of the present round.
    now: Time,
}

struct Collector {
    target: SocketAddr,
    /// `None` while there is no way to it.
    socket: Option<Socket>,
    /// When to try again.
    retry: Time,
    status: Status,
}

/// How it stands with a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its address.
    pub target: SocketAddr,
    /// Datagrams that were sent to it.
    pub sent: u64,
    /// Those that could not be sent.
    pub failed: u64,
    /// Those that were sent, and that its host refused.
    pub refused: u64,
    /// Why the last one was not sent, or was refused; `None` if neither.
    pub error: Option<String>,
}

impl Collectors {
    /// Opens sockets to all of them. There may be no way to some yet: it is tried again when something is to be sent.
    pub fn open(targets: &[SocketAddr], now: Time) -> Collectors {
        Collectors::open_of(&SOCKETS, targets, now)
    }

    fn open_of(sockets: &'static Sockets, targets: &[SocketAddr], now: Time) -> Collectors {
        let status = |target| Status { target, sent: 0, failed: 0, refused: 0, error: None };
        let collectors =
            targets.iter().map(|&target| Collector { target, socket: None, retry: Time(0), status: status(target) });
        let mut collectors = Collectors { collectors: collectors.collect(), sockets, now };
        for collector in &mut collectors.collectors {
            let error = collector.socket(sockets, now).err();
            collector.status.error = error.map(|error| error.to_string());
        }
        collectors
    }

    /// Says what the time is, before something is sent.
    pub fn at(&mut self, now: Time) -> &mut Collectors {
        self.now = now;
        self
    }

    /// How it stands with each of them.
    pub fn statuses(&self) -> Vec<Status> {
        self.collectors.iter().map(|collector| collector.status.clone()).collect()
    }

    /// The address by which this host sends to the first collector that there is a way to.
    pub fn local_address(&self) -> Option<IpAddr> {
        let socket = self.collectors.iter().find_map(|collector| collector.socket.as_ref())?;
        socket.socket.local_addr().ok().map(|address| address.ip())
    }
}

impl Sink for Collectors {
    fn send(&mut self, datagram: &[u8]) -> Sent {
        let mut sent = Sent::default();
        for collector in &mut self.collectors {
            let one = collector.send(datagram, self.sockets, self.now);
            sent.taken += one.taken;
            sent.failed += one.failed;
            sent.refused += one.refused;
        }
        sent
    }
}

impl Collector {
    fn socket(&mut self, sockets: &'static Sockets, now: Time) -> io::Result<&UdpSocket> {
        if self.socket.is_none() {
            self.retry = now + BETWEEN_ATTEMPTS;
            self.socket = Some(sockets.connect(self.target)?);
        }
        self.socket.as_ref().map(|socket| &socket.socket).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Sends a datagram, and notes what comes of it.
    fn send(&mut self, datagram: &[u8], sockets: &'static Sockets, now: Time) -> Sent {
        let (outcome, is_refused) = self.try_send(datagram, sockets, now);
        let sent = Sent { taken: outcome.is_ok().into(), failed: outcome.is_err().into(), refused: is_refused.into() };
        let status = &mut self.status;
        (status.sent, status.failed) = (status.sent + sent.taken, status.failed + sent.failed);
        status.refused += sent.refused;
        match outcome {
            Ok(()) if is_refused => status.error = Some(io::Error::from(io::ErrorKind::ConnectionRefused).to_string()),
            Ok(()) => status.error = None,
            // Between two attempts, the error of the last one tells more.
            Err(Unsent::Waiting) => {}
            Err(Unsent::Failed(error)) => status.error = Some(error.to_string()),
        }
        sent
    }

    /// Sends a datagram. Also returns whether one before was refused.
    fn try_send(&mut self, datagram: &[u8], sockets: &'static Sockets, now: Time) -> (Result<(), Unsent>, bool) {
        if self.socket.is_none() && now < self.retry {
            return (Err(Unsent::Waiting), false);
        }
        let is_refusal = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let mut is_refused = false;
        let outcome = self.socket(sockets, now).and_then(|socket| match socket.send(datagram) {
            // That is about a datagram before: this one has not been sent.
            Err(error) if is_refusal(&error) => {
                is_refused = true;
                socket.send(datagram)
            }
            outcome => outcome,
        });
        let Err(error) = outcome else { return (Ok(()), is_refused) };
        if error.kind() != io::ErrorKind::WouldBlock && !is_refusal(&error) {
            // The source address may have gone, or the route: a new socket finds another.
            self.socket = None;
            self.retry = now + BETWEEN_ATTEMPTS;
        }
        (Err(Unsent::Failed(error)), is_refused)
    }
}

/// Why a datagram was not sent.
enum Unsent {
    /// It was tried in vain a short while ago.
    Waiting,
    /// It was tried now.
    Failed(io::Error),
}

/// How many sockets there may be.
struct Sockets {
    open: AtomicU64,
    most: u64,
}

/// One of them.
struct Socket {
    socket: UdpSocket,
    _place: Place,
}

/// Its place. Dropping it gives it back.
struct Place(&'static Sockets);

impl Sockets {
    fn connect(&'static self, target: SocketAddr) -> io::Result<Socket> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let most = self.most.min(descriptors / PART);
        let add = |open| (open < most).then_some(open + 1);
        let full =
            |_| io::Error::other(format!("there are {most} collectors already, which is as many as there can be"));
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(full)?;
        let place = Place(self);
        Ok(Socket { socket: connect(target)?, _place: place })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn connect(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    // On a way with a smaller MTU, datagrams are cut into fragments, and not refused.
    match target {
        SocketAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?,
        SocketAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DONT)?,
    }
    socket.connect(target)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_collector_gets_each_datagram() {
        let receivers: Vec<_> = (0..2).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let targets: Vec<_> = receivers.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let mut collectors = Collectors::open(&targets, Time(0));
        assert_eq!(collectors.local_address(), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(collectors.send(b"datagram"), Sent { taken: 2, ..Sent::default() });
        for receiver in &receivers {
            let mut bytes = [0; 32];
            let n = receiver.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], b"datagram");
        }
    }

    #[test]
    fn there_are_so_many_sockets_and_the_next_collector_says_so() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let targets = vec![receiver.local_addr().unwrap(); 5];
        static THREE: Sockets = Sockets { open: AtomicU64::new(0), most: 3 };
        let mut many = Collectors::open_of(&THREE, &targets, Time(0));
        let fine = |many: &Collectors| many.statuses().iter().filter(|status| status.error.is_none()).count();
        assert_eq!(fine(&many), 3);
        let error = many.statuses().pop().unwrap().error.unwrap();
        assert!(error.contains("there are 3 collectors already"), "{error}");
        assert_eq!(many.send(b"x"), Sent { taken: 3, failed: 2, refused: 0 });
        // One that goes makes room for one that waits.
        many.collectors.remove(0);
        assert_eq!(many.at(Time(0) + BETWEEN_ATTEMPTS).send(b"x").taken, 3);
        assert_eq!((many.statuses().len(), fine(&many)), (4, 3));
    }

    #[test]
    fn datagrams_may_be_cut_on_their_way() {
        use rustix::net::sockopt::{ip_mtu_discover, ipv6_mtu_discover};
        let socket = connect("127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(ip_mtu_discover(&socket).unwrap(), Ipv4PathMtuDiscovery::DONT);
        if let Ok(socket) = connect("[::1]:9".parse().unwrap()) {
            assert_eq!(ipv6_mtu_discover(&socket).unwrap(), Ipv6PathMtuDiscovery::DONT);
        }
    }

    #[test]
    fn a_collector_that_comes_back_gets_the_next_datagram() {
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap();
        let target = gone.local_addr().unwrap();
        let mut collectors = Collectors::open(&[target], Time(0));
        drop(gone);
        collectors.send(b"lost");
        let back = UdpSocket::bind(target).unwrap();
        back.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The refusal of the first one must not cost the second one.
        assert_eq!(collectors.send(b"found"), Sent { taken: 1, failed: 0, refused: 1 });
        let status = collectors.statuses().remove(0);
        assert_eq!((status.sent, status.failed, status.refused), (2, 0, 1));
        assert!(status.error.is_some_and(|error| error.contains("refused")));
        let mut bytes = [0; 32];
        let n = back.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"found");
        assert_eq!(collectors.send(b"again"), Sent { taken: 1, ..Sent::default() });
        assert_eq!(collectors.statuses()[0].error, None);
    }

    #[test]
    fn a_datagram_that_is_too_long_costs_the_socket_for_a_while() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut collectors = Collectors::open(&[receiver.local_addr().unwrap()], Time(0));
        assert_eq!(collectors.send(&vec![0; 70_000]).failed, 1);
        assert_eq!(collectors.send(b"x").failed, 1);
        // Why the attempt has failed is still known.
        assert!(collectors.statuses()[0].error.as_ref().is_some_and(|error| error.contains("too long")));
        assert_eq!(collectors.at(Time(0) + BETWEEN_ATTEMPTS).send(b"x").taken, 1);
    }
}
