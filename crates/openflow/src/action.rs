//! Actions: all of ovs-actions(7), independent of the version of OpenFlow they came in.
//!
//! Where two wire forms differ in meaning or in their text form (`mod_nw_src` and `set_field`, `load`
//! and `set_field`) they are two variants. [`Action::field_write`] shows what is common to them.

use std::net::{Ipv4Addr, Ipv6Addr};

use packet::Field;

use crate::matching::{AnyField, Subfield};
use crate::tun_metadata::{Bits, TunValue};
use crate::types::{Cookie, EthAddr, FlowModFlags, GroupId, OfPort, PacketInReason, TableId};

/// An action. Values of fields are right-aligned numbers, as in [`Key::get`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// `output:PORT`. `max_len` counts for CONTROLLER only: bytes to send.
    Output {
        /// Port, possibly reserved.
        port: OfPort,
        /// Bytes for the controller; 0xffff for all.
        max_len: u16,
    },
    /// `output:SUBFIELD`.
    OutputReg {
        /// Holds the port, in its 16-bit form.
        src: Subfield,
        /// Bytes for the controller.
        max_len: u16,
    },
    /// `output(port=PORT,max_len=N)`.
    OutputTrunc {
        /// Port.
        port: OfPort,
        /// Bytes to send.
        max_len: u32,
    },
    /// `group:ID`.
    Group(GroupId),
    /// `controller(...)`.
    Controller(Box<Controller>),
    /// `enqueue(PORT,QUEUE)`.
    Enqueue {
        /// Port.
        port: OfPort,
        /// Queue.
        queue: u32,
    },
    /// `bundle(...)` and `bundle_load(...)`.
    Bundle(Box<Bundle>),

    /// `set_field:VALUE/MASK->FIELD`.
    SetField {
        /// Field.
        field: Field,
        /// Value; zero where `mask` is.
        value: u128,
        /// The bits that are written; never zero, all of the field's where it is written whole.
        mask: u128,
    },
    /// `set_field:VALUE/MASK->tun_metadataN`.
    SetTunMetadata(Box<TunValue>),
    /// `load:VALUE->SUBFIELD`.
    RegLoad {
        /// Written: of a field that has its place in the key.
        dst: Subfield,
        /// Value, right-aligned.
        value: u64,
    },
    /// `move:SUBFIELD->SUBFIELD`, of equal width.
    RegMove {
        /// Read.
        src: Subfield,
        /// Written.
        dst: Subfield,
    },
    /// `push:SUBFIELD`.
    StackPush(Subfield),
    /// `pop:SUBFIELD`.
    StackPop(Subfield),

    /// `mod_vlan_vid` (push) or `set_vlan_vid` (no push).
    SetVlanVid {
        /// VLAN id, 12 bits.
        vid: u16,
        /// Whether an untagged packet gets a tag (OpenFlow 1.0) or stays as it is (1.1 and later).
        push: bool,
    },
    /// `mod_vlan_pcp` (push) or `set_vlan_pcp` (no push).
    SetVlanPcp {
        /// Priority, 3 bits.
        pcp: u8,
        /// Whether an untagged packet gets a tag.
        push: bool,
    },
    /// `strip_vlan`, `pop_vlan`.
    StripVlan,
    /// `push_vlan:ETHERTYPE`.
    PushVlan(u16),
    /// `mod_dl_src`.
    SetEthSrc(EthAddr),
    /// `mod_dl_dst`.
    SetEthDst(EthAddr),
    /// `mod_nw_src`: nothing happens to what is not IPv4.
    SetIpv4Src(Ipv4Addr),
    /// `mod_nw_dst`.
    SetIpv4Dst(Ipv4Addr),
    /// `mod_nw_tos`: DSCP in the high 6 bits, as in the TOS byte; the low 2 bits are zero.
    SetIpDscp(u8),
    /// `mod_nw_ecn`, 2 bits.
    SetIpEcn(u8),
    /// `mod_nw_ttl`.
    SetIpTtl(u8),
    /// `mod_tp_src`: TCP, UDP or SCTP.
    SetL4SrcPort(u16),
    /// `mod_tp_dst`: TCP, UDP or SCTP.
    SetL4DstPort(u16),
    /// `set_tunnel`, `set_tunnel64`.
    SetTunnel(u64),
    /// `dec_ttl`: at 0 or 1 the packet goes to the controllers with id zero instead.
    DecTtl,
    /// `dec_ttl(ID,...)`: as `dec_ttl`, to the controllers with these ids; on the wire there may be none.
    DecTtlCntIds(Vec<u16>),

    /// `set_mpls_label`, 20 bits.
    SetMplsLabel(u32),
    /// `set_mpls_tc`, 3 bits.
    SetMplsTc(u8),
    /// `set_mpls_ttl`.
    SetMplsTtl(u8),
    /// `dec_mpls_ttl`.
    DecMplsTtl,
    /// `push_mpls:ETHERTYPE`.
    PushMpls(u16),
    /// `pop_mpls:ETHERTYPE`.
    PopMpls(u16),
    /// `dec_nsh_ttl`.
    DecNshTtl,
    /// `encap(...)`.
    Encap(Box<Encap>),
    /// `decap(...)`: the packet type that is left, where it was given.
    Decap(Option<u32>),

    /// `set_queue:N`.
    SetQueue(u32),
    /// `pop_queue`.
    PopQueue,
    /// `fin_timeout(...)`: timeouts in seconds once a FIN or RST is seen; zero leaves one as it is.
    FinTimeout {
        /// Idle timeout.
        idle: u16,
        /// Hard timeout.
        hard: u16,
    },

    /// `resubmit(PORT,TABLE,ct)`.
    Resubmit {
        /// The in_port to look up with; IN_PORT for the present one.
        in_port: OfPort,
        /// Table; [`TableId::ALL`] for the present one.
        table: TableId,
        /// Look up with the connection's original direction tuple.
        with_ct: bool,
    },
    /// `learn(...)`.
    Learn(Box<Learn>),
    /// `conjunction(ID, CLAUSE/N)`.
    Conjunction {
        /// Conjunction id.
        id: u32,
        /// Clause, from zero (the text form counts from one).
        clause: u8,
        /// Number of clauses, 2 to 64.
        n_clauses: u8,
    },
    /// `multipath(...)`.
    Multipath(Box<Multipath>),
    /// `note:BYTES`.
    Note(Vec<u8>),
    /// `exit`.
    Exit,
    /// `sample(...)`.
    Sample(Box<Sample>),
    /// `ct(...)`.
    Ct(Box<Ct>),
    /// `ct_clear`.
    CtClear,
    /// `nat(...)`, within `ct` only.
    Nat(Box<Nat>),
    /// `clone(...)`.
    Clone(Vec<Action>),
    /// `check_pkt_larger(N)->SUBFIELD`.
    CheckPktLarger {
        /// Bytes.
        pkt_len: u16,
        /// One bit.
        dst: Subfield,
    },
    /// `delete_field:tun_metadataN`: N. No other field can be deleted.
    DeleteField(u8),
    /// `meter:ID` as an action (OpenFlow 1.5); earlier versions have the instruction.
    Meter(u32),
    /// `debug_recirc`: recirculate, for tests.
    DebugRecirc,
    /// `debug_slow`: translate every packet anew, for tests.
    DebugSlow,
}

impl Action {
    /// `output:PORT` as the text form means it: to CONTROLLER the whole packet.
    pub fn output(port: OfPort) -> Action {
        Action::Output { port, max_len: if port == OfPort::CONTROLLER { 0xffff } else { 0 } }
    }

    /// `load`: for a tun_metadata field, a `set_field` with a mask.
    pub fn load(dst: Subfield, value: u64) -> Action {
        match dst.field {
            AnyField::Key(_) => Action::RegLoad { dst, value },
            AnyField::Tun(field) => {
                let bits = Bits::from(u128::from(value));
                Action::SetTunMetadata(Box::new(TunValue::part(field.index, dst.ofs, dst.n_bits, &bits)))
            }
        }
    }

    /// `set_field` on all of a field.
    pub fn set_field(field: Field, value: u128) -> Action {
        Action::SetField { field, value: value & field.info().max(), mask: field.info().max() }
    }

    /// For an action that writes constant bits of one field that has its place in the key: the field, value and mask. L4 ports
    /// are given as TCP's, whose place in the key is that of UDP and SCTP too.
    pub fn field_write(&self) -> Option<(Field, u128, u128)> {
        let whole = |field: Field, value: u128| Some((field, value, field.info().max()));
        match *self {
            Action::SetField { field, value, mask } => Some((field, value, mask)),
            Action::RegLoad { dst, value } => {
                let dst = dst.in_key()?;
                Some((dst.field, dst.place(value.into()), dst.mask()))
            }
            Action::SetEthSrc(mac) => whole(Field::DlSrc, mac.to_value()),
            Action::SetEthDst(mac) => whole(Field::DlDst, mac.to_value()),
            Action::SetIpv4Src(ip) => whole(Field::NwSrc, u32::from(ip).into()),
            Action::SetIpv4Dst(ip) => whole(Field::NwDst, u32::from(ip).into()),
            Action::SetIpDscp(tos) => whole(Field::IpDscp, (tos >> 2).into()),
            Action::SetIpEcn(ecn) => whole(Field::NwEcn, ecn.into()),
            Action::SetIpTtl(ttl) => whole(Field::NwTtl, ttl.into()),
            Action::SetL4SrcPort(port) => whole(Field::TcpSrc, port.into()),
            Action::SetL4DstPort(port) => whole(Field::TcpDst, port.into()),
            Action::SetTunnel(id) => whole(Field::TunId, id.into()),
            Action::SetMplsLabel(label) => whole(Field::MplsLabel, label.into()),
            Action::SetMplsTc(tc) => whole(Field::MplsTc, tc.into()),
            Action::SetMplsTtl(ttl) => whole(Field::MplsTtl, ttl.into()),
            _ => None,
        }
    }
}

/// Argument of [`Action::Controller`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Controller {
    /// Bytes of packet to send.
    pub max_len: u16,
    /// Reason in the packet-in.
    pub reason: PacketInReason,
    /// Only to controllers with this id (NXT_SET_CONTROLLER_ID).
    pub id: u16,
    /// Handed back in the packet-in.
    pub userdata: Vec<u8>,
    /// Suspend the packet's way until NXT_RESUME.
    pub pause: bool,
    /// Meter; `None` for none.
    pub meter: Option<u32>,
}

impl Default for Controller {
    fn default() -> Controller {
        Controller {
            max_len: 0xffff,
            reason: PacketInReason::Action,
            id: 0,
            userdata: Vec::new(),
            pause: false,
            meter: None,
        }
    }
}

/// The headers over which `multipath` and `bundle` hash (`enum nx_hash_fields`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum HashFields {
    /// `eth_src`.
    EthSrc = 0,
    /// `symmetric_l4`.
    SymmetricL4 = 1,
    /// `symmetric_l3l4`.
    SymmetricL3L4 = 2,
    /// `symmetric_l3l4+udp`.
    SymmetricL3L4Udp = 3,
    /// `nw_src`.
    NwSrc = 4,
    /// `nw_dst`.
    NwDst = 5,
    /// `symmetric_l3`.
    SymmetricL3 = 6,
}

impl HashFields {
    /// Every choice with its name in flow syntax.
    pub const NAMES: &'static [(HashFields, &'static str)] = &[
        (HashFields::EthSrc, "eth_src"),
        (HashFields::SymmetricL4, "symmetric_l4"),
        (HashFields::SymmetricL3L4, "symmetric_l3l4"),
        (HashFields::SymmetricL3L4Udp, "symmetric_l3l4+udp"),
        (HashFields::NwSrc, "nw_src"),
        (HashFields::NwDst, "nw_dst"),
        (HashFields::SymmetricL3, "symmetric_l3"),
    ];
}

/// How `bundle` chooses (`enum nx_bd_algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum BundleAlgorithm {
    /// `active_backup`: the first live member.
    ActiveBackup = 0,
    /// `hrw`: highest random weight.
    Hrw = 1,
}

/// Argument of [`Action::Bundle`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bundle {
    /// Hashed headers.
    pub fields: HashFields,
    /// Seed.
    pub basis: u16,
    /// Choice.
    pub algorithm: BundleAlgorithm,
    /// Ports.
    pub members: Vec<OfPort>,
    /// `bundle_load`: where the chosen port is written instead of sending there.
    pub dst: Option<Subfield>,
}

/// How `multipath` chooses (`enum nx_mp_algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum MultipathAlgorithm {
    /// `modulo_n`.
    ModuloN = 0,
    /// `hash_threshold`.
    HashThreshold = 1,
    /// `hrw`.
    Hrw = 2,
    /// `iter_hash`.
    IterHash = 3,
}

/// Argument of [`Action::Multipath`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Multipath {
    /// Hashed headers.
    pub fields: HashFields,
    /// Seed.
    pub basis: u16,
    /// Choice.
    pub algorithm: MultipathAlgorithm,
    /// Number of links minus one.
    pub max_link: u16,
    /// Argument of the algorithm.
    pub arg: u32,
    /// Where the link's number is written.
    pub dst: Subfield,
}

/// Argument of [`Action::Learn`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Learn {
    /// Seconds.
    pub idle_timeout: u16,
    /// Seconds.
    pub hard_timeout: u16,
    /// Priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: Cookie,
    /// Only SEND_FLOW_REM.
    pub flags: FlowModFlags,
    /// `delete_learned`: learnt flows go when the last flow that learns them goes.
    pub delete_learned: bool,
    /// Table that learns.
    pub table: TableId,
    /// Idle timeout after a FIN, seconds; zero for none.
    pub fin_idle_timeout: u16,
    /// Hard timeout after a FIN, seconds; zero for none.
    pub fin_hard_timeout: u16,
    /// Most learnt flows; zero for no limit.
    pub limit: u32,
    /// `result_dst`: one bit that tells whether a flow was added.
    pub result_dst: Option<Subfield>,
    /// What the learnt flow matches and does.
    pub specs: Vec<LearnSpec>,
}

/// An element of [`Learn::specs`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LearnSpec {
    /// Width in bits of source and destination.
    pub n_bits: u16,
    /// Where the value comes from.
    pub src: LearnSrc,
    /// Where it goes.
    pub dst: LearnDst,
}

/// Where a value comes from when a flow is learnt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LearnSrc {
    /// The packet.
    Field(Subfield),
    /// A constant.
    Immediate(u128),
}

/// Where a value goes when a flow is learnt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LearnDst {
    /// The flow's match.
    Match(Subfield),
    /// A `load` in its actions.
    Load(Subfield),
    /// An `output` in its actions.
    Output,
}

/// Argument of [`Action::Sample`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Of 65535.
    pub probability: u16,
    /// Row of Flow_Sample_Collector_Set.
    pub collector_set: u32,
    /// IPFIX observation domain.
    pub obs_domain: u32,
    /// IPFIX observation point.
    pub obs_point: u32,
    /// Port to report; ANY for none.
    pub sampling_port: OfPort,
    /// Direction to report.
    pub direction: SampleDirection,
}

/// Direction in [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SampleDirection {
    /// Not said.
    Default = 0,
    /// `ingress`.
    Ingress = 1,
    /// `egress`.
    Egress = 2,
}

/// Argument of [`Action::Ct`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ct {
    /// `commit`.
    pub commit: bool,
    /// `force`; only with commit.
    pub force: bool,
    /// `zone`.
    pub zone: CtZone,
    /// `table`: recirculate to it.
    pub table: Option<TableId>,
    /// `alg`: well-known port of the protocol: 21 ftp, 69 tftp; zero for none.
    pub alg: u16,
    /// `exec(...)` and `nat(...)`.
    pub actions: Vec<Action>,
}

/// Zone of [`Ct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtZone {
    /// A constant.
    Immediate(u16),
    /// 16 bits of a field.
    Field(Subfield),
}

/// Argument of [`Action::Nat`]. All default: `nat` alone, which applies the connection's NAT.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Nat {
    /// `src` or `dst`.
    pub kind: Option<NatKind>,
    /// `persistent`.
    pub persistent: bool,
    /// `hash`.
    pub hash: bool,
    /// `random`.
    pub random: bool,
    /// Addresses.
    pub addrs: NatAddrs,
    /// Ports, first and last; the last is zero where only one was given.
    pub ports: Option<(u16, u16)>,
}

/// Direction of [`Nat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// `src=`.
    Src,
    /// `dst=`.
    Dst,
}

/// Addresses of [`Nat`]: first, and last where there is a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum NatAddrs {
    /// None.
    #[default]
    None,
    /// IPv4.
    V4(Ipv4Addr, Option<Ipv4Addr>),
    /// IPv6.
    V6(Ipv6Addr, Option<Ipv6Addr>),
}

/// Argument of [`Action::Encap`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Encap {
    /// Packet type of the new header: zero for Ethernet, 0x1894f for NSH, 0x18847 for MPLS.
    pub packet_type: u32,
    /// `hdr_size`, zero for the default.
    pub header_size: u16,
    /// Properties.
    pub props: Vec<EncapProp>,
}

/// A property of [`Encap`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EncapProp {
    /// `nsh(md_type=N)`.
    NshMdType(u8),
    /// `nsh(tlv(CLASS,TYPE,DATA))`.
    NshTlv {
        /// Class.
        class: u16,
        /// Type.
        kind: u8,
        /// Value.
        data: Vec<u8>,
    },
    /// `mpls(ether_type=N)`.
    MplsEtherType(u16),
}

/// A value of a field of `n_bits` bits as an OpenFlow port: `in_port` and registers hold either form.
pub fn port_from_value(value: u128, n_bits: u16) -> OfPort {
    if n_bits > 16 && value > 0xffff { OfPort(value as u32) } else { OfPort::from_u16(value as u16) }
}
