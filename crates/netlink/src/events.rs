//! What the kernel tells of changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use netlink_packet_core::NetlinkBuffer;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::message::Messages;
use super::{BUFFER, OVERFLOWS, RECEIVED, receive};

/// What the kernel tells.
#[derive(Debug)]
pub enum Event<'a> {
    /// A message.
    Message(NetlinkBuffer<&'a [u8]>),
    /// Some are lost: all has to be asked for anew.
    Overflow,
}

/// A socket that gets the changes of a network namespace.
pub struct Events {
    socket: Socket,
    buffer: Vec<u8>,
    /// How many datagrams to take until all that waited at the last overflow is taken.
    behind: usize,
}

/// Room for the changes of some thousand interfaces. Memory is taken as they wait; what does not fit is made up
/// for by a dump.
const EVENTS_BUFFER: usize = 8 << 20;

/// More datagrams than there is room for: the kernel takes twice that memory, and some hundred bytes for each.
const MOST: usize = 2 * EVENTS_BUFFER / 256;

impl Events {
    /// A socket that is told of what these groups are about (`RTNLGRP_*`, at most 32).
    pub fn open(groups: &[u32]) -> io::Result<Events> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        // Past the limit of the system only with CAP_NET_ADMIN: without, it is as much as that allows.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, EVENTS_BUFFER).is_err() {
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, EVENTS_BUFFER);
        }
        // With an address of its own, which the kernel chooses: to a socket without, nothing is told.
        socket.bind(&SocketAddr::new(0, groups.iter().fold(0, |all, group| all | 1 << (group - 1))))?;
        Ok(Events { socket, buffer: vec![0; BUFFER], behind: 0 })
    }

    /// The same socket, for whoever waits for changes.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Whether some of what waited at an overflow may wait still. Until it is taken, the kernel tells nothing, nor does it say so
    /// (NETLINK_S_CONGESTED): whoever asks for all before that misses what changes between the answer and then.
    pub fn is_behind(&self) -> bool {
        self.behind > 0
    }

    /// Calls `each` with the events of one datagram. `false`: none waits.
    pub fn next(&mut self, mut each: impl FnMut(Event<'_>)) -> bool {
        self.behind = self.behind.saturating_sub(1);
        let len = match receive(&self.socket, &mut self.buffer, libc::MSG_DONTWAIT) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.behind = 0;
                return false;
            }
            Ok(len) if len <= self.buffer.len() => len,
            // ENOBUFS, or one that was too long, of which the kernel knows none.
            _ => {
                OVERFLOWS.fetch_add(1, Relaxed);
                self.behind = MOST;
                each(Event::Overflow);
                return true;
            }
        };
        RECEIVED.fetch_add(1, Relaxed);
        for message in Messages(&self.buffer[..len]) {
            match message {
                Ok(message) => each(Event::Message(message)),
                Err(_) => each(Event::Overflow),
            }
        }
        true
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
