//! The serialised form of connections, of expectations and of timeout policies, one at a time. docs/snapshot.md describes it.
//!
//! Numbers are in network byte order. Whatever bytes are read, what comes of them is a connection that the tracker could have made,
//! or an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::wire::ip_proto;

use crate::helpers::Expectation;
use crate::protocol::simple::Seen;
use crate::protocol::tcp::{End, Ends, MAX_SCALE, Scale, State};
use crate::table::slot::{Contents, Protocol, Skew, flags};
use crate::timeout::{ALL, Timeouts};
use crate::tuple::{Side, Tuple};

/// Bytes that stand for nothing that can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub &'static str);

/// A connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    /// What it is made of. Its policy is the number of a [`Policy`].
    pub contents: Contents,
    /// Tenths of a second until it ends without another packet.
    pub left: u32,
}

/// A connection that is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The direction in which it will be, but for the port from which it comes.
    pub tuple: Tuple,
    /// What becomes of it.
    pub expectation: Expectation,
    /// Milliseconds until it is forgotten.
    pub left: u32,
}

/// A timeout policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The number by which connections name it; not zero, which is the default.
    pub number: u16,
    /// Its timeouts.
    pub timeouts: Timeouts,
}

const FLAGS: u32 = flags::SNAT | flags::DNAT | flags::RELATED | flags::FTP | flags::TFTP;

/// What follows the parts that every connection has.
const HAS_PARENT: u8 = 1;
const HAS_SKEW: u8 = 1 << 1;

impl Connection {
    /// The bytes of a connection.
    pub fn encode(&self) -> Vec<u8> {
        let Contents { orig, reply, protocol, mark, label, flags, policy, parent, skew } = &self.contents;
        let skew = Some(skew).filter(|skew| **skew != [Skew::default(); 2]);
        let parts = if parent.is_some() { HAS_PARENT } else { 0 } | if skew.is_some() { HAS_SKEW } else { 0 };
        let mut out = Writer(Vec::with_capacity(128));
        out.u32(self.left).u32(*flags).u32(*mark).u128(*label).u16(*policy).u8(parts);
        out.tuple(orig).tuple(reply);
        match protocol {
            Protocol::Tcp(Ends(ends)) => ends.iter().for_each(|end| out.end(end)),
            Protocol::Simple(seen) => {
                out.u8(*seen as u8);
            }
        }
        if let Some(parent) = parent {
            out.tuple(parent);
        }
        for Skew { total, last, position } in skew.into_iter().flatten() {
            out.u32(*total as u32).u16(*last as u16).u32(*position);
        }
        out.0
    }

    /// The connection of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Connection, Damaged> {
        let mut body = Reader(bytes);
        let (left, flags, mark, label) = (body.u32()?, body.u32()?, body.u32()?, body.u128()?);
        let (policy, parts) = (body.u16()?, body.u8()?);
        let (orig, reply) = (body.tuple()?, body.tuple()?);
        let protocol = match orig.proto() {
            ip_proto::TCP => Protocol::Tcp(Ends([body.end()?, body.end()?])),
            _ => Protocol::Simple(match body.u8()? {
                0 => Seen::First,
                1 => Seen::Multiple,
                2 => Seen::Both,
                _ => return Err(Damaged("a connection is in no state")),
            }),
        };
        let parent = if parts & HAS_PARENT != 0 { Some(body.tuple()?) } else { None };
        let skew = if parts & HAS_SKEW != 0 { [body.skew()?, body.skew()?] } else { Default::default() };
        body.done()?;
        let translated = flags & (flags::SNAT | flags::DNAT);
        if flags & !FLAGS != 0 || parts & !(HAS_PARENT | HAS_SKEW) != 0 || translated == flags::SNAT | flags::DNAT {
            return Err(Damaged("a connection has unknown flags"));
        }
        if reply.class != orig.class || translated == 0 && reply != orig.reverse() {
            return Err(Damaged("a connection's directions do not belong together"));
        }
        let contents = Contents { orig, reply, protocol, mark, label, flags, policy, parent, skew };
        Ok(Connection { contents, left })
    }
}

impl Expected {
    /// The bytes of an expectation.
    pub fn encode(&self) -> Vec<u8> {
        let Expectation { parent, mark, label, replacement } = &self.expectation;
        // Any port stands for the one that is not known.
        let mut tuple = self.tuple;
        tuple.set_port(Side::Src, 1);
        let mut out = Writer(Vec::with_capacity(96));
        out.u32(self.left).u32(*mark).u128(*label).tuple(&tuple).tuple(parent);
        match replacement {
            None => {
                out.u8(0);
            }
            Some((side, address, port)) => {
                out.u8(if *side == Side::Src { 1 } else { 2 }).u16(*port).address(*address);
            }
        }
        out.0
    }

    /// The expectation of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Expected, Damaged> {
        let mut body = Reader(bytes);
        let (left, mark, label) = (body.u32()?, body.u32()?, body.u128()?);
        let (mut tuple, parent) = (body.tuple()?, body.tuple()?);
        let side = match body.u8()? {
            0 => None,
            1 => Some(Side::Src),
            2 => Some(Side::Dst),
            _ => return Err(Damaged("an expectation replaces neither end")),
        };
        let replacement = match side {
            None => None,
            Some(side) => {
                let port = body.u16()?;
                Some((side, body.address(tuple.is_v6())?, port))
            }
        };
        body.done()?;
        if !tuple.has_ports() || tuple.class != parent.class {
            return Err(Damaged("an expectation is not of its parent's kind"));
        }
        tuple.set_port(Side::Src, 0);
        Ok(Expected { tuple, expectation: Expectation { parent, mark, label, replacement }, left })
    }
}

impl Policy {
    /// The bytes of a policy.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(48));
        out.u16(self.number);
        for timeout in ALL {
            out.u32(self.timeouts.get(timeout));
        }
        out.0
    }

    /// The policy of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Policy, Damaged> {
        let mut body = Reader(bytes);
        let (number, mut timeouts) = (body.u16()?, Timeouts::default());
        for timeout in ALL {
            timeouts.set(timeout, body.u32()?);
        }
        body.done()?;
        if number == 0 { Err(Damaged("the default policy is no other")) } else { Ok(Policy { number, timeouts }) }
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Writer {
        self.put(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Writer {
        self.put(&value.to_be_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        self.put(&value.to_be_bytes())
    }

    fn u128(&mut self, value: u128) -> &mut Writer {
        self.put(&value.to_be_bytes())
    }

    fn address(&mut self, address: IpAddr) -> &mut Writer {
        match address {
            IpAddr::V4(address) => self.put(&address.octets()),
            IpAddr::V6(address) => self.put(&address.octets()),
        }
    }

    /// Zone, protocol, family, ports, addresses.
    fn tuple(&mut self, tuple: &Tuple) -> &mut Writer {
        let ports = [(tuple.ports >> 16) as u16, tuple.ports as u16];
        self.u32(tuple.class).u16(ports[0]).u16(ports[1]).address(tuple.src()).address(tuple.dst())
    }

    fn end(&mut self, end: &End) {
        let scale = match end.scale {
            Scale::None => 0,
            Scale::Unknown => 0x10,
            Scale::Known(shift) => 0x20 | shift,
        };
        self.u8(end.state as u8).u8(scale).u16(end.window).u32(end.sent).u32(end.limit);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Damaged("too short"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Damaged> {
        self.bytes().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, Damaged> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Damaged> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u128(&mut self) -> Result<u128, Damaged> {
        self.bytes().map(u128::from_be_bytes)
    }

    fn done(&self) -> Result<(), Damaged> {
        if self.0.is_empty() { Ok(()) } else { Err(Damaged("too long")) }
    }

    fn address(&mut self, v6: bool) -> Result<IpAddr, Damaged> {
        Ok(if v6 { Ipv6Addr::from(self.bytes::<16>()?).into() } else { Ipv4Addr::from(self.bytes::<4>()?).into() })
    }

    fn tuple(&mut self) -> Result<Tuple, Damaged> {
        let (zone, proto, family) = (self.u16()?, self.u8()?, self.u8()?);
        let ports = (self.u16()?, self.u16()?);
        if family != 4 && family != 6 {
            return Err(Damaged("neither IPv4 nor IPv6"));
        }
        let (src, dst) = (self.address(family == 6)?, self.address(family == 6)?);
        Tuple::new(src, dst, proto, ports, zone).ok_or(Damaged("ports or ICMP type that belong to no connection"))
    }

    fn end(&mut self) -> Result<End, Damaged> {
        let (state, scale, window) = (self.u8()?, self.u8()?, self.u16()?);
        let (sent, limit) = (self.u32()?, self.u32()?);
        let known = State::from_bits(state);
        let scale = match scale {
            0 => Scale::None,
            0x10 => Scale::Unknown,
            shift if shift & 0xf0 == 0x20 && shift & 0xf <= MAX_SCALE => Scale::Known(shift & 0xf),
            _ => return Err(Damaged("a window scale is none")),
        };
        if known as u8 != state {
            return Err(Damaged("an end of TCP is in no state"));
        }
        Ok(End { sent, limit, window, scale, state: known })
    }

    fn skew(&mut self) -> Result<Skew, Damaged> {
        Ok(Skew { total: self.u32()? as i32, last: self.u16()? as i16, position: self.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tuple::tests::any_tuple;

    fn any_end() -> impl Strategy<Value = End> {
        let scale = prop_oneof![Just(Scale::None), Just(Scale::Unknown), (0..=MAX_SCALE).prop_map(Scale::Known)];
        (any::<(u32, u32, u16)>(), scale, 0u8..11).prop_map(|((sent, limit, window), scale, state)| End {
            sent,
            limit,
            window,
            scale,
            state: State::from_bits(state),
        })
    }

    fn any_connection() -> impl Strategy<Value = Connection> {
        let protocol = (any_end(), any_end(), 0u8..3);
        let skew = proptest::option::of(any::<[(i32, i16, u32); 2]>());
        let parent = proptest::option::of(any_tuple());
        let numbers = any::<(u32, u32, u128, u16)>();
        (any_tuple(), any_tuple(), 0u32..32, protocol, numbers, parent, skew).prop_map(
            |(orig, other, flags, (a, b, seen), (left, mark, label, policy), parent, skew)| {
                let mut reply = orig.reverse();
                let flags = if flags & 3 == 3 { flags & !1 } else { flags };
                if flags & 3 != 0 {
                    reply.set_address(Side::Dst, other.src());
                    reply.set_port(Side::Dst, other.port(Side::Src).max(1));
                }
                let protocol = match orig.proto() {
                    ip_proto::TCP => Protocol::Tcp(Ends([a, b])),
                    _ => Protocol::Simple(Seen::from_bits(seen)),
                };
                let skew = skew.unwrap_or_default().map(|(total, last, position)| Skew { total, last, position });
                let contents = Contents { orig, reply, protocol, mark, label, flags, policy, parent, skew };
                Connection { contents, left }
            },
        )
    }

    fn any_expected() -> impl Strategy<Value = Expected> {
        let replacement = proptest::option::of(any::<(bool, u16)>());
        (any_tuple(), any::<(u32, u32, u128)>(), replacement).prop_filter_map(
            "no ports",
            |(parent, (left, mark, label), replacement)| {
                let mut tuple = parent.reverse();
                tuple.set_port(Side::Src, 0);
                let replacement =
                    replacement.map(|(src, port)| (if src { Side::Src } else { Side::Dst }, parent.src(), port));
                let expectation = Expectation { parent, mark, label, replacement };
                parent.has_ports().then_some(Expected { tuple, expectation, left })
            },
        )
    }

    proptest! {
        #[test]
        fn connections_come_back(connection in any_connection()) {
            prop_assert_eq!(Connection::decode(&connection.encode()), Ok(connection));
        }

        #[test]
        fn expectations_come_back(expected in any_expected()) {
            prop_assert_eq!(Expected::decode(&expected.encode()), Ok(expected));
        }

        #[test]
        fn policies_come_back(number in 1u16.., seconds: [u32; crate::timeout::TIMEOUTS]) {
            let mut timeouts = Timeouts::default();
            ALL.iter().zip(seconds).for_each(|(timeout, seconds)| timeouts.set(*timeout, seconds));
            let policy = Policy { number, timeouts };
            prop_assert_eq!(Policy::decode(&policy.encode()), Ok(policy));
        }

        /// What is read of damaged bytes is what those bytes are written for: nothing is passed over.
        #[test]
        fn damaged_bytes_are_refused_or_mean_something(
            connection in any_connection(),
            expected in any_expected(),
            at: prop::sample::Index,
            byte: u8,
            cut in proptest::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let damage = |mut bytes: Vec<u8>| {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
                bytes
            };
            let bytes = damage(connection.encode());
            if let Ok(read) = Connection::decode(&bytes) {
                prop_assert_eq!(Connection::decode(&read.encode()), Ok(read));
                prop_assert!(cut.is_none() || read == connection);
            }
            let bytes = damage(expected.encode());
            if let Ok(read) = Expected::decode(&bytes) {
                prop_assert_eq!(Expected::decode(&read.encode()), Ok(read));
            }
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Connection::decode(&bytes), Expected::decode(&bytes), Policy::decode(&bytes));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let orig = crate::tuple::tests::v4([10, 0, 0, 1], 1, [10, 0, 0, 2], 2, 17);
        let contents = Contents::new(orig, Protocol::Simple(Seen::First));
        let decode = |contents: Contents| Connection::decode(&Connection { contents, left: 1 }.encode());
        assert!(decode(contents).is_ok());
        let mut reply = orig.reverse();
        reply.set_port(Side::Dst, 9);
        assert!(decode(Contents { reply, flags: flags::SNAT, ..contents }).is_ok());
        assert!(decode(Contents { reply, ..contents }).is_err(), "it is not translated");
        assert!(decode(Contents { reply: orig.reverse().in_zone(1), flags: flags::SNAT, ..contents }).is_err());
        assert!(decode(Contents { flags: flags::SNAT | flags::DNAT, ..contents }).is_err());
        assert!(decode(Contents { flags: 1 << 5, ..contents }).is_err());
    }
}
