//! Requests for interfaces over rtnetlink(7), and the kernel's word of their changes.
//!
//! Messages are written and read by netlink-packet-route. Of an interface's sixty attributes, the dozen in
//! [`WANTED`] is parsed, each for itself: one that is passed over costs nothing, and one that a newer kernel has
//! changed does not cost the others.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use netlink_packet_core::{
    ErrorBuffer, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkMessage, NlasIterator, ParseableParametrized,
};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage, LinkXdp, Stats64, XdpAttached,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::{Facts, XdpAttachment};
use crate::{Mac, Stats};

/// Room for one datagram at first. The kernel sends an interface in one message, by far the longest part of
/// which are the virtual functions of a NIC, and those only to who asks for them.
const BUFFER: usize = 64 * 1024;
/// Length of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;
/// Messages start at multiples of it (NLMSG_ALIGNTO).
const ALIGNMENT: usize = 4;

// linux/if_link.h, where libc lacks them.
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_MAX_MTU: u16 = 51;
const IFLA_INFO_KIND: u16 = 1;

/// The attributes that are parsed by netlink-packet-route. Besides, there are the two names, which it takes as UTF-8
/// only.
const WANTED: [u16; 7] = [
    libc::IFLA_ADDRESS,
    libc::IFLA_MTU,
    libc::IFLA_STATS64,
    IFLA_NUM_TX_QUEUES,
    IFLA_NUM_RX_QUEUES,
    IFLA_XDP,
    IFLA_MAX_MTU,
];

/// How often a dump is asked for again because the table has changed meanwhile. Whoever wants to know of later
/// changes listens to [`Events`] anyway.
const DUMPS: usize = 3;

/// Datagrams that were sent to the kernel, and came from it; events that it had no room for. Of all sockets.
pub(super) static SENT: AtomicU64 = AtomicU64::new(0);
pub(super) static RECEIVED: AtomicU64 = AtomicU64::new(0);
pub(super) static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

/// A blocking NETLINK_ROUTE socket with one request under way at most.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        Ok(Netlink { socket: Socket::new(NETLINK_ROUTE)?, sequence: 0, buffer: vec![0; BUFFER] })
    }

    pub fn get(&mut self, index: u32) -> io::Result<Facts> {
        self.get_link(about(index, Vec::new()))
    }

    pub fn get_by_name(&mut self, name: &str) -> io::Result<Facts> {
        self.get_link(about(0, vec![LinkAttribute::IfName(name.into())]))
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
        // The counters are the larger part of an answer.
        let request = about(0, vec![LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])]);
        self.send(RouteNetlinkMessage::GetLink(request), NLM_F_DUMP)?;
        let (mut all, mut whole) = (Vec::new(), true);
        loop {
            let len = self.receive()?;
            for message in Messages(&self.buffer[..len]) {
                let message = message?;
                if message.sequence_number() != self.sequence {
                    continue;
                }
                whole &= message.flags() & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    libc::RTM_NEWLINK => {
                        let mut facts = Facts::default();
                        parse_link(message.payload(), &mut facts).ok_or_else(cut_short)?;
                        all.push(facts);
                    }
                    NLMSG_DONE => return Ok(whole.then_some(all)),
                    NLMSG_ERROR => error_of(message.payload())?,
                    _ => {}
                }
            }
        }
    }

    pub fn set_up(&mut self, index: u32, up: bool) -> io::Result<()> {
        let mut request = about(index, Vec::new());
        request.header.flags.set(LinkFlags::Up, up);
        request.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::NewLink(request))
    }

    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewLink(about(index, vec![LinkAttribute::Mtu(mtu)])))
    }

    pub fn set_mac(&mut self, index: u32, mac: Mac) -> io::Result<()> {
        self.change(RouteNetlinkMessage::NewLink(about(index, vec![LinkAttribute::Address(mac.to_vec())])))
    }

    pub fn set_xdp(&mut self, index: u32, program: i32, flags: u32, expected: Option<i32>) -> io::Result<()> {
        let mut xdp = vec![LinkXdp::Fd(program), LinkXdp::Flags(flags)];
        xdp.extend(expected.map(|program| LinkXdp::ExpectedFd(program as u32)));
        self.change(RouteNetlinkMessage::SetLink(about(index, vec![LinkAttribute::Xdp(xdp)])))
    }

    fn get_link(&mut self, request: LinkMessage) -> io::Result<Facts> {
        self.send(RouteNetlinkMessage::GetLink(request), 0)?;
        let Some(body) = self.answer()? else { return Err(io::Error::other("netlink answer without an interface")) };
        let mut facts = Facts::default();
        parse_link(&self.buffer[body], &mut facts).ok_or_else(cut_short)?;
        Ok(facts)
    }

    fn change(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.send(request, NLM_F_ACK)?;
        self.answer().map(|_| ())
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = message(request, flags | NLM_F_REQUEST, self.sequence);
        retry(|| self.socket.send(&bytes, 0))?;
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
        let len = receive(&self.socket, &mut [], libc::MSG_PEEK)?;
        if len > self.buffer.len() {
            self.buffer.resize(len.next_power_of_two(), 0);
        }
        let len = receive(&self.socket, &mut self.buffer, 0)?;
        RECEIVED.fetch_add(1, Relaxed);
        Ok(len.min(self.buffer.len()))
    }
}

/// A message about an interface; `index` is zero where an attribute says which one, or all are meant.
fn about(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header = LinkHeader { index, ..LinkHeader::default() };
    message.attributes = attributes;
    message
}

/// A message as bytes.
fn message(body: RouteNetlinkMessage, flags: u16, sequence: u32) -> Vec<u8> {
    let mut message = NetlinkMessage::from(body);
    (message.header.flags, message.header.sequence_number) = (flags, sequence);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Where the body of a message is, if it is more than an acknowledgement.
type Body = Option<std::ops::Range<usize>>;

/// Receives a datagram and returns its whole length, which may be more than there is room for.
fn receive(socket: &Socket, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    retry(|| socket.recv(&mut &mut *buffer, flags | libc::MSG_TRUNC))
}

/// Calls a system call again that a signal has interrupted.
fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
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
    socket: Socket,
    buffer: Vec<u8>,
}

/// Room for the changes of some thousand interfaces. Memory is taken as they wait; what does not fit is made up
/// for by a dump.
const EVENTS_BUFFER: usize = 8 << 20;

impl Events {
    pub fn open() -> io::Result<Events> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        // Past the limit of the system only with CAP_NET_ADMIN: without, it is as much as that allows.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, EVENTS_BUFFER).is_err() {
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, EVENTS_BUFFER);
        }
        // With an address of its own, which the kernel chooses: to a socket without, nothing is told.
        socket.bind(&SocketAddr::new(0, 1 << (libc::RTNLGRP_LINK - 1)))?;
        Ok(Events { socket, buffer: vec![0; BUFFER] })
    }

    /// The same socket, for whoever waits for changes.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Calls `each` with the changes of one datagram. `false`: none waits.
    pub fn next(&mut self, mut each: impl FnMut(Event<'_>)) -> bool {
        let len = match receive(&self.socket, &mut self.buffer, libc::MSG_DONTWAIT) {
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
            let Ok(message) = message else {
                each(Event::Overflow);
                break;
            };
            let body = message.payload();
            let Ok(LinkHeader { interface_family, index, .. }) = LinkHeader::parse(body) else { continue };
            // A bridge of the kernel tells of its ports by the same messages, in its own address family: that
            // one of those goes does not mean that the interface does.
            if interface_family != AddressFamily::Unspec {
                continue;
            }
            match message.message_type() {
                libc::RTM_NEWLINK => each(Event::Link(index, body)),
                libc::RTM_DELLINK => each(Event::Gone(index)),
                _ => {}
            }
        }
        true
    }
}

/// The messages in a datagram. One of impossible length is the last.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = io::Result<NetlinkBuffer<&'a [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        if bytes.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(bytes).map_err(io::Error::other);
        if let Ok(message) = &message {
            self.0 = bytes.get((message.length() as usize).next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        }
        Some(message)
    }
}

fn cut_short() -> io::Error {
    io::Error::other("netlink answer is cut short")
}

/// The error that a message of that kind reports; zero is an acknowledgement.
fn error_of(body: &[u8]) -> io::Result<()> {
    match ErrorBuffer::new_checked(body).map_err(io::Error::other)?.code() {
        None => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.get().wrapping_neg())),
    }
}

/// Finds the message with this sequence number and says where its body is, or what error it reports.
fn find_answer(bytes: &[u8], sequence: u32) -> Option<io::Result<Body>> {
    for message in Messages(bytes) {
        let message = match message {
            Ok(message) if message.sequence_number() != sequence => continue,
            Ok(message) => message,
            Err(error) => return Some(Err(error)),
        };
        let body = message.payload();
        if message.message_type() == NLMSG_ERROR {
            return Some(error_of(body).map(|()| None));
        }
        let start = body.as_ptr().addr() - bytes.as_ptr().addr();
        return Some(Ok(Some(start..start + body.len())));
    }
    None
}

/// `struct ifinfomsg` and its attributes. What is not there, or not as it should be, stays as it is.
fn parse_link(body: &[u8], facts: &mut Facts) -> Option<()> {
    let header = LinkHeader::parse(body).ok()?;
    facts.hardware = header.link_layer_type.into();
    facts.index = header.index;
    facts.admin_up = header.flags.contains(LinkFlags::Up);
    facts.carrier = header.flags.contains(LinkFlags::Running | LinkFlags::LowerUp);
    facts.loopback = header.flags.contains(LinkFlags::Loopback);
    for attribute in NlasIterator::new(body.get(LINK_HEADER..)?).map_while(Result::ok) {
        match attribute.kind() {
            libc::IFLA_IFNAME => facts.name = text(attribute.value()),
            libc::IFLA_LINKINFO => facts.kind = kind_of(attribute.value()),
            kind if WANTED.contains(&kind) => {
                if let Ok(parsed) = LinkAttribute::parse_with_param(&attribute, header.interface_family) {
                    take_over(parsed, facts);
                }
            }
            _ => {}
        }
    }
    Some(())
}

/// Takes over one of the attributes that are [`WANTED`].
fn take_over(attribute: LinkAttribute, facts: &mut Facts) {
    match attribute {
        LinkAttribute::Address(mac) => facts.mac = mac.try_into().unwrap_or_default(),
        LinkAttribute::Mtu(mtu) => facts.mtu = mtu,
        LinkAttribute::MaxMtu(mtu) => facts.max_mtu = mtu,
        LinkAttribute::NumRxQueues(count) => facts.rx_queues = count,
        LinkAttribute::NumTxQueues(count) => facts.tx_queues = count,
        LinkAttribute::Stats64(stats) => facts.stats = stats_of(&stats),
        LinkAttribute::Xdp(xdp) => facts.xdp = attachment(&xdp),
        _ => {}
    }
}

/// The kind in IFLA_LINKINFO, without the data of that kind, which is of no use here.
fn kind_of(info: &[u8]) -> String {
    let mut attributes = NlasIterator::new(info).map_while(Result::ok);
    attributes.find(|attribute| attribute.kind() == IFLA_INFO_KIND).map_or(String::new(), |kind| text(kind.value()))
}

fn stats_of(stats: &Stats64) -> Stats {
    Stats {
        rx_packets: stats.rx_packets,
        tx_packets: stats.tx_packets,
        rx_bytes: stats.rx_bytes,
        tx_bytes: stats.tx_bytes,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_dropped: stats.rx_dropped,
        tx_dropped: stats.tx_dropped,
        collisions: stats.collisions,
        rx_over_err: stats.rx_over_errors,
        rx_crc_err: stats.rx_crc_errors,
        rx_frame_err: stats.rx_frame_errors,
    }
}

fn attachment(attributes: &[LinkXdp]) -> XdpAttachment {
    let mut xdp = XdpAttachment::default();
    for attribute in attributes {
        match *attribute {
            LinkXdp::Attached(mode) => xdp.mode = mode_number(mode),
            LinkXdp::ProgId(program) => xdp.program = program,
            LinkXdp::DrvProgId(program) => xdp.native_program = program,
            LinkXdp::SkbProgId(program) => xdp.generic_program = program,
            _ => {}
        }
    }
    xdp
}

/// `XDP_ATTACHED_*`.
fn mode_number(mode: XdpAttached) -> u8 {
    match mode {
        XdpAttached::Driver => 1,
        XdpAttached::SocketBuffer => 2,
        XdpAttached::Hardware => 3,
        XdpAttached::Multiple => 4,
        XdpAttached::Other(mode) => mode,
        _ => 0,
    }
}

/// Names are any bytes but zero.
fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
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

#[cfg(test)]
mod tests {
    use netlink_packet_core::{DefaultNla, ErrorMessage, NetlinkHeader, NetlinkPayload};
    use netlink_packet_route::link::{InfoKind, LinkInfo, LinkLayerType};
    use proptest::prelude::*;

    use super::*;

    /// An error as the kernel reports it, in an answer to request 7.
    fn error_message(code: i32) -> Vec<u8> {
        let mut error = ErrorMessage::default();
        (error.code, error.header) = (std::num::NonZeroI32::new(code), vec![0; 16]);
        let mut message =
            NetlinkMessage::<RouteNetlinkMessage>::new(NetlinkHeader::default(), NetlinkPayload::Error(error));
        message.header.sequence_number = 7;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    /// The body of a message about interface 5.
    fn link_body(flags: LinkFlags, attributes: Vec<LinkAttribute>) -> Vec<u8> {
        let mut link = about(5, attributes);
        (link.header.flags, link.header.link_layer_type) = (flags, LinkLayerType::Ether);
        message(RouteNetlinkMessage::NewLink(link), 0, 1)[16..].to_vec()
    }

    #[test]
    fn error_answers_become_errors() {
        let message = error_message(-libc::EPERM);
        let error = find_answer(&message, 7).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(find_answer(&message, 8).is_none());
        assert!(matches!(find_answer(&error_message(0), 7), Some(Ok(None))));
    }

    #[test]
    fn an_error_number_without_a_positive_form_is_an_error() {
        assert!(find_answer(&error_message(i32::MIN), 7).unwrap().is_err());
    }

    #[test]
    fn link_message_is_parsed() {
        let body = link_body(
            LinkFlags::Up | LinkFlags::Running | LinkFlags::LowerUp,
            vec![
                LinkAttribute::IfName("eth0".into()),
                LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]),
                LinkAttribute::NumRxQueues(4),
                LinkAttribute::NumTxQueues(2),
                LinkAttribute::MaxMtu(9000),
                LinkAttribute::Xdp(vec![LinkXdp::Attached(XdpAttached::Multiple), LinkXdp::DrvProgId(7)]),
            ],
        );
        let mut facts = Facts::default();
        parse_link(&body, &mut facts).unwrap();
        assert_eq!((facts.index, facts.name.as_str(), facts.kind.as_str()), (5, "eth0", "veth"));
        assert_eq!((facts.admin_up, facts.carrier, facts.mac), (true, true, [2, 0, 0, 0, 0, 1]));
        assert_eq!((facts.rx_queues, facts.tx_queues, facts.max_mtu, facts.hardware), (4, 2, 9000, 1));
        assert_eq!(facts.xdp, XdpAttachment { mode: 4, native_program: 7, ..XdpAttachment::default() });
    }

    #[test]
    fn counters_of_older_and_newer_kernels_are_read() {
        for words in [24u64, 25, 30] {
            let counters = (1..=words).flat_map(u64::to_ne_bytes).collect();
            let stats = LinkAttribute::Other(DefaultNla::new(libc::IFLA_STATS64, counters));
            let mut facts = Facts::default();
            parse_link(&link_body(LinkFlags::empty(), vec![stats]), &mut facts).unwrap();
            let Stats { rx_packets, tx_bytes, collisions, rx_frame_err, .. } = facts.stats;
            assert_eq!((rx_packets, tx_bytes, collisions, rx_frame_err), (1, 4, 10, 14), "{words} counters");
        }
    }

    #[test]
    fn an_attribute_that_a_newer_kernel_has_changed_costs_no_other() {
        let changed = |kind| LinkAttribute::Other(DefaultNla::new(kind, vec![1, 2, 3, 4, 5, 6, 7, 8]));
        let body = link_body(
            LinkFlags::empty(),
            vec![
                changed(libc::IFLA_MTU),
                changed(IFLA_XDP),
                changed(libc::IFLA_AF_SPEC),
                LinkAttribute::IfName("eth0".into()),
                LinkAttribute::MaxMtu(9000),
            ],
        );
        let mut facts = Facts { mtu: 1500, ..Facts::default() };
        parse_link(&body, &mut facts).unwrap();
        assert_eq!((facts.name.as_str(), facts.mtu, facts.max_mtu), ("eth0", 1500, 9000));
    }

    #[test]
    fn names_need_not_be_utf8() {
        let name = LinkAttribute::Other(DefaultNla::new(libc::IFLA_IFNAME, b"eth\xff\0".to_vec()));
        let mut facts = Facts::default();
        parse_link(&link_body(LinkFlags::empty(), vec![name]), &mut facts).unwrap();
        assert_eq!(facts.name, "eth\u{fffd}");
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
        Event::update(&link_body(LinkFlags::Up, Vec::new()), &mut facts);
        assert_eq!((facts.mtu, facts.name.as_str(), facts.admin_up), (9000, "wlan0", true));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), sequence: u32) {
            fuzz(&[&sequence.to_ne_bytes(), &bytes[..]].concat());
        }
    }
}
