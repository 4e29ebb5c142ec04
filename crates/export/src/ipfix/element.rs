//! Information elements (IANA's registry "IPFIX Entities"), and which of them the records of a flow have.
//!
//! The elements of a template are declared once, in [`Template::elements`]: templates list them, and records have a value
//! for each of them in this order.

/// The number of VMware as an enterprise, which has elements for tunnels.
const VMWARE: u32 = 6876;

/// Variable length, in a template.
const VARIABLE: u16 = 0xffff;

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $len:expr, $enterprise:expr;)*) => {
        /// An information element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Element { $($(#[$doc])* $name,)* }

        impl Element {
            /// Number, length in bytes, and enterprise; zero for IANA's own.
            pub fn specifier(self) -> (u16, u16, u32) {
                match self { $(Element::$name => ($id, $len, $enterprise),)* }
            }
        }
    };
}

elements! {
    /// observationPointId
    ObservationPoint = 138, 4, 0;
    /// flowDirection
    FlowDirection = 61, 1, 0;
    /// sourceMacAddress
    SourceMac = 56, 6, 0;
    /// destinationMacAddress
    DestinationMac = 80, 6, 0;
    /// ethernetType
    EthernetType = 256, 2, 0;
    /// ethernetHeaderLength
    EthernetHeaderLength = 240, 1, 0;
    /// ingressInterface
    IngressInterface = 10, 4, 0;
    /// ingressInterfaceType
    IngressInterfaceType = 368, 4, 0;
    /// interfaceName, of the ingress interface
    IngressName = 82, VARIABLE, 0;
    /// interfaceDescription, of the ingress interface
    IngressDescription = 83, VARIABLE, 0;
    /// egressInterface
    EgressInterface = 14, 4, 0;
    /// egressInterfaceType
    EgressInterfaceType = 369, 4, 0;
    /// interfaceName, of the egress interface
    EgressName = 82, VARIABLE, 0;
    /// interfaceDescription, of the egress interface
    EgressDescription = 83, VARIABLE, 0;
    /// vlanId
    VlanId = 58, 2, 0;
    /// dot1qVlanId
    Dot1qVlanId = 243, 2, 0;
    /// dot1qPriority
    Dot1qPriority = 244, 1, 0;
    /// ipVersion
    IpVersion = 60, 1, 0;
    /// ipTTL
    IpTtl = 192, 1, 0;
    /// protocolIdentifier
    Protocol = 4, 1, 0;
    /// ipDiffServCodePoint
    Dscp = 195, 1, 0;
    /// ipPrecedence
    IpPrecedence = 196, 1, 0;
    /// ipClassOfService
    ClassOfService = 5, 1, 0;
    /// sourceIPv4Address
    SourceIpv4 = 8, 4, 0;
    /// destinationIPv4Address
    DestinationIpv4 = 12, 4, 0;
    /// sourceIPv6Address
    SourceIpv6 = 27, 16, 0;
    /// destinationIPv6Address
    DestinationIpv6 = 28, 16, 0;
    /// flowLabelIPv6
    FlowLabel = 31, 4, 0;
    /// sourceTransportPort
    SourcePort = 7, 2, 0;
    /// destinationTransportPort
    DestinationPort = 11, 2, 0;
    /// icmpTypeIPv4
    IcmpTypeIpv4 = 176, 1, 0;
    /// icmpCodeIPv4
    IcmpCodeIpv4 = 177, 1, 0;
    /// icmpTypeIPv6
    IcmpTypeIpv6 = 178, 1, 0;
    /// icmpCodeIPv6
    IcmpCodeIpv6 = 179, 1, 0;
    /// tunnelSourceIPv4Address
    TunnelSource = 893, 4, VMWARE;
    /// tunnelDestinationIPv4Address
    TunnelDestination = 894, 4, VMWARE;
    /// tunnelProtocolIdentifier
    TunnelProtocol = 895, 1, VMWARE;
    /// tunnelSourceTransportPort
    TunnelSourcePort = 896, 2, VMWARE;
    /// tunnelDestinationTransportPort
    TunnelDestinationPort = 897, 2, VMWARE;
    /// tunnelType
    TunnelType = 891, 1, VMWARE;
    /// tunnelKey
    TunnelKey = 892, VARIABLE, VMWARE;
    /// virtualObsID
    VirtualObsId = 898, VARIABLE, VMWARE;
    /// flowStartDeltaMicroseconds
    FlowStart = 158, 4, 0;
    /// flowEndDeltaMicroseconds
    FlowEnd = 159, 4, 0;
    /// droppedPacketDeltaCount
    DroppedPackets = 133, 8, 0;
    /// droppedPacketTotalCount
    DroppedPacketsTotal = 135, 8, 0;
    /// packetDeltaCount
    Packets = 2, 8, 0;
    /// packetTotalCount
    PacketsTotal = 86, 8, 0;
    /// ingressUnicastPacketTotalCount
    IngressUnicastTotal = 354, 8, 0;
    /// ingressMulticastPacketTotalCount
    IngressMulticastTotal = 355, 8, 0;
    /// ingressBroadcastPacketTotalCount
    IngressBroadcastTotal = 356, 8, 0;
    /// egressUnicastPacketTotalCount
    EgressUnicastTotal = 357, 8, 0;
    /// egressBroadcastPacketTotalCount
    EgressBroadcastTotal = 358, 8, 0;
    /// postMCastPacketDeltaCount
    PostMulticastPackets = 19, 8, 0;
    /// postMCastPacketTotalCount
    PostMulticastPacketsTotal = 174, 8, 0;
    /// layer2OctetDeltaCount
    Layer2Octets = 352, 8, 0;
    /// layer2OctetTotalCount
    Layer2OctetsTotal = 353, 8, 0;
    /// flowEndReason
    EndReason = 136, 1, 0;
    /// droppedOctetDeltaCount
    DroppedOctets = 132, 8, 0;
    /// droppedOctetTotalCount
    DroppedOctetsTotal = 134, 8, 0;
    /// octetDeltaCount
    Octets = 1, 8, 0;
    /// octetTotalCount
    OctetsTotal = 85, 8, 0;
    /// octetDeltaSumOfSquares
    OctetSquares = 198, 8, 0;
    /// octetTotalSumOfSquares
    OctetSquaresTotal = 199, 8, 0;
    /// minimumIpTotalLength
    MinimumLength = 25, 8, 0;
    /// maximumIpTotalLength
    MaximumLength = 26, 8, 0;
    /// postMCastOctetDeltaCount
    PostMulticastOctets = 20, 8, 0;
    /// postMCastOctetTotalCount
    PostMulticastOctetsTotal = 175, 8, 0;
    /// tcpAckTotalCount
    TcpAckTotal = 222, 8, 0;
    /// tcpFinTotalCount
    TcpFinTotal = 219, 8, 0;
    /// tcpPshTotalCount
    TcpPshTotal = 221, 8, 0;
    /// tcpRstTotalCount
    TcpRstTotal = 220, 8, 0;
    /// tcpSynTotalCount
    TcpSynTotal = 218, 8, 0;
    /// tcpUrgTotalCount
    TcpUrgTotal = 223, 8, 0;
    /// exportingProcessId
    ExportingProcess = 144, 4, 0;
    /// notSentPacketTotalCount
    NotSentPacketsTotal = 167, 8, 0;
}

impl Element {
    /// Appends what a template says of it.
    pub fn put_specifier(self, out: &mut Vec<u8>) {
        use crate::bytes::Put;
        const OF_ENTERPRISE: u16 = 0x8000;
        let (id, len, enterprise) = self.specifier();
        out.put_u16(if enterprise == 0 { id } else { id | OF_ENTERPRISE });
        out.put_u16(len);
        if enterprise != 0 {
            out.put_u32(enterprise);
        }
    }
}

/// Layer 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L2 {
    /// Without a VLAN tag.
    Ethernet,
    /// With one.
    Vlan,
}

/// Layer 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L3 {
    /// Anything else.
    Other,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Layer 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L4 {
    /// Anything else.
    Other,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP, of the version of IP.
    Icmp,
}

/// Where a flow was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Where it comes in.
    Ingress,
    /// Where it goes out.
    Egress,
}

/// Which headers the packets of a flow have: each choice has its own template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Template {
    /// Layer 2.
    pub l2: L2,
    /// Layer 3.
    pub l3: L3,
    /// Layer 4.
    pub l4: L4,
    /// The tunnel is told.
    pub is_tunnelled: bool,
    /// Where it was observed.
    pub direction: Direction,
}

/// Templates for flows: no index is as large.
pub const TEMPLATES: usize = 120;

/// Numbers below are of RFC 7011.
const FIRST_TEMPLATE: u16 = 256;

/// The template of what the exporter says about itself.
pub const OPTIONS_TEMPLATE: u16 = FIRST_TEMPLATE + TEMPLATES as u16;

impl Template {
    /// Its place among all templates, below [`TEMPLATES`].
    pub fn index(self) -> usize {
        let mut index = self.l2 as usize;
        index = index * 3 + self.l3 as usize;
        index = index * 5 + self.l4 as usize;
        index = index * 2 + usize::from(self.is_tunnelled);
        index * 2 + self.direction as usize
    }

    /// Its number in messages.
    pub fn id(self) -> u16 {
        FIRST_TEMPLATE + self.index() as u16
    }

    /// The elements of its records, in order.
    pub fn elements(self, has_obs_id: bool) -> Vec<Element> {
        use Element::*;
        let mut list = vec![ObservationPoint, FlowDirection, SourceMac, DestinationMac, EthernetType];
        list.extend([EthernetHeaderLength, IngressInterface, IngressInterfaceType, IngressName, IngressDescription]);
        if self.direction == Direction::Egress {
            list.extend([EgressInterface, EgressInterfaceType, EgressName, EgressDescription]);
        }
        if self.l2 == L2::Vlan {
            list.extend([VlanId, Dot1qVlanId, Dot1qPriority]);
        }
        if self.l3 != L3::Other {
            list.extend([IpVersion, IpTtl, Protocol, Dscp, IpPrecedence, ClassOfService]);
        }
        match self.l3 {
            L3::Other => {}
            L3::Ipv4 => list.extend([SourceIpv4, DestinationIpv4]),
            L3::Ipv6 => list.extend([SourceIpv6, DestinationIpv6, FlowLabel]),
        }
        match (self.l4, self.l3) {
            (L4::Other, _) => {}
            (L4::Tcp | L4::Udp | L4::Sctp, _) => list.extend([SourcePort, DestinationPort]),
            (L4::Icmp, L3::Ipv6) => list.extend([IcmpTypeIpv6, IcmpCodeIpv6]),
            (L4::Icmp, _) => list.extend([IcmpTypeIpv4, IcmpCodeIpv4]),
        }
        if self.is_tunnelled {
            list.extend([TunnelSource, TunnelDestination, TunnelProtocol, TunnelSourcePort, TunnelDestinationPort]);
            list.extend([TunnelType, TunnelKey]);
        }
        if has_obs_id {
            list.push(VirtualObsId);
        }
        list.extend([FlowStart, FlowEnd, DroppedPackets, DroppedPacketsTotal, Packets, PacketsTotal]);
        list.extend([IngressUnicastTotal, IngressMulticastTotal, IngressBroadcastTotal]);
        list.extend([EgressUnicastTotal, EgressBroadcastTotal, PostMulticastPackets, PostMulticastPacketsTotal]);
        list.extend([Layer2Octets, Layer2OctetsTotal, EndReason]);
        if self.l3 != L3::Other {
            list.extend([DroppedOctets, DroppedOctetsTotal, Octets, OctetsTotal, OctetSquares, OctetSquaresTotal]);
            list.extend([MinimumLength, MaximumLength, PostMulticastOctets, PostMulticastOctetsTotal]);
        }
        if self.l4 == L4::Tcp {
            list.extend([TcpAckTotal, TcpFinTotal, TcpPshTotal, TcpRstTotal, TcpSynTotal, TcpUrgTotal]);
        }
        list
    }
}
