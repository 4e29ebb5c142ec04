//! Writing actions.
//!
//! What a version has no standard form for is written as Nicira's extension. What it has no form for at
//! all (an action of a later version) is left out, as the text of a flow on an older version leaves it out.

mod set_field;

use packet::Field;

use self::set_field::{as_set_field, put_move, put_reg_load, put_set_field, put_set_tun, unpushed};
use super::nested::{NEXT_PROTO, ct_flags, ed, learn_bits, nat_flags};
use super::subfield::{is_short, pack, put_field};
use crate::action::*;
use crate::codec::prop;
use crate::codec::wire::Put;
use crate::error::vendor;
use crate::matching::Subfield;
use crate::tun_metadata::TunField;
use crate::types::{EthAddr, FlowModFlags, OfPort, PacketInReason, TableId, Version};

pub(crate) use set_field::settled;

/// Writes actions.
pub(crate) fn put_actions(out: &mut Vec<u8>, version: Version, actions: &[Action]) {
    for action in actions {
        put(out, version, action);
    }
}

/// A standard action: header, argument, padding.
fn of(out: &mut Vec<u8>, kind: u16, argument: impl FnOnce(&mut Vec<u8>)) {
    let start = out.here();
    out.u16(kind);
    out.u16(0);
    argument(out);
    finish(out, start, 8);
}

/// A Nicira action of at least `min` bytes.
fn nx(out: &mut Vec<u8>, subtype: u16, min: usize, argument: impl FnOnce(&mut Vec<u8>)) {
    let start = out.here();
    out.u16(0xffff);
    out.u16(0);
    out.u32(vendor::NX);
    out.u16(subtype);
    argument(out);
    finish(out, start, min);
}

fn finish(out: &mut Vec<u8>, start: usize, min: usize) {
    let len = out.here() - start;
    out.zeros(min.saturating_sub(len));
    out.pad8(start);
    out.close(start, 2);
}

fn put(out: &mut Vec<u8>, version: Version, action: &Action) {
    use Action::*;
    let v10 = version == Version::V1_0;
    // The standard number in OpenFlow 1.0 and in later versions.
    let either = |ten: u16, later: u16| if v10 { ten } else { later };
    match action {
        Output { port, max_len } => of(out, 0, |o| {
            if v10 {
                o.u16(port16(*port));
            } else {
                o.u32(port.0);
            }
            o.u16(*max_len);
        }),
        SetVlanVid { push: true, .. } | SetVlanPcp { push: true, .. } if !v10 => {
            // What in OpenFlow 1.0 adds a missing tag has to push it first.
            of(out, 17, |o| o.u16(0x8100));
            put(out, version, &unpushed(action));
        }
        _ if version >= Version::V1_2 && as_set_field(action).is_some() => {
            let Some((field, value)) = as_set_field(action) else { return };
            put_set_field(out, version, field, value, field.info().max());
        }
        SetVlanVid { vid, .. } => of(out, 1, |o| o.u16(*vid)),
        SetVlanPcp { pcp, .. } => of(out, 2, |o| o.u8(*pcp)),
        StripVlan => of(out, either(3, 18), |_| ()),
        SetEthSrc(mac) => put_eth(out, either(4, 3), *mac),
        SetEthDst(mac) => put_eth(out, either(5, 4), *mac),
        SetIpv4Src(ip) => of(out, either(6, 5), |o| o.u32((*ip).into())),
        SetIpv4Dst(ip) => of(out, either(7, 6), |o| o.u32((*ip).into())),
        SetIpDscp(tos) => of(out, either(8, 7), |o| o.u8(*tos)),
        SetIpEcn(ecn) if v10 => put_reg_load(out, version, Subfield::whole(Field::NwEcn), (*ecn).into()),
        SetIpEcn(ecn) => of(out, 8, |o| o.u8(*ecn)),
        SetIpTtl(ttl) if v10 => put_reg_load(out, version, Subfield::whole(Field::NwTtl), (*ttl).into()),
        SetIpTtl(ttl) => of(out, 23, |o| o.u8(*ttl)),
        SetL4SrcPort(port) => of(out, 9, |o| o.u16(*port)),
        SetL4DstPort(port) => of(out, 10, |o| o.u16(*port)),
        Enqueue { port, queue } if v10 => of(out, 11, |o| {
            o.u16(port16(*port));
            o.zeros(6);
            o.u32(*queue);
        }),
        // Later versions have no enqueue: set the queue, send, restore it.
        Enqueue { port, queue } => {
            put(out, version, &SetQueue(*queue));
            put(out, version, &Output { port: *port, max_len: 0 });
            put(out, version, &PopQueue);
        }
        // OpenFlow 1.0 pushes as a side effect of the SET_VLAN_* that follows.
        PushVlan(_) if v10 => {}
        PushVlan(ethertype) => of(out, 17, |o| o.u16(*ethertype)),
        Meter(id) if version >= Version::V1_5 => of(out, 29, |o| o.u32(*id)),
        Meter(_) => {}
        SetMplsLabel(label) => of_or_nx(out, v10, 13, 30, 2, |o| o.u32(*label)),
        SetMplsTc(tc) => of_or_nx(out, v10, 14, 31, 0, |o| o.u8(*tc)),
        SetMplsTtl(ttl) => of_or_nx(out, v10, 15, 25, 0, |o| o.u8(*ttl)),
        DecMplsTtl => of_or_nx(out, v10, 16, 26, 0, |_| ()),
        PushMpls(ethertype) => of_or_nx(out, v10, 19, 23, 0, |o| o.u16(*ethertype)),
        PopMpls(ethertype) => of_or_nx(out, v10, 20, 24, 0, |o| o.u16(*ethertype)),
        SetQueue(queue) => of_or_nx(out, v10, 21, 4, 2, |o| o.u32(*queue)),
        Group(id) => of_or_nx(out, v10, 22, 40, 2, |o| o.u32(id.0)),
        DecTtl => of_or_nx(out, v10, 24, 18, 0, |_| ()),
        SetField { field, value, mask } => put_set_field(out, version, *field, *value, *mask),
        SetTunMetadata(value) => put_set_tun(out, version, value),
        RegLoad { dst, value } => put_reg_load(out, version, *dst, *value),
        RegMove { src, dst } => put_move(out, version, src, dst),
        other => put_nicira(out, version, other),
    }
}

/// Nicira's own actions.
fn put_nicira(out: &mut Vec<u8>, version: Version, action: &Action) {
    use Action::*;
    match action {
        Resubmit { in_port, table, with_ct } => nx(out, if *with_ct { 44 } else { 14 }, 16, |o| {
            o.u16(port16(*in_port));
            o.u8(table.0);
        }),
        SetTunnel(id) => match u32::try_from(*id) {
            Ok(id) => nx(out, 2, 16, |o| {
                o.zeros(2);
                o.u32(id);
            }),
            Err(_) => nx(out, 9, 24, |o| {
                o.zeros(6);
                o.u64(*id);
            }),
        },
        PopQueue => nx(out, 5, 16, |_| ()),
        Note(data) => nx(out, 8, 16, |o| o.put(data)),
        Multipath(mp) => put_multipath(out, mp),
        Bundle(b) => put_bundle(out, b),
        OutputReg { src, max_len } => put_output_reg(out, src, *max_len),
        OutputTrunc { port, max_len } => nx(out, 39, 16, |o| {
            o.u16(port16(*port));
            o.u32(*max_len);
        }),
        Learn(l) => put_learn(out, l),
        Exit => nx(out, 17, 16, |_| ()),
        DebugSlow => nx(out, 254, 16, |_| ()),
        DebugRecirc => nx(out, 255, 16, |_| ()),
        FinTimeout { idle, hard } => nx(out, 19, 16, |o| {
            o.u16(*idle);
            o.u16(*hard);
        }),
        Controller(c) => put_controller(out, c),
        DecTtlCntIds(ids) => nx(out, 21, 16, |o| {
            o.u16(ids.len() as u16);
            o.zeros(4);
            ids.iter().for_each(|&id| o.u16(id));
        }),
        StackPush(sf) => put_stack(out, 27, sf),
        StackPop(sf) => put_stack(out, 28, sf),
        Sample(s) => put_sample(out, s),
        Conjunction { id, clause, n_clauses } => nx(out, 34, 16, |o| {
            o.put(&[*clause, *n_clauses]);
            o.u32(*id);
        }),
        Ct(ct) => put_ct(out, version, ct),
        CtClear => nx(out, 43, 16, |_| ()),
        Nat(nat) => put_nat(out, nat),
        Clone(actions) => nx(out, 42, 16, |o| {
            o.zeros(6);
            put_actions(o, version, actions);
        }),
        CheckPktLarger { pkt_len, dst } => nx(out, 49, 24, |o| {
            o.u16(*pkt_len);
            o.u16(dst.ofs);
            put_field(o, dst.field);
        }),
        DeleteField(n) => nx(out, 50, 24, |o| {
            if let Some(field) = TunField::new(*n) {
                put_field(o, field);
            }
        }),
        Encap(e) if version >= Version::V1_3 => put_encap(out, e),
        Decap(packet_type) if version >= Version::V1_3 => nx(out, 47, 16, |o| {
            o.zeros(2);
            o.u32(packet_type.unwrap_or(NEXT_PROTO));
        }),
        DecNshTtl if version >= Version::V1_3 => nx(out, 48, 16, |_| ()),
        _ => {}
    }
}

fn port16(port: OfPort) -> u16 {
    port.to_u16().unwrap_or(0xffff)
}

fn put_eth(out: &mut Vec<u8>, kind: u16, mac: EthAddr) {
    of(out, kind, |o| o.put(&mac.0));
}

/// A standard action that OpenFlow 1.0 lacks, with `pad` bytes before its argument in Nicira's form.
fn of_or_nx(out: &mut Vec<u8>, v10: bool, kind: u16, subtype: u16, pad: usize, argument: impl FnOnce(&mut Vec<u8>)) {
    if v10 {
        nx(out, subtype, 16, |o| {
            o.zeros(pad);
            argument(o);
        });
    } else {
        of(out, kind, argument);
    }
}

fn put_output_reg(out: &mut Vec<u8>, src: &Subfield, max_len: u16) {
    let range = pack(src);
    if is_short(src.field) {
        nx(out, 15, 24, |o| {
            o.u16(range);
            put_field(o, src.field);
            o.u16(max_len);
        });
    } else {
        nx(out, 32, 24, |o| {
            o.u16(range);
            o.u16(max_len);
            put_field(o, src.field);
        });
    }
}

fn put_stack(out: &mut Vec<u8>, subtype: u16, sf: &Subfield) {
    let (ofs, n_bits) = (sf.ofs, sf.n_bits);
    nx(out, subtype, 24, |o| {
        o.u16(ofs);
        put_field(o, sf.field);
        o.u16(n_bits);
    });
}

fn put_multipath(out: &mut Vec<u8>, mp: &Multipath) {
    nx(out, 10, 32, |o| {
        [mp.fields as u16, mp.basis, 0, mp.algorithm as u16, mp.max_link].into_iter().for_each(|n| o.u16(n));
        o.u32(mp.arg);
        o.u16(0);
        o.u16(pack(&mp.dst));
        put_field(o, mp.dst.field);
    });
}

fn put_bundle(out: &mut Vec<u8>, b: &Bundle) {
    nx(out, if b.dst.is_some() { 13 } else { 12 }, 32, |o| {
        [b.algorithm as u16, b.fields as u16, b.basis].into_iter().for_each(|n| o.u16(n));
        put_field(o, Field::InPort);
        o.u16(b.members.len() as u16);
        match &b.dst {
            Some(dst) => {
                o.u16(pack(dst));
                put_field(o, dst.field);
            }
            None => o.zeros(6),
        }
        o.zeros(4);
        b.members.iter().for_each(|&port| o.u16(port16(port)));
    });
}

/// NXAST_CONTROLLER where it has room for all, else NXAST_CONTROLLER2.
fn put_controller(out: &mut Vec<u8>, c: &Controller) {
    if c.userdata.is_empty() && !c.pause && c.meter.is_none() {
        return nx(out, 20, 16, |o| {
            o.u16(c.max_len);
            o.u16(c.id);
            o.u8(c.reason as u8);
        });
    }
    nx(out, 37, 16, |o| {
        o.zeros(6);
        let mut prop = |kind: u16, value: &[u8]| prop::put(o, kind, value);
        let padded = |number: u16| (u32::from(number) << 16).to_be_bytes();
        if c.max_len != 0xffff {
            prop(0, &padded(c.max_len));
        }
        if c.id != 0 {
            prop(1, &padded(c.id));
        }
        if c.reason != PacketInReason::Action {
            prop(2, &[c.reason as u8]);
        }
        if !c.userdata.is_empty() {
            prop(3, &c.userdata);
        }
        if c.pause {
            prop(4, &[]);
        }
        if let Some(meter) = c.meter {
            prop(5, &meter.to_be_bytes());
        }
    });
}

fn put_sample(out: &mut Vec<u8>, s: &Sample) {
    let subtype = match (s.direction, s.sampling_port) {
        (SampleDirection::Default, OfPort::ANY) => 29,
        (SampleDirection::Default, _) => 38,
        _ => 41,
    };
    nx(out, subtype, 24, |o| {
        o.u16(s.probability);
        [s.collector_set, s.obs_domain, s.obs_point].into_iter().for_each(|n| o.u32(n));
        if subtype != 29 {
            o.u16(port16(s.sampling_port));
            o.u8(s.direction as u8);
        }
    });
}

fn put_ct(out: &mut Vec<u8>, version: Version, ct: &Ct) {
    let flag = |on: bool, bit: u16| if on { bit } else { 0 };
    nx(out, 35, 24, |o| {
        o.u16(flag(ct.commit, ct_flags::COMMIT) | flag(ct.force, ct_flags::FORCE));
        match &ct.zone {
            CtZone::Immediate(zone) => {
                o.zeros(4);
                o.u16(*zone);
            }
            CtZone::Field(src) => {
                put_field(o, src.field);
                o.u16(pack(src));
            }
        }
        o.u8(ct.table.unwrap_or(TableId::ALL).0);
        o.zeros(3);
        o.u16(ct.alg);
        put_actions(o, version, &ct.actions);
    });
}

fn put_nat(out: &mut Vec<u8>, nat: &Nat) {
    use nat_flags::*;
    let flag = |on: bool, bit: u16| if on { bit } else { 0 };
    let kind = nat.kind.map_or(0, |k| if k == NatKind::Src { SRC } else { DST });
    let flags = kind | flag(nat.persistent, PERSISTENT) | flag(nat.hash, HASH) | flag(nat.random, RANDOM);
    let mut range = match nat.addrs {
        NatAddrs::None => 0,
        NatAddrs::V4(_, last) => IPV4_MIN | flag(last.is_some(), IPV4_MAX),
        NatAddrs::V6(_, last) => IPV6_MIN | flag(last.is_some(), IPV6_MAX),
    };
    range |= nat.ports.map_or(0, |(_, last)| PROTO_MIN | flag(last != 0, PROTO_MAX));
    nx(out, 36, 16, |o| {
        [0, flags, range].into_iter().for_each(|n| o.u16(n));
        match nat.addrs {
            NatAddrs::None => {}
            NatAddrs::V4(first, last) => [Some(first), last].into_iter().flatten().for_each(|a| o.u32(a.into())),
            NatAddrs::V6(first, last) => [Some(first), last].into_iter().flatten().for_each(|a| o.u128(a.into())),
        }
        if let Some((first, last)) = nat.ports {
            [first, last].into_iter().filter(|&p| p != 0).for_each(|p| o.u16(p));
        }
    });
}

fn put_learn(out: &mut Vec<u8>, l: &Learn) {
    let second = l.limit != 0 || l.result_dst.is_some();
    let flag = |on: bool, bit: u16| if on { bit } else { 0 };
    let flags = flag(l.flags.contains(FlowModFlags::SEND_FLOW_REM), learn_bits::SEND_FLOW_REM)
        | flag(l.delete_learned, learn_bits::DELETE_LEARNED)
        | flag(l.result_dst.is_some(), learn_bits::WRITE_RESULT);
    nx(out, if second { 45 } else { 16 }, 32, |o| {
        [l.idle_timeout, l.hard_timeout, l.priority].into_iter().for_each(|n| o.u16(n));
        o.u64(l.cookie.0);
        o.u16(flags);
        o.put(&[l.table.0, 0]);
        o.u16(l.fin_idle_timeout);
        o.u16(l.fin_hard_timeout);
        if second {
            o.u32(l.limit);
            o.u16(l.result_dst.map_or(0, |dst| dst.ofs));
            o.u16(0);
            if let Some(dst) = l.result_dst {
                put_field(o, dst.field);
            }
        }
        l.specs.iter().for_each(|spec| put_learn_spec(o, spec));
    });
}

fn put_learn_spec(out: &mut Vec<u8>, spec: &LearnSpec) {
    let put_range = |o: &mut Vec<u8>, sf: &Subfield| {
        put_field(o, sf.field);
        o.u16(sf.ofs);
    };
    let immediate = matches!(spec.src, LearnSrc::Immediate(_));
    let dst = match spec.dst {
        LearnDst::Match(_) => 0,
        LearnDst::Load(_) => 1,
        LearnDst::Output => 2,
    };
    out.u16(
        spec.n_bits & learn_bits::N_BITS
            | dst << learn_bits::DST_SHIFT
            | if immediate { learn_bits::SRC_IMMEDIATE } else { 0 },
    );
    match &spec.src {
        LearnSrc::Field(sf) => put_range(out, sf),
        LearnSrc::Immediate(value) => out.uint(*value, 2 * usize::from(spec.n_bits.min(128).div_ceil(16))),
    }
    if let LearnDst::Match(sf) | LearnDst::Load(sf) = &spec.dst {
        put_range(out, sf);
    }
}

fn put_encap(out: &mut Vec<u8>, e: &Encap) {
    nx(out, 46, 16, |o| {
        o.u16(e.header_size);
        o.u32(e.packet_type);
        for prop in &e.props {
            let start = o.here();
            let (class, kind, value) = match prop {
                EncapProp::NshMdType(md_type) => (ed::NSH, ed::NSH_MDTYPE, vec![*md_type]),
                EncapProp::MplsEtherType(ethertype) => {
                    (ed::MPLS, ed::MPLS_ETHERTYPE, [ethertype.to_be_bytes(), [0, 0]].concat())
                }
                EncapProp::NshTlv { class, kind, data } => {
                    // The length of the property, 8 bits, includes the padding of the value.
                    let data = &data[..data.len().min(240)];
                    let [high, low] = class.to_be_bytes();
                    let mut value = [&[high, low, *kind, data.len() as u8], data].concat();
                    value.resize(4 + data.len().next_multiple_of(8), 0);
                    (ed::NSH, ed::NSH_TLV, value)
                }
            };
            o.u16(class);
            o.put(&[kind, 4 + value.len() as u8]);
            o.put(&value);
            o.pad8(start);
        }
    });
}
