//! Configuration of queues: OFPT_QUEUE_GET_CONFIG_* of OpenFlow 1.0 to 1.3, OFPMP_QUEUE_DESC from 1.4.

use super::flow::{port16, pull_port16, pull_port32};
use super::prop;
use super::wire::{Put, Reader};
use crate::error::OfError;
use crate::queue::QueueConfig;
use crate::types::{OfPort, Version};

/// OFPQT_* and OFPQDPT_*: properties of a queue.
const MIN_RATE: u16 = 1;
const MAX_RATE: u16 = 2;

/// Rates above this say that none is set.
const RATE_UNSET: u16 = 1000;

/// Reads the body of a request.
pub(super) fn pull_request(r: &mut Reader, version: Version) -> Result<OfPort, OfError> {
    let port = if version == Version::V1_0 { pull_port16(r)? } else { pull_port32(r)? };
    r.skip(if version == Version::V1_0 { 2 } else { 4 })?;
    Ok(port)
}

/// Writes the body of a request.
pub(super) fn put_request(out: &mut Vec<u8>, version: Version, port: OfPort) {
    put_port(out, version, port, if version == Version::V1_0 { 2 } else { 4 });
}

fn put_port(out: &mut Vec<u8>, version: Version, port: OfPort, pad: usize) {
    if version == Version::V1_0 {
        out.u16(port16(port));
    } else {
        out.u32(port.0);
    }
    out.zeros(pad);
}

/// Reads the body of a reply.
pub(super) fn pull_reply(r: &mut Reader, version: Version) -> Result<(OfPort, Vec<QueueConfig>), OfError> {
    let v10 = version == Version::V1_0;
    let port = if v10 { pull_port16(r)? } else { pull_port32(r)? };
    r.skip(if v10 { 6 } else { 4 })?;
    let mut queues = Vec::new();
    while !r.is_empty() {
        queues.push(pull_queue(r, version, port)?);
    }
    Ok((port, queues))
}

/// A queue of a reply. Only from OpenFlow 1.2 does it say its port.
fn pull_queue(r: &mut Reader, version: Version, port: OfPort) -> Result<QueueConfig, OfError> {
    let said = version >= Version::V1_2;
    let mut head = *r;
    let queue = head.u32()?;
    let port = if said { pull_port32(&mut head)? } else { port };
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(if said { 16 } else { 8 })?;
    let mut config = QueueConfig { port, queue, min_rate: None, max_rate: None };
    while !r.is_empty() {
        let (kind, mut v) = prop::pull(&mut r)?;
        v.skip(4)?;
        set_rate(&mut config, kind, &mut v)?;
    }
    Ok(config)
}

fn set_rate(config: &mut QueueConfig, kind: u16, v: &mut Reader) -> Result<(), OfError> {
    match kind {
        MIN_RATE => config.min_rate = Some(v.u16()?).filter(|&rate| rate <= RATE_UNSET),
        MAX_RATE => config.max_rate = Some(v.u16()?).filter(|&rate| rate <= RATE_UNSET),
        _ => {}
    }
    Ok(())
}

/// Writes the body of a reply.
pub(super) fn put_reply(out: &mut Vec<u8>, version: Version, port: OfPort, queues: &[QueueConfig]) {
    put_port(out, version, port, if version == Version::V1_0 { 6 } else { 4 });
    let said = version >= Version::V1_2;
    for q in queues {
        let start = out.here();
        out.u32(q.queue);
        if said {
            out.u32(q.port.0);
        }
        out.zeros(if said { 8 } else { 4 });
        put_rate(out, MIN_RATE, 4, q.min_rate);
        if version > Version::V1_0 {
            put_rate(out, MAX_RATE, 4, q.max_rate);
        }
        out.close(start, if said { 8 } else { 4 });
    }
}

/// Writes a rate `gap` bytes after the header of its property.
fn put_rate(out: &mut Vec<u8>, kind: u16, gap: usize, rate: Option<u16>) {
    let Some(rate) = rate else { return };
    let mut value = vec![0; gap];
    value.u16(rate);
    value.zeros(if gap == 0 { 2 } else { 6 });
    prop::put(out, kind, &value);
}

/// Reads an entry of OFPMP_QUEUE_DESC.
pub(super) fn pull_desc(r: &mut Reader) -> Result<QueueConfig, OfError> {
    let mut head = *r;
    let (port, queue, len) = (pull_port32(&mut head)?, head.u32()?, usize::from(head.u16()?));
    let mut r = r.sub(len)?;
    r.skip(16)?;
    let mut config = QueueConfig { port, queue, min_rate: None, max_rate: None };
    while !r.is_empty() {
        let (kind, mut v) = prop::pull(&mut r)?;
        set_rate(&mut config, kind, &mut v)?;
    }
    Ok(config)
}

/// Writes an entry of OFPMP_QUEUE_DESC.
pub(super) fn put_desc(out: &mut Vec<u8>, q: &QueueConfig) {
    let start = out.here();
    out.u32(q.port.0);
    out.u32(q.queue);
    out.zeros(8);
    put_rate(out, MIN_RATE, 0, q.min_rate);
    put_rate(out, MAX_RATE, 0, q.max_rate);
    out.close(start, 8);
}
