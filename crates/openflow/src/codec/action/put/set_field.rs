//! Writing of actions that set fields, each version in its own way.

use std::borrow::Cow;

use packet::Field;
use packet::flow::VLAN_PRESENT;

use super::super::subfield::{is_short, pack, put_field, put_field_of};
use super::{nx, of, put};
use crate::action::Action;
use crate::codec::oxm;
use crate::codec::wire::Put;
use crate::matching::{Match, Subfield};
use crate::tun_metadata::TunValue;
use crate::types::{EthAddr, Version};

/// The actions with what depends on the flow's match made plain, which OpenFlow 1.0 leaves open: which protocol's
/// port is set, and whether there is a tag already.
pub(crate) fn settled<'a>(actions: &'a [Action], version: Version, matching: &Match) -> Cow<'a, [Action]> {
    let open = |action: &Action| {
        use Action::*;
        matches!(
            action,
            SetL4SrcPort(_) | SetL4DstPort(_) | SetVlanVid { push: true, .. } | SetVlanPcp { push: true, .. }
        )
    };
    let depends = actions.iter().any(|action| open(action) || matches!(action, Action::Clone(_)));
    if version == Version::V1_0 || !depends {
        return Cow::Borrowed(actions);
    }
    let (tci, mask) = matching.get(Field::VlanTci);
    let mut tagged = tci & mask & u128::from(VLAN_PRESENT) != 0;
    let settle = |action: &Action| {
        let action = settle(action, version, matching, tagged);
        match action {
            Action::PushVlan(_) | Action::SetVlanVid { push: true, .. } | Action::SetVlanPcp { push: true, .. } => {
                tagged = true;
            }
            Action::StripVlan => tagged = false,
            _ => {}
        }
        action
    };
    Cow::Owned(actions.iter().map(settle).collect())
}

fn settle(action: &Action, version: Version, matching: &Match, tagged: bool) -> Action {
    let port = |ports: [Field; 3], value: u16| {
        let proto = matching.exact(Field::NwProto)?;
        let i = [6, 17, 132].iter().position(|&n| n == proto).filter(|_| version >= Version::V1_2)?;
        Some(Action::set_field(ports[i], value.into()))
    };
    match action {
        Action::SetL4SrcPort(n) => port([Field::TcpSrc, Field::UdpSrc, Field::SctpSrc], *n),
        Action::SetL4DstPort(n) => port([Field::TcpDst, Field::UdpDst, Field::SctpDst], *n),
        Action::SetVlanVid { .. } | Action::SetVlanPcp { .. } if tagged => Some(unpushed(action)),
        Action::Clone(inner) => Some(Action::Clone(settled(inner, version, matching).into_owned())),
        _ => None,
    }
    .unwrap_or_else(|| action.clone())
}

/// An action that sets a part of the tag without pushing one.
pub(super) fn unpushed(action: &Action) -> Action {
    match *action {
        Action::SetVlanVid { vid, .. } => Action::SetVlanVid { vid, push: false },
        Action::SetVlanPcp { pcp, .. } => Action::SetVlanPcp { pcp, push: false },
        ref other => other.clone(),
    }
}

/// The field and value of an action that OpenFlow 1.2 and later write as Set-Field.
pub(super) fn as_set_field(action: &Action) -> Option<(Field, u128)> {
    Some(match *action {
        Action::SetEthSrc(mac) => (Field::DlSrc, mac.to_value()),
        Action::SetEthDst(mac) => (Field::DlDst, mac.to_value()),
        Action::SetVlanVid { vid, .. } => (Field::VlanVid, (VLAN_PRESENT | vid).into()),
        Action::SetVlanPcp { pcp, .. } => (Field::VlanPcp, pcp.into()),
        Action::SetIpv4Src(ip) => (Field::NwSrc, u32::from(ip).into()),
        Action::SetIpv4Dst(ip) => (Field::NwDst, u32::from(ip).into()),
        Action::SetIpDscp(tos) => (Field::IpDscp, (tos >> 2).into()),
        Action::SetIpEcn(ecn) => (Field::NwEcn, ecn.into()),
        Action::SetMplsLabel(label) => (Field::MplsLabel, label.into()),
        Action::SetMplsTc(tc) => (Field::MplsTc, tc.into()),
        Action::SetTunnel(id) => (Field::TunId, id.into()),
        _ => return None,
    })
}

/// Set-Field where the version has it. OpenFlow 1.0 and 1.1 have actions for some fields; for the others, and for
/// masks before 1.5, there is NXAST_REG_LOAD, or NXAST_REG_LOAD2 where the field's header is too long for that.
pub(super) fn put_set_field(out: &mut Vec<u8>, version: Version, field: Field, value: u128, mask: u128) {
    let whole = mask == field.info().max();
    if version >= Version::V1_5 || version >= Version::V1_2 && whole && field != Field::InPortOxm {
        of(out, 25, |o| oxm::put_entry(o, version, field, value, mask));
    } else if let Some(action) = legacy_set(version, field, value).filter(|_| version < Version::V1_2 && whole) {
        put(out, version, &action);
    } else if is_short(field) {
        let all = Subfield::whole(field);
        let (value, mask) = match field {
            // Counted as parts of it are (`AnyField::bits`).
            Field::NwTos => (value << 2, if whole { all.max() } else { mask << 2 }),
            _ if whole => (value, all.max()),
            _ => (value, mask),
        };
        for (ofs, n_bits) in runs(mask) {
            let dst = Subfield { field: field.into(), ofs, n_bits };
            put_reg_load(out, version, dst, (value >> ofs & dst.max()) as u64);
        }
    } else {
        nx(out, 33, 16, |o| oxm::put_entry(o, Version::V1_0, field, value, mask));
    }
}

/// As [`put_set_field`]. The header of a tun_metadata field has a length that NXAST_REG_LOAD cannot say.
pub(super) fn put_set_tun(out: &mut Vec<u8>, version: Version, value: &TunValue) {
    if version >= Version::V1_5 || version >= Version::V1_2 && value.mask.is_none() {
        of(out, 25, |o| oxm::put_tun(o, value));
    } else {
        nx(out, 33, 16, |o| oxm::put_tun(o, value));
    }
}

/// The runs of one bits in a mask, at most 64 bits each: lowest bit and length.
fn runs(mask: u128) -> impl Iterator<Item = (u16, u16)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = mask.checked_shr(at)?;
        if rest == 0 {
            return None;
        }
        let ofs = at + rest.trailing_zeros();
        let len = (mask >> ofs).trailing_ones().min(64);
        at = ofs + len;
        Some((ofs as u16, len as u16))
    })
}

/// The action of OpenFlow 1.0 and 1.1 that sets all of a field.
fn legacy_set(version: Version, field: Field, value: u128) -> Option<Action> {
    // In OpenFlow 1.1 a Set-Field finds a tag, or has no effect.
    let push = version == Version::V1_0;
    Some(match field {
        Field::DlSrc => Action::SetEthSrc(EthAddr::from_value(value)),
        Field::DlDst => Action::SetEthDst(EthAddr::from_value(value)),
        Field::VlanVid | Field::DlVlan => Action::SetVlanVid { vid: (value & 0xfff) as u16, push },
        Field::VlanPcp | Field::DlVlanPcp => Action::SetVlanPcp { pcp: value as u8, push },
        Field::NwSrc => Action::SetIpv4Src((value as u32).into()),
        Field::NwDst => Action::SetIpv4Dst((value as u32).into()),
        Field::NwTos | Field::IpDscp => Action::SetIpDscp((value << 2) as u8),
        Field::NwEcn => Action::SetIpEcn(value as u8),
        Field::TcpSrc | Field::UdpSrc => Action::SetL4SrcPort(value as u16),
        Field::TcpDst | Field::UdpDst => Action::SetL4DstPort(value as u16),
        _ => return None,
    })
}

/// NXAST_REG_LOAD; from OpenFlow 1.5, and for fields with a long header, as set-field with a mask.
pub(super) fn put_reg_load(out: &mut Vec<u8>, version: Version, dst: Subfield, value: u64) {
    if let Some(dst) = dst.in_key().filter(|dst| version >= Version::V1_5 || !is_short(dst.field)) {
        return put_set_field(out, version, dst.field, dst.place(value.into()), dst.mask());
    }
    nx(out, 7, 24, |o| {
        o.u16(pack(&dst));
        put_field(o, dst.field);
        o.u64(value);
    });
}

/// NXAST_REG_MOVE, or Copy-Field of OpenFlow 1.5.
pub(super) fn put_move(out: &mut Vec<u8>, version: Version, src: &Subfield, dst: &Subfield) {
    let (n_bits, src_ofs, dst_ofs) = (src.n_bits, src.ofs, dst.ofs);
    let headers = |o: &mut Vec<u8>| {
        // OpenFlow's own action has the numbers of its version.
        let of = if version >= Version::V1_5 { version } else { Version::V1_0 };
        put_field_of(o, of, src.field);
        put_field_of(o, of, dst.field);
    };
    if version >= Version::V1_5 {
        of(out, 28, |o| {
            [n_bits, src_ofs, dst_ofs, 0].into_iter().for_each(|n| o.u16(n));
            headers(o);
        });
    } else {
        nx(out, 6, 24, |o| {
            [n_bits, src_ofs, dst_ofs].into_iter().for_each(|n| o.u16(n));
            headers(o);
        });
    }
}
