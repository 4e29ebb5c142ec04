//! What a packet carries along from the tunnel it has left, or towards the one it enters (ovs-fields(7), "Tunnel Fields").

use std::fmt;
use std::net::IpAddr;

use packet::flow::{Key as FlowKey, block, tun_flags};
use zerocopy::FromZeros;

use crate::Malformed;
use crate::header::{self, Header, Mirror, Payload, Protocol};
use crate::options::{self, MAX_LEN};
use crate::outer::{self, Decapsulated, Outer, PlainUdp, Verify};

/// Options of Geneve as they are on the wire.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawOptions {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl RawOptions {
    /// None.
    pub const EMPTY: RawOptions = RawOptions { bytes: [0; MAX_LEN], len: 0 };

    /// These; `None` where one is not whole, or there are too many.
    pub fn new(options: &[u8]) -> Option<RawOptions> {
        options::check(options).ok()?;
        let mut raw = RawOptions::EMPTY;
        raw.bytes.get_mut(..options.len())?.copy_from_slice(options);
        raw.len = options.len() as u8;
        Some(raw)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for RawOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

/// Metadata of a tunnel. What does not apply is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// Key.
    pub tun_id: u64,
    /// Source of the outer packet, if it is known.
    pub src: Option<IpAddr>,
    /// Destination of the outer packet, if it is known.
    pub dst: Option<IpAddr>,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Of [`tun_flags`].
    pub flags: u16,
    /// Source and destination port of UDP.
    pub ports: (u16, u16),
    /// Group of VXLAN.
    pub gbp_id: u16,
    /// Flags of that group.
    pub gbp_flags: u8,
    /// Version of ERSPAN.
    pub erspan_ver: u8,
    /// Index, of version 1.
    pub erspan_idx: u32,
    /// Direction, of version 2.
    pub erspan_dir: u8,
    /// Hardware, of version 2.
    pub erspan_hwid: u8,
    /// First byte of the header of GTP-U.
    pub gtpu_flags: u8,
    /// Type of the message of GTP-U.
    pub gtpu_msgtype: u8,
    /// Options of Geneve.
    pub options: RawOptions,
}

/// What is left to know of a packet whose headers are in a block of a flow key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Carried<'a> {
    /// What the tunnel carried.
    pub payload: Payload,
    /// Options of Geneve, each of them whole.
    pub options: &'a [u8],
    /// TOS or traffic class of the outer packet.
    pub tos: u8,
    /// Where the payload begins, from the start of the outer IP header.
    pub start: usize,
    /// Where it ends; padding of the frame may follow.
    pub end: usize,
}

/// Reads all headers of a packet and puts what they say into a block of a flow key: as [`outer::decapsulate`] and [`store_received`] do,
/// without what lies between where the packet is like most are. After an error the block has no meaning.
#[inline]
pub fn receive<'a>(
    packet: &'a [u8],
    protocol: Protocol,
    verify: Verify,
    block: &mut block::Tunnel,
) -> Result<Carried<'a>, Malformed> {
    match protocol {
        Protocol::Vxlan { group_policy } => {
            if let Some((plain, carried)) = PlainUdp::read(packet, verify)
                && !header::has_extension(carried)
            {
                let (vni, group) = header::read_vxlan(carried, group_policy)?;
                store_plain(plain, vni, false, block);
                if let Some(group) = group {
                    block.tun_gbp_id.set(group.id);
                    block.tun_gbp_flags = group.flags;
                }
                let start = size_of_val(plain) + header::VXLAN_LEN;
                let end = size_of_val(plain) + carried.len();
                return Ok(Carried { payload: Payload::Ethernet, options: &[], tos: plain.ip.tos, start, end });
            }
        }
        Protocol::Geneve => {
            if let Some((plain, carried)) = PlainUdp::read(packet, verify) {
                let header = header::read_geneve(carried)?;
                store_plain(plain, header.vni, header.oam, block);
                let start = size_of_val(plain) + header::GENEVE_LEN + header.options.len();
                let end = size_of_val(plain) + carried.len();
                let (payload, options) = (header.payload, header.options);
                return Ok(Carried { payload, options, tos: plain.ip.tos, start, end });
            }
        }
        _ => {}
    }
    receive_any(packet, protocol, verify, block)
}

/// Any packet that is not like most.
#[inline(never)]
fn receive_any<'a>(
    packet: &'a [u8],
    protocol: Protocol,
    verify: Verify,
    block: &mut block::Tunnel,
) -> Result<Carried<'a>, Malformed> {
    let received = outer::decapsulate(packet, protocol, verify)?;
    store_received(&received, block);
    let options = match received.header {
        Header::Geneve { options, .. } => options,
        _ => &[],
    };
    let Decapsulated { outer: Outer { tos, .. }, start, end, .. } = received;
    Ok(Carried { payload: outer::payload_of(&received.header), options, tos, start, end })
}

/// Puts what most packets say into a block.
#[inline]
fn store_plain(PlainUdp { ip, udp }: &PlainUdp, vni: u32, oam: bool, block: &mut block::Tunnel) {
    let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    let flags = tun_flags::KEY | flag(udp.checksum.get() != 0, tun_flags::CSUM) | flag(oam, tun_flags::OAM);
    *block = block::Tunnel {
        tun_id: u64::from(vni).into(),
        tun_src: ip.src.into(),
        tun_dst: ip.dst.into(),
        tun_flags: flags.into(),
        tun_tos: ip.tos,
        tun_ttl: ip.ttl,
        ..FromZeros::new_zeroed()
    };
}

/// Puts what the headers of a received packet said into a block of a flow key, all but the options: as
/// [`Metadata::of`] and [`Metadata::store`] do, without what lies between.
#[inline]
pub fn store_received(received: &Decapsulated<'_>, block: &mut block::Tunnel) {
    let Outer { ref src, ref dst, tos, ttl, checksum, .. } = received.outer;
    *block = FromZeros::new_zeroed();
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            block.tun_src.set((*src).into());
            block.tun_dst.set((*dst).into());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            (block.tun_ipv6_src, block.tun_ipv6_dst) = (src.octets(), dst.octets());
        }
        _ => {}
    }
    (block.tun_tos, block.tun_ttl) = (tos, ttl);
    let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
    // Whether routers could fragment it is of no concern any more, as in Open vSwitch.
    let mut flags = flag(checksum, tun_flags::CSUM);
    let id = match received.header {
        Header::Vxlan { vni, group } => {
            if let Some(group) = group {
                block.tun_gbp_id.set(group.id);
                block.tun_gbp_flags = group.flags;
            }
            flags |= tun_flags::KEY;
            vni.into()
        }
        Header::VxlanGpe { vni, .. } => {
            flags |= tun_flags::KEY;
            vni.into()
        }
        Header::Geneve { vni, oam, .. } => {
            flags |= tun_flags::KEY | flag(oam, tun_flags::OAM);
            vni.into()
        }
        Header::Gre { key, checksum, .. } => {
            flags |= flag(key.is_some(), tun_flags::KEY) | flag(checksum, tun_flags::CSUM);
            key.unwrap_or(0).into()
        }
        Header::Erspan { session, mirror, .. } => {
            flags |= tun_flags::KEY;
            match mirror {
                Mirror::One { index } => {
                    block.tun_erspan_ver = 1;
                    block.tun_erspan_idx.set(index);
                }
                Mirror::Two { egress, hardware, .. } => {
                    (block.tun_erspan_ver, block.tun_erspan_dir, block.tun_erspan_hwid) = (2, egress.into(), hardware);
                }
            }
            session.into()
        }
        Header::Gtpu { teid, flags, kind, .. } => {
            (block.tun_gtpu_flags, block.tun_gtpu_msgtype) = (flags, kind);
            teid.into()
        }
        Header::Lisp { instance, .. } => {
            flags |= flag(instance.is_some(), tun_flags::KEY);
            instance.unwrap_or(0).into()
        }
        Header::Bareudp { .. } | Header::Srv6 { .. } => 0,
    };
    block.tun_id.set(id);
    block.tun_flags.set(flags);
}

impl Metadata {
    /// None.
    pub const EMPTY: Metadata = Metadata {
        tun_id: 0,
        src: None,
        dst: None,
        tos: 0,
        ttl: 0,
        flags: 0,
        ports: (0, 0),
        gbp_id: 0,
        gbp_flags: 0,
        erspan_ver: 0,
        erspan_idx: 0,
        erspan_dir: 0,
        erspan_hwid: 0,
        gtpu_flags: 0,
        gtpu_msgtype: 0,
        options: RawOptions::EMPTY,
    };

    /// That of a packet which was received, with what it carries.
    pub fn of(received: &Decapsulated<'_>) -> (Metadata, Payload) {
        let Outer { src, dst, tos, ttl, ports, checksum, .. } = received.outer;
        let mut all = Metadata { src: Some(src), dst: Some(dst), tos, ttl, ports, ..Metadata::EMPTY };
        let mut flag = |is_set: bool, flag: u16| all.flags |= if is_set { flag } else { 0 };
        flag(checksum, tun_flags::CSUM);
        let payload = match received.header {
            Header::Vxlan { vni, group } => {
                flag(true, tun_flags::KEY);
                all.tun_id = vni.into();
                if let Some(group) = group {
                    (all.gbp_id, all.gbp_flags) = (group.id, group.flags);
                }
                Payload::Ethernet
            }
            Header::VxlanGpe { vni, payload } => {
                flag(true, tun_flags::KEY);
                all.tun_id = vni.into();
                payload
            }
            Header::Geneve { vni, oam, payload, options } => {
                flag(true, tun_flags::KEY);
                flag(oam, tun_flags::OAM);
                all.tun_id = vni.into();
                // The header was read, so they are whole and have room.
                all.options = RawOptions::new(options).unwrap_or(RawOptions::EMPTY);
                payload
            }
            Header::Gre { key, checksum, payload, .. } => {
                flag(key.is_some(), tun_flags::KEY);
                flag(checksum, tun_flags::CSUM);
                all.tun_id = key.unwrap_or(0).into();
                payload
            }
            Header::Erspan { session, mirror, .. } => {
                flag(true, tun_flags::KEY);
                all.tun_id = session.into();
                match mirror {
                    Mirror::One { index } => (all.erspan_ver, all.erspan_idx) = (1, index),
                    Mirror::Two { egress, hardware, .. } => {
                        (all.erspan_ver, all.erspan_dir, all.erspan_hwid) = (2, egress.into(), hardware);
                    }
                }
                Payload::Ethernet
            }
            Header::Gtpu { teid, flags, kind, payload, .. } => {
                all.tun_id = teid.into();
                (all.gtpu_flags, all.gtpu_msgtype) = (flags, kind);
                payload
            }
            Header::Lisp { instance, payload } => {
                flag(instance.is_some(), tun_flags::KEY);
                all.tun_id = instance.unwrap_or(0).into();
                payload
            }
            Header::Bareudp { payload } | Header::Srv6 { payload, .. } => payload,
        };
        (all, payload)
    }

    /// Puts all but the options and the ports of UDP into a flow key. The options need a [`crate::fields::FieldTable`]; the ports are no fields.
    pub fn store(&self, key: &mut FlowKey) {
        let block = key.tunnel_mut();
        block.tun_id.set(self.tun_id);
        let v4 = |address: Option<IpAddr>| match address {
            Some(IpAddr::V4(address)) => u32::from(address),
            _ => 0,
        };
        let v6 = |address: Option<IpAddr>| match address {
            Some(IpAddr::V6(address)) => address.octets(),
            _ => [0; 16],
        };
        block.tun_src.set(v4(self.src));
        block.tun_dst.set(v4(self.dst));
        (block.tun_ipv6_src, block.tun_ipv6_dst) = (v6(self.src), v6(self.dst));
        block.tun_flags.set(self.flags);
        (block.tun_tos, block.tun_ttl) = (self.tos, self.ttl);
        block.tun_gbp_id.set(self.gbp_id);
        block.tun_gbp_flags = self.gbp_flags;
        block.tun_erspan_ver = self.erspan_ver;
        block.tun_erspan_idx.set(self.erspan_idx);
        (block.tun_erspan_dir, block.tun_erspan_hwid) = (self.erspan_dir, self.erspan_hwid);
        (block.tun_gtpu_flags, block.tun_gtpu_msgtype) = (self.gtpu_flags, self.gtpu_msgtype);
    }

    /// What a flow key has: the opposite of [`Metadata::store`].
    pub fn load(key: &FlowKey) -> Metadata {
        let block = key.tunnel();
        let address = |v4: u32, v6: [u8; 16]| match (v4, v6) {
            (0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) => None,
            (0, v6) => Some(IpAddr::from(v6)),
            (v4, _) => Some(IpAddr::from(v4.to_be_bytes())),
        };
        Metadata {
            tun_id: block.tun_id.get(),
            src: address(block.tun_src.get(), block.tun_ipv6_src),
            dst: address(block.tun_dst.get(), block.tun_ipv6_dst),
            tos: block.tun_tos,
            ttl: block.tun_ttl,
            flags: block.tun_flags.get(),
            gbp_id: block.tun_gbp_id.get(),
            gbp_flags: block.tun_gbp_flags,
            erspan_ver: block.tun_erspan_ver,
            erspan_idx: block.tun_erspan_idx.get(),
            erspan_dir: block.tun_erspan_dir,
            erspan_hwid: block.tun_erspan_hwid,
            gtpu_flags: block.tun_gtpu_flags,
            gtpu_msgtype: block.tun_gtpu_msgtype,
            ..Metadata::EMPTY
        }
    }
}
