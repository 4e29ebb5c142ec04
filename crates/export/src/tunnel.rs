//! What is exported about a tunnel that a packet has come through, or goes into.

use std::net::Ipv4Addr;

use packet::Key;

/// The outer headers of a tunnel over IPv4. sFlow's and IPFIX's elements have no place for those over IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Kind of tunnel.
    pub kind: Kind,
    /// Source.
    pub src: Ipv4Addr,
    /// Destination.
    pub dst: Ipv4Addr,
    /// Type of service.
    pub tos: u8,
    /// UDP source port; zero where there is none, or where it is chosen for each packet.
    pub src_port: u16,
    /// UDP destination port; zero where there is none.
    pub dst_port: u16,
    /// Key of the tunnel, such as a VNI; zero counts as none.
    pub id: u64,
}

/// Kinds of tunnels that have numbers in `tunnelType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Kind {
    /// Any other.
    #[default]
    Other,
    /// VXLAN.
    Vxlan,
    /// GRE.
    Gre,
    /// LISP.
    Lisp,
    /// STT.
    Stt,
    /// Geneve.
    Geneve,
}

impl Kind {
    /// The kind with this name in the column `type` of an interface.
    pub fn of_name(name: &str) -> Kind {
        match name {
            "vxlan" => Kind::Vxlan,
            "gre" => Kind::Gre,
            "lisp" => Kind::Lisp,
            "stt" => Kind::Stt,
            "geneve" => Kind::Geneve,
            _ => Kind::Other,
        }
    }

    /// IP protocol; zero where the kind does not say.
    pub fn ip_protocol(self) -> u8 {
        match self {
            Kind::Other => 0,
            Kind::Gre => 47,
            Kind::Stt => 6,
            Kind::Vxlan | Kind::Lisp | Kind::Geneve => 17,
        }
    }

    /// Number in `tunnelType`.
    pub fn number(self) -> u8 {
        match self {
            Kind::Other => 0,
            Kind::Vxlan => 1,
            Kind::Gre => 2,
            Kind::Lisp => 3,
            Kind::Stt => 4,
            Kind::Geneve => 7,
        }
    }

    /// Bytes of `tunnelKey`.
    pub fn key_len(self) -> usize {
        match self {
            Kind::Other => 0,
            Kind::Vxlan | Kind::Lisp | Kind::Geneve => 3,
            Kind::Gre => 4,
            Kind::Stt => 8,
        }
    }
}

impl Tunnel {
    /// The tunnel that a packet with this key has come through, if it is one over IPv4.
    pub fn received(key: &Key, kind: Kind) -> Option<Tunnel> {
        let tunnel = key.tunnel();
        let (src, dst) = (tunnel.tun_src.get(), tunnel.tun_dst.get());
        (dst != 0).then(|| Tunnel {
            kind,
            src: src.into(),
            dst: dst.into(),
            tos: tunnel.tun_tos,
            src_port: 0,
            dst_port: 0,
            id: tunnel.tun_id.get(),
        })
    }
}
