//! How long the bodies of messages are: what is of another length is refused before anything of it is looked at, as in OVS.

use super::{kind, moved};
use crate::error::OfError::{self, OFPBRC_BAD_LEN};
use crate::types::Version;

/// Refuses a body that is longer or shorter than any of this type.
pub(super) fn check(version: Version, kind: u8, len: usize) -> Result<(), OfError> {
    let (min, is_fixed) = of(version, kind);
    if len < min || is_fixed && len > min { Err(OFPBRC_BAD_LEN) } else { Ok(()) }
}

/// The least length of a body, and whether it has no other.
fn of(version: Version, kind: u8) -> (usize, bool) {
    let old = |v10: usize, later: usize| if version == Version::V1_0 { v10 } else { later };
    let since = |first: Version| version >= first;
    let [port_mod, stats_request, stats_reply, barrier_request, barrier_reply, queue_request, queue_reply] =
        moved(version);
    match kind {
        kind::FEATURES_REQUEST | kind::GET_CONFIG_REQUEST => (0, true),
        kind::GET_CONFIG_REPLY | kind::SET_CONFIG => (4, true),
        kind::PACKET_OUT => (old(8, 16), false),
        kind::FLOW_MOD => (old(64, 40), false),
        k if k == port_mod && !since(Version::V1_4) => (old(24, 32), true),
        k if k == port_mod => (24, false),
        k if k == stats_request || k == stats_reply => (old(4, 8), false),
        k if k == barrier_request || k == barrier_reply => (0, true),
        k if k == queue_request && !since(Version::V1_4) => (old(4, 8), true),
        k if k == queue_reply && !since(Version::V1_4) => (8, false),
        kind::GROUP_MOD if since(Version::V1_1) => (if since(Version::V1_5) { 16 } else { 8 }, false),
        kind::TABLE_MOD if since(Version::V1_1) => (8, !since(Version::V1_4)),
        kind::ROLE_REQUEST | kind::ROLE_REPLY if since(Version::V1_2) => (16, true),
        kind::GET_ASYNC_REQUEST if since(Version::V1_3) => (0, true),
        kind::GET_ASYNC_REPLY | kind::SET_ASYNC if version == Version::V1_3 => (24, true),
        kind::METER_MOD if since(Version::V1_3) => (8, false),
        kind::BUNDLE_CONTROL | kind::BUNDLE_ADD if since(Version::V1_4) => (8, false),
        _ => (0, false),
    }
}
