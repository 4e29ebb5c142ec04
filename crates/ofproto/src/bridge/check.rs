//! Whether instructions and actions can be carried out, with the error that OpenFlow has for it.

use conntrack::CtState;
use openflow::action::{Ct, CtZone, Learn, LearnDst, LearnSrc, Nat, NatAddrs};
use openflow::{Action, AnyField, GroupId, Instructions, Match, OfError, OfPort, TableId};
use packet::Field;
use packet::flow::VLAN_PRESENT;
use packet::flow::field::Prereq;

use crate::model::forwarding::{BridgeState, TABLES};

/// Ethernet types.
const IPV4: u128 = 0x0800;
const IPV6: u128 = 0x86dd;

/// What actions can refer to.
pub(crate) struct Known<'a> {
    bridge: &'a BridgeState,
    /// A match need not say that packets have the header that an action takes away: the action does nothing to others.
    lenient: bool,
}

impl<'a> Known<'a> {
    pub fn of(bridge: &'a BridgeState) -> Known<'a> {
        Known { bridge, lenient: false }
    }

    /// As [`of`](Known::of), for a message of OpenFlow 1.0, which has no error for actions that do not fit the match, or for
    /// what was accepted before.
    pub fn leniently(bridge: &'a BridgeState, lenient: bool) -> Known<'a> {
        Known { bridge, lenient }
    }

    fn group(&self, id: GroupId) -> Result<(), OfError> {
        if self.bridge.groups.contains_key(&id) { Ok(()) } else { Err(OfError::OFPBAC_BAD_OUT_GROUP) }
    }

    fn meter(&self, id: u32) -> Result<(), OfError> {
        if self.bridge.meters.contains_key(&id) { Ok(()) } else { Err(OfError::OFPMMFC_INVALID_METER) }
    }
}

/// Checks the instructions of a flow with this match, in this table.
pub(crate) fn check_instructions(
    instructions: &Instructions,
    matching: &Match,
    table: Option<TableId>,
    known: &Known,
) -> Result<(), OfError> {
    instructions.meter.map_or(Ok(()), |id| known.meter(id))?;
    let (apply, write) = (&instructions.apply, &instructions.write);
    if apply.iter().chain(write).all(needs_no_header) {
        // As of most flows.
        apply.iter().chain(write).try_for_each(|action| check_action(action, None, known))?;
    } else {
        let mut matching = matching.clone();
        check_list(apply, &mut matching, known)?;
        // As in OVS: in which order a set's actions are done is not theirs to say.
        check_list(write, &mut matching, &Known { bridge: known.bridge, lenient: true })?;
    }
    if let Some(goto) = instructions.goto
        && (table.is_some_and(|table| goto <= table) || usize::from(goto.0) >= TABLES)
    {
        return Err(OfError::OFPBIC_BAD_TABLE_ID);
    }
    Ok(())
}

/// Checks the actions of a packet-out.
pub(super) fn check_actions(actions: &[Action], known: &Known) -> Result<(), OfError> {
    // A packet has whatever it has: nothing is known to be missing.
    actions.iter().try_for_each(|action| check_action(action, None, known))
}

/// Checks the actions of a bucket. Packets of any kind can reach it, and the group that they name may be added
/// later.
pub(crate) fn check_bucket(actions: &[Action], known: &Known) -> Result<(), OfError> {
    let mut others = actions.iter().filter(|action| !matches!(action, Action::Group(_)));
    others.try_for_each(|action| match action {
        // It is about the flow that it belongs to.
        Action::FinTimeout { .. } => Err(OfError::OFPBAC_BAD_TYPE),
        action => check_action(action, None, known),
    })
}

/// Whether an action neither asks for a header nor changes what is known of the packet's.
fn needs_no_header(action: &Action) -> bool {
    matches!(action, Action::Output { .. } | Action::Group(_) | Action::Meter(_) | Action::Enqueue { .. })
}

/// Checks a list; `matching` follows what the actions do to the packet.
fn check_list(actions: &[Action], matching: &mut Match, known: &Known) -> Result<(), OfError> {
    let conjunctions = actions.iter().filter(|action| matches!(action, Action::Conjunction { .. })).count();
    let others =
        actions.iter().filter(|action| !matches!(action, Action::Conjunction { .. } | Action::Note(_))).count();
    if conjunctions > 0 && others > 0 {
        return Err(OfError::NXBAC_BAD_CONJUNCTION);
    }
    actions.iter().try_for_each(|action| check_action(action, Some(matching), known))
}

fn check_action(action: &Action, matching: Option<&mut Match>, known: &Known) -> Result<(), OfError> {
    match action {
        Action::Output { port, .. } | Action::OutputTrunc { port, .. } => check_port(*port),
        Action::Enqueue { port, .. } => match *port {
            OfPort::IN_PORT | OfPort::LOCAL => Ok(()),
            port if port.is_reserved() => Err(OfError::OFPBAC_BAD_OUT_PORT),
            _ => Ok(()),
        },
        Action::Group(id) => known.group(*id),
        Action::Meter(id) => known.meter(*id),
        Action::Learn(learn) if usize::from(learn.table.0) >= TABLES => Err(OfError::OFPBAC_BAD_ARGUMENT),
        Action::Learn(_) => matching.map_or(Ok(()), |matching| check_fields(action, matching, known)),
        Action::Clone(actions) => match matching {
            Some(matching) => check_list(actions, &mut matching.clone(), known),
            None => check_actions(actions, known),
        },
        Action::Bundle(bundle) => {
            for port in &bundle.members {
                check_port(*port)?;
                if *port == OfPort::CONTROLLER {
                    return Err(OfError::OFPBAC_BAD_OUT_PORT);
                }
            }
            matching.map_or(Ok(()), |matching| check_fields(action, matching, known))
        }
        Action::PushVlan(tpid) if !matches!(tpid, 0x8100 | 0x88a8) => Err(OfError::OFPBAC_BAD_ARGUMENT),
        Action::PushMpls(ethertype) if !matches!(ethertype, 0x8847 | 0x8848) => Err(OfError::OFPBAC_BAD_ARGUMENT),
        Action::SetField { .. }
        | Action::RegMove { .. }
        | Action::RegLoad { .. }
        | Action::PushVlan(_)
        | Action::StripVlan
        | Action::PushMpls(_)
        | Action::PopMpls(_)
        | Action::SetVlanVid { .. }
        | Action::SetVlanPcp { .. }
        | Action::Multipath(_)
        | Action::CheckPktLarger { .. } => matching.map_or(Ok(()), |matching| check_fields(action, matching, known)),
        Action::Ct(ct) => check_ct(ct, matching, known),
        Action::Nat(_) => Err(OfError::OFPBAC_BAD_SET_ARGUMENT),
        Action::Encap(_) | Action::Decap(_) | Action::DecNshTtl => {
            matching.map_or(Ok(()), |matching| check_headers(action, matching, known))
        }
        Action::Sample(sample) if sample.probability == 0 => Err(OfError::OFPBAC_BAD_ARGUMENT),
        _ => Ok(()),
    }
}

/// Checks ct. What it needs, the match has to guarantee: OpenFlow 1.0 knows no other way to refuse it.
fn check_ct(ct: &Ct, matching: Option<&mut Match>, known: &Known) -> Result<(), OfError> {
    const FTP: u16 = 21;
    const TFTP: u16 = 69;
    let inconsistent = Err(OfError::OFPBAC_MATCH_INCONSISTENT);
    let mut sub = matching.as_deref().cloned();
    if let Some(matching) = &sub {
        let is_invalid = matching.get(Field::CtState).0 as u8 & CtState::INV.0 != 0;
        let proto = |proto: u128| matching.exact(Field::NwProto) == Some(proto);
        if !matches!(matching.exact(Field::DlType), Some(IPV4 | IPV6))
            || is_invalid && ct.commit
            || ct.alg == FTP && !proto(6)
            || ct.alg == TFTP && !proto(17)
        {
            return inconsistent;
        }
        if let CtZone::Field(zone) = &ct.zone
            && !zone.field.prereq().check(&matching.key, &matching.mask)
        {
            return inconsistent;
        }
    }
    ct.actions.iter().try_for_each(|action| match action {
        Action::Nat(nat) => check_nat(nat, sub.as_ref()),
        action => check_action(action, sub.as_mut(), known),
    })
}

fn check_nat(nat: &Nat, matching: Option<&Match>) -> Result<(), OfError> {
    let needed = match nat.addrs {
        NatAddrs::None => return Ok(()),
        NatAddrs::V4(..) => IPV4,
        NatAddrs::V6(..) => IPV6,
    };
    match matching.map(|matching| matching.exact(Field::DlType) == Some(needed)) {
        Some(false) => Err(OfError::OFPBAC_MATCH_INCONSISTENT),
        _ => Ok(()),
    }
}

fn check_port(port: OfPort) -> Result<(), OfError> {
    match port {
        OfPort::IN_PORT
        | OfPort::TABLE
        | OfPort::NORMAL
        | OfPort::FLOOD
        | OfPort::ALL
        | OfPort::CONTROLLER
        | OfPort::LOCAL => Ok(()),
        port if port.is_reserved() => Err(OfError::OFPBAC_BAD_OUT_PORT),
        _ => Ok(()),
    }
}

/// Whether the match guarantees the fields that the action needs, and what it guarantees afterwards.
fn check_fields(action: &Action, matching: &mut Match, known: &Known) -> Result<(), OfError> {
    let has = |matching: &Match, field: AnyField| field.prereq().check(&matching.key, &matching.mask);
    let inconsistent = Err(OfError::OFPBAC_MATCH_INCONSISTENT);
    match action {
        Action::SetField { field, value, mask } => {
            let untagged = matching.get(Field::VlanTci).0 as u16 & VLAN_PRESENT == 0;
            if !field.info().writable {
                return Err(OfError::OFPBAC_BAD_SET_ARGUMENT);
            }
            if !has(matching, AnyField::Key(*field)) || *field == Field::VlanVid && untagged {
                return inconsistent;
            }
            if matches!(field, Field::VlanVid | Field::VlanTci) {
                let (old, bits) = matching.get(Field::VlanTci);
                let (value, mask) = (value & 0x1fff, mask & 0x1fff);
                matching.set_masked(Field::VlanTci, old & !mask | value, bits | mask);
            }
        }
        Action::RegLoad { dst, .. } if !dst.field.is_writable() => return Err(OfError::OFPBAC_BAD_SET_ARGUMENT),
        Action::RegLoad { dst, .. } if !has(matching, dst.field) => return inconsistent,
        Action::Bundle(bundle) if bundle.dst.is_some_and(|dst| !has(matching, dst.field)) => return inconsistent,
        Action::CheckPktLarger { dst, .. } if !has(matching, dst.field) => return inconsistent,
        Action::Learn(learn) if learn.result_dst.is_some_and(|dst| !has(matching, dst.field)) => return inconsistent,
        Action::Learn(learn) => return check_learn(learn, matching),
        Action::Multipath(multipath) if !has(matching, multipath.dst.field) => return inconsistent,
        Action::RegMove { src, dst } if !has(matching, src.field) || !has(matching, dst.field) => return inconsistent,
        Action::RegMove { dst, .. } if !dst.field.is_writable() => return Err(OfError::OFPBAC_BAD_SET_ARGUMENT),
        Action::PushVlan(_) | Action::SetVlanVid { push: true, .. } | Action::SetVlanPcp { push: true, .. } => {
            matching.set_masked(Field::VlanTci, VLAN_PRESENT.into(), VLAN_PRESENT.into());
        }
        Action::StripVlan => matching.set_masked(Field::VlanTci, 0, 0),
        Action::PushMpls(ethertype) => matching.set(Field::DlType, (*ethertype).into()),
        Action::PopMpls(ethertype) => {
            if !matches!(matching.exact(Field::DlType), Some(0x8847 | 0x8848)) && !known.lenient {
                return inconsistent;
            }
            matching.set(Field::DlType, (*ethertype).into());
        }
        _ => {}
    }
    Ok(())
}

/// Packet type of what only a packet shows. No field of a packet's headers can be written behind it.
const UNKNOWN_TYPE: u128 = u32::MAX as u128;
/// An Ethernet type that no packet has.
const NO_TYPE: u128 = 0xffff;

/// Follows what a match guarantees over actions that change the packet's type.
fn check_headers(action: &Action, matching: &mut Match, known: &Known) -> Result<(), OfError> {
    let is_ethernet = matches!(matching.get(Field::PacketType), (0, _));
    match action {
        Action::Encap(encap) => {
            matching.set(Field::PacketType, encap.packet_type.into());
            if encap.packet_type != 0 {
                matching.set(Field::DlType, (encap.packet_type & 0xffff).into());
            }
        }
        Action::Decap(_) if is_ethernet => {
            let (dl_type, mask) = matching.get(Field::DlType);
            matching.set_masked(Field::PacketType, 1 << 16 | dl_type & mask, u32::MAX.into());
        }
        Action::Decap(_) => {
            matching.set(Field::PacketType, UNKNOWN_TYPE);
            matching.set(Field::DlType, NO_TYPE);
        }
        Action::DecNshTtl => {
            let is_nsh = Prereq::Nsh.check(&matching.key, &matching.mask);
            if !is_nsh && !known.lenient {
                return Err(OfError::OFPBAC_MATCH_INCONSISTENT);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Checks what a flow with this match copies for flows that it learns, and what these match and do: of these, only values that are
/// known meet prerequisites.
fn check_learn(learn: &Learn, matching: &Match) -> Result<(), OfError> {
    let has = |matching: &Match, field: AnyField| field.prereq().check(&matching.key, &matching.mask);
    let mut learnt = Match::any();
    for spec in &learn.specs {
        let copied = match &spec.src {
            LearnSrc::Field(src) => has(matching, src.field),
            LearnSrc::Immediate(_) => true,
        };
        let fits = match &spec.dst {
            LearnDst::Match(dst) | LearnDst::Load(dst) => has(&learnt, dst.field),
            LearnDst::Output => true,
        };
        if !copied || !fits {
            return Err(OfError::OFPBAC_MATCH_INCONSISTENT);
        }
        match (&spec.src, &spec.dst) {
            (_, LearnDst::Load(dst)) if !dst.field.is_writable() => return Err(OfError::OFPBAC_BAD_SET_ARGUMENT),
            (LearnSrc::Immediate(value), LearnDst::Match(dst)) => {
                let Some(dst) = dst.in_key() else { continue };
                let (old, mask) = learnt.get(dst.field);
                learnt.set_masked(dst.field, old | dst.place(*value), mask | dst.mask());
            }
            _ => {}
        }
    }
    Ok(())
}
