//! Messages of group membership: IGMP version 1 to 3 (RFC 1112, RFC 2236, RFC 3376), MLD version 1 and 2 (RFC 2710, RFC 3810).
//!
//! What is checked: lengths; the checksums of IPv4, IGMP and ICMPv6; that it is no fragment. MLD has to come from a link-local
//! address (reports from the unspecified one, too), with hop limit 1 and a router alert (RFC 3810 section 5). IGMP is taken
//! without a router alert, which version 1 does not have, and whatever its TTL, as Open vSwitch does.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::wire::ipv6::ChainedHeader;
use packet::wire::{Error, build, checksum, icmpv6, ip_proto, ipv4, ipv6};

const IGMP: &str = "IGMP";
const MLD: &str = "MLD";

const IGMP_QUERY: u8 = 0x11;
const IGMP_V1_REPORT: u8 = 0x12;
const IGMP_V2_REPORT: u8 = 0x16;
const IGMP_LEAVE: u8 = 0x17;
const IGMP_V3_REPORT: u8 = 0x22;
const MLD_QUERY: u8 = 130;
const MLD_REPORT: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_V2_REPORT: u8 = 143;

/// Kinds of records (RFC 3376 section 4.2.12): those that mean no member is left where no source follows, and the last one.
const MODE_IS_INCLUDE: u8 = 1;
const CHANGE_TO_INCLUDE_MODE: u8 = 3;
const BLOCK_OLD_SOURCES: u8 = 6;

/// The option router alert of IPv4 (RFC 2113).
const IPV4_ALERT: [u8; 4] = [0x94, 4, 0, 0];

/// A hop-by-hop header of IPv6 with a router alert for MLD (RFC 2711) and two bytes of padding.
const IPV6_ALERT: [u8; 8] = [0, 0, 5, 2, 0, 0, 1, 0];

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who sends it.
    pub src: IpAddr,
    /// What it says.
    pub body: Body<'a>,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A router asks for members of a group, or of all.
    Query(Option<IpAddr>),
    /// A host is a member: IGMP version 1 and 2, MLD version 1.
    Report(IpAddr),
    /// A host is none any longer: IGMP version 2, MLD version 1.
    Leave(IpAddr),
    /// Reports of IGMP version 3 and MLD version 2.
    Records(Records<'a>),
}

/// What a record says. Sources are not told apart, as in Open vSwitch: who wants some sources is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// The host is a member of the group.
    Join(IpAddr),
    /// It wants no source of it.
    Leave(IpAddr),
}

/// Records whose lengths are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    /// Bytes of an address.
    address: usize,
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message in an IP packet; none where it is a packet of another protocol, or a message that is not about membership.
    pub fn new_checked(packet: &'a [u8]) -> Result<Option<Message<'a>>, Error> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Message::from_ipv4(packet),
            Some(6) => Message::from_ipv6(packet),
            _ => Err(malformed("IP", "neither version 4 nor 6")),
        }
    }

    fn from_ipv4(packet: &'a [u8]) -> Result<Option<Message<'a>>, Error> {
        let ip = ipv4::Packet::new_checked(packet)?;
        if ip.proto() != ip_proto::IGMP {
            return Ok(None);
        }
        if !ip.verify_checksum() {
            return Err(malformed(IGMP, "the checksum of the IPv4 header is wrong"));
        }
        if ip.more_fragments() || ip.fragment_offset() != 0 {
            return Err(malformed(IGMP, "a fragment"));
        }
        let bytes = ip.payload();
        let Some((head, rest)) = bytes.split_first_chunk::<8>() else { return Err(truncated(IGMP, 8, bytes)) };
        if checksum::checksum(bytes) != 0 {
            return Err(malformed(IGMP, "the checksum is wrong"));
        }
        let group = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
        let body = match head[0] {
            // RFC 3376 section 7.1: 8 bytes, or at least 12.
            IGMP_QUERY if !rest.is_empty() && rest.len() < 4 => return Err(truncated(IGMP, 12, bytes)),
            IGMP_QUERY => Body::Query((!group.is_unspecified()).then_some(group.into())),
            IGMP_V1_REPORT | IGMP_V2_REPORT => Body::Report(multicast(IGMP, group.into())?),
            IGMP_LEAVE => Body::Leave(multicast(IGMP, group.into())?),
            IGMP_V3_REPORT => Body::Records(Records::new_checked(IGMP, 4, [head[6], head[7]], rest)?),
            _ => return Ok(None),
        };
        Ok(Some(Message { src: ip.src().into(), body }))
    }

    fn from_ipv6(packet: &'a [u8]) -> Result<Option<Message<'a>>, Error> {
        let ip = ipv6::Packet::new_checked(packet)?;
        let Some((alert, bytes)) = icmpv6_of(&ip)? else { return Ok(None) };
        let message = icmpv6::Packet::new_checked(bytes)?;
        if !matches!(message.kind(), MLD_QUERY | MLD_REPORT | MLD_DONE | MLD_V2_REPORT) {
            return Ok(None);
        }
        if !message.verify_checksum(ip.src(), ip.dst()) {
            return Err(malformed(MLD, "the checksum is wrong"));
        }
        if ip.hop_limit() != 1 || !alert {
            return Err(malformed(MLD, "not with hop limit 1 and a router alert"));
        }
        let unspecified = ip.src().is_unspecified() && message.kind() != MLD_QUERY;
        if !ip.src().is_unicast_link_local() && !unspecified {
            return Err(malformed(MLD, "not from a link-local address"));
        }
        let [_, _, high, low] = message.rest();
        let body = if message.kind() == MLD_V2_REPORT {
            Body::Records(Records::new_checked(MLD, 16, [high, low], message.payload())?)
        } else {
            let Some((group, rest)) = message.payload().split_first_chunk::<16>() else {
                return Err(truncated(MLD, 24, bytes));
            };
            let group = Ipv6Addr::from(*group);
            match message.kind() {
                // RFC 3810 section 8.1: 24 bytes, or at least 28.
                MLD_QUERY if !rest.is_empty() && rest.len() < 4 => return Err(truncated(MLD, 28, bytes)),
                MLD_QUERY => Body::Query((!group.is_unspecified()).then_some(group.into())),
                MLD_REPORT => Body::Report(multicast(MLD, group.into())?),
                _ => Body::Leave(multicast(MLD, group.into())?),
            }
        };
        Ok(Some(Message { src: ip.src().into(), body }))
    }

    /// The IP packet that says this: version 2 of IGMP or 1 of MLD, or the version that has records. It is sent to the address
    /// that its kind is sent to.
    ///
    /// # Panics
    /// Where addresses of both families are mixed.
    pub fn emit(&self) -> Vec<u8> {
        match self.src {
            IpAddr::V4(src) => self.body.emit_igmp(src),
            IpAddr::V6(src) => self.body.emit_mld(src),
        }
    }
}

impl Body<'_> {
    fn emit_igmp(&self, src: Ipv4Addr) -> Vec<u8> {
        let address = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => ip.octets(),
            IpAddr::V6(_) => panic!("a group of IPv6 in a message of IGMP"),
        };
        let all_routers = Ipv4Addr::new(224, 0, 0, 2);
        let (kind, dst, group) = match self {
            Body::Query(None) => (IGMP_QUERY, Ipv4Addr::new(224, 0, 0, 1), [0; 4]),
            Body::Query(Some(group)) => (IGMP_QUERY, address(group).into(), address(group)),
            Body::Report(group) => (IGMP_V2_REPORT, address(group).into(), address(group)),
            Body::Leave(group) => (IGMP_LEAVE, all_routers, address(group)),
            Body::Records(records) => {
                let [high, low] = records.count.to_be_bytes();
                (IGMP_V3_REPORT, Ipv4Addr::new(224, 0, 0, 22), [0, 0, high, low])
            }
        };
        let mut igmp = vec![kind, 0, 0, 0];
        igmp.extend(group);
        igmp.extend(self.records());
        let sum = checksum::checksum(&igmp).to_be_bytes();
        igmp[2..4].copy_from_slice(&sum);
        build::Ipv4 { src, dst, proto: ip_proto::IGMP, tos: 0xc0, ttl: 1, options: &IPV4_ALERT, ..Default::default() }
            .packet(igmp)
    }

    fn emit_mld(&self, src: Ipv6Addr) -> Vec<u8> {
        let address = |ip: &IpAddr| match ip {
            IpAddr::V6(ip) => *ip,
            IpAddr::V4(_) => panic!("a group of IPv4 in a message of MLD"),
        };
        let link_local = |last: u16| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last);
        let (kind, dst, group, count) = match self {
            Body::Query(None) => (MLD_QUERY, link_local(1), Some(Ipv6Addr::UNSPECIFIED), 0),
            Body::Query(Some(group)) => (MLD_QUERY, address(group), Some(address(group)), 0),
            Body::Report(group) => (MLD_REPORT, address(group), Some(address(group)), 0),
            Body::Leave(group) => (MLD_DONE, link_local(2), Some(address(group)), 0),
            Body::Records(records) => (MLD_V2_REPORT, link_local(0x16), None, records.count),
        };
        let mut mld = vec![kind, 0, 0, 0, 0, 0];
        mld.extend(count.to_be_bytes());
        mld.extend(group.iter().flat_map(Ipv6Addr::octets));
        mld.extend(self.records());
        let alert = [(ip_proto::HOP_BY_HOP, &IPV6_ALERT[..])];
        build::Ipv6 { src, dst, proto: ip_proto::ICMPV6, hop_limit: 1, extensions: &alert, ..Default::default() }
            .packet(mld)
    }

    fn records(&self) -> &[u8] {
        match self {
            Body::Records(records) => records.bytes,
            _ => &[],
        }
    }
}

impl<'a> Records<'a> {
    /// As many records as the message says, all of which have to be there.
    fn new_checked(layer: &'static str, address: usize, count: [u8; 2], bytes: &'a [u8]) -> Result<Records<'a>, Error> {
        let count = u16::from_be_bytes(count);
        let mut rest = bytes;
        for _ in 0..count {
            let need = record_len(rest, address).ok_or(truncated(layer, 4 + address, rest))?;
            rest = rest.get(need..).ok_or(truncated(layer, need, rest))?;
        }
        Ok(Records { address, count, bytes: &bytes[..bytes.len() - rest.len()] })
    }

    /// The records, but for those of kinds that are not known, and those of what is no group.
    pub fn iter(&self) -> impl Iterator<Item = Record> + use<'a> {
        let Records { address, count, bytes } = *self;
        let mut rest = bytes;
        let heads = (0..count).map_while(move |_| {
            let record = rest;
            rest = rest.get(record_len(record, address)?..)?;
            Some((record[0], u16::from_be_bytes([record[2], record[3]]), record.get(4..4 + address)?))
        });
        heads.filter_map(|(kind, sources, group)| {
            let group = match (<[u8; 4]>::try_from(group), <[u8; 16]>::try_from(group)) {
                (Ok(group), _) => IpAddr::from(group),
                (_, Ok(group)) => IpAddr::from(group),
                _ => return None,
            };
            let known = (MODE_IS_INCLUDE..=BLOCK_OLD_SOURCES).contains(&kind) && group.is_multicast();
            let leave = sources == 0 && matches!(kind, MODE_IS_INCLUDE | CHANGE_TO_INCLUDE_MODE);
            known.then_some(if leave { Record::Leave(group) } else { Record::Join(group) })
        })
    }

    /// Records of one family as they are written, each without sources; for tests and tools.
    pub fn write(records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for record in records {
            let (kind, group) = match record {
                // Change to exclude mode, of no source.
                Record::Join(group) => (4, group),
                Record::Leave(group) => (CHANGE_TO_INCLUDE_MODE, group),
            };
            bytes.extend([kind, 0, 0, 0]);
            match group {
                IpAddr::V4(group) => bytes.extend(group.octets()),
                IpAddr::V6(group) => bytes.extend(group.octets()),
            }
        }
        bytes
    }

    /// A report of what [`Records::write`] wrote for a family; none where it is not that.
    pub fn read(bytes: &'a [u8], ipv6: bool) -> Option<Records<'a>> {
        let address = if ipv6 { 16 } else { 4 };
        let count = u16::try_from(bytes.len() / (4 + address)).ok()?;
        Records::new_checked(MLD, address, count.to_be_bytes(), bytes).ok()
    }
}

/// Bytes of the record at the start: 4, the group, the sources, and auxiliary data in words of 4 bytes.
fn record_len(bytes: &[u8], address: usize) -> Option<usize> {
    let [_, auxiliary, high, low] = *bytes.first_chunk::<4>()?;
    let sources = usize::from(u16::from_be_bytes([high, low]));
    Some(4 + address + sources * address + usize::from(auxiliary) * 4)
}

/// The message of ICMPv6 in a packet, and whether a router alert for MLD stands before it.
fn icmpv6_of<'a>(ip: &ipv6::Packet<'a>) -> Result<Option<(bool, &'a [u8])>, Error> {
    let mut alert = false;
    for header in ip.headers() {
        match header? {
            ChainedHeader::Extension(ip_proto::HOP_BY_HOP, bytes) => alert = has_router_alert(bytes),
            ChainedHeader::Extension(..) => {}
            ChainedHeader::Fragment(_) => return Ok(None),
            ChainedHeader::Upper(ip_proto::ICMPV6, bytes) => return Ok(Some((alert, bytes))),
            ChainedHeader::Upper(..) => return Ok(None),
        }
    }
    Ok(None)
}

/// Whether a hop-by-hop header holds a router alert for MLD (RFC 2711: option 5, two bytes, value 0).
fn has_router_alert(header: &[u8]) -> bool {
    let mut options = header.get(2..).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        // One byte of padding has no length.
        let (value, behind) = match (kind, rest) {
            (0, rest) => (&[][..], rest),
            (_, [length, rest @ ..]) => match rest.split_at_checked(usize::from(*length)) {
                Some(parts) => parts,
                None => return false,
            },
            _ => return false,
        };
        if *kind == 5 && value == [0, 0] {
            return true;
        }
        options = behind;
    }
    false
}

fn multicast(layer: &'static str, group: IpAddr) -> Result<IpAddr, Error> {
    if group.is_multicast() { Ok(group) } else { Err(malformed(layer, "membership of what is no group")) }
}

fn malformed(layer: &'static str, what: &'static str) -> Error {
    Error::Malformed { layer, what }
}

fn truncated(layer: &'static str, need: usize, bytes: &[u8]) -> Error {
    Error::Truncated { layer, need, have: bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn groups(ipv6: bool) -> impl Strategy<Value = IpAddr> {
        any::<[u8; 16]>().prop_map(move |mut bytes| {
            bytes[0] = 0xff;
            if ipv6 { IpAddr::from(bytes) } else { IpAddr::from([bytes[1] >> 4 | 0xe0, bytes[2], bytes[3], bytes[4]]) }
        })
    }

    fn records(ipv6: bool) -> impl Strategy<Value = Vec<Record>> {
        let record = (groups(ipv6), any::<bool>())
            .prop_map(|(group, leave)| if leave { Record::Leave(group) } else { Record::Join(group) });
        prop::collection::vec(record, 0..20)
    }

    fn source(ipv6: bool) -> IpAddr {
        if ipv6 { IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 7]) } else { IpAddr::from([10, 0, 0, 7]) }
    }

    fn check(src: IpAddr, body: Body) -> Result<(), TestCaseError> {
        let message = Message { src, body };
        let packet = message.emit();
        prop_assert_eq!(Message::new_checked(&packet), Ok(Some(message)));
        Ok(())
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_read_back(ipv6: bool, group4 in groups(false), records4 in records(false), group6 in groups(true), records6 in records(true)) {
            let (group, records) = if ipv6 { (group6, records6) } else { (group4, records4) };
            let src = source(ipv6);
            for body in [Body::Query(None), Body::Query(Some(group)), Body::Report(group), Body::Leave(group)] {
                check(src, body)?;
            }
            let bytes = Records::write(&records);
            let written = Records::read(&bytes, ipv6).unwrap();
            prop_assert_eq!(written.iter().collect::<Vec<_>>(), records);
            check(src, Body::Records(written))?;
        }

        #[test]
        fn whatever_comes_is_refused_or_read(ipv6: bool, records in records(false), records6 in records(true), cut: prop::sample::Index, flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
            let bytes = Records::write(if ipv6 { &records6 } else { &records });
            let body = Body::Records(Records::read(&bytes, ipv6).unwrap());
            let mut packet = Message { src: source(ipv6), body }.emit();
            for (at, value) in flips {
                let at = at.index(packet.len());
                packet[at] = value;
            }
            packet.truncate(cut.index(packet.len() + 1));
            if let Ok(Some(Message { body: Body::Records(records), .. })) = Message::new_checked(&packet) {
                let _ = records.iter().count();
            }
        }
    }

    /// Bytes from hexadecimal text.
    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn frames_of_the_tests_of_open_vswitch() {
        let report = hex("4500001c000100004002cbaeac10221ee001010112140ce9e0010101");
        let read = Message::new_checked(&report).unwrap().unwrap();
        assert_eq!(read.body, Body::Report(IpAddr::from([224, 1, 1, 1])));
        let query = hex("4500001c000100004002cbcbac102201e00101011114eeeb00000000");
        let read = Message::new_checked(&query).unwrap().unwrap();
        assert_eq!(read, Message { src: IpAddr::from([172, 16, 34, 1]), body: Body::Query(None) });
    }

    #[test]
    fn what_is_wrong_is_said() {
        let group = IpAddr::from([239, 1, 2, 3]);
        let good = Message { src: source(false), body: Body::Report(group) }.emit();
        let error = |packet: &[u8]| Message::new_checked(packet).unwrap_err().to_string();
        let mut bad = good.clone();
        bad[31] ^= 1;
        assert_eq!(error(&bad), "IGMP: the checksum is wrong");
        let mut bad = good.clone();
        bad[8] ^= 1;
        assert_eq!(error(&bad), "IGMP: the checksum of the IPv4 header is wrong");
        let no_group = Message { src: source(false), body: Body::Leave(IpAddr::from([10, 0, 0, 1])) }.emit();
        assert_eq!(error(&no_group), "IGMP: membership of what is no group");
        assert_eq!(error(&[0x50]), "IP: neither version 4 nor 6");

        let group = IpAddr::from([0xff0e, 0, 0, 0, 0, 0, 0, 1]);
        let global = IpAddr::from([0x2001, 0, 0, 0, 0, 0, 0, 1]);
        let body = Body::Report(group);
        assert_eq!(error(&Message { src: global, body }.emit()), "MLD: not from a link-local address");
        let unspecified = IpAddr::from([0; 16]);
        assert!(Message::new_checked(&Message { src: unspecified, body }.emit()).is_ok());
        assert!(Message::new_checked(&Message { src: unspecified, body: Body::Query(None) }.emit()).is_err());
        let mut hops = Message { src: source(true), body }.emit();
        hops[7] = 2;
        assert_eq!(error(&hops), "MLD: not with hop limit 1 and a router alert");
        let mut no_alert = Message { src: source(true), body }.emit();
        no_alert[42] = 1;
        assert_eq!(error(&no_alert), "MLD: not with hop limit 1 and a router alert");
    }

    #[test]
    fn sources_do_not_count_but_for_leaving() {
        // A record of each kind, with one source and four bytes of auxiliary data, or with neither.
        let record = |kind: u8, more: u8| {
            let mut bytes = vec![kind, more, 0, more, 239, 0, 0, kind];
            bytes.resize(8 + 8 * usize::from(more), 0);
            bytes
        };
        let bytes: Vec<u8> = (0..8).flat_map(|kind| [record(kind, 0), record(kind, 1)].concat()).collect();
        let records = Records::new_checked(IGMP, 4, [0, 16], &bytes).unwrap();
        let found: Vec<Record> = records.iter().collect();
        let group = |kind: u8| IpAddr::from([239, 0, 0, kind]);
        let wanted: Vec<Record> = (1..=6)
            .flat_map(|kind| {
                let first = if kind == 1 || kind == 3 { Record::Leave } else { Record::Join };
                [first(group(kind)), Record::Join(group(kind))]
            })
            .collect();
        assert_eq!(found, wanted);
        assert!(Records::new_checked(IGMP, 4, [0, 17], &bytes).is_err());
    }
}
