//! Bundles (OpenFlow 1.4 section 7.3.9; ONF's extension 230 of OpenFlow 1.3 has the same bodies).

use super::prop;
use super::wire::{Put, Reader};
use crate::bundle::*;
use crate::error::OfError::{self, *};

fn pull_flags(bits: u16) -> Result<BundleFlags, OfError> {
    BundleFlags::from_bits(bits).ok_or(OFPBFC_BAD_FLAGS)
}

/// There may be properties, all of them of experimenters.
fn pull_properties(r: &mut Reader) -> Result<(), OfError> {
    if r.is_empty() {
        return Ok(());
    }
    match prop::pull(r)? {
        (0xffff, _) => Err(OFPBPC_BAD_EXPERIMENTER),
        _ => Err(OFPBPC_BAD_TYPE),
    }
}

/// Reads the body of a bundle control message.
pub(super) fn pull_control(r: &mut Reader) -> Result<BundleControl, OfError> {
    let (bundle, number, bits) = (r.u32()?, r.u16()?, r.u16()?);
    let kind = BundleControlKind::ALL.get(usize::from(number)).copied().ok_or(OFPBFC_BAD_TYPE)?;
    pull_properties(r)?;
    Ok(BundleControl { bundle, kind, flags: pull_flags(bits)? })
}

/// Writes the body of a bundle control message.
pub(super) fn put_control(out: &mut Vec<u8>, b: &BundleControl) {
    out.u32(b.bundle);
    out.u16(b.kind as u16);
    out.u16(b.flags.bits());
}

/// Reads the body of a message for a bundle, without a look into that message. `version` and `xid` are those of
/// the whole.
pub(super) fn pull_add(r: &mut Reader, version: u8, xid: u32) -> Result<BundleAdd, OfError> {
    let bundle = r.u32()?;
    r.skip(2)?;
    let flags = pull_flags(r.u16()?)?;
    let mut head = r.with(OFPBFC_MSG_BAD_LEN);
    let (inner_version, _, len, inner_xid) = (head.u8()?, head.u8()?, usize::from(head.u16()?), head.u32()?);
    if inner_version != version {
        return Err(OFPBFC_BAD_VERSION);
    }
    if inner_xid != xid {
        return Err(OFPBFC_MSG_BAD_XID);
    }
    if len < super::HEADER_LEN || len > r.len() {
        return Err(OFPBFC_MSG_BAD_LEN);
    }
    let message = r.bytes(len)?.to_vec();
    r.skip(r.len().min(len.next_multiple_of(8) - len))?;
    pull_properties(r)?;
    Ok(BundleAdd { bundle, flags, message })
}

/// Writes the body of a message for a bundle.
pub(super) fn put_add(out: &mut Vec<u8>, b: &BundleAdd) {
    out.u32(b.bundle);
    out.u16(0);
    out.u16(b.flags.bits());
    out.put(&b.message);
}
