//! From the options of a port and the metadata of a packet to the headers of the tunnel.
//!
//! 1. [`fill`] completes the metadata that the flow has set with what the port says (ovs-vswitchd.conf.db(5), "Tunnel Options").
//! 2. [`outer`] and [`header`] say what the headers are; [`crate::outer::Prepared`] makes bytes of them.
//! 3. [`SourcePorts::of`] chooses the UDP source port of each packet.

use std::net::IpAddr;

use packet::flow::tun_flags;
use packet::wire::ip_proto;

use crate::config::{Config, Kind};
use crate::ecn;
use crate::header::srv6::Segments;
use crate::header::{GTPU_PACKET, Group, Header, Mirror, Payload, Protocol, Unwritable};
use crate::matching::{Address, Key};
use crate::metadata::Metadata;
use crate::outer::Outer;

/// The IP header of the inner packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
}

/// Completes `metadata` for a packet that is sent through a port. `inner` is there for packets of IPv4 and IPv6.
pub fn fill(config: &Config, metadata: &Metadata, inner: Option<Inner>) -> Metadata {
    let mut all = *metadata;
    let address = |configured: Address, flow: Option<IpAddr>| match configured {
        Address::One(address) => Some(address),
        Address::Any => None,
        Address::Flow => flow,
    };
    all.src = address(config.local, all.src);
    all.dst = address(config.remote, all.dst);
    all.ports.1 = config.dst_port;
    all.tun_id = match config.out_key {
        Some(Key::Flow) => all.tun_id,
        Some(Key::One(key)) => key,
        None => 0,
    };
    all.ttl = inner.filter(|_| config.ttl_inherit).map_or(config.ttl, |inner| inner.ttl);
    all.tos = inner.filter(|_| config.tos_inherit).map_or(config.tos, |inner| inner.tos) & !ecn::MASK;
    if let Some(inner) = inner {
        all.tos = ecn::encapsulate(all.tos, inner.tos);
    }
    let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    // What is not for the flow to say comes from the port.
    all.flags = all.flags & tun_flags::OAM
        | flag(config.dont_fragment, tun_flags::DF)
        | flag(config.checksum, tun_flags::CSUM)
        | flag(config.out_key.is_some(), tun_flags::KEY);
    config.erspan.version.put(&mut all.erspan_ver);
    config.erspan.index.put(&mut all.erspan_idx);
    config.erspan.direction.put(&mut all.erspan_dir);
    config.erspan.hardware.put(&mut all.erspan_hwid);
    all
}

/// The protocol of a port; `None` for bareudp that is not told what it carries.
pub fn protocol(config: &Config) -> Option<Protocol> {
    Some(match config.kind {
        Kind::Vxlan if config.protocol_extension => Protocol::VxlanGpe,
        Kind::Vxlan => Protocol::Vxlan { group_policy: config.group_policy },
        Kind::Geneve => Protocol::Geneve,
        Kind::Gre | Kind::Ip6gre => Protocol::Gre,
        Kind::Erspan | Kind::Ip6erspan => Protocol::Erspan,
        Kind::Gtpu => Protocol::Gtpu,
        Kind::Lisp => Protocol::Lisp,
        Kind::Bareudp => Protocol::Bareudp(config.payload?),
        Kind::Srv6 => Protocol::Srv6 { flow_label: config.flow_label },
    })
}

/// The outer headers for metadata that [`fill`] has completed. `src` is the address of the route, where the metadata has none. `None`
/// without a destination, or where the two are of different families.
pub fn outer(config: &Config, metadata: &Metadata, src: Option<IpAddr>) -> Option<Outer> {
    let (src, dst) = (metadata.src.or(src)?, metadata.dst?);
    if src.is_ipv4() != dst.is_ipv4() {
        return None;
    }
    // Over IPv6, and for GTP-U, there always is a checksum of UDP, as in Open vSwitch.
    let checksum = dst.is_ipv6() || config.kind == Kind::Gtpu || metadata.flags & tun_flags::CSUM != 0;
    let is_udp = protocol(config).is_some_and(|protocol| protocol.ip_proto() == ip_proto::UDP);
    Some(Outer {
        src,
        dst,
        tos: metadata.tos,
        ttl: metadata.ttl,
        dont_fragment: metadata.flags & tun_flags::DF != 0,
        ports: (0, config.dst_port),
        checksum: checksum && is_udp,
    })
}

/// The tunnel's header for metadata that [`fill`] has completed. Keys lose the bits that the protocol has no room for, but for ERSPAN,
/// which refuses them.
pub fn header<'a>(config: &'a Config, metadata: &'a Metadata, payload: Payload) -> Result<Header<'a>, Unwritable> {
    let Some(protocol) = protocol(config) else { return Err(Unwritable::Payload) };
    let vni = (metadata.tun_id & 0xff_ffff) as u32;
    let oam = metadata.flags & tun_flags::OAM != 0;
    match protocol {
        Protocol::Vxlan { .. } | Protocol::Erspan if payload != Payload::Ethernet => Err(Unwritable::Payload),
        Protocol::Vxlan { group_policy } => {
            let group = Group { id: metadata.gbp_id, flags: metadata.gbp_flags & 0x48 };
            let has_group = group_policy && (group.id, group.flags) != (0, 0);
            Ok(Header::Vxlan { vni, group: has_group.then_some(group) })
        }
        Protocol::VxlanGpe => Ok(Header::VxlanGpe { vni, payload }),
        Protocol::Geneve => Ok(Header::Geneve { vni, oam, payload, options: metadata.options.as_bytes() }),
        Protocol::Gre => Ok(Header::Gre {
            key: config.out_key.map(|_| metadata.tun_id as u32),
            checksum: metadata.flags & tun_flags::CSUM != 0,
            sequence: config.sequence.then_some(0),
            payload,
        }),
        Protocol::Erspan => {
            let session = u16::try_from(metadata.tun_id).map_err(|_| Unwritable::Range)?;
            let mirror = match metadata.erspan_ver {
                1 => Mirror::One { index: metadata.erspan_idx },
                2 => Mirror::Two { egress: metadata.erspan_dir != 0, hardware: metadata.erspan_hwid, timestamp: 0 },
                _ => return Err(Unwritable::Range),
            };
            Ok(Header::Erspan { session, sequence: 0, mirror })
        }
        Protocol::Gtpu => {
            let or = |value: u8, default: u8| if value == 0 { default } else { value };
            let kind = or(metadata.gtpu_msgtype, GTPU_PACKET);
            Ok(Header::Gtpu {
                teid: metadata.tun_id as u32,
                flags: or(metadata.gtpu_flags, 0x30),
                kind,
                optional: [0; 4],
                payload: if kind == GTPU_PACKET { payload } else { Payload::Message },
            })
        }
        Protocol::Lisp => Ok(Header::Lisp { instance: Some(vni), payload }),
        Protocol::Bareudp(_) => Ok(Header::Bareudp { payload }),
        Protocol::Srv6 { .. } => {
            let segments = match (&config.segments[..], &metadata.dst) {
                // The other end is the only segment.
                ([], Some(IpAddr::V6(dst))) => std::slice::from_ref(dst),
                (segments, _) => segments,
            };
            Ok(Header::Srv6 { segments: Segments::Path(segments), payload })
        }
    }
}

/// The UDP source ports that packets are given (`tnl/egress_port_range`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourcePorts {
    min: u16,
    max: u16,
}

impl Default for SourcePorts {
    fn default() -> SourcePorts {
        SourcePorts { min: 32768, max: 61000 }
    }
}

impl SourcePorts {
    /// From one to the other, in either order.
    pub fn new(one: u16, other: u16) -> SourcePorts {
        SourcePorts { min: one.min(other), max: one.max(other) }
    }

    /// The lowest and the highest.
    pub fn range(self) -> (u16, u16) {
        (self.min, self.max)
    }

    /// The port for a packet whose inner headers have this hash. The highest port itself is not used where there is another one.
    #[inline]
    pub fn of(self, hash: u32) -> u16 {
        self.min + ((u64::from(hash) * u64::from(self.max - self.min)) >> 32) as u16
    }
}
