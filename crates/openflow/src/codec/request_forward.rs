//! Forwarded requests (OpenFlow 1.4 section 7.4.6; extensions of Nicira and ONF have the same body): a message in a message.

use super::wire::{Put, Reader};
use super::{HEADER_LEN, group, kind, meter, nxt};
use crate::error::OfError::{self, *};
use crate::error::vendor;
use crate::message::RequestForward;
use crate::types::Version;

/// Reads the body: a whole message of the same version. Only the two kinds that can be forwarded are read, so that
/// messages do not nest.
pub(super) fn pull(r: &mut Reader, version: Version) -> Result<RequestForward, OfError> {
    let (inner_version, inner_kind, len) = (r.u8()?, r.u8()?, usize::from(r.u16()?));
    // Its transaction id is that of the whole.
    r.skip(4)?;
    if inner_version != version.wire() {
        return Err(OFPBRC_BAD_VERSION);
    }
    if len != HEADER_LEN + r.len() {
        return Err(OFPBRC_BAD_LEN);
    }
    match inner_kind {
        kind::GROUP_MOD if version > Version::V1_0 => {}
        kind::METER_MOD if version >= Version::V1_3 => return Ok(RequestForward::Meter(meter::pull_mod(r)?)),
        kind::EXPERIMENTER if version == Version::V1_0 => match (r.u32()?, r.u32()?) {
            (vendor::NX, nxt::GROUP_MOD) => {}
            (vendor::NX, _) => return Err(OFPBRC_BAD_SUBTYPE),
            _ => return Err(OFPBRC_BAD_VENDOR),
        },
        _ => return Err(OFPBRC_BAD_TYPE),
    }
    Ok(RequestForward::Group(Box::new(group::pull_mod(r, version)?)))
}

/// Writes the body, with the transaction id of the whole. A meter-mod is nothing that versions before 1.3 have; it is written
/// as they would have it.
pub(super) fn put(out: &mut Vec<u8>, version: Version, xid: u32, forwarded: &RequestForward) {
    let start = out.here();
    let nicira = version == Version::V1_0;
    let inner_kind = match forwarded {
        RequestForward::Group(_) if nicira => kind::EXPERIMENTER,
        RequestForward::Group(_) => kind::GROUP_MOD,
        RequestForward::Meter(_) => kind::METER_MOD,
    };
    out.put(&[version.wire(), inner_kind, 0, 0]);
    out.u32(xid);
    match forwarded {
        RequestForward::Group(change) => {
            if nicira {
                out.u32(vendor::NX);
                out.u32(nxt::GROUP_MOD);
            }
            group::put_mod(out, version, change);
        }
        RequestForward::Meter(change) => meter::put_mod(out, change),
    }
    out.close(start, 2);
}
