//! Requests for interfaces over rtnetlink(7), and the kernel's word of their changes.
//!
//! Messages are written and read by netlink-packet-route. Of an interface's sixty attributes, the dozen in
//! [`WANTED`] is parsed, each for itself: one that is passed over costs nothing, and one that a newer kernel has
//! changed does not cost the others.

use std::io;
use std::os::fd::OwnedFd;

use ::netlink::message::{Messages, find_answer};
use ::netlink::{Event as Told, Events as Socket, Requests};
use netlink_packet_core::{NLM_F_ACK, NlasIterator, ParseableParametrized};
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage, LinkXdp, Stats64, XdpAttached,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::{Facts, XdpAttachment};
use crate::{Mac, Stats};

/// Length of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

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

/// Requests about interfaces.
pub(super) struct Netlink(Requests);

impl Netlink {
    pub fn open() -> io::Result<Netlink> {
        Requests::open().map(Netlink)
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
        let (mut all, mut is_cut_short) = (Vec::new(), false);
        let whole = self.0.dump(RouteNetlinkMessage::GetLink(request), |kind, body| {
            let mut facts = Facts::default();
            match parse_link(body, &mut facts) {
                Some(()) if kind == libc::RTM_NEWLINK => all.push(facts),
                found => is_cut_short |= found.is_none(),
            }
        })?;
        if is_cut_short {
            return Err(cut_short());
        }
        Ok(whole.then_some(all))
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

    /// The socket, for requests about something else.
    pub fn requests(&mut self) -> &mut Requests {
        &mut self.0
    }

    fn get_link(&mut self, request: LinkMessage) -> io::Result<Facts> {
        let Some(body) = self.0.ask(RouteNetlinkMessage::GetLink(request), 0)? else {
            return Err(io::Error::other("netlink answer without an interface"));
        };
        let mut facts = Facts::default();
        parse_link(body, &mut facts).ok_or_else(cut_short)?;
        Ok(facts)
    }

    fn change(&mut self, request: RouteNetlinkMessage) -> io::Result<()> {
        self.0.ask(request, NLM_F_ACK).map(|_| ())
    }
}

/// A message about an interface; `index` is zero where an attribute says which one, or all are meant.
fn about(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header = LinkHeader { index, ..LinkHeader::default() };
    message.attributes = attributes;
    message
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
pub(super) struct Events(Socket);

impl Events {
    pub fn open() -> io::Result<Events> {
        Socket::open(&[libc::RTNLGRP_LINK]).map(Events)
    }

    /// The same socket, for whoever waits for changes.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        self.0.readable()
    }

    /// Calls `each` with the changes of one datagram. `false`: none waits.
    pub fn next(&mut self, mut each: impl FnMut(Event<'_>)) -> bool {
        self.0.next(|told| {
            let Told::Message(message) = told else { return each(Event::Overflow) };
            let body = message.payload();
            let Ok(LinkHeader { interface_family, index, .. }) = LinkHeader::parse(body) else { return };
            // A bridge of the kernel tells of its ports by the same messages, in its own address family: that
            // one of those goes does not mean that the interface does.
            if interface_family != AddressFamily::Unspec {
                return;
            }
            match message.message_type() {
                libc::RTM_NEWLINK => each(Event::Link(index, body)),
                libc::RTM_DELLINK => each(Event::Gone(index)),
                _ => {}
            }
        })
    }
}

fn cut_short() -> io::Error {
    io::Error::other("netlink answer is cut short")
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
    use ::netlink::message::message;
    use netlink_packet_core::DefaultNla;
    use netlink_packet_route::link::{InfoKind, LinkInfo, LinkLayerType};
    use proptest::prelude::*;

    use super::*;

    /// The body of a message about interface 5.
    fn link_body(flags: LinkFlags, attributes: Vec<LinkAttribute>) -> Vec<u8> {
        let mut link = about(5, attributes);
        (link.header.flags, link.header.link_layer_type) = (flags, LinkLayerType::Ether);
        message(RouteNetlinkMessage::NewLink(link), 0, 1)[16..].to_vec()
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
    fn interfaces_are_asked_for() {
        let mut netlink = Netlink::open().unwrap();
        assert_eq!(netlink.get_by_name("lo").unwrap().name, "lo");
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
