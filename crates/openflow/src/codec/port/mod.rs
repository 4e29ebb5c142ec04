//! Ports: description, status, modification, counters (OpenFlow 1.0 section 5.2.1, 1.3 section 7.2.1).

use std::time::Duration;

use super::flow::{port16, pull_port16};
use super::prop;
use super::wire::{Put, Reader, pull_duration, put_duration};
use crate::error::OfError::{self, *};
use crate::port::*;
use crate::types::{EthAddr, OfPort, Version};

mod stats14;

const NAME_LEN: usize = 16;

/// OpenFlow 1.0 has no speeds of 40 Gb/s and more: its medium and pause bits come four places earlier.
fn features_from_wire(version: Version, bits: u32) -> PortFeatures {
    let bits = if version == Version::V1_0 { bits & 0x7f | (bits & 0xf80) << 4 } else { bits };
    PortFeatures::from_bits_truncate(bits)
}

fn features_to_wire(version: Version, features: PortFeatures) -> u32 {
    let bits = features.bits();
    if version == Version::V1_0 { bits & 0x7f | (bits & 0xf800) >> 4 } else { bits }
}

/// Bits of configuration that a version has.
fn config_known(version: Version) -> PortConfig {
    match version {
        Version::V1_0 => PortConfig::all(),
        _ => PortConfig::PORT_DOWN | PortConfig::NO_RECV | PortConfig::NO_FWD | PortConfig::NO_PACKET_IN,
    }
}

fn state_known(version: Version) -> PortState {
    match version {
        Version::V1_0 => PortState::LINK_DOWN | PortState::STP_LEARN | PortState::STP_FORWARD,
        _ => PortState::LINK_DOWN | PortState::BLOCKED | PortState::LIVE,
    }
}

fn pull_number(r: &mut Reader, version: Version) -> Result<OfPort, OfError> {
    if version == Version::V1_0 { pull_port16(r) } else { super::flow::pull_port32(r) }
}

/// Bytes of a description in a features reply.
pub(super) fn desc_len(version: Version) -> usize {
    if version == Version::V1_0 { 48 } else { 64 }
}

/// OFPPDPT14_ETHERNET, OFPPMPT14_ETHERNET and OFPPSPT14_ETHERNET: the property with what only Ethernet ports
/// have, of descriptions, changes and counters (OpenFlow 1.4 section 7.2.1).
const ETHERNET: u16 = 0;

/// Reads a description.
pub(super) fn pull_desc(r: &mut Reader, version: Version) -> Result<PortDesc, OfError> {
    if version >= Version::V1_4 {
        return pull_desc14(r, version);
    }
    let v10 = version == Version::V1_0;
    let port = pull_number(r, version)?;
    r.skip(if v10 { 0 } else { 4 })?;
    let hw_addr = EthAddr(r.array()?);
    r.skip(if v10 { 0 } else { 2 })?;
    let name = r.name(NAME_LEN)?;
    let config = PortConfig::from_bits_truncate(r.u32()?) & config_known(version);
    let state = PortState::from_bits_truncate(r.u32()?) & state_known(version);
    let mut features = || -> Result<PortFeatures, OfError> { Ok(features_from_wire(version, r.u32()?)) };
    let (current, advertised, supported, peer) = (features()?, features()?, features()?, features()?);
    let (current_speed, max_speed) = if v10 { (0, 0) } else { (r.u32()?, r.u32()?) };
    Ok(PortDesc { port, hw_addr, name, config, state, current, advertised, supported, peer, current_speed, max_speed })
}

/// A description of OpenFlow 1.4 and later, with properties. Those of optical ports and of experimenters are
/// passed over.
fn pull_desc14(r: &mut Reader, version: Version) -> Result<PortDesc, OfError> {
    let mut head = *r;
    let port = pull_number(&mut head, version)?;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(8)?;
    let hw_addr = EthAddr(r.array()?);
    r.skip(2)?;
    let name = r.name(NAME_LEN)?;
    let config = PortConfig::from_bits_truncate(r.u32()?) & config_known(version);
    let state = PortState::from_bits_truncate(r.u32()?) & state_known(version);
    let mut numbers = [0; 6];
    while !r.is_empty() {
        let (kind, mut v) = prop::pull(&mut r)?;
        if kind == ETHERNET {
            v.skip(4)?;
            for number in &mut numbers {
                *number = v.u32()?;
            }
        }
    }
    let [current, advertised, supported, peer] = [0, 1, 2, 3].map(|i| features_from_wire(version, numbers[i]));
    let [.., current_speed, max_speed] = numbers;
    Ok(PortDesc { port, hw_addr, name, config, state, current, advertised, supported, peer, current_speed, max_speed })
}

fn put_desc14(out: &mut Vec<u8>, version: Version, p: &PortDesc) {
    let start = out.here();
    out.u32(p.port.0);
    out.zeros(4);
    out.put(&p.hw_addr.0);
    out.zeros(2);
    out.name(&p.name, NAME_LEN);
    out.u32((p.config & config_known(version)).bits());
    out.u32((p.state & state_known(version)).bits());
    let mut value = vec![0; 4];
    [p.current, p.advertised, p.supported, p.peer].iter().for_each(|f| value.u32(features_to_wire(version, *f)));
    value.u32(p.current_speed);
    value.u32(p.max_speed);
    prop::put(out, ETHERNET, &value);
    out.close(start, 4);
}

/// Writes a description.
pub(super) fn put_desc(out: &mut Vec<u8>, version: Version, p: &PortDesc) {
    if version >= Version::V1_4 {
        return put_desc14(out, version, p);
    }
    let v10 = version == Version::V1_0;
    if v10 {
        out.u16(port16(p.port));
    } else {
        out.u32(p.port.0);
        out.zeros(4);
    }
    out.put(&p.hw_addr.0);
    out.zeros(if v10 { 0 } else { 2 });
    out.name(&p.name, NAME_LEN);
    out.u32((p.config & config_known(version)).bits());
    out.u32((p.state & state_known(version)).bits());
    for features in [p.current, p.advertised, p.supported, p.peer] {
        out.u32(features_to_wire(version, features));
    }
    if !v10 {
        out.u32(p.current_speed);
        out.u32(p.max_speed);
    }
}

/// Reads the body of a port-status.
pub(super) fn pull_status(r: &mut Reader, version: Version) -> Result<PortStatus, OfError> {
    let reason = match r.u8()? {
        0 => PortReason::Add,
        1 => PortReason::Delete,
        2 => PortReason::Modify,
        _ => return Err(NXBRC_BAD_REASON),
    };
    r.skip(7)?;
    Ok(PortStatus { reason, desc: pull_desc(r, version)? })
}

/// Writes the body of a port-status.
pub(super) fn put_status(out: &mut Vec<u8>, version: Version, s: &PortStatus) {
    out.u8(s.reason as u8);
    out.zeros(7);
    put_desc(out, version, &s.desc);
}

/// Reads the body of a port-mod.
pub(super) fn pull_mod(r: &mut Reader, version: Version) -> Result<PortMod, OfError> {
    let v10 = version == Version::V1_0;
    let port = pull_number(r, version)?;
    r.skip(if v10 { 0 } else { 4 })?;
    let hw_addr = EthAddr(r.array()?);
    r.skip(if v10 { 0 } else { 2 })?;
    let config = PortConfig::from_bits_truncate(r.u32()?) & config_known(version);
    let mask = PortConfig::from_bits_truncate(r.u32()?) & config_known(version);
    let mut advertise = PortFeatures::empty();
    if version < Version::V1_4 {
        advertise = features_from_wire(version, r.u32()?);
        r.skip(4)?;
    }
    while version >= Version::V1_4 && !r.is_empty() {
        match prop::pull(r)? {
            (ETHERNET, v) => advertise = features_from_wire(version, v.with(OFPBPC_BAD_LEN).u32()?),
            (0xffff, _) => return Err(OFPBPC_BAD_EXPERIMENTER),
            _ => return Err(OFPBPC_BAD_TYPE),
        }
    }
    Ok(PortMod { port, hw_addr, config: config & mask, mask, advertise })
}

/// Writes the body of a port-mod.
pub(super) fn put_mod(out: &mut Vec<u8>, version: Version, p: &PortMod) {
    let v10 = version == Version::V1_0;
    if v10 {
        out.u16(port16(p.port));
    } else {
        out.u32(p.port.0);
        out.zeros(4);
    }
    out.put(&p.hw_addr.0);
    out.zeros(if v10 { 0 } else { 2 });
    out.u32((p.config & config_known(version)).bits());
    out.u32((p.mask & config_known(version)).bits());
    let advertise = features_to_wire(version, p.advertise);
    if version < Version::V1_4 {
        out.u32(advertise);
        out.zeros(4);
    } else if advertise != 0 {
        prop::put(out, ETHERNET, &advertise.to_be_bytes());
    }
}

/// Reads the counters of a port.
pub(super) fn pull_stats(r: &mut Reader, version: Version) -> Result<PortStats, OfError> {
    if version >= Version::V1_4 {
        return stats14::pull(r);
    }
    let port = pull_number(r, version)?;
    r.skip(if version == Version::V1_0 { 6 } else { 4 })?;
    Ok(PortStats {
        port,
        rx_packets: r.u64()?,
        tx_packets: r.u64()?,
        rx_bytes: r.u64()?,
        tx_bytes: r.u64()?,
        rx_dropped: r.u64()?,
        tx_dropped: r.u64()?,
        rx_errors: r.u64()?,
        tx_errors: r.u64()?,
        rx_frame_err: r.u64()?,
        rx_over_err: r.u64()?,
        rx_crc_err: r.u64()?,
        collisions: r.u64()?,
        duration: pull_age(r, version)?,
        custom: Vec::new(),
    })
}

fn pull_age(r: &mut Reader, version: Version) -> Result<Option<Duration>, OfError> {
    if version < Version::V1_3 {
        return Ok(None);
    }
    let unknown = r.with(OFPBRC_BAD_LEN).u32()? == u32::MAX;
    let age = pull_duration(r)?;
    Ok((!unknown).then_some(age))
}

fn put_age(out: &mut Vec<u8>, version: Version, age: Option<Duration>) {
    match age {
        _ if version < Version::V1_3 => {}
        Some(age) => put_duration(out, age),
        // All ones: not available.
        None => out.u64(u64::MAX),
    }
}

/// Writes the counters of a port.
pub(super) fn put_stats(out: &mut Vec<u8>, version: Version, s: &PortStats) {
    if version >= Version::V1_4 {
        return stats14::put(out, s);
    }
    if version == Version::V1_0 {
        out.u16(port16(s.port));
        out.zeros(6);
    } else {
        out.u32(s.port.0);
        out.zeros(4);
    }
    [s.rx_packets, s.tx_packets, s.rx_bytes, s.tx_bytes, s.rx_dropped, s.tx_dropped, s.rx_errors, s.tx_errors]
        .into_iter()
        .chain([s.rx_frame_err, s.rx_over_err, s.rx_crc_err, s.collisions])
        .for_each(|n| out.u64(n));
    put_age(out, version, s.duration);
}

/// Reads the counters of a queue.
pub(super) fn pull_queue(r: &mut Reader, version: Version) -> Result<QueueStats, OfError> {
    // From OpenFlow 1.4 there can be properties, all of them of experimenters.
    let mut whole = *r;
    if version >= Version::V1_4 {
        let mut head = *r;
        let len = usize::from(head.u16()?);
        whole = r.sub(len)?;
        whole.skip(8)?;
    }
    let r = if version >= Version::V1_4 { &mut whole } else { r };
    let port = pull_number(r, version)?;
    r.skip(if version == Version::V1_0 { 2 } else { 0 })?;
    Ok(QueueStats {
        port,
        queue: r.u32()?,
        tx_bytes: r.u64()?,
        tx_packets: r.u64()?,
        tx_errors: r.u64()?,
        duration: pull_age(r, version)?,
    })
}

/// Writes the counters of a queue.
pub(super) fn put_queue(out: &mut Vec<u8>, version: Version, q: &QueueStats) {
    if version >= Version::V1_4 {
        out.u16(48);
        out.zeros(6);
    }
    if version == Version::V1_0 {
        out.u16(port16(q.port));
        out.zeros(2);
    } else {
        out.u32(q.port.0);
    }
    out.u32(q.queue);
    [q.tx_bytes, q.tx_packets, q.tx_errors].into_iter().for_each(|n| out.u64(n));
    put_age(out, version, q.duration);
}
