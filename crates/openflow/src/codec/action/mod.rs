//! Actions on the wire: type, length, argument; a multiple of 8 bytes.

mod nested;
mod nicira;
mod put;
mod standard;
mod subfield;

use super::wire::Reader;
use crate::action::Action;
use crate::error::OfError::{self, *};
use crate::instruction::WriteMetadata;
use crate::matching::AnyField;
use crate::tun_metadata::TunField;
use crate::types::{OfPort, Version};

pub(crate) use put::{put_actions, settled};

/// How deep actions can hold actions.
const MAX_DEPTH: u8 = 32;

/// Where actions are, which decides what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Within {
    /// A flow's or packet-out's list.
    List,
    /// Write-Actions.
    Set,
    /// `ct`: its nat and exec.
    Ct,
    /// `clone`.
    Clone,
}

/// What decoding needs to know of where it is.
#[derive(Clone, Copy)]
struct Context {
    version: Version,
    within: Within,
    depth: u8,
}

/// One step of decoding: an action, or an instruction that Nicira writes as one.
enum Item {
    Action(Action),
    WriteMetadata(WriteMetadata),
}

impl From<Action> for Item {
    fn from(action: Action) -> Item {
        Item::Action(action)
    }
}

/// Reads all of `r` as actions, without a Write-Metadata.
pub(crate) fn pull_actions(r: Reader, version: Version, within: Within) -> Result<Vec<Action>, OfError> {
    let (actions, metadata) = pull_list(r, Context { version, within, depth: 0 })?;
    if metadata.is_some() { Err(OFPBIC_UNSUP_INST) } else { Ok(actions) }
}

/// Reads all of `r` as a flow's actions in OpenFlow 1.0, which can end with a Write-Metadata.
pub(crate) fn pull_flow_actions(r: Reader, version: Version) -> Result<(Vec<Action>, Option<WriteMetadata>), OfError> {
    pull_list(r, Context { version, within: Within::List, depth: 0 })
}

fn pull_list(mut r: Reader, ctx: Context) -> Result<(Vec<Action>, Option<WriteMetadata>), OfError> {
    r = r.with(OFPBAC_BAD_LEN);
    let mut actions = Vec::new();
    let mut metadata = None;
    while !r.is_empty() {
        match pull_item(&mut r, ctx)? {
            _ if metadata.is_some() => return Err(OFPBAC_UNSUPPORTED_ORDER),
            Item::WriteMetadata(m) => metadata = Some(m),
            Item::Action(action) => {
                check_place(&action, ctx.within)?;
                actions.push(action);
            }
        }
    }
    let conjunction = |a: &Action| matches!(a, Action::Conjunction { .. });
    // A meter was an instruction before OpenFlow 1.5.
    let beside = |a: &Action| conjunction(a) || matches!(a, Action::Note(_) | Action::Meter(_));
    if actions.iter().any(conjunction) && !actions.iter().all(beside) {
        return Err(NXBAC_BAD_CONJUNCTION);
    }
    Ok((actions, metadata))
}

fn pull_item(r: &mut Reader, ctx: Context) -> Result<Item, OfError> {
    let mut head = *r;
    let (kind, len) = (head.u16()?, usize::from(head.u16()?));
    if len < 8 || len % 8 != 0 {
        return Err(OFPBAC_BAD_LEN);
    }
    let mut body = r.sub(len)?;
    body.skip(4)?;
    if kind != 0xffff {
        return standard::pull(kind, body, ctx).map(Item::Action);
    }
    let (vendor, subtype) = (body.u32()?, body.u16()?);
    match vendor {
        crate::error::vendor::NX => nicira::pull(subtype, body, ctx),
        crate::error::vendor::ONF => standard::pull_onf(subtype, body).map(Item::Action),
        _ => Err(OFPBAC_BAD_VENDOR),
    }
}

/// Which actions can be in which lists.
fn check_place(action: &Action, within: Within) -> Result<(), OfError> {
    let of_connection =
        |field: AnyField| matches!(field, AnyField::Key(packet::Field::CtMark | packet::Field::CtLabel));
    let written = match action {
        Action::RegMove { dst, .. }
        | Action::StackPop(dst)
        | Action::CheckPktLarger { dst, .. }
        | Action::RegLoad { dst, .. } => Some(dst.field),
        Action::SetTunMetadata(value) => TunField::new(value.index).map(AnyField::Tun),
        _ => action.field_write().map(|(field, ..)| AnyField::Key(field)),
    };
    match (within, action, written) {
        (Within::Ct, Action::Nat(_), _) => Ok(()),
        (Within::Ct, _, Some(field)) if of_connection(field) => Ok(()),
        (Within::Ct, _, Some(_)) => Err(OFPBAC_BAD_ARGUMENT),
        (Within::Ct, _, None) | (_, Action::Nat(_), _) => Err(OFPBAC_BAD_SET_ARGUMENT),
        (_, _, Some(field)) if of_connection(field) => Err(OFPBAC_BAD_SET_ARGUMENT),
        (Within::Set, ..) if !in_action_set(action) => Err(OFPBAC_BAD_TYPE),
        _ => Ok(()),
    }
}

/// Whether an action can be in an action set: those that OpenFlow gives a place in its order, and the
/// Nicira actions that write fields (ovs-actions(7), "Action sets").
fn in_action_set(action: &Action) -> bool {
    use Action::*;
    action.field_write().is_some()
        || matches!(
            action,
            Output { .. }
                | OutputReg { .. }
                | OutputTrunc { .. }
                | Group(_)
                | Controller(_)
                | Bundle(_)
                | SetVlanVid { .. }
                | SetVlanPcp { .. }
                | StripVlan
                | PushVlan(_)
                | PushMpls(_)
                | PopMpls(_)
                | DecTtl
                | DecTtlCntIds(_)
                | DecMplsTtl
                | DecNshTtl
                | Encap(_)
                | Decap(_)
                | SetQueue(_)
                | RegMove { .. }
                | Ct(_)
                | CtClear
                | Resubmit { .. }
                | Clone(_)
                | Enqueue { .. }
                | DeleteField(_)
                | SetTunMetadata(_)
                | RegLoad { .. }
        )
}

/// Whether packets can be sent to this port.
fn check_output(port: OfPort) -> Result<OfPort, OfError> {
    let sendable = matches!(
        port,
        OfPort::IN_PORT
            | OfPort::TABLE
            | OfPort::NORMAL
            | OfPort::FLOOD
            | OfPort::ALL
            | OfPort::CONTROLLER
            | OfPort::LOCAL
    );
    if sendable || !port.is_reserved() { Ok(port) } else { Err(OFPBAC_BAD_OUT_PORT) }
}

/// A port of OpenFlow 1.1 and later.
fn pull_port32(r: &mut Reader) -> Result<OfPort, OfError> {
    let port = OfPort(r.u32()?);
    if port.to_u16().is_some() { Ok(port) } else { Err(OFPBAC_BAD_OUT_PORT) }
}

/// A port of OpenFlow 1.0 and of most Nicira actions.
fn pull_port16(r: &mut Reader) -> Result<OfPort, OfError> {
    Ok(OfPort::from_u16(r.u16()?))
}
