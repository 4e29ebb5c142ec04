//! A receiving socket without a ring: each frame is a system call.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use packet::buffer::heap::HEADROOM;
use packet::{Memory, Packet, Time};

use super::socket::Socket;
use crate::virtual_port::MAX_FRAME;
use crate::vnet;

/// Bytes of a frame that go to its first buffer: with the headroom they fit a chunk of 2 KiB.
const FIRST: usize = 1664;

/// A queue is busy when it has received this many frames within this time.
const BUSY: usize = 1000;
const WINDOW: Duration = Duration::from_millis(100);

/// How long it is then before it is asked again.
const AGAIN: Duration = Duration::from_secs(10);

/// How long frames may be on their way to a socket that gets no new ones: longer than a grace period of the kernel.
const STRAGGLERS: Duration = Duration::from_millis(100);

thread_local! {
    /// Where the rest of a long frame goes, empty between calls. One for all sockets that a worker has.
    static SPARE: RefCell<Option<Packet>> = const { RefCell::new(None) };
}

pub struct Plain {
    socket: Arc<Socket>,
    /// An empty packet, which the next frame is read into.
    first: Option<Packet>,
    /// Frames since the window began.
    received: usize,
    since: Time,
    /// Until then, it is known to be busy.
    known: Time,
    /// When the ring began to get the frames.
    ended: Option<Time>,
}

impl Plain {
    pub fn new(socket: Arc<Socket>) -> Plain {
        Plain { socket, first: None, received: 0, since: Time(0), known: Time(0), ended: None }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Takes one frame, and the VLAN tag that the kernel has taken out of it. `None`: there is none.
    ///
    /// # Errors
    /// `OutOfMemory` where there was no buffer for a frame, which is gone, and whatever the socket says.
    pub fn receive(&mut self, memory: &'static Memory, large: &'static Memory) -> io::Result<Option<Taken>> {
        SPARE.with_borrow_mut(|spare| {
            let first = self.first.take().or_else(|| (memory.allocate)(memory, HEADROOM, FIRST));
            let rest = spare.take().or_else(|| (large.allocate)(large, HEADROOM + FIRST, MAX_FRAME));
            let (Some(mut first), Some(mut rest)) = (first, rest) else {
                let received = self.socket.receive(&mut [0; vnet::LEN], [&mut [], &mut []])?;
                return received.map_or(Ok(None), |_| Err(no_buffer()));
            };
            let mut header = [0; vnet::LEN];
            let room =
                [first.push_back(FIRST).ok_or_else(no_buffer)?, rest.push_back(MAX_FRAME).ok_or_else(no_buffer)?];
            let received = self.socket.receive(&mut header, room);
            let received = match received {
                Ok(Some(received)) => received,
                nothing => {
                    (self.first, *spare) = (emptied(first), emptied(rest));
                    return nothing.map(|_| None);
                }
            };
            let mut packet = if received.len <= FIRST {
                *spare = emptied(rest);
                first.truncate(received.len);
                first
            } else {
                rest.truncate(received.len - FIRST);
                rest.push_front(FIRST).ok_or_else(no_buffer)?.copy_from_slice(first.data());
                self.first = emptied(first);
                rest
            };
            *packet.offload_mut() = vnet::decode(&header);
            Ok(Some((packet, received.vlan)))
        })
    }

    /// Takes note of frames. Whether they are many, which is said once in a while.
    pub fn becomes_busy(&mut self, frames: usize, now: Time) -> bool {
        if now.since(self.since) >= WINDOW {
            (self.since, self.received) = (now, 0);
        }
        self.received += frames;
        if self.received < BUSY || now < self.known {
            return false;
        }
        self.known = now + AGAIN;
        true
    }

    /// From now on, no new frames are directed to it.
    pub fn end(&mut self, now: Time) {
        self.ended = Some(now);
    }

    /// Whether no frame can be on its way to it any more.
    pub fn is_over(&self, now: Time) -> bool {
        self.ended.is_some_and(|ended| now.since(ended) >= STRAGGLERS)
    }
}

/// A frame, and the VLAN tag that is missing in it: TPID and TCI.
type Taken = (Packet, Option<(u16, u16)>);

fn no_buffer() -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

fn emptied(mut packet: Packet) -> Option<Packet> {
    packet.truncate(0);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_frames_within_a_moment_are_busy_and_the_same_over_time_are_not() {
        let at = |millis: u64| Time(millis * 1_000_000);
        let mut plain = Plain::new(Arc::new(Socket::unconnected()));
        assert!((0..100).all(|n| !plain.becomes_busy(BUSY / 2, at(1000 + 100 * n))));
        assert!(!plain.becomes_busy(BUSY - 1, at(20_000)) && plain.becomes_busy(1, at(20_099)));
        assert!(!plain.becomes_busy(BUSY, at(30_098)) && plain.becomes_busy(BUSY, at(30_100)), "said once in a while");
    }
}
