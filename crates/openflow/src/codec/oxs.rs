//! Statistics as OXS fields (OpenFlow 1.5 section 7.2.4).

use std::time::Duration;

use super::wire::{Put, Reader, pull_duration, put_duration};
use crate::error::OfError::{self, *};

/// OFPXSC_OPENFLOW_BASIC.
const CLASS: u16 = 0x8002;

/// OFPXST_OFB_*.
mod field {
    pub const DURATION: u8 = 0;
    pub const IDLE_TIME: u8 = 1;
    pub const FLOW_COUNT: u8 = 3;
    pub const PACKET_COUNT: u8 = 4;
    pub const BYTE_COUNT: u8 = 5;
}

/// What is told of a flow or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Oxs {
    /// Age.
    pub duration: Option<Duration>,
    /// Seconds since the last packet.
    pub idle: Option<u32>,
    /// Flows.
    pub flows: Option<u32>,
    /// Packets.
    pub packets: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

/// A counter, which all ones say is not known.
pub(super) fn known(n: u64) -> Option<u64> {
    (n != u64::MAX).then_some(n)
}

/// Reads struct ofp_oxs_stat with its padding. Unknown fields are passed over.
pub(super) fn pull(r: &mut Reader) -> Result<Oxs, OfError> {
    let mut head = r.with(OFPBRC_BAD_LEN);
    head.skip(2)?;
    let len = usize::from(head.u16()?);
    let mut fields = head.sub(len.checked_sub(4).ok_or(OFPBRC_BAD_LEN)?)?;
    r.skip(len.next_multiple_of(8))?;
    let mut out = Oxs::default();
    while !fields.is_empty() {
        let (class, kind, len) = (fields.u16()?, fields.u8()? >> 1, fields.u8()?);
        let mut value = fields.sub(len.into())?;
        match (class, kind) {
            (CLASS, field::DURATION) => out.duration = Some(pull_duration(&mut value)?),
            (CLASS, field::IDLE_TIME) => {
                out.idle = Some(pull_duration(&mut value)?.as_secs().min(u32::MAX.into()) as u32)
            }
            (CLASS, field::FLOW_COUNT) => out.flows = Some(value.u32()?),
            (CLASS, field::PACKET_COUNT) => out.packets = Some(value.u64()?),
            (CLASS, field::BYTE_COUNT) => out.bytes = Some(value.u64()?),
            _ => {}
        }
    }
    Ok(out)
}

/// Writes struct ofp_oxs_stat with its padding.
pub(super) fn put(out: &mut Vec<u8>, oxs: &Oxs) {
    let start = out.here();
    out.zeros(4);
    if let Some(duration) = oxs.duration {
        put_head(out, field::DURATION, 8);
        put_duration(out, duration);
    }
    if let Some(seconds) = oxs.idle {
        put_head(out, field::IDLE_TIME, 8);
        out.u32(seconds);
        out.zeros(4);
    }
    if let Some(flows) = oxs.flows {
        put_head(out, field::FLOW_COUNT, 4);
        out.u32(flows);
    }
    for (kind, n) in [(field::PACKET_COUNT, oxs.packets), (field::BYTE_COUNT, oxs.bytes)] {
        if let Some(n) = n {
            put_head(out, kind, 8);
            out.u64(n);
        }
    }
    out.close(start, 2);
    out.pad8(start);
}

fn put_head(out: &mut Vec<u8>, kind: u8, len: u8) {
    out.u16(CLASS);
    out.put(&[kind << 1, len]);
}
