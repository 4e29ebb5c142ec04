//! Flow monitors: OFPMP_FLOW_MONITOR of OpenFlow 1.4 and later, ONFST_FLOW_MONITOR of OpenFlow 1.3, and NXST_FLOW_MONITOR
//! before, whose flows have an nx_match and actions.

use super::flow::{port16, pull_match, pull_port16, pull_port32, put_match};
use super::wire::{Put, Reader};
use super::{instruction, oxm};
use crate::error::OfError::{self, *};
use crate::flow_mod::FlowRemovedReason;
use crate::matching::Match;
use crate::monitor::*;
use crate::types::{Cookie, CookieFilter, GroupId, TableId, Version};

/// The encodings.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Nicira,
    Onf,
    Standard,
}

fn form(version: Version) -> Form {
    match version {
        Version::V1_0 | Version::V1_1 | Version::V1_2 => Form::Nicira,
        Version::V1_3 => Form::Onf,
        _ => Form::Standard,
    }
}

/// Flags of a monitor that is to be there.
fn pull_flags(r: &mut Reader, form: Form) -> Result<FlowMonitorFlags, OfError> {
    let flags = FlowMonitorFlags::from_bits(r.u16()?).ok_or(OFPMOFC_BAD_FLAGS)?;
    let known = form == Form::Standard || !flags.contains(FlowMonitorFlags::ONLY_OWN);
    if known && flags.intersects(FlowMonitorFlags::CHANGES) { Ok(flags) } else { Err(OFPMOFC_BAD_FLAGS) }
}

fn pull_command(number: u8) -> Result<FlowMonitorCommand, OfError> {
    use FlowMonitorCommand::*;
    [Add, Modify, Delete].into_iter().find(|&command| command as u8 == number).ok_or(OFPMOFC_BAD_COMMAND)
}

/// Reads one of the monitors of a request.
pub(super) fn pull_request(r: &mut Reader, version: Version) -> Result<FlowMonitorRequest, OfError> {
    let form = form(version);
    let id = r.u32()?;
    let (command, out_group) = (FlowMonitorCommand::Add, GroupId::ANY);
    match form {
        Form::Nicira => {
            let (flags, out_port) = (pull_flags(r, form)?, pull_port16(r)?);
            let (match_len, table) = (r.u16()?, TableId(r.u8()?));
            r.zeros(5, NXBRC_MUST_BE_ZERO)?;
            let matching = oxm::pull_nxm(r, match_len.into(), false, None)?;
            Ok(FlowMonitorRequest { id, command, flags, out_port, out_group, table, matching })
        }
        Form::Onf => {
            let flags = pull_flags(r, form)?;
            // The length of the match, which the match says itself.
            r.skip(2)?;
            let (out_port, table) = (pull_port32(r)?, TableId(r.u8()?));
            r.zeros(3, NXBRC_MUST_BE_ZERO)?;
            let matching = pull_match(r, version, false)?;
            Ok(FlowMonitorRequest { id, command, flags, out_port, out_group, table, matching })
        }
        Form::Standard => {
            let (mut port, out_group, mut flags) = (r.sub(4)?, GroupId(r.u32()?), r.sub(2)?);
            let (table, command) = (TableId(r.u8()?), pull_command(r.u8()?)?);
            if command == FlowMonitorCommand::Delete {
                pull_match(r, version, false)?;
                return Ok(FlowMonitorRequest::removal(id));
            }
            let (flags, out_port) = (pull_flags(&mut flags, form)?, pull_port32(&mut port)?);
            let matching = pull_match(r, version, false)?;
            Ok(FlowMonitorRequest { id, command, flags, out_port, out_group, table, matching })
        }
    }
}

/// Writes one of the monitors of a request.
pub(super) fn put_request(out: &mut Vec<u8>, version: Version, q: &FlowMonitorRequest) {
    out.u32(q.id);
    match form(version) {
        Form::Nicira => {
            out.u16(q.flags.bits());
            out.u16(port16(q.out_port));
            let len_at = out.here();
            out.put(&[0, 0, q.table.0, 0, 0, 0, 0, 0]);
            oxm::put_nxm(out, version, &q.matching, CookieFilter::default(), len_at);
        }
        Form::Onf => {
            out.u16(q.flags.bits());
            let len_at = out.here();
            out.u16(0);
            out.u32(q.out_port.0);
            out.put(&[q.table.0, 0, 0, 0]);
            put_measured_match(out, version, &q.matching, len_at);
        }
        Form::Standard => {
            out.u32(q.out_port.0);
            out.u32(q.out_group.0);
            out.u16(q.flags.bits());
            out.put(&[q.table.0, q.command as u8]);
            put_match(out, version, &q.matching);
        }
    }
}

/// Writes a match, and its length without padding to `len_at`.
fn put_measured_match(out: &mut Vec<u8>, version: Version, matching: &Match, len_at: usize) {
    let at = out.here();
    put_match(out, version, matching);
    // A match says its own length in its second member.
    let len = u16::from_be_bytes([out[at + 2], out[at + 3]]);
    out.set_u16(len_at, len);
}

/// Numbers of the events: those of the extensions, and the standard's.
mod event {
    pub const EXTENSION: [u16; 4] = [0, 1, 2, 3];
    pub const STANDARD: [u16; 4] = [1, 2, 3, 4];
    pub const INITIAL: u16 = 0;
    pub const PAUSED: u16 = 5;
    pub const RESUMED: u16 = 6;
}

/// The numbers of: added, removed, modified, abbreviated.
fn numbers(form: Form) -> [u16; 4] {
    if form == Form::Standard { event::STANDARD } else { event::EXTENSION }
}

fn pull_reason(number: u16) -> FlowRemovedReason {
    use FlowRemovedReason::*;
    let all = [IdleTimeout, HardTimeout, Delete, GroupDelete, MeterDelete, Eviction];
    // What a later version adds is a removal all the same.
    all.get(usize::from(number)).copied().unwrap_or(Delete)
}

/// Reads an update.
pub(super) fn pull_update(r: &mut Reader, version: Version) -> Result<FlowUpdate, OfError> {
    let form = form(version);
    let mut head = *r;
    let (len, number) = (usize::from(head.u16()?), head.u16()?);
    if len < 8 || !len.is_multiple_of(8) {
        return Err(OFPBRC_BAD_LEN);
    }
    let mut r = r.sub(len)?;
    r.skip(4)?;
    let [added, removed, modified, abbreviated] = numbers(form);
    let event = match number {
        n if n == abbreviated => {
            let xid = r.u32()?;
            return r.done().map(|()| FlowUpdate::Abbreviated { xid });
        }
        event::PAUSED | event::RESUMED if form == Form::Standard => {
            r.skip(4)?;
            r.done()?;
            return Ok(if number == event::PAUSED { FlowUpdate::Paused } else { FlowUpdate::Resumed });
        }
        n if n == added => FlowEvent::Added,
        n if n == modified => FlowEvent::Modified,
        n if n == removed => FlowEvent::Removed(FlowRemovedReason::Delete),
        event::INITIAL if form == Form::Standard => FlowEvent::Initial,
        _ => return Err(NXBRC_FM_BAD_EVENT),
    };
    pull_flow(&mut r, version, event).map(|flow| FlowUpdate::Flow(Box::new(flow)))
}

/// Reads what follows the header of an update about a flow.
fn pull_flow(r: &mut Reader, version: Version, event: FlowEvent) -> Result<MonitoredFlow, OfError> {
    let form = form(version);
    let (reason, priority, idle_timeout, hard_timeout, match_len, table);
    if form == Form::Standard {
        (table, reason) = (r.u8()?, r.u8()?.into());
        (idle_timeout, hard_timeout, priority, match_len) = (r.u16()?, r.u16()?, r.u16()?, 0);
        r.skip(4)?;
    } else {
        (reason, priority, idle_timeout, hard_timeout) = (r.u16()?, r.u16()?, r.u16()?, r.u16()?);
        (match_len, table) = (r.u16()?, r.u8()?);
        r.skip(1)?;
    }
    let cookie = Cookie(r.u64()?);
    let matching = match form {
        Form::Nicira => oxm::pull_nxm(r, match_len.into(), true, None)?,
        Form::Onf | Form::Standard => pull_match(r, version, true)?,
    };
    let rest = r.sub(r.len())?;
    let instructions = match form {
        Form::Nicira => instruction::pull_as_actions(rest, version)?,
        Form::Onf | Form::Standard => instruction::pull(rest, version)?,
    };
    let event = if let FlowEvent::Removed(_) = event { FlowEvent::Removed(pull_reason(reason)) } else { event };
    let table = TableId(table);
    Ok(MonitoredFlow { event, table, priority, idle_timeout, hard_timeout, cookie, matching, instructions })
}

/// Writes an update.
pub(super) fn put_update(out: &mut Vec<u8>, version: Version, update: &FlowUpdate) {
    let short = |out: &mut Vec<u8>, number: u16, value: u32| {
        out.u16(8);
        out.u16(number);
        out.u32(value);
    };
    match update {
        FlowUpdate::Flow(flow) => put_flow(out, version, flow),
        FlowUpdate::Abbreviated { xid } => short(out, numbers(form(version))[3], *xid),
        FlowUpdate::Paused => short(out, event::PAUSED, 0),
        FlowUpdate::Resumed => short(out, event::RESUMED, 0),
    }
}

fn put_flow(out: &mut Vec<u8>, version: Version, f: &MonitoredFlow) {
    let (start, form) = (out.here(), form(version));
    let [added, removed, modified, _] = numbers(form);
    let (number, reason) = match f.event {
        FlowEvent::Initial if form == Form::Standard => (event::INITIAL, 0),
        FlowEvent::Initial | FlowEvent::Added => (added, 0),
        FlowEvent::Removed(reason) => (removed, reason as u8),
        FlowEvent::Modified => (modified, 0),
    };
    out.u16(0);
    out.u16(number);
    let mut len_at = 0;
    if form == Form::Standard {
        out.put(&[f.table.0, reason]);
        [f.idle_timeout, f.hard_timeout, f.priority].into_iter().for_each(|n| out.u16(n));
        out.zeros(4);
    } else {
        [reason.into(), f.priority, f.idle_timeout, f.hard_timeout].into_iter().for_each(|n| out.u16(n));
        len_at = out.here();
        out.put(&[0, 0, f.table.0, 0]);
    }
    out.u64(f.cookie.0);
    match form {
        Form::Nicira => oxm::put_nxm(out, version, &f.matching, CookieFilter::default(), len_at),
        Form::Onf => put_measured_match(out, version, &f.matching, len_at),
        Form::Standard => put_match(out, version, &f.matching),
    }
    match form {
        Form::Nicira => instruction::put_as_actions(out, version, &f.instructions, &f.matching),
        Form::Onf | Form::Standard => instruction::put(out, version, &f.instructions, &f.matching),
    }
    out.close(start, 0);
}
