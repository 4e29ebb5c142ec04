//! Meters: changes, configuration, counters (OpenFlow 1.3 sections 7.3.4.5 and 7.3.5.8).

use super::wire::{Put, Reader, pull_duration, put_duration};
use crate::error::OfError::{self, *};
use crate::meter::*;

/// OFPMBT13_*.
mod band {
    pub const DROP: u16 = 1;
    pub const DSCP_REMARK: u16 = 2;
    /// Bytes of a band of either type.
    pub const LEN: u16 = 16;
}

fn pull_bands(r: &mut Reader) -> Result<Vec<Band>, OfError> {
    let mut out = Vec::new();
    while !r.is_empty() {
        let (kind, len) = (r.u16()?, r.u16()?);
        if !matches!(kind, band::DROP | band::DSCP_REMARK) {
            return Err(OFPMMFC_BAD_BAND);
        }
        if len != band::LEN {
            return Err(OFPBRC_BAD_LEN);
        }
        let (rate, burst, level) = (r.u32()?, r.u32()?, r.u8()?);
        r.skip(3)?;
        let kind = if kind == band::DROP { BandKind::Drop } else { BandKind::DscpRemark(level) };
        out.push(Band { kind, rate, burst });
    }
    Ok(out)
}

fn put_bands(out: &mut Vec<u8>, bands: &[Band]) {
    for b in bands {
        let (kind, level) = match b.kind {
            BandKind::Drop => (band::DROP, 0),
            BandKind::DscpRemark(level) => (band::DSCP_REMARK, level),
        };
        out.u16(kind);
        out.u16(band::LEN);
        out.u32(b.rate);
        out.u32(b.burst);
        out.put(&[level, 0, 0, 0]);
    }
}

/// Reads the body of a meter-mod.
pub(super) fn pull_mod(r: &mut Reader) -> Result<MeterMod, OfError> {
    use MeterCommand::*;
    let (number, bits, meter) = (r.u16()?, r.u16()?, r.u32()?);
    let command = [Add, Modify, Delete].into_iter().find(|&c| c as u16 == number).ok_or(OFPMMFC_BAD_COMMAND)?;
    let special = matches!(meter, meter_id::SLOWPATH | meter_id::CONTROLLER);
    match command {
        // One that cannot be there is not there.
        Delete => {}
        _ if meter == 0 || meter > meter_id::MAX && !special => return Err(OFPMMFC_INVALID_METER),
        _ => {}
    }
    if command == Delete {
        // Flags and bands of what goes are of no meaning.
        r.rest();
        return Ok(MeterMod { command, config: MeterConfig { meter, flags: MeterFlags::empty(), bands: Vec::new() } });
    }
    let flags = MeterFlags::from_bits(bits).ok_or(OFPMMFC_BAD_FLAGS)?;
    if flags.contains(MeterFlags::KBPS | MeterFlags::PKTPS) {
        return Err(OFPMMFC_BAD_FLAGS);
    }
    Ok(MeterMod { command, config: MeterConfig { meter, flags, bands: pull_bands(r)? } })
}

/// Writes the body of a meter-mod.
pub(super) fn put_mod(out: &mut Vec<u8>, m: &MeterMod) {
    out.u16(m.command as u16);
    out.u16(m.config.flags.bits());
    out.u32(m.config.meter);
    put_bands(out, &m.config.bands);
}

/// Reads an entry of OFPMP_METER_CONFIG.
pub(super) fn pull_config(r: &mut Reader) -> Result<MeterConfig, OfError> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(2)?;
    let (flags, meter) = (MeterFlags::from_bits_truncate(r.u16()?), r.u32()?);
    Ok(MeterConfig { meter, flags, bands: pull_bands(&mut r)? })
}

/// Writes an entry of OFPMP_METER_CONFIG.
pub(super) fn put_config(out: &mut Vec<u8>, m: &MeterConfig) {
    let start = out.here();
    out.u16(0);
    out.u16(m.flags.bits());
    out.u32(m.meter);
    put_bands(out, &m.bands);
    out.close(start, 0);
}

/// Reads an entry of OFPMP_METER.
pub(super) fn pull_stats(r: &mut Reader) -> Result<MeterStats, OfError> {
    let mut head = *r;
    head.skip(4)?;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    let meter = r.u32()?;
    r.skip(8)?;
    let (flow_count, packet_in_count, byte_in_count) = (r.u32()?, r.u64()?, r.u64()?);
    let duration = pull_duration(&mut r)?;
    let mut bands = Vec::new();
    while !r.is_empty() {
        bands.push((r.u64()?, r.u64()?));
    }
    Ok(MeterStats { meter, flow_count, packet_in_count, byte_in_count, duration, bands })
}

/// Writes an entry of OFPMP_METER.
pub(super) fn put_stats(out: &mut Vec<u8>, m: &MeterStats) {
    let start = out.here();
    out.u32(m.meter);
    out.zeros(8);
    out.u32(m.flow_count);
    out.u64(m.packet_in_count);
    out.u64(m.byte_in_count);
    put_duration(out, m.duration);
    for &(packets, bytes) in &m.bands {
        out.u64(packets);
        out.u64(bytes);
    }
    out.close(start, 4);
}
