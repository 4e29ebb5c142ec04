//! Requests to the kernel, and its answers.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::message::{Messages, error_of, find_answer, message};
use super::{BUFFER, RECEIVED, SENT, receive, retry};

/// A blocking NETLINK_ROUTE socket with one request under way at most.
pub struct Requests {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Requests {
    /// A socket in this thread's network namespace.
    pub fn open() -> io::Result<Requests> {
        Ok(Requests { socket: Socket::new(NETLINK_ROUTE)?, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request with these flags (`NLM_F_*`) and waits for the answer: its body, or nothing for a bare acknowledgement.
    pub fn ask(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<Option<&[u8]>> {
        self.send(request, flags)?;
        // The kernel answers rtnetlink requests before the send returns.
        loop {
            let len = self.receive()?;
            match find_answer(&self.buffer[..len], self.sequence) {
                Some(answer) => return Ok(answer?.map(|body| &self.buffer[body])),
                // Left from a request that was given up.
                None => continue,
            }
        }
    }

    /// Asks for a whole table, and calls `each` with the type and the body of each message about an entry. `false`: the table has
    /// changed meanwhile, and some may be missing.
    pub fn dump(&mut self, request: RouteNetlinkMessage, mut each: impl FnMut(u16, &[u8])) -> io::Result<bool> {
        self.send(request, NLM_F_DUMP)?;
        let mut whole = true;
        loop {
            let len = self.receive()?;
            for message in Messages(&self.buffer[..len]) {
                let message = message?;
                if message.sequence_number() != self.sequence {
                    continue;
                }
                whole &= message.flags() & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => error_of(message.payload())?,
                    kind => each(kind, message.payload()),
                }
            }
        }
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message(request, flags | NLM_F_REQUEST, self.sequence);
        retry(|| self.socket.send(&bytes, 0))?;
        SENT.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Waits for a datagram and takes it, however long it is.
    fn receive(&mut self) -> io::Result<usize> {
        let len = receive(&self.socket, &mut [], libc::MSG_PEEK)?;
        if len > self.buffer.len() {
            self.buffer.resize(len.next_power_of_two(), 0);
        }
        let len = receive(&self.socket, &mut self.buffer, 0)?;
        RECEIVED.fetch_add(1, Relaxed);
        Ok(len.min(self.buffer.len()))
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;

    use super::*;

    #[test]
    fn an_answer_longer_than_the_buffer_is_taken_whole() {
        let mut requests = Requests::open().unwrap();
        requests.buffer.truncate(64);
        let mut link = LinkMessage::default();
        link.header.index = 1;
        let answer = requests.ask(RouteNetlinkMessage::GetLink(link), 0).unwrap().unwrap();
        assert!(answer.len() > 64 && answer[4..8] == 1u32.to_ne_bytes());
        requests.buffer.truncate(64);
        let mut indices = Vec::new();
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        requests.dump(request, |_, body| indices.push(u32::from_ne_bytes(body[4..8].try_into().unwrap()))).unwrap();
        assert!(indices.contains(&1));
    }

    #[test]
    fn an_error_is_told() {
        let mut requests = Requests::open().unwrap();
        let mut link = LinkMessage::default();
        link.header.index = i32::MAX as u32;
        let error = requests.ask(RouteNetlinkMessage::GetLink(link), 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
