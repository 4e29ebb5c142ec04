//! Counters of a port in OpenFlow 1.4 and later: properties, of which one is Intel's for counters with names.

use super::{ETHERNET, pull_age, pull_number, put_age};
use crate::codec::prop;
use crate::codec::wire::{Put, Reader};
use crate::error::OfError;
use crate::port::PortStats;
use crate::types::Version;

const EXPERIMENTER: u16 = 0xffff;
/// INTEL_VENDOR_ID and INTEL_PORT_STATS_CUSTOM.
const CUSTOM: [u32; 2] = [0x0000_aa01, 2];

/// Reads the counters of a port. Properties of other experimenters and of optical ports are passed over.
pub(super) fn pull(r: &mut Reader) -> Result<PortStats, OfError> {
    let mut head = *r;
    let len = usize::from(head.u16()?);
    let mut r = r.sub(len)?;
    r.skip(4)?;
    let port = pull_number(&mut r, Version::V1_4)?;
    let duration = pull_age(&mut r, Version::V1_4)?;
    let mut n = [0; 8];
    for n in &mut n {
        *n = r.u64()?;
    }
    // What no property tells is not available.
    let mut ethernet = [u64::MAX; 4];
    let mut custom = Vec::new();
    while !r.is_empty() {
        match prop::pull(&mut r)? {
            (ETHERNET, mut v) => {
                v.skip(4)?;
                for n in &mut ethernet {
                    *n = v.u64()?;
                }
            }
            (EXPERIMENTER, v) => custom.extend(pull_custom(v)?),
            _ => {}
        }
    }
    Ok(PortStats {
        port,
        rx_packets: n[0],
        tx_packets: n[1],
        rx_bytes: n[2],
        tx_bytes: n[3],
        rx_dropped: n[4],
        tx_dropped: n[5],
        rx_errors: n[6],
        tx_errors: n[7],
        rx_frame_err: ethernet[0],
        rx_over_err: ethernet[1],
        rx_crc_err: ethernet[2],
        collisions: ethernet[3],
        duration,
        custom,
    })
}

fn pull_custom(mut v: Reader) -> Result<Vec<(String, u64)>, OfError> {
    if [v.u32()?, v.u32()?] != CUSTOM {
        return Ok(Vec::new());
    }
    v.skip(2)?;
    let n = v.u16()?;
    (0..n)
        .map(|_| {
            let len = v.u8()?;
            Ok((v.name(len.into())?, v.u64()?))
        })
        .collect()
}

/// Writes the counters of a port.
pub(super) fn put(out: &mut Vec<u8>, s: &PortStats) {
    let start = out.here();
    out.zeros(4);
    out.u32(s.port.0);
    put_age(out, Version::V1_4, s.duration);
    [s.rx_packets, s.tx_packets, s.rx_bytes, s.tx_bytes, s.rx_dropped, s.tx_dropped, s.rx_errors, s.tx_errors]
        .into_iter()
        .for_each(|n| out.u64(n));
    let mut value = vec![0; 4];
    [s.rx_frame_err, s.rx_over_err, s.rx_crc_err, s.collisions].into_iter().for_each(|n| value.u64(n));
    prop::put(out, ETHERNET, &value);
    if !s.custom.is_empty() {
        prop::put(out, EXPERIMENTER, &custom_value(&s.custom));
    }
    out.close(start, 0);
}

fn custom_value(custom: &[(String, u64)]) -> Vec<u8> {
    let mut value = Vec::new();
    CUSTOM.into_iter().for_each(|n| value.u32(n));
    value.zeros(2);
    value.u16(custom.len().min(0xffff) as u16);
    for (name, n) in custom {
        let mut len = name.len().min(255);
        while !name.is_char_boundary(len) {
            len -= 1;
        }
        value.u8(len as u8);
        value.put(&name.as_bytes()[..len]);
        value.u64(*n);
    }
    value
}
