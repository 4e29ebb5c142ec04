//! Requests for interfaces over rtnetlink(7), and the kernel's word of their changes.
//!
//! Everything is in host byte order, and attributes are padded to four bytes (netlink(7)).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Facts, XdpAttachment};
use crate::{Mac, Stats};

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct ifinfomsg`.
const IFINFO: usize = 16;
/// Room for one datagram at first. The kernel sends an interface in one message, by far the longest part of
/// which are the virtual functions of a NIC, and those only to who asks for them.
const BUFFER: usize = 64 * 1024;
/// Marks an attribute that holds attributes.
const NESTED: u16 = libc::NLA_F_NESTED as u16;

// linux/if_link.h, where libc lacks them.
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_MAX_MTU: u16 = 51;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_EXPECTED_FD: u16 = 8;
const IFLA_INFO_KIND: u16 = 1;

/// A message of this flag belongs to a dump during which the table has changed.
const DUMP_INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;
/// Leaves the counters out of an answer, of which they are the larger part.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
/// How often a dump is asked for again because the table has changed meanwhile. Whoever wants to know of later
/// changes listens to [`Events`] anyway.
const DUMPS: usize = 3;

/// Datagrams that were sent to the kernel, and came from it; events that it had no room for. Of all sockets.
pub(super) static SENT: AtomicU64 = AtomicU64::new(0);
pub(super) static RECEIVED: AtomicU64 = AtomicU64::new(0);
pub(super) static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

/// A blocking NETLINK_ROUTE socket with one request under way at most.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        // NETLINK_ROUTE is protocol 0.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Netlink { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    pub fn get(&mut self, index: u32) -> io::Result<Facts> {
        self.get_link(Request::new(libc::RTM_GETLINK, index))
    }

    pub fn get_by_name(&mut self, name: &str) -> io::Result<Facts> {
        let mut request = Request::new(libc::RTM_GETLINK, 0);
        request.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        self.get_link(request)
    }

    /// Every interface of the namespace, by one request. The counters are left out.
    pub fn get_all(&mut self) -> io::Result<Vec<Facts>> {
        for _ in 1..DUMPS {
            if let Some(all) = self.dump()? {
                return Ok(all);
            }
        }
        Ok(self.dump()?.unwrap_or_default())
    }

    /// One dump. `None`: the table has changed under it.
    fn dump(&mut self) -> io::Result<Option<Vec<Facts>>> {
        let mut request = Request::new(libc::RTM_GETLINK, 0);
        request.attribute(libc::IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        self.send(request, libc::NLM_F_DUMP as u16)?;
        let (mut all, mut whole) = (Vec::new(), true);
        loop {
            let len = self.receive()?;
            for message in Messages(&self.buffer[..len]) {
                let Message { kind, flags, sequence, body } = message?;
                if sequence != self.sequence {
                    continue;
                }
                whole &= flags & DUMP_INTERRUPTED == 0;
                match kind {
                    libc::RTM_NEWLINK => {
                        let mut facts = Facts::default();
                        parse_link(body, &mut facts).ok_or_else(cut_short)?;
                        all.push(facts);
                    }
                    DONE => return Ok(whole.then_some(all)),
                    ERROR => error_of(body)?,
                    _ => {}
                }
            }
        }
    }

    pub fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, index);
        let flag = libc::IFF_UP as u32;
        request.flags(if up { flag } else { 0 }, flag);
        self.change(request)
    }

    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, index);
        request.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
        self.change(request)
    }

    pub fn set_mac(&mut self, index: u32, mac: Mac) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_NEWLINK, index);
        request.attribute(libc::IFLA_ADDRESS, &mac);
        self.change(request)
    }

    pub fn set_xdp(&mut self, index: u32, program: i32, flags: u32, expected: Option<i32>) -> io::Result<()> {
        let mut xdp = Vec::new();
        push_attribute(&mut xdp, IFLA_XDP_FD, &program.to_ne_bytes());
        push_attribute(&mut xdp, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
        if let Some(expected) = expected {
            push_attribute(&mut xdp, IFLA_XDP_EXPECTED_FD, &expected.to_ne_bytes());
        }
        let mut request = Request::new(libc::RTM_SETLINK, index);
        request.attribute(IFLA_XDP | NESTED, &xdp);
        self.change(request)
    }

    fn get_link(&mut self, request: Request) -> io::Result<Facts> {
        self.send(request, 0)?;
        let Some(body) = self.answer()? else { return Err(io::Error::other("netlink answer without an interface")) };
        let mut facts = Facts::default();
        parse_link(&self.buffer[body], &mut facts).ok_or_else(cut_short)?;
        Ok(facts)
    }

    fn change(&mut self, request: Request) -> io::Result<()> {
        self.send(request, libc::NLM_F_ACK as u16)?;
        self.answer().map(|_| ())
    }

    fn send(&mut self, request: Request, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence, flags | libc::NLM_F_REQUEST as u16);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &bytes, SendFlags::empty()))?;
        SENT.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Waits for the answer to the request that was sent last: where its body is in the buffer, or nothing for a
    /// bare acknowledgement. The kernel answers rtnetlink requests before the send returns.
    fn answer(&mut self) -> io::Result<Body> {
        loop {
            let len = self.receive()?;
            match find_answer(&self.buffer[..len], self.sequence) {
                Some(answer) => return answer,
                // Left from a request that was given up.
                None => continue,
            }
        }
    }

    /// Waits for a datagram and takes it, however long it is.
    fn receive(&mut self) -> io::Result<usize> {
        let len = receive(&self.socket, &mut [], RecvFlags::PEEK)?;
        if len > self.buffer.len() {
            self.buffer.resize(len.next_power_of_two(), 0);
        }
        let len = receive(&self.socket, &mut self.buffer, RecvFlags::empty())?;
        RECEIVED.fetch_add(1, Relaxed);
        Ok(len.min(self.buffer.len()))
    }
}

/// Where the body of a message is, if it is more than an acknowledgement.
type Body = Option<std::ops::Range<usize>>;

/// Receives a datagram and returns its whole length, which may be more than there is room for.
fn receive(socket: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (_, len) = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, flags | RecvFlags::TRUNC))?;
    Ok(len)
}

/// A change that the kernel tells of.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// An interface is new or has changed: the body of the message, for [`Event::update`].
    Link(u32, &'a [u8]),
    /// The interface of this index has gone.
    Gone(u32),
    /// Some changes are lost: all has to be asked for anew.
    Overflow,
}

impl Event<'_> {
    /// Takes over what a message says. What it does not say stays as it is: some events have a part only.
    pub fn update(body: &[u8], facts: &mut Facts) {
        // One that is cut short says what it says.
        let _ = parse_link(body, facts);
    }
}

/// A socket that gets the changes of all interfaces of a namespace.
pub(super) struct Events {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// Room for the changes of some thousand interfaces. Memory is taken as they wait; what does not fit is made up
/// for by a dump.
const EVENTS_BUFFER: usize = 8 << 20;

impl Events {
    pub fn open() -> io::Result<Events> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        // Past the limit of the system only with CAP_NET_ADMIN: without, it is as much as that allows.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, EVENTS_BUFFER).is_err() {
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, EVENTS_BUFFER);
        }
        // With an address of its own, which the kernel chooses: to a socket without, nothing is told.
        let address = SocketAddrNetlink::new(0, 1 << (libc::RTNLGRP_LINK - 1));
        rustix::net::bind(&socket, &address)?;
        Ok(Events { socket, buffer: vec![0; BUFFER] })
    }

    /// Calls `each` with the changes of one datagram. `false`: none waits.
    pub fn next(&mut self, mut each: impl FnMut(Event<'_>)) -> bool {
        let len = match receive(&self.socket, &mut self.buffer, RecvFlags::DONTWAIT) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            Ok(len) if len <= self.buffer.len() => len,
            // ENOBUFS, or one that was too long, of which the kernel knows none.
            _ => {
                OVERFLOWS.fetch_add(1, Relaxed);
                each(Event::Overflow);
                return true;
            }
        };
        RECEIVED.fetch_add(1, Relaxed);
        for message in Messages(&self.buffer[..len]) {
            let Ok(Message { kind, body, .. }) = message else {
                each(Event::Overflow);
                break;
            };
            // A bridge of the kernel tells of its ports by the same messages, in its own address family: that
            // one of those goes does not mean that the interface does.
            let about_interface = body.first() == Some(&(libc::AF_UNSPEC as u8));
            let Some(index) = u32_at(body, 4).filter(|_| about_interface) else { continue };
            match kind {
                libc::RTM_NEWLINK => each(Event::Link(index, body)),
                libc::RTM_DELLINK => each(Event::Gone(index)),
                _ => {}
            }
        }
        true
    }
}

const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;

/// A message of a datagram.
struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

/// The messages in a datagram. One of impossible length is the last.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = io::Result<Message<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (rest, len) = (self.0, u32_at(self.0.get(..HEADER)?, 0)? as usize);
        let Some(body) = rest.get(HEADER..len) else {
            self.0 = &[];
            return Some(Err(io::Error::other("netlink message of impossible length")));
        };
        self.0 = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        let (kind, flags, sequence) = (u16_at(rest, 4)?, u16_at(rest, 6)?, u32_at(rest, 8)?);
        Some(Ok(Message { kind, flags, sequence, body }))
    }
}

fn cut_short() -> io::Error {
    io::Error::other("netlink answer is cut short")
}

/// The error that a message of that kind reports; zero is an acknowledgement.
fn error_of(body: &[u8]) -> io::Result<()> {
    match u32_at(body, 0).ok_or_else(cut_short)? as i32 {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
    }
}

/// Finds the message with this sequence number and says where its body is, or what error it reports.
fn find_answer(bytes: &[u8], sequence: u32) -> Option<io::Result<Body>> {
    for message in Messages(bytes) {
        match message {
            Ok(message) if message.sequence != sequence => {}
            Ok(Message { kind: ERROR, body, .. }) => return Some(error_of(body).map(|()| None)),
            Ok(Message { body, .. }) => {
                let start = body.as_ptr().addr() - bytes.as_ptr().addr();
                return Some(Ok(Some(start..start + body.len())));
            }
            Err(error) => return Some(Err(error)),
        }
    }
    None
}

/// `struct ifinfomsg` and its attributes. What is not there stays as it is.
fn parse_link(body: &[u8], facts: &mut Facts) -> Option<()> {
    let flags = u32_at(body, 8)? as i32;
    let carrier = libc::IFF_RUNNING | libc::IFF_LOWER_UP;
    facts.hardware = u16_at(body, 2)?;
    facts.index = u32_at(body, 4)?;
    facts.admin_up = flags & libc::IFF_UP != 0;
    facts.carrier = flags & carrier == carrier;
    facts.loopback = flags & libc::IFF_LOOPBACK != 0;
    for (kind, value) in Attributes(body.get(IFINFO..)?) {
        let number = u32_at(value, 0);
        match kind {
            libc::IFLA_IFNAME => facts.name = text(value),
            libc::IFLA_ADDRESS => facts.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_MTU => facts.mtu = number?,
            IFLA_MAX_MTU => facts.max_mtu = number?,
            IFLA_NUM_RX_QUEUES => facts.rx_queues = number?,
            IFLA_NUM_TX_QUEUES => facts.tx_queues = number?,
            libc::IFLA_STATS64 => facts.stats = parse_stats(value),
            libc::IFLA_LINKINFO => {
                let kind = Attributes(value).find(|&(kind, _)| kind == IFLA_INFO_KIND);
                facts.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
            }
            IFLA_XDP => facts.xdp = parse_xdp(value),
            _ => {}
        }
    }
    Some(())
}

/// `struct rtnl_link_stats64`: 64-bit counters, to which newer kernels have appended.
fn parse_stats(value: &[u8]) -> Stats {
    let at = |index: usize| {
        let bytes = value.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    };
    Stats {
        rx_packets: at(0),
        tx_packets: at(1),
        rx_bytes: at(2),
        tx_bytes: at(3),
        rx_errors: at(4),
        tx_errors: at(5),
        rx_dropped: at(6),
        tx_dropped: at(7),
        collisions: at(9),
        rx_over_err: at(11),
        rx_crc_err: at(12),
        rx_frame_err: at(13),
    }
}

fn parse_xdp(value: &[u8]) -> XdpAttachment {
    let mut xdp = XdpAttachment::default();
    for (kind, value) in Attributes(value) {
        let number = u32_at(value, 0).unwrap_or(0);
        match kind {
            IFLA_XDP_ATTACHED => xdp.mode = value.first().copied().unwrap_or(0),
            IFLA_XDP_PROG_ID => xdp.program = number,
            IFLA_XDP_DRV_PROG_ID => xdp.native_program = number,
            IFLA_XDP_SKB_PROG_ID => xdp.generic_program = number,
            _ => {}
        }
    }
    xdp
}

/// For fuzzing: the number that an answer is looked for by, and what a kernel could send. Whatever it is, what is
/// taken for an answer lies within it.
pub(super) fn fuzz(bytes: &[u8]) {
    let Some((number, datagram)) = bytes.split_first_chunk() else { return };
    let _ = Messages(datagram).count();
    if let Some(Ok(Some(body))) = find_answer(datagram, u32::from_ne_bytes(*number)) {
        let _ = parse_link(&datagram[body], &mut Facts::default());
    }
    let mut facts = Facts::default();
    let _ = parse_link(datagram, &mut facts);
    assert!(facts.name.len() + facts.kind.len() <= 3 * datagram.len(), "text that was not sent");
}

/// A request under construction: `struct nlmsghdr`, `struct ifinfomsg`, attributes.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, index: u32) -> Request {
        let mut bytes = vec![0; HEADER + IFINFO];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER + 4..HEADER + 8].copy_from_slice(&index.to_ne_bytes());
        Request(bytes)
    }

    /// Sets the interface flags that `change` names.
    fn flags(&mut self, flags: u32, change: u32) {
        self.0[HEADER + 8..HEADER + 12].copy_from_slice(&flags.to_ne_bytes());
        self.0[HEADER + 12..HEADER + 16].copy_from_slice(&change.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        push_attribute(&mut self.0, kind, value);
    }

    fn finish(mut self, sequence: u32, flags: u16) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[0..4].copy_from_slice(&len.to_ne_bytes());
        self.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

fn push_attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The attributes in a message or in another attribute: (type without flags, value).
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = u16_at(self.0, 0)? as usize;
        let kind = u16_at(self.0, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn error_answers_become_errors() {
        let mut message = Request::new(libc::NLMSG_ERROR as u16, 0).finish(7, 0);
        message[HEADER..HEADER + 4].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        let error = find_answer(&message, 7).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(find_answer(&message, 8).is_none());
    }

    #[test]
    fn an_error_number_without_a_positive_form_is_an_error() {
        let mut message = Request::new(libc::NLMSG_ERROR as u16, 0).finish(7, 0);
        message[HEADER..HEADER + 4].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert!(find_answer(&message, 7).unwrap().is_err());
    }

    #[test]
    fn link_message_is_parsed() {
        let mut request = Request::new(libc::RTM_NEWLINK, 5);
        request.flags((libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOWER_UP) as u32, 0);
        request.attribute(libc::IFLA_IFNAME, b"eth0\0");
        request.attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        let mut info = Vec::new();
        push_attribute(&mut info, IFLA_INFO_KIND, b"veth\0");
        request.attribute(libc::IFLA_LINKINFO | NESTED, &info);
        let mut facts = Facts::default();
        parse_link(&request.finish(1, 0)[HEADER..], &mut facts).unwrap();
        assert_eq!((facts.index, facts.name.as_str(), facts.kind.as_str()), (5, "eth0", "veth"));
        assert_eq!((facts.admin_up, facts.carrier, facts.mac), (true, true, [2, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn an_answer_longer_than_the_buffer_is_asked_for_again() {
        let mut netlink = Netlink::open().unwrap();
        netlink.buffer.truncate(64);
        assert_eq!(netlink.get_by_name("lo").unwrap().name, "lo");
        assert!(netlink.buffer.len() > 64);
        netlink.buffer.truncate(64);
        assert!(netlink.get_all().unwrap().iter().any(|facts| facts.name == "lo" && facts.loopback));
    }

    #[test]
    fn an_event_with_a_part_only_keeps_the_rest() {
        let mut facts = Facts { mtu: 9000, name: "wlan0".into(), ..Facts::default() };
        let mut request = Request::new(libc::RTM_NEWLINK, 5);
        request.flags(libc::IFF_UP as u32, 0);
        Event::update(&request.finish(1, 0)[HEADER..], &mut facts);
        assert_eq!((facts.mtu, facts.name.as_str(), facts.admin_up), (9000, "wlan0", true));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), sequence: u32) {
            fuzz(&[&sequence.to_ne_bytes(), &bytes[..]].concat());
        }
    }
}
