//! The system's log at a UDP port, given by an address or by a name.
//!
//! Who sends holds the logger's lock, for which all threads wait that log. So a name is looked up by a thread of its own, which
//! may wait for name servers; the first messages wait here meanwhile, the others are lost.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Messages that wait for an address.
const MAX_WAITING: usize = 256;

/// How long a name is left alone that could not be looked up.
const BETWEEN_LOOKUPS: Duration = Duration::from_secs(30);

/// The port, and the way to it.
pub struct Udp {
    /// `HOST:PORT`.
    target: String,
    link: Arc<Mutex<Link>>,
}

/// The way. The sender and the thread that looks up the name share it.
enum Link {
    /// The next message makes one, from this time on.
    Down(Option<Instant>),
    /// The name is being looked up.
    Resolving(Vec<Vec<u8>>),
    Up(UdpSocket),
}

impl Udp {
    /// Connects with the first message.
    pub fn new(target: &str) -> Udp {
        Udp { target: target.to_owned(), link: Arc::new(Mutex::new(Link::Down(None))) }
    }

    /// Sends a message, keeps it until there is an address, or loses it.
    pub fn send(&self, message: &[u8]) {
        let mut link = self.link.lock();
        if matches!(&*link, Link::Down(retry) if retry.is_none_or(|retry| retry <= Instant::now())) {
            *link = match self.target.parse() {
                Ok(address) => connect(&[address]).map_or(Link::Down(None), Link::Up),
                Err(_) => self.resolve(),
            };
        }
        match &mut *link {
            Link::Down(_) => {}
            Link::Resolving(waiting) if waiting.len() < MAX_WAITING => waiting.push(message.to_owned()),
            Link::Resolving(_) => {}
            Link::Up(socket) => {
                if send(socket, message).is_err() {
                    *link = Link::Down(None);
                }
            }
        }
    }

    /// Has the name looked up.
    fn resolve(&self) -> Link {
        let (link, target) = (Arc::downgrade(&self.link), self.target.clone());
        let look_up = move || {
            let outcome = target.to_socket_addrs().and_then(|addresses| connect(&addresses.collect::<Vec<_>>()));
            let Some(link) = link.upgrade() else { return };
            let next = match outcome {
                Ok(socket) => Link::Up(socket),
                Err(_) => Link::Down(Some(Instant::now() + BETWEEN_LOOKUPS)),
            };
            let mut link = link.lock();
            if let (Link::Resolving(waiting), Link::Up(socket)) = (&*link, &next) {
                // There is nobody to whom a failure could be told.
                waiting.iter().for_each(|message| drop(send(socket, message)));
            }
            *link = next;
        };
        match std::thread::Builder::new().name("log-server".into()).spawn(look_up) {
            Ok(_) => Link::Resolving(Vec::new()),
            Err(_) => Link::Down(Some(Instant::now() + BETWEEN_LOOKUPS)),
        }
    }
}

/// A socket to the first of these that there is a way to.
fn connect(addresses: &[SocketAddr]) -> io::Result<UdpSocket> {
    let mut failure = io::ErrorKind::NotFound.into();
    for address in addresses {
        let socket = match address {
            SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
        };
        match socket.and_then(|socket| socket.connect(address).and(socket.set_nonblocking(true)).map(|()| socket)) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Sends a message, or loses it where the socket is full.
fn send(socket: &UdpSocket, message: &[u8]) -> io::Result<()> {
    // That a message before was refused must not cost this one, nor a look-up: who listens may come later.
    let outcome = match socket.send(message) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.send(message),
        outcome => outcome,
    };
    match outcome {
        Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> (UdpSocket, u16) {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn next(listener: &UdpSocket) -> String {
        let mut buffer = [0; 64];
        let length = listener.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn messages_wait_for_the_address_of_a_name() {
        let (listener, port) = listener();
        let log = Udp::new(&format!("localhost:{port}"));
        (0..3).for_each(|number| log.send(format!("{number}").as_bytes()));
        assert_eq!([next(&listener), next(&listener), next(&listener)], ["0", "1", "2"]);
        log.send(b"later");
        assert_eq!(next(&listener), "later");
    }

    #[test]
    fn a_server_that_comes_later_gets_the_next_message() {
        let (gone, port) = listener();
        drop(gone);
        let log = Udp::new(&format!("127.0.0.1:{port}"));
        log.send(b"lost");
        let listener = UdpSocket::bind(("127.0.0.1", port)).unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        log.send(b"found");
        assert_eq!(next(&listener), "found");
    }

    #[test]
    fn what_waits_for_a_name_has_a_bound() {
        let log = Udp::new("localhost:1");
        *log.link.lock() = Link::Resolving(Vec::new());
        (0..2 * MAX_WAITING).for_each(|_| log.send(b"x"));
        assert!(matches!(&*log.link.lock(), Link::Resolving(waiting) if waiting.len() == MAX_WAITING));
    }
}
