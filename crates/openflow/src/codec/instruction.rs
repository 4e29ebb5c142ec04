//! Instructions on the wire (OpenFlow 1.3.5 section 7.2.4).

use super::action::{self, Within};
use super::wire::{Put, Reader};
use crate::Action;
use crate::error::OfError::{self, *};
use crate::instruction::{Instructions, WriteMetadata};
use crate::matching::Match;
use crate::types::{OfPort, TableId, Version};

const GOTO_TABLE: u16 = 1;
const WRITE_METADATA: u16 = 2;
const WRITE_ACTIONS: u16 = 3;
const APPLY_ACTIONS: u16 = 4;
const CLEAR_ACTIONS: u16 = 5;
const METER: u16 = 6;

/// Reads all of `r`: instructions, or in OpenFlow 1.0 actions.
pub(crate) fn pull(mut r: Reader, version: Version) -> Result<Instructions, OfError> {
    let mut out = Instructions::default();
    if version == Version::V1_0 {
        return pull_as_actions(r, version);
    }
    r = r.with(OFPBIC_BAD_LEN);
    let mut seen = 0u16;
    while !r.is_empty() {
        let (kind, len) = (r.u16()?, usize::from(r.u16()?));
        let mut body = r.sub(len.checked_sub(4).ok_or(OFPBIC_BAD_LEN)?)?;
        if len % 8 != 0 {
            return Err(OFPBIC_BAD_LEN);
        }
        let latest = if version >= Version::V1_3 { METER } else { CLEAR_ACTIONS };
        match kind {
            GOTO_TABLE..=METER if kind > latest => return Err(OFPBIC_UNKNOWN_INST),
            GOTO_TABLE..=METER if seen >> kind & 1 != 0 => return Err(OFPBIC_DUP_INST),
            GOTO_TABLE..=METER => seen |= 1 << kind,
            0xffff => return Err(OFPBIC_BAD_EXPERIMENTER),
            _ => return Err(OFPBIC_UNKNOWN_INST),
        }
        pull_one(kind, &mut body, version, &mut out)?;
        body.done()?;
    }
    // OpenFlow 1.5 turned the instruction into an action, which does the same where it is the first.
    if let (None, Some(&Action::Meter(meter))) = (out.meter, out.apply.first()) {
        out.meter = Some(meter);
        out.apply.remove(0);
    }
    Ok(out)
}

/// Reads all of `r`: actions that stand for instructions.
pub(crate) fn pull_as_actions(r: Reader, version: Version) -> Result<Instructions, OfError> {
    let (apply, metadata) = action::pull_flow_actions(r, version)?;
    Ok(Instructions { apply, metadata, ..Instructions::default() })
}

fn pull_one(kind: u16, body: &mut Reader, version: Version, out: &mut Instructions) -> Result<(), OfError> {
    match kind {
        GOTO_TABLE => {
            let table = TableId(body.u8()?);
            body.skip(3)?;
            if table > TableId::MAX {
                return Err(OFPBIC_BAD_TABLE_ID);
            }
            out.goto = Some(table);
        }
        WRITE_METADATA => {
            body.skip(4)?;
            let (value, mask) = (body.u64()?, body.u64()?);
            out.metadata = Some(WriteMetadata { value: value & mask, mask });
        }
        WRITE_ACTIONS | APPLY_ACTIONS => {
            body.skip(4)?;
            let within = if kind == WRITE_ACTIONS { Within::Set } else { Within::List };
            let actions = action::pull_actions(body.sub(body.len())?, version, within)?;
            *(if kind == WRITE_ACTIONS { &mut out.write } else { &mut out.apply }) = actions;
        }
        CLEAR_ACTIONS => {
            body.skip(4)?;
            out.clear = true;
        }
        _ => out.meter = Some(body.u32()?),
    }
    Ok(())
}

/// Writes the instructions of a flow that matches `matching`. OpenFlow 1.0 gets the actions, write-metadata as Nicira's action and goto-table as
/// resubmit; it has nothing for the others.
pub(crate) fn put(out: &mut Vec<u8>, version: Version, i: &Instructions, matching: &Match) {
    if version == Version::V1_0 {
        return put_as_actions(out, version, i, matching);
    }
    let as_action = version >= Version::V1_5;
    if let Some(meter) = i.meter.filter(|_| version >= Version::V1_3 && !as_action) {
        one(out, METER, |o| o.u32(meter));
    }
    let meter = i.meter.filter(|_| as_action).map(Action::Meter);
    if !i.apply.is_empty() || meter.is_some() {
        one(out, APPLY_ACTIONS, |o| {
            o.zeros(4);
            action::put_actions(o, version, meter.as_slice());
            action::put_actions(o, version, &action::settled(&i.apply, version, matching));
        });
    }
    if i.clear {
        one(out, CLEAR_ACTIONS, |o| o.zeros(4));
    }
    if !i.write.is_empty() {
        one(out, WRITE_ACTIONS, |o| {
            o.zeros(4);
            action::put_actions(o, version, &action::settled(&i.write, version, matching));
        });
    }
    if let Some(m) = i.metadata {
        one(out, WRITE_METADATA, |o| {
            o.zeros(4);
            o.u64(m.value);
            o.u64(m.mask);
        });
    }
    if let Some(table) = i.goto {
        one(out, GOTO_TABLE, |o| o.put(&[table.0, 0, 0, 0]));
    }
}

fn one(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.here();
    out.u16(kind);
    out.u16(0);
    body(out);
    out.close(start, 2);
}

/// Writes the actions that stand for instructions, as [`put`] does for OpenFlow 1.0.
pub(crate) fn put_as_actions(out: &mut Vec<u8>, version: Version, i: &Instructions, matching: &Match) {
    if version == Version::V1_0 {
        action::put_actions(out, version, &i.apply);
    } else {
        action::put_actions(out, version, &action::settled(&i.apply, version, matching));
    }
    if let Some(m) = i.metadata {
        out.u16(0xffff);
        out.u16(32);
        out.u32(crate::error::vendor::NX);
        out.u16(22);
        out.zeros(6);
        out.u64(m.value);
        out.u64(m.mask);
    }
    if let Some(table) = i.goto {
        let resubmit = Action::Resubmit { in_port: OfPort::IN_PORT, table, with_ct: false };
        action::put_actions(out, version, &[resubmit]);
    }
}
