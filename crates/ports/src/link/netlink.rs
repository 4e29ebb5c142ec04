//! Requests for one interface over rtnetlink(7).
//!
//! Everything is in host byte order, and attributes are padded to four bytes (netlink(7)).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{Facts, XdpAttachment};
use crate::{Mac, Stats};

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct ifinfomsg`.
const IFINFO: usize = 16;
/// Room for one answer. The kernel sends an interface in one message, by far the longest part of which
/// are the virtual functions of a NIC, and those only to who asks for them.
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
        Ok(Netlink { socket, sequence: 0, buffer: Vec::new() })
    }

    pub fn get(&mut self, index: u32) -> io::Result<Facts> {
        self.get_link(Request::new(libc::RTM_GETLINK, index))
    }

    pub fn get_by_name(&mut self, name: &str) -> io::Result<Facts> {
        let mut request = Request::new(libc::RTM_GETLINK, 0);
        request.attribute(libc::IFLA_IFNAME, &[name.as_bytes(), b"\0"].concat());
        self.get_link(request)
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
        match self.talk(request, 0)? {
            Some(message) => parse_link(message).ok_or_else(|| io::Error::other("netlink answer is cut short")),
            None => Err(io::Error::other("netlink answer without an interface")),
        }
    }

    fn change(&mut self, request: Request) -> io::Result<()> {
        self.talk(request, libc::NLM_F_ACK as u16).map(|_| ())
    }

    /// Sends a request and waits for its answer: the body of a message, or nothing for a bare
    /// acknowledgement. The kernel answers rtnetlink requests before the send returns.
    fn talk(&mut self, request: Request, flags: u16) -> io::Result<Option<&[u8]>> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(self.sequence, flags | libc::NLM_F_REQUEST as u16);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &bytes, SendFlags::empty()))?;
        self.buffer.resize(BUFFER, 0);
        loop {
            let buffer = &mut self.buffer[..];
            let (_, len) = loop {
                match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                    Err(rustix::io::Errno::INTR) => continue,
                    answer => break answer?,
                }
            };
            match find_answer(&self.buffer[..len.min(BUFFER)], self.sequence) {
                Some(Ok(range)) => return Ok(range.map(|range| &self.buffer[range])),
                Some(Err(error)) => return Err(error),
                // Left from a request that was given up.
                None => continue,
            }
        }
    }
}

/// Finds the message with this sequence number and says where its body is, or what error it reports.
fn find_answer(mut rest: &[u8], sequence: u32) -> Option<io::Result<Option<std::ops::Range<usize>>>> {
    let mut start = 0;
    while rest.len() >= HEADER {
        let len = u32_at(rest, 0)? as usize;
        if len < HEADER || len > rest.len() {
            return Some(Err(io::Error::other("netlink message of impossible length")));
        }
        if u32_at(rest, 8)? == sequence {
            let kind = u16_at(rest, 4)?;
            if kind != libc::NLMSG_ERROR as u16 {
                return Some(Ok(Some(start + HEADER..start + len)));
            }
            return Some(match u32_at(rest, HEADER)? as i32 {
                0 => Ok(None),
                code => Err(io::Error::from_raw_os_error(-code)),
            });
        }
        let step = len.next_multiple_of(4).min(rest.len());
        start += step;
        rest = &rest[step..];
    }
    None
}

/// `struct ifinfomsg` and its attributes.
fn parse_link(body: &[u8]) -> Option<Facts> {
    let flags = u32_at(body, 8)? as i32;
    let carrier = libc::IFF_RUNNING | libc::IFF_LOWER_UP;
    let mut facts = Facts {
        hardware: u16_at(body, 2)?,
        index: u32_at(body, 4)?,
        admin_up: flags & libc::IFF_UP != 0,
        carrier: flags & carrier == carrier,
        loopback: flags & libc::IFF_LOOPBACK != 0,
        ..Facts::default()
    };
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
    Some(facts)
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
    fn link_message_is_parsed() {
        let mut request = Request::new(libc::RTM_NEWLINK, 5);
        request.flags((libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_LOWER_UP) as u32, 0);
        request.attribute(libc::IFLA_IFNAME, b"eth0\0");
        request.attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        let mut info = Vec::new();
        push_attribute(&mut info, IFLA_INFO_KIND, b"veth\0");
        request.attribute(libc::IFLA_LINKINFO | NESTED, &info);
        let facts = parse_link(&request.finish(1, 0)[HEADER..]).unwrap();
        assert_eq!((facts.index, facts.name.as_str(), facts.kind.as_str()), (5, "eth0", "veth"));
        assert_eq!((facts.admin_up, facts.carrier, facts.mac), (true, true, [2, 0, 0, 0, 0, 1]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), sequence: u32) {
            let _ = parse_link(&bytes);
            let _ = find_answer(&bytes, sequence);
        }
    }
}
