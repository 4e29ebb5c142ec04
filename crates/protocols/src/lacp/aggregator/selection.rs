//! Which members of a bond are attached: those that lead to one partner and its one key (5.4.14).
//!
//! A partner keeps its bond as long as one of its members is current, so that a link whose other end has been
//! moved, or lies, leaves the bond alone and takes no other member with it. Where there is no such member, the member
//! with the best priority says who the partner is. Of the two ends of a link, that of the system with the better
//! priority counts (5.6.1), so that both systems choose the same.

use super::{Aggregator, Event, Member, MemberId, Status};
use crate::ethernet::Mac;
use crate::lacp::pdu::Info;

/// Attaches and detaches members, says whether the bond has a partner, and reports what is new.
pub(super) fn select(bond: &mut Aggregator, events: &mut Vec<Event>) {
    let system_id = bond.settings.system_id;
    for (id, member) in &mut bond.members {
        let loopback = member.status != Status::Defaulted && member.partner.system_id == system_id;
        if loopback && !std::mem::replace(&mut member.loopback, loopback) {
            events.push(Event::Loopback(*id));
        }
        member.loopback = loopback;
    }

    let lead = lead(bond);
    let partner = lead.map(|id| partner_of(&bond.members[&id]));
    let fallback_ab = bond.settings.fallback_ab;
    for member in bond.members.values_mut() {
        member.attached = match (member.status, partner) {
            (Status::Defaulted, partner) => fallback_ab && partner.is_none(),
            (_, partner) => !member.loopback && partner == Some(partner_of(member)),
        };
    }
    bond.partner = partner;
    if bond.negotiated != lead.is_some() {
        bond.negotiated = lead.is_some();
        events.push(Event::Negotiated(bond.negotiated));
    }
}

/// The member whose partner is the bond's.
fn lead(bond: &Aggregator) -> Option<MemberId> {
    let linked = || bond.members.iter().filter(|(_, member)| member.status != Status::Defaulted && !member.loopback);
    let working = |member: &Member| member.status == Status::Current && member.attached;
    let stays = |member: &Member| working(member) && Some(partner_of(member)) == bond.partner;
    let best = |wanted: &dyn Fn(&Member) -> bool| {
        linked()
            .filter(|(_, member)| wanted(member))
            .min_by_key(|(_, member)| priority(bond, member))
            .map(|(id, _)| *id)
    };
    best(&stays).or_else(|| best(&working)).or_else(|| best(&|_| true))
}

/// System and key at the other end of a member.
fn partner_of(member: &Member) -> (Mac, u16) {
    (member.partner.system_id, member.partner.key)
}

/// Priority of a link, the best first: system priority and id, then port priority and id, of the end that decides.
fn priority(bond: &Aggregator, member: &Member) -> (u16, Mac, u16, u16) {
    let of = |info: &Info| (info.system_priority, info.system_id, info.port_priority, info.port_id);
    let actor = (
        bond.settings.system_priority,
        bond.settings.system_id,
        member.settings.port_priority,
        member.settings.port_id,
    );
    let partner = of(&member.partner);
    if (actor.0, actor.1) < (partner.0, partner.1) { actor } else { partner }
}
