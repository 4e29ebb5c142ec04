//! Messages of the kernel about devices, addresses, routes and neighbours (rtnetlink(7)), as changes.
//!
//! Only the attributes are read that are of use here. A message that is cut short, or in which a length is not what it has to be, is
//! no change.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::NlasIterator;

use crate::neighbours::Mac;
use crate::prefix::Prefix;

/// What has changed, or what is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A device is there.
    Device(Device),
    /// It has gone.
    DeviceGone(u32),
    /// A device has an address, with the length of its network's prefix.
    Address(u32, (IpAddr, u8)),
    /// It has it no more.
    AddressGone(u32, (IpAddr, u8)),
    /// A route is there.
    Route(Route),
    /// A route is there in the place of the one with the same destination, table, metric and TOS.
    RouteReplaced(Route),
    /// A route has gone.
    RouteGone(Route),
    /// A next hop by whose number routes are told has gone, and they with it.
    NextHopGone(u32),
    /// A neighbour of a device is known.
    Neighbour(u32, IpAddr, Mac),
    /// It is known no more.
    NeighbourGone(u32, IpAddr),
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// Its name, where the message has it.
    pub name: Option<Box<str>>,
    /// Whether it is up, as far as an administrator says.
    pub up: bool,
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Which packets it is for: those with this mark.
    pub mark: u32,
    /// Which addresses it is for.
    pub prefix: Prefix,
    /// Whether these are the host's own.
    pub local: bool,
    /// Number of its table.
    pub table: u32,
    /// Of routes in a table that are for the same addresses, the one with the lowest metric counts.
    pub metric: u32,
    /// The type of service that it is for.
    pub tos: u8,
    /// Where packets go. `None`: nowhere, or where Weir cannot send them.
    pub hop: Option<Hop>,
    /// Whether it has several next hops, of which this is the first.
    pub multipath: bool,
}

/// Where packets go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The number of the device.
    pub device: u32,
    /// The next hop; without one, the destination itself.
    pub gateway: Option<IpAddr>,
    /// The own address from which packets are to be sent.
    pub source: Option<IpAddr>,
    /// The number by which the next hop is managed; zero for none.
    pub number: u32,
}

// linux/if_addr.h, linux/rtnetlink.h, linux/neighbour.h and linux/nexthop.h, where libc lacks them.
const RTA_MARK: u16 = 16;
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
const RTM_DELNEXTHOP: u16 = 105;
const NHA_ID: u16 = 1;
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_DEAD: u8 = 1;
const NTF_PROXY: u8 = 8;
const RT_SCOPE_NOWHERE: u8 = 255;
/// NUD_REACHABLE, _STALE, _DELAY, _PROBE, _NOARP and _PERMANENT: states in which the address of a neighbour counts.
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const NLM_F_REPLACE: u16 = 0x100;

/// Lengths of `struct ifinfomsg`, `ifaddrmsg`, `rtmsg`, `ndmsg`, `nhmsg` and `rtnexthop`.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;
const NEIGHBOUR_HEADER: usize = 12;
const NEXT_HOP_HEADER: usize = 8;
const PATH_HEADER: usize = 8;

/// What a message says, by its type, its flags and its body.
pub fn parse(kind: u16, flags: u16, body: &[u8]) -> Option<Change> {
    match kind {
        libc::RTM_NEWLINK => device(body).map(Change::Device),
        libc::RTM_DELLINK => device(body).map(|device| Change::DeviceGone(device.index)),
        libc::RTM_NEWADDR => address(body).map(|(device, address)| Change::Address(device, address)),
        libc::RTM_DELADDR => address(body).map(|(device, address)| Change::AddressGone(device, address)),
        libc::RTM_NEWROUTE if flags & NLM_F_REPLACE != 0 => route(body, RTNH_F_DEAD).map(Change::RouteReplaced),
        libc::RTM_NEWROUTE => route(body, RTNH_F_DEAD).map(Change::Route),
        // Of one that goes it does not matter that it is of no use any more.
        libc::RTM_DELROUTE => route(body, 0).map(Change::RouteGone),
        libc::RTM_NEWNEIGH => neighbour(body).map(|(device, ip, mac)| match mac {
            Some(mac) => Change::Neighbour(device, ip, mac),
            None => Change::NeighbourGone(device, ip),
        }),
        libc::RTM_DELNEIGH => neighbour(body).map(|(device, ip, _)| Change::NeighbourGone(device, ip)),
        RTM_DELNEXTHOP => next_hop_number(body).map(Change::NextHopGone),
        _ => None,
    }
}

/// The attributes of a message behind its header, up to one that is not as it should be.
fn attributes(body: &[u8], header: usize) -> Option<impl Iterator<Item = (u16, &[u8])>> {
    let all = NlasIterator::new(body.get(header..)?).map_while(Result::ok);
    Some(all.map(|attribute| (attribute.kind(), attribute.into_inner())).map(|(kind, whole)| (kind, value(whole))))
}

/// The value of an attribute, which is checked to lie within it.
fn value(attribute: &[u8]) -> &[u8] {
    let len = attribute.first_chunk().map_or(0, |len| usize::from(u16::from_ne_bytes(*len)));
    attribute.get(4..len).unwrap_or_default()
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes.get(at..at + 4)?)
}

/// An address of this family. Ones of IPv4 as addresses of IPv6 are none.
fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        libc::AF_INET6 => {
            let address: Ipv6Addr = <[u8; 16]>::try_from(bytes).ok()?.into();
            address.to_ipv4_mapped().is_none().then_some(address.into())
        }
        _ => None,
    }
}

fn device(body: &[u8]) -> Option<Device> {
    // A bridge of the kernel tells of its ports by the same messages, in its own address family: that one of those goes
    // does not mean that the device does.
    if i32::from(*body.first()?) != libc::AF_UNSPEC {
        return None;
    }
    let (index, up) = (number_at(body, 4)?, number_at(body, 8)? & libc::IFF_UP as u32 != 0);
    let name = attributes(body, LINK_HEADER)?.find(|(kind, _)| *kind == libc::IFLA_IFNAME);
    let name = name.map(|(_, name)| {
        // Names are any bytes but zero.
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into()
    });
    Some(Device { index, name, up })
}

fn address(body: &[u8]) -> Option<(u32, (IpAddr, u8))> {
    let (family, len, device) = (*body.first()?, *body.get(1)?, number_at(body, 4)?);
    let (mut own, mut of_peer) = (None, None);
    for (kind, value) in attributes(body, ADDRESS_HEADER)? {
        match kind {
            libc::IFA_LOCAL => own = Some(ip(family, value)?),
            // Of a point-to-point link that of the peer; otherwise the same as the own one.
            libc::IFA_ADDRESS => of_peer = Some(ip(family, value)?),
            _ => {}
        }
    }
    let address = own.or(of_peer)?;
    Prefix::new(address, len)?;
    Some((device, (address, len)))
}

/// A route. Its next hop is of no use with one of the flags in `unusable`.
fn route(body: &[u8], unusable: u8) -> Option<Route> {
    let &[family, len, _, tos, table, _, scope, kind] = body.first_chunk()?;
    let flags = number_at(body, 8)?;
    let any: IpAddr = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    // What the kernel has derived from a route for one address.
    if flags & RTM_F_CLONED != 0 {
        return None;
    }
    let mut route = Route {
        mark: 0,
        prefix: Prefix::new(any, len)?,
        local: kind == libc::RTN_LOCAL,
        table: table.into(),
        metric: 0,
        tos,
        hop: None,
        multipath: false,
    };
    let (mut device, mut gateway, mut source, mut paths) = (None, None, None, None);
    let (mut next_hop, mut via_other_family) = (0, false);
    for (kind, value) in attributes(body, ROUTE_HEADER)? {
        match kind {
            libc::RTA_DST => route.prefix = Prefix::new(ip(family, value)?, len)?,
            libc::RTA_OIF => device = Some(number(value)?),
            libc::RTA_GATEWAY => gateway = Some(ip(family, value)?),
            libc::RTA_PRIORITY => route.metric = number(value)?,
            libc::RTA_PREFSRC => source = Some(ip(family, value)?),
            libc::RTA_MULTIPATH => paths = Some(value),
            libc::RTA_TABLE => route.table = number(value)?,
            RTA_MARK => route.mark = number(value)?,
            RTA_VIA => via_other_family = true,
            RTA_NH_ID => next_hop = number(value)?,
            _ => {}
        }
    }
    let is_usable = (kind == libc::RTN_UNICAST || kind == libc::RTN_LOCAL) && scope != RT_SCOPE_NOWHERE;
    route.multipath = paths.is_some();
    let hop = match paths {
        Some(paths) => first_path(family, paths, unusable),
        None if via_other_family || flags as u8 & unusable != 0 => None,
        None => device.map(|device| (device, gateway)),
    };
    let hop = hop.map(|(device, gateway)| Hop {
        device,
        gateway: gateway.filter(|gateway| !gateway.is_unspecified()),
        source: source.filter(|source| !source.is_unspecified()),
        number: next_hop,
    });
    route.hop = hop.filter(|_| is_usable);
    Some(route)
}

/// The device and the gateway of the first of several next hops (`struct rtnexthop`) that can be used.
fn first_path(family: u8, mut paths: &[u8], unusable: u8) -> Option<(u32, Option<IpAddr>)> {
    loop {
        let len = usize::from(u16::from_ne_bytes(*paths.first_chunk()?));
        let path = paths.get(..len).filter(|path| path.len() >= PATH_HEADER)?;
        let (is_dead, device) = (path[2] & unusable != 0, number_at(path, 4)?);
        let (mut gateway, mut via_other_family) = (None, false);
        for (kind, value) in attributes(path, PATH_HEADER)? {
            match kind {
                libc::RTA_GATEWAY => gateway = Some(ip(family, value)?),
                RTA_VIA => via_other_family = true,
                _ => {}
            }
        }
        if !is_dead && !via_other_family {
            return Some((device, gateway));
        }
        paths = paths.get(len.next_multiple_of(4)..)?;
    }
}

fn next_hop_number(body: &[u8]) -> Option<u32> {
    let mut all = attributes(body, NEXT_HOP_HEADER)?;
    all.find(|(kind, _)| *kind == NHA_ID).and_then(|(_, value)| number(value))
}

/// A neighbour, with its address if that counts.
fn neighbour(body: &[u8]) -> Option<(u32, IpAddr, Option<Mac>)> {
    let header: &[u8; NEIGHBOUR_HEADER] = body.first_chunk()?;
    let (family, device) = (header[0], number_at(header, 4)?);
    let (state, flags) = (u16::from_ne_bytes([header[8], header[9]]), header[10]);
    // One that the host answers for is none of its own.
    if flags & NTF_PROXY != 0 {
        return None;
    }
    let (mut address, mut mac) = (None, None);
    for (kind, value) in attributes(body, NEIGHBOUR_HEADER)? {
        match kind {
            libc::NDA_DST => address = Some(ip(family, value)?),
            libc::NDA_LLADDR => mac = Mac::try_from(value).ok(),
            _ => {}
        }
    }
    let address = address.filter(|address| !address.is_multicast())?;
    let is_one = |mac: &Mac| state & NUD_VALID != 0 && mac[0] & 1 == 0 && *mac != [0; 6];
    Some((device, address, mac.filter(is_one)))
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An attribute, padded.
    pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [&(value.len() as u16 + 4).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    pub fn route_body(kind: u8, len: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        [&[libc::AF_INET as u8, len, 0, 0, 254, 3, 0, kind, 0, 0, 0, 0][..], &attributes.concat()].concat()
    }

    fn neighbour_body(state: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut header = [0; NEIGHBOUR_HEADER];
        header[0] = libc::AF_INET as u8;
        header[4..8].copy_from_slice(&7u32.to_ne_bytes());
        header[8..10].copy_from_slice(&state.to_ne_bytes());
        [&header[..], &attributes.concat()].concat()
    }

    fn v4(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn a_device_is_read() {
        let mut body = [0; LINK_HEADER].to_vec();
        body[4..8].copy_from_slice(&7u32.to_ne_bytes());
        body[8..12].copy_from_slice(&(libc::IFF_UP as u32).to_ne_bytes());
        let without = body.clone();
        body.extend(attribute(libc::IFLA_IFNAME, b"eth\xff\0"));
        let device = |name: Option<&str>| Device { index: 7, name: name.map(Into::into), up: true };
        assert_eq!(parse(libc::RTM_NEWLINK, 0, &body), Some(Change::Device(device(Some("eth\u{fffd}")))));
        assert_eq!(parse(libc::RTM_NEWLINK, 0, &without), Some(Change::Device(device(None))));
        assert_eq!(parse(libc::RTM_DELLINK, 0, &body), Some(Change::DeviceGone(7)));
        body[0] = libc::AF_BRIDGE as u8;
        assert_eq!(parse(libc::RTM_DELLINK, 0, &body), None, "a port of a bridge");
    }

    #[test]
    fn the_own_address_of_a_point_to_point_link_is_read() {
        let header = [libc::AF_INET as u8, 24, 0, 0, 7, 0, 0, 0];
        let [own, peer] = [1, 2].map(|last| [192, 0, 2, last]);
        let body = [&header[..], &attribute(libc::IFA_ADDRESS, &peer), &attribute(libc::IFA_LOCAL, &own)].concat();
        assert_eq!(parse(libc::RTM_NEWADDR, 0, &body), Some(Change::Address(7, (v4(1), 24))));
        assert_eq!(parse(libc::RTM_DELADDR, 0, &body), Some(Change::AddressGone(7, (v4(1), 24))));
        let body = [&header[..], &attribute(libc::IFA_ADDRESS, &peer)].concat();
        assert_eq!(parse(libc::RTM_NEWADDR, 0, &body), Some(Change::Address(7, (v4(2), 24))));
        let body = [&header[..], &attribute(libc::IFA_LOCAL, &[192, 0, 2])].concat();
        assert_eq!(parse(libc::RTM_NEWADDR, 0, &body), None, "three bytes");
    }

    #[test]
    fn a_route_is_read() {
        let mut attributes = vec![
            attribute(libc::RTA_DST, &[198, 51, 100, 0]),
            attribute(libc::RTA_OIF, &7u32.to_ne_bytes()),
            attribute(libc::RTA_GATEWAY, &[192, 0, 2, 254]),
            attribute(libc::RTA_PREFSRC, &[192, 0, 2, 1]),
            attribute(libc::RTA_PRIORITY, &100u32.to_ne_bytes()),
            attribute(libc::RTA_TABLE, &1000u32.to_ne_bytes()),
            attribute(RTA_MARK, &5u32.to_ne_bytes()),
            attribute(RTA_NH_ID, &9u32.to_ne_bytes()),
        ];
        let hop = Hop { device: 7, gateway: Some(v4(254)), source: Some(v4(1)), number: 9 };
        let route = Route {
            mark: 5,
            prefix: "198.51.100.0/24".parse().unwrap(),
            local: false,
            table: 1000,
            metric: 100,
            tos: 0,
            hop: Some(hop),
            multipath: false,
        };
        let body = route_body(libc::RTN_UNICAST, 24, &attributes);
        assert_eq!(parse(libc::RTM_NEWROUTE, 0, &body), Some(Change::Route(route.clone())));
        assert_eq!(parse(libc::RTM_NEWROUTE, NLM_F_REPLACE, &body), Some(Change::RouteReplaced(route.clone())));
        assert_eq!(parse(libc::RTM_DELROUTE, 0, &body), Some(Change::RouteGone(route.clone())));
        let nowhere = |kind| match parse(libc::RTM_NEWROUTE, 0, &route_body(kind, 24, &attributes)) {
            Some(Change::Route(route)) => route.hop.is_none(),
            _ => false,
        };
        assert!(nowhere(libc::RTN_BLACKHOLE) && nowhere(libc::RTN_BROADCAST) && !nowhere(libc::RTN_LOCAL));
        for bad in
            [attribute(libc::RTA_DST, &[1]), attribute(libc::RTA_OIF, &[7]), attribute(libc::RTA_GATEWAY, &[0; 16])]
        {
            attributes.push(bad);
            assert_eq!(parse(libc::RTM_NEWROUTE, 0, &route_body(libc::RTN_UNICAST, 24, &attributes)), None);
            attributes.pop();
        }
        assert_eq!(parse(libc::RTM_NEWROUTE, 0, &route_body(libc::RTN_UNICAST, 33, &attributes)), None);
    }

    /// `struct rtnexthop` with a gateway.
    fn path(flags: u8, device: u32, gateway: [u8; 4]) -> Vec<u8> {
        let gateway = attribute(libc::RTA_GATEWAY, &gateway);
        let len = (PATH_HEADER + gateway.len()) as u16;
        [&len.to_ne_bytes()[..], &[flags, 0], &device.to_ne_bytes(), &gateway].concat()
    }

    #[test]
    fn the_first_next_hop_that_can_be_used_is_taken() {
        let paths = [path(RTNH_F_DEAD, 7, [192, 0, 2, 1]), path(0, 8, [192, 0, 2, 2]), path(0, 9, [192, 0, 2, 3])];
        let body = route_body(libc::RTN_UNICAST, 0, &[attribute(libc::RTA_MULTIPATH, &paths.concat())]);
        let Some(Change::Route(route)) = parse(libc::RTM_NEWROUTE, 0, &body) else { panic!("no route") };
        assert_eq!(route.hop, Some(Hop { device: 8, gateway: Some(v4(2)), source: None, number: 0 }));
        assert!(route.multipath && route.prefix.to_string() == "0.0.0.0/0");
        for bad in [vec![], vec![0; 8], vec![7, 0, 0, 0, 0, 0, 0, 0], path(0, 8, [0; 4])[..9].to_vec()] {
            let body = route_body(libc::RTN_UNICAST, 0, &[attribute(libc::RTA_MULTIPATH, &bad)]);
            let Some(Change::Route(route)) = parse(libc::RTM_NEWROUTE, 0, &body) else { panic!("no route") };
            assert_eq!(route.hop, None, "{bad:?}");
        }
    }

    #[test]
    fn a_neighbour_is_read_in_each_state() {
        let all = [attribute(libc::NDA_DST, &[192, 0, 2, 9]), attribute(libc::NDA_LLADDR, &[2, 0, 0, 0, 0, 9])];
        let known = Some(Change::Neighbour(7, v4(9), [2, 0, 0, 0, 0, 9]));
        let gone = Some(Change::NeighbourGone(7, v4(9)));
        for (state, is_known) in [
            (libc::NUD_REACHABLE, true),
            (libc::NUD_STALE, true),
            (libc::NUD_DELAY, true),
            (libc::NUD_PROBE, true),
            (libc::NUD_PERMANENT, true),
            (libc::NUD_NOARP, true),
            (libc::NUD_NONE, false),
            (libc::NUD_INCOMPLETE, false),
            (libc::NUD_FAILED, false),
        ] {
            let change = parse(libc::RTM_NEWNEIGH, 0, &neighbour_body(state, &all));
            assert_eq!(change, if is_known { known.clone() } else { gone.clone() }, "state {state:#x}");
        }
        assert_eq!(parse(libc::RTM_DELNEIGH, 0, &neighbour_body(libc::NUD_REACHABLE, &all)), gone);
        let no_mac = neighbour_body(libc::NUD_REACHABLE, &all[..1]);
        assert_eq!(parse(libc::RTM_NEWNEIGH, 0, &no_mac), gone);
        let multicast = [all[0].clone(), attribute(libc::NDA_LLADDR, &[1, 0, 0x5e, 0, 0, 9])];
        assert_eq!(parse(libc::RTM_NEWNEIGH, 0, &neighbour_body(libc::NUD_NOARP, &multicast)), gone);
        let mut bridge = neighbour_body(libc::NUD_REACHABLE, &all);
        bridge[0] = libc::AF_BRIDGE as u8;
        assert_eq!(parse(libc::RTM_NEWNEIGH, 0, &bridge), None, "an address that a bridge has learnt");
    }

    proptest! {
        #[test]
        fn any_bytes_are_looked_at(
            kind in prop::sample::select(vec![16u16, 17, 20, 21, 24, 25, 28, 29, RTM_DELNEXTHOP]),
            body in prop::collection::vec(any::<u8>(), 0..120),
        ) {
            let _ = parse(kind, 0, &body);
        }

        /// A message that is cut anywhere is none, or says less.
        #[test]
        fn a_message_that_is_cut_short_says_no_more(cut in 0usize..60) {
            let paths = [path(0, 8, [192, 0, 2, 2]), path(0, 9, [192, 0, 2, 3])].concat();
            let body = route_body(libc::RTN_UNICAST, 0, &[attribute(libc::RTA_MULTIPATH, &paths)]);
            if let Some(Change::Route(route)) = parse(libc::RTM_NEWROUTE, 0, &body[..cut.min(body.len())]) {
                prop_assert!(route.hop.is_none_or(|hop| hop.device == 8 && hop.gateway == Some(v4(2))));
            }
        }
    }
}
