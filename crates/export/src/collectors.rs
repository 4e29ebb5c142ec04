//! Sockets to collectors. Each is a UDP socket that is connected to its collector and never blocks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use packet::Time;

use crate::{Sent, Sink};

/// How long a collector that cannot be reached is left alone.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// The collectors of an exporter.
pub struct Collectors {
    collectors: Vec<Collector>,
    /// The time of the present round.
    now: Time,
}

struct Collector {
    target: SocketAddr,
    /// `None` while there is no way to it.
    socket: Option<UdpSocket>,
    /// When to try again.
    retry: Time,
}

impl Collectors {
    /// Opens sockets to all of them. There may be no way to some yet: it is tried again when something is to be sent.
    pub fn open(targets: &[SocketAddr], now: Time) -> Collectors {
        let collectors = targets.iter().map(|&target| Collector { target, socket: None, retry: Time(0) });
        let mut collectors = Collectors { collectors: collectors.collect(), now };
        collectors.collectors.iter_mut().for_each(|collector| drop(collector.socket(now)));
        collectors
    }

    /// Says what the time is, before something is sent.
    pub fn at(&mut self, now: Time) -> &mut Collectors {
        self.now = now;
        self
    }

    /// The address by which this host sends to the first collector that there is a way to.
    pub fn local_address(&self) -> Option<IpAddr> {
        let socket = self.collectors.iter().find_map(|collector| collector.socket.as_ref())?;
        socket.local_addr().ok().map(|address| address.ip())
    }
}

impl Sink for Collectors {
    fn send(&mut self, datagram: &[u8]) -> Sent {
        let mut sent = Sent::default();
        for collector in &mut self.collectors {
            match collector.send(datagram, self.now) {
                Ok(()) => sent.taken += 1,
                Err(_) => sent.failed += 1,
            }
        }
        sent
    }
}

impl Collector {
    fn socket(&mut self, now: Time) -> io::Result<&UdpSocket> {
        if self.socket.is_none() {
            if now < self.retry {
                return Err(io::ErrorKind::NetworkUnreachable.into());
            }
            self.retry = now + BETWEEN_ATTEMPTS;
            self.socket = Some(connect(self.target)?);
        }
        self.socket.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn send(&mut self, datagram: &[u8], now: Time) -> io::Result<()> {
        let socket = self.socket(now)?;
        let outcome = match socket.send(datagram) {
            // That is about a datagram before: this one has not been sent.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.send(datagram),
            outcome => outcome,
        };
        match outcome.map_err(|error| (error.kind(), error)) {
            Ok(_) => Ok(()),
            Err((io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused, error)) => Err(error),
            Err((_, error)) => {
                // The source address may have gone, or the route: a new socket finds another.
                self.socket = None;
                self.retry = now + BETWEEN_ATTEMPTS;
                Err(error)
            }
        }
    }
}

fn connect(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
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
        assert_eq!(collectors.send(b"datagram"), Sent { taken: 2, failed: 0 });
        for receiver in &receivers {
            let mut bytes = [0; 32];
            let n = receiver.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..n], b"datagram");
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
        assert_eq!(collectors.send(b"found"), Sent { taken: 1, failed: 0 });
        let mut bytes = [0; 32];
        let n = back.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..n], b"found");
    }

    #[test]
    fn a_datagram_that_is_too_long_costs_the_socket_for_a_while() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut collectors = Collectors::open(&[receiver.local_addr().unwrap()], Time(0));
        assert_eq!(collectors.send(&vec![0; 70_000]).failed, 1);
        assert_eq!(collectors.send(b"x").failed, 1);
        assert_eq!(collectors.at(Time(0) + BETWEEN_ATTEMPTS).send(b"x").taken, 1);
    }
}
